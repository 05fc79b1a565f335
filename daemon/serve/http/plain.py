"""Requests as almost every client writes them, read at once: h11 takes longer for one than its answer does.

Only what h11 takes the same way is taken here: a whole request that has come, GET, HEAD or POST of a path by
HTTP/1.1, with each header once and on one line, and a body (of a POST) whose length is given. Whatever is anything
else, be it right or wrong, is h11's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

from .routes import Head

HEAD_BYTES_MAX = 1 << 12
"""Longer heads are h11's."""
BODY_BYTES_MAX = 1 << 14
"""And longer bodies."""
_HEAD = re.compile(
    rb"(GET|HEAD|POST) (/[!-~]*) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n", re.ASCII
)
_LENGTH = re.compile("[0-9]{1,9}", re.ASCII)
_OTHERWISE = frozenset({"transfer-encoding", "expect", "upgrade", "http2-settings", "te", "trailer"})
"""Headers by which more happens than an answer."""


def read_request(data: bytearray) -> tuple[Head, bytes, int] | None:
    """The request at the beginning of ``data``: its head, its body, and how many bytes it has.

    None: it is not plain, or not all of it is there.
    """
    found = _HEAD.match(data, 0, HEAD_BYTES_MAX)
    if found is None:
        return None
    lines = found[3].decode("ascii").split("\r\n")
    headers = {}
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    repeated = len(headers) != len(lines) - 1
    if repeated or "host" not in headers or not _OTHERWISE.isdisjoint(headers):
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    verb, length, start = found[1].decode("ascii"), 0, found.end()
    if verb == "POST":
        given = headers.get("content-length", "")
        if not _LENGTH.fullmatch(given) or (length := int(given)) > min(BODY_BYTES_MAX, len(data) - start):
            return None
    elif "content-length" in headers:
        return None
    path, _, query = found[2].decode("ascii").partition("?")
    return Head(verb, unquote(path), query, headers), bytes(data[start : start + length]), start + length


def write_answer(
    status: int, headers: Sequence[tuple[str, str]], media_type: str, body: bytes, *, only_head: bool = False
) -> bytes:
    """An answer of known length; ``only_head``: as a HEAD is answered."""
    head = b"%bContent-Length: %d\r\n\r\n" % (_start(status, media_type, tuple(headers)), len(body))
    return head if only_head else head + body


@lru_cache(maxsize=64)
def _start(status: int, media_type: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} ",
        *(f"{name}: {value}" for name, value in (*headers, ("Content-Type", media_type))),
    ]
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")
