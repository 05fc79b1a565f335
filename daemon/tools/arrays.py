"""Files of NumPy: ``.npz`` with a column an array, or a sparse matrix; ``.npy`` with pairs, or with fields."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol, TypeVar

import msgpack
import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from ..ingest.decode_columns import OPS_BY_NAME, Bad, Reason, Rules, check_length, why_no_op
from ..ingest.decode_records import decode_msgpack
from ..ingest.named_columns import NamedColumns, why_no_value
from ..records.encodings import RECORD_VERSION
from ..records.event_time import NO_TIME
from .tables import BATCH_ROWS, Batch, Unreadable, batch, our_names, with_ours

SUFFIXES = (".npz", ".npy")
BATCH_BYTES = 128 << 20
"""Fewer rows make a batch where so many would be more than this."""
_ARCHIVE = b"PK"
Array = npt.NDArray[Any]
T = TypeVar("T")
_NO_FILE = ValueError, KeyError, TypeError, EOFError, RuntimeError, TokenError, zipfile.BadZipFile, zlib.error
"""What NumPy, and what it reads with, say of a file that is none, or is damaged."""


def batches(path: Path, names: NamedColumns | None, rules: Rules) -> Iterator[Batch]:
    """A file in batches of at most ``BATCH_ROWS`` rows, of which one is in memory at a time.

    Raises:
        Bad: it has no columns that are edges.
        Unreadable: it is damaged, or holds Python objects.
        OSError: it cannot be read.
    """
    with ExitStack() as stack:
        given = _readable(lambda: _columns(path, names, stack))
        for name, column in given.items():
            if len(column.shape) != 1:
                raise Bad(Reason.BAD_COLUMN, f"{name} has the shape {column.shape}; a column has one dimension")
        n = given["src"].shape[0]
        for name, column in given.items():
            check_length(name, column.shape[0], n)
        yield from _batches(given, n, names, rules)


def _batches(given: Mapping[str, Column], n: int, names: NamedColumns | None, rules: Rules) -> Iterator[Batch]:
    row_bytes = sum(column.dtype.itemsize for column in given.values())
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1)))  # texts are as wide as the longest of all
    for begin in range(0, n, rows):
        stop = min(begin + rows, n)
        packed = {
            name: _packed(name, _readable(partial(column.take, stop - begin)), names, rules)
            for name, column in given.items()
        }
        try:
            record = msgpack.packb({"v": RECORD_VERSION, **packed})  # so that what holds for records holds here
        except UnicodeEncodeError as error:
            raise Bad(Reason.BAD_ID, f"a text is not valid Unicode: {error}") from None
        yield batch(partial(decode_msgpack, record, rules, NO_TIME), stop - begin, stop / n)


def _readable(read: Callable[[], T]) -> T:
    """What ``read`` gives.

    Raises:
        Unreadable: it finds that the file is none of NumPy, damaged, or one of Python objects.
    """
    try:
        return read()
    except _NO_FILE as error:
        objects = "; texts are read that are no objects: .astype(str)" if "allow_pickle" in str(error) else ""
        raise Unreadable(f"is no file of NumPy that can be read: {str(error)[:200]}{objects}") from None


class Column(Protocol):
    """Entries that are read one after the other."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def take(self, n: int) -> Array:
        """The next ``n`` entries, of which there must be so many."""
        ...


class _InFile:
    """A column of an array that the system reads from its file where it is looked at."""

    def __init__(self, array: Array) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._array, self._at = array, 0

    def take(self, n: int) -> Array:
        self._at += n
        return self._array[self._at - n : self._at]


class _InArchive:
    """An array of an ``.npz`` file, which is unpacked as far as it is read."""

    def __init__(self, archive: zipfile.ZipFile, name: str, stack: ExitStack) -> None:
        there = f"{name}.npy"
        self._name = name
        self._file = stack.enter_context(archive.open(there if there in archive.namelist() else name))
        version = npy.read_magic(self._file)
        if version == (1, 0):
            self.shape, _, self.dtype = npy.read_array_header_1_0(self._file)
        elif version == (2, 0):
            self.shape, _, self.dtype = npy.read_array_header_2_0(self._file)
        else:
            raise ValueError(f"the array {name!r} is in version {version} of the format, which holds no columns")
        if self.dtype.hasobject:
            raise ValueError(f"the array {name!r} holds Python objects, for which allow_pickle would be needed")

    def take(self, n: int) -> Array:
        size = n * self.dtype.itemsize
        content = self._file.read(size)
        if len(content) < size:
            raise ValueError(f"the array {self._name!r} ends before its last entry")
        return np.frombuffer(content, self.dtype) if size else np.zeros(n, self.dtype)

    def only(self) -> Any:
        """The entry of one that has no other."""
        if math.prod(self.shape) != 1:
            raise ValueError(f"the array {self._name!r} must hold one entry, and has the shape {self.shape}")
        return self.take(1).item()

    def row(self, number: int) -> _InArchive:
        """One of the rows of a matrix, for itself."""
        if len(self.shape) != 2:
            raise ValueError(f"the array {self._name!r} must be a matrix, and has the shape {self.shape}")
        self.shape = self.shape[1:]
        for _ in range(number):
            left = self.shape[0]
            while left:
                left -= self.take(min(left, BATCH_ROWS)).size
        return self


class _Rows:
    """The row of each entry of a matrix in the form csr, by where each row starts."""

    def __init__(self, starts: _InArchive, entries: _InArchive) -> None:
        if len(starts.shape) != 1:
            raise ValueError(f"the rows of a matrix start at places of the shape {starts.shape}")
        self.shape, self.dtype = entries.shape, np.dtype(np.int64)
        self._starts, self._left = starts, starts.shape[0] - 1
        self._before = 0  # rows that came to an end
        self._at = int(starts.take(1)[0])
        self._ends: Array = np.empty(0, np.int64)

    def take(self, n: int) -> Array:
        found: list[Array] = []
        stop = self._at + n
        while self._at < stop:
            if not self._ends.size or self._ends[-1] <= self._at:
                self._read_on()
            upto = min(stop, int(self._ends[-1]))
            places = np.arange(self._at, upto)
            found.append(self._before + np.searchsorted(self._ends, places, "right"))
            self._at = max(self._at, upto)
        return np.concatenate([np.empty(0, np.int64), *found])

    def _read_on(self) -> None:
        self._before += self._ends.size
        ends = self._starts.take(min(self._left, BATCH_ROWS))
        self._left -= ends.size
        if not ends.size or (np.diff(ends, prepend=self._at) < 0).any():
            raise ValueError("the rows of the matrix do not add up to its entries")
        self._ends = ends


def _columns(path: Path, names: NamedColumns | None, stack: ExitStack) -> Mapping[str, Column]:
    """The columns by our names; ``src`` is among them."""
    with open(path, "rb") as file:
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
    if not is_archive:
        return _of_one(np.load(path, mmap_mode="r", allow_pickle=False), names)
    archive = stack.enter_context(zipfile.ZipFile(path))
    there = [name.removesuffix(".npy") for name in archive.namelist()]
    if names is None and "src" not in there and {"format", "shape"} <= set(there):
        return _of_matrix(there, lambda name: _InArchive(archive, name, stack))
    return {ours: _InArchive(archive, theirs, stack) for theirs, ours in _our_names(there, names).items()}


def _our_names(there: Sequence[str], names: NamedColumns | None) -> dict[str, str]:
    return our_names(there, with_ours(names, there))


def _of_one(array: Array, names: NamedColumns | None) -> Mapping[str, Column]:
    if array.dtype.names is not None:
        return {ours: _InFile(array[theirs]) for theirs, ours in _our_names(array.dtype.names, names).items()}
    if array.ndim == 2 and array.shape[1] == 2 and names is None:
        return {"src": _InFile(array[:, 0]), "dst": _InFile(array[:, 1])}
    allowed = "it must have the shape (n, 2), or fields with names"
    help = "np.savez(file, src=..., dst=..., weight=...) has names"
    raise Bad(Reason.BAD_COLUMN, f"an array of {array.dtype} with the shape {array.shape}; {allowed}. {help}")


def _of_matrix(there: Collection[str], part: Callable[[str], _InArchive]) -> Mapping[str, Column]:
    """The entries of a sparse matrix, as ``scipy.sparse.save_npz`` writes it: from row to column."""
    form = part("format").only()
    form = form.decode() if isinstance(form, bytes) else form
    row: Column
    column: Column
    if form == "coo":
        if "coords" in there:
            row, column = part("coords").row(0), part("coords").row(1)
        else:
            row, column = part("row"), part("col")
    elif form in ("csr", "csc"):
        column = part("indices")
        row = _Rows(part("indptr"), part("indices"))
        row, column = (row, column) if form == "csr" else (column, row)
    else:
        raise Bad(Reason.BAD_COLUMN, f"a sparse matrix in the form {form!r}; read are coo, csr and csc: .tocoo()")
    return {"src": row, "dst": column, "weight": part("data")}


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
