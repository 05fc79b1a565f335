"""A connection of the HTTP door: one request after the other, or a stream of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import h11

from ...client.wire import PIECE_BYTES, Entries, InvalidParams, Request, error_to_wire
from ...errors import GraphtideError, LimitExceeded, RequestError, TimedOut, Unauthorized
from ..admission import Guest
from ..channel import TURN_SECONDS, Channel
from ..params import with_columns
from ..serving import Reply, Serving
from .answers import encode_answer, encode_entries, encode_error, encode_event, epoch_of
from .files import File
from .plain import read_request, write_answer
from .routes import JSON, Asked, Head, Refused, check_origin, route, status_of

HEAD_BYTES_MAX = 1 << 14
"""The longest head of a request: the line that names what is asked for, headers, and the empty line."""
PARSED_BYTES = HEAD_BYTES_MAX // 4
"""So much is parsed at once."""
JSON_COST = 24
"""Bytes of objects that a byte of JSON can make: an empty array is two characters and a comma."""
COLUMN_COST = 4
"""And bytes of columns: of ids of one digit."""
LINGER_SECONDS = 1.0
"""So long is what a refused request still sends taken and thrown away, so that the client reads why."""
RETRY_MS = 1000
"""After so long a browser asks for events again when its connection broke."""
_NO_TEXT = 0x80
"""No request begins with such a byte, as those of the binary protocol do. h11 would wait for the line's end."""

HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Of every answer."""


class HttpConnection(Channel):
    """One client: requests in, answers out, within the limits of the socket.

    Requests that come before the last one was answered wait their turn, unread. h11 reads all that are not
    ``plain``, and writes their answers.
    """

    def __init__(self, serving: Serving, guest: Guest, hosts: frozenset[str] | None) -> None:
        """``hosts``: as of ``routes.check_origin``."""
        super().__init__(serving, guest)
        self._hosts = hosts
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._http_has_some = False  # of what came: the rest of it is h11's, too, until it has nothing left
        self._is_plain = False
        self._asked: Asked | File | None = None
        self._verb = ""
        self._unparsed = bytearray()
        self._body = bytearray()
        self._busy = False
        self._has_answered = False

    # -- in -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self.refusal is not None:
            self._turn_away(Refused(400, self.refusal))
            return
        self._unparsed += data
        if self._busy:
            self._pause(True)
        elif not self._continuing:
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        self._continuing = False
        turn_ends = time.perf_counter() + TURN_SECONDS
        try:
            while not self._closing and not self._busy and self._getting_room is None and self._reads.is_set():
                if time.perf_counter() > turn_ends:
                    self._continuing = True
                    asyncio.get_running_loop().call_soon(self._answer_waiting)
                    break
                if not self._http_has_some and self._unparsed:
                    if self._unparsed[0] >= _NO_TEXT:
                        raise h11.RemoteProtocolError(
                            "the binary protocol, perhaps, which is spoken at the addresses of server.listen"
                        )
                    if self._take_plain():
                        continue
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._verb = event.method.decode("latin-1")
                    if event.http_version not in (b"1.0", b"1.1"):
                        raise Refused(505, RequestError("this server speaks HTTP/1.1"))
                    self._take_head(Head.of(event))
                elif isinstance(event, h11.Data):
                    self._take_body(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._take_end()
                elif event is h11.NEED_DATA and self._unparsed:
                    self._parse_more()
                else:  # nothing more has come
                    if self._http.they_are_waiting_for_100_continue:
                        self._write(self._sent(h11.InformationalResponse(status_code=100, headers=[])))
                    break
        except h11.RemoteProtocolError as error:
            what = str(error).partition(": bytearray(")[0]  # h11 shows what it was as Python would write it
            self._turn_away(Refused(error.error_status_hint, RequestError(f"this is no HTTP: {what}")), "request")
        except Unauthorized as error:
            self._turn_away(Refused(401, error, [("WWW-Authenticate", "Bearer")]), "token")
        except Refused as refused:
            self._turn_away(refused)
        if not self._busy:
            self._pause(self._continuing or self._getting_room is not None or not self._reads.is_set())

    def _parse_more(self) -> None:
        """Give h11 more of what came; of a head no more than there may be of one.

        Raises:
            Refused: the head is too long.
        """
        size = PARSED_BYTES
        if self._http.their_state is h11.IDLE:
            size = min(size, HEAD_BYTES_MAX - len(self._http.trailing_data[0]))
            if size == 0:
                raise Refused(431, RequestError(f"a head has at most {HEAD_BYTES_MAX} bytes"))
        self._http_has_some = True
        self._http.receive_data(bytes(self._unparsed[:size]))
        del self._unparsed[:size]

    def _take_plain(self) -> bool:
        """Answer the request that comes next if all of it is there, and h11 is not needed for it."""
        request = read_request(self._unparsed)
        if request is None:
            return False
        head, body, size = request
        try:
            asked = self._routed(head)
        except (Refused, Unauthorized):  # which ends the connection, and is said as h11 has read it
            return False
        if isinstance(asked, Asked) and (asked.is_stream or len(body) > self._limits.http_body_bytes_max):
            return False
        if body and not (isinstance(asked, Asked) and asked.in_body):
            return False
        del self._unparsed[:size]
        self._active = time.monotonic()
        self._is_plain, self._verb, self._asked = True, head.verb, asked
        self._body += body
        self._take_end()
        return True

    def _routed(self, head: Head) -> Asked | File:
        check_origin(head, self._hosts)
        asked = route(head)
        if isinstance(asked, Asked):
            self.token = head.token
            self._serving.admission.check(self.token)
        return asked

    def _take_head(self, head: Head) -> None:
        """Decide by its head what becomes of a request, before its body has come.

        Raises:
            Refused: nothing does.
            Unauthorized: it presents no right token where one is asked for.
        """
        self._active = time.monotonic()
        self._asked = self._routed(head)
        length = int(head.headers.get("content-length", 0))
        self._check_length(length)
        if length > PIECE_BYTES:
            self._get_room(JSON_COST * length)

    def _take_body(self, data: bytes) -> None:
        self._check_length(len(self._body) + len(data))
        self._body += data
        if len(self._body) > PIECE_BYTES and not self._receiving_bytes:
            self._get_room(JSON_COST * self._limits.http_body_bytes_max)

    def _check_length(self, length: int) -> None:
        limit = self._limits.http_body_bytes_max
        if not (isinstance(self._asked, Asked) and self._asked.in_body) and length:
            raise Refused(413, LimitExceeded(f"a {self._verb[:16]} has no body"))
        if length > limit:
            raise Refused(
                413, LimitExceeded(f"the body has more than {limit} bytes", {"http_body_bytes_max": limit})
            )

    def _take_end(self) -> None:
        """All of a request has come."""
        asked, body = self._asked, bytes(self._body)
        self._body.clear()
        self._busy = True
        if isinstance(asked, File):
            if not self._serving.admission.asks_token:
                self._let_in()
            self._respond(200, asked.content, asked.media_type)
            return
        assert asked is not None
        if len(body) > PIECE_BYTES:
            asker = self._keep_received(JSON_COST * len(body))
            self._start_long(asker, partial(self._decode, asked, body), COLUMN_COST * len(body))
            return
        started = time.perf_counter()
        try:
            request = self._decode(asked, body)
        except InvalidParams as error:
            self._refuse(error.msgid, asked.method, started, error)
            return
        self._answer(request, started)

    def _decode(self, asked: Asked, body: bytes) -> Request:
        try:
            given = asked.params(body, self._serving.id_kind)
            if len(body) > PIECE_BYTES:
                given = with_columns(given, self._serving)
        except RequestError as error:
            raise _invalid(error) from None
        return Request(0, asked.method, given)

    def _check_in(self, request: Request) -> None:
        """Its token was looked at when it began to come."""
        if not self._guest.is_in:
            self._serving.admission.let_in(self._guest)

    def _let_in(self) -> None:
        try:
            self._check_in(Request(0, "hello", {}))
        except LimitExceeded as error:
            raise Refused(503, error) from None

    # -- out ----------------------------------------------------------------------------------------------

    def entries(self, content: Mapping[str, Any]) -> Entries:
        return Entries(len(content), encode_entries(content))

    def notification(
        self,
        method: str,
        content: Mapping[str, Any],
        stamp: bytes | None = None,
        shared: Entries | None = None,
    ) -> bytes:
        told = {name: value for name, value in content.items() if name != "subscription"}
        rest = b"" if shared is None else shared.data
        if stamp is None or content.get("more"):  # what came counts once all of it has
            return encode_event(method, stamp, told, rest)
        incarnation, number = epoch_of(stamp)
        return encode_event(method, stamp, told, rest, id=f"{incarnation}.{number}")

    def push(self, message: bytes) -> None:
        if self._closing:
            return
        # Around the message itself, of which there is one copy for all who are sent it.
        for part in self._http.send_with_data_passthrough(h11.Data(data=message)) or ():
            self._write(part)
        if not self._serving.subscriptions.has(self):  # it was the last one
            self._end_answer()
            if not self._closing and not self._continuing:  # what came behind it
                self._continuing = True
                asyncio.get_running_loop().call_soon(self._answer_waiting)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._closing and not self._continuing and not self._busy:
            self._answer_waiting()

    def _encode(self, msgid: int, reply: Reply) -> bytes:
        if not self._is_stream:
            return encode_answer(reply.stamp, reply.whole())
        answer = {name: value for name, value in reply.whole().items() if name != "subscription"}
        return b"retry: %d\n\n" % RETRY_MS + encode_event("subscribed", reply.stamp, answer)

    def _send(self, msgid: int, answer: bytes) -> None:
        self._serving.http_requests += 1
        if self._is_stream:
            self._write(self._head(200, [("Content-Type", "text/event-stream")]))
            self._write(self._sent(h11.Data(data=answer)))
        else:
            self._respond(200, answer)

    def _send_error(self, msgid: int, error: GraphtideError) -> None:
        self._serving.http_requests += 1
        self._respond(status_of(error), encode_error(error), headers=_more_headers(error))

    def lacks_tls(self, first: bytes) -> GraphtideError:
        return RequestError("HTTPS is spoken here, and nothing else: ask for https://")

    def _last_words(self, error: GraphtideError) -> bytes:
        status = 408 if isinstance(error, TimedOut) else status_of(error)
        if self._is_plain:  # and not answered yet
            return self._answer_bytes(status, encode_error(error), JSON, [("Connection", "close")])
        if self._http.our_state is h11.SEND_BODY:  # a stream of events
            ended = encode_event("ended", None, {"error": error_to_wire(error)})
            return self._sent(h11.Data(data=ended)) + self._sent(h11.EndOfMessage())
        is_idle = self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE
        if (is_idle and self._has_answered) or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return b""  # or it would be taken for the answer to the next request
        return self._answer_bytes(status, encode_error(error), JSON, [("Connection", "close")])

    @property
    def _is_stream(self) -> bool:
        return isinstance(self._asked, Asked) and self._asked.is_stream

    def _turn_away(self, refused: Refused, reason: Any = None) -> None:
        """Say why, take no more, and end the connection once the client has read it."""
        if self._closing:
            return
        if reason is not None:
            self._serving.admission.refuse(self._guest, reason)
        self._serving.latencies.record("other", 0.0, refused.error.code)
        self._serving.http_requests += 1
        headers = [*refused.headers, ("Connection", "close")]
        self._write(self._answer_bytes(refused.status, encode_error(refused.error), JSON, headers))
        self._closing = True
        self._active = time.monotonic()
        self._stop_receiving()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def _respond(
        self, status: int, body: bytes, media_type: str = JSON, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """A whole answer, after which the next request comes."""
        self._write(self._answer_bytes(status, body, media_type, headers))
        self._end_answer()

    def _end_answer(self) -> None:
        if self._closing:
            return
        if self._http.our_state is h11.SEND_BODY:
            self._write(self._sent(h11.EndOfMessage()))
        self._has_answered = True
        if self._is_plain:
            self._asked, self._verb, self._busy, self._is_plain = None, "", False, False
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._http_has_some = bool(self._http.trailing_data[0])
            self._asked, self._verb, self._busy = None, "", False
        else:  # a client that wants no further one, or cannot
            self._closing = True
            self._active = time.monotonic()
            self._transport.close()

    def _answer_bytes(
        self, status: int, body: bytes, media_type: str, headers: Sequence[tuple[str, str]]
    ) -> bytes:
        if self._is_plain:
            only_head = self._verb == "HEAD"
            return write_answer(status, (*HEADERS, *headers), media_type, body, only_head=only_head)
        described = [("Content-Type", media_type), ("Content-Length", str(len(body))), *headers]
        head = self._head(status, described)
        content = b"" if self._verb == "HEAD" else self._sent(h11.Data(data=body))
        return b"".join((head, content, self._sent(h11.EndOfMessage())))

    def _head(self, status: int, headers: Sequence[tuple[str, str]]) -> bytes:
        return self._sent(h11.Response(status_code=status, headers=[*HEADERS, *headers]))

    def _sent(self, event: Any) -> bytes:
        return self._http.send(event) or b""


def _invalid(error: RequestError) -> InvalidParams:
    return InvalidParams(0, error.message, error.detail)


def _more_headers(error: GraphtideError) -> list[tuple[str, str]]:
    return [("Retry-After", "1")] if error.retriable else []
