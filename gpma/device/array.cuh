// The packed memory array as kernels see it: the twin of state.py, which owns the arrays, and of structures.py.
//
// Live keys (src << 32 | dst) stand to the left of each leaf of 64 slots, in ascending order over all leaves.
// A key belongs into the last leaf whose head is not above it; merges leave heads alone, redistribution sets
// them. rows[u].leaf means something only where rows[u].degree > 0: it is then the last leaf whose head is not above
// the row's smallest possible key, u << 32, so never later than the row's first key and at most one leaf earlier.
#pragma once

#include "constants.cuh"

constexpr u32 NO_LEAF = 0xffffffffu;
constexpr u32 ALL_LANES = 0xffffffffu;

// An update on its way to its leaf: its position in the batch, with the top bit set for a deletion.
struct __align__(16) Record {
    u64 key;
    float weight;
    u32 update;
};
static_assert(sizeof(Record) == 16 && __is_trivially_copyable(Record), "copied as 16 bytes");
constexpr u32 DELETES = UPDATES_MAX + 1;

// Where a row begins, and its length: side by side, since who needs one mostly needs the other.
struct __align__(8) Row {
    u32 leaf;
    u32 degree;
};
static_assert(sizeof(Row) == 8 && alignof(Row) == 8, "read in one access");

// A leaf with updates.
struct __align__(16) Item {
    u32 leaf;
    u32 begin;      // its first record
    u32 n_updates;  // its records
    u32 count;      // keys in the leaf before
};
static_assert(sizeof(Item) == 16 && __is_trivially_copyable(Item), "copied as 16 bytes");

// Counters of one batch in device memory; zero between batches, all but the barrier.
struct Counters {
    u64 light;        // leaves with updates that a tile merges, and their records: leaves << 32 | records
    u64 heavy;        // leaves with more updates than that, likewise, their records counted from the right
    u64 slots_moved;  // keys that redistribution wrote
    u32 totals[4];    // updates by outcome: INSERTED, OVERWRITTEN, DELETED, ABSENT
    u32 n_unfit;      // leaves out of bounds after the merge
    u32 n_tall;       // of these, climbs that go on with chunk sums
    u32 n_windows;    // windows that one warp redistributes, those inside of others included
    u32 n_large;      // wider windows, likewise
    u32 bad_row;      // 1 + a row that does not exist, which an update names
    u32 barrier;      // of the grid; never reset
    u32 n_huge;       // leaves with more updates than a block can sort; small batches: than a tile can merge
    u32 unused;
};

// Where a leaf's keys beyond its slots wait for redistribution, in a window that is redistributed in place.
struct __align__(16) Spill {
    u64 rank;    // of the first of them among the keys of the window
    u32 from;    // its record
    u32 before;  // such keys in leaves further left
};

// What programs have read of rows since some may be remote: see reading.cuh. Never reset.
struct Reads {
    u64 by_class[2 * READ_CLASSES];  // edges; those of the host's rows first
    u64 others[2];                   // edges of rows of any class, likewise
    u64 lines;                       // of the host's memory
};

// The array and its work arrays; passed to kernels by value.
struct State {
    u64* keys;            // [n_leaves * LEAF_SLOTS]
    float* weights;       // [n_leaves * LEAF_SLOTS], weighted arrays only
    u32* counts;          // [n_leaves] live keys; above LEAF_SLOTS only within a batch: the rest is in records
    u64* heads;           // [n_leaves + 1] ascending; heads[0] = 0, heads[n_leaves] = EMPTY_KEY
    Row* rows;            // [vertices + ROWS_BEYOND]
    const double* lower;  // [height + 1] density bounds of redistributed windows, by height
    const double* upper;
    // By leaf, zero between batches.
    u32* pending;  // updates that fall into the leaf, or their owner; then its first record
    u32* marks;    // 1 + the height of the largest window found that begins here
    u64* chunks;   // [n_leaves >> CHUNK_SHIFT + 1] counts summed over aligned runs of leaves
    // By update, each with room for ``room`` of them.
    Record* records;   // small batches: BUCKET for each update
    u32* update_leaf;  // the leaf of each update, and how many of the leaf's arrived before it
    u32* update_rank;
    Item* items;       // leaves with updates, light ones from the left, heavy ones from the right; n_updates is
                       // zero between batches
    u32* unfit;        // leaves out of bounds
    u32* tall;         // of these, those whose climb goes on
    u32* window_begin;   // windows to redistribute: those for a warp from the left, the others from the right
    u32* window_height;
    Spill* spills;       // [room + 1]
    u64* partials;       // [2 * blocks of a cooperative launch] what blocks tell each other
    // The report, by update.
    u8* outcome;
    float* old_weights;
    Counters* counters;
    u64* status;  // [STATUS_WORDS], on the host, in pinned memory: see status.cuh
    // Remote rows, which kernels compiled with REMOTE read in an array of the host, where they lie: see leaves.cuh. All
    // is 0 where there are none.
    const u64* remote_keys;       // [leaves << REMOTE_SHIFT], in the host's memory like the rest
    const float* remote_weights;  // likewise
    const u32* remote_counts;     // [leaves]
    const u32* remote_leaf;       // [vertices] the leaf of the first key of each row that is not empty
    const u32* remote_degrees;    // [vertices]
    const u32* remote_bits;       // [vertices / 32] on the device: bit v % 32 of word v / 32 says that row v is remote
    const u8* remote_classes;     // [vertices] likewise: the class in which reads of either row of v are counted
    Reads* remote_reads;
    u32 n_leaves;
    u32 height;      // of the root window
    u32 leaf_least;  // keys that every leaf holds: LEAF_LEAST, or fewer in one leaf or a sparse root
    u32 room;
    u32 n_vertices;
    u32 remote_n_leaves;        // without those of the stretch
    u32 remote_stretch_begin;   // remote leaves from here on are empty, and numbered by nobody
    u32 remote_stretch_length;  // so many
};
static_assert(__is_trivially_copyable(State), "the host passes its bytes");

// One batch of updates; passed to kernels by value.
struct Batch {
    const u64* keys;
    const u8* ops;         // OP_DELETE, or inserts
    const float* weights;  // null: every insert means 1
    u32 n;
    u32 sequence;      // published when all is done
    u32 heavy_merged;  // the heavy leaves have been merged already
    u32 is_turned;     // the keys are those of the other direction
};
static_assert(__is_trivially_copyable(Batch), "the host passes its bytes");

// Updates that are still in the host's pinned memory; null: they are on the device.
struct Waiting {
    const u64* keys;
    const u8* ops;
    const float* weights;
};

// The out-rows and the in-rows of a graph, and what a batch means to either.
struct Directions {
    State states[2];
    Batch batches[2];
    Waiting waiting;
};
static_assert(__is_trivially_copyable(Directions), "the host passes its bytes");
