"""The daemon is killed at seeded points, over and over, and loses nothing.

One history of updates is produced to a real broker piece by piece, bad records among it. Some of its vertices are
deleted, and new ones come for ever, so that their dense ids go from one to the other. Others have edges in all
partitions and are deleted between two barriers, over and over. For each piece the daemon is
started with orders to kill itself (SIGKILL) at a point drawn from a seed: in any stage, inside a
checkpoint's writing and renaming, inside a dead-letter write. In the end it runs undisturbed, and its graph and
answers must equal those of a computation that was never killed.

``--kills N`` sets how often; the seed of each kill is printed, and ``--seed S`` plays the same run again.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from running import Daemon

from graphtide.daemon.failpoints import POINTS
from graphtide.daemon.records.barrier import HEADERS, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import Partition, offsets_to_wire
from graphtide.daemon.tools.verify import FinalGraph
from graphtide.gpma.edges import Op

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.timeout(3600)]

VERTICES = 300
VERTICES_MAX = 600
"""Few enough that ids must change hands: about ``VERTICES`` and ``PARTITIONS * PASSING`` live at once."""
PASSING = 40
PASSING_FROM = 1000
CROSSING = np.arange(5000, 5020)
"""Vertices with edges in all partitions."""
RECORDS_AT_ONCE = 120
UPDATES_PER_RECORD = 40
PARTITIONS = 2
SOURCE = 7


class History:
    """Random updates, produced record by record; remembers everything for the reference.

    Vertices below ``VERTICES`` stay. Between partitions there is no order but by barriers: all updates that
    name one of those that pass come through one partition, that of its parity; and ``CROSSING`` are deleted
    between two barriers.
    """

    def __init__(self, producer: KafkaProducer, topic: str, rng: np.random.Generator) -> None:
        self.producer = producer
        self.topic = topic
        self.rng = rng
        self.columns: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self.bad: set[str] = set()
        self.next_offsets = {Partition(topic, number): 0 for number in range(PARTITIONS)}
        self.records = [0] * PARTITIONS
        self.barriers = 0

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
        self.producer.flush()

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

    def _barrier(self) -> None:
        self.barriers += 1
        for partition in self.rng.permutation(PARTITIONS).tolist():
            self._send(partition, barrier_value(f"{self.barriers}"), bad=False, headers=HEADERS)

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

    def _send(self, partition: int, value: bytes, *, bad: bool, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        sent = self.producer.send(self.topic, value, partition=partition, headers=list(headers)).get(timeout=30)
        self.next_offsets[Partition(self.topic, partition)] = sent.offset + 1
        if bad:
            self.bad.add(f"{self.topic}/{partition}/{sent.offset}")

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


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    seed = request.config.getoption("--seed")
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"\nreplay this run with --seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def history(kafka: Any, rng: np.random.Generator) -> Iterator[History]:
    topic = f"kill-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}-dead", 1)
    with client(KafkaProducer, kafka.bootstrap) as producer:
        yield History(producer, topic, rng)


def dead_letter_sources(bootstrap: str, topic: str) -> list[str]:
    """The ``graphtide-source`` header of every dead letter."""
    with client(KafkaConsumer, bootstrap, enable_auto_commit=False) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found: list[str] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [dict(record.headers)["graphtide-source"].decode() for record in records]
        return found


def produce_until_death(daemon: Daemon, history: History, patience_s: float) -> str:
    """Send records by and by until the daemon kills itself; past the patience kill it from outside."""
    assert daemon.process is not None
    deadline = time.monotonic() + patience_s
    sent = 0
    while daemon.process.poll() is None:
        if time.monotonic() > deadline:
            daemon.kill()
            return "killed from outside"
        history.produce(2)
        sent += 2
        # A daemon that starts slowly finds many records in its first poll, and needs others for more epochs.
        time.sleep(0.05 if sent < RECORDS_AT_ONCE else 0.5)
    assert daemon.process.returncode == -9, f"status {daemon.process.returncode}:\n{daemon.log_tail()}"
    return "killed itself"


def test_nothing_is_lost_or_doubled_whenever_the_daemon_dies(
    kafka: Any, history: History, rng: np.random.Generator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {
        "graph": {"vertices_max": VERTICES_MAX},
        "source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [history.topic]},
        "dead_letters": {"topic": f"{history.topic}-dead"},
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.1},
        "epoch": {"updates_max": 400, "queue_updates_max": 800},
        "program": [
            {"name": "bfs", "id": "hops", "source": SOURCE},
            {"name": "components"},
            {"name": "pagerank", "tolerance": 1e-3},
        ],
    }
    kills = request.config.getoption("--kills")
    outcomes: dict[str, int] = {}
    with Daemon(tmp_path, settings) as daemon:
        for kill in range(kills):
            name = POINTS[int(rng.integers(len(POINTS)))]
            count = int(rng.integers(1, 6))
            daemon.start(kill_at=f"{name}:{count}", ready_s=None)
            outcome = produce_until_death(daemon, history, patience_s=float(rng.uniform(5, 15)))
            outcomes[f"{name}, {outcome}"] = outcomes.get(f"{name}, {outcome}", 0) + 1
            print(f"kill {kill + 1}/{kills} at {name}:{count}: {outcome}", flush=True)
        daemon.start()
        with daemon.client() as client:
            client.wait(min_offsets=offsets_to_wire(history.next_offsets), timeout_ms=60_000)
            check_answers(client, history.final())
        assert daemon.stop() == 0, daemon.log_tail()
    letters = dead_letter_sources(kafka.bootstrap, f"{history.topic}-dead")
    assert set(letters) == history.bad
    print(outcomes)


def check_answers(client: Any, final: FinalGraph) -> None:
    """Every vertex's edges and results against the reference."""
    stats = client.stats()
    assert (stats["vertices"], stats["edges"]) == (final.ids.size, final.src.size)
    expected: dict[int, list[int]] = {int(vertex): [] for vertex in final.ids}
    for src, dst in zip(final.ids[final.src].tolist(), final.ids[final.dst].tolist(), strict=True):
        expected[src].append(dst)
    for vertex, neighbors in expected.items():
        assert sorted(client.neighbors(vertex, direction="out", limit=VERTICES_MAX).ids.tolist()) == sorted(
            neighbors
        )
    ids = final.ids
    hops = client.get("hops", ids).values
    np.testing.assert_array_equal(hops.filled(2**32 - 1).astype(np.uint32), final.hops(SOURCE).astype(np.uint32))
    np.testing.assert_array_equal(client.get("components", ids).values, final.component_labels())
    np.testing.assert_allclose(client.get("pagerank", ids).values, final.pagerank(), rtol=1e-3)
