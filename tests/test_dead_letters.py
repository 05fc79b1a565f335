"""Dead letters: in files, through a broker's outage, and never lost."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest
from brokers import client
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, TopicPartition
from waiting import until

from graphtide.daemon.ingest import dead_letters
from graphtide.daemon.ingest.dead_letters import (
    DeadLettersFull,
    FileDeadLetters,
    KafkaDeadLetters,
    pack_letter,
    read_dead_letters,
    source_of,
    unpack_letter,
)
from graphtide.daemon.records.stream import BadRecord, Partition
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


def test_full_files_stop_the_stream_and_lose_nothing(tmp_path: Path) -> None:
    with FileDeadLetters(tmp_path, bytes_max=1000) as letters:
        with pytest.raises(DeadLettersFull, match=r"may hold 1000"):
            letters.write([letter(i) for i in range(100)])
        kept = [bad.offset for bad in read_dead_letters(tmp_path)]
        assert kept == list(range(len(kept))) and 3 < len(kept) < 100


def test_a_full_writer_waits_for_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FileDeadLetters(tmp_path, bytes_max=400, stop=threading.Event()) as letters:
        letters.write([letter(0, b"x" * 200)])
        thread = threading.Thread(target=letters.write, args=([letter(1, b"y" * 200)],))
        thread.start()
        until(lambda: "the stream waits" in caplog.text)
        assert thread.is_alive()
        taken = [bad.offset for bad in read_dead_letters(tmp_path)]
        for file in tmp_path.iterdir():
            file.unlink()
        thread.join(30)
        assert taken == [0] and [bad.offset for bad in read_dead_letters(tmp_path)] == [1]


def test_a_full_writer_that_is_stopped_says_so(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with FileDeadLetters(tmp_path, bytes_max=100, stop=stop) as letters:
        letters.write([letter(0)])
        with pytest.raises(DeadLettersFull):
            letters.write([letter(1)])


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


@pytest.mark.kafka
def test_letters_wait_for_the_broker_over_a_restart_of_ours(
    kafka: DevKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "CLOSE_SECONDS_MAX", 0.5)
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
