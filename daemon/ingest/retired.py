"""Spool files that are done with: read whole, as every checkpoint that is kept knows.

They are no partitions any more: their offsets are in no position and in no answer. What a checkpoint keeps of them
tells at the next start that such a file is not a new one. It says where reading would go on, should it grow again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgpack


class Retired(NamedTuple):
    """How a file was when it was retired.

    ``offset``: bytes of its content, all of them read; ``size`` and ``changed_ns``: as the system had them;
    ``fingerprint``: length and CRC32C of its beginning; ``aside``: its rest was set aside, and is never read.
    """

    offset: int
    size: int
    changed_ns: int
    fingerprint: tuple[int, int]
    aside: bool


def pack(retired: Mapping[str, Retired]) -> bytes:
    """Retired files by name, for a checkpoint."""
    return bytes(msgpack.packb({"v": 1, "retired": retired}))


def unpack(packed: bytes) -> dict[str, Retired]:
    """The inverse of ``pack``; nothing is retired where a checkpoint keeps nothing.

    Raises:
        ValueError: it is of a later version.
    """
    if not packed:
        return {}
    kept = msgpack.unpackb(packed)
    if kept["v"] != 1:
        raise ValueError(f"version {kept['v']} of retired files; only 1 is understood")
    return {
        name: Retired(offset, size, changed_ns, (length, checksum), aside)
        for name, (offset, size, changed_ns, (length, checksum), aside) in kept["retired"].items()
    }
