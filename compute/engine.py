"""Runs the vertex programs of an epoch on a few threads, one failing without harm to the others.

Where the graph has a device, programs run there that can (``device.twin``), one kind after another: each wants the
whole device. Refreshes of one kind may go on side by side (``Program.joins``).

The engine knows neither metrics nor sockets: what a run did comes back as a ``ProgramRun``. One thread calls
it; the programs themselves run on its pool, and their kernels release the interpreter lock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..gpma.edges import NO_VERTEX, Vertices
from ..gpma.team import BrokenOff
from ..gpma.threads import Workers
from ..partition.existence import living
from ..partition.graph import Graph, GraphChange, RowsLost
from .device import NoTwin, require_twin, twin
from .homes import Homes
from .program import ExternalId, NoRoom, Program, ProgramError, Published, Refresh, Violation, require_publishable
from .steps import Steps, together

if TYPE_CHECKING:
    from .device.program import DeviceProgram

log = logging.getLogger(__name__)

STORAGE = "storage"
"""The name under which ``Engine.audit`` reports the graph's own invariants."""

ROOM_TRIES = 3
"""For a program for which the device has no memory, rows leave so often before it goes on at the host."""

HANDED_OVER_S_MIN = 0.001
"""Refreshes that took less than this together stay on the thread of the longest one: handing them over costs half
of that in processor time, and does not end sooner."""

Resolve = Callable[[Sequence[ExternalId]], Vertices]
"""Dense vertices of external ids, ``NO_VERTEX`` where unknown."""

_Group = tuple[Program, ...]
_Work = Callable[..., "list[ProgramRun]"]

Place = Callable[[Program, Graph], Program]
"""The twin of a program, which runs on the graph's device; raises ``NoTwin`` for one that stays on the host."""


class Judge(Protocol):
    """Which programs move between processors: see ``Homes``, which is one."""

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> Collection[str]: ...

    def moved(self, id: str, seconds: float) -> None: ...

    def forget(self, id: str) -> None: ...


class ProgramRun(NamedTuple):
    """One run of one program: what it did, or why it failed. ``refresh`` is None when there was no run.

    ``seconds``: what it took; of runs that went on side by side, an equal part of what all of them took.
    ``on_device``: whether the graph's device did it; ``moved``: whether the other processor does from now on.
    """

    id: str
    refresh: Refresh | None
    seconds: float
    error: str | None
    on_device: bool = False
    moved: bool = False


class ProgramState(NamedTuple):
    """``state`` is ``"fresh"`` or ``"quarantined"``; ``reason`` says why, ``seconds`` is the last run's."""

    state: str
    reason: str | None = None
    seconds: float = 0.0


class Engine:
    """Keeps programs up to date on one graph.

    Every program must be started (``start``) or hold a state that belongs to the graph (``Program.restore``)
    before the first ``refresh``. A program that raises is quarantined: it keeps its last state, takes no part
    in later epochs, and comes back by ``restart``.
    """

    def __init__(
        self,
        graph: Graph,
        programs: Iterable[Program],
        resolve: Resolve,
        threads: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        place: Place = twin,
        judge: Judge | None = None,
    ) -> None:
        """``resolve`` is asked for a program's sources until all of them are known.

        ``threads``: how many programs run side by side; None: as many as the graph's team has threads. What one of
        them shares, any thread of that team may help with. ``place``: which programs run on the graph's device, if
        it has one; ``judge``: which of them go from there to the host, and back; None: whichever way epochs take
        less time, by measurement.
        """
        self._graph = graph
        self._resolve = resolve
        self._clock = clock
        self._place = place
        self._judge = Homes() if judge is None else judge
        self._programs: dict[str, Program] = {}
        # Why programs are quarantined, by id; and the seconds of the last run of any that ran.
        self._quarantined: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._unresolved: set[str] = set()
        self._starved: set[str] = set()
        self.make_room: Callable[[int], bool] | None = None
        """Has rows leave the graph's device, which has no memory for a program: where each row is on one side, the
        host could run it on a copy of all rows only. It is told how often that was tried for it, from 0 on, and
        says whether to try again. Called when all other programs have run. None: nobody does that."""
        self._threads = graph.crew.threads if threads is None else threads
        self._pool = Workers(self._threads, "program")
        for program in programs:
            self.add(program)

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs, quarantined ones included, in the order in which they were added.

        The twin of one that runs on the device stands for it, also after the device was lost.
        """
        return tuple(self._programs.values())

    @property
    def reads_host(self) -> bool:
        """Whether a refresh reads the rows of the host; most programs that are on the graph's device do not."""
        return self._graph.device is None or any(program.reads_host for program in self._fresh())

    def add(self, program: Program) -> Program:
        """Take a program in; ``start`` it before the next ``refresh``, unless it holds a state of this graph.

        Returns what stands for it among ``programs``.

        Raises:
            ProgramError: its id is taken, or the graph lacks what it needs; or it runs on the host only, which has
                not all rows.
        """
        self.require(program)
        placed = self._programs[program.id] = self._placed(program)
        if program.sources:
            self._unresolved.add(program.id)
        return placed

    def require(self, program: Program) -> None:
        """Check that a program can be taken in.

        Raises:
            ProgramError: as ``add``.
        """
        if program.id in self._programs or program.id == STORAGE:
            raise ProgramError(f"there already is a program with the id {program.id!r}")
        program.require_weights(self._graph.weight_domain)
        if self._graph.owned and self._graph.device is not None:
            try:
                require_twin(program)
            except NoTwin as error:
                raise ProgramError(
                    f"the host has not all rows, and {program.kind} runs there only: {error}"
                ) from error
        if program.needs_in_edges:
            try:
                self._graph.n_stored("in")
            except LookupError as error:
                raise ProgramError(f"{program.kind} needs in-edges: {error}") from error
            if program.needs_weights and not self._graph.in_weighted:
                raise ProgramError(f"{program.kind} needs in-edges with weights, which this graph does not keep")

    def make_ready(self, program: Program) -> None:
        """Have compiled what a program needs to run on the graph's device, if it is to run there, so that ``add``
        takes no time for it. Any thread may call; the program itself is used up.
        """
        if self._graph.device is not None:
            with suppress(NoTwin):  # ``add`` says so
                self._place(program, self._graph)

    def run_there(self, program: DeviceProgram) -> tuple[ProgramRun, Published] | None:
        """Run a program once, from scratch, on the graph's device; it is none of ours, and leaves the device then.

        Returns the run and a copy of what it came to; None: the device did not do it. The program is used up.

        Raises:
            RowsLost: the graph is of no use any more.
            Exception: the program failed.
        """
        self._graph.require_own_process()
        begun = self._clock()
        program.bind(self._bound(program))
        try:
            done = program.start_there(self._graph)
            if done is None:
                return None
            n = self._graph.n_vertices
            require_publishable(program, n, done.changed)
            columns = {name: column[:n].copy() for name, column in program.columns().items()}
            published = Published(columns, program.scalars(), n)
        finally:
            program.leave()
        return ProgramRun(program.id, done, self._clock() - begun, None, on_device=True), published

    def remove(self, id: str) -> None:
        """Keep a program up to date no more; harmless where there is none."""
        self._programs.pop(id, None)
        self._quarantined.pop(id, None)
        self._seconds.pop(id, None)
        self._judge.forget(id)
        self._unresolved.discard(id)

    def states(self) -> dict[str, ProgramState]:
        """The state of every program."""
        reasons = {id: self._quarantined.get(id) for id in self._programs}
        return {
            id: ProgramState("fresh" if reason is None else "quarantined", reason, self._seconds.get(id, 0.0))
            for id, reason in reasons.items()
        }

    def start(self, ids: Iterable[str] | None = None) -> list[ProgramRun]:
        """Compute these programs (None: all) from scratch on the graph as it is.

        Raises:
            KeyError: there is no such program.
            RowsLost: the graph is of no use any more.
            BrokenOff: by the graph's team, between two programs or within one; none of them is of use until it has
                been started again.
            RuntimeError: a process that was forked cannot run programs.
        """
        chosen = list(self._programs) if ids is None else list(ids)
        programs = [self._programs[id] for id in chosen]
        for id in chosen:
            self._quarantined.pop(id, None)
        done = self._run_all([(program,) for program in programs], self._start, (), self._threads)
        return [done[id] for id in chosen]

    def refresh(self, change: GraphChange, applied_s: float = 0.0) -> list[ProgramRun]:
        """Bring every program that is not quarantined up to date with a change that the graph has taken.

        ``applied_s``: what that took, which depends on where programs are: the rows of the host may follow while
        none reads them (``Graph.let_follow``).

        Raises:
            RowsLost: the graph is of no use any more.
            RuntimeError: a process that was forked cannot run programs.
        """
        if change.deleted_vertices.size:  # a source may be among them, and may come back
            self._unresolved.update(id for id, program in self._programs.items() if program.sources)
        programs = self._fresh()
        has_device = self._graph.device is not None
        if len(programs) == 1 and not has_device and self.make_room is None:
            # Of a small refresh, what it takes to arrange for several would be a fourth.
            self._graph.require_own_process()
            run = self._run(programs[0], programs[0].refresh, change)
            self._note(run)
            return [run]
        begun = self._clock()
        seconds = [self._seconds.get(program.id, 0.0) for program in programs]
        beside = sum(seconds) - max(seconds, default=0.0)
        threads = self._threads if beside >= HANDED_OVER_S_MIN else 1
        groups = self._joined(programs) if has_device else [(program,) for program in programs]
        done = self._run_all(groups, self._refresh, (change,), threads)
        runs = [done[program.id] for program in programs]
        if not has_device or self._graph.owned:  # the home is where the rows are
            return runs
        homes = {run.id: run.on_device for run in runs if run.error is None and self._programs[run.id].is_movable}
        leaving = self._judge.leaving(change.n_arcs, applied_s + self._clock() - begun, homes)
        return [self._rehoused(run) if run.id in leaving else run for run in runs] if leaving else runs

    def audit(self) -> dict[str, list[Violation]]:
        """Check every program that is not quarantined, and the storage, against the graph."""
        found = {STORAGE: [Violation(STORAGE, problem) for problem in self._graph.check()]}
        for program in self._fresh():
            found[program.id] = self._audited(program)
        return found

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    # -- inside -----------------------------------------------------------------------------------------

    def _fresh(self) -> list[Program]:
        """Those that are not quarantined."""
        if not self._quarantined:
            return list(self._programs.values())
        return [program for id, program in self._programs.items() if id not in self._quarantined]

    def _note(self, run: ProgramRun) -> None:
        """Keep how a run ended, and what it took."""
        self._seconds[run.id] = run.seconds
        if run.error is not None:
            self._quarantined[run.id] = run.error

    def _run_all(
        self, groups: Sequence[_Group], work: _Work, given: tuple[Any, ...], threads: int
    ) -> dict[str, ProgramRun]:
        """Run all, each by ``work(group, *given)``; the runs by the ids of their programs."""
        self._graph.require_own_process()
        waits = self.make_room is not None and self._graph.owned
        if waits:
            _wait_for_room(groups, True)
        if len(groups) == 1:  # of a small refresh, what it takes to arrange several would be a tenth
            done = {run.id: run for run in work(groups[0], *given)}
        else:
            done = self._run_in_order(groups, work, given, threads)
        if self._starved:
            for id in sorted(self._starved):
                done[id] = self._once_there_is_room(self._programs[id])
        if waits:  # nobody makes room for what they do between their runs
            _wait_for_room(groups, False)
        for run in done.values():
            self._note(run)
        return done

    def _once_there_is_room(self, program: Program) -> ProgramRun:
        """A run from scratch, after rows have left the device, which had no memory for the program."""
        assert self.make_room is not None
        begun = self._clock()
        run: ProgramRun | None = None
        tries = 0
        while program.id in self._starved:
            self._starved.remove(program.id)
            program.waits_for_room = tries < ROOM_TRIES and self.make_room(tries)
            (run,) = self._start((program,))
            tries += 1
        assert run is not None
        refresh = None if run.refresh is None else replace(run.refresh, started_over=True)
        return run._replace(refresh=refresh, seconds=self._clock() - begun)

    def _run_in_order(
        self, groups: Sequence[_Group], work: _Work, given: tuple[Any, ...], threads: int
    ) -> dict[str, ProgramRun]:
        """Run, longest first by the last measure."""
        has_device = self._graph.device is not None
        waiting = deque(sorted(groups, key=lambda group: -sum(self._seconds.get(each.id, 0.0) for each in group)))
        on_device = [group for group in waiting if has_device and group[0].on_device]
        for group in on_device[1:]:  # these follow the first of them
            waiting.remove(group)
        # The caller's thread is one of the threads: a lone program costs no handover.
        others = min(threads, len(waiting)) - 1
        done: dict[str, ProgramRun] = {}

        def drain() -> None:
            while waiting:
                try:
                    first = waiting.popleft()
                except IndexError:
                    break
                for group in on_device if first in on_device else (first,):
                    done.update((run.id, run) for run in work(group, *given))

        helpers = [self._pool.submit(drain) for _ in range(others)]
        drain()
        for helper in helpers:
            helper.result()
        return done

    def _joined(self, programs: Sequence[Program]) -> list[_Group]:
        """The programs, those together whose refreshes go on side by side."""
        groups: dict[Hashable, list[Program]] = {}
        for program in programs:
            joins = program.joins(self._graph)
            groups.setdefault((None, program.id) if joins is None else (joins, None), []).append(program)
        return [tuple(group) for group in groups.values()]

    def _start(self, group: _Group) -> list[ProgramRun]:
        self._graph.team.require_wanted()
        (program,) = group
        return [self._run(program, program.start)]

    def _refresh(self, group: _Group, change: GraphChange) -> list[ProgramRun]:
        if len(group) == 1:
            (program,) = group
            return [self._run(program, program.refresh, change)]
        begun = self._clock()
        outcomes = together([self._refreshing(program, change) for program in group])
        seconds = (self._clock() - begun) / len(group)
        return [
            self._failed(program, outcome, seconds)
            if isinstance(outcome, Exception)
            else self._done(program, outcome, seconds)
            for program, outcome in zip(group, outcomes, strict=True)
        ]

    def _refreshing(self, program: Program, change: GraphChange) -> Steps[Refresh]:
        self._bind(program)
        refresh = yield from program.refreshing(self._graph, change)
        program.require_publishable(refresh.changed, self._graph.n_vertices)
        return refresh

    def _run(self, program: Program, work: Callable[..., Refresh], *given: Any) -> ProgramRun:
        """A run of ``work(graph, *given)``."""
        begun = self._clock()
        try:
            if program.id in self._unresolved:
                self._bind(program)
            refresh = work(self._graph, *given)
            program.require_publishable(refresh.changed, self._graph.n_vertices)
        except Exception as error:
            return self._failed(program, error, self._clock() - begun)
        return self._done(program, refresh, self._clock() - begun)

    def _done(self, program: Program, refresh: Refresh, seconds: float) -> ProgramRun:
        on_device = self._graph.device is not None and program.on_device
        return ProgramRun(program.id, refresh, seconds, None, on_device)

    def _failed(self, program: Program, error: Exception, seconds: float) -> ProgramRun:
        if isinstance(error, RowsLost | BrokenOff):  # no fault of the program's
            raise error
        if isinstance(error, NoRoom):
            self._starved.add(program.id)
            return ProgramRun(program.id, None, seconds, str(error))
        log.error("program %s failed", program.id, exc_info=error)
        return ProgramRun(program.id, None, seconds, f"{type(error).__name__}: {error}")

    def _rehoused(self, run: ProgramRun) -> ProgramRun:
        """The run, after which its program moved to the other processor."""
        program = self._programs[run.id]
        begun = self._clock()
        try:
            program.move(self._graph)
        except RowsLost:
            raise
        except Exception as error:
            log.exception("program %s failed to move", run.id)
            reason = f"{type(error).__name__}: {error}"
            self._quarantined[run.id] = reason
            return ProgramRun(run.id, None, run.seconds, reason)
        seconds = self._clock() - begun
        self._judge.moved(run.id, seconds)
        log.info(
            "program %s moved to the %s in %.1f ms",
            run.id,
            "device" if program.on_device else "host",
            1e3 * seconds,
        )
        return run._replace(moved=program.on_device != run.on_device)

    def _placed(self, program: Program) -> Program:
        """The program, or its twin if it is to run on the device."""
        if self._graph.device is None:
            return program
        try:
            return self._place(program, self._graph)
        except NoTwin as error:
            if self._graph.owned:
                raise ProgramError(f"the host has not all rows, and must run {program.id}: {error}") from error
            log.info("program %s stays on the host: %s", program.id, error)
            return program

    def _bind(self, program: Program) -> None:
        """Tell the program its sources, until all are vertices of this epoch; again when vertices were deleted."""
        if program.id not in self._unresolved:
            return
        dense = self._bound(program)
        program.bind(dense)
        if not (dense == NO_VERTEX).any():
            self._unresolved.discard(program.id)

    def _bound(self, program: Program) -> Vertices:
        """The sources of a program; ``NO_VERTEX``: it is none of this epoch."""
        dense = np.array(self._resolve(program.sources), np.uint32)
        # The index may be ahead of the epoch; what it knows beyond is unknown here.
        dense[dense >= self._graph.n_vertices] = NO_VERTEX
        return living(dense, self._graph.alive)

    def _audited(self, program: Program) -> list[Violation]:
        try:
            self._bind(program)
            return program.audit(self._graph)
        except RowsLost:
            raise
        except Exception as error:
            log.exception("the audit of program %s failed", program.id)
            return [Violation("audit", f"the audit itself failed: {type(error).__name__}: {error}")]


def _wait_for_room(groups: Sequence[_Group], waits: bool) -> None:
    """Whether the programs wait for room on a device rather than go on at the host."""
    for group in groups:
        for program in group:
            program.waits_for_room = waits
