"""A folder that one process has for itself, by the lock of a file in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

IN_USE = "is in use by another graphtide process"

_FLAGS, _MODE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640


def locked(file: Path, make_folder: Callable[[Path], None]) -> int:
    """A descriptor that holds the lock of a file; ``make_folder`` makes its folder where that is missing.

    Raises:
        BlockingIOError: another process holds it.
        OSError: there can be no such folder, or file, or lock (then the error names no file).
    """
    while True:
        make_folder(file.parent)
        lock = os.open(file, _FLAGS, _MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Since it was opened the folder may have been taken away, and be another's by now.
            if is_in_place(lock, file):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def is_in_place(handle: int, file: Path) -> bool:
    """Whether an open file is the one that stands there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.stat(file), os.fstat(handle))
    return False
