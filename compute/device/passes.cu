// Dense passes of both of PageRank's systems over all in-edges. One cooperative kernel goes on until residuals are within
// their limits, or so few are not that pushing them costs less.
//
// A pass is a Jacobi step: values become the sums of the pass before, times a factor; shares are made of them; and every
// vertex adds up what it receives. The factor is the one for which residuals add up to zero: it takes away the slow mode
// of the iteration (compute/walks/passes.py says why). It multiplies the vertices whose sum is not their right-hand side:
// the others receive nothing, and are right as they are. It is applied before shares are made, so that every pass leaves
// exact sums. Weights follow the estimates in every pass, before residuals are held against them, and the majorant's sums
// follow the weights.
//
// Both systems share a pass: what it costs is the random access for each edge, and their shares lie side by side.
#include "rows.cuh"
#include "walks.cuh"

// Leaves that a warp adds up in one go.
constexpr u32 RANGE = 8;
static_assert(RANGE <= 32 && RANGE % LEAVES_TOGETHER == 0, "their counts are in one warp");
// Blocks on a multiprocessor, which bounds the registers of a thread.
constexpr u32 PASS_BLOCKS = 2;

// A rounded share is off by at most 1 + 2^-24 of itself; the last digits are for what counting that rounds.
constexpr double SHARE_ROUNDED = 5.9604644775390625e-8 * (1 + 1e-3), UNIT_ROUNDED = 1 + 1e-3;

// By system.
constexpr u32 RANKS = 0, MAJORANT = 1, SYSTEMS = 2;

struct Passes : Run<WalkJob> {
    using Run::Run;

    struct Vertex {
        i64 sum[SYSTEMS], value[SYSTEMS];
        u32 degree;
        float weight;
    };

    __device__ __forceinline__ double unit(u32 system) const { return system ? job.majorant_unit : job.unit; }

    __device__ __forceinline__ Vertex load_sums(u32 v) const
    {
        return {{load_cached(job.ranks.sums + v), load_cached(job.majorant.sums + v)}, {0, 0}, load_row(out, v).degree,
            job.weights[v]};
    }

    __device__ __forceinline__ Vertex load_all(u32 v, const State& rows) const
    {
        return {{load_cached(job.ranks.sums + v), load_cached(job.majorant.sums + v)},
            {job.ranks.values[v], job.majorant.values[v]}, load_row(rows, v).degree, job.weights[v]};
    }

    // Exact in the majorant, too: a weight is 0, or at least 1 and a float32, and there are 23 bits behind the point.
    __device__ __forceinline__ i64 right_hand_side(u32 system, float weight) const
    {
        return i64((system ? double(weight) : double(weight > 0.0f)) * unit(system));
    }

    __device__ __forceinline__ void run()
    {
        begin();
        barrier();
        u32 passes = 0;
        u64 due = 0;
        do {
            const PassSums* const before = job.counters->passes + (passes & 1);
            passes++;
            PassSums* const after = job.counters->passes + (passes & 1);
            if (place.thread == 0) *after = PassSums();
            advance(factor(before->balance[RANKS], job.damping), factor(before->balance[MAJORANT], job.damping));
            barrier();
            pull();
            barrier();
            look(after);
            barrier();
            due = max(load_cached(&after->over_edges), load_cached(&after->over));
        } while (due > job.due_max && passes < job.passes_max);
        account();
        barrier();
        if (place.thread) return;
        WalkCounters* const counters = job.counters;
        const PassSums& last = counters->passes[passes & 1];
        const WalkTotals& totals = counters->totals;
        const u64 said[WALK_SAID] = {passes, load_cached(&last.over), load_cached(&last.over_edges),
            load_cached(&totals.norm), load_cached(&totals.size), load_cached(&totals.total),
            load_cached(&totals.rounded), load_cached(&totals.majorant_rounded), load_cached(&totals.ratio)};
        counters->passes[0] = counters->passes[1] = PassSums();
        counters->totals = WalkTotals();
        __threadfence_system();
        for (u32 k = 0; k < WALK_SAID; k++) tell(job, k, said[k]);
    }

    __device__ __forceinline__ void begin()
    {
        u64 sums[PASS_SUMS] = {};
        // Where the estimates will be, the host says which vertices exist.
        const u8* const exists = reinterpret_cast<const u8*>(job.estimates);
        for_vertices<Vertex>(place, job.n_vertices, [&](u32 v) { return load_sums(v); }, [&](u32 v, const Vertex& vertex) {
            float weight = vertex.weight;
            if (job.begins == ANEW) job.weights[v] = weight = exists[v] ? 1.0f : 0.0f;
#pragma unroll
            for (u32 system = 0; system < SYSTEMS; system++) {
                const i64 restart = right_hand_side(system, weight);
                i64 sum = max(vertex.sum[system], i64(0));  // pushes that were given up may leave others
                // What it is does not count, but in proportion to others: the factor sees to the rest.
                if (job.begins == ANEW) sum = load_row(in, v).degree ? 2 * restart : restart;
                if (sum != vertex.sum[system]) (system ? job.majorant : job.ranks).sums[v] = sum;
                count(sums + BALANCE_SUMS * system, sum, restart, vertex.degree);
            }
        });
        add_by_block(sums, &job.counters->passes[0].balance[0].mass);
    }

    __device__ __forceinline__ void advance(double factor, double majorant_factor)
    {
        for_vertices<Vertex>(place, job.n_vertices, [&](u32 v) { return load_sums(v); }, [&](u32 v, const Vertex& vertex) {
            float shares[SYSTEMS];
#pragma unroll
            for (u32 system = 0; system < SYSTEMS; system++) {
                const System& own = system ? job.majorant : job.ranks;
                const i64 restart = right_hand_side(system, vertex.weight), sum = vertex.sum[system];
                const double by = system ? majorant_factor : factor;
                const i64 value = sum == restart ? restart : nearest(double(sum) * by);
                own.values[v] = value;
                own.sums[v] = restart;
                shares[system] = share_of(value, vertex.degree, job.damping);
            }
            reinterpret_cast<float2*>(job.ranks.shares)[v] = make_float2(shares[RANKS], shares[MAJORANT]);
        });
    }

    __device__ __forceinline__ void pull()
    {
        SidesRead read;
        for_leaves<RANGE>(in, place, [&](u32 begin, u32 end) { pull_leaves(begin, end, read); });
        read.tell(in);
    }

    // As scan_leaves of rows.cuh, for two sums at a time.
    __device__ __forceinline__ void pull_leaves(u32 begin, u32 end, SidesRead& read)
    {
        const float2* const shares = reinterpret_cast<const float2*>(job.ranks.shares);
        const auto emit = [&](u32 row, i64 sum) { add(job.ranks.sums + row, sum); };
        const auto emit_other = [&](u32 row, i64 sum) { add(job.majorant.sums + row, sum); };
        const u32 counts = begin + place.lane < end ? load_constant(count_of(in, begin + place.lane)) : 0;
        if (counts) read.add(in, begin + place.lane, counts, LINES_OF_LEAF);
        Carry<i64> carry = {NO_LEAF, 0}, other_carry = {NO_LEAF, 0};
        for (u32 leaf = begin; leaf < end; leaf += LEAVES_TOGETHER) {
            SlotPair pairs[LEAVES_TOGETHER];
            i64 values[LEAVES_TOGETHER][2], others[LEAVES_TOGETHER][2];
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++)
                pairs[i] = load_pair(in, leaf + i, __shfl_sync(ALL_LANES, counts, (leaf + i - begin) & 31));
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++)
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    const u64 key = pairs[i].keys[j];
                    const float2 both = key == EMPTY_KEY ? make_float2(0.0f, 0.0f) : shares[destination(key)];
                    values[i][j] = integer(both.x);
                    others[i][j] = integer(both.y);
                }
            for (u32 i = 0; i < LEAVES_TOGETHER && leaf + i < end; i++) {
                sum_leaf(pairs[i], values[i], carry, emit);
                sum_leaf(pairs[i], others[i], other_carry, emit_other);
            }
        }
        if (place.lane || carry.row == NO_LEAF) return;
        emit(carry.row, carry.sum);
        emit_other(other_carry.row, other_carry.sum);
    }

    __device__ __forceinline__ void look(PassSums* to)
    {
        u64 sums[PASS_SUMS] = {};
        for_vertices<Vertex>(place, job.n_vertices, [&](u32 v) { return load_all(v, out); }, [&](u32 v, const Vertex& vertex) {
            float weight = vertex.weight;
            i64 majorant_sum = vertex.sum[MAJORANT];
            if (weight > 0.0f) weight = followed(job, weight, double(vertex.value[RANKS]) / job.unit);
            const i64 restart = right_hand_side(MAJORANT, weight);
            if (weight != vertex.weight) {
                job.weights[v] = weight;
                majorant_sum += restart - right_hand_side(MAJORANT, vertex.weight);
                job.majorant.sums[v] = majorant_sum;
            }
            count(sums, vertex.sum[RANKS], right_hand_side(RANKS, weight), vertex.degree);
            count(sums + BALANCE_SUMS, majorant_sum, restart, vertex.degree);
            if (is_within(job, vertex.sum[RANKS] - vertex.value[RANKS], weight)
                && is_within_slack(job, majorant_sum - vertex.value[MAJORANT], weight))
                return;
            sums[2 * BALANCE_SUMS]++;
            sums[2 * BALANCE_SUMS + 1] += vertex.degree;
        });
        add_by_block(sums, &to->balance[0].mass);
    }

    // What the certificate needs of values and residuals, and the estimates for the host.
    __device__ __forceinline__ void account()
    {
        u64 sums[3] = {};
        double rounded[SYSTEMS] = {0.0, 0.0}, ratio = 0.0;
        for_vertices<Vertex>(place, job.n_vertices, [&](u32 v) { return load_all(v, in); }, [&](u32 v, const Vertex& vertex) {
            const i64 residual = vertex.sum[RANKS] - vertex.value[RANKS];
            sums[0] += u64(vertex.value[RANKS]);
            sums[1] += u64(residual < 0 ? -residual : residual);
            sums[2] += u64(residual);
            const double estimate = double(vertex.value[RANKS]) / job.unit;
            job.estimates[v] = estimate;
            if (vertex.weight == 0.0f) return;
#pragma unroll
            for (u32 system = 0; system < SYSTEMS; system++) {
                const double off = UNIT_ROUNDED * vertex.degree + SHARE_ROUNDED * double(vertex.sum[system]);
                rounded[system] = max(rounded[system], off / (double(vertex.weight) * unit(system)));
            }
            ratio = max(ratio, double(vertex.value[MAJORANT]) / job.majorant_unit / estimate);
        });
        WalkTotals* const totals = &job.counters->totals;
        add_by_block(sums, &totals->norm);
        max_by_warp(rounded[RANKS], &totals->rounded);
        max_by_warp(rounded[MAJORANT], &totals->majorant_rounded);
        max_by_warp(ratio, &totals->ratio);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void passes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    Passes(out, in, job, place_in_grid()).run();
}
