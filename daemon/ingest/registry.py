"""A schema registry, asked over HTTP: what schema an id stands for, with all that it refers to.

The interface is Confluent's, which Karapace, Redpanda and Apicurio (``/apis/ccompat/v7``) have as well:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html. An id stands for one schema for ever.

Where the registry does not answer as a registry does (no connection, no answer in time, a refusal, a page of
something else), nothing is said about any record: that is ``RegistryAway``, and may be tried again.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, quote, urlsplit

import h11
import orjson

from ..errors import GraphtideError
from ..records.encodings import SchemaKind
from . import decode_columns as columns
from .decode_columns import Bad, Reason

REFERENCES_MAX = 256
"""Schemas that one schema may refer to, directly or not."""

NUMBER_MAX = (1 << 31) - 1
"""Ids are signed integers of 32 bits to registries; one asked for another says that there is no such page."""

_LATER = frozenset({408, 429})  # too slow, too often: to be tried again
_UNKNOWN = frozenset({40401, 40402, 40403})  # no such subject, version, schema
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_HEADERS = (
    ("Accept", f"{_CONTENT_TYPE}, application/json"),
    ("User-Agent", "graphtide"),
    ("Connection", "close"),
)
_HEADERS_MAX = 1 << 16
_PIECE = 1 << 16
_WRAPPING = 1 << 16  # what an answer holds besides the schema
_ESCAPED = 6  # JSON writes a character with so many bytes at most


class RegistryAway(GraphtideError):
    """The registry cannot be asked just now, or does not let us."""

    code = "registry-away"
    retriable = True


class SchemaRefused(GraphtideError):
    """The registry takes no such schema under that subject."""

    code = "schema-refused"


class Schema(NamedTuple):
    """``text``: as it was registered, for JSON empty; ``references``: the texts of what it refers to, by their
    names there, each after those that it refers to itself."""

    kind: SchemaKind
    text: str
    references: Mapping[str, str]


@dataclass(slots=True)
class _Begun:
    """A schema that is asked for until ``ends`` (monotonic), and the answers that came so far, by their paths."""

    number: int
    ends: float = 0.0
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Registry:
    """``url``: ``http(s)://HOST[:PORT][/PATH]``; ``authorization``: the header's value, empty: none;
    ``context``: for https; ``timeout_s``: for one schema with all that it refers to; ``schema_bytes_max``: of
    these; ``given_up``: asks whether to go on asking.

    Of a schema that could not be had whole in that time the answers that came are kept, so that the next try goes
    on where this one ended, however slow the registry is."""

    url: str
    authorization: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None
    timeout_s: float = 5.0
    schema_bytes_max: int = 1 << 20
    given_up: Callable[[], bool] = lambda: False
    _begun: _Begun | None = field(default=None, repr=False)

    def renew(self, other: Registry) -> None:
        """Ask as this one does, from the next question on: another user, password or certificates. Any thread may
        call it."""
        self.authorization, self.context = other.authorization, other.context

    def schema(self, number: int) -> Schema:
        """The schema with this id.

        Raises:
            Bad: there is none, or it cannot be used.
            RegistryAway: it is not known whether there is one.
        """
        begun, self._begun = self._begun, None
        if begun is None or begun.number != number:
            begun = _Begun(number)
        begun.ends = time.monotonic() + self.timeout_s
        try:
            return self._whole(begun)
        except RegistryAway:
            self._begun = begun
            raise

    def _whole(self, begun: _Begun) -> Schema:
        number = begun.number
        answer = self._asked(begun, f"/schemas/ids/{number}", f"schema {number}")
        kind = answer.get("schemaType") or "AVRO"
        if kind not in ("AVRO", "PROTOBUF", "JSON"):
            raise Bad(Reason.BAD_SCHEMA, f"schema {number} is of the unknown type {columns.shown(kind)}")
        text = self._text(answer, f"schema {number}")
        if kind == "JSON":
            return Schema("JSON", "", {})  # records say all
        return Schema(cast(SchemaKind, kind), text, self._referred(answer, begun, len(text)))

    def register(self, subject: str, text: str, kind: SchemaKind = "AVRO") -> int:
        """The id of this schema, which becomes a version of the subject unless it is one.

        Raises:
            SchemaRefused: the registry does not take it, or not from us.
            RegistryAway: it cannot be asked.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        posted = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        status, body = self._answer(path, time.monotonic() + self.timeout_s, orjson.dumps(posted))
        answer = _json(body)
        said = answer if isinstance(answer, dict) else {}
        if 400 <= status < 500 and status not in _LATER:
            why = columns.shown(said.get("message") or status)
            raise SchemaRefused(f"{self._named} does not take the schema of {subject}: {why}")
        if status != 200:
            raise RegistryAway(f"{self._named} answers {status} to {path}")
        number = said.get("id")
        if type(number) is not int or not 0 <= number <= NUMBER_MAX:
            raise RegistryAway(f"{self._named} answers without an id of a schema to {path}")
        return number

    def check(self) -> str:
        """What it can do, in words.

        Raises:
            RegistryAway: it cannot be asked.
        """
        status, kinds = self._answer("/schemas/types", time.monotonic() + self.timeout_s)
        if status != 200:
            raise RegistryAway(f"{self._named} answers {status} to /schemas/types")
        known = _json(kinds)
        if not isinstance(known, list):
            raise RegistryAway(f"{self._named} is no schema registry: it does not say what types it knows")
        return f"{self.url} ({', '.join(map(str, known[:9]))})"

    @property
    def _named(self) -> str:
        return f"the schema registry at {self.url}"

    def _referred(self, answer: dict[str, Any], begun: _Begun, size: int) -> dict[str, str]:
        """What an answer refers to, what that refers to first; ``size``: of its own text."""
        number = begun.number
        found: dict[str, str] = {}
        asked: set[str] = set()
        pending = [("", "", iter(_references(answer, number)))]
        while pending:
            name, text, left = pending[-1]
            reference = next(left, None)
            if reference is None:
                pending.pop()
                found |= {name: text} if name else {}
            elif reference.name not in asked:
                asked.add(reference.name)
                if len(asked) > REFERENCES_MAX:
                    raise Bad(Reason.BAD_SCHEMA, f"schema {number} refers to more than {REFERENCES_MAX} others")
                what = f"{columns.shown(reference.name)}, to which schema {number} refers,"
                path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
                other = self._asked(begun, path, what)
                text = self._text(other, what)
                size += len(text)
                if size > self.schema_bytes_max:
                    raise Bad(Reason.BAD_SCHEMA, f"schema {number} is too large, with all that it refers to")
                pending.append((reference.name, text, iter(_references(other, number))))
        return found

    def _text(self, answer: dict[str, Any], what: str) -> str:
        text: str = answer["schema"]
        if len(text) > self.schema_bytes_max:
            limit = self.schema_bytes_max
            raise Bad(Reason.BAD_SCHEMA, f"{what} has {len(text)} characters; at most {limit} are allowed")
        return text

    def _asked(self, begun: _Begun, path: str, what: str) -> dict[str, Any]:
        if (answer := begun.answers.get(path)) is None:
            answer = begun.answers[path] = self._read(path, what, begun.ends)
        return answer

    def _read(self, path: str, what: str, ends: float) -> dict[str, Any]:
        status, body = self._answer(path, ends)
        answer = _json(body) if len(body) <= self._body_max else None
        if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _UNKNOWN:
            raise Bad(Reason.UNKNOWN_SCHEMA, f"the registry knows no {what.removesuffix(',')}")
        if status != 200:
            raise RegistryAway(f"{self._named} answers {status} to {path}")
        if len(body) > self._body_max:
            raise Bad(Reason.BAD_SCHEMA, f"{what} takes more than {self._body_max} bytes")
        if not isinstance(answer, dict):
            raise RegistryAway(f"{self._named} answers with something else than a schema to {path}")
        if not isinstance(answer.get("schema"), str):
            raise RegistryAway(f"{self._named} answers without a schema when asked for {what}")
        return answer

    @property
    def _body_max(self) -> int:
        return _ESCAPED * self.schema_bytes_max + _WRAPPING

    def _answer(self, path: str, ends: float, posted: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body, of which no more is read than a piece too many. Nothing is followed."""
        if self.given_up():
            raise RegistryAway(f"{self._named} is not asked any more")
        place = urlsplit(self.url)
        headers = [*_HEADERS, ("Host", place.netloc)]
        headers += [("Authorization", self.authorization)] if self.authorization else []
        if posted is not None:
            headers += [("Content-Type", _CONTENT_TYPE), ("Content-Length", str(len(posted)))]
        method = "GET" if posted is None else "POST"
        try:
            request = h11.Request(method=method, target=place.path.rstrip("/") + path, headers=headers)
            with contextlib.closing(self._connected(place, ends)) as connected:
                return self._exchange(connected, request, posted or b"", ends)
        except h11.RemoteProtocolError as error:
            what = str(error).partition(": bytearray(")[0]  # h11 shows what it was as Python would write it
            raise RegistryAway(f"{self._named} answers what is no HTTP: {what[:200]}") from None
        except (OSError, UnicodeError, h11.ProtocolError) as error:  # no name of a host, no path of a page
            why = str(error) or type(error).__name__
            raise RegistryAway(f"{self._named} does not answer: {why[:200]}") from None

    def _connected(self, place: SplitResult, ends: float) -> socket.socket:
        port = place.port or (80 if self.context is None else 443)
        connected = socket.create_connection((place.hostname, port), _left(ends))
        try:
            connected.settimeout(_left(ends))
            if self.context is None:
                return connected
            return self.context.wrap_socket(connected, server_hostname=place.hostname)
        except BaseException:
            connected.close()
            raise

    def _exchange(
        self, connected: socket.socket, request: h11.Request, posted: bytes, ends: float
    ) -> tuple[int, bytes]:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADERS_MAX)
        events: list[h11.Event] = [request, h11.Data(posted), h11.EndOfMessage()]
        connected.settimeout(_left(ends))
        connected.sendall(b"".join(http.send(event) or b"" for event in (events if posted else events[::2])))
        status, body = 0, bytearray()
        while len(body) <= self._body_max:
            event = http.next_event()
            if event is h11.NEED_DATA:
                connected.settimeout(_left(ends))
                http.receive_data(connected.recv(_PIECE))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
        return status, bytes(body)


def _json(body: bytes) -> Any:
    """What it holds; None: it is no JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _left(ends: float) -> float:
    """Seconds until then.

    Raises:
        TimeoutError: there are none.
    """
    if (left := ends - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    return left


def basic_authorization(username: str, password: str) -> str:
    """The value of the header for HTTP's basic authentication (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


class _Reference(NamedTuple):
    name: str
    subject: str
    version: int


def _references(answer: dict[str, Any], number: int) -> list[_Reference]:
    """What an answer refers to itself."""
    try:
        given = [_Reference(one["name"], one["subject"], one["version"]) for one in answer.get("references") or ()]
    except (KeyError, TypeError):
        given = [_Reference("", "", 0)]
    if any([*map(type, one)] != [str, str, int] or not one.name for one in given):
        raise Bad(Reason.BAD_SCHEMA, f"schema {number} refers to others in a way that is not understood")
    return given
