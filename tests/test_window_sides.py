"""Edges that expire where rows have owners: the same, whoever owns what, wherever rows move, whoever is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from histories import Epoch, random_history
from running import Daemon
from waiting import PATIENCE_S, until

from graphtide.daemon.engine.window import CountWindow, TimeWindow, Window
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.ingest.dense import DenseBatch
from graphtide.daemon.ingest.prepared import Prepared, one_batch
from graphtide.daemon.records.event_time import EventState
from graphtide.partition.graph import Graph

NONE = np.empty(0, np.int64)
LOSSY = str(Path(__file__).with_name("on_lossy_graph.py"))
PLACES = ("apply", "applied", "program")


class Windowed:
    """A graph whose edges expire, as the engine has it."""

    def __init__(self, kind: str, graph: Graph) -> None:
        self.graph = graph
        self.window: Window
        if kind == "length":
            self.window = TimeWindow(graph, 20, isolated=True)
        else:
            self.window = CountWindow(graph, 8, isolated=True)
        self._now = 0

    def epoch(self, epoch: Epoch) -> list[int]:
        """Take it; returns the edges that went by themselves before."""
        batch = epoch.batch(weighted=True)
        times = np.arange(self._now, self._now + len(batch))
        self._now += len(batch)
        event = EventState(time_ms=self._now)
        came = Prepared(
            [DenseBatch(batch, epoch.vertex_ops(), times=times)],
            len(batch),
            epoch.n_vertices,
            {},
            NONE,
            NONE,
            event=event,
        )
        expiring = self.window.expiring(25, {}, 0)
        taken = [came] if expiring is None else [expiring, came]
        edges, ops = one_batch(taken, weighted=True)
        self.window.make_room(edges)
        change = self.graph.apply(edges, epoch.n_vertices, ops)
        self.window.note(taken, edges, ops, change)
        return [] if expiring is None else sorted(expiring.batches[0].edges.keys.tolist())

    def times(self) -> dict[int, int]:
        kept = self.window.arrays()
        return dict(zip(kept["keys"].tolist(), kept["times"].tolist(), strict=True))


@contextmanager
def opened(kind: str, **options: Any) -> Iterator[Windowed]:
    graph = Graph(threads=1, **options)
    try:
        yield Windowed(kind, graph)
    finally:
        graph.close()


def run_history(whole: Windowed, owned: Windowed, seed: int, *, epochs: int) -> None:
    """Updates and moves in turns; in the middle what is kept is taken up by windows that saw nothing of it."""
    rng = np.random.default_rng(seed)
    graph, gone = owned.graph, 0
    for number, epoch in enumerate(
        random_history(seed, directed=graph.directed, epochs=epochs, vertex_share=0.1).epochs
    ):
        went = whole.epoch(epoch)
        assert owned.epoch(epoch) == went
        gone += len(went)
        assert owned.times() == whole.times()
        assert np.array_equal(graph.export().keys, whole.graph.export().keys)
        assert np.array_equal(graph.alive, whole.graph.alive)
        vertices = rng.permutation(graph.n_vertices)[: int(rng.integers(0, graph.n_vertices + 1))]
        graph.placement.newcomers = int(rng.integers(len(graph.sides)))
        graph.migrate(vertices.astype(np.uint32), int(rng.integers(len(graph.sides))))
        if number == epochs // 2:
            for one in (whole, owned):
                facts, arrays = one.window.facts(), one.window.arrays()
                one.window = type(one.window)(one.graph, one.window._span, isolated=True)  # type: ignore[call-arg]
                one.window.restore(facts, arrays)
    assert gone > 0


@pytest.mark.parametrize("kind", ["length", "count"])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_hosts_that_share_the_rows_lose_the_same_edges(kind: str, directed: bool, seed: int) -> None:
    with (
        opened(kind, directed=directed) as whole,
        opened(kind, directed=directed, host_rows="owned", host_sides=2) as owned,
    ):
        run_history(whole, owned, seed, epochs=24)


@pytest.mark.parametrize("kind", ["length", "count"])
@pytest.mark.parametrize("directed", [True, False])
def test_a_device_and_a_host_that_share_the_rows_lose_the_same_edges(
    cupy: ModuleType, kind: str, directed: bool
) -> None:
    with (
        opened(kind, directed=directed) as whole,
        opened(kind, directed=directed, host_rows="owned", device=True) as owned,
    ):
        run_history(whole, owned, 1, epochs=16)


@pytest.mark.sample(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("window", [{"count": 40}, {"length": 0.04}])
def test_a_process_that_lost_rows_goes_on_with_what_expires(
    tmp_path: Path, seed: int, window: dict[str, Any]
) -> None:
    """It goes on from the newest checkpoint. An edge comes each millisecond, so that both keep the last 40."""
    rng = np.random.default_rng(seed)
    settings = {
        "epoch": {"updates_max": 10, "queue_updates_max": 20},
        "checkpoint": {"interval": 0.1},
        "window": window,
        "program": [{"name": "bfs", "source": 1}],
    }
    with Daemon(tmp_path, settings, program=(LOSSY,)) as daemon:
        (daemon.folder / "loses-rows").write_text(f"{rng.choice(PLACES)} {rng.integers(2, 20)}")
        file = daemon.spool / "edges.csv"
        file.write_text("src,dst,ts\n")
        daemon.start()
        n = 0
        while "the process replaces itself" not in daemon.log.read_text():
            with file.open("a") as out:
                out.writelines(f"{at},{at + 1},{1_700_000_000_000 + at}\n" for at in range(n, n + 30))
            n += 30
            with suppress(GraphtideError), daemon.client() as ask:
                ask.wait(min_offsets={"edges.csv": file.stat().st_size})
        daemon.wait_ready(PATIENCE_S)
        with daemon.client() as ask:
            ask.wait(min_offsets={"edges.csv": file.stat().st_size}, timeout_ms=300_000)
            until(lambda: not ask.stats().content["window"]["is_due"])
            there = ask.has_edge([*range(n)], [*range(1, n + 1)]).exists.tolist()
            kept = min(n, 40)
            assert there == [False] * (n - kept) + [True] * kept
            assert ask.stats()["dead_letters"] == {}
