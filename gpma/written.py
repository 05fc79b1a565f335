"""Records of arrays that are written down once, and which kernels take from there at each call.

To hand a compiled function an array costs more than one update of a small batch, more than twice as much where the
array is a field of a record, and a refresh needs dozens of them, which are the same at nearly every call. So they
are written into words: where each array is, and how large. Whoever keeps the words keeps the arrays, and writes
anew when one of them is another.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

Words = npt.NDArray[np.int64]
"""A record as it is written down."""

_INT64 = ir.IntType(64)


def record_type(kind: type, *fields: Any) -> Any:
    """The compiler's type of a record (a NamedTuple): by fields ``nb.uint64[::1]`` and the like for arrays,
    ``nb.int64`` for numbers, ``nb.none`` for what is not there, and again such types for records."""
    return types.NamedTuple(fields, kind)


def n_words(record: Any) -> int:
    """How many words a record of this type takes: of an array its address and its shape."""
    total = 0
    for field in record.types:
        if isinstance(field, types.Array):
            total += 1 + field.ndim
        elif field is not types.none:
            total += n_words(field) if isinstance(field, types.BaseTuple) else 1
    return total


def new_words(record: Any) -> Words:
    """Words for a record of this type, yet to be written."""
    return np.zeros(n_words(record), np.int64)


def _write(typing_context: Any, words: Any, record: Any) -> Any:
    """write(words, record): write down a record of contiguous arrays, numbers and records of such."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words_type, record_type = signature.args
        place = context.make_array(words_type)(context, builder, arguments[0]).data
        for k, number in enumerate(_numbers(context, builder, record_type, arguments[1])):
            builder.store(number, builder.gep(place, [_INT64(k)]))
        return context.get_dummy_value()

    return types.void(words, record), generate


def _numbers(context: Any, builder: Any, record: Any, value: Any) -> list[Any]:
    found: list[Any] = []
    for k, field in enumerate(record.types):
        part = builder.extract_value(value, k)
        if isinstance(field, types.Array):
            assert field.layout == "C"
            array = context.make_array(field)(context, builder, part)
            sizes = [builder.extract_value(array.shape, axis) for axis in range(field.ndim)]
            found += [builder.ptrtoint(array.data, _INT64), *sizes]
        elif isinstance(field, types.BaseTuple):
            found += _numbers(context, builder, field, part)
        elif field is not types.none:
            found.append(context.cast(builder, part, field, types.int64))
    return found


def taking(record: Any) -> Any:
    """take(words): the record of this type that was written there. Its arrays are held by whoever wrote it."""
    shape = _described(record)

    def typed(typing_context: Any, words: Any) -> Any:
        assert shape

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            value, _ = _taken(context, builder, record, place, 0)
            return value

        return record(words), generate

    return intrinsic(typed)


def _taken(context: Any, builder: Any, record: Any, place: Any, at: int) -> tuple[Any, int]:
    """The record that begins at this word, and the word behind it."""

    def word(k: int) -> Any:
        return builder.load(builder.gep(place, [_INT64(k)]))

    parts = []
    for field in record.types:
        if isinstance(field, types.Array):
            made = context.make_array(field)(context, builder)
            sizes = [word(at + 1 + axis) for axis in range(field.ndim)]
            item = context.get_constant(types.intp, field.dtype.bitwidth // 8)
            strides = [item]
            for size in sizes[:0:-1]:
                strides.insert(0, builder.mul(strides[0], size))
            begin = builder.inttoptr(word(at), made.data.type)
            populate_array(made, data=begin, shape=sizes, strides=strides, itemsize=item, meminfo=None)  # type: ignore[no-untyped-call]
            parts.append(made._getvalue())
            at += 1 + field.ndim
        elif isinstance(field, types.BaseTuple):
            part, at = _taken(context, builder, field, place, at)
            parts.append(part)
        elif field is types.none:
            parts.append(context.get_dummy_value())
        else:
            parts.append(context.cast(builder, word(at), types.int64, field))
            at += 1
    return context.make_tuple(builder, record, parts), at


def _described(record: Any) -> str:
    """The type with the names of all fields, by which kernels that take such a record are told apart."""
    inner = (_described(field) if isinstance(field, types.BaseTuple) else str(field) for field in record.types)
    return f"{record.instance_class.__qualname__}({', '.join(map('{}: {}'.format, record.fields, inner))})"


_write_down: Any = intrinsic(_write)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def write(words: Words, record: Any) -> None:
    """Write down a record, into words made for its type."""
    _write_down(words, record)


class _Kept:
    """What lies under an array of words, and lasts as long: the words themselves, and their record."""

    __slots__ = ("record", "words")

    def __init__(self, words: Words, record: Any) -> None:
        self.words, self.record = words, record

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.words.__array_interface__


def keeping(words: Words, record: Any) -> Words:
    """The same words, which keep the arrays of the record that stands there: for those who take other words at any
    time, while kernels still read these."""
    return np.asarray(_Kept(words, record))


class Written:
    """``words`` in which a record of this type stands, and the record, so that its arrays last as long."""

    __slots__ = ("record", "words")

    def __init__(self, record_type: Any) -> None:
        self.words = new_words(record_type)
        self.record: Any = None

    def write(self, record: Any) -> None:
        """Write down another record."""
        write(self.words, record)
        self.record = record
