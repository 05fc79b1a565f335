"""Dense passes over all in-rows on two threads: what random-walk programs do when much is to be solved.

A pass is a Jacobi step in pull form. Every vertex adds its residual to its value and computes its residual anew
from the in-neighbours' shares (d / degree of their values), which the pass before has left in an array of their
own. So a pass reads each edge once, one after the other; the random access is one read of 8 bytes an edge; a
vertex is written by one thread only, without atomics; and residuals are exact afterwards, whatever they were
before (rounding does not pile up, and edges may have changed in any way).

**Mass.** The slow mode of the iteration is a surplus of mass. Programs here normalise their values, so before
each pass the values are multiplied by the factor for which residuals add up to zero,

    factor = sum b / (sum y - d * sum of y over vertices with out-edges),

which a pass knows from sums that the pass before took on the way. This is the power method on the stochastic
matrix d P^T + b l^T / sum b, l the mass that a vertex loses (1 - d, or 1 where it dangles): residuals shrink in
sum by at least d a pass on every graph (Haveliwala and Kamvar, "The Second Eigenvalue of the Google Matrix",
2003), and five to eight times a pass on graphs that mix.

**Rounding.** A residual that a pass computes is off by at most ``ROUNDOFF`` times

    (edges / 2 + 10) * (|y| + |r|) + what negative shares hide in the sum of the in-neighbours' shares:

each share is off by four operations, their sums (of every second one) by one for each, and putting them together
with y takes a few. ``Pulls`` gives the largest of these over all vertices, as they are and in multiples of the
weights, and bounds of their sum.

Threads take chunks of about equal edges from a counter, so that a thread without a core of its own takes few.
Sums are added up by chunk: results do not depend on the threads.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.atomics import fetch_add
from ...gpma.edges import HALF, LOW
from ...gpma.rows import RowView, live_runs, runs_in_order
from ...gpma.splice import spliced
from ...gpma.threads import Pair

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

BLOCK_SHIFT = 4
BLOCK = 1 << BLOCK_SHIFT

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")

CHUNKS = 32
# Chunks begin at multiples of this: threads then share no word of flags and no cache line.
_GRAIN = 128
# Fewer in-edges than this are left to one thread.
_ALONE = 1 << 16

# Columns of the sums of a chunk: of values, of values that are passed on, of the sizes of residuals, of the
# vertices over their limits and their out-edges, of the sizes of negative values; and the largest rounding, the
# largest in multiples of the weights and the sum of all roundings, as the head of this file has them.
_MASS, _PASSED_ON, _SIZE, _OVER, _OVER_EDGES, _NEGATIVE, _ROUNDED_MAX, _WEIGHED_MAX, _ROUNDED = range(9)
_COLUMNS = 9


class Estimate(NamedTuple):
    """A system M value = rhs - residual: columns of one capacity, a multiple of ``_GRAIN``.

    ``value``, ``residual``: float64. ``rhs``: float32, not negative. ``weight``: float32, what residuals are
    measured by. ``flags``: uint8, one for each ``BLOCK`` vertices.
    """

    value: F64
    residual: F64
    rhs: F32
    weight: F32
    flags: npt.NDArray[np.uint8]


class Limits(NamedTuple):
    """Residuals are to be from -below * weight to above * weight."""

    below: float
    above: float


@_jit
@spliced
def _cut(rows, n, cuts):  # type: ignore[no-untyped-def]
    """Cut vertices 0 .. n - 1 into ``cuts.size - 1`` stretches of about as many slots of in-edges each."""
    leaves = rows.counts.size
    chunks = cuts.size - 1
    cuts[0] = 0
    cuts[chunks] = n
    for k in range(1, chunks):
        cut = n
        for slot, stop in live_runs(rows, leaves * k // chunks):
            if slot < stop:
                cut = np.int64(rows.keys[slot] >> HALF)
                break
        cuts[k] = max(cuts[k - 1], min(n, cut // _GRAIN * _GRAIN))


@_jit
def _share_out(begin, end, damping, out_degrees, estimate, shares, sums):  # type: ignore[no-untyped-def]
    """Shares of value + residual of vertices begin .. end - 1, and the sums that the next pass's factor needs."""
    value = estimate.value
    residual = estimate.residual
    mass = 0.0
    passed_on = 0.0
    for v in range(begin, end):
        y = value[v] + residual[v]
        mass += y
        degree = np.float64(out_degrees[v])
        if degree > 0.0:
            passed_on += y
            shares[v] = y * (damping / degree)
        else:
            shares[v] = 0.0
    sums[_MASS] = mass
    sums[_PASSED_ON] = passed_on


@_jit
@spliced
def _pull(  # type: ignore[no-untyped-def]
    rows, out_degrees, cuts, counter, factor, damping, limits, estimate, shares, next_shares, sums
):
    """A thread's part of a pass; ``sums``: float64[chunks, _COLUMNS]. Flags are set anew."""
    keys = rows.keys
    degrees = rows.degrees
    value = estimate.value
    residual = estimate.residual
    rhs = estimate.rhs
    weight = estimate.weight
    flags = estimate.flags
    below = -limits.below
    above = limits.above
    while True:
        chunk = fetch_add(counter, 0, np.int64(1))
        if chunk >= cuts.size - 1:
            return
        begin = cuts[chunk]
        end = cuts[chunk + 1]
        mass = 0.0
        passed_on = 0.0
        size = 0.0
        over = np.int64(0)
        over_edges = np.int64(0)
        negative = 0.0
        rounded_max = 0.0
        weighed_max = 0.0
        rounded_sum = 0.0
        flags[begin >> BLOCK_SHIFT : (end + BLOCK - 1) >> BLOCK_SHIFT] = np.uint8(0)
        even = 0.0
        odd = 0.0
        for v, slot, stop, is_whole in runs_in_order(rows, begin, end):
            i = slot
            while i + 1 < stop:
                even += shares[np.uintp(keys[i] & LOW)]
                odd += shares[np.uintp(keys[i + 1] & LOW)]
                i += 2
            if i < stop:
                even += shares[np.uintp(keys[i] & LOW)]
            if not is_whole:
                continue
            y = (value[v] + residual[v]) * factor
            r = np.float64(rhs[v]) + (even + odd) * factor - y
            even = 0.0
            odd = 0.0
            value[v] = y
            residual[v] = r
            size += abs(r)
            negative -= min(y, 0.0)
            rounded = (abs(y) + abs(r)) * (0.5 * np.float64(degrees[v]) + 10.0)
            rounded_max = max(rounded_max, rounded)
            weighed_max = max(weighed_max, rounded / max(1.0, np.float64(weight[v])))
            rounded_sum += rounded
            # Without branches: which vertices are over cannot be guessed.
            is_over = np.int64((r > above * weight[v]) | (r < below * weight[v]))
            flags[v >> BLOCK_SHIFT] |= np.uint8(is_over)
            over += is_over
            over_edges += is_over * np.int64(out_degrees[v])
            y += r
            mass += y
            degree = np.float64(out_degrees[v])
            if degree > 0.0:
                passed_on += y
                next_shares[v] = y * (damping / degree)
            else:
                next_shares[v] = 0.0
        sums[chunk, _MASS] = mass
        sums[chunk, _PASSED_ON] = passed_on
        sums[chunk, _SIZE] = size
        sums[chunk, _OVER] = over
        sums[chunk, _OVER_EDGES] = over_edges
        sums[chunk, _NEGATIVE] = negative
        sums[chunk, _ROUNDED_MAX] = rounded_max
        sums[chunk, _WEIGHED_MAX] = weighed_max
        sums[chunk, _ROUNDED] = rounded_sum


class Pulls:
    """Passes for one program: a helper thread, and the arrays of shares (16 bytes a vertex, made when needed)."""

    def __init__(self, name: str, damping: float) -> None:
        self.pair = Pair(2, name)
        self._damping = damping
        self._shares = np.empty(0)
        self._next = np.empty(0)
        self._cuts = np.zeros(CHUNKS + 1, np.int64)
        self._counter = np.zeros(1, np.int64)
        self._sums = np.zeros((CHUNKS, _COLUMNS))
        self._restarts = 0.0
        self._alone = True
        self._degree_max = 0
        self.edges = 0

    @property
    def memory_bytes(self) -> int:
        return self._shares.nbytes + self._next.nbytes

    @property
    def size(self) -> float:
        """The sum of the sizes of the residuals that the last pass left."""
        return float(self._sums[:, _SIZE].sum())

    @property
    def over(self) -> tuple[int, int]:
        """(vertices over their limits after the last pass, out-edges of theirs)."""
        return int(self._sums[:, _OVER].sum()), int(self._sums[:, _OVER_EDGES].sum())

    @property
    def rounded_max(self) -> float:
        """What a residual that the last pass left may be off by at most, in units of ``ROUNDOFF``."""
        return float(self._sums[:, _ROUNDED_MAX].max()) + self.hidden

    @property
    def weighed_max(self) -> float:
        """The same in multiples of the weights, those under 1 taken for 1."""
        return float(self._sums[:, _WEIGHED_MAX].max()) + self.hidden

    @property
    def rounded(self) -> float:
        """What the residuals that the last pass left may be off by together, in units of ``ROUNDOFF``."""
        return float(self._sums[:, _ROUNDED].sum()) + self.hidden

    @property
    def hidden(self) -> float:
        """What rounding may have done to negative shares, which hide in sums: all, at the largest degree."""
        return float(self._sums[:, _NEGATIVE].sum()) * (self._degree_max + 20)

    def begin(self, rows: RowView, out_degrees: npt.NDArray[np.uint32], n: int, estimate: Estimate) -> None:
        """Before a pass, unless the one before was a pass of the same estimate on the same graph."""
        if self._shares.size < estimate.value.size:
            self._shares = np.zeros(estimate.value.size)
            self._next = np.zeros(estimate.value.size)
        _cut(rows, n, self._cuts)
        self.edges = int(rows.degrees[:n].sum(dtype=np.int64))
        self._degree_max = int(rows.degrees[:n].max(initial=0))
        self._alone = self.edges < _ALONE
        self._restarts = float(estimate.rhs[:n].sum(dtype=np.float64))
        self._sums[:] = 0

        def share_out(begin: int, end: int, part: int) -> None:
            _share_out(begin, end, self._damping, out_degrees, estimate, self._shares, self._sums[part])

        # In two parts on one thread, too: sums are to be the same.
        half = n // 2 // _GRAIN * _GRAIN
        if self._alone:
            share_out(0, half, 0)
            share_out(half, n, 1)
        else:
            self.pair.run(lambda: share_out(0, half, 0), lambda: share_out(half, n, 1))

    def step(self, rows: RowView, out_degrees: npt.NDArray[np.uint32], estimate: Estimate, limits: Limits) -> None:
        """One pass: ``residual`` then is that of ``value``, exactly, and blocks over the limits are flagged."""
        mass, passed_on = self._sums[:, _MASS].sum(), self._sums[:, _PASSED_ON].sum()
        lost = mass - self._damping * passed_on
        factor = self._restarts / lost if lost > 0 else 1.0
        self._counter[0] = 0
        arguments = (
            rows,
            out_degrees,
            self._cuts,
            self._counter,
            factor,
            self._damping,
            limits,
            estimate,
            self._shares,
            self._next,
            self._sums,
        )
        if self._alone:
            _pull(*arguments)
        else:
            self.pair.share(partial(_pull, *arguments))
        self._shares, self._next = self._next, self._shares
