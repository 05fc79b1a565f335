"""What nobody should ever send: each is set aside by itself, with its reason, and the stream goes on."""

from __future__ import annotations

import gzip
import itertools
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
from brokers import client
from conftest import skip_or_fail
from kafka import KafkaProducer
from running import Daemon
from waiting import until

from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import CUT_BYTES, RECORD_BYTES_MAX, SpoolWriter, frame
from graphtide.daemon.records.stream import BadRecord, Whole
from graphtide.ops.kafka import DevKafka

PROGRAMS = [{"name": "bfs", "id": "hops", "source": 1}]
LONG = RECORD_BYTES_MAX + (6 << 20)


def good(src: int, dst: int) -> bytes:
    return encode_msgpack(np.array([src]), np.array([dst]))


def write(daemon: Daemon, name: str, *records: bytes) -> dict[str, int]:
    """Append records to a spool file; what a ``wait`` for them needs."""
    with SpoolWriter(daemon.spool, name=name) as writer:
        for record in records:
            writer.append(record)
        return {f"{name}.msgpack": writer.offset}


def letters(daemon: Daemon) -> dict[str, BadRecord]:
    return {bad.place: bad for bad in read_dead_letters(daemon.folder / "dead-letters")}


@pytest.mark.sample(among="bad records")
def test_all_that_a_spool_can_be_poisoned_with_at_once(tmp_path: Path) -> None:
    settings = {"program": PROGRAMS, "checkpoint": {"interval": 0.1}}
    with Daemon(tmp_path, settings) as daemon:
        spool = daemon.spool
        write(daemon, "a", good(1, 2))
        (spool / "b-loop.msgpack").symlink_to(spool / "b-loop.msgpack")
        Path(os.fsdecode(os.fsencode(spool) + b"/c-\xff.msgpack")).write_bytes(frame(good(1, 99)))
        (spool / "d-lost.msgpack").write_bytes(frame(good(2, 3)) + bytes(64))
        (spool / "e-damaged.csv.gz").write_bytes(gzip.compress(b"src,dst\n3,4\n") + b"no gzip any more")
        with open(spool / "f-long.el", "wb") as file:
            file.write(b"4 5\n")
            file.write(b"7" * LONG)
            file.write(b"\n5 6\n")
        zeros = bytes(RECORD_BYTES_MAX)
        write(daemon, "g-large", good(6, 7), zeros, good(7, 8))
        offsets = write(daemon, "z", good(8, 9))
        daemon.start()
        with daemon.client() as client:
            client.wait(offsets, timeout_ms=120_000)
            assert client.get("hops", range(1, 10)).values.tolist() == list(range(9))
            assert client.get("hops", [99]).unknown.tolist() == [99]
            found = letters(daemon)
            assert {place: bad.reason for place, bad in found.items()} == {
                "c-\\xff.msgpack:0": "bad-name",
                f"d-lost.msgpack:{len(frame(good(2, 3)))}": "damaged",
                "e-damaged.csv.gz:12": "damaged",
                "f-long.el:4": "too-large",
                f"g-large.msgpack:{len(frame(good(6, 7)))}": "malformed",
            }
            assert found["f-long.el:4"].whole == Whole(LONG, crc32c.crc32c(b"7" * LONG))
            large = next(bad for bad in found.values() if bad.reason == "malformed")
            assert large.whole == Whole(len(zeros), crc32c.crc32c(zeros)) and large.value == bytes(CUT_BYTES)
            # Once two checkpoints cover them they are forgotten, also by the next start.
            numbers = itertools.count(10)

            def only_the_last_is_left() -> bool:
                client.wait(write(daemon, "z", good(9, next(numbers))))
                return list(client.stats().offsets) == ["z.msgpack"]

            until(only_the_last_is_left)
        assert daemon.stop() == 0, daemon.log_tail()
        before = list(read_dead_letters(tmp_path / "dead-letters"))
        daemon.start()
        with daemon.client() as client:
            assert client.wait({"a.msgpack": 1, "g-large.msgpack": 1}, timeout_ms=0)
            client.wait(write(daemon, "zz", good(1, 1000)))
            assert client.get("hops", [9, 1000]).values.tolist() == [8, 1]
        assert daemon.stop() == 0, daemon.log_tail()
        assert list(read_dead_letters(tmp_path / "dead-letters")) == before
        log = daemon.log.read_text()
        assert 1 <= log.count("bad records went to the dead letters: ") < 5, "at first, once a minute, at the end"
        assert "b-loop.msgpack in the spool cannot be read and is left out: Too many levels" in log
        assert "Traceback" not in log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 256 KiB."""
    path = tmp_path / "dead-letters"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", path], capture_output=True)
    if mounted.returncode:
        skip_or_fail(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.sample(among="bad records")
def test_a_full_disk_for_dead_letters_is_waited_for(tmp_path: Path, small_disk: Path) -> None:
    with Daemon(tmp_path, {"program": PROGRAMS, "checkpoint": {"interval": 0.1}}) as daemon:
        (small_disk / "junk").write_bytes(bytes(200 << 10))
        first = write(daemon, "a", good(1, 2))

        def waits() -> bool:
            with daemon.client() as client:
                return "has no room for bad records" in (client.stats()["waiting"] or "")

        daemon.start()
        with daemon.client() as client:
            client.wait(first)
            last = write(daemon, "b", *[b"\xc1" * 4096 for _ in range(40)], good(2, 3))
            until(waits)
            until(lambda: client.stats()["lag"]["amount"]["b.msgpack"] == last["b.msgpack"])
            more = write(daemon, "c", good(3, 4))
            until(lambda: client.stats()["lag"]["amount"].get("c.msgpack") == more["c.msgpack"])
            assert client.stats()["lag"]["seconds"] > 0
        assert daemon.log.read_text().count("No space left on device") == 1
        assert daemon.stop() == 0, daemon.log_tail()
        daemon.start()
        until(waits)
        (small_disk / "junk").unlink()
        with daemon.client() as client:
            client.wait(last | more)
            assert client.get("hops", [2, 3, 4]).values.tolist() == [1, 2, 3]
            assert client.stats()["waiting"] is None
        assert daemon.stop() == 0, daemon.log_tail()
        assert len(letters(daemon)) == 40
        log = daemon.log.read_text()
        assert log.count("bad records find room again after") == 1 and "Traceback" not in log


@pytest.mark.sample(among="bad records")
@pytest.mark.kafka
def test_a_kafka_record_that_inflates_to_more_than_a_letter_can_hold(kafka: DevKafka, tmp_path: Path) -> None:
    topic = f"edges-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    options: dict[str, Any] = {"compression_type": "gzip", "max_request_size": 1 << 28, "max_block_ms": 60_000}
    with client(KafkaProducer, kafka.bootstrap, **options) as producer:
        for value in (good(1, 2), bytes(LONG), good(2, 3)):
            producer.send(topic, value, partition=0).get(60)
    settings = {
        "source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]},
        "program": PROGRAMS,
    }
    with Daemon(tmp_path, settings) as daemon:
        for _ in range(2):
            daemon.start()
            with daemon.client() as queries:
                queries.wait({topic: {0: 3}}, timeout_ms=120_000)
                assert queries.get("hops", [2, 3]).values.tolist() == [1, 2]
            assert daemon.stop() == 0, daemon.log_tail()
        found = letters(daemon)
    whole = Whole(LONG, crc32c.crc32c(bytes(LONG)))
    assert {place: bad.whole for place, bad in found.items()} == {f"{topic}/0/1": whole}
