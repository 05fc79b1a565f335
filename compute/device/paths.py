"""Path programs on a CUDA device: the words there, a copy of them on the host, and what changed.

The rules and the columns are those of ``compute/paths``. The host's program is kept beside: the copy is its words.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from ...gpma.device.module import use_device
from ...gpma.edges import Keys, Vertices
from ...gpma.team import Crew
from ...partition.device_side import DeviceSide
from ...partition.graph import Graph, GraphChange
from ..paths.mend import UNREACHED
from ..paths.program import PathProgram
from ..program import Refresh
from ..steps import Steps, alone
from . import fetch, taking
from .path_runs import Behind, Limits, PathRun, PathRuns, path_kernels
from .program import DeviceProgram

# Settling is given up, in favour of a fresh start, when it has come to this share of all arcs (and this many),
# with weights and without; without weights also when this share of the reached vertices is lost (and this many).
# On an H200 a search from scratch took as long as to mend with 1.5% of the vertices lost.
SETTLE_SHARE = {True: 0.4, False: 0.125}
SETTLE_LEAST = 4096
LOST_SHARE = 0.015
LOST_LEAST = 1024
_ALL = (1 << 32) - 1
_NONE = np.empty(0, np.uint32)


class _Due(NamedTuple):
    """What a refresh has to do: ``n_before`` vertices there were, the host's words, sources to reach; ``is_some``:
    a batch or sources, and not just vertices."""

    n_before: int
    words: Keys
    sources: Vertices
    is_some: bool


class _Written(NamedTuple):
    """Vertices, each once, whose words became others, and what these were, good until the next run."""

    vertices: Vertices
    old: Keys


_NOTHING_WRITTEN = _Written(_NONE, np.empty(0, np.uint64))


class DevicePathProgram(DeviceProgram):
    """A path program whose words are kept on the device; made from the host's."""

    by_steps: ClassVar[bool] = True
    host: PathProgram

    def __new__(cls, host: PathProgram) -> DevicePathProgram:
        return super().__new__(_class_for(type(host)))

    def __init__(self, host: PathProgram) -> None:
        super().__init__(host)
        self._runs: PathRuns | None = None
        self._n = self._n_reached = 0
        self.in_two_runs = False
        """Whether the last refresh took a run behind the batch, and another after that, which logged what it did
        itself."""

    def compile(self, device: DeviceSide) -> None:
        fetch.warm_up(np.uint64)
        taking.warm_up()
        path_kernels(self.host.form).compile(device)

    # -- runs -------------------------------------------------------------------------------------------------

    def _start(self, graph: Graph, device: DeviceSide) -> Refresh:
        return alone(self.starting(graph, device))

    def starting(self, graph: Graph, device: DeviceSide) -> Steps[Refresh]:
        """``start``, by steps."""
        n = graph.n_vertices
        self.in_two_runs = False
        words = self.host.words(graph)
        runs = self._runs_on(graph, device)
        run = yield from runs.start(device, self.host.sources_to_start(graph))
        taken = (fetch.take_all(words[at:], piece, UNREACHED, graph.crew) for at, piece in runs.pieces(n))
        self._n, self._n_reached = n, int(sum(taken))
        self.host.note_all_words(graph)
        return Refresh({"word": None}, iterations=run.rounds, edges_read=run.edges, active=self._n_reached)

    def _refresh(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Refresh:
        return self.refreshed(graph, device, change)

    def refreshed(
        self, graph: Graph, device: DeviceSide, change: GraphChange, behind: Behind | None = None
    ) -> Refresh:
        """``refresh``, with what comes behind its kernel on the device (``PathRuns.mend_at_once``)."""
        if self.host.must_start(change):
            return _over(self._start(graph, device))
        due = self._due(graph, device, change)
        if not due.is_some:
            return Refresh(self._changed(due, _NONE))
        runs = self._runs_on(graph, device)
        early = self._early(runs, device, due, graph.crew)
        if early is None:
            return _over(self._start(graph, device))
        run = runs.mend_at_once(device, due.sources, self._limits(device), due.words, behind)
        if run.gave_up:
            return _over(self._start(graph, device), run.edges)
        return self._mended(graph, due, run, early)

    def _refreshing(self, graph: Graph, device: DeviceSide, change: GraphChange) -> Steps[Refresh]:
        if self.host.must_start(change):
            return _over((yield from self.starting(graph, device)))
        due = self._due(graph, device, change)
        if not due.is_some:
            return Refresh(self._changed(due, _NONE))
        runs = self._runs_on(graph, device)
        early = self._early(runs, device, due, graph.crew)
        if early is None:
            return _over((yield from self.starting(graph, device)))
        run = yield from runs.mend(device, due.sources, self._limits(device), due.words)
        if run.gave_up:
            return _over((yield from self.starting(graph, device)), run.edges)
        return self._mended(graph, due, run, early)

    def _due(self, graph: Graph, device: DeviceSide, change: GraphChange) -> _Due:
        before, self._n = self._n, graph.n_vertices
        self.in_two_runs = False
        words = self.host.words(graph)
        sources = self.host.sources_to_reach(graph, change)
        return _Due(before, words, sources, is_some=bool(sources.size or len(device.report)))

    def _early(self, runs: PathRuns, device: DeviceSide, due: _Due, crew: Crew) -> _Written | None:
        """Take over what a run behind the batch wrote where more is to be done, such as to reach sources; None: it
        gave up."""
        run = runs.ended_behind(device, due.sources, due.words)
        if run is None:
            return _NOTHING_WRITTEN
        if run.gave_up:
            return None
        self.in_two_runs = True
        vertices, old = self._take(runs, run, due, crew)
        return _Written(vertices, old.copy())

    def _mended(self, graph: Graph, due: _Due, run: PathRun, early: _Written) -> Refresh:
        vertices, _ = self._take(self.runs, run, due, graph.crew)
        if early.vertices.size:
            before = early.vertices[due.words[early.vertices] != early.old]
            vertices = np.concatenate([before, np.setdiff1d(vertices, early.vertices)])
        changed = self._changed(due, vertices)
        return Refresh(changed, iterations=run.rounds, edges_read=run.edges, active=run.logged)

    def _changed(self, due: _Due, vertices: Vertices) -> dict[str, Vertices | None]:
        """That these vertices have another word, and those that are new."""
        if self._n > due.n_before:
            vertices = np.concatenate([vertices, np.arange(due.n_before, self._n, dtype=np.uint32)])
        return {"word": vertices} if vertices.size else {}

    def _limits(self, device: DeviceSide) -> Limits:
        weighted = self.host.needs_weights
        edges = max(SETTLE_LEAST, int(SETTLE_SHARE[weighted] * device.n_arcs))
        return Limits(_ALL if weighted else max(LOST_LEAST, int(LOST_SHARE * self._n_reached)), edges)

    def _take(self, runs: PathRuns, run: PathRun, due: _Due, crew: Crew) -> _Written:
        """Take over what a run changed, as far as its call has not; the vertices of before whose words differ."""
        taken, words = runs.taken(run), due.words
        if taken is None:
            vertices, old, gained = runs.take(run, words, self._n, crew)
        else:
            vertices, old = taken, runs.were(run)
            gained = run.n_were_unreached - run.n_are_unreached
        if not vertices.size:
            return _NOTHING_WRITTEN
        self.host.note_words(vertices, old)
        self._n_reached += gained
        if self._n == due.n_before:
            return _Written(vertices, old)
        is_of_before = vertices < due.n_before
        return _Written(vertices[is_of_before], old[is_of_before])

    def _take_over(self, graph: Graph, device: DeviceSide) -> None:
        self._n = graph.n_vertices
        words = self.host.words(graph)[: self._n]
        self._runs_on(graph, device).write(words)
        self._n_reached = int(np.count_nonzero(words != UNREACHED))

    def _let_go(self) -> None:
        if self._runs is not None:
            with suppress(RuntimeError):  # what it raises of the device has been heard of, or will be
                self._runs.let_end()
        self._runs = None

    @property
    def runs(self) -> PathRuns:
        """The words on the device; of a program that has run there."""
        assert self._runs is not None
        return self._runs

    def _runs_on(self, graph: Graph, device: DeviceSide) -> PathRuns:
        """The words on the device, with room for the graph's vertices."""
        use_device()  # for the thread that runs programs now
        if self._runs is None:
            self._runs = PathRuns(self.host.form, self.host.source_word, device)
        self._runs.make_room(graph.n_vertices, device.n_arcs)
        return self._runs


@cache
def _class_for(host: type[PathProgram]) -> type[DevicePathProgram]:
    """The class for programs of a class of the host."""
    made: Any = type(f"Device{host.__name__}", (DevicePathProgram,), {}, of=host)
    return cast(type[DevicePathProgram], made)


def _over(fresh: Refresh, edges_read: int = 0) -> Refresh:
    """A run from scratch in the place of one that was to bring up to date, which had read so many edges."""
    return replace(fresh, edges_read=fresh.edges_read + edges_read, started_over=True)
