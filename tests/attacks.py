"""Ways to wrong a running daemon; each takes a few seconds, and none may change an answer.

An attack is a function of a ``Target`` and a random generator. It returns a word on what it did. What it starts
it ends, what it stops it lets go on: afterwards the daemon must be able to catch up. ``ATTACKS`` holds them all;
to add one, write the function and put it there.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
from disks import filled
from memory_groups import memory_group
from running import Daemon, toml
from stepped_clock import step
from waiting import PATIENCE_S, until
from watching import Watcher

from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.records.columns import UpdateColumns
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.gpma.edges import Op
from graphtide.ops.kafka import DevKafka

TOKEN = "correct-horse-battery"
SECONDS = 2.0
"""How long an attack lasts that lasts."""
VERTICES = 400
LIMITS = {
    "memory_bytes_max": 48 << 20,
    "output_bytes_max": 4 << 20,
    "frame_bytes_max": 2 << 20,
    "subscribed_vertices_max": 200_000,
    "changes_bytes": 1 << 18,
    "stall_seconds_max": 2.0,
}
"""Of the query server: as little as lets everybody be served, so that what is kept for nobody shows."""
KNOWN_BYTES = 50
"""Of a vertex that a subscriber was told of, as the limits say."""
SPARE_BYTES = 24 << 20
"""What the server may take besides: buffers too small to count, copies of results, what it does not give back."""
GROUP_BYTES = 48 << 20
"""What a limited daemon may take beside what it has; 32 MiB of it are to stay free."""


class Stream:
    """Updates of edges, produced to a real broker and remembered for the reference."""

    def __init__(self, producer: Any, topic: str, partitions: int, rng: np.random.Generator) -> None:
        self.producer = producer
        self.topic = topic
        self.partitions = partitions
        self.rng = rng
        self.columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.bad = 0
        self._sent: list[Any] = []

    def send_good(self, records: int = 1, *, timestamp_ms: int | None = None) -> None:
        """Records of 50 updates, each to a partition of its own sources."""
        for _ in range(records):
            partition = int(self.rng.integers(self.partitions))
            n = 50
            src = self.rng.integers(0, VERTICES // self.partitions, n) * self.partitions + partition
            dst = self.rng.integers(0, VERTICES, n)
            ops = np.where(self.rng.random(n) < 0.7, Op.INSERT, Op.DELETE).astype(np.uint8)
            weights = self.rng.integers(1, 9, n).astype(np.float32)
            self.columns.append((src, dst, ops))
            self._send(partition, encode_msgpack(src, dst, ops, weights), timestamp_ms=timestamp_ms)

    def send_edge(self, src: int, dst: int) -> None:
        """One edge."""
        columns = np.array([src]), np.array([dst]), np.array([Op.INSERT], np.uint8)
        self.columns.append(columns)
        self._send(src % self.partitions, encode_msgpack(*columns, np.ones(1, np.float32)))

    def send_many(self, updates: int) -> tuple[np.ndarray, np.ndarray]:
        """One record of edges between vertices that may be new; which edges."""
        partition = int(self.rng.integers(self.partitions))
        src = self.rng.integers(0, 20_000, updates) * self.partitions + partition
        dst = self.rng.integers(0, 60_000, updates)
        self._send_edges(src, dst, Op.INSERT)
        return src, dst

    def take_back(self, src: np.ndarray, dst: np.ndarray) -> None:
        """Delete what ``send_many`` sent."""
        self._send_edges(src, dst, Op.DELETE)

    def _send_edges(self, src: np.ndarray, dst: np.ndarray, op: Op) -> None:
        columns = src, dst, np.full(src.size, op, np.uint8)
        self.columns.append(columns)
        self._send(int(src[0]) % self.partitions, encode_msgpack(*columns, np.ones(src.size, np.float32)))

    def send_bad(self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        """A record that no update may come of."""
        self.bad += value is not None
        self._send(int(self.rng.integers(self.partitions)), value, key=b"bad", headers=headers)

    def _send(self, partition: int, value: bytes | None, **options: Any) -> None:
        self._sent.append(self.producer.send(self.topic, value, partition=partition, **options))

    def offsets(self) -> dict[str, dict[str, int]]:
        """What to wait for to see all of it, once the broker has it."""
        last: dict[int, int] = {}
        for future in self._sent:
            sent = future.get(timeout=PATIENCE_S)
            last[sent.partition] = max(last.get(sent.partition, 0), sent.offset + 1)
        return {self.topic: {str(partition): offset for partition, offset in last.items()}}

    def updates(self) -> UpdateColumns:
        """All good updates so far, in an order that every partition agrees with."""
        src, dst, ops = (np.concatenate(column) for column in zip(*self.columns, strict=True))
        return UpdateColumns(src, dst, ops, None)


@dataclass(frozen=True, slots=True)
class Target:
    """What there is to attack. ``disk``: a small one with its checkpoints and dead letters, or None. ``watchers``:
    honest subscribers, who stay."""

    daemon: Daemon
    stream: Stream
    broker: DevKafka
    tcp: tuple[str, int]
    http: tuple[str, int]
    disk: Path | None
    watchers: list[Watcher] = field(default_factory=list)

    @property
    def engine(self) -> psutil.Process:
        """The daemon's process, which holds the graph."""
        assert self.daemon.process is not None
        return psutil.Process(self.daemon.process.pid)

    def lives(self) -> bool:
        """Whether the daemon's process has not ended."""
        assert self.daemon.process is not None
        return self.daemon.process.poll() is None

    def covers(self, offsets: dict[str, dict[str, int]]) -> bool:
        """Whether answers reflect these offsets within some seconds; False while nobody answers."""
        try:
            with self.daemon.client() as client:
                client.wait(offsets, timeout_ms=10_000)
        except GraphtideError as error:
            if not error.retriable:
                raise
            return False
        return True

    def connect(self) -> socket.socket:
        return socket.create_connection(self.tcp, 10)


# -- clients ------------------------------------------------------------------------------------------------------


def _request(number: int, method: str, **params: Any) -> bytes:
    packed: bytes = msgpack.packb([0, number, method, [params]])
    return packed


def _send(connection: socket.socket, data: bytes) -> bool:
    """False when the server has had enough."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def noise(target: Target, rng: np.random.Generator) -> str:
    """Random bytes, lengths that promise gigabytes, arrays in arrays without end."""
    shapes: tuple[Callable[[], bytes], ...] = (
        lambda: rng.bytes(int(rng.integers(1, 5000))),
        lambda: b"\xdd\xff\xff\xff\xff",
        lambda: b"\xc6\xff\xff\xff\xff" + rng.bytes(100),
        lambda: b"\x91" * 100_000,
        lambda: _request(1, "hello", token=TOKEN)[: int(rng.integers(1, 20))],
        lambda: msgpack.packb({"not": "a request"}),
    )
    sent = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), target.connect() as connection:
            sent += _send(connection, shapes[int(rng.integers(len(shapes)))]())
    return f"{sent} connections of noise"


def strangers(target: Target, rng: np.random.Generator) -> str:
    """Silent connections, half requests and wrong tokens, as many as fit; who has a token is served."""
    with contextlib.ExitStack() as stack:
        held = 0
        for number in range(400):
            try:
                connection = stack.enter_context(target.connect())
            except OSError:
                break
            held += 1
            match number % 3:
                case 1:
                    _send(connection, b"\xc6\x00\x10\x00\x00" + rng.bytes(4096))
                case 2:
                    _send(connection, _request(1, "hello", token="wrong " + rng.bytes(8).hex()))
        with target.daemon.client() as client:
            client.stats()
    return f"{held} strangers, and one client who was answered"


def hogs(target: Target, rng: np.random.Generator) -> str:
    """Large requests, many at once, by clients that hang up; others are answered meanwhile."""
    vertices = np.arange(100_000, dtype="<i8").tobytes()
    greedy = _request(1, "hello", token=TOKEN) + b"".join(
        _request(number, "degree", vertices=vertices) for number in range(2, 6)
    )
    sent = answered = 0
    end = time.monotonic() + SECONDS
    with target.daemon.client() as client:
        while time.monotonic() < end:
            with contextlib.suppress(OSError), target.connect() as connection:
                sent += _send(connection, greedy)
            client.get("hops", [0, int(rng.integers(VERTICES))])
            answered += 1
    return f"{sent} hogs, {answered} answers to another"


def slow_readers(target: Target, rng: np.random.Generator) -> str:
    """Clients that ask for much and read nothing, and waits that can never end."""
    vertices = np.arange(100_000, dtype="<i8").tobytes()
    far = {target.stream.topic: {"0": 1 << 60}}
    with contextlib.ExitStack() as stack:
        for number in range(60):
            try:
                connection = stack.enter_context(target.connect())
            except OSError:
                break
            connection.setblocking(False)
            greedy = [_request(2, "get", program="hops", vertices=vertices)] * 20
            patient = [_request(n, "wait", min_offsets=far, timeout_ms=60_000) for n in range(2, 40)]
            data = _request(1, "hello", token=TOKEN) + b"".join(patient if number % 2 else greedy)
            with contextlib.suppress(OSError):
                connection.send(data)
        time.sleep(SECONDS)
        with target.daemon.client() as client:
            client.stats()
    return "60 who never read"


# -- subscribers --------------------------------------------------------------------------------------------------


def deaf_subscribers(target: Target, rng: np.random.Generator) -> str:
    """Subscribers through both doors who never read; others hear of the news all the same."""
    target.stream.send_many(20_000)
    with _bounded(target) as memory, contextlib.ExitStack() as stack, target.daemon.client() as client:
        for number in range(160):
            stack.enter_context(_subscriber(target, _asked(rng), over_http=number % 2 == 1))
        until(lambda: client.stats()["server"]["subscriptions"] > 80)
        _others_hear(target)
        _keep_coming(target.stream)
        _others_hear(target)
    return f"160 who never read, {memory} for them"


def subscribing_storm(target: Target, rng: np.random.Generator) -> str:
    """Subscribe, hang up, come again, to go on from epochs of before, of later, and from what is no epoch."""
    target.stream.send_many(20_000)
    came = refused = 0
    with _bounded(target) as memory, target.daemon.client() as client:
        end = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            incarnation, number = client.stats().epoch
            for _ in range(20):
                over_http = bool(rng.integers(2))
                asked = _asked(rng) | {"since": _since(rng, incarnation, number)}
                headers = [f"Last-Event-ID: {incarnation}.{rng.integers(1 << 62)}"] * int(rng.integers(2))
                with _subscriber(target, asked, over_http=over_http, headers=headers) as connection:
                    came += 1
                    if rng.random() < 0.5:
                        refused += _is_refused(connection, over_http=over_http)
            target.stream.send_good()
        assert refused, "what is no epoch was taken for one"
        _others_hear(target)
        # Whoever has gone takes no place.
        until(lambda: client.stats()["server"]["subscriptions"] == len(target.watchers))
    return f"{came} came and went, {refused} were refused, {memory} for them"


def dripping_subscribers(target: Target, rng: np.random.Generator) -> str:
    """Subscribers through both doors who read a byte a second."""
    target.stream.send_many(20_000)
    with _bounded(target) as memory, contextlib.ExitStack() as stack:
        doors = [True, False] * 50
        connections = [stack.enter_context(_subscriber(target, _asked(rng), over_http=http)) for http in doors]
        for _ in range(5):
            for connection in connections:
                with contextlib.suppress(OSError):  # whoever keeps others waiting may be sent away
                    connection.recv(1)
            _keep_coming(target.stream, 1.0)
        _others_hear(target)
    return f"100 who read a byte a second, {memory} for them"


def _asked(rng: np.random.Generator) -> dict[str, Any]:
    """What a subscriber asks for: all vertices, some, or the best."""
    asked: tuple[dict[str, Any], ...] = (
        {"program": "hops"},
        {"program": "components"},
        {"program": "pagerank"},
        {"program": "pagerank", "vertices": rng.integers(0, 60_000, 2000).tolist()},
        {"program": "pagerank", "top": 100},
    )
    return asked[int(rng.integers(len(asked)))]


def _since(rng: np.random.Generator, incarnation: int, number: int) -> Any:
    """An epoch to go on from: one of before, one that may come, or none."""
    since: tuple[Any, ...] = (
        None,
        [incarnation, number],
        [incarnation, max(number - int(rng.integers(1, 50)), 0)],
        [incarnation, number + int(rng.integers(1, 1000))],
        [incarnation + 1, 1],
        [0, 0],
        [(1 << 64) - 1, (1 << 64) - 1],
        [incarnation, -1],
        [incarnation, 0.5],
        [incarnation],
        [[incarnation, number]],
        {"epoch": number},
        "yesterday",
        rng.bytes(9).hex(),
    )
    return since[int(rng.integers(len(since)))]


@contextlib.contextmanager
def _subscriber(
    target: Target, asked: dict[str, Any], *, over_http: bool, headers: Sequence[str] = ()
) -> Iterator[socket.socket]:
    """A connection that has asked to be told, and has hardly any room for what comes."""
    if over_http:
        body = json.dumps(asked).encode()
        lines = ["POST /v1/subscribe HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {TOKEN}", f"Content-Length: {len(body)}", *headers, "", ""]
        data = "\r\n".join(lines).encode() + body
    else:
        data = _request(1, "hello", token=TOKEN) + _request(2, "subscribe", **asked)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.settimeout(PATIENCE_S)
        connection.connect(target.http if over_http else target.tcp)
        connection.sendall(data)
        yield connection


def _is_refused(connection: socket.socket, *, over_http: bool) -> bool:
    """Whether the answer to a subscriber is an error, which must be his own."""
    if over_http:
        line = b""
        while b"\r\n" not in line:
            line += connection.recv(1 << 12)
        status = line.split()[1]
        assert status in (b"200", b"400"), line
        return status == b"400"
    unpacker = msgpack.Unpacker(strict_map_key=False)
    while True:
        unpacker.feed(connection.recv(1 << 12))
        for message in unpacker:
            if message[:2] == [1, 2]:
                assert message[2] is None or message[2]["code"] == "bad-request", message[2]
                return message[2] is not None


def _others_hear(target: Target) -> None:
    """Those who read are told of what comes now."""
    target.stream.send_good()
    offsets = target.stream.offsets()
    until(lambda: all(watcher.covers(offsets) for watcher in target.watchers))


class _Memory(threading.Thread):
    """Looks how much memory of its own a process takes, until it is told to stop."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__()
        self._status = Path(f"/proc/{process.pid}/status")
        self._over = threading.Event()
        self._before = self._most = self._bytes()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.02):
            self._most = max(self._most, self._bytes())

    def stop(self) -> None:
        self._over.set()
        self.join()

    @property
    def more_bytes(self) -> int:
        """At most, above what it was in the beginning."""
        return self._most - self._before

    def _bytes(self) -> int:
        """Shared memory is left out, which holds the results."""
        found = [line for line in self._status.read_text().splitlines() if line.startswith("RssAnon")]
        return int(found[0].split()[1]) << 10

    def __str__(self) -> str:
        return f"{self.more_bytes / 2**20:.1f} MiB"


@contextlib.contextmanager
def _bounded(target: Target) -> Iterator[_Memory]:
    """Meanwhile the query server lives, with the memory that its limits allow."""
    server = target.daemon.query_server()
    memory = _Memory(server)
    try:
        yield memory
    finally:
        memory.stop()
    assert target.daemon.query_server().pid == server.pid, "the query server was replaced"
    allowed = LIMITS["memory_bytes_max"] + KNOWN_BYTES * LIMITS["subscribed_vertices_max"] + SPARE_BYTES
    assert memory.more_bytes <= allowed, f"{memory}, where {allowed / 2**20:.1f} are allowed"


# -- the stream ---------------------------------------------------------------------------------------------------


def bad_records(target: Target, rng: np.random.Generator) -> str:
    """Records that are wrong in every way that we know, between good ones."""
    good = msgpack.unpackb(
        encode_msgpack(np.arange(9), np.arange(9), np.ones(9, np.uint8), np.ones(9, np.float32))
    )
    wrong: list[Any] = [
        {**good, "v": 2},
        {**good, "dst": good["dst"][:-3]},
        {**good, "src": "text"},
        {**good, "op": b"\x09" * 9},
        {**good, "weight": b"\0"},
        {key: value for key, value in good.items() if key != "src"},
        ["no", "map"],
        None,
        1 << 40,
    ]
    values = [msgpack.packb(item) for item in wrong]
    values += [
        msgpack.packb(good)[:-1],
        b"",
        b"\xc1",
        rng.bytes(100_000),
        msgpack.packb({"v": 1, "src": [[[]]] * 9}),
    ]
    for value in values:
        target.stream.send_bad(value)
        target.stream.send_good()
    json_header = [("content-type", b"application/json")]
    for value in (b"{", b'{"src": 1e400, "dst": 2}', b"\xff\xfe", json.dumps({"v": 1, "edges": 7}).encode()):
        target.stream.send_bad(value, json_header)
    target.stream.send_bad(b"1 2", [("content-type", b"application/x-unheard-of")])
    target.stream.send_bad(gzip.compress(bytes(1 << 20)), [("content-type", b"text/csv")])
    target.stream.send_bad(None)  # a tombstone
    return f"{len(values) + 7} bad records"


def dates(target: Target, rng: np.random.Generator) -> str:
    """Good records from the beginning and the end of time."""
    for timestamp_ms in (0, 1, 253_402_300_799_000, 1 << 62):
        target.stream.send_good(timestamp_ms=timestamp_ms)
    return "records of 1970 and long after"


def clock_steps(target: Target, rng: np.random.Generator) -> str:
    """The clock on the wall jumps forth and back, by hours and days, while updates and bad records come."""
    hours = [*rng.integers(-20, 20, 3).tolist(), *rng.integers(-10_000, 10_000, 2).tolist(), 0]
    try:
        for number in hours:
            step(target.daemon.folder, 3600.0 * number)
            target.stream.send_bad(b"\xc1 under a clock that jumps")
            _keep_coming(target.stream, SECONDS / 2)
            with target.daemon.client() as client:
                assert client.stats()["lag"]["seconds"] >= 0
    finally:
        step(target.daemon.folder, 0.0)
    return f"the clock went {', '.join(f'{number:+}' for number in hours)} hours"


def broker_pauses(target: Target, rng: np.random.Generator) -> str:
    """The broker hangs, and goes on."""
    os.kill(target.broker.pid, signal.SIGSTOP)
    try:
        _keep_coming(target.stream)
    finally:
        os.kill(target.broker.pid, signal.SIGCONT)
    return "the broker hung"


def broker_restarts(target: Target, rng: np.random.Generator) -> str:
    """The broker goes away, and comes back."""
    target.broker.restart()
    return "the broker was restarted"


# -- signals ------------------------------------------------------------------------------------------------------


def _pause(process: psutil.Process, stream: Stream) -> None:
    """Stop it for some seconds, in which updates go on coming, and let it go on."""
    process.suspend()
    try:
        _keep_coming(stream)
    finally:
        process.resume()


def _keep_coming(stream: Stream, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stream.send_good()
        time.sleep(0.02)


def server_pauses(target: Target, rng: np.random.Generator) -> str:
    """The query server stands still for a while, and is the same afterwards."""
    server = target.daemon.query_server()
    _pause(server, target.stream)
    with target.daemon.client() as client:
        client.stats()
    assert target.daemon.query_server().pid == server.pid, "a healthy server was replaced because it paused"
    return "the query server paused"


def server_dies(target: Target, rng: np.random.Generator) -> str:
    """The query server is killed, and another one answers."""
    dead = target.daemon.query_server()
    dead.kill()
    until(lambda: target.daemon.query_server().pid != dead.pid)
    until(target.daemon.answers)
    return "the query server was killed"


def engine_pauses(target: Target, rng: np.random.Generator) -> str:
    """The whole daemon stands still for a while."""
    _pause(target.engine, target.stream)
    return "the engine paused"


def engine_dies(target: Target, rng: np.random.Generator) -> str:
    """kill -9, and a new start."""
    time.sleep(float(rng.uniform(0, 1)))
    target.daemon.kill()
    target.daemon.start(ready_s=None)
    until(target.daemon.answers)
    return "the daemon was killed"


def engine_restarts(target: Target, rng: np.random.Generator) -> str:
    """SIGTERM, a clean end, and a new start."""
    assert target.daemon.stop() == 0, target.daemon.log_tail()
    target.daemon.start(ready_s=None)
    until(target.daemon.answers)
    return "the daemon was restarted"


def hang_up(target: Target, rng: np.random.Generator) -> str:
    """SIGHUP asks for certificates and tokens to be read again, nothing more."""
    for _ in range(5):
        target.engine.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    return "5 hang-ups"


# -- disk and memory ----------------------------------------------------------------------------------------------


def disk_full(target: Target, rng: np.random.Generator) -> str:
    """Nothing can be written for a while: no checkpoint, no dead letter."""
    if target.disk is None:
        return "left out: no disk of its own may be mounted here"
    with filled(target.disk):
        target.stream.send_bad(b"\xc1 while the disk is full")
        _keep_coming(target.stream)
    return "the disk was full"


def memory_short(target: Target, rng: np.random.Generator) -> str:
    """No more address space while the graph grows: whatever fails meanwhile, the next start is right."""
    engine = target.engine
    before = resource.prlimit(engine.pid, resource.RLIMIT_AS)
    resource.prlimit(engine.pid, resource.RLIMIT_AS, (engine.memory_info().vms + (1 << 20), before[1]))
    target.stream.send_many(40_000)
    _keep_coming(target.stream)
    assert target.daemon.process is not None
    if target.daemon.process.poll() is None:
        resource.prlimit(engine.pid, resource.RLIMIT_AS, before)
    offsets = target.stream.offsets()
    until(lambda: not target.lives() or target.covers(offsets))  # it may be answered while the engine ends
    if not target.lives():
        target.daemon.start(ready_s=None)
        until(target.daemon.answers)
        return "memory ran out, and the daemon was started again"
    return "memory was short"


def memory_limited(target: Target, rng: np.random.Generator) -> str:
    """A control group as good as full while the graph grows: nobody is killed, updates and checkpoints wait."""
    with memory_group() as group:
        if isinstance(group, str):
            return f"left out: {group}"
        _restart_with_audits(target, whole=False)  # which take at once what nobody asks for
        engine = target.engine
        group.take([engine, *engine.children(recursive=True)])
        sent = [target.stream.send_many(40_000) for _ in range(4)]
        offsets = target.stream.offsets()
        until(lambda: target.covers(offsets))  # else much of what is used would be what a start takes
        group.limit(group.used() + GROUP_BYTES)
        waited = False
        for _ in range(12):
            sent.append(target.stream.send_many(40_000))
            _keep_coming(target.stream, SECONDS / 4)
            assert target.lives() and group.kills() == 0, target.daemon.log_tail()
            with target.daemon.client() as client:
                waited = waited or client.stats()["memory"]["waits_for"] is not None
        put_off = "is put off" in target.daemon.log_tail(50)
        group.limit(1 << 40)
        for src, dst in sent:
            target.stream.take_back(src, dst)
        offsets = target.stream.offsets()
        until(lambda: target.covers(offsets))
        assert target.lives() and group.kills() == 0, target.daemon.log_tail()
        _restart_with_audits(target, whole=True)
    words = [word for word, was in (("updates waited", waited), ("a checkpoint was put off", put_off)) if was]
    return f"a control group was full: {' and '.join(words) or 'but nothing had to wait'}"


def _restart_with_audits(target: Target, *, whole: bool) -> None:
    daemon = target.daemon
    assert daemon.stop() == 0, daemon.log_tail()
    daemon.settings["audit"] = {**daemon.settings["audit"], "full_every_epoch": whole}
    daemon.config.write_text(toml(daemon.settings))
    daemon.start(ready_s=None)
    until(daemon.answers)


Attack = Callable[[Target, np.random.Generator], str]

ON_SUBSCRIPTIONS: tuple[Attack, ...] = (deaf_subscribers, subscribing_storm, dripping_subscribers)

ATTACKS: tuple[Attack, ...] = (
    noise,
    strangers,
    hogs,
    slow_readers,
    *ON_SUBSCRIPTIONS,
    bad_records,
    dates,
    clock_steps,
    broker_pauses,
    broker_restarts,
    server_pauses,
    server_dies,
    engine_pauses,
    engine_dies,
    engine_restarts,
    hang_up,
    disk_full,
    memory_short,
    memory_limited,
)
