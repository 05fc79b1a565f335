"""A client's connection, but for the language that is spoken over it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from ..client.wire import PIECE_BYTES, Entries, InvalidParams, Request
from ..errors import GraphtideError, LimitExceeded, RequestError, Unauthorized, Unavailable
from . import methods
from .admission import Guest
from .asker import Asker
from .lane import Answer as LaneAnswer
from .params import Outcome
from .serving import Reply, Serving, Soon

log = logging.getLogger(__name__)

TURN_SECONDS = 0.001
"""How long one connection's requests are answered before the others get their turn."""
LARGE_OUTPUT_BYTES = 1 << 20
CLOSE_SECONDS_MAX = 5.0
"""How long a client may take to read what it was sent before its connection was ended."""


class Channel(asyncio.Protocol, ABC):
    """One client: a place at the door, requests that are being answered, and answers that it has not read."""

    def __init__(self, serving: Serving, guest: Guest) -> None:
        """``guest``: its place at the door (``Admission.enter``)."""
        self._serving = serving
        self._limits = serving.limits
        self._guest = guest
        self.token: object = None
        self.refusal: GraphtideError | None = None
        """Why it is ended as soon as something comes."""
        self._transport: asyncio.Transport
        self.is_made = False
        self._poll: select.poll | None = None
        self.tasks: set[asyncio.Future[Any]] = set()
        # Memory for a long request that comes, since when; who gets it.
        self._receiving_bytes = 0
        self._receiving_since = 0.0
        self._getting_room: asyncio.Task[None] | None = None
        # Memory of long answers that the client has not read, since when.
        self._unread_room = 0
        self._unread_since = 0.0
        self._continuing = False
        self._closing = False
        self._gone = False
        self._paused = False
        self._reads = asyncio.Event()
        self._reads.set()
        self._active = time.monotonic()

    # -- the language -------------------------------------------------------------------------------------

    @abstractmethod
    def entries(self, content: Mapping[str, Any]) -> Entries:
        """Entries of notifications, encoded for all who speak the same language. Any thread may ask."""

    @abstractmethod
    def notification(
        self,
        method: str,
        content: Mapping[str, Any],
        stamp: bytes | None = None,
        shared: Entries | None = None,
    ) -> bytes:
        """What no request asked for, as it is sent; ``stamp``: of its epoch, ``shared``: more of its entries, only
        with a stamp. Any thread may ask."""

    @abstractmethod
    def _answer_waiting(self) -> None:
        """Answer the requests that are there, for one turn."""

    @abstractmethod
    def _check_in(self, request: Request) -> None:
        """Whether this client may ask this.

        Raises:
            Unauthorized: it presents no right token where one is asked for.
            LimitExceeded: there is no room.
        """

    @abstractmethod
    def _encode(self, msgid: int, reply: Reply) -> bytes:
        """An answer, for ``_send``. Any thread may ask."""

    @abstractmethod
    def _send(self, msgid: int, answer: bytes) -> None:
        """Send the answer to a request."""

    @abstractmethod
    def _send_error(self, msgid: int, error: GraphtideError) -> None:
        """Send an error as the answer to a request."""

    @abstractmethod
    def lacks_tls(self, first: bytes) -> GraphtideError:
        """The error for a client that speaks plain text where TLS is spoken, by the first bytes that it sent."""

    @abstractmethod
    def _last_words(self, error: GraphtideError) -> bytes:
        """What the client is told when its connection ends."""

    # -- life ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        self.is_made = True
        try:
            self._serving.admission.check_room()
        except LimitExceeded as error:
            self._serving.admission.refuse(self._guest, "full")
            self._end(error)
            return
        self._transport.set_write_buffer_limits(PIECE_BYTES, 0)
        self._serving.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()

    def abort(self) -> None:
        """Drop the connection with its requests, and whatever it has not read."""
        self._let_go()
        self._transport.abort()

    def _let_go(self) -> None:
        """Nobody waits for anything any more."""
        self._closing = self._gone = True
        self._serving.admission.leave(self._guest)
        self._serving.connections.discard(self)
        self._serving.subscriptions.end_all(self)
        self._stop_receiving()
        self._release_unread()
        for task in [*self.tasks]:
            task.cancel()
            if task.done():  # of no task, which ends in its own turn
                self.tasks.discard(task)

    def is_gone(self) -> bool:
        """The client has hung up, which goes unnoticed where nothing is read."""
        if self._closing:
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(self._poll.poll(0))

    def turn_out(self, error: GraphtideError | None) -> None:
        """End the connection, and say why (None: without a word)."""
        if error is None:
            self.abort()
        else:
            self._end(error)

    def check_token(self) -> None:
        """End the connection when the token that it presented is no longer right."""
        try:
            if self._guest.is_in:
                self._serving.admission.check(self.token)
        except Unauthorized:
            self._end(Unauthorized("the token of this connection is no longer valid"))

    def look_after(self, now: float) -> None:
        """Close when the client is gone, or idle, or keeps memory for too long that others wait for.

        Idle: no request came for long, none is being answered, and there is no subscription.
        """
        stall_s = self._limits.stall_seconds_max
        if self._closing:
            if now - self._active > CLOSE_SECONDS_MAX:  # it does not even read why
                self.abort()
            return
        waits = bool(self.tasks) or self._serving.subscriptions.has(self)
        idle = not waits and now - self._active > self._limits.idle_seconds_max
        if idle or (self._paused and self.is_gone()):
            self.abort()
        elif self._unread_room and self._serving.making.is_short and now - self._unread_since > stall_s:
            log.info("a client that does not read is disconnected: %d bytes wait", self.unread_bytes)
            self.abort()
        elif self._receiving_bytes and self._serving.receiving.is_short and now - self._receiving_since > stall_s:
            self._fail(LimitExceeded(f"a long request took more than {stall_s:g} s to come, and others wait"))

    @property
    def unread_bytes(self) -> int:
        """Answers that the client has not read."""
        return 0 if self._gone else self._transport.get_write_buffer_size()

    # -- in -----------------------------------------------------------------------------------------------

    def _pause(self, wanted: bool) -> None:
        # A transport that has found its client gone says so to us a turn later; until then it takes no such call.
        if self._closing or self._transport.is_closing() or wanted == self._paused:
            return
        # uvloop may have closed what it does not say is closing.
        with contextlib.suppress(RuntimeError):
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
            self._paused = wanted

    def _get_room(self, size: int) -> None:
        """Read on when there is memory for a long request; others, and their turns, may come before it."""
        if self._getting_room is None and not self._closing:
            self._getting_room = asyncio.get_running_loop().create_task(self._wait_for_room(size))

    async def _wait_for_room(self, size: int) -> None:
        self._receiving_bytes = await self._serving.receiving.take(self, size)
        self._receiving_since = time.monotonic()
        self._getting_room = None
        if not self._continuing:
            self._answer_waiting()

    def _stop_receiving(self) -> None:
        if self._getting_room is not None:
            self._getting_room.cancel()
        self._serving.receiving.give_back(self._receiving_bytes)
        self._receiving_bytes = 0

    def _keep_received(self, size: int) -> Asker:
        """Who asks a long request that has come: of the memory that it came by it keeps so many bytes."""
        held, self._receiving_bytes = self._receiving_bytes, 0
        asker = Asker(self, min(held, size))
        self._serving.receiving.give_back(held - asker.receiving_bytes)
        return asker

    # -- answers ------------------------------------------------------------------------------------------

    def _start_long(self, asker: Asker, decode: Callable[[], Request], size: int) -> None:
        """Answer a long request, of which ``size`` bytes are left once it is decoded."""
        task = self._start(self._answer_long(asker, decode, size))
        # Here, and not in the task: it may be cancelled before it begins.
        task.add_done_callback(lambda _: self._serving.receiving.give_back(asker.receiving_bytes))

    async def _answer_long(self, asker: Asker, decode: Callable[[], Request], size: int) -> None:
        started = time.perf_counter()
        try:
            request = await self._serving.in_thread(asker, decode)
            del decode
            self._serving.receiving.give_back(max(asker.receiving_bytes - size, 0))
            asker.receiving_bytes = min(asker.receiving_bytes, size)
            outcome = self._begin(request, asker, started)
            if outcome is not None:
                await self._finish(request, outcome, asker, started)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
        except RequestError as error:
            self._fail(error)

    def _answer(self, request: Request, started: float) -> None:
        asker = Asker(self)
        outcome = self._begin(request, asker, started)
        if isinstance(outcome, Reply):
            self._reply(request, outcome, started)
        elif isinstance(outcome, Soon):
            outcome.question.then = partial(self._answer_soon, request, outcome, asker, started)
            self.tasks.add(outcome.question)
        elif outcome is not None:
            self._answer_later(request, outcome, asker, started)

    def _answer_later(
        self, request: Request, outcome: Coroutine[Any, Any, Reply], asker: Asker, started: float
    ) -> None:
        task = self._start(self._finish(request, outcome, asker, started))
        # It may be cancelled before it begins: then nobody else ends what the handler gave back.
        task.add_done_callback(lambda _: outcome.close())

    def _answer_soon(
        self, request: Request, outcome: Soon, asker: Asker, started: float, found: LaneAnswer | None
    ) -> None:
        """The lane has answered, or (None) does not."""
        self.tasks.discard(outcome.question)
        reply = None
        try:
            with contextlib.suppress(Unavailable):
                reply = None if found is None else outcome.at_once(found)
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
        else:
            if reply is None:
                self._answer_later(request, outcome.later(), asker, started)
            else:
                self._reply(request, reply, started)
        self._go_on()

    def _begin(self, request: Request, asker: Asker, started: float) -> Outcome | None:
        """Call the handler; None when it refused, and the client was told."""
        try:
            self._check_in(request)
            return methods.answer(self._serving, asker, request.method, request.params)
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
            if isinstance(error, Unauthorized):
                self._closing = True
                self._serving.admission.refuse(self._guest, "token")
                self._transport.close()
            return None

    async def _finish(self, request: Request, outcome: Outcome, asker: Asker, started: float) -> None:
        try:
            reply = outcome if isinstance(outcome, Reply) else await outcome
            if asker.making_bytes:
                await self._reply_long(request, reply, asker, started)
            else:
                self._reply(request, reply, started)
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
        finally:
            self._serving.making.give_back(asker.making_bytes)

    async def _reply_long(self, request: Request, reply: Reply, asker: Asker, started: float) -> None:
        """The memory of the answer is given back when the client has read it."""
        self._send(request.msgid, await self._serving.in_thread(asker, self._encode, request.msgid, reply))
        self._serving.latencies.record(request.method, time.perf_counter() - started, None)
        unread = min(self.unread_bytes, asker.making_bytes)
        if unread > PIECE_BYTES:
            asker.making_bytes -= unread
            self._unread_since = self._unread_since if self._unread_room else time.monotonic()
            self._unread_room += unread

    def pause_writing(self) -> None:
        """The client has left much unread."""
        self._reads.clear()

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._reads.set()
        self._release_unread()
        self._serving.subscriptions.wake_all(self)

    @property
    def ahead_bytes(self) -> int:
        """So much of what others are sent, too, may be sent before the client has read what came before."""
        is_copied = self._transport.get_extra_info("ssl_object") is not None  # what TLS makes of it is its own
        return 0 if is_copied else self._serving.ahead_bytes

    @property
    def takes_more(self) -> bool:
        """The client has read almost all that it was sent."""
        return self._reads.is_set() and not self._closing

    async def reads(self, patience_s: float) -> bool:
        """Wait until the client has read what it was sent, or for so long; which it was."""
        if not self._reads.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._reads.wait()
        return self._reads.is_set()

    def push(self, message: bytes) -> None:
        """Send what no request asked for."""
        self._write(message)

    def _release_unread(self) -> None:
        unread, self._unread_room = self._unread_room, 0
        self._serving.making.give_back(unread)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
        self._go_on()

    def _go_on(self) -> None:
        """A request is through: others may have waited for that."""
        self._active = time.monotonic()
        if not self._closing and not self._continuing:
            self._answer_waiting()

    def _reply(self, request: Request, reply: Reply, started: float) -> None:
        self._send(request.msgid, self._encode(request.msgid, reply))
        self._serving.latencies.record(request.method, time.perf_counter() - started, None)

    def _refuse(self, msgid: int, method: str, started: float, error: Exception) -> None:
        if not isinstance(error, GraphtideError):
            log.error("answering %s failed", method[:64], exc_info=error)
            error = GraphtideError("the server failed to answer; its log says why")
        try:
            self._send_error(msgid, error)
        except (OverflowError, TypeError, ValueError):  # whoever asks must hear something
            log.exception("an error of %s cannot be sent", method[:64])
            self._send_error(msgid, GraphtideError("the server failed to answer; its log says why"))
        self._serving.latencies.record(method, time.perf_counter() - started, error.code)

    def _write(self, message: bytes) -> None:
        if self._closing:
            return
        # Over TLS the transport passes a single write on, whatever its size, and counts none of it as unread.
        if len(message) <= PIECE_BYTES:
            self._transport.write(message)
        else:
            view = memoryview(message)
            for start in range(0, len(view), PIECE_BYTES):
                self._transport.write(view[start : start + PIECE_BYTES])
        unread = self.unread_bytes
        if unread > self._limits.output_bytes_max:
            log.info("a client that does not read is disconnected: %d bytes wait", unread)
            self.abort()
        elif unread > LARGE_OUTPUT_BYTES:
            self._serving.relieve()

    def _fail(self, error: GraphtideError) -> None:
        """End the connection: what follows on the stream cannot be trusted."""
        if not self._closing and not self._guest.is_in:
            self._serving.admission.refuse(self._guest, "request")
        self._end(error)

    def _end(self, error: GraphtideError) -> None:
        """Say why, and end the connection."""
        if self._closing:
            return
        self._closing = True
        self._stop_receiving()
        self._serving.latencies.record("other", 0.0, error.code)
        self._active = time.monotonic()
        self._transport.write(self._last_words(error))
        self._transport.close()
