"""Readers of results as others would write them: what they know, and what every reader may rely on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from brokers import client
from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from waiting import until

from graphtide import Client
from graphtide.daemon.outgoing.records import End, read_key, read_value
from graphtide.daemon.outgoing.spool import files, transactions

Known = dict[tuple[str, int | str], dict[str, Any]]


class Partition:
    """One partition, read from its beginning: what is known, and the ends, each of which was whole."""

    def __init__(self) -> None:
        self.known: Known = {}
        self.ends: list[End] = []
        self._open: dict[tuple[str, int | str], bytes | None] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        """The next record. A transaction has each key once, as many as its end says; ends follow each other."""
        named = read_key(key)
        if named is not None:
            assert named not in self._open, f"{named} twice in one transaction"
            self._open[named] = value
            return
        assert value is not None
        end = End.unpack(value)
        assert end.records == len(self._open)
        if self.ends:
            before = self.ends[-1]
            assert (end.sequence, end.since) == (before.sequence + 1, before.epoch)
            assert end.epoch > before.epoch
        else:
            assert (end.sequence, end.since) == (1, None)
        for vertex, packed in self._open.items():
            if packed is None:
                self.known.pop(vertex, None)
            else:
                content = read_value(packed)
                assert tuple(content["epoch"]) == end.epoch
                self.known[vertex] = content
        self._open = {}
        self.ends.append(end)

    @property
    def is_whole(self) -> bool:
        return not self._open


class TopicReader:
    """Reads committed records of a topic, as far as there are any."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._options = {"isolation_level": "read_committed", "enable_auto_commit": False}
        self._bootstrap = bootstrap
        self._parts = [TopicPartition(topic, number) for number in range(partitions)]
        self._places = dict.fromkeys(self._parts, 0)
        self.partitions = {part: Partition() for part in self._parts}

    def read(self) -> TopicReader:
        """Read what there is."""
        with client(KafkaConsumer, self._bootstrap, **self._options) as consumer:
            consumer.assign(self._parts)
            for part, place in self._places.items():
                consumer.seek(part, place)
            ends = consumer.end_offsets(self._parts)
            while any(consumer.position(part) < ends[part] for part in self._parts):
                for part, records in consumer.poll(timeout_ms=200).items():
                    for record in records:
                        self.partitions[part].take(record.key, record.value)
            self._places = {part: consumer.position(part) for part in self._parts}
        return self

    @property
    def known(self) -> Known:
        known: Known = {}
        for partition in self.partitions.values():
            assert not known.keys() & partition.known.keys(), "a vertex in two partitions"
            known |= partition.known
        return known

    @property
    def ends(self) -> list[End]:
        """Those that every partition has by now: each learns by itself, and in its time, of what is committed."""
        found = list(zip(*(partition.ends for partition in self.partitions.values()), strict=False))
        for first, *others in found:
            assert all((end.sequence, end.epoch) == (first.sequence, first.epoch) for end in others)
        return [ends[0] for ends in found]


class FilesReader:
    """Reads whole transactions of files, all of them each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = Partition()

    def read(self) -> FilesReader:
        """Read what there is."""
        self._read = Partition()
        for key, value in self._records():
            self._read.take(key, value)
        assert self._read.is_whole
        return self

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        from graphtide.daemon.outgoing.records import end_key

        for file in files(self._folder):
            for _, records, end in transactions(file):
                yield from records
                yield end_key("msgpack"), end.pack("msgpack")

    @property
    def known(self) -> Known:
        return self._read.known

    @property
    def ends(self) -> list[End]:
        return self._read.ends


Reader = TopicReader | FilesReader


def read_up_to(reader: Reader, epoch: tuple[int, int]) -> Reader:
    """Read until this epoch, or a later one, is there."""
    return until(lambda: reader if (ends := reader.read().ends) and ends[-1].epoch >= epoch else None)


def require_answers(asked: Client, known: Known, vertices: Any, programs: Collection[str] | None = None) -> None:
    """What is known of these vertices (all that there ever were) is what the daemon answers, of these programs or
    of all."""
    ids = np.asarray(vertices)
    for id in asked.programs()["programs"] if programs is None else programs:
        answer = asked.get(id, ids)
        unknown = set(np.asarray(answer.unknown).tolist())
        expected = {
            (id, vertex): None if value is np.ma.masked else value
            for vertex, value in zip(ids.tolist(), list(answer.values), strict=True)
            if vertex not in unknown
        }
        told = {key: content["value"] for key, content in known.items() if key[0] == id}
        assert told == expected, id
