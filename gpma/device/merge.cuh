// Merging the updates of a leaf into it: half a warp, a tile, merges the leaf in shared memory.
//
// All that a tile reads it reads before it writes, and it writes whole runs of slots, from the first one that
// changes. A leaf that outgrows its slots keeps its first 64 keys there; the others go, as records, where its updates
// stood, which is always room enough, and rebalancing spreads them.
#pragma once

#include "deliver.cuh"

constexpr u32 TILE = BUCKET;                   // lanes
constexpr u32 LANE_SLOTS = LEAF_SLOTS / TILE;  // neighbouring slots that a lane reads
constexpr u32 TILE_SLOTS = LEAF_SLOTS + BUCKET;
constexpr u32 OUTCOME_BITS = 16;  // of each outcome in a lane's own count of outcomes

struct Item {
    u32 leaf;
    u32 begin;      // its first record
    u32 n_updates;  // 0: nothing to do
    u32 count;      // keys in the leaf
};

struct __align__(16) KeyPair {
    u64 key[2];
};

struct __align__(16) WeightQuad {
    float weight[4];
};

// A tile's shared memory: the leaf before, then after the merge.
struct __align__(16) TileSpace {
    u64 keys[TILE_SLOTS];
    float weights[TILE_SLOTS];
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

// What a lane knows of its update, and of the tile's in masks of its lanes.
struct Changes {
    u32 place;    // keys of the leaf that are smaller than the update's
    u32 below;    // updates with a smaller key
    u32 added;    // updates that add their key
    u32 removed;  // updates that remove theirs
    bool found;   // the key is there
    bool acts;    // no later update names it
    bool deletes;
};

// Reads the leaf into shared memory, filled up with EMPTY_KEY; returns the weights of the lane's own slots.
__device__ __forceinline__ WeightQuad read_leaf(const State& state, const Item& item, TileSpace& space)
{
    const u32 first = lane_number() % TILE * LANE_SLOTS;
    const u64 slot = (u64(item.leaf) << LEAF_SHIFT) + first;
    KeyPair low = {{EMPTY_KEY, EMPTY_KEY}}, high = low;
    WeightQuad weights = {{1.0f, 1.0f, 1.0f, 1.0f}};
    if (first < item.count) {
        low = load_wide(reinterpret_cast<const KeyPair*>(state.keys + slot));
        high = load_wide(reinterpret_cast<const KeyPair*>(state.keys + slot + 2));
#if WEIGHTED
        weights = load_wide(reinterpret_cast<const WeightQuad*>(state.weights + slot));
#endif
        if (first + 1 >= item.count) low.key[1] = EMPTY_KEY;
        if (first + 2 >= item.count) high.key[0] = EMPTY_KEY;
        if (first + 3 >= item.count) high.key[1] = EMPTY_KEY;
    }
    *reinterpret_cast<KeyPair*>(space.keys + first) = low;
    *reinterpret_cast<KeyPair*>(space.keys + first + 2) = high;
    return weights;
}

// Looks the lane's update up; ``n_updates_max``: of the tiles of the warp.
__device__ __forceinline__ Changes look_up(
    const TileSpace& space, const Item& item, const Record& record, u32 n_updates_max)
{
    const u32 position = lane_number() % TILE, first_lane = lane_number() - position;
    const bool mine = position < item.n_updates;
    const u32 number = record.update & ~DELETES;
    Changes changes;
    changes.place = keys_below(space.keys, record.key);
    changes.found = mine && changes.place < item.count && space.keys[changes.place] == record.key;
    changes.deletes = record.update & DELETES;
    changes.below = 0;
    bool superseded = false;
    for (u32 j = 0; n_updates_max > 1 && j < n_updates_max; j++) {
        const u64 other = __shfl_sync(ALL_LANES, record.key, j, TILE);
        const u32 other_number = __shfl_sync(ALL_LANES, number, j, TILE);
        changes.below |= other < record.key ? 1u << j : 0u;
        superseded |= other == record.key && other_number > number;
    }
    changes.acts = mine && !superseded;
    const bool adds = changes.acts && !changes.deletes && !changes.found;
    const bool removes = changes.acts && changes.deletes && changes.found;
    changes.added = __ballot_sync(ALL_LANES, adds) >> first_lane & 0xffff;
    changes.removed = __ballot_sync(ALL_LANES, removes) >> first_lane & 0xffff;
    return changes;
}

// Moves the leaf's keys in shared memory to where they belong after the changes, and puts the updates among them.
__device__ __forceinline__ void merge_in_place(
    TileSpace& space, const WeightQuad& weights, const Record& record, const Changes& changes, u32 n_updates_max)
{
    constexpr u32 EACH = 0x01010101u, BIAS = 16;
    const u32 position = lane_number() % TILE, first = position * LANE_SLOTS;
    const int adds = changes.added >> position & 1, removes = changes.removed >> position & 1;
    if (removes) space.keys[changes.place] = EMPTY_KEY;
    // Every update shifts the slots from some one on: by how much the lane's own, a byte for each, plus BIAS.
    const u32 own = (changes.place + removes) * 8 | u32(1 + adds - removes) << 16;
    u32 shifts = EACH * BIAS;
    for (u32 j = 0; j < n_updates_max; j++) {
        const u32 other = __shfl_sync(ALL_LANES, own, j, TILE);
        const int from = int(other & 0xffff) - int(first * 8);
        shifts += u32(u64(EACH) << min(max(from, 0), 32)) * (u32(other >> 16) - 1);
    }
    __syncwarp();
    const KeyPair low = *reinterpret_cast<const KeyPair*>(space.keys + first);
    const KeyPair high = *reinterpret_cast<const KeyPair*>(space.keys + first + 2);
    __syncwarp();
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) {
        const u64 key = s < 2 ? low.key[s & 1] : high.key[s & 1];
        const u32 to = first + s + (shifts >> (8 * s) & 0xff) - BIAS;
        if (key != EMPTY_KEY) {
            space.keys[to] = key;
#if WEIGHTED
            space.weights[to] = weights.weight[s];
#endif
        }
    }
    __syncwarp();
    if (changes.acts && !changes.deletes) {
        const u32 to = changes.place + __popc(changes.added & changes.below) - __popc(changes.removed & changes.below);
        space.keys[to] = record.key;
#if WEIGHTED
        space.weights[to] = record.weight;
#endif
    }
    __syncwarp();
}

// Writes the merged leaf of ``count`` keys from the first slot that changes on.
__device__ __forceinline__ void write_leaf(
    const State& state, const Item& item, const TileSpace& space, const Changes& changes, u32 count)
{
    const u32 position = lane_number() % TILE;
    const u64 slot = u64(item.leaf) << LEAF_SHIFT;
    u32 first = changes.acts && (changes.found || !changes.deletes) ? changes.place : TILE_SLOTS;
    for (u32 offset = TILE / 2; offset; offset /= 2)
        first = min(first, __shfl_xor_sync(ALL_LANES, first, offset, TILE));
    const u32 end = item.n_updates ? min(count, LEAF_SLOTS) : 0;
    if (changes.added | changes.removed) {
#pragma unroll
        for (u32 h = 0; h < LANE_SLOTS / 2; h++) {
            const u32 at = 2 * (h * TILE + position);
            if (at + 1 >= first && at < end)
                *reinterpret_cast<KeyPair*>(state.keys + slot + at) = *reinterpret_cast<const KeyPair*>(space.keys + at);
        }
    }
#if WEIGHTED
    const u32 at = position * LANE_SLOTS;
    if (at + 3 >= first && at < end)
        *reinterpret_cast<WeightQuad*>(state.weights + slot + at)
            = *reinterpret_cast<const WeightQuad*>(space.weights + at);
#endif
    const u32 beyond = LEAF_SLOTS + position;
    if (item.n_updates && beyond < count) {
        Record record;
        record.key = space.keys[beyond];
        record.weight = WEIGHTED ? space.weights[beyond] : 1.0f;
        record.update = 0;
        state.records[item.begin + position] = record;
    }
}

// Merges one leaf in each half of a warp, all lanes taking part.
__device__ __forceinline__ void merge_leaf(const State& state, const Item& item, TileSpace& space, u64& outcomes)
{
    const u32 position = lane_number() % TILE;
    const bool mine = position < item.n_updates;
    Record record;
    record.key = EMPTY_KEY;
    record.weight = 1.0f;
    record.update = 0;
    if (mine) record = load_wide(state.records + item.begin + position);
    const WeightQuad weights = read_leaf(state, item, space);
    __syncwarp();
    const u32 n_updates_max = __reduce_max_sync(ALL_LANES, item.n_updates);
    const Changes changes = look_up(space, item, record, n_updates_max);
#if WEIGHTED
    // Each weight is in the registers of the lane that read its slot.
    float old_weight = 0.0f;
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) {
        const float weight = __shfl_sync(ALL_LANES, weights.weight[s], changes.place / LANE_SLOTS, TILE);
        if (changes.acts && changes.found && changes.place % LANE_SLOTS == s) old_weight = weight;
    }
#endif
    merge_in_place(space, weights, record, changes, n_updates_max);
    const u32 count = item.count + __popc(changes.added) - __popc(changes.removed);
    write_leaf(state, item, space, changes, count);
    count_degrees(state, mine, record.key, changes.added, changes.removed);
    if (mine) {
        const u32 number = record.update & ~DELETES;
        const u32 outcome
            = changes.deletes ? (changes.found ? DELETED : ABSENT) : (changes.found ? OVERWRITTEN : INSERTED);
        state.outcome[number] = u8(changes.acts ? outcome : SUPERSEDED);
#if WEIGHTED
        state.old_weights[number] = old_weight;
#endif
        if (changes.acts) outcomes += u64(1) << (OUTCOME_BITS * outcome);
    }
    if (position == 0 && item.n_updates) {
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
// ``spaces``: shared memory for each tile of the block; ``block_totals``: for four words.
__device__ __forceinline__ void merge_items(
    const State& state, u32 n_items, u32 group, TileSpace* spaces, u32* block_totals)
{
    const u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, n_warps = gridDim.x * (blockDim.x >> 5);
    TileSpace& space = spaces[threadIdx.x / TILE];
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
            merge_leaf(state, taken, space, outcomes);
        }
    }
    add_outcomes(state, outcomes, block_totals);
}
