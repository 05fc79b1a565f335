"""Pieces of a batch in order that share no leaf: a thread looks one up and writes it, waiting for nobody between.

Cut between leaves, a piece is read and written by one thread, in whose cache its leaves are by then. What pieces
have in common is left to one thread afterwards: the rows of their first and last updates, which may go on in the
pieces beside them, and windows that must be redistributed. What ends up in the slots depends neither on the pieces
nor on the threads.
"""

from __future__ import annotations

import numpy as np

from ..drawing import drawn
from ..edges import ABSENT, LOW, Int, Keys, Offsets, Vertices
from ..intrinsics import inner, uncounted_inner
from ..sorted_keys import first_at
from ..team import Crew, at_most, share
from .arrays import Pending, RowIndex, Slots, Updates
from .committing import (
    GAP,
    GAP_END,
    INNER_END,
    LAST_GAP,
    LAST_GAP_END,
    LEAVES,
    LEAVES_END,
    NET,
    ROWS,
    ROWS_END,
    WAITING_END,
    other_leaf,
    other_row,
)
from .merge import merge_leaves, note_rows
from .preparing import BEGIN, END, TOTALS, Parts, Question, deal_out
from .search import Lanes, ask_for_leaf, ask_for_row, find_leaf, locate_in, probe
from .sorting import (
    Arrivals,
    Packing,
    SortScratch,
    choose_splitters,
    compact,
    compact_ordered,
    first_word_from,
    key_of,
    pack_words,
    packing_of,
    sort_range,
    survey,
    varying_bits,
)
from .stretch import net_change

# So many updates are looked up and written at a time: their leaves stay in the nearest caches in between.
AT_A_TIME = 128
# A literal would have ``merge_leaves`` compiled once more.
_NOBODY_WAITS = np.bool_(False)


@uncounted_inner
def next_leaf(slots: Slots, keys: Keys, begin: Int, end: Int) -> Int:
    """The first of ascending keys from ``begin`` on that does not belong into the leaf of the one before; ``end``:
    none."""
    if begin == 0 or begin >= end:
        return begin
    heads = slots.heads
    after = find_leaf(slots, keys[np.uintp(begin - 1)]) + 1
    if after == slots.stretch_begin:
        after = np.int64(slots.stretch_end)
    if after >= heads.size:
        return end
    return first_at(keys, begin, end, heads[np.uintp(after)])


@uncounted_inner
def cut_between_leaves(slots: Slots, packing: Packing, updates: Updates, lanes: Lanes, splitters: Keys) -> None:
    """Have each of these ascending words (``sorting.choose_splitters``) be the first of its leaf. The first keys
    and leaves of the updates are overwritten."""
    n = np.int64(splitters.size)
    for x in range(n):
        updates.keys[np.uintp(x)] = key_of(splitters[np.uintp(x)], packing)
    locate_in(slots, updates, np.int64(0), n, lanes)
    for x in range(n):
        head = slots.heads[np.uintp(updates.leaf[np.uintp(x)])]
        splitters[np.uintp(x)] = first_word_from(head, packing)


@inner
def order_one(question: Question, parts: Parts, lanes: Lanes, crew: Crew) -> None:
    """Put a batch in order, in parts that share no leaf; its updates lie where they are told in ``parts``, and
    between them repetitions of a key that are no updates (ABSENT)."""
    slots, batch, n_pieces = question.slots, question.batch, question.n_pieces
    scratch, updates = question.scratch, question.updates
    keys = batch.keys
    n = np.int64(keys.size)
    differing, _, ordered = survey(keys, np.int64(0), n)
    packing = packing_of(keys[0], differing, n)
    bounds = np.zeros(n_pieces + 1, np.int64)
    crew = at_most(crew, n_pieces)
    if ordered:
        for piece in range(1, n_pieces):
            bounds[piece] = max(next_leaf(slots, keys, n * piece // n_pieces, n), bounds[piece - 1])
        bounds[n_pieces] = n
    elif n_pieces == 1:
        bounds[1] = n
        pack_words(keys, packing, scratch)
    else:
        splitters = np.empty(n_pieces - 1, np.uint64)
        choose_splitters(keys, packing, scratch, splitters)
        cut_between_leaves(slots, packing, updates, lanes, splitters)
        deal_out(question, packing, splitters, bounds, crew)
    cursor = np.zeros(1, np.int64)
    share(crew, _order_parts, (batch, np.int64(ordered), packing, scratch, updates, bounds, cursor, parts))


@inner
def _order_parts(
    thread: Int,
    batch: Arrivals,
    ordered: Int,
    packing: Packing,
    scratch: SortScratch,
    updates: Updates,
    bounds: Offsets,
    cursor: Offsets,
    parts: Parts,
) -> None:
    for piece in drawn(cursor, parts.shape[0]):
        begin, end = bounds[piece], bounds[piece + 1]
        if ordered:
            last = compact_ordered(batch, begin, end, updates, begin)
        else:
            n_bits = varying_bits(packing, scratch, begin, end)
            flipped = sort_range(packing, scratch, begin, end, n_bits)
            last = compact(packing, scratch, flipped, begin, end, batch, updates, begin)
        parts[piece, BEGIN], parts[piece, END] = begin, last
        for i in range(last, end):
            updates.keys[i], updates.leaf[i] = updates.keys[last - 1], np.uint32(0)
            updates.status[i] = np.uint8(ABSENT)


@uncounted_inner
def apply_piece(
    slots: Slots,
    rows: RowIndex,
    updates: Updates,
    pending: Pending,
    bounds: tuple[Int, Int],
    lanes: Lanes,
    parts: Parts,
    lists: Offsets,
    part: Int,
) -> None:
    """Look up and write updates ``bounds[0]`` to ``bounds[1]``, whose leaves have no others; tell of it in
    ``parts`` and ``lists``."""
    first, last = bounds
    keys, leaf = updates.keys, updates.leaf
    parts[part, BEGIN], parts[part, END] = first, last
    lists[part, LEAVES] = first
    for i in range(first, last):
        ask_for_row(rows, keys[np.uintp(i)])
    locate_in(slots, updates, first, last, lanes)
    n_pending, waiting = first, first
    begin = first
    while begin < last:
        end = last
        if last - begin > AT_A_TIME:
            end = other_leaf(leaf, begin + AT_A_TIME, last)
        for i in range(begin, end):
            ask_for_leaf(slots, np.int64(leaf[np.uintp(i)]))
        totals = probe(slots, updates, begin, end)
        for state in range(4):
            parts[part, TOTALS + state] += totals[state]
        n_pending, waiting = merge_leaves(
            slots, updates, begin, end, end, pending, n_pending, waiting, _NOBODY_WAITS
        )
        begin = end
    lists[part, LEAVES_END], lists[part, WAITING_END] = n_pending, waiting
    if slots.stretch_begin < slots.stretch_end:
        lists[part, NET] = net_change(updates, first, last, slots.stretch_begin)
    rows_begin, rows_end = last, last
    if first < last:
        rows_begin = other_row(keys, first + 1, last)
        last_row = keys[np.uintp(last - 1)] & ~LOW
        rows_end = first_at(keys, rows_begin, last, last_row)
    lists[part, ROWS], lists[part, INNER_END] = rows_begin, rows_end
    lists[part, ROWS_END] = note_rows(updates, rows_begin, rows_end, rows, pending.rows)


@uncounted_inner
def note_between(updates: Updates, n: Int, rows: RowIndex, shortened: Vertices, lists: Offsets) -> None:
    """Note the rows of n updates that pieces left out, as ``note_rows`` does."""
    done = np.int64(0)
    for part in range(lists.shape[0]):
        begin, inner_end = lists[part, ROWS], lists[part, INNER_END]
        if begin < inner_end:
            lists[part, GAP] = done
            lists[part, GAP_END] = note_rows(updates, done, begin, rows, shortened)
            done = inner_end
    lists[0, LAST_GAP] = done
    lists[0, LAST_GAP_END] = note_rows(updates, done, n, rows, shortened)
