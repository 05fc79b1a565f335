"""Every setting of the daemon: its name, type, default, range and meaning.

The models here are the one place where settings are declared; ``load`` fills them from a TOML file, the
environment and flags, and ``show`` prints them as commented TOML and as ``docs/configuration.md``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ...gpma.cores import usable_cores
from ..client.addresses import (
    SOCKET_HERE,
    TcpAddress,
    UnixAddress,
    UnknownHome,
    from_home,
    is_loopback,
    parse_address,
    parse_http_address,
)
from ..errors import ConfigError
from ..os_errors import why
from ..records.encodings import OBJECTS, REGISTERED, Encoding

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes."""

_EVERY_IPV4 = "0.0.0.0"
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")

INT64_MAX = 2**63 - 1
_INT64_DIGITS = len(str(INT64_MAX))

VERTICES_MAX = 2**32 - 2
"""Dense ids are 32 bits wide, and two of them are taken."""

TOKENS_MAX = 16
TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 8, 512

SECRET_WORDS = ("password", "secret", "token", "private_key")

KAFKA_CLIENT_PREFIXES = ("sasl_", "ssl_")
KAFKA_CLIENT_KEYS = frozenset(
    {
        "security_protocol",
        "client_id",
        "client_rack",
        "api_version",
        "metadata_max_age_ms",
        "reconnect_backoff_ms",
        "reconnect_backoff_max_ms",
        "request_timeout_ms",
        "receive_buffer_bytes",
        "connections_max_idle_ms",
    }
)

KAFKA_CLIENT_OBJECTS = frozenset({"ssl_context", "sasl_oauth_token_provider"})
"""Options whose values are objects of Python: no setting can be one."""
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

Problem = tuple[str, str]
"""A key within its section ("" for the section itself) and what is allowed there."""


def parse_tcp(text: str) -> TcpAddress:
    """``HOST:PORT``, an IPv6 host in brackets.

    Raises:
        ValueError: the text is something else.
    """
    host = text.rpartition(":")[0]
    address = _parsed(f"tcp://{text}", "must be HOST:PORT, an IPv6 address in brackets")
    if not isinstance(address, TcpAddress) or "/" in host or (":" in host and not host.startswith("[")):
        raise ValueError("must be HOST:PORT, an IPv6 address in brackets")
    return address


def _parsed(text: str, allowed: str) -> TcpAddress | UnixAddress:
    try:
        return parse_address(text)
    except UnknownHome:
        raise
    except ValueError:
        raise ValueError(allowed) from None


def default_socket_path(environ: Mapping[str, str] | None = None) -> str:
    """The Unix socket to listen on: in the folder that systemd or the session gave, else in /run (root) or here.

    The first ones are folders that others may not write: nobody else can be first to take the name. Whether it is
    so here, who listens looks (``serve.listening``).
    """
    given = os.environ if environ is None else environ
    if folder := given.get("RUNTIME_DIRECTORY", "").split(":")[0] or given.get("XDG_RUNTIME_DIR"):
        return f"{folder}/graphtide.sock"
    return "/run/graphtide.sock" if os.geteuid() == 0 else SOCKET_HERE


def is_secret(key: str) -> bool:
    """True for keys whose values must never be printed; names of files that hold secrets are no secret."""
    name = key.rpartition(".")[2]
    return not name.endswith(("_file", "_provider")) and any(word in name for word in SECRET_WORDS)


def read_secret(key: str, path: Path) -> str:
    """The secret in a file, without the line end that editors add.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    try:
        secret = path.read_text("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{key} = {str(path)!r}: cannot be read: {why(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {str(path)!r}: cannot be read: it is not UTF-8") from error
    if not secret:
        raise ConfigError(f"{key} = {str(path)!r}: the file is empty; it must hold the secret")
    return secret


def _split_commas(value: object) -> object:
    """Let ``a,b`` stand for ["a", "b"], as environment variables and flags give it."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _like(default: object, value: object) -> object:
    """A value given as text (a flag, the environment) as the switch or number that its default is."""
    if isinstance(value, str) and isinstance(default, bool) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and type(default) is int and value.isascii() and value.isdecimal():
        return int(value)
    return value


def _numbers(parts: list[Any]) -> list[object]:
    """Of a version, each as it is or as text."""
    return [_like(0, part) for part in parts]


def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def _checked_topic(name: str) -> str:
    if name and not _is_topic(name):
        raise ValueError("must be the name of a topic: letters, digits, '.', '_' and '-'")
    return name


def _checked_address(text: str) -> str:
    _parsed(text, "must be unix:PATH or tcp://HOST:PORT")
    return text


def _checked_http_address(text: str) -> str:
    try:
        parse_http_address(text)
    except UnknownHome:
        raise
    except ValueError:
        raise ValueError("must be http://HOST:PORT, https://HOST:PORT or unix:PATH") from None
    return text


def _written_number(value: object) -> object:
    """Let a number of TOML stand for its text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked_budget(text: str) -> str:
    number = text.removesuffix("%")
    most = 100 if number != text else 2**63
    if text != "off" and not (number.isascii() and number.isdecimal() and 0 < int(number) <= most):
        raise ValueError("must be 'off', a share from 1% to 100%, or a number of bytes")
    return text


def _checked_metrics_address(text: str) -> str:
    if text != "off":
        try:
            parse_tcp(text)
        except ValueError as error:
            raise ValueError(f"{error}, or `off`") from None
    return text


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
    if not (text.isascii() and text.isdecimal() and len(text) <= _INT64_DIGITS and int(text) <= INT64_MAX):
        raise ValueError("must map topic -> partition -> offset (spool: file -> byte), each a number from 0")
    return int(text)


def _kinds(annotation: Any) -> set[Any]:
    """The types that a value may have: of those within a list or table, none."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, arguments))
    return {annotation}


def _is_longer_than_64_bits(value: object) -> bool:
    """Of a whole number, or of a text that stands for one; what is neither is for others to refuse."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return len(value.lstrip("0")) > _INT64_DIGITS or int(value) > INT64_MAX
    return isinstance(value, int) and value > INT64_MAX


def _named(value: object) -> object:
    if value == "":
        raise ValueError("must name a folder")
    return value


Topic = Annotated[str, AfterValidator(_checked_topic)]
Folder = Annotated[Path, BeforeValidator(_named)]
Words = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
Address = Annotated[str, AfterValidator(_checked_address)]
HttpAddress = Annotated[str, AfterValidator(_checked_http_address)]
Start = Annotated[
    Literal["earliest", "latest"] | datetime | dict[str, int | dict[int, int]], BeforeValidator(_parse_start)
]


class Section(BaseModel):
    """A table of settings. Unknown keys are refused; values do not change once validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what pydantic would take: a switch for the number 1, a number that no counter or message holds
        (they have 64 bits), and paths and names that no system call takes. A path may begin with ``~``."""
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("must be a whole number" if int in kinds else "must be a number")
        if int in kinds and _is_longer_than_64_bits(value):
            raise ValueError(f"must be a whole number of at most {INT64_MAX:,}")
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError(f"must be {'a path' if Path in kinds else 'text'} without a zero byte")
        return from_home(value) if Path in kinds and isinstance(value, str) else value

    def problems(self) -> Iterator[Problem]:
        """What is wrong between keys that are each fine by themselves."""
        return iter(())


class GraphConfig(Section):
    """What the graph is. A checkpoint belongs to these settings; a daemon with others refuses it."""

    directed: bool = Field(default=True, description="Whether an edge has a direction.")
    vertex_ids: Literal["int", "string"] = Field(
        default="int",
        description="The kind of vertex ids: 64-bit integers, or UTF-8 strings of at most 256 bytes.",
    )
    weights: Literal["non-negative", "unweighted", "any"] = Field(
        default="non-negative",
        description="The weights that records may carry. A weight outside makes its record bad; a program that "
        "needs another domain is refused. `unweighted` keeps none, at half the memory.",
    )
    self_loops: Literal["keep", "drop"] = Field(
        default="keep", description="Whether edges from a vertex to itself are kept, or dropped and counted."
    )
    vertices_max: int = Field(
        default=VERTICES_MAX,
        ge=1,
        le=VERTICES_MAX,
        description="The most vertices at once; past it the daemon stops with `id-space-full`. Ids of deleted "
        "vertices are free again soon after the epoch that deletes them, and are waited for. The index has room "
        "for 4,026,531,840.",
    )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with these settings."""
        return self.model_dump(include={"directed", "vertex_ids", "weights", "self_loops"})


OpName = Literal["insert", "delete", "insert_vertex", "delete_vertex"]


ColumnName = str | tuple[str, ...]
"""What leads to a column: names with dots between, or a list of names, in which dots mean nothing."""


def path_of(name: ColumnName) -> tuple[str, ...]:
    """The names one by one."""
    return tuple(name.split(".")) if isinstance(name, str) else name


class ColumnsConfig(Section):
    """What producers call the columns of an update, in JSON, in header lines of CSV and in captured tables."""

    src: ColumnName = Field(
        default="src",
        description="The edge's tail. In JSON the dots of a name lead into objects: `payload.after.a`. A list has "
        'the names one by one, so that they may have dots: `["payload", "after.a"]`. Where anything in this table '
        "is given, columns that it does not name are not read, and those that it names must be there (the weight: "
        "of an insert).",
        examples=["from_account"],
    )
    dst: ColumnName = Field(default="dst", description="The edge's head.", examples=["to_account"])
    op: ColumnName | None = Field(
        default=None,
        description="The operation; not given: all are inserts. Change events of Debezium have their own.",
        examples=["kind"],
    )
    weight: ColumnName | None = Field(
        default=None,
        description="The weight, in JSON a number or the text of one; not given: 1.0.",
        examples=["amount"],
    )
    ts: ColumnName | None = Field(
        default=None,
        description="The time, milliseconds since 1970; not given: the record's own.",
        examples=["at"],
    )
    op_values: dict[OpName, Words] = Field(
        default_factory=dict,
        description="What stands for `insert`, `delete`, `insert_vertex` and `delete_vertex`: a list of texts for "
        "each (`true` and `1` are also the JSON values). With any other value a record is bad. Not given: these "
        "names.",
    )

    def problems(self) -> Iterator[Problem]:
        names = {key: getattr(self, key) for key in ("src", "dst", "op", "weight", "ts")}
        given = {key: path_of(name) for key, name in names.items() if name is not None}
        for key, name in given.items():
            if not name or not all(name):
                yield key, "must be a name, or names with dots between them, or a list of names"
            if same := [other for other, taken in given.items() if taken == name and other != key]:
                yield key, f"must differ from source.columns.{same[0]}"
        if self.op_values and self.op is None:
            yield "op_values", "must be left out without source.columns.op"
        texts = [text for values in self.op_values.values() for text in values]
        if repeated := {text for text in texts if texts.count(text) > 1}:
            yield "op_values", f"must name each value once ({', '.join(sorted(repeated))})"


class RegistryConfig(Section):
    """The schema registry of records whose encoding is `registry` or `debezium-registry`."""

    url: str | None = Field(
        default=None,
        description="Where it is: http://HOST:PORT or https://HOST:PORT, with the path of Confluent's interface, "
        "if it has one (Apicurio: `/apis/ccompat/v7`).",
        examples=["https://registry:8081"],
    )
    username: str | None = Field(default=None, min_length=1, description="The user, for basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="That user's password; better in a file: `password_file`."
    )
    password_file: Path | None = Field(default=None, description="A file with that password.")
    ca_file: Path | None = Field(
        default=None, description="https: the certificates (PEM) to trust, in place of the system's."
    )
    certificate_file: Path | None = Field(
        default=None, description="https: our own certificate (PEM), where the registry asks for one."
    )
    key_file: Path | None = Field(
        default=None, description="https: the private key of that certificate, if it is not in the same file."
    )
    timeout: float = Field(
        default=5.0,
        ge=0.1,
        le=600,
        description="Seconds after which a registry is away that has not given a schema with all that it "
        "refers to. What came is kept for the next try.",
    )
    schema_bytes_max: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=16 << 20,
        description="The most characters of a schema with all that it refers to; records of a larger one are bad.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.url is not None:
            yield from self._url_problems(self.url)
        if self.password is not None and self.password_file is not None:
            yield "password_file", "must not be given together with source.registry.password"
        if (self.username is None) != (self.password is None and self.password_file is None):
            yield "username", "must be given together with source.registry.password or password_file"
        if self.key_file is not None and self.certificate_file is None:
            yield "key_file", "must be left out without source.registry.certificate_file"

    def _url_problems(self, url: str) -> Iterator[Problem]:
        allowed = "must be http://HOST[:PORT][/PATH] or https://..., without a user, a query or a fragment"
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            yield "url", allowed
            return
        if not whole or parts.username is not None or parts.query or parts.fragment or not url.isascii():
            yield "url", allowed
        elif parts.scheme == "http" and (self.ca_file or self.certificate_file):
            yield "url", "must begin with https:// where there are certificates"

    def read_password(self) -> str:
        """The password; empty where none is given.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.password_file is not None:
            return read_secret("source.registry.password_file", self.password_file)
        return "" if self.password is None else self.password.get_secret_value()


def client_options(key: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of options for kafka-python, secrets read from their files.

    Raises:
        ConfigError: a file of a secret cannot be read; ``key`` is where the table stands.
    """
    options: dict[str, Any] = {}
    for name, value in table.items():
        if name.endswith("_file"):  # none of the client's own options ends so: it says ssl_cafile
            options[name.removesuffix("_file")] = read_secret(f"{key}.{name}", Path(from_home(str(value))))
        elif name.endswith("file") and isinstance(value, str):
            options[name] = from_home(value)
        else:
            options[name] = tuple(_numbers(value)) if isinstance(value, list) else _like(_like_what(name), value)
    return options


def client_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with a table of options for kafka-python."""
    # Loading the client library takes a while: only whoever sets its options pays for it.
    from kafka import KafkaConsumer

    known = [
        key
        for key in KafkaConsumer.DEFAULT_CONFIG
        if (key in KAFKA_CLIENT_KEYS or key.startswith(KAFKA_CLIENT_PREFIXES)) and key not in KAFKA_CLIENT_OBJECTS
    ]
    for key in table:
        plain = key.removesuffix("_file")
        if key not in known and plain not in known:
            close = difflib.get_close_matches(plain, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(sorted(known))}"
            yield f"client.{key}", f"unknown key; {hint}"
        elif plain != key and plain in table:
            yield f"client.{key}", f"must not be given together with client.{plain}"
        elif allowed := _allowed_of_client(key, table[key]):
            yield f"client.{key}", allowed


def _like_what(key: str) -> object:
    """What an option of kafka-python is by itself, or a number where that does not tell that it is one."""
    from kafka import KafkaConsumer

    return 0 if key == "receive_buffer_bytes" else KafkaConsumer.DEFAULT_CONFIG.get(key)


def _allowed_of_client(key: str, value: object) -> str:
    """What an option of kafka-python must be, which looks at few of them before it uses them; empty: it is."""
    from kafka.net.sasl import SASL_MECHANISMS

    if key.endswith("_file") and isinstance(_like_what(key.removesuffix("_file")), int):
        return "must not be read from a file: it is a number, or true or false"
    default = _like_what(key)
    mechanisms = tuple(
        name for name in SASL_MECHANISMS if name != "OAUTHBEARER"
    )  # which asks an object for tokens
    choices = {"security_protocol": SECURITY_PROTOCOLS, "sasl_mechanism": mechanisms}.get(key)
    if choices is not None:
        return "" if value in choices else f"must be one of {', '.join(choices)}"
    if isinstance(default, bool):
        return "" if isinstance(_like(default, value), bool) else "must be true or false"
    if type(default) is int:
        number = _like(0, value)
        least = 0 if key.startswith("reconnect_") else 1
        return "" if type(number) is int and least <= number < 2**31 else f"must be a whole number from {least}"
    if key == "api_version":
        parts = value.split(".") if isinstance(value, str) else value
        numbers = _numbers(parts) if isinstance(parts, list) else []
        is_version = len(numbers) > 1 and all(type(number) is int and number >= 0 for number in numbers)
        return "" if is_version else 'must be a version of the broker, such as "3.9"'
    if key.endswith("file") and isinstance(value, str):
        try:
            from_home(value)
        except UnknownHome as error:
            return str(error)
    return "" if isinstance(value, str) and "\0" not in value else "must be text"


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
        for server in self.bootstrap_servers:
            try:
                parse_tcp(server)
            except ValueError as error:
                yield "bootstrap_servers", f"each {error} ({server!r} is not)"
        if wrong := [topic for topic in self.topics if not _is_topic(topic)]:
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


class DeadLettersConfig(Section):
    """Where bad records go. Without a topic they go to files."""

    topic: Topic | None = Field(default=None, min_length=1, description="Kafka: the topic for bad records.")
    path: Folder = Field(
        default=Path("./dead-letters"),
        description="The directory for bad records, and for those that wait while the topic is away.",
    )
    spill_bytes_max: int = Field(
        default=1 << 30,
        ge=1 << 20,
        description="The most bytes of bad records kept in files; past it, or while the disk is full, the stream "
        "waits: none may be lost.",
    )


class ResultsConfig(Section):
    """Changed results on their way out: the vertices that each epoch changed, to a topic or to files."""

    kind: Literal["off", "kafka", "spool"] = Field(
        default="off", description="Where to: nowhere, a topic of Apache Kafka, or a directory of files."
    )
    topic: Topic = Field(
        default="",
        description="Kafka: the topic, which must exist. It should be compacted (`cleanup.policy=compact`).",
        examples=["results"],
    )
    path: Folder = Field(
        default=Path("./results"), description="Spool: the directory of files. It is made when missing."
    )
    programs: Words = Field(
        default=(),
        description="The ids of the programs whose results are written; empty: all, and those that are kept at "
        "run time from the epoch at which they join.",
        examples=["hops"],
    )
    encoding: Literal["msgpack", "json"] = Field(default="msgpack", description="The encoding of keys and values.")
    threshold: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="A value is written when it differs from the one written before by more than this share of it "
        "(numbers only). Above 0 it takes 9 bytes for each vertex and program. Where every epoch changes all "
        "values, as with PageRank, it decides how much is written.",
    )
    interval: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Seconds between two transactions, at least; epochs in between are merged.",
    )
    bootstrap_servers: Words = Field(
        default=(),
        description="Kafka: HOST:PORT of one or more brokers. Default: those of the source, with its `client`.",
        examples=["broker1:9092"],
    )
    client: dict[str, Any] = Field(
        default_factory=dict, description="Kafka: passed to kafka-python, as `source.client`."
    )
    transactional_id: str = Field(
        default="",
        max_length=200,
        description="Kafka: who writes; a second daemon with the same one shuts the first out. Default: "
        "`graphtide-NAME-TOPIC`, with `source.name`.",
    )
    transaction_timeout: float = Field(
        default=300.0,
        ge=60,
        le=3600,
        description="Kafka: seconds that a transaction may take until the broker withdraws it; at most the "
        "broker's `transaction.max.timeout.ms`.",
    )
    file_bytes: int = Field(
        default=256 << 20,
        ge=1 << 16,
        le=1 << 40,
        description="Spool: once a file has this many bytes, the next transaction begins another one.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.kind == "kafka" and not self.topic:
            yield "topic", 'must name the topic when kind is "kafka"'
        if self.kind != "kafka" and self.topic:
            yield "topic", 'must be left out unless kind is "kafka"'
        if self.client and not self.bootstrap_servers:
            yield (
                "client",
                "must be left out without results.bootstrap_servers: the source's come with its own",
            )
        for server in self.bootstrap_servers:
            try:
                parse_tcp(server)
            except ValueError as error:
                yield "bootstrap_servers", f"each {error} ({server!r} is not)"
        if duplicates := {id for id in self.programs if self.programs.count(id) > 1}:
            yield "programs", f"must name each program once ({', '.join(sorted(duplicates))})"
        if self.client:
            yield from client_problems(self.client)


class ProgramConfig(Section):
    """One vertex program to keep up to date. Further keys are the program's parameters."""

    name: str = Field(
        min_length=1, description="Which program: one of the table below, or of `compute.python_modules`."
    )
    id: str = Field(
        default="",
        max_length=128,
        description="What queries name. Default: the name, with its parameters where that would be ambiguous.",
        examples=["hops"],
    )
    place: Literal["auto", "host", "device"] | None = Field(
        default=None,
        description="Where it runs, as in `compute.place`; default: what that says.",
        examples=["device"],
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Every other key of the table: the program's own parameters."
    )
    OWN: ClassVar = ("name", "id", "place")

    @model_validator(mode="before")
    @classmethod
    def _gather_parameters(cls, table: object) -> object:
        if not isinstance(table, Mapping) or "parameters" in table:
            return table
        own = {key: value for key, value in table.items() if key in cls.OWN}
        return {**own, "parameters": {key: value for key, value in table.items() if key not in own}}


class EpochConfig(Section):
    """How updates are gathered into epochs. Epochs are small while the stream is slow and grow under lag."""

    updates_max: int = Field(
        default=2_000_000,
        ge=1,
        le=1 << 28,
        description="The most updates of one epoch; a record is never split.",
    )
    queue_updates_max: int = Field(
        default=4_000_000,
        ge=1,
        le=1 << 29,
        description="The most decoded updates that wait; past it reading pauses.",
    )
    linger_ms: float = Field(
        default=0.0, ge=0, le=60_000, description="How long an epoch waits for more updates once it has one."
    )

    def problems(self) -> Iterator[Problem]:
        if self.queue_updates_max < self.updates_max:
            yield "queue_updates_max", f"must be at least epoch.updates_max ({self.updates_max})"


class WindowConfig(Section):
    """Edges that expire: after some time, or all but the newest. Without `length` and `count` none do."""

    length: float | None = Field(
        default=None,
        gt=0,
        le=3.2e9,
        description="Seconds of event time that an edge lasts after its last upsert. Times are those of updates "
        "(`ts`), else of the records of Kafka; an insert in a spool file must have one. Event time is how far all "
        "partitions have come.",
        examples=["86400"],
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=1 << 40,
        description="The newest so many edges last, by the order in which their last upserts are applied. An edge "
        "that is deleted counts until so many newer ones came.",
        examples=["1000000"],
    )
    isolated: Literal["keep", "delete"] = Field(
        default="keep",
        description="What becomes of vertices without edges: they stay, or are deleted, and then exist exactly as "
        "long as they have an edge.",
    )
    allowed_lateness: float = Field(
        default=0.0,
        ge=0,
        le=3.2e9,
        description="With `length`: seconds that event time stays behind the newest time of each partition, so "
        "that older updates may come. An upsert whose edge would have expired is dropped and counted.",
    )
    idle_timeout: float = Field(
        default=60.0,
        ge=0.1,
        le=3.2e9,
        description="With `length`: seconds after which a partition that nothing comes of, and of which nothing "
        "is left to read, does not hold event time back any more. It takes part again with its next record.",
    )
    max_future_skew: float = Field(
        default=3600.0,
        ge=0,
        le=3.2e9,
        description="With `length`: an update whose time lies more than so many seconds in the future, when it is "
        "read first, is bad: one alone would have everything expire.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.length is not None and self.count is not None:
            yield "count", "must be left out with window.length: edges last for some time, or the newest ones do"
        if self.length is not None and self.length < 0.001:
            yield "length", "must be at least 0.001: times are milliseconds"

    @property
    def is_on(self) -> bool:
        """Whether edges expire."""
        return self.length is not None or self.count is not None


class LimitsConfig(Section):
    """What one client may ask for. Each limit is enforced before memory is spent."""

    frame_bytes_max: int = Field(
        default=8 << 20, ge=1024, le=1 << 30, description="The longest request, in bytes."
    )
    vertices_max: int = Field(
        default=1_000_000, ge=1, description="The most vertices that one request names or gets."
    )
    edges_max: int = Field(default=500_000, ge=1, description="The most edges that one answer names.")
    edges_visited_max: int = Field(
        default=4_000_000,
        ge=1024,
        description="The most entries of rows that one `khop`, `egonet`, `subgraph` or `cross_edges` reads.",
    )
    connections_max: int = Field(
        default=256, ge=1, le=65_536, description="Open connections that have been let in."
    )
    strangers_max: int = Field(
        default=128,
        ge=1,
        le=65_536,
        description="Further connections, of which no request was accepted yet (where a token is asked for: no "
        "`hello` with a right one, before which a request has at most 4096 bytes). Past it, the oldest from "
        "wherever most of them come from makes room.",
    )
    hello_seconds_max: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="How long a new connection may take until its first request is accepted, TLS included.",
    )
    requests_in_flight_max: int = Field(
        default=64, ge=1, le=65_536, description="Unanswered requests of a connection."
    )
    output_bytes_max: int = Field(
        default=32 << 20,
        ge=1 << 16,
        description="Bytes that wait for a slow reader; past it the connection is closed.",
    )
    idle_seconds_max: float = Field(
        default=600.0, gt=0, description="Close a connection that was silent for so long."
    )
    top_k_max: int = Field(default=10_000, ge=1, description="The largest k of `top`.")
    timeout_ms_max: int = Field(default=600_000, ge=1, description="The longest that a request may ask to wait.")
    timeout_ms_default: int = Field(
        default=30_000, ge=1, description="How long a request waits that does not say how long."
    )
    memory_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="What all connections together hold. A quarter is for long requests until they are "
        "answered, a quarter for long answers until they are read: they wait for it in turn. Past half of it in "
        "unread answers the connection with most of them is closed.",
    )
    waiting_max: int = Field(
        default=4096,
        ge=1,
        description="Requests that wait for an epoch, of all connections. Half of the places are shared out among "
        "`connections_max` connections, at least one for each.",
    )
    engine_calls_max: int = Field(
        default=256, ge=1, description="Questions that the engine process is given at once; others wait for them."
    )
    stall_seconds_max: float = Field(
        default=10.0,
        gt=0,
        description="How long a client may take to send a long request, or to read a long answer, while others "
        "wait for the memory.",
    )

    subscriptions_max: int = Field(
        default=4096,
        ge=1,
        description="Subscriptions of all connections. Half of the places are shared out among `connections_max` "
        "connections, at least one for each.",
    )
    subscribed_vertices_max: int = Field(
        default=4_000_000,
        ge=1,
        description="Vertices of which the server keeps what subscribers know, about 50 bytes each and the id "
        "where it is a string (at most 256 bytes): those of "
        "subscriptions that choose vertices or have a threshold. Those of one connection are at most "
        "`vertices_max`.",
    )
    http_body_bytes_max: int = Field(
        default=1 << 20,
        ge=1024,
        le=1 << 26,
        description="The body of a request over HTTP. Memory of 24 times as much is asked for first where it is "
        "longer than 64 KiB.",
    )
    changes_bytes: int = Field(
        default=16 << 20,
        ge=1 << 16,
        le=1 << 32,
        description="The log of what recent epochs changed, four bytes for each changed entry. Subscribers who "
        "fall behind it, or resume from before it, get a new snapshot.",
    )

    ad_hoc_max: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Programs that run at once for `compute`; others wait for their turn.",
    )
    ad_hoc_seconds_max: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="The longest that `compute` takes, waiting for its turn included; a client that wants more "
        "than `timeout_ms_default` says so.",
    )
    ad_hoc_vertices_max: int = Field(
        default=100_000, ge=1, description="The most vertices that one `compute` gives values of."
    )
    kept_max: int = Field(default=16, ge=0, le=4096, description="Programs that are kept by `keep`; 0: none.")

    def problems(self) -> Iterator[Problem]:
        if self.timeout_ms_default > self.timeout_ms_max:
            yield "timeout_ms_default", f"must be at most server.limits.timeout_ms_max ({self.timeout_ms_max})"
        if self.memory_bytes_max < max(self.frame_bytes_max, self.output_bytes_max):
            yield "memory_bytes_max", "must be at least frame_bytes_max and output_bytes_max"


class TlsConfig(Section):
    """TLS for what is served over TCP; both files or neither. SIGHUP reads them again."""

    certificate: Path | None = Field(default=None, description="PEM file with the certificate chain.")
    key: Path | None = Field(default=None, description="PEM file with the private key.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file with the authorities of clients' certificates; with it, clients must present one.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.client_ca is not None and self.certificate is None:
            yield "client_ca", "must be left out without certificate and key"
        if (self.certificate is None) != (self.key is None):
            missing = "certificate" if self.certificate is None else "key"
            yield missing, "must be given too: certificate and key belong together"


def _default_listen() -> tuple[str, ...]:
    return (f"unix:{default_socket_path()}", "tcp://127.0.0.1:7420")


def _is_token(text: str) -> bool:
    return TOKEN_LENGTH_MIN <= len(text) <= TOKEN_LENGTH_MAX


class ServerConfig(Section):
    """The query server."""

    listen: Annotated[tuple[Address, ...], BeforeValidator(_split_commas)] = Field(
        default_factory=_default_listen,
        description="Addresses to listen on: `unix:PATH` and `tcp://HOST:PORT`. The default is a Unix socket in "
        "`$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR`, `/run` (root) or the working directory (not where others may "
        "write it), and TCP port 7420 on loopback.",
    )
    http: Annotated[tuple[HttpAddress, ...], BeforeValidator(_split_commas)] = Field(
        default=(),
        description="Addresses of the HTTP door, which answers the same requests as JSON and has a page for "
        "people: `http://HOST:PORT`, `https://HOST:PORT` (with `server.tls`) and `unix:PATH`. `http` beyond "
        "loopback needs `insecure = true`. Default: none.",
    )
    http_hosts: Words = Field(
        default=(),
        description="Names by which browsers may call the HTTP door over `http`, beside addresses and `localhost` "
        "(a page elsewhere can make its own name mean your address).",
    )
    socket_group: str | None = Field(
        default=None,
        min_length=1,
        description="The group whose members may connect to the Unix sockets, beside the daemon's user, who must "
        "be in it. Default: the daemon's own group.",
    )
    token: SecretStr | None = Field(
        default=None,
        min_length=TOKEN_LENGTH_MIN,
        max_length=TOKEN_LENGTH_MAX,
        description="What clients must present; none: no token.",
    )
    token_file: Path | None = Field(
        default=None,
        description="A file that holds the token, or several, one a line, all of them right: so clients can "
        "change over to a new one. SIGHUP reads it again, and ends connections whose token is gone.",
    )
    admin_token: SecretStr | None = Field(
        default=None,
        min_length=TOKEN_LENGTH_MIN,
        max_length=TOKEN_LENGTH_MAX,
        description="What clients must present to change anything (`keep`, `drop`, `checkpoint`, `admin.*`); it "
        "is right wherever `token` is. None: whoever may ask may do so.",
    )
    admin_token_file: Path | None = Field(
        default=None, description="A file with that token, or several, as `token_file`."
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="TLS for the TCP addresses.")
    insecure: bool = Field(default=False, description="Allow addresses beyond loopback without TLS.")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="What one client may ask for.")

    def problems(self) -> Iterator[Problem]:
        if not self.listen:
            yield "listen", "must name at least one address"
        if self.token is not None and self.token_file is not None:
            yield "token_file", "must not be given together with server.token"
        if self.admin_token is not None and self.admin_token_file is not None:
            yield "admin_token_file", "must not be given together with server.admin_token"
        for name, table in (("tls", self.tls), ("limits", self.limits)):
            for key, allowed in table.problems():
                yield f"{name}.{key}", allowed
        taken: list[TcpAddress | UnixAddress] = []
        for key, text, place in self.places():
            if any(_clash(place, other) for other in taken):
                yield key, f"must be an address that is given once ({text})"
            taken.append(place)
        for text in self.http:
            address, tls = parse_http_address(text)
            if tls and self.tls.certificate is None:
                yield "http", f"{text} needs server.tls"
            if not tls and not is_loopback(address) and not self.insecure:
                yield (
                    "http",
                    f"{text} is beyond loopback: take https and server.tls, or server.insecure = true",
                )
        if self.tls.certificate is None and not self.insecure:
            for text in self.listen:
                address = parse_address(text)
                if not is_loopback(address):
                    yield "listen", f"{text} is beyond loopback: set server.tls, or server.insecure = true"

    def places(self) -> Iterator[tuple[str, str, TcpAddress | UnixAddress]]:
        """All places to listen at: the key, the text, and what it says."""
        for text in self.listen:
            yield "listen", text, parse_address(text)
        for text in self.http:
            yield "http", text, parse_http_address(text).place

    def read_tokens(self) -> tuple[str, ...]:
        """The clients' tokens, none when none is asked for.

        Raises:
            ConfigError: their file cannot be read, or holds what is no token.
        """
        return _tokens("server.token_file", self.token, self.token_file)

    def read_admin_tokens(self) -> tuple[str, ...]:
        """The tokens of those who may change something; none when whoever may ask may do so.

        Raises:
            ConfigError: their file cannot be read, or holds what is no token.
        """
        return _tokens("server.admin_token_file", self.admin_token, self.admin_token_file)


def _whole(path: Path | str) -> str:
    """A path as it is compared with others; one that is relative stays so where the working directory is gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        return os.path.normpath(path)


def _clash(one: TcpAddress | UnixAddress, other: TcpAddress | UnixAddress) -> bool:
    """Whether nobody can listen on both. (A name may stand for any address, so it is taken for another one.)"""
    if isinstance(one, UnixAddress) and isinstance(other, UnixAddress):
        return _whole(one.path) == _whole(other.path)
    if isinstance(one, UnixAddress) or isinstance(other, UnixAddress):
        return False
    hosts = {one.host, other.host}
    everywhere = _EVERY_IPV4 in hosts and all(map(_IPV4.fullmatch, hosts))
    return one.port == other.port != 0 and (len(hosts) == 1 or everywhere)  # port 0: any that is free


def _tokens(key: str, token: SecretStr | None, path: Path | None) -> tuple[str, ...]:
    """Of a setting, or of the file that another one (``key``) names."""
    if path is None:
        return () if token is None else (token.get_secret_value(),)
    lines = read_secret(key, path).splitlines()
    tokens = tuple(line.strip() for line in lines if line.strip())
    wrong = [n for n, line in enumerate(lines, 1) if line.strip() and not _is_token(line.strip())]
    if wrong or not 0 < len(tokens) <= TOKENS_MAX:
        where = f"line {wrong[0]}" if wrong else f"it has {len(tokens)} lines that are not empty"
        raise ConfigError(
            f"{key} = {str(path)!r}: must hold 1 to {TOKENS_MAX} tokens, one a line, "
            f"of {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} characters each ({where})"
        )
    return tokens


class MetricsConfig(Section):
    """Prometheus metrics, and the endpoints /live and /ready."""

    listen: Annotated[str, AfterValidator(_checked_metrics_address)] = Field(
        default="127.0.0.1:9420", description="HOST:PORT to serve them on (port 0: any free one), or `off`."
    )
    stuck_after: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds that the engine may take for one turn of its loop (an epoch, or a program computed "
        "from scratch) before `/live` says no and systemd's watchdog is told nothing more.",
    )
    insecure: bool = Field(default=False, description="Allow an address beyond loopback without TLS.")
    tls: TlsConfig = Field(default_factory=TlsConfig, description="TLS: metrics are served by HTTPS then.")

    def problems(self) -> Iterator[Problem]:
        for key, allowed in self.tls.problems():
            yield f"tls.{key}", allowed
        address = self.address()
        if address is not None and not is_loopback(address) and self.tls.certificate is None and not self.insecure:
            yield "listen", f"{self.listen} is beyond loopback: set metrics.tls, or metrics.insecure = true"

    def address(self) -> TcpAddress | None:
        """Where to listen, or None when metrics are off."""
        return None if self.listen == "off" else parse_tcp(self.listen)


class CheckpointConfig(Section):
    """Checkpoints: what a restart goes on from."""

    path: Folder = Field(
        default=Path("./checkpoints"), description="The directory of checkpoints. It is made when missing."
    )
    interval: float = Field(default=60.0, gt=0, le=86_400, description="Seconds between checkpoints.")
    keep: int = Field(default=2, ge=1, le=1000, description="How many checkpoints stay.")
    on_mismatch: Literal["refuse", "discard"] = Field(
        default="refuse",
        description="What to do with a checkpoint of another source or graph: stop, or start anew without it (for "
        "which the source must be reached before anything is answered).",
    )

    def reach(self) -> float:
        """Seconds that the oldest checkpoint lies back which a restart may have to use, at most."""
        return self.interval * (self.keep + 1)


class DeviceConfig(Section):
    """The GPU. It needs CuPy: `pip install 'graphtide[cuda13]'`, or `graphtide[cuda12]` for CUDA 12."""

    enabled: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether a CUDA device keeps the graph beside the host, for programs that can run there. "
        "`auto`: if CuPy is installed and finds a device. `on` (or `true`): always; without a device the daemon "
        "refuses to start. `off` (or `false`): never. A device that fails later is given up, and the host goes "
        "on alone.",
    )
    memory: Annotated[str, BeforeValidator(_written_number), AfterValidator(_checked_budget)] = Field(
        default="90%",
        description="How much of the device's memory may be taken: bytes, or a share such as `90%`; `off`: all. A "
        "device whose memory is used up is given up.",
        examples=["34359738368"],
    )

    @model_validator(mode="before")
    @classmethod
    def _switches(cls, table: object) -> object:
        if isinstance(table, Mapping) and isinstance(table.get("enabled"), bool):
            return {**table, "enabled": "on" if table["enabled"] else "off"}
        return table


class PartitionConfig(Section):
    """Which rows of the graph are where, if there is a device; without one the host has all of them."""

    host_rows: Literal["auto", "owned", "all"] = Field(
        default="auto",
        description="Which rows the host keeps beside a device. `all`: all of them. Programs may run on either, "
        "and the host goes on alone when the device is lost. `owned`: each row is on one side only. Memories and "
        "rates of updates add up, all programs must have a twin on the device, and after its loss the daemon "
        "starts again by itself from the newest checkpoint, without it. `auto`: `owned` if the checkpoint shows "
        "that the device has no room for the graph and every program has a twin; else `all`.",
    )
    host_follows: bool = Field(
        default=True,
        description="With `all`: whether the host may take batches later than the device, by a second at most, "
        "while all programs are on the device. An epoch is then published before the host's rows have it. "
        "Whatever needs these rows waits for them, so answers are the same.",
    )
    policy: Literal["cost", "hash", "hubs-on-device", "hubs-on-host", "recent"] = Field(
        default="cost",
        description="With `owned`: which rows leave the device first where it has no room for all: those that are "
        "cheapest to read from the host (`cost`), those with the fewest (`hubs-on-device`) or the most edges "
        "(`hubs-on-host`), those that changed longest ago (`recent`), or any (`hash`, for comparison).",
    )
    rebalance: bool = Field(
        default=True,
        description="With `owned`: whether rows move between the sides while the daemon runs. `admin.freeze` "
        "stops that, and lets it go on, without a restart.",
    )


class ComputeConfig(Section):
    """The processor."""

    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="Threads that programs share, and programs side by side: a number, or `auto` for our cores.",
    )
    nice: int = Field(
        default=5,
        ge=0,
        le=19,
        description="By how much the niceness (as of the command `nice`, on Linux) of threads that ingest and "
        "compute is above that of the rest of the daemon: where cores are short, they give way to answers, and "
        "to other processes. 0: they do not.",
    )

    place: Literal["auto", "host", "device"] = Field(
        default="auto",
        description="Where programs run that can run on a device, if there is one. `auto`: where epochs take less "
        "time, which is measured; programs move when that changes. `host` or `device`: always there. A program's "
        "own `place` takes precedence.",
    )
    python_modules: Words = Field(
        default=(),
        description="Python modules to import first, which register programs of their own; see docs/programs.md.",
        examples=["company.graph_programs"],
    )

    def thread_count(self) -> int:
        """The number of threads."""
        return usable_cores() if self.threads == "auto" else self.threads


class StorageConfig(Section):
    """How the graph is kept."""

    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="How many of the threads of `compute.threads` share large batches of edges, loads and copies: "
        "a number, or `auto` for all of them.",
    )

    def thread_count(self) -> int | None:
        """The number of threads; None: all that there are."""
        return None if self.threads == "auto" else self.threads


class MemoryConfig(Section):
    """How much memory may be used before reading waits."""

    budget: Annotated[str, BeforeValidator(_written_number), AfterValidator(_checked_budget)] = Field(
        default="90%",
        description="How much memory may be used: bytes, or a share such as `90%` of the machine's memory or of a "
        "control group's limit, whichever is smaller; `off`: no budget. Past it nothing more is read until "
        "memory comes free; what was read is applied, and questions are answered. In a limited control group "
        "everything in the group counts, otherwise what the engine process has in memory. A start whose "
        "checkpoint does not fit ends, and so does `graphtide load`; bad rows wait until there is room for their "
        "dead letters.",
        examples=["12884901888"],
    )


class AuditConfig(Section):
    """The check of published results, and of the storage, against the graph, in the background and without end."""

    share: float = Field(
        default=0.02,
        ge=0,
        le=0.5,
        description="The share of the engine thread's time that the audit may take; 0: none. It goes over "
        "everything slice by slice; what contradicts the graph is logged with its evidence, and counted by "
        "the metric `graphtide_audit_violations_total`.",
    )
    repair: Literal["off", "restart"] = Field(
        default="off",
        description="What to do about a program that contradicts the graph: nothing, or compute it from scratch. "
        "A storage that contradicts itself is never repaired, nor are programs from then on.",
    )
    full_every_epoch: bool = Field(
        default=False,
        description="Check everything after every epoch. For tests: it costs far more than the epoch.",
    )


class LogConfig(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is logged."
    )
    format: Literal["auto", "human", "plain", "json"] = Field(
        default="auto",
        description="`auto` is `human` on a terminal and `plain` elsewhere; `json` is one object a line.",
    )


def _default_programs() -> tuple[ProgramConfig, ...]:
    return tuple(ProgramConfig(name=name, id=name) for name in ("components", "pagerank"))


class Config(Section):
    """All settings."""

    graph: GraphConfig = Field(default_factory=GraphConfig)
    source: SourceConfig = Field(default_factory=SourceConfig)
    dead_letters: DeadLettersConfig = Field(default_factory=DeadLettersConfig)
    results: ResultsConfig = Field(default_factory=ResultsConfig)
    program: tuple[ProgramConfig, ...] = Field(default_factory=_default_programs)
    epoch: EpochConfig = Field(default_factory=EpochConfig)
    window: WindowConfig = Field(default_factory=WindowConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    device: DeviceConfig = Field(default_factory=DeviceConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    storage: StorageConfig = Field(default_factory=StorageConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    def problems(self) -> Iterator[Problem]:
        if self.dead_letters.topic is not None and self.source.kind != "kafka":
            yield "dead_letters.topic", 'must be left out unless source.kind is "kafka"'
        if self.dead_letters.topic is not None and self.dead_letters.topic in self.source.topics:
            yield "dead_letters.topic", "must not be one of source.topics: bad records would come round for ever"
        results, source = self.results, self.source
        if source.keyed and self.window.is_on:
            yield (
                "source.keyed",
                (
                    "must be left out with a window: the edge of a key is there until a record of that key "
                    "replaces or removes it, and edges of a window go by themselves. Remove rows at their source, "
                    "or have records name edges without keys"
                ),
            )
        if results.kind == "kafka":
            if not results.bootstrap_servers and source.kind != "kafka":
                yield "results.bootstrap_servers", 'must name at least one broker unless source.kind is "kafka"'
            same = not results.bootstrap_servers or set(results.bootstrap_servers) & set(source.bootstrap_servers)
            if source.kind == "kafka" and same and results.topic in (*source.topics, self.dead_letters.topic):
                yield "results.topic", "must be a topic of its own, neither of source.topics nor of dead letters"
        if source.kind == "spool":
            spool = _whole(source.path)
            if results.kind == "spool" and _whole(results.path) == spool:
                yield "results.path", "must not be source.path: results would be read as updates"
            if _whole(self.dead_letters.path) == spool:
                yield "dead_letters.path", "must not be source.path: bad records would come round for ever"
        if (metrics := self.metrics.address()) is not None:
            for key, text, place in self.server.places():
                if _clash(metrics, place):
                    yield "metrics.listen", f"must be an address of its own: server.{key} has {text}"
        known = {program.id for program in self.program}
        if unknown := [id for id in results.programs if id not in known]:
            there = ", ".join(sorted(known))
            yield "results.programs", f"must be ids of programs ({', '.join(unknown)}: there are {there})"

    def place_of(self, id: str) -> str:
        """Where a program runs, whether it is configured or was kept at run time: auto, host or device."""
        own = (item.place for item in self.program if item.id == id)
        return next(own, None) or self.compute.place

    @property
    def uses_device(self) -> bool:
        """Whether any program may run on a device."""
        if self.device.enabled == "on" or self.compute.place != "host":
            return True
        return any(item.place in ("auto", "device") for item in self.program)

    def results_servers(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The brokers of the results' topic, and the options for their client.

        Raises:
            ConfigError: a file of a secret cannot be read.
        """
        if self.results.bootstrap_servers:
            return self.results.bootstrap_servers, client_options("results.client", self.results.client)
        return self.source.bootstrap_servers, self.source.client_options()
