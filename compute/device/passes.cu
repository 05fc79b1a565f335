// Dense passes of both of PageRank's systems over all in-edges, but for the end of the last one (settle.cu). One cooperative
// kernel goes on until so few residuals will be over their limits after one pass more that pushing these costs less than
// passes: so few are now over SHRINKS times their limits.
//
// A pass is a Jacobi step: values become the sums of the pass before, times a factor; shares are made of them; and every
// vertex adds up what it receives. The factor is the one for which residuals add up to zero: it takes away the slow mode
// of the iteration (compute/walks/passes.py says why). It multiplies the vertices with in-edges: the others receive nothing,
// and are right as they are. It is applied before shares are made, so that every pass leaves exact sums. Weights follow the
// values, and the majorant's right-hand sides the weights, before anything is added to these.
//
// Vertices are gone through once a pass, after the first one those with in-edges alone (on RMAT less than half), since the
// others keep what that makes of them: while their values are made, residuals of the pass before are held against their
// limits, and what the factor of the next pass takes is added up. All that vertices receive together is known as soon as
// their shares are; how much of it those without out-edges receive is added up as they do, from scratch. That costs a sixth
// of a pass. After batches it is taken to grow as all of it does, which is off by less in every pass. However far it is, a
// factor leaves values that add up to no more than they may (walk_runs.py), and sums that are exact.
//
// That a pass is the last is known while its shares are added up, and its values are final but for what pushes will change:
// so these go to the host meanwhile.
#include "passes.cuh"

// A pass makes that much less of residuals, on graphs that mix: on RMAT and from the second pass on, the rows of those over
// this many times their limits came to what the rows of those over them did after the next pass, within a third.
constexpr double SHRINKS = 5.0;

struct Making : Passes {
    using Passes::Passes;

    struct Vertex {
        i64 sum[SYSTEMS], value[SYSTEMS];
        u32 degree;
        float weight;
        bool receives;
    };

    // Before rows are known to be those that sums are of.
    __device__ __forceinline__ Vertex load_first(u32 v) const
    {
        return {{load_cached(job.ranks.sums + v), load_cached(job.majorant.sums + v)}, {0, 0}, out_degree(v),
            job.weights[v], in_degree(v) != 0};
    }

    __device__ __forceinline__ Vertex load_again(u32 v, bool receives) const
    {
        return {{load_cached(job.ranks.sums + v), load_cached(job.majorant.sums + v)},
            {job.ranks.values[v], job.majorant.values[v]}, out_degree(v), job.weights[v], receives};
    }

    __device__ __forceinline__ PassSums* counted(u32 passes) const { return job.counters->passes + passes % 3; }

    __device__ __forceinline__ void run()
    {
        if (job.begins != SOLVED || load_cached(&job.counters->exceeds) || (REMOTE && job.degrees && !job.is_kept)) {
            begin();
            barrier();
        }
        counts_dangling = job.begins == ANEW;
        u32 passes = 0;
        u64 due;
        for (;;) {
            const PassSums &last = *counted(passes), &before = *counted(passes + 2);
            const double by[SYSTEMS] = {factor(last, before, RANKS), factor(last, before, MAJORANT)};
            PassSums* const now = counted(++passes);
            const bool is_first = passes == 1 && job.begins != EXACT;
            if (is_first) make<FIRST>(by, now);
            else if (passes == 1) make<ALL>(by, now);
            else make<RECEIVERS>(by, now);
            barrier();
            due = is_first ? ~0ull : max(load_cached(&now->over_edges), load_cached(&now->over));
            if (due <= job.due_max || passes >= job.passes_max) break;
            if (place.thread == 0) begin(*counted(passes + 1), *now);
            pull(passes);
            if (counts_dangling) {
                add_by_block(dangling, now->dangling);
                dangling[RANKS] = dangling[MAJORANT] = 0;
            }
            barrier();
        }
        if (place.thread == 0) job.counters->n_passes = passes;
        if (!job.made) return;
        const double per_unit = 1.0 / job.unit;  // exact
        for_vertices<i64>(place, job.n_vertices, [&](u32 v) { return load_cached(job.ranks.values + v); },
            [&](u32 v, i64 value) { job.made[v] = published(value, per_unit); });
    }

    // For which residuals add up to zero, given what was counted for the last sums and for those before; 1 where nothing was.
    __device__ __forceinline__ double factor(const PassSums& last, const PassSums& before, u32 system) const
    {
        const auto counted = [&](const u64 (&of)[SYSTEMS]) { return double(load_cached(of + system)); };
        const double all = counted(last.restarts) + counted(last.received);
        const double all_before = counted(before.restarts) + counted(before.received);
        double dangling = counted(last.dangling);
        if (!counts_dangling && all_before > 0.0) dangling *= all / all_before;
        const double lost = (1.0 - job.damping) * all + job.damping * dangling;
        const double given = counted(last.restarts) + job.damping * counted(last.fixed);
        return lost > 0.0 ? given / lost : 1.0;
    }

    // Sums of the next pass, with what vertices without in-edges hand on again.
    __device__ __forceinline__ static void begin(PassSums& next, const PassSums& now)
    {
        PassSums sums = PassSums();
        for (u32 system = 0; system < SYSTEMS; system++) {
            sums.received[system] = sums.still[system] = load_cached(now.still + system);
            sums.fixed[system] = load_cached(now.fixed + system);
        }
        next = sums;
    }

    // A vertex in what the factor takes, but for what it receives itself; it has handed on so much.
    __device__ __forceinline__ void count(u64* sums, u32 system, const Vertex& vertex, i64 restart, u64 handed_on) const
    {
        sums[system] += handed_on;
        sums[SYSTEMS + system] += vertex.receives ? u64(restart) : 0;
        sums[3 * SYSTEMS + system] += vertex.degree && !vertex.receives ? u64(restart) : 0;
    }

    __device__ __forceinline__ void begin()
    {
        u64 sums[PASS_SUMS] = {};
        // Where the estimates will be, the host says which vertices exist.
        const u8* const exists = reinterpret_cast<const u8*>(job.estimates);
        if (!job.is_kept && place.thread == 0) {
            WalkCounters* const counters = job.counters;
            counters->unpacked = counters->edits[0] = counters->edits[1] = counters->cached = 0;
        }
        const auto load = [&](u32 v) {
            if (REMOTE && job.degrees && !job.is_kept) {
                store_cached(job.degrees + v, load_row(out, v).degree);
                store_cached(job.in_degrees + v, load_row(in, v).degree);
            }
            return load_first(v);
        };
        for_vertices<Vertex>(place, job.n_vertices, load, [&](u32 v, const Vertex& vertex) {
            float weight = vertex.weight;
            if (job.begins == ANEW) job.weights[v] = weight = exists[v] ? 1.0f : 0.0f;
#pragma unroll
            for (u32 system = 0; system < SYSTEMS; system++) {
                const i64 restart = right_hand_side(system, weight);
                i64 sum = max(vertex.sum[system], i64(0));  // pushes that were given up may leave others
                // What it is does not count, but in proportion to others: the factor sees to the rest.
                if (job.begins == ANEW) sum = vertex.receives ? 2 * restart : restart;
                if (sum != vertex.sum[system]) (system ? job.majorant : job.ranks).sums[v] = sum;
                count(sums, system, vertex, restart, vertex.receives ? u64(sum - restart) : 0);
                sums[2 * SYSTEMS + system] += vertex.receives && !vertex.degree ? u64(sum) : 0;
            }
        });
        add_by_block(sums, counted(0)->received);
    }

    // Of which vertices values are made: in the first pass of a run of all of them, of which those of before may count or not.
    enum Of { FIRST, ALL, RECEIVERS };

    // What passes make of vertices without in-edges, one makes for all.
    template <Of OF> __device__ __forceinline__ void make(const double (&by)[SYSTEMS], PassSums* to)
    {
        u64 sums[PASS_SUMS] = {};
        const double times = job.due_max ? SHRINKS : 1.0, per_unit = 1.0 / job.unit;  // exact
        const auto load = [&](u32 v) {
            return OF == FIRST ? load_first(v) : load_again(v, OF == RECEIVERS || in_degree(v) != 0);
        };
        const auto use = [&](u32 v, const Vertex& vertex) {
            if (OF != FIRST
                && !(is_within(job, vertex.sum[RANKS] - vertex.value[RANKS], vertex.weight, times)
                    && is_within_slack(job, vertex.sum[MAJORANT] - vertex.value[MAJORANT], vertex.weight, times))) {
                sums[4 * SYSTEMS]++;
                sums[4 * SYSTEMS + 1] += vertex.degree;
            }
            const float before = vertex.weight;
            float weight = before, shares[SYSTEMS];
            const double each = vertex.degree ? exact::divide(job.damping, double(vertex.degree)) : 0.0;
#pragma unroll
            for (u32 system = 0; system < SYSTEMS; system++) {
                const System& own = system ? job.majorant : job.ranks;
                const i64 restart = right_hand_side(system, weight);
                i64 sum = max(vertex.sum[system], i64(0));  // only pushes that were given up leave others
                if (system == MAJORANT) sum += restart - right_hand_side(MAJORANT, before);
                const i64 value = vertex.receives ? nearest(double(sum) * by[system]) : restart;
                own.values[v] = value;
                own.sums[v] = restart;
                shares[system] = share_of(value, each);
                const u64 handed_on = u64(integer(shares[system])) * vertex.degree;
                count(sums, system, vertex, restart, handed_on);
                if (OF != RECEIVERS && !vertex.receives) sums[4 * SYSTEMS + 2 + system] += handed_on;
                const i64 dangles = counts_dangling ? restart : sum;  // and what is yet to be received, or was before
                sums[2 * SYSTEMS + system] += vertex.receives && !vertex.degree ? u64(dangles) : 0;
                if (system == RANKS && weight > 0.0f) weight = followed(job, weight, double(value) * per_unit);
            }
            if (weight != before) job.weights[v] = weight;
            reinterpret_cast<float2*>(job.ranks.shares)[v] = make_float2(shares[RANKS], shares[MAJORANT]);
        };
        if (OF == RECEIVERS) for_receivers([&](u32 v) { use(v, load(v)); });
        else for_vertices<Vertex, 1>(place, job.n_vertices, load, use);
        add_by_block(sums, to->received);
    }

    // Calls use(vertex) for the vertices with in-edges: those that a warp finds wait until it has one for each lane.
    template <class Use> __device__ __forceinline__ void for_receivers(Use use)
    {
        __shared__ u32 waiting[BLOCK_THREADS / 32][3 * 32];
        u32* const own = waiting[threadIdx.x / 32];
        u32 n = 0;
        for (u64 first = u64(place.warp) * 64; first < job.n_vertices; first += 2 * u64(place.n_threads)) {
            bool receives[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u64 v = first + 32 * j + place.lane;
                receives[j] = v < job.n_vertices && in_degree(u32(v));
            }
            const Votes votes = vote(receives[0], receives[1]);
            for (u32 j = 0; j < 2; j++)
                if (receives[j]) own[n + votes.before(j)] = u32(first) + 32 * j + place.lane;
            n += votes.count();
            __syncwarp();
            for (; n >= 32; n -= 32) use(own[n - 32 + place.lane]);
            __syncwarp();
        }
        if (place.lane < n) use(own[place.lane]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void passes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    Making(out, in, job, place_in_grid()).run();
}
