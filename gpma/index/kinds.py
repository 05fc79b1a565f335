"""What differs between the two kinds of ids, integers and strings, in the vertex index's kernels.

Kernels (``id_kernels.py``) are written once. Ids that come are a ``column`` int64[] and ``data``: of integers the
ids themselves, and None; of strings i is ``data[column[i]:column[i + 1]]`` (uint8[]). Ids that are kept by dense
vertex are ``words`` and an ``arena``: integers int64[] and None; of strings a uint64 says where in the arena
(uint8[]) each lies. In inner loops bytes are known by their address, since passing arrays on counts references.

What kernels do with single ids has two forms here under one name. When a kernel is compiled, the second argument
says which of them is meant: None, or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from ..edges import Int
from ..intrinsics import address_of, ask_for_byte, copy_bytes, load_acquire, prefetch_to_read, store_release
from .hash_table import SEED_0, SEED_1
from .hashing import Bytes, Words, equal_bytes, hash_bytes, hash_int
from .ids import IntColumn

LENGTH_BITS = np.uint64(9)
LENGTH = np.uint64(0x1FF)
"""A string's place is one word, so that a reader sees all of it or nothing: where it begins in the arena << 9, and
its length in bytes."""


def by_kind(of_ints: Any, of_strings: Any) -> Any:
    """One name for two functions of the same parameters, for kernels only."""

    def either(*arguments: Any) -> Any:
        raise NotImplementedError

    @overload(either, strict=False, inline="always")
    def chosen(ids: Any, more: Any, *others: Any) -> Any:
        return of_ints if isinstance(more, types.NoneType) else of_strings

    return either


def _no_address(words: IntColumn, none: None) -> None:
    return None


def _address(words: Words, array: Bytes) -> Int:
    return address_of(array)


def _no_bytes(words: IntColumn, none: None) -> int:
    return 0


def _bytes(words: Words, array: Bytes) -> int:
    return array.size


def _hash_int_of(column: IntColumn, data: None, i: Int, header: Words) -> np.uint64:
    return hash_int(column[i], header[SEED_0], header[SEED_1])


def _hash_string_of(column: IntColumn, data: Int, i: Int, header: Words) -> np.uint64:
    first, end = column[i], column[i + 1]
    return hash_bytes(data + np.uint64(first), end - first, header[SEED_0], header[SEED_1])


def _hash_kept_int(words: IntColumn, arena: None, vertex: Int, header: Words) -> np.uint64:
    return hash_int(words[vertex], header[SEED_0], header[SEED_1])


def _hash_kept_string(words: Words, arena: Int, vertex: Int, header: Words) -> np.uint64:
    place = words[vertex]
    return hash_bytes(arena + (place >> LENGTH_BITS), np.int64(place & LENGTH), header[SEED_0], header[SEED_1])


def _is_int(words: IntColumn, arena: None, vertex: Int, column: IntColumn, data: None, i: Int) -> bool:
    return bool(words[vertex] == column[i])


def _is_string(words: Words, arena: Int, vertex: Int, column: IntColumn, data: Int, i: Int) -> bool:
    place = load_acquire(words, vertex)
    first = column[i]
    length: Int = column[i + 1] - first
    if np.int64(place & LENGTH) != length:
        return False
    return equal_bytes(arena + (place >> LENGTH_BITS), data + np.uint64(first), length)


def _int_bytes(column: IntColumn, data: None, i: Int) -> Int:
    return np.int64(0)


def _string_bytes(column: IntColumn, data: Int, i: Int) -> Int:
    return column[i + 1] - column[i]


def _strides_to_int(words: IntColumn, arena: None) -> int:
    return 1


def _strides_to_string(words: Words, arena: Int) -> int:
    return 2


def _ask_for_int(words: IntColumn, arena: None, vertex: Int, stride: Int) -> None:
    prefetch_to_read(words, vertex)


def _ask_for_string(words: Words, arena: Int, vertex: Int, stride: Int) -> None:
    if stride == 0:
        prefetch_to_read(words, vertex)
    else:
        ask_for_byte(arena + (words[vertex] >> LENGTH_BITS))


def _keep_int(
    words: IntColumn, arena: None, vertex: Int, used: Int, column: IntColumn, data: None, i: Int
) -> None:
    words[vertex] = column[i]


def _keep_string(words: Words, arena: Int, vertex: Int, used: Int, column: IntColumn, data: Int, i: Int) -> None:
    first = column[i]
    length = column[i + 1] - first
    copy_bytes(arena + np.uint64(used), data + np.uint64(first), length)
    store_release(words, vertex, (np.uint64(used) << LENGTH_BITS) | np.uint64(length))


address = by_kind(_no_address, _address)
"""``address(words or column, arena or data)``: where the arena, or the data, begins; None where there is none."""

size_of = by_kind(_no_bytes, _bytes)
"""``size_of(words, arena)``: how many bytes the arena has."""

hash_of = by_kind(_hash_int_of, _hash_string_of)
"""``hash_of(column, data, i, header)``: the hash of id i."""

hash_kept = by_kind(_hash_kept_int, _hash_kept_string)
"""``hash_kept(words, arena, vertex, header)``: the hash of a vertex's id."""

is_id = by_kind(_is_int, _is_string)
"""``is_id(words, arena, vertex, column, data, i)``: whether the vertex has id i."""

bytes_of = by_kind(_int_bytes, _string_bytes)
"""``bytes_of(column, data, i)``: how many bytes of the arena id i takes."""

strides_to = by_kind(_strides_to_int, _strides_to_string)
"""``strides_to(words, arena)``: in how many strides ``ask_for`` reaches an id."""

ask_for = by_kind(_ask_for_int, _ask_for_string)
"""``ask_for(words, arena, vertex, stride)``: fetch its id; each stride reads what the one before asked for."""

keep = by_kind(_keep_int, _keep_string)
"""``keep(words, arena, vertex, used, column, data, i)``: give it id i, behind the bytes that are used."""
