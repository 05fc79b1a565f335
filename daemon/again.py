"""The process replaces itself: the same arguments, the same number, and nothing in memory of what was before.

A device that failed leaves its driver's state, and memory that it has pinned, behind in the process; so the daemon
goes on without it from the newest checkpoint, as after a crash, and nothing of the former run is left.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from typing import NoReturn

log = logging.getLogger(__name__)

VARIABLE = "GRAPHTIDE_DEVICE_LOST"
"""Tells the next start of a device that it must not use; JSON."""

REASON_CHARACTERS = 2000
"""Of a reason, so many go along: the system refuses environments that are too large."""


@dataclass(frozen=True, slots=True)
class LostDevice:
    """A device that was given up together with rows that only it had: its ``name``, and the ``reason``."""

    name: str
    reason: str


class StartAgain(Exception):
    """The process is to replace itself. ``lost``: the device that it then does without."""

    def __init__(self, lost: LostDevice | None) -> None:
        super().__init__("the daemon starts again")
        self.lost = lost


def lost_before() -> LostDevice | None:
    """The device for whose loss this process was started again."""
    told = os.environ.get(VARIABLE)
    return None if told is None else LostDevice(**json.loads(told))


def replace_process(lost: LostDevice | None) -> NoReturn:
    """Begin anew. Whoever calls has closed everything."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if lost is not None:
        environment[VARIABLE] = json.dumps({**asdict(lost), "reason": lost.reason[:REASON_CHARACTERS]})
    log.warning("the process replaces itself, and goes on from the newest checkpoint")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
