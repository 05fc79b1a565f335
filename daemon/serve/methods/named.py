"""What requests name: programs and vertices of an epoch."""

from __future__ import annotations

from typing import Any

from ....compute.program import Published
from ....gpma.edges import NO_VERTEX
from ....gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, StringColumn
from ...errors import Unavailable, UnknownProgram, UnknownVertex
from ..results import ProgramResults, Snapshot
from ..serving import Reply, Serving

PROGRAMS_NAMED_MAX = 20


def one_id(ids: IdColumn) -> int | str:
    """The id in a column of one."""
    return ids.to_list()[0] if isinstance(ids, StringColumn) else int(ids[0])


def program_of(snapshot: Snapshot, id: str) -> ProgramResults:
    """The results of a program in an epoch.

    Raises:
        Unavailable: it has none yet.
        UnknownProgram: there is no such program.
    """
    found = snapshot.programs.get(id)
    if found is None and id in snapshot.coming:
        coming = snapshot.coming[id]
        why = f": {coming['reason']}" if coming["reason"] else ""
        detail = {"parameter": "program", "state": coming["state"]}
        raise Unavailable(f"program {id!r} has no results yet, it is {coming['state']}{why}", detail)
    if found is None:
        there = sorted(snapshot.programs)
        named = ", ".join([*there[:PROGRAMS_NAMED_MAX], *(["..."] if len(there) > PROGRAMS_NAMED_MAX else [])])
        detail = {"programs": there, "parameter": "program"}
        raise UnknownProgram(f"there is no program {id[:128]!r}; there are {named or 'none'}", detail)
    return found


def known_vertex(serving: Serving, snapshot: Snapshot, ids: IdColumn, name: str) -> int:
    """The dense id of the vertex in a column of one, of the parameter ``name``.

    Raises:
        UnknownVertex: an epoch has no such vertex.
    """
    dense = int(serving.lookup_in(snapshot, ids)[0])
    if dense == NO_VERTEX:
        raise unknown_vertex(ids, name)
    return dense


def unknown_vertex(ids: IdColumn, name: str = "vertex") -> UnknownVertex:
    """The error about the vertex in a column of one, of the parameter ``name``."""
    id = one_id(ids)
    if isinstance(id, str) and len(id) > MAX_STRING_ID_BYTES:  # which no vertex can have
        id = f"{id[:MAX_STRING_ID_BYTES]}..."
    return UnknownVertex(f"vertex {id!r} is unknown", {"vertex": id, "parameter": name})


def copy_of(result: ProgramResults) -> Published:
    """A program's results, to be worked on at leisure."""
    published = result.published
    n = published.n_vertices
    columns = {name: column[:n].copy() for name, column in published.columns.items()}
    return Published(columns, published.scalars, n)


def engine_reply(result: dict[str, Any]) -> Reply:
    """What the engine answered, and of what epoch."""
    about = ("stamp", "epoch", "offsets", "index_generation")
    return Reply(result["stamp"], {name: value for name, value in result.items() if name not in about})
