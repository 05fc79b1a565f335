"""Which epoch the storage is at, and how far into the source that is."""

from __future__ import annotations

from .stream import Partition


class Position:
    """Where the storage stands; changes only while the gate is held for ``apply``."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.number = 0
        self.offsets: dict[Partition, int] = {}
        self.updates = 0

    @property
    def epoch(self) -> tuple[int, int]:
        return self.incarnation, self.number
