"""The order between partitions: barriers, and that a restart goes the way that was gone before."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.ingest.barriers import LATE_MAX, Barriers
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.ordered import STALLED_S, OrderedReader, Step
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.barrier import HEADERS, barrier_value
from graphtide.daemon.records.encodings import BARRIER
from graphtide.daemon.records.stream import Lag, Offsets, Partition, Passed, RawRecord
from graphtide.daemon.state.order_log import OrderLog

P, Q, R = (Partition("t", number) for number in range(3))
BYTES = 1 << 20


def record(partition: Partition, offset: int, value: bytes = b"x", encoding: str = "msgpack") -> RawRecord:
    return RawRecord(partition, offset, offset + 1, value, encoding, 1_700_000_000_000 + offset)


def barrier(partition: Partition, offset: int, id: str) -> RawRecord:
    return RawRecord(partition, offset, offset + 1, barrier_value(id), BARRIER, offset, None, HEADERS)


class Given:
    """A source of what each poll is told to give; what is held stays for a later one."""

    unit = "records"
    outages = 0
    away = None

    def __init__(self, *partitions: Partition, begin: Offsets | None = None) -> None:
        self.offsets: dict[Partition, int] = dict.fromkeys(partitions, 0) | dict(begin or {})
        self.waiting: list[RawRecord] = []
        self.held: frozenset[Partition] = frozenset()
        self.asked: list[int] = []
        self.expected: set[Partition] = set()

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        self.asked.append(bytes_max)
        given = [item for item in self.waiting if item.partition not in self.held]
        self.waiting = [item for item in self.waiting if item.partition in self.held]
        for item in given:
            self.offsets[item.partition] = item.next_offset
        return given

    def position(self) -> dict[Partition, int]:
        return dict(self.offsets)

    def hold(self, partitions: Collection[Partition]) -> None:
        self.held = frozenset(partitions)

    def lag(self) -> Lag:
        return Lag(dict.fromkeys(self.offsets, 0))

    def backlog(self) -> int:
        return len(self.waiting)

    def standing(self, partition: Partition, offset: int) -> str:
        return "expected" if partition in self.expected else "unknown"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reader_of(source: Any, clock: Clock | None = None) -> OrderedReader:
    clock = clock or Clock()
    return OrderedReader(source, Barriers(60.0, clock), clock, wall_clock=lambda: 1_700_000_100.0)


def polled(reader: OrderedReader, source: Given, *records: RawRecord) -> list[tuple[int, int]]:
    """Partition and offset of what comes in the next step, once the source has these, too."""
    source.waiting += records
    return named(reader.poll(BYTES, 0))


def named(step: Step) -> list[tuple[int, int]]:
    return [(item.partition.number or 0, item.offset) for item in step.records]


# -- barriers -------------------------------------------------------------------------------------------------


def test_a_step_goes_partition_by_partition() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    assert polled(reader, source, record(Q, 0), record(P, 0), record(Q, 1), record(P, 1)) == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip
    assert reader.position() == {P: 2, Q: 2}


def test_a_partition_waits_at_a_barrier_until_the_others_have_reached_it() -> None:
    source = Given(P, Q, R)
    reader = reader_of(source)
    step = polled(reader, source, record(P, 0), barrier(P, 1, "x"), record(P, 2), record(Q, 0))
    assert step == [(0, 0), (1, 0)]
    assert reader.position() == {P: 1, Q: 1, R: 0}, "a restart reads the barrier again"
    assert polled(reader, source, record(P, 3), record(Q, 1), barrier(Q, 2, "x"), record(Q, 3)) == [(1, 1)]
    assert source.held == {P, Q} and [item.offset for item in source.waiting] == [3]
    assert polled(reader, source, record(R, 0)) == [(2, 0)]
    (waiting,) = reader.state()["barriers"]
    assert (waiting["topic"], waiting["id"], waiting["waiting"], waiting["missing"]) == ("t", "x", [0, 1], [2])
    assert reader.lag().amount == {P: 2, Q: 2, R: 0} and reader.lag().seconds > 0, "what is held back is behind"
    assert polled(reader, source, record(R, 1), barrier(R, 2, "x"), record(R, 3)) == [(2, 1)]
    step = reader.poll(BYTES, 0)
    assert named(step) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 2), (2, 3)]
    assert step.ordered, "a restart goes along the log, and looks at no barrier there"
    assert reader.state()["barriers"] == [] and source.held == frozenset()
    assert polled(reader, source) == [(0, 3)]
    assert reader.barriers.outcomes == {"complete": 1, "expired": 0, "crossed": 0}
    assert reader.lag().amount == {P: 0, Q: 0, R: 0}


def test_what_lay_there_at_the_start_is_read_though_something_waits_at_a_barrier_at_any_time() -> None:
    """Else a daemon would recover for ever, beside barriers that come fast."""
    source = Given(P, Q)
    reader = reader_of(source)
    polled(reader, source, record(P, 0), barrier(P, 1, "0"), record(P, 2))
    assert reader.backlog() == 2, "it lay there, and waits at a barrier"
    left = []
    for number in range(5):  # each lets go what waits for it, and brings the next one, which waits
        one, other = (P, Q) if number % 2 else (Q, P)
        at = source.position()[one]
        ours = [barrier(one, at, str(number)), record(one, at + 1), barrier(one, at + 2, str(number + 1))]
        polled(reader, source, *ours)
        assert reader.lag().amount[one] and not reader.lag().amount[other]
        left.append(reader.backlog())
    assert left == [0] * 5


def test_what_the_last_one_holds_before_its_barrier_comes_before_what_others_hold_behind_theirs() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    everything = [barrier(P, 0, "x"), record(P, 1), record(Q, 0), barrier(Q, 1, "x"), record(Q, 2)]
    assert polled(reader, source, *everything) == [(1, 0)]
    assert polled(reader, source) == [(0, 0), (0, 1), (1, 1), (1, 2)]


def test_barriers_one_after_the_other() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    ids = ["a", "b", "a", "c"]
    for partition in (P, Q):
        for i, id in enumerate(ids):
            source.waiting += [record(partition, 2 * i), barrier(partition, 2 * i + 1, id)]
    steps = [named(reader.poll(BYTES, 0)) for _ in range(6)]
    assert steps == [
        [(0, 0), (1, 0)],
        *([(0, 2 * i - 1), (0, 2 * i), (1, 2 * i - 1), (1, 2 * i)] for i in range(1, 4)),
        [(0, 7), (1, 7)],
        [],
    ]
    assert reader.barriers.outcomes["complete"] == 4


def test_nothing_to_wait_for() -> None:
    """A topic of one partition, another topic, and what has no id that is one."""
    other = Partition("u", 0)
    source = Given(P, Q, other)
    reader = reader_of(source)
    assert polled(reader, source, record(other, 0), barrier(other, 1, "x"), record(other, 2)) == [(0, 0)]
    assert polled(reader, source) == [(0, 1), (0, 2)]
    bad = [RawRecord(P, i, i + 1, value, BARRIER, 0) for i, value in enumerate((None, b"", b"\xff", b"x" * 129))]
    assert polled(reader, source, *bad, barrier(P, 4, "y")) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_barrier_that_never_comes_is_given_up_and_passed_where_it_comes_late() -> None:
    source, clock = Given(P, Q), Clock()
    reader = reader_of(source, clock)
    assert polled(reader, source, barrier(P, 0, "x"), record(P, 1)) == []
    clock.now = 59.9
    assert polled(reader, source, record(Q, 0)) == [(1, 0)]
    clock.now = 60.0
    step = reader.poll(BYTES, 0)
    assert named(step) == [(0, 0), (0, 1)] and step.ordered, "a restart cannot tell when that was"
    assert reader.barriers.outcomes["expired"] == 1
    assert polled(reader, source, record(Q, 1), barrier(Q, 2, "x"), record(Q, 3)) == [(1, 1)]
    assert polled(reader, source) == [(1, 2), (1, 3)], "the late one waits for nobody"
    assert polled(reader, source, barrier(Q, 4, "x")) == [] and reader.state()["barriers"], "the next one does"


def test_a_partition_that_streams_on_does_not_keep_others_from_giving_up() -> None:
    source, clock = Given(P, Q), Clock()
    reader = reader_of(source, clock)
    polled(reader, source, barrier(P, 0, "x"))
    for offset in range(100):
        clock.now += 1
        if polled(reader, source, record(Q, offset))[0] == (0, 0):
            break
    assert clock.now == 60


@pytest.mark.parametrize("first", ["x", "y"])
def test_crossed_barriers_are_resolved_at_once_and_the_older_gives_way(first: str) -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    second = "y" if first == "x" else "x"
    # The records' times are their offsets: what P holds is older.
    polled(reader, source, barrier(P, 0, first), record(P, 1), barrier(P, 2, second), record(P, 3))
    others = [record(Q, 9), barrier(Q, 10, second), record(Q, 11), barrier(Q, 12, first)]
    assert polled(reader, source, *others) == [(1, 9)]
    step = reader.poll(BYTES, 0)
    assert named(step) == [(0, 0), (0, 1)] and step.ordered
    assert polled(reader, source) == [(0, 2), (0, 3), (1, 10), (1, 11)], "the other one holds"
    assert polled(reader, source) == [(1, 12)]
    assert reader.barriers.outcomes == {"complete": 1, "expired": 0, "crossed": 1}


def test_a_partition_that_appears_meanwhile_is_not_waited_for() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    polled(reader, source, barrier(P, 0, "x"))
    source.offsets[R] = 0
    assert polled(reader, source, record(R, 0), barrier(Q, 0, "x")) == [(0, 0), (1, 0), (2, 0)]
    assert polled(reader, source, barrier(R, 1, "x")) == [(2, 1)], "its producer knew of it after all"
    assert reader.barriers.outcomes["complete"] == 1 and not reader.state()["barriers"]


def test_what_is_remembered_and_kept_is_bounded() -> None:
    source, clock = Given(P, Q), Clock()
    reader = reader_of(source, clock)
    for i in range(LATE_MAX + 10):
        polled(reader, source, barrier(P, i, str(i)))
        clock.now += 60
        reader.poll(BYTES, 0)
    assert len(reader.barriers._late) == LATE_MAX
    source.asked.clear()
    polled(reader, source, barrier(P, 10**6, "x"), *(record(P, 10**6 + i, bytes(1000)) for i in range(1, 2000)))
    polled(reader, source)
    assert source.asked == [BYTES, 1 << 16], "what is kept leaves no room for more of others"


# -- after a restart ------------------------------------------------------------------------------------------


def test_a_restart_takes_the_steps_of_before() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    passed = [
        Passed({P: 2, Q: 1}, together=False),
        Passed({P: 3, Q: 3}, together=True),
        Passed({P: 3, Q: 4}, together=False),
    ]
    reader.follow(iter(passed))
    assert reader.state()["replaying"]
    assert polled(reader, source, *(record(Q, i) for i in range(6))) == [(1, 0)]
    assert source.held == {Q}
    assert reader.position() == {P: 0, Q: 1}
    assert polled(reader, source, record(P, 0)) == [(0, 0)]
    assert polled(reader, source, record(P, 1), record(P, 2), record(P, 3)) == [(0, 1)]
    step = reader.poll(BYTES, 0)
    assert named(step) == [(0, 2), (1, 1), (1, 2)] and step.recorded
    step = reader.poll(BYTES, 0)
    assert named(step) == [(1, 3)] and step.recorded and step.offsets == {P: 3, Q: 4}
    step = reader.poll(BYTES, 0)
    assert named(step) == [(0, 3), (1, 4), (1, 5)] and not step.recorded
    assert not reader.state()["replaying"] and source.held == frozenset()


def test_a_step_is_taken_whole_or_not_at_all() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    reader.follow(iter([Passed({P: 2, Q: 2}, together=True)]))
    assert polled(reader, source, record(P, 0), record(P, 1), record(P, 2), record(Q, 0)) == []
    assert reader.position() == {P: 0, Q: 0} and reader.lag().amount == {P: 3, Q: 1}
    assert polled(reader, source, record(Q, 1)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_lies_before_the_checkpoint_is_passed_and_gaps_are_too() -> None:
    source = Given(P, Q, begin={P: 5, Q: 5})
    reader = reader_of(source)
    passed = [Passed({P: 3, Q: 3}, True), Passed({P: 5, Q: 5}, False), Passed({P: 8, Q: 5}, True)]
    reader.follow(iter(passed))
    assert polled(reader, source, record(P, 5), record(Q, 5)) == []
    assert polled(reader, source) == []
    source.offsets[P] = 9  # what follows is no records: an aborted transaction
    assert polled(reader, source) == [(0, 5)]
    assert polled(reader, source) == [(1, 5)]


def test_nobody_is_held_when_the_log_ends_with_what_is_no_record() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    reader.follow(iter([Passed({P: 1, Q: 2}, False)]))
    assert polled(reader, source, record(P, 0), record(Q, 0)) == [(0, 0), (1, 0)]
    assert source.held == {P}
    source.offsets[Q] = 2
    assert polled(reader, source, record(P, 1)) == [(0, 1)]
    assert source.held == frozenset()


def test_barriers_within_the_log_were_passed_as_it_says() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    reader.follow(iter([Passed({P: 2, Q: 0}, True)]))
    assert polled(reader, source, barrier(P, 0, "x"), record(P, 1), barrier(P, 2, "y")) == [(0, 0), (0, 1)]
    assert polled(reader, source) == [] and reader.state()["barriers"][0]["id"] == "y"


def test_partitions_and_files_that_the_log_does_not_know_wait_and_those_that_are_gone_do_not() -> None:
    a, b, c = Partition("a.csv"), Partition("b.csv"), Partition("c.csv")
    source = Given(a, c)
    reader = reader_of(source)
    reader.follow(iter([Passed({b: 7}, False), Passed({a: 2, b: 7}, True)]))
    source.waiting += [record(c, 0), record(a, 0), record(a, 1)]
    assert [item.partition for item in reader.poll(BYTES, 0).records] == [a, a]
    assert [item.partition for item in reader.poll(BYTES, 0).records] == [c]
    topics = Given(P)
    reader = reader_of(topics)
    reader.follow(iter([Passed({P: 1, Q: 1}, False)]))
    assert polled(reader, topics, record(P, 0), record(P, 1)) == [(0, 0)]
    assert polled(reader, topics) == [], "the partition is not described yet"
    topics.offsets[Q] = 0
    assert polled(reader, topics, record(Q, 0)) == [(1, 0)]
    assert polled(reader, topics) == [(0, 1)]


@pytest.mark.parametrize("deleted", ["while it runs", "while it is down"])
def test_a_file_that_is_gone_before_a_checkpoint_has_it_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, deleted: str
) -> None:
    """What was read of it was answered, and the order log knows."""
    spool, clock = tmp_path / "spool", Clock()
    spool.mkdir()

    def start() -> tuple[OrderLog, OrderedReader]:
        source = SpoolSource(spool)
        source.open({})  # the first checkpoint, of before anything was read
        log, reader = OrderLog(tmp_path / "order"), reader_of(source, clock)
        reader.follow(log.open({}))
        return log, reader

    log, reader = start()
    (spool / "a.el").write_bytes(b"1 2\n")
    (spool / "empty.el").touch()
    step = reader.poll(BYTES, 0)
    log.record({}, [Passed(step.offsets, together=False)]).result(60)
    for name in ("a.el", "empty.el"):
        (spool / name).unlink()
    if deleted == "while it runs":
        step = reader.poll(BYTES, 0)
        assert step.offsets == {Partition("a.el"): 4}
        assert "a.el was deleted after it was read whole, and before a checkpoint covers it" in caplog.text
    log.close()
    (spool / "b.el").write_bytes(b"3 4\n")
    log, reader = start()
    for _ in range(2):
        assert not reader.poll(BYTES, 0).records
        clock.now += STALLED_S
    assert reader.waiting is not None and "in the order of then: a.el up to 4. If" in reader.waiting
    (spool / "a.el").write_bytes(b"1 2\n")
    polls = [reader.poll(BYTES, 0) for _ in range(4)]  # one of them meets it
    assert [item.value for step in polls for item in step.records] == [b"1 2\n", b"3 4\n"]
    assert reader.waiting is None and not reader.state()["replaying"]
    log.close()


def test_a_file_that_grew_after_it_was_retired_is_waited_for() -> None:
    """It is in no position before it was looked at again."""
    a, b = Partition("a.csv"), Partition("b.csv")
    source = Given(a)
    source.expected.add(b)
    reader = reader_of(source)
    reader.follow(iter([Passed({a: 1, b: 7}, True)]))
    assert polled(reader, source, record(a, 0)) == []
    source.offsets[b] = 6
    source.waiting.append(record(b, 6))
    assert [item.partition for item in reader.poll(BYTES, 0).records] == [a, b]


def test_nothing_is_behind_when_a_replay_ends() -> None:
    source = Given(P, Q)
    reader = reader_of(source)
    reader.follow(iter([Passed({P: 2, Q: 2}, True)]))
    assert polled(reader, source, record(P, 0), record(Q, 0)) == []
    assert reader.backlog() == 2
    assert polled(reader, source, record(P, 1), record(Q, 1)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert polled(reader, source) == []
    assert reader.backlog() == 0 and not any(reader.lag().amount.values())


def test_time_in_which_nothing_is_read_is_none_that_barriers_wait() -> None:
    source, clock = Given(P, Q), Clock()
    reader = reader_of(source, clock)
    assert polled(reader, source, barrier(P, 0, "x"), record(P, 1)) == []
    clock.now += 3600
    reader.barriers.postpone(3600)
    assert polled(reader, source) == []
    assert polled(reader, source, barrier(Q, 0, "x")) == [(0, 0), (0, 1), (1, 0)]
    assert reader.barriers.outcomes == {"complete": 1, "expired": 0, "crossed": 0}


def test_a_barrier_that_was_given_up_is_waited_for_no_more_after_a_restart(tmp_path: Path) -> None:
    """Also where nothing of it is read again: a checkpoint lies behind where it was given up."""
    source, clock, log = Given(P, Q), Clock(), OrderLog(tmp_path / "order")
    reader = reader_of(source, clock)
    reader.follow(log.open({"source": "s"}))
    assert polled(reader, source, barrier(P, 0, "x"), record(P, 1)) == []
    clock.now = 60.0
    given_up = reader.poll(BYTES, 0)
    log.record({}, [Passed(given_up.offsets, given_up.ordered, given_up.late)]).result(60)
    source.waiting.append(record(Q, 0))
    later = reader.poll(BYTES, 0)
    log.record({}, [Passed(later.offsets, later.ordered, later.late)]).result(60)
    log.close()
    for begin in ({P: 0, Q: 0}, given_up.offsets, later.offsets):
        source, log = Given(P, Q, begin=begin), OrderLog(tmp_path / "order")
        reader = reader_of(source)
        reader.follow(log.open({"source": "s"}))
        source.waiting = [barrier(P, 0, "x"), record(P, 1)][begin[P] :] + [record(Q, 0)][begin[Q] :]
        while reader.state()["replaying"]:
            reader.poll(BYTES, 0)
        step = polled(reader, source, barrier(Q, 1, "x"), record(Q, 2), barrier(Q, 3, "x"))
        assert step == [(1, 1), (1, 2)] and reader.barriers.late == ()
        assert polled(reader, source) == [] and reader.state()["barriers"], "the next one is waited for"
        log.close()


def test_records_that_do_not_come_again_are_named(caplog: pytest.LogCaptureFixture) -> None:
    source, clock = Given(P, Q), Clock()
    reader = reader_of(source, clock)
    reader.follow(iter([Passed({P: 3, Q: 1}, True)]))
    for _ in range(61):
        clock.now += 1
        polled(reader, source, *([record(Q, 0)] if clock.now == 1 else []))
    assert reader.position() == {P: 0, Q: 0} and reader.state()["replaying"]
    assert (
        caplog.text.count("waiting for what was read before the restart, in the order of then: t/0 up to 3. If")
        == 2
    )
    assert reader.waiting is not None and "t/0 up to 3. If" in reader.waiting
    polled(reader, source, *(record(P, offset) for offset in range(3)))
    assert reader.waiting is None and not reader.state()["replaying"]


def test_blocks_of_lines_end_where_they_ended_before() -> None:
    a, b = Partition("a.csv"), Partition("b.csv")
    source = Given(a, b)
    reader = reader_of(source)
    reader.follow(iter([Passed({a: 6, b: 0}, True), Passed({a: 6, b: 3}, True), Passed({a: 9, b: 3}, True)]))
    source.waiting += [RawRecord(a, 0, 12, b"aa\nbb\ncc\ndd\n", "csv", 0), RawRecord(b, 0, 3, b"xx\n", "csv", 0)]
    steps = [reader.poll(BYTES, 0) for _ in range(4)]
    assert [[(item.offset, item.next_offset, item.value) for item in step.records] for step in steps] == [
        [(0, 6, b"aa\nbb\n")],
        [(0, 3, b"xx\n")],
        [(6, 9, b"cc\n")],
        [(9, 12, b"dd\n")],
    ]
    assert [step.recorded for step in steps] == [True, True, True, False]


MATRIX = b"%%MatrixMarket matrix coordinate real general\n% made by hand\n9 9 4\n1 2 5\n3 4 6\n5 6 7\n7 8 9\n"


@pytest.mark.parametrize("begin", [0, MATRIX.index(b"% made"), MATRIX.index(b"9 9 4"), MATRIX.index(b"1 2")])
def test_a_replay_knows_where_the_edges_of_a_matrix_begin_wherever_blocks_ended(
    begin: int, tmp_path: Path
) -> None:
    """The line of sizes is no edge, and the first line behind a cut is one."""
    a, b = Partition("a.el"), Partition("b.el")
    (tmp_path / "a.el").write_bytes(MATRIX)
    (tmp_path / "b.el").write_bytes(b"1 2\n")
    places = [place + 1 for place, byte in enumerate(MATRIX) if byte == ord("\n") and place + 1 > begin]
    for ended in combinations(places, 2):
        source = SpoolSource(tmp_path)
        source.open({a: begin, b: 4})
        reader = reader_of(source)
        reader.follow(iter([Passed({a: place, b: 4}, True) for place in ended]))
        decoder, edges = Decoder(), list[tuple[int, int]]()
        while step := reader.poll(BYTES, 0).records:
            for item in decoder.decode_all(step):
                assert not item.bad and item.record.partition == a
                if item.block is not None:
                    edges += zip(item.block.src.tolist(), item.block.dst.tolist(), strict=True)
        assert edges == [(1, 2), (3, 4), (5, 6), (7, 8)], ended
        source.close()


def test_files_that_come_during_a_replay_come_after_those_that_were_there(tmp_path: Path) -> None:
    names = [f"{number}.el" for number in range(4)]
    a, b, c, d = (Partition(name) for name in names)
    for name in names[:3]:
        (tmp_path / name).write_bytes(b"1 2\n")
    source = SpoolSource(tmp_path)
    source.open({a: 0, b: 0})
    reader = reader_of(source)
    reader.follow(iter([Passed({a: 4, b: 0}, True)]))
    (tmp_path / names[3]).write_bytes(b"1 2\n")
    read: list[Partition] = []
    while step := reader.poll(BYTES, 0).records:
        read += [record.partition for record in step]
    assert read == [a, b, c, d]


# -- any crash ------------------------------------------------------------------------------------------------

Op = tuple[str, int, int]
State = tuple[frozenset[int], frozenset[tuple[int, int]]]
Checkpoint = tuple[Offsets, State]
Written = tuple[dict[Partition, list[RawRecord]], dict[tuple[Partition, int], list[Op]]]
"""The records of each partition, and what operations each of them holds."""


class Model:
    """Vertices and edges, operation by operation."""

    def __init__(self, state: State = (frozenset(), frozenset())) -> None:
        self.vertices, self.edges = set(state[0]), set(state[1])

    def apply(self, ops: Sequence[Op]) -> None:
        for op, u, v in ops:
            if op == "insert":
                self.vertices |= {u, v}
                self.edges.add((u, v))
            elif op == "delete":
                self.edges.discard((u, v))
            else:
                self.vertices.discard(u)
                self.edges = {edge for edge in self.edges if u not in edge}

    @property
    def state(self) -> State:
        return frozenset(self.vertices), frozenset(self.edges)


class Log(Given):
    """A source over fixed partitions with gaps, which gives some of what there is, more and more of it."""

    def __init__(
        self, rng: random.Random, records: Mapping[Partition, Sequence[RawRecord]], begin: Offsets
    ) -> None:
        super().__init__(*records, begin=begin)
        self.rng, self.records = rng, records

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        given = list[RawRecord]()
        for partition in self.rng.sample(sorted(self.records), len(self.records)):
            if partition in self.held:
                continue
            rest = [item for item in self.records[partition] if item.offset >= self.offsets[partition]]
            some = rest[: self.rng.randrange(4)]
            given += some
            if some:
                self.offsets[partition] = some[-1].next_offset
                if some[-1] is not rest[-1]:  # gaps are passed sooner or later
                    self.offsets[partition] += self.rng.randrange(rest[len(some)].offset - some[-1].offset)
        return given

    @property
    def at_end(self) -> bool:
        return all(not items or self.offsets[p] >= items[-1].next_offset for p, items in self.records.items())


def written(rng: random.Random, partitions: int) -> Written:
    """Random records; a pair stays in the partition of its source."""
    records: dict[Partition, list[RawRecord]] = {}
    ops: dict[tuple[Partition, int], list[Op]] = {}
    for number in range(partitions):
        partition, offset = Partition("t", number), 0
        records[partition] = []
        for _ in range(rng.randrange(12)):
            offset += 1 if rng.random() < 0.8 else 3
            if rng.random() < 0.15:
                records[partition].append(barrier(partition, offset, rng.choice("ab")))
                ops[partition, offset] = []
                continue
            records[partition].append(record(partition, offset))
            kinds = [rng.choice(["insert", "insert", "delete", "vertex"]) for _ in range(rng.randrange(1, 4))]
            ops[partition, offset] = [
                (kind, rng.randrange(3) * partitions + number, rng.randrange(3 * partitions)) for kind in kinds
            ]
    return records, ops


def written_in_rounds(rng: random.Random, partitions: int) -> Written:
    """Random records, where a pair is in another partition behind each barrier, as where partitions were added."""
    records: dict[Partition, list[RawRecord]] = {Partition("t", number): [] for number in range(partitions)}
    ops: dict[tuple[Partition, int], list[Op]] = {}
    for round in range(rng.randrange(2, 6)):
        for number, partition in enumerate(records):
            for _ in range(rng.randrange(4)):
                offset = len(records[partition])
                records[partition].append(record(partition, offset))
                src = rng.randrange(2) * partitions + (number + round) % partitions
                ops[partition, offset] = [(rng.choice(["insert", "delete"]), src, rng.randrange(2))]
            offset = len(records[partition])
            records[partition].append(barrier(partition, offset, str(round)))
            ops[partition, offset] = []
    return records, ops


def in_rounds(written: Written) -> State:
    """What is there at the end."""
    model, left = Model(), {partition: list(items) for partition, items in written[0].items()}
    while any(left.values()):
        for partition, items in left.items():
            while items:
                item = items.pop(0)
                model.apply(written[1][partition, item.offset])
                if item.encoding == BARRIER:
                    break
    return model.state


class Life:
    """One life of a daemon, from its newest checkpoint on, as far as the order goes.

    ``shown``: the state that the lives before have shown last, which must be reached before anything else is.
    """

    def __init__(
        self, rng: random.Random, folder: Path, written: Written, checkpoints: list[Checkpoint], shown: State
    ) -> None:
        self.rng, self.checkpoints, self.shown = rng, checkpoints, shown
        self.records, self.ops = written
        self.stands, state = checkpoints[-1]
        self.model = Model(state)
        self.source = Log(rng, self.records, self.stands)
        self.clock = Clock()
        self.reader = reader_of(self.source, self.clock)
        self.order = OrderLog(folder)
        self.reader.follow(self.order.open({"source": "s"}))

    def run(self, steps: int, patience: bool = False) -> None:
        """Make epochs of one step or several, with checkpoints between some, until so many steps are taken.

        ``patience``: no barrier is given up.
        """
        taken: list[Passed] = []
        before = True
        while steps and not (self.source.at_end and not self.reader._kept):
            self.clock.now += 0 if patience else self.rng.choice([0.1, 30])
            step = self.reader.poll(BYTES, 0)
            if before and step.records and not step.recorded:
                before = False
                if len(self.records) > 1:
                    assert self.model.state == self.shown
            together = step.ordered
            for item in step.records:
                operations = self.ops[item.partition, item.offset]
                self.model.apply(operations)
                together |= any(op == "vertex" for op, _, _ in operations)
            steps -= bool(step.records)
            if step.recorded:
                self.stands = step.offsets
            else:
                taken.append(Passed(step.offsets, together, step.late))
            if self.rng.random() < 0.6 or steps == 0:
                self._publish(taken, step.offsets)
                taken = []
        self._publish(taken, self.reader.position())

    def _publish(self, taken: list[Passed], offsets: Offsets) -> None:
        if taken:
            self.order.record(self.stands, taken).result()
            self.shown = self.model.state
        self.stands = offsets
        if self.rng.random() < 0.2:
            self.checkpoints.append((offsets, self.model.state))
            del self.checkpoints[:-2]
            self.order.cut(self.checkpoints[0][0])


@settings(deadline=None, max_examples=examples(400))
@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 4), damaged=st.booleans())
def test_whatever_was_shown_is_reached_again(seed: int, partitions: int, damaged: bool) -> None:
    """Daemons die one after the other; each must reach what those before it have shown, and goes on from there.

    ``damaged``: now and then the newest checkpoint is, so that the one before it is the beginning.
    """
    rng = random.Random(seed)
    records = written(rng, partitions)
    daemon = lives(rng, records, damaged=damaged)
    if partitions == 1:
        alone = Model()
        for item in records[0][P]:
            alone.apply(records[1][P, item.offset])
        assert daemon.model.state == alone.state


@settings(deadline=None, max_examples=examples(400))
@given(seed=st.integers(0, 2**32), partitions=st.integers(2, 4), damaged=st.booleans())
def test_what_barriers_separate_keeps_its_order_however_often_daemons_die(
    seed: int, partitions: int, damaged: bool
) -> None:
    rng = random.Random(seed)
    records = written_in_rounds(rng, partitions)
    assert lives(rng, records, damaged=damaged, patience=True).model.state == in_rounds(records)


def lives(rng: random.Random, records: Written, *, damaged: bool, patience: bool = False) -> Life:
    """The last of several daemons, which has read all."""
    checkpoints: list[Checkpoint] = [({}, Model().state)]
    shown = Model().state
    # What was written outlives a process without a sync.
    with tempfile.TemporaryDirectory() as folder, patch("os.fdatasync"), patch("os.fsync"):
        for lives_left in range(4, -1, -1):
            daemon = Life(rng, Path(folder) / "order", records, checkpoints, shown)
            try:
                daemon.run(rng.randrange(1, 8) if lives_left else 10**6, patience)
            finally:
                daemon.order.close()
            shown = daemon.shown
            if damaged and len(checkpoints) > 1 and rng.random() < 0.5:
                checkpoints.pop()
    assert daemon.source.at_end
    return daemon
