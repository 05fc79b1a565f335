"""What windows are made of: times of edges, the order in which they are due, and event time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graphtide.daemon.config.settings import Config
from graphtide.daemon.engine import cells
from graphtide.daemon.engine import window as windows
from graphtide.daemon.engine.due import AHEAD, BUCKETS, DueEntries
from graphtide.daemon.engine.edge_times import EdgeTimes
from graphtide.daemon.engine.window import CountWindow, TimeWindow, Window
from graphtide.daemon.ingest.dense import DenseBatch
from graphtide.daemon.ingest.event_time import EventTime, EventTimeRules, Timed
from graphtide.daemon.ingest.ordered import Step
from graphtide.daemon.ingest.prepared import Prepared, one_batch
from graphtide.daemon.records.event_time import NO_TIME, EventState
from graphtide.daemon.records.stream import Decided, Decoded, Partition, RawRecord, UpdateBlock
from graphtide.daemon.state.checkpoint import Checkpoint
from graphtide.daemon.state.renumbering import renumbered
from graphtide.daemon.tools import doctor
from graphtide.daemon.tools.windows import window_events
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys, Op, destinations, sources
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph, NoMemory

# -- times of edges -----------------------------------------------------------------------------------------------


def times_table(monkeypatch: pytest.MonkeyPatch, *, in_place: bool) -> EdgeTimes:
    """A small one, in reserved address space or not, so that it grows a few times."""
    monkeypatch.setattr(cells, "CELLS_MIN", 16)
    if not in_place:
        monkeypatch.setattr(cells, "reserve", lambda n_bytes: None)
    return EdgeTimes()


@pytest.mark.parametrize("in_place", [True, False])
def test_times_of_edges_are_those_of_a_dictionary(
    seed: int, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """While it grows, in steps small and large, as well."""
    rng = np.random.default_rng(seed)
    table, known = times_table(monkeypatch, in_place=in_place), dict[int, int]()
    grows = 0
    for step in range(400):
        n = int(rng.integers(1, 400 if step % 100 == 99 else 12))
        keys, ops = rng.integers(0, 3000, n).astype(np.uint64), (rng.random(n) < 0.7).astype(np.uint8)
        keys[rng.random(n) < 0.01] = 0
        times = rng.integers(0, 1000, n)
        grows += int(table._cells.shape[0] != table._cells.shape[1])
        fresh, taken = list[tuple[int, int]](), list[int]()
        for key, op, time in zip(keys.tolist(), ops.tolist(), times.tolist(), strict=True):
            if op == Op.DELETE:
                taken += [known.pop(key)] if key in known else []
            else:
                fresh += [] if key in known else [(key, time)]
                known[key] = max(known.get(key, time), time)
        table.ensure(n)
        fresh_keys, fresh_times, gone = table.note(keys, ops, times)
        assert (list(zip(fresh_keys.tolist(), fresh_times.tolist(), strict=True)), gone.tolist()) == (fresh, taken)
        assert dict(zip(*(column.tolist() for column in table.all()), strict=True)) == known
        asked = rng.integers(0, 3000, 50).astype(np.uint64)
        found, there = table.of(asked)
        assert there.tolist() == [key in known for key in asked.tolist()]
        assert found.tolist() == [known.get(key, 0) for key in asked.tolist()]
    assert len(table) == len(known) and grows > 10


@pytest.mark.parametrize("in_place", [True, False])
def test_a_table_grows_by_a_few_cells_for_each_edge(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """However large it is; and it is never too full, nor larger than edges ask for."""
    table = times_table(monkeypatch, in_place=in_place)
    moved, advance = list[int](), cells._advance

    def counted(words: Any, n_words: int, shape: Any, seed: Any, n: int) -> bool:
        moved.append(n)
        return bool(advance(words, n_words, shape, seed, n))

    monkeypatch.setattr(cells, "_advance", counted)
    insert = np.ones(10, np.uint8)
    for at in range(5000):
        moved.clear()
        table.ensure(10)
        assert sum(moved) <= 10 * 10 + 10
        table.note(np.arange(10 * at, 10 * at + 10, dtype=np.uint64), insert, np.full(10, at))
        if at > 100:
            assert 21 < table.memory_bytes() / len(table) < 51
    times, known = table.of(np.arange(60_000, dtype=np.uint64))
    assert known.tolist() == [True] * 50_000 + [False] * 10_000
    assert times[:50_000].tolist() == np.repeat(np.arange(5000), 10).tolist()
    table.ensure(1_000_000)
    assert table._cells.shape[0] == table._cells.shape[1] > 1_000_000, "what is asked for at once comes at once"
    assert np.array_equal(table.of(np.arange(60_000, dtype=np.uint64))[0], times)


class NoMore:
    """A machine without memory."""

    def require(self, n_bytes: int) -> None:
        raise MemoryError("none is left")


def test_a_table_that_finds_no_memory_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]
) -> None:
    graphs.append(Graph())
    window = TimeWindow(graphs[0], 10, isolated=False)
    vars(window._times._cells)["_memory"] = NoMore()
    before = window.memory_bytes()
    window.make_room(EdgeBatch.of(range(600), range(600)))
    with pytest.raises(NoMemory, match="window"):
        window.make_room(EdgeBatch.of(range(800), range(800)))
    window.make_room(EdgeBatch.of(range(800), range(800), ops=[Op.DELETE] * 800))
    assert window.memory_bytes() == before


# -- what is due --------------------------------------------------------------------------------------------------


def test_entries_come_out_in_order_however_far_their_times_lie_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for span in (1, 1000, 100_000):
        due, expected = DueEntries(span), list[tuple[int, int]]()
        limit = number = 0
        for _ in range(60):
            n = int(rng.integers(0, 50))
            times = limit + 1 + rng.integers(0, span * int(rng.choice([1, 2, 5 * AHEAD // BUCKETS, 20_000])), n)
            keys = np.arange(number, number + n, dtype=np.uint64)
            due.add(times, keys)
            expected += zip(times.tolist(), keys.tolist(), strict=True)
            number += n
            limit += int(rng.integers(0, span * int(rng.choice([1, 1, 9000])) + 1))
            expected.sort(key=lambda entry: entry[0])
            first = [entry for entry in expected if entry[0] <= limit]
            assert due.is_due(limit) == bool(first)
            came = due.take(limit, room := int(rng.integers(1, 60)))
            assert came[0].tolist() == [time for time, _ in first[:room]]
            for entry in zip(*(column.tolist() for column in came), strict=True):
                expected.remove(entry)
            assert len(due) == len(expected)


# -- memory -------------------------------------------------------------------------------------------------------


def epoch(
    window: Window, graph: Graph, rows: Sequence[tuple[int, int, int]], time_ms: int, n_max: int = 100
) -> Keys:
    """An epoch of rows (op, src, dst), all at one time, which event time then is; returns what expired in it."""
    ops, src, dst = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [np.empty(0, int)] * 3
    )
    batch = EdgeBatch.of(src, dst, ops.astype(np.uint8))
    none = np.empty(0, np.int64)
    event = EventState(time_ms=time_ms)
    came = Prepared([DenseBatch(batch, times=time_ms)], len(rows), 10, {}, none, none, event=event)
    expiring = window.expiring(n_max, {}, 0)
    taken = [came] if expiring is None else [expiring, came]
    whole, vertex_ops = one_batch(taken, weighted=False)
    window.make_room(whole)
    window.note(taken, whole, vertex_ops, graph.apply(whole, 10, vertex_ops))
    return np.empty(0, np.uint64) if expiring is None else expiring.batches[0].edges.keys


def pairs(keys: Keys) -> set[tuple[int, int]]:
    return set(zip(sources(keys).tolist(), destinations(keys).tolist(), strict=True))


def test_what_is_repeated_or_deleted_and_inserted_again_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]
) -> None:
    monkeypatch.setattr(windows, "STALE_MIN", 8)
    graphs.append(Graph(weighted=False))
    window = TimeWindow(graphs[0], 10**6, isolated=False)
    for time in range(200):
        epoch(window, graphs[0], [(1, 1, 2), (1, 3, 4)], time)
    assert len(window._due) == 2, "an upsert does not touch the order"
    for time in range(200, 400):
        epoch(window, graphs[0], [(0, 1, 2), (1, 1, 2)], time)
    assert len(window._due) <= 2 * 2 + 8 + 1
    assert not epoch(window, graphs[0], [], 10**6 + 198).size
    epoch(window, graphs[0], [], 10**6 + 399)
    assert pairs(epoch(window, graphs[0], [], 10**6 + 399)) == {(1, 2), (3, 4)}


def test_places_of_deleted_edges_take_no_more_memory_than_there_are_places(
    monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]
) -> None:
    monkeypatch.setattr(windows, "STALE_MIN", 8)
    graphs.append(Graph(weighted=False))
    window = CountWindow(graphs[0], 5, isolated=False)
    for time in range(200):
        epoch(window, graphs[0], [(1, 1, 2), (0, 1, 2), (1, 3, 4)], time)
    assert len(window._due) <= 2 * 6 + 8 + 3


@pytest.mark.parametrize("by_time", [True, False])
def test_what_was_inserted_again_goes_once(graphs: list[Graph], by_time: bool) -> None:
    """Though it has several entries in the order of what is due."""
    graph = Graph(weighted=False)
    graphs.append(graph)
    window: Window = TimeWindow(graph, 10, isolated=False) if by_time else CountWindow(graph, 2, isolated=False)
    for time in range(4):
        epoch(window, graph, [(1, 1, 2)], time)
        epoch(window, graph, [(0, 1, 2)], time)
    epoch(window, graph, [(1, 1, 2)], 5)
    for head in (3, 4):
        epoch(window, graph, [(1, 5, head)], 100)
    while window.is_due:
        epoch(window, graph, [], 100)
    assert window.expired == 1
    assert graph.n_edges == 2


def test_a_burst_goes_in_pieces(graphs: list[Graph]) -> None:
    graphs.append(Graph(weighted=False))
    window = TimeWindow(graphs[0], 10, isolated=False)
    edges = [(1, src, dst) for src in range(5) for dst in range(5, 10)]
    epoch(window, graphs[0], edges, 0)
    epoch(window, graphs[0], [(1, 9, 9)], 10)
    gone = [pairs(epoch(window, graphs[0], [], 10, n_max=10)) for _ in range(3)]
    assert [len(piece) for piece in gone] == [10, 10, 5]
    assert set.union(*gone) == {(src, dst) for _, src, dst in edges}
    assert not window.is_due
    assert graphs[0].n_edges == 1


# -- windows that change ------------------------------------------------------------------------------------------


def loaded(graphs: list[Graph], edges: Sequence[tuple[int, int]], *, directed: bool = True) -> Graph:
    """A graph of ten vertices as a checkpoint leaves it."""
    graphs.append(Graph(directed=directed, weighted=False))
    graphs[-1].apply(EdgeBatch.of(*zip(*edges, strict=True)), 10)
    return graphs[-1]


def gone_by(window: Window, graph: Graph, time_ms: int) -> set[tuple[int, int]]:
    """What goes when event time has come that far."""
    gone = pairs(epoch(window, graph, [], time_ms))
    while window.is_due:
        gone |= pairs(epoch(window, graph, [], time_ms, n_max=1))
    return gone


@pytest.mark.parametrize("directed", [True, False])
def test_edges_of_before_count_from_when_event_time_begins(graphs: list[Graph], directed: bool) -> None:
    graph = loaded(graphs, [(2, 1), (3, 4), (5, 6), (7, 8)], directed=directed)
    window = TimeWindow(graph, 100, isolated=False)
    window.restore(None, {})
    epoch(window, graph, [(0, 5, 6)], NO_TIME)
    again = TimeWindow(graph, 100, isolated=False)  # this is kept, too
    again.restore(window.facts(), window.arrays())
    assert gone_by(again, graph, 50) == set()
    epoch(again, graph, [(1, 3, 4)], 60)
    assert gone_by(again, graph, 149) == set()
    assert gone_by(again, graph, 150) == {(2, 1) if directed else (1, 2), (7, 8)}
    assert gone_by(again, graph, 160) == {(3, 4)}
    assert graph.n_edges == 0


def test_a_shorter_length_has_more_go_and_a_longer_one_brings_nothing_back(graphs: list[Graph]) -> None:
    graph = loaded(graphs, [(9, 9)])
    first = TimeWindow(graph, 100, isolated=False)
    epoch(first, graph, [(1, 1, 2)], 0)
    epoch(first, graph, [(1, 3, 4)], 50)
    epoch(first, graph, [(1, 5, 6)], 100)
    facts, arrays = first.facts(), first.arrays()
    shorter = TimeWindow(graph, 40, isolated=False)
    shorter.restore(facts, arrays)
    assert shorter.is_due, "before anything comes"
    assert gone_by(shorter, graph, 100) == {(1, 2), (3, 4)}
    longer = TimeWindow(graph, 1000, isolated=False)
    longer.restore(shorter.facts(), shorter.arrays())
    assert gone_by(longer, graph, 1099) == set()
    assert gone_by(longer, graph, 1100) == {(5, 6)}


def test_the_times_of_one_kind_say_nothing_to_the_other(graphs: list[Graph]) -> None:
    graph = loaded(graphs, [(0, 1), (2, 3), (4, 5)])
    by_time = TimeWindow(graph, 10, isolated=False)
    epoch(by_time, graph, [(1, 0, 1), (1, 2, 3), (1, 4, 5)], 10**6)
    newest = CountWindow(graph, 2, isolated=False)
    newest.restore(by_time.facts(), by_time.arrays())
    assert gone_by(newest, graph, 0) == {(0, 1)}
    epoch(newest, graph, [(1, 2, 3)], 0)
    kept = CountWindow(graph, 1, isolated=False)
    kept.restore(newest.facts(), newest.arrays())
    assert gone_by(kept, graph, 0) == {(4, 5)}
    back = TimeWindow(graph, 10, isolated=False)
    back.restore(kept.facts(), kept.arrays())
    assert gone_by(back, graph, 5) == set(), "it counts from now"
    assert gone_by(back, graph, 15) == {(2, 3)}


def test_vertices_that_were_alone_before_go_when_none_may_be(graphs: list[Graph]) -> None:
    graph = loaded(graphs, [(0, 1), (2, 2)])
    window = TimeWindow(graph, 10, isolated=True)
    window.restore(None, {})
    assert window.is_due
    epoch(window, graph, [(1, 3, 4)], 0)
    assert np.flatnonzero(graph.alive).tolist() == [0, 1, 2, 3, 4]
    epoch(window, graph, [(0, 0, 1)], 0)
    epoch(window, graph, [], 0)
    assert np.flatnonzero(graph.alive).tolist() == [2, 3, 4], "whoever deleted the last edge"


@pytest.mark.parametrize("directed", [True, False])
def test_vertices_may_be_numbered_anew(graphs: list[Graph], directed: bool) -> None:
    graph = loaded(graphs, [(0, 9), (9, 9)], directed=directed)
    window = TimeWindow(graph, 10, isolated=False)
    epoch(window, graph, [(1, 0, 9), (1, 9, 9)], 3)
    arrays = {f"window/{name}": array for name, array in window.arrays().items()}
    index = VertexIndex.create("int")
    index.insert_edges(np.arange(10), np.arange(10))
    arrays |= {f"index/{name}": array for name, array in index.state(10).items()}
    arrays |= {"graph/keys": graph.export().keys}
    checkpoint = Checkpoint((1, 1), {}, {}, {}, {"n_vertices": 10, "window": window.facts()}, arrays)
    order = np.arange(10, dtype=np.uint32)[::-1].copy()
    anew = renumbered(checkpoint, order, graph)
    graph.load(EdgeList(anew.arrays["graph/keys"]), 10)
    again = TimeWindow(graph, 10, isolated=False)
    again.restore(anew.facts["window"], anew.part("window"))
    assert gone_by(again, graph, 13) == {(9, 0) if directed else (0, 9), (0, 0)}
    assert graph.n_edges == 0


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({}, "", ""),
        ({"window": {"count": 5}}, "ok", "the newest 5 edges"),
        ({"window": {"length": 86400}}, "ok", "last 24 h"),
        ({"window": {"length": 1}}, "warn", "waited for longer"),
        ({"window": {"length": 3600}, "source": {"csv_columns": "src,dst"}}, "warn", "have no time"),
        ({"window": {"length": 3600}, "source": {"csv_columns": "src,dst,ts"}}, "ok", ""),
        ({"window": {"length": 3600}, "source": {"columns": {"src": "a"}}}, "warn", "have no time"),
        ({"window": {"length": 3600}, "source": {"columns": {"src": "a", "ts": "at"}}}, "ok", ""),
    ],
)
def test_the_doctor_says_what_a_window_does(settings: dict[str, Any], status: str, said: str) -> None:
    found = list(doctor._window(Config.model_validate(settings)))
    assert [finding.status for finding in found] == ([status] if status else [])
    assert all(said in finding.found for finding in found)


def test_a_window_is_of_one_kind() -> None:
    problems = dict(Config.model_validate({"window": {"length": 1, "count": 1}}).window.problems())
    assert "window.length" in problems["count"]


def test_it_is_as_if_the_producer_had_sent_the_deletes(seed: int, graphs: list[Graph]) -> None:
    rng = np.random.default_rng(seed)
    length, n = int(rng.integers(1, 50)), 400
    src, dst = rng.integers(0, 10, (2, n))
    times = np.cumsum(rng.integers(0, 4, n))
    by_producer = Graph(weighted=False)
    graphs.append(by_producer)
    out_src, out_dst, ops, *_ = window_events(src, dst, times, length)
    by_producer.apply(EdgeBatch.of(out_src, out_dst, ops), 10)
    graph = Graph(weighted=False)
    graphs.append(graph)
    window = TimeWindow(graph, length, isolated=False)
    for s, d, time in zip(src.tolist(), dst.tolist(), times.tolist(), strict=True):
        epoch(window, graph, [(1, s, d)], time, n_max=int(rng.integers(1, 5)))
    while window.is_due:
        epoch(window, graph, [], int(times[-1]))
    assert np.array_equal(graph.export().keys, by_producer.export().keys)


# -- event time ---------------------------------------------------------------------------------------------------

A, B = Partition("t", 0), Partition("t", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """Records of two partitions, each with one insert, and event time as it goes on."""

    def __init__(
        self, state: EventState | None = None, *, lateness: int = 0, idle: float = 10.0, today: float = 0.0
    ) -> None:
        """``today``: what the wall clock shows, in seconds since 1970."""
        self.clock = Clock()
        rules = EventTimeRules(length_ms=100, lateness_ms=lateness, idle_s=idle, ahead_ms=1000)
        self.time = EventTime(rules, state or EventState(), self.clock, lambda: today)
        self.ends = {A: 0, B: 0}
        self.outages = 0

    def step(
        self, *times: tuple[Partition, int], lag: int = 0, after: float = 0.0, decided: Decided | None = None
    ) -> Timed:
        """``lag``: what is left of B. ``after``: seconds that the source was looked at since the last step, in
        vain."""
        for _ in range(round(after * 10)):
            self.clock.now += 0.1
            self.time.looked(self.outages, came=False)
        self.time.looked(self.outages, came=True)
        decoded = []
        for place, time in times:
            record = RawRecord(place, self.ends[place], self.ends[place] + 1, b"", "msgpack", 0)
            one = np.array([1], np.int64)
            decoded.append(Decoded(record, UpdateBlock(one, one, np.ones(1, np.uint8), None, time)))
            self.ends[place] += 1
        records = [item.record for item in decoded]
        step = Step(records, dict(self.ends), recorded=decided is not None, decided=decided)
        return self.time.take(step, decoded, self.time.latest_ms(step), {B: lag})

    @property
    def now(self) -> int:
        return self.time.state.time_ms


def test_event_time_is_the_least_watermark_and_waits_for_who_never_came() -> None:
    stream = Stream(lateness=5)
    assert stream.step((A, 50)).decided == Decided(joined=(B,)), "what it waits for is recorded"
    assert stream.now == NO_TIME
    assert stream.step((B, 20)).together, "event time begins, and whatever counts from then on"
    assert stream.now == 15
    assert not stream.step((A, 40), (B, 60)).together
    assert stream.now == 45, "an older time does not take a watermark back"


@pytest.mark.parametrize(("time", "warned"), [(1_600_000_000, 1), (1_600_000_000_000, 0), (86_400_000, 0), (0, 0)])
def test_times_in_seconds_are_warned_of_when_event_time_begins(
    time: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(today=1_700_000_000.0)
    for step in range(3):
        stream.step((A, time + step), (B, time + step))
    assert len(caplog.records) == warned
    assert all(f"event time begins at {time}: " in record.getMessage() for record in caplog.records)


def test_who_is_silent_is_not_waited_for_and_may_come_back_too_late() -> None:
    stream = Stream()
    stream.step((A, 0), (B, 0))
    assert stream.step((A, 500), after=9.0).decided is None
    assert stream.now == 0
    assert stream.step((A, 600), after=2.0, lag=1).decided is None, "there is something left to read"
    went_on = stream.step((A, 600))
    assert (went_on.decided, went_on.together) == (Decided(idle=(B,)), True)
    assert stream.now == 600
    late = stream.step((B, 500))
    assert (late.late, late.together) == (1, True), "its edge would have expired"
    assert late.decoded[0].block is None
    back = stream.step((B, 501))
    assert (back.late, back.together) == (0, True)
    assert stream.now == 600
    assert stream.step((A, 700)).decided is None
    assert stream.now == 600, "it is waited for again"


def test_an_outage_is_no_silence() -> None:
    stream = Stream()
    stream.step((A, 0), (B, 0))
    stream.outages = 1
    assert stream.step((A, 500), after=60.0).decided is None
    assert stream.step((A, 500), after=11.0).decided == Decided(idle=(B,))


def test_a_replay_takes_what_was_decided_and_nothing_else() -> None:
    first = Stream()
    steps = [first.step((A, 0), (B, 0)), first.step((A, 500), after=20.0), first.step((A, 900))]
    again = Stream()
    again.step((A, 0), (B, 0))
    again.step((A, 500), decided=steps[1].decided)
    again.step((A, 900), after=60.0, decided=Decided())
    assert again.time.state == first.time.state
    other = Stream(idle=1e9)
    other.step((A, 0), (B, 0))
    other.step((A, 500), decided=steps[1].decided)
    assert other.now == 500


def test_a_step_that_is_queued_in_parts_is_replayed_in_these_parts() -> None:
    """Where ids run out within a step whose last record is of a partition that fell silent long ago."""
    first = Stream()
    first.step((A, 0), (B, 0))
    first.step((A, 500), after=20.0)
    before, ends = first.time.state, dict(first.ends)
    whole = first.step((A, 900), (B, 450))
    offsets = {A: first.ends[A], B: ends[B]}
    half, decided = first.time.part_way(before, whole.decoded, 1, Step([], dict(first.ends)), offsets)
    again = Stream(before)
    again.ends = ends
    again.step((A, 900), decided=decided)
    assert again.time.state == half
    assert again.now == 500, "it waits for what is to come"
    assert again.step((B, 450), decided=Decided()).late == whole.late == 0
    assert again.time.state == first.time.state


def test_an_upsert_is_late_by_what_came_before_it_in_its_partition() -> None:
    stream = Stream()
    stream.step((B, 0))
    assert stream.step((A, 1000)).late == 0
    assert stream.step((A, 900), (A, 901), (A, 2000), (A, 1900), (A, 1901)).late == 2
    assert stream.now == 0, "the other partition holds event time back, and not what is late here"


def test_how_far_it_has_come_can_be_kept() -> None:
    stream = Stream()
    stream.step((A, 0), (B, 0))
    stream.step((A, 500), after=20.0)
    state = stream.time.state
    assert EventState.from_wire(state.to_wire()) == state
    assert state.idle == {B}


def test_the_latest_time_is_the_clock_s_or_what_was_decided() -> None:
    time = Stream().time
    assert time.latest_ms(Step([], {})) == 1000
    assert time.latest_ms(Step([], {}, recorded=True, decided=Decided(latest_ms=7))) == 7
    assert time.latest_ms(Step([], {}, recorded=True)) > 2**60, "what was taken once is taken again"
