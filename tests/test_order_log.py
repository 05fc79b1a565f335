"""The order log's files: what is read back is what was recorded, whatever was torn, damaged, cut or discarded."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
from power_cuts import PowerCut

from graphtide.daemon.cli import NO_ROOM, exit_code
from graphtide.daemon.engine.recording import Recording
from graphtide.daemon.errors import CheckpointError, NotWritten
from graphtide.daemon.ingest.prepared import Prepared
from graphtide.daemon.records.spool_format import frame
from graphtide.daemon.records.stream import LateBarrier, Partition, Passed
from graphtide.daemon.state import order_log
from graphtide.daemon.state.order_log import VERSION, OrderLog

P, Q = Partition("t", 0), Partition("t", 1)
FILE = Partition("edges.csv")
IDENTITY = {"source": {"kind": "kafka", "topics": {"t": "id"}}, "graph": {"directed": True}}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[OrderLog]]:
    """Logs that are closed at the end."""
    made: list[OrderLog] = []
    yield made
    for log in made:
        log.close()


def open_log(path: Path, opened: list[OrderLog], identity: object = IDENTITY) -> tuple[OrderLog, list[Passed]]:
    log = OrderLog(path)
    opened.append(log)
    return log, list(log.open(identity))  # type: ignore[arg-type]


def at(p: int, q: int, *, together: bool = False) -> Passed:
    return Passed({P: p, Q: q}, together)


def record(log: OrderLog, *passed: Passed) -> None:
    log.record(log._newest.offsets, passed).result(60)


def newest(path: Path) -> Path:
    return max(path.glob("*.log"))


def test_what_was_recorded_is_read_back(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, found = open_log(tmp_path / "order", opened)
    assert found == []
    record(log, at(1, 0))
    record(log, at(2, 1), at(2, 3, together=True), at(4, 4))
    record(log, at(5, 4), at(6, 4))
    _, found = open_log(tmp_path / "order", opened)
    assert found == [Passed({}, False), at(2, 1), at(2, 3, together=True), at(6, 4)]


def test_a_step_begins_where_the_stream_stood_whether_that_was_logged_or_not(
    tmp_path: Path, opened: list[OrderLog]
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    log.record({P: 5, Q: 4}, [at(6, 6, together=True)]).result(60)
    _, found = open_log(tmp_path / "order", opened)
    assert found[-3:] == [at(1, 1, together=True), at(5, 4), at(6, 6, together=True)]


def test_one_partition_needs_no_order_and_one_file_may_be_joined_by_another(
    tmp_path: Path, opened: list[OrderLog]
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    for together in (False, True):
        assert log.record({}, [Passed({P: 7}, together)]).done()
    assert not log.folder.exists()
    assert log.record({}, [Passed({FILE: 7}, True)]).done(), "nor does it wait for a disk"
    _, found = open_log(tmp_path / "order", opened)
    assert found[-1] == Passed({FILE: 7}, False)


def test_the_newest_vector_takes_no_more_room_than_one(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(100, 100))
    size = newest(log.folder).stat().st_size
    for offset in range(101, 120):
        record(log, at(offset, offset))
    assert newest(log.folder).stat().st_size == size


def test_files_come_and_go_whatever_their_names(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    odd = Partition(os.fsdecode(b"\xff.csv"))
    record(log, Passed({FILE: 5, odd: 2}, True))
    record(log, Passed({odd: 1 << 40}, False))
    _, found = open_log(tmp_path / "order", opened)
    assert found[-1] == Passed({FILE: 5, odd: 1 << 40}, False), "a file that was read whole stays as it was"


def test_a_torn_tail_is_cut_off_at_whatever_byte(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    synced = newest(log.folder).stat().st_size
    record(log, at(2, 2), at(3, 3, together=True), at(4, 3))
    content = newest(log.folder).read_bytes()
    whole = list(open_log(log.folder, opened)[1])
    for end in range(0, len(content), 7):
        for torn in (content[:end], content[:end] + bytes(len(content) - end)):
            folder = tmp_path / f"torn-{end}-{len(torn)}"
            folder.mkdir()
            (folder / newest(log.folder).name).write_bytes(torn)
            again, found = open_log(folder, opened)
            assert found == whole[: len(found)]
            assert end < synced or at(1, 1, together=True) in found
            record(again, at(9, 9, together=True))
            assert open_log(folder, opened)[1][-1] == at(9, 9, together=True)
            while len(opened) > 1:
                opened.pop().close()


def test_files_that_are_done_with_do_not_keep_the_log(tmp_path: Path, opened: list[OrderLog]) -> None:
    """They are in no later position, and so in no checkpoint."""
    log, _ = open_log(tmp_path / "order", opened)
    files = [Partition(f"{number:03}.el") for number in range(60)]
    for before, present, after in zip(files, files[1:], files[2:], strict=False):
        log.record({before: 9, present: 9}, [Passed({present: 9, after: 9}, True)]).result(10)
        log.cut({after: 9})
    assert len(list(log.folder.glob("*.log"))) <= 4


def test_a_checkpoint_cuts_what_the_oldest_kept_one_covers(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    for number in range(1, 7):
        record(log, at(10 * number, 10 * number, together=True))
        log.cut({P: 10 * number - 10, Q: 10 * number - 10})
    record(log, at(70, 65, together=True))
    assert len(list(log.folder.glob("*.log"))) == 2
    _, found = open_log(log.folder, opened)
    assert found == [at(50, 50), at(60, 60, together=True), at(60, 60), at(70, 65, together=True)]
    again, _ = open_log(log.folder, opened)
    again.cut({P: 69, Q: 65})
    record(again, at(80, 65, together=True))
    assert len(list(log.folder.glob("*.log"))) == 2, "what is not covered stays"
    again.cut({P: 70, Q: 65})
    record(again, at(90, 65, together=True))
    assert open_log(log.folder, opened)[1] == [
        at(70, 65), at(80, 65, together=True), at(80, 65), at(90, 65, together=True)
    ]  # fmt: skip


def test_a_log_of_another_source_is_not_used(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    other, found = open_log(tmp_path / "order", opened, {"source": {"kind": "kafka", "topics": {"t": "anew"}}})
    assert found == [] and "another source" in caplog.text
    record(other, at(0, 1, together=True))
    assert open_log(tmp_path / "order", opened)[1] == []


def test_late_barriers_are_kept_as_long_as_they_are_late(tmp_path: Path, opened: list[OrderLog]) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    late = (LateBarrier("t", "x", (1,)), LateBarrier("t", "y", (0, 1)))
    record(log, Passed({P: 1, Q: 0}, True, late[:1]))
    record(log, Passed({P: 2, Q: 1}, False, late))
    assert [passed.late for passed in open_log(log.folder, opened)[1]] == [(), late[:1], late]
    log.cut({P: 2, Q: 1})
    record(log, Passed({P: 3, Q: 2}, False, late))
    log._syncing.submit(int).result(10)
    again, found = open_log(log.folder, opened)
    assert found == [Passed({P: 2, Q: 1}, False, late), Passed({P: 3, Q: 2}, False, late)]
    record(again, Passed({P: 4, Q: 3}, True, late[1:]), Passed({P: 5, Q: 4}, False))
    assert [passed.late for passed in open_log(log.folder, opened)[1][-3:]] == [late, late[1:], ()]


def test_segments_stay_until_the_next_one_has_begun(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they know of late barriers is in no other file before."""
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1), at(2, 3, together=True))
    (first,) = log.folder.glob("*.log")
    log.cut({P: 2, Q: 3})

    def interrupted(self: OrderLog) -> None:
        assert first.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OrderLog, "_begin_segment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.record({P: 2, Q: 3}, [at(3, 3)])
    assert first.exists()
    real = os.fdatasync
    with monkeypatch.context() as patch:
        patch.setattr(order_log.os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            record(log, at(4, 5, together=True))
        assert first.exists(), "what the next one says may be lost"
        log.undo()
        synced = list[int]()
        patch.setattr(order_log.os, "fdatasync", lambda handle: synced.append(handle) or real(handle))
        record(log, at(4, 5, together=True))
        assert synced
    log.cut({P: 2, Q: 3})
    record(log, at(5, 5, together=True))
    assert not first.exists()


def test_a_log_of_a_newer_version_is_refused_and_stays(tmp_path: Path, opened: list[OrderLog]) -> None:
    path = tmp_path / "order" / f"{1:020}.log"
    path.parent.mkdir()
    path.write_bytes(content := frame(msgpack.packb({"v": VERSION + 1, "whatever": "comes"})))
    refused = (
        rf"{path}' was written by a newer version .* format {VERSION + 1}; this version reads {VERSION}\. "
        r"Start that version again; or move the folder 'order' away, .* or give this one another checkpoint\.path"
    )
    with pytest.raises(CheckpointError, match=refused):
        open_log(tmp_path / "order", opened)
    assert path.read_bytes() == content


def test_a_damaged_segment_does_not_hide_the_next(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    for number in range(1, 4):
        record(log, at(number, number, together=True))
        log.cut({})
    first = min(log.folder.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[20] ^= 1
    first.write_bytes(content)
    _, found = open_log(log.folder, opened)
    assert found == [at(1, 1), at(2, 2, together=True), at(2, 2), at(3, 3, together=True)]
    assert "is damaged at byte" in caplog.text


def damaged(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("byte", [0, 3, 5, 12, 60])
def test_a_newest_segment_that_is_damaged_at_its_beginning_is_not_lost_silently(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture, byte: int
) -> None:
    """No crash does that: what stands behind was written and synced later."""
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    log.cut({})
    record(log, at(2, 2, together=True))
    record(log, at(3, 3, together=True))
    path = newest(log.folder)
    damaged(path, byte)
    content = path.read_bytes()
    again, found = open_log(log.folder, opened)
    assert found[-1] == at(1, 1, together=True)
    assert f"{path} is damaged at its beginning" in caplog.text
    assert path.with_suffix(".damaged").read_bytes() == content
    record(again, at(2, 3, together=True))
    assert open_log(log.folder, opened)[1][-1] == at(2, 3, together=True)
    assert caplog.text.count("damaged at its beginning") == 1


def test_a_newest_segment_that_a_crash_left_without_a_beginning_is_nothing_to_tell(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    log.cut({})
    record(log, at(2, 2))
    path, content = newest(log.folder), newest(log.folder).read_bytes()
    for torn in (b"", content[:5], content[:70], bytes(len(content)), content[:70] + bytes(200)):
        path.write_bytes(torn)
        assert open_log(log.folder, opened)[1][-1] == at(1, 1, together=True)
        assert not path.exists()
        opened.pop().close()
    assert not caplog.text


def test_damage_within_the_newest_segment_is_told_from_a_torn_end(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True))
    end = newest(log.folder).stat().st_size
    record(log, at(2, 2, together=True))
    record(log, at(3, 3, together=True))
    damaged(newest(log.folder), end + 12)
    assert open_log(log.folder, opened)[1][-1] == at(1, 1, together=True)
    assert f"is damaged at byte {end}: what was answered since may come again in another order" in caplog.text


def test_what_a_start_goes_along_is_on_disk(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have died before that; and nothing of it is written again."""
    log, _ = open_log(tmp_path / "order", opened)
    record(log, at(1, 1, together=True), at(2, 1))
    synced, real = set[int](), os.fdatasync
    monkeypatch.setattr(
        order_log.os, "fdatasync", lambda handle: synced.add(os.fstat(handle).st_ino) or real(handle)
    )
    assert open_log(log.folder, opened)[1][-1] == at(2, 1)
    assert newest(log.folder).stat().st_ino in synced


# -- a disk that does not take it -----------------------------------------------------------------------------


def item(p: int, q: int, *, together: bool, recorded: bool = False) -> Prepared:
    return Prepared(
        batches=[],
        updates=0,
        n_vertices=0,
        offsets={P: p, Q: q},
        record_times_ms=np.zeros(0, np.int64),
        record_updates=np.zeros(0, np.int64),
        together=together,
        recorded=recorded,
    )


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_waited_for_with_one_line(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    recording = Recording(log, threading.Event(), lambda: None)
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    tries = 0
    shown: list[str | None] = []
    real = os.pwrite

    def taken_at_last(*arguments: object) -> int:
        nonlocal tries
        tries += 1
        return full() if tries < 5 else real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(order_log.os, "pwrite", taken_at_last)
    recording.begin(log._newest.offsets, [item(1, 1, together=True)], lambda: shown.append(recording.trouble))
    assert len(shown) == 1 and shown[0] is not None
    assert "cannot be written: No space left on device" in shown[0]
    assert recording.finish(lambda: None) >= 0 and recording.trouble is None
    assert caplog.text.count("No space left") == 1
    assert open_log(log.folder, opened)[1][-1] == at(1, 1, together=True)


def test_an_epoch_is_durable_where_the_system_grants_no_thread(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever records it waits for the disk then."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log, _ = open_log(tmp_path / "order", opened)
    real, synced = os.fdatasync, list[int]()
    monkeypatch.setattr(order_log.os, "fdatasync", lambda handle: (synced.append(handle), real(handle)))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert log.record(log._newest.offsets, [at(1, 1, together=True)]).done()
        assert len(synced) == 1
        patch.setattr(order_log.os, "fdatasync", full)
        failed = log.record(log._newest.offsets, [at(2, 2, together=True)])
        with pytest.raises(OSError, match="No space left"):
            failed.result(0)
        log.undo()
    record(log, at(2, 2, together=True))
    assert open_log(log.folder, opened)[1][-1] == at(2, 2, together=True)


def test_a_disk_that_takes_the_log_again_is_told_of_however_fast_it_is(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    recording = Recording(log, threading.Event(), lambda: None)
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    with monkeypatch.context() as patch:
        patch.setattr(order_log.os, "pwrite", full)
        recording.begin(log._newest.offsets, [item(1, 1, together=True)], patch.undo)
    log._syncing.submit(int).result(10)  # it is on disk before anybody waits for it
    assert recording.finish(lambda: None) == 0.0
    assert recording.trouble is None


def test_a_failed_sync_is_tried_again_in_another_file(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    recording = Recording(log, threading.Event(), lambda: None)
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    recording.begin(log._newest.offsets, [item(1, 1, together=True)], lambda: None)
    recording.finish(lambda: None)
    real, failed = os.fdatasync, list[int]()

    def fails_once(handle: int) -> None:
        if not failed:
            failed.append(handle)
            full()
        real(handle)

    monkeypatch.setattr(order_log.os, "fdatasync", fails_once)
    recording.begin(log._newest.offsets, [item(2, 2, together=True)], lambda: None)
    shown: list[str | None] = []
    recording.finish(lambda: shown.append(recording.trouble))
    assert recording.trouble is None and len(shown) == 1 and "No space left" in str(shown[0])
    assert failed and len(list(log.folder.glob("*.log"))) == 2
    found = open_log(log.folder, opened)[1]
    assert found[-2:] == [at(1, 1), at(2, 2, together=True)]


def test_a_disk_that_refuses_fast_is_told_of_once(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    recording = Recording(log, threading.Event(), lambda: None)
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    syncing, real, tries = log._syncing, os.fdatasync, list[int]()

    def refuses_thrice(handle: int) -> None:
        tries.append(handle)
        full() if len(tries) <= 3 else real(handle)

    def over_at_once(*what: Any) -> Future[Any]:
        """A sync that has ended before anybody looks."""
        future = syncing.submit(*what)
        wait([future])
        return future

    monkeypatch.setattr(order_log.os, "fdatasync", refuses_thrice)
    monkeypatch.setattr(log, "_syncing", SimpleNamespace(submit=over_at_once, shutdown=syncing.shutdown))
    recording.begin(log._newest.offsets, [item(1, 1, together=True)], lambda: None)
    recording.finish(lambda: None)
    assert recording.trouble is None
    assert caplog.text.count("No space left") == 1


def test_a_disk_that_does_not_answer_is_told_of_and_waited_for(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by who is to stop: the log cannot be closed before."""
    log, _ = open_log(tmp_path / "order", opened)
    turns, shown, answers = list[int](), list[str | None](), threading.Event()
    stop = threading.Event()

    def turn() -> None:
        turns.append(1)
        stop.set()
        if len(turns) == 3:
            answers.set()

    recording = Recording(log, stop, turn)
    for name in ("RETRY_S", "LONG_S"):
        monkeypatch.setattr(f"graphtide.daemon.engine.recording.{name}", 0.001)
    real = os.fdatasync

    def in_time(handle: int) -> None:
        assert answers.wait(60)
        real(handle)

    monkeypatch.setattr(order_log.os, "fdatasync", in_time)
    recording.begin(log._newest.offsets, [item(1, 1, together=True)], lambda: None)
    recording.finish(lambda: shown.append(recording.trouble))
    assert len(turns) >= 3 and recording.trouble is None
    assert len(shown) == 1 and "its disk has not answered for" in str(shown[0])
    assert caplog.text.count("has not answered") == 1
    assert open_log(log.folder, opened)[1][-1] == at(1, 1, together=True)


def test_a_write_that_does_not_return_is_told_of_by_who_watches(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds the engine's thread, which can neither say so nor show that it is well."""
    log, _ = open_log(tmp_path / "order", opened)
    turns, hangs, answers = list[int](), threading.Event(), threading.Event()
    recording = Recording(log, threading.Event(), lambda: turns.append(1))
    monkeypatch.setattr("graphtide.daemon.long_waits.LONG_S", 0.0)
    real = os.pwrite

    def in_time(*arguments: Any) -> int:
        hangs.set()
        assert answers.wait(60)
        return real(*arguments)

    monkeypatch.setattr(order_log.os, "pwrite", in_time)
    engine = threading.Thread(
        target=recording.begin, args=(log._newest.offsets, [item(1, 1, together=True)], lambda: None)
    )
    engine.start()
    assert hangs.wait(60)
    for _ in range(3):
        recording.watch()
    assert recording.trouble is not None and "writing the order log" in recording.trouble
    assert len(turns) == 3 and caplog.text.count("epochs wait meanwhile: writing the order log") == 1
    answers.set()
    engine.join()
    recording.watch()
    assert recording.trouble is None and len(turns) == 3
    recording.finish(lambda: None)
    assert open_log(log.folder, opened)[1][-1] == at(1, 1, together=True)


def test_a_disk_that_refuses_at_last_is_told_of_as_that(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a file system over the network, whose server comes back with other news."""
    log, _ = open_log(tmp_path / "order", opened)
    shown, silent, tries = list[str | None](), threading.Event(), list[int]()
    recording = Recording(log, threading.Event(), silent.set)
    for name in ("RETRY_S", "LONG_S"):
        monkeypatch.setattr(f"graphtide.daemon.engine.recording.{name}", 0.001)
    real = os.fdatasync

    def refuses_at_last(handle: int) -> None:
        assert silent.wait(60)
        tries.append(handle)
        full() if len(tries) <= 2 else real(handle)

    monkeypatch.setattr(order_log.os, "fdatasync", refuses_at_last)
    recording.begin(log._newest.offsets, [item(1, 1, together=True)], lambda: None)
    recording.finish(lambda: shown.append(recording.trouble))
    assert ["has not answered" in str(one) for one in shown] == [True, False] and "No space left" in str(shown[1])
    assert caplog.text.count("has not answered") == caplog.text.count("No space left") == 1
    assert recording.trouble is None


def test_nothing_is_certain_in_a_segment_that_could_not_be_synced(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning may be lost, whatever the next sync says."""
    log, _ = open_log(tmp_path / "order", opened)
    monkeypatch.setattr("graphtide.daemon.engine.recording.RETRY_S", 0.001)
    with monkeypatch.context() as patch:
        patch.setattr(order_log.os, "fdatasync", full)
        record(log, at(1, 1))  # which nobody waits for
        log._syncing.submit(int).result(10)
    recording = Recording(log, threading.Event(), lambda: None)
    recording.begin(log._newest.offsets, [item(2, 3, together=True)], lambda: None)
    recording.finish(lambda: None)
    first, *_ = sorted(log.folder.glob("*.log"))
    first.unlink()
    assert open_log(log.folder, opened)[1][-2:] == [at(1, 1), at(2, 3, together=True)]


def test_steps_that_were_shown_outlive_a_loss_of_power_whatever_syncs_fail(
    tmp_path: Path, seed: int, run_long: bool
) -> None:
    for number in range(300 if run_long else 15):
        with pytest.MonkeyPatch.context() as patch:
            lives_of_a_log(tmp_path / str(number), np.random.default_rng([seed, number]), PowerCut(patch))


def lives_of_a_log(folder: Path, rng: np.random.Generator, power: PowerCut) -> None:
    """Three, which end by a kill, a loss of power or in order."""
    rate = float(rng.choice([0.0, 0.1, 0.4]))
    shown: list[tuple[Passed, Passed]] = []
    position = [0, 0]
    for _ in range(3):
        log = OrderLog(folder)
        list(log.open(IDENTITY))
        power.fails = lambda: bool(rng.random() < rate)
        for _ in range(int(rng.integers(1, 25))):
            before = at(*position)
            steps = [before]
            for _ in range(int(rng.integers(1, 4))):
                position = [
                    offset + int(more) for offset, more in zip(position, rng.integers(0, 3, 2), strict=True)
                ]
                steps.append(at(*position, together=bool(rng.random() < 0.4)))
            while True:
                try:
                    log.record(before.offsets, steps[1:]).result(60)
                    break
                except OSError:
                    log.undo()
            shown += [
                (at(*first.offsets.values()), step) for first, step in itertools.pairwise(steps) if step.together
            ]
            if rng.random() < 0.5:
                log._sync_at = 0.0
            if rng.random() < 0.2:
                log.cut({})
        how = rng.choice(["kill", "power", "order"])
        if how == "order":
            log.close()
        log._syncing.shutdown()
        if log._segment is not None:
            os.close(log._segment.handle)
        power.fails = lambda: False
        if how == "power":
            power.cut(folder)
        log = OrderLog(folder)
        found = [Passed(passed.offsets, passed.together) for passed in log.open(IDENTITY)]
        log.close()
        there = {
            (tuple(first.offsets.items()), tuple(step.offsets.items()))
            for first, step in itertools.pairwise(found)
            if step.together
        }
        for first, step in shown:
            assert (tuple(first.offsets.items()), tuple(step.offsets.items())) in there, how


def test_a_disk_that_syncs_nothing_gets_no_file_for_each_epoch(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    now = 100.0
    monkeypatch.setattr(order_log.time, "monotonic", lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(order_log.os, "fdatasync", full)
        for epoch in range(1, 41):
            now += order_log.SYNC_INTERVAL_S / 10
            record(log, at(epoch, epoch))
            log._syncing.submit(int).result(10)
    assert 2 <= len(list(log.folder.glob("*.log"))) <= 6
    now += order_log.SYNC_INTERVAL_S
    record(log, at(41, 41))
    log._syncing.submit(int).result(10)
    assert log._segment is not None and log._segment.syncing.named
    assert open_log(log.folder, opened)[1][-1] == at(41, 41)


@pytest.mark.parametrize("what", ["folder", "segment", "rename"])
def test_what_was_taken_away_is_begun_anew_before_an_epoch_is_shown(
    tmp_path: Path, opened: list[OrderLog], caplog: pytest.LogCaptureFixture, what: str
) -> None:
    log, _ = open_log(tmp_path / "state" / "order", opened)
    record(log, at(1, 1, together=True))
    record(log, at(2, 1))
    if what == "folder":
        shutil.rmtree(log.folder.parent)
    elif what == "segment":
        newest(log.folder).unlink()
    else:
        log.folder.rename(tmp_path / "elsewhere")
    record(log, at(3, 3, together=True))
    assert [line.getMessage().endswith("taken away; it is begun anew") for line in caplog.records] == [True]
    assert open_log(log.folder, opened)[1] == [at(2, 1), at(3, 3, together=True)]


def test_a_stop_ends_the_wait_and_the_epoch_is_not_shown(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    stop = threading.Event()
    recording = Recording(log, stop, lambda: None)
    monkeypatch.setattr(order_log.os, "pwrite", full)
    with pytest.raises(NotWritten, match="No space left on device; stopped before it could be") as stopped:
        recording.begin(log._newest.offsets, [item(1, 1, together=True)], stop.set)
    assert exit_code(stopped.value) == NO_ROOM, "a disk that is full is not a checkpoint that cannot be used"


def test_what_needs_no_order_does_not_wait(
    tmp_path: Path, opened: list[OrderLog], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = open_log(tmp_path / "order", opened)
    recording = Recording(log, threading.Event(), lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(order_log.os, "pwrite", full)
        for offset in (1, 2):
            recording.begin(log._newest.offsets, [item(offset, 0, together=False)], lambda: None)
            assert recording.finish(lambda: None) == 0.0
    assert caplog.text.count("cannot be written") == 1
    recording.begin(log._newest.offsets, [item(9, 9, together=True, recorded=True)], lambda: None)
    assert recording.finish(lambda: None) == 0.0
    assert not newest(log.folder).stat().st_size, "what the log has is not written again"
    recording.begin(log._newest.offsets, [item(3, 1, together=True)], lambda: None)
    recording.finish(lambda: None)
    assert open_log(log.folder, opened)[1][-2:] == [at(2, 0), at(3, 1, together=True)]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, opened: list[OrderLog]) -> None:
    (tmp_path / "order").mkdir()
    (tmp_path / "order" / f"{1:020}.log").mkdir()
    with pytest.raises(CheckpointError, match="cannot be used"):
        open_log(tmp_path / "order", opened)
