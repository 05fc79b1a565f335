"""What is on disk, and what may not be: the one rule for everybody who syncs.

A sync that failed is not asked again. The system may have dropped what it could not write, and says of the next
sync that all is well. So whatever was written since the last sync that succeeded is written again, to another
file, by whoever still has it; who has it no more ends, or says so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path


class Replaced(OSError):
    """New files stand in the place of old ones; which are found after a loss of power is not known."""

    there: tuple[Path, ...] = ()
    """The new ones."""


class Syncing:
    """Makes durable what is appended to one file, and the file's name.

    After a sync that failed each one fails: what was written since the last that did not goes to another file.
    """

    def __init__(self, handle: int, folder: Path) -> None:
        """``handle``: of the file, in ``folder``."""
        self._handle = handle
        self._folder = folder
        self._failed: OSError | None = None
        self.named = False
        """The file's name is durable."""

    @property
    def failed(self) -> bool:
        """A sync failed."""
        return self._failed is not None

    def sync(self) -> None:
        """Return once everything that was written is on disk.

        Raises:
            OSError: it may never be.
        """
        if self._failed is not None:
            raise OSError(self._failed.errno, self._failed.strerror)
        try:
            os.fdatasync(self._handle)
            if not self.named:
                sync_folder(self._folder)
        except OSError as error:
            self._failed = error
            raise
        self.named = True


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are durable, as far as one can ask for it: some file systems know no such
    thing, and who may write to a folder may perhaps not read it.

    Raises:
        OSError: they are not.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Return once what a file holds is on disk, whoever wrote it.

    Raises:
        OSError: it may never be.
    """
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write_again(path: Path, start: int, stop: int) -> None:
    """Make these bytes of a file durable, and its name, where a sync of whoever wrote them may have failed: what
    the system did not write then it may still show, and never write unless it is told anew.

    Raises:
        OSError: it cannot be done.
    """
    with open(path, "r+b", buffering=0) as file:
        while start < stop:
            start += os.pwrite(file.fileno(), os.pread(file.fileno(), min(stop - start, 1 << 20), start), start)
        os.fdatasync(file.fileno())
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Make a file of this content, which is durable but for its name. One that failed is made anew.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes, *, written: Callable[[], None] = lambda: None) -> None:
    """Put a file in the place of one that may be there, as a whole and durably, by way of ``<name>.new``.

    ``written`` is called when the other file is on disk, before it takes the place.

    Raises:
        Replaced: see there.
        OSError: all is as before.
    """
    fresh = path.with_suffix(".new")
    write_synced(fresh, content)
    written()
    put_all_in_place({path: fresh})


def put_all_in_place(drafts: Mapping[Path, Path]) -> None:
    """Give files of one folder, which are synced, the names that they are to have, durably.

    Raises:
        Replaced: some have them, see there; the others are where they were.
        OSError: none has.
    """
    there: list[Path] = []
    try:
        for path, draft in drafts.items():
            os.replace(draft, path)
            there.append(path)
        for folder in {path.parent for path in there}:
            sync_folder(folder)
    except OSError as error:
        if not there:
            raise
        replaced = Replaced(error.errno, error.strerror, error.filename)
        replaced.there = tuple(there)
        raise replaced from error
