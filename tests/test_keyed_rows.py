"""Rows by the keys of their records: what comes of records, against dictionaries."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from graphtide.daemon.engine import cells
from graphtide.daemon.engine.keyed import KeyedRows
from graphtide.daemon.ingest.row_keys import KeyHash, RowKeys, new_secret, sip_hash
from graphtide.daemon.state.checkpoint import Checkpoint
from graphtide.daemon.state.renumbering import renumbered
from graphtide.gpma.edges import HALF, LOW, EdgeBatch, EdgeList, Op
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph, NoMemory

Row = tuple[bytes, tuple[int, int] | None, float]
"""A record: its key, the edge that this stands for from now on, and the weight."""


class Naive:
    """What keys stand for, and the edges that there are."""

    def __init__(self, *, directed: bool = True) -> None:
        self.rows: dict[bytes, tuple[int, int]] = {}
        self.weights: dict[tuple[int, int], float] = {}
        self._directed = directed

    def take(self, row: Row) -> None:
        key, edge, weight = row
        old = self.rows.pop(key, None)
        if edge is not None:
            edge = edge if self._directed else (min(edge), max(edge))
            self.rows[key] = edge
        if old is not None and old not in self.rows.values():
            del self.weights[old]
        if edge is not None:
            self.weights[edge] = weight


class Kept:
    """The table, and the edges that what it makes leaves."""

    def __init__(self, *, directed: bool = True, weighted: bool = True) -> None:
        self.table = KeyedRows(directed=directed)
        self.weights: dict[tuple[int, int], float] = {}
        self._directed, self._weighted = directed, weighted

    def hashed(self, keys: list[bytes]) -> RowKeys:
        return KeyHash(self.table.secret).of("t", keys)

    def settle(self, rows: list[Row]) -> EdgeBatch:
        edges = np.array([edge or (0, 0) for _, edge, _ in rows], np.int64).reshape(-1, 2)
        ops = [Op.DELETE if edge is None else Op.INSERT for _, edge, _ in rows]
        weights = [weight for *_, weight in rows] if self._weighted else None
        records = EdgeBatch.of(edges[:, 0], edges[:, 1], ops, weights)
        return self.table.settle(records, self.hashed([key for key, *_ in rows]))

    def take(self, rows: list[Row]) -> None:
        batch = self.settle(rows)
        weights = np.ones(len(batch)) if batch.weights is None else batch.weights
        for key, op, weight in zip(batch.keys, batch.ops.tolist(), weights.tolist(), strict=True):
            edge = int(key >> HALF), int(key & LOW)
            if op == Op.INSERT:
                self.weights[edge] = weight
            else:
                del self.weights[edge]

    def rows(self) -> dict[bytes, int]:
        arrays = self.table.arrays()
        hashes = [row.tobytes() for row in arrays["rows"]]
        return dict(zip(hashes, arrays["edges"].tolist(), strict=True))

    def agrees_with(self, naive: Naive) -> None:
        assert self.weights == naive.weights
        assert (len(self.table), self.table.n_edges) == (len(naive.rows), len(naive.weights))
        hashes = [row.tobytes() for row in self.hashed([*naive.rows])]
        packed = [src << 32 | dst for src, dst in naive.rows.values()]
        assert self.rows() == dict(zip(hashes, packed, strict=True))


def history(rng: np.random.Generator, n: int, *, n_keys: int = 60, n_ends: int = 6) -> list[Row]:
    """Of few keys and fewer edges: they change, are shared, go, and go again."""
    rows: list[Row] = []
    for key, src, dst, gone in zip(
        rng.integers(0, n_keys, n).tolist(),
        rng.integers(0, n_ends, n).tolist(),
        rng.integers(0, n_ends, n).tolist(),
        (rng.random(n) < 0.3).tolist(),
        strict=True,
    ):
        rows.append((b"%d" % key, None if gone else (src, dst), float(rng.integers(1, 9))))
    return rows


def cut(rng: np.random.Generator, rows: list[Row]) -> list[list[Row]]:
    places = [0, *sorted(rng.integers(0, len(rows), len(rows) // 20).tolist()), len(rows)]
    return [rows[begin:end] for begin, end in pairwise(places)]


@pytest.fixture(params=[True, False], ids=["in place", "copied"])
def small(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that grow a few times, in reserved address space or not."""
    monkeypatch.setattr(cells, "CELLS_MIN", 16)
    if not request.param:
        monkeypatch.setattr(cells, "reserve", lambda n_bytes: None)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.usefixtures("small")
def test_whatever_epochs_records_come_in_edges_are_those_of_a_dictionary(seed: int, directed: bool) -> None:
    rng = np.random.default_rng(seed)
    for n_keys, n_ends in ((10, 2), (60, 6), (2000, 30)):
        rows = history(rng, 3000, n_keys=n_keys, n_ends=n_ends)
        kept, naive = Kept(directed=directed), Naive(directed=directed)
        for epoch in cut(rng, rows):
            kept.take(epoch)
            for row in epoch:
                naive.take(row)
            kept.agrees_with(naive)
        assert kept.table.memory_bytes() < (1 << 20)


@pytest.mark.usefixtures("small")
def test_what_is_taken_back_never_was(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kept, naive = Kept(), Naive()
    for epoch in cut(rng, history(rng, 3000)):
        before, counted = kept.rows(), (len(kept.table), kept.table.n_edges)
        kept.settle(history(rng, int(rng.integers(0, 100))))
        kept.table.undo()
        assert (kept.rows(), (len(kept.table), kept.table.n_edges)) == (before, counted)
        kept.take(epoch)
        for row in epoch:
            naive.take(row)
        kept.agrees_with(naive)


def test_a_table_that_is_restored_goes_on_as_it_would_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kept, naive = Kept(weighted=False), Naive()
    for epoch in cut(rng, history(rng, 3000)):
        if rng.random() < 0.2:
            arrays = {name: array.copy() for name, array in kept.table.arrays().items()}
            kept.table = KeyedRows(directed=True)
            kept.table.restore(arrays)
        kept.take(epoch)
        for key, edge, _ in epoch:
            naive.take((key, edge, 1.0))
        kept.agrees_with(naive)


@pytest.mark.parametrize("directed", [True, False])
def test_vertices_may_be_numbered_anew(graphs: list[Graph], directed: bool) -> None:
    graphs.append(Graph(weighted=False, directed=directed))
    graph, kept = graphs[0], Kept(directed=directed, weighted=False)
    batch = kept.settle([(b"a", (0, 9), 1.0), (b"b", (9, 0), 1.0), (b"c", (9, 9), 1.0)])
    graph.apply(batch, 10)
    index = VertexIndex.create("int")
    index.insert_edges(np.arange(10), np.arange(10))
    arrays = {f"index/{name}": array for name, array in index.state(10).items()}
    arrays |= {f"keyed/{name}": array for name, array in kept.table.arrays().items()}
    arrays |= {"graph/keys": graph.export().keys}
    order = np.arange(10, dtype=np.uint32)[::-1].copy()
    anew = renumbered(Checkpoint((1, 1), {}, {}, {}, {"n_vertices": 10}, arrays), order, graph)
    graph.load(EdgeList(anew.arrays["graph/keys"]), 10)
    kept.table = KeyedRows(directed=directed)
    kept.table.restore(anew.part("keyed"))
    assert kept.table.n_edges == graph.n_edges
    graph.apply(kept.settle([(b"a", None, 1.0), (b"c", None, 1.0)]), 10)
    left = graph.export().keys
    assert left.tolist() == [9] if directed else sorted(left.tolist()) == [9, 9 << 32]
    graph.apply(kept.settle([(b"b", None, 1.0)]), 10)
    assert graph.n_edges == 0


def test_an_edge_goes_with_its_last_key_and_has_the_weight_that_came_last() -> None:
    kept = Kept()
    kept.take([(b"a", (1, 2), 1.0), (b"b", (1, 2), 2.0), (b"c", (1, 2), 3.0), (b"a", (3, 4), 4.0)])
    assert kept.weights == {(1, 2): 3.0, (3, 4): 4.0}
    kept.take([(b"c", None, 0.0), (b"c", None, 0.0), (b"d", None, 0.0)])
    assert kept.weights == {(1, 2): 3.0, (3, 4): 4.0} and kept.table.unknown == 2
    kept.take([(b"b", (2, 1), 5.0)])
    assert kept.weights == {(2, 1): 5.0, (3, 4): 4.0} and kept.table.unknown == 0


class NoMore:
    """A machine without memory."""

    def require(self, n_bytes: int) -> None:
        raise MemoryError("none is left")


def test_a_table_that_finds_no_memory_stays_as_it_was() -> None:
    kept = Kept()
    kept.take([(b"a", (1, 2), 1.0)])
    for table in (kept.table._rows, kept.table._edges):
        vars(table)["_memory"] = NoMore()
    before = kept.rows(), kept.table.memory_bytes()
    with pytest.raises(NoMemory, match="keys of rows"):
        kept.settle([(b"%d" % at, (at, at), 1.0) for at in range(900)])
    assert (kept.rows(), kept.table.memory_bytes()) == before
    kept.take([(b"%d" % at, None, 1.0) for at in range(900)])
    kept.take([(b"a", (2, 1), 1.0)])
    assert kept.weights == {(2, 1): 1.0}


def test_keys_are_those_of_siphash() -> None:
    """As its authors publish it for a secret of the bytes 0 to 15 and texts of the bytes 0, 1, 2, ..."""
    secret = np.frombuffer(bytes(range(16)), "<u8")
    published = {0: "a3817f04ba25a8e66df67214c7550293", 1: "da87c1d86b99af44347659119b22fc45"}
    texts = {n: bytes(range(n)) for n in (*range(40), 255)}
    found = [row.astype("<u8").tobytes().hex() for row in sip_hash([*texts.values()], secret)]
    for n, expected in published.items():
        assert found[[*texts].index(n)] == expected
    if shutil.which("openssl"):
        for text, hashed in zip(texts.values(), found, strict=True):
            options = ["-macopt", f"hexkey:{bytes(range(16)).hex()}", "-macopt", "size:16"]
            other = subprocess.run(["openssl", "mac", *options, "SIPHASH"], input=text, capture_output=True)
            assert other.stdout.decode().strip().lower() == hashed


def test_a_key_is_of_its_topic_and_under_a_secret() -> None:
    hashed = KeyHash(new_secret())
    keys = [b"", b"a", b"b", b"a\0", b"\0a", b"a" * 1000]
    found = hashed.of("t", keys)
    assert len({row.tobytes() for row in found}) == len(keys) and (found[:, 0] & np.uint64(1)).all()
    assert np.array_equal(hashed.of("t", keys[::-1]), found[::-1])
    for other in (hashed.of("u", keys), KeyHash(new_secret()).of("t", keys)):
        assert not (other == found).all(axis=1).any()
