// Pushes of both of PageRank's systems: what pushes.cu begins with a batch, and settle.cu with what passes left.
//
// Whoever is over its limits takes its sum for its value, and its out-neighbours receive what its share changed by; in
// rounds, first the ranks. Its weight follows, of which the majorant hears. Then the majorant likewise. (Both in the same
// rounds, one taking while the other hands on, took as long.)
#pragma once

#include "walks.cuh"

// Of one system; nothing that is worth it takes so many.
constexpr u32 PUSH_ROUNDS = 1000;

// Lists of a system, by vertex.
struct Lists {
    u32* candidates[2];  // who may be over its limits, each once; by turns
    u32* stamps;         // the last round for which a vertex was listed
    u32* moved;          // whose values changed, each once
    u32* moved_stamps;   // the last run in which they did
    i64* differences;    // what a share that is to be handed on changed by
};

// Zero between runs.
struct __align__(16) PushCounters {
    Counts rows[2];        // to push along; by turns
    u32 candidates[2][2];  // by system, by turns
    u32 moved[2];          // by system
    u64 norm, size, total; // by how much they changed, of the ranks; as in WalkTotals
    u64 degree, ratio;     // doubles: the largest in-degree by weight where edges came; the largest majorant / estimate
                           // where either moved, or of all, if all were looked at
};

// Beside a WalkJob.
struct PushJob {
    Lists ranks;
    Lists majorant;
    int* degree_changes;  // [vertices] zero between runs
    Entry* short_rows;    // [room]
    Entry* long_rows;     // room for every long row
    PushCounters* counters;
    u32* changes;         // [changes_room] in the host's pinned memory: whose estimates changed
    const u64* keys;      // the batch, and what became of its updates
    const u8* outcomes;
    u64 edges_first, edges_max;  // given up when so many edges are due at first, or so many were pushed along
    double size;          // of residuals before, in units
    u32 room;
    u32 changes_room;
    u32 n_updates;
    u32 stamp;            // no vertex has this one or a higher one
    u32 looks;            // whether any vertex may be over its limits, or only those that updates touch
    u32 edits_alone;      // passes follow, and nothing is pushed nor told
};
static_assert(__is_trivially_copyable(PushJob), "the host passes its bytes");

// All but what is by vertex, for the next run.
__device__ __forceinline__ void clear(PushCounters* counters)
{
    for (u32 k = 0; k < 2; k++) {
        clear_counts(counters->rows + k);
        counters->moved[k] = counters->candidates[k][0] = counters->candidates[k][1] = 0;
    }
    counters->norm = counters->size = counters->total = counters->degree = counters->ratio = 0;
}

struct Pushes : Run<WalkJob> {
    const PushJob& push;
    // What all threads agree about.
    u64 edges = 0;
    u32 rounds = 0, turn = 0;
    // Of this thread: see PushCounters.
    u64 sums[3] = {};
    double degree = 0.0;

    __device__ __forceinline__ Pushes(
        const State& out, const State& in, const WalkJob& job, const PushJob& push, const Place& place)
        : Run(out, in, job, place), push(push)
    {
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ const System& system() const
    {
        return IS_MAJORANT ? job.majorant : job.ranks;
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ const Lists& lists() const
    {
        return IS_MAJORANT ? push.majorant : push.ranks;
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ u32* n_candidates(u32 round) const
    {
        return &push.counters->candidates[IS_MAJORANT][round & 1];
    }

    __device__ __forceinline__ Frontier rows() const
    {
        return {push.short_rows, push.long_rows, push.counters->rows + (turn & 1), push.room};
    }

    // Whether the sum of sizes of residuals leaves room for whatever values pushing may lead to: with at most
    // (1 - damping) * 2^60, values and sums stay below 2^62.
    __device__ __forceinline__ bool fits(double size) const { return size <= (1.0 - job.damping) * double(1ull << 60); }

    __device__ __forceinline__ void add_sums()
    {
        add_by_block(sums, &push.counters->norm);
        sums[0] = sums[1] = sums[2] = 0;
    }

    // -- lists -----------------------------------------------------------------------------------------------------

    // Lists them as candidates of this round, unless they are already. Nobody is a candidate of two rounds at a time, so
    // that a stamp tells them apart.
    template <bool IS_MAJORANT> __device__ __forceinline__ void propose(
        u32 round, bool first, bool second, const u32 (&vertex)[2]) const
    {
        const Lists& own = lists<IS_MAJORANT>();
        list_once(own.candidates[round & 1], n_candidates<IS_MAJORANT>(round), own.stamps, push.stamp + round, first,
            second, vertex);
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ void log_moved(
        bool first, bool second, const u32 (&vertex)[2]) const
    {
        const Lists& own = lists<IS_MAJORANT>();
        list_once(own.moved, push.counters->moved + IS_MAJORANT, own.moved_stamps, push.stamp, first, second, vertex);
    }

    // Both systems', of a vertex a lane. ``moves``: of those also in what moved.
    template <bool MOVES> __device__ __forceinline__ void propose_both(bool is_chosen, u32 v) const
    {
        constexpr u32 N = MOVES ? 4 : 2;
        u32* const stamps[4] = {push.ranks.stamps, push.majorant.stamps, push.ranks.moved_stamps, push.majorant.moved_stamps};
        u32* const to[4] = {push.ranks.candidates[0], push.majorant.candidates[0], push.ranks.moved, push.majorant.moved};
        u32* const counters[4] = {n_candidates<false>(0), n_candidates<true>(0), push.counters->moved, push.counters->moved + 1};
        bool is_new[N];
        u32* own_lists[N];
        u32* own_counters[N];
        u32 before[N];
#pragma unroll
        for (u32 k = 0; k < N; k++) before[k] = is_chosen ? atomicExch(stamps[k] + v, push.stamp) : push.stamp;
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            is_new[k] = before[k] != push.stamp;
            own_lists[k] = to[k];
            own_counters[k] = counters[k];
        }
        __syncwarp();
        list_in(own_lists, own_counters, is_new, v);
    }

    // -- residuals -------------------------------------------------------------------------------------------------

    // A sum before something was added to it, and the value that goes with it: two accesses at a time.
    struct Added {
        i64 sum, value;
    };

    template <bool IS_MAJORANT> __device__ __forceinline__ Added add_to(u32 v, i64 amount) const
    {
        const System& own = system<IS_MAJORANT>();
        return {i64(atomicAdd(reinterpret_cast<u64*>(own.sums + v), u64(amount))), load_cached(own.values + v)};
    }

    // What was added to a sum of the ranks counts.
    __device__ __forceinline__ void count(const Added& to, i64 amount)
    {
        const i64 old = to.sum - to.value;
        sums[1] += u64(size_of(old + amount) - size_of(old));
        sums[2] += u64(amount);
    }

    // Adds to the sums of the vertices of a lane, both at a time; whether that brings a residual over a limit within which it
    // was.
    template <bool IS_MAJORANT> __device__ __forceinline__ void receive(
        const bool (&is_there)[2], const u32 (&v)[2], i64 amount, bool (&crosses)[2])
    {
        Added to[2] = {{0, 0}, {0, 0}};
#pragma unroll
        for (u32 j = 0; j < 2; j++)
            if (is_there[j]) to[j] = add_to<IS_MAJORANT>(v[j], amount);
        const double unit = IS_MAJORANT ? job.majorant_unit : job.unit;
        const double least = IS_MAJORANT ? min(job.majorant_below, job.majorant_above) : min(job.below, job.above);
        float weight[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const i64 now = to[j].sum - to[j].value + amount;
            crosses[j] = is_there[j] && double(size_of(now)) > least * unit;
            if (crosses[j]) weight[j] = load_cached(job.weights + v[j]);
            if (!IS_MAJORANT && is_there[j]) count(to[j], amount);
        }
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const i64 old = to[j].sum - to[j].value;
            crosses[j] = crosses[j] && is_over<IS_MAJORANT>(old + amount, weight[j]) && !is_over<IS_MAJORANT>(old, weight[j]);
        }
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ bool is_over(i64 residual, float weight) const
    {
        return IS_MAJORANT ? !is_within_slack(job, residual, weight) : !is_within(job, residual, weight);
    }

    // Sets a value, of which the one before and the sum are known; what that does to its residual is counted.
    template <bool IS_MAJORANT> __device__ __forceinline__ void set_value(u32 v, i64 before, i64 value, i64 sum)
    {
        store_cached(system<IS_MAJORANT>().values + v, value);
        if (IS_MAJORANT) return;
        sums[0] += u64(value - before);
        sums[1] += u64(size_of(sum - value) - size_of(sum - before));
        sums[2] += u64(before - value);
    }

    // Lets a weight follow its value; whether it changed, of which the majorant has then been told.
    __device__ __forceinline__ bool reweigh(u32 v, float before, i64 value)
    {
        const float now = followed(job, before, double(value) / job.unit);
        if (now == before) return false;
        store_cached(job.weights + v, now);
        add(job.majorant.sums + v, i64((double(now) - double(before)) * job.majorant_unit));
        count_degree(load_row(in, v).degree, now);
        return true;
    }

    // Where in-degrees grow or weights shrink, shares may be rounded to more of a weight.
    __device__ __forceinline__ void count_degree(u32 in_degree, float weight)
    {
        if (weight > 0.0f) degree = max(degree, double(in_degree) / double(weight));
    }

    // The share that belongs to a value, of which the one before is known; whether it changed, by what is to be handed on.
    template <bool IS_MAJORANT> __device__ __forceinline__ bool renew_share(u32 v, u32 degree, i64 value, float before)
    {
        const float now = share_of(value, exact::divide(job.damping, double(degree)));
        store_cached(share(system<IS_MAJORANT>(), v), now);
        store_cached(lists<IS_MAJORANT>().differences + v, integer(now) - integer(before));
        return now != before;
    }

    // -- push ------------------------------------------------------------------------------------------------------

    // Rounds until nobody is over its limits, first in the ranks; false: given up.
    __device__ __forceinline__ bool solve() { return solve_one<false>() && solve_one<true>(); }

    template <bool IS_MAJORANT> __device__ __forceinline__ bool solve_one()
    {
        for (u32 round = 0;; round++) {
            const u32 n = load_cached(n_candidates<IS_MAJORANT>(round));
            if (!n) return true;
            take<IS_MAJORANT>(round, n);
            barrier();
            const Counts counts = load_counts(rows().counts);
            edges += counts.edges;
            rounds++;
            if (n_short(counts) > push.room || round >= PUSH_ROUNDS) return false;
            if (edges > (rounds == 1 ? push.edges_first : push.edges_max)) return false;
            if (place.thread == 0) {
                clear_counts(push.counters->rows + ((turn + 1) & 1));
                *n_candidates<IS_MAJORANT>(round) = 0;
            }
            if (!is_empty(counts)) hand_on<IS_MAJORANT>(round, counts);
            turn++;
            barrier();
        }
    }

    // Who is over its limits takes its sum for its value. All that this may need of a vertex is asked for at once: a round of
    // few waits for one access after the other, and for nothing else.
    template <bool IS_MAJORANT> __device__ __forceinline__ void take(u32 round, u32 n)
    {
        const System& own = system<IS_MAJORANT>();
        const Lists& listed = lists<IS_MAJORANT>();
        const u32* const candidates = listed.candidates[round & 1];
        for (u64 first = place.warp * 32; first < n; first += place.n_threads) {
            const bool is_there = first + place.lane < n;
            u32 vertex[2] = {0, 0};
            i64 sum = 0, value = 0;
            float weight = 0.0f, before = 0.0f;
            Row row[2] = {{0, 0}, {0, 0}};
            if (is_there) {
                const u32 v = vertex[0] = load_cached(candidates + first + place.lane);
                sum = load_cached(own.sums + v);
                value = load_cached(own.values + v);
                weight = load_cached(job.weights + v);
                before = load_cached(share(own, v));
                row[0] = load_row(out, v);
            }
            const bool is_taken = is_there && is_over<IS_MAJORANT>(sum - value, weight);
            bool is_queued[2] = {false, false};
            u32 stamp = push.stamp, majorant_stamp = push.stamp;  // of what moved, and of the majorant's candidates
            if (is_taken) {
                stamp = atomicExch(listed.moved_stamps + vertex[0], push.stamp);
                set_value<IS_MAJORANT>(vertex[0], value, sum, sum);
                if (!IS_MAJORANT && reweigh(vertex[0], weight, sum))
                    majorant_stamp = atomicExch(push.majorant.stamps + vertex[0], push.stamp);
                is_queued[0] = row[0].degree && renew_share<IS_MAJORANT>(vertex[0], row[0].degree, sum, before);
            }
            __syncwarp();
            if (__any_sync(ALL_LANES, is_queued[0])) put<false>(out, rows(), is_queued, vertex, row);
            const bool is_listed[2] = {stamp != push.stamp, majorant_stamp != push.stamp};
            u32* const to[2] = {listed.moved, push.majorant.candidates[0]};
            u32* const counters[2] = {push.counters->moved + IS_MAJORANT, n_candidates<true>(0)};
            list_in(to, counters, is_listed, vertex[0]);
        }
    }

    template <bool IS_MAJORANT> __device__ __forceinline__ void hand_on(u32 round, const Counts& counts)
    {
        const i64* const differences = lists<IS_MAJORANT>().differences;
        const auto load = [&](u32 v) { return load_cached(differences + v); };
        walk_rows(out, rows(), counts, place, load, [&](i64 by, u32, const Edges& row, bool) {
            bool crosses[2];
            receive<IS_MAJORANT>(row.live, row.head, by, crosses);
            __syncwarp();
            propose<IS_MAJORANT>(round + 1, crosses[0], crosses[1], row.head);
            return false;
        });
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ double ratio_of(u32 v) const
    {
        const double estimate = double(load_cached(job.ranks.values + v)) / job.unit;
        const double majorant = double(load_cached(job.majorant.values + v)) / job.majorant_unit;
        return estimate > 0.0 ? majorant / estimate : exact::double_of(0x7ff0000000000000ull);
    }

    // Adds what changed to the counters, and the largest ratio of those where either value did. Calls moved(k, vertex) for
    // those whose estimates changed.
    template <class Moved> __device__ __forceinline__ void add_up(Moved moved)
    {
        PushCounters* const counters = push.counters;
        add_sums();
        max_by_warp(degree, &counters->degree);
        double ratio = 0.0;
        for (u32 system = 0; system < 2; system++) {
            const u32* const listed = system ? push.majorant.moved : push.ranks.moved;
            const u32 n = load_cached(&counters->moved[system]);
            for (u32 k = place.thread; k < n; k += place.n_threads) {
                const u32 v = load_cached(listed + k);
                if (!system) moved(k, v);
                ratio = max(ratio, ratio_of(v));
            }
        }
        max_by_warp(ratio, &counters->ratio);
    }
};
