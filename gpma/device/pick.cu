// Of a batch of updates of edges, those whose rows are on the device, where others have rows as well: in the batch's
// order, for out-rows and for in-rows.
//
// A warp takes a tile of PICK_UPDATES updates, an update to a lane. count_picked counts what each tile has,
// sum_picked adds up what the tiles before each have, and write_picked puts every update in its place.
#include "warp.cuh"

static_assert(PICK_UPDATES % 32 == 0, "a warp takes its tile in whole rounds");

// One batch, and where to put what is picked of it.
struct Pick {
    const u64* keys;
    const u8* ops;
    const float* weights;     // null: none
    const u32* remote_bits;   // of each vertex, whether its rows are elsewhere
    u64* tiles;               // [tiles] updates of out-rows in the lower half, of in-rows in the upper one
    u64* out_keys;
    u8* out_ops;
    float* out_weights;       // null: none
    u64* in_keys;             // null: no in-rows are kept
    u8* in_ops;
    float* in_weights;        // null: none
    u32 n;
    u32 mirrored;             // whether each update is one of the other direction, too, in the same rows
};
static_assert(__is_trivially_copyable(Pick), "the host passes its bytes");

__device__ __forceinline__ bool is_here(const Pick& pick, u32 row)
{
    return !(load_constant(pick.remote_bits + (row >> 5)) >> (row & 31) & 1);
}

// Of update i, if there is one: the key, and whether the rows of its src and of its dst are here and have a use for it.
__device__ __forceinline__ u64 look(const Pick& pick, u64 i, bool& tail, bool& head)
{
    tail = head = false;
    if (i >= pick.n) return 0;
    const u64 key = pick.keys[i];
    tail = is_here(pick, u32(key >> 32));
    head = (pick.mirrored || pick.in_keys) && is_here(pick, u32(key));
    return key;
}

__device__ __forceinline__ u32 n_tiles(const Pick& pick) { return (pick.n + u64(PICK_UPDATES) - 1) / PICK_UPDATES; }

// The tile of this warp.
__device__ __forceinline__ u32 tile_number() { return u32((u64(blockIdx.x) * blockDim.x + threadIdx.x) >> 5); }

extern "C" __global__ __launch_bounds__(RUN_THREADS) void count_picked(const __grid_constant__ Pick pick)
{
    const u32 tile = tile_number();
    if (tile >= n_tiles(pick)) return;
    u64 picked = 0;
    for (u32 k = lane_number(); k < PICK_UPDATES; k += 32) {
        bool tail, head;
        look(pick, u64(tile) * PICK_UPDATES + k, tail, head);
        picked += u64(tail) + (pick.mirrored ? u64(head) : u64(head) << 32);
    }
    picked = warp_sum(picked);
    if (lane_number() == 0) pick.tiles[tile] = picked;
}

// One block.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void sum_picked(const __grid_constant__ Pick pick)
{
    __shared__ u64 sums[BLOCK_THREADS / 32 + 1];
    u64 before = 0;
    for (u32 first = 0; first < n_tiles(pick); first += blockDim.x) {
        const u32 tile = first + threadIdx.x;
        const bool there = tile < n_tiles(pick);
        u64 total;
        const u64 within = block_scan(there ? pick.tiles[tile] : u64(0), sums, total);
        if (there) pick.tiles[tile] = before + within;
        before += total;
    }
}

extern "C" __global__ __launch_bounds__(RUN_THREADS) void write_picked(const __grid_constant__ Pick pick)
{
    const u32 tile = tile_number();
    if (tile >= n_tiles(pick)) return;
    u32 out = u32(pick.tiles[tile]), in = u32(pick.tiles[tile] >> 32);
    for (u32 k = lane_number(); k < PICK_UPDATES; k += 32) {
        const u64 i = u64(tile) * PICK_UPDATES + k;
        bool tail, head;
        const u64 key = look(pick, i, tail, head), turned = key << 32 | key >> 32;
        const u32 tails = __ballot_sync(ALL_LANES, tail), heads = __ballot_sync(ALL_LANES, head);
        const u32 tails_before = __popc(tails & lanes_before()), heads_before = __popc(heads & lanes_before());
        const u8 op = tail || head ? pick.ops[i] : u8(0);
        const float weight = pick.weights && (tail || head) ? pick.weights[i] : 0.0f;
        if (tail) {
            const u32 to = out + tails_before + (pick.mirrored ? heads_before : 0);
            pick.out_keys[to] = key;
            pick.out_ops[to] = op;
            if (pick.out_weights) pick.out_weights[to] = weight;
        }
        if (head && pick.mirrored) {  // right behind the update itself
            const u32 to = out + tails_before + heads_before + u32(tail);
            pick.out_keys[to] = turned;
            pick.out_ops[to] = op;
            if (pick.out_weights) pick.out_weights[to] = weight;
        } else if (head) {
            const u32 to = in + heads_before;
            pick.in_keys[to] = turned;
            pick.in_ops[to] = op;
            if (pick.in_weights) pick.in_weights[to] = weight;
        }
        out += __popc(tails) + (pick.mirrored ? __popc(heads) : 0);
        in += pick.mirrored ? 0 : __popc(heads);
    }
}
