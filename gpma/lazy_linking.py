"""Compiled kernels are loaded without what only a compiler needs of them.

Beside machine code Numba keeps a kernel's LLVM module, so that kernels which are compiled later can take it in. By
itself it reads all of that with the machine code, which is half of the time that this takes, though a start that
finds its kernels compiles none. Here the module stays bytes until a kernel is compiled that calls this one. The
listing of types (``inspect_types``) is not kept at all.

It all happens under Numba's lock of compiling, as compiling and loading do anyway. ``relied_on.py`` lists what of
Numba is taken for granted; nothing else imports this module before that has been found there.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.environment import Environment

from . import runtime, shipped

_NO_TYPES = ""
"""For the listing of every variable's type, which nobody reads: it would be a third of what is kept."""


class Bitcode(bytes):
    """An LLVM module as Numba keeps it, with those of the kernel's entries that are in the machine code.

    Numba asks for addresses only of what it has seen in a module: LLVM ends the process where there is none.
    """

    entries: tuple[str, ...]


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Machine code, and perhaps bytes of a module."""

    _bitcode: Bitcode | None = None

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        name, kind, data = state
        if kind != "object" or not isinstance(data[1], Bitcode):
            return super()._unserialize(codegen, state)  # type: ignore[no-untyped-call]
        machine_code, bitcode = data
        library: Any = codegen.create_library(name)
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library._finalize_final_module()
        library._bitcode = bitcode
        codegen._engine._defined_symbols.update(bitcode.entries)
        return library

    def _get_module_for_linking(self) -> Any:
        if self._bitcode is not None:
            module = llvm.parse_bitcode(self._bitcode)
            self._codegen._engine._load_defined_symbols(module)
            self._shared_module, self._bitcode = module, None
        return super()._get_module_for_linking()  # type: ignore[no-untyped-call]


class _ByModule(UserProvidedCacheLocator):  # type: ignore[misc]
    """The folder of a kernel: that of its module within graphtide, wherever that lies, and whatever its text says.

    A kernel's key in the index says what it is made of, which is more than the text of its file.
    """

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _ByModule | None:
        if not vars(config)["CACHE_DIR"]:
            return None
        found = cls(py_func, py_file)
        return found if _is_writable(found.get_cache_path()) else None

    def get_cache_path(self) -> str:
        return os.path.join(vars(config)["CACHE_DIR"], shipped.folder_of(self._py_file))

    def get_source_stamp(self) -> str:
        return "graphtide"


@functools.cache
def _is_writable(folder: str) -> bool:
    """Once for all kernels of a folder: it is found out by writing a file."""
    return runtime.is_writable(Path(folder))


class LazyCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """How Numba's cache keeps kernels: with ``Bitcode``, which a Numba without ``install`` reads as its own."""

    _locator_classes = [_ByModule, *CompileResultCacheImpl._locator_classes]  # noqa: RUF012  # Numba's list

    def reduce(self, compiled: Any) -> Any:
        """What is kept of a compiled kernel."""
        library, description, environment, signature, objectmode, lifted, _, *rest = compiled._reduce()
        name, kind, (machine_code, module) = library
        bitcode = Bitcode(module)
        entries = (
            description.llvm_func_name,
            description.llvm_cpython_wrapper_name,
            description.llvm_cfunc_wrapper_name,
        )
        bitcode.entries = tuple(filter(compiled.library.codegen._engine.is_symbol_defined, entries))
        library = name, kind, (machine_code, bitcode)
        rest[-1] = tuple(map(_of_a_loaded_module, rest[-1]))
        return (library, description, environment, signature, objectmode, lifted, _NO_TYPES, *rest)


def _of_a_loaded_module(environment: Any) -> Any:
    """An environment of what a kernel calls: of a module that is there, where it is one of Numba's own functions.

    Else theirs would be loaded with the kernel, and SciPy with some. No code looks for names in there.
    """
    if not environment.globals["__name__"].startswith("numba.") or environment.consts:
        return environment
    other = Environment(vars(sys.modules[Environment.__module__]))  # type: ignore[no-untyped-call]
    other.env_name = environment.env_name
    return other


def install() -> None:
    """Let Numba load what is kept so without its module."""
    JITCPUCodegen._library_class = _Library


install()  # as in ``kernel_cache.py``
