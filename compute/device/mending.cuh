// What both ways of mending share (mend.cu, few.cuh): what an update may do to its head, who supports a value, and marks.
//
// MARKS: when each part ended is told behind the list of changes, whose last entries are free then
// (benchmarks/device_latency.py).
#pragma once

#include "paths.cuh"

#ifndef MARKS
#define MARKS 0
#endif

// What may be marked; the benchmark has the names.
enum Mark : u32 { BEGUN, LOOKED, CLASSIFIED, SETTLED, TAKEN, PUSHED, LISTED, TOLD, CLEARED, N_MARKS };

// Says when, in nanoseconds, the first thread is here.
__device__ __forceinline__ void set_mark(const PathJob& job, const Place& place, Mark what)
{
    if (MARKS && place.thread == 0 && job.changes_room > N_MARKS)
        job.changes[job.changes_room - N_MARKS + what] = make_ulonglong2(job.sequence, nanoseconds());
}

// Whether to settle lost support, or to trim: in kernels that are compiled for one of the two 1 or 0. Otherwise the job of
// whoever asks says; without weights offers tie, so that it is to settle. No function: with one the kernel that trims is
// compiled to other code.
#ifndef SETTLES
#define SETTLES (!WEIGHTED || job.settles)
#endif

// -- updates -----------------------------------------------------------------------------------------------------

// Whether what became of an update may have taken support; without weights an overwritten edge is what it was.
__device__ __forceinline__ bool may_worsen(u8 outcome)
{
    return outcome == DELETED || (WEIGHTED && outcome == OVERWRITTEN);
}

__device__ __forceinline__ bool may_improve(u8 outcome)
{
    return outcome == INSERTED || (WEIGHTED && outcome == OVERWRITTEN);
}

__device__ __forceinline__ float weight_of_update(const PathJob& job, u32 update)
{
    return WEIGHTED && job.weights ? load_constant(job.weights + update) : 1.0f;
}

// Whether the head of an edge has its word from the tail.
__device__ __forceinline__ bool is_child(u64 key, u64 word)
{
    return parent_of(word) == source(key) && value_bits(word) != NOTHING;
}

// Whether an update that was applied took its head's support away; its head's word was ``word``, and ``now`` is what the
// edge offers, if it is there.
__device__ __forceinline__ bool takes_support(u8 outcome, u64 key, u64 word, u32 now)
{
    if (!is_child(key, word)) return false;
    return outcome == DELETED || (now != value_bits(word) && !is_better(now, value_bits(word)));
}

// -- rows --------------------------------------------------------------------------------------------------------

// Whether a tail, whose word is ``word``, supports a value: offers it, and is strictly better, which no lost one is.
__device__ __forceinline__ bool supports(const State& in, const Edges& row, u32 which, u64 word, u32 bits)
{
    if (!row.live[which] || bits == NOTHING) return false;
    return is_better(value_bits(word), bits) && offered(value_bits(word), weight_of(in, row, which)) == bits;
}

// The best of what the lanes of a warp were offered, and from whom: each has it then.
__device__ __forceinline__ void agree_on_best(u32& best, u32& parent)
{
    for (u32 offset = 16; offset; offset >>= 1) {
        const u32 bits = __shfl_xor_sync(ALL_LANES, best, offset);
        const u32 from = __shfl_xor_sync(ALL_LANES, parent, offset);
        if (!is_better(bits, best)) continue;
        best = bits;
        parent = from;
    }
}
