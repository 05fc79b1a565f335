"""Subscribers who take what they can get, in processes of their own, until they are told that it is enough.

``reading``: to the ranks of all vertices, and read what comes as fast as it comes. ``deaf``: never read, to all
vertices, to a hundred, or to the best hundred, half of them over HTTP. ``storm``: come, ask to go on from some
epoch, and hang up, half of them before they are answered, over and over.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
from asking import connected, fork

from graphtide.daemon.client.wire import encode_request

RECEIVE_BYTES = 1 << 18
STORM_PAUSE_S = 0.001
"""Between two of one process: what they do to the server is to be seen, not how fast Python opens connections."""


FIXED_ROUNDS = 100
_FIXED = np.linspace(0.0, 1.0, 1 << 10)


@dataclass(frozen=True)
class Doors:
    """Addresses of one daemon: of the socket, and over HTTP."""

    socket: str
    http: str


def begun(kind: str, doors: Doors, count: int, ids: np.ndarray, processes: int) -> list[Any]:
    """So many of a kind (``KINDS``), in processes; a pipe of each, once all have subscribed.

    ``ids``: int64, vertices to choose from.
    """
    pipes = []
    for number in range(processes):
        mine, its = fork.Pipe()
        share = len(range(number, count, processes))
        fork.Process(target=KINDS[kind], args=(doors, share, ids, number, its), daemon=True).start()
        its.close()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    return pipes


def ended(pipes: list[Any]) -> dict[str, int]:
    """Tell them that it is enough: how many subscribed, and how many bytes they read."""
    for pipe in pipes:
        pipe.send("enough")
    found = [pipe.recv() for pipe in pipes]
    return {name: sum(each[name] for each in found) for name in ("subscribed", "bytes")}


def reading(doors: Doors, count: int, ids: np.ndarray, seed: int, pipe: Any) -> None:
    poll, connections, read = select.epoll(), dict[int, socket.socket](), 0
    for _ in range(count):
        connection = _over_socket(doors, {"program": "pagerank"})
        _answered(connection)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    poll.register(pipe, select.EPOLLIN)
    pipe.send("ready")
    room, is_enough = bytearray(RECEIVE_BYTES), False
    while not is_enough:
        for fd, _ in poll.poll():
            if fd == pipe.fileno():
                is_enough = True
            elif size := connections[fd].recv_into(room):
                read += size
            else:
                raise ConnectionError("a subscriber who reads was sent away")
    pipe.send({"subscribed": count, "bytes": read})


def deaf(doors: Doors, count: int, ids: np.ndarray, seed: int, pipe: Any) -> None:
    rng, connections = np.random.default_rng(seed), []
    for number in range(count):
        asked = _asked(rng, ids)[number % 3]
        ask = _over_http if number % 2 else _over_socket
        connections.append(ask(doors, asked))
    pipe.send("ready")
    pipe.recv()
    for connection in connections:
        connection.close()
    pipe.send({"subscribed": count, "bytes": 0})


def storm(doors: Doors, count: int, ids: np.ndarray, seed: int, pipe: Any) -> None:
    """``count`` is of no matter: one comes after the other."""
    rng, came, read = np.random.default_rng(seed), 0, 0
    pipe.send("ready")
    while not pipe.poll():
        since = [1, int(rng.integers(1 << int(rng.integers(1, 63))))]
        asked = _asked(rng, ids)[int(rng.integers(3))] | {"since": since}
        ask = _over_http if rng.random() < 0.5 else _over_socket
        with ask(doors, asked) as connection:
            came += 1
            if rng.random() < 0.5:
                read += len(connection.recv(RECEIVE_BYTES))
        time.sleep(STORM_PAUSE_S)
    pipe.recv()
    pipe.send({"subscribed": came, "bytes": read})


Kind = Callable[[Doors, int, np.ndarray, int, Any], None]
KINDS: dict[str, Kind] = {"reading": reading, "deaf": deaf, "storm": storm}


def _asked(rng: np.random.Generator, ids: np.ndarray) -> list[dict[str, Any]]:
    """All vertices, some, the best."""
    chosen: list[int] = rng.choice(ids, min(100, ids.size), replace=False).tolist()
    return [{"program": "pagerank"}, {"program": "bfs", "vertices": chosen}, {"program": "pagerank", "top": 100}]


def _over_socket(doors: Doors, asked: dict[str, Any]) -> socket.socket:
    connection = connected(doors.socket)
    connection.sendall(encode_request(1, "subscribe", asked))
    return connection


def _over_http(doors: Doors, asked: dict[str, Any]) -> socket.socket:
    body = json.dumps(asked)
    head = "POST /v1/subscribe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = connected(doors.http)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def _answered(connection: socket.socket) -> None:
    """Wait for the answer, which comes before anything else.

    Raises:
        RuntimeError: it is an error.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=1 << 30, strict_map_key=False)
    while True:
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed it")
        unpacker.feed(data)
        for message in unpacker:
            if message[2] is not None:
                raise RuntimeError(f"refused: {message[2]}")
            return


# -- what they cost -------------------------------------------------------------------------------------------


class Cost:
    """What a daemon's processes took of the machine since this was made, until ``ended``."""

    def __init__(self, engine: psutil.Process) -> None:
        """Looks at the query server's memory again and again meanwhile, and at how fast a core is."""
        self._engine = engine
        self._server = next(server for template in engine.children() for server in template.children())
        self._over = threading.Event()
        self._own_bytes = 0
        self._fixed: list[float] = []
        self._looking = threading.Thread(target=self._look)
        self._looking.start()
        self._before = self._seconds()

    def ended(self) -> dict[str, float]:
        """Seconds: ``engine`` of the processor, ``waited``: its threads were ready and had none, ``server`` of the
        processor; ``own_bytes`` of the query server, which shares none of them, at most; ``fixed`` of the
        processor for work that is always the same and needs no memory: others may have made a core slower."""
        after = self._seconds()
        self._over.set()
        self._looking.join()
        names = ("engine", "waited", "server")
        spent = {name: end - start for name, start, end in zip(names, self._before, after, strict=True)}
        return spent | {"own_bytes": self._own_bytes, "fixed": float(np.mean(self._fixed))}

    def _seconds(self) -> tuple[float, float, float]:
        return own_seconds(self._engine), waited_seconds(self._engine.pid), own_seconds(self._server)

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self._own_bytes = max(self._own_bytes, own_bytes(self._server.pid))
            begun = time.thread_time()
            for _ in range(FIXED_ROUNDS):
                np.sin(_FIXED)
            self._fixed.append(time.thread_time() - begun)


def own_seconds(process: psutil.Process) -> float:
    """Processor time of a process so far, threads that have ended included."""
    times = process.cpu_times()
    return float(times.user + times.system)


def waited_seconds(pid: int) -> float:
    """How long threads that a process has now were ready to run, and waited for a processor."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9


def own_bytes(pid: int) -> int:
    """Memory of a process that no other shares, and no file has."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
