"""Who writes results, without a daemon: histories with crashes, sinks that fail, replays that are cut otherwise.

After every transaction readers must know exactly what is true at its offsets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pytest
from kafka.errors import SaslAuthenticationFailedError

from graphtide.compute.program import Answer, Program, Published
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.outgoing.records import Chunk, End, ids_by_program, read_key, read_value
from graphtide.daemon.outgoing.sink import Accepts, Fenced, Place, PlaceLost, Whole
from graphtide.daemon.outgoing.view import View
from graphtide.daemon.outgoing.writer import Resume, Writer
from graphtide.daemon.serve.change_log import ChangeLog, ChangeLogWriter
from graphtide.daemon.serve.publication import ProgramPublication, Publication
from graphtide.daemon.serve.results import ResultsReader, ResultsWriter
from graphtide.daemon.serve.shared_memory import SharedArray
from graphtide.gpma.edges import NO_VERTEX, Vertices
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex

PROGRAMS = ("even", "odd")
EVENTS = ("updates", "epoch", "write", "checkpoint", "fail", "lose", "compact", "crash", "programs")
Programs = Mapping[str, int]
"""Of each program that is published, which of those that were made under its id (0, 1, ...)."""
ALL: Programs = dict.fromkeys(PROGRAMS, 0)


class Plain(Program):
    """Values are a column; negative ones are none. Programs have one each, with ``added``."""

    kind = "plain"
    summary = "a column"
    value = np.int64

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        values = published.columns["a"][vertices]
        return Answer(values, values < 0)


Update = tuple[int, int | None]
"""A vertex and its value (below 0: it has none); None: it is deleted."""


Kind = Literal["int", "string"]


def column(kind: Kind, vertex: int) -> IdColumn:
    return StringColumn.of([f"v{vertex}"]) if kind == "string" else np.array([vertex], np.int64)


def added(program: str, version: int) -> int:
    """By how much its values are more than those of the updates."""
    return (program == "odd") + 10 * version


def truth(
    updates: Iterable[Update], kind: Kind = "int", programs: Programs = ALL
) -> dict[tuple[str, int | str], int | None]:
    """What readers should know."""
    alive: dict[int, int] = {}
    for vertex, value in updates:
        if value is None:
            alive.pop(vertex, None)
        else:
            alive[vertex] = value
    names = {vertex: f"v{vertex}" if kind == "string" else vertex for vertex in alive}
    return {
        (program, names[vertex]): None if value < 0 else value + added(program, version)
        for vertex, value in alive.items()
        for program, version in programs.items()
    }


class Memory:
    """A sink in memory, which outlives those who write there; ``fails``: what becomes of the next transactions."""

    def __init__(self) -> None:
        self.transactions: list[tuple[list[tuple[bytes, bytes | None]], End]] = []
        self.fails: list[str] = []
        self.forgotten = 0
        self.opened = 0
        self.was_cut = False

    def lose(self, transactions: int) -> None:
        """Somebody takes the newest away."""
        del self.transactions[len(self.transactions) - transactions :]
        self.was_cut = True

    def open(self, accepts: Accepts) -> End | None:
        self.opened += 1
        self.was_cut = False
        last = self.transactions[-1][1] if self.transactions else None
        if not accepts(last):
            raise Fenced("somebody else")
        return last

    @property
    def place(self) -> Place:
        return {"at": len(self.transactions)}

    def compact(self) -> None:
        """Leave the newest record of each key, and of what was deleted none; and the newest transaction whole."""
        last = len(self.transactions) - 1
        newest = {key: number for number, (records, _) in enumerate(self.transactions) for key, _ in records}
        for number, (records, end) in enumerate(self.transactions[:last]):
            left = [(key, value) for key, value in records if newest[key] == number and value is not None]
            self.transactions[number] = left, end

    def ids_since(self, place: Place | None, transactions: int = 0) -> dict[str, IdColumn]:
        start = 0 if place is None else int(place["at"])
        if place is not None:
            if not self.forgotten <= start <= len(self.transactions):
                raise PlaceLost
            whole = Whole(1, transactions)
            for records, end in self.transactions[start:]:
                for _ in records:
                    whole.record(0)
                whole.end(0, end.records)
            whole.require()
        return ids_by_program(key for records, _ in self.transactions[start:] for key, _ in records)

    def write(self, chunks: Iterable[Chunk], end: End) -> None:
        fault = self.fails.pop(0) if self.fails else ""
        if fault == "before" or self.was_cut:
            raise OSError("away")
        records = [record for chunk in chunks for record in chunk.records()]
        self.transactions.append((records, replace(end, records=len(records))))
        if fault == "after":
            raise OSError("no answer")

    def close(self) -> None: ...

    def break_off(self) -> None: ...

    def known(self) -> dict[tuple[str, int | str], Any]:
        """What a reader knows; that everything follows each other is checked besides."""
        known: dict[tuple[str, int | str], Any] = {}
        for number, (records, end) in enumerate(self.transactions, 1):
            before = self.transactions[number - 2][1] if number > 1 else None
            assert (end.sequence, end.since) == (number, None if before is None else before.epoch)
            assert before is None or end.epoch > before.epoch
            assert len({key for key, _ in records}) == len(records)
            for key, value in records:
                named = read_key(key)
                assert named is not None
                if value is None:
                    known.pop(named, None)
                else:
                    known[named] = read_value(value)["value"]
        return known


@dataclass
class Link:
    """What is published, as a daemon has it."""

    index: VertexIndex
    ring_bytes: int
    held: int = 0
    changes: ChangeLogWriter = field(init=False)
    writer: ResultsWriter = field(init=False)

    def __post_init__(self) -> None:
        self.changes = ChangeLogWriter(self.ring_bytes, self.index.external)
        self.writer = ResultsWriter(self.changes)

    @property
    def results_generation(self) -> int:
        return self.writer.generation

    def open_results(self) -> ResultsReader:
        return ResultsReader.beside(self.writer)

    def open_changes(self) -> ChangeLog:
        place = self.changes.place
        return ChangeLog(SharedArray(os.dup(place.fd), place.byte_offset, place.n_items, place.dtype))

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.held += 1
        yield


@dataclass
class Checkpoint:
    epoch: tuple[int, int]
    offset: int
    fact: dict[str, Any] | None
    programs: Programs


class Daemon:
    """One incarnation: applies a history, publishes, and writes."""

    def __init__(
        self,
        sink: Memory,
        updates: list[Update],
        incarnation: int,
        checkpoint: Checkpoint | None,
        ring_bytes: int,
        programs: Programs = ALL,
        kind: Kind = "int",
        chosen: tuple[str, ...] = (),
        threshold: float = 0.0,
    ) -> None:
        self.kind: Kind = kind
        self.programs = programs
        self.published: dict[tuple[int, int], Programs] = {}
        """What there was at each epoch."""
        self.updates = updates
        self.index = VertexIndex.create(kind)
        self.link = Link(self.index, ring_bytes)
        self.values = np.zeros(0, np.int64)
        self.alive = np.zeros(0, bool)
        self.epoch = (incarnation, 0 if checkpoint is None else checkpoint.epoch[1])
        self.offset = 0
        self.recovers_to = len(updates)
        view = View(self.link, self.index, kind, {"plain": Plain}, chosen, threshold, self.link.hold)
        fact = None if checkpoint is None else checkpoint.fact
        resume = (
            None
            if checkpoint is None or fact is None
            else Resume(checkpoint.epoch, **{**fact, "programs": self._restored(checkpoint, fact["programs"])})
        )
        self.writer = Writer(
            sink, view, "msgpack", name="memory", interval_s=0.0, threshold=threshold, resume=resume
        )
        self._apply(0 if checkpoint is None else checkpoint.offset)
        self._publish(None, None)

    @property
    def recovering(self) -> bool:
        return self.offset < self.recovers_to

    def go_on(self, updates: int) -> None:
        """An epoch of so many updates, or as many as there are."""
        self.epoch = (self.epoch[0], self.epoch[1] + 1)
        self._publish(*self._apply(min(updates, len(self.updates) - self.offset)))

    def have(self, programs: Programs) -> None:
        """Programs join or are dropped, each in an epoch of its own."""
        for id in {*self.programs, *programs}:
            if self.programs.get(id) != programs.get(id):
                self._now_has({other: version for other, version in self.programs.items() if other != id})
                if id in programs:
                    self._now_has({**self.programs, id: programs[id]})

    def _now_has(self, programs: Programs) -> None:
        if programs != self.programs:
            self.programs = programs
            self.epoch = (self.epoch[0], self.epoch[1] + 1)
            self._publish(*self._apply(0))

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.epoch, self.offset, self.writer.fact(), self.programs)

    def _restored(self, checkpoint: Checkpoint, written: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            id for id in written if id in self.programs and checkpoint.programs.get(id) == self.programs[id]
        )

    def _apply(self, updates: int) -> tuple[Any, Any]:
        """Which values changed, as a program would tell, and who came to exist or ceased to."""
        before, lived = self.values.copy(), self.alive.copy()
        for vertex, value in self.updates[self.offset : self.offset + updates]:
            ids = column(self.kind, vertex)
            if value is None and self.index.lookup(ids)[0] == NO_VERTEX:
                continue
            (dense,) = self.index.insert(ids).tolist()
            if dense == self.values.size:
                self.values, self.alive = np.append(self.values, 0), np.append(self.alive, False)
            self.alive[dense] = value is not None
            self.values[dense] = 0 if value is None else value
        self.offset += updates
        old = before.size
        changed = np.append(np.flatnonzero(self.values[:old] != before), np.arange(old, self.values.size))
        return changed.astype(np.uint32), np.flatnonzero(self.alive[:old] != lived).astype(np.uint32)

    def _publish(self, changed: Any, moved: Any) -> None:
        n = self.values.size
        programs = {
            id: ProgramPublication(
                "plain", {"a": self.values + np.where(self.values < 0, 0, added(id, version))}, {"a": changed}
            )
            for id, version in self.programs.items()
        }
        self.published[self.epoch] = self.programs
        stats = {"stage": "recovering" if self.recovering else "running"}
        self.link.writer.publish(
            Publication(self.epoch, n, {"edges": {0: self.offset}}, programs, stats, self.alive, moved)
        )
        self.writer.told(self.epoch)

    def write(self) -> None:
        """What the thread does, until there is nothing to do or it fails."""
        try:
            while self.writer.step():
                pass
        except (OSError, Unavailable) as error:
            self.writer._fails(error)


def draw(rng: np.random.Generator, n: int) -> list[Update]:
    """Few vertices and few values: they come, go, and come back."""
    return [
        (int(vertex), None if kind < 0.25 else int(value))
        for vertex, kind, value in zip(rng.integers(0, 8, n), rng.random(n), rng.integers(-1, 3, n), strict=True)
    ]


def run(seed: int, ring_bytes: int, kind: Kind) -> None:
    rng = np.random.default_rng(seed)
    sink, updates = Memory(), draw(rng, 5)
    kept: list[Checkpoint] = []
    incarnation = 1
    programs = ALL
    threshold = 0.0 if rng.random() < 0.7 else 1e-9  # of whole numbers it leaves out none, and all is remembered
    given: dict[str, Any] = {"kind": kind, "threshold": threshold}
    daemon = Daemon(sink, updates, incarnation, None, ring_bytes, **given)
    published = daemon.published
    checked = 0
    for _ in range(60):
        match rng.choice(EVENTS, p=[0.2, 0.25, 0.2, 0.1, 0.05, 0.03, 0.04, 0.08, 0.05]):
            case "updates":
                updates += draw(rng, int(rng.integers(1, 6)))
            case "epoch":
                daemon.go_on(int(rng.integers(0, 20)))
            case "write":
                daemon.write()
            case "checkpoint":
                if rng.random() < 0.5:
                    daemon.write()
                kept = [*kept[-1:], daemon.checkpoint()]
            case "fail":
                sink.fails = rng.choice(["before", "after", ""], 3).tolist()
            case "lose":
                sink.lose(int(rng.integers(len(sink.transactions) + 1)))
                checked = min(checked, len(sink.transactions))
            case "compact":
                sink.compact()
            case "crash":
                incarnation += 1
                chosen = kept[int(rng.integers(len(kept)))] if kept and rng.random() < 0.8 else None
                kept = [] if chosen is None else [chosen]
                if rng.random() < 0.3:  # another configuration, or what was answered and not done
                    programs = draw_programs(rng)
                daemon = Daemon(sink, updates, incarnation, chosen, ring_bytes, programs=programs, **given)
                daemon.published = published = published | daemon.published
            case "programs":
                programs = draw_programs(rng)
                daemon.have(programs)
        checked = check(sink, updates, checked, kind, published)
    sink.fails = []
    updates += [(8, 1)]  # what was taken away is missed with the next epoch
    while daemon.recovering:
        daemon.go_on(3)
    daemon.go_on(len(updates))
    for _ in range(2):  # the first may fail
        daemon.write()
    assert sink.known() == truth(updates, kind, programs)
    assert sink.transactions[-1][1].epoch == daemon.epoch


def draw_programs(rng: np.random.Generator) -> Programs:
    """Few of few: they come, go, and come back, as the same or as others."""
    return {id: int(rng.integers(0, 2)) for id in PROGRAMS if rng.random() < 0.7}


def check(
    sink: Memory,
    updates: list[Update],
    checked: int,
    kind: Kind,
    published: Mapping[tuple[int, int], Programs],
) -> int:
    """After each transaction a reader knows what was true at its offsets, of the programs of its epoch."""
    if len(sink.transactions) > checked:
        end = sink.transactions[-1][1]
        assert sink.known() == truth(updates[: end.offsets["edges"][0]], kind, published[end.epoch])
        assert {*end.programs} == {*published[end.epoch]}
    return len(sink.transactions)


@pytest.mark.parametrize("ring_bytes", [1 << 16, 1 << 10])
@pytest.mark.parametrize("kind", ["int", "string"])
def test_readers_know_what_is_true_whatever_dies_or_fails(
    seed: int, ring_bytes: int, kind: Kind, run_long: bool
) -> None:
    for number in range(1000 if run_long else 25):
        run(seed + number, ring_bytes, kind)


def started(sink: Memory, updates: list[Update], **more: Any) -> Daemon:
    """A daemon that has written all that there is."""
    given: dict[str, Any] = {"incarnation": 1, "checkpoint": None, "ring_bytes": 1 << 16, **more}
    daemon = Daemon(sink, updates, **given)
    daemon.go_on(len(updates))
    daemon.write()
    return daemon


def test_what_went_and_came_back_in_a_replay_of_other_epochs_is_put_right() -> None:
    sink, updates = Memory(), [(1, 5), (2, 6)]
    daemon = started(sink, updates)
    kept = daemon.checkpoint()
    updates += [(1, 7), (3, 3)]
    daemon.go_on(2)
    daemon.write()
    assert sink.known()["even", 1] == 7 and ("even", 3) in sink.known()
    updates += [(1, 5), (3, None)]
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(4)  # in which nothing changed, as it seems
    daemon.write()
    records, end = sink.transactions[-1]
    assert sink.known() == truth(updates) and not end.snapshot
    assert sorted({read_key(key)[1] for key, _ in records}) == [1, 3]  # type: ignore[index]


def test_who_went_and_came_back_is_written_where_compaction_has_forgotten_the_tombstone() -> None:
    """The replay has it as the checkpoint has it, and no record behind that tells that readers lack it."""
    sink, updates = Memory(), [(1, 5), (2, 6)]
    daemon = started(sink, updates)
    kept = daemon.checkpoint()
    for update in ((1, None), (2, 7)):
        updates.append(update)
        daemon.go_on(1)
        daemon.write()
    sink.compact()  # while the daemon is down for long
    assert ("even", 1) not in sink.known()
    updates.append((1, 5))
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(3)  # in which 1 did not change, as it seems
    daemon.write()
    assert sink.known() == truth(updates)


@pytest.mark.parametrize(("before", "now"), [(0.5, 0.0), (0.5, 0.1), (0.5, 0.5), (0.0, 0.5)])
def test_a_smaller_threshold_has_what_was_left_out_written(before: float, now: float) -> None:
    sink, updates = Memory(), [(1, 5), (2, 6)]
    daemon = started(sink, updates, threshold=before)
    updates.append((1, 6))
    daemon.go_on(1)
    daemon.write()
    assert sink.known()["even", 1] == (6 if before == 0 else 5)
    daemon = Daemon(sink, updates, 2, daemon.checkpoint(), 1 << 16, threshold=now)
    updates.append((3, 3))
    daemon.go_on(1)
    daemon.write()
    assert (sink.known() == truth(updates)) == (before != now)
    assert sink.transactions[-1][1].snapshot == (now < before)


def test_a_checkpoint_knows_the_place_of_the_transaction_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is made: the thread that writes may just be noting one."""
    facts = list[dict[str, Any] | None]()
    sink, updates = Memory(), [(1, 5)]
    daemon = started(sink, updates)

    def place(memory: Memory) -> Place:
        facts.append(daemon.writer.fact())
        return {"at": len(memory.transactions)}

    monkeypatch.setattr(Memory, "place", property(place))
    for value in (6, 7):
        updates.append((1, value))
        daemon.go_on(1)
        daemon.write()
    assert [(fact["sequence"], fact["place"]) for fact in [*facts, daemon.writer.fact()] if fact is not None] == [
        (number, {"at": number}) for number in (1, 2, 3)
    ]


def test_while_the_sink_is_away_epochs_are_merged_and_the_newest_values_written() -> None:
    sink, updates = Memory(), [(vertex, 0) for vertex in range(50)]
    daemon = started(sink, updates)
    sink.fails = ["before"] * 3
    for value in range(1, 8):
        updates += [(0, value), (value, value)]
        daemon.go_on(2)
        daemon.write()
    records, end = sink.transactions[-1]
    assert sink.known() == truth(updates)
    (merged,) = [end for _, end in sink.transactions if end.epochs not in (None, 1)]
    assert merged.epochs == 4 and daemon.writer.written.merged == 3 and daemon.writer.written.errors == 3
    assert len(records) < 50 and not end.snapshot and daemon.writer.trouble is None


def test_where_the_log_does_not_reach_back_everything_is_written_and_who_is_gone_is_taken_back() -> None:
    sink, updates = Memory(), [(vertex, 0) for vertex in range(20)]
    daemon = started(sink, updates, ring_bytes=1 << 10)
    updates += [(3, None)]
    for _ in range(30):
        updates += [(vertex, len(updates)) for vertex in range(4, 20)]
        daemon.go_on(17)
    daemon.write()
    records, end = sink.transactions[-1]
    assert end.snapshot and sink.known() == truth(updates)
    assert ("even", 3) in {read_key(key) for key, value in records if value is None}


def test_a_checkpoint_that_is_newer_than_what_was_written_is_no_help() -> None:
    sink, updates = Memory(), [(1, 1), (2, 2)]
    daemon = started(sink, updates)
    updates += [(1, 9)]
    daemon.go_on(1)
    kept = daemon.checkpoint()  # the epoch before is the newest that was written
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.write()
    assert sink.known() == truth(updates) and sink.transactions[-1][1].snapshot


def test_what_came_before_a_checkpoint_and_was_never_heard_of_is_written() -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = started(sink, updates)
    updates += [(2, 5)]
    daemon.go_on(1)
    kept = daemon.checkpoint()
    updates += [(2, None)]
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(1)
    daemon.write()  # every vertex; that there was another nobody needs to know
    assert sink.transactions[-1][1].snapshot and ("even", 2) not in sink.known()
    updates += [(2, 5)]
    daemon = Daemon(sink, updates, 3, kept, 1 << 16)
    daemon.go_on(2)  # in which it went and came back
    daemon.write()
    assert sink.known() == truth(updates)


def test_a_sink_that_was_emptied_is_not_taken_for_the_one_that_a_checkpoint_means() -> None:
    sink, updates = Memory(), [(1, 1), (2, 1)]
    kept = started(sink, updates).checkpoint()
    sink.transactions.clear()
    updates += [(1, 2)]
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(1)
    daemon.write()
    assert len(sink.transactions) == kept.fact["sequence"]  # type: ignore[index]  # the same number and place
    updates += [(1, 1)]
    daemon = Daemon(sink, updates, 3, kept, 1 << 16)
    daemon.go_on(2)  # in which nothing changed, as it seems
    daemon.write()
    assert sink.known() == truth(updates)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_is_written_goes_on_where_somebody_took_the_newest_away(lost: int) -> None:
    sink, updates = Memory(), [(1, 1), (2, 2)]
    kept = started(sink, updates).checkpoint()
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    for vertex in (3, 4):  # the first transaction is of the process before
        updates += [(vertex, 1)]
        daemon.go_on(1)
        daemon.write()
    kept, series = daemon.checkpoint(), sink.transactions[-1][1].series
    assert len(sink.transactions) == 3
    sink.lose(lost)
    updates += [(1, 9)]
    daemon.go_on(1)
    daemon.write()  # which fails
    assert daemon.writer.trouble is not None
    daemon.write()
    end = sink.transactions[-1][1]
    assert sink.known() == truth(updates) and end.snapshot and daemon.writer.trouble is None
    assert (end.sequence, end.series == series) == (4 - lost, False)
    while len(sink.transactions) < 3:  # up to the number and place that the checkpoint tells
        updates += [(5, len(sink.transactions))]
        daemon.go_on(1)
        daemon.write()
    updates += [(1, 1)]
    daemon = Daemon(sink, updates, 3, kept, 1 << 16)
    daemon.go_on(len(updates))
    daemon.write()
    assert sink.known() == truth(updates)


def test_another_series_that_was_put_back_is_not_taken_for_what_was_written() -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = started(sink, updates)

    def write(value: int) -> None:
        updates.append((1, value))
        daemon.go_on(1)
        daemon.write()

    write(2)
    kept = list(sink.transactions)
    sink.lose(2)
    updates += [(2, 2)]
    daemon.go_on(1)
    daemon.write()  # which fails
    daemon.write()
    write(4)
    assert len(sink.transactions) == len(kept) == 2
    sink.transactions, sink.was_cut = kept, True  # both have the same number now
    write(5)
    daemon.write()
    assert sink.known() == truth(updates)


@pytest.mark.parametrize("lost", [0, 1])
def test_what_was_taken_away_is_told_once(lost: int, caplog: pytest.LogCaptureFixture) -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = Daemon(sink, updates, 1, None, 1 << 16)
    daemon.go_on(1)
    if lost:
        daemon.write()
        sink.lose(lost)
        updates += [(2, 2)]
        daemon.go_on(1)
        daemon.write()
    sink.fails = ["before"] * 3
    for _ in range(4):
        daemon.write()
    assert sink.known() == truth(updates)
    assert sum("is not in" in record.message for record in caplog.records) == lost


def test_what_was_taken_away_before_a_start_is_not_taken_for_what_is_written_then() -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = started(sink, updates)
    for vertex in (2, 3):
        updates += [(vertex, 1)]
        daemon.go_on(1)
        daemon.write()
    kept = daemon.checkpoint()
    sink.lose(1)
    updates += [(1, 9)]
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(1)
    daemon.write()
    assert len(sink.transactions) == 3 and sink.known() == truth(updates)
    updates += [(1, 1)]
    daemon = Daemon(sink, updates, 3, kept, 1 << 16)
    daemon.go_on(2)  # in which nothing changed, as it seems
    daemon.write()
    assert sink.known() == truth(updates)


def test_nothing_is_written_while_the_log_is_replayed() -> None:
    sink, updates = Memory(), [(1, 1), (2, 2), (1, 3)]
    started(sink, updates)
    daemon = Daemon(sink, updates, 2, None, 1 << 16)
    for _ in range(2):
        daemon.go_on(1)
        daemon.write()
    assert len(sink.transactions) == 1
    daemon.go_on(1)
    daemon.write()
    assert len(sink.transactions) == 2 and sink.known() == truth(updates)


def test_a_program_that_is_not_wanted_any_more_is_taken_back() -> None:
    sink, updates = Memory(), [(1, 1), (2, 2)]
    kept = started(sink, updates).checkpoint()
    Daemon(sink, updates, 2, kept, 1 << 16, chosen=("odd",)).write()
    assert sink.known() == truth(updates, programs={"odd": 0}) and sink.transactions[-1][1].programs == ("odd",)


def test_a_program_is_written_from_the_epoch_at_which_it_joins_until_it_is_dropped() -> None:
    sink, updates = Memory(), [(1, 1), (2, 2)]
    daemon = started(sink, updates, programs={"even": 0})
    daemon.have(ALL)
    daemon.write()
    records, end = sink.transactions[-1]
    assert not end.snapshot and {read_key(key) for key, _ in records} == {("odd", 1), ("odd", 2)}
    assert end.epoch == daemon.epoch and sink.known() == truth(updates)
    updates += [(1, None), (3, 1)]
    daemon.go_on(2)
    daemon.have({"even": 0})
    daemon.write()  # of both epochs
    assert sink.known() == truth(updates, programs={"even": 0}) and not sink.transactions[-1][1].snapshot


def test_after_a_start_only_the_program_that_is_not_of_the_checkpoint_is_written_whole() -> None:
    sink, updates = Memory(), [(1, 1), (2, 2), (3, 3)]
    kept = started(sink, updates, programs={"even": 0}).checkpoint()
    updates += [(2, 5)]
    daemon = Daemon(sink, updates, 2, kept, 1 << 16)
    daemon.go_on(1)
    daemon.write()
    records, end = sink.transactions[-1]
    assert sink.known() == truth(updates) and not end.snapshot
    assert {read_key(key) for key, _ in records} == {("even", 2), *(("odd", vertex) for vertex in (1, 2, 3))}


def test_who_is_shut_out_writes_no_more() -> None:
    sink, updates = Memory(), [(1, 1)]
    zombie = started(sink, updates)
    started(sink, updates, incarnation=2)
    updates += [(1, 2)]
    zombie.writer._fails(OSError("away"))
    zombie.go_on(1)
    with pytest.raises(Fenced):
        zombie.writer.step()
    assert len(sink.transactions) == 2


def test_trouble_names_its_error_once() -> None:
    """Those of Kafka begin with their name, others do not."""
    writer = started(Memory(), [(1, 1)]).writer
    writer._fails(SaslAuthenticationFailedError("Authentication failed"))
    assert writer.trouble == "[Error 58] SaslAuthenticationFailedError: Authentication failed"
    writer._fails(ValueError("too short"))
    assert writer.trouble == "ValueError: too short"


def test_epochs_that_come_too_fast_wait_for_the_look() -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = started(sink, updates)
    read: Callable[..., Any] = ResultsReader.read
    seen: list[int] = []

    def busy(self: ResultsReader, use: Any, tries: int = 50) -> Any:
        seen.append(tries)
        if tries == 3:
            raise Unavailable("too fast")
        return read(self, use)

    updates += [(1, 2)]
    daemon.go_on(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultsReader, "read", busy)
        daemon.write()
    assert daemon.link.held == 1 and sink.known() == truth(updates)


def test_what_waits_for_the_interval_to_be_over_is_not_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an alert would be raised by a setting. What is due and fails is."""
    sink, updates, clock = Memory(), draw(np.random.default_rng(1), 5), [1000.0]
    monkeypatch.setattr("graphtide.daemon.outgoing.writer.time.monotonic", lambda: clock[0])
    daemon = started(sink, updates)
    writer = daemon.writer
    writer._interval_s = 3600.0
    monkeypatch.setattr(writer._closing, "wait", lambda timeout: False)

    def after(seconds: float) -> float:
        clock[0] += seconds
        daemon.write()
        return writer.lag_seconds

    updates += [(1, 2)]
    daemon.go_on(1)
    assert after(10) == 0.0 and sink.known() == truth(updates)  # the one before was written without an interval
    updates += [(1, 3)]
    daemon.go_on(1)
    assert after(3000) == 0.0 and writer.lag_epochs == 1
    sink.fails = ["before"]
    assert after(700) == 100.0, "it has been due since"
    assert after(1) == 0.0 and sink.known() == truth(updates), "what failed does not wait for an interval"
    updates += [(1, 4)]
    daemon.go_on(1)
    sink.fails = ["after"]  # it is written, and nobody hears of it
    after(3600)
    updates += [(1, 5)]
    daemon.go_on(1)
    assert after(1) == 0.0 and sink.known() == truth(updates[:-1]), "the next one waits for an interval"
    assert after(3599) == 0.0 and sink.known() == truth(updates[:-1])
    assert after(2) == 0.0 and sink.known() == truth(updates)


def test_what_is_left_at_the_end_is_told_of_however_fast_the_sink_fails(caplog: pytest.LogCaptureFixture) -> None:
    sink = Memory()
    sink.fails = ["before"] * 9
    daemon = Daemon(sink, [(1, 1)], 1, None, 1 << 16)
    daemon.go_on(1)
    daemon.writer.start()
    daemon.writer.drain()
    daemon.writer.close()
    assert [line.getMessage().endswith("the next start writes them") for line in caplog.records] == [False, True]


def test_the_thread_writes_what_is_left_and_ends() -> None:
    sink, updates = Memory(), [(1, 1)]
    daemon = Daemon(sink, updates, 1, None, 1 << 16)
    daemon.go_on(1)
    daemon.writer.start()
    daemon.writer.drain()
    daemon.writer.close()
    assert sink.known() == truth(updates)
    assert daemon.writer.lag_epochs == 0 and daemon.writer.lag_seconds == 0.0
    assert daemon.writer.begin_grace()()
