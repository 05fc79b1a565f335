"""Under which leaders a partition was read, by which a broker tells whether what was read is still in its log.

A leader that did not have all records (after an election that Kafka calls unclean, or from an older copy of a
disk) cuts the log, and gives the same offsets to others. It may be as long again when a restart looks at it, so
that offsets alone tell nothing. But each leader writes under an epoch of its own, and brokers say where one ended.
"""

from __future__ import annotations

import json

from kafka import TopicPartition

from ..records.stream import Offsets

KEPT_MAX = 32
"""Of each partition the newest so many: a checkpoint is not far behind what is read."""


class LeaderEpochs:
    """``note`` is for the thread that reads; ``state`` for any."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, list[tuple[int, int]]] = {}

    @property
    def state(self) -> bytes:
        """What a checkpoint keeps: of what was read, and so of each offset up to that."""
        wire: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for tp, since in list(self._since.items()):
            if since:
                wire.setdefault(tp.topic, {})[tp.partition] = since[:]
        return json.dumps(wire).encode() if wire else b""

    def restore(self, state: bytes, offsets: Offsets) -> None:
        """Go on from a ``state`` of before, at these offsets; empty where nothing was kept."""
        self._since = {}
        wire = json.loads(state) if state else {}
        for partition, offset in offsets.items():
            known = wire.get(partition.name, {}).get(str(partition.number), [])
            before = [(since, epoch) for since, epoch in known if since <= offset]
            if before:
                self._since[TopicPartition(partition.name, partition.number or 0)] = before[-1:]

    def note(self, tp: TopicPartition, position: int, epoch: int) -> None:
        """What stands before this position was read under this epoch; -1: the broker says none."""
        since = self._since.setdefault(tp, [])
        if epoch < 0 or (since and epoch <= since[-1][1]):
            return
        since.append((position, epoch))
        del since[:-KEPT_MAX]

    def at(self, tp: TopicPartition, position: int) -> int | None:
        """The epoch of what stands before a position; None: not known."""
        found = [epoch for since, epoch in self._since.get(tp, ()) if since <= position]
        return found[-1] if found else None
