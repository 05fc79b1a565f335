// Where does a key belong? A binary search over the heads of the few leaves that its row may lie in.
// Nothing but the index of empty rows is written by kernels while they locate, so the first-level cache may serve.
#pragma once

#include "warp.cuh"

// The last leaf from ``low`` to ``high`` whose head is not above ``key``, that of ``low`` being known not to be.
// LANES neighbouring lanes search for one key together and see LANES heads at a time; all of the warp take part.
template <u32 LANES>
__device__ __forceinline__ u32 last_leaf(const State& state, u64 key, u32 low, u32 high)
{
    if (LANES == 1) {
        while (low < high) {
            const u32 middle = low + (high - low + 1) / 2;
            if (state.heads[middle] <= key) low = middle;
            else high = middle - 1;
        }
        return low;
    }
    const u32 position = lane_number() % LANES, first_lane = lane_number() - position;
    const u32 group = LANES == 32 ? ALL_LANES : (1u << (LANES & 31)) - 1;
    while (__any_sync(ALL_LANES, low < high)) {
        const u32 step = (high - low + LANES - 1) / LANES;
        const u64 probed = low + u64(position + 1) * step;
        const bool below = low < high && probed <= high && state.heads[probed] <= key;
        const u32 steps = __popc((__ballot_sync(ALL_LANES, below) >> first_lane) & group);
        if (low < high) {
            low += steps * step;
            high = min(high, low + step - 1);
        }
    }
    return low;
}

// By how many leaves the last leaf of a row may lie behind its row_leaf: those between are full of its keys.
__device__ __forceinline__ u32 leaves_behind(const State& state, u32 degree)
{
    if (state.leaf_least == LEAF_LEAST) return degree / LEAF_LEAST + 2;
    return state.leaf_least ? degree / state.leaf_least + 2 : state.n_leaves;
}

// The leaf in which ``key`` belongs; its row must exist. The index of an empty row is set, in case it gets an edge.
template <u32 LANES> __device__ __forceinline__ u32 locate(const State& state, u64 key)
{
    const u32 row = u32(key >> 32), last = state.n_leaves - 1;
    const u32 degree = state.degrees[row];
    u32 low = state.row_leaf[row];
    if (LANES == 1 ? degree == 0 : __any_sync(ALL_LANES, degree == 0)) {
        const u32 found = last_leaf<LANES>(state, u64(row) << 32, degree ? low : 0, degree ? low : last);
        if (degree == 0) {
            low = found;
            state.row_leaf[row] = low;
        }
    }
    const u32 high = u32(min(u64(low) + leaves_behind(state, degree), u64(last)));
    return last_leaf<LANES>(state, key, low, high);
}
