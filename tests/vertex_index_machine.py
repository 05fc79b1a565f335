"""A vertex index whose vertices go to other ids, beside a dictionary, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from graphtide.gpma.edges import MAX_VERTICES, NO_VERTEX
from graphtide.gpma.index.id_kernels import ARENA_LIVE, FILLED, IDS
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import Kind, VertexIndex, VertexIndexReader

NAMES = 90
"""So few ids that they come back; with tables of 16 cells these are several sizes."""


def named(kind: Kind, numbers: np.ndarray) -> IdColumn:
    """The ids of these numbers."""
    if kind == "int":
        return numbers.astype(np.int64) * 7 - 20  # some below 0, some not small
    return StringColumn.of(f"{'v' * (number % 60)}{number}" for number in numbers.tolist())


def listed(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


@dataclass
class Reader:
    """``steady``: the ids that were known when it began, and ever since; ``seen``: every (id, vertex) since
    then."""

    index: VertexIndexReader
    steady: set[int]
    seen: set[tuple[int, int]]


class Index(RuleBasedStateMachine):
    """``known``: number -> vertex; ``leaving``: vertices whose ids were removed -> number; ``free``."""

    @initialize(kind=st.sampled_from(("int", "string")))
    def begin(self, kind: Kind) -> None:
        self.kind = kind
        self.index = VertexIndex.create(kind)
        self.known: dict[int, int] = {}
        self.leaving: dict[int, int] = {}
        self.free: set[int] = set()
        self.n = 0
        self.readers: list[Reader] = []

    @rule(numbers=st.lists(st.integers(0, NAMES - 1), min_size=1, max_size=30), data=st.data())
    def insert(self, numbers: list[int], data: st.DataObject) -> None:
        half = len(numbers) // 2
        if half and len(numbers) % 2 == 0 and data.draw(st.booleans()):
            src, dst = (named(self.kind, np.array(part)) for part in (numbers[:half], numbers[half:]))
            dense = np.concatenate(self.index.insert_edges(src, dst)).tolist()
        else:
            dense = self.index.insert(named(self.kind, np.array(numbers))).tolist()
        given = set()
        for number, vertex in zip(numbers, dense, strict=True):
            if number in self.known:
                assert vertex == self.known[number]
                continue
            self.known[number] = vertex
            for reader in self.readers:
                reader.seen.add((number, vertex))
            if vertex in self.free:
                self.free.remove(vertex)
                given.add(vertex)
            else:
                self.n += 1
        assert set(self.index.take_reused().tolist()) == given
        assert self.index.n_vertices == self.n

    @rule(ends=st.lists(st.tuples(*[st.integers(0, NAMES - 1)] * 2), min_size=1, max_size=30))
    def look_edges_up(self, ends: list[tuple[int, int]]) -> None:
        src, dst = (named(self.kind, np.array(numbers)) for numbers in zip(*ends, strict=True))
        keys, known = self.index.edge_keys(src, dst, np.zeros(len(ends), np.bool_))
        both = [all(number in self.known for number in edge) for edge in ends]
        assert both == ([True] * len(ends) if known is None else known.tolist())
        for key, edge, is_known in zip(keys.tolist(), ends, both, strict=True):
            if is_known:
                assert divmod(key, 1 << 32) == tuple(self.known[number] for number in edge)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.known:
            numbers = data.draw(st.lists(st.sampled_from(sorted(self.known)), unique=True))
            self.remove_ids(numbers)

    @rule()
    def remove_all(self) -> None:
        self.remove_ids(list(self.known))

    def remove_ids(self, numbers: list[int]) -> None:
        dense = [self.known.pop(number) for number in numbers]
        self.index.remove(np.array(dense, np.uint32))
        self.leaving |= dict(zip(dense, numbers, strict=True))
        for reader in self.readers:
            reader.steady -= set(numbers)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.leaving:
            dense = data.draw(st.lists(st.sampled_from(sorted(self.leaving)), unique=True))
            self.index.free(np.array(dense, np.uint32))
            self.free |= set(dense)
            for vertex in dense:
                del self.leaving[vertex]

    @rule()
    def look_from_elsewhere(self) -> None:
        reader = VertexIndexReader(self.kind, self.index.arrays())
        self.readers.append(Reader(reader, set(self.known), set(self.known.items())))

    @rule()
    def restore(self) -> None:
        gone = np.array(sorted({*self.leaving, *self.free}), np.uint32)
        state = {name: array.copy() for name, array in self.index.state().items()}
        if self.kind == "string":  # nothing of a vertex without an id counts
            state["places"][gone] = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
        self.index = VertexIndex.create(self.kind)
        self.index.restore(state, gone)
        self.free |= set(self.leaving)
        self.leaving.clear()
        self.readers.clear()

    @invariant()
    def finds_what_is_known(self) -> None:
        ids = named(self.kind, np.arange(NAMES))
        expected = [self.known.get(number, int(NO_VERTEX)) for number in range(NAMES)]
        assert self.index.lookup(ids).tolist() == expected
        assert set(self.index.free_vertices.tolist()) == self.free

    @invariant()
    def tells_every_id(self) -> None:
        numbers = {**{vertex: number for number, vertex in self.known.items()}, **self.leaving}
        dense = np.array(sorted(numbers), np.uint32)
        expected = named(self.kind, np.array([numbers[vertex] for vertex in dense.tolist()], np.int64))
        assert listed(self.index.external(dense)) == listed(expected)

    @invariant()
    def old_readers_are_never_wrong(self) -> None:
        """What was removed meanwhile may still be known, what came may be unknown, and all else is exact."""
        ids = named(self.kind, np.arange(NAMES))
        for reader in self.readers:
            found = reader.index.lookup(ids, MAX_VERTICES).tolist()
            if reader.index.generation == self.index.generation:
                assert found == [self.known.get(number, int(NO_VERTEX)) for number in range(NAMES)]
            for number, vertex in enumerate(found):
                assert vertex == NO_VERTEX or (number, vertex) in reader.seen
                assert vertex == self.known[number] if number in reader.steady else True

    @invariant()
    def counts_agree(self) -> None:
        growing = self.index._growing
        cells = growing.table.table
        moving = "old" in self.index.arrays()
        filled = int(np.count_nonzero(cells))
        assert int(growing.counts[IDS]) == len(self.known)
        if not moving:
            assert int(growing.counts[FILLED]) == filled
        if self.kind == "string":
            ids = named("string", np.array([*self.known, *self.leaving.values()], np.int64))
            assert int(growing.counts[ARENA_LIVE]) == sum(map(len, listed(ids)))
