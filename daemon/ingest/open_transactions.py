"""Transactions that producers leave open: nothing of a partition is read from where the first of them began on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from kafka import TopicPartition
from kafka.errors import KafkaError

log = logging.getLogger(__name__)

OPEN_S = 60.0
"""A partition that has stood still for so long is looked at, and again after as long."""


class OpenTransactions:
    """Tells, once each, of partitions that stand still at an open transaction, and when they go on.

    What stands behind its beginning counts as lag, and no epoch comes of it until its producer, or the broker
    (``transaction.timeout.ms``), ends it.
    """

    def __init__(self, stable_ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]) -> None:
        """``stable_ends``: asks the brokers up to where partitions can be read; raises ``KafkaError``."""
        self._stable_ends = stable_ends
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._told: set[TopicPartition] = set()

    def look(self, behind: Mapping[TopicPartition, int]) -> None:
        """``behind``: the next offset of every partition that has more to read."""
        now = time.monotonic()
        since, self._since = self._since, {}
        due = []
        for tp, offset in behind.items():
            stands_at, began = since.get(tp, (offset, now))
            if stands_at != offset:
                began = now
            elif tp not in self._told and now - began >= OPEN_S:
                due.append(tp)
                began = now
            self._since[tp] = offset, began
        for tp in [tp for tp in self._told if self._since.get(tp) != since.get(tp)]:
            self._told.discard(tp)
            log.info("%s/%d goes on: the transaction that was open there is over", tp.topic, tp.partition)
        if due:
            self._look_at(due)

    def _look_at(self, due: Collection[TopicPartition]) -> None:
        try:
            ends = self._stable_ends(due)
        except KafkaError:  # whoever reads will hear of it
            return
        for tp in due:
            offset, _ = self._since[tp]
            if ends.get(tp, offset + 1) <= offset:
                self._told.add(tp)
                log.warning(
                    "%s/%d is read up to offset %d, where a producer's transaction is open: what stands behind it "
                    "waits until that producer, or the broker, ends it",
                    *(tp.topic, tp.partition, offset),
                )
