"""Reading a device array: single edges, rows gathered or walked in place (``reads.cu``, ``rows.cuh``).

All functions run on the current stream and write nothing that updates look at. Results are CuPy arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..edges import SubCSR
from .constants import CHUNK_EDGES, LOOK_UP_LANES, READ_THREADS
from .module import import_cupy
from .module import load as load_module
from .state import DeviceArray, address, allocate, plain, zeros
from .structures import WALK

BLOCKS_MAX = 1 << 14
# Parts into which vertices are cut to number their edges, one for each block.
PARTS_MAX = 1 << 10


class DeviceRows(NamedTuple):
    """What a kernel needs to read an array in place; valid until the next change.

    ``state``: struct State of ``array.cuh`` as plain bytes, to be passed by value. ``counts`` uint32[leaves] and
    ``degrees`` uint32[>= n_vertices] are arrays of it.
    """

    state: npt.NDArray[np.void]
    counts: DeviceArray
    degrees: DeviceArray
    n_vertices: int
    n_edges: int
    weighted: bool


class RowWalk(NamedTuple):
    """All edges of some rows in one numbering, cut into equal chunks: struct Walk of ``rows.cuh`` and its arrays.

    ``vertices`` uint32[rows], those without edges left out; ``offsets`` uint64[rows + 1]. Valid until the next
    change of the array; good for any number of passes over the rows.
    """

    walk: npt.NDArray[np.void]
    vertices: DeviceArray
    offsets: DeviceArray
    first_slots: DeviceArray
    begins: DeviceArray
    chunk_rows: DeviceArray
    leaf_ends: DeviceArray
    n_edges: int

    @property
    def n_chunks(self) -> int:
        return -(-self.n_edges // CHUNK_EDGES)


def has_edge(rows: DeviceRows, keys: DeviceArray) -> DeviceArray:
    """bool[n]: which of these edges are there."""
    found = allocate(keys.size, bool)
    _launch(rows, "has_edges", keys.size, (rows.state, keys, np.uint64(keys.size), found))
    return found


def weights_of(rows: DeviceRows, keys: DeviceArray) -> DeviceArray:
    """float32[n] weights of these edges; NaN where there is no such edge.

    Raises:
        LookupError: the array is unweighted.
    """
    if not rows.weighted:
        raise LookupError("this array keeps no weights")
    weights = allocate(keys.size, np.float32)
    _launch(rows, "weights_of_edges", keys.size, (rows.state, keys, np.uint64(keys.size), weights))
    return weights


def gather(rows: DeviceRows, vertices: DeviceArray) -> SubCSR:
    """The rows of these vertices (uint32 in any order, repeats allowed), side by side.

    Raises:
        IndexError: a vertex does not exist.
    """
    cupy = import_cupy()
    if vertices.size and (highest := int(vertices.max())) >= rows.n_vertices:
        raise IndexError(f"vertex {highest} of {rows.n_vertices}")
    offsets = allocate(vertices.size + 1, np.int64)
    offsets[:1] = 0
    cupy.cumsum(rows.degrees[vertices], dtype=np.int64, out=offsets[1:])
    n_edges = int(offsets[-1])
    neighbors = allocate(n_edges, np.uint32)
    weights = allocate(n_edges, np.float32) if rows.weighted else None
    if n_edges:
        walk = walk_of(rows, vertices)
        _launch(
            rows,
            "gather_rows",
            32 * walk.n_chunks,
            (rows.state, walk.walk, neighbors, np.uint64(address(weights))),
        )
    return SubCSR(vertices, offsets, neighbors, weights)


def walk_of(rows: DeviceRows, vertices: DeviceArray) -> RowWalk:
    """What ``walk_chunk`` of ``rows.cuh`` needs to visit the rows of these existing vertices, in this order."""
    n = int(vertices.size)
    n_parts = min(max(1, -(-n // READ_THREADS)), PARTS_MAX)
    measures = allocate(2 * n_parts, np.uint64)
    chosen = (rows.state, vertices, np.uint64(n), measures)
    _launch(rows, "measure_rows", n_parts * READ_THREADS, chosen)
    n_rows, n_edges = (int(part) for part in measures.get().reshape(-1, 2).sum(axis=0))
    n_chunks = -(-n_edges // CHUNK_EDGES)
    row_vertices, offsets = allocate(n_rows, np.uint32), allocate(n_rows + 1, np.uint64)
    first_slots, chunk_rows = allocate(n_rows, np.uint64), allocate(n_chunks, np.uint32)
    begins = zeros((n_edges >> 5) + 1, np.uint32)
    _launch(rows, "number_rows", n_parts * READ_THREADS, (*chosen, row_vertices, offsets, begins))
    arguments = (rows.state, row_vertices, np.uint64(n_rows), first_slots)
    _launch(rows, "find_first_slots", LOOK_UP_LANES * n_rows, arguments)
    sizes = (np.uint64(n_rows), np.uint64(n_chunks))
    _launch(rows, "find_chunk_rows", n_chunks, (offsets, *sizes, chunk_rows))
    leaf_ends = import_cupy().cumsum(rows.counts, dtype=np.uint64)
    walk = np.zeros(1, WALK)
    for name, array in (
        ("vertices", row_vertices),
        ("offsets", offsets),
        ("first_slots", first_slots),
        ("begins", begins),
        ("chunk_rows", chunk_rows),
        ("leaf_ends", leaf_ends),
    ):
        walk[name] = address(array)
    walk["n_edges"], walk["n_rows"], walk["n_vertices"] = n_edges, n_rows, rows.n_vertices
    return RowWalk(plain(walk), row_vertices, offsets, first_slots, begins, chunk_rows, leaf_ends, n_edges)


def _launch(rows: DeviceRows, kernel: str, n_threads: int, arguments: tuple[Any, ...]) -> None:
    n_blocks = min(-(-n_threads // READ_THREADS), BLOCKS_MAX)
    if n_blocks:
        function = load_module("reads.cu", weighted=rows.weighted).get_function(kernel)
        function((n_blocks,), (READ_THREADS,), arguments)
