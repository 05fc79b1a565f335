"""JSON lines: objects that stand for edges, or documents of many, each good or bad by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records.stream import UpdateBlock
from .decode_columns import Bad, Reason, Rules
from .decode_records import JsonForm, decode_document, decode_rows, load_json
from .decode_text import CHUNK_LINES, Lines, numbered_lines, salvage


def is_json_lines(value: bytes) -> bool:
    """Whether the first line is an object by itself and others follow: else the whole is one document."""
    spans = numbered_lines(value)
    first = next(spans, None)
    if first is None or next(spans, None) is None:
        return False
    line = value[first[0] : first[1]].strip()
    return line.startswith(b"{") and line.endswith(b"}")


def json_lines(value: bytes, form: JsonForm, rules: Rules, timestamp_ms: int) -> Lines:
    """JSON lines: objects that stand for edges, or documents of many, each good or bad by itself."""
    lines = Lines()
    spans: list[tuple[int, int]] = []
    items: list[Any] = []

    def convert(some: Sequence[Any]) -> UpdateBlock:
        return decode_rows(form.edges(some), rules, timestamp_ms)

    def take_items() -> None:
        for first, outcome in salvage(items, convert):
            if isinstance(outcome, Bad):
                lines.bad.append((*spans[first], outcome))
            else:
                lines.blocks.append(outcome)
        spans.clear()
        items.clear()

    for start, end in numbered_lines(value):
        try:
            if end - start > rules.line_bytes_max:
                limit = rules.line_bytes_max
                raise Bad(Reason.TOO_LARGE, f"a line of {end - start} bytes; at most {limit} are allowed")
            document = load_json(value[start:end])
            item = form.read(document)
            if item is not None:
                spans.append((start, end))
                items.append(item)
                if len(items) == CHUNK_LINES:
                    take_items()
            else:
                take_items()
                sifted = decode_document(document, rules, timestamp_ms)
                if sifted.refused:
                    lines.parts.append((start, sifted.refused))
                if sifted.block is not None:
                    lines.blocks.append(sifted.block)
        except Bad as bad:
            lines.bad.append((start, end, bad))
    take_items()
    lines.bad.sort(key=lambda bad: bad[0])
    return lines
