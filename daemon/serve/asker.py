"""Who asks: a connection, and what one of its requests holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..client.wire import Entries


class OpenConnection(Protocol):
    """What must be known of a client's connection."""

    tasks: set[asyncio.Future[Any]]
    """Its requests that are being answered."""
    token: object
    """What it presented by ``hello``."""

    @property
    def unread_bytes(self) -> int:
        """Answers that the client has not read."""
        ...

    def look_after(self, now: float) -> None:
        """Now and then: end it if it is idle or gone, or keeps others waiting."""
        ...

    def check_token(self) -> None:
        """End it when the token that it presented is no longer right."""
        ...

    def is_gone(self) -> bool:
        """The client has hung up, which goes unnoticed where nothing is read."""
        ...

    @property
    def ahead_bytes(self) -> int:
        """So much of what others are sent, too, may be sent to it before it has read what came before."""
        ...

    @property
    def takes_more(self) -> bool:
        """The client has read almost all that it was sent."""
        ...

    async def reads(self, patience_s: float) -> bool:
        """Wait until ``takes_more``, or for so long; which it was."""
        ...

    def entries(self, content: Mapping[str, Any]) -> Entries:
        """Entries of notifications, encoded for all who speak the same language. Any thread may ask."""
        ...

    def notification(
        self,
        method: str,
        content: Mapping[str, Any],
        stamp: bytes | None = None,
        shared: Entries | None = None,
    ) -> bytes:
        """What no request asked for, as it is sent; ``stamp``: of its epoch, ``shared``: more of its entries, only
        with a stamp. Any thread may ask."""
        ...

    def push(self, message: bytes) -> None:
        """Send such a one."""
        ...

    def abort(self) -> None:
        """Drop it, with its requests, and whatever it has not read."""
        ...


@dataclass(slots=True, eq=False)
class Asker:
    """One request's. Its connection has one turn, share and so on, with however many requests it comes.

    ``receiving_bytes``: of ``Serving.receiving``, held for a long request; ``making_bytes``: of
    ``Serving.making``, taken for the answer.
    """

    connection: OpenConnection
    receiving_bytes: int = 0
    making_bytes: int = 0

    def stop_if_gone(self) -> None:
        """End the request if nobody waits for it any more; to be asked before each larger piece of work.

        Raises:
            CancelledError: nobody does.
        """
        if self.connection.is_gone():
            self.connection.abort()
            raise asyncio.CancelledError
