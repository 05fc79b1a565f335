"""The background audit: published results and the storage, proven slice by slice against the graph.

A **pass** goes once over everything: the leaves of the storage, then each program's vertices, what cannot be
seen by slices (``Program.audit_whole``: that parents form a forest, tables, totals), and what readers see of it.
Every slice proves its range for the epoch at which it runs, and a pass may take many epochs. So a complete pass
without violations proves:

- everything, of one epoch, where nothing changed while it ran (``Pass.first_epoch == Pass.last_epoch``);
- else that no part was wrong at the time when it was looked at. What is wrong and stays so is found by the
  first slice that comes to it, hence at the latest one whole pass after it went wrong.

A step that is run whole (``audit_whole``, a vertex with more edges than fit into a slice, and a slice of a program
whose state must be fetched from a device first) takes its time at once;
``Auditor.next_is_whole`` lets the caller choose the moment. The caller also keeps the budget: a step reports the
seconds it took, and slices are cut, by the pace of those before them, to take about what was asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...gpma.edges import Vertices
from ...gpma.host import PackedMemoryArray
from ...partition.graph import Graph, RowsLost
from ...partition.side import Reader
from ..engine import STORAGE, Engine
from ..program import EVIDENCE, Column, Program, Published, Violation
from .storage import audit_leaves, audit_totals, last_key_before, leaf_after

log = logging.getLogger(__name__)

Epoch = tuple[int, int]
Found = tuple[list[Violation], int]

# Entries and edges of a target's first slice, before its pace is known; a vertex with fewer always fits.
FIRST_WORK = 4096
# One measurement of the pace counts for no more than this factor.
PACE_STEP = 4.0
# No measurement is taken to say that a unit costs less, in seconds.
PACE_MIN = 1e-10
# The most units of a slice.
UNITS_MAX = 1 << 18


@dataclass(frozen=True, slots=True)
class Pass:
    """One complete pass: between which epochs, in what time, and how many violations it found.

    ``left_out``: the programs of which it proves nothing, since they were quarantined for some of its steps.
    """

    first_epoch: Epoch
    last_epoch: Epoch
    seconds: float
    violations: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the audit did. ``target``: ``STORAGE``, or the id of a program."""

    target: str
    violations: tuple[Violation, ...]
    edges_read: int
    seconds: float
    ended: Pass | None = None


@dataclass(slots=True)
class _Check:
    """A part of the pass: ``size`` units (vertices, leaves), of which ``run(begin, end)`` checks a range.

    ``work(begin, end)``: about how many entries and edges each of these units makes it read; None where it can
    only be run whole. ``resume``: the unit to go on at, where units move between slices. ``prepare``: what comes
    before any range, in a time that does not depend on it.
    """

    target: str
    size: Callable[[], int]
    run: Callable[[int, int], Found]
    work: Callable[[int, int], Vertices] | None = None
    resume: Callable[[], int] | None = None
    prepare: Callable[[], None] | None = None
    done: int = 0

    @property
    def is_whole(self) -> bool:
        return self.work is None

    def begin(self) -> int:
        """The unit to go on at."""
        return self.done if self.resume is None else self.resume()


class Auditor:
    """Audits one engine and its graph, a step at a time, on the engine's own thread between epochs."""

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        published: Callable[[str], Published] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``published`` gives the results of a program as readers see them, to be compared with its own."""
        self._graph = graph
        self._engine = engine
        self._published = published
        self._clock = clock
        self._checks: list[_Check] = []
        self._at = 0
        self._first_epoch: Epoch = (0, 0)
        self._seconds = 0.0
        self._violations = 0
        self._left_out: set[str] = set()
        # Seconds per unit of work, by target: kept from pass to pass.
        self._pace: dict[str, float] = {}
        # Seconds that preparing a slice took last, by target.
        self._prepared: dict[str, float] = {}
        self.passes = 0

    @property
    def coverage(self) -> float:
        """The share of the current pass that is done, each check counting alike."""
        if not self._checks:
            return 0.0
        check = self._checks[self._at]
        part = 0.0 if check.is_whole else min(check.done / max(check.size(), 1), 1.0)
        return (self._at + part) / len(self._checks)

    @property
    def is_between_passes(self) -> bool:
        """The next step begins a pass."""
        return not self._checks

    @property
    def is_behind(self) -> bool:
        """Whether the next step has to wait until the host's rows have caught up with a device's."""
        return self._graph.lag.updates > 0

    def next_is_whole(self, seconds: float) -> bool:
        """The next step cannot be cut down to about so many seconds."""
        if not self._checks:
            return False
        check = self._checks[self._at]
        if check.work is None:
            return True
        if check.prepare is not None and self._prepared.get(check.target, 0.0) > seconds:
            return True
        begin = check.begin()
        if begin >= check.size():
            return False
        return int(check.work(begin, begin + 1)[0]) > max(self._wanted(check.target, seconds), FIRST_WORK)

    def begin_anew(self) -> None:
        """Give up the pass that is under way, which refers to programs that are no more."""
        self._checks, self._at = [], 0

    def step(self, seconds: float, epoch: Epoch) -> Step:
        """Check the next slice, of about so many seconds, against the graph as it is at ``epoch``.

        Raises:
            NoMemory: ``is_behind``, and there is not enough to go on.
        """
        self._graph.catch_up()  # slices read the host's arrays themselves
        if not self._checks:
            self._checks = list(self._plan())
            self._at, self._first_epoch, self._seconds, self._violations = 0, epoch, 0.0, 0
            self._left_out.clear()
        check = self._checks[self._at]
        found: list[Violation] = []
        edges, finished, took = 0, True, 0.0
        if self._is_there(check):
            begun = self._clock()
            found, edges, finished = self._run(check, seconds)
            took = self._clock() - begun
        else:
            self._left_out.add(check.target)
        self._seconds += took
        self._violations += len(found)
        self._at += finished
        ended = None
        if self._at == len(self._checks):
            left_out = tuple(sorted(self._left_out))
            ended = Pass(self._first_epoch, epoch, self._seconds, self._violations, left_out)
            self.passes += 1
            self._checks = []
            self._at = 0
        return Step(check.target, tuple(found), edges, took, ended)

    # -- inside -----------------------------------------------------------------------------------------

    def _plan(self) -> Iterator[_Check]:
        graph = self._graph
        for host in graph.hosts:
            for array in host.arrays:
                # Where all out-arcs have their image in in-rows, and both hold as many, that is all there is.
                yield _leaves(graph, array, graph.mirror if array is host.out else None)
        yield _Check(STORAGE, lambda: 1, lambda _begin, _end: audit_totals(graph))
        for program in self._engine.programs:
            yield from self._plan_program(program)

    def _plan_program(self, program: Program) -> Iterator[_Check]:
        graph = self._graph
        yield _Check(
            program.id,
            lambda: graph.n_vertices,
            lambda begin, end: program.audit_slice(graph, begin, end),
            work=self._degrees,
            prepare=lambda: program.prepare_audit(graph),
        )
        yield _Check(program.id, lambda: 1, lambda _begin, _end: program.audit_whole(graph))
        published = self._published
        if published is not None:
            yield _Check(
                program.id,
                lambda: graph.n_vertices,
                lambda begin, end: _compare(program.columns(), published(program.id).columns, begin, end),
                work=lambda begin, end: np.ones(end - begin, np.uint32),
            )
            yield _Check(
                program.id,
                lambda: 1,
                lambda _begin, _end: _compare_scalars(program.scalars(), published(program.id).scalars),
                work=lambda _begin, _end: np.ones(1, np.uint32),  # no work to wait for a quiet moment with
            )

    def _degrees(self, begin: int, end: int) -> Vertices:
        graph = self._graph
        degrees = graph.degrees("out")[begin:end]
        return degrees + graph.degrees("in")[begin:end] if graph.host.in_ is not None else degrees

    def _run(self, check: _Check, seconds: float) -> tuple[list[Violation], int, bool]:
        """(violations, edges read, whether the check is through)."""
        size = check.size()
        try:
            if check.work is None:
                return *check.run(0, size), True
            begin = check.begin()
            if begin >= size:
                return [], 0, True
            # A slice is worth what comes before it: so that takes half of the time at most, however long it is.
            seconds = max(seconds, self._prepare(check))
            end, work = self._slice_end(check.work, check.target, begin, size, seconds)
            begun = self._clock()
            found, edges = check.run(begin, end)
            self._learn(check.target, (self._clock() - begun) / work)
        except RowsLost:
            raise
        except Exception as error:
            log.exception("the audit of %s failed", check.target)
            problem = f"the audit itself failed: {type(error).__name__}: {error}"
            return [Violation("audit", problem)], 0, True
        check.done = end
        return found, edges, end >= size

    def _prepare(self, check: _Check) -> float:
        """The seconds that it took."""
        if check.prepare is None:
            return 0.0
        begun = self._clock()
        check.prepare()
        seconds = self._prepared[check.target] = self._clock() - begun
        return seconds

    def _slice_end(
        self, work_of: Callable[[int, int], Vertices], target: str, begin: int, size: int, seconds: float
    ) -> tuple[int, int]:
        """Where a slice of about so many seconds ends, and the work that it holds."""
        wanted = self._wanted(target, seconds)
        ahead = min(size, begin + min(wanted + 1, UNITS_MAX))
        # One more for each unit: those without edges are work, too.
        work = np.cumsum(work_of(begin, ahead).astype(np.int64) + 1)
        taken = min(max(int(np.searchsorted(work, wanted, side="right")), 1), work.size)
        return begin + taken, int(work[taken - 1])

    def _wanted(self, target: str, seconds: float) -> int:
        """About how much work of this target fits into so many seconds."""
        pace = self._pace.get(target)
        return FIRST_WORK if pace is None else int(seconds / pace)

    def _learn(self, target: str, pace: float) -> None:
        """Take a measured pace (seconds per unit of work) into the mean."""
        pace = max(pace, PACE_MIN)
        before = self._pace.get(target, pace)
        self._pace[target] = (before + min(max(pace, before / PACE_STEP), before * PACE_STEP)) / 2

    def _is_there(self, check: _Check) -> bool:
        """Whether the target is still what it was planned as: the storage, or a program that follows the graph."""
        if check.target == STORAGE:
            return True
        state = self._engine.states().get(check.target)
        return state is not None and state.state == "fresh"


def _compare(own: Mapping[str, Column], published: Mapping[str, Column], begin: int, end: int) -> Found:
    """A program's columns against what readers see of them: a change that was not reported is missing there."""
    found = []
    for name, column in own.items():
        seen = published.get(name, column[:0])[begin:end]
        # As bytes: NaN is NaN.
        size = (end - begin, column.dtype.itemsize)
        wrong = np.arange(begin, end)
        if seen.dtype == column.dtype and seen.size == end - begin:
            mine = np.ascontiguousarray(column[begin:end])
            differs = mine.view(np.uint8).reshape(size) != seen.view(np.uint8).reshape(size)
            wrong = np.flatnonzero(differs.any(axis=1)) + begin
        if wrong.size:
            detail = f"{wrong.size} entries of {name} are published otherwise"
            found.append(Violation("published", detail, tuple(wrong[:EVIDENCE].tolist())))
    return found, 0


def _compare_scalars(own: Mapping[str, float], published: Mapping[str, float]) -> Found:
    """A program's scalars against what readers see of them: one of them may divide every value."""
    found = []
    for name in sorted({*own, *published}):
        mine, seen = own.get(name), published.get(name)
        if mine != seen and not (mine != mine and seen != seen):  # NaN is NaN
            found.append(Violation("published", f"{name} is {mine}, and published as {seen}"))
    return found, 0


def _leaves(graph: Graph, array: PackedMemoryArray, mirror: Reader | None) -> _Check:
    """The leaves of one array. Keys move between leaves: a slice goes on from the last key, not the last leaf."""
    last_key: np.uint64 | None = None

    def resume() -> int:
        return 0 if last_key is None else leaf_after(array.view(), graph.n_vertices, last_key)

    def run(begin: int, end: int) -> Found:
        nonlocal last_key
        # Of the first leaf alone, too: in an array out of order the key must rise all the same, or we never end.
        before = [last_key_before(array.view(), leaf) for leaf in (begin + 1, end)]
        last_key = max((key for key in (*before, last_key) if key is not None), default=None)
        return audit_leaves(graph, array, mirror, begin, end)

    def work(begin: int, end: int) -> Vertices:
        return array.view().counts[begin:end].astype(np.uint32)

    return _Check(STORAGE, lambda: array.view().counts.size, run, work, resume)
