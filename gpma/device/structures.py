"""Structures of kernels, as the host fills them or makes room for them: STATE is struct State of a .cuh file.

Fields have no gaps between them: where alignment needs one, it is a field. Names, places and sizes are compared
with what a compiler makes of the kernels' structures (``tests/test_device_structures.py``).
"""

from __future__ import annotations

import numpy as np

from ..row_reads import CLASSES


def _longs(*names: str) -> list[tuple[str, type[np.uint64]]]:
    """Addresses, sums and keys."""
    return [(name, np.uint64) for name in names]


def _words(*names: str) -> list[tuple[str, type[np.uint32]]]:
    return [(name, np.uint32) for name in names]


# Passed to kernels by value.
STATE = np.dtype(
    [
        *_longs("keys", "weights", "counts", "heads", "rows", "lower", "upper"),
        *_longs("pending", "marks", "chunks"),
        *_longs("records", "update_leaf", "update_rank", "items"),
        *_longs("unfit", "tall", "window_begin", "window_height", "spills", "partials"),
        *_longs("outcome", "old_weights", "counters", "status"),
        *_longs("remote_keys", "remote_weights", "remote_counts"),
        *_longs("remote_leaf", "remote_degrees", "remote_bits", "remote_classes", "remote_reads"),
        *_words("n_leaves", "height", "leaf_least", "room", "n_vertices"),
        *_words("remote_n_leaves", "remote_stretch_begin", "remote_stretch_length"),
    ]
)
BATCH = np.dtype([*_longs("keys", "ops", "weights"), *_words("n", "sequence", "heavy_merged", "is_turned")])
WAITING = np.dtype(_longs("keys", "ops", "weights"))
DIRECTIONS = np.dtype([("states", STATE, 2), ("batches", BATCH, 2), ("waiting", WAITING)])
RUN = np.dtype(
    [
        *_longs("keys", "updates", "leaf", "place", "change", "before", "ranks", "leaf_begin"),
        *_words("n", "unused"),
    ]
)
WALK = np.dtype(
    [
        *_longs("vertices", "offsets", "first_slots", "begins", "chunk_rows", "leaf_ends", "n_edges"),
        *_words("n_rows", "n_vertices"),
    ]
)
TARGET = np.dtype(
    [*_longs("keys", "weights", "counts", "heads", "rows", "n_edges"), *_words("n_leaves", "unused")]
)
TURN = np.dtype(
    [*_longs("keys", "ops", "weights", "turned_keys", "turned_ops", "turned_weights"), *_words("n", "unused")]
)
PICK = np.dtype(
    [
        *_longs("keys", "ops", "weights", "remote_bits", "tiles"),
        *_longs("out_keys", "out_ops", "out_weights", "in_keys", "in_ops", "in_weights"),
        *_words("n", "mirrored"),
    ]
)
JOIN = np.dtype(
    [
        *_longs("keys", "ops", "outcome", "weights", "old_weights"),
        *_longs("own_keys", "own_ops", "own_outcome", "own_weights", "own_old_weights"),
        *_longs("from_keys", "from_outcome", "from_weights", "from_old_weights"),
        *_words("n_own", "n"),
    ]
)

# In the device's memory: counters, and elements of arrays.
READS = np.dtype([("by_class", np.uint64, 2 * CLASSES), ("others", np.uint64, 2), *_longs("lines")])
ROW = np.dtype(_words("leaf", "degree"))
RECORD = np.dtype([*_longs("key"), ("weight", np.float32), *_words("update")])
ITEM = np.dtype(_words("leaf", "begin", "n_updates", "count"))
SPILL = np.dtype([*_longs("rank"), *_words("from", "before")])
COUNTERS = np.dtype(
    [
        *_longs("light", "heavy", "slots_moved"),
        ("totals", np.uint32, 4),
        *_words("n_unfit", "n_tall", "n_windows", "n_large", "bad_row", "barrier", "n_huge", "unused"),
    ]
)
