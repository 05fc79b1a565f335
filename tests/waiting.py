"""Waiting for something to become true, which takes as long as a busy machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 240.0
"""What anything may take: many times what it takes, and less than a test."""


def until(condition: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """Return what it came to once that is true; fail when it is not within the time."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s} s"
        time.sleep(0.01)
    return found
