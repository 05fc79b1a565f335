"""Compiled kernels are loaded without what only a compiler needs of them.

Beside machine code Numba keeps a kernel's LLVM module, so that kernels which are compiled later can take it in. By
itself it reads all of that with the machine code, which is half of the time that this takes, though a start that
finds its kernels compiles none. Here the module stays bytes until a kernel is compiled that calls this one.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult


class Bitcode(bytes):
    """An LLVM module as Numba keeps it, with those of the kernel's entries that are in the machine code.

    Numba asks for addresses only of what it has seen in a module: LLVM ends the process where there is none.
    """

    entries: tuple[str, ...]


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Machine code, and bytes of a module."""

    _bitcode: Bitcode | None = None
    _module: Any = None

    @property
    def _shared_module(self) -> Any:
        """What kernels take in that are compiled later."""
        if self._module is None and self._bitcode is not None:
            self._module = llvm.parse_bitcode(self._bitcode)
            self._codegen._engine._load_defined_symbols(self._module)
            self._bitcode = None
        return self._module

    @_shared_module.setter
    def _shared_module(self, module: Any) -> None:
        self._module = module


class _Context:
    """Stands for a target's context and code generator while a kernel is put together."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.typing_context = context.typing_context
        self.get_executable = context.get_executable

    def codegen(self) -> _Context:
        return self

    def unserialize_library(self, kept: tuple[str, str, tuple[bytes, Bitcode]]) -> Any:
        name, _, (machine_code, bitcode) = kept
        codegen = self._context.codegen()
        library: Any = _Library(codegen, name)  # type: ignore[no-untyped-call]
        library._bitcode = bitcode
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(bitcode.entries)
        return library


def reduce(compiled: Any) -> Any:
    """What is kept of a compiled kernel: as Numba keeps it, and reads it, with ``Bitcode``."""
    (name, kind, (machine_code, module)), description, *rest = compiled._reduce()
    bitcode = Bitcode(module)
    entries = (
        description.llvm_func_name,
        description.llvm_cpython_wrapper_name,
        description.llvm_cfunc_wrapper_name,
    )
    bitcode.entries = tuple(filter(compiled.library.codegen._engine.is_symbol_defined, entries))
    return ((name, kind, (machine_code, bitcode)), description, *rest)


def rebuild(context: Any, kept: Any) -> Any:
    """A compiled kernel from what is kept of it, by ``reduce`` or by Numba."""
    _, kind, data = kept[0]
    if kind != "object" or not isinstance(data[1], Bitcode):
        return CompileResult._rebuild(context, *kept)  # type: ignore[no-untyped-call]
    compiled = CompileResult._rebuild(_Context(context), *kept)  # type: ignore[no-untyped-call]
    return compiled._replace(target_context=context)


class LazyCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """How Numba's cache keeps and loads kernels."""

    def reduce(self, compiled: Any) -> Any:
        try:
            return reduce(compiled)
        except (AttributeError, TypeError, ValueError):  # another Numba, which keeps kernels otherwise
            return super().reduce(compiled)  # type: ignore[no-untyped-call]

    def rebuild(self, context: Any, kept: Any) -> Any:
        return rebuild(context, kept)
