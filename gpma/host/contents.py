"""What a packed array holds from one batch to the next: its parts, in one place, for those who change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..layout import Layout
from .arrays import RowIndex, Slots
from .slot_memory import SlotMemory


def _nobody_minds(pages: Iterable[tuple[int, int]]) -> None:
    pass


@dataclass(slots=True)
class Contents:
    """``slots`` are the leaves of ``layout`` in ``memory``, with ``n_edges`` edges; ``rows`` has room for at least
    ``n_vertices`` rows. ``before_pages_go`` is called with the addresses of pages that go, as (begin, end)."""

    layout: Layout
    memory: SlotMemory
    slots: Slots
    rows: RowIndex
    n_edges: int = 0
    n_vertices: int = 0
    before_pages_go: Callable[[Iterable[tuple[int, int]]], None] = _nobody_minds

    @property
    def migrating(self) -> bool:
        """There is a stretch of empty leaves."""
        return self.slots.stretch_begin < self.slots.stretch_end

    def view_leaves(self, n_leaves: int, begin: int = 0, end: int = 0) -> None:
        """Go on with so many leaves of the memory; those from ``begin`` to ``end``, if any, are a stretch."""
        self.slots = self.memory.slots(n_leaves, (begin, end) if begin < end else None)

    def stretch_at(self, begin: int, end: int) -> None:
        """Go on with the same leaves and the stretch where a batch left it.

        Mostly it is where it was: then the slots stay the same object, and what was made of them stays good.
        """
        if (begin, end) != (self.slots.stretch_begin, self.slots.stretch_end):
            self.view_leaves(self.layout.n_leaves, begin, end)

    def vacate(self, n_leaves: int, n_leaves_before: int) -> None:
        """The pages behind ``n_leaves`` of so many leaves are about to go."""
        if self.memory.reservation is not None:
            self.before_pages_go(self.memory.pages(n_leaves, n_leaves_before))

    def move_to(self, memory: SlotMemory, n_leaves: int) -> None:
        """Copy the first so many leaves into other memory."""
        slots = self.slots
        moved = memory.slots(n_leaves, (slots.stretch_begin, slots.stretch_end) if self.migrating else None)
        for name in ("keys", "weights", "counts", "heads", "tops"):
            new, old = getattr(moved, name), getattr(slots, name)
            new[:] = old[: new.size]
        self.memory, self.slots = memory, moved
