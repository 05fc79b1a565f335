"""Records whose schema is in a registry: Avro, Protobuf and JSON, as the registry says.

A record begins with a zero byte and the schema's id, four bytes big-endian; in Protobuf the numbers of the message
type follow: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html,
"Wire format". Records of one schema are read together; what stands in them has the names and types that it has in
JSON, so that what is good and what is bad does not depend on the encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from ..records.encodings import SchemaKind
from ..records.stream import RawRecord
from . import decode_columns as columns
from .captured import Captured, Path, Wanted
from .decode_columns import Bad, Reason
from .decode_debezium import Changes, json_key
from .decode_records import Edge, load_json
from .known_schemas import KnownSchemas, Unusable
from .named_columns import NamedColumns
from .proto import MessageType, Types, declared, message_type
from .registry import Registry, Schema

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
    """A schema, or why it is of no use, and what reads its records."""

    def __init__(self, schema: Schema | Unusable) -> None:
        self.schema = schema
        self._readers: dict[tuple[Reading, MessageType], Reader] = {}

    @property
    def kind(self) -> SchemaKind | None:
        """None: it is of no use."""
        return None if isinstance(self.schema, Unusable) else self.schema.kind

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
                    self.schema = Unusable(bad)
                raise
        return self._readers[which]

    def _made(self, kind: MessageType, wanted: Wanted) -> Reader:
        if isinstance(self.schema, Unusable):
            raise self.schema.bad()
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
        assert not isinstance(self.schema, Unusable)
        return declared(self.schema.text, self.schema.references.values())


class Registered:
    """Reads records of a registry. Keeps the schemas that were used last."""

    def __init__(self, registry: Registry | None, names: NamedColumns | None, changes: Changes) -> None:
        """``names``: of the columns, None: our own; ``changes``: reads change events."""
        self._names = names
        self._changes = changes
        self._known = KnownSchemas(registry, _Known)
        own = names or NamedColumns(op="op", weight="weight", ts="ts")
        self._rows = Reading((*own.paths.values(),), own.paths.get("ts"))
        self._events = Reading((*changes.paths,), changes.time)
        self._keys = Reading((*changes.ends,))

    @property
    def lookups(self) -> Mapping[str, int]:
        """How often the registry was asked for an id, by what came of it. Any thread may ask."""
        return self._known.lookups

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
                made.append(self._edges(document, partial(key_of, row), events=events))
            except Bad as bad:
                made.append(bad)
        return made

    def _edges(self, document: Any, key: Callable[[], Any], *, events: bool) -> list[Edge]:
        if document is not None and type(document) is not dict:
            raise Bad(Reason.MALFORMED, f"must be a record, not {columns.shown(document)}")
        if events:
            return self._changes.edges(document, key)
        if document is None:
            return []
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
        # Where not all unknown ids can be asked for, those that most records name come first.
        for head, rows in sorted(rows_of.items(), key=lambda item: -len(item[1])):
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
            known = self._known.get(int.from_bytes(head[1:], "big"))
            if known.kind != "PROTOBUF":
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
