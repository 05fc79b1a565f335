// Dense passes of PageRank over all in-edges. One cooperative kernel goes on until residuals are within their limits, or
// so few are not that pushing them costs less.
//
// A pass is a Jacobi step: values become the sums of the pass before, times a factor; shares are made of them; and every
// vertex adds up what it receives. The factor is the one for which residuals add up to zero: it takes away the slow mode
// of the iteration (compute/walks/passes.py says why). It multiplies the vertices whose sum is not their right-hand side:
// the others receive nothing, and are right as they are. It is applied before shares are made, so that every pass leaves
// exact sums. Weights follow the estimates in every pass, before residuals are held against them.
#include "rows.cuh"
#include "walks.cuh"

// Leaves that a warp adds up in one go, and vertices that a thread has under way at a time: stores behind which loads
// wait, since addresses might be the same, would take three times as long.
constexpr u32 RANGE = 8, AHEAD = 4;
static_assert(RANGE <= 32, "their counts are in one warp");
// Blocks on a multiprocessor, which bounds the registers of a thread.
constexpr u32 PASS_BLOCKS = 2;

// A rounded share is off by at most 1 + 2^-24 of itself; the last digits are for what counting that rounds.
constexpr double SHARE_ROUNDED = 5.9604644775390625e-8 * (1 + 1e-3), UNIT_ROUNDED = 1 + 1e-3;

template <bool IS_MAJORANT> struct Passes {
    const State& out;
    const State& in;
    const WalkJob& job;
    const System& own;
    const double unit;
    const Place place;

    __device__ __forceinline__ Passes(const State& out, const State& in, const WalkJob& job, const Place& place)
        : out(out), in(in), job(job), own(IS_MAJORANT ? job.majorant : job.ranks),
          unit(IS_MAJORANT ? job.majorant_unit : job.unit), place(place)
    {
    }

    struct Vertex {
        i64 sum, value;
        u32 degree;
        float weight;
    };

    __device__ __forceinline__ void barrier() { grid_barrier(&job.counters->barrier); }

    // Calls use(vertex, loaded) with what load(vertex) gave, for all vertices; whole warps do not stay together.
    template <class Load, class Use> __device__ __forceinline__ void for_vertices(Load load, Use use)
    {
        const u64 step = u64(AHEAD) * place.n_threads;
        for (u64 first = place.thread; first < job.n_vertices; first += step) {
            Vertex vertices[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u64 v = first + u64(k) * place.n_threads;
                if (v < job.n_vertices) vertices[k] = load(u32(v));
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u64 v = first + u64(k) * place.n_threads;
                if (v < job.n_vertices) use(u32(v), vertices[k]);
            }
        }
    }

    // Exact in the majorant, too: a weight is 0, or at least 1 and a float32, and there are 23 bits behind the point.
    __device__ __forceinline__ i64 right_hand_side(float weight) const
    {
        return i64((IS_MAJORANT ? double(weight) : double(weight > 0.0f)) * unit);
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
            if (place.thread == 0) job.counters->passes[passes & 1] = PassSums();
            advance(factor(before));
            barrier();
            pull();
            barrier();
            look(job.counters->passes + (passes & 1));
            barrier();
            due = load_cached(&job.counters->passes[passes & 1].over_edges);
            if (!due) due = load_cached(&job.counters->passes[passes & 1].over);
        } while (due > job.due_max && passes < job.passes_max);
        account();
        barrier();
        if (place.thread) return;
        WalkCounters* const counters = job.counters;
        const WalkTotals& totals = counters->totals;
        const PassSums& last = counters->passes[passes & 1];
        const u64 said[WALK_SAID] = {passes, load_cached(&last.over), load_cached(&last.over_edges), load_cached(&totals.norm), load_cached(&totals.size),
            load_cached(&totals.total), load_cached(&totals.rounded), load_cached(&totals.ratio)};
        counters->passes[0] = counters->passes[1] = PassSums();
        counters->totals = WalkTotals();
        __threadfence_system();
        for (u32 k = 0; k < WALK_SAID; k++) tell(job, k, said[k]);
    }

    // A vertex in the sums for the factor.
    __device__ __forceinline__ void count(u64 (&sums)[PASS_SUMS], i64 sum, i64 restart, u32 degree) const
    {
        if (sum == restart) {
            sums[3] += degree ? u64(sum) : 0;
            return;
        }
        sums[0] += u64(sum);
        sums[1] += degree ? u64(sum) : 0;
        sums[2] += u64(restart);
    }

    __device__ __forceinline__ void begin()
    {
        u64 sums[PASS_SUMS] = {};
        for_vertices([&](u32 v) { return Vertex{load_cached(own.sums + v), 0, load_row(out, v).degree, job.weights[v]}; },
            [&](u32 v, const Vertex& vertex) {
                const i64 restart = right_hand_side(vertex.weight);
                i64 sum = max(vertex.sum, i64(0));  // pushes that were given up may leave others
                if (job.begins == ANEW) {
                    sum = restart;
                    // What it is does not count, but in proportion to others: the factor sees to the rest.
                    if (restart && load_row(in, v).degree) sum = first_guess(v, restart);
                }
                if (sum != vertex.sum) own.sums[v] = sum;
                count(sums, sum, restart, vertex.degree);
            });
        add_by_block(sums, &job.counters->passes[0].mass);
    }

    __device__ __forceinline__ i64 first_guess(u32 v, i64 restart) const
    {
        if (!IS_MAJORANT) return 2 * restart;
        return restart + nearest(double(job.ranks.values[v]) * (job.majorant_unit / job.unit));
    }

    __device__ __forceinline__ double factor(const PassSums* sums) const
    {
        const double passed_on = job.damping * double(load_cached(&sums->passed_on));
        const double lost = double(load_cached(&sums->mass)) - passed_on;
        const double given = double(load_cached(&sums->restarts)) + job.damping * double(load_cached(&sums->fixed));
        return lost > 0.0 ? given / lost : 1.0;
    }

    __device__ __forceinline__ void advance(double factor)
    {
        for_vertices([&](u32 v) { return Vertex{load_cached(own.sums + v), 0, load_row(out, v).degree, job.weights[v]}; },
            [&](u32 v, const Vertex& vertex) {
                const i64 restart = right_hand_side(vertex.weight);
                const i64 value = vertex.sum == restart ? restart : nearest(double(vertex.sum) * factor);
                own.values[v] = value;
                own.shares[v] = share_of(value, vertex.degree, job.damping);
                own.sums[v] = restart;
            });
    }

    __device__ __forceinline__ void pull()
    {
        const u32 n_ranges = (in.n_leaves + RANGE - 1) / RANGE;
        for (u32 r = place.warp; r < n_ranges; r += place.n_warps)
            scan_leaves<i64>(in, r * RANGE, min((r + 1) * RANGE, in.n_leaves),
                [&](u64 key, float) { return integer(own.shares[destination(key)]); },
                [&](u32 row, i64 sum) { add(own.sums + row, sum); });
    }

    __device__ __forceinline__ void look(PassSums* to)
    {
        u64 sums[PASS_SUMS] = {};
        for_vertices(
            [&](u32 v) {
                return Vertex{load_cached(own.sums + v), own.values[v], load_row(out, v).degree, job.weights[v]};
            },
            [&](u32 v, const Vertex& vertex) {
                float weight = vertex.weight;
                if (!IS_MAJORANT && weight > 0.0f) {
                    weight = followed(job, weight, double(vertex.value) / unit);
                    if (weight != vertex.weight) job.weights[v] = weight;
                }
                count(sums, vertex.sum, right_hand_side(weight), vertex.degree);
                const double residual = double(vertex.sum - vertex.value), scale = double(weight) * unit;
                if (residual <= job.above * scale && residual >= -job.below * scale) return;
                sums[4]++;
                sums[5] += vertex.degree;
            });
        add_by_block(sums, &to->mass);
    }

    // What the certificate needs of values and residuals, and the estimates for the host.
    __device__ __forceinline__ void account()
    {
        u64 sums[3] = {};
        double rounded = 0.0, ratio = 0.0;
        for_vertices(
            [&](u32 v) {
                return Vertex{load_cached(own.sums + v), own.values[v], load_row(in, v).degree, job.weights[v]};
            },
            [&](u32 v, const Vertex& vertex) {
                const i64 residual = vertex.sum - vertex.value;
                sums[0] += u64(vertex.value);
                sums[1] += u64(residual < 0 ? -residual : residual);
                sums[2] += u64(residual);
                if (!IS_MAJORANT && job.estimates) job.estimates[v] = double(vertex.value) / unit;
                if (vertex.weight == 0.0f) return;
                const double off = UNIT_ROUNDED * vertex.degree + SHARE_ROUNDED * double(vertex.sum);
                rounded = max(rounded, off / (double(vertex.weight) * unit));
                if (!IS_MAJORANT) return;
                const double estimate = double(job.ranks.values[v]) / job.unit;
                ratio = max(ratio, double(vertex.value) / unit / estimate);
            });
        add_by_block(sums, &job.counters->totals.norm);
        max_by_warp(rounded, &job.counters->totals.rounded);
        max_by_warp(ratio, &job.counters->totals.ratio);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void ranks(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    Passes<false>(out, in, job, place_in_grid()).run();
}

// After ``ranks``, whose values and weights it takes.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void majorant(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    Passes<true>(out, in, job, place_in_grid()).run();
}

__device__ __forceinline__ void move_point(const System& system, u32 v, u32 shift)
{
    system.values[v] >>= shift;
    system.sums[v] >>= shift;
}

// Vertices appear, solved but for their edges, and go. Before that numbers are moved to another point. Nothing is told.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void arrive(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    const Place place = place_in_grid();
    if (job.shift | job.majorant_shift) {
        for (u32 v = place.thread; v < job.n_vertices; v += place.n_threads) {
            move_point(job.ranks, v, job.shift);
            move_point(job.majorant, v, job.majorant_shift);
        }
        grid_barrier(&job.counters->barrier);
    }
    for (u32 k = place.thread; k < job.n_arrivals; k += place.n_threads) {
        const u64 arrival = load_constant(job.arrivals + k);
        const u32 v = u32(arrival);
        const bool appears = arrival >> 32;
        job.weights[v] = appears;
        job.ranks.values[v] = job.ranks.sums[v] = appears ? i64(job.unit) : 0;
        job.majorant.values[v] = job.majorant.sums[v] = appears ? i64(job.majorant_unit) : 0;
        job.ranks.shares[v] = job.majorant.shares[v] = 0.0f;
    }
}
