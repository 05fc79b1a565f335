// A path program with weights from scratch: in steps of the best vertices that wait, so that few are pushed again.
//
// Who gains a value within the step's bound pushes in its next round, the others wait, which a bit says of each. A
// bound is drawn from a sample of those waiting, such that the vertices within have about ``edges_max`` edges: no
// width of steps needs tuning (in the manner of Dong, Gu, Sun, Zhang, "Efficient Stepping Algorithms and
// Implementations for Parallel Shortest Paths", SPAA 2021). One cooperative kernel.
#include "push.cuh"

constexpr u32 SPREAD_BLOCKS = 2;  // on a multiprocessor: bounds a thread's registers

// Of those waiting, the sample has about half as many as there is room for.
constexpr u32 SAMPLES_MAX = BLOCK_THREADS;

using Held = HeldBy<true>;

struct Spread : Pushing<true> {
    u32 step = 0;

    __device__ __forceinline__ Spread(const State& out, const PathJob& job, const Place& place, Held* held)
        : Pushing(out, job, place, held)
    {
    }

    __device__ __forceinline__ u32 n_words() const { return u32((u64(job.n_vertices) + 31) / 32); }

    __device__ __forceinline__ u64* n_waiting() const { return &job.counters->logged; }

    // A sample is kept where no lost vertices are pulled for.
    __device__ __forceinline__ Entry* samples() const { return frontier_of(job, PULLING, nullptr).short_rows; }

    __device__ __forceinline__ void run()
    {
        for (u32 v = place.thread; v < job.n_vertices; v += place.n_threads) store_cached(job.words + v, UNREACHED);
        for (u32 w = place.thread; w < n_words(); w += place.n_threads) store_cached(job.seen[0] + w, 0u);
        barrier();
        for (u32 k = place.thread; k < job.n_sources; k += place.n_threads) {
            const u32 vertex = load_constant(job.sources + k);
            store_cached(job.words + vertex, job.source_word);
            if (set_aside(vertex)) atomicAdd(n_waiting(), 1ull);
        }
        barrier();
        u32 stamp = job.stamp;
        for (;; step++) {
            const u64 n = load_cached(n_waiting());
            if (!n) break;
            sample(n);
            barrier();
            const u32 passed = bound;
            bound = drawn_bound(n);
            stamp++;
            split(passed, stamp);
            barrier();
            stamp = push(stamp);
        }
        barrier();  // all have read the counters
        if (place.thread) return;
        clear_counters(job.counters);
        __threadfence_system();
        tell_all(job, 0, 0, 0, rounds, stamp + 1, edges);
    }

    // Calls work(vertex, waits) for all vertices of words with some that wait, by whole warps.
    template <class Work> __device__ __forceinline__ void for_waiting(Work work)
    {
        for_words(place, job.seen[0], n_words(), 0, [&](u64 first, u64, u32 bits) {  // most of them are empty
            for (u32 left = __ballot_sync(ALL_LANES, bits); left; left &= left - 1) {
                const u32 k = __ffs(left) - 1, waiting = __shfl_sync(ALL_LANES, bits, k);
                work(u32(first + k * u64(place.n_warps)) * 32 + place.lane, bool(waiting >> place.lane & 1));
            }
        });
    }

    __device__ __forceinline__ u32 sample_room() const { return min(min(SAMPLES_MAX, blockDim.x), job.room); }

    // Draws some of the ``n`` that wait, each with the same chance: values and degrees. Not those who came within the
    // last bound while they waited, and have pushed since.
    __device__ __forceinline__ void sample(u64 n)
    {
        u64* const count = job.counters->found + step % 3;
        if (place.thread == 0) job.counters->found[(step + 1) % 3] = 0;
        const u32 wanted = max(sample_room() / 2, 1u);
        const u32 chance = n <= wanted ? ~0u : u32((u64(wanted) << 32) / n);
        for_waiting([&](u32 vertex, bool waits) {
            const u32 drawn = (vertex + step * 0x9e3779b9u) * 0x85ebca6bu;
            if (!waits || (drawn ^ drawn >> 15) * 0xc2b2ae35u > chance) return;
            const u32 own = value_bits(load_word(job, vertex));
            if (step && is_within(own)) return;
            const u64 at = atomicAdd(count, 1ull);
            if (at < sample_room()) store_wide(samples() + at, Entry{own, load_row(out, vertex).degree, 0, 0});
        });
    }

    // The worst value of the sample within which those waiting have at most ``edges_max`` edges by its measure; at
    // least its best one. Every block finds it for itself.
    __device__ __forceinline__ u32 drawn_bound(u64 n_waiting)
    {
        __shared__ u32 bits[SAMPLES_MAX];
        __shared__ u32 degrees[SAMPLES_MAX];
        __shared__ u64 chosen;
        const u32 n = u32(min(load_cached(job.counters->found + step % 3), u64(sample_room())));
        const u32 own = threadIdx.x;
        if (own < n) {
            const Entry entry = load_wide(samples() + own);
            bits[own] = entry.vertex;
            degrees[own] = entry.leaf;
        }
        if (own == 0) chosen = 0;
        __syncthreads();
        if (own < n) {
            u64 sum = 0;
            u32 rank = 0;
            for (u32 k = 0; k < n; k++) {
                rank += is_better(bits[k], bits[own]);
                sum += is_better(bits[own], bits[k]) ? 0 : degrees[k];
            }
            if (rank == 0 || double(sum) * double(n_waiting) <= double(job.edges_max) * double(n))
                atomicMax(&chosen, u64(rank + 1) << 32 | bits[own]);
        }
        __syncthreads();
        const u32 found = chosen ? u32(chosen) : NOTHING;  // nobody was drawn: no bound
        __syncthreads();
        return found;
    }

    // Queues those waiting who are within the bound for round ``stamp``. Who was within the one before has pushed its
    // value already.
    __device__ __forceinline__ void split(u32 passed, u32 stamp)
    {
        u32 n_left = 0;
        for_waiting([&](u32 vertex, bool waits) {
            const u32 own = waits ? value_bits(load_word(job, vertex)) : NOTHING;
            const bool leaves = waits && is_within(own);
            const bool chosen[2] = {leaves && (step == 0 || (passed != NOTHING && is_better(passed, own))), false};
            const u32 leaving = __ballot_sync(ALL_LANES, leaves);
            if (!leaving) return;
            const u32 vertices[2] = {vertex, 0};
            Row row[2] = {{0, 0}, {0, 0}};
            if (chosen[0]) {
                row[0] = load_row(out, vertex);
                store_cached(job.stamps + vertex, stamp);
            }
            if (place.lane == 0) atomicAnd(job.seen[0] + (vertex >> 5), ~leaving);
            n_left += __popc(leaving);
            const bool queued[2] = {chosen[0] && row[0].degree, false};
            hold(outgoing(job, turn), queued, vertices, row);
        });
        if (place.lane == 0 && n_left) atomicAdd(n_waiting(), 0ull - n_left);
        let_go(outgoing(job, turn));
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, SPREAD_BLOCKS) void spread(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PathJob job)
{
    __shared__ Held held[BLOCK_THREADS / 32];
    Spread{out, job, place_in_grid(), held}.run();
}
