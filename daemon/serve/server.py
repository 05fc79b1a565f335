"""The query server: a process of its own, so that neither ingest nor queries make the other wait.

``python -m graphtide.daemon.serve.server --control FD --calls FD`` is started by ``supervisor``. Over ``control``
(sequenced packets) come the settings, the listening sockets, the shared memory of results and vertex index, and a
notice of every published epoch; statistics go back once a second, and word of the end of requests that the engine
waits for (``Serving.begin_grace``). Over ``calls`` (a stream of MessagePack-RPC) the server asks the engine about
edges. When ``control`` ends the engine is gone, and so is this process. It never compiles while it serves: kernels
are loaded before it accepts anyone.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import gc
import inspect
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import msgpack
import numpy as np
import numpy.typing as npt

from ...compute.program import Program
from ...gpma.edges import Vertices
from ...gpma.index.id_table import let_go
from ...gpma.index.ids import IdColumn, StringColumn
from ...gpma.index.vertex_index import VertexIndexReader
from ..client.wire import (
    LATENCY_BUCKETS_SECONDS,
    PIECE_BYTES,
    ClientCore,
    FrameReader,
    InvalidParams,
    Request,
    decode_request,
    encode_error,
    encode_notification,
    encode_result,
    encode_stamp,
    error_to_wire,
)
from ..errors import GraphtideError, LimitExceeded, RequestError, TimedOut, Unauthorized, Unavailable
from ..records.stream import Partition, offsets_from_wire
from . import handlers, shared_memory
from .handlers import Outcome, Params, Reply
from .results import Layout, ResultsReader, Snapshot
from .shared_memory import SharedArray

log = logging.getLogger(__name__)
T = TypeVar("T")

CONTROL_BYTES_MAX = 1 << 17
THREADS = 2
CACHED_ANSWERS_MAX = 64
TURN_SECONDS = 0.001
"""How long one connection's requests are answered before the others get their turn."""
TICK_SECONDS = 1.0
HANDSHAKE_SECONDS_MAX = 10.0
LARGE_OUTPUT_BYTES = 1 << 20
SWITCH_SECONDS = 0.0005
"""How long a worker thread may hold the interpreter while the event loop waits for it."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may ask for. Each limit is enforced before memory is spent.

    ``memory_bytes_max`` bounds what all connections together hold: long requests that are unfinished or
    unanswered, and answers that nobody reads.
    """

    frame_bytes_max: int = 8 << 20
    vertices_max: int = 1_000_000
    connections_max: int = 256
    requests_in_flight_max: int = 64
    output_bytes_max: int = 32 << 20
    idle_seconds_max: float = 600.0
    top_k_max: int = 10_000
    timeout_ms_max: int = 600_000
    timeout_ms_default: int = 30_000
    memory_bytes_max: int = 256 << 20
    waiting_max: int = 4096
    engine_calls_max: int = 256


class Latencies:
    """Counts requests by method, by how long they took and by error code."""

    def __init__(self) -> None:
        self._methods: dict[str, tuple[list[int], list[float], dict[str, int]]] = {}

    def record(self, method: str, seconds: float, error: str | None) -> None:
        """One request was answered; methods that do not exist share one entry."""
        name = method if method in handlers.METHODS else "other"
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


class EngineCalls(asyncio.Protocol):
    """Questions to the engine process, pipelined; a bounded number may be open."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._core = ClientCore()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        for response in self._core.feed(data):
            future = self._open.pop(response.msgid, None)
            if future is None or future.done():
                continue  # nobody waits for it any more
            if response.error is not None:
                future.set_exception(response.error)
            else:
                future.set_result(response.result)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._open.values():
            if not future.done():
                future.set_exception(Unavailable("the engine is gone"))
        self._open.clear()

    async def call(self, method: str, params: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """The engine's answer, with the ``stamp`` of the storage that it was read from.

        Raises:
            Unavailable: too many questions are open, or the engine is gone.
            TimedOut: no answer came until ``deadline``.
        """
        limit = self._serving.limits.engine_calls_max
        if self._transport is None or self._transport.is_closing() or len(self._open) >= limit:
            raise Unavailable("the engine is busy", {"engine_calls_max": limit})
        seconds = deadline - time.monotonic()
        msgid, message = self._core.request(method, {**params, "timeout_s": max(seconds, 0.0)})
        future = asyncio.get_running_loop().create_future()
        self._open[msgid] = future
        self._transport.write(message)
        try:
            async with asyncio.timeout(seconds):
                result: dict[str, Any] = await future
        except TimeoutError:
            raise TimedOut("the engine did not answer in time") from None
        finally:
            self._open.pop(msgid, None)
        self._serving.catch_up(result["index_generation"])
        result["stamp"] = encode_stamp(result["epoch"], result["offsets"])
        return result


@dataclass(slots=True)
class _Waiter:
    missing: dict[Partition, int]
    future: asyncio.Future[None]
    task: asyncio.Task[Any] | None


class Serving:
    """What handlers work with: results, vertex index, engine, limits; and what waits for an epoch."""

    def __init__(
        self,
        *,
        control: socket.socket,
        settings: Mapping[str, Any],
        kinds: Mapping[str, type[Program]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.limits = ServerLimits(**settings["limits"])
        self.token: str | None = settings["token"]
        self.graph: Mapping[str, Any] = settings["graph"]
        self.id_kind: Literal["int", "string"] = settings["graph"]["vertex_ids"]
        self.version: str = settings["version"]
        self.engine = EngineCalls(self)
        self.latencies = Latencies()
        self.connections: set[Connection] = set()
        self.held_bytes = 0
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
        self._waiters: list[_Waiter] = []
        self._computing: set[asyncio.Future[Reply]] = set()
        self._graces: set[asyncio.Task[None]] = set()
        self._cache: dict[Any, tuple[tuple[int, int], asyncio.Future[Reply]]] = {}
        self._stamp: tuple[Snapshot, bytes] | None = None
        self._offsets: tuple[Snapshot, dict[Partition, int]] | None = None

    # -- memory -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take every message that the engine has sent; any thread may call this."""
        with self._draining:
            while True:
                try:
                    message, fds = shared_memory.receive_with_fds(self._control, CONTROL_BYTES_MAX)
                except BlockingIOError:
                    return
                except OSError:
                    message, fds = b"", []
                if not message:
                    self._loop.call_soon_threadsafe(self.stopped.set)
                    return
                self._take(msgpack.unpackb(message), fds)

    def _take(self, message: Mapping[str, Any], fds: list[int]) -> None:
        match message["kind"]:
            case "results":
                self._reader = ResultsReader(Layout.from_wire(message["layout"]), fds[0])
            case "index":
                self._take_index(message["arrays"], fds)
            case "grace":  # after the index, which is in place now
                self._loop.call_soon_threadsafe(self.begin_grace, message["token"])
        if self._reader is not None and self._index is not None:
            self._loop.call_soon_threadsafe(self._published)

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

    def begin_grace(self, token: int) -> None:
        """Tell the engine when all that is under way now has ended.

        Until then it gives no dense id to another vertex, since requests keep those that they looked up or read.
        Requests that wait for an epoch have looked nothing up yet.
        """
        waiting = {waiter.task for waiter in self._waiters}
        working: set[asyncio.Future[Any]] = {*self._computing}
        for connection in self.connections:
            working |= connection.tasks - waiting
        grace = self._loop.create_task(self._grace(token, working))
        self._graces.add(grace)
        grace.add_done_callback(self._graces.discard)

    async def _grace(self, token: int, working: set[asyncio.Future[Any]]) -> None:
        if working:
            await asyncio.wait(working)
        while True:
            try:
                self._control.send(msgpack.packb({"kind": "grace", "token": token}))
            except BlockingIOError:
                await asyncio.sleep(TICK_SECONDS)
            except OSError:  # the engine is gone
                return
            else:
                return

    def catch_up(self, index_generation: int) -> None:
        """Make sure of the vertex index: its arrays were sent before anyone could speak of them."""
        if self._index is None or self._index.generation < index_generation:
            self.drain()
            if self._index is None or self._index.generation < index_generation:
                raise Unavailable("the vertex index is being replaced")

    def read(self, use: Callable[[Snapshot], T]) -> T:
        """``ResultsReader.read``, with a vertex index that covers the epoch."""
        reader = self._reader
        if reader is None:
            raise Unavailable("nothing was published yet")

        def with_index(snapshot: Snapshot) -> T:
            self.catch_up(snapshot.index_generation)
            return use(snapshot)

        return reader.read(with_index)

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

    async def lookup_anywhere(self, ids: IdColumn) -> Vertices:
        """Dense vertices of every indexed id, those of the newest epoch at least, for questions to the storage."""
        self.snapshot()  # with an index that covers it
        if len(ids) <= handlers.VERTICES_INLINE_MAX:
            return self.lookup(ids, handlers.ALL_VERTICES)
        return await self.in_thread(self.lookup, ids, handlers.ALL_VERTICES)

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

    async def covered(self, wanted: Mapping[Partition, int], deadline: float) -> None:
        """Wait until an epoch covers these offsets. Whoever waits holds no dense ids: they may change hands.

        Raises:
            TimedOut: none did.
            Unavailable: too many requests wait.
        """
        if self.covers(wanted):
            return
        if len(self._waiters) >= self.limits.waiting_max:
            raise Unavailable("too many requests wait for an epoch", {"waiting_max": self.limits.waiting_max})
        waiter = _Waiter(dict(wanted), self._loop.create_future(), asyncio.current_task())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await waiter.future
        except TimeoutError:
            raise TimedOut("no epoch covered these offsets in time") from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def _published(self) -> None:
        """Wake those whose epoch has come. Each forgets what is reached, so a look costs one comparison."""
        self.has_memory.set()
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

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run what would block the event loop for too long."""
        return await self._loop.run_in_executor(self._pool, work, *arguments)

    async def cached(self, key: Any, compute: Callable[[], Reply]) -> Reply:
        """``compute()`` in a thread, once per epoch and key, however many ask."""
        epoch = self.snapshot().epoch
        known = self._cache.get(key)
        if known is None or known[0] != epoch:
            if len(self._cache) >= CACHED_ANSWERS_MAX:
                self._cache.clear()
            future = asyncio.ensure_future(self.in_thread(compute))
            self._computing.add(future)
            future.add_done_callback(self._computed)
            known = self._cache[key] = (epoch, future)
        try:
            return await asyncio.shield(known[1])
        except Exception:
            if self._cache.get(key) is known:
                del self._cache[key]
            raise

    def _computed(self, done: asyncio.Future[Reply]) -> None:
        self._computing.discard(done)
        if not done.cancelled():
            done.exception()  # seen, even if nobody waits for it any more

    def statistics(self) -> dict[str, Any]:
        """What the server knows of itself."""
        return {"connections": len(self.connections), "held_bytes": self.held_bytes}

    async def tick(self) -> None:
        """Once a second: statistics to the engine, idle connections closed, forgotten notices made up for."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            report = {"kind": "statistics", "latency": self.latencies.snapshot(), **self.statistics()}
            with contextlib.suppress(OSError):
                self._control.send(msgpack.packb(report))
            now = time.monotonic()
            for connection in list(self.connections):
                connection.close_if_idle(now)
            if self._reader is not None:
                self._published()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Connection(asyncio.Protocol):
    """One client: frames in, answers out, within the limits."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._limits = serving.limits
        self._frames = FrameReader(serving.limits.frame_bytes_max)
        self._transport: asyncio.Transport
        self._authorized = serving.token is None
        self.tasks: set[asyncio.Task[None]] = set()
        self._partial_bytes = 0
        self._continuing = False
        self._closing = False
        self._paused = False
        self._active = time.monotonic()

    # -- life ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        limit = self._limits.connections_max
        if len(self._serving.connections) >= limit:
            self._fail(LimitExceeded(f"more than {limit} connections", {"connections_max": limit}))
            return
        self._serving.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._serving.connections.discard(self)
        self._hold_partial(0)
        for task in self.tasks:
            task.cancel()

    def abort(self) -> None:
        """Drop the connection, and whatever it has not read."""
        self._closing = True
        self._transport.abort()

    def close_if_idle(self, now: float) -> None:
        """Close when neither a request came nor an answer was taken for too long, and none is being made."""
        if not self.tasks and now - self._active > self._limits.idle_seconds_max:
            self.abort()

    @property
    def output_bytes(self) -> int:
        """Answers that the client has not read."""
        return self._transport.get_write_buffer_size()

    # -- in -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._frames.feed(data)
        except LimitExceeded as error:
            self._fail(error)
            return
        if not self._continuing:
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer the requests that are there, for one turn."""
        self._continuing = False
        turn_ends = time.perf_counter() + TURN_SECONDS
        try:
            while not self._closing and len(self.tasks) < self._limits.requests_in_flight_max:
                frame = self._frames.next_frame()
                if frame is None:
                    break
                self._active = time.monotonic()
                self._dispatch(frame)
                if time.perf_counter() > turn_ends:
                    self._continuing = True
                    asyncio.get_running_loop().call_soon(self._answer_waiting)
                    break
            self._hold_partial(self._frames.buffered_bytes)
        except RequestError as error:
            self._fail(error)
            return
        self._pause(self._continuing or len(self.tasks) >= self._limits.requests_in_flight_max)

    def _pause(self, wanted: bool) -> None:
        if self._closing or wanted == self._paused:
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _hold_partial(self, size: int) -> None:
        """Account for a long request that is not complete yet; short ones are always let in."""
        size = size if size > PIECE_BYTES else 0
        self._serving.held_bytes += size - self._partial_bytes
        self._partial_bytes = size
        if size and self._serving.held_bytes > self._limits.memory_bytes_max:
            raise self._too_much()

    def _too_much(self) -> LimitExceeded:
        return LimitExceeded("the server holds too many long requests", {"bytes": self._serving.held_bytes})

    # -- answers ------------------------------------------------------------------------------------------

    def _dispatch(self, frame: bytes) -> None:
        if len(frame) > PIECE_BYTES:
            if self._serving.held_bytes + len(frame) > self._limits.memory_bytes_max:
                raise self._too_much()
            self._start(self._answer_long(frame))
            return
        started = time.perf_counter()
        try:
            request = decode_request(frame, 2 * self._limits.vertices_max)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
            return
        self._answer(request, started)

    async def _answer_long(self, frame: bytes) -> None:
        started = time.perf_counter()
        self._serving.held_bytes += len(frame)
        try:
            request = await self._serving.in_thread(decode_request, frame, 2 * self._limits.vertices_max)
            outcome = self._begin(request, started)
            if outcome is not None:
                await self._finish(request, outcome, started)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
        except RequestError as error:
            self._fail(error)
        finally:
            self._serving.held_bytes -= len(frame)

    def _answer(self, request: Request, started: float) -> None:
        outcome = self._begin(request, started)
        if isinstance(outcome, Reply):
            self._reply(request, outcome, started)
        elif outcome is not None:
            self._start(self._finish(request, outcome, started))

    def _begin(self, request: Request, started: float) -> Outcome | None:
        """Call the handler; None when it refused, and the client was told."""
        try:
            if not self._authorized and request.method != "hello":
                raise Unauthorized("present the token with hello first")
            outcome = handlers.find(request.method)(self._serving, Params(request.params))
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
            return None
        if request.method == "hello":
            self._authorized = True
        return outcome

    async def _finish(self, request: Request, outcome: Outcome, started: float) -> None:
        try:
            reply = await outcome if inspect.iscoroutine(outcome) else outcome
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
            return
        assert isinstance(reply, Reply)
        self._reply(request, reply, started)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
        if not self._closing and not self._continuing:
            self._answer_waiting()

    def _reply(self, request: Request, reply: Reply, started: float) -> None:
        self._write(encode_result(request.msgid, reply.stamp, reply.answer))
        self._serving.latencies.record(request.method, time.perf_counter() - started, None)

    def _refuse(self, msgid: int, method: str, started: float, error: Exception) -> None:
        if not isinstance(error, GraphtideError):
            log.error("answering %s failed", method[:64], exc_info=error)
            error = GraphtideError("the server failed to answer; its log says why")
        self._write(encode_error(msgid, error))
        self._serving.latencies.record(method, time.perf_counter() - started, error.code)

    def _write(self, message: bytes) -> None:
        if self._closing:
            return
        self._transport.write(message)
        waiting = self.output_bytes
        if waiting > LARGE_OUTPUT_BYTES:
            together = sum(connection.output_bytes for connection in self._serving.connections)
            if waiting > self._limits.output_bytes_max or together > self._limits.memory_bytes_max:
                log.info("a client that does not read is disconnected: %d bytes wait", waiting)
                self.abort()

    def _fail(self, error: GraphtideError) -> None:
        """Say why, and end the connection: what follows on the stream cannot be trusted."""
        if self._closing:
            return
        self._closing = True
        self._serving.latencies.record("other", 0.0, error.code)
        self._transport.write(encode_notification("error", error_to_wire(error)))
        self._transport.close()


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """The server's side of TLS.

    Raises:
        OSError: (ssl.SSLError among them) the files cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def serve(
    control: socket.socket,
    calls: socket.socket,
    settings: Mapping[str, Any],
    listeners: list[socket.socket],
    kinds: Mapping[str, type[Program]],
) -> None:
    """Serve until the engine is gone. Clients are accepted once there is an epoch to answer from."""
    loop = asyncio.get_running_loop()
    serving = Serving(control=control, settings=settings, kinds=kinds, loop=loop)
    control.setblocking(False)
    calls.setblocking(False)
    await loop.create_unix_connection(lambda: serving.engine, sock=calls)
    loop.add_reader(control.fileno(), serving.drain)
    stopped = loop.create_task(serving.stopped.wait())
    first = loop.create_task(serving.has_memory.wait())
    servers: list[asyncio.Server] = []
    tick = loop.create_task(serving.tick())
    try:
        await asyncio.wait((stopped, first), return_when=asyncio.FIRST_COMPLETED)
        if not serving.stopped.is_set():
            _load_kernels(serving)
            context = None if settings["tls"] is None else tls_context(**settings["tls"])
            servers.extend([await _listen(loop, serving, listener, context) for listener in listeners])
            gc.freeze()
            control.send(msgpack.packb({"kind": "ready"}))
            await stopped
    finally:
        loop.remove_reader(control.fileno())
        for server in servers:
            server.close()
        serving.close()
        for task in (tick, first, stopped):
            task.cancel()


async def _listen(
    loop: asyncio.AbstractEventLoop, serving: Serving, listener: socket.socket, context: ssl.SSLContext | None
) -> asyncio.Server:
    def connection() -> Connection:
        return Connection(serving)

    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(connection, sock=listener)
    handshake_s = None if context is None else HANDSHAKE_SECONDS_MAX
    return await loop.create_server(connection, sock=listener, ssl=context, ssl_handshake_timeout=handshake_s)


def _load_kernels(serving: Serving) -> None:
    """Look something up, so that kernels come from the cache now and not in the first request."""
    ids: IdColumn = np.zeros(1, np.int64) if serving.id_kind == "int" else StringColumn.of([""])
    serving.lookup(ids, 0)


def run(
    control: socket.socket,
    calls: socket.socket,
    kinds: Mapping[str, type[Program]],
    load_modules: Callable[[Iterable[str]], None],
) -> None:
    """Receive the settings and serve."""
    message, fds = shared_memory.receive_with_fds(control, CONTROL_BYTES_MAX)
    if not message:
        return
    settings = msgpack.unpackb(message)
    assert settings["kind"] == "configure"
    load_modules(settings["python_modules"])
    listeners = [socket.socket(fileno=fd) for fd in fds]
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    import uvloop  # only this process needs it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(control, calls, settings, listeners, kinds))


def main() -> None:
    """The command line that ``supervisor`` uses."""
    parser = argparse.ArgumentParser(description="graphtide's query server; started by the daemon.")
    parser.add_argument("--control", type=int, required=True, help="socket of settings, memory and notices")
    parser.add_argument("--calls", type=int, required=True, help="socket of questions to the engine")
    options = parser.parse_args()
    # The engine decides when to end, by closing the control socket; signals to the group are its affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    from ...compute.registry import KINDS, load_modules

    with socket.socket(fileno=options.control) as control, socket.socket(fileno=options.calls) as calls:
        run(control, calls, KINDS, load_modules)


if __name__ == "__main__":
    main()
