"""The host's packed arrays under streams of updates: rates, where the time goes, memory; and the vertex index."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from numba.core.dispatcher import Dispatcher
from storage_streams import Stream

from graphtide.gpma.edges import EdgeBatch, EdgeList, destinations
from graphtide.gpma.host import array as pma
from graphtide.gpma.host import migration
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

GRAPHS: Mapping[str, Mapping[str, bool]] = {
    "keys": {"weighted": False, "in_edges": False},
    "weights": {"weighted": True, "in_edges": False},
    "keys-both": {"weighted": False, "in_edges": True},
    "weights-both": {"weighted": True, "in_edges": True},
}
"""What is stored: weights or none; out-rows alone, or both orientations."""

# After so many timed batches a median is one.
TIMED_MIN = 5
ROUNDS_MAX = 6
STAGE_SHARE_MIN = 0.04


@contextmanager
def loaded_graph(kind: str, stream: Stream) -> Iterator[Graph]:
    """A graph that holds what the stream begins with. How many threads an array uses is ``Graph``'s to say."""
    graph = Graph(**GRAPHS[kind])
    try:
        graph.load(stream.loaded, stream.n_vertices)
        yield graph
    finally:
        graph.close()


def copy_bandwidth() -> dict[str, float]:
    """GB/s of a plain memory copy, bytes read and written added up, by one thread and by two at once."""
    source = np.ones(1 << 25, np.float64)
    target = np.zeros_like(source)
    halves = [slice(0, source.size // 2), slice(source.size // 2, source.size)]
    found = {}
    with ThreadPoolExecutor(2) as pool:
        for name, parts in (("one thread", [slice(None)]), ("two threads", halves)):

            def copy(parts: list[slice] = parts) -> None:
                list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

            times = [timed(copy) for _ in range(7)]
            found[name] = 2 * source.nbytes / statistics.median(times) / 1e9
    return found


def measure(kind: str, stream: Stream, batch: int, seconds: float, copy_gbs: float) -> dict[str, Any] | None:
    """Rates of a stream: the median batch, the slow ones against it, where the time goes; None if it is too short.

    The first batch after each loading is not timed (it takes the work memory), and the second shows the stages.
    """
    times: list[float] = []
    cpu_times: list[float] = []
    stages: dict[str, float] = {}
    traffic = 0
    for _ in range(ROUNDS_MAX):
        with loaded_graph(kind, stream) as graph:
            i = -1  # there may be no batch of this size at all
            for i, updates in enumerate(stream.batches()):
                if i == 0 and not times:
                    traffic = bytes_touched(graph, updates)
                if i == 1 and not stages:
                    with stage_times() as stages:
                        graph.apply(updates, stream.n_vertices)
                    continue
                cpu_before = time.thread_time()
                took = timed(lambda updates=updates: graph.apply(updates, stream.n_vertices))
                if i > 0:
                    times.append(took)
                    cpu_times.append(time.thread_time() - cpu_before)
                if sum(times) > seconds and len(times) >= TIMED_MIN:
                    break
            if i < 2:
                return None
            slots = graph.memory_bytes()["slots"]
        if len(times) >= TIMED_MIN:
            break
    median = statistics.median(times)
    return {
        "graph": kind,
        "batch": batch,
        "batches": len(times),
        "median ms": median * 1e3,
        "M updates/s": batch / median / 1e6,
        **slow_shares(times),
        "worst CPU / median": max(cpu_times) / statistics.median(cpu_times),
        **{f"floor: {name}": share for name, share in slow_shares(noise_floor(median, sum(times))).items()},
        "GB/s": traffic / median / 1e9,
        "share of copy": traffic / median / 1e9 / copy_gbs,
        "stages": described(stages),
        "stages by kernel": {name: seconds / sum(stages.values()) for name, seconds in stages.items()},
        "slot bytes": slots,
    }


def slow_shares(times: Sequence[float]) -> dict[str, float]:
    """How many times longer than the median the slow ones take."""
    median, p99, most, worst = np.quantile(times, (0.5, 0.99, 0.999, 1))
    return {"p99": p99 / median, "p99.9": most / median, "worst": worst / median}


def noise_floor(each: float, seconds: float) -> list[float]:
    """The times of equal pieces of work, memory copies of about ``each`` seconds, repeated for so many seconds.

    What their slow ones take above the median is the machine's doing: another's turn, an interrupt, a migration.
    """
    source = np.ones(1 << 17)
    target = np.zeros_like(source)
    copies = max(1, round(each / statistics.median(timed(lambda: np.copyto(target, source)) for _ in range(20))))

    def work() -> None:
        for _ in range(copies):
            np.copyto(target, source)

    times: list[float] = []
    while sum(times) < seconds or len(times) < TIMED_MIN:
        times += [timed(work) for _ in range(TIMED_MIN)]
    return times


def bytes_touched(graph: Graph, batch: EdgeBatch) -> int:
    """The least that a batch must move: itself and its report, and each leaf that it falls into, read and written.

    Counted in the out-rows; another orientation is taken to be alike.
    """
    rows = graph.out_rows()
    bounds = np.cumsum(rows.counts, dtype=np.int64)
    place = np.searchsorted(graph.export().keys, batch.keys)
    leaves = np.unique(np.searchsorted(bounds, place, side="right")).size
    entry = 8 + (4 if graph.weighted else 0)
    return len(graph.host.arrays) * (leaves * (2 * entry << rows.leaf_shift) + len(batch) * (2 * entry + 1))


@contextmanager
def stage_times() -> Iterator[dict[str, float]]:
    """Seconds by kernel, of all kernels that the arrays call from Python, on whatever thread."""
    spent: dict[str, float] = {}
    lock = threading.Lock()

    def clocked(name: str, kernel: Dispatcher) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = kernel(*arguments)
            with lock:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - started
            return result

        return call

    callers = (pma, migration)
    modules = {part for caller in callers for part in vars(caller).values() if isinstance(part, ModuleType)}
    kernels = [
        (module, name, kernel)
        for module in {*callers, *(part for part in modules if part.__name__.startswith("graphtide.gpma."))}
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
    ]
    patches = [mock.patch.object(module, name, clocked(name, kernel)) for module, name, kernel in kernels]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()


def described(stages: Mapping[str, float]) -> str:
    """The larger shares, largest first."""
    total = sum(stages.values())
    shares = sorted(((seconds / total, name) for name, seconds in stages.items()), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= STAGE_SHARE_MIN)


class NumpyCsr:
    """The plain alternative: edges in one sorted array, each batch sorted and merged into a new CSR by NumPy."""

    def __init__(self, edges: EdgeList, n_vertices: int) -> None:
        assert edges.weights is not None
        self.keys, self.weights = edges.keys, edges.weights
        self._rows = np.arange(n_vertices + 1, dtype=np.uint64) << np.uint64(32)

    def apply(self, batch: EdgeBatch) -> None:
        """Apply a batch; afterwards there is a CSR of all edges."""
        assert batch.weights is not None
        order = np.argsort(batch.keys, kind="stable")
        keys = batch.keys[order]
        last = order[np.append(keys[1:] != keys[:-1], True)]
        keys, insert, weights = batch.keys[last], batch.ops[last] == 1, batch.weights[last]
        place = np.searchsorted(self.keys, keys)
        found = np.zeros(keys.size, bool)
        inside = place < self.keys.size
        found[inside] = self.keys[place[inside]] == keys[inside]
        over = found & insert
        self.weights = self.weights.copy()
        self.weights[place[over]] = weights[over]
        keep = np.ones(self.keys.size, bool)
        keep[place[found & ~insert]] = False
        kept, new = self.keys[keep], insert & ~found
        into = np.searchsorted(kept, keys[new])
        self.keys = np.insert(kept, into, keys[new])
        self.weights = np.insert(self.weights[keep], into, weights[new])
        self.offsets = np.searchsorted(self.keys, self._rows)
        self.neighbors = destinations(self.keys)


def rebuild_seconds(stream: Stream, batches: int = 3) -> float:
    """The median batch of ``NumpyCsr`` on the same stream; where nothing was loaded, in the middle of it."""
    csr = NumpyCsr(stream.loaded, stream.n_vertices)
    updates = stream.batches()
    if not len(stream.loaded):
        everything = list(updates)
        for batch in everything[: len(everything) // 2]:
            csr.apply(batch)
        updates = iter(everything[len(everything) // 2 :])
    return statistics.median(
        timed(lambda batch=batch: csr.apply(batch)) for batch in itertools.islice(updates, batches)
    )


def memory_over(kind: str, stream: Stream, from_edges: int) -> list[dict[str, Any]]:
    """Bytes per directed edge after every batch that leaves at least ``from_edges``; the parts apart."""
    points = []
    with loaded_graph(kind, stream) as graph:
        for batch in stream.batches():
            graph.apply(batch, stream.n_vertices)
            if graph.n_edges >= from_edges:
                sizes = graph.memory_bytes()
                each = {f"{name} B/edge": size / graph.n_edges for name, size in sizes.items()}
                points.append({"edges": graph.n_edges, "B/edge": sum(each.values()), **each})
    return points


def index_rows(kind: str, size: int, where: str, batch: int = 100_000) -> dict[str, Any]:
    """Ids a second: inserted into an empty index (growth included), and looked up at random when all are in."""
    rng = np.random.default_rng(size)
    numbers = rng.permutation(size) * 7919 + 1
    ids: IdColumn = numbers if kind == "int" else StringColumn.of(f"user-{number}" for number in numbers.tolist())
    positions = [np.arange(begin, min(begin + batch, size)) for begin in range(0, size, batch)]
    parts = [ids[position] for position in positions]
    index = VertexIndex.create(kind)  # type: ignore[arg-type]
    insert_s = [timed(lambda part=part: index.insert(part)) for part in parts]
    asked = [ids[rng.integers(0, size, batch)] for _ in range(10)]
    lookup_s = statistics.median(timed(lambda part=part: index.lookup(part)) for part in asked)
    return {
        "ids": kind,
        "vertices": size,
        "where": where,
        "M inserts/s": size / sum(insert_s) / 1e6,
        "worst insert batch ms": max(insert_s) * 1e3,
        "M look-ups/s": batch / lookup_s / 1e6,
        "B/vertex": index.memory_bytes() / size,
    }


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
