"""Files of NumPy: ``.npz`` with a column an array, or a sparse matrix; ``.npy`` with pairs, or with fields."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from ..ingest.decode_columns import OPS_BY_NAME, Bad, Reason, Rules, check_length, why_no_op
from ..ingest.decode_records import decode_msgpack
from ..ingest.named_columns import NamedColumns, why_no_value
from ..records.encodings import RECORD_VERSION
from ..records.event_time import NO_TIME
from .tables import BATCH_ROWS, Batch, Unreadable, batch, our_names, with_ours

SUFFIXES = (".npz", ".npy")
Array = npt.NDArray[Any]
_NO_FILE = ValueError, KeyError, TypeError, EOFError, RuntimeError, TokenError, zipfile.BadZipFile, zlib.error
"""What NumPy, and what it reads with, say of a file that is none, or is damaged."""


def batches(path: Path, names: NamedColumns | None, rules: Rules) -> Iterator[Batch]:
    """A file in batches of at most ``BATCH_ROWS`` rows.

    Raises:
        Bad: it has no columns that are edges.
        Unreadable: it is damaged, or holds Python objects.
        OSError: it cannot be read.
    """
    given = _columns(path, names)
    for name, column in given.items():
        if column.ndim != 1:
            raise Bad(Reason.BAD_COLUMN, f"{name} has the shape {column.shape}; a column has one dimension")
    n = len(given["src"])
    for name, column in given.items():
        check_length(name, len(column), n)
    for begin in range(0, n, BATCH_ROWS):
        stop = min(begin + BATCH_ROWS, n)
        packed = {name: _packed(name, column[begin:stop], names, rules) for name, column in given.items()}
        try:
            record = msgpack.packb({"v": RECORD_VERSION, **packed})  # so that what holds for records holds here
        except UnicodeEncodeError as error:
            raise Bad(Reason.BAD_ID, f"a text is not valid Unicode: {error}") from None
        yield batch(partial(decode_msgpack, record, rules, NO_TIME), stop - begin, stop / n)


def _columns(path: Path, names: NamedColumns | None) -> Mapping[str, Array]:
    """The columns by our names; ``src`` is among them."""
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return _of_one(loaded, names)
            there = loaded.files
            if names is None and "src" not in there and {"format", "shape"} <= set(there):
                return _of_matrix(dict(loaded))
            return {ours: loaded[theirs] for theirs, ours in _our_names(there, names).items()}
    except _NO_FILE as error:
        objects = "; texts are read that are no objects: .astype(str)" if "allow_pickle" in str(error) else ""
        raise Unreadable(f"is no file of NumPy that can be read: {str(error)[:200]}{objects}") from None


def _our_names(there: Sequence[str], names: NamedColumns | None) -> dict[str, str]:
    return our_names(there, with_ours(names, there))


def _of_one(array: Array, names: NamedColumns | None) -> Mapping[str, Array]:
    if array.dtype.names is not None:
        return {ours: array[theirs] for theirs, ours in _our_names(array.dtype.names, names).items()}
    if array.ndim == 2 and array.shape[1] == 2 and names is None:
        return {"src": array[:, 0], "dst": array[:, 1]}
    allowed = "it must have the shape (n, 2), or fields with names"
    help = "np.savez(file, src=..., dst=..., weight=...) has names"
    raise Bad(Reason.BAD_COLUMN, f"an array of {array.dtype} with the shape {array.shape}; {allowed}. {help}")


def _of_matrix(parts: Mapping[str, Array]) -> Mapping[str, Array]:
    """The entries of a sparse matrix, as ``scipy.sparse.save_npz`` writes it: from row to column."""
    form = parts["format"].item()
    form = form.decode() if isinstance(form, bytes) else form
    if form == "coo":
        if "coords" in parts:
            row, column = parts["coords"]
        else:
            row, column = parts["row"], parts["col"]
    elif form in ("csr", "csc"):
        column, starts = parts["indices"], parts["indptr"]
        row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        row, column = (row, column) if form == "csr" else (column, row)
    else:
        raise Bad(Reason.BAD_COLUMN, f"a sparse matrix in the form {form!r}; read are coo, csr and csc: .tocoo()")
    return {"src": row, "dst": column, "weight": parts["data"]}


def _packed(name: str, column: Array, names: NamedColumns | None, rules: Rules) -> Any:
    """A column as MessagePack has it.

    Raises:
        Bad: it is of a type that it cannot be.
    """
    kind = column.dtype.kind
    if name in ("src", "dst") and rules.vertex_ids == "string" and kind == "U":
        return column.tolist()
    if name in ("src", "dst") and rules.vertex_ids == "int" and kind in "iu":
        if column.dtype.str[1:] == "u8" and (large := column[column > np.uint64((1 << 63) - 1)]).size:
            raise Bad(Reason.BAD_ID, f"{name} holds {large[0]}; ids are signed 64-bit integers")
        return column.astype("<i8").tobytes()
    if name == "op" and kind == "U":
        return _ops(column, {} if names is None else names.op_values).tobytes()
    if name == "op" and column.dtype in (np.uint8, np.bool_):
        return column.astype(np.uint8).tobytes()
    if name == "weight" and kind in "fiub":
        with np.errstate(over="ignore"):
            return column.astype("<f4").tobytes()
    if name == "ts" and kind in "iM":
        return column.astype("<M8[ms]" if kind == "M" else "<i8").tobytes()
    allowed = {
        "op": "texts, uint8 or bool",
        "weight": "numbers",
        "ts": "int64 (milliseconds) or datetime64",
    }.get(name, "texts" if rules.vertex_ids == "string" else "integers")
    given = "string" if kind == "U" else str(column.dtype)
    raise Bad(Reason.BAD_COLUMN, f"{name} is a column of {given!r}; it must be {allowed}")


def _ops(column: Array, op_values: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    texts, places = np.unique(column, return_inverse=True)
    codes = []
    for text in texts.tolist():
        op = op_values.get(text) if op_values else text
        if op not in OPS_BY_NAME:
            raise Bad(Reason.BAD_OP, why_no_value(text, op_values) if op_values else why_no_op(text))
        codes.append(OPS_BY_NAME[op])
    return np.array(codes, np.uint8)[places]
