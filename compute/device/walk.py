"""What random walks on a CUDA device have in common: numbers there, estimates and certificate on the host.

Estimates are written by the device into memory of the host, as float32, and so they are published: runs of passes
wait for all of them to cross the bus. The certificate counts what that rounds. For a column to stay what it is
where a program moves, the estimates of the host's program are published as float32, too.

All else is fetched when a checkpoint or an audit asks for it, and is then a state of the host's program.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...gpma.device.module import use_device
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Column, Program, Refresh
from ..steps import Steps
from ..walks.walk import NARROWED, RandomWalk
from .narrowed import F32, Narrowed
from .program import DeviceProgram

_NONE = np.empty(0, np.uint32)


class DeviceWalk(DeviceProgram):
    """A random walk whose systems are kept on the device; made from the host's.

    A family sets ``_graph``, ``_n`` and ``_is_ahead`` after every run there.
    """

    host: RandomWalk

    def __init__(self, host: Program) -> None:
        super().__init__(host)
        self.host.narrowed = NARROWED
        self._narrowed = Narrowed()
        self._n = 0
        # Of the last run; what the device has is fetched for it.
        self._graph: Graph | None = None
        # Whether the device has been solved since the host's columns were.
        self._is_ahead = False
        # What the last run left, where the host's program has others: its columns and scalars.
        self._published: tuple[dict[str, Column], dict[str, float]] | None = None
        # The device was lost, and the host's program has failed to start since.
        self._is_void = False

    @property
    @abstractmethod
    def _estimates(self) -> F32:
        """As the last run on the device left them."""

    @abstractmethod
    def _read(self) -> dict[str, Column]:
        """A state of the host's program that is what the device has.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """Bytes of what ``_read`` gives."""

    # -- runs -------------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        self._is_ahead, self._published = False, None
        self._narrowed.forget()
        refresh = super().start(graph)
        self._is_void = False
        return refresh

    def refreshing(self, graph: Graph, change: GraphChange) -> Steps[Refresh]:
        if self._is_void:
            refresh = replace(self.start(graph), started_over=True)
        else:
            refresh = yield from super().refreshing(graph, change)
            self._narrowed.note(refresh.changed.get("estimate", _NONE))
        if self._published is not None:
            self._published = None
            refresh = replace(refresh, changed={"estimate": None})
        return refresh

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        self._is_ahead, self._published = False, None
        self._narrowed.forget()
        super().restore(state, graph)
        self._is_void = False

    # -- the copy on the host ---------------------------------------------------------------------------------

    def scalars(self) -> dict[str, float]:
        return self.host.scalars() if self._published is None else self._published[1]

    def columns(self) -> dict[str, Column]:
        if self._published is not None:
            return self._published[0]
        if self._is_ahead:
            self._narrowed.forget()
            return {"estimate": self._estimates}
        return {"estimate": self._narrowed.of(self.host.columns()["estimate"])}

    def state(self) -> dict[str, Column]:
        fetched = self._fetched()
        return self.host.state() if fetched is None else fetched

    def state_sizes(self) -> dict[str, int]:
        return self._sizes() if self._is_ahead else super().state_sizes()

    def _fetched(self) -> dict[str, Column] | None:
        """The state, where the device is ahead of the host.

        A device that fails now is lost: then the host's program has one of its own, from scratch. What was
        published stays until the next run.
        """
        if self._is_void:
            self._start_host()
        if not self._is_ahead:
            return None
        graph = self._graph
        assert graph is not None
        published = self.columns(), self.scalars()

        def read(_: DeviceSide) -> dict[str, Column]:
            use_device()
            return self._read()

        state = self._on_device(graph, read)
        if state is None:
            self._published = published
            self._start_host()
        return state

    def _start_host(self) -> None:
        assert self._graph is not None
        self._is_void = True
        self._narrowed.forget()
        self.host.start(self._graph)
        self._is_void = False

    def prepare_audit(self, graph: Graph) -> None:
        fetched = self._fetched()
        if fetched is not None:
            self.host.restore(fetched, graph)
            self._narrowed.forget()
            self._is_ahead = False

    def _let_go(self) -> None:
        self._is_ahead = False
        self._narrowed.forget()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + self._narrowed.nbytes
