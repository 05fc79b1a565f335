"""Personalised PageRank: where a walk is that restarts at the sources, within a certified error in sum.

**The system.** A walk at a vertex follows a random out-edge with probability d and restarts at a random source
otherwise, as it does where there is no out-edge. Its stationary distribution is x = y / sum(y) for the y that
solves M y = b, M = I - d P^T with zero rows for dangling vertices, b equal at the sources and 0 elsewhere
(``walk.py``): dropping the mass of dangling vertices and normalising equals sending it to the sources. Kept
are an estimate of y and its residual r = b - M estimate.

How large b is at the sources does not matter to x. So it is chosen anew, in O(sources), whenever residuals are of
one sign in the main: such that they add up to zero. This surplus is what is slow in the iteration; the rest mixes.

**The certificate.** The columns of M^-1 = I + d P^T + (d P^T)^2 + ... are non-negative and add up to at most
1 / (1 - d), so in the norm |.| of sums of sizes

    |y - estimate| = |M^-1 r| <= |r| / (1 - d) =: e.

y is not negative, so cutting off negative estimates brings them only nearer; let z be the estimate without
them, and Y and Z the sums of y and z. Then |Y - Z| <= |y - z| <= e, and since |y| = Y,

    |y / Y - z / Z| <= |y - z| / Z + |y| |1 / Y - 1 / Z| = |y - z| / Z + |Z - Y| / Z <= 2 e / Z.

So ``error_bound`` = 2 |r| / ((1 - d) Z) bounds the error of z / Z in sum over all vertices. |r| and Z are sums
that every change keeps up to date, so the bound holds at every epoch. What rounding may have done to |r| is kept,
too, operation by operation; where that outgrows ``DRIFT`` of the bound, a dense pass computes residuals anew. What
rounding may do to the residuals and to |r| is counted in the bound, at all that the audit allows: so a state that
passes the audit keeps to the bound that it publishes.

**Work.** Nothing is solved before |r| is over its limit. Then vertices are pushed (Andersen, Chung, Lang, "Local
Graph Partitioning using PageRank Vectors", FOCS 2006), those with the largest residual for their degree first: the
ones that changes touched, and if that is not enough, with a lower threshold, any that the sources reach. Where
that would read more than dense passes over all edges (``passes.py``), those take over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.vertex_columns import new_column
from ...partition.graph import Graph, GraphChange
from ..program import (
    Answer,
    Column,
    ExternalId,
    Parameter,
    Published,
    Refresh,
    Violation,
    parse_sources,
    size_violations,
)
from ..saved_scalars import SCALARS, packed, unpacked
from . import ppr_pushes as kernels
from .edits import ROUNDOFF
from .passes import BLOCK, SHARE_ROUNDED, Estimate, Goal, Limits
from .ppr_pushes import (
    BALANCED_AT,
    EDGES,
    N_CHANGED,
    N_REACHED,
    NORM,
    PUSHES,
    ROUNDED,
    ROUNDS,
    SIZE,
    TOTAL,
    WORK_SLOTS,
    Walks,
)
from .walk import (
    DAMPING,
    TOLERANCE,
    RandomWalk,
    extended,
    padded,
    parse_damping,
    parse_tolerance,
    require_columns,
    room_for,
    violations,
)

Work = npt.NDArray[np.int64]

# The share of the bound that is left to rounding of the residuals, and as much to that of their sum. The audit
# allows both, and the bound counts both.
DRIFT = 0.01
# What rounding explains when the audit adds a residual up anew, of the sizes of all that goes into it: |y|, |r|
# and the restart of the vertex. Over all vertices these are less than four times the sum of the estimates: the
# restarts are at most |y| + d |y| + |r|, and both |r| and what y has below zero are small beside |y|.
EXPLAINED = 1e-12
EXPLAINED_IN_ALL = 4 * EXPLAINED
# By how much of itself the sum of the estimates may be off, likewise.
NORM_DRIFT = 1e-9
# Once over its limit, |r| is brought down to this share of it.
TARGET = 0.5
# With |r| under this share of its limit, the threshold of pushes is raised.
EASY = 0.125
# Restarts of a strength out of this range are brought back to 1 by a start.
LEVEL_MIN, LEVEL_MAX = 1e-3, 1e3
# The first threshold of pushes, in multiples of the one at which they end.
LEVEL = 8.0
# Pushes may cost as much as so many edges for each edge of the graph before dense passes take over ...
PUSH_SHARE = 0.25
# ... and this in any case.
PUSH_MIN = 4096
# Shares of passes are rounded to float32 where that takes less than this part of what is left to rounding.
ROUGH_SHARE = 1 / 4
# The sums, as a saved state names them.
_SAVED_SUMS = {"size": SIZE, "norm": NORM, "total": TOTAL, "rounded": ROUNDED}
# What a pass measures residuals by: nothing, here it is their sum that counts.
_NO_LIMITS = Limits(math.inf, math.inf)


class Solved(NamedTuple):
    """What another processor tells of the system, which it has solved for restarts of 1.

    ``norm``, ``size``, ``total``: the sums of the estimates, none of which is negative, of the sizes of their
    residuals, and of these residuals. ``rounded``: by how much those may be off, all together.
    """

    norm: float
    size: float
    total: float
    rounded: float


class PersonalisedPageRank(RandomWalk):
    """Random walk with restart. Column ``estimate``: float64, or float32 beside a device; scalar ``norm``, the sum
    of its positive entries.

    A result is max(0, estimate) / norm, and null everywhere while no source is a vertex. Further scalar:
    ``error_bound``, the certified error in sum over all vertices.
    """

    kind: ClassVar[str] = "ppr"
    summary: ClassVar[str] = "importance as seen from the sources (random walk with restart); sums to 1"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("sources", "vertex to restart at, or a list of them", parse_sources),
        Parameter("damping", f"probability of following an edge, {DAMPING}", parse_damping, 0.85),
        Parameter("tolerance", f"largest error in sum over all vertices, {TOLERANCE}", parse_tolerance, 1e-3),
    )

    def __init__(
        self, id: str, sources: tuple[ExternalId, ...], damping: float = 0.85, tolerance: float = 1e-3
    ) -> None:
        super().__init__(id, damping, tolerance)
        self.sources = sources
        self._bound: Vertices = np.empty(0, np.uint32)
        self._reset(0)

    def bind(self, sources: Vertices) -> None:
        self._bound = distinct(sources[sources != NO_VERTEX]).astype(np.uint32)

    def start(self, graph: Graph) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        self._start(graph, work)
        return self._report(work, whole=True, started_over=False)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        work = np.zeros(WORK_SLOTS, np.int64)
        self._grow(graph.n_vertices)
        edit = self._edit(graph, change, self._estimate())
        work[EDGES] += edit.edges_read
        walks = self._walks
        walks.sums[NORM] += edit.norm_by
        walks.sums[SIZE] += edit.size_by
        walks.sums[TOTAL] += edit.total_by
        walks.sums[ROUNDED] += edit.rounded + edit.slipped + walks.sums[SIZE]
        kernels.note_changed(edit.rescaled, walks)
        kernels.touch(edit.touched, walks)
        self._remove_vertices(change.deleted_vertices)
        self._restart_at(self.existing_sources(graph))
        if self._starts_better():
            self._start(graph, work)
            return self._report(work, whole=True, started_over=True)
        whole = bool(self._active.size) and self._settle(graph, work)
        if self._active.size and ROUNDOFF * self._walks.sums[ROUNDED] > DRIFT * self._size_max():
            self._pass_until_solved(graph, work)
            whole = True
        return self._report(work, whole=whole, started_over=False)

    def columns(self) -> dict[str, Column]:
        return {"estimate": self._walks.value}

    def scalars(self) -> dict[str, float]:
        return {"norm": float(self._walks.sums[NORM]), "error_bound": self.error_bound}

    @property
    def error_bound(self) -> float:
        """The certified error in sum of the results (see the head of this file); 0 while there are none."""
        if not self._active.size:
            return 0.0
        size, norm = map(self._walks.sums.item, (SIZE, NORM))
        off = 2 * self._off_max() + EXPLAINED_IN_ALL * norm
        norm *= 1 - NORM_DRIFT
        # Rounding may leave a sum of nothing below zero.
        bound = 2 * (max(0.0, size) + off) / ((1 - self.damping) * norm) if norm > 0 else math.inf
        return bound + self.narrowed

    def state(self) -> dict[str, Column]:
        return {
            "estimate": self._walks.value[: self._n],
            "residual": self._walks.residual[: self._n],
            "sources": self._active,
            SCALARS: self.saved_scalars(self._level()),
        }

    def saved_scalars(self, level: float) -> Column:
        """The numbers of ``state``, for restarts of this strength."""
        sums = {name: float(self._walks.sums[slot]) for name, slot in _SAVED_SUMS.items()}
        return packed({**sums, "threshold": self._threshold, "level": level})

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_columns(state, ("estimate", "residual"), n)
        scalars = unpacked(state, (*_SAVED_SUMS, "threshold", "level"))
        if (state["sources"] >= n).any():
            raise ValueError(f"the saved sources are not those of a graph of {n} vertices")
        self._reset(n)
        self._walks.value[:n] = state["estimate"]
        self._walks.residual[:n] = state["residual"]
        self._active = self._bound = state["sources"].astype(np.uint32)
        self._walks.rhs[self._active] = scalars["level"]
        kernels.list_all(n, self._walks)
        for name, slot in _SAVED_SUMS.items():
            self._walks.sums[slot] = scalars[name]
        self._threshold = scalars["threshold"]

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """The residuals of vertices begin .. end - 1, from their in-edges, against the kept ones."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        n = self._n
        part = slice(begin, end)
        y, kept = self._walks.value[part], self._walks.residual[part]
        r, read = self._true_residual(graph, self._estimate(), begin, end)
        off = np.abs(r - kept)
        # Each slice has its part of the drift that the bound allows for, and what rounding explains.
        allowed = DRIFT * self._size_max() * (end - begin) / max(1, n)
        explained = EXPLAINED * (np.abs(y) + np.abs(r) + self._walks.rhs[part])
        excess = float(np.maximum(0, off - explained).sum())
        if allowed > 0:
            self.drift = max(self.drift, excess / allowed)
        source = np.zeros(n, bool)
        source[self.existing_sources(graph)] = True
        rules = {
            # A NaN fails these.
            "ppr-finite": np.isfinite(y) & np.isfinite(kept),
            "ppr-sources": (self._walks.rhs[part] > 0) == source[part],
            "ppr-deleted": graph.alive[part] | ((y == 0) & (kept == 0)),
        }
        found = violations(rules, begin)
        if not excess <= allowed:
            worst = np.argsort(-off)[:5]
            found.append(
                Violation("ppr-residual", f"off by {off[worst[0]]:.3g}", tuple(int(v) + begin for v in worst))
            )
        return found, read

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        size, norm = map(float, self._walks.sums[[SIZE, NORM]])
        true_size = float(np.abs(self._walks.residual[: self._n]).sum())
        true_norm = float(np.maximum(0, self._walks.value[: self._n]).sum())
        found = []
        if not abs(norm - true_norm) <= NORM_DRIFT * norm:
            found.append(Violation("ppr-norm", f"norm {norm!r}, but the estimates add up to {true_norm!r}"))
        if not abs(size - true_size) <= self._off_max():
            found.append(Violation("ppr-sum", f"|r| {size!r}, but residuals add up to {true_size!r}"))
        if not self.error_bound <= self.tolerance:
            found.append(Violation("ppr-tolerance", f"error bound {self.error_bound:.3g} over the tolerance"))
        return found, 0

    def memory_bytes(self) -> int:
        held = sum(array.nbytes for array in self._walks)
        return held + self._flags.nbytes + self._pulls.memory_bytes

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        norm = published.scalars["norm"]
        if not norm > 0:
            return Answer(np.zeros(vertices.size), np.ones(vertices.size, np.bool_))
        values = np.maximum(0, published.columns["estimate"][vertices], dtype=np.float64) / norm
        return Answer(values, np.zeros(vertices.size, np.bool_))

    # -- what another processor needs that keeps the system (compute/device/ppr.py) -------------------------

    def existing_sources(self, graph: Graph) -> Vertices:
        """The vertices to restart at: uint32, ascending."""
        bound = self._bound[self._bound < graph.n_vertices]
        return bound[graph.alive[bound]]

    @property
    def size_share(self) -> float:
        """What the sizes of residuals may add up to, as a share of the sum of the estimates."""
        return (1 - 2 * DRIFT) * (self.solved_tolerance * (1 - self.damping) / 2 - EXPLAINED_IN_ALL)

    def certify(self, graph: Graph, sources: Vertices, solved: Solved) -> bool:
        """Take what was solved elsewhere into the certificate, but not the columns; whether that holds then."""
        self._n = graph.n_vertices
        self._active = sources
        sums = self._walks.sums
        sums[NORM], sums[SIZE], sums[TOTAL] = solved.norm, solved.size, solved.total
        sums[ROUNDED] = solved.rounded / ROUNDOFF
        if not sources.size:
            return True
        self._threshold = LEVEL * self._threshold_min(graph)
        return solved.rounded <= DRIFT * self._size_max() and self.error_bound <= self.tolerance

    # -- inside -----------------------------------------------------------------------------------------

    def _reset(self, n: int) -> None:
        capacity = padded(n)
        self._n = n
        self._walks = Walks(
            new_column(capacity, np.float64),
            new_column(capacity, np.float64),
            new_column(capacity, np.uint8),
            new_column(capacity, np.uint32),
            new_column(capacity, np.uint32),
            new_column(capacity, np.uint32),
            np.zeros(kernels.COUNTS, np.int64),
            np.zeros(kernels.SUMS),
            new_column(capacity, np.float32),
        )
        self._flags = new_column(capacity // BLOCK, np.uint8)
        self._active = np.empty(0, np.uint32)
        # A push is worth it over this residual for each out-edge.
        self._threshold = 1.0

    def _grow(self, n: int) -> None:
        walks = self._walks
        self._n = n
        if n <= walks.value.size:
            return
        capacity = room_for(n, walks.value)
        self._walks = Walks(
            extended(walks.value, capacity),
            extended(walks.residual, capacity),
            extended(walks.marks, capacity),
            extended(walks.reached, capacity),
            self._longer_ring(capacity),
            extended(walks.changed, capacity),
            walks.counts,
            walks.sums,
            extended(walks.rhs, capacity),
        )
        self._flags = extended(self._flags, capacity // BLOCK)

    def _longer_ring(self, capacity: int) -> Vertices:
        """The ring of waiting vertices with room for so many; it seldom grows, since its end moves then."""
        ring, (head, n) = self._walks.waiting, self._walks.counts[[kernels.HEAD, kernels.N_WAITING]].tolist()
        if capacity <= ring.size:
            return ring
        longer = extended(ring, 2 * capacity)
        # What stands at the begin goes on behind the end of before: at most as much as the ring held.
        wrapped = max(head + n - ring.size, 0)
        longer[ring.size : ring.size + wrapped] = longer[:wrapped]
        return longer

    def _start(self, graph: Graph, work: Work) -> None:
        self._reset(graph.n_vertices)
        self._restart_at(self.existing_sources(graph))
        if self._active.size:
            self._settle(graph, work)
            self._normalise()

    def _normalise(self) -> None:
        """Make the right-hand side 1 at the sources again."""
        walks = self._walks
        level = self._level()
        for column in (walks.value, walks.residual):
            column /= level
        walks.sums[: ROUNDED + 1] /= level
        # Dividing has rounded every value and residual, and the new sums are not those of what came of it.
        walks.sums[ROUNDED] += 4 * float(np.abs(walks.value).sum()) + 4 * float(walks.sums[SIZE])
        walks.rhs[self._active] = 1
        self._threshold /= level

    def _starts_better(self) -> bool:
        """A start has less to solve; or nothing, without sources; or the scale has wandered off too far."""
        walks = self._walks
        if not self._active.size:
            return bool(walks.counts[N_REACHED])
        restarts = float(walks.rhs[self._active].sum(dtype=np.float64))
        return bool(walks.sums[SIZE] > restarts) or not LEVEL_MIN <= self._level() <= LEVEL_MAX

    def _restart_at(self, sources: Vertices) -> None:
        """Change the right-hand side to these sources."""
        walks = self._walks
        level = self._level()
        for vertices, now in (
            (np.setdiff1d(self._active, sources), 0.0),
            (np.setdiff1d(sources, self._active), level),
        ):
            before = walks.residual[vertices]
            after = before + (now - walks.rhs[vertices])
            walks.residual[vertices] = after
            walks.sums[SIZE] += float((np.abs(after) - np.abs(before)).sum())
            walks.sums[ROUNDED] += float(np.abs(after).sum() + np.abs(before).sum()) * (2 + vertices.size)
            walks.sums[TOTAL] += float((after - before).sum())
            walks.rhs[vertices] = now
            kernels.touch(vertices, walks)
        self._active = sources

    def _level(self) -> float:
        """The right-hand side at a source."""
        return float(self._walks.rhs[self._active[0]]) if self._active.size else 1.0

    def _remove_vertices(self, gone: Vertices) -> None:
        """They have no edges any more: they leave the system as they are, solved."""
        if not gone.size:
            return
        walks = self._walks
        had_value = gone[walks.value[gone] != 0]
        walks.sums[NORM] -= float(np.maximum(0, walks.value[gone]).sum())
        walks.sums[SIZE] -= float(np.abs(walks.residual[gone]).sum())
        walks.sums[ROUNDED] += gone.size * float(walks.sums[SIZE])
        walks.sums[TOTAL] -= float(walks.residual[gone].sum())
        walks.value[gone] = 0
        walks.residual[gone] = 0
        walks.rhs[gone] = 0
        self._active = np.setdiff1d(self._active, gone)
        kernels.note_changed(had_value, walks)

    def _size_max(self) -> float:
        """What |r| may be at most."""
        return self.size_share * max(0.0, self._walks.sums.item(NORM))

    def _off_max(self) -> float:
        """What |r| may be off by for rounding, and as much again the residuals together: the bound counts both."""
        return max(DRIFT * self._size_max(), ROUNDOFF * self._walks.sums.item(ROUNDED))

    def _threshold_min(self, graph: Graph) -> float:
        """With every residual under this for each out-edge, |r| is within its limit."""
        return self._size_max() / (graph.n_arcs + self._n)

    def _settle(self, graph: Graph, work: Work) -> bool:
        """Bring |r| below its limit; whether all values may have changed."""
        walks = self._walks
        rows = graph.out_rows()
        cost_max = PUSH_MIN + int(PUSH_SHARE * graph.n_arcs)
        level = LEVEL
        walks.sums[BALANCED_AT] = math.inf
        while walks.sums[SIZE] > self._size_max():
            target = TARGET * self._size_max()
            if not kernels.push(
                rows, self.damping, self._threshold, level, target, cost_max, self._active, walks, work
            ):
                self._pass_until_solved(graph, work)
                return True
            level = 1.0
            if walks.sums[SIZE] > self._size_max():
                self._threshold = max(self._threshold / 2, self._threshold_min(graph))
                kernels.look_again(rows, self._threshold, walks)
                work[ROUNDS] += 1
        if walks.sums[SIZE] < EASY * self._size_max():
            self._threshold = min(1.0, 2 * self._threshold)
        return False

    def _pass_until_solved(self, graph: Graph, work: Work) -> None:
        in_rows, degrees = graph.in_rows(), graph.out_rows().degrees
        estimate = self._estimate()
        while True:
            # Rounding a share to float32 leaves that share of its residual.
            roughly = (
                ROUNDOFF * SHARE_ROUNDED * float(self._walks.sums[NORM]) < ROUGH_SHARE * DRIFT * self._size_max()
            )
            goal = Goal(_NO_LIMITS, TARGET * self._size_max(), roughly=roughly)
            passes = self._pulls.run(graph.crew, in_rows, degrees, self._n, estimate, goal)
            work[EDGES] += passes * self._pulls.edges
            work[ROUNDS] += passes
            self._walks.sums[NORM] = np.maximum(0, self._walks.value[: self._n]).sum()
            if self._pulls.size <= TARGET * self._size_max():
                break
        kernels.list_all(self._n, self._walks)
        self._walks.sums[ROUNDED] = self._pulls.rounded + self._n * self._pulls.size
        self._threshold = LEVEL * self._threshold_min(graph)

    def _estimate(self) -> Estimate:
        return Estimate(self._walks.value, self._walks.residual, self._walks.rhs, self._walks.rhs, self._flags)

    def _report(self, work: Work, *, whole: bool, started_over: bool) -> Refresh:
        changed = np.empty(int(self._walks.counts[N_CHANGED]), np.uint32)
        kernels.take_changed(self._walks, changed)
        return Refresh(
            {"estimate": None if whole else changed} if whole or changed.size else {},
            iterations=int(work[ROUNDS]),
            edges_read=int(work[EDGES]),
            active=int(work[PUSHES]),
            started_over=started_over,
            error_bound=self.error_bound,
        )
