// The end of a run of PageRank's passes: estimates that pushes changed since all of them went to the host go there, too, and the
// words that say what the run did.
#include "pushes.cuh"

struct HandingOver : Run<WalkJob> {
    using Run::Run;

    __device__ __forceinline__ void run(const PushJob& push)
    {
        WalkCounters* const counters = job.counters;
        const u32 n_moved = load_cached(&push.counters->moved[0]);
        const double per_unit = 1.0 / job.unit;  // exact
        if (job.made)
            for (u32 k = place.thread; k < n_moved; k += place.n_threads) {
                const u32 v = load_cached(push.ranks.moved + k);
                job.estimates[v] = published(load_cached(job.ranks.values + v), per_unit);
            }
        barrier();
        if (place.thread) return;
        const WalkTotals& totals = counters->totals;
        const PushCounters& pushed = *push.counters;
        const u64 said[WALK_SAID] = {counters->is_solved, counters->n_passes, counters->rounds, counters->edges, n_moved,
            totals.norm + pushed.norm, totals.size + pushed.size, totals.total + pushed.total, totals.rounded,
            totals.majorant_rounded, pushed.degree, max(totals.ratio, pushed.ratio)};
        for (PassSums& sums : counters->passes) sums = PassSums();
        counters->totals = WalkTotals();
        counters->exceeds = 0;
        clear(push.counters);
        __threadfence_system();
        for (u32 k = 0; k < WALK_SAID; k++) tell(job, k, said[k]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void hand_over(const __grid_constant__ State out,
    const __grid_constant__ State in, const __grid_constant__ WalkJob job, const __grid_constant__ PushJob push)
{
    HandingOver(out, in, job, place_in_grid()).run(push);
}
