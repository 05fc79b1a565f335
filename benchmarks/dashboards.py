"""How the dashboards look: a real daemon is fed and asked, a real Prometheus scrapes it, and every panel's queries
are asked of that as Grafana would.

    python benchmarks/dashboards.py [--seconds 180] [--updates 20000] [--json FILE]

The stream rests for the second fifth of the time and runs at ten times its rate in the fourth; after each hundred
records comes a bad one. Needs Debian's ``prometheus``. ``pictures.py`` draws what is saved; Grafana draws the same
series in its own way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from loaded import Loaded, loaded
from report import machine, save

from graphtide import Client
from graphtide.ops import dashboards

ROOT = Path(__file__).resolve().parents[1]
SCRAPE_S, RATE = 1, "10s"
PER_SECOND = 20  # records
CONFIG = """
server = {{ listen = ["unix:{folder}/s"] }}
metrics = {{ listen = "127.0.0.1:0" }}
program = [{{ name = "bfs", source = SOURCE }}, {{ name = "components" }}, {{ name = "pagerank" }}]
"""


def feed(daemon: Loaded, arguments: argparse.Namespace, over: threading.Event) -> None:
    """Records at their times; where they cannot be written as fast, those that are late are left out."""
    begun, number = time.monotonic(), 0
    while not over.wait(1 / PER_SECOND):
        fifth = int(5 * (time.monotonic() - begun) / arguments.seconds)
        if fifth == 1:
            continue
        number += 1
        size = arguments.updates // PER_SECOND * (10 if fifth == 3 else 1)
        daemon.feed(size)
        if number % 100 == 0:
            daemon.writer.append(b"\xc1 no record")
        daemon.writer.flush()


def ask(address: str, ids: np.ndarray, over: threading.Event) -> None:
    """Questions of several kinds, ten rounds a second, with a subscriber beside them."""
    with Client(address, timeout=600) as client, client.subscribe("pagerank", ids):
        while not over.wait(0.1):
            client.get(["pagerank", "components"], ids)
            client.top("pagerank", k=10)
            client.neighbors(int(ids[0]), limit=100)


@contextlib.contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[str]:
    """The address of one that scrapes this endpoint, with the settings of ``ops/prometheus`` but for how often."""
    settings = (ROOT / "ops" / "prometheus" / "scrape.yml").read_text("utf-8")
    settings = settings.replace("127.0.0.1:9420", scraped).replace("15s", f"{SCRAPE_S}s")
    (folder / "prometheus.yml").write_text(settings, "utf-8")
    (folder / "alerts.yml").write_bytes((ROOT / "ops" / "prometheus" / "alerts.yml").read_bytes())
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    log = folder / "prometheus.log"
    command.append("--web.listen-address=127.0.0.1:0")
    with open(log, "wb") as out, subprocess.Popen(command, stderr=out) as run:
        try:
            while not (found := re.search(r'"Listening on" address=(\S+)', log.read_text("utf-8"))):
                if run.poll() is not None:
                    raise SystemExit(f"Prometheus ended:\n{log.read_text('utf-8')}")
                time.sleep(0.1)
            yield f"http://{found[1]}"
        finally:
            run.terminate()


def series(url: str, panel: dict[str, Any], start: float, end: float) -> dict[str, list[tuple[float, float]]]:
    """What a panel shows from one time to another: (seconds since the start, value), by their legends."""
    found: dict[str, list[tuple[float, float]]] = {}
    for target in panel["targets"]:
        expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", RATE)
        asked = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": SCRAPE_S})
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{asked}", timeout=60) as answer:
            for one in json.load(answer)["data"]["result"]:
                labels = one["metric"]
                name = re.sub(r"{{(\w+)}}", lambda label, of=labels: of.get(label[1], ""), target["legendFormat"])
                found[name.strip()] = [(at - start, float(value)) for at, value in one["values"]]
    return found


def recorded(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The panels of each dashboard, with their places and series."""
    over = threading.Event()
    with loaded(CONFIG, arguments.scale) as daemon:
        log = daemon.log()
        scraped = re.search(r"metrics at http://(\S+)/metrics", log)
        assert scraped is not None, log
        with prometheus(daemon.folder, scraped[1]) as url:
            threads = [
                threading.Thread(target=feed, args=(daemon, arguments, over)),
                threading.Thread(target=ask, args=(daemon.address, daemon.ids[:100], over)),
            ]
            start = time.time()
            for thread in threads:
                thread.start()
            time.sleep(arguments.seconds)
            over.set()
            for thread in threads:
                thread.join()
            end = time.time()
            return {
                path.stem: [
                    {"title": panel["title"], "place": panel["gridPos"], "unit": _unit(panel)}
                    | {"series": series(url, panel, start, end) if panel["type"] != "row" else None}
                    for panel in json.loads(path.read_text("utf-8"))["panels"]
                ]
                for path in sorted(dashboards.FOLDER.glob("*.json"))
            }


def _unit(panel: dict[str, Any]) -> str | None:
    unit: str | None = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
    return unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--updates", type=int, default=20_000, help="a second, but for the fourth fifth")
    parser.add_argument("--scale", type=int, default=14, help="of the RMAT graph, eight edges a vertex")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = recorded(arguments)
    for name, panels in found.items():
        shown = [panel for panel in panels if panel["series"] is not None]
        print(f"{name}: {len(shown)} panels, {sum(bool(panel['series']) for panel in shown)} of them with data")
    parameters = vars(arguments) | {"json": None}
    save(arguments.json, {"machine": machine(), "parameters": parameters, "dashboards": found})


if __name__ == "__main__":
    main()
