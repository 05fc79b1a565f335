// A report of what became of updates elsewhere, behind the device's own; both by one launch.
#include "intrinsics.cuh"

// Updates of a report, and where to put them: columns, each from the first of these updates on. The device's own come
// first, and then those that the host reports, whose columns are in its memory.
struct Join {
    u64* keys;
    u8* ops;
    u8* outcome;
    float* weights;       // null: none are kept, nor old ones
    float* old_weights;
    const u64* own_keys;
    const u8* own_ops;
    const u8* own_outcome;
    const float* own_weights;  // null: 1.0 throughout
    const float* own_old_weights;
    const u64* from_keys;
    const u8* from_outcome;
    const float* from_weights;
    const float* from_old_weights;
    u32 n_own;
    u32 n;  // of both
};
static_assert(__is_trivially_copyable(Join), "the host passes its bytes");

extern "C" __global__ __launch_bounds__(RUN_THREADS) void join_report(const __grid_constant__ Join join)
{
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= join.n) return;
    if (i < join.n_own) {
        join.keys[i] = join.own_keys[i];
        join.outcome[i] = join.own_outcome[i];
        join.ops[i] = join.own_ops[i];
        if (!join.weights) return;
        join.weights[i] = join.own_weights ? join.own_weights[i] : 1.0f;
        join.old_weights[i] = join.own_old_weights[i];
        return;
    }
    const u64 k = i - join.n_own;
    const u8 outcome = join.from_outcome[k];
    join.keys[i] = join.from_keys[k];
    join.outcome[i] = outcome;
    join.ops[i] = u8(outcome == INSERTED || outcome == OVERWRITTEN);
    if (!join.weights) return;
    join.weights[i] = join.from_weights[k];
    join.old_weights[i] = join.from_old_weights[k];
}
