"""Preparing a batch: one kernel puts it in order and looks it up, in pieces that the threads of a crew draw; or
two batches of two arrays, side by side.

What it finds depends on the batch and the array alone, neither on the pieces nor on the threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from ..drawing import drawn
from ..edges import ABSENT, DELETED, HALF, INSERTED, OVERWRITTEN, Int, Keys, Offsets, Ops
from ..intrinsics import inner, uncounted_inner
from ..team import Crew, at_most, share
from .arrays import Slots, Updates
from .search import locate, probe, probe_many
from .sorting import (
    Arrivals,
    Packing,
    Positions,
    SortScratch,
    choose_splitters,
    compact,
    compact_ordered,
    count_distinct,
    count_last,
    count_ranges,
    deal,
    pack_words,
    packing_of,
    search_tree,
    sort_range,
    survey,
    varying_bits,
)

# Ranges have numbers of eight bits; and more of them would outgrow the nearest cache.
PIECES_MAX = 128
# Of a part of a batch in order: where it begins and ends, and behind these how many of its updates are INSERTED,
# ..., ABSENT. Parts lie side by side.
BEGIN, END, TOTALS, PART_FIELDS = 0, 1, 2, 6
# Chunks of a batch as it came, each of which counts its updates by range.
_CHUNKS_MAX = 64

Parts = Offsets


def pieces_of(n: int, least: int) -> int:
    """Into how many pieces n updates are divided, of at least so many each: a power of two."""
    return min(1 << max(0, (n // least).bit_length() - 1), PIECES_MAX)


class Question(NamedTuple):
    """A batch of one update at least, to be ordered into ``updates`` and looked up in an array of ``n_rows`` rows,
    in so many pieces (a power of two up to ``PIECES_MAX``)."""

    slots: Slots
    batch: Arrivals
    n_rows: Int
    n_pieces: Int
    scratch: SortScratch
    updates: Updates


# What is found: the largest row, and how many updates are inserted, overwritten, deleted, absent.
Found = tuple[Int, Int, Int, Int, Int]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def look_up(question: Question, crew: Crew) -> tuple[Parts, Found]:
    """Order a batch and find where its updates fall; the array is only read.

    Returns its parts (int64[pieces, ``PART_FIELDS``]), and what was found. Where the largest row is none of those
    that there are, nothing else was done.
    """
    parts = np.zeros((question.n_pieces, PART_FIELDS), np.int64)
    return parts, look_up_one(question, parts, crew)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def look_up_both(one: Question, other: Question, crew: Crew, each: Crew) -> tuple[Parts, Found, Parts, Found]:
    """``look_up`` of two, side by side: ``crew`` shares the two, and ``each`` what is to be done for either."""
    parts = np.zeros((one.n_pieces, PART_FIELDS), np.int64)
    other_parts = np.zeros((other.n_pieces, PART_FIELDS), np.int64)
    found, other_found = look_up_either(one, other, parts, other_parts, crew, each)
    return parts, found, other_parts, other_found


@inner
def look_up_either(
    one: Question, other: Question, parts: Parts, other_parts: Parts, crew: Crew, each: Crew
) -> tuple[Found, Found]:
    """``look_up_both`` into parts that are there, all zero."""
    found = np.zeros((2, 5), np.int64)
    share(
        at_most(crew, np.int64(2)),
        _look_up_either,
        (one, other, parts, other_parts, each, np.zeros(1, np.int64), found),
    )
    return _found(found[0]), _found(found[1])


@inner
def _found(row: Offsets) -> Found:
    return row[0], row[1], row[2], row[3], row[4]


@inner
def _look_up_either(
    thread: Int,
    one: Question,
    other: Question,
    parts: Parts,
    other_parts: Parts,
    crew: Crew,
    cursor: Offsets,
    found: Offsets,
) -> None:
    for which in drawn(cursor, 2):
        if which == 0:
            row = look_up_one(one, parts, crew)
        else:
            row = look_up_one(other, other_parts, crew)
        for k in range(5):
            found[which, k] = row[k]


@inner
def look_up_one(question: Question, parts: Parts, crew: Crew) -> Found:
    """``look_up`` into parts that are there, all zero."""
    slots, batch, n_rows, n_pieces = question.slots, question.batch, question.n_rows, question.n_pieces
    scratch, updates = question.scratch, question.updates
    keys = batch.keys
    n = np.int64(keys.size)
    n_chunks = min(np.int64(n_pieces), np.int64(_CHUNKS_MAX))
    crew = at_most(crew, n_pieces)
    cursor = np.zeros(1, np.int64)
    found = np.empty((n_chunks, 3), np.uint64)
    share(crew, _survey_chunks, (keys, cursor, found))
    differing, largest, ordered = np.uint64(0), np.uint64(0), np.uint64(1)
    for chunk in range(n_chunks):
        differing |= found[chunk, 0]
        largest = max(largest, found[chunk, 1])
        ordered &= found[chunk, 2]
    row = np.int64(largest >> HALF)
    if row >= n_rows:
        return row, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    packing = packing_of(keys[0], differing, n)
    bounds = np.zeros(n_pieces + 1, np.int64)
    flipped = np.zeros(n_pieces, np.bool_)
    if ordered:
        for piece in range(n_pieces):
            bounds[piece + 1] = n * (piece + 1) // n_pieces
    elif n_pieces == 1:
        bounds[1] = n
        pack_words(keys, packing, scratch)
    else:
        splitters = np.empty(n_pieces - 1, np.uint64)
        choose_splitters(keys, packing, scratch, splitters)
        deal_out(question, packing, splitters, bounds, crew)
    cursor[0] = 0
    if n_pieces == 1:
        if not ordered:
            flipped[0] = sort_range(packing, scratch, np.int64(0), n, packing.high_bits + packing.low_bits)
    else:
        share(crew, _sort_ranges, (batch, ordered, packing, scratch, bounds, cursor, flipped, parts))
        begin = np.int64(0)
        for piece in range(n_pieces):
            parts[piece, BEGIN] = begin
            begin += parts[piece, END]
        cursor[0] = 0
    share(crew, _look_up_parts, (slots, batch, ordered, packing, scratch, bounds, flipped, cursor, updates, parts))
    inserted, overwritten, deleted, absent = totals_of(parts)
    return row, inserted, overwritten, deleted, absent


@uncounted_inner
def totals_of(parts: Parts) -> tuple[Int, Int, Int, Int]:
    """How many updates of all parts are INSERTED, OVERWRITTEN, DELETED, ABSENT."""
    inserted, overwritten, deleted, absent = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for part in range(parts.shape[0]):
        inserted += parts[part, TOTALS + INSERTED]
        overwritten += parts[part, TOTALS + OVERWRITTEN]
        deleted += parts[part, TOTALS + DELETED]
        absent += parts[part, TOTALS + ABSENT]
    return inserted, overwritten, deleted, absent


@inner
def deal_out(question: Question, packing: Packing, ascending: Keys, bounds: Offsets, crew: Crew) -> None:
    """Pack a batch into the words of its scratch, range by range: between ``bounds`` (int64[ranges + 1], all zero)
    those from one of these words on and below the next."""
    keys, scratch = question.batch.keys, question.scratch
    n_pieces = np.int64(question.n_pieces)
    n_chunks = min(n_pieces, np.int64(_CHUNKS_MAX))
    splitters = np.empty(n_pieces - 1, np.uint64)
    search_tree(ascending, splitters)
    counts = np.zeros((n_chunks, n_pieces), np.uint32)
    # The places of updates are not known yet: there is room for the numbers of their ranges.
    ranges = question.updates.place
    cursor = np.zeros(1, np.int64)
    share(crew, _count_chunks, (keys, packing, splitters, ranges, cursor, counts))
    before = np.uint32(0)
    for piece in range(n_pieces):
        for chunk in range(n_chunks):
            count = counts[chunk, piece]
            counts[chunk, piece] = before
            before += count
        bounds[piece + 1] = before
    cursor[0] = 0
    share(crew, _deal_chunks, (keys, packing, ranges, cursor, counts, scratch))


@uncounted_inner
def _survey_chunks(thread: Int, keys: Keys, cursor: Offsets, found: Keys) -> None:
    n, n_chunks = np.int64(keys.size), np.int64(found.shape[0])
    for chunk in drawn(cursor, n_chunks):
        differing, largest, ordered = survey(keys, n * chunk // n_chunks, n * (chunk + 1) // n_chunks)
        found[chunk, 0], found[chunk, 1], found[chunk, 2] = differing, largest, np.uint64(ordered)


@uncounted_inner
def _count_chunks(
    thread: Int, keys: Keys, packing: Packing, splitters: Keys, ranges: Ops, cursor: Offsets, counts: Positions
) -> None:
    n, n_chunks = np.int64(keys.size), np.int64(counts.shape[0])
    for chunk in drawn(cursor, n_chunks):
        begin, end = n * chunk // n_chunks, n * (chunk + 1) // n_chunks
        count_ranges(keys, begin, end, packing, splitters, ranges, counts[chunk])


@uncounted_inner
def _deal_chunks(
    thread: Int,
    keys: Keys,
    packing: Packing,
    ranges: Ops,
    cursor: Offsets,
    cursors: Positions,
    scratch: SortScratch,
) -> None:
    n, n_chunks = np.int64(keys.size), np.int64(cursors.shape[0])
    for chunk in drawn(cursor, n_chunks):
        begin, end = n * chunk // n_chunks, n * (chunk + 1) // n_chunks
        deal(keys, begin, end, packing, ranges, cursors[chunk], scratch)


@inner
def _sort_ranges(
    thread: Int,
    batch: Arrivals,
    ordered: Int,
    packing: Packing,
    scratch: SortScratch,
    bounds: Offsets,
    cursor: Offsets,
    flipped: npt.NDArray[np.bool_],
    parts: Parts,
) -> None:
    """Sort each range, and leave in END of its part how many keys it has."""
    for piece in drawn(cursor, parts.shape[0]):
        begin, end = bounds[piece], bounds[piece + 1]
        if ordered:
            parts[piece, END] = count_last(batch.keys, begin, end)
        else:
            n_bits = varying_bits(packing, scratch, begin, end)
            flipped[piece] = sort_range(packing, scratch, begin, end, n_bits)
            parts[piece, END] = count_distinct(packing, scratch, flipped[piece], begin, end)


@inner
def _look_up_parts(
    thread: Int,
    slots: Slots,
    batch: Arrivals,
    ordered: Int,
    packing: Packing,
    scratch: SortScratch,
    bounds: Offsets,
    flipped: npt.NDArray[np.bool_],
    cursor: Offsets,
    updates: Updates,
    parts: Parts,
) -> None:
    """Write the updates of each part from its BEGIN on, and where they fall."""
    for piece in drawn(cursor, parts.shape[0]):
        first = parts[piece, BEGIN]
        begin, end = bounds[piece], bounds[piece + 1]
        if ordered:
            last = compact_ordered(batch, begin, end, updates, first)
        else:
            last = compact(packing, scratch, flipped[piece], begin, end, batch, updates, first)
        parts[piece, END] = last
        locate(slots, updates, first, last)
        if batch.keys.size >= slots.counts.size:
            inserted, overwritten, deleted, absent = probe_many(slots, updates, first, last)
        else:
            inserted, overwritten, deleted, absent = probe(slots, updates, first, last)
        parts[piece, TOTALS + INSERTED] = inserted
        parts[piece, TOTALS + OVERWRITTEN] = overwritten
        parts[piece, TOTALS + DELETED] = deleted
        parts[piece, TOTALS + ABSENT] = absent
