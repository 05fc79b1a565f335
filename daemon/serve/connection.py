"""One client's connection: requests in, answers out, within the limits."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Coroutine
from typing import Any, cast

from ..client.wire import (
    PIECE_BYTES,
    FrameReader,
    InvalidParams,
    Request,
    decode_request,
    encode_error,
    encode_notification,
    encode_result,
    error_to_wire,
)
from ..errors import GraphtideError, LimitExceeded, RequestError, Unauthorized
from . import handlers
from .admission import HELLO_BYTES_MAX, Guest
from .handlers import Outcome, Params
from .serving import Reply, Serving

log = logging.getLogger(__name__)

TURN_SECONDS = 0.001
"""How long one connection's requests are answered before the others get their turn."""
LARGE_OUTPUT_BYTES = 1 << 20


class Connection(asyncio.Protocol):
    """One client: frames in, answers out, within the limits."""

    def __init__(self, serving: Serving, guest: Guest) -> None:
        """``guest``: its place at the door (``Admission.enter``)."""
        self._serving = serving
        self._limits = serving.limits
        self._guest = guest
        self._token: object = None
        asked = serving.admission.asks_token
        self._frames = FrameReader(HELLO_BYTES_MAX if asked else serving.limits.frame_bytes_max)
        self._transport: asyncio.Transport
        self.is_made = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._partial_bytes = 0
        self._continuing = False
        self._closing = False
        self._paused = False
        self._active = time.monotonic()

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
        self._serving.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._serving.admission.leave(self._guest)
        self._serving.connections.discard(self)
        self._hold_partial(0)
        for task in self.tasks:
            task.cancel()

    def abort(self) -> None:
        """Drop the connection, and whatever it has not read."""
        self._closing = True
        self._transport.abort()

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
                self._serving.admission.check(self._token)
        except Unauthorized:
            self._end(Unauthorized("the token of this connection is no longer valid"))

    def close_if_idle(self, now: float) -> None:
        """Close when neither a request came nor an answer was taken for too long, and none is being made."""
        if not self.tasks and now - self._active > self._limits.idle_seconds_max:
            self.abort()

    @property
    def output_bytes(self) -> int:
        """Answers that the client has not read."""
        return self._transport.get_write_buffer_size()

    # -- in -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._frames.feed(data)
        except LimitExceeded as error:
            self._fail(error)
            return
        if not self._continuing:
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer the requests that are there, for one turn."""
        self._continuing = False
        turn_ends = time.perf_counter() + TURN_SECONDS
        try:
            while not self._closing and len(self.tasks) < self._limits.requests_in_flight_max:
                frame = self._frames.next_frame()
                if frame is None:
                    break
                self._active = time.monotonic()
                self._dispatch(frame)
                if time.perf_counter() > turn_ends:
                    self._continuing = True
                    asyncio.get_running_loop().call_soon(self._answer_waiting)
                    break
            self._hold_partial(self._frames.buffered_bytes)
        except RequestError as error:
            self._fail(error)
            return
        self._pause(self._continuing or len(self.tasks) >= self._limits.requests_in_flight_max)

    def _pause(self, wanted: bool) -> None:
        if self._closing or wanted == self._paused:
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _hold_partial(self, size: int) -> None:
        """Account for a long request that is not complete yet; short ones are always let in."""
        size = size if size > PIECE_BYTES else 0
        self._serving.held_bytes += size - self._partial_bytes
        self._partial_bytes = size
        if size and self._serving.held_bytes > self._limits.memory_bytes_max:
            raise self._too_much()

    def _too_much(self) -> LimitExceeded:
        return LimitExceeded("the server holds too many long requests", {"bytes": self._serving.held_bytes})

    # -- answers ------------------------------------------------------------------------------------------

    def _dispatch(self, frame: bytes) -> None:
        if len(frame) > PIECE_BYTES:
            if self._serving.held_bytes + len(frame) > self._limits.memory_bytes_max:
                raise self._too_much()
            self._start(self._answer_long(frame))
            return
        started = time.perf_counter()
        try:
            request = decode_request(frame, 2 * self._limits.vertices_max)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
            return
        self._answer(request, started)

    async def _answer_long(self, frame: bytes) -> None:
        started = time.perf_counter()
        self._serving.held_bytes += len(frame)
        try:
            request = await self._serving.in_thread(decode_request, frame, 2 * self._limits.vertices_max)
            outcome = self._begin(request, started)
            if outcome is not None:
                await self._finish(request, outcome, started)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
        except RequestError as error:
            self._fail(error)
        finally:
            self._serving.held_bytes -= len(frame)

    def _answer(self, request: Request, started: float) -> None:
        outcome = self._begin(request, started)
        if isinstance(outcome, Reply):
            self._reply(request, outcome, started)
        elif outcome is not None:
            self._start(self._finish(request, outcome, started))

    def _begin(self, request: Request, started: float) -> Outcome | None:
        """Call the handler; None when it refused, and the client was told."""
        try:
            if not self._guest.is_in:
                self._let_in(request)
            return handlers.find(request.method)(self._serving, Params(request.params))
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
            if isinstance(error, Unauthorized):
                self._closing = True
                self._serving.admission.refuse(self._guest, "token")
                self._transport.close()
            return None

    def _let_in(self, request: Request) -> None:
        """The first request decides whether this client may come in.

        Raises:
            Unauthorized: it presents no right token where one is asked for.
            LimitExceeded: there is no room.
        """
        admission = self._serving.admission
        if admission.asks_token:
            if request.method != "hello":
                raise Unauthorized("present the token with hello first")
            self._token = request.params.get("token")
            admission.check(self._token)
        admission.let_in(self._guest)
        self._frames.allow(self._limits.frame_bytes_max)

    async def _finish(self, request: Request, outcome: Outcome, started: float) -> None:
        try:
            reply = await outcome if inspect.iscoroutine(outcome) else outcome
        except Exception as error:
            self._refuse(request.msgid, request.method, started, error)
            return
        assert isinstance(reply, Reply)
        self._reply(request, reply, started)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
        if not self._closing and not self._continuing:
            self._answer_waiting()

    def _reply(self, request: Request, reply: Reply, started: float) -> None:
        self._write(encode_result(request.msgid, reply.stamp, reply.answer))
        self._serving.latencies.record(request.method, time.perf_counter() - started, None)

    def _refuse(self, msgid: int, method: str, started: float, error: Exception) -> None:
        if not isinstance(error, GraphtideError):
            log.error("answering %s failed", method[:64], exc_info=error)
            error = GraphtideError("the server failed to answer; its log says why")
        self._write(encode_error(msgid, error))
        self._serving.latencies.record(method, time.perf_counter() - started, error.code)

    def _write(self, message: bytes) -> None:
        if self._closing:
            return
        self._transport.write(message)
        waiting = self.output_bytes
        if waiting > LARGE_OUTPUT_BYTES:
            together = sum(connection.output_bytes for connection in self._serving.connections)
            if waiting > self._limits.output_bytes_max or together > self._limits.memory_bytes_max:
                log.info("a client that does not read is disconnected: %d bytes wait", waiting)
                self.abort()

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
        self._serving.latencies.record("other", 0.0, error.code)
        self._transport.write(encode_notification("error", error_to_wire(error)))
        self._transport.close()
