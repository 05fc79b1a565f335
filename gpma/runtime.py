"""How Numba runs here: with a cache that works wherever it may be written.

Imported before any kernel is defined. Numba's own threads are not used: kernels share work by ``team.py``.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def is_writable(folder: Path) -> bool:
    """Whether files can be made there; the folder is made when missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # which says nothing of this folder
            return os.access(folder, os.W_OK | os.X_OK)
        return False


def _ours_alone(folder: Path) -> bool:
    """Whether nobody else could have put anything there: what lies in the cache is run."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``NUMBA_CACHE_DIR``, the user's cache folder, or a temporary one.

    The first of them that can be written; the last, whether or not it can.
    """
    if (chosen := os.environ.get("NUMBA_CACHE_DIR")) and is_writable(Path(chosen)):
        return Path(chosen)
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (Path(home_cache) / "graphtide" / "numba", Path("/var/cache/graphtide/numba")):
        if is_writable(folder):
            return folder
    folder = Path(tempfile.gettempdir()) / f"graphtide-numba-{os.getuid()}"
    return folder if _ours_alone(folder) else Path(tempfile.mkdtemp(prefix="graphtide-numba-"))


def configure() -> None:
    """Tell Numba, before the first kernel is defined; harmless to repeat."""
    os.environ["NUMBA_CACHE_DIR"] = str(cache_directory())
    # Where Numba was imported before, it has read the environment as it was, and would only read it again when it
    # first compiles: kernels defined after that would be looked for in another folder than by the next process.
    if (config := sys.modules.get("numba.core.config")) is not None:
        config.reload_config()


class _AfterNumba(MetaPathFinder):
    """Finds Numba as everybody else does, and calls back when it is loaded."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self._asking = then, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "numba" or self._asking:
            return None
        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            sys.meta_path.remove(self)
            self._then()

        spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec


def when_numba_is_loaded(then: Callable[[], None]) -> None:
    """Call this before anybody can define a kernel: at once, or when Numba is imported first."""
    if "numba" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterNumba(then))
