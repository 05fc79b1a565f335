// Kernels by which tests/test_cuda_emulator.py tests the emulator, the wrong ones included.
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef BARRIER
#define BARRIER 1
#endif

extern "C" __global__ void __launch_bounds__(256) total(const u32* values, u32 n, u32* sum) {
    __shared__ u32 of_warp[8];
    u32 mine = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += values[i];
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_down_sync(~0u, mine, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    if (BARRIER) __syncthreads();
    if (threadIdx.x < 8) {
        u32 all = __reduce_add_sync(0xff, of_warp[threadIdx.x]);
        if (threadIdx.x == 0) atomicAdd(sum, all);
    }
}

// Reverses the 32 values of each warp through shared memory.
extern "C" __global__ void reversed(const u32* values, u32* out) {
    extern __shared__ u64 shared_memory[];
    shared_memory[threadIdx.x] = values[threadIdx.x];
    if (BARRIER) __syncwarp();
    out[threadIdx.x] = static_cast<u32>(shared_memory[threadIdx.x ^ 31]);
}

extern "C" __global__ void shared_is_not_zero(u32* out) {
    __shared__ u32 word;
    if (threadIdx.x == 0) *out = word;
}

// Every collective once, each tile of 16 lanes by itself.
extern "C" __global__ void collectives(const u32* values, u32* out) {
    u32 lane = threadIdx.x % 32, mask = lane < 16 ? 0xffffu : 0xffff0000u, x = values[threadIdx.x];
    u32 n = 0;
    auto put = [&](u32 result) { out[n++ * blockDim.x + threadIdx.x] = result; };
    put(__shfl_sync(mask, x, 3, 16));
    put(__shfl_up_sync(mask, x, 2, 16));
    put(__shfl_down_sync(mask, x, 5, 16));
    put(__shfl_xor_sync(mask, x, 6));
    put(__ballot_sync(mask, x & 1));
    put(__any_sync(mask, x == 7));
    put(__all_sync(mask, x < 20));
    put(__match_any_sync(mask, x));
    put(__reduce_add_sync(mask, x));
    put(__reduce_min_sync(mask, x));
    put(__reduce_max_sync(mask, x));
}

// Ranks by an atomic counter are a permutation; whose rank is whose depends on the order of threads.
extern "C" __global__ void ranks(u32* counter, u32* rank) {
    rank[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1u);
}

// Whether any thread of the block has each of these values, one after the other.
extern "C" __global__ void any_of_block(const u32* values, u32* out) {
    for (u32 k = 0; k < 4; k++)
        out[(blockIdx.x * 4 + k) * blockDim.x + threadIdx.x] =
            __syncthreads_or(values[blockIdx.x * blockDim.x + threadIdx.x] == k);
}

extern "C" __global__ void by_grid(u32* counts, u32* seen) {
    atomicAdd(&counts[0], 1u);
    emulator::grid_barrier();
    if (threadIdx.x == 0) seen[blockIdx.x] = counts[0];
}

extern "C" __global__ void half_of_a_warp() {
    if (threadIdx.x < 40) __ballot_sync(~0u, 1);
}

extern "C" __global__ void waits_for_a_missing_lane() {
    if (threadIdx.x % 32 == 5) __syncthreads();
    __ballot_sync(~0u, 1);
    __syncthreads();
}

extern "C" __global__ void two_barriers() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

extern "C" __global__ void outside_its_mask() {
    __ballot_sync(1u, 1);
}

extern "C" __global__ void spins(volatile u32* flag) {
    while (*flag == 0) emulator::spin();
}

extern "C" __global__ void hands_over(volatile u32* flag) {
    if (threadIdx.x == 0) {
        while (*flag == 0) emulator::spin();
    } else if (threadIdx.x == 63)
        *flag = 1;
}

extern "C" __global__ void fills(u32* values, u32 n) {
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) values[i] = i;
}

extern "C" __global__ void fills_shared(u32 n) {
    __shared__ u32 words[32];
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) words[i] = i;
}
