"""Which barriers wait, for which partitions, and when they let go.

A partition that has reached a barrier waits until every partition that its topic had by then has reached the same
one. So that nobody waits for ever, a barrier is *given up* when its time is over, or at once when two of them
cross (each waits for a partition that the other holds): then the older one, by its records' time, gives way.
Partitions that had not reached it pass it later without waiting.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..records.barrier import barrier_id
from ..records.encodings import BARRIER
from ..records.stream import LateBarrier, Partition, RawRecord

log = logging.getLogger(__name__)

OUTCOMES = ("complete", "expired", "crossed")
LATE_MAX = 1024
"""So many barriers that let go before all partitions had reached them are remembered."""

_Name = tuple[str, str]
"""Topic and id."""


@dataclass(slots=True)
class _Waiting:
    """A barrier that some partitions have reached (``held``) and others have not (``missing``).

    ``begun``: when the first one reached it, by the clock; ``begun_at`` the same in seconds since 1970;
    ``timestamp_ms``: the oldest of its records, by their own time.
    """

    missing: set[Partition]
    begun: float
    begun_at: float
    timestamp_ms: int
    held: set[Partition]


class Barriers:
    """See the module. One thread calls ``passing``; ``outcomes`` and ``state`` may be read by others.

    ``late``: the barriers that let go before every partition had reached them.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))
        self.state: list[dict[str, Any]] = []
        self._clock = clock
        self.late: tuple[LateBarrier, ...] = ()
        self._waiting: dict[_Name, _Waiting] = {}
        self._late: dict[_Name, set[Partition]] = {}

    @property
    def waiting_partitions(self) -> int:
        """How many partitions wait."""
        return sum(len(shown["waiting"]) for shown in self.state)

    def passing(
        self, heads: Mapping[Partition, RawRecord], known: Collection[Partition]
    ) -> tuple[set[Partition], bool]:
        """Which of these partitions may go on past the barrier that is their next record.

        ``known``: all partitions that are read. The second value: whether a barrier was given up, so that the
        records do not tell what came before what.
        """
        free, met = set[Partition](), False
        for partition, record in heads.items():
            if self._is_late(partition, record):
                free.add(partition)
            else:
                met |= self._meet(partition, record, known)
        complete = [name for name, waiting in self._waiting.items() if not waiting.missing]
        for name in complete:
            free |= self._let_go(name, "complete", known)
        given_up = False
        for name, outcome in self._given_up():
            free |= self._let_go(name, outcome, known)
            given_up = True
        if met or complete or given_up:
            self.state = [_shown(name, waiting) for name, waiting in self._waiting.items()]
        return free, given_up

    def postpone(self, seconds: float) -> None:
        """For so long nothing was read: that is no time in which others could have come."""
        for waiting in self._waiting.values():
            waiting.begun += seconds

    def remember(self, late: tuple[LateBarrier, ...]) -> None:
        """These are ``late``, as before a restart."""
        self.late = late
        self._late = {(topic, id): {Partition(topic, number) for number in numbers} for topic, id, numbers in late}

    def _is_late(self, partition: Partition, record: RawRecord) -> bool:
        name = _name(record)
        late = self._late.get(name)
        if late is None or partition not in late:
            return False
        late.discard(partition)
        if not late:
            del self._late[name]
        self._show_late()
        return True

    def _meet(self, partition: Partition, record: RawRecord, known: Collection[Partition]) -> bool:
        """Whether this partition has reached it just now."""
        waiting = self._waiting.get(_name(record))
        if waiting is None:
            missing = {other for other in known if other.name == partition.name}
            waiting = _Waiting(missing, self._clock(), time.time(), record.timestamp_ms, set())
            self._waiting[_name(record)] = waiting
        if partition in waiting.held:
            return False
        waiting.missing.discard(partition)
        waiting.held.add(partition)
        waiting.timestamp_ms = min(waiting.timestamp_ms, record.timestamp_ms)
        return True

    def _given_up(self) -> Iterator[tuple[_Name, str]]:
        now = self._clock()
        for name, waiting in list(self._waiting.items()):
            if now - waiting.begun >= self.timeout_s:
                yield name, "expired"
        while (crossed := self._crossed()) is not None:
            yield crossed, "crossed"

    def _crossed(self) -> _Name | None:
        """The older of two barriers that wait for each other."""
        for name, waiting in self._waiting.items():
            for other, against in self._waiting.items():
                if name[0] == other[0] and waiting.missing & against.held and against.missing & waiting.held:
                    return min((waiting.timestamp_ms, name), (against.timestamp_ms, other))[1]
        return None

    def _let_go(self, name: _Name, outcome: str, known: Collection[Partition]) -> set[Partition]:
        waiting = self._waiting.pop(name)
        self.outcomes[outcome] += 1
        if outcome != "complete":
            log.warning(
                "barrier %r of topic %s was given up (%s): %s had reached it and %s had not, so that what stands "
                "before it and behind it has no order between those",
                name[1],
                name[0],
                "it crosses another one" if outcome == "crossed" else f"after {self.timeout_s:g} s",
                _numbers(waiting.held),
                _numbers(waiting.missing),
            )
        late = {partition for partition in known if partition.name == name[0]} - waiting.held
        if late:
            self._late[name] = late
            while len(self._late) > LATE_MAX:
                del self._late[next(iter(self._late))]
            self._show_late()
        return waiting.held

    def _show_late(self) -> None:
        self.late = tuple(
            LateBarrier(*name, tuple(sorted(partition.number or 0 for partition in partitions)))
            for name, partitions in self._late.items()
        )


def is_barrier(record: RawRecord) -> bool:
    """Whether a record is a barrier with a good id; the decoder sets others aside."""
    if record.encoding != BARRIER:
        return False
    try:
        barrier_id(record.value)
    except ValueError:
        return False
    return True


def _name(record: RawRecord) -> _Name:
    return record.partition.name, barrier_id(record.value)


def _shown(name: _Name, waiting: _Waiting) -> dict[str, Any]:
    return {
        "topic": name[0],
        "id": name[1],
        "since": waiting.begun_at,
        "waiting": sorted(partition.number or 0 for partition in waiting.held),
        "missing": sorted(partition.number or 0 for partition in waiting.missing),
    }


def _numbers(partitions: Collection[Partition]) -> str:
    numbers = ", ".join(str(number) for number in sorted(partition.number or 0 for partition in partitions))
    return f"{'partition' if len(partitions) == 1 else 'partitions'} {numbers}"
