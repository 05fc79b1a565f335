"""Atomic operations on array elements, which Numba lacks on the processor, and the bits of a float.

For kernels that several threads run at once. Arrays are C-contiguous, indices int64 in range; nothing is checked.
``load``, ``compare_swap`` and ``fetch_add`` order nothing but their own element. ``exchange``, ``ordered_swap``
and ``ordered_add`` also order everything around them: a flag taken with one shows what its setter wrote before.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
        context, builder, array_type, made, [index], wraparound=False
    )


def _load(typing_context: Any, array: Any, index: Any) -> Any:
    """load(array, index): the element as one other thread left it, never torn, never read twice."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(place, "monotonic", signature.args[0].dtype.bitwidth // 8)

    return array.dtype(array, types.intp), generate


def _swapping(order: str) -> Any:
    def swap(typing_context: Any, array: Any, index: Any, old: Any, new: Any) -> Any:
        """swap(array, index, old, new): write new if the element is old; returns what was there."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_value, place_index, expected, wanted = arguments
            place = _pointer(context, builder, signature.args[0], array_value, place_index)
            pair = builder.cmpxchg(place, expected, wanted, order, order)
            return builder.extract_value(pair, 0)

        return array.dtype(array, types.intp, array.dtype, array.dtype), generate

    return intrinsic(swap)


def _exchange(typing_context: Any, array: Any, index: Any, new: Any) -> Any:
    """exchange(array, index, new): write new; returns what was there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, place_index, wanted = arguments
        place = _pointer(context, builder, signature.args[0], array_value, place_index)
        return builder.atomic_rmw("xchg", place, wanted, "seq_cst")

    return array.dtype(array, types.intp, array.dtype), generate


def _adding(order: str) -> Any:
    def add(typing_context: Any, array: Any, index: Any, amount: Any) -> Any:
        """add(array, index, amount): add to the element; returns what was there."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_value, place_index, added = arguments
            place = _pointer(context, builder, signature.args[0], array_value, place_index)
            return builder.atomic_rmw("add", place, added, order)

        return array.dtype(array, types.intp, array.dtype), generate

    return intrinsic(add)


def _float_bits(typing_context: Any, value: Any) -> Any:
    """float_bits(value): the 32 bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.uint32))

    return types.uint32(types.float32), generate


def _bits_float(typing_context: Any, bits: Any) -> Any:
    """bits_float(bits): the float32 that has these bits (uint32)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


# Type checkers see the typing context as a parameter, which callers do not pass.
load: Any = intrinsic(_load)
compare_swap: Any = _swapping("monotonic")
ordered_swap: Any = _swapping("seq_cst")
exchange: Any = intrinsic(_exchange)
fetch_add: Any = _adding("monotonic")
ordered_add: Any = _adding("seq_cst")
float_bits: Any = intrinsic(_float_bits)
bits_float: Any = intrinsic(_bits_float)
