"""Who is told what epochs change: the subscriptions of all connections, and what they may take."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import LimitExceeded, Unavailable
from .asker import OpenConnection
from .change_log import ChangeLog
from .results import Snapshot
from .scopes import Scope
from .turns import Shares

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig


@dataclass(slots=True, eq=False)
class Subscription:
    """One client's, under a ``number`` of its connection.

    ``place``: the publication that the client knows; None: it gets a snapshot. ``epoch``: the last one that it was
    told of, at ``told_at``. ``weight``: of how many vertices it remembers something. ``began``: the publication
    that it was answered with; nothing that it is told is older.
    """

    connection: OpenConnection
    number: int
    program: str
    scope: Scope
    weight: int
    place: int | None = None
    epoch: tuple[int, int] | None = None
    told_at: float = 0.0
    began: int = 0
    joined: object = None
    """Since which epoch its program is there, of one that came at run time: another one may get its id."""
    working: asyncio.Task[None] | None = None
    topic: Hashable | None = field(init=False)
    """What it asks, and of which program; equal where others ask the same. None: nobody does."""

    def __post_init__(self) -> None:
        topic = self.scope.topic
        self.topic = None if topic is None else (self.program, str(self.joined), topic)

    @property
    def position(self) -> Hashable:
        """Where it is: of those with one topic whoever has equal positions lacks the same."""
        return self.place, self.scope.position


class Subscriptions:
    """All there are, by connection and number."""

    def __init__(self, limits: LimitsConfig) -> None:
        # To whom there may be something to tell: to all, or to these, in the order in which they came up.
        self._everyone = False
        self._woken: dict[Subscription, None] = {}
        self._joined_at = 0  # the publication at which the last one came
        self._topics: Counter[Hashable] = Counter()
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
        """There may be another epoch: all are due, if there are any."""
        self._everyone = True
        if self._by_connection:
            self.news.set()

    def wake(self, subscription: Subscription) -> None:
        """This one is due: it may have been passed over, or something came meanwhile."""
        self._woken[subscription] = None
        self.news.set()

    def wake_all(self, connection: OpenConnection) -> None:
        """Those of a client that reads again."""
        for subscription in self._by_connection.get(connection, {}).values():
            self.wake(subscription)

    def follow(self, records_max: int) -> bool:
        """Take notice of some of what epochs changed; whether there is more."""
        return self._log is not None and self._log.follow(records_max)

    def has(self, connection: OpenConnection) -> bool:
        """Whether this connection has any."""
        return connection in self._by_connection

    def due(self) -> tuple[bool, Iterator[Subscription]]:
        """To whom there may be something to tell since the last call: whether to all, and those, in turn.

        First one of each connection, then the next of each; those that end meanwhile are left out. Whoever becomes
        due meanwhile comes with the next call: one of many costs itself then, not a look at all.
        """
        everyone, woken = self._everyone, self._woken
        self._everyone, self._woken = False, {}
        groups: Iterable[Iterable[Subscription]]
        if everyone:
            groups = [list(group.values()) for group in self._by_connection.values()]
        else:
            by_connection: dict[OpenConnection, list[Subscription]] = {}
            for subscription in woken:
                by_connection.setdefault(subscription.connection, []).append(subscription)
            groups = by_connection.values()
        return everyone, self._in_turn(groups)

    def _in_turn(self, groups: Iterable[Iterable[Subscription]]) -> Iterator[Subscription]:
        for subscription in itertools.chain.from_iterable(itertools.zip_longest(*groups)):
            if subscription is not None and self._is_there(subscription):
                yield subscription

    def has_alike(self, subscription: Subscription) -> bool:
        """Others ask the same of the same program."""
        topic = subscription.topic
        return topic is not None and self._topics[topic] > 1

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
        added = Subscription(
            connection,
            number,
            program,
            scope,
            weight,
            told_at=time.monotonic(),
            began=snapshot.sequence,
            joined=joined,
        )
        place = None if since is None or not scope.resumes else self.log.sequence_of(since)
        if place is not None:
            added.place, added.epoch = place, since
            scope.forget()
        elif from_now and since is None:
            added.place, added.epoch = snapshot.sequence, snapshot.epoch
        self._by_connection.setdefault(connection, {})[number] = added
        if added.topic is not None:
            self._topics[added.topic] += 1
        # What is due to those before it comes before its snapshot; once for all who come at one epoch.
        self._everyone |= snapshot.sequence != self._joined_at
        self._joined_at = snapshot.sequence
        self.wake(added)
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
        self._woken.pop(subscription, None)
        if subscription.topic is not None:
            self._topics[subscription.topic] -= 1
            if not self._topics[subscription.topic]:
                del self._topics[subscription.topic]
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
