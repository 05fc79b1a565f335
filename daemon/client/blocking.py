"""The client whose calls block."""

from __future__ import annotations

import contextlib
import socket
from typing import Self, TypeVar

from ..errors import GraphtideError, Unavailable
from .addresses import UnixAddress
from .calls import Blocking, Call
from .requests import Requests
from .wire import RECEIVE_BYTES, ClientCore, Response

T = TypeVar("T")


class Client(Blocking, Requests):
    """One connection; calls block. Not for use by several threads at once.

        with Client("unix:/run/graphtide.sock") as c:
            c.get("pagerank", [1, 2]).values

    Every result has the ``epoch`` and the ``offsets`` that it reflects. Errors of the server are raised as the
    classes of ``errors``. A connection that broke is opened again by the next call.
    """

    _socket: socket.socket | None = None
    _core: ClientCore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call would open one again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _call(self, call: Call[T]) -> T:
        reused = self._socket is not None
        if not reused:
            self._connect()
        try:
            return self._exchange(call)
        except Unavailable:
            # Every request only reads, so one that met a connection which had died while idle may be repeated.
            if not reused or self._socket is not None:
                raise
        self._connect()
        return self._exchange(call)

    def _connect(self) -> None:
        try:
            self._socket = self._open()
        except OSError as error:
            raise self._no_connection(error) from error
        self._core = ClientCore()
        try:
            self.server = self._exchange(self._hello())
        except GraphtideError:
            self.close()
            raise

    def _open(self) -> socket.socket:
        if isinstance(self._address, UnixAddress):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self._timeout)
                connection.connect(self._address.path)
            except OSError:
                connection.close()
                raise
            return connection
        connection = socket.create_connection(self._address, self._timeout)
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
        try:
            self._socket.settimeout(call.timeout_s(self._timeout))
            msgid, message = self._core.request(call.method, call.params)
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
        except GraphtideError:
            self.close()  # an error of the connection: the server ends it
            raise
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
