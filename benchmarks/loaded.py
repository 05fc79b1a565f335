"""A daemon that holds a graph, and a stream that may go on: for benchmarks that look at one from outside."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from beside import FILE, encoded, running

from graphtide import Client
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn

EDGES_PER_VERTEX, POOL_PER_VERTEX = 8, 16
BATCH = 100_000
COMMON = """
source = {{ kind = "spool", path = "{folder}/spool" }}
dead_letters = {{ path = "{folder}/dead-letters" }}
checkpoint = {{ path = "{folder}/checkpoints", interval = 20 }}
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """``churn`` goes on where the load ended, and ``writer`` writes what the daemon reads. ``ids`` of vertices,
    ascending, int64."""

    client: Client
    folder: Path
    writer: SpoolWriter
    churn: Churn
    ids: np.ndarray

    @property
    def address(self) -> str:
        """Its socket's."""
        return f"unix:{self.folder}/s"

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "log").read_text("utf-8")

    def feed(self, updates: int) -> None:
        """So many updates as one record."""
        self.writer.append(encoded(self.churn.next(updates)))


@contextmanager
def loaded(settings: str, scale: int) -> Iterator[Loaded]:
    """A daemon with eight edges of an RMAT graph for each of 2^scale vertices, which it has answered for.

    ``settings`` besides source, dead letters and checkpoints: it must listen at ``unix:{folder}/s``. ``SOURCE`` in
    them is the vertex with the most out-edges among the first.
    """
    churn = Churn(scale=scale, pool=POOL_PER_VERTEX << scale, seed=3)
    first, *more = churn.load(EDGES_PER_VERTEX << scale, batch=BATCH)
    hub = int(np.bincount(first.src).argmax())
    with tempfile.TemporaryDirectory(prefix="gt-") as name:
        folder = Path(name)
        (folder / "spool").mkdir()
        stated = (COMMON + settings).replace("SOURCE", str(hub))
        with SpoolWriter(folder / "spool", name="a") as writer, running(folder, stated) as (client, _):
            for part in (first, *more):
                writer.append(encoded(part))
            writer.flush()
            client.wait({FILE: writer.offset}, timeout_ms=600_000)
            yield Loaded(client, folder, writer, churn, np.unique(first.src))
