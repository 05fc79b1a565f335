"""Dead letters: in files, through a broker's outage, and never lost."""

from __future__ import annotations

import errno
import io
import os
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crc32c
import msgpack
import pytest
from brokers import client
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from power_cuts import PowerCut, times
from waiting import until

from graphtide.daemon.errors import ConfigError, DeadLettersError
from graphtide.daemon.ingest import dead_letters_kafka
from graphtide.daemon.ingest.dead_letters import (
    FileDeadLetters,
    pack_letter,
    read_dead_letters,
    source_of,
    unpack_letter,
)
from graphtide.daemon.ingest.dead_letters_kafka import KafkaDeadLetters
from graphtide.daemon.ingest.kafka_client import KafkaLink
from graphtide.daemon.records import spool_format
from graphtide.daemon.records.spool_format import CUT_BYTES, RECORD_BYTES_MAX, SpoolWriter, frame, read_frames
from graphtide.daemon.records.stream import BadRecord, DeadLettersFull, Partition, Whole
from graphtide.ops.kafka import DevKafka

FAST = {"reconnect_backoff_max_ms": 500}


def letter(offset: int, value: bytes = b"\xff bad") -> BadRecord:
    return BadRecord(
        Partition("edges", 3), offset, value, "bad-message", "not a map", key=b"k", headers=(("h", b"1"),)
    )


@given(
    partition=st.builds(Partition, st.text(min_size=1, max_size=9), st.none() | st.integers(0, 99)),
    offset=st.integers(0, 2**62),
    value=st.binary(max_size=50),
    key=st.none() | st.binary(max_size=9),
    headers=st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9)), max_size=3).map(tuple),
    detail=st.text(max_size=30),
)
def test_a_letter_keeps_everything(
    partition: Partition,
    offset: int,
    value: bytes,
    key: bytes | None,
    headers: tuple[tuple[str, bytes], ...],
    detail: str,
) -> None:
    bad = BadRecord(partition, offset, value, "bad-id", detail, key=key, headers=headers)
    assert unpack_letter(pack_letter(bad, 1)) == bad


def test_sources_have_names() -> None:
    assert source_of(letter(7)) == "edges/3/7"
    assert source_of(BadRecord(Partition("a.csv"), 12, b"", "bad-id", "")) == "a.csv/12"


def test_files_keep_letters_over_restarts(tmp_path: Path) -> None:
    for start in range(3):
        with FileDeadLetters(tmp_path, segment_bytes=200) as letters:
            letters.write([letter(start * 10 + i) for i in range(10)])
            letters.flush()
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == list(range(30))
    assert len(list(tmp_path.iterdir())) > 3
    torn = max(tmp_path.iterdir())
    torn.write_bytes(torn.read_bytes()[:-3])
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == list(range(29))


def test_letters_stay_in_their_order_though_the_clock_is_stepped_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset, time_ns in enumerate((10**18, 10**18 - 10**15, 10**18 + 7)):
        monkeypatch.setattr("time.time_ns", lambda time_ns=time_ns: time_ns)
        with FileDeadLetters(tmp_path) as letters:
            letters.write([letter(offset)])
    assert [one.offset for one in read_dead_letters(tmp_path)] == [0, 1, 2]


def test_what_is_no_letter_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of results, say, or of a spool."""
    others = [b"garbage", b"", *map(msgpack.packb, ([["end"], {}], 5, {"v": 1, "src": b""}, {1: 2}))]
    good = pack_letter(letter(3), 1)
    file = tmp_path / "results-000000000000.msgpack"
    file.write_bytes(b"".join(map(frame, [*filter(None, others), good])))
    with caplog.at_level("ERROR"):
        assert [bad.offset for bad in read_dead_letters(file)] == [3]
    assert f"{file}: 5 of its records are no dead letters, and left out" in caplog.text
    for payload in others:
        with pytest.raises(ValueError, match="no dead letter"):
            unpack_letter(payload)


def test_files_that_are_full_say_how_many_letters_they_took(tmp_path: Path) -> None:
    with FileDeadLetters(tmp_path, bytes_max=1000) as letters:
        with pytest.raises(DeadLettersFull, match=r"may hold 1000") as full:
            letters.write([letter(i) for i in range(100)])
        kept = [bad.offset for bad in read_dead_letters(tmp_path)]
        assert kept == list(range(full.value.taken)) and 3 < len(kept) < 100
        with pytest.raises(DeadLettersFull):
            letters.write([letter(100)])
        for file in tmp_path.iterdir():
            file.unlink()
        letters.write([letter(i) for i in range(full.value.taken, full.value.taken + 3)])
        rest = [bad.offset for bad in read_dead_letters(tmp_path)]
        assert rest == [kept[-1] + 1, kept[-1] + 2, kept[-1] + 3]


class Disk:
    """Files that share so much room; what does not fit is written in part, as a real disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                taken = min(len(data), disk.room)
                if taken == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                disk.room -= taken
                return super().write(bytes(data[:taken]))

        def opened(path: Path, mode: str, **_: Any) -> Any:
            return io.BufferedWriter(File(path, "a"), buffer_size=64) if mode == "ab" else open(path, mode)

        monkeypatch.setattr(spool_format, "open", opened, raising=False)


@pytest.mark.parametrize("room", [0, 10, 130, 500, 1000])
def test_a_full_disk_loses_no_letter_and_leaves_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    letters = FileDeadLetters(tmp_path, segment_bytes=400)
    letters.write([letter(0)])
    with monkeypatch.context() as patch:
        disk = Disk(patch, room)
        rest = [letter(i, b"x" * 50) for i in range(1, 10)]
        with pytest.raises(DeadLettersFull, match=r"dead_letters.path = .*No space left") as full:
            letters.write(rest)
        assert [bad.offset for bad in read_dead_letters(tmp_path)] == list(range(full.value.taken + 1))
        assert not any(file.stat().st_size == 0 for file in tmp_path.iterdir())
        disk.room = 1 << 20
        letters.write(rest[full.value.taken :])
        letters.close()
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == list(range(10))


def test_letters_of_before_a_full_disk_are_synced_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that passes them comes after that."""
    disk, power = Disk(monkeypatch, 1 << 20), PowerCut(monkeypatch)
    letters = FileDeadLetters(tmp_path)
    letters.write([letter(0)])
    disk.room = 0
    for _ in range(3):
        with pytest.raises(DeadLettersFull):
            letters.write([letter(1)])
    disk.room = 1 << 20
    letters.write([letter(1)])
    letters.flush()
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == [0, 1]
    assert left(power, tmp_path) == [0, 1]
    letters.close()


def left(power: PowerCut, folder: Path) -> list[int]:
    """The offsets of the letters that a loss of power leaves."""
    found = list[int]()
    for file in sorted(folder.glob("*.msgpack")):
        (folder / "left").write_bytes(power.left(file) or b"")
        found += [bad.offset for bad in read_dead_letters(folder / "left")]
    return found


@pytest.mark.parametrize("segment_bytes", [100, 300, 1 << 20])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_letters_whose_sync_failed_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int, failing: int
) -> None:
    """A checkpoint that passes them comes once ``flush`` has returned."""
    power = PowerCut(monkeypatch)
    letters = FileDeadLetters(tmp_path, segment_bytes=segment_bytes)
    letters.write([letter(0)])
    letters.flush()
    letters.write([letter(1), letter(2)])
    power.fails = times(failing)
    for tries in range(10):
        try:
            letters.flush()
        except OSError:
            assert tries < failing
        else:
            break
    assert tries == failing
    assert left(power, tmp_path) == [0, 1, 2]
    letters.write([letter(3)])
    letters.flush()
    assert left(power, tmp_path) == [0, 1, 2, 3]
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == [0, 1, 2, 3], "and none twice"
    letters.close()


def test_letters_of_a_segment_that_could_not_be_sealed_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = PowerCut(monkeypatch)
    letters = FileDeadLetters(tmp_path, segment_bytes=100)
    letters.write([letter(0)])
    power.fails = times(1)
    with pytest.raises(DeadLettersError, match="Input/output error"):
        letters.write([letter(1)])  # which begins another segment
    letters.flush()
    assert left(power, tmp_path) == [0]
    letters.close()
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == [0]


def test_files_that_cannot_be_written_are_named_by_path_and_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"dead_letters\.path = '.*file/letters' cannot be used: Not a directory"
    ):
        FileDeadLetters(tmp_path / "file" / "letters")
    letters = FileDeadLetters(tmp_path / "letters")
    (tmp_path / "letters").rmdir()
    (tmp_path / "letters").write_bytes(b"")
    with pytest.raises(DeadLettersError, match=r"dead_letters\.path = '.*letters' cannot be written to"):
        letters.write([letter(0)])


# -- too large for a frame ----------------------------------------------------------------------------------


def test_what_no_frame_can_hold_is_cut_and_can_be_told_by_length_and_checksum(tmp_path: Path) -> None:
    value = bytes(RECORD_BYTES_MAX - 20)
    large = [
        replace(letter(1), value=value),
        replace(letter(2), key=bytes(RECORD_BYTES_MAX)),
        replace(letter(3), headers=(("a", b"1"), ("b", bytes(RECORD_BYTES_MAX)), ("c", b"2"))),
        replace(letter(4), headers=(("", b""),) * (RECORD_BYTES_MAX // 4)),
    ]
    with FileDeadLetters(tmp_path) as letters:
        letters.write([letter(0), *large, letter(5)])
    found = list(read_dead_letters(tmp_path))
    assert [bad.offset for bad in found] == [0, 1, 2, 3, 4, 5]
    assert found[0] == letter(0) and found[5] == letter(5)
    assert len(found[4].headers) < CUT_BYTES
    assert found[1].whole == Whole(len(value), crc32c.crc32c(value))
    assert found[1].value == value[:CUT_BYTES] and found[1].key == b"k"
    assert found[2].value == letter(2).value and found[2].whole == Whole(5, crc32c.crc32c(letter(2).value))
    assert f"its key has {RECORD_BYTES_MAX} bytes" in found[2].detail
    assert found[3].headers == (("a", b"1"),) and "2 of its headers are left out" in found[3].detail


def test_what_just_fits_is_kept_whole() -> None:
    large = replace(letter(1), value=bytes(RECORD_BYTES_MAX - (1 << 17)))
    payload = pack_letter(large, 1)
    assert len(payload) <= RECORD_BYTES_MAX and unpack_letter(payload) == large


# -- a topic ------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"dead-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1, {"max.message.bytes": "100000"})
    return name


def delivered(kafka: DevKafka, topic: str) -> list[tuple[bytes | None, bytes, dict[str, bytes]]]:
    with client(KafkaConsumer, kafka.bootstrap, enable_auto_commit=False) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [(record.key, record.value, dict(record.headers)) for record in records]
        return found


@pytest.mark.kafka
def test_letters_arrive_with_their_reason_and_leave_no_file(kafka: DevKafka, topic: str, tmp_path: Path) -> None:
    letters = KafkaDeadLetters(kafka.bootstrap, topic, tmp_path, client=FAST, segment_bytes=300)
    letters.write([letter(i) for i in range(20)])
    letters.flush()
    until(lambda: letters.sent == 20 and not list(tmp_path.iterdir()))
    letters.close()
    found = delivered(kafka, topic)
    assert [headers["graphtide-source"] for _, _, headers in found] == [b"edges/3/%d" % i for i in range(20)]
    key, value, headers = found[0]
    assert (key, value) == (b"k", b"\xff bad")
    assert headers["h"] == b"1" and headers["graphtide-error"] == b"bad-message"
    assert headers["graphtide-error-detail"] == b"not a map"


@pytest.mark.kafka
def test_a_letter_too_large_for_the_topic_stays_in_a_file(kafka: DevKafka, topic: str, tmp_path: Path) -> None:
    letters = KafkaDeadLetters(kafka.bootstrap, topic, tmp_path, client=FAST)
    letters.write([letter(0), letter(1, b"x" * 200_000), letter(2)])
    until(lambda: letters.sent == 2)
    letters.close()
    assert {headers["graphtide-source"] for _, _, headers in delivered(kafka, topic)} == {
        b"edges/3/0",
        b"edges/3/2",
    }
    assert [bad.offset for bad in read_dead_letters(tmp_path)] == [1]


@pytest.mark.sample(among="bad records")
@pytest.mark.kafka
def test_letters_wait_for_the_broker_over_a_restart_of_ours(
    kafka: DevKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_kafka, "CLOSE_SECONDS_MAX", 0.5)
    first = KafkaDeadLetters(kafka.bootstrap, topic, tmp_path, client=FAST)
    first.write([letter(0)])
    until(lambda: first.sent == 1)
    kafka.stop()
    try:
        first.write([letter(1), letter(2)])
        first.flush()
        assert [bad.offset for bad in read_dead_letters(tmp_path)][-2:] == [1, 2]
        first.close()
        second = KafkaDeadLetters(kafka.bootstrap, topic, tmp_path, client=FAST)
        second.write([letter(3)])
        until(lambda: second.outages == 1)
    finally:
        kafka.start()
    # Which of the two sends a letter does not matter, as long as none is lost and no file stays.
    until(lambda: not list(tmp_path.iterdir()))
    second.close()
    sources = [headers["graphtide-source"] for _, _, headers in delivered(kafka, topic)]
    assert set(sources) == {b"edges/3/%d" % i for i in range(4)}


def test_what_is_no_letter_keeps_no_others_from_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def send(topic: str, *, value: bytes, **_: Any) -> Any:
        sent.append(value)
        return SimpleNamespace(get=lambda timeout: None)

    monkeypatch.setattr(KafkaLink, "client", lambda self: SimpleNamespace(send=send))
    foreign = [b"\x05", b"\xc1", msgpack.packb({"topic": "t"})]
    with SpoolWriter(tmp_path, name="dead-0") as writer:
        for payload in (foreign[0], pack_letter(letter(0, b"first"), 0), *foreign[1:]):
            writer.append(payload)
    with KafkaDeadLetters("127.0.0.1:1", "dead", tmp_path) as letters:
        letters.write([letter(1, b"second")])
        until(lambda: not list(tmp_path.glob("dead-*")))
    assert sent == [b"first", b"second"]
    (aside,) = tmp_path.iterdir()
    assert [item.payload for item in read_frames(aside)] == foreign and letters.sent == 2


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What a topic has got that takes all but the value ``large``."""
    values = list[bytes]()

    def send(topic: str, *, value: bytes, **_: Any) -> Any:
        if value == b"large":
            raise MessageSizeTooLargeError
        values.append(value)
        return SimpleNamespace(get=lambda timeout: None)

    monkeypatch.setattr(KafkaLink, "client", lambda self: SimpleNamespace(send=send))
    return values


def test_a_segment_with_a_letter_that_is_damaged_is_kept_aside(tmp_path: Path, sent: list[bytes]) -> None:
    """Those around it are sent."""
    with SpoolWriter(tmp_path, name="dead-0") as writer:
        ends = [writer.append(pack_letter(letter(number, b"%d" % number), 0)) for number in range(3)]
    content = bytearray((tmp_path / writer.name).read_bytes())
    content[ends[0] + 20] ^= 1
    (tmp_path / writer.name).write_bytes(content)
    with KafkaDeadLetters("127.0.0.1:1", "dead", tmp_path):
        until(lambda: not (tmp_path / writer.name).exists())
    (aside,) = tmp_path.iterdir()
    assert sent == [b"0", b"2"] and aside.name == f"damaged-{writer.name}" and aside.read_bytes() == content


def test_what_is_put_aside_while_the_disk_is_full_is_there_once(
    tmp_path: Path, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, tries = os.fdatasync, 0

    def fails_at_first(handle: int) -> None:
        nonlocal tries
        if "undeliverable" in os.readlink(f"/proc/self/fd/{handle}"):
            tries += 1
            if tries < 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fdatasync", fails_at_first)
    monkeypatch.setattr(dead_letters_kafka.Backoff, "wait_s", lambda self: 0.001)
    with KafkaDeadLetters("127.0.0.1:1", "dead", tmp_path) as letters:
        letters.write([letter(0, b"large")])
        until(lambda: tries >= 4 and not list(tmp_path.glob("dead-*")))
    assert [bad.value for bad in read_dead_letters(tmp_path)] == [b"large"]


def test_few_bytes_of_letters_are_in_memory_on_their_way_to_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait in the files."""
    sent: list[int] = []
    monkeypatch.setattr(dead_letters_kafka, "_SEND_BYTES", 10_000)
    monkeypatch.setattr(KafkaDeadLetters, "_deliver", lambda self, payloads: sent.append(sum(map(len, payloads))))
    with KafkaDeadLetters("127.0.0.1:1", "dead", tmp_path) as letters:
        letters.write([letter(i, bytes(4000)) for i in range(30)])
        until(lambda: sum(sent) > 30 * 4000)
        letters.write([letter(30, bytes(40_000))])
        until(lambda: sent[-1] > 40_000)
    assert len(sent) > 10 and max(sent[:-1]) < 10_000 + 5000
