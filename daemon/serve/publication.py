"""What the engine publishes of one epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...compute.program import Column
from ...gpma.edges import Vertices


@dataclass(frozen=True, slots=True)
class ProgramPublication:
    """One program's results. ``columns``: name -> array of at least ``n_vertices`` entries.

    ``changed``: for each column that changed since the last publication the dense indices (below
    ``n_vertices``), or None for all of it; a column not named is unchanged. ``state`` is shown by the
    request ``programs``. Of a program whose ``state["state"]`` is not ``fresh`` nothing is taken: what it
    published last stays, for the vertices of that time. Dense ids that were none of theirs, or are no more, are
    ``gone`` (bool, at least ``n_vertices`` entries; None: none), ``gone_changed`` since the last publication.
    """

    kind: str
    columns: Mapping[str, Column]
    changed: Mapping[str, Vertices | None]
    scalars: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    gone: Column | None = None
    gone_changed: Vertices | None = None

    @property
    def is_fresh(self) -> bool:
        """The columns are those of the epoch that is published."""
        return bool(self.state.get("state", "fresh") == "fresh")


@dataclass(frozen=True, slots=True)
class Publication:
    """One epoch of results. ``offsets`` and ``stats`` are as queries show them (MessagePack-able), and so is
    ``coming``: programs without results as yet, by id.

    ``alive``: bool, at least ``n_vertices`` entries, which dense ids are vertices (None: all); ``alive_changed``:
    those of them that differ from the last publication, or None for all of them.
    """

    epoch: tuple[int, int]
    n_vertices: int
    offsets: Mapping[str, Any]
    programs: Mapping[str, ProgramPublication]
    stats: Mapping[str, Any] = field(default_factory=dict)
    alive: Column | None = None
    alive_changed: Vertices | None = None
    coming: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
