"""A host and a device that are only reckoned: what an epoch takes there, and rows that move as they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphtide.partition.classes import CLASSES, DEVICE, Stock
from graphtide.partition.measures import Measures
from graphtide.partition.moves import EDGES_MAX, Moves
from graphtide.partition.placement import HOST
from graphtide.partition.policies import KEY_BYTES, remote_bytes
from graphtide.partition.rebalancing import Rebalancer

EDGE_BYTES = 20


@dataclass(frozen=True)
class Load:
    """What an epoch does: ``read`` and ``changed`` are vertices whose rows programs read, and the batch changes.

    ``updates`` more than those named go to all rows alike. ``programs_s``: what programs take but for the bus.
    """

    read: npt.NDArray[np.uint32]
    changed: npt.NDArray[np.uint32]
    updates: int = 1_000
    programs_s: float = 0.002


class Sides:
    """Rows, their owners, and the rebalancer of both.

    ``moving_s``, ``move_s``, ``remote_s``: seconds for a move, for each of its edges, and for a byte over the bus.
    ``host_update_s``, ``device_update_s``: for an update there. ``limit``: bytes of the device; ``fixed``: of
    which so many are taken. ``seen``: what the rebalancer is told of what was measured. ``stocks``: how often it
    asked whose the rows are.
    """

    moving_s = 0.0
    move_s = 5e-8
    remote_s = 1e-9
    host_update_s = 5e-8
    device_update_s = 1e-9
    fixed = 0

    def __init__(self, degrees: npt.NDArray[np.uint32], owner: npt.NDArray[np.uint8], limit: float) -> None:
        self.degrees, self.owner, self.limit = degrees, owner, int(limit)
        self.rebalancer = Rebalancer(self._stock)
        self.moves: Moves = []
        self.log: list[Moves] = []
        self.seconds: list[float] = []
        self.budgets: list[int] = []
        self.seen: Callable[[Measures], Measures] = lambda measures: measures
        self._moved_edges = 0
        self.stocks = 0

    def _stock(self) -> Stock:
        self.stocks += 1
        return Stock(self.owner, self.degrees, self.degrees[:0])

    def edges(self, side: int) -> int:
        return int(self.degrees[self.owner == side].sum())

    def epoch(self, load: Load) -> Measures:
        """One epoch, and what is moved after it."""
        measures = self._measures(load)
        if load.changed.size:
            self.rebalancer.ages.changed(load.changed)
        self.moves = self.rebalancer.observe(self.seen(measures)) or []
        self.budgets.append(self.rebalancer.budget())
        for move in self.moves:
            assert (self.owner[move.vertices] != move.to).all()
            self.owner[move.vertices] = move.to
        self._moved_edges = sum(int(self.degrees[move.vertices].sum()) for move in self.moves)
        self.log.append(self.moves)
        self.seconds.append(measures.seconds)
        return measures

    def _measures(self, load: Load) -> Measures:
        edges = self.edges(HOST), self.edges(DEVICE)
        changed = self.owner[load.changed]
        share = edges[DEVICE] / max(1, sum(edges))
        to_device = np.count_nonzero(changed == DEVICE) + load.updates * share
        to_host = np.count_nonzero(changed == HOST) + load.updates * (1 - share)
        degrees = self.degrees[load.read].astype(np.int64)
        remote = degrees[self.owner[load.read] == HOST]
        remote = remote[remote > 0]
        over_bus = float((KEY_BYTES * remote * remote_bytes(remote.astype(float))).sum())
        reads = np.bincount(self.rebalancer.ages.classes(load.read, degrees), degrees, CLASSES).astype(np.int64)
        apply_s = to_host * self.host_update_s, to_device * self.device_update_s
        programs_s = load.programs_s + over_bus * self.remote_s
        moved_s = self._moved_edges * self.move_s + (self.moving_s if self._moved_edges else 0.0)
        return Measures(
            seconds=max(apply_s) + programs_s + moved_s,
            device_bytes=self.fixed + EDGE_BYTES * edges[DEVICE],
            device_limit=self.limit,
            host_edges=edges[HOST],
            device_edges=edges[DEVICE],
            host_apply_s=apply_s[HOST],
            device_apply_s=apply_s[DEVICE],
            device_programs_s=programs_s,
            updates=load.updates + load.changed.size,
            remote_s=over_bus * self.remote_s,
            reads=reads,
            moved_edges=self._moved_edges,
            moved_s=moved_s,
        )

    # -- what must hold, whatever happened ------------------------------------------------------------------------

    def check_budgets(self) -> None:
        """No epoch moves more than its budget."""
        for moves, budget in zip(self.log, self.budgets, strict=True):
            assert sum(move.edges for move in moves) <= budget <= EDGES_MAX

    def check_rests(self, epochs: int) -> None:
        """Between two moves of a row lie so many epochs."""
        last = np.full(self.owner.size, -epochs)
        for epoch, moves in enumerate(self.log):
            for move in moves:
                assert (epoch - last[move.vertices] >= epochs).all()
                last[move.vertices] = epoch

    def moved(self, begin: int = 0, end: int | None = None) -> int:
        """Edges that moved in these epochs."""
        return sum(move.edges for moves in self.log[begin:end] for move in moves)
