"""CUDA sources, compiled by NVRTC through CuPy and kept for the life of the process.

The included ``.cuh`` files are put into the text before it is compiled: CuPy keeps compiled modules on disk by
their text and options, and would not notice that a file outside it changed.
"""

from __future__ import annotations

import re
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from .constants import macros

FOLDER = Path(__file__).parent

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)


def import_cupy() -> Any:
    """The module ``cupy``.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "graphs on a device need CuPy: install graphtide[cuda13], or graphtide[cuda12] for CUDA 12"
        ) from error
    return cupy


_thread = threading.local()


def use_device() -> None:
    """Let the calling thread work on the device: after the first time that costs next to nothing.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: the device failed (as CuPy says it).
    """
    if getattr(_thread, "cupy", None) is not sys.modules.get("cupy", _thread):
        cupy = import_cupy()
        cupy.cuda.Device().use()
        _thread.cupy = cupy


def source(path: str | Path) -> str:
    """The text of a file of this folder (``"update.cu"``), or of any other, its includes put in.

    Included files are looked for beside the including one and then in this folder; each is put in once. A
    ``#line`` directive stands before every part, so that errors name the file and the line.
    """
    return "".join(_parts(FOLDER / path, set()))


def _parts(path: Path, seen: set[str]) -> list[str]:
    name = path.name
    if name in seen:
        return []
    seen.add(name)
    text = _ONCE.sub("\n", path.read_text(encoding="utf-8"))
    parts = []
    begin = 0
    for include in _INCLUDE.finditer(text):
        parts.append(_part(name, text, begin, include.start()))
        beside = path.parent / include[1]
        parts.extend(_parts(beside if beside.exists() else FOLDER / include[1], seen))
        begin = include.end() + 1
    return [*parts, _part(name, text, begin, len(text))]


def _part(name: str, text: str, begin: int, end: int) -> str:
    line = text.count("\n", 0, begin) + 1
    return f'#line {line} "{name}"\n{text[begin:end]}' + ("" if text[begin:end].endswith("\n") else "\n")


def options(*, weighted: bool) -> tuple[str, ...]:
    """How every module is compiled, whoever does it; an unweighted one holds no code for weights."""
    return ("-std=c++17", f"-DWEIGHTED={int(weighted)}", *macros(weighted=weighted))


@cache
def load(path: str | Path, *, weighted: bool) -> Any:
    """The ``cupy.RawModule`` of a file (see ``source``), compiled on first use for the current device.

    Raises:
        ImportError: CuPy is not installed.
    """
    return _compile(path, weighted, cooperative=False)


@cache
def load_cooperative(path: str | Path, *, weighted: bool) -> Any:
    """As ``load``, for kernels that use the grid barrier of ``intrinsics.cuh``: all blocks are resident at once.

    A launch of more blocks than fit on the device is refused.
    """
    return _compile(path, weighted, cooperative=True)


def load_cooperative_text(text: str, *, weighted: bool, macros: tuple[str, ...] = ()) -> Any:
    """As ``load_cooperative``, for a whole text, with these options (``-DNAME=1``) beside the usual ones."""
    return _compile_text(text, (*options(weighted=weighted), *macros), cooperative=True)


def _compile(path: str | Path, weighted: bool, cooperative: bool) -> Any:
    return _compile_text(source(path), options(weighted=weighted), cooperative)


@cache
def _compile_text(text: str, options: tuple[str, ...], cooperative: bool) -> Any:
    return import_cupy().RawModule(
        code=text, options=options, backend="nvrtc", enable_cooperative_groups=cooperative
    )
