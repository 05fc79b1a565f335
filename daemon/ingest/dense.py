"""A block of updates between external ids becomes a batch between dense vertices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...gpma.edges import NO_VERTEX, EdgeBatch, Op, Vertices, pack
from ...gpma.index.ids import IdColumn, IntColumn, concatenate_ids
from ...gpma.index.vertex_index import VertexIndex
from ...partition.existence import VertexOps
from ..errors import IdSpaceFull
from ..records.stream import UpdateBlock
from .decode_columns import on_vertices


class DenseBatch(NamedTuple):
    """A block of updates between dense vertices.

    ``vertices``: the operations on vertices, None where there are none. Deletions that named a vertex which
    never existed are left out, and counted: ``unknown`` of edges, ``unknown_vertices`` of vertices. ``times``: of
    the edge updates, int64 or one for all, in milliseconds since 1970.
    """

    edges: EdgeBatch
    vertices: VertexOps | None = None
    unknown: int = 0
    unknown_vertices: int = 0
    times: IntColumn | int = 0

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
    if int(block.ops.max(initial=0)) > Op.INSERT:
        return _with_vertex_ops(block, index)
    inserts = block.ops == Op.INSERT
    if inserts.all():
        src, dst = _inserted(index, block.src, block.dst)
        return DenseBatch(EdgeBatch(pack(src, dst), block.ops, block.weights), times=block.timestamps_ms)
    _inserted(index, block.src[inserts], block.dst[inserts])
    src, dst = index.lookup(block.src), index.lookup(block.dst)
    known = (src != NO_VERTEX) & (dst != NO_VERTEX)
    unknown = int(known.size - np.count_nonzero(known))
    if unknown == 0:
        return DenseBatch(EdgeBatch(pack(src, dst), block.ops, block.weights), times=block.timestamps_ms)
    weights = None if block.weights is None else block.weights[known]
    batch = EdgeBatch(pack(src[known], dst[known]), block.ops[known], weights)
    return DenseBatch(batch, unknown=unknown, times=_times_at(block, known))


def _times_at(block: UpdateBlock, rows: npt.NDArray[np.bool_]) -> IntColumn | int:
    times = block.timestamps_ms
    return times if isinstance(times, int) else times[rows]


def _with_vertex_ops(block: UpdateBlock, index: VertexIndex) -> DenseBatch:
    """``dense_batch`` where some updates are operations on vertices."""
    n = len(block)
    vertex_op = on_vertices(block.ops)
    # A vertex alone stands for both ends, so that new ones are numbered in order of first appearance.
    heads = concatenate_ids([block.src, block.dst])[np.where(vertex_op, np.arange(n), np.arange(n, 2 * n))]
    inserts = (block.ops == Op.INSERT) | (block.ops == Op.INSERT_VERTEX)
    _inserted(index, block.src[inserts], heads[inserts])
    src, dst = index.lookup(block.src), index.lookup(heads)
    known = (src != NO_VERTEX) & (dst != NO_VERTEX)
    edge, vertex = known & ~vertex_op, known & vertex_op
    weights = None if block.weights is None else block.weights[edge]
    positions = np.cumsum(edge, dtype=np.int64)
    unknown_vertices = int(np.count_nonzero(vertex_op & ~known))
    return DenseBatch(
        EdgeBatch(pack(src[edge], dst[edge]), block.ops[edge], weights),
        VertexOps(src[vertex], block.ops[vertex], positions[vertex]),
        unknown=int(np.count_nonzero(~known)) - unknown_vertices,
        unknown_vertices=unknown_vertices,
        times=_times_at(block, edge),
    )


def _inserted(index: VertexIndex, src: IdColumn, dst: IdColumn) -> tuple[Vertices, Vertices]:
    try:
        return index.insert_edges(src, dst)
    except OverflowError as error:
        raise IdSpaceFull(str(error)) from error
