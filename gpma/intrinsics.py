"""What Numba cannot say by itself: prefetch and memmove, on elements of arrays.

Both are LLVM intrinsics that exist on every target (on a processor without a prefetch instruction the
prefetch is nothing).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_BYTE = ir.IntType(8)
_BYTES = ir.PointerType(_BYTE)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_BOOL = ir.IntType(1)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _BYTES)


def _call(builder: Any, name: str, arguments: list[Any]) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, which will be read and probably written. Never faults."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        for_write, keep, data = _INT32(1), _INT32(3), _INT32(1)
        _call(builder, "llvm.prefetch.p0", [address, for_write, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def move(typing_context: Any, target: Any, target_index: Any, source: Any, source_index: Any, count: Any) -> Any:
    """``target[target_index:][:count] = source[source_index:][:count]``; the two may overlap.

    Both arrays are C-contiguous, of one dtype; nothing is checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        from_ = _address(context, builder, signature.args[2], arguments[2], arguments[3])
        size = builder.mul(arguments[4], _INT64(signature.args[0].dtype.bitwidth // 8))
        _call(builder, "llvm.memmove.p0.p0.i64", [to, from_, size, _BOOL(0)])
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate
