"""What the interpreter's switch interval costs and gains: epochs beside a thread that decodes at full speed.

    python benchmarks/switching.py [--scale 14] [--batch 100] [--rows 100] [--ms 5,0.5] [--turns 20]
        [--seconds 0.5] [--json FILE]

Compiled kernels leave the interpreter to others, and want it back after each: from a thread that runs Python they
get it after the switch interval, 5 ms unless it is set. Small epochs hand over many times for little work. The
intervals take turns (of half a second); beside epochs' times stands what the other thread decodes meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from engine import PROGRAMS, Bench
from report import machine, save, show

from graphtide.compute import registry
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.tools.generate import Churn
from graphtide.gpma.host import array as pma


class Decoding(threading.Thread):
    """Decodes one record again and again; ``updates`` counts how many that came to."""

    def __init__(self, record: RawRecord, updates: int) -> None:
        super().__init__()
        self.updates = 0
        self.stop = False
        self._record, self._n = record, updates

    def run(self) -> None:
        decoder = Decoder()
        assert not decoder.decode(self._record).bad
        while not self.stop:
            decoder.decode(self._record)
            self.updates += self._n


def records(rows: int) -> dict[str, RawRecord]:
    """A record of so many edges by the name of its encoding."""
    src, dst = np.random.default_rng(1).integers(0, 1 << 20, (2, rows))
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    edges = [{"src": u, "dst": v} for u, v in pairs]
    csv = b"src,dst\n" + b"".join(b"%d,%d\n" % pair for pair in pairs)
    values = {
        "msgpack": encode_msgpack(src, dst),
        "json": json.dumps({"v": 1, "edges": edges}).encode(),
        "csv": csv,
    }
    return {
        name: RawRecord(Partition("edges", 0), 0, 1, value, name, 0)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=14)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--turns", type=int, default=20, help="of each interval")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--rows", type=int, default=100, help="edges of a record that is decoded")
    parser.add_argument("--ms", default="5,0.5", help="the intervals")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pma.warm_up()
    given: dict[str, dict[str, Any]] = {"bfs": {"source": 0}}
    registry.warm_up(directed=True, weighted=True, programs=[(kind, given.get(kind, {})) for kind in PROGRAMS])
    churn = Churn(scale=arguments.scale, pool=20_000_000 * 2**arguments.scale // 2**20, seed=1)
    bench = Bench(churn, churn.settles_at)
    bench.engine.start()
    intervals = [float(text) / 1e3 for text in arguments.ms.split(",")]
    before, rows = sys.getswitchinterval(), []
    for name, record in records(arguments.rows).items():
        epochs: dict[float, list[float]] = {interval: [] for interval in intervals}
        decoded = dict.fromkeys(intervals, 0)
        other = Decoding(record, arguments.rows)
        other.start()
        try:
            for interval in intervals * arguments.turns:
                sys.setswitchinterval(interval)
                end, first = time.perf_counter() + arguments.seconds, other.updates
                while (started := time.perf_counter()) < end:
                    bench.epoch(churn.next(arguments.batch))
                    epochs[interval].append((time.perf_counter() - started) * 1e3)
                decoded[interval] += other.updates - first
        finally:
            sys.setswitchinterval(before)
            other.stop = True
            other.join()
        for interval in intervals:
            p50, p99 = np.percentile(epochs[interval], (50, 99)).tolist()
            rows.append(
                {
                    "decoding": name,
                    "interval ms": interval * 1e3,
                    "epochs": len(epochs[interval]),
                    "p50 ms": p50,
                    "p99 ms": p99,
                    "decoded M/s": decoded[interval] / (arguments.turns * arguments.seconds) / 1e6,
                }
            )
    show(f"epochs of {arguments.batch} updates beside a thread that decodes", rows)
    save(arguments.json, {"machine": machine(), "parameters": vars(arguments) | {"json": None}, "rows": rows})


if __name__ == "__main__":
    main()
