// What passes keep of rows on the host (passes.cu) becomes that of the graph after a batch: edges whose in-rows are there
// are listed, and lengths of rows follow. Nothing is told: what follows on the stream does that.
#include "walks.cuh"

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void amend(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    const Place place = place_in_grid();
    for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
        const u32 tail = u32(key >> 32), head = u32(key);
        const bool comes = outcome == INSERTED;
        if (is_change) {
            atomicAdd(job.degrees + tail, comes ? 1u : ~0u);
            atomicAdd(job.in_degrees + head, comes ? 1u : ~0u);
        }
        const bool is_there = is_change && is_remote_row(in, head);
        for (u32 deleted = 0; deleted < 2; deleted++) {
            const bool is_listed = is_there && comes == !deleted;
            const u32 listed = __ballot_sync(ALL_LANES, is_listed);
            if (!listed) continue;
            u32 base = 0;
            if (place.lane == 0) base = atomicAdd(job.counters->edits + deleted, u32(__popc(listed)));
            const u32 at = __shfl_sync(ALL_LANES, base, 0) + __popc(listed & lanes_before());
            if (is_listed) store_cached(job.edits + (deleted ? job.edits_room - 1 - at : at), key);
        }
    });
}
