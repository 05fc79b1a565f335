"""The control groups that limit this process, of either version, as files of the system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
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


def control_groups(root: Path, controller: str) -> tuple[Group, ...]:
    """Our groups of a controller (``memory`` or ``cpu``) and those above, which limit it, too.

    ``root``: where ``proc`` and ``sys`` are. A container may see its own group as the root of the mount.
    """
    return _named_in(read(f"{root}/proc/self/cgroup"), root, controller)


@lru_cache(maxsize=8)
def _named_in(text: str, root: Path, controller: str) -> tuple[Group, ...]:
    """Those of the text in which the system names our groups: it is asked for ten times a second, and is always
    the same."""
    groups = list[Group]()
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        unified = number == "0"
        if not unified and controller not in controllers.split(","):
            continue
        for mount in _UNIFIED if unified else _MOUNTS[controller]:
            groups += _upwards(root / "sys/fs/cgroup" / mount, path, unified=unified)
    return tuple(groups)


def read(path: Path | str) -> str:
    """The text of a file of the system; empty where it is not. (A file of Python's takes longer to make than the
    system takes to say what is in it.)"""
    content = b""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(handle, 1 << 14):
                content += piece
        finally:
            os.close(handle)
    return content.decode(errors="surrogateescape")


def _upwards(mount: Path, path: str, *, unified: bool) -> Iterator[Group]:
    folder = mount / path.lstrip("/")
    if ".." in folder.parts:
        folder = mount
    while True:
        yield Group(folder, folder.relative_to(mount), unified)
        if folder == mount:
            return
        folder = folder.parent
