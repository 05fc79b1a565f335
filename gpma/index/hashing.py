"""What the vertex index's kernels are made of: hashes, and the memory operations that NumPy has no words for.

The hash of an integer is a seeded two-round multiply and xor-shift mix (the form of MurmurHash3's finaliser,
with the seeds between the rounds, so that whoever chooses ids cannot choose collisions); strings are taken in
words of eight bytes, each mixed in by one multiplication.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_MIX_1 = np.uint64(0xFF51_AFD7_ED55_8CCD)
_MIX_2 = np.uint64(0xC4CE_B9FE_1A85_EC53)
_MIX_3 = np.uint64(0x9E37_79B9_7F4A_7C15)
_S29 = np.uint64(29)
_S32 = np.uint64(32)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def hash_int(value: np.int64, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of one integer."""
    h = (np.uint64(value) ^ seed_0) * _MIX_1
    h = (h ^ (h >> _S32) ^ seed_1) * _MIX_2
    h = (h ^ (h >> _S29)) * _MIX_3
    return np.uint64(h ^ (h >> _S32))


def _element(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(  # type: ignore[no-untyped-call]
        context, builder, array_type, made, [index], wraparound=False
    )


def _load_acquire(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return builder.load_atomic(pointer, "acquire", 8, typ=ir.IntType(64))

    return types.uint64(array, types.intp), generate


def _store_release(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        byte_pointer = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32]), "llvm.prefetch.p0"
        )
        read, keep, data = i32(0), i32(3), i32(1)
        builder.call(function, [builder.bitcast(pointer, byte_pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _load_word(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(array, types.intp), generate


load_acquire: Any = intrinsic(_load_acquire)
"""``load_acquire(array, index)``: the uint64 there; what was written before its ``store_release`` is visible."""

store_release: Any = intrinsic(_store_release)
"""``store_release(array, index, value)``: write a uint64 there, after everything that was written before."""

prefetch: Any = intrinsic(_prefetch)
"""``prefetch(array, index)``: begin to fetch that element's cache line, for reading."""

load_word: Any = intrinsic(_load_word)
"""``load_word(array, index)``: the eight bytes from there on as one uint64, wherever they stand."""


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _last_word(data: Bytes, start: int, end: int) -> np.uint64:
    """The bytes after the last whole word; of longer strings with some before them, which harms nobody."""
    if end - start >= 8:
        return np.uint64(load_word(data, np.int64(end - 8)))
    word = np.uint64(0)
    for i in range(end - start):
        word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return word


@nb.njit(cache=True, nogil=True, error_model="numpy")
def hash_bytes(data: Bytes, start: int, end: int, seed_0: np.uint64, seed_1: np.uint64) -> np.uint64:
    """64 well-mixed bits of ``data[start:end]``; the length counts, so zero bytes at the end matter."""
    h = seed_0 ^ (np.uint64(end - start) * _MIX_3)
    at = start
    while at + 8 < end:
        h = (h ^ load_word(data, np.int64(at))) * _MIX_1
        h ^= h >> _S32
        at += 8
    h = (h ^ _last_word(data, start, end)) * _MIX_1
    h = (h ^ (h >> _S32) ^ seed_1) * _MIX_2
    h = (h ^ (h >> _S29)) * _MIX_3
    return np.uint64(h ^ (h >> _S32))


@nb.njit(cache=True, nogil=True, error_model="numpy")
def equal_bytes(left: Bytes, left_start: int, right: Bytes, right_start: int, length: int) -> bool:
    """Whether so many bytes are the same here and there."""
    at = 0
    while at + 8 < length:
        if load_word(left, np.int64(left_start + at)) != load_word(right, np.int64(right_start + at)):
            return False
        at += 8
    here = _last_word(left, left_start, left_start + length)
    return bool(here == _last_word(right, right_start, right_start + length))
