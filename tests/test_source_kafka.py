"""The Kafka source against a real broker."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brokers import client
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions
from kafka.errors import CoordinatorNotAvailableError, GroupAuthorizationFailedError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata
from waiting import PATIENCE_S

from graphtide.daemon.backoff import Backoff
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError, RecordsLost, RequestError, SourceError, SourceUnavailable
from graphtide.daemon.ingest import kafka_overseer, open_transactions
from graphtide.daemon.ingest.kafka import KafkaSource
from graphtide.daemon.ingest.topic_settings import meant
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.tools import dead_letters, doctor
from graphtide.daemon.tools.destinations import KafkaDestination, ProduceFailed
from graphtide.ops.kafka import DevKafka, held_port

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"edges-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 2)
    return name


@pytest.fixture
def producer(kafka: DevKafka) -> Iterator[KafkaProducer]:
    with client(KafkaProducer, kafka.bootstrap) as made:
        yield made


@pytest.fixture
def open_source(kafka: DevKafka, topic: str) -> Iterator[Callable[..., KafkaSource]]:
    opened: list[KafkaSource] = []

    def make(offsets: dict[Partition, int] | None = None, **options: Any) -> KafkaSource:
        source = KafkaSource(
            kafka.bootstrap, [topic], **{"name": topic, "discovery_s": 0.2, "client": FAST, **options}
        )
        source.open(offsets)
        opened.append(source)
        return source

    yield make
    for source in opened:
        source.close()


FAST = {"reconnect_backoff_max_ms": 500}


def read(source: KafkaSource, count: int, bytes_max: int = 1 << 20) -> list[RawRecord]:
    """Poll until so many records came; one more poll shows that no further ones do."""
    records: list[RawRecord] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} of {count} records came"
        records += source.poll(bytes_max, timeout_s=0.2)
    return records + source.poll(bytes_max, timeout_s=0.1)


def until(condition: Callable[[], bool], source: KafkaSource, bytes_max: int = 1 << 20) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        source.poll(bytes_max, timeout_s=0.05)


def send(producer: KafkaProducer, topic: str, values: list[bytes], partition: int = 0, **more: Any) -> int:
    """Send; return the next offset after the last."""
    futures = [producer.send(topic, value, partition=partition, **more) for value in values]
    producer.flush()
    return max(int(future.get(30).offset) for future in futures) + 1


def named(records: list[RawRecord]) -> list[tuple[int | None, int, bytes | None]]:
    return sorted((record.partition.number, record.offset, record.value) for record in records)


def test_records_come_with_everything_they_have(
    producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"a"], key=b"k", headers=[("content-type", b"text/csv; x=1")], timestamp_ms=1234)
    producer.send(topic, None, key=b"gone", partition=1).get(30)
    source = open_source()
    records = {record.partition.number: record for record in read(source, 2)}
    first = records[0]
    assert (first.value, first.key, first.offset, first.next_offset) == (b"a", b"k", 0, 1)
    assert first.encoding == "csv" and first.timestamp_ms == 1234
    assert first.headers == (("content-type", b"text/csv; x=1"),)
    assert records[1].value is None and records[1].encoding == "msgpack"
    assert source.position() == {Partition(topic, 0): 1, Partition(topic, 1): 1}
    assert set(source.lag().amount.values()) == {0} and source.lag().seconds == 0


def test_a_restart_goes_on_where_the_checkpoint_says(
    producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    for partition in (0, 1):
        send(producer, topic, [b"%d-%d" % (partition, i) for i in range(20)], partition)
    first = open_source()
    before: list[RawRecord] = []
    while len(before) < 13:
        before += first.poll(1, timeout_s=1)  # one byte: one record at a time
    position = first.position()
    identity = first.identity()
    first.close()
    second = open_source(position, start="latest")
    after = read(second, 40 - len(before))
    everything = [(p, i, b"%d-%d" % (p, i)) for p in (0, 1) for i in range(20)]
    assert named(before + after) == everything
    assert second.identity() == identity and len(identity["topics"][topic]) > 10 and identity["cluster"]


def test_where_reading_starts(
    producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    now_ms = time.time_ns() // 10**6  # records of long ago would be deleted under our feet: retention goes by time
    send(producer, topic, [b"old"], timestamp_ms=now_ms - 60_000)
    send(producer, topic, [b"new"], timestamp_ms=now_ms - 10_000)
    assert [record.value for record in read(open_source(start="earliest"), 2)] == [b"old", b"new"]
    assert [record.value for record in read(open_source(start=now_ms - 30_000), 1)] == [b"new"]
    assert [record.value for record in read(open_source(start={topic: {0: 1}}), 1)] == [b"new"]
    with pytest.raises(SourceError, match=f"source.start names {topic}/2, but the topic has only 2 partitions"):
        read(open_source(start={topic: {0: 1, 2: 0}}), 1)
    latest = open_source(start="latest")
    until(lambda: latest.position() == {Partition(topic, 0): 2, Partition(topic, 1): 0}, latest)
    send(producer, topic, [b"newest"])
    assert [record.value for record in read(latest, 1)] == [b"newest"]


def test_aborted_transactions_are_not_read_and_markers_do_not_stall_the_position(
    kafka: DevKafka, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    source = open_source()
    with client(KafkaProducer, kafka.bootstrap, transactional_id=topic) as transactional:
        transactional.init_transactions()
        for value, commit in ((b"kept", True), (b"aborted", False), (b"last", True)):
            transactional.begin_transaction()
            transactional.send(topic, value, partition=0).get(30)
            if commit:
                transactional.commit_transaction()
            else:
                transactional.abort_transaction()
    assert [record.value for record in read(source, 2)] == [b"kept", b"last"]
    # Three records and three markers: the position passes the last marker too.
    until(lambda: source.position()[Partition(topic, 0)] == 6, source)
    until(lambda: source.lag().amount[Partition(topic, 0)] == 0, source)


def test_a_transaction_that_stays_open_is_told_of_once_and_so_is_its_end(
    kafka: DevKafka,
    producer: KafkaProducer,
    topic: str,
    open_source: Callable[..., KafkaSource],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What stands behind it counts as lag, and no epoch comes of it."""
    monkeypatch.setattr(open_transactions, "OPEN_S", 0.3)
    caplog.set_level("INFO", logger="graphtide")
    source = open_source()

    def told(what: str) -> int:
        return sum(what in record.getMessage() for record in caplog.records)

    with client(KafkaProducer, kafka.bootstrap, transactional_id=topic) as transactional:
        transactional.init_transactions()
        send(producer, topic, [b"before"])
        transactional.begin_transaction()
        transactional.send(topic, b"within", partition=0).get(30)
        send(producer, topic, [b"behind"])
        send(producer, topic, [b"beside"], partition=1)
        assert sorted(record.value for record in read(source, 2)) == [b"before", b"beside"]
        until(lambda: told(f"{topic}/0 is read up to offset 1, where a producer's transaction is open"), source)
        assert source.lag().amount == {Partition(topic, 0): 2, Partition(topic, 1): 0}
        send(producer, topic, [b"later"], partition=1)
        assert [record.value for record in read(source, 1)] == [b"later"]
        transactional.commit_transaction()
    assert [record.value for record in read(source, 2)] == [b"within", b"behind"]
    until(lambda: told(f"{topic}/0 goes on"), source)
    assert told("transaction is open") == told("goes on") == 1


def test_large_columnar_records_arrive(kafka: DevKafka, open_source: Callable[..., KafkaSource]) -> None:
    topic = f"large-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1, {"max.message.bytes": str(24 << 20)})
    with client(KafkaProducer, kafka.bootstrap, max_request_size=24 << 20, compression_type="lz4") as producer:
        values = [bytes([i]) * (5 << 20) for i in range(4)]
        send(producer, topic, values)
    source = KafkaSource(kafka.bootstrap, [topic], fetch_bytes_max=1 << 20)
    with contextlib.closing(source):
        source.open(None)
        assert [record.value for record in read(source, 4, bytes_max=1 << 20)] == values


def test_new_partitions_are_read_from_their_start(
    kafka: DevKafka,
    producer: KafkaProducer,
    topic: str,
    open_source: Callable[..., KafkaSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = open_source(start="latest")
    until(lambda: len(source.position()) == 2, source)
    assert not caplog.records
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.create_partitions({topic: NewPartitions(4)})
    with client(KafkaProducer, kafka.bootstrap) as fresh:
        send(fresh, topic, [b"first there"], partition=3)
    assert named(read(source, 1)) == [(3, 0, b"first there")]
    assert len(source.position()) == 4
    added = f"partitions were added, and are read from their start: {topic}/2, {topic}/3"
    assert caplog.text.count(added) == 1
    restarted = open_source({Partition(topic, 0): 0, Partition(topic, 1): 0}, start="latest")
    assert named(read(restarted, 1)) == [(3, 0, b"first there")]
    assert caplog.text.count(added) == 2, "as they were while nobody was there"
    before = open_source(source.position())
    until(lambda: len(before.position()) == 4, before)
    assert caplog.text.count(added) == 2


def test_partitions_that_are_held_are_not_read_until_they_are_let_go(
    kafka: DevKafka, producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    held, other = Partition(topic, 0), Partition(topic, 1)
    send(producer, topic, [b"held"] * 3)
    source = open_source()
    source.hold([held])  # before it is assigned
    until(lambda: len(source.position()) == 2, source)
    send(producer, topic, [b"read"] * 3, partition=1)
    assert named(read(source, 3)) == [(1, i, b"read") for i in range(3)]
    assert source.poll(1 << 20, timeout_s=0.5) == [] and source.position() == {held: 0, other: 3}
    assert source.lag().amount == {held: 3, other: 0}
    source.hold([other])
    send(producer, topic, [b"next"], partition=1)
    assert named(read(source, 3)) == [(0, i, b"held") for i in range(3)]
    source.hold([])
    assert named(read(source, 1)) == [(1, 3, b"next")]


def test_an_offset_that_retention_passed_is_an_error(
    kafka: DevKafka, producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 10)
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    for wanted, why in ((3, "retention has passed it"), (11, "the topic ends before it")):
        source = open_source({Partition(topic, 0): wanted, Partition(topic, 1): 0})
        with pytest.raises(SourceError) as caught:
            read(source, 1)
        assert caught.value.message == (
            f"offset {wanted} of {topic}/0 is not available: {why}; available are 6 to 10"
        )
        assert caught.value.detail["begin"] == 6 and isinstance(caught.value, RecordsLost)
        with pytest.raises(SourceError, match=f"^source.start: {re.escape(caught.value.message)}$") as caught:
            read(open_source(start={topic: {0: wanted}}), 1)
        assert not isinstance(caught.value, RecordsLost), "a daemon would say what to do about its checkpoint"
    gone = open_source({Partition(topic, 7): 0})
    with pytest.raises(SourceError, match="has only 2 partitions"):
        read(gone, 1)


def test_retention_that_passes_a_running_reader_is_an_error(
    kafka: DevKafka, producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 10)
    source = open_source(fetch_bytes_max=1)
    read(source, 10)
    # One fetch is under way and takes the batch that comes first; nothing is fetched while nobody polls.
    send(producer, topic, [b"y"])
    send(producer, topic, [b"z"] * 20)
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 31})
    send(producer, topic, [b"last"])
    with pytest.raises(SourceError, match="not available: retention has passed it; available are 31 to 32"):
        read(source, 22)


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_log_that_was_cut_is_told_of_at_a_restart_however_long_it_is_by_then() -> None:
    """One disk of a broker is put back as it was before; and where retention took all there is nothing to tell."""
    with DevKafka() as broker:
        for topic in ("cut", "emptied"):
            broker.create_topic(topic)
        with client(KafkaProducer, broker.bootstrap) as producer:
            send(producer, "cut", [b"x"] * 10)
            send(producer, "emptied", [b"x"] * 10)
        broker.stop()
        assert broker._folder is not None
        disk, copy = broker._folder / "data" / "cut-0", broker._folder / "copy"
        shutil.copytree(disk, copy)
        broker.start()
        read_so_far = {}
        with client(KafkaProducer, broker.bootstrap) as producer:
            send(producer, "cut", [b"y"] * 10)
            send(producer, "emptied", [b"y"] * 10)
        for topic in ("cut", "emptied"):
            with contextlib.closing(KafkaSource(broker.bootstrap, [topic], client=FAST)) as source:
                source.open(None)
                read(source, 20)
                read_so_far[topic] = source.position(), source.state()
        with client(KafkaAdminClient, broker.bootstrap) as admin:
            admin.delete_records({TopicPartition("emptied", 0): 20})
        broker.kill()
        shutil.rmtree(disk)
        shutil.copytree(copy, disk)
        broker.start()
        with client(KafkaProducer, broker.bootstrap) as producer:
            send(producer, "cut", [b"z"] * 15)
            send(producer, "emptied", [b"z"])
        for topic in ("cut", "emptied"):
            with contextlib.closing(KafkaSource(broker.bootstrap, [topic], client=FAST)) as source:
                source.open(*read_so_far[topic])
                if topic == "emptied":
                    assert named(read(source, 1)) == [(0, 20, b"z")]
                else:
                    with pytest.raises(
                        RecordsLost, match="cut/0 was cut at offset 10, and had been read up to 20"
                    ):
                        until(lambda: False, source)


def test_a_topic_made_anew_is_another_topic(
    kafka: DevKafka, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    source = open_source()
    until(lambda: len(source.position()) == 2, source)
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_topics([topic])
        deadline = time.monotonic() + 60
        while admin.describe_topics([topic])[0]["error_code"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    until(lambda: f"has no topic {topic}" in str(source.away), source)
    kafka.create_topic(topic, 2)
    with pytest.raises(SourceError, match="was deleted and made again"):
        until(lambda: False, source)


def test_a_topic_that_is_not_there_is_said_with_the_nearest_that_is(kafka: DevKafka, topic: str) -> None:
    mistyped = topic.replace("edges", "edgse")
    source = KafkaSource(kafka.bootstrap, [mistyped], connect_timeout_s=60)
    said = rf"has no topic {mistyped}, .*; did you mean {topic}\?"
    with contextlib.closing(source), pytest.raises(SourceUnavailable, match=said):
        source.identity()
    with pytest.raises(ProduceFailed, match=rf"has no topic {mistyped}: .*; did you mean {topic}\?"):
        KafkaDestination(kafka.bootstrap, mistyped)
    with pytest.raises(RequestError, match=rf"has no topic {mistyped}; did you mean {topic}\?"):
        list(dead_letters.from_topic(kafka.bootstrap, mistyped, {}))
    settings = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [mistyped]}
    hints = {found.check: found.hint for found in doctor.examine(from_tables({"source": settings}))}
    assert hints[f"topic {mistyped}"].endswith(f"; did you mean {topic}?")
    assert meant(["x"], ["edges", "__consumer_offsets"]) == ""


def test_commits_show_up_in_the_group(
    kafka: DevKafka, producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 5)
    source = open_source()
    read(source, 5)
    source.checkpointed({Partition(topic, 0): 3})
    source.checkpointed(source.position())
    until(lambda: source._overseer.commits > 0, source)  # the first one of a new cluster waits for the coordinator
    source.close()
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        group = admin.list_group_offsets({f"graphtide-{topic}": None})[f"graphtide-{topic}"]
    committed = {partition: entry.offset for partition, entry in group.items()}
    assert committed == {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 0}


def test_a_missing_topic_is_waited_for(kafka: DevKafka, producer: KafkaProducer) -> None:
    topic = f"later-{uuid.uuid4().hex[:8]}"
    source = KafkaSource(kafka.bootstrap, [topic], discovery_s=0.2)
    with contextlib.closing(source):
        source.open(None)
        with pytest.raises(SourceUnavailable, match=f"no topic {topic}"):
            source.identity()
        assert source.poll(100, timeout_s=0.1) == [] and source.outages == 0
        kafka.create_topic(topic, 1)
        send(producer, topic, [b"x"])
        assert len(read(source, 1)) == 1


def test_a_broker_that_is_not_there_yet_is_waited_for() -> None:
    with (
        held_port() as port,
        contextlib.closing(KafkaSource(f"127.0.0.1:{port}", ["edges"], connect_timeout_s=0.5)) as source,
    ):
        assert source.lag().amount == {} and source.position() == {}
        source.open({Partition("edges", 0): 7})
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            source.identity()
        assert source.poll(100, timeout_s=0.05) == []
        assert source.position() == {Partition("edges", 0): 7}


def test_an_outage_has_one_reason_as_long_as_tries_fail_alike() -> None:
    """Each other one would be published."""
    outages = kafka_overseer.Outages("k:1")
    outages.failed(KafkaTimeoutError("after 9999 ms"))
    outages.failed(KafkaTimeoutError("after 9998 ms"))
    assert outages.said is not None and "9999" in outages.said
    outages.failed(ConnectionRefusedError("refused"))
    assert "refused" in outages.said and outages.count == 1
    outages.worked()
    assert outages.said is None
    outages.failed(ConnectionRefusedError("again"))
    assert "again" in str(outages.said) and outages.count == 2


def test_waits_grow_to_a_limit_and_vary() -> None:
    backoff = Backoff(0.1, 1.0)
    waits = [backoff.wait_s() for _ in range(50)]
    assert all(0.05 <= wait <= 0.1 for wait in waits[:1]) and all(0.5 <= wait <= 1.0 for wait in waits[5:])
    assert len(set(waits[5:])) > 10
    backoff.reset()
    assert backoff.wait_s() <= 0.1


def test_a_restarted_broker_loses_and_doubles_nothing(
    kafka: DevKafka, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    source = open_source()
    count = 60
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            with client(KafkaProducer, kafka.bootstrap, reconnect_backoff_max_ms=500) as producer:
                futures = []
                for i in range(count):
                    futures.append(producer.send(topic, b"%d" % i, partition=i % 2))
                    time.sleep(0.05)
                for future in futures:
                    future.get(60)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=produce)
    writer.start()
    records = [*source.poll(1 << 20, timeout_s=0.5)]
    kafka.stop()
    until(lambda: source.outages > 0, source)
    assert source.away is not None and source.away.startswith("Kafka at ")
    kafka.start()
    records += read(source, count - len(records))
    until(lambda: source.away is None, source)
    writer.join()
    assert not failures
    expected = [(i % 2, i // 2, b"%d" % i) for i in range(count)]
    assert named(records) == sorted(expected)
    assert source.outages >= 1


def test_where_reading_begins_is_known_before_anything_is_read(
    producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 5)
    source = open_source(start="latest")
    assert source.backlog() is None
    until(lambda: source.backlog() is not None, source, bytes_max=0)
    assert source.position() == {Partition(topic, 0): 5, Partition(topic, 1): 0}
    assert source.backlog() == 0
    send(producer, topic, [b"y"])
    assert named(read(source, 1)) == [(0, 5, b"y")]


def test_the_backlog_is_what_lay_there_and_not_what_came_later(
    producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 5)
    source = open_source({Partition(topic, 0): 2, Partition(topic, 1): 0})
    until(lambda: source.backlog() is not None, source, bytes_max=0)
    assert source.backlog() == 3
    send(producer, topic, [b"y"] * 4, partition=1)
    read(source, 7)
    assert source.backlog() == 0


def test_how_far_retention_is_from_a_checkpoint_is_known(
    kafka: DevKafka, producer: KafkaProducer, topic: str, open_source: Callable[..., KafkaSource]
) -> None:
    send(producer, topic, [b"x"] * 10)
    send(producer, topic, [b"x"] * 10, partition=1)
    offsets = {Partition(topic, 0): 8, Partition(topic, 1): 7}
    source = open_source(offsets)
    until(lambda: source.log_margin(offsets) == 7, source)
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    until(lambda: source.log_margin(offsets) == 2, source)
    assert source.log_margin(source.position()) == 4
    assert math.isnan(source.log_margin({Partition("another", 0): 1}))


@pytest.mark.parametrize("listener", ["of-another-protocol", "with-another-password"])
def test_whoever_is_refused_at_first_has_a_wrong_configuration(kafka: DevKafka, topic: str, listener: str) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "graphtide"}
    secured = kafka.bootstrap if listener == "of-another-protocol" else kafka.bootstrap_sasl
    source = KafkaSource(secured, [topic], client={**login, "sasl_plain_password": "wrong"}, connect_timeout_s=60)
    with contextlib.closing(source), pytest.raises(ConfigError, match=r"source\.client: .*(Sasl|SASL)"):
        source.identity()
    login["sasl_plain_password"] = kafka.password
    right = KafkaSource(kafka.bootstrap_sasl, [topic], client=login, connect_timeout_s=60)
    with contextlib.closing(right):
        assert right.identity()["kind"] == "kafka"


def test_a_password_that_changed_in_its_file_is_presented_by_the_next_connection(
    kafka: DevKafka, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a restart; a file that cannot be read just then changes nothing."""
    password = tmp_path / "password"
    password.write_text("of yesterday")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "graphtide"}
    settings = from_tables({"source": {"client": {**login, "sasl_plain_password_file": str(password)}}})
    options = settings.source.client_options()
    password.write_text(kafka.password)
    with contextlib.closing(KafkaSource(kafka.bootstrap_sasl, [topic], client=options)) as source:
        source.open(None)
        assert source.identity()["kind"] == "kafka"
        until(lambda: source.partition_count(topic) == 2, source)
    options = settings.source.client_options()
    password.unlink()
    with contextlib.closing(KafkaSource(kafka.bootstrap_sasl, [topic], client=options)) as source:
        assert source.identity()["kind"] == "kafka"
    assert "what it held before is presented once more" in caplog.text


# -- what a topic's settings mean -----------------------------------------------------------------------------


def made_topic(kafka: DevKafka, settings: dict[str, str]) -> str:
    name = f"set-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 2, settings)
    return name


@contextlib.contextmanager
def identified(kafka: DevKafka, topic: str, **options: Any) -> Iterator[KafkaSource]:
    with contextlib.closing(KafkaSource(kafka.bootstrap, [topic], **options)) as source:
        source.open(None)
        source.identity()
        yield source


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused_unless_it_is_accepted(
    kafka: DevKafka, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made_topic(kafka, {"cleanup.policy": policy})
    with pytest.raises(ConfigError, match="is compacted") as caught, identified(kafka, topic):
        pass
    assert topic in caught.value.message and 'source.compacted = "accept"' in caught.value.message
    with identified(kafka, topic, compacted="accept"):
        assert "is compacted" in caplog.text


def test_a_topic_that_forgets_before_checkpoints_do_is_warned_of(
    kafka: DevKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made_topic(kafka, {"retention.ms": "120000"})
    with identified(kafka, topic, reach_s=100):
        assert not caplog.records
    with identified(kafka, topic, reach_s=180):
        assert (
            f"topic {topic} keeps records for 120 s (retention.ms), and checkpoints reach back 180 s"
            in caplog.text
        )
    forever = made_topic(kafka, {"retention.ms": "-1"})
    caplog.clear()
    with identified(kafka, forever, reach_s=1e9):
        assert not caplog.records


def test_a_topic_that_keeps_few_bytes_is_warned_of_with_the_rate_that_is_too_much(
    kafka: DevKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made_topic(kafka, {"retention.bytes": "2000000"})
    with identified(kafka, topic, reach_s=100):
        assert "keeps 2000000 bytes of each partition (retention.bytes)" in caplog.text
        assert "from 2e+04 bytes a second on" in caplog.text
    caplog.clear()
    with identified(kafka, topic, reach_s=0.01):
        assert not caplog.records


def changed(kafka: DevKafka, topic: str, **settings: str) -> None:
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])


def test_a_topic_that_gets_other_settings_later_is_looked_at_again(
    kafka: DevKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_overseer, "_SETTINGS_PERIOD_S", 0.0)
    caplog.set_level("INFO", logger="graphtide")
    topic = made_topic(kafka, {})
    with identified(kafka, topic, reach_s=180, discovery_s=0.1) as source:
        changed(kafka, topic, retention_ms="120000")
        deadline = time.monotonic() + 60
        while "keeps records for 120 s" not in caplog.text and time.monotonic() < deadline:
            source.poll(1 << 20, 0.1)
        assert f"topic {topic} has other settings now" in caplog.text
        assert caplog.text.count("keeps records for 120 s (retention.ms)") == 1
        changed(kafka, topic, cleanup_policy="compact")

        def poll() -> None:
            while time.monotonic() < deadline + 60:
                source.poll(1 << 20, 0.1)

        with pytest.raises(ConfigError, match=rf"topic {topic} is compacted.*source\.compacted"):
            poll()


def test_a_log_whose_beginning_is_gone_is_warned_of(
    kafka: DevKafka, topic: str, producer: KafkaProducer, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        producer.send(topic, b"%d" % number, partition=1)
    producer.flush()
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 1): 3})
    for start, warned in (("earliest", True), ("latest", False)):
        caplog.clear()
        with identified(kafka, topic, start=start) as source:
            deadline = time.monotonic() + 60
            while not source.position() and time.monotonic() < deadline:
                source.poll(1 << 20, 0.1)
        assert (f"{topic}/1 begins at offset 3" in caplog.text) == warned
        assert f"{topic}/0 begins" not in caplog.text


def test_a_commit_that_has_to_be_tried_again_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a fresh cluster the first commit finds no coordinator: the topic of its groups is only made then."""
    overseer = kafka_overseer.Overseer(["h:1"], ["t"], "group", {}, 5.0)
    outcomes = [CoordinatorNotAvailableError(), CoordinatorNotAvailableError(), None]

    def alter(group: str, offsets: Any) -> dict[Any, Any]:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return {}

    monkeypatch.setattr(overseer._admin, "client", lambda: SimpleNamespace(alter_group_offsets=alter))
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
    overseer.commit(offsets)
    assert [overseer._commit() for _ in range(3)] == [False, False, True]
    assert not caplog.records and (overseer.commits, overseer.commit_failures) == (1, 2)
    monkeypatch.setattr(kafka_overseer, "_COMMIT_PATIENCE_S", 0.0)
    outcomes += [CoordinatorNotAvailableError(), CoordinatorNotAvailableError(), GroupAuthorizationFailedError()]
    overseer.commit(offsets)
    assert [overseer._commit() for _ in range(3)] == [False, False, True]
    assert caplog.text.count("offsets cannot be committed to group group") == 1
