"""Every setting of the daemon: its name, type, default, range and meaning.

A module of ``sections`` declares each, and ``Config`` puts them together; nothing else does. ``load`` fills them
from a TOML file, the environment and flags, and ``show`` prints them as commented TOML and as
``docs/configuration.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from .sections.graph import EpochConfig, GraphConfig, WindowConfig
from .sections.kafka import client_options
from .sections.observing import LogConfig, MetricsConfig
from .sections.outgoing import DeadLettersConfig, ResultsConfig
from .sections.programs import AuditConfig, ComputeConfig, ProgramConfig
from .sections.section import Problem, Section, whole
from .sections.server import ServerConfig, clash
from .sections.source import SourceConfig
from .sections.storage import CheckpointConfig, DeviceConfig, MemoryConfig, PartitionConfig, StorageConfig


def _default_programs() -> tuple[ProgramConfig, ...]:
    return tuple(ProgramConfig(name=name, id=name) for name in ("components", "pagerank"))


class Config(Section):
    """All settings."""

    graph: GraphConfig = Field(default_factory=GraphConfig)
    source: SourceConfig = Field(default_factory=SourceConfig)
    dead_letters: DeadLettersConfig = Field(default_factory=DeadLettersConfig)
    results: ResultsConfig = Field(default_factory=ResultsConfig)
    program: tuple[ProgramConfig, ...] = Field(default_factory=_default_programs)
    epoch: EpochConfig = Field(default_factory=EpochConfig)
    window: WindowConfig = Field(default_factory=WindowConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    device: DeviceConfig = Field(default_factory=DeviceConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    storage: StorageConfig = Field(default_factory=StorageConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    def problems(self) -> Iterator[Problem]:
        if self.dead_letters.topic is not None and self.source.kind != "kafka":
            yield "dead_letters.topic", 'must be left out unless source.kind is "kafka"'
        if self.dead_letters.topic is not None and self.dead_letters.topic in self.source.topics:
            yield "dead_letters.topic", "must not be one of source.topics: bad records would come round for ever"
        results, source = self.results, self.source
        if source.keyed and self.window.is_on:
            yield (
                "source.keyed",
                (
                    "must be left out with a window: the edge of a key is there until a record of that key "
                    "replaces or removes it, and edges of a window go by themselves. Remove rows at their source, "
                    "or have records name edges without keys"
                ),
            )
        if results.kind == "kafka":
            if not results.bootstrap_servers and source.kind != "kafka":
                yield "results.bootstrap_servers", 'must name at least one broker unless source.kind is "kafka"'
            same = not results.bootstrap_servers or set(results.bootstrap_servers) & set(source.bootstrap_servers)
            if source.kind == "kafka" and same and results.topic in (*source.topics, self.dead_letters.topic):
                yield "results.topic", "must be a topic of its own, neither of source.topics nor of dead letters"
        if source.kind == "spool":
            spool = whole(source.path)
            if results.kind == "spool" and whole(results.path) == spool:
                yield "results.path", "must not be source.path: results would be read as updates"
            if whole(self.dead_letters.path) == spool:
                yield "dead_letters.path", "must not be source.path: bad records would come round for ever"
            if whole(self.checkpoint.path) == spool:
                yield "checkpoint.path", "must not be source.path: whoever cleans that would take checkpoints away"
        if (metrics := self.metrics.address()) is not None:
            for key, text, place in self.server.places():
                if clash(metrics, place):
                    yield "metrics.listen", f"must be an address of its own: server.{key} has {text}"
        known = {program.id for program in self.program}
        if unknown := [id for id in results.programs if id not in known]:
            there = ", ".join(sorted(known))
            yield "results.programs", f"must be ids of programs ({', '.join(unknown)}: there are {there})"

    def place_of(self, id: str) -> str:
        """Where a program runs, whether it is configured or was kept at run time: auto, host or device."""
        own = (item.place for item in self.program if item.id == id)
        return next(own, None) or self.compute.place

    @property
    def uses_device(self) -> bool:
        """Whether any program may run on a device."""
        if self.device.enabled == "on" or self.compute.place != "host":
            return True
        return any(item.place in ("auto", "device") for item in self.program)

    def results_servers(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The brokers of the results' topic, and the options for their client.

        Raises:
            ConfigError: a file of a secret cannot be read.
        """
        if self.results.bootstrap_servers:
            return self.results.bootstrap_servers, client_options("results.client", self.results.client)
        return self.source.bootstrap_servers, self.source.client_options()
