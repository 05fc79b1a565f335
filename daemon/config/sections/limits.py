"""What one client may ask for."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from .section import Problem, Section


class LimitsConfig(Section):
    """What one client may ask for. Each limit is enforced before memory is spent."""

    frame_bytes_max: int = Field(
        default=8 << 20, ge=1024, le=1 << 30, description="The longest request, in bytes."
    )
    vertices_max: int = Field(
        default=1_000_000, ge=1, description="The most vertices that one request names or gets."
    )
    edges_max: int = Field(default=500_000, ge=1, description="The most edges that one answer names.")
    edges_visited_max: int = Field(
        default=4_000_000,
        ge=1024,
        description="The most entries of rows that one `khop`, `egonet`, `subgraph` or `cross_edges` reads.",
    )
    connections_max: int = Field(
        default=256, ge=1, le=65_536, description="Open connections that have been let in."
    )
    strangers_max: int = Field(
        default=128,
        ge=1,
        le=65_536,
        description="Further connections, of which no request was accepted yet (where a token is asked for: no "
        "`hello` with a right one, before which a request has at most 4096 bytes). Past it, the oldest from "
        "wherever most of them come from makes room.",
    )
    hello_seconds_max: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="How long a new connection may take until its first request is accepted, TLS included.",
    )
    requests_in_flight_max: int = Field(
        default=64, ge=1, le=65_536, description="Unanswered requests of a connection."
    )
    output_bytes_max: int = Field(
        default=32 << 20,
        ge=1 << 16,
        description="Bytes that wait for a slow reader; past it the connection is closed.",
    )
    idle_seconds_max: float = Field(
        default=600.0, gt=0, description="Close a connection that was silent for so long."
    )
    top_k_max: int = Field(default=10_000, ge=1, description="The largest k of `top`.")
    timeout_ms_max: int = Field(default=600_000, ge=1, description="The longest that a request may ask to wait.")
    timeout_ms_default: int = Field(
        default=30_000, ge=1, description="How long a request waits that does not say how long."
    )
    memory_bytes_max: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="What all connections together hold. A quarter is for long requests until they are "
        "answered, a quarter for long answers until they are read: they wait for it in turn. Past half of it in "
        "unread answers the connection with most of them is closed.",
    )
    waiting_max: int = Field(
        default=4096,
        ge=1,
        description="Requests that wait for an epoch, of all connections. Half of the places are shared out among "
        "`connections_max` connections, at least one for each.",
    )
    engine_calls_max: int = Field(
        default=256, ge=1, description="Questions that the engine process is given at once; others wait for them."
    )
    stall_seconds_max: float = Field(
        default=10.0,
        gt=0,
        description="How long a client may take to send a long request, or to read a long answer, while others "
        "wait for the memory.",
    )

    subscriptions_max: int = Field(
        default=4096,
        ge=1,
        description="Subscriptions of all connections. Half of the places are shared out among `connections_max` "
        "connections, at least one for each.",
    )
    subscribed_vertices_max: int = Field(
        default=4_000_000,
        ge=1,
        description="Vertices of which the server keeps what subscribers know, about 50 bytes each and the id "
        "where it is a string (at most 256 bytes): those of "
        "subscriptions that choose vertices or have a threshold. Those of one connection are at most "
        "`vertices_max`.",
    )
    http_body_bytes_max: int = Field(
        default=1 << 20,
        ge=1024,
        le=1 << 26,
        description="The body of a request over HTTP. Memory of 24 times as much is asked for first where it is "
        "longer than 64 KiB.",
    )
    changes_bytes: int = Field(
        default=16 << 20,
        ge=1 << 16,
        le=1 << 32,
        description="The log of what recent epochs changed, four bytes for each changed entry. Subscribers who "
        "fall behind it, or resume from before it, get a new snapshot.",
    )

    ad_hoc_max: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Programs that run at once for `compute`; others wait for their turn.",
    )
    ad_hoc_seconds_max: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="The longest that `compute` takes, waiting for its turn included; a client that wants more "
        "than `timeout_ms_default` says so.",
    )
    ad_hoc_vertices_max: int = Field(
        default=100_000, ge=1, description="The most vertices that one `compute` gives values of."
    )
    ad_hoc_compiled_max: int = Field(
        default=64,
        ge=0,
        le=128,
        description="So many programs `compute` may have compiled until a restart: those with functions of your "
        "own whose parameters no program had before. Their code stays in memory, 1 to 2 MB each, and a process "
        "has at most 128: the others are for the configuration, for `keep`, and for who presents "
        "`server.admin_token`.",
    )
    kept_max: int = Field(default=16, ge=0, le=4096, description="Programs that are kept by `keep`; 0: none.")

    def problems(self) -> Iterator[Problem]:
        if self.timeout_ms_default > self.timeout_ms_max:
            yield "timeout_ms_default", f"must be at most server.limits.timeout_ms_max ({self.timeout_ms_max})"
        if self.memory_bytes_max < max(self.frame_bytes_max, self.output_bytes_max):
            yield "memory_bytes_max", "must be at least frame_bytes_max and output_bytes_max"
