// The packed memory array as kernels see it. The twin of this file is state.py, which owns the arrays.
//
// Live keys (src << 32 | dst) stand to the left of each leaf of 64 slots, in ascending order over all leaves.
// A key belongs into the last leaf whose head is not above it; merges leave heads alone, redistribution sets
// them. row_leaf[u] means something only where degrees[u] > 0: it is then the last leaf whose head is not above
// the row's smallest possible key, u << 32, so never later than the row's first key and at most one leaf earlier.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef WEIGHTED
#define WEIGHTED 1
#endif

constexpr u32 LEAF_SHIFT = 6;
constexpr u32 LEAF_SLOTS = 1u << LEAF_SHIFT;
constexpr u32 LEAF_LEAST = 8;  // keys in every leaf, unless there is one leaf only
constexpr u32 NO_LEAF = 0xffffffffu;
constexpr u64 EMPTY_KEY = ~0ull;
constexpr u32 ALL_LANES = 0xffffffffu;

// What became of an update (gpma/arrays.py); SUPERSEDED: a later update of the batch names the same edge.
enum Outcome : u8 { INSERTED = 0, OVERWRITTEN = 1, DELETED = 2, ABSENT = 3, SUPERSEDED = 4 };

// An update on its way to its leaf: its position in the batch, with the top bit set for a deletion.
struct __align__(16) Record {
    u64 key;
    float weight;
    u32 update;
};
constexpr u32 DELETES = 0x80000000u;

// Counters of one batch, zero between batches (the barrier excepted), in device memory.
struct Counters {
    u32 n_items;        // leaves with updates that merge_leaves takes
    u32 n_heavy;        // leaves with more updates than that
    u32 light_records;  // records of the former, from the left of State::records
    u32 heavy_records;  // records of the latter, from the right
    u32 n_unfit;        // leaves out of bounds after the merge
    u32 n_tall;         // climbs that the second part continues
    u32 n_windows;      // windows found, those inside others included
    u32 n_large;        // windows too large for one block
    u32 bad_row;        // 1 + a row that does not exist, of an update that names it
    u32 spare;
    u32 totals[4];      // updates by outcome: INSERTED, OVERWRITTEN, DELETED, ABSENT
    u64 slots_moved;
    u32 barrier[2];     // blocks that arrived, and the generation; never reset
};

// What the host reads after a batch, in pinned memory; sequence is written last.
struct Status {
    u32 sequence;
    u32 flags;
    u32 totals[4];
    u32 heavy_records;
    u32 n_heavy;
    u32 bad_row;
    u32 n_windows;
    u64 slots_moved;
};
enum Flag : u32 { OK = 0, HEAVY = 1, BAD_ROW = 2 };

struct State {
    // The array.
    u64* keys;            // [n_leaves * LEAF_SLOTS]
    float* weights;       // [n_leaves * LEAF_SLOTS], weighted arrays only
    u32* counts;          // [n_leaves] live keys; while a batch runs, what a leaf will hold, spilled records included
    u64* heads;           // [n_leaves + 1] ascending; heads[0] = 0, heads[n_leaves] = EMPTY_KEY
    u32* row_leaf;        // [vertices]
    u32* degrees;         // [vertices]
    const double* lower;  // [height + 1] density bounds of redistributed windows, by height
    const double* upper;
    // Work arrays by leaf, zero between batches.
    u32* pending;  // updates that fall into the leaf; then where its records begin
    u32* marks;    // 1 + the height of the largest window found that begins here
    // Work arrays by update of the batch.
    Record* records;
    u32* update_leaf;  // the leaf of each update, and its rank among those of the leaf in order of arrival
    u32* update_rank;
    u32* item_leaf;  // leaves with updates: the leaf, its first record, the number of records
    u32* item_begin;
    u32* item_count;
    u32* unfit;          // leaves out of bounds
    u32* window_begin;   // windows to redistribute
    u32* window_height;
    u32* tall;           // climbs to be continued: positions in unfit
    // The report.
    u8* outcome;
    float* old_weights;
    // Small things.
    u64* partials;  // what blocks tell each other in a redistribution of a large window
    u64* chunks;    // counts summed over aligned runs of CHUNK leaves
    Counters* counters;
    Status* status;
    u32 n_leaves;
    u32 height;      // of the root window
    u32 leaf_least;  // keys that every leaf but the last of its row holds: LEAF_LEAST, or fewer in a sparse root
    u32 n_blocks;    // of a cooperative launch
};
