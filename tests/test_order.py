"""A daemon on several partitions: what was answered once is answered again after a crash, and barriers hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client
from kafka import KafkaProducer
from running import Daemon
from waiting import until

from graphtide.daemon.records.barrier import HEADERS, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.stream import Partition, offsets_to_wire
from graphtide.gpma.edges import Op
from graphtide.ops.kafka import DevKafka

PARTITIONS = 3


class Writer:
    """Writes updates to the partitions that they belong to, and knows where each ends."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self.producer, self.topic = producer, topic
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    @property
    def offsets(self) -> dict[str, Any]:
        """Where everything written so far ends."""
        return offsets_to_wire({Partition(self.topic, number): end for number, end in self.ends.items()})

    def write(self, op: Op, src: Sequence[int], dst: Sequence[int] | None = None) -> None:
        """One record for each partition that has a part in it."""
        sources = np.array(src, np.int64)
        heads = np.zeros_like(sources) if dst is None else np.array(dst, np.int64)
        owners = partition_of(sources, PARTITIONS)
        for number in np.unique(owners).tolist():
            mine = owners == number
            self._send(number, encode_msgpack(sources[mine], heads[mine], op))

    def barrier(self, id: str, partitions: Sequence[int] = tuple(range(PARTITIONS))) -> None:
        for number in partitions:
            self._send(number, barrier_value(id), HEADERS)

    def _send(self, number: int, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        sent = self.producer.send(self.topic, value, partition=number, headers=list(headers)).get(timeout=30)
        self.ends[number] = sent.offset + 1


@pytest.fixture
def writer(kafka: DevKafka) -> Iterator[Writer]:
    topic = f"order-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    with client(KafkaProducer, kafka.bootstrap) as producer:
        yield Writer(producer, topic)


def settings(kafka: DevKafka, writer: Writer, **source: Any) -> dict[str, Any]:
    where = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [writer.topic]}
    return {"source": {**where, **source}, "program": [{"name": "bfs", "id": "hops", "source": 0}]}


def unknown(daemon: Daemon, ids: Sequence[int]) -> list[int]:
    with daemon.client() as asking:
        return sorted(asking.get("hops", list(ids)).unknown)


def wait(daemon: Daemon, writer: Writer) -> None:
    with daemon.client() as asking:
        asking.wait(min_offsets=writer.offsets)


def order(daemon: Daemon) -> dict[str, Any]:
    with daemon.client() as asking:
        return dict(asking.stats()["order"])


def lag(daemon: Daemon, writer: Writer) -> dict[int, int]:
    with daemon.client() as asking:
        return dict(asking.stats()["lag"]["amount"][writer.topic])


def kill(daemon: Daemon) -> None:
    """SIGKILL; its query server outlives it for a moment, in which it still answers."""
    daemon.kill()
    until(lambda: not daemon.answers())


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kafka
def test_what_was_answered_is_answered_again_after_a_crash(
    kafka: DevKafka, writer: Writer, tmp_path: Path
) -> None:
    gone, passing, back = range(100, 130), range(200, 230), range(300, 330)
    rng = np.random.default_rng(7)
    with Daemon(tmp_path, settings(kafka, writer)) as daemon:
        daemon.start()
        ends = np.array([*gone, *passing, *back])
        src, dst = rng.choice(ends, 600), rng.choice(ends, 600)
        writer.write(Op.INSERT, [*src, *ends], [*dst, *np.roll(ends, 1)])
        wait(daemon, writer)
        assert unknown(daemon, gone) == []
        writer.write(Op.DELETE_VERTEX, [*gone, *back])
        wait(daemon, writer)
        writer.write(Op.INSERT, [*passing], [*back])
        wait(daemon, writer)
        assert unknown(daemon, gone) == [*gone] and unknown(daemon, [*passing, *back]) == []
        with daemon.client() as asking:
            edges = asking.stats()["edges"]
            assert asking.has_edge([*passing], [*back]).exists.all()
        # What a client waited for comes first, though nothing behind it was applied yet.
        writer.write(Op.INSERT, [*passing], [400] * len(passing))
        wait(daemon, writer)
        kill(daemon)
        writer.write(Op.DELETE_VERTEX, [400])
        for _ in range(2):
            daemon.start()
            wait(daemon, writer)
            assert unknown(daemon, gone) == [*gone], "edges did not bring them back"
            assert unknown(daemon, [*passing, *back]) == []
            with daemon.client() as asking:
                assert asking.has_edge([*passing], [*back]).exists.all(), "nor did deletions take later edges"
                assert asking.stats()["edges"] == edges
            assert unknown(daemon, [400]) == [400]
            kill(daemon)


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.kafka
def test_a_barrier_orders_partitions(kafka: DevKafka, writer: Writer, tmp_path: Path) -> None:
    """All of it is there before the daemon, which reads partition by partition; it dies while it waits."""
    ids = range(1000, 1200)
    for round in range(3):
        writer.write(Op.INSERT, [*ids], [*ids[1:], ids[0]])
        writer.barrier(f"inserted {round}")
        writer.write(Op.DELETE_VERTEX, [*ids])
        writer.barrier(f"deleted {round}")
    with Daemon(tmp_path, settings(kafka, writer)) as daemon:
        daemon.start()
        wait(daemon, writer)
        assert unknown(daemon, ids) == [*ids]
        with daemon.client() as asking:
            assert (asking.stats()["vertices"], asking.stats()["edges"]) == (0, 0)
        writer.write(Op.INSERT, [*ids], [*ids[1:], ids[0]])
        writer.barrier("half", [0])
        writer.write(Op.INSERT, [ids[0]], [5])
        for end in (lambda: kill(daemon), daemon.stop, None):
            until(lambda: order(daemon)["barriers"])
            (waiting,) = order(daemon)["barriers"]
            assert (waiting["topic"], waiting["id"]) == (writer.topic, "half")
            assert (waiting["waiting"], waiting["missing"]) == ([0], [1, 2])
            until(lambda: lag(daemon, writer)[0])  # what waits is not read
            if end is not None:
                assert end() in (None, 0)
                daemon.start()
        writer.barrier("half", [1, 2])
        writer.write(Op.DELETE_VERTEX, [*ids])
        writer.barrier("all")
        wait(daemon, writer)
        until(lambda: not order(daemon)["barriers"])
        assert unknown(daemon, ids[1:]) == [*ids[1:]]
        assert daemon.stop() == 0


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.kafka
def test_a_barrier_is_given_up_in_time(kafka: DevKafka, writer: Writer, tmp_path: Path) -> None:
    with Daemon(tmp_path, settings(kafka, writer, barrier_timeout=0.5)) as daemon:
        daemon.start()
        writer.barrier("alone", [1])
        writer.write(Op.INSERT, [*range(50)], [*range(1, 51)])
        wait(daemon, writer)
        assert unknown(daemon, range(51)) == []
        assert (
            "barrier 'alone' of topic" in daemon.log_tail() and "was given up (after 0.5 s)" in daemon.log_tail()
        )
        kill(daemon)
        daemon.start()
        wait(daemon, writer)
        assert unknown(daemon, range(51)) == []


@pytest.mark.sample(among="a stream through a daemon")
def test_files_of_a_spool_that_grow_side_by_side_keep_their_order(tmp_path: Path) -> None:
    """They are read in name order where nothing else is known."""
    with Daemon(tmp_path, {"program": [{"name": "bfs", "id": "hops", "source": 0}]}) as daemon:
        ends = {"a.csv": 0, "b.json": 0}

        def append(name: str, text: str) -> None:
            with open(daemon.spool / name, "a") as file:
                ends[name] += file.write(text)
            with daemon.client() as asking:
                asking.wait(min_offsets=ends)

        daemon.start()
        append("b.json", '{"src": 1, "dst": 2}\n')
        append("a.csv", "src,dst\n1,3\n1,4\n")
        append("b.json", '{"op": "delete_vertex", "src": 3}\n{"op": "delete_vertex", "src": 4}\n')
        append("a.csv", "1,4\n4,5\n")
        append("b.json", '{"op": "delete_vertex", "src": 5}\n')
        append("a.csv", "6,7\n")
        for _ in range(2):
            assert unknown(daemon, range(1, 8)) == [3, 5]
            with daemon.client() as asking:
                assert asking.has_edge([1, 1, 4, 6], [2, 4, 5, 7]).exists.tolist() == [True, True, False, True]
            kill(daemon)
            daemon.start()
            with daemon.client() as asking:
                asking.wait(min_offsets=ends)
