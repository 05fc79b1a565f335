"""What a batch changed, as the device tells it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..edges import (
    ABSENT,
    DELETED,
    HALF,
    INSERTED,
    LOW,
    OVERWRITTEN,
    ChangeReport,
    EdgeList,
    destinations,
    sources,
)
from .module import import_cupy
from .staging import DeviceBatch
from .state import address


class DeviceReport:
    """The updates of a batch, in its order, and what became of each; columns on the device.

    ``updates``: the batch itself, without weights where they are 1.0 throughout.
    ``outcome`` uint8[n]: INSERTED, OVERWRITTEN, DELETED, ABSENT or SUPERSEDED (``constants.py``).
    ``old_weights`` float32[n], None when the array is unweighted: the weight before the batch, of edges that were
    there; else 0.
    ``totals``: updates by outcome, from INSERTED to ABSENT. ``slots_moved``: keys that redistribution wrote.
    ``n``: how many updates; ``addresses``: where kernels find ``keys``, ``weights`` (0: there are none) and
    ``outcome``.

    ``outcome`` and ``old_weights`` are the array's own work arrays: good until its next ``prepare``.
    """

    __slots__ = ("addresses", "all_old_weights", "all_outcomes", "n", "slots_moved", "totals", "updates")

    def __init__(
        self,
        updates: DeviceBatch,
        totals: tuple[int, int, int, int],
        slots_moved: int,
        all_outcomes: Any,
        all_old_weights: Any,
        outcomes_address: int | None = None,
    ) -> None:
        """``all_...``: the work arrays, which are longer: cut when asked for, which in Python takes as long as a
        small batch. ``outcomes_address``: of the first, where it is known; to ask takes long as well."""
        self.updates, self.totals, self.slots_moved = updates, totals, slots_moved
        self.all_outcomes, self.all_old_weights = all_outcomes, all_old_weights
        self.n = updates.n
        keys, _, weights = updates.addresses
        self.addresses = keys, weights, address(all_outcomes) if outcomes_address is None else outcomes_address

    def __len__(self) -> int:
        return self.n

    @property
    def keys(self) -> Any:
        """uint64[n]."""
        return self.updates.keys

    @property
    def ops(self) -> Any:
        """uint8[n]."""
        return self.updates.ops

    @property
    def weights(self) -> Any:
        """float32[n] or None."""
        return self.updates.weights

    @property
    def outcome(self) -> Any:
        return self.all_outcomes[: self.n]

    @property
    def old_weights(self) -> Any:
        return None if self.all_old_weights is None else self.all_old_weights[: self.n]

    def loops(self) -> tuple[int, int, int, int]:
        """How many of these updates, by outcome, are of loops. Only those come to the host, if there is memory on
        the device to find them; else all do."""
        asnumpy = import_cupy().asnumpy
        try:
            of_loops = asnumpy(self.outcome[self.keys >> HALF == self.keys & LOW])
        except MemoryError:
            keys, outcome = asnumpy(self.keys), asnumpy(self.outcome)
            of_loops = outcome[sources(keys) == destinations(keys)]
        inserted, overwritten, deleted, absent = np.bincount(of_loops, minlength=ABSENT + 1)[: ABSENT + 1].tolist()
        return inserted, overwritten, deleted, absent

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
