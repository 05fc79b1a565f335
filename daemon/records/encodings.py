"""The encodings of records, by the names that files, topics and settings give them.

This module imports nothing: the settings name encodings, and must load quickly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Encoding = Literal["msgpack", "json", "csv", "el", "debezium", "arrow", "registry", "debezium-registry"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)

REGISTERED: frozenset[Encoding] = frozenset({"registry", "debezium-registry"})
"""Records of these begin with the id of their schema in a registry: they are Avro, Protobuf or JSON."""

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
"""Which of the three a schema is of, by the names that registries have for them."""

OBJECTS: frozenset[Encoding] = frozenset({"json", "debezium"})
"""Records of these are JSON."""

LINES: frozenset[Encoding] = frozenset({"csv", "el"})
"""Records of these are lines of fields."""

FRAMED: frozenset[Encoding] = REGISTERED | {"msgpack", "arrow"}
"""Spool files of these hold frames; those of the others hold lines of text."""

CONTENT_TYPE = "application/vnd.graphtide.edges+msgpack"
"""Of the columnar records that ``encode`` writes."""
RECORD_VERSION = 1
"""Of the same, and of JSON documents: their entry ``v``."""

CONTENT_TYPES: dict[str, Encoding] = {
    CONTENT_TYPE: "msgpack",
    "application/json": "json",
    "application/x-ndjson": "json",
    "text/csv": "csv",
    "text/plain": "el",
    "application/vnd.debezium+json": "debezium",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.graphtide.registry": "registry",
    "application/vnd.graphtide.debezium-registry": "debezium-registry",
}

PLACED_BY_KEY: frozenset[Encoding] = frozenset({"debezium", "debezium-registry"})
"""Records of these come through the partition of their key, wherever their edges belong."""

BARRIER = "application/vnd.graphtide.barrier"
"""The content type of barriers (``barrier.py``), and what stands for the encoding of their records."""

HEADER_LINE = "graphtide-header"
"""Header of CSV blocks that do not begin their file, and of letters of CSV lines: the line that names the columns,
without its end.
"""

IN_PREAMBLE = "graphtide-preamble"
"""Record header of blocks of a MatrixMarket file that do not begin it, and begin before its edges do."""

ROW = "graphtide-row"
"""Header of a dead letter that holds one row of a record: its number, from 0."""


def encoding_of(headers: Iterable[tuple[str, bytes]], default: str) -> str:
    """The encoding that a record's ``content-type`` header names, else the default.

    A content type that is not understood is returned as it is: the decoder then says so.
    """
    for name, value in headers:
        if name.lower() == "content-type":
            text = value.decode("latin-1")
            plain = text.partition(";")[0].strip().lower()
            return BARRIER if plain == BARRIER else CONTENT_TYPES.get(plain, text)
    return default
