"""The storage's part of the background audit: a packed array checked by slices of its leaves.

A slice proves of its leaves: counts and densities are within bounds. Keys ascend, from the last key before the
slice on, name vertices that exist, and are found by look-ups. Rows that begin here are as long as their
degrees, and begin where the row index says. Every arc has its mirror image, of the same weight, among the rows
of the other direction. Totals close what is left: arcs that only the mirror has, and degrees of rows without
keys. Nothing here follows an entry that may be wrong out of the array.
"""

from __future__ import annotations

from contextlib import suppress

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import HALF, Keys, Vertices, destinations, sources, transpose
from ...gpma.host import PackedMemoryArray
from ...gpma.layout import LEAF_LOWER
from ...gpma.rows import RowView, live_runs, live_runs_before
from ...gpma.splice import spliced
from ...partition.graph import Graph
from ...partition.side import Reader
from ..program import EVIDENCE, Violation

RULES = ("counts", "density", "order", "range", "look-up", "row", "mirror", "totals")


def audit_leaves(
    graph: Graph, array: PackedMemoryArray, mirror: Reader | None, begin: int, end: int
) -> tuple[list[Violation], int]:
    """Check leaves ``begin`` to ``end`` - 1 of one array: the violations, and the keys read.

    ``mirror``: the rows that hold the same arcs transposed, or None to leave that comparison out.
    """
    view = array.view()
    slots = 1 << view.leaf_shift
    counts = view.counts[begin:end]
    impossible = np.flatnonzero((counts < 0) | (counts > slots))
    if impossible.size:
        leaf = begin + int(impossible[0])
        return [Violation("counts", f"leaf {leaf} of {slots} slots holds {counts[impossible[0]]} keys")], 0
    found = []
    # Empty leaves may be there while the array grows; that none is empty by mistake is for rows and totals.
    sparse = np.flatnonzero((counts > 0) & (counts < LEAF_LOWER * slots))
    if sparse.size and np.count_nonzero(view.counts) > 1:
        leaf = begin + int(sparse[0])
        found.append(Violation("density", f"leaf {leaf} holds {counts[sparse[0]]} keys, too few"))
    live = np.arange(slots) < counts[:, None]
    block = slice(begin << view.leaf_shift, end << view.leaf_shift)
    keys = view.keys[block].reshape(-1, slots)[live]
    last = last_key_before(view, begin)
    ascending = np.ones(keys.size, bool)
    ascending[1:] = keys[1:] > keys[:-1]
    if keys.size and last is not None:
        ascending[0] = keys[0] > last
    _report(found, "order", "keys do not ascend", keys[~ascending])
    known = _exist(graph, sources(keys)) & _exist(graph, destinations(keys))
    _report(found, "range", "keys name vertices that do not exist", keys[~known])
    if found:
        return found, keys.size  # what follows relies on order and on rows that exist
    leaves = np.repeat(np.arange(begin, end), counts)
    ends = np.ones(keys.size, bool)
    ends[1:-1] = (leaves[1:-1] != leaves[:-2]) | (leaves[1:-1] != leaves[2:])
    _report(found, "look-up", "keys are not found where they are", keys[ends][~array.has_edge(keys[ends])])
    _check_rows(found, view, keys, leaves, last)
    if mirror is not None:
        is_weighted = array.weighted and mirror.weighted
        weights = view.weights[block].reshape(-1, slots)[live] if is_weighted else None
        image = transpose(keys)
        alike = mirror.has_edge(image) if weights is None else mirror.weights_of(image) == weights
        _report(found, "mirror", "arcs that the rows of the other direction lack, or hold otherwise", keys[~alike])
    return found, keys.size


def _exist(graph: Graph, vertices: Vertices) -> npt.NDArray[np.bool_]:
    """Which of these are vertices of the graph, and not deleted."""
    exist = vertices < graph.n_vertices
    if graph.n_alive < graph.n_vertices:
        exist[exist] = graph.alive[vertices[exist]]
    return exist


def audit_totals(graph: Graph) -> tuple[list[Violation], int]:
    """Check what adds up over whole arrays, in O(vertices + leaves)."""
    found = []
    for array in (array for host in graph.hosts for array in host.arrays):
        view = array.view()
        held = int(view.counts.sum(dtype=np.int64))
        degrees = int(view.degrees[: graph.n_vertices].sum(dtype=np.int64))
        if not held == degrees == array.n_edges:
            detail = f"leaves hold {held} keys, degrees add up to {degrees}, and there are {array.n_edges} arcs"
            found.append(Violation("totals", detail))
    with suppress(LookupError):  # a graph without in-rows has nothing to compare
        sizes = {graph.n_stored("out"), graph.n_stored("in")}
        if len(sizes) > 1:
            found.append(Violation("totals", f"out-rows and in-rows hold different numbers of arcs: {sizes}"))
    return found, 0


def _check_rows(
    found: list[Violation], view: RowView, keys: Keys, leaves: npt.NDArray[np.int64], last: np.uint64 | None
) -> None:
    """Rows that begin in these leaves: their place and their length."""
    src = sources(keys)
    first = np.ones(keys.size, bool)
    first[1:] = src[1:] != src[:-1]
    if keys.size and last is not None:
        first[0] = src[0] != last >> HALF
    begins = np.flatnonzero(first)
    row = src[begins]
    length = np.diff(np.append(begins, keys.size))
    if begins.size:
        length[-1] += _keys_of_row(view, int(leaves[-1]) + 1, row[-1])
    wrong = (length != view.degrees[row]) | (leaves[begins] != view.row_leaf[row])
    _report(found, "row", "rows of another length or place than the row index says", keys[begins][wrong])


def last_key_before(view: RowView, leaf: int) -> np.uint64 | None:
    """The last key before a leaf, or None."""
    slot = _last_slot_before(view, leaf)
    return None if slot < 0 else np.uint64(view.keys[slot])


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _last_slot_before(view, leaf):  # type: ignore[no-untyped-def]
    """The slot of the last key before a leaf, or -1."""
    for slot, stop in live_runs_before(view, leaf):
        if slot < stop:
            return min(stop, slot + (np.int64(1) << view.leaf_shift)) - 1
    return np.int64(-1)


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def leaf_after(view, n_vertices, key):  # type: ignore[no-untyped-def]
    """The first leaf with a key above this one; as many as there are leaves if there is none."""
    row = np.int64(key >> HALF)
    while row < n_vertices and view.degrees[row] == 0:
        row += 1
    leaf = np.int64(view.row_leaf[row]) if row < n_vertices else np.int64(view.counts.size)
    for slot, stop in live_runs(view, leaf):
        end = min(stop, slot + (np.int64(1) << view.leaf_shift))
        if slot < end and view.keys[end - 1] > key:
            return slot >> view.leaf_shift
    return np.int64(view.counts.size)


@nb.njit(cache=True, nogil=True, error_model="numpy")
@spliced
def _keys_of_row(view, leaf, row):  # type: ignore[no-untyped-def]
    """How many keys of a row there are from a leaf on, the leaf before it ending with one.

    A leaf that ends with one holds nothing else, as far as keys ascend: of a hub's leaves one key each is read.
    """
    found = np.int64(0)
    for slot, stop in live_runs(view, leaf):
        end = min(stop, slot + (np.int64(1) << view.leaf_shift))
        if slot < end and view.keys[end - 1] >> HALF != np.uint64(row):
            at = slot
            while view.keys[at] >> HALF == np.uint64(row):
                at += 1
            return found + at - slot
        found += max(end - slot, np.int64(0))
    return found


def _report(found: list[Violation], rule: str, detail: str, keys: Keys) -> None:
    if keys.size:
        ends: Vertices = np.unique(np.concatenate([sources(keys[:EVIDENCE]), destinations(keys[:EVIDENCE])]))
        found.append(Violation(rule, f"{keys.size} arcs: {detail}", tuple(int(v) for v in ends)))
