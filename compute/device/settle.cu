// The end of PageRank's passes, and pushes: what vertices receive is added up for the last time (passes.cu), the certificate's
// numbers are taken of all of them, and who is over its limits pushes (pushes.cuh). It says nothing: hand_over.cu does, as soon
// as the estimates of before the pushes are on the host.
#include "passes.cuh"
#include "pushes.cuh"

// A rounded share is off by at most 1 + 2^-24 of itself; the last digits are for what counting that rounds.
constexpr double SHARE_ROUNDED = 5.9604644775390625e-8 * (1 + 1e-3), UNIT_ROUNDED = 1 + 1e-3;

struct Settling : Passes<false> {
    using Passes<false>::Passes;

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
        pushes.add_up();
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
        for (u64 first = place.warp * 64; first < job.n_vertices; first += 2 * u64(place.n_threads)) {
            const u32 vertex[2] = {u32(first) + place.lane, u32(first) + 32 + place.lane};
            i64 sum[SYSTEMS][2], value[SYSTEMS][2];
            u32 degree[2];
            float weight[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 v = min(vertex[j], job.n_vertices - 1);
                sum[RANKS][j] = load_cached(job.ranks.sums + v);
                sum[MAJORANT][j] = load_cached(job.majorant.sums + v);
                value[RANKS][j] = load_cached(job.ranks.values + v);
                value[MAJORANT][j] = load_cached(job.majorant.values + v);
                weight[j] = load_cached(job.weights + v);
                degree[j] = in_degree(v);
            }
            bool is_due[SYSTEMS][2] = {{false, false}, {false, false}};
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                if (vertex[j] >= job.n_vertices || weight[j] == 0.0f) continue;  // nobody there has anything
                const i64 residual = sum[RANKS][j] - value[RANKS][j];
                sums[0] += u64(value[RANKS][j]);
                sums[1] += u64(size_of(residual));
                sums[2] += u64(residual);
#pragma unroll
                for (u32 system = 0; system < SYSTEMS; system++) {
                    const double off = UNIT_ROUNDED * degree[j] + SHARE_ROUNDED * double(sum[system][j]);
                    rounded[system] = max(rounded[system], off / (double(weight[j]) * unit(system)));
                }
                const double estimate = double(value[RANKS][j]) / job.unit;
                ratio = max(ratio, double(value[MAJORANT][j]) / job.majorant_unit / estimate);
                is_due[RANKS][j] = pushes.is_over<false>(residual, weight[j]);
                is_due[MAJORANT][j] = pushes.is_over<true>(sum[MAJORANT][j] - value[MAJORANT][j], weight[j]);
                if (!is_due[RANKS][j] && !is_due[MAJORANT][j]) continue;
                sums[3]++;
                sums[4] += out_degree(vertex[j]);
            }
            __syncwarp();
            pushes.propose<false>(0, is_due[RANKS][0], is_due[RANKS][1], vertex);
            pushes.propose<true>(0, is_due[MAJORANT][0], is_due[MAJORANT][1], vertex);
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
