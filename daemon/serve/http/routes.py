"""What a request over HTTP asks for: one of the socket's methods, or a file of the page."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import h11

from ...errors import GraphtideError, NotSupported, RequestError
from ..methods import METHODS
from . import arguments
from .files import File, find_file
from .offered import NOT_HERE, READS

PREFIX = "/v1/"
JSON = "application/json"

STATUSES = {
    "bad-request": 400,
    "not-supported": 400,
    "unauthorized": 401,
    "unknown-program": 404,
    "unknown-vertex": 404,
    "limit-exceeded": 413,
    "unavailable": 503,
    "not-written": 503,
    "timeout": 504,
}
"""By the code of an error; any other one is 500."""


class Refused(Exception):
    """A request that no handler gets to see: a status, the error that says why, and further headers."""

    def __init__(self, status: int, error: GraphtideError, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request: its method, path, query and headers (by their names in lower case)."""

    verb: str
    path: str
    query: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, request: h11.Request) -> Head:
        """
        Raises:
            Refused: what is asked for is no path, or where it ends is said in two ways.
        """
        path, _, query = request.target.decode("latin-1").partition("?")
        if not path.startswith("/"):
            raise Refused(400, RequestError("what is asked for must be a path of this server"))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        if {"content-length", "transfer-encoding"} <= headers.keys():  # a proxy may have gone by the other one
            raise Refused(400, RequestError("a body has a Content-Length or a Transfer-Encoding, not both"))
        return cls(request.method.decode("latin-1"), unquote(path), query, headers)

    @property
    def token(self) -> str | None:
        """What it presents by ``Authorization: Bearer``: bytes of UTF-8, or of Latin-1 as browsers have it."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        token = token.strip()
        try:
            return token.encode("latin-1").decode()
        except UnicodeDecodeError:
            return token


@dataclass(frozen=True, slots=True)
class Asked:
    """One of the socket's methods, with its parameters in the query or in the body.

    ``since``: the epoch that a client was told of last, which comes back to a stream of events.
    """

    method: str
    in_body: bool
    query: str
    since: list[int] | None = None

    @property
    def is_stream(self) -> bool:
        """It is answered by events, as they come."""
        return self.method == "subscribe"

    def params(self, body: bytes, vertex_ids: str) -> dict[str, Any]:
        """
        Raises:
            RequestError: these are none.
        """
        if self.in_body:
            given = arguments.from_json(self.method, body, vertex_ids)
        else:
            given = arguments.from_query(self.method, self.query, vertex_ids)
        if self.since is None:
            return given
        # Where it cannot go on, all must come anew, also for those who did not want it at first.
        kept = {name: value for name, value in given.items() if name not in ("snapshot", "min_offsets")}
        return {**kept, "since": self.since}


def route(head: Head) -> Asked | File:
    """What is asked for.

    Raises:
        Refused: there is no such thing, or not in this way.
    """
    found = find_file(head.path)
    if found is not None:
        if head.verb not in ("GET", "HEAD"):
            raise _not_by(head, "GET, HEAD")
        return found
    name = head.path.removeprefix(PREFIX)
    if not head.path.startswith(PREFIX) or name not in METHODS or name in NOT_HERE:
        there = sorted(METHODS.keys() - NOT_HERE)
        near = difflib.get_close_matches(name.rpartition("/")[2][:64], there, n=1)
        hint = f"; did you mean '{PREFIX}{near[0]}'?" if near else ""
        message = f"there is no {head.path[:128]!r}; there are {PREFIX} and one of {', '.join(there)}{hint}"
        raise Refused(404, NotSupported(message, {"methods": there}))
    if head.verb == "POST":
        # A form on any page can make a browser post, but not this type, unless it asks first and is allowed to.
        if head.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise Refused(415, RequestError(f"the header Content-Type must be {JSON}"), [("Accept", JSON)])
        if head.headers.get("content-encoding", "identity").strip().lower() != "identity":
            error = RequestError("the body must not be compressed: Content-Encoding is not understood")
            raise Refused(415, error, [("Accept-Encoding", "identity")])
        return Asked(name, True, "", _since(name, head))
    if head.verb not in ("GET", "HEAD") or name not in READS or (head.verb == "HEAD" and name == "subscribe"):
        raise _not_by(head, "GET, HEAD, POST" if name in READS else "POST")
    return Asked(name, False, head.query, _since(name, head))


def check_origin(head: Head, hosts: frozenset[str] | None) -> None:
    """Refuse what pages of other servers ask through a browser.

    ``hosts``: the names by which this server may be called, beside addresses and localhost; None: any. A page
    elsewhere can let its own name mean our address (DNS rebinding), but then asks by that name.

    Raises:
        Refused: it is such a one.
    """
    host = head.headers.get("host")
    if hosts is not None and host is not None and not _is_own(host, hosts):
        message = f"this server is not called {host[:128]!r}: server.http_hosts can name it so"
        raise Refused(421, RequestError(message))
    origin = head.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
        raise Refused(403, RequestError("pages of other servers may not ask"))


def status_of(error: GraphtideError) -> int:
    """The status of an answer that is an error."""
    if "connections_max" in error.detail:
        return 503
    return STATUSES.get(error.code, 500)


def _not_by(head: Head, allowed: str) -> Refused:
    error = RequestError(f"{head.path[:128]} is not for {head.verb[:16]}, but for {allowed}")
    return Refused(405, error, [("Allow", allowed)])


def _since(method: str, head: Head) -> list[int] | None:
    last = head.headers.get("last-event-id")
    if method != "subscribe" or not last:
        return None
    try:
        return arguments.epoch("Last-Event-ID", last)
    except RequestError as error:
        raise Refused(400, error) from None


@lru_cache(maxsize=64)
def _is_own(host: str, names: frozenset[str]) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
