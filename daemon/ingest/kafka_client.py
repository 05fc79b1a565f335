"""What everybody who talks to Kafka needs: clients that leave nothing behind, and waits between tries."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from kafka.net.compat import KafkaNetClient


def connect(kind: Any, client: Mapping[str, Any], **options: Any) -> Any:
    """One of kafka-python's clients, with those options of ``client`` that it knows, and ours over them.

    When their constructors fail they leave their network thread running; here it is stopped. Long outages
    would otherwise gather threads.

    Raises:
        KafkaError: the cluster cannot be reached, or an option is wrong.
    """
    made: list[KafkaNetClient] = []

    def network(**settings: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**settings))
        return made[-1]

    known = {key: value for key, value in client.items() if key in kind.DEFAULT_CONFIG}
    try:
        return kind(**{**known, **options, "kafka_client": network})
    except BaseException:
        for leftover in made:
            leftover.close()
        raise


class Backoff:
    """Waits between tries: each twice the one before up to a limit, shortened at random by up to half."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 10.0) -> None:
        self.first_s = first_s
        self.limit_s = limit_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self.first_s

    def wait_s(self) -> float:
        """How long to wait now."""
        wait = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self.limit_s)
        return wait
