"""A short history of programs on a CUDA device, against fresh starts: what compute-sanitizer runs.

Every kernel of two path programs, of path counts, of components, of both PageRanks, of triangles and of
communities runs: settling and trimming, searching and spreading, recounting, mending a forest, passes and pushes,
those of several walks together, changed links, votes, queues that hold everything and queues that run over, rows
of one edge and of hundreds. Each allocation is one of the device's own, so that accesses behind its end are seen.

    compute-sanitizer --tool racecheck python benchmarks/device_history.py --only bfs sssp
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from device_exact import TWINS, Exact
from device_ppr import Walk
from device_ranks import Ranks

from graphtide.compute.device import count_runs, forest_runs, path_runs
from graphtide.compute.device.count_runs import CountRuns
from graphtide.compute.device.forest_runs import ForestRuns
from graphtide.compute.device.path_runs import Limits, PathRuns
from graphtide.compute.device.ppr_groups import SWEEP_LEAST
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.steps import alone, together
from graphtide.gpma.device import module
from graphtide.gpma.edges import EdgeBatch, EdgeList
from graphtide.partition.device_side import DeviceSide

VERTICES = 600
BATCHES = (4000, 1, 50, 1000, 300, 3000, 2, 4000)
BATCHES_OF_SEVERAL = (4000, 1, 300)
FOREST_BATCHES = (60, 1000, 1, 50, 300, 2)
HALF = np.uint64(32)
ALL = Limits((1 << 32) - 1, (1 << 63) - 1)
SOURCE = np.zeros(1, np.uint32)


def rows(rng: np.random.Generator, batches: Sequence[int]) -> Iterator[DeviceSide]:
    """Rows on a device, at first none and then after every batch."""
    device = DeviceSide(directed=True, weighted=True, in_edges=True, in_weights=True)
    device.ensure_vertices(VERTICES)
    device.load(EdgeList(np.empty(0, np.uint64), np.empty(0, np.float32)))
    yield device
    for n in batches:
        src = (VERTICES * rng.random(n) ** 4).astype(np.uint32)  # hubs
        dst = rng.integers(0, VERTICES, n)
        ops = (rng.random(n) < (0.7 if n > 2 else 0.0)).astype(np.uint8)
        plan = device.prepare(EdgeBatch.of(src, dst, ops, rng.choice([0.0, 0.5, 1.0, 1e8], n).astype(np.float32)))
        device.launch(plan)
        device.finish(plan)
        yield device


def history(kind: type[PathProgram], rng: np.random.Generator) -> None:
    states = rows(rng, BATCHES)
    device = next(states)
    kept, fresh = runs_of(kind, device), runs_of(kind, device)
    alone(kept.start(device, SOURCE))
    words = kept.read(VERTICES).copy()
    for _ in states:
        kept.make_room(VERTICES, device.out.n_edges)
        fresh.make_room(VERTICES, device.out.n_edges)
        if kept.mend_at_once(device, np.empty(0, np.uint32), ALL, words).gave_up:  # a queue was too small
            alone(kept.start(device, SOURCE))
        alone(fresh.start(device, SOURCE))
        assert np.array_equal(kept.read(VERTICES) >> HALF, fresh.read(VERTICES) >> HALF)


def history_of_counts(rng: np.random.Generator) -> None:
    states = rows(rng, BATCHES)
    device = next(states)
    search, kept, fresh = runs_of(BFS, device), CountRuns(device), CountRuns(device)
    words = np.empty(VERTICES, np.uint64)
    alone(search.start(device, SOURCE))
    kept.make_room(VERTICES, 0)
    alone(kept.start(device, search))
    for _ in states:
        for runs in (search, kept, fresh):
            runs.make_room(VERTICES, device.out.n_edges)
        mended = search.mend_at_once(device, np.empty(0, np.uint32), ALL, words)
        if mended.gave_up:
            alone(search.start(device, SOURCE))
            alone(kept.start(device, search))
        else:
            alone(kept.count(device, search))
        alone(fresh.start(device, search))
        assert np.array_equal(kept.read(VERTICES), fresh.read(VERTICES))


def history_of_components(rng: np.random.Generator) -> None:
    states = rows(rng, FOREST_BATCHES)
    device = next(states)
    kept, fresh = ForestRuns(device), ForestRuns(device)
    kept.make_room(VERTICES, 0)
    kept.start(device)
    for _ in states:
        for runs in (kept, fresh):
            runs.make_room(VERTICES, device.out.n_edges)
        if kept.mend(device, forest_runs.Limits(VERTICES, VERTICES, (1 << 63) - 1)).gave_up:
            kept.start(device)
        fresh.start(device)
        handles = np.stack([kept.read(VERTICES)[:, 2], fresh.read(VERTICES)[:, 2]])
        assert np.unique(handles, axis=1).shape[1] == np.unique(handles[0]).size == np.unique(handles[1]).size


def history_of_ranks(rng: np.random.Generator) -> None:
    states = rows(rng, BATCHES)
    ranks = Ranks(next(states))
    ranks.start()
    for _ in states:
        report = ranks.refresh(ranks.change())
        assert ranks.wrong_bits() == 0
    assert report.error_bound is not None
    # A sanitizer takes long for each of the reference's many steps.
    assert ranks.error(precision=1e-5) <= report.error_bound


def history_of_walks(rng: np.random.Generator) -> None:
    states = rows(rng, BATCHES)
    walk = Walk(next(states), 0)
    walk.start()
    for _ in states:
        report = walk.refresh(walk.change())
        assert walk.wrong_bits() == 0
    assert report.error_bound is not None
    assert walk.error(precision=1e-5) <= report.error_bound


def history_of_several_walks(rng: np.random.Generator) -> None:
    """A group that goes through passes together, in two parts, and has places left."""
    states = rows(rng, BATCHES_OF_SEVERAL)
    device = next(states)
    walks = [Walk(device, source) for source in range(SWEEP_LEAST)]
    for walk in walks:
        walk.start()
    for _ in states:
        change = walks[0].change()
        for outcome in together([walk.program.refreshing(walk.rows, change) for walk in walks]):
            if isinstance(outcome, Exception):
                raise outcome
        assert sum(walk.wrong_bits() for walk in walks) == 0
    assert all(walk.program._runs.group is not None for walk in walks)
    for walk in walks:
        assert walk.error(precision=1e-5) <= walk.program.host.error_bound


def history_of_exact(kind: str, rng: np.random.Generator) -> None:
    states = rows(rng, BATCHES)
    program = Exact(next(states), kind)
    program.start()
    for _ in states:
        program.refresh(program.change())
        assert program.wrong() == 0


def runs_of(kind: type[PathProgram], device: DeviceSide) -> PathRuns:
    program = kind(kind.kind, (0,))
    runs = PathRuns(program.form, program.source_word, device)
    runs.make_room(VERTICES, device.out.n_edges)
    return runs


# Programs by name, and their histories: those with queues, which run over; those with bounds; the others.
QUEUED: dict[str, Callable[[np.random.Generator], None]] = {
    "bfs": partial(history, BFS),
    "sssp": partial(history, SSSP),
    "counts": history_of_counts,
    "components": history_of_components,
}
BOUNDED: dict[str, Callable[[np.random.Generator], None]] = {
    "pagerank": history_of_ranks,
    "ppr": history_of_walks,
    "pprs": history_of_several_walks,
}
PROGRAMS = (*QUEUED, *BOUNDED, *TWINS)


def run(seed: int, only: Sequence[str] = PROGRAMS) -> None:
    """``only``: of PROGRAMS, in any order; each says by a line that it is done."""
    for name in only:
        if name in QUEUED:
            for queue_share, ties_min in ((1, 0.0), (VERTICES // 7, 2.0)):
                path_runs.QUEUE_SHARE, path_runs.QUEUE_LEAST, path_runs.TIES_MIN = queue_share, 1, ties_min
                forest_runs.QUEUE_SHARE, forest_runs.QUEUE_LEAST = queue_share, 1
                count_runs.MOST_LEAST = 1 << 30 if queue_share == 1 else 100
                QUEUED[name](np.random.default_rng(seed))
            print(f"{name}: two histories of batches, every value is that of a fresh start", flush=True)
        elif name in BOUNDED:
            BOUNDED[name](np.random.default_rng(seed))
            print(f"{name}: after every batch it keeps to its bound, and sums in every bit", flush=True)
        else:
            history_of_exact(name, np.random.default_rng(seed))
            print(f"{name}: {len(BATCHES)} batches, every value is that of a fresh start", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", choices=PROGRAMS, default=PROGRAMS, help="these programs (default: all)"
    )
    options = parser.parse_args()
    module.import_cupy().cuda.set_allocator(None)  # no pool
    run(options.seed, options.only)


if __name__ == "__main__":
    main()
