"""The process replaces itself: the same arguments, the same number, and nothing in memory of what was before.

A device that failed leaves its driver's state, and memory that it has pinned, behind in the process; so the daemon
goes on without it from the newest checkpoint, as after a crash, and nothing of the former run is left.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

log = logging.getLogger(__name__)

VARIABLE = "GRAPHTIDE_DEVICE_LOST"
"""Tells the next start of a device that it must not use; JSON."""

REASON_CHARACTERS = 2000
"""Of a reason, so many go along: the system refuses environments that are too large."""

ASKED_SECONDS_MAX = 60.0
"""So long may a driver take to say whether there is a device."""


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


def require_device() -> None:
    """Whether a process that begins anew would find a device. That is asked of one: what a driver tells a process
    whose card failed cannot be relied on.

    Raises:
        NoDevice: it would not; the message says why.
    """
    from ..gpma.device import card  # a start imports this module before it needs anything of gpma

    question = (
        f"from {card.__name__} import NoDevice, require_any\n"
        "try: require_any()\n"
        "except NoDevice as error: raise SystemExit(str(error))"
    )
    known = [path for path in sys.path if path and Path(path).exists()]
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", question],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(known)},
            timeout=ASKED_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise card.NoDevice(f"the driver said nothing for {ASKED_SECONDS_MAX:g} s") from None
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise card.NoDevice(said or f"a process that looked for one ended with status {asked.returncode}")


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
