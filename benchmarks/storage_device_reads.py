"""Reads of the device array against a CSR of the same edges in the same run: scans, load, export, look-ups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from device_graph import (
    KERNELS,
    THREADS,
    WARM_UP,
    Graph,
    Row,
    blocks,
    clocked,
    cupy,
    mixed_batch,
    timed,
)

from graphtide.gpma.device import module, reads
from graphtide.gpma.device.array import DevicePackedArray
from graphtide.gpma.device.state import plain
from graphtide.gpma.edges import EdgeList

LEAVES_A_WARP = 8  # as in storage_device.cu
ROWS_READ = 100_000
IN_A_ROW = 5


def scans(graph: Graph, repeats: int) -> list[Row]:
    """Pull SpMV and a pass over all edges, in place, as shares of a CSR's speed on the same edges."""
    array = graph.array()
    for _ in range(5):  # no fresh load: leaves as batches leave them
        array.apply(mixed_batch(graph, min(int(graph.pool.size) // 8, 1_000_000)))
    view = array.view()
    kernels = {
        name: module.load(KERNELS, weighted=True).get_function(name)
        for name in ("pull_by_leaf", "pull_by_row", "pull_by_tile", "iterate_leaves", "csr_pull", "csr_iterate")
    }
    n, n_leaves = graph.n_vertices, int(view.counts.size)
    x, y, total = (
        graph.random.random_sample(n).astype(np.float32),
        cupy.zeros(n, np.float32),
        cupy.zeros(1, np.uint64),
    )
    csr, arrays = csr_of(array)
    csr_blocks = blocks(32 * -(-view.n_edges // reads.CHUNK_EDGES))
    vertices = cupy.arange(n, dtype=np.uint32)
    walk_seconds = timed(lambda: reads.walk_of(view, vertices), 3)
    walk = reads.walk_of(view, vertices)
    tile_blocks = blocks(8 * n)
    leaf_blocks = blocks(32 * -(-n_leaves // LEAVES_A_WARP))
    row_blocks = blocks(32 * walk.n_chunks)
    some = (min(2112, leaf_blocks[0]),)
    launches: dict[str, tuple[str, tuple[int], tuple[Any, ...]]] = {
        "CSR pull, own": ("csr_pull", csr_blocks, (csr, x, y)),
        "pull by leaf": ("pull_by_leaf", leaf_blocks, (view.state, x, y)),
        "pull by row": ("pull_by_row", row_blocks, (view.state, walk.walk, x, y)),
        "pull by row, a tile each": ("pull_by_tile", tile_blocks, (view.state, vertices, np.uint32(n), x, y)),
        "CSR all edges": ("csr_iterate", some, (csr, total)),
        "all edges": ("iterate_leaves", some, (view.state, total)),
    }
    times = {
        name: timed(partial(kernels[kernel], grid, (THREADS,), arguments), repeats, IN_A_ROW)
        for name, (kernel, grid, arguments) in launches.items()
    }
    times["CSR pull, cuSPARSE"] = cusparse_seconds(array, x, repeats)
    assert_same_sums(kernels, view, walk, csr, (leaf_blocks, row_blocks, csr_blocks), x)
    pull = min(seconds for name, seconds in times.items() if name.startswith("CSR pull") and seconds)
    rows = []
    for name, seconds in times.items():
        bar = times["CSR all edges"] if "all edges" in name else pull
        rows.append(
            {
                "scale": graph.scale,
                "scan": name,
                "us": seconds * 1e6,
                "G edges/s": view.n_edges / seconds / 1e9 if seconds else 0.0,
                "share of CSR": bar / seconds if seconds else 0.0,
            }
        )
    rows.append({"scale": graph.scale, "scan": "preparing the walk by row", "us": walk_seconds * 1e6})
    rows[-1].update({"G edges/s": view.n_edges / walk_seconds / 1e9, "share of CSR": pull / walk_seconds})
    del arrays
    return rows


def csr_of(array: DevicePackedArray) -> tuple[Any, Any]:
    """struct Csr of storage_device.cu, and its arrays."""
    offsets, neighbors, weights = array.export_csr()
    vertices = cupy.flatnonzero(cupy.diff(offsets)).astype(np.uint32)
    offsets = cupy.append(offsets[vertices], offsets[-1:])
    chunks = cupy.arange(0, array.n_edges, reads.CHUNK_EDGES, dtype=np.uint64)
    chunk_rows = (cupy.searchsorted(offsets, chunks, side="right") - 1).astype(np.uint32)
    arrays = (vertices, offsets, neighbors, weights, chunk_rows)
    kind = [*((f"array{i}", np.uint64) for i in range(5)), ("n_edges", np.uint64), ("n_rows", np.uint32)]
    csr = np.zeros(1, np.dtype([*kind, ("unused", np.uint32)]))
    csr[0] = (*(column.data.ptr for column in arrays), array.n_edges, vertices.size, 0)
    return plain(csr), arrays


def cusparse_seconds(array: DevicePackedArray, x: Any, repeats: int) -> float:
    """Seconds of CuPy's CSR product; 0 where it cannot be had."""
    try:
        from cupyx.scipy.sparse import csr_matrix

        offsets, neighbors, weights = array.export_csr()
        columns = (weights, neighbors.astype(np.int32), offsets.astype(np.int32))
        matrix = csr_matrix(columns, shape=(array.n_vertices, array.n_vertices))
        return timed(lambda: matrix @ x, repeats, IN_A_ROW)
    except (ImportError, ValueError, RuntimeError) as error:
        print(f"no cuSPARSE: {error}")
        return 0.0


def assert_same_sums(kernels: Any, view: Any, walk: Any, csr: Any, grids: Any, x: Any) -> None:
    sums = []
    for name, grid, arguments in (
        ("pull_by_leaf", grids[0], (view.state,)),
        ("pull_by_row", grids[1], (view.state, walk.walk)),
        ("csr_pull", grids[2], (csr,)),
    ):
        y = cupy.zeros(x.size, np.float32)
        kernels[name](grid, (THREADS,), (*arguments, x, y))
        sums.append(y.get())
    for y in sums[:2]:
        assert np.allclose(y, sums[2], rtol=1e-3, atol=1e-3)


def whole(graph: Graph, repeats: int, copy: float) -> list[Row]:
    array = graph.array()
    n = array.n_edges
    order = graph.random.permutation(n)
    keys, weights = graph.loaded[order], graph.weights(n)
    sorted_edges = EdgeList(graph.loaded, weights)
    some = graph.random.randint(0, graph.n_vertices, ROWS_READ).astype(np.uint32)
    asked = cupy.concatenate([graph.loaded[order[:500_000]], graph.pool[:500_000]])
    gathered = int(array.rows(some).neighbors.size)
    times = {
        "load, sorted": (lambda: array.load(sorted_edges), n, 2 * 12 * n),
        "load, unsorted": (lambda: array.load_unsorted(keys, weights), n, 2 * 12 * n),
        "export": (array.export, n, 2 * 12 * n),
        "export as CSR": (array.export_csr, n, 20 * n),
        f"rows of {ROWS_READ:,} vertices": (lambda: array.rows(some), gathered, 20 * gathered),
        "look-ups": (lambda: array.has_edge(asked), int(asked.size), 9 * int(asked.size)),
    }
    rows = []
    for name, (work, edges, n_bytes) in times.items():

        def whole_work(work: Callable[[], Any] = work) -> None:
            work()
            array.stream.synchronize()

        took = median([clocked(whole_work)[0] for _ in range(WARM_UP + max(3, repeats // 2))][WARM_UP:])
        rows.append(
            {
                "scale": graph.scale,
                "what": name,
                "ms": took * 1e3,
                "M edges/s": edges / took / 1e6,
                "share of copy": n_bytes / took / copy,
            }
        )
    return rows
