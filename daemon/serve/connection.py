"""A connection of the socket: MessagePack-RPC frames in, answers out."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..client.wire import (
    PIECE_BYTES,
    Entries,
    Frame,
    FrameReader,
    InvalidParams,
    Request,
    decode_request,
    encode_entries,
    encode_error,
    encode_notification,
    encode_result,
    encode_stamped_notification,
    error_to_wire,
)
from ..errors import GraphtideError, LimitExceeded, RequestError, Unauthorized
from .admission import HELLO_BYTES_MAX, Guest
from .channel import TURN_SECONDS, Channel
from .http import answers, plain, routes
from .params import with_columns
from .serving import Reply, Serving

_HTTP = re.compile(rb"[A-Z]{3,16} [/*]")
"""How a request over HTTP begins, and no frame of a request does: a letter is a whole number."""


class Connection(Channel):
    """One client: frames in, answers out, within the limits."""

    def __init__(self, serving: Serving, guest: Guest) -> None:
        super().__init__(serving, guest)
        asked = serving.admission.asks_token
        self._frames = FrameReader(HELLO_BYTES_MAX if asked else serving.limits.frame_bytes_max)
        self._waiting_frame: Frame | None = None  # a long request that has come and waits for memory
        self._is_http = False

    # -- in -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self.refusal is not None:
            self._end(self.refusal)
            return
        if not self._guest.is_in and not self._frames.buffered_bytes and _HTTP.match(data):
            self._fail(self._no_http())
            return
        try:
            self._frames.feed(data)
        except LimitExceeded as error:
            self._fail(error)
            return
        if not self._continuing:
            self._answer_waiting()

    def _no_http(self) -> RequestError:
        """It hears that over HTTP, which it speaks."""
        self._is_http = True
        return RequestError("HTTP is spoken at the addresses of server.http (default: none), not here")

    def _answer_waiting(self) -> None:
        self._continuing = False
        turn_ends = time.perf_counter() + TURN_SECONDS
        try:
            while not self._closing and len(self.tasks) < self._limits.requests_in_flight_max:
                frame = self._waiting_frame or self._frames.next_frame()
                if frame is None:
                    break
                self._active = time.monotonic()
                if len(frame) > PIECE_BYTES:
                    if not self._receiving_bytes:
                        self._waiting_frame = frame
                        self._get_room(2 * len(frame))
                        break
                    self._waiting_frame = None
                self._dispatch(frame)
                if time.perf_counter() > turn_ends:
                    self._continuing = True
                    asyncio.get_running_loop().call_soon(self._answer_waiting)
                    break
            else:
                frame = b""
            if frame is None and self._frames.buffered_bytes > PIECE_BYTES and not self._receiving_bytes:
                self._get_room(2 * self._limits.frame_bytes_max)  # the reader keeps two copies
        except RequestError as error:
            self._fail(error)
            return
        in_flight = len(self.tasks) >= self._limits.requests_in_flight_max
        self._pause(self._continuing or in_flight or self._getting_room is not None)

    def _dispatch(self, frame: Frame) -> None:
        if len(frame) > PIECE_BYTES:
            asker = self._keep_received(2 * len(frame))  # it, and what is made of it
            self._start_long(asker, partial(self._decode_long, frame), len(frame))
            return
        started = time.perf_counter()
        try:
            request = decode_request(frame, 2 * self._limits.vertices_max)
        except InvalidParams as error:
            self._refuse(error.msgid, "other", started, error)
            return
        self._answer(request, started)

    def _decode_long(self, frame: Frame) -> Request:
        """A request whose long arrays of ids are columns already."""
        request = decode_request(frame, 2 * self._limits.vertices_max)
        try:
            return replace(request, params=with_columns(request.params, self._serving))
        except RequestError as error:
            raise InvalidParams(request.msgid, error.message, error.detail) from None

    def _check_in(self, request: Request) -> None:
        """The first request decides whether this client may come in."""
        if self._guest.is_in:
            return
        admission = self._serving.admission
        if admission.asks_token:
            if request.method != "hello":
                raise Unauthorized("present the token with hello first")
            self.token = request.params.get("token")
            admission.check(self.token)
        admission.let_in(self._guest)
        self._frames.allow(self._limits.frame_bytes_max)

    # -- out ----------------------------------------------------------------------------------------------

    def entries(self, content: Mapping[str, Any]) -> Entries:
        return encode_entries(content)

    def notification(
        self,
        method: str,
        content: Mapping[str, Any],
        stamp: bytes | None = None,
        shared: Entries | None = None,
    ) -> bytes:
        if stamp is None:
            return encode_notification(method, content)
        return encode_stamped_notification(method, stamp, content, shared)

    def _encode(self, msgid: int, reply: Reply) -> bytes:
        shared = None if reply.shared is None else reply.shared.entries()
        return encode_result(msgid, reply.stamp, reply.answer, shared)

    def _send(self, msgid: int, answer: bytes) -> None:
        self._write(answer)

    def _send_error(self, msgid: int, error: GraphtideError) -> None:
        self._write(encode_error(msgid, error))

    def lacks_tls(self, first: bytes) -> GraphtideError:
        if _HTTP.match(first):
            return self._no_http()
        return RequestError("TLS is spoken here, and nothing else: graphtide's clients need an ssl_context for it")

    def _last_words(self, error: GraphtideError) -> bytes:
        if self._is_http:
            headers = [("Connection", "close")]
            return plain.write_answer(400, headers, routes.JSON, answers.encode_error(error))
        return encode_notification("error", error_to_wire(error))
