"""What the graph is, and how updates become it: epochs, and a window of edges that expire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from .section import Problem, Section

VERTICES_MAX = 2**32 - 2
"""Dense ids are 32 bits wide, and two of them are taken."""


class GraphConfig(Section):
    """What the graph is. A checkpoint belongs to these settings; a daemon with others refuses it."""

    directed: bool = Field(default=True, description="Whether an edge has a direction.")
    vertex_ids: Literal["int", "string"] = Field(
        default="int",
        description="The kind of vertex ids: 64-bit integers, or UTF-8 strings of at most 256 bytes.",
    )
    weights: Literal["non-negative", "unweighted", "any"] = Field(
        default="non-negative",
        description="The weights that records may carry. A weight outside makes its record bad; a program that "
        "needs another domain is refused. `unweighted` keeps none, at half the memory.",
    )
    self_loops: Literal["keep", "drop"] = Field(
        default="keep", description="Whether edges from a vertex to itself are kept, or dropped and counted."
    )
    vertices_max: int = Field(
        default=VERTICES_MAX,
        ge=1,
        le=VERTICES_MAX,
        description="The most vertices at once; past it the daemon stops with `id-space-full`. Ids of deleted "
        "vertices are free again soon after the epoch that deletes them, and are waited for. The index has room "
        "for 4,026,531,840.",
    )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with these settings."""
        return self.model_dump(include={"directed", "vertex_ids", "weights", "self_loops"})


class EpochConfig(Section):
    """How updates are gathered into epochs. Epochs are small while the stream is slow and grow under lag."""

    updates_max: int = Field(
        default=2_000_000,
        ge=1,
        le=1 << 28,
        description="The most updates of one epoch; a record is never split.",
    )
    queue_updates_max: int = Field(
        default=4_000_000,
        ge=1,
        le=1 << 29,
        description="The most decoded updates that wait; past it reading pauses.",
    )
    linger_ms: float = Field(
        default=0.0, ge=0, le=60_000, description="How long an epoch waits for more updates once it has one."
    )

    def problems(self) -> Iterator[Problem]:
        if self.queue_updates_max < self.updates_max:
            yield "queue_updates_max", f"must be at least epoch.updates_max ({self.updates_max})"


class WindowConfig(Section):
    """Edges that expire: after some time, or all but the newest. Without `length` and `count` none do."""

    length: float | None = Field(
        default=None,
        gt=0,
        le=3.2e9,
        description="Seconds of event time that an edge lasts after its last upsert. Times are those of updates "
        "(`ts`), else of the records of Kafka; an insert in a spool file must have one. Event time is how far all "
        "partitions have come.",
        examples=["86400"],
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=1 << 40,
        description="The newest so many edges last, by the order in which their last upserts are applied. An edge "
        "that is deleted counts until so many newer ones came.",
        examples=["1000000"],
    )
    isolated: Literal["keep", "delete"] = Field(
        default="keep",
        description="What becomes of vertices without edges: they stay, or are deleted, and then exist exactly as "
        "long as they have an edge.",
    )
    allowed_lateness: float = Field(
        default=0.0,
        ge=0,
        le=3.2e9,
        description="With `length`: seconds that event time stays behind the newest time of each partition, so "
        "that older updates may come. An upsert whose edge would have expired is dropped and counted.",
    )
    idle_timeout: float = Field(
        default=60.0,
        ge=0.1,
        le=3.2e9,
        description="With `length`: seconds after which a partition that nothing comes of, and of which nothing "
        "is left to read, does not hold event time back any more. It takes part again with its next record.",
    )
    max_future_skew: float = Field(
        default=3600.0,
        ge=0,
        le=3.2e9,
        description="With `length`: an update whose time lies more than so many seconds in the future, when it is "
        "read first, is bad: one alone would have everything expire.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.length is not None and self.count is not None:
            yield "count", "must be left out with window.length: edges last for some time, or the newest ones do"
        if self.length is not None and self.length < 0.001:
            yield "length", "must be at least 0.001: times are milliseconds"

    @property
    def is_on(self) -> bool:
        """Whether edges expire."""
        return self.length is not None or self.count is not None
