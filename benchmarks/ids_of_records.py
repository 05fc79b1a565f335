"""What it takes to give the edges of records their dense vertices, record by record and all of a step together.

    python benchmarks/ids_of_records.py [--threads 1,2] [--records 100,32768] [--scale 20] [--json FILE]

A step is 262,144 updates of known vertices, an index of 2^scale ids in shared memory as in the daemon; 80% inserts
and 20% deletes in turns. The least of nine runs: wall time by edge, and processor time of all threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, save, show

from graphtide.daemon.ingest.dense import dense_batch, dense_batches
from graphtide.daemon.records.stream import UpdateBlock
from graphtide.daemon.serve.shared_memory import allocate
from graphtide.gpma.index.vertex_index import VertexIndex, warm_up
from graphtide.gpma.team import Team

STEP = 1 << 18
ROUNDS = 9
SEED = 1


def run(threads: Sequence[int], records: Sequence[int], scale: int) -> dict[str, Any]:
    """Rows by threads and updates a record."""
    warm_up("int")
    rng = np.random.default_rng(SEED)
    ids = rng.permutation(np.arange(1 << scale, dtype=np.int64) * 7)
    rows = []
    for n_threads in threads:
        team = Team(n_threads)
        try:
            index = VertexIndex.create("int", allocate)
            index.insert(ids)
            index.crew = team.crew()
            for size in records:
                blocks = [block_of(rng, ids, size) for _ in range(STEP // size)]
                rows.append(
                    {"threads": n_threads, "updates a record": size}
                    | timed("by record", lambda: [dense_batch(block, index) for block in blocks])  # noqa: B023
                    | timed("together", lambda: dense_batches(blocks, index))  # noqa: B023
                )
        finally:
            team.close()
    return {"machine": machine(), "scale": scale, "seed": SEED, "rows": rows}


def block_of(rng: np.random.Generator, ids: np.ndarray[Any, np.dtype[np.int64]], n: int) -> UpdateBlock:
    src, dst = (ids[rng.integers(0, ids.size, n)] for _ in range(2))
    return UpdateBlock(src, dst, (rng.random(n) < 0.8).astype(np.uint8), None, 0)


def timed(name: str, work: Callable[[], object]) -> dict[str, float]:
    wall, cpu = [], []
    for _ in range(ROUNDS):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - begun_cpu)
    return {f"{name} ns/edge": 1e9 * min(wall) / STEP, f"{name} cpu ns/edge": 1e9 * min(cpu) / STEP}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--records", default="100,32768")
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    threads, records = ([int(word) for word in words.split(",")] for words in (given.threads, given.records))
    result = run(threads, records, given.scale)
    show("dense vertices of the edges of records", result["rows"])
    save(given.json, result)


if __name__ == "__main__":
    main()
