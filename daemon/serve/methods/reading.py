"""Requests for the values of vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....gpma.edges import NO_VERTEX, Vertices
from ...errors import LimitExceeded, NotSupported
from ..params import PROGRAM_MISSING, Outcome, Params, wrong
from ..results import ProgramResults, Snapshot
from ..serving import VERTICES_INLINE_MAX, Reply, Serving
from ..values import staleness, values_of, vertices_named, wire_ids
from .named import program_of
from .registry import method


@method("get")
def get(serving: Serving, params: Params) -> Outcome:
    """Values of vertices, of one program or of several in one epoch."""
    named = params.take("program")
    ids = params.vertices("vertices", serving)
    with_parents = params.flag("parents")
    params.end()
    if isinstance(named, str):
        programs = [named]
    elif isinstance(named, list) and named and all(isinstance(id, str) for id in named):
        programs = list(dict.fromkeys(named))
    else:
        raise wrong(
            "program", PROGRAM_MISSING if named is None else "must be the id of a program, or an array of them"
        )
    if len(ids) * len(programs) > serving.limits.vertices_max:
        limit = serving.limits.vertices_max
        raise LimitExceeded(
            f"{len(ids)} vertices times {len(programs)} programs are more than {limit}",
            {"vertices_max": limit, "parameter": "vertices"},
        )

    def read(snapshot: Snapshot) -> Reply:
        dense = serving.lookup_in(snapshot, ids)
        unknown = dense == NO_VERTEX
        answers = {
            id: _values(serving, program_of(snapshot, id), dense, unknown, with_parents=with_parents)
            for id in programs
        }
        answer = answers[named] if isinstance(named, str) else {"results": answers}
        answer["unknown"] = wire_ids(ids[unknown])
        return Reply(serving.stamp(snapshot), answer)

    async def in_thread() -> Reply:
        await serving.make_room(params.asker, len(ids) * len(programs))
        return await serving.in_thread(params.asker, serving.read, read)

    few = len(ids) <= VERTICES_INLINE_MAX
    return params.once_covered(serving, lambda: serving.read(read) if few else in_thread())


def _values(
    serving: Serving,
    result: ProgramResults,
    dense: Vertices,
    unknown: npt.NDArray[np.bool_],
    *,
    with_parents: bool,
) -> dict[str, Any]:
    """Values of one program, and parents."""
    answer = values_of(serving, result, dense).to_wire()
    if with_parents:
        kind = serving.program_class(result.kind)
        if not kind.has_parents:
            raise NotSupported(f"programs of kind {result.kind} keep no parents")
        seen = result.knows(dense)
        parents = np.full(dense.size, NO_VERTEX, np.uint32)
        parents[seen] = kind.parents(result.published, dense[seen])
        answer["parents"] = vertices_named(serving, result, parents, unknown | ~seen).to_wire()
    return {**answer, **staleness(result)}
