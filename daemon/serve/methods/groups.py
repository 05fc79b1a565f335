"""Requests for components, communities and cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....compute.program import ExternalId, Program
from ....gpma.edges import NO_VERTEX, Vertices
from ...errors import NotSupported, UnknownProgram, UnknownVertex
from ..params import PAGE_DEFAULT, Params, wrong
from ..results import ProgramResults, Snapshot
from ..serving import SCAN_CHUNK, Reply, Serving
from ..values import staleness, wire_ids
from .named import known_vertex, one_id, program_of
from .registry import method


@method("component")
async def component(serving: Serving, params: Params) -> Reply:
    """The component, community or core of a vertex: its label, its size, and its members up to a limit."""
    given = params.take("program")
    vertex = params.vertex("vertex", serving)
    limit = params.limited("limit", serving.limits, "vertices_max", low=0, default=PAGE_DEFAULT)
    params.end()
    if given is not None and not isinstance(given, str):
        raise wrong("program", "must be the id of one program, a string")

    def read(snapshot: Snapshot) -> Reply:
        result = _grouping(serving, snapshot, given)
        dense = known_vertex(serving, snapshot, vertex, "vertex")
        n = result.published.n_vertices
        if not result.knows(np.array([dense], np.uint32))[0]:
            raise UnknownVertex(f"vertex {one_id(vertex)!r} is newer than these results", staleness(result))
        columns = result.published.columns
        if result.kind == "components":
            handle = columns["handle"][dense]
            label = columns["representative"][handle : int(handle) + 1].astype(np.uint32)
            size = int(columns["size"][handle])
            members = _members(columns["handle"][:n], int(handle), min(limit, size))
        else:
            label, size, members = _alike(serving.program_class(result.kind), snapshot, result, dense, limit)
        members = members[result.knows(members)]
        answer = {
            "label": _label(serving, result, label),
            "size": size,
            "members": wire_ids(serving.external(members)),
            **staleness(result),
        }
        return Reply(serving.stamp(snapshot), answer)

    await params.covered(serving)
    await serving.make_room(params.asker, limit)
    return await serving.in_thread(params.asker, serving.read, read)


def _grouping(serving: Serving, snapshot: Snapshot, given: str | None) -> ProgramResults:
    """The results whose values tell groups: those that are named, else of components."""
    if given is not None:
        result = program_of(snapshot, given)
        kind = serving.program_class(result.kind)
        if kind.value is not ExternalId and not kind.nested:
            raise NotSupported(f"{given!r} is of kind {result.kind}, whose values do not tell groups")
        return result
    for result in snapshot.programs.values():
        if result.kind == "components":
            return result
    raise UnknownProgram("no program of kind components runs here", {"programs": sorted(snapshot.programs)})


def _members(handles: npt.NDArray[Any], handle: int, limit: int) -> Vertices:
    """The first ``limit`` vertices with this handle, in dense order."""
    found = np.empty(0, np.int64)
    for start in range(0, handles.size, SCAN_CHUNK):
        if found.size >= limit:
            break
        here = np.flatnonzero(handles[start : start + SCAN_CHUNK] == handle) + start
        found = np.concatenate([found, here])
    return found[:limit].astype(np.uint32)


def _alike(
    kind: type[Program], snapshot: Snapshot, result: ProgramResults, vertex: int, limit: int
) -> tuple[npt.NDArray[Any], int, Vertices]:
    """The vertices whose value is that of this one, or, where groups are nested, not less. Without a value it is
    in no group.

    Returns the value, how many they are, and the first ``limit`` of them.
    """
    published = result.published
    asked = kind.read(published, np.array([vertex], np.uint32))
    label = asked.values
    if asked.null[0]:
        return label, 0, np.empty(0, np.uint32)
    size, found = 0, [np.empty(0, np.uint32)]
    for start in range(0, published.n_vertices, SCAN_CHUNK):
        chunk = np.arange(start, min(start + SCAN_CHUNK, published.n_vertices), dtype=np.uint32)
        read = kind.read(published, chunk)
        here = chunk[~read.null & (read.values >= label if kind.nested else read.values == label)]
        here = here[result.knows(here)]
        if kind.nested:  # deleted vertices have a value too
            here = here[snapshot.known(here) != NO_VERTEX]
        found.append(here[: max(limit - size, 0)])
        size += here.size
    return label, size, np.concatenate(found)


def _label(serving: Serving, result: ProgramResults, label: npt.NDArray[Any]) -> Any:
    """What one group is called: a number where groups are nested, else an id, or None if that is gone."""
    if serving.program_class(result.kind).nested:
        return label[0].item()
    return one_id(serving.external(label)) if result.knows(label)[0] else None
