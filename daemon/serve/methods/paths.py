"""Requests for paths along parents."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....compute.program import Program, Published
from ....gpma.edges import NO_VERTEX, Vertices
from ....gpma.index.ids import IdColumn
from ...client.wire import pack_column
from ...errors import LimitExceeded, NotSupported, TimedOut, UnknownVertex
from ..params import Params
from ..results import ProgramResults, Snapshot
from ..serving import Reply, Serving
from ..values import staleness, wire_ids
from .named import copy_of, known_vertex, program_of
from .registry import method

PATH_STEPS_INLINE = 64
"""Longer paths are followed on a copy of all parents."""


@method("path")
async def path(serving: Serving, params: Params) -> Reply:
    """The path from the program's source to the target along the parents of one epoch."""
    id = params.program()
    target = params.vertex("target", serving)
    params.end()
    await params.covered(serving)
    while True:
        snapshot, vertices, value = await serving.in_thread(params.asker, _follow, serving, id, target)
        answer: dict[str, Any] = {"vertices": wire_ids(serving.external(vertices)), "value": value}
        answer |= staleness(snapshot.programs[id])
        if serving.graph["weighted"] and "stale" not in answer:
            weights = await _weights(serving, params, snapshot, vertices)
            if weights is None:
                if time.monotonic() > params.deadline:
                    raise TimedOut("the graph changed faster than the path's weights could be read")
                continue  # the storage has moved on: so did the results, or will in a moment
            answer["weights"] = pack_column(weights)
        return Reply(serving.stamp(snapshot), answer)


async def _weights(
    serving: Serving, params: Params, snapshot: Snapshot, vertices: Vertices
) -> npt.NDArray[np.float32] | None:
    """Weights of a path's edges; None when the storage is no longer at the snapshot's epoch."""
    if vertices.size < 2:
        return np.zeros(0, np.float32)
    ends = {"epoch": snapshot.epoch, "src": vertices[:-1].tobytes(), "dst": vertices[1:].tobytes()}
    result = await serving.engine.call(params.asker, "edge_weights", ends, vertices.size, params.deadline)
    return None if result["weights"] is None else np.frombuffer(result["weights"], np.float32)


def _follow(serving: Serving, id: str, target: IdColumn) -> tuple[Snapshot, Vertices, Any]:
    """(epoch, the vertices from source to target, the target's value); no vertices where there is no path."""
    limit = serving.limits.vertices_max

    def start(snapshot: Snapshot) -> tuple[Snapshot, list[int], bool, Any, ProgramResults]:
        result = program_of(snapshot, id)
        kind = serving.program_class(result.kind)
        if not kind.has_parents:
            raise NotSupported(f"programs of kind {result.kind} keep no parents")
        dense = known_vertex(serving, snapshot, target, "target")
        if not result.knows(np.array([dense], np.uint32))[0]:
            return snapshot, [], True, None, result
        answer = kind.read(result.published, np.array([dense], np.uint32))
        if answer.null[0]:
            return snapshot, [], True, None, result
        steps, ended = _climb(kind, result.published, dense)
        gone = None if result.gone is None else result.gone.copy()
        copy = result.published if ended else copy_of(result)
        return snapshot, steps, ended, answer.values[0].item(), replace(result, published=copy, gone=gone)

    snapshot, steps, ended, value, result = serving.read(start)
    if not ended:
        kind = serving.program_class(result.kind)
        parents = kind.parents(result.published, np.arange(result.published.n_vertices, dtype=np.uint32))
        while (parent := int(parents[steps[-1]])) != NO_VERTEX:
            steps.append(parent)
            if len(steps) > limit:
                raise LimitExceeded(f"the path has more than {limit} vertices", {"vertices_max": limit})
    vertices = np.array(steps[::-1], np.uint32)
    if not result.knows(vertices).all():
        raise UnknownVertex("this path led through a vertex that was deleted since", staleness(result))
    return snapshot, vertices, value


def _climb(kind: type[Program], published: Published, vertex: int) -> tuple[list[int], bool]:
    """The first ancestors of a vertex, itself included, and whether the last one is a root."""
    steps = [vertex]
    for _ in range(PATH_STEPS_INLINE):
        parent = int(kind.parents(published, np.array(steps[-1:], np.uint32))[0])
        if parent == NO_VERTEX:
            return steps, True
        steps.append(parent)
    return steps, False
