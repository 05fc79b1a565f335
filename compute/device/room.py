"""How much room columns on a device get, so that they seldom grow."""

from __future__ import annotations

from typing import Final

_MORE: Final = 1.5


def grown(n: int, had: int) -> int:
    """Room for n entries, where there was room for ``had``: as much if that suffices, else half more at least."""
    return had if n <= had else max(n, int(_MORE * had))
