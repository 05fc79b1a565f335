"""Records whose schema is in a registry: Avro, Protobuf and JSON, as the registry says.

A record begins with a zero byte and the schema's id, four bytes big-endian; in Protobuf the numbers of the message
type follow: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html,
"Wire format". Records of one schema are read together; what stands in them has the names and types that it has in
JSON, so that what is good and what is bad does not depend on the encoding.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from ..records.stream import RawRecord
from . import decode_columns as columns
from .captured import Captured, Path, Wanted
from .decode_columns import Bad, Reason
from .decode_debezium import Changes, json_key
from .decode_records import Edge, load_json
from .named_columns import NamedColumns
from .proto import MessageType, Types, declared, message_type
from .registry import Registry, Schema

NEEDS_REGISTRY = "records of a schema registry need source.registry.url"

KEPT_BYTES_MAX = 64 << 20
"""Bytes of schemas that are kept, and of what is made of them, all in all and about."""
_LEAST_BYTES = 1 << 10
_BYTES_A_CHARACTER = 16  # of a text in which types are as short as can be
UNKNOWN_S = 10.0
"""An id that the registry did not know is asked for again after so long; it may have been about to hear of it."""

_MAGIC = 0
_HEAD = 5  # bytes before the message types, or the record itself

Documents = list[Any]
"""For each record its document, or why it is ``Bad``; None for one without a value."""

Reader = Callable[[Sequence[bytes]], Documents]


class Reading(NamedTuple):
    """What is read of records, or of their keys: these fields, one of which may be a time."""

    paths: tuple[Path, ...]
    time: Path | None = None


class _Known:
    """A schema that was asked for, or why it is of no use (until when)."""

    def __init__(self, schema: Schema | Bad, until: float = float("inf")) -> None:
        self.schema = schema
        self.until = until
        self._readers: dict[tuple[Reading, MessageType], Reader] = {}
        texts = () if isinstance(schema, Bad) else (schema.text, *schema.references.values())
        self.bytes = _LEAST_BYTES + _BYTES_A_CHARACTER * sum(map(len, texts))

    def reader(self, kind: MessageType, reading: Reading) -> Reader:
        """What reads records of this schema; ``kind``: of Protobuf, else ().

        Raises:
            Bad: nothing does.
        """
        which = (reading, kind)
        if which not in self._readers:
            try:
                self._readers[which] = self._made(kind, Wanted(reading.paths, reading.time))
            except Bad as bad:
                if bad.reason is Reason.BAD_SCHEMA:  # once and for all: to find that out may have taken long
                    self.schema = bad
                raise
        return self._readers[which]

    def _made(self, kind: MessageType, wanted: Wanted) -> Reader:
        if isinstance(self.schema, Bad):
            raise self.schema
        if self.schema.kind == "JSON":
            return lambda bodies: [*map(_json, bodies)]
        from . import avro, protobuf  # which load the compiler

        if self.schema.kind == "AVRO":
            read = avro.layout(self.schema.text, self.schema.references.values(), wanted).read
        else:
            read = protobuf.layout(self._types, kind, wanted).read
        return partial(_with_bad, read)

    @cached_property
    def _types(self) -> Types:
        assert not isinstance(self.schema, Bad)
        return declared(self.schema.text, self.schema.references.values())


class Registered:
    """Reads records of a registry. Keeps the schemas that were used last."""

    def __init__(self, registry: Registry | None, names: NamedColumns | None, changes: Changes) -> None:
        """``names``: of the columns, None: our own; ``changes``: reads change events."""
        self._registry = registry
        self._names = names
        self._changes = changes
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._known_bytes = 0
        own = names or NamedColumns(op="op", weight="weight", ts="ts")
        self._rows = Reading((*own.paths.values(),), own.paths.get("ts"))
        self._events = Reading((*changes.paths,), changes.time)
        self._keys = Reading((*changes.ends,))

    def edges(self, records: Sequence[RawRecord], *, events: bool) -> list[list[Edge] | Bad]:
        """The edge objects that each record stands for. ``events``: they are of Debezium.

        Raises:
            RegistryAway: a schema that is needed cannot be had now.
        """
        values = self._documents([record.value for record in records], self._events if events else self._rows)
        keys: Documents = []

        def key_of(row: int) -> Any:
            if not keys:
                keys[:] = self._documents([record.key for record in records], self._keys)
            # What writes keys need not be what writes values.
            return json_key(records[row].key) if isinstance(keys[row], Bad) else keys[row]

        made: list[list[Edge] | Bad] = []
        for row, document in enumerate(values):
            if isinstance(document, Bad):
                made.append(document)
                continue
            try:
                made.append([] if document is None else self._edges(document, partial(key_of, row), events=events))
            except Bad as bad:
                made.append(bad)
        return made

    def _edges(self, document: Any, key: Callable[[], Any], *, events: bool) -> list[Edge]:
        if type(document) is not dict:
            raise Bad(Reason.MALFORMED, f"must be a record, not {columns.shown(document)}")
        if events:
            return self._changes.edges(document, key)
        if self._names is not None:
            return [self._names.edge(document)]
        # By our own names what is null is not given; ends must be.
        return [{name: document[name] for name in columns.COLUMNS if _is_given(document, name)}]

    def _documents(self, values: Sequence[bytes | None], reading: Reading) -> Documents:
        documents: Documents = [None] * len(values)
        rows_of: dict[bytes, list[int]] = {}
        for row, value in enumerate(values):
            if value is not None:
                rows_of.setdefault(value[:_HEAD], []).append(row)
        for head, rows in rows_of.items():
            for row, document in zip(
                rows, self._of_schema(head, [values[row] or b"" for row in rows], reading), strict=True
            ):
                documents[row] = document
        return documents

    def _of_schema(self, head: bytes, values: Sequence[bytes], reading: Reading) -> Documents:
        try:
            if len(head) < _HEAD or head[0] != _MAGIC:
                what = "a record of a registry must begin with a zero byte and the id of its schema"
                raise Bad(Reason.MALFORMED, what)
            known = self._schema(int.from_bytes(head[1:], "big"))
            if isinstance(known.schema, Bad) or known.schema.kind != "PROTOBUF":
                return known.reader((), reading)([value[_HEAD:] for value in values])
        except Bad as bad:
            return [bad] * len(values)
        documents: Documents = [None] * len(values)
        of_type: dict[MessageType, list[tuple[int, bytes]]] = {}
        for row, value in enumerate(values):
            try:
                kind, at = message_type(value, _HEAD)
                of_type.setdefault(kind, []).append((row, value[at:]))
            except Bad as bad:
                documents[row] = bad
        for kind, some in of_type.items():
            try:
                read = known.reader(kind, reading)([body for _, body in some])
            except Bad as bad:
                read = [bad] * len(some)
            for (row, _), document in zip(some, read, strict=True):
                documents[row] = document
        return documents

    def _schema(self, number: int) -> _Known:
        known = self._known.get(number)
        if known is not None and time.monotonic() < known.until:
            self._known.move_to_end(number)
            return known
        if self._registry is None:
            raise Bad(Reason.UNKNOWN_ENCODING, NEEDS_REGISTRY)
        try:
            fresh = _Known(self._registry.schema(number))
        except Bad as bad:
            passes = bad.reason is Reason.UNKNOWN_SCHEMA
            fresh = _Known(bad, time.monotonic() + UNKNOWN_S if passes else float("inf"))
        if known is not None:
            self._known_bytes -= self._known.pop(number).bytes
        self._known[number] = fresh
        self._known_bytes += fresh.bytes
        while self._known_bytes > KEPT_BYTES_MAX:
            self._known_bytes -= self._known.popitem(last=False)[1].bytes
        return fresh


def _is_given(document: Mapping[str, Any], name: str) -> bool:
    return name in document and (document[name] is not None or name in ("src", "dst"))


def _with_bad(
    read: Callable[[Sequence[bytes]], tuple[Captured, Mapping[int, Bad]]], bodies: Sequence[bytes]
) -> Documents:
    found, bad = read(bodies)
    documents = found.documents()
    for row, why in bad.items():
        documents[row] = why
    return documents


def _json(body: bytes) -> Any:
    try:
        return load_json(body)
    except Bad as bad:
        return bad
