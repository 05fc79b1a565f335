"""Named points at which a test may kill the process, to prove that recovery holds there.

``GRAPHTIDE_KILL_AT=name:n`` kills the process with SIGKILL when the point ``name`` is passed for the n-th
time. Without that variable a point costs one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal

POINTS = (
    "ingest.polled",
    "ingest.decoded",
    "ingest.dead_letter",
    "dead_letter.appended",
    "ingest.queued",
    "epoch.taken",
    "order.written",
    "order.synced",
    "epoch.applied",
    "epoch.computed",
    "epoch.published",
    "rows.moved",
    "checkpoint.begun",
    "checkpoint.copied",
    "checkpoint.array_written",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "checkpoint.pruned",
    "source.committed",
    "results.sent",
    "results.committed",
    "kept.before_replace",
    "kept.replaced",
)

ON_REQUEST = ("kept.before_replace", "kept.replaced")
"""Those that nothing but a request leads to."""


def _target() -> tuple[str, int]:
    name, _, count = os.environ.get("GRAPHTIDE_KILL_AT", "").partition(":")
    if name and name not in POINTS:
        raise ValueError(f"GRAPHTIDE_KILL_AT names {name!r}; the points are {', '.join(POINTS)}")
    return name, int(count or 1)


_NAME, _COUNT = _target()
_passed = itertools.count(1)


def point(name: str) -> None:
    """Die here, if a test asked for it."""
    if name == _NAME and next(_passed) == _COUNT:
        os.kill(os.getpid(), signal.SIGKILL)
