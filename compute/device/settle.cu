// The end of PageRank's passes, and pushes: what vertices receive is added up for the last time (passes.cu), the certificate's
// numbers are taken of all of them, and who is over its limits pushes (pushes.cuh). It says nothing: hand_over.cu does, as soon
// as the estimates of before the pushes are on the host.
#include "passes.cuh"
#include "pushes.cuh"

// A rounded share is off by at most 1 + 2^-24 of itself; the last digits are for what counting that rounds.
constexpr double SHARE_ROUNDED = 5.9604644775390625e-8 * (1 + 1e-3), UNIT_ROUNDED = 1 + 1e-3;

struct Settling : Passes {
    using Passes::Passes;

    __device__ __forceinline__ void run(const PushJob& push)
    {
        WalkCounters* const counters = job.counters;
        pull(load_cached(&counters->n_passes));
        barrier();
        Pushes pushes(out, in, job, push, place);
        account(pushes);
        barrier();
        const WalkTotals& totals = counters->totals;
        const u64 due = max(load_cached(&totals.over_edges), load_cached(&totals.over));
        bool is_solved = due == 0;
        if (!is_solved && due <= job.push_max && pushes.fits(double(load_cached(&totals.size))))
            is_solved = pushes.solve();
        barrier();  // all have read the counters
        pushes.add_up([](u32, u32) {});
        if (place.thread) return;
        counters->is_solved = is_solved;
        counters->rounds = pushes.rounds;
        counters->edges = pushes.edges;
    }

    // What the certificate needs of values and residuals, and who is to push first.
    __device__ __forceinline__ void account(const Pushes& pushes)
    {
        u64 sums[5] = {};
        double rounded[SYSTEMS] = {0.0, 0.0}, ratio = 0.0;
        const double per_unit[SYSTEMS] = {1.0 / job.unit, 1.0 / job.majorant_unit};  // exact
        for (u64 first = place.warp * 32; first < job.n_vertices; first += place.n_threads) {
            const u32 vertex[2] = {u32(first) + place.lane, 0}, v = min(vertex[0], job.n_vertices - 1);
            const i64 sum[SYSTEMS] = {load_cached(job.ranks.sums + v), load_cached(job.majorant.sums + v)};
            const i64 value[SYSTEMS] = {load_cached(job.ranks.values + v), load_cached(job.majorant.values + v)};
            const float weight = load_cached(job.weights + v);
            const u32 degree = in_degree(v);
            bool is_due[SYSTEMS] = {false, false};
            if (vertex[0] < job.n_vertices && weight != 0.0f) {  // else nobody is there, and has nothing
                const i64 residual = sum[RANKS] - value[RANKS];
                sums[0] += u64(value[RANKS]);
                sums[1] += u64(size_of(residual));
                sums[2] += u64(residual);
                // A division is made where it brings a new largest one.
#pragma unroll
                for (u32 system = 0; system < SYSTEMS; system++) {
                    const double off = (UNIT_ROUNDED * degree + SHARE_ROUNDED * double(sum[system])) * per_unit[system];
                    if (off > rounded[system] * double(weight)) rounded[system] = off / double(weight);
                }
                const double estimate = double(value[RANKS]) * per_unit[RANKS];
                const double majorant = double(value[MAJORANT]) * per_unit[MAJORANT];
                if (!(majorant <= ratio * estimate)) ratio = majorant / estimate;
                is_due[RANKS] = pushes.is_over<false>(residual, weight);
                is_due[MAJORANT] = pushes.is_over<true>(sum[MAJORANT] - value[MAJORANT], weight);
            }
            const bool is_any = is_due[RANKS] || is_due[MAJORANT];
            sums[3] += is_any;
            if (is_any) sums[4] += out_degree(v);
            __syncwarp();
            pushes.propose<false>(0, is_due[RANKS], false, vertex);
            pushes.propose<true>(0, is_due[MAJORANT], false, vertex);
        }
        WalkTotals* const totals = &job.counters->totals;
        add_by_block(sums, &totals->norm);
        max_by_warp(rounded[RANKS], &totals->rounded);
        max_by_warp(rounded[MAJORANT], &totals->majorant_rounded);
        max_by_warp(ratio, &totals->ratio);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void settle(const __grid_constant__ State out,
    const __grid_constant__ State in, const __grid_constant__ WalkJob job, const __grid_constant__ PushJob push)
{
    Settling(out, in, job, place_in_grid()).run(push);
}
