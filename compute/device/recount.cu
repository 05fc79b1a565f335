// Counts of shortest paths after a batch of updates: see counting.cuh.
#include "counting.cuh"

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void recount(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ CountJob job)
{
    __shared__ CountHeld held[BLOCK_THREADS / 32];
    Counting(out, in, job, scattered(place_in_grid()), held + (threadIdx.x >> 5)).run();
}

#if !REMOTE
// Several jobs at once, each by a part of the grid.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void recount_several(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ Jobs<CountJob> jobs)
{
    __shared__ CountJob job;
    __shared__ CountHeld held[BLOCK_THREADS / 32];
    const Place place = jobs.take(job);
    Counting(out, in, job, scattered(place), held + (threadIdx.x >> 5)).run();
}
#endif
