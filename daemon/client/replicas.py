"""Several servers for one client: which one it speaks to, and what the answers of another must cover."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ..errors import GraphtideError, TimedOut, Unavailable
from .addresses import TcpAddress, UnixAddress, parse_address


class Replicas:
    """The servers of one graph that a client may speak to, one at a time, in the order given."""

    def __init__(self, addresses: str | Sequence[str]) -> None:
        """
        Raises:
            ValueError: there is no address, or one is neither ``unix:PATH`` nor ``tcp://HOST:PORT``.
        """
        given = [addresses] if isinstance(addresses, str) else addresses
        self._addresses = [parse_address(text) for text in given]
        if not self._addresses:
            raise ValueError("a client needs the address of a server")
        self._at = 0
        self._epoch = (0, 0)
        self._offsets: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def address(self) -> TcpAddress | UnixAddress:
        """Of the server to speak to."""
        return self._addresses[self._at]

    def turn(self) -> None:
        """To the next server; from the last one to the first."""
        self._at = (self._at + 1) % len(self._addresses)

    def from_here(self) -> Self:
        """The same for another connection, which begins with the server spoken to now, and with what it said."""
        return copy.copy(self)

    def begin(self) -> Mapping[str, Any] | None:
        """A connection begins: the offsets that its answers must cover. None: any will do.

        Epochs are each server's own, so that they are compared within one connection only.
        """
        self._epoch = (0, 0)
        return self._offsets if len(self) > 1 else None

    def heard(self, result: Any) -> None:
        """An answer came on the connection; the newest one is remembered."""
        if len(self) == 1:
            return
        epoch = (result["epoch"][0], result["epoch"][1])
        if epoch >= self._epoch:
            self._epoch, self._offsets = epoch, result["offsets"]


def none_of(failures: Sequence[GraphtideError]) -> GraphtideError:
    """The error where each server in turn could not be spoken to, or had no answer in time."""
    if len(failures) == 1:
        return failures[0]
    reasons = "; ".join(error.message for error in failures)
    if all(isinstance(error, TimedOut) for error in failures):  # with one server it would be that, too
        return TimedOut(f"no server has answered in time: {reasons}", failures[-1].detail)
    return Unavailable(f"no server can be spoken to: {reasons}")
