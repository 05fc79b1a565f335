"""What ``cores.py`` measures, in a process that may use so many cores and no more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
from rmat_pool import Pool, mixed

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.program import ExternalId, Program
from graphtide.gpma.edges import EdgeBatch, EdgeList, Vertices, destinations, sources
from graphtide.gpma.index.ids import IntColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

NEW_IDS = 1_000_000
"""Vertices that the index gets at once while it is filled."""
FEW_ROUNDS = 3
"""At most so many rounds for what takes the same time whenever it is done."""

Row = dict[str, Any]


@nb.njit(nogil=True, parallel=True, cache=True, error_model="numpy")
def _read(values, threads):  # type: ignore[no-untyped-def]
    """The sum of a column, each thread reading a part of it from front to back."""
    part = values.size // threads
    total = np.uint64(0)
    for t in nb.prange(threads):
        found = np.uint64(0)
        for i in range(t * part, (t + 1) * part):
            found += values[i]
        total += found
    return total


@nb.njit(nogil=True, parallel=True, cache=True, error_model="numpy")
def _gather(values, gathers, threads):  # type: ignore[no-untyped-def]
    """The sum of so many entries at random places; ``values`` has a power of two of them."""
    mask = np.uint64(values.size - 1)
    part = gathers // threads
    total = np.uint64(0)
    for t in nb.prange(threads):
        found = np.uint64(0)
        for i in range(t * part, (t + 1) * part):
            found += values[np.uintp(mixed(np.uint64(i)) & mask)]
        total += found
    return total


class Names:
    """External ids and the vertices that have them."""

    def __init__(self, n_vertices: int) -> None:
        self.index = VertexIndex.create("int")
        self.ids: IntColumn = (np.arange(n_vertices, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(
            np.int64
        )

    def resolve(self, ids: Sequence[ExternalId]) -> Vertices:
        return self.index.lookup(np.array(ids, np.int64))


class Measured:
    """One graph, what it is made of and what is kept of it, on all cores that this process may use.

    Every method returns rows: ``what``, and the median ``ms`` of the rounds with the cores that were busy in them,
    or ``M/s`` or ``GB/s`` where that is what the machine can do.
    """

    def __init__(self, folder: Path, kinds: Sequence[str], rounds: int, seed: int) -> None:
        self.threads = len(os.sched_getaffinity(0))
        self._pool = Pool.read(folder)
        self._rounds = rounds
        self._rng = np.random.default_rng(seed)
        self._names = Names(self._pool.n_vertices)
        self._root = int(self._names.ids[np.bincount(sources(self._pool.loaded)).argmax()])
        self._programs = [self._program(kind) for kind in kinds]
        weighted = any(program.needs_weights for program in self._programs)
        self._weights = self._some_weights(self._pool.loaded.size) if weighted else None
        self._graph = self._new_graph()
        self._names.index.crew = self._graph.crew
        self._engines: dict[str, Engine] = {}

    # -- the steps, in this order --------------------------------------------------------------------------------

    def memory(self, entries: int, mebibytes: int) -> list[Row]:
        """What the machine's memory does: read so much from front to back, and gather from all of it and from a
        column of so many entries."""
        values = np.ones(mebibytes << 17, np.uint64)
        gathers = values.size // 2
        read = self._best(lambda: _read(values, self.threads))
        found = [{"what": "memory read", "GB/s": values.nbytes / read / 1e9}]
        for name, size in ((f"of {entries:,}", entries), (f"of {mebibytes / 1024:g} GiB", values.size)):
            gather = self._best(lambda size=size: _gather(values[:size], gathers, self.threads))  # type: ignore[misc]
            found.append({"what": f"memory gather {name}", "M/s": gathers / gather / 1e6})
        return found

    def index(self) -> list[Row]:
        """Fill the vertex index."""
        pieces = np.array_split(self._names.ids, -(-self._names.ids.size // NEW_IDS))
        clock = Clock()
        for ids in pieces:
            with clock:
                self._names.index.insert(ids)
        return [clock.row("index new", total=True, updates=self._names.ids.size)]

    def load(self) -> list[Row]:
        """Load graphs, the last of which stays, and export it."""
        edges = EdgeList(np.array(self._pool.loaded), self._weights)
        loading, exporting = Clock(), Clock()
        for _ in range(min(self._rounds, FEW_ROUNDS)):
            self._graph.close()
            self._graph = self._new_graph()
            self._names.index.crew = self._graph.crew
            with loading:
                self._graph.load(edges, self._pool.n_vertices)
        for _ in range(min(self._rounds, FEW_ROUNDS)):
            with exporting:
                self._graph.export()
        engines = {program.id: [program] for program in self._programs} | {"all": self._programs}
        self._engines = {
            name: Engine(self._graph, programs, self._names.resolve, threads=self.threads)
            for name, programs in engines.items()
        }
        return [clock.row(name, updates=len(edges)) for name, clock in (("load", loading), ("export", exporting))]

    def start(self, id: str) -> list[Row]:
        """Compute a program, or all side by side, from scratch, the first time left out."""
        clock, read, rounds = Clock(), [0], [0]
        for turn in range(self._rounds + 1):
            begun = clock if turn else Clock()
            with begun:
                runs = self._engines[id].start()
            read, rounds = _work(runs)
        return [clock.row(f"{id} fresh") | {"edges read": sum(read), "iterations": sum(rounds)}]

    def epochs(self, updates: int) -> list[Row]:
        """Index and apply batches of one size, and bring every program up to date, the first time left out."""
        names = ("index", "apply", *self._engines)
        clocks = {name: Clock() for name in names}
        work: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        for turn in range(2 * self._rounds + 2):
            times = clocks if turn > 1 else {name: Clock() for name in names}
            keys, ops = self._pool.updates(updates, self._rng)
            weights = None if self._weights is None else self._some_weights(updates)
            src, dst = (self._names.ids[part(keys)] for part in (sources, destinations))
            with times["index"]:
                dense, _ = self._names.index.edge_keys(src, dst, np.ones(updates, np.bool_))
            batch = EdgeBatch(dense, ops, weights)
            with times["apply"]:
                change = self._graph.apply(batch, self._pool.n_vertices)
            # In turns, since both bring the same programs up to date.
            for id in ["all"] if turn % 2 else [program.id for program in self._programs]:
                with times[id]:
                    runs = self._engines[id].refresh(change)
                read, rounds = _work(runs)
                work[id].append((sum(read), sum(rounds)))
        rows = []
        for name, clock in clocks.items():
            row = clock.row(f"{name} refresh" if name in self._engines else name, updates=updates)
            if work[name]:
                read_edges, iterations = np.median(work[name][1:], axis=0)
                row |= {"edges read": int(read_edges), "iterations": int(iterations)}
            rows.append(row)
        return rows

    # -- inside --------------------------------------------------------------------------------------------------

    def _new_graph(self) -> Graph:
        return Graph(weighted=self._weights is not None, threads=self.threads)

    def _program(self, kind: str) -> Program:
        known = {parameter.name for parameter in registry.program_class(kind).parameters}
        given: dict[str, Any] = dict.fromkeys(known & {"source", "sources"}, self._root)
        return registry.make_program(kind, None, given, self._names.index)

    def _some_weights(self, count: int) -> npt.NDArray[np.float32]:
        return self._rng.integers(1, 256, count, np.uint8).astype(np.float32)

    def _best(self, work: Callable[[], object]) -> float:
        """The least seconds of a few rounds, after one that compiles."""
        clock = Clock()
        work()
        for _ in range(FEW_ROUNDS):
            with clock:
                work()
        return min(clock.seconds)


class Clock:
    """Seconds, and processor seconds of the whole process, of the blocks that it is put around."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.used: list[float] = []

    def __enter__(self) -> Clock:
        self._used, self._begun = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        self.used.append(time.process_time() - self._used)

    def row(self, what: str, *, updates: int | None = None, total: bool = False) -> Row:
        """The median of all times, or their sum."""
        seconds, used = ((np.sum if total else np.median)(times) for times in (self.seconds, self.used))
        row: Row = {"what": what, "ms": float(seconds) * 1e3, "busy": float(used / seconds)}
        return row if updates is None else row | {"updates": updates}


def _work(runs: Iterable[Any]) -> tuple[list[int], list[int]]:
    """Edges read and iterations of each program."""
    done = list(runs)
    failed = [f"{run.id}: {run.error}" for run in done if run.refresh is None]
    if failed:
        raise RuntimeError("; ".join(failed))
    return [run.refresh.edges_read for run in done], [run.refresh.iterations for run in done]
