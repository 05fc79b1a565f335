"""The sides that hold the graph: a device is looked for at the start, and watched from then on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ...compute.program import Program
from ...gpma import runtime
from ...gpma.device import card
from ...gpma.device.card import Card, NoDevice
from ...ops.metrics import Metrics
from ...partition.graph import Graph
from ..config.settings import DeviceConfig
from ..errors import ConfigError
from ..memory import budget_bytes

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
    ) -> None:
        """``card``: the device of the graph, if it has one; ``programs``: those that run, wherever they do."""
        self._graph = graph
        self._programs = programs
        self._metrics = metrics
        self._card = card
        self._lost = False

    def look(self) -> None:
        """To be called after every change."""
        reason = self._graph.device_lost
        if reason is not None and not self._lost:
            self._lost = True
            log.error("the device is lost, and the host goes on alone: %s", reason)
            self._metrics.device_lost()
            if self._card is not None:
                with suppress(Exception):  # a card that failed takes nothing back
                    self._card.release()
        present = self._graph.device is not None
        if self._card is not None:
            held, limit = self._memory(self._card)
            self._metrics.device(
                present=present, programs=len(self._on_device()), held_bytes=held, limit_bytes=limit or 0
            )

    def stats(self, host_bytes: int) -> dict[str, Any]:
        """For the request ``stats``, under ``placement``. ``host_bytes``: of the graph on the host."""
        device = self._graph.device
        stored = [host_bytes]
        if device is not None:
            stored.append(sum(device.memory_bytes().values()))
        return {
            "sides": ["host", "device"][: len(stored)],
            "vertices": [self._graph.n_alive] * len(stored),
            "bytes": stored,
            "device": None if self._card is None else self._device(self._card),
        }

    def _on_device(self) -> list[str]:
        if self._graph.device is None:  # some programs may not know yet
            return []
        return [program.id for program in self._programs() if program.on_device]

    def _memory(self, card: Card) -> tuple[int, int | None]:
        """Bytes that are held, and the limit; one that is lost is not asked, since it may fail at that, too."""
        if self._graph.device is None:
            return 0, None
        return card.held_bytes, card.limit_bytes

    def _device(self, card: Card) -> dict[str, Any]:
        held, limit = self._memory(card)
        return {
            "name": card.name,
            "programs": self._on_device(),
            "lost": self._graph.device_lost,
            "memory": {"limit": limit, "held": held},
        }
