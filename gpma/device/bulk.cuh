// Merging leaves with more updates than a tile can hold, but not more than a block can sort in shared memory. Such
// leaves are common: edges of new vertices, in the order in which these come, all belong at the end of the array.
#pragma once

#include "rebalance.cuh"
#include "run.cuh"

constexpr u32 BULK_BYTES = BULK * (8 + 8 + 4 + 4 + 4 + 1) + 8;
static_assert(BULK_BYTES <= STAGE_BYTES, "a block's run fits into its stage");
static_assert((BULK & (BULK - 1)) == 0, "what is sorted is filled up to a power of two");

// A run of one leaf's updates in shared memory.
__device__ __forceinline__ Run run_in(u64* shared_memory, u32 n)
{
    Run run;
    u64* keys = shared_memory;
    long long* updates = reinterpret_cast<long long*>(keys + BULK);
    run.keys = keys;
    run.updates = updates;
    run.leaf = reinterpret_cast<u32*>(updates + BULK);
    run.change = reinterpret_cast<int*>(run.leaf + BULK);
    run.before = run.change + BULK;
    run.place = reinterpret_cast<u8*>(run.before + BULK + 1);
    run.ranks = nullptr;
    run.leaf_begin = nullptr;
    run.n = n;
    run.unused = 0;
    return run;
}

// Sorts by key, then by position in the batch: a bitonic sort of ``size`` entries, a power of two, by the block.
__device__ __forceinline__ void sort_entries(u64* keys, long long* updates, u32 size)
{
    for (u32 span = 2; span <= size; span *= 2) {
        for (u32 step = span / 2; step; step /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const u32 low = (i & ~(step - 1)) * 2 + (i & (step - 1)), high = low + step;
                const bool after = keys[low] > keys[high] || (keys[low] == keys[high] && updates[low] > updates[high]);
                if (after != ((low & span) == 0)) continue;
                const u64 key = keys[low];
                const long long update = updates[low];
                keys[low] = keys[high];
                updates[low] = updates[high];
                keys[high] = key;
                updates[high] = update;
            }
            __syncthreads();
        }
    }
}

// Fills run.before from run.change; ``sums``: shared memory for a scan.
__device__ __forceinline__ void sum_changes(const Run& run, int* sums)
{
    constexpr u32 EACH = BULK / BLOCK_THREADS;
    static_assert(EACH * BLOCK_THREADS == BULK, "the threads of a block sum up a whole run");
    int own = 0, total;
    for (u32 j = 0; j < EACH; j++) {
        const u32 i = threadIdx.x * EACH + j;
        own += i < run.n ? run.change[i] : 0;
    }
    int before = block_scan(own, sums, total);
    for (u32 j = 0; j < EACH; j++) {
        const u32 i = threadIdx.x * EACH + j;
        if (i < run.n) {
            run.before[i] = before;
            before += run.change[i];
        }
    }
    if (threadIdx.x == 0) run.before[run.n] = total;
    __syncthreads();
}

__device__ __forceinline__ void merge_bulk_leaf(
    const State& state, const Batch& batch, const Item& item, u64* shared_memory, int* sums, u64& outcomes)
{
    const Run run = run_in(shared_memory, item.n_updates);
    u64* keys = shared_memory;
    long long* updates = reinterpret_cast<long long*>(keys + BULK);
    const u32 size = 1u << (32 - __clz(item.n_updates - 1));
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
        keys[i] = EMPTY_KEY;
        updates[i] = i;
        if (i < item.n_updates) {
            const Record record = load_wide(state.records + item.begin + i);
            keys[i] = record.key;
            updates[i] = record.update & ~DELETES;
        }
    }
    __syncthreads();
    sort_entries(keys, updates, size);
    for (u32 i = threadIdx.x; i < run.n; i += blockDim.x) probe(state, batch, run, i, item.leaf, outcomes);
    __syncthreads();
    sum_changes(run, sums);
    if (threadIdx.x < 32) merge_kept(state, batch, run, item, 0, run.n);
    __syncthreads();
    for (u32 first = 0; first < run.n; first += blockDim.x) add_new(state, batch, run, first + threadIdx.x, item.begin, 0);
    if (threadIdx.x == 0 && load_cached(state.counts + item.leaf) <= LEAF_SLOTS) state.pending[item.leaf] = 0;
    __syncthreads();
}

// So many leaves may a thread count outcomes of, up to BULK / BLOCK_THREADS of each, before one has too many for its bits.
constexpr u32 MOST_COUNTED = ((1u << OUTCOME_BITS) - 1) / (BULK / BLOCK_THREADS);

// Merges all leaves with more updates than a tile can hold, a block for each.
__device__ __forceinline__ void merge_bulk(
    const State& state, const Batch& batch, u64* shared_memory, u32* sums, u32* block_totals)
{
    const u32 n_leaves = u32(load_cached(&state.counters->heavy) >> 32);
    u64 outcomes = 0;
    u32 n_counted = 0;
    for (u32 i = blockIdx.x; i < n_leaves; i += gridDim.x) {
        Item& taken = state.items[state.room - 1 - i];
        const Item item = load_wide(&taken);
        merge_bulk_leaf(state, batch, item, shared_memory, reinterpret_cast<int*>(sums), outcomes);
        if (threadIdx.x == 0) taken.n_updates = 0;
        if (++n_counted == MOST_COUNTED) {
            add_outcomes(state, outcomes, block_totals);
            outcomes = 0;
            n_counted = 0;
        }
    }
    add_outcomes(state, outcomes, block_totals);
}
