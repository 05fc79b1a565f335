"""When gathering rows pays: walks of rows in place against a copy without gaps, and several vectors in one pass.

    python benchmarks/gathers.py [--scale 20] [--json FILE]

A program may walk the rows of its active vertices where they lie (8-byte keys, gaps, a look-up a row), or gather
them first (``gpma/host/gather.py``: 4-byte neighbours behind each other) and walk the copy k times. Pull: add up a
number of each in-neighbour. Push: add to a number of each out-neighbour. For several sets of active vertices the
table has nanoseconds an edge, one thread, rows asked for ahead, and the number of walks from which gathering is
the faster way (``-``: never).

Programs of one epoch could also share a pass over the same rows: the last table has dense pulls in place for one,
two and four vectors side by side, against as many passes one after the other.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
from report import machine, save, show

from graphtide.daemon.tools.generate import Churn
from graphtide.gpma.edges import LOW, EdgeBatch, SubCSR, Vertices, pack
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.host.gather import gather
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.rows import RowView, runs_in_order, runs_of
from graphtide.gpma.splice import spliced
from graphtide.gpma.team import ALONE, Team
from graphtide.partition.graph import Graph

_jit = nb.njit(nogil=True, error_model="numpy")


@_jit
@spliced
def pull_in_place(rows, vertices, values, out):  # type: ignore[no-untyped-def]
    """A row after the other; consecutive ones without a look-up."""
    even = 0.0
    odd = 0.0
    for x, slot, stop, is_whole in runs_of(rows, vertices, 0, vertices.size):
        i = slot
        while i + 1 < stop:
            even += values[np.uintp(rows.keys[i] & LOW)]
            odd += values[np.uintp(rows.keys[i + 1] & LOW)]
            i += 2
        if i < stop:
            even += values[np.uintp(rows.keys[i] & LOW)]
        if is_whole:
            out[vertices[x]] = even + odd
            even = 0.0
            odd = 0.0


@_jit
def pull_gathered(offsets, neighbors, vertices, values, out):  # type: ignore[no-untyped-def]
    for x in range(vertices.size):
        even = 0.0
        odd = 0.0
        i = offsets[x]
        stop = offsets[x + 1]
        while i + 1 < stop:
            even += values[neighbors[i]]
            odd += values[neighbors[i + 1]]
            i += 2
        if i < stop:
            even += values[neighbors[i]]
        out[vertices[x]] = even + odd


@_jit
@spliced
def push_in_place(rows, vertices, values, out):  # type: ignore[no-untyped-def]
    for x, slot, stop, _ in runs_of(rows, vertices, 0, vertices.size):
        share = values[vertices[x]]
        for i in range(slot, stop):
            out[np.uintp(rows.keys[i] & LOW)] += share


@_jit
def push_gathered(offsets, neighbors, vertices, values, out):  # type: ignore[no-untyped-def]
    for x in range(vertices.size):
        share = values[vertices[x]]
        for i in range(offsets[x], offsets[x + 1]):
            out[neighbors[i]] += share


def _pull_of(width: int) -> Callable[..., None]:
    """A dense pull of so many vectors side by side."""

    @_jit
    @spliced
    def pull(rows, n, values, out):  # type: ignore[no-untyped-def]
        a = b = c = d = 0.0
        for v, slot, stop, is_whole in runs_in_order(rows, 0, n):
            for i in range(slot, stop):
                u = np.uintp(rows.keys[i] & LOW)
                a += values[u, 0]
                if width > 1:
                    b += values[u, 1]
                if width > 2:
                    c += values[u, 2]
                    d += values[u, 3]
            if not is_whole:
                continue
            out[v, 0] = a
            if width > 1:
                out[v, 1] = b
            if width > 2:
                out[v, 2] = c
                out[v, 3] = d
            a = b = c = d = 0.0

    return pull  # type: ignore[no-any-return]


def loaded(churn: Churn) -> Graph:
    index = VertexIndex.create("int")
    graph = Graph(weighted=False)
    for updates in churn.load(churn.settles_at):
        src, dst = index.insert_edges(updates.src, updates.dst)
        graph.apply(EdgeBatch(pack(src, dst), updates.ops, None), index.n_vertices)
    return graph


def ns_an_edge(ways: dict[str, Callable[[], object]], edges: int, repeats: int) -> dict[str, float]:
    """The least of so many turns, each way in turn, in processor time."""
    least = dict.fromkeys(ways, math.inf)
    for _ in range(repeats + 1):
        for name, way in ways.items():
            begun = time.thread_time()
            way()
            least[name] = min(least[name], time.thread_time() - begun)
    return {name: taken / max(1, edges) * 1e9 for name, taken in least.items()}


def row(
    name: str, array: PackedMemoryArray, vertices: Vertices, n: int, walk: str, repeats: int
) -> dict[str, Any]:
    """One line of the first table."""
    rows: RowView = array.view()
    values, out = np.random.default_rng(1).random(n), np.zeros(n)
    in_place, gathered = (pull_in_place, pull_gathered) if walk == "pull" else (push_in_place, push_gathered)
    copy: SubCSR = gather(rows, vertices, weighted=False, crew=ALONE)
    arguments = copy.offsets, copy.neighbors, vertices, values, out
    ns = ns_an_edge(
        {
            "in place": lambda: in_place(rows, vertices, values, out),
            "gathered": lambda: gathered(*arguments),
            "gather": lambda: gather(rows, vertices, weighted=False, crew=ALONE),
        },
        copy.neighbors.size,
        repeats,
    )
    gain = ns["in place"] - ns["gathered"]
    pays: int | str = math.ceil(ns["gather"] / gain) if gain > 0.02 * ns["in place"] else "-"
    return (
        {"active": name, "walk": walk, "vertices": vertices.size, "edges": copy.neighbors.size}
        | {f"{key}, ns": value for key, value in ns.items()}
        | {"pays from": pays}
    )


def shared(rows: RowView, n: int, edges: int, repeats: int) -> list[dict[str, Any]]:
    """The second table."""
    ways: dict[str, Callable[[], object]] = {}
    for width in (1, 2, 4):
        pull = _pull_of(width)
        values: npt.NDArray[np.float64] = np.random.default_rng(1).random((n, width))
        out = np.zeros((n, width))
        ways[str(width)] = lambda pull=pull, values=values, out=out: pull(rows, n, values, out)  # type: ignore[misc]
    ns = ns_an_edge(ways, edges, repeats)
    return [
        {"vectors": int(key), "ns an edge": value, "x as many passes": int(key) * ns["1"] / value}
        for key, value in ns.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=arguments.seed)
    graph = loaded(churn)
    n, rng = graph.n_vertices, np.random.default_rng(arguments.seed)
    out_rows, in_rows = graph.host.out, graph.host.in_
    assert in_rows is not None
    by_degree = np.argsort(-out_rows.view().degrees[:n].astype(np.int64), kind="stable")
    sets = {
        "all": np.arange(n),
        "hubs, 2,000": np.sort(by_degree[:2000]),
        "hubs, 20,000": np.sort(by_degree[:20_000]),
        **{f"any, 1/{s}": np.sort(rng.choice(n, max(1, n // s), replace=False)) for s in (4, 32, 1024)},
    }
    rows = [
        row(name, array, chosen.astype(np.uint32), n, walk, arguments.repeats)
        for walk, array in (("pull", in_rows), ("push", out_rows))
        for name, chosen in sets.items()
    ]
    show(f"rows of {graph.n_edges:,} edges, least of {arguments.repeats}, one thread", rows)
    team = Team(2)
    everything = np.arange(n, dtype=np.uint32)
    seconds: dict[str, float] = {}
    for name, crew in (("one", ALONE), ("two", team.crew())):
        taken = []
        for _ in range(arguments.repeats):
            begun = time.perf_counter()
            gather(in_rows.view(), everything, weighted=False, crew=crew)
            taken.append(time.perf_counter() - begun)
        seconds[name] = min(taken)
    threads = [
        {"threads": name, "gather of all, ms": least * 1e3, "M edges/s": graph.n_arcs / least / 1e6}
        for name, least in seconds.items()
    ]
    show("gathering everything", threads)
    passes = shared(in_rows.view(), n, graph.n_arcs, arguments.repeats)
    show("one pass for several vectors", passes)
    parameters = vars(arguments) | {"json": None}
    save(
        arguments.json,
        {"machine": machine(), "parameters": parameters, "rows": rows, "threads": threads, "passes": passes},
    )


if __name__ == "__main__":
    main()
