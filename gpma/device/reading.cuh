// Counting what programs read of rows, for whoever decides which rows are remote (remote.py takes the sums). Only
// kernels with REMOTE count; for others all of this compiles to nothing.
//
// What is read of a row counts in the class that the host gave its vertex. In a walk each lane of a warp keeps the
// counts of a few classes, so that there is one addition to memory at the end of the walk, and none for a row. Where
// threads look at the first edges of their own rows, or whole arrays are read, edges are counted by side alone. Lines
// are those of LINE_BYTES that come over the bus: of a remote row's keys and weights by whole leaves, and three to find
// it (its first leaf, its degree, the count of that leaf). What caches keep of them is not known here.
#pragma once

#include "leaves.cuh"

constexpr u32 SIDES = 2, HOST = 0, DEVICE = 1;

constexpr u32 LINES_OF_ROW = 3;
constexpr u32 LINES_OF_LEAF = ((8u << REMOTE_SHIFT) + (WEIGHTED ? 4u << REMOTE_SHIFT : 0)) / LINE_BYTES;

__device__ __forceinline__ u32 side_of_leaf(const State& state, u32 leaf)
{
    return is_remote_leaf(state, leaf) ? HOST : DEVICE;
}

// Where the row of a vertex that begins in this leaf is counted.
__device__ __forceinline__ u32 read_place(const State& state, u32 vertex, u32 leaf)
{
    return side_of_leaf(state, leaf) * READ_CLASSES + load_constant(state.remote_classes + vertex);
}

// What a warp reads of rows that it walks one after the other; all lanes take part in everything.
struct RowsRead {
    static constexpr u32 EACH = SIDES * READ_CLASSES / 32;
    u32 edges[EACH] = {};  // of this lane: places lane, lane + 32 ...
    u32 lines = 0;
    u32 place = 0;

    // A row, or a part of a long one, that begins in this leaf.
    __device__ __forceinline__ void begin(const State& state, u32 vertex, u32 leaf)
    {
        if (!REMOTE) return;
        place = read_place(state, vertex, leaf);
        if (place < READ_CLASSES) lines += LINES_OF_ROW;
    }

    // A leaf of it, with so many of its edges.
    __device__ __forceinline__ void add(u32 n_edges)
    {
        const u32 own = lane_number() == (place & 31) ? n_edges : 0;
#pragma unroll
        for (u32 k = 0; REMOTE && k < EACH; k++)
            if (k == place >> 5) edges[k] += own;
        if (REMOTE && place < READ_CLASSES) lines += LINES_OF_LEAF;
    }

    __device__ __forceinline__ void tell(const State& state) const
    {
#pragma unroll
        for (u32 k = 0; REMOTE && k < EACH; k++)
            if (edges[k]) atomicAdd(state.remote_reads->by_class + 32 * k + lane_number(), u64(edges[k]));
        if (REMOTE && lane_number() == 0 && lines) atomicAdd(&state.remote_reads->lines, u64(lines));
    }
};

// A row that a warp has read by itself: so many edges and leaves of it, from this leaf on.
__device__ __forceinline__ void tell_row(const State& state, u32 vertex, u32 leaf, u32 n_edges, u32 n_leaves)
{
    if (!REMOTE || lane_number() || !n_leaves) return;
    const u32 place = read_place(state, vertex, leaf);
    atomicAdd(state.remote_reads->by_class + place, u64(n_edges));
    if (place < READ_CLASSES) atomicAdd(&state.remote_reads->lines, u64(LINES_OF_ROW + n_leaves * LINES_OF_LEAF));
}

// By a thread: an edge was looked for in a remote row, which took so many lines.
__device__ __forceinline__ void tell_lookup(const State& state, u32 lines)
{
    if (!REMOTE) return;
    atomicAdd(&state.remote_reads->others[HOST], 1ull);
    atomicAdd(&state.remote_reads->lines, u64(lines));
}

// What the threads of a warp read of rows of any class.
struct SidesRead {
    u32 edges[SIDES] = {};  // of this thread; below 0 where more are taken back than were read
    u32 lines = 0;

    // By a thread: so many edges of a leaf, and the lines that this takes where the leaf is remote.
    __device__ __forceinline__ void add(const State& state, u32 leaf, u32 n_edges, u32 n_lines)
    {
        if (!REMOTE) return;
        const bool is_remote = is_remote_leaf(state, leaf);
        edges[HOST] += is_remote ? n_edges : 0;
        edges[DEVICE] += is_remote ? 0 : n_edges;
        lines += is_remote ? n_lines : 0;
    }

    // By all lanes.
    __device__ __forceinline__ void tell(const State& state) const
    {
        if (!REMOTE) return;
        const u32 here = __reduce_add_sync(ALL_LANES, edges[DEVICE]), there = __reduce_add_sync(ALL_LANES, edges[HOST]);
        const u32 all_lines = __reduce_add_sync(ALL_LANES, lines);
        if (lane_number()) return;
        if (here) atomicAdd(state.remote_reads->others + DEVICE, u64((long long)(int)here));
        if (there) atomicAdd(state.remote_reads->others + HOST, u64((long long)(int)there));
        if (all_lines) atomicAdd(&state.remote_reads->lines, u64(all_lines));
    }
};
