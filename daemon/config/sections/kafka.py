"""What the source and the results of Kafka share: names of topics, brokers, and options of its client."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from ...client.addresses import UnknownHome, from_home
from ..addresses import parse_tcp
from ..secrets import FileSecret
from .section import Problem

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes."""

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


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def _checked_topic(name: str) -> str:
    if name and not is_topic(name):
        raise ValueError("must be the name of a topic: letters, digits, '.', '_' and '-'")
    return name


Topic = Annotated[str, AfterValidator(_checked_topic)]


def broker_problems(servers: Iterable[str]) -> Iterator[Problem]:
    """What is wrong with the addresses of brokers."""
    for server in servers:
        try:
            parse_tcp(server)
        except ValueError as error:
            yield "bootstrap_servers", f"each {error} ({server!r} is not)"


def client_options(key: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of options for kafka-python, secrets read from their files (``FileSecret``).

    Raises:
        ConfigError: a file of a secret cannot be read; ``key`` is where the table stands.
    """
    options: dict[str, Any] = {}
    for name, value in table.items():
        if name.endswith("_file"):  # none of the client's own options ends so: it says ssl_cafile
            options[name.removesuffix("_file")] = FileSecret.read(f"{key}.{name}", Path(from_home(str(value))))
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


def _like_what(key: str) -> object:
    """What an option of kafka-python is by itself, or a number where that does not tell that it is one."""
    from kafka import KafkaConsumer

    return 0 if key == "receive_buffer_bytes" else KafkaConsumer.DEFAULT_CONFIG.get(key)


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
