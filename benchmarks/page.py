"""How the page of the HTTP door looks: a real daemon is fed, and a real Chromium draws what it serves.

    python benchmarks/page.py [FILE] [--seconds 110] [--updates 20000] [--width 1280] [--height 900] [--dark]

FILE (``docs/page.png``, which is kept) is a picture of the whole page, after so many seconds of a steady stream of
inserts and deletes over an RMAT graph. Needs Debian's ``chromium``.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from beside import encoded, running

from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import PROGRAM, Chromium  # noqa: E402  # what the tests share

PER_SECOND = 20  # records
FILE = "a.msgpack"
CONFIG = """
source = {{ kind = "spool", path = "{folder}/spool" }}
dead_letters = {{ path = "{folder}/dead-letters" }}
checkpoint = {{ path = "{folder}/checkpoints", interval = 20 }}
server = {{ listen = ["unix:{folder}/s"], http = ["http://127.0.0.1:0"] }}
metrics = {{ listen = "off" }}
program = [
  {{ name = "bfs", source = SOURCE }}, {{ name = "components" }}, {{ name = "pagerank" }}, {{ name = "kcore" }},
]
"""


def feed(writer: SpoolWriter, churn: Churn, updates: int, over: threading.Event) -> None:
    """So many updates a second, in records at their times."""
    while not over.wait(1 / PER_SECOND):
        writer.append(encoded(churn.next(updates // PER_SECOND)))
        writer.flush()


def draw(url: str, arguments: argparse.Namespace) -> None:
    """Look at the page for so long, and write what it looks like then."""
    with Chromium() as browser:
        scheme = "dark" if arguments.dark else "light"
        browser.open(url, width=arguments.width, height=arguments.height, scheme=scheme)
        time.sleep(arguments.seconds)
        state = browser.evaluate("document.getElementById('state').innerText")
        if state != "running":
            raise SystemExit(f"the page says {state!r}")
        browser.picture(arguments.file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=ROOT / "docs" / "page.png")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--updates", type=int, default=20_000, help="a second")
    parser.add_argument("--scale", type=int, default=16, help="of the RMAT graph, eight edges a vertex")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    if PROGRAM is None:
        raise SystemExit("there is no Chromium (Debian: chromium)")
    churn = Churn(scale=arguments.scale, pool=16 << arguments.scale, seed=3)
    first, *more = churn.load(8 << arguments.scale, batch=100_000)
    hub = int(np.bincount(first.src).argmax())
    settings, over = CONFIG.replace("SOURCE", str(hub)), threading.Event()
    with tempfile.TemporaryDirectory(prefix="gt-") as name:
        folder = Path(name)
        (folder / "spool").mkdir()
        with SpoolWriter(folder / "spool", name="a") as writer, running(folder, settings) as (client, _):
            for part in (first, *more):
                writer.append(encoded(part))
            writer.flush()
            client.wait({FILE: writer.offset}, timeout_ms=600_000)
            found = re.search(r"http://127\.0\.0\.1:\d+", (folder / "log").read_text("utf-8"))
            assert found is not None, "the log says where the door is"
            feeding = threading.Thread(target=feed, args=(writer, churn, arguments.updates, over))
            feeding.start()
            try:
                draw(found[0], arguments)
            finally:
                over.set()
                feeding.join()


if __name__ == "__main__":
    main()
