// What the kernels of path programs share: words, offers, and the job that the host fills in (path_runs.py).
//
// The text of a program's two functions stands before this (functor.py). A vertex has one word, value bits << 32 |
// parent, as on the host (compute/paths/mend.py): both halves change together, and only when the value strictly
// improves.
#pragma once

#include "frontier.cuh"

constexpr u32 NO_PARENT = 0xffffffffu;
constexpr u32 ASKED = NO_PARENT;  // the parent, while a change is settled, of whoever must find another one
constexpr u64 UNREACHED = ~0ull;
static_assert(READS_WEIGHTS == WEIGHTED, "rows are read as the program reads them");

__device__ __forceinline__ u32 value_bits(u64 word) { return u32(word >> 32); }
__device__ __forceinline__ u32 parent_of(u64 word) { return u32(word); }
__device__ __forceinline__ u64 word_of(u32 bits, u32 parent) { return u64(bits) << 32 | parent; }

// What an edge offers its head.
__device__ __forceinline__ u32 offered(u32 tail_bits, float weight)
{
    return tail_bits == NOTHING ? NOTHING : encode(gather(decode(tail_bits), weight));
}

// Whether a value or an offer is strictly better than another.
__device__ __forceinline__ bool is_better(u32 bits, u32 than)
{
    return bits != NOTHING && (than == NOTHING || better(decode(bits), decode(than)));
}

// What blocks that join a run must know: mend.cu.
struct PathHanded {
    u32 phase, turn, rounds, n_lost, slice, stamp;
    u64 edges;
};

// Of a run; zero between runs, all but the barrier, and what was handed over or told.
struct __align__(16) PathCounters {
    u64 logged;          // vertices in the log; while words are spread, those put aside
    u64 lost;            // of a sample, those who tie (ties.cu)
    Counts outgoing[3];  // rows to push along, or to ask the children of whoever was lost; by turn
    Counts asked[3];     // rows to look for another parent in; by turn
    Counts pulling;      // rows of lost vertices, to take the best from
    u64 found[3];        // vertices that a pulled level reached, or a step's sample has; by level or step
    u32 barrier;         // of the grid; never reset
    u32 told;            // for the kernel behind this one: how many vertices the last run logged, or NOT_MENDED
    PathHanded handed;
};

// What kernels work in, and one run; passed to kernels by value.
struct PathJob {
    u64* words;   // [vertices]
    u32* stamps;  // [vertices] the last round in which a vertex was queued, or touched at all
    u32* log;     // [vertices] those whose word was written, each once
    Entry* short_rows;  // [QUEUES * room]
    Entry* long_rows;   // [QUEUES * long_room]
    PathCounters* counters;
    u32* seen[2];         // bits by vertex: reached before and after a level; or put aside
    u64* status;          // [PATH_WORDS] in the host's pinned memory, each with the sequence in its upper half
    ulonglong2* changes;  // [changes_room] likewise: vertices that were written, and their words
    u64 source_word;
    u32 room;
    u32 long_room;
    u32 changes_room;
    u32 settles;  // whether to settle lost support, or to trim (mending.cuh)
    // The run. First the batch, and what became of its updates (gpma/device/report.py).
    const u64* keys;
    const float* weights;  // null: 1 throughout
    const u8* outcomes;
    const u32* sources;
    u64 edges_max;  // settling is given up when it has come to more edges
    u64 n_edges;
    u32 lost_max;  // or to more lost vertices; at most ``room``
    u32 n_updates;
    u32 n_sources;
    u32 n_vertices;
    u32 stamp;  // no vertex has this one or a higher one
    u32 sequence;
};
static_assert(__is_trivially_copyable(PathJob), "the host passes its bytes");

// The queues of a job: two of each kind that rounds alternate between, and the one of lost vertices.
constexpr u32 OUTGOING = 0, QUEUE_ASKED = 2, PULLING = 4, QUEUES = 5;

__device__ __forceinline__ Frontier frontier_of(const PathJob& job, u32 queue, Counts* counts)
{
    return {job.short_rows + u64(queue) * job.room, job.long_rows + u64(queue) * job.long_room, counts, job.room};
}

__device__ __forceinline__ Frontier outgoing(const PathJob& job, u32 turn)
{
    return frontier_of(job, OUTGOING + (turn & 1), job.counters->outgoing + turn % 3);
}

__device__ __forceinline__ u64 load_word(const PathJob& job, u32 vertex) { return load_cached(job.words + vertex); }

// Calls visit(first, own, bits) for ``n_words`` words of bits, a bit for each vertex, by whole warps: a warp's next
// 32 words, ``first`` and every n_warps-th behind it, are asked for at once, one a lane, its ``own``. Behind the last one
// bits are ``beyond``.
template <class Visit> __device__ __forceinline__ void for_words(
    const Place& place, const u32* words, u32 n_words, u32 beyond, Visit visit)
{
    for (u64 first = place.warp; first < n_words; first += 32 * u64(place.n_warps)) {
        const u64 own = first + place.lane * u64(place.n_warps);
        visit(first, own, own < n_words ? load_cached(words + own) : beyond);
    }
}

// Words of the status; the host has them as a tuple, PathRun.
enum PathWord : u32 { GAVE_UP, LOGGED, N_LOST, ROUNDS, NEXT_STAMP, EDGES_LOW, EDGES_HIGH, PATH_WORDS };

__device__ __forceinline__ void tell(const PathJob& job, u32 word, u32 value)
{
    publish(job.status + word, u64(job.sequence) << 32 | value);
}

// All words of the status, by one thread.
__device__ __forceinline__ void tell_all(
    const PathJob& job, u32 gave_up, u32 logged, u32 lost, u32 rounds, u32 next_stamp, u64 edges)
{
    job.counters->told = gave_up ? NOT_MENDED : logged;
    tell(job, GAVE_UP, gave_up);
    tell(job, LOGGED, logged);
    tell(job, N_LOST, lost);
    tell(job, ROUNDS, rounds);
    tell(job, NEXT_STAMP, next_stamp);
    tell(job, EDGES_LOW, u32(edges));
    tell(job, EDGES_HIGH, u32(edges >> 32));
}

__device__ __forceinline__ void clear_counters(PathCounters* counters)
{
    counters->logged = counters->lost = 0;
    for (u32 i = 0; i < 3; i++) {
        clear_counts(counters->outgoing + i);
        clear_counts(counters->asked + i);
        counters->found[i] = 0;
    }
    clear_counts(&counters->pulling);
}
