"""What the daemon writes for others: changed results, and bad records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from .kafka import Topic, broker_problems, client_problems
from .section import Folder, Problem, Section, Words


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
        yield from broker_problems(self.bootstrap_servers)
        if duplicates := {id for id in self.programs if self.programs.count(id) > 1}:
            yield "programs", f"must name each program once ({', '.join(sorted(duplicates))})"
        if self.client:
            yield from client_problems(self.client)
