// Sums and scans over a warp and over a block.
#pragma once

#include "intrinsics.cuh"

__device__ __forceinline__ u32 lane_number() { return threadIdx.x & 31; }

__device__ __forceinline__ u32 lanes_before() { return (1u << lane_number()) - 1; }

// What another lane has; structures that are added up over lanes overload these.
template <class T> __device__ __forceinline__ T of_lane(T value, u32 lane) { return __shfl_sync(ALL_LANES, value, lane); }

template <class T> __device__ __forceinline__ T of_lane_before(T value, u32 offset)
{
    return __shfl_up_sync(ALL_LANES, value, offset);
}

template <class T> __device__ __forceinline__ T of_lane_across(T value, u32 mask)
{
    return __shfl_xor_sync(ALL_LANES, value, mask);
}

// Over all lanes, or over every PARTS-th one from this one on, and before it.
template <u32 PARTS = 1, class T> __device__ __forceinline__ T warp_sum(T value)
{
    for (u32 offset = 16; offset >= PARTS; offset >>= 1) value += of_lane_across(value, offset);
    return value;
}

// The sum over this lane and those before it.
template <class T> __device__ __forceinline__ T warp_scan(T value)
{
    for (u32 offset = 1; offset < 32; offset <<= 1) {
        const T other = __shfl_up_sync(ALL_LANES, value, offset);
        if (lane_number() >= offset) value += other;
    }
    return value;
}

// The sum over the threads before this one, for all threads of a block of whole warps; ``total``: over all of them.
// ``sums``: shared memory, one for each warp and one more.
template <class T> __device__ __forceinline__ T block_scan(T value, T* sums, T& total)
{
    const u32 warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const T up_to_here = warp_scan(value);
    if (lane_number() == 31) sums[warp] = up_to_here;
    __syncthreads();
    if (warp == 0) {
        const T own = lane_number() < n_warps ? sums[lane_number()] : T(0);
        const T scanned = warp_scan(own);
        if (lane_number() < n_warps) sums[lane_number()] = scanned - own;
        if (lane_number() == n_warps - 1) sums[n_warps] = scanned;
    }
    __syncthreads();
    total = sums[n_warps];
    const T before = sums[warp] + up_to_here - value;
    __syncthreads();
    return before;
}
