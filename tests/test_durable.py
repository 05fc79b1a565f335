"""What is on disk: a sync that failed stays failed, and what took a file's place is told."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from graphtide.daemon.durable import Replaced, Syncing, put_all_in_place, replace_file, sync_folder
from graphtide.daemon.records.spool_format import SpoolWriter


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool], number: int = errno.EIO) -> None:
    """``fails``: whether the sync of this handle does."""
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def sync(handle: int, real: Callable[[int], None] = real) -> None:
            if fails(handle):
                raise OSError(number, os.strerror(number))
            real(handle)

        monkeypatch.setattr(os, name, sync)


def is_folder(handle: int) -> bool:
    return stat.S_ISDIR(os.fstat(handle).st_mode)


@pytest.mark.parametrize("fails", [is_folder, lambda handle: not is_folder(handle)], ids=["name", "content"])
def test_a_sync_that_failed_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]
) -> None:
    with open(tmp_path / "a", "wb") as file:
        syncing = Syncing(file.fileno(), tmp_path)
        with monkeypatch.context() as patch:
            failing(patch, fails)
            with pytest.raises(OSError, match="Input/output error"):
                syncing.sync()
        with pytest.raises(OSError, match="Input/output error") as again:
            syncing.sync()
        assert again.value.errno == errno.EIO and syncing.failed and not syncing.named


def test_a_writer_knows_how_far_its_file_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path, name="a")
    end = writer.append(b"1")
    assert (writer.flushed, writer.synced) == (0, 0)
    writer.sync()
    assert writer.flushed == writer.synced == end
    failing(monkeypatch, lambda handle: True)
    later = writer.append(b"2")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            writer.sync()
        assert (writer.flushed, writer.synced) == (later, end)
    assert writer.give_up(writer.synced) and (tmp_path / "a.msgpack").stat().st_size == end
    again = SpoolWriter(tmp_path, name="a")
    assert again.flushed == again.synced == again.offset == end
    again.give_up(end)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    replace_file(path, b"1")
    with monkeypatch.context() as patch:
        failing(patch, lambda handle: not is_folder(handle), errno.ENOSPC)
        with pytest.raises(OSError, match="No space left") as full:
            replace_file(path, b"2")
        assert not isinstance(full.value, Replaced) and path.read_bytes() == b"1"
    failing(monkeypatch, is_folder)
    with pytest.raises(Replaced, match="Input/output error") as replaced:
        replace_file(path, b"3")
    assert path.read_bytes() == b"3" and replaced.value.there == (path,)


def test_of_several_files_it_is_said_which_have_their_names(tmp_path: Path) -> None:
    drafts = {tmp_path / name: tmp_path / f"{name}.tmp" for name in "abc"}
    (tmp_path / "b").mkdir()
    for draft in drafts.values():
        draft.write_bytes(b"1")
    with pytest.raises(Replaced, match="Is a directory") as replaced:
        put_all_in_place(drafts)
    assert replaced.value.there == (tmp_path / "a",)
    (tmp_path / "a").rename(tmp_path / "a.tmp")
    with pytest.raises(IsADirectoryError) as refused:
        put_all_in_place({path: draft for path, draft in drafts.items() if path.name != "a"})
    assert not isinstance(refused.value, Replaced)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_where_folders_cannot_be_synced_their_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failing(monkeypatch, is_folder, number)
    with SpoolWriter(tmp_path, name="a") as writer:
        writer.append(b"1")
    assert writer.synced == writer.offset > 0


def test_a_folder_that_may_be_written_and_not_read_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: Path | str, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refused)
    sync_folder(tmp_path)
    with SpoolWriter(tmp_path, name="a") as writer:
        writer.append(b"1")
