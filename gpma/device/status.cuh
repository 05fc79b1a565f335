// Telling the host how a batch ended.
#pragma once

#include "warp.cuh"

// This thread's word of the status; ``flags`` for FLAGS.
__device__ __forceinline__ u32 status_word(const State& state, u32 flags)
{
    const Counters* counters = state.counters;
    const u32 word = threadIdx.x;
    if (word >= TOTALS && word < TOTALS + 4) return load_cached(counters->totals + word - TOTALS);
    if (word == SLOTS_MOVED) return u32(load_cached(&counters->slots_moved));
    if (word == SLOTS_MOVED_HIGH) return u32(load_cached(&counters->slots_moved) >> 32);
    if (word == N_UNFIT) return load_cached(&counters->n_unfit);
    if (word == HEAVY_RECORDS) return u32(load_cached(&counters->heavy));
    if (word == HEAVY_LEAVES) return u32(load_cached(&counters->heavy) >> 32);
    if (word == FIRST_BAD_ROW) return load_cached(&counters->bad_row) - 1;
    return flags;
}

// Publishes the words of the threads of one block.
__device__ __forceinline__ void tell(const State& state, const Batch& batch, u32 value)
{
    if (threadIdx.x < STATUS_WORDS) publish(state.status + threadIdx.x, u64(batch.sequence) << 32 | value);
}
