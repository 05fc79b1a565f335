"""Numbering vertices anew: when it pays, in which order, and a daemon that does it when it restarts.

That a change of the order changes no answer is part of ``test_reuse.py``, whose restarts take any.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from running import Daemon

from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.state import renumbering
from graphtide.daemon.state.checkpoint import Checkpoint
from graphtide.daemon.tools.verify import FinalGraph
from graphtide.gpma.edges import EdgeList, Keys, Op, Vertices, pack
from graphtide.partition import numbering
from graphtide.partition.graph import Graph
from graphtide.partition.numbering import Appraisal

WIDTH = 400
NONE = np.empty(0, np.uint32)


def grid(width: int) -> tuple[Vertices, Vertices]:
    """Roads: the ends of edges between neighbours, row by row, a quarter of them missing."""
    places = np.arange(width * width, dtype=np.uint32).reshape(width, width)
    ends = [
        np.stack(pair, axis=-1).reshape(-1, 2)
        for pair in ((places[:, :-1], places[:, 1:]), (places[:-1], places[1:]))
    ]
    edges = np.concatenate(ends)
    edges = edges[np.random.default_rng(1).random(edges.shape[0]) < 0.75]
    return edges[:, 0], edges[:, 1]


def stored(src: Vertices, dst: Vertices, *, directed: bool) -> Keys:
    keys = pack(src, dst)
    return np.unique(keys if directed else np.concatenate([keys, pack(dst, src)]))


@pytest.fixture(params=[True, False], ids=["directed", "undirected"])
def graph(request: pytest.FixtureRequest) -> Iterator[Graph]:
    made = Graph(directed=request.param)
    yield made
    made.close()


def appraised(graph: Graph, keys: Keys, n: int, dead: Vertices = NONE) -> Appraisal:
    return numbering.appraise(EdgeList(keys), n, dead, directed=graph.directed, by_heads=graph.by_heads)


def test_what_is_scattered_is_numbered_anew_and_then_stays(graph: Graph) -> None:
    """A tenth of all dense ids is dead; a map in no order, then in the order that was found for it."""
    src, dst = grid(WIDTH)
    n = WIDTH * WIDTH * 10 // 9
    places = np.random.default_rng(2).permutation(n)[: WIDTH * WIDTH].astype(np.uint32)
    dead = np.setdiff1d(np.arange(n, dtype=np.uint32), places)
    scattered = stored(places[src], places[dst], directed=graph.directed)
    weights = (scattered % np.uint64(251)).astype(np.float32)
    found = appraised(graph, scattered, n, dead)
    assert found.order is not None and found.scatter_then is not None
    assert np.array_equal(np.sort(np.append(found.order, dead)), np.arange(n))
    assert found.scatter > 3 * found.scatter_then
    again = numbering.renumbered(EdgeList(scattered, weights), found.order, n, graph.by_heads)
    assert again.weights is not None and (np.diff(again.keys.astype(np.int64)) > 0).all()
    back = pack(found.order[again.keys >> np.uint64(32)], found.order[again.keys & np.uint64(0xFFFF_FFFF)])
    assert np.array_equal(np.sort(back), scattered)
    assert np.array_equal(again.weights, (back % np.uint64(251)).astype(np.float32))
    settled = appraised(graph, again.keys, found.order.size)
    assert settled.order is None and settled.scatter == found.scatter_then


def test_what_is_in_order_stays(graph: Graph) -> None:
    found = appraised(graph, stored(*grid(WIDTH), directed=graph.directed), WIDTH * WIDTH)
    assert found.order is None and found.scatter > 0


def test_what_fits_into_a_cache_stays(graph: Graph) -> None:
    src, dst = grid(WIDTH // 2)
    places = np.random.default_rng(2).permutation(src.size).astype(np.uint32)
    keys = stored(places[src], places[dst], directed=graph.directed)
    assert appraised(graph, keys, places.size) == Appraisal()


def test_what_was_no_better_is_not_looked_for_again(graph: Graph) -> None:
    src, dst = grid(WIDTH)
    places = np.random.default_rng(2).permutation(WIDTH * WIDTH).astype(np.uint32)
    keys = stored(places[src], places[dst], directed=graph.directed)
    arrays = {"graph/keys": keys, "graph/dead": NONE, "index/ids": np.arange(places.size)}
    found = appraised(graph, keys, places.size)

    def start(arcs: int, known: float | None) -> dict[str, object]:
        facts = {"n_vertices": places.size, "numbering": {"scatter_breadth_first": known, "arcs": arcs}}
        return renumbering.well_numbered(Checkpoint((1, 1), {}, {}, {}, facts, arrays), graph)[1]

    no_better = 0.9 * found.scatter
    kept = {"renumbered": False, "scatter": found.scatter, "scatter_breadth_first": no_better}
    assert start(keys.size, no_better) == {**kept, "arcs": keys.size}
    assert start(keys.size // 2 + 1, no_better) == {**kept, "arcs": keys.size // 2 + 1}
    for arcs, known in ((keys.size // 2, no_better), (2 * keys.size, no_better), (keys.size, 0.5 * found.scatter)):
        assert start(arcs, known)["renumbered"]


@pytest.mark.parametrize("seed_more", range(5))
def test_the_order_is_breadth_first_from_the_hubs(graph: Graph, seed: int, seed_more: int) -> None:
    rng = np.random.default_rng([seed, seed_more])
    n = 40
    src, dst = rng.integers(0, n, (2, 30)).astype(np.uint32)
    keys = stored(src, dst, directed=graph.directed)
    graph.load(EdgeList(keys, np.ones(keys.size, np.float32)), n)
    heads, tails = (rows.export().keys for rows in (graph.host.arrays[-1], graph.host.out))
    beside: list[list[int]] = [[] for _ in range(n)]
    degree = [0] * n
    for side in (heads, tails) if graph.directed else (heads,):
        for key in side.tolist():
            beside[key >> 32].append(key & 0xFFFF_FFFF)
            degree[key >> 32] += 1
    isolated = [v for v in range(n) if not degree[v]]
    dead = np.array(isolated[::2], np.uint32)
    expected: list[int] = []
    for root in sorted(set(range(n)) - set(dead.tolist()), key=lambda v: (-degree[v], v)):
        waiting = [root] if root not in expected else []
        while waiting:
            v = waiting.pop(0)
            if v not in expected:
                expected.append(v)
                waiting += beside[v]
    rows = numbering.Rows.of(EdgeList(keys), n, directed=graph.directed, by_heads=graph.by_heads)
    order = numbering.breadth_first(rows, dead)
    assert order.tolist() == expected


def test_without_memory_the_numbering_stays(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("none left")

    n = WIDTH * WIDTH
    arrays = {"graph/keys": stored(*grid(WIDTH), directed=graph.directed), "graph/dead": NONE}
    checkpoint = Checkpoint((1, 1), {}, {}, {}, {"n_vertices": n}, arrays)
    monkeypatch.setattr(numbering.Memory, "require", fail)
    same, stats = renumbering.well_numbered(checkpoint, graph)
    assert same is checkpoint and stats == {
        "renumbered": False,
        "scatter": None,
        "scatter_breadth_first": None,
        "arcs": arrays["graph/keys"].size,
    }
    assert "no memory" in caplog.text


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_daemon_numbers_a_scattered_graph_anew_when_it_restarts(tmp_path: Path) -> None:
    """Roads that come in no order, then deletions; after the restart the same answers, and right ones later."""
    rng = np.random.default_rng(3)
    src, dst = grid(WIDTH)
    names = rng.permutation(WIDTH * WIDTH).astype(np.int64) * 7 - 1_000
    src, dst = (names[ends][order] for order in [rng.permutation(src.size)] for ends in (src, dst))
    source, gone = int(src[0]), np.setdiff1d(rng.choice(names, 2_000, replace=False), src[:1])
    programs = [{"name": "bfs", "id": "hops", "source": source}, {"name": "components"}, {"name": "pagerank"}]
    kept = ~(np.isin(src, gone) | np.isin(dst, gone))
    ids = np.setdiff1d(np.concatenate([src, dst]), gone)
    more = rng.choice(ids, (2, 500))
    asked = rng.choice(ids, 3_000, replace=False)
    settings = {"program": programs, "graph": {"directed": False, "weights": "unweighted"}}

    at, expected = np.searchsorted(ids, asked), dict[int, tuple[int, np.ndarray, np.ndarray, np.ndarray]]()

    def right(src: np.ndarray, dst: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """How many edges; hops, components, ranks of those who are asked about: found once for each graph."""
        if src.size not in expected:
            final = FinalGraph.replay(src, dst, np.ones(src.size, np.uint8), directed=False)
            final = FinalGraph(ids, *(np.searchsorted(ids, final.ids[ends]) for ends in (final.src, final.dst)))
            hops, components = final.hops(source, directed=False)[at], final.component_labels()[at]
            ranks = final.pagerank(directed=False, change_max=1e-9)[at]
            expected[src.size] = final.src.size, hops, components, ranks
        return expected[src.size]

    def check(client: object, src: np.ndarray, dst: np.ndarray) -> None:
        edges, hops, components, ranks = right(src, dst)
        assert (client.stats()["vertices"], client.stats()["edges"]) == (ids.size, edges)  # type: ignore[attr-defined]
        answers = {name: client.get(name, asked).values for name in ("hops", "components", "pagerank")}  # type: ignore[attr-defined]
        np.testing.assert_array_equal(answers["hops"].astype(np.int64).filled(-1), hops)
        np.testing.assert_array_equal(answers["components"], components)
        np.testing.assert_allclose(answers["pagerank"], ranks, rtol=1e-3)

    with Daemon(tmp_path, {**settings, "audit": {"full_every_epoch": False}}) as daemon:
        with SpoolWriter(daemon.spool, name="a") as writer:
            for part in np.array_split(np.arange(src.size), 30):
                writer.append(encode_msgpack(src[part], dst[part]))
            writer.append(encode_msgpack(gone, ops=Op.DELETE_VERTEX))
            offsets = {"a.msgpack": writer.offset}
        daemon.start()
        with daemon.client() as client:
            client.wait(offsets, timeout_ms=120_000)
            assert client.stats()["numbering"] is None
            check(client, src[kept], dst[kept])
        assert daemon.stop() == 0
        daemon.start()
        with daemon.client() as client:
            shown = client.stats()["numbering"]
            assert shown["renumbered"] and shown["scatter"] > 2 * shown["scatter_breadth_first"]
            assert client.stats()["dead_vertices"] == 0
            before = shown
            check(client, src[kept], dst[kept])
            with SpoolWriter(daemon.spool, name="b") as writer:
                writer.append(encode_msgpack(*more))
                offsets = {"b.msgpack": writer.offset}
            client.wait(offsets)
            check(client, *(np.append(ends[kept], new) for ends, new in zip((src, dst), more, strict=True)))
        assert daemon.stop() == 0
        daemon.start()
        with daemon.client() as client:
            shown = client.stats()["numbering"]
            assert not shown["renumbered"] and 0 < shown["scatter"] < before["scatter"] / 2
            # Not compared again: there are 500 edges more than there were then.
            assert all(shown[name] == before[name] for name in ("scatter_breadth_first", "arcs"))
            check(client, *(np.append(ends[kept], new) for ends, new in zip((src, dst), more, strict=True)))
        assert daemon.stop() == 0
        assert daemon.log.read_text().count("anew, breadth first") == 1
