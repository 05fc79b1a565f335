"""Protobuf's wire format: messages of one type, of which the wanted fields are found and all others passed over.

The format: https://protobuf.dev/programming-guides/encoding/. What is wanted of a message type becomes a table of
fields, and one compiled walk reads the messages along it. It enters no message in which nothing is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.index.hashing import Bytes
from . import captured
from .binary import CUT, GOOD, OTHERS, WHY, varint, word
from .captured import DOCUMENT, NULL, Captured, Form, Numbers, Wanted
from .decode_columns import Bad, Reason
from .proto import Field, Message, MessageType, Types, declared

_VARINT, _WORD, _BYTES, _GROUP, _END, _HALF = range(6)
_ANY = -1

_RECORDS = 2  # the form of the message itself

_SCALARS: dict[str, tuple[int, Form]] = {
    "double": (_WORD, captured.doubles),
    "float": (_HALF, captured.floats),
    "int32": (_VARINT, captured.int32s),
    "int64": (_VARINT, captured.integers),
    "uint32": (_VARINT, captured.uint32s),
    "uint64": (_VARINT, captured.unsigned),
    "sint32": (_VARINT, captured.zigzag),
    "sint64": (_VARINT, captured.zigzag),
    "fixed32": (_HALF, captured.uint32s),
    "fixed64": (_WORD, captured.unsigned),
    "sfixed32": (_HALF, captured.int32s),
    "sfixed64": (_WORD, captured.integers),
    "bool": (_VARINT, captured.booleans),
    "string": (_BYTES, captured.texts),
    "bytes": (_BYTES, captured.only("bytes")),
}

(_LENGTH, _FIELD, _TYPE, _GROUPS) = range(OTHERS, OTHERS + 4)
_WHY = WHY | {
    _LENGTH: "a length past its end",
    _FIELD: "a field of number 0, or of an unknown wire type",
    _TYPE: "a field that has another type",
    _GROUPS: "the end of a group that has not begun",
}


class Layout(NamedTuple):
    """What is wanted of a message type, as the walk knows it.

    ``messages``: int64[m, 4], of each message that is entered where its fields begin and how many they are,
    and the same of what holds where they are not there; ``fields``: int64[f, 5], the number, the wire type, the
    message (-1: none), the slot and the form; ``absent``: int64[d, 2], a slot and the form.
    """

    wanted: Wanted
    messages: Numbers
    fields: Numbers
    absent: Numbers
    forms: Sequence[Form]

    def read(self, bodies: Sequence[bytes]) -> tuple[Captured, dict[int, Bad]]:
        """What is wanted of messages, and which of them are bad."""
        data = b"".join(bodies)
        ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        found = np.zeros((3, len(bodies), len(self.wanted.names)), np.int64)
        status = _walk(np.frombuffer(data, np.uint8), ends, self.messages, self.fields, self.absent, *found)
        bad = {
            row: Bad(Reason.MALFORMED, f"no Protobuf of this schema: {_WHY[int(status[row])]}")
            for row in np.flatnonzero(status).tolist()
        }
        return Captured(self.wanted, self.forms, found[0], found[1], found[2], data), bad


def layout(types: Types, which: MessageType, wanted: Wanted) -> Layout:
    """The layout of a message type.

    Raises:
        Bad: the schema has no such type.
    """
    return _Builder(wanted).built(types.message(which))


class _Builder:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._fields: list[list[int]] = []
        self._absent: list[list[int]] = []
        self._messages: list[list[int]] = []
        self._forms: list[Form] = [captured.only("nothing"), captured.only("null"), captured.records]

    def built(self, message: Message) -> Layout:
        left = [(message, DOCUMENT)]
        while left:
            of, slot = left.pop(0)
            inner = self._wanted.names[slot]
            first, first_absent = len(self._fields), len(self._absent)
            for field in of.fields:
                if field.name in inner:
                    child = of.types.message_of(of, field)
                    number = -1
                    if child is not None and not field.repeated:
                        number = len(self._messages) + len(left) + 1
                        left.append((child, inner[field.name]))
                    self._add(of, field, inner[field.name], number)
            counts = len(self._fields) - first, len(self._absent) - first_absent
            self._messages.append([first, counts[0], first_absent, counts[1]])
        return Layout(
            self._wanted,
            np.array(self._messages, np.int64),
            np.array(self._fields, np.int64).reshape(-1, 5),
            np.array(self._absent, np.int64).reshape(-1, 2),
            self._forms,
        )

    def _add(self, of: Message, field: Field, slot: int, child: int) -> None:
        if field.repeated:
            wire, form = _ANY, captured.only("a list")
        elif child >= 0:
            wire, form = _BYTES, captured.records
        elif field.type in _SCALARS:
            wire, form = _SCALARS[field.type]
        elif (names := of.types.enumeration_of(of, field)) is not None:
            wire, form = _VARINT, captured.numbered(names)
        else:
            wire, form = _ANY, captured.only("a value of a type that the schema has not")
        self._forms.append(form)
        code = len(self._forms) - 1
        self._fields.append([field.number, wire, child, slot, code])
        is_null = field.presence or child >= 0 or wire == _ANY
        self._absent.append([slot, NULL if is_null else code])


# -- the walk ---------------------------------------------------------------------------------------------


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _walk(
    data: Bytes,
    ends: Numbers,
    messages: Numbers,
    fields: Numbers,
    absent: Numbers,
    form: Numbers,
    number: Numbers,
    length: Numbers,
) -> npt.NDArray[np.uint8]:
    """Read each message, into its row of the last three; returns what became of it."""
    status = np.zeros(ends.size, np.uint8)
    within = np.empty(len(messages), np.int64)  # the messages that we are in, and where they end
    stops = np.empty(len(messages), np.int64)
    at: Any = np.int64(0)
    for row in range(ends.size):
        end = ends[row]
        state: Any = np.int64(GOOD)
        top: Any = np.int64(0)
        groups: Any = np.int64(0)
        within[0], stops[0] = 0, end
        form[row, DOCUMENT] = _RECORDS
        for entry in range(messages[0, 2], messages[0, 2] + messages[0, 3]):
            form[row, absent[entry, 0]] = absent[entry, 1]
        while True:
            while top >= 0 and at == stops[top] and groups == 0:
                top -= 1
            if top < 0:
                break
            stop = stops[top]
            tag, at, state = varint(data, at, stop)
            if state != GOOD:
                break
            wire, which = tag & 7, (tag >> 3) & ((1 << 61) - 1)
            value: Any = np.int64(0)
            size: Any = np.int64(0)
            if which == 0 or wire > _HALF:
                state = _FIELD
            elif wire == _VARINT:
                value, at, state = varint(data, at, stop)
            elif wire == _BYTES:
                size, at, state = varint(data, at, stop)
                value = at
                if state == GOOD and not 0 <= size <= stop - at:
                    state = _LENGTH
                at += size
            elif wire in (_WORD, _HALF):
                width = np.int64(8 if wire == _WORD else 4)
                if width > stop - at:
                    state = CUT
                else:
                    value = word(data, at, width)
                at += width
            elif wire == _GROUP:
                groups += 1
            elif groups == 0:
                state = _GROUPS
            else:
                groups -= 1
                continue
            if state != GOOD:
                break
            if groups > 0 and not (groups == 1 and wire == _GROUP):
                continue
            message = within[top]
            for entry in range(messages[message, 0], messages[message, 0] + messages[message, 1]):
                if fields[entry, 0] != which:
                    continue
                if fields[entry, 1] != _ANY and fields[entry, 1] != wire:
                    state = _TYPE
                    break
                slot, child = fields[entry, 3], fields[entry, 2]
                if child >= 0:
                    top += 1
                    within[top], stops[top] = child, value + size
                    at = value
                    if form[row, slot] != fields[entry, 4]:
                        first = messages[child, 2]
                        for missing in range(first, first + messages[child, 3]):
                            form[row, absent[missing, 0]] = absent[missing, 1]
                form[row, slot], number[row, slot], length[row, slot] = fields[entry, 4], value, size
                break
            if state != GOOD:
                break
        status[row] = state
        at = end
    return status


def warm_up() -> None:
    """Compile the walk, or load it from the cache."""
    layout(declared("message Empty {}", ()), (0,), Wanted([])).read([b""])
