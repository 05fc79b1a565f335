// Looking up edges, and gathering rows; see rows.cuh for how kernels of other modules read.
#include "rows.cuh"

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
    for (u64 x = thread_number() / LOOK_UP_LANES; x < n; x += n_threads() / LOOK_UP_LANES) {
        const u64 slot = first_slot<LOOK_UP_LANES>(state, vertices[x]);
        if (lane_number() % LOOK_UP_LANES == 0) first_slots[x] = slot;
    }
}

// Which of n vertices a block takes care of, if each of the grid's takes as many neighbouring ones.
__device__ __forceinline__ u64 part_begin(u64 n, u32 block) { return n * block / gridDim.x; }

// How many of the vertices of each block's part have edges, and how many edges: two numbers for each block.
extern "C" __global__ __launch_bounds__(READ_THREADS) void measure_rows(
    const __grid_constant__ State state, const u32* vertices, u64 n, u64* measures)
{
    __shared__ u64 sums[READ_THREADS / 32 + 1];
    const u64 end = part_begin(n, blockIdx.x + 1);
    u64 n_rows = 0, n_edges = 0, all_rows, all_edges;
    for (u64 i = part_begin(n, blockIdx.x) + threadIdx.x; i < end; i += blockDim.x) {
        const u32 degree = state.rows[vertices[i]].degree;
        n_rows += degree > 0;
        n_edges += degree;
    }
    block_scan(n_rows, sums, all_rows);
    block_scan(n_edges, sums, all_edges);
    if (threadIdx.x) return;
    measures[2 * blockIdx.x] = all_rows;
    measures[2 * blockIdx.x + 1] = all_edges;
}

// The vertices that have edges and the number of the first edge of each, and of one more; a bit for each edge that a
// row begins with. ``measures``: what measure_rows, of as many blocks, wrote; ``begins``: zeros.
extern "C" __global__ __launch_bounds__(READ_THREADS) void number_rows(
    const __grid_constant__ State state, const u32* vertices, u64 n, const u64* measures, u32* row_vertices,
    u64* offsets, u32* begins)
{
    constexpr u32 EDGE_BITS = 48;  // of READ_THREADS rows
    static_assert(READ_THREADS <= 1u << (EDGE_BITS - 32) && READ_THREADS < 1u << (64 - EDGE_BITS),
        "the edges of READ_THREADS rows fit into EDGE_BITS, and their number into the others");
    __shared__ u64 sums[READ_THREADS / 32 + 1];
    u64 own_rows = 0, own_edges = 0, row, edge;
    for (u32 block = threadIdx.x; block < blockIdx.x; block += blockDim.x) {
        own_rows += measures[2 * block];
        own_edges += measures[2 * block + 1];
    }
    block_scan(own_rows, sums, row);
    block_scan(own_edges, sums, edge);
    const u64 end = part_begin(n, blockIdx.x + 1);
    for (u64 first = part_begin(n, blockIdx.x); first < end; first += blockDim.x) {
        const u64 i = first + threadIdx.x;
        const u32 vertex = i < end ? vertices[i] : 0, degree = i < end ? state.rows[vertex].degree : 0;
        u64 all;
        const u64 before = block_scan(degree ? u64(1) << EDGE_BITS | degree : u64(0), sums, all);
        if (degree) {
            const u64 x = row + (before >> EDGE_BITS), offset = edge + (before & ((u64(1) << EDGE_BITS) - 1));
            row_vertices[x] = vertex;
            offsets[x] = offset;
            atomicOr(begins + (offset >> 5), 1u << (offset & 31));
        }
        row += all >> EDGE_BITS;
        edge += all & ((u64(1) << EDGE_BITS) - 1);
    }
    if (blockIdx.x + 1 == gridDim.x && threadIdx.x == 0) offsets[row] = edge;
}

// The row of the first edge of each chunk.
extern "C" __global__ __launch_bounds__(READ_THREADS) void find_chunk_rows(
    const u64* offsets, u64 n_rows, u64 n_chunks, u32* chunk_rows)
{
    for (u64 chunk = thread_number(); chunk < n_chunks; chunk += n_threads()) {
        u64 low = 0, high = n_rows - 1;
        while (low < high) {
            const u64 middle = low + (high - low + 1) / 2;
            if (offsets[middle] <= chunk * CHUNK_EDGES) low = middle;
            else high = middle - 1;
        }
        chunk_rows[chunk] = u32(low);
    }
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
