"""Checkpoints made while epochs go on: each is one epoch, whole, whatever happened while it was copied."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from waiting import PATIENCE_S, until

from graphtide.compute import registry
from graphtide.compute.engine import Engine
from graphtide.compute.program import Program
from graphtide.daemon.errors import CheckpointError, NotWritten, RequestError, Unavailable
from graphtide.daemon.records.position import Position
from graphtide.daemon.records.stream import Partition
from graphtide.daemon.state import checkpoint, checkpointer
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore
from graphtide.daemon.state.checkpointer import Buffers, Checkpointer
from graphtide.daemon.state.kept import KeptPrograms, read_kept
from graphtide.daemon.state.requested import LAPSE_S, WISHES_MAX, Newest, Outcome, RequestedCheckpoints
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys
from graphtide.gpma.host import snapshot
from graphtide.gpma.host.snapshot import EdgeCopy
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.ops.metrics import Metrics
from graphtide.partition.graph import Graph, RowsLost

P = Partition("t", 0)
VERTICES = 200
SPECS: dict[str, dict[str, Any]] = {
    "bfs": {"source": 3},
    "components": {},
    "pagerank": {},
    "ppr": {"sources": [3, 5]},
}


class Stream:
    """Epochs of random updates on a graph with all programs, and what the graph was at each."""

    def __init__(self, folder: Path, *, directed: bool = True, weighted: bool = True) -> None:
        self.rng = np.random.default_rng(1)
        self.index = VertexIndex.create("int")
        self.directed, self.weighted = directed, weighted
        self.graph = Graph(directed=directed, weighted=weighted)
        self.engine = Engine(self.graph, self.programs(), lambda ids: self.index.lookup(np.array(ids, np.int64)))
        self.engine.start()
        self.position = Position(1)
        self.store = CheckpointStore(folder, keep=1000)
        self.metrics = Metrics()
        self.safe: list[dict[Partition, int]] = []
        self.flushed = 0
        self.history: dict[int, EdgeList] = {}
        self.checkpoints = Checkpointer(
            graph=self.graph,
            index=self.index,
            programs=lambda: self.engine.programs,
            program_specs=SPECS,
            position=self.position,
            identity={},
            dead_letters=SimpleNamespace(flush=self._flush),  # type: ignore[arg-type]
            store=self.store,
            metrics=self.metrics,
            interval_s=0,
            on_checkpoint=self.safe.append,
            requested=RequestedCheckpoints(self.store.path),
        )

    def _flush(self) -> None:
        self.flushed += 1

    def programs(self) -> list[Program]:
        return [registry.make_program(kind, None, given, self.index) for kind, given in SPECS.items()]

    def epoch(self, updates: int = 300, deletes: float = 0.4) -> None:
        src, dst = self.rng.integers(0, min(VERTICES, 20 + self.position.number), (2, updates))
        dense_src, dense_dst = self.index.insert_edges(src, dst)
        ops = (self.rng.random(updates) >= deletes).astype(np.uint8)
        weights = self.rng.integers(1, 9, updates).astype(np.float32) if self.weighted else None
        batch = EdgeBatch.of(dense_src, dense_dst, ops, weights)
        change = self.graph.apply(batch, self.index.n_vertices)
        assert all(run.error is None for run in self.engine.refresh(change))
        self.position.number += 1
        self.position.updates += updates
        self.position.offsets = {P: self.position.number * 10}
        self.history[self.position.number] = self.graph.export()

    def check(self, found: Checkpoint) -> None:
        """A checkpoint is exactly its epoch: edges, ids, program states that hold on these edges, offsets."""
        number = found.epoch[1]
        expected = self.history[number]
        edges = found.part("graph")
        np.testing.assert_array_equal(edges["keys"], expected.keys)
        if self.weighted:
            np.testing.assert_array_equal(edges["weights"], expected.weights)
        assert ("weights" in edges) == self.weighted
        assert found.offsets == {"t": {"0": number * 10}}
        n = found.facts["n_vertices"]
        np.testing.assert_array_equal(
            found.part("index")["ids"], self.index.external(np.arange(n, dtype=np.uint32))
        )
        graph = Graph(directed=self.directed, weighted=self.weighted)
        graph.load(EdgeList(edges["keys"], edges.get("weights")), n)
        for program in self.programs():
            program.bind(self.index.lookup(np.array(program.sources, np.int64)))
            program.restore(found.part(f"program/{program.id}"), graph)
            assert program.audit(graph) == []
        assert found.programs == SPECS
        graph.close()

    def close(self) -> None:
        self.engine.close()
        self.graph.close()
        self.store.close()


@pytest.fixture(params=[(True, True), (True, False), (False, True)], ids=["directed", "unweighted", "undirected"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    directed, weighted = request.param
    made = Stream(tmp_path, directed=directed, weighted=weighted)
    yield made
    made.close()


def read_all(store: CheckpointStore) -> list[Checkpoint]:
    found = []
    for _, folder in store._folders():
        newest = store.newest_good()
        assert newest is not None
        found.append(newest)
        folder.rename(folder.with_name(f"read-{folder.name}"))
    return found


def test_checkpoints_made_among_epochs_are_those_epochs(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PIECE_EDGES", 16)
    copy_piece, engine, pieces = EdgeCopy.copy_piece, threading.current_thread(), threading.Semaphore(0)
    overlapped = set[int]()

    def by_and_by(self: EdgeCopy) -> bool:
        """A few pieces an epoch, so that a copy takes about six."""
        if threading.current_thread() is not engine:
            pieces.acquire(timeout=PATIENCE_S)
        overlapped.add(stream.position.number)
        return copy_piece(self)

    monkeypatch.setattr(EdgeCopy, "copy_piece", by_and_by)
    while len(stream.safe) < 3:
        stream.epoch()
        stream.checkpoints.step()
        if stream.graph._copies:
            pieces.release(1 + stream.graph.n_arcs // 100)
            until(lambda: stream.position.number in overlapped or all(one.through for one in stream.graph._copies))
    pieces.release(1000)
    stream.checkpoints.close()
    found = read_all(stream.store)
    assert len(found) >= 3
    assert len(overlapped) > 2 * len(found)  # copies went on while epochs passed
    assert found[0].epoch == (1, stream.position.number)
    for one in found:
        stream.check(one)
    assert stream.flushed == len(found)
    assert stream.safe[-1] == stream.position.offsets


def test_an_empty_graph_has_a_checkpoint_too(stream: Stream) -> None:
    stream.position.number = 1
    stream.position.offsets = {P: 10}
    stream.history[1] = stream.graph.export()
    stream.checkpoints.close()
    (found,) = read_all(stream.store)
    stream.check(found)


def test_nothing_new_makes_no_checkpoint(stream: Stream) -> None:
    stream.epoch()
    stream.checkpoints.close()
    stream.checkpoints.step()
    stream.checkpoints.close()
    assert stream.safe == [{P: 10}]


def test_changes_after_its_epoch_are_not_in_a_checkpoint(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    edges, merge = EdgeCopy.edges, threading.Event()

    def later(self: EdgeCopy) -> list[EdgeList]:
        merge.wait(PATIENCE_S)
        return edges(self)

    monkeypatch.setattr(EdgeCopy, "edges", later)
    stream.epoch()
    stream.checkpoints.step()
    while stream.graph._copies:
        stream.checkpoints.step()
    stream.epoch()
    merge.set()
    stream.checkpoints.close()
    last, found = read_all(stream.store)
    assert (last.epoch, found.epoch) == ((1, 2), (1, 1))
    stream.check(last)
    stream.check(found)


def held_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keep the copying thread (not the engine's) from copying until the event is set."""
    go, engine, copy_piece = threading.Event(), threading.current_thread(), EdgeCopy.copy_piece

    def waiting(self: EdgeCopy) -> bool:
        if threading.current_thread() is not engine:
            go.wait(PATIENCE_S)
        return copy_piece(self)

    monkeypatch.setattr(EdgeCopy, "copy_piece", waiting)
    return go


def test_the_end_does_not_wait_for_the_copying_thread(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.epoch()
    go = held_back(monkeypatch)
    stream.checkpoints.step()
    stream.epoch()
    stream.checkpoints.step()
    threading.Timer(0.2, go.set).start()
    stream.checkpoints.close()
    (found,) = read_all(stream.store)
    assert found.epoch == (1, 2)
    stream.check(found)


def test_too_many_changes_end_the_copy_in_that_epoch(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHANGES_MIN", 500)
    stream.epoch(deletes=0)
    go = held_back(monkeypatch)
    stream.checkpoints.step()
    while stream.graph._copies:
        stream.epoch()
        stream.checkpoints.step()
    assert 2 <= stream.position.number <= 5
    ended = stream.position.number
    stream.epoch()
    go.set()
    stream.checkpoints.close()
    last, found = read_all(stream.store)
    assert (last.epoch, found.epoch) == ((1, ended + 1), (1, ended))
    stream.check(last)
    stream.check(found)


@pytest.mark.parametrize("where", ["copying", "taking", "merging"])
def test_without_memory_the_stream_goes_on_and_the_next_one_is_whole(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    victim = {"copying": (EdgeCopy, "copy_piece"), "taking": (Buffers, "copy"), "merging": (EdgeCopy, "edges")}
    with monkeypatch.context() as patch:
        patch.setattr(*victim[where], fail)
        for _ in range(20):
            stream.epoch()
            stream.checkpoints.step()
        with pytest.raises(NotWritten, match="out of memory"):
            stream.checkpoints.close()
    assert stream.store.newest_good() is None
    assert stream.safe == []
    assert not stream.graph._copies  # no changes are kept for a copy that is given up
    failures = stream.metrics.registry.get_sample_value(
        "graphtide_checkpoint_failures_total", {"reason": "MemoryError"}
    )
    assert failures is not None and failures >= 1
    stream.checkpoints.close()
    (found,) = read_all(stream.store)
    stream.check(found)


@pytest.mark.parametrize("takes", ["copying", "taking", "merging"])
def test_one_that_finds_no_memory_is_put_off_with_one_line_until_there_is_some(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, takes: str
) -> None:
    """One of its parts takes more than any machine has."""
    much = 1 << 60
    parts: dict[str, tuple[Any, str, Any]] = {
        "copying": (EdgeCopy, "_bytes_to_come", lambda copy: much),
        "taking": (checkpointer, "ROOM", much),
        "merging": (snapshot, "CHANGE_BYTES", much),
    }

    def tried_thrice() -> bool:
        stream.epoch()
        stream.checkpoints.step()
        name = "graphtide_checkpoint_failures_total"
        return (stream.metrics.registry.get_sample_value(name, {"reason": "MemoryError"}) or 0) >= 3

    with monkeypatch.context() as patch:
        patch.setattr(*parts[takes])
        if takes == "merging":  # of what changes while edges are copied; else all is copied in a moment
            patch.setattr(EdgeCopy, "copy_piece", _once_changed(EdgeCopy.copy_piece))
        until(tried_thrice)
        with pytest.raises(NotWritten, match=r"out of memory \(\d+ bytes more are needed"):
            stream.checkpoints.close()
    lines = [record for record in caplog.records if record.levelname == "ERROR"]
    assert ["is put off, and there is none before it" in line.message for line in lines] == [True]
    assert lines[0].exc_info is None
    assert not stream.graph._copies and stream.store.newest_good() is None
    stream.checkpoints.close()
    stream.check(read_all(stream.store)[0])
    assert not stream.checkpoints._is_put_off  # the next one would be told of


@pytest.mark.parametrize("part", ["window", "keyed"])
def test_tables_that_are_kept_ask_for_their_memory_first(stream: Stream, part: str) -> None:
    untouched = SimpleNamespace(facts=dict, memory_bytes=lambda: 1 << 60, arrays=lambda: pytest.fail("was copied"))
    setattr(stream.checkpoints, part, untouched)
    stream.epoch()
    with pytest.raises(NotWritten, match=r"out of memory \(\d+ bytes more are needed"):
        stream.checkpoints.close()
    setattr(stream.checkpoints, part, None)
    stream.checkpoints.close()
    stream.check(read_all(stream.store)[0])


def _once_changed(copy_piece: Callable[[EdgeCopy], bool]) -> Callable[[EdgeCopy], bool]:
    def later(copy: EdgeCopy) -> bool:
        if not copy._n_changes and threading.current_thread().name == "checkpoint":
            until(lambda: copy._n_changes)
        elif not copy._n_changes:
            copy._n_changes = 1  # the engine's thread changes nothing while it copies
        return copy_piece(copy)

    return later


def test_states_are_gathered_once(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may take long, from a device: not to know how large they are."""
    gathered: list[str] = []
    for program in stream.engine.programs:
        sizes = program.state_sizes()

        def state(program: Program = program) -> dict[str, Any]:
            gathered.append(program.id)
            return type(program).state(program)

        monkeypatch.setattr(program, "state_sizes", lambda sizes=sizes: sizes)
        monkeypatch.setattr(program, "state", state)
    stream.epoch()
    stream.checkpoints.close()
    assert sorted(gathered) == sorted(program.id for program in stream.engine.programs)


def _raises() -> dict[str, Any]:
    raise ZeroDivisionError("of its own")


@pytest.mark.parametrize("method", ["state", "state_sizes"])
@pytest.mark.parametrize("state", [_raises, lambda: {"a": [1, 2]}, lambda: {"a": np.array([None])}])
def test_a_program_whose_state_cannot_be_saved_is_left_out_and_harms_no_other(
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    state: Callable[[], dict[str, Any]],
) -> None:
    """It may be a user's, and fail on some graphs only."""
    ranks = next(program for program in stream.engine.programs if program.id == "pagerank")
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "state", state)
        if method == "state":
            patch.setattr(ranks, "state_sizes", dict)
        for _ in range(2):
            stream.epoch()
            stream.checkpoints.step()
            stream.checkpoints._complete()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == "the state of program pagerank cannot be saved: the next start computes it from scratch"
    found = stream.store.newest_good()
    assert found is not None and found.programs.keys() == SPECS.keys() - {"pagerank"}
    stream.epoch()
    stream.checkpoints.close()
    newest = stream.store.newest_good()
    assert newest is not None
    stream.check(newest)


def test_a_program_whose_state_could_be_saved_meanwhile_is_told_of_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = next(program for program in stream.engine.programs if program.id == "pagerank")
    for fails in (True, False, True, True):
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(ranks, "state", _raises)
            stream.epoch()
            stream.checkpoints.step()
            stream.checkpoints._complete()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["the state of program pagerank cannot be saved: the next start computes it from scratch"] * 2


@pytest.mark.parametrize("method", ["state", "state_sizes"])
def test_a_program_that_finds_no_memory_for_its_state_has_the_checkpoint_put_off(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    def no_memory() -> NoReturn:
        raise MemoryError("no room for a state")

    ranks = next(program for program in stream.engine.programs if program.id == "pagerank")
    with monkeypatch.context() as patch:
        patch.setattr(ranks, method, no_memory)
        stream.epoch()
        stream.checkpoints.step()
        stream.checkpoints._complete()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "is put off" in told and "no room for a state" in told
    stream.checkpoints.close()
    newest = stream.store.newest_good()
    assert newest is not None and newest.programs.keys() == SPECS.keys()
    stream.check(newest)


def test_rows_that_are_lost_are_no_mistake_of_a_program(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its state may be on the device with which they went: all starts again, from the checkpoint before."""

    def lost() -> NoReturn:
        raise RowsLost("with their device")

    ranks = next(program for program in stream.engine.programs if program.id == "pagerank")
    monkeypatch.setattr(ranks, "state", lost)
    stream.epoch()
    with pytest.raises(RowsLost):
        stream.checkpoints.step()
    assert not caplog.records


def test_without_a_thread_the_stream_goes_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stream.epoch()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        stream.checkpoints.step()
        with pytest.raises(NotWritten, match="can't start new thread"):
            stream.checkpoints.close()
        assert not stream.graph._copies
    assert stream.safe == []
    stream.epoch()
    stream.checkpoints.step()
    stream.checkpoints.close()
    stream.check(read_all(stream.store)[0])


def test_a_copy_that_lost_an_edge_is_never_written(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.epoch()
    edges = EdgeCopy.edges
    with monkeypatch.context() as patch:
        patch.setattr(
            EdgeCopy, "edges", lambda self: [EdgeList(edge.keys[1:], edge.weights) for edge in edges(self)]
        )
        with pytest.raises(NotWritten, match="this must never happen"):
            stream.checkpoints.close()
    assert stream.store.newest_good() is None


def test_a_last_checkpoint_that_is_waited_for_long_is_told_of(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointer, "SLOW_S", 0.01)
    write = stream.store.write

    def once_it_is_told(*given: Any) -> int:
        until(lambda: f"'{stream.store.path}' is slow, or does not answer" in caplog.text, 30.0)
        return write(*given)

    monkeypatch.setattr(stream.store, "write", once_it_is_told)
    stream.epoch()
    stream.checkpoints.close()
    assert len(caplog.records) == 1 and stream.store.newest_good() is not None


def test_a_checkpoint_that_finds_no_room_is_one_line_with_the_path_and_the_key(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stream.epoch()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        with pytest.raises(NotWritten, match="replays what came after epoch") as caught:
            stream.checkpoints.close()
    (record,) = caplog.records
    assert record.exc_info is None and "\n" not in record.getMessage()
    for message in (record.getMessage(), caught.value.message):
        assert f"checkpoint.path = '{stream.store.path}': No space left on device" in message


@pytest.mark.parametrize("how", ["deleted", "emptied", "renamed"])
def test_a_folder_that_is_taken_away_is_made_anew_with_a_whole_checkpoint(
    stream: Stream, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    folder = stream.store.path
    count = stream.store.next_incarnation()
    kept = KeptPrograms(folder)
    kept.add("hops", {"name": "bfs", "source": 3})
    stream.store.made_anew = kept.write_again
    stream.epoch()
    stream.checkpoints.close()
    assert stream.store.names() and not caplog.records
    if how == "renamed":
        folder.rename(tmp_path_factory.mktemp("elsewhere") / "checkpoints")
    else:
        shutil.rmtree(folder)
    if how == "emptied":
        folder.mkdir()
    stream.checkpoints.close()  # nothing happened since, and yet there must be one
    (line,) = caplog.records
    assert f"{folder} was taken away or emptied under this daemon" in line.getMessage()
    found = stream.store.newest_good()
    assert found is not None
    stream.check(found)
    assert read_kept(folder) == kept.programs
    with pytest.raises(CheckpointError, match="in use by another"):
        CheckpointStore(folder)
    assert stream.store.next_incarnation() == count + 1
    stream.checkpoints.close()
    assert stream.checkpoints.newest == Newest(found.epoch, {P: found.epoch[1] * 10}), "one is enough"
    assert len(stream.safe) == 2


def test_where_no_folder_can_be_made_anew_it_is_said_what_there_is(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stream.store.path
    for _ in range(2):
        stream.epoch()
        stream.checkpoints.close()
    older, newest = reversed(stream.store.names())
    shutil.rmtree(folder / newest)
    (folder / "lock").unlink()
    (folder / "lock").mkdir()
    with pytest.raises(NotWritten, match=f"was taken away; a restart goes on from {older}"):
        stream.checkpoints.close()
    shutil.rmtree(folder)
    folder.touch()
    with pytest.raises(NotWritten, match="there is none to go on from"):
        stream.checkpoints.close()
    assert "the one before it stays" not in caplog.text and "must be a folder" in caplog.records[-1].getMessage()
    folder.unlink()
    other = CheckpointStore(folder)
    with pytest.raises(NotWritten, match="in use by another graphtide process"):
        stream.checkpoints.close()
    other.close()
    stream.checkpoints.close()
    assert stream.store.newest_good() is not None


def test_the_first_that_fails_has_none_before_it(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream.epoch()
    shutil.rmtree(stream.store.path)
    stream.store.path.touch()
    with pytest.raises(NotWritten):
        stream.checkpoints.close()
    assert "failed, and there is none before it" in caplog.text
    assert "tried again" not in caplog.text, "it was the last"


def test_where_reading_begins_is_a_checkpoint_of_the_empty_graph(stream: Stream) -> None:
    stream.checkpoints.write_beginning({P: 70})
    found = stream.store.newest_good()
    assert found is not None and found.is_empty
    assert (found.epoch, found.offsets, found.programs) == ((1, 0), {"t": {"0": 70}}, {})
    assert found.part("graph")["keys"].size == 0 and ("weights" in found.part("graph")) == stream.weighted
    assert stream.safe == [{P: 70}] and stream.checkpoints.newest.offsets == {P: 70}
    stream.checkpoints.close()
    assert len(stream.safe) == 1, "nothing was applied since"
    stream.epoch()
    stream.checkpoints.close()
    later = stream.store.newest_good()
    assert later is not None and not later.is_empty
    stream.check(later)


def test_before_it_is_known_where_reading_begins_there_is_no_checkpoint(stream: Stream) -> None:
    """Epochs there may be: a program is kept while the source is away. What such a one would keep is that reading
    begins nowhere, in front of the checkpoint that says where."""
    checkpoints = stream.checkpoints
    stream.position.offsets = {P: 5}  # of another source, of which nothing was taken
    checkpoints.has_beginning = False
    stream.position.number += 1
    for _ in range(3):
        checkpoints.step()
    checkpoints.close()
    assert stream.store.names() == []
    checkpoints.write_beginning({P: 70})
    stream.position.number += 1
    checkpoints.close()
    found = stream.store.newest_good()
    assert found is not None and (found.epoch, found.offsets) == ((1, 2), {"t": {"0": 70}})
    stream.epoch()
    checkpoints.close()
    found = stream.store.newest_good()
    assert found is not None and (found.epoch, found.offsets) == ((1, 3), {"t": {"0": 30}})


def test_a_start_at_the_beginning_keeps_where_that_is_until_something_is_read(stream: Stream) -> None:
    """Epochs there may be, and somebody who asks for a checkpoint of one. Without offsets the next start would
    decide anew where to begin."""
    stream.checkpoints.write_beginning({P: 70})
    next_start = replace(stream.checkpoints, position=Position(2))
    next_start.position.number += 1
    next_start.close()
    found = stream.store.newest_good()
    assert found is not None and (found.epoch, found.offsets) == ((2, 1), {"t": {"0": 70}})


@pytest.mark.parametrize("is_written", [False, True], ids=["in the making", "being written"])
def test_what_is_in_the_making_when_the_source_turns_out_to_be_another_is_not_of_that(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Nothing was taken of the one before, so its end may stand anywhere in the other: neither may a restart begin
    there, nor may it decide anew where to begin."""
    checkpoints, identity = stream.checkpoints, {"source": "before"}
    checkpoints.identity = identity
    stream.position.offsets = {P: 500}  # where reading was to begin in the one before
    stream.position.number += 1
    entered, released = threading.Event(), threading.Event()
    write = stream.store.write

    def slow_write(*given: Any) -> int:
        entered.set()
        assert released.wait(PATIENCE_S)
        return write(*given)

    if is_written:
        monkeypatch.setattr(stream.store, "write", slow_write)
    checkpoints.step()
    if is_written:
        until(lambda: (checkpoints.step(), entered.is_set())[1])

    def source_is_another() -> None:
        checkpoints.begin_anew()
        identity["source"] = "after"
        known.set()
        assert found_out.wait(PATIENCE_S)  # where it begins
        checkpoints.write_beginning({P: 70})

    known, found_out = threading.Event(), threading.Event()
    ingest = threading.Thread(target=source_is_another)
    ingest.start()
    assert is_written or known.wait(PATIENCE_S)
    released.set()
    until(lambda: (checkpoints.step(), checkpoints._making is None)[1])
    found_out.set()
    ingest.join()
    found = stream.store.newest_good()  # of a start after a crash
    assert found is not None and found.is_empty
    assert (found.identity, found.offsets) == ({"source": "after"}, {"t": {"0": 70}})
    assert stream.safe[-1] == {P: 70}


def test_buffers_are_used_again() -> None:
    buffers = Buffers()
    first: Keys = np.arange(1000, dtype=np.uint64)
    buffers.reserve({"a": first.nbytes, "b": 16})
    held = buffers.nbytes
    copies = buffers.copy({"a": first, "b": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(copies["a"], first)
    np.testing.assert_array_equal(copies["b"], np.ones((2, 2)))
    first += np.uint64(1)
    assert copies["a"][0] == 0
    again = buffers.copy({"a": np.arange(1100, dtype=np.uint64)})  # within the room
    assert np.shares_memory(again["a"], copies["a"])
    assert buffers.nbytes == held
    assert buffers.copy({"a": np.arange(5000, dtype=np.uint64)})["a"].size == 5000
    buffers.reserve({"b": 16})
    assert buffers.nbytes < 100


# -- those that are asked for -----------------------------------------------------------------------------------


def reachable(stream: Stream) -> RequestedCheckpoints:
    """No checkpoint is due by itself."""
    stream.checkpoints.interval_s = 1e9
    return stream.checkpoints.requested


def ask(stream: Stream, **wish: Any) -> Outcome:
    return stream.checkpoints.requested.ask(
        stream.position.epoch, **{"at": None, "since": None, "failures": None, **wish}
    )


def turn_until_made(stream: Stream, **wish: Any) -> Outcome:
    """Turns of the engine without an epoch; what became of the wish."""

    def asked() -> Outcome | None:
        stream.checkpoints.step()
        outcome = ask(stream, **wish)
        return None if outcome.status == "waiting" else outcome

    return until(asked)


def test_a_checkpoint_that_is_asked_for_is_of_that_epoch_or_later(stream: Stream) -> None:
    reachable(stream)
    stream.epoch()
    stream.checkpoints.step()
    assert not stream.checkpoints.writing and stream.checkpoints.newest is None
    first = ask(stream)
    assert first.status == "waiting" and first.since == (1, 1)
    stream.epoch()
    made = turn_until_made(stream, since=first.since, failures=first.failures)
    assert made.status == "made" and made.made == stream.store.path / "checkpoint-1-2"
    assert ask(stream).made == ask(stream, since=(1, 1)).made == made.made  # nothing is new
    stream.epoch()
    assert ask(stream, since=(1, 2)).status == "made" and ask(stream).status == "waiting"
    assert turn_until_made(stream).made == stream.store.path / "checkpoint-1-3"
    for one in read_all(stream.store):
        stream.check(one)


def test_a_checkpoint_of_one_epoch_to_come_is_of_no_other(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one is being copied, or written, when it comes."""
    reachable(stream)
    stream.epoch()
    assert ask(stream, at=(1, 4)).status == "waiting"
    for _ in range(5):
        ask(stream)  # one of now; the next epoch comes while it is made
        stream.checkpoints.step()
        stream.epoch()
    stream.checkpoints.step()
    made = turn_until_made(stream, at=(1, 4))
    assert made.status == "made" and made.made == stream.store.path / "checkpoint-1-4"
    gone = ask(stream, at=(1, 1) if not (stream.store.path / "checkpoint-1-1").exists() else (1, 0))
    assert gone.status == "gone" and (1, 4) in gone.kept
    assert ask(stream, at=(2, 9)).status == "gone"  # of another start
    stream.checkpoints.close()
    for one in read_all(stream.store):
        stream.check(one)


def test_a_wish_for_what_is_far_to_come_is_granted_then(stream: Stream) -> None:
    """Not by checkpoints of the present epoch over and over."""
    reachable(stream)
    for _ in range(2):
        stream.epoch()
        assert ask(stream, since=(1, 3)).status == ask(stream, since=(1, 9)).status == "waiting"
        stream.checkpoints.step()
        assert stream.checkpoints.memory_bytes() == 0 and not stream.store.names()
    stream.epoch()
    assert turn_until_made(stream, since=(1, 3)).made == stream.store.path / "checkpoint-1-3"
    assert ask(stream, since=(1, 9)).status == "waiting"
    stream.checkpoints.step()
    assert stream.checkpoints._making is None


def test_a_checkpoint_that_fails_is_told_to_those_who_asked(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reachable(stream)
    stream.epoch()
    first = ask(stream)

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(stream.store, "write", full)
        failed = turn_until_made(stream, since=first.since, failures=first.failures)
    assert failed.status == "failed" and "No space left" in failed.reason
    assert turn_until_made(stream, since=first.since).status == "made"


def test_a_wish_that_nobody_repeats_is_forgotten_and_none_is_granted_before_the_source_is_known(
    stream: Stream,
) -> None:
    now = 0.0
    wishes = RequestedCheckpoints(stream.store.path, clock=lambda: now)
    wishes.ask((1, 5), at=(1, 7), since=None, failures=None)
    wishes.ask((1, 5), at=None, since=None, failures=None)
    assert wishes.wants((1, 7)) and not wishes.wants((1, 6)) and wishes.wants_newer((1, 5))
    now = LAPSE_S + 1
    assert not wishes.wants((1, 7)) and not wishes.wants_newer((1, 5))
    stream.checkpoints.interval_s, stream.checkpoints.has_beginning = 1e9, False
    stream.epoch()
    for at in (None, (1, 1)):
        ask(stream, at=at)
        stream.checkpoints.step()
        assert stream.checkpoints.memory_bytes() == 0 and ask(stream, at=at).status == "waiting"


def test_a_wish_for_an_epoch_to_come_has_none_made_before(stream: Stream) -> None:
    reachable(stream)
    stream.epoch()
    assert turn_until_made(stream).status == "made"
    assert ask(stream, since=(1, 3)).status == "waiting"
    for wanted in (False, False, True):
        assert stream.checkpoints.requested.wants_newer(stream.position.epoch) is wanted
        stream.epoch()
    assert turn_until_made(stream, since=(1, 3)).status == "made"


def test_a_wish_for_an_epoch_of_another_start_to_come_is_refused(stream: Stream) -> None:
    reachable(stream)
    incarnation, number = stream.checkpoints.position.epoch
    with pytest.raises(RequestError, match=f"a start that has not been: the present one is {incarnation}"):
        ask(stream, since=(incarnation + 1, 0))
    assert ask(stream, since=(incarnation, number + 1)).status == "waiting"


def test_wishes_are_so_many_at_most(stream: Stream) -> None:
    reachable(stream)
    for number in range(1, WISHES_MAX + 1):
        assert ask(stream, since=(1, number)).status == "waiting"
    with pytest.raises(Unavailable, match="other epochs"):
        ask(stream, since=(1, WISHES_MAX + 1))
    assert ask(stream, since=(1, WISHES_MAX)).status == "waiting"  # as before


def test_the_stream_waits_for_one_checkpoint_of_an_epoch_at_a_time(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many epochs to come are named, one after the other."""
    requested = reachable(stream)
    stream.epoch()
    for number in (2, 4, 3):
        assert ask(stream, at=(1, number)).status == "waiting"
    assert [number for number in range(1, 6) if requested.wants((1, number))] == [3]
    may_write, write = threading.Event(), stream.store.write

    def held(*given: Any) -> int:
        may_write.wait(PATIENCE_S)
        return write(*given)

    monkeypatch.setattr(stream.store, "write", held)
    try:
        while stream.position.epoch < (1, 3):
            stream.epoch()
            stream.checkpoints.step()
        assert stream.checkpoints.writing
        stream.epoch()
        with pytest.raises(Unavailable, match="in the making"):
            ask(stream, at=(1, 5))
        assert ask(stream, at=(1, 3)).status == "waiting"
        stream.epoch()
        stream.checkpoints.step()
        assert stream.checkpoints.writing, "nothing waited for it to be written"
    finally:
        may_write.set()
    assert turn_until_made(stream, at=(1, 3)).status == "made"
    assert ask(stream, at=(1, 9)).status == "waiting"
