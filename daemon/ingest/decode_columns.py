"""The rules that updates of every encoding must obey, applied to whole columns at a time.

Each function takes a column as some encoding delivered it and returns the checked NumPy column, or raises
``Bad`` with the reason. Nothing here knows an encoding.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops, Weights
from ...gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, IntColumn, StringColumn, concatenate_ids, equal_ids
from ...partition.weights import WeightDomain, in_domain
from ..records.stream import UpdateBlock


class Reason(StrEnum):
    """Why a record is bad: stable codes, used as metric labels and in dead letters."""

    MALFORMED = "malformed"
    """The bytes are not of their encoding, or not of its expected form."""
    UNKNOWN_ENCODING = "unknown-encoding"
    """The content type is none that is understood."""
    UNSUPPORTED_VERSION = "unsupported-version"
    """``v`` is missing or not 1."""
    BAD_COLUMN = "bad-column"
    """A column is missing, of the wrong type, or of another length than the rest."""
    BAD_OP = "bad-op"
    """An operation that does not exist."""
    BAD_ID = "bad-id"
    """A vertex id of the wrong kind, or out of range."""
    BAD_WEIGHT = "bad-weight"
    """A weight that is no finite float32, or outside the graph's weight domain."""
    BAD_TIMESTAMP = "bad-timestamp"
    """A time that is no 64-bit integer."""
    TOO_LARGE = "too-large"
    """More updates in a record, or more bytes in a line, than allowed."""
    BAD_VERTEX_OP = "bad-vertex-op"
    """An operation on a vertex that names a dst as well."""
    BAD_BARRIER = "bad-barrier"
    """A barrier whose id is no UTF-8 of 1 to 128 bytes."""
    INTERNAL = "internal"
    """The decoder failed; the detail holds the error."""


class Bad(Exception):
    """This record, or line, cannot be applied."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Rules:
    """What a graph accepts, and how much of it at once.

    ``updates_max``: updates in one record; ``line_bytes_max``: bytes in one line of a line format.
    """

    vertex_ids: Literal["int", "string"]
    weights: WeightDomain
    drop_self_loops: bool
    updates_max: int
    line_bytes_max: int


OPS_BY_NAME = {
    "insert": Op.INSERT,
    "delete": Op.DELETE,
    "insert_vertex": Op.INSERT_VERTEX,
    "delete_vertex": Op.DELETE_VERTEX,
}
INTEGER = re.compile(r"[+-]?[0-9]{1,64}")


def shown(value: object) -> str:
    """A value as an error message may quote it: in a few words, however large it is."""
    return reprlib.repr(value)


def inserts(n: int) -> Ops:
    """The column of operations that is meant when there is none."""
    return np.full(n, Op.INSERT, np.uint8)


def check_count(n: int, rules: Rules) -> None:
    """Refuse records with too many updates."""
    if n > rules.updates_max:
        raise Bad(Reason.TOO_LARGE, f"{n} updates in one record; at most {rules.updates_max} are allowed")


def check_length(name: str, length: int, n: int) -> None:
    """Refuse a column of another length than ``src``."""
    if length != n:
        raise Bad(Reason.BAD_COLUMN, f"{name} has {length} entries and src has {n}")


def ids_of(name: str, values: Sequence[Any], rules: Rules) -> IdColumn:
    """The ids in a list: of int (or strings of digits), or of str, as the graph's kind is."""
    return _strings(name, values) if rules.vertex_ids == "string" else _integers(name, values)


def check_string_lengths(name: str, column: StringColumn) -> None:
    """Refuse strings that are too long to be ids."""
    if len(column) and int(column.lengths.max()) > MAX_STRING_ID_BYTES:
        length = int(column.lengths.max())
        raise Bad(
            Reason.BAD_ID, f"{name} holds a string of {length} bytes; at most {MAX_STRING_ID_BYTES} are allowed"
        )


def ops_of(names: Sequence[Any]) -> Ops:
    """The operations in a list of names."""
    try:
        codes = [OPS_BY_NAME[name] for name in names]
    except (KeyError, TypeError):
        wrong = next(name for name in names if not isinstance(name, str) or name not in OPS_BY_NAME)
        raise Bad(Reason.BAD_OP, f"op is {shown(wrong)}; allowed are {', '.join(OPS_BY_NAME)}") from None
    ops = np.array(codes, np.uint8)
    check_ops(ops)
    return ops


def check_ops(ops: Ops) -> None:
    """Refuse operations that do not exist."""
    largest = int(ops.max(initial=0))
    if largest > Op.DELETE_VERTEX:
        allowed = ", ".join(f"{code.value} ({name})" for name, code in OPS_BY_NAME.items())
        raise Bad(Reason.BAD_OP, f"op is {largest}; allowed are {allowed}")


def on_vertices(ops: Ops) -> npt.NDArray[np.bool_]:
    """Which updates are operations on vertices, which name theirs in src (bool[n])."""
    return ops > Op.INSERT


def no_dst(n: int, rules: Rules) -> IdColumn:
    """The dst of n operations on vertices: 0, or the empty string."""
    if rules.vertex_ids == "string":
        return StringColumn(np.empty(0, np.uint8), np.zeros(n + 1, np.int64))
    return np.zeros(n, np.int64)


def check_no_dst(dst: IdColumn, ops: Ops) -> None:
    """Refuse operations on vertices that name a dst."""
    if int(ops.max(initial=0)) <= Op.INSERT:
        return
    given = on_vertices(ops)
    given &= (dst.lengths if isinstance(dst, StringColumn) else dst) != 0
    if given.any():
        row = np.flatnonzero(given)[:1]
        value = dst[row].to_list()[0] if isinstance(dst, StringColumn) else int(dst[row[0]])
        raise Bad(Reason.BAD_VERTEX_OP, _vertex_op_detail(int(ops[row[0]]), value))


def dst_values(values: Sequence[Any], ops: Ops, rules: Rules) -> Sequence[Any]:
    """The dst in a list, where those of operations on vertices may be 0, empty or None, for ``ids_of``."""
    rows = np.flatnonzero(on_vertices(ops)).tolist()
    if not rows:
        return values
    filled = list(values)
    integers = rules.vertex_ids == "int"
    for row in rows:
        if not _is_nothing(filled[row], integers=integers):
            raise Bad(Reason.BAD_VERTEX_OP, _vertex_op_detail(int(ops[row]), filled[row]))
        filled[row] = 0 if integers else ""
    return filled


def _is_nothing(value: object, *, integers: bool) -> bool:
    """Whether this says that there is no dst: None, the empty string, 0, or its digits where ids are integers."""
    if value is None or value == "" or (type(value) is int and value == 0):
        return True
    return integers and type(value) is str and INTEGER.fullmatch(value) is not None and int(value) == 0


def _vertex_op_detail(op: int, dst: object) -> str:
    return f"{Op(op).name.lower()} names its vertex in src; dst must be 0 or empty, and is {shown(dst)}"


def weights_of(values: Sequence[Any], domain: WeightDomain) -> Weights | None:
    """The weights in a list of int and float."""
    if not set(map(type, values)) <= {int, float}:
        wrong = next(value for value in values if type(value) not in (int, float))
        raise Bad(Reason.BAD_WEIGHT, f"weight is {shown(wrong)}; it must be a number")
    return checked_weights(float32_of(values), domain)


def float32_of(values: Sequence[float]) -> Weights:
    """float32 of numbers; those too large become infinite, for the check to find."""
    try:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        raise Bad(Reason.BAD_WEIGHT, "a weight is past the range of float32") from None


def checked_weights(weights: Weights, domain: WeightDomain) -> Weights | None:
    """The weights as the graph keeps them: all in its domain, no minus zero; None where it keeps none."""
    try:
        kept = in_domain(weights, domain)
    except ValueError as error:
        raise Bad(Reason.BAD_WEIGHT, str(error)) from None
    return None if domain == "unweighted" else kept


def timestamps_of(values: Sequence[Any]) -> IntColumn:
    """The times in a list of int, in milliseconds since 1970."""
    if not set(map(type, values)) <= {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise Bad(Reason.BAD_TIMESTAMP, f"ts is {shown(wrong)}; it must be an integer (milliseconds)")
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise Bad(Reason.BAD_TIMESTAMP, "a ts is past the range of 64-bit integers") from None


def finish(block: UpdateBlock, rules: Rules) -> tuple[UpdateBlock | None, int]:
    """The block as it goes on (None: nothing is left), and how many self-loops were dropped."""
    if not rules.drop_self_loops:
        return (block if len(block) else None), 0
    loops = equal_ids(block.src, block.dst) & ~on_vertices(block.ops)
    dropped = int(np.count_nonzero(loops))
    kept = select(block, ~loops) if dropped else block
    return (kept if len(kept) else None), dropped


def select(block: UpdateBlock, mask: npt.NDArray[np.bool_]) -> UpdateBlock:
    """The updates where the mask is true."""
    ts = block.timestamps_ms
    return UpdateBlock(
        block.src[mask],
        block.dst[mask],
        block.ops[mask],
        None if block.weights is None else block.weights[mask],
        ts if isinstance(ts, int) else ts[mask],
    )


def concatenate(blocks: Sequence[UpdateBlock]) -> UpdateBlock:
    """Blocks (at least one) one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    times = {block.timestamps_ms for block in blocks if isinstance(block.timestamps_ms, int)}
    one_time = len(times) == 1 and all(isinstance(block.timestamps_ms, int) for block in blocks)
    return UpdateBlock(
        concatenate_ids([block.src for block in blocks]),
        concatenate_ids([block.dst for block in blocks]),
        np.concatenate([block.ops for block in blocks]),
        None
        if all(block.weights is None for block in blocks)
        else np.concatenate([*map(weights_in_full, blocks)]),
        times.pop() if one_time else np.concatenate([*map(timestamps_in_full, blocks)]),
    )


def weights_in_full(block: UpdateBlock) -> Weights:
    """The weights as a column, also where none was given."""
    return np.ones(len(block), np.float32) if block.weights is None else block.weights


def timestamps_in_full(block: UpdateBlock) -> IntColumn:
    """The times as a column, also where one stands for all."""
    ts = block.timestamps_ms
    return np.full(len(block), ts, np.int64) if isinstance(ts, int) else ts


def _integers(name: str, values: Sequence[Any]) -> IntColumn:
    types = set(map(type, values))
    if str in types:
        values = [_integer(name, value) if type(value) is str else value for value in values]
        types = {*types - {str}, int}
    if not types <= {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise Bad(Reason.BAD_ID, f"{name} holds {shown(wrong)}; ids are 64-bit integers")
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise Bad(Reason.BAD_ID, f"{name} holds an id past the range of 64-bit integers") from None


def _integer(name: str, text: str) -> int:
    if INTEGER.fullmatch(text) is None:
        raise Bad(Reason.BAD_ID, f"{name} holds {shown(text)}; ids are 64-bit integers")
    return int(text)


def _strings(name: str, values: Sequence[Any]) -> StringColumn:
    if not set(map(type, values)) <= {str}:
        wrong = next(value for value in values if type(value) is not str)
        raise Bad(Reason.BAD_ID, f"{name} holds {shown(wrong)}; ids are strings")
    try:
        column = StringColumn.of(values)
    except UnicodeEncodeError:
        raise Bad(Reason.BAD_ID, f"{name} holds a string that is not valid Unicode") from None
    check_string_lengths(name, column)
    return column
