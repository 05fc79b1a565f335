"""What it takes to compute a program beside the stream: kernels, memory, and a copy of the graph of one epoch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...compute import registry
from ...compute.device import NoTwin, twin
from ...compute.engine import ProgramRun, Resolve
from ...compute.program import Program, ProgramError, Published
from ...gpma.host.snapshot import EdgeCopy
from ...gpma.index.vertex_index import VertexIndex
from ...gpma.team import BrokenOff
from ...partition.existence import Flags
from ...partition.graph import RowsLost
from ..errors import GraphtideError, RequestError, Unavailable
from ..memory import MemoryGuard
from ..priority import give_way
from ..records.asked import Unwanted, compiling
from ..records.topology import StorageState
from .follower import Follower, GraphCopy, Since
from .pipeline import Pipeline

if TYPE_CHECKING:
    from ...compute.device.program import DeviceProgram

log = logging.getLogger(__name__)

VERTEX_BYTES, ARC_BYTES = 128, 8
"""What a start takes at most besides the graph, for each vertex and each arc."""

READY_MAX = 4096
"""Of so many programs whose kernels are there it is kept in mind: clients choose parameters without end."""

LOOK_S = 0.1
"""So often who waits for a turn looks whether it is still wanted."""

Ready = Callable[[str, Mapping[str, Any], Unwanted], None]
"""Has the kernels of a program (kind, parameters), from the cache or compiled; raises ProgramError. The event says
that nobody wants them any more."""


class ReadyKernels:
    """A ``Ready`` that looks after each program once, whatever it starts from."""

    def __init__(self, prepare: Ready, specs: Iterable[Mapping[str, Any]]) -> None:
        """``specs``: what programs were made from whose kernels are there."""
        self._prepare = prepare
        self._preparing = threading.Lock()
        self._there = {_form(str(spec["name"]), spec) for spec in specs}

    def __call__(self, kind: str, given: Mapping[str, Any], given_up: Unwanted) -> None:
        form = _form(kind, given)
        if form in self._there:
            return
        with compiling(given_up), in_turn(self._preparing, given_up):
            if form not in self._there:
                self._prepare(kind, given, given_up)
                if len(self._there) >= READY_MAX:
                    self._there.clear()
                self._there.add(form)


def _form(kind: str, given: Mapping[str, Any]) -> str:
    """What kernels may depend on."""
    sources = {item.name for item in registry.program_class(kind).parameters if item.is_sources}
    chosen = {name: value for name, value in given.items() if name not in {*sources, "name"}}
    return json.dumps([kind, chosen], sort_keys=True, default=repr)


class GivenUp(Unavailable):
    """Nobody waits for the outcome any more."""


_NOBODY = "nobody waits for this any more"


@contextmanager
def in_turn(turn: threading.Lock | threading.Semaphore, given_up: Unwanted) -> Iterator[None]:
    """Have it for the time of the block; whoever is not wanted any more waits for it no longer.

    Raises:
        GivenUp: ``given_up`` was set.
    """
    while not turn.acquire(timeout=LOOK_S):
        still_wanted(given_up)
    try:
        yield
    finally:
        turn.release()


def still_wanted(given_up: Unwanted) -> None:
    """
    Raises:
        GivenUp: the event was set.
    """
    if given_up.is_set():
        raise GivenUp(_NOBODY)


@dataclass(frozen=True, slots=True)
class Taken:
    """A copy of the graph of one epoch. ``alive``: bool[n_vertices], which dense ids were vertices."""

    state: StorageState
    graph: GraphCopy
    alive: Flags


@dataclass(frozen=True, slots=True)
class RanThere:
    """A run on the device, and what it came to, on a graph of so many arcs. ``alive``: as ``Taken``."""

    run: ProgramRun
    published: Published
    state: StorageState
    n_arcs: int
    alive: Flags


class Beside:
    """Any thread but the engine's may call it."""

    def __init__(
        self,
        pipeline: Pipeline,
        index: VertexIndex,
        resolve: Resolve,
        memory: MemoryGuard,
        ready: Ready,
        threads: int,
        nice: int = 0,
        place: str = "auto",
    ) -> None:
        """``resolve``: dense vertices of external ids; raises ProgramError for what is none of this graph's kind.
        ``threads``: how many compute a program, at most; ``nice``: how far they, and their caller, give way."""
        self.pipeline = pipeline
        self.between = pipeline.between
        self.index = index
        self.resolve = resolve
        self.ready = ready
        self._memory = memory
        self._threads = threads
        self._nice = nice
        self.place = place
        """Where programs run: as ``compute.place``."""

    def made(self, kind: str, id: str | None, given: Mapping[str, Any]) -> Program:
        """A program, not computed.

        Raises:
            RequestError: there is no such kind, a parameter is wrong, or not for the graph's weights or ids; the
                detail names the parameter.
        """
        try:
            program = registry.make_program(kind, id, given, order=self.index)
            program.require_weights(self.pipeline.graph.weight_domain)
        except ProgramError as error:
            raise RequestError(str(error), {"parameter": error.parameter or "program"}) from error
        try:
            self.resolve(program.sources)
        except ProgramError as error:
            named = (item.name for item in program.parameters if item.is_sources and item.name in given)
            raise RequestError(str(error), {"parameter": next(named, "program")}) from error
        return program

    @contextmanager
    def follower(self, program: Program, given_up: Unwanted) -> Iterator[Follower]:
        """A graph of the program's own, for the time of the block, with the memory for it. The calling thread does
        nothing else any more.

        Raises:
            GivenUp: ``given_up`` was set, and the program was broken off between two of its passes or rounds.
            MemoryError: there is not enough; the message says what is in the way.
        """
        give_way(self._nice)
        with self._memory.promised(self.between.do(self._needed)):
            follower = Follower(self.pipeline.graph, program, self.resolve, self._threads)
            try:
                with given_up.stopping(follower.graph.team.break_off):
                    yield follower
            except BrokenOff:
                raise GivenUp(_NOBODY) from None
            finally:
                follower.close()

    @contextmanager
    def run_there(self, program: Program, given_up: Unwanted) -> Iterator[RanThere | None]:
        """A program that was run on the graph's device, between two epochs, for which updates waited; vertices
        keep their names to the end of the block. None: it has no twin, or the device did not do it.

        Raises:
            GivenUp: ``given_up`` was set before it began.
            Unavailable: the engine has ended.
            MemoryError: there is not enough for its results.
            RequestError: it failed.
        """
        graph, since = self.pipeline.graph, Since(follows=False)
        try:
            placed = twin(program, graph)
        except NoTwin:
            yield None
            return

        def run() -> RanThere | None:
            still_wanted(given_up)
            done = self.pipeline.run_there(cast("DeviceProgram", placed))
            if done is None:
                return None
            self.pipeline.follow(since)
            return RanThere(*done, StorageState.at(self.pipeline.position), graph.n_arcs, graph.alive.copy())

        with self._memory.promised(VERTEX_BYTES * graph.n_vertices):
            try:
                yield self._done(program.kind, run)
            finally:
                with suppress(Unavailable):
                    self.between.do(lambda: self.pipeline.unfollow(since))

    def _done(self, kind: str, run: Callable[[], RanThere | None]) -> RanThere | None:
        try:
            return self.between.do(run)
        except (GraphtideError, MemoryError, RowsLost):
            raise
        except Exception as error:
            log.exception("program %s failed", kind)
            raise RequestError(f"{kind} failed: {type(error).__name__}: {error}") from error

    @contextmanager
    def taken(self, since: Since, given_up: Unwanted) -> Iterator[Taken]:
        """The graph at the end of an epoch, copied while epochs go on; ``since`` notes what follows, to the end of
        the block.

        Raises:
            GivenUp: ``given_up`` was set.
            Unavailable: the engine has ended.
            MemoryError: there is not enough.
        """
        graph = self.pipeline.graph
        copy = self.between.do(graph.begin_copy)
        try:
            while copy.copy_piece():
                still_wanted(given_up)
                if copy.overfull:
                    self.between.do(copy.finish)
            state, n_vertices, alive = self.between.do(lambda: self._take(copy, since))
            dead = np.flatnonzero(~alive).astype(np.uint32)
            yield Taken(state, GraphCopy(copy.edges(), n_vertices, dead), alive)
        finally:
            with suppress(Unavailable):
                self.between.do(lambda: self._end(copy, since))

    def _take(self, copy: EdgeCopy, since: Since) -> tuple[StorageState, int, Flags]:
        """All of the epoch but its edges; by the engine's thread."""
        pipeline = self.pipeline
        pipeline.graph.end_copy(copy)
        pipeline.follow(since)
        return StorageState.at(pipeline.position), pipeline.graph.n_vertices, pipeline.graph.alive.copy()

    def _end(self, copy: EdgeCopy, since: Since) -> None:
        self.pipeline.graph.end_copy(copy)
        self.pipeline.unfollow(since)

    def _needed(self) -> int:
        """Bytes that a program takes beside the stream; by the engine's thread.

        Copied edges, once in pieces and once whole, with the changes that are kept meanwhile, are gone when the
        graph's own rows are there and the program begins.
        """
        graph = self.pipeline.graph
        arc = 12 if graph.weighted else 8
        copied = int(2.5 * arc) * graph.n_arcs
        return (
            copied
            + sum(graph.memory_bytes().values())
            + VERTEX_BYTES * graph.n_vertices
            + ARC_BYTES * graph.n_arcs
        )
