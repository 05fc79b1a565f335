// Redistribution: for each leaf out of its bounds the smallest window around it whose density is within its own.
//
// GPMA+ (Sha, Li, He, Tan: Accelerating Dynamic Graph Analytics on GPUs, VLDB 2017, section 5) climbs level by
// level over all leaves at once; here a warp climbs from each leaf on its own, and marks keep the widest windows.
// Most windows are a few leaves, which a warp redistributes in its part of the shared memory; wider ones a block, in
// all of it. Still wider ones are redistributed in place by the whole grid, through all blocks' shared memory: nothing
// that happens after the first write needs memory.
// All functions here are called by all threads of a cooperative launch.
#pragma once

#include "merge.cuh"

constexpr u32 BLOCK_LEAVES = 1u << BLOCK_HEIGHT;
constexpr u32 BLOCK_SLOTS = BLOCK_LEAVES * LEAF_SLOTS;
constexpr u32 WARP_LEAVES = 1u << WARP_HEIGHT;
constexpr u32 STAGE_WARPS = BLOCK_THREADS / 32;
static_assert(STAGE_WARPS * WARP_LEAVES == BLOCK_LEAVES, "a block's warps share its stage");

// Shared memory for redistribution, a block's, or the part of it that a warp has to itself.
struct Stage {
    u64* keys;       // [slots]
    u64* prefix;     // [leaves + 1] packed tallies, see Tally
    u64* values;     // [4] what one thread tells the others, a block's only
    float* weights;  // [slots], weighted arrays only
};
constexpr u32 STAGE_PREFIXES = STAGE_WARPS * (WARP_LEAVES + 1);
static_assert(STAGE_PREFIXES >= BLOCK_LEAVES + 1, "a block's prefixes, too, fit where its warps have theirs");
constexpr u32 STAGE_BYTES = BLOCK_SLOTS * (WEIGHTED ? 12 : 8) + (STAGE_PREFIXES + 4) * 8;
constexpr u32 MERGE_BYTES = BLOCK_THREADS / TILE * sizeof(TileSpace);  // of a block that merges
static_assert(SHARED_BYTES == (STAGE_BYTES > MERGE_BYTES ? STAGE_BYTES : MERGE_BYTES), "as constants.py has it");

__device__ __forceinline__ Stage stage_in(u64* shared_memory)
{
    Stage stage;
    stage.keys = shared_memory;
    stage.prefix = stage.keys + BLOCK_SLOTS;
    stage.values = stage.prefix + STAGE_PREFIXES;
    stage.weights = reinterpret_cast<float*>(stage.values + 4);
    return stage;
}

// Who redistributes a window together: the warps of a block, or one warp.
template <bool BLOCK> struct Team {
    u32 warp = BLOCK ? threadIdx.x >> 5 : 0;
    u32 n_warps = BLOCK ? blockDim.x >> 5 : 1;

    __device__ void wait() const
    {
        if (BLOCK) __syncthreads();
        else __syncwarp();
    }

    __device__ bool leads() const { return BLOCK ? threadIdx.x == 0 : lane_number() == 0; }

    __device__ Stage part_of(const Stage& all) const
    {
        const u32 own = BLOCK ? 0 : threadIdx.x >> 5;
        Stage stage = all;
        stage.keys += own * (WARP_LEAVES * LEAF_SLOTS);
        stage.prefix += own * (WARP_LEAVES + 1);
        stage.weights += own * (WARP_LEAVES * LEAF_SLOTS);
        return stage;
    }
};

// How many keys some leaves hold in their slots, and beyond; the sums of up to BLOCK_LEAVES leaves fit into one word.
struct Tally {
    u64 held;     // keys in slots
    u64 spilled;  // keys in records
    u64 spills;   // leaves that have any of the latter
};

static_assert(BLOCK_SLOTS <= 0xffff && BLOCK_LEAVES <= 0xff, "16 bits for keys in slots and 8 for leaves that spill");

__device__ __forceinline__ u64 packed(u32 count)
{
    const u64 held = min(count, LEAF_SLOTS), spilled = count - held;
    return spilled << 24 | (spilled ? 1u << 16 : 0u) | held;
}

__device__ __forceinline__ Tally unpacked(u64 tally)
{
    return {tally & 0xffff, tally >> 24, tally >> 16 & 0xff};
}

// -- which windows ---------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 window_end(const State& state, u32 begin, u32 height)
{
    return u32(min(begin + (u64(1) << height), u64(state.n_leaves)));
}

__device__ __forceinline__ bool within_bounds(const State& state, u32 height, u32 begin, u32 end, u64 edges)
{
    const double n_slots = double(u64(end - begin) << LEAF_SHIFT);
    return state.lower[height] * n_slots <= double(edges) && double(edges) <= state.upper[height] * n_slots;
}

__device__ __forceinline__ u64 sum_counts(const State& state, u32 begin, u32 end)
{
    u64 sum = 0;
    for (u64 leaf = u64(begin) + lane_number(); leaf < end; leaf += 32) sum += load_cached(state.counts + leaf);
    return sum;
}

__device__ __forceinline__ u64 sum_chunks(const State& state, u32 begin, u32 end)
{
    u64 sum = 0;
    const u32 last = (end + (1u << CHUNK_SHIFT) - 1) >> CHUNK_SHIFT;
    for (u32 chunk = (begin >> CHUNK_SHIFT) + lane_number(); chunk < last; chunk += 32)
        sum += load_cached(state.chunks + chunk);
    return sum;
}

__device__ __forceinline__ void note_window(const State& state, u32 begin, u32 height)
{
    if (atomicMax(state.marks + begin, height + 1) >= height + 1) return;
    const bool large = height > WARP_HEIGHT;
    const u32 i = atomicAdd(large ? &state.counters->n_large : &state.counters->n_windows, 1u);
    const u32 at = large ? state.room - 1 - i : i;
    state.window_begin[at] = begin;
    state.window_height[at] = height;
}

// Climbs from a leaf until the window fits, from ``height`` to at most ``height_max``; all lanes of a warp take part.
// Returns whether it found a window: the root always fits, since the array grows before and shrinks afterwards.
template <bool BY_CHUNKS>
__device__ __forceinline__ bool climb(const State& state, u32 leaf, u32 height, u32 height_max)
{
    u32 begin = leaf >> height << height, end = window_end(state, begin, height);
    u64 edges = warp_sum(BY_CHUNKS ? sum_chunks(state, begin, end) : sum_counts(state, begin, end));
    while (height < height_max) {
        height++;
        const u32 wider_begin = leaf >> height << height, wider_end = window_end(state, wider_begin, height);
        const u64 more = BY_CHUNKS ? sum_chunks(state, wider_begin, begin) + sum_chunks(state, end, wider_end)
                                   : sum_counts(state, wider_begin, begin) + sum_counts(state, end, wider_end);
        edges += warp_sum(more);
        begin = wider_begin;
        end = wider_end;
        if (height == state.height || within_bounds(state, height, begin, end, edges)) {
            if (lane_number() == 0) note_window(state, begin, height);
            return true;
        }
    }
    return false;
}

// Finds and marks a window for each unfit leaf.
__device__ __forceinline__ void find_windows(const State& state)
{
    const u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, n_warps = gridDim.x * (blockDim.x >> 5);
    Counters* counters = state.counters;
    const u32 n_unfit = load_cached(&counters->n_unfit);
    for (u32 i = warp; i < n_unfit; i += n_warps) {
        const u32 leaf = load_cached(state.unfit + i);
        if (!climb<false>(state, leaf, 0, min(state.height, CHUNK_SHIFT)) && lane_number() == 0)
            state.tall[atomicAdd(&counters->n_tall, 1u)] = leaf;
    }
    grid_barrier(&counters->barrier);
    const u32 n_tall = load_cached(&counters->n_tall);
    if (n_tall == 0) return;
    const u32 n_chunks = (state.n_leaves - 1 >> CHUNK_SHIFT) + 1;
    for (u32 chunk = warp; chunk < n_chunks; chunk += n_warps) {
        const u32 begin = chunk << CHUNK_SHIFT;
        const u64 sum = warp_sum(sum_counts(state, begin, window_end(state, begin, CHUNK_SHIFT)));
        if (lane_number() == 0) state.chunks[chunk] = sum;
    }
    grid_barrier(&counters->barrier);
    for (u32 i = warp; i < n_tall; i += n_warps)
        climb<true>(state, load_cached(state.tall + i), CHUNK_SHIFT, state.height);
    grid_barrier(&counters->barrier);
}

// Whether this window is still the widest one that begins there, and lies in no other one.
__device__ __forceinline__ bool is_maximal(const State& state, u32 begin, u32 height)
{
    if (load_cached(state.marks + begin) != height + 1) return false;
    for (u32 wider = height + 1; wider <= state.height; wider++)
        if (load_cached(state.marks + (begin >> wider << wider)) > wider) return false;
    return true;
}

// -- writing leaves --------------------------------------------------------------------------------------------

// Keys spread evenly over the leaves of a window: the first ``extra`` leaves hold one more than ``share``.
struct Spread {
    u64 share, extra;
    __device__ Spread(u64 edges, u64 n_leaves) : share(edges / n_leaves), extra(edges % n_leaves) {}
    __device__ u64 rank(u64 leaf) const { return leaf * share + min(leaf, extra); }
};

// Enters the row that begins with the key at ``position`` of ``leaf``, if one does, into the row index.
// ``is_first``: the leaf is the first one of its window, whose head stays; ``previous``: the key before this one.
__device__ __forceinline__ void index_row(
    const State& state, u32 leaf, u32 position, bool is_first, u64 key, u64 previous)
{
    const u32 row = u32(key >> 32);
    const u64 least = u64(row) << 32;
    if (position == 0 && is_first) {
        // Where the head is above, the row may as well have begun further left, and its index is still right.
        if (least >= load_cached(state.heads + leaf)) state.rows[row].leaf = leaf;
    } else if (u32(previous >> 32) != row) {
        // The first key of a leaf becomes its head, which is then above ``least`` unless it is equal.
        state.rows[row].leaf = position == 0 && key != least ? leaf - 1 : leaf;
    }
}

// The row of the next leaf's head may have begun in this window and have lost all the keys that it had there. It
// then begins behind the window, but below that head: its index is the window's last leaf. ``key`` is the last there.
__device__ __forceinline__ void index_row_behind(const State& state, u32 leaf, u64 key)
{
    if (leaf + 1 == state.n_leaves) return;
    const u64 head = load_cached(state.heads + leaf + 1);
    const u32 row = u32(head >> 32);
    if (row != u32(key >> 32) && head != u64(row) << 32) state.rows[row].leaf = leaf;
}

// Writes staged keys into leaves ``begin`` to ``end`` of the ``n_leaves`` from leaf ``window`` on.
// The first staged key is the first one of leaf ``begin``; ``previous`` is the key before it.
template <bool BLOCK>
__device__ __forceinline__ void write_leaves(
    const State& state, const Stage& stage, const Team<BLOCK>& team, u32 window, u32 n_leaves, const Spread& spread,
    u64 begin, u64 end, u64 previous)
{
    const u32 lane = lane_number();
    const u64 first_rank = spread.rank(begin);
    for (u64 q = begin + team.warp; q < end; q += team.n_warps) {
        const u32 leaf = u32(window + q), from = u32(spread.rank(q) - first_rank);
        const u32 count = u32(spread.rank(q + 1) - first_rank) - from;
        const u64 slot = u64(leaf) << LEAF_SHIFT;
        for (u32 i = lane; i < count; i += 32) {
            const u64 key = stage.keys[from + i];
            const u64 before = from + i > 0 ? stage.keys[from + i - 1] : previous;
            state.keys[slot + i] = key;
#if WEIGHTED
            state.weights[slot + i] = stage.weights[from + i];
#endif
            index_row(state, leaf, i, q == 0, key, before);
        }
        if (lane == 0) {
            state.counts[leaf] = count;
            if (q > 0) state.heads[leaf] = count ? stage.keys[from] : EMPTY_KEY;
            if (q + 1 == n_leaves && count) index_row_behind(state, leaf, stage.keys[from + count - 1]);
        }
    }
}

// Fills stage.prefix with the tallies of the leaves before each of ``n`` leaves from ``first`` on, and of all.
template <bool BLOCK>
__device__ __forceinline__ void scan_counts(
    const State& state, const Stage& stage, const Team<BLOCK>& team, u64 first, u32 n)
{
    if (team.warp == 0) {
        u64 carried = 0;
        for (u32 i = 0; i < n; i += 32) {
            const u32 j = i + lane_number();
            const u64 own = j < n ? packed(load_cached(state.counts + first + j)) : 0;
            const u64 up_to_here = carried + warp_scan(own);
            if (j < n) stage.prefix[j] = up_to_here - own;
            carried = __shfl_sync(ALL_LANES, up_to_here, 31);
        }
        if (lane_number() == 0) stage.prefix[n] = carried;
    }
    team.wait();
}

__device__ __forceinline__ void stage_slot(const State& state, const Stage& stage, u32 to, u64 slot)
{
    stage.keys[to] = load_cached(state.keys + slot);
#if WEIGHTED
    stage.weights[to] = load_cached(state.weights + slot);
#endif
}

__device__ __forceinline__ void stage_record(const State& state, const Stage& stage, u32 to, u64 from)
{
    const Record record = load_wide(state.records + from);
    stage.keys[to] = record.key;
#if WEIGHTED
    stage.weights[to] = record.weight;
#endif
}

// -- windows that fit into shared memory -----------------------------------------------------------------------

template <bool BLOCK>
__device__ __forceinline__ void redistribute_by_team(
    const State& state, const Stage& stage, const Team<BLOCK>& team, u32 begin, u32 n_leaves)
{
    scan_counts(state, stage, team, begin, n_leaves);
    for (u32 q = team.warp; q < n_leaves; q += team.n_warps) {
        const u32 leaf = begin + q;
        const Tally before = unpacked(stage.prefix[q]), after = unpacked(stage.prefix[q + 1]);
        const u32 to = u32(before.held + before.spilled), held = u32(after.held - before.held);
        const u32 spilled = u32(after.spilled - before.spilled);
        for (u32 i = lane_number(); i < held; i += 32) stage_slot(state, stage, to + i, (u64(leaf) << LEAF_SHIFT) + i);
        if (spilled) {
            const u32 from = load_cached(state.pending + leaf);
            for (u32 i = lane_number(); i < spilled; i += 32) stage_record(state, stage, to + held + i, u64(from) + i);
            __syncwarp();
            state.pending[leaf] = 0;
        }
    }
    team.wait();
    const Tally all = unpacked(stage.prefix[n_leaves]);
    const u64 edges = all.held + all.spilled;
    write_leaves(state, stage, team, begin, n_leaves, Spread(edges, n_leaves), 0, n_leaves, 0);
    if (team.leads()) atomicAdd(&state.counters->slots_moved, edges);
    team.wait();
}

// -- windows that need the grid --------------------------------------------------------------------------------

// Sums the tallies of all blocks, and of those before this one, for all threads.
__device__ __forceinline__ void sum_partials(
    const State& state, const Stage& stage, const u64* partials, Tally& before, Tally& all)
{
    if (threadIdx.x < 32) {
        Tally below = {0, 0, 0}, sum = {0, 0, 0};
        for (u32 block = lane_number(); block < gridDim.x; block += 32) {
            const Tally one = unpacked(load_cached(partials + block));
            sum.held += one.held, sum.spilled += one.spilled, sum.spills += one.spills;
            if (block < blockIdx.x) below.held += one.held, below.spilled += one.spilled, below.spills += one.spills;
        }
        sum = {warp_sum(sum.held), warp_sum(sum.spilled), warp_sum(sum.spills)};
        below = {warp_sum(below.held), warp_sum(below.spilled), warp_sum(below.spills)};
        if (lane_number() == 0) {
            // Sums over a grid no longer fit into one word.
            stage.values[0] = sum.held << 32 | below.held;
            stage.values[1] = sum.spilled << 32 | below.spilled;
            stage.values[2] = sum.spills << 32 | below.spills;
        }
    }
    __syncthreads();
    const u64 held = stage.values[0], spilled = stage.values[1], spills = stage.values[2];
    all = {held >> 32, spilled >> 32, spills >> 32};
    before = {held & 0xffffffff, spilled & 0xffffffff, spills & 0xffffffff};
}

// Sweep 1, from left to right: the keys in slots move up to the left of the window, without gaps, and a sorted list
// says which keys beyond the slots stand between them. What a round writes lies left of what later rounds read.
__device__ __forceinline__ Tally compact(const State& state, const Stage& stage, u32 window, u32 n_leaves)
{
    Tally done = {0, 0, 0};
    u32 parity = 0;
    for (u64 round = 0; round < n_leaves; round += u64(gridDim.x) * BLOCK_LEAVES, parity ^= 1) {
        const u64 own = round + u64(blockIdx.x) * BLOCK_LEAVES, first = window + own;
        const u32 n = own < n_leaves ? u32(min(n_leaves - own, u64(BLOCK_LEAVES))) : 0;
        scan_counts(state, stage, Team<true>(), first, n);
        for (u32 q = threadIdx.x >> 5; q < n; q += blockDim.x >> 5) {
            const u32 to = u32(unpacked(stage.prefix[q]).held), end = u32(unpacked(stage.prefix[q + 1]).held);
            for (u32 i = lane_number(); i < end - to; i += 32)
                stage_slot(state, stage, to + i, ((first + q) << LEAF_SHIFT) + i);
        }
        u64* partials = state.partials + parity * gridDim.x;
        if (threadIdx.x == 0) partials[blockIdx.x] = stage.prefix[n];
        grid_barrier(&state.counters->barrier);
        Tally before, all;
        sum_partials(state, stage, partials, before, all);
        const u64 target = (u64(window) << LEAF_SHIFT) + done.held + before.held;
        for (u32 i = threadIdx.x; i < unpacked(stage.prefix[n]).held; i += blockDim.x) {
            state.keys[target + i] = stage.keys[i];
#if WEIGHTED
            state.weights[target + i] = stage.weights[i];
#endif
        }
        for (u32 q = threadIdx.x; q < n; q += blockDim.x) {
            const Tally left = unpacked(stage.prefix[q]), right = unpacked(stage.prefix[q + 1]);
            if (left.spills == right.spills) continue;
            const u64 spilled_before = done.spilled + before.spilled + left.spilled;
            Spill spill;
            spill.rank = done.held + before.held + right.held + spilled_before;
            spill.from = load_cached(state.pending + first + q);
            spill.before = u32(spilled_before);
            state.spills[done.spills + before.spills + left.spills] = spill;
            state.pending[first + q] = 0;
        }
        done.held += all.held, done.spilled += all.spilled, done.spills += all.spills;
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) state.spills[done.spills] = {~0ull, 0, u32(done.spilled)};
    grid_barrier(&state.counters->barrier);
    return done;
}

// How many of the listed spills begin at ``rank`` or before.
__device__ __forceinline__ u32 spills_up_to(const State& state, u64 rank, u32 low, u32 high)
{
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (load_cached(&state.spills[middle].rank) <= rank) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Stages the key of this rank among those of the compacted window and its spills, of which it is one of ``low``
// to ``high`` that begins last before it.
__device__ __forceinline__ void stage_rank(
    const State& state, const Stage& stage, u32 to, u32 window, u64 rank, u32 low, u32 high)
{
    const u32 n_before = spills_up_to(state, rank, low, high);
    u64 spilled = 0;
    if (n_before) {
        const Spill spill = load_wide(state.spills + n_before - 1);
        spilled = load_cached(&state.spills[n_before].before);
        const u64 into = rank - spill.rank;
        if (into < spilled - spill.before) {
            stage_record(state, stage, to, spill.from + into);
            return;
        }
    }
    stage_slot(state, stage, to, (u64(window) << LEAF_SHIFT) + rank - spilled);
}

// Sweep 2, from right to left: the keys spread out evenly. What a round writes lies right of what later rounds read,
// since no key's final slot is left of where sweep 1 put it.
__device__ __forceinline__ void spread_out(
    const State& state, const Stage& stage, u32 window, u32 n_leaves, const Tally& all)
{
    const Spread spread(all.held + all.spilled, n_leaves);
    const u32 n_chunks = (n_leaves - 1) / BLOCK_LEAVES + 1;
    for (u64 round = 0; round < n_chunks; round += gridDim.x) {
        const bool works = round + blockIdx.x < n_chunks;
        const u64 begin = works ? (n_chunks - 1 - round - blockIdx.x) * BLOCK_LEAVES : 0;
        const u64 end = works ? min(begin + BLOCK_LEAVES, u64(n_leaves)) : 0;
        const u64 first = spread.rank(begin), last = spread.rank(end);
        u64 previous = 0;
        if (first < last) {
            const u32 n_spills = u32(all.spills);
            const u32 low = spills_up_to(state, first - (first > 0), 0, n_spills);
            const u32 high = spills_up_to(state, last - 1, low, n_spills);
            if (first > 0) {
                stage_rank(state, stage, 0, window, first - 1, low, low);
                previous = stage.keys[0];
            }
            __syncthreads();
            for (u64 rank = first + threadIdx.x; rank < last; rank += blockDim.x)
                stage_rank(state, stage, u32(rank - first), window, rank, low, high);
        }
        grid_barrier(&state.counters->barrier);
        write_leaves(state, stage, Team<true>(), window, n_leaves, spread, begin, end, previous);
        __syncthreads();
    }
}

struct Window {
    u32 begin, height;
};

__device__ __forceinline__ Window load_window(const State& state, u32 at)
{
    return {load_cached(state.window_begin + at), load_cached(state.window_height + at)};
}

__device__ __forceinline__ void redistribute_in_place(const State& state, const Stage& stage, const Window& window)
{
    const u32 n_leaves = window_end(state, window.begin, window.height) - window.begin;
    const Tally all = compact(state, stage, window.begin, n_leaves);
    spread_out(state, stage, window.begin, n_leaves, all);
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&state.counters->slots_moved, all.held + all.spilled);
    grid_barrier(&state.counters->barrier);
}

// Redistributes all windows found.
__device__ __forceinline__ void redistribute(const State& state, const Stage& stage)
{
    Counters* counters = state.counters;
    const u32 n_windows = load_cached(&counters->n_windows), n_large = load_cached(&counters->n_large);
    const u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, n_warps = gridDim.x * (blockDim.x >> 5);
    const Team<false> alone;
    for (u32 i = warp; i < n_windows; i += n_warps) {
        const Window window = load_window(state, i);
        const u32 n_leaves = window_end(state, window.begin, window.height) - window.begin;
        if (is_maximal(state, window.begin, window.height))
            redistribute_by_team(state, alone.part_of(stage), alone, window.begin, n_leaves);
    }
    __syncthreads();
    for (u32 i = blockIdx.x; i < n_large; i += gridDim.x) {
        const Window window = load_window(state, state.room - 1 - i);
        const u32 n_leaves = window_end(state, window.begin, window.height) - window.begin;
        if (window.height <= BLOCK_HEIGHT && is_maximal(state, window.begin, window.height))
            redistribute_by_team(state, stage, Team<true>(), window.begin, n_leaves);
    }
    // All warps of all blocks go through the same list in the same order, a look at 32 of them at a time.
    for (u32 first = 0; first < n_large; first += 32) {
        const u32 own = first + lane_number();
        bool wide = false;
        if (own < n_large) {
            const Window window = load_window(state, state.room - 1 - own);
            wide = window.height > BLOCK_HEIGHT && is_maximal(state, window.begin, window.height);
        }
        for (u32 todo = __ballot_sync(ALL_LANES, wide); todo; todo &= todo - 1)
            redistribute_in_place(state, stage, load_window(state, state.room - 1 - (first + __ffs(todo) - 1)));
    }
    grid_barrier(&counters->barrier);
}
