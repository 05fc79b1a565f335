"""The rules that updates of every encoding must obey, applied to whole columns at a time.

Each function takes a column as some encoding delivered it and returns the checked NumPy column, or raises
``BadRows`` with the reason and all rows that it is about. Nothing here knows an encoding.
"""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Op, Ops, Weights
from ...gpma.index.ids import (
    INTEGER,
    MAX_STRING_ID_BYTES,
    IdColumn,
    IntColumn,
    StringColumn,
    concatenate_ids,
    equal_ids,
)
from ...partition.weights import WeightDomain, are_allowed, in_domain, why_not, without_minus_zero
from ..records.event_time import NO_TIME, UNLIMITED
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
    NO_TIME = "no-time"
    """An insert without a time of its own, in a record without one, where edges expire by time."""
    IN_FUTURE = "in-future"
    """A time that lies further in the future than is allowed, where edges expire by time."""
    TOO_LARGE = "too-large"
    """More updates in a record, or more bytes in a line, than allowed."""
    BAD_VERTEX_OP = "bad-vertex-op"
    """An operation on a vertex that names a dst as well."""
    BAD_CHANGE = "bad-change"
    """A change of a table that does not say which edges it is about."""
    NO_KEY = "no-key"
    """A record without a key, where keys stand for edges."""
    NOT_ONE_EDGE = "not-one-edge"
    """A record that holds many edges, or is of an encoding that does, where its key stands for one."""
    UNKNOWN_SCHEMA = "unknown-schema"
    """The registry knows no schema of this id."""
    UNASKED_SCHEMA = "unasked-schema"
    """The registry was not asked for this id: records name too many that it does not know."""
    BAD_SCHEMA = "bad-schema"
    """The record's schema, or what it refers to, cannot be used."""
    BAD_BARRIER = "bad-barrier"
    """A barrier whose id is no UTF-8 of 1 to 128 bytes."""
    DAMAGED = "damaged"
    """A file whose rest cannot be read: its compressed data or its framing is damaged."""
    BAD_NAME = "bad-name"
    """A file whose name is not UTF-8."""
    INTERNAL = "internal"
    """The decoder failed; the detail holds the error."""


class Bad(Exception):
    """This record, or line, cannot be applied."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class BadRows(Bad):
    """Some rows of a column cannot be applied; those beside them may be."""

    def __init__(self, reason: Reason, rows: npt.NDArray[np.int64], why: Callable[[int], str]) -> None:
        """``rows``: int64[k], k > 0, ascending: all that fail this check; ``why``: the detail of one of them."""
        super().__init__(reason, why(int(rows[0])))
        self.rows = rows
        self.why = why


@dataclass(frozen=True, slots=True)
class Rules:
    """What a graph accepts, and how much of it at once.

    ``updates_max``: updates in one record; ``line_bytes_max``: bytes in one line of a line format. ``latest_ms``:
    inserts must have a time, and nothing may have a later one (milliseconds since 1970); None: any, or none.
    """

    vertex_ids: Literal["int", "string"]
    weights: WeightDomain
    drop_self_loops: bool
    updates_max: int
    line_bytes_max: int
    latest_ms: int | None = None


OPS_BY_NAME = {
    "insert": Op.INSERT,
    "delete": Op.DELETE,
    "insert_vertex": Op.INSERT_VERTEX,
    "delete_vertex": Op.DELETE_VERTEX,
}
COLUMNS = ("src", "dst", "op", "weight", "ts")
"""What the fields of a line may be."""


def shown(value: object) -> str:
    """A value as an error message may quote it: in a few words, however large it is; null, true and false as JSON
    has them."""
    if value is None or type(value) is bool:
        return json.dumps(value)
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


def refused(
    reason: Reason, values: Sequence[Any], is_good: Callable[[Any], bool], why: Callable[[Any], str]
) -> BadRows:
    """The error that names every value of a list that is not good."""
    rows = np.array([row for row, value in enumerate(values) if not is_good(value)], np.int64)
    return BadRows(reason, rows, lambda row: why(values[row]))


def ids_of(name: str, values: Sequence[Any], rules: Rules) -> IdColumn:
    """The ids in a list: of int (or strings of digits), or of str, as the graph's kind is."""
    return _strings(name, values) if rules.vertex_ids == "string" else _integers(name, values)


def check_lengths(name: str, ids: StringColumn) -> None:
    """Refuse strings that are too long to be ids."""
    lengths = ids.lengths
    if int(lengths.max(initial=0)) > MAX_STRING_ID_BYTES:
        long, allowed = np.flatnonzero(lengths > MAX_STRING_ID_BYTES), MAX_STRING_ID_BYTES
        raise BadRows(
            Reason.BAD_ID,
            long,
            lambda row: f"{name} holds a string of {lengths[row]} bytes; at most {allowed} are allowed",
        )


def ops_of(names: Sequence[Any]) -> Ops:
    """The operations in a list of names."""
    try:
        return np.array([OPS_BY_NAME[name] for name in names], np.uint8)
    except (KeyError, TypeError):
        raise refused(Reason.BAD_OP, names, _is_op, why_no_op) from None


def ops_named(name: str, n: int) -> Ops:
    """One operation n times, by its name."""
    if not _is_op(name):
        raise Bad(Reason.BAD_OP, why_no_op(name))
    return np.full(n, OPS_BY_NAME[name], np.uint8)


def _is_op(name: object) -> bool:
    return isinstance(name, str) and name in OPS_BY_NAME


def why_no_op(name: object) -> str:
    """Why this names no operation, in words."""
    return f"op is {shown(name)}; allowed are {', '.join(OPS_BY_NAME)}"


def check_ops(ops: Ops) -> None:
    """Refuse operations that do not exist."""
    if int(ops.max(initial=0)) > Op.DELETE_VERTEX:
        allowed = ", ".join(f"{code.value} ({name})" for name, code in OPS_BY_NAME.items())
        rows = np.flatnonzero(ops > np.uint8(Op.DELETE_VERTEX))
        raise BadRows(Reason.BAD_OP, rows, lambda row: f"op is {ops[row]}; allowed are {allowed}")


def on_vertices(ops: Ops) -> npt.NDArray[np.bool_]:
    """Which updates are operations on vertices, which name theirs in src (bool[n])."""
    return ops > np.uint8(Op.INSERT)


def on_a_vertex(name: object) -> bool:
    """Whether this is the name of an operation on a vertex."""
    return _is_op(name) and OPS_BY_NAME[str(name)] > Op.INSERT


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

        def why(row: int) -> str:
            value = dst[np.array([row])].to_list()[0] if isinstance(dst, StringColumn) else int(dst[row])
            return _vertex_op_detail(int(ops[row]), value)

        raise BadRows(Reason.BAD_VERTEX_OP, np.flatnonzero(given), why)


def dst_values(values: Sequence[Any], ops: Ops, rules: Rules) -> Sequence[Any]:
    """The dst in a list, where those of operations on vertices may be 0, empty or None, for ``ids_of``."""
    rows = np.flatnonzero(on_vertices(ops)).tolist()
    if not rows:
        return values
    integers = rules.vertex_ids == "int"
    if named := [row for row in rows if not _is_nothing(values[row], integers=integers)]:
        bad = np.array(named, np.int64)
        raise BadRows(Reason.BAD_VERTEX_OP, bad, lambda row: _vertex_op_detail(int(ops[row]), values[row]))
    filled = list(values)
    for row in rows:
        filled[row] = 0 if integers else ""
    return filled


def _is_nothing(value: object, *, integers: bool) -> bool:
    """Whether this says that there is no dst: None, the empty string, 0, or its digits where ids are integers."""
    if value is None or value == "" or (type(value) is int and value == 0):
        return True
    return integers and type(value) is str and INTEGER.fullmatch(value) is not None and int(value) == 0


def _vertex_op_detail(op: int, dst: object) -> str:
    return f"{Op(op).name.lower()} names its vertex in src; dst must be 0 or empty, and is {shown(dst)}"


def weights_of(values: Sequence[Any], ops: Ops, domain: WeightDomain) -> Weights | None:
    """The weights in a list of int and float; what stands there of operations that have none is passed over."""
    if not set(map(type, values)) <= {int, float}:
        values = [
            value if op == Op.INSERT or type(value) in (int, float) else 1.0
            for value, op in zip(values, ops.tolist(), strict=True)
        ]
    if not set(map(type, values)) <= {int, float}:
        raise refused(
            Reason.BAD_WEIGHT,
            values,
            lambda value: type(value) in (int, float),
            lambda value: f"weight is {shown(value)}; it must be a number",
        )
    return checked_weights(float32_of(values), ops, domain)


def float32_of(values: Sequence[float]) -> Weights:
    """float32 of numbers; those too large become infinite, for the check to find."""
    try:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        why = "it must be within the range of float32"
        raise refused(
            Reason.BAD_WEIGHT, values, _is_float, lambda value: f"weight is {shown(value)}; {why}"
        ) from None


def _is_float(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def checked_weights(weights: Weights, ops: Ops, domain: WeightDomain) -> Weights | None:
    """The weights as the graph keeps them: all in its domain, no minus zero; None where it keeps none.

    Only insertions have one: of other operations one outside the domain is 1.0.
    """
    try:
        kept = in_domain(weights, domain)
    except ValueError:
        outside = ~are_allowed(weights, domain)
        if (bad := np.flatnonzero(outside & Op.INSERT.among(ops))).size:
            raise BadRows(Reason.BAD_WEIGHT, bad, lambda row: why_not(weights[row], domain)) from None
        kept = without_minus_zero(np.where(outside, np.float32(1), weights))
    return None if domain == "unweighted" else kept


def timestamps_of(values: Sequence[Any]) -> IntColumn:
    """The times in a list of int, in milliseconds since 1970."""
    if set(map(type, values)) <= {int}:
        with contextlib.suppress(OverflowError):
            return np.array(values, np.int64)
    why = "it must be a 64-bit integer (milliseconds)"
    raise refused(Reason.BAD_TIMESTAMP, values, _is_int64, lambda value: f"ts is {shown(value)}; {why}")


def checked_times(times: IntColumn | int, ops: Ops, rules: Rules) -> IntColumn | int:
    """The times of updates, or one for all of them; refuses those that edges cannot expire by.

    Where all updates lack one the record is bad, whatever is in it.
    """
    latest = rules.latest_ms
    if latest is None:
        return times
    if isinstance(times, int):
        if -UNLIMITED <= times <= latest or (times < -UNLIMITED and not Op.INSERT.among(ops).any()):
            return times
        raise Bad(*_why_no_time(times, latest))
    if (late := np.flatnonzero(times > latest)).size:
        raise BadRows(Reason.IN_FUTURE, late, lambda row: _why_no_time(int(times[row]), latest)[1])
    if (none := np.flatnonzero((times < -UNLIMITED) & Op.INSERT.among(ops))).size:
        raise BadRows(Reason.NO_TIME, none, lambda row: _why_no_time(NO_TIME, latest)[1])
    return times


_FINER = ("nanoseconds", 10**17), ("microseconds", 10**14)
"""From when on times of our days are so: 10^14 ms are of the year 5138, and 10^14 us of 1973."""


def _why_no_time(time_ms: int, latest_ms: int) -> tuple[Reason, str]:
    if time_ms > latest_ms:
        said = f"ts is {time_ms}, {time_ms - latest_ms} ms later than is allowed when this is read"
        finer = next((unit for unit, least in _FINER if time_ms >= least), None)
        meant = "" if finer is None else f"; it must be milliseconds since 1970, and looks like {finer}"
        return Reason.IN_FUTURE, f"{said}{meant}"
    return Reason.NO_TIME, "edges expire by the time of their updates (window.length): ts is missing"


def finish(block: UpdateBlock, rules: Rules) -> tuple[UpdateBlock | None, int]:
    """The block as it goes on (None: nothing is left), and how many self-loops were dropped."""
    if not rules.drop_self_loops:
        return (block if len(block) else None), 0
    loops = equal_ids(block.src, block.dst) & ~on_vertices(block.ops)
    if block.row_keys is not None:
        # A key that stands for a loop stands for no edge, and for the one before no more.
        loops &= Op.INSERT.among(block.ops)
        ops = np.where(loops, np.uint8(Op.DELETE), block.ops)
        return (replace(block, ops=ops) if len(block) else None), int(np.count_nonzero(loops))
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
        None if block.row_keys is None else block.row_keys[mask],
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
    numbers, types = values, set(map(type, values))
    if str in types:
        numbers = [_number(value) if type(value) is str else value for value in values]
        types = set(map(type, numbers))
    if types <= {int}:
        with contextlib.suppress(OverflowError):
            return np.array(numbers, np.int64)
    why = "ids are 64-bit integers"
    raise refused(Reason.BAD_ID, values, _is_id, lambda value: f"{name} holds {shown(value)}; {why}")


def _number(text: str) -> int | None:
    return int(text) if INTEGER.fullmatch(text) else None


def _is_id(value: object) -> bool:
    return _is_int64(_number(value) if type(value) is str else value)


def _is_int64(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _strings(name: str, values: Sequence[Any]) -> StringColumn:
    if not set(map(type, values)) <= {str}:
        raise refused(
            Reason.BAD_ID,
            values,
            lambda value: type(value) is str,
            lambda value: f"{name} holds {shown(value)}; ids are strings",
        )
    try:
        column = StringColumn.of(values)
    except UnicodeEncodeError:
        why = f"{name} holds a string that is not valid Unicode"
        raise refused(Reason.BAD_ID, values, _is_unicode, lambda _: why) from None
    check_lengths(name, column)
    return column


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
