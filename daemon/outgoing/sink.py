"""What a place to write results to must promise. One thread calls it; ``break_off`` is for any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ...gpma.index.ids import IdColumn
from ..errors import GraphtideError
from .records import Chunk, End

Place = Mapping[str, Any]
"""Where in a sink something stands, as JSON can."""


Accepts = Callable[[End | None], bool]
"""Whether whoever goes on may find this newest end."""


class Fenced(GraphtideError):
    """Another daemon has taken over: this one may not write any more."""

    code = "results-fenced"


class PlaceLost(Exception):
    """What stood behind a place cannot be read any more."""


class Whole:
    """Counts what is read behind a place, in each partition, so that what was taken out is missed."""

    def __init__(self, partitions: int, transactions: int) -> None:
        """``transactions``: how many there must be."""
        self._records = [0] * partitions
        self._left = [transactions] * partitions

    def record(self, partition: int) -> None:
        self._records[partition] += 1

    def end(self, partition: int, records: int) -> None:
        """Of a transaction that has so many records there.

        Raises:
            PlaceLost: fewer were read.
        """
        if self._records[partition] != records:
            raise PlaceLost(f"of {records} records of a transaction {self._records[partition]} are still there")
        self._records[partition] = 0
        self._left[partition] -= 1

    def require(self) -> None:
        """Now that all is read.

        Raises:
            PlaceLost: a transaction is missing.
        """
        if any(self._left):
            raise PlaceLost("transactions are not there any more")


class Sink(Protocol):
    """Takes transactions: readers find all of one or nothing, in the order in which they were written."""

    def open(self, accepts: Accepts) -> End | None:
        """Take over: whoever wrote before cannot any more, and what is half written is withdrawn.

        Returns the newest end.

        Raises:
            Fenced: it is none that ``accepts``: somebody else has taken over.
            Exception: it cannot be reached now; trying again, after ``close``, may help.
        """
        ...

    @property
    def place(self) -> Place:
        """Behind the newest end."""
        ...

    def ids_since(self, place: Place | None, transactions: int = 0) -> dict[str, IdColumn]:
        """By program, the vertices of whom something is written behind this place (None: anywhere, as far as it is
        still there).

        ``transactions``: how many there must be behind the place, each whole.

        Raises:
            PlaceLost: that is not to be found out: compaction has taken some away, tombstones perhaps.
            Exception: as ``open``.
        """
        ...

    def write(self, chunks: Iterable[Chunk], end: End) -> None:
        """Write a transaction; when this returns, readers have it, and it is safe.

        Raises:
            Fenced: somebody else has taken over.
            Exception: whether it was written is not known; ``close`` and ``open`` will tell.
        """
        ...

    def close(self) -> None:
        """Let go; ``open`` may follow."""
        ...

    def break_off(self) -> None:
        """Make what the other thread waits for fail soon."""
        ...
