"""Spool files that are done with: read whole, as every checkpoint that is kept knows.

They are no partitions any more: their offsets are in no position and in no answer. What a checkpoint keeps of them
tells at the next start that such a file is not a new one. It says where reading would go on, should it grow again.
Of those that were deleted since, as many as there is room for, it says how much of them was read.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import msgpack

GONE_MAX = 10_000
"""So many files that were deleted are known, the newest ones; and all that went lately (``Gone``)."""


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


class Gone:
    """Files that were deleted, by digests of their names, and how many bytes of each every checkpoint covers.

    Those that went lately are known however many they are: the order log may name them still, and a start that did
    not know that they were read would wait for them.
    """

    def __init__(self, known: Iterable[tuple[bytes, int]] = (), turns: int = 3) -> None:
        """``known``: as ``kept``, the oldest first; all of them count as if they had gone now. ``turns``: for so
        many checkpoints a file has gone lately, one more than are kept."""
        self._offsets = dict(known)
        self._lately = deque([len(self._offsets)], maxlen=turns)  # how many at most since each of so many turns

    def note(self, name: str, offset: int) -> None:
        """This one is gone."""
        digest = _digest(name)
        self._offsets.pop(digest, None)
        self._offsets[digest] = offset
        self._lately[-1] += 1
        self._forget()

    def turn(self) -> None:
        """A checkpoint was made."""
        self._lately.append(0)
        self._forget()

    def _forget(self) -> None:
        known = max(GONE_MAX, sum(self._lately))
        for digest in list(islice(self._offsets, max(len(self._offsets) - known, 0))):
            del self._offsets[digest]

    def covers(self, name: str, offset: int) -> bool:
        """Whether a file of this name was deleted after it was read so far."""
        known = self._offsets.get(_digest(name))
        return known is not None and offset <= known

    @property
    def kept(self) -> list[tuple[bytes, int]]:
        return list(self._offsets.items())


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


class Past:
    """What is known of files that are no partitions any more. One thread changes it; ``state`` is for any.

    ``retired``: files that are there, by name; those that retired last are the last. ``early``: files that were
    deleted before a checkpoint covered them, and how many bytes were read of each. ``state``: for a checkpoint, as
    of the last ``keep``.
    """

    def __init__(self, turns: int) -> None:
        """``turns``: see ``Gone``."""
        self.retired: dict[str, Retired] = {}
        self.early: dict[str, int] = {}
        self.state = b""
        self._turns = turns
        self._gone = Gone(turns=turns)
        self._is_old = False

    def restore(self, state: bytes, names: Collection[str]) -> dict[str, int]:
        """Go on from what a checkpoint kept (empty: nothing); ``names``: the files that are there.

        Returns those that were gone before that checkpoint covered them, as ``early``.

        Raises:
            ValueError: it is of a later version.
        """
        entries, self._gone, early = unpack(state, self._turns)
        self.retired = {name: entry for name, entry in entries.items() if name in names}
        for name in entries.keys() - names:
            self.note_gone(name, entries[name].offset)
        self._is_old = True
        return early

    def retire(self, name: str, entry: Retired) -> None:
        """A file is done with."""
        self.retired.pop(name, None)
        self.retired[name] = entry
        self._is_old = True

    def change(self, name: str, entry: Retired) -> None:
        """A retired file is another way now, and stays one."""
        self.retired[name] = entry
        self._is_old = True

    def delete(self, name: str) -> None:
        """A file is there no more; harmless where it was not retired."""
        entry = self.retired.pop(name, None)
        if entry is not None:
            self.note_gone(name, entry.offset)

    def note_gone(self, name: str, offset: int) -> None:
        """A file was deleted, of which every checkpoint covers so many bytes."""
        self._gone.note(name, offset)
        self._is_old = True

    def note_early(self, name: str, offset: int) -> None:
        """A file was deleted, of which so many bytes were read, before a checkpoint covered it."""
        self.early[name] = offset
        self._is_old = True

    def forget_early(self, name: str) -> bool:
        """It is covered by now, or there again; whether it was such a file."""
        known = self.early.pop(name, None) is not None
        self._is_old |= known
        return known

    def covers(self, name: str, offset: int) -> bool:
        """Whether a file of this name was deleted after it was read so far, as every checkpoint knows."""
        return self._gone.covers(name, offset)

    def turn(self) -> None:
        """A checkpoint was made."""
        self._gone.turn()

    def keep(self) -> None:
        """Have what changed in ``state``."""
        if self._is_old:
            self.state = pack(self.retired, self._gone, self.early)
            self._is_old = False


def pack(retired: Mapping[str, Retired], gone: Gone, early: Mapping[str, int]) -> bytes:
    """Retired files by name, those that are gone, and those that went before a checkpoint covered them, with the
    bytes that were read of each.
    """
    return bytes(msgpack.packb({"v": 1, "retired": retired, "gone": gone.kept, "early": early}))


def unpack(packed: bytes, turns: int) -> tuple[dict[str, Retired], Gone, dict[str, int]]:
    """The inverse of ``pack``; nothing is retired where a checkpoint keeps nothing. ``turns``: see ``Gone``.

    Raises:
        ValueError: it is of a later version.
    """
    if not packed:
        return {}, Gone(turns=turns), {}
    kept = msgpack.unpackb(packed)
    if kept["v"] != 1:
        raise ValueError(f"version {kept['v']} of retired files; only 1 is understood")
    retired = {
        name: Retired(offset, size, changed_ns, (length, checksum), aside)
        for name, (offset, size, changed_ns, (length, checksum), aside) in kept["retired"].items()
    }
    gone = Gone(((digest, offset) for digest, offset in kept["gone"]), turns)
    return retired, gone, dict(kept["early"])
