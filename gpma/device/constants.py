"""What host and kernels must agree on: said here, once, and given to the compiler as options (``module.py``).

Kernels get LEAF_SHIFT as the macro GPMA_LEAF_SHIFT, of which ``constants.cuh`` makes a constant of the right type.
What only one side needs to know is said on that side.
"""

from __future__ import annotations

from ..edges import ABSENT, DELETED, EMPTY_KEY, INSERTED, NO_VERTEX, OVERWRITTEN, Op
from ..layout import LEAF_LEAST as REMOTE_LEAST
from ..layout import LEAF_SHIFT as REMOTE_SHIFT
from ..row_reads import CLASSES as READ_CLASSES
from ..row_reads import LINE_BYTES
from .geometry import LEAF_LEAST, LEAF_SHIFT, LEAF_SLOTS
from .structures import RECORD

# What became of an update that a later one of the same edge overrides; the other outcomes are the host's.
SUPERSEDED = 4
# Records number updates by 31 bits.
UPDATES_MAX = (1 << 31) - 1

# Empty rows behind the last one, so that the next ones of any may be looked at.
ROWS_BEYOND = 4
# The most updates of one leaf that a tile merges, and its lanes.
BUCKET = 16
# Shifts: the leaves of a chunk, and of the widest windows that a block and a warp redistribute in shared memory.
CHUNK_SHIFT = 10
BLOCK_HEIGHT = 7
WARP_HEIGHT = 3
# Edges of a walk over rows that a warp visits in one piece.
CHUNK_EDGES = 256
# Lanes that look for the first slot of a row.
LOOK_UP_LANES = 8
# Edges from which on the row of a frontier's vertex is shared by warps. On an H200 from 48 to 256 differed by 10%.
LONG_ROW = 64

# Updates that a warp picks of a batch some of whose rows are elsewhere.
PICK_UPDATES = 512

# Threads of a block: of cooperative kernels and those that allocate; of the others of update.cu, sorted.cu,
# load_export.cu and reads.cu.
BLOCK_THREADS = 512
LOCATE_THREADS = 256
MERGE_THREADS = 256
RUN_THREADS = 256
LOAD_THREADS = 256
READ_THREADS = 256
# Blocks that merge on a multiprocessor, which bounds the registers of a thread.
MERGE_BLOCKS = 3

# Flags of a status. HEAVY: leaves have more updates than a block can sort (small batches: than a tile can merge).
DONE, HEAVY, BAD_ROW = 0, 1, 2
# Words of a status; TOTALS are four, by outcome.
FLAGS, TOTALS, SLOTS_MOVED, SLOTS_MOVED_HIGH, N_UNFIT = 0, 1, 5, 6, 7
HEAVY_RECORDS, HEAVY_LEAVES, FIRST_BAD_ROW = 8, 9, 10
STATUS_WORDS = 11

# Names of other modules, by those that kernels have for them.
_ELSEWHERE = {
    "EMPTY_KEY": int(EMPTY_KEY),
    "NO_ROW": int(NO_VERTEX),
    "OP_DELETE": int(Op.DELETE),
    "INSERTED": INSERTED,
    "OVERWRITTEN": OVERWRITTEN,
    "DELETED": DELETED,
    "ABSENT": ABSENT,
    "LEAF_SHIFT": LEAF_SHIFT,
    "LEAF_SLOTS": LEAF_SLOTS,
    "LEAF_LEAST": LEAF_LEAST,
    "REMOTE_SHIFT": REMOTE_SHIFT,
    "REMOTE_LEAST": REMOTE_LEAST,
    "READ_CLASSES": READ_CLASSES,
    "LINE_BYTES": LINE_BYTES,
}


def shared_bytes(*, weighted: bool) -> int:
    """Shared memory of a block that merges or redistributes, whichever takes more; ``rebalance.cuh`` checks it."""
    slot_bytes = 12 if weighted else 8
    prefixes = BLOCK_THREADS // 32 * ((1 << WARP_HEIGHT) + 1)
    stage = (LEAF_SLOTS << BLOCK_HEIGHT) * slot_bytes + (prefixes + 4) * 8
    leaf = LEAF_SLOTS * slot_bytes + BUCKET * (slot_bytes + RECORD.itemsize)  # of a tile
    return max(stage, BLOCK_THREADS // BUCKET * 2 * leaf)


def macros(*, weighted: bool) -> tuple[str, ...]:
    """All of this as options of a compiler: what has a capital name here or is of ``_ELSEWHERE``."""
    own = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}
    values = {**own, **_ELSEWHERE, "SHARED_BYTES": shared_bytes(weighted=weighted)}
    return tuple(f"-DGPMA_{name}={value}{'u' if value < 2**32 else 'ull'}" for name, value in values.items())
