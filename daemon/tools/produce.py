"""Producing: files of edges become columnar records in a spool or a Kafka topic.

Each edge goes to the partition in which it belongs (``records.placement``), and a record holds only edges of its
partition.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json as encoder
import lzma
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import zstandard

from ...gpma.edges import Op, Ops
from ...gpma.index.ids import IdColumn, IntColumn, StringColumn, concatenate_ids
from ..errors import GraphtideError
from ..ingest.decode import Decoder
from ..records.columns import UpdateColumns
from ..records.encodings import CONTENT_TYPE
from ..records.placement import canonical, partition_of
from ..records.spool_format import SpoolWriter
from ..records.stream import Partition, RawRecord, offsets_to_wire

EDGES_PER_RECORD = 32_768
"""At 29 bytes an edge, all columns present, a record stays below Kafka's default limit of 1 MiB."""

_BLOCK_BYTES = 8 << 20
_IN_FLIGHT_MAX = 64
_ENCODINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


class BadInput(GraphtideError):
    """A file cannot be read as edges; the message says which file, where and why."""

    code = "bad-input"


class ProduceFailed(GraphtideError):
    """The destination did not take a record."""

    code = "produce-failed"
    retriable = True


# -- windows ------------------------------------------------------------------------------------------------


def window_events(
    src: IntColumn, dst: IntColumn, ts: npt.NDArray[np.int64], window: int
) -> tuple[IntColumn, IntColumn, Ops, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A stream of inserts as a sliding window: an edge lives ``window`` after its latest insert.

    ``src``, ``dst``, ``ts``: int64[n], ``ts`` never falling; ``window`` in the unit of ``ts``. Returns the
    columns src, dst, ops, ts of inserts and deletes in order of time, and for each the index of the insert
    that caused it. At one time deletes come before inserts: an insert at the very end of the window finds
    the edge gone and puts it back. Deletes that fall due after the last insert are left out.
    """
    n = ts.size
    if n == 0:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.uint8), none, none
    by_edge = np.lexsort((np.arange(n), dst, src))
    same = np.zeros(n, bool)
    same[:-1] = (src[by_edge][1:] == src[by_edge][:-1]) & (dst[by_edge][1:] == dst[by_edge][:-1])
    next_ts = np.empty(n, np.int64)
    next_ts[:-1] = ts[by_edge][1:]
    due = ts[by_edge] + window
    expires = (~same | (next_ts >= due)) & (due <= ts[-1])
    causes = np.concatenate([np.sort(by_edge[expires]), np.arange(n)])
    n_deletes = int(np.count_nonzero(expires))
    times = ts[causes]
    times[:n_deletes] += window
    # Stable, and deletes stand first: so they come first among equal times.
    order = np.argsort(times, kind="stable")
    ops = np.full(causes.size, Op.INSERT, np.uint8)
    ops[:n_deletes] = Op.DELETE
    causes = causes[order]
    return src[causes], dst[causes], ops[order], times[order], causes


def windowed(columns: UpdateColumns, window_seconds: float) -> UpdateColumns:
    """Timed inserts as a sliding window, deletes added: see ``window_events``.

    Raises:
        BadInput: there are deletes or string ids already, or times are missing or out of order.
    """
    if isinstance(columns.src, StringColumn) or isinstance(columns.dst, StringColumn):
        raise BadInput("a window needs integer ids")
    if columns.timestamps_ms is None or (columns.ops != Op.INSERT).any():
        raise BadInput("a window needs inserts only, each with its time")
    if (np.diff(columns.timestamps_ms) < 0).any():
        raise BadInput("a window needs edges in order of their time")
    window_ms = round(window_seconds * 1000)
    src, dst, ops, ts, causes = window_events(columns.src, columns.dst, columns.timestamps_ms, window_ms)
    return UpdateColumns(src, dst, ops, None if columns.weights is None else columns.weights[causes], ts)


def _concatenate(parts: Sequence[UpdateColumns]) -> UpdateColumns:
    def optional(name: str, absent: float, dtype: Any) -> Any:
        columns = [getattr(part, name) for part in parts]
        if all(column is None for column in columns):
            return None
        filled = (
            np.full(len(part), absent, dtype) if column is None else column
            for part, column in zip(parts, columns, strict=True)
        )
        return np.concatenate(list(filled))

    return UpdateColumns(
        concatenate_ids([part.src for part in parts]),
        concatenate_ids([part.dst for part in parts]),
        np.concatenate([part.ops for part in parts]),
        optional("weights", 1.0, np.float32),
        optional("timestamps_ms", time.time_ns() // 10**6, np.int64),
    )


# -- files --------------------------------------------------------------------------------------------------


def read_columns(path: Path, *, vertex_ids: Literal["int", "string"] = "int") -> Iterator[UpdateColumns]:
    """The updates of one file, in big blocks.

    By name, with an optional ``.gz``, ``.xz`` or ``.zst``: ``.csv`` (with a header line), ``.json`` or
    ``.jsonl`` (JSON lines), ``.tsv`` with five fields (events: ``op src dst weight ts``, op I or D, ``-`` for
    none, ts in seconds); anything else is an edge list (``src dst [weight [ts]]``, MatrixMarket headers allowed).

    Raises:
        BadInput: a line is no edge; the message says where.
    """
    name = path.with_suffix("") if path.suffix in _OPENERS else path
    if name.suffix == ".tsv" and _has_events(path):
        for offset, block in _blocks(path):
            yield _events(block, f"{path}, block at byte {offset}", vertex_ids)
        return
    decoder = Decoder(vertex_ids=vertex_ids, weights="any")
    encoding = _ENCODINGS.get(name.suffix, "el")
    for offset, block in _blocks(path):
        record = RawRecord(Partition(str(path)), offset, offset + len(block), block, encoding, timestamp_ms=0)
        decoded = decoder.decode(record)
        for bad in decoded.bad:
            raise BadInput(f"{path}, byte {bad.offset}: {bad.detail}", {"reason": bad.reason})
        if (updates := decoded.block) is not None:
            times = updates.timestamps_ms
            stamped = isinstance(times, np.ndarray) and bool(times.any())
            yield UpdateColumns(
                updates.src,
                updates.dst,
                updates.ops,
                updates.weights,
                cast(npt.NDArray[np.int64], times) if stamped else None,
            )


def read_updates(path: Path, *, vertex_ids: Literal["int", "string"] = "int") -> UpdateColumns:
    """The updates of one file, all at once: see ``read_columns``; weights are 1.0 where the file has none."""
    parts = list(read_columns(path, vertex_ids=vertex_ids))
    if not parts:
        raise BadInput(f"{path} holds no edges")
    whole = _concatenate(parts)
    weights = np.ones(len(whole), np.float32) if whole.weights is None else whole.weights
    return UpdateColumns(whole.src, whole.dst, whole.ops, weights, whole.timestamps_ms)


_OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".zst": zstandard.open}


def _blocks(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Blocks of whole lines with the offset of each."""
    opened = cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
    with opened as file:
        offset, rest = 0, b""
        try:
            while piece := file.read(_BLOCK_BYTES):
                stop = piece.rfind(b"\n") + 1
                if stop == 0:
                    rest += piece
                    continue
                block, rest = rest + piece[:stop], piece[stop:]
                yield offset, block
                offset += len(block)
        except (EOFError, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile) as error:
            raise BadInput(f"{path} cannot be decompressed: {error}") from error
        if rest:
            yield offset, rest


def _has_events(path: Path) -> bool:
    """Whether the first line has the five fields of an event: a line of an edge list has at most four."""
    with contextlib.closing(_blocks(path)) as blocks:
        _, block = next(blocks, (0, b""))
    first = block.partition(b"\n")[0]
    return len(first.split()) == 5 and not first.startswith((b"#", b"%"))


def _events(block: bytes, where: str, vertex_ids: str) -> UpdateColumns:
    fields = block.split()
    if len(fields) != 5 * (block.count(b"\n") + (not block.endswith(b"\n"))):
        raise BadInput(f"{where}: every line must have five fields: op src dst weight ts")
    op = np.array(fields[0::5], dtype="S")
    inserts = op == b"I"
    if not (inserts | (op == b"D")).all():
        raise BadInput(f"{where}: an op is neither I nor D")
    try:
        ids = [_event_ids(fields[column::5], vertex_ids) for column in (1, 2)]
        weight = np.array(fields[3::5], dtype="S")
        ts = np.array(fields[4::5], dtype="S")
        weights = None
        if (given := weight != b"-").any():
            weights = np.ones(weight.size, np.float32)
            weights[given] = weight[given].astype(np.float64)
        times = None if (ts == b"-").any() else ts.astype(np.int64) * 1000
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from error
    return UpdateColumns(ids[0], ids[1], np.where(inserts, Op.INSERT, Op.DELETE).astype(np.uint8), weights, times)


def _event_ids(fields: list[bytes], vertex_ids: str) -> IdColumn:
    if vertex_ids == "string":
        return StringColumn.of(field.decode() for field in fields)
    return np.array(fields, dtype="S").astype(np.int64)


# -- destinations -------------------------------------------------------------------------------------------


class Destination(Protocol):
    """Where records go."""

    partitions: int

    def send(self, partition: int, payload: bytes) -> None: ...

    def finish(self) -> dict[Partition, int]:
        """Return once everything is safe: the next offsets, which a ``wait`` for it needs."""
        ...

    def close(self) -> None: ...


class SpoolDestination:
    """A new file of a spool directory; none stays when nothing was written."""

    partitions = 1

    def __init__(self, directory: Path | str, *, name: str | None = None) -> None:
        self._writer = SpoolWriter(directory, name=name)

    def send(self, partition: int, payload: bytes) -> None:
        self._writer.append(payload)
        self._writer.flush()

    def finish(self) -> dict[Partition, int]:
        self._writer.sync()
        return {Partition(self._writer.name): self._writer.offset} if self._writer.offset else {}

    def close(self) -> None:
        self._writer.close()
        if not self._writer.offset:
            self._writer.path.unlink(missing_ok=True)


class KafkaDestination:
    """A topic, written idempotently: a retry neither repeats nor reorders records."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str] | str,
        topic: str,
        *,
        client: Mapping[str, Any] | None = None,
        compression: str | None = "lz4",
    ) -> None:
        """
        Raises:
            ProduceFailed: the cluster cannot be reached, or has no such topic.
        """
        from kafka import KafkaAdminClient, KafkaProducer
        from kafka.errors import KafkaError

        from ..ingest.kafka_client import connect

        servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        self.topic = topic
        self._error = KafkaError
        self._in_flight: deque[Any] = deque()
        self._next: dict[Partition, int] = {}
        try:
            options: dict[str, Any] = {"bootstrap_servers": servers, "bootstrap_timeout_ms": 10_000}
            with contextlib.closing(connect(KafkaAdminClient, client or {}, **options)) as admin:
                (described,) = admin.describe_topics([topic])
            self.partitions = len(described["partitions"])
            if not self.partitions:
                raise ProduceFailed(f"Kafka at {','.join(servers)} has no topic {topic}")
            self._producer = connect(
                KafkaProducer,
                client or {},
                **options,
                acks="all",
                enable_idempotence=True,
                compression_type=compression,
                max_request_size=64 << 20,
                allow_auto_create_topics=False,
                max_block_ms=10_000,
            )
        except KafkaError as error:
            raise ProduceFailed(f"Kafka at {','.join(servers)}: {type(error).__name__}: {error}") from error

    def send(self, partition: int, payload: bytes) -> None:
        """
        Raises:
            ProduceFailed: a record was refused.
        """
        headers = [("content-type", CONTENT_TYPE.encode())]
        try:
            future = self._producer.send(self.topic, payload, partition=partition, headers=headers)
        except self._error as error:
            raise ProduceFailed(f"topic {self.topic}: {type(error).__name__}: {error}") from error
        self._in_flight.append(future)
        while len(self._in_flight) > _IN_FLIGHT_MAX:
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
        try:
            sent = self._in_flight.popleft().get(timeout=130)
        except self._error as error:
            raise ProduceFailed(f"topic {self.topic}: {type(error).__name__}: {error}") from error
        self._next[Partition(self.topic, sent.partition)] = sent.offset + 1


# -- producing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Produced:
    """How many updates were written, and the next offset of every partition that got some."""

    updates: int
    offsets: dict[Partition, int]


def produce(
    columns: Iterable[UpdateColumns],
    destination: Destination,
    *,
    undirected: bool = False,
    edges_per_record: int = EDGES_PER_RECORD,
) -> Produced:
    """Write updates, each edge to the partition that it belongs to, in order within the partition.

    Args:
        undirected: put every edge into canonical order first, as producers for undirected graphs must.
        edges_per_record: the most edges of one record.
    """
    updates = 0
    for block in columns:
        block = canonical(block) if undirected else block
        updates += len(block)
        for partition, part in _by_partition(block, destination.partitions):
            for start in range(0, len(part), edges_per_record):
                chunk = np.arange(start, min(start + edges_per_record, len(part)))
                destination.send(partition, part.take(chunk).encode())
    return Produced(updates, destination.finish())


def _by_partition(columns: UpdateColumns, partitions: int) -> Iterator[tuple[int, UpdateColumns]]:
    if partitions == 1:
        yield 0, columns
        return
    placed = partition_of(columns.src, partitions)
    order = np.argsort(placed, kind="stable")
    bounds = np.searchsorted(placed[order], np.arange(partitions + 1))
    for partition, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        if start < stop:
            yield partition, columns.take(order[start:stop])


def read_files(
    files: Iterable[Path | str],
    *,
    vertex_ids: Literal["int", "string"] = "int",
    window_seconds: float | None = None,
) -> Iterator[UpdateColumns]:
    """The updates of files, one after the other; with a window, all at once (they must fit into memory).

    Args:
        window_seconds: an edge is deleted so long after its latest insert (see ``windowed``).

    Raises:
        BadInput: a line is no edge, or the files do not suit a window.
    """
    blocks = itertools.chain.from_iterable(read_columns(Path(file), vertex_ids=vertex_ids) for file in files)
    if window_seconds is None:
        yield from blocks
        return
    parts = list(blocks)
    if parts:
        whole = windowed(_concatenate(parts), window_seconds)
        for start in range(0, len(whole), 1 << 20):
            yield whole.take(np.arange(start, min(start + (1 << 20), len(whole))))


def produce_files(
    files: Iterable[Path | str],
    *,
    spool: Path | str | None = None,
    kafka: str | None = None,
    topic: str | None = None,
    json: bool = False,
    vertex_ids: Literal["int", "string"] = "int",
    undirected: bool = False,
    window_seconds: float | None = None,
) -> int:
    """``graphtide produce``: write files to a spool or a topic, and print the offsets that a ``wait`` needs."""
    destination: Destination
    if spool is not None:
        destination = SpoolDestination(spool)
    else:
        assert kafka is not None and topic is not None
        destination = KafkaDestination(kafka, topic)
    with contextlib.closing(destination):
        columns = read_files(files, vertex_ids=vertex_ids, window_seconds=window_seconds)
        produced = produce(columns, destination, undirected=undirected)
    offsets = offsets_to_wire(produced.offsets)
    if json:
        print(encoder.dumps({"updates": produced.updates, "offsets": offsets}))
    else:
        print(f"{produced.updates} updates written; to wait for them: --min_offsets '{encoder.dumps(offsets)}'")
    return 0
