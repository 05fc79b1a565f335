"""The template: a process that has loaded whatever a query server needs, and forks one whenever it is asked to.

A server that died is back in milliseconds so, however busy the machine is: loading the libraries and the kernels
takes most of a second of a free core, and many times that where there is none. The daemon forks it from itself as
soon as it knows its settings, with the libraries that both need, and both load the rest at once; one that is lost
later is replaced by a new interpreter, since a daemon with threads cannot be forked. The template has one thread
and answers nobody, so that nothing but the system can end it.

``Template`` is the daemon's end. ``serve_forks`` is the process itself, which ``server.serve_door`` calls once it
has loaded what it can. Over their socket come the two descriptors that a new server gets; back go its process id
with a descriptor of the process, and word of its end.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

import msgpack

from . import shared_memory

MESSAGE_BYTES_MAX = 256
NAME = "graphtide-query"
"""What ``ps`` and ``top`` call the template and its servers."""
STOP_SECONDS_MAX = 5.0
LAST_LINES, LAST_BYTES_MAX = 5, 2000
"""What is told of what a template wrote before it ended."""
ORPHAN_SECONDS_MAX = 2.0
"""How long a server whose daemon is gone may take to end: the next daemon wants its addresses."""


# -- the daemon's end -----------------------------------------------------------------------------------------


class Child:
    """A server process. Its descriptor means this very process, also when its ``pid`` is another's by now."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd
        self._using = threading.Lock()

    def kill(self) -> None:
        """Harmless when it is gone."""
        with self._using, contextlib.suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        with self._using:
            if self._fd < 0:
                return True
            try:
                descriptor = os.dup(self._fd)  # whoever wants to kill it need not wait for us
            except OSError:  # no descriptor is left
                return _can_be_read(self._fd, timeout_s)
        try:
            return _can_be_read(descriptor, timeout_s)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Forget a process that has ended."""
        with self._using:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


def _can_be_read(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Template:
    """A running template; one thread at a time calls it.

    Servers are asked for once every kernel is in the cache: the template compiles none.
    """

    def __init__(
        self,
        id_kind: Literal["int", "string"],
        python_modules: Sequence[str],
        serve_door: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """``serve_door``: what a fork of this process does to be the template, with its end of the socket.

        Without one, or where this process has other threads (what it forks could wait for them for ever), the
        template is a new interpreter that loads everything.
        """
        self._was_asked = False
        self._said = -1
        """The file that a new interpreter writes its standard error to, until it has loaded."""
        self._taking = threading.Lock()
        self._process: subprocess.Popen[bytes] | _Fork
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                if serve_door is not None and _is_alone():
                    self._process = _Fork(partial(_become_template, self._socket, theirs, serve_door))
                    return
                self._said = os.memfd_create("graphtide:stderr", os.MFD_CLOEXEC)
                with open(os.dup(2), "wb", buffering=0) as aloud:
                    self._process = subprocess.Popen(
                        template_command(theirs.fileno(), aloud.fileno(), id_kind, python_modules),
                        pass_fds=[theirs.fileno(), aloud.fileno()],
                        stderr=self._said,
                        env=_environment(),
                    )
        except BaseException:
            self._socket.close()
            self._take_said()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, control: int, calls: int) -> Child:
        """A new server with these two descriptors, once everything is loaded.

        Raises:
            ConnectionError: the template is gone.
            OSError: the system has no room for another process.
        """
        self._was_asked = True
        socket.send_fds(self._socket, [b"fork"], [control, calls])
        message, fds = self._receive("forked")
        if not fds:
            raise OSError(message["errno"], f"the query server cannot be forked: {os.strerror(message['errno'])}")
        return Child(message["pid"], fds[0])

    def status(self, child: Child) -> int | None:
        """How a child ended: its exit status, or minus the signal; None when the template is gone itself."""
        try:
            while True:
                message, _ = self._receive("ended")
                if message["pid"] == child.pid:
                    return int(message["status"])
        except OSError:
            return None

    def end(self) -> str:
        """As ``close``, of one that is gone: how it ended, in words, and what it wrote last while it loaded."""
        self._end()
        status = self._process.returncode
        assert status is not None
        ended = f"ended with status {status}"
        if status < 0:
            ended = f"was ended by signal {-status} ({signal.strsignal(-status)})"
        said = self._take_said()
        lines = said[-LAST_BYTES_MAX:].decode(errors="replace").splitlines()
        last = " | ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])
        return f"its template {ended}{': ' if last else ''}{last}"

    def close(self) -> None:
        """End it, once its servers have ended; harmless to repeat. Whoever waits for a fork is told.

        One that was asked for no server may be loading still, and would not see for long that it is to end.
        """
        self._end()
        self._take_said()

    def _take_said(self) -> bytes:
        """What it wrote while it loaded, which is passed on, too."""
        with self._taking:
            if self._said < 0:
                return b""
            said = os.pread(self._said, os.fstat(self._said).st_size, 0)
            os.close(self._said)
            self._said = -1
        _say(said)
        return said

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if not self._was_asked:
            self._process.kill()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, kind: str) -> tuple[dict[str, int], list[int]]:
        while True:
            packed, fds = shared_memory.receive_with_fds(self._socket, MESSAGE_BYTES_MAX)
            if not packed:
                raise ConnectionResetError("the query server's template is gone")
            message = msgpack.unpackb(packed)
            if message.pop("kind") == kind:
                return message, fds


class _Fork:
    """A fork of this process that works and ends; what ``subprocess.Popen`` is for other programs."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=work)
        self._process.start()
        assert self._process.pid is not None
        self._fd = os.pidfd_open(self._process.pid)
        self._waiting = threading.Lock()
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> None:
        """
        Raises:
            subprocess.TimeoutExpired: it works on.
        """
        with self._waiting:
            if self._fd < 0:
                return
            poll = select.poll()  # not ``join``: that waits for all to whom the process has left a pipe, too
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                raise subprocess.TimeoutExpired(NAME, timeout_s or 0.0)
            self._process.join()
            self.returncode = self._process.exitcode
            os.close(self._fd)
            self._fd = -1


def _is_alone() -> bool:
    """Whether this process has one thread, those that no Python made included."""
    return len(os.listdir("/proc/self/task")) == 1


def _become_template(
    daemons: socket.socket, door: socket.socket, serve_door: Callable[[socket.socket], None]
) -> None:
    ignore_signals()
    daemons.close()  # or the daemon's end would not be seen
    serve_door(door)


def template_command(door: int, stderr: int, id_kind: str, python_modules: Sequence[str]) -> list[str]:
    """How the process is started. ``stderr``: where it is to write once it has loaded (``speak_aloud``)."""
    modules = [argument for module in python_modules for argument in ("--module", module)]
    module = "graphtide.daemon.serve.server"
    descriptors = ["--door", str(door), "--stderr", str(stderr)]
    return [sys.executable, "-P", "-m", module, *descriptors, "--ids", id_kind, *modules]


def _environment() -> dict[str, str]:
    """The child must find the very package that runs here, and nothing from the working directory.

    One thread for linear algebra, which it never does: what forks should have no other threads.
    """
    known = [path for path in sys.path if path and Path(path).exists()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known), "OPENBLAS_NUM_THREADS": "1"}


# -- the process ----------------------------------------------------------------------------------------------


def ignore_signals() -> None:
    """The engine decides when to end, by closing the sockets; signals to the group are its affair."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)


def speak_aloud(stderr: int) -> None:
    """Write errors there from now on; takes over the descriptor.

    Until then the standard error is a file that the daemon reads when this process ends: what keeps it from
    loading, whoever says so, stands in the daemon's log. What was written there and was not the last word is
    passed on.
    """
    said = os.pread(2, os.fstat(2).st_size, 0)
    os.ftruncate(2, 0)  # it is no last word
    os.dup2(stderr, 2)
    os.close(stderr)
    _say(said)


def _say(written: bytes) -> None:
    """Write it to the standard error."""
    with contextlib.suppress(OSError), open(2, "wb", closefd=False) as aloud:
        aloud.write(written)


def serve_forks(
    door: socket.socket, load: Callable[[], None], serve: Callable[[socket.socket, socket.socket], None]
) -> None:
    """Fork until the daemon is gone. Each child gets its two sockets, calls ``serve``, and ends after it.

    ``load`` is called when the first one is asked for, and readies what all have in common.

    Children end when the daemon is gone, too. Nobody else would take notice of one that hangs: it is killed.
    """
    children: dict[int, int] = {}  # descriptor -> process id
    ready = False
    while True:
        for fd in select.select([door.fileno(), *children], [], [])[0]:
            if fd in children:
                pid = children.pop(fd)
                os.close(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    door.send(msgpack.packb({"kind": "ended", "pid": pid, "status": status}))
                continue
            try:
                message, fds = shared_memory.receive_with_fds(door, MESSAGE_BYTES_MAX)
            except ConnectionError:  # the daemon ended, and had not read everything
                message = b""
            if not message:
                _end(children)
                return
            control, calls = (socket.socket(fileno=given) for given in fds)
            if not ready:
                load()
                ready = True
            with control, calls:
                try:
                    pid = os.fork()
                except OSError as error:
                    with contextlib.suppress(OSError):
                        door.send(msgpack.packb({"kind": "forked", "errno": error.errno}))
                    continue
                if pid == 0:
                    door.close()
                    for other in children:
                        os.close(other)
                    _end_with(partial(serve, control, calls))
            fd = os.pidfd_open(pid)
            children[fd] = pid
            with contextlib.suppress(OSError):  # the daemon may have ended meanwhile: the next look says so
                socket.send_fds(door, [msgpack.packb({"kind": "forked", "pid": pid})], [fd])


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Do it, and end this process, without taking the interpreter down: that writes to every page which is shared
    with the template, so that each is copied, some 40 MB in all, where there may be no memory any more."""
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _end(children: Mapping[int, int]) -> None:
    """Wait for children (by descriptor) to end, and kill those that have not soon."""
    deadline = time.monotonic() + ORPHAN_SECONDS_MAX
    for fd, pid in children.items():
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)  # not yet waited for, so that the number is still its own
        os.waitpid(pid, 0)
