// Applying a batch of updates where no leaf gets more of them than a block can sort; sorted.cu has the other leaves.
//
// Batches of up to some ten thousand: update_small alone, whose stages wait for each other at barriers of the grid.
// Larger ones, and those of which a leaf gets more updates than a tile can merge: locate_updates, allocate_by_update or
// allocate_by_leaf, place_updates, merge_leaves, and rebalance, which merges the leaves with many updates first.
// Until merge_leaves only work arrays are written; it does nothing when huge leaves wait or a row does not exist.
// Of either way there is one for both arrays of a graph at a time, each by one of two rows of blocks, which do not wait
// for each other: ``..._both``.
#include "array.cuh"
#include "intrinsics.cuh"
#include "bulk.cuh"
#include "rebalance.cuh"
#include "status.cuh"

constexpr u32 FEW_UPDATES = 1u << 18;  // up to so many, searches are bound by how long a look takes

// Whether the leaves must not be merged now, and why.
__device__ __forceinline__ u32 obstacle(const State& state, const Batch& batch)
{
    const u32 bad_row = load_cached(&state.counters->bad_row), n_huge = load_cached(&state.counters->n_huge);
    return bad_row ? BAD_ROW : n_huge && !batch.heavy_merged ? HEAVY : DONE;
}

// Tells the host what happened, by one block; unless heavy leaves still wait, all work arrays become zero again.
// ``told``: this thread's word of the status.
__device__ __forceinline__ void finish(const State& state, const Batch& batch, u32 told, bool keeps_heavy)
{
    tell(state, batch, told);
    Counters* counters = state.counters;
    const u32 n_windows = load_cached(&counters->n_windows), n_large = load_cached(&counters->n_large);
    for (u32 i = threadIdx.x; i < n_windows; i += blockDim.x) state.marks[load_cached(state.window_begin + i)] = 0;
    for (u32 i = threadIdx.x; i < n_large; i += blockDim.x)
        state.marks[load_cached(state.window_begin + state.room - 1 - i)] = 0;
    __syncthreads();
    if (threadIdx.x || keeps_heavy) return;
    counters->light = counters->heavy = counters->slots_moved = 0;
    counters->n_huge = 0;
    for (u32 i = 0; i < 4; i++) counters->totals[i] = 0;
    counters->n_unfit = counters->n_tall = counters->n_windows = counters->n_large = counters->bad_row = 0;
}

__device__ __forceinline__ void rebalance_and_finish(const State& state, const Batch& batch, u64* shared_memory)
{
    // Mostly there is nothing to redistribute: the status is read at the same time as that.
    u32 told = status_word(state, DONE);
    if (load_cached(&state.counters->n_unfit)) {
        find_windows(state);
        redistribute(state, stage_in(shared_memory));
        told = status_word(state, DONE);
    }
    if (blockIdx.x == 0) finish(state, batch, told, false);
}

// All of a small batch, whose columns are read where ``columns`` has them, by a row of the grid's blocks.
__device__ __forceinline__ void apply_small(
    const State& state, const Batch& batch, const Batch& columns, u64* shared_memory, u32* block_totals)
{
    const u32 n_warps = gridDim.x * (blockDim.x >> 5);
    if (batch.n <= n_warps) locate_small<32>(state, columns);
    else if (batch.n <= n_warps * 8) locate_small<8>(state, columns);
    else locate_small<1>(state, columns);
    grid_barrier(&state.counters->barrier);
    if (const u32 flags = obstacle(state, batch)) {
        forget_updates(state, batch);
        grid_barrier(&state.counters->barrier);
        if (blockIdx.x == 0) finish(state, batch, status_word(state, flags), false);
        return;
    }
    TileSpace* spaces = reinterpret_cast<TileSpace*>(shared_memory);
    if (batch.n <= n_warps) merge_items<1>(state, batch.n, spaces, block_totals);
    else merge_items<32 / TILE>(state, batch.n, spaces, block_totals);
    grid_barrier(&state.counters->barrier);
    rebalance_and_finish(state, batch, shared_memory);
}

// ``room`` of the records is for BUCKET each. A cooperative launch with SHARED_BYTES of shared memory.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void update_small(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    extern __shared__ __align__(16) u64 shared_memory[];
    __shared__ u32 block_totals[4];
    apply_small(state, batch, batch, shared_memory, block_totals);
}

// Brings columns that wait to where the batch has them; by a row of the grid's blocks, of which the last ones begin,
// since the first ones locate.
__device__ __forceinline__ void bring(const Waiting& waiting, const Batch& batch)
{
    const u32 n_threads = gridDim.x * blockDim.x;
    for (u32 i = n_threads - 1 - (blockIdx.x * blockDim.x + threadIdx.x); i < batch.n; i += n_threads) {
        const_cast<u64*>(batch.keys)[i] = waiting.keys[i];
        const_cast<u8*>(batch.ops)[i] = waiting.ops[i];
        if (batch.weights) const_cast<float*>(batch.weights)[i] = waiting.weights[i];
    }
}

// Both arrays have the same columns, which may wait on the host.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void update_both(const __grid_constant__ Directions both)
{
    extern __shared__ __align__(16) u64 shared_memory[];
    __shared__ u32 block_totals[4];
    const State& state = both.states[blockIdx.y];
    const Batch& batch = both.batches[blockIdx.y];
    Batch columns = batch;
    if (both.waiting.keys) {
        columns.keys = both.waiting.keys;
        columns.ops = both.waiting.ops;
        if (batch.weights) columns.weights = both.waiting.weights;
        if (blockIdx.y == 0) bring(both.waiting, batch);
    }
    apply_small(state, batch, columns, shared_memory, block_totals);
}

// One thread for each update.
__device__ __forceinline__ void locate_each(const State& state, const Batch& batch)
{
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (batch.n <= FEW_UPDATES) locate_and_count<LOOKS_FEW>(state, batch, i);
    else locate_and_count<1>(state, batch, i);
}

extern "C" __global__ __launch_bounds__(LOCATE_THREADS) void locate_updates(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    locate_each(state, batch);
}

extern "C" __global__ __launch_bounds__(LOCATE_THREADS) void locate_both(const __grid_constant__ Directions both)
{
    locate_each(both.states[blockIdx.y], both.batches[blockIdx.y]);
}

// For batches that reach few of the leaves: the first update of each leaf acts for it.
__device__ __forceinline__ void allocate_for_updates(const State& state, const Batch& batch)
{
    __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
    __shared__ u64 base;
    for (u64 first = u64(blockIdx.x) * blockDim.x; first < batch.n; first += u64(gridDim.x) * blockDim.x) {
        const u64 i = first + threadIdx.x;
        u32 leaf = NO_LEAF;
        if (i < batch.n && load_cached(state.update_rank + i) == 0) leaf = load_cached(state.update_leaf + i);
        const u32 n_updates = leaf == NO_LEAF ? 0 : load_cached(state.pending + leaf);
        allocate_records(state, batch, leaf, n_updates, sums, &base);
    }
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void allocate_by_update(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    allocate_for_updates(state, batch);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void allocate_by_update_both(
    const __grid_constant__ Directions both)
{
    allocate_for_updates(both.states[blockIdx.y], both.batches[blockIdx.y]);
}

// For batches that reach many of the leaves; they are then merged in about their order.
__device__ __forceinline__ void allocate_for_leaves(const State& state, const Batch& batch)
{
    __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
    __shared__ u64 base;
    for (u64 first = u64(blockIdx.x) * blockDim.x; first < state.n_leaves; first += u64(gridDim.x) * blockDim.x) {
        const u64 leaf = first + threadIdx.x;
        const u32 n_updates = leaf < state.n_leaves ? load_cached(state.pending + leaf) : 0;
        allocate_records(state, batch, u32(leaf), n_updates, sums, &base);
    }
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void allocate_by_leaf(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    allocate_for_leaves(state, batch);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void allocate_by_leaf_both(
    const __grid_constant__ Directions both)
{
    allocate_for_leaves(both.states[blockIdx.y], both.batches[blockIdx.y]);
}

// One thread for each update.
__device__ __forceinline__ void place_each(const State& state, const Batch& batch)
{
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch.n) return;
    const u32 leaf = load_cached(state.update_leaf + i);
    if (leaf == NO_LEAF) return;
    const u32 at = load_cached(state.pending + leaf) + load_cached(state.update_rank + i);
    const Record record = record_of(batch, i, key_of(batch, i));
    store_wide(state.records + at, record);
    expect(state, i, record);
}

extern "C" __global__ __launch_bounds__(LOCATE_THREADS) void place_updates(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    place_each(state, batch);
}

extern "C" __global__ __launch_bounds__(LOCATE_THREADS) void place_both(const __grid_constant__ Directions both)
{
    place_each(both.states[blockIdx.y], both.batches[blockIdx.y]);
}

// Takes back what heavy leaves left in work arrays, but for where the keys beyond their slots are.
__device__ __forceinline__ void release_heavy(const State& state)
{
    const u32 n_heavy = u32(load_cached(&state.counters->heavy) >> 32);
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n_heavy; i += gridDim.x * blockDim.x) {
        const u32 item = state.room - 1 - i, leaf = load_cached(&state.items[item].leaf);
        state.items[item].n_updates = 0;
        if (load_cached(state.counts + leaf) <= LEAF_SLOTS) state.pending[leaf] = 0;
    }
}

__device__ __forceinline__ void merge_located(
    const State& state, const Batch& batch, TileSpace* spaces, u32* block_totals)
{
    if (obstacle(state, batch)) return;
    if (batch.heavy_merged) release_heavy(state);
    const u32 n_items = u32(load_cached(&state.counters->light) >> 32);
    merge_items<32 / TILE>(state, n_items, spaces, block_totals);
}

extern "C" __global__ __launch_bounds__(MERGE_THREADS, MERGE_BLOCKS) void merge_leaves(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    __shared__ TileSpace spaces[MERGE_THREADS / TILE];
    __shared__ u32 block_totals[4];
    merge_located(state, batch, spaces, block_totals);
}

extern "C" __global__ __launch_bounds__(MERGE_THREADS, MERGE_BLOCKS) void merge_both(
    const __grid_constant__ Directions both)
{
    __shared__ TileSpace spaces[MERGE_THREADS / TILE];
    __shared__ u32 block_totals[4];
    merge_located(both.states[blockIdx.y], both.batches[blockIdx.y], spaces, block_totals);
}

// Merges leaves with more updates than a tile can hold, and redistributes, by a row of the grid's blocks.
__device__ __forceinline__ void merge_bulk_and_rebalance(
    const State& state, const Batch& batch, u64* shared_memory, u32* sums, u32* block_totals)
{
    const u32 flags = obstacle(state, batch);
    if (flags == DONE) {
        if (load_cached(&state.counters->heavy) && !batch.heavy_merged) {
            merge_bulk(state, batch, shared_memory, sums, block_totals);
            grid_barrier(&state.counters->barrier);
        }
        return rebalance_and_finish(state, batch, shared_memory);
    }
    if (flags == BAD_ROW) {
        forget_updates(state, batch);
        grid_barrier(&state.counters->barrier);
    }
    if (blockIdx.x == 0) finish(state, batch, status_word(state, flags), flags == HEAVY);
}

// A cooperative launch with STAGE_BYTES of shared memory.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void rebalance(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    extern __shared__ __align__(16) u64 shared_memory[];
    __shared__ u32 block_totals[4];
    __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
    merge_bulk_and_rebalance(state, batch, shared_memory, sums, block_totals);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void rebalance_both(const __grid_constant__ Directions both)
{
    extern __shared__ __align__(16) u64 shared_memory[];
    __shared__ u32 block_totals[4];
    __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
    merge_bulk_and_rebalance(both.states[blockIdx.y], both.batches[blockIdx.y], shared_memory, sums, block_totals);
}

// Gives up a batch whose heavy leaves cannot be merged for want of memory. A cooperative launch.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void abandon(
    const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    forget_updates(state, batch);
    grid_barrier(&state.counters->barrier);
    if (blockIdx.x == 0) finish(state, batch, status_word(state, DONE), false);
}
