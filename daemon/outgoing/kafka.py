"""Results in a topic: one transaction of Kafka for each of ours.

Whoever takes over presents the ``transactional.id``, which withdraws what is half written and shuts out whoever
had it before; then the newest committed end is read back. So a transaction of which it is not known how it ended
is asked about in the same way as after a restart: the client is closed and made anew.

A vertex is placed as the edges are of which it is the src (``records.placement``), whatever the program. Every
partition gets an end of its own: reading one partition is enough to know its vertices of an epoch whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from ...gpma.index.ids import IdColumn
from ..failpoints import point
from ..ingest.kafka_client import KafkaLink, commit, connect, disconnect, fault_of, records_until, send_batch
from ..ingest.topic_settings import read_topic_settings
from ..records.placement import partition_of
from .batches import batches
from .records import Chunk, End, OutgoingEncoding, end_key, ids_by_program, read_key
from .sink import Accepts, Fenced, Place, PlaceLost, Whole

IN_FLIGHT_BYTES = 8 << 20
"""After so many bytes all are waited for: the client itself would take any number."""

_TIME, _BOOT, _RUNNING = "time_ms", "boot", "running_ms"
"""Of a place, beside an offset for each partition: what stands behind it was written later. When that was by the
clock on the wall, which somebody may step; and in which run of the machine, and how long that had lasted."""

_WAIT_S = 30.0
_BLOCK_S = 10.0


class KafkaSink:
    """Writes to a topic."""

    def __init__(
        self,
        servers: Sequence[str],
        topic: str,
        transactional_id: str,
        encoding: OutgoingEncoding,
        *,
        client: Mapping[str, Any],
        transaction_timeout_s: float,
    ) -> None:
        """``client``: further options of kafka-python."""
        self._topic = topic
        self._encoding: OutgoingEncoding = encoding
        self._id = transactional_id
        self._client = dict(client)
        self._servers = list(servers)
        self._timeout_s = transaction_timeout_s
        self._place: dict[str, Any] = {}
        self._partitions = 0
        self._broken = False
        self._producer = KafkaLink(
            KafkaProducer,
            self._client,
            bootstrap_servers=self._servers,
            acks="all",
            transactional_id=transactional_id,
            transaction_timeout_ms=int(transaction_timeout_s * 1000),
            compression_type="lz4",
            batch_size=1 << 18,
            linger_ms=5,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            max_block_ms=int(_BLOCK_S * 1000),
            delivery_timeout_ms=int(_WAIT_S * 1000),
            request_timeout_ms=10_000,
            retry_backoff_ms=10,  # of its waits for the transaction before to be over, too
            reconnect_backoff_max_ms=5000,
        )

    @property
    def place(self) -> Place:
        return dict(self._place)

    def open(self, accepts: Accepts) -> End | None:
        """See ``Sink``.

        Raises:
            KafkaError: the cluster cannot be reached, or refuses us.
            Fenced: see ``Sink``.
        """
        with self._consumer() as consumer:
            if not consumer.partitions_for_topic(self._topic):
                raise UnknownTopicOrPartitionError(
                    f"topic {self._topic} (results.topic) is not there, or this user may not describe it"
                )
            self._require(accepts, self._newest_end(consumer))  # before we shut out whoever wrote it
        try:
            producer = self._producer.client()
            producer.init_transactions()
            self._partitions = len(producer.partitions_for(self._topic))
            with self._consumer() as consumer:
                last = self._newest_end(consumer)
                if last is not None and last.partitions != self._partitions:
                    raise KafkaError(
                        f"topic {self._topic} has {self._partitions} partitions, and its results were written to "
                        f"{last.partitions}: vertices have other places now. Make a new topic"
                    )
                parts = self._parts()
                ends = {str(part.partition): end for part, end in consumer.end_offsets(parts).items()}
                self._place = {**ends, **_now()}
        except KafkaError as error:
            raise self._told(error) from error
        self._require(accepts, last)
        return last

    def _require(self, accepts: Accepts, last: End | None) -> None:
        if not accepts(last):
            raise Fenced(f"another daemon writes results to topic {self._topic} as {self._id}")

    def ids_since(self, place: Place | None, transactions: int = 0) -> dict[str, IdColumn]:
        """See ``Sink``.

        Raises:
            KafkaError: the cluster cannot be reached.
        """
        with self._consumer() as consumer:
            return ids_by_program(self._keys_since(consumer, place, transactions))

    def _keys_since(self, consumer: Any, place: Place | None, transactions: int) -> Iterator[bytes]:
        parts = self._parts()
        consumer.assign(parts)
        ends, begins = consumer.end_offsets(parts), consumer.beginning_offsets(parts)
        for part in parts:
            start = begins[part]
            if place is not None:
                start = int(place.get(str(part.partition), -1))
                if not begins[part] <= start <= ends[part]:
                    raise PlaceLost(f"{self._topic}/{part.partition} has no offset {start} any more")
            consumer.seek(part, start)
        whole = None if place is None else Whole(self._partitions, transactions)
        lost: PlaceLost | None = None
        for record in self._until(consumer, ends, records_max=20_000):
            if record.key is None:
                continue
            yield record.key
            if whole is not None and lost is None:
                lost = _missing(whole, record)
        if whole is not None and lost is None:
            lost = _missing(whole, None)
        if place is not None and lost is not None and not self._has_tombstones_since(place):
            raise lost

    def _has_tombstones_since(self, place: Place) -> bool:
        """Whether compaction can have forgotten no tombstone that was written behind a place: then all that it
        took away are records of keys that have newer ones.

        Kafka leaves tombstones for a time. Half of it is ours, as our clock may not be that of the brokers. Within
        one run of the machine it does not help to step that back.
        """
        admin = connect(
            KafkaAdminClient,
            self._client,
            bootstrap_servers=self._servers,
            bootstrap_timeout_ms=5_000,
            request_timeout_ms=10_000,
        )
        try:
            settings = read_topic_settings(admin, [self._topic]).get(self._topic)
        finally:
            disconnect(admin)
        return settings is not None and 0 <= _age_s(place) < settings.tombstones_s / 2

    def _until(
        self, consumer: Any, ends: Mapping[TopicPartition, int], records_max: int | None = None
    ) -> Iterator[Any]:
        return records_until(
            consumer, ends, silent_s=_WAIT_S, records_max=records_max, given_up=lambda: self._broken
        )

    def write(self, chunks: Iterable[Chunk], end: End) -> None:
        """See ``Sink``.

        Raises:
            KafkaError: it may have been written, or not.
            Fenced: see ``Sink``.
        """
        producer = self._producer.client()
        began = time.monotonic()
        try:
            self._write(producer, chunks, end)
        except KafkaError as error:
            fault = fault_of(producer) or error
            if isinstance(fault, ProducerFencedError) and time.monotonic() - began >= self._timeout_s:
                # So a broker that withdraws what takes too long says it, too; ``open`` finds out who it was.
                raise KafkaTimeoutError(
                    f"a transaction took longer than results.transaction_timeout = {self._timeout_s:g} s"
                ) from error
            raise self._told(fault) from error

    def _write(self, producer: KafkaProducer, chunks: Iterable[Chunk], end: End) -> None:
        producer.begin_transaction()
        began = _now()
        numbers = np.zeros(self._partitions, np.int64)
        sent: list[Any] = []
        in_flight = 0
        for chunk in chunks:
            placed = partition_of(chunk.ids, self._partitions)
            numbers += np.bincount(placed, minlength=self._partitions)
            for partition, number, records in batches(chunk, placed):
                sent.append(send_batch(producer, TopicPartition(self._topic, partition), records, number))
                in_flight += len(records)
            if in_flight >= IN_FLIGHT_BYTES:
                _arrived(producer, sent)
                in_flight = 0
        for partition, number in enumerate(numbers.tolist()):
            last = replace(end, records=number, partitions=self._partitions).pack(self._encoding)
            sent.append(producer.send(self._topic, last, end_key(self._encoding), partition=partition))
        ends = sent[-self._partitions :]
        _arrived(producer, sent)
        self._require_behind({str(at): future.value.offset for at, future in enumerate(ends)})
        point("results.sent")
        commit(producer, timeout_s=_WAIT_S, given_up=lambda: self._broken)
        point("results.committed")
        self._place = {str(at): future.value.offset + 1 for at, future in enumerate(ends)}
        self._place |= {**began, _TIME: end.time_ms}

    def _require_behind(self, ends: Mapping[str, int]) -> None:
        """A topic that was made anew takes what is sent to it as the one before did; but its offsets begin again.

        Raises:
            KafkaError: what was sent does not stand behind all that was written before.
        """
        if any(offset < self._place.get(part, 0) for part, offset in ends.items()):
            raise KafkaError(f"topic {self._topic} (results.topic) was deleted and made again")

    def _newest_end(self, consumer: Any) -> End | None:
        """The newest committed one of the first partition: what is behind it belongs to no transaction of ours.

        Raises:
            KafkaError: it cannot be read, or is of another encoding.
        """
        part = TopicPartition(self._topic, 0)
        consumer.assign([part])
        stop, begin = consumer.end_offsets([part])[part], consumer.beginning_offsets([part])[part]
        back = 16
        while stop > begin:
            start = max(stop - back, begin)
            found = None
            consumer.seek(part, start)
            for record in self._until(consumer, {part: stop}):
                if read_key(record.key) is None:
                    self._require_encoding(record.key)
                    found = End.unpack(record.value)
            if found is not None or start == begin:
                return found
            back *= 16
        return None

    def _require_encoding(self, key: bytes) -> None:
        if key != end_key(self._encoding):
            raise KafkaError(
                f"results in topic {self._topic} were not written with results.encoding = {self._encoding!r}: "
                "vertices would have two keys, and a deletion takes back one. Make a new topic"
            )

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = connect(
            KafkaConsumer,
            self._client,
            bootstrap_servers=self._servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            request_timeout_ms=10_000,
        )
        try:
            yield consumer
        finally:
            disconnect(consumer)

    def _parts(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in range(self._partitions)]

    def _told(self, error: BaseException) -> BaseException:
        """Being shut out by its own name, and what an error does not say."""
        if isinstance(error, InvalidTimestampError):
            told: BaseException = KafkaError(
                f"topic {self._topic} takes no records of this time (message.timestamp.after.max.ms and "
                f"message.timestamp.before.max.ms): this machine's clock, or the broker's, is wrong"
            )
            return told
        if isinstance(error, ProducerFencedError):
            return Fenced(f"another daemon writes results to topic {self._topic} as {self._id}")
        return error

    def close(self) -> None:
        """See ``Sink``."""
        self._producer.close()

    def break_off(self) -> None:
        """See ``Sink``."""
        self._broken = True
        self._producer.break_off()


def _now() -> dict[str, Any]:
    """When a place is noted."""
    return {_TIME: time.time_ns() // 10**6, _BOOT: _boot(), _RUNNING: _running_ms()}


def _age_s(place: Place) -> float:
    """Since when it is one, at least; less than 0 where the clock was stepped back behind that."""
    age_ms = time.time_ns() // 10**6 - place.get(_TIME, 0)
    if age_ms >= 0 and place.get(_BOOT) == _boot() != "":
        age_ms = max(age_ms, _running_ms() - place.get(_RUNNING, 0))
    return float(age_ms) / 1000


def _boot() -> str:
    """The machine's run; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _running_ms() -> int:
    """How long that lasts, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6


def _missing(whole: Whole, record: Any) -> PlaceLost | None:
    """What shows now that records were taken out: with this one, or at the end (None)."""
    try:
        if record is None:
            whole.require()
        elif read_key(record.key) is None:
            whole.end(record.partition, End.unpack(record.value).records)
        else:
            whole.record(record.partition)
    except PlaceLost as lost:
        return lost
    return None


def _arrived(producer: KafkaProducer, sent: list[Any]) -> None:
    """Wait for what was sent, and forget it.

    Raises:
        KafkaError: something did not arrive.
    """
    producer.flush(timeout=_WAIT_S)
    for future in sent:
        if not future.succeeded():
            raise future.exception or KafkaTimeoutError("a record was not acknowledged")
    sent.clear()
