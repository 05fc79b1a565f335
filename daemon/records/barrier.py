"""Barriers: records by which a producer orders what it writes to all partitions of a topic.

The same id stands in every partition. A reader that meets it in one partition reads nothing behind it there before
it has met it in all others. ``docs/protocol.md`` says what holds when it never comes.
"""

from __future__ import annotations

from .encodings import BARRIER

ID_BYTES_MAX = 128

HEADERS: tuple[tuple[str, bytes], ...] = (("content-type", BARRIER.encode()),)
"""The headers of a barrier's records."""


def barrier_value(id: str) -> bytes:
    """The value of a barrier's records, one of which goes into every partition, with ``HEADERS``.

    Raises:
        ValueError: the id has not 1 to 128 bytes of UTF-8.
    """
    value = id.encode()
    _check(value)
    return value


def barrier_id(value: bytes | None) -> str:
    """The id that the value of a barrier's record names.

    Raises:
        ValueError: it is no UTF-8 of 1 to 128 bytes.
    """
    _check(value or b"")
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the id of a barrier must be UTF-8; byte {error.start} is not") from None


def _check(value: bytes) -> None:
    if not 1 <= len(value) <= ID_BYTES_MAX:
        raise ValueError(f"the id of a barrier must have 1 to {ID_BYTES_MAX} bytes, not {len(value)}")
