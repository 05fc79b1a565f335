"""Records that are written down once, and which kernels take from there."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from graphtide.gpma.made_of import whole
from graphtide.gpma.written import Written, n_words, new_words, record_type, taking, write


class Inner(NamedTuple):
    table: npt.NDArray[np.int64]
    factor: int


class Outer(NamedTuple):
    keys: npt.NDArray[np.uint64]
    inner: Inner
    flags: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32]


INNER = record_type(Inner, nb.int64[:, :, ::1], nb.int64)
OUTER = record_type(Outer, nb.uint64[::1], INNER, nb.uint8[::1], nb.float32[::1])
outer_in: Any = taking(OUTER)


@nb.njit
def use(words):  # type: ignore[no-untyped-def]
    """Reads every field, and writes some."""
    outer = outer_in(words)
    table = outer.inner.table
    total = np.int64(0)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            for k in range(table.shape[2]):
                total += table[i, j, k] * (100 * i + 10 * j + k)
    outer.keys[1] = np.uint64(2**63 + 5)
    outer.flags[:] = 7
    return total * outer.inner.factor, outer.weights.size, outer.weights.sum(), outer.keys[0]


def outer_of(n: int = 3) -> Outer:
    table = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    keys = np.array([2**64 - 2, 0, 0], np.uint64)
    return Outer(keys, Inner(table, -3), np.zeros(n, np.uint8), np.full(n, 0.5, np.float32))


def test_kernels_take_what_was_written_and_write_into_it() -> None:
    outer, words = outer_of(), new_words(OUTER)
    assert words.size == n_words(OUTER) == 2 + (4 + 1) + 2 + 2
    write(words, outer)
    total, n_weights, weights, key = use(words)
    i, j, k = np.indices(outer.inner.table.shape)
    assert total == -3 * int((outer.inner.table * (100 * i + 10 * j + k)).sum())
    assert (n_weights, weights, key) == (3, 1.5, 2**64 - 2)
    assert outer.keys.tolist() == [2**64 - 2, 2**63 + 5, 0] and outer.flags.tolist() == [7, 7, 7]


class Perhaps(NamedTuple):
    before: int
    absent: None
    behind: npt.NDArray[np.int64]


PERHAPS = record_type(Perhaps, nb.int64, nb.none, nb.int64[::1])
perhaps_in: Any = taking(PERHAPS)


@nb.njit
def around(words):  # type: ignore[no-untyped-def]
    """What stands before and behind a field that is not there, and whether that is None."""
    taken = perhaps_in(words)
    return taken.before, taken.absent is None, taken.behind.size, taken.behind[1]


def test_what_is_not_there_takes_no_word() -> None:
    perhaps, words = Perhaps(5, None, np.array([7, 8, 9])), new_words(PERHAPS)
    assert words.size == n_words(PERHAPS) == 1 + 2
    write(words, perhaps)
    assert around(words) == (5, True, 3, 8)


def test_another_record_takes_the_place_of_the_first_and_empty_arrays_are_none() -> None:
    words = new_words(OUTER)
    write(words, outer_of())
    write(words, outer_of(0))
    assert use(words)[1:3] == (0, 0.0)


def test_arrays_last_as_long_as_what_they_are_written_in() -> None:
    written = Written(OUTER)
    written.write(outer_of())
    gc.collect()
    np.full(1 << 16, 9, np.uint8)  # would take the place of what is let go
    assert use(written.words)[1:] == (3, 1.5, 2**64 - 2)


def test_a_record_of_other_fields_makes_another_kernel() -> None:
    """Fields are places: a kernel that was kept for others must not be taken."""

    class Other(NamedTuple):
        keys: npt.NDArray[np.uint64]
        inner: Inner
        weights: npt.NDArray[np.float32]
        flags: npt.NDArray[np.uint8]

    def kernel_of(kind: type, *fields: Any) -> Any:
        take = taking(record_type(kind, *fields))

        def kernel(words):  # type: ignore[no-untyped-def]
            return take(words).flags[0]

        return kernel

    one = kernel_of(Outer, nb.uint64[::1], INNER, nb.uint8[::1], nb.float32[::1])
    same = kernel_of(Outer, nb.uint64[::1], INNER, nb.uint8[::1], nb.float32[::1])
    other = kernel_of(Other, nb.uint64[::1], INNER, nb.float32[::1], nb.uint8[::1])
    assert whole(one).digest == whole(same).digest != whole(other).digest
