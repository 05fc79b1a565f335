"""GAP's reference programs on the same graph: C++ with OpenMP, from scratch.

Whoever compares with them builds them (https://github.com/sbeamer/gapbs: ``make tc``) and names their folder.
Their own clock counts: the graph is read, from GAP's binary form, before it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
from peers import Edges, Question, simple


class Gap:
    """GAP's count of all triangles, which relabels the vertices by degree, and counts that, too."""

    name = "GAP"
    kinds = ("triangles",)

    def __init__(self, edges: Edges, folder: Path, threads: int, work: Path) -> None:
        """``folder``: of the programs; ``work``: where the graph is written."""
        self._program, self._threads = folder / "tc", threads
        self._edges = edges
        self._graph = work / "graph.sg"

    def prepare(self, question: Question) -> None:
        """Write the graph without directions, unless it is there."""
        if not self._graph.exists():
            write_undirected(self._edges, self._graph)

    def run(self, question: Question) -> float:
        """Milliseconds of one count."""
        return self.count()[1]

    def count(self) -> tuple[int, float]:
        """(triangles, milliseconds).

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        command = ["setpriv", "--pdeathsig", "KILL", str(self._program), "-f", str(self._graph), "-n", "1", "-a"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return int(_found(r"(\d+) triangles", said)), 1e3 * float(_found(r"Average Time:\s*([\d.]+)", said))


def write_undirected(edges: Edges, path: Path) -> None:
    """Write a graph without directions, loops and doubles as GAP reads it (``.sg``): whether it is directed, how
    many neighbours and vertices it has, where the neighbours of each begin, and these, ascending."""
    low, high = simple(edges)
    src, dst = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((dst, src))
    offsets = np.zeros(edges.n + 1, np.int64)
    np.cumsum(np.bincount(src, minlength=edges.n), out=offsets[1:])
    with path.open("wb") as file:
        file.write(b"\0")
        file.write(np.array([src.size, edges.n], np.int64).tobytes())
        file.write(offsets.tobytes())
        file.write(dst[order].astype(np.int32).tobytes())


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"GAP says no {pattern!r}: {text}")
    return match[1]
