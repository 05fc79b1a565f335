// Reading a packed array from kernels, in place; nothing here writes to it. The twin of gpma/rows.py.
//
// Three ways, none of which needs a sort or a copy:
//
// 1. One edge: ``find_slot``, by a thread.
// 2. Rows of chosen vertices: ``first_slot`` says where a row begins, ``walk_row`` visits it, both by a tile of
//    lanes. For very unequal rows a ``Walk`` (made by reads.py) cuts all edges of the rows into chunks of
//    CHUNK_EDGES; ``walk_chunk`` visits a chunk by a warp, an edge to a lane, whatever the rows' lengths.
// 3. Everything: ``scan_leaves``, by a warp, leaf after leaf in order, two neighbouring slots to a lane.
//
// A row is a run of live slots that may span leaves: after the last live slot of a leaf it goes on in the next.
#pragma once

#include "leaves.cuh"
#include "locate.cuh"

constexpr u64 NO_SLOT = ~0ull;

__device__ __forceinline__ u32 source(u64 key) { return u32(key >> 32); }

__device__ __forceinline__ u32 destination(u64 key) { return u32(key); }

struct Edge {
    u64 key;
    float weight;  // 1 where the array keeps none
};

__device__ __forceinline__ Edge load_edge(const State& state, u64 slot)
{
    return {load_once(state.keys + slot), WEIGHTED ? load_once(state.weights + slot) : 1.0f};
}

// The slot of an edge; NO_SLOT when there is no such edge, or no such row.
__device__ __forceinline__ u64 find_slot(const State& state, u64 key)
{
    const u32 row = source(key);
    const Row own = row < state.n_vertices ? state.rows[row] : Row{0, 0};
    if (own.degree == 0) return NO_SLOT;
    const u32 leaf = last_leaf<1>(state, key, own.leaf, last_leaf_of_row(state, row, own));
    u64 slot = u64(leaf) << LEAF_SHIFT;
    const u64 end = slot + state.counts[leaf];
    for (u32 span = state.counts[leaf]; span > 1;) {
        const u32 half = span >> 1;
        if (state.keys[slot + half] <= key) slot += half;
        span -= half;
    }
    return slot < end && state.keys[slot] == key ? slot : NO_SLOT;
}

// The lanes of this tile: ``WIDTH`` neighbouring ones of a warp, WIDTH being a power of two.
template <u32 WIDTH> __device__ __forceinline__ u32 tile_lanes()
{
    static_assert(WIDTH > 0 && 32 % WIDTH == 0, "a warp is so many tiles");
    return WIDTH == 32 ? ALL_LANES : ((1u << (WIDTH & 31)) - 1) << (lane_number() & ~(WIDTH - 1));
}

// The slot of the first edge of row u, which must not be empty; the lanes of a tile look for it together.
template <u32 WIDTH> __device__ __forceinline__ u64 first_slot(const State& state, u32 u)
{
    constexpr u32 STEP = LEAF_SLOTS / WIDTH;
    static_assert(STEP * WIDTH == LEAF_SLOTS && STEP <= WIDTH, "two rounds of probes see every slot");
    const u64 first_key = u64(u) << 32;
    const u32 lane = lane_number() % WIDTH, tile = tile_lanes<WIDTH>();
    for (u32 leaf = state.rows[u].leaf;; leaf++) {
        const u64 base = u64(leaf) << LEAF_SHIFT;
        const u32 count = state.counts[leaf];
        // How many slots are below the row? First every STEP-th one is looked at, then those behind the last below.
        const bool below = lane * STEP < count && state.keys[base + lane * STEP] < first_key;
        u32 n_below = __popc(__ballot_sync(tile, below));
        if (n_below) {
            const u32 slot = (n_below - 1) * STEP + 1 + lane;
            const bool also = lane + 1 < STEP && slot < count && state.keys[base + slot] < first_key;
            n_below = (n_below - 1) * STEP + 1 + __popc(__ballot_sync(tile, also));
        }
        if (n_below < count) return base + n_below;
    }
}

// Calls visit(i, slot) for edge i = 0, 1, ... of a row that begins at ``slot`` and has ``degree`` of them; the lanes of
// a tile take turns, and not all of them are in a call.
template <u32 WIDTH, class Visit>
__device__ __forceinline__ void walk_row(const State& state, u64 slot, u32 degree, Visit visit)
{
    u32 leaf = u32(slot >> LEAF_SHIFT);
    for (u32 done = 0; done < degree; leaf++) {
        const u64 end = (u64(leaf) << LEAF_SHIFT) + state.counts[leaf];
        const u32 run = min(u32(end - slot), degree - done);
        for (u32 i = lane_number() % WIDTH; i < run; i += WIDTH) visit(done + i, slot + i);
        done += run;
        slot = u64(leaf + 1) << LEAF_SHIFT;
    }
}

// -- rows in chunks --------------------------------------------------------------------------------------------

// The edges of some rows in one numbering: row x, vertices[x], begins with edge offsets[x].
struct Walk {
    const u32* vertices;     // [n_rows], none with an empty row
    const u64* offsets;      // [n_rows + 1]
    const u64* first_slots;  // [n_rows]
    const u32* begins;       // a bit for each edge: a row begins with it
    const u32* chunk_rows;   // the row x of the first edge of each chunk
    const u64* leaf_ends;    // [n_leaves] live keys in this leaf and those before it
    u64 n_edges;
    u32 n_rows;
    u32 n_vertices;
};
static_assert(__is_trivially_copyable(Walk), "the host passes its bytes");
static_assert(CHUNK_EDGES % 32 == 0, "a chunk begins with a word of begins");

// The slot ``ahead`` edges after the one in ``slot``, by the counts of the leaves between.
__device__ __forceinline__ u64 slot_near(const State& state, u64 slot, u32 ahead)
{
    u32 leaf = u32(slot >> LEAF_SHIFT), at = (u32(slot) & (LEAF_SLOTS - 1)) + ahead;
    for (u32 count = state.counts[leaf]; at >= count; count = state.counts[leaf]) {
        at -= count;
        leaf++;
    }
    return (u64(leaf) << LEAF_SHIFT) + at;
}

// The same by the sums of counts, for any distance within a row.
__device__ __forceinline__ u64 slot_far(const State& state, const Walk& walk, u64 slot, u64 ahead)
{
    u32 low = u32(slot >> LEAF_SHIFT);
    const u64 rank = walk.leaf_ends[low] - state.counts[low] + (slot & (LEAF_SLOTS - 1)) + ahead;
    u32 high = u32(min(u64(low) + leaves_behind(state, u32(min(ahead, u64(NO_LEAF)))), u64(state.n_leaves - 1)));
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (walk.leaf_ends[middle] > rank) high = middle;
        else low = middle + 1;
    }
    return (u64(low) << LEAF_SHIFT) + (rank - (walk.leaf_ends[low] - state.counts[low]));
}

// The rows and slots of 32 neighbouring edges of a walk, one to each lane.
struct WalkStep {
    u32 x;      // the row, in the numbering of the walk
    u64 slot;
    bool live;  // whether there is an edge: not behind the last one of the chunk
};

// The step in which rows begin as ``begins`` says and ``n_edges`` lanes have an edge, given row and slot of the edge
// before it. Without one, a row begins with the step.
__device__ __forceinline__ WalkStep next_step(
    const State& state, const Walk& walk, u32 begins, u32 n_edges, u32 row, u64 slot)
{
    const u32 lane = lane_number(), before = begins & (lanes_before() | 1u << lane);
    WalkStep step = {row + __popc(before), slot, lane < n_edges};
    if (!step.live) return step;
    if (before) step.slot = walk.first_slots[step.x];
    step.slot = slot_near(state, step.slot, before ? lane - (31 - __clz(before)) : lane + 1);
    return step;
}

// Visits the edges of a chunk, 32 neighbouring ones at a time, all lanes of the warp together. ``load(slot)`` is
// called for edges alone and returns what must be read at their slots; then use(live, edge, x, loaded) for all lanes,
// with Loaded() where there is no edge. In between the next edges are found: the loads take that long anyway.
template <class Loaded, class Load, class Use> __device__ __forceinline__ void walk_chunk(
    const State& state, const Walk& walk, u64 chunk, Load load, Use use)
{
    const u64 first = chunk * CHUNK_EDGES;
    const u32 n_edges = u32(min(u64(CHUNK_EDGES), walk.n_edges - first));
    const u32* const begins = walk.begins + (first >> 5);
    u32 row = walk.chunk_rows[chunk];
    u64 slot = walk.first_slots[row];
    if (const u64 ahead = first - walk.offsets[row]) slot = slot_far(state, walk, slot, ahead - 1);
    else row--;  // the row begins with the chunk, and is counted again
    WalkStep step = next_step(state, walk, begins[0], n_edges, row, slot);
    for (u32 i = 0; i < n_edges; i += 32) {
        const WalkStep now = step;
        const Loaded loaded = now.live ? load(now.slot) : Loaded();
        row = __shfl_sync(ALL_LANES, now.x, 31);
        slot = __shfl_sync(ALL_LANES, now.slot, 31);
        if (i + 32 < n_edges) step = next_step(state, walk, begins[(i >> 5) + 1], n_edges - i - 32, row, slot);
        use(now.live, first + i + lane_number(), now.x, loaded);
    }
}

// Sums of values by row, over 32 neighbouring edges in row order: calls emit(x, sum) by one lane for each row x
// among them. Lanes without an edge, behind the last one with one, give NO_LEAF and 0.
template <class Value, class Emit> __device__ __forceinline__ void add_by_row(u32 x, Value value, Emit emit)
{
    const u32 lane = lane_number();
    const u32 before = __shfl_up_sync(ALL_LANES, x, 1), after = __shfl_down_sync(ALL_LANES, x, 1);
    const u32 heads = __ballot_sync(ALL_LANES, lane == 0 || x != before);
    const u32 head = 31 - __clz(heads & (lanes_before() | 1u << lane));
    for (u32 offset = 1; offset < 32; offset <<= 1) {
        const Value other = __shfl_up_sync(ALL_LANES, value, offset);
        if (lane >= head + offset) value += other;
    }
    if (x != NO_LEAF && (lane == 31 || x != after)) emit(x, value);
}

// -- whole leaves ----------------------------------------------------------------------------------------------

// Two neighbouring slots of a leaf; EMPTY_KEY and weight 0 where a slot is not live.
struct SlotPair {
    u64 keys[2];
    float weights[2];
};

static_assert(LEAF_SLOTS == 2 * 32, "a warp's pairs are a leaf");

// The pairs of a leaf with ``count`` live slots, one to each lane of a warp; others are not even loaded.
__device__ __forceinline__ SlotPair load_pair(const State& state, u32 leaf, u32 count)
{
    const u32 at = 2 * lane_number();
    SlotPair pair = {{EMPTY_KEY, EMPTY_KEY}, {0.0f, 0.0f}};
    if (at >= count) return pair;
    const ulonglong2 keys = load_once(reinterpret_cast<const ulonglong2*>(keys_of(state, leaf) + at));
    float2 weights = {1.0f, 1.0f};
    if (WEIGHTED) weights = load_once(reinterpret_cast<const float2*>(weights_of(state, leaf) + at));
    pair.keys[0] = keys.x;
    pair.weights[0] = weights.x;
    if (at + 1 < count) {
        pair.keys[1] = keys.y;
        pair.weights[1] = weights.y;
    }
    return pair;
}

constexpr u32 LEAVES_TOGETHER = 2;
static_assert(32 % LEAVES_TOGETHER == 0, "the counts of leaves taken together are in one warp");
static_assert(NO_ROW == NO_LEAF, "a slot that is not live has the row of nothing carried");

// The sum of a row over some leaves, on its way to the next leaf.
template <class Value> struct Carry {
    u32 row;  // NO_LEAF: nothing is carried
    Value sum;
};

// Sums by row over a leaf. ``values`` are those of the two slots of each lane, 0 where a slot is not live. Calls
// emit(row, sum) by one lane for each row that ends in the leaf, and for the carried one if that ended before;
// the last row's sum becomes the carry.
template <class Value, class Emit> __device__ __forceinline__ void sum_leaf(
    const SlotPair& pair, const Value (&values)[2], Carry<Value>& carry, Emit emit)
{
    const u32 lane = lane_number();
    const u32 first = source(pair.keys[0]);  // NO_LEAF where not live: no row has this number
    const u32 second = pair.keys[1] == EMPTY_KEY ? first : source(pair.keys[1]);
    u32 before = __shfl_up_sync(ALL_LANES, second, 1);
    if (lane == 0) before = carry.row;
    const bool joins = first == before, one_row = first == second;
    // Sums over the run of lanes, up to this one, that end in the row of its second slot.
    Value sum = one_row ? values[0] + values[1] : values[1];
    if (lane == 0 && joins && one_row) sum += carry.sum;
    const u32 heads = __ballot_sync(ALL_LANES, !(joins && one_row)) | 1;
    const u32 head = 31 - __clz(heads & (lanes_before() | 1u << lane));
    for (u32 offset = 1; offset < 32; offset <<= 1) {
        const Value other = of_lane_before(sum, offset);
        if (lane >= head + offset) sum += other;
    }
    Value previous = of_lane_before(sum, 1);
    if (lane == 0) previous = carry.sum;
    if (lane == 0 && !joins && before != NO_LEAF) emit(before, previous);
    if (!one_row) emit(first, joins ? previous + values[0] : values[0]);
    const u32 after = __shfl_down_sync(ALL_LANES, first, 1);
    const u32 live = __ballot_sync(ALL_LANES, first != NO_LEAF);
    const u32 last = live ? 31 - __clz(live) : 0;
    if (lane < last && after != second) emit(second, sum);
    carry.row = __shfl_sync(ALL_LANES, second, last);
    carry.sum = of_lane(sum, last);
}

// Sums by row over the leaves ``begin`` to ``end``, at most 32, by a warp: calls value(key, weight) for every edge and
// emit(row, sum), by one lane, once for each row in these leaves (a row may go on outside of them).
template <class Value, class ValueOf, class Emit> __device__ __forceinline__ void scan_leaves(
    const State& state, u32 begin, u32 end, ValueOf value, Emit emit)
{
    const u32 counts = begin + lane_number() < end ? *count_of(state, begin + lane_number()) : 0;
    Carry<Value> carry = {NO_LEAF, Value()};
    for (u32 leaf = begin; leaf < end; leaf += LEAVES_TOGETHER) {
        // Loads of all these leaves are under way before the first sum waits for one.
        SlotPair pairs[LEAVES_TOGETHER];
        Value values[LEAVES_TOGETHER][2];
        for (u32 i = 0; i < LEAVES_TOGETHER; i++)
            pairs[i] = load_pair(state, leaf + i, __shfl_sync(ALL_LANES, counts, (leaf + i - begin) & 31));
        for (u32 i = 0; i < LEAVES_TOGETHER; i++)
            for (u32 j = 0; j < 2; j++)
                values[i][j] = pairs[i].keys[j] == EMPTY_KEY ? Value() : value(pairs[i].keys[j], pairs[i].weights[j]);
        for (u32 i = 0; i < LEAVES_TOGETHER && leaf + i < end; i++) sum_leaf(pairs[i], values[i], carry, emit);
    }
    if (lane_number() == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
}
