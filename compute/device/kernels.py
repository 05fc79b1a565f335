"""Cooperative kernels of programs: each is one launch of as many blocks as fit on the device side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ...gpma.device.constants import BLOCK_THREADS
from ...gpma.device.module import import_cupy, load_cooperative_text, source

_FOLDER = Path(__file__).parent


class Source(NamedTuple):
    """Where a kernel comes from, and how many of its blocks a multiprocessor gets at most: more of them wait for
    each other longer, but a search is bound by memory and wants them. It has the name of its file."""

    file: str
    macros: tuple[str, ...] = ()
    blocks: int = 1


class Kernel(NamedTuple):
    """``handle``: the driver's, which ``function`` keeps alive. ``blocks``: of a launch, BLOCK_THREADS each."""

    function: Any
    handle: Any
    blocks: int


def compiled(origin: Source, *, head: str = "", weighted: bool) -> Kernel:
    """The kernel, compiled or loaded from CuPy's cache; ``head`` stands before its text.

    Raises:
        RuntimeError: it does not compile, or the device fails (as CuPy says it).
    """
    cuda = import_cupy().cuda
    text = head + source(_FOLDER / origin.file)
    module = load_cooperative_text(text, weighted=weighted, macros=origin.macros)
    function = module.get_function(Path(origin.file).stem)
    handle = function.kernel.ptr
    fit = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, BLOCK_THREADS, 0)
    multiprocessors = int(cuda.Device().attributes["MultiProcessorCount"])
    return Kernel(function, handle, multiprocessors * min(fit, origin.blocks))
