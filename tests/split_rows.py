"""A device of a graph some of whose rows live on the host: for tests of programs that read both.

``SplitSide`` stands in for the device of a graph that has all rows on the host, too, for the host's programs to be
compared with. It keeps rows apart by itself: in arrays of its own on the device, and in a host's side of its own
for what is remote, neither of which has the other's. Only what became of the updates is asked of a third copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Op, Vertices, Weights, sources, transpose
from graphtide.gpma.team import Team
from graphtide.partition.graph import Graph
from graphtide.partition.host_side import HostSide


def split(graph: Graph) -> Any:
    """Let the device of this new graph be a ``SplitSide``; returns that."""
    from graphtide.partition.device_side import DeviceSide, DeviceSidePlan

    class SplitSide(DeviceSide):
        """All rows are on the device at first; ``move`` has some go to the host, or back."""

        def __init__(self) -> None:
            device = graph.device
            assert device is not None
            kept = {
                "weighted": graph.weighted,
                "in_edges": graph.directed and device.in_ is not None,
                "in_weights": graph.in_weighted,
            }
            super().__init__(directed=graph.directed, **kept)
            self.whole = device
            self.team = Team(1)
            self.host = HostSide(**kept, crew=self.team.crew())
            self.is_remote = np.zeros(0, np.bool_)
            self.newcomers_remote = False
            self.read_remote(self.host)
            self._remote_plan: Any = None

        # -- rows that move ---------------------------------------------------------------------------------------

        def move(self, is_remote: np.ndarray) -> None:
            """Have exactly these rows on the host; bool by vertex."""
            to_host = np.flatnonzero(is_remote & ~self.is_remote).astype(np.uint32)
            to_device = np.flatnonzero(~is_remote & self.is_remote).astype(np.uint32)
            arrays = [(self.out, self.host.out)]
            if self.in_ is not None and self.host.in_ is not None:
                arrays.append((self.in_, self.host.in_))
            for here, there in arrays:
                leaving, coming = to_numpy(here.export()), there.export()
                leaving, coming = rows_of(leaving, to_host), rows_of(coming, to_device)
                for array in (here, there):
                    gone, new = (leaving, coming) if array is here else (coming, leaving)
                    array.apply(inserts(new, array.weighted))
                    array.apply(EdgeBatch(gone.keys, np.full(gone.keys.size, Op.DELETE, np.uint8), zeros_of(gone)))
            self.is_remote = is_remote.copy()
            for vertices, remote in ((to_host, True), (to_device, False)):
                self.set_remote(vertices, remote)

        # -- what a graph asks of its device ----------------------------------------------------------------------

        def ensure_vertices(self, n_vertices: int) -> None:
            super().ensure_vertices(n_vertices)
            if not hasattr(self, "is_remote"):
                return
            self.whole.ensure_vertices(n_vertices)
            self.host.ensure_vertices(n_vertices)
            new = np.arange(self.is_remote.size, n_vertices, dtype=np.uint32)
            self.is_remote = np.append(self.is_remote, np.full(new.size, self.newcomers_remote))
            if self.newcomers_remote:
                self.set_remote(new, True)

        def prepare(self, batch: EdgeBatch) -> DeviceSidePlan:
            whole = self.whole.prepare(batch)
            if not self.directed:
                batch = both_directions(batch)
            out = self._parts(batch)
            turned = replace(batch, keys=transpose(batch.keys))
            in_ = (None, None) if self.in_ is None else self._parts(turned)
            self._remote_plan = whole, self.host.prepare(out[1], in_[1])
            return DeviceSidePlan(self.out.prepare(out[0]), None if self.in_ is None else self.in_.prepare(in_[0]))

        def launch(self, plan: DeviceSidePlan) -> None:
            whole, remote = self._remote_plan
            self.whole.launch(whole)
            super().launch(plan)
            self.host.commit(remote)

        def finish(self, plan: DeviceSidePlan) -> None:
            self.whole.finish(self._remote_plan[0])
            super().finish(plan)
            self.report = self.whole.report

        def check(self, out: EdgeList, in_: EdgeList | None) -> list[str]:
            """What is wrong on either side; together they must hold these edges."""
            problems = [problem for array in (*self.arrays, *self.host.arrays) for problem in array.check()]
            for here, there, wanted in zip(self.arrays, self.host.arrays, (out, in_), strict=False):
                assert wanted is not None
                edges, others = to_numpy(here.export()), there.export()
                if self.is_remote[sources(edges.keys)].any() or not self.is_remote[sources(others.keys)].all():
                    problems.append("a row is not where it is said to be")
                if not np.array_equal(np.sort(np.append(edges.keys, others.keys)), wanted.keys):
                    problems.append("both sides together hold other edges")
            return problems

        def close(self) -> None:
            super().close()
            self.host.close()
            self.team.close()

        def _parts(self, batch: EdgeBatch) -> tuple[EdgeBatch, EdgeBatch]:
            remote = self.is_remote[sources(batch.keys)]
            return select(batch, ~remote), select(batch, remote)

    side = SplitSide()
    graph.device = side
    return side


def subset(k: int, degrees: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows to be remote, bool by vertex, by ``k``: half, the longest alone, all others, none, all, few."""
    n = degrees.size
    hub = np.arange(n) == np.argmax(degrees)
    return (rng.random(n) < 0.5, hub, ~hub, hub & ~hub, hub | ~hub, rng.random(n) < 0.1)[k % 6]


def to_numpy(edges: EdgeList) -> EdgeList:
    import cupy

    return EdgeList(cupy.asnumpy(edges.keys), None if edges.weights is None else cupy.asnumpy(edges.weights))


def rows_of(edges: EdgeList, vertices: Vertices) -> EdgeList:
    """The edges of these rows."""
    kept = np.isin(sources(edges.keys), vertices)
    return EdgeList(edges.keys[kept], None if edges.weights is None else edges.weights[kept])


def inserts(edges: EdgeList, weighted: bool) -> EdgeBatch:
    return EdgeBatch(
        edges.keys, np.full(edges.keys.size, Op.INSERT, np.uint8), edges.weights if weighted else None
    )


def zeros_of(edges: EdgeList) -> Weights | None:
    return None if edges.weights is None else np.zeros(edges.keys.size, np.float32)


def select(batch: EdgeBatch, mask: np.ndarray) -> EdgeBatch:
    return EdgeBatch(batch.keys[mask], batch.ops[mask], None if batch.weights is None else batch.weights[mask])


def both_directions(batch: EdgeBatch) -> EdgeBatch:
    keys: Keys = np.stack([batch.keys, transpose(batch.keys)], 1).ravel()
    weights = None if batch.weights is None else np.repeat(batch.weights, 2)
    return EdgeBatch(keys, np.repeat(batch.ops, 2), weights)
