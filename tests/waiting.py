"""Waiting for something to become true, which takes as long as a busy machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Return once it holds; fail when it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s} s"
        time.sleep(0.01)
