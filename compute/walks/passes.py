"""Dense passes over all in-rows on all threads: what random-walk programs do when much is to be solved.

A pass is a Jacobi step in pull form. Every vertex adds its residual to its value and computes its residual
anew from the in-neighbours' shares (d / degree of their values), which the pass before has left in an array of
their own. So a pass reads each edge once, one after the other, and one value of 4 or 8 bytes for it, anywhere.
A vertex is written by one thread only, without atomics. Residuals are exact afterwards, whatever they were
before: rounding does not pile up, and edges may have changed in any way. Where another pass follows, residuals
are added to the values as soon as they are known, and only their sum is kept. The last pass of a sequence
leaves values and residuals, and says what these come to.

**Mass.** The slow mode of the iteration is a surplus of mass. Programs here normalise their values, so before
each pass values are multiplied by the factor for which residuals add up to zero. A vertex without in-edges has its
right-hand side for a value, and keeps it: to scale it, too, would spoil what is right. With G all other vertices,

    factor = (sum of b over G + d * sum of y over the vertices outside G that have out-edges)
           / (sum of y over G - d * sum of y over the vertices of G that have out-edges),

which a pass knows from sums that the pass before took on the way. This is the power method on the stochastic
matrix d P^T + b l^T / sum b of the vertices of G, b being what they have or get from outside, l the mass that a
vertex loses (1 - d, or 1 where it dangles): residuals shrink in sum by at least d a pass on every graph
(Haveliwala and Kamvar, "The Second Eigenvalue of the Google Matrix", 2003), and six to seven times a pass on
graphs that mix.

**Mixtures.** On a graph that does not mix, a road network or a crawl, a pass leaves up to d of the residuals, time
after time. So from the first slow pass of a sequence on, the last ``KEPT`` passes are kept, what they made and by
how much they changed it, and least squares over these changes find a mixture of the passes that changes less
(Anderson, "Iterative procedures for nonlinear integral equations", 1965; Walker and Ni, "Anderson acceleration for
fixed-point iterations", 2011). Where it is much less, the next pass begins with the mixture. That saves up to two
thirds of the passes. A mixture may be as rough as it likes: the next pass computes what is left of it.

**Rounding.** A residual that a pass computes is off by at most ``ROUNDOFF`` times

    (edges / 2 + 10) * (|y| + |r|) + what negative shares hide in the sum of the in-neighbours' shares:

each share is off by four operations, their sums (of every second one) by one for each, and putting them together
with y takes a few. Shares that are rounded to float32, of which twice as many fit into a cache, add
``SHARE_ROUNDED`` to the factor in front; a vertex without in-edges is exact. ``Pulls`` gives the largest of these
over all vertices, as they are and in multiples of the weights, and bounds of their sum.

Threads take chunks of about equal work from a counter, so that a thread without a core of its own takes few.
Sums are added up by chunk: results do not depend on the threads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.drawing import drawn
from ...gpma.edges import LOW
from ...gpma.intrinsics import inner
from ...gpma.rows import RowView, runs_in_order
from ...gpma.splice import spliced
from ...gpma.team import BrokenOff, Crew, broken_off, share
from .ranges import GRAIN, cut

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

BLOCK_SHIFT = 4
BLOCK = 1 << BLOCK_SHIFT

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner

# Chunks have no more slots of in-edges than one part in ``CHUNKS`` / 2, nor more vertices: those with the highest
# numbers have next to no edges, and still cost something.
CHUNKS = 512
# Fewer slots of in-edges than this are left to one thread.
_ALONE = 1 << 16

# What is guessed that the first pass of a sequence leaves of the sizes of residuals, and any other, unless the one
# before it left less, or more than SLOW of them: then as much.
FIRST_SHRINKS = 1 / 4
SHRINKS = 1 / 6
SLOW = 1 / 2
# A sequence ends in any case once so many of its passes have left more than there was.
STALLS = 3

# From a slow pass on, so many passes are kept. A mixture takes the place of the last one where the square of what
# it changes is less than this of the square of what that did. Factors that add up to MIXTURE_MAX, or a determinant
# of less than this part of what it is made of, are not to be trusted.
KEPT = 3
MIXED_LEAVES = 1 / 2
MIXTURE_MAX = 64.0
SINGULAR = 1e-10

# By how much of itself a share is off that was rounded to float32, in units of ``ROUNDOFF``.
SHARE_ROUNDED = 2.0**29 * (1 + 2.0**-20)

# Columns of the sums of a chunk. Of the vertices with in-edges: of values, of values that are passed on, of
# restarts, of the sizes of residuals; of the others: of values that are passed on, and how many those are. Of all:
# in-edges, and the largest in-degree.
_MASS, _PASSED_ON, _RESTARTS, _SIZE, _FIXED_MASS, _FIXED, _EDGES, _DEGREE_MAX = range(8)
# After the last pass: of the vertices over their limits and their out-edges, of the sizes of negative values; and
# the largest rounding, the largest in multiples of the weights and the sum of all roundings, as the head of this
# file has them; of residuals.
_OVER, _OVER_EDGES, _NEGATIVE, _ROUNDED_MAX, _WEIGHED_MAX, _ROUNDED, _TOTAL = range(8, 15)
# After a pass that is kept: products of its change and of those before it, and of the one before that.
_NOW_NOW, _NOW_BEFORE, _NOW_OLDER, _BEFORE_BEFORE, _BEFORE_OLDER, _OLDER_OLDER = range(15, 21)
_COLUMNS = 21


class Estimate(NamedTuple):
    """A system M value = rhs - residual: columns of one capacity, a multiple of ``GRAIN``.

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


class Goal(NamedTuple):
    """What a sequence of passes is for.

    ``limits``: of the residuals that it leaves. It ends when the sizes of residuals are likely to add up to no
    more than ``size_max``, after ``passes_min`` passes at least. ``roughly``: shares may be rounded to float32.
    ``shrinks``: what part of them the first pass is likely to leave.
    """

    limits: Limits
    size_max: float = math.inf
    passes_min: int = 1
    roughly: bool = False
    shrinks: float = FIRST_SHRINKS


class _Pieces(NamedTuple):
    """What threads draw and what they tell: ``cuts``, int64[chunks + 1], are the first vertices of chunks, and the
    end; ``counter`` counts those drawn; ``sums``: float64[chunks, _COLUMNS]."""

    out_degrees: npt.NDArray[np.uint32]
    cuts: npt.NDArray[np.int64]
    counter: npt.NDArray[np.int64]
    sums: F64


class _Room(NamedTuple):
    """Arrays for the time of a sequence, of [capacity]: the shares that a pass reads, those that it makes, and
    vertices without in-edges."""

    shares: F64 | F32
    next_shares: F64 | F32
    fixed: npt.NDArray[np.uint32]


class _Past(NamedTuple):
    """The last passes of a sequence, [KEPT, capacity]: the values that they made, and by how much they changed
    those before. A row is written before it is read."""

    values: F64 | F32
    changes: F64 | F32


class _Keeping(NamedTuple):
    """In which row of ``_Past`` a pass is kept, -1: in none, and in which the two before it are, if any."""

    slot: np.int64
    before: np.int64
    older: np.int64


class _Pass(NamedTuple):
    """What a pass does: values are multiplied by ``factor``. ``is_last``: flags are set anew by the ``limits``;
    else another pass follows, which needs shares. ``share_rounded``: 0 or ``SHARE_ROUNDED``."""

    factor: float
    damping: float
    limits: Limits
    is_last: bool | np.bool_
    share_rounded: float
    keeping: _Keeping


class _Mixture(NamedTuple):
    """How much of the pass before the last, and of the one before that, takes the place of the last one's."""

    before: float
    older: float


@_inner
def _share_out(thread, pieces, in_degrees, damping, estimate, room):  # type: ignore[no-untyped-def]
    """A thread's part of what comes before the first pass: residuals are added to values, shares are made of them.

    Vertices without in-edges are solved. Those of them with out-edges, whose shares ``_share_fixed`` makes, are
    listed in ``fixed`` from the begin of their chunk on.
    """
    out_degrees, cuts, counter, sums = pieces
    shares = room.shares
    fixed = room.fixed
    value, residual, rhs = estimate.value, estimate.residual, estimate.rhs
    for chunk in drawn(counter, cuts.size - 1):
        begin = cuts[chunk]
        mass = 0.0
        passed_on = 0.0
        restarts = 0.0
        size = 0.0
        fixed_mass = 0.0
        n_fixed = np.int64(0)
        edges = np.int64(0)
        degree_max = np.int64(0)
        for v in range(begin, cuts[chunk + 1]):
            in_degree = np.int64(in_degrees[v])
            b = np.float64(rhs[v])
            if in_degree == 0:
                value[v] = b
                residual[v] = 0.0
                fixed[begin + n_fixed] = v
                has_out = np.int64(out_degrees[v] > 0)
                n_fixed += has_out
                fixed_mass += b * has_out
                continue
            edges += in_degree
            degree_max = max(degree_max, in_degree)
            size += abs(residual[v])
            y = value[v] + residual[v]
            value[v] = y
            mass += y
            restarts += b
            # Nobody asks for the share of a vertex without out-edges.
            degree = np.float64(out_degrees[v])
            passed_on += y if degree > 0.0 else 0.0
            shares[v] = y * (damping / degree)
        sums[chunk, _MASS] = mass
        sums[chunk, _PASSED_ON] = passed_on
        sums[chunk, _RESTARTS] = restarts
        sums[chunk, _SIZE] = size
        sums[chunk, _FIXED_MASS] = fixed_mass
        sums[chunk, _FIXED] = n_fixed
        sums[chunk, _EDGES] = edges
        sums[chunk, _DEGREE_MAX] = degree_max


@_inner
def _share_fixed(thread, pieces, factor, damping, estimate, room):  # type: ignore[no-untyped-def]
    """A thread's part of the shares of vertices that are not scaled, over the factor that a pass multiplies by."""
    out_degrees, cuts, counter, sums = pieces
    shares = room.shares
    fixed = room.fixed
    value = estimate.value
    # With a factor of 0 there is nothing to share.
    over = factor if factor > 0.0 else 1.0
    for chunk in drawn(counter, cuts.size - 1):
        begin = cuts[chunk]
        for i in range(begin, begin + np.int64(sums[chunk, _FIXED])):
            v = fixed[i]
            shares[v] = value[v] * (damping / np.float64(out_degrees[v])) / over


@_inner
@spliced
def _pull(thread, pieces, rows, this, estimate, room, past):  # type: ignore[no-untyped-def]
    """A thread's part of a pass, ``this`` one."""
    out_degrees, cuts, counter, sums = pieces
    factor, damping, limits, is_last, share_rounded, keeping = this
    shares = room.shares
    next_shares = room.next_shares
    keys = rows.keys
    degrees = rows.degrees
    value, residual, rhs, weight = estimate.value, estimate.residual, estimate.rhs, estimate.weight
    flags = estimate.flags
    is_kept = keeping.slot >= 0
    kept = past.values[max(0, keeping.slot)]
    change = past.changes[max(0, keeping.slot)]
    change_before = past.changes[keeping.before]
    change_older = past.changes[keeping.older]
    for chunk in drawn(counter, cuts.size - 1):
        begin = cuts[chunk]
        end = cuts[chunk + 1]
        mass = 0.0
        passed_on = 0.0
        size = 0.0
        total = 0.0
        over = np.int64(0)
        over_edges = np.int64(0)
        negative = 0.0
        rounded_max = 0.0
        weighed_max = 0.0
        rounded_sum = 0.0
        now_now = now_before = now_older = before_before = before_older = older_older = 0.0
        if is_last:
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
            if not is_whole or degrees[v] == 0:
                continue
            y = value[v] * factor
            x = np.float64(rhs[v]) + (even + odd) * factor
            r = x - y
            even = 0.0
            odd = 0.0
            size += abs(r)
            if is_last:
                value[v] = y
                residual[v] = r
                total += r
                negative -= min(y, 0.0)
                rounded = (abs(y) + abs(r)) * (0.5 * np.float64(degrees[v]) + 10.0 + share_rounded)
                rounded_max = max(rounded_max, rounded)
                weighed_max = max(weighed_max, rounded / max(1.0, np.float64(weight[v])))
                rounded_sum += rounded
                # Without branches: which vertices are over cannot be guessed.
                is_over = np.int64((r > limits.above * weight[v]) | (r < -limits.below * weight[v]))
                flags[v >> BLOCK_SHIFT] |= np.uint8(is_over)
                over += is_over
                over_edges += is_over * np.int64(out_degrees[v])
                continue
            value[v] = x
            mass += x
            degree = np.float64(out_degrees[v])
            passed_on += x if degree > 0.0 else 0.0
            next_shares[v] = x * (damping / degree)
            if is_kept:
                kept[v] = x
                change[v] = r
                before = np.float64(change_before[v])
                older = np.float64(change_older[v])
                part = 1.0 / (1.0 + abs(x))
                now_now += r * r * part
                now_before += r * before * part
                now_older += r * older * part
                before_before += before * before * part
                before_older += before * older * part
                older_older += older * older * part
        sums[chunk, _SIZE] = size
        if is_last:
            sums[chunk, _OVER] = over
            sums[chunk, _OVER_EDGES] = over_edges
            sums[chunk, _NEGATIVE] = negative
            sums[chunk, _ROUNDED_MAX] = rounded_max
            sums[chunk, _WEIGHED_MAX] = weighed_max
            sums[chunk, _ROUNDED] = rounded_sum
            sums[chunk, _TOTAL] = total
        else:
            sums[chunk, _MASS] = mass
            sums[chunk, _PASSED_ON] = passed_on
            sums[chunk, _NOW_NOW] = now_now
            sums[chunk, _NOW_BEFORE] = now_before
            sums[chunk, _NOW_OLDER] = now_older
            sums[chunk, _BEFORE_BEFORE] = before_before
            sums[chunk, _BEFORE_OLDER] = before_older
            sums[chunk, _OLDER_OLDER] = older_older


@_inner
def _mix(thread, pieces, in_degrees, this, mixture, estimate, room, past):  # type: ignore[no-untyped-def]
    """A thread's part of what puts a mixture of the last three passes in the place of the last one, ``this``."""
    out_degrees, cuts, counter, _ = pieces
    damping = this.damping
    keeping = this.keeping
    next_shares = room.next_shares
    value = estimate.value
    before = past.values[keeping.before]
    older = past.values[keeping.older]
    for chunk in drawn(counter, cuts.size - 1):
        for v in range(cuts[chunk], cuts[chunk + 1]):
            if in_degrees[v] == 0:
                continue
            x = value[v]
            x -= mixture.before * (x - np.float64(before[v])) + mixture.older * (x - np.float64(older[v]))
            value[v] = x
            next_shares[v] = x * (damping / np.float64(out_degrees[v]))


@_jit
def _mixture_of(sums):  # type: ignore[no-untyped-def]
    """The mixture of the last passes that changes least, and by how much of the last change it does, squared.

    That is the least-squares problem of Anderson's method by its normal equations, in two unknowns; a pass that is
    given twice makes one. Squares of changes count in inverse proportion to what is changed.
    """
    now = sums[:, _NOW_NOW].sum()
    by_before = now - sums[:, _NOW_BEFORE].sum()
    by_older = now - sums[:, _NOW_OLDER].sum()
    a = by_before - sums[:, _NOW_BEFORE].sum() + sums[:, _BEFORE_BEFORE].sum()
    c = by_older - sums[:, _NOW_OLDER].sum() + sums[:, _OLDER_OLDER].sum()
    b = by_before - sums[:, _NOW_OLDER].sum() + sums[:, _BEFORE_OLDER].sum()
    before = by_before / a if a > 0.0 else 0.0
    older = 0.0
    determinant = a * c - b * b
    if determinant > SINGULAR * a * c:
        before = (c * by_before - b * by_older) / determinant
        older = (a * by_older - b * by_before) / determinant
    left = 1.0 - (before * by_before + older * by_older) / now if now > 0.0 else 1.0
    if not abs(before) + abs(older) < MIXTURE_MAX:
        return _Mixture(0.0, 0.0), 1.0
    return _Mixture(before, older), left


@_jit
def _run(crew, rows, pieces, damping, goal, share_rounded, estimate, room, past):  # type: ignore[no-untyped-def]
    """A sequence of passes, as ``Pulls.run`` has it: their number, whether any were kept, and what part of the
    sizes of residuals the last one left. No passes: it was broken off."""
    counter = pieces.counter
    sums = pieces.sums
    limits, size_max, passes_min, _, shrinks = goal
    in_degrees = rows.degrees
    counter[0] = 0
    share(crew, _share_out, (pieces, in_degrees, damping, estimate, room))
    given = sums[:, _RESTARTS].sum() + damping * sums[:, _FIXED_MASS].sum()
    masses = np.zeros((KEPT, 2))
    mass, passed_on = sums[:, _MASS].sum(), sums[:, _PASSED_ON].sum()
    size = sums[:, _SIZE].sum()
    passes = np.int64(0)
    keeps = shrinks > SLOW
    slowest = shrinks if keeps else 0.0
    mixed_leaves = 1.0
    known = np.int64(0)
    stalls = np.int64(0)
    while True:
        if broken_off(crew):
            return np.int64(0), keeps, shrinks
        passes += 1
        # A pass behind a mixture shrinks more, but the one behind that does not.
        expected = (slowest * mixed_leaves if keeps else min(shrinks, SHRINKS)) * size
        is_last = passes >= passes_min and (stalls >= STALLS or not expected > size_max)
        lost = mass - damping * passed_on
        factor = given / lost if lost > 0.0 else 1.0
        counter[0] = 0
        share(crew, _share_fixed, (pieces, factor, damping, estimate, room))
        is_kept = keeps and not is_last
        slot = passes % KEPT
        before = (slot + 2) % KEPT if known > 0 else slot
        older = (slot + 1) % KEPT if known > 1 else before
        keeping = _Keeping(slot if is_kept else np.int64(-1), before, older)
        this = _Pass(factor, damping, limits, is_last, share_rounded, keeping)
        counter[0] = 0
        share(crew, _pull, (pieces, rows, this, estimate, room, past))
        if is_last:
            return passes, keeps, sums[:, _SIZE].sum() / size if size > 0.0 else shrinks
        mass, passed_on = sums[:, _MASS].sum(), sums[:, _PASSED_ON].sum()
        mixed_leaves = 1.0
        if is_kept:
            mixture, left = _mixture_of(sums)
            masses[slot, 0], masses[slot, 1] = mass, passed_on
            known = min(known + 1, np.int64(KEPT - 1))
            if left < MIXED_LEAVES:
                mixed_leaves = math.sqrt(max(0.0, left))
                counter[0] = 0
                share(crew, _mix, (pieces, in_degrees, this, mixture, estimate, room, past))
                a, b = mixture
                mass -= a * (mass - masses[before, 0]) + b * (mass - masses[older, 0])
                passed_on -= a * (passed_on - masses[before, 1]) + b * (passed_on - masses[older, 1])
        room = _Room(room.next_shares, room.shares, room.fixed)
        size_before, size = size, sums[:, _SIZE].sum()
        if size_before > 0.0:
            shrinks = size / size_before
        stalls += np.int64(not shrinks < 1.0)
        keeps = keeps or shrinks > SLOW
        if keeps:
            slowest = max(slowest, min(1.0, shrinks))


class Pulls:
    """Passes for one program: arrays that are made when needed (20 bytes a vertex; where passes are kept, 68)."""

    def __init__(self, damping: float) -> None:
        self._damping = damping
        self._room = _Room(np.empty(0), np.empty(0), np.empty(0, np.uint32))
        self._past = _Past(np.empty((KEPT, 0)), np.empty((KEPT, 0)))
        self._keeps = False
        self.shrinks = FIRST_SHRINKS
        """What part of the sizes of residuals the last pass has left."""
        self._cuts = np.zeros(CHUNKS + 1, np.int64)
        self._counter = np.zeros(1, np.int64)
        self._sums = np.zeros((CHUNKS, _COLUMNS))
        self._share_rounded = 0.0

    @property
    def memory_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._room, *(self._past if self._keeps else ())))

    @property
    def edges(self) -> int:
        """What a pass reads."""
        return int(self._sum(_EDGES))

    @property
    def size(self) -> float:
        """The sum of the sizes of the residuals that the last pass found."""
        return self._sum(_SIZE)

    @property
    def total(self) -> float:
        """The sum of the residuals that the last pass left."""
        return self._sum(_TOTAL)

    @property
    def over(self) -> tuple[int, int]:
        """(vertices over their limits after the last pass, out-edges of theirs)."""
        return int(self._sum(_OVER)), int(self._sum(_OVER_EDGES))

    @property
    def rounded_max(self) -> float:
        """What a residual that the last pass left may be off by at most, in units of ``ROUNDOFF``."""
        return self._max(_ROUNDED_MAX) + self.hidden

    @property
    def weighed_max(self) -> float:
        """The same in multiples of the weights, those under 1 taken for 1."""
        return self._max(_WEIGHED_MAX) + self.hidden

    @property
    def rounded(self) -> float:
        """What the residuals that the last pass left may be off by together, in units of ``ROUNDOFF``."""
        return self._sum(_ROUNDED) + self.hidden

    @property
    def hidden(self) -> float:
        """What rounding may have done to negative shares, which hide in sums: all, at the largest degree."""
        return self._sum(_NEGATIVE) * (self._max(_DEGREE_MAX) + 20 + 2 * self._share_rounded)

    def warm_up(self, crew: Crew, rows: RowView, out_degrees: npt.NDArray[np.uint32], n: int) -> None:
        """Compile what passes need."""
        capacity = -(-n // GRAIN) * GRAIN
        ones = np.ones(capacity, np.float32)
        estimate = Estimate(
            np.ones(capacity), np.zeros(capacity), ones, ones, np.zeros(capacity // BLOCK, np.uint8)
        )
        for roughly in (True, False):
            self.run(crew, rows, out_degrees, n, estimate, Goal(Limits(1.0, 1.0), passes_min=2, roughly=roughly))

    def run(
        self,
        crew: Crew,
        rows: RowView,
        out_degrees: npt.NDArray[np.uint32],
        n: int,
        estimate: Estimate,
        goal: Goal,
    ) -> int:
        """A sequence of passes; their number.

        ``residual`` then is that of ``value``, exactly, and blocks over the limits are flagged. Only the last pass
        sees to that, so whether one is the last is guessed from the size before it.

        Raises:
            BrokenOff: by the crew's team, between two passes; values and residuals mean nothing any more.
        """
        if rows.counts.size << rows.leaf_shift < _ALONE:
            crew = Crew(1, crew.words)
        capacity = estimate.value.size
        kind: Any = np.float32 if goal.roughly else np.float64
        if self._room.fixed.size < capacity or self._room.shares.dtype != kind:
            shares, following = np.empty(capacity, kind), np.empty(capacity, kind)
            room = _Room(shares, following, np.empty(capacity, np.uint32))
            # Of memory that is touched only where passes are kept.
            past = _Past(np.empty((KEPT, capacity), kind), np.empty((KEPT, capacity), kind))
            # Both or none: after a call that ran out of memory, one alone would be taken for large enough.
            self._room, self._past, self._keeps = room, past, False
        self._share_rounded = SHARE_ROUNDED if goal.roughly else 0.0
        self._cut(rows, n)
        self._sums[:] = 0
        pieces = _Pieces(out_degrees, self._cuts, self._counter, self._sums)
        passes, keeps, self.shrinks = _run(
            crew, rows, pieces, self._damping, goal, self._share_rounded, estimate, self._room, self._past
        )
        self._keeps |= keeps
        if not passes:
            raise BrokenOff("passes were broken off")
        return int(passes)

    def _cut(self, rows: RowView, n: int) -> None:
        parts = CHUNKS // 2
        by_edges = np.empty(parts + 1, np.int64)
        cut(rows, n, by_edges)
        by_vertices = np.arange(parts) * n // parts // GRAIN * GRAIN
        self._cuts[:] = np.sort(np.concatenate([by_edges, by_vertices]))

    def _sum(self, column: int) -> float:
        return float(self._sums[:, column].sum())

    def _max(self, column: int) -> float:
        return float(self._sums[:, column].max())
