"""Communities by label propagation, against a loop over external ids and fresh starts, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from histories import (
    EdgeSet,
    Epoch,
    History,
    LinkChurn,
    deletes,
    epoch_of,
    inserts,
    mixed_sizes,
    random_history,
    real_history,
    rmat_history,
    small_histories,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Snapshot, counted_labels
from sampling import examples

from graphtide.compute import registry
from graphtide.compute.program import ProgramError, Published, Refresh
from graphtide.compute.registry import make_program
from graphtide.compute.rounds import Cdlp, cdlp, hearing
from graphtide.gpma.edges import NO_VERTEX, EdgeBatch, Keys, Op, destinations, pack, sources
from graphtide.gpma.index.id_order import comes_before, order_of
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.memory import Memory
from graphtide.partition.graph import Graph

both_ways = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
ROUNDS = 10


def numbers(n: int, seed: int = 0) -> list[int]:
    """External ids in an order of their own, some of them negative."""
    shuffled: list[int] = (np.random.default_rng(seed).permutation(n) - n // 2).tolist()
    return shuffled


def names(n: int, seed: int = 0) -> list[str]:
    """Strings of which many begin alike, and some only differ in how they end, or in length."""
    stems = ("", "a", "ä", "vertex", "a long name that they share, ")
    made = [f"{stems[k % len(stems)]}{k // len(stems)}" for k in range(n)]
    return [made[k] for k in np.random.default_rng(seed).permutation(n)]


class Run:
    """A graph with communities on it, moved epoch by epoch. Vertices get these external ids as they come."""

    def __init__(
        self, directed: bool, ids: Sequence[int] | Sequence[str] = (), *, rounds: int = ROUNDS, threads: int = 1
    ) -> None:
        self.ids: list[Any] = list(ids) or numbers(200)
        self.index = VertexIndex.create("string" if isinstance(self.ids[0], str) else "int")
        self.graph = Graph(directed=directed, weighted=False, threads=threads)
        self.edges = EdgeSet(directed=directed)
        self.rounds = rounds
        self.program = self.fresh()

    def fresh(self) -> Cdlp:
        program = Cdlp("communities", self.rounds, self.index)
        program.start(self.graph)
        return program

    def column(self, ids: Sequence[Any]) -> IdColumn:
        return StringColumn.of(ids) if self.index.kind == "string" else np.array(ids, np.int64)

    def step(self, epoch: Epoch) -> Refresh:
        """Apply an epoch; whose label is another is what is reported."""
        if epoch.n_vertices > self.index.n_vertices:
            self.index.insert(self.column(self.ids[self.index.n_vertices : epoch.n_vertices]))
        n = self.graph.n_vertices
        before = self.program.columns()["label"][:n].copy()
        change = self.graph.apply(epoch.batch(), epoch.n_vertices, epoch.vertex_ops())
        self.edges.apply(epoch)
        refresh = self.program.refresh(self.graph, change)
        changed = refresh.changed.get("label", np.empty(0, np.uint32))
        assert (changed is None) == refresh.started_over
        if changed is not None:
            differs = np.flatnonzero(self.program.columns()["label"][:n] != before)
            assert changed.tolist() == [*differs.tolist(), *range(n, epoch.n_vertices)]
        return refresh

    def load(self, keys: Keys, n: int) -> None:
        """Insert edges at once, without a refresh."""
        self.index.insert(self.column(self.ids[:n]))
        self.graph.apply(EdgeBatch(keys, np.full(keys.size, Op.INSERT, np.uint8)), n)
        self.program.start(self.graph)

    @property
    def labels(self) -> list[Any]:
        """The external id that names the community of each vertex."""
        n = self.graph.n_vertices
        published = Published(self.program.columns(), self.program.scalars(), n)
        answer = Cdlp.read(published, np.arange(n, dtype=np.uint32))
        assert answer.vertex_valued and not answer.null.any()
        return [self.ids[label] for label in answer.values.tolist()]

    def expected(self) -> list[Any]:
        """By the definition, and by nothing but loops over external ids."""
        near: list[list[int]] = [[] for _ in range(self.edges.n_vertices)]
        for u, v, _ in self.edges.arcs():
            if u != v:
                near[v].append(u)
                if self.edges.directed:
                    near[u].append(v)
        label = self.ids[: self.edges.n_vertices]
        for _ in range(self.rounds):
            counts = [Counter(label[u] for u in mine) for mine in near]
            label = [winner(votes) if votes else own for votes, own in zip(counts, label, strict=True)]
        return label

    def check(self) -> None:
        assert self.labels == self.expected()
        self.check_fresh()
        assert self.program.audit(self.graph) == []

    def check_fresh(self) -> None:
        """The labels of every round are those of a fresh start, and no lead is larger than its own."""
        n, fresh = self.graph.n_vertices, self.fresh().state()
        for name, column in self.program.state().items():
            if name.startswith("label"):
                assert np.array_equal(column, fresh[name]), name
            else:
                assert (column <= fresh[name]).all(), name
        scratch = self.program._scratch
        assert not scratch.heard.any() and (scratch.was == NO_VERTEX).all()
        assert self.program.columns()["label"].size >= n

    def close(self) -> None:
        self.graph.close()


def winner(votes: Counter[Any]) -> Any:
    return min(votes, key=lambda id: (-votes[id], id.encode() if isinstance(id, str) else id))


def play(run: Run, epochs: Sequence[Epoch]) -> None:
    for epoch in epochs:
        run.step(epoch)
        run.check()
    run.close()


class Spent(Memory):
    def require(self, n_bytes: int) -> None:
        raise MemoryError(f"{n_bytes} bytes more are needed, and none are left")


# -- histories ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(100))
@given(history=small_histories(), rounds=st.sampled_from((1, 2, 3, 10, 30)))
def test_any_history(history: History, rounds: int) -> None:
    play(Run(history.directed, rounds=rounds), history.epochs)


@both_ways
def test_random_histories(directed: bool, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertices that come, go and come back, of integer ids and of strings, in few rounds and in many.

    In some of them there are rounds in which everybody votes.
    """
    for k in range(200 if run_long else 8):
        monkeypatch.setattr(cdlp, "_TELL_FLOOR", 0 if k % 3 == 0 else 1 << 10)
        ids = names(40, seed + k) if k % 2 else numbers(40, seed + k)
        history = random_history(seed + k, directed=directed, vertices=40, vertex_share=(0.0, 0.08)[k // 4 % 2])
        play(Run(directed, ids, rounds=(10, 3, 10, 17, 10)[k % 5]), history.epochs)


@both_ways
def test_skewed_histories(directed: bool, seed: int, run_long: bool) -> None:
    """Larger graphs, with batches of all sizes."""
    n = 1 << 12
    for k in range(10 if run_long else 1):
        sizes = mixed_sizes(seed + k, 16 if run_long else 6, 20_000)
        history = rmat_history(
            seed + k, directed=directed, scale=12, degree=8, updates=sizes, vertex_share=3e-3 * (k % 2)
        )
        run = Run(directed, numbers(n, seed + k), threads=2)
        for epoch in history.epochs:
            run.step(epoch)
            run.check_fresh()
            arcs = np.array([(u, v) for u, v, _ in run.edges.arcs()], np.int64).reshape(-1, 2)
            ids = np.array(run.ids, np.int64)
            state = Snapshot(ids, arcs[:, 0], arcs[:, 1], np.ones(len(arcs), np.float32), None)
            assert [id + n // 2 for id in run.labels] == counted_labels(state).tolist()
        assert run.program.audit(run.graph) == []
        run.close()


@pytest.mark.parametrize(("name", "updates"), [("as733-21days", 400), ("highschool2012", 1_000)])
def test_real_deletions(name: str, updates: int) -> None:
    epochs = real_history(name, directed=False, updates=updates, events_max=30_000).epochs
    run = Run(False, numbers(epochs[-1].n_vertices))
    for k, epoch in enumerate(epochs):
        run.step(epoch)
        if k % 16 == 0:
            run.check()
    run.check()
    run.close()


# -- single changes -------------------------------------------------------------------------------------------


@both_ways
def test_ties_turn_either_way(directed: bool) -> None:
    """Vertex 0 hears of two labels, or more, equally often; one comes, one goes, by turns."""
    for ids in ([5, 3, 4, 2, 1], [1, 2, 3, 4, 5], ["b", "ba", "b\x00", "ä", ""]):
        run = Run(directed, ids, rounds=1)
        spokes = [(0, 1), (2, 0), (0, 3), (4, 0)]
        moves = [inserts([pair], 5) for pair in spokes] + [deletes([pair], 5) for pair in spokes]
        moves += [inserts(spokes, 5), deletes(spokes[:2], 5), inserts(spokes[:1], 5), deletes(spokes, 5)]
        play(run, moves)


def test_who_is_linked_both_ways_votes_twice() -> None:
    run = Run(True, [10, 1, 9], rounds=1)
    run.step(inserts([(0, 1), (0, 2), (2, 0)], 3))
    assert run.labels == [9, 10, 10]
    run.check()
    run.step(deletes([(2, 0)], 3))
    assert run.labels == [1, 10, 10]
    run.check()
    # The other way round: the same votes.
    refresh = run.step(epoch_of([(Op.DELETE, 0, 2, 1.0), (Op.INSERT, 2, 0, 1.0)], 3))
    assert refresh.changed == {} and run.labels == [1, 10, 10]
    run.check()
    run.step(epoch_of([(Op.INSERT, 0, 2, 1.0), (Op.DELETE, 0, 1, 1.0)], 3))
    assert run.labels == [9, 1, 10]
    run.check()
    run.close()


@both_ways
def test_loops_do_not_vote(directed: bool) -> None:
    run = Run(directed, [3, 2, 1])
    assert run.step(inserts([(0, 0), (2, 2)], 3)).edges_read == 0
    assert run.labels == [3, 2, 1]
    run.check()
    play(run, [inserts([(0, 1), (1, 1)], 3), deletes([(0, 0)], 3), deletes([(0, 1)], 3)])


@both_ways
def test_vertices_are_deleted_and_come_back_in_one_epoch_or_later(directed: bool) -> None:
    pairs = [(u, v) for u in range(6) for v in range(6) if u < v]
    run = Run(directed, numbers(8))
    again = [(Op.DELETE_VERTEX, 2, 0, 1.0), (Op.INSERT, 2, 6, 1.0), (Op.INSERT, 6, 7, 1.0)]
    epochs = [inserts(pairs, 7), epoch_of(again, 8), epoch_of([(Op.DELETE_VERTEX, 6, 0, 1.0)], 8)]
    epochs += [inserts([(6, 0), (6, 7)], 8), epoch_of([(Op.DELETE_VERTEX, v, 0, 1.0) for v in range(8)], 8)]
    play(run, [*epochs, inserts(pairs, 8)])


def test_a_dense_id_that_goes_to_another_vertex_brings_another_order() -> None:
    """Vertex 0 has the largest id, is deleted, and comes back as another with the smallest."""
    for ids, other in (([9, 5, 6, 7], 1), (["z", "m", "n", "o"], "a")):
        run = Run(False, ids, rounds=1)
        star = inserts([(1, v) for v in (0, 2, 3)], 4)
        run.step(star)
        run.check()
        run.step(epoch_of([(Op.DELETE_VERTEX, 0, 0, 1.0)], 4))
        run.check()
        gone = np.array([0], np.uint32)
        run.index.remove(gone)
        run.index.free(gone)
        assert run.index.insert(run.column([other])).tolist() == [0]
        run.ids[0] = other
        run.step(star)
        assert run.labels[1] == other
        run.check()
        run.close()


@both_ways
def test_a_clique_comes_and_goes_at_once(directed: bool) -> None:
    rng = np.random.default_rng(1)
    run = Run(directed, numbers(300))
    members = rng.permutation(300)[:60].tolist()
    clique = [(u, v) for u in members for v in members if u < v]
    sparse = inserts([(int(u), int(v)) for u, v in rng.integers(0, 300, (400, 2))], 300)
    play(run, [sparse, inserts(clique, 300), deletes(clique, 300), inserts(clique[::2], 300)])


def test_leads_that_are_too_large_to_be_kept_are_kept_as_less() -> None:
    """A hub whose neighbours are of one mind, more of them than 16 bits can tell."""
    n = 70_000
    run = Run(False, numbers(n))
    run.load(pack(np.zeros(n - 1), np.arange(1, n)), n)
    assert run.program._leads[1][0] == 0xFFFF
    for k in range(1, 60_001, 20_000):
        spokes = np.arange(k, k + 20_000)
        keys = pack(np.zeros(spokes.size), spokes)
        change = run.graph.apply(EdgeBatch(keys, np.zeros(keys.size, np.uint8)), n)
        run.program.refresh(run.graph, change)
        run.check_fresh()
        assert run.program.audit(run.graph) == []
    run.close()


# -- work -----------------------------------------------------------------------------------------------------


BARS = {100: 0.02, 1_000: 0.06, 10_000: 0.12}
"""Of what a start reads, how much a batch of so many updates may."""


@pytest.mark.sample(among="work is in proportion")
def test_work_is_in_proportion_to_the_change_by_the_leads() -> None:
    """On RMAT 16; and no bar is kept where rows are read again whenever something is heard."""
    links = LinkChurn(16, 16)
    run = Run(False, numbers(links.n), threads=2)
    run.load(links.live, links.n)
    started = run.program.start(run.graph)
    assert started.edges_read == ROUNDS * run.graph.n_arcs and started.active == ROUNDS * links.n
    for size, share in BARS.items():
        for with_leads in (True, False):
            if not with_leads:
                for lead in run.program._leads:
                    lead[:] = 0
            refresh = run.program.refresh(run.graph, run.graph.apply(links.batch(size), links.n))
            assert not refresh.started_over and refresh.changed["label"] is not None
            assert (refresh.edges_read <= share * started.edges_read) == with_leads
            assert refresh.active <= refresh.edges_read + 2 * ROUNDS * size
        run.program.start(run.graph)
    singles = [
        run.program.refresh(run.graph, run.graph.apply(links.batch(1), links.n)).edges_read for _ in range(20)
    ]
    assert np.median(singles) <= 2_000
    run.check_fresh()
    run.close()


@both_ways
def test_no_batch_costs_more_than_one_and_a_half_starts(directed: bool) -> None:
    """Of any size: also one that changes most of the graph, or comes to the empty one, or ends all."""
    links = LinkChurn(12, 8)
    ids = numbers(links.n)
    whole = np.concatenate([links.live, links.pool])
    starts = 0
    for size in (1, 30, 300, 1_000, 3_000, 6_000, 12_000, links.live.size, whole.size):
        run = Run(directed, ids)
        run.load(links.live, links.n)
        keys = links.rng.permutation(whole)[:size]
        for ops in (links.rng.integers(0, 2, size), np.ones(size), np.zeros(size)):
            change = run.graph.apply(EdgeBatch(keys, ops.astype(np.uint8)), links.n)
            refresh = run.program.refresh(run.graph, change)
            fresh = run.fresh()
            started = fresh.start(run.graph)
            work, full = refresh.edges_read + refresh.active, started.edges_read + started.active
            assert work <= 1.5 * full
            starts += refresh.started_over
        run.check_fresh()
        run.close()
    assert starts > 0


def test_a_small_change_of_a_graph_of_many_vertices_visits_few() -> None:
    """Also where these have hardly an edge, or none any more."""
    n = 1 << 15
    run = Run(False, numbers(n))
    run.load(pack([0, 1], [1, 0]), n)
    for epoch in (inserts([(1, 2)], n), deletes([(0, 1)], n), deletes([(1, 2)], n), inserts([(5, 6)], n)):
        refresh = run.step(epoch)
        assert refresh.active <= 3 * ROUNDS and refresh.edges_read <= 10 * ROUNDS
    run.check_fresh()
    run.close()


def test_an_arc_that_only_widens_a_lead_reads_no_row() -> None:
    """Within a community; and its end where the lead is wide."""
    run = Run(False, numbers(20))
    pairs = [(u, v) for u in range(20) for v in range(20) if u < v and (u, v) != (3, 17)]
    run.step(inserts(pairs, 20))
    told = run.step(inserts([(3, 17)], 20))
    assert told.edges_read <= 4 * 20  # the first rounds, in which there is no community yet
    assert told.changed == {}
    run.check()
    run.close()


@pytest.mark.sample(among="threads change nothing")
@both_ways
def test_threads_change_nothing(directed: bool) -> None:
    """Neither labels nor leads, nor what is read, nor what is said to have changed."""
    history = rmat_history(
        6, directed=directed, scale=14, degree=8, updates=[300, 3_000, 30_000, 100_000], epochs=4
    )
    seen = []
    for threads in (1, 2, 5):
        run = Run(directed, numbers(history.n_vertices), threads=threads)
        said = []
        for epoch in history.epochs:
            refresh = run.step(epoch)
            changed = refresh.changed["label"]
            listed = None if changed is None else changed.tolist()
            state = {name: column.tobytes() for name, column in run.program.state().items()}
            said.append((refresh.started_over, refresh.edges_read, refresh.active, listed, state))
        seen.append(said)
        run.check_fresh()
        run.close()
    assert [started_over for started_over, *_ in seen[0]] == [True, False, False, False, True]
    assert seen[0] == seen[1] == seen[2]


def test_one_compiled_form_does_for_every_graph() -> None:
    """What is compiled before the first epoch, on a handful of edges, is all that a daemon needs."""
    kernels = (hearing.tell, hearing.settle, hearing.audit)
    registry.warm_up(directed=True, weighted=True, programs=[("cdlp", {})])
    before = [len(kernel.signatures) for kernel in kernels]
    for directed in (True, False):
        for ids in (numbers(1 << 12), names(1 << 12)):
            run = Run(directed, ids, threads=2)
            for epoch in rmat_history(
                1, directed=directed, scale=12, degree=4, updates=[1, 5_000], epochs=2
            ).epochs:
                run.step(epoch)
            run.program.audit(run.graph)
            run.close()
    assert [len(kernel.signatures) for kernel in kernels] == before


# -- the order of ids -----------------------------------------------------------------------------------------


def test_ids_compare_as_numbers_or_bytes() -> None:
    for ids in (numbers(60), [-(2**63), 2**63 - 1, 0, -1, 1], names(60), ["", "\x00", "\x00\x00", "é", "z" * 256]):
        run = Run(False, ids)
        run.index.insert(run.column(ids))
        order = run.index.comparable(len(ids))
        for u, one in enumerate(ids):
            for v, other in enumerate(ids):
                smaller = one.encode() < other.encode() if isinstance(one, str) else one < other  # type: ignore
                assert comes_before(order, u, v) == smaller
        run.close()
    assert comes_before(order_of(), 3, 4) and not comes_before(order_of(), 4, 3)


# -- memory, parameters, state --------------------------------------------------------------------------------


def test_memory_is_asked_for_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none for more vertices, all is as it was."""
    run = Run(False)
    run.step(inserts([(0, 1)], 60))
    asked: list[int] = []

    class Recorded(Memory):
        def require(self, n_bytes: int) -> None:
            asked.append(n_bytes)

    monkeypatch.setattr(cdlp, "Memory", Recorded)
    large = Cdlp("large", ROUNDS, run.index)
    large._grow(100_000)
    assert asked == [large.memory_bytes()]
    monkeypatch.setattr(cdlp, "Memory", Spent)
    before = run.program.memory_bytes()
    change = run.graph.apply(inserts([(0, 1), (2, 90)], 200).batch(), 200)
    with pytest.raises(MemoryError):
        run.program.refresh(run.graph, change)
    assert run.program.memory_bytes() == before
    assert [violation.rule for violation in run.program.audit(run.graph)] == ["size"]
    run.close()


@both_ways
def test_without_memory_for_all_votes_every_change_is_told(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is; a start, which has no choice, fails, and leaves all as it is."""
    asked: list[int] = []

    class Scarce(Spent):
        def allows(self, n_bytes: int) -> bool:
            asked.append(n_bytes)
            return False

    run = Run(directed, numbers(120))
    run.step(inserts([(v, (v + 1) % 120) for v in range(120)], 120))
    monkeypatch.setattr(cdlp, "_TELL_FLOOR", 0)
    with monkeypatch.context() as scarce:
        scarce.setattr(cdlp, "Memory", Scarce)
        clique = [(u, v) for u in range(0, 120, 2) for v in range(0, u, 2)]
        for epoch in (inserts(clique, 120), deletes(clique, 120)):
            assert not run.step(epoch).started_over
            assert run.program.audit(run.graph) == []
        with pytest.raises(MemoryError):
            run.program.start(run.graph)
        assert run.program.audit(run.graph) == []
    assert asked
    run.check()
    run.close()


def test_rounds_are_from_1_to_30() -> None:
    index = VertexIndex.create("int")
    assert len(make_program("cdlp", None, {}, index).state()) == 2 * ROUNDS
    for rounds in (1, 30):
        assert len(make_program("cdlp", None, {"rounds": rounds}, index).state()) == 2 * rounds
    for wrong in (0, 31, 2.0, "3", True, None):
        with pytest.raises(ProgramError, match="a whole number from 1 to 30"):
            make_program("cdlp", None, {"rounds": wrong}, index)


@both_ways
def test_a_restored_program_goes_on(directed: bool) -> None:
    run = Run(directed, numbers(40))
    for k, epoch in enumerate(random_history(9, directed=directed, vertices=30).epochs):
        run.step(epoch)
        if k % 5 == 0:
            restored = Cdlp("restored", ROUNDS, run.index)
            restored.restore({name: column.copy() for name, column in run.program.state().items()}, run.graph)
            assert restored.audit(run.graph) == []
            run.program = restored
        run.check()
    state = {name: column.copy() for name, column in run.program.state().items()}
    for name in ("label_1", "label_10"):
        kept = state[name].copy()
        state[name][3] = run.graph.n_vertices
        with pytest.raises(ValueError, match=f"saved {name}"):
            run.program.restore(state, run.graph)
        state[name] = kept
    for name in ("label_4", "lead_7"):
        with pytest.raises(KeyError):
            run.program.restore({other: state[other] for other in state if other != name}, run.graph)
    # What was kept of more vertices than there are now is none of theirs.
    run.program._grow(60)
    run.program._labels[3][50], run.program._leads[3][50] = 7, 7
    run.program.restore(state, run.graph)
    n = run.graph.n_vertices
    run.step(inserts([(n, 0)], 40))
    run.check()
    run.close()


# -- the audit ------------------------------------------------------------------------------------------------


def found(run: Run) -> set[str]:
    """The rules that are broken, by slices, which is what the whole audit finds."""
    n = run.graph.n_vertices
    violations = [
        violation
        for begin in range(0, n, 5)
        for violation in run.program.audit_slice(run.graph, begin, min(begin + 5, n))[0]
    ]
    rules = {violation.rule for violation in violations}
    assert {violation.rule for violation in run.program.audit(run.graph)} == rules
    return rules


@both_ways
def test_the_audit_finds_each_rule_broken(directed: bool) -> None:
    """In every round, at vertices of all kinds: within a community, between two, and without neighbours."""
    run = Run(directed, numbers(13))
    pairs = [(u, v) for u in range(5) for v in range(u)] + [(4, 5), (5, 6), (6, 7), (7, 5), (7, 8), (9, 9)]
    run.step(inserts(pairs, 13))
    run.check()
    assert found(run) == set()
    program = run.program
    for number in range(1, ROUNDS + 1):
        label, lead = program._labels[number], program._leads[number - 1]
        for vertex in (0, 5, 8, 9, 12):
            kept = int(label[vertex])
            for wrong in ((kept + 1) % 13, 1 << 20, int(NO_VERTEX)):
                label[vertex] = wrong
                assert "label" in found(run)
            label[vertex] = kept
            right = int(lead[vertex])
            for wrong in (right + 1, 0xFFFF):
                lead[vertex] = wrong
                assert found(run) == {"lead"}
            lead[vertex] = 0
            assert found(run) == set()  # less than it is, which costs a look at the row some day
            lead[vertex] = right
    assert found(run) == set()
    run.close()


@both_ways
def test_what_a_change_missed_is_found(directed: bool) -> None:
    run = Run(directed, [5, 4, 3, 2, 1])
    run.step(inserts([(0, 1), (1, 2), (2, 0), (3, 4)], 5))
    run.graph.apply(inserts([(0, 4)], 5).batch(), 5)
    assert "label" in found(run)
    run.close()


def test_labels_that_support_each_other_are_found() -> None:
    """Every vertex of a ring named by a vertex far off, from the first round on: the round before tells."""
    run = Run(False, numbers(12))
    run.step(inserts([(v, (v + 1) % 9) for v in range(9)], 12))
    for label in run.program._labels[1:]:
        label[:9] = 11
    for lead in run.program._leads:
        lead[:9] = 2
    assert found(run) == {"label"}
    violations = run.program.audit_slice(run.graph, 4, 5)[0]
    assert [violation.vertices for violation in violations] == [(4,)]
    run.close()


def test_sources_and_destinations_are_read_alike() -> None:
    """A star whose edges all point one way gives its vertices what it does the other way round."""
    spokes = pack(np.zeros(9), np.arange(1, 10))
    seen = []
    for keys in (spokes, pack(destinations(spokes), sources(spokes))):
        run = Run(True, numbers(10))
        run.load(keys, 10)
        seen.append(run.labels)
        run.close()
    assert seen[0] == seen[1]
