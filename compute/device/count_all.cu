// Counts of shortest paths from scratch: see counting.cuh.
#include "counting.cuh"

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, COUNT_BLOCKS) void count_all(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ CountJob job)
{
    Counting(out, in, job, place_in_grid()).begin();
}
