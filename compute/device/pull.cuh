// Pulling: vertices look along their rows for a neighbour that was reached before, which a bit says of each.
#pragma once

#include "frontier.cuh"

// How many neighbours an unreached vertex looks at together, and how often, before a warp helps it.
constexpr u32 LOOKS_TOGETHER = 4, LOOKS = 4;

constexpr u32 NOT_SEEN = 0xffffffffu;

// Where a thread is in a row: ``left`` edges from slot ``at`` of a leaf with ``count`` keys on.
struct Cursor {
    u32 leaf, at, count, left;
};

// The rows of 32 neighbouring vertices, which the lanes of a warp go along each by itself.
struct RowsApart {
    const State& rows;

    // Where they begin, one a lane; at least one of the vertices has a row, and whose is not wanted has no edges left.
    __device__ __forceinline__ Cursor first_edges(u32 vertex, const Row& row, bool is_wanted) const
    {
        if (!REMOTE) return first_edges_of(vertex, row, row.degree != 0, is_wanted);
        // By side: rows of one follow each other there.
        const bool is_remote = row.degree && is_remote_leaf(rows, row.leaf), is_here = row.degree && !is_remote;
        Cursor cursor = {0, 0, 0, 0};
        if (__any_sync(ALL_LANES, is_here)) cursor = first_edges_of(vertex, row, is_here, is_wanted);
        if (!__any_sync(ALL_LANES, is_remote)) return cursor;
        const Cursor there = first_edges_of(vertex, row, is_remote, is_wanted);
        return is_remote ? there : cursor;
    }

    // To the leaf in which the slot is, counted from the beginning of an earlier one.
    __device__ __forceinline__ void step_over(Cursor& cursor) const
    {
        while (cursor.left && cursor.at >= cursor.count) {
            cursor.at -= cursor.count;
            cursor.count = load_constant(count_of(rows, ++cursor.leaf));
        }
    }

    // Where the row of a vertex begins that has an edge, and begins in this leaf; by a thread.
    __device__ __forceinline__ Cursor first_edge(u32 vertex, u32 leaf, u32 degree) const
    {
        const u32 count = load_constant(count_of(rows, leaf));
        Cursor cursor = {leaf, keys_below(leaf, count, u64(vertex) << 32), count, degree};
        step_over(cursor);
        return cursor;
    }

private:
    // The same for those that are meant, one at least, which have rows on one side. Only where the first of these begins
    // is looked for, by all lanes: the others follow from the lengths of rows and the counts of leaves.
    __device__ __forceinline__ Cursor first_edges_of(u32 vertex, const Row& own, bool is_meant, bool is_wanted) const
    {
        const Row row = is_meant ? own : Row{0, 0};
        is_wanted &= is_meant;
        const u32 lane = lane_number(), first = __ffs(__ballot_sync(ALL_LANES, is_meant)) - 1;
        const u32 leaf = __shfl_sync(ALL_LANES, row.leaf, first);
        const u32 counts = leaf + lane < all_leaves(rows) ? load_constant(count_of(rows, leaf + lane)) : 0;
        const u32 count = __shfl_sync(ALL_LANES, counts, 0);
        const LeafPart part = load_part(rows, leaf);
        const u64 key = u64(vertex - lane + first) << 32;
        const u32 below =
            vote(2 * lane < count && part.keys.x < key, 2 * lane + 1 < count && part.keys.y < key).count();
        const u32 rank = below + warp_scan(row.degree) - row.degree, ends = warp_scan(counts);
        const u32 ahead = row.degree ? row.leaf - leaf : 0;
        const bool is_near = ahead < 32;
        const u32 keys_before = __shfl_sync(ALL_LANES, ends - counts, ahead & 31);
        const u32 keys_own = __shfl_sync(ALL_LANES, counts, ahead & 31);
        Cursor cursor = {row.leaf, rank - keys_before, keys_own, is_wanted ? row.degree : 0};
        if (!is_near && is_wanted) {
            cursor.count = load_constant(count_of(rows, row.leaf));
            cursor.at = keys_below(row.leaf, cursor.count, u64(vertex) << 32);
        }
        step_over(cursor);
        return cursor;
    }

    __device__ __forceinline__ u32 keys_below(u32 leaf, u32 count, u64 key) const
    {
        const u64* const keys = keys_of(rows, leaf);
        u32 low = 0;
        for (u32 high = count; low < high;) {
            const u32 middle = (low + high) / 2;
            if (load_constant(keys + middle) < key) low = middle + 1;
            else high = middle;
        }
        return low;
    }
};

struct Pull {
    const State& rows;
    const u32* before;

    __device__ __forceinline__ RowsApart apart() const { return {rows}; }

    // For 32 neighbouring vertices, one a lane, at least one of which has a row: a neighbour that was reached, for
    // those that want one, or NOT_SEEN. By all lanes.
    __device__ __forceinline__ u32 seen_neighbour(u32 vertex, const Row& row, bool is_wanted) const
    {
        SidesRead read;
        Cursor cursor = apart().first_edges(vertex, row, is_wanted);
        const u32 wanted = cursor.left;
        u32 found = look(cursor);
        const u32 looked_at = wanted - cursor.left, looks = (looked_at + LOOKS_TOGETHER - 1) / LOOKS_TOGETHER;
        if (wanted) read.add(rows, row.leaf, looked_at, LINES_OF_ROW + looks);
        for (u32 left = __ballot_sync(ALL_LANES, cursor.left && found == NOT_SEEN); left; left &= left - 1) {
            const u32 lane = __ffs(left) - 1;
            const Cursor helped = {__shfl_sync(ALL_LANES, cursor.leaf, lane), __shfl_sync(ALL_LANES, cursor.at, lane),
                0, __shfl_sync(ALL_LANES, cursor.left, lane)};
            const u32 tail = look_together(vertex - lane_number() + lane, helped, read);
            if (lane_number() == lane) found = tail;
        }
        read.tell(rows);
        return found;
    }

private:
    // Bits of before the level, which nobody changes: through the first-level cache.
    __device__ __forceinline__ bool is_seen(u32 vertex) const
    {
        return before[vertex >> 5] >> (vertex & 31) & 1;
    }

    // A neighbour that was reached before the level, by a thread; NOT_SEEN: not among the first ones of the row.
    __device__ __forceinline__ u32 look(Cursor& cursor) const
    {
        for (u32 looks = 0; looks < LOOKS && cursor.left; looks++) {
            const u32 n = min(min(cursor.count - cursor.at, cursor.left), LOOKS_TOGETHER);
            const u64* const keys = keys_of(rows, cursor.leaf) + cursor.at;
            u32 tail[LOOKS_TOGETHER];
            bool seen[LOOKS_TOGETHER];
#pragma unroll
            for (u32 k = 0; k < LOOKS_TOGETHER; k++) tail[k] = destination(load_constant(keys + min(k, n - 1)));
#pragma unroll
            for (u32 k = 0; k < LOOKS_TOGETHER; k++) seen[k] = is_seen(tail[k]);
            cursor.at += n;
            cursor.left -= n;
#pragma unroll
            for (u32 k = 0; k < LOOKS_TOGETHER; k++)
                if (seen[k]) return tail[k];
            apart().step_over(cursor);
        }
        return NOT_SEEN;
    }

    // The same by a warp for one of its lanes, from where that is on.
    __device__ __forceinline__ u32 look_together(u32 vertex, Cursor cursor, SidesRead& read) const
    {
        while (cursor.left) {
            const Edges row = edges_of(load_part(rows, cursor.leaf), cursor.leaf, vertex);
            const u32 slot = 2 * lane_number();
            const bool live[2] = {row.live[0] && slot >= cursor.at, row.live[1] && slot + 1 >= cursor.at};
            const u32 n_edges = vote(live[0], live[1]).count();
            if (lane_number() == 0) read.add(rows, cursor.leaf, n_edges, LINES_OF_LEAF);
            u32 tail = NOT_SEEN;
            for (u32 j = 0; j < 2; j++)
                if (live[j] && is_seen(row.head[j])) tail = row.head[j];
            const u32 found = __ballot_sync(ALL_LANES, tail != NOT_SEEN);
            if (found) return __shfl_sync(ALL_LANES, tail, __ffs(found) - 1);
            cursor.left -= n_edges;
            cursor.at = 0;
            cursor.leaf++;
        }
        return NOT_SEEN;
    }
};
