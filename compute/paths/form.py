"""What makes a path program a program of its own, and the compiled steps that come of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numba as nb
import numpy as np

from ..program import ProgramError
from . import audit as path_audit
from . import loss as path_loss
from . import mend as path_kernels
from . import refresh as path_refresh
from . import search as path_search
from . import spread as path_spread
from . import wide as path_wide
from .templates import Kernel, digest, inlined, specialise, step

# What the steps call, each made of those before it.
_HELPERS: tuple[Callable[..., Any], ...] = (
    path_kernels.offer,
    path_kernels.precedes,
    path_kernels.improves,
    path_kernels.write,
    path_kernels.heap_push,
    path_kernels.heap_sink,
    path_kernels.ask_for_place,
    path_kernels.ask_for_row,
    path_kernels.ask_for_first_rows,
    path_kernels.ask_for_rows,
    path_kernels.ask_further,
    path_kernels.ask_for_words,
    path_kernels.is_much,
    path_kernels.piece_of,
)


NO_OFFER = 0xFFFF_FFFF
"""What gather returns for no offer at all, where values are uint32; where they are float32 it is NaN."""

_CHECKED_WEIGHTS = (1.0, 0.0, 0.5, 7.0, 1e8, -1.0)
_CHECKED_VALUES = 12


@dataclass(frozen=True)
class Functors:
    """A program's own functions: plain Python that Numba compiles, of numbers alone.

    ``gather(value, weight)``: what an edge offers its head, its tail having this value. An offer is never better
    than the value it comes from, and a better value never makes a worse offer. ``NO_OFFER`` (NaN) means none.
    ``better(new, old)``: whether a value is strictly better than another.
    """

    gather: Callable[[Any, Any], Any]
    better: Callable[[Any, Any], bool]


def source_value(value: Any, at_source: Any) -> Any:
    """The value of a source as a scalar of the program's type, from the class attributes (None: there is none).

    Raises:
        ProgramError: one of them is missing or wrong.
    """
    if value not in (np.uint32, np.float32):
        given = getattr(value, "__name__", value)
        raise ProgramError(f"value = {given} is not allowed; expected np.uint32 or np.float32, its values' type")
    try:
        scalar = value(at_source)
    except (TypeError, ValueError, OverflowError):
        scalar = value(NO_OFFER) if value is np.uint32 else value(np.nan)
    if scalar != scalar or (value is np.uint32 and scalar == NO_OFFER):
        raise ProgramError(f"at_source = {at_source!r} is not allowed; expected a source's {value.__name__} value")
    return scalar + value(0)  # minus zero is zero, as in ``encode_float``


def check(functors: Functors, at_source: Any, *, weighted: bool, negative: bool) -> None:
    """Try the rules that functors must keep, on values that they themselves make from the source's.

    ``at_source``: a scalar of the program's type. ``negative``: weights may be. A sample proves nothing, but finds
    what was thought wrongly.

    Raises:
        ProgramError: they break a rule, or fail; the message shows where.
    """
    if not isinstance(functors, Functors):
        raise ProgramError(f"functors returns {functors!r}; expected Functors(gather, better)")
    given = [weight for weight in _CHECKED_WEIGHTS if negative or weight >= 0]
    weights = [np.float32(weight) for weight in (given if weighted else [1.0])]
    values = [at_source]

    def better(new: Any, old: Any) -> bool:
        return bool(_returned("better", functors.better, new, old))

    descending = better(type(at_source)(1), type(at_source)(0))
    with np.errstate(all="ignore"):
        for value, weight in ((value, weight) for value in values for weight in weights):
            new = _offered(functors, value, weight)
            if new is not None and better(new, value):
                raise ProgramError(f"gather({value}, {weight}) offers {new}, which is better than {value} itself")
            if new is not None and new not in values and len(values) < _CHECKED_VALUES:
                values.append(new)
        for value in values:
            if better(value, value):
                raise ProgramError(f"{value} is better than {value}, which is the same: better must be strict")
        for one, other in itertools.permutations(values, 2):
            if better(one, other) == better(other, one):
                raise ProgramError(f"of {one} and {other} exactly one must be better than the other")
            if not weighted and better(one, other) != ((one > other) == descending):
                raise ProgramError(f"{one} and {other}: without weights better must be the order of numbers")
            for weight in weights if better(one, other) else ():
                first, second = _offered(functors, one, weight), _offered(functors, other, weight)
                if second is not None and (first is None or better(second, first)):
                    raise ProgramError(
                        f"{one} is better than {other}, but at weight {weight} offers {first} against {second}"
                    )


def _offered(functors: Functors, value: Any, weight: np.float32) -> Any:
    """What gather offers, in the program's type; None for no offer."""
    offer = _returned("gather", functors.gather, value, weight)
    try:
        if isinstance(value, np.uint32):
            return None if offer == NO_OFFER else np.uint32(offer)
        return None if offer != offer else np.float32(offer)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProgramError(
            f"gather({value}, {weight}) offers {offer!r}; expected a {type(value).__name__}"
        ) from error


def _returned(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # whatever a user's function does wrong
        shown = ", ".join(map(str, arguments))
        raise ProgramError(
            f"{name}({shown}) raises {type(error).__name__}: {error}; it must return a value for any arguments"
        ) from error


class Kernels(NamedTuple):
    """The compiled steps of one program; ``search`` only without weights."""

    refresh: Kernel
    search: Kernel | None
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


FORMS_MAX = 128
"""So many forms a process has kernels of. Clients may choose parameters that functors capture, and machine code,
some 1.7 MB for each form, cannot be given back."""
_known: dict[Form, Kernels] = {}
_making = threading.Lock()


class FormsSpent(ProgramError):
    """Who asks has had as many forms made as he may (``FormsAllowed``)."""


class FormsAllowed:
    """How many forms that are not there yet may be made for some, who cannot take the places of all others."""

    def __init__(self, forms: int) -> None:
        self.left = forms

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What this thread makes in the block counts. Raises ``FormsSpent`` where no more may be made."""
        before, _spending.of = _spending.of, self
        try:
            yield
        finally:
            _spending.of = before


class _Spending(threading.local):
    """On whose account this thread has forms made; None: nobody's."""

    of: FormsAllowed | None = None


_spending = _Spending()


def kernels_of(form: Form) -> Kernels:
    """The kernels of a form; programs of equal form share them.

    Raises:
        ProgramError: the process has those of as many other forms as it may.
        FormsSpent: who asks may have no more of them made.
    """
    with _making:
        if form not in _known:
            allowed = _spending.of
            if allowed is not None and allowed.left <= 0:
                raise FormsSpent("no program has had these functions and parameters, and no more are compiled")
            if len(_known) >= FORMS_MAX:
                raise ProgramError(
                    f"compiled code of {FORMS_MAX} programs with other functions or parameters is there, as much "
                    "as a process keeps; after a restart there is room for others"
                )
            _known[form] = _made(form)
            if allowed is not None:
                allowed.left -= 1
        return _known[form]


def _made(form: Form) -> Kernels:
    single = form.value is np.float32
    names: dict[str, Any] = {
        "WEIGHTED": form.weighted,
        "gather": nb.njit(nogil=True, error_model="numpy")(form.functors.gather),
        "better": nb.njit(nogil=True, error_model="numpy")(form.functors.better),
        "encode": inlined(path_kernels.encode_float if single else path_kernels.encode_int),
        "decode": inlined(path_kernels.decode_float if single else path_kernels.decode_int),
    }
    for helper in _HELPERS:
        names[helper.__name__] = inlined(helper, names)
    return Kernels(
        _refresh_kernel(names, _push_kernel(names, weighted=form.weighted)),
        None if form.weighted else _search_kernel(names),
        specialise(path_audit.audit_range, names),
    )


def _refresh_kernel(names: Mapping[str, Any], push: Kernel) -> Kernel:
    own = {
        "classify": _classify_kernel(names),
        "mend": _mend_kernel(names, push),
        "changed": step(path_kernels.changed, names),
    }
    return specialise(path_refresh.refresh, {**names, **own})


def _classify_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {**names, "places": inlined(path_kernels.first_places, names)}
    for name, made_of in (("in_range", path_kernels.classify_range), ("in_pieces", path_kernels.classify_pieces)):
        own[name] = step(made_of, own)
    return step(path_kernels.classify, own)


def _mend_kernel(names: Mapping[str, Any], push: Kernel) -> Kernel:
    own = {"settle": _settle_kernel(names), "relax": step(path_kernels.relax, names), "push": push}
    return step(path_kernels.mend, {**names, **own})


def _push_kernel(names: Mapping[str, Any], *, weighted: bool) -> Kernel:
    if weighted:
        return step(path_kernels.push_by_value, {**names, "spread": _spread_kernel(names)})
    return step(path_kernels.push_by_level, {**names, "push_wide": _wide_kernel(names)})


def _wide_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {**names, "edges_read": step(path_loss.add_up, names)}
    # Each may call those before it.
    for name, made_of in (
        ("publish_chunk", path_loss.publish_found),
        ("read_level", path_wide.read_pieces),
        ("take_edges", path_wide.take_kept),
    ):
        own[name] = step(made_of, own)
    return step(path_wide.push_wide, own)


def _settle_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {
        **names,
        "stands_alone": inlined(path_loss.is_independent, names),
        "keep_better": inlined(path_loss.keep_those_better, names),
    }
    # Each may call those before it.
    for name, made_of in (
        ("edges_read", path_loss.add_up),
        ("list_inner", path_loss.publish_inner),
        ("survey_pieces", path_loss.survey),
        ("arrange_lists", path_loss.arrange),
        ("survey_round", path_loss.survey_all),
        ("decide_round", path_loss.decide),
        ("publish_chunk", path_loss.publish_found),
        ("find_children", path_loss.children),
        ("append_in_order", path_loss.in_order),
        ("append_children", path_loss.children_all),
        ("take_some", path_loss.take_pieces),
        ("take_offers", path_loss.take),
        ("relax_inner", path_loss.relax_between),
    ):
        own[name] = step(made_of, own)
    return step(path_loss.settle, own)


def _search_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {**names, "publish": step(path_search.publish, names)}
    steps = {
        "push_level": step(path_search.level_push, own),
        "pull_level": step(path_search.level_pull, own),
        "list_frontier": step(path_search.frontier, own),
    }
    return specialise(path_search.search_by_level, {**own, **steps})


def _spread_kernel(names: Mapping[str, Any]) -> Kernel:
    own = {
        "publish": step(path_search.publish, names),
        "step_bound": step(path_spread.step_bound, names),
        "note": step(path_spread.note_logged, names),
        "done_by_all": step(path_spread.by_all, names),
        "put_off": step(path_spread.postpone, names),
    }
    own["split"] = step(path_spread.split_far, {**names, **own})
    own["expand"] = step(path_spread.expand_near, {**names, **own})
    return step(path_spread.spread, {**names, **own})
