"""The asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from ..errors import GraphtideError
from .addresses import UnixAddress
from .calls import Asynchronous, Call
from .requests import Requests
from .wire import RECEIVE_BYTES, ClientCore, Response

T = TypeVar("T")


class AsyncClient(Asynchronous, Requests):
    """One connection for any number of tasks: requests are pipelined, answers come as they are ready.

    Its methods are those of ``Client``, each a coroutine.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """As ``Client``."""
        super().__init__(address, token, timeout, ssl_context)
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call would open one again."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _call(self, call: Call[T]) -> T:
        async with self._connecting:
            if self._link is None or self._link.broken:
                await self.close()
                self._link = await self._connect()
            link = self._link
        return await self._exchange(link, call)

    async def _connect(self) -> _Link:
        address = self._address
        try:
            async with asyncio.timeout(self._timeout):
                if isinstance(address, UnixAddress):
                    reader, writer = await asyncio.open_unix_connection(address.path)
                else:
                    reader, writer = await asyncio.open_connection(*address, ssl=self._ssl_context)
        except OSError as error:
            raise self._no_connection(error) from error
        link = _Link(reader, writer)
        try:
            self.server = await self._exchange(link, self._hello())
        except BaseException:
            await link.close()
            raise
        return link

    async def _exchange(self, link: _Link, call: Call[T]) -> T:
        try:
            async with asyncio.timeout(call.timeout_s(self._timeout)):
                response = await link.exchange(call.method, call.params)
        except TimeoutError:
            raise self._no_answer() from None
        except OSError as error:
            raise self._broken(error) from error
        return call.result(response)


class _Link:
    """An open connection: a task reads, and gives each response to whoever waits for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._core = ClientCore()
        self._open: dict[int, asyncio.Future[Response]] = {}
        self._failure: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._read())

    @property
    def broken(self) -> bool:
        return self._failure is not None

    async def exchange(self, method: str, params: Mapping[str, Any]) -> Response:
        """Send a request and wait for its response."""
        if self._failure is not None:
            raise self._failure
        msgid, message = self._core.request(method, params)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._open[msgid] = future
        try:
            self._writer.write(message)
            await self._writer.drain()
            return await future
        finally:
            self._open.pop(msgid, None)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        failure: Exception = ConnectionError("the client was closed")
        try:
            while True:
                data = await self._reader.read(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed it")
                for response in self._core.feed(data):
                    future = self._open.get(response.msgid)
                    if future is not None and not future.done():
                        future.set_result(response)
        except (OSError, GraphtideError) as error:
            failure = error
        finally:
            self._failure = failure
            for future in self._open.values():
                if not future.done():
                    future.set_exception(failure)
