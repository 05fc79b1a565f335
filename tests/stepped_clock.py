"""``graphtide`` under a clock on the wall that a test steps, for ``Daemon(program=STEPPED)``.

The file ``clock`` in the daemon's folder says by how many seconds; the monotonic clock goes on as ever. What the
system itself tells the time of (changes of files, say) is not stepped, as on a machine whose disks are elsewhere.
"""

from __future__ import annotations

import time
from pathlib import Path

STEPPED = (__file__,)
_FILE = Path("clock")
_real, _real_ns = time.time, time.time_ns


def step(folder: Path, seconds: float) -> None:
    """From now on the daemon that runs in this folder sees this time, beside the true one."""
    draft = folder / f"{_FILE}.draft"
    draft.write_text(repr(seconds))
    draft.rename(folder / _FILE)


def _shift() -> float:
    try:
        return float(_FILE.read_text())
    except FileNotFoundError:
        return 0.0


if __name__ == "__main__":
    time.time = lambda: _real() + _shift()
    time.time_ns = lambda: _real_ns() + int(_shift() * 1e9)
    from graphtide.daemon.cli import main

    main()
