"""Words of few bits, by which the keys of a batch are put in order."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtide.gpma.host.sorting import first_word_from, key_of, packing_of, search_tree

KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@nb.njit
def packed(keys: Any, bounds: Any) -> Any:
    """For each of some keys below 2**63 the key of its word again; and for each bound and key whether its word is
    from that on which the bound tells."""
    differing = np.uint64(0)
    for key in keys:
        differing |= key ^ keys[0]
    packing = packing_of(keys[0], differing, keys.size)
    low_bits = np.uint64(packing.low_bits)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(packing.high_bits)) - np.uint64(1)
    again, above = np.empty_like(keys), np.empty((bounds.size, keys.size), np.bool_)
    for k in range(keys.size):
        word = (((keys[k] >> np.uint64(32)) & high_mask) << low_bits) | (keys[k] & low_mask)
        again[k] = key_of(word, packing)
        for b in range(bounds.size):
            above[b, k] = word >= first_word_from(bounds[b], packing)
    return again, above


@given(
    near=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)),
    offsets=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=30),
    far=st.lists(KEYS, max_size=4),
    bounds=st.lists(st.tuples(st.integers(-400, 400), st.integers(-400, 400)), max_size=20),
)
@settings(deadline=None)
def test_words_are_in_the_order_of_their_keys_and_of_any_key_up_to_the_last(
    near: tuple[int, int],
    offsets: list[tuple[int, int]],
    far: list[tuple[int, int]],
    bounds: list[tuple[int, int]],
) -> None:
    pairs = [(near[0] + a, (near[1] + b) % 2**32) for a, b in offsets]
    keys = np.array([src << 32 | dst for src, dst in pairs], np.uint64)
    asked = [max(0, near[0] + a) << 32 | (near[1] + b) % 2**32 for a, b in bounds]
    asked += [src << 32 | dst for src, dst in far] + [int(key) for key in keys]
    below = np.array([key for key in asked if key <= int(keys.max())], np.uint64)
    again, above = packed(keys, below)
    assert again.tolist() == keys.tolist()
    assert (above == (keys[None, :] >= below[:, None])).all()


@nb.njit
def tree_of(ascending: Any) -> Any:
    tree = np.empty_like(ascending)
    search_tree(ascending, tree)
    return tree


@given(bits=st.integers(0, 6), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_a_search_tree_finds_the_range_of_a_word(bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ascending = np.sort(rng.integers(0, 200, 2**bits - 1).astype(np.uint64))
    tree = tree_of(ascending)
    for word in rng.integers(0, 200, 20).astype(np.uint64):
        at = 0
        while at < tree.size:
            at = 2 * at + 1 + int(tree[at] <= word)
        assert at - tree.size == np.searchsorted(ascending, word, side="right")
