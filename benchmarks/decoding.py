"""What records cost to decode: the same updates in every encoding, processor time beside MessagePack's.

    python benchmarks/decoding.py [--json FILE]

Random edges with weights, between integers and between strings (1000 different ones), so many to a record. In
turns, the least of several tries. Arrow is left out where PyArrow is not installed.

Then records of one edge each, as producers that know nothing of graphtide send them, a poll of them at a time:
what a record of a registry, a line of CSV with its header, or a change event of Debezium costs beside one in JSON.
All have one time. Avro is written by fastavro.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.daemon.ingest.arrow_extra import is_readable
from graphtide.daemon.ingest.decode import Decoder, warm_up
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.ingest.registry import Schema
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.gpma.index.ids import StringColumn

TURNS, TURN_SECONDS = 5, 0.05
NAMED = NamedColumns("row.payer", "row.payee", weight="row.amount")


def records(n: int, kind: str, rng: np.random.Generator) -> dict[str, tuple[str, bytes, NamedColumns | None]]:
    """Encoding, bytes and names of columns, by the name that the table gives it."""
    src, dst = rng.integers(0, 1 << 40, (2, n)) if kind == "int" else rng.integers(0, 1000, (2, n))
    weights = rng.random(n).astype(np.float32)
    ends: list[list[Any]] = [src.tolist(), dst.tolist()]
    if kind == "string":
        ends = [[f"user-{number}" for number in end] for end in ends]
    rows = list(zip(*ends, weights.tolist(), strict=True))
    theirs = [{"row": {"payer": a, "payee": b, "amount": w}} for a, b, w in rows]
    changes = [{"op": "c", "before": None, "after": row["row"], "source": {"ts_ms": 1}} for row in theirs]
    captured = NamedColumns("payer", "payee", weight="amount")
    packed = [np.array(end) if kind == "int" else StringColumn.of(end) for end in ends]
    made: dict[str, tuple[str, bytes, NamedColumns | None]] = {
        "msgpack": ("msgpack", encode_msgpack(*packed, weights=weights), None),
        "json lines": ("json", lines({"src": a, "dst": b, "weight": w} for a, b, w in rows), None),
        "json, named columns": ("json", lines(theirs), NAMED),
        "debezium": ("debezium", lines(changes), captured),
        "csv": ("csv", "\n".join(["src,dst,weight", *(f"{a},{b},{w}" for a, b, w in rows)]).encode(), None),
    }
    if is_readable():
        made["arrow"] = ("arrow", arrow(ends, weights, dictionary=False), None)
        if kind == "string":
            made["arrow, dictionaries"] = ("arrow", arrow(ends, weights, dictionary=True), None)
    return made


def lines(documents: Any) -> bytes:
    return "\n".join(map(json.dumps, documents)).encode()


def arrow(ends: list[list[Any]], weights: Any, *, dictionary: bool) -> bytes:
    import pyarrow as pa

    src, dst = (pa.array(end).dictionary_encode() if dictionary else pa.array(end) for end in ends)
    batch = pa.record_batch([src, dst, pa.array(weights)], ["src", "dst", "weight"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def microseconds(decoder: Decoder, record: RawRecord) -> float:
    """Processor time of one call, of as many as a turn holds."""
    calls, began = 0, time.process_time()
    while (passed := time.process_time() - began) < TURN_SECONDS:
        decoder.decode(record)
        calls += 1
    return passed / calls * 1e6


def measured(n: int, kind: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
    made = records(n, kind, rng)
    best = dict.fromkeys(made, float("inf"))
    for _ in range(TURNS):
        for name, (encoding, value, columns) in made.items():
            record = RawRecord(Partition("edges", 0), 0, 1, value, encoding, 0)
            decoder = Decoder(vertex_ids=kind, columns=columns)
            decoded = decoder.decode(record)
            assert not decoded.bad and decoded.block is not None and len(decoded.block) == n
            best[name] = min(best[name], microseconds(decoder, record))
    return [
        {
            "ids": kind,
            "edges": n,
            "encoding": name,
            "bytes": len(made[name][1]),
            "us a record": best[name],
            "ns an edge": best[name] / n * 1e3,
            "of msgpack": best[name] / best["msgpack"],
        }
        for name in made
    ]


# -- one edge a record ------------------------------------------------------------------------------------

POLL = 4096
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "payer", "type": "long"},
        {"name": "payee", "type": "long"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "note", "type": "string"},
    ],
}
SOURCE = ["version", "connector", "name", "snapshot", "db", "schema", "table"]
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "ts_ms", "type": "long"},
                    *({"name": name, "type": "string"} for name in SOURCE),
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}
PROTO = """
syntax = "proto3";
message Value { int64 id = 1; int64 payer = 2; int64 payee = 3; optional double amount = 4; string note = 5; }
"""
SCHEMAS = {
    1: Schema("AVRO", json.dumps(ROW), {}),
    2: Schema("AVRO", json.dumps(ENVELOPE), {}),
    3: Schema("PROTOBUF", PROTO, {}),
}


class Schemas:
    """A registry that is never away."""

    def schema(self, number: int) -> Schema:
        return SCHEMAS[number]


def avro(number: int, schema: Any, values: list[dict[str, Any]]) -> list[bytes]:
    import fastavro

    parsed, written = fastavro.parse_schema(schema), []
    for value in values:
        file = io.BytesIO()
        file.write(struct.pack(">bI", 0, number))
        fastavro.schemaless_writer(file, parsed, value)
        written.append(file.getvalue())
    return written


def protobuf(values: list[dict[str, Any]]) -> list[bytes]:
    return [
        struct.pack(">bIb", 0, 3, 0)
        + b"".join(bytes([tag]) + varint(value[name]) for tag, name in ((8, "id"), (16, "payer"), (24, "payee")))
        + struct.pack("<bd", 33, value["amount"])
        + bytes([42, len(value["note"])])
        + value["note"].encode()
        for value in values
    ]


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def one_each(rng: np.random.Generator) -> list[dict[str, Any]]:
    """What a record of one edge costs, and how many fit into a second of one core."""
    src, dst = rng.integers(0, 1 << 40, (2, POLL)).tolist()
    rows = [
        {"id": at, "payer": a, "payee": b, "amount": w, "note": "paid in full"}
        for at, (a, b, w) in enumerate(zip(src, dst, rng.random(POLL).tolist(), strict=True))
    ]
    source = {"ts_ms": 1_559_033_904_863, **dict.fromkeys(SOURCE, "something")}
    events = [{"op": "c", "before": None, "after": row, "source": source, "ts_ms": 1} for row in rows]
    header = ",".join(rows[0]).encode() + b"\n"
    made: dict[str, tuple[str, list[bytes]]] = {
        "JSON": ("json", [json.dumps(row).encode() for row in rows]),
        "CSV": ("csv", [header + ",".join(map(str, row.values())).encode() for row in rows]),
        "Avro": ("registry", avro(1, ROW, rows)),
        "Protobuf": ("registry", protobuf(rows)),
        "Debezium, JSON": ("debezium", [json.dumps(event).encode() for event in events]),
        "Debezium, Avro": ("debezium-registry", avro(2, ENVELOPE, events)),
    }
    polls: dict[str, list[RawRecord]] = {}
    decoders: dict[str, Decoder] = {}
    for name, (encoding, values) in made.items():
        polls[name] = [
            RawRecord(Partition("edges", 0), at, at + 1, value, encoding, 0) for at, value in enumerate(values)
        ]
        registry: Any = Schemas()
        decoders[name] = Decoder(columns=NamedColumns("payer", "payee", weight="amount"), registry=registry)
        decoded = decoders[name].decode_all(polls[name])
        assert not any(one.bad for one in decoded)
        assert sum(len(one.block) for one in decoded if one.block is not None) == POLL
    best = dict.fromkeys(made, float("inf"))
    for _ in range(TURNS):
        for name, poll in polls.items():
            began = time.process_time()
            decoders[name].decode_all(poll)
            best[name] = min(best[name], time.process_time() - began)
    return [
        {
            "encoding": name,
            "bytes a record": sum(map(len, made[name][1])) // POLL,
            "ns a record": best[name] / POLL * 1e9,
            "records/s": POLL / best[name],
            "of JSON": best[name] / best["JSON"],
        }
        for name in made
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warm_up(registry=True)
    rng = np.random.default_rng(1)
    rows = [row for kind in ("int", "string") for n in (100, 10_000) for row in measured(n, kind, rng)]
    show("decoding, processor time", rows)
    alone = one_each(rng)
    show("records of one edge, processor time", alone)
    save(options.json, {"machine": machine(), "rows": rows, "one edge a record": alone})


if __name__ == "__main__":
    main()
