// Filling whole arrays from sorted columns, and emptying them into columns.
//
// Edges are spread evenly: leaf q of n gets ``share`` of them, and one more where q < ``extra``.
#include "warp.cuh"

// Where edges go: the arrays of struct State, another number of leaves.
struct Target {
    u64* keys;
    float* weights;
    u32* counts;
    u64* heads;
    Row* rows;
    u64 n_edges;
    u32 n_leaves;
    u32 unused;
};

__device__ __forceinline__ u32 share_of(const Target& to) { return u32(to.n_edges / to.n_leaves); }

__device__ __forceinline__ u32 extra_of(const Target& to) { return u32(to.n_edges % to.n_leaves); }

// The leaf of the edge of this rank, and its slot in the leaf.
__device__ __forceinline__ void place_of(const Target& to, u64 rank, u32& leaf, u32& slot)
{
    const u32 share = share_of(to), extra = extra_of(to);
    const u64 in_longer = u64(extra) * (share + 1);
    if (rank < in_longer) {
        leaf = u32(rank / (share + 1));
        slot = u32(rank % (share + 1));
    } else {
        leaf = extra + u32((rank - in_longer) / share);
        slot = u32((rank - in_longer) % share);
    }
}

// Writes one edge and what follows from it: the head of a leaf that it begins, the index of a row that it begins.
// ``before``: the key of the edge before it, EMPTY_KEY for the first.
__device__ __forceinline__ void put(const Target& to, u64 rank, u64 key, float weight, u64 before)
{
    u32 leaf, slot;
    place_of(to, rank, leaf, slot);
    const u64 at = (u64(leaf) << LEAF_SHIFT) + slot;
    to.keys[at] = key;
    if (WEIGHTED) to.weights[at] = weight;
    if (slot == 0 && leaf > 0) to.heads[leaf] = key;
    const u32 row = u32(key >> 32);
    if (before != EMPTY_KEY && u32(before >> 32) == row) return;
    // The last leaf whose head is not above row << 32: the one before, when the row's first key heads a leaf.
    const bool heads_leaf = slot == 0 && leaf > 0 && u32(key) != 0;
    to.rows[row].leaf = heads_leaf ? leaf - 1 : leaf;
}

// The counts of all leaves, and the heads of the first, of empty ones, and of the one behind the last.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void begin_leaves(const __grid_constant__ Target to)
{
    const u32 share = share_of(to), extra = extra_of(to);
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i <= to.n_leaves; i += u64(gridDim.x) * blockDim.x) {
        const u32 count = i == to.n_leaves ? 0 : share + (i < extra);
        if (i < to.n_leaves) to.counts[i] = count;
        if (i == 0) to.heads[0] = 0;
        else if (count == 0) to.heads[i] = EMPTY_KEY;
    }
}

// Ascending columns into leaves.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void load_columns(
    const __grid_constant__ Target to, const u64* keys, const float* weights)
{
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < to.n_edges; i += u64(gridDim.x) * blockDim.x)
        put(to, i, keys[i], WEIGHTED ? weights[i] : 1.0f, i ? keys[i - 1] : EMPTY_KEY);
}

// The first position whose key is not above the one before it or names a row too many: the least into ``bad``.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void find_bad_key(
    const u64* keys, u64 n, u32 n_vertices, u64* bad)
{
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x)
        if (keys[i] >> 32 >= n_vertices || (i > 0 && keys[i] <= keys[i - 1])) atomicMin(bad, i);
}

// Adds the length of each row to its degree; keys ascending. One addition for a row in each warp.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void count_degrees(const u64* keys, u64 n, Row* rows)
{
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x - lane_number(); first < n; first += step) {
        const u64 i = first + lane_number();
        const u32 row = i < n ? u32(keys[i] >> 32) : NO_LEAF;
        const u32 before = __shfl_up_sync(ALL_LANES, row, 1);
        const u32 begins = __ballot_sync(ALL_LANES, lane_number() == 0 || row != before);
        if (!(begins >> lane_number() & 1) || i >= n) continue;
        const u32 after = begins & ~(lanes_before() | 1u << lane_number());
        atomicAdd(&rows[row].degree, (after ? __ffs(after) - 1 : 32) - lane_number());
    }
}

// All edges into columns, without gaps. A warp to a leaf.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void export_columns(const u64* keys, const float* weights,
    const u32* counts, const u64* leaf_ends, u32 n_leaves, u64* to_keys, float* to_weights)
{
    const u32 n_warps = gridDim.x * (blockDim.x >> 5);
    for (u64 leaf = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; leaf < n_leaves; leaf += n_warps) {
        const u32 count = counts[leaf];
        const u64 base = leaf << LEAF_SHIFT, rank = leaf_ends[leaf] - count;
        for (u32 i = lane_number(); i < count; i += 32) {
            to_keys[rank + i] = keys[base + i];
            if (WEIGHTED) to_weights[rank + i] = weights[base + i];
        }
    }
}

// The same as a CSR: neighbours instead of keys.
extern "C" __global__ __launch_bounds__(LOAD_THREADS) void export_neighbors(const u64* keys, const float* weights,
    const u32* counts, const u64* leaf_ends, u32 n_leaves, u32* to_neighbors, float* to_weights)
{
    const u32 n_warps = gridDim.x * (blockDim.x >> 5);
    for (u64 leaf = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; leaf < n_leaves; leaf += n_warps) {
        const u32 count = counts[leaf];
        const u64 base = leaf << LEAF_SHIFT, rank = leaf_ends[leaf] - count;
        for (u32 i = lane_number(); i < count; i += 32) {
            to_neighbors[rank + i] = u32(keys[base + i]);
            if (WEIGHTED) to_weights[rank + i] = weights[base + i];
        }
    }
}
