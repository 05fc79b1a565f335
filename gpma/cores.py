"""How many cores this process may use: those that it may run on, and what its control groups grant of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from .control_groups import control_groups, read


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may run on; fewer where a control group grants it less time than they have.

    A quota that is no whole number of cores is rounded up. ``root``: where ``proc`` and ``sys`` are.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The cores' worth of time that control groups grant us."""
    for group in control_groups(root, "cpu"):
        if group.unified:
            words = read(group.folder / "cpu.max").split()
        else:
            words = [read(group.folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        # Microseconds of so many; version 2 says "max" where there is no limit, version 1 -1.
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
