"""Where the graph is: in which memory, how much of it, and in checkpoints on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .section import Folder, Section


def _written_number(value: object) -> object:
    """Let a number of TOML stand for its text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked_budget(text: str) -> str:
    number = text.removesuffix("%")
    most = 100 if number != text else 2**63
    if text != "off" and not (number.isascii() and number.isdecimal() and 0 < int(number) <= most):
        raise ValueError("must be 'off', a share from 1% to 100%, or a number of bytes")
    return text


Budget = Annotated[str, BeforeValidator(_written_number), AfterValidator(_checked_budget)]


class StorageConfig(Section):
    """How the graph is kept."""

    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="How many of the threads of `compute.threads` share large batches of edges, loads and copies: "
        "a number, or `auto` for all of them.",
    )

    def thread_count(self) -> int | None:
        """The number of threads; None: all that there are."""
        return None if self.threads == "auto" else self.threads


class MemoryConfig(Section):
    """How much memory may be used before reading waits."""

    budget: Budget = Field(
        default="90%",
        description="How much memory may be used: bytes, or a share such as `90%` of the machine's memory or of a "
        "control group's limit, whichever is smaller; `off`: no budget. Past it nothing more is read until "
        "memory comes free; what was read is applied, and questions are answered. In a limited control group "
        "everything in the group counts, otherwise what the engine process has in memory. A start whose "
        "checkpoint does not fit ends, and so does `graphtide load`; bad rows wait until there is room for their "
        "dead letters.",
        examples=["12884901888"],
    )


class DeviceConfig(Section):
    """The GPU. It needs CuPy: `pip install 'graphtide[cuda13]'`, or `graphtide[cuda12]` for CUDA 12."""

    enabled: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether a CUDA device keeps the graph beside the host, for programs that can run there. "
        "`auto`: if CuPy is installed and finds a device. `on` (or `true`): always; without a device the daemon "
        "refuses to start. `off` (or `false`): never. A device that fails later is given up, and the host goes "
        "on alone.",
    )
    memory: Budget = Field(
        default="90%",
        description="How much of the device's memory may be taken: bytes, or a share such as `90%`; `off`: all. A "
        "device whose memory is used up is given up.",
        examples=["34359738368"],
    )

    @model_validator(mode="before")
    @classmethod
    def _switches(cls, table: object) -> object:
        if isinstance(table, Mapping) and isinstance(table.get("enabled"), bool):
            return {**table, "enabled": "on" if table["enabled"] else "off"}
        return table


class PartitionConfig(Section):
    """Which rows of the graph are where, if there is a device; without one the host has all of them."""

    host_rows: Literal["auto", "owned", "all"] = Field(
        default="auto",
        description="Which rows the host keeps beside a device. `all`: all of them. Programs may run on either, "
        "and the host goes on alone when the device is lost. `owned`: each row is on one side only. Memories and "
        "rates of updates add up, all programs must have a twin on the device, and after its loss the daemon "
        "starts again by itself from the newest checkpoint, without it. `auto`: `owned` if the checkpoint shows "
        "that the device has no room for the graph and every program has a twin; else `all`.",
    )
    host_follows: bool = Field(
        default=True,
        description="With `all`: whether the host may take batches later than the device, by a second at most, "
        "while all programs are on the device. An epoch is then published before the host's rows have it. "
        "Whatever needs these rows waits for them, so answers are the same.",
    )
    policy: Literal["cost", "hash", "hubs-on-device", "hubs-on-host", "recent"] = Field(
        default="cost",
        description="With `owned`: which rows leave the device first where it has no room for all: those that are "
        "cheapest to read from the host (`cost`), those with the fewest (`hubs-on-device`) or the most edges "
        "(`hubs-on-host`), those that changed longest ago (`recent`), or any (`hash`, for comparison).",
    )
    rebalance: bool = Field(
        default=True,
        description="With `owned`: whether rows move between the sides while the daemon runs. `admin.freeze` "
        "stops that, and lets it go on, without a restart.",
    )


class CheckpointConfig(Section):
    """Checkpoints: what a restart goes on from."""

    path: Folder = Field(
        default=Path("./checkpoints"), description="The directory of checkpoints. It is made when missing."
    )
    interval: float = Field(default=60.0, gt=0, le=86_400, description="Seconds between checkpoints.")
    keep: int = Field(default=2, ge=1, le=1000, description="How many checkpoints stay.")
    on_mismatch: Literal["refuse", "discard"] = Field(
        default="refuse",
        description="What to do with a checkpoint of another source or graph: stop, or start anew without it (for "
        "which the source must be reached before anything is answered).",
    )

    def reach(self) -> float:
        """Seconds that the oldest checkpoint lies back which a restart may have to use, at most."""
        return self.interval * (self.keep + 1)
