"""A block of updates between external ids becomes a batch between dense vertices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import EdgeBatch, Keys, Op, Ops, sources
from ...gpma.index.ids import IdColumn, IntColumn, concatenate_ids
from ...gpma.index.vertex_index import VertexIndex
from ...partition.existence import VertexOps
from ..errors import IdSpaceFull
from ..records.stream import UpdateBlock
from .decode_columns import on_vertices

TOGETHER_MAX = 1 << 17
"""The ids of several blocks are asked for at once, by all threads of the index: of so many updates at most."""


class DenseBatch(NamedTuple):
    """A block of updates between dense vertices.

    ``vertices``: the operations on vertices, None where there are none. Deletions that named a vertex which
    never existed are left out, and counted: ``unknown`` of edges, ``unknown_vertices`` of vertices. ``times``: of
    the edge updates, int64 or one for all, in milliseconds since 1970. ``row_keys``: of these, too, as in a block;
    of deletes the edge is 0 then.
    """

    edges: EdgeBatch
    vertices: VertexOps | None = None
    unknown: int = 0
    unknown_vertices: int = 0
    times: IntColumn | int = 0
    row_keys: npt.NDArray[np.uint64] | None = None

    @property
    def updates(self) -> int:
        """How many updates the block had."""
        named = 0 if self.vertices is None else len(self.vertices)
        return len(self.edges) + named + self.unknown + self.unknown_vertices


def dense_batch(block: UpdateBlock, index: VertexIndex) -> DenseBatch:
    """The block between dense vertices.

    Only inserts make vertices. Deletes are looked up after the whole block's inserts: whether a vertex was
    made before or after the delete of an edge that is not there, or of itself, makes no difference to the graph.

    Raises:
        IdSpaceFull: a new vertex found no id left.
    """
    if _names_vertices(block):
        return _with_vertex_ops(block, index)
    keys, known = _keys(block.src, block.dst, block.ops, index, named=block.row_keys is None)
    return _known(block, keys, known)


def dense_batches(blocks: Sequence[UpdateBlock], index: VertexIndex) -> list[DenseBatch]:
    """``dense_batch`` of each; the index must have room for all their ids.

    An edge that is deleted before a later one of these blocks makes its vertices counts as absent, not as unknown.
    """
    batches: list[DenseBatch] = []
    for some in _together(blocks):
        if len(some) == 1:
            batches.append(dense_batch(some[0], index))
            continue
        ids = (concatenate_ids([block.src for block in some]), concatenate_ids([block.dst for block in some]))
        named = some[0].row_keys is None
        keys, known = _keys(*ids, np.concatenate([block.ops for block in some]), index, named=named)
        begin = 0
        for block in some:
            part = slice(begin, begin := begin + len(block))
            batches.append(_known(block, keys[part], None if known is None else known[part]))
    return batches


def _together(blocks: Sequence[UpdateBlock]) -> Iterator[list[UpdateBlock]]:
    """All of them, in order: those that have operations on vertices alone."""
    some: list[UpdateBlock] = []
    updates = 0
    for block in blocks:
        alone = _names_vertices(block)
        if some and (alone or updates + len(block) > TOGETHER_MAX):
            yield some
            some, updates = [], 0
        if alone:
            yield [block]
        else:
            some.append(block)
            updates += len(block)
    if some:
        yield some


def _names_vertices(block: UpdateBlock) -> bool:
    return int(block.ops.max(initial=0)) > Op.INSERT


def _keys(
    src: IdColumn, dst: IdColumn, ops: Ops, index: VertexIndex, *, named: bool
) -> tuple[Keys, npt.NDArray[np.bool_] | None]:
    """The keys of these updates of edges, and where both ends are known; None: everywhere. Inserts make theirs.

    ``named``: deletes name their edges; else the keys of these are 0.
    """
    inserts = Op.INSERT.among(ops)
    if named:
        return _edge_keys(index, src, dst, inserts)
    keys = np.zeros(ops.size, np.uint64)
    keys[inserts], _ = _edge_keys(index, src[inserts], dst[inserts], inserts[inserts])
    return keys, None


def _known(block: UpdateBlock, keys: Keys, known: npt.NDArray[np.bool_] | None) -> DenseBatch:
    """A block of edges with these keys, those that are known."""
    if known is None:
        edges = EdgeBatch(keys, block.ops, block.weights)
        return DenseBatch(edges, times=block.timestamps_ms, row_keys=block.row_keys)
    weights = None if block.weights is None else block.weights[known]
    batch = EdgeBatch(keys[known], block.ops[known], weights)
    return DenseBatch(batch, unknown=int(known.size - len(batch)), times=_times_at(block, known))


def _times_at(block: UpdateBlock, rows: npt.NDArray[np.bool_]) -> IntColumn | int:
    times = block.timestamps_ms
    return times if isinstance(times, int) else times[rows]


def _with_vertex_ops(block: UpdateBlock, index: VertexIndex) -> DenseBatch:
    """``dense_batch`` where some updates are operations on vertices."""
    n = len(block)
    vertex_op = on_vertices(block.ops)
    # A vertex alone stands for both ends, so that new ones are numbered in order of first appearance.
    heads = concatenate_ids([block.src, block.dst])[np.where(vertex_op, np.arange(n), np.arange(n, 2 * n))]
    inserts = Op.INSERT.among(block.ops) | Op.INSERT_VERTEX.among(block.ops)
    keys, found = _edge_keys(index, block.src, heads, inserts)
    known = np.ones(n, np.bool_) if found is None else found
    edge, vertex = known & ~vertex_op, known & vertex_op
    weights = None if block.weights is None else block.weights[edge]
    positions = np.cumsum(edge, dtype=np.int64)
    unknown_vertices = int(np.count_nonzero(vertex_op & ~known))
    return DenseBatch(
        EdgeBatch(keys[edge], block.ops[edge], weights),
        VertexOps(sources(keys[vertex]), block.ops[vertex], positions[vertex]),
        unknown=int(np.count_nonzero(~known)) - unknown_vertices,
        unknown_vertices=unknown_vertices,
        times=_times_at(block, edge),
    )


def _edge_keys(
    index: VertexIndex, src: IdColumn, dst: IdColumn, inserts: npt.NDArray[np.bool_]
) -> tuple[Keys, npt.NDArray[np.bool_] | None]:
    try:
        return index.edge_keys(src, dst, inserts)
    except OverflowError as error:
        raise IdSpaceFull(str(error)) from error
