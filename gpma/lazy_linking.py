"""Compiled kernels are loaded without what only a compiler needs of them, and call large ones where these lie.

Beside machine code Numba keeps a kernel's LLVM module, so that kernels which are compiled later can take it in. By
itself it reads all of that with the machine code, which is half of the time that this takes, though a start that
finds its kernels compiles none. Here the module stays bytes until a kernel is compiled that calls this one. The
listing of types (``inspect_types``) is not kept at all.

By itself Numba also has every kernel take in all that it calls, and what that calls, level by level, and optimises
and emits all of it anew each time. Here it takes in what LLVM may inline. What is larger, and what threads share
(``team.py``), which is called by its address in any case, is machine code once, *apart*: others refer to it by a
symbol of its own. What is kept of a kernel holds the machine code of those, too, so that no file needs another; a
process loads each of them once.

It all happens under Numba's lock of compiling, as compiling and loading do anyway. ``relied_on.py`` lists what of
Numba is taken for granted; nothing else imports this module before that has been found there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite.binding import ObjectFileRef
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.environment import Environment

from . import runtime, shipped

_NO_TYPES = ""
"""For the listing of every variable's type, which nobody reads: it would be a third of what is kept."""


LARGE_INSTRUCTIONS = 300
"""A kernel of more than so many is called where it lies. LLVM inlines what costs up to 225, at 5 an instruction,
or somewhat more where arguments are constants."""


class Apart(NamedTuple):
    """Machine code that others call where it lies.

    ``symbol`` is what they call it by, ``entry`` what it is called in ``machine_code``; ``environments`` are those
    that it refers to.
    """

    symbol: str
    entry: str
    machine_code: bytes
    environments: tuple[Any, ...]


class Bitcode(bytes):
    """An LLVM module as Numba keeps it, with those of the kernel's entries that are in the machine code.

    Numba asks for addresses only of what it has seen in a module: LLVM ends the process where there is none.
    """

    entries: tuple[str, ...]
    apart: Apart
    is_large: bool


_there: dict[str, Apart] = {}
"""What lies apart in this process, by symbol."""


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Machine code, and perhaps bytes of a module.

    Attributes:
        calls: what it calls where that lies, and what that calls so, by symbol, the last called first.
        apart: by what others call it so, where that is known.
        is_large: others do not take it in.
    """

    _bitcode: Bitcode | None = None
    apart: Apart | None = None
    is_large = False

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)  # type: ignore[no-untyped-call]
        self.calls: dict[str, Apart] = {}
        self._symbols: dict[str, str] = {}

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        name, kind, (machine_code, bitcode, *calls) = state
        calls = [_provided(codegen, apart) for apart in calls]
        library: Any
        if isinstance(bitcode, Bitcode):
            library = _loaded(codegen, name, machine_code)
            library._bitcode, library.apart, library.is_large = bitcode, bitcode.apart, bitcode.is_large
            codegen._engine._defined_symbols.update(bitcode.entries)
        else:  # of another package
            library = super()._unserialize(codegen, (name, kind, (machine_code, bitcode)))  # type: ignore[no-untyped-call]
        library.calls = {apart.symbol: apart for apart in calls}
        return library

    def call(self, compiled: Any) -> None:
        """Have what is being compiled into this library call another kernel where that lies, if it can."""
        library = compiled.library
        is_ours = isinstance(library, _Library)
        if is_ours and library.apart is None and getattr(library, "_compiled_object", None) is not None:
            library.apart = _apart(compiled, compiled._find_referenced_environments())
        if is_ours and library.apart is not None:
            self._refer_to(library)
        else:  # made before this class was installed, or of another package, from its cache
            self.add_linking_library(library)

    def _refer_to(self, library: Any) -> None:
        apart = library.apart
        if apart.symbol not in _there:
            _name(self._codegen, apart)
        self._reload_init.update(library._reload_init)
        self.calls = {**self.calls, **library.calls, apart.symbol: apart}
        self._symbols[apart.entry] = apart.symbol

    def add_linking_library(self, library: Any) -> None:
        """Have this library take in what another one holds, unless that is large."""
        if isinstance(library, _Library) and library.is_large:
            self._refer_to(library)
            return
        super().add_linking_library(library)  # type: ignore[no-untyped-call]
        if isinstance(library, _Library):  # else it was made before this class was installed
            self.calls = {**library.calls, **self.calls}

    def _optimize_functions(self, ll_module: Any) -> None:
        """As Numba does it, but for what is only declared: it makes a pass manager for each of these, too."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def finalize(self) -> None:
        """As Numba does it, with other names for what lies apart."""
        for entry, symbol in self._symbols.items():
            with contextlib.suppress(NameError):  # no code is left that calls it
                self._final_module.get_function(entry).name = symbol
        super().finalize()  # type: ignore[no-untyped-call]

    def _get_module_for_linking(self) -> Any:
        if self._bitcode is not None:
            module = llvm.parse_bitcode(self._bitcode)
            self._codegen._engine._load_defined_symbols(module)
            self._shared_module, self._bitcode = module, None
        return super()._get_module_for_linking()  # type: ignore[no-untyped-call]

    def serialize_using_object_code(self) -> Any:
        """As Numba does it, with what is called where it lies."""
        name, kind, data = super().serialize_using_object_code()  # type: ignore[no-untyped-call]
        return name, kind, (*data, *self.calls.values())


def _loaded(codegen: Any, name: str, machine_code: bytes) -> Any:
    """A library of this machine code alone."""
    library: Any = codegen.create_library(name)
    library.enable_object_caching()
    library._set_compiled_object(machine_code)
    library._finalize_final_module()
    return library


def _apart(compiled: Any, environments: Iterable[Any]) -> Apart:
    """By what others can call a kernel that has just been compiled."""
    entry = compiled.fndesc.llvm_func_name
    machine_code = compiled.library._get_compiled_object()
    # Other processes may compile a kernel of the same name, and yet another.
    return Apart(f"{entry}.{secrets.token_hex(8)}", entry, machine_code, tuple(environments))


def _provided(codegen: Any, apart: Apart) -> Apart:
    """Have this machine code, once."""
    if apart.symbol not in _there:
        codegen._engine._ee.add_object_file(ObjectFileRef.from_data(apart.machine_code))
        for environment in apart.environments:
            codegen.set_env(environment.env_name, environment)
        _name(codegen, apart)
    return _there[apart.symbol]


def _name(codegen: Any, apart: Apart) -> None:
    """Let others find machine code that has just been loaded."""
    llvm.add_symbol(apart.symbol, codegen._engine.get_function_address(apart.entry))
    _there[apart.symbol] = apart


def _is_large(compiled: Any) -> bool:
    function = compiled.library.get_function(compiled.fndesc.llvm_func_name)
    instructions = (instruction for block in function.blocks for instruction in block.instructions)
    return next(itertools.islice(instructions, LARGE_INSTRUCTIONS, None), None) is not None


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
        serialized, description, environment, signature, objectmode, lifted, _, *rest = compiled._reduce()
        name, kind, (machine_code, module, *calls) = serialized
        library = compiled.library
        rest[-1] = tuple(map(_of_a_loaded_module, rest[-1]))
        if library.apart is None:
            library.apart, library.is_large = _apart(compiled, rest[-1]), _is_large(compiled)
        bitcode = Bitcode(module)
        entries = (
            description.llvm_func_name,
            description.llvm_cpython_wrapper_name,
            description.llvm_cfunc_wrapper_name,
        )
        bitcode.entries = tuple(filter(library.codegen._engine.is_symbol_defined, entries))
        bitcode.apart, bitcode.is_large = library.apart, library.is_large
        serialized = name, kind, (machine_code, bitcode, *calls)
        return (serialized, description, environment, signature, objectmode, lifted, _NO_TYPES, *rest)


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
