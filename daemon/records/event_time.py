"""How far event time has come: what the times of updates say, as far as they were read.

Where edges expire (``[window]``), time is what updates say that it is. Each partition has a *watermark*, its
newest time less the allowed lateness, and event time is the least of those that it waits for: a partition that
nothing comes of for a while is idle, and is not waited for. Event time never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .stream import Partition

NO_TIME = -(1 << 63)
"""Stands for a time that is not known, and is before all others."""
UNLIMITED = (1 << 62) - 1
"""The latest time that an update may have, whatever the settings: sums with it stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class EventState:
    """After some step; times in milliseconds since 1970.

    ``newest``: the newest time of each partition that any came of; ``active``: the partitions that event time
    waits for, and ``idle``, those that it does not; ``time_ms``: event time (``NO_TIME``: it has not begun).
    """

    newest: Mapping[Partition, int] = field(default_factory=dict)
    active: frozenset[Partition] = frozenset()
    idle: frozenset[Partition] = frozenset()
    time_ms: int = NO_TIME

    def to_wire(self) -> dict[str, Any]:
        """For a checkpoint, as JSON can."""
        return {
            "time_ms": self.time_ms,
            "newest": [[*partition, time] for partition, time in sorted(self.newest.items(), key=_by_place)],
            "active": sorted(map(list, self.active), key=str),
            "idle": sorted(map(list, self.idle), key=str),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> EventState:
        """The inverse of ``to_wire``.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        return cls(
            newest={Partition(name, number): int(time) for name, number, time in wire["newest"]},
            active=frozenset(Partition(*place) for place in wire["active"]),
            idle=frozenset(Partition(*place) for place in wire["idle"]),
            time_ms=int(wire["time_ms"]),
        )


def _by_place(item: tuple[Partition, int]) -> str:
    return str(item[0])
