"""Path programs on a CUDA device: the words there, a copy of them on the host, and what changed.

The rules and the columns are those of ``compute/paths``. The host's program is kept beside: its words are the copy
that is published, saved and audited, and it goes on by itself when the device is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np

from ...gpma.device.module import import_cupy
from ...gpma.edges import HALF, Keys, Vertices
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..paths.mend import NOTHING, UNREACHED
from ..paths.program import PathProgram
from ..program import Answer, Column, Program, Published, Refresh, Violation
from .functor import cuda_text
from .path_runs import Limits, PathRun, PathRuns

# Settling is given up, in favour of a fresh start, when it has come to this share of all arcs (and this many),
# with weights and without; without weights also when this share of the reached vertices is lost (and this many).
# On an H200 a search from scratch took as long as to mend with 1.5% of the vertices lost.
SETTLE_SHARE = {True: 0.4, False: 0.125}
SETTLE_LEAST = 4096
LOST_SHARE = 0.015
LOST_LEAST = 1024
_ALL = (1 << 32) - 1


class DevicePathProgram(Program):
    """A path program whose words are kept on the device; made from the host's, which must not be used any more.

    Where the graph has no device any more, or its memory does not suffice, it goes on on the host in the same run.
    """

    family: ClassVar[str] = "path"
    needs_in_edges: ClassVar[bool] = True
    has_parents: ClassVar[bool] = True
    value: ClassVar[type[np.uint32] | type[np.float32]]

    def __new__(cls, host: PathProgram) -> DevicePathProgram:
        return super().__new__(_class_for(type(host)))

    def __init__(self, host: PathProgram) -> None:
        """``host``: as it was made, or with a state.

        Raises:
            Unprintable: its functions cannot be compiled for the device.
        """
        super().__init__(host.id)
        self.sources = host.sources
        self.host = host
        self._text = cuda_text(host.form)
        self._runs: PathRuns | None = None
        self._device: DeviceSide | None = None
        self._is_home = False
        # How many vertices have words, of which so many are reached; whether the device has these words.
        self._n = int(host.state()["word"].size)
        self._n_reached = 0
        self._is_there = False

    @property
    def on_device(self) -> bool:
        """Whether the words are kept on the device, as far as is known."""
        return not self._is_home

    def bind(self, sources: Vertices) -> None:
        self.host.bind(sources)

    def compile(self, graph: Graph) -> None:
        """Have the kernels compiled for the graph's device, or loaded from CuPy's cache.

        Raises:
            Exception: what a compiler or the card says.
        """
        if graph.device is not None:
            self._runs_on(graph, graph.device).compile()

    def warm_up(self, graph: Graph) -> None:
        self.host.warm_up(graph)  # for when the device is lost

    # -- runs -------------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        device = self._device_of(graph)
        if device is None:
            return self.host.start(graph)
        try:
            return self._start(graph, device)
        except Exception as error:  # whatever CuPy or the card says
            return self._go_home(graph, error)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._is_home:
            return self.host.refresh(graph, change)
        device = self._device_of(graph)
        if device is None:  # since the last run
            return _over(self.host.start(graph))
        try:
            if self.host.must_start(change):
                return _over(self._start(graph, device))
            return self._refresh(graph, device, change)
        except Exception as error:
            return self._go_home(graph, error)

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        n = graph.n_vertices
        words = self.host.words(graph)
        runs = self._runs_on(graph, device)
        run = runs.start(device, self.host.sources_to_start(graph))
        words[:n] = runs.read(n)
        self._n, self._n_reached, self._is_there = n, _count_reached(words[:n]), True
        return Refresh({"word": None}, iterations=run.rounds, edges_read=run.edges, active=self._n_reached)

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        before, self._n = self._n, graph.n_vertices
        words = self.host.words(graph)
        runs = self._runs_on(graph, device)
        if not self._is_there:
            runs.write(words[:before])
            self._n_reached, self._is_there = _count_reached(words[:before]), True
        sources = self.host.sources_to_reach(graph, change)
        new = np.arange(before, self._n, dtype=np.uint32)
        if not (len(device.report) or sources.size):
            return Refresh({"word": new} if new.size else {})
        run = runs.mend(device, sources, self._limits(graph))
        if run.gave_up:
            return _over(self._start(graph, device), run.edges)
        changed = self._take(runs, run, words, before)
        found = np.concatenate([changed, new]) if new.size else changed
        return Refresh(
            {"word": found} if found.size else {},
            iterations=run.rounds,
            edges_read=run.edges,
            active=run.logged,
        )

    def _limits(self, graph: Graph) -> Limits:
        weighted = self.host.needs_weights
        edges = max(SETTLE_LEAST, int(SETTLE_SHARE[weighted] * graph.n_arcs))
        return Limits(_ALL if weighted else max(LOST_LEAST, int(LOST_SHARE * self._n_reached)), edges)

    def _take(self, runs: PathRuns, run: PathRun, words: Keys, before: int) -> Vertices:
        """Take over what a run changed; the vertices below ``before`` whose words differ."""
        listed = runs.changes(run)
        if listed is None:
            written = runs.read(self._n)
            vertices = np.flatnonzero(written != words[: self._n]).astype(np.uint32)
            written = written[vertices]
        else:
            vertices, written = listed
            differs = words[vertices] != written
            vertices, written = vertices[differs], written[differs]
        old = words[vertices]
        words[vertices] = written
        gained = np.count_nonzero(old == UNREACHED) - np.count_nonzero(written == UNREACHED)
        self._n_reached += int(gained)
        return vertices[vertices < before]

    def _runs_on(self, graph: Graph, device: DeviceSide) -> PathRuns:
        """What keeps the words on the device, with room for the graph's vertices."""
        import_cupy().cuda.Device().use()  # for the thread that runs programs now
        if self._runs is None or self._device is not device:
            weighted = self.host.needs_weights
            self._runs = PathRuns(self._text, self.host.source_word, device, weighted=weighted)
            self._device, self._is_there = device, False
        self._runs.make_room(graph.n_vertices, device.out.n_edges)
        return self._runs

    def _device_of(self, graph: Graph) -> DeviceSide | None:
        """The graph's device, if it has one; else this program is on the host from now on."""
        if graph.device is None:
            self._leave()
        return None if self._is_home else graph.device

    def _go_home(self, graph: Graph, error: Exception) -> Refresh:
        """Go on on the host, from scratch: without memory this one alone; a device that failed is lost to all."""
        if not isinstance(error, MemoryError):
            graph.drop_device(f"{type(error).__name__}: {error}")
        self._leave()
        return _over(self.host.start(graph))

    def _leave(self) -> None:
        self._is_home, self._runs, self._device = True, None, None

    # -- what is published, saved and proven is the copy on the host -------------------------------------------

    def columns(self) -> dict[str, Column]:
        return self.host.columns()

    def state(self) -> dict[str, Column]:
        return self.host.state()

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        self.host.restore(state, graph)
        self._n, self._is_there = graph.n_vertices, False

    def memory_bytes(self) -> int:
        return self.host.memory_bytes()

    def device_bytes(self) -> int:
        """Bytes held on the device."""
        return 0 if self._runs is None else self._runs.memory_bytes()

    def audit(self, graph: Graph) -> list[Violation]:
        return self.host.audit(graph)

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        return self.host.audit_slice(graph, begin, end)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        return self.host.audit_whole(graph)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        raise NotImplementedError("each class of the host has one of its own here")

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        return PathProgram.parents(published, vertices)


_TAKEN_OVER = ("kind", "summary", "value", "parameters", "needs_weights", "weight_domains")


@cache
def _class_for(host: type[PathProgram]) -> type[DevicePathProgram]:
    """The class for programs of a class of the host: with what that says of itself."""
    own: dict[str, Any] = {name: getattr(host, name) for name in _TAKEN_OVER}
    own["read"] = staticmethod(host.read)
    return cast(type[DevicePathProgram], type(f"Device{host.__name__}", (DevicePathProgram,), own))


def _count_reached(words: Keys) -> int:
    return int(np.count_nonzero(words >> HALF != NOTHING))


def _over(fresh: Refresh, edges_read: int = 0) -> Refresh:
    """A run from scratch in the place of one that was to bring up to date, which had read so many edges."""
    return Refresh(
        fresh.changed,
        iterations=fresh.iterations,
        edges_read=fresh.edges_read + edges_read,
        active=fresh.active,
        started_over=True,
    )
