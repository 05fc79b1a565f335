"""Where updates come from, and where reading begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...records.encodings import OBJECTS, REGISTERED, Encoding
from .columns import ColumnsConfig
from .kafka import broker_problems, client_options, client_problems, is_topic
from .registry import RegistryConfig
from .section import INT64_DIGITS, INT64_MAX, Folder, Problem, Section, Words


def _parse_start(value: object) -> object:
    if isinstance(value, datetime) or value in ("earliest", "latest"):
        start = value
    elif isinstance(value, str):
        try:
            start = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                "must be 'earliest', 'latest', a date and time such as 2026-01-31T12:00:00Z, or a table of offsets"
            ) from None
    elif isinstance(value, Mapping):
        return _parse_offsets(value)
    else:
        raise ValueError("must be 'earliest', 'latest', a date and time, or a table of offsets")
    if isinstance(start, datetime) and start.tzinfo is None:
        return start.replace(tzinfo=UTC)
    return start


def _parse_offsets(table: Mapping[Any, Any]) -> dict[str, int | dict[int, int]]:
    offsets: dict[str, int | dict[int, int]] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            offsets[str(name)] = {_natural(number): _natural(offset) for number, offset in value.items()}
        else:
            offsets[str(name)] = _natural(value)
    return offsets


def _natural(value: object) -> int:
    text = "" if isinstance(value, bool) or not isinstance(value, (int, str)) else str(value)
    if not (text.isascii() and text.isdecimal() and len(text) <= INT64_DIGITS and int(text) <= INT64_MAX):
        raise ValueError("must map topic -> partition -> offset (spool: file -> byte), each a number from 0")
    return int(text)


Start = Annotated[
    Literal["earliest", "latest"] | datetime | dict[str, int | dict[int, int]], BeforeValidator(_parse_start)
]


class SourceConfig(Section):
    """Where updates come from."""

    kind: Literal["spool", "kafka"] = Field(
        default="spool", description="A directory of record files that needs no broker, or topics of Apache Kafka."
    )
    path: Folder = Field(
        default=Path("./spool"), description="Spool: the directory of files. It is made when missing."
    )
    bootstrap_servers: Words = Field(
        default=(), description="Kafka: HOST:PORT of one or more brokers.", examples=["broker1:9092"]
    )
    topics: Words = Field(
        default=(), description="Kafka: the topics to read, all partitions of each.", examples=["edges"]
    )
    start: Start = Field(
        default="earliest",
        description="Where to begin when there is no checkpoint: `earliest`, `latest`, a date and time (records "
        "from then on; Kafka only), or a table of offsets: topic -> partition -> offset, or file -> byte. What it "
        "does not name is read from its beginning.",
    )
    name: str = Field(
        default="graphtide",
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Kafka: offsets are also committed to the group `graphtide-NAME`, for tools that show lag.",
    )
    encoding: Encoding = Field(
        default="msgpack",
        description="Kafka: the encoding of records without a `content-type` header (spool files tell by name).",
    )
    compacted: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="Kafka: what to do with a compacted topic (`cleanup.policy`), in which only the newest record "
        "of a key stays. `accept` is right where each key names one edge, and each record holds one update of "
        "it. A tombstone of change events then deletes the edge that its key names.",
    )
    keyed: bool = Field(
        default=False,
        description="Kafka: whether the key of a record stands for one edge. Each record then replaces the edge "
        "that its key stood for; one without a value (a tombstone) or with the operation `delete` removes that "
        "edge. For JSON, records of a registry and change events, of one edge each. Topics may be compacted. "
        "Each key takes 53 to 110 bytes of memory.",
    )
    csv_columns: Words = Field(
        default=(),
        description="The columns of CSV without a header line, in order; empty when there is a header line.",
        examples=["src,dst,weight,ts"],
    )
    csv_delimiter: str = Field(default=",", min_length=1, max_length=1, description="What separates CSV columns.")
    columns: ColumnsConfig = Field(
        default_factory=ColumnsConfig, description="What a producer calls the columns of an update."
    )
    registry: RegistryConfig = Field(
        default_factory=RegistryConfig, description="The schema registry of records that name their schema."
    )
    fetch_bytes_max: int = Field(
        default=16 << 20, ge=1 << 16, le=1 << 30, description="The most bytes of records that one poll takes."
    )
    barrier_timeout: float = Field(
        default=60.0,
        ge=0.1,
        le=86_400,
        description="Kafka: seconds that partitions wait at a barrier for those that have not reached it; then it "
        "is given up, logged and counted.",
    )
    client: dict[str, Any] = Field(
        default_factory=dict,
        description="Kafka: passed to kafka-python as it is: `security_protocol`, `sasl_*`, `ssl_*` and a few "
        "more. `NAME_file` names a file that holds the value of NAME, for secrets.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.kind == "kafka":
            if not self.bootstrap_servers:
                yield "bootstrap_servers", 'must name at least one broker when kind is "kafka"'
            if not self.topics:
                yield "topics", 'must name at least one topic when kind is "kafka"'
        yield from broker_problems(self.bootstrap_servers)
        if wrong := [topic for topic in self.topics if not is_topic(topic)]:
            yield "topics", f"must be names of topics: letters, digits, '.', '_' and '-' ({wrong[0]!r} is none)"
        if duplicates := {topic for topic in self.topics if self.topics.count(topic) > 1}:
            yield "topics", f"must name each topic once ({', '.join(sorted(duplicates))})"
        if isinstance(self.start, datetime) and self.kind == "spool":
            yield "start", 'must not be a time when kind is "spool": its lines have no index by time'
        if isinstance(self.start, dict):
            nested = all(isinstance(value, dict) for value in self.start.values())
            flat = not any(isinstance(value, dict) for value in self.start.values())
            if not (nested if self.kind == "kafka" else flat):
                form = "topic -> partition -> offset" if self.kind == "kafka" else "file -> byte"
                yield "start", f'must be a table {form} when kind is "{self.kind}"'
            elif self.kind == "kafka" and (others := self.start.keys() - set(self.topics)):
                yield "start", f"must name none but source.topics, and not {', '.join(sorted(others))}"
        if self.csv_columns:
            yield from self._csv_problems()
        for key, allowed in self.columns.problems():
            yield f"columns.{key}", allowed
        for key, allowed in self.registry.problems():
            yield f"registry.{key}", allowed
        if self.encoding in REGISTERED and self.registry.url is None:
            yield "registry.url", f'must be given when source.encoding is "{self.encoding}"'
        if self.keyed:
            yield from self._keyed_problems()
        if self.client:
            yield from client_problems(self.client)

    def _keyed_problems(self) -> Iterator[Problem]:
        if self.kind != "kafka":
            yield "keyed", 'must be left out unless source.kind is "kafka": lines and frames of files have no keys'
        elif self.encoding not in OBJECTS | REGISTERED:
            allowed = ", ".join(sorted(OBJECTS | REGISTERED))
            yield "encoding", f"must be one of {allowed} with source.keyed: of others a record holds many edges"
        if vertex_ops := sorted(op for op in self.columns.op_values if op.endswith("_vertex")):
            yield (
                "columns.op_values",
                f"must not name {', '.join(vertex_ops)} with source.keyed: keys stand for edges",
            )

    def unheeded_encoding(self) -> str | None:
        """What to say where an encoding was given that nothing goes by; None: nothing."""
        if self.kind == "kafka" or "encoding" not in self.model_fields_set:
            return None
        return (
            f'source.encoding = "{self.encoding}" is of no effect: files of a spool are read as what their names '
            f"end in (NAME.{self.encoding})"
        )

    def start_position(self) -> Literal["earliest", "latest"] | int | dict[str, int | dict[int, int]]:
        """Where to begin, a time as milliseconds since 1970."""
        return round(self.start.timestamp() * 1000) if isinstance(self.start, datetime) else self.start

    def client_options(self) -> dict[str, Any]:
        """The options for kafka-python, secrets read from their files.

        Raises:
            ConfigError: a file of a secret cannot be read.
        """
        return client_options("source.client", self.client)

    def _csv_problems(self) -> Iterator[Problem]:
        known = {"op", "src", "dst", "weight", "ts"}
        columns = self.csv_columns
        if not {"src", "dst"} <= set(columns) or len(set(columns)) < len(columns) or not set(columns) <= known:
            yield "csv_columns", "must name src and dst, and may name op, weight and ts, each once"
