// The kernels of personalised PageRank's passes: see ppr_passes.cuh.
#include "ppr_passes.cuh"

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void ppr_passes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PprJob job)
{
    const SideBySide own = {job.values, job.sums, job.shares, nullptr, nullptr, nullptr, nullptr, 0};
    PprPasses<1>(out, in, job, place_in_grid(), own, true).run(false);
}

#if !REMOTE
// Several jobs at once.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void ppr_passes_several(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PprSweep sweep)
{
    // Neighbouring threads have different ones.
    __shared__ PprJob jobs[SWEEP];
    static_assert(sizeof(PprJob) % 4 == 0, "copied by words");
    const u32* const from = reinterpret_cast<const u32*>(sweep.jobs);
    for (u32 k = threadIdx.x; k < sizeof jobs / 4; k += blockDim.x) reinterpret_cast<u32*>(jobs)[k] = from[k];
    __syncthreads();
    const u32 program = threadIdx.x % SWEEP;
    const bool is_there = sweep.there >> program & 1;
    // Blocks meet at the barrier of their first thread's job: the same in all of them.
    PprPasses<SWEEP>(out, in, jobs[is_there ? program : __ffs(sweep.there) - 1], place_in_grid(), sweep.side, is_there)
        .run(sweep.is_known);
}
#endif
