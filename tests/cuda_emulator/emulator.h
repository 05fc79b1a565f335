// A CUDA device on one processor core, for tests: kernels compiled by a C++ compiler behind this header.
//
// What kernels say in CUDA C++ is here; emulator.cpp, which runs them, is compiled once and linked with each module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/time.h>
#include <type_traits>
#include <utility>

namespace emulator {

struct Dim {
    unsigned x, y, z;
};

// What a fiber waits for. Collectives are waits too, from SYNCWARP on.
enum class Wait : uint8_t { NOTHING, BLOCK, GRID, SPIN, ENDED, SYNCWARP, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN,
    SHUFFLE_XOR, BALLOT, ANY, ALL, MATCH_ANY, REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR,
    REDUCE_MIN_SIGNED, REDUCE_MAX_SIGNED };

// What kernels see of the thread that runs.
struct Thread {
    Dim index, block_index;
    unsigned lane;
};

struct Launch {
    Dim grid, block;
    uint64_t dynamic_bytes, seed;
    void** arguments;
    const uint64_t* argument_bytes;
    uint32_t n_arguments, cooperative, step_aside_one_in;
    char* error;
    uint64_t error_bytes;
};

struct Running {
    const Launch* launch;
    Thread* thread;
};
extern Running running;

#define EMULATED_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

[[noreturn]] void fail(const char* what);
// Let others go first, now and then: at atomics and at loads that may race.
void step_aside();
// One round of a loop that waits for another thread's store.
void spin(EMULATED_PLACE);
void block_barrier(const char* file, int line);
bool block_barrier_or(bool vote, const char* file, int line);
// Every thread of the grid calls it; all blocks must be resident.
void grid_barrier(EMULATED_PLACE);
// Every thread of so many blocks calls it, which name the same word.
void part_barrier(const void* word, unsigned n_blocks, const char* file, int line);
uint64_t collective(Wait wait, uint32_t mask, uint64_t value, int argument, int width, const char* file, int line);
// Shared memory of the block: the variable declared at this place of the source, and what the launch asked for.
void* shared_variable(int place, size_t bytes);
void* dynamic_shared();

// Runs a kernel, whose arguments have these sizes, by ``call``; 0, or 1 and a message.
int run_kernel(void* entry, void (*call)(void*, void**), const size_t* sizes, uint32_t n_sizes, const char* name,
    const Launch& launch);

template <class... A, size_t... I> void call_kernel(void* entry, void** arguments, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(A...)>(entry)(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}

template <class... A> int launch_kernel(void (*kernel)(A...), const char* name, const Launch& launch) {
    const size_t sizes[] = { sizeof(A)..., 0 };
    auto call = [](void* entry, void** arguments) { call_kernel<A...>(entry, arguments, std::index_sequence_for<A...>{}); };
    return run_kernel(reinterpret_cast<void*>(kernel), call, sizes, sizeof...(A), name, launch);
}

}  // namespace emulator

// -- CUDA C++ --------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 900

#define threadIdx (emulator::running.thread->index)
#define blockIdx (emulator::running.thread->block_index)
#define blockDim (emulator::running.launch->block)
#define gridDim (emulator::running.launch->grid)
#define warpSize 32
#define EMULATED_ENTRY __attribute__((visibility("default")))
// The build rewrites the declarations of shared memory to these.
#define EMULATED_SHARED(type, name, shape, place) \
    using name##_shape = type shape; \
    auto& name = *static_cast<name##_shape*>(emulator::shared_variable(place, sizeof(name##_shape)))
#define EMULATED_DYNAMIC_SHARED(type, name) auto* name = static_cast<type*>(emulator::dynamic_shared())

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __ffsll(unsigned long long x) { return __builtin_ffsll(static_cast<long long>(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __int_as_float(int u) { return __uint_as_float(static_cast<unsigned>(u)); }

inline void __syncthreads(EMULATED_PLACE) { emulator::block_barrier(file, line); }
inline int __syncthreads_or(int predicate, EMULATED_PLACE) { return emulator::block_barrier_or(predicate, file, line); }
inline void __syncwarp(unsigned mask = ~0u, EMULATED_PLACE) {
    emulator::collective(emulator::Wait::SYNCWARP, mask, 0, 0, 32, file, line);
}
inline void __threadfence() { emulator::step_aside(); }
inline void __threadfence_block() { emulator::step_aside(); }
inline void __threadfence_system() { emulator::step_aside(); }
// A lane can rely on nothing but itself being in the mask.
inline unsigned __activemask() { return 1u << emulator::running.thread->lane; }

namespace emulator {
template <class T> uint64_t as_bits(T x) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T> struct Same { using type = T; };
}  // namespace emulator

#define EMULATED_SHUFFLE(name, wait) \
    template <class T> T name(unsigned mask, T x, int argument, int width = 32, EMULATED_PLACE) { \
        return emulator::from_bits<T>(emulator::collective(emulator::Wait::wait, mask, emulator::as_bits(x), argument, width, file, line)); \
    }
EMULATED_SHUFFLE(__shfl_sync, SHUFFLE)
EMULATED_SHUFFLE(__shfl_up_sync, SHUFFLE_UP)
EMULATED_SHUFFLE(__shfl_down_sync, SHUFFLE_DOWN)
EMULATED_SHUFFLE(__shfl_xor_sync, SHUFFLE_XOR)

#define EMULATED_VOTE(name, wait, type) \
    inline type name(unsigned mask, int vote, EMULATED_PLACE) { \
        return static_cast<type>(emulator::collective(emulator::Wait::wait, mask, vote != 0, 0, 32, file, line)); \
    }
EMULATED_VOTE(__ballot_sync, BALLOT, unsigned)
EMULATED_VOTE(__any_sync, ANY, int)
EMULATED_VOTE(__all_sync, ALL, int)

template <class T> unsigned __match_any_sync(unsigned mask, T x, EMULATED_PLACE) {
    return static_cast<unsigned>(emulator::collective(emulator::Wait::MATCH_ANY, mask, emulator::as_bits(x), 0, 32, file, line));
}

#define EMULATED_REDUCE(name, wait, type) \
    inline type name(unsigned mask, type x, EMULATED_PLACE) { \
        return static_cast<type>(emulator::collective(emulator::Wait::wait, mask, static_cast<unsigned>(x), 0, 32, file, line)); \
    }
EMULATED_REDUCE(__reduce_add_sync, REDUCE_ADD, unsigned)
EMULATED_REDUCE(__reduce_add_sync, REDUCE_ADD, int)
EMULATED_REDUCE(__reduce_min_sync, REDUCE_MIN, unsigned)
EMULATED_REDUCE(__reduce_min_sync, REDUCE_MIN_SIGNED, int)
EMULATED_REDUCE(__reduce_max_sync, REDUCE_MAX, unsigned)
EMULATED_REDUCE(__reduce_max_sync, REDUCE_MAX_SIGNED, int)
EMULATED_REDUCE(__reduce_and_sync, REDUCE_AND, unsigned)
EMULATED_REDUCE(__reduce_or_sync, REDUCE_OR, unsigned)
EMULATED_REDUCE(__reduce_xor_sync, REDUCE_XOR, unsigned)

#define EMULATED_ATOMIC(name, combined) \
    template <class T> T name(T* at, typename emulator::Same<T>::type x) { \
        emulator::step_aside(); \
        T old = *at; \
        *at = static_cast<T>(combined); \
        return old; \
    }
EMULATED_ATOMIC(atomicAdd, old + x)
EMULATED_ATOMIC(atomicSub, old - x)
EMULATED_ATOMIC(atomicMin, x < old ? x : old)
EMULATED_ATOMIC(atomicMax, x > old ? x : old)
EMULATED_ATOMIC(atomicAnd, old & x)
EMULATED_ATOMIC(atomicOr, old | x)
EMULATED_ATOMIC(atomicXor, old ^ x)
EMULATED_ATOMIC(atomicExch, x)
template <class T> T atomicCAS(T* at, typename emulator::Same<T>::type expected, typename emulator::Same<T>::type x) {
    emulator::step_aside();
    T old = *at;
    if (old == expected) *at = x;
    return old;
}
