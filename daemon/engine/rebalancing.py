"""Rows move between the sides, a few after each epoch: measured, decided, done, and told.

Decisions are ``partition.rebalancing``'s. All of it is for the engine's thread, between two epochs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...compute.engine import ProgramRun
from ...gpma.device_failure import is_of_device
from ...gpma.edges import EdgeBatch, EdgeList, Vertices, destinations, sources
from ...gpma.vertex_columns import grown, new_column
from ...ops.areas.sides import MOVE_REASONS
from ...ops.metrics import Metrics
from ...partition.classes import DEVICE, Stock
from ...partition.division import divide
from ...partition.graph import Graph, NoMemory
from ...partition.measures import Measures
from ...partition.moves import Move
from ...partition.placement import HOST
from ...partition.policies import POLICIES
from ...partition.rebalancing import Rebalancer
from ...partition.split_rows import SideFull
from ..config.sections.storage import PartitionConfig
from ..failpoints import point
from .host_rows import bytes_of_entry
from .storage import StorageGate
from .traffic import NOTHING, EpochReads
from .vertex_memory import GRAPH_BYTES, PROGRAM_BYTES

if TYPE_CHECKING:
    from ...gpma.device.card import Card
    from ...partition.device_side import DeviceSide

log = logging.getLogger(__name__)

REASONS = ("placed", *MOVE_REASONS)
"""Why a row is where it is: it was placed there when it came, or a move's reason."""


BYTES_OF_UPDATE = 320
"""What an update takes of a device's memory, at most, in all arrays: 77 in work arrays of each of two, 9 to 18 in
each of five other columns, and half more where these grow."""
ALL_LEAVE = 2
"""After so many tries that found no memory for a batch, the host gets all rows."""
EVERYTHING = 1 << 60


class Room(NamedTuple):
    """Bytes of a device's memory: what rows hold, what they could hold now, and what of that is in use for speed
    alone, until somebody needs it."""

    held: int
    limit: int
    spare: int = 0


def room_of(device: DeviceSide, card: Card) -> Room:
    """The room that rows have on a device now.

    Work space of batches is not theirs: it stays when they leave, and may be many times what a few rows take. What
    others hold for speed alone, until somebody needs it, is free.

    Raises:
        RuntimeError: the device, as CuPy says it.
    """
    held = sum(n_bytes for what, n_bytes in device.memory_bytes().items() if what != "scratch")
    free, spare = card.available_bytes - card.used_bytes, card.spare_bytes
    return Room(held, free + spare + held, spare)


class Epoch(NamedTuple):
    """What an epoch was: what it applied, what programs did, how long all of it took, and what they read."""

    batch: EdgeBatch
    runs: Sequence[ProgramRun]
    seconds: float
    read: EpochReads = NOTHING


def load(
    graph: Graph,
    edges: EdgeList,
    n_vertices: int,
    dead: Vertices | None,
    room: Room,
    policy: str,
    n_programs: int = 0,
) -> None:
    """``Graph.load`` of a graph whose rows are on one side each: on the device, as far as there is room beside
    what vertices take there, and so many programs, which come later.

    Raises:
        NoMemory: there is not enough, on the host neither.
    """
    each = bytes_of_entry(weighted=graph.weighted)
    limit = room.limit - n_vertices * (GRAPH_BYTES + PROGRAM_BYTES * n_programs)
    graph.divide_by(lambda out, in_: divide(out, in_, each, limit, POLICIES[policy]))
    graph.load(edges, n_vertices, dead)


class Rebalancing:
    """Of a graph whose rows are on one side each, of two."""

    def __init__(
        self,
        graph: Graph,
        gate: StorageGate,
        room: Callable[[], Room | None],
        metrics: Metrics,
        config: PartitionConfig,
    ) -> None:
        """``room``: of the second side's memory, as it is; None: that is gone, and had no rows."""
        self.config = config
        self._graph = graph
        self._gate = gate
        self._room = room
        self._metrics = metrics
        self._rebalancer = Rebalancer(self._stock, config.policy)
        if not config.rebalance:
            self._rebalancer.freeze()
        self._why: npt.NDArray[np.uint8] = new_column(0, np.uint8)
        self._epochs = 0
        self._moved_edges, self._moved_s = 0, 0.0
        self._totals = {"vertices": 0, "edges": 0, "seconds": 0.0, "failures": 0}
        self._failure: str | None = None

        metrics.frozen(self.frozen)

    # -- after each epoch -----------------------------------------------------------------------------------------

    def after(self, epoch: Epoch) -> None:
        """Take an epoch's measures, and move what is to move before the next one."""
        keys = epoch.batch.keys
        self._rebalancer.ages.changed(sources(keys))
        self._rebalancer.ages.changed(destinations(keys))
        room = self._room()
        if room is None:
            self._metrics.imbalance(0.0)
            return
        measures = self._measures(epoch, room)
        self._moved_edges, self._moved_s = 0, 0.0
        moves = self._rebalancer.observe(measures)
        self._epochs += 1
        self._metrics.imbalance(_waiting(measures))
        if moves:
            self._carry_out(moves)
        if self._room() is not None:
            self._graph.placement.newcomers = self._rebalancer.newcomers
            self._classify()

    def _classify(self) -> None:
        """Have reads counted by the classes of the newest look; a device that fails at it is lost."""
        if (classes := self._rebalancer.take_classes()) is not None:
            self._at_device(lambda device: device.classify(classes))

    def _at_device(self, work: Callable[[DeviceSide], None]) -> None:
        """Do it, if there is a device; one that fails at it is lost."""
        if (device := self._graph.device) is None:
            return
        try:
            work(device)
        except Exception as error:
            if not is_of_device(error):
                raise
            self._graph.drop_device(f"{type(error).__name__}: {error}")

    def make_room(self, error: NoMemory, updates: int, tries: int) -> bool:
        """Whether a batch of so many updates is to be tried again, if it is the device that had no memory for it.

        New vertices become the host's, and rows leave, more of them with each of the ``tries`` for this batch, at
        last all; a device that has no memory even so is given up. False: the host has no memory for them.
        """
        full = error.__cause__
        if not isinstance(full, SideFull) or full.side != DEVICE or self._room() is None:
            return False
        placement = self._graph.placement
        if placement.owned[DEVICE] == 0 and placement.newcomers == HOST:
            return self._give_up(error)
        return self._evict(BYTES_OF_UPDATE * updates * 16**tries, tries)

    def make_room_for_program(self, tries: int) -> bool:
        """Whether a program is to be tried again for which the device has no memory: rows have left, more of them
        with each of the ``tries``, at last all. To be called when the programs of an epoch have run."""
        if self._room() is None or self._graph.placement.owned[DEVICE] == 0:
            return False
        return self._evict(PROGRAM_BYTES * self._graph.n_vertices * 2**tries, tries, within=True)

    def _evict(self, bytes_needed: int, tries: int, *, within: bool = False) -> bool:
        """Have rows leave, and give back what they and their way took; as ``_carry_out``."""
        if not self._carry_out([self._evicted(bytes_needed, tries)], within=within):
            return False
        with self._changing(within=within):
            self._at_device(lambda device: device.fit())
        return True

    def _evicted(self, bytes_needed: int, tries: int) -> Move:
        """What leaves at once, so that so many bytes are free; with the last of the tries it is all."""
        placement = self._graph.placement
        move = self._rebalancer.evict(EVERYTHING if tries >= ALL_LEAVE else bytes_needed)
        placement.newcomers = self._rebalancer.newcomers
        if move is None or tries >= ALL_LEAVE:  # those of no edges, too
            owned = np.flatnonzero(placement.owner == DEVICE).astype(np.uint32)
            move = Move(owned, HOST, "evict", 0) if move is None else move._replace(vertices=owned)
        return move

    def _give_up(self, error: NoMemory) -> bool:
        """Go on without a device that has no rows, nor memory to be told of others'. False: there is none."""
        if self._graph.device is None:
            return False
        with self._changing(within=False):
            self._graph.drop_device(f"it has no memory: {error}")
        return True

    def _carry_out(self, moves: Sequence[Move], *, within: bool = False) -> bool:
        """False: there was no memory, or is no second side any more, and what is left of the moves is dropped.

        ``within``: an epoch, the results of which are not published yet.
        """
        for move in moves:
            if self._room() is None:
                return False
            begun = time.perf_counter()
            try:
                with self._changing(within=within):
                    moved = self._graph.migrate(move.vertices, move.to, move.edges)
            except NoMemory as error:
                self._refused(move, error)
                return False
            point("rows.moved")
            seconds = time.perf_counter() - begun
            self._note(move, moved.vertices, moved.edges, seconds)
        return True

    @contextmanager
    def _changing(self, *, within: bool) -> Iterator[None]:
        """Where rows are, not what they hold, which nobody reads meanwhile."""
        if within:
            with self._gate.within():
                yield
            return
        try:
            with self._gate.apply():
                yield
        finally:
            self._gate.settle()

    def _refused(self, move: Move, error: NoMemory) -> None:
        self._rebalancer.refused()
        self._totals["failures"] += 1
        self._failure = f"{move.reason}: {error}"
        self._metrics.move_failed()
        side = self._graph.sides[move.to].name
        log.warning(
            "%d rows stay where they are: the %s has no memory for them: %s", move.vertices.size, side, error
        )

    def _note(self, move: Move, vertices: int, edges: int, seconds: float) -> None:
        self._moved_edges += edges
        self._moved_s += seconds
        for name, amount in (("vertices", vertices), ("edges", edges), ("seconds", seconds)):
            self._totals[name] += amount
        if self._why.size < self._graph.n_vertices:
            self._why = grown(self._why, self._graph.n_vertices, 0)
        self._why[move.vertices] = REASONS.index(move.reason)
        side = self._graph.sides[move.to].name
        self._metrics.moved(move.reason, side, vertices=vertices, edges=edges, seconds=seconds)
        log.debug("%d rows with %d edges moved to the %s: %s", vertices, edges, side, move.reason)

    def _measures(self, epoch: Epoch, room: Room) -> Measures:
        applied = {side.side: side for side in self._graph.applied}
        host, device = self._graph.sides[HOST], self._graph.sides[DEVICE]
        return Measures(
            seconds=epoch.seconds,
            device_bytes=room.held,
            device_limit=room.limit,
            spare_bytes=room.spare,
            host_edges=sum(array.n_edges for array in host.arrays),
            device_edges=sum(array.n_edges for array in device.arrays),
            host_apply_s=applied[host.name].seconds if host.name in applied else 0.0,
            device_apply_s=applied[device.name].seconds if device.name in applied else 0.0,
            host_programs_s=sum(run.seconds for run in epoch.runs if not run.on_device),
            device_programs_s=sum(run.seconds for run in epoch.runs if run.on_device),
            updates=len(epoch.batch),
            remote_s=epoch.read.bus_s,
            reads=epoch.read.by_class,
            other_reads=epoch.read.others,
            moved_edges=self._moved_edges,
            moved_s=self._moved_s,
        )

    def _stock(self) -> Stock:
        graph = self._graph
        in_degrees = np.empty(0, np.uint32)
        if graph.directed and graph.host.in_ is not None:
            in_degrees = graph.degrees("in")[: graph.n_vertices]
        return Stock(graph.placement.owner, graph.degrees("out")[: graph.n_vertices], in_degrees)

    # -- what is asked --------------------------------------------------------------------------------------------

    def request(self) -> None:
        """Rebalance after the next epoch, without thresholds."""
        self._rebalancer.request()

    @property
    def frozen(self) -> bool:
        """Whether nothing moves, unless the device has no memory for a batch."""
        return self._rebalancer.frozen

    def freeze(self, *, thaw: bool) -> None:
        """Let nothing move any more; or, with ``thaw``, let rows move again."""
        if thaw:
            self._rebalancer.thaw()
        else:
            self._rebalancer.freeze()
        self._metrics.frozen(self.frozen)

    def why(self, vertices: Vertices) -> list[str]:
        """Of each vertex, why its rows are where they are, in a word of ``REASONS``."""
        known = vertices < self._why.size
        codes = np.zeros(vertices.size, np.uint8)
        codes[known] = self._why[vertices[known]]
        return [REASONS[code] for code in codes.tolist()]

    def stats(self) -> dict[str, Any]:
        """What the ``placement`` request shows; the newest decision last."""
        rebalancer = self._rebalancer
        decisions = []
        for decision in rebalancer.decisions:
            shown = asdict(decision)
            epochs_ago = self._epochs - shown.pop("epoch")
            decisions.append({"epochs_ago": epochs_ago, **shown})
        return {
            "frozen": rebalancer.frozen,
            "newcomers": self._graph.sides[rebalancer.newcomers].name,
            "budget_edges": rebalancer.budget(),
            "moved": {**self._totals, "last_failure": self._failure},
            "decisions": decisions,
        }


def _waiting(measures: Measures) -> float:
    """The share of the slower side's time to apply the batch in which the other side and programs were done."""
    fast_s, slow_s = sorted((measures.host_apply_s, measures.device_apply_s))
    if slow_s <= 0 or 0 in (measures.host_edges, measures.device_edges):
        return 0.0
    return max(0.0, 1 - (fast_s + measures.programs_s) / slow_s)
