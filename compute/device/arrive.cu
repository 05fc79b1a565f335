// Vertices appear in PageRank's systems, solved but for their edges, and go. Before that numbers are moved to another
// point, where there is one. Nothing is told: what follows on the stream does that.
#include "walks.cuh"

__device__ __forceinline__ void move_point(const System& system, u32 v, u32 shift)
{
    system.values[v] >>= shift;
    system.sums[v] >>= shift;
}

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
        *share(job.ranks, v) = *share(job.majorant, v) = 0.0f;
    }
}
