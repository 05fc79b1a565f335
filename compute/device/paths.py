"""Path programs on a CUDA device: the words there, a copy of them on the host, and what changed.

The rules and the columns are those of ``compute/paths``. The host's program is kept beside: the copy is its words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np

from ...gpma.device.module import import_cupy
from ...gpma.edges import Keys, Vertices
from ...gpma.team import Crew
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..paths.mend import UNREACHED
from ..paths.program import PathProgram
from ..program import Answer, Published, Refresh
from ..steps import Steps, alone
from . import fetch
from .path_runs import Limits, PathRun, PathRuns, path_kernels
from .program import DeviceProgram

# Settling is given up, in favour of a fresh start, when it has come to this share of all arcs (and this many),
# with weights and without; without weights also when this share of the reached vertices is lost (and this many).
# On an H200 a search from scratch took as long as to mend with 1.5% of the vertices lost.
SETTLE_SHARE = {True: 0.4, False: 0.125}
SETTLE_LEAST = 4096
LOST_SHARE = 0.015
LOST_LEAST = 1024
_ALL = (1 << 32) - 1


class DevicePathProgram(DeviceProgram):
    """A path program whose words are kept on the device; made from the host's."""

    family: ClassVar[str] = "path"
    needs_in_edges: ClassVar[bool] = True
    has_parents: ClassVar[bool] = True
    by_steps: ClassVar[bool] = True
    value: ClassVar[type[np.uint32] | type[np.float32]]
    host: PathProgram

    def __new__(cls, host: PathProgram) -> DevicePathProgram:
        return super().__new__(_class_for(type(host)))

    def __init__(self, host: PathProgram) -> None:
        super().__init__(host)
        self._runs: PathRuns | None = None
        self._n = self._n_reached = 0

    def compile(self, device: DeviceSide) -> None:
        fetch.warm_up(np.uint64)
        path_kernels(self.host.form).compile(device)

    def warm_up(self, graph: Graph) -> None:
        self.host.warm_up(graph)  # for when the device is lost

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        return alone(self.starting(graph, device))

    def starting(self, graph: Graph, device: DeviceSide) -> Steps[Refresh]:
        """``start``, by steps."""
        n = graph.n_vertices
        words = self.host.words(graph)
        runs = self._runs_on(graph, device)
        run = yield from runs.start(device, self.host.sources_to_start(graph))
        taken = (fetch.take_all(words[at:], piece, UNREACHED, graph.crew) for at, piece in runs.pieces(n))
        self._n, self._n_reached = n, int(sum(taken))
        self.host.note_all_words(graph)
        return Refresh({"word": None}, iterations=run.rounds, edges_read=run.edges, active=self._n_reached)

    def _refreshing(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        if self.host.must_start(change):
            return _over((yield from self.starting(graph, device)))
        before, self._n = self._n, graph.n_vertices
        words = self.host.words(graph)
        sources = self.host.sources_to_reach(graph, change)
        new = np.arange(before, self._n, dtype=np.uint32)
        if not (len(device.report) or sources.size):
            return Refresh({"word": new} if new.size else {})
        runs = self._runs_on(graph, device)
        run = yield from runs.mend(device, sources, self._limits(graph))
        if run.gave_up:
            return _over((yield from self.starting(graph, device)), run.edges)
        changed = self._take(runs, run, words, before, graph.crew)
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

    def _take(self, runs: PathRuns, run: PathRun, words: Keys, before: int, crew: Crew) -> Vertices:
        """Take over what a run changed; the vertices below ``before`` whose words differ."""
        listed = runs.changes(run)
        if listed is None:
            vertices, old = fetch.take_differing(words, runs.read(self._n), crew)
            written = words[vertices]
        else:
            vertices, written = listed
            differs = words[vertices] != written
            vertices, written = vertices[differs], written[differs]
            old = words[vertices]
            words[vertices] = written
        self.host.note_words(vertices, old)
        gained = np.count_nonzero(old == UNREACHED) - np.count_nonzero(written == UNREACHED)
        self._n_reached += int(gained)
        return vertices[vertices < before]

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._n = graph.n_vertices
        words = self.host.words(graph)[: self._n]
        self._runs_on(graph, device).write(words)
        self._n_reached = int(np.count_nonzero(words != UNREACHED))

    def _let_go(self) -> None:
        self._runs = None

    @property
    def runs(self) -> PathRuns:
        """The words on the device; of a program that has run there."""
        assert self._runs is not None
        return self._runs

    def _runs_on(self, graph: Graph, device: DeviceSide) -> PathRuns:
        """The words on the device, with room for the graph's vertices."""
        import_cupy().cuda.Device().use()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = PathRuns(self.host.form, self.host.source_word, device)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs

    def memory_bytes(self) -> int:
        return super().memory_bytes() + (0 if self._runs is None else self._runs.memory_bytes)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        raise NotImplementedError("each class of the host has one of its own here")

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        return PathProgram.parents(published, vertices)


_TAKEN_OVER = ("kind", "summary", "value", "parameters", "needs_weights", "weight_domains", "value_scalars")


@cache
def _class_for(host: type[PathProgram]) -> type[DevicePathProgram]:
    """The class for programs of a class of the host: with what that says of itself."""
    own: dict[str, Any] = {name: getattr(host, name) for name in _TAKEN_OVER if hasattr(host, name)}
    own["read"] = staticmethod(host.read)
    return cast(type[DevicePathProgram], type(f"Device{host.__name__}", (DevicePathProgram,), own))


def _over(fresh: Refresh, edges_read: int = 0) -> Refresh:
    """A run from scratch in the place of one that was to bring up to date, which had read so many edges."""
    return replace(fresh, edges_read=fresh.edges_read + edges_read, started_over=True)
