// Updates that are sorted before they are applied: those of heavy leaves, merged in place, and whole batches that
// are merged with the array into a new one (growth, batches that are large against the graph, shrinking).
#include "array.cuh"
#include "intrinsics.cuh"
#include "rebalance.cuh"
#include "run.cuh"
#include "status.cuh"

extern "C" __global__ __launch_bounds__(RUN_THREADS) void probe_run(
    const __grid_constant__ State state, const __grid_constant__ Batch batch, const __grid_constant__ Run run)
{
    __shared__ u32 block_totals[4];
    u64 outcomes = 0;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < run.n; i += u64(gridDim.x) * blockDim.x)
    {
        const u64 key = run.keys[i];
        const u32 leaf = row_exists(state, key) ? locate<1>(state, key) : state.n_leaves - 1;
        probe(state, batch, run, u32(i), leaf, outcomes);
    }
    add_outcomes(state, outcomes, block_totals);
}

// Tells the host what a probe of the whole batch found, and forgets it. One warp.
extern "C" __global__ void tell_totals(const __grid_constant__ State state, const __grid_constant__ Batch batch)
{
    Counters* counters = state.counters;
    tell(state, batch, status_word(state, load_cached(&counters->bad_row) ? BAD_ROW : DONE));
    __syncwarp();
    if (threadIdx.x) return;
    for (u32 i = 0; i < 4; i++) counters->totals[i] = 0;
    counters->bad_row = 0;
}

// -- heavy leaves ----------------------------------------------------------------------------------------------

// Merges what stays of each heavy leaf's keys, a warp for each.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void merge_heavy(
    const __grid_constant__ State state, const __grid_constant__ Batch batch, const __grid_constant__ Run run)
{
    const u32 n_heavy = u32(load_cached(&state.counters->heavy) >> 32);
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, n_warps = gridDim.x * (blockDim.x >> 5);
    for (u32 h = warp; h < n_heavy; h += n_warps) {
        Item item = load_wide(state.items + state.room - 1 - h);
        const u32 begin = lower_bound(run.leaf, item.leaf, 0, run.n);
        const u32 end = lower_bound(run.leaf, item.leaf + 1, begin, run.n);
        item.begin = batch.n - run.n + begin;
        merge_kept(state, batch, run, item, begin, end);
    }
}

// Puts the new keys of the run among those of their leaves, and counts its changes in the rows.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void add_heavy(
    const __grid_constant__ State state, const __grid_constant__ Batch batch, const __grid_constant__ Run run)
{
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    const u32 records = i < run.n ? load_cached(state.pending + run.leaf[i]) : 0;
    add_new(state, batch, run, i, records, records - (batch.n - run.n));
}

// -- a new array -----------------------------------------------------------------------------------------------

extern "C" __global__ __launch_bounds__(RUN_THREADS) void find_leaf_begins(
    const __grid_constant__ State state, const __grid_constant__ Run run)
{
    const u64 leaf = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (leaf <= state.n_leaves) run.leaf_begin[leaf] = lower_bound(run.leaf, u32(leaf), 0, run.n);
}

__device__ __forceinline__ void put_at_rank(const State& target, const Spread& spread, u64 rank, u64 key, float weight)
{
    const u64 cut = spread.extra * (spread.share + 1);
    // Most ranks fit into 32 bits, which divide several times faster.
    const u64 size = rank < cut ? spread.share + 1 : spread.share, past = rank < cut ? rank : rank - cut;
    u64 leaf = past >> 32 ? past / size : u64(u32(past) / u32(size));
    const u64 into = past - leaf * size;
    if (rank >= cut) leaf += spread.extra;
    const u64 slot = (leaf << LEAF_SHIFT) + into;
    target.keys[slot] = key;
#if WEIGHTED
    target.weights[slot] = weight;
#endif
}

// Copies what stays of each leaf, a warp for each, to its place among the keys of the new array.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void rebuild_kept(
    const __grid_constant__ State state, const __grid_constant__ State target, const __grid_constant__ Batch batch,
    const __grid_constant__ Run run, const u64 n_edges)
{
    const Spread spread(n_edges, target.n_leaves);
    const u64 warp = (u64(blockIdx.x) * blockDim.x + threadIdx.x) >> 5, n_warps = u64(gridDim.x) * (blockDim.x >> 5);
    for (u64 leaf = warp; leaf < state.n_leaves; leaf += n_warps) {
        const u32 count = state.counts[leaf], begin = run.leaf_begin[leaf], end = run.leaf_begin[leaf + 1];
        const u64 rank = run.ranks[leaf] - count;
        for (u32 i = lane_number(); i < count; i += 32) {
            const u64 slot = (leaf << LEAF_SHIFT) + i, key = state.keys[slot];
            const Fate fate = fate_of(batch, run, key, begin, end);
            if (fate.removed) continue;
            float weight = 1.0f;
#if WEIGHTED
            weight = fate.named ? weight_of(batch, fate.update) : state.weights[slot];
#endif
            put_at_rank(target, spread, rank + i + run.before[fate.smaller], key, weight);
        }
    }
}

// Puts the new keys of the run into the new array, and counts its changes in the rows.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void rebuild_added(
    const __grid_constant__ State state, const __grid_constant__ State target, const __grid_constant__ Batch batch,
    const __grid_constant__ Run run, const u64 n_edges)
{
    const Spread spread(n_edges, target.n_leaves);
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    const u64 key = i < run.n ? run.keys[i] : EMPTY_KEY;
    const int change = i < run.n ? run.change[i] : 0;
    count_degree(state, key, change);
    if (change <= 0) return;
    const u32 leaf = run.leaf[i];
    const u64 rank = run.ranks[leaf] - state.counts[leaf] + run.place[i] + run.before[i];
    put_at_rank(target, spread, rank, key, weight_of(batch, u32(run.updates[i])));
}

// Counts, heads and row index of an array whose keys stand evenly spread in their slots; a warp for each leaf.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void index_leaves(
    const __grid_constant__ State state, const u64 n_edges)
{
    const Spread spread(n_edges, state.n_leaves);
    const u64 warp = (u64(blockIdx.x) * blockDim.x + threadIdx.x) >> 5, n_warps = u64(gridDim.x) * (blockDim.x >> 5);
    for (u64 leaf = warp; leaf < state.n_leaves; leaf += n_warps) {
        const u64 slot = leaf << LEAF_SHIFT;
        const u32 count = u32(spread.share + (leaf < spread.extra));
        for (u32 i = lane_number(); i < count; i += 32) {
            const u64 key = state.keys[slot + i], least = key >> 32 << 32;
            const u64 last = spread.share - 1 + (leaf - 1 < spread.extra);  // of the leaf before
            const u64 before = i ? state.keys[slot + i - 1] : leaf ? state.keys[slot - LEAF_SLOTS + last] : ~key;
            if (before >> 32 != key >> 32)
                state.rows[key >> 32].leaf = u32(leaf - (i == 0 && leaf > 0 && key != least));
        }
        if (lane_number() == 0) {
            state.counts[leaf] = count;
            state.heads[leaf] = leaf == 0 ? 0 : count ? state.keys[slot] : EMPTY_KEY;
            if (leaf == 0) state.heads[state.n_leaves] = EMPTY_KEY;
        }
    }
}
