"""Updates in columns, on their way to a source: what producers cut into records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops, Weights
from ...gpma.index.ids import IdColumn, StringColumn
from .encode import encode_msgpack


@dataclass(frozen=True, slots=True)
class UpdateColumns:
    """n updates in order.

    ``ops``: uint8[n]; ``weights``: float32[n], or None (all 1.0); ``timestamps_ms``: int64[n] or None.
    """

    src: IdColumn
    dst: IdColumn
    ops: Ops
    weights: Weights | None = None
    timestamps_ms: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.ops.size)

    def take(self, chosen: npt.NDArray[np.int64]) -> UpdateColumns:
        """The updates at these places."""
        return UpdateColumns(
            self.src[chosen],
            self.dst[chosen],
            self.ops[chosen],
            None if self.weights is None else self.weights[chosen],
            None if self.timestamps_ms is None else self.timestamps_ms[chosen],
        )

    @classmethod
    def of_vertices(cls, op: Op, vertices: IdColumn) -> UpdateColumns:
        """One operation, ``Op.INSERT_VERTEX`` or ``Op.DELETE_VERTEX``, on each of these."""
        n = len(vertices)
        nothing: IdColumn = np.zeros(n, np.int64)
        if isinstance(vertices, StringColumn):
            nothing = StringColumn(np.empty(0, np.uint8), np.zeros(n + 1, np.int64))
        return cls(vertices, nothing, np.full(n, op, np.uint8))

    def encode(self) -> bytes:
        """One columnar record."""
        ops = None if Op.INSERT.among(self.ops).all() else self.ops
        return encode_msgpack(self.src, self.dst, ops, self.weights, self.timestamps_ms)


def canonical(columns: UpdateColumns) -> UpdateColumns:
    """Every edge with its smaller end as src (integers by value, strings by bytes), as undirected graphs do.

    Operations on vertices stay as they are.
    """
    src, dst = columns.src, columns.dst
    turned = columns.ops <= np.uint8(Op.INSERT)
    ends: tuple[IdColumn, IdColumn]
    if isinstance(src, StringColumn) or isinstance(dst, StringColumn):
        assert isinstance(src, StringColumn) and isinstance(dst, StringColumn)
        rows = zip(src.to_list(), dst.to_list(), turned.tolist(), strict=True)
        pairs = [sorted((a, b), key=str.encode) if edge else (a, b) for a, b, edge in rows]
        ends = StringColumn.of([a for a, _ in pairs]), StringColumn.of([b for _, b in pairs])
    else:
        turned &= src > dst
        ends = np.where(turned, dst, src), np.where(turned, src, dst)
    return UpdateColumns(ends[0], ends[1], columns.ops, columns.weights, columns.timestamps_ms)
