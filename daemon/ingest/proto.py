"""Schemas in Protobuf's language, as registries keep them: message types, their fields and enumerations.

The language: https://protobuf.dev/reference/protobuf/proto3-spec/ and its siblings. What describes no field of a
message (options, services, extensions, reserved numbers) is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from . import decode_columns as columns
from .decode_columns import Bad, Reason

MessageType = tuple[int, ...]
"""Which message type of a schema: its place among those of the file, then among those within that, and so on."""

NESTED_MAX = 64
"""Messages within each other."""

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|
    (?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\.?[A-Za-z_][\w.]*|[0-9][\w.+-]*|\.[0-9]\w*|[{}()\[\]<>=;,:+\-/])""",
    re.DOTALL | re.VERBOSE,
)
_WELL_KNOWN = """
syntax = "proto3"; package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message DoubleValue { double value = 1; } message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; } message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; } message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; } message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
"""
"""What every producer can import without registering it."""


class Field(NamedTuple):
    """A field: ``type`` as it was written; ``presence``: whether it can be told that it was not set."""

    name: str
    number: int
    type: str
    repeated: bool = False
    presence: bool = False


@dataclass(eq=False, slots=True)
class Message:
    """A message type: its full name, its fields, and the message types within it, in order."""

    name: str
    types: Types = field(repr=False)
    fields: list[Field] = field(default_factory=list)
    inner: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class Types:
    """All that a schema declares and imports, by full name; ``top``: the message types of its own, in order."""

    messages: dict[str, Message] = field(default_factory=dict)
    enumerations: dict[str, dict[int, str]] = field(default_factory=dict)
    top: list[Message] = field(default_factory=list)

    def message(self, places: MessageType) -> Message:
        """The message type at these places.

        Raises:
            Bad: there is none.
        """
        found: Message | None = None
        for place in places:
            among = self.top if found is None else found.inner
            if not 0 <= place < len(among):
                raise Bad(Reason.MALFORMED, f"the schema has no message type {columns.shown([*places])}")
            found = among[place]
        assert found is not None
        return found

    def message_of(self, of: Message, one: Field) -> Message | None:
        """The message type of a field; None where it is of another type."""
        names = _candidates(of.name, one.type)
        return next((self.messages[name] for name in names if name in self.messages), None)

    def enumeration_of(self, of: Message, one: Field) -> dict[int, str] | None:
        """The names of a field's values by number; None where it is of another type."""
        names = _candidates(of.name, one.type)
        return next((self.enumerations[name] for name in names if name in self.enumerations), None)


def message_type(value: bytes, at: int) -> tuple[MessageType, int]:
    """The message type that is named at this byte of a record, and where the message begins.

    Raises:
        Bad: none is.
    """
    if value[at : at + 1] == b"\0":  # the first of the file, which is the usual one
        return (0,), at + 1
    count, at = _zigzag(value, at)
    if not 0 < count <= NESTED_MAX:
        raise Bad(Reason.MALFORMED, f"a message type within {count - 1} others")
    places: list[int] = []
    for _ in range(count):
        place, at = _zigzag(value, at)
        places.append(place)
    return (*places,), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(5):
        if at + place >= len(value):
            break
        byte = value[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise Bad(Reason.MALFORMED, "what message type it is does not follow the schema's id")


def declared(text: str, imported: Iterable[str]) -> Types:
    """What a schema declares, and the texts that it imports.

    Raises:
        Bad: one of them is no schema.
    """
    types = Types()
    for other in (_WELL_KNOWN, *imported):
        _Parser(other, types).file()
    types.top.clear()
    _Parser(text, types).file()
    return types


def _candidates(scope: str, name: str) -> list[str]:
    """Full names that a name may stand for within a message, the innermost first."""
    if name.startswith("."):
        return [name[1:]]
    parts = scope.split(".")
    return [".".join([*parts[:depth], name]) for depth in range(len(parts), -1, -1)]


def _bad(why: str) -> Bad:
    return Bad(Reason.BAD_SCHEMA, f"the Protobuf schema {why}")


class _Parser:
    def __init__(self, text: str, types: Types) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._types = types
        self._package = ""
        self._presence = True  # without a syntax it is proto2

    def file(self) -> None:
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                self._presence = self._next().strip("\"'") != "proto3"
                self._skip()
            elif word == "package":
                self._package = self._next()
                self._skip()
            elif word == "message":
                self._types.top.append(self._message(self._package, 1))
            elif word == "enum":
                self._enumeration(self._package)
            elif word != ";":
                self._skip()

    def _message(self, scope: str, depth: int) -> Message:
        return self._body(Message(_within(scope, self._name()), self._types), depth)

    def _body(self, message: Message, depth: int) -> Message:
        if depth > NESTED_MAX:
            raise _bad(f"has more than {NESTED_MAX} messages within each other")
        self._types.messages[message.name] = message
        self._expect("{")
        in_oneof = False
        while (word := self._next()) != "}" or in_oneof:
            if word == "}":
                in_oneof = False
            elif word == "message":
                message.inner.append(self._message(message.name, depth + 1))
            elif word == "enum":
                self._enumeration(message.name)
            elif word == "oneof":
                self._next()
                self._expect("{")
                in_oneof = True
            elif word in ("option", "reserved", "extensions", "extend"):
                self._skip()
            elif word != ";":
                self._field(message, word, depth, in_oneof=in_oneof)
        return message

    def _field(self, message: Message, word: str, depth: int, *, in_oneof: bool) -> None:
        label = word if word in ("optional", "required", "repeated") else ""
        kind = self._next() if label else word
        repeated, presence = label == "repeated", self._presence or in_oneof or label == "optional"
        if kind == "map" and self._peek() == "<":
            while self._next() != ">":
                pass
            kind, repeated = "", True
        name = self._name()
        self._expect("=")
        number = self._number()
        if not 0 < number < 1 << 29:
            raise _bad(f"has a field of number {columns.shown(number)}")
        if kind == "group":
            message.inner.append(self._body(Message(_within(message.name, name), self._types), depth + 1))
            message.fields.append(Field(name.lower(), number, "group", repeated=True))
            return
        self._skip()
        message.fields.append(Field(name, number, kind, repeated, presence))

    def _enumeration(self, scope: str) -> None:
        names = self._types.enumerations.setdefault(_within(scope, self._next()), {})
        self._expect("{")
        while (name := self._next()) != "}":
            if name in ("option", "reserved"):
                self._skip()
            elif name != ";":
                self._expect("=")
                negative = self._peek() == "-" and bool(self._next())
                number = self._number()
                names.setdefault(-number if negative else number, name)
                self._skip()

    def _skip(self) -> None:
        """To behind the end of a statement, or of the block that it has."""
        depth = 0
        while True:
            word = self._next()
            if word in "{[(":
                depth += 1
            elif word in "}])":
                depth -= 1
                if depth == 0 and word == "}" and self._peek() != ";":
                    return
            elif word == ";" and depth <= 0:
                return

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _bad("ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, word: str) -> None:
        if (found := self._next()) != word:
            raise _bad(f"has {columns.shown(found)} where {word} must stand")

    def _name(self) -> str:
        if not (word := self._next()).replace(".", "").isidentifier():
            raise _bad(f"has {columns.shown(word)} where a name must stand")
        return word

    def _number(self) -> int:
        word = self._next()
        try:
            return int(word, 8 if re.fullmatch("0[0-7]+", word) else 0)
        except ValueError:
            raise _bad(f"has {columns.shown(word)} where a number must stand") from None


def _within(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _bad(f"has {columns.shown(text[at : at + 20])}, which is not of its language")
        at = found.end()
        if token := found["token"]:
            tokens.append(token)
    return tokens
