// Walking several leaves of a frontier's rows at a time. As walk_rows (gpma/device/frontier.cuh), but each lane of a warp
// holds a row, or a part of one, and of these as many leaves as are taken TOGETHER are under way at once: where all that a
// visit does is wait for memory, that many visits wait together. And where a warp holds many rows, those of few edges are
// gone along by a lane each, side by side.
#pragma once

#include "pull.cuh"

// Rows of up to so many edges, of warps that hold more than so many rows.
#ifndef EDGES_APART
#define EDGES_APART 16
#endif
#ifndef ROWS_TOGETHER
#define ROWS_TOGETHER 2
#endif

// The rows that a warp holds, one a lane, and where it is in them.
struct RowsTogether {
    const State& state;
    const Frontier& frontier;
    const Counts& counts;
    const Place& place;
    Entry own;           // of this lane
    u32 left = 0;        // edges of its short row
    u32 chunk;           // short rows that a warp takes at a time
    u64 row;             // the first of the next ones
    bool in_short = true;
    u32 long_row = 0;    // long rows: the number of the first that is held
    u32 at, held, end;   // their leaves are left from number ``at`` on, those before ``held`` by rows that are held
    Cursor alone = {0, 0, 0, 0};  // in the row that the lane goes along by itself
    RowsRead read;
    SidesRead read_alone;

    __device__ __forceinline__ RowsTogether(
        const State& state, const Frontier& frontier, const Counts& counts, const Place& place)
        : state(state), frontier(frontier), counts(counts), place(place), own{0, 0, 0, 0}
    {
        // Few rows go to many warps, one each.
        chunk = min((n_short(counts) + place.n_warps - 1) / place.n_warps, 32);
        row = u64(place.warp) * chunk;
        // Leaves of long rows from the other end, as there.
        const u32 n_leaves = u32(counts.long_rows), share = (n_leaves + place.n_warps - 1) / place.n_warps;
        at = u32(min(u64(place.n_warps - 1 - place.warp) * share, u64(n_leaves)));
        end = u32(min(u64(at) + share, u64(n_leaves)));
        held = at;
    }

    // Has rows at hand that are not at an end; whether there are any. ``is_new``: they are others than before.
    __device__ __forceinline__ bool go_on(bool& is_new)
    {
        is_new = false;
        if (in_short) {
            if (__any_sync(ALL_LANES, left | alone.left)) return true;
            if (row < n_short(counts)) {
                const u64 mine = row + place.lane;
                own = {0, 0, 0, 0};
                if (place.lane < chunk && mine < n_short(counts)) own = load_wide(frontier.short_rows + mine);
                left = own.size;
                row += u64(chunk) * place.n_warps;
                if (chunk > ROWS_TOGETHER && left && left <= EDGES_APART) {
                    alone = RowsApart{state}.first_edge(own.vertex, own.leaf, left);
                    read_alone.add(state, own.leaf, left, LINES_OF_ROW + LINES_OF_LEAF);
                    left = 0;
                }
                return is_new = true;
            }
            in_short = false;
            if (at < end) long_row = long_row_at(frontier, n_long(counts), at);
        } else if (at == held) long_row += 32;
        if (at >= end) return false;
        if (at < held) return true;
        const u32 mine = long_row + place.lane;
        own = {0, 0, 0, 0xffffffffu};
        if (mine < n_long(counts)) own = load_wide(frontier.long_rows + mine);
        held = min(end, __reduce_max_sync(ALL_LANES, mine < n_long(counts) ? own.number + own.size : 0));
        return is_new = true;
    }

    // The next leaves, each of the row of a lane; fewer where no more are held: the others have no edges. Or of each lane
    // the next edges of its own.
    template <u32 TOGETHER> __device__ __forceinline__ void take(u32 (&of)[TOGETHER], Edges (&edges)[TOGETHER])
    {
        if (__any_sync(ALL_LANES, alone.left)) return take_alone(of, edges);
        LeafPart part[TOGETHER];
        bool is_there[TOGETHER];
        u32 pending = in_short ? __ballot_sync(ALL_LANES, left) : 0;
#pragma unroll
        for (u32 k = 0; k < TOGETHER; k++) {
            u32 ahead = 0;
            if (in_short) {
                is_there[k] = pending;
                of[k] = pending ? __ffs(pending) - 1 : 0;
                pending &= pending - 1;
            } else {
                is_there[k] = at < held;
                of[k] = is_there[k] ? __popc(__ballot_sync(ALL_LANES, own.number <= at)) - 1 : 0;
                ahead = at - __shfl_sync(ALL_LANES, own.number, of[k]);
                at += is_there[k];
            }
            edges[k].leaf = __shfl_sync(ALL_LANES, own.leaf, of[k]) + ahead;
            part[k] = {{EMPTY_KEY, EMPTY_KEY}, 0};
            if (is_there[k]) part[k] = load_part(state, edges[k].leaf);
        }
#pragma unroll
        for (u32 k = 0; k < TOGETHER; k++) {
            const u32 vertex = __shfl_sync(ALL_LANES, own.vertex, of[k]);
            edges[k] = edges_of(part[k], edges[k].leaf, vertex);
            if (!is_there[k]) continue;
            const u32 n_edges = in_short || REMOTE ? vote(edges[k].live[0], edges[k].live[1]).count() : 0;
            if (REMOTE) count_read(of[k], vertex, edges[k].leaf, n_edges);
            if (!in_short || place.lane != of[k]) continue;
            left -= n_edges;
            own.leaf++;
        }
    }

    __device__ __forceinline__ void tell() const
    {
        read.tell(state);
        read_alone.tell(state);
    }

private:
    template <u32 TOGETHER> __device__ __forceinline__ void take_alone(u32 (&of)[TOGETHER], Edges (&edges)[TOGETHER])
    {
#pragma unroll
        for (u32 k = 0; k < TOGETHER; k++) {
            const u32 n = min(min(alone.count - alone.at, alone.left), 2);
            const u64* const keys = keys_of(state, alone.leaf) + alone.at;
            of[k] = place.lane;
            edges[k].leaf = alone.leaf;
            for (u32 j = 0; j < 2; j++) {
                edges[k].live[j] = j < n;
                edges[k].head[j] = j < n ? destination(load_constant(keys + j)) : 0;
            }
            alone.at += n;
            alone.left -= n;
            RowsApart{state}.step_over(alone);
        }
    }

    // What is read of a lane's row in a leaf.
    __device__ __forceinline__ void count_read(u32 of, u32 vertex, u32 leaf, u32 n_edges)
    {
        const bool begins = place.lane == of && (in_short ? left == own.size : leaf == own.leaf);
        if (__any_sync(ALL_LANES, begins)) read.begin(state, vertex, leaf);
        else read.place = read_place(state, vertex, leaf);
        read.add(n_edges);
    }
};

// Walks the rows of a frontier: each lane calls begin(is_there, vertex) for the row that it holds, and all lanes together
// visit(begun, of, edges): edges of a row in a leaf each, and the lane whose row that is, which is this one's or all have
// the same. Then comes after(is_more), as long as it returns true: as in walk_rows.
template <u32 TOGETHER, class Begin, class Visit, class After> __device__ __forceinline__ void walk_rows_together(
    const State& state, const Frontier& frontier, const Counts& counts, const Place& place, Begin begin, Visit visit,
    After after)
{
    RowsTogether rows(state, frontier, counts, place);
    bool is_new;
    auto begun = begin(false, 0);
    for (;;) {
        const bool is_more = rows.go_on(is_new);
#pragma unroll 1
        while (after(is_more)) {}
        if (!is_more) break;
        if (is_new) begun = begin(rows.in_short ? rows.own.size != 0 : rows.own.number != 0xffffffffu, rows.own.vertex);
        u32 of[TOGETHER];
        Edges edges[TOGETHER];
        rows.take(of, edges);
        visit(begun, of, edges);
    }
    rows.tell();
}
