"""Producing: files of updates become columnar records in a spool or a Kafka topic.

Each edge goes to the partition in which it belongs (``records.placement``), and a record holds only edges of its
partition. Where the order between partitions matters, barriers keep it (``ordering``).
"""

from __future__ import annotations

import contextlib
import itertools
import json as encoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ingest.registry import Registry
from ..records.columns import UpdateColumns, canonical
from ..records.encodings import Encoding, SchemaKind
from ..records.registry_records import FORMS
from ..records.stream import Partition, offsets_to_wire
from .destinations import Destination, KafkaDestination, SpoolDestination
from .files import Accepts, LeftOut, concatenated, read_columns, require_readable, timed
from .windows import windowed

EDGES_PER_RECORD = 32_768
"""At 29 bytes an edge, all columns present, a record stays below Kafka's default limit of 1 MiB."""

REFUSED = 7
"""The exit code where updates were refused; the others are written."""


@dataclass(frozen=True, slots=True)
class Produced:
    """How many updates were written, and the next offset of every partition that got some."""

    updates: int
    offsets: dict[Partition, int]


RecordsOf = Callable[[UpdateColumns], Sequence[bytes]]


def _columnar(part: UpdateColumns) -> Sequence[bytes]:
    return [part.encode()]


def produce(
    columns: Iterable[UpdateColumns],
    destination: Destination,
    *,
    undirected: bool = False,
    edges_per_record: int = EDGES_PER_RECORD,
    records_of: RecordsOf = _columnar,
) -> Produced:
    """Write updates, each edge to the partition that it belongs to, in order within the partition.

    Args:
        undirected: put every edge into canonical order first, as producers for undirected graphs must.
        edges_per_record: the most edges of one record.
        records_of: makes the records of so many edges at most.
    """
    updates = 0

    def counted() -> Iterator[UpdateColumns]:
        nonlocal updates
        for block in columns:
            updates += len(block)
            yield canonical(block) if undirected else block

    parts = ((0, block) for block in counted()) if destination.partitions == 1 else _spread(counted(), destination)
    for partition, part in parts:
        for start in range(0, len(part), edges_per_record):
            chunk = np.arange(start, min(start + edges_per_record, len(part)))
            destination.send(partition, *records_of(part.take(chunk)))
    return Produced(updates, destination.finish())


def _spread(columns: Iterable[UpdateColumns], destination: Destination) -> Iterator[tuple[int, UpdateColumns]]:
    """What goes to each partition, in order; barriers are written on the way."""
    # Both load the compiler: a spool has one partition, and must not wait for it.
    from ..records.placement import partition_of
    from .ordering import Ordering

    ordering = Ordering()
    for block in columns:
        placed = partition_of(block.src, destination.partitions)
        barriers = ordering.barriers(block, placed, destination.partitions)
        for start, stop in itertools.pairwise([0, *barriers, len(block)]):
            yield from _by_partition(block, placed, np.arange(start, stop), destination.partitions)
            if stop < len(block):
                destination.barrier()
    if ordering.open_at_end:
        destination.barrier()


def _by_partition(
    columns: UpdateColumns, placed: npt.NDArray[np.int32], rows: npt.NDArray[np.int64], partitions: int
) -> Iterator[tuple[int, UpdateColumns]]:
    order = rows[np.argsort(placed[rows], kind="stable")]
    bounds = np.searchsorted(placed[order], np.arange(partitions + 1))
    for partition, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        if start < stop:
            yield partition, columns.take(order[start:stop])


def read_files(
    files: Iterable[Path | str], accepts: Accepts, left_out: LeftOut, *, window_seconds: float | None = None
) -> Iterator[UpdateColumns]:
    """The updates of files, one after the other; with a window, all at once (they must fit into memory).

    Args:
        window_seconds: an edge is deleted so long after its latest insert (see ``windowed``).

    Raises:
        BadInput: see ``read_columns``; or the files do not suit a window.
    """
    blocks = map(
        timed, itertools.chain.from_iterable(read_columns(Path(file), accepts, left_out) for file in files)
    )
    if window_seconds is None:
        yield from blocks
        return
    parts = list(blocks)
    if parts:
        whole = windowed(concatenated(parts), window_seconds)
        for start in range(0, len(whole), 1 << 20):
            yield whole.take(np.arange(start, min(start + (1 << 20), len(whole))))


def produce_files(
    files: Iterable[Path | str],
    *,
    spool: Path | str | None = None,
    kafka: str | None = None,
    topic: str | None = None,
    client: Mapping[str, Any] | None = None,
    json: bool = False,
    accepts: Accepts | None = None,
    undirected: bool = False,
    window_seconds: float | None = None,
    registry: Registry | None = None,
    schema: SchemaKind = "AVRO",
) -> int:
    """``graphtide produce``: write files to a spool or a topic, and print what was written and what was not.

    ``client``: settings of kafka-python; ``registry``: gets a schema of the type ``schema``, and every update is a
    record of that schema. Returns the exit code.

    Raises:
        BadInput, OSError: a file cannot be read; where its beginning tells, nothing is written.
        SchemaRefused, RegistryAway: the registry does not take the schema.
    """
    accepts = replace(accepts or Accepts(), directed=not undirected)
    paths = [Path(file) for file in files]
    for path in paths:
        require_readable(path, accepts)  # before anything is written
    records_of: RecordsOf = _columnar
    encoding: Encoding = "msgpack"
    if registry is not None:
        subject = f"{topic or 'graphtide'}-value"
        form = FORMS[schema]
        number = registry.register(subject, form.schema(accepts.vertex_ids), schema)
        records_of, encoding = (lambda part: form.records(part, number)), "registry"
    destination: Destination
    if spool is not None:
        destination = SpoolDestination(spool, encoding=encoding)
    else:
        assert kafka is not None and topic is not None
        destination = KafkaDestination(kafka, topic, client=client, encoding=encoding)
    left_out = LeftOut()
    with contextlib.closing(destination):
        columns = read_files(paths, accepts, left_out, window_seconds=window_seconds)
        produced = produce(columns, destination, undirected=undirected, records_of=records_of)
    _report(produced, left_out, as_json=json)
    return REFUSED if left_out.refused else 0


def _report(produced: Produced, left_out: LeftOut, *, as_json: bool) -> None:
    offsets = offsets_to_wire(produced.offsets)
    if as_json:
        print(encoder.dumps({"updates": produced.updates, "offsets": offsets, **left_out.as_json()}))
        return
    wait = f"graphtide query ADDRESS wait --min_offsets '{encoder.dumps(offsets)}'"
    how = f"; to wait until answers show them: {wait}" if offsets else ""
    print(f"{produced.updates} {_updates(produced.updates)} written{how}")
    report_left_out(left_out)


def report_left_out(left_out: LeftOut) -> None:
    """Print what was left out, and what is in doubt, for people."""
    for doubt in left_out.doubts.values():
        print(doubt)
    if left_out.self_loops:
        print(f"{left_out.self_loops} self-loops left out, as graph.self_loops says")
    if left_out.refused:
        from ..terminal import output, table

        refused = left_out.refused.total()
        print(f"{refused} {_updates(refused)} refused, which the daemon could not apply:")
        rows: list[tuple[str, int | None, str]] = []
        for reason, number in left_out.refused.items():
            first, *others = left_out.places[reason]
            rows += [(reason, number, first), *(("", None, place) for place in others)]
        output().print(table(("reason", "updates", "first"), rows))


def _updates(count: int) -> str:
    return "update" if count == 1 else "updates"
