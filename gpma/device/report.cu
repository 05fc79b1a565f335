// A report of what became of updates elsewhere, behind the device's own.
#include "intrinsics.cuh"

// Updates of a report, and where to put them: columns, each from the first of these updates on.
struct Join {
    u64* keys;
    u8* ops;
    u8* outcome;
    float* weights;       // null: none are kept, nor old ones
    float* old_weights;
    const u64* from_keys;
    const u8* from_ops;   // null: those that the outcomes tell
    const u8* from_outcome;
    const float* from_weights;  // null: 1.0 throughout
    const float* from_old_weights;
    u32 n;
    u32 unused;
};
static_assert(__is_trivially_copyable(Join), "the host passes its bytes");

extern "C" __global__ __launch_bounds__(RUN_THREADS) void join_report(const __grid_constant__ Join join)
{
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= join.n) return;
    const u8 outcome = join.from_outcome[i];
    join.keys[i] = join.from_keys[i];
    join.outcome[i] = outcome;
    join.ops[i] = join.from_ops ? join.from_ops[i] : u8(outcome == INSERTED || outcome == OVERWRITTEN);
    if (!join.weights) return;
    join.weights[i] = join.from_weights ? join.from_weights[i] : 1.0f;
    join.old_weights[i] = join.from_old_weights[i];
}
