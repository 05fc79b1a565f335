"""What a compiled function is made of: all that decides what it computes, as text.

Its own instructions and constants are not all of it: functions of other modules become part of it, and so do the
values of global names. Neither the text of its file nor that of any other says which. So they are found where the
compiler finds them: by the names that the code uses, in the objects that are there now.

More is taken in than the compiler takes: a name of an attribute counts as a global one, where there is such a one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic as Intrinsic
from numba.core.typing import templates

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
# What the compiler takes of these it knows by name: their code is none of ours.
_LIBRARIES = ("numpy", "numba", "math", "llvmlite")


@dataclass(frozen=True, slots=True)
class Untold:
    """A value of which nobody can say whether another one would make a difference."""

    value: Any


class Option(str):
    """How a function is compiled, which is none of what it says."""


Part = str | FunctionType | Untold
"""A fact, a function that has more of them, or what has none."""

_known: MutableMapping[FunctionType, tuple[str, tuple[FunctionType, ...]]] = WeakKeyDictionary()
"""For ``whole``, by function: what it says by itself, and the functions that it uses."""


def options(dispatcher: Any) -> Iterator[Part]:
    """How Numba is told to compile a function: ``inline``, ``error_model`` ..."""
    for name, option in sorted(dispatcher.targetoptions.items()):
        yield Option(name)
        yield from _of_value(option) if isinstance(option, FunctionType) else (Option(f"{option!r}"),)


def facts(function: Callable[..., Any], place: Callable[[str], str] = str) -> Iterator[str | Untold]:
    """What a function says: its own code and values, and those of all functions that it uses.

    ``place`` makes of the name of a function's module what counts of it; usually all does.
    """
    waiting, seen = [*_of_value(function)], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, FunctionType):
            if not isinstance(part, Option):
                yield part
        elif id(part) not in seen:
            seen.add(id(part))
            # Compiled code is loaded together with the modules of all that went into it: equal functions of other
            # modules are others.
            yield f"of {place(_module(part))}"
            waiting.extend(reversed([*_of_function(part)]))


@dataclass(frozen=True, slots=True)
class Whole:
    """All that a function is made of."""

    digest: str
    """64 hexadecimal digits, the same in every process."""
    files: frozenset[str]
    """The paths of the files in which it stands, and all functions that it uses."""


def whole(function: FunctionType) -> Whole:
    """What a function is made of now, and how the functions that it calls are compiled.

    A function is looked at once: most of those of a kernel are other kernels', too. A value of which nobody can
    say what it does counts by its type.
    """
    made, found = hashlib.sha256(), set()
    waiting, seen = [function], {function}
    while waiting:
        part = waiting.pop()
        if part not in _known:
            _known[part] = _alone(part)
        text, uses = _known[part]
        made.update(text.encode())
        found.add(part.__code__.co_filename)
        more = [other for other in uses if other not in seen]
        seen.update(more)
        waiting += more
    return Whole(made.hexdigest(), frozenset(found))


def _alone(function: FunctionType) -> tuple[str, tuple[FunctionType, ...]]:
    lines, uses = [f"of {_module(function)}"], []
    for part in _of_function(function):
        if isinstance(part, FunctionType):
            uses.append(part)
            part = f"{_module(part)}.{part.__qualname__}"
        elif isinstance(part, Untold):
            part = f"some {type(part.value).__qualname__}"
        lines.append(part)
    return "\n".join([*lines, ""]), tuple(uses)


def fields(signature: Iterable[Any]) -> Iterator[str]:
    """The records among the types of a kernel's arguments, with the names of their fields.

    The compiler makes places of the names, and tells types of records apart without them.
    """
    for kind in signature:
        if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
            yield f"{kind.instance_class.__qualname__} {kind.fields}"
        if isinstance(kind, types.Tuple | types.UniTuple | types.NamedTuple | types.NamedUniTuple):
            yield from fields(kind.types)


def _of_function(function: FunctionType) -> Iterator[Part]:
    """Its code, the values that it uses, and what stands for it in kernels."""
    code = function.__code__
    yield from _of_code(code)
    captured = code.co_freevars
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    namespace = {**function.__globals__, **dict(zip(captured, cells, strict=True))}
    for value in (*_used(namespace, (*_names(code), *captured)), *(function.__defaults__ or ())):
        yield from _of_value(value)
    for overload in _overloads(len(templates.builtin_registry.globals)).get(function, ()):
        yield from _of_value(overload)


def _of_value(value: Any) -> Iterator[Part]:
    if isinstance(value, _CONSTANTS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, FunctionType) and _package(_module(value)) not in _LIBRARIES:
        yield value
    elif isinstance(value, Dispatcher):
        yield from options(value)
        yield from _of_value(value.py_func)
    elif isinstance(value, Intrinsic):
        yield from _of_value(value._defn)  # which makes it
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _of_value(item)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, ir.Type | types.Type):
        yield f"{type(value).__name__} {value}"
    elif name := getattr(value, "__qualname__", None):  # a type, or a function of a library
        yield " ".join((f"{value.__module__}.{name}", *getattr(value, "_fields", ())))
    else:
        yield Untold(value)


def _used(namespace: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    """What a function that uses these names may take from its namespace, directly or out of modules there."""
    waiting, modules = [namespace], set()
    while waiting:
        namespace = waiting.pop()
        for value in [namespace[name] for name in names if name in namespace]:
            yield value
            is_own = isinstance(value, ModuleType) and _package(value.__name__) not in _LIBRARIES
            if is_own and id(value) not in modules:
                modules.add(id(value))
                waiting.append(vars(value))


@lru_cache(maxsize=1)
def _overloads(n_registered: int) -> Mapping[FunctionType, list[FunctionType]]:
    """By functions what makes the forms that stand for them in kernels, among the first so many registrations
    (``numba.extending.overload``, ``register_jitable``)."""
    found: dict[FunctionType, list[FunctionType]] = {}
    for function, kind in templates.builtin_registry.globals[:n_registered]:
        if isinstance(function, FunctionType) and _package(_module(function)) not in _LIBRARIES:
            made_by = (getattr(template, "_overload_func", None) for template in kind.templates)
            found.setdefault(function, []).extend(maker for maker in made_by if maker is not None)
    return found


def _of_code(code: CodeType) -> Iterator[str]:
    """The instructions, names and constants of a function, and of those written inside it."""
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):
            yield f"frozenset {sorted(map(repr, constant))}"  # in whose order processes differ
        else:
            yield repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    """Every global name that a function, or one written inside it, may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _module(function: FunctionType) -> str:
    """Where a function was made; nothing, if that was no module (``exec``)."""
    return function.__module__ or ""


def _package(module: str) -> str:
    return module.partition(".")[0]
