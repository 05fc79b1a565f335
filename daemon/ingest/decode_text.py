"""Blocks of lines: CSV and whitespace-separated edge lists, where every line is good or bad by itself.

The rules here alone decide what is good; for integer ids ``decode_compiled`` reads faster what is plain.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op
from ...gpma.index.ids import INTEGER, IntColumn
from ..records.stream import UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, Reason, Rules
from .named_columns import NUMBER, NamedColumns, why_no_value
from .sift import Refused

Item = TypeVar("Item")

CHUNK_LINES = 2048
"""Lines that are Python objects at once: few enough to stay in cache, and to keep the garbage collector idle."""

OPS_BY_TEXT = {
    "": "insert",
    **dict.fromkeys(("insert", "i", "1", "+"), "insert"),
    **dict.fromkeys(("delete", "d", "0", "-"), "delete"),
    "insert_vertex": "insert_vertex",
    "delete_vertex": "delete_vertex",
}


@dataclass(frozen=True, slots=True)
class LineLayout:
    """What the fields of a line are. ``delimiter`` None: an edge list, split at blanks, with comments.

    ``op_values``: what stands for which operation; empty: the usual (``OPS_BY_TEXT``).
    """

    names: tuple[str, ...]
    delimiter: str | None
    op_values: Mapping[str, str] = field(default_factory=dict)


EDGE_LIST = LineLayout(("src", "dst", "weight", "ts"), None)


@dataclass(slots=True)
class Lines:
    """What a block of lines came to: updates in order, and the bad lines as (start, end, why).

    ``parts``: bad rows of documents of many, each with the start of its line.
    """

    blocks: list[UpdateBlock] = field(default_factory=list)
    bad: list[tuple[int, int, Bad]] = field(default_factory=list)
    parts: list[tuple[int, Sequence[Refused]]] = field(default_factory=list)


def check_delimiter(delimiter: str) -> None:
    """Refuse what cannot separate columns.

    Raises:
        ValueError: the message says why.
    """
    plain = len(delimiter) == 1 and delimiter.isascii() and (delimiter.isprintable() or delimiter == "\t")
    if not plain or delimiter.isalnum() or delimiter in '"+-._':
        raise ValueError(f"a CSV delimiter is one ASCII character that no field needs, not {delimiter!r}")


def csv_layout(header: bytes, delimiter: str, named: NamedColumns | None = None) -> LineLayout:
    """The layout that a header line names, in our names or in those given; unknown columns are ignored.

    Raises:
        Bad: the line does not name src and dst (of given names: all), or names a column twice.
    """
    try:
        text = header.decode("utf-8-sig").strip()
        fields = next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except UnicodeDecodeError:
        raise Bad(Reason.BAD_COLUMN, "the header line is not UTF-8") from None
    except csv.Error as error:
        raise Bad(Reason.BAD_COLUMN, f"the header line is not CSV: {error}") from None
    if named is None:
        ours, needed = {name: name for name in columns.COLUMNS}, ["src", "dst"]
        given = [name.strip().lower() for name in fields]
    else:
        ours = named.header_names()
        given, needed = [name.strip() for name in fields], list(ours)
    names = tuple(ours.get(name, f"({name})" if name in columns.COLUMNS else name) for name in given)
    known = [name for name in names if name in columns.COLUMNS]
    if not {ours[name] for name in needed} <= set(known) or len(set(known)) < len(known):
        allowed = f"the header line must name {', '.join(needed[:-1])} and {needed[-1]}, each column once"
        raise Bad(Reason.BAD_COLUMN, f"{allowed}; it is {columns.shown(text)}")
    return LineLayout(names, delimiter, {} if named is None else named.op_values)


def numbered_lines(value: bytes, begin: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of each line that is not blank, from ``begin`` on, without its line end."""
    size = len(value)
    while begin < size:
        newline = value.find(b"\n", begin)
        stop = size if newline < 0 else newline
        line = value[begin:stop].removesuffix(b"\r")
        if line.strip(b" \t"):
            yield begin, begin + len(line)
        begin = stop + 1


def salvage(
    items: Sequence[Item], convert: Callable[[Sequence[Item]], UpdateBlock]
) -> Iterator[tuple[int, UpdateBlock | Bad]]:
    """(position, block) for runs of good items in order, and (position, why) for each bad one.

    Tries all at once, and halves what fails, so that a bad line costs its neighbours little.
    """
    left = [(0, len(items))] if items else []
    while left:
        start, stop = left.pop()
        outcome: UpdateBlock | Bad
        try:
            outcome = convert(items[start:stop])
        except Bad as bad:
            if stop - start > 1:
                half = (start + stop) // 2
                left += [(half, stop), (start, half)]
                continue
            outcome = bad
        yield start, outcome


def parse_lines(value: bytes, begin: int, layout: LineLayout, rules: Rules, timestamp_ms: int) -> Lines:
    """Parse the lines of ``value`` from byte ``begin`` on."""
    spans = list(numbered_lines(value, begin))
    if layout.delimiter is None:
        spans = [(start, end) for start, end in spans if value[start:end].lstrip(b" \t")[0] not in b"#%"]
    lines = Lines()
    for first, outcome in parse_spans(value, spans, layout, rules, timestamp_ms):
        if isinstance(outcome, Bad):
            lines.bad.append((*spans[first], outcome))
        else:
            lines.blocks.append(outcome)
    return lines


def parse_spans(
    value: bytes, spans: Sequence[tuple[int, int]], layout: LineLayout, rules: Rules, timestamp_ms: int
) -> Iterator[tuple[int, UpdateBlock | Bad]]:
    """Read lines by the rules in Python: ``salvage``'s outcome by position in ``spans``."""

    def convert(some: Sequence[tuple[int, int]]) -> UpdateBlock:
        rows = [_fields(value[start:end], layout, rules.line_bytes_max) for start, end in some]
        return _convert_rows(rows, layout, rules, timestamp_ms)

    for base in range(0, len(spans), CHUNK_LINES):
        for first, outcome in salvage(spans[base : base + CHUNK_LINES], convert):
            yield base + first, outcome


def _fields(line: bytes, layout: LineLayout, line_bytes_max: int) -> list[str]:
    """The fields of one line: as many as the layout has."""
    if len(line) > line_bytes_max:
        raise Bad(Reason.TOO_LARGE, f"a line of {len(line)} bytes; at most {line_bytes_max} are allowed")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise Bad(Reason.MALFORMED, f"not UTF-8 at byte {error.start} of the line") from None
    wanted = len(layout.names)
    if layout.delimiter is None:
        fields = [part for part in text.replace("\t", " ").split(" ") if part]
        if not 2 <= len(fields) <= wanted:
            raise Bad(Reason.BAD_COLUMN, f"a line of {len(fields)} fields; src dst [weight [ts]] are allowed")
        return fields + [""] * (wanted - len(fields))
    if '"' in text:
        try:
            fields = next(csv.reader([text], delimiter=layout.delimiter, strict=True))
        except csv.Error as error:
            raise Bad(Reason.MALFORMED, f"not CSV: {error}") from None
    else:
        fields = text.split(layout.delimiter)
    if len(fields) != wanted:
        raise Bad(Reason.BAD_COLUMN, f"a line of {len(fields)} fields; the columns are {','.join(layout.names)}")
    return fields


def _convert_rows(
    rows: Sequence[Sequence[str]], layout: LineLayout, rules: Rules, timestamp_ms: int
) -> UpdateBlock:
    """Columns of rows of text; an empty op, weight or ts means that there is none."""
    given = dict(zip(layout.names, zip(*rows, strict=True), strict=True))
    n = len(rows)
    ops = columns.inserts(n) if "op" not in given else _ops(given["op"], layout.op_values)
    strip = rules.vertex_ids == "int"
    ends = {name: [text.strip() if strip else text for text in given[name]] for name in ("src", "dst")}
    src = columns.ids_of("src", ends["src"], rules)
    dst = columns.ids_of("dst", columns.dst_values(ends["dst"], ops, rules), rules)
    weights = None
    if any(text.strip() for text in given.get("weight", ())):
        numbers = [
            _weight(text.strip(), insert=op == Op.INSERT)
            for text, op in zip(given["weight"], ops.tolist(), strict=True)
        ]
        weights = columns.checked_weights(columns.float32_of(numbers), ops, rules.weights)
    ts: IntColumn | int = timestamp_ms
    if any(text.strip() for text in given.get("ts", ())):
        ts = columns.timestamps_of([_timestamp(text.strip(), timestamp_ms) for text in given["ts"]])
    return UpdateBlock(src, dst, ops, weights, columns.checked_times(ts, ops, rules))


def _ops(texts: Sequence[str], op_values: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    if not op_values:
        return columns.ops_of([OPS_BY_TEXT.get(text.strip().lower(), text) for text in texts])
    try:
        return columns.ops_of([op_values[text.strip()] for text in texts])
    except KeyError as missing:
        raise Bad(Reason.BAD_OP, why_no_value(missing.args[0], op_values)) from None


def _weight(text: str, *, insert: bool) -> float:
    if not text:
        return 1.0
    if NUMBER.fullmatch(text) is None:
        if not insert:
            return 1.0
        raise Bad(Reason.BAD_WEIGHT, f"weight is {columns.shown(text)}; it must be a finite number")
    return float(text)


def _timestamp(text: str, timestamp_ms: int) -> int:
    if not text:
        return timestamp_ms
    if INTEGER.fullmatch(text) is None:
        raise Bad(Reason.BAD_TIMESTAMP, f"ts is {columns.shown(text)}; it must be an integer (milliseconds)")
    return int(text)
