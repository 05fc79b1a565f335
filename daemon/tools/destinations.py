"""Where produced records go: a new file of a spool, or a Kafka topic."""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import GraphtideError, NotWritten
from ..os_errors import said, why
from ..records.barrier import HEADERS as BARRIER_HEADERS
from ..records.barrier import barrier_value
from ..records.encodings import CONTENT_TYPES, Encoding
from ..records.spool_format import SpoolWriter, whole_bytes
from ..records.stream import Partition

_BLOCK_MS = 10_000
_IN_FLIGHT_MAX, _IN_FLIGHT_BYTES = 1 << 14, 64 << 20


class ProduceFailed(GraphtideError):
    """The destination did not take a record."""

    code = "produce-failed"
    retriable = True


class Destination(Protocol):
    """Where records go."""

    partitions: int

    def send(self, partition: int, *payloads: bytes) -> None: ...

    def barrier(self) -> None:
        """Order what was sent before what comes, in all partitions."""
        ...

    def finish(self) -> dict[Partition, int]:
        """Return once everything is safe: the next offsets, which a ``wait`` for it needs."""
        ...

    def close(self) -> None: ...


class SpoolDestination:
    """A new file of a spool directory; none stays when nothing was written."""

    partitions = 1

    def __init__(self, directory: Path | str, *, name: str | None = None, encoding: Encoding = "msgpack") -> None:
        self._writer = SpoolWriter(directory, name=name, encoding=encoding)

    def send(self, partition: int, *payloads: bytes) -> None:
        """
        Raises:
            NotWritten: the file takes no more; the records that it has whole stay.
        """
        with self._told():
            for payload in payloads:
                self._writer.append(payload)
            self._writer.flush()

    def barrier(self) -> None:
        """Nothing to do: one file is in order."""

    def finish(self) -> dict[Partition, int]:
        with self._told():
            self._writer.sync()
        return {Partition(self._writer.name): self._writer.offset} if self._writer.offset else {}

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._writer.path
            whole = whole_bytes(path)  # a daemon may have read so far
            self._writer.give_up(whole)
            rest = f"; it has records of {whole} bytes already, so send all of it again" if whole else ""
            raise NotWritten(f"spool file {path}: {why(error)}{rest}", {"file": str(path)}) from error

    def close(self) -> None:
        self._writer.close()
        if not self._writer.offset:
            self._writer.path.unlink(missing_ok=True)


class KafkaDestination:
    """A topic, written idempotently: a retry neither repeats nor reorders records."""

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        client: Mapping[str, Any] | None = None,
        encoding: Encoding = "msgpack",
    ) -> None:
        """
        Raises:
            ProduceFailed: the cluster cannot be reached, or has no such topic.
            ConfigError: it refuses the client, or the client its settings.
        """
        from kafka import KafkaAdminClient, KafkaProducer
        from kafka.errors import KafkaError

        from ..ingest.kafka_client import command_error, command_options, connect
        from ..ingest.topic_settings import meant

        self.topic = topic
        self._error = KafkaError
        self._content_type = next(name for name, known in CONTENT_TYPES.items() if known == encoding).encode()
        self._in_flight: deque[tuple[Any, int]] = deque()  # with their bytes
        self._in_flight_bytes = 0
        self._next: dict[Partition, int] = {}
        self._name, self._barriers = uuid.uuid4().hex, 0
        try:
            options = command_options(servers)
            with contextlib.closing(connect(KafkaAdminClient, client or {}, **options)) as admin:
                (described,) = admin.describe_topics([topic])
                self.partitions = len(described["partitions"])
                if not self.partitions:
                    hint = meant([topic], admin.list_topics())
                    raise ProduceFailed(f"Kafka at {servers} has no topic {topic}: create it there first{hint}")
            self._producer = connect(
                KafkaProducer,
                client or {},
                **options,
                acks="all",
                enable_idempotence=True,
                compression_type="lz4",
                max_request_size=64 << 20,
                allow_auto_create_topics=False,
                max_block_ms=_BLOCK_MS,
            )
        except KafkaError as error:
            raise command_error(servers, error, ProduceFailed, "; see whether a broker runs there") from error

    def send(self, partition: int, *payloads: bytes) -> None:
        """
        Raises:
            ProduceFailed: a record was refused.
        """
        for payload in payloads:
            self._send(partition, payload, (("content-type", self._content_type),))

    def barrier(self) -> None:
        """One record in each partition; an idempotent producer keeps it between what is sent before and after.

        Raises:
            ProduceFailed: a record was refused.
        """
        self._barriers += 1
        value = barrier_value(f"{self._name}-{self._barriers}")
        for partition in range(self.partitions):
            self._send(partition, value, BARRIER_HEADERS)

    def send_record(
        self, partition: int, payload: bytes, headers: Sequence[tuple[str, bytes]], *, key: bytes | None
    ) -> None:
        """A record with headers and a key of its own.

        Raises:
            ProduceFailed: a record was refused.
        """
        self._send(partition, payload, headers, key)

    def _send(
        self, partition: int, payload: bytes, headers: Sequence[tuple[str, bytes]], key: bytes | None = None
    ) -> None:
        try:
            future = self._producer.send(self.topic, payload, key=key, partition=partition, headers=list(headers))
        except self._error as error:
            raise ProduceFailed(f"topic {self.topic}: {said(error)}") from error
        self._in_flight.append((future, len(payload)))
        self._in_flight_bytes += len(payload)
        while len(self._in_flight) > _IN_FLIGHT_MAX or self._in_flight_bytes > _IN_FLIGHT_BYTES:
            self._settle()

    def finish(self) -> dict[Partition, int]:
        self._producer.flush()
        while self._in_flight:
            self._settle()
        return dict(self._next)

    def close(self) -> None:
        from ..ingest.kafka_client import disconnect

        disconnect(self._producer, timeout_s=5.0)

    def _settle(self) -> None:
        future, size = self._in_flight.popleft()
        self._in_flight_bytes -= size
        try:
            sent = future.get(timeout=130)
        except self._error as error:
            raise ProduceFailed(f"topic {self.topic}: {said(error)}") from error
        self._next[Partition(self.topic, sent.partition)] = sent.offset + 1
