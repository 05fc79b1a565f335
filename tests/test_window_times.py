"""The times by which edges expire: in every encoding an insert must have one, and none may lie too far ahead."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.registry import Registry, Schema
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord

LATEST = 1000
READ_AT = 500
INSERT, DELETE = 1, 0
Row = tuple[int, int | None]
"""Operation and time; the src is the number of the row."""


def of_msgpack(rows: list[Row]) -> bytes:
    times = None if any(time is None for _, time in rows) else [time for _, time in rows]
    n = np.arange(len(rows))
    return encode_msgpack(n, n, np.array([op for op, _ in rows], np.uint8), timestamps_ms=times)


def objects(rows: list[Row]) -> list[dict[str, object]]:
    names = {INSERT: "insert", DELETE: "delete"}
    return [
        {"src": number, "dst": 7, "op": names[op]} | ({} if time is None else {"ts": time})
        for number, (op, time) in enumerate(rows)
    ]


def of_json(rows: list[Row]) -> bytes:
    return json.dumps({"v": 1, "edges": objects(rows)}).encode()


def of_json_lines(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in objects(rows))


def of_csv(rows: list[Row]) -> bytes:
    lines = [f"{number},7,{op},{'' if time is None else time}\n" for number, (op, time) in enumerate(rows)]
    return ("src,dst,op,ts\n" + "".join(lines)).encode()


def of_arrow(rows: list[Row]) -> bytes:
    n = np.arange(len(rows))
    batch = pa.record_batch(
        [
            pa.array(n),
            pa.array(n),
            pa.array([op for op, _ in rows], pa.uint8()),
            pa.array([t for _, t in rows], pa.int64()),
        ],
        ["src", "dst", "op", "ts"],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


FORMS = {
    "msgpack": ("msgpack", of_msgpack),
    "json": ("json", of_json),
    "json lines": ("json", of_json_lines),
    "csv": ("csv", of_csv),
    "arrow": ("arrow", of_arrow),
}


def decoded(form: str, rows: list[Row], *, timed: bool = False, compiled_from: int = 0) -> Decoded:
    """By a decoder of a graph whose edges expire. ``timed``: the record has a time of its own."""
    encoding, encode = FORMS[form]
    decoder = Decoder(compiled_from=compiled_from)
    decoder.accept_until(LATEST)
    return decoder.decode(RawRecord(Partition("t", 0), 0, 1, encode(rows), encoding, READ_AT, timed=timed))


def kept(item: Decoded) -> list[tuple[int, int]]:
    """The good rows and their times."""
    if item.block is None:
        return []
    times = np.broadcast_to(item.block.timestamps_ms, len(item.block))
    return list(zip(np.asarray(item.block.src).tolist(), times.tolist(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_too_far_ahead_is_set_aside_by_itself(form: str) -> None:
    rows: list[Row] = [(INSERT, 10), (INSERT, LATEST), (INSERT, LATEST + 1), (DELETE, 2**40), (INSERT, 20)]
    item = decoded(form, rows)
    assert kept(item) == [(0, 10), (1, LATEST), (4, 20)]
    assert [bad.reason for bad in item.bad] == ["in-future"] * 2


@pytest.mark.parametrize("compiled_from", [0, 1 << 30], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "msgpack"])
def test_an_insert_without_a_time_has_the_record_s_or_none(form: str, compiled_from: int) -> None:
    rows: list[Row] = [(INSERT, 10), (INSERT, None), (DELETE, None)]
    assert kept(decoded(form, rows, timed=True, compiled_from=compiled_from)) == [
        (0, 10),
        (1, READ_AT),
        (2, READ_AT),
    ]
    item = decoded(form, rows, compiled_from=compiled_from)
    assert [src for src, _ in kept(item)] == [0, 2], "a delete needs none"
    assert [bad.reason for bad in item.bad] == ["no-time"]


@pytest.mark.parametrize("form", FORMS)
def test_where_nothing_has_a_time_everything_is_bad_unless_the_record_has_one(form: str) -> None:
    rows: list[Row] = [(INSERT, None)] * 3
    item = decoded(form, rows)
    assert kept(item) == []
    assert {bad.reason for bad in item.bad} == {"no-time"}
    assert [time for _, time in kept(decoded(form, rows, timed=True))] == [READ_AT] * 3


def test_without_a_window_times_do_not_matter() -> None:
    record = RawRecord(Partition("f"), 0, 1, of_json([(INSERT, 2**50), (INSERT, None)]), "json", READ_AT)
    item = Decoder().decode(record)
    assert kept(item) == [(0, 2**50), (1, READ_AT)]
    assert not item.bad


@pytest.mark.parametrize(
    ("time", "unit"),
    [(LATEST + 1, None), (1_795_994_081_000_000, "microseconds"), (1_795_994_081_000_000_000, "nanoseconds")],
)
def test_a_time_in_finer_units_is_told_so(time: int, unit: str | None) -> None:
    decoder = Decoder()
    decoder.accept_until(LATEST)
    (bad,) = decoder.decode(RawRecord(Partition("f"), 0, 1, of_json([(INSERT, time)]), "json", READ_AT)).bad
    assert bad.reason == "in-future" and bad.detail.startswith(f"ts is {time}, ")
    said = f"; it must be milliseconds since 1970, and looks like {unit}"
    assert bad.detail.endswith("when this is read" if unit is None else said)


class JsonSchemas(Registry):
    """A registry that knows every id."""

    def __init__(self) -> None:
        pass

    def schema(self, number: int) -> Schema:
        return Schema("JSON", "{}", {})


@pytest.mark.parametrize(("encoding", "head"), [("json", b""), ("registry", b"\0\0\0\0\1")])
def test_records_that_are_read_together_have_times_of_their_own(encoding: str, head: bytes) -> None:
    decoder = Decoder(registry=JsonSchemas())
    decoder.accept_until(LATEST)
    records = [
        RawRecord(
            partition=Partition("edges", 0),
            offset=at,
            next_offset=at + 1,
            value=head + json.dumps({"src": at, "dst": 7}).encode(),
            encoding=encoding,
            timestamp_ms=time,
            timed=time != READ_AT,
        )
        for at, time in enumerate([900, 100, READ_AT, LATEST + 1, 300])
    ]
    (decoded,) = decoder.decode_all(records)
    assert decoded.block is not None and isinstance(decoded.block.timestamps_ms, np.ndarray)
    assert decoded.block.src.tolist() == [0, 1, 4] and decoded.block.timestamps_ms.tolist() == [900, 100, 300]
    assert [(bad.offset, bad.reason) for bad in decoded.bad] == [(2, "no-time"), (3, "in-future")]
