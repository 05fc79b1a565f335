"""What a test leaves behind: threads, child processes and sockets that were not there before it.

A Kafka client that a test forgets goes on in the middle of the tests after it, where it takes random numbers,
writes log lines and keeps ports; the test that fails then is not the guilty one.

Only Python's threads count: those that BLAS starts once are none of them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

GRACE_S = 60.0
"""How long what is about to end may take."""


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds at one moment: threads, the ids of its children (zombies too), sockets.

    A socket is named as in ``/proc/self/fd``: no two have the same name.
    """

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """About 0.05 ms: a file for each thread, a link for each file descriptor."""
        return cls(frozenset(threading.enumerate()), frozenset(_children()), frozenset(_sockets()))

    def since(self, before: Held) -> Held:
        """What of it was not there before."""
        return Held(
            self.threads - before.threads, self.processes - before.processes, self.sockets - before.sockets
        )

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes or self.sockets)

    def __str__(self) -> str:
        fds = _sockets()
        return "; ".join(
            (
                *sorted(f"thread {thread.name}" for thread in self.threads),
                *(f"process {pid} ({_command(pid)})" for pid in sorted(self.processes)),
                *(f"socket {_described(fds[name])}" for name in sorted(self.sockets & fds.keys())),
            )
        )


def leftovers(before: Held, grace_s: float | None = None) -> Held:
    """What was not there before, and does not end by itself within the grace (None: ``GRACE_S``)."""
    left = Held.now().since(before)
    if left:
        gc.collect()  # frees what an exception's traceback held; an open socket among it warns, which is an error
        deadline = time.monotonic() + (GRACE_S if grace_s is None else grace_s)
        while (left := _guilty(Held.now().since(before))) and time.monotonic() < deadline:
            time.sleep(0.01)
    return left


def _guilty(held: Held) -> Held:
    """Without the socket that CUDA's driver opens, for good, when a process first uses a device."""
    fds = _sockets()
    sockets = {name for name in held.sockets & fds.keys() if "cuda-uvmfd" not in _described(fds[name])}
    return Held(held.threads, held.processes, frozenset(sockets))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or a socket behind.

    Fixtures of wider scope are there before it and end after it; the test's own end before it.
    The broker is all tests' own, though one of them restarted it.
    """
    broker = request.getfixturevalue("kafka") if "kafka" in request.fixturenames else None
    before = Held.now()
    yield
    if broker is not None:
        before = Held(before.threads, before.processes | {broker.pid}, before.sockets)
    if left := leftovers(before):
        pytest.fail(f"left behind: {left}", pytrace=False)


def _children() -> Iterator[int]:
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile
            yield from map(int, Path(f"/proc/self/task/{task}/children").read_bytes().split())


def _sockets() -> dict[str, int]:
    """Open sockets with the file descriptor of each (the last, when it has several)."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own, at least
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                found[name] = int(fd)
    return found


def _command(pid: int) -> str:
    """Its command line; for a zombie, which has none, that nobody waited for it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except FileNotFoundError:
        return "gone"
    return b" ".join(words).decode(errors="replace") or "ended, and nobody waited for it"


def _described(fd: int) -> str:
    """Its family and both ends."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as opened:
        said = f"{opened.family.name} {opened.getsockname()}"
        with contextlib.suppress(OSError):
            return f"{said} connected to {opened.getpeername()}"
        return f"{said} listening" if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else said
    return f"file descriptor {fd}"
