"""What makes a path program a program of its own, and the compiled steps that come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numba as nb
import numpy as np

from . import path_audit, path_kernels, path_search
from .vertex_program import Kernel, digest, inlined, specialise

# What the steps call, each made of those before it.
_HELPERS: tuple[Callable[..., Any], ...] = (
    path_kernels.offer,
    path_kernels.precedes,
    path_kernels.improves,
    path_kernels.heap_push,
    path_kernels.heap_sink,
    path_kernels.ask_for_place,
    path_kernels.ask_for_row,
    path_kernels.ask_for_rows,
)


@dataclass(frozen=True)
class Functors:
    """A program's own functions: plain Python that Numba compiles, of numbers alone.

    ``gather(value, weight)``: what an edge offers its head, its tail having this value. An offer is never better
    than the value it comes from, and a better value never makes a worse offer. The program's ``nothing`` means no
    offer. ``better(new, old)``: whether a value is strictly better than another.
    """

    gather: Callable[[Any, Any], Any]
    better: Callable[[Any, Any], bool]


class Kernels(NamedTuple):
    """The compiled steps of one program; ``search`` only without weights, ``spread`` only with them."""

    classify: Kernel
    trim: Kernel
    pull: Kernel
    relax: Kernel
    push: Kernel
    search: Kernel | None
    spread: Kernel | None
    audit: Kernel


@dataclass(frozen=True)
class Form:
    """What a program's kernels are made of; equal when they would compute the same."""

    digest: str
    value: type[np.uint32] | type[np.float32]
    weighted: bool
    functors: Functors = field(compare=False)

    @classmethod
    def of(cls, functors: Functors, value: type[np.uint32] | type[np.float32], *, weighted: bool) -> Form:
        key = f"{digest(functors.gather)} {digest(functors.better)}"
        return cls(key, value, weighted, functors)


@lru_cache(maxsize=64)
def kernels_of(form: Form) -> Kernels:
    """The kernels of a form; programs of equal form share them."""
    single = form.value is np.float32
    names: dict[str, Any] = {
        "WEIGHTED": form.weighted,
        "gather": nb.njit(nogil=True, error_model="numpy")(form.functors.gather),
        "better": nb.njit(nogil=True, error_model="numpy")(form.functors.better),
        "encode": inlined(path_kernels.encode_float if single else path_kernels.encode_int),
        "decode": inlined(path_kernels.decode_float if single else path_kernels.decode_int),
    }
    for template in (
        "offer",
        "precedes",
        "improves",
        "heap_push",
        "heap_sink",
        "ask_for_place",
        "ask_for_row",
        "ask_for_rows",
    ):
        names[template] = inlined(getattr(path_kernels, template), names)
    names["adopt"] = specialise(path_kernels.adopt, names)
    return Kernels(
        specialise(path_kernels.classify, names),
        specialise(path_kernels.trim_by_value if form.weighted else path_kernels.trim_by_level, names),
        specialise(path_kernels.pull, names),
        specialise(path_kernels.relax, names),
        specialise(path_kernels.push_by_value if form.weighted else path_kernels.push_by_level, names),
        None if form.weighted else _search_kernel(names),
        _spread_kernel(names) if form.weighted else None,
        specialise(path_audit.audit_range, names),
    )


def _search_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {
        "push_level": specialise(path_search.level_push, names),
        "pull_level": specialise(path_search.level_pull, names),
    }
    return specialise(path_search.search_by_level, {**names, **own}, parallel=True)


def _spread_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {
        "publish": specialise(path_search.publish, names),
        "step_bound": specialise(path_search.step_bound, names),
        "split": specialise(path_search.split_far, names),
    }
    own["expand"] = specialise(path_search.expand_near, {**names, **own})
    return specialise(path_search.spread, {**names, **own}, parallel=True)
