"""Making checkpoints while epochs go on; ``checkpoint.py`` says how one lies on disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...compute.program import Program
from ...gpma.copying import copy_column
from ...gpma.edges import EdgeList
from ...gpma.host.snapshot import EdgeCopy
from ...gpma.index.vertex_index import VertexIndex
from ...gpma.memory import Memory
from ...gpma.team import ALONE, Crew
from ...gpma.threads import start_thread
from ...ops.metrics import Metrics
from ...partition.graph import Graph, RowsLost
from ..errors import CheckpointError, NotWritten
from ..failpoints import point
from ..os_errors import why
from ..records.position import Position
from ..records.stream import DeadLetters, Offsets, Partition, offsets_to_wire
from .checkpoint import Array, Checkpoint, CheckpointStore
from .requested import Newest as Newest
from .requested import RequestedCheckpoints

log = logging.getLogger(__name__)

T = TypeVar("T")

SLOW_S = 30.0
"""A checkpoint that is waited for, at a stop above all, is told of after so long."""
ROOM = 1.125
"""Buffers are made so much larger than what they are for, since the graph may grow while edges are copied."""


class KeptWindow(Protocol):
    """What a checkpoint keeps of when edges expire, of the present epoch."""

    def facts(self) -> dict[str, Any]:
        """As JSON can say them."""
        ...

    def memory_bytes(self) -> int:
        """What it holds, which is about what its columns take."""
        ...

    def arrays(self) -> dict[str, Array]:
        """Columns, by names of their own."""
        ...


class KeptRows(Protocol):
    """What a checkpoint keeps of what keys of records stand for, of the present epoch."""

    def memory_bytes(self) -> int:
        """What it holds, which is more than its columns take."""
        ...

    def arrays(self) -> dict[str, Array]:
        """Columns, by names of their own."""
        ...


class Buffers:
    """Copies of named arrays, in memory that is kept from one checkpoint to the next.

    Fresh memory costs a page fault every 4 KiB, several times the copy itself: ``reserve`` pays them early, on
    a thread that nobody waits for.
    """

    def __init__(self, crew: Crew = ALONE, memory: Memory | None = None) -> None:
        """``crew``: who copies. ``memory``: who is asked before any is taken; None: the system's."""
        self._crew = crew
        self._asked = memory or Memory()
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._memory.values())

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Have memory for arrays of so many bytes, and a little more; give back what others used.

        Raises:
            MemoryError: there is not enough.
        """
        with self._lock:
            self._memory = {name: buffer for name, buffer in self._memory.items() if name in sizes}
            self._ensure(sizes)

    def copy(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Copy them all; the copies are good until the next call.

        Raises:
            MemoryError: there is not enough.
        """
        copies = {}
        with self._lock:
            self._ensure({name: array.nbytes for name, array in arrays.items()})
            for name, array in arrays.items():
                memory = self._memory[name][: array.nbytes]
                copy_column(memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8), self._crew)
                copies[name] = memory.view(array.dtype).reshape(array.shape)
        return copies

    def _ensure(self, sizes: Mapping[str, int]) -> None:
        """Have a buffer for each; those that are too small are given back first."""
        missing = {}
        for name, size in sizes.items():
            if name not in self._memory or self._memory[name].nbytes < size:
                missing[name] = int(size * ROOM)
                self._memory.pop(name, None)
        self._asked.require(sum(missing.values()))
        for name, size in missing.items():
            self._memory[name] = np.full(size, 0, np.uint8)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the engine adds when the edges are copied: all of the epoch but them; there must be ``n_arcs``."""

    checkpoint: Checkpoint
    offsets: dict[Partition, int]
    n_arcs: int


class _OfAnotherSource(Exception):
    """What was to be written is of the source before."""


@dataclass(slots=True)
class _Making:
    """A checkpoint in the making; ``taken``: its epoch is over, and the engine has no more to do with it.
    ``beginning``: the number of that of which it is."""

    edges: EdgeCopy
    begun: tuple[int, int]
    began_at: float
    beginning: int
    handover: SimpleQueue[_Taken | Exception] = field(default_factory=SimpleQueue)
    taken: bool = False
    stopped_seconds: float = 0.0


@dataclass(kw_only=True, eq=False)
class Checkpointer:
    """Makes one checkpoint at a time. The methods are for the engine's thread, between two epochs; but the first
    two are for that of ingest.

    1. When the interval is over, ``step`` begins: a thread copies the edges piece by piece, while epochs go on.
    2. After the first epoch that ends with all edges copied, ``step`` takes what else belongs to that epoch:
       program states, offsets, facts. This copy is all that the engine waits for.
    3. The thread lays the changes since the beginning over the edges, flushes the dead letters (a checkpoint
       never passes a bad record that is not safe elsewhere), and writes.

    One that fails is tried again after the interval; the one before it stays. So is one that finds no memory,
    which is asked for before any is taken; one line tells of all of those, until one is written. Where the newest
    one was taken away, another is due although nothing happened since.
    """

    graph: Graph
    index: VertexIndex
    programs: Callable[[], Sequence[Program]]
    """Those whose state belongs to the present epoch."""
    program_specs: Mapping[str, dict[str, Any]]
    position: Position
    identity: Mapping[str, Any]
    dead_letters: DeadLetters
    store: CheckpointStore
    metrics: Metrics
    interval_s: float
    on_checkpoint: Callable[[dict[Partition, int]], None]
    """Gets the offsets of each."""
    requested: RequestedCheckpoints
    """Those that are to be made before they are due."""
    has_beginning: bool = True
    """Where reading begins is known, and durable: before that a checkpoint would say that it begins nowhere."""
    source_state: Callable[[], bytes] = bytes
    """What the source has a checkpoint keep beside them."""
    newest: Newest | None = None
    """The checkpoint that the graph was made from, or one since."""
    facts: Callable[[], Mapping[str, Any]] = dict
    """What one of the present epoch is to say besides, as JSON can."""
    window: KeptWindow | None = None
    """The times of edges that expire."""
    keyed: KeptRows | None = None
    """What keys of records stand for."""

    def __post_init__(self) -> None:
        if self.newest is not None:
            self.requested.made(self.newest)
        self._buffers = Buffers(self.graph.crew, self.graph.memory)
        self._making: _Making | None = None
        self._thread: threading.Thread | None = None
        self._began_at = time.monotonic()
        self._written_epoch = self.position.epoch
        # Where epochs stand until something is read, and where reading really begins: a start from a checkpoint of
        # the empty graph goes on where that says.
        newest = {} if self.newest is None else self.newest.offsets
        self._begins: tuple[Offsets, Offsets] = dict(self.position.offsets), dict(newest)
        self._beginning = 0
        self._write_lock = threading.Lock()  # one is written at a time, and none of a beginning before
        self._failure = ""
        self._left_out: set[str] = set()  # programs whose states could not be had
        self._is_put_off = False
        self._closing = False

    def memory_bytes(self) -> int:
        """Bytes that are kept from checkpoint to checkpoint."""
        return self._buffers.nbytes

    @property
    def writing(self) -> bool:
        """What belongs to an epoch before is being written: of vertices alive then nothing may change."""
        return self._making is not None and self._making.taken

    def begin_anew(self) -> None:
        """Where reading begins is not known any more, for the thread that is about to find out: the source is
        another one. What is in the making would say of the offsets of the one before that they are of this one, or
        stand behind its beginning: it is not written, unless it is by now.
        """
        self.has_beginning = False  # first: ``step`` looks at it last
        with self._write_lock:
            self._beginning += 1

    def write_beginning(self, offsets: Offsets) -> None:
        """Write the checkpoint of the empty graph at these offsets, for the thread that will read from them.

        Where reading begins may depend on when that is decided (``source.start``). From here on, no restart
        decides it anew, and what comes after these offsets cannot be passed over.

        Raises:
            OSError: it could not be written.
        """
        incarnation, number = self.position.incarnation, 0
        if self.newest is not None and self.newest.epoch[0] == incarnation:
            number = self.newest.epoch[1]  # of an empty graph, too, and of another source: in its place
        taken = self._taken((incarnation, number), offsets, programs=(), states={})
        weights = np.empty(0, np.float32) if self.graph.weighted else None
        self._write(taken, [EdgeList(np.empty(0, np.uint64), weights)], self._beginning)
        self._begins = dict(self.position.offsets), dict(offsets)
        self.has_beginning = True

    def step(self) -> None:
        """Begin a checkpoint if one is due, or asked for; go on with the one in the making."""
        self.go_on()
        beginning = self._beginning
        if not self.has_beginning:
            return
        if self.requested.wants(self.position.epoch):
            self._make_at_once(beginning)
        elif self._making is None and (self._due() or self._asked_for()):
            self._begin(beginning)

    def go_on(self) -> None:
        """Go on with the one in the making, and begin none; for whoever cannot wait for the end of an epoch."""
        if self._thread is not None and not self._thread.is_alive():
            self._end()
        if self._making is not None:
            self._take_if_copied(self._making)

    def close(self) -> None:
        """Write a last checkpoint if anything happened since the newest one, and wait for it.

        Raises:
            NotWritten: it could not be written.
        """
        self._closing = True
        self._complete()
        if not self.has_beginning:
            return
        if self.position.epoch != self._written_epoch or self._is_gone():
            self._begin(self._beginning)
            self._complete()
        if self._is_gone():
            raise NotWritten(
                f"the last checkpoint, of epoch {self.position.epoch}, is missing, and {self._left()}: "
                f"{self._failure}"
            )
        if self.position.epoch != self._written_epoch:
            raise NotWritten(
                f"the last checkpoint, of epoch {self.position.epoch}, is missing: {self._failure}. The next "
                f"start replays what came after epoch {self._written_epoch}"
            )

    # -- the engine's thread ------------------------------------------------------------------------------

    def _asked_for(self) -> bool:
        return self.requested.wants_newer(self.position.epoch)

    def _make_at_once(self, beginning: int) -> None:
        """Make one of this very epoch, for which the stream waits until edges and states are copied."""
        if self._making is not None and self._making.taken:
            self._complete()  # of an epoch before
        if self._making is None:
            self._begin(beginning)
        if self._making is not None:
            self._take_if_copied(self._making, at_once=True)

    def _due(self) -> bool:
        elapsed = time.monotonic() - self._began_at
        return elapsed >= self.interval_s and (self.position.epoch != self._written_epoch or self._is_gone())

    def _is_gone(self) -> bool:
        """The newest checkpoint was taken away."""
        return self.newest is not None and not self.store.has(self.newest.epoch)

    def _begin(self, beginning: int) -> None:
        self._began_at = time.monotonic()
        try:
            sizes = self._of_programs(lambda program: program.state_sizes())[1]  # failures are told below
            copy = self.graph.begin_copy()
        except MemoryError as error:  # for states, or for rows that a device has until now
            self._report_failure(self.position.epoch, error)
            return
        making = _Making(copy, self.position.epoch, self._began_at, beginning)
        making.stopped_seconds = time.monotonic() - self._began_at
        self._making = making
        self._thread = threading.Thread(target=self._make, args=(making, sizes), name="checkpoint", daemon=True)
        try:
            start_thread(self._thread)
        except RuntimeError as error:  # the system grants no thread now
            self._report_failure(making.begun, error)
            self._end()
        point("checkpoint.begun")

    def _take_if_copied(self, making: _Making, *, at_once: bool = False) -> None:
        """``at_once``: copy what is left of the edges here and now, as is done when too much changes meanwhile."""
        if making.taken:
            return
        started = time.monotonic()
        try:
            if at_once or making.edges.overfull:
                making.edges.finish()
            if not making.edges.through:
                return
            programs, arrays = self._of_programs(_state_of, told=self._tell_left_out)
            states = self._buffers.copy(arrays)
            position = self.position
            self.requested.taken(position.epoch)
            before, beginning = self._begins
            offsets = beginning if position.offsets == before else position.offsets
            making.handover.put(self._taken(position.epoch, offsets, programs, states))
        except MemoryError as error:  # the stream goes on without it
            making.handover.put(error)
        making.taken = True
        self.graph.end_copy(making.edges)
        point("checkpoint.copied")
        making.stopped_seconds += time.monotonic() - started
        self.metrics.stage("checkpoint", making.stopped_seconds)
        self.metrics.checkpoint_copied(time.monotonic() - making.began_at)

    def _complete(self) -> None:
        if self._making is not None and self._thread is not None:
            self._take_if_copied(self._making, at_once=True)
            self._thread.join(SLOW_S)
            if self._thread.is_alive():
                log.warning(
                    "all waits for the checkpoint of epoch %s, which has been written for %g s: %r is slow, or "
                    "does not answer",
                    *(self._making.begun, SLOW_S, str(self.store.path)),
                )
                self._thread.join()
            self._end()

    def _end(self) -> None:
        """The thread is through, or failed before the edges were copied."""
        if self._making is not None:
            self.graph.end_copy(self._making.edges)
        self._making = self._thread = None

    def _of_programs(
        self,
        ask: Callable[[Program], Mapping[str, T]],
        told: Callable[[Mapping[str, Exception]], None] = lambda failed: None,
    ) -> tuple[list[Program], dict[str, T]]:
        """What each program says of its arrays, by their names in a checkpoint, and which of them do: one that
        fails to is left out, and computed from scratch by the next start. ``told``: whose fail, and why.

        Raises:
            MemoryError: there is not enough.
            RowsLost: the device is lost, and rows with it.
        """
        do, found, failed = list[Program](), dict[str, T](), dict[str, Exception]()
        for program in self.programs():
            try:
                of_program = ask(program)
            except (MemoryError, RowsLost):
                raise
            except Exception as error:  # whatever a user's program does wrong harms no other
                failed[program.id] = error
                continue
            do.append(program)
            found |= {_array_name(program, name): item for name, item in of_program.items()}
        told(failed)
        return do, found

    def _tell_left_out(self, failed: Mapping[str, Exception]) -> None:
        """Once of each program, and again of one that could be saved meanwhile, or is another one by now."""
        for id in failed.keys() - self._left_out:
            log.error(
                "the state of program %s cannot be saved: the next start computes it from scratch",
                id,
                exc_info=failed[id],
            )
        self._left_out = set(failed)

    def _taken(
        self, epoch: tuple[int, int], offsets: Offsets, programs: Sequence[Program], states: Mapping[str, Array]
    ) -> _Taken:
        """All of an epoch but its edges; ``states``: of these programs, by the names of their arrays."""
        arrays = {**states, "graph/dead": np.flatnonzero(~self.graph.alive).astype(np.uint32)}
        for name, array in self.index.state(self.graph.n_vertices).items():
            arrays[f"index/{name}"] = array
        arrays["source/state"] = np.frombuffer(self.source_state(), np.uint8)
        facts = {**self.facts(), "n_vertices": self.graph.n_vertices, "updates": self.position.updates}
        if self.window is not None:
            facts["window"] = self.window.facts()
            self.graph.memory.require(self.window.memory_bytes())  # about what its columns take
            arrays |= {f"window/{name}": array for name, array in self.window.arrays().items()}
        if self.keyed is not None:
            self.graph.memory.require(self.keyed.memory_bytes())
            arrays |= {f"keyed/{name}": array for name, array in self.keyed.arrays().items()}
        checkpoint = Checkpoint(
            epoch=epoch,
            offsets=offsets_to_wire(offsets),
            identity=dict(self.identity),
            programs={program.id: self.program_specs[program.id] for program in programs},
            facts=facts,
            arrays=arrays,
        )
        return _Taken(checkpoint, dict(offsets), self.graph.n_arcs)

    # -- the thread of a checkpoint -----------------------------------------------------------------------

    def _make(self, making: _Making, sizes: Mapping[str, int]) -> None:
        epoch = making.begun
        try:
            self._buffers.reserve(sizes)
            making.edges.finish()
            taken = making.handover.get()
            if isinstance(taken, Exception):
                raise taken
            epoch = taken.checkpoint.epoch
            self._write(taken, making.edges.edges(), making.beginning)
        except _OfAnotherSource:
            log.info("the checkpoint of epoch %s is not written: the source is another one by now", epoch)
            self.requested.failed("the source is another one by now")
        except Exception as error:
            self._report_failure(epoch, error)

    def _report_failure(self, epoch: tuple[int, int], error: Exception) -> None:
        self._failure = f"checkpoint.path = {str(self.store.path)!r}: {_said(error)}"
        if not isinstance(error, MemoryError):
            log.error(
                "the checkpoint of epoch %s failed, and %s: %s%s",
                *(epoch, self._left(), self._failure),
                "" if self._closing else f"; it is tried again in {self.interval_s:g} s",
                exc_info=None if isinstance(error, OSError) else error,
            )
        elif not self._is_put_off:
            log.error(
                "the checkpoint of epoch %s is put off, and %s: %s%s",
                *(epoch, self._left(), self._failure),
                "" if self._closing else f"; tried again every {self.interval_s:g} s",
            )
        self._is_put_off = isinstance(error, MemoryError)
        self.metrics.checkpoint_failed(type(error).__name__)
        self.requested.failed(self._failure)

    def _left(self) -> str:
        """What a restart would go on from."""
        if self.newest is None:
            return "there is none before it"
        if self.store.has(self.newest.epoch):
            return "the one before it stays"
        names = self.store.names()
        if not names:
            return "there is none to go on from, since those before it were taken away"
        return f"the one before it was taken away; a restart goes on from {names[0]}"

    def _write(self, taken: _Taken, edges: Sequence[EdgeList], beginning: int) -> None:
        with self._write_lock:
            if beginning != self._beginning:
                raise _OfAnotherSource
            self._write_alone(taken, edges)

    def _write_alone(self, taken: _Taken, edges: Sequence[EdgeList]) -> None:
        started = time.monotonic()
        copied = sum(map(len, edges))
        if copied != taken.n_arcs:
            raise CheckpointError(f"{copied} edges were copied of {taken.n_arcs}: this must never happen")
        columns: dict[str, list[Array]] = {"graph/keys": [piece.keys for piece in edges]}
        if self.graph.weighted:
            columns["graph/weights"] = [piece.weights for piece in edges if piece.weights is not None]
        self.dead_letters.flush()
        size = self.store.write(taken.checkpoint, columns)
        self._written_epoch, self._is_put_off = taken.checkpoint.epoch, False
        self.newest = Newest(taken.checkpoint.epoch, taken.offsets)
        self.requested.made(self.newest)
        self.on_checkpoint(taken.offsets)
        self.metrics.checkpoint(seconds=time.monotonic() - started, size_bytes=size)


def _state_of(program: Program) -> Mapping[str, Array]:
    """
    Raises:
        TypeError: something of it is no array that a file can hold.
        Exception: a mistake of the program's own.
    """
    state = program.state()
    for name, array in state.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"{name} is no array of plain values")
    return state


def _array_name(program: Program, name: str) -> str:
    return f"program/{program.id}/{name}"


def _said(error: Exception) -> str:
    """What went wrong, in a few words, and with what file."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error})" if str(error) else "out of memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {why(error)}" if error.filename else why(error)
    return str(error) or type(error).__name__
