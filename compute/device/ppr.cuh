// What the kernels of personalised PageRank share: its system in fixed point, and the job that the host fills in
// (ppr_numbers.py).
//
// As in walks.cuh: a vertex has a value y, a share c that each of its out-neighbours receives, and the sum of its
// right-hand side and the shares of its in-neighbours, exact in every bit. The right-hand side is ``restart`` at sources
// and 0 elsewhere. There is but one system, so shares are int64: they differ from damping * y / degree by at most 1, and
// what double rounds, which the certificate counts for every edge. The host chooses the point such that all values add
// up to less than 2^60.
#pragma once

#include "fixed.cuh"

// Of all values, of the sizes of residuals, and of residuals.
struct PprSums {
    u64 norm, size, total;
};

// What a pass leaves, over all vertices.
struct PprPass {
    Balance balance;
    PprSums sums;
};
constexpr u32 PPR_PASS_SUMS = sizeof(PprPass) / 8;

// Zero between runs, all but the barrier.
struct __align__(16) PprCounters {
    Counts rows[2];     // to push along; by turns
    PprPass passes[2];  // in turns
    PprSums grown;      // by how much pushes changed the sums
    u32 candidates[2];  // by turns
    u32 moved;
    u32 barrier;        // of the grid; never reset
    u32 n_passes;       // of the first part of a run: for which values were made
    u32 goes_on;        // likewise: whether it does
};

// What becomes of a vertex; see ``entries``. The last two are of vertices without edges, or with edges that were deleted.
constexpr u32 RESTARTS = 1, RESTARTS_NO_MORE = 2, GOES = 4;

// What kernels work in, and one run; passed to kernels by value.
struct PprJob {
    i64* values;       // [vertices * stride] y
    i64* sums;         // [vertices * stride] x
    i64* shares;       // [vertices * stride] c
    u8* is_source;     // [vertices * stride]
    u32* candidates[2]; // [vertices] who may be worth a push, each once; by turns
    u32* stamps;       // [vertices] the last round for which a vertex was listed
    u32* moved;        // [vertices] whose values changed, each once
    u32* moved_stamps; // [vertices] the last run in which they did
    i64* differences;  // [vertices] what a share that is to be handed on changed by; after passes, floats: estimates
    int* degree_changes;  // [vertices] zero between runs
    Entry* short_rows;    // [room]
    Entry* long_rows;     // room for every long row
    PprCounters* counters;
    u64* status;       // in the host's pinned memory, each with the sequence in its upper half
    float* estimates;  // [vertices] likewise: values as the host publishes them
    u32* changes;      // [changes_room] likewise: whose estimates changed
    const u64* entries;  // [n_entries] likewise: vertices, each once, and in the upper half what becomes of them
    double damping;
    double unit;       // a power of two: what 1 is
    double limit, goal;  // sizes of residuals, of all values: with less nothing is solved, and to how little if so
    i64 restart;
    u32 room;
    u32 changes_room;
    // The run. First the batch, and what became of its updates.
    const u64* keys;
    const u8* outcomes;
    u64 edges_max;     // given up when so many edges were pushed along
    double cells;      // vertices and edges of the graph
    PprSums before;
    u32 n_updates;
    u32 n_entries;
    u32 n_vertices;
    u32 stamp;         // no vertex has this one or a higher one
    u32 passes_max;
    u32 sequence;
    u32 stride;        // 1, or SWEEP where the numbers of several programs lie side by side
    u32 part;          // of a run of passes: 0, or 1, which goes on where that ended

    __device__ __forceinline__ u64 at(u32 v) const { return u64(v) * stride; }
};
static_assert(__is_trivially_copyable(PprJob), "the host passes its bytes");

// How many go through passes together at most.
#ifndef SWEEP
#define SWEEP 8
#endif

// What those have together: their numbers lie side by side, vertex by vertex.
struct SideBySide {
    i64* values;    // [vertices * SWEEP]
    i64* sums;      // [vertices * SWEEP]
    i64* shares;    // [vertices * SWEEP]
    u64* listed;    // [vertices, and as many as a grid has threads] those that may come to anything, warp by warp
    u32* n_listed;  // [warps]
    u8* holders;    // [vertices, up to a multiple of 4] a bit for each program that may have a number
    const u64* sources;  // [vertices] of each program a byte: whether it restarts there
    u64 nobody;     // there is room for this one, too, who has nothing
};

// Passed to the kernel by value.
struct PprSweep {
    PprJob jobs[SWEEP];  // by their places
    SideBySide side;
    u32 there;           // a bit for each that is
    u32 is_known;        // what holders say; else any program may have something anywhere
};
static_assert(__is_trivially_copyable(PprSweep), "the host passes its bytes");

// What a run says; the host has it as a tuple, PprRun.
constexpr u32 PPR_SAID = 7;

// With at most this off: 1/2, and the last bits of the numbers. Of nothing without a division, for which 0 is a special case.
__device__ __forceinline__ i64 share_of(i64 value, u32 degree, double damping)
{
    return degree && value ? nearest(exact::divide(exact::multiply(double(value), damping), double(degree))) : 0;
}
