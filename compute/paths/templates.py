"""Functors and kernels: how plain Python functions become part of a compiled loop.

A vertex program says with a few plain functions (its functors) what an edge offers and which offer is better;
the loops belong to the engine. A loop is written once, as a **template**: a function that calls functors by
global names. ``specialise`` makes a kernel of it, with a program's own functions under those names, so that the
compiler inlines them as if they had been written there.

Several functors go into one loop, and the kernels of each must be kept. Every kernel therefore carries a digest
of all that it is made of (its own code, functors, captured values, helpers from any module) in its name, and
Numba keeps a file per name: a changed functor is compiled anew, an unchanged one is found by every process.
(Closures over functors would not do: Numba's key for them is their pickle, which differs between processes.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numba as nb

from ...gpma.intrinsics import uncounted, uncounted_inner
from ...gpma.made_of import Untold, facts
from ..program import ProgramError

Kernel = Callable[..., Any]


def template(function: Callable[..., Any]) -> Any:
    """Marks a function that is never called as it is, only as ``specialise``, ``step`` and ``inlined`` make it: by
    its attribute ``is_template``."""
    function.is_template = True  # type: ignore[attr-defined]
    return function


def digest(function: Callable[..., Any], place: Callable[[str], str] = str) -> str:
    """64 hexadecimal digits that change whenever the function could compute something else.

    Code, constants, defaults, captured values, and the same of every function that it calls by name. ``place``
    makes of the name of a function's module what counts of it; usually all does.

    Raises:
        ProgramError: it captures something whose content cannot be told.
    """
    lines = []
    for fact in facts(function, place):
        if isinstance(fact, Untold):
            raise ProgramError(
                f"a functor captures {fact.value!r} ({type(fact.value).__name__}); it may capture numbers, texts, "
                "tuples, arrays and functions"
            )
        lines.append(fact)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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
