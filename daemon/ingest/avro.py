"""Avro's binary encoding: records of one schema, of which the wanted fields are found and all others read over.

The format: https://avro.apache.org/docs/1.12.0/specification/. A schema becomes a table of nodes, and one compiled
walk reads the records along it, with a stack of its own. It takes no memory for what a record only claims, and its
steps are bounded by the record's bytes: items may take no bytes at all, and there may be any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
import orjson

from ...gpma.index.hashing import Bytes
from ...gpma.intrinsics import inner
from . import captured
from . import decode_columns as columns
from .binary import CUT, GOOD, OTHERS, WHY, varint, word
from .captured import ABSENT, DOCUMENT, NULL, Captured, Form, Numbers, Wanted
from .decode_columns import Bad, Reason

NODES_MAX = 20_000
"""Types of a schema with all that it refers to, those within wanted fields counted once for each."""

DEPTH_MAX = 64
"""Records, arrays and maps within each other, in one record."""

STEPS_MIN, STEPS_A_BYTE = 1 << 14, 16
"""A record may take so many steps, each a value of some type, and so many more for each of its bytes."""

_NOTHING, _BOOLEAN, _INTEGER, _FLOAT, _DOUBLE, _STRING, _FIXED, _ENUM, _RECORD, _UNION, _ARRAY, _MAP = range(12)
_PRIMITIVES = {
    "null": _NOTHING,
    "boolean": _BOOLEAN,
    "int": _INTEGER,
    "long": _INTEGER,
    "float": _FLOAT,
    "double": _DOUBLE,
    "bytes": _STRING,
    "string": _STRING,
}
_NAMED = ("record", "error", "enum", "fixed")
_UNITS = {
    "date": (86_400_000, 1),
    "timestamp-millis": (1, 1),
    "timestamp-micros": (1, 1_000),
    "timestamp-nanos": (1, 1_000_000),
    "local-timestamp-millis": (1, 1),
    "local-timestamp-micros": (1, 1_000),
    "local-timestamp-nanos": (1, 1_000_000),
    "io.debezium.time.Date": (86_400_000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1_000),
    "io.debezium.time.NanoTimestamp": (1, 1_000_000),
}
"""Milliseconds in a unit of time, as a fraction, by logical type and by Debezium's name for it."""

(_REST, _LENGTH, _BRANCH, _SYMBOL, _DEEP, _LONG) = range(OTHERS, OTHERS + 6)
_WHY = WHY | {
    _REST: "bytes are left behind it",
    _LENGTH: "a negative length",
    _BRANCH: "a branch that the union has not",
    _SYMBOL: "a symbol that the enumeration has not",
    _DEEP: f"more than {DEPTH_MAX} values within each other",
    _LONG: "more values than its bytes may hold",
}


class _Type(NamedTuple):
    """A type as a schema gives it, and the namespace that its names are in."""

    given: Any
    namespace: str


class Layout(NamedTuple):
    """A schema as the walk knows it.

    ``nodes``: int64[k, 5], of each type what it is, two numbers that belong to it, the slot that its value goes to
    (-1: none), and in which form; ``children``: int64, the nodes of fields and branches.
    """

    wanted: Wanted
    nodes: Numbers
    children: Numbers
    forms: Sequence[Form]

    def read(self, bodies: Sequence[bytes]) -> tuple[Captured, dict[int, Bad]]:
        """What is wanted of records, and which of them are bad."""
        data = b"".join(bodies)
        ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        found = np.zeros((3, len(bodies), len(self.wanted.names)), np.int64)
        status = _walk(np.frombuffer(data, np.uint8), ends, self.nodes, self.children, *found)
        bad = {
            row: Bad(Reason.MALFORMED, f"no Avro of this schema: {_WHY[int(status[row])]}")
            for row in np.flatnonzero(status).tolist()
        }
        return Captured(self.wanted, self.forms, found[0], found[1], found[2], data), bad


def layout(text: str, references: Iterable[str], wanted: Wanted) -> Layout:
    """The layout of a schema; ``references``: the texts of those that it refers to.

    Raises:
        Bad: it is none, or has more types than ``NODES_MAX``.
    """
    builder = _Builder(wanted)
    for reference in references:
        builder.declare(_parsed(reference))
    root = _parsed(text)
    builder.declare(root)
    return builder.built(root)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if text.isidentifier():  # a primitive may stand there without quotes
            return text
        raise _bad("is not JSON") from None


def _bad(why: str) -> Bad:
    return Bad(Reason.BAD_SCHEMA, f"the Avro schema {why}")


class _Builder:
    """Goes over a schema without recursion: it may be as deep as its text allows."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._named: dict[str, _Type] = {}
        self._shared: dict[str, int] = {}  # the nodes of named types within which nothing is wanted
        self._nodes: list[list[int]] = []
        self._children: list[int] = []
        self._forms: list[Form] = [captured.only("nothing"), captured.only("null")]
        self._left: list[tuple[int, _Type]] = []

    def declare(self, schema: Any) -> None:
        """Note all types that have names."""
        left = [_Type(schema, "")]
        while left:
            given, namespace = left.pop()
            if isinstance(given, list):
                left += [_Type(branch, namespace) for branch in given]
            elif isinstance(given, dict):
                kind = given.get("type")
                if isinstance(kind, dict | list):
                    left.append(_Type(kind, namespace))
                elif kind in _NAMED:
                    name = _full_name(given, namespace)
                    namespace = name.rpartition(".")[0]
                    self._named.setdefault(name, _Type(given, namespace))
                    if len(self._named) > NODES_MAX:
                        raise _bad(f"has more than {NODES_MAX} types")
                    left += [_Type(field["type"], namespace) for field in _fields(given)]
                elif kind in ("array", "map"):
                    left.append(_Type(given.get(_ITEMS[kind]), namespace))

    def built(self, schema: Any) -> Layout:
        self._add(_Type(schema, ""), DOCUMENT)
        while self._left:
            node, of = self._left.pop()
            self._fill(node, of)
        forms, wanted = self._forms, self._wanted
        nodes, children = np.array(self._nodes, np.int64), np.array(self._children, np.int64)
        return Layout(wanted, nodes, children, forms)

    def _add(self, of: _Type, slot: int) -> int:
        """The number of a new node, or of one that is shared; it is filled later."""
        of = self._resolved(of)
        name = ""
        if slot < 0 and isinstance(of.given, dict) and of.given["type"] in _NAMED:
            name = _full_name(of.given, of.namespace)
            if name in self._shared:
                return self._shared[name]
            self._shared[name] = len(self._nodes)
        if len(self._nodes) >= NODES_MAX:
            raise _bad(f"has more than {NODES_MAX} types")
        self._nodes.append([_NOTHING, 0, 0, slot, ABSENT])
        self._left.append((len(self._nodes) - 1, of))
        return len(self._nodes) - 1

    def _resolved(self, of: _Type) -> _Type:
        """The type itself, where it is given by its name, or within another; with the namespace within it."""
        for _ in range(DEPTH_MAX):
            given, namespace = of
            if isinstance(given, str):
                if given in _PRIMITIVES:
                    return of
                full = given if "." in given or not namespace else f"{namespace}.{given}"
                named = self._named.get(full) or self._named.get(given)
                if named is None:
                    raise _bad(f"names the type {columns.shown(given)}, which is not there")
                return named
            if isinstance(given, list):
                return of
            kind = given.get("type") if isinstance(given, dict) else None
            if isinstance(kind, dict | list) or (
                isinstance(kind, str) and kind not in (*_NAMED, *_ITEMS, *_PRIMITIVES)
            ):
                of = _Type(kind, namespace)
            elif kind in _NAMED:
                return _Type(given, _full_name(given, namespace).rpartition(".")[0])
            elif isinstance(kind, str):
                return of
            else:
                raise _bad(f"has a type that is not understood: {columns.shown(given)}")
        raise _bad("has types that lead nowhere")

    def _fill(self, node: int, of: _Type) -> None:
        given = of.given
        entry = self._nodes[node]
        slot = entry[3]
        if isinstance(given, list):
            entry[:3] = [_UNION, *self._all([(_Type(branch, of.namespace), slot) for branch in given])]
            if any(isinstance(self._resolved(_Type(branch, of.namespace)).given, list) for branch in given):
                raise _bad("has a union within a union")
            return
        kind = given if isinstance(given, str) else given["type"]
        if kind in ("record", "error"):
            inner = {} if slot < 0 else self._wanted.names[slot]
            fields = [
                (_Type(field["type"], of.namespace), inner.get(field["name"], -1)) for field in _fields(given)
            ]
            entry[:3] = [_RECORD, *self._all(fields)]
        elif kind in _ITEMS:
            items = self._add(_Type(given.get(_ITEMS[kind]), of.namespace), -1)
            entry[:3] = [_ARRAY if kind == "array" else _MAP, items, 0]
        elif kind == "enum":
            entry[:3] = [_ENUM, len(_symbols(given)), 0]
        elif kind == "fixed":
            size = given.get("size")
            if type(size) is not int or not 0 <= size < 1 << 31:
                raise _bad(f"has a fixed of size {columns.shown(size)}")
            entry[:3] = [_FIXED, size, 0]
        else:
            entry[0] = _PRIMITIVES[kind]
        if slot >= 0:
            entry[4] = self._form(kind, given if isinstance(given, dict) else {}, slot)

    def _all(self, types: Sequence[tuple[_Type, int]]) -> tuple[int, int]:
        """Where the nodes of some types begin among children, and how many they are."""
        nodes = [self._add(of, slot) for of, slot in types]
        self._children += nodes
        if len(self._children) > 2 * NODES_MAX:
            raise _bad(f"has more than {NODES_MAX} types")
        return len(self._children) - len(nodes), len(nodes)

    def _form(self, kind: str, given: dict[str, Any], slot: int) -> int:
        if kind == "null":
            return NULL
        self._forms.append(_form_of(kind, given, is_time=slot == self._wanted.time))
        return len(self._forms) - 1


_ITEMS = {"array": "items", "map": "values"}


def _form_of(kind: str, given: dict[str, Any], *, is_time: bool) -> Form:
    logical = given.get("logicalType")
    if kind in ("int", "long"):
        unit = logical if isinstance(logical, str) and logical in _UNITS else given.get("connect.name")
        if is_time and isinstance(unit, str) and unit in _UNITS:
            return captured.milliseconds(*_UNITS[unit])
        return captured.integers
    if kind in ("bytes", "fixed") and logical == "decimal":
        scale = given.get("scale", 0)
        if type(scale) is int and 0 <= scale <= captured.DECIMAL_SCALE_MAX:
            return captured.decimals(scale)
    if kind == "fixed" and logical == "uuid" and given.get("size") == 16:
        return captured.uuids
    if kind == "enum":
        return captured.symbols(_symbols(given))
    plain = {
        "boolean": captured.booleans,
        "float": captured.floats,
        "double": captured.doubles,
        "string": captured.texts,
        "record": captured.records,
        "error": captured.records,
    }
    return plain.get(kind) or captured.only(f"{'an' if kind == 'array' else 'a'} {kind}")


def _full_name(given: dict[str, Any], namespace: str) -> str:
    name, own = given.get("name"), given.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str | None):
        raise _bad("has a type without a name")
    return name if "." in name or not own else f"{own}.{name}"


def _fields(given: dict[str, Any]) -> list[dict[str, Any]]:
    if given["type"] not in ("record", "error"):
        return []
    fields = given.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in fields
    ):
        raise _bad("has a record without fields")
    return fields


def _symbols(given: dict[str, Any]) -> list[str]:
    symbols = given.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise _bad("has an enumeration without symbols")
    return symbols


# -- the walk ---------------------------------------------------------------------------------------------


@inner
def _zigzag(data: Bytes, at: Any, end: Any) -> tuple[Any, Any, Any]:
    """(number, where it ends, status)."""
    coded, at, state = varint(data, at, end)
    bits = np.uint64(coded)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), at, state


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _walk(
    data: Bytes, ends: Numbers, nodes: Numbers, children: Numbers, form: Numbers, number: Numbers, length: Numbers
) -> npt.NDArray[np.uint8]:
    """Read each record, into its row of the last three; returns what became of it."""
    status = np.zeros(ends.size, np.uint8)
    stack = np.empty(DEPTH_MAX, np.int64)
    left = np.empty(DEPTH_MAX, np.int64)  # fields, or items of the block, that are still to come
    at: Any = np.int64(0)
    for row in range(ends.size):
        end = ends[row]
        steps = STEPS_MIN + STEPS_A_BYTE * (end - at)
        top: Any = np.int64(-1)
        node: Any = np.int64(0)
        state: Any = np.int64(GOOD)
        while True:
            steps -= 1
            if steps < 0:
                state = _LONG
                break
            kind, first, count, slot = nodes[node, 0], nodes[node, 1], nodes[node, 2], nodes[node, 3]
            value: Any = np.int64(0)
            size: Any = np.int64(0)
            if kind == _UNION:
                value, at, state = _zigzag(data, at, end)
                if state != GOOD:
                    break
                if not 0 <= value < count:
                    state = _BRANCH
                    break
                node = children[first + value]
                continue
            if kind >= _RECORD:
                top += 1
                if top == DEPTH_MAX:
                    state = _DEEP
                    break
                stack[top], left[top] = node, count if kind == _RECORD else 0
            elif kind in (_INTEGER, _ENUM):
                value, at, state = _zigzag(data, at, end)
                if kind == _ENUM and state == GOOD and not 0 <= value < first:
                    state = _SYMBOL
            elif kind == _STRING:
                size, at, state = _zigzag(data, at, end)
                value = at
                if state == GOOD and size < 0:
                    state = _LENGTH
                elif state == GOOD and size > end - at:
                    state = CUT
                else:
                    at += size
            elif kind != _NOTHING:
                size = first if kind == _FIXED else np.int64(1 if kind == _BOOLEAN else 4 if kind == _FLOAT else 8)
                value = at
                if size > end - at:
                    state = CUT
                else:
                    if kind != _FIXED:
                        value = word(data, at, size)
                    at += size
            if state != GOOD:
                break
            if slot >= 0:
                form[row, slot], number[row, slot], length[row, slot] = nodes[node, 4], value, size
            # What comes next: a field, an item, or what stands behind a record, an array or a map.
            node = np.int64(-1)
            while top >= 0 and node < 0:
                outer = stack[top]
                kind, first, count = nodes[outer, 0], nodes[outer, 1], nodes[outer, 2]
                if kind == _RECORD:
                    if left[top] == 0:
                        top -= 1
                    else:
                        node = children[first + count - left[top]]
                        left[top] -= 1
                    continue
                if left[top] == 0:
                    value, at, state = _zigzag(data, at, end)
                    if state == GOOD and value < 0:  # the block says how long it is
                        value = -value
                        size, at, state = _zigzag(data, at, end)
                        if state == GOOD and size < 0:
                            state = _LENGTH
                    if state != GOOD:
                        break
                    if value == 0:
                        top -= 1
                        continue
                    left[top] = value
                if kind == _MAP:
                    size, at, state = _zigzag(data, at, end)
                    if state == GOOD and size < 0:
                        state = _LENGTH
                    elif state == GOOD and size > end - at:
                        state = CUT
                    if state != GOOD:
                        break
                    at += size
                left[top] -= 1
                node = first
            if state != GOOD or node < 0:
                break
        if state == GOOD and at != end:
            state = _REST
        status[row] = state
        at = end
    return status


def warm_up() -> None:
    """Compile the walk, or load it from the cache."""
    layout('"long"', (), Wanted([])).read([b"\0"])
