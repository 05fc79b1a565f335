"""Requests at a fixed rate, whether answers come or not (open loop), from processes of their own.

The latency of a request counts from the moment at which it was to be sent: what a slow answer holds up is not left
out (Gil Tene, "How NOT to Measure Latency": coordinated omission). ``late``: how long after that moment it was
sent, for want of a processor or of a free connection. Over the socket requests are pipelined on one connection a
process; over HTTP a connection has one at a time.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

import msgpack
import numpy as np

from graphtide.daemon.client.addresses import UnixAddress, parse_address
from graphtide.daemon.client.wire import encode_request
from graphtide.daemon.serve.results import META_BYTES_MIN

fork = multiprocessing.get_context("fork")

KINDS = ("get", "neighbors", "top", "stats")
PERCENTILES = (50, 99, 99.9)
CHOSEN, BEST, PAGE = 10, 10, 100
HTTP_CONNECTIONS = 16
PATIENCE_S = 30.0
_RECEIVE_BYTES = 1 << 18
_SET_TIMER_SLACK = 29  # of ``prctl``, nanoseconds


@dataclass(frozen=True)
class Load:
    """``door``: ``http``, or one where MessagePack-RPC is spoken; ``shares``: of each of ``KINDS``; ``ids``:
    int64, vertices to ask for. ``at_once``: who asks never waits for a core (a priority that needs rights).
    """

    door: str
    address: str
    rate: float
    seconds: float
    shares: Sequence[float]
    ids: np.ndarray
    processes: int = 2
    at_once: bool = False


@dataclass(frozen=True)
class Asked:
    """Of each request its kind (a place in ``KINDS``), and seconds late and until answered (NaN: it was not).

    ``failed``: how many answers were errors.
    """

    kinds: np.ndarray
    late: np.ndarray
    latency: np.ndarray
    failed: int

    def percentiles(self, kind: str | None = None) -> dict[str, float]:
        """Milliseconds, of one kind or of all; what was never answered counts as endless."""
        chosen = slice(None) if kind is None else self.kinds == KINDS.index(kind)
        found = np.nan_to_num(self.latency[chosen], nan=np.inf) * 1e3
        return {f"p{each:g} ms": percentile_of(found, each) for each in PERCENTILES}

    @property
    def unanswered(self) -> int:
        return int(np.count_nonzero(np.isnan(self.latency)))

    @property
    def late_ms(self) -> float:
        """The 99th percentile of how late requests were sent."""
        return percentile_of(self.late * 1e3, 99)


def percentile_of(values: np.ndarray, percentile: float) -> float:
    """The least of the values that so many per cent are not above; NaN where there are none."""
    return float(np.percentile(values, percentile, method="higher")) if values.size else float("nan")


def asked(load: Load) -> Asked:
    """Ask as the load says; returns when all is answered, or nothing has come for long."""
    start = time.monotonic() + 0.2
    pipes, asking = [], []
    for number in range(load.processes):
        receive, send = fork.Pipe(duplex=False)
        asking.append(fork.Process(target=_ask_alone, args=(load, number, start, send), daemon=True))
        asking[-1].start()
        send.close()
        pipes.append(receive)
    parts = [pipe.recv() for pipe in pipes]
    for process in asking:
        process.join()
    kinds, late, latency = (np.concatenate([part[column] for part in parts]) for column in range(3))
    return Asked(kinds, late, latency, sum(part[3] for part in parts))


def can_ask_at_once() -> bool:
    """Whether this process may have a core before all others."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def be_punctual() -> None:
    """Have the system wake the caller's thread when it is to be woken, and not up to 50 us later, as is usual, to
    wake several at once: that would be part of what each request seems to take."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)


def _ask_alone(load: Load, number: int, start: float, out: Any) -> None:
    gc.freeze()  # no pauses of its own for what it was forked with
    be_punctual()
    if load.at_once:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ask(load, number, start, out)


def ask(load: Load, number: int, start: float, out: Any) -> None:
    """What one of the processes does: its share of the requests, the first at ``start`` or a moment later."""
    rng = np.random.default_rng(number)
    n = max(1, int(load.rate * load.seconds / load.processes))
    due = start + (np.arange(n) * load.processes + number) / load.rate
    kinds = rng.choice(len(KINDS), n, p=np.asarray(load.shares, float) / sum(load.shares))
    chosen = rng.choice(load.ids, (n, CHOSEN))
    lines = _lines(load)
    sent, answered = np.full(n, np.nan), np.full(n, np.nan)
    failed = _exchange(lines, due, [KINDS[kind] for kind in kinds], chosen, sent, answered)
    for line in lines:
        line.close()
    out.send((kinds, np.nan_to_num(sent - due), answered - due, failed))


def _exchange(
    lines: Sequence[Line],
    due: np.ndarray,
    kinds: Sequence[str],
    chosen: np.ndarray,
    sent: np.ndarray,
    answered: np.ndarray,
) -> int:
    """Send all, note when, and when answers came; how many of these were errors."""
    n, at, left, failed = due.size, 0, due.size, 0
    by_fd = {line.fileno(): line for line in lines}
    free = deque(lines)
    heard = time.monotonic()
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    while left:
        now = time.monotonic()
        while at < n and due[at] <= now and free:
            line = free[0]
            line.send(at, kinds[at], chosen[at])
            sent[at] = time.monotonic()
            if not line.takes_more:
                free.popleft()
            at += 1
        # epoll waits whole milliseconds: the last one is spent in select, which wakes in time.
        pause = max(due[at] - time.monotonic(), 0.0) if at < n and free else 0.05
        ready = select.select([poll], [], [], pause)[0] and poll.poll(0)
        now = time.monotonic()
        for fd, _ in ready:
            line = by_fd[fd]
            was_free = line.takes_more
            for which, is_good in line.receive():
                answered[which] = now
                failed += not is_good
                left -= 1
                heard = now
            if not was_free and line.takes_more:
                free.append(line)
        if at == n and now - heard > PATIENCE_S:
            break
    poll.close()
    return failed


# -- the two languages ----------------------------------------------------------------------------------------


class Line(Protocol):
    """A connection; ``takes_more``: another request may be sent."""

    takes_more: bool

    def fileno(self) -> int: ...

    def send(self, which: int, kind: str, chosen: np.ndarray) -> None: ...

    def receive(self) -> list[tuple[int, bool]]:
        """Which requests were answered, and whether without an error."""
        ...

    def close(self) -> None: ...


class SocketLine:
    """MessagePack-RPC, pipelined."""

    takes_more = True

    def __init__(self, address: str) -> None:
        self._socket = connected(address)
        self._unpacker = msgpack.Unpacker(max_buffer_size=1 << 30, strict_map_key=False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, which: int, kind: str, chosen: np.ndarray) -> None:
        params: dict[str, Any] = {}
        if kind == "get":
            params = {"program": "pagerank", "vertices": chosen.astype("<i8").tobytes()}
        elif kind == "neighbors":
            params = {"vertex": int(chosen[0]), "limit": PAGE}
        elif kind == "top":
            params = {"program": "pagerank", "k": BEST}
        self._socket.sendall(encode_request(which, kind, params))

    def receive(self) -> list[tuple[int, bool]]:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed it")
        self._unpacker.feed(data)
        return [(message[1], message[2] is None) for message in self._unpacker]

    def close(self) -> None:
        self._socket.close()


class HttpLine:
    """HTTP/1.1, one request at a time on a connection that stays open."""

    def __init__(self, address: str) -> None:
        self._socket = connected(address)
        self.takes_more = True
        self._which = -1
        self._got = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, which: int, kind: str, chosen: np.ndarray) -> None:
        asked: dict[str, Any] = {}
        if kind == "get":
            asked = {"program": "pagerank", "vertices": ",".join(map(str, chosen.tolist()))}
        elif kind == "neighbors":
            asked = {"vertex": int(chosen[0]), "limit": PAGE}
        elif kind == "top":
            asked = {"program": "pagerank", "k": BEST}
        text = f"GET /v1/{kind}?{urlencode(asked, safe=',')} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self._socket.sendall(text.encode())
        self.takes_more, self._which = False, which

    def receive(self) -> list[tuple[int, bool]]:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed it")
        self._got += data
        head, blank, body = self._got.partition(b"\r\n\r\n")
        if not blank or len(body) < _length(head):
            return []
        self._got, self.takes_more = b"", True
        return [(self._which, head.startswith(b"HTTP/1.1 200"))]

    def close(self) -> None:
        self._socket.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError(f"an answer without its length: {head!r}")


def _lines(load: Load) -> list[Line]:
    if load.door == "http":
        return [HttpLine(load.address) for _ in range(HTTP_CONNECTIONS)]
    return [SocketLine(load.address)]


def connected(address: str) -> socket.socket:
    """A connection to ``unix:PATH`` or ``tcp://HOST:PORT``."""
    place = parse_address(address)
    if isinstance(place, UnixAddress):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place.path)
        return connection
    connection = socket.create_connection((place.host, place.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


# -- the least that an answer can take ------------------------------------------------------------------------


def echo(path: str, out: Any, spin_s: float = 0.0) -> None:
    """A server that answers each request of MessagePack-RPC with nothing, at ``path``, until it is ended.

    ``spin_s``: so long is it at work for each.
    """
    import asyncio

    import uvloop

    class Echo(asyncio.Protocol):
        def __init__(self) -> None:
            self._unpacker = msgpack.Unpacker()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport: Any = transport

        def data_received(self, data: bytes) -> None:
            self._unpacker.feed(data)
            for _, msgid, *_ in self._unpacker:
                ends = time.perf_counter() + spin_s
                while time.perf_counter() < ends:
                    pass
                self._transport.write(msgpack.packb([1, msgid, None, {}]))

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(Echo, path)
        out.send("ready")
        await server.serve_forever()

    gc.freeze()
    uvloop.run(serve())


# -- those who are told ---------------------------------------------------------------------------------------


def told(address: str, count: int, ids: np.ndarray, chosen: int, processes: int) -> list[Any]:
    """So many subscribers to random vertices, in processes; a pipe of each process, once all have subscribed.

    It is told when it is enough, and gives float64[k, 2]: the number of an epoch, and when somebody heard of it.
    """
    pipes = []
    for number in range(processes):
        mine, its = fork.Pipe()
        share = len(range(number, count, processes))
        fork.Process(target=_listen, args=(address, share, ids, chosen, number, its), daemon=True).start()
        its.close()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    return pipes


def _listen(address: str, count: int, ids: np.ndarray, chosen: int, seed: int, pipe: Any) -> None:
    rng = np.random.default_rng(seed)
    poll, connections = select.epoll(), dict[int, socket.socket]()
    for _ in range(count):
        connection = connected(address)
        vertices = rng.choice(ids, min(chosen, ids.size), replace=False).astype("<i8").tobytes()
        given = {"program": "pagerank", "vertices": vertices, "snapshot": False}
        connection.sendall(encode_request(1, "subscribe", given))
        answer = msgpack.unpackb(connection.recv(_RECEIVE_BYTES), strict_map_key=False)
        if answer[2] is not None:
            raise RuntimeError(f"refused: {answer[2]}")
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    poll.register(pipe, select.EPOLLIN)
    pipe.send("ready")
    heard: list[tuple[int, float]] = []
    while True:
        for fd, _ in poll.poll():
            if fd == pipe.fileno():
                pipe.send(np.array(heard, float).reshape(-1, 2))
                return
            data = connections[fd].recv(_RECEIVE_BYTES)
            now = time.monotonic()
            number = _newest(data)
            if number is not None:
                heard.append((number, now))


def _newest(data: bytes) -> int | None:
    """The number of the newest epoch that these bytes tell of; only that is read of a message."""
    at = data.rfind(b"\xa5epoch")
    if at < 0:
        return None
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[at + 6 : at + 32])
    try:
        epoch = unpacker.unpack()
    except msgpack.OutOfData:  # a message cut just there
        return None
    return int(epoch[1])


# -- when epochs were published -------------------------------------------------------------------------------


def published(pid: int, until: Any, out: Any, pause_s: float = 0.0001) -> None:
    """Watch a daemon's published results, in its own memory, until told.

    It sends a word once it watches, and {number of an epoch: when} in the end.
    It looks every tenth of a millisecond, so that a moment is late by about as much.
    """
    with open(_results_of(pid), "rb") as file:
        data = mmap.mmap(file.fileno(), 64 + 2 * META_BYTES_MIN, prot=mmap.PROT_READ)
    words = np.frombuffer(data, np.int64, 8)
    out.send("ready")
    seen: dict[int, float] = {}
    last = None
    while not until.is_set():
        active, sequence = int(words[1]), int(words[2]) + int(words[3])
        if (active, sequence) != last:
            now = time.monotonic()
            number = _epoch_at(data, active)
            if number is not None:
                seen.setdefault(number, now)
            last = (active, sequence)
        time.sleep(pause_s)
    out.send(seen)


def _epoch_at(data: mmap.mmap, copy: int) -> int | None:
    """The number of the epoch of one copy, which begins with it. None: it is being written."""
    start = 64 + copy * META_BYTES_MIN
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[start : start + 64])
    try:
        unpacker.read_map_header()
        name, epoch = unpacker.unpack(), unpacker.unpack()
    except (ValueError, msgpack.UnpackException):
        return None
    return int(epoch[1]) if name == "epoch" else None


def _results_of(pid: int) -> str:
    folder = f"/proc/{pid}/fd"
    found = [fd for fd in os.listdir(folder) if _target(f"{folder}/{fd}").startswith("/memfd:graphtide:results")]
    if not found:
        raise RuntimeError("the daemon's results are in no memory that can be looked at")
    return f"{folder}/{max(found, key=int)}"


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
