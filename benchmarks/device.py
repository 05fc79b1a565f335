"""Programs on a CUDA device: from scratch, after batches of updates, and the device's part of an epoch.

R-MAT graphs as in ``storage_device.py``, generated on the device. Rows are those of ``partition/device_side.py``,
runs those of ``compute/device/path_runs.py``. A batch is four fifths insertions of edges that are not there, and a
fifth deletions; it is undone before the next one. Times are from the call until the host's copy of the words has
what the device has listed as changed, and, of every second batch, until it has told that the list is there, in
pinned memory (``told``); medians after a warm-up. Then words are compared with those of a fresh start.

    python benchmarks/device.py --scale 22 [--parts fresh refresh components host] [--seconds 60] [--json out.json]
    python benchmarks/device.py --scale 22 --timeline [--follows | --owned 0.05] [--batches 100 10000]
        [--repeats 20] [--json out.json]

Parts: ``fresh`` on all edges, the others on half of them (the rest is streamed). ``split``: where the time of a
small refresh goes; ``account``: its floors, its order among others, and the parts of its kernel. ``hubs``
deletes the tree edges of the largest hubs. ``epoch``: batch in memory, both arrays, BFS, list of changes.
``components``: from scratch, and after batches. ``counts``: likewise, beside the search; ``counted``: where the
time of its kernels goes. ``pagerank``, ``ppr``: as ``components``, against a solution in float64. ``several``:
personalised PageRanks and searches, all in one go and one after the other. ``triangles``, ``lcc``, ``cdlp``:
whole refreshes, what the host does included. ``host``: its engine on the same batches, on all cores; it compiles
for a while when its kernels are not in Numba's cache. ``scales``: the same by scale, few repeats each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import numpy as np
from device_components import components
from device_counts import counted, counts
from device_exact import TWINS, exact
from device_graph import Graph, Row, cupy, machine, show
from device_latency import floors, orders, phases, split
from device_ppr import ppr
from device_ranks import pagerank
from device_rows import WARM_UP, Budget, Rows, clocked
from device_several import several
from device_timeline import timeline

from graphtide.compute.device import paths as device_paths
from graphtide.compute.device import taking
from graphtide.compute.device.path_runs import Limits, PathRun, PathRuns
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.steps import alone
from graphtide.gpma.cores import usable_cores
from graphtide.gpma.edges import EdgeBatch, EdgeList, Keys
from graphtide.gpma.team import Team

PARTS = (
    "fresh",
    "refresh",
    "split",
    "account",
    "hubs",
    "epoch",
    "components",
    "counts",
    "counted",
    "pagerank",
    "ppr",
    "several",
    *TWINS,
    "host",
    "scales",
)
KINDS: tuple[type[PathProgram], ...] = (BFS, SSSP)
HUBS = (10, 1000)
# Of "scales", and repeats: the host takes longest there.
SCALES = (14, 16, 18, 20, 22)
REPEATS = 3
NO_SOURCES = np.empty(0, np.uint32)


class Bench(Rows):
    """Rows on the device, the runs of both programs from one source, and the host's copies of their words."""

    def __init__(self, graph: Graph, keys: Any) -> None:
        super().__init__(graph, keys)
        degrees = self.device.out.view().degrees[: graph.n_vertices]
        self.hubs = cupy.asnumpy(cupy.argsort(degrees))[::-1].astype(np.uint32)
        self.source = self.hubs[:1].copy()
        self.runs = {kind.kind: self.runs_of(kind) for kind in KINDS}
        with nothing_taken():
            self.telling = {kind.kind: self.runs_of(kind) for kind in KINDS}
        for runs in (*self.runs.values(), *self.telling.values()):
            alone(runs.start(self.device, self.source))
        self.team = Team(usable_cores())
        self.kept = {kind: runs.read(graph.n_vertices).copy() for kind, runs in self.runs.items()}

    def runs_of(self, kind: type[PathProgram]) -> PathRuns:
        program = kind(kind.kind, (0,))
        runs = PathRuns(program.form, program.source_word, self.device)
        runs.make_room(self.graph.n_vertices, self.graph.n_edges)
        return runs

    def copy(self, kind: str) -> None:
        """Have the host's copy be what a run from scratch has made."""
        self.kept[kind][:] = self.runs[kind].read(self.graph.n_vertices)

    def limits(self, runs: PathRuns, *, weighted: bool) -> Limits:
        """Those of the product."""
        arcs = max(device_paths.SETTLE_LEAST, int(device_paths.SETTLE_SHARE[weighted] * self.device.out.n_edges))
        reached = int(cupy.count_nonzero(runs.words != ~np.uint64(0)))
        lost = max(device_paths.LOST_LEAST, int(device_paths.LOST_SHARE * reached))
        return Limits((1 << 32) - 1 if weighted else lost, arcs)

    def wrong(self) -> dict[str, int]:
        """How many values of each program are not a fresh start's, or words in the copy not the device's."""
        found = {}
        for kind in KINDS:
            fresh = self.runs_of(kind)
            alone(fresh.start(self.device, self.source))
            n = self.graph.n_vertices
            half = np.uint64(32)
            differs = (fresh.words[:n] >> half) != (self.runs[kind.kind].words[:n] >> half)
            found[kind.kind] = int(cupy.count_nonzero(differs))
            found[kind.kind] += int(np.count_nonzero(self.runs[kind.kind].read(n) != self.kept[kind.kind]))
        return found


@contextmanager
def nothing_taken() -> Iterator[None]:
    """Runs that are made meanwhile leave the host's copy alone, whatever the device lists."""
    most = taking.TAKEN_MAX
    taking.TAKEN_MAX = 0
    try:
        yield
    finally:
        taking.TAKEN_MAX = most


# -- parts -------------------------------------------------------------------------------------------------------


def fresh(graph: Graph, roots: int, repeats: int, budget: Budget) -> list[Row]:
    """From scratch, on all edges: BFS from random roots, SSSP from the largest hub."""
    keys = cupy.concatenate([graph.loaded, graph.pool])
    keys.sort()
    bench = Bench(graph, keys)
    runs, n = bench.runs["bfs"], graph.n_vertices
    degrees = bench.device.out.view().degrees[:n]
    rates, times = [], []
    for root in np.random.default_rng(1).permutation(bench.hubs[: n // 4])[:roots]:
        source = np.array([root], np.uint32)
        alone(runs.start(bench.device, source))
        took = min(clocked(lambda source=source: alone(runs.start(bench.device, source)))[0] for _ in range(2))
        reached = runs.words[:n] != ~np.uint64(0)
        edges = int(degrees[reached].astype(np.uint64).sum())
        if edges > 10:
            rates.append(edges / took / 1e3)
            times.append(took)
        if rates and budget.is_spent:
            break
    rows = [
        {"program": "bfs", "edges": bench.device.out.n_edges, "roots": len(rates), "us": median(times)}
        | {"GTEPS": harmonic_mean(rates)}
    ]
    took = []
    for step in budget.repeats(repeats):
        us, run = clocked(lambda: alone(bench.runs["sssp"].start(bench.device, bench.source)))
        if step >= WARM_UP:
            took.append(us)
    rows.append(
        {"program": "sssp", "edges": bench.device.out.n_edges, "roots": 1, "us": median(took)}
        | {"GTEPS": run.edges / median(took) / 1e3}
    )
    return rows


def refresh(bench: Bench, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """Mending after batches, the arrays left out."""
    rows = []
    for n in batches:
        times: dict[str, list[float]] = {kind: [] for kind in bench.runs}
        told: dict[str, list[float]] = {kind: [] for kind in bench.runs}
        last: dict[str, PathRun] = {}
        for step in budget.repeats(2 * repeats):
            undone = bench.apply(bench.mixed(n))
            tells = step % 2 == 1
            first = tell_all(bench) if tells else mend_all(bench, last)
            if step >= WARM_UP:
                for kind, us in first.items():
                    (told if tells else times)[kind].append(us)
            if tells:
                mend_all(bench, {})
            else:
                tell_all(bench)
            bench.apply(undone)
            mend_all(bench, {})
            tell_all(bench)
        for kind, took in times.items():
            run = last[kind]
            rows.append(
                {"batch": n, "program": kind, "us": median(took), "min us": min(took), "max us": max(took)}
                | {"told us": median(told[kind]) if told[kind] else nan, "times": len(took)}
                | {"rounds": run.rounds, "lost": run.lost, "written": run.logged}
                | {"edges": run.edges, "gave up": run.gave_up}
            )
    print(f"wrong values after refreshes: {bench.wrong()}", flush=True)
    return rows


def mend_all(bench: Bench, last: dict[str, PathRun]) -> dict[str, float]:
    """Microseconds of each program's mending, a fresh start included where it gave up."""
    times = {}
    for kind, runs in bench.runs.items():
        limits = bench.limits(runs, weighted=kind == "sssp")

        def mended(runs: PathRuns = runs, limits: Limits = limits, kept: Keys = bench.kept[kind]) -> PathRun:
            run = runs.mend_at_once(bench.device, NO_SOURCES, limits, kept)
            if run.gave_up:
                alone(runs.start(bench.device, bench.source))
            elif runs.taken(run) is None:
                runs.take(run, kept, bench.graph.n_vertices, bench.team.crew())
            return run

        times[kind], run = clocked(mended)
        if run.gave_up:
            bench.copy(kind)
        last[kind] = run
    return times


def tell_all(bench: Bench) -> dict[str, float]:
    """The same, until the device has told, of runs of which nothing is taken over."""
    times = {}
    for kind, runs in bench.telling.items():
        limits, kept = bench.limits(runs, weighted=kind == "sssp"), bench.kept[kind]

        def told(runs: PathRuns = runs, limits: Limits = limits, kept: Keys = kept) -> None:
            if runs.mend_at_once(bench.device, NO_SOURCES, limits, kept).gave_up:
                alone(runs.start(bench.device, bench.source))

        times[kind], _ = clocked(told)
    return times


def hubs(bench: Bench, repeats: int, budget: Budget) -> list[Row]:
    """The tree edges of the largest hubs deleted, beside fresh starts on the same graph."""
    rows = []
    for n in HUBS:
        for kind in bench.runs:
            words = bench.runs[kind].words[: bench.graph.n_vertices].get()
            heads = bench.hubs[1 : n + 1]
            parents = words[heads].astype(np.uint32)
            is_child = (words[heads] != ~np.uint64(0)) & (parents != 0xFFFF_FFFF)
            keys = parents[is_child].astype(np.uint64) << np.uint64(32) | heads[is_child]
            times, starts, last = [], [], {}
            for step in budget.repeats(repeats):
                undone = bench.apply(EdgeBatch(cupy.asarray(keys), cupy.zeros(keys.size, np.uint8)))
                us = mend_all(bench, last)[kind]
                start_us, _ = clocked(lambda kind=kind: alone(bench.runs[kind].start(bench.device, bench.source)))
                bench.copy(kind)
                if step >= WARM_UP:
                    times.append(us)
                    starts.append(start_us)
                bench.apply(undone)
                mend_all(bench, {})
            row = {
                "hubs": n,
                "deleted": keys.size,
                "program": kind,
                "us": median(times),
                "fresh us": median(starts),
            }
            run = last[kind]
            row |= {"x fresh": median(times) / median(starts), "lost": run.lost, "gave up": run.gave_up}
            rows.append(row)
    print(f"wrong values after deletions around hubs: {bench.wrong()}", flush=True)
    return rows


def epoch(bench: Bench, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """A batch from pinned memory, where who decodes it writes it, into both arrays, and a BFS whose changes the
    host's copy has then; or, of every second batch, a list of which is in pinned memory. ``begun``: all is
    launched for the arrays, and BFS behind them, as in the product the first program to be refreshed is."""
    with bench.followed():
        return _epochs(bench, batches, repeats, budget)


def _epochs(bench: Bench, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    rows = []
    device = bench.device
    for n in batches:
        parts: dict[str, list[float]] = {"begun": [], "applied": [], "told": [], "mended": []}
        for step in budget.repeats(2 * repeats):
            tells = step % 2 == 1
            runs = (bench.telling if tells else bench.runs)["bfs"]
            mixed = bench.mixed(n)
            batch = device.columns(int(mixed.keys.size), weighted=True)
            batch.keys[:], batch.ops[:] = cupy.asnumpy(mixed.keys), cupy.asnumpy(mixed.ops)
            assert batch.weights is not None
            batch.weights[:] = cupy.asnumpy(mixed.weights)
            limits = bench.limits(runs, weighted=False)
            cupy.cuda.Device().synchronize()
            called = time.perf_counter()
            plan = device.prepare(batch)
            device.launch(plan)
            begun = time.perf_counter()
            device.finish(plan)
            applied = time.perf_counter()
            run = runs.mend_at_once(device, NO_SOURCES, limits, bench.kept["bfs"])
            if not tells and not run.gave_up and runs.taken(run) is None:
                runs.take(run, bench.kept["bfs"], bench.graph.n_vertices, bench.team.crew())
            ends = {"begun": begun, "applied": applied, "told" if tells else "mended": time.perf_counter()}
            if run.gave_up:
                alone(runs.start(device, bench.source))
            if step >= WARM_UP:
                for part, end in ends.items():
                    parts[part].append((end - called) * 1e6)
            undone = bench.undoing()
            for each in (tell_all, lambda bench: mend_all(bench, {})):
                each(bench)
            bench.apply(undone)
            mends = (lambda bench: mend_all(bench, {})), tell_all
            for each in mends if tells else mends[::-1]:  # who is to be measured next comes first
                each(bench)
        medians = {f"{name} us": median(took) if took else nan for name, took in parts.items()}
        rows.append({"batch": n, **medians, "max us": max(parts["mended"]), "times": len(parts["mended"])})
    return rows


def host(graph: Graph, batches: list[int], repeats: int, budget: Budget) -> list[Row]:
    """The host's engine, and the same programs on the device, on the same changes: whole refreshes of programs."""
    from graphtide.compute.device.paths import DevicePathProgram
    from graphtide.partition.graph import Graph as Both

    both = Both(directed=True, weighted=True, device=True)
    keys, weights = cupy.asnumpy(graph.loaded), cupy.asnumpy(graph.weights(graph.loaded.size))
    both.load(EdgeList(keys, weights), graph.n_vertices)
    source = np.array([np.bincount((keys >> np.uint64(32)).astype(np.int64)).argmax()], np.uint32)
    programs = {
        (kind.kind, place): program
        for kind in KINDS
        for place, program in (
            ("host", kind("host", (0,))),
            ("device", DevicePathProgram(kind("device", (0,)))),
        )
    }
    for program in programs.values():
        program.bind(source)
        program.start(both)
    rows = []
    rng = np.random.default_rng(3)
    for n in batches:
        times: dict[tuple[str, str], list[float]] = {name: [] for name in programs}
        for step in budget.repeats(repeats):
            n_deletes = n // 5
            chosen = np.concatenate(
                [cupy.asnumpy(graph.fresh(n - n_deletes)), keys[rng.integers(0, keys.size, n_deletes)]]
            )
            ops = np.repeat(np.array([1, 0], np.uint8), [n - n_deletes, n_deletes])
            change = both.apply(
                EdgeBatch(chosen, ops, rng.integers(1, 256, n).astype(np.float32)), graph.n_vertices
            )
            for name, program in programs.items():
                us, _ = clocked(lambda program=program, change=change: program.refresh(both, change))
                if step >= WARM_UP:
                    times[name].append(us)
        for kind in KINDS:
            by_place = {place: median(times[kind.kind, place]) for place in ("host", "device")}
            words = [programs[kind.kind, place].state()["word"] >> np.uint64(32) for place in ("host", "device")]
            rows.append(
                {"batch": n, "program": kind.kind, "host us": by_place["host"], "device us": by_place["device"]}
                | {"x": by_place["host"] / by_place["device"], "wrong": int((words[0] != words[1]).sum())}
            )
    lost = both.device_lost
    both.close()
    assert lost is None, lost
    return rows


def scales(them: Sequence[int], batches: list[int], seconds: float) -> list[Row]:
    """``host`` by scale, and how many times as fast the faster of both is."""
    rows = []
    for scale in them:
        budget = Budget(seconds / len(them))
        graph = Graph(scale, 1)
        for row in host(graph, [n for n in batches if n <= graph.pool.size // 2], REPEATS, budget):
            gain = max(row["x"], 1 / row["x"])
            rows.append({"scale": scale, **row, "faster": "device" if row["x"] > 1 else "host", "gain": gain})
        del graph
        cupy.get_default_memory_pool().free_all_blocks()
    return rows


# -- the whole ---------------------------------------------------------------------------------------------------


def run(
    scale: int,
    parts: list[str],
    batches: list[int],
    repeats: int,
    roots: int,
    seconds: float,
    some_scales: Sequence[int] = SCALES,
) -> dict[str, Any]:
    """Measure these parts, print tables as they are made, return them as plain values.

    ``some_scales``: of the part that has several.
    """
    result: dict[str, Any] = {"machine": machine(), "scale": scale}
    print(json.dumps(result), flush=True)
    share = seconds / len(parts)
    if "scales" in parts:
        result["scales"] = show("host and device by scale", scales(some_scales, batches, share))
    if parts == ["scales"]:
        return result
    graph = Graph(scale, 1)
    batches = [n for n in batches if n <= graph.pool.size // 2]
    if "fresh" in parts:
        result["fresh"] = show(f"from scratch, scale {scale}", fresh(graph, roots, repeats, Budget(share)))
    if {"refresh", "split", "account", "hubs", "epoch"} & set(parts):
        bench = Bench(graph, graph.loaded)
        if "refresh" in parts:
            rows = refresh(bench, batches, repeats, Budget(share))
            result["refresh"] = show(f"after batches, scale {scale}, {graph.loaded.size:,} edges", rows)
        if "split" in parts:
            rows = split(bench, batches, repeats, Budget(share))
            result["split"] = show(f"where the time of refreshes goes, scale {scale}", rows)
        if "account" in parts:
            rows = floors(10 * repeats)
            result["floors"] = show("kernels that only tell, from call to flag", rows)
            rows = orders(bench, batches, repeats, Budget(share / 2))
            result["orders"] = show(f"refreshes by their place after a batch, scale {scale}", rows)
            rows = phases(bench, KINDS, batches, repeats, Budget(share / 2))
            result["account"] = show(f"when parts of kernels had ended, scale {scale}", rows)
        if "hubs" in parts:
            result["hubs"] = show(f"around hubs, scale {scale}", hubs(bench, repeats, Budget(share)))
        if "epoch" in parts:
            rows = epoch(bench, batches, repeats, Budget(share))
            result["epoch"] = show(f"the device's part of an epoch, scale {scale}", rows)
        del bench
    if "components" in parts:
        rows = components(graph, batches, repeats, Budget(share))
        result["components"] = show(f"components, scale {scale}, {graph.loaded.size:,} edges", rows)
    if "counts" in parts:
        rows = counts(graph, batches, repeats, Budget(share))
        result["counts"] = show(f"path counts, scale {scale}, {graph.loaded.size:,} edges", rows)
    if "counted" in parts:
        rows = counted(graph, batches)
        result["counted"] = show(f"where the time of path counts goes, scale {scale}", rows)
    if "pagerank" in parts:
        rows = pagerank(graph, batches, repeats, Budget(share))
        result["pagerank"] = show(f"PageRank, scale {scale}, {graph.loaded.size:,} edges", rows)
    if "ppr" in parts:
        rows = ppr(graph, batches, repeats, Budget(share))
        result["ppr"] = show(f"personalised PageRank, scale {scale}, {graph.loaded.size:,} edges", rows)
    if "several" in parts:
        rows = several(graph, batches, repeats, Budget(share))
        result["several"] = show(f"several programs, scale {scale}, {graph.loaded.size:,} edges", rows)
    for kind in TWINS:
        if kind in parts:
            rows = exact(graph, kind, batches, repeats, Budget(share))
            result[kind] = show(f"{kind}, scale {scale}, {graph.loaded.size:,} edges", rows)
    if "host" in parts:
        result["host"] = show(f"beside the host, scale {scale}", host(graph, batches, repeats, Budget(share)))
    return result


def timelines(
    scale: int, batches: list[int], repeats: int, *, follows: bool = False, share: float | None = None
) -> dict[str, Any]:
    """When the parts of epochs happen: tables, and every span; see ``device_timeline.py``."""
    result: dict[str, Any] = {"machine": machine(), "scale": scale, "follows": follows, "owned": share}
    rows, both, result["spans"] = timeline(Graph(scale, 1), batches, repeats, follows=follows, share=share)
    result["timeline"] = show(f"when parts of an epoch happen, scale {scale}", rows)
    result["both"] = show("how long both sides applied at once", both)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=[part for part in PARTS if part not in ("host", "scales")]
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 100, 10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--roots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60, help="for measuring; graphs are made beside")
    parser.add_argument("--scales", type=int, nargs="+", default=SCALES, help="of the part of that name")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--timeline", action="store_true", help="when the parts of epochs happen, and nothing else"
    )
    parser.add_argument("--follows", action="store_true", help="there, the host's rows may take batches later")
    parser.add_argument("--owned", type=float, help="there, the share of edges that only the host has")
    options = parser.parse_args()
    if options.timeline:
        result = timelines(
            options.scale, options.batches, options.repeats, follows=options.follows, share=options.owned
        )
    else:
        result = run(
            options.scale,
            options.parts,
            options.batches,
            options.repeats,
            options.roots,
            options.seconds,
            options.scales,
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
