"""Records of an edge or two each: read together they share a block, and mean what each means by itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.ingest import decode_runs
from graphtide.daemon.ingest.decode import Decoder, warm_up
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import BadRecord, Decoded, Partition, RawRecord
from graphtide.gpma.index.ids import StringColumn

TOPIC, OTHER, FILE = Partition("edges", 0), Partition("edges", 1), Partition("edges.json")
NOW = 1_700_000_000_000

NAMED = NamedColumns(
    "a", "in.b", op="k", weight="w", ts="t", op_values={"c": "insert", "7": "delete", "gone": "delete_vertex"}
)
ROWS = NamedColumns("a", "b", weight="w", lenient=True)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def raw(value: Any, offset: int = 0, encoding: str = "json", **changed: Any) -> RawRecord:
    text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    whole = RawRecord(
        TOPIC, offset, offset + 1, text, encoding, NOW + offset, b"key", (("trace", b"%d" % offset),)
    )
    return replace(whole, **changed)


def rows(decoded: Sequence[Decoded]) -> list[tuple[Any, ...]]:
    """All updates in order: src, dst, op, weight and time of each."""
    found: list[tuple[Any, ...]] = []
    for block in (one.block for one in decoded if one.block is not None):
        n = len(block)
        assert n
        ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
        weights = [1.0] * n if block.weights is None else block.weights.tolist()
        ts = block.timestamps_ms
        times = [ts] * n if isinstance(ts, int) else ts.tolist()
        found += zip(*ends, block.ops.tolist(), weights, times, strict=True)
    return found


def letters(decoded: Sequence[Decoded]) -> list[BadRecord]:
    return [letter for one in decoded for letter in one.bad]


def check_same(decoder: Decoder, records: Sequence[RawRecord]) -> None:
    """Read together they are what each is by itself, in order, and no record is left out."""
    together, alone = decoder.decode_all(records), [*map(decoder.decode, records)]
    assert rows(together) == rows(alone)
    assert letters(together) == letters(alone)
    assert sum(one.self_loops_dropped for one in together) == sum(one.self_loops_dropped for one in alone)
    begin = 0
    for one in together:
        some = [record for record in records[begin:] if record.offset < one.record.next_offset]
        assert some and one.record == replace(some[0], next_offset=some[-1].next_offset)
        assert {record.partition for record in some} == {one.record.partition}
        begin += len(some)
    assert begin == len(records)


def test_they_share_a_block() -> None:
    """In order, each with its own time; tombstones and bad ones lie between them."""
    values: list[Any] = [{"src": at, "dst": at % 3, "weight": at} for at in range(8)]
    values[2] = None
    values[4] = {"src": 4, "dst": "x"}
    values[5] = {"src": 5, "op": "delete_vertex", "ts": 9}
    records = [raw(value, at) for at, value in enumerate(values)]
    (one,) = Decoder().decode_all(records)
    assert rows([one]) == [
        (0, 0, 1, 0.0, NOW),
        (1, 1, 1, 1.0, NOW + 1),
        (3, 0, 1, 3.0, NOW + 3),
        (5, 0, 3, 1.0, 9),
        (6, 0, 1, 6.0, NOW + 6),
        (7, 1, 1, 7.0, NOW + 7),
    ]
    assert (one.record.offset, one.record.next_offset, one.record.timestamp_ms) == (0, 8, NOW)
    assert [(bad.offset, bad.reason, bad.value) for bad in one.bad] == [(4, "bad-id", records[4].value)]


def test_so_do_those_of_other_names_and_changes_of_rows() -> None:
    named = [{"a": at, "in": {"b": "2"}, "k": kind, "w": "1.5", "t": at} for at, kind in enumerate(["c", 7, "c"])]
    (one,) = Decoder(columns=NAMED).decode_all([raw(value, at) for at, value in enumerate(named)])
    assert rows([one]) == [(0, 2, 1, 1.5, 0), (1, 2, 0, 1.0, 1), (2, 2, 1, 1.5, 2)]
    before, after = {"a": "1", "b": "2"}, {"a": "1", "b": "3", "w": 4}
    changes: list[Any] = [
        {"op": "c", "after": before, "source": {"ts_ms": 5}},
        {"payload": {"op": "u", "before": before, "after": after}},
        {"op": "d", "before": None},
    ]
    records = [raw(value, at, "debezium", key=b'{"a": "1", "b": "3"}') for at, value in enumerate(changes)]
    (one,) = Decoder("string", columns=ROWS).decode_all(records)
    assert rows([one]) == [
        ("1", "2", 1, 1.0, 5),
        ("1", "2", 0, 1.0, NOW + 1),
        ("1", "3", 1, 4.0, NOW + 1),
        ("1", "3", 0, 1.0, NOW + 2),
    ]


def test_what_is_no_neighbour_is_read_apart() -> None:
    """Of another partition, another encoding, a file; and what holds many updates, or several lines."""
    edge = {"src": 1, "dst": 2}
    letter = BadRecord(TOPIC, 13, b"", "damaged", "torn")
    records = [
        raw(edge, 0),
        raw(edge, 1),
        raw({"v": 1, "edges": [edge, edge, {"src": 1}]}, 2),
        raw({"v": 1, "src": [1, 2], "dst": [3, 4]}, 3),
        raw(edge, 4),
        raw(b'{"src":1,"dst":2}\n{"src":3}\n{"v":1,"edges":[]}', 5),
        raw(edge, 6),
        raw(b' {"src":1,"dst":2}\r\n\n', 7),
        raw(encode_msgpack([1], [2]), 8, "msgpack"),
        raw(b"src,dst\n1,2\n", 9, "csv"),
        raw(edge, 10, ""),
        raw(edge, 11, ""),
        raw(edge, 12),
        raw(None, 13, refused=letter),
        raw(edge, 14, partition=OTHER),
        raw(edge, 15, partition=OTHER),
        raw(b'{"src":1,"dst":2}\n', 16, partition=FILE),
        raw(b'{"src":1,"dst":2}\n', 17, partition=FILE),
    ]
    decoder = Decoder(default_encoding="json")
    check_same(decoder, records)
    bounds = [(one.record.offset, one.record.next_offset) for one in decoder.decode_all(records)]
    assert bounds == [
        *itertools.pairwise([0, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14]),
        (14, 16),
        (16, 17),
        (17, 18),
    ]


@pytest.mark.parametrize("limit", [{"RUN_RECORDS_MAX": 3}, {"RUN_BYTES_MAX": 60}])
def test_many_are_read_in_pieces(limit: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(decode_runs, name, value)
    records = [raw({"src": at, "dst": 1}, at) for at in range(7)]  # of 20 bytes each
    decoded = Decoder().decode_all(records)
    assert [(one.record.offset, one.record.next_offset) for one in decoded] == [(0, 3), (3, 6), (6, 7)]
    check_same(Decoder(), records)
    check_same(Decoder(), [raw({"src": at, "dst": 1, "more": " " * 80}, at) for at in range(3)])


def test_bad_ones_cost_their_neighbours_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: a try for each check that some of them fail, and one for what is left."""
    read: list[int] = []

    def decode_rows(edges: Sequence[Any], *rest: Any) -> Any:
        read.append(len(edges))
        return original(edges, *rest)

    original = decode_runs.decode_rows
    monkeypatch.setattr(decode_runs, "decode_rows", decode_rows)
    wrong: list[dict[str, Any]] = [{"src": "x"}, {"weight": -1}, {"ts": "now"}, {"op": "?"}]
    values = [{"src": at, "dst": 1, **(wrong[at // 2 % 4] if at % 2 else {})} for at in range(400)]
    (one,) = Decoder().decode_all([raw(value, at) for at, value in enumerate(values)])
    assert [row[0] for row in rows([one])] == [*range(0, 400, 2)]
    assert [bad.reason for bad in one.bad] == ["bad-id", "bad-weight", "bad-timestamp", "bad-op"] * 50
    assert sorted(read) == [1] * 200 + [200, 250, 300, 350, 400]


def test_a_failure_inside_is_of_its_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def edge(document: dict[str, Any]) -> dict[str, Any]:
        if document["a"] == 1:
            raise RuntimeError("no luck")
        return NAMED.edge(document)

    decoder = Decoder(columns=NAMED)
    monkeypatch.setattr(decoder, "_json", decoder._json._replace(read=edge))
    values = [{"a": at, "in": {"b": 2}, "k": "c", "w": 1, "t": 0} for at in range(3)]
    decoded = decoder.decode_all([raw(value, at) for at, value in enumerate(values)])
    assert [row[0] for row in rows(decoded)] == [0, 2]
    assert [(bad.offset, bad.reason, bad.detail) for bad in letters(decoded)] == [
        (1, "internal", "RuntimeError: no luck")
    ]


# -- any records --------------------------------------------------------------------------------------------

EDGES = [
    {"src": 1, "dst": 2},
    {"src": 2, "dst": 2, "weight": 1},
    {"src": 1, "dst": 3, "op": "insert", "weight": 1.0, "ts": 5},
    {"src": 2, "dst": 1, "op": "delete"},
    {"src": 3, "op": "insert_vertex"},
    {"src": 1, "op": "delete_vertex", "ts": 7},
]
TRANSFERS = [
    {"a": 1, "in": {"b": 2}, "k": "c", "w": 1, "t": 3},
    {"a": 2, "in": {"b": 2}, "k": "c", "w": "1.0", "t": -1},
    {"a": 1, "in": {"b": 3}, "k": 7, "t": 5},
    {"a": 3, "in": None, "k": "gone", "t": 6},
]
CHANGES = [
    {"op": "c", "before": None, "after": {"a": 1, "b": 2}, "source": {"ts_ms": 3}},
    {"op": "r", "after": {"a": 2, "b": 2, "w": 1}},
    {"op": "u", "before": {"a": 1, "b": 2}, "after": {"a": 1, "b": 3, "w": "1"}, "ts_ms": 4},
    {"op": "u", "before": {"w": 1}, "after": {"a": 1, "b": 3, "w": 1}},
    {"op": "d", "before": {"a": 1, "b": 2}, "after": None},
    {"op": "d", "before": None},
    {"op": "t"},
]
FORMS = [
    ("json", None, EDGES, ["src", "dst", "op", "weight", "ts", "v", "edges"]),
    ("json", NAMED, TRANSFERS, ["a", "in", "in.b", "k", "w", "w", "t", "src"]),
    (
        "debezium",
        ROWS,
        CHANGES,
        ["op", "before", "after", "after.b", "after.w", "before.a", "source.ts_ms", "ts_ms"],
    ),
]
KEYS = [None, b"", b"{", b"[]", b'{"a": 1, "b": 2}', b'{"payload": {"a": "1", "b": "2"}}']

scalars = st.one_of(
    st.sampled_from([None, True, False, [], {}, [1], {"b": 1}, 0, 1, 2, -1]),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1.0, 1e39, 1e300]),
    st.sampled_from(
        ["1", "+2", "x", "", "1.5", "1e999", "é" * 129, "nan", "c", "insert", "delete_vertex", "DELETE"]
    ),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.one_of(
    # What would be good together, and is bad alone.
    st.sampled_from([b'{"src":1', b'"dst":2}', b'{"src":1,"dst":2},{"src":3,"dst":4}', b"[1", b"2]", b","]),
    # What is no object, or has what JSON has not, or a name twice, or lies deep.
    st.sampled_from([b"", b"0", b"null", b"[]", b"{}", b"\xff", b"\xef\xbb\xbf{}", b"[" * 2000, b'{"a":' * 2000]),
    st.sampled_from([b'{"src":NaN,"dst":1}', b'{"src":1,"dst":2,"weight":1e999}', b'{"src":1.0,"dst":1}']),
    st.sampled_from([b'{"src":1,"src":"x","dst":2}', b'{"src":"\\ud800","dst":"1"}']),
    # What stands in lines.
    st.sampled_from([b' \n{"src":1,"dst":2} \r\n\n', b'{"src":1}\n{"src":2,"dst":3}', b'{"x":{}\n,"src":1}']),
    # What holds many updates.
    st.sampled_from([b'{"v":1,"src":[1,"x"],"dst":[2,3]}', b'{"v":1,"edges":[{"src":1,"dst":1},{"src":2}]}\n{}']),
)


def ids_as(kind: str, document: Any) -> Any:
    """The same with ids of this kind."""
    if not isinstance(document, dict):
        return document
    ends = ("src", "dst", "a", "b")
    return {
        name: str(value) if name in ends and kind == "string" else ids_as(kind, value)
        for name, value in document.items()
    }


def spoilt(document: dict[str, Any], how: list[tuple[str, Any]]) -> dict[str, Any]:
    """With other values under these names, or (...) none."""
    for path, value in how:
        place, *rest = path.split(".")
        if rest and isinstance(document.get(place), dict):
            document = {**document, place: spoilt(document[place], [(rest[0], value)])}
        elif not rest:
            document = {name: of for name, of in document.items() if name != place}
            document |= {} if value is ... else {place: value}
    return document


@settings(deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_records_are_what_each_is_by_itself(data: st.DataObject) -> None:
    encoding, columns, known, names = data.draw(st.sampled_from(FORMS))
    kind: Any = data.draw(st.sampled_from(["int", "string"]))
    domain: Any = data.draw(st.sampled_from(["unweighted", "non-negative", "any"]))
    loops: Any = data.draw(st.sampled_from(["keep", "drop"]))
    good = st.sampled_from([ids_as(kind, document) for document in known])
    spoiling = st.lists(st.tuples(st.sampled_from(names), st.one_of(scalars, st.just(...))), max_size=2)
    documents = st.one_of(good, good, st.builds(spoilt, good, spoiling))
    encoded = documents.map(lambda document: json.dumps(document).encode())
    values = st.one_of(
        *[encoded] * 6,
        documents.map(lambda document: json.dumps({"payload": document}).encode()),
        documents.map(lambda document: json.dumps(document, indent=1).encode()),
        st.tuples(documents, st.integers(1, 30)).map(lambda pair: json.dumps(pair[0]).encode()[: -pair[1]]),
        texts,
        st.none(),
    )
    places = st.sampled_from([TOPIC] * 16 + [OTHER, FILE])
    encodings = st.sampled_from([encoding] * 12 + ["json", "debezium", "csv", "msgpack"])
    record = st.tuples(values, st.sampled_from(KEYS), places, encodings)
    records = [
        raw(value, at, own, key=key, partition=partition)
        for at, (value, key, partition, own) in enumerate(data.draw(st.lists(record, max_size=14)))
    ]
    decoder = Decoder(kind, domain, loops, columns=columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_runs, "RUN_RECORDS_MAX", data.draw(st.integers(3, 14)))
        check_same(decoder, records)
    assert "internal" not in {bad.reason for bad in letters(decoder.decode_all(records))}


# -- lines --------------------------------------------------------------------------------------------------


def test_lines_of_one_header_and_time_share_a_block() -> None:
    header, other = b"id,src,dst,weight\n", b"dst,src\n"
    bodies = [header + b"7,1,2,0.5", header + b"7,1,x,1\n7,3,4,2\r\n\n7,3,4,-1", header, header + b"7,5,6,"]
    bodies += [other + b"1,2", other + b"3,4\n", b"src,to\n1,2", b"", other + b"5,6"]
    records = [raw(value, at, "csv", timestamp_ms=NOW) for at, value in enumerate(bodies)]
    records.append(raw(other + b"7,8", 9, "csv", timestamp_ms=NOW + 1))
    decoder = Decoder()
    check_same(decoder, records)
    first, second, no_header, nothing, fifth, later = decoder.decode_all(records)
    assert rows([first]) == [(1, 2, 1, 0.5, NOW), (3, 4, 1, 2.0, NOW), (5, 6, 1, 1.0, NOW)]
    assert [(bad.offset, bad.reason, bad.value) for bad in first.bad] == [
        (1, "bad-id", b"7,1,x,1"),
        (1, "bad-weight", b"7,3,4,-1"),
    ]
    assert [row[:2] for row in rows([second, fifth, later])] == [(2, 1), (4, 3), (6, 5), (8, 7)]
    assert [row[4] for row in rows([second, fifth, later])] == [NOW, NOW, NOW, NOW + 1]
    assert [bad.reason for bad in letters([no_header, nothing])] == ["bad-column"] * 2


def test_lines_of_files_are_not_joined() -> None:
    """They begin where the file does, once."""
    records = [
        raw(b"src,dst\n1,2\n", 0, "csv", partition=FILE, next_offset=12),
        raw(b"3,4\n", 12, "csv", partition=FILE, next_offset=16),
    ]
    assert [row[:2] for row in rows(Decoder().decode_all(records))] == [(1, 2), (3, 4)]


_MATRIX = b"%%MatrixMarket matrix coordinate real general\n% 2\n3 3 1\n"
LAYOUTS: list[tuple[str, dict[str, Any], list[bytes], list[bytes]]] = [
    ("csv", {}, [b"src,dst\n", b"src,dst\n", b"dst,src\n", b"src\n", b""], [b"1,2", b"2,2", b' 3,"1"']),
    ("csv", {}, [b"op,src,dst,weight,ts\n"], [b"d,1,2,,", b"insert,1,2,0.5,7", b",3,3,,", b"delete_vertex,3,,,8"]),
    ("csv", {"csv_columns": ["src", "dst", "weight"]}, [b""], [b"1,2,0.5", b"2,2,", b"3,1,1e39"]),
    (
        "csv",
        {"columns": NamedColumns("a", "b", op="k", op_values=NAMED.op_values)},
        [b"k,a,b\n"],
        [b"c,1,2", b"7,2,2"],
    ),
    ("el", {}, [b"", b"", b"", b"# 1\n", _MATRIX], [b"1 2", b"2\t2 5", b"3 1 1 7"]),
]
fields = st.one_of(
    st.sampled_from([b"1", b"2", b"3"]),
    st.sampled_from([b"1", b"2", b"insert", b"delete", b"c", b"7", b"gone", b"0.5", b"", b" "]),
    st.sampled_from([b"x", b"-1", b'"2"', b'"', b"9" * 19, b"1e400", b"\xff", b"delete_vertex", b"#", b"\r"]),
)


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_lines_are_what_those_of_each_record_are(data: st.DataObject) -> None:
    encoding, given_, headers, known = data.draw(st.sampled_from(LAYOUTS))
    kind: Any = data.draw(st.sampled_from(["int", "string"]))
    comma = b"," if encoding == "csv" else b" "
    odd = st.integers(2, 5).flatmap(lambda n: st.lists(fields, min_size=n, max_size=n)).map(comma.join)
    lines = st.lists(st.one_of(*[st.sampled_from(known)] * 4, odd), max_size=3)
    text = st.tuples(lines.map(b"\n".join), st.sampled_from([b"", b"", b"\n", b"\r\n"]))
    value = st.one_of(
        *[st.builds(lambda head, body: head + b"".join(body), st.sampled_from(headers), text)] * 5, st.none()
    )
    record = st.tuples(value, st.sampled_from([NOW, NOW, NOW, NOW + 1]), st.sampled_from([TOPIC] * 6 + [OTHER]))
    records = [
        raw(value, at, encoding, timestamp_ms=ms, partition=partition)
        for at, (value, ms, partition) in enumerate(data.draw(st.lists(record, max_size=12)))
    ]
    decoder = Decoder(kind, self_loops=data.draw(st.sampled_from(["keep", "drop"])), line_bytes_max=40, **given_)
    check_same(decoder, records)
    assert "internal" not in {bad.reason for bad in letters(decoder.decode_all(records))}
