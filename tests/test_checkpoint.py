"""Checkpoints: what is written comes back, damage is noticed, the newest good one wins."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphtide.daemon.errors import CheckpointError, NotWritten
from graphtide.daemon.records.stream import Partition, Passed
from graphtide.daemon.state import checkpoint
from graphtide.daemon.state.checkpoint import FORMAT, Checkpoint, CheckpointStore, require_same
from graphtide.daemon.state.kept import KeptPrograms
from graphtide.daemon.state.order_log import OrderLog
from graphtide.daemon.tools import checkpoints


def snapshot(number: int, incarnation: int = 1) -> Checkpoint:
    return Checkpoint(
        epoch=(incarnation, number),
        offsets={"edges": {"0": 10 * number}},
        identity={"source": {"kind": "kafka", "topics": {"edges": 1}}},
        programs={"pagerank": {"tolerance": 1e-3}},
        facts={"n_vertices": 3},
        arrays={
            "graph/keys": np.arange(number, dtype=np.uint64),
            "program/pagerank/estimate": np.linspace(0, 1, 5),
            "program/pagerank/empty": np.empty(0, np.float32),
        },
    )


@pytest.fixture
def store(tmp_path: Path):
    opened = CheckpointStore(tmp_path / "checkpoints")
    yield opened
    opened.close()


def test_a_snapshot_comes_back_as_it_was(store: CheckpointStore) -> None:
    assert store.newest_good() is None
    written = snapshot(7)
    assert store.write(written) > 0
    read = store.newest_good()
    assert read is not None
    assert (read.epoch, read.offsets, read.identity, read.programs, read.facts) == (
        written.epoch,
        written.offsets,
        written.identity,
        written.programs,
        written.facts,
    )
    for name, array in written.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert read.arrays[name].dtype == array.dtype
    assert set(read.part("program/pagerank")) == {"estimate", "empty"}


def test_another_format_is_refused_and_a_newer_one_is_not_called_damaged(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for written, words in (("old", r"is damaged: .*format 'old'"), (FORMAT + 1, r"by a newer version .*format 2")):
        with monkeypatch.context() as patch:
            patch.setattr("graphtide.daemon.state.checkpoint.FORMAT", written)
            store.write(snapshot(7))
        with pytest.raises(CheckpointError, match=rf"{words}; this version reads {FORMAT}") as caught:
            store.newest_good()
    assert "damaged" not in caught.value.message and "Start that version again" in caught.value.message
    store.write(snapshot(6))
    older = store.newest_good()
    assert older is not None and older.epoch == (1, 6), "one that this version reads is gone on from"


def test_arrays_in_pieces_come_back_as_one(store: CheckpointStore) -> None:
    whole = np.arange(10, dtype=np.uint64)
    none = np.empty(0, np.float32)
    store.write(snapshot(3), {"graph/weights": [whole[:4], whole[4:4], whole[4:]], "graph/more": [none]})
    read = store.newest_good()
    assert read is not None
    np.testing.assert_array_equal(read.arrays["graph/weights"], whole)
    assert read.arrays["graph/more"].dtype == np.float32 and read.arrays["graph/more"].size == 0
    np.testing.assert_array_equal(read.arrays["graph/keys"], np.arange(3))


def test_only_the_newest_are_kept(store: CheckpointStore) -> None:
    for number in (1, 2, 11, 9):
        store.write(snapshot(number))
    names = sorted(folder.name for folder in store.path.glob("checkpoint-*"))
    assert names == ["checkpoint-1-11", "checkpoint-1-9"]
    store.write(snapshot(1, incarnation=2))
    read = store.newest_good()
    assert read is not None
    assert read.epoch == (2, 1)


def test_every_damaged_byte_is_noticed_and_the_one_before_wins(store: CheckpointStore) -> None:
    store.write(snapshot(1))
    store.write(snapshot(2))
    newest = store.path / "checkpoint-1-2"
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        for position in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            read = store.newest_good()
            assert read is not None
            assert read.epoch == (1, 1), f"a flipped bit in {path.name} at {position} went unnoticed"
        path.write_bytes(whole[:-1])
        read = store.newest_good()
        assert read is not None
        assert read.epoch == (1, 1), f"{path.name} cut short went unnoticed"
        path.write_bytes(whole)
    read = store.newest_good()
    assert read is not None
    assert read.epoch == (1, 2)


def test_all_damaged_is_an_error_and_not_an_empty_start(store: CheckpointStore) -> None:
    store.write(snapshot(1))
    (store.path / "checkpoint-1-1" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
        store.newest_good()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_one_that_cannot_be_read_is_not_called_damaged(
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    store.write(snapshot(1))

    def refused(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read: .*They may be good") as caught:
        store.newest_good()
    assert "cannot be read" in caplog.text
    assert "damaged" not in caplog.text + caught.value.message and "move" not in caught.value.message
    assert checkpoints.verify(store.path, as_json=False) == 5
    assert "cannot be read: manifest.json" in capsys.readouterr().out


def test_a_write_that_did_not_finish_is_ignored_and_cleared(store: CheckpointStore) -> None:
    store.write(snapshot(1))
    draft = store.path / "writing-1-2"
    draft.mkdir()
    (draft / "0000.npy").write_bytes(b"half")
    read = store.newest_good()
    assert read is not None
    assert read.epoch == (1, 1)
    store.close()
    again = CheckpointStore(store.path)
    assert not draft.exists()
    again.close()


def test_an_old_one_whose_deletion_is_cut_short_is_none_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that looked for one to go on from would call it damaged."""
    store = CheckpointStore(tmp_path, keep=1)
    store.write(snapshot(1))

    class Killed(BaseException):
        pass

    def cut_short(folder: Path, ignore_errors: bool = False) -> None:
        for file in folder.glob("*.npy"):
            file.unlink()
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut_short)
        with pytest.raises(Killed):
            store.write(snapshot(2))
    assert store.names() == ["checkpoint-1-2"]
    store.close()
    again = CheckpointStore(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir() if entry.is_dir()} == {"checkpoint-1-2"}
    again.close()


def test_a_checkpoint_whose_name_is_not_sure_to_last_is_taken_away(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as one of those that are kept, and be the newest of a start."""
    store.write(snapshot(1))

    def fails(folder: Path) -> None:
        if folder == store.path:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync_folder", fails)
        with pytest.raises(OSError, match="Input/output error"):
            store.write(snapshot(2))
    assert store.names() == ["checkpoint-1-1"]
    store.write(snapshot(2))
    assert store.names() == ["checkpoint-1-2", "checkpoint-1-1"]


def test_one_process_at_a_time(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="in use by another graphtide process"):
        CheckpointStore(store.path)


def test_reading_says_how_far_it_is(store: CheckpointStore) -> None:
    store.write(snapshot(7))
    shares: list[float] = []
    store.newest_good(shares.append)
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] == 1


def test_a_start_that_cannot_be_counted_names_the_key_and_the_reason(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert store.next_incarnation() == 1
    with monkeypatch.context() as patch:
        patch.setattr("graphtide.daemon.state.checkpoint.os.fsync", full)
        with pytest.raises(NotWritten, match=r"checkpoint\.path = '.*checkpoints'.*No space left on device"):
            store.next_incarnation()
    assert store.next_incarnation() == 2


@pytest.mark.parametrize("count", [b"", b"one", b"-5", b"\xff", b"9223372036854775807", b"9" * 5000])
def test_a_count_of_starts_that_is_none_goes_on_from_the_time_of_day(store: CheckpointStore, count: bytes) -> None:
    """Also one that is too large: epochs are numbers of 64 bits in answers."""
    (store.path / "incarnation").write_bytes(count)
    began = int(time.time())
    assert began < store.next_incarnation() < began + 3600


@pytest.mark.parametrize("name", ["checkpoint-99999999999999999999-1", "checkpoint-1-\u00b2", "checkpoint-1-1-1"])
def test_folders_of_other_names_are_no_checkpoints(store: CheckpointStore, name: str) -> None:
    (store.path / name).mkdir()
    assert store.names() == [] and store.newest_good() is None
    assert store.next_incarnation() == 1


def test_a_lock_that_cannot_be_had_is_said_for_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(CheckpointError, match="its file 'lock' cannot be opened: Is a directory"):
        CheckpointStore(tmp_path)

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("graphtide.daemon.folder_lock.fcntl.flock", refuse)
    with pytest.raises(CheckpointError, match="cannot be locked: No locks available"):
        CheckpointStore(tmp_path / "other")


def test_a_folder_that_is_made_anew_is_nobody_elses_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process had opened the lock when the folder was taken away, and gets it when that is let go."""
    first, really = CheckpointStore(tmp_path / "state"), fcntl.flock

    def made_anew_first(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", really)
        shutil.rmtree(first.path)
        first.require_folder()
        really(lock, how)

    monkeypatch.setattr(fcntl, "flock", made_anew_first)
    with pytest.raises(CheckpointError, match="is in use by another graphtide process"):
        CheckpointStore(first.path)
    first.close()
    CheckpointStore(first.path).close()


def no_room() -> None:
    raise NotWritten("no room for the list")


def test_what_another_process_has_taken_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder was taken away, and another daemon came first: it finds nothing of ours among its own."""
    first = CheckpointStore(tmp_path / "state")
    kept = KeptPrograms(first.path, first.require_folder)
    order = OrderLog(first.path / "order", first.require_folder)
    step = [Passed({Partition("t", 0): 1, Partition("t", 1): 1}, together=True)]
    kept.add("hops", {"name": "bfs", "source": 1})
    kept.remove("hops")
    shutil.rmtree(first.path)
    second = CheckpointStore(first.path)
    with pytest.raises(NotWritten, match=r"kept\.json' cannot be written: is in use by another"):
        kept.add("ranks", {"name": "pagerank"})
    with pytest.raises(OSError, match="is in use by another graphtide process"):
        order.record({}, step)
    assert [file.name for file in first.path.iterdir()] == ["lock"]
    second.close()
    first.made_anew = no_room
    with pytest.raises(NotWritten, match="no room for the list"):
        kept.add("ranks", {"name": "pagerank"})
    with pytest.raises(OSError, match="no room for the list"):
        order.record({}, step)
    first.made_anew = kept.write_again
    kept.add("ranks", {"name": "pagerank"})
    order.record({}, step).result()
    assert {file.name for file in first.path.iterdir()} == {"lock", "kept.json", "order"}
    order.close()
    first.close()


def test_incarnations_rise_even_without_a_checkpoint(store: CheckpointStore) -> None:
    assert [store.next_incarnation() for _ in range(3)] == [1, 2, 3]
    store.write(snapshot(1, incarnation=9))
    assert store.next_incarnation() == 10


def test_what_goes_on_from_a_copy_names_no_epoch_as_the_original_did(
    store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = int(time.time())
    store.write(snapshot(1, incarnation=store.next_incarnation()))
    checkpoints.copy(store.path, tmp_path / "copy", None, as_json=False)
    original = [store.next_incarnation() for _ in range(5)]
    copied = CheckpointStore(tmp_path / "copy", keep=2)
    try:
        first, second = copied.next_incarnation(), copied.next_incarnation()
    finally:
        copied.close()
    assert max(original) < began <= first < second == first + 1
    assert "epoch 1.1 is in" in capsys.readouterr().out


def test_other_settings_are_refused_by_name() -> None:
    saved = {"graph": {"directed": True, "weights": "any"}, "source": {"kind": "spool"}}
    require_same(saved, saved, Path("x"))
    known, made_again = ({"source": {"kind": "kafka", "topics": {"t": id, "u": "3"}}} for id in ("1", "2"))
    told = r"wrong here: topic t is another one, .*\(its id was 1, and is now 2\)\. Set settings back"
    with pytest.raises(CheckpointError, match=told):
        require_same(known, made_again, Path("x"))
    with pytest.raises(CheckpointError) as caught:
        require_same(saved, {"graph": {"directed": False, "weights": "any"}, "source": {}}, Path("x"))
    assert "graph.directed was True and is now False" in caught.value.message
    assert "source.kind was 'spool' and is now None" in caught.value.message


def test_the_oldest_offsets_are_those_of_the_same_source(tmp_path: Path) -> None:
    """Those of a source that was discarded say nothing about this one."""
    store = CheckpointStore(tmp_path, keep=5)
    try:
        for number, topic in enumerate(("old", "old", "new", "new")):
            identity = {"source": {"topic": topic}}
            store.write(replace(snapshot(number), identity=identity, offsets={"t": {"0": number}}))
        assert store.oldest_offsets({"source": {"topic": "new"}}) == {"t": {"0": 2}}
        assert store.oldest_offsets({"source": {"topic": "none"}}) is None
    finally:
        store.close()


@pytest.mark.parametrize("content", [b"", b"x\n", b"\0\0", b"\xff"])
def test_a_count_of_starts_that_is_damaged_goes_on_above_all_before(
    store: CheckpointStore, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    began, before = int(time.time()), [store.next_incarnation() for _ in range(3)]
    (store.path / "incarnation").write_bytes(content)
    found = store.next_incarnation()
    assert found > began > before[-1] and "is damaged" in caplog.text
    assert store.next_incarnation() == found + 1


@pytest.mark.parametrize("content", [b"{}\n{}", b"null", b"[]\n", b"5", b""])
def test_a_damaged_checkpoint_takes_no_place_of_those_that_are_kept(
    store: CheckpointStore, content: bytes
) -> None:
    for number in (1, 2):
        store.write(snapshot(number))
    newest = max(store.path.glob("checkpoint-*"))
    (newest / "manifest.json").write_bytes(content)
    read = store.newest_good()
    assert read is not None and read.epoch == (1, 1)
    store.write(snapshot(3))
    assert {epoch for epoch, _ in store._folders()} >= {(1, 1), (1, 3)}
    store.write(snapshot(4))
    assert {epoch for epoch, _ in store._folders()} == {(1, 3), (1, 4)}
