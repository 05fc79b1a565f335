"""The keys of records where they name rows of edges: 128 bits of each, as SipHash-2-4 with a secret gives them.

What is kept of a key is these bits, so two keys must never have the same. Whoever does not know the secret,
which a daemon draws when it begins, cannot choose keys that do (Aumasson, Bernstein: SipHash: a fast short-input
PRF, INDOCRYPT 2012, and its variant with 128 bits); that n others do has a probability below n^2 / 2^128. A key
is of its topic: each has a secret of its own, made of the daemon's and of its name. The lowest bit is always
set, so that the first word is never 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numba as nb
import numpy as np
import numpy.typing as npt

from ...gpma.edges import Int
from ...gpma.intrinsics import address_of, inner, load_byte, load_word

RowKeys = npt.NDArray[np.uint64]
"""uint64[n, 2]: n keys."""

Secret = npt.NDArray[np.uint64]
"""uint64[2]."""

_KEYED = 0x736F_6D65_7073_6575, 0x646F_7261_6E64_6F6D, 0x6C79_6765_6E65_7261, 0x7465_6462_7974_6573
_V0, _V1, _V2, _V3 = (np.uint64(word) for word in _KEYED)
_ONE, _EIGHT = np.uint64(1), np.uint64(8)
_BITS = np.uint64(64)
_END_1, _END_2 = np.uint64(0xEE), np.uint64(0xDD)


def new_secret() -> Secret:
    """One that nobody knows."""
    return np.array([secrets.randbits(64), secrets.randbits(64)], np.uint64)


class KeyHash:
    """The keys of the records of every topic, under one secret."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._of_topic: dict[str, Secret] = {}

    def of(self, topic: str, keys: Sequence[bytes]) -> RowKeys:
        """Those of one topic, in order."""
        if topic not in self._of_topic:
            self._of_topic[topic] = sip_hash([topic.encode()], self._secret)[0]
        found = sip_hash(keys, self._of_topic[topic])
        found[:, 0] |= _ONE
        return found


def sip_hash(texts: Sequence[bytes], secret: Secret) -> RowKeys:
    """SipHash-2-4 of each, 128 bits."""
    data = np.frombuffer(b"".join((*texts, b"\0")), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    found = np.empty((len(texts), 2), np.uint64)
    _sip_hash(data, ends, secret[0], secret[1], found)
    return found


@inner
def _turned(word: np.uint64, n: np.uint64) -> np.uint64:
    return np.uint64((word << n) | (word >> (_BITS - n)))


@inner
def _round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a += b
    c += d
    b = _turned(b, np.uint64(13)) ^ a
    d = _turned(d, np.uint64(16)) ^ c
    a = _turned(a, np.uint64(32))
    c += b
    a += d
    b = _turned(b, np.uint64(17)) ^ c
    d = _turned(d, np.uint64(21)) ^ a
    return a, b, _turned(c, np.uint64(32)), d


@inner
def _last_word(start: np.uint64, length: Int) -> np.uint64:
    """The bytes behind the last whole word, and the length in the highest byte."""
    word = np.uint64(length) << np.uint64(56)
    rest = length & 7
    for i in range(rest):
        word |= load_byte(start + np.uint64(length - rest + i)) << np.uint64(8 * i)
    return word


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _sip_hash(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], key_0: np.uint64, key_1: np.uint64, found: RowKeys
) -> None:
    first = address_of(data)
    begin = np.int64(0)
    for row in range(ends.size):
        start, length = first + np.uint64(begin), ends[row] - begin
        begin = ends[row]
        a, b, c, d = key_0 ^ _V0, key_1 ^ _V1 ^ _END_1, key_0 ^ _V2, key_1 ^ _V3
        n_words = length >> 3
        for i in range(n_words + 1):
            word = load_word(start + _EIGHT * np.uint64(i)) if i < n_words else _last_word(start, length)
            d ^= word
            for _ in range(2):
                a, b, c, d = _round(a, b, c, d)
            a ^= word
        c ^= _END_1
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        found[row, 0] = a ^ b ^ c ^ d
        b ^= _END_2
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        found[row, 1] = a ^ b ^ c ^ d


def warm_up() -> None:
    """Compile the kernel, or load it from the cache."""
    sip_hash([b"warm"], new_secret())
