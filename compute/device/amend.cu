// What passes keep of rows on the host (passes.cu) becomes that of the graph after a batch: edges whose in-rows are there
// are listed, and lengths of rows follow. Or that of rows that have moved. Nothing is told: what follows on the stream does
// that.
#include "walks.cuh"

// Lists the chosen edges of the warp's lanes as deleted or inserted.
__device__ __forceinline__ void list_edit(const WalkJob& job, bool is_listed, u32 deleted, u64 key)
{
    const u32 listed = __ballot_sync(ALL_LANES, is_listed);
    if (!listed) return;
    u32 base = 0;
    if (lane_number() == 0) base = atomicAdd(job.counters->edits + deleted, u32(__popc(listed)));
    const u32 at = __shfl_sync(ALL_LANES, base, 0) + __popc(listed & lanes_before());
    if (is_listed) store_cached(job.edits + (deleted ? job.edits_room - 1 - at : at), key);
}

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void amend(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ WalkJob job)
{
    const Place place = place_in_grid();
    if (job.moved != BATCH) {
        for (u64 first = place.warp * 32; first < job.n_updates; first += place.n_threads) {
            const bool is_there = first + place.lane < job.n_updates;
            const u64 key = is_there ? load_once(job.keys + first + place.lane) : 0;  // of an in-row
            list_edit(job, is_there, job.moved == LEFT, key << 32 | key >> 32);
        }
        return;
    }
    for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
        const u32 tail = u32(key >> 32), head = u32(key);
        const bool comes = outcome == INSERTED;
        if (is_change) {
            atomicAdd(job.degrees + tail, comes ? 1u : ~0u);
            atomicAdd(job.in_degrees + head, comes ? 1u : ~0u);
        }
        const bool is_there = is_change && is_remote_row(in, head);
        for (u32 deleted = 0; deleted < 2; deleted++) list_edit(job, is_there && comes == !deleted, deleted, key);
    });
}
