"""The order between partitions: what a source gives becomes steps, and a restart takes the steps of before.

Records of one *step* are applied in the order of partitions and offsets, and steps one after the other. Which
records come into which step depends on time, so what was shown once is in the order log, as offsets (``Passed``):
after a restart the reader goes along those, and only then by what comes.

Where a barrier stands, a partition waits for others (``barriers.py``). Of a partition that waits, or that is ahead
of the log, the source reads nothing; what it gave of it already is kept here.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..records.stream import Decided, Lag, LateBarrier, Partition, Passed, RawRecord, Source
from .barriers import Barriers, is_barrier
from .spool_records import cut

log = logging.getLogger(__name__)

LEAST_BYTES = 1 << 16
"""A poll asks for so many bytes at least, however much is kept already."""
STALLED_S = 30.0
"""When the log of the order names records that do not come, that is logged so often."""
_RECORD_BYTES = 64  # what a record takes besides its value, about


class Step(NamedTuple):
    """Records to be applied together, sorted by partition and offset, and where the reader stands after them.

    ``late``: the barriers that nobody waits for any more from there on; ``ordered``: that the records came in this
    step is known from nothing else; ``recorded``: the order log has them, and ``decided`` is from there.
    """

    records: Sequence[RawRecord]
    offsets: dict[Partition, int]
    late: tuple[LateBarrier, ...] = ()
    ordered: bool = False
    recorded: bool = False
    decided: Decided | None = None


class OrderedReader:
    """See the module. One thread calls it; ``lag``, ``state`` and ``waiting`` may be called from others."""

    def __init__(
        self,
        source: Source,
        barriers: Barriers,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``wall_clock``: seconds since 1970."""
        self.source = source
        self.barriers = barriers
        self._clock = clock
        self._wall_clock = wall_clock
        self._progress_at = clock()
        self._stalled: str | None = None
        self._passed: Iterator[Passed] = iter(())
        self._target: Passed | None = None
        self._begins: Mapping[Partition, int] = {}
        self._kept: dict[Partition, deque[RawRecord]] = {}
        self._kept_bytes = 0
        self._held: frozenset[Partition] = frozenset()
        self._met: frozenset[Partition] = frozenset()  # when the source was last told what to hold
        self._behind: tuple[Mapping[Partition, int], float] = ({}, 0.0)
        self._lay_before: Mapping[Partition, int] | None = None

    def follow(self, passed: Iterator[Passed]) -> None:
        """Go along these first, as far as the source is not past them already; each is past the one before."""
        self._passed = passed
        self._next_target()
        self._begins = {} if self._target is None else self._target.offsets
        while self._target is not None and self._reached(self._target):
            self._next_target()
        self._progress_at = self._clock()

    def poll(self, bytes_max: int, timeout_s: float) -> Step:
        """The next step; one without records when none came in time.

        Raises:
            SourceError: see ``Source.poll``.
        """
        step = self._next() if self._kept or self._target is not None else None
        if step is None:
            self._hold()
            fresh = self.source.poll(max(bytes_max - self._kept_bytes, LEAST_BYTES), timeout_s)
            if not self._kept and self._target is None and not any(map(is_barrier, fresh)):
                return Step(_sorted(fresh), self.source.position(), self.barriers.late)
            self._keep(fresh)
            step = self._next() or Step([], self.position(), self.barriers.late, recorded=self._target is not None)
            if self._target is not None:
                self._watch(self._target, progress=bool(fresh))
        self._hold()
        return step

    def position(self) -> dict[Partition, int]:
        """The next offset of every partition that no step held yet."""
        first = {partition: records[0].offset for partition, records in self._kept.items()}
        return self.source.position() | first

    def lag(self) -> Lag:
        """The source's, and what is kept here."""
        lag = self.source.lag()
        kept, oldest_s = self._behind
        if not kept:
            return lag
        amount = {partition: lag.amount.get(partition, 0) + n for partition, n in kept.items()}
        return Lag({**lag.amount, **amount}, max(lag.seconds, self._wall_clock() - oldest_s))

    def backlog(self) -> int | None:
        """The source's, and what is kept here of that: with many barriers something is kept at any time. Along the
        log 1 at least: it may name a file that the source has yet to look at.
        """
        left = self.source.backlog()
        if left is None:
            return None
        kept = {partition: records[0].offset for partition, records in self._kept.items()}
        if left or self._target is not None:
            position = self.source.position()
            return left + sum(position.get(p, 0) - offset for p, offset in kept.items()) or 1
        if self._lay_before is None:  # all of it is read, and what comes from here on is not of it
            self._lay_before = self.source.position()
        return sum(max(self._lay_before.get(p, 0) - offset, 0) for p, offset in kept.items())

    @property
    def waiting(self) -> str | None:
        """What keeps it from going on, in words; None while nothing does."""
        return self.source.away or self._stalled

    def state(self) -> dict[str, Any]:
        """Whether it goes along the order of before, and which barriers wait."""
        return {"replaying": self._target is not None, "barriers": self.barriers.state}

    # -- steps ------------------------------------------------------------------------------------------

    def _next(self) -> Step | None:
        while (target := self._target) is not None:
            reached = self._reached(target)
            records = self._take_up_to(target.offsets) if reached or not target.together else []
            if reached:
                self._next_target()
            if records:
                return Step(records, self.position(), target.late, recorded=True, decided=target.decided)
            if not reached:
                return None
        return self._next_by_barriers()

    def _next_target(self) -> None:
        self._target, self._stalled = next(self._passed, None), None
        if self._target is not None:
            self.barriers.remember(self._target.late)

    def _reached(self, target: Passed) -> bool:
        position = self.source.position()
        return all(self._is_past(position, partition, offset) for partition, offset in target.offsets.items())

    def _is_past(self, position: Mapping[Partition, int], partition: Partition, offset: int) -> bool:
        """Whether nothing is to come below this offset. A topic may come yet, and so may a file that grew after it
        was retired, or one that is gone and of which no checkpoint has what was read. What was read before the log
        begins the oldest checkpoint has.
        """
        if partition in position:
            return position[partition] >= offset
        if partition.number is not None:
            return False
        standing = self.source.standing(partition, offset)
        return standing == "covered" or (standing == "unknown" and offset <= self._begins.get(partition, 0))

    def _watch(self, target: Passed, *, progress: bool) -> None:
        """Say so when nothing of what the log names comes: it is an outage, or those records are lost."""
        now = self._clock()
        if progress:
            self._progress_at, self._stalled = now, None
        elif now - self._progress_at >= STALLED_S:
            self._progress_at = now
            position = self.source.position()
            missing = [
                f"{partition.name}{'' if partition.number is None else f'/{partition.number}'} up to {offset}"
                for partition, offset in sorted(target.offsets.items())
                if not self._is_past(position, partition, offset)
            ]
            self._stalled = (
                f"waiting for what was read before the restart, in the order of then: {', '.join(missing)}. If "
                f"it is lost for good, stop, and move the folder `order` beside the checkpoints away"
            )
            log.warning("%s", self._stalled)

    def _next_by_barriers(self) -> Step | None:
        """What stands in front of barriers; where one lets go, it and what stands behind it."""
        heads = {partition: kept[0] for partition, kept in self._kept.items() if is_barrier(kept[0])}
        passing, given_up = self.barriers.passing(heads, self.source.position()) if heads else (set(), False)

        def stops(record: RawRecord) -> bool:
            return is_barrier(record) and not (record.partition in passing and record is heads[record.partition])

        records = self._take(stops)
        # A restart goes along the order log, and looks at no barrier on the way.
        ordered = given_up or len(passing) > 1
        return Step(records, self.position(), self.barriers.late, ordered=ordered) if records else None

    def _take_up_to(self, offsets: Mapping[Partition, int]) -> list[RawRecord]:
        """All that is kept below these offsets; of a partition that they do not name, nothing."""
        for partition, kept in self._kept.items():
            self._cut(kept, offsets.get(partition, 0))
        return self._take(lambda record: record.offset >= offsets.get(record.partition, 0))

    def _cut(self, kept: deque[RawRecord], offset: int) -> None:
        """Lines come in blocks, which another time may end elsewhere: have one end here."""
        for place, record in enumerate(kept):
            if record.offset < offset < record.next_offset == record.offset + len(record.value or b""):
                kept[place], rest = cut(record, offset - record.offset)
                kept.insert(place + 1, rest)
                self._kept_bytes += _RECORD_BYTES
            if record.next_offset >= offset:
                return

    def _take(self, stops: Callable[[RawRecord], bool]) -> list[RawRecord]:
        """Of each partition all that is kept up to the first record that stops."""
        taken: list[RawRecord] = []
        for partition in sorted(self._kept):
            kept = self._kept[partition]
            while kept and not stops(kept[0]):
                taken.append(kept.popleft())
            if not kept:
                del self._kept[partition]
        self._kept_bytes -= sum(map(_size, taken))
        return taken

    def _keep(self, records: Sequence[RawRecord]) -> None:
        for record in records:
            self._kept.setdefault(record.partition, deque()).append(record)
        self._kept_bytes += sum(map(_size, records))

    def _hold(self) -> None:
        """Let the source read only what can be used, and note what is behind by what is kept."""
        if not self._kept and not self._held and self._target is None:
            self._behind = ({}, 0.0)
            return
        position = self.source.position()
        if self._target is None:
            held = frozenset(self._kept)
        else:
            limits = self._target.offsets
            held = frozenset(p for p, offset in position.items() if offset >= limits.get(p, 0))
        # What a source meets meanwhile it holds until it is told: a file that grew after it was retired, say.
        if held != self._held or (held and position.keys() != self._met):
            self._held, self._met = held, frozenset(position)
            self.source.hold(held)
        oldest_ms = min((kept[0].timestamp_ms for kept in self._kept.values()), default=0)
        behind = {p: position.get(p, 0) - kept[0].offset for p, kept in self._kept.items()}
        self._behind = (behind, oldest_ms / 1000)


def _sorted(records: Sequence[RawRecord]) -> Sequence[RawRecord]:
    by_partition: dict[Partition, list[RawRecord]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record)
    if len(by_partition) < 2:
        return records
    return list(chain.from_iterable(by_partition[partition] for partition in sorted(by_partition)))


def _size(record: RawRecord) -> int:
    return _RECORD_BYTES + len(record.value or b"")
