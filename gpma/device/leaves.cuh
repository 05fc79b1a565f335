// Where rows and leaves lie: in the array on the device, or, with REMOTE, in one of the host's memory, which kernels read
// in place over the bus.
//
// A row is in one of the two arrays, and in the other one it is empty. Leaves have one numbering: first those of the
// device, then those of the host. The host's array may keep a stretch of leaves empty (gpma/host/migration.py): these have
// no number, so that a row goes on in the next leaf on either side. Remote leaves are shorter: lanes of a warp are idle.
// Who looks at leaves by these functions reads both sides; without REMOTE they compile to what reads the array alone.
#pragma once

#include "warp.cuh"

#ifndef REMOTE
#define REMOTE 0
#endif

__device__ __forceinline__ bool is_remote_leaf(const State& state, u32 leaf) { return REMOTE && leaf >= state.n_leaves; }

__device__ __forceinline__ bool is_remote_row(const State& state, u32 row)
{
    return REMOTE && load_constant(state.remote_bits + (row >> 5)) >> (row & 31) & 1;
}

// Of both sides.
__device__ __forceinline__ u32 all_leaves(const State& state)
{
    return REMOTE ? state.n_leaves + state.remote_n_leaves : state.n_leaves;
}

// Where a remote leaf stands in the host's array.
__device__ __forceinline__ u64 remote_place(const State& state, u32 leaf)
{
    const u64 place = leaf - state.n_leaves;
    return place >= state.remote_stretch_begin ? place + state.remote_stretch_length : place;
}

// The number of the leaf that stands there, or, if that has none, of the next one.
__device__ __forceinline__ u32 remote_leaf_at(const State& state, u32 place)
{
    const u32 begin = state.remote_stretch_begin;
    return state.n_leaves + (place <= begin ? place : max(begin, place - min(place, state.remote_stretch_length)));
}

__device__ __forceinline__ const u64* keys_of(const State& state, u32 leaf)
{
    if (is_remote_leaf(state, leaf)) return state.remote_keys + (remote_place(state, leaf) << REMOTE_SHIFT);
    return state.keys + (u64(leaf) << LEAF_SHIFT);
}

__device__ __forceinline__ const float* weights_of(const State& state, u32 leaf)
{
    if (is_remote_leaf(state, leaf)) return state.remote_weights + (remote_place(state, leaf) << REMOTE_SHIFT);
    return state.weights + (u64(leaf) << LEAF_SHIFT);
}

__device__ __forceinline__ const u32* count_of(const State& state, u32 leaf)
{
    return is_remote_leaf(state, leaf) ? state.remote_counts + remote_place(state, leaf) : state.counts + leaf;
}

__device__ __forceinline__ u32 slots_of(const State& state, u32 leaf)
{
    return is_remote_leaf(state, leaf) ? 1u << REMOTE_SHIFT : LEAF_SLOTS;
}

__device__ __forceinline__ Row load_row(const State& state, u32 vertex)
{
    if (is_remote_row(state, vertex)) {
        const u32 degree = load_constant(state.remote_degrees + vertex);
        return {remote_leaf_at(state, load_constant(state.remote_leaf + vertex)), degree};
    }
    const uint2 words = load_constant(reinterpret_cast<const uint2*>(state.rows + vertex));
    return {words.x, words.y};
}

// The next remote row behind this one, among those of the next few words of bits; NO_ROW: there is none.
__device__ __forceinline__ u32 next_remote_row(const State& state, u32 row)
{
    constexpr u32 WORDS = 8;
    const u32 n_words = u32((u64(state.n_vertices) + 31) / 32), first = row >> 5;
#pragma unroll 1
    for (u32 word = first; word < n_words && word - first < WORDS; word++) {
        u32 bits = load_constant(state.remote_bits + word);
        if (word == first) bits &= ~1u << (row & 31);
        if (bits) return word * 32 + __ffs(bits) - 1;
    }
    return NO_ROW;
}

// No key of this remote row, which is not empty, stands behind this leaf. As last_leaf_of_row of locate.cuh, but here each
// look crosses the bus, and so does each leaf that is read in vain. Its loops are not unrolled: it stands in many places,
// and runs seldom.
__device__ __forceinline__ u32 last_leaf_of_remote_row(const State& state, u32 row, const Row& own)
{
    u32 low = own.leaf;
    u32 high = u32(min(u64(low) + own.degree / REMOTE_LEAST + 2, u64(all_leaves(state) - 1)));
    u32 next = row;
#pragma unroll 1
    for (u32 ahead = 0; ahead < ROWS_BEYOND; ahead++) {
        next = next_remote_row(state, next);
        if (next == NO_ROW) break;
        const Row behind = load_row(state, next);
        if (behind.degree) return min(high, behind.leaf);
    }
    // The last leaf whose first key is of this row, or of one before it: no leaf is empty where there are several.
#pragma unroll 1
    while (low < high) {
        const u32 middle = low + (high - low + 1) / 2;
        if (u32(load_constant(keys_of(state, middle)) >> 32) <= row) low = middle;
        else high = middle - 1;
    }
    return low;
}
