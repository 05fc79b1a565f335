"""The log of what recent epochs changed: whoever reads it has all of it, or knows that it has not."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from graphtide.daemon.serve import change_log
from graphtide.daemon.serve.change_log import RECORD_SHARE, ChangeLog, ChangeLogWriter
from graphtide.daemon.serve.publication import ProgramPublication, Publication
from graphtide.daemon.serve.shared_memory import SharedArray
from graphtide.gpma.index.ids import StringColumn

RING = 1 << 16


def as_ids(dense: Any) -> Any:
    return dense.astype(np.int64) + 100


def attach(writer: ChangeLogWriter) -> ChangeLog:
    place = writer.place
    return ChangeLog(SharedArray(os.dup(place.fd), place.byte_offset, place.n_items, place.dtype))


def publication(
    number: int,
    n: int,
    changed: dict[str, Any],
    *,
    moved: Any = (),
    dead: Any = (),
    state: str = "fresh",
    **scalars: float,
) -> Publication:
    indices = {name: None if some is None else np.array(some, np.uint32) for name, some in changed.items()}
    columns = {name: np.zeros(n) for name in ("a", "b")}
    program = ProgramPublication("fake", columns, indices, scalars, {"state": state})
    alive = np.ones(n, bool)
    alive[list(dead)] = False
    return Publication((1, number), n, {}, {"p": program}, {}, alive, np.array(moved, np.uint32))


def begun(ring_bytes: int = RING) -> ChangeLogWriter:
    writer = ChangeLogWriter(ring_bytes, as_ids)
    writer.record(publication(1, 10, {"a": None}), whole=False)
    return writer


def test_records_are_put_together() -> None:
    writer = begun()
    writer.record(publication(2, 10, {"a": [5, 3]}), whole=False)
    writer.record(publication(2, 10, {}), whole=False)
    writer.record(publication(3, 12, {"a": [3, 11], "b": [1]}, moved=[4, 11], dead=[4, 11]), whole=False)
    log = attach(writer)
    changes = log.between(1, 4)
    assert changes is not None and (changes.epochs, changes.n_before) == (2, 10)
    # 11 came and went: nobody has heard of it
    assert changes.alive.tolist() == [4] and np.asarray(changes.gone).tolist() == [104]
    program = changes.programs["p"]
    assert program is not None and program.scalars == frozenset()
    assert {name: some.tolist() for name, some in program.columns.items() if some is not None} == {
        "a": [3, 5, 11],
        "b": [1],
    }
    last = log.between(3, 4)
    assert last is not None and last.epochs == 1 and last.programs["p"].columns["a"].tolist() == [3, 11]  # type: ignore[union-attr]
    assert [log.sequence_of((1, number)) for number in (1, 2, 3, 4)] == [1, 2, 4, None]


def test_a_program_that_stands_still_or_goes_on_is_taken_anew_and_its_scalars_are_named() -> None:
    writer = begun()
    writer.record(publication(2, 10, {"a": [1]}, norm=1.0), whole=False)
    writer.record(publication(3, 10, {"a": [1]}, norm=2.0), whole=False)
    writer.record(publication(4, 10, {"a": [2]}, state="quarantined"), whole=False)
    writer.record(publication(5, 10, {"a": [2]}, state="quarantined"), whole=False)
    writer.record(publication(6, 10, {"a": None}, norm=2.0), whole=False)
    log = attach(writer)
    found = [log.between(number, number + 1).programs["p"] for number in range(1, 6)]  # type: ignore[union-attr]
    assert found[0].scalars == found[1].scalars == {"norm"}  # type: ignore[union-attr]
    assert found[2] is None and found[3].columns == {} and found[4] is None  # type: ignore[union-attr]
    assert log.between(1, 6).programs["p"] is None  # type: ignore[union-attr]


def test_after_a_publication_that_failed_all_is_taken_anew() -> None:
    writer = begun()
    writer.record(publication(2, 10, {"a": [1]}), whole=True)
    writer.record(publication(3, 10, {"a": [1]}), whole=False)
    log = attach(writer)
    assert log.between(1, 2) is None and log.between(1, 3) is None and log.between(2, 3) is not None


def test_while_records_are_merged_others_read_on_and_wait_for_the_same_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = begun()
    writer.record(publication(2, 10, {"a": [5, 3]}), whole=False)
    writer.record(publication(3, 10, {"a": [1]}), whole=False)
    log, merge, found = attach(writer), change_log._Union.changes, list[Any]()
    readers = [
        threading.Thread(target=lambda: found.append(log.bytes_between(1, 3))),
        threading.Thread(target=lambda: found.append(log.between(2, 3))),
        threading.Thread(target=lambda: found.append(log.between(1, 3))),
    ]

    def changes(union: Any) -> Any:
        if len(union.epochs) == 2:
            for reader in readers:
                reader.start()
            for reader in readers[:2]:
                reader.join(20)
            assert len(found) == 2
        return merge(union)

    monkeypatch.setattr(change_log._Union, "changes", changes)
    merged = log.between(1, 3)
    readers[2].join()
    assert merged is not None and found[2] is merged


def test_a_record_that_could_not_be_written_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun()
    with monkeypatch.context() as short:
        short.setattr(change_log.msgpack, "packb", lambda content: bytes(-1))
        with pytest.raises(ValueError, match="negative count"):
            writer.record(publication(2, 10, {"a": [1]}), whole=False)
    assert writer.sequence == 1
    writer.record(publication(2, 10, {"a": [1]}), whole=True)
    writer.record(publication(3, 10, {"a": [2]}), whole=False)
    log = attach(writer)
    assert writer.sequence == 3 and [log.sequence_of((1, number)) for number in (1, 2, 3)] == [1, 2, 3]
    assert log.between(1, 3) is None and log.between(2, 3) is not None


def test_what_is_too_large_is_not_even_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, packed, packb = begun(), list[int](), change_log.msgpack.packb
    monkeypatch.setattr(change_log.msgpack, "packb", lambda content: packed.append(1) or packb(content))
    n = RING // RECORD_SHARE // 4
    writer.record(publication(2, 2 * n, {"a": np.arange(n), "b": [1]}), whole=False)
    assert not packed
    writer.record(publication(3, 2 * n, {"a": None}, moved=np.arange(n + 1)), whole=False)
    assert not packed
    writer.record(publication(4, 2 * n, {"a": np.arange(n - 100)}), whole=False)
    log = attach(writer)
    assert packed and log.between(1, 2) is None and log.between(2, 3) is None and log.between(3, 4) is not None


def test_a_change_that_is_too_large_is_taken_anew() -> None:
    writer = begun()
    n = RING // RECORD_SHARE // 4
    writer.record(publication(2, n, {"a": np.arange(n)}), whole=False)
    writer.record(publication(3, n, {"a": np.arange(n // 2)}), whole=False)
    log = attach(writer)
    assert log.between(1, 2) is None and log.between(2, 3) is not None


def test_what_is_known_of_records_without_a_look_is_what_a_look_says() -> None:
    writer, rng = begun(), np.random.default_rng(9)
    log, epoch = attach(writer), 1
    for number in range(2, 200):
        epoch += int(rng.random() < 0.7)
        moved = [3] if rng.random() < 0.1 else []
        some = rng.integers(0, 100, int(rng.integers(0, 900)))
        writer.record(publication(epoch, 100, {"a": some}, moved=moved), whole=bool(rng.random() < 0.05))
        for since in {number - 1, number - min(4, number - 1), max(1, number - 60)}:
            passed, changes = log.passed(since, number), log.between(since, number)
            assert (passed is None) == (changes is None)
            if passed is not None and changes is not None:
                assert (passed.epochs, passed.has_moved) == (changes.epochs, changes.alive.size > 0)


def test_of_records_that_lie_ahead_nothing_is_known() -> None:
    """A record is written before its publication can be seen: somebody may go on from there too early."""
    writer = begun()
    for number in (2, 3):
        writer.record(publication(number, 10, {"a": [1]}), whole=False)
    log = attach(writer)
    assert log.sequence_of((1, 3)) == 3
    for since, until in ((3, 2), (3, 1), (2, 2), (3, 3)):
        assert log.passed(since, until) is None


@pytest.mark.parametrize("read_on", [True, False])
def test_what_was_overwritten_is_missing_and_all_else_is_there(read_on: bool) -> None:
    writer, rng = begun(), np.random.default_rng(5)
    log, kept = attach(writer), {1: None}
    for number in range(2, 300):
        kept[number] = np.unique(rng.integers(0, 1000, int(rng.integers(0, 500))))
        writer.record(publication(number, 1000, {"a": kept[number]}), whole=False)
        since = number - int(rng.integers(1, min(number, 60)))
        changes = log.between(since, number) if read_on else None
        if changes is not None:
            expected = np.unique(np.concatenate([kept[k] for k in range(since + 1, number + 1)]))
            assert changes.programs["p"].columns["a"].tolist() == expected.tolist()  # type: ignore[union-attr]
    newest = writer.sequence
    there = [since for since in range(1, newest) if log.between(since, newest) is not None]
    assert there == list(range(there[0], newest)) and 10 < len(there) < 290
    assert log.sequence_of((1, there[0])) is None and log.sequence_of((1, there[0] + 1)) == there[0] + 1
    later = attach(writer)
    assert later.between(there[0], newest) is not None and later.between(there[0] - 1, newest) is None


def test_the_ids_of_those_who_went_may_be_strings() -> None:
    def names(dense: Any) -> StringColumn:
        return StringColumn.of(f"v{v}" for v in dense.tolist())

    writer = ChangeLogWriter(RING, names)
    for number, moved in ((1, []), (2, [3]), (3, [7, 5])):
        writer.record(publication(number, 10, {}, moved=moved, dead=moved), whole=False)
    changes = attach(writer).between(1, 3)
    assert changes is not None and changes.gone.to_list() == ["v3", "v7", "v5"]  # type: ignore[union-attr]


def test_the_log_is_followed_some_records_at_a_time() -> None:
    writer = begun(1 << 16)
    log = attach(writer)
    for number in range(2, 12):
        writer.record(publication(number, 10, {"a": [1]}), whole=False)
    assert [log.follow(4), log.follow(4), log.follow(4), log.follow(4)] == [True, True, False, False]
    writer.record(publication(12, 10, {"a": [2]}), whole=False)
    assert log.sequence_of((1, 12)) == 12 and log.follow(4) is False
