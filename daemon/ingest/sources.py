"""The source, its registry and the dead letters that a configuration asks for.

Kafka's client is imported where Kafka is asked for: that takes a fifth of a second.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from ..config.settings import Config
from ..errors import ConfigError
from ..records.stream import DeadLetters, Source
from .arrow_extra import NEEDS_PYARROW, is_readable
from .dead_letters import FileDeadLetters
from .registry import Registry, basic_authorization
from .spool import SpoolSource

log = logging.getLogger(__name__)


def make_source(config: Config) -> Source:
    """The source, not opened yet.

    Raises:
        ConfigError: its settings do not fit.
    """
    source = config.source
    start: Any = source.start_position()  # the sources refuse, by name, what is not for them
    if source.kind == "spool":
        if (unheeded := source.unheeded_encoding()) is not None:
            log.warning("%s", unheeded)
        return SpoolSource(
            source.path,
            start=start,
            # Beside the checkpoints: a file that was replaced while we were down is noticed too.
            fingerprints=config.checkpoint.path / "spool-fingerprints",
            checkpoints_kept=config.checkpoint.keep,
            directed=config.graph.directed,
        )
    if source.encoding == "arrow" and not is_readable():
        raise ConfigError(f'source.encoding = "arrow": {NEEDS_PYARROW}')
    from .kafka import KafkaSource

    return KafkaSource(
        source.bootstrap_servers,
        source.topics,
        name=source.name,
        start=start,
        default_encoding=source.encoding,
        client=source.client_options(),
        fetch_bytes_max=source.fetch_bytes_max,
        compacted=source.compacted,
        keyed=source.keyed,
        reach_s=config.checkpoint.reach(),
    )


def make_registry(config: Config, given_up: Callable[[], bool] = lambda: False) -> Registry | None:
    """The schema registry, if there is one; it is not asked yet. ``given_up``: see there.

    Raises:
        ConfigError: a file that its settings name cannot be used.
    """
    given = config.source.registry
    if given.url is None:
        return None
    password = given.read_password()
    context = None
    if given.url.startswith("https:"):
        try:
            context = ssl.create_default_context(cafile=given.ca_file)
            if given.certificate_file is not None:
                context.load_cert_chain(given.certificate_file, given.key_file)
        except OSError as error:  # an SSLError is one
            files = [given.ca_file, given.certificate_file, given.key_file]
            named = ", ".join(str(file) for file in files if file is not None)
            raise ConfigError(f"source.registry: certificates cannot be used ({named}): {error}") from error
    return Registry(
        given.url,
        authorization=basic_authorization(given.username, password) if given.username else "",
        context=context,
        timeout_s=given.timeout,
        schema_bytes_max=given.schema_bytes_max,
        given_up=given_up,
    )


def make_dead_letters(config: Config) -> DeadLetters:
    """Where bad records go: a topic by way of files, or files alone.

    Raises:
        ConfigError: the folder cannot be used.
    """
    letters = config.dead_letters
    if letters.topic is None:
        return FileDeadLetters(letters.path, bytes_max=letters.spill_bytes_max)
    from .dead_letters_kafka import KafkaDeadLetters

    return KafkaDeadLetters(
        config.source.bootstrap_servers,
        letters.topic,
        letters.path,
        client=config.source.client_options(),
        bytes_max=letters.spill_bytes_max,
    )
