"""Records of few edges each: those that follow each other in a partition share one block of columns.

What is good, what is bad, and why, is as it is where each of them is read by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import numpy as np

from ..records.stream import RawRecord, UpdateBlock
from .decode_columns import Bad, BadRows, Rules
from .decode_records import Edge, decode_rows
from .decode_text import Lines

RUN_RECORDS_MAX = 8_192
"""So many records are read together at most: what stands in them takes about a kilobyte each."""
RUN_BYTES_MAX = 1 << 20
"""So many bytes at most, but for one record of more: as objects they take several times that."""


def pieces(records: Sequence[RawRecord]) -> Iterator[Sequence[RawRecord]]:
    """Records in order, as many at a time as are read together."""
    begin = size = 0
    for at, record in enumerate(records):
        n_bytes = len(record.value or b"")
        size += n_bytes
        if at > begin and (size > RUN_BYTES_MAX or at - begin == RUN_RECORDS_MAX):
            yield records[begin:at]
            begin, size = at, n_bytes
    yield records[begin:]


def one_block(made: Sequence[list[Edge] | Bad], rules: Rules) -> tuple[UpdateBlock | None, list[tuple[int, Bad]]]:
    """What records come to together, from the edge objects of each, with their times, or why it is bad.

    Returns the updates of the good ones in order (None: there are none), and the number of each bad one with the
    reason. A record is applied whole or not at all.
    """
    why = {row: edges for row, edges in enumerate(made) if isinstance(edges, Bad)}
    good = [(row, edges) for row, edges in enumerate(made) if edges and not isinstance(edges, Bad)]
    block: UpdateBlock | None = None
    while good and block is None:
        try:
            block = decode_rows([*chain.from_iterable(edges for _, edges in good)], rules, 0)
        except BadRows as bad:
            # It names all that fail one check, but not in the order of the checks: each by itself says why.
            owners = np.repeat(np.arange(len(good)), [len(edges) for _, edges in good])
            refused = set(owners[bad.rows].tolist())
            why |= {row: _why(edges, rules) for row, edges in map(good.__getitem__, refused)}
            good = [one for at, one in enumerate(good) if at not in refused]
    return block, sorted(why.items(), key=lambda item: item[0])


def _why(edges: Sequence[Edge], rules: Rules) -> Bad:
    try:
        decode_rows(edges, rules, 0)
    except Bad as bad:
        return bad
    raise AssertionError("a record that is good alone is good beside others")


class JoinedLines:
    """The lines of several records as one text."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.text = b"\n".join(texts)
        self._starts = [0, *accumulate(len(text) + 1 for text in texts)]

    def bad_by_record(self, lines: Lines) -> dict[int, Lines]:
        """The bad lines of each record that has some, by its number, where they stand in its own text."""
        found: dict[int, Lines] = {}
        for start, end, why in lines.bad:
            row = bisect_right(self._starts, start) - 1
            begin = self._starts[row]
            found.setdefault(row, Lines()).bad.append((start - begin, end - begin, why))
        return found
