// How often offers tie: of a sample of reached vertices, how many have another in-neighbour that supports their value.
// Where they seldom do, to ask for another one before a value is given up is in vain (mend.cu). One cooperative kernel.
#include "paths.cuh"

constexpr u32 TIE_SAMPLES = 2048;
// Leaves of a row that are looked at: enough to tell, for hubs too.
constexpr u32 TIE_LEAVES = 8;

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void ties(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PathJob job)
{
    const Place place = place_in_grid();
    const u32 n_samples = min(TIE_SAMPLES, job.n_vertices);
    for (u32 k = place.warp; k < n_samples; k += place.n_warps) {
        const u32 vertex = u32(u64(k) * job.n_vertices / n_samples);
        const u64 word = load_word(job, vertex);
        const Row row = load_row(in, vertex);
        if (value_bits(word) == NOTHING || parent_of(word) == NO_PARENT || row.degree == 0) continue;
        bool is_tied = false;
        u32 leaf = row.leaf, left = row.degree;
        for (; left && leaf - row.leaf < TIE_LEAVES && !is_tied; leaf++) {
            const Edges edges = edges_of(load_part(in, leaf), leaf, vertex);
            left -= vote(edges.live[0], edges.live[1]).count();
            bool supports = false;
            for (u32 j = 0; j < 2; j++) {
                if (!edges.live[j] || edges.head[j] == parent_of(word)) continue;
                const u32 bits = value_bits(load_word(job, edges.head[j]));
                supports |= is_better(bits, value_bits(word))
                    && offered(bits, weight_of(in, edges, j)) == value_bits(word);
            }
            is_tied = __any_sync(ALL_LANES, supports);
        }
        tell_row(in, vertex, row.leaf, row.degree - left, leaf - row.leaf);
        if (place.lane == 0) {
            atomicAdd(&job.counters->logged, 1ull);
            if (is_tied) atomicAdd(&job.counters->lost, 1ull);
        }
    }
    grid_barrier(&job.counters->barrier);
    if (place.thread) return;
    const u32 n = u32(load_cached(&job.counters->logged)), tied = u32(load_cached(&job.counters->lost));
    job.counters->logged = job.counters->lost = 0;
    __threadfence_system();
    tell_all(job, 0, n, tied, 0, job.stamp, 0);
}
