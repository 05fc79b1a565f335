"""How soon subscribers who are sent much are told of more.

What changes in several epochs is sent once to who hears of them together. To copy all of it for many who read all
keeps the server from questions, and memory and cores from ingest: so each pauses, the longer the more all of them
are sent, and all go on at common moments. Then they know the same epoch and lack the same, which is looked up and
encoded once.
"""

from __future__ import annotations

import math

from .subscriptions import Subscription

BYTES_PER_SECOND = 8 << 20
PAUSE_SECONDS_MAX = 0.1
"""To whoever is sent that much, and so long at most, where others are not."""
BYTES_PER_CORE, ALL_BYTES_MAX = 64 << 20, 512 << 20
"""To all of them together a second for each core that there is, and at most: to send and to read 500 MiB takes
about a third of one."""
ALL_PAUSE_SECONDS_MAX = 16 * PAUSE_SECONDS_MAX
"""And so long at most: a hundred who read all of 80,000 vertices would have to wait for 1.1 s on two cores."""
LATELY_SECONDS = 3 * ALL_PAUSE_SECONDS_MAX
"""Whoever was sent something so long ago does not count any more."""


class Pace:
    """Who was sent much lately."""

    def __init__(self, cores: int) -> None:
        """``cores``: which all that the daemon does has together."""
        self.all_bytes_per_second = min(cores * BYTES_PER_CORE, ALL_BYTES_MAX)
        # The bytes of the last news of each, and when they were sent, in this order. By what identifies them: a
        # subscription that has ended would else be kept, with its connection, until somebody is sent something.
        self._sent: dict[int, tuple[int, float]] = {}
        self._bytes = 0

    def pause(self, subscription: Subscription, sent: int, now: float) -> float:
        """One was sent so many bytes of news: for how many seconds it is told nothing."""
        own = id(subscription)
        self._bytes += sent - self._sent.pop(own, (0, 0.0))[0]
        self._sent[own] = sent, now
        while True:
            first = next(iter(self._sent))
            size, then = self._sent[first]
            if now - then <= LATELY_SECONDS:
                break
            del self._sent[first]
            self._bytes -= size
        return until_all_go_on(now, self._pause_after(sent))

    def _pause_after(self, sent: int) -> float:
        return pause_after(sent, len(self._sent), self._bytes, self.all_bytes_per_second)


def pause_after(sent: int, clients: int, sent_to_all: int, all_bytes_per_second: int) -> float:
    """How many seconds should pass after a client was sent so many bytes.

    ``clients``: so many were sent much lately, itself included, together ``sent_to_all``, of what all may be. Who
    is sent little waits for no more than its share, and so does who is sent much where the others are not.
    """
    own = min(sent / BYTES_PER_SECOND, PAUSE_SECONDS_MAX)
    shared = min(clients * sent, sent_to_all) / all_bytes_per_second
    return max(own, min(shared, ALL_PAUSE_SECONDS_MAX))


def until_all_go_on(now: float, pause: float) -> float:
    """Seconds to wait instead of a pause, so that those who pause about as long go on at one moment.

    One such moment follows the other after a pause at least; whoever comes just before one waits for the next.
    """
    if not pause:
        return 0.0
    step = PAUSE_SECONDS_MAX * 2.0 ** math.ceil(math.log2(pause / PAUSE_SECONDS_MAX))
    wait = step - now % step
    return wait if wait > step / 4 else wait + step
