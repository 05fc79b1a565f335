"""Telling subscribers what each epoch changed, as fast as they read.

A subscription is a place in the log of changes (``change_log``): the sequence number of the publication that its
client knows. What is newer there is one message, or several parts of one, with the values of the newest epoch,
whether it was one epoch or many: nothing is queued for a client that reads slowly. Where its place is not in the
log any more it gets a snapshot.

One task goes round the subscriptions, a millisecond at a time, connections taking turns; whatever is long goes to
a thread, with memory that is waited for, as that of other long answers.

Those who ask the same of one program and know the same publication lack the same: what the first of them lacks is
looked up and encoded once for all, of its epoch, in one round. So they stay together, however fast epochs follow.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ...compute.program import Program
from ...gpma.cores import usable_cores
from ...gpma.edges import Vertices
from ..client.wire import Entries, error_to_wire
from ..errors import GraphtideError, Unavailable, UnknownProgram
from .asker import Asker, OpenConnection
from .change_log import ChangeLog, Changes, Passed
from .pace import Pace
from .results import ProgramResults, Snapshot, copied
from .scopes import Look, News, NotAtOnce, Scope, depends_on, nothing, touched_since
from .serving import Serving
from .subscriptions import Subscription
from .values import staleness

log = logging.getLogger(__name__)

TURN_SECONDS = 0.001
INLINE_MAX = 1024
"""So many vertices are looked at on the event loop; more in a thread."""
INLINE_BYTES = 1 << 16
"""So long may records of changes be that are read on the event loop."""
SCAN_INLINE_MAX = 1 << 16
"""Where a program must look at all vertices to tell which values changed, so many are not too many for that."""
NEWS_SECONDS = 1.0
"""A client of which nothing changed hears of new epochs so often."""
HEARTBEAT_SECONDS = 10.0
"""And where there is no new one so often, so that it knows that the server is there."""
RECENT_MAX = 16
RECORDS_AT_ONCE = 16
"""So many records of the log are taken notice of before others have their turn: a tenth of a millisecond."""
ALIKE_VERTICES_MAX = 1 << 16
"""Of so many vertices are answers kept for others who may lack the same, until the next round."""
ALIKE_SECONDS = 1.0
"""What takes long is sent to others so long after it was found, while anybody is sent it."""
COPIED_SHARE = 4
"""Where more than this part of all vertices is looked at, results are copied first: epochs go on meanwhile."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Found:
    """News of an epoch; ``epochs``: of how many they are the changes, 0: they are all that there is.

    ``stamp``: of the epoch. ``scope``: who looked; what others are sent of it is encoded once for each language.
    ``touched``: whose values may be others, by ``key`` (``Telling``); None: that was not asked.
    """

    snapshot: Snapshot
    news: News
    epochs: int
    stale: Mapping[str, Any]
    stamp: bytes
    scope: Scope | None = None
    key: tuple[str, int, int] | None = None
    touched: Vertices | None = None
    at: float = field(default_factory=time.monotonic)
    _encoding: threading.Lock = field(default_factory=threading.Lock)
    _encoded: dict[type[OpenConnection], list[tuple[Entries, bool]]] = field(default_factory=dict)
    # As they were sent last, and to whom they are the same: most know the same epoch, by the same number.
    _alike: tuple[type[OpenConnection], int, tuple[int, int] | None] | None = None
    _messages: list[bytes] = field(default_factory=list)

    @property
    def tells(self) -> bool:
        """There is something to be told."""
        return not self.epochs or len(self.news) > 0

    def is_encoded(self, connection: OpenConnection) -> bool:
        """In the language of this connection."""
        return not self.tells or type(connection) in self._encoded

    def encoded(self, connection: OpenConnection) -> list[tuple[Entries, bool]]:
        """What all who lack it are told, in parts, and whether there are more; any thread may ask."""
        parts = self._encoded.get(type(connection))
        if parts is not None:
            return parts
        with self._encoding:
            parts = self._encoded.get(type(connection))
            if parts is None:
                encode = connection.entries
                parts = [(encode({**part, **self.stale}), more) for part, more in self.news.parts()]
                self._encoded[type(connection)] = parts
        return parts

    def messages(self, subscription: Subscription, since: tuple[int, int] | None) -> Iterator[bytes]:
        """As they are sent to this subscriber, if there is anything to be told."""
        if not self.tells:
            return
        connection, number = subscription.connection, subscription.number
        alike = type(connection), number, since
        if alike != self._alike:
            self._alike, self._messages = alike, []
        made = self._messages
        for place, (shared, more) in enumerate(self.encoded(connection)):
            if place < len(made):
                yield made[place]
                continue
            own = {"subscription": number, "since": since, "more": more}
            message = connection.notification("changed", own, self.stamp, shared)
            if made is self._messages:  # others who are sent the same may have come as far meanwhile
                made.append(message)
            yield message


class Telling:
    """Tells subscribers what is new."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._subscriptions = serving.subscriptions
        self._tasks: set[asyncio.Task[Any]] = set()
        # By program and the publications between which its values were touched: many who ask know the same.
        self._recent: dict[tuple[str, int, int], tuple[Vertices | None]] = {}
        # By program and publication.
        self._shared: dict[tuple[str, int], dict[Any, Any]] = {}
        # What was known last of the publications between two.
        self._passed: tuple[tuple[int, int], Passed | None] = (0, 0), None
        # By what is asked and from where: what was found for one of several, in this round.
        self._alike: dict[Hashable, _Found] = {}
        self._alike_free = ALIKE_VERTICES_MAX
        # Likewise what takes long, while it is looked at, and then as long as somebody has memory for it.
        self._looking: dict[Hashable, asyncio.Task[_Found]] = {}
        self._sending: WeakValueDictionary[Hashable, _Found] = WeakValueDictionary()
        self._pace = Pace(usable_cores())

    async def run(self) -> None:
        """Tell clients what is new, until cancelled."""
        while True:
            await self._subscriptions.news.wait()
            self._subscriptions.news.clear()
            while self._subscriptions.follow(RECORDS_AT_ONCE):
                await asyncio.sleep(0)
            everyone, due = self._subscriptions.due()
            if everyone:
                self._alike, self._alike_free = {}, ALIKE_VERTICES_MAX
            turn_ends = time.perf_counter() + TURN_SECONDS
            for subscription in due:
                self._advance(subscription)
                if time.perf_counter() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.perf_counter() + TURN_SECONDS

    def close(self) -> None:
        """Leave off whatever takes long."""
        for task in self._tasks:
            task.cancel()

    @property
    def _log(self) -> ChangeLog:
        return self._subscriptions.log

    def _advance(self, subscription: Subscription) -> None:
        """Send what one client lacks, or begin to, if it reads."""
        if subscription.working is not None or not subscription.connection.takes_more:
            return
        try:
            key = self._key(subscription)
            found = None if key is None else self._alike.get(key)
            if found is None:
                snapshot, found = self._serving.read(partial(self._look_at_once, subscription))
                if found is None:
                    self._nothing_new(subscription, snapshot)
                    return
                if key is not None:
                    self._keep(key, found)
            since = self._take(subscription, found)
            for message in found.messages(subscription, since):
                subscription.connection.push(message)
            self._unless_told(subscription, found)
            return
        except _TooMany as many:
            size = many.size
        except NotAtOnce:
            size = None
        except Unavailable:
            return  # epochs follow each other too fast: the next one, or the next tick, comes soon
        except Exception as error:
            self._fail(subscription, error)
            return
        task = asyncio.get_running_loop().create_task(self._advance_long(subscription, size))
        subscription.working = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _key(self, subscription: Subscription) -> Hashable | None:
        """Equal for all who lack the same now; None: nobody else can."""
        return (subscription.topic, subscription.position) if self._subscriptions.has_alike(subscription) else None

    def _keep(self, key: Hashable, found: _Found) -> None:
        """For others, if there is room."""
        size = len(found.news) + 1
        if size <= self._alike_free:
            self._alike_free -= size
            self._alike[key] = found

    async def _advance_long(self, subscription: Subscription, size: int | None) -> None:
        """What was read of an epoch is kept until the client has taken it; memory is asked for before.

        ``size``: so many vertices are looked at; None: all.
        """
        connection, asker = subscription.connection, Asker(subscription.connection)
        try:
            try:
                found = await self._found(subscription, asker, size)
            except NotAtOnce:
                self._give_back(asker)
                found = await self._found(subscription, asker, None)
            since = self._take(subscription, found)
            if not found.is_encoded(connection):
                await self._serving.in_thread(asker, found.encoded, connection)
            sent = await self._send(connection, found.messages(subscription, since))
            self._unless_told(subscription, found)
            del found  # nobody has memory for it
            self._give_back(asker)
            await asyncio.sleep(self._pace.pause(subscription, sent, asyncio.get_running_loop().time()))
            self._subscriptions.wake(subscription)
        except Unavailable:
            pass
        except Exception as error:
            self._fail(subscription, error)
        finally:
            self._give_back(asker)
            subscription.working = None

    def _give_back(self, asker: Asker) -> None:
        """All memory that was asked for, if any still is."""
        self._serving.making.give_back(asker.making_bytes)
        asker.making_bytes = 0

    async def _found(self, subscription: Subscription, asker: Asker, size: int | None) -> _Found:
        """What a client lacks; whoever lacks the same meanwhile waits for the same look."""
        if size is None:
            size = max(self._serving.snapshot().n_vertices, INLINE_MAX + 1)
        await self._serving.make_room(asker, size)
        key = self._key(subscription)
        if key is None:
            return await self._looked_at(subscription, asker, size)
        while True:
            found = self._sending.get(key)
            if (
                found is not None
                and time.monotonic() - found.at < ALIKE_SECONDS
                and found.snapshot.sequence >= subscription.began
            ):
                return found
            looking = self._looking.get(key)
            if looking is None:
                # Of its own: whoever asked first may go while others wait.
                looking = asyncio.get_running_loop().create_task(self._looked_at(subscription, asker, size))
                self._looking[key] = looking
                self._tasks.add(looking)
                looking.add_done_callback(partial(self._looked, key))
            try:
                found = await asyncio.shield(looking)
                if found.snapshot.sequence >= subscription.began:
                    return found
                # It was looked at before this one came, who was promised what was published by then.
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not looking.cancelled() or (task is not None and task.cancelling()):
                    raise
            # Or whoever looked has gone. It is put away at once: to wait for what has ended lets nobody else run,
            # and so nobody put it away.
            self._put_away(key, looking)

    async def _looked_at(self, subscription: Subscription, asker: Asker, size: int) -> _Found:
        look = self._serving.in_thread(asker, self._look_aside, subscription, size)
        return await self._serving.outlasting(look)

    def _looked(self, key: Hashable, looking: asyncio.Task[_Found]) -> None:
        self._tasks.discard(looking)
        self._put_away(key, looking)
        if not looking.cancelled() and looking.exception() is None:
            self._sending[key] = looking.result()

    def _put_away(self, key: Hashable, looking: asyncio.Task[_Found]) -> None:
        """Nobody waits for this look any more; by now there may be another."""
        if self._looking.get(key) is looking:
            del self._looking[key]

    async def _send(self, connection: OpenConnection, messages: Iterator[bytes]) -> int:
        """All parts, as the client reads; where others need the memory it has so long for all of them together.

        Returns how many bytes these were.
        """
        ends = time.monotonic() + self._serving.limits.stall_seconds_max
        sent, size, turn_ends = 0, 0, time.perf_counter() + TURN_SECONDS
        for message in messages:
            size = len(message)
            if connection.unread_bytes + size > connection.ahead_bytes and not await self._reads(connection, ends):
                return sent
            before = connection.unread_bytes
            connection.push(message)
            sent += size
            size = max(size, connection.unread_bytes - before)  # with what HTTP puts around it
            if time.perf_counter() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.perf_counter() + TURN_SECONDS
        if connection.unread_bytes > size:  # of parts before the last one: their memory is still needed
            await self._reads(connection, ends)
        return sent

    async def _reads(self, connection: OpenConnection, ends: float) -> bool:
        """Wait until a client has read what it was sent; False: it took until ``ends`` and longer, others need the
        memory, and it was disconnected."""
        reads = False
        while not reads:
            reads = await connection.reads(self._serving.limits.stall_seconds_max)
            if time.monotonic() > ends and self._serving.making.is_short:
                log.info("a subscriber that reads too slowly is disconnected: others need the memory")
                connection.abort()
                return False
        return True

    def _size(self, subscription: Subscription, snapshot: Snapshot) -> int:
        """How many vertices must be looked at, at most, or ``INLINE_MAX`` and one where it takes long anyhow."""
        n, place, scope = snapshot.n_vertices, subscription.place, subscription.scope
        shared = self._shared_by(subscription.program, snapshot.sequence)
        everything = scope.size(n, n, shared)
        if place is None or not scope.needs_changes:
            return everything
        if self._log.bytes_between(place, snapshot.sequence) > INLINE_BYTES:
            return max(everything, INLINE_MAX + 1)
        changes = self._log.between(place, snapshot.sequence)
        program = None if changes is None else changes.programs.get(subscription.program)
        result = _results(snapshot, subscription)
        if changes is None or program is None:
            return everything
        kind = self._serving.program_class(result.kind)
        if kind.touched is not Program.touched and n > SCAN_INLINE_MAX:
            return max(everything, INLINE_MAX + 1)
        if depends_on(kind, program) or any(column is None for column in program.columns.values()):
            return everything
        touched = sum(column.size for column in program.columns.values() if column is not None)
        return scope.size(n, touched + changes.alive.size + n - changes.n_before + len(changes.gone), shared)

    def _look_at_once(self, subscription: Subscription, snapshot: Snapshot) -> tuple[Snapshot, _Found | None]:
        """What a client lacks, on the event loop: an epoch, and news if it is another than the client knows.

        Raises:
            NotAtOnce: it takes long.
        """
        if subscription.place == snapshot.sequence:
            return snapshot, None
        self._subscriptions.weigh(subscription, snapshot.n_vertices)  # before it is looked at
        size = self._size(subscription, snapshot)
        if size > INLINE_MAX:
            raise _TooMany(size)
        return snapshot, self._look(subscription, snapshot)

    def _look_aside(self, subscription: Subscription, size: int) -> _Found:
        """What a client lacks, in a thread, where so many vertices are looked at."""
        if COPIED_SHARE * size < self._serving.snapshot().n_vertices:
            return self._serving.read(partial(self._look, subscription))
        snapshot = self._serving.read(partial(copied, id=subscription.program))
        return self._look(subscription, snapshot, may_scan=True)

    def _look(self, subscription: Subscription, snapshot: Snapshot, *, may_scan: bool = False) -> _Found:
        """What a client lacks, copied from one epoch."""
        result = _results(snapshot, subscription)
        place, scope, sequence = subscription.place, subscription.scope, snapshot.sequence
        passed = None if place is None else self._passed_between(place, sequence)
        changes, touched, key = None, None, None
        if place is not None and passed is not None and scope.needs_changes:
            changes = self._log.between(place, sequence)
            if changes is None:  # overwritten meanwhile
                passed = None
            else:
                key = (subscription.program, place, sequence)
                touched = self._touched(key, result, changes)
        may_scan = may_scan or snapshot.n_vertices <= INLINE_MAX
        limit, shared = self._serving.limits.vertices_max, self._shared_by(subscription.program, sequence)
        look = Look(self._serving, snapshot, result, changes, touched, limit, may_scan, shared, passed)
        news = scope.look(look)
        look.check(len(news))
        epochs, stamp = 0 if passed is None else passed.epochs, self._serving.stamp(snapshot)
        return _Found(snapshot, news, epochs, staleness(result), stamp, scope, key, touched)

    def _passed_between(self, place: int, sequence: int) -> Passed | None:
        """As the log says; most who look come from few places."""
        key, (known, passed) = (place, sequence), self._passed
        if key != known:
            passed = self._log.passed(place, sequence)
            self._passed = key, passed
        return passed

    def _touched(self, key: tuple[str, int, int], result: ProgramResults, changes: Changes) -> Vertices | None:
        """Whose values may be others, of this program between these publications; None: anyone's."""
        found = self._recent.get(key)
        return touched_since(self._serving, result, key[0], changes) if found is None else found[0]

    def _shared_by(self, program: str, sequence: int) -> dict[Any, Any]:
        """What those know together who look at a program in this publication."""
        key = program, sequence
        shared = self._shared.get(key)
        if shared is None:
            if len(self._shared) >= RECENT_MAX:
                self._shared = {}
            shared = self._shared.setdefault(key, {})
        return shared

    def _take(self, subscription: Subscription, found: _Found) -> tuple[int, int] | None:
        """What was found holds, and the client will know it: since which epoch it tells.

        Raises:
            LimitExceeded: more would have to be remembered than there is room for.
        """
        self._subscriptions.weigh(subscription, found.snapshot.n_vertices)
        if found.scope is subscription.scope:
            found.news.remember()
        else:
            subscription.scope.adopt(found.news.known)
        if found.key is not None:  # others will ask for what lies between their place and the newest publication
            newest = found.snapshot.sequence
            self._recent = {key: touched for key, touched in self._recent.items() if key[2] >= newest}
            if len(self._recent) < RECENT_MAX:
                self._recent[found.key] = (found.touched,)
        since = subscription.epoch if found.epochs else None
        totals = self._subscriptions.totals
        subscription.place = found.snapshot.sequence
        if found.tells:
            totals["sent" if found.epochs else "snapshots"] += 1
            totals["merged"] += max(found.epochs - 1, 0)
            subscription.epoch, subscription.told_at = found.snapshot.epoch, time.monotonic()
        return since

    def _unless_told(self, subscription: Subscription, found: _Found) -> None:
        """Where epochs follow each other fast, each look may find another one, and nothing of it to tell."""
        if not found.tells:
            self._nothing_new(subscription, found.snapshot)

    def _nothing_new(self, subscription: Subscription, snapshot: Snapshot) -> None:
        """Now and then the client is told that it knows all that there is."""
        silent = time.monotonic() - subscription.told_at
        if silent < (HEARTBEAT_SECONDS if subscription.epoch == snapshot.epoch else NEWS_SECONDS):
            return
        stale = staleness(_results(snapshot, subscription))
        key = "nothing", subscription.program, snapshot.sequence
        found = self._alike.get(key)
        if found is None:
            found = _Found(snapshot, nothing(self._serving), 0, stale, self._serving.stamp(snapshot))
            self._keep(key, found)
        for message in found.messages(subscription, subscription.epoch):
            subscription.connection.push(message)
        subscription.epoch, subscription.told_at = snapshot.epoch, time.monotonic()

    def _fail(self, subscription: Subscription, error: Exception) -> None:
        """End one, and tell the client why."""
        if not isinstance(error, GraphtideError):
            log.error("telling of %s failed", subscription.program, exc_info=error)
            error = GraphtideError("the server failed to tell what changed; its log says why")
        content = {"subscription": subscription.number, "error": error_to_wire(error)}
        if self._subscriptions.end(subscription.connection, subscription.number):
            subscription.connection.push(subscription.connection.notification("ended", content))


class _TooMany(NotAtOnce):
    """So many vertices must be looked at, which takes a while."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _results(snapshot: Snapshot, subscription: Subscription) -> ProgramResults:
    found = snapshot.programs.get(subscription.program)
    if found is None or found.state.get("joined") != subscription.joined:  # by now another one may have its id
        raise UnknownProgram(f"program {subscription.program!r} was dropped", {"parameter": "program"})
    return found
