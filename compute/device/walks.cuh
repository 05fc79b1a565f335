// What the kernels of PageRank share: both of its systems in fixed point, and the job that the host fills in
// (walk_runs.py).
//
// Numbers are int64 with some bits behind the point, the same for all vertices of a system. A vertex has a value y, and
// a share c, what each of its out-neighbours receives: about damping * y / degree, and an integer. Its sum
//
//     x = right-hand side + shares of all in-neighbours
//
// is so in every bit, whatever the order in which shares are added; the residual is x - y. A share is kept as a float32,
// which holds integers of 24 significant bits: it differs from damping * y / degree by at most 1 + 2^-24 of itself, which
// the certificate counts. The host chooses the point such that all values of a system add up to less than 2^60.
#pragma once

#include "frontier.cuh"
#include "ieee.cuh"

typedef long long i64;

struct System {
    i64* values;    // [vertices] y
    i64* sums;      // [vertices] x
    float* shares;  // [vertices] c, every second one: the other system's lie between
};

__device__ __forceinline__ float* share(const System& system, u32 v) { return system.shares + 2 * u64(v); }

// What a pass leaves, over all vertices, for the factor of the next one. Of the vertices that it multiplies: their sums,
// those of them with out-edges, and their right-hand sides. Of the others with out-edges: their sums.
struct Balance {
    u64 mass, passed_on, restarts, fixed;
};
constexpr u32 BALANCE_SUMS = sizeof(Balance) / 8;

struct PassSums {
    Balance balance[2];    // of the ranks, of the majorant
    u64 over, over_edges;  // vertices over their limits in either, and their out-edges
};
constexpr u32 PASS_SUMS = sizeof(PassSums) / 8;

// What a run leaves, over all vertices. Of the ranks: values, the sizes of residuals, and residuals. Doubles: the largest
// rounding by weight, of the ranks and of the majorant, and the largest majorant / estimate.
struct WalkTotals {
    u64 norm, size, total;
    u64 rounded, majorant_rounded, ratio;
};
constexpr u32 WALK_TOTALS = sizeof(WalkTotals) / 8;

// Zero between runs, all but the barrier.
struct WalkCounters {
    PassSums passes[2];  // in turns
    WalkTotals totals;
    u32 barrier;  // of the grid; never reset
    u32 unused;
};

// What kernels work in, and one run; passed to kernels by value.
struct WalkJob {
    System ranks;
    System majorant;
    float* weights;  // [vertices] of both systems' residuals, and the majorant's right-hand side; 0: no such vertex
    WalkCounters* counters;
    u64* status;         // in the host's pinned memory, each with the sequence in its upper half
    double* estimates;   // [vertices] likewise: values of the ranks as the host has them
    const u64* arrivals; // [n_arrivals] likewise: vertices, 1 << 32 set in those that appear, not in those that go
    double damping;
    double unit, majorant_unit;  // powers of two: what 1 is in either system
    double hub, hysteresis;      // of weights, as the host follows them
    double below, above;         // the ranks' residuals are to be from -below * weight to above * weight
    double majorant_below, majorant_above;  // and the majorant's
    u64 due_max;                 // passes end when those over that have so many out-edges, or fewer
    u32 passes_max;
    u32 begins;  // with what, see enum Begin
    u32 shift, majorant_shift;  // by how many bits numbers are to be moved to a new point
    u32 n_arrivals;
    u32 n_vertices;
    u32 sequence;
    u32 unused;
};
static_assert(__is_trivially_copyable(WalkJob), "the host passes its bytes");

// KEPT: with the sums as they are, which need not be those of the graph. ANEW: with nothing; a byte for each vertex says
// whether it exists, from ``estimates`` on.
enum Begin : u32 { KEPT, ANEW };

// What passes say; the host has it as a tuple, WalkRun.
constexpr u32 WALK_SAID = 3 + WALK_TOTALS;

// Says a word in two halves, the lower one first.
__device__ __forceinline__ void tell(const WalkJob& job, u32 place, u64 value)
{
    publish(job.status + 2 * place, u64(job.sequence) << 32 | u32(value));
    publish(job.status + 2 * place + 1, u64(job.sequence) << 32 | value >> 32);
}

// The nearest integer, to within 1/2 and the last bit of the number.
__device__ __forceinline__ i64 nearest(double x) { return i64(exact::floor_of(exact::add(x, 0.5))); }

__device__ __forceinline__ float share_of(i64 value, u32 degree, double damping)
{
    if (degree == 0) return 0.0f;
    const double share = exact::divide(exact::multiply(double(value), damping), double(degree));
    return exact::narrow(exact::floor_of(exact::add(share, 0.5)));
}

__device__ __forceinline__ bool is_within(const WalkJob& job, i64 residual, float weight)
{
    const double scale = double(weight) * job.unit, r = double(residual);
    return r <= job.above * scale && r >= -job.below * scale;
}

__device__ __forceinline__ bool is_within_slack(const WalkJob& job, i64 residual, float weight)
{
    const double scale = double(weight) * job.majorant_unit, r = double(residual);
    return r <= job.majorant_above * scale && r >= -job.majorant_below * scale;
}

// The weight that goes with an estimate, or the one of before where that is near enough.
__device__ __forceinline__ float followed(const WalkJob& job, float weight, double estimate)
{
    const double target = max(1.0, estimate / job.hub), now = weight;
    return now > job.hysteresis * target || target > job.hysteresis * now ? exact::narrow(target) : weight;
}

__device__ __forceinline__ i64 integer(float share) { return i64(share); }

__device__ __forceinline__ void add(i64* to, i64 amount) { atomicAdd(reinterpret_cast<u64*>(to), u64(amount)); }

// Adds what all threads of the grid hold to counters in global memory, block by block. ``values``: [N] of a thread.
template <u32 N> __device__ __forceinline__ void add_by_block(const u64 (&values)[N], u64* to)
{
    static_assert(N <= 32, "a warp adds them");
    __shared__ u64 sums[32];
    if (threadIdx.x < N) sums[threadIdx.x] = 0;
    __syncthreads();
    u64 any = 0;
    for (u32 i = 0; i < N; i++) any |= values[i];
    if (__any_sync(ALL_LANES, any != 0)) {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const u64 sum = warp_sum(values[i]);
            if (lane_number() == 0 && sum) atomicAdd(&sums[i], sum);
        }
    }
    __syncthreads();
    if (threadIdx.x < N && sums[threadIdx.x]) atomicAdd(to + threadIdx.x, sums[threadIdx.x]);
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
