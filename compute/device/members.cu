// Lists of the members of every tree, in a circle, and where free handles stand in the list of them: what the host keeps
// beside a forest (compute/forest/members.py), of one that was spanned just now; one cooperative kernel.
//
// A list is made from its end: who comes puts itself before the head. Neighbours of one tree come together, and of the
// largest tree all that a warp looks at, so that few come to any head.
#include "forest.cuh"

// Vertices that a thread loads together in passes over all of them: stores would make later loads wait.
constexpr u32 TOGETHER = 4;

struct Listing : Foresting {
    Member* const members;
    u32* const heads;  // by handle
    u32 giant = NOBODY;

    __device__ __forceinline__ Listing(
        const State& out, const State& in, const ForestJob& job, const Place& place, const Members& members)
        : Foresting(out, in, job, place), members(members.members), heads(job.log)
    {
    }

    __device__ __forceinline__ void run()
    {
        begin();
        barrier();
        giant = u32(load_cached(&job.counters->hub));
        chain();
        place_free();
        barrier();
        close();
        report(0, 0, 0);
    }

    // Calls use(vertex, loaded) with what load(vertex) gave, for all vertices.
    template <class Loaded, class Load, class Use> __device__ __forceinline__ void for_all(Load load, Use use)
    {
        for (u64 first = place.thread; first < job.n_vertices; first += u64(TOGETHER) * place.n_threads) {
            Loaded loaded[TOGETHER];
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                const u64 v = first + u64(k) * place.n_threads;
                if (v < job.n_vertices) loaded[k] = load(u32(v));
            }
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                const u64 v = first + u64(k) * place.n_threads;
                if (v < job.n_vertices) use(u32(v), loaded[k]);
            }
        }
    }

    // Sizes, and the lists of those that are alone. Finds the largest tree.
    __device__ __forceinline__ void begin()
    {
        u64 largest = 0;
        for_all<u32>([&](u32 v) { return load_cached(&job.trees[v].size); },
            [&](u32 v, u32 size) {
                const u32 own = size == 1 ? v : NOBODY;
                store_wide(members + v, Member{own, own, size, NOBODY});
                store_cached(heads + v, NOBODY);
                largest = max(largest, u64(size) << 32 | v);
            });
        __syncwarp();
        for (u32 offset = 16; offset; offset >>= 1)
            largest = max(largest, u64(__shfl_xor_sync(ALL_LANES, largest, offset)));
        if (place.lane == 0 && largest > load_cached(&job.counters->hub)) atomicMax(&job.counters->hub, largest);
    }

    // Puts a chain of members before the head of their tree; by one thread.
    __device__ __forceinline__ void put_before(u32 handle, u32 first, u32 last)
    {
        const u32 head = atomicExch(heads + handle, first);
        store_cached(&members[last].next, head);
        if (head != NOBODY) store_cached(&members[head].prev, last);
    }

    // Chains the vertices that a mask names, of the 32 from ``begin`` on; this lane's is one of them.
    __device__ __forceinline__ void link(u32 mask, u32 begin)
    {
        const u32 below = mask & lanes_before(), above = mask & ~lanes_before() & ~(1u << place.lane);
        if (below) store_cached(&members[begin + place.lane].prev, begin + 31 - __clz(below));
        if (above) store_cached(&members[begin + place.lane].next, begin + __ffs(above) - 1);
    }

    __device__ __forceinline__ void chain()
    {
        const u32 n_words = u32((u64(job.n_vertices) + 31) / 32), share = (n_words + place.n_warps - 1) / place.n_warps;
        const u32 from = u32(min(u64(place.warp) * share, u64(n_words)));
        u32 first = NOBODY, last = NOBODY;  // of the giant's members here
        for (u32 w = from; w < min(from + share, n_words); w++) {
            const u32 begin = w * 32, v = begin + place.lane;
            const bool is_there = v < job.n_vertices;
            const u32 handle = is_there ? load_node(v).handle : NOBODY;
            const bool is_of_giant = is_there && handle == giant;
            // A tree has the number of its root: whoever bears another one is not alone.
            const bool is_other = is_there && !is_of_giant && (handle != v || load_cached(&job.trees[v].size) > 1);
            __syncwarp();
            const u32 of_giant = __ballot_sync(ALL_LANES, is_of_giant);
            if (is_of_giant) link(of_giant, begin);
            if (of_giant) {
                const u32 head = begin + __ffs(of_giant) - 1;
                if (first == NOBODY) first = head;
                else if (place.lane == 0) {
                    store_cached(&members[last].next, head);
                    store_cached(&members[head].prev, last);
                }
                last = begin + 31 - __clz(of_giant);
            }
            __syncwarp();
            if (!__any_sync(ALL_LANES, is_other)) continue;
            const u32 peers = __match_any_sync(ALL_LANES, is_other ? handle : NOBODY);
            if (is_other) link(peers, begin);
            if (is_other && !(peers & lanes_before())) put_before(handle, v, begin + 31 - __clz(peers));
            __syncwarp();
        }
        if (place.lane == 0 && first != NOBODY) put_before(giant, first, last);
        __syncwarp();
    }

    __device__ __forceinline__ void place_free()
    {
        const u32 n_free = load_cached(&job.counters->n_free);
        for (u64 i = place.thread; i < n_free; i += place.n_threads)
            store_cached(&members[load_cached(job.free + i)].place, u32(i));
    }

    // Whoever came to a tree first is its last member.
    __device__ __forceinline__ void close()
    {
        for_all<u32>([&](u32 v) { return load_cached(&members[v].next); },
            [&](u32 v, u32 next) {
                if (next != NOBODY) return;
                const u32 head = load_cached(heads + load_node(v).handle);
                store_cached(&members[v].next, head);
                store_cached(&members[head].prev, v);
            });
        barrier();
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 2) void members(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ ForestJob job,
    const __grid_constant__ Members members)
{
    Listing{out, in, job, place_in_grid(), members}.run();
}
