"""Telling subscribers what each epoch changed, as fast as they read.

A subscription is a place in the log of changes (``change_log``): the sequence number of the publication that its
client knows. What is newer there is one message, or several parts of one, with the values of the newest epoch,
whether it was one epoch or many: nothing is queued for a client that reads slowly. Where its place is not in the
log any more it gets a snapshot.

One task goes round the subscriptions, a millisecond at a time, connections taking turns; whatever is long goes to
a thread, with memory that is waited for, as that of other long answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...compute.program import Program
from ...gpma.edges import Vertices
from ..client.wire import error_to_wire
from ..errors import GraphtideError, Unavailable, UnknownProgram
from .asker import Asker, OpenConnection
from .change_log import ChangeLog
from .results import ProgramResults, Snapshot, copied
from .scopes import Look, News, NotAtOnce, depends_on, nothing, touched_since
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
RECORDS_AT_ONCE = 256
"""So many records of the log are taken notice of before others have their turn: a few milliseconds."""
COPIED_SHARE = 4
"""Where more than this part of all vertices is looked at, results are copied first: epochs go on meanwhile."""


@dataclass(frozen=True, slots=True)
class _Found:
    """News of an epoch; ``epochs``: of how many they are the changes, 0: they are all that there is.

    ``touched``: whose values may be others, by ``key`` (``Telling``).
    """

    snapshot: Snapshot
    news: News
    epochs: int
    stale: Mapping[str, Any]
    key: tuple[str, int, int] = ("", 0, 0)
    touched: Vertices | None = None

    @property
    def tells(self) -> bool:
        """There is something to be told."""
        return not self.epochs or len(self.news) > 0

    def messages(self, stamp: bytes, subscription: Subscription, since: tuple[int, int] | None) -> list[bytes]:
        """As they are sent to this subscriber, if there is anything to be told."""
        encode, number = subscription.connection.notification, subscription.number
        return [
            encode("changed", {"subscription": number, "since": since, **part, **self.stale, "more": more}, stamp)
            for part, more in self.news.parts()
            if self.tells
        ]


class Telling:
    """Tells subscribers what is new."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._subscriptions = serving.subscriptions
        self._tasks: set[asyncio.Task[None]] = set()
        # By program and the publications between which its values were touched: many who ask know the same.
        self._recent: dict[tuple[str, int, int], tuple[Vertices | None]] = {}
        # By program and publication.
        self._shared: dict[tuple[str, int], dict[Any, Any]] = {}

    async def run(self) -> None:
        """Tell clients what is new, until cancelled."""
        while True:
            await self._subscriptions.news.wait()
            self._subscriptions.news.clear()
            while self._subscriptions.follow(RECORDS_AT_ONCE):
                await asyncio.sleep(0)
            turn_ends = time.perf_counter() + TURN_SECONDS
            for subscription in self._subscriptions.in_turn():
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
            snapshot = self._serving.snapshot()
            if subscription.place == snapshot.sequence:
                self._nothing_new(subscription, snapshot)
                return
            # Before it is looked at; what the look finds may be newer still.
            self._subscriptions.weigh(subscription, snapshot.n_vertices)
            size = self._size(subscription, snapshot)
            if size <= INLINE_MAX:
                self._advance_now(subscription)
                return
        except NotAtOnce:
            size = max(snapshot.n_vertices, INLINE_MAX + 1)
        except Unavailable:
            return  # epochs follow each other too fast: the next one, or the next tick, comes soon
        except Exception as error:
            self._fail(subscription, error)
            return
        task = asyncio.get_running_loop().create_task(self._advance_long(subscription, size))
        subscription.working = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _advance_now(self, subscription: Subscription) -> None:
        found = self._serving.read(partial(self._look, subscription))
        since = self._take(subscription, found)
        for message in found.messages(self._serving.stamp(found.snapshot), subscription, since):
            subscription.connection.push(message)
        self._unless_told(subscription, found)

    async def _advance_long(self, subscription: Subscription, size: int) -> None:
        """What was read of an epoch is kept until the client has taken it; memory is asked for before."""
        connection, asker = subscription.connection, Asker(subscription.connection)
        try:
            try:
                found = await self._looked_at(subscription, asker, size)
            except NotAtOnce:
                self._serving.making.give_back(asker.making_bytes)
                asker.making_bytes = 0
                found = await self._looked_at(subscription, asker, self._serving.snapshot().n_vertices)
            since = self._take(subscription, found)
            stamp = self._serving.stamp(found.snapshot)
            messages = self._serving.in_thread(asker, found.messages, stamp, subscription, since)
            await self._send(connection, await messages)
            self._unless_told(subscription, found)
            self._subscriptions.news.set()
        except Unavailable:
            pass
        except Exception as error:
            self._fail(subscription, error)
        finally:
            self._serving.making.give_back(asker.making_bytes)
            subscription.working = None

    async def _looked_at(self, subscription: Subscription, asker: Asker, size: int) -> _Found:
        await self._serving.make_room(asker, size)
        look = self._serving.in_thread(asker, self._look_aside, subscription, size)
        return await self._serving.outlasting(look)

    async def _send(self, connection: OpenConnection, messages: list[bytes]) -> None:
        """All parts, as the client reads; where others need the memory it has so long for all of them together."""
        patience_s = self._serving.limits.stall_seconds_max
        ends = time.monotonic() + patience_s
        for message in messages:
            reads = False
            while not reads:
                reads = await connection.reads(patience_s)
                if time.monotonic() > ends and self._serving.making.is_short:
                    log.info("a subscriber that reads too slowly is disconnected: others need the memory")
                    connection.abort()
                    return
            connection.push(message)

    def _size(self, subscription: Subscription, snapshot: Snapshot) -> int:
        """How many vertices must be looked at, at most, or ``INLINE_MAX`` and one where it takes long anyhow."""
        n, place, scope = snapshot.n_vertices, subscription.place, subscription.scope
        shared = self._shared_by(subscription.program, snapshot.sequence)
        everything = scope.size(n, n, shared)
        if place is None:
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

    def _look_aside(self, subscription: Subscription, size: int) -> _Found:
        """What a client lacks, in a thread, where so many vertices are looked at."""
        if COPIED_SHARE * size < self._serving.snapshot().n_vertices:
            return self._serving.read(partial(self._look, subscription))
        snapshot = self._serving.read(partial(copied, id=subscription.program))
        return self._look(subscription, snapshot, may_scan=True)

    def _look(self, subscription: Subscription, snapshot: Snapshot, *, may_scan: bool = False) -> _Found:
        """What a client lacks, copied from one epoch."""
        result = _results(snapshot, subscription)
        place = subscription.place
        changes = None if place is None else self._log.between(place, snapshot.sequence)
        key = (subscription.program, place or 0, snapshot.sequence)
        touched = None
        if changes is not None:
            found = self._recent.get(key)
            if found is None:
                touched = touched_since(self._serving, result, subscription.program, changes)
            else:
                (touched,) = found
        may_scan = may_scan or snapshot.n_vertices <= INLINE_MAX
        limit, shared = self._serving.limits.vertices_max, self._shared_by(subscription.program, snapshot.sequence)
        look = Look(self._serving, snapshot, result, changes, touched, limit, may_scan, shared)
        news = subscription.scope.look(look)
        look.check(len(news))
        return _Found(snapshot, news, 0 if changes is None else changes.epochs, staleness(result), key, touched)

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
        found.news.remember()
        # Others will ask for what lies between their place and the newest publication.
        newest = found.snapshot.sequence
        self._recent = {key: touched for key, touched in self._recent.items() if key[2] >= newest}
        if found.epochs and len(self._recent) < RECENT_MAX:
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
        news = nothing(self._serving)
        found = _Found(snapshot, news, 0, staleness(_results(snapshot, subscription)))
        for message in found.messages(self._serving.stamp(snapshot), subscription, subscription.epoch):
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


def _results(snapshot: Snapshot, subscription: Subscription) -> ProgramResults:
    found = snapshot.programs.get(subscription.program)
    if found is None or found.state.get("joined") != subscription.joined:  # by now another one may have its id
        raise UnknownProgram(f"program {subscription.program!r} was dropped", {"parameter": "program"})
    return found
