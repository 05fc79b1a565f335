"""Change events of Debezium: a table of edges whose rows come, change and go."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from brokers import client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaProducer
from running import Daemon
from sampling import examples

from graphtide.daemon.ingest.decode import REASONS, Decoder
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.gpma.index.ids import StringColumn
from graphtide.ops.kafka import DevKafka

TOPIC, FILE = Partition("bank.public.transfers", 0), Partition("transfers.debezium")
NOW = 1_700_000_000_000
COLUMNS = NamedColumns("payer", "payee", weight="amount")

ROW_SCHEMA = {
    "type": "struct",
    "optional": True,
    "name": "bank.public.transfers.Value",
    "fields": [
        {"type": "int32", "optional": False, "field": "id"},
        {"type": "int64", "optional": False, "field": "payer"},
        {"type": "int64", "optional": False, "field": "payee"},
        {"type": "double", "optional": True, "field": "amount"},
    ],
}


def row(number: int, payer: Any, payee: Any, amount: Any = 1.0) -> dict[str, Any]:
    return {"id": number, "payer": payer, "payee": payee, "amount": amount}


def event(op: str, before: Any = None, after: Any = None, **changed: Any) -> dict[str, Any]:
    """As the connector for PostgreSQL writes it."""
    return {
        "before": before,
        "after": after,
        "source": {
            "version": "2.7.3.Final",
            "connector": "postgresql",
            "name": "bank",
            "ts_ms": 1_559_033_904_863,
            "snapshot": "first" if op == "r" else "false",
            "db": "postgres",
            "sequence": '["24023119","24023128"]',
            "schema": "public",
            "table": "transfers",
            "txId": 555,
            "lsn": 24_023_128,
            "xmin": None,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1_559_033_904_900,
        **changed,
    }


def wrapped(payload: Any) -> dict[str, Any]:
    """As the JSON converter writes it with ``schemas.enable``."""
    fields = [{**ROW_SCHEMA, "field": "before"}, {**ROW_SCHEMA, "field": "after"}]
    return {
        "schema": {"type": "struct", "fields": fields, "optional": False, "name": "Envelope"},
        "payload": payload,
    }


def raw(value: Any, key: Any = None, partition: Partition = TOPIC, offset: int = 7) -> RawRecord:
    text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    key_text = None if key is None else json.dumps(key).encode()
    return RawRecord(partition, offset, offset + 1, text, "debezium", NOW, key_text)


def decode(record: RawRecord, columns: NamedColumns | None = COLUMNS, kind: Any = "int") -> Decoded:
    return Decoder(vertex_ids=kind, columns=columns).decode(record)


def updates(decoded: Decoded) -> list[tuple[Any, ...]]:
    """(src, dst, op, weight) of each."""
    assert not decoded.bad, decoded.bad
    if decoded.block is None:
        return []
    block = decoded.block
    ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
    weights = [1.0] * len(block) if block.weights is None else block.weights.tolist()
    return [*zip(*ends, block.ops.tolist(), weights, strict=True)]


CHANGES = [
    (event("c", None, row(1, 10, 20, 2.5)), [(10, 20, 1, 2.5)]),
    (event("r", None, row(1, 10, 20, "2.50")), [(10, 20, 1, 2.5)]),
    (event("u", row(1, 10, 20), row(1, 10, 20, 7)), [(10, 20, 1, 7.0)]),
    (event("u", row(1, 10, 20), row(1, 10, 30, 7)), [(10, 20, 0, 1.0), (10, 30, 1, 7.0)]),
    (event("u", row(1, 10, 20), row(1, 20, 10, 7)), [(10, 20, 0, 1.0), (20, 10, 1, 7.0)]),
    (event("d", row(1, 10, 20), None), [(10, 20, 0, 1.0)]),
    (event("d", {"payer": 10, "payee": 20}, None), [(10, 20, 0, 1.0)]),
    (None, []),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
@pytest.mark.parametrize("form", [lambda change: change, wrapped])
def test_changes_of_rows_are_changes_of_edges(change: Any, expected: list[Any], form: Any) -> None:
    decoded = decode(raw(form(change) if change or form is wrapped else None))
    assert updates(decoded) == expected
    if expected:
        assert decoded.block is not None
        assert set(decoded.block.timestamps_ms.tolist()) == {1_559_033_904_863}  # type: ignore[union-attr]


def test_times_and_columns_where_nothing_is_said() -> None:
    bare = {"op": "c", "after": {"src": "a", "dst": "b", "ts": "2026-01-01"}}
    decoded = decode(raw(bare), None, "string")
    assert updates(decoded) == [("a", "b", 1, 1.0)]
    assert decoded.block is not None and decoded.block.timestamps_ms == NOW
    weighed = {"op": "c", "after": {"src": "a", "dst": "b", "weight": 4}, "ts_ms": 12}
    decoded = decode(raw(weighed), None, "string")
    assert updates(decoded) == [("a", "b", 1, 4.0)]
    assert decoded.block is not None and list(decoded.block.timestamps_ms) == [12]  # type: ignore[arg-type]
    timed = NamedColumns("payer", "payee", ts="made.at")
    decoded = decode(raw(event("c", None, {**row(1, 1, 2), "made": {"at": 5}})), timed)
    assert decoded.block is not None and list(decoded.block.timestamps_ms) == [5]  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [lambda change: change, wrapped])
def test_ends_that_are_the_key_need_no_row_before(form: Any) -> None:
    key = form({"payer": 10, "payee": 20})
    for before in (None, {"id": 1, "amount": None}, {"id": 1, "payer": None, "payee": None}):
        assert updates(decode(raw(event("u", before, row(1, 10, 20, 4)), key))) == [(10, 20, 1, 4.0)]
        assert updates(decode(raw(event("d", before), key))) == [(10, 20, 0, 1.0)]


WHOLE_ROWS = "the table must log whole rows (REPLICA IDENTITY FULL), or src and dst must be its key"
NO_OLD_ENDS = f"an update without the ends that the edge had before: {WHOLE_ROWS}"
BAD = [
    (event("u", None, row(1, 10, 20)), "bad-change", NO_OLD_ENDS),
    (event("u", {"id": 1}, row(1, 1, 2)), "bad-change", NO_OLD_ENDS),
    (event("d"), "bad-change", f"a delete without the ends of the edge: {WHOLE_ROWS}"),
    (event("t"), "bad-change", "a truncate does not say which edges go: delete the rows instead"),
    (event("m"), "bad-op", "op is 'm'; allowed are c, r, u and d"),
    (event("c"), "bad-column", "after must be an object, and is null"),
    (event("c", None, '{"payer": 1}'), "bad-column", "after must be an object, and is '{\"payer\": 1}'"),
    (event("c", None, {"payer": 1}), "bad-column", "in after: dst (payee) is missing"),
    (event("u", row(1, 1, 2), {"payer": 1, "payee": 3}), "bad-column", "in after: weight (amount) is missing"),
    (
        event("u", row(1, 1, 2), row(1, 1, 3, -1)),
        "bad-weight",
        "weight is -1.0; it must be a finite float32, at least 0",
    ),
    (event("u", row(1, None, 2), row(1, 1, 3)), "bad-change", NO_OLD_ENDS),
    (event("d", row(1, "x", 2)), "bad-id", "src holds 'x'; ids are 64-bit integers"),
    (event("c", None, row(1, 1, 2, None)), "bad-weight", "weight is null; it must be a number"),
    (event("c", None, row(1, 1, 2, "AQ==")), "bad-weight", "weight is 'AQ=='; it must be a number"),
    ({"id": 1, "payer": 1, "payee": 2}, "bad-column", "op is missing: this is no change event"),
    ({"schema": None, "payload": [1]}, "malformed", "payload must be an object, not [1]"),
]


@pytest.mark.parametrize(("change", "reason", "detail"), BAD)
def test_exact_reasons(change: dict[str, Any], reason: str, detail: str) -> None:
    """A change that cannot be applied whole is not applied in part."""
    for key in (None, {"id": 1}, [1], {"payload": None}, "x"):
        record = raw(change, key)
        decoded = decode(record)
        (bad,) = decoded.bad
        assert decoded.block is None
        assert (bad.reason, bad.value, bad.key) == (reason, record.value, record.key)
        assert bad.detail == detail


def test_lines_of_events() -> None:
    """A file of events: a change of two updates is one item, good or bad."""
    lines = [change for change, _ in CHANGES if change] + [change for change, _, _ in BAD[:6]]
    lines.insert(3, event("u", row(1, 1, 2), row(1, 1, 3, -1)))
    value = b"\n".join(json.dumps(line).encode() for line in lines)
    decoded = decode(raw(value, None, FILE))
    assert len(decoded.bad) == 7 and [bad.reason for bad in decoded.bad][:2] == ["bad-weight", "bad-change"]
    assert decoded.bad[0].value == json.dumps(lines[3]).encode()
    assert updates(Decoded(decoded.record, decoded.block)) == [row for _, some in CHANGES for row in some]


Table = dict[int, tuple[int, int, int]]


@settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_graph_is_the_table(data: st.DataObject) -> None:
    """Random statements on a table with a number as its key, each pair at most once: the edges are its rows."""
    table: Table = {}
    graph: dict[tuple[int, int], float] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        number = data.draw(st.integers(0, 4))
        old = table.get(number)
        new = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)))
        taken = {ends[:2] for other, ends in table.items() if other != number}
        before = None if old is None else row(number, *old)
        if new[:2] in taken or data.draw(st.integers(0, 3)) == 0:
            if old is None:
                continue
            change = event("d", before)
            del table[number]
        else:
            change = event("c" if old is None else "u", before, row(number, *new))
            table[number] = new
        for src, dst, op, weight in updates(decode(raw(wrapped(change)))):
            if op:
                graph[src, dst] = weight
            else:
                del graph[src, dst]
        assert graph == {(src, dst): float(amount) for src, dst, amount in table.values()}


rows = st.one_of(
    st.none(),
    st.integers(),
    st.dictionaries(st.sampled_from(["payer", "payee", "amount"]), st.integers(), max_size=3),
)


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(op=st.sampled_from("crudtm"), before=rows, after=rows, key=rows, payload=st.booleans())
def test_no_event_can_stop_the_stream(op: str, before: Any, after: Any, key: Any, payload: bool) -> None:
    change = event(op, before, after)
    decoded = decode(raw(wrapped(change) if payload else change, key))
    assert (decoded.block is None) == bool(decoded.bad)
    assert {bad.reason for bad in decoded.bad} <= set(REASONS) - {"internal"}


@pytest.mark.kafka
def test_a_table_becomes_a_graph(kafka: DevKafka, tmp_path: Path) -> None:
    """Through Kafka: a snapshot, changes, a tombstone and a truncate, in the partitions of the keys."""
    topic = f"bank.public.transfers-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 3)
    changes = [
        (1, event("r", None, row(1, 1, 2, 2.0))),
        (2, event("r", None, row(2, 2, 3, 2.0))),
        (1, event("u", row(1, 1, 2, 2.0), row(1, 1, 2, 0.5))),
        (2, event("d", row(2, 2, 3, 2.0))),
        (2, None),
        (3, event("c", None, row(3, 5, 6, 1.0))),
        (4, event("c", None, row(4, 4, 5, 1.0))),
        (4, event("u", row(4, 4, 5, 1.0), row(4, 3, 5, 3.0))),
        (4, event("t")),
    ]
    ends: dict[int, int] = {}
    with client(KafkaProducer, kafka.bootstrap) as producer:
        for number, change in changes:
            value = None if change is None else json.dumps(wrapped(change)).encode()
            key = json.dumps(wrapped({"id": number})).encode()
            sent = producer.send(topic, value, key=key).get(timeout=30)
            ends[sent.partition] = sent.offset + 1
    settings = {
        "source": {
            "kind": "kafka",
            "bootstrap_servers": [kafka.bootstrap],
            "topics": [topic],
            "encoding": "debezium",
            "columns": {"src": "payer", "dst": "payee", "weight": "amount"},
        },
        "program": [{"name": "sssp", "source": 1}],
    }
    with Daemon(tmp_path, settings) as daemon, daemon.start().client() as ask:
        result = ask.has_edge([1, 2, 5, 4, 3], [2, 3, 6, 5, 5], min_offsets={topic: ends})
        assert result.exists.tolist() == [True, False, True, False, True]
        assert ask.get("sssp", [2], min_offsets={topic: ends}).values.tolist() == [0.5]
        assert ask.stats()["dead_letters"] == {"bad-change": 1}
        assert "belong to other partitions" not in daemon.log.read_text()
