"""The Kafka source: whole topics, read with ``assign``, from offsets that our checkpoints own.

There is no consumer group to rebalance: every partition of the configured topics is ours. A second thread
(``kafka_overseer``) looks for new partitions, notices outages, and commits the offsets of checkpoints to the group
``graphtide-<name>``, so that lag tools show where we are. Nothing is ever read back from that group.

What would lose or repeat records is a ``SourceError``: an offset that retention has passed, a log that was
truncated below what was read, a topic that was deleted and made again. An outage is not: ``poll`` returns
nothing, the outage is counted and logged once, and connecting is tried again with backoff.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaConfigurationError,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata

from ..backoff import Backoff
from ..errors import ConfigError, RecordsLost, SourceError, SourceReplaced, SourceUnavailable
from ..records.encodings import encoding_of
from ..records.stream import Lag, Offsets, Partition, RawRecord, Standing
from .kafka_client import MISTAKES, connect, disconnect, epoch_at_position, seek
from .kafka_overseer import REQUEST_TIMEOUT_MS, Cluster, Overseer, said_of
from .leader_epochs import LeaderEpochs
from .open_transactions import OpenTransactions
from .topic_settings import (
    TopicSettings,
    beginning_problem,
    compaction_problem,
    retention_problem,
    tombstone_problem,
)

log = logging.getLogger(__name__)

KafkaStart = Literal["earliest", "latest"] | int | Mapping[str, Mapping[int, int]]

_POSITION_REFRESH_S = 0.1


class KafkaSource:
    """See the module. One thread calls it; ``lag`` may be called from others."""

    unit = "records"

    def __init__(
        self,
        bootstrap_servers: Sequence[str] | str,
        topics: Sequence[str],
        *,
        name: str = "graphtide",
        start: KafkaStart = "earliest",
        default_encoding: str = "msgpack",
        client: Mapping[str, Any] | None = None,
        fetch_bytes_max: int = 16 << 20,
        records_max: int = 4096,
        discovery_s: float = 5.0,
        connect_timeout_s: float = 10.0,
        compacted: Literal["refuse", "accept"] = "refuse",
        keyed: bool = False,
        reach_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            bootstrap_servers: ``host:port`` of one or more brokers.
            topics: read whole, every partition of each; partitions added later are read from their start.
            name: offsets are committed to the group ``graphtide-<name>`` (default ``graphtide-graphtide``).
            start: without a checkpoint: ``"earliest"`` (default), ``"latest"``, milliseconds since 1970
                (records from then on), or topic -> partition -> offset (others from their start).
            default_encoding: of records without a ``content-type`` header (default ``"msgpack"``).
            client: passed to kafka-python as it is (``security_protocol``, ``sasl_*``, ``ssl_*``, ...).
            fetch_bytes_max: the most bytes that one fetch of one broker brings (default 16 MiB); a larger
                record batch still comes, alone.
            records_max: the most records of one call to the client (default 4096).
            discovery_s: how often topics are described, which also finds outages (default 5 s).
            connect_timeout_s: how long ``identity`` waits for the cluster (default 10 s).
            compacted: whether topics of which Kafka deletes older records of a key are refused (default).
            keyed: whether keys of records stand for edges: then topics may be compacted (default: not).
            reach_s: how far back checkpoints reach: a topic that keeps records for less is warned of.
            clock: seconds since 1970.
        """
        self.servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self.topics = tuple(topics)
        self.start = start
        self.default_encoding = default_encoding
        self.client = dict(client or {})
        self.fetch_bytes_max = fetch_bytes_max
        self.records_max = records_max
        self.connect_timeout_s = connect_timeout_s
        self.compacted = compacted
        self.keyed = keyed
        self.reach_s = reach_s
        self.clock = clock
        self._overseer = Overseer(self.servers, self.topics, f"graphtide-{name}", self.client, discovery_s)
        self._outages = self._overseer.outages
        self._consumer: KafkaConsumer | None = None
        self._cluster: Cluster | None = None
        self._topic_ids: dict[str, str] = {}
        self._checked: dict[str, TopicSettings | None] = {}
        self._given: dict[Partition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        self._held: frozenset[TopicPartition] = frozenset()
        self._open_transactions = OpenTransactions(self._stable_ends)
        self._leaders = LeaderEpochs()
        self._ends: dict[TopicPartition, int] = {}
        self._newest_ms = 0
        self._bytes_a_record = float(1 << 16)
        self._backoff = Backoff()
        self._retry_at = 0.0
        self._refresh_at = 0.0
        self._lag = Lag()

    @property
    def outages(self) -> int:
        """How often the cluster could not be used."""
        return self._outages.count

    @property
    def away(self) -> str | None:
        """Why the cluster cannot be used now, or what topic is not there, in words."""
        cluster = self._overseer.cluster
        return self._outages.said or (None if cluster is None else self._missing(cluster))

    def _missing(self, cluster: Cluster) -> str | None:
        missing = sorted(set(self.topics) - cluster.topics.keys())
        if not missing:
            return None
        servers = ",".join(self.servers)
        return f"Kafka at {servers} has no topic {', '.join(missing)}, or it may not be described{cluster.meant}"

    # -- life -------------------------------------------------------------------------------------------

    def open(self, offsets: Offsets | None, state: bytes = b"") -> None:
        """Begin at these offsets, or by ``start`` when there are none. Needs no broker yet."""
        self._given = dict(offsets or {})
        self._leaders.restore(state, self._given)
        self._oversee()

    def _oversee(self) -> None:
        if self._overseer.ident is None:
            self._overseer.start()

    def identity(self) -> dict[str, Any]:
        """The cluster and the ids of its topics: a topic that is deleted and made again has another id.

        (Not the number of partitions: that may grow.)

        Raises:
            SourceUnavailable: the cluster does not answer, or a topic does not exist; try again.
            ConfigError: the client refuses its settings, or the cluster the client, or a topic is compacted.
        """
        self._oversee()
        cluster = self._overseer.wait_cluster(self.connect_timeout_s)
        if cluster is None:
            servers = ",".join(self.servers)
            if isinstance(self._overseer.error, MISTAKES):
                raise ConfigError(f"source.client: Kafka at {servers}: {said_of(self._overseer.error)}")
            raise SourceUnavailable(f"Kafka at {servers} cannot be reached: {said_of(self._overseer.error)}")
        if missing := self._missing(cluster):
            raise SourceUnavailable(missing)
        self._check_settings(cluster)
        ids = {name: cluster.topics[name].id for name in sorted(self.topics)}
        return {"kind": "kafka", "cluster": cluster.id, "topics": ids}

    def _check_settings(self, cluster: Cluster) -> None:
        for name in self.topics:
            settings = self._checked[name] = cluster.topics[name].settings
            if settings is None:
                log.info("the settings of topic %s cannot be seen: whether it is compacted is not known", name)
                continue
            self._check_topic(name, settings)

    def _check_changed(self, cluster: Cluster) -> None:
        """
        Raises:
            ConfigError: a topic is compacted by now.
        """
        for name, before in self._checked.items():
            topic = cluster.topics.get(name)
            if topic is not None and topic.settings is not None and topic.settings != before:
                self._checked[name] = topic.settings
                log.info("topic %s has other settings now: %s", name, topic.settings)
                self._check_topic(name, topic.settings)

    def _check_topic(self, name: str, settings: TopicSettings) -> None:
        if not self.keyed and (problem := compaction_problem(name, settings)):
            if self.compacted == "refuse":
                raise ConfigError(f'{problem}; then set source.compacted = "accept"', {"topic": name})
            log.warning("%s", problem)
        if problem := retention_problem(name, settings, self.reach_s):
            log.warning("%s", problem)
        if self.keyed and (problem := tombstone_problem(name, settings, self.reach_s)):
            log.warning("%s", problem)

    def close(self) -> None:
        """Stop reading; a commit that waits gets a moment."""
        if self._overseer.ident is not None:
            self._overseer.stop(timeout_s=5.0)
        self._disconnect()

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        """The next records: about ``bytes_max`` bytes of them; empty when none came in time.

        Raises:
            SourceError: an offset is out of range, the log was truncated, a topic was made anew, or a record
                arrived damaged.
            ConfigError: a topic is compacted by now, or the client refuses its settings.
        """
        now = time.monotonic()
        if now < self._retry_at:
            time.sleep(min(timeout_s, self._retry_at - now))
            return []
        cluster = self._overseer.cluster or self._overseer.wait_cluster(timeout_s)
        if cluster is None:
            return []
        try:
            if cluster is not self._cluster:
                self._assign(cluster)
            records = self._fetch(bytes_max, timeout_s)
            self._look(records)
        except OffsetOutOfRangeError as error:
            self._check_same_now()
            raise self._out_of_range(error) from error
        except LogTruncationError as error:
            self._check_same_now()
            raise self._truncated(error) from error
        except CorruptRecordError as error:
            raise SourceError(f"a record arrived damaged: {said_of(error)}") from error
        except KafkaConfigurationError as error:
            raise ConfigError(f"source.client: {said_of(error)}") from error
        except (KafkaError, OSError) as error:
            self._outages.failed(error)
            if self._consumer is not None and self._cluster is None:
                self._disconnect()
            self._retry_at = time.monotonic() + self._backoff.wait_s()
            return []
        if records:
            self._backoff.reset()
        return records

    def position(self) -> dict[Partition, int]:
        """The next offset to read of every partition, transaction markers and compacted gaps passed."""
        if not self._next:
            return dict(self._given)
        return {Partition(tp.topic, tp.partition): offset for tp, offset in self._next.items()}

    def hold(self, partitions: Collection[Partition]) -> None:
        """Read nothing of these until the next call; what was fetched of them already is kept by the client."""
        self._held = frozenset(_placed(partition) for partition in partitions)
        if self._consumer is not None:
            self._pause(self._consumer)

    def _pause(self, consumer: KafkaConsumer) -> None:
        consumer.resume(*(self._next.keys() - self._held))
        consumer.pause(*(self._next.keys() & self._held))

    def state(self) -> bytes:
        """See ``LeaderEpochs``: what offsets do not say."""
        return self._leaders.state

    def standing(self, partition: Partition, offset: int) -> Standing:
        """A topic that is read may get further partitions at any time; any other is not known."""
        return "expected" if partition.number is not None and partition.name in self.topics else "unknown"

    def partition_count(self, name: str) -> int:
        """Partitions of a topic, as the last ``poll`` knew it."""
        topic = None if self._cluster is None else self._cluster.topics.get(name)
        return 1 if topic is None else len(topic.partitions)

    def backlog(self) -> int | None:
        """Records up to where the partitions ended when they were met."""
        if not self._next:
            return None
        return sum(max(self._ends[tp] - offset, 0) for tp, offset in self._next.items())

    def log_margin(self, offsets: Offsets) -> float:
        """As of when the topics were described last."""
        starts = self._overseer.starts
        known = {_placed(p): offset for p, offset in offsets.items()}
        return min((offset - starts[tp] for tp, offset in known.items() if tp in starts), default=math.nan)

    def lag(self) -> Lag:
        """Records up to the high watermark, as the last ``poll`` knew it."""
        return self._lag

    def refresh_lag(self) -> None:
        """Ask the brokers where the partitions end now. (``poll`` hears of it with the records.)"""
        if self._consumer is None or not self._next:
            return
        try:
            ends = self._consumer.end_offsets(list(self._next), timeout_ms=REQUEST_TIMEOUT_MS)
        except (KafkaError, OSError) as error:
            self._outages.failed(error)
            return
        self._set_lag(ends)

    def checkpointed(self, offsets: Offsets) -> None:
        """Commit, in the background, for whoever watches the group."""
        self._overseer.commit(
            {_placed(partition): OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        )

    def _fetch(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        """Ask the client for few records at a time: it decompresses only what is asked for."""
        assert self._consumer is not None
        records: list[RawRecord] = []
        room = bytes_max
        timeout_ms = int(timeout_s * 1000)
        while room > 0:
            wanted = min(max(int(room / self._bytes_a_record), 1), self.records_max)
            try:
                fetched = self._consumer.poll(timeout_ms=timeout_ms, max_records=wanted)
            except (KafkaError, OSError):
                if records:  # deliver what is there; what is wrong is still wrong next time
                    break
                raise
            if not fetched:
                break
            timeout_ms = 0
            taken = 0
            for tp, items in fetched.items():
                records += [self._record(Partition(tp.topic, tp.partition), item) for item in items]
                taken += sum(map(_size, items))
                self._next[tp] = items[-1].offset + 1
                self._note_leaders(tp, items)
            room -= taken
            count = sum(map(len, fetched.values()))
            self._bytes_a_record += (taken / count - self._bytes_a_record) / 4
            if count < wanted:
                # The client has no more. Asking it again would wake its network thread twice, for nothing.
                break
        return records

    def _note_leaders(self, tp: TopicPartition, items: Sequence[Any]) -> None:
        newest = items[-1]
        if newest.leader_epoch >= 0 and self._leaders.at(tp, newest.offset + 1) != newest.leader_epoch:
            for item in items:
                self._leaders.note(tp, item.offset + 1, item.leader_epoch)

    def _record(self, partition: Partition, item: Any) -> RawRecord:
        headers = tuple((key, value or b"") for key, value in item.headers or ())
        return RawRecord(
            partition=partition,
            offset=item.offset,
            next_offset=item.offset + 1,
            value=item.value,
            encoding=encoding_of(headers, self.default_encoding),
            timestamp_ms=item.timestamp if item.timestamp >= 0 else int(self.clock() * 1000),
            key=item.key,
            headers=headers,
            timed=item.timestamp >= 0,
        )

    def _look(self, records: list[RawRecord]) -> None:
        """``_note``, which may not cost records that were taken from the client already."""
        try:
            self._note(records)
        except (KafkaError, OSError):
            if not records:  # else what is wrong is still wrong next time
                raise

    def _note(self, records: list[RawRecord]) -> None:
        """Refresh positions (past markers that are no records) and lag."""
        assert self._consumer is not None
        if records:
            self._newest_ms = max(record.timestamp_ms for record in records)
        refreshed = not records or time.monotonic() >= self._refresh_at
        if refreshed:
            self._refresh_at = time.monotonic() + _POSITION_REFRESH_S
            for tp in self._next:
                position = self._consumer.position(tp, timeout_ms=0)
                if position is not None:
                    self._next[tp] = max(self._next[tp], position)
                    self._leaders.note(tp, *(epoch_at_position(self._consumer, tp) or (position, -1)))
        heard = {tp: self._consumer.highwater(tp) for tp in self._next}
        ends = {tp: self._ends[tp] if end is None else end for tp, end in heard.items()}
        self._set_lag(ends)
        if refreshed:
            self._open_transactions.look({tp: at for tp, at in self._next.items() if at < ends[tp]})

    def _stable_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where committed records end, which is where an open transaction begins."""
        assert self._consumer is not None
        ends: dict[TopicPartition, int] = self._consumer.end_offsets(
            list(partitions), timeout_ms=REQUEST_TIMEOUT_MS
        )
        return ends

    def _set_lag(self, ends: Mapping[TopicPartition, int]) -> None:
        amount = {
            Partition(tp.topic, tp.partition): max(ends[tp] - offset, 0) for tp, offset in self._next.items()
        }
        behind = any(amount.values()) and self._newest_ms > 0
        self._lag = Lag(amount, max(self.clock() - self._newest_ms / 1000, 0.0) if behind else 0.0)

    # -- partitions -------------------------------------------------------------------------------------

    def _assign(self, cluster: Cluster) -> None:
        """Read every partition of the topics that exist.

        Raises:
            SourceError: a topic was made anew, or a partition or offset of the checkpoint does not exist.
            ConfigError: a topic is compacted by now.
        """
        self._check_same(cluster)
        self._check_changed(cluster)
        if self._consumer is None:
            self._consumer = self._connect()
        present = {TopicPartition(name, i) for name, topic in cluster.topics.items() for i in topic.partitions}
        fresh = sorted(present - self._next.keys())
        if fresh:
            positions, ends = self._first_offsets(self._consumer, fresh, first=not self._next)
            self._tell_new(fresh)
            self._consumer.assign([*self._next, *fresh])
            for tp in fresh:
                seek(self._consumer, tp, positions[tp], self._leaders.at(tp, positions[tp]))
            self._next |= positions
            self._ends |= ends
            self._pause(self._consumer)
        self._cluster = cluster

    def _tell_new(self, fresh: Sequence[TopicPartition]) -> None:
        """Of partitions that were added to a topic since it was first read."""
        before = {*self._next, *(_placed(p) for p in self._given)}
        topics = {tp.topic for tp in before}
        if added := [_named(tp) for tp in fresh if tp not in before and tp.topic in topics]:
            log.warning(
                "partitions were added, and are read from their start: %s. Where producers place edges by their "
                "keys, updates of a pair may come through another partition than before, and have no order to "
                "those before unless a barrier stands between",
                ", ".join(added),
            )

    def _check_same_now(self) -> None:
        """Offsets that are wrong may be those of a topic that was made anew since the cluster was described.

        Raises:
            SourceError: as ``_assign``.
        """
        newer = self._overseer.wait_newer(self._cluster, self._overseer.period_s + REQUEST_TIMEOUT_MS / 1000)
        if newer is not None:
            self._check_same(newer)

    def _check_same(self, cluster: Cluster) -> None:
        for name, topic in cluster.topics.items():
            known_id = self._topic_ids.setdefault(name, topic.id)
            if known_id != topic.id:
                raise SourceReplaced(
                    f"topic {name} was deleted and made again (id {known_id}, now {topic.id}): its offsets mean "
                    f"other records now",
                    {"topic": name},
                )
        for partition in self._given:
            known = cluster.topics.get(partition.name)
            if known is not None and partition.number not in known.partitions:
                raise SourceError(
                    f"the offsets to go on from name {partition}, but the topic has only {len(known.partitions)} "
                    "partitions",
                    {"topic": partition.name, "partition": partition.number},
                )
        if not self._given and isinstance(self.start, Mapping):
            self._check_start(self.start, cluster)

    def _check_start(self, start: Mapping[str, Mapping[int, int]], cluster: Cluster) -> None:
        for name, offsets in start.items():
            known = cluster.topics.get(name)
            if known is not None and (others := offsets.keys() - known.partitions):
                raise SourceError(
                    f"source.start names {name}/{min(others)}, but the topic has only {len(known.partitions)} "
                    "partitions",
                    {"topic": name, "partition": min(others)},
                )

    def _first_offsets(
        self, consumer: KafkaConsumer, fresh: Sequence[TopicPartition], *, first: bool
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where to begin with partitions met for the first time, and where they end now."""
        begins = consumer.beginning_offsets(list(fresh), timeout_ms=REQUEST_TIMEOUT_MS)
        ends = consumer.end_offsets(list(fresh), timeout_ms=REQUEST_TIMEOUT_MS)
        wanted: dict[TopicPartition, int] = {}
        if self._given:
            wanted = {_placed(p): offset for p, offset in self._given.items()}
        elif isinstance(self.start, Mapping):
            wanted = {
                TopicPartition(topic, number): offset
                for topic, offsets in self.start.items()
                for number, offset in offsets.items()
            }
        elif first and self.start == "latest":
            wanted = ends
        elif first and isinstance(self.start, int):
            found = consumer.offsets_for_times(dict.fromkeys(fresh, self.start), timeout_ms=REQUEST_TIMEOUT_MS)
            wanted = {tp: ends[tp] if found.get(tp) is None else found[tp].offset for tp in fresh}
        positions = {tp: wanted.get(tp, begins[tp]) for tp in fresh}
        for tp in fresh:
            if tp not in wanted and (problem := beginning_problem(_named(tp), begins[tp])):
                log.warning("%s", problem)
        for tp, offset in positions.items():
            if not begins[tp] <= offset <= ends[tp]:
                lost = _unavailable_offset(tp, offset, begins[tp], ends[tp])
                # Where the settings name it, nothing was read, and no checkpoint is to be left for an empty one.
                raise lost if self._given else SourceError(f"source.start: {lost.message}", lost.detail)
        return positions, ends

    def _out_of_range(self, error: OffsetOutOfRangeError) -> RecordsLost:
        assert self._consumer is not None
        asked: Iterable[tuple[TopicPartition, int]] = error.args[0].items() if error.args else ()
        for tp, offset in asked:
            try:
                begin = self._consumer.beginning_offsets([tp], timeout_ms=REQUEST_TIMEOUT_MS)[tp]
                end = self._consumer.end_offsets([tp], timeout_ms=REQUEST_TIMEOUT_MS)[tp]
            except (KafkaError, OSError):
                break
            return _unavailable_offset(tp, offset, begin, end)
        return RecordsLost(f"an offset is out of range: {said_of(error)}")

    def _truncated(self, error: LogTruncationError) -> RecordsLost:
        """What was read is not in the log any more, and others may stand in its place."""
        for tp, end in error.divergent_offsets.items():
            read = self._next.get(tp, 0)
            where = "somewhere" if end is None else f"at offset {end.offset}"
            return RecordsLost(
                f"the log of {_named(tp)} was cut {where}, and had been read up to {read}: a leader did not have "
                f"all of it, and what was answered is not what the topic holds now",
                {"topic": tp.topic, "partition": tp.partition, "read": read},
            )
        return RecordsLost(f"the log was truncated below what was read: {said_of(error)}")

    def _connect(self) -> KafkaConsumer:
        return connect(
            KafkaConsumer,
            self.client,
            bootstrap_servers=list(self.servers),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            fetch_max_bytes=self.fetch_bytes_max,
            max_partition_fetch_bytes=self.fetch_bytes_max,
            max_poll_records=self.records_max,
            bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=5000,
        )

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            disconnect(consumer)


def _unavailable_offset(tp: TopicPartition, wanted: int, begin: int, end: int) -> RecordsLost:
    why = "retention has passed it" if wanted < begin else "the topic ends before it"
    if begin <= wanted <= end:
        why = "what stood before it was written by a leader of which the topic knows nothing any more"
    return RecordsLost(
        f"offset {wanted} of {_named(tp)} is not available: {why}; available are {begin} to {end}",
        {"topic": tp.topic, "partition": tp.partition, "wanted": wanted, "begin": begin, "end": end},
    )


def _placed(partition: Partition) -> TopicPartition:
    """A partition as the client names it."""
    return TopicPartition(partition.name, partition.number or 0)


def _size(item: Any) -> int:
    """Bytes that a record takes here, about; a tombstone takes some, too, or a poll of them would never end."""
    return 64 + sum(max(int(size), 0) for size in (item.serialized_value_size, item.serialized_key_size))


def _named(tp: TopicPartition) -> str:
    return f"{tp.topic}/{tp.partition}"
