"""What a topic's own settings mean for whoever builds a graph from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

_KEYS = ("cleanup.policy", "retention.ms", "delete.retention.ms")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How Kafka deletes records of a topic: by key (compaction), and by age in seconds (None: never); and for how
    many seconds, at least, compaction leaves tombstones."""

    compacted: bool
    retention_s: float | None
    tombstones_s: float


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
    if settings.retention_s is None or settings.retention_s > reach_s:
        return None
    return (
        f"topic {topic} keeps records for {settings.retention_s:g} s (retention.ms), and checkpoints reach back "
        f"{reach_s:g} s: after a crash the records to go on from may be gone"
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
    retention_ms = int(values["retention.ms"]["value"])
    by_age = "delete" in policies and retention_ms >= 0
    tombstones_s = int(values["delete.retention.ms"]["value"]) / 1000
    return TopicSettings("compact" in policies, retention_ms / 1000 if by_age else None, tombstones_s)
