// What benchmarks/storage_device.py measures beside the array itself: the graph, scans of a packed array, and the
// same scans of a CSR, which are the bar.
#include "rows.cuh"

constexpr u32 SCAN_THREADS = 256;
#ifndef LEAVES_A_WARP
#define LEAVES_A_WARP 8
#endif

__device__ __forceinline__ u64 thread_number() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ __forceinline__ u64 n_threads() { return u64(gridDim.x) * blockDim.x; }

// -- the graph -------------------------------------------------------------------------------------------------

// splitmix64's finisher.
__device__ __forceinline__ u64 mixed(u64 x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// R-MAT edges (Chakrabarti, Zhan, Faloutsos 2004) with a = .57, b = c = .19; vertices renamed by ``names``.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void rmat(
    u32 scale, u64 seed, const u32* names, u64 first, u64 n, u64* keys)
{
    for (u64 i = thread_number(); i < n; i += n_threads()) {
        u32 src = 0, dst = 0;
        for (u32 level = 0; level < scale; level++) {
            const u64 drawn = mixed(mixed(seed + level) ^ (first + i)) >> 32;
            const u32 quarter = (drawn >= 2448131359u) + (drawn >= 3264175145u) + (drawn >= 4080218931u);
            src = src << 1 | quarter >> 1;
            dst = dst << 1 | (quarter & 1);
        }
        keys[i] = u64(names[src]) << 32 | names[dst];
    }
}

// -- scans of a packed array -----------------------------------------------------------------------------------

// y[u] += the sum of weight(u, v) x[v], leaf by leaf.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void pull_by_leaf(
    const __grid_constant__ State state, const float* __restrict__ x, float* y)
{
    const u64 warp = thread_number() / 32;
    const u64 begin = warp * LEAVES_A_WARP;
    if (begin >= state.n_leaves) return;
    scan_leaves<float>(
        state, u32(begin), u32(min(begin + LEAVES_A_WARP, u64(state.n_leaves))),
        [&](u64 key, float weight) { return weight * x[destination(key)]; },
        [&](u32 u, float sum) { atomicAdd(y + u, sum); });
}

// The same by row, edge-balanced.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void pull_by_row(
    const __grid_constant__ State state, const __grid_constant__ Walk walk, const float* __restrict__ x, float* y)
{
    const u64 chunk = thread_number() / 32;
    if (chunk * CHUNK_EDGES >= walk.n_edges) return;
    walk_chunk<float>(
        state, walk, chunk,
        [&](u64 slot) {
            const Edge edge = load_edge(state, slot);
            return edge.weight * x[destination(edge.key)];
        },
        [&](bool live, u64, u32 row, float term) {
            add_by_row(live ? row : NO_LEAF, term, [&](u32 r, float sum) { atomicAdd(y + walk.vertices[r], sum); });
        });
}

// The same by row, eight lanes for each of these vertices: fine for rows of like length.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void pull_by_tile(
    const __grid_constant__ State state, const u32* vertices, u32 n, const float* __restrict__ x, float* y)
{
    constexpr u32 WIDTH = 8;
    const u64 i = thread_number() / WIDTH;
    const u32 u = i < n ? vertices[i] : 0, degree = i < n ? state.rows[u].degree : 0;
    if (degree == 0) return;
    float sum = 0.0f;
    walk_row<WIDTH>(state, first_slot<WIDTH>(state, u), degree, [&](u32, u64 slot) {
        const Edge edge = load_edge(state, slot);
        sum += edge.weight * x[destination(edge.key)];
    });
    for (u32 offset = WIDTH / 2; offset; offset /= 2) sum += __shfl_xor_sync(tile_lanes<WIDTH>(), sum, offset);
    if (lane_number() % WIDTH == 0) y[u] = sum;
}

// A checksum over all edges with their rows.
extern "C" __global__ __launch_bounds__(SCAN_THREADS) void iterate_leaves(const __grid_constant__ State state, u64* sum)
{
    u64 mine = 0;
    for (u64 leaf = thread_number() / 32; leaf < state.n_leaves; leaf += n_threads() / 32) {
        const SlotPair pair = load_pair(state, u32(leaf), state.counts[leaf]);
        for (u32 i = 0; i < 2; i++)
            if (pair.keys[i] != EMPTY_KEY) mine += source(pair.keys[i]) ^ destination(pair.keys[i]);
    }
    mine = warp_sum(mine);
    if (lane_number() == 0) atomicAdd(sum, mine);
}

// -- scans of a CSR --------------------------------------------------------------------------------------------

// The rows without edges left out: row r is vertices[r] with the edges offsets[r] to offsets[r + 1].
struct Csr {
    const u32* vertices;
    const u64* offsets;
    const u32* neighbors;
    const float* weights;
    const u32* chunk_rows;  // the row of the first edge of each chunk of CHUNK_EDGES
    u64 n_edges;
    u32 n_rows;
    u32 unused;
};

// Calls visit(live, edge, row) for the edges of a chunk, 32 at a time: as walk_chunk, without gaps to look out for.
template <class Visit> __device__ __forceinline__ void csr_chunk(const Csr& csr, u64 chunk, Visit visit)
{
    u64 edge = chunk * CHUNK_EDGES;
    const u64 end = min(edge + CHUNK_EDGES, csr.n_edges);
    u32 row = csr.chunk_rows[chunk];
    for (; edge < end; edge += 32) {
        const u32 next = row + 1 + lane_number();
        const u64 begins = next < csr.n_rows ? csr.offsets[next] - edge - 1 : 32;
        const u32 heads = __reduce_or_sync(ALL_LANES, begins < 32 ? 1u << begins : 0u);
        visit(edge + lane_number() < end, edge + lane_number(), row + __popc(heads & lanes_before()));
        row += __popc(heads);
    }
}

extern "C" __global__ __launch_bounds__(SCAN_THREADS) void csr_pull(
    const __grid_constant__ Csr csr, const float* __restrict__ x, float* y)
{
    const u64 chunk = thread_number() / 32;
    if (chunk * CHUNK_EDGES >= csr.n_edges) return;
    csr_chunk(csr, chunk, [&](bool live, u64 edge, u32 row) {
        const float weight = WEIGHTED && live ? load_once(csr.weights + edge) : 1.0f;
        const float term = live ? weight * x[load_once(csr.neighbors + edge)] : 0.0f;
        add_by_row(live ? row : NO_LEAF, term, [&](u32 r, float sum) { atomicAdd(y + csr.vertices[r], sum); });
    });
}

extern "C" __global__ __launch_bounds__(SCAN_THREADS) void csr_iterate(const __grid_constant__ Csr csr, u64* sum)
{
    u64 mine = 0;
    const u64 n_chunks = (csr.n_edges + CHUNK_EDGES - 1) / CHUNK_EDGES;
    for (u64 chunk = thread_number() / 32; chunk < n_chunks; chunk += n_threads() / 32)
        csr_chunk(csr, chunk, [&](bool live, u64 edge, u32 row) {
            if (live) mine += csr.vertices[row] ^ load_once(csr.neighbors + edge);
        });
    mine = warp_sum(mine);
    if (lane_number() == 0) atomicAdd(sum, mine);
}
