// Looking up edges, and gathering rows; see rows.cuh for how kernels of other modules read.
#include "rows.cuh"

#ifndef READ_THREADS
#define READ_THREADS 256
#endif

__device__ __forceinline__ u64 thread_number() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ __forceinline__ u64 n_threads() { return u64(gridDim.x) * blockDim.x; }

// found[i]: whether the edge keys[i] is there.
extern "C" __global__ __launch_bounds__(READ_THREADS) void has_edges(
    const __grid_constant__ State state, const u64* keys, u64 n, bool* found)
{
    for (u64 i = thread_number(); i < n; i += n_threads()) found[i] = find_slot(state, keys[i]) != NO_SLOT;
}

// weights[i]: the weight of the edge keys[i]; NaN where there is none.
extern "C" __global__ __launch_bounds__(READ_THREADS) void weights_of_edges(
    const __grid_constant__ State state, const u64* keys, u64 n, float* weights)
{
    for (u64 i = thread_number(); i < n; i += n_threads()) {
        const u64 slot = find_slot(state, keys[i]);
        weights[i] = slot == NO_SLOT ? __int_as_float(0x7fc00000) : load_edge(state, slot).weight;
    }
}

// first_slots[x]: where the row of vertices[x] begins; no row of these is empty.
extern "C" __global__ __launch_bounds__(READ_THREADS) void find_first_slots(
    const __grid_constant__ State state, const u32* vertices, u64 n, u64* first_slots)
{
    constexpr u32 WIDTH = 8;
    for (u64 x = thread_number() / WIDTH; x < n; x += n_threads() / WIDTH) {
        const u64 slot = first_slot<WIDTH>(state, vertices[x]);
        if (lane_number() % WIDTH == 0) first_slots[x] = slot;
    }
}

// Sets a bit for each edge that a row begins with.
extern "C" __global__ __launch_bounds__(READ_THREADS) void mark_begins(const u64* offsets, u64 n, u32* begins)
{
    for (u64 x = thread_number(); x < n; x += n_threads()) atomicOr(begins + (offsets[x] >> 5), 1u << (offsets[x] & 31));
}

// The rows of a walk side by side: edge e of the walk goes to neighbors[e] and, where weighted, weights[e].
extern "C" __global__ __launch_bounds__(READ_THREADS) void gather_rows(
    const __grid_constant__ State state, const __grid_constant__ Walk walk, u32* neighbors, float* weights)
{
    const u64 n_chunks = (walk.n_edges + CHUNK_EDGES - 1) / CHUNK_EDGES;
    for (u64 chunk = thread_number() / 32; chunk < n_chunks; chunk += n_threads() / 32)
        walk_chunk<Edge>(
            state, walk, chunk, [&](u64 slot) { return load_edge(state, slot); },
            [&](bool live, u64 edge, u32, const Edge& loaded) {
                if (!live) return;
                neighbors[edge] = destination(loaded.key);
                if (WEIGHTED) weights[edge] = loaded.weight;
            });
}
