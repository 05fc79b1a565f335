"""Files of updates, read as the daemon reads records: what it would refuse is left out and counted.

By name ``.parquet``, ``.arrow`` and ``.feather`` (the columns of CSV; they need PyArrow), ``.npz`` and ``.npy``
(``arrays``). All else is text, perhaps packed (``.gz``, ``.xz``, ``.zst``, ``.bz2``): CSV where the first line
names the columns, with commas, tabs, semicolons, bars or blanks between; JSON lines, by name or where the first is
an object; ``.tsv`` with five fields (events: ``op src dst weight ts``, ``-`` for no weight and no ts, ts in
seconds); else an edge list (``src dst [weight [ts]]``), or a graph in the form of MatrixMarket, of which
``symmetric`` means both halves.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import itertools
import lzma
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from ...gpma.index.ids import StringColumn, concatenate_ids
from ...partition.weights import WeightDomain
from ..errors import GraphtideError
from ..ingest import matrix_market
from ..ingest.decode import Decoder
from ..ingest.decode_columns import Bad, BadRows, Reason, Rules, finish, select
from ..ingest.decode_text import csv_layout
from ..ingest.named_columns import NamedColumns
from ..records.columns import UpdateColumns
from ..records.encodings import IN_PREAMBLE, ROW
from ..records.event_time import NO_TIME
from ..records.stream import BadRecord, Partition, RawRecord, UpdateBlock
from . import advice, arrays, tables

PLACES_KEPT = 3
COMPILED_FROM = 512 << 10
"""Bytes of a block whose lines the compiled parser reads in less time than it takes to load it."""

STANDARD_INPUT = Path("-")
"""Stands for an edge list on the standard input, from where it stands; to ``Path`` ``./-`` is the same."""
_BLOCK_BYTES = 8 << 20
_TABLES = (*tables.SUFFIXES, *arrays.SUFFIXES)
_JSON = (".json", ".jsonl", ".ndjson")
_DELIMITERS = (",", "\t", ";", "|", " ")
_OPENERS: Mapping[str, Any] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".zst": zstandard.open,
    ".bz2": bz2.open,
}

_EVENT_COLUMNS = ("op", "src", "dst", "weight", "ts")
_NO_WEIGHT = re.compile(rb"^((?:[^\t\n]*\t){3})-(?=\t)", re.MULTILINE)
_NO_TS = re.compile(rb"(?<=\t)-(?=\r?$)", re.MULTILINE)
_SECONDS_MAX = (1 << 63) // 1000
_LIKE_SECONDS = 10**9, 4 * 10**9
"""Milliseconds of January and February 1970, as seconds of this century are when they are taken for such."""


class BadInput(GraphtideError):
    """A file cannot be read as updates; the message says which file, where and why."""

    code = "bad-input"


@dataclass(frozen=True, slots=True)
class _Form:
    """What a file of text is. ``delimiter``: of CSV; ``events``: CSV without a header line, times in seconds."""

    encoding: Literal["csv", "json", "el"]
    delimiter: str = ","
    events: bool = False


@dataclass(frozen=True, slots=True)
class Accepts:
    """What the graph takes, as far as it is known: by default whatever some graph takes. ``columns``: what the
    files call theirs; None: as we do."""

    vertex_ids: Literal["int", "string"] = "int"
    weights: WeightDomain = "any"
    self_loops: Literal["keep", "drop"] = "keep"
    directed: bool = True
    columns: NamedColumns | None = None


@dataclass(slots=True)
class LeftOut:
    """How many updates were left out: those refused by reason, with the first places of each; and self-loops.

    ``doubts``: what is taken as it stands and may be meant otherwise, by file.
    """

    refused: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    self_loops: int = 0
    doubts: dict[Path, str] = field(default_factory=dict)

    def refuse(self, reason: str, place: Callable[[], str], updates: int = 1) -> None:
        """Count so many; ``place`` says where they stood and what was wrong."""
        self.refused[reason] += updates
        kept = self.places.setdefault(reason, [])
        if len(kept) < PLACES_KEPT:
            kept.append(place())

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` shows of it."""
        refused = {
            reason: {"updates": number, "first": self.places[reason]} for reason, number in self.refused.items()
        }
        return {"refused": refused, "self_loops_dropped": self.self_loops, "doubts": [*self.doubts.values()]}

    def look_at_times(self, path: Path, times: npt.NDArray[np.int64] | int) -> None:
        """Doubt times (milliseconds) that all are as seconds would be."""
        if path in self.doubts or isinstance(times, int):
            return
        known = times[times != NO_TIME]
        least, below = _LIKE_SECONDS
        if known.size and known.min() >= least and known.max() < below:
            self.doubts[path] = (
                f"{path}: its times (ts) are milliseconds of January or February 1970; if they are seconds, "
                "multiply them by 1000"
            )


def read_columns(
    path: Path, accepts: Accepts, left_out: LeftOut, advance: Callable[[float], None] = lambda share: None
) -> Iterator[UpdateColumns]:
    """The updates of one file, in big blocks; ``NO_TIME`` is the time of those that have none, where others have
    one. ``advance`` is told how much of it is read, from 0 to 1.

    Raises:
        BadInput: the file cannot be decompressed, its header line names no columns, or it is no graph.
        OSError: it cannot be read.
    """
    if path.suffix in _TABLES:
        yield from _table(path, accepts, left_out, advance)
        return
    blocks = _blocks(path, advance)
    _, beginning = next(blocks, (0, b""))
    if not beginning:
        return
    names = tables.with_ours(accepts.columns, _names_in(beginning))
    form = _form_of(path, beginning, names)
    decoder = Decoder(
        vertex_ids=accepts.vertex_ids,
        weights=accepts.weights,
        self_loops=accepts.self_loops,
        csv_columns=_EVENT_COLUMNS if form.events else None,
        csv_delimiter=form.delimiter,
        compiled_from=COMPILED_FROM,
        columns=names,
        directed=False,  # the other half of a symmetric matrix is added here
    )
    lines, inside = 0, False
    matrix: _Matrix | None = None
    if form.encoding == "el" and matrix_market.begins(beginning):
        matrix = _Matrix(accepts.directed and matrix_market.is_symmetric(beginning))
    for offset, block in itertools.chain([(0, beginning)], blocks):
        value = _event_lines(block, accepts.vertex_ids) if form.events else block
        stop = offset + len(value)
        headers = ((IN_PREAMBLE, b""),) if inside else ()
        if matrix is not None and (inside or offset == 0):
            inside = matrix_market.next_is_inside(value, first=offset == 0, inside=inside)
            matrix.promised = None if inside else matrix_market.edges_promised(value)
        record = RawRecord(Partition(str(path)), offset, stop, value, form.encoding, NO_TIME, headers=headers)
        decoded = decoder.decode(record)
        for bad in decoded.bad:
            advised = bad.reason in left_out.places
            place = partial(_place, path, form, lines, value, bad.offset - offset, bad, advised=advised)
            left_out.refuse(bad.reason, place, _updates_in(bad))
        left_out.self_loops += decoded.self_loops_dropped
        updates = decoded.block
        if matrix is not None:
            matrix.found += len(decoded.bad) + decoded.self_loops_dropped + len(updates or ())
        if updates is not None and form.events:
            updates = _in_milliseconds(updates, path, left_out)
        elif updates is not None:
            left_out.look_at_times(path, updates.timestamps_ms)
        if updates is not None and len(updates):
            yield _columns(updates)
            if matrix is not None and matrix.is_half:
                yield from _other_half(_columns(updates))
        lines += value.count(b"\n")
    if matrix is not None:
        matrix.require_whole(path, left_out)


def require_readable(path: Path, accepts: Accepts) -> None:
    """Look at the beginning of a file, unless it can be read only once.

    Raises:
        BadInput, OSError: as ``read_columns``, as far as the beginning tells.
    """
    if path == STANDARD_INPUT or path.is_fifo():
        return
    if path.suffix in _TABLES:
        for _ in _table(path, accepts, LeftOut(), lambda share: None):
            return
        return
    with contextlib.closing(_blocks(path)) as blocks:
        _, block = next(blocks, (0, b""))
    if block:
        _form_of(path, block, accepts.columns)


@dataclass(slots=True)
class _Matrix:
    """A graph in the form of MatrixMarket. ``is_half``: its mirror image belongs to it; ``promised``: edges, by
    its line of sizes; ``found``: lines of edges."""

    is_half: bool
    promised: int | None = None
    found: int = 0

    def require_whole(self, path: Path, left_out: LeftOut) -> None:
        if self.promised is None:
            detail = f"{path}: before the edges must stand a line of rows, columns and edges; there is none"
            left_out.refuse(Reason.MALFORMED.value, partial(str, detail))
        elif self.found < self.promised:
            detail = f"{path}: its line of sizes promises {self.promised} edges, and there are {self.found}"
            left_out.refuse(Reason.DAMAGED.value, partial(str, detail), self.promised - self.found)


def _other_half(half: UpdateColumns) -> Iterator[UpdateColumns]:
    """These edges from their other ends, but for loops."""
    src, dst = half.src, half.dst
    if isinstance(src, StringColumn):
        assert isinstance(dst, StringColumn)
        two = [a != b for a, b in zip(src.to_list(), dst.to_list(), strict=True)]
    else:
        two = src != dst
    if np.any(two):
        kept = half.take(np.flatnonzero(two))
        yield replace(kept, src=kept.dst, dst=kept.src)


def read_updates(path: Path, accepts: Accepts | None = None) -> UpdateColumns:
    """The updates of one file, all at once: see ``read_columns``; weights are 1.0 where the file has none, and
    times now, where it has any.

    Raises:
        BadInput: something in it is no update.
    """
    left_out = LeftOut()
    parts = list(read_columns(path, accepts or Accepts(), left_out))
    for reason, places in left_out.places.items():
        raise BadInput(places[0], {"reason": reason})
    if not parts:
        raise BadInput(f"{path} holds no edges")
    whole = concatenated(list(map(timed, parts)))
    weights = np.ones(len(whole), np.float32) if whole.weights is None else whole.weights
    return UpdateColumns(whole.src, whole.dst, whole.ops, weights, whole.timestamps_ms)


def _columns(updates: UpdateBlock) -> UpdateColumns:
    times = updates.timestamps_ms
    ts = times if isinstance(times, np.ndarray) and (times != NO_TIME).any() else None
    return UpdateColumns(updates.src, updates.dst, updates.ops, updates.weights, ts)


def _place(path: Path, form: _Form, lines: int, value: bytes, at: int, bad: BadRecord, *, advised: bool) -> str:
    """``lines``: those before this block; ``at``: the byte of the block at which the bad line begins; ``advised``:
    what may help was said of another one."""
    row = dict(bad.headers).get(ROW)
    part = "" if row is None else f", row {row.decode()}"
    line = lines + value.count(b"\n", 0, at) + 1
    detail = bad.detail.replace("(milliseconds)", "(seconds)") if form.events else bad.detail
    help = "" if advised else advice.on_line(form.encoding, bad, is_first=line == 1)
    return f"{path}:{line}{part}: {detail}{help}"


def _updates_in(bad: BadRecord) -> int:
    """Bad rows of a JSON document stand in one of their own, many together where they are many."""
    if ROW not in dict(bad.headers):
        return 1
    rows = orjson.loads(bad.value)
    return len(rows["edges"] if "edges" in rows else rows["src"])


def _form_of(path: Path, block: bytes, names: NamedColumns | None) -> _Form:
    """By name, and by how the file begins: with ``block``. Where columns have names of their own, these must be
    named.

    Raises:
        BadInput: no file can begin so.
    """
    if (what := advice.instead_of_text(block)) is not None:
        raise BadInput(f"{path}: {what}", {"reason": Reason.MALFORMED.value})
    first = block.partition(b"\n")[0]
    line = first.removeprefix(codecs.BOM_UTF8).strip()
    suffix = path.with_suffix("").suffix if path.suffix in _OPENERS else path.suffix
    if suffix in _JSON or (suffix not in (".csv", ".tsv") and _is_object(line)):
        return _Form("json")
    try:
        for delimiter in _DELIMITERS:
            if delimiter.isspace() and line.startswith((b"#", b"%")):
                continue
            with contextlib.suppress(Bad):
                csv_layout(first, delimiter, names)
                return _Form("csv", delimiter)
        if suffix == ".csv" or names is not None:
            _refuse_header(first, names)
        if suffix == ".tsv" and not line.startswith((b"#", b"%")) and len(line.split()) == len(_EVENT_COLUMNS):
            return _Form("csv", "\t", events=True)
        if matrix_market.begins(block):
            why = matrix_market.refusal(block, directed=False)
            if why is not None:
                raise Bad(Reason.MALFORMED, why)
    except Bad as bad:
        raise BadInput(f"{path}:1: {bad.detail}", {"reason": bad.reason.value}) from None
    return _Form("el")


def _names_in(block: bytes) -> list[str]:
    """What the first line names: as CSV, or as the keys of an object."""
    line = block.partition(b"\n")[0].decode("utf-8-sig", errors="replace").strip()
    if line.startswith("{"):
        with contextlib.suppress(orjson.JSONDecodeError):
            return [*orjson.loads(line)]
    return [name.strip('"') for name in re.split(r"[,\t;| ]", line)]


def _is_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    with contextlib.suppress(orjson.JSONDecodeError):
        return isinstance(orjson.loads(line), dict)
    return False


def _refuse_header(header: bytes, names: NamedColumns | None) -> None:
    """
    Raises:
        Bad: a header line of CSV does not name the columns; it says what may help.
    """
    try:
        csv_layout(header, ",", names)
    except Bad as bad:
        help = advice.on_header(header.decode(errors="replace"), named=names is not None)
        raise Bad(bad.reason, f"{bad.detail}{help}") from None


def _blocks(
    path: Path, advance: Callable[[float], None] = lambda share: None
) -> Generator[tuple[int, bytes], None, None]:
    """Blocks of whole lines with the offset of each."""
    with _open(path) as stored, _OPENERS.get(path.suffix, contextlib.nullcontext)(stored) as opened:
        # Of a pipe nothing tells how much is left.
        size = os.fstat(stored.fileno()).st_size if stored.seekable() else 0
        file = cast(BinaryIO, opened)
        offset, rest = 0, b""
        try:
            while piece := file.read(_BLOCK_BYTES):
                if size:
                    advance(stored.tell() / size)
                stop = piece.rfind(b"\n") + 1
                if stop == 0:
                    rest += piece
                    continue
                block, rest = rest + piece[:stop], piece[stop:]
                yield offset, block
                offset += len(block)
        except (EOFError, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile) as error:
            raise BadInput(f"{path} cannot be decompressed: {error}") from error
        except OSError as error:
            if error.errno is None:  # what bz2 says of damage
                raise BadInput(f"{path} cannot be decompressed: {error}") from error
            raise
        if rest:
            yield offset, rest


def _open(path: Path) -> BinaryIO:
    if path == STANDARD_INPUT:  # not by a name: that opens a file anew, at its beginning
        return open(0, "rb", closefd=False)
    return open(path, "rb")


def _table(
    path: Path, accepts: Accepts, left_out: LeftOut, advance: Callable[[float], None]
) -> Iterator[UpdateColumns]:
    drop = accepts.self_loops == "drop"
    rules = Rules(accepts.vertex_ids, accepts.weights, drop, updates_max=tables.BATCH_ROWS, line_bytes_max=0)
    batches = arrays.batches if path.suffix in arrays.SUFFIXES else tables.batches
    row = 0
    try:
        for batch in batches(path, accepts.columns, rules):
            for places, error in batch.refused:
                for bad_row in error.rows.tolist():
                    place = partial(_row_place, f"{path}: row {row + int(places[bad_row])}", error, bad_row)
                    left_out.refuse(error.reason.value, place)
            block, dropped = (None, 0) if batch.good is None else finish(batch.good, rules)
            left_out.self_loops += dropped
            if block is not None:
                left_out.look_at_times(path, block.timestamps_ms)
                yield _columns(block)
            row += batch.rows
            advance(batch.share)
    except Bad as bad:
        help = advice.on_column(bad.detail, vertex_ids=accepts.vertex_ids, named=accepts.columns is not None)
        raise BadInput(f"{path}: {bad.detail}{help}", {"reason": bad.reason.value}) from None
    except tables.Unreadable as unreadable:
        raise BadInput(f"{path} {unreadable}") from None


# -- events -------------------------------------------------------------------------------------------------


def _event_lines(block: bytes, vertex_ids: str) -> bytes:
    """Events as CSV between tabs, where an empty field stands for none."""
    if b" " in block:
        block = b"\n".join(b"\t".join(line.split()) for line in block.split(b"\n"))
    if b"\t-" not in block:
        return block
    # A dash is no integer, wherever it stands; a string may be one.
    block = _NO_WEIGHT.sub(rb"\1", block) if vertex_ids == "string" else block.replace(b"\t-\t", b"\t\t")
    timeless = b"\t-\n" in block or b"\t-\r" in block or block.endswith(b"\t-")
    return _NO_TS.sub(b"", block) if timeless else block


def _in_milliseconds(updates: UpdateBlock, path: Path, left_out: LeftOut) -> UpdateBlock:
    """The events with their seconds as milliseconds; without times where one has none."""
    seconds = updates.timestamps_ms
    if isinstance(seconds, int) or (seconds == NO_TIME).any():
        return UpdateBlock(updates.src, updates.dst, updates.ops, updates.weights, NO_TIME)
    fits = np.abs(seconds) <= _SECONDS_MAX
    for second in seconds[~fits].tolist():
        detail = f"{path}: ts is {second}; in milliseconds it must be a 64-bit integer"
        left_out.refuse(Reason.BAD_TIMESTAMP.value, partial(str, detail))
    kept = updates if fits.all() else select(updates, fits)
    assert isinstance(kept.timestamps_ms, np.ndarray)
    return UpdateBlock(kept.src, kept.dst, kept.ops, kept.weights, kept.timestamps_ms * 1000)


def _row_place(row: str, error: BadRows, bad_row: int) -> str:
    return f"{row}: {error.why(bad_row)}"


def timed(columns: UpdateColumns) -> UpdateColumns:
    """These, of which now is the time where they have none, and others have one."""
    times = columns.timestamps_ms
    if times is None or (times != NO_TIME).all():
        return columns
    return replace(columns, timestamps_ms=np.where(times == NO_TIME, time.time_ns() // 10**6, times))


def concatenated(parts: Sequence[UpdateColumns]) -> UpdateColumns:
    """These (at least one) as one; a weight that is missing is 1.0, a time that is missing is now."""

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
