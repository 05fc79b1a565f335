"""Which kernels on disk nobody uses any more, and an end to them.

The cache keeps a few versions of a kernel under one name (``kernel_cache.py``). Names come and go, too: they have
the line that a kernel begins at, and those of programs' loops a digest of the programs' functions. So what
versions and clients leave would lie there for ever.

When a kernel was last used, to a day, is the time of its index's last change: whoever loads it sets that, and sets
it anew as long as it runs. CuPy's kernels are not loaded by us: theirs is when the file was last read, where the
file system notes that.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

DAY_S = 24 * 3600.0
KEPT_S = 30 * DAY_S
"""What nobody has used for so long is removed."""
_LOOKED = "looked-for-unused"
_indices: set[str] = set()
"""Of the kernels that this process has."""


def note_use(index: str) -> None:
    """A kernel of this index was loaded, or saved. Where that cannot be noted on disk it is not."""
    _indices.add(index)
    _note(index)


def note_again() -> None:
    """The kernels that this process has are used as long as it runs: its next start will want them."""
    for index in list(_indices):
        _note(index)


def _note(index: str) -> None:
    with suppress(OSError):
        if time.time() - os.stat(index).st_mtime > DAY_S:
            os.utime(index)


def forget_unused(cache: Path) -> int:
    """Remove the kernels that graphtide has in this folder and nobody has used for ``KEPT_S``; how many files.
    Once a day.

    Others may use the cache meanwhile, of whatever version: what is loaded needs no file any more, and who does
    not find a kernel compiles it. What else lies there, of other packages say, is left alone, and so is any file
    that is no kernel: the folder is the user's choice, who may have a checkout there.
    """
    now = time.time()
    with suppress(OSError):
        if now - (cache / _LOOKED).stat().st_mtime < DAY_S:
            return 0
    try:
        (cache / _LOOKED).touch()
        folders = [*cache.iterdir()]
    except OSError:  # it is not ours to write
        return 0
    removed = 0
    for folder in folders:
        with suppress(OSError):  # no folder, or another user's: what is wrong with one says nothing of others
            if folder.name == "cupy":
                removed += _forget(folder, _last_read(folder), now - KEPT_S)
            elif folder.name.split(".")[0] == "graphtide":
                removed += _forget(folder, _last_used(folder), now - KEPT_S)
    return removed


def _last_used(folder: Path) -> dict[str, float]:
    """When each file of kernels was written, or the kernel loaded."""
    written = {
        name: status.st_mtime
        for name, status in _files(folder).items()
        if name.split(".tmp.")[0].endswith((".nbi", ".nbc"))  # Numba's, also those that were never whole
    }

    def index_of(name: str) -> str:
        return f"{name.rsplit('.', 2)[0]}.nbi" if name.endswith(".nbc") else name

    return {name: max(at, written.get(index_of(name), at)) for name, at in written.items()}


def _last_read(folder: Path) -> dict[str, float]:
    """When each file of CuPy's kernels was written or read; nothing where the file system does not say."""
    if os.statvfs(folder).f_flag & os.ST_NOATIME:
        return {}
    return {
        name: max(status.st_mtime, status.st_atime)
        for name, status in _files(folder).items()
        if name.endswith(".cubin")
    }


def _files(folder: Path) -> dict[str, os.stat_result]:
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # others look after the cache, too
                if entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat()
    return found


def _forget(folder: Path, used: dict[str, float], before: float) -> int:
    removed = 0
    for name, at in used.items():
        if at < before:
            with suppress(OSError):  # somebody else has removed it, or has to
                (folder / name).unlink()
                removed += 1
    return removed
