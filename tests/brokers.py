"""Clients of the tests' own for the broker, which end with their block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from graphtide.daemon.ingest.kafka_client import connect, disconnect


@contextlib.contextmanager
def client(kind: Any, bootstrap: str, **options: Any) -> Iterator[Any]:
    """A consumer, a producer or an admin client; what a producer has not sent yet gets ten seconds."""
    made = connect(kind, {}, bootstrap_servers=[bootstrap], **options)
    try:
        yield made
    finally:
        disconnect(made, timeout_s=10)
