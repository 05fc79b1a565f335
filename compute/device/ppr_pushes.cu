// Personalised PageRank after few updates, or where its sources reach little: sums are edited, and where residuals have
// come to more than they may, the largest for their degree are pushed along out-edges, in rounds. Sums stay exact in every
// bit.
//
// 1. edit: the head of an inserted edge receives the share of its tail, that of a deleted one gives it back.
// 2. Of a vertex whose degree changed, the share stays and the value follows, or the row trades its share for another
//    one; see pushes.cu.
// 3. Sources come and go, and so do vertices: those have no edges any more, and nothing is left of them.
// 4. Only where the sizes of residuals add up to more than they may: by threshold after threshold, whoever has a residual
//    over it for each out-edge takes its sum for its value, and its out-neighbours receive what its share changed by
//    (Andersen, Chung, Lang, "Local Graph Partitioning using PageRank Vectors", FOCS 2006).
//
// The run is given up, and passes make everything anew, when pushing has cost too much, a queue runs over, or residuals
// add up to what might overflow: with sizes of at most (1 - damping) * 2^60 together, values and sums stay below 2^62.
#include "ppr.cuh"

// Thresholds in turn, in multiples of the one under which residuals are within their goal wherever they are.
constexpr u32 HIGHEST = 64, STEP = 8;
constexpr u32 PUSH_ROUNDS = 1000;  // nothing that is worth it takes so many

struct PprPushes : Run<PprJob> {
    // What all threads agree about.
    u64 edges = 0;
    u32 rounds = 0, turn = 0;
    double threshold = 0.0;
    // Of this thread: see PprSums.
    u64 sums[3] = {};

    using Run::Run;

    __device__ __forceinline__ Frontier rows() const
    {
        return {job.short_rows, job.long_rows, job.counters->rows + (turn & 1), job.room};
    }

    __device__ __forceinline__ double norm() const
    {
        return double(job.before.norm + load_cached(&job.counters->grown.norm));
    }

    __device__ __forceinline__ double size() const
    {
        return double(job.before.size + load_cached(&job.counters->grown.size));
    }

    __device__ __forceinline__ bool fits() const { return size() <= (1.0 - job.damping) * double(1ull << 60); }

    __device__ __forceinline__ void run()
    {
        edit();
        barrier();
        follow_degrees();
        barrier();
        const Counts traded = load_counts(rows().counts);
        const bool fits_all = n_short(traded) <= job.room;
        if (!fits_all) {
            begin_from_values();
            barrier();
        } else if (!is_empty(traded)) {
            hand_on<false>(traded);
        }
        enter();
        edges += traded.edges;
        turn++;
        add_sums();
        barrier();
        finish(fits_all && fits() && solve());
    }

    // Where rows that are to trade their shares have no room in the queue, all that edges received of these stays: that may be
    // more than 64 bits hold. So passes, which are to follow, begin with the values instead.
    __device__ __forceinline__ void begin_from_values() const
    {
        for_vertices<i64>(place, job.n_vertices, [&](u32 v) { return load_cached(job.values + job.at(v)); },
            [&](u32 v, i64 value) { store_cached(job.sums + job.at(v), value); });
    }

    __device__ __forceinline__ void add_sums()
    {
        add_by_block(sums, &job.counters->grown.norm);
        sums[0] = sums[1] = sums[2] = 0;
    }

    // -- lists -----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void propose(u32 round, bool first, bool second, const u32 (&vertex)[2]) const
    {
        list_once(job.candidates[round & 1], &job.counters->candidates[round & 1], job.stamps, job.stamp + round, first,
            second, vertex);
    }

    __device__ __forceinline__ void log_moved(bool first, bool second, const u32 (&vertex)[2]) const
    {
        list_once(job.moved, &job.counters->moved, job.moved_stamps, job.stamp, first, second, vertex);
    }

    // -- residuals -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ bool is_over(u32 v, i64 residual) const
    {
        const double size = double(size_of(residual));
        return size > threshold && size > threshold * (double(load_row(out, v).degree) + 1.0);
    }

    // What the residual was before the sum grew by this.
    __device__ __forceinline__ i64 receive(u32 v, i64 amount)
    {
        const i64 before = i64(atomicAdd(reinterpret_cast<u64*>(job.sums + job.at(v)), u64(amount)));
        const i64 old = before - load_cached(job.values + job.at(v));
        sums[1] += u64(size_of(old + amount) - size_of(old));
        sums[2] += u64(amount);
        return old;
    }

    // Sets a value. Nobody receives anything meanwhile.
    __device__ __forceinline__ void set_value(u32 v, i64 value)
    {
        const i64 before = load_cached(job.values + job.at(v)), sum = load_cached(job.sums + job.at(v));
        store_cached(job.values + job.at(v), value);
        sums[0] += u64(value - before);
        sums[1] += u64(size_of(sum - value) - size_of(sum - before));
        sums[2] += u64(before - value);
    }

    // The share that belongs to the value; whether it changed, by what is to be handed on.
    __device__ __forceinline__ bool renew_share(u32 v, u32 degree)
    {
        const i64 before = load_cached(job.shares + job.at(v)), now = share_of(load_cached(job.values + job.at(v)), degree, job.damping);
        store_cached(job.shares + job.at(v), now);
        store_cached(job.differences + v, now - before);
        return now != before;
    }

    // Gives what the shares of these rows changed by to their heads; those that this brings over the threshold are
    // candidates of the next round, if it IS_PUSH.
    template <bool IS_PUSH> __device__ __forceinline__ void hand_on(const Counts& counts)
    {
        const auto load = [&](u32 v) { return load_cached(job.differences + v); };
        walk_rows(out, rows(), counts, place, load, [&](i64 by, u32, const Edges& row, bool) {
            bool crosses[2] = {false, false};
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                const i64 old = receive(row.head[j], by);
                crosses[j] = IS_PUSH && is_over(row.head[j], old + by) && !is_over(row.head[j], old);
            }
            __syncwarp();
            if (IS_PUSH) propose(rounds + 1, crosses[0], crosses[1], row.head);
            return false;
        });
    }

    // -- 1, 2 and 3. edit ------------------------------------------------------------------------------------------

    __device__ __forceinline__ void edit()
    {
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
            if (is_change) {
                const u32 tail = source(key);
                const i64 own = load_cached(job.shares + job.at(tail));
                atomicAdd(job.degree_changes + tail, outcome == INSERTED ? 1 : -1);
                if (own) receive(destination(key), outcome == INSERTED ? own : -own);
            }
            __syncwarp();
        });
    }

    __device__ __forceinline__ void follow_degrees()
    {
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8) {
            const u32 v = source(key);
            const int change = is_change ? atomicExch(job.degree_changes + v, 0) : 0;
            const Row row = change ? load_row(out, v) : Row{0, 0};
            const bool trades = trades_share(row.degree, change);
            const i64 kept = change ? load_cached(job.shares + job.at(v)) : 0;
            const bool follows = row.degree && !trades && kept;
            if (change && row.degree == 0 && kept) store_cached(job.shares + job.at(v), i64(0));
            const bool is_queued = trades && renew_share(v, row.degree);
            if (follows)
                set_value(v, nearest(exact::divide(exact::multiply(double(kept), double(row.degree)), job.damping)));
            __syncwarp();
            const u32 vertex[2] = {v, 0};
            log_moved(follows, false, vertex);
            const bool chosen[2] = {is_queued, false};
            const Row queued[2] = {row, {0, 0}};
            if (__any_sync(ALL_LANES, is_queued)) put<false>(out, rows(), chosen, vertex, queued);
        });
    }

    __device__ __forceinline__ void enter()
    {
        for (u64 first = place.warp * 32; first < job.n_entries; first += place.n_threads) {
            const u64 k = first + place.lane;
            const bool is_there = k < job.n_entries;
            const u64 entry = is_there ? load_constant(job.entries + k) : 0;
            const u32 v = u32(entry), what = u32(entry >> 32);
            bool moves = false;
            if (is_there) {
                const bool was_source = load_cached(job.is_source + job.at(v));
                store_cached(job.is_source + job.at(v), u8(what == RESTARTS));
                if (what == RESTARTS) receive(v, job.restart);
                else if (was_source) receive(v, -job.restart);
                moves = what == GOES && load_cached(job.values + job.at(v));
                if (moves) set_value(v, 0);
            }
            __syncwarp();
            const u32 vertex[2] = {v, 0};
            log_moved(moves, false, vertex);
        }
    }

    // -- 4. push ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ bool is_within(double share) const { return size() <= share * norm(); }

    // Whether residuals are within what they may be; else: given up.
    __device__ __forceinline__ bool solve()
    {
        if (is_within(job.limit)) return true;
        for (u32 level = HIGHEST; level; level /= STEP) {
            // At a start there are no values yet.
            threshold = level * job.goal * (norm() + size()) / job.cells;
            look();
            barrier();
            for (u32 n; (n = load_cached(&job.counters->candidates[rounds & 1]));) {
                if (!push(n)) return false;
                if (is_within(job.goal)) return true;
            }
            barrier();  // all have seen that nobody is left
        }
        return is_within(job.limit);
    }

    __device__ __forceinline__ void look()
    {
        for (u64 first = place.warp * 64; first < job.n_vertices; first += 2 * u64(place.n_threads)) {
            const u32 vertex[2] = {u32(first) + place.lane, u32(first) + 32 + place.lane};
            i64 residual[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 v = min(vertex[j], job.n_vertices - 1);
                residual[j] = load_cached(job.sums + job.at(v)) - load_cached(job.values + job.at(v));
            }
            bool is_due[2];
            for (u32 j = 0; j < 2; j++) is_due[j] = vertex[j] < job.n_vertices && is_over(vertex[j], residual[j]);
            __syncwarp();
            propose(rounds, is_due[0], is_due[1], vertex);
        }
    }

    // A round; false: given up.
    __device__ __forceinline__ bool push(u32 n)
    {
        take(n);
        barrier();
        const Counts counts = load_counts(rows().counts);
        edges += counts.edges;
        if (n_short(counts) > job.room || edges > job.edges_max || rounds >= PUSH_ROUNDS) return false;
        if (place.thread == 0) {
            clear_counts(job.counters->rows + ((turn + 1) & 1));
            job.counters->candidates[rounds & 1] = 0;
        }
        if (!is_empty(counts)) hand_on<true>(counts);
        turn++;
        rounds++;
        add_sums();
        barrier();
        return true;
    }

    // Who is over the threshold takes its sum for its value.
    __device__ __forceinline__ void take(u32 n)
    {
        const u32* const candidates = job.candidates[rounds & 1];
        for (u64 first = place.warp * 64; first < n; first += 2 * u64(place.n_threads)) {
            bool is_taken[2], is_queued[2] = {false, false};
            u32 vertex[2] = {0, 0};
            Row row[2] = {{0, 0}, {0, 0}};
            for (u32 j = 0; j < 2; j++) {
                const u64 i = first + 32 * j + place.lane;
                is_taken[j] = i < n;
                if (!is_taken[j]) continue;
                const u32 v = vertex[j] = load_cached(candidates + i);
                const i64 sum = load_cached(job.sums + job.at(v));
                is_taken[j] = is_over(v, sum - load_cached(job.values + job.at(v)));
                if (!is_taken[j]) continue;
                set_value(v, sum);
                row[j] = load_row(out, v);
                is_queued[j] = row[j].degree && renew_share(v, row[j].degree);
            }
            __syncwarp();
            log_moved(is_taken[0], is_taken[1], vertex);
            if (__any_sync(ALL_LANES, is_queued[0] || is_queued[1])) put<false>(out, rows(), is_queued, vertex, row);
        }
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish(bool is_solved)
    {
        barrier();  // all have read the counters
        PprCounters* const counters = job.counters;
        add_sums();
        const u32 n_moved = load_cached(&counters->moved);
        const double per_unit = 1.0 / job.unit;  // exact
        for (u32 k = place.thread; k < n_moved; k += place.n_threads) {
            const u32 v = load_cached(job.moved + k);
            job.estimates[v] = published(load_cached(job.values + job.at(v)), per_unit);
            if (k < job.changes_room) job.changes[k] = v;
        }
        barrier();
        if (place.thread) return;
        const u64 said[PPR_SAID] = {is_solved, rounds, edges, n_moved, job.before.norm + load_cached(&counters->grown.norm),
            job.before.size + load_cached(&counters->grown.size), job.before.total + load_cached(&counters->grown.total)};
        for (u32 k = 0; k < 2; k++) {
            clear_counts(counters->rows + k);
            counters->candidates[k] = 0;
        }
        counters->moved = 0;
        counters->grown = PprSums();
        __threadfence_system();
        for (u32 k = 0; k < PPR_SAID; k++) tell(job, k, said[k]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void ppr_pushes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PprJob job)
{
    PprPushes(out, in, job, place_in_grid()).run();
}

#if !REMOTE
// Several jobs at once, each by a part of the grid.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void ppr_pushes_several(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ Jobs<PprJob> jobs)
{
    __shared__ PprJob job;
    const Place place = jobs.take(job);
    PprPushes(out, in, job, place).run();
}
#endif
