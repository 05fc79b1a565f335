"""What a batch changed, as the device tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import ABSENT, DELETED, INSERTED, OVERWRITTEN, ChangeReport, EdgeList, Op
from .module import import_cupy


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


def joined(own: DeviceReport, changes: Sequence[ChangeReport]) -> DeviceReport:
    """A report, and behind it what became of updates elsewhere, as others report it (columns of NumPy).

    Raises:
        MemoryError: there is not enough.
    """
    changes = [change for change in changes if sum(_totals(change))]
    if not changes:
        return own
    asarray, concatenate = import_cupy().asarray, import_cupy().concatenate
    totals = [own.totals, *map(_totals, changes)]

    def column(of_own: Any, dtype: npt.DTypeLike, parts: Callable[[ChangeReport], list[Any]]) -> Any:
        others = np.concatenate([part for change in changes for part in parts(change)]).astype(dtype)
        return asarray(others) if len(own) == 0 else concatenate([of_own, asarray(others)])

    def zeros(keys: Any) -> npt.NDArray[np.float32]:
        return np.zeros(keys.size, np.float32)

    weights = old = None
    if own.all_old_weights is not None:
        of_own = own.weights if own.weights is not None else import_cupy().ones(len(own), np.float32)
        weights = column(
            of_own,
            np.float32,
            lambda c: [c.inserted.weights, c.overwritten.weights, zeros(c.deleted.keys), zeros(c.absent)],
        )
        old = column(
            own.old_weights,
            np.float32,
            lambda c: [zeros(c.inserted.keys), c.overwritten_old, c.deleted.weights, zeros(c.absent)],
        )
    outcomes = (INSERTED, OVERWRITTEN, DELETED, ABSENT)
    return DeviceReport(
        column(own.keys, np.uint64, lambda c: [c.inserted.keys, c.overwritten.keys, c.deleted.keys, c.absent]),
        column(own.ops, np.uint8, lambda c: [np.repeat([Op.INSERT, Op.INSERT, Op.DELETE, Op.DELETE], _totals(c))]),
        weights,
        (
            sum(t[0] for t in totals),
            sum(t[1] for t in totals),
            sum(t[2] for t in totals),
            sum(t[3] for t in totals),
        ),
        own.slots_moved + sum(change.slots_moved for change in changes),
        column(own.outcome, np.uint8, lambda c: [np.repeat(outcomes, _totals(c))]),
        old,
    )


def _totals(change: ChangeReport) -> tuple[int, int, int, int]:
    return len(change.inserted), len(change.overwritten), len(change.deleted), int(change.absent.size)
