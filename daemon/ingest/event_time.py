"""Event time where edges expire: how far it has come after each step, and which updates come too late for it.

What a step makes of event time follows from its records alone, and from what the clock on the wall decided about
it (``Decided``), which is in the order log: so a replay takes the same way, and an upsert that was dropped once is
dropped again.

An upsert is *late* when its edge would have expired already, by the watermark of its own partition as of the
update before, or by event time as of the step before. Only of partitions that fall behind event time, since it did
not wait for them, does the latter say more than the former: steps with such records are recorded, and replayed as
they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...gpma.edges import Op
from ...gpma.index.ids import IntColumn
from ..records.event_time import NO_TIME, UNLIMITED, EventState
from ..records.stream import Decided, Decoded, Offsets, Partition
from .decode_columns import Reason, select, timestamps_in_full
from .ordered import Step
from .refusals import Late

log = logging.getLogger(__name__)

SILENCE_COUNTED_S = 1.0
"""Between two looks at the source so much counts at most: while nobody looks, nothing can be heard."""


@dataclass(frozen=True, slots=True)
class EventTimeRules:
    """``length_ms``: how long an edge lasts; ``lateness_ms``: how far a partition's watermark stays behind its
    newest time; ``idle_s``: seconds of silence after which a partition is not waited for; ``ahead_ms``: how far in
    the future a time may be."""

    length_ms: int
    lateness_ms: int
    idle_s: float
    ahead_ms: int


class Timed(NamedTuple):
    """A step in event time: its updates without the late ones, how many these were, what is to be recorded of it,
    whether the records must come together again, and one of the late ones."""

    decoded: Sequence[Decoded]
    late: int
    decided: Decided | None
    together: bool
    example: Late | None = None


class EventTime:
    """See the module. For the ingest thread; ``state`` is of the last step."""

    def __init__(
        self,
        rules: EventTimeRules,
        state: EventState,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``state``: where to go on from. ``wall_clock``: seconds since 1970."""
        self.rules = rules
        self.state = state
        self._clock = clock
        self._wall_clock = wall_clock
        self._looked_at = clock()
        self._outages = 0
        self._now = 0.0  # of a clock that stands still while nobody looks
        self._heard: dict[Partition, float] = {}

    def looked(self, outages: int, *, came: bool) -> None:
        """The source was just asked for records, of which some came or none. ``outages``: how many it had so far.

        From an outage on until something comes again, silence says nothing of a partition.
        """
        now = self._clock()
        if outages == self._outages:
            self._now += min(now - self._looked_at, SILENCE_COUNTED_S)
        elif came:
            self._outages = outages
        self._looked_at = now

    def latest_ms(self, step: Step) -> int:
        """The latest time that an update of this step may have."""
        if step.recorded:
            limit = None if step.decided is None else step.decided.latest_ms
            return UNLIMITED if limit is None else limit
        return min(int(self._wall_clock() * 1000) + self.rules.ahead_ms, UNLIMITED)

    def take(self, step: Step, decoded: Sequence[Decoded], latest_ms: int, lag: Mapping[Partition, int]) -> Timed:
        """Go on by a step. ``latest_ms``: what its records were decoded with, which is recorded, and not what the
        clock says by now; ``lag``: what is left of each partition."""
        before, came = self.state, {record.partition for record in step.records}
        kept, newest = list[Decoded](), dict(before.newest)
        late, example = 0, None
        for item in decoded:
            judged, some = self._on_time(item, newest, before.time_ms)
            if item.block is not None:
                late += len(item.block) - (0 if judged.block is None else len(judged.block))
            example = example or some
            kept.append(judged)
        decided = step.decided or Decided()
        for partition in came:
            self._heard[partition] = self._now
        if not step.recorded:
            decided = self._decide(step, before.active | before.idle | came, before.active | came, newest, lag)
            if any(letter.reason == Reason.IN_FUTURE for item in decoded for letter in item.bad):
                decided = decided._replace(latest_ms=latest_ms)
        self.state = self._after(before, newest, came, decided, step.offsets)
        time_ms = self.state.time_ms
        for gone in self._heard.keys() - self.state.active - self.state.idle:
            del self._heard[gone]
        behind = before.time_ms > NO_TIME and any(
            self._watermark(before.newest, place) < before.time_ms for place in came
        )
        begins = before.time_ms == NO_TIME < time_ms
        if begins and 0.1 * self._wall_clock() < time_ms < 1.1 * self._wall_clock():
            log.warning(
                "event time begins at %d: in January 1970 as milliseconds, and in our days as seconds. Times must "
                "be milliseconds, else edges last a thousand times as long as window.length says",
                time_ms,
            )
        something = None if decided == Decided() else decided
        return Timed(kept, late, something, behind or begins or something is not None, example)

    def part_way(
        self, before: EventState, decoded: Sequence[Decoded], number: int, step: Step, offsets: Offsets
    ) -> tuple[EventState, Decided]:
        """After the first so many records of a step that began with ``before``, at these offsets; and what is to
        be recorded, for a replay to come to the same.

        Event time waits for whom the rest is of: so what is late in the rest is late by the whole step, too.
        """
        decided = step.decided or Decided()
        newest, came = dict(before.newest), set[Partition]()
        for item in decoded[:number]:
            came.add(item.record.partition)
            _note(item.record.partition, _newest_of(item), newest)
        to_come = {item.record.partition for item in decoded[number:]} - came
        decided = decided._replace(joined=tuple(sorted({*decided.joined} | to_come, key=str)))
        return self._after(before, newest, came, decided, offsets), decided

    # -- inside -------------------------------------------------------------------------------------------

    def _after(
        self,
        before: EventState,
        newest: Mapping[Partition, int],
        came: Collection[Partition],
        decided: Decided,
        offsets: Offsets,
    ) -> EventState:
        """After records of these partitions, and what was decided. ``newest``: after them, also of files that are
        gone; ``offsets``: names those that are not."""
        present, silent = {*came, *decided.joined}, {*decided.idle}
        active = (before.active | present) - silent
        idle = frozenset(place for place in (before.idle - present) | silent if place in offsets)
        newest = {place: time for place, time in newest.items() if place in active or place in idle}
        return EventState(newest, active, idle, max(before.time_ms, self._least_watermark(newest, active)))

    def _on_time(self, item: Decoded, newest: dict[Partition, int], time_ms: int) -> tuple[Decoded, Late | None]:
        """The record without its late upserts, and the first of these; notes its times in ``newest``."""
        block, partition = item.block, item.record.partition
        if block is None:
            return item, None
        length, lateness, times = self.rules.length_ms, self.rules.lateness_ms, block.timestamps_ms
        known = newest.get(partition, NO_TIME)
        latest = max(known, _newest_of(item))
        _note(partition, latest, newest)
        # Of records of one time this is all there is to do; of others it mostly is.
        least = max((known if isinstance(times, int) else latest) - lateness, time_ms) - length
        oldest = times if isinstance(times, int) else int(times.min(initial=UNLIMITED))
        if oldest > least:
            return item, None
        times = timestamps_in_full(block)
        before: IntColumn = np.maximum.accumulate(np.concatenate([np.array([known], np.int64), times[:-1]]))
        limits = np.maximum(np.maximum(before, -UNLIMITED) - lateness, max(time_ms, -UNLIMITED)) - length
        late = (times <= limits) & Op.INSERT.among(block.ops)
        if not late.any():
            return item, None
        rest, first = select(block, ~late), int(late.argmax())
        example = Late(str(partition), int(times[first]), int(limits[first]) + length)
        return replace(item, block=rest if len(rest) else None), example

    def _watermark(self, newest: Mapping[Partition, int], partition: Partition) -> int:
        return newest[partition] - self.rules.lateness_ms if partition in newest else NO_TIME

    def _least_watermark(self, newest: Mapping[Partition, int], active: Iterable[Partition]) -> int:
        return min((self._watermark(newest, place) for place in active), default=NO_TIME)

    def _decide(
        self,
        step: Step,
        known: frozenset[Partition],
        active: frozenset[Partition],
        newest: Mapping[Partition, int],
        lag: Mapping[Partition, int],
    ) -> Decided:
        """Which partitions are new, and which have been silent for too long at their ends."""
        joined = frozenset(step.offsets) - known
        for place in joined:
            self._heard.setdefault(place, self._now)
        came = {record.partition for record in step.records}
        silent = {
            place
            for place in (active | joined) - came
            if self._now - self._heard.setdefault(place, 0.0) >= self.rules.idle_s and not lag.get(place, 0)
        }
        # One that nobody has to wait for may as well be waited for: it costs a record in the log to say so.
        others = self._least_watermark(newest, (active | joined) - silent)
        idle = [place for place in silent if self._watermark(newest, place) < others]
        return Decided(tuple(sorted(joined, key=str)), tuple(sorted(idle, key=str)))


def _note(partition: Partition, time_ms: int, newest: dict[Partition, int]) -> None:
    if time_ms >= -UNLIMITED:
        newest[partition] = max(newest.get(partition, NO_TIME), time_ms)


def _newest_of(item: Decoded) -> int:
    if item.block is None:
        return NO_TIME
    times = item.block.timestamps_ms
    return times if isinstance(times, int) else int(times.max(initial=NO_TIME))
