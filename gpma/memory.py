"""How much memory there is, and how much is left: of the machine, and of the control groups that limit us.

The system promises more memory than there is, and ends the process that uses it up: growth is refused before that.
Limits may change at any time, so they are read when they matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .control_groups import control_groups, read

RESERVE_BYTES = 32 << 20
"""Growth leaves so much, for what is small and asks nobody."""

UNASKED_BYTES = 4 << 20
"""So little is not worth reading the limits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """``total`` bytes, of which ``used`` cannot be had back; ``name``: the machine's, or which control group's."""

    name: str
    total: int
    used: int
    is_machine: bool = False

    @property
    def left(self) -> int:
        return max(self.total - self.used, 0)


class Memory:
    """The memory of this process, as the system tells it."""

    def __init__(self, root: Path = Path("/")) -> None:
        """``root``: where ``proc`` and ``sys`` are."""
        self._root = root

    def limits(self) -> list[Limit]:
        """The machine, and every control group on the way to ours that has a limit (of either version)."""
        return [self._machine(), *self._groups()]

    def smallest(self) -> Limit:
        """The limit with the least bytes: what a share of the memory is a share of."""
        return min(self.limits(), key=lambda limit: limit.total)

    def resident(self) -> int:
        """Bytes of this process that are in memory."""
        pages = read(f"{self._root}/proc/self/statm").split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0

    def require(self, n_bytes: int) -> None:
        """Check that so many bytes more can be had.

        Raises:
            MemoryError: they cannot; the message says whose limit is in the way.
        """
        if n_bytes < UNASKED_BYTES:
            return
        tightest = min(self.limits(), key=lambda limit: limit.left)
        if n_bytes + RESERVE_BYTES > tightest.left:
            left = f"of {tightest.total} {tightest.name} has {tightest.left} left"
            raise MemoryError(f"{n_bytes} bytes more are needed, and {left}")

    def allows(self, n_bytes: int) -> bool:
        """Whether so many bytes more can be had, for who has another way to go."""
        try:
            self.require(n_bytes)
        except MemoryError:
            return False
        return True

    def _machine(self) -> Limit:
        facts = _facts(read(f"{self._root}/proc/meminfo"))
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if "MemTotal:" not in facts or "MemAvailable:" not in facts:
            return Limit("the machine", total, 0, is_machine=True)
        total = facts["MemTotal:"] << 10
        return Limit("the machine", total, total - (facts["MemAvailable:"] << 10), is_machine=True)

    def _groups(self) -> Iterator[Limit]:
        for group in control_groups(self._root, "memory"):
            total, used, files = _UNIFIED if group.unified else _OF_MEMORY
            limit = read(f"{group.folder}/{total}").strip()
            if not limit.isdigit() or int(limit) >= _NO_LIMIT:
                continue
            usage = read(f"{group.folder}/{used}").strip()
            if usage.isdigit():
                counts = _facts(read(f"{group.folder}/memory.stat"))
                kept = max(int(usage) - sum(counts.get(file, 0) for file in files), 0)
                yield Limit(f"the control group {group.path}", int(limit), kept)


class Trickle:
    """Asks for memory that is taken a little at a time, none of which would be worth asking for by itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._unasked = 0

    def take(self, n_bytes: int) -> None:
        """So many bytes more.

        Raises:
            MemoryError: there are none for what would follow.
        """
        self._unasked += n_bytes
        if self._unasked >= UNASKED_BYTES:
            asked, self._unasked = self._unasked, 0
            self._memory.require(asked)


# The files of a group with the limit, with what is used, and the counts of what can be had back of that, which are
# pages of files: of version 2 and version 1.
_Files = tuple[str, str, tuple[str, ...]]
_UNIFIED: _Files = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_OF_MEMORY: _Files = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
# Version 1 writes the largest number of pages where there is no limit.
_NO_LIMIT = 1 << 60


def _facts(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.split() for line in text.splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}
