"""What a batch changed, as the device tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, ChangeReport, EdgeList, Keys
from .module import import_cupy
from .state import allocate


@dataclass(slots=True)
class DeviceReport:
    """The updates of a batch, in its order, and what became of each; columns on the device.

    ``keys`` uint64[n], ``ops`` uint8[n], ``weights`` float32[n] or None (1.0 throughout): the batch itself.
    ``outcome`` uint8[n]: INSERTED, OVERWRITTEN, DELETED, ABSENT or SUPERSEDED (``constants.py``).
    ``old_weights`` float32[n], None when the array is unweighted: the weight before the batch, of edges that were
    there; else 0.
    ``totals``: updates by outcome, from INSERTED to ABSENT. ``slots_moved``: keys that redistribution wrote.

    ``outcome`` and ``old_weights`` are the array's own work arrays: good until its next ``prepare``.
    """

    keys: Any
    ops: Any
    weights: Any
    totals: tuple[int, int, int, int]
    slots_moved: int
    # The work arrays, which are longer: cut when asked for, which in Python takes as long as a small batch.
    all_outcomes: Any
    all_old_weights: Any

    def __len__(self) -> int:
        return int(self.keys.size)

    @property
    def outcome(self) -> Any:
        return self.all_outcomes[: self.keys.size]

    @property
    def old_weights(self) -> Any:
        return None if self.all_old_weights is None else self.all_old_weights[: self.keys.size]

    def sorted(self) -> ChangeReport:
        """The same on the host, each part in ascending key order: exactly what the host's array reports."""
        asnumpy = import_cupy().asnumpy
        keys, ops, outcome = asnumpy(self.keys), asnumpy(self.ops), asnumpy(self.outcome)
        old_weights = self.old_weights
        weighted = old_weights is not None
        old = asnumpy(old_weights) if weighted else None
        new = None
        if weighted:
            new = np.ones(keys.size, np.float32) if self.weights is None else asnumpy(self.weights)
        assert ops.size == keys.size == outcome.size
        order = np.argsort(keys, kind="stable")

        def part(which: int) -> npt.NDArray[np.intp]:
            chosen: npt.NDArray[np.intp] = order[outcome[order] == which]
            return chosen

        def edges(chosen: npt.NDArray[np.intp], weights: npt.NDArray[np.float32] | None) -> EdgeList:
            return EdgeList(keys[chosen], None if weights is None else weights[chosen])

        overwritten = part(OVERWRITTEN)
        return ChangeReport(
            inserted=edges(part(INSERTED), new),
            overwritten=edges(overwritten, new),
            overwritten_old=None if old is None else old[overwritten],
            deleted=edges(part(DELETED), old),
            absent=keys[part(ABSENT)],
            slots_moved=self.slots_moved,
        )


class ReportRoom:
    """Columns on the device for a report with what became of updates elsewhere behind the device's own."""

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._room = 0
        self._columns: tuple[Any, ...] = ()

    def reserve(self, n: int) -> None:
        """Have room for so many updates in all.

        Raises:
            MemoryError: there is not enough; what there was is as before.
        """
        if n <= self._room:
            return
        room = max(n, int(self._room * ROOM))
        types = (np.uint64, np.uint8, np.uint8, *((np.float32, np.float32) if self._weighted else ()))
        self._columns = tuple(allocate(room, dtype) for dtype in types)
        self._room = room

    def joined(self, own: DeviceReport, changes: Sequence[ChangeReport]) -> DeviceReport:
        """A report, and behind it what others report, as far as there is room. Takes no memory on the device."""
        changes = [change for change in changes if sum(_counts(change))]
        if not changes:
            return own
        totals = [own.totals, *map(_counts, changes)]
        kinds = np.concatenate([np.repeat(_OUTCOMES, _counts(change)) for change in changes])
        others: list[npt.NDArray[Any]] = [
            _behind_each_other([(c.inserted.keys, c.overwritten.keys, c.deleted.keys, c.absent) for c in changes]),
            np.isin(kinds, (INSERTED, OVERWRITTEN)).astype(np.uint8),
            kinds,
        ]
        owns = [own.keys, own.ops, own.outcome]
        if self._weighted:
            new = [
                (c.inserted.weights, c.overwritten.weights, _zeros(c.deleted.keys), _zeros(c.absent))
                for c in changes
            ]
            old = [
                (_zeros(c.inserted.keys), c.overwritten_old, c.deleted.weights, _zeros(c.absent)) for c in changes
            ]
            others += [_behind_each_other(new), _behind_each_other(old)]
            owns += [own.weights, own.old_weights]
        n_own, n = len(own), len(own) + kinds.size
        for column, mine, theirs in zip(self._columns, owns, others, strict=True):
            if n_own:
                column[:n_own] = 1 if mine is None else mine
            column[n_own:n].set(theirs)
        keys, ops, outcome, *weights = (column[:n] for column in self._columns)
        inserted, overwritten, deleted, absent = (sum(counts) for counts in zip(*totals, strict=True))
        return DeviceReport(
            keys,
            ops,
            weights[0] if weights else None,
            (inserted, overwritten, deleted, absent),
            own.slots_moved + sum(change.slots_moved for change in changes),
            outcome,
            weights[1] if weights else None,
        )

    def memory_bytes(self) -> int:
        return sum(int(column.nbytes) for column in self._columns)


_OUTCOMES = np.array([INSERTED, OVERWRITTEN, DELETED, ABSENT], np.uint8)
# Columns grow by this factor.
ROOM = 1.5


def _counts(change: ChangeReport) -> tuple[int, int, int, int]:
    return len(change.inserted), len(change.overwritten), len(change.deleted), int(change.absent.size)


def _zeros(keys: Keys) -> npt.NDArray[np.float32]:
    return np.zeros(keys.size, np.float32)


def _behind_each_other(columns: Sequence[tuple[Any, ...]]) -> npt.NDArray[Any]:
    return np.concatenate([part for parts in columns for part in parts])
