// A frontier: vertices whose rows are walked next, divided among the warps of a grid.
//
// An edge of a row has no address of its own in an array with gaps, so leaves are divided, not edges. There are two
// queues. A row of fewer than LONG_ROW edges is an entry of the first, and a warp takes it whole. A longer one is an
// entry of the second, which numbers the leaves of its rows in the order of the entries: one 64-bit addition gives an
// entry its place and its numbers. Warps take equal ranges of them, so that a hub is nobody's burden.
//
// All lanes of a warp read a leaf together, two slots a lane; slots of other rows are passed over. They also add to
// frontiers together: places are claimed once for the warp, by ballot.
#pragma once

#include "reading.cuh"
#include "rows.cuh"

static_assert(LEAF_SLOTS == 2 * 32, "a warp reads a leaf, two slots a lane");

struct __align__(16) Entry {
    u32 vertex;
    u32 leaf;    // where the row begins
    u32 size;    // edges of a short row, leaves of a long one
    u32 number;  // of a long row's first leaf
};
static_assert(sizeof(Entry) == 16 && __is_trivially_copyable(Entry), "copied as 16 bytes");

// What a frontier holds. Counts of one round are read while those of the next are made, and set to zero in the one
// after that: they rotate by three.
struct __align__(16) Counts {
    u64 short_rows;
    u64 long_rows;  // rows << 32 | leaves
    u64 edges;      // of all these rows
    u64 lost;       // for users of the frontier to count what came with them
};
static_assert(sizeof(Counts) == 32, "two accesses of 16 bytes");

struct Frontier {
    Entry* short_rows;  // [room]; entries beyond are counted, and not kept
    Entry* long_rows;   // room for every long row there is
    Counts* counts;
    u32 room;
};

// Instead of how many vertices a run wrote: it gave up.
constexpr u32 NOT_MENDED = 0xffffffffu;

// A thread's place in the grid, or in the part of it that has one job.
struct Place {
    u32 thread, n_threads, warp, n_warps, lane, block, n_blocks;

    __device__ __forceinline__ bool is_in_first_block() const { return block == 0; }
};

__device__ __forceinline__ Place place_among(u32 block, u32 n_blocks)
{
    const u32 thread = block * blockDim.x + threadIdx.x, n_threads = n_blocks * blockDim.x;
    return {thread, n_threads, thread >> 5, n_threads >> 5, lane_number(), block, n_blocks};
}

// The same with warps dealt out to blocks one by one: where there is work for few of them, no multiprocessor has more of
// it than others.
__device__ __forceinline__ Place dealt(const Place& place)
{
    const u32 warp = (threadIdx.x >> 5) * place.n_blocks + place.block;
    return {32 * warp + place.lane, place.n_threads, warp, place.n_warps, place.lane, place.block, place.n_blocks};
}

__device__ __forceinline__ Place place_in_grid() { return place_among(blockIdx.x, gridDim.x); }

// All threads of the place's grid, or of its part of one, wait here.
__device__ __forceinline__ void barrier_at(const Place& place, u32* arrived)
{
    if (place.n_blocks == 1) return __syncthreads();
    part_barrier(arrived, place.is_in_first_block(), place.n_blocks);
}

// Several jobs for one launch, whose blocks are dealt out to them, so many in a row to each.
template <class Job> struct Jobs {
    const Job* jobs;  // in the host's pinned memory
    u32 blocks;       // of each
    u32 unused;

    // Copies this block's job to where all of its threads see it; the thread's place in the part that has this job.
    __device__ __forceinline__ Place take(Job& job) const
    {
        static_assert(sizeof(Job) % 4 == 0 && __is_trivially_copyable(Job), "copied by words");
        const u32* const from = reinterpret_cast<const u32*>(jobs + blockIdx.x / blocks);
        u32* const to = reinterpret_cast<u32*>(&job);
        for (u32 i = threadIdx.x; i < sizeof(Job) / 4; i += blockDim.x) to[i] = load_constant(from + i);
        __syncthreads();
        return place_among(blockIdx.x % blocks, blocks);
    }
};

// Calls visit(range) for so many ranges, of which the last ones may be remote; by whole warps.
template <class Visit> __device__ __forceinline__ void for_ranges(const Place& place, u32 n_ranges, Visit visit)
{
    if (place.warp >= n_ranges) return;
    // Half of the warps begin at the other end, where leaves are remote: so that both sides are read at once.
    const u32 last = n_ranges - 1 - (n_ranges - 1 - place.warp) % place.n_warps;
    for (u32 k = place.warp; k < n_ranges; k += place.n_warps)
        visit(REMOTE && place.warp & 1 ? last - (k - place.warp) : k);
}

// Calls visit(begin, end) for ranges of RANGE leaves, the last one shorter, of both sides; by whole warps.
template <u32 RANGE, class Visit>
__device__ __forceinline__ void for_leaves(const State& state, const Place& place, Visit visit)
{
    const u32 n_leaves = all_leaves(state);
    for_ranges(place, (n_leaves + RANGE - 1) / RANGE,
        [&](u32 range) { visit(range * RANGE, min((range + 1) * RANGE, n_leaves)); });
}

// By all threads of a block, which agree about what they ask for. Two of them do: where every warp does, those of the
// whole grid wait for each other at one line of the cache, for longer than the line takes to come.
__device__ __forceinline__ Counts load_counts(const Counts* counts)
{
    __shared__ Counts found;
    __syncthreads();  // all have what was asked for last
    if (threadIdx.x < 2)
        reinterpret_cast<ulonglong2*>(&found)[threadIdx.x]
            = load_wide(reinterpret_cast<const ulonglong2*>(counts) + threadIdx.x);
    __syncthreads();
    return found;
}

// Likewise for two.
__device__ __forceinline__ void load_counts(const Counts* first, const Counts* second, Counts (&counts)[2])
{
    __shared__ Counts found[2];
    __syncthreads();
    if (threadIdx.x < 4)
        reinterpret_cast<ulonglong2*>(found)[threadIdx.x]
            = load_wide(reinterpret_cast<const ulonglong2*>(threadIdx.x < 2 ? first : second) + (threadIdx.x & 1));
    __syncthreads();
    counts[0] = found[0];
    counts[1] = found[1];
}

// Likewise.
template <class T> __device__ __forceinline__ T load_for_block(const T* from)
{
    __shared__ T found;
    __syncthreads();
    if (threadIdx.x == 0) found = load_cached(from);
    __syncthreads();
    return found;
}

__device__ __forceinline__ void clear_counts(Counts* counts)
{
    store_wide(reinterpret_cast<ulonglong2*>(counts), make_ulonglong2(0, 0));
    store_wide(reinterpret_cast<ulonglong2*>(counts) + 1, make_ulonglong2(0, 0));
}

__device__ __forceinline__ bool is_empty(const Counts& counts) { return !(counts.short_rows | counts.long_rows); }

__device__ __forceinline__ u32 n_short(const Counts& counts) { return u32(counts.short_rows); }

__device__ __forceinline__ u32 n_long(const Counts& counts) { return u32(counts.long_rows >> 32); }

// -- adding ------------------------------------------------------------------------------------------------------

// Which of the vertices of a warp, two a lane, are meant; places behind each other for those that are.
struct Votes {
    u32 lanes[2];

    __device__ __forceinline__ u32 count() const { return __popc(lanes[0]) + __popc(lanes[1]); }

    __device__ __forceinline__ u32 before(u32 which) const
    {
        return which ? __popc(lanes[0]) + __popc(lanes[1] & lanes_before()) : __popc(lanes[0] & lanes_before());
    }
};

__device__ __forceinline__ Votes vote(bool first, bool second)
{
    return {{__ballot_sync(ALL_LANES, first), __ballot_sync(ALL_LANES, second)}};
}

// How many edges the rows of a warp's vertices have, two a lane; all lanes take part. A hub of more than 2^25 counts as one
// of so many, so that the sum of any has 32 bits: exact ones by 64 take a refresh some 2% longer (BFS, SSSP on an H200).
__device__ __forceinline__ u32 edges_of_rows(u32 first, u32 second)
{
    constexpr u32 MOST = 1u << 25;
    return __reduce_add_sync(ALL_LANES, min(first, MOST) + min(second, MOST));
}

// Adds to a counter of this lane's own, unless there is nothing to add: one instruction for all lanes' counters.
__device__ __forceinline__ u64 add_by_lane(u64* counter, u64 amount) { return amount ? atomicAdd(counter, amount) : 0; }

__device__ __forceinline__ bool is_short(const Row& row) { return row.degree && row.degree < LONG_ROW; }

__device__ __forceinline__ void put_short(const Frontier& frontier, u32 at, u32 vertex, const Row& row)
{
    // What stands as the leaf of an empty row means nothing.
    const u32 leaf = row.degree ? row.leaf : 0;
    if (at < frontier.room) store_wide(frontier.short_rows + at, Entry{vertex, leaf, row.degree, 0});
}

// From the first to the last, of a row that is not empty.
__device__ __forceinline__ u32 leaves_of_row(const State& state, u32 vertex, const Row& row)
{
    const bool is_remote = is_remote_leaf(state, row.leaf);
    const u32 last = is_remote ? last_leaf_of_remote_row(state, vertex, row) : last_leaf_of_row(state, vertex, row);
    return last - row.leaf + 1;
}

__device__ __forceinline__ void put_long(const State& state, const Frontier& frontier, u32 vertex, const Row& row)
{
    const u32 leaves = leaves_of_row(state, vertex, row);
    const u64 base = atomicAdd(&frontier.counts->long_rows, 1ull << 32 | leaves);
    store_wide(frontier.long_rows + u32(base >> 32), Entry{vertex, row.leaf, leaves, u32(base)});
}

// Adds the chosen ones of the warp's vertices, two a lane. All lanes take part. A row without edges is left out, or,
// WITH_EMPTY, visited with none.
template <bool WITH_EMPTY> __device__ __forceinline__ void put(
    const State& state, const Frontier& frontier, const bool (&chosen)[2], const u32 (&vertex)[2], const Row (&row)[2])
{
    const auto goes_short = [](const Row& row) { return row.degree < LONG_ROW && (WITH_EMPTY || row.degree); };
    const Votes shorts = vote(chosen[0] && goes_short(row[0]), chosen[1] && goes_short(row[1]));
    const u32 edges = edges_of_rows(chosen[0] ? row[0].degree : 0, chosen[1] ? row[1].degree : 0);
    u64* const counter = lane_number() == 0 ? &frontier.counts->short_rows : &frontier.counts->edges;
    u64 base = 0;
    if (lane_number() < 2) base = add_by_lane(counter, lane_number() == 0 ? shorts.count() : edges);
    const u32 at = u32(__shfl_sync(ALL_LANES, base, 0));
    for (u32 j = 0; j < 2; j++) {
        if (!chosen[j]) continue;
        if (goes_short(row[j])) put_short(frontier, at + shorts.before(j), vertex[j], row[j]);
        else if (row[j].degree) put_long(state, frontier, vertex[j], row[j]);
    }
    __syncwarp();
}

// -- walking -----------------------------------------------------------------------------------------------------

// The slots of a lane in a leaf, as they lie there.
struct LeafPart {
    ulonglong2 keys;
    u32 count;
};

__device__ __forceinline__ LeafPart load_part(const State& state, u32 leaf)
{
    const u32 count = load_constant(count_of(state, leaf));
    if (REMOTE && 2 * lane_number() >= slots_of(state, leaf)) return {{EMPTY_KEY, EMPTY_KEY}, count};
    const ulonglong2* pairs = reinterpret_cast<const ulonglong2*>(keys_of(state, leaf));
    return {load_constant(pairs + lane_number()), count};
}

// What of them is edges of one row.
struct Edges {
    u32 head[2];
    bool live[2];
    u32 leaf;
};

__device__ __forceinline__ Edges edges_of(const LeafPart& part, u32 leaf, u32 row)
{
    const u32 at = 2 * lane_number();
    return {{destination(part.keys.x), destination(part.keys.y)},
        {at < part.count && source(part.keys.x) == row, at + 1 < part.count && source(part.keys.y) == row}, leaf};
}

// 1 where the array keeps none.
__device__ __forceinline__ float weight_of(const State& state, const Edges& edges, u32 which)
{
    if (!WEIGHTED) return 1.0f;
    return load_constant(weights_of(state, edges.leaf) + 2 * lane_number() + which);
}

// The last of ``n`` long rows whose leaves begin at number ``at`` or before; by all lanes.
__device__ __forceinline__ u32 long_row_at(const Frontier& frontier, u32 n, u32 at)
{
    u32 low = 0, high = n;
    while (high - low > 1) {
        const u32 step = (high - low + 31) >> 5;
        const u64 probed = low + u64(lane_number()) * step;
        const bool begins = probed < high && load_cached(&frontier.long_rows[probed].number) <= at;
        low += (__popc(__ballot_sync(ALL_LANES, begins)) - 1) * step;
        high = min(low + step, high);
    }
    return low;
}

// The rows of a frontier that fall to a warp: first its short rows, then its range of the leaves of long ones. All
// lanes go through them together. One loop for both, so that what is done with edges is compiled once.
struct RowCursor {
    const State& state;
    const Frontier& frontier;
    const Counts& counts;
    const Place& place;
    Entry entry;
    bool in_short;
    u32 row;   // the number of the entry
    u32 leaf;  // the one that is next
    u32 left;  // edges of a short row, leaves of a long one
    LeafPart part;
    // Of short rows: the next entry and its first leaf, and the entry behind it, are under way while a row is visited.
    Entry next, later;
    LeafPart ahead;
    // Of long rows: the leaves that are left to this warp begin at number ``at``.
    u32 at, end;
    RowsRead read;

    __device__ __forceinline__ RowCursor(
        const State& state, const Frontier& frontier, const Counts& counts, const Place& place)
        : state(state), frontier(frontier), counts(counts), place(place)
    {
    }

    __device__ __forceinline__ bool first()
    {
        row = place.warp;
        in_short = row < n_short(counts);
        if (!in_short) return first_long();
        next = entry = load_wide(frontier.short_rows + row);
        part = load_part(state, entry.leaf);
        if (another_short()) next = load_wide(frontier.short_rows + row + place.n_warps);
        begin_short();
        return true;
    }

    __device__ __forceinline__ bool next_row()
    {
        if (!in_short) {
            row++;
            return begin_long();
        }
        if (!another_short()) return first_long();
        row += place.n_warps;
        entry = next;
        next = later;
        part = ahead;
        begin_short();
        return true;
    }

    // The edges of the row in its next leaf.
    __device__ __forceinline__ Edges take()
    {
        const Edges edges = edges_of(part, leaf, entry.vertex);
        const u32 n_edges = in_short || REMOTE ? vote(edges.live[0], edges.live[1]).count() : 0;
        read.add(n_edges);
        left -= in_short ? n_edges : 1;
        leaf++;
        if (left) part = load_part(state, leaf);
        return edges;
    }

    __device__ __forceinline__ bool another_short() const { return n_short(counts) - row > place.n_warps; }

    __device__ __forceinline__ void begin_short()
    {
        leaf = entry.leaf;
        left = entry.size;
        read.begin(state, entry.vertex, leaf);
        later = next;
        if (!another_short()) return;
        ahead = load_part(state, next.leaf);
        const u64 beyond = u64(row) + 2 * u64(place.n_warps);
        if (beyond < n_short(counts)) later = load_wide(frontier.short_rows + beyond);
    }

    __device__ __forceinline__ bool first_long()
    {
        in_short = false;
        const u32 n_leaves = u32(counts.long_rows), share = (n_leaves + place.n_warps - 1) / place.n_warps;
        // From the other end: where there is little, who has a short row has no long one.
        at = u32(min(u64(place.n_warps - 1 - place.warp) * share, u64(n_leaves)));
        end = u32(min(u64(at) + share, u64(n_leaves)));
        if (at < end) row = long_row_at(frontier, n_long(counts), at);
        return begin_long();
    }

    __device__ __forceinline__ bool begin_long()
    {
        if (at >= end) return false;
        entry = load_wide(frontier.long_rows + row);
        const u32 stop = min(end, entry.number + entry.size);
        leaf = entry.leaf + (at - entry.number);
        left = stop - at;
        at = stop;
        read.begin(state, entry.vertex, leaf);
        part = load_part(state, leaf);
        return true;
    }
};

// Walks the rows of a frontier: calls begin(vertex) for each row or part of a long one, then visit(begun, vertex,
// edges, is_last) leaf by leaf until it returns true. All lanes of a warp are in a call. ``is_last``: the leaf is the
// last one of a short row. The queue of short rows must not have run over. After each row comes after(is_more), as long
// as it returns true: it has done something that visits put off, of which nothing may wait when there are no more.
template <class Begin, class Visit, class After> __device__ __forceinline__ void walk_rows(const State& state,
    const Frontier& frontier, const Counts& counts, const Place& place, Begin begin, Visit visit, After after)
{
    RowCursor cursor(state, frontier, counts, place);
    for (bool is_there = cursor.first(); is_there;) {
        const u32 vertex = cursor.entry.vertex;
        const auto begun = begin(vertex);
        for (bool goes_on = true; goes_on;) {
            const Edges edges = cursor.take();
            goes_on = !visit(begun, vertex, edges, cursor.in_short && !cursor.left) && cursor.left;
        }
        is_there = cursor.next_row();
#pragma unroll 1
        while (after(is_there)) {}
    }
    cursor.read.tell(state);
}

template <class Begin, class Visit> __device__ __forceinline__ void walk_rows(
    const State& state, const Frontier& frontier, const Counts& counts, const Place& place, Begin begin, Visit visit)
{
    walk_rows(state, frontier, counts, place, begin, visit, [](bool) { return false; });
}

// As walk_rows, leaf by leaf to the end of each row, where a visit needs more of memory: load(vertex, edges) asks for it
// before the leaf before is visited, by use(loaded, vertex, edges). After each visit comes after(is_more), as long as it
// returns true: it has done something that visits put off, of which nothing may wait when there are no more.
template <class Load, class Use, class After> __device__ __forceinline__ void walk_rows_ahead(const State& state,
    const Frontier& frontier, const Counts& counts, const Place& place, Load load, Use use, After after)
{
    RowCursor cursor(state, frontier, counts, place);
    if (!cursor.first()) return;
    u32 vertex = cursor.entry.vertex;
    Edges edges = cursor.take();
    auto loaded = load(vertex, edges);
    for (;;) {
        const bool goes_on = cursor.left || cursor.next_row();
        const u32 next_vertex = cursor.entry.vertex;
        Edges next = edges;
        auto ahead = loaded;
        if (goes_on) {
            next = cursor.take();
            ahead = load(next_vertex, next);
        }
        use(loaded, vertex, edges);
#pragma unroll 1
        while (after(goes_on)) {}
        if (!goes_on) break;
        vertex = next_vertex;
        edges = next;
        loaded = ahead;
    }
    cursor.read.tell(state);
}

// As walk_rows_ahead, where something else comes first, by steps: front(), as long as is_front(), each followed by after,
// too. Visits are use(loaded, vertex, edges, is_last): the last ones of a row, or of the warp's part of a long one.
template <class IsFront, class Front, class Load, class Use, class After>
__device__ __forceinline__ void walk_rows_behind(const State& state, const Frontier& frontier, const Counts& counts,
    const Place& place, IsFront is_front, Front front, Load load, Use use, After after)
{
    RowCursor cursor(state, frontier, counts, place);
    bool is_there = cursor.first(), is_loaded = false, goes_on = false;
    u32 vertex = 0;
    Edges edges = {{0, 0}, {false, false}, 0};
    decltype(load(vertex, edges)) loaded;
    for (;;) {
        const bool in_front = is_front();
        const u32 next_vertex = cursor.entry.vertex;
        Edges next = edges;
        auto ahead = loaded;
        if (in_front) front();
        else {
            if (is_there) {
                next = cursor.take();
                ahead = load(next_vertex, next);
            }
            if (is_loaded) use(loaded, vertex, edges, !goes_on);
        }
        const bool is_more = is_there || (in_front && is_front());
#pragma unroll 1
        while (after(is_more)) {}
        if (!is_more) break;
        if (in_front) continue;
        vertex = next_vertex;
        edges = next;
        loaded = ahead;
        is_loaded = true;
        goes_on = cursor.left;
        is_there = goes_on || cursor.next_row();
    }
    cursor.read.tell(state);
}
