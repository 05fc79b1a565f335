"""Control groups with a limit of memory, made for a test where the machine lets one be made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from waiting import until

from graphtide.gpma.control_groups import control_groups


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """``folder``: the group's own. ``before``: the group that its processes come from, and go back to."""

    folder: Path
    before: Path
    unified: bool

    def limit(self, n_bytes: int) -> None:
        """What its processes may use together from now on, over what they used before they came."""
        (self.folder / ("memory.max" if self.unified else "memory.limit_in_bytes")).write_text(str(n_bytes))

    def used(self) -> int:
        """Bytes, without pages of files, which the system takes back when it needs them."""
        used = int((self.folder / ("memory.current" if self.unified else "memory.usage_in_bytes")).read_text())
        of_files = {f"{'' if self.unified else 'total_'}{name}_file" for name in ("active", "inactive")}
        counts = (line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return used - sum(int(count) for name, count in counts if name in of_files)

    def kills(self) -> int:
        """How many of its processes the system has ended, for want of memory."""
        text = (self.folder / ("memory.events" if self.unified else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def take(self, processes: Iterable[psutil.Process]) -> None:
        """Let these processes be in it, and what they fork from now on."""
        for process in processes:
            (self.folder / "cgroup.procs").write_text(str(process.pid))

    def release(self) -> None:
        """Let nobody be in it any more."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self.before / "cgroup.procs").write_text(pid)


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup | str]:
    """An empty group below ours; where none can be made, why not, in words."""
    made: MemoryGroup | str = "there are no control groups of memory"
    for ours in control_groups(Path("/"), "memory"):
        if (ours.folder / "cgroup.procs").exists():
            made = _made(ours.folder, unified=ours.unified)
            break
    try:
        yield made
    finally:
        if not isinstance(made, str):
            made.release()
            until(lambda: _removed(made.folder))


def _made(ours: Path, *, unified: bool) -> MemoryGroup | str:
    folder = ours / f"graphtide-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        return f"no control group can be made: {error}"
    group = MemoryGroup(folder, ours, unified)
    try:
        group.limit(1 << 40)
        group.kills()
    except (OSError, KeyError) as error:
        folder.rmdir()
        return f"control groups have no limit of memory here: {error}"
    return group


def _removed(folder: Path) -> bool:
    """Who has just left may still be on the way out."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
