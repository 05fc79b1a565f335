"""What travels from a source to the engine: raw records, decoded blocks, dead letters; and the sources."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Ops, Weights
from ...gpma.index.ids import IdColumn
from ..errors import GraphtideError


class Partition(NamedTuple):
    """One ordered stream of records: a Kafka topic and partition number, or a spool file (number None)."""

    name: str
    number: int | None = None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name}/{self.number}"


Offsets = Mapping[Partition, int]
"""The next offset to read of every partition (spool: the next byte of every file)."""


class LateBarrier(NamedTuple):
    """A barrier that let go before these partitions of its topic had reached it: they pass it without waiting."""

    topic: str
    id: str
    partitions: tuple[int, ...]


class Decided(NamedTuple):
    """What the clock on the wall decided about a step, where event time counts; a replay takes it from here.

    ``joined``: partitions that event time waits for from there on, though nothing of them is in the step;
    ``idle``: those that it waits for no more, until something comes of them. ``latest_ms``: the time (milliseconds
    since 1970) past which updates were refused; None: none was.
    """

    joined: tuple[Partition, ...] = ()
    idle: tuple[Partition, ...] = ()
    latest_ms: int | None = None


class Passed(NamedTuple):
    """Where every partition stood once, on the way that the stream was applied.

    ``together``: what lies between the place before and this one was applied as one step, partition by partition.
    Else nothing in between depends on an order, except that of each partition. ``late``: what no partition has to
    wait for any more, the oldest first. ``decided``: about this step; None where nothing was.
    """

    offsets: Mapping[Partition, int]
    together: bool
    late: tuple[LateBarrier, ...] = ()
    decided: Decided | None = None


def offsets_to_wire(offsets: Offsets) -> dict[str, Any]:
    """Offsets as queries show them: topic -> partition -> next offset; spool: file -> next byte."""
    wire: dict[str, Any] = {}
    for partition, offset in offsets.items():
        if partition.number is None:
            wire[partition.name] = offset
        else:
            wire.setdefault(partition.name, {})[partition.number] = offset
    return wire


def offsets_from_wire(wire: Mapping[str, Any]) -> dict[Partition, int]:
    """The inverse of ``offsets_to_wire``; partition numbers may be strings, as JSON makes them.

    Raises:
        ValueError: a name or an offset is not what it should be.
    """
    offsets: dict[Partition, int] = {}
    for name, value in wire.items():
        if isinstance(value, Mapping):
            for number, offset in value.items():
                offsets[Partition(str(name), _whole(number))] = _whole(offset)
        else:
            offsets[Partition(str(name))] = _whole(value)
    if any(offset < 0 for offset in offsets.values()):
        raise ValueError("offsets are never negative")
    return offsets


_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def _whole(value: object) -> int:
    """A number as it came from elsewhere: whole ones may be floats (of JavaScript), or digits (keys of JSON)."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        whole = int(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError(f"{reprlib.repr(value)} is no whole number")
    else:
        whole = int(value)
    if not -(2**63) <= whole < 2**63:
        raise ValueError("a number has more than 64 bits")
    return whole


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as the source read it.

    ``value`` is None for a Kafka tombstone. ``encoding`` is one of ``encodings.ENCODINGS``. For line formats of
    a spool a raw record is a block of whole lines: errors and offsets are then counted per line.
    ``timestamp_ms``: the record's own time, in milliseconds since 1970, if ``timed``; else, when it was read.
    ``refused``: what the source itself found wrong with it; then there is nothing to decode.
    """

    partition: Partition
    offset: int
    next_offset: int
    value: bytes | None
    encoding: str
    timestamp_ms: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    refused: BadRecord | None = None
    timed: bool = False


class Whole(NamedTuple):
    """What tells the original of a value that was cut: its length in bytes, and its CRC32C."""

    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record (or line) that cannot be applied: its bytes, where it stood, and why.

    ``reason`` is a stable code (a metric label); ``detail`` says which field, what was wrong, what is allowed.
    ``whole``: where ``value`` is only the beginning of what stood there, what all of it was.
    """

    partition: Partition
    offset: int
    value: bytes
    reason: str
    detail: str
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    whole: Whole | None = None

    @property
    def place(self) -> str:
        """``topic/partition/offset``, or ``file:offset``, for people."""
        return f"{self.partition}{':' if self.partition.number is None else '/'}{self.offset}"


@dataclass(frozen=True, slots=True)
class UpdateBlock:
    """Decoded updates in order: columns of one length n.

    ``src``, ``dst``: int64[n] or string columns; ``ops``: uint8[n]; ``weights``: float32[n] or None (all 1.0);
    ``timestamps_ms``: int64[n] or one number for all. ``row_keys``: where keys of records name rows, uint64[n, 2]:
    an insert says which edge its key stands for from now on; a delete, that it is none, and its ends mean nothing.
    """

    src: IdColumn
    dst: IdColumn
    ops: Ops
    weights: Weights | None
    timestamps_ms: npt.NDArray[np.int64] | int
    row_keys: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return int(self.ops.size)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one raw record, or several that were read as one, came to: good updates (None: there are none) and what
    was bad."""

    record: RawRecord
    block: UpdateBlock | None
    bad: Sequence[BadRecord] = ()
    self_loops_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind its end the source is read: records (spool: bytes) per partition, and seconds.

    ``seconds`` is the age of the newest record that was read while there is more to read; 0 at the end.
    """

    amount: Mapping[Partition, int] = field(default_factory=dict)
    seconds: float = 0.0


Standing = Literal["covered", "expected", "unknown"]
"""Of a partition that is in no position: all checkpoints cover it, it may still come, or nobody knows it."""


class Source(Protocol):
    """Ordered records from somewhere. One thread calls it; ``lag`` may be called from others."""

    unit: str
    """What ``Lag.amount`` counts: ``"records"`` or ``"bytes"``."""

    @property
    def outages(self) -> int:
        """How often the source could not be reached so far."""
        ...

    @property
    def away(self) -> str | None:
        """Why it cannot be reached now, in words; None while it can. Any thread may ask."""
        ...

    def open(self, offsets: Offsets | None, state: bytes = b"") -> None:
        """Begin at these offsets (a checkpoint's, with the ``state`` in it), or as configured when None."""
        ...

    def identity(self) -> dict[str, Any]:
        """What must be the same for offsets to mean the same (JSON-able): kind, cluster or path, topics, ...

        This may be asked before ``open``.
        """
        ...

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        """The next records, in order within each partition; empty when none came in time.

        An outage is not an error: it is logged, counted in ``outages`` and tried again with backoff. With
        ``bytes_max`` 0 nothing is read, and ``position`` is where reading begins, once ``backlog`` is known.

        Raises:
            SourceError: going on would lose or repeat records.
        """
        ...

    def position(self) -> dict[Partition, int]:
        """The next offset to read of every partition, as of the last ``poll``."""
        ...

    def hold(self, partitions: Collection[Partition]) -> None:
        """Read nothing of these until the next call, which may name others.

        Where partitions are in order by themselves (files), what is met meanwhile is held as well if any is: it
        may come after one of those.
        """
        ...

    def state(self) -> bytes:
        """What a checkpoint must keep besides offsets: what ``position`` left out by now. Any thread may ask."""
        ...

    def standing(self, partition: Partition, offset: int) -> Standing:
        """What is to be expected, up to this offset, of a partition that is in no position. Any thread may ask."""
        ...

    def partition_count(self, name: str) -> int:
        """How many partitions a topic has, as the last ``poll`` knew it; 1 where nothing places edges."""
        ...

    def checkpointed(self, offsets: Offsets) -> None:
        """These offsets are safe: tell whoever watches (Kafka: commit, so that lag tools work)."""
        ...

    def lag(self) -> Lag: ...

    def refresh_lag(self) -> None:
        """Bring ``lag`` up to date without reading on, for whoever reads nothing for a while."""
        ...

    def backlog(self) -> int | None:
        """What is left of what there was to read when it was opened, in ``unit``; None: it was not reached yet."""
        ...

    def log_margin(self, offsets: Offsets) -> float:
        """Records from the log's start to these offsets, in the partition that has fewest: so many may go before
        these cannot be read from. Infinite where none go by themselves, NaN where it is not known. Any thread may
        ask.
        """
        ...

    def close(self) -> None: ...


class Progress(Protocol):
    """How reading goes on, for whoever shows it. Any thread may ask."""

    @property
    def unit(self) -> str:
        """What ``Lag.amount`` counts: ``"records"`` or ``"bytes"``."""
        ...

    @property
    def waiting(self) -> str | None:
        """What keeps us from reading on, in words; None while nothing does."""
        ...

    @property
    def order(self) -> dict[str, Any]:
        """Whether the order of before is gone along, and which barriers wait."""
        ...

    @property
    def late(self) -> int | None:
        """How many upserts came too late and were dropped; None where edges do not expire by time."""
        ...

    def log_margin(self, offsets: Offsets) -> float:
        """See ``Source.log_margin``."""
        ...

    def lag(self) -> Lag:
        """How far behind its end the source is, and what was read of it but waits at the door."""
        ...


class DeadLettersFull(GraphtideError):
    """There is no room for bad records now, so the stream cannot go on without losing some.

    ``taken``: how many of those that were to be written are safe already.
    """

    code = "dead-letters-full"
    retriable = True

    def __init__(self, message: str, *, taken: int) -> None:
        super().__init__(message, {"taken": taken})
        self.taken = taken


class DeadLetters(Protocol):
    """Where bad records go, at least once."""

    def write(self, bad: Sequence[BadRecord]) -> None:
        """Take these; never raises because the destination is away (they wait in a local file).

        Raises:
            DeadLettersFull: there is no room; what it did not take is to be written again once there is.
        """
        ...

    def flush(self) -> None:
        """Return only when everything written is safe: acknowledged, or synced to the local file."""
        ...

    def close(self) -> None: ...
