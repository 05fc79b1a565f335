"""Which changes a program does not try to follow any more: those about as large as one that it had to give up."""

from __future__ import annotations

import math

_SHARE = 0.75
# What starts over at once raises the size from which on that is done, since the graph may be another by then.
_HOPE = 1.05
_NONE = 1 << 62


class Hopeless:
    """Sizes of changes, from which on one starts over at once. All are worth a try in the beginning."""

    def __init__(self, tries: int = 1, least: int = 0) -> None:
        """``tries``: how many must have been given up in a row; ``least``: smaller ones are always tried."""
        self._tries, self._least = tries, least
        self._given_up = 0
        self._size = math.inf
        self.from_size = _NONE
        """The smallest of those sizes; to be read."""

    def is_one(self, size: int) -> bool:
        """Whether a change of this size is to start over at once."""
        if size < self._size:
            return False
        self._size *= _HOPE
        self.from_size = math.ceil(self._size)
        return True

    def gave_up(self, size: int) -> None:
        """One of this size was tried, and cost more than it may."""
        self._given_up += 1
        if self._given_up >= self._tries:
            self._size = max(_SHARE * size, self._least)
            self.from_size = math.ceil(self._size)

    def went_on(self) -> None:
        """One was tried, and followed."""
        self._given_up = 0
