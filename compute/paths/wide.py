"""A wide level of a push where all edges offer alike, read by all threads.

Who is on the level is read in pieces drawn from a cursor. That writes no words: edges that improve their heads as
things stand are kept, piece by piece. One thread then takes them in the order of the pieces, where they still do.
So words, queue and log are those of a push by one thread, whoever read what. The edges that are kept are few, and
their heads are asked for before their turn.

Templates for ``templates.specialise``, with the conventions of ``mend.py``; the room is that of ``loss.py``, which
has no other use for it by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpma.drawing import drawn_by
from ...gpma.edges import HALF, LOW
from ...gpma.intrinsics import prefetch
from ...gpma.rows import runs
from ...gpma.splice import spliced
from ...gpma.team import at_most, share
from .loss import CHUNKS_END, FOUND_END, GATHERED, LINE, NEXT_PIECE, READ
from .mend import AHEAD, DISORDER, PARENT
from .templates import template

# What ``specialise`` puts in place.
improves: Any = None
write: Any = None
ask_for_first_rows: Any = None
ask_for_rows: Any = None
piece_of: Any = None
edges_read: Any = None
publish_chunk: Any = None
read_level: Any = None
take_edges: Any = None


@template
@spliced
def read_pieces(t, word, out, loss, n, piece, bits):  # type: ignore[no-untyped-def]
    """Keep the edges of ``adopted[:n]`` whose heads have less than ``bits``."""
    keys, degrees = out.keys, out.degrees
    level, kept, cursor, gathered = loss.adopted, loss.offers, loss.counters, loss.own[t].reshape(-1)
    read = np.int64(0)
    for begin in drawn_by(cursor, n, piece):
        end = min(begin + piece, n)
        size = np.int64(0)
        ask_for_first_rows(word, out, level, begin, end)
        for k in range(begin, end):
            ask_for_rows(word, out, level, k, end)
            u = np.uint64(level[k])
            read += np.int64(degrees[u])
            for slot, stop in runs(out, u):
                for i in range(slot, stop):
                    v = keys[i] & LOW
                    if improves(bits, word[v]):
                        gathered[size] = (u << HALF) | v
                        size += 1
                        if size == GATHERED:
                            publish_chunk(loss, kept, gathered, size, begin // piece, np.int64(0))
                            size = np.int64(0)
        publish_chunk(loss, kept, gathered, size, begin // piece, np.int64(0))
    loss.counters[READ + LINE * t] += read


@template
def take_kept(word, log, role, loss, n_pieces, bits, queue, tail):  # type: ignore[no-untyped-def]
    """Take the kept edges that improve still, in the order of their pieces: the queue's new end."""
    chunks, kept = loss.chunks, loss.offers
    for piece in range(n_pieces):
        chunks[piece, 3] = -1
    # The chunks of a piece were published in their order: a chain of them, from the last to the first.
    for chunk in range(loss.counters[CHUNKS_END] - 1, -1, -1):
        piece = chunks[chunk, 0]
        chunks[chunk, 0] = chunks[piece, 3]
        chunks[piece, 3] = chunk
    for piece in range(n_pieces):
        chunk = chunks[piece, 3]
        while chunk >= 0:
            begin, end = chunks[chunk, 1], chunks[chunk, 1] + chunks[chunk, 2]
            for k in range(begin, end):
                ahead = np.int64(kept[min(k + AHEAD, end - 1)] & LOW)
                prefetch(word, ahead)
                prefetch(log.listed, ahead)
                v = kept[k] & LOW
                if improves(bits, word[v]):
                    if tail == queue.size:
                        raise RuntimeError(DISORDER)
                    u = kept[k] >> HALF
                    write(word, log, v, (bits << HALF) | u)
                    role[u] = PARENT
                    queue[tail] = v
                    tail += 1
            chunk = chunks[chunk, 0]
    return tail


@template
def push_wide(word, log, role, out, loss, n, bits, queue, tail, crew):  # type: ignore[no-untyped-def]
    """Push on ``adopted[:n]``, which offer ``bits``: (the queue's new end, edges read).

    -1 where there is no room for all edges that improve; nothing is written then.
    """
    cursor = loss.counters
    before = edges_read(cursor)
    cursor[NEXT_PIECE] = 0
    cursor[FOUND_END] = 0
    cursor[CHUNKS_END] = 0
    piece = piece_of(n)
    n_pieces = (n + piece - 1) // piece
    share(at_most(crew, n_pieces), read_level, (word, out, loss, n, piece, bits))
    read = edges_read(cursor) - before
    if cursor[FOUND_END] > loss.offers.size:
        return np.int64(-1), read
    return take_edges(word, log, role, loss, n_pieces, bits, queue, tail), read
