// What plain CUDA C++ has no words for. Tests on machines without a device put their own version in its place.
#pragma once

#include "array.cuh"

// A load past the first-level cache, which other blocks' stores do not reach.
template <class T> __device__ __forceinline__ T load_cached(const T* from) { return __ldcg(from); }

// The same for a structure of 16 bytes, in one access.
template <class T> __device__ __forceinline__ T load_wide(const T* from)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16, "a structure of 16 bytes");
    uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<T*>(&bits);
}

// All threads of all blocks of a cooperative launch wait here; what any of them wrote before, all see after.
// The top bit of ``arrived`` turns over each time: block 0 adds what is missing to 2^31, the others one each.
__device__ __forceinline__ void grid_barrier(u32* arrived, u32 n_blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 step = blockIdx.x == 0 ? 0x80000000u - (n_blocks - 1) : 1u;
        u32 before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(step) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        } while (((before ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

// Sets a word in the host's memory, after everything that this thread wrote there.
__device__ __forceinline__ void publish(u32* word, u32 value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
