"""The door of the query server: who may come in, and what a connection may cost before that is known.

A connection is a *stranger* until its first request is accepted; where a token is asked for, that is ``hello``
with a right one. Strangers have few bytes, little time and places of their own: however many come, connections
that have been let in keep theirs. When the places of strangers are full, the oldest one from wherever most of them
come from makes room, so that neither silence nor a crowd keeps out who presents a token at once.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import GraphtideError, LimitExceeded, TimedOut, Unauthorized
from .listening import held_files, tls_context

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig

log = logging.getLogger(__name__)

HELLO_BYTES_MAX = 4096
"""The longest request before a token was accepted."""
LOG_SECONDS = 60.0
"""Refusals are logged once in so long at most."""

Reason = Literal["token", "tls", "request", "silent", "crowded", "full"]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why a connection is refused: a wrong token or none; TLS failed; its first request was none; it said nothing in
time; it made room for others; ``connections_max`` were in."""
WORDS: Mapping[str, str] = {
    "token": "a wrong token or none",
    "tls": "TLS failed",
    "request": "no request of the protocol, or too long a one, before the first that was accepted",
    "silent": "no request in time",
    "crowded": "made room for others",
    "full": "connections_max are in use",
}
ORIGINS_MAX = 1024
"""From so many origins refusals are counted apart for the log."""


class Guest:
    """One connection, from being accepted to its end, as the door knows it."""

    __slots__ = ("deadline", "is_in", "origin", "turn_out")

    def __init__(self, origin: str, turn_out: Callable[[GraphtideError | None], None]) -> None:
        """``turn_out`` ends the connection, with the error that says why, or (None) without a word."""
        self.origin = origin
        self.turn_out = turn_out
        self.is_in = False
        self.deadline: asyncio.TimerHandle | None = None


class Admission:
    """Tokens, TLS, and the places for strangers and for those who were let in."""

    def __init__(self, access: Mapping[str, Any], limits: LimitsConfig, loop: asyncio.AbstractEventLoop) -> None:
        """``access``: ``tokens`` (a list; empty: none is asked for), ``admin_tokens`` (likewise, of those who may
        change something) and ``tls`` (descriptors of the files, ``HeldTls``; empty: there are none).

        Raises:
            OSError: the files for TLS cannot be used.
        """
        self.refusals = Refusals(loop)
        self._limits = limits
        self._loop = loop
        self._strangers: dict[Guest, None] = {}  # the oldest first
        self._origins: Counter[str] = Counter()
        self._n_in = 0
        self._tokens: Sequence[bytes] = ()
        self._admin_tokens: Sequence[bytes] = ()
        self.tls: ssl.SSLContext | None = None
        self.renew(access)

    def renew(self, access: Mapping[str, Any]) -> None:
        """Ask for these tokens from now on, and use these files for TLS, whose descriptors are the caller's.

        Raises:
            OSError: the files for TLS cannot be used; those of before, if any, still are.
        """
        self._tokens = [token.encode() for token in access["tokens"]]
        self._admin_tokens = [token.encode() for token in access.get("admin_tokens", ())]
        self.tls = tls_context(held_files(access["tls"])) if access["tls"] else None

    # -- tokens -------------------------------------------------------------------------------------------

    @property
    def asks_token(self) -> bool:
        return bool(self._tokens)

    def check(self, token: object) -> None:
        """
        Raises:
            Unauthorized: a token is asked for, and this is none of those that are right.
        """
        if self._tokens and not _is_among(token, [*self._tokens, *self._admin_tokens]):
            what = "is wrong" if isinstance(token, str) else "must be a string"
            raise Unauthorized("this server asks for a token" if token is None else f"the token {what}")

    def check_admin(self, token: object) -> None:
        """
        Raises:
            Unauthorized: who wants to change something must present a token, and this is none of those.
        """
        if self._admin_tokens and not self.is_admin(token):
            raise Unauthorized("this needs the token of server.admin_token, by hello or as bearer")

    def is_admin(self, token: object) -> bool:
        """Whether it is a token of those who may change something; where there are none nobody has one."""
        return _is_among(token, self._admin_tokens)

    # -- places -------------------------------------------------------------------------------------------

    def enter(self, guest: Guest) -> None:
        """A connection was accepted: a stranger from now on, and not for long."""
        if len(self._strangers) >= self._limits.strangers_max:
            self._make_room()
        self._strangers[guest] = None
        self._origins[guest.origin] += 1
        guest.deadline = self._loop.call_later(self._limits.hello_seconds_max, self._too_late, guest)

    def let_in(self, guest: Guest) -> None:
        """Its first request was accepted.

        Raises:
            LimitExceeded: there is no room for another.
        """
        try:
            self.check_room()
        except LimitExceeded:
            self.refuse(guest, "full")
            raise
        self._forget(guest)
        guest.is_in = True
        self._n_in += 1

    def check_room(self) -> None:
        """
        Raises:
            LimitExceeded: as many connections as may be have been let in.
        """
        limit = self._limits.connections_max
        if self._n_in >= limit:
            raise LimitExceeded(f"more than {limit} connections", {"connections_max": limit})

    def leave(self, guest: Guest) -> None:
        """The connection is gone; harmless to repeat."""
        self._forget(guest)
        self._n_in -= guest.is_in
        guest.is_in = False

    def refuse(self, guest: Guest, reason: Reason) -> None:
        """Count, and log now and then, that this connection is refused."""
        self.refusals.count(reason, guest.origin)

    def close(self) -> None:
        """Log what was not logged yet, and forget all timers."""
        for guest in list(self._strangers):
            self._forget(guest)
        self.refusals.close()

    def _make_room(self) -> None:
        crowd = max(self._origins, key=self._origins.__getitem__)
        oldest = next(guest for guest in self._strangers if guest.origin == crowd)
        self._forget(oldest)
        self.refuse(oldest, "crowded")
        oldest.turn_out(None)

    def _too_late(self, guest: Guest) -> None:
        self.refuse(guest, "silent")
        # It keeps its place until it is gone: ending it may take another moment, in which it must count.
        guest.deadline = self._loop.call_later(self._limits.hello_seconds_max, guest.turn_out, None)
        seconds = self._limits.hello_seconds_max
        guest.turn_out(TimedOut(f"no request came within {seconds:g} s", {"hello_seconds_max": seconds}))

    def _forget(self, guest: Guest) -> None:
        if guest.deadline is not None:
            guest.deadline.cancel()
            guest.deadline = None
        if guest in self._strangers:
            del self._strangers[guest]
            self._origins[guest.origin] -= 1
            if not self._origins[guest.origin]:
                del self._origins[guest.origin]


def _is_among(token: object, right: Sequence[bytes]) -> bool:
    """All are compared, each in constant time: how long it takes tells nothing."""
    given = token.encode(errors="surrogatepass") if isinstance(token, str) else b""
    return bool(sum(hmac.compare_digest(given, one) for one in right))


class Refusals:
    """Counts refused connections; logs the first one, and then what came in the minute after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.totals: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._loop = loop
        self._unlogged: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, reason: Reason, origin: str) -> None:
        """One connection from ``origin`` was refused."""
        self.totals[reason] += 1
        # Origins are as many as an attacker likes: of the rare ones only the number is kept.
        known = (reason, origin) in self._unlogged or len(self._unlogged) < ORIGINS_MAX
        self._unlogged[reason, origin if known else "elsewhere"] += 1
        if self._timer is None:
            self._log()

    def close(self) -> None:
        """Log what was not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log()

    def _log(self) -> None:
        self._timer = None
        if not self._unlogged:
            return
        shown = [f"{n} from {origin} ({WORDS[reason]})" for (reason, origin), n in self._unlogged.most_common(3)]
        together = self._unlogged.total()
        rest = together - sum(n for _, n in self._unlogged.most_common(3))
        more = f", {rest} more" if rest else ""
        noun = "connection" if together == 1 else "connections"
        log.warning("refused %d %s: %s%s", together, noun, ", ".join(shown), more)
        self._unlogged.clear()
        self._timer = self._loop.call_later(LOG_SECONDS, self._log)


def origin_of(connection: socket.socket, address: Any) -> str:
    """Who is behind an accepted connection, as far as it can be told: a host (IPv6: its network), or a user."""
    if connection.family == socket.AF_UNIX:
        _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"uid {uid}"
    host = str(address[0])
    if connection.family == socket.AF_INET6:
        plain = ipaddress.IPv6Address(host.partition("%")[0])
        if plain.ipv4_mapped is not None:
            return str(plain.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(plain) >> 64 << 64, 64)))
    return host
