"""Small file systems that a test can fill."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from conftest import fail_in_ci


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path | None]:
    """A file system of its own at ``folder``, which can be filled; None where nothing may be mounted, which is a
    failure in CI."""
    folder.mkdir()
    if os.system(f"mount -t tmpfs -o size={megabytes}m tmpfs {folder} 2>/dev/null") != 0:
        fail_in_ci("no file system can be mounted here, so that no disk runs full")
        print("\nno file system can be mounted here: full disks are left out")
        yield None
        return
    try:
        yield folder
    finally:
        os.system(f"umount -l {folder}")


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Meanwhile there is no byte left on it."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as full:
        while True:
            full.write(bytes(1 << 16))
    try:
        yield
    finally:
        filler.unlink()
