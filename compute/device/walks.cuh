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

#include "fixed.cuh"

struct System {
    i64* values;    // [vertices] y
    i64* sums;      // [vertices] x
    float* shares;  // [vertices] c, every second one: the other system's lie between
};

__device__ __forceinline__ float* share(const System& system, u32 v) { return system.shares + 2 * u64(v); }

// What a pass adds up, by system, for the factor of the one after it. Of the vertices with in-edges: what they receive,
// and their right-hand sides; the sums of those without out-edges. Of the others with out-edges: their right-hand sides.
struct PassSums {
    u64 received[2], restarts[2], dangling[2], fixed[2];
    u64 over, over_edges;  // vertices that were far over their limits in either system before it, and their out-edges
    u64 still[2];  // of what is received: what vertices without in-edges hand on, the same in all passes of a run
};
constexpr u32 PASS_SUMS = sizeof(PassSums) / 8;

// What passes leave, over all vertices. Of the ranks: values, the sizes of residuals, and residuals. Vertices that are over
// their limits in either system, and their out-edges. Doubles: the largest rounding by weight, of the ranks and of the
// majorant, and the largest majorant / estimate.
struct WalkTotals {
    u64 norm, size, total;
    u64 over, over_edges;
    u64 rounded, majorant_rounded, ratio;
};

// Zero between runs, as far as nothing else is said.
struct WalkCounters {
    PassSums passes[3];  // in turns
    WalkTotals totals;
    u64 edges;     // of pushes
    u32 n_passes;  // of this run so far; no need to be zero, nor have these:
    u32 rounds;
    u32 is_solved;
    u32 barrier;   // of the grid; never reset
    u32 unpacked;  // ranges that could not be packed, since they were packed last
    u32 edits[2];  // since then: edges that were inserted, and deleted
    u32 exceeds;   // residuals add up to more than pushes may begin with
    u32 cached;    // lines of ``cache`` that ranges have asked for, since it was empty
    u32 unused;
};

// What kernels work in, and one run; passed to kernels by value.
struct WalkJob {
    System ranks;
    System majorant;
    float* weights;  // [vertices] of both systems' residuals, and the majorant's right-hand side; 0: no such vertex
    WalkCounters* counters;
    u64* status;         // in the host's pinned memory, each with the sequence in its upper half
    float* estimates;    // [vertices] likewise: values of the ranks as the host publishes them
    float* made;         // [vertices] on the device: the same after passes, before pushes; null: not wanted
    const u64* arrivals; // [n_arrivals] likewise: vertices, 1 << 32 set in those that appear, not in those that go
    // What is kept of rows on the host (passes.cu), each null where nothing is.
    u32* degrees;        // [vertices] of the out-rows
    u32* in_degrees;     // [vertices]
    u64* packed;         // [n_packed * RANGE_WORDS / 2] in the host's pinned memory: remote in-rows
    u64* packed_ranges;  // [n_packed] on the device
    u64* edits;          // [edits_room] in the host's pinned memory: edges inserted since, and from the end on edges deleted
    u64* cache;          // [cache_lines * LINE_BYTES / 8] on the device: words of some of the ranges; null: of none
    u32* cache_places;   // [n_packed] 1 + the line at which those of a range begin there; 0: they are not there
    const u64* keys;     // [n_updates] the batch, and what became of its updates, to amend that by
    const u8* outcomes;
    u32 n_packed;
    u32 packed_bits;  // of a vertex in a packed word
    u32 edits_room;
    u32 n_updates;
    u32 moved;  // instead of a batch there are in-rows that have come to the host, or left it; see enum Moved
    u32 cache_lines;
    double damping;
    double unit, majorant_unit;  // powers of two: what 1 is in either system
    double hub, hysteresis;      // of weights, as the host follows them
    double below, above;         // the ranks' residuals are to be from -below * weight to above * weight
    double majorant_below, majorant_above;  // and the majorant's
    u64 due_max;                 // a pass is the last when those far over that before it have so many out-edges, or fewer
    u64 push_max;                // and pushes follow when those over that after it have so many, or fewer
    u32 passes_max;
    u32 begins;  // with what, see enum Begin
    u32 shift, majorant_shift;  // by how many bits numbers are to be moved to a new point
    u32 n_arrivals;
    u32 n_vertices;
    u32 sequence;
    u32 is_kept;  // whether all that is kept of rows on the host is what these are, with the edits
};
static_assert(__is_trivially_copyable(WalkJob), "the host passes its bytes");

// KEPT: with the sums as they are, which need not be those of the graph. SOLVED: likewise, and their mass is about right.
// EXACT: with values and sums, which are those of the graph. ANEW: with nothing; a byte for each vertex says whether it exists,
// from ``estimates`` on.
enum Begin : u32 { KEPT, ANEW, SOLVED, EXACT };

// What there is to amend by.
enum Moved : u32 { BATCH, CAME, LEFT };

// What a run says; the host has it as a tuple, WalkRun.
constexpr u32 WALK_SAID = 12;

// What an out-neighbour receives of a value, ``each`` being damping / degree, or 0 where there is none.
__device__ __forceinline__ float share_of(i64 value, double each)
{
    return exact::narrow(exact::floor_of(exact::add(exact::multiply(double(value), each), 0.5)));
}

// Whether a residual is within so many times its limits.
__device__ __forceinline__ bool is_within(const WalkJob& job, i64 residual, float weight, double times = 1.0)
{
    const double scale = times * double(weight) * job.unit, r = double(residual);
    return r <= job.above * scale && r >= -job.below * scale;
}

__device__ __forceinline__ bool is_within_slack(const WalkJob& job, i64 residual, float weight, double times = 1.0)
{
    const double scale = times * double(weight) * job.majorant_unit, r = double(residual);
    return r <= job.majorant_above * scale && r >= -job.majorant_below * scale;
}

// The weight that goes with an estimate, or the one of before where that is near enough.
__device__ __forceinline__ float followed(const WalkJob& job, float weight, double estimate)
{
    if (weight == 1.0f && estimate <= job.hub) return weight;  // that of most
    const double target = max(1.0, estimate / job.hub), now = weight;
    return now > job.hysteresis * target || target > job.hysteresis * now ? exact::narrow(target) : weight;
}

__device__ __forceinline__ i64 integer(float share) { return i64(share); }
