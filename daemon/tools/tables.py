"""Files of columns: Parquet, and Arrow's files (Feather) and streams; PyArrow reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..ingest.decode_columns import COLUMNS, Bad, Reason, shown

ARROW = (".arrow", ".feather")
SUFFIXES = (".parquet", *ARROW)
BATCH_ROWS = 1 << 20
_ARROW_FILE = b"ARROW1"


def batches(path: Path) -> Iterator[tuple[Any, float]]:
    """Record batches of at most ``BATCH_ROWS`` rows, of those columns that mean something to us, and how much of
    the file is read with each, from 0 to 1.

    Raises:
        Bad: none of its columns is ``src``.
        pyarrow.ArrowException, OSError, UnicodeDecodeError: it is damaged, or cannot be read.
    """
    return _arrow(path) if path.suffix in ARROW else _parquet(path)


def _our_names(there: Sequence[str]) -> list[str]:
    names = [name for name in there if name in COLUMNS]
    if "src" not in names:
        allowed = "the columns must be src and dst, perhaps op, weight, ts"
        raise Bad(Reason.BAD_COLUMN, f"{allowed}; they are {shown(there)}")
    return names


def _parquet(path: Path) -> Iterator[tuple[Any, float]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        names = _our_names(file.schema_arrow.names)
        read, rows = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            read += batch.num_rows
            yield batch, read / rows


def _arrow(path: Path) -> Iterator[tuple[Any, float]]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_ARROW_FILE)) == _ARROW_FILE
        source.seek(0)
        opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
        there = opened(source).schema.names
        names = _our_names(there)
        options = pa.ipc.IpcReadOptions(included_fields=[at for at, name in enumerate(there) if name in names])
        source.seek(0)
        reader = opened(source, options=options)
        of_file = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for number, batch in enumerate(of_file, 1):
            share = number / reader.num_record_batches if is_file else source.tell() / source.size()
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(begin, BATCH_ROWS), share
