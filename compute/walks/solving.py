"""How residuals of PageRank's systems are edited, and solved to their limits: by pushes, or by passes.

An edit may leave residuals of any size. Few that are over their limits are pushed along their out-edges
(``sweeps.py``, ``shared_sweeps.py``); many are solved by dense passes over all in-edges (``passes.py``).
``Budget`` says where the one costs more than the other.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Keys
from ...gpma.team import Crew
from ...partition.graph import Graph, GraphChange
from . import edits as walk_kernels
from . import shared_edits, shared_sweeps, weighing
from . import sweeps as kernels
from .certificate import HUB, SUM_ROUNDED, WEIGHT_HYSTERESIS
from .edits import ROUNDOFF, Editing
from .passes import BLOCK, SHARE_ROUNDED, SLOW, Goal, Limits, Pulls
from .ranges import Mail, Ranges
from .shared_edits import ENTRY_BYTES, Edited, Told
from .shared_sweeps import VERTEX, WAVE
from .sweeps import DIVIDE, EDGES, NORM, PASSES, ROUNDED, SOLVED, STRETCH, WORK_SLOTS, Outbox, Pushing, System
from .systems import Systems, estimate_of, take_edit
from .walk import Edit, extended

Work = npt.NDArray[np.int64]
"""Counters: ``PUSHES``, ``EDGES``, ``SWEEPS`` and ``PASSES`` of ``sweeps.py``."""

# Where a pass over the ranks is likely to follow, since what is due costs more than half of what pushes may, they
# begin at this multiple of the bound: what is far over it, a pass would leave over. Else they begin at the bound:
# sweeps at higher ones would save few pushes, and cost a look each.
LEVEL = 8.0
# Dense passes take over where pushing what is due costs more than this part of a pass: an edge of a push costs
# about as much as one of a pass, but pushes are to be pushed on. A vertex costs a pass as much as so many edges.
# (Both are measured by ``benchmarks/walks.py``.)
PUSH_COST = 3
# That is so on two threads, between which large sweeps are divided. Passes are that much faster on twice as many,
# as a power of two; such pushes are not.
PASS_SPEED = 0.85
# From so many threads on, all of them share edits, and large sweeps in waves: there, passes take over where
# pushing what is due costs more than this part of a pass.
WAVES_THREADS = 4
WAVES_PUSH_COST = 3
PASS_VERTEX = 2
# Pushes that cost no more than this many edges are made in any case, since entering a pass costs more.
PUSH_MIN = 2048
# Where pushes behind passes still cost too much, passes go on until residuals add up to this share of what they
# did. After slow ones pushes may cost more, but no more than so many passes.
FURTHER = 1 / 3
PUSH_MOST = 1.0
# Passes go on until residuals are likely to add up to this share of their limits, after which pushes mostly do.
DUE = 0.4
# Shares of passes are rounded to float32 where that takes less than this part of what is reserved for rounding.
ROUGH_SHARE = 1 / 4
# Sweeps that cost more than this many edges, about two milliseconds, are divided between two threads. Smaller ones
# would gain little by it, and take the second core from others: a daemon at 10,000 updates a second used a fifth
# more of them.
PUSH_ALONE = 1 << 20
# Those in waves begin at fewer.
WAVES_MIN = 1 << 15
# Fewer changes than this are edited on one thread.
EDIT_ALONE = 1 << 14
# From so many vertices on, looking at all of them is shared among threads.
SHARED_VERTICES_MIN = 1 << 16


class Budget:
    """What pushing may cost in one solve, in edges, before passes over all edges take over.

    At first that is ``PUSH_MIN`` and one part in ``PUSH_COST`` of what a pass costs. It doubles after a slow pass,
    up to ``PUSH_MOST`` of what a pass costs; and without end where passes get no further, as where rounding is all
    that is left.
    """

    def __init__(self, arcs: int, n: int, threads: int) -> None:
        times = WAVES_PUSH_COST if threads >= WAVES_THREADS else PUSH_COST * max(1.0, threads / 2) ** PASS_SPEED
        whole = arcs + PASS_VERTEX * n
        self.cost_max = PUSH_MIN + int(whole / times)
        self._most = max(self.cost_max, int(PUSH_MOST * whole))
        self._size = math.inf

    def passed(self, size: float, shrinks: float) -> None:
        """Passes have left residuals whose sizes add up to ``size``, the last one this part of what there was."""
        if not size < self._size:
            self.cost_max = 2 * self.cost_max + 1
        elif shrinks > SLOW:
            self.cost_max = max(self.cost_max, min(2 * self.cost_max, self._most))
        self._size = size


class Solver:
    """Edits and solves two systems. What it keeps between two calls is work space."""

    def __init__(
        self, systems: Systems, pulls: Pulls, push_alone: int | None = None, in_waves: bool | None = None
    ) -> None:
        """``push_alone``: None: ``PUSH_ALONE``. ``in_waves``: whether all threads share edits and large sweeps,
        which else are divided between two; None: from ``WAVES_THREADS`` on."""
        self._systems, self._pulls = systems, pulls
        self._push_alone = PUSH_ALONE if push_alone is None else push_alone
        self._in_waves = in_waves
        self._outbox = Outbox(np.empty(0), np.empty(0, np.uint8))
        # For sweeps in waves: vertices to push, what these send, and the ranges of the graph as it is.
        self._queue = np.empty(0, np.uint32)
        self._mail = Mail.with_room(0)
        self._ranges: Ranges | None = None
        self._told = Told.with_room(0)
        self._told_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of it."""
        sent = sum(array.nbytes for array in (*self._outbox, *self._mail, self._queue))
        return sent + self._pulls.memory_bytes + self._told_bytes

    def begin(self) -> None:
        """The graph has changed since the last call."""
        self._ranges = None

    # -- edits ------------------------------------------------------------------------------------------

    def edit(self, graph: Graph, change: GraphChange, work: Work) -> None:
        """Make both residuals those of the changed graph."""
        inserted, deleted = change.arcs.inserted.keys, change.arcs.deleted.keys
        changes = inserted.size + deleted.size
        if changes >= EDIT_ALONE and self._shares_all(graph):
            self.edit_shared(graph, inserted, deleted, work)
            return
        first, second = (Editing.of(system.value, system.residual, changes) for system in self._systems.both)
        crew = graph.team.crew(1 if changes < EDIT_ALONE else 2)
        walk_kernels.edit_two(crew, graph.out_rows(), inserted, deleted, self._systems.damping, first, second)
        edits = Edit.from_editing(first), Edit.from_editing(second)
        for system, edit in zip(self._systems.both, edits, strict=True):
            kernels.flag(edit.touched, edit.touched.size, system.flags)
            kernels.mark_moved(edit.rescaled, edit.rescaled.size, system.moved)
            take_edit(system, edit.norm_by, edit.size_by, edit.total_by, edit.rounded, edit.slipped)
            work[EDGES] += edit.edges_read

    def edit_shared(self, graph: Graph, inserted: Keys, deleted: Keys, work: Work) -> None:
        """``edit`` on all threads."""
        first, second = (
            Edited(system.value, system.residual, system.flags, system.moved, np.zeros(5))
            for system in self._systems.both
        )
        self._ranges = ranges = self._ranges_of(graph)
        changes = inserted.size + deleted.size
        if not self._told.has_room(changes):
            self._told = Told.with_room(changes)
        edges, entries = shared_edits.edit_both(
            graph.crew,
            graph.out_rows(),
            inserted,
            deleted,
            self._systems.damping,
            self._systems.n,
            ranges,
            self._told,
            first,
            second,
        )
        work[EDGES] += 2 * edges
        self._told_bytes = max(self._told_bytes, ENTRY_BYTES * entries)
        for system, edited in ((self._systems.ranks, first), (self._systems.majorant, second)):
            norm_by, size_by, total_by, rounded, slipped = map(float, edited.sums)
            take_edit(system, norm_by, size_by, total_by, rounded, slipped)

    def _shares_all(self, graph: Graph) -> bool:
        """Whether edits and large sweeps are shared by all threads, and not divided between two."""
        return graph.crew.threads >= WAVES_THREADS if self._in_waves is None else self._in_waves

    def _ranges_of(self, graph: Graph) -> Ranges:
        """The ranges of the vertices of this graph."""
        return Ranges.by_in_edges(graph.in_rows(), graph.n_vertices)

    # -- until residuals are within their limits -----------------------------------------------------------

    def solve(self, graph: Graph, system: System, work: Work) -> None:
        """Until residuals of one system are within their limits: push within a budget, else pass over all edges,
        in turns.

        Raises:
            BrokenOff: by the graph's team; the systems are half solved.
        """
        limits = self._systems.limits_of(system)
        level = LEVEL if system is self._systems.ranks else 1.0
        budget = Budget(graph.n_arcs, self._systems.n, graph.crew.threads)
        goal = self._goal(system, limits)
        cost = 0
        while True:
            if cost <= budget.cost_max and self._push(graph, system, limits, level, budget.cost_max, work):
                return
            self.pass_over(graph, system, goal, work)
            # It has counted what is over its limits, and leaves nothing far over them.
            cost = int(kernels.push_cost(*self._pulls.over))
            level = 1.0
            budget.passed(self._pulls.size, self._pulls.shrinks)
            # Should that be too much, passes go further.
            goal = goal._replace(size_max=FURTHER * self._pulls.size, shrinks=self._pulls.shrinks)

    def _push(self, graph: Graph, system: System, limits: Limits, level: float, cost_max: int, work: Work) -> bool:
        """Until residuals are within their limits (true), or pushing costs more than ``cost_max`` (false)."""
        if system is self._systems.ranks and work[PASSES] and not self._shares_all(graph):
            self._push_both(graph, cost_max, work)
        rows, crew = graph.out_rows(), graph.team.crew(2)
        lookers = everybody(graph)
        capacity = system.value.size
        costs = np.empty((2, -(-capacity // STRETCH)), np.int64)
        kernels.look_all(lookers, rows, limits, level, system, costs)
        if 2 * costs[kernels.OVER].sum() <= cost_max:
            level = 1.0
        in_waves = self._shares_all(graph)
        alone = min(self._push_alone, WAVES_MIN) if in_waves else self._push_alone
        while True:
            outcome, level, cut = kernels.solve(
                lookers,
                rows,
                limits,
                level,
                self._systems.damping,
                cost_max,
                alone,
                costs,
                system,
                self._outbox,
                work,
            )
            if outcome != DIVIDE:
                return bool(outcome == SOLVED)
            if in_waves:
                self._sweep_in_waves(graph, system, limits, level, work)
                level = max(1.0, 0.5 * level)
                kernels.look_all(lookers, rows, limits, level, system, costs)
            else:
                level = kernels.sweep_divided(
                    crew,
                    rows,
                    limits,
                    level,
                    self._systems.damping,
                    cut,
                    costs,
                    system,
                    self._room_between(capacity),
                    work,
                )

    def _push_both(self, graph: Graph, cost_max: int, work: Work) -> None:
        """Push the ranks and the majorant side by side, as far as one thread would push either alone.

        Weights may follow the ranks only after that, which leaves the majorant little to do.
        """
        stretches = -(-self._systems.capacity // STRETCH)
        first, second = (
            Pushing(
                system,
                self._systems.limits_of(system),
                np.empty((2, stretches), np.int64),
                np.zeros(WORK_SLOTS, np.int64),
            )
            for system in self._systems.both
        )
        crew, rows = everybody(graph), graph.out_rows()
        kernels.solve_two(
            crew, rows, self._systems.damping, cost_max, self._push_alone, first, second, self._outbox
        )
        work += first.work + second.work

    def _sweep_in_waves(self, graph: Graph, system: System, limits: Limits, level: float, work: Work) -> None:
        """One sweep that all threads share."""
        rows, capacity = graph.out_rows(), system.value.size
        if self._queue.size != capacity:
            self._queue = np.empty(capacity, np.uint32)
        found = np.zeros((-(-capacity // STRETCH), 2), np.int64)
        count, edges = shared_sweeps.choose(graph.crew, rows, limits, level, system, self._queue, found)
        # Vertices that send little, or nothing, are not to go by few at a time.
        room = max(1, min(edges + VERTEX * count, WAVE))
        if self._mail.heads.size < room:
            self._mail = Mail.with_room(room)
        if self._ranges is None:
            self._ranges = self._ranges_of(graph)
        shared_sweeps.push_in_waves(
            graph.crew,
            rows,
            limits,
            self._systems.damping,
            system,
            self._ranges,
            self._queue,
            count,
            edges,
            room,
            self._mail,
            work,
        )

    def _room_between(self, capacity: int) -> Outbox:
        """What two parts of so many vertices send each other, and nothing yet."""
        sent, marks = self._outbox
        if sent.size != capacity:
            self._outbox = Outbox(extended(sent, capacity), extended(marks, capacity // BLOCK))
        return self._outbox

    def pass_over(self, graph: Graph, system: System, goal: Goal, work: Work) -> None:
        """A sequence of passes; the sums of the system are those of what it leaves."""
        pulls, systems, n = self._pulls, self._systems, self._systems.n
        estimate, degrees = estimate_of(system), graph.out_rows().degrees
        passes = pulls.run(graph.crew, graph.in_rows(), degrees, n, estimate, goal)
        norm = weighing.total(everybody(graph), system.value[:n])
        slipped = pulls.rounded + SUM_ROUNDED * norm + n * pulls.size
        system.sums[:] = norm, pulls.size, pulls.rounded_max, slipped, pulls.total
        if system is systems.ranks:
            systems.passed = 0.0
            if goal.roughly or ROUNDOFF * pulls.rounded_max > systems.certificate.reserve / 2:
                # Too much for hubs alone, or for all together: in multiples of the weights it is less.
                systems.passed = pulls.weighed_max
                system.sums[ROUNDED] = 0
        systems.all_moved(system)
        work[EDGES] += passes * pulls.edges
        work[PASSES] += passes

    def _goal(self, system: System, limits: Limits) -> Goal:
        """Of passes after which pushes are likely to do; where float32 does, with shares of that."""
        if system is not self._systems.ranks:
            return Goal(limits)
        weights = self._systems.n + float(system.sums[NORM]) / HUB
        # A value is at most HUB times its weight, but for the hysteresis, and shares add up to about as much.
        rounded = ROUNDOFF * SHARE_ROUNDED * WEIGHT_HYSTERESIS * HUB
        roughly = rounded < ROUGH_SHARE * self._systems.certificate.reserve
        return Goal(limits, DUE * limits.above * weights, roughly=roughly)

    def pass_until_solved(self, graph: Graph, system: System, work: Work) -> bool:
        """Passes until residuals are within their limits (true) or shrink no more (false)."""
        size = math.inf
        while True:
            self.pass_over(graph, system, Goal(self._systems.limits_of(system)), work)
            if self._pulls.over[0] == 0:
                return True
            if self._pulls.size >= size:
                return False
            size = self._pulls.size


def everybody(graph: Graph) -> Crew:
    """Who looks at all vertices: all threads where there are many, else the caller's alone."""
    return graph.crew if graph.n_vertices >= SHARED_VERTICES_MIN else graph.team.crew(1)
