// What plain CUDA C++ has no words for. Tests on machines without a device put their own version in its place.
#pragma once

#include "array.cuh"

// A load past the first-level cache, which other blocks' stores do not reach.
template <class T> __device__ __forceinline__ T load_cached(const T* from) { return __ldcg(from); }

// A load of what is read once in a pass, so that it does not push out of the caches what is read often.
template <class T> __device__ __forceinline__ T load_once(const T* from) { return __ldcs(from); }

// A load of what nobody writes while the kernel runs.
template <class T> __device__ __forceinline__ T load_constant(const T* from) { return __ldg(from); }

// Asks for a place that is read or written soon, so that it is in the second-level cache by then.
template <class T> __device__ __forceinline__ void prefetch(const T* at)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
}

// A store past the first-level cache.
template <class T> __device__ __forceinline__ void store_cached(T* to, T value) { __stcg(to, value); }

// As load_cached for a structure of 16 bytes, in one access.
template <class T> __device__ __forceinline__ T load_wide(const T* from)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16 && __is_trivially_copyable(T), "a structure of 16 bytes");
    uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<T*>(&bits);
}

// A store of a structure of 16 bytes, in one access.
template <class T> __device__ __forceinline__ void store_wide(T* to, const T& value)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16 && __is_trivially_copyable(T), "a structure of 16 bytes");
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&value);
}

// Adds to a number that nobody wants to know: in a kernel that has a fence, the compiler has atomicAdd bring it all the same.
__device__ __forceinline__ void add_unseen(u64* to, u64 amount)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" : : "l"(to), "l"(amount) : "memory");
}
__device__ __forceinline__ void add_unseen(double* to, double amount)
{
    asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" : : "l"(to), "d"(amount) : "memory");
}

// A pointer to global memory, in registers that the compiler does not take apart again: what is added to it is added in one
// step.
template <class T> __device__ __forceinline__ T* held(T* pointer)
{
    asm("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}

// An address in shared memory, to which offsets in bytes are added.
typedef u32 SharedAddress;

// Where this is, in a register that the compiler does not fill again whenever the address is used.
__device__ __forceinline__ SharedAddress shared_address(void* shared)
{
    SharedAddress address;
    asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"(u32(__cvta_generic_to_shared(shared))));
    return address;
}

// Starts to copy 16 bytes into shared memory, both addresses being multiples of 16.
__device__ __forceinline__ void copy_async(SharedAddress shared, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared), "l"(from) : "memory");
}

// Makes one group of all copies that this thread has started since the last one.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until at most the LEFT latest groups of this thread's copies are under way.
template <u32 LEFT> __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}

// All threads of so many blocks of a cooperative launch wait here, one of which is the first; what any of them wrote
// before, all see after. The top bit of ``arrived`` turns over each time, however many blocks there are: the first adds
// what is missing to 2^31, the others one each.
__device__ __forceinline__ void part_barrier(u32* arrived, bool is_first, u32 n_blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 step = is_first ? 0x80000000u - (n_blocks - 1) : 1u;
        u32 before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(step) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        } while (((before ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

// The same for all blocks of the launch; of several rows of them, which have words of their own, for those of a row.
__device__ __forceinline__ void grid_barrier(u32* arrived) { part_barrier(arrived, blockIdx.x == 0, gridDim.x); }

// Sets a word in the host's memory, in one piece.
__device__ __forceinline__ void publish(u64* word, u64 value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

// The device's clock.
__device__ __forceinline__ u64 nanoseconds()
{
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) : : "memory");
    return now;
}
