// Merging the updates of a leaf into it: half a warp, a tile, holds the leaf and its updates in registers.
//
// All that a tile reads it reads before it writes. A leaf that outgrows its slots keeps its first 64 keys there;
// the others go, as records, where its updates stood, which is always room enough, and rebalancing spreads them.
#pragma once

#include "deliver.cuh"

constexpr u32 TILE = BUCKET;                    // lanes
constexpr u32 LANE_SLOTS = LEAF_SLOTS / TILE;   // slots that a lane holds: its own and every TILE-th further on
constexpr u32 OUTCOME_BITS = 16;                // of each outcome in a lane's own count of outcomes

struct Item {
    u32 leaf;
    u32 begin;      // its first record
    u32 n_updates;  // 0: nothing to do
    u32 count;      // keys in the leaf
};

// How many of the leaf's keys, which fill up with EMPTY_KEY, are smaller than ``key``.
__device__ __forceinline__ u32 keys_below(const u64* leaf_keys, u64 key)
{
    u32 place = 0;
#pragma unroll
    for (u32 step = LEAF_SLOTS / 2; step; step /= 2)
        if (leaf_keys[place + step - 1] < key) place += step;
    return place + (leaf_keys[place] < key);
}

// Adds what the tile's updates did to the lengths of their rows, at once where they are all of one row.
__device__ __forceinline__ void count_degrees(const State& state, bool mine, u64 key, u32 added, u32 removed)
{
    const u32 position = lane_number() % TILE, first_lane = lane_number() - position;
    const u32 row = u32(key >> 32), first_row = __shfl_sync(ALL_LANES, row, 0, TILE);
    const u32 others = (__ballot_sync(ALL_LANES, mine && row != first_row) >> first_lane) & 0xffff;
    const int change = others ? int(added >> position & 1) - int(removed >> position & 1)
                              : (position == 0 ? __popc(added) - __popc(removed) : 0);
    if (change) atomicAdd(state.degrees + row, u32(change));
}

// Puts a key, with its weight, at a position of a merged leaf: into its slot, or behind the slots into a record.
__device__ __forceinline__ void put(const State& state, const Item& item, u32 to, u64 key, float weight)
{
    if (to < LEAF_SLOTS) {
        const u64 slot = (u64(item.leaf) << LEAF_SHIFT) + to;
        state.keys[slot] = key;
#if WEIGHTED
        state.weights[slot] = weight;
#endif
    } else {
        Record record;
        record.key = key;
        record.weight = weight;
        record.update = 0;
        state.records[item.begin + to - LEAF_SLOTS] = record;
    }
}

// What a tile knows of its updates, in masks of its lanes.
struct Changes {
    u32 place;    // this lane's: keys of the leaf that are smaller
    u32 below;    // updates with a smaller key
    u32 added;    // updates that add their key
    u32 removed;  // updates that remove theirs
};

// Moves the leaf's keys to where they belong after the changes. All lanes have read all that they need.
__device__ __forceinline__ void move_keys(
    const State& state, const Item& item, const u64* leaf_keys, const Changes& changes, u32 n_updates_max)
{
    const u32 position = lane_number() % TILE;
    int shift[LANE_SLOTS];
    u32 gone = 0;
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) shift[s] = 0;
    for (u32 j = 0; j < n_updates_max; j++) {
        const u32 place = __shfl_sync(ALL_LANES, changes.place, j, TILE);
        const int adds = changes.added >> j & 1, removes = changes.removed >> j & 1;
#pragma unroll
        for (u32 s = 0; s < LANE_SLOTS; s++) {
            const u32 slot = s * TILE + position;
            shift[s] += (slot >= place ? adds : 0) - (slot > place ? removes : 0);
            gone |= removes && slot == place ? 1u << s : 0u;
        }
    }
    u64 key[LANE_SLOTS];
    float weight[LANE_SLOTS];
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) {
        const u32 slot = s * TILE + position;
        if (slot >= item.count || gone >> s & 1) shift[s] = 0;
        key[s] = leaf_keys[slot];
        weight[s] = 1.0f;
#if WEIGHTED
        if (shift[s]) weight[s] = load_cached(state.weights + (u64(item.leaf) << LEAF_SHIFT) + slot);
#endif
    }
    __syncwarp();
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++)
        if (shift[s]) put(state, item, s * TILE + position + shift[s], key[s], weight[s]);
    __syncwarp();
}

// Merges one leaf in each half of a warp, all lanes taking part; ``leaf_keys`` is the tile's shared memory.
__device__ __forceinline__ void merge_leaf(const State& state, const Item& item, u64* leaf_keys, u64& outcomes)
{
    const u32 position = lane_number() % TILE, first_lane = lane_number() - position;
    const bool mine = position < item.n_updates;
    const u64 first_slot = u64(item.leaf) << LEAF_SHIFT;
    Record record;
    record.key = EMPTY_KEY;
    record.weight = 1.0f;
    record.update = 0;
    if (mine) record = load_wide(state.records + item.begin + position);
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) {
        const u32 slot = s * TILE + position;
        leaf_keys[slot] = slot < item.count ? load_cached(state.keys + first_slot + slot) : EMPTY_KEY;
    }
    __syncwarp();

    Changes changes;
    changes.place = keys_below(leaf_keys, record.key);
    const bool found = mine && changes.place < item.count && leaf_keys[changes.place] == record.key;
    const bool deletes = record.update & DELETES;
    const u32 number = record.update & ~DELETES;
    const u32 n_updates_max = __reduce_max_sync(ALL_LANES, item.n_updates);
    changes.below = 0;
    bool superseded = false;
    for (u32 j = 0; n_updates_max > 1 && j < n_updates_max; j++) {
        const u64 other = __shfl_sync(ALL_LANES, record.key, j, TILE);
        const u32 other_number = __shfl_sync(ALL_LANES, number, j, TILE);
        changes.below |= other < record.key ? 1u << j : 0u;
        superseded |= other == record.key && other_number > number;
    }
    const bool acts = mine && !superseded;
    changes.added = __ballot_sync(ALL_LANES, acts && !deletes && !found) >> first_lane & 0xffff;
    changes.removed = __ballot_sync(ALL_LANES, acts && deletes && found) >> first_lane & 0xffff;
#if WEIGHTED
    float old_weight = 0.0f;
    if (acts && found) old_weight = load_cached(state.weights + first_slot + changes.place);
#endif
    move_keys(state, item, leaf_keys, changes, n_updates_max);

    const u32 to = changes.place + __popc(changes.added & changes.below) - __popc(changes.removed & changes.below);
    if (acts && !deletes && (WEIGHTED || !found)) put(state, item, to, record.key, record.weight);
    count_degrees(state, mine, record.key, changes.added, changes.removed);
    if (mine) {
        const u32 outcome = deletes ? (found ? DELETED : ABSENT) : (found ? OVERWRITTEN : INSERTED);
        state.outcome[number] = u8(superseded ? SUPERSEDED : outcome);
#if WEIGHTED
        state.old_weights[number] = old_weight;
#endif
        if (acts) outcomes += u64(1) << (OUTCOME_BITS * outcome);
    }
    if (position == 0 && item.n_updates) {
        const u32 count = item.count + __popc(changes.added) - __popc(changes.removed);
        state.counts[item.leaf] = count;
        state.pending[item.leaf] = count > LEAF_SLOTS ? item.begin : 0;
        const bool too_few = count < item.count && count < LEAF_LEAST && state.n_leaves > 1;
        if (count > LEAF_SLOTS || too_few) state.unfit[atomicAdd(&state.counters->n_unfit, 1u)] = item.leaf;
    }
    __syncwarp();
}

// Adds the outcomes that the threads of this block counted to those of the batch.
__device__ __forceinline__ void add_outcomes(const State& state, u64 outcomes, u32* block_totals)
{
    if (threadIdx.x < 4) block_totals[threadIdx.x] = 0;
    __syncthreads();
    for (u32 outcome = 0; outcome < 4; outcome++) {
        const u32 own = u32(outcomes >> (OUTCOME_BITS * outcome)) & 0xffff;
        const u32 of_warp = __reduce_add_sync(ALL_LANES, own);
        if (lane_number() == 0 && of_warp) atomicAdd(block_totals + outcome, of_warp);
    }
    __syncthreads();
    if (threadIdx.x < 4 && block_totals[threadIdx.x])
        atomicAdd(state.counters->totals + threadIdx.x, block_totals[threadIdx.x]);
    __syncthreads();
}

// Merges ``n_items`` leaves; each warp takes ``group`` (at most 32) of them at a time, two by two.
// ``leaf_keys``: shared memory for two leaves of each warp of the block; ``block_totals``: for four words.
__device__ __forceinline__ void merge_items(
    const State& state, u32 n_items, u32 group, u64* leaf_keys, u32* block_totals)
{
    const u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, n_warps = gridDim.x * (blockDim.x >> 5);
    u64* own_keys = leaf_keys + (threadIdx.x / TILE) * LEAF_SLOTS;
    u64 outcomes = 0;
    for (u64 first = u64(warp) * group; first < n_items; first += u64(n_warps) * group) {
        Item item = {0, 0, 0, 0};
        const u64 own = first + lane_number();
        if (lane_number() < group && own < n_items) {
            item.n_updates = load_cached(state.item_count + own);
            if (item.n_updates) {
                item.leaf = load_cached(state.item_leaf + own);
                item.begin = load_cached(state.item_begin + own);
                item.count = load_cached(state.counts + item.leaf);
                state.item_count[own] = 0;
            }
        }
        u32 todo = __ballot_sync(ALL_LANES, item.n_updates > 0);
        while (todo) {
            const u32 one = __ffs(todo) - 1;
            todo &= todo - 1;
            const u32 other = todo ? __ffs(todo) - 1 : 32;
            todo &= todo - 1;  // of 0: 0
            const u32 from = lane_number() < TILE ? one : other;
            Item taken;
            taken.leaf = __shfl_sync(ALL_LANES, item.leaf, from & 31);
            taken.begin = __shfl_sync(ALL_LANES, item.begin, from & 31);
            taken.n_updates = __shfl_sync(ALL_LANES, item.n_updates, from & 31);
            taken.count = __shfl_sync(ALL_LANES, item.count, from & 31);
            if (from == 32) taken.n_updates = taken.count = 0;
            merge_leaf(state, taken, own_keys, outcomes);
        }
    }
    add_outcomes(state, outcomes, block_totals);
}
