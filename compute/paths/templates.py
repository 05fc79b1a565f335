"""Functors and kernels: how plain Python functions become part of a compiled loop.

A vertex program says with a few plain functions (its functors) what an edge offers and which offer is better;
the loops belong to the engine. A loop is written once, as a **template**: a function that calls functors by
global names. ``specialise`` makes a kernel of it, with a program's own functions under those names, so that the
compiler inlines them as if they had been written there.

Numba's disk cache would not notice another functor in the same loop. Every kernel therefore carries a digest of
all that it is made of (its own code, functors, captured values, helpers from any module) in its name, and
Numba keeps a file per name: a changed functor is compiled anew, an unchanged one is found by every process.
(Closures over functors would not do: Numba's key for them is their pickle, which differs between processes.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba as nb
import numpy as np
from numba.core.dispatcher import Dispatcher

from ...gpma.intrinsics import uncounted, uncounted_inner
from ..program import ProgramError

Kernel = Callable[..., Any]
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
# What the compiler takes of these it knows by name: their code is none of ours.
_LIBRARIES = ("numpy", "numba", "math")


def template(function: Callable[..., Any]) -> Any:
    """Marks a function that is never called as it is, only as ``specialise``, ``step`` and ``inlined`` make it."""
    return function


def digest(function: Callable[..., Any], place: Callable[[str], str] = str) -> str:
    """64 hexadecimal digits that change whenever the function could compute something else.

    Code, constants, defaults, captured values, and the same of every function that it calls by name. ``place``
    makes of the name of a function's module what counts of it; usually all does.

    Raises:
        ProgramError: it captures something whose content cannot be told.
    """
    return hashlib.sha256("\n".join(_facts(function, place, set())).encode()).hexdigest()


def specialise(made_of: Callable[..., Any], names: Mapping[str, Any]) -> Kernel:
    """A kernel from a template, with its global ``names`` standing for these functions and constants.

    The kernel compiles when it is first called, or comes from Numba's disk cache. It may allocate nothing: so it
    counts no references, which would be atomic writes wherever a record's field is taken.

    Raises:
        ProgramError: as ``digest``.
    """
    return uncounted(_bound(made_of, names))


def step(made_of: Callable[..., Any], names: Mapping[str, Any]) -> Kernel:
    """Like ``specialise``, for what only kernels call, by a call of its own."""
    return uncounted_inner(_bound(made_of, names, "_inner"))


def inlined(made_of: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Kernel:
    """Like ``specialise``, for what kernels call: it becomes part of them and needs no cache of its own."""
    return nb.njit(nogil=True, error_model="numpy", inline="always")(_bound(made_of, names or {}))


def _bound(made_of: Callable[..., Any], names: Mapping[str, Any], suffix: str = "") -> FunctionType:
    """The template with these names, under a name of its own.

    ``suffix`` sets apart what is compiled otherwise: Numba keeps no options beside what it keeps by name.
    """
    assert isinstance(made_of, FunctionType)
    function = FunctionType(made_of.__code__, {**made_of.__globals__, **names}, made_of.__name__)
    function.__qualname__ = f"{made_of.__name__}_{digest(function)[:20]}{suffix}"
    function.__module__ = made_of.__module__
    return function


def _facts(value: Any, place: Callable[[str], str], seen: set[int]) -> Iterator[str]:
    """Everything that decides what a function computes, as text."""
    if isinstance(value, Dispatcher):
        value = value.py_func
    if (definition := getattr(value, "_defn", None)) is not None:  # an intrinsic: made by this function
        yield from _facts_of_code(definition.__code__)
    elif isinstance(value, _CONSTANTS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _facts(item, place, seen)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            # Compiled code is loaded together with the modules of all that went into it: equal functions of other
            # modules are others.
            yield f"of {place(value.__module__)}"
            yield from _facts_of_code(value.__code__)
            captured = value.__code__.co_freevars
            cells = (cell.cell_contents for cell in value.__closure__ or ())
            namespace = {**value.__globals__, **dict(zip(captured, cells, strict=True))}
            used = _used(namespace, (*_names(value.__code__), *captured))
            for item in (*used, *(value.__defaults__ or ())):
                yield from _facts(item, place, seen)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
    elif name := getattr(value, "__qualname__", None):  # a type, or a function of a library
        yield f"{value.__module__}.{name}"
    else:
        raise ProgramError(
            f"a functor captures {value!r} ({type(value).__name__}); it may capture numbers, texts, tuples, "
            "arrays and functions"
        )


def _used(namespace: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    """What a function that uses these names may take from its namespace, directly or out of modules there."""
    waiting, modules = [namespace], set()
    while waiting:
        namespace = waiting.pop()
        for value in [namespace[name] for name in names if name in namespace]:
            yield value
            is_own = isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES
            if is_own and id(value) not in modules:
                modules.add(id(value))
                waiting.append(vars(value))


def _facts_of_code(code: CodeType) -> Iterator[str]:
    """The instructions, names and constants of a function, and of those written inside it."""
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        yield from _facts_of_code(constant) if isinstance(constant, CodeType) else (repr(constant),)


def _names(code: CodeType) -> Iterator[str]:
    """Every global name that a function, or one written inside it, may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
