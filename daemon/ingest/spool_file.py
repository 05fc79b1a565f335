"""One file of a spool: what is known of it, and what may not happen to it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import crc32c

from ..errors import SourceError
from ..records.spool_format import CUT_BYTES, FileKind
from ..records.stream import Partition
from .retired import Retired
from .spool_content import Content, Inflated, Plain

FINGERPRINT_BYTES = 1024
"""How much of a file's beginning is compared."""


@dataclass(slots=True)
class LongLine:
    """What was read so far of a line that is too long."""

    beginning: bytes = b""
    length: int = 0
    checksum: int = 0

    def add(self, piece: bytes) -> None:
        self.beginning += piece[: CUT_BYTES - len(self.beginning)]
        self.length += len(piece)
        self.checksum = crc32c.crc32c(piece, self.checksum)


@dataclass(slots=True)
class SpoolFile:
    """What is known of one file.

    ``raw_read``: bytes of a compressed file that were decompressed; ``idle_size``: the size at which nothing
    whole was left to read; ``owed_to``: up to which size later names wait for it, and ``owed_until``: of one that
    is decompressed so far, up to which offset; ``in_preamble``: whether it is of MatrixMarket and its edges begin
    further on (None: not known); ``aside``: the rest of it was set aside; ``away``: it could not be opened.
    """

    name: str
    kind: FileKind
    partition: Partition
    offset: int = 0
    size: int = 0
    changed_ns: int = 0
    inode: tuple[int, int] | None = None
    fingerprint: tuple[int, int] = (0, 0)
    raw_read: int = 0
    idle_size: int = -1
    owed_to: int = 0
    owed_until: int = 0
    header: bytes | None = None
    in_preamble: bool | None = None
    inflating: Inflated | None = None
    long_line: LongLine | None = None
    aside: bool = False
    away: bool = False

    @property
    def read(self) -> int:
        """Bytes of the file that were read."""
        if self.kind.compression is not None:
            return self.raw_read
        return self.offset + (0 if self.long_line is None else self.long_line.length)

    @property
    def begun(self) -> bool:
        """Something of it was read, by us or by a process before us."""
        return self.offset > 0 or self.read > 0

    @property
    def unread(self) -> int:
        """Bytes to read: of the content, or of the compressed file (how many they come to is not known)."""
        if self.aside:
            return 0
        waiting = self.inflating is not None and not (self.inflating.drained and self.inflating.damage is None)
        return max(self.size - self.read, int(waiting))

    def owe(self) -> None:
        """Let later names wait for what there is now."""
        self.owed_to = self.size if self.unread else 0
        self.note_owed()

    def note_owed(self) -> None:
        """See how far the content goes for which later names wait, once all of it is decompressed."""
        if self.inflating is not None and 0 < self.owed_to <= self.raw_read:
            self.owed_to, self.owed_until = 0, self.offset + self.inflating.ready_bytes

    @property
    def is_owed(self) -> bool:
        """Something is left of what later names wait for."""
        return self.read < self.owed_to or self.offset < self.owed_until

    @property
    def whole(self) -> bool:
        """Nothing is left to read of it, or ever will be."""
        return self.aside or (self.unread == 0 and self.inflating is None and self.long_line is None)

    @property
    def entry(self) -> Retired:
        return Retired(self.offset, self.size, self.changed_ns, self.fingerprint, self.aside)


def shrank(name: str, size: int, read: int) -> SourceError:
    return SourceError(
        f"spool file {name} shrank to {size} bytes, but {read} were read already; files of a spool are "
        f"append-only",
        {"file": name, "size": size, "read": read},
    )


def replaced(name: str) -> SourceError:
    return SourceError(
        f"spool file {name} was replaced by another file; files of a spool are append-only", {"file": name}
    )


def check_fingerprint(name: str, fingerprint: tuple[int, int], handle: int) -> None:
    length, checksum = fingerprint
    if crc32c.crc32c(os.pread(handle, length, 0)) != checksum:
        raise SourceError(
            f"spool file {name}: its first {length} bytes changed after they were read; files of a spool are "
            f"append-only",
            {"file": name},
        )


def take_fingerprint(file: SpoolFile, content: Content) -> None:
    read = file.read if isinstance(content, Plain) else content.raw_read
    beginning = os.pread(content.handle, min(read, FINGERPRINT_BYTES), 0)
    file.fingerprint = (len(beginning), crc32c.crc32c(beginning))


def complete(file: SpoolFile) -> bool:
    """A compressed file was read to an end at which it can be complete."""
    content = file.inflating
    return content is not None and content.between_members and content.raw_read >= file.size


def stop_inflating(file: SpoolFile) -> None:
    if file.inflating is not None:
        file.raw_read = file.inflating.raw_read
        file.inflating.close()
        file.inflating = None


def skip(file: SpoolFile, content: Inflated) -> None:
    """Go to where reading stopped before.

    Raises:
        SourceError: the file has less than that.
    """
    left = file.offset
    while left > 0:
        piece = len(content.peek(min(left, 1 << 20)))
        if piece == 0:
            if content.damage is not None:  # it stops here again, as it did before
                return
            raise SourceError(
                f"spool file {file.name} holds {file.offset - left} bytes, but {file.offset} were read already; "
                f"files of a spool are append-only",
                {"file": file.name},
            )
        content.advance(piece)
        left -= piece
