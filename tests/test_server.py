"""The query server as a process of its own: answers, epochs, limits, and clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest
from conftest import skip_or_fail
from waiting import until

from graphtide.compute import registry
from graphtide.compute.program import Answer, Program, Published
from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Client
from graphtide.daemon.client.wire import pack_bitmap, pack_column, unpack_column
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.errors import NotSupported, RequestError
from graphtide.daemon.records.asked import compiling, ids_of_server
from graphtide.daemon.records.topology import (
    CheckpointAsked,
    DegreeCounts,
    Degrees,
    Edges,
    EdgesExist,
    Ego,
    NeighborPage,
    Reached,
    StorageState,
)
from graphtide.daemon.serve import shared_memory, supervisor
from graphtide.daemon.serve.channel import Channel
from graphtide.daemon.serve.engine_answers import ASIDE
from graphtide.daemon.serve.listening import Doors
from graphtide.daemon.serve.methods import groups
from graphtide.daemon.serve.methods.named import unknown_vertex
from graphtide.daemon.serve.results import ProgramPublication, Publication
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.daemon.serve.values import wire_ids
from graphtide.daemon.tools import query, watch
from graphtide.gpma.edges import NO_VERTEX, EdgeList, pack
from graphtide.gpma.host import PackedMemoryArray
from graphtide.gpma.index.ids import StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.rows import RowView
from graphtide.partition.exploring import EdgesPlace, Search, edges_between, search

UNREACHED = np.uint64(2**64 - 1)
LIMITS = LimitsConfig(
    frame_bytes_max=200_000,
    vertices_max=20_000,
    connections_max=20,
    requests_in_flight_max=8,
    output_bytes_max=1_500_000,
    top_k_max=100,
)


class Chain:
    """An engine whose graph is the chain 100 -> 101 -> ... (or "v0" -> "v1" -> ...), and one isolated vertex.

    The chain's first vertex is the source of ``hops``; the edge i -> i + 1 has weight i / 2.
    """

    def __init__(self, kind: str = "int") -> None:
        self.kind = kind
        self.index = VertexIndex.create(kind, shared_memory.allocate)
        self.number = 0
        self.n = 0
        self.storage_ahead = 0
        self.state = "fresh"
        self.asked = 0
        self.dead: list[int] = []
        self.gone: list[int] | None = None
        self.files: dict[str, str] = {}
        self.begun, self.given_up = threading.Event(), threading.Event()

    def ids(self, positions):
        return [f"v{i}" for i in positions] if self.kind == "string" else [100 + int(i) for i in positions]

    def grow(self, n: int) -> None:
        ids = self.ids(range(n))
        self.index.insert(StringColumn.of(ids) if self.kind == "string" else np.array(ids))
        self.n = n

    def publication(self) -> Publication:
        self.number += 1
        n = self.n
        hops = np.arange(n, dtype=np.uint64)
        word = (hops << np.uint64(32)) | (hops - np.uint64(1)).astype(np.uint32)
        word[-1] = UNREACHED
        handle = np.zeros(n, np.uint32)
        handle[-1] = 1
        representative = np.zeros(n, np.uint32)
        representative[1] = n - 1
        sizes = np.zeros(n, np.uint32)
        sizes[:2] = n - 1, 1
        estimate = np.arange(1, n + 1, dtype=np.float64)
        columns = {
            "hops": ("bfs", {"word": word}, {}),
            "parts": ("components", {"handle": handle, "representative": representative, "size": sizes}, {}),
            "rank": ("pagerank", {"estimate": estimate}, {"norm": float(self.number)}),
        }
        gone = None
        if self.gone is not None:
            gone = np.zeros(n, bool)
            gone[self.gone] = True
        programs = {
            id: ProgramPublication(kind, data, dict.fromkeys(data), scalars, {"state": self.state}, gone)
            for id, (kind, data, scalars) in columns.items()
        }
        alive = np.ones(n, bool)
        alive[self.dead] = False
        offsets = {"t": {0: self.number * 10}}
        return Publication((1, self.number), n, offsets, programs, {"vertices": n}, alive)

    # what the engine answers about edges

    def current_epoch(self) -> StorageState:
        number = self.number + self.storage_ahead
        return StorageState((1, number), {"t": {0: number * 10}})

    def standing(self, wanted):
        return {partition: self.files.get(partition.name, "expected") for partition in wanted}

    def neighbors(self, vertex, direction, limit, cursor, timeout_s):
        if vertex == 13:
            raise TimeoutError("applying")
        if vertex == 14:
            raise LookupError("this graph keeps no in-rows")
        if vertex == 15:
            raise KeyError("a mistake")
        step = 1 if direction == "out" else -1
        found = [v for v in (vertex + step,) if 0 <= v < self.n - 1 and vertex < self.n - 1]
        if vertex == 5 and direction == "out":
            found = list(range(self.n))  # a hub
        page = [v for v in found if cursor is None or v > cursor]
        more = page[limit - 1] if len(page) > limit else None
        chosen = np.array(page[:limit], np.uint32)
        known = vertex < self.n and vertex not in self.dead
        return NeighborPage(self.current_epoch(), known, chosen, (chosen / 2).astype(np.float32), more)

    def degree(self, vertices, timeout_s):
        out = (vertices < self.n - 2).astype(np.int64)
        known = (vertices < self.n) & ~np.isin(vertices, self.dead)
        return Degrees(
            self.current_epoch(), known, out, ((vertices > 0) & (vertices < self.n - 1)).astype(np.int64)
        )

    def degree_counts(self, direction, first, limit, timeout_s):
        here = range(self.n)[first : first + limit]
        isolated = sum(vertex >= self.n - 2 for vertex in here)
        counts = np.array([isolated, len(here) - isolated])
        return DegreeCounts(self.current_epoch(), self.n, np.array([0, 1]), counts)

    def has_edge(self, src, dst, timeout_s):
        exists = (src.astype(np.int64) + 1 == dst) & (dst < self.n - 1)
        return EdgesExist(self.current_epoch(), exists)

    def ahead(self, _: object) -> tuple[tuple[RowView], None]:
        edges = np.arange(max(self.n - 2, 0))
        array = PackedMemoryArray(weighted=True)
        array.ensure_vertices(self.n)
        array.load(EdgeList(pack(edges, edges + 1), (edges / 2).astype(np.float32)))
        return (array.view(),), None

    def reach(self, begun, direction, *, hops_max, limit, reads_max, timeout_s):
        if direction != "out":
            raise LookupError("this graph keeps no in-rows")
        known = bool(begun.found[0] < self.n)
        found = begun
        if known:
            found = search(self.ahead, self.n, begun, hops_max=hops_max, limit=limit, reads_max=reads_max)
        return Reached(self.current_epoch(), known, found)

    def edges_between(self, src, dst, common, *, place, limit, reads_max, timeout_s):
        more = {"weighted": True, "limit": limit, "reads_max": reads_max, "place": place}
        found = edges_between(self.ahead, self.n, src, dst, **more)
        return Edges(self.current_epoch(), src < self.n, dst < self.n, found)

    def ego(self, vertex, direction, *, limit, edge_limit, reads_max, timeout_s):
        about = {"limit": limit, "reads_max": reads_max, "timeout_s": timeout_s}
        reached = self.reach(Search.begin(vertex), direction, hops_max=1, **about)
        all_ = reached.search.found
        edges = self.edges_between(all_, all_, all_, place=EdgesPlace(), **{**about, "limit": edge_limit})
        return Ego(reached.state, reached.known, reached.search, edges.found)

    def checkpoint(self, at, since, failures):
        state = self.current_epoch()
        if at is not None and at < state.epoch:
            return CheckpointAsked(state, "gone", state.epoch, 0, None, [(1, 1)], "")
        return CheckpointAsked(state, "made", state.epoch, 0, "/checkpoints/checkpoint-1-2", (), "")

    def edge_weights(self, epoch, src, dst, timeout_s):
        self.asked += 1
        if epoch != self.current_epoch().epoch:
            if self.asked == 3:
                self.storage_ahead = 0
            return None
        assert (src + 1 == dst).all()
        return (src / 2).astype(np.float32)

    # and about programs

    def compute(self, params, given_up):
        answer = {"scalars": {"norm": 1.5}, "error_bound": None, "seconds": 0.25}
        self.by_admin = params["by_admin"]
        if params["program"] == "lcc":  # has to be compiled, for ever
            with compiling(given_up):
                assert given_up.wait(60)
        if params["program"] == "triangles":  # takes for ever
            self.begun.set()
            assert given_up.wait(60)
            self.given_up.set()
        if params.get("vertices") is not None:
            n = len(params["vertices"]) if self.kind == "string" else len(params["vertices"]) // 8
            no = np.arange(n) == 1
            answer |= {
                "values": pack_column(np.arange(n, dtype=np.float64)),
                "null": pack_bitmap(no),
                "unknown": [],
            }
        elif params["top"]:
            best = np.arange(params["top"])
            answer |= {"ids": pack_column(best + 100), "values": pack_column(best[::-1] / 2)}
        return self.current_epoch(), answer

    def keep(self, params, given_up):
        id = params.get("id") or registry.default_id(params["program"], params["parameters"], ambiguous=True)
        return self.current_epoch(), {"id": id, "state": "computing"}

    def placement(self, params, given_up):
        answer = {"sides": ["host"], "vertices": [self.n], "device": None, "rebalancing": None}
        if params.get("vertices") is not None:
            ids = ids_of_server(params["vertices"])
            known = self.index.lookup(ids, self.n) < self.n
            columns = {"owner": "host", "degree": 1, "why": "placed"}
            answer |= {name: [it if one else None for one in known] for name, it in columns.items()}
            answer["unknown"] = wire_ids(ids[~known])
        return self.current_epoch(), answer

    def rebalance(self, params, given_up):
        if self.n > 500:
            raise NotSupported("no rows can move: there is no device")
        return self.current_epoch(), {"requested": True}

    def freeze(self, params, given_up):
        return self.current_epoch(), {"frozen": not params["thaw"]}

    def device(self, params, given_up):
        return self.current_epoch(), {"present": False, "device": None, "retried": params["retry"]}

    def drop(self, params, given_up):
        if params["program"] == "hops":
            raise RequestError("'hops' is a program of the configuration")
        return self.current_epoch(), {"id": params["program"], "state": "dropped"}


@contextlib.contextmanager
def serving(chain: Chain, folder, limits: LimitsConfig = LIMITS, listen=None, http=(), tls=None, **more):
    link = ServerLink(
        doors=Doors(listen=[f"unix:{folder}/s"] if listen is None else listen, http=http, tls=tls),
        graph={"directed": True, "weighted": True, "vertex_ids": chain.kind},
        index=chain.index,
        topology=chain,
        limits=limits,
        **more,
    )
    link.asked = {name: getattr(chain, name) for name in ASIDE}
    link.start()
    try:
        link.publish(chain.publication())
        link.wait_ready()
        yield link
    finally:
        link.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for the tests that leave it as it was."""
    chain = Chain()
    chain.grow(1000)
    with serving(chain, tmp_path_factory.mktemp("s"), listen=None) as link:
        yield chain, link


@pytest.fixture
def client(shared):
    with Client(shared[1].addresses[0], timeout=60) as client:
        yield client


# -- answers ------------------------------------------------------------------------------------------------


def test_hello_names_what_is_there(client):
    client.stats()
    assert client.server["version"] == 1 and "get" in client.server["capabilities"]
    assert client.server["programs"] == {"hops": "bfs", "parts": "components", "rank": "pagerank"}
    assert client.server["graph"]["vertex_ids"] == "int"


def test_get_gives_values_nulls_and_unknown_ids(client):
    result = client.get("hops", [100, 1099, 103, 5, 2**40], parents=True)
    assert result.epoch == (1, 1) and result.offsets == {"t": {0: 10}}
    assert result.values.tolist() == [0, None, 3, None, None]
    assert result.unknown.tolist() == [5, 2**40]
    assert result.parents.tolist() == [None, None, 102, None, None]
    assert result.stale is None


def test_get_reads_several_programs_in_one_epoch(client):
    results = client.get(["rank", "parts"], np.array([100, 101, 1099]))
    assert results["rank"].values.tolist() == [1, 2, 1000]
    assert results["parts"].values.tolist() == [100, 100, 1099]
    assert results["rank"].epoch == results["parts"].epoch


def test_get_takes_an_array_of_ids_as_well(client):
    answer = client.call("get", {"program": "rank", "vertices": [101, 100]})
    assert np.frombuffer(answer["values"]["data"], answer["values"]["dtype"]).tolist() == [2.0, 1.0]
    assert client.get("rank", []).values.tolist() == []


def test_many_vertices_are_answered_too(client):
    ids = np.tile(np.arange(100, 1100), 15)
    assert (client.get("rank", ids).values == np.tile(np.arange(1, 1001), 15)).all()
    listed = client.call("get", {"program": "rank", "vertices": [100] * 20_000})
    assert len(listed["values"]["data"]) == 160_000


def test_top_gives_the_best_in_order(client):
    best = client.top("rank", 3)
    assert best.ids.tolist() == [1099, 1098, 1097] and best.values.tolist() == [1000, 999, 998]
    assert client.top("hops", 2, order="asc").ids.tolist() == [100, 101]
    assert client.top("hops", 1).values.tolist() == [998]  # the unreached vertex has no value
    with pytest.raises(errors.NotSupported, match="no order"):
        client.top("parts", 2)


def test_a_path_has_the_weights_of_its_edges(client):
    path = client.path("hops", 104)
    assert path.vertices.tolist() == [100, 101, 102, 103, 104] and path.value == 4
    assert path.weights.tolist() == [0, 0.5, 1, 1.5]
    assert client.path("hops", 100).vertices.tolist() == [100]
    long = client.path("hops", 1098)
    assert long.vertices.tolist() == list(range(100, 1099)) and long.weights.size == 998


def test_there_may_be_no_path(client):
    path = client.path("hops", 1099)
    assert path.vertices.tolist() == [] and path.value is None
    with pytest.raises(errors.UnknownVertex, match="vertex 7 is unknown"):
        client.path("hops", 7)
    with pytest.raises(errors.NotSupported, match="keep no parents"):
        client.path("rank", 100)


@pytest.mark.parametrize("vertex", [0, 1])
def test_vertices_without_a_value_are_no_group(vertex):
    class Kind(Program):
        @staticmethod
        def read(published, vertices):
            values = published.columns["label"][vertices]
            return Answer(values, values == NO_VERTEX, vertex_valued=True)

    published = Published({"label": np.array([NO_VERTEX, 1, NO_VERTEX, 1], np.uint32)}, {}, 4)
    result = SimpleNamespace(published=published, knows=lambda dense: np.ones(dense.size, bool))
    _, size, members = groups._alike(Kind, None, result, vertex, 9)
    assert (size, members.tolist()) == ((0, []), (2, [1, 3]))[vertex]


def test_a_component_has_a_label_a_size_and_members(client):
    component = client.component(500, limit=3)
    assert (component.label, component.size) == (100, 999)
    assert component.members.tolist() == [100, 101, 102]
    alone = client.component(1099, program="parts")
    assert (alone.label, alone.size, alone.members.tolist()) == (1099, 1, [1099])
    with pytest.raises(errors.NotSupported):
        client.component(100, program="rank")


def test_neighbors_come_in_pages(client):
    page = client.neighbors(102)
    assert page.ids.tolist() == [103] and page.weights.tolist() == [1.5] and page.cursor is None
    assert client.neighbors(102, direction="in").ids.tolist() == [101]
    seen, cursor = [], None
    while True:
        page = client.neighbors(105, limit=300, cursor=cursor)
        seen += page.ids.tolist()
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == list(range(100, 1100))
    with pytest.raises(errors.UnknownVertex):
        client.neighbors(1)
    with pytest.raises(errors.Unavailable, match="applying"):
        client.neighbors(113)
    with pytest.raises(errors.NotSupported, match="no in-rows"):
        client.neighbors(114)
    with pytest.raises(errors.GraphtideError, match="its log says why"):
        client.neighbors(115)


def test_placement_of_all_rows_and_of_chosen_vertices(client):
    answer = client.placement()
    assert answer["sides"] == ["host"] and "owner" not in answer.content
    of_some = client.placement([100, 5, 101])
    assert (of_some["owner"], of_some["why"]) == (["host", None, "host"], ["placed", None, "placed"])
    assert client.placement([])["owner"] == []


def test_the_placement_of_vertices_is_asked_for_a_few_at_a_time(tmp_path):
    chain = Chain()
    chain.grow(20)
    limits = LimitsConfig(ad_hoc_vertices_max=10)
    with serving(chain, tmp_path, limits) as link, Client(link.addresses[0], timeout=60) as client:
        assert client.placement(list(range(100, 110)))["owner"] == ["host"] * 10
        with pytest.raises(errors.LimitExceeded, match="the engine answers for 10 at most"):
            client.placement(list(range(100, 111)))


def test_requests_that_steer_where_rows_are(client):
    assert client.admin_freeze()["frozen"] is True
    assert client.admin_freeze(thaw=True)["frozen"] is False
    assert client.admin_device()["retried"] is False
    assert client.admin_device(retry=True)["retried"] is True
    with pytest.raises(errors.NotSupported, match="there is no device"):
        client.admin_rebalance()
    with pytest.raises(errors.RequestError, match="thaw must be true or false"):
        client.call("admin.freeze", {"thaw": 1})


def test_degrees_and_edges(client):
    degree = client.degree([100, 1, 1098])
    assert degree.out.tolist() == [1, None, 0] and degree.in_.tolist() == [0, None, 1]
    assert degree.unknown.tolist() == [1]
    assert client.has_edge([100, 100, 1], [101, 102, 100]).exists.tolist() == [True, False, False]
    with pytest.raises(errors.RequestError, match="one length"):
        client.has_edge([100], [])


def test_programs_and_stats(client):
    programs = client.programs()["programs"]
    assert programs["hops"] == {"kind": "bfs", "state": "fresh", "scalars": {}}
    assert programs["rank"] == {"kind": "pagerank", "state": "fresh", "scalars": {"norm": 1.0}}
    stats = client.stats()
    assert stats["vertices"] == 1000 and stats["server"]["connections"] >= 1


@pytest.mark.parametrize(
    ("method", "params", "error", "message"),
    [
        ("nonsense", {}, errors.NotSupported, "no method of the protocol; there are .*checkpoint, .*get, .*wait$"),
        ("neighbours", {}, errors.NotSupported, "no method of the protocol; did you mean 'neighbors'"),
        ("admin.checkpoint", {}, errors.NotSupported, "not offered"),
        ("get", {"vertices": [1]}, errors.RequestError, "program must be given"),
        ("get", {"program": "rank"}, errors.RequestError, "vertices must be given: ids of vertices"),
        ("get", {"program": "rank", "vertices": 5}, errors.RequestError, "vertices must be an array"),
        (
            "get",
            {"program": "none", "vertices": [100]},
            errors.UnknownProgram,
            "no program 'none'; there are hops, parts, rank",
        ),
        ("top", {"program": "none"}, errors.UnknownProgram, "there are hops, parts, rank"),
        (
            "top",
            {},
            errors.RequestError,
            "program must be given: the id of a program, which the method programs lists",
        ),
        ("path", {"program": "hops"}, errors.RequestError, "target must be given: the id of a vertex"),
        (
            "get",
            {"program": "rank", "vertices": [1, "a"]},
            errors.RequestError,
            "has 'a': the ids .* are integers",
        ),
        ("get", {"program": "rank", "vertices": [1.5]}, errors.RequestError, "are integers"),
        ("get", {"program": "rank", "vertices": [True]}, errors.RequestError, "are integers"),
        ("get", {"program": "rank", "vertices": [2**64 - 1]}, errors.RequestError, "64-bit"),
        ("get", {"program": "rank", "vertices": b"1234567"}, errors.RequestError, "int64"),
        (
            "get",
            {"program": "rank", "vertices": [100], "extra": 1},
            errors.RequestError,
            "unknown parameters: extra; there are program, vertices, parents, timeout_ms, min_offsets",
        ),
        ("get", {"program": "rank", "vertices": [100], "parents": True}, errors.NotSupported, "no parents"),
        ("get", {"program": "rank", "vertices": bytes(8 * 20_001)}, errors.LimitExceeded, "at most 20000"),
        (
            "get",
            {"program": ["rank", "hops"], "vertices": bytes(8 * 20_000)},
            errors.LimitExceeded,
            "20000 vertices times 2",
        ),
        ("get", {"program": "rank", "vertices": [100], "min_offsets": 5}, errors.RequestError, "min_offsets"),
        (
            "get",
            {"program": "rank", "vertices": [100], "min_offsets": {"t": {"x": 1}}},
            errors.RequestError,
            "min",
        ),
        ("top", {"program": "rank", "k": 101}, errors.LimitExceeded, "at most 100"),
        ("top", {"program": "rank", "k": 0}, errors.RequestError, "from 1 to 100"),
        ("top", {"program": "rank", "order": "up"}, errors.RequestError, "desc, asc"),
        ("component", {"vertex": None}, errors.RequestError, "vertex must be given"),
        ("component", {"vertex": "x"}, errors.RequestError, "integers"),
        ("neighbors", {"vertex": 100, "direction": "both"}, errors.RequestError, "out, in"),
        ("wait", {"min_offsets": {"t": {0: 99}}, "timeout_ms": 10**9}, errors.LimitExceeded, "timeout_ms"),
        ("hello", {"versions": [99]}, errors.NotSupported, "version"),
        ("hello", {"versions": "1"}, errors.RequestError, "array of versions"),
        ("hello", {"versions": [True]}, errors.RequestError, "array of versions"),
        ("wait", {"min_offsets": {"t": {0: 1.5}}}, errors.RequestError, "min_offsets must map"),
        ("wait", {"min_offsets": {"t": {0: True}}}, errors.RequestError, "min_offsets must map"),
    ],
)
def test_bad_requests_are_told_why_and_change_nothing(client, method, params, error, message):
    with pytest.raises(error, match=message):
        client.call(method, params)
    assert client.get("rank", [100]).values.tolist() == [1]


# -- epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("get", {"program": "rank", "vertices": 5}, "vertices"),
        ("get", {"program": ["rank", "hops"], "vertices": bytes(8 * 20_000)}, "vertices"),
        ("top", {"program": "none"}, "program"),
        ("path", {"program": "hops", "target": 7}, "target"),
        ("component", {"vertex": 7}, "vertex"),
        ("neighbors", {"vertex": 7}, "vertex"),
        ("khop", {"vertex": 7}, "vertex"),
        ("egonet", {"vertex": 7}, "vertex"),
        ("compute", {"program": "bfz", "source": 1}, "program"),
        ("compute", {"program": "bfs"}, "source"),
        ("compute", {"program": "bfs", "source": 1.5}, "source"),
        ("compute", {"program": "bfs", "parameters": {"sorce": 1}}, "sorce"),
        ("keep", {"program": "bfs", "source": 1, "sorce": 1}, "sorce"),
    ],
)
def test_an_error_about_one_parameter_names_it(client, method, params, name):
    with pytest.raises(errors.RequestError) as caught:
        client.call(method, params)
    assert caught.value.detail.get("parameter") == name, caught.value.message


@pytest.mark.parametrize(
    ("method", "params", "name", "setting"),
    [
        ("top", {"program": "rank", "k": 101}, "k", "top_k_max"),
        ("histogram", {"program": "rank", "bins": 101}, "bins", "top_k_max"),
        ("subscribe", {"program": "rank", "top": 101}, "top", "top_k_max"),
        ("compute", {"program": "bfs", "source": 1, "top": 101}, "top", "top_k_max"),
        ("component", {"vertex": 100, "limit": 2**31}, "limit", "vertices_max"),
        ("neighbors", {"vertex": 100, "limit": 2**31}, "limit", "vertices_max"),
        ("khop", {"vertex": 100, "limit": 2**31}, "limit", "vertices_max"),
        ("egonet", {"vertex": 100, "edge_limit": 2**31}, "edge_limit", "edges_max"),
        ("subgraph", {"vertices": [100], "limit": 2**31}, "limit", "edges_max"),
        ("cross_edges", {"src": [100], "dst": [100], "limit": 2**31}, "limit", "edges_max"),
        ("wait", {"timeout_ms": 2**31}, "timeout_ms", "timeout_ms_max"),
    ],
)
def test_what_exceeds_a_limit_names_the_setting_that_would_allow_it(client, method, params, name, setting):
    with pytest.raises(errors.LimitExceeded) as caught:
        client.call(method, params)
    assert caught.value.detail == {setting: getattr(LIMITS, setting), "parameter": name}


def test_no_default_exceeds_a_limit(tmp_path):
    chain = Chain()
    chain.grow(10)
    few = LIMITS.model_copy(update={"top_k_max": 2, "vertices_max": 2})
    with serving(chain, tmp_path, limits=few) as link, Client(link.addresses[0]) as client:
        for method, column in (("top", "ids"), ("histogram", "counts")):
            assert unpack_column(client.call(method, {"program": "rank"})[column]).size == 2


def test_what_is_nil_counts_as_absent(shared):
    with raw(shared[1].addresses[0]) as connection:
        connection.send(request(1, "compute", {"program": "pagerank", "source": None, "top": None}))
        assert connection.answer()[:3] == [1, 1, None]
        connection.send(request(2, "programs", {"vertices": None}))
        assert connection.answer()[:3] == [1, 2, None]


@pytest.mark.parametrize("params", [{"program": "x" * 100_000}, {"program": "bfs", "x" * 100_000: 1}])
def test_a_name_that_stands_for_nothing_is_not_shown_whole(client, params):
    with pytest.raises(errors.RequestError) as caught:
        client.call("compute", params)
    assert "x" * 64 in caught.value.message and len(caught.value.message) < 300


def test_an_id_that_no_vertex_can_have_is_not_shown_whole():
    error = unknown_vertex(StringColumn.of(["x" * 100_000]))
    assert len(error.message) < 300 and len(error.detail["vertex"]) < 300


def test_a_deleted_vertex_is_unknown_until_it_is_back(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        assert client.top("rank", 1).ids.tolist() == [109]
        chain.dead = [0, 9]
        link.publish(chain.publication())
        answer = client.get("rank", [100, 101, 109, 7])
        assert answer.values.tolist() == [None, 1, None, None]
        assert answer.unknown.tolist() == [100, 109, 7]
        assert client.top("rank", 1).ids.tolist() == [108]
        assert client.top("rank", 10, order="asc").ids.tolist() == list(range(101, 109))
        degree = client.degree([100, 101, 109])
        assert degree.out.tolist() == [None, 1, None] and degree.unknown.tolist() == [100, 109]
        for ask in (
            lambda: client.path("hops", 109),
            lambda: client.component(109),
            lambda: client.neighbors(109),
            lambda: client.neighbors(100, direction="in"),
        ):
            with pytest.raises(errors.UnknownVertex, match=r"vertex 10[09] is unknown"):
                ask()
        chain.dead = [0]
        link.publish(chain.publication())
        assert client.get("rank", [100, 109]).values.tolist() == [None, 10 / 3]
        assert client.component(109).label == 109
        assert client.neighbors(109, direction="in").ids.tolist() == []


def test_a_producer_reads_its_own_writes(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        with pytest.raises(errors.TimedOut, match="no epoch covered"):
            client.wait({"t": {0: 11}}, timeout_ms=30)
        with pytest.raises(errors.TimedOut):
            client.get("rank", [100], min_offsets={"other": 1}, timeout_ms=0)
        timer = threading.Timer(0.1, lambda: [link.publish(chain.publication()) for _ in range(3)])
        timer.start()
        assert client.wait({"t": {0: 35}}).epoch == (1, 4)
        timer.join()
        assert client.get("rank", [103], min_offsets={"t": {"0": 40}}).values.tolist() == [1]


def test_waiting_ends_at_once_for_what_is_done_with_or_never_was(tmp_path):
    chain = Chain()
    chain.grow(10)
    chain.files = {"old.msgpack": "covered", "typo.msgpack": "unknown"}
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        assert client.wait({"old.msgpack": 7, "t": {0: 10}}, timeout_ms=0).epoch == (1, 1)
        assert client.get("rank", [1], min_offsets={"old.msgpack": 7}, timeout_ms=0).epoch == (1, 1)
        with pytest.raises(errors.RequestError, match=r"names what is not read: typo\.msgpack") as unknown:
            client.wait({"typo.msgpack": 1, "old.msgpack": 7}, timeout_ms=20_000)
        assert unknown.value.detail == {"unknown": ["typo.msgpack"], "parameter": "min_offsets"}
        with pytest.raises(errors.LimitExceeded, match="names 6000 places") as too_many:
            client.wait({name: dict.fromkeys(range(3000), 1) for name in ("u", "v")})
        assert too_many.value.detail == {"parameter": "min_offsets"}


def test_a_wait_that_runs_out_says_what_is_behind(tmp_path):
    chain = Chain()
    chain.grow(10)
    chain.files = {"old.msgpack": "covered"}
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        wanted = {"t": {0: 10, 1: 5}, "old.msgpack": 1, "new.csv": 8}
        with pytest.raises(errors.TimedOut, match=r"in time: t/1 is at 0 of 5, new\.csv is at 0 of 8$") as late:
            client.wait(wanted, timeout_ms=20)
        assert late.value.detail == {"behind": {"t/1": [0, 5], "new.csv": [0, 8]}}
        with pytest.raises(errors.TimedOut, match=r"t/0 is at 10 of 11, .*, and 2 more$") as late:
            client.wait({"t": dict.fromkeys(range(12), 11)}, timeout_ms=20)
        assert len(late.value.detail["behind"]) == 10


def test_growth_of_memory_and_index_is_followed_at_once(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        for n in (700, 3000, 50_000, 120_000):
            chain.grow(n)
            link.publish(chain.publication())
            result = client.get("hops", [100, 100 + n - 2, 100 + n - 1], parents=True)
            assert result.values.tolist() == [0, n - 2, None]
            assert result.parents.tolist()[1] == 100 + n - 3
            assert client.neighbors(100 + n - 3).ids.tolist() == [100 + n - 2]
            assert client.top("rank", 1).ids.tolist() == [100 + n - 1]
        with pytest.raises(errors.LimitExceeded, match="more than 20000 vertices"):
            client.path("hops", 100 + n - 2)


def test_an_indexed_vertex_of_the_next_epoch_is_still_unknown(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        chain.index.insert(np.array([5555]))
        assert client.get("rank", [5555]).unknown.tolist() == [5555]
        assert client.degree([5555]).unknown.tolist() == [5555]
        with pytest.raises(errors.UnknownVertex):
            client.neighbors(5555)


def test_a_path_waits_until_storage_and_results_agree(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        chain.storage_ahead = 1
        assert client.path("hops", 102).weights.tolist() == [0, 0.5]
        assert chain.asked == 4
        chain.storage_ahead, chain.asked = 1, 10
        with pytest.raises(errors.TimedOut):
            client.path("hops", 102, timeout_ms=50)


def test_results_of_a_quarantined_program_say_that_they_are_stale(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        chain.state = "quarantined"
        chain.grow(12)
        link.publish(chain.publication())
        result = client.get("rank", [100, 111])
        assert result.stale["state"] == "quarantined" and result.epoch == (1, 2)
        assert result.values.tolist() == [1, None] and result.unknown.size == 0
        assert client.top("rank", 1).stale and client.path("hops", 101).stale
        shown = client.programs()["programs"]["rank"]
        assert shown["state"] == "quarantined" and shown["scalars"] == {"norm": 1.0}


def test_results_of_a_quarantined_program_are_only_of_the_vertices_of_that_time(tmp_path):
    """100 and 105 were deleted since, and other vertices have their dense ids."""
    chain = Chain()
    chain.grow(200)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        gone = np.array([0, 5], np.uint32)
        chain.index.remove(gone)
        chain.index.free(gone)
        assert sorted(chain.index.insert(np.array([7, 8])).tolist()) == [0, 5]
        chain.state, chain.gone = "quarantined", [0, 5]
        link.publish(chain.publication())
        result = client.get("hops", [7, 8, 100, 101, 106, 107], parents=True)
        assert result.stale and result.unknown.tolist() == [100]
        assert result.values.tolist() == [None, None, None, 1, 6, 7]
        assert result.parents.tolist() == [None, None, None, None, None, 106]
        assert client.get("parts", [7, 101, 299]).values.tolist() == [None, None, 299]
        assert client.top("rank", 3, order="asc").ids.tolist() == [101, 102, 103]
        component = client.component(101, limit=6)
        assert component.label is None and component.members.tolist() == [101, 102, 103, 104]
        with pytest.raises(errors.UnknownVertex, match="vertex 7 is newer"):
            client.component(7)
        assert client.path("hops", 7).vertices.tolist() == []
        for target in (104, 298):
            with pytest.raises(errors.UnknownVertex, match="led through a vertex that was deleted since"):
                client.path("hops", target)


def test_strings_are_ids_too(tmp_path):
    chain = Chain("string")
    chain.grow(2000)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        result = client.get("hops", ["v0", "v7", "no", "v1999", "ü"], parents=True)
        assert result.values.tolist() == [0, 7, None, None, None] and result.unknown == ["no", "ü"]
        assert result.parents.tolist() == [None, "v6", None, None, None]
        assert client.get("parts", ["v5", "no"]).values.tolist() == ["v0", None]
        assert client.top("rank", 2).ids == ["v1999", "v1998"]
        assert client.path("hops", "v3").vertices == ["v0", "v1", "v2", "v3"]
        assert client.component("v3", limit=2).members == ["v0", "v1"]
        assert client.neighbors("v5").ids == [f"v{i}" for i in range(1000)]
        assert client.degree(["v0", "no"]).unknown == ["no"]
        with pytest.raises(errors.RequestError, match="are strings"):
            client.call("get", {"program": "hops", "vertices": [1]})
        with pytest.raises(errors.RequestError, match="integers"):
            client.call("get", {"program": "hops", "vertices": bytes(8)})


def test_answers_are_of_one_epoch_while_epochs_race(tmp_path):
    chain = Chain()
    chain.grow(500)
    stop = threading.Event()
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:

        def publish():
            while not stop.wait(0.002):
                link.publish(chain.publication())

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            epochs = set()
            asked = 0
            while asked < 300 or len(epochs) < 30:  # however fast either is
                asked += 1
                result = client.get("rank", [100, 599])
                number = result.epoch[1]
                assert result.values.tolist() == [1 / number, 500 / number]
                assert result.offsets == {"t": {0: 10 * number}}
                epochs.add(number)
            best = client.top("rank", 1)
            assert best.values.tolist() == [500 / best.epoch[1]]
        finally:
            stop.set()
            thread.join()


# -- the process --------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_replaced_and_its_clients_go_on(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        address = link.addresses[0]
        for _ in range(30):
            client.get("rank", [100])
        until(lambda: "get" in link.latency_snapshot())
        os.kill(link.pid, signal.SIGKILL)
        assert client.get("rank", [103]).values.tolist() == [4]
        assert link.restarts == client.stats()["server"]["restarts"] == 1 and link.addresses == [address]
        link.publish(chain.publication())
        assert client.wait({"t": {0: 20}}).epoch == (1, 2)
        until(lambda: sum(link.latency_snapshot()["get"].bucket_counts) >= 31)
        latency = link.latency_snapshot()["get"]
        assert sum(latency.bucket_counts) >= 31 and latency.sum_seconds > 0 and latency.errors == {}


def test_a_server_that_hangs_does_not_answer_though_it_is_there(tmp_path, monkeypatch):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link:
        assert link.is_ready and link.is_answering
        os.kill(link.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "SILENT_SECONDS_MAX", 3.0)  # reports come every second
            until(lambda: not link.is_answering)
        assert link.is_ready and link.restarts == 0
        os.kill(link.pid, signal.SIGCONT)
        until(lambda: link.is_answering)


def test_those_who_wait_are_counted(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link, Client(link.addresses[0]) as client, raw(link.addresses[0]) as waiter:
        waiter.send(request(1, "wait", {"min_offsets": {"t": {0: 20}}, "timeout_ms": 60_000}))
        until(lambda: client.stats()["server"]["waiting"] == 1)
        until(lambda: (link.connections, link.waiting) == (2, 1))
        link.publish(chain.publication())
        assert waiter.answer()[1] == 1
        assert client.stats()["server"]["waiting"] == 0
        until(lambda: link.waiting == 0)


def test_the_server_goes_when_the_link_stops(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link:
        pid = link.pid
        path = link.addresses[0].removeprefix("unix:")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not os.path.exists(path)


def test_addresses(tmp_path):
    chain = Chain()
    chain.grow(10)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(f"{tmp_path}/stale")
    stale.close()
    listen = [f"unix:{tmp_path}/stale", "tcp://127.0.0.1:0", "tcp://[::1]:0"]
    with serving(chain, tmp_path, listen=listen) as link:
        assert link.addresses[0] == listen[0] and link.addresses[1] != listen[1]
        for address in link.addresses:
            with Client(address, timeout=60) as client:
                assert client.get("rank", [100]).values.tolist() == [1]
        for taken in link.addresses[:2]:
            with (
                pytest.raises(errors.ConfigError, match="cannot listen"),
                serving(chain, tmp_path, listen=[taken]),
            ):
                pass
        with Client(link.addresses[0], timeout=60) as client:  # the probe of a live socket harmed nothing
            client.stats()
    (tmp_path / "file").write_text("precious")
    for wrong, message in (
        (f"unix:{tmp_path}/file", "no socket"),
        ("tcp://0.0.0.0:0", "beyond loopback"),
        ("http://x", "is no address"),
    ):
        with pytest.raises(errors.ConfigError, match=message), serving(chain, tmp_path, listen=[wrong]):
            pass
    assert (tmp_path / "file").read_text() == "precious"


def test_doors_open_when_they_listen_and_a_path_that_another_took_stays_its_own(tmp_path):
    places = [f"unix:{tmp_path}/s", "tcp://127.0.0.1:0"]
    first = Doors(listen=places)
    for address in first.addresses:
        with pytest.raises(errors.Unavailable), Client(address, timeout=5) as client:
            client.stats()
    second = Doors(listen=[f"unix:{tmp_path}/s"])  # to which the first, not listening, looks like a leftover
    second.listen()
    with pytest.raises(errors.ConfigError, match=r"cannot listen on unix:.* in use"):
        first.listen()
    first.close()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(f"{tmp_path}/s")
    second.close()
    assert not os.path.exists(tmp_path / "s")


def test_a_token_is_asked_for_before_anything_else(tmp_path):
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path, tokens=["sesame-open"]) as link:
        address = link.addresses[0]
        with Client(address, token="sesame-open", timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]
        for wrong in (None, "sesame-opem", ""):
            with pytest.raises(errors.Unauthorized), Client(address, token=wrong, timeout=60) as client:
                client.stats()
        for method in ("get", "stats", "nonsense"):
            with raw(address) as connection:
                connection.send(request(1, method))
                assert connection.answer()[2]["code"] == "unauthorized"
                assert connection.answer() is None


@pytest.mark.parametrize("tokens", [(), ("sesame-open",)], ids=["open to all", "with a token"])
def test_digits_are_texts_where_ids_are(tmp_path, tokens, capsys):
    """Also in requests that are decoded apart since they are long, and of subscriptions."""
    chain = Chain("string")
    chain.grow(10)
    with serving(chain, tmp_path, tokens=tokens, admin_tokens=["sesame-change"]) as link:
        address = link.addresses[0]
        for token in (*tokens, "sesame-change"):
            for vertices in ([7], [*range(10**9, 10**9 + 15_000)]):
                params = {"program": "rank", "vertices": vertices}
                assert query.run_query(address, "get", params, token=token, as_json=True) == 0
                assert json.loads(capsys.readouterr().out)["unknown"] == [str(id) for id in vertices]
            assert watch.watch(address, "rank", [7], changes_max=1, as_json=True, token=token) == 0
            assert json.loads(capsys.readouterr().out)["ids"] == []


def test_tls(tmp_path):
    import ssl
    import subprocess

    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
    ]
    files = ["-keyout", f"{tmp_path}/key", "-out", f"{tmp_path}/cert"]
    if subprocess.run([*command, "subjectAltName=IP:127.0.0.1", *files], capture_output=True).returncode:
        skip_or_fail("openssl cannot make a certificate")
    from graphtide.daemon.serve.listening import TlsFiles

    chain = Chain()
    chain.grow(10)
    tls = TlsFiles(f"{tmp_path}/cert", f"{tmp_path}/key")
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"], tls=tls) as link:
        context = ssl.create_default_context(cafile=f"{tmp_path}/cert")
        with Client(link.addresses[0], ssl_context=context, timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]
        with pytest.raises(errors.RequestError, match="TLS is spoken here"), Client(link.addresses[0]) as client:
            client.stats()
        host, port = link.addresses[0].removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert said.startswith(b"HTTP/1.1 400") and b"the addresses of server.http" in said
        socket.create_connection((host, int(port)), 60).close()  # who hangs up before it has said anything
        with Client(link.addresses[0], ssl_context=context, timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"]) as link:
        address = link.addresses[0]
        with pytest.raises(errors.Unavailable, match="no TLS is spoken there"):
            Client(address, ssl_context=context).stats()
        with pytest.raises(errors.Unavailable, match="no TLS is spoken there"):
            asyncio.run(AsyncClient(address, ssl_context=context).stats())
    swapped = TlsFiles(f"{tmp_path}/key", f"{tmp_path}/cert")
    refused = serving(chain, tmp_path, tls=swapped)
    with pytest.raises(errors.ConfigError, match="TLS with"), refused:
        pass


# -- clients that mean no good ------------------------------------------------------------------------------


class Raw:
    """A bare connection."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(address.removeprefix("unix:"))
        self.unpacker = msgpack.Unpacker(strict_map_key=False)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self):
        while True:
            for message in self.unpacker:
                return message
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.unpacker.feed(data)

    def error(self) -> str:
        """The code of the error that ends the connection, which then must end."""
        message = self.answer()
        assert message[:2] == [2, "error"]
        assert self.answer() is None
        return message[2][0]["code"]


@contextlib.contextmanager
def raw(address: str):
    connection = Raw(address)
    with connection.socket:
        yield connection


def request(msgid, method, params=None) -> bytes:
    return msgpack.packb([0, msgid, method, [params or {}]])


def test_who_hangs_up_with_the_request_leaves_no_warning(tmp_path, capfd):
    """Request and end of connection are read together: what would answer is cancelled before it begins."""
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path) as link:
        for number in range(100):
            with raw(link.addresses[0]) as connection:
                connection.send(request(number, "hello"))
                connection.answer()
                connection.send(4 * request(number, "egonet", {"vertex": 101}))
                connection.socket.shutdown(socket.SHUT_WR)
        with Client(link.addresses[0]) as client:
            client.stats()
    assert "never awaited" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "bad-request"),
        (b"\xc1", "bad-request"),
        (b"\x00", "bad-request"),
        (b"\x91" * 5000, "bad-request"),
        (b"\x91" * 500 + b"\x00", "bad-request"),
        (b"\xc6\xff\xff\xff\xff" + bytes(200_000), "limit-exceeded"),
        (b"\xdd\xff\xff\xff\xff" + b"\x01" * 200_001, "limit-exceeded"),
        (b"\xdf\x00\xff\xff\xff" + b"\x01" * 200_001, "limit-exceeded"),
        (msgpack.packb([0, 1, "get", [{"vertices": [[]] * 2000}]]), "limit-exceeded"),
        (msgpack.packb([0, 1, "get", [{"vertices": [1] * 60_000}]]), "bad-request"),
        (msgpack.packb([0, 1, "get", [{str(i): i for i in range(5000)}]]), "bad-request"),
        (msgpack.packb([0, -1, "get", [{}]]), "bad-request"),
        (msgpack.packb([0, 2**40, "get", [{}]]), "bad-request"),
        (msgpack.packb([2, "get", [{}]]), "bad-request"),
        (msgpack.packb([0, 1, "get", [{"x": msgpack.ExtType(5, b"y")}]]), "bad-request"),
        (b"\x94\x00\x01\xa1\xff\x91\x80", "bad-request"),
    ],
)
def test_garbage_ends_only_its_own_connection(shared, client, data, code):
    client.get("rank", [100])
    with raw(shared[1].addresses[0]) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(data)
        assert connection.error() == code
    assert client.get("rank", [100]).values.tolist() == [1]


@pytest.mark.parametrize(
    "message",
    [[0, 1, 7, [{}]], [0, 1, "get", {}], [0, 1, "get", [{}, {}]], [0, 1, "get", [{5: 5}]], [0, 1, "get", [3]]],
)
def test_wrong_parameters_are_answered(shared, message):
    with raw(shared[1].addresses[0]) as connection:
        connection.send(msgpack.packb(message))
        answer = connection.answer()
        assert answer[:2] == [1, 1] and answer[2]["code"] == "bad-request"
        connection.send(request(2, "programs"))
        assert connection.answer()[:3] == [1, 2, None]


def test_requests_may_come_in_single_bytes(shared):
    with raw(shared[1].addresses[0]) as connection:
        for byte in request(7, "stats") + request(8, "stats"):
            connection.send(bytes([byte]))
        assert [connection.answer()[1] for _ in range(2)] == [7, 8]


def test_a_flood_of_pipelined_requests_is_answered_whole_and_in_turn(shared, client):
    flood = b"".join(request(i, "get", {"program": "rank", "vertices": [100]}) for i in range(3000))
    slow = b"".join(request(10_000 + i, "top", {"program": "rank", "k": 1 + i % 90}) for i in range(100))
    with raw(shared[1].addresses[0]) as connection:
        sender = threading.Thread(target=connection.send, args=(flood + slow,))
        sender.start()
        for _ in range(20):
            assert client.get("rank", [101]).values.tolist() == [2]
        answers = [connection.answer() for _ in range(3100)]
        sender.join()
    assert sorted(answer[1] for answer in answers) == [*range(3000), *range(10_000, 10_100)]
    assert all(answer[2] is None for answer in answers)


def test_answers_overtake_those_that_wait(shared):
    with raw(shared[1].addresses[0]) as connection:
        connection.send(request(1, "wait", {"min_offsets": {"t": {0: 10**9}}, "timeout_ms": 300}))
        connection.send(request(2, "stats"))
        assert connection.answer()[1] == 2
        answer = connection.answer()
        assert answer[1] == 1 and answer[2]["code"] == "timeout"


def test_one_that_never_reads_is_disconnected(shared, client):
    with raw(shared[1].addresses[0]) as connection:
        asked = request(1, "get", {"program": "rank", "vertices": bytes(8 * 20_000)})
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.send(asked * 100)
    assert client.get("rank", [100]).values.tolist() == [1]


def test_more_connections_than_allowed_are_refused_and_room_comes_back(shared):
    _, link = shared
    with Client(link.addresses[0], timeout=60) as client:  # those of other tests have gone
        until(lambda: client.stats()["server"]["connections"] == 1)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(raw(link.addresses[0])) for _ in range(LIMITS.connections_max)]
        for connection in connections:
            with contextlib.suppress(BrokenPipeError):
                connection.send(request(1, "stats"))
        refused = [answer for connection in connections if (answer := connection.answer())[0] == 2]
        last = stack.enter_context(raw(link.addresses[0]))
        assert last.error() == "limit-exceeded"
        assert len(refused) <= 1  # that before may still be closing

    def is_answered() -> bool:
        with contextlib.suppress(errors.LimitExceeded), Client(link.addresses[0], timeout=60) as client:
            return client.stats() is not None
        return False

    until(is_answered)


def test_the_idle_and_the_half_open_are_disconnected(tmp_path):
    chain = Chain()
    chain.grow(10)
    with (
        serving(chain, tmp_path, LimitsConfig(idle_seconds_max=1.0)) as link,
        raw(link.addresses[0]) as half,
        raw(link.addresses[0]) as idle,
    ):
        half.send(request(1, "stats")[:5])
        assert idle.answer() is None and half.answer() is None


def test_those_that_break_off_leave_nothing_behind(shared, client):
    linger = struct.pack("ii", 1, 0)
    for i in range(30):
        with raw(shared[1].addresses[0]) as connection:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.send(request(1, "wait", {"min_offsets": {"t": {0: 10**9}}, "timeout_ms": 60_000}))
            connection.send(request(2, "top", {"program": "rank", "k": 1 + i}))
    until(lambda: client.stats()["server"]["connections"] == 1)
    assert client.stats()["server"]["held_bytes"] == 0


# -- programs at run time -------------------------------------------------------------------------------------


def test_a_run_gives_values_of_vertices_or_the_best(client):
    found = client.compute("ppr", {"sources": 100}, vertices=[100, 101, 102])
    assert found.values.tolist() == [0.0, None, 2.0] and found.scalars == {"norm": 1.5}
    assert found.epoch == (1, 1) and found.ids == [100, 101, 102] and len(found.unknown) == 0
    best = client.compute("pagerank", top=3)
    assert best.ids.tolist() == [100, 101, 102] and best.values.tolist() == [1.0, 0.5, 0.0]
    alone = client.compute("pagerank")
    assert alone.values is None and alone.ids is None


def test_whoever_asks_for_a_run_and_leaves_ends_it(shared):
    chain, link = shared
    chain.begun.clear()
    with raw(link.addresses[0]) as connection:
        connection.socket.sendall(msgpack.packb([0, 1, "compute", [{"program": "triangles"}]]))
        assert chain.begun.wait(60)
    assert chain.given_up.wait(60)


def test_a_run_that_is_not_done_in_time_makes_room_for_others(client, shared):
    chain, _ = shared
    chain.begun.clear()
    chain.given_up.clear()
    timeout_ms = 50
    while not chain.begun.is_set():  # a busy machine may take longer than that until the engine is asked
        with pytest.raises(errors.TimedOut):
            client.compute("triangles", timeout_ms=timeout_ms)
        timeout_ms *= 2
    assert chain.given_up.wait(60)
    assert client.compute("pagerank").seconds == 0.25


def test_a_run_that_is_not_done_since_kernels_are_compiled_says_so(client):
    timeout_ms, said = 50, "not yet"
    while "compiled" not in said:  # a busy machine may take longer than that until it is told
        assert timeout_ms < 100_000, said
        with pytest.raises(errors.TimedOut) as caught:
            client.compute("lcc", timeout_ms=timeout_ms)
        said, timeout_ms = str(caught.value), 2 * timeout_ms
    assert "ask again" in said
    # Of what has its kernels, nothing like that is said.
    with pytest.raises(errors.TimedOut) as caught:
        client.compute("triangles", timeout_ms=timeout_ms)
    assert "compiled" not in str(caught.value)


def test_what_programs_are_asked_for_is_looked_at_before_the_engine_is(client):
    with pytest.raises(errors.RequestError, match="did you mean 'pagerank'"):
        client.compute("pagerang")
    with pytest.raises(errors.RequestError, match="needs the parameter 'source'"):
        client.keep("bfs")
    with pytest.raises(errors.RequestError, match="id must be a string"):
        client.call("keep", {"program": "pagerank", "id": 5})
    with pytest.raises(errors.RequestError, match="the name of a program"):
        client.call("compute", {"vertices": [100]})
    with pytest.raises(errors.RequestError, match="of the configuration"):
        client.drop("hops")
    assert client.keep("bfs", {"source": [1, 2]}).id == "bfs(1+2)"
    assert client.drop("bfs(1+2)").state == "dropped"


@pytest.mark.parametrize("tokens", [(), ("sesame-open",)], ids=["open to all", "with a token"])
def test_who_wants_to_change_something_presents_a_token_of_its_own(tmp_path, tokens):
    chain = Chain()
    chain.grow(20)
    with serving(chain, tmp_path, tokens=tokens, admin_tokens=["sesame-change"]) as link:
        with Client(link.addresses[0], token=tokens[0] if tokens else None) as client:
            for change in (
                lambda: client.keep("pagerank"),
                lambda: client.drop("rank"),
                client.checkpoint,
                client.admin_rebalance,
                client.admin_freeze,
                client.admin_device,
            ):
                with pytest.raises(errors.Unauthorized, match="admin_token"):
                    change()
            assert client.compute("pagerank").scalars  # which changes nothing; nor was the connection ended
            assert not chain.by_admin
            assert client.placement()["sides"] == ["host"]
        with Client(link.addresses[0], token="sesame-change") as client:
            assert client.compute("pagerank").scalars and chain.by_admin
            assert client.keep("pagerank").state == "computing"
            link.renew_access(tokens, ["another-one"])
            with pytest.raises(errors.Unauthorized):
                until(lambda: not client.drop("rank"))


def answer_to(link, method: str, params: dict) -> list:
    with raw(link.addresses[0]) as connection:
        connection.socket.settimeout(60)
        connection.socket.sendall(msgpack.packb([0, 7, method, [params]]))
        unpacker = msgpack.Unpacker(strict_map_key=False)
        while data := connection.socket.recv(1 << 16):
            unpacker.feed(data)
            for message in unpacker:
                return message
        raise ConnectionError("it was closed")


@pytest.mark.parametrize("offset", [1e300, 2**64 - 1, "9" * 30, "9" * 4000, float("inf"), "-", "²"])
def test_offsets_that_no_source_can_have_are_refused(shared, offset):
    for wanted in ({"t": {"0": offset}}, {"t": {offset: 1}}, {"t": offset}):
        _, msgid, error, _ = answer_to(shared[1], "wait", {"min_offsets": wanted, "timeout_ms": 0})
        assert msgid == 7 and error["code"] == "bad-request" and len(error["message"]) < 200
        assert error["detail"] == {"parameter": "min_offsets"}


def test_what_a_client_called_things_is_not_told_to_it_at_any_length(shared):
    wanted = {"x" * 100_000: 1}
    _, _, error, _ = answer_to(shared[1], "wait", {"min_offsets": wanted, "timeout_ms": 0})
    assert error["code"] == "bad-request" and "more than 1024 characters" in error["message"]
    assert len(msgpack.packb(error)) < 300
    params = {f"{number:064d}": 1 for number in range(2000)}
    _, _, error, _ = answer_to(shared[1], "wait", params)
    assert error["code"] == "bad-request" and len(error["detail"]["unknown"]) == 16
    assert len(msgpack.packb(error)) < 4000


def test_a_long_array_in_place_of_a_word_is_the_clients_mistake(shared):
    for method, params, name in (
        ("top", {"program": "rank"}, "order"),
        ("khop", {"vertex": 100}, "direction"),
        ("histogram", {"program": "rank"}, "scale"),
    ):
        _, _, error, _ = answer_to(shared[1], method, {**params, name: [*range(1 << 16, (1 << 16) + 19_000)]})
        assert error["code"] == "bad-request" and error["detail"] == {"parameter": name}, name


@pytest.mark.parametrize("token", ["x" * 4097, b"sesame", 7, ["x"], {"x": 1}])
def test_a_token_that_is_none_is_not_kept_where_none_is_asked_for(shared, token):
    """It would be kept as long as the connection is open, however long it is."""
    _, _, error, _ = answer_to(shared[1], "hello", {"token": token})
    assert error["code"] == "bad-request" and error["detail"] == {"parameter": "token"}


def test_a_token_in_another_form_than_text_is_told_of(tmp_path):
    chain = Chain()
    chain.grow(20)
    with serving(chain, tmp_path, tokens=["sesame-open"]) as link:
        _, _, error, _ = answer_to(link, "hello", {"token": b"sesame-open"})
        assert (error["code"], error["message"]) == ("unauthorized", "the token must be a string")


class Deferring(Chain):
    """Makes the checkpoints of epochs to come when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.wished: list[tuple[int, int] | None] = []
        self.may = threading.Event()

    def checkpoint(self, at, since, failures):
        self.wished.append(at)
        if at is None or self.may.is_set():
            return super().checkpoint(at, since, failures)
        return CheckpointAsked(self.current_epoch(), "waiting", (1, 1), 0, None, (), "")


def test_checkpoints_of_exactly_one_epoch_are_waited_for_one_at_a_time(tmp_path):
    chain = Deferring()
    chain.grow(20)
    with (
        serving(chain, tmp_path) as link,
        Client(link.addresses[0], timeout=60) as client,
        Client(link.addresses[0], timeout=60) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(other.checkpoint, at=(1, 7), timeout_ms=60_000)
        try:
            until(lambda: chain.wished)
            with pytest.raises(errors.Unavailable, match=r"exactly epoch 1\.7 is waited for") as refused:
                client.checkpoint(at=(1, 8), timeout_ms=60_000)
            assert refused.value.detail["epoch"] == [1, 7] and (1, 8) not in chain.wished
            assert client.checkpoint().path == "/checkpoints/checkpoint-1-2", "for which nothing waits"
            with pytest.raises(errors.TimedOut):  # the same one may be waited for by several
                client.checkpoint(at=(1, 7), timeout_ms=100)
        finally:
            chain.may.set()
        assert first.result().path == client.checkpoint(at=(1, 8)).path


@pytest.mark.parametrize("says_so", [True, False])
def test_a_transport_that_is_closed_already_is_not_asked_to_read_on(says_so: bool) -> None:
    def refuse() -> None:
        raise RuntimeError("the handler is closed")

    gone = SimpleNamespace(is_closing=lambda: says_so, resume_reading=refuse)
    connection = SimpleNamespace(_closing=False, _paused=True, _transport=gone)
    Channel._pause(connection, False)  # type: ignore[arg-type]
    assert connection._paused
