// What host and kernels must agree on. The host says it, in constants.py, and the compiler hears it by options.
#pragma once

#if !defined(WEIGHTED) || !defined(GPMA_LEAF_SHIFT)
#error "kernels are compiled with the options of gpma/device/module.py"
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 LEAF_SHIFT = GPMA_LEAF_SHIFT;
constexpr u32 LEAF_SLOTS = GPMA_LEAF_SLOTS;
constexpr u32 LEAF_LEAST = GPMA_LEAF_LEAST;  // keys in every leaf, unless there is one leaf only
static_assert(LEAF_SLOTS == 1u << LEAF_SHIFT, "the slots of a leaf are numbered by LEAF_SHIFT bits");
static_assert(LEAF_LEAST > 0, "rows are looked for as far as leaves that are not empty reach");
constexpr u32 REMOTE_SHIFT = GPMA_REMOTE_SHIFT;  // of the leaves of arrays on the host
constexpr u32 REMOTE_LEAST = GPMA_REMOTE_LEAST;  // keys in each of these, unless there is one only
constexpr u32 READ_CLASSES = GPMA_READ_CLASSES;  // of vertices, by which it is counted what is read of remote rows
constexpr u32 LINE_BYTES = GPMA_LINE_BYTES;      // of the host's memory, that come at once
static_assert(REMOTE_SHIFT <= LEAF_SHIFT && REMOTE_LEAST > 0, "a warp reads a remote leaf as one of its own");

constexpr u64 EMPTY_KEY = GPMA_EMPTY_KEY;
constexpr u32 NO_ROW = GPMA_NO_ROW;  // the row of EMPTY_KEY; no vertex has it
static_assert(u32(EMPTY_KEY >> 32) == NO_ROW, "EMPTY_KEY is in no row");

constexpr u8 OP_DELETE = GPMA_OP_DELETE;  // of an update; any other one inserts
constexpr u32 UPDATES_MAX = GPMA_UPDATES_MAX;
static_assert((UPDATES_MAX & (UPDATES_MAX + 1)) == 0, "the bit above the number of an update is free for a flag");

// What became of an update; SUPERSEDED: a later update of the batch names the same edge.
enum Outcome : u8 {
    INSERTED = GPMA_INSERTED,
    OVERWRITTEN = GPMA_OVERWRITTEN,
    DELETED = GPMA_DELETED,
    ABSENT = GPMA_ABSENT,
    SUPERSEDED = GPMA_SUPERSEDED
};
static_assert(INSERTED < 4 && OVERWRITTEN < 4 && DELETED < 4 && ABSENT < 4 && SUPERSEDED >= 4, "four are counted");

constexpr u32 ROWS_BEYOND = GPMA_ROWS_BEYOND;      // empty rows behind the last one
constexpr u32 BUCKET = GPMA_BUCKET;                // the most updates of one leaf that a tile merges
constexpr u32 CHUNK_SHIFT = GPMA_CHUNK_SHIFT;      // windows wider than so many leaves are summed over chunks of them
constexpr u32 BLOCK_HEIGHT = GPMA_BLOCK_HEIGHT;    // windows of up to 2^7 leaves are redistributed by one block
constexpr u32 WARP_HEIGHT = GPMA_WARP_HEIGHT;      // of up to 2^3 leaves by one warp
constexpr u32 SHARED_BYTES = GPMA_SHARED_BYTES;    // of a block that merges or redistributes
constexpr u32 CHUNK_EDGES = GPMA_CHUNK_EDGES;      // of a walk, that a warp visits in one piece
constexpr u32 LOOK_UP_LANES = GPMA_LOOK_UP_LANES;  // that look for the first slot of a row
constexpr u32 LONG_ROW = GPMA_LONG_ROW;            // edges of a row that warps share
constexpr u32 PICK_UPDATES = GPMA_PICK_UPDATES;    // of a batch, that a warp picks from

constexpr u32 BLOCK_THREADS = GPMA_BLOCK_THREADS;  // of cooperative kernels, and of those that allocate
constexpr u32 LOCATE_THREADS = GPMA_LOCATE_THREADS;
constexpr u32 MERGE_THREADS = GPMA_MERGE_THREADS;
constexpr u32 MERGE_BLOCKS = GPMA_MERGE_BLOCKS;  // of MERGE_THREADS on a multiprocessor: bounds a thread's registers
constexpr u32 RUN_THREADS = GPMA_RUN_THREADS;
constexpr u32 LOAD_THREADS = GPMA_LOAD_THREADS;
constexpr u32 READ_THREADS = GPMA_READ_THREADS;
static_assert((BLOCK_THREADS | LOCATE_THREADS | MERGE_THREADS | RUN_THREADS | LOAD_THREADS | READ_THREADS) % 32 == 0,
    "all lanes of a warp take part in votes and shuffles: blocks are whole warps");

// HEAVY: leaves have more updates than a block can sort (small batches: than a tile can merge).
enum Flag : u32 { DONE = GPMA_DONE, HEAVY = GPMA_HEAVY, BAD_ROW = GPMA_BAD_ROW };

// What the host reads after a batch, in pinned memory: each word holds the batch's sequence number in its upper half
// and a value in the lower one, so that no word waits for another.
enum StatusWord : u32 {
    FLAGS = GPMA_FLAGS,
    TOTALS = GPMA_TOTALS,  // four words, by outcome
    SLOTS_MOVED = GPMA_SLOTS_MOVED,
    SLOTS_MOVED_HIGH = GPMA_SLOTS_MOVED_HIGH,
    N_UNFIT = GPMA_N_UNFIT,
    HEAVY_RECORDS = GPMA_HEAVY_RECORDS,
    HEAVY_LEAVES = GPMA_HEAVY_LEAVES,
    FIRST_BAD_ROW = GPMA_FIRST_BAD_ROW,
    STATUS_WORDS = GPMA_STATUS_WORDS
};
static_assert(FLAGS < TOTALS && TOTALS + 4 <= SLOTS_MOVED, "the totals have four words to themselves");
static_assert(STATUS_WORDS <= 32, "a warp tells the host all words");
