"""An object in a process of its own: work that takes too long, or crashes, ends only that process.

What runs inside a library cannot be stopped from within, and some of what is compared here takes minutes, or
does not survive.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

MAKING_S_MAX = 300.0
"""How long making the object may take: imports, and loading a graph."""


class TooLong(Exception):
    """A call took longer than it was given; the process was ended."""


class Failed(Exception):
    """A call raised, or took its process down; the message says which."""


class Isolated:
    """``factory(*arguments)`` in a child process; made with the first call, and anew after one that went wrong."""

    def __init__(self, factory: Callable[..., Any], *arguments: Any) -> None:
        """``factory`` is a class or function of a module in this folder."""
        self._made_from = (factory, arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of the object.

        Raises:
            TooLong: it took longer than ``seconds``.
            Failed: it raised, or its process died.
        """
        if self._connection is None:
            self._start()
        return self._ask((method, arguments), seconds)

    def close(self) -> None:
        """End the process, and with it the object."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

    def _start(self) -> None:
        here, there = socket.socketpair()
        command = [sys.executable, __file__, str(there.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[there.fileno()])
        there.close()
        self._connection = Connection(here.detach())
        self._ask(self._made_from, MAKING_S_MAX)

    def _ask(self, message: Any, seconds: float) -> Any:
        assert self._connection is not None
        try:
            self._connection.send(message)
            if not self._connection.poll(seconds):
                raise TooLong
            succeeded, value = self._connection.recv()
        except TooLong:
            self.close()
            raise
        except (EOFError, OSError):
            assert self._process is not None
            status = self._process.wait()
            self.close()
            raise Failed(f"its process ended with {status}") from None
        if not succeeded:
            self.close()
            raise Failed(value)
        return value


def _serve(connection: Connection) -> None:
    """Make the object, then answer calls until the other end is closed."""
    made: Any = None
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            if made is None:
                made, value = what(*arguments), None
            else:
                value = getattr(made, what)(*arguments)
            connection.send((True, value))
        except Exception as error:  # whatever a library raises
            connection.send((False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
