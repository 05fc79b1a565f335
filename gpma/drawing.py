"""Pieces of shared work (``team.py``), as each thread draws them from a counter that all of them share::

    def sums(thread, values, cursor, out):
        for piece in drawn(cursor, out.size):
            out[piece] = ...

No two threads get the same one, and whoever finds none is done. A loop over them is no more than the addition and
the comparison: it is neither a call, as one over a generator would be, nor written out.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import RefType, iternext_impl
from numba.extending import intrinsic, lower_builtin, models, register_model

_INT64 = ir.IntType(64)


class _Drawn(types.SimpleIteratorType):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__("drawn", types.int64)


_DRAWN = _Drawn()


@register_model(_Drawn)
class _Model(models.StructModel):  # type: ignore[misc]
    """Where the counter is; how far pieces go, and how long each is."""

    def __init__(self, manager: Any, kind: Any) -> None:
        fields = [("counter", types.CPointer(types.int64)), ("end", types.int64), ("each", types.int64)]
        super().__init__(manager, kind, fields)  # type: ignore[no-untyped-call]


def _draw(context: Any, builder: Any, signature: Any, arguments: Any, result: Any) -> None:
    drawn = cgutils.create_struct_proxy(_DRAWN)(context, builder, arguments[0])  # type: ignore[no-untyped-call]
    begin = builder.atomic_rmw("add", drawn.counter, drawn.each, "monotonic")
    is_there = builder.icmp_signed("<", begin, drawn.end)
    result.set_valid(is_there)
    result.yield_(begin)


_next: Any = _draw
lower_builtin("iternext", _Drawn)(iternext_impl(RefType.UNTRACKED)(_next))  # type: ignore[no-untyped-call]


def _begin(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    cursor, end, *each = arguments
    drawn = cgutils.create_struct_proxy(_DRAWN)(context, builder)  # type: ignore[no-untyped-call]
    drawn.counter = context.make_array(signature.args[0])(context, builder, cursor).data
    drawn.end, drawn.each = end, each[0] if each else _INT64(1)
    return drawn._getvalue()


def _drawn(typing_context: Any, cursor: Any, n: Any) -> Any:
    """drawn(cursor, n): the numbers of those of n pieces that are drawn here.

    ``cursor``: int64[>= 1], a parameter of the kernel or in one, since nothing else keeps it here; its first entry
    is the next one to be drawn, at first 0, or the piece to begin with.
    """
    assert _next  # it is part of what the kernel is made of
    return _DRAWN(cursor, types.int64), _begin


def _drawn_by(typing_context: Any, cursor: Any, size: Any, each: Any) -> Any:
    """drawn_by(cursor, size, each): where pieces of so many entries begin, of ``size`` in all; as ``drawn``.

    The cursor's first entry is where the next piece begins.
    """
    assert _next
    return _DRAWN(cursor, types.int64, types.int64), _begin


# Type checkers see the typing context as a parameter, which callers do not pass.
drawn: Any = intrinsic(_drawn)
drawn_by: Any = intrinsic(_drawn_by)
