"""Daemons whose edges expire: what goes, and that a restart goes on with it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client as kafka_client
from kafka import KafkaProducer
from running import Daemon, toml
from waiting import until
from windowed import Naive, Row, Settings

from graphtide import Client
from graphtide.daemon.failpoints import ON_REQUEST, POINTS
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.records.stream import Decided, Partition
from graphtide.gpma.edges import Op
from graphtide.ops.kafka import DevKafka

NOW = 1_700_000_000
"""Where the streams begin, in seconds since 1970; their own times count from there."""
PLACES = [
    point for point in POINTS if point not in ON_REQUEST and not point.startswith(("results.", "rows.", "dead"))
]
PROGRAMS = [{"name": "components"}]


def milliseconds(at: float) -> int:
    return round((NOW + at) * 1000)


class Spool:
    """One file, to which records are added."""

    def __init__(self, daemon: Daemon) -> None:
        self.folder = daemon.spool

    def write(self, edges: Sequence[tuple[int, int]], at: float | None, op: Op = Op.INSERT) -> dict[str, Any]:
        """Updates of one time, or without any; returns where the file ends."""
        src, dst = np.array(edges, np.int64).reshape(-1, 2).T
        times = None if at is None else np.full(src.size, milliseconds(at))
        ops = np.full(src.size, op, np.uint8)
        with SpoolWriter(self.folder, name="a") as writer:
            return {writer.name: writer.append(encode_msgpack(src, dst, ops, timestamps_ms=times))}


def settled(client: Client, offsets: dict[str, Any], pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which of these edges there are once these offsets are shown and all that is due is gone."""
    client.wait(min_offsets=offsets, timeout_ms=200_000)
    until(lambda: not window(client).get("is_due"))
    src, dst = zip(*pairs, strict=True)
    there = client.has_edge([*src], [*dst]).exists
    return {pair for pair, exists in zip(pairs, there, strict=True) if exists}


def window(client: Client) -> dict[str, Any]:
    return dict(client.stats().content.get("window", {}))


def restart(daemon: Daemon, **settings: dict[str, Any]) -> None:
    """End it at once and begin again with other settings."""
    daemon.kill()
    until(lambda: not daemon.answers())
    daemon.settings.update(settings)
    daemon.config.write_text(toml(daemon.settings))
    daemon.start()


@pytest.mark.sample(among="a stream through a daemon")
def test_edges_go_after_their_time_whatever_becomes_of_the_daemon(tmp_path: Path) -> None:
    many = [(0, head) for head in range(100, 140)]
    pairs = [(1, 2), (3, 4), (5, 6), (7, 8), (8, 7), *many]
    with Daemon(
        tmp_path, {"window": {"length": 10.0}, "program": PROGRAMS, "epoch": {"updates_max": 10}}
    ) as daemon:
        spool = Spool(daemon)
        daemon.start()
        with daemon.client() as client:
            assert settled(client, spool.write([(1, 2), (3, 4)], 0), pairs) == {(1, 2), (3, 4)}
            assert settled(client, spool.write([(1, 2), (5, 6)], 6), pairs) == {(1, 2), (3, 4), (5, 6)}
            assert settled(client, spool.write([(7, 8)], 10), pairs) == {(1, 2), (5, 6), (7, 8)}
            spool.write([(1, 9)], None)
            spool.write([(1, 9)], 0)
            end = spool.write([(1, 2), *many], 1)
            assert settled(client, end, pairs) == {(1, 2), (5, 6), (7, 8), *many}
            assert client.stats()["dead_letters"] == {"no-time": 1}
            assert client.stats()["vertices"] == 8 + 41, "what came too late made none"
        assert daemon.stop() == 0
        # A shorter one has more go at once, in epochs of at most ten, and now vertices go, too.
        end = spool.write([(8, 7)], 11)
        for _ in range(2):
            restart(daemon, window={"length": 5.0, "isolated": "delete"})
            with daemon.client() as client:
                assert settled(client, end, pairs) == {(7, 8), (8, 7)}
                until(lambda: client.stats()["vertices"] == 2)
                shown = window(client)
                assert (shown["edges"], shown["expired"]) == (2, 42)
                assert shown["event_time_ms"] == shown["newest_ms"] == milliseconds(11)


@pytest.mark.sample(among="a daemon dies")
def test_event_time_goes_on_though_nothing_came_of_the_graph_yet(tmp_path: Path) -> None:
    """A stream may begin with deletions of what is not there, which tell the time all the same."""
    pairs = [(1, 2), (3, 4)]
    with Daemon(tmp_path, {"window": {"length": 10.0}, "program": PROGRAMS}) as daemon:
        spool = Spool(daemon)
        daemon.start()
        with daemon.client() as client:
            assert not settled(client, spool.write([(1, 2)], 100, op=Op.DELETE), pairs)
            client.checkpoint()
        for _ in range(2):
            restart(daemon)
            with daemon.client() as client:
                assert not settled(client, spool.write([(1, 2)], 50), pairs), "it came too late"
                assert window(client)["event_time_ms"] == milliseconds(100)


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kafka
def test_what_the_clock_decided_is_decided_for_good(kafka: DevKafka, tmp_path: Path) -> None:
    topic = f"window-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    pairs = [(1, 2), (3, 4), (5, 6), (7, 8)]
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    settings = {"source": source, "window": {"length": 10.0, "idle_timeout": 0.5}, "program": PROGRAMS}
    ends = {0: 0, 1: 0}

    def write(partition: int, edge: tuple[int, int], at: float, **own: list[int]) -> dict[str, Any]:
        """A record of this time; ``own``: what the update has as its."""
        value, time_ms = encode_msgpack([edge[0]], [edge[1]], **own), milliseconds(at)
        sent = producer.send(topic, value, partition=partition, timestamp_ms=time_ms).get(timeout=60)
        ends[partition] = sent.offset + 1
        return {topic: dict(ends)}

    with kafka_client(KafkaProducer, kafka.bootstrap) as producer, Daemon(tmp_path, settings) as daemon:
        write(0, (1, 2), 0)
        write(1, (3, 4), 0)
        daemon.start()
        with daemon.client() as client:

            def went_on() -> bool:
                settled(client, write(0, (5, 6), 20), pairs)
                return bool(window(client)["event_time_ms"] == milliseconds(20))

            until(went_on)  # the other partition is silent
            assert settled(client, write(1, (7, 8), 10), pairs) == {(5, 6)}, (
                "too late: event time went on without it"
            )
            until(lambda: window(client)["late"] == 1)
            times = f"its time is {milliseconds(10)}, and times had come to {milliseconds(20)} "
            assert f"dropped: 1; the first of them is of {topic}/1: {times}" in daemon.log.read_text()
            end = write(0, (1, 2), 20, timestamps_ms=[milliseconds(10**9)])
            assert settled(client, end, pairs) == {(5, 6)}
            assert client.stats()["dead_letters"] == {"in-future": 1}
        # From now on nothing is idle, and nothing too far ahead.
        restart(daemon, window={"length": 10.0, "idle_timeout": 1e6, "max_future_skew": 3e9})
        with daemon.client() as client:
            assert settled(client, end, pairs) == {(5, 6)}
            assert window(client)["event_time_ms"] == milliseconds(20)


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_wherever_it_is_killed_the_window_is_the_naive_one(
    kafka: DevKafka, seed: int, run_long: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    topic, ids = f"window-{uuid.uuid4().hex[:8]}", range(40)
    kafka.create_topic(topic, 2)
    settings = {
        "source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]},
        "window": {"length": 20.0, "isolated": "delete", "allowed_lateness": 3.0, "idle_timeout": 1e6},
        "epoch": {"updates_max": 30, "queue_updates_max": 60},
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.3},
        "program": PROGRAMS,
    }
    written: dict[Partition, list[list[Row]]] = {Partition(topic, number): [] for number in range(2)}
    now = 0

    def write() -> None:
        """A record for each partition, some of its updates out of order and some too late."""
        nonlocal now
        now += int(rng.integers(0, 700))
        for number in range(2):
            n = int(rng.integers(1, 20))
            src, dst = rng.integers(0, 20, n) * 2 + number, rng.integers(0, 40, n)
            times = NOW * 1000 + now - rng.integers(0, 30_000, n) * (rng.random(n) < 0.3)
            ops = (rng.random(n) < 0.85).astype(np.uint8)
            value = encode_msgpack(src, dst, ops, timestamps_ms=times)
            producer.send(topic, value, partition=number).get(timeout=60)
            rows = zip(ops.tolist(), src.tolist(), dst.tolist(), times.tolist(), strict=True)
            written[Partition(topic, number)].append([*rows])

    with kafka_client(KafkaProducer, kafka.bootstrap) as producer, Daemon(tmp_path, settings) as daemon:
        for _ in range(30 if run_long else 1):
            place, count = str(rng.choice(PLACES)), int(rng.integers(1, 6 if run_long else 2))
            daemon.killed_somewhere(f"{place}:{count}", write)
        daemon.start()
        naive = Naive(Settings(length=20_000, lateness=3_000, isolated=True))
        naive.step([(place, rows) for place, records in written.items() for rows in records], Decided(), 10**15)
        pairs = [(src, dst) for src in ids for dst in ids]
        offsets = {topic: {place.number: len(records) for place, records in written.items()}}
        with daemon.client() as client:
            assert settled(client, offsets, pairs) == naive.edges.keys()
            assert client.stats()["vertices"] == len(naive.vertices)
