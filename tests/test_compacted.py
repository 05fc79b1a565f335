"""Change events in topics that are compacted, and keys that do not name the edges of their records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from schema_registry import SchemaRegistry, framed

from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.decode_debezium import Changes
from graphtide.daemon.ingest.registry import Registry
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord

P = Partition("t", 0)
ENDS = {"src": 1, "dst": 2}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        server.register("json", "{}", "JSON", number=1)
        yield server


def raw(encoding: str, key: Any, value: Any, offset: int = 0) -> RawRecord:
    def made(document: Any) -> bytes | None:
        if document is None:
            return None
        body = json.dumps(document).encode()
        return framed(1, body) if encoding.endswith("registry") else body

    return RawRecord(P, offset, offset + 1, made(value), encoding, 7, made(key))


def updates(decoded: list[Decoded]) -> list[tuple[int, int, int]]:
    blocks = [one.block for one in decoded if one.block is not None]
    rows = [zip(block.src, block.dst, block.ops, strict=True) for block in blocks]
    return [(int(src), int(dst), int(op)) for block in rows for src, dst, op in block]


def reasons(decoded: list[Decoded]) -> list[tuple[int, str]]:
    return [(bad.offset, bad.reason) for one in decoded for bad in one.bad]


@pytest.mark.parametrize("encoding", ["debezium", "debezium-registry"])
@pytest.mark.parametrize("together", [True, False])
def test_a_tombstone_of_a_compacted_topic_deletes_what_its_key_names(
    registry: SchemaRegistry, encoding: str, together: bool
) -> None:
    """The delete before it may have been compacted away while nobody read."""
    records = [
        raw(encoding, ENDS, {"op": "c", "after": ENDS, "before": None}, 0),
        raw(encoding, ENDS, None, 1),
        raw(encoding, {"id": 7}, None, 2),
        raw(encoding, None, None, 3),
        raw(encoding, {"src": 3, "dst": 4}, {"op": "c", "after": {"src": 3, "dst": 4}}, 4),
    ]
    for compacted in (True, False):
        decoder = Decoder(registry=Registry(registry.url), compacted=compacted)
        decoded = decoder.decode_all(records) if together else [*map(decoder.decode, records)]
        deleted = [(1, 2, 0)] if compacted else []
        assert updates(decoded) == [(1, 2, 1), *deleted, (3, 4, 1)]
        assert reasons(decoded) == ([(2, "bad-change"), (3, "bad-change")] if compacted else [])


@pytest.mark.parametrize("encoding", ["debezium", "debezium-registry"])
def test_a_tombstone_that_nobody_thought_of_stops_no_stream(
    registry: SchemaRegistry, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Changes.edges

    def edges(changes: Changes, document: Any, key: Any) -> Any:
        if document is None:
            raise RecursionError("as deep as nobody thought")
        return made(changes, document, key)

    monkeypatch.setattr(Changes, "edges", edges)
    decoder = Decoder(registry=Registry(registry.url), compacted=True)
    records = [raw(encoding, ENDS, None), raw(encoding, ENDS, {"op": "c", "after": ENDS}, 1)]
    decoded = decoder.decode_all(records)
    assert updates(decoded) == [(1, 2, 1)] and reasons(decoded) == [(0, "internal")]


def test_tombstones_of_other_records_change_nothing(registry: SchemaRegistry) -> None:
    decoder = Decoder(registry=Registry(registry.url), compacted=True)
    for encoding in ("json", "registry", "msgpack"):
        decoded = decoder.decode_all([raw(encoding, ENDS, None)])
        assert not updates(decoded) and not reasons(decoded)


@pytest.mark.parametrize("encoding", ["debezium", "debezium-registry"])
def test_an_update_of_another_edge_than_its_key_names_is_bad(registry: SchemaRegistry, encoding: str) -> None:
    """Without the row before, the edge that is to go is not known; the key would be its only name."""
    decoder = Decoder(registry=Registry(registry.url))
    moved = {"op": "u", "after": {"src": 1, "dst": 3}}
    decoded = decoder.decode_all([raw(encoding, ENDS, moved)])
    assert not updates(decoded) and reasons(decoded) == [(0, "bad-change")]
    assert "whose key names another edge" in decoded[0].bad[0].detail
    assert updates(decoder.decode_all([raw(encoding, ENDS, {**moved, "before": ENDS})])) == [(1, 2, 0), (1, 3, 1)]
    same = {"op": "u", "after": {"src": "1", "dst": 2}}
    assert updates(decoder.decode_all([raw(encoding, ENDS, same)])) == [(1, 2, 1)]


def test_keys_of_other_records_are_not_looked_at(registry: SchemaRegistry) -> None:
    """As the protocol says: upserts by a key that is not the edge leave the edge of before."""
    decoder = Decoder(registry=Registry(registry.url))
    for encoding in ("json", "registry"):
        records = [raw(encoding, {"id": 7}, {"src": 1, "dst": to}, at) for at, to in enumerate((2, 3))]
        assert updates(decoder.decode_all(records)) == [(1, 2, 1), (1, 3, 1)]
