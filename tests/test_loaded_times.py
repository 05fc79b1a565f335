"""Loaded edges expire as streamed ones do: by the times that their files give, or by their order."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from running import Daemon
from typer.testing import CliRunner
from waiting import until

from graphtide.daemon.cli import app
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.engine.window import CountWindow, TimeWindow, Window
from graphtide.daemon.ingest.dense import DenseBatch
from graphtide.daemon.ingest.prepared import Prepared, one_batch
from graphtide.daemon.records.event_time import EventState
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore
from graphtide.daemon.tools import load
from graphtide.gpma.edges import EdgeBatch, EdgeList, destinations, sources
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

NOW = 1_700_000_000_000
NONE = np.empty(0, np.int64)


def settings_of(folder: Path, window: dict[str, Any], **graph: Any) -> Any:
    places = {"source": {"path": str(folder / "spool")}, "checkpoint": {"path": str(folder / "checkpoints")}}
    return from_tables({"graph": graph, "compute": {"threads": 2}, "window": window, **places})


def made(config: Any) -> Checkpoint:
    store = CheckpointStore(config.checkpoint.path)
    checkpoint = store.newest_good()
    store.close()
    assert checkpoint is not None
    return checkpoint


def restored(config: Any, graphs: list[Graph]) -> tuple[Window, VertexIndex]:
    """The window that a start has."""
    checkpoint = made(config)
    part = checkpoint.part("graph")
    graph = Graph(directed=config.graph.directed, weighted=True, threads=1)
    graphs.append(graph)
    graph.load(EdgeList(part["keys"], part.get("weights")), checkpoint.facts["n_vertices"], part["dead"])
    index = VertexIndex.create("int")
    index.restore(checkpoint.part("index"), part["dead"])
    given = config.window
    window: Window
    if given.count is None:
        window = TimeWindow(graph, int(1000 * given.length), isolated=False)
    else:
        window = CountWindow(graph, given.count, isolated=False)
    window.restore(checkpoint.facts["window"], checkpoint.part("window"))
    return window, index


def times(window: Window, index: VertexIndex) -> dict[tuple[int, int], int]:
    found = window.arrays()
    ends = [index.external(some(found["keys"])) for some in (sources, destinations)]
    pairs = zip(*(np.asarray(column).tolist() for column in ends), strict=True)
    return dict(zip(pairs, found["times"].tolist(), strict=True))


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("window", [{"length": 50.0}, {"count": 40}])
def test_they_have_the_times_that_streaming_gives(
    tmp_path: Path, graphs: list[Graph], seed: int, window: dict[str, Any], directed: bool
) -> None:
    """Random inserts and deletions over and over, in two files; what noted the same batches is the oracle."""
    config = settings_of(tmp_path, window, directed=directed)
    rng = np.random.default_rng(seed)
    n = 600
    src, dst = rng.integers(0, 12, (2, n))
    ops, ts = (rng.random(n) < 0.8).astype(np.uint8), NOW + rng.integers(0, 40_000, n)
    rows = [*zip(src.tolist(), dst.tolist(), ops.tolist(), ts.tolist(), strict=True)]
    for name, part in (("a.csv", rows[:250]), ("b.csv", rows[250:])):
        lines = [f"{a},{b},{'insert' if op else 'delete'},{at}" for a, b, op, at in part]
        (tmp_path / name).write_text("\n".join(["src,dst,op,ts", *lines]) + "\n")
    load.load_files(config, [tmp_path / "a.csv", tmp_path / "b.csv"], {})
    loaded, index = restored(config, graphs)

    graph = Graph(directed=directed, threads=1)
    graphs.append(graph)
    oracle = type(loaded)(graph, 50_000 if "length" in window else 40, isolated=False)  # type: ignore[call-arg]
    ends = [index.lookup(column.astype(np.int64)) for column in (src, dst)]
    batch = DenseBatch(EdgeBatch.of(*ends, ops=ops), times=ts)
    taken = [Prepared([batch], n, index.n_vertices, {}, NONE, NONE, event=EventState())]
    edges, _ = one_batch(taken, weighted=False)
    oracle.make_room(edges)
    oracle.note(taken, edges, None, graph.apply(edges, index.n_vertices))
    if "length" in window:
        assert times(loaded, index) == times(oracle, index)
    else:
        assert in_order(loaded, index) == in_order(oracle, index)


def in_order(window: Window, index: VertexIndex) -> list[tuple[int, int] | None]:
    """Edges and empty places (None), the oldest first."""
    places: list[tuple[int, tuple[int, int] | None]] = [(at, edge) for edge, at in times(window, index).items()]
    places += [(at, None) for at in window.arrays()["empty"].tolist()]
    return [edge for _, edge in sorted(places, key=lambda place: place[0])]


def test_edges_without_a_time_count_as_if_they_came_when_event_time_begins(
    tmp_path: Path, graphs: list[Graph], capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings_of(tmp_path, {"length": 10.0})
    (tmp_path / "a.csv").write_text(f"src,dst,ts\n1,2,{NOW}\n3,4,\n5,6,{NOW}\n5,6,\n")
    (tmp_path / "b.el").write_text("7 8\n")
    parquet.write_table(pa.table({"src": [1, 9], "dst": [2, 9], "ts": [NOW + 5, NOW + 6]}), tmp_path / "c.parquet")
    assert load.load_files(config, [tmp_path / name for name in ("a.csv", "b.el", "c.parquet")], {}) == 0
    said = capsys.readouterr().out
    assert "3 edges have a time; the others count as if they came when event time begins" in said
    window, index = restored(config, graphs)
    assert times(window, index) == {(1, 2): NOW + 5, (5, 6): NOW, (9, 9): NOW + 6}
    assert made(config).facts["window"]["adopts"]


def test_the_beginning_of_1970_is_a_time(tmp_path: Path, graphs: list[Graph]) -> None:
    config = settings_of(tmp_path, {"length": 10.0})
    (tmp_path / "a.csv").write_text("src,dst,ts\n1,2,0\n3,4,\n5,6,-7\n5,6,0\n7,8,-9\n7,8,\n")
    (tmp_path / "b.csv").write_text("src,dst,ts\n9,10,0\n11,12,0\n")
    parquet.write_table(pa.table({"src": [13, 15], "dst": [14, 16], "ts": [0, None]}), tmp_path / "c.parquet")
    assert load.load_files(config, [tmp_path / name for name in ("a.csv", "b.csv", "c.parquet")], {}) == 0
    window, index = restored(config, graphs)
    assert times(window, index) == {(1, 2): 0, (5, 6): 0, (7, 8): -9, (9, 10): 0, (11, 12): 0, (13, 14): 0}


def test_times_in_the_future_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the daemon refuses them: such an edge would stay for ever."""
    config = settings_of(tmp_path, {"length": 10.0, "max_future_skew": 60.0})
    future = int(1000 * (time.time() + 3600))
    (tmp_path / "a.csv").write_text(f"src,dst,ts\n1,2,{NOW}\n3,4,{future}\n")
    assert load.load_files(config, [tmp_path / "a.csv"], {}, json=True) == 7
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused"]["in-future"]["updates"] == 1 and answer["edges_with_times"] == answer["arcs"] == 1
    assert not made(config).facts["window"]["adopts"]


def test_without_a_window_no_times_are_kept(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {})
    (tmp_path / "a.csv").write_text("src,dst,ts\n1,2,99999999999999\n")
    assert load.load_files(config, [tmp_path / "a.csv"], {}) == 0
    checkpoint = made(config)
    assert "window" not in checkpoint.facts and not checkpoint.part("window")


def test_a_daemon_has_them_expire(tmp_path: Path) -> None:
    with Daemon(tmp_path, {"window": {"length": 10.0}, "program": [{"name": "bfs", "source": 1}]}) as daemon:
        rows = [(1, 2, NOW), (2, 3, NOW + 6_000), (3, 4, ""), (4, 5, NOW - 60_000)]
        (tmp_path / "dump.csv").write_text("\n".join(["src,dst,ts", *(",".join(map(str, row)) for row in rows)]))
        command = ["load", "--config", str(daemon.config), "--offsets", "{}", str(tmp_path / "dump.csv")]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "3 edges have a time" in done.output
        with daemon.start().client() as ask:
            ends = [1, 2, 3, 4], [2, 3, 4, 5]
            assert ask.has_edge(*ends).exists.tolist() == [True] * 4, "nothing goes before event time begins"
            spool = daemon.spool / "edges.csv"
            for at, left in ((9_000, [True, True, True, False]), (12_000, [False, True, True, False])):
                with spool.open("a") as out:
                    out.write(f"{'' if at > 9_000 else 'src,dst,ts' + chr(10)}8,9,{NOW + at}\n")
                offsets = {"edges.csv": spool.stat().st_size}
                found = ask.has_edge(*ends, min_offsets=offsets)
                until(lambda left=left: ask.has_edge(*ends).exists.tolist() == left)
                assert found is not None
            with spool.open("a") as out:
                out.write(f"8,9,{NOW + 19_500}\n")
            until(lambda: ask.has_edge(*ends).exists.tolist() == [False] * 4)
