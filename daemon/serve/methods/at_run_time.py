"""Requests to compute programs, once or from now on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ....compute import registry
from ....compute.program import ProgramError
from ...errors import LimitExceeded, RequestError
from ...records.asked import ids_to_engine
from ..params import Params, wrong
from ..serving import VERTICES_INLINE_MAX, Reply, Serving
from .named import engine_reply
from .registry import method


@method("compute")
async def compute(serving: Serving, params: Params) -> Reply:
    """Run a program once, from scratch, on one epoch, beside the stream."""
    kind = _kind(params)
    ids = params.vertices_or_all("vertices", serving)
    k = params.limited("top", serving.limits, "top_k_max", low=0, default=0)
    order = params.choice("order", ("desc", "asc"))
    given = await _given(serving, params, kind, "vertices", "top", "order")
    if ids is not None and k:
        raise wrong("top", "must not be given together with vertices")
    if ids is not None and len(ids) > serving.limits.ad_hoc_vertices_max:
        limit = serving.limits.ad_hoc_vertices_max
        detail = {"ad_hoc_vertices_max": limit, "parameter": "vertices"}
        raise LimitExceeded(f"vertices has {len(ids)} ids; a run answers for {limit} at most", detail)
    await params.covered(serving)
    await serving.make_room(params.asker, k if ids is None else len(ids))
    asked = {
        "program": kind,
        "parameters": given,
        "vertices": ids_to_engine(ids),
        "top": k,
        "order": order,
        "by_admin": serving.admission.is_admin(params.asker.connection.token),
    }
    deadline = min(params.deadline, time.monotonic() + serving.limits.ad_hoc_seconds_max)
    return engine_reply(await serving.ask_aside(params.asker, "compute", asked, deadline))


@method("keep")
async def keep(serving: Serving, params: Params) -> Reply:
    """Keep a program up to date from now on; it is computed beside the stream, and joins when it has caught up."""
    serving.admission.check_admin(params.asker.connection.token)
    kind, id = _kind(params), params.take("id")
    given = await _given(serving, params, kind, "id")
    if id is not None and not (isinstance(id, str) and id):
        raise wrong("id", "must be a string that is not empty, what requests are to call the program")
    await params.covered(serving)
    asked = {"program": kind, "id": id, "parameters": given}
    return engine_reply(await serving.ask_aside(params.asker, "keep", asked, params.deadline))


@method("drop")
async def drop(serving: Serving, params: Params) -> Reply:
    """Keep a program up to date no more that was asked for by ``keep``."""
    serving.admission.check_admin(params.asker.connection.token)
    id = params.program()
    params.end()
    await params.covered(serving)
    return engine_reply(await serving.ask_aside(params.asker, "drop", {"program": id}, params.deadline))


def _kind(params: Params) -> str:
    kind = params.take("program")
    if not isinstance(kind, str):
        raise wrong("program", "must be given: the name of a program, such as bfs")
    return kind


async def _given(serving: Serving, params: Params, kind: str, *taken: str) -> dict[str, Any]:
    """The parameters of a program of this kind: those in a map of that name, and all that is left.

    ``taken``: the parameters that the request has besides.

    Raises:
        RequestError: there is no such program, or a parameter is unknown, missing or wrong.
    """
    nested = params.take("parameters")
    if nested is not None and not isinstance(nested, Mapping):
        raise wrong("parameters", "must be a map of the program's parameters")
    given = {**(nested or {}), **params.rest()}
    if any(isinstance(value, list) and len(value) > VERTICES_INLINE_MAX for value in given.values()):
        await serving.in_thread(params.asker, _check, kind, given, taken)
    else:
        _check(kind, given, taken)
    return given


def _check(kind: str, given: Mapping[str, Any], taken: tuple[str, ...]) -> None:
    """
    Raises:
        RequestError: as ``_given``.
    """
    try:
        registry.parse_parameters(kind, given, beside=(*taken, "min_offsets", "timeout_ms"))
    except ProgramError as error:
        detail = {} if error.parameter is None else {"parameter": error.parameter}
        raise RequestError(str(error), detail) from error
