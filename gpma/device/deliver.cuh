// From updates in the order of the batch to the records of each leaf, side by side; nothing is sorted.
//
// Small batches: the first update that reaches a leaf becomes its owner and has a bucket for its records.
// Large ones take three passes: count the updates of each leaf, give each leaf a run of records, fill the runs.
#pragma once

#include "locate.cuh"

constexpr u32 LOOKS_FEW = 3;  // of a search, where updates are few
// The most updates of one leaf that a block sorts and merges. Leaves with more than BUCKET are heavy, with more than
// this huge.
constexpr u32 BULK = 2048;

// Of update i, as this array has it.
__device__ __forceinline__ u64 key_of(const Batch& batch, u32 i)
{
    const u64 key = batch.keys[i];
    return batch.is_turned ? key << 32 | key >> 32 : key;
}

__device__ __forceinline__ Record record_of(const Batch& batch, u32 i, u64 key)
{
    const bool deletes = batch.ops[i] == OP_DELETE;
    Record record;
    record.key = key;
    record.weight = WEIGHTED && batch.weights ? batch.weights[i] : 1.0f;
    record.update = i | (deletes ? DELETES : 0);
    return record;
}

// Reports the likely outcome of update i, in the order of the batch; a merge then writes, here and there, only what
// turned out otherwise.
__device__ __forceinline__ void expect(const State& state, u32 i, const Record& record)
{
    state.outcome[i] = record.update & DELETES ? DELETED : INSERTED;
#if WEIGHTED
    state.old_weights[i] = 0.0f;
#endif
}

// Whether the row of this key exists; remembers one that does not.
__device__ __forceinline__ bool row_exists(const State& state, u64 key)
{
    const u32 row = u32(key >> 32);
    if (row < state.n_vertices) return true;
    atomicMax(&state.counters->bad_row, min(row, NO_LEAF - 1) + 1);
    return false;
}

// Update i, of this leaf, into the bucket of the leaf's owner. ``record``: of the update, read long before.
__device__ __forceinline__ void deliver_to_owner(const State& state, u32 i, u32 leaf, const Record& record)
{
    const u32 count = load_cached(state.counts + leaf);
    state.update_leaf[i] = leaf;
    expect(state, i, record);
    u32 owner = atomicCAS(state.pending + leaf, 0u, i + 1);
    if (owner == 0) {
        owner = i + 1;
        Item& item = state.items[i];
        item.leaf = leaf;
        item.begin = i * BUCKET;
        item.count = count;
    }
    const u32 rank = atomicAdd(&state.items[owner - 1].n_updates, 1u);
    if (rank < BUCKET) store_wide(state.records + u64(owner - 1) * BUCKET + rank, record);
    else if (rank == BUCKET) atomicAdd(&state.counters->n_huge, 1u);
}

// All updates of a small batch, LANES lanes for each; the grid takes part.
template <u32 LANES> __device__ __forceinline__ void locate_small(const State& state, const Batch& batch)
{
    static_assert(32 % LANES == 0, "no lane of a warp is left over");
    const u32 per_warp = 32 / LANES;
    // Neighbouring warps of work go to different multiprocessors.
    const u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, n_warps = gridDim.x * (blockDim.x >> 5);
    for (u32 first = warp * per_warp; first < batch.n; first += n_warps * per_warp) {
        const u32 i = first + lane_number() / LANES, known = min(i, batch.n - 1);
        const u64 key = key_of(batch, known);
        const Record record = record_of(batch, known, key);
        const bool exists = row_exists(state, key);
        if (i < batch.n && lane_number() % LANES == 0 && !exists) state.update_leaf[i] = NO_LEAF;
        const u32 leaf = locate<LANES, LOOKS_FEW>(state, exists ? key : 0);
        if (i < batch.n && lane_number() % LANES == 0 && exists) deliver_to_owner(state, i, leaf, record);
    }
}

// Locates update i and counts it in its leaf; the lanes of a warp that mean the same leaf count together.
template <u32 LOOKS> __device__ __forceinline__ void locate_and_count(const State& state, const Batch& batch, u32 i)
{
    const u64 key = key_of(batch, min(i, batch.n - 1));
    const bool counts = row_exists(state, key) && i < batch.n;
    const u32 leaf = counts ? locate<1, LOOKS>(state, key) : NO_LEAF;
    const u32 peers = __match_any_sync(ALL_LANES, leaf);
    const u32 leader = __ffs(peers) - 1;
    u32 rank = 0;
    if (counts && lane_number() == leader) rank = atomicAdd(state.pending + leaf, u32(__popc(peers)));
    rank = __shfl_sync(ALL_LANES, rank, leader) + __popc(peers & lanes_before());
    if (i < batch.n) {
        state.update_leaf[i] = leaf;
        state.update_rank[i] = rank;
    }
}

// Gives a leaf with ``n_updates`` a run of records; all threads of the block take part, those without a leaf with 0.
// ``sums``: shared memory for a scan, and for one more value.
__device__ __forceinline__ void allocate_records(
    const State& state, const Batch& batch, u32 leaf, u32 n_updates, u32* sums, u64* base)
{
    static_assert(BLOCK_THREADS * BUCKET < 1u << 16, "leaves and records of a block are each counted in 16 bits");
    const bool light = n_updates > 0 && n_updates <= BUCKET;
    u32 total;  // leaves << 16 | records
    const u32 before = block_scan(light ? 1u << 16 | n_updates : 0u, sums, total);
    if (threadIdx.x == 0 && total)
        *base = atomicAdd(&state.counters->light, u64(total >> 16) << 32 | (total & 0xffff));
    __syncthreads();
    if (light) {
        const u32 item = u32(*base >> 32) + (before >> 16), begin = u32(*base) + (before & 0xffff);
        store_wide(state.items + item, Item{leaf, begin, n_updates, load_cached(state.counts + leaf)});
        state.pending[leaf] = begin;
    }
    const bool heavy = n_updates > BUCKET;
    if (__any_sync(ALL_LANES, heavy)) {
        const u64 own = heavy ? u64(1) << 32 | n_updates : 0;
        const u64 up_to_here = warp_scan(own);
        u64 others = 0;
        if (lane_number() == 31) others = atomicAdd(&state.counters->heavy, up_to_here);
        others = __shfl_sync(ALL_LANES, others, 31) + up_to_here - own;
        if (heavy) {
            const u32 item = state.room - 1 - u32(others >> 32), begin = batch.n - u32(others) - n_updates;
            store_wide(state.items + item, Item{leaf, begin, n_updates, load_cached(state.counts + leaf)});
            state.pending[leaf] = begin;
            if (n_updates > BULK) atomicAdd(&state.counters->n_huge, 1u);
        }
    }
    __syncthreads();
}

// Takes back everything that delivered updates left in work arrays; the grid takes part. What became of them is nothing:
// so kernels that were launched behind the batch hear.
__device__ __forceinline__ void forget_updates(const State& state, const Batch& batch)
{
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < batch.n; i += gridDim.x * blockDim.x) {
        const u32 leaf = load_cached(state.update_leaf + i);
        if (leaf != NO_LEAF) state.pending[leaf] = 0;
        state.items[i].n_updates = state.items[state.room - 1 - i].n_updates = 0;
        state.outcome[i] = ABSENT;
    }
}
