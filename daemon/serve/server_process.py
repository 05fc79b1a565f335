"""A running query server, as the engine's process holds it: our ends of its two sockets, and what it was told.

Nothing here waits for the server: what finds no room is to be sent again. A server that has had no room for
``UNSENT_SECONDS_MAX`` is stuck, and killed for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import socket
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgpack
import numpy as np

from ..client.wire import plain
from .template import Child, Template

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 5.0
KILL_SECONDS_MAX = 60.0
"""A killed process may still have to give much memory back."""
NO_ROOM = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
UNSENT_SECONDS_MAX = 10.0
"""A server that has no room for its memory for so long is stuck."""


class Lane(Protocol):
    """The engine's end of a lane (``records.lane``)."""

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Of the memory, of the eventfd that tells of questions, and of the one that tells of answers."""
        ...

    def close(self) -> None:
        """The server is gone; harmless to repeat."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing of it is left, or for so long; which it was."""
        ...


class ServerProcess:
    """One running server process and our ends of its two sockets."""

    def __init__(self, template: Template) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as its:
            self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(self.control)
            its.enter_context(control)
            self.calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            ours.enter_context(self.calls)
            its.enter_context(calls)
            self.child: Child = template.fork(control.fileno(), calls.fileno())
            ours.pop_all()
        self.started = time.monotonic()
        self.ready = threading.Event()
        self.reported = self.started
        self.generations: dict[str, int] = {}  # of what it was told, by kind
        self._answering = threading.Lock()
        self.graces: dict[int, threading.Event] | None = {}  # None: it is gone, and its requests with it
        self.answering: threading.Thread | None = None
        self.lane: Lane | None = None
        self._sending = threading.Lock()
        self._unsent_since: float | None = None

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> bool:
        """Send without waiting; False where there is no room, to be tried again."""
        with self._sending:
            try:
                self._send(msgpack.packb(message, default=plain), fds)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    self.child.kill()
                    return True
                now = time.monotonic()
                self._unsent_since = self._unsent_since or now
                if now - self._unsent_since > UNSENT_SECONDS_MAX:
                    log.error(
                        "the query server took no message for %.0f s; it is replaced", now - self._unsent_since
                    )
                    self.child.kill()
                return False
            self._unsent_since = None
            return True

    def was_told(self, kind: str, generation: int) -> bool:
        return self.generations.get(kind) == generation

    def tell(self, kind: str, generation: int, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send this generation; where there is no room it is owed, and ``was_told`` says so."""
        if self.send({"kind": kind, **message}, fds):
            self.generations[kind] = generation

    def answer(self, response: bytes) -> None:
        """Send answers to questions, one thread after the other.

        Raises:
            OSError: it is gone.
        """
        with self._answering:
            self.calls.sendall(response)

    def notify(self) -> None:
        """Let the server look for the newest epoch; whatever it has not read yet makes it do that anyway."""
        unread = struct.unpack("i", fcntl.ioctl(self.control, termios.TIOCOUTQ, bytes(4)))[0]
        if not unread:
            self.send({"kind": "published"})

    def _send(self, packed: bytes, fds: Sequence[int]) -> None:
        # MSG_DONTWAIT only here: the watching thread receives on the same socket, and does wait.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, np.array(fds, np.int32).tobytes())] if fds else []
        self.control.sendmsg([packed], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """End the process: it goes when its control socket does; it is killed when it does not."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.calls.shutdown(socket.SHUT_RDWR)
        if not self.child.ended(STOP_SECONDS_MAX):
            self.child.kill()
            self.child.ended(KILL_SECONDS_MAX)
