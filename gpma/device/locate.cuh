// Where does a key belong? A binary search over the heads of the few leaves that its row may lie in.
// Nothing but the index of empty rows is written by kernels while they locate, so the first-level cache may serve.
#pragma once

#include "warp.cuh"

// The last leaf from ``low`` to ``high`` whose head is not above ``key``, that of ``low`` being known not to be.
// LANES neighbouring lanes search for one key together and see LANES heads at a time; all of the warp take part. A
// single lane looks at LOOKS of them: at one where traffic is what counts, at more where each look is waited for.
template <u32 LANES, u32 LOOKS = 1>
__device__ __forceinline__ u32 last_leaf(const State& state, u64 key, u32 low, u32 high)
{
    static_assert(LANES > 0 && 32 % LANES == 0 && LOOKS > 0, "a warp is so many groups of LANES");
    if (LANES == 1) {
        while (low < high) {
            const u32 step = (high - low) / (LOOKS + 1) + 1;
            u32 steps = 0;
#pragma unroll
            for (u32 look = 1; look <= LOOKS; look++) {
                const u64 probed = low + u64(look) * step;
                steps += probed <= high && state.heads[probed] <= key;
            }
            low += steps * step;
            high = min(high, low + step - 1);
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

// By how many leaves the last leaf of a row may lie behind its first: those between are full of its keys.
__device__ __forceinline__ u32 leaves_behind(const State& state, u32 degree)
{
    if (state.leaf_least == LEAF_LEAST) return degree / LEAF_LEAST + 2;
    return state.leaf_least ? degree / state.leaf_least + 2 : state.n_leaves;
}

// No key of this row stands behind this leaf: where one of the next rows begins, or as far as its length may reach.
__device__ __forceinline__ u32 last_leaf_of_row(const State& state, u32 row, const Row& own)
{
    for (u32 ahead = 1; ahead <= ROWS_BEYOND; ahead++) {
        const Row next = state.rows[u64(row) + ahead];
        if (next.degree) return next.leaf;
    }
    return u32(min(u64(own.leaf) + leaves_behind(state, own.degree), u64(state.n_leaves - 1)));
}

// The leaf in which the smallest possible key of an empty row belongs; looked for between the rows around it.
template <u32 LANES, u32 LOOKS>
__device__ __forceinline__ u32 leaf_of_empty_row(const State& state, u32 row, bool is_empty)
{
    u32 low = 0, high = is_empty ? state.n_leaves - 1 : 0;
    for (u32 ahead = 1; is_empty && ahead <= ROWS_BEYOND; ahead++) {
        const Row next = state.rows[u64(row) + ahead];
        if (next.degree == 0) continue;
        high = next.leaf;
        break;
    }
    for (u32 back = 1; is_empty && back <= min(row, ROWS_BEYOND); back++) {
        const Row before = state.rows[row - back];
        if (before.degree == 0) continue;
        low = before.leaf;
        break;
    }
    return last_leaf<LANES, LOOKS>(state, u64(row) << 32, low, high);
}

// The leaf in which ``key`` belongs; its row must exist. The index of an empty row is set, in case it gets an edge.
template <u32 LANES, u32 LOOKS = 1> __device__ __forceinline__ u32 locate(const State& state, u64 key)
{
    const u32 row = u32(key >> 32);
    const Row own = state.rows[row];
    const bool is_empty = own.degree == 0;
    u32 low = own.leaf, high = low;
    if (LOOKS > 1) {
        // All that may be needed at once: a row and those behind it are mostly in one or two sectors.
        Row next[ROWS_BEYOND];
#pragma unroll
        for (u32 i = 0; i < ROWS_BEYOND; i++) next[i] = state.rows[u64(row) + 1 + i];
        high = u32(min(u64(low) + leaves_behind(state, own.degree), u64(state.n_leaves - 1)));
#pragma unroll
        for (u32 i = ROWS_BEYOND; i > 0; i--)
            if (next[i - 1].degree) high = next[i - 1].leaf;
    } else if (!is_empty) high = last_leaf_of_row(state, row, own);
    if (LANES == 1 ? is_empty : __any_sync(ALL_LANES, is_empty)) {
        const u32 found = leaf_of_empty_row<LANES, LOOKS>(state, row, is_empty);
        if (is_empty) {
            low = found;
            state.rows[row].leaf = low;
            high = u32(min(u64(low) + leaves_behind(state, 0), u64(state.n_leaves - 1)));
        }
    }
    return last_leaf<LANES, LOOKS>(state, key, low, high);
}
