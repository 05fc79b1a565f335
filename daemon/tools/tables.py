"""Files of columns: Parquet, and Arrow's files (Feather) and streams; PyArrow reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...gpma.index.ids import IntColumn
from ..ingest.arrow_extra import is_readable
from ..ingest.decode_columns import COLUMNS, Bad, BadRows, Reason, Rules, shown
from ..ingest.named_columns import NamedColumns
from ..ingest.sift import Sifted
from ..records.event_time import NO_TIME
from ..records.stream import UpdateBlock

ARROW = (".arrow", ".feather")
SUFFIXES = (".parquet", *ARROW)
BATCH_ROWS = 1 << 20
_ARROW_FILE = b"ARROW1"


class Unreadable(Exception):
    """A file is not what its name says; the message goes on behind its name."""


class Batch(NamedTuple):
    """Rows of a file: the good ones, the places of the bad ones by what is wrong with them, how many there are in
    all, and how much of the file is read with them, from 0 to 1."""

    good: UpdateBlock | None
    refused: Sequence[tuple[IntColumn, BadRows]]
    rows: int
    share: float


def batch(decode: Callable[[], Sifted], rows: int, share: float) -> Batch:
    """What so many rows come to.

    Raises:
        Bad: the columns are none; where one of them is the only row, and bad, it is set aside as others are.
    """
    try:
        sifted = decode()
    except BadRows as error:
        return Batch(None, [(np.arange(rows), error)], rows, share)
    return Batch(sifted.block, [(refused.place, refused.error) for refused in sifted.refused], rows, share)


def with_ours(names: NamedColumns | None, there: Iterable[str]) -> NamedColumns | None:
    """The names of columns in a file that has these: what is not named is called as we call it, and
    such a weight may be missing in an object."""
    if names is None:
        return None
    taken = names.header_names()
    ours: dict[str, Any] = {
        name: name
        for name in ("op", "weight", "ts")
        if name not in names.paths and name in there and name not in taken
    }
    return replace(names, **ours, lenient="weight" in ours)


def our_names(there: Sequence[str], names: NamedColumns | None) -> dict[str, str]:
    """Our name by that of each column of a file that means something to us, in its order.

    Raises:
        Bad: none of its columns is ``src``, or one that is named is not there.
    """
    ours = {name: name for name in COLUMNS} if names is None else names.header_names()
    needed = ["src"] if names is None else [*ours]
    if not set(needed) <= set(there):
        allowed = "src and dst, perhaps op, weight, ts" if names is None else ", ".join(ours)
        raise Bad(Reason.BAD_COLUMN, f"the columns must be {allowed}; they are {shown([*there])}")
    return {name: ours[name] for name in there if name in ours}


def batches(path: Path, names: NamedColumns | None, rules: Rules) -> Iterator[Batch]:
    """A file in batches of at most ``BATCH_ROWS`` rows.

    Raises:
        Bad: its columns are not those of edges.
        Unreadable: PyArrow is not there; or the file is damaged.
        OSError: it cannot be read.
    """
    if not is_readable():
        raise Unreadable(f"cannot be read: {path.suffix} files need PyArrow: pip install 'graphtide[arrow]'")
    import pyarrow as pa

    from ..ingest.decode_arrow import decode_batch

    try:
        for rows, share in _arrow(path, names) if path.suffix in ARROW else _parquet(path, names):
            yield batch(partial(decode_batch, rows, rules, NO_TIME), rows.num_rows, share)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # PyArrow has no word of its own for damage: it is an OSError without a number, or a name of no text.
        form = "Arrow" if path.suffix in ARROW else "Parquet"
        raise Unreadable(f"is no {form} that can be read: {str(error)[:200]}") from None


def _parquet(path: Path, names: NamedColumns | None) -> Iterator[tuple[Any, float]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        names = with_ours(names, file.schema_arrow.names)
        ours = our_names(file.schema_arrow.names, names)
        read, rows = 0, max(file.metadata.num_rows, 1)
        for some in file.iter_batches(BATCH_ROWS, columns=[*ours]):
            read += some.num_rows
            yield _named(some, ours, names), read / rows


def _arrow(path: Path, names: NamedColumns | None) -> Iterator[tuple[Any, float]]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_ARROW_FILE)) == _ARROW_FILE
        source.seek(0)
        opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
        there = opened(source).schema.names
        names = with_ours(names, there)
        ours = our_names(there, names)
        options = pa.ipc.IpcReadOptions(included_fields=[at for at, name in enumerate(there) if name in ours])
        source.seek(0)
        reader = opened(source, options=options)
        of_file = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for number, some in enumerate(of_file, 1):
            share = number / reader.num_record_batches if is_file else source.tell() / source.size()
            for begin in range(0, some.num_rows, BATCH_ROWS):
                yield _named(some.slice(begin, BATCH_ROWS), ours, names), share


def _named(some: Any, ours: Mapping[str, str], names: NamedColumns | None) -> Any:
    """A record batch by our names, its operations, too."""
    if names is None:
        return some
    import pyarrow as pa

    by_name = {ours[name]: column for name, column in zip(some.schema.names, some.columns, strict=True)}
    if "op" in by_name and names.op_values:
        by_name["op"] = _ops(by_name["op"], names.op_values)
    return pa.RecordBatch.from_arrays([*by_name.values()], [*by_name])


def _ops(column: Any, op_values: Mapping[str, str]) -> Any:
    """Operations by our names; what stands for none is shown as such by the check that follows."""
    import pyarrow as pa

    texts = column.cast(pa.string()).fill_null("null").dictionary_encode()
    ours = [op_values.get(text, f"{text} (not in op_values)") for text in texts.dictionary.to_pylist()]
    return pa.array(ours, pa.string()).take(texts.indices)
