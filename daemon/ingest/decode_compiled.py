"""Blocks of lines with integer ids, by the compiled ``line_parser``; what it sets aside ``decode_text`` reads.

Importing this loads the compiler, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops, Weights
from ...partition.weights import are_allowed, why_not, without_minus_zero
from ..records.stream import UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, Reason, Rules
from .decode_text import LineLayout, Lines, parse_spans
from .line_parser import IGNORED, REREAD_WEIGHT, SET_ASIDE, LineColumns, LineFormat, ParsedLines


def line_format(layout: LineLayout, line_bytes_max: int, timestamp_ms: int) -> LineFormat:
    """What a line may be, as the compiled parser knows it."""
    codes = {name: code for code, name in enumerate(columns.COLUMNS)}
    roles = np.array([codes.get(name, IGNORED) for name in layout.names], np.int8)
    return LineFormat(
        roles, 0 if layout.delimiter is None else ord(layout.delimiter), line_bytes_max, timestamp_ms
    )


def parse_lines(value: bytes, begin: int, layout: LineLayout, rules: Rules, timestamp_ms: int) -> Lines:
    """Parse the lines of ``value`` from byte ``begin`` on; ids are integers."""
    lines = Lines()
    if begin >= len(value):
        return lines
    if not value.endswith(b"\n"):
        value += b"\n"
    parsed = ParsedLines(value.count(b"\n", begin))
    n = parsed.fill(value, begin, line_format(layout, rules.line_bytes_max, timestamp_ms))
    found = parsed.columns.first(n)
    status = found.status
    reread = np.flatnonzero(status == REREAD_WEIGHT)
    if reread.size:
        texts = [value[start:end] for start, end in found.weight_spans[reread].tolist()]
        found.weights[reread] = columns.float32_of([float(text) for text in texts])
    aside = np.flatnonzero(status == SET_ASIDE)
    keep = np.ones(n, bool)
    weights, wrong = _weights(found.weights, found.ops, status, rules)
    found.weights[:] = weights
    for row in wrong.tolist():
        keep[row] = False
        detail = why_not(found.weights[row], rules.weights)
        lines.bad.append((*found.spans[row].tolist(), Bad(Reason.BAD_WEIGHT, detail)))
    if rules.latest_ms is not None:
        for row, bad in _bad_times(found, keep & (status != SET_ASIDE), rules):
            keep[row] = False
            lines.bad.append((*found.spans[row].tolist(), bad))
    spans = [(start, end) for start, end in found.spans[aside].tolist()]
    for first, outcome in parse_spans(value, spans, layout, rules, timestamp_ms):
        if isinstance(outcome, Bad):
            keep[aside[first]] = False
            lines.bad.append((*spans[first], outcome))
        else:
            parsed.take(aside[first : first + len(outcome)], outcome)
    lines.bad.sort(key=lambda bad: bad[0])
    block = UpdateBlock(
        found.src,
        found.dst,
        found.ops,
        found.weights if parsed.has_weights and rules.weights != "unweighted" else None,
        found.ts if parsed.has_ts else timestamp_ms,
    )
    block = block if keep.all() else columns.select(block, keep)
    if len(block):
        lines.blocks.append(block)
    return lines


def _bad_times(found: LineColumns, rows: npt.NDArray[np.bool_], rules: Rules) -> Iterator[tuple[int, Bad]]:
    """Those of these rows (bool[n]) whose times edges cannot expire by, and why."""
    left = np.flatnonzero(rows)
    while left.size:
        try:
            columns.checked_times(found.ts[left], found.ops[left], rules)
            return
        except columns.BadRows as bad:
            yield from ((int(left[row]), Bad(bad.reason, bad.why(row))) for row in bad.rows.tolist())
            left = np.delete(left, bad.rows)


def _weights(
    weights: Weights, ops: Ops, status: npt.NDArray[np.uint8], rules: Rules
) -> tuple[Weights, npt.NDArray[np.int64]]:
    """The weights without minus zeros, and the insertions (not set aside) whose weight is outside the domain; of
    other operations such a weight is 1.0."""
    outside = ~are_allowed(weights, rules.weights) & (status != SET_ASIDE)
    if outside.any():
        nobodys = outside & ~Op.INSERT.among(ops)
        weights, outside = np.where(nobodys, np.float32(1), weights), outside & ~nobodys
    return without_minus_zero(weights), np.flatnonzero(outside)


def warm_up() -> None:
    """Compile the parser, or load it from the cache."""
    rules = Rules("int", "any", drop_self_loops=False, updates_max=1, line_bytes_max=100)
    parse_lines(b"1,2,0.5,insert,3\n", 0, LineLayout(("src", "dst", "weight", "op", "ts"), ","), rules, 0)
