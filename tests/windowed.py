"""A stream into a graph whose edges expire, without a daemon around it: cut into steps and epochs at random, ended
and begun again anywhere. And the oracle for it, in plain Python."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphtide.daemon.engine.window import CountWindow, TimeWindow, Window
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.event_time import EventTime, EventTimeRules
from graphtide.daemon.ingest.loop import Ingest, IngestReport
from graphtide.daemon.ingest.prepared import Prepared, PreparedQueue, one_batch
from graphtide.daemon.ingest.reuse import IdReuse
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.event_time import EventState
from graphtide.daemon.records.stream import Decided, Lag, Offsets, Partition, Passed, RawRecord
from graphtide.daemon.state.order_log import OrderLog
from graphtide.gpma.edges import EdgeList, Op, destinations, sources
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

Row = tuple[int, int, int, int]
"""Operation, src, dst, time."""
Edge = tuple[int, int]
NEVER = -(10**18)
OPS = {
    Op.INSERT: "insert",
    Op.DELETE: "delete",
    Op.INSERT_VERTEX: "insert_vertex",
    Op.DELETE_VERTEX: "delete_vertex",
}


@dataclass(frozen=True)
class Settings:
    """``length``, ``lateness``: in time; ``idle``, ``ahead``: in turns, and in time. In ``json`` each record is of
    one row."""

    length: int | None = None
    count: int | None = None
    lateness: int = 0
    idle: float = 1e9
    ahead: int = 10**9
    directed: bool = True
    isolated: bool = False
    encoding: str = "msgpack"
    vertices_max: int = 1000

    def window(self, graph: Graph) -> Window:
        if self.length is not None:
            return TimeWindow(graph, self.length, isolated=self.isolated)
        assert self.count is not None
        return CountWindow(graph, self.count, isolated=self.isolated)


@dataclass
class History:
    """What producers wrote, and when that was read first."""

    n_partitions: int
    records: dict[Partition, list[list[Row]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(self.n_partitions):
            self.records[Partition("t", number)] = []

    def write(self, number: int, rows: list[Row]) -> None:
        self.records[Partition("t", number)].append(rows)


@dataclass
class Naive:
    """The graph of the updates that were taken, step by step."""

    settings: Settings
    newest: dict[Partition, int] = field(default_factory=dict)
    active: set[Partition] = field(default_factory=set)
    idle: set[Partition] = field(default_factory=set)
    time: int = NEVER
    edges: dict[Edge, int] = field(default_factory=dict)
    vertices: set[int] = field(default_factory=set)
    places: list[Edge | None] = field(default_factory=list)
    late: int = 0

    def step(self, records: list[tuple[Partition, list[Row]]], decided: Decided, latest: int) -> None:
        """``latest``: the time past which rows are refused."""
        time, length = self.time, self.settings.length
        for partition, rows in records:
            for op, src, dst, at in rows:
                if at > latest and length is not None:
                    continue
                known = max(self.newest.get(partition, NEVER) - self.settings.lateness, time)
                self.newest[partition] = max(self.newest.get(partition, NEVER), at)
                if length is not None and op == Op.INSERT and at + length <= known:
                    self.late += 1
                    continue
                self._apply(op, src, dst, at)
        self.idle -= {partition for partition, _ in records} | {*decided.joined}
        self.active |= {partition for partition, _ in records} | {*decided.joined}
        self.active -= {*decided.idle}
        self.idle |= {*decided.idle}
        least = min((self.newest.get(partition, NEVER) for partition in self.active), default=NEVER)
        self.time = max(self.time, least - self.settings.lateness)
        self._expire()

    def _edge(self, src: int, dst: int) -> Edge:
        return (src, dst) if self.settings.directed else (min(src, dst), max(src, dst))

    def _apply(self, op: int, src: int, dst: int, at: int) -> None:
        edge = self._edge(src, dst)
        if op == Op.INSERT:
            self.vertices |= {src, dst}
            if edge in self.places:
                self.places.remove(edge)
            self.places.append(edge)
            self.edges[edge] = max(self.edges.get(edge, at), at)
        elif op == Op.INSERT_VERTEX:
            self.vertices.add(src)
        elif op == Op.DELETE:
            self._delete(edge)
        else:
            self.vertices.discard(src)
            for other in [other for other in self.edges if src in other]:
                self._delete(other)

    def _delete(self, edge: Edge) -> None:
        if self.edges.pop(edge, None) is not None:
            self.places[self.places.index(edge)] = None

    def _expire(self) -> None:
        if self.settings.length is not None:
            limit = self.time - self.settings.length
            for edge in [edge for edge, at in self.edges.items() if at <= limit]:
                del self.edges[edge]
                self.places.remove(edge)
        elif self.settings.count is not None:
            while len(self.places) > self.settings.count:
                if (edge := self.places.pop(0)) is not None:
                    del self.edges[edge]
        if self.settings.isolated:
            self.vertices = {end for edge in self.edges for end in edge}


Shown = tuple[frozenset[Edge], frozenset[int]]


@dataclass
class Kept:
    """A checkpoint."""

    offsets: dict[Partition, int]
    edges: EdgeList
    index: dict[str, Any]
    dead: Any
    n_vertices: int
    facts: dict[str, Any] | None
    arrays: dict[str, Any]
    naive: Naive


class _ToldQueue(PreparedQueue):
    """Says what is put into it."""

    def __init__(self, tell: Callable[[Prepared], None]) -> None:
        super().__init__(10**6)
        self._tell = tell

    def put(self, item: Prepared) -> bool:
        self._tell(item)
        return super().put(item)


class _Turn(threading.Event):
    """While ingest waits for ids the engine goes on."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._meanwhile()
        return False


def encoded(rows: list[Row], encoding: str) -> bytes:
    op, src, dst, at = map(np.array, zip(*rows, strict=True))
    if encoding == "msgpack":
        return encode_msgpack(src, dst, op.astype(np.uint8), timestamps_ms=at)
    ((op, src, dst, at),) = rows
    edge = {"src": src, "op": OPS[op], "ts": at}
    return json.dumps(edge | ({"dst": dst} if op <= Op.INSERT else {})).encode()


class Life:
    """From a start to an end, as the daemon's parts live it: ``read`` for ingest, ``epoch`` for the engine."""

    unit = "records"
    outages = 0
    away = None

    def __init__(
        self, settings: Settings, history: History, rng: np.random.Generator, folder: Path, kept: Kept | None
    ) -> None:
        self.settings, self.history, self.rng = settings, history, rng
        self.offsets: dict[Partition, int] = (
            dict.fromkeys(history.records, 0) if kept is None else dict(kept.offsets)
        )
        self.shown = dict(self.offsets)
        self.naive = Naive(settings) if kept is None else deepcopy(kept.naive)
        self.late_before = self.naive.late
        self.models: list[tuple[int, Naive]] = [(0, deepcopy(self.naive))]  # after each item from the published on
        self.held: Collection[Partition] = ()
        self.wall, self.turn = 0, 0.0
        self.reports: list[IngestReport] = []
        self.graph = Graph(directed=settings.directed, weighted=False)
        self.index = VertexIndex.create("int", vertices_max=settings.vertices_max)
        self.window = settings.window(self.graph)
        if kept is not None:
            self.index.restore(kept.index, kept.dead)
            self.graph.load(kept.edges, kept.n_vertices, kept.dead)
            self.window.restore(kept.facts, kept.arrays)
        self.queue = _ToldQueue(self._model)
        self.ingest = Ingest(
            source=self,
            decoder=Decoder(),
            index=self.index,
            reuse=IdReuse(self.index, lambda: lambda: True),
            dead_letters=self,
            queue=self.queue,
            report=self.reports.append,
            poll_bytes_max=10**6,
            directed=settings.directed,
            clock=lambda: self.turn,
            event_time=self._event_time(),
            counts_order=isinstance(self.window, CountWindow),
        )
        self.ingest.stop = _Turn(lambda: self.epoch(1000))
        self._was: Mapping[Partition, int] = {}
        self.order = OrderLog(folder)
        self.ingest.reader.follow(self.order.open({}))

    def _event_time(self) -> EventTime | None:
        if not isinstance(self.window, TimeWindow) or self.settings.length is None:
            return None
        rules = EventTimeRules(
            self.settings.length, self.settings.lateness, self.settings.idle, self.settings.ahead
        )
        return EventTime(rules, self.window.event, lambda: self.turn, self._wall_clock)

    def _wall_clock(self) -> float:
        """It goes on, or is set, whenever somebody looks."""
        self.wall += int(self.rng.integers(-2, 4))
        return self.wall / 1000

    # -- the source, and the dead letters ----------------------------------------------------------------

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        self.ingest.stop.set()  # one turn at a time
        found = []
        for partition, records in self.history.records.items():
            begin = self.offsets[partition]
            if partition in self.held:
                continue
            end = min(begin + int(self.rng.integers(0, 4)), len(records))
            for number in range(begin, end):
                value = encoded(records[number], self.settings.encoding)
                found.append(RawRecord(partition, number, number + 1, value, self.settings.encoding, 0))
            self.offsets[partition] = end
        return found

    def position(self) -> dict[Partition, int]:
        return dict(self.offsets)

    def hold(self, partitions: Collection[Partition]) -> None:
        self.held = partitions

    def lag(self) -> Lag:
        return Lag({p: len(records) - self.offsets[p] for p, records in self.history.records.items()})

    def backlog(self) -> int | None:
        return None

    def partition_count(self, name: str) -> int:
        return 1

    def checkpointed(self, offsets: Offsets) -> None:
        pass

    def write(self, bad: Any) -> None:
        pass

    # -- turns --------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Records that were not read."""
        return sum(self.lag().amount.values()) + sum(self.ingest.reader.lag().amount.values())

    def read(self) -> None:
        """One turn of ingest."""
        self.turn += 1
        self._was = self.ingest.reader.position()
        self.ingest.stop.clear()
        self.ingest.run(self._was)

    def _model(self, item: Prepared) -> None:
        was, self._was = self._was, item.offsets
        records = [
            (partition, rows)
            for partition in sorted(item.offsets)
            for rows in self.history.records[partition][was[partition] : item.offsets[partition]]
        ]
        latest = self.wall + self.settings.ahead
        if item.recorded or item.decided is not None:
            limit = None if item.decided is None else item.decided.latest_ms
            latest = 10**17 if limit is None else limit
        if records:
            self.naive.step(records, item.decided or Decided(), latest)
        self.models.append((item.item, deepcopy(self.naive)))

    def epoch(self, updates_max: int) -> bool:
        """One turn of the engine; whether it had anything to do."""
        expiring = self.window.expiring(updates_max, self.shown, self.models[0][0])
        came = self.queue.take(updates_max, 0)
        if not came and expiring is None:
            return False
        fresh = [item for item in came if not item.recorded]
        known = came[: len(came) - len(fresh)]
        before = known[-1].offsets if known else self.shown
        passed = [Passed(item.offsets, item.together, item.late, item.decided) for item in fresh]
        if passed:
            self.order.record(before, passed).result()
        taken = came if expiring is None else [expiring, *came]
        batch, ops = one_batch(taken, weighted=False)
        self.window.make_room(batch)
        change = None
        if len(batch) or ops is not None or taken[-1].n_vertices > self.graph.n_vertices:
            change = self.graph.apply(batch, taken[-1].n_vertices, ops)
        self.window.note(taken, batch, ops, change)
        if came:
            self.shown = dict(came[-1].offsets)
            self.ingest.reuse.published(came[-1].item, change, self.graph.alive, hold=False)
            while self.models[0][0] < came[-1].item:
                self.models.pop(0)
        return True

    def looks(self) -> Shown:
        """The edges and the vertices by their ids."""
        edges = self.graph.export()
        keys = edges.keys if self.settings.directed else edges.each_once().keys
        names = np.asarray(self.index.external(np.arange(self.graph.n_vertices, dtype=np.uint32)))
        pairs = zip(names[sources(keys)].tolist(), names[destinations(keys)].tolist(), strict=True)
        found = frozenset(self.naive._edge(*pair) for pair in pairs)
        return found, frozenset(names[self.graph.alive].tolist())

    def expected(self) -> Shown:
        """What the naive graph has at the published offsets."""
        naive = self.models[0][1]
        return frozenset(naive.edges), frozenset(naive.vertices)

    def keep(self) -> Kept:
        """A checkpoint of the present epoch; what it says is said as JSON."""
        naive = self.models[0][1]
        arrays = {name: array.copy() for name, array in self.window.arrays().items()}
        n = self.graph.n_vertices
        return Kept(
            offsets=dict(self.shown),
            edges=self.graph.export(),
            index={name: array.copy() for name, array in self.index.state(n).items()},
            dead=np.flatnonzero(~self.graph.alive).astype(np.uint32),
            n_vertices=n,
            facts=json.loads(json.dumps(self.window.facts())),
            arrays=arrays,
            naive=deepcopy(naive),
        )

    def end(self) -> None:
        """Whatever was not kept is gone."""
        self.order.close()
        self.graph.close()


def event_state(life: Life) -> EventState:
    """How far event time has come for the engine."""
    assert isinstance(life.window, TimeWindow)
    return life.window.event
