"""What a daemon keeps: graph, index, programs and their engine, empty or from a checkpoint."""

from __future__ import annotations

import logging
import reprlib
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..compute import registry
from ..compute.device import NoTwin, twin
from ..compute.engine import Engine
from ..compute.homes import Homes
from ..compute.program import ExternalId, Program, ProgramError, require_publishable
from ..gpma.device.card import Card
from ..gpma.edges import EdgeList, Vertices
from ..gpma.index.ids import INTEGER, MAX_STRING_ID_BYTES, IdColumn, StringColumn
from ..gpma.index.vertex_index import VertexIndex
from ..gpma.memory import Memory
from ..partition.graph import Graph
from . import kernels
from .config.settings import Config
from .engine import rebalancing
from .engine.host_rows import Extent, HostRows, host_rows_of
from .engine.keyed import KeyedRows
from .engine.rebalancing import Room
from .engine.sides import refused
from .engine.vertex_memory import require_vertices
from .engine.window import CountWindow, TimeWindow, Window
from .errors import ConfigError
from .ingest.event_time import EventTime, EventTimeRules
from .memory import telling
from .outgoing.make import resume_of
from .outgoing.writer import Resume
from .records.position import Position
from .records.stream import offsets_from_wire
from .serve.shared_memory import allocate_within
from .state.checkpoint import Checkpoint
from .state.kept import KeptPrograms, Spec, parameters_of
from .state.renumbering import well_numbered

log = logging.getLogger(__name__)


class Contents:
    """
    Attributes:
        specs: what each program is, by id, as a checkpoint says it.
        left_out: programs that were kept at run time and cannot be made any more, with the reason.
        restored: ids of the programs whose saved states were of use.
        resume: where who writes results goes on, if he does.
        numbering: how vertices are numbered, as a checkpoint says it.
        card: None, too, where the one given was refused.
        host_rows: which rows the host keeps, where a device keeps some.
    """

    def __init__(
        self,
        config: Config,
        checkpoint: Checkpoint | None,
        incarnation: int,
        *,
        card: Card | None,
        kept: KeptPrograms,
        stop: threading.Event,
        stack: ExitStack,
    ) -> None:
        """
        Args:
            card: of the device that is to keep rows, too.
            stop: gives up.
            stack: gets what must be closed.

        Raises:
            ConfigError: a program cannot be made, the checkpoint does not fit the settings, or the settings insist
                on a device and none works.
            kernels.Stopped: ``stop`` was set.
            MemoryError: the checkpoint's graph does not fit.
        """
        self._config = config
        self._weighted = config.graph.weights != "unweighted"
        self.card = card
        self.index = VertexIndex.create(
            config.graph.vertex_ids, allocate_within(Memory()), config.graph.vertices_max
        )
        self.position = Position(incarnation)
        programs = [self._program(item.name, item.id, item.parameters) for item in config.program]
        self.specs = {item.id: {"name": item.name, **item.parameters} for item in config.program}
        self.left_out: dict[str, tuple[Spec, str]] = {}
        for id, spec in self._usable_kept(kept, stop).items():
            programs.append(self._program(spec["name"], id, parameters_of(spec)))
            self.specs[id] = spec
        self.host_rows: HostRows | None = None
        self.graph = self._empty_graph(programs, checkpoint)
        stack.callback(self.graph.close)
        self.index.crew = self.graph.crew
        self.window = self._make_window()
        self.keyed = KeyedRows(directed=config.graph.directed) if config.source.keyed else None
        self.restored: frozenset[str] = frozenset()
        self.resume: Resume | None = None
        self.numbering: dict[str, Any] | None = None
        if checkpoint is not None and not checkpoint.is_empty:  # else answers are of no source yet
            with telling("the graph of the checkpoint cannot be loaded"):
                self.restored = self._load(checkpoint, programs, stop)
            self.resume = resume_of(checkpoint, self.restored)
            self.position.number = checkpoint.epoch[1]
            self.position.updates = checkpoint.facts["updates"]
            self.position.offsets = offsets_from_wire(checkpoint.offsets)
        try:
            self.engine = Engine(
                self.graph,
                programs,
                self.resolve,
                place=self._placed,
                judge=Homes(lambda id: config.place_of(id) == "auto"),
            )
        except ProgramError as error:
            raise ConfigError(str(error)) from error
        stack.callback(self.engine.close)

    def _placed(self, program: Program, graph: Graph) -> Program:
        """What stands for a program on a graph with a device.

        Raises:
            NoTwin: it stays on the host.
        """
        if self._config.place_of(program.id) == "host":
            raise NoTwin("its place is the host, by the configuration")
        return twin(program, graph)

    def _usable_kept(self, kept: KeptPrograms, stop: threading.Event) -> dict[str, Spec]:
        """The programs that were kept at run time, but for those whose ids the configuration has by now, and those
        that cannot be made any more: these stay in the list, and are shown as quarantined."""
        usable = {}
        for id, spec in kept.programs.items():
            if id in self.specs:
                log.warning(
                    "program %s was kept at run time; the configuration has one, which takes its place", id
                )
                kept.remove(id)
                continue
            try:
                registry.make_program(spec["name"], id, parameters_of(spec), order=self.index).require_weights(
                    self._config.graph.weights
                )
                kernels.prepare_program(kernels_of(self._config, spec["name"], parameters_of(spec)), stop)
            except ProgramError as error:
                log.error("program %s was kept at run time, and is left out: %s", id, error)
                self.left_out[id] = (spec, str(error))
            else:
                usable[id] = spec
        return usable

    def _empty_graph(self, programs: Sequence[Program], checkpoint: Checkpoint | None) -> Graph:
        """A graph that keeps what these programs need, on the device, too, where there is one that works.

        ``checkpoint``: what it is to be loaded from.

        Raises:
            ConfigError: there is none that works, and the settings insist on it; or a program needs all rows on
                the host, which is not to keep them.
        """
        config = self._config
        kept: dict[str, Any] = {
            "directed": config.graph.directed,
            "weighted": self._weighted,
            "in_edges": any(program.needs_in_edges for program in programs) or self._watches_in_edges,
            "in_weights": any(program.needs_in_edges and program.needs_weights for program in programs),
        }

        def made(*, device: bool, host_rows: Literal["all", "owned"] = "all") -> Graph:
            return Graph(
                **kept,
                negative_weights=config.graph.weights == "any",
                threads=config.compute.thread_count(),
                storage_threads=config.storage.thread_count(),
                device=device,
                host_rows=host_rows,
            )

        if self.card is not None:
            from ..partition import classes, device_side

            arrays = 2 if kept["directed"] and kept["in_edges"] else 1
            extent = _extent(checkpoint, self.card, arrays=arrays, weighted=self._weighted)
            found = host_rows_of(config, programs, extent)
            try:
                device_side.warm_up(**kept)
                graph = made(device=True, host_rows=found.rows)
            except Exception as error:  # the compiler's and the driver's own types
                refused(config.device, f"{type(error).__name__}: {error}")
                self.card = None
            else:
                if graph.owned:
                    classes.warm_up()  # where that was not known before
                self.host_rows = found
                shares = "each row is on one side" if graph.owned else "the host keeps all rows"
                log.info("a device keeps the graph beside the host: %s; %s: %s", self.card, shares, found.reason)
                return graph
        return made(device=False)

    @property
    def _watches_in_edges(self) -> bool:
        """Whether it is asked of every vertex that loses an edge whether it has any."""
        window = self._config.window
        return window.is_on and window.isolated == "delete"

    def _make_window(self) -> Window | None:
        """What has edges expire; the graph is there."""
        window = self._config.window
        isolated = window.isolated == "delete"
        if window.length is not None:
            return TimeWindow(self.graph, _milliseconds(window.length), isolated=isolated)
        if window.count is not None:
            return CountWindow(self.graph, window.count, isolated=isolated)
        return None

    def event_time(self) -> EventTime | None:
        """How far event time has come, where edges expire by it."""
        window = self._config.window
        if window.length is None or not isinstance(self.window, TimeWindow):
            return None
        rules = EventTimeRules(
            length_ms=_milliseconds(window.length),
            lateness_ms=_milliseconds(window.allowed_lateness),
            idle_s=window.idle_timeout,
            ahead_ms=_milliseconds(window.max_future_skew),
        )
        return EventTime(rules, self.window.event)

    def _program(self, name: str, id: str, parameters: dict[str, Any]) -> Program:
        try:
            return registry.make_program(name, id, parameters, order=self.index)
        except ProgramError as error:
            raise ConfigError(f"program {id!r}: {error}") from error

    def _load(self, checkpoint: Checkpoint, programs: Sequence[Program], stop: threading.Event) -> frozenset[str]:
        """Take over graph, index and states; returns the programs whose states were of use.

        Raises:
            kernels.Stopped: ``stop`` was set; a large graph takes minutes.
        """

        def go_on() -> None:
            if stop.is_set():
                raise kernels.Stopped

        started = time.perf_counter()
        checkpoint, self.numbering = well_numbered(checkpoint, self.graph)
        edges = checkpoint.part("graph")
        dead = edges["dead"]
        try:
            self.index.restore(checkpoint.part("index"), dead)
        except OverflowError as error:
            raise ConfigError(
                f"graph.vertices_max is {self._config.graph.vertices_max}, and the graph of the checkpoint in "
                f"'{self._config.checkpoint.path}' needs more: {error}"
            ) from None
        go_on()
        edge_list = EdgeList(edges["keys"], edges.get("weights"))
        n_vertices = checkpoint.facts["n_vertices"]
        require_vertices(self.graph, programs, n_vertices)  # the graph asks for its edges
        if (room := self.room()) is None:
            self.graph.load(edge_list, n_vertices, dead)
        else:
            policy = self._config.partition.policy
            rebalancing.load(self.graph, edge_list, n_vertices, dead, room, policy, len(programs))
        if self.window is not None:
            self.window.restore(checkpoint.facts.get("window"), checkpoint.part("window"))
        if self.keyed is not None:
            self.keyed.restore(checkpoint.part("keyed"))
        restored = set()
        for program in [] if self.numbering["renumbered"] else programs:
            go_on()
            if self._restore(program, checkpoint):
                restored.add(program.id)
        go_on()
        log.info(
            "restored epoch %s (%d edges) in %.1f s",
            checkpoint.epoch,
            self.graph.n_edges,
            time.perf_counter() - started,
        )
        return frozenset(restored)

    def _restore(self, program: Program, checkpoint: Checkpoint) -> bool:
        """Take over the state of a program; False: there is none that is of use."""
        saved, present = checkpoint.programs.get(program.id), self.specs[program.id]
        if saved != present:
            what = "is new" if saved is None else f"was {_shown(saved)} and is now {_shown(present)}"
            log.info("program %s %s: it is computed from scratch", program.id, what)
            return False
        try:
            program.restore(checkpoint.part(f"program/{program.id}"), self.graph)
            require_publishable(program, self.graph.n_vertices)
        except MemoryError:  # to start over would take more
            raise
        except Exception as error:  # of an older version, say: the graph is what counts
            log.warning("program %s: its saved state is of no use and it starts over: %s", program.id, error)
            return False
        return True

    def resolve(self, sources: Sequence[ExternalId]) -> Vertices:
        kind = self._config.graph.vertex_ids
        try:
            ids = id_column(sources, kind)
        except (ValueError, OverflowError) as error:
            shown = reprlib.repr(list(sources))[1:-1]
            raise ProgramError(f"{shown}: no ids of this graph, where graph.vertex_ids = {kind!r}") from error
        return self.index.lookup(ids)

    def external(self, vertices: Sequence[int]) -> list[ExternalId]:
        known = np.array([vertex for vertex in vertices if vertex < self.index.n_vertices], np.uint32)
        ids = self.index.external(known)
        return list(ids.to_list() if isinstance(ids, StringColumn) else ids.tolist())

    def room(self) -> Room | None:
        """What rows hold of the device's memory, and could hold; None: there is none, or the host has all rows."""
        card, device = self.card, self.graph.device
        if card is None or device is None or not self.graph.owned:
            return None
        try:
            return rebalancing.room_of(device, card)
        except Exception as error:  # the driver's own types: it may be here that it tells of a failure
            self.graph.drop_device(f"{type(error).__name__}: {error}")
            return None


def _milliseconds(seconds: float) -> int:
    """A setting as event time has it."""
    return round(seconds * 1000)


def id_column(ids: Sequence[ExternalId], kind: str) -> IdColumn:
    """External ids as the column that the vertex index takes.

    Raises:
        ValueError, OverflowError: one can be no id of this kind.
    """
    if kind == "int":
        if not all(isinstance(id, int) or INTEGER.fullmatch(id) for id in ids):
            raise ValueError("an id is an integer")
        return np.array(list(map(int, ids)), np.int64)
    column = StringColumn.of(map(str, ids))
    if (column.lengths > MAX_STRING_ID_BYTES).any():
        raise ValueError(f"an id has at most {MAX_STRING_ID_BYTES} bytes")
    return column


def kernels_of(config: Config, kind: str, given: Mapping[str, Any]) -> kernels.Needs:
    """What a program that came at run time needs."""
    return replace(kernels.Needs.of(config), programs=[(kind, dict(given))])


def _extent(checkpoint: Checkpoint | None, card: Card, *, arrays: int, weighted: bool) -> Extent:
    """What a checkpoint tells of the graph that is to be, kept in so many arrays, and what a card has for it."""
    entries = None
    if checkpoint is not None and not checkpoint.is_empty:
        entries = arrays * int(checkpoint.part("graph")["keys"].size)
    return Extent(entries, card.memory_bytes if card.limit_bytes is None else card.limit_bytes, weighted)


def _shown(spec: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in spec.items())
