// The triangles of all vertices from scratch: one cooperative kernel. As on the host (compute/triangles/start.py says whose
// idea it is) each vertex lists its forward links, to vertices of larger (degree, id), and a triangle is found once, at
// the link between its two smallest vertices. Warps take those in turns, and look up the shorter list of the two ends in the
// longer, a vertex a lane.
#include "tally.cuh"

struct TallyingAll : Run<TallyJob> {
    // Of this thread.
    u64 cost[1] = {};

    using Run::Run;

    __device__ __forceinline__ void run()
    {
        for (u32 v = place.warp; v < job.n_vertices; v += place.n_warps) list_forward(v);
        barrier();
        const u64 n = load_cached(&job.counters->entries);
        for (u64 at = place.warp; at < n; at += place.n_warps) count_at(at);
        add_by_block(cost, &job.counters->steps);
        barrier();
        if (place.thread == 0) tell_tally(job, 0);
    }

    // -- forward links ---------------------------------------------------------------------------------------------

    __device__ __forceinline__ void list_forward(u32 v)
    {
        const Spans rows = spans_of(out, in, job.is_directed, v);
        u32 n_links = 0, n_forward[2] = {0, 0};
        walk_links(rows, [&](u32 which, const bool (&is_link)[2], const bool (&is_forward)[2], const Edges&) {
            n_links += vote(is_link[0], is_link[1]).count();
            n_forward[which] += vote(is_forward[0], is_forward[1]).count();
        });
        Forward own = {0, n_forward[0], n_forward[1]};
        if (place.lane == 0) {
            own.begin = add_by_lane(&job.counters->entries, u64(n_forward[0]) + n_forward[1]);
            store_wide(job.forward + v, own);
            store_cached(job.touched + v, n_links);
            cost[0] += 2 * u64(rows.degree());  // each row is read twice
        }
        u64 to = __shfl_sync(ALL_LANES, own.begin, 0);
        if (!(n_forward[0] | n_forward[1])) return;
        walk_links(rows, [&](u32 which, const bool (&)[2], const bool (&is_forward)[2], const Edges& row) {
            const Votes votes = vote(is_forward[0], is_forward[1]);
            const u32 before = __popc(votes.lanes[0] & lanes_before()) + __popc(votes.lanes[1] & lanes_before());
            for (u32 j = 0; j < 2; j++) {
                if (!is_forward[j]) continue;
                const u64 at = to + before + (j && is_forward[0]);  // in the order of the row
                store_cached(job.heads + at, row.head[j]);
                store_cached(job.tails + at, v);
                if (!job.head_arcs) continue;
                const bool is_both = which == 0 && leads_to(in, rows.in, row.head[j]);
                store_cached(job.head_arcs + at, u8(1 + is_both));
            }
            __syncwarp();
            to += votes.count();
        });
    }

    // Calls visit(which, is_link, is_forward, edges) for the out-row, 0, and for the in-row, 1, whose links are those
    // that are not in the out-row.
    template <class Visit> __device__ __forceinline__ void walk_links(const Spans& rows, Visit visit)
    {
        const u32 degree = rows.degree();
        for (u32 which = 0; which <= job.is_directed; which++) {
            const State state = which ? in : out;  // a copy: what is used of it is in registers
            const Row own = which ? rows.in.row() : rows.out.row();
            walk_row_by_warp(state, rows.out.vertex, own, [&](const Edges& row) {
                bool is_link[2], is_forward[2];
                for (u32 j = 0; j < 2; j++) {
                    const u32 head = row.head[j], v = rows.out.vertex;
                    is_link[j] = row.live[j] && head != v && !(which && leads_to(out, rows.out, head));
                    const u32 its = is_link[j] ? degree_of(out, in, job.is_directed, head) : 0;
                    is_forward[j] = is_link[j] && (its > degree || (its == degree && head > v));
                }
                __syncwarp();
                visit(which, is_link, is_forward, row);
            });
        }
    }

    // -- triangles -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ Forward forward_of(u32 v) const { return load_wide(job.forward + v); }

    __device__ __forceinline__ u32 arcs_at(u64 at) const { return job.head_arcs ? load_cached(job.head_arcs + at) : 2; }

    // The triangles of a forward link that lead on from both of its ends.
    __device__ __forceinline__ void count_at(u64 link)
    {
        const u32 u = load_cached(job.tails + link), v = load_cached(job.heads + link);
        const Forward from_u = forward_of(u), from_v = forward_of(v);
        const u32 n_u = from_u.of_out + from_u.of_in, n_v = from_v.of_out + from_v.of_in;
        if (n_u < 2) return;
        if (place.lane == 0) cost[0] += n_v;  // as the host counts them
        const bool is_u = n_u < n_v;
        const Forward few = is_u ? from_u : from_v, many = is_u ? from_v : from_u;
        const u64 arcs = job.weighs ? arcs_at(link) : 1;
        i64 to_u = 0, to_v = 0;
        for (u32 k = place.lane; k < min(n_u, n_v); k += 32) {
            const u64 at = few.begin + k, found = find(many, load_cached(job.heads + at));
            if (found == NO_SLOT) continue;
            add(job.deltas + load_cached(job.heads + at), i64(arcs));
            const u64 uw = is_u ? at : found, vw = is_u ? found : at;
            to_u += job.weighs ? arcs_at(vw) : 1;
            to_v += job.weighs ? arcs_at(uw) : 1;
        }
        __syncwarp();
        to_u = warp_sum(to_u);
        to_v = warp_sum(to_v);
        if (place.lane == 0 && to_u) {
            add(job.deltas + u, to_u);
            add(job.deltas + v, to_v);
        }
        __syncwarp();
    }

    // Where a vertex is in a forward list; NO_SLOT: nowhere.
    __device__ __forceinline__ u64 find(const Forward& list, u32 w) const
    {
        const u64 found = find_in(list.begin, list.of_out, w);
        return found != NO_SLOT ? found : find_in(list.begin + list.of_out, list.of_in, w);
    }

    __device__ __forceinline__ u64 find_in(u64 begin, u32 n, u32 w) const
    {
        const u32* const heads = job.heads + begin;
        u32 low = 0;
        for (u32 high = n; low < high;) {
            const u32 middle = low + (high - low) / 2;
            if (load_cached(heads + middle) < w) low = middle + 1;
            else high = middle;
        }
        return low < n && load_cached(heads + low) == w ? begin + low : NO_SLOT;
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void tally_all(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ TallyJob job)
{
    TallyingAll(out, in, job, place_in_grid()).run();
}
