// The updates of a batch in both directions, so that each of them comes to the device once.
#include "warp.cuh"

// One batch, and where to put what is made of it.
struct Turn {
    const u64* keys;
    const u8* ops;
    const float* weights;  // null: none
    u64* turned_keys;
    u8* turned_ops;
    float* turned_weights;  // null: none
    u32 n;
    u32 unused;
};
static_assert(__is_trivially_copyable(Turn), "the host passes its bytes");

// Columns of 2 n: each update, and behind it the same of the other direction.
extern "C" __global__ __launch_bounds__(RUN_THREADS) void mirror_updates(const __grid_constant__ Turn turn)
{
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= turn.n) return;
    const u64 key = turn.keys[i];
    turn.turned_keys[2 * i] = key;
    turn.turned_keys[2 * i + 1] = key << 32 | key >> 32;
    turn.turned_ops[2 * i] = turn.turned_ops[2 * i + 1] = turn.ops[i];
    if (turn.weights) turn.turned_weights[2 * i] = turn.turned_weights[2 * i + 1] = turn.weights[i];
}
