"""Who is told what epochs change: the subscriptions of all connections, and what they may take."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LimitExceeded, Unavailable
from .asker import OpenConnection
from .change_log import ChangeLog
from .results import Snapshot
from .scopes import Scope
from .turns import Shares

if TYPE_CHECKING:
    from ..config.settings import LimitsConfig


@dataclass(slots=True, eq=False)
class Subscription:
    """One client's, under a ``number`` of its connection.

    ``place``: the publication that the client knows; None: it gets a snapshot. ``epoch``: the last one that it was
    told of, at ``told_at``. ``weight``: of how many vertices it remembers something.
    """

    connection: OpenConnection
    number: int
    program: str
    scope: Scope
    weight: int
    place: int | None = None
    epoch: tuple[int, int] | None = None
    told_at: float = 0.0
    joined: object = None
    """Since which epoch its program is there, of one that came at run time: another one may get its id."""
    working: asyncio.Task[None] | None = None


class Subscriptions:
    """All there are, by connection and number."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.totals = {"sent": 0, "merged": 0, "snapshots": 0}
        """Since the start: messages of changes, epochs merged with a later one in them, and snapshots."""
        self.news = asyncio.Event()
        """Set when there may be something to tell: a new epoch, a new subscription, a client that reads again."""
        self._limits = limits
        self._log: ChangeLog | None = None
        self._places = Shares(limits.subscriptions_max, limits.connections_max)
        self._vertices_free = limits.subscribed_vertices_max
        self._by_connection: dict[OpenConnection, dict[int, Subscription]] = {}
        self._numbers: dict[OpenConnection, int] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._by_connection.values()))

    @property
    def log(self) -> ChangeLog:
        """What recent epochs changed."""
        assert self._log is not None, "it comes before any results do"
        return self._log

    def take_log(self, changes: ChangeLog) -> None:
        self._log = changes

    def published(self) -> None:
        """There may be another epoch."""
        self.news.set()

    def follow(self, records_max: int) -> bool:
        """Take notice of some of what epochs changed; whether there is more."""
        return self._log is not None and self._log.follow(records_max)

    def has(self, connection: OpenConnection) -> bool:
        """Whether this connection has any."""
        return connection in self._by_connection

    def in_turn(self) -> Iterator[Subscription]:
        """All of them, first one of each connection, then the next; those that end meanwhile are left out."""
        groups = [list(group.values()) for group in self._by_connection.values()]
        for subscription in itertools.chain.from_iterable(itertools.zip_longest(*groups)):
            if subscription is not None and self._is_there(subscription):
                yield subscription

    def add(
        self,
        connection: OpenConnection,
        program: str,
        scope: Scope,
        snapshot: Snapshot,
        *,
        since: tuple[int, int] | None,
        from_now: bool,
    ) -> tuple[int, bool]:
        """Subscribe, at the epoch of this snapshot: the number, and whether it goes on from the epoch ``since``.

        Otherwise it begins with all that there is, or, ``from_now`` where no ``since`` is given, with what changes
        after this epoch.

        Raises:
            Unavailable: there are too many, or too many of this connection's.
            LimitExceeded: too much would have to be remembered.
        """
        weight = scope.weight(snapshot.n_vertices)
        self._check_weight(connection, weight)
        if not self._places.take(connection):
            raise Unavailable(
                f"too many subscriptions, {self._places.own} or more of this connection",
                {"subscriptions_max": self._limits.subscriptions_max},
            )
        self._vertices_free -= weight
        number = self._numbers[connection] = self._numbers.get(connection, -1) + 1
        joined = snapshot.programs[program].state.get("joined")
        added = Subscription(connection, number, program, scope, weight, told_at=time.monotonic(), joined=joined)
        place = None if since is None or not scope.resumes else self.log.sequence_of(since)
        if place is not None:
            added.place, added.epoch = place, since
        elif from_now and since is None:
            added.place, added.epoch = snapshot.sequence, snapshot.epoch
        if added.place is not None:
            scope.forget()
        self._by_connection.setdefault(connection, {})[number] = added
        self.news.set()
        return number, place is not None

    def end(self, connection: OpenConnection, number: int) -> bool:
        """Forget one; whether it was there."""
        subscription = self._by_connection.get(connection, {}).pop(number, None)
        if subscription is None:
            return False
        if not self._by_connection[connection]:
            del self._by_connection[connection]
        self._places.give_back(connection)
        self._vertices_free += subscription.weight
        if subscription.working is not None:
            subscription.working.cancel()
        return True

    def end_all(self, connection: OpenConnection) -> None:
        """A connection is gone."""
        for number in list(self._by_connection.get(connection, ())):
            self.end(connection, number)
        self._numbers.pop(connection, None)

    def weigh(self, subscription: Subscription, n_vertices: int) -> None:
        """Something may be remembered of more vertices than before.

        Raises:
            LimitExceeded: they are too many.
        """
        more = subscription.scope.weight(n_vertices) - subscription.weight
        if more > 0:
            self._check_weight(subscription.connection, more)
            self._vertices_free -= more
            subscription.weight += more

    def _is_there(self, subscription: Subscription) -> bool:
        return self._by_connection.get(subscription.connection, {}).get(subscription.number) is subscription

    def _check_weight(self, connection: OpenConnection, more: int) -> None:
        limits = self._limits
        own = sum(subscription.weight for subscription in self._by_connection.get(connection, {}).values())
        if own + more > limits.vertices_max:
            raise LimitExceeded(
                f"the subscriptions of one connection can keep track of {limits.vertices_max} vertices",
                {"vertices_max": limits.vertices_max},
            )
        if more > self._vertices_free:
            raise LimitExceeded(
                "subscriptions keep track of as many vertices as they may",
                {"subscribed_vertices_max": limits.subscribed_vertices_max},
            )
