// The least that a kernel does which the host waits for: benchmarks/device_latency.py.
#include "intrinsics.cuh"

// As many bytes as a kernel takes that mends.
struct Telling {
    u64* word;  // in the host's pinned memory
    u64 value;
    u64 rest[98];
};
static_assert(__is_trivially_copyable(Telling), "the host passes its bytes");

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void tell_at_once(const __grid_constant__ Telling telling)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) publish(telling.word, telling.value);
}
