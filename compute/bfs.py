"""Breadth-first search: the fewest edges from the nearest source, and a parent, kept true under changes.

State is one word per vertex, ``hops << 32 | parent``; all ones means unreached, and a source has no hops and
no parent. Hops and parent therefore always change together.

From scratch the search is level-synchronous and direction-optimising (Beamer, Asanovic, Patterson,
"Direction-Optimizing Breadth-First Search", SC 2012). After a change only dependants are touched, in the
manner of Ramalingam and Reps ("An incremental algorithm for a generalization of the shortest-path problem",
1996), and most updates are recognised as safe in O(1) (Feng et al., "RisGraph", SIGMOD 2021):

1. trim: heads of deleted parent edges, by ascending hops, adopt an in-neighbour one level up or lose their
   value; whoever loses it passes the question on to its children. Nothing else happens before this ends.
2. pull: vertices without a value take the best that their in-neighbours offer.
3. relax: inserted edges that improve their heads.
4. push: what improved is pushed on, by ascending hops, so that each vertex is pushed once.

An adopted parent is one level nearer to the source, so it never is a descendant; every parent edge leads
exactly one level down, so parents form a forest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..gpma.edges import NO_VERTEX, Keys, Vertices
from ..gpma.rows import first_slot
from ..partition.graph import Graph, GraphChange
from .forest_audit import vertices_without_root
from .program import (
    Answer,
    Column,
    ExternalId,
    Parameter,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
)

UNREACHED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
SOURCE_WORD = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)
_ONE = np.uint64(1)

# Beamer et al.: pull when the frontier's edges exceed a share of those unexplored; push again when it shrank.
_PULL_SHARE = 15
_PUSH_SHARE = 18
# Trimming is given up, in favour of a fresh start, past this share of all arcs (and this floor).
_TRIM_SHARE = 8
_TRIM_FLOOR = 4096
# How many vertices a violation names.
_EVIDENCE = 5


class _Log(NamedTuple):
    """The vertices whose word was written since the run began, each once, with the word before.

    ``stamp`` uint32[cap] (equal to ``run``: listed), ``vertices`` uint32[cap], ``old`` uint64[cap],
    ``counted`` int64[1].
    """

    stamp: npt.NDArray[np.uint32]
    vertices: Vertices
    old: Keys
    counted: npt.NDArray[np.int64]
    run: int


_jit = nb.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def _set(word, log, v, value):  # type: ignore[no-untyped-def]
    if np.int64(log.stamp[v]) != log.run:
        log.stamp[v] = log.run
        k = log.counted[0]
        log.vertices[k] = v
        log.old[k] = word[v]
        log.counted[0] = k + 1
    word[v] = value


@_jit
def _classify(word, deleted, inserted, lost):  # type: ignore[no-untyped-def]
    """The safe updates in one pass: (heads of deleted parent edges, written to ``lost`` as hops << 32 | head;
    inserted edges that improve their head as things stand)."""
    n_lost = 0
    for i in range(deleted.size):
        head = deleted[i] & _LOW
        at_head = word[head]
        if at_head != UNREACHED and (at_head & _LOW) == deleted[i] >> _HALF:
            lost[n_lost] = ((at_head >> _HALF) << _HALF) | head
            n_lost += 1
    n_better = 0
    for i in range(inserted.size):
        hops = word[inserted[i] >> _HALF] >> _HALF
        if hops + _ONE < word[inserted[i] & _LOW] >> _HALF:
            n_better += 1
    return n_lost, n_better


@_jit
def _adopt(word, log, rows, v):  # type: ignore[no-untyped-def]
    """Give v an in-neighbour one level up as its parent: (found, edges read)."""
    wanted = (word[v] >> _HALF) - _ONE
    remaining = np.int64(rows.degrees[v])
    read = np.int64(0)
    if remaining:
        leaf, slot = first_slot(rows, v)
        while remaining > 0:
            end = min((leaf << rows.leaf_shift) + np.int64(rows.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                u = rows.keys[i] & _LOW
                read += 1
                if word[u] >> _HALF == wanted:
                    _set(word, log, v, ((wanted + _ONE) << _HALF) | u)
                    return True, read
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << rows.leaf_shift
    return False, read


@_jit
def _trim(word, log, seeds, out, in_, queue, lost, edges_max):  # type: ignore[no-untyped-def]
    """Step 1: (vertices written to ``lost``, edges read), with -1 vertices when it read too many edges.

    ``seeds``: hops << 32 | vertex, ascending. Seeds and queued children are taken by ascending hops; children
    are queued one level below their parent, so the queue itself is in order.
    """
    n_lost = np.int64(0)
    edges = np.int64(0)
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    while seed < seeds.size or head < tail:
        if head < tail and (seed >= seeds.size or word[queue[head]] >> _HALF <= seeds[seed] >> _HALF):
            v = np.uint64(queue[head])
            head += 1
        else:
            v = seeds[seed] & _LOW
            seed += 1
        found, read = _adopt(word, log, in_, v)
        edges += read
        if found:
            continue
        _set(word, log, v, UNREACHED)
        lost[n_lost] = v
        n_lost += 1
        remaining = np.int64(out.degrees[v])
        edges += remaining
        if edges > edges_max:
            return np.int64(-1), edges
        if remaining:
            leaf, slot = first_slot(out, int(v))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    w = out.keys[i] & _LOW
                    if (word[w] & _LOW) == v:
                        queue[tail] = w
                        tail += 1
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return n_lost, edges


@_jit
def _pull(word, log, lost, in_, seeds):  # type: ignore[no-untyped-def]
    """Step 2: the vertices in ``lost`` take the best offer; (new seeds, edges read)."""
    n_seeds = np.int64(0)
    edges = np.int64(0)
    for k in range(lost.size):
        v = np.uint64(lost[k])
        best = UNREACHED
        remaining = np.int64(in_.degrees[v])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(in_, int(v))
            while remaining > 0:
                end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    u = in_.keys[i] & _LOW
                    offer = (word[u] >> _HALF) + _ONE
                    if offer < best >> _HALF:
                        best = (offer << _HALF) | u
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << in_.leaf_shift
        if best != UNREACHED:
            _set(word, log, v, best)
            seeds[n_seeds] = ((best >> _HALF) << _HALF) | v
            n_seeds += 1
    return n_seeds, edges


@_jit
def _relax(word, log, inserted, sources, seeds, n_seeds):  # type: ignore[no-untyped-def]
    """Step 3, and sources that became known: the number of seeds with those added."""
    for k in range(sources.size):
        if word[sources[k]] != SOURCE_WORD:
            _set(word, log, sources[k], SOURCE_WORD)
            seeds[n_seeds] = np.uint64(sources[k])
            n_seeds += 1
    for i in range(inserted.size):
        u = inserted[i] >> _HALF
        v = inserted[i] & _LOW
        offer = (word[u] >> _HALF) + _ONE
        if offer < word[v] >> _HALF:
            _set(word, log, v, (offer << _HALF) | u)
            seeds[n_seeds] = (offer << _HALF) | v
            n_seeds += 1
    return n_seeds


@_jit
def _push(word, log, seeds, out, queue):  # type: ignore[no-untyped-def]
    """Step 4, by ascending hops: (vertices pushed, edges read, deepest level pushed).

    ``seeds`` as in ``_trim``; one whose vertex has improved since is stale and skipped. A queued vertex is one
    level below the vertex that improved it, so nothing taken later can improve it again: each is queued once.
    """
    edges = np.int64(0)
    pushed = np.int64(0)
    levels = np.int64(0)
    last = UNREACHED
    seed = np.int64(0)
    head = np.int64(0)
    tail = np.int64(0)
    while seed < seeds.size or head < tail:
        if head < tail and (seed >= seeds.size or word[queue[head]] >> _HALF <= seeds[seed] >> _HALF):
            u = np.uint64(queue[head])
            head += 1
        else:
            u = seeds[seed] & _LOW
            seed += 1
            if word[u] >> _HALF != seeds[seed - 1] >> _HALF:
                continue
        if word[u] >> _HALF != last:
            last = word[u] >> _HALF
            levels += 1
        offer = (word[u] >> _HALF) + _ONE
        pushed += 1
        remaining = np.int64(out.degrees[u])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(u))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    v = out.keys[i] & _LOW
                    if offer < word[v] >> _HALF:
                        _set(word, log, v, (offer << _HALF) | u)
                        queue[tail] = v
                        tail += 1
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return pushed, edges, levels


@_jit
def _push_level(word, out, queue, head, tail, level):  # type: ignore[no-untyped-def]
    """Push the frontier queue[head:tail]: (new tail, edges read, edges of the new frontier)."""
    edges = np.int64(0)
    ahead = np.int64(0)
    frontier_end = tail
    for k in range(head, frontier_end):
        u = np.uint64(queue[k])
        offer = ((level + _ONE) << _HALF) | u
        remaining = np.int64(out.degrees[u])
        edges += remaining
        if remaining:
            leaf, slot = first_slot(out, int(u))
            while remaining > 0:
                end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
                for i in range(slot, end):
                    v = out.keys[i] & _LOW
                    if word[v] == UNREACHED:
                        word[v] = offer
                        queue[tail] = v
                        tail += 1
                        ahead += np.int64(out.degrees[v])
                remaining -= end - slot
                leaf += np.int64(1)
                slot = leaf << out.leaf_shift
    return tail, edges, ahead


@_jit
def _pull_level(word, in_, n, level, front, next_front):  # type: ignore[no-untyped-def]
    """Every unreached vertex looks for a parent on the frontier: (vertices found, edges read).

    ``front`` and ``next_front``: bitmaps (uint64[(n + 63) // 64]), which stay in cache where the words do not.
    """
    edges = np.int64(0)
    found = np.int64(0)
    next_front[:] = np.uint64(0)
    for v in range(n):
        if word[v] != UNREACHED:
            continue
        remaining = np.int64(in_.degrees[v])
        if remaining == 0:
            continue
        leaf, slot = first_slot(in_, int(v))
        while remaining > 0:
            end = min((leaf << in_.leaf_shift) + np.int64(in_.counts[leaf]), slot + remaining)
            i = slot
            while i < end:
                u = in_.keys[i] & _LOW
                i += 1
                if (front[u >> np.uint64(6)] >> (u & np.uint64(63))) & _ONE:
                    word[v] = ((level + _ONE) << _HALF) | u
                    next_front[v >> 6] |= _ONE << np.uint64(v & 63)
                    found += 1
                    remaining = np.int64(0)
                    break
            edges += i - slot
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << in_.leaf_shift
    return found, edges


@_jit
def _search(word, sources, out, in_, n, n_arcs, queue, front, next_front):  # type: ignore[no-untyped-def]
    """The whole search from scratch; (levels, edges read, vertices reached). ``word`` starts unreached."""
    tail = np.int64(0)
    ahead = np.int64(0)
    for k in range(sources.size):
        if word[sources[k]] == UNREACHED:
            word[sources[k]] = SOURCE_WORD
            queue[tail] = sources[k]
            tail += 1
            ahead += np.int64(out.degrees[sources[k]])
    head = np.int64(0)
    level = np.uint64(0)
    edges = np.int64(0)
    unexplored = n_arcs
    reached = tail
    while head < tail:
        if ahead * _PULL_SHARE <= unexplored or ahead * _PUSH_SHARE <= n:
            unexplored -= ahead
            new_tail, read, ahead = _push_level(word, out, queue, head, tail, level)
            edges += read
            reached += new_tail - tail
            head = tail
            tail = new_tail
            level += _ONE
            continue
        front[:] = np.uint64(0)
        for k in range(head, tail):
            u = np.uint64(queue[k])
            front[u >> np.uint64(6)] |= _ONE << (u & np.uint64(63))
        awake = tail - head
        before = np.int64(0)
        while awake > 0 and (awake >= before or awake * _PUSH_SHARE > n):
            before = awake
            awake, read = _pull_level(word, in_, n, level, front, next_front)
            edges += read
            reached += awake
            level += _ONE
            front, next_front = next_front, front
        head = np.int64(0)
        tail = np.int64(0)
        for v in range(n):
            if (front[v >> 6] >> np.uint64(v & 63)) & _ONE:
                queue[tail] = v
                tail += 1
        # What is left is small, and pulling again would cost a pass over all vertices: push to the end.
        ahead = np.int64(0)
        unexplored = np.int64(1 << 62)
    return np.int64(level), edges, reached


@_jit
def _audit_edges(word, out, n, supported):  # type: ignore[no-untyped-def]
    """Mark the vertices whose parent edge exists; (edges that would improve their head, one of them)."""
    better = np.int64(0)
    example = UNREACHED
    for u in range(n):
        remaining = np.int64(out.degrees[u])
        if remaining == 0:
            continue
        offer = (word[u] >> _HALF) + _ONE
        leaf, slot = first_slot(out, int(u))
        while remaining > 0:
            end = min((leaf << out.leaf_shift) + np.int64(out.counts[leaf]), slot + remaining)
            for i in range(slot, end):
                v = out.keys[i] & _LOW
                if offer < word[v] >> _HALF:
                    better += 1
                    example = out.keys[i]
                if (word[v] & _LOW) == np.uint64(u):
                    supported[v] = True
            remaining -= end - slot
            leaf += np.int64(1)
            slot = leaf << out.leaf_shift
    return better, example


def parse_sources(value: Any) -> tuple[ExternalId, ...]:
    """One vertex id or a list of them, as a tuple without repetitions.

    Raises:
        ValueError: it is neither, is empty, or mixes integers and strings.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    wrong = [item for item in items if isinstance(item, bool) or not isinstance(item, int | str)]
    if wrong or not items:
        raise ValueError("a vertex id (an integer or a string), or a list of at least one")
    if len({type(item) for item in items}) > 1:
        raise ValueError("ids of one kind, all integers or all strings")
    if any(isinstance(item, int) and not -(2**63) <= item < 2**63 for item in items):
        raise ValueError("integers of 64 bits, from -2^63 to 2^63 - 1")
    return tuple(dict.fromkeys(items))


class BFS(Program):
    """Fewest edges from the nearest source. Column ``word``: uint64, ``hops << 32 | parent``."""

    kind: ClassVar[str] = "bfs"
    summary: ClassVar[str] = "fewest edges from the source (or the nearest of several), and a parent on the way"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("source", "vertex to start from, or a list of them", parse_sources, required=True),
    )
    needs_in_edges: ClassVar[bool] = True
    has_parents: ClassVar[bool] = True

    def __init__(self, id: str, source: tuple[ExternalId, ...]) -> None:
        super().__init__(id)
        self.sources = source
        self._bound = np.empty(0, np.uint32)
        self._source_moved = False
        self._n = 0
        self._run = 0
        self._word = np.empty(0, np.uint64)
        self._queue = np.empty(0, np.uint32)
        self._lost = np.empty(0, np.uint32)
        self._log = _Log(
            np.zeros(0, np.uint32),
            np.empty(0, np.uint32),
            np.empty(0, np.uint64),
            np.zeros(1, np.int64),
            0,
        )

    def bind(self, sources: Vertices) -> None:
        known = np.unique(sources[sources != NO_VERTEX]).astype(np.uint32)
        # A source that is one no longer would keep its word of zero hops.
        self._source_moved |= not np.isin(self._bound, known).all()
        self._bound = known

    def start(self, graph: Graph) -> Refresh:
        n = graph.n_vertices
        self._grow(n)
        self._n = n
        self._source_moved = False
        self._word[:n] = UNREACHED
        bits = np.empty((2, (n + 63) // 64), np.uint64)
        sources = self._bound[self._bound < n]
        levels, edges, reached = _search(
            self._word, sources, graph.out_rows(), graph.in_rows(), n, graph.n_arcs, self._queue, bits[0], bits[1]
        )
        return Refresh({"word": None}, iterations=levels, edges_read=edges, active=reached)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        if self._source_moved:
            return self._start_over(graph, 0)
        new = np.arange(self._n, graph.n_vertices, dtype=np.uint32)
        self._grow(graph.n_vertices)
        self._word[self._n : graph.n_vertices] = UNREACHED
        self._n = graph.n_vertices
        word, deleted, inserted = self._word, change.arcs.deleted.keys, change.arcs.inserted.keys
        lost = np.empty(deleted.size, np.uint64)
        n_lost, n_better = _classify(word, deleted, inserted, lost)
        sources = self._bound[self._bound < self._n]
        if n_lost == 0 and n_better == 0 and (word[sources] == SOURCE_WORD).all():
            return Refresh({"word": new} if new.size else {})
        log = self._new_log()
        edges = 0
        if n_lost:
            edges_max = max(_TRIM_FLOOR, graph.n_arcs // _TRIM_SHARE)
            lost = np.sort(lost[:n_lost])
            n_lost, edges = _trim(
                word, log, lost, graph.out_rows(), graph.in_rows(), self._queue, self._lost, edges_max
            )
            if n_lost < 0:
                return self._start_over(graph, edges)
        seeds = np.empty(n_lost + inserted.size + sources.size, np.uint64)
        n_seeds = 0
        if n_lost:
            n_seeds, read = _pull(word, log, self._lost[:n_lost], graph.in_rows(), seeds)
            edges += read
        n_seeds = _relax(word, log, inserted, sources, seeds, n_seeds)
        _pushed, read, levels = _push(word, log, np.sort(seeds[:n_seeds]), graph.out_rows(), self._queue)
        touched = log.vertices[: log.counted[0]]
        differs = (word[touched] != log.old[: touched.size]) & (touched < self._n - new.size)
        return Refresh(
            {"word": np.concatenate([touched[differs], new])},
            iterations=levels,
            edges_read=edges + read,
            active=touched.size,
        )

    def columns(self) -> dict[str, Column]:
        return {"word": self._word}

    def state(self) -> dict[str, Column]:
        return {"word": self._word[: self._n]}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        word = state["word"]
        if word.dtype != np.uint64 or word.shape != (graph.n_vertices,):
            raise ValueError(f"saved words: {word.dtype}{word.shape}, expected uint64({graph.n_vertices},)")
        self._n = 0
        self._grow(word.size)
        self._n = word.size
        self._word[: self._n] = word

    def memory_bytes(self) -> int:
        log = self._log
        held: list[Column] = [self._word, self._queue, self._lost, log.stamp, log.vertices, log.old]
        return sum(column.nbytes for column in held)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        hops = (published.columns["word"][vertices] >> _HALF).astype(np.uint32)
        return Answer(hops, hops == NO_VERTEX)

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        return published.columns["word"][vertices].astype(np.uint32)

    def audit(self, graph: Graph) -> list[Violation]:
        """Every rule of a right search, in O(vertices + edges); see semantics.md, "The audit"."""
        n = graph.n_vertices
        word = self._word[:n]
        hops = word >> _HALF
        parent = word.astype(np.uint32)
        reached = word != UNREACHED
        is_source = np.zeros(n, bool)
        is_source[self._bound[self._bound < n]] = True
        supported = np.zeros(n, bool)
        better, example = _audit_edges(word, graph.out_rows(), n, supported)
        found = []
        if better:
            ends = (int(example >> _HALF), int(example & _LOW))
            found.append(Violation("improvable", f"{better} edges would improve their head", ends))
        child = reached & ~is_source
        no_parent = child & (parent >= n)
        above = hops[np.where(parent < n, parent, 0)] if n else hops
        rules = (
            ("source", "a source without zero hops or with a parent", is_source & (word != SOURCE_WORD)),
            ("half-reached", "an unreached vertex with a parent", (hops == _LOW) & reached),
            ("no-parent", "reached without a parent", no_parent),
            ("parent-edge", "the parent edge is not in the graph", child & ~no_parent & ~supported),
            ("value", "not one hop more than the parent", child & ~no_parent & (hops != above + _ONE)),
        )
        for rule, detail, broken in rules:
            _report(found, rule, detail, np.flatnonzero(broken))
        _report(found, "forest", "parents lead to no root", vertices_without_root(parent))
        return found

    def _start_over(self, graph: Graph, edges_read: int) -> Refresh:
        fresh = self.start(graph)
        return Refresh(
            fresh.changed,
            iterations=fresh.iterations,
            edges_read=fresh.edges_read + edges_read,
            active=fresh.active,
            started_over=True,
        )

    def _grow(self, n_vertices: int) -> None:
        self._word = grown(self._word, n_vertices)
        self._queue = grown(self._queue, n_vertices)
        self._lost = grown(self._lost, n_vertices)
        log = self._log
        self._log = _Log(
            grown(log.stamp, n_vertices, 0),
            grown(log.vertices, n_vertices),
            grown(log.old, n_vertices),
            log.counted,
            log.run,
        )

    def _new_log(self) -> _Log:
        self._run += 1
        if self._run == 2**32:  # stamps are 32 bits: begin again
            self._log.stamp[:] = 0
            self._run = 1
        self._log = self._log._replace(run=self._run)
        self._log.counted[0] = 0
        return self._log


def _report(found: list[Violation], rule: str, detail: str, vertices: npt.NDArray[Any]) -> None:
    """Add a violation if there are vertices that show it."""
    if vertices.size:
        evidence = tuple(int(v) for v in vertices[:_EVIDENCE])
        found.append(Violation(rule, f"{vertices.size} vertices: {detail}", evidence))
