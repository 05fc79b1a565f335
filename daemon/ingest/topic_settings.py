"""What a topic's own settings mean for whoever builds a graph from it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms")

FAST_BYTES_PER_S = 100e6
"""Faster than a partition is written to, as a rule: what would need more to be lost is not warned of."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How Kafka deletes records of a topic: by key (compaction), by age in seconds, and of each partition what is
    over a size (None: never); and for how many seconds, at least, compaction leaves tombstones."""

    compacted: bool
    retention_s: float | None
    retention_bytes: int | None = None
    tombstones_s: float = 86_400.0


def meant(topics: Iterable[str], there: Iterable[str]) -> str:
    """For the end of a message that there are no such topics: what they may be called."""
    known = sorted(name for name in there if not name.startswith("__"))  # Kafka's own begin so
    close = [name for topic in topics for name in difflib.get_close_matches(topic, known, n=1)]
    return f"; did you mean {', '.join(close)}?" if close else ""


def read_topic_settings(admin: Any, topics: Iterable[str]) -> dict[str, TopicSettings]:
    """The settings of topics by name; those that this user may not see are left out.

    Raises:
        KafkaError: the cluster did not answer; trying again can help.
    """
    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, list(_KEYS)) for topic in topics]
    try:
        described = admin.describe_configs(wanted, config_filter="all").get("topic", {})
    except KafkaError as error:
        if error.retriable:
            raise
        return {}
    return {topic: _settings(values) for topic, values in described.items() if values.keys() >= set(_KEYS)}


def compaction_problem(topic: str, settings: TopicSettings) -> str | None:
    """Why a graph built from this topic would miss edges, or None."""
    if not settings.compacted:
        return None
    return (
        f"topic {topic} is compacted (cleanup.policy): of records with one key Kafka keeps only the last, and the "
        f"graph misses what the others held, unless each key names one edge and each record holds one update of it"
    )


def retention_problem(topic: str, settings: TopicSettings, reach_s: float) -> str | None:
    """Why a restart may not find the records that it needs, or None.

    ``reach_s``: how far back the oldest checkpoint that a restart may have to use lies.
    """
    if settings.retention_s is not None and settings.retention_s <= reach_s:
        return (
            f"topic {topic} keeps records for {settings.retention_s:g} s (retention.ms), and checkpoints reach "
            f"back {reach_s:g} s: after a crash the records to go on from may be gone"
        )
    if settings.retention_bytes is None or settings.retention_bytes >= FAST_BYTES_PER_S * reach_s:
        return None
    rate = settings.retention_bytes / reach_s
    return (
        f"topic {topic} keeps {settings.retention_bytes} bytes of each partition (retention.bytes), and "
        f"checkpoints reach back {reach_s:g} s: from {rate:.3g} bytes a second on, in one partition, the records "
        f"to go on from after a crash may be gone"
    )


def tombstone_problem(topic: str, settings: TopicSettings, reach_s: float) -> str | None:
    """Why a restart may miss that the edges of keys were removed, or None. ``reach_s``: as above."""
    if not settings.compacted or settings.tombstones_s > reach_s:
        return None
    return (
        f"topic {topic} keeps tombstones for {settings.tombstones_s:g} s (delete.retention.ms), and checkpoints "
        f"reach back {reach_s:g} s: after a crash edges that were removed may stay"
    )


def beginning_problem(partition: str, begin: int) -> str | None:
    """What reading a partition from its beginning misses, or None."""
    if begin == 0:
        return None
    return f"{partition} begins at offset {begin}: what stood before was deleted, and the graph starts without it"


def _settings(values: dict[str, Any]) -> TopicSettings:
    policies = {policy.strip() for policy in values["cleanup.policy"]["value"].split(",")}
    names = "retention.ms", "retention.bytes", "delete.retention.ms"
    retention_ms, retention_bytes, tombstones_ms = (int(values[name]["value"]) for name in names)
    deletes = "delete" in policies
    return TopicSettings(
        "compact" in policies,
        retention_ms / 1000 if deletes and retention_ms >= 0 else None,
        retention_bytes if deletes and retention_bytes >= 0 else None,
        tombstones_ms / 1000,
    )
