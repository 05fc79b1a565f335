// A run: updates in ascending order of their keys, those of one key in the order of the batch. Each is looked up,
// and sums over what the updates before it change say where every key goes, so that all move at once.
#pragma once

#include "merge.cuh"

// Work arrays of sorted.py; passed to kernels by value.
struct Run {
    const u64* keys;           // [n] ascending
    const long long* updates;  // [n] their positions in the batch
    u32* leaf;                 // [n] where each belongs
    u8* place;                 // [n] keys of the leaf that are smaller
    int* change;               // [n] 1: adds its key, -1: removes it, 0: neither
    int* before;               // [n + 1] sums of the changes before each
    const u64* ranks;          // rebuild: [n_leaves] keys in the leaves up to each, itself included
    u32* leaf_begin;           // rebuild: [n_leaves + 1] the first update of each leaf or of a later one
    u32 n;
    u32 unused;
};
static_assert(__is_trivially_copyable(Run), "the host passes its bytes");
static_assert(LEAF_SLOTS <= 0xff, "a place in a leaf, its end included, is a byte");

// The first position from ``low`` to ``high`` whose value is not below ``value``; ``high`` if there is none.
template <class T> __device__ __forceinline__ u32 lower_bound(const T* values, T value, u32 low, u32 high)
{
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (values[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The last update of this key, the first of which is at ``first``, of those before ``end``.
__device__ __forceinline__ u32 last_of_key(const Run& run, u32 first, u32 end)
{
    const u64 key = run.keys[first];
    if (first + 1 == end || run.keys[first + 1] != key) return first;
    return lower_bound(run.keys, key + 1, first + 1, end) - 1;
}

__device__ __forceinline__ float weight_of(const Batch& batch, u32 update)
{
    return WEIGHTED && batch.weights ? batch.weights[update] : 1.0f;
}

// Looks update i of the run up in its leaf, and reports on it.
__device__ __forceinline__ void probe(
    const State& state, const Batch& batch, const Run& run, u32 i, u32 leaf, u64& outcomes)
{
    const u64 key = run.keys[i];
    const u32 update = u32(run.updates[i]);
    const u64 first_slot = u64(leaf) << LEAF_SHIFT;
    const u32 count = state.counts[leaf];
    const u32 place = lower_bound<u64>(state.keys + first_slot, key, 0, count);
    const bool found = place < count && state.keys[first_slot + place] == key;
    const bool acts = i + 1 == run.n || run.keys[i + 1] != key, deletes = batch.ops[update] == OP_DELETE;
    const u32 outcome = deletes ? (found ? DELETED : ABSENT) : (found ? OVERWRITTEN : INSERTED);
    run.leaf[i] = leaf;
    run.place[i] = u8(place);
    run.change[i] = !acts || found != deletes ? 0 : (deletes ? -1 : 1);
    state.outcome[update] = u8(acts ? outcome : SUPERSEDED);
#if WEIGHTED
    state.old_weights[update] = acts && found ? state.weights[first_slot + place] : 0.0f;
#endif
    if (acts) outcomes += u64(1) << (OUTCOME_BITS * outcome);
}

// What becomes of a key of the array when the run is applied.
struct Fate {
    u32 smaller;   // position in the run of the first update whose key is not smaller
    u32 update;    // position in the batch of the update that decides, where there is one
    bool named;    // there is one
    bool removed;
};

__device__ __forceinline__ Fate fate_of(const Batch& batch, const Run& run, u64 key, u32 begin, u32 end)
{
    Fate fate = {lower_bound(run.keys, key, begin, end), 0, false, false};
    fate.named = fate.smaller < end && run.keys[fate.smaller] == key;
    if (fate.named) {
        fate.update = u32(run.updates[last_of_key(run, fate.smaller, end)]);
        fate.removed = batch.ops[fate.update] == OP_DELETE;
    }
    return fate;
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

// Adds to the lengths of rows what update i of the run changes; the lanes of a warp that mean one row add together.
// ``change`` is 0 for lanes without an update; all lanes of the warp take part.
__device__ __forceinline__ void count_degree(const State& state, u64 key, int change)
{
    const u32 row = u32(key >> 32), peers = __match_any_sync(ALL_LANES, row);
    const u32 added = __ballot_sync(ALL_LANES, change > 0) & peers;
    const u32 removed = __ballot_sync(ALL_LANES, change < 0) & peers;
    const int sum = __popc(added) - __popc(removed);
    if (sum && lane_number() == __ffs(peers) - 1) atomicAdd(&state.rows[row].degree, u32(sum));
}

// Merges what stays of a leaf's keys with updates ``begin`` to ``end`` of the run, all of which are its own; where
// their new keys go is left free. A warp takes part. Keys beyond the slots go to the item's records, which the run has
// replaced.
__device__ __forceinline__ void merge_kept(
    const State& state, const Batch& batch, const Run& run, const Item& item, u32 begin, u32 end)
{
    constexpr u32 HELD = LEAF_SLOTS / 32;  // keys that a lane holds
    static_assert(HELD * 32 == LEAF_SLOTS, "the lanes of a warp hold a leaf");
    const u64 first_slot = u64(item.leaf) << LEAF_SHIFT;
    const int changed = run.before[begin];
    u64 key[HELD];
    float weight[HELD];
    u32 to[HELD];
    for (u32 s = 0; s < HELD; s++) {
        const u32 slot = s * 32 + lane_number();
        to[s] = NO_LEAF;
        if (slot >= item.count) continue;
        key[s] = load_cached(state.keys + first_slot + slot);
        weight[s] = 1.0f;
        const Fate fate = fate_of(batch, run, key[s], begin, end);
        if (fate.removed) continue;
        to[s] = slot + run.before[fate.smaller] - changed;
#if WEIGHTED
        weight[s] = fate.named ? weight_of(batch, fate.update) : load_cached(state.weights + first_slot + slot);
#endif
    }
    __syncwarp();
    for (u32 s = 0; s < HELD; s++)
        if (to[s] != NO_LEAF) put(state, item, to[s], key[s], weight[s]);
    if (lane_number() == 0) {
        const u32 count = item.count + run.before[end] - changed;
        state.counts[item.leaf] = count;
        state.pending[item.leaf] = item.begin;
        const bool too_few = count < item.count && count < LEAF_LEAST && state.n_leaves > 1;
        if (count > LEAF_SLOTS || too_few) state.unfit[atomicAdd(&state.counters->n_unfit, 1u)] = item.leaf;
    }
}

// Puts update i of the run among the keys of its leaf, if it adds one, and counts its change in its row. The leaf's
// records are those from ``records`` on, its updates those from ``begin`` on; all lanes of the warp take part.
__device__ __forceinline__ void add_new(
    const State& state, const Batch& batch, const Run& run, u64 i, u32 records, u32 begin)
{
    const u64 key = i < run.n ? run.keys[i] : EMPTY_KEY;
    const int change = i < run.n ? run.change[i] : 0;
    count_degree(state, key, change);
    if (change <= 0) return;
    const Item item = {run.leaf[i], records, 0, 0};
    put(state, item, run.place[i] + run.before[i] - run.before[begin], key, weight_of(batch, u32(run.updates[i])));
}
