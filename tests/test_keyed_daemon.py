"""Daemons that read rows of edges by the keys of records: what is there, and that a restart goes on with it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client as kafka_client
from kafka import KafkaProducer
from running import Daemon, toml
from test_keyed_rows import Naive, Row
from waiting import until

from graphtide import Client
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.failpoints import ON_REQUEST, POINTS
from graphtide.daemon.ingest.sources import make_source
from graphtide.daemon.tools import doctor
from graphtide.daemon.tools.load import load_files
from graphtide.ops.kafka import DevKafka

pytestmark = pytest.mark.kafka

PLACES = [
    point for point in POINTS if point not in ON_REQUEST and not point.startswith(("results.", "rows.", "dead"))
]
PROGRAMS = [{"name": "components"}]
IDS = range(40)
COLUMNS = {"src": "from", "dst": "to", "weight": "amount"}
Edges = dict[tuple[int, int], float]


class Topic:
    """A compacted topic of rows, and where each partition of it ends."""

    def __init__(self, kafka: DevKafka, producer: Any, partitions: int) -> None:
        self.name = f"rows-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self.name, partitions, {"cleanup.policy": "compact"})
        self._producer = producer
        self._ends: dict[int, int] = {}

    def source(self, kafka: DevKafka, **given: Any) -> dict[str, Any]:
        servers = {"bootstrap_servers": [kafka.bootstrap], "topics": [self.name]}
        return {"kind": "kafka", **servers, "encoding": "json", "columns": COLUMNS, "keyed": True, **given}

    def write(self, key: bytes | None, row: Mapping[str, Any] | None, partition: int = 0) -> None:
        value = None if row is None else json.dumps(row).encode()
        sent = self._producer.send(self.name, value, key=key, partition=partition).get(timeout=60)
        self._ends[partition] = sent.offset + 1

    @property
    def end(self) -> dict[str, Any]:
        return {self.name: dict(self._ends)}


def row(src: int, dst: int, weight: float = 1.0) -> dict[str, Any]:
    return {"id": 7, "from": src, "to": dst, "amount": weight}


def edges(client: Client, end: Mapping[str, Any]) -> Edges:
    """All that there are, once these offsets are shown."""
    client.wait(min_offsets=dict(end), timeout_ms=200_000)
    found = client.subgraph([*IDS])
    assert found.weights is not None and not found.truncated
    pairs = zip(np.asarray(found.src).tolist(), np.asarray(found.dst).tolist(), strict=True)
    return dict(zip(pairs, found.weights.tolist(), strict=True))


def stats(client: Client) -> dict[str, Any]:
    return dict(client.stats().content)


def killed(daemon: Daemon) -> None:
    daemon.kill()
    until(lambda: not daemon.answers())


@pytest.mark.sample(among="a stream through a daemon")
def test_a_record_replaces_the_edge_of_its_key_and_a_tombstone_removes_it(kafka: DevKafka, tmp_path: Path) -> None:
    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        topic = Topic(kafka, producer, 1)
        settings = {"source": topic.source(kafka), "program": PROGRAMS}
        topic.write(b"7", row(1, 2, 0.5))
        topic.write(b"8", row(1, 2, 1.5))
        topic.write(b"9", row(3, 4))
        with Daemon(tmp_path, settings) as daemon:
            daemon.start()
            with daemon.client() as client:
                assert edges(client, topic.end) == {(1, 2): 1.5, (3, 4): 1.0}
                topic.write(b"8", row(2, 1, 2.5))
                topic.write(b"9", None)
                topic.write(b"10", None)
                topic.write(b"11", {"from": 5})
                assert edges(client, topic.end) == {(1, 2): 1.5, (2, 1): 2.5}
                shown = stats(client)
                assert shown["keyed"] == {"keys": 2, "edges": 2} and shown["dead_letters"] == {"bad-column": 1}
                assert shown["memory_bytes"]["row_keys"] > 0
            assert daemon.stop() == 0  # it leaves a checkpoint
            daemon.start()
            with daemon.client() as client:
                topic.write(b"7", row(5, 6))
                assert edges(client, topic.end) == {(5, 6): 1.0, (2, 1): 2.5}
            killed(daemon)  # behind the checkpoint
            daemon.start()
            with daemon.client() as client:
                assert edges(client, topic.end) == {(5, 6): 1.0, (2, 1): 2.5}
                topic.write(b"7", None)
                topic.write(b"8", None)
                assert edges(client, topic.end) == {}
                assert stats(client)["keyed"] == {"keys": 0, "edges": 0}
            assert daemon.stop() == 0
            # What was built by keys means nothing without them, and the other way about.
            daemon.settings["source"]["keyed"] = False
            daemon.settings["source"]["compacted"] = "accept"
            daemon.config.write_text(toml(daemon.settings))
            daemon.start(ready_s=None)
            assert daemon.process is not None and daemon.process.wait(120) != 0
            assert "source.keyed was True and is now None" in daemon.log_tail()


@pytest.mark.sample(among="a stream through a daemon")
def test_change_events_with_only_the_key_of_the_row_before(kafka: DevKafka, tmp_path: Path) -> None:
    def event(op: str, after: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"op": op, "before": {"id": 7, "from": 0, "to": 0, "amount": 0}, "after": after}

    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        topic = Topic(kafka, producer, 1)
        settings = {"source": topic.source(kafka, encoding="debezium"), "program": PROGRAMS}
        with Daemon(tmp_path, settings) as daemon:
            daemon.start()
            with daemon.client() as client:
                topic.write(b'{"id": 1}', event("c", row(1, 2, 0.5)))
                topic.write(b'{"id": 2}', event("r", row(3, 4)))
                topic.write(b'{"id": 1}', event("u", row(1, 3, 2.5)))
                assert edges(client, topic.end) == {(1, 3): 2.5, (3, 4): 1.0}
                topic.write(b'{"id": 2}', event("d", None))
                topic.write(b'{"id": 2}', None)
                assert edges(client, topic.end) == {(1, 3): 2.5}
                assert not stats(client)["dead_letters"]


@pytest.mark.sample(among="a daemon dies")
def test_the_last_of_two_keys_of_one_edge_is_the_last_again_after_a_crash(
    kafka: DevKafka, seed: int, tmp_path: Path
) -> None:
    """Though nothing but what was answered says which partition's came last."""
    rng = np.random.default_rng(seed)
    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        topic = Topic(kafka, producer, 3)
        settings = {"source": topic.source(kafka), "program": PROGRAMS}
        with Daemon(tmp_path, settings) as daemon:
            daemon.start()
            seen: Edges = {}
            for _ in range(4):
                with daemon.client() as client:
                    if seen:
                        assert edges(client, topic.end) == seen
                    for number in range(30):
                        src, dst, partition = rng.integers(0, 3, 3).tolist()
                        key = b"%d/%d" % (partition, rng.integers(0, 6))
                        gone = rng.random() < 0.3
                        topic.write(key, None if gone else row(src, dst, float(number)), partition)
                        if number % 7 == 0:
                            edges(client, topic.end)
                    seen = edges(client, topic.end)
                killed(daemon)
                daemon.start()
            with daemon.client() as client:
                assert edges(client, topic.end) == seen


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_wherever_it_is_killed_the_rows_are_the_naive_ones(
    kafka: DevKafka, seed: int, run_long: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    written: list[list[Row]] = [[], []]

    def write() -> None:
        """A few records for each partition; of the edges, some are named in both."""
        for partition in range(2):
            for number in range(int(rng.integers(1, 10))):
                src, dst = int(rng.integers(0, 10)), int(rng.integers(0, 10))
                edge = (src, dst) if rng.random() < 0.5 else (10 * (partition + 1) + src, dst)
                key = b"%d/%d" % (partition, rng.integers(0, 40))
                gone = rng.random() < 0.3
                topic.write(key, None if gone else row(*edge, float(number)), partition)
                written[partition].append((key, None if gone else edge, float(number)))

    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        topic = Topic(kafka, producer, 2)
        settings = {
            "source": topic.source(kafka),
            "epoch": {"updates_max": 30, "queue_updates_max": 60},
            "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.3},
            "program": PROGRAMS,
        }
        with Daemon(tmp_path, settings) as daemon:
            for _ in range(30 if run_long else 2):
                place, count = str(rng.choice(PLACES)), int(rng.integers(1, 6 if run_long else 2))
                daemon.killed_somewhere(f"{place}:{count}", write)
            daemon.start()
            naive = Naive()
            for one in written[0] + written[1]:
                naive.take(one)
            with daemon.client() as client:
                found = edges(client, topic.end)
                assert found.keys() == naive.weights.keys()
                assert stats(client)["keyed"] == {"keys": len(naive.rows), "edges": len(naive.weights)}
            for (src, dst), weight in naive.weights.items():
                if src >= 10:  # it came through one partition alone
                    assert found[src, dst] == weight


def test_the_doctor_takes_a_compacted_topic(kafka: DevKafka) -> None:
    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        topic = Topic(kafka, producer, 1)
    for keyed, status in ((True, "ok"), (False, "fail")):
        findings = doctor._kafka(from_tables({"source": topic.source(kafka, keyed=keyed)}))
        (found,) = [item for item in findings if "is compacted" in item.found]
        assert found.status == status


def test_a_topic_that_forgets_tombstones_before_checkpoints_do_is_warned_of(
    kafka: DevKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"rows-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1, {"cleanup.policy": "compact", "delete.retention.ms": "120000"})
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    source |= {"encoding": "json", "keyed": True}
    for interval, warned in ((60.0, True), (10.0, False)):
        caplog.clear()
        config = from_tables({"source": source, "checkpoint": {"interval": interval}})
        findings = [item for item in doctor._kafka(config) if item.status != "ok"]
        assert ["keeps tombstones for 120 s" in item.found for item in findings] == [True] * warned
        with closing(make_source(config)) as opened:
            opened.identity()
        assert ("keeps tombstones for 120 s" in caplog.text) == warned


def test_files_cannot_be_loaded(kafka: DevKafka, tmp_path: Path) -> None:
    with kafka_client(KafkaProducer, kafka.bootstrap) as producer:
        source = Topic(kafka, producer, 1).source(kafka)
    config = from_tables({"source": source, "checkpoint": {"path": str(tmp_path / "checkpoints")}})
    with pytest.raises(ConfigError, match="nobody knows the keys"):
        load_files(config, [tmp_path / "edges.csv"], {})
    assert not (tmp_path / "checkpoints").exists()
