// What the kernels of triangles and local clustering share: the job that the host fills in (tally_runs.py). What is counted
// is said in compute/triangles.
#pragma once

#include "links.cuh"

// Zero between runs, all but the barrier.
struct TallyCounters {
    u64 steps;       // about what a change costs, as the host counts it; from scratch the entries that were read
    u64 entries;     // that were looked up; from scratch those of all forward lists
    u64 long_links;  // links of several pieces << 32 | their pieces but for the first ones
    u32 touched;
    u32 barrier;     // of the grid; never reset
};

// The forward links of a vertex: those to vertices of larger (degree, id). First come those of its out-row, then those
// that are in its in-row alone; both ascend.
struct __align__(16) Forward {
    u64 begin;
    u32 of_out, of_in;
};
static_assert(sizeof(Forward) == 16 && __is_trivially_copyable(Forward), "copied as 16 bytes");

// What kernels work in, and one run; passed by value.
struct TallyJob {
    i64* deltas;   // [vertices] by how much a tally differs; zero between runs. From scratch the tally
    u32* listed;   // [vertices] 1: it is among those that are touched; zero between runs
    u32* touched;  // [vertices] in any order. From scratch how many links each vertex has
    TallyCounters* counters;
    u64* status;          // in the host's pinned memory, each with the sequence in its upper half
    ulonglong2* changes;  // [changes_room] likewise: vertices that were touched, and their deltas
    u32 changes_room;
    u32 is_directed;
    u32 weighs;           // 1: a triangle counts for a vertex as often as its opposite side has arcs
    u32 piece_leaves;     // of a row that a warp walks in one piece
    // A change: its links in both directions, ascending, and their arcs, before | after << NOW_SHIFT.
    const u64* keys;
    const u8* arcs;
    u64* long_links;  // [n_links] those of several pieces: the number of the second << 32 | link
    u64 steps_max;  // nothing is done when it costs more
    // From scratch.
    Forward* forward;  // [vertices]
    u32* heads;        // [links] of forward links
    u32* tails;        // [links]
    u8* head_arcs;     // [links] where arcs are weighed; null: each has two
    u32 n_links;       // of a change
    u32 n_vertices;
    u32 sequence;
    u32 unused_too;
};
static_assert(__is_trivially_copyable(TallyJob), "the host passes its bytes");

// What a run says; the host has it as a tuple, TallyRun.
constexpr u32 TALLY_SAID = 4;

// By one thread, when all others are done.
__device__ __forceinline__ void tell_tally(const TallyJob& job, u32 gave_up)
{
    TallyCounters* const counters = job.counters;
    const u64 said[TALLY_SAID] = {
        gave_up, load_cached(&counters->touched), load_cached(&counters->steps), load_cached(&counters->entries)};
    counters->steps = counters->entries = counters->long_links = 0;
    counters->touched = 0;
    __threadfence_system();
    for (u32 k = 0; k < TALLY_SAID; k++) tell(job, k, said[k]);
}
