"""Histories for the kill tests: random updates of edges and vertices, and the graph that they leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kafka import KafkaProducer

from graphtide.daemon.records.barrier import HEADERS, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.records.stream import Partition
from graphtide.daemon.tools.verify import FinalGraph
from graphtide.gpma.edges import Op

VERTICES = 300
VERTICES_MAX = 600
"""Few enough that ids must change hands: about ``VERTICES`` and ``PARTITIONS * PASSING`` live at once."""
PASSING = 40
PASSING_FROM = 1000
CROSSING = np.arange(5000, 5020)
"""Vertices with edges in all partitions."""
UPDATES_PER_RECORD = 40
PARTITIONS = 2
SOURCE = 7


class History(ABC):
    """Random updates, produced record by record; remembers everything for the reference.

    Vertices below ``VERTICES`` stay. Between partitions there is no order but by barriers: all updates that
    name one of those that pass come through one partition, that of its parity; and ``CROSSING`` are deleted
    between two barriers.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.columns: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self.bad: set[str] = set()
        self.next_offsets: dict[Partition, int] = {}
        self.records = [0] * PARTITIONS

    def produce(self, records: int) -> None:
        """Send records, one in eight of them bad, each to the partition that its sources belong to."""
        for _ in range(records):
            if self.rng.random() < 0.2:
                self._delete_crossing()
            partition = int(self.rng.integers(PARTITIONS))
            if self.rng.random() < 0.125:
                self._send(partition, b"\xc1 not an update", bad=True)
                continue
            columns = self._updates(partition)
            self.columns.append(columns)
            self._send(partition, encode_msgpack(*columns), bad=False)

    def produce_source(self) -> None:
        """Go on until ``SOURCE`` is a vertex, which it then stays: no path begins at one that is none."""
        while SOURCE not in self.final().ids:
            self.produce(1)

    def _delete_crossing(self) -> None:
        self._barrier()
        gone = self.rng.choice(CROSSING, 5, replace=False)
        for partition in range(PARTITIONS):
            mine = gone[gone % PARTITIONS == partition]
            ops = np.full(mine.size, Op.DELETE_VERTEX, np.uint8)
            columns = (mine, np.zeros_like(mine), ops, np.ones(mine.size, np.float32))
            self.columns.append(columns)
            self._send(partition, encode_msgpack(*columns), bad=False)
        self._barrier()

    def _updates(self, partition: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        rng, n = self.rng, UPDATES_PER_RECORD
        # Updates of one pair must come through one partition: split by the parity of src.
        src = rng.integers(0, VERTICES // PARTITIONS, n) * PARTITIONS + partition
        dst = rng.integers(0, VERTICES, n)
        ops = (rng.random(n) < 0.6).astype(np.uint8)
        weights = rng.integers(1, 9, n).astype(np.float32)
        # Each record lets the oldest of those that pass go, and a new one in.
        self.records[partition] += 1
        oldest = self.records[partition]
        passing = (oldest + rng.integers(0, PASSING, (2, n))) * PARTITIONS + PASSING_FROM + partition
        src, dst = (
            np.where(rng.random(n) < share, other, ends)
            for ends, other, share in zip((src, dst), passing, (0.2, 0.2), strict=True)
        )
        crossing = rng.choice(CROSSING, n)
        dst = np.where(rng.random(n) < 0.3, crossing, dst)
        src = np.where((rng.random(n) < 0.2) & (crossing % PARTITIONS == partition), crossing, src)
        alone = np.flatnonzero(rng.random(n) < 0.15)
        ops[alone] = rng.choice([Op.INSERT_VERTEX, Op.DELETE_VERTEX], alone.size)
        src[alone], dst[alone] = passing[0, alone], 0
        src[-1], dst[-1], ops[-1] = (oldest - 1) * PARTITIONS + PASSING_FROM + partition, 0, Op.DELETE_VERTEX
        return src, dst, ops, weights

    @abstractmethod
    def _send(self, partition: int, value: bytes, *, bad: bool) -> None:
        """Append a record to a partition, and note where; the order in which they are sent is kept in each."""

    @abstractmethod
    def _barrier(self) -> None:
        """What was sent before comes before what is sent behind it."""

    @property
    def vertices(self) -> np.ndarray:
        """All that there ever were (and some that there were not): int64[n]."""
        passed = PASSING_FROM + (max(self.records) + PASSING + 1) * PARTITIONS
        return np.concatenate([np.arange(VERTICES), np.arange(PASSING_FROM, passed), CROSSING])

    def final(self) -> FinalGraph:
        """The graph that all updates leave, in the order in which they were produced."""
        alive: set[int] = set()
        heads, tails = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
        for columns in self.columns:
            for src, dst, op in zip(*(column.tolist() for column in columns[:3]), strict=True):
                match op:
                    case Op.INSERT:
                        alive |= {src, dst}
                        heads[src].add(dst)
                        tails[dst].add(src)
                    case Op.DELETE:
                        heads[src].discard(dst)
                        tails[dst].discard(src)
                    case Op.INSERT_VERTEX:
                        alive.add(src)
                    case Op.DELETE_VERTEX:
                        alive.discard(src)
                        for head in heads.pop(src, ()):
                            tails[head].discard(src)
                        for tail in tails.pop(src, ()):
                            heads[tail].discard(src)
        ids = np.array(sorted(alive), np.int64)
        edges = [(src, dst) for src, found in heads.items() for dst in found]
        src, dst = np.searchsorted(ids, np.array(edges, np.int64).reshape(-1, 2)).T
        return FinalGraph(ids, src, dst)


class KafkaHistory(History):
    """A history in a topic of ``PARTITIONS``."""

    def __init__(self, producer: KafkaProducer, topic: str, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.producer = producer
        self.topic = topic
        self.barriers = 0

    def _barrier(self) -> None:
        self.barriers += 1
        for partition in self.rng.permutation(PARTITIONS).tolist():
            self._send(partition, barrier_value(f"{self.barriers}"), bad=False, headers=HEADERS)

    def _send(self, partition: int, value: bytes, *, bad: bool, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        sent = self.producer.send(self.topic, value, partition=partition, headers=list(headers)).get(timeout=30)
        self.next_offsets[Partition(self.topic, partition)] = sent.offset + 1
        if bad:
            self.bad.add(f"{self.topic}/{partition}/{sent.offset}")


class SpoolHistory(History):
    """A history in many small files of a spool, one after the other; what stands in an earlier one comes first."""

    RECORDS_OF_A_FILE = 4

    def __init__(self, spool: Path, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.spool = spool
        self.sent = 0

    def clean(self, offsets: dict[str, int]) -> int:
        """Delete what an operator may: files that an answer's offsets no longer name; how many those were."""
        done = [file for file in self.spool.iterdir() if file.name not in offsets and file.name < max(offsets)]
        for file in done:
            file.unlink()
            del self.next_offsets[Partition(file.name)]
        return len(done)

    def _barrier(self) -> None:
        """Files are in order by themselves."""

    def _send(self, partition: int, value: bytes, *, bad: bool) -> None:
        with SpoolWriter(self.spool, name=f"{self.sent // self.RECORDS_OF_A_FILE:06}") as writer:
            if bad:
                self.bad.add(f"{writer.name}:{writer.offset}")
            self.next_offsets[Partition(writer.name)] = writer.append(value)
        self.sent += 1
