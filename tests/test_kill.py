"""The daemon is killed at seeded points, over and over, and loses nothing.

One history of updates is produced to a real broker piece by piece, bad records among it. For each piece the
daemon is started with orders to kill itself (SIGKILL) at a point drawn from a seed: in any stage, inside a
checkpoint's writing and renaming, inside a dead-letter write. In the end it runs undisturbed, and its graph and
answers must equal those of a computation that was never killed.

``--kills N`` sets how often; the seed of each kill is printed, and ``--seed S`` plays the same run again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from running import Daemon

from graphtide.daemon.encode import encode_msgpack
from graphtide.daemon.faults import POINTS
from graphtide.daemon.records import Partition, offsets_to_wire
from graphtide.daemon.verify import FinalGraph

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.timeout(3600)]

VERTICES = 300
RECORDS_PER_KILL_MAX = 120
UPDATES_PER_RECORD = 40
PARTITIONS = 2
SOURCE = 7


class History:
    """Random updates, produced record by record; remembers everything for the reference."""

    def __init__(self, producer: KafkaProducer, topic: str, rng: np.random.Generator) -> None:
        self.producer = producer
        self.topic = topic
        self.rng = rng
        self.columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.bad: set[str] = set()
        self.next_offsets = {Partition(topic, number): 0 for number in range(PARTITIONS)}

    def produce(self, records: int) -> None:
        """Send records, one in eight of them bad, each to the partition that its sources belong to."""
        for _ in range(records):
            partition = int(self.rng.integers(PARTITIONS))
            if self.rng.random() < 0.125:
                self._send(partition, b"\xc1 not an update", bad=True)
                continue
            # Updates of one pair must come through one partition: split by the parity of src.
            src = self.rng.integers(0, VERTICES // PARTITIONS, UPDATES_PER_RECORD) * PARTITIONS + partition
            dst = self.rng.integers(0, VERTICES, UPDATES_PER_RECORD)
            ops = (self.rng.random(UPDATES_PER_RECORD) < 0.6).astype(np.uint8)
            weights = self.rng.integers(1, 9, UPDATES_PER_RECORD).astype(np.float32)
            self.columns.append((src, dst, ops))
            self._send(partition, encode_msgpack(src, dst, ops, weights), bad=False)
        self.producer.flush()

    def _send(self, partition: int, value: bytes, *, bad: bool) -> None:
        sent = self.producer.send(self.topic, value, partition=partition).get(timeout=30)
        self.next_offsets[Partition(self.topic, partition)] = sent.offset + 1
        if bad:
            self.bad.add(f"{self.topic}/{partition}/{sent.offset}")

    def final(self) -> FinalGraph:
        """The graph that all updates leave; pairs never cross partitions, so production order will do."""
        src, dst, ops = (np.concatenate(part) for part in zip(*self.columns, strict=True))
        return FinalGraph.replay(src.astype(np.int64), dst.astype(np.int64), ops)


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
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    yield History(producer, topic, rng)
    producer.close()


def dead_letter_sources(bootstrap: str, topic: str) -> list[str]:
    """The ``graphtide-source`` header of every dead letter."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found: list[str] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [dict(record.headers)["graphtide-source"].decode() for record in records]
        return found
    finally:
        consumer.close()


def produce_until_death(daemon: Daemon, history: History, patience_s: float) -> str:
    """Send records by and by until the daemon kills itself; past the patience kill it from outside."""
    assert daemon.process is not None
    deadline = time.monotonic() + patience_s
    sent = 0
    while daemon.process.poll() is None:
        if time.monotonic() > deadline:
            daemon.kill()
            return "killed from outside"
        if sent < RECORDS_PER_KILL_MAX:
            history.produce(2)
            sent += 2
        time.sleep(0.05)
    assert daemon.process.returncode == -9, f"status {daemon.process.returncode}:\n{daemon.log_tail()}"
    return "killed itself"


def test_nothing_is_lost_or_doubled_whenever_the_daemon_dies(
    kafka: Any, history: History, rng: np.random.Generator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {
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
            outcome = produce_until_death(daemon, history, patience_s=float(rng.uniform(4, 10)))
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
        assert sorted(client.neighbors(vertex, direction="out", limit=VERTICES).ids.tolist()) == sorted(neighbors)
    ids = final.ids
    hops = client.get("hops", ids).values
    np.testing.assert_array_equal(hops.filled(2**32 - 1).astype(np.uint32), final.hops(SOURCE).astype(np.uint32))
    np.testing.assert_array_equal(client.get("components", ids).values, final.component_labels())
    np.testing.assert_allclose(client.get("pagerank", ids).values, final.pagerank(), rtol=1e-3)
