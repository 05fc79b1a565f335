"""Requests about the daemon, and what its operators ask of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from ...errors import LimitExceeded, RequestError, TimedOut, Unavailable
from ...records.asked import ids_to_engine
from ..params import Outcome, Params
from ..serving import Reply, Serving
from .named import engine_reply
from .registry import method

CHECKPOINT_POLL_S = 0.05
"""The engine is asked so often whether a checkpoint that was asked for is made."""


@method("programs")
def programs(serving: Serving, params: Params) -> Outcome:
    """Each program's kind, parameters, state and scalars."""
    params.end()

    def reply() -> Reply:
        snapshot = serving.snapshot()
        shown = {
            id: {"kind": result.kind, **result.state, "scalars": result.published.scalars}
            for id, result in snapshot.programs.items()
        }
        shown |= {id: {**coming, "scalars": {}} for id, coming in snapshot.coming.items()}
        return Reply(serving.stamp(snapshot), {"programs": shown})

    return params.once_covered(serving, reply)


@method("stats")
def stats(serving: Serving, params: Params) -> Outcome:
    """Vertices, edges, memory, lag and program states."""
    params.end()

    def reply() -> Reply:
        snapshot = serving.snapshot()
        return Reply(serving.stamp(snapshot), {"server": serving.statistics()}, snapshot.statistics)

    return params.once_covered(serving, reply)


@method("checkpoint")
async def checkpoint(serving: Serving, params: Params) -> Reply:
    """Have a checkpoint made: of one epoch exactly, or of the present one or a later one; return once it is."""
    serving.admission.check_admin(params.asker.connection.token)
    at, since = params.epoch("at"), params.epoch("since")
    params.end()
    if at is not None and since is not None:
        raise RequestError("at and since exclude each other", {"parameter": "since"})
    await params.covered(serving)
    with serving.exactly(at):
        return await _made(serving, params, at, since)


async def _made(
    serving: Serving, params: Params, at: tuple[int, int] | None, since: tuple[int, int] | None
) -> Reply:
    asked: dict[str, Any] = {"at": at, "since": since, "failures": None}
    while True:
        result = await serving.engine.call(params.asker, "checkpoint", asked, 1, params.deadline)
        match result["status"]:
            case "made":
                return Reply(result["stamp"], {"path": result["path"]})
            case "failed":
                raise Unavailable(f"the checkpoint failed: {result['reason']}")
            case "gone":
                kept = ", ".join(".".join(map(str, epoch)) for epoch in result["kept"]) or "none"
                now = ".".join(map(str, result["epoch"]))
                raise RequestError(
                    f"no checkpoint of that epoch can be made any more: the present one is {now}. "
                    f"There are checkpoints of: {kept}",
                    {"parameter": "at", "kept": result["kept"]},
                )
        asked |= {"failures": result["failures"]} | ({} if at else {"since": result["since"]})
        if time.monotonic() + CHECKPOINT_POLL_S >= params.deadline:
            raise TimedOut("the checkpoint was not made in time", {"since": result["since"]})
        await asyncio.sleep(CHECKPOINT_POLL_S)


@method("placement")
async def placement(serving: Serving, params: Params) -> Reply:
    """Which side has which rows, what moved and why; of chosen vertices, too."""
    ids = params.vertices_or_all("vertices", serving)
    params.end()
    if ids is not None and len(ids) > serving.limits.ad_hoc_vertices_max:
        limit = serving.limits.ad_hoc_vertices_max
        detail = {"ad_hoc_vertices_max": limit, "parameter": "vertices"}
        raise LimitExceeded(f"vertices has {len(ids)} ids; the engine answers for {limit} at most", detail)
    await params.covered(serving)
    await serving.make_room(params.asker, 0 if ids is None else len(ids))
    asked = {"vertices": ids_to_engine(ids)}
    return engine_reply(await serving.ask_aside(params.asker, "placement", asked, params.deadline))


@method("admin.rebalance")
async def rebalance(serving: Serving, params: Params) -> Reply:
    """Have rows move where they had better be, after the next epoch, whether there is a reason to or not."""
    return await _steer(serving, params, "rebalance", {})


@method("admin.freeze")
async def freeze(serving: Serving, params: Params) -> Reply:
    """Let rows stay where they are, or move again."""
    return await _steer(serving, params, "freeze", {"thaw": params.flag("thaw")})


@method("admin.device")
async def device(serving: Serving, params: Params) -> Reply:
    """Whether there is a device, and why it was lost; or try it again, for which the daemon starts again."""
    return await _steer(serving, params, "device", {"retry": params.flag("retry")})


async def _steer(serving: Serving, params: Params, question: str, asked: Mapping[str, Any]) -> Reply:
    serving.admission.check_admin(params.asker.connection.token)
    params.end()
    await params.covered(serving)
    return engine_reply(await serving.ask_aside(params.asker, question, asked, params.deadline))
