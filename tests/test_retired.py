"""Spool files that are done with: when they retire, what is kept of them, and what brings them back."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples
from waiting import until

from graphtide.daemon.errors import SourceError
from graphtide.daemon.ingest import retired as module
from graphtide.daemon.ingest import spool
from graphtide.daemon.ingest.barriers import Barriers
from graphtide.daemon.ingest.ordered import OrderedReader
from graphtide.daemon.ingest.retired import Gone
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.stream import Partition, Passed, RawRecord

A, B, C = (Partition(f"{name}.el") for name in "abc")


def opened(
    path: Path,
    offsets: dict[Partition, int] | None = None,
    state: bytes = b"",
    keep: int = 2,
    fingerprints: Path | None = None,
) -> SpoolSource:
    source = SpoolSource(path, checkpoints_kept=keep, fingerprints=fingerprints)
    source.open(offsets, state)
    return source


def drain(source: SpoolSource) -> list[RawRecord]:
    records: list[RawRecord] = []
    while fresh := source.poll(1 << 20, timeout_s=0):
        records += fresh
    return records


def read(source: SpoolSource) -> list[tuple[str, bytes]]:
    return [(record.partition.name, record.value or b"") for record in drain(source)]


def retire(source: SpoolSource, checkpoints: int = 2) -> None:
    for _ in range(checkpoints):
        source.checkpointed(source.position())


@pytest.fixture
def retired(tmp_path: Path) -> SpoolSource:
    """a.el and b.el, of which a.el is retired."""
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path)
    drain(source)
    retire(source)
    assert source.position() == {B: 4}
    return source


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_a_file_retires_when_every_checkpoint_that_is_kept_covers_it(tmp_path: Path, keep: int) -> None:
    for name in ("a.el", "b.el", "c.el"):
        (tmp_path / name).write_bytes(b"1 2\n")
    source = opened(tmp_path, keep=keep)
    source.checkpointed(source.position())  # of before anything was read
    drain(source)
    for number in range(keep):
        assert source.position() == {A: 4, B: 4, C: 4}, number
        source.checkpointed(source.position())
    assert source.position() == {C: 4}, "the last name stays"
    assert source.lag().amount == {C: 0}


def test_unfinished_files_do_not_retire(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n3")
    (tmp_path / "b.el.gz").write_bytes(gzip.compress(b"1 2\n")[:-3])
    (tmp_path / "c.el").write_bytes(b"1 2\n")
    (tmp_path / "d.el").write_bytes(b"")
    source = opened(tmp_path)
    drain(source)
    retire(source, 5)
    assert source.position() == {A: 4, Partition("b.el.gz"): 4, Partition("d.el"): 0}


def test_a_retired_file_is_not_new_after_a_restart(retired: SpoolSource, tmp_path: Path) -> None:
    again = opened(tmp_path, retired.position(), retired.state())
    assert read(again) == [] and again.position() == {B: 4}
    retire(again)
    assert read(opened(tmp_path, again.position(), again.state())) == []


def test_a_checkpoint_without_state_knows_by_its_offsets(retired: SpoolSource, tmp_path: Path) -> None:
    """One of before files retired, or the one before the newest."""
    for state in (b"", retired.state()):
        before = opened(tmp_path, {A: 4, B: 4}, state)
        assert read(before) == []
        retire(before)
        assert before.position() == {B: 4}


def test_a_checkpoint_of_long_before_is_replayed_from(retired: SpoolSource, tmp_path: Path) -> None:
    """Put there by hand: what it has not seen is read, whatever was retired since."""
    (tmp_path / "a.el").write_bytes(b"1 2\n5 6\n")
    assert read(opened(tmp_path, {A: 4})) == [("a.el", b"5 6\n"), ("b.el", b"3 4\n")]


def test_from_the_start_everything_is_read(retired: SpoolSource, tmp_path: Path) -> None:
    assert read(opened(tmp_path)) == [("a.el", b"1 2\n"), ("b.el", b"3 4\n")]


def test_a_retired_file_that_grows_is_taken_up_again(
    retired: SpoolSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = retired.position(), retired.state()
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"5 6\n")
    assert read(retired) == [("a.el", b"5 6\n")]
    assert "a.el grew after it was retired; it is read on from byte 4" in caplog.text
    assert retired.position() == {A: 8, B: 4}
    # A crash now, before any further checkpoint; or one that has the position of before and the state of now.
    for offsets, state in (before, (before[0], retired.state()), (retired.position(), retired.state())):
        assert read(opened(tmp_path, offsets, state)) == ([] if A in offsets else [("a.el", b"5 6\n")])
    retire(retired)
    assert retired.position() == {B: 4}
    assert read(opened(tmp_path, retired.position(), retired.state())) == []


def test_a_retired_file_that_grew_is_read_before_a_file_that_came_after(
    retired: SpoolSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer went on in the other."""
    monkeypatch.setattr(retired, "_next_to_look_at", lambda: iter(()))  # it may not be its turn
    for turn in range(2):  # it is retired anew in between
        with open(tmp_path / "a.el", "ab") as file:
            file.write(b"5 6\n")
        (tmp_path / f"c{turn}.el").write_bytes(b"7 8\n")
        assert read(retired) == [("a.el", b"5 6\n"), (f"c{turn}.el", b"7 8\n")]
        retire(retired)
        assert A not in retired.position() and list(retired._past.retired)[-1] == "a.el"


def test_a_directory_that_goes_away_as_a_file_comes_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier names offer is looked at once it is back."""
    for name in ("a.el", "b.el"):
        (tmp_path / name).write_bytes(b"1 2\n")
    source = opened(tmp_path)
    read(source)
    monkeypatch.setattr(source, "_next_to_look_at", lambda: iter(()))  # it may not be its turn
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"5 6\n")
    (tmp_path / "c.el").write_bytes(b"7 8\n")
    look = source._look

    def away(name: str) -> None:
        if name == "a.el":
            raise FileNotFoundError("another directory now")
        look(name)

    with monkeypatch.context() as patch:
        patch.setattr(source, "_look", away)
        assert read(source) == [] and source.outages == 1
    assert read(source) == [("a.el", b"5 6\n"), ("c.el", b"7 8\n")]


def names_looked_at(source: SpoolSource, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each look from now on."""
    looked = list[str]()
    look = source._look
    monkeypatch.setattr(source, "_look", lambda name: (looked.append(name), look(name)))
    return looked


def test_of_retired_files_those_that_retired_last_are_looked_at_where_files_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = with_files(20, tmp_path, monkeypatch)
    read(source)
    retire(source)
    looked = names_looked_at(source, monkeypatch)
    monkeypatch.setattr(source, "_next_to_look_at", lambda: iter(()))
    monkeypatch.setattr(spool, "LOOK_BACK_SHARE", 1e-9)
    with open(tmp_path / "00.el", "ab") as file:
        file.write(b"3 4\n")
    (tmp_path / "20.el").write_bytes(b"1 2\n")
    assert read(source) == [("00.el", b"3 4\n"), ("20.el", b"1 2\n")]
    assert sorted({*looked}) == [f"{number:02}.el" for number in range(21)]
    del looked[:]  # that took its share of the time
    (tmp_path / "21.el").write_bytes(b"1 2\n")
    assert read(source) == [("21.el", b"1 2\n")]
    assert sorted({*looked}) == ["00.el", "16.el", "17.el", "18.el", "19.el", "20.el", "21.el"]


def test_the_order_of_before_goes_through_a_retired_file_that_grew(retired: SpoolSource, tmp_path: Path) -> None:
    """A crash came before a checkpoint knew of it; until it is read a start is not over, nor is b.el read on."""
    before = retired.position(), retired.state()
    for name in ("a.el", "b.el"):
        with open(tmp_path / name, "ab") as file:
            file.write(b"5 6\n")
    passed = [Passed({A: 8, B: 4}, together=True), Passed({A: 8, B: 8}, together=True)]
    reader = OrderedReader(opened(tmp_path, *before), Barriers(60.0))
    reader.follow(iter(passed))
    steps = []
    for _ in range(10):
        assert len(steps) == 2 or reader.backlog()
        step = reader.poll(1 << 20, 0)
        steps += [[record.partition for record in step.records]] if step.records else []
    assert (steps, reader.position()) == ([[A], [B]], {A: 8, B: 8})
    assert not reader.state()["replaying"] and not reader.backlog()


def test_a_compressed_file_that_is_retired_may_get_another_member(tmp_path: Path) -> None:
    (tmp_path / "a.el.gz").write_bytes(gzip.compress(b"1 2\n"))
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path)
    drain(source)
    retire(source)
    assert source.position() == {B: 4}
    with open(tmp_path / "a.el.gz", "ab") as file:
        file.write(gzip.compress(b"5 6\n"))
    assert read(source) == [("a.el.gz", b"5 6\n")]


def test_a_retired_file_may_be_deleted_and_its_name_used_again(retired: SpoolSource, tmp_path: Path) -> None:
    before = retired.position(), retired.state()
    (tmp_path / "a.el").unlink()
    assert read(opened(tmp_path, *before)) == [], "deleted while nobody looked"
    assert read(retired) == []
    (tmp_path / "a.el").write_bytes(b"7 8\n9 1\n")
    assert read(retired) == [("a.el", b"7 8\n9 1\n")]
    for _ in range(2):
        retire(retired)
    assert read(opened(tmp_path, retired.position(), retired.state())) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_retired_file_that_shrinks_or_is_replaced_is_an_error(
    retired: SpoolSource, tmp_path: Path, restarted: bool
) -> None:
    def look() -> None:
        drain(opened(tmp_path, retired.position(), retired.state()) if restarted else retired)

    (tmp_path / "new").write_bytes(b"1 2\n")  # the same beginning: a copy of the file
    os.replace(tmp_path / "new", tmp_path / "a.el")
    look()
    (tmp_path / "a.el").write_bytes(b"1 3\n")
    with pytest.raises(SourceError, match=r"a\.el: its first 4 bytes changed"):
        look()
    (tmp_path / "a.el").write_bytes(b"1 2")
    with pytest.raises(SourceError, match=r"a\.el shrank to 3 bytes, but 4 were read"):
        look()


def test_a_file_set_aside_retires_and_stays_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.el.gz").write_bytes(b"this was never compressed")
    source = opened(tmp_path)
    assert len(drain(source)) == 1
    retire(source)
    assert source.position() == {}
    source = opened(tmp_path, {}, source.state())
    assert drain(source) == []
    (tmp_path / "a.el.gz").write_bytes(gzip.compress(b"1 2\n"))
    assert drain(source) == []
    assert "a.el.gz changed after it was set aside; to have it read, give it another name" in caplog.text
    (tmp_path / "a.el.gz").rename(tmp_path / "a2.el.gz")
    assert read(source) == [("a2.el.gz", b"1 2\n")]


def test_what_is_to_be_expected_of_a_file(retired: SpoolSource, tmp_path: Path) -> None:
    assert retired.standing(A, 4) == "covered"
    assert retired.standing(A, 5) == "expected", "it may grow"
    assert retired.standing(B, 4) == "expected"
    assert retired.standing(C, 1) == "unknown"
    (tmp_path / "c.el").write_bytes(b"")
    assert retired.standing(C, 1) == "expected", "its writer is ahead of us"
    for name in ("../a.el", "a.txt", "a\0.el", "", str(tmp_path / "a.el")):
        assert retired.standing(Partition(name), 0) == "unknown"
    assert retired.standing(Partition("a.el", 0), 0) == "unknown"


def test_a_retired_file_that_was_deleted_is_covered_as_far_as_it_was_read(
    retired: SpoolSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = retired.position(), retired.state()
    (tmp_path / "a.el").unlink()
    assert retired.standing(A, 4) == "covered", "it was not missed yet"
    drain(retired)
    while_away = opened(tmp_path, *before)
    restarted = opened(tmp_path, retired.position(), retired.state())
    for source in (retired, while_away, restarted):
        assert source.standing(A, 4) == "covered"
        assert (source.standing(A, 5), source.standing(C, 1)) == ("unknown", "unknown")
    (tmp_path / "a.el").write_bytes(b"")
    assert retired.standing(A, 4) == "expected", "another file of its name"
    monkeypatch.setattr(module, "GONE_MAX", 3)
    gone = Gone(turns=1)
    for number in range(5):
        gone.note(f"{number}.el", number)
        gone.note("1.el", 9)
        gone.turn()
    assert [number for number in range(5) if gone.covers(f"{number}.el", number)] == [1, 3, 4]


def test_whatever_the_order_log_may_name_is_known_however_many_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times as many files are deleted as are remembered for long, with the daemon away and under it."""
    monkeypatch.setattr(module, "GONE_MAX", 3)
    names = [f"{number:02}.el" for number in range(30)]
    for name in [*names, "last.el"]:
        (tmp_path / name).write_bytes(b"1 2\n")
    there = opened(tmp_path)
    drain(there)
    retire(there)
    before = there.position(), there.state()
    for name in names:
        (tmp_path / name).unlink()
    drain(there)
    after = there.position(), there.state()
    for source in (there, opened(tmp_path, *before), opened(tmp_path, *after)):
        for _ in range(3):
            assert all(source.standing(Partition(name), 4) == "covered" for name in names)
            passed = [Passed({Partition(name): 4 for name in names}, together=True)]
            reader = OrderedReader(source, Barriers(60.0))
            reader.follow(iter([Passed({}, together=False), *passed]))
            assert not reader.state()["replaying"]
            source.checkpointed(source.position())
        source.checkpointed(source.position())
        assert sum(source.standing(Partition(name), 4) == "covered" for name in names) == 3


def test_of_a_file_that_was_deleted_too_early_counts_what_the_newest_checkpoint_has(tmp_path: Path) -> None:
    for name in ("a.el", "b.el", "c.el"):
        (tmp_path / name).write_bytes(b"1 2\n")
    source = opened(tmp_path, keep=9)
    drain(source)
    (tmp_path / "c.el").unlink()
    drain(source)
    assert source.position() == {A: 4, B: 4, C: 4}, "a restart must tell whether its checkpoint has it"
    assert (source.standing(C, 4), source.standing(C, 5)) == ("expected", "unknown"), "no epoch may have it as yet"
    before = source.state()
    source.checkpointed({A: 4, B: 4})  # of an epoch before
    assert source.position() == {A: 4, B: 4, C: 4}
    source.checkpointed(source.position())
    assert source.position() == {A: 4, B: 4}
    assert source.standing(C, 4) == "covered"
    (tmp_path / "a.el").unlink()
    drain(source)
    assert source.standing(A, 4) == "covered"
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    for state in (before, source.state()):  # the next checkpoint may be of an epoch of before, too
        restarted = opened(tmp_path, {A: 4, B: 4, C: 4}, state)
        assert restarted.position() == {A: 4, B: 4} and restarted.standing(C, 4) == "covered"
        with pytest.raises(SourceError, match=r"c\.el' is gone, and the offsets end at byte 5 of it"):
            opened(tmp_path, {A: 4, B: 4, C: 5}, state)
    assert opened(tmp_path, {A: 4, B: 4}, before).standing(C, 4) == "unknown", "that one has nothing of it"


def test_a_file_that_was_deleted_too_early_may_come_again_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    source = opened(tmp_path)
    drain(source)
    (tmp_path / "a.el").unlink()
    assert read(source) == [] and source.position() == {A: 4}
    (tmp_path / "a.el").write_bytes(b"3 4\n5 6\n")
    assert read(source) == [("a.el", b"3 4\n5 6\n")] and source.position() == {A: 8}


def with_files(n: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SpoolSource:
    """So many files of one line, three of which are looked at in a turn."""
    monkeypatch.setattr(spool, "LOOKED_AT", 3)
    for number in range(n):
        (folder / f"{number:02}.el").write_bytes(b"1 2\n")
    return opened(folder)


def test_names_far_from_the_last_ones_are_looked_at_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = with_files(40, tmp_path, monkeypatch)
    assert [name for name, _ in read(source)] == [f"{number:02}.el" for number in range(40)]
    retire(source)
    assert len(source.position()) == 1
    (tmp_path / "40.el").write_bytes(b"1 2\n")
    for name in ("03.el", "40.el", "39.el"):
        with open(tmp_path / name, "ab") as file:
            file.write(b"3 4\n")
    found: set[str] = set()

    def looked() -> bool:
        found.update(name for name, _ in read(source))
        return found == {"03.el", "39.el", "40.el"}

    until(looked)
    (tmp_path / "17.el").unlink()
    until(lambda: drain(source) == [] and "17.el" not in source._past.retired)


def test_a_look_costs_no_more_however_many_files_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = with_files(100, tmp_path, monkeypatch)
    read(source)
    retire(source)
    looked = names_looked_at(source, monkeypatch)
    for _ in range(10):
        assert drain(source) == []
    assert len(looked) <= 10 * 2 * 3 and len(source.position()) == 1


# -- any history ----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=examples(40))
def test_any_history_reads_every_line_once(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Files come, grow, and are deleted once they are retired; checkpoints are made, and gone back to."""
    folder, random_ = tmp_path_factory.mktemp("history"), random.Random(seed)
    path = folder / "spool"
    written: list[bytes] = []
    applied: list[bytes] = []
    checkpoints: list[tuple[dict[Partition, int], bytes, int]] = []
    fingerprints = folder / "fingerprints"
    source = opened(path, fingerprints=fingerprints)
    names = [f"{number:03}.el" for number in range(3)]
    gone: set[str] = set()
    for step in range(100):
        match random_.choice(["write", "write", "poll", "poll", "checkpoint", "new", "delete", "restart"]):
            case "new":
                names = [*names[1:], f"{step + 10:03}.el"]
            case "write" if (name := random_.choice([*names, "000.el"])) not in gone:
                written.append(b"%d 1\n" % step)
                with open(path / name, "ab") as file:
                    file.write(written[-1])
            case "poll":
                applied += lines(source)
            case "checkpoint":
                checkpoints = [*checkpoints, (source.position(), source.state(), len(applied))][-2:]
                source.checkpointed(source.position())
            case "delete":
                for name in sorted(os.listdir(path)):
                    size = (path / name).stat().st_size
                    if (
                        Partition(name) not in source.position()
                        and source.standing(Partition(name), size) == "covered"
                    ):
                        (path / name).unlink()
                        gone.add(name)
            case "restart" if checkpoints:
                at = random_.randrange(len(checkpoints))
                offsets, state, count = checkpoints[at]
                del checkpoints[at + 1 :], applied[count:]
                source = opened(path, offsets, state, fingerprints=fingerprints)
    applied += lines(source)
    assert sorted(applied) == sorted(written)


def lines(source: SpoolSource) -> list[bytes]:
    return [line for _, value in read(source) for line in value.splitlines(keepends=True)]
