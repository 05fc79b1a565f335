"""JSON and CSV in which producers call the columns of an update by names of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.config.load import from_tables
from graphtide.daemon.ingest.decode import REASONS, Decoder
from graphtide.daemon.ingest.named_columns import named_columns
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.gpma.index.ids import StringColumn

TOPIC, FILE = Partition("transfers", 0), Partition("transfers.json")
NOW = 1_700_000_000_000

TRANSFERS = {
    "src": "from_account",
    "dst": "payload.after.to",
    "op": "kind",
    "weight": "payload.after.amount",
    "ts": "at",
    "op_values": {"insert": ["c", "u", "true"], "delete": ["d", "7"], "delete_vertex": ["closed"]},
}


def decoder(columns: dict[str, Any], kind: Any = "int") -> Decoder:
    config = from_tables({"source": {"columns": columns}})
    return Decoder(vertex_ids=kind, weights="any", columns=named_columns(config.source.columns))


def raw(value: Any, encoding: str = "json", partition: Partition = TOPIC, offset: int = 0) -> RawRecord:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return RawRecord(partition, offset, offset + 1, text, encoding, NOW)


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    assert decoded.block is not None
    block, n = decoded.block, len(decoded.block)
    ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
    weights = [1.0] * n if block.weights is None else block.weights.tolist()
    ts = block.timestamps_ms
    return [
        *zip(*ends, block.ops.tolist(), weights, [ts] * n if isinstance(ts, int) else ts.tolist(), strict=True)
    ]


def transfer(kind: Any, **changed: Any) -> dict[str, Any]:
    return {"from_account": 1, "kind": kind, "at": 9, "payload": {"after": {"to": 2, "amount": 2.5}}, **changed}


def test_an_object_by_its_producers_names() -> None:
    decode = decoder(TRANSFERS).decode
    expected = [("c", 1, 2.5), ("u", 1, 2.5), (True, 1, 2.5), ("d", 0, 1.0), (7, 0, 1.0)]
    for kind, op, weight in expected:
        assert rows(decode(raw(transfer(kind)))) == [(1, 2, op, weight, 9)]
    assert rows(decode(raw(transfer("c", weight="heavy", op="?", src=[], edges=[])))) == [(1, 2, 1, 2.5, 9)]
    decimals = transfer("c", payload={"after": {"to": "2", "amount": "-1.5e1"}})
    assert rows(decode(raw(decimals))) == [(1, 2, 1, -15.0, 9)]


def test_a_deletion_needs_no_weight_and_a_vertex_no_head() -> None:
    decode = decoder(TRANSFERS).decode
    assert rows(decode(raw(transfer("d", payload={"after": {"to": 2}})))) == [(1, 2, 0, 1.0, 9)]
    assert rows(decode(raw(transfer("closed", payload=None)))) == [(1, 0, 3, 1.0, 9)]
    (bad,) = decode(raw(transfer("closed"))).bad
    assert bad.reason == "bad-vertex-op"


def test_columns_that_are_not_named_are_not_read() -> None:
    decode = decoder({"src": "a", "dst": "b"}, "string").decode
    document = {"a": "x", "b": "y", "op": "READ", "weight": None, "ts": "2026-01-01", "v": 4}
    assert rows(decode(raw(document))) == [("x", "y", 1, 1.0, NOW)]
    assert rows(decoder({"weight": "w"}).decode(raw({"src": 1, "dst": 2, "w": 3}))) == [(1, 2, 1, 3.0, NOW)]
    plain = {"src": 1, "dst": 2, "op": "delete", "at": 5}
    assert rows(decoder({"op": "op", "ts": "at"}).decode(raw(plain))) == [(1, 2, 0, 1.0, 5)]


BAD = [
    (transfer("c", payload={"after": {"amount": 1}}), "bad-column", "dst (payload.after.to) is missing"),
    (
        transfer("c", payload={"before": {}}),
        "bad-column",
        "dst (payload.after.to) is missing: there is no payload.after",
    ),
    (
        transfer("c", payload={"after": None}),
        "bad-column",
        "dst (payload.after.to) is missing: payload.after is null, no object",
    ),
    ({"kind": "c"}, "bad-column", "src (from_account) is missing"),
    ({"from_account": 1}, "bad-column", "op (kind) is missing"),
    (
        transfer("c", payload={"after": {"to": 2}}),
        "bad-column",
        "weight (payload.after.amount) is missing",
    ),
    ({**transfer("c"), "at": None}, "bad-timestamp", "ts is null; it must be a 64-bit integer (milliseconds)"),
    (
        transfer("insert"),
        "bad-op",
        "op is 'insert'; source.columns.op_values has ['7', 'c', 'closed', 'd', 'true', 'u']",
    ),
    (transfer(1.0), "bad-op", "op is 1.0; source.columns.op_values has ['7', 'c', 'closed', 'd', 'true', 'u']"),
    (transfer("c", from_account="x"), "bad-id", "src holds 'x'; ids are 64-bit integers"),
    (
        transfer("c", payload={"after": {"to": 2, "amount": "1,5"}}),
        "bad-weight",
        "weight is '1,5'; it must be a number",
    ),
]


@pytest.mark.parametrize(("document", "reason", "detail"), BAD)
def test_exact_reasons(document: dict[str, Any], reason: str, detail: str) -> None:
    decoded = decoder(TRANSFERS).decode(raw(document))
    (bad,) = decoded.bad
    assert decoded.block is None
    assert (bad.reason, bad.detail, bad.value) == (reason, detail, json.dumps(document).encode())


DOTTED = {"from.id": 1, "to": {"node.id": 2, "a": {"b": 7}}, "to.node.id": 3, "w.": 0.5}


@pytest.mark.parametrize(
    ("dst", "end"), [(["to", "node.id"], 2), (["to.node.id"], 3), ("to.a.b", 7), (["to", "a", "b"], 7)]
)
def test_names_may_have_dots_where_they_stand_in_a_list(dst: Any, end: int) -> None:
    columns = {"src": ["from.id"], "dst": dst, "weight": ["w."]}
    assert rows(decoder(columns).decode(raw(DOTTED))) == [(1, end, 1, 0.5, NOW)]
    header = f"from.id,{dst if isinstance(dst, str) else '.'.join(dst)},w.\n".encode()
    assert rows(decoder(columns).decode(raw(header + b"4,5,0.5\n", "csv"))) == [(4, 5, 1, 0.5, NOW)]


def test_a_name_with_dots_that_is_one_is_said_to_be() -> None:
    (bad,) = decoder({"src": "from.id", "dst": "to.a.b"}).decode(raw(DOTTED)).bad
    assert (bad.reason, bad.detail) == (
        "bad-column",
        "src (from.id) is missing: its dots lead into objects, and here it is one name: "
        "source.columns.src = ['from.id']",
    )


@pytest.mark.parametrize("partition", [TOPIC, FILE])
def test_each_line_counts_by_itself(partition: Partition) -> None:
    lines = [transfer("c"), {"kind": "c"}, transfer("d"), transfer("x"), transfer("c", from_account="x")]
    texts = [json.dumps(line).encode() for line in lines]
    value = b"\n".join(texts) + b"\n"
    decoded = decoder(TRANSFERS).decode(raw(value, partition=partition, offset=100))
    assert rows(decoded) == [(1, 2, 1, 2.5, 9), (1, 2, 0, 1.0, 9)]
    assert [(bad.reason, bad.value) for bad in decoded.bad] == [
        ("bad-column", texts[1]),
        ("bad-op", texts[3]),
        ("bad-id", texts[4]),
    ]
    starts = [100 + value.index(text) if partition is FILE else 100 for text in (texts[1], texts[3], texts[4])]
    assert [bad.offset for bad in decoded.bad] == starts


@pytest.mark.parametrize("kind", ["int", "string"])
def test_header_lines_by_their_producers_names(kind: Any) -> None:
    columns = {**TRANSFERS, "dst": "To Account", "weight": "amount"}
    header = b"src, at,amount ,To Account,from_account,kind\n"
    value = header + b"x,9,2.5,2,1,c\nx,9,,2,1,d\nx,9,1,2,1,insert\nx,9,,,1,closed\nx,9,1,2,1,\n"
    decoded = decoder(columns, kind).decode(raw(value, "csv", FILE))
    one, two, none = (1, 2, 0) if kind == "int" else ("1", "2", "")
    assert rows(decoded) == [(one, two, 1, 2.5, 9), (one, two, 0, 1.0, 9), (one, none, 3, 1.0, 9)]
    assert [(bad.reason, bad.value) for bad in decoded.bad] == [
        ("bad-op", b"x,9,1,2,1,insert"),
        ("bad-op", b"x,9,1,2,1,"),
    ]


def test_a_header_line_must_have_all_that_is_named() -> None:
    value = b"from_account,src,dst\n1,2,3\n"
    (bad,) = decoder({"src": "from_account", "dst": "to", "weight": "amount"}).decode(raw(value, "csv")).bad
    assert bad.reason == "bad-column"
    assert bad.detail == (
        "the header line must name from_account, to and amount, each column once; it is 'from_account,src,dst'"
    )
    assert rows(decoder({"src": "from_account", "dst": "dst"}).decode(raw(value, "csv"))) == [(1, 3, 1, 1.0, NOW)]


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.sampled_from("cud"), st.floats(0, 9, width=32)),
        min_size=1,
    )
)
def test_named_columns_are_what_plain_ones_are(edges: list[tuple[int, int, str, float]]) -> None:
    """The same history in our names and in a producer's, as JSON and as CSV."""
    ours = [{"src": a, "dst": b, "op": "delete" if op == "d" else "insert", "weight": w} for a, b, op, w in edges]
    theirs = [{"x": {"a": a}, "b": b, "k": op, "w": w} for a, b, op, w in edges]
    lines = ["k,b,x.a,w", *(f"{op},{b},{a},{w!r}" for a, b, op, w in edges)]
    named = decoder(
        {"src": "x.a", "dst": "b", "op": "k", "weight": "w", "op_values": {"insert": ["c", "u"], "delete": ["d"]}}
    )
    plain = Decoder(weights="any").decode(raw(b"\n".join(json.dumps(row).encode() for row in ours)))
    expected = [row if row[2] else (*row[:3], 1.0, row[4]) for row in rows(plain)]
    assert rows(named.decode(raw(b"\n".join(json.dumps(row).encode() for row in theirs)))) == expected
    assert rows(named.decode(raw("\n".join(lines).encode(), "csv"))) == rows(plain)


names = st.sampled_from(["from_account", "kind", "at", "payload", "after", "to", "amount"])
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["c", "d", "closed", "2"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["from_account", "kind", "at", "payload", "after", "to", "amount"]), inner
        ),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(documents, st.sampled_from(["int", "string"]))
def test_no_document_can_stop_the_stream(document: Any, kind: str) -> None:
    given_ = decoder(TRANSFERS, kind).decode(raw(document))
    assert len(given_.bad) + (given_.block is not None) == 1
    assert {bad.reason for bad in given_.bad} <= set(REASONS) - {"internal"}
