"""Which files a directory has, listed anew only when that may have changed."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

from ..errors import SourceError
from ..os_errors import why
from ..records.spool_format import file_kind

log = logging.getLogger(__name__)

LIST_AGAIN_S = 0.5
"""A directory is listed so often at least: not every file system tells each change by the directory's time."""
_CLOCK_STEP_NS = 50_000_000  # two changes so close together may leave the same time behind
_LONG_S, _SHARE = 0.001, 0.1  # a listing that takes long may take this share of the time, again and again
_NO_FOLDER = {
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
"""Why there can be no folder of that name until a person does something; others may pass by themselves."""


class Folder:
    """The files of one directory by name. A name that is not UTF-8 is shown with ``\\xff`` for such bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, str] = {}
        """Name, as it is shown -> name, as the system knows it. Links count as what they point to."""
        self._inode: tuple[int, int] | None = None
        self._changed_ns: int | None = None
        self._listed_at = self._next_at = 0.0
        self._unreadable: set[str] = set()

    def open(self) -> None:
        """Take the directory, and make it when missing; from here on no other may stand in its place."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            advice = "; graphtide produce puts files into one" if os.path.isfile(self.path) else ""
            raise SourceError(f"source.path = {str(self.path)!r} cannot be used: {why(error)}{advice}") from error
        status = os.stat(self.path)
        self._inode = (status.st_dev, status.st_ino)
        self._list()

    def look(self) -> bool:
        """Bring ``names`` up to date; whether they were listed anew.

        Raises:
            OSError: the directory is away.
        """
        changed_ns = self.check()
        now = time.monotonic()
        if now < self._next_at or (changed_ns == self._changed_ns and now - self._listed_at < LIST_AGAIN_S):
            return False
        self._list()
        # Listed just after a change, it may have changed once more since, at what its clock calls the same time.
        settled = time.time_ns() - changed_ns > _CLOCK_STEP_NS
        self._changed_ns = changed_ns if settled else None
        return True

    def check(self) -> int:
        """When the directory changed, in ns since 1970.

        Raises:
            OSError: it is away, or another one is in its place.
        """
        status = os.stat(self.path)
        if (status.st_dev, status.st_ino) != self._inode:
            raise FileNotFoundError(f"{str(self.path)!r} is another directory now (unmounted?)")
        return status.st_mtime_ns

    def file(self, name: str) -> str:
        """The path of a file by the name that is shown."""
        return os.path.join(self.path, self.names.get(name, name))

    def _list(self) -> None:
        began = time.thread_time()
        names, unreadable = {}, set()
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = os.fsencode(entry.name).decode(errors="backslashreplace")
                trouble = None
                try:
                    if entry.is_file():
                        if name == entry.name or name not in names:
                            names[name] = entry.name
                    elif not entry.is_dir() and file_kind(name) is not None:
                        trouble = "is no file, or a link that leads to none, and is left out"
                except OSError as error:  # a link that leads nowhere, say
                    trouble = f"cannot be read and is left out: {why(error)}"
                if trouble is not None:
                    unreadable.add(name)
                    if name not in self._unreadable:
                        log.warning("%s in the spool %s", name, trouble)
        self.names, self._unreadable = names, unreadable
        self._listed_at = time.monotonic()
        took = time.thread_time() - began
        self._next_at = self._listed_at + (took / _SHARE if took > _LONG_S else 0.0)
