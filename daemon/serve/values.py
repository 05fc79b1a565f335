"""Values of vertices as answers show them: whatever names a vertex is its external id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...compute.program import Answer, Program
from ...gpma.edges import Vertices
from ...gpma.index.ids import IdColumn, StringColumn
from ..client.wire import pack_bitmap, pack_column
from ..errors import NotSupported
from .results import Pieces, ProgramResults, Snapshot

PIECE_VERTICES = 1 << 13
"""So many values are looked at in one piece: arrays of them stay in the processor's cache, and the allocator
takes no pages from the system for each."""
SIEVED_VERTICES = 1 << 15
"""So many are sieved in one piece: a comparison each, a few tens of microseconds."""
FIRST_VERTICES = 256
"""So many in the first piece, at least."""


class Names(Protocol):
    """What is needed of ``Serving``."""

    def program_class(self, kind: str) -> type[Program]: ...

    def external(self, dense: Vertices) -> IdColumn: ...

    def lookup_in(self, snapshot: Snapshot, ids: IdColumn) -> Vertices: ...


@dataclass(frozen=True, slots=True)
class Values:
    """``values``: numbers, or objects where they are string ids; what is ``null`` (bool) has none.

    ``saturated``: bool, which are lower bounds only; None: that cannot be.
    """

    values: npt.NDArray[Any]
    null: npt.NDArray[np.bool_]
    saturated: npt.NDArray[np.bool_] | None = None

    def __getitem__(self, chosen: npt.NDArray[Any] | slice) -> Values:
        saturated = None if self.saturated is None else self.saturated[chosen]
        return Values(self.values[chosen], self.null[chosen], saturated)

    def differ(self, others: Values) -> npt.NDArray[np.bool_]:
        """Which of these numbers the others, as many, do not say."""
        differ: npt.NDArray[np.bool_] = (self.null != others.null) | (~self.null & (self.values != others.values))
        if self.saturated is not None and others.saturated is not None:
            differ |= self.saturated != others.saturated
        return differ

    def to_wire(self) -> dict[str, Any]:
        """The entries of an answer."""
        values = self.values.tolist() if self.values.dtype == object else pack_column(self.values)
        wire = {"values": values, "null": pack_bitmap(self.null)}
        if self.saturated is not None and self.saturated.any():
            wire["saturated"] = pack_bitmap(self.saturated)
        return wire


def values_of(names: Names, result: ProgramResults, dense: Vertices) -> Values:
    """The values of one program; vertices that it has not seen yet (``NO_VERTEX`` is none) have none."""
    seen = result.knows(dense)
    kind = names.program_class(result.kind)
    if np.count_nonzero(seen) == dense.size:
        read = kind.read(result.published, dense)
        if read.vertex_valued:
            return vertices_named(names, result, read.values, read.null)
        return Values(read.values, read.null, read.saturated)
    read = kind.read(result.published, dense[seen])
    values = np.zeros(dense.size, read.values.dtype)
    values[seen] = read.values
    null = ~seen
    null[seen] = read.null
    if read.vertex_valued:
        return vertices_named(names, result, values, null)
    saturated = None
    if read.saturated is not None:
        saturated = np.zeros(dense.size, bool)
        saturated[seen] = read.saturated
    return Values(values, null, saturated)


def vertices_named(names: Names, result: ProgramResults, dense: Vertices, null: npt.NDArray[np.bool_]) -> Values:
    """Values that are vertices, by their external ids; null where it is none of the program's any more."""
    null = null | ~result.knows(dense)
    ids = names.external(dense[~null])
    strings = isinstance(ids, StringColumn)
    values: npt.NDArray[Any] = np.full(dense.size, None, object) if strings else np.zeros(dense.size, np.int64)
    values[~null] = ids.to_list() if isinstance(ids, StringColumn) else ids
    return Values(values, null)


def wire_ids(ids: IdColumn) -> Any:
    """Ids as they travel: a numeric column, or an array of strings."""
    return ids.to_list() if isinstance(ids, StringColumn) else pack_column(ids)


def staleness(result: ProgramResults) -> dict[str, Any]:
    """Says that results are older than the epoch, where they are."""
    if result.state.get("state", "fresh") == "fresh":
        return {}
    keys = ("state", "stale_since", "reason")
    return {"stale": {key: result.state.get(key) for key in keys}}


def no_order(kind: str) -> NotSupported:
    """Why there are no best of a kind of program."""
    return NotSupported(f"the values of {kind} are vertices, which have no order")


def top_k(read: Answer | Values, k: int, *, descending: bool) -> Vertices:
    """Positions of the k best values (NaN is none), best first; of equal ones the earlier position comes first."""
    candidates = np.flatnonzero(_in_order(read))
    values = read.values[candidates]
    if k < values.size:
        place = values.size - k if descending else k - 1
        bound = np.partition(values, place)[place]
        better = values > bound if descending else values < bound
        ties = np.flatnonzero(values == bound)[: k - np.count_nonzero(better)]
        kept = np.sort(np.concatenate([np.flatnonzero(better), ties]))
        candidates, values = candidates[kept], values[kept]
    if descending:
        order = values.size - 1 - np.argsort(values[::-1], kind="stable")[::-1]
    else:
        order = np.argsort(values, kind="stable")
    return candidates[order].astype(np.uint32)


def best_of(
    read: Callable[[slice], Answer | Values],
    counts: Callable[[Vertices], npt.NDArray[np.bool_]],
    n: int,
    k: int,
    *,
    descending: bool,
    beyond: float | None = None,
    sieve: Callable[[slice, float], tuple[Vertices, Answer] | None] = lambda part, bound: None,
) -> Pieces[tuple[Vertices, npt.NDArray[Any]]]:
    """As ``top_k`` of all values of vertices below ``n``, piece by piece; the best and their values.

    ``read``: what the vertices from one to another say; ``counts``: which of these vertices count at all. Of a
    piece only those are looked at further that are better than the k best so far, or than ``beyond``: a guess, so
    that few are from the beginning. Where fewer than k are, all are looked at again without it. ``sieve``: finds
    vertices that are better, and perhaps others, and what they say, where that is faster than to read all of them.
    """
    kept: list[tuple[Vertices, npt.NDArray[Any]]] = []
    n_kept, bound = 0, beyond
    # Until there is a bound each one is kept.
    start, end = 0, min(n, PIECE_VERTICES, max(FIRST_VERTICES, 4 * k) if bound is None else PIECE_VERTICES)
    while start < n or not kept:
        part = slice(start, end)
        sieved = None if bound is None else sieve(part, bound)
        answer = read(part) if sieved is None else sieved[1]
        if bound is None:
            at = np.flatnonzero(_in_order(answer))
        else:  # few are; of equal ones the earlier come first, which are kept already
            at = np.flatnonzero(answer.values > bound if descending else answer.values < bound)
            at = at[~answer.null[at]]
        dense = (start + at).astype(np.uint32) if sieved is None else sieved[0][at]
        there = counts(dense)
        at, dense = at[there], dense[there]
        kept.append((dense, answer.values[at]))
        n_kept += at.size
        if n_kept >= 2 * k + PIECE_VERTICES // 64:
            order = np.sort(_best_kept(kept, k, descending=descending))
            bound, n_kept = kept[0][1][order].min() if descending else kept[0][1][order].max(), order.size
            kept = [(kept[0][0][order], kept[0][1][order])]
        start, end = end, min(end + (PIECE_VERTICES if sieved is None else SIEVED_VERTICES), n)
        yield
    if beyond is not None and sum(dense.size for dense, _ in kept) < k:
        return (yield from best_of(read, counts, n, k, descending=descending, sieve=sieve))
    order = _best_kept(kept, k, descending=descending)
    return kept[0][0][order], kept[0][1][order]


def _in_order(read: Answer | Values) -> npt.NDArray[np.bool_]:
    """Which values there are that are better or worse than others: NaN is neither."""
    found = ~read.null
    if read.values.dtype.kind == "f":
        found &= ~np.isnan(read.values)
    return found


def _best_kept(kept: list[tuple[Vertices, npt.NDArray[Any]]], k: int, *, descending: bool) -> Vertices:
    """Join what is kept; the places of the k best in it, best first."""
    dense, values = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    kept[:] = [(dense, values)]
    return top_k(Values(values, np.zeros(values.size, bool)), k, descending=descending)
