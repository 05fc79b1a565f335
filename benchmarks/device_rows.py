"""Rows on a CUDA device that the benchmarks of programs there change, and how long they may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from device_graph import Graph, cupy

from graphtide.gpma.edges import DELETED, INSERTED, OVERWRITTEN, EdgeBatch, EdgeList
from graphtide.partition.device_side import DeviceSide

WARM_UP = 2


class Rows:
    """The rows of a graph, changed by batches and back. Runs of programs begin with their own calls, and are not
    launched behind a batch, but within ``followed``."""

    def __init__(self, graph: Graph, keys: Any) -> None:
        self.graph = graph
        self.rng = np.random.default_rng(2)
        self.device = DeviceSide(directed=True, weighted=True, in_edges=True, in_weights=True)
        self.device.ensure_vertices(graph.n_vertices)
        self.device.load(EdgeList(keys, graph.weights(keys.size)))
        self._unfollow()

    def _unfollow(self) -> None:
        side: Any = self.device
        side.follow, side._follower = (lambda _: None), None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """The program that is the first to be refreshed after a batch is launched with the next one."""
        side: Any = self.device
        del side.follow
        try:
            yield
        finally:
            self._unfollow()

    def apply(self, batch: EdgeBatch) -> EdgeBatch:
        """Apply a batch; returns what undoes it."""
        plan = self.device.prepare(batch)
        self.device.launch(plan)
        self.device.finish(plan)
        return self.undoing()

    def undoing(self) -> EdgeBatch:
        report = self.device.report
        outcome = report.outcome
        done = (outcome == INSERTED) | (outcome == DELETED) | (outcome == OVERWRITTEN)
        ops = (outcome != INSERTED).astype(np.uint8)
        return EdgeBatch(report.keys[done].copy(), ops[done], report.old_weights[done].copy())

    def mixed(self, n: int) -> EdgeBatch:
        """Four fifths new edges, a fifth deletions of loaded ones, shuffled; a lone update is either."""
        graph = self.graph
        n_deletes = n // 5 if n > 1 else int(self.rng.integers(0, 2))
        old = graph.loaded[cupy.asarray(self.rng.integers(0, graph.loaded.size, n_deletes))]
        keys = cupy.concatenate([graph.fresh(n - n_deletes), old])
        ops = cupy.ones(keys.size, np.uint8)
        ops[n - n_deletes :] = 0
        order = graph.random.permutation(keys.size)
        return EdgeBatch(keys[order], ops[order], graph.weights(keys.size))


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Microseconds of one call, and what it returned."""
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    result = work()
    return (time.perf_counter() - begin) * 1e6, result


class Budget:
    """Repeats as far as the time goes: each measurement once at least."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.perf_counter() + seconds

    @property
    def is_spent(self) -> bool:
        return time.perf_counter() > self._ends

    def repeats(self, most: int) -> Iterator[int]:
        """0, 1, ... below ``most``, the first WARM_UP of them being no measurements."""
        for step in range(WARM_UP + most):
            if step > WARM_UP and self.is_spent:
                return
            yield step
