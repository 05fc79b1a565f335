"""What the query server holds while it answers: results, vertex index, engine, limits; and who waits for an epoch.

``connection`` brings requests in, ``methods`` answer them with what is here.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgpack
import numpy.typing as npt

from ...compute.program import Program
from ...gpma.edges import NO_VERTEX, Vertices
from ...gpma.index.id_table import let_go
from ...gpma.index.ids import IdColumn
from ...gpma.index.vertex_index import VertexIndexReader
from ..client.wire import LATENCY_BUCKETS_SECONDS, encode_stamp
from ..errors import LimitExceeded, RequestError, TimedOut, Unavailable
from ..records.stream import Partition, offsets_from_wire
from . import shared_memory
from .admission import Admission
from .asker import Asker, OpenConnection
from .change_log import ChangeLog
from .engine_calls import EngineCalls
from .lane import Answer as LaneAnswer
from .lane import Question
from .results import MemoryLayout, Overtaken, Packed, Pieces, ResultsReader, Snapshot, at_once
from .shared_memory import CONTROL_BYTES_MAX, SharedArray
from .subscriptions import Subscriptions
from .turns import Shares, Turns

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
CACHED_ANSWERS_MAX = 64
AHEAD_MAX = 4
"""So many answers of an epoch are computed before anybody asks."""
AHEAD_UNASKED = 2
"""And each for so many epochs in a row though nobody asked for it: where epochs come about as fast as those who
ask, many have none."""
TICK_SECONDS = 1.0
UNREAD_AHEAD_BYTES = 1 << 19
"""Far less than what makes a connection one that leaves much unread."""
VERTICES_INLINE_MAX = 1024
"""So many vertices are looked up and read on the event loop; more go to a thread."""
SCANNED_INLINE_MAX = 1 << 17
"""Of so many vertices all values are looked at on the event loop, in pieces; others have their turn in between."""
SCAN_CHUNK = 1 << 20
"""Threads look at so many at a time where they look at all."""
BYTES_PER_VERTEX = {"int": 64, "string": 256}
"""Of an answer in the making: dense ids, values, and their copies on the way to the socket."""
ALL_VERTICES = int(NO_VERTEX)
NAMED_MAX = 10
"""So many partitions or files does an error name."""
ENGINE_PATIENCE_S = 5.0
"""So long may the engine take to say whether waiting is of any use, also where nobody wants to wait."""
STRANGE_MAX = 4096
"""So many that are in no epoch does the engine look up for one request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the stamp (epoch and offsets, packed) of the state that it was read from.

    ``shared``: more entries of the answer, which need not be unpacked to be sent.
    """

    stamp: bytes
    answer: Mapping[str, Any]
    shared: Packed | None = None

    def whole(self) -> Mapping[str, Any]:
        """All entries of the answer."""
        return self.answer if self.shared is None else {**self.shared.whole(), **self.answer}


@dataclass(slots=True, eq=False)
class Soon:
    """A reply to be made as soon as the lane answers, without waiting for a task's turn.

    ``at_once``: makes it of that answer; ``later``: makes it where the lane does not answer, or ``at_once`` raises
    ``Unavailable``. Who awaits this waits for either.
    """

    question: Question
    at_once: Callable[[LaneAnswer], Reply]
    later: Callable[[], Coroutine[Any, Any, Reply]]

    def __await__(self) -> Generator[Any, None, Reply]:
        return self.later().__await__()


class Latencies:
    """Counts requests by method, by how long they took and by error code."""

    def __init__(self, methods: Container[str]) -> None:
        self._known = methods
        self._methods: dict[str, tuple[list[int], list[float], dict[str, int]]] = {}

    def record(self, method: str, seconds: float, error: str | None) -> None:
        """One request was answered; methods that do not exist share one entry."""
        name = method if method in self._known else "other"
        entry = self._methods.get(name)
        if entry is None:
            entry = self._methods[name] = ([0] * (len(LATENCY_BUCKETS_SECONDS) + 1), [0.0], {})
        counts, total, errors = entry
        counts[bisect.bisect_left(LATENCY_BUCKETS_SECONDS, seconds)] += 1
        total[0] += seconds
        if error is not None:
            errors[error] = errors.get(error, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        """Everything since the start: method -> [counts, sum of seconds, errors]."""
        return {name: [counts, total[0], errors] for name, (counts, total, errors) in self._methods.items()}


@dataclass(slots=True)
class _Waiter:
    missing: dict[Partition, int]
    future: asyncio.Future[None]
    task: asyncio.Task[Any] | None


@dataclass(slots=True)
class _Cached:
    """An answer in the making, or made; ``askers``: how many it was for; ``unasked``: of so many epochs in a row
    before it was for nobody; ``again``: what makes it, where the next epoch's is to be made ahead."""

    epoch: tuple[int, int]
    future: asyncio.Future[Reply]
    askers: int = 0
    unasked: int = 0
    again: Callable[[], Coroutine[Any, Any, Reply]] | None = None

    @property
    def has_failed(self) -> bool:
        done = self.future.done()
        return done and (self.future.cancelled() or self.future.exception() is not None)


class Serving:
    """What handlers work with: results, vertex index, engine, limits; and what waits for an epoch."""

    def __init__(
        self,
        *,
        control: socket.socket,
        settings: Mapping[str, Any],
        kinds: Mapping[str, type[Program]],
        methods: Container[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``kinds``: the programs there are; ``methods``: the names of all requests, to be counted by."""
        # The daemon has checked them: this process starts sooner without the library that does.
        self.limits = cast("LimitsConfig", SimpleNamespace(**settings["limits"]))
        self.admission = Admission(settings["access"], self.limits, loop)
        self.graph: Mapping[str, Any] = settings["graph"]
        self.id_kind: Literal["int", "string"] = settings["graph"]["vertex_ids"]
        self.version: str = settings["version"]
        self._restarts: int = settings["restarts"]
        self.engine = EngineCalls(self.limits.engine_calls_max, self.catch_up)
        self.latencies = Latencies(methods)
        self.http_requests = 0
        """Of all requests those that came over HTTP."""
        self.connections: set[OpenConnection] = set()
        # Memory of all connections: for long requests until they are answered; for long answers from when they are
        # begun until the client has them; and half of it for what clients do not read.
        self.receiving = Turns(self.limits.memory_bytes_max // 4)
        self.making = Turns(self.limits.memory_bytes_max // 4)
        self._unread_bytes_max = self.limits.memory_bytes_max // 2
        self.stopped = asyncio.Event()
        self.has_memory = asyncio.Event()
        self._kinds = kinds
        self._loop = loop
        self._control = control
        self._draining = threading.Lock()
        self._reader: ResultsReader | None = None
        self._index: VertexIndexReader | None = None
        self._index_arrays: dict[int, npt.NDArray[Any]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="answers")
        self._threads = Turns(THREADS)
        self._scans = Turns(1)
        self._waiting = Shares(self.limits.waiting_max, self.limits.connections_max)
        self._waiters: list[_Waiter] = []
        self.subscriptions = Subscriptions(self.limits)
        self._computing: set[asyncio.Future[Any]] = set()
        self._graces: set[asyncio.Task[None]] = set()
        self._exactly: list[tuple[int, int]] = []
        self._asked_aside = defaultdict(lambda: Turns(1), compute=Turns(self.limits.ad_hoc_max))
        self._asking: set[asyncio.Task[Any] | None] = set()
        self._cache: dict[Any, _Cached] = {}
        self._stamp: tuple[Snapshot, bytes] | None = None
        self._indexed: Snapshot | None = None  # the last epoch that the index was found to cover: it only grows
        self._offsets: tuple[Snapshot, dict[Partition, int]] | None = None

    # -- memory -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take every message that the engine has sent; any thread may call this."""
        with self._draining:
            while self._receive(self._loop.call_soon_threadsafe):
                pass

    def hear(self) -> None:
        """Take one message that the engine has sent, for the event loop: it calls again while there are more, and
        to find out that there are none takes a third of the whole."""
        with self._draining:
            self._receive(self._loop.call_soon)

    def _receive(self, soon: Callable[..., object]) -> bool:
        """Take a message; false: there is none, or will be no more. ``soon``: has the loop call something."""
        try:
            message, fds = shared_memory.receive_with_fds(self._control, CONTROL_BYTES_MAX)
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # what was sent is lost: the next server gets all of it
            message, fds = b"", []
        if not message:
            soon(self.stopped.set)
            return False
        try:
            self._take(msgpack.unpackb(message), fds, soon)
        except (OSError, ValueError, MemoryError):
            log.exception("memory that was sent cannot be used; another server takes over")
            soon(self.stopped.set)
            return False
        return True

    def _take(self, message: Mapping[str, Any], fds: list[int], soon: Callable[..., object]) -> None:
        match message["kind"]:
            case "results":
                self._reader = ResultsReader(MemoryLayout.from_wire(message["layout"]), fds[0])
            case "changes":
                self.subscriptions.take_log(ChangeLog(SharedArray(fds[0], 0, message["bytes"], "|u1")))
            case "index":
                self._take_index(message["arrays"], fds)
            case "grace":  # after the index, which is in place now
                soon(self.begin_grace, message["token"])
            case "lane":
                soon(self.engine.take_lane, fds)
            case "access":
                soon(self.renew_access, message["access"])
        if self._reader is not None and self._index is not None:
            soon(self._published)

    def _take_index(self, places: Sequence[tuple[str, int, int, str]], fds: list[int]) -> None:
        """Map the arrays of another generation; those that it shares with the one before stay mapped."""
        before = self._index_arrays
        arrays, mapped = {}, {}
        for (name, byte_offset, n_items, dtype), fd in zip(places, fds, strict=True):
            inode = os.fstat(fd).st_ino
            if inode in before:
                os.close(fd)
                array = before[inode]
            else:
                array = shared_memory.attach(SharedArray(fd, byte_offset, n_items, dtype))
            arrays[name] = mapped[inode] = array
        replaced: list[object] = [before, self._index]
        self._index, self._index_arrays = VertexIndexReader(self.id_kind, arrays), mapped
        del before, array
        let_go(replaced)

    def renew_access(self, access: Mapping[str, Any]) -> None:
        """Other tokens, and other files for TLS; whoever came with a token that is none any more is turned out."""
        try:
            self.admission.renew(access)
        except OSError as error:
            log.error("the files for TLS cannot be used; those of before still are: %s", error)
        for connection in list(self.connections):
            connection.check_token()

    def begin_grace(self, token: int) -> None:
        """Tell the engine when all that is under way now has ended.

        Until then it gives no dense id to another vertex, since requests keep those that they looked up or read.
        Requests that wait for an epoch have looked nothing up yet.
        """
        waiting = self._holding_nothing()
        working: set[asyncio.Future[Any]] = {*self._computing}
        for connection in self.connections:
            working |= connection.tasks - waiting
        grace = self._loop.create_task(self._grace(token, working))
        self._graces.add(grace)
        grace.add_done_callback(self._graces.discard)

    async def _grace(self, token: int, working: set[asyncio.Future[Any]]) -> None:
        # Whoever waits for an epoch by now holds no dense ids any more.
        while working := {task for task in working if not task.done()} - self._holding_nothing():
            await asyncio.wait(working, timeout=TICK_SECONDS)
        while True:
            try:
                self._control.send(msgpack.packb({"kind": "grace", "token": token}))
            except BlockingIOError:
                await asyncio.sleep(TICK_SECONDS)
            except OSError:  # the engine is gone
                return
            else:
                return

    def _holding_nothing(self) -> set[asyncio.Task[Any] | None]:
        """Requests that wait and hold no dense ids."""
        return {waiter.task for waiter in self._waiters} | self._asking

    async def ask_aside(
        self, asker: Asker, method: str, params: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        """The engine's answer to a question that takes a while; connections take turns.

        Nobody may hold dense ids meanwhile, for they may change hands. A long request waits only as long as nobody
        else needs its memory.

        Raises:
            Unavailable, TimedOut: as ``EngineCalls.call_aside``; or others need the memory.
        """
        task = asyncio.current_task()
        self._asking.add(task)
        try:
            asked = self._loop.create_task(self._ask_in_turn(asker, method, params, deadline))
            try:
                if asker.receiving_bytes:
                    await self._unless_short(asked)
                return await asked
            finally:
                asked.cancel()
        finally:
            self._asking.discard(task)

    async def _ask_in_turn(
        self, asker: Asker, method: str, params: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        turns = self._asked_aside[method]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await turns.take(asker.connection, 1)
        except TimeoutError:
            raise TimedOut("others were run in the meantime, and this did not get its turn") from None
        try:
            return await self.engine.call_aside(asker, method, params, deadline)
        finally:
            turns.give_back(1)

    def catch_up(self, index_generation: int) -> None:
        """Make sure of the vertex index: its arrays were sent before anyone could speak of them."""
        if self._index is None or self._index.generation < index_generation:
            self.drain()
            if self._index is None or self._index.generation < index_generation:
                raise Unavailable("the vertex index is being replaced")

    def read(self, use: Callable[[Snapshot], T]) -> T:
        """``ResultsReader.read``, with a vertex index that covers the epoch."""
        return self._results().read(self._with_index(use))

    def _results(self) -> ResultsReader:
        if self._reader is None:
            raise Unavailable("nothing was published yet")
        return self._reader

    def _with_index(self, use: Callable[[Snapshot], T]) -> Callable[[Snapshot], T]:
        def with_index(snapshot: Snapshot) -> T:
            if snapshot is not self._indexed:
                self.catch_up(snapshot.index_generation)
                self._indexed = snapshot
            return use(snapshot)

        return with_index

    def snapshot(self) -> Snapshot:
        """The newest epoch's meta data; of its columns nothing may be read."""
        return self.read(lambda snapshot: snapshot)

    def lookup(self, ids: IdColumn, n_vertices: int) -> Vertices:
        """Dense vertices, ``NO_VERTEX`` where unknown or not below ``n_vertices``."""
        assert self._index is not None
        return self._index.lookup(ids, n_vertices)

    def lookup_in(self, snapshot: Snapshot, ids: IdColumn) -> Vertices:
        """Dense vertices, ``NO_VERTEX`` for what is no vertex in that epoch; only within ``read``."""
        return snapshot.known(self.lookup(ids, snapshot.n_vertices))

    def lookup_few(self, ids: IdColumn) -> Vertices:
        """Dense vertices of every indexed id, those of the newest epoch at least, for questions to the storage."""
        self.snapshot()  # with an index that covers it
        return self.lookup(ids, ALL_VERTICES)

    async def lookup_anywhere(self, asker: Asker, ids: IdColumn) -> Vertices:
        """As ``lookup_few``, however many they are."""
        if len(ids) <= VERTICES_INLINE_MAX:
            return self.lookup_few(ids)
        self.snapshot()
        return await self.in_thread(asker, self.lookup, ids, ALL_VERTICES)

    def external(self, dense: Vertices) -> IdColumn:
        """External ids of dense vertices."""
        assert self._index is not None
        return self._index.external(dense)

    def program_class(self, kind: str) -> type[Program]:
        return self._kinds[kind]

    # -- epochs -------------------------------------------------------------------------------------------

    def stamp(self, snapshot: Snapshot) -> bytes:
        """Epoch and offsets of a snapshot, packed once."""
        known = self._stamp
        if known is None or known[0] is not snapshot:
            known = self._stamp = (snapshot, encode_stamp(snapshot.epoch, snapshot.offsets))
        return known[1]

    def _reached(self) -> dict[Partition, int]:
        snapshot = self.snapshot()
        known = self._offsets
        if known is None or known[0] is not snapshot:
            known = self._offsets = (snapshot, offsets_from_wire(snapshot.offsets))
        return known[1]

    def covers(self, wanted: Mapping[Partition, int]) -> bool:
        """True when the newest epoch reflects everything before these offsets."""
        reached = self._reached()
        return all(reached.get(partition, 0) >= offset for partition, offset in wanted.items())

    async def covered(self, asker: Asker, wanted: Mapping[Partition, int], deadline: float) -> None:
        """Wait until an epoch covers these offsets. Whoever waits holds no dense ids: they may change hands.

        A long request does so only as long as nobody else needs its memory.

        Raises:
            RequestError: they name what is not read.
            TimedOut: none did; the message says what is behind.
            Unavailable: too many requests wait, and too many of this connection; or others need the memory.
        """
        if self.covers(wanted):
            return
        wanted = await self._expected(asker, wanted, deadline)
        if self.covers(wanted):
            return
        if not self._waiting.take(asker.connection):
            raise Unavailable(
                f"too many requests wait for an epoch, {self._waiting.own} or more of this connection",
                {"waiting_max": self.limits.waiting_max},
            )
        waiter = _Waiter(dict(wanted), self._loop.create_future(), asyncio.current_task())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if asker.receiving_bytes:
                    await self._unless_short(waiter.future)
                await waiter.future
        except TimeoutError:
            raise self._behind(wanted) from None
        finally:
            self._waiting.give_back(asker.connection)
            self._waiters.remove(waiter)

    async def _expected(
        self, asker: Asker, wanted: Mapping[Partition, int], deadline: float
    ) -> dict[Partition, int]:
        """What is not covered yet of ``wanted``; the engine knows of what no epoch names, retired files for one.

        Raises:
            RequestError: some of it is not read at all.
            LimitExceeded: too much of it is in no epoch.
        """
        reached = self._reached()
        missing = {partition: offset for partition, offset in wanted.items() if offset > reached.get(partition, 0)}
        strange = {partition: offset for partition, offset in missing.items() if partition not in reached}
        if len(strange) > STRANGE_MAX:
            raise LimitExceeded(
                f"min_offsets names {len(strange)} places that no epoch does; at most {STRANGE_MAX}",
                {"parameter": "min_offsets"},
            )
        if strange:
            patience = max(deadline, time.monotonic() + ENGINE_PATIENCE_S)
            question = [[*partition, offset] for partition, offset in strange.items()]
            answer = await self.engine.call(asker, "standing", {"wanted": question}, len(question), patience)
            standing = dict(zip(strange, answer["standing"], strict=True))
            unknown = [str(partition) for partition in strange if standing[partition] == "unknown"]
            if unknown:
                raise RequestError(
                    f"min_offsets names what is not read: {', '.join(unknown[:NAMED_MAX])}",
                    {"unknown": unknown[:NAMED_MAX], "parameter": "min_offsets"},
                )
            missing = {p: offset for p, offset in missing.items() if standing.get(p) != "covered"}
        return missing

    def _behind(self, wanted: Mapping[Partition, int]) -> TimedOut:
        """That time ran out, and what was not reached."""
        reached = self._reached()
        behind = {
            str(partition): [reached.get(partition, 0), offset]
            for partition, offset in wanted.items()
            if reached.get(partition, 0) < offset
        }
        named = list(behind.items())[:NAMED_MAX]
        shown = ", ".join(f"{name} is at {at} of {offset}" for name, (at, offset) in named)
        more = f", and {len(behind) - len(named)} more" if len(behind) > len(named) else ""
        return TimedOut(f"no epoch covered these offsets in time: {shown}{more}", {"behind": dict(named)})

    async def _unless_short(self, future: asyncio.Future[Any]) -> None:
        while not (await asyncio.wait((future,), timeout=self.limits.stall_seconds_max))[0]:
            if self.receiving.is_short:
                raise Unavailable("this is not done yet, and others need the memory of this request")

    def _published(self) -> None:
        """Wake those whose epoch has come. Each forgets what is reached, so a look costs one comparison."""
        self.has_memory.set()
        self.subscriptions.published()
        self._compute_ahead()
        if not self._waiters:
            return
        try:
            reached = self._reached()
        except Unavailable:
            return  # the next notice, or the next tick, comes soon
        for waiter in self._waiters:
            missing = waiter.missing
            while missing:
                partition = next(iter(missing))
                if reached.get(partition, 0) < missing[partition]:
                    break
                del missing[partition]
            if not missing and not waiter.future.done():
                waiter.future.set_result(None)

    # -- work ---------------------------------------------------------------------------------------------

    async def in_thread(self, asker: Asker, work: Callable[..., T], *arguments: Any) -> T:
        """Run what would block the event loop for too long; connections take turns."""
        async with self._threads.turn(asker.connection):
            asker.stop_if_gone()
            return await self._loop.run_in_executor(self._pool, work, *arguments)

    async def outlasting(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of work that holds dense ids, and belongs to no request: ``begin_grace`` knows of it."""
        future = asyncio.ensure_future(work)
        self._computing.add(future)
        future.add_done_callback(self._computed)
        return await future

    @contextlib.contextmanager
    def exactly(self, epoch: tuple[int, int] | None) -> Iterator[None]:
        """While a checkpoint of exactly this epoch (None: of none) is waited for.

        Raises:
            Unavailable: one of another epoch is: the stream waits for each.
        """
        if epoch is None:
            yield
            return
        if self._exactly and self._exactly[0] != epoch:
            incarnation, number = other = self._exactly[0]
            raise Unavailable(
                f"a checkpoint of exactly epoch {incarnation}.{number} is waited for; ask again once it is made",
                {"parameter": "at", "epoch": list(other)},
            )
        self._exactly.append(epoch)
        try:
            yield
        finally:
            self._exactly.remove(epoch)

    async def make_room(self, asker: Asker, vertices: int) -> None:
        """Wait until there is memory for an answer about so many vertices; connections take turns."""
        if vertices > VERTICES_INLINE_MAX:
            amount = vertices * BYTES_PER_VERTEX[self.id_kind]
            asker.making_bytes += await self.making.take(asker.connection, amount)

    @property
    def ahead_bytes(self) -> int:
        """So much of what several clients are sent may be sent to one before it has read what came before.

        Each time that a connection is waited for costs more than what it was sent before. What all together have
        not read stays far below what has somebody dropped (``relieve``).
        """
        share = self._unread_bytes_max // 4 // max(len(self.connections), 1)
        return min(UNREAD_AHEAD_BYTES, self.limits.output_bytes_max // 2, share)

    def relieve(self) -> None:
        """Where all clients together leave too much unread, drop those who leave most."""
        while sum(connection.unread_bytes for connection in self.connections) > self._unread_bytes_max:
            slowest = max(self.connections, key=lambda connection: connection.unread_bytes)
            log.info("a client that does not read is disconnected: %d bytes wait", slowest.unread_bytes)
            slowest.abort()

    def known(self, key: Any) -> Reply | None:
        """What ``cached`` has for this key of the newest epoch already."""
        known = self._cache.get(key)
        done = known is not None and known.future.done() and not known.has_failed
        if known is None or not done or known.epoch != self.snapshot().epoch:
            return None
        known.askers += 1
        return known.future.result()

    async def cached(
        self, key: Any, compute: Callable[[], Coroutine[Any, Any, Reply]], *, ahead: bool = False
    ) -> Reply:
        """What ``compute()`` comes to, once per epoch and key, however many ask.

        ``ahead``: it is short, and what was asked of one epoch is computed for the next one as soon as that is
        there.
        """
        epoch = self.snapshot().epoch
        known = self._cache.get(key)
        if known is None or known.epoch != epoch or known.has_failed:
            known = self._compute(key, epoch, compute)
        known.askers += 1
        # What has computed it does so again: it knows what came of it.
        known.again = (known.again or compute) if ahead else None
        if known.future.done():
            return known.future.result()
        try:
            return await asyncio.shield(known.future)
        except BaseException:
            known.askers -= 1
            if not known.askers or known.future.done():
                known.future.cancel()  # nobody waits for it any more, or it failed
                if self._cache.get(key) is known:
                    del self._cache[key]
            raise

    def _compute(
        self, key: Any, epoch: tuple[int, int], compute: Callable[[], Coroutine[Any, Any, Reply]]
    ) -> _Cached:
        if len(self._cache) >= CACHED_ANSWERS_MAX:
            self._cache.clear()
        future = asyncio.ensure_future(compute())
        self._computing.add(future)
        future.add_done_callback(self._computed)
        known = self._cache[key] = _Cached(epoch, future)
        return known

    def _compute_ahead(self) -> None:
        """There is another epoch: compute for it what was asked of the last ones. What nobody asks for after that
        is not computed ahead again, so that this costs a few times as much as was asked for, at most."""
        wanted = [(key, known) for key, known in self._cache.items() if known.again is not None]
        if not wanted:
            return
        try:
            epoch = self.snapshot().epoch
        except Unavailable:
            return  # whoever asks finds out
        room = AHEAD_MAX
        wanted.sort(key=lambda each: not each[1].askers)
        for key, known in wanted:
            again = known.again
            if known.epoch == epoch or not known.future.done() or again is None:
                continue
            known.again = None
            unasked = 0 if known.askers else known.unasked + 1
            if unasked <= AHEAD_UNASKED and room:
                room -= 1
                ahead = self._compute(key, epoch, again)
                ahead.again, ahead.unasked = again, unasked

    async def for_all(self, asker: Asker, work: Callable[[], T]) -> T:
        """As ``in_thread``. Whoever asked first lends the turn; others may wait when they have gone."""
        async with self._threads.turn(asker.connection):
            return await self._loop.run_in_executor(self._pool, work)

    async def scanned(self, asker: Asker, use: Callable[[Snapshot], Pieces[T]], *, is_short: bool) -> T:
        """``read`` of all values of a program: on the event loop where that is short, in pieces, one at a time,
        connections in turn; else, and where epochs overtake it, as ``for_all``."""
        reader, with_index = self._results(), self._with_index(use)
        if is_short:
            with contextlib.suppress(Overtaken):
                async with self._scans.turn(asker.connection):
                    return await reader.read_in_pieces(with_index)
        return await self.for_all(asker, lambda: reader.read(lambda snapshot: at_once(with_index(snapshot))))

    def _computed(self, done: asyncio.Future[Any]) -> None:
        self._computing.discard(done)
        if not done.cancelled():
            done.exception()  # seen, even if nobody waits for it any more

    def statistics(self) -> dict[str, Any]:
        """What the server knows of itself."""
        return {
            "connections": len(self.connections),
            "waiting": len(self._waiters),
            "subscriptions": self.subscriptions.count,
            "held_bytes": self.held_bytes,
            "restarts": self._restarts,
        }

    @property
    def held_bytes(self) -> int:
        """Memory that long requests and their answers have."""
        return self.receiving.used + self.making.used

    def report(self) -> dict[str, Any]:
        """What the engine is told once a second."""
        refused = self.admission.refusals.totals
        latency, changes = self.latencies.snapshot(), dict(self.subscriptions.totals)
        counted = {"latency": latency, "refused": refused, "changes": changes, "http_requests": self.http_requests}
        return {**counted, **self.statistics()}

    async def tick(self) -> None:
        """Once a second: statistics to the engine, idle connections closed, forgotten notices made up for."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            with contextlib.suppress(OSError):
                self._control.send(msgpack.packb({"kind": "statistics", **self.report()}))
            now = time.monotonic()
            for connection in list(self.connections):
                connection.look_after(now)
            if self._reader is not None:
                self.subscriptions.news.set()  # also where there are none: what epochs changed is taken notice of
                self._published()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.abort()
        self.admission.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
