"""What Numba cannot say by itself, on elements of arrays: prefetch, memmove, and loads and stores of words that
another thread, or process, reads and writes at the same time.

All are LLVM's own and exist on every target (on a processor without a prefetch instruction the prefetch is
nothing). Arrays are C-contiguous, indices and counts int64 and never negative; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

Function = TypeVar("Function", bound=Callable[..., Any])


_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_UNCOUNTED: dict[str, Any] = {"_nrt": False}


class _Inner(CPUDispatcher):  # type: ignore[misc]
    """What only kernels call. A call from Python would go to code that is not there, and end the process."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        raise TypeError(f"{name} can be called by kernels alone, not from Python")


def inner(function: Function) -> Function:
    """``nb.njit`` for what only kernels call: without what Python would call it by, a sixth of all compiling.

    Python gets a TypeError when it calls it.
    """
    compiled: Function = _for_kernels(nb.njit(**_INNER)(function))
    return compiled


def uncounted(function: Function) -> Function:
    """``nb.njit`` for kernels that allocate nothing and hand out no arrays: no references are counted.

    Else Numba counts some wherever a field is taken out of a record around branches or loops, by atomic writes
    that all threads share: of joining two large trees that was 97%. What such a kernel is the first to call is
    compiled so, too, for all its callers: it may hand out no arrays either.
    """
    made: Any = nb.njit(**{**_OPTIONS, **_UNCOUNTED})
    compiled: Function = made(function)
    return compiled


def uncounted_inner(function: Function) -> Function:
    """``uncounted``, and ``inner``."""
    compiled: Function = _for_kernels(nb.njit(**{**_INNER, **_UNCOUNTED})(function))
    return compiled


def _for_kernels(compiled: Any) -> Any:
    # ``njit`` takes no class of dispatchers, and this one holds nothing of its own.
    compiled.__class__ = _Inner
    return compiled


_BYTES = ir.PointerType(ir.IntType(8))
_WORD = ir.PointerType(ir.IntType(64))
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_BOOL = ir.IntType(1)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _BYTES)


def _call(builder: Any, name: str, arguments: list[Any]) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function: Any = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    builder.call(function, arguments)


def _memmove(
    context: Any, builder: Any, array_type: Any, target: Any, to: Any, source: Any, from_: Any, count: Any
) -> None:
    target_address = _address(context, builder, array_type, target, to)
    source_address = _address(context, builder, array_type, source, from_)
    size = builder.mul(count, _INT64(array_type.dtype.bitwidth // 8))
    _call(builder, "llvm.memmove.p0.p0.i64", [target_address, source_address, size, _BOOL(0)])


def _asking(for_write: bool) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        keep, data = _INT32(3), _INT32(1)
        _call(builder, "llvm.prefetch.p0", [address, _INT32(int(for_write)), keep, data])
        return context.get_dummy_value()

    return generate


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """prefetch(array, index): ask for the cache line of ``array[index]``, soon to be read and written.

    Never faults, wherever the index points.
    """
    return types.void(array, types.intp), _asking(for_write=True)


def _prefetch_to_read(typing_context: Any, array: Any, index: Any) -> Any:
    """prefetch_to_read(array, index): the same for a line that is only read, and that others may hold too."""
    return types.void(array, types.intp), _asking(for_write=False)


def _load_acquire(typing_context: Any, array: Any, index: Any) -> Any:
    """load_acquire(array, index): the uint64 there; what was written before its ``store_release`` is visible."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(builder.bitcast(address, _WORD), "acquire", 8, typ=_INT64)

    return types.uint64(array, types.intp), generate


def _store_release(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """store_release(array, index, value): write a uint64 there, after everything that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, place, word = arguments
        address = _address(context, builder, signature.args[0], array_value, place)
        builder.store_atomic(word, builder.bitcast(address, _WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


def _address_of(typing_context: Any, array: Any) -> Any:
    """address_of(array): where an array of bytes begins, as uint64.

    For inner loops: passing arrays on counts references. The array must be held as long as the address is used.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, _INT64)

    return types.uint64(array), generate


def _load_word(typing_context: Any, address: Any) -> Any:
    """load_word(address): the eight bytes from there on as one uint64, wherever they stand."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD), align=1)

    return types.uint64(types.uint64), generate


def _load_word_acquire(typing_context: Any, address: Any) -> Any:
    """load_word_acquire(address): as ``load_acquire``, of the uint64 at an address that is a multiple of 8."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], _WORD), "acquire", 8, typ=_INT64)

    return types.uint64(types.uint64), generate


def _array_at(typing_context: Any, address: Any, n: Any, dtype: Any) -> Any:
    """array_at(address, n, dtype): n numbers from an address on, as an array that does not hold them.

    For records that say where arrays are: to hand a compiled function arrays costs by the array.
    """
    array = types.Array(dtype.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, n, _ = arguments
        made = context.make_array(array)(context, builder)
        size = context.get_constant(types.intp, array.dtype.bitwidth // 8)
        begin = builder.inttoptr(address, made.data.type)
        populate_array(made, data=begin, shape=[n], strides=[size], itemsize=size, meminfo=None)  # type: ignore[no-untyped-call]
        return made._getvalue()

    return array(types.uint64, types.intp, dtype), generate


def _load_byte(typing_context: Any, address: Any) -> Any:
    """load_byte(address): the byte that stands there, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(arguments[0], _BYTES)), _INT64)

    return types.uint64(types.uint64), generate


def _fold(typing_context: Any, left: Any, right: Any) -> Any:
    """fold(left, right): the 128-bit product of two uint64, its halves xored together."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.trunc(builder.lshr(product, wide(64)), _INT64)
        return builder.xor(builder.trunc(product, _INT64), high)

    return types.uint64(types.uint64, types.uint64), generate


def _copy_bytes(typing_context: Any, to: Any, from_: Any, count: Any) -> Any:
    """copy_bytes(to, from_, count): so many bytes from one address to another; the two may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, _BYTES) for address in arguments[:2])
        _call(builder, "llvm.memmove.p0.p0.i64", [target, source, arguments[2], _BOOL(0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), generate


def _ask_for_byte(typing_context: Any, address: Any) -> Any:
    """ask_for_byte(address): have the cache line of that byte fetched, to be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.inttoptr(arguments[0], _BYTES)
        _call(builder, "llvm.prefetch.p0", [byte, _INT32(0), _INT32(3), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _copy(typing_context: Any, target: Any, to: Any, source: Any, from_: Any, count: Any) -> Any:
    """copy(target, to, source, from_, count): ``target[to:][:count] = source[from_:][:count]``.

    The two stretches may overlap; the arrays are of one dtype.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _memmove(context, builder, signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate


def _choose(typing_context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """choose(condition, yes, no): one of two int64, without a branch.

    For searches, where a processor would guess a branch wrong every other time: LLVM makes one of ``if else`` for
    some processors, unless it is told that nobody can predict it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        chosen = builder.select(*arguments)
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return types.int64(types.boolean, types.int64, types.int64), generate


def _lowest_bit(typing_context: Any, word: Any) -> Any:
    """lowest_bit(word): the place of the lowest bit that is set in a uint64, as int64; of 0, anything."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _BOOL(1))

    return types.int64(types.uint64), generate


def _library(name: str, n: int) -> Any:
    """A function of the C library that takes n integers, or addresses, and gives back an int."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT32, [_INT64] * n)
        function: Any = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.sext(builder.call(function, arguments), _INT64)

    def of_one(typing_context: Any, a: Any) -> Any:
        return types.int64(types.int64), generate

    def of_three(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        return types.int64(types.int64, types.int64, types.int64), generate

    def of_four(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return types.int64(types.int64, types.int64, types.int64, types.int64), generate

    return intrinsic({1: of_one, 3: of_three, 4: of_four}[n])


def _shift(typing_context: Any, keys: Any, weights: Any, to: Any, from_: Any, count: Any) -> Any:
    """shift(keys, weights, to, from_, count): move entries within both arrays, or within keys if weights is empty.

    An intrinsic and not a function, because passing arrays to a function counts references with atomic
    instructions: that made merging a leaf twice as slow.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        key_array, weight_array, target, source, n = arguments
        key_type, weight_type = signature.args[:2]
        _memmove(context, builder, key_type, key_array, target, key_array, source, n)
        n_weights = context.make_array(weight_type)(context, builder, weight_array).nitems
        with builder.if_then(builder.icmp_signed("!=", n_weights, _INT64(0))):
            _memmove(context, builder, weight_type, weight_array, target, weight_array, source, n)
        return context.get_dummy_value()

    return types.void(keys, weights, types.intp, types.intp, types.intp), generate


# Type checkers see the typing context as a parameter, which callers do not pass.
prefetch: Any = intrinsic(_prefetch)
prefetch_to_read: Any = intrinsic(_prefetch_to_read)
load_acquire: Any = intrinsic(_load_acquire)
store_release: Any = intrinsic(_store_release)
address_of: Any = intrinsic(_address_of)
load_word: Any = intrinsic(_load_word)
load_word_acquire: Any = intrinsic(_load_word_acquire)
array_at: Any = intrinsic(_array_at)
load_byte: Any = intrinsic(_load_byte)
fold: Any = intrinsic(_fold)
copy_bytes: Any = intrinsic(_copy_bytes)
ask_for_byte: Any = intrinsic(_ask_for_byte)
copy: Any = intrinsic(_copy)
choose: Any = intrinsic(_choose)
lowest_bit: Any = intrinsic(_lowest_bit)
lock_to_read: Any = _library("pthread_rwlock_rdlock", 1)
try_lock_to_read: Any = _library("pthread_rwlock_tryrdlock", 1)
lock_to_write: Any = _library("pthread_rwlock_wrlock", 1)
unlock: Any = _library("pthread_rwlock_unlock", 1)
poll_for: Any = _library("ppoll", 4)
read_file: Any = _library("read", 3)
write_file: Any = _library("write", 3)
shift: Any = intrinsic(_shift)
