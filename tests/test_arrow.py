"""Arrow IPC records: what they mean, every reason to refuse one, and bytes that mean nothing."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.ingest import arrow_extra, decode_arrow, sources
from graphtide.daemon.ingest.decode import REASONS, Decoder
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.encodings import encoding_of
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.daemon.tools import doctor
from graphtide.gpma.index.ids import StringColumn

TOPIC = Partition("edges", 0)
NOW = 1_700_000_000_000
OPS = ("delete", "insert", "insert_vertex", "delete_vertex")


def stream(*batches: Any, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def batch(**given_columns: Any) -> Any:
    """A batch of these columns: arrays, or lists (integers become int64, texts strings)."""
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in given_columns.values()]
    return pa.record_batch(arrays, list(given_columns))


def decode(value: bytes, kind: Any = "int", **rules: Any) -> Decoded:
    record = RawRecord(TOPIC, 4, 5, value, "arrow", NOW, b"key")
    return Decoder(vertex_ids=kind, **{"weights": "any", **rules}).decode(record)


def updates(decoded: Decoded) -> list[tuple[Any, ...]]:
    if decoded.block is None:
        return []
    block, n = decoded.block, len(decoded.block)
    ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
    for ids in (block.src, block.dst):
        assert isinstance(ids, StringColumn) or (ids.dtype == np.int64 and ids.flags.aligned)
    assert block.ops.dtype == np.uint8 and (block.weights is None or block.weights.dtype == np.float32)
    weights = [1.0] * n if block.weights is None else block.weights.tolist()
    ts = block.timestamps_ms
    times = [ts] * n if isinstance(ts, int) else ts.tolist()
    return [*zip(*ends, block.ops.tolist(), weights, times, strict=True)]


def good(decoded: Decoded) -> list[tuple[Any, ...]]:
    assert not decoded.bad, [(bad.reason, bad.detail) for bad in decoded.bad]
    return updates(decoded)


# What a stream means


rows_of = {
    "int": st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
    "string": st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=9)] * 2),
}


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(["int", "string"]), st.booleans(), st.booleans(), st.integers(1, 4))
def test_a_stream_is_what_columns_of_msgpack_are(
    data: st.DataObject, kind: str, wide: bool, dictionaries: bool, cut: int
) -> None:
    """In any number of batches, the columns of the same updates, plain or with dictionaries, sliced or not."""
    tail = (st.integers(0, 3), st.floats(-9, 9, width=32), st.integers(-(2**62), 2**62))
    rows = [
        (*ends, *rest) if rest[0] < 2 else (ends[0], 0 if kind == "int" else "", *rest)
        for ends, *rest in data.draw(st.lists(st.tuples(rows_of[kind], *tail), min_size=1, max_size=12))
    ]
    src, dst, ops, weights, ts = zip(*rows, strict=True)
    text = pa.large_string() if wide else pa.string()
    ids = pa.int64() if kind == "int" else text
    names = pa.array([OPS[op] for op in ops], text)
    columns = {
        "note": pa.array([["x"]] * len(rows)),
        "ts": pa.array(ts, pa.int64()),
        "weight": pa.array(weights, pa.float64() if wide else pa.float32()),
        "dst": pa.array(dst, ids),
        "op": names.dictionary_encode() if dictionaries else names if wide else pa.array(ops, pa.uint8()),
        "src": pa.array(src, ids).dictionary_encode() if dictionaries and kind == "string" else pa.array(src, ids),
    }
    whole = batch(**columns)
    parts = [whole.slice(at, cut) for at in range(0, len(rows), cut)]
    plain = encode_msgpack(
        *(StringColumn.of(column) if kind == "string" else list(column) for column in (src, dst)),
        ops=list(ops),
        weights=list(weights),
        timestamps_ms=list(ts),
    )
    record = RawRecord(TOPIC, 4, 5, plain, "msgpack", NOW, b"key")
    expected = good(Decoder(vertex_ids=kind, weights="any").decode(record))  # type: ignore[arg-type]
    assert good(decode(stream(whole), kind)) == good(decode(stream(*parts), kind)) == expected


def test_kinds_of_columns() -> None:
    assert encoding_of([("content-type", b"application/vnd.apache.arrow.stream")], "json") == "arrow"
    assert good(decode(stream(batch(src=[1], dst=[2])))) == [(1, 2, 1, 1.0, NOW)]
    assert decode(stream(batch(src=[1], dst=[2]).slice(1))) == Decoded(
        RawRecord(TOPIC, 4, 5, stream(batch(src=[1], dst=[2]).slice(1)), "arrow", NOW, b"key"), None, []
    )
    assert good(decode(stream(batch(src=pa.array([7], pa.int8()), dst=pa.array([9], pa.uint64()))))) == [
        (7, 9, 1, 1.0, NOW)
    ]
    for unit, value in (("s", 5), ("ms", 5_000), ("us", 5_000_999), ("ns", 5_000_999_999)):
        times = pa.array([value, None], pa.timestamp(unit, "UTC"))
        assert [row[4] for row in good(decode(stream(batch(src=[1, 2], dst=[2, 3], ts=times))))] == [5000, NOW]
    nothing = batch(src=[1, 2], dst=[3, None], op=[None, "delete_vertex"], weight=pa.array([None, 2.0]))
    assert good(decode(stream(nothing))) == [(1, 3, 1, 1.0, NOW), (2, 0, 3, 2.0, NOW)]
    vertices = batch(src=["a"], op=["insert_vertex"])
    assert good(decode(stream(vertices), "string")) == [("a", "", 2, 1.0, NOW)]


def test_columns_are_read_in_place() -> None:
    """Integers, weights and times are the record's own bytes: nothing is copied."""
    value = stream(batch(src=[1, 2], dst=[3, 4], weight=pa.array([1, 2], pa.float32()), ts=[5, 6]))
    block = decode(value).block
    assert block is not None and isinstance(block.src, np.ndarray) and isinstance(block.dst, np.ndarray)
    begin = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
    for column in (block.src, block.dst, block.timestamps_ms, block.weights):
        assert isinstance(column, np.ndarray)
        assert begin <= column.__array_interface__["data"][0] < begin + len(value)


def test_bad_rows_leave_their_neighbours_alone() -> None:
    """Each is a letter of its own: a stream of that row, which is bad for the same reason."""
    cases: list[tuple[Any, Any, str, list[int]]] = [
        ("int", batch(src=[1, None, 3], dst=[4, 5, 6]), "bad-id", [1]),
        ("int", batch(src=[1, 2], dst=[None, 5], op=["insert", "delete"]), "bad-id", [0]),
        ("int", batch(src=pa.array([1, 2**63], pa.uint64()), dst=[4, 5]), "bad-id", [1]),
        ("string", batch(src=["a", "b" * 257], dst=["c", "d"]), "bad-id", [1]),
        ("int", batch(src=[1, 2], dst=[4, 5], op=pa.array([1, 9], pa.uint8())), "bad-op", [1]),
        ("int", batch(src=[1, 2], dst=[4, 5], op=["upsert", "insert"]), "bad-op", [0]),
        ("int", batch(src=[1, 2], dst=[0, 5], op=["delete_vertex", "delete_vertex"]), "bad-vertex-op", [1]),
        ("int", batch(src=[1, 2], dst=[4, 5], weight=[float("nan"), 1e300]), "bad-weight", [0, 1]),
        ("int", batch(src=[1, 2], dst=[4, 5], ts=pa.array([1, 2**62], pa.timestamp("s"))), "bad-timestamp", [1]),
    ]
    for kind, rows, reason, places in cases:
        decoded = decode(stream(rows), kind)
        assert [bad.reason for bad in decoded.bad] == [reason] * len(places), (reason, decoded.bad)
        assert len(updates(decoded)) == rows.num_rows - len(places)
        if len(places) < rows.num_rows:
            for bad, place in zip(decoded.bad, places, strict=True):
                assert (bad.key, dict(bad.headers)) == (b"key", {"graphtide-row": b"%d" % place})
                (again,) = decode(bad.value, kind).bad
                assert (again.reason, again.value) == (reason, bad.value)


def test_the_letter_of_a_row_holds_no_dictionary() -> None:
    names = [f"{number:0200}" for number in range(1000)]
    ops = pa.array(["insert"] * 999 + ["upsert"]).dictionary_encode()
    rows = batch(src=pa.array(names).dictionary_encode(), dst=names, op=ops)
    (bad,) = decode(stream(rows), "string").bad
    assert bad.reason == "bad-op" and len(bad.value) < 2000


# What is refused as a whole


EDGES = batch(src=[1, 2], dst=[3, 4])
LONG = pa.DictionaryArray.from_arrays(pa.array([0] * 9, pa.int8()), pa.array(["x" * 257]))
BAD: list[tuple[Any, bytes, str, str]] = [
    ("int", b"", "malformed", "end marker"),
    ("int", b"\xff\xff\xff\xff\xf8\xff\xff\x7f", "malformed", "not an Arrow stream"),
    ("int", b"ARROW1\0\0" + stream(EDGES), "malformed", "an Arrow file (Feather), where a stream is read"),
    ("int", stream(EDGES)[:-8], "malformed", "end marker"),
    ("int", stream(EDGES) + b"\0", "malformed", "end marker"),
    ("int", stream(EDGES) * 2, "malformed", "end marker"),
    ("int", stream(EDGES, compression="zstd"), "malformed", "must not be compressed"),
    ("int", stream(EDGES, compression="lz4"), "malformed", "must not be compressed"),
    ("int", stream(batch(dst=[1])), "bad-column", "the columns must be src and dst"),
    ("int", stream(batch(src=[1])), "bad-column", "dst is missing"),
    ("int", stream(pa.record_batch([pa.array([1])] * 3, ["src", "dst", "dst"])), "bad-column", "each once"),
    ("int", stream(batch(src=["a"], dst=["b"])), "bad-column", "src is a column of 'string'; it must be integers"),
    ("string", stream(EDGES), "bad-column", "src is a column of 'int64'; it must be strings"),
    ("int", stream(batch(src=[1.0], dst=[2.0])), "bad-column", "src is a column of 'double'"),
    ("int", stream(batch(src=[1], dst=[2], op=[1])), "bad-column", "op is a column of 'int64'"),
    ("int", stream(batch(src=[1], dst=[2], weight=["1"])), "bad-column", "float32 or float64 or integers"),
    ("int", stream(batch(src=[1], dst=[2], ts=["now"])), "bad-column", "ts is a column of 'string'"),
    ("int", stream(batch(src=pa.nulls(3), dst=pa.nulls(3))), "bad-column", "src is a column of 'null'"),
    ("int", stream(batch(src=[[1]], dst=[[2]])), "bad-column", "src is a column of 'list<"),
    ("string", stream(batch(src=LONG, dst=LONG)), "bad-id", "the dictionary of src holds a string of 257 bytes"),
    ("int", stream(*[EDGES] * 51), "too-large", "102 updates in one record; at most 100 are allowed"),
]


@pytest.mark.parametrize(("kind", "value", "reason", "words"), BAD)
def test_exact_reasons(kind: Any, value: bytes, reason: str, words: str) -> None:
    decoded = decode(value, kind, updates_max=100)
    (bad,) = decoded.bad
    assert decoded.block is None and bad.value == value
    assert (bad.reason, words in bad.detail, len(bad.detail) < 400) == (reason, True, True), bad.detail


def test_lengths_that_are_only_claimed_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without bytes, bytes that are not there, and a few strings that are named over and over."""
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([5]))
    value = stream(batch(src=ends, dst=ends))
    assert len(value) < 1000
    assert [bad.reason for bad in decode(value).bad] == ["bad-column"]
    nulls = stream(pa.record_batch([pa.nulls(10**9), pa.nulls(10**9)], ["note", "src"]))
    assert [bad.reason for bad in decode(nulls).bad] == ["bad-column"]
    before = pa.total_allocated_bytes()
    lengths = bytearray(stream(EDGES))
    at = lengths.index((16).to_bytes(8, "little"), 300)
    lengths[at : at + 8] = (2**60).to_bytes(8, "little")
    assert [bad.reason for bad in decode(bytes(lengths)).bad] == ["malformed"]
    assert pa.total_allocated_bytes() == before
    monkeypatch.setattr(decode_arrow, "WRITTEN_OUT_MAX", 10_000)
    monkeypatch.setattr(decode_arrow, "GONE_OVER_MAX", 100_000)
    one = batch(src=pa.array(["x" * 99]).dictionary_encode(), dst=["y"])
    (bad,) = decode(stream(*[one] * 999), "string").bad
    assert bad.reason == "too-large" and "fewer batches" in bad.detail
    word = pa.DictionaryArray.from_arrays(pa.array([0] * 60, pa.int8()), pa.array(["x" * 200]))
    (bad,) = decode(stream(batch(src=word, dst=["y"] * 60)), "string").bad
    assert (bad.reason, bad.detail) == ("too-large", "the strings of src are more than 10000 bytes")


SEEDS = [
    stream(
        batch(
            src=[1, 2, 3],
            dst=[4, 5, None],
            op=pa.array(["insert", "delete", "insert_vertex"]).dictionary_encode(),
            weight=pa.array([0.5, None, 2.0]),
            ts=pa.array([1, 2, None], pa.timestamp("us")),
        )
    ),
    stream(*[batch(src=pa.array(["a", "b", "é"]).dictionary_encode(), dst=["x", "y", "z"])] * 2),
    stream(batch(src=[1, 2], dst=[3, 4], note=[[1], [2, 3]])),
]


@settings(deadline=None, max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(["int", "string"]))
def test_no_bytes_can_stop_the_stream(data: st.DataObject, kind: str) -> None:
    value = bytearray(data.draw(st.sampled_from([*SEEDS, b""])))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(value)))
        some = data.draw(st.sampled_from([b"\xff", b"\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1" + bytes(7)]))
        value[at : at + len(some)] = data.draw(st.binary(max_size=8)) if data.draw(st.booleans()) else some
    if data.draw(st.integers(0, 3)) == 0:
        del value[data.draw(st.integers(0, len(value))) :]
    decoded = decode(bytes(value), kind, updates_max=50)
    assert {bad.reason for bad in decoded.bad} <= set(REASONS) - {"internal"}
    assert all(row[2] in (0, 1, 2, 3) for row in updates(decoded))


# Without PyArrow


def test_without_pyarrow_the_reason_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that needs it is refused; a record that needs it is set aside; the rest goes on."""
    kafka = {"kind": "kafka", "bootstrap_servers": ["h:1"], "topics": ["a"]}
    config = from_tables({"source": {**kafka, "encoding": "arrow"}})
    findings = {finding.check: finding for finding in doctor._packages(config)}
    assert findings["pyarrow"].status == "ok"

    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    for module in (arrow_extra, doctor):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    (bad,) = decode(stream(EDGES)).bad
    assert bad.reason == "unknown-encoding" and "pip install 'graphtide[arrow]'" in bad.detail
    with pytest.raises(ConfigError, match=r"graphtide\[arrow\]"):
        sources.make_source(config)
    findings = {finding.check: finding for finding in doctor._packages(config)}
    assert findings["pyarrow"].status == "fail" and "graphtide[arrow]" in findings["pyarrow"].hint
    findings = {finding.check: finding for finding in doctor._packages(from_tables({}))}
    assert findings["pyarrow"].status == "ok"
