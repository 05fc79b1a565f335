"""What it costs that the keys of records stand for edges.

    python benchmarks/keyed.py [--keys 10000000] [--batch 10000] [--json FILE]

Decoding: polls of JSON records of one edge each, with keys that are looked at and with keys that are not, in turn.
The table, alone: so many keys come, each with an edge of its own; then records of random ones of them change their
edges; then some stay as they are; then all keys go. And how long an epoch waits for the copy of a checkpoint.
Times are of the processor, one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.daemon.engine import keyed
from graphtide.daemon.engine.keyed import KeyedRows
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.ingest.row_keys import KeyHash, new_secret
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.gpma.edges import EdgeBatch, Op

POLL, TURNS = 4096, 9
CHANGED = 2_000_000


def decoding() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 1 << 40, (2, POLL)).tolist()
    records = []
    for at, (a, b, w) in enumerate(zip(src, dst, rng.random(POLL).tolist(), strict=True)):
        row = {"id": at, "payer": a, "payee": b, "amount": w, "note": "paid in full"}
        key = b'{"id": %d}' % at
        records.append(RawRecord(Partition("rows", 0), at, at + 1, json.dumps(row).encode(), "json", 0, key))
    names = NamedColumns("payer", "payee", weight="amount")
    decoders = {
        "keys stand for edges": Decoder(columns=names, keyed=KeyHash(new_secret())),
        "not looked at": Decoder(columns=names),
    }
    best = dict.fromkeys(decoders, float("inf"))
    for _ in range(TURNS):
        for name, decoder in decoders.items():
            began = time.process_time()
            (decoded,) = decoder.decode_all(records)
            best[name] = min(best[name], time.process_time() - began)
            assert decoded.block is not None and len(decoded.block) == POLL
    return [{"keys": name, "ns a record": taken / POLL * 1e9} for name, taken in best.items()]


class Table:
    """The table, and the times of what it was given."""

    def __init__(self, n_keys: int, n_batch: int) -> None:
        self.rows = KeyedRows(directed=True)
        self.found: list[dict[str, Any]] = []
        self._n_batch = n_batch
        rng = np.random.default_rng(2)
        self.keys = rng.integers(1, 1 << 64, (n_keys, 2), np.uint64) | np.uint64(1)

    def give(self, what: str, chosen: np.ndarray, edges: np.ndarray, op: Op) -> None:
        seconds, longest = 0.0, 0.0
        for begin in range(0, chosen.size, self._n_batch):
            some = slice(begin, begin + self._n_batch)
            ops = np.full(edges[some].size, op, np.uint8)
            row_keys = self.keys[chosen[some]]
            began = time.process_time()
            self.rows.settle(EdgeBatch(edges[some], ops), row_keys)
            taken = time.process_time() - began
            seconds, longest = seconds + taken, max(longest, taken)
        n = max(len(self.rows), 1)
        self.found.append(
            {
                "records": what,
                "keys then": len(self.rows),
                "ns a record": seconds / chosen.size * 1e9,
                "longest batch, ms": longest * 1e3,
                "bytes a key": self.rows.memory_bytes() / n if len(self.rows) else float("nan"),
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    keyed.warm_up()
    decoded = decoding()
    show(f"JSON, polls of {POLL} records", decoded)
    table = Table(given.keys, given.batch)
    rng = np.random.default_rng(3)
    everyone = np.arange(given.keys)
    changed = rng.integers(0, given.keys, min(CHANGED, given.keys))
    new = rng.integers(0, 1 << 60, changed.size, np.uint64)
    table.give("new keys", everyone, everyone.astype(np.uint64) << np.uint64(3), Op.INSERT)
    began = time.process_time()
    kept = table.rows.arrays()
    copied = {
        "keys": given.keys,
        "copy for a checkpoint, ms": (time.process_time() - began) * 1e3,
        "bytes a key there": sum(array.nbytes for array in kept.values()) / given.keys,
    }
    del kept
    table.give("another edge", changed, new, Op.INSERT)
    table.give("the same edge", changed[-given.batch :], new[-given.batch :], Op.INSERT)
    table.give("removed", rng.permutation(everyone), np.zeros(given.keys, np.uint64), Op.DELETE)
    show(f"The table, batches of {given.batch}", table.found)
    show("Checkpoints", [copied])
    save(given.json, {"machine": machine(), "decoding": decoded, "table": table.found, "copied": copied})


if __name__ == "__main__":
    main()
