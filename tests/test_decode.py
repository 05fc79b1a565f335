"""Decoding: every encoding there and back, exact reasons for what is bad, and bytes that mean nothing."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.ingest import decode_compiled, decode_text, sift
from graphtide.daemon.ingest.barriers import is_barrier
from graphtide.daemon.ingest.decode import REASONS, Decoder, warm_up
from graphtide.daemon.ingest.decode_columns import Bad, Rules, concatenate
from graphtide.daemon.ingest.line_parser import GOOD, SET_ASIDE, ParsedLines
from graphtide.daemon.records.barrier import HEADERS, barrier_id, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.encodings import (
    BARRIER,
    CONTENT_TYPES,
    ENCODINGS,
    HEADER_LINE,
    Encoding,
    encoding_of,
)
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord, UpdateBlock
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.partition.weights import WeightDomain

TOPIC = Partition("edges", 3)
FILE = Partition("edges.csv")
NOW = 1_700_000_000_000
INT64 = np.iinfo(np.int64)
NAN = float("nan")


class Update(NamedTuple):
    src: Any
    dst: Any
    op: int = 1
    weight: float = 1.0
    ts: int = NOW


int64 = st.one_of(st.integers(-3, 3), st.integers(INT64.min, INT64.max))
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
weights = st.floats(0, width=32, allow_infinity=False, allow_nan=False).map(abs)


OPS = ("delete", "insert", "insert_vertex", "delete_vertex")


def updates_of(ids: Any, *, ops: int = 4) -> Any:
    """Rows of the first so many operations; those on vertices have 0, or nothing, for a dst."""
    one = st.builds(Update, ids, ids, st.integers(0, ops - 1), weights, st.integers(-(2**62), 2**62))
    return st.lists(one.map(without_dst), max_size=12)


def without_dst(row: Update) -> Update:
    return row if row.op < 2 else row._replace(dst="" if isinstance(row.dst, str) else 0)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def raw(
    value: bytes | None, encoding: str, partition: Partition = TOPIC, offset: int = 40, header: bytes | None = None
) -> RawRecord:
    """A record; ``header``: the first line of its file."""
    headers = (("trace", b"1"),) if header is None else ((HEADER_LINE, header),)
    return RawRecord(partition, offset, offset + 1, value, encoding, NOW, b"key", headers)


def listed(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


def updates(block: UpdateBlock | None) -> list[Update]:
    """A block as rows, its form checked on the way."""
    if block is None:
        return []
    n = len(block)
    assert n > 0 and len(block.src) == len(block.dst) == n and block.ops.dtype == np.uint8
    assert isinstance(block.src, StringColumn) or block.src.dtype == np.int64
    weights = np.ones(n, np.float32) if block.weights is None else block.weights
    assert weights.dtype == np.float32 and weights.shape == (n,)
    assert np.isfinite(weights).all() and not np.signbit(weights[weights == 0]).any()
    ts = block.timestamps_ms
    times = [ts] * n if isinstance(ts, int) else ts.tolist()
    assert len(times) == n
    return [*map(Update, listed(block.src), listed(block.dst), block.ops.tolist(), weights.tolist(), times)]


def good(decoded: Decoded) -> list[Update]:
    assert not decoded.bad, decoded.bad
    return updates(decoded.block)


def reasons(decoded: Decoded) -> list[str]:
    return [bad.reason for bad in decoded.bad]


def columns_of(rows: list[Update], ids: Callable[[list[Any]], Any] = list) -> dict[str, Any]:
    return {
        "src": ids([row.src for row in rows]),
        "dst": ids([row.dst for row in rows]),
        "ops": [row.op for row in rows],
        "weights": [row.weight for row in rows],
        "timestamps_ms": [row.ts for row in rows],
    }


def edge(row: Update) -> dict[str, Any]:
    return {"src": row.src, "dst": row.dst, "op": OPS[row.op], "weight": row.weight, "ts": row.ts}


# There and back


@settings(deadline=None, max_examples=examples(60))
@given(updates_of(int64))
def test_msgpack_of_integers(rows: list[Update]) -> None:
    record = raw(encode_msgpack(**columns_of(rows)), "msgpack")
    assert good(Decoder().decode(record)) == rows


@settings(deadline=None, max_examples=examples(60))
@given(updates_of(strings))
def test_msgpack_of_strings(rows: list[Update]) -> None:
    record = raw(encode_msgpack(**columns_of(rows, StringColumn.of)), "msgpack")
    assert good(Decoder(vertex_ids="string").decode(record)) == rows


def test_msgpack_needs_only_src_and_dst() -> None:
    assert good(Decoder().decode(raw(encode_msgpack([1, 2], [3, 4]), ""))) == [Update(1, 3), Update(2, 4)]
    assert good(Decoder().decode(raw(encode_msgpack([1, 2], [3, 4], ops=0), "msgpack"))) == [
        Update(1, 3, 0),
        Update(2, 4, 0),
    ]
    texts = Decoder(vertex_ids="string").decode(raw(encode_msgpack(["a"], ["b"]), "msgpack"))
    assert good(texts) == [Update("a", "b")]
    with pytest.raises(ValueError, match="weight has 1 entries and src has 2"):
        encode_msgpack([1, 2], [3, 4], weights=[1.0])


@pytest.mark.parametrize(
    ("default", "value", "other"),
    [
        ("msgpack", b'{"src": 1, "dst": 2}', "JSON"),
        ("msgpack", b'\n[{"src": 1, "dst": 2}]', "JSON"),
        ("msgpack", b"src,dst\n1,2", "text"),
        ("msgpack", b"\0\0\0\0\x01\x02\x04", "a record of a schema registry"),
        ("json", b"\0\0\0\0\x01\x02\x04", "a record of a schema registry"),
        ("json", msgpack.packb({"v": 1, "src": b"", "dst": b""}), "MessagePack"),
        ("json", b'{"src": 1, "dst"', None),
        ("json", b"", None),
        ("json", b"1 x", None),
        ("msgpack", msgpack.packb({"v": 1, "src": b"12345678"})[:-4], None),
        ("msgpack", b"\xff\xff", None),
        ("msgpack", b"", None),
    ],
)
def test_what_is_of_another_encoding_is_told_what_it_may_be(
    default: Encoding, value: bytes, other: str | None
) -> None:
    record = RawRecord(Partition("t", 0), 0, 1, value, "", 5)
    (bad,) = Decoder(default_encoding=default).decode(record).bad
    assert bad.reason == "malformed" and bad.detail.startswith("not ")
    hint = f"; it may be {other}: source.encoding, or the header content-type, says what records are"
    assert bad.detail.endswith(hint) if other else "may be" not in bad.detail


@settings(deadline=None, max_examples=examples(60))
@given(
    rows=st.one_of(updates_of(int64), updates_of(strings)),
    form=st.sampled_from(["edges", "columns", "lines", "documents", "digits"]),
)
def test_json_in_every_form(rows: list[Update], form: str) -> None:
    kind = "string" if rows and isinstance(rows[0].src, str) else "int"
    value, partition = b"", TOPIC
    if form == "edges":
        value = json.dumps({"v": 1, "edges": [edge(row) for row in rows], "later": {"x": [1]}}, indent=1).encode()
    elif form == "columns":
        names = {"ops": "op", "weights": "weight", "timestamps_ms": "ts"}
        document = {names.get(name, name): column for name, column in columns_of(rows).items()}
        document["op"] = [OPS[op] for op in document["op"]]
        value = json.dumps({"v": 1, **document}).encode()
    elif form == "lines":
        value, partition = b"".join(json.dumps(edge(row)).encode() + b"\n" for row in rows), FILE
    elif form == "documents":
        half = len(rows) // 2
        lines = [*map(edge, rows[:half]), {"v": 1, "edges": [*map(edge, rows[half:])]}]
        value, partition = b"\r\n".join(json.dumps(line).encode() for line in lines), FILE
    elif kind == "int":
        digits = [row._replace(src=str(row.src), dst=f"+{row.dst}".replace("+-", "-")) for row in rows]
        value = json.dumps({"v": 1, "edges": [*map(edge, digits)]}).encode()
    else:
        return
    assert good(Decoder(vertex_ids=kind).decode(raw(value, "json", partition))) == rows  # type: ignore[arg-type]


def test_a_json_edge_alone_and_json_lines_in_kafka() -> None:
    assert good(Decoder().decode(raw(b'{"src":1,"dst":"2"}', "json"))) == [Update(1, 2)]
    lines = raw(b'{"src":1,"dst":2}\n\n{"src":3,"dst":oops}\n{"src":5,"dst":6}', "json")
    decoded = Decoder().decode(lines)
    assert updates(decoded.block) == [Update(1, 2), Update(5, 6)]
    assert [(bad.offset, bad.value, bad.reason) for bad in decoded.bad] == [
        (40, b'{"src":3,"dst":oops}', "malformed")
    ]
    spread = raw(b'{"v":1,"edges":[\n{"src":1,"dst":2},\n{"src":3,"dst":4}\n', "json")
    decoded = Decoder().decode(spread)
    assert decoded.block is None and [bad.value for bad in decoded.bad] == [spread.value]


names = st.permutations(["op", "src", "dst", "weight", "ts", "note"])


def write_csv(rows: list[Update], order: list[str], delimiter: str, quoting: Any) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writerow(order)
    for row in rows:
        fields = {**edge(row), "note": 'said "no", then left'}
        writer.writerow([fields[name] for name in order])
    return out.getvalue().encode()


@settings(deadline=None, max_examples=examples(60))
@given(
    rows=st.one_of(updates_of(int64), updates_of(strings.filter(lambda text: not set(text) & set("\r\n\0")))),
    order=names,
    delimiter=st.sampled_from(",;\t |"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    partition=st.sampled_from([TOPIC, FILE]),
)
def test_csv_in_any_column_order(
    rows: list[Update], order: list[str], delimiter: str, quoting: Any, partition: Partition
) -> None:
    kind: Any = "string" if rows and isinstance(rows[0].src, str) else "int"
    value = write_csv(rows, order, delimiter, quoting)
    decoder = Decoder(vertex_ids=kind, csv_delimiter=delimiter)
    assert good(decoder.decode(raw(value, "csv", partition, 0))) == rows
    headerless = Decoder(vertex_ids=kind, csv_delimiter=delimiter, csv_columns=order)
    assert good(headerless.decode(raw(value.partition(b"\n")[2], "csv", partition, 7))) == rows


@settings(deadline=None, max_examples=examples(60))
@given(
    rows=updates_of(int64, ops=1),
    fields=st.integers(2, 4),
    blank=st.sampled_from([" ", "\t", "  \t"]),
    end=st.sampled_from(["\n", "\r\n", " \n"]),
)
def test_edge_lists(rows: list[Update], fields: int, blank: str, end: str) -> None:
    lines = [blank.join(map(repr, (row.src, row.dst, row.weight, row.ts)[:fields])) for row in rows]
    value = ("# comment" + end + "% comment" + end + end + end.join(lines)).encode()
    defaults = Update(0, 0)
    expected = [
        Update(row.src, row.dst, 1, row.weight if fields > 2 else 1.0, row.ts if fields > 3 else defaults.ts)
        for row in rows
    ]
    assert good(Decoder().decode(raw(value, "el", FILE, 0))) == expected
    texts = [row._replace(src=str(row.src), dst=str(row.dst)) for row in expected]
    assert good(Decoder(vertex_ids="string").decode(raw(value, "el", FILE, 0))) == texts


def test_operations_in_csv() -> None:
    words = ["insert", "I", "i", "1", "+", "Insert", "", "delete", "D", "d", "0", "-", "DELETE"]
    value = "op,src,dst\n" + "".join(f"{word},1,2\n" for word in words)
    assert [row.op for row in good(Decoder().decode(raw(value.encode(), "csv")))] == [1] * 7 + [0] * 6


def test_operations_on_vertices_need_no_dst() -> None:
    """What an operation on a vertex leaves out, or fills with nothing, in every encoding that has operations."""
    ends: dict[Any, list[Any]] = {"int": [1, 2], "string": ["a", "b"]}
    for kind, (first, second) in ends.items():
        nothing = 0 if kind == "int" else ""
        expected = [Update(first, nothing, 3), Update(second, nothing, 2)]
        rows = [{"src": first, "op": "delete_vertex"}, {"src": second, "op": "insert_vertex", "dst": None}]
        ids = [first, second]
        only = encode_msgpack(ids, ops=[3, 2])
        documents: list[tuple[Any, str]] = [
            (only, "msgpack"),
            (encode_msgpack(ids, [nothing, nothing], [3, 2]), "msgpack"),
            (msgpack.packb({**msgpack.unpackb(only), "dst": b"" if kind == "int" else []}), "msgpack"),
            (json.dumps({"v": 1, "edges": rows}), "json"),
            (json.dumps({"v": 1, "src": ids, "op": ["delete_vertex", "insert_vertex"]}), "json"),
            (json.dumps({"v": 1, "src": ids, "dst": [], "op": ["delete_vertex", "insert_vertex"]}), "json"),
            (json.dumps({"v": 1, "src": ids, "dst": [0, ""], "op": ["delete_vertex", "insert_vertex"]}), "json"),
            (f"op,src,dst\ndelete_vertex,{first},\nINSERT_VERTEX,{second},\n", "csv"),
        ]
        for value, encoding in documents:
            record = raw(value if isinstance(value, bytes) else value.encode(), encoding)
            assert good(Decoder(kind, self_loops="drop").decode(record)) == expected, (encoding, value)
    assert good(Decoder().decode(raw(b"src,dst,op\n1,0,insert_vertex\n2,3,\n", "csv"))) == [
        Update(1, 0, 2),
        Update(2, 3),
    ]
    with pytest.raises(ValueError, match="edges need a dst"):
        encode_msgpack([1, 2], ops=[3, 1])
    with pytest.raises(ValueError, match="edges need a dst"):
        encode_msgpack([1, 2])


def test_the_compiled_parser_takes_operations_on_vertices() -> None:
    layout = decode_text.LineLayout(("src", "dst", "op", "note"), ",")
    lines = [
        (b"5,,insert_vertex,", GOOD, (5, 0, 2)),
        (b"6,0,delete_vertex,x", GOOD, (6, 0, 3)),
        (b"6,7,delete,x", GOOD, (6, 7, 0)),
        (b"6,7,delete_vertex,", SET_ASIDE, None),
        (b"6,,delete,", SET_ASIDE, None),
        (b",6,insert_vertex,", SET_ASIDE, None),
        (b"6,,insert_vertez,", SET_ASIDE, None),
        (b"6,,inserx_vertex,", SET_ASIDE, None),
        (b"6,,insert_vertexx,", SET_ASIDE, None),
    ]
    parsed = ParsedLines(len(lines))
    value = b"".join(line + b"\n" for line, _, _ in lines)
    assert parsed.fill(value, 0, decode_compiled.line_format(layout, 100, NOW)) == len(lines)
    for i, (line, status, expected) in enumerate(lines):
        assert parsed.columns.status[i] == status, line
        if expected is not None:
            assert (parsed.columns.src[i], parsed.columns.dst[i], parsed.columns.ops[i]) == expected


def test_a_vertex_zero_is_no_self_loop() -> None:
    record = raw(encode_msgpack([0, 0, 0], [0, 0, 1], [2, 1, 1]), "msgpack")
    decoded = Decoder(self_loops="drop").decode(record)
    assert good(decoded) == [Update(0, 0, 2), Update(0, 1)]
    assert decoded.self_loops_dropped == 1


def test_fields_that_are_empty_mean_nothing_given() -> None:
    value = b"src,dst,weight,ts\n1,2,,\n3,4,0.5,\n5,6,,9\n"
    expected = [Update(1, 2), Update(3, 4, 1, 0.5), Update(5, 6, ts=9)]
    assert good(Decoder().decode(raw(value, "csv"))) == expected
    assert [(int(row.src), row.weight, row.ts) for row in good(Decoder("string").decode(raw(value, "csv")))] == [
        (row.src, row.weight, row.ts) for row in expected
    ]


# Numbers


real_texts = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"[+-]?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.from_regex(r"[+-]?\.[0-9]{1,5}", fullmatch=True),
)


@settings(deadline=None, max_examples=examples(300))
@given(real_texts)
@example("6.87420821189880371")
@example("0.84564247727394104")
@example("9007199254740993")
@example("0.000000000000000000000000000001")
@example("1e22")
@example("1e-22")
@example("123456789012345678e3")
@example("-0")
def test_weights_in_text_are_read_like_python_reads_them(text: str) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(float(text))
    decoded = Decoder(weights="any").decode(raw(f"1 2 {text}\n".encode(), "el"))
    if math.isfinite(expected):
        assert [row.weight for row in good(decoded)] == [expected]
    else:
        assert reasons(decoded) == ["bad-weight"]


line_text = st.text(st.sampled_from('0123456789+-.eE ,\t"#%xIDnsert\r\0é'), max_size=14)
likely_field = st.sampled_from(
    [
        "insert_vertex",
        "delete_vertex",
        "0",
        "1",
        "-7",
        "0.5",
        "1e3",
        "",
        "insert",
        "D",
        " 4 ",
        '"5"',
        "9" * 19,
        "x",
        "-1",
        "3,",
        "é",
    ]
)
likely_line = st.lists(likely_field, max_size=6).flatmap(
    lambda fields: st.sampled_from([",", "\t", " "]).map(lambda blank: blank.join(fields))
)


@settings(deadline=None, max_examples=examples(300))
@given(
    lines=st.lists(st.one_of(line_text, likely_line), max_size=8),
    layout=st.sampled_from(
        [
            decode_text.EDGE_LIST,
            decode_text.LineLayout(("src", "dst"), ","),
            decode_text.LineLayout(("op", "src", "dst", "weight", "ts"), ","),
            decode_text.LineLayout(("ts", "note", "dst", "weight", "op", "src"), "\t"),
            decode_text.LineLayout(("src", "weight", "dst"), " "),
        ]
    ),
    domain=st.sampled_from(["any", "non-negative", "unweighted"]),
)
def test_the_compiled_parser_agrees_with_the_rules(
    lines: list[str], layout: decode_text.LineLayout, domain: Any
) -> None:
    """What the compiled parser takes, the patient code would have taken, with the same outcome."""
    value = "\n".join(lines).encode()
    rules = Rules("int", domain, drop_self_loops=False, updates_max=10, line_bytes_max=40)
    spans = [
        (start, end)
        for start, end in decode_text.numbered_lines(value)
        if layout.delimiter is not None or value[start:end].lstrip(b" \t")[:1] not in (b"#", b"%")
    ]
    blocks, bad = [], []
    for first, outcome in decode_text.parse_spans(value, spans, layout, rules, NOW):
        if isinstance(outcome, Bad):
            bad.append((*spans[first], outcome.reason))
        else:
            blocks.append(outcome)
    compiled = decode_compiled.parse_lines(value, 0, layout, rules, NOW)
    assert [(start, end, why.reason) for start, end, why in compiled.bad] == bad
    expected = updates(concatenate(blocks)) if blocks else []
    assert (updates(concatenate(compiled.blocks)) if compiled.blocks else []) == expected


# What is bad, and why


def packed(**changes: Any) -> bytes:
    document = {"v": 1, "src": b"\1" + bytes(15), "dst": bytes(16), **changes}
    return bytes(msgpack.packb({name: value for name, value in document.items() if value is not ...}))


def f4(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


BAD_MSGPACK = [
    (b"", "malformed"),
    (b"\xc1", "malformed"),
    (b"\x93\1\2\3", "malformed"),
    (packed() + b"\0", "malformed"),
    (packed()[:-1], "malformed"),
    (b"\xdf\xff\xff\xff\xff", "malformed"),
    (b"\x81\xa3src\xdd\xff\xff\xff\xff", "malformed"),
    (b"\x81\xa3src\xc6\xff\xff\xff\xff", "malformed"),
    (b"\x91" * 5000 + b"\0", "malformed"),
    (b"\x82\xa1v\1\xa1v\1", "malformed"),
    (b"\x81\x91\1\1", "malformed"),
    (b"\x81\xa2\xff\xff\1", "malformed"),
    (packed(v=...), "unsupported-version"),
    (packed(v=2), "unsupported-version"),
    (packed(v=True), "unsupported-version"),
    (packed(v="1"), "unsupported-version"),
    (packed(src=...), "bad-column"),
    (packed(dst=...), "bad-column"),
    (packed(dst=bytes(8)), "bad-column"),
    (packed(src=bytes(15)), "bad-column"),
    (packed(src=[1, 2]), "bad-column"),
    (packed(src=["1", "2"]), "bad-column"),
    (packed(op=b"\1"), "bad-column"),
    (packed(op=7), "bad-column"),
    (packed(op=None), "bad-column"),
    (packed(op="upsert"), "bad-op"),
    (packed(op="delete_vertex", dst=bytes(8)), "bad-column"),
    (packed(op=b"\2\1", dst=b""), "bad-column"),
    (packed(op=b"\2\1", dst=...), "bad-column"),
    (packed(op="delete_vertex", src=...), "bad-column"),
    (packed(op="delete_vertex", src=["a"]), "bad-column"),
    (packed(weight=f4(1)), "bad-column"),
    (packed(weight=[1.0, 2.0]), "bad-column"),
    (packed(weight=np.ones(2).tobytes()), "bad-column"),
    (packed(ts=bytes(8)), "bad-column"),
    (packed(ts=5), "bad-column"),
    (packed(src=bytes(8 * 101), dst=bytes(8 * 101)), "too-large"),
]

BAD_STRINGS = [
    (packed(), "bad-column"),
    (packed(src=["a"], dst=["b", "c"]), "bad-column"),
    (packed(src=["a"], dst=["b"], op="delete_vertex"), "bad-vertex-op"),
    (packed(src=["a", "b"], dst=[""], op=b"\2\3"), "bad-column"),
    (packed(src=["a"], dst=bytes(8)), "bad-column"),
    (packed(src=["a"], dst=[1]), "bad-id"),
    (packed(src=["a"], dst=[b"b"]), "bad-id"),
    (packed(src=["a"], dst=["x" * 257]), "bad-id"),
    (packed(src=["a"], dst=["é" * 129]), "bad-id"),
    (b"\x83\xa1v\1\xa3src\x91\xa1a\xa3dst\x91\xa2\xc3\x28", "malformed"),
    (packed(src=["a"] * 101, dst=["b"] * 101), "too-large"),
]

BAD_JSON = [
    (b"", "malformed"),
    (b"[]", "malformed"),
    (b'"text"', "malformed"),
    (b'{"src":1,"dst":2', "malformed"),
    (b'{"src":1,"dst":2,"weight":NaN}', "malformed"),
    (b'{"src":1,"dst":2}\xff', "malformed"),
    (b"[" * 100_000, "malformed"),
    (b'{"v":1,"edges":[[1,2]]}', "malformed"),
    (b'{"edges":[]}', "unsupported-version"),
    (b'{"v":2,"edges":[]}', "unsupported-version"),
    (b'{"v":1.0,"edges":[]}', "unsupported-version"),
    (b'{"v":true,"src":[],"dst":[]}', "unsupported-version"),
    (b'{"v":3,"src":1,"dst":2}', "unsupported-version"),
    (b'{"v":1,"edges":7}', "bad-column"),
    (b"{}", "bad-column"),
    (b'{"src":1}', "bad-column"),
    (b'{"v":1,"src":[1]}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":[1,2]}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":3}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":[2],"op":["insert","insert"]}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":[2],"weight":1}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":[2],"ts":[1,2]}', "bad-column"),
    (b'{"src":1,"dst":2,"op":"Insert"}', "bad-op"),
    (b'{"src":1,"dst":2,"op":1}', "bad-op"),
    (b'{"src":1,"dst":2,"op":[]}', "bad-op"),
    (b'{"src":1,"dst":2,"op":"insert_vertex"}', "bad-vertex-op"),
    (b'{"src":1,"dst":false,"op":"insert_vertex"}', "bad-vertex-op"),
    (b'{"src":1,"dst":0.0,"op":"insert_vertex"}', "bad-vertex-op"),
    (b'{"src":1,"dst":[],"op":"insert_vertex"}', "bad-vertex-op"),
    (b'{"dst":1,"op":"insert_vertex"}', "bad-column"),
    (b'{"v":1,"src":[1],"dst":[2],"op":"delete_vertex"}', "bad-vertex-op"),
    (b'{"v":1,"src":[1,2],"dst":[0],"op":"delete_vertex"}', "bad-column"),
    (b'{"v":1,"src":[1,2],"op":["delete_vertex","delete"]}', "bad-column"),
    (b'{"src":true,"dst":2}', "bad-id"),
    (b'{"src":1.0,"dst":2}', "bad-id"),
    (b'{"src":null,"dst":2}', "bad-id"),
    (b'{"src":{"a":[1]},"dst":2}', "bad-id"),
    (b'{"src":9223372036854775808,"dst":2}', "bad-id"),
    (b'{"src":-9223372036854775809,"dst":2}', "bad-id"),
    (b'{"src":"9223372036854775808","dst":2}', "bad-id"),
    (b'{"src":"","dst":2}', "bad-id"),
    (b'{"src":"1_0","dst":2}', "bad-id"),
    (b'{"src":" 1","dst":2}', "bad-id"),
    ('{"src":"\u0661","dst":2}'.encode(), "bad-id"),
    (b'{"src":"%s","dst":2}' % (b"1" * 5000), "bad-id"),
    (b'{"src":1,"dst":2,"weight":"1"}', "bad-weight"),
    (b'{"src":1,"dst":2,"weight":true}', "bad-weight"),
    (b'{"src":1,"dst":2,"weight":null}', "bad-weight"),
    (b'{"src":1,"dst":2,"weight":1e39}', "bad-weight"),
    (b'{"src":1,"dst":2,"weight":-0.5}', "bad-weight"),
    (b'{"src":1,"dst":2,"ts":1.5}', "bad-timestamp"),
    (b'{"src":1,"dst":2,"ts":"5"}', "bad-timestamp"),
    (b'{"src":1,"dst":2,"ts":18446744073709551615}', "bad-timestamp"),
    (json.dumps({"v": 1, "edges": [{"src": 1, "dst": 2}] * 101}).encode(), "too-large"),
    (json.dumps({"v": 1, "src": [1] * 101, "dst": [1] * 101}).encode(), "too-large"),
]

BAD_CSV = [
    (b"", "bad-column"),
    (b"op,src\n1,2\n", "bad-column"),
    (b"src,dst,src\n1,2,3\n", "bad-column"),
    (b"\xff\n", "bad-column"),
    (b"src,dst\n1\n", "bad-column"),
    (b"src,dst\n1,2,3\n", "bad-column"),
    (b"src,dst\n1,\n", "bad-id"),
    (b"src,dst\n1,2.0\n", "bad-id"),
    (b"src,dst\n1,99999999999999999999\n", "bad-id"),
    (b"src,dst\n1,\xff\n", "malformed"),
    (b'src,dst\n1,"2\n', "malformed"),
    (b"src,dst,op\n1,2,2\n", "bad-op"),
    (b"src,dst,op\n1,2,insert_vertex\n", "bad-vertex-op"),
    (b"src,dst,op\n,1,delete_vertex\n", "bad-id"),
    (b"src,dst,op\n1,,delete\n", "bad-id"),
    (b"src,dst,weight\n1,2,nan\n", "bad-weight"),
    (b"src,dst,weight\n1,2,inf\n", "bad-weight"),
    (b"src,dst,weight\n1,2,1_0\n", "bad-weight"),
    (b"src,dst,weight\n1,2,-1\n", "bad-weight"),
    (b"src,dst,weight\n1,2,1e39\n", "bad-weight"),
    (b"src,dst,weight\n1,2,0x1p3\n", "bad-weight"),
    (b"src,dst,ts\n1,2,1.5\n", "bad-timestamp"),
    (b"src,dst,ts\n1,2,9223372036854775808\n", "bad-timestamp"),
    (b"src,dst\n1," + b"0" * 200 + b"2\n", "too-large"),
]

BAD_EDGE_LISTS = [
    (b"1\n", "bad-column"),
    (b"1 2 3 4 5\n", "bad-column"),
    (b"1,2\n", "bad-column"),
    (b"1 2x\n", "bad-id"),
    (b"1 2 nan\n", "bad-weight"),
    (b"1 2 3 4.5\n", "bad-timestamp"),
    (b"1 2 \x80\n", "malformed"),
]

BAD_RECORDS = [
    *(("int", "msgpack", *case) for case in BAD_MSGPACK),
    *(("string", "msgpack", *case) for case in BAD_STRINGS),
    *(("int", "json", *case) for case in BAD_JSON),
    *(("string", "json", b'{"src":1,"dst":"2"}', "bad-id") for _ in range(1)),
    *(("int", "csv", *case) for case in BAD_CSV),
    ("string", "csv", b"src,dst\na," + b"x" * 150 + "é".encode() * 53 + b"\n", "too-large"),
    ("string", "csv", b"src,dst\na,b,c\n", "bad-column"),
    *(("int", "el", *case) for case in BAD_EDGE_LISTS),
    ("int", "avro", b"", "unknown-encoding"),
    ("int", "application/x-protobuf", b"", "unknown-encoding"),
    ("int", "debezium", b'{"op":"t","before":null,"after":null}', "bad-change"),
    ("int", BARRIER, b"", "bad-barrier"),
    ("int", BARRIER, b"x" * 129, "bad-barrier"),
    ("string", BARRIER, b"fine until \xff", "bad-barrier"),
]


@pytest.mark.parametrize(("kind", "encoding", "value", "reason"), BAD_RECORDS)
def test_exact_reasons(kind: Any, encoding: str, value: bytes, reason: str) -> None:
    decoder = Decoder(vertex_ids=kind, updates_max=100, line_bytes_max=200)
    decoded = decoder.decode(raw(value, encoding))
    assert decoded.block is None
    assert reasons(decoded) == [reason]
    (bad,) = decoded.bad
    assert bad.detail and len(bad.detail) < 600
    assert (bad.partition, bad.offset, bad.key, bad.headers[:1]) == (TOPIC, 40, b"key", (("trace", b"1"),))
    assert bad.value == value or (bad.value in value and encoding in ("csv", "el"))


BAD_ROWS: list[tuple[Any, str, bytes, str, list[int]]] = [
    ("int", "msgpack", packed(op=b"\1\4"), "bad-op", [1]),
    ("int", "msgpack", packed(op=b"\2\1", dst=b"\1" + bytes(15)), "bad-vertex-op", [0]),
    ("int", "msgpack", packed(op=b"\0\3", dst=b"\1" * 16), "bad-vertex-op", [1]),
    ("int", "msgpack", packed(op="insert_vertex", dst=b"\1" * 16), "bad-vertex-op", [0, 1]),
    ("int", "msgpack", packed(weight=f4(1, NAN)), "bad-weight", [1]),
    ("int", "msgpack", packed(weight=f4(1, -NAN)), "bad-weight", [1]),
    ("int", "msgpack", packed(weight=f4(math.inf, 1)), "bad-weight", [0]),
    ("int", "msgpack", packed(weight=f4(-1, -1)), "bad-weight", [0, 1]),
    ("string", "msgpack", packed(src=["a", "b"], dst=["", "0"], op=b"\2\3"), "bad-vertex-op", [1]),
    ("string", "msgpack", packed(src=["a", 5, "c"], dst=["b", "b", "b"]), "bad-id", [1]),
    ("string", "msgpack", packed(src=["a", "b", "c"], dst=["b", "x" * 257, "b"], ts=bytes(24)), "bad-id", [1]),
    ("int", "json", b'{"v":1,"edges":[{"src":1,"op":"insert_vertex"},{"src":1}]}', "bad-column", [1]),
    ("int", "json", b'{"v":1,"edges":[{"src":1,"dst":2},{"dst":2,"op":"delete"}]}', "bad-column", [1]),
    ("int", "json", b'{"v":1,"edges":[7,{"src":1,"dst":2},[]]}', "malformed", [0, 2]),
    ("int", "json", b'{"v":1,"edges":[{"src":1,"dst":2},{"v":2,"src":1,"dst":2}]}', "unsupported-version", [1]),
    ("int", "json", b'{"v":1,"edges":[{"src":1,"dst":2,"op":"x"},{"src":1,"dst":2}]}', "bad-op", [0]),
    (
        "int",
        "json",
        b'{"v":1,"src":[1,2],"dst":[null,null],"op":["delete_vertex","delete"]}',
        "bad-id",
        [1],
    ),
    ("int", "json", b'{"v":1,"src":[1,true,"7","x"],"dst":[1,2,3,4]}', "bad-id", [1, 3]),
    ("int", "json", b'{"v":1,"src":[1,9223372036854775808],"dst":[1,2]}', "bad-id", [1]),
    ("int", "json", b'{"v":1,"src":[1,2,3],"dst":[1,2,3],"weight":[-1,2,null]}', "bad-weight", [0, 2]),
    ("int", "json", b'{"v":1,"src":[1,2],"dst":[1,2],"weight":[1,1e39]}', "bad-weight", [1]),
    ("int", "json", b'{"v":1,"src":[1,2],"dst":[1,2],"ts":[1.5,18446744073709551615]}', "bad-timestamp", [0, 1]),
    ("int", "json", b'{"v":1,"src":[1,2],"dst":[5,0],"op":"delete_vertex"}', "bad-vertex-op", [0]),
]


@pytest.mark.parametrize(("kind", "encoding", "value", "reason", "rows"), BAD_ROWS)
def test_bad_rows_leave_their_neighbours_alone(
    kind: Any, encoding: str, value: bytes, reason: str, rows: list[int]
) -> None:
    """Each is a letter of its own: a record of that row in the same encoding, which is bad for the same reason."""
    decoder = Decoder(vertex_ids=kind)
    decoded = decoder.decode(raw(value, encoding))
    document = json.loads(value) if encoding == "json" else msgpack.unpackb(value)
    total = len(document.get("edges", document.get("src", ())))
    total //= 8 if isinstance(document.get("src"), bytes) else 1
    assert len(updates(decoded.block)) == total - len(rows)
    assert reasons(decoded) == [reason] * len(rows)
    for bad, row in zip(decoded.bad, rows, strict=True):
        assert (bad.partition, bad.offset, bad.key) == (TOPIC, 40, b"key")
        assert bad.headers == (("trace", b"1"), ("graphtide-row", b"%d" % row))
        assert bad.detail and len(bad.detail) < 600
        (again,) = decoder.decode(raw(bad.value, encoding)).bad
        assert (again.reason, again.value) == (reason, bad.value) and len(bad.value) < 400


sifted_rows = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 2**63 - 1]),
        st.sampled_from([0, 1, 9]),
        st.sampled_from([0, 1, 2, 3, 4, 255]),
        st.sampled_from([0.0, -0.0, 0.5, -1.0, NAN, math.inf]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=examples(150))
@given(rows=sifted_rows, domain=st.sampled_from(["unweighted", "non-negative", "any"]), apart=st.integers(0, 3))
def test_a_record_of_rows_is_as_good_as_a_record_a_row(rows: list[Any], domain: Any, apart: int) -> None:
    """The good rows come in order; the letters hold exactly the bad ones, however few are kept apart."""
    src, dst, ops, weights = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    ts = list(range(len(rows)))
    decoder = Decoder(weights=domain)
    alone = [
        decoder.decode(raw(encode_msgpack([a], [b], [op], [weight], [at]), "msgpack"))
        for a, b, op, weight, at in zip(src, dst, ops, weights, ts, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sift, "ROWS_APART_MAX", apart + 1)
        together = decoder.decode(raw(encode_msgpack(src, dst, ops, weights, ts), "msgpack"))
    assert updates(together.block) == [row for one in alone for row in updates(one.block)]
    expected = [at for at, one in zip(ts, alone, strict=True) if one.bad]
    letters = [msgpack.unpackb(bad.value) for bad in together.bad]
    assert sorted(at for letter in letters for at in np.frombuffer(letter["ts"], "<i8").tolist()) == expected
    assert sum(len(letter["ts"]) == 8 for letter in letters) >= min(len(expected), apart + 1)
    if len(together.bad) == len(expected):
        assert reasons(together) == [reason for one in alone for reason in reasons(one)]


def test_bad_rows_of_a_large_record_cost_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sift, "APART_BYTES_MIN", 1 << 30)  # so that it is their number that is bounded
    n = 3 * sift.ROWS_APART_MAX
    value = encode_msgpack(np.arange(n), np.arange(n), weights=np.full(n, -1.0))
    decoded = Decoder().decode(raw(value, "msgpack"))
    assert decoded.block is None and len(decoded.bad) == sift.ROWS_APART_MAX + 2
    assert sum(len(bad.value) for bad in decoded.bad) < 4 * len(value)
    assert "32768 rows" in decoded.bad[-1].detail


def columnar(n: int, encoding: str) -> bytes:
    """A record of n edges whose weights are -1."""
    ends = np.arange(n)
    edges = [{"src": u, "dst": u + 1, "weight": -1} for u in range(n)]
    if encoding == "msgpack":
        return encode_msgpack(ends, ends + 1, weights=np.full(n, -1.0))
    if encoding == "arrow":
        table = pa.record_batch([ends, ends + 1, np.full(n, -1.0)], ["src", "dst", "weight"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_batch(table)
        return bytes(sink.getvalue().to_pybytes())
    if encoding == "json":
        return orjson.dumps({"v": 1, "edges": edges})
    if encoding == "json columns":
        return orjson.dumps({"v": 1, "src": ends.tolist(), "dst": ends.tolist(), "weight": [-1] * n})
    if encoding == "json lines":
        return b"\n".join(map(orjson.dumps, edges))
    if encoding.startswith("json lines of"):
        size = 2 if "small" in encoding else n // 2
        some = (edges[at : at + size] for at in range(0, n, size))
        return b"\n".join(orjson.dumps({"v": 1, "edges": part}) for part in some)
    if encoding == "debezium":
        return b"\n".join(orjson.dumps({"op": "c", "after": edge}) for edge in edges)
    lines = ["src,dst,weight", *(f"{u},{u + 1},-1" for u in range(n))]
    return "\n".join(lines).encode()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "encoding",
    [
        *("msgpack", "arrow", "json", "json columns", "json lines", "json lines of documents"),
        *("json lines of small documents", "debezium", "csv"),
    ],
)
def test_letters_of_a_record_come_to_a_few_times_the_record(encoding: str) -> None:
    """Whatever its form, and however long its key and headers are; and they hold all its rows."""
    n, kind = 3_000 if encoding in ("json lines", "debezium") else 20_000, encoding.split()[0]
    record = RawRecord(TOPIC, 40, 41, columnar(n, encoding), kind, NOW, b"k" * 1000, (("trace", b"1" * 1000),))
    assert record.value is not None and record.key is not None
    letters = Decoder().decode(record).bad
    written = sum(
        len(bad.value) + len(bad.detail) + len(bad.key or b"") + sum(len(value) for _, value in bad.headers)
        for bad in letters
    )
    assert written < sift.APART_BYTES_MIN + (2 + sift.APART_SHARE) * len(record.value) + 100_000
    assert len(letters) > 300 and {bad.reason for bad in letters} == {"bad-weight"}
    assert all(bad.key == record.key and bad.headers[:1] == record.headers for bad in letters)
    lenient = Decoder(weights="any", csv_columns=["src", "dst", "weight"])
    again = [lenient.decode(raw(bad.value, kind)) for bad in letters]
    assert not any(one.bad for one in again)
    assert sorted(row.src for one in again for row in updates(one.block)) == list(range(n))
    few = Decoder().decode(raw(columnar(500, encoding), kind))
    assert len(few.bad) == 500, "each by itself"


def test_lines_of_a_file_are_letters_of_their_own() -> None:
    lines = b"src,dst\n" + b"x\n" * 10_000
    bad = Decoder().decode(raw(lines, "csv", FILE, 0)).bad
    assert [letter.offset for letter in bad] == [*range(8, len(lines), 2)]


@pytest.mark.parametrize("partition", [TOPIC, FILE])
def test_letters_of_csv_say_what_their_columns_are(partition: Partition) -> None:
    """The header line that the record began with, unless it is what is bad; without one, nothing."""
    value = codecs.BOM_UTF8 + b"weight,dst,src\r\n1,2,3\r\n-1,2,3\r\n"
    (bad,) = Decoder().decode(raw(value, "csv", partition, 0)).bad
    assert (bad.value, bad.headers[-1]) == (b"-1,2,3", (HEADER_LINE, b"weight,dst,src"))
    for decoder, whole in ((Decoder(), b"a,b\n1,2\n"), (Decoder(csv_columns=["src", "dst"]), b"1,x\n")):
        assert {bad.headers for bad in decoder.decode(raw(whole, "csv", partition, 0)).bad} == {(("trace", b"1"),)}


def test_rows_of_a_document_in_a_file_stand_at_its_line() -> None:
    value = b'{"src":1,"dst":2}\n{"v":1,"src":[3,4],"dst":[5,6],"weight":[1,-1]}\n{"src":7,"dst":8,"weight":-1}\n'
    decoded = Decoder().decode(raw(value, "json", FILE, 100))
    assert [row.src for row in updates(decoded.block)] == [1, 3]
    assert [(bad.offset, bad.value) for bad in decoded.bad] == [
        (166, b'{"src":7,"dst":8,"weight":-1}'),
        (118, b'{"v":1,"src":[4],"dst":[6],"weight":[-1]}'),
    ]


def test_a_barrier_holds_no_updates() -> None:
    record = raw(
        barrier_value("\u2014" * 42), encoding_of([("Content-Type", BARRIER.encode() + b"; v=1")], "json")
    )
    decoded = Decoder().decode(record)
    assert (decoded.block, decoded.bad) == (None, ())
    assert is_barrier(record) and barrier_id(record.value) == "\u2014" * 42
    assert encoding_of(HEADERS, "json") == BARRIER
    for wrong in ("", "\u2014" * 43):
        with pytest.raises(ValueError, match="1 to 128 bytes"):
            barrier_value(wrong)


def test_every_reason_is_one_of_the_list() -> None:
    seen = {reason for *_, reason in BAD_RECORDS}
    of_files, of_schemas, of_windows, of_keys = (
        {"damaged", "bad-name"},
        {"unknown-schema", "unasked-schema", "bad-schema"},
        {"no-time", "in-future"},
        {"no-key", "not-one-edge"},
    )
    assert seen == set(REASONS) - {"internal"} - of_files - of_schemas - of_windows - of_keys


def test_a_failure_inside_is_a_bad_record_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("graphtide.daemon.ingest.decode.decode_msgpack", fail)
    decoded = Decoder().decode(raw(b"anything", "msgpack"))
    assert [(bad.reason, bad.detail, bad.value) for bad in decoded.bad] == [
        ("internal", "RuntimeError: no luck", b"anything")
    ]


@pytest.mark.parametrize(
    ("domain", "weight", "kept"),
    [
        ("unweighted", 1.0, 1.0),
        ("unweighted", 2.0, None),
        ("unweighted", -0.0, None),
        ("non-negative", -0.0, 0.0),
        ("non-negative", 0.0, 0.0),
        ("non-negative", -1e-30, None),
        ("any", -2.5, -2.5),
        ("any", -0.0, 0.0),
        ("any", math.inf, None),
    ],
)
def test_weight_domains_in_every_encoding(domain: Any, weight: float, kept: float | None) -> None:
    values = {
        "msgpack": encode_msgpack([1, 3], [2, 4], weights=[1, weight]),
        "csv": f"src,dst,weight\n3,4,{weight}\n".encode(),
        "el": f"3 4 {weight}\n".encode(),
    }
    if math.isfinite(weight):
        values["json"] = json.dumps({"src": 3, "dst": 4, "weight": weight}).encode()
    for encoding, value in values.items():
        decoded = Decoder(weights=domain).decode(raw(value, encoding))
        if kept is None:
            beside = 1 if encoding == "msgpack" else 0
            assert len(updates(decoded.block)) == beside and reasons(decoded) == ["bad-weight"]
        else:
            assert good(decoded)[-1].weight == kept
        if domain == "unweighted" and decoded.block is not None:
            assert decoded.block.weights is None


@pytest.mark.parametrize("kind", ["int", "string"])
def test_self_loops_are_dropped_and_counted_where_asked(kind: Any) -> None:
    value = b"src,dst,weight,ts\n1,1,2,3\n1,2,3,4\n22,22,5,6\n"
    kept = Decoder(vertex_ids=kind).decode(raw(value, "csv"))
    assert len(good(kept)) == 3 and kept.self_loops_dropped == 0
    dropping = Decoder(vertex_ids=kind, self_loops="drop")
    decoded = dropping.decode(raw(value, "csv"))
    assert [(int(row.src), row.weight, row.ts) for row in good(decoded)] == [(1, 3.0, 4)]
    assert decoded.self_loops_dropped == 2
    only = dropping.decode(raw(b"src,dst\n1,1\n", "csv"))
    assert only.block is None and not only.bad and only.self_loops_dropped == 1


def test_tombstones_and_empty_records_are_not_bad() -> None:
    assert Decoder().decode(raw(None, "msgpack")) == Decoded(raw(None, "msgpack"), None)
    for value, encoding in (
        (encode_msgpack([], []), "msgpack"),
        (b'{"v":1,"edges":[]}', "json"),
        (b'{"v":1,"src":[],"dst":[]}', "json"),
        (b"src,dst\n", "csv"),
        (b"\n# nothing\n", "el"),
    ):
        decoded = Decoder().decode(raw(value, encoding))
        assert decoded.block is None and not decoded.bad


# Blocks of lines


def test_bad_lines_leave_their_neighbours_alone_and_keep_their_offsets() -> None:
    value = b"1 2\nx y\n\n3 4 -1\n5 6\r\n7\n"
    spool = Decoder().decode(raw(value, "el", FILE, 1000))
    assert updates(spool.block) == [Update(1, 2), Update(5, 6)]
    assert [(bad.offset, bad.value, bad.reason) for bad in spool.bad] == [
        (1004, b"x y", "bad-id"),
        (1009, b"3 4 -1", "bad-weight"),
        (1021, b"7", "bad-column"),
    ]
    kafka = Decoder().decode(raw(value, "el"))
    assert {bad.offset for bad in kafka.bad} == {40}
    assert [bad.value for bad in kafka.bad] == [bad.value for bad in spool.bad]


csv_lines = st.lists(st.sampled_from([b"I,1,2", b"D,3,4", b"x", b"", b"I,5,6,7", b'I,"8",9']), max_size=10)


@settings(deadline=None, max_examples=examples(80))
@given(
    lines=csv_lines,
    cuts=st.sets(st.integers(1, 10)),
    restart=st.booleans(),
    kind=st.sampled_from(["int", "string"]),
)
def test_csv_files_decode_alike_however_they_are_cut(
    lines: list[bytes], cuts: set[int], restart: bool, kind: Any
) -> None:
    content = [b"\xef\xbb\xbfop,src,dst\r\n", *(line + b"\n" for line in lines)]
    whole = Decoder(vertex_ids=kind).decode(raw(b"".join(content), "csv", FILE, 0))
    decoder = Decoder(vertex_ids=kind)
    pieces: list[Update] = []
    bad: list[tuple[int, bytes, str]] = []
    bounds = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    for first, last in itertools.pairwise(bounds):
        if restart:
            decoder = Decoder(vertex_ids=kind)
        offset = len(b"".join(content[:first]))
        header = content[0].rstrip() if restart and offset else None
        decoded = decoder.decode(raw(b"".join(content[first:last]), "csv", FILE, offset, header))
        pieces += updates(decoded.block)
        bad += [(item.offset, item.value, item.reason) for item in decoded.bad]
    assert pieces == updates(whole.block)
    assert bad == [(item.offset, item.value, item.reason) for item in whole.bad]


def test_the_header_belongs_to_one_file() -> None:
    decoder = Decoder()
    other = Partition("other.csv")
    decoder.decode(raw(b"dst,src\n", "csv", FILE, 0))
    decoder.decode(raw(b"src,dst\n", "csv", other, 0))
    assert good(decoder.decode(raw(b"1,2\n", "csv", FILE, 8))) == [Update(2, 1)]
    assert good(decoder.decode(raw(b"1,2\n", "csv", other, 8))) == [Update(1, 2)]
    decoder = Decoder()
    assert reasons(decoder.decode(raw(b"1,2\n3,4\n", "csv", FILE, 12))) == ["bad-column"] * 2
    assert good(decoder.decode(raw(b"1,2\n", "csv", FILE, 12, b"src,dst"))) == [Update(1, 2)]


def test_without_a_usable_header_every_line_is_bad() -> None:
    decoder = Decoder()
    first = decoder.decode(raw(b"from,to\n1,2\n", "csv", FILE, 0))
    later = decoder.decode(raw(b"3,4\n", "csv", FILE, 12))
    assert first.block is None and later.block is None
    assert [(bad.offset, bad.value) for bad in (*first.bad, *later.bad)] == [
        (0, b"from,to"),
        (8, b"1,2"),
        (12, b"3,4"),
    ]


# Bytes that mean nothing


SEEDS = {
    "msgpack": [
        encode_msgpack([1, 2], [3, 4], [0, 1], [0.5, 1.0], [5, 6]),
        encode_msgpack([1, 2], [0, 0], [2, 3]),
        encode_msgpack(["a", "é"], ["b", "c"]),
    ],
    "json": [
        b'{"v":1,"edges":[{"op":"insert","src":1,"dst":"2","weight":0.5,"ts":17}]}',
        b'{"v":1,"src":[1,2],"dst":[3,4],"op":"insert"}',
        b'{"v":1,"src":[1,2],"op":"delete_vertex"}',
        b'{"src":"a","dst":"b"}\n{"src":1,"dst":2}\n',
    ],
    "csv": [b"op,src,dst,weight,ts\nI,1,2,0.5,3\n-,3,4,,\ninsert_vertex,7,,,\n", b'src,dst\n"a,b",c\n'],
    "el": [b"%%MatrixMarket matrix coordinate real general\n% c\n3 3 1\n1 2 3.5 4\n", b"# c\n1\t2\n 3 4 5e-7\r\n"],
    "debezium": [
        b'{"op":"c","before":null,"after":{"src":1,"dst":2,"weight":0.5},"source":{"ts_ms":3}}',
        b'{"schema":{},"payload":{"op":"u","before":{"src":1,"dst":2},"after":{"src":"a","dst":3}}}',
        b'{"op":"d","before":{"src":1,"dst":"2"},"after":null,"ts_ms":5}\n{"op":"t"}\n',
    ],
    "arrow": [b"\xff\xff\xff\xff\0\0\0\0"],  # tests/test_arrow.py has more
    "registry": [b"\0\0\0\0\x01\x02\x04"],  # tests/test_registry.py has more
    "debezium-registry": [b"\0\0\0\0\x01\x02\x04"],
}


@st.composite
def mutated(draw: Any) -> tuple[str, bytes]:
    encoding = draw(st.sampled_from(ENCODINGS))
    if draw(st.integers(0, 3)) == 0:
        return encoding, draw(st.binary(max_size=60))
    value = bytearray(draw(st.sampled_from(SEEDS[encoding])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(value)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "end"]))
        if kind == "set" and at < len(value):
            value[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del value[at : at + draw(st.integers(1, 6))]
        elif kind == "insert":
            value[at:at] = draw(
                st.sampled_from([b"\n", b'"', b"{", b"\xdd\xff\xff\xff\xff", b"9" * 30, b"-", b"\0", b","])
            )
        else:
            del value[at:]
    return encoding, bytes(value)


@settings(deadline=None, max_examples=examples(600))
@given(
    case=mutated(),
    kind=st.sampled_from(["int", "string"]),
    domain=st.sampled_from(["unweighted", "non-negative", "any"]),
    loops=st.sampled_from(["keep", "drop"]),
    partition=st.sampled_from([TOPIC, FILE]),
    offset=st.sampled_from([0, 9]),
)
def test_no_bytes_can_stop_the_stream(
    case: tuple[str, bytes], kind: Any, domain: Any, loops: Any, partition: Partition, offset: int
) -> None:
    encoding, value = case
    decoder = Decoder(kind, domain, loops, updates_max=50, line_bytes_max=64)
    decoded = decoder.decode(raw(value, encoding, partition, offset))
    assert set(reasons(decoded)) <= set(REASONS) - {"internal"}
    for row in updates(decoded.block):
        assert row.op in (0, 1, 2, 3)
        assert row.op < 2 or row.dst in (0, "")
        assert domain != "unweighted" or row.weight == 1
        assert domain != "non-negative" or row.weight >= 0
        assert loops == "keep" or row.src != row.dst or row.op > 1
    for bad in decoded.bad:
        if "graphtide-row" not in dict(bad.headers):
            begin = bad.offset - offset if partition is FILE else value.find(bad.value)
            assert value[begin : begin + len(bad.value)] == bad.value


# Names and settings


def test_encodings_by_content_type() -> None:
    assert set(CONTENT_TYPES.values()) == set(ENCODINGS)
    header = ("Content-Type", b"Application/JSON; charset=utf-8")
    assert encoding_of([("x", b"y"), header], "csv") == "json"
    assert encoding_of([("x", b"y")], "csv") == "csv"
    assert encoding_of([("content-type", b"image/png")], "csv") == "image/png"


@pytest.mark.parametrize(("header", "other"), [(b"src;dst;weight", '";"'), (b"dst\tsrc", r'"\t"')])
def test_a_header_line_with_another_delimiter_says_which(header: bytes, other: str) -> None:
    (bad,) = Decoder().decode(raw(header + b"\n1;2;3\n", "csv")).bad
    assert bad.reason == "bad-column" and bad.detail.endswith(f". With source.csv_delimiter = {other} it does")
    (bad,) = Decoder().decode(raw(b"a;b\n1;2\n", "csv")).bad
    assert "csv_delimiter" not in bad.detail


@pytest.mark.parametrize(
    "settings_",
    [
        {"default_encoding": "avro"},
        {"csv_columns": ["src"]},
        {"csv_columns": ["src", "dst", "dst"]},
        {"csv_delimiter": "1"},
        {"csv_delimiter": "\n"},
        {"csv_delimiter": "\0"},
        {"csv_delimiter": ", "},
        {"csv_delimiter": '"'},
        {"csv_delimiter": "é"},
    ],
)
def test_refuses_settings_that_mean_nothing(settings_: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"encoding|src and dst|delimiter"):
        Decoder(**settings_)


# What an operation without a weight has as its weight


@pytest.mark.parametrize("domain", ["unweighted", "non-negative", "any"])
@pytest.mark.parametrize(("op", "code"), [("delete", 0), ("insert_vertex", 2), ("delete_vertex", 3)])
def test_only_insertions_have_weights(op: str, code: int, domain: WeightDomain) -> None:
    decoder, dst = Decoder(weights=domain), 2 if op == "delete" else 0
    head, after = ("2", 2) if op == "delete" else ("", 0)
    insert = "insert,3,4,1.0"
    texts = ["nan", "-1", "0.5", "-0.0", "1e99", "x"]
    lines = "".join(f"{op},1,{head},{text}\n" for text in texts)
    found = good(decoder.decode(raw(f"op,src,dst,weight\n{lines}{insert}\n".encode(), "csv")))
    assert [(row.op, row.src, row.dst) for row in found] == [(code, 1, after)] * len(texts) + [(1, 3, 4)]
    for weight in (b"null", b'"x"', b"-1", b"1e39", b"0"):
        value = b'{"op":"%b","src":1,"dst":%d,"weight":%b}' % (op.encode(), dst, weight)
        (row,) = good(decoder.decode(raw(value, "json")))
        assert (row.op, row.src) == (code, 1)
    value = encode_msgpack([1, 3], [dst, 4], [code, 1], [np.nan, 1.0])
    assert [(row.op, row.weight) for row in good(decoder.decode(raw(value, "msgpack")))] == [(code, 1), (1, 1)]
    bad = decoder.decode(raw(encode_msgpack([1, 3], [dst, 4], [code, 1], [np.nan, np.inf]), "msgpack"))
    assert [row.op for row in updates(bad.block)] == [code] and reasons(bad) == ["bad-weight"]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("json", b'{"src":1,"dst":2}\r\n{"src":3,"dst":4}\r\n'),
        ("el", b"1 2\r\n3 4\r\n"),
        ("el", b"# c\r\n1 2\r\n3 4\r\n"),
        ("el", b"%%MatrixMarket matrix coordinate pattern general\n%\r\n4 4 2\r\n1 2\r\n3 4\r\n"),
        ("csv", b"src,dst\r\n1,2\r\n3,4\r\n"),
    ],
)
def test_a_file_may_begin_with_a_byte_order_mark(encoding: str, text: bytes) -> None:
    mark = b"\xef\xbb\xbf"
    found = good(Decoder().decode(raw(mark + text, encoding, FILE, 0)))
    assert [(row.src, row.dst) for row in found] == [(1, 2), (3, 4)]
    if encoding != "csv":
        assert Decoder().decode(raw(mark + text, encoding, FILE, 100)).bad, "only a beginning may"


def test_a_byte_order_mark_before_csv_of_given_columns() -> None:
    decoder = Decoder(vertex_ids="string", csv_columns=("op", "src", "dst"))
    found = good(decoder.decode(raw(b"\xef\xbb\xbfD,a,b\nI,c,d\n", "csv", FILE, 0)))
    assert [(row.op, row.src, row.dst) for row in found] == [(0, "a", "b"), (1, "c", "d")]
