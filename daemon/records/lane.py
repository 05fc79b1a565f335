"""The memory in which the query server asks about rows and a thread of the engine's process answers
(``engine.lane``).

It begins with a state for each place (``FREE``, ``ASKED`` or ``ANSWERED``), then come the places themselves, all
in int64 words. The server writes a question and makes its place ``ASKED``, and reads what it asked once the place
is ``ANSWERED``; the engine's side does the rest. Either wakes the other by an eventfd. What stands in a question
may be anything: who answers reads each word of it once, and trusts none.
"""

from __future__ import annotations

PLACES = 64
FREE, ASKED, ANSWERED = 0, 1, 2

VERTICES_MAX = 512
"""So many vertices, or pairs of them, may one question name."""
NEIGHBORS_MAX = 2048
"""So many neighbours does one answer have at most, the one where the next page begins included."""
STAMP_BYTES_MAX = 1 << 14
"""Of the stamp (epoch and offsets, packed) that an answer brings along."""

# What is asked.
NEIGHBORS, DEGREE, HAS_EDGE = 0, 1, 2
OUT, IN = 0, 1

# Words of a place. A question: what is asked, and up to four numbers: vertex, direction, first and limit of
# ``NEIGHBORS``, how many vertices of the others. Its columns, uint32, stand in COLUMNS, one for sources and one
# for destinations.
METHOD, NUMBERS = 0, 1
# An answer: whether it is one (else the question is to be asked otherwise), the generation of the vertex index
# that knows its vertices, the size of the stamp, how many neighbours there are, where the next page begins (-1:
# there is none), and flags.
DONE, GENERATION, STAMP_SIZE, COUNT, CURSOR, FLAGS = 8, 9, 10, 11, 12, 13
KNOWN, WEIGHTED, HAS_IN = 1, 2, 4
OTHERWISE, ANSWER, HIDDEN = 0, 1, 2
"""Of DONE: this is to be asked otherwise; here is an answer; and there is none to anything now."""
STAMP = 16
COLUMNS = STAMP + STAMP_BYTES_MAX // 8
# The answer's columns: neighbours (uint32) and weights (float32); or out-degrees and in-degrees (int64), and
# whether these are vertices (a byte each); or whether the edges exist (a byte each).
FOUND = COLUMNS + 2 * VERTICES_MAX // 2
FOUND_WEIGHTS = FOUND + NEIGHBORS_MAX // 2
FOUND_OUT, FOUND_IN, FOUND_KNOWN = FOUND, FOUND + VERTICES_MAX, FOUND + 2 * VERTICES_MAX
FOUND_EXISTS = FOUND
PLACE_WORDS = FOUND + NEIGHBORS_MAX

WORDS = PLACES + PLACES * PLACE_WORDS
