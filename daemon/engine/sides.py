"""The sides that hold the graph: a device is looked for at the start, and watched from then on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...compute.engine import ProgramRun
from ...compute.program import Program
from ...gpma import runtime
from ...gpma.device import card
from ...gpma.device.card import Card, NoDevice
from ...ops.metrics import Metrics
from ...partition.graph import Graph
from ...partition.graph_rows import SideApply
from ..again import LostDevice
from ..config.sections.storage import DeviceConfig
from ..errors import ConfigError
from ..memory import budget_bytes
from .host_rows import HostRows
from .traffic import EpochReads, Traffic

log = logging.getLogger(__name__)


def card_of(config: DeviceConfig) -> Card | None:
    """The device that these settings mean, its memory limited as they say; None: the host computes alone.

    CuPy is imported only where it is installed, and not at all if the device is off.

    Raises:
        ConfigError: it is on, and there is none.
    """
    if config.enabled == "off" or (config.enabled == "auto" and not card.is_installed()):
        return None
    # Beside the host's kernels: CuPy's own choice is the home of a user, which a service may not have.
    os.environ.setdefault("CUPY_CACHE_DIR", str(runtime.cache_directory() / "cupy"))
    try:
        found = card.find_card()
        found.limit(budget_bytes(config.memory, found.memory_bytes))
    except NoDevice as error:
        refused(config, str(error))
        return None
    return found


def refused(config: DeviceConfig, reason: str) -> None:
    """The device cannot be used: the host computes alone.

    Raises:
        ConfigError: it is on, so that nothing may start without it.
    """
    if config.enabled == "on":
        raise ConfigError(f"device.enabled is on, and there is no device to use: {reason}")
    log.info("no device is used: %s", reason)


class Sides:
    """What the daemon tells of the sides: in metrics, in ``stats``, and in the log where the device is lost."""

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        card: Card | None = None,
        programs: Callable[[], Iterable[Program]] = tuple,
        lost: LostDevice | None = None,
        host_rows: HostRows | None = None,
    ) -> None:
        """``card``: the device of the graph, if it has one; ``programs``: those that run, wherever they do;
        ``lost``: the device that this start does without; ``host_rows``: what was decided, where there was a
        choice."""
        self._graph = graph
        self._programs = programs
        self._metrics = metrics
        self._card = card
        self._lost_before = lost
        self._reason = "there is no device" if host_rows is None else host_rows.reason
        self._applied: dict[str, dict[str, float]] = {}
        self._traffic = Traffic(graph, metrics)
        self._lost = False

    def applied(self, updates: int, seconds: float) -> None:
        """To be called when a batch of so many updates of edges was applied, which took so long."""
        # Where the host has all rows it has all of the work, and a device does the same beside it.
        parts = self._graph.applied if self._graph.owned else (SideApply("host", updates, seconds),)
        for part in parts:
            total = self._applied.setdefault(part.side, {"updates": 0, "seconds": 0.0})
            total["updates"] += part.updates
            total["seconds"] += part.seconds
            self._metrics.applied(part.side, updates=part.updates, seconds=part.seconds)

    def ran(self, runs: Sequence[ProgramRun]) -> EpochReads:
        """To be called with the runs of an epoch: what they read while rows were on both sides."""
        return self._traffic.ran(runs, self._programs())

    def look(self) -> None:
        """To be called after every change."""
        reason = self._graph.device_lost
        if reason is not None and not self._lost:
            self._lost = True
            log.error("the device is lost, and the host goes on alone: %s", reason)
            self._metrics.device_lost()
            self.release()
        present = self._graph.device is not None
        for name, vertices, edges, stored in zip(*self._by_side(), strict=True):
            self._metrics.side(name, vertices=vertices, edges=edges, stored_bytes=stored)
        if not present:
            self._metrics.side("device", vertices=0, edges=0, stored_bytes=0)
        self._metrics.headroom(self.headroom or 0.0)
        if self._card is not None:
            held, limit = self._memory(self._card)
            self._metrics.device(
                present=present, programs=len(self._on_device()), held_bytes=held, limit_bytes=limit or 0
            )

    def follow(self) -> None:
        """To be called often: how far the host is behind a device changes by itself."""
        lag = self._graph.lag
        self._metrics.host_behind(updates=lag.updates, seconds=lag.seconds)

    def release(self) -> None:
        """Give memory of the device back that no array has any more, so that there is room for larger ones."""
        if self._card is not None:
            with suppress(Exception):  # a card that failed takes nothing back
                self._card.release()

    def stats(self) -> dict[str, Any]:
        """For the request ``stats``, under ``placement``."""
        names, vertices, edges, stored = self._by_side()
        return {
            "sides": names,
            "host_rows": "owned" if self._graph.owned else "all",
            "vertices": vertices,
            "edges": edges,
            "bytes": stored,
            "behind": self._behind(),
            "device": self._device(),
        }

    def placement(self) -> dict[str, Any]:
        """For the request ``placement``: what ``stats`` has, why, and what sides did since the start."""
        return {
            **self.stats(),
            "host_rows_reason": self._reason,
            "headroom": self.headroom,
            "applied": {side: dict(total) for side, total in self._applied.items()},
            "bus": self._traffic.stats(),
        }

    @property
    def headroom(self) -> float | None:
        """The share of the device's memory that is left; None: there is no device, or no limit."""
        if self._card is None:
            return None
        held, limit = self._memory(self._card)
        return None if limit is None else max(0.0, 1 - (held - self._card.spare_bytes) / limit)

    def _by_side(self) -> tuple[list[str], list[int], list[int], list[int]]:
        """Names, vertices whose rows are there, entries of out-rows, and bytes."""
        graph = self._graph
        numbered = [
            (number, side)
            for number, side in enumerate(graph.sides)
            if side is graph.device or side in graph.hosts
        ]
        sides = [side for _, side in numbered]
        stored = [sum(side.memory_bytes().values()) for side in sides]
        stored[0] = sum(graph.memory_bytes().values())  # with what belongs to no side
        owned = [graph.placement.owned[number] if graph.owned else graph.n_alive for number, _ in numbered]
        return [side.name for side in sides], owned, [side.out.n_edges for side in sides], stored

    def _on_device(self) -> list[str]:
        if self._graph.device is None:  # some programs may not know yet
            return []
        return [program.id for program in self._programs() if program.on_device]

    def _behind(self) -> dict[str, Any]:
        lag = self._graph.lag
        return {"updates": lag.updates, "seconds": lag.seconds}

    def _memory(self, card: Card) -> tuple[int, int | None]:
        """Bytes that are held, and the limit; one that is lost is not asked, since it may fail at that, too."""
        if self._graph.device is None:
            return 0, None
        return card.held_bytes, card.limit_bytes

    def _device(self) -> dict[str, Any] | None:
        if self._card is None:
            lost = self._lost_before
            nothing = {"programs": [], "memory": {"limit": None, "held": 0}}
            return None if lost is None else {"name": lost.name, "lost": lost.reason, **nothing}
        held, limit = self._memory(self._card)
        return {
            "name": self._card.name,
            "programs": self._on_device(),
            "lost": self._graph.device_lost,
            "memory": {"limit": limit, "held": held},
        }
