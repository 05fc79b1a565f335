// Merging the updates of a leaf into it: half a warp, a tile, merges the leaf in shared memory.
//
// While a tile merges one leaf, the next one and its updates are on their way into shared memory. It writes whole
// runs of slots, from the first one that changes. A leaf that outgrows its slots keeps its first 64 keys there; the
// others go, as records, where its updates stood, which is always room enough, and rebalancing spreads them.
#pragma once

#include "deliver.cuh"

constexpr u32 TILE = BUCKET;                   // lanes
constexpr u32 LANE_SLOTS = LEAF_SLOTS / TILE;  // neighbouring slots of which a lane takes care
constexpr u32 TILE_SLOTS = LEAF_SLOTS + BUCKET;
constexpr u32 OUTCOME_BITS = 16;  // of each outcome in a lane's own count of outcomes
constexpr u32 TILE_LANES = 0xffff;  // a mask of them
static_assert(2 * TILE == 32 && TILE_LANES == (1u << TILE) - 1, "a warp is two tiles of 16 lanes");
static_assert(LANE_SLOTS * TILE == LEAF_SLOTS && LANE_SLOTS == 4, "a lane takes care of four slots");
static_assert(4 * OUTCOME_BITS == 64, "four outcomes are counted in one word");

struct __align__(16) KeyPair {
    u64 key[2];
};

struct __align__(16) WeightQuad {
    float weight[4];
};
static_assert(2 * sizeof(KeyPair) == LANE_SLOTS * sizeof(u64) && sizeof(WeightQuad) == LANE_SLOTS * sizeof(float),
    "a lane's slots are two pairs of keys and four weights");
static_assert(sizeof(KeyPair) == 16 && sizeof(WeightQuad) == 16, "copied 16 bytes at a time");

// A leaf, first as it is in the array, then merged, and its updates.
struct __align__(16) TileLeaf {
    u64 keys[TILE_SLOTS];
    Record records[BUCKET];
#if WEIGHTED
    float weights[TILE_SLOTS];
#endif
};

// A tile's shared memory: this leaf and the next one.
struct __align__(16) TileSpace {
    TileLeaf leaves[2];
};

// Where a lane finds its part of the first leaf and of the first record, and where in the tile's shared memory what
// it fetches goes: worked out once, as the loop over leaves is bound by the instructions that it takes.
struct Lane {
    u64* keys;
    float* weights;
    const Record* records;
    SharedAddress leaves;
};

__device__ __forceinline__ Lane lane_of(const State& state, TileSpace& space)
{
    const u32 position = lane_number() % TILE;
    Lane lane;
    lane.keys = state.keys + 2 * position;
    lane.weights = state.weights + 4 * position;
    lane.records = state.records + position;
    lane.leaves = shared_address(space.leaves) + 16 * position;
    return lane;
}

// Starts to read a leaf and its updates into the tile's leaf ``parity``.
__device__ __forceinline__ void fetch(const Lane& lane, const Item& item, u32 parity)
{
    constexpr u32 RECORDS_AT = sizeof(u64) * TILE_SLOTS;
    static_assert(RECORDS_AT % 16 == 0 && sizeof(Record) == 16, "each lane copies 16 bytes to a multiple of 16");
    const u32 position = lane_number() % TILE, count = item.n_updates ? item.count : 0;
    const u64 slot = u64(item.leaf) << LEAF_SHIFT;
    const SharedAddress to = lane.leaves + parity * u32(sizeof(TileLeaf));
    const u64* keys = lane.keys + slot;
    if (2 * position < count) copy_async(to, keys);
    if (2 * (position + TILE) < count) copy_async(to + 2 * TILE * sizeof(u64), keys + 2 * TILE);
    if (position < item.n_updates) copy_async(to + RECORDS_AT, lane.records + item.begin);
#if WEIGHTED
    constexpr u32 WEIGHTS_AT = RECORDS_AT + sizeof(Record) * BUCKET;
    static_assert(WEIGHTS_AT % 16 == 0, "each lane copies 16 bytes to a multiple of 16");
    static_assert(sizeof(TileLeaf) == WEIGHTS_AT + sizeof(float) * TILE_SLOTS, "nothing lies between the columns");
    if (4 * position < count) copy_async(to + WEIGHTS_AT, lane.weights + slot);
#endif
    copy_async_commit();
}

// How many of the leaf's ``count`` keys are smaller than ``key``. The last key stands for all slots behind it.
__device__ __forceinline__ u32 keys_below(const u64* keys, u32 count, u64 key)
{
    const u32 last = max(count, 1u) - 1;
    u32 place = 0;
    static_assert((LEAF_SLOTS & (LEAF_SLOTS - 1)) == 0, "halved until nothing is left");
#pragma unroll
    for (u32 step = LEAF_SLOTS / 2; step; step /= 2)
        if (keys[min(place + step - 1, last)] < key) place += step;
    if (keys[min(place, last)] < key) place++;
    return min(place, count);
}

// Adds what the tile's updates did to the lengths of their rows, at once where they are all of one row.
__device__ __forceinline__ void count_degrees(const State& state, bool mine, u64 key, u32 added, u32 removed)
{
    const u32 position = lane_number() % TILE, first_lane = lane_number() - position;
    const u32 row = u32(key >> 32), first_row = __shfl_sync(ALL_LANES, row, 0, TILE);
    const u32 others = (__ballot_sync(ALL_LANES, mine && row != first_row) >> first_lane) & TILE_LANES;
    const int change = others ? int(added >> position & 1) - int(removed >> position & 1)
                              : (position == 0 ? __popc(added) - __popc(removed) : 0);
    if (change) atomicAdd(&state.rows[row].degree, u32(change));
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

// Looks the lane's update up; ``n_updates_max``: of the tiles of the warp.
__device__ __forceinline__ Changes look_up(
    const TileLeaf& leaf, const Item& item, const Record& record, u32 n_updates_max)
{
    const u32 position = lane_number() % TILE, first_lane = lane_number() - position;
    const bool mine = position < item.n_updates;
    const u32 number = record.update & ~DELETES;
    Changes changes;
    changes.place = keys_below(leaf.keys, item.count, record.key);
    changes.found = mine && changes.place < item.count && leaf.keys[changes.place] == record.key;
    changes.deletes = record.update & DELETES;
    // What is beyond the tile's own updates is compared too, and then forgotten.
    static_assert(BUCKET < 32, "updates of a leaf are bits of one word");
    const u32 updates = (1u << item.n_updates) - 1;
    u32 below = 0, later = 0;
    if (n_updates_max > 1) {
#pragma unroll 1
        for (u32 j = 0; j < n_updates_max; j++) {
            const u64 key = leaf.records[j].key;
            const u32 update = leaf.records[j].update & ~DELETES;
            if (key < record.key) below |= 1u << j;
            if (key == record.key && update > number) later |= 1u << j;
        }
    }
    changes.below = below & updates;
    changes.acts = mine && (later & updates) == 0;
    const bool adds = changes.acts && !changes.deletes && !changes.found;
    const bool removes = changes.acts && changes.deletes && changes.found;
    changes.added = __ballot_sync(ALL_LANES, adds) >> first_lane & TILE_LANES;
    changes.removed = __ballot_sync(ALL_LANES, removes) >> first_lane & TILE_LANES;
    return changes;
}

// Merges the leaf in place: its keys to where they belong after the changes, and the updates among them.
__device__ __forceinline__ void merge_keys(
    TileLeaf& leaf, const Item& item, const Record& record, const Changes& changes, u32 n_updates_max)
{
    constexpr u32 EACH = 0x01010101u, BIAS = BUCKET;
    static_assert(LANE_SLOTS == sizeof(EACH) && 2 * BIAS <= 0xff, "shifts, plus BIAS, are a byte for each slot");
    static_assert(8 * (LEAF_SLOTS + 1) <= 0xffff, "a place in bits stands in the lower half of a word");
    const u32 position = lane_number() % TILE, first = position * LANE_SLOTS;
    const int adds = changes.added >> position & 1, removes = changes.removed >> position & 1;
    __syncwarp();  // every lane has looked its key up
    if (removes) leaf.keys[changes.place] = EMPTY_KEY;
    // Every update shifts the slots from some one on: by how much the lane's own, a byte for each, plus BIAS.
    const u32 own = (changes.place + removes) * 8 | u32(1 + adds - removes) << 16;
    u32 shifts = EACH * BIAS;
    for (u32 j = 0; j < n_updates_max; j++) {
        const u32 other = __shfl_sync(ALL_LANES, own, j, TILE);
        const int from = int(other & 0xffff) - int(first * 8);
        shifts += u32(u64(EACH) << min(max(from, 0), 32)) * (u32(other >> 16) - 1);
    }
    __syncwarp();
    const KeyPair low = *reinterpret_cast<const KeyPair*>(leaf.keys + first);
    const KeyPair high = *reinterpret_cast<const KeyPair*>(leaf.keys + first + 2);
#if WEIGHTED
    const WeightQuad weights = *reinterpret_cast<const WeightQuad*>(leaf.weights + first);
#endif
    __syncwarp();  // every lane holds its slots
#pragma unroll
    for (u32 s = 0; s < LANE_SLOTS; s++) {
        const u64 key = s < 2 ? low.key[s & 1] : high.key[s & 1];
        const u32 by = shifts >> (8 * s) & 0xff, to = first + s + by - BIAS;
        if (by != BIAS && first + s < item.count && u32(key >> 32) != NO_ROW) {
            leaf.keys[to] = key;
#if WEIGHTED
            leaf.weights[to] = weights.weight[s];
#endif
        }
    }
    __syncwarp();
    if (changes.acts && !changes.deletes) {
        const u32 to = changes.place + __popc(changes.added & changes.below) - __popc(changes.removed & changes.below);
        leaf.keys[to] = record.key;
#if WEIGHTED
        leaf.weights[to] = record.weight;
#endif
    }
    __syncwarp();
}

// Writes the merged leaf of ``count`` keys from the first slot that changes on.
__device__ __forceinline__ void write_leaf(
    const State& state, const Lane& lane, const Item& item, const TileLeaf& leaf, const Changes& changes, u32 count)
{
    const u32 position = lane_number() % TILE;
    const bool left = lane_number() < TILE;
    const u64 slot = u64(item.leaf) << LEAF_SHIFT;
    const u32 changed = changes.acts && (changes.found || !changes.deletes) ? changes.place : TILE_SLOTS;
    const u32 first_left = __reduce_min_sync(ALL_LANES, left ? changed : TILE_SLOTS);
    const u32 first_right = __reduce_min_sync(ALL_LANES, left ? TILE_SLOTS : changed);
    const u32 first = left ? first_left : first_right, end = min(count, LEAF_SLOTS);
    if (changes.added | changes.removed) {
#pragma unroll
        for (u32 h = 0; h < LANE_SLOTS / 2; h++) {
            const u32 at = 2 * (h * TILE + position);
            if (at + 1 >= first && at < end)
                store_wide(
                    reinterpret_cast<KeyPair*>(lane.keys + slot + h * 2 * TILE),
                    *reinterpret_cast<const KeyPair*>(leaf.keys + at));
        }
    }
#if WEIGHTED
    const u32 at = position * LANE_SLOTS;
    if (at + 3 >= first && at < end)
        store_wide(
            reinterpret_cast<WeightQuad*>(lane.weights + slot),
            *reinterpret_cast<const WeightQuad*>(leaf.weights + at));
#endif
    static_assert(TILE_SLOTS - LEAF_SLOTS == TILE, "a lane for each key beyond the slots");
    const u32 beyond = LEAF_SLOTS + position;
    if (beyond < count) {
        Record record;
        record.key = leaf.keys[beyond];
        record.weight = 1.0f;
        record.update = 0;
#if WEIGHTED
        record.weight = leaf.weights[beyond];
#endif
        store_wide(state.records + item.begin + position, record);
    }
}

// Merges one leaf in each half of a warp, all lanes taking part; a tile without one has an item of zeros.
__device__ __forceinline__ void merge_leaf(
    const State& state, const Lane& lane, const Item& item, TileLeaf& leaf, u64& outcomes)
{
    const u32 position = lane_number() % TILE;
    const bool mine = position < item.n_updates;
    Record record;
    record.key = EMPTY_KEY;
    record.weight = 1.0f;
    record.update = 0;
    if (mine) record = leaf.records[position];
    const u32 n_updates_max = max(item.n_updates, __shfl_xor_sync(ALL_LANES, item.n_updates, TILE));
    const Changes changes = look_up(leaf, item, record, n_updates_max);
#if WEIGHTED
    const float old_weight = changes.acts && changes.found ? leaf.weights[changes.place] : 0.0f;
#endif
    merge_keys(leaf, item, record, changes, n_updates_max);
    const u32 count = item.count + __popc(changes.added) - __popc(changes.removed);
    write_leaf(state, lane, item, leaf, changes, count);
    count_degrees(state, mine, record.key, changes.added, changes.removed);
    if (mine) {
        const u32 number = record.update & ~DELETES;
        const u32 outcome
            = changes.deletes ? (changes.found ? DELETED : ABSENT) : (changes.found ? OVERWRITTEN : INSERTED);
        if (!changes.acts || changes.found != changes.deletes)
            state.outcome[number] = u8(changes.acts ? outcome : SUPERSEDED);
#if WEIGHTED
        if (changes.acts && changes.found) state.old_weights[number] = old_weight;
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

// Item i, if it exists, else zeros. Nothing here may depend on what is loaded: it is needed two leaves later.
__device__ __forceinline__ Item load_item(const State& state, u32 i, bool exists)
{
    Item item = {0, 0, 0, 0};
    if (exists) item = load_wide(state.items + i);
    return item;
}

// Merges ``n_items`` leaves, AT_ONCE (1 or 2) in a warp.
// ``spaces``: shared memory for each tile of the block; ``block_totals``: for four words.
template <u32 AT_ONCE>
__device__ __forceinline__ void merge_items(const State& state, u32 n_items, TileSpace* spaces, u32* block_totals)
{
    static_assert(AT_ONCE == 1 || AT_ONCE == 32 / TILE, "a warp has two tiles");
    const u32 tile = lane_number() / TILE, warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
    const u32 step = gridDim.x * (blockDim.x >> 5) * AT_ONCE;
    const bool has_items = AT_ONCE == 32 / TILE || tile < AT_ONCE;
    TileSpace& space = spaces[threadIdx.x / TILE];
    const Lane lane = lane_of(state, space);
    u64 outcomes = 0;
    u32 own = warp * AT_ONCE + tile, parity = 0;
    Item item = load_item(state, own, has_items && own < n_items);
    Item next = load_item(state, own + step, has_items && own + step < n_items);
    fetch(lane, item, 0);
    for (u32 first = warp * AT_ONCE; first < n_items; first += step, own += step, parity ^= 1) {
        const u32 later = own + 2 * step;
        const Item after = load_item(state, later, has_items && later < n_items);
        fetch(lane, next, parity ^ 1);
        copy_async_wait<1>();
        __syncwarp();
        if (__any_sync(ALL_LANES, item.n_updates > 0)) {
            if (item.n_updates == 0) item.count = 0;
            merge_leaf(state, lane, item, space.leaves[parity], outcomes);
            if (item.n_updates && lane_number() % TILE == 0) state.items[own].n_updates = 0;
        }
        item = next;
        next = after;
    }
    add_outcomes(state, outcomes, block_totals);
}
