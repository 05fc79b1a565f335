"""The two systems of PageRank, ranks and majorant, with what is certified of them.

Vertices come and go here, and sums are kept; how residuals are edited and solved is ``solving.py``'s.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...gpma.edges import Vertices
from ...gpma.vertex_columns import new_column
from ..program import Column
from . import sweeps as kernels
from .certificate import SUM_ROUNDED, SURPLUS, Certificate, sum_error, weights_max
from .edits import ROUNDOFF
from .passes import BLOCK, Estimate, Limits
from .sweeps import NORM, ROUNDED, SIZE, SLIPPED, SUMS, TOTAL, System
from .walk import extended, padded, room_for

_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class Systems:
    """Both systems of vertices 0 to ``n`` - 1; without a value those that are deleted, or not there yet.

    ``passed``: what a pass has rounded in the ranks, in multiples of the weights and of ``ROUNDOFF``, where that
    tells more than their sums do. ``unseen``: pushes since the last look at the ratio of every vertex.
    """

    def __init__(self, n: int, damping: float, tolerance: float) -> None:
        """Of so many vertices, none of which has a value."""
        capacity = padded(n)
        weight = new_column(capacity, np.float32)
        self.ranks = _system(capacity, new_column(capacity, np.float32), weight)
        self.majorant = _system(capacity, weight, weight)
        self.n = n
        self.damping: Final = damping
        self.certificate: Final = Certificate(tolerance)
        self.passed = 0.0
        self.unseen = 0

    @property
    def both(self) -> tuple[System, System]:
        """Ranks and majorant."""
        return self.ranks, self.majorant

    @property
    def capacity(self) -> int:
        """That of the columns, in vertices."""
        return int(self.ranks.value.size)

    @property
    def limits(self) -> Limits:
        """Of the residuals of the ranks."""
        return Limits(self.certificate.bound, self.certificate.bound)

    @property
    def slack_limits(self) -> Limits:
        """Of the residuals of the majorant."""
        slack = self.certificate.slack
        return Limits(SURPLUS * slack, slack)

    def limits_of(self, system: System) -> Limits:
        """Of the residuals of one of them."""
        return self.limits if system is self.ranks else self.slack_limits

    @property
    def error_bound(self) -> float:
        """The certified relative error of every result, normalising included (``certificate.py``)."""
        return self.certificate.error_bound(self.rounding, self.sum_error)

    @property
    def sum_error(self) -> float:
        """The certified relative error of the sum of the estimates."""
        norm, size, _, _, total = self.ranks.sums.tolist()
        return float(sum_error(norm, size, total, self.sums_rounded, self.damping))

    @property
    def sums_rounded(self) -> float:
        """What the sums of residuals and of their sizes may be off by from those of true residuals."""
        norm, _, rounded, slipped, _ = self.ranks.sums.tolist()
        return float(ROUNDOFF * (rounded + slipped + self.passed * weights_max(self.n, norm)))

    @property
    def rounding(self) -> float:
        """What kept residuals may be off by, in multiples of the weights."""
        return ROUNDOFF * (float(self.ranks.sums[ROUNDED]) + self.passed)

    @property
    def memory_bytes(self) -> int:
        shared = self.ranks.weight.nbytes + self.majorant.rhs.nbytes
        return sum(array.nbytes for array in (*self.ranks, *self.majorant)) - shared

    def add_vertices(self, n: int, appeared: Vertices) -> None:
        """There are so many now. Those that appeared have no edges yet: the estimate is 1 and so is the majorant,
        both without residual."""
        if n > self.capacity:
            capacity = room_for(n, self.ranks.value)
            weight = extended(self.ranks.weight, capacity)
            self.ranks = _grown(self.ranks, capacity, extended(self.ranks.rhs, capacity), weight)
            self.majorant = _grown(self.majorant, capacity, weight, weight)
        self.n = n
        if not appeared.size:
            return
        ranks = self.ranks
        for column in (ranks.value, ranks.rhs, ranks.weight, self.majorant.value):
            column[appeared] = 1
        ranks.sums[NORM] += appeared.size
        ranks.sums[SLIPPED] += ranks.sums[NORM]
        kernels.mark_moved(appeared, appeared.size, ranks.moved)

    def remove_vertices(self, gone: Vertices) -> None:
        """They have no edges any more."""
        ranks, majorant = self.ranks, self.majorant
        if not gone.size:
            return
        left = float(ranks.value[gone].sum())
        # Taking away leaves what rounding did to the larger sums.
        ranks.sums[SLIPPED] += 2 * SUM_ROUNDED * (ranks.sums[NORM] + 2 * ranks.sums[SIZE])
        ranks.sums[NORM] -= left
        ranks.sums[SIZE] -= np.abs(ranks.residual[gone]).sum()
        ranks.sums[TOTAL] -= ranks.residual[gone].sum()
        for column in (ranks.value, ranks.residual, ranks.rhs, ranks.weight, majorant.value, majorant.residual):
            column[gone] = 0
        if left > ranks.sums[NORM]:
            # What remains of larger sums is known no better than those were.
            residual = ranks.residual[: self.n]
            ranks.sums[[NORM, SIZE, TOTAL]] = ranks.value[: self.n].sum(), np.abs(residual).sum(), residual.sum()
            ranks.sums[SLIPPED] = SUM_ROUNDED * (ranks.sums[NORM] + 2 * ranks.sums[SIZE])
        kernels.mark_moved(gone, gone.size, ranks.moved)

    def all_moved(self, system: System) -> None:
        """Any value of this system may be another."""
        system.moved[:] = _ALL
        self.unseen = self.n + 1


def estimate_of(system: System) -> Estimate:
    """The system as passes take it."""
    return Estimate(system.value, system.residual, system.rhs, system.weight, system.flags)


def take_edit(
    system: System, norm_by: float, size_by: float, total_by: float, rounded: float, slipped: float
) -> None:
    """Add what an edit did to the sums of a system (see ``Edit``)."""
    system.sums[NORM] += norm_by
    system.sums[SIZE] += size_by
    system.sums[TOTAL] += total_by
    system.sums[ROUNDED] += rounded
    system.sums[SLIPPED] += slipped + system.sums[NORM] + 2 * system.sums[SIZE]


def _system(capacity: int, rhs: Column, weight: Column) -> System:
    return System(
        new_column(capacity, np.float64),
        new_column(capacity, np.float64),
        rhs,
        weight,
        new_column(capacity // BLOCK, np.uint8),
        new_column(capacity // 64, np.uint64),
        np.zeros(SUMS),
    )


def _grown(system: System, capacity: int, rhs: Column, weight: Column) -> System:
    return System(
        extended(system.value, capacity),
        extended(system.residual, capacity),
        rhs,
        weight,
        extended(system.flags, capacity // BLOCK),
        extended(system.moved, capacity // 64),
        system.sums,
    )
