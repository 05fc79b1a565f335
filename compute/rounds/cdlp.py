"""Community detection by label propagation, as LDBC Graphalytics defines it, kept exact under changes.

Labels, and the leads that spare reading rows (``hearing.py``), are kept for every round. After a change the rounds
are taken one after the other: the changed arcs take votes away and bring some, and who got another label in the
round before tells its neighbours. Where that would mean to tell of more than a share of all arcs, everybody votes
anew in this round, which costs as much as in a fresh start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, Keys, Vertices, destinations, sources, transpose
from ...gpma.index.id_order import IdOrder
from ...gpma.memory import Memory
from ...partition.graph import Graph, GraphChange
from ..links import all_entries
from ..program import (
    Answer,
    Column,
    ExternalId,
    ExternalOrder,
    Parameter,
    Program,
    Published,
    Refresh,
    Violation,
    grown,
    marked_violations,
    require_saved,
    size_violations,
)
from . import hearing
from .hearing import Round, Scratch, Votes
from .vote import table_bytes

ROUNDS_MAX = 30

# In a round in which more than this share of all entries of rows would be told, everybody votes anew, so that no
# round reads more than this share over what it does in a fresh start; but not where it is so few.
_TELL_SHARE = 1 / 3
_TELL_FLOOR = 1 << 10
_NOTHING = -1.0

_RULES = (
    ("label", hearing.WRONG_LABEL, "another label than most neighbours had in the round before"),
    ("lead", hearing.WRONG_LEAD, "a lead that is larger than the votes say"),
)


def parse_rounds(value: Any) -> int:
    """How many rounds.

    Raises:
        ValueError: it is no whole number from 1 to ``ROUNDS_MAX``.
    """
    if type(value) is not int or not 1 <= value <= ROUNDS_MAX:
        raise ValueError(f"a whole number from 1 to {ROUNDS_MAX}")
    return value


class Cdlp(Program):
    """The community of every vertex. Column ``label``: uint32, the vertex that names it.

    At first each vertex is its own label. In each round it takes the most frequent label among its in- and
    out-neighbours of the round before, one that is both counting twice; of several as frequent that with the
    smallest external id. Loops do not count; a vertex without neighbours keeps its own. (LDBC Graphalytics
    Benchmark Specification, "Community Detection using Label-Propagation"; after Raghavan, Albert, Kumara, "Near
    linear time algorithm to detect community structures in large-scale networks", 2007.)
    """

    kind: ClassVar[str] = "cdlp"
    summary: ClassVar[str] = "community by label propagation, named by a vertex: most neighbours' label, in rounds"
    family: ClassVar[str] = "rounds"
    value = ExternalId
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("rounds", "how many rounds", parse_rounds, 10),)
    needs_in_edges: ClassVar[bool] = True
    needs_order: ClassVar[bool] = True
    value_scalars: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, id: str, rounds: int, order: ExternalOrder) -> None:
        """``order`` compares vertices by external id (the vertex index)."""
        super().__init__(id)
        self._order = order
        self._n = 0
        # By round, from that before the first on, in which each vertex has its own label.
        self._labels = [np.empty(0, np.uint32) for _ in range(rounds + 1)]
        self._leads = [np.empty(0, np.uint16) for _ in range(rounds)]
        lists = [np.empty(0, np.uint32) for _ in range(4)]
        self._scratch = Scratch(np.empty(0, np.int64), *lists)
        self._cursor = np.zeros(80, np.int64)

    # -- runs -------------------------------------------------------------------------------------------

    def start(self, graph: Graph) -> Refresh:
        Memory().require(_bytes_to_vote(graph))
        self._grow(graph.n_vertices)
        # A change that failed half way leaves some.
        self._scratch.heard[:] = 0
        self._scratch.was[:] = NO_VERTEX
        none = np.empty(0, np.uint64)
        return self._run(graph, Votes(none, none), np.empty(0, np.uint32), tell_max=_NOTHING)

    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        before = self._n
        self._grow(graph.n_vertices)
        new = np.arange(before, self._n, dtype=np.uint32)
        votes = Votes(*(_votes(graph, edges.keys) for edges in (change.arcs.inserted, change.arcs.deleted)))
        if not votes.begun.size and not votes.ended.size:
            return Refresh({"label": new} if new.size else {})
        run = self._run(graph, votes, new, self.tell_max(graph))
        return replace(run, started_over=run.changed["label"] is None) if run.changed else run

    def _run(self, graph: Graph, votes: Votes, new: Vertices, tell_max: float) -> Refresh:
        """Take the rounds one after the other; in one with more to tell than ``tell_max`` everybody votes, where
        there is memory for that.

        ``new``: the vertices that have come, ascending. Where everybody voted in every round, all is taken as
        changed.

        Raises:
            BrokenOff: by the graph's team, between two rounds.
        """
        rows = graph.out_rows(), graph.in_rows(), graph.directed
        order, cursor, crew = self._order.comparable(self._n), self._cursor, graph.crew
        n_votes = votes.begun.size + votes.ended.size
        moved = entries = read = asked = n_whole = 0
        for state in self._rounds:
            graph.team.require_wanted()
            cursor[:] = 0
            whole = n_votes + entries > tell_max
            whole = whole and (tell_max == _NOTHING or Memory().allows(_bytes_to_vote(graph)))
            if whole:
                self._forget_moved(moved)
            else:
                hearing.tell(votes, moved, entries, *rows, state, self._scratch, cursor, crew)
                read += entries
            n = self._n if whole else int(cursor[hearing.N_ASKED])
            hearing.settle(n, whole, *rows, state, self._scratch, order, cursor, crew)
            moved, entries = int(cursor[hearing.N_MOVED]), int(cursor[hearing.N_ENTRIES])
            read += int(cursor[hearing.N_READ])
            asked += n
            n_whole += whole
            self._scratch = self._scratch._replace(moved=self._scratch.moving, moving=self._scratch.moved)
        self._forget_moved(moved)
        labelled = np.sort(self._scratch.moved[:moved])
        labelled = np.concatenate([labelled[: np.searchsorted(labelled, self._n - new.size)], new])
        changed: dict[str, Vertices | None] = {"label": labelled} if labelled.size else {}
        if n_whole == len(self._leads):
            changed = {"label": None}
        return Refresh(changed, iterations=len(self._leads), edges_read=read, active=asked)

    def tell_max(self, graph: Graph) -> float:
        """With more votes and entries of rows to tell of in a round, everybody votes."""
        # A round costs a visit of each vertex beside the entries of rows.
        return max(_TELL_FLOOR, _TELL_SHARE * (all_entries(graph) + graph.n_vertices))

    def _forget_moved(self, moved: int) -> None:
        """Nobody has got another label."""
        self._scratch.was[self._scratch.moved[:moved]] = NO_VERTEX

    @property
    def _rounds(self) -> list[Round]:
        return [Round(*columns) for columns in zip(self._labels, self._labels[1:], self._leads, strict=False)]

    # -- what was computed elsewhere --------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return len(self._leads)

    def order_of(self, graph: Graph) -> IdOrder:
        """How ties are decided."""
        return self._order.comparable(graph.n_vertices)

    @property
    def kept_rounds(self) -> tuple[list[Vertices], list[npt.NDArray[np.uint16]]]:
        """The labels and the leads of every vertex, by round, the first being 1 (not copied)."""
        return [column[: self._n] for column in self._labels[1:]], [column[: self._n] for column in self._leads]

    def take_labels(self, graph: Graph, vertices: Vertices, labels: Vertices) -> Vertices:
        """Take over the labels that some vertices, each named once, have in the last round.

        Returns the vertices that have another one than before, ascending, and those that are new.
        """
        before = self._n
        self._grow(graph.n_vertices)
        last = self._labels[-1]
        differs = last[vertices] != labels
        last[vertices] = labels
        labelled = np.sort(vertices[differs])
        new = np.arange(before, self._n, dtype=np.uint32)
        return np.concatenate([labelled[: np.searchsorted(labelled, before)], new])

    def take_rounds(self, labels: Sequence[Vertices], leads: Sequence[npt.NDArray[np.uint16]]) -> None:
        """Take over labels and leads of every vertex, by round."""
        for label, labels_there, lead, leads_there in zip(
            self._labels[1:], labels, self._leads, leads, strict=True
        ):
            label[: self._n] = labels_there
            lead[: self._n] = leads_there

    # -- columns and state ------------------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        return {"label": self._labels[-1]}

    def state(self) -> dict[str, Column]:
        return {name: column[: self._n] for name, column in self._saved_columns.items()}

    @property
    def _saved_columns(self) -> dict[str, Column]:
        """What is saved, by name: the labels and leads of every round, the first being 1."""
        labels = {f"label_{number}": column for number, column in enumerate(self._labels[1:], 1)}
        return labels | {f"lead_{number}": column for number, column in enumerate(self._leads, 1)}

    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        n = graph.n_vertices
        require_saved(state, self._saved_columns, n)
        for name in self._saved_columns:
            if n and name.startswith("label_") and int(state[name].max()) >= n:
                raise ValueError(f"saved {name}: {int(state[name].max())}, with {n} vertices")
        self._grow(n)
        for name, column in self._saved_columns.items():
            column[:n] = state[name]
        for label, lead in zip(self._labels, self._leads, strict=False):
            _isolate(label, n)
            lead[n:] = 0
        _isolate(self._labels[-1], n)

    def memory_bytes(self) -> int:
        return sum(column.nbytes for column in self._held)

    @staticmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        labels = published.columns["label"][vertices]
        return Answer(labels, np.zeros(labels.size, bool), vertex_valued=True)

    def _grow(self, n: int) -> None:
        """Have an entry for each vertex; new ones have no neighbours, and so their own label in every round."""
        had = self._scratch.asked.size
        if n > had:
            Memory().require((n - had) * self._vertex_bytes)
            self._lengthen(n, had)
        self._n = n

    def _lengthen(self, n: int, had: int) -> None:
        asked = grown(self._scratch.asked, n)
        n = asked.size
        for number, label in enumerate(self._labels):
            self._labels[number] = grown(label, n)
            _isolate(self._labels[number], had)
        self._leads = [grown(lead, n, 0) for lead in self._leads]
        scratch = self._scratch
        heard, was = grown(scratch.heard, n, 0), grown(scratch.was, n, int(NO_VERTEX))
        moved, moving = grown(scratch.moved, n), grown(scratch.moving, n)
        # Last: it tells how large all columns are, also after a call that ran out of memory.
        self._scratch = Scratch(heard, asked, was, moved, moving)

    @property
    def _vertex_bytes(self) -> int:
        """What is kept of a vertex."""
        return sum(column.itemsize for column in self._held)

    @property
    def _held(self) -> list[Column]:
        """Every column that has an entry for each vertex."""
        return [*self._labels, *self._leads, *self._scratch]

    # -- audit ------------------------------------------------------------------------------------------

    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """What these vertices vote in every round; all slices together prove every label, round by round."""
        if missed := size_violations(self._n, graph):
            return missed, 0
        wrong = np.zeros(end - begin, np.uint8)
        order = self._order.comparable(self._n)
        rows = graph.out_rows(), graph.in_rows(), graph.directed
        edges = sum(int(hearing.audit(*rows, state, order, begin, end, wrong)) for state in self._rounds)
        return marked_violations(_RULES, wrong, begin), edges


def _votes(graph: Graph, arcs: Keys) -> Keys:
    """The votes that arcs carry, both ways in a directed graph: an undirected one stores both arcs."""
    arcs = arcs[sources(arcs) != destinations(arcs)]
    return np.concatenate([arcs, transpose(arcs)]) if graph.directed else arcs


def _bytes_to_vote(graph: Graph) -> int:
    """What the tables take, at most, when everybody votes: of each thread one for the widest row."""
    degrees = graph.out_rows().degrees[: graph.n_vertices].astype(np.int64)
    if graph.directed:
        degrees += graph.in_rows().degrees[: graph.n_vertices]
    return min(graph.crew.threads * table_bytes(int(degrees.max(initial=0))), table_bytes(all_entries(graph)))


def _isolate(label: Vertices, begin: int) -> None:
    """Vertices from ``begin`` on have no neighbours."""
    label[begin:] = np.arange(begin, label.size, dtype=np.uint32)
