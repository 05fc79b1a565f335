"""The asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self, TypeVar

from ..errors import GraphtideError, TimedOut, Unavailable
from .addresses import UnixAddress
from .calls import Asynchronous, Call
from .changes import BACKOFF_S_MAX, BACKOFF_S_MIN, SILENCE_S_MAX, Following
from .replicas import none_of
from .requests import Requests
from .results import Change, VertexIds, WireOffsets
from .wire import RECEIVE_BYTES, ClientCore, Notification, Response

T = TypeVar("T")
_CLOSED = "the client was closed"


class AsyncClient(Asynchronous, Requests):
    """One connection for any number of tasks: requests are pipelined, answers come as they are ready.

    Its methods are those of ``Client``, each a coroutine. Connections are of one event loop: when that has ended
    another may go on with the client, on a connection of its own.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """As ``Client``."""
        super().__init__(address, token, timeout, ssl_context)
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None
        self._left: list[_Link] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._n_closes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call would open one again."""
        self._be_of_this_loop()
        self._n_closes += 1
        links, self._link, self._left = [*self._left, self._link], None, []
        for link in links:
            if link is not None:
                await link.close()

    async def subscribe(
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
    ) -> AsyncGenerator[Change, None]:
        """As ``Client.subscribe``: what each epoch changes, to be iterated over by ``async for``.

        async for change in client.subscribe("pagerank"):
            print(change.epoch, change.ids, change.values)
        """
        following = self._subscription(
            program, vertices, top, order, threshold, snapshot, since, min_offsets, timeout_ms
        )
        own = AsyncClient(*self._given)
        own._replicas = self._replicas.from_here()
        pause = 0.0
        failures: list[GraphtideError] = []
        while True:
            try:
                async with contextlib.aclosing(own._changes(following)) as changes:
                    async for change in changes:
                        pause = 0.0
                        yield change
            except (Unavailable, TimedOut) as error:
                own._replicas.turn()
                failures.append(error)
                if following.has_begun:
                    if not self._goes_on(reconnect):
                        raise
                    failures.clear()
                elif len(failures) < len(own._replicas):
                    continue
                else:
                    raise none_of(failures) from error.__cause__
            pause = min(2 * pause, BACKOFF_S_MAX) or BACKOFF_S_MIN
            await asyncio.sleep(pause)

    async def _changes(self, following: Following) -> AsyncGenerator[Change, None]:
        """Those of one connection."""
        core, notices = ClientCore(), list[Notification]()
        calls: list[Call[Any] | None] = [self._hello(), self._caught_up(), self._subscribe(following)]
        reader, writer = await self._open()
        try:
            for call in filter(None, calls):
                msgid, request = core.request(call.method, call.params)
                writer.write(request)
                response: Response | None = None
                async with asyncio.timeout(call.timeout_s(self._timeout)):
                    while response is None:
                        for message in core.messages(await _received(reader)):
                            if isinstance(message, Notification):
                                notices.append(message)
                            elif message.msgid == msgid:
                                response = message
                call.result(response)
            while True:
                for notice in notices:
                    change = following.take(notice)
                    if change is not None:
                        yield change
                async with asyncio.timeout(max(self._timeout, SILENCE_S_MAX)):
                    data = await _received(reader)
                notices = [message for message in core.messages(data) if isinstance(message, Notification)]
        except TimeoutError:
            raise self._no_answer() from None
        except OSError as error:
            raise self._broken(error) from error
        finally:
            await _closed(writer)

    async def _call(self, call: Call[T]) -> T:
        link = await self._connected()
        heard = link.heard
        try:
            return await self._exchange(link, call)
        except TimedOut:
            if link.heard == heard:
                await self._leave(link)
            raise
        except Unavailable:
            # One that only reads may be put to another replica where it met one that went away.
            if not link.broken or link.closed or not call.reads or len(self._replicas) == 1:
                raise
        return await self._exchange(await self._connected(), call)

    async def _leave(self, link: _Link) -> None:
        """Turn from one that says nothing to the next server, or, where there is none, to another connection.

        Whoever waits for an answer on it meets one that broke where there is another server, else waits on.
        """
        if link is not self._link:
            return
        self._link = None
        self._replicas.turn()
        if len(self._replicas) == 1:
            self._left = [left for left in self._left if not left.broken]
            self._left.append(link)
            link.leave()
            return
        link.abort()
        await link.close()

    def _be_of_this_loop(self) -> None:
        """
        Raises:
            RuntimeError: another event loop uses this client, which would not wake who waits in this one.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError("this client is used by another event loop, which runs: make one for each")
        self._loop, self._link, self._left, self._connecting = loop, None, [], asyncio.Lock()

    async def _connected(self) -> _Link:
        self._be_of_this_loop()
        async with self._connecting:
            if self._link is None or self._link.broken:
                broken, self._link = self._link, None
                if broken is not None:
                    await broken.close()
                n_closes, link = self._n_closes, await self._connect()
                if n_closes != self._n_closes:
                    await link.close()
                    raise self._broken(ConnectionError(_CLOSED))
                self._link = link
            return self._link

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        try:
            async with asyncio.timeout(self._share_s):
                if isinstance(address, UnixAddress):
                    return await asyncio.open_unix_connection(address.path)
                return await asyncio.open_connection(*address, ssl=self._ssl_context)
        except OSError as error:
            raise self._no_connection(error) from error

    async def _connect(self) -> _Link:
        """To the first server, from the present one on, that can be spoken to."""
        failures: list[GraphtideError] = []
        while len(failures) < len(self._replicas):
            try:
                return await self._connect_once()
            except (Unavailable, TimedOut) as error:
                failures.append(error)
                self._replicas.turn()
        raise none_of(failures) from failures[-1].__cause__

    async def _connect_once(self) -> _Link:
        link = _Link(*await self._open())
        try:
            self.server = await self._exchange(link, self._hello())
            if (wait := self._caught_up()) is not None:
                await self._exchange(link, wait)
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
        if response.error is None and call.method != "hello" and link is self._link:
            self._replicas.heard(response.result)
        return call.result(response)


async def _received(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the server closed it")
    return data


async def _closed(writer: asyncio.StreamWriter) -> None:
    # Without what is not sent yet, which nobody waits for: a server that does not read would never let go of it.
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class _Link:
    """An open connection: a task reads, and gives each response to whoever waits for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._core = ClientCore()
        self._open: dict[int, asyncio.Future[Response]] = {}
        self._failure: Exception | None = None
        self._is_left = False
        self.closed = False
        """We broke it off ourselves, for good."""
        self.heard = 0
        """How often something came."""
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
        except OSError as error:
            self._failure = self._failure or error
            raise
        finally:
            self._open.pop(msgid, None)
            if self._is_left:
                self.leave()

    def leave(self) -> None:
        """Nothing more is asked: break off once nobody waits."""
        self._is_left = True
        if not self._open:
            self.abort()

    def abort(self) -> None:
        """Break off, with what is not sent yet: nothing came for too long."""
        self._failure = ConnectionError("it said nothing for too long")
        self._writer.transport.abort()

    async def close(self) -> None:
        self.closed = not self.broken
        self._task.cancel()
        await asyncio.wait([self._task])  # whose end is no error of ours, as our own being cancelled is
        await _closed(self._writer)

    async def _read(self) -> None:
        failure: Exception = ConnectionError(_CLOSED)
        try:
            while True:
                data = await _received(self._reader)
                self.heard += 1
                for response in self._core.feed(data):
                    future = self._open.get(response.msgid)
                    if future is not None and not future.done():
                        future.set_result(response)
        except (OSError, GraphtideError) as error:
            failure = error
        finally:
            self._writer.transport.abort()  # also where the loop ends, and nobody has closed it
            self._failure = self._failure or failure
            for future in self._open.values():
                if not future.done():
                    future.set_exception(self._failure)
