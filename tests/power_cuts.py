"""What a loss of power leaves of files, where syncs may fail."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

_UNLINK = os.unlink


class PowerCut:
    """Knows what is on disk: what was synced. Where a sync fails the system drops what it could not write, and
    takes it for written: the next sync says that all is well, and does not write it, unless ``os.pwrite`` told it
    those bytes anew.

    ``fails`` is asked at each sync, of files and of folders. A name is there once its folder was synced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: Callable[[], bool] = lambda: False
        self._on_disk: dict[str, bytes] = {}
        self._taken_for_written: dict[str, bytes] = {}
        self._told_anew: dict[str, set[int]] = {}
        self._named: set[str] = set()
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "fdatasync", self._sync)
        monkeypatch.setattr(os, "unlink", self._unlink)
        monkeypatch.setattr(os, "pwrite", self._tell)

    def left(self, file: Path) -> bytes | None:
        """Of this file; None: nothing, not even its name."""
        return self._on_disk.get(str(file), b"") if str(file) in self._named else None

    def cut(self, folder: Path) -> None:
        """Leave of the files of a folder what there is on disk."""
        for file in [file for file in folder.iterdir() if file.is_file()]:
            content = self.left(file)
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
                self._taken_for_written[str(file)] = content

    def _sync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        failed = self.fails()
        if is_folder and not failed:
            self._named = {name for name in self._named if Path(name).parent != Path(path)}
            self._named |= {str(file) for file in Path(path).iterdir()}
        elif not is_folder and os.path.exists(path):
            self._write(path, Path(path).read_bytes(), lost=failed)
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _tell(self, handle: int, content: bytes, offset: int) -> int:
        told = self._told_anew.setdefault(os.readlink(f"/proc/self/fd/{handle}"), set())
        told.update(range(offset, offset + len(content)))
        return self._pwrite(handle, content, offset)

    def _unlink(self, path: os.PathLike[str] | str) -> None:
        """Another file of that name shares nothing with it."""
        _UNLINK(path)
        for known in (self._on_disk, self._taken_for_written):
            known.pop(str(path), None)

    def _write(self, path: str, content: bytes, *, lost: bool) -> None:
        """What was not written already, or is taken for it, comes to the disk, unless it is lost."""
        known = self._taken_for_written.get(path, b"")
        self._taken_for_written[path] = content
        told = self._told_anew.pop(path, set())
        if not lost:
            there = self._on_disk.get(path, b"").ljust(len(content), b"\0")
            same = [at < len(known) and known[at] == byte and at not in told for at, byte in enumerate(content)]
            self._on_disk[path] = bytes(there[at] if same[at] else byte for at, byte in enumerate(content))


def times(n: int) -> Callable[[], bool]:
    """True so often."""
    left = n

    def fails() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    return fails
