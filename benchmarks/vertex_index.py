"""The vertex index: look-ups and inserts a second, in cache and out of it, and the pauses while it grows.

    python benchmarks/vertex_index.py [--sizes N,N] [--batch N] [--json FILE]

The arrays lie in shared memory, as in the daemon. "Worst / median" is the longest batch of inserts over the
median one while the index grows from nothing to its size, in processor time of the inserting thread, which other
processes do not disturb; the first ten batches are left out. The baseline of the same run is a Python dictionary.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from report import machine, save, show

from graphtide.daemon.serve.shared_memory import allocate
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex, VertexIndexReader, warm_up

Kind = Literal["int", "string"]
SIZES = (10_000, 1_000_000, 10_000_000)
BATCH = 10_000
ROUNDS = 7
FIRST = 10
LOOKUPS = 100_000
DICTIONARY_MAX = 1_000_000
SEED = 1


def made_ids(kind: Kind, numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> IdColumn:
    """Distinct ids, scattered over all 64-bit integers, or strings of 20 bytes."""
    scattered = numbers.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    if kind == "int":
        return scattered.view(np.int64)
    data = np.empty((numbers.size, 20), np.uint8)
    for digit in range(20):
        data[:, digit] = (scattered % np.uint64(10)).astype(np.uint8) + ord("0")
        scattered //= np.uint64(10)
    return StringColumn(data.reshape(-1), np.arange(numbers.size + 1, dtype=np.int64) * 20)


def run(
    sizes: Sequence[int] = SIZES, *, kinds: Sequence[Kind] = ("int", "string"), batch: int = BATCH
) -> dict[str, Any]:
    """Measure indexes of so many ids; rows of look-ups and inserts in millions a second, and of growth."""
    rows = []
    for kind in kinds:
        warm_up(kind)
        rows += [measured(kind, size, batch) for size in sizes]
    return {"machine": machine(), "batch": batch, "seed": SEED, "rows": rows}


def measured(kind: Kind, size: int, batch: int) -> dict[str, Any]:
    """One index of ``size`` ids."""
    rng = np.random.default_rng(SEED)
    index = VertexIndex.create(kind, allocate)
    gc.collect()  # what importing and compiling left is not the index's
    seconds, cpu = [], []
    for start in range(0, size, batch):
        ids = made_ids(kind, np.arange(start, min(start + batch, size), dtype=np.uint64))
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        index.insert(ids)
        seconds.append(time.perf_counter() - begun)
        cpu.append(time.thread_time() - begun_cpu)
    cpu = cpu[FIRST:] or cpu
    reader = VertexIndexReader(kind, index.arrays())
    hits, misses, known, external, smallest = [], [], [], [], []
    for _ in range(ROUNDS):
        some = made_ids(kind, rng.integers(0, size, LOOKUPS).astype(np.uint64))
        none = made_ids(kind, rng.integers(size, 2 * size, LOOKUPS).astype(np.uint64))
        hits.append(timed(lambda ids=some: reader.lookup(ids, size)))  # type: ignore[misc]
        misses.append(timed(lambda ids=none: reader.lookup(ids, size)))  # type: ignore[misc]
        known.append(timed(lambda ids=some: index.insert(ids)))  # type: ignore[misc]
        dense = rng.integers(0, size, LOOKUPS).astype(np.uint32)
        external.append(timed(lambda dense=dense: reader.external(dense)))  # type: ignore[misc]
        smallest.append(timed(lambda dense=dense: index.smallest(dense)))  # type: ignore[misc]
    rates = {
        name: LOOKUPS / float(np.median(times)) / 1e6
        for name, times in (
            ("hits M/s", hits),
            ("misses M/s", misses),
            ("known inserts M/s", known),
            ("external M/s", external),
            ("smallest M/s", smallest),
        )
    }
    dictionary = dictionary_rate(kind, min(size, DICTIONARY_MAX), rng)
    return {
        "kind": kind,
        "ids": size,
        **rates,
        "new inserts M/s": size / sum(seconds) / 1e6,
        "batch ms median": float(np.median(seconds)) * 1e3,
        "p99": float(np.quantile(seconds, 0.99)) * 1e3,
        "worst": max(seconds[FIRST:] or seconds) * 1e3,
        "worst cpu": max(cpu) * 1e3,
        "worst / median": max(cpu) / float(np.median(cpu)),
        "bytes/id": index.memory_bytes() / size,
        "dict M/s": dictionary,
        "hits / dict": rates["hits M/s"] / dictionary,
    }


def timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def dictionary_rate(kind: Kind, size: int, rng: np.random.Generator) -> float:
    """Million look-ups a second in a dictionary of as many ids (at most ``DICTIONARY_MAX``)."""
    ids = made_ids(kind, np.arange(size, dtype=np.uint64))
    listed = ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()
    dictionary = dict(zip(listed, range(size), strict=True))
    asked = [listed[i] for i in rng.integers(0, size, LOOKUPS)]
    return LOOKUPS / timed(lambda: [dictionary.get(id) for id in asked]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = run([int(size) for size in arguments.sizes.split(",")], batch=arguments.batch)
    show(f"vertex index, batches of {arguments.batch}", result["rows"])
    save(arguments.json, result)


if __name__ == "__main__":
    main()
