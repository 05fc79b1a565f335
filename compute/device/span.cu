// Spanning a whole graph: the forest of components from scratch, one cooperative kernel.
//
// The component of the vertex with the most edges is searched level by level, pushing small frontiers and pulling to
// large ones (as search.cu). The rest of the vertices with edges, mostly few, are told apart by hooking; then they are
// searched from a root of each component at once. A tree has the number of its root for a handle.
#include "forest.cuh"
#include "pull.cuh"

constexpr u32 SPAN_BLOCKS = 2;  // on a multiprocessor: bounds a thread's registers
// Pull when the edges of the frontier are more than this share of those left, push again when it has become this
// share of the vertices.
#ifndef PULL_SHARE
#define PULL_SHARE 0.07f
#endif
#ifndef PUSH_SHARE
#define PUSH_SHARE 0.002f
#endif

// Vertices that a thread loads together in passes over all of them: stores would make later loads wait.
constexpr u32 TOGETHER = 4;

struct Spanning : Foresting {
    u64 edges_left;   // not yet read by pushing
    u32 hub = NOBODY;  // the root that is searched from; NOBODY: from many at once
    u32 level = 0;
    u32 turn = 0;     // of the queues
    u32 pulls = 0;    // levels found by pulling: which bits are those of before, and which counter is used
    u32 n_front = 0;  // vertices of the last level, if it was found by pulling

    __device__ __forceinline__ Spanning(const State& out, const State& in, const ForestJob& job, const Place& place)
        : Foresting(out, in, job, place), edges_left(job.n_edges << job.is_directed)
    {
    }

    __device__ __forceinline__ void run()
    {
        begin();
        barrier();
        const u64 largest = load_cached(&job.counters->hub);
        const u32 giant = largest >> 32 ? u32(largest) : NOBODY;
        if (giant != NOBODY) {
            hub = giant;
            reach_hub();
            barrier();
            search();
            if (hook_rest()) {
                hub = NOBODY;
                level = 0;
                search();
            }
        }
        count(giant);
        barrier();
        report(0, 0, 0);
    }

    __device__ __forceinline__ u32 n_words() const { return u32((u64(job.n_vertices) + 31) / 32); }

    // Words of bits that a warp goes through together, each lane having loaded one.
    struct Words {
        u32 first, step, n;

        // Of this lane.
        __device__ __forceinline__ u32 own() const { return first + lane_number() * step; }

        __device__ __forceinline__ bool is_there() const { return own() < n; }

        __device__ __forceinline__ u32 at(u32 lane) const { return first + lane * step; }
    };

    // Calls work(words) until the words from ``begin`` to ``end`` have been gone through, by whole warps.
    template <class Work> __device__ __forceinline__ void for_words(u32 begin, u32 end, Work work)
    {
        for (u32 first = begin + place.warp; first < end; first += 32 * place.n_warps) work(Words{first, place.n_warps, end});
    }

    __device__ __forceinline__ Pair reached(u32 turn)
    {
        return pair_of(job, ASKING + (turn & 1), job.counters->hanging + turn % 3);
    }

    __device__ __forceinline__ void clear(u32 turn)
    {
        if (place.thread == 0) clear_counts(job.counters->hanging + turn % 3);
    }

    // Finds the vertex with the most edges. Those without any are seen at once: each is a tree of its own.
    __device__ __forceinline__ void begin()
    {
        u64 largest = 0;
        for (u32 first = place.warp; first < n_words(); first += TOGETHER * place.n_warps) {
            u32 degree[TOGETHER];
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                const u64 v = (first + u64(k) * place.n_warps) * 32 + place.lane;
                degree[k] = v < job.n_vertices ? load_rows(u32(v)).degree() : 0;
            }
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                const u32 w = first + k * place.n_warps, v = w * 32 + place.lane;
                if (w >= n_words()) break;
                if (v < job.n_vertices && !degree[k]) store_wide(job.nodes + v, Node{NOBODY, 0, v, NOBODY});
                largest = max(largest, u64(degree[k]) << 32 | v);
                const u32 lone = __ballot_sync(ALL_LANES, !degree[k]);
                if (place.lane == 0) store_cached(job.seen[0] + w, lone);
            }
        }
        for (u32 offset = 16; offset; offset >>= 1)
            largest = max(largest, u64(__shfl_xor_sync(ALL_LANES, largest, offset)));
        if (place.lane == 0 && largest >> 32) atomicMax(&job.counters->hub, largest);
        if (place.thread == 0) store_cached(&job.counters->n_free, 0u);
    }

    __device__ __forceinline__ void reach_hub()
    {
        if (place.warp) return;
        if (place.lane == 0) {
            atomicOr(job.seen[0] + (hub >> 5), 1u << (hub & 31));
            store_wide(job.nodes + hub, Node{NOBODY, 0, hub, NOBODY});
            set_tree(hub, 1);
        }
        __syncwarp();
        queue_one(reached(turn), place.lane == 0, hub, load_rows(hub));
    }

    // From what is queued for this turn on, until nobody is reached.
    __device__ __forceinline__ void search()
    {
        for (bool is_listed = true;;) {
            if (!is_listed && n_front == 0) break;
            if (!is_listed && n_front < PUSH_SHARE * float(job.n_vertices)) {
                list();
                barrier();
                is_listed = true;
            }
            PairCounts counts = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            if (is_listed) counts = load_counts(job.counters->hanging + turn % 3);
            if (is_listed && is_empty(counts)) break;
            level++;
            rounds++;
            if (is_listed && is_large(counts)) {  // this queue will not be read
                is_listed = false;
                clear(turn + 2);
                turn++;
            }
            if (is_listed) push(counts);
            else pull();
        }
        clear(turn + 2);
        turn++;
    }

    __device__ __forceinline__ bool is_large(const PairCounts& counts) const
    {
        return n_short(counts.out) > job.room || n_short(counts.in) > job.room
            || float(n_edges_of(counts)) > PULL_SHARE * float(edges_left);
    }

    __device__ __forceinline__ u32 handle_below(u32 vertex) const
    {
        return hub != NOBODY ? hub : load_cached(&job.nodes[vertex].handle);
    }

    __device__ __forceinline__ void reach(u32 vertex, u32 parent, u32 handle)
    {
        store_wide(job.nodes + vertex, Node{parent, level, handle, NOBODY});
    }

    // -- push ----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void push(const PairCounts& counts)
    {
        const Pair next = reached(turn + 1);
        clear(turn + 2);
        edges += n_edges_of(counts);
        edges_left -= min(edges_left, n_edges_of(counts));
        u32* const seen = job.seen[pulls & 1];
        const auto begin = [&](u32 vertex) { return handle_below(vertex); };
        walk_both(reached(turn), counts, begin, [&](u32 handle, u32 vertex, const Edges& row, bool) {
            bool is_new[2];
            for (u32 j = 0; j < 2; j++)
                is_new[j] = row.live[j] && !(load_cached(seen + (row.head[j] >> 5)) >> (row.head[j] & 31) & 1);
            if (!__any_sync(ALL_LANES, is_new[0] || is_new[1])) return false;
            Rows rows[2] = {{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}};
            for (u32 j = 0; j < 2; j++) {
                if (!is_new[j]) continue;
                const u32 bit = 1u << (row.head[j] & 31);
                rows[j] = load_rows_below(row.head[j]);
                is_new[j] = !(atomicOr(seen + (row.head[j] >> 5), bit) & bit);
                if (is_new[j]) reach(row.head[j], vertex, handle);
            }
            __syncwarp();
            const bool is_first[2] = {false, false};
            const u32 n_new = vote(is_new[0], is_new[1]).count();
            if (hub == NOBODY && place.lane == 0 && n_new) atomicAdd(&job.trees[handle].size, n_new);
            queue(next, is_new, row.head, rows, is_first);
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
        for_words(0, n_words(), [&](const Words& words) {
            const u32 own = words.is_there() ? load_cached(now + words.own()) & ~load_cached(before + words.own()) : 0;
            for (u32 left = __ballot_sync(ALL_LANES, own != 0); left; left &= left - 1) {
                const u32 lane = __ffs(left) - 1, fresh = __shfl_sync(ALL_LANES, own, lane);
                const bool is_fresh = fresh >> place.lane & 1;
                const u32 vertex = words.at(lane) * 32 + place.lane;
                queue_one(reached(turn), is_fresh, vertex, is_fresh ? load_rows_below(vertex) : Rows{{0, 0}, {0, 0}});
            }
        });
    }

    // -- pull ----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void pull()
    {
        const u32* const before = job.seen[pulls & 1];
        u32* const after = job.seen[(pulls & 1) ^ 1];
        u64* const found = job.counters->found + pulls % 3;
        if (place.thread == 0) job.counters->found[(pulls + 1) % 3] = 0;
        u32 n_found = 0;
        for_words(0, n_words(), [&](const Words& words) {
            const u32 own = words.is_there() ? load_cached(before + words.own()) : ALL_LANES;
            u32 own_hits = 0, left = __ballot_sync(ALL_LANES, own != ALL_LANES);
            const auto vertex_of = [&](u32 left) { return words.at(__ffs(left) - 1) * 32 + place.lane; };
            // Rows are asked for one word ahead of their turn.
            Rows next = left ? rows_to_pull(vertex_of(left)) : Rows{{0, 0}, {0, 0}};
            while (left) {
                const u32 lane = __ffs(left) - 1, vertex = vertex_of(left), seen = __shfl_sync(ALL_LANES, own, lane);
                const Rows rows = next;
                left &= left - 1;
                if (left) next = rows_to_pull(vertex_of(left));
                const u32 hits = pull_word(before, seen, vertex, rows);
                if (place.lane == lane) own_hits = hits;
            }
            if (words.is_there()) store_cached(after + words.own(), own | own_hits);
            n_found += __popc(own_hits);
        });
        add_by_block(found, n_found);
        pulls++;
        barrier();
        n_front = u32(load_cached(found));
    }

    __device__ __forceinline__ Rows rows_to_pull(u32 vertex) const
    {
        return vertex < job.n_vertices ? load_rows(vertex) : Rows{{0, 0}, {0, 0}};
    }

    // Looks for parents of 32 neighbouring vertices, one a lane; bits for those that found one.
    __device__ __forceinline__ u32 pull_word(const u32* before, u32 seen, u32 vertex, const Rows& both)
    {
        u32 parent = NOT_SEEN;
#pragma unroll 1
        for (u32 side = 0; side <= job.is_directed; side++) {
            const State rows = side ? in : out;  // a copy: what is used of it is in registers
            const Row row = side ? both.in : both.out;
            const bool is_wanted = row.degree && parent == NOT_SEEN && !(seen >> place.lane & 1);
            if (!__any_sync(ALL_LANES, is_wanted)) continue;
            const u32 tail = Pull{rows, before}.seen_neighbour(vertex, row, is_wanted);
            if (is_wanted) parent = tail;
        }
        const u32 handle = parent != NOT_SEEN ? handle_below(parent) : 0;
        if (parent != NOT_SEEN) reach(vertex, parent, handle);
        if (hub == NOBODY) add_sizes(parent != NOT_SEEN, handle, 1);
        return __ballot_sync(ALL_LANES, parent != NOT_SEEN);
    }

    // -- the rest ------------------------------------------------------------------------------------------------

    // Finds the components of who was not reached: a root of each is seen, and queued for this turn. Whether there
    // are any.
    __device__ __forceinline__ bool hook_rest()
    {
        u32* const seen = job.seen[pulls & 1];
        PairCounts* const counters = &job.counters->left;
        const Pair rest = pair_of(job, PULLING, counters);
        queue_rest(seen, rest, 0, n_words(), true);
        barrier();
        PairCounts counts = load_counts(counters);
        if (!n_vertices_of(counts)) return false;
        edges += n_edges_of(counts);
        const bool ran_over = n_short(counts.out) > job.room || n_short(counts.in) > job.room;
        // As many vertices at a time as there is room for, then. The long rows are all there.
        const u32 n_together = ran_over ? job.room / 32 : n_words();
        if (ran_over) barrier();  // all have read the counts
        for (u32 begin = 0; begin < n_words(); begin += n_together) {
            if (ran_over) {
                if (place.thread == 0) counters->out.short_rows = counters->in.short_rows = 0;
                barrier();
                queue_rest(seen, rest, begin, min(begin + n_together, n_words()), false);
                barrier();
                counts.out.short_rows = load_counts(counters).out.short_rows;
                if (begin) counts.out.long_rows = 0;
            }
            const auto nothing = [](u32) { return 0; };
            walk_rows(out, rest.out, counts.out, place, nothing, [&](int, u32 vertex, const Edges& row, bool) {
                for (u32 j = 0; j < 2; j++)
                    if (row.live[j]) hook(vertex, row.head[j]);
                __syncwarp();
                return false;
            });
            barrier();
        }
        const Pair roots = reached(turn);
        for_left(seen, 0, n_words(), [&](u32 w, u32 known) {
            const u32 vertex = w * 32 + place.lane;
            const bool is_root = !(known >> place.lane & 1) && pieces().find(vertex) == vertex;
            __syncwarp();
            const u32 fresh = __ballot_sync(ALL_LANES, is_root);
            if (!fresh) return;
            if (place.lane == 0) store_cached(seen + w, known | fresh);
            if (is_root) set_tree(vertex, 1);
            queue_one(roots, is_root, vertex, is_root ? load_rows(vertex) : Rows{{0, 0}, {0, 0}});
        });
        barrier();
        return true;
    }

    // Queues the rows of the vertices of these words that were not reached; first of all with sets of their own, and
    // long rows.
    __device__ __forceinline__ void queue_rest(u32* seen, const Pair& rest, u32 begin, u32 end, bool is_first_time)
    {
        for_left(seen, begin, end, [&](u32 w, u32 known) {
            const u32 vertex = w * 32 + place.lane;
            const bool is_rest = !(known >> place.lane & 1);
            Rows rows = {{0, 0}, {0, 0}};
            if (is_rest) rows = load_rows(vertex);
            if (is_first_time) {
                if (is_rest) store_wide(job.nodes + vertex, Node{NOBODY, 0, vertex, vertex});
                __syncwarp();
                queue_one(rest, is_rest, vertex, rows);
                return;
            }
            const u32 at = claim_places(&rest.out.counts->short_rows, is_short(rows.out));
            if (is_short(rows.out)) put_short(rest.out, at, vertex, rows.out);
        });
    }

    // Calls work(number, word) for those of these words that have bits which are not set, by whole warps.
    template <class Work> __device__ __forceinline__ void for_left(const u32* seen, u32 begin, u32 end, Work work)
    {
        for_words(begin, end, [&](const Words& words) {
            const u32 own = words.is_there() ? load_cached(seen + words.own()) : ALL_LANES;
            for (u32 left = __ballot_sync(ALL_LANES, own != ALL_LANES); left; left &= left - 1) {
                const u32 lane = __ffs(left) - 1;
                work(words.at(lane), __shfl_sync(ALL_LANES, own, lane));
            }
        });
    }

    // -- the end -------------------------------------------------------------------------------------------------

    // The handles that are free: the numbers of all that are no roots. Of these the giant's gets its size, and those
    // that are alone; the others have theirs.
    __device__ __forceinline__ void count(u32 giant)
    {
        __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
        __shared__ u32 first;
        u32 n_giant = 0;
        const u64 step = u64(TOGETHER) * place.n_threads;
        for (u64 begin = u64(TOGETHER) * blockIdx.x * blockDim.x; begin < job.n_vertices; begin += step) {
            const auto vertex_of = [&](u32 k) { return begin + k * blockDim.x + threadIdx.x; };
            Node node[TOGETHER];
            u32 n_below = 0;
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++)
                node[k] = vertex_of(k) < job.n_vertices ? load_node(u32(vertex_of(k))) : Node{NOBODY, 0, 0, NOBODY};
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                const u32 v = u32(vertex_of(k));
                const bool is_below = node[k].parent != NOBODY;
                if (node[k].label != NOBODY) store_cached(&job.nodes[v].label, NOBODY);
                else if (vertex_of(k) < job.n_vertices && v != giant) set_tree(v, is_below ? 0 : 1);
                n_giant += is_below && node[k].handle == giant;
                n_below += is_below;
            }
            u32 total;
            u32 at = block_scan(n_below, sums, total);
            if (threadIdx.x == 0) first = total ? atomicAdd(&job.counters->n_free, total) : 0;
            __syncthreads();
            at += first;
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++)
                if (node[k].parent != NOBODY) job.free[at++] = u32(vertex_of(k));
            __syncthreads();
        }
        n_giant = warp_sum(n_giant);
        if (place.lane == 0 && n_giant) atomicAdd(&job.trees[giant].size, n_giant);
    }

    // Adds what each thread has counted, once for the block.
    __device__ __forceinline__ void add_by_block(u64* sum, u32 of_thread) const
    {
        __shared__ u32 sums[BLOCK_THREADS / 32 + 1];
        u32 total;
        block_scan(of_thread, sums, total);
        if (threadIdx.x == 0 && total) atomicAdd(sum, u64(total));
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, SPAN_BLOCKS) void span(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ ForestJob job)
{
    Spanning{out, in, job, place_in_grid()}.run();
}
