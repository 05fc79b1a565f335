"""The benchmark of programs: other libraries kept at bay, real streams as updates, and a small run."""

from __future__ import annotations

import importlib
import json
import lzma
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's modules can be imported."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def isolated(benchmarks: None) -> ModuleType:
    return importlib.import_module("isolated")


@pytest.fixture
def real_streams(benchmarks: None) -> ModuleType:
    return importlib.import_module("real_streams")


# -- processes of their own -----------------------------------------------------------------------------------


def test_work_in_another_process(isolated: ModuleType) -> None:
    """The object is a module there, which every Python has."""
    other = isolated.Isolated(importlib.import_module, "os")
    pid = other.call("getpid", seconds=10)
    assert pid != os.getpid()
    assert other.call("getpid", seconds=10) == pid
    with pytest.raises(isolated.Failed, match="ValueError: "):
        other.call("putenv", "a=b", "c", seconds=10)
    assert other.call("getpid", seconds=10) != pid
    with pytest.raises(isolated.Failed, match="ended with 3"):
        other.call("_exit", 3, seconds=10)
    assert other.call("strerror", 2, seconds=10) == "No such file or directory"
    other.close()
    other.close()


def test_what_takes_too_long_is_ended(isolated: ModuleType) -> None:
    other = isolated.Isolated(importlib.import_module, "time")
    other.call("time", seconds=10)
    process = other._process
    begun = time.monotonic()
    with pytest.raises(isolated.TooLong):
        other.call("sleep", 600, seconds=0.2)
    assert process.poll() is not None and time.monotonic() - begun < 300
    other.close()


def test_what_cannot_be_made_says_so(isolated: ModuleType) -> None:
    with pytest.raises(isolated.Failed, match="ModuleNotFoundError"):
        isolated.Isolated(importlib.import_module, "no_such_module").call("any", seconds=10)


# -- real streams ---------------------------------------------------------------------------------------------


def written(folder: Path, lines: list[str]) -> Path:
    with lzma.open(folder / "made.events.tsv.xz", "wt") as file:
        file.writelines(f"{line}\n" for line in lines)
    return folder


def replayed(updates: Iterator[tuple[int, int, int]]) -> Iterator[bool]:
    """For every deletion, whether the edge was there."""
    there = set()
    for u, v, op in updates:
        if op:
            there.add((u, v))
        else:
            yield (u, v) in there
            there.discard((u, v))


@pytest.mark.parametrize("updates", [0, 1, 5, 37, 62])
def test_a_fifth_of_a_stream_without_deletions_deletes_what_is_there(
    real_streams: ModuleType, tmp_path: Path, updates: int
) -> None:
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 12, (100, 2)).tolist()  # many pairs come twice
    stream = real_streams.read(written(tmp_path, [f"I\t{u}\t{v}\t{u / 2}\t-" for u, v in ends]), "made")
    assert stream.directed and stream.size == 62
    loaded, rest = stream.split(updates)
    assert len(rest) == updates and np.count_nonzero(rest.ops == 0) == updates // 5
    inserted = [*zip(loaded.src, loaded.dst, strict=True)]
    inserted += [pair for *pair, op in zip(rest.src, rest.dst, rest.ops, strict=True) if op]
    assert [list(map(int, pair)) for pair in inserted] == ends
    assert (loaded.weights == loaded.src / 2).all() and (
        rest.weights[rest.ops == 1] * 2 == rest.src[rest.ops == 1]
    ).all()
    both = [
        np.concatenate([getattr(part, name) for part in (loaded, rest)]).tolist() for name in ("src", "dst", "ops")
    ]
    deletions = list(replayed(zip(*both, strict=True)))
    assert len(deletions) == updates // 5 and all(deletions)


def test_a_stream_with_deletions_is_replayed_as_it_is(real_streams: ModuleType, tmp_path: Path) -> None:
    lines = ["I\t1\t2\t-3\t5", "I\t2\t3\t4\t6", "D\t1\t2\t-\t7", "I\t3\t1\t1\t8"]
    stream = real_streams.read(written(tmp_path, lines), "made")
    assert stream.size == 2
    loaded, rest = stream.split(2)
    assert (loaded.src.tolist(), loaded.weights.tolist()) == ([1, 2], [1, 1])  # one was negative
    assert (rest.src.tolist(), rest.dst.tolist(), rest.ops.tolist()) == ([1, 3], [2, 1], [0, 1])


# -- GAP ----------------------------------------------------------------------------------------------------------

# In the place of GAP's program: it reads the same file, and says what that one says.
COUNT = """#!{python}
import sys
import numpy as np
assert sys.argv[1:2] == ["-f"] and sys.argv[3:] == ["-n", "1", "-a"]
data = open(sys.argv[2], "rb").read()
assert data[0] == 0
n_neighbours, n = np.frombuffer(data, np.int64, 2, 1)
offsets = np.frombuffer(data, np.int64, n + 1, 17)
neighbours = np.frombuffer(data, np.int32, n_neighbours, 17 + 8 * (n + 1))
assert len(data) == 17 + 8 * (n + 1) + 4 * n_neighbours
rows = [neighbours[begin:end].tolist() for begin, end in zip(offsets[:-1], offsets[1:])]
assert all(row == sorted(set(row)) for row in rows)
triangles = sum(w in rows[u] for u in range(n) for v in rows[u] if u < v for w in rows[v] if v < w)
print(f"{{triangles}} triangles")
print("Trial Time:          0.00250\\nAverage Time:        0.00250")
"""


def test_gap_reads_the_graph_without_directions(benchmarks: None, tmp_path: Path) -> None:
    import networkx as nx

    gap, peers = importlib.import_module("gap"), importlib.import_module("peers")
    program = tmp_path / "tc"
    program.write_text(COUNT.format(python=sys.executable))
    program.chmod(0o755)
    rng = np.random.default_rng(2)
    keys = np.unique(rng.integers(0, 30 * 30, 300))  # loops, and both arcs of some links
    src, dst = np.divmod(keys, 30)
    peer = gap.Gap(peers.Edges(31, src, dst, np.ones(src.size, np.float32)), tmp_path, 2, tmp_path)
    peer.prepare(peers.Question("triangles", 0))
    graph: nx.Graph[int] = nx.Graph([(u, v) for u, v in zip(src.tolist(), dst.tolist(), strict=True) if u != v])
    expected = sum(nx.triangles(graph).values()) // 3
    assert expected > 100 and peer.count() == (expected, 2.5)
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(subprocess.CalledProcessError):
        peer.run(peers.Question("triangles", 0))


# -- the whole ------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="a small run of a benchmark")
def test_kinds_without_directions(tmp_path: Path) -> None:
    """Answers are compared before times are, of clustering, too."""
    result = tmp_path / "result.json"
    command = [sys.executable, BENCHMARKS / "compute.py", "--scale", "7", "--batch", "10", "--epochs", "1"]
    command += ["--programs", "triangles,lcc,kcore,cdlp", "--json", result]
    subprocess.run([*map(str, command)], check=True, timeout=300, stdout=subprocess.DEVNULL)
    rows = {row["program"]: row for row in json.loads(result.read_text())["from scratch"]}
    assert [*rows] == ["triangles", "lcc", "kcore", "cdlp"]
    for kind, row in rows.items():
        for name in ("NetworKit", "igraph"):
            assert row[name] == "-" if kind == "cdlp" else row[name] > 0


@pytest.mark.sample(among="a small run of a benchmark")
def test_a_small_run(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    lines = [f"I\t{k % 40}\t{(k * k) % 41}\t-\t-" for k in range(2_000)]
    command = [sys.executable, BENCHMARKS / "compute.py", "--scale", "8", "--batch", "1,100", "--epochs", "1"]
    command += ["--programs", "bfs,components", "--data", written(tmp_path, lines), "--streams", "made"]
    subprocess.run([*map(str, command), "--json", str(result)], check=True, timeout=300, stdout=subprocess.DEVNULL)
    rows = json.loads(result.read_text())
    assert [row["program"] for row in rows["from scratch"]] == ["bfs", "components"] * 2
    batches = [row["batch"] for row in rows["incremental"] if row["program"] == "bfs"]
    assert batches == ["1", "100", "100 + 1 vertices", "1", "100"]
    for row in rows["from scratch"]:
        assert row["ms"] > 0 and row["NetworKit"] > 0 and row["SciPy"] > 0 and row["igraph"] > 0
    assert all(row["NetworKit dyn."] != "-" for row in rows["incremental"] if "vertices" not in row["batch"])
