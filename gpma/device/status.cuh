// Telling the host how a batch ended.
#pragma once

#include "warp.cuh"

// Publishes the counters, a word by a thread of one block.
__device__ __forceinline__ void tell(const State& state, const Batch& batch, u32 flags)
{
    const Counters* counters = state.counters;
    const u32 word = threadIdx.x;
    if (word >= STATUS_WORDS) return;
    u32 value = flags;
    if (word >= TOTALS && word < TOTALS + 4) value = load_cached(counters->totals + word - TOTALS);
    if (word == SLOTS_MOVED) value = u32(load_cached(&counters->slots_moved));
    if (word == SLOTS_MOVED_HIGH) value = u32(load_cached(&counters->slots_moved) >> 32);
    if (word == N_UNFIT) value = load_cached(&counters->n_unfit);
    if (word == HEAVY_RECORDS) value = u32(load_cached(&counters->heavy));
    if (word == HEAVY_LEAVES) value = u32(load_cached(&counters->heavy) >> 32);
    if (word == FIRST_BAD_ROW) value = load_cached(&counters->bad_row) - 1;
    publish(state.status + word, u64(batch.sequence) << 32 | value);
}
