// One block for all. After few updates there is so little to do between two barriers of the grid that these are most of
// the time. Then the first block works for all, with barriers of its own, and the others wait: until it has come to the
// end, or calls them because there is more than suits one block. They go on from where it is.
#pragma once

#include "frontier.cuh"

// The first block begins alone with up to so many updates, one a thread, and goes on with up to so many rows, leaves of
// long ones, or vertices at a time: two a warp.
#ifndef ALONE_UPDATES
#define ALONE_UPDATES BLOCK_THREADS
#endif
#ifndef ALONE_ROWS
#define ALONE_ROWS 32
#endif
// With up to so many updates it looks first whether they change anything: the fewer they are, the more often they do not,
// and where they do the look was in vain.
constexpr u32 LOOK_UPDATES = 8;

// The phase of a run in which there is nothing left to do.
constexpr u32 END = 0xffffffffu;

// How the first block works for all that have a job, and hands it over: ``Handed`` is what they must know to go on, with
// the ``phase`` in which they do. ``place``: this thread's among those at work.
template <class Handed> struct Alone {
    static_assert(sizeof(Handed) % 4 == 0 && __is_trivially_copyable(Handed), "copied by words");

    const Place whole;  // this thread's among all that have the job
    Handed* const handed;
    u32* const arrived;  // at the barrier of all

    __device__ __forceinline__ bool is_alone(const Place& place) const { return place.n_blocks < whole.n_blocks; }

    // The first block goes on from ``first``. The others wait until there is something for them, or the END.
    __device__ __forceinline__ Handed begin(Place& place, const Handed& first) const
    {
        if (whole.is_in_first_block()) {
            place = place_among(0, 1);
            return first;
        }
        barrier_at(whole, arrived);
        Handed now;
        for (u32 i = 0; i < sizeof(Handed) / 4; i++)
            reinterpret_cast<u32*>(&now)[i] = load_cached(reinterpret_cast<const u32*>(handed) + i);
        return now;
    }

    // All go on from here.
    __device__ __forceinline__ void call_others(Place& place, const Handed& now) const
    {
        if (place.thread == 0) *handed = now;
        place = whole;
        barrier_at(whole, arrived);
    }

    // Where the first block is alone still, there was nothing for the others.
    __device__ __forceinline__ void let_go(Place& place) const
    {
        if (!is_alone(place)) return;
        if (place.thread == 0) handed->phase = END;
        place = whole;
        barrier_at(whole, arrived);
    }
};

// Rows, and leaves of long ones.
__device__ __forceinline__ u32 n_pieces(const Counts& counts) { return n_short(counts) + u32(counts.long_rows); }
