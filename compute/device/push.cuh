// Pushing: who improved offers along its row, in rounds, until nobody improves.
//
// BOUNDED: only those whose value is within a bound do so; the others are put aside (spread.cu).
#pragma once

#include "paths.cuh"

// An offer to a vertex whose word was ``seen``.
struct Offer {
    bool is_good;
    u32 vertex;
    u64 seen;
    u32 bits;
    u32 from;
};

__device__ __forceinline__ Offer no_offer() { return {false, 0, 0, NOTHING, NO_PARENT}; }

__device__ __forceinline__ Offer offer_to(u32 vertex, u64 seen, u32 bits, u32 from)
{
    return {is_better(bits, value_bits(seen)), vertex, seen, bits, from};
}

// Goes on until the offer is taken, or no longer good.
__device__ __forceinline__ void finish_offer(const PathJob& job, Offer& offer, u64 found)
{
    while (offer.is_good && found != offer.seen) {
        offer.seen = found;
        offer.is_good = is_better(offer.bits, value_bits(found));
        if (offer.is_good) found = atomicCAS(job.words + offer.vertex, found, word_of(offer.bits, offer.from));
    }
}

// What a warp has found for the next round, and for the log, until there is so much of it: places that all warps share
// are claimed for many vertices at a time, since those who claim wait for each other.
template <bool BOUNDED> struct __align__(16) HeldBy {
    static constexpr u32 ROOM = 64;  // two a lane at least, so that what is found at once fits
    Entry short_rows[ROOM];
    u32 log[ROOM];
    // Vertices that are to be seen to, such as by an offer, until lanes are many: of a leaf's edges few are good offers, and
    // to make one takes as long as to make 64. Room for what is found at once beside as much that waits.
    static constexpr u32 FOUND = BOUNDED ? 1 : 2 * ROOM;
    u32 vertex[FOUND], bits[FOUND], from[FOUND];
};

template <bool BOUNDED> struct Pushing {
    // Rows are found once it is known who is queued: of those who gain beyond a bound most do so several times before they
    // push, and to find a remote row takes two reads over the bus, of a few bytes each.
    static constexpr bool FINDS_LATE = BOUNDED && REMOTE;

    const State& out;
    const PathJob& job;
    Place place;
    HeldBy<BOUNDED>& held;  // in shared memory, this warp's own
    u32 n_found = 0;        // vertices that were put off
    u32 n_held = 0, n_noted = 0;  // short rows, and vertices of the log; while BOUNDED, those put aside
    u64 edges_held = 0;           // of the rows that are queued next, long ones included
    // What all threads of the grid agree about.
    u64 edges = 0;
    u32 rounds = 0, turn = 0;
    u32 slice = 0;          // of queues that ran over
    u32 bound = NOTHING;    // values are within it that are not worse

    // ``held``: in shared memory, for each warp of the block.
    __device__ __forceinline__ Pushing(const State& out, const PathJob& job, const Place& place, HeldBy<BOUNDED>* held)
        : out(out), job(job), place(place), held(held[threadIdx.x >> 5])
    {
    }

    __device__ __forceinline__ void barrier() { barrier_at(place, &job.counters->barrier); }

    __device__ __forceinline__ Frontier asked(u32 turn)
    {
        return frontier_of(job, QUEUE_ASKED + (turn & 1), job.counters->asked + turn % 3);
    }

    __device__ __forceinline__ bool is_within(u32 bits) const { return bound == NOTHING || !is_better(bound, bits); }

    // Puts off to see to the good ones of the warp's offers, two a lane. What that takes of their vertices is asked for
    // already. All lanes take part.
    __device__ __forceinline__ void put_off(const Offer (&offers)[2])
    {
        const Votes good = vote(offers[0].is_good, offers[1].is_good);
        for (u32 j = 0; j < 2; j++) {
            if (!offers[j].is_good) continue;
            const u32 at = n_found + good.before(j);
            held.vertex[at] = offers[j].vertex;
            held.bits[at] = offers[j].bits;
            held.from[at] = offers[j].from;
            ask_for(offers[j].vertex);
        }
        n_found += good.count();
        __syncwarp();
    }

    // What it takes to log and queue a vertex.
    __device__ __forceinline__ void ask_for(u32 vertex) const
    {
        prefetch(job.stamps + vertex);
        if (!REMOTE) prefetch(out.rows + vertex);
    }

    // Takes two a lane of those that were put off, if these are more than a warp takes at a time, or may not wait.
    __device__ __forceinline__ bool take_found(bool may_wait, Offer (&offers)[2])
    {
        constexpr u32 MOST = 64;
        if (n_found <= (may_wait ? MOST : 0)) return false;
        const u32 begin = n_found > MOST ? n_found - MOST : 0;
        for (u32 j = 0; j < 2; j++) {
            const u32 at = begin + 32 * j + place.lane;
            offers[j] = no_offer();
            if (at < n_found) offers[j] = {true, held.vertex[at], 0, held.bits[at], held.from[at]};
        }
        n_found = begin;
        __syncwarp();  // their places are taken again
        return true;
    }

    // Makes offers that were put off, as ``improve`` does, if it is time. Most of them are good: their rows are asked for
    // with the words.
    __device__ __forceinline__ bool make_offers(bool may_wait, const Frontier& next, u32 stamp)
    {
        Offer offers[2];
        if (!take_found(may_wait, offers)) return false;
        Row row[2] = {{0, 0}, {0, 0}};
        for (u32 j = 0; j < 2; j++) {
            if (!offers[j].is_good) continue;
            offers[j].seen = load_word(job, offers[j].vertex);
            row[j] = load_row(out, offers[j].vertex);
        }
        for (u32 j = 0; j < 2; j++)
            if (offers[j].is_good) offers[j].is_good = is_better(offers[j].bits, value_bits(offers[j].seen));
        improve(next, offers, row, stamp);
        return true;
    }

    // Makes the warp's offers, two a lane. Who gains is held for the next round, if it is the first time for this one,
    // ``stamp``, and for the log, if it is the first time in this run; or put aside. All lanes take part.
    __device__ __forceinline__ void improve(const Frontier& next, Offer (&offers)[2], u32 stamp)
    {
        if (!__any_sync(ALL_LANES, offers[0].is_good || offers[1].is_good)) return;
        Row row[2] = {{0, 0}, {0, 0}};
        for (u32 j = 0; !FINDS_LATE && j < 2; j++)
            if (offers[j].is_good) row[j] = load_row(out, offers[j].vertex);
        improve(next, offers, row, stamp);
    }

    // The same where rows are there, unless they are found late.
    __device__ __forceinline__ void improve(const Frontier& next, Offer (&offers)[2], Row (&row)[2], u32 stamp)
    {
        u64 found[2] = {0, 0};
        u32 before[2] = {stamp, stamp};
        for (u32 j = 0; j < 2; j++) {
            if (!offers[j].is_good) continue;
            found[j] = atomicCAS(job.words + offers[j].vertex, offers[j].seen, word_of(offers[j].bits, offers[j].from));
            // Where another offer was as good and came first, the vertex improved in this round all the same.
            if (!BOUNDED) before[j] = atomicExch(job.stamps + offers[j].vertex, stamp);
        }
        // Both are under way before either is waited for.
        for (u32 j = 0; j < 2; j++) finish_offer(job, offers[j], found[j]);
        bool is_counted[2] = {false, false}, is_queued[2];
        for (u32 j = 0; j < 2; j++) {
            if (!BOUNDED || !offers[j].is_good) continue;
            if (!is_within(offers[j].bits)) is_counted[j] = set_aside(offers[j].vertex);
            else before[j] = atomicExch(job.stamps + offers[j].vertex, stamp);
        }
        for (u32 j = 0; FINDS_LATE && j < 2; j++)
            if (before[j] != stamp) row[j] = load_row(out, offers[j].vertex);
        for (u32 j = 0; j < 2; j++) {
            if (!BOUNDED) is_counted[j] = before[j] < job.stamp;
            is_queued[j] = before[j] != stamp && row[j].degree;
        }
        __syncwarp();
        const u32 vertices[2] = {offers[0].vertex, offers[1].vertex};
        hold(next, is_queued, vertices, row, is_counted);
    }

    // Holds vertices of the warp, two a lane, with their rows, for the next round; and for the log, or as put aside,
    // those that count. All lanes take part.
    __device__ __forceinline__ void hold(const Frontier& next, const bool (&is_queued)[2], const u32 (&vertices)[2],
        const Row (&row)[2], const bool (&is_counted)[2])
    {
        const Votes counted = vote(is_counted[0], is_counted[1]);
        const Votes shorts = vote(is_queued[0] && is_short(row[0]), is_queued[1] && is_short(row[1]));
        constexpr u32 ROOM = HeldBy<BOUNDED>::ROOM;
        if (n_held + shorts.count() > ROOM || (!BOUNDED && n_noted + counted.count() > ROOM)) let_go(next);
        edges_held += edges_of_rows(is_queued[0] ? row[0].degree : 0, is_queued[1] ? row[1].degree : 0);
        for (u32 j = 0; j < 2; j++) {
            const u32 vertex = vertices[j];
            if (!BOUNDED && is_counted[j]) held.log[n_noted + counted.before(j)] = vertex;
            if (!is_queued[j]) continue;
            if (is_short(row[j])) held.short_rows[n_held + shorts.before(j)] = {vertex, row[j].leaf, row[j].degree, 0};
            else put_long(out, next, vertex, row[j]);
        }
        n_held += shorts.count();
        n_noted += counted.count();
        __syncwarp();
    }

    __device__ __forceinline__ void hold(
        const Frontier& next, const bool (&is_queued)[2], const u32 (&vertices)[2], const Row (&row)[2])
    {
        const bool none[2] = {false, false};
        hold(next, is_queued, vertices, row, none);
    }

    // Queues and logs what the warp holds: before others, who read the queues behind a barrier. All lanes take part.
    __device__ __forceinline__ void let_go(const Frontier& next)
    {
        if (!edges_held && !n_noted) return;  // no row that is held is empty
        u64* counter = &job.counters->logged;
        u64 amount = n_noted;
        switch (place.lane) {
        case 1: counter = &next.counts->short_rows, amount = n_held; break;
        case 2: counter = &next.counts->edges, amount = edges_held; break;
        }
        u64 base = 0;
        if (place.lane < 3) base = add_by_lane(counter, amount);
        const u32 at_log = u32(__shfl_sync(ALL_LANES, base, 0)), at = u32(__shfl_sync(ALL_LANES, base, 1));
#pragma unroll 1
        for (u32 k = place.lane; k < n_held; k += 32)
            if (at + k < next.room) store_wide(next.short_rows + at + k, held.short_rows[k]);
#pragma unroll 1
        for (u32 k = place.lane; !BOUNDED && k < n_noted; k += 32) job.log[at_log + k] = held.log[k];
        n_held = n_noted = 0;
        edges_held = 0;
        __syncwarp();  // what comes next takes the same places
    }

    // Whether the vertex was not among those put aside, which a bit says of each.
    __device__ __forceinline__ bool set_aside(u32 vertex)
    {
        const u32 bit = 1u << (vertex & 31);
        return !(atomicOr(job.seen[0] + (vertex >> 5), bit) & bit);
    }

    __device__ __forceinline__ u32 push(u32 stamp)
    {
        return push(stamp, [](const Counts&, u32) {});
    }

    // Rounds until nobody has improved; returns the last one's stamp. Those queued for the first have ``stamp``.
    // Before each round look(counts, stamp) is called, with what is queued for it.
    template <class Look> __device__ __forceinline__ u32 push(u32 stamp, Look look)
    {
        for (;; turn++) {
            const Counts counts = load_counts(job.counters->outgoing + turn % 3);
            if (is_empty(counts)) return stamp;
            look(counts, stamp);
            edges += counts.edges;
            rounds++;
            if (place.thread == 0) clear_counts(job.counters->outgoing + (turn + 2) % 3);
            const bool ran_over = n_short(counts) > job.room;
            const u32 n_slices = ran_over ? (job.n_vertices + job.room - 1) / job.room : 1;
            for (u32 k = 0; k < n_slices; k++) {
                Frontier now = outgoing(job, turn);
                Counts rows = counts;
                if (ran_over) {  // the long rows are all there, and go with the first slice
                    now = list_slice(k, stamp, now.long_rows);
                    rows.short_rows = load_counts(now.counts).short_rows;
                    if (k) rows.long_rows = 0;
                    slice++;
                }
                push_rows(now, rows, stamp + 1);
            }
            stamp++;
            barrier();
        }
    }

    // Offers along these rows; who gains is queued for round ``stamp``.
    __device__ __forceinline__ void push_rows(const Frontier& now, const Counts& counts, u32 stamp)
    {
        // What a visit has to know: the row's value, which may have improved since it was queued, and its heads' words.
        struct Loaded {
            u32 bits;
            u64 seen[2];
            float weight[2];
        };
        const auto load = [&](u32 vertex, const Edges& row) {
            Loaded loaded = {value_bits(load_word(job, vertex)), {UNREACHED, UNREACHED}, {1.0f, 1.0f}};
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                loaded.seen[j] = load_word(job, row.head[j]);
                loaded.weight[j] = weight_of(out, row, j);
            }
            return loaded;
        };
        walk_rows_ahead(
            out, now, counts, place, load, [&](const Loaded& loaded, u32 vertex, const Edges& row) {
                Offer offers[2] = {no_offer(), no_offer()};
                for (u32 j = 0; j < 2; j++)
                    if (row.live[j])
                        offers[j] = offer_to(
                            row.head[j], loaded.seen[j], offered(loaded.bits, loaded.weight[j]), vertex);
                if (BOUNDED) improve(outgoing(job, turn + 1), offers, stamp);
                else put_off(offers);
            },
            [&](bool is_more) { return !BOUNDED && make_offers(is_more, outgoing(job, turn + 1), stamp); });
        let_go(outgoing(job, turn + 1));
    }

    // The short rows among ``room`` vertices that wait for round ``stamp``, for a queue that ran over. Queues and
    // counters are those of asking, of which nobody is: they alternate and rotate by slice, beginning at zero. Who is
    // queued for the next round meanwhile has its stamp, and waits until then.
    __device__ __forceinline__ Frontier list_slice(u32 k, u32 stamp, Entry* long_rows)
    {
        Frontier listed = asked(slice);
        if (place.thread == 0) clear_counts(job.counters->asked + (slice + 1) % 3);
        const u64 begin = u64(k) * job.room, end = min(begin + job.room, u64(job.n_vertices));
        for (u64 first = begin + place.warp * 32; first < end; first += place.n_threads) {
            const u64 vertex = first + place.lane;
            Row row = {0, 0};
            if (vertex < end && load_cached(job.stamps + vertex) == stamp) row = load_row(out, u32(vertex));
            const bool chosen[2] = {is_short(row), false};
            const u32 vertices[2] = {u32(vertex), 0};
            const Row rows[2] = {row, {0, 0}};
            if (__any_sync(ALL_LANES, chosen[0])) put<false>(out, listed, chosen, vertices, rows);
        }
        barrier();
        listed.long_rows = long_rows;
        return listed;
    }
};
