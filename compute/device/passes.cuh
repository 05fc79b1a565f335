// What the kernels of PageRank's passes share: adding up what every vertex receives, over all in-edges (passes.cu makes values,
// settle.cu adds up for the last time).
//
// Both systems share a pass: what it costs is the random access for each edge, and their shares lie side by side.
//
// With rows on the host a pass costs what crosses the bus, keys of 8 bytes in leaves that are not full. So the first one
// writes back what it read, *packed*, the bus being idle in that direction, and those after it read that: 4 bytes an edge,
// without gaps. Of the leaves that a warp adds up in one go, a range, they are words one behind the other, with the
// neighbour in the low bits, and in the others how far its row lies behind that of the word before; where these do not
// suffice all are set, and the next word says it. Where all that has no room in a range its leaves are read again.
//
// It outlives the run. Sums are integers, so that it does not matter in which order rows are added up, nor where: edges
// that batches insert and delete are listed beside (amend.cu), and every pass adds and subtracts them. What leaves become
// meanwhile is of no interest. So are the lengths of rows kept, of which each run would else read all. When rows change
// sides, when the list has no room, or where a range was not packed, everything is packed anew.
//
// Where the device has memory that nobody else needs, ranges that are read are kept there, too, one after the other as
// long as there is room, and the next passes read these there.
#pragma once

#include "rows.cuh"
#include "walks.cuh"

// Leaves that a warp adds up in one go.
constexpr u32 RANGE = PASS_LEAVES;
static_assert(RANGE <= 32 && RANGE % LEAVES_TOGETHER == 0, "their counts are in one warp");
// Blocks on a multiprocessor, which bounds the registers of a thread.
constexpr u32 PASS_BLOCKS = 2;

// By system.
constexpr u32 RANKS = 0, MAJORANT = 1, SYSTEMS = 2;

// Numbers of both systems that are added up together.
struct Both {
    i64 of[SYSTEMS];

    __device__ __forceinline__ void operator+=(const Both& other)
    {
        for (u32 system = 0; system < SYSTEMS; system++) of[system] += other.of[system];
    }
};

__device__ __forceinline__ Both operator+(Both one, const Both& other)
{
    one += other;
    return one;
}

__device__ __forceinline__ Both of_lane(const Both& both, u32 lane)
{
    return {{of_lane(both.of[RANKS], lane), of_lane(both.of[MAJORANT], lane)}};
}

__device__ __forceinline__ Both of_lane_before(const Both& both, u32 offset)
{
    return {{of_lane_before(both.of[RANKS], offset), of_lane_before(both.of[MAJORANT], offset)}};
}

__device__ __forceinline__ Both of_lane_across(const Both& both, u32 mask)
{
    return {{of_lane_across(both.of[RANKS], mask), of_lane_across(both.of[MAJORANT], mask)}};
}

// Sums by row of a warp that goes through leaves in order. Numbers are integers: whatever the order in which they are added,
// sums are the same. Where rows are very unequal, half of all leaves have edges of one row alone. Of these each lane keeps
// what its own slots come to, and lanes are added up when the row ends: a sum along the lanes takes five steps of shuffles,
// for which gathers of other leaves wait.
struct RowSums {
    Carry<Both> carry = {NO_LEAF, Both()};
    Both own = Both();      // of this lane, and of the carried row
    bool is_apart = false;  // all lanes agree: whether lanes may have something of their own

    // As sum_leaf of rows.cuh.
    template <class Emit>
    __device__ __forceinline__ void add(const SlotPair& pair, const Both (&values)[2], Emit emit)
    {
        const u32 row = __shfl_sync(ALL_LANES, source(pair.keys[0]), 0);  // NO_LEAF: the leaf is empty
        const auto is_of_row = [&](u64 key) { return key == EMPTY_KEY || source(key) == row; };
        const bool is_one = __all_sync(ALL_LANES, is_of_row(pair.keys[0]) && is_of_row(pair.keys[1]));
        if (!is_one || (row != carry.row && row != NO_LEAF)) {
            gather();
            if (!is_one) return sum_leaf(pair, values, carry, emit);
            if (lane_number() == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
            carry = {row, Both()};
        }
        own += values[0];
        own += values[1];
        is_apart = true;
    }

    // Emits the carried row.
    template <class Emit> __device__ __forceinline__ void end(Emit emit)
    {
        gather();
        if (lane_number() == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
    }

private:
    __device__ __forceinline__ void gather()
    {
        if (!is_apart) return;
        carry.sum += warp_sum(own);
        own = Both();
        is_apart = false;
    }
};

// What is known of a packed range, a word of 64 bits: how many edges, or NOT_PACKED, and above that the row of the first.
constexpr u32 NOT_PACKED = ~0u;
// Of a packed word, so many bits are used.
#ifndef PACKED_BITS
#define PACKED_BITS 32
#endif
// Words of a range, two to each of 64 bits, and those that the lanes of a warp take at once.
constexpr u32 RANGE_WORDS = RANGE << REMOTE_SHIFT, STEP_WORDS = 2 * 32, RANGE_STEPS = RANGE_WORDS / STEP_WORDS;
static_assert(RANGE_WORDS % STEP_WORDS == 0 && RANGE_STEPS % 2 == 0, "steps are taken two at a time");
constexpr u32 LINE_PAIRS = LINE_BYTES / 8;

struct Passes : Run<WalkJob> {
    using Run::Run;

    __device__ __forceinline__ double unit(u32 system) const { return system ? job.majorant_unit : job.unit; }

    // Once ``begin`` has been there.
    __device__ __forceinline__ u32 out_degree(u32 v) const
    {
        return REMOTE && job.degrees ? load_cached(job.degrees + v) : load_row(out, v).degree;
    }

    __device__ __forceinline__ u32 in_degree(u32 v) const
    {
        return REMOTE && job.degrees ? load_cached(job.in_degrees + v) : load_row(in, v).degree;
    }

    // Exact in the majorant, too: a weight is 0, or at least 1 and a float32, and there are 23 bits behind the point.
    __device__ __forceinline__ i64 right_hand_side(u32 system, float weight) const
    {
        return i64((system ? double(weight) : double(weight > 0.0f)) * unit(system));
    }

    // What rows without out-edges have received, by system, of this thread; where it is counted (passes.cu).
    u64 dangling[SYSTEMS] = {0, 0};
    bool counts_dangling = false;

    // What rows receive is added to sums. ``passes``: how many there are with this one.
    __device__ __forceinline__ void pull(u32 passes)
    {
        const bool packs = passes == 1 && !job.is_kept;
        SidesRead read;
        if (!REMOTE || !job.packed) {
            for_leaves<RANGE>(in, place, [&](u32 begin, u32 end) { pull_leaves<false>(begin, end, 0, read); });
        } else {
            const u32 n_own = (in.n_leaves + RANGE - 1) / RANGE;
            for_ranges(place, n_own + job.n_packed, [&](u32 range) {
                if (range < n_own) return pull_leaves<false>(range * RANGE, min((range + 1) * RANGE, in.n_leaves), 0, read);
                pull_remote(range - n_own, packs, read);
            });
            if (job.is_kept) pull_edits(read);
        }
        read.tell(in);
    }

    // A range of remote leaves, in which ever form there is.
    __device__ __forceinline__ void pull_remote(u32 range, bool packs, SidesRead& read)
    {
        const u64 known = packs ? 0 : load_cached(job.packed_ranges + range);
        if (!packs && u32(known) != NOT_PACKED) return pull_packed(range, u32(known), u32(known >> 32), read);
        const u32 begin = in.n_leaves + range * RANGE, end = min(begin + RANGE, all_leaves(in));
        if (packs) pull_leaves<true>(begin, end, range, read);
        else pull_leaves<false>(begin, end, range, read);
    }

    // What has become of remote in-rows since they were packed.
    __device__ __forceinline__ void pull_edits(SidesRead& read)
    {
        for (u32 deleted = 0; deleted < 2; deleted++) {
            const u32 n = load_cached(job.counters->edits + deleted);
            const u64* const edits = job.edits + (deleted ? job.edits_room - n : 0);
            for (u32 k = place.thread; k < n; k += place.n_threads) {
                const u64 edge = load_once(edits + k);
                const float2 shares = load_cached(reinterpret_cast<const float2*>(job.ranks.shares) + source(edge));
                const i64 own = integer(shares.x), other = integer(shares.y);
                hand_over(RANKS, destination(edge), deleted ? -own : own);
                hand_over(MAJORANT, destination(edge), deleted ? -other : other);
                // What was packed and they make up for are together the edges that there are.
                read.add(in, in.n_leaves, deleted ? ~0u : 1u, place.lane == 0 ? 32 * 8 / LINE_BYTES : 0);
            }
        }
    }

    // As scan_leaves of rows.cuh, for two sums at a time. PACK: and keep them packed, as this range.
    template <bool PACK> __device__ __forceinline__ void pull_leaves(u32 begin, u32 end, u32 range, SidesRead& read)
    {
        Packing packing(*this);
        const u32 counts = begin + place.lane < end ? load_constant(count_of(in, begin + place.lane)) : 0;
        if (counts) read.add(in, begin + place.lane, counts, LINES_OF_LEAF);
        Received received(*this);
        for (u32 leaf = begin; leaf < end; leaf += LEAVES_TOGETHER) {
            SlotPair pairs[LEAVES_TOGETHER];
            Shares shares[LEAVES_TOGETHER];
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++)
                pairs[i] = load_pair(in, leaf + i, __shfl_sync(ALL_LANES, counts, (leaf + i - begin) & 31));
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++) shares[i] = received.load(pairs[i]);
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++) {
                if (leaf + i >= end) break;
                if (PACK) packing.add(pairs[i], __shfl_sync(ALL_LANES, counts, leaf + i - begin));
                received.take(pairs[i], shares[i]);
            }
        }
        if (PACK) packing.end(range);
        received.end();
    }

    // Of the two slots of a lane, of both systems.
    struct Shares {
        float2 of[2];
    };

    // What rows receive, added up by a warp that goes through their slots in order.
    struct Received {
        Passes& passes;
        RowSums rows;

        __device__ __forceinline__ explicit Received(Passes& passes) : passes(passes) {}

        __device__ __forceinline__ Shares load(const SlotPair& pair) const
        {
            const float2* const shares = reinterpret_cast<const float2*>(passes.job.ranks.shares);
            Shares found;
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u64 key = pair.keys[j];
                const bool is_edge = destination(key) != NO_LEAF;  // as it is of EMPTY_KEY
                found.of[j] = is_edge ? shares[destination(key)] : make_float2(0.0f, 0.0f);
            }
            return found;
        }

        __device__ __forceinline__ void take(const SlotPair& pair, const Shares& shares)
        {
            const Both received[2] = {integers(shares.of[0]), integers(shares.of[1])};
            rows.add(pair, received, [&](u32 row, const Both& sum) { emit(row, sum); });
        }

        __device__ __forceinline__ void end()
        {
            rows.end([&](u32 row, const Both& sum) { emit(row, sum); });
        }

    private:
        __device__ static __forceinline__ Both integers(const float2& shares)
        {
            return {{integer(shares.x), integer(shares.y)}};
        }

        __device__ __forceinline__ void emit(u32 row, const Both& sum) const
        {
            passes.hand_over(RANKS, row, sum.of[RANKS]);
            passes.hand_over(MAJORANT, row, sum.of[MAJORANT]);
        }
    };

    __device__ __forceinline__ void hand_over(u32 system, u32 row, i64 sum)
    {
        add((system ? job.majorant : job.ranks).sums + row, sum);
        if (counts_dangling && out_degree(row) == 0) dangling[system] += u64(sum);
    }

    // What a packed word says of a row that is so far behind that the next word says how far. In that, these bits are not set.
    __device__ static __forceinline__ u32 far_row(u32 bits)
    {
        return PACKED_BITS > bits ? u32((u64(1) << (PACKED_BITS - bits)) - 1) : 0;
    }

    // A range on its way into packed form, by a warp.
    struct Packing {
        const Passes& passes;
        u32 bits, row = 0, n = 0;  // of a vertex; of the last word so far; words
        bool fits = true;

        __device__ __forceinline__ explicit Packing(const Passes& passes) : passes(passes), bits(passes.job.packed_bits) {}

        // The words of each warp of the block.
        __device__ static __forceinline__ u32* words()
        {
            __shared__ u64 staged[BLOCK_THREADS / 32][RANGE_WORDS / 2];
            return reinterpret_cast<u32*>(staged[threadIdx.x / 32]);
        }

        // The next leaf, with ``count`` live slots.
        __device__ __forceinline__ void add(const SlotPair& pair, u32 count)
        {
            if (!count) return;
            const u32 lane = lane_number(), most = far_row(bits);
            u32 rows[2];
            for (u32 j = 0; j < 2; j++) rows[j] = pair.keys[j] == EMPTY_KEY ? NO_LEAF : source(pair.keys[j]);
            if (n == 0) first = row = __shfl_sync(ALL_LANES, rows[0], 0);
            u32 before = __shfl_up_sync(ALL_LANES, rows[1], 1);
            if (lane == 0) before = row;
            const u32 behind[2] = {rows[0] - before, rows[1] - rows[0]};
            bool is_far[2];
            for (u32 j = 0; j < 2; j++) is_far[j] = rows[j] != NO_LEAF && behind[j] >= most;
            const Votes far = vote(is_far[0], is_far[1]);
            fits = fits && bits < PACKED_BITS && n + count + far.count() <= RANGE_WORDS;
            const u32 at = n + 2 * lane + __popc(far.lanes[0] & lanes_before()) + __popc(far.lanes[1] & lanes_before());
            for (u32 j = 0; j < 2 && fits && rows[j] != NO_LEAF; j++) {
                u32* const to = words() + at + j + (j && is_far[0]);
                to[0] = (is_far[j] ? most : behind[j]) << bits | destination(pair.keys[j]);
                if (is_far[j]) to[1] = behind[j];
            }
            row = __shfl_sync(ALL_LANES, rows[(count - 1) & 1], (count - 1) / 2);
            n += count + far.count();
        }

        __device__ __forceinline__ void end(u32 range)
        {
            const WalkJob& job = passes.job;
            const bool all_fit = fits;
            __syncwarp();
            u64* const to = job.packed + u64(range) * (RANGE_WORDS / 2);
            const u64* const from = reinterpret_cast<const u64*>(words());
            for (u32 k = lane_number(); all_fit && 2 * k < n; k += 32) store_cached(to + k, from[k]);
            if (lane_number() == 0) {
                store_cached(job.packed_ranges + range, u64(first) << 32 | (all_fit ? n : NOT_PACKED));
                store_cached(job.cache_places + range, 0u);
                if (!all_fit) atomicAdd(&job.counters->unpacked, 1u);
            }
            __syncwarp();
        }

    private:
        u32 first = 0;
    };

    // The same of ``n`` edges that were packed, the first of which is of this row.
    __device__ __forceinline__ void pull_packed(u32 range, u32 n, u32 row, SidesRead& read)
    {
        const u32 cached = job.cache ? load_cached(job.cache_places + range) : 0;
        const u64* const packed
            = cached ? job.cache + u64(cached - 1) * LINE_PAIRS : job.packed + u64(range) * (RANGE_WORDS / 2);
        const u32 n_lines = (4 * n + LINE_BYTES - 1) / LINE_BYTES;
        const u32 bits = job.packed_bits, mask = ~0u >> (32 - bits);
        u32 n_edges = 0;  // of this lane: words that say how far a row is are none
        u64 words[RANGE_STEPS + 1];
#pragma unroll
        for (u32 k = 0; k < RANGE_STEPS; k++)
            words[k] = k * STEP_WORDS + 2 * place.lane < n ? load_cached(packed + k * 32 + place.lane) : 0;
        words[RANGE_STEPS] = 0;
        if (job.cache && !cached) keep(range, n, n_lines, words);
        bool was_far = false;  // the word before those of the warp
        Received received(*this);
#pragma unroll
        for (u32 k = 0; k < RANGE_STEPS; k += 2) {
            if (k * STEP_WORDS >= n) break;
            SlotPair pairs[2];
            Shares shares[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                pairs[i] = unpacked(
                    words[k + i], u32(words[k + i + 1]), n, (k + i) * STEP_WORDS + 2 * place.lane, bits, mask, row, was_far);
                for (u32 j = 0; j < 2; j++) n_edges += destination(pairs[i].keys[j]) != NO_LEAF;
                shares[i] = received.load(pairs[i]);
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++) received.take(pairs[i], shares[i]);
        }
        read.add(in, in.n_leaves, n_edges, place.lane == 0 && !cached ? n_lines : 0);
        received.end();
    }

    // The words of a range that was read on the host are on the device from the next pass on, if there is room.
    __device__ __forceinline__ void keep(u32 range, u32 n, u32 n_lines, const u64 (&words)[RANGE_STEPS + 1]) const
    {
        u32* const asked = &job.counters->cached;
        u32 line = job.cache_lines;
        if (place.lane == 0 && load_cached(asked) < job.cache_lines) line = atomicAdd(asked, n_lines);
        line = __shfl_sync(ALL_LANES, line, 0);
        if (line + n_lines > job.cache_lines) return;
        u64* const to = job.cache + u64(line) * LINE_PAIRS;
#pragma unroll
        for (u32 k = 0; k < RANGE_STEPS; k++)
            if (k * STEP_WORDS + 2 * place.lane < n) store_cached(to + k * 32 + place.lane, words[k]);
        if (place.lane == 0) store_cached(job.cache_places + range, line + 1);
    }

    // The keys of two words, the first of which is word ``at`` of ``n``; with NO_LEAF for a neighbour where a word is
    // no edge. ``beyond``: the word behind those of the warp, to its first lane. ``row``: of the word before those of
    // the warp, and then of the last of these; ``was_far`` likewise: whether the one behind it says how far its row is.
    __device__ __forceinline__ SlotPair unpacked(
        u64 word, u32 beyond, u32 n, u32 at, u32 bits, u32 mask, u32& row, bool& was_far) const
    {
        const u32 halves[2] = {u32(word), u32(word >> 32)}, most = far_row(bits);
        bool is_far[2];
        for (u32 j = 0; j < 2; j++) is_far[j] = at + j < n && halves[j] >> bits == most;
        const u32 far = __ballot_sync(ALL_LANES, is_far[1]);
        // Whether the word before says that this one is no edge.
        const bool is_taken[2] = {place.lane ? bool(far >> (place.lane - 1) & 1) : was_far, is_far[0]};
        was_far = far >> 31;
        u32 next = __shfl_down_sync(ALL_LANES, halves[0], 1);
        const u32 behind_all = __shfl_sync(ALL_LANES, beyond, 0);
        if (place.lane == 31) next = behind_all;
        u32 behind[2];
        for (u32 j = 0; j < 2; j++) {
            const u32 told = is_far[j] ? (j ? next : halves[1]) : halves[j] >> bits;
            behind[j] = at + j < n && !is_taken[j] ? told : 0;
        }
        u32 sum = behind[0] + behind[1];
        for (u32 offset = 1; offset < 32; offset <<= 1) {
            const u32 other = __shfl_up_sync(ALL_LANES, sum, offset);
            if (place.lane >= offset) sum += other;
        }
        const u32 own = row + sum;
        row = __shfl_sync(ALL_LANES, own, 31);
        const u32 neighbour[2] = {is_taken[0] ? NO_LEAF : halves[0] & mask, is_taken[1] ? NO_LEAF : halves[1] & mask};
        return {{at < n ? u64(own - behind[1]) << 32 | neighbour[0] : EMPTY_KEY,
                    at + 1 < n ? u64(own) << 32 | neighbour[1] : EMPTY_KEY},
            {1.0f, 1.0f}};
    }
};
