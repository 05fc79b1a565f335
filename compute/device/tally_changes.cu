// What a change does to triangles: by how much the tally of each vertex differs. One cooperative kernel; the rule, by which a
// triangle with several changed links is taken by the smallest of them, is the host's (compute/triangles/change.py), and
// so is the measure of what it costs.
//
// A warp takes a link. Of its two ends that with the shorter rows is walked, lane by lane, with the links that ended;
// each vertex there is looked up among the changed links of the other end, else in its rows, in place. Links between hubs are
// cut into pieces of some leaves, which all warps take equal shares of.
#include "tally.cuh"

constexpr u32 BEFORE = (1u << NOW_SHIFT) - 1;

// The changed links of a vertex: a range of all.
struct Overlay {
    u32 begin, end;
};

struct Tallying : Run<TallyJob> {
    // Of this thread.
    u64 cost[2] = {};  // steps, entries

    using Run::Run;

    __device__ __forceinline__ void run()
    {
        survey();
        barrier();
        const bool gives_up = load_cached(&job.counters->steps) > job.steps_max;
        if (!gives_up) {
            for (u32 k = place.warp; k < job.n_links; k += place.n_warps) take_first(k);
            take_others();
            add_by_block({0, place.lane ? 0 : cost[1]}, &job.counters->steps);
            barrier();
            write_changes();
        }
        barrier();
        if (place.thread == 0) tell_tally(job, gives_up);
    }

    // -- what it costs ---------------------------------------------------------------------------------------------

    __device__ __forceinline__ void survey()
    {
        for (u32 k = place.thread; k < job.n_links; k += place.n_threads) {
            const u64 key = load_constant(job.keys + k);
            if (source(key) >= destination(key)) continue;
            const u64 mine = entries_of(source(key)), its = entries_of(destination(key));
            const u64 few = min(mine, its), many = max(mine, its);
            cost[0] += LINK_STEPS + (SEARCH_STEPS * few < many ? SEARCH_STEPS * few : few + many);
            if (is_divided(few)) divide(k, mine <= its ? source(key) : destination(key));
        }
        __syncwarp();
        add_by_block({cost[0], 0}, &job.counters->steps);
    }

    // Whether a link is cut into pieces, by the entries of its shorter end; rows of few of them may lie in many leaves.
    __device__ __forceinline__ bool is_divided(u64 entries) const { return entries > job.piece_leaves * LEAF_SLOTS; }

    // Lists a link that has several pieces, going by the rows of one end.
    __device__ __forceinline__ void divide(u32 k, u32 v)
    {
        const Spans rows = spans_of(out, in, job.is_directed, v);
        const u32 leaves = max(rows.out.leaves(), rows.in.leaves());
        if (leaves <= job.piece_leaves) return;
        const u64 others = (leaves - 1) / job.piece_leaves;
        const u64 found = atomicAdd(&job.counters->long_links, 1ull << 32 | others);
        store_cached(job.long_links + (found >> 32), found << 32 | k);
    }

    // How many entries a list of the links of a vertex can have, with those that the change ended.
    __device__ __forceinline__ u64 entries_of(u32 v) const
    {
        const Overlay own = overlay_of(v);
        return u64(degree_of(out, in, job.is_directed, v)) + (own.end - own.begin);
    }

    // -- changed links ---------------------------------------------------------------------------------------------

    // The first link of links[begin:end] that is not smaller.
    __device__ __forceinline__ u32 first_at(u64 key, u32 begin, u32 end) const
    {
        while (begin < end) {
            const u32 middle = begin + (end - begin) / 2;
            if (load_constant(job.keys + middle) < key) begin = middle + 1;
            else end = middle;
        }
        return begin;
    }

    __device__ __forceinline__ Overlay overlay_of(u32 v) const
    {
        const u32 begin = first_at(u64(v) << 32, 0, job.n_links);
        return {begin, first_at((u64(v) + 1) << 32, begin, job.n_links)};
    }

    // The arcs of a link before and after; as the rows have it, where it did not change.
    struct Arcs {
        u32 was, is;
    };

    __device__ __forceinline__ static Arcs arcs_from(u32 both) { return {both & BEFORE, both >> NOW_SHIFT}; }

    // ``now``: how many arcs the rows have of the link, where it is not among the changed ones of v.
    template <class Now> __device__ __forceinline__ Arcs arcs_to(const Overlay& own, u32 v, u32 w, Now now) const
    {
        const u64 key = u64(v) << 32 | w;
        const u32 at = first_at(key, own.begin, own.end);
        if (at < own.end && load_constant(job.keys + at) == key) return arcs_from(load_constant(job.arcs + at));
        const u32 arcs = now();
        return {arcs, arcs};
    }

    // -- one link --------------------------------------------------------------------------------------------------

    struct End {
        u32 vertex;
        Overlay own;
        Spans rows;
        i64 difference;  // of this lane
    };

    __device__ __forceinline__ End end_at(u32 v) const
    {
        return {v, overlay_of(v), spans_of(out, in, job.is_directed, v), 0};
    }

    // The first piece of a link, with what it ended.
    __device__ __forceinline__ void take_first(u32 k)
    {
        const u64 key = load_constant(job.keys + k);
        if (source(key) < destination(key)) take(k, 0);
    }

    // A share of all other pieces.
    __device__ __forceinline__ void take_others()
    {
        const u64 found = load_cached(&job.counters->long_links);
        const u32 n = u32(found >> 32), n_pieces = u32(found), share = (n_pieces + place.n_warps - 1) / place.n_warps;
        u32 at = u32(min(u64(place.warp) * share, u64(n_pieces)));
        const u32 end = u32(min(u64(at) + share, u64(n_pieces)));
        if (at >= end) return;
        u32 low = 0;  // the last link whose pieces begin there or before
        for (u32 high = n; high - low > 1;) {
            const u32 middle = (low + high) / 2;
            if (first_piece(middle) <= at) low = middle;
            else high = middle;
        }
        for (; at < end; low++) {
            const u32 first = first_piece(low), stop = low + 1 < n ? min(end, first_piece(low + 1)) : end;
            for (; at < stop; at++) take(u32(load_cached(job.long_links + low)), 1 + at - first);
        }
    }

    __device__ __forceinline__ u32 first_piece(u32 at) const { return u32(load_cached(job.long_links + at) >> 32); }

    __device__ __forceinline__ void take(u32 k, u32 piece)
    {
        const u64 key = load_constant(job.keys + k);
        End few = end_at(source(key)), many = end_at(destination(key));
        const auto size = [](const End& end) { return u64(end.rows.degree()) + (end.own.end - end.own.begin); };
        if (size(few) > size(many)) {
            const End other = few;
            few = many;
            many = other;
        }
        const Arcs link = arcs_from(load_constant(job.arcs + k));
        const u32 first = piece * job.piece_leaves, n_leaves = is_divided(size(few)) ? job.piece_leaves : NO_LEAF;
        const auto visit_out = [&](const Edges& row) {
            take_both(link, few, many, row.live, row.head, [&](u32 w) {
                return job.is_directed ? 1 + (job.weighs && leads_to(in, few.rows.in, w)) : 2;
            });
        };
        const auto visit_in = [&](const Edges& row) {
            bool is_only_here[2];
            for (u32 j = 0; j < 2; j++) is_only_here[j] = row.live[j] && !leads_to(out, few.rows.out, row.head[j]);
            __syncwarp();
            take_both(link, few, many, is_only_here, row.head, [](u32) { return 1u; });
        };
        walk_row_by_warp(out, few.vertex, few.rows.out.row_from(first), visit_out, n_leaves);
        walk_row_by_warp(in, few.vertex, few.rows.in.row_from(first), visit_in, n_leaves);
        if (!piece) {
            cost[1] += size(few);
            take_ended(link, few, many);
        }
        differ(few);
        differ(many);
    }

    // What changed links of one end are links no more.
    __device__ __forceinline__ void take_ended(const Arcs& link, End& few, End& many)
    {
        for (u32 first = few.own.begin; first < few.own.end; first += 32) {
            const u32 at = first + place.lane;
            const bool is_there = at < few.own.end && !arcs_from(load_constant(job.arcs + at)).is;
            const bool has_ended[2] = {is_there, false};
            const u32 head[2] = {is_there ? destination(load_constant(job.keys + at)) : 0, 0};
            take_both(link, few, many, has_ended, head, [](u32) { return 0u; });
        }
    }

    // The triangles of a link with these vertices, two a lane, to which its first end is linked.
    template <class Now> __device__ __forceinline__ void take_both(
        const Arcs& link, End& few, End& many, const bool (&is_there)[2], const u32 (&third)[2], Now now)
    {
        bool is_new[2] = {false, false};
        for (u32 j = 0; j < 2; j++)
            if (is_there[j] && third[j] != few.vertex && third[j] != many.vertex)
                is_new[j] = take_one(link, few, many, third[j], now);
        __syncwarp();
        list(job.touched, &job.counters->touched, is_new, third);
    }

    // Whether the third vertex is touched for the first time.
    template <class Now>
    __device__ __forceinline__ bool take_one(const Arcs& link, End& few, End& many, u32 w, Now now)
    {
        const Arcs one = arcs_to(few.own, few.vertex, w, [&] { return now(w); });
        const Arcs other = arcs_to(many.own, many.vertex, w, [&] { return arcs_now(many, w); });
        if (!(other.was | other.is)) return false;
        // Of two links of this triangle that with the smaller end is smaller, and then that with the smaller other end.
        if ((one.was != one.is && w < many.vertex) || (other.was != other.is && w < few.vertex)) return false;
        const i64 was = link.was && one.was && other.was, is = link.is && one.is && other.is;
        if (!job.weighs) {
            few.difference += is - was;
            many.difference += is - was;
            return differ(w, is - was);
        }
        few.difference += other.is * is - other.was * was;
        many.difference += one.is * is - one.was * was;
        return differ(w, link.is * is - link.was * was);
    }

    // The arcs of a link as the rows of one end have it.
    __device__ __forceinline__ u32 arcs_now(const End& end, u32 w) const
    {
        const u32 of_out = leads_to(out, end.rows.out, w);
        if (!job.is_directed) return 2 * of_out;
        return of_out && !job.weighs ? 1 : of_out + leads_to(in, end.rows.in, w);
    }

    // Whether the vertex is touched for the first time.
    __device__ __forceinline__ bool differ(u32 v, i64 difference)
    {
        if (!difference) return false;
        add(job.deltas + v, difference);
        return !atomicExch(job.listed + v, 1u);
    }

    __device__ __forceinline__ void differ(const End& end)
    {
        const i64 sum = warp_sum(end.difference);
        const bool is_new[2] = {place.lane == 0 && differ(end.vertex, sum), false};
        const u32 vertex[2] = {end.vertex, 0};
        __syncwarp();
        list(job.touched, &job.counters->touched, is_new, vertex);
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    // Where there are more than the list has room for, the host reads all, and clears them.
    __device__ __forceinline__ void write_changes()
    {
        const u32 n = load_cached(&job.counters->touched);
        if (n > job.changes_room) return;
        for (u32 k = place.thread; k < n; k += place.n_threads) {
            const u32 v = load_cached(job.touched + k);
            job.changes[k] = make_ulonglong2(v, u64(load_cached(job.deltas + v)));
            store_cached(job.deltas + v, i64(0));
            store_cached(job.listed + v, 0u);
        }
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void tally_changes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ TallyJob job)
{
    Tallying(out, in, job, place_in_grid()).run();
}
