"""A small change looks at no vertex that it does not concern: memory of the others may be out of reach meanwhile.

Programs run in a process of their own on a graph most of whose vertices have no edges. While they are brought up
to date, the middle of each of their columns is protected against reading and writing, by compiled code as by
NumPy: whoever looks there is ended by the system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphtide.compute.program import Program
from graphtide.compute.registry import make_program
from graphtide.gpma.edges import EdgeBatch, Op
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

N, NEAR = 1 << 20, 1_000
"""The vertices, and how many of them, the first, have edges."""
KINDS = ("triangles", "lcc", "kcore", "cdlp", "bfs")


@pytest.mark.sample(2)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_change_looks_at_no_other_vertex(kind: str, directed: bool) -> None:
    assert _ended(kind, directed, "refresh") == 0
    # What does look at all of them does not get through.
    assert _ended(kind, directed, "audit") == -signal.SIGSEGV


def _ended(kind: str, directed: bool, what: str) -> int:
    """How a process of its own ends."""
    command = [sys.executable, __file__, kind, str(int(directed)), what]
    return subprocess.run(command, timeout=300, check=False, stdout=subprocess.DEVNULL).returncode


def _columns(of: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All arrays that an object, or what it has in lists and records, has."""
    if isinstance(of, np.ndarray):
        yield of
    elif isinstance(of, list | tuple):
        for item in of:
            yield from _columns(item)
    elif isinstance(of, dict):
        yield from _columns(list(of.values()))


def _protect(program: Program) -> int:
    """Put the middle half of each large column out of reach: how many those are."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    addresses = {column.ctypes.data: column.nbytes for column in _columns(vars(program)) if column.size >= N}
    for address, size in addresses.items():
        begin = -(-(address + size // 4) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        assert protect(ctypes.c_void_p(begin), ctypes.c_size_t(length), 0) == 0, os.strerror(ctypes.get_errno())
    return len(addresses)


def _main(kind: str, directed: bool, what: str) -> None:
    rng = np.random.default_rng(1)
    index = VertexIndex.create("int")
    index.insert(np.arange(N))
    graph = Graph(directed=directed, weighted=False, threads=1)

    def batch(size: int, op: Op) -> EdgeBatch:
        src, dst = rng.integers(0, NEAR, (2, size)).astype(np.uint32)
        return EdgeBatch.of(src, dst, np.full(size, op, np.uint8))

    graph.apply(batch(10_000, Op.INSERT), N)
    program = make_program(kind, None, {"source": 0} if kind == "bfs" else {}, index)
    program.bind(np.zeros(len(program.sources), np.uint32))
    program.start(graph)
    # What grows, or is computed for the first time, does so now.
    for op in (Op.INSERT, Op.DELETE):
        program.refresh(graph, graph.apply(batch(100, op), N))
    for op in (Op.INSERT, Op.DELETE):
        change = graph.apply(batch(30, op), N)
        if op == Op.INSERT:
            assert _protect(program) > 0
        if what == "audit":
            program.audit(graph)
        assert not program.refresh(graph, change).started_over
        program.scalars()
    # Without giving anything back, which may look at it.
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2] == "1", sys.argv[3])
