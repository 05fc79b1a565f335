"""How the page of the HTTP door looks: a real daemon is fed, and a real Chromium draws what it serves.

    python benchmarks/page.py [FILE] [--seconds 110] [--updates 20000] [--width 1280] [--height 900] [--dark]

FILE (``docs/page.png``, which is kept) is a picture of the whole page, after so many seconds of a steady stream of
inserts and deletes over an RMAT graph. Needs Debian's ``chromium``.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from pathlib import Path

from loaded import Loaded, loaded

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import PROGRAM, Chromium  # noqa: E402  # what the tests share

PER_SECOND = 20  # records
CONFIG = """
server = {{ listen = ["unix:{folder}/s"], http = ["http://127.0.0.1:0"] }}
metrics = {{ listen = "off" }}
program = [
  {{ name = "bfs", source = SOURCE }}, {{ name = "components" }}, {{ name = "pagerank" }}, {{ name = "kcore" }},
]
"""


def feed(daemon: Loaded, updates: int, over: threading.Event) -> None:
    """So many updates a second, in records at their times."""
    while not over.wait(1 / PER_SECOND):
        daemon.feed(updates // PER_SECOND)
        daemon.writer.flush()


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
    over = threading.Event()
    with loaded(CONFIG, arguments.scale) as daemon:
        found = re.search(r"http://127\.0\.0\.1:\d+", daemon.log())
        assert found is not None, "the log says where the door is"
        feeding = threading.Thread(target=feed, args=(daemon, arguments.updates, over))
        feeding.start()
        try:
            draw(found[0], arguments)
        finally:
            over.set()
            feeding.join()


if __name__ == "__main__":
    main()
