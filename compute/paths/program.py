"""Path programs: the best value over all paths from a source, and a parent on the way, kept true under changes.

A program says with two functions what an edge offers and which value is better (``Functors``); this module owns
everything else. After a change only dependants are touched, in the manner of Ramalingam and Reps ("An incremental
algorithm for a generalization of the shortest-path problem", 1996), and most updates are recognised as safe in
O(1) (Feng et al., "RisGraph", SIGMOD 2021):

1. classify: which deleted or changed edges supported their head, which new ones improve theirs.
2. settle (``loss.py``): heads that lost their support adopt another in-neighbour that offers exactly their
   value, or lose it; whoever loses it passes the question on to its children. Only when this has ended everywhere
   do those that lost theirs take the best that their in-neighbours offer, and gain by each other.
3. relax: the new edges that still improve their heads.
4. push: what improved is pushed on, best value first, so that each vertex is pushed about once.

Values only ever improve strictly after that, and an adopted parent never depends on its child, so parents
form a forest, and after any history the values are those of a fresh start, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ...gpma.edges import HALF, LOW, NO_VERTEX, Keys, Vertices, distinct
from ...gpma.team import Crew
from ...gpma.written import Written
from ...partition.changes import Report, no_change
from ...partition.graph import Graph, GraphChange
from ..hopeless import Hopeless
from ..pieces import pieces_of
from ..program import (
    Answer,
    Column,
    ExternalId,
    Parameter,
    Program,
    ProgramError,
    Published,
    Refresh,
    Violation,
    grown,
    parse_sources,
    size_violations,
)
from . import audit as path_audit
from . import loss as path_loss
from . import search as path_search
from . import spread as path_spread
from .form import Form, Functors, check, kernels_of, source_value
from .mend import PARENT, UNREACHED, new_log
from .refresh import HELD, NOBODY_ASKS, Held
from .templates import digest

_PACKAGE = __name__.partition(".")[0]

_NONE = np.empty(0, np.uint32)
_NO_EDGES = Report.of(no_change(weighted=False))

# Settling is given up, in favour of a fresh start, when it has read this share of all arcs, with weights and
# without (and this floor). A refresh that goes on costs as much as a fresh start at shares of 0.6 (SSSP), 0.9
# (SSWP) and 0.2 (BFS; benchmarks/paths.py --crossover, RMAT scale 18); what was done until then is lost.
SETTLE_SHARE = {True: 0.6, False: 0.125}
_SETTLE_FLOOR = 4096
# Where so many were given up in a row, changes about as large start over at once, from so many losses on.
_HOPELESS_TRIES = 3
_HOPELESS_FLOOR = 1024
# Work space for what is not safe of so many updates is kept; pages of it that are never written take no memory.
_FOUND = 1 << 16
# A push of more vertices at a time than the first number goes in steps, which threads share, of so many edges at
# least. After a change most of those that improve improve nobody, and order matters little; from scratch it does.
# Where steps have shown that it does, only a push of more vertices than the third number goes in steps.
_STEPS, _STEPS_FROM_SCRATCH = (512, 1 << 17, 8192), (8192, 8192, 8192)

SOURCE = Parameter("source", "vertex to start from, or a list of them", parse_sources)


class PathProgram(Program):
    """The best value over all paths from a source. Column ``word``: uint64, ``value bits << 32 | parent``.

    A program is a subclass that sets the class attributes and says its ``functors``. Without weights
    (``needs_weights``) its gather must do without them too. ``value``: ``np.uint32`` or ``np.float32``;
    ``at_source``: the value of a source. Parameters of its own follow ``SOURCE`` in ``parameters`` and reach
    ``functors`` by name; ``form`` holds what came of them, for whoever compiles them for another processor.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (SOURCE,)
    family: ClassVar[str] = "path"
    needs_in_edges: ClassVar[bool] = True
    has_parents: ClassVar[bool] = True
    value_scalars: ClassVar[tuple[str, ...] | None] = ()
    value: ClassVar[type[np.uint32] | type[np.float32]]
    at_source: ClassVar[float]

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        """The program's own functions, for these parameters; they may capture them."""
        raise ProgramError("the class has no method functors; it must return Functors(gather, better)")

    def __init__(self, id: str, source: tuple[ExternalId, ...], **parameters: Any) -> None:
        super().__init__(id)
        self.sources = source
        at_source = source_value(getattr(self, "value", None), getattr(self, "at_source", None))
        functors = self.functors(**parameters)
        check(functors, at_source, weighted=self.needs_weights, negative="any" in self.weight_domains)
        self.form = Form.of(functors, self.value, weighted=self.needs_weights)
        self._kernels = kernels_of(self.form)
        functions = self.form.functors.gather, self.form.functors.better
        self._made_by = _maker(functions, self.value, at_source)
        publishing = (getattr(type(self), name) for name in ("columns", "scalars", "start", "refresh"))
        self._is_published_here = all(_any_of_ours(method.__module__) == _PACKAGE for method in publishing)
        self._source_word = np.uint64(int(at_source.view(np.uint32)) << 32) | LOW  # without a parent
        self._hopeless = Hopeless(_HOPELESS_TRIES, _HOPELESS_FLOOR)
        self._bound, self._last_bound = np.empty(0, np.uint32), 0
        self._source_moved = False
        # A source may be without its word until the next run.
        self._source_waits = True
        self._n = 0
        self._word = np.empty(0, np.uint64)
        self._loss_room = self._loss_threads = 0
        self._loss = path_loss.new_loss(0, 0)
        self._piles = path_spread.new_piles(self._loss, 0, 0)
        # Entries at hand; without weights also vertices in the order in which they were reached.
        self._entries = np.empty(0, np.uint64)
        self._queue = np.empty(0, np.uint32)
        self._role = np.zeros(0, np.uint8)
        self._log = new_log()
        self._take_room(_FOUND)
        # All that as kernels take it, and the threads with which it is written there; None: it is to be written.
        self._held = Written(HELD)
        self._crew: Crew | None = None

    def bind(self, sources: Vertices) -> None:
        known = distinct(sources[sources != NO_VERTEX]).astype(np.uint32)
        # A source that is one no longer would keep its word.
        self._source_moved |= not np.isin(self._bound, known).all()
        self._bound, self._last_bound = known, int(known.max(initial=0))
        self._source_waits = True

    def warm_up(self, graph: Graph) -> None:
        self.start(graph)

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        n = graph.n_vertices
        self._add_vertices(graph)
        sources = self.sources_to_start(graph)
        crew = graph.crew
        # A run that was broken off may have left entries that the log does not count: columns are cleared whole.
        self._log.counted[0] = 0
        if self._kernels.search is not None:
            sweep = path_search.new_sweep(n, crew.threads)
            levels, edges, reached = self._kernels.search(
                self._word,
                self._role,
                self._log.listed,
                sources,
                self._source_word,
                graph.out_rows(),
                graph.in_rows(),
                n,
                graph.n_arcs,
                self._queue,
                sweep,
                crew,
            )
            self.note_search(graph, sweep.found[: levels + 1])
            return Refresh({"word": None}, iterations=levels, edges_read=edges, active=reached)
        path_search.clear(self._word, self._role, self._log.listed, self._word.size, crew)
        _, _, edges, rounds, written, _ = self._mend(graph, sources, _NO_EDGES)
        self.note_all_words(graph)
        return Refresh({"word": None}, iterations=rounds, edges_read=edges, active=written)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._source_moved or (change.deleted_vertices.size and self._source_died(change)):
            return self._start_over(graph, 0)
        before = self._n
        if graph.n_vertices != before or graph.crew is not self._crew:
            self._add_vertices(graph)
        is_new = change.n_vertices_before <= self._last_bound < change.n_vertices
        waits = self._source_waits or is_new or change.revived_vertices.size
        sources = self.sources_to_reach(graph, change) if waits else _NONE
        n_taking, n_lost, edges, rounds, written, listed = self._mend(graph, sources, change.report, before)
        if n_taking:
            if n_taking >= self._hopeless.from_size and self._hopeless.is_one(n_taking):
                return self._start_over(graph, 0)
            if n_lost < 0:
                self._hopeless.gave_up(n_taking)
                return self._start_over(graph, edges)
            self._hopeless.went_on()
        if written:
            self.note_words(self._log.vertices[:written], self._log.old[:written])
        changed = {"word": self._loss.adopted[:listed].copy()} if listed else {}
        return Refresh(changed, rounds, edges, written)

    def _mend(
        self, graph: Graph, sources: Vertices, report: Report, before: int = NOBODY_ASKS
    ) -> tuple[int, int, int, int, int, int]:
        """All that follows from sources that may be new and from updates: (those that took support, vertices
        lost, edges read, rounds, words written, vertices listed, in ``_loss.adopted``, since ``before``).

        -1 lost: starting over is cheaper. So it is where as many took support as is hopeless.
        """
        n_inserted, n_overwritten, n_deleted, _ = report.totals
        # All of these might improve something, or take support.
        n_found = n_inserted + 2 * n_overwritten + n_deleted
        if n_found > _FOUND:
            self._take_room(n_found)
        # An epoch may improve one vertex many times: there can be more entries than vertices.
        room = self._n + sources.size + n_inserted + n_overwritten
        if room > self._entries.size or self._crew is not graph.crew:
            self._entries = grown(self._entries, room)
            self._hold(graph.crew)
        out, in_ = graph.row_words()
        done: tuple[int, int, int, int, int, int] = self._kernels.refresh(
            self._held.words,
            out,
            in_,
            sources,
            report.changed(),
            pieces_of(max(n_inserted, n_overwritten, n_deleted)),
            before,
            self._n,
            self._hopeless.from_size,
            _STEPS_FROM_SCRATCH if before == NOBODY_ASKS else _STEPS,
            max(_SETTLE_FLOOR, int(SETTLE_SHARE[self.needs_weights] * graph.n_arcs)),
        )
        if n_found > _FOUND:  # the large one is given back at once, and not at the next run
            self._take_room(_FOUND)
            self._hold(graph.crew)
        return done

    def _take_room(self, n_found: int) -> None:
        """Have room for so many updates that are not safe."""
        self._found = np.empty(n_found, np.uint64)
        self._found_weights = np.empty(n_found if self.needs_weights else 0, np.float32)
        self._crew = None

    def _start_over(self, graph: Graph, edges_read: int) -> Refresh:
        fresh = self.start(graph)
        return Refresh(
            fresh.changed,
            iterations=fresh.iterations,
            edges_read=fresh.edges_read + edges_read,
            active=fresh.active,
            started_over=True,
        )

    def _living_sources(self, graph: Graph) -> Vertices:
        sources = self._bound[self._bound < self._n]
        return sources[graph.alive[sources]]

    def _source_died(self, change: GraphChange) -> bool:
        dead = change.deleted_vertices
        return dead.size > 0 and bool(np.isin(self._bound, dead).any())

    # -- what another processor needs that keeps the words (compute/device/paths.py) ----------------------

    @property
    def source_word(self) -> np.uint64:
        """The word of a source."""
        return self._source_word

    def words(self, graph: Graph) -> Keys:
        """The words in place, with room for the graph's vertices; new ones are unreached."""
        self._add_vertices(graph)
        return self._word

    def must_start(self, change: GraphChange) -> bool:
        """Whether a source is one no longer, so that words from before the change are void."""
        return self._source_moved or self._source_died(change)

    def sources_to_start(self, graph: Graph) -> Vertices:
        """The sources of a run from scratch, which is then thought to be made."""
        self._source_moved = self._source_waits = False
        return self._living_sources(graph)

    def sources_to_reach(self, graph: Graph, change: GraphChange) -> Vertices:
        """The sources that may be without their word, which are then thought to get it."""
        is_new = change.n_vertices_before <= self._last_bound < change.n_vertices
        born = is_new or change.revived_vertices.size > 0
        waits, self._source_waits = self._source_waits or born, False
        return self._living_sources(graph) if waits else _NONE

    def require_publishable(self, changed: Mapping[str, Vertices | None], n: int) -> None:
        """Columns, and what is said to have changed, are kernels' own, unless a subclass publishes otherwise."""
        if not self._is_published_here:
            super().require_publishable(changed, n)

    # -- what follows from the words ----------------------------------------------------------------------

    def note_all_words(self, graph: Graph) -> None:
        """Any word may be another: set anew what the program keeps besides."""

    def note_search(self, graph: Graph, found: Vertices) -> None:
        """The same, after a search by levels that found so many vertices (uint32) on each; on the last maybe 0."""
        self.note_all_words(graph)

    def note_words(self, vertices: Vertices, old: Keys) -> None:
        """Bring up to date what the program keeps besides: these vertices, each once, had ``old`` words before."""

    # -- state ------------------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        return {"word": self._word}

    def state(self) -> dict[str, Column]:
        return {"word": self._word[: self._n], "made_by": self._made_by}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        word, made_by = state["word"], state["made_by"]
        if not np.array_equal(made_by, self._made_by):
            raise ValueError("saved words: other functions made them than the program has now")
        if word.dtype != np.uint64 or word.shape != (graph.n_vertices,):
            raise ValueError(f"saved words: {word.dtype}{word.shape}, expected uint64({graph.n_vertices},)")
        self._n = 0
        self._add_vertices(graph)
        self._word[: self._n] = word
        parents = word.astype(np.uint32)
        self._role[parents[parents != NO_VERTEX]] = PARENT
        # What the words start from. Where ``bind`` then leaves one of these out, they are void.
        self._bound = np.flatnonzero(word == self._source_word).astype(np.uint32)
        self._last_bound = int(self._bound.max(initial=0))
        self._source_waits = True
        self.note_all_words(graph)

    def memory_bytes(self) -> int:
        log = self._log
        held: list[Column] = [
            self._word,
            self._queue,
            self._role,
            self._entries,
            *self._loss,
            self._piles.is_near,
            self._piles.is_far,
            log.listed,
            log.vertices,
            log.old,
        ]
        return sum(column.nbytes for column in held)

    @classmethod
    def read(cls, published: Published, vertices: Vertices) -> Answer:
        bits = (published.columns["word"][vertices] >> HALF).astype(np.uint32)
        return Answer(bits.view(cls.value), bits == NO_VERTEX)

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        return published.columns["word"][vertices].astype(np.uint32)

    # -- the audit --------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Check the vertices begin .. end - 1 against their in-edges: (violations, edges read).

        All slices together and ``audit_whole`` prove the state.
        """
        if missed := size_violations(self._n, graph):
            return missed, 0
        is_source = np.zeros(end - begin, bool)
        sources = self._living_sources(graph)
        is_source[sources[(sources >= begin) & (sources < end)] - begin] = True
        broken = np.zeros(len(path_audit.RULES), np.int64)
        evidence = np.empty((broken.size, path_audit.EVIDENCE), np.uint32)
        edges = self._kernels.audit(
            self._word,
            graph.rows_between("in", begin, end),
            begin,
            end,
            self._n,
            is_source,
            self._source_word,
            broken,
            evidence,
        )
        found = [
            Violation(rule, f"{count} vertices: {detail}", tuple(evidence[k, :count].tolist()))
            for k, ((rule, detail), count) in enumerate(zip(path_audit.RULES, broken.tolist(), strict=True))
            if count
        ]
        return found, int(edges)

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        """Check that parents lead to roots: what no look at single edges can see. O(vertices)."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        return super().audit_whole(graph)

    # -- inside -----------------------------------------------------------------------------------------

    def _add_vertices(self, graph: Graph) -> None:
        """Make room for the graph's vertices; those that are new are unreached."""
        n_vertices, crew = graph.n_vertices, graph.crew
        if crew.threads > self._loss_threads:
            self._make_room(self._loss_room, crew.threads)
        if n_vertices > self._word.size:
            # The words last: they tell how large all columns are, also after a call that ran out of memory.
            word = grown(self._word, n_vertices)
            self._crew = None
            self._entries = grown(self._entries, word.size + word.size // 4)
            if not self.needs_weights:
                self._queue = grown(self._queue, word.size)
            if word.size > self._loss_room:
                # Work space, of which what is never written costs nothing: seldom made anew.
                self._make_room(2 * word.size, self._loss_threads)
            self._role = grown(self._role, word.size, 0)
            log = self._log
            self._log = log._replace(
                listed=grown(log.listed, word.size, 0),
                vertices=grown(log.vertices, word.size + 1),
                old=grown(log.old, word.size + 1),
            )
            self._word = word
        if n_vertices != self._n:
            self._word[self._n : n_vertices] = UNREACHED
            self._n = n_vertices

    def _make_room(self, n: int, threads: int) -> None:
        """Have work space for so many vertices and threads."""
        self._loss = path_loss.new_loss(n, threads)
        self._piles = path_spread.new_piles(self._loss, n if self.needs_weights else 0, threads)
        self._loss_room, self._loss_threads = n, threads
        self._crew = None

    def _hold(self, crew: Crew) -> None:
        """Write down what is held for kernels, which go on with these threads."""
        self._held.write(self._record(crew))
        self._crew = crew

    def _record(self, crew: Crew) -> Held:
        work = self._loss, self._entries, self._queue, self._piles
        return Held(
            self._word, self._role, self._log, *work, self._source_word, self._found, self._found_weights, crew
        )


def _maker(functions: Iterable[Callable[..., Any]], value: type, at_source: Any) -> Column:
    """Whoever makes words, as 32 bytes: functions may be edited between a checkpoint and its restart."""
    whole = " ".join(
        [*(digest(function, _any_of_ours) for function in functions), value.__name__, repr(at_source)]
    )
    return np.frombuffer(hashlib.sha256(whole.encode()).digest(), np.uint8)


def _any_of_ours(module: str) -> str:
    """The package alone for modules of graphtide: what a function computes does not change when it moves."""
    return _PACKAGE if module.partition(".")[0] == _PACKAGE else module
