"""The content of a spool file from some byte on, compressed or not, in bounded memory."""

from __future__ import annotations

import lzma
import os
import zlib
from typing import Any

import zstandard

PIECE_BYTES = {"gz": 16 << 10, "xz": 1 << 10, "zst": 512}
"""Compressed bytes that are looked at together: whatever they hold, they come to 16 MiB or so at most."""

_XZ_MEMORY_BYTES = 256 << 20  # what xz -9 writes needs 65 MiB


class Plain:
    """A file as it is."""

    damage: str | None = None

    def __init__(self, handle: int, offset: int) -> None:
        self.handle = handle
        self.offset = offset

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes from here; fewer when no more are there yet."""
        return self.read(0, count)

    def read(self, begin: int, count: int) -> bytes:
        """The same from so many bytes further on."""
        return os.pread(self.handle, count, self.offset + begin)

    def advance(self, count: int) -> None:
        self.offset += count

    def close(self) -> None:
        os.close(self.handle)


class Inflated:
    """A compressed file, decompressed bit by bit; a file that is still being copied in simply waits.

    ``raw_read``: bytes of the file that were decompressed; ``damage``: why nothing more can be, once that is so.
    """

    def __init__(self, handle: int, compression: str) -> None:
        self.handle = handle
        self.compression = compression
        self.raw_read = 0
        self.damage: str | None = None
        self._ready = bytearray()
        self._decompressor: Any = None

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes from here; fewer when no more are there yet, or can be read."""
        while len(self._ready) < count and self.damage is None:
            piece = os.pread(self.handle, PIECE_BYTES[self.compression], self.raw_read)
            if not piece:
                break
            self.raw_read += len(piece)
            self._inflate(piece)
        return bytes(memoryview(self._ready)[:count])

    def advance(self, count: int) -> None:
        del self._ready[:count]

    def close(self) -> None:
        os.close(self.handle)

    @property
    def between_members(self) -> bool:
        """Everything read so far forms whole gzip members, xz streams or zstd frames."""
        return self._decompressor is None and self.damage is None

    @property
    def ready_bytes(self) -> int:
        """How much is decompressed from here on."""
        return len(self._ready)

    @property
    def drained(self) -> bool:
        return not self._ready

    def _inflate(self, piece: bytes) -> None:
        while piece:
            if self._decompressor is None:
                if not (piece := piece.lstrip(b"\0")):  # padding between members
                    return
                self._decompressor = _decompressor(self.compression)
            try:
                self._ready += self._decompressor.decompress(piece)
            except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                self.damage = f"the compressed data is damaged near byte {self.raw_read} of the file: {error}"
                return
            if not self._decompressor.eof:
                return
            piece = self._decompressor.unused_data
            self._decompressor = None


Content = Plain | Inflated


def _decompressor(compression: str) -> Any:
    if compression == "gz":
        return zlib.decompressobj(wbits=31)
    if compression == "xz":
        return lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
    return zstandard.ZstdDecompressor().decompressobj()
