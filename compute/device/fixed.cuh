// What the kernels of random walks share: numbers in fixed point, sums over the grid, and vertices one after the other or
// in lists.
#pragma once

#include "frontier.cuh"
#include "ieee.cuh"

typedef long long i64;

// The nearest integer, to within 1/2 and the last bit of the number.
__device__ __forceinline__ i64 nearest(double x) { return i64(exact::floor_of(exact::add(x, 0.5))); }

// What is published of a number: half of a float64 crosses the bus, and results are bounded to more than a float32 is off by.
// ``per_unit``: 1 of as many units as are 1, a power of two. So the product is the quotient, without a division.
__device__ __forceinline__ float published(i64 value, double per_unit)
{
    return exact::narrow(exact::multiply(double(value), per_unit));
}

__device__ __forceinline__ i64 size_of(i64 residual) { return residual < 0 ? -residual : residual; }

__device__ __forceinline__ void add(i64* to, i64 amount) { add_unseen(reinterpret_cast<u64*>(to), u64(amount)); }

// Says a word in two halves, the lower one first. A job has ``status``, in the host's pinned memory, and ``sequence``.
template <class Job> __device__ __forceinline__ void tell(const Job& job, u32 place, u64 value)
{
    publish(job.status + 2 * place, u64(job.sequence) << 32 | u32(value));
    publish(job.status + 2 * place + 1, u64(job.sequence) << 32 | value >> 32);
}

// What a kernel works with: rows, its job, and a thread's place. A job's counters have ``barrier``.
template <class Job> struct Run {
    const State& out;
    const State& in;
    const Job& job;
    Place place;

    __device__ __forceinline__ Run(const State& out, const State& in, const Job& job, const Place& place)
        : out(out), in(in), job(job), place(place)
    {
    }

    __device__ __forceinline__ void barrier() { barrier_at(place, &job.counters->barrier); }
};

// -- sums --------------------------------------------------------------------------------------------------------

// Adds what all threads of the grid hold to counters in global memory, block by block. ``values``: [N] of a thread.
// With PARTS, every so manieth thread is of one part, which has counters of its own at ``to``.
template <u32 PARTS = 1, u32 N> __device__ __forceinline__ void add_by_block(const u64 (&values)[N], u64* to)
{
    static_assert(N * PARTS <= BLOCK_THREADS && 32 % PARTS == 0, "threads of a block add them, and a warp has all parts");
    __shared__ u64 sums[N * PARTS];
    if (threadIdx.x < N * PARTS) sums[threadIdx.x] = 0;
    __syncthreads();
    u64 any = 0;
    for (u32 i = 0; i < N; i++) any |= values[i];
    if (__any_sync(ALL_LANES, any != 0)) {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const u64 sum = warp_sum<PARTS>(values[i]);
            if (lane_number() < PARTS && sum) atomicAdd(&sums[i * PARTS + lane_number()], sum);
        }
    }
    __syncthreads();
    if (threadIdx.x < N * PARTS && sums[threadIdx.x]) add_unseen(to + threadIdx.x / PARTS, sums[threadIdx.x]);
    __syncthreads();
}

__device__ __forceinline__ double warp_max(double value)
{
    for (u32 offset = 16; offset; offset >>= 1) {
        const double other = __shfl_xor_sync(ALL_LANES, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

// The largest of numbers that are not negative: their bits are in their order.
__device__ __forceinline__ void max_by_warp(double value, u64* to)
{
    if (!__any_sync(ALL_LANES, value > 0.0)) return;
    const double largest = warp_max(value);
    if (lane_number() == 0 && largest > 0.0) atomicMax(to, exact::bits_of(largest));
}

// What a pass leaves, over all vertices, for the factor of the next one. Of the vertices that it multiplies: their sums,
// those of them with out-edges, and their right-hand sides. Of the others with out-edges: their sums.
struct Balance {
    u64 mass, passed_on, restarts, fixed;
};
constexpr u32 BALANCE_SUMS = sizeof(Balance) / 8;

// A vertex in these sums, ``sums`` being a Balance. Whose sum is its right-hand side receives nothing, and is not
// multiplied.
__device__ __forceinline__ void count(u64* sums, i64 sum, i64 restart, u32 degree)
{
    if (sum == restart) {
        sums[3] += degree ? u64(sum) : 0;
        return;
    }
    sums[0] += u64(sum);
    sums[1] += degree ? u64(sum) : 0;
    sums[2] += u64(restart);
}

// The one for which residuals add up to zero.
__device__ __forceinline__ double factor(const Balance& sums, double damping)
{
    const double passed_on = damping * double(load_cached(&sums.passed_on));
    const double lost = double(load_cached(&sums.mass)) - passed_on;
    const double given = double(load_cached(&sums.restarts)) + damping * double(load_cached(&sums.fixed));
    return lost > 0.0 ? given / lost : 1.0;
}

// -- vertices ----------------------------------------------------------------------------------------------------

// Calls use(vertex, loaded) with what load(vertex) gave, for the vertices below n; whole warps do not stay together.
//
// AHEAD: vertices that a thread has under way at a time. Stores behind which loads wait, since addresses might be the same,
// would take three times as long; but where much is made of a vertex, registers do not suffice for two.
template <class Vertex, u32 AHEAD = 2, class Load, class Use>
__device__ __forceinline__ void for_vertices(const Place& place, u32 n, Load load, Use use)
{
    const u64 step = u64(AHEAD) * place.n_threads;
    for (u64 first = place.thread; first < n; first += step) {
        Vertex vertices[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            const u64 v = first + u64(k) * place.n_threads;
            if (v < n) vertices[k] = load(u32(v));
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            const u64 v = first + u64(k) * place.n_threads;
            if (v < n) use(u32(v), vertices[k]);
        }
    }
}

// Lists the chosen ones of the warp's vertices, two a lane. All lanes take part.
__device__ __forceinline__ void list(u32* to, u32* counter, const bool (&chosen)[2], const u32 (&vertex)[2])
{
    const Votes votes = vote(chosen[0], chosen[1]);
    if (!votes.count()) return;
    u32 base = 0;
    if (lane_number() == 0) base = atomicAdd(counter, votes.count());
    base = __shfl_sync(ALL_LANES, base, 0);
    for (u32 j = 0; j < 2; j++)
        if (chosen[j]) store_cached(to + base + votes.before(j), vertex[j]);
    __syncwarp();
}

// Lists the chosen ones of the warp's vertices, one a lane, in several lists: places in all of them are claimed at once. All
// lanes take part.
template <u32 N> __device__ __forceinline__ void list_in(
    u32* const (&to)[N], u32* const (&counters)[N], const bool (&chosen)[N], u32 vertex)
{
    u32 votes[N], n = 0, base = 0;
    u32* own = counters[0];  // a counter of this lane
#pragma unroll
    for (u32 k = 0; k < N; k++) {
        votes[k] = __ballot_sync(ALL_LANES, chosen[k]);
        if (lane_number() != k) continue;
        own = counters[k];
        n = __popc(votes[k]);
    }
    if (n) base = atomicAdd(own, n);
#pragma unroll
    for (u32 k = 0; k < N; k++) {
        const u32 at = __shfl_sync(ALL_LANES, base, k);
        if (chosen[k]) store_cached(to[k] + at + __popc(votes[k] & lanes_before()), vertex);
    }
    __syncwarp();
}

// The same, but for those that have this stamp, and so are in the list already.
__device__ __forceinline__ void list_once(
    u32* to, u32* counter, u32* stamps, u32 stamp, bool first, bool second, const u32 (&vertex)[2])
{
    bool is_new[2] = {first, second};
    for (u32 j = 0; j < 2; j++)
        if (is_new[j]) is_new[j] = atomicExch(stamps + vertex[j], stamp) != stamp;
    __syncwarp();
    list(to, counter, is_new, vertex);
}

// Calls work(is_there, key, outcome) for the updates of a batch that changed an edge, one a lane, by whole warps.
template <class Work> __device__ __forceinline__ void for_changes(
    const Place& place, const u64* keys, const u8* outcomes, u32 n_updates, Work work)
{
    for (u64 first = place.warp * 32; first < n_updates; first += place.n_threads) {
        const u64 i = first + place.lane;
        const u8 outcome = i < n_updates ? load_constant(outcomes + i) : u8(ABSENT);
        const u64 key = i < n_updates ? load_constant(keys + i) : 0;  // at once
        const bool is_change = outcome == INSERTED || outcome == DELETED;
        if (!__any_sync(ALL_LANES, is_change)) continue;
        work(is_change, is_change ? key : 0, outcome);
    }
}

// A row trades its share for another when at most this many times as many edges are in it as its degree changed by. Else
// its value changes, by a third at most.
constexpr u32 TRADE_FACTOR = 4;

__device__ __forceinline__ bool trades_share(u32 degree, int change)
{
    const u32 before = degree - u32(change), changed = u32(change < 0 ? -change : change);
    return degree && change && (before == 0 || degree <= u64(TRADE_FACTOR) * changed);
}
