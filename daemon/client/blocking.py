"""The client whose calls block."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from ..errors import GraphtideError, TimedOut, Unavailable
from .addresses import UnixAddress
from .calls import Blocking, Call
from .changes import BACKOFF_S_MAX, BACKOFF_S_MIN, SILENCE_S_MAX, Following
from .replicas import none_of
from .requests import TIMEOUT_S_MAX, Requests
from .results import Change, VertexIds, WireOffsets
from .wire import RECEIVE_BYTES, ClientCore, Notification, Response

T = TypeVar("T")


class Client(Blocking, Requests):
    """One connection; calls block, and those of several threads follow each other. A forked process opens another.

        with Client("unix:/run/graphtide.sock") as c:
            c.get("pagerank", [1, 2]).values

    Every result has the ``epoch`` and the ``offsets`` that it reflects. Errors of the server are raised as the
    classes of ``errors``. A connection that broke is opened again by the next call.
    """

    _socket: socket.socket | None = None
    _core: ClientCore

    def __init__(
        self,
        address: str | Sequence[str],
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, token, timeout, ssl_context)
        self._turn, self._process = threading.RLock(), os.getpid()

    __init__.__doc__ = Requests.__init__.__doc__

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """A copy, in another process perhaps, has a connection of its own."""
        return type(self), self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call would open one again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def subscribe(
        self,
        program: str,
        vertices: VertexIds | None = None,
        *,
        top: int | None = None,
        order: str | None = None,
        threshold: float | None = None,
        snapshot: bool = True,
        since: tuple[int, int] | None = None,
        reconnect: bool | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Subscription:
        """What each epoch changes, to be iterated over.

        ``vertices``: these only (also those that do not exist yet), else all. ``top``: so many with the largest
        values (``order="asc"``: the smallest); who is not among them any more is ``removed``. ``threshold``: leave
        out values that are off those sent before by at most this part of them. The first change is a snapshot,
        unless ``snapshot`` is false. ``since``: go on from the epoch of an earlier change; where the server does
        not know any more what changed since, there is a snapshot. ``reconnect``: when the connection breaks go on
        so, at the next server if this one is gone, which begins with a snapshot. None: where the client has
        several addresses.

        It has a connection of its own. Whoever reads slowly gets the changes of several epochs in one.

            for change in client.subscribe("pagerank"):
                print(change.epoch, change.ids, change.values)

        Raises:
            GraphtideError: the server refuses, or ends it; or the connection breaks, where it does not go on.
        """
        following = self._subscription(
            program, vertices, top, order, threshold, snapshot, since, min_offsets, timeout_ms
        )
        own = _Listening(*self._given)
        own._replicas = self._replicas.from_here()
        return Subscription(own, following, reconnect=self._goes_on(reconnect))

    def _call(self, call: Call[T]) -> T:
        if self._process != os.getpid():
            # The connection is the parent's, who would take answers that are meant for us, as we would theirs; and
            # the turn is a thread's, perhaps, that the parent has.
            self._turn, self._process = threading.RLock(), os.getpid()
            self.close()
        with self._turn:
            return self._answered(call)

    def _answered(self, call: Call[T]) -> T:
        reused = self._socket is not None
        if not reused:
            self._connect()
        try:
            return self._exchange(call)
        except TimedOut:
            if self._socket is None:
                self._replicas.turn()
            raise
        except Unavailable:
            # One that only reads may be repeated where it met a connection which had died while idle, or a replica
            # that went away.
            if self._socket is not None or not call.reads or not (reused or len(self._replicas) > 1):
                raise
        self._connect()
        return self._exchange(call)

    def _connect(self) -> None:
        """To the first server, from the present one on, that can be spoken to."""
        self._at_a_server(self._connect_once)

    def _at_a_server(self, begin: Callable[[], None]) -> None:
        """Begin at the first server, from the present one on, that is there for it."""
        failures: list[GraphtideError] = []
        while len(failures) < len(self._replicas):
            try:
                return begin()
            except (Unavailable, TimedOut) as error:
                failures.append(error)
                self._replicas.turn()
        raise none_of(failures) from failures[-1].__cause__

    def _connect_once(self) -> None:
        try:
            self._socket = self._open()
        except OSError as error:
            raise self._no_connection(error) from error
        self._core = ClientCore()
        try:
            self.server = self._exchange(self._hello())
            if (wait := self._caught_up()) is not None:
                self._exchange(wait)
        except GraphtideError:
            self.close()
            raise

    def _open(self) -> socket.socket:
        if isinstance(self._address, UnixAddress):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self._share_s)
                connection.connect(self._address.path)
            except OSError:
                connection.close()
                raise
            return connection
        connection = socket.create_connection(self._address, self._share_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._ssl_context is None:
            return connection
        try:
            return self._ssl_context.wrap_socket(connection, server_hostname=self._address.host)
        except OSError:
            connection.close()
            raise

    def _exchange(self, call: Call[T]) -> T:
        """Send and receive; the connection is closed when it can no longer be trusted."""
        assert self._socket is not None
        msgid, message = self._core.request(call.method, call.params)
        try:
            self._socket.settimeout(min(call.timeout_s(self._timeout), TIMEOUT_S_MAX))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # The server may have said why before it closed.
                self._socket.sendall(message)
            response = self._receive(msgid)
        except TimeoutError:
            self.close()
            raise self._no_answer() from None
        except OSError as error:
            self.close()
            raise self._broken(error) from error
        except BaseException:
            # An error of the connection, which the server ends; or an interrupt, perhaps amid a request.
            self.close()
            raise
        if response.error is None and call.method != "hello":
            self._replicas.heard(response.result)
        return call.result(response)

    def _receive(self, msgid: int) -> Response:
        assert self._socket is not None
        while True:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the server closed it")
            for response in self._core.feed(data):
                if response.msgid == msgid:
                    return response


class _Listening(Client):
    """A client that keeps the notifications which it gets."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._heard: deque[Notification] = deque()

    def _receive(self, msgid: int) -> Response:
        assert self._socket is not None
        while True:
            response = self._take(self._socket.recv(RECEIVE_BYTES), msgid)
            if response is not None:
                return response

    def begin(self, following: Following) -> None:
        """Open a connection, and subscribe on it: at the first server, from the present one on, that takes it."""

        def begin_here() -> None:
            self.close()
            self._heard.clear()
            self._connect_once()
            self._exchange(self._subscribe(following))

        self._at_a_server(begin_here)

    def hear(self) -> Notification:
        """The next notification.

        Raises:
            Unavailable, TimedOut: the connection broke.
        """
        try:
            while not self._heard:
                connection = self._socket
                if connection is None:
                    raise ConnectionError("it was closed")
                connection.settimeout(max(self._timeout, SILENCE_S_MAX))
                self._take(connection.recv(RECEIVE_BYTES))
        except TimeoutError:
            self.close()
            raise self._no_answer() from None
        except OSError as error:
            self.close()
            raise self._broken(error) from error
        return self._heard.popleft()

    def hang_up(self) -> None:
        """End it while another thread hears, who is told that it broke."""
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _take(self, data: bytes, msgid: int | None = None) -> Response | None:
        if not data:
            raise ConnectionError("the server closed it")
        response = None
        for message in self._core.messages(data):
            if isinstance(message, Notification):
                self._heard.append(message)
            elif message.msgid == msgid:
                response = message
        return response


class Subscription:
    """Changes as they come, until it is closed. One thread iterates over it; any may close it."""

    def __init__(self, client: _Listening, following: Following, *, reconnect: bool) -> None:
        """Subscribes.

        Raises:
            GraphtideError: the server refuses, or cannot be reached.
        """
        self._client = client
        self._following = following
        self._reconnect = reconnect
        self._closed = threading.Event()
        self._hearing = threading.Lock()
        self._begin()

    @property
    def epoch(self) -> tuple[int, int] | None:
        """Of the newest change, or that from which on changes are told: to go on ``since``."""
        return self._following.epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and the iteration over it."""
        self._closed.set()
        self._client.hang_up()
        with self._hearing:
            self._client.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        """The next change, for which it waits."""
        with self._hearing:
            try:
                while not self._closed.is_set():
                    change = self._next()
                    if change is not None:
                        return change
            except GraphtideError:
                self._client.close()
                if not self._closed.is_set():
                    self._closed.set()
                    raise
        raise StopIteration

    def _next(self) -> Change | None:
        try:
            return self._following.take(self._client.hear())
        except (Unavailable, TimedOut):
            if not self._reconnect or self._closed.is_set():
                raise
        self._begin_again()
        return None

    def _begin(self) -> None:
        try:
            self._client.begin(self._following)
        except GraphtideError:
            self._client.close()
            raise

    def _begin_again(self) -> None:
        pause = BACKOFF_S_MIN
        while not self._closed.wait(pause):
            try:
                return self._begin()
            except (Unavailable, TimedOut):
                pause = min(2 * pause, BACKOFF_S_MAX)
