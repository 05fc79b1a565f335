"""What programs at run time cost: the rate of a stream while they are computed beside it, memory, and how long
updates wait when one joins.

    python benchmarks/beside.py [--scale 17] [--edges 1500000] [--seconds 5] [--json FILE]

A daemon with BFS, components and PageRank holds three quarters of a pool of RMAT edges, and is fed a thousand
updates a record, a fifth of them deletions, ten records as soon as those before are answered for. Then programs
are run by ``compute``, and kept by ``keep``, one after the other. ``rate``: updates a second meanwhile;
``memory``: what the engine's process has in memory at most, above what it had in the beginning.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from report import machine, save, show

from graphtide import Client
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn, Updates

RECORD, RECORDS, AHEAD = 1000, 500, 10
FILE = "a.msgpack"
CONFIG = """
source = {{ kind = "spool", path = "{folder}/spool" }}
dead_letters = {{ path = "{folder}/dead-letters" }}
checkpoint = {{ path = "{folder}/checkpoints", interval = 3600 }}
server = {{ listen = ["unix:{folder}/s"] }}
metrics = {{ listen = "off" }}
program = [{{ name = "bfs", source = 1 }}, {{ name = "components" }}, {{ name = "pagerank" }}]
"""
RUN: dict[str, dict[str, Any]] = {"bfs": {"source": 2}, "pagerank": {"tolerance": 0.01}, "sspaths": {"source": 1}}
RUN["triangles"] = {}


def encoded(updates: Updates) -> bytes:
    return encode_msgpack(updates.src, updates.dst, updates.ops, updates.weights)


class Stream:
    """Feeds the daemon, and looks at its memory; ``sent``: updates so far, ``peak``: bytes since ``measure``."""

    def __init__(self, address: str, writer: SpoolWriter, records: list[bytes], process: psutil.Process) -> None:
        self.sent, self.peak = 0, 0
        self._over = threading.Event()
        self._base = process.memory_info().rss
        self._threads = [
            threading.Thread(target=self._feed, args=(address, writer, records)),
            threading.Thread(target=self._look, args=(process,)),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, address: str, writer: SpoolWriter, records: list[bytes]) -> None:
        with Client(address, timeout=600) as client:
            while not self._over.is_set():
                for _ in range(AHEAD):
                    writer.append(records[self.sent // RECORD % len(records)])
                    self.sent += RECORD
                writer.flush()
                client.wait({FILE: writer.offset}, timeout_ms=600_000)

    def _look(self, process: psutil.Process) -> None:
        while not self._over.wait(0.01):
            self.peak = max(self.peak, process.memory_info().rss)

    def measure(self, what: str, work: Callable[[], None]) -> dict[str, Any]:
        self.peak, sent, started = 0, self.sent, time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        memory = max(self.peak - self._base, 0) / 2**20
        return {"work": what, "seconds": seconds, "rate": (self.sent - sent) / seconds, "memory MiB": memory}

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def running(folder: Path, settings: str = CONFIG) -> Iterator[tuple[Client, psutil.Process]]:
    """A daemon with these settings, ``{folder}`` in them being this folder, and its log there."""
    config = folder / "graphtide.toml"
    config.write_text(settings.format(folder=folder))
    command = [sys.executable, "-m", "graphtide", "run", "--config", str(config)]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stderr=log) as daemon:
        try:
            with Client(f"unix:{folder}/s", timeout=600) as client:
                while True:
                    try:
                        client.stats()
                        break
                    except Unavailable:
                        if daemon.poll() is not None:
                            sys.exit(f"the daemon ended:\n{(folder / 'log').read_text()}")
                        time.sleep(0.1)
                yield client, psutil.Process(daemon.pid)
        finally:
            daemon.terminate()


def kept(client: Client, kind: str) -> None:
    """Keep a program, and wait until it has joined."""
    id = client.keep(kind, RUN[kind], id=f"kept-{kind}").id
    while client.programs()["programs"][id]["state"] != "fresh":
        time.sleep(0.01)


def run(scale: int, edges: int, seconds: float) -> dict[str, Any]:
    churn = Churn(scale=scale, pool=edges, seed=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spool").mkdir()
        with SpoolWriter(folder / "spool", name="a") as writer, running(folder) as (client, process):
            for part in churn.load(edges * 3 // 4, batch=100_000):
                writer.append(encoded(part))
            writer.flush()
            client.wait({FILE: writer.offset}, timeout_ms=600_000)
            stream = Stream(
                f"unix:{folder}/s", writer, [encoded(churn.next(RECORD)) for _ in range(RECORDS)], process
            )
            try:
                rows = [stream.measure("nothing", lambda: time.sleep(seconds))]
                for kind, given in RUN.items():
                    rows.append(
                        stream.measure(f"compute {kind}", lambda: client.compute(kind, given, timeout_ms=60_000))  # noqa: B023
                    )
                rows += [stream.measure(f"keep {kind}", lambda: kept(client, kind)) for kind in RUN]  # noqa: B023
            finally:
                stream.end()
            stats = client.stats()
        log = (folder / "log").read_text().splitlines()
    joined = [line.partition("program ")[2] for line in log if " joined after " in line]
    return {"vertices": stats["vertices"], "edges": stats["edges"], "rows": rows, "joined": joined}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=17)
    parser.add_argument("--edges", type=int, default=1_500_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = run(arguments.scale, arguments.edges, arguments.seconds)
    show(f"{result['vertices']:,} vertices, {result['edges']:,} edges", result["rows"])
    print("\n".join(result["joined"]))
    save(arguments.json, {"machine": machine(), "scale": arguments.scale, **result})


if __name__ == "__main__":
    main()
