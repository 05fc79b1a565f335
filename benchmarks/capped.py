"""A graph that is larger than the memory of a CUDA device: programs there, by how much of it the rows may have.

Half of an R-MAT graph, as in ``device.py``, is loaded with the memory of the device limited, as ``device.memory``
does: to what programs and vertices take, and a share of what all rows take where nothing is limited. The default
policy decides which rows the device has then, as at a start of the daemon, and rows move between epochs as they do
there. Programs start from scratch, and go on after batches (four fifths insertions, a fifth deletions), as the
engine runs them; medians after a warm-up, results in the host's memory included. First the host does the same
alone, on all cores. The table is written as it comes, and to ``--json`` after each row.

    python benchmarks/capped.py --scale 22 [--shares 0.5 0.25 0.1] [--batches 1 10000 1000000] [--json FILE]

``share``: of the memory that all rows take; 1: nothing is limited. ``on host``: the share of stored edges there.
``policy``: which rows are there (``--policies cost hash`` runs each share with either); it needs some hundred
epochs to learn from what programs read: ``--batches 1000 --repeats 300``.
``x device``, ``x host``: times of that without a limit, and of the host alone. ``in place MB``: what a run read of
the host's rows over the bus, as kernels count it; ``up MB``, beside ``apply``: what the batch took to the device.
``stream``: how many times as long it takes to bring the rows of the host to the device once a round by the copy
engine, and ``whole`` all rows, copies alone, no work on them; ``stream MB`` and ``whole MB``: what that brings.
``moved``: edges that moved between the sides after the epochs of a batch's size; ``home``: programs that the host
runs, for want of memory. ``wrong``: results that are not the host's, after the last batch.

``--in-place``: passes of PageRank read the host's rows where they lie, and pack nothing.

``--reckoned``: what rows and all else take is reckoned as a start does, and nothing is run without a limit. So for
graphs of which each load takes minutes: RMAT 27, half of it loaded (1 G edges), is reckoned to take 60 GB of the
host's memory while it is loaded, and 55 GB of the device's while it is generated.

    python benchmarks/capped.py --scale 27 --reckoned --no-host --shares 0.25 --programs bfs --batches 10000
        --repeats 1
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from device_graph import Row, clocked, cupy, machine
from device_remote import PROGRAMS, Stream, Table, Times, streamed, wrong

from graphtide.compute.device import packed_rows
from graphtide.compute.device.forest_runs import MEMBER
from graphtide.compute.engine import Engine, ProgramRun
from graphtide.compute.homes import Homes
from graphtide.compute.program import Published
from graphtide.daemon.config.sections.storage import PartitionConfig
from graphtide.daemon.engine import rebalancing
from graphtide.daemon.engine.host_rows import Extent, bytes_of_entry
from graphtide.daemon.engine.rebalancing import Epoch, Rebalancing, Room
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.engine.traffic import Traffic
from graphtide.daemon.engine.vertex_memory import GRAPH_BYTES, PROGRAM_BYTES
from graphtide.gpma.device.card import find_card
from graphtide.gpma.edges import EdgeBatch
from graphtide.ops.metrics import Metrics
from graphtide.partition.graph import Graph, GraphChange, NoMemory
from graphtide.partition.policies import POLICIES

WARM_UP = 1
STARTS_MAX = 3
APPLY = "apply"
WEIGHTED = {"sssp"}
WIDTHS = {"share": 7, "policy": 6, "on host": 7, "batch": 8, "program": 10, "ms": 9, "x device": 8, "x host": 8}
WIDTHS |= {
    "stream": 7,
    "whole": 7,
    "in place MB": 11,
    "stream MB": 9,
    "whole MB": 9,
    "up MB": 7,
    "rounds": 6,
    "over": 4,
}
WIDTHS |= {"moved": 9, "home": 4, "wrong": 5}
MEGA = 1e6
WORK_BYTES = 1 << 30
START_BYTES = MEMBER.itemsize
"""Of a vertex, what a start of components takes for a moment."""


@dataclass(frozen=True)
class Need:
    """Bytes of the device where nothing is limited: of ``rows``, and of all else, ``others``."""

    rows: int
    others: int

    def limit(self, share: float) -> int:
        return self.others + int(share * self.rows)

    @classmethod
    def reckoned(cls, stream: Stream, n_programs: int) -> Need:
        """As a start of the daemon does, and work space of batches beside."""
        rows = 2 * len(stream.loaded) * bytes_of_entry(weighted=stream.weighted)
        others = stream.n_vertices * (GRAPH_BYTES + PROGRAM_BYTES * n_programs)
        return cls(int(rows), others + WORK_BYTES)


@dataclass
class Runs:
    """Of one program, or of applying, with batches of one size."""

    seconds: list[float] = field(default_factory=list)
    bus_bytes: list[int] = field(default_factory=list)
    last: ProgramRun | None = None


class Measured:
    """A graph with its programs, as the daemon has them, and what epochs of it took."""

    def __init__(
        self,
        stream: Stream,
        names: list[str],
        share: float | None,
        limit: int | None,
        table: Table,
        policy: str = "cost",
    ) -> None:
        """``share``: None: the host alone. ``limit``: bytes of the device; None: all there are."""
        self.stream, self.table, self.share, self.limit = stream, table, share, limit
        self.config = PartitionConfig.model_validate({"policy": policy})
        self.card = None if share is None else find_card()
        if self.card is not None:
            self.card.limit(limit)
        metrics = Metrics()
        self.graph = Graph(
            weighted=stream.weighted,
            device=self.card is not None,
            host_rows="all" if self.card is None else "owned",
        )
        self.moves: Rebalancing | None = None
        seconds, _ = clocked(lambda: self._load(len(names)))
        if self.card is not None:
            self.moves = Rebalancing(self.graph, StorageGate(), self.room, metrics, self.config)
        self.traffic = Traffic(self.graph, metrics)
        self.engine = Engine(
            self.graph,
            [PROGRAMS[name]() for name in names],
            lambda ids: np.repeat(stream.source, len(ids)),
            judge=Homes(lambda _: False),
        )
        if self.moves is not None:
            self.engine.make_room = self.moves.make_room_for_program
        self.times: Times = {}
        self.copies: tuple[float, int] | None = None
        self.told(f"loaded, {share}", seconds)

    def room(self) -> Room | None:
        card, device = self.card, self.graph.device
        if card is None or device is None:
            return None
        return rebalancing.room_of(device, card)

    def _load(self, n_programs: int) -> None:
        loaded, n = self.stream.loaded, self.stream.n_vertices
        if (room := self.room()) is None:
            self.graph.load(loaded, n)
            return
        rebalancing.load(self.graph, loaded, n, None, room, self.config.policy, n_programs)

    def told(self, name: str, seconds: float) -> None:
        """Where the rows are, and what there is of the device's memory."""
        if self.card is None:
            return
        stored = {side.name: sum(array.n_edges for array in side.arrays) for side in self.graph.sides}
        extent = Extent(sum(stored.values()), self.limit, self.stream.weighted)
        memory = {"held": self.card.held_bytes, "used": self.card.used_bytes, "limit": self.limit}
        memory["spare"] = self.card.spare_bytes
        memory = {what: None if n is None else round(n / MEGA) for what, n in memory.items()}
        auto = "all" if extent.fits else "owned"
        self.table.tell(name, {"seconds": round(seconds, 2), "edges": stored, "MB": memory, "auto": auto})

    @property
    def on_host(self) -> float:
        if self.card is None:
            return 1.0
        return sum(array.n_edges for array in self.graph.host.arrays) / (2 * self.graph.n_arcs)

    # -- epochs ---------------------------------------------------------------------------------------------------

    def run(self, sizes: list[int], repeats: int, device: Times, host: Times, wanted: dict[str, Any]) -> None:
        """``device``, ``host``: times to compare with; ``wanted``: results, where they are known."""
        kept: dict[str, Runs] = {}
        for _ in range(WARM_UP + min(repeats, STARTS_MAX)):
            self._note(kept, self.engine.start())
        if self.card is not None and self.on_host > 0:
            self.card.limit(None)  # its buffers are nobody's
            self.copies = streamed(self.graph), self.graph.host.out.view().keys.nbytes
            self.card.release()
            self.card.limit(self.limit)
        self._show(0, kept, device, host, {}, 0)
        kept, begun = {}, 0
        for n, step, batch in self.stream.batches(sizes, repeats):
            if step == 0:
                kept, begun = {}, self._moved
            self._epoch(batch, kept)
            if step == WARM_UP + repeats - 1:
                self._show(n, kept, device, host, wanted if n == sizes[-1] else {}, self._moved - begun)
        assert self.graph.device_lost is None, self.graph.device_lost
        self.told(f"at the end, {self.share}", 0.0)

    def _epoch(self, batch: EdgeBatch, kept: dict[str, Runs]) -> None:
        before = self._uploaded
        columns = self.graph.columns(len(batch), weighted=self.stream.weighted)
        columns.keys[:], columns.ops[:] = batch.keys, batch.ops
        if columns.weights is not None:
            columns.weights[:] = batch.weights
        took, change = clocked(lambda: self._apply(columns))
        ran_s, runs = clocked(partial(self.engine.refresh, change))
        applied = kept.setdefault(APPLY, Runs())
        applied.seconds.append(took)
        applied.bus_bytes.append(self._uploaded - before)
        self._note(kept, runs)
        del change
        reads = self.traffic.ran(runs, self.engine.programs)
        if self.moves is not None:
            self.moves.after(Epoch(columns, runs, took + ran_s, reads))

    def _apply(self, batch: EdgeBatch) -> GraphChange:
        for tries in range(4):
            try:
                return self.graph.apply(batch, self.stream.n_vertices)
            except NoMemory as error:
                if self.moves is None or not self.moves.make_room(error, len(batch), tries):
                    raise
        raise AssertionError("there is no memory, wherever the rows are")

    def _note(self, kept: dict[str, Runs], runs: list[ProgramRun]) -> None:
        for run in runs:
            assert run.error is None and run.refresh is not None, run
            noted = kept.setdefault(run.id, Runs())
            noted.seconds.append(run.seconds)
            noted.bus_bytes.append(0 if run.refresh.reads is None else run.refresh.reads.bus_bytes)
            noted.last = run

    @property
    def _moved(self) -> int:
        return 0 if self.moves is None else self.moves.stats()["moved"]["edges"]

    @property
    def _uploaded(self) -> int:
        return 0 if self.graph.device is None else self.graph.device.uploaded_bytes

    # -- what is shown --------------------------------------------------------------------------------------------

    def _show(
        self, n: int, kept: dict[str, Runs], device: Times, host: Times, wanted: dict[str, Any], moved: int
    ) -> None:
        for name, noted in kept.items():
            seconds, run = median(noted.seconds[WARM_UP:]), noted.last
            self.times[n, name] = seconds
            row: Row = {"share": "(host)" if self.share is None else self.share, "on host": self.on_host}
            if self.card is not None:
                row["policy"] = self.config.policy
            row |= {"batch": n, "program": name, "ms": 1e3 * seconds, "moved": moved}
            for column, others in (("x device", device), ("x host", host)):
                if (n, name) in others:
                    row[column] = seconds / others[n, name]
            crossed = median(noted.bus_bytes[WARM_UP:]) / MEGA
            if run is None or run.refresh is None:
                row |= {"up MB": crossed} if self.card is not None else {}
            else:
                row |= {"rounds": run.refresh.iterations, "over": int(run.refresh.started_over)}
                if self.card is not None:
                    row |= {"home": int(not run.on_device), "in place MB": crossed}
                    row |= self._streaming(name, run.refresh.iterations, seconds)
            if name in wanted:
                row["wrong"] = wrong(name, self.results(name), wanted[name])
            self.table.add(row)

    def _streaming(self, name: str, rounds: int, seconds: float) -> Row:
        """What copies of rows would take that come anew in every round: the host's, and all; weights with them."""
        if self.copies is None or not rounds:
            return {}
        host_s, n_bytes = self.copies
        share = self.graph.host.out.n_edges / self.graph.n_arcs
        wide = 1.5 if name in WEIGHTED else 1.0
        host_s, n_bytes = host_s * wide * rounds, n_bytes * wide * rounds
        return {
            "stream": host_s / seconds,
            "whole": host_s / share / seconds,
            "stream MB": n_bytes / MEGA,
            "whole MB": n_bytes / share / MEGA,
        }

    def results(self, name: str) -> Any:
        program = next(program for program in self.engine.programs if program.id == name)
        n = self.graph.n_vertices
        answer = type(program).read(
            Published(program.columns(), program.scalars(), n), np.arange(n, dtype=np.uint32)
        )
        return np.where(answer.null, np.asarray(-1).astype(answer.values.dtype), answer.values)

    def need(self) -> Need:
        """What is held now, with everything on the device and programs there, but for blocks that nobody has; and
        what starts take for a moment."""
        assert self.card is not None
        self.card.release()
        rows = sum(
            size
            for array in self.graph.sides[-1].arrays
            for what, size in array.memory_bytes().items()
            if what in ("slots", "leaves")
        )
        return Need(rows, self.card.held_bytes - rows + START_BYTES * self.stream.n_vertices)

    def close(self) -> None:
        self.engine.close()
        self.graph.close()
        if self.card is not None:
            self.card.limit(None)


def run(
    scale: int,
    shares: list[float],
    names: list[str],
    sizes: list[int],
    repeats: int,
    path: Path | None,
    *,
    on_host_alone: bool = True,
    reckoned: bool = False,
    policies: Sequence[str] = ("cost",),
) -> list[Row]:
    """Measure, show and write rows as they come, and return them."""
    table = Table(path, {"machine": machine(), "scale": scale}, WIDTHS)
    stream = Stream(scale, 1, weighted=bool(WEIGHTED & set(names)))
    host: Times = {}
    device: Times = {}
    wanted: dict[str, Any] = {}
    need = Need.reckoned(stream, len(names)) if reckoned else None
    on_device = sorted(shares if reckoned else {1.0, *shares}, reverse=True)
    whole: list[tuple[float | None, str]] = [(None, policies[0])] if on_host_alone else []
    whole += [(share, policy) for share in on_device for policy in (policies[:1] if share == 1 else policies)]
    for share, policy in whole:
        limit = None if share in (None, 1.0) or need is None else need.limit(share)
        measured = Measured(stream, names, share, limit, table, policy)
        try:
            measured.run(sizes, repeats, device, host, wanted)
            if share is None:
                host, wanted = measured.times, {name: measured.results(name) for name in names}
            elif share == 1.0:
                device, need = measured.times, measured.need()
                table.tell("need MB", {"rows": round(need.rows / MEGA), "others": round(need.others / MEGA)})
        finally:
            measured.close()
        del measured
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.1])
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10_000, 1_000_000])
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=["cost"])
    parser.add_argument("--repeats", type=int, default=3, help="of batches; starts: three at most")
    parser.add_argument(
        "--no-host", action="store_true", help="leave out the host alone, and what is held against it"
    )
    parser.add_argument("--reckoned", action="store_true", help="run nothing without a limit")
    parser.add_argument("--in-place", action="store_true", help="passes pack nothing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.in_place:
        packed_rows.ASKED_EVERY_S = math.inf  # for memory, without which nothing is packed
    run(
        given.scale,
        given.shares,
        given.programs,
        given.batches,
        given.repeats,
        given.json,
        on_host_alone=not given.no_host,
        reckoned=given.reckoned,
        policies=given.policies,
    )


if __name__ == "__main__":
    main()
