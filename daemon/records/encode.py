"""Records of edge updates, as producers write them: the inverse of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op
from ...gpma.index.ids import StringColumn
from .encodings import RECORD_VERSION

GivenIds = npt.ArrayLike | StringColumn | Sequence[str]


def encode_msgpack(
    src: GivenIds,
    dst: GivenIds | None = None,
    ops: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    timestamps_ms: npt.ArrayLike | None = None,
) -> bytes:
    """One columnar record (``encodings.CONTENT_TYPE``) of updates in order.

    ``src``, ``dst``: int64[n], or n strings; ``ops``: uint8[n] of ``Op`` or one for all (None: inserts);
    operations on vertices name theirs in ``src``, with 0 or an empty string in ``dst``, which may be None where
    there are no others;
    ``weights``: float32[n] or None; ``timestamps_ms``: int64[n] or None (the record's own time).

    Raises:
        ValueError: the columns are not of one length, or edges have no ``dst``.
    """
    if dst is None and (ops is None or (np.asarray(ops, np.uint8) <= np.uint8(Op.INSERT)).any()):
        raise ValueError("edges need a dst; only operations on vertices do without")
    columns: dict[str, Any] = {"v": RECORD_VERSION, "src": _ids(src)}
    if dst is not None:
        columns["dst"] = _ids(dst)
    n = len(columns["src"])
    if ops is not None:
        column = np.asarray(ops, np.uint8)
        columns["op"] = Op(int(column)).name.lower() if column.ndim == 0 else column
    if weights is not None:
        columns["weight"] = np.ascontiguousarray(weights, "<f4")
    if timestamps_ms is not None:
        columns["ts"] = np.ascontiguousarray(timestamps_ms, "<i8")
    for name, column in columns.items():
        if name != "v" and not isinstance(column, str) and len(column) != n:
            raise ValueError(f"{name} has {len(column)} entries and src has {n}")
    return bytes(msgpack.packb(columns, default=_bytes))


def _ids(ids: GivenIds) -> Any:
    if isinstance(ids, StringColumn):
        return ids.to_list()
    if isinstance(ids, Sequence) and len(ids) and isinstance(ids[0], str):
        return list(ids)
    return np.ascontiguousarray(ids, "<i8")


def _bytes(column: npt.NDArray[Any]) -> bytes:
    return column.tobytes()
