// The order of vertices by their external ids, as the host has it (gpma/index/id_order.py): integers by value, strings by
// bytes. The host brings ids to the device (id_order.py).
#pragma once

#include "frontier.cuh"

struct IdOrder {
    const long long* numbers;  // [vertices] integers; else null
    const u64* places;         // [vertices] strings: where one begins in ``arena`` << LENGTH_BITS | its length; else null
    const u8* arena;
};

// Whether the external id of u is smaller than that of v; without ids the dense ones are compared.
__device__ __forceinline__ bool comes_before(const IdOrder& order, u32 u, u32 v)
{
    if (order.numbers) return load_constant(order.numbers + u) < load_constant(order.numbers + v);
    if (!order.places) return u < v;
    constexpr u64 LENGTH = (1ull << LENGTH_BITS) - 1;
    const u64 one = load_constant(order.places + u), other = load_constant(order.places + v);
    const u8* const left = order.arena + (one >> LENGTH_BITS);
    const u8* const right = order.arena + (other >> LENGTH_BITS);
    const u32 n_left = u32(one & LENGTH), n_right = u32(other & LENGTH), n = min(n_left, n_right);
#pragma unroll 1
    for (u32 at = 0; at < n; at++) {
        const u8 a = load_constant(left + at), b = load_constant(right + at);
        if (a != b) return a < b;
    }
    return n_left < n_right;
}
