"""What the query server holds while it answers: results, vertex index, engine, limits; and whose turn it is.

``connection`` brings requests in, ``methods`` answer them with what is here.
"""

from __future__ import annotations

import asyncio
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
from ..client.wire import encode_stamp
from ..errors import TimedOut, Unavailable
from . import shared_memory
from .admission import Admission
from .asker import Asker, OpenConnection
from .change_log import ChangeLog
from .engine_calls import EngineCalls
from .lane import Answer as LaneAnswer
from .lane import Question
from .latencies import Latencies
from .once import OnceAnEpoch
from .results import MemoryLayout, Overtaken, Packed, Pieces, ResultsReader, Snapshot, at_once
from .shared_memory import CONTROL_BYTES_MAX, SharedArray
from .subscriptions import Subscriptions
from .turns import Turns
from .waiting import Waiting, unless_short

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
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
        self.waiting = Waiting(self.limits, self.snapshot, self.engine, self.receiving)
        self.answers = OnceAnEpoch[Reply](lambda: self.snapshot().epoch, self._begin)
        self.subscriptions = Subscriptions(self.limits)
        self._computing: set[asyncio.Future[Any]] = set()
        self._graces: set[asyncio.Task[None]] = set()
        self._exactly: list[tuple[int, int]] = []
        self._asked_aside = defaultdict(lambda: Turns(1), compute=Turns(self.limits.ad_hoc_max))
        self._asking: set[asyncio.Task[Any] | None] = set()
        self._stamp: tuple[Snapshot, bytes] | None = None
        self._indexed: Snapshot | None = None  # the last epoch that the index was found to cover: it only grows

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
                soon(self.renew_access, message["access"], fds)
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

    def renew_access(self, access: Mapping[str, Any], tls_fds: Sequence[int]) -> None:
        """Other tokens, and other files for TLS; whoever came with a token that is none any more is turned out."""
        try:
            self.admission.renew({**access, "tls": tls_fds})
        except OSError as error:
            log.error("the files for TLS cannot be used; those of before still are: %s", error)
        finally:
            for fd in tls_fds:
                os.close(fd)
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
        return self.waiting.tasks() | self._asking

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
                    await unless_short(asked, self.receiving, self.limits.stall_seconds_max)
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

    def _published(self) -> None:
        """There may be another epoch."""
        self.has_memory.set()
        self.subscriptions.published()
        self.answers.compute_ahead()
        self.waiting.published()

    # -- work ---------------------------------------------------------------------------------------------

    async def in_thread(self, asker: Asker, work: Callable[..., T], *arguments: Any) -> T:
        """Run what would block the event loop for too long; connections take turns."""
        async with self._threads.turn(asker.connection):
            asker.stop_if_gone()
            return await self._loop.run_in_executor(self._pool, work, *arguments)

    async def outlasting(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of work that holds dense ids, and belongs to no request: ``begin_grace`` knows of it."""
        return await self._begin(work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        future = asyncio.ensure_future(work)
        self._computing.add(future)
        future.add_done_callback(self._computed)
        return future

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
            "waiting": len(self.waiting),
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
