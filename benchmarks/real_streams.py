"""Public edge streams as updates, replayed in the order of their files (``../shared/data``, see its README).

A repeated insert is an upsert. A stream without deletions of its own is given some, so that a fifth of what
follows the loaded part deletes: after four inserts the edge goes that has been there longest, as from a window.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphtide.daemon.tools.generate import Updates
from graphtide.gpma.edges import Op

UNDIRECTED = ("as733-21days", "highschool2012", "highschool2012-hour", "road-luxembourg", "social-mit8")
PERIOD = 5
"""Every fifth update deletes, where a stream has no deletions of its own."""


@dataclass(frozen=True)
class RealStream:
    """The events of one file."""

    directed: bool
    events: Updates
    deletes: bool

    @property
    def size(self) -> int:
        """How many updates there can be after the loaded part, if that is half of the events."""
        left = len(self.events) - len(self.events) // 2
        return left if self.deletes else left * PERIOD // (PERIOD - 1)

    def split(self, updates: int) -> tuple[Updates, Updates]:
        """What is loaded, and so many updates that follow it, the last of them ending the stream."""
        assert updates <= self.size
        at = len(self.events) - (updates if self.deletes else updates - updates // PERIOD)
        loaded, rest = part(self.events, 0, at), part(self.events, at, len(self.events))
        return loaded, rest if self.deletes else _with_deletions(loaded, rest, updates)


def read(folder: Path, name: str) -> RealStream:
    """Read a file; edges without a weight have 1, and so have all where one is negative."""
    with lzma.open(folder / f"{name}.events.tsv.xz", "rt") as lines:
        events = [line.split("\t", 4)[:4] for line in lines]
    ops = np.array([op == "I" for op, *_ in events], np.uint8)
    src, dst = (np.array([int(event[k]) for event in events], np.int64) for k in (1, 2))
    weights = np.array([1.0 if event[3] == "-" else float(event[3]) for event in events], np.float32)
    if weights.size and weights.min() < 0:
        weights[:] = 1
    deletes = bool((ops == Op.DELETE).any())
    return RealStream(name not in UNDIRECTED, Updates(src, dst, ops, weights), deletes)


def part(updates: Updates, begin: int, end: int) -> Updates:
    """Updates ``begin`` to ``end`` - 1."""
    columns = (getattr(updates, name)[begin:end] for name in Updates.__slots__)
    return Updates(*columns)


def _with_deletions(loaded: Updates, inserts: Updates, updates: int) -> Updates:
    """So many updates: these inserts, and after each four the deletion of the pair that was loaded first."""
    pairs = np.stack([loaded.src, loaded.dst], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    deletion: npt.NDArray[np.bool_] = np.arange(updates) % PERIOD == PERIOD - 1
    oldest = np.sort(first)[: np.count_nonzero(deletion)]
    if oldest.size < np.count_nonzero(deletion):
        raise ValueError(f"{oldest.size} edges are loaded, {np.count_nonzero(deletion)} are to be deleted")
    src, dst = np.empty(updates, np.int64), np.empty(updates, np.int64)
    weights = np.ones(updates, np.float32)
    src[deletion], dst[deletion] = pairs[oldest, 0], pairs[oldest, 1]
    src[~deletion], dst[~deletion], weights[~deletion] = inserts.src, inserts.dst, inserts.weights
    return Updates(src, dst, (~deletion).astype(np.uint8), weights)
