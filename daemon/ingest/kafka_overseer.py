"""The thread that talks to a Kafka cluster about everything but records.

It describes the topics now and then, which finds new partitions and outages. It commits the offsets of checkpoints
for tools that show lag.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, NodeNotReadyError, NoError
from kafka.structs import OffsetAndMetadata

from ..backoff import Backoff
from ..os_errors import said
from .kafka_client import MISTAKES, KafkaLink
from .topic_settings import TopicSettings, meant, read_topic_settings

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 10_000
_COMMIT_PATIENCE_S = 30.0
"""A commit that only has to be tried again is not worth a warning for so long."""
_STARTS_TIMEOUT_MS = 1_000
_SETTINGS_PERIOD_S = 600.0
"""So often it is looked whether topics have other settings by now."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the cluster describes it; the id is empty where brokers give none (before 2.8).

    ``settings``: None where we may not see them.
    """

    id: str
    partitions: frozenset[int]
    settings: TopicSettings | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the cluster said last; topics that do not exist are left out."""

    id: str
    topics: Mapping[str, Topic]
    meant: str = ""
    """Where topics are missing: which ones may be meant, for the end of a message."""


class Outages:
    """Counts and logs each outage once, however many tries it lasts. Any thread may call it."""

    def __init__(self, servers: str) -> None:
        self.count = 0
        self.said: str | None = None
        """Why it cannot be used now; None while it can."""
        self._servers = servers
        self._kind: type[BaseException] | None = None
        self._since: float | None = None
        self._lock = threading.Lock()

    def failed(self, error: BaseException) -> None:
        """It could not be used."""
        with self._lock:
            if self.said is None or type(error) is not self._kind:  # tries of one kind differ in milliseconds
                self.said = f"Kafka at {self._servers} cannot be used: {said_of(error)}"
                self._kind = type(error)
            if self._since is None:
                self._since = time.monotonic()
                self.count += 1
                log.error("%s; trying again", self.said)

    def worked(self) -> None:
        """It answers."""
        with self._lock:
            if self._since is not None:
                log.info("Kafka at %s answers again after %.1f s", self._servers, time.monotonic() - self._since)
                self._since = self.said = None


class Overseer(threading.Thread):
    """Describes the topics now and then, and commits what it is given."""

    def __init__(
        self, servers: Sequence[str], topics: Sequence[str], group: str, client: Mapping[str, Any], period_s: float
    ) -> None:
        super().__init__(name="kafka-overseer", daemon=True)
        self.servers, self.topics, self.group = list(servers), list(topics), group
        self.period_s = period_s
        self.outages = Outages(",".join(servers))
        self.cluster: Cluster | None = None
        self.starts: Mapping[TopicPartition, int] = {}
        self.error: BaseException | None = None
        self.commits = 0
        self.commit_failures = 0
        self._commit_failing_since: float | None = None
        self._commit_failure_said = False
        self._settings: dict[str, TopicSettings] = {}
        self._looked_at: set[str] = set()
        self._look_again_at = 0.0
        self._admin = KafkaLink(
            KafkaAdminClient,
            client,
            bootstrap_servers=self.servers,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self._pending: dict[TopicPartition, OffsetAndMetadata] | None = None
        self._stopping = False
        self._give_up_at = 0.0
        self._changed = threading.Condition()

    def wait_cluster(self, timeout_s: float) -> Cluster | None:
        """The cluster's description, as soon as there is one; None also when it is sure that none will come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.cluster is not None or self._stopping or isinstance(self.error, MISTAKES), timeout_s
            )
            return self.cluster

    def wait_newer(self, known: Cluster | None, timeout_s: float) -> Cluster | None:
        """A description made after this one; None when none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self.cluster is not known or self._stopping, timeout_s)
            return self.cluster if self.cluster is not known else None

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit soon; newer offsets replace those that wait."""
        with self._changed:
            self._pending = offsets
            self._changed.notify_all()

    def stop(self, timeout_s: float) -> None:
        """Commit what waits, if that can be done in time, and end; anything else under way is broken off."""
        with self._changed:
            self._stopping = True
            self._give_up_at = time.monotonic() + timeout_s / 2
            waits = self._pending is not None
            self._changed.notify_all()
        if waits:
            self.join(timeout_s)
        self._admin.break_off()
        self.join(timeout_s)

    def run(self) -> None:
        backoff = Backoff()
        describe_at = 0.0
        while True:
            away = retry = False
            try:
                if time.monotonic() >= describe_at:
                    self._describe()
                    describe_at = time.monotonic() + self.period_s
                retry = not self._commit()
            except Exception as error:  # whatever the client raises, this thread goes on trying
                away = retry = True
                with self._changed:
                    self.error = error
                    self._changed.notify_all()
                if not self._stopping:  # else it may be we who broke it off
                    self.outages.failed(error)
                self._admin.close()
                describe_at = 0.0
            with self._changed:
                if self._stopping and (away or self._pending is None or time.monotonic() > self._give_up_at):
                    break
                if retry:
                    self._changed.wait_for(self._is_stopping, backoff.wait_s())
                else:
                    backoff.reset()
                    self._changed.wait_for(self._has_work, max(describe_at - time.monotonic(), 0.0))
        self._admin.close()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _has_work(self) -> bool:
        return self._stopping or self._pending is not None

    def _describe(self) -> None:
        described = self._admin.client().describe_topics(self.topics)
        cluster_id = self._cluster_id()
        described = [topic for topic in described if topic["error_code"] == 0]
        self._look_at_settings({topic["name"] for topic in described})
        topics = {
            topic["name"]: Topic(
                id=_topic_id(topic.get("topic_id")),
                partitions=frozenset(partition["partition_index"] for partition in topic["partitions"]),
                settings=self._settings.get(topic["name"]),
            )
            for topic in described
        }
        self.outages.worked()
        self._note_missing(set(self.topics) - topics.keys())
        self._look_for_starts(topics)
        meant = self._meant(set(self.topics) - topics.keys())
        with self._changed:
            self.cluster = Cluster(cluster_id, topics, meant)
            self._changed.notify_all()

    def _meant(self, missing: set[str]) -> str:
        if not missing:
            return ""
        with contextlib.suppress(KafkaError):
            return meant(sorted(missing), self._admin.client().list_topics())
        return ""

    def _look_at_settings(self, topics: set[str]) -> None:
        """Of topics that are new at once; of all now and then, where what cannot be had stays as it was."""
        if fresh := topics - self._looked_at:
            self._settings |= read_topic_settings(self._admin.client(), fresh)
            self._looked_at |= fresh
            self._look_again_at = self._look_again_at or time.monotonic() + _SETTINGS_PERIOD_S
        elif time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _SETTINGS_PERIOD_S
            with contextlib.suppress(KafkaError):
                self._settings |= read_topic_settings(self._admin.client(), topics)

    def _look_for_starts(self, topics: Mapping[str, Topic]) -> None:
        """Where the logs begin now, which only operators are told: what cannot be had stays as it was."""
        wanted = {TopicPartition(name, i): OffsetSpec.EARLIEST for name in topics for i in topics[name].partitions}
        with contextlib.suppress(KafkaError):
            found = self._admin.client().list_partition_offsets(wanted, timeout_ms=_STARTS_TIMEOUT_MS)
            self.starts = {tp: int(start.offset) for tp, start in found.items()}

    def _cluster_id(self) -> str:
        if self.cluster is not None:
            return self.cluster.id
        return str(self._admin.client().describe_cluster().get("cluster_id") or "")

    def _note_missing(self, missing: set[str]) -> None:
        known = set(self.topics) if self.cluster is None else set(self.cluster.topics)
        for topic in sorted(missing & known):
            log.warning("topic %s does not exist (or may not be described); waiting for it", topic)

    def _commit(self) -> bool:
        """Commit what waits; False when that should be tried again. A failure costs lag tools, nobody else."""
        with self._changed:
            offsets = self._pending
        if offsets is None:
            return True
        done = True
        try:
            errors = set(self._admin.client().alter_group_offsets(self.group, offsets).values()) - {NoError}
            if errors:
                raise errors.pop()()
            self.commits += 1
            self._commit_failing_since, self._commit_failure_said = None, False
        except KafkaError as error:
            done = not error.retriable
            self.commit_failures += 1
            now = time.monotonic()
            since = self._commit_failing_since = self._commit_failing_since or now
            # A fresh cluster makes the topic of its groups only when the first one asks for it.
            if not self._commit_failure_said and (done or now - since >= _COMMIT_PATIENCE_S):
                self._commit_failure_said = True
                log.warning("offsets cannot be committed to group %s: %s", self.group, said_of(error))
        with self._changed:
            if done and self._pending is offsets:
                self._pending = None
        return done


def _topic_id(value: object) -> str:
    """The id as text; older brokers give none, or zeros."""
    text = str(value or "")
    return "" if set(text) <= set("0-") else text


def said_of(error: BaseException | None) -> str:
    """What an error says; None: there was no answer, nor an error."""
    if isinstance(error, NodeNotReadyError):  # which speaks of the client's own numbers
        return "no broker answers"
    return said(error) if error is not None else "no answer yet"
