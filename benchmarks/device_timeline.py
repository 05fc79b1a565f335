"""When the parts of an epoch happen, on the host's threads and on the device: ``device.py --timeline``.

A graph that the host and a device keep, and BFS, components and PageRank on the device. One thread looks up the
ids of the next batch, as the daemon's ingest thread does; another one applies, computes and publishes into memory
that readers would share; and with ``follows`` the host's rows take batches later, by a thread of their own.
Batches are 80% inserts and 20% deletes, each taken back by the next. Spans of the host are of its clock, those of
the device of events on its stream; both are put together at a moment when the device is idle, to some ten
microseconds. Events cost a few microseconds themselves.

With ``--owned`` each row is on one side, so large a share of the edges (rows by hash) on the host: both sides
apply their part of a batch, and a second table says for how long they did so at once.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from device_graph import Graph as Edges
from device_graph import Row, by_hash, cupy, inverse, mixed_batch

from graphtide.compute import registry
from graphtide.compute.device.kernels import Calls
from graphtide.compute.engine import Engine
from graphtide.compute.homes import Homes
from graphtide.daemon.serve.results import ProgramPublication, Publication, ResultsWriter
from graphtide.gpma.edges import EdgeBatch, EdgeList, destinations, pack, sources
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition import device_side
from graphtide.partition.graph import Graph
from graphtide.partition.placement import HOST

PROGRAMS = ("bfs", "components", "pagerank")
WARM_UP = 4
INGEST, ENGINE, FOLLOWER, DEVICE = "ingest thread", "engine thread", "host rows' thread", "device"
HOST_APPLIES = ("host: in one call, if small", "host: look up", "host: write")
DEVICE_APPLIES = ("upload, turn", "upload", "pick its own", "apply both arrays")


class Span(NamedTuple):
    """What happened in an epoch; in microseconds since the timeline began."""

    epoch: int
    lane: str
    name: str
    begin_us: float
    end_us: float


class Timeline:
    """Spans of the host's clock and of events on a stream."""

    def __init__(self, stream: Any) -> None:
        self.spans: list[Span] = []
        self.epoch = 0
        self.now = ""
        """The last span that the engine's thread began."""
        self._stream = stream
        self._under_way: list[tuple[int, str, Any, Any]] = []
        self._engine = threading.current_thread()
        stream.synchronize()
        self._origin = stream.record(cupy.cuda.Event())
        self._origin.synchronize()
        self._begun = time.perf_counter()

    @contextlib.contextmanager
    def on_host(self, lane: str, name: str, epoch: int | None = None) -> Iterator[None]:
        begin, self.now = time.perf_counter(), name if lane == ENGINE else self.now
        yield
        ends = ((at - self._begun) * 1e6 for at in (begin, time.perf_counter()))
        self.spans.append(Span(self.epoch if epoch is None else epoch, lane, name, *ends))

    @contextlib.contextmanager
    def on_device(self, name: str) -> Iterator[None]:
        begin = self._stream.record(cupy.cuda.Event())
        yield
        self._under_way.append((self.epoch, name, begin, self._stream.record(cupy.cuda.Event())))

    def settle(self) -> None:
        """Take over the device's spans so far, which are waited for."""
        for epoch, name, *events in self._under_way:
            events[1].synchronize()
            ends = (cupy.cuda.get_elapsed_time(self._origin, event) * 1e3 for event in events)
            self.spans.append(Span(epoch, DEVICE, name, *ends))
        self._under_way.clear()

    def watch(self, owner: Any, method: str, *, host: str | None = None, device: str | None = None) -> None:
        """Have every call of a method in the timeline, under these names."""
        call: Callable[..., Any] = getattr(owner, method)

        def watched(*given: Any, **how: Any) -> Any:
            with contextlib.ExitStack() as spans:
                if host is not None:
                    lane = ENGINE if threading.current_thread() is self._engine else FOLLOWER
                    spans.enter_context(self.on_host(lane, host))
                if device is not None:
                    spans.enter_context(self.on_device(device))
                return call(*given, **how)

        setattr(owner, method, watched)


class Bench:
    """An engine on a graph with a device, an index of ids before it and results behind it."""

    def __init__(self, edges: Edges, *, follows: bool = False, share: float | None = None) -> None:
        """``share``: of the edges that the host has alone; None: it has all, and the device the same ones."""
        self.n = edges.n_vertices
        device_side.warm_up(directed=True, weighted=True, in_edges=True, in_weights=True)
        self.graph = Graph(device=True, host_rows="all" if share is None else "owned")
        self.graph.load(
            EdgeList(cupy.asnumpy(edges.loaded), cupy.asnumpy(edges.weights(edges.loaded.size))), self.n
        )
        if share is not None:
            self.graph.migrate(by_hash(self.graph, share), HOST)
        self.index = VertexIndex.create("int")
        self.index.insert(np.arange(self.n, dtype=np.int64))
        root = int(np.argmax(self.graph.degrees("out")[: self.n]))
        given: dict[str, dict[str, Any]] = {"bfs": {"source": root}}
        made = [registry.make_program(kind, None, given.get(kind, {}), self.index) for kind in PROGRAMS]
        stay = Homes(lambda _: False)
        self.engine = Engine(self.graph, made, lambda ids: np.array(ids, np.uint32), judge=stay)
        self.engine.start()
        self.graph.let_follow(follows)
        self.results = ResultsWriter()
        for _ in range(2):  # into either copy
            self.publish(None)
        assert self.graph.device is not None, self.graph.device_lost
        self.timeline = Timeline(self.graph.device.stream)
        self._watch()

    def close(self) -> None:
        Calls.launch, Calls.call = self._launch, self._call  # type: ignore[method-assign]
        self.engine.close()
        self.graph.close()

    def _watch(self) -> None:
        timeline, device = self.timeline, self.graph.device
        assert device is not None
        (host,) = self.graph.hosts
        timeline.watch(host, "apply_small", host="host: in one call, if small")
        timeline.watch(host, "prepare_rows", host="host: look up")
        timeline.watch(host, "commit", host="host: write")
        timeline.watch(device, "prepare", host="device: begin upload", device="upload, turn")
        timeline.watch(device, "bring", host="device: begin upload", device="upload")
        timeline.watch(device, "pick", host="device: pick", device="pick its own")
        timeline.watch(device, "prepare_rows", host="device: look up")
        timeline.watch(device, "launch", host="device: launch", device="apply both arrays")
        timeline.watch(device, "finish", host="device: wait")
        for program in self.engine.programs:
            timeline.watch(program, "refresh", host=program.kind)
        self._launch, self._call = Calls.launch, Calls.call

        def launch(calls: Calls, *given: Any) -> None:
            with timeline.on_device(f"{timeline.now}: kernel"):
                self._launch(calls, *given)

        # A call is a launch whose end is waited for later: events can only stand around that.
        Calls.launch = Calls.call = launch  # type: ignore[method-assign]

    def publish(self, changed: dict[str, Any] | None) -> None:
        programs = {
            program.id: ProgramPublication(
                program.kind,
                program.columns(),
                dict.fromkeys(program.columns()) if changed is None else changed[program.id],
                program.scalars(),
            )
            for program in self.engine.programs
        }
        alive = None if changed is None else np.empty(0, np.uint32)
        epoch = (1, 1)
        self.results.publish(Publication(epoch, self.n, {}, programs, alive=self.graph.alive, alive_changed=alive))

    def run(self, batches: list[EdgeBatch]) -> list[Span]:
        """Take these batches, each of them looked up while those before it are computed."""
        timeline = self.timeline
        timeline.spans.clear()
        ready: queue.Queue[EdgeBatch] = queue.Queue(1)

        def ingest() -> None:
            for epoch, batch in enumerate(batches):
                ids = sources(batch.keys).astype(np.int64), destinations(batch.keys).astype(np.int64)
                with timeline.on_host(INGEST, "index", epoch):
                    src, dst = self.index.insert_edges(*ids)
                    found = EdgeBatch(pack(src, dst), batch.ops, batch.weights)
                ready.put(found)

        thread = threading.Thread(target=ingest)
        thread.start()
        for timeline.epoch in range(len(batches)):
            batch = ready.get()
            with timeline.on_host(ENGINE, "epoch"):
                with timeline.on_host(ENGINE, "fill pinned columns"):
                    columns = self.graph.columns(len(batch), weighted=True)
                    columns.keys[:], columns.ops[:] = batch.keys, batch.ops
                    assert columns.weights is not None
                    columns.weights[:] = batch.weights
                change = self.graph.apply(columns, self.n)
                runs = self.engine.refresh(change)
                assert all(run.error is None and run.on_device for run in runs), runs
                with timeline.on_host(ENGINE, "publish"):
                    self.publish({run.id: run.refresh.changed for run in runs if run.refresh is not None})
            del change, runs  # what somebody holds of a batch is read from the device before the next
            timeline.settle()
        thread.join()
        assert self.graph.device_lost is None, self.graph.device_lost
        return [span for span in timeline.spans if span.epoch >= WARM_UP]


def timeline(
    edges: Edges, batches: list[int], repeats: int, *, follows: bool = False, share: float | None = None
) -> tuple[list[Row], list[Row], list[Row]]:
    """A row for each part of an epoch, in the order in which they begin: medians over epochs, since the epoch's
    begin on the engine thread. A row for each size of how long both sides applied. And all spans."""
    bench = Bench(edges, follows=follows, share=share)
    rows, both, spans = [], [], []
    try:
        for size in batches:
            taken: list[EdgeBatch] = []
            for _ in range((WARM_UP + repeats + 1) // 2):
                there = mixed_batch(edges, size)
                taken += [on_host(there), on_host(inverse(edges, there))]
            found = bench.run(taken)
            rows += parts(size, found)
            both.append(at_once(size, found))
            spans += [{"batch": size, **span._asdict()} for span in found]
    finally:
        bench.close()
    return rows, both, spans


def at_once(size: int, spans: list[Span]) -> Row:
    """Medians over epochs of how long the host looked up and wrote, how long the device worked on the batch, and
    how long both did."""
    sides = {HOST_APPLIES: "host us", DEVICE_APPLIES: "device us"}
    taken: dict[str, list[float]] = {"host us": [], "device us": [], "both us": []}
    for epoch in sorted({span.epoch for span in spans}):
        found = {
            column: [(span.begin_us, span.end_us) for span in spans if span.epoch == epoch and span.name in names]
            for names, column in sides.items()
        }
        for column, pieces in found.items():
            taken[column].append(sum(end - begin for begin, end in pieces))
        host, device = found.values()
        taken["both us"].append(sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in host for b in device))
    return {"batch": size, **{column: median(each) for column, each in taken.items()}}


def parts(size: int, spans: list[Span]) -> list[Row]:
    begins = {span.epoch: span.begin_us for span in spans if span.name == "epoch"}
    kinds: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        kinds.setdefault((span.lane, span.name), []).append(span)
    rows = [
        {"batch": size, "where": lane, "what": name}
        | {"begins us": median(span.begin_us - begins[span.epoch] for span in found)}
        | {"ends us": median(span.end_us - begins[span.epoch] for span in found)}
        | {"takes us": median(span.end_us - span.begin_us for span in found), "times": len(found)}
        for (lane, name), found in kinds.items()
    ]
    return sorted(rows, key=lambda row: (row["begins us"], -row["takes us"]))


def on_host(batch: EdgeBatch) -> EdgeBatch:
    return EdgeBatch(*(cupy.asnumpy(column) for column in (batch.keys, batch.ops, batch.weights)))
