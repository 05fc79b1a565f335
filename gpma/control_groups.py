"""The control groups that limit this process, of either version, as files of the system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Where groups of version 2 are mounted; those of version 1 have a folder for each controller.
_UNIFIED = ("", "unified")
_MOUNTS = {"memory": ("memory",), "cpu": ("cpu", "cpu,cpuacct")}


class Group(NamedTuple):
    """A group's ``folder``, its ``path`` below the mount, and whether it is of version 2."""

    folder: Path
    path: Path
    unified: bool


def control_groups(root: Path, controller: str) -> Iterator[Group]:
    """Our groups of a controller (``memory`` or ``cpu``) and those above, which limit it, too.

    ``root``: where ``proc`` and ``sys`` are. A container may see its own group as the root of the mount.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        unified = number == "0"
        if not unified and controller not in controllers.split(","):
            continue
        for mount in _UNIFIED if unified else _MOUNTS[controller]:
            yield from _upwards(root / "sys/fs/cgroup" / mount, path, unified=unified)


def read(path: Path) -> str:
    """The text of a file of the system; empty where it is not."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _upwards(mount: Path, path: str, *, unified: bool) -> Iterator[Group]:
    folder = mount / path.lstrip("/")
    if ".." in folder.parts:
        folder = mount
    while True:
        yield Group(folder, folder.relative_to(mount), unified)
        if folder == mount:
            return
        folder = folder.parent
