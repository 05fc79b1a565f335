// A search from scratch for path programs without weights, where all vertices of a level have the same value.
//
// Level by level, from the queue of the last one's vertices, or, when these have many edges, from the vertices that are
// still unreached: each looks for a neighbour that is reached, and stops at the first (Beamer, Asanovic, Patterson,
// "Direction-Optimizing Breadth-First Search", SC 2012). Bits say who was reached before the level and who after it, so
// that nobody finds a parent on its own level; a neighbour of a level further up it has none, or it would be reached.
#include "paths.cuh"
#include "pull.cuh"

constexpr u32 SEARCH_BLOCKS = 3;  // on a multiprocessor: bounds a thread's registers
// Pull when the edges of the frontier are more than this share of those left, push again when it has become this
// share of the vertices.
#ifndef PULL_SHARE
#define PULL_SHARE 0.07f
#endif
#ifndef PUSH_SHARE
#define PUSH_SHARE 0.002f
#endif

struct Search {
    const State& out;
    const State& in;
    const PathJob& job;
    const Place place;
    // What all threads of the grid agree about.
    u64 edges = 0;       // read by pushing
    u64 edges_left;      // not yet read by pushing
    u32 bits;            // the value of the level that is looked for
    u32 level = 0;
    u32 turn = 0;        // of the queues
    u32 pulls = 0;       // levels found by pulling: which bits are those of before, and which counter is used
    u32 n_front = 0;     // vertices of the last level, if it was found by pulling

    __device__ __forceinline__ Search(const State& out, const State& in, const PathJob& job, const Place& place)
        : out(out), in(in), job(job), place(place), edges_left(job.n_edges), bits(value_bits(job.source_word))
    {
    }

    __device__ __forceinline__ void run()
    {
        for (u32 v = place.thread; v < job.n_vertices; v += place.n_threads) store_cached(job.words + v, UNREACHED);
        for (u32 w = place.thread; w < n_words(); w += place.n_threads) store_cached(job.seen[0] + w, 0u);
        barrier();
        for (u32 first = place.warp * 32; first < job.n_sources; first += place.n_threads) {
            const bool chosen[2] = {first + place.lane < job.n_sources, false};
            const u32 vertex[2] = {chosen[0] ? load_constant(job.sources + first + place.lane) : 0, 0};
            reach(chosen, vertex, NO_PARENT, outgoing(job, turn));
        }
        barrier();
        bool is_listed = true;
        for (;; level++) {
            if (!is_listed && n_front == 0) break;
            if (!is_listed && n_front < PUSH_SHARE * float(job.n_vertices)) {
                list();
                barrier();
                is_listed = true;
            }
            const Counts counts = is_listed ? load_counts(job.counters->outgoing + turn % 3) : Counts{0, 0, 0, 0};
            if (is_listed && is_empty(counts)) break;
            bits = offered(bits, 1.0f);
            if (bits == NOTHING) break;
            if (is_listed && is_large(counts)) {  // this queue will not be read
                is_listed = false;
                clear(turn + 2);
                turn++;
            }
            if (is_listed) push(counts);
            else pull();
        }
        finish();
    }

    __device__ __forceinline__ void barrier() { grid_barrier(&job.counters->barrier); }

    __device__ __forceinline__ u32 n_words() const { return u32((u64(job.n_vertices) + 31) / 32); }

    __device__ __forceinline__ void clear(u32 turn)
    {
        if (place.thread == 0) clear_counts(job.counters->outgoing + turn % 3);
    }

    __device__ __forceinline__ bool is_large(const Counts& counts) const
    {
        return n_short(counts) > job.room || float(counts.edges) > PULL_SHARE * float(edges_left);
    }

    // -- push ----------------------------------------------------------------------------------------------------

    // The chosen of the warp's vertices, two a lane, are reached unless they were before. All lanes take part.
    __device__ __forceinline__ void reach(
        const bool (&chosen)[2], const u32 (&vertex)[2], u32 parent, const Frontier& next)
    {
        u32* const seen = job.seen[pulls & 1];
        bool is_new[2];
        for (u32 j = 0; j < 2; j++)
            is_new[j] = chosen[j] && !(load_cached(seen + (vertex[j] >> 5)) >> (vertex[j] & 31) & 1);
        if (!__any_sync(ALL_LANES, is_new[0] || is_new[1])) return;
        Row row[2] = {{0, 0}, {0, 0}};
        for (u32 j = 0; j < 2; j++) {
            if (!is_new[j]) continue;
            const u32 bit = 1u << (vertex[j] & 31);
            row[j] = load_row(out, vertex[j]);
            is_new[j] = !(atomicOr(seen + (vertex[j] >> 5), bit) & bit);
            if (is_new[j]) store_cached(job.words + vertex[j], word_of(bits, parent));
        }
        __syncwarp();
        put<false>(out, next, is_new, vertex, row);
    }

    __device__ __forceinline__ void push(const Counts& counts)
    {
        const Frontier now = outgoing(job, turn), next = outgoing(job, turn + 1);
        clear(turn + 2);
        edges += counts.edges;
        edges_left -= min(edges_left, counts.edges);
        walk_rows(out, now, counts, place, [](u32) { return 0; }, [&](int, u32 vertex, const Edges& row, bool) {
            reach(row.live, row.head, vertex, next);
            return false;
        });
        turn++;
        barrier();
    }

    // Queues the vertices of the level that was pulled last.
    __device__ __forceinline__ void list()
    {
        const u32* const now = job.seen[pulls & 1];
        const u32* const before = job.seen[(pulls & 1) ^ 1];
        for (u32 w = place.warp; w < n_words(); w += place.n_warps) {
            const u32 fresh = load_cached(now + w) & ~load_cached(before + w);
            if (!fresh) continue;
            const bool chosen[2] = {bool(fresh >> place.lane & 1), false};
            const u32 vertex[2] = {w * 32 + place.lane, 0};
            Row row[2] = {{0, 0}, {0, 0}};
            if (chosen[0]) row[0] = load_row(out, vertex[0]);
            put<false>(out, outgoing(job, turn), chosen, vertex, row);
        }
    }

    // -- pull ----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void pull()
    {
        const u32* const before = job.seen[pulls & 1];
        u32* const after = job.seen[(pulls & 1) ^ 1];
        u64* const found = job.counters->found + pulls % 3;
        if (place.thread == 0) job.counters->found[(pulls + 1) % 3] = 0;
        u32 n_found = 0;
        for_words(place, before, n_words(), ALL_LANES, [&](u64 first, u64 own, u32 words) {
            // Rows are asked for one word ahead of their turn.
            const u32 n = u32(min(u64(32), (n_words() - first + place.n_warps - 1) / place.n_warps));
            u32 vertex = u32(first) * 32 + place.lane;
            Row next = row_to_pull(__shfl_sync(ALL_LANES, words, 0), vertex);
            for (u32 k = 0; k < n; k++, vertex += 32 * place.n_warps) {
                const u32 seen = __shfl_sync(ALL_LANES, words, k);
                const Row row = next;
                if (k + 1 < n)
                    next = row_to_pull(__shfl_sync(ALL_LANES, words, k + 1), vertex + 32 * place.n_warps);
                const u32 hits = pull_word(before, seen, row, vertex);
                if (place.lane == k) words |= hits;
                n_found += __popc(hits);
            }
            if (own < n_words()) store_cached(after + own, words);
        });
        add_by_block(found, n_found);
        pulls++;
        barrier();
        n_front = u32(load_cached(found));
    }

    // The row of one of 32 neighbouring vertices, one a lane, of which some were seen; none where all were.
    __device__ __forceinline__ Row row_to_pull(u32 seen, u32 vertex) const
    {
        return seen != ALL_LANES && vertex < job.n_vertices ? load_row(in, vertex) : Row{0, 0};
    }

    // Looks for parents of 32 neighbouring vertices, one a lane, of which some were seen; bits for those that found one.
    __device__ __forceinline__ u32 pull_word(const u32* before, u32 seen, const Row& row, u32 vertex)
    {
        const bool is_wanted = row.degree && !(seen >> place.lane & 1);
        if (!__any_sync(ALL_LANES, is_wanted)) return 0;
        const u32 parent = Pull{in, before}.seen_neighbour(vertex, row, is_wanted);
        if (parent != NO_PARENT) store_cached(job.words + vertex, word_of(bits, parent));
        return __ballot_sync(ALL_LANES, parent != NO_PARENT);
    }

    // Adds what each warp has counted, once for the block.
    __device__ __forceinline__ void add_by_block(u64* sum, u32 of_warp) const
    {
        __shared__ u32 sums[BLOCK_THREADS / 32];
        if (place.lane == 0) sums[threadIdx.x >> 5] = of_warp;
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 all = 0;
            for (u32 i = 0; i < blockDim.x >> 5; i++) all += sums[i];
            if (all) atomicAdd(sum, u64(all));
        }
        __syncthreads();
    }

    // -- the end -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        barrier();  // all have read the counters
        if (place.thread) return;
        clear_counters(job.counters);
        __threadfence_system();
        tell_all(job, 0, 0, 0, level, job.stamp, edges);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, SEARCH_BLOCKS) void search(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PathJob job)
{
    Search{out, in, job, place_in_grid()}.run();
}
