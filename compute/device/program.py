"""What every program on a device has in common: the host's program beside it, which it goes home to."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import ClassVar, Protocol, TypeVar

from ...gpma.device_failure import is_of_device
from ...gpma.edges import Vertices
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..program import Answer, Column, NoRoom, Program, Published, Refresh, Violation
from ..steps import Steps, alone

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLASS_VARIABLES = [name for name, kind in Program.__annotations__.items() if kind.startswith("ClassVar")]
_CLASS_METHODS = [name for name, what in vars(Program).items() if isinstance(what, staticmethod | classmethod)]


class Unfit(RuntimeError):
    """A program cannot go on at a device that is sound; the message says why."""


class Abode(Enum):
    """Where a program is kept up to date."""

    COMING = auto()
    """On the device from its next run on: it has not been started, or the host has a state that was restored."""
    DEVICE = auto()
    """On the device, which has all of it."""
    AWAY = auto()
    """On the host, until it moves back."""
    HOME = auto()
    """On the host for good."""


class Runs(Protocol):
    """What a program has on the device, with which it runs there."""

    @property
    def memory_bytes(self) -> int:
        """Of the host's memory."""
        ...


class DeviceProgram(Program):
    """A program that the device of a graph keeps up to date, with a copy of its state on the host.

    It is made from the host's program, and that has the copy: what is published, saved and audited is read there.
    So when the device is lost, the host's program starts from scratch within the same run, and all later ones are
    its own; where the device is sound, and only does not suffice (``MemoryError``, ``Unfit``), just this program
    goes home, unless it waits for room. A family gives ``compile``, ``_start``, ``_refresh``, ``_take_over`` and
    ``_let_go``; but in the last anything may be raised: what is not the device's (``is_of_device``) goes on to the
    caller. What it has on the device is ``_runs``.

    A family of which there may be many programs, whose small refreshes leave most of a device idle, gives
    ``_refreshing`` in the place of ``_refresh``, and says so by ``by_steps``.

    It may also ``move`` to the host and back, while the device is sound.
    """

    by_steps: ClassVar[bool] = False
    """Whether refreshes of several programs of the class may go on side by side: see ``_refreshing``."""

    def __init_subclass__(cls, of: type[Program] | None = None) -> None:
        """``of``: the host's class. What it says of itself, and how results are read, is the twin's, too."""
        super().__init_subclass__()
        if of is None:
            return
        for name in _CLASS_VARIABLES:
            if hasattr(of, name):
                setattr(cls, name, getattr(of, name))
        for name in _CLASS_METHODS:
            setattr(cls, name, staticmethod(getattr(of, name)))

    def __init__(self, host: Program) -> None:
        """``host``: must not be used by others any more."""
        super().__init__(host.id)
        self.sources = host.sources
        self.host = host
        self._runs: Runs | None = None
        self._abode = Abode.COMING  # a state may have been restored into the host's program

    @property
    def on_device(self) -> bool:
        """Whether the device runs it; False for good once it went home."""
        return self._abode in (Abode.COMING, Abode.DEVICE)

    @property
    def reads_host(self) -> bool:
        return self._abode is not Abode.DEVICE

    @property
    def is_movable(self) -> bool:
        return self._abode is not Abode.HOME

    # -- what a family does on the device -----------------------------------------------------------------------

    @abstractmethod
    def compile(self, device: DeviceSide) -> None:
        """Compile all kernels for this device, or load them: nothing is read of its rows, and no room is taken
        there. Any thread may call, whatever runs meanwhile."""

    @abstractmethod
    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        """As ``start``."""

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        """As ``refresh``; the device's report of the change is ``device.report``."""
        return alone(self._refreshing(graph, device, change))

    def _refreshing(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        """The same by steps, each of which is a call of kernels of which it has not heard yet."""
        yield from ()
        return self._refresh(graph, device, change)

    @abstractmethod
    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        """Bring the host's copy, which belongs to the graph as it is, to the device."""

    def _let_go(self) -> None:
        """Hold nothing of the device any more."""
        self._runs = None

    # -- runs ---------------------------------------------------------------------------------------------------

    def warm_up(self, graph: Graph) -> None:
        self.host.warm_up(graph)  # for when the device is lost

    def start(self, graph: Graph) -> Refresh:
        done = self.start_there(graph)
        return self.host.start(graph) if done is None else done

    def start_there(self, graph: Graph) -> Refresh | None:
        """``start`` on the device; None: it is at home, or is from now on, and nothing was computed."""
        if not self.on_device:
            return None
        self._abode = Abode.COMING
        done = self._on_device(graph, lambda device: _counted(device, self._start(graph, device)))
        if done is not None:
            self._abode = Abode.DEVICE
        return done

    def leave(self) -> None:
        """Hold nothing of the device any more; the host's copy stays. There are to be no more runs."""
        self._abode = Abode.HOME
        self._let_go()

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._abode is not Abode.DEVICE:
            return alone(self.refreshing(graph, change))
        done = self._on_device(graph, lambda device: _counted(device, self._refresh(graph, device, change)))
        return self._start_at_home(graph) if done is None else done

    def joins(self, graph: Graph) -> Hashable | None:
        if not self.by_steps or self._abode is not Abode.DEVICE or graph.device is None:
            return None
        # What is read of remote rows is counted for one program at a time.
        return type(self) if graph.device.remote is None else None

    def refreshing(self, graph: Graph, change: GraphChange) -> Steps[Refresh]:
        if not self.on_device:
            return self.host.refresh(graph, change)
        if self._abode is Abode.COMING:  # the host has the state, of before the change
            refresh = self.host.refresh(graph, change)
            self._bring(graph)
            return refresh
        done = yield from self._stepping(graph, lambda device: self._counting(graph, device, change))
        return self._start_at_home(graph) if done is None else done

    def _start_at_home(self, graph: Graph) -> Refresh:
        return replace(self.host.start(graph), started_over=True)

    def _counting(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        return _counted(device, (yield from self._refreshing(graph, device, change)))

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        if self._abode is Abode.DEVICE:
            self._abode = Abode.COMING
        self.host.restore(state, graph)
        if self._abode is Abode.COMING:
            self._bring(graph)

    def move(self, graph: Graph) -> None:
        if self._abode is Abode.AWAY:
            self._abode = Abode.COMING
            self._bring(graph)
            return
        state = {name: column.copy() for name, column in self.state().items()}
        if self.on_device:  # still: what is asked for its state may fail
            self._abode = Abode.AWAY
        self._let_go()
        self.host.restore(state, graph)

    def _bring(self, graph: Graph) -> None:
        def take_over(device: DeviceSide) -> bool:
            self._take_over(graph, device)
            return True

        if self._on_device(graph, take_over) is not None:
            self._abode = Abode.DEVICE

    def _on_device(self, graph: Graph, work: Callable[[DeviceSide], T]) -> T | None:
        """What the work gives; None: the device is lost or full, and the program is at home from now on.

        Raises:
            NoRoom: the device is full, and the program waits for room.
            Exception: what is no failure of the device, but a mistake on the host: only ``start`` is of use then.
        """
        if self._abode is Abode.HOME:
            return None
        if graph.device is not None:
            try:
                graph.device.be_ready()
                return work(graph.device)
            except Exception as error:
                self._heed(error, graph)
        self._go_home()
        return None

    def _stepping(self, graph: Graph, work: Callable[[DeviceSide], Steps[T]]) -> Steps[T | None]:
        """``_on_device`` for work by steps."""
        if self._abode is Abode.HOME:
            return None
        if graph.device is not None:
            try:
                graph.device.be_ready()
                return (yield from work(graph.device))
            except Exception as error:
                self._heed(error, graph)
        self._go_home()
        return None

    def _heed(self, error: Exception, graph: Graph) -> None:
        """Work on the device failed: say why the program goes home, and drop the device if it is of no use.

        Raises:
            NoRoom: the program waits for room instead.
            Exception: it is no failure of the device.
        """
        if isinstance(error, MemoryError):
            if self.waits_for_room:
                self._abode = Abode.COMING
                self._let_go()
                raise NoRoom(str(error)) from error
            log.warning("program %s goes on at the host: the device has no memory for it: %s", self.id, error)
        elif isinstance(error, Unfit):
            log.warning("program %s goes on at the host: %s", self.id, error)
        elif is_of_device(error):
            log.info("program %s goes on at the host: the device failed", self.id)
            graph.drop_device(f"{type(error).__name__}: {error}")
        else:
            raise error

    def _go_home(self) -> None:
        self._abode = Abode.HOME
        self._let_go()

    # -- the copy on the host -----------------------------------------------------------------------------------

    def bind(self, sources: Vertices) -> None:
        self.host.bind(sources)

    def columns(self) -> dict[str, Column]:
        return self.host.columns()

    def scalars(self) -> dict[str, float]:
        return self.host.scalars()

    def state(self) -> dict[str, Column]:
        return self.host.state()

    def memory_bytes(self) -> int:
        return self.host.memory_bytes() + (0 if self._runs is None else self._runs.memory_bytes)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        raise NotImplementedError("each class of the host has one of its own here")

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        self.prepare_audit(graph)
        return self.host.audit_slice(graph, begin, end)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        self.prepare_audit(graph)
        return self.host.audit_whole(graph)


def _counted(device: DeviceSide, run: Refresh) -> Refresh:
    """A run with what it read of rows, where some are remote."""
    if device.remote is not None:
        run.counted = device.remote.take_reads()
    return run
