"""How long ``graphtide run`` takes until the first request is answered: without kernels, and then.

    python benchmarks/starts.py [--kernels DIR] [--starts 5] [--json FILE]

BFS, components and PageRank over an empty graph. ``--kernels`` names a folder that is full already; else a new one
is filled by the first start, whose processor seconds are those of the compiler, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from report import machine, save, show

from graphtide.daemon.client import Client
from graphtide.daemon.errors import GraphtideError

CONFIGURATION = """
graph.directed = true
graph.weights = "unweighted"
program = [{ name = "bfs", source = 0 }, { name = "components" }, { name = "pagerank" }]
"""
LOOK_SECONDS = 0.005


def start(kernels: Path) -> dict[str, str | float]:
    """One start and its end: seconds until the answer, and the processor's until it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "graphtide.toml").write_text(CONFIGURATION)
        Path(folder, "spool").mkdir()
        address = f"unix:{folder}/socket"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        command = [sys.executable, "-m", "graphtide", "run", "--config", "graphtide.toml", "--listen", address]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
        with (
            open(Path(folder, "log"), "wb") as log,
            subprocess.Popen(command, cwd=folder, env=environment, stderr=log) as daemon,
        ):
            while True:
                with suppress(GraphtideError, OSError), Client(address) as client:
                    client.programs()
                    break
                if daemon.poll() is not None:
                    raise RuntimeError(Path(folder, "log").read_text())
                time.sleep(LOOK_SECONDS)
            seconds = time.perf_counter() - started
            daemon.send_signal(signal.SIGTERM)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "answered after s": seconds,
        "user s": after.ru_utime - before.ru_utime,
        "system s": after.ru_stime - before.ru_stime,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        kernels = options.kernels or Path(empty)
        rows = [{"start": str(number + 1), **start(kernels)} for number in range(options.starts)]
    show(f"starts with {'kernels at hand' if options.kernels else 'no kernels at first'}", rows)
    save(options.json, {"machine": machine(), "starts": rows})


if __name__ == "__main__":
    main()
