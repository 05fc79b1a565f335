// PageRank after few updates: residuals are edited, and what is over its limits is pushed along its out-edges, in rounds.
// One cooperative kernel for both systems; sums stay exact in every bit.
//
// 1. edit: the head of an inserted edge receives the share of its tail, that of a deleted one gives it back.
// 2. Of a vertex whose degree changed, the share stays and the value becomes the one that this is the share of (Zhang,
//    Lofgren, Goel, "Approximate Personalized PageRank on Dynamic Graphs", KDD 2016): O(1), and nothing for the edges that
//    it kept. Where much of its row changed, that would be far off; there the value stays, and the row trades its share
//    for another one.
// 3. push, in rounds: pushes.cuh.
//
// Where passes are to follow, that is all but the pushes: they begin with values that are nearer to the new ones.
//
// The run is given up, and passes make everything anew, when pushing has cost too much, a queue runs over, or residuals
// add up to what might overflow: see ``fits``.
#include "pushes.cuh"

struct Editing : Pushes {
    using Pushes::Pushes;

    __device__ __forceinline__ void run()
    {
        if (push.looks) {
            look();
        } else {
            edit();
            barrier();
            follow_degrees();
        }
        add_sums();
        barrier();
        const Counts traded = load_counts(rows().counts);
        bool fits_all = n_short(traded) <= push.room;
        if (!is_empty(traded)) {
            if (fits_all) trade(traded);
            else begin_from_values();
            edges += traded.edges;
            add_sums();
            barrier();
        }
        turn++;  // even then: others may not have looked at these counts yet
        const bool is_small = fits(push.size + double(i64(load_cached(&push.counters->size))));
        if (!push.edits_alone) return finish(fits_all && is_small && solve());
        barrier();  // all have read the counters
        if (place.thread) return;
        clear(push.counters);
        job.counters->exceeds = !fits_all || !is_small;
    }

    // Where rows that are to trade their shares have no room in the queue, all that edges received of these stays: that may be
    // more than 64 bits hold. So passes, which are to follow, begin with the values instead.
    __device__ __forceinline__ void begin_from_values() const
    {
        struct Values {
            i64 own, other;
        };
        const auto load = [&](u32 v) {
            return Values{load_cached(job.ranks.values + v), load_cached(job.majorant.values + v)};
        };
        for_vertices<Values>(place, job.n_vertices, load, [&](u32 v, const Values& values) {
            store_cached(job.ranks.sums + v, values.own);
            store_cached(job.majorant.sums + v, values.other);
        });
    }

    __device__ __forceinline__ void look()
    {
        for (u64 first = place.warp * 64; first < job.n_vertices; first += 2 * u64(place.n_threads)) {
            const u32 vertex[2] = {u32(first) + place.lane, u32(first) + 32 + place.lane};
            i64 residual[2][2];
            float weight[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 v = min(vertex[j], job.n_vertices - 1);
                residual[j][0] = load_cached(job.ranks.sums + v) - load_cached(job.ranks.values + v);
                residual[j][1] = load_cached(job.majorant.sums + v) - load_cached(job.majorant.values + v);
                weight[j] = load_cached(job.weights + v);
            }
            bool is_due[2][2];
            for (u32 j = 0; j < 2; j++) {
                is_due[0][j] = vertex[j] < job.n_vertices && is_over<false>(residual[j][0], weight[j]);
                is_due[1][j] = vertex[j] < job.n_vertices && is_over<true>(residual[j][1], weight[j]);
            }
            propose<false>(0, is_due[0][0], is_due[0][1], vertex);
            propose<true>(0, is_due[1][0], is_due[1][1], vertex);
        }
    }

    // -- 1 and 2. edit ---------------------------------------------------------------------------------------------

    template <class Work> __device__ __forceinline__ void for_batch(Work work)
    {
        for_changes(place, push.keys, push.outcomes, push.n_updates, work);
    }

    __device__ __forceinline__ float2* shares(u32 v) const { return reinterpret_cast<float2*>(job.ranks.shares) + v; }

    __device__ __forceinline__ void edit()
    {
        for_batch([&](bool is_change, u64 key, u8 outcome) {
            const u32 tail = source(key), head = destination(key);
            if (is_change) {
                const bool is_new = outcome == INSERTED;
                const float2 received = load_cached(shares(tail));
                const float weight = load_cached(job.weights + head);
                const u32 in_degree = load_row(in, head).degree;
                atomicAdd(push.degree_changes + tail, is_new ? 1 : -1);
                const i64 own = is_new ? integer(received.x) : -integer(received.x);
                const i64 other = is_new ? integer(received.y) : -integer(received.y);
                add(job.majorant.sums + head, other);
                count(add_to<false>(head, own), own);
                if (is_new) count_degree(in_degree, weight);
            }
            __syncwarp();
            propose_both<false>(is_change, head);
        });
    }

    __device__ __forceinline__ void follow_degrees()
    {
        for_batch([&](bool is_change, u64 key, u8) {
            const u32 v = source(key);
            int change = 0;
            Row row = {0, 0};
            float2 kept = {0.0f, 0.0f};
            float weight = 0.0f;
            i64 value = 0, majorant = 0, sum = 0;
            if (is_change) {
                change = atomicExch(push.degree_changes + v, 0);
                row = load_row(out, v);
                kept = load_cached(shares(v));
                weight = load_cached(job.weights + v);
                value = load_cached(job.ranks.values + v);
                majorant = load_cached(job.majorant.values + v);
                sum = load_cached(job.ranks.sums + v);
            }
            const bool trades = trades_share(row.degree, change);
            const bool follows = row.degree && !trades && change;
            bool is_queued = false;
            if (change && row.degree == 0) store_cached(shares(v), make_float2(0.0f, 0.0f));
            if (trades) {
                const bool own = renew_share<false>(v, row.degree, value, kept.x);
                const bool other = renew_share<true>(v, row.degree, majorant, kept.y);
                is_queued = own || other;
            }
            if (follows) {
                const i64 now = value_of(kept.x, row.degree);
                set_value<false>(v, value, now, sum);
                set_value<true>(v, majorant, value_of(kept.y, row.degree), 0);
                reweigh(v, weight, now);
            }
            __syncwarp();
            propose_both<true>(follows, v);
            const u32 vertex[2] = {v, 0};
            const bool chosen[2] = {is_queued, false};
            const Row queued[2] = {row, {0, 0}};
            if (__any_sync(ALL_LANES, is_queued)) put<false>(out, rows(), chosen, vertex, queued);
        });
    }

    // The value that a share belongs to.
    __device__ __forceinline__ i64 value_of(float share, u32 degree) const
    {
        return nearest(exact::divide(exact::multiply(double(integer(share)), double(degree)), job.damping));
    }

    __device__ __forceinline__ void trade(const Counts& counts)
    {
        struct Differences {
            i64 own, other;
        };
        const auto load = [&](u32 v) {
            return Differences{load_cached(push.ranks.differences + v), load_cached(push.majorant.differences + v)};
        };
        walk_rows(out, rows(), counts, place, load, [&](const Differences& by, u32, const Edges& row, bool) {
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                add(job.majorant.sums + row.head[j], by.other);
                count(add_to<false>(row.head[j], by.own), by.own);
            }
            __syncwarp();
            propose<false>(0, row.live[0], row.live[1], row.head);
            propose<true>(0, row.live[0], row.live[1], row.head);
            return false;
        });
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish(bool is_solved)
    {
        barrier();  // all have read the counters
        PushCounters* const counters = push.counters;
        const double per_unit = 1.0 / job.unit;  // exact
        add_up([&](u32 k, u32 v) {
            job.estimates[v] = published(load_cached(job.ranks.values + v), per_unit);
            if (k < push.changes_room) push.changes[k] = v;
        });
        if (push.looks) {
            double ratio = 0.0;
            for (u32 v = place.thread; v < job.n_vertices; v += place.n_threads)
                if (load_cached(job.weights + v) > 0.0f) ratio = max(ratio, ratio_of(v));
            max_by_warp(ratio, &counters->ratio);
        }
        barrier();
        if (place.thread) return;
        const u64 said[WALK_SAID] = {is_solved, 0, rounds, edges, load_cached(&counters->moved[0]), load_cached(&counters->norm),
            load_cached(&counters->size), load_cached(&counters->total), 0, 0, load_cached(&counters->degree),
            load_cached(&counters->ratio)};
        clear(counters);
        __threadfence_system();
        for (u32 k = 0; k < WALK_SAID; k++) tell(job, k, said[k]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void pushes(const __grid_constant__ State out,
    const __grid_constant__ State in, const __grid_constant__ WalkJob job, const __grid_constant__ PushJob push)
{
    Editing(out, in, job, push, place_in_grid()).run();
}
