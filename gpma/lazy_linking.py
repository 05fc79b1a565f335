"""Compiled kernels are loaded without what only a compiler needs of them, and get machine code only where it runs.

Beside machine code Numba keeps a kernel's LLVM module, so that kernels which are compiled later can take it in. By
itself it reads all of that with the machine code, which is half of the time that this takes, though a start that
finds its kernels compiles none. Here the module stays bytes until a kernel is compiled that calls this one. The
listing of types (``inspect_types``) is not kept at all.

What only kernels call is never run by itself: each of its callers holds it, too, inlined or not. By itself Numba
optimises it and makes machine code of it all the same, and again in each of its callers, a level after the other.
Here it is neither optimised nor made machine code of, but in the kernels that Python calls.

It all happens under Numba's lock of compiling, as compiling and loading do anyway. ``relied_on.py`` lists what of
Numba is taken for granted; nothing else imports this module before that has been found there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
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


_PARTS = ("_ZN9graphtide", "_ZN5numba", "cfunc._ZN9graphtide", "cfunc._ZN5numba")
"""How Numba begins the names of functions in LLVM, of ours and of its own, less those that Python calls them by.
(``cfunc.`` are for functions that are handed out as values: nobody hands out those.)"""
_ENVIRONMENT, _UNRESOLVED = "_ZN08NumbaEnv", ".numba.unresolved$"
"""And of places for the addresses of environments, and of functions that are yet to be compiled."""


class Bitcode(bytes):
    """An LLVM module as Numba keeps it, with those of the kernel's entries that are in the machine code.

    Numba asks for addresses only of what it has seen in a module: LLVM ends the process where there is none.
    """

    entries: tuple[str, ...]


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Machine code, and perhaps bytes of a module."""

    _bitcode: Bitcode | None = None
    _is_part = False
    """Whether only kernels call it."""

    def finalize(self) -> None:
        functions = [function for function in self._final_module.functions if not function.is_declaration]
        others = [function.name for function in functions if function.linkage != llvm.Linkage.internal]
        # Else Python has something to call it by.
        self._is_part = bool(others) and all(name.startswith(_PARTS) for name in others)
        super().finalize()  # type: ignore[no-untyped-call]

    def _optimize_final_module(self) -> None:
        # Calls that were not known when they were made (of recursions) are looked for in machine code.
        self._is_part &= not any(_named(self._final_module, _UNRESOLVED))
        if not self._is_part:
            super()._optimize_final_module()  # type: ignore[no-untyped-call]

    def _finalize_final_module(self) -> None:
        if not self._is_part:
            super()._finalize_final_module()  # type: ignore[no-untyped-call]
            return
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        whole = self._final_module
        # Numba writes the addresses of environments into machine code, here and wherever it is linked in.
        empty = self._codegen._create_empty_module(self.name)
        self._final_module = llvm.parse_assembly("\n".join([str(empty), *_named(whole, _ENVIRONMENT)]))
        super()._finalize_final_module()  # type: ignore[no-untyped-call]
        self._final_module = whole

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
            if self._bitcode.entries:  # else nothing of it has machine code
                self._codegen._engine._load_defined_symbols(module)
            self._shared_module, self._bitcode = module, None
        return super()._get_module_for_linking()  # type: ignore[no-untyped-call]


def _named(module: Any, begin: str) -> Iterator[str]:
    """The definitions of those global variables whose names begin so."""
    return (str(variable) for variable in module.global_variables if variable.name.startswith(begin))


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
