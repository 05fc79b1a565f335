// What the kernels of personalised PageRank's passes share: dense passes over all in-edges, as in passes.cu, until the
// sizes of residuals add up to so small a part of all values as the host asks for. Estimates are left on the device, where
// the host has them copied from: meanwhile the passes of other programs go on.
//
// A run is launched in two parts, and what the first one leaves is copied while other programs have their first, and then all
// their second: it ends as soon as values are made by a pass that is likely to be the last, for all of its programs. A pass
// shrinks residuals at least as much as the one before it did, as a rule. Where it does not, the second part goes on, and says
// that estimates are others.
//
// PROGRAMS go through passes together, and one that has got there rests while the others go on: each makes what it would
// make by itself, bit for bit. What a pass costs is the random access for each edge, which reads a sector of 32 bytes
// where one program wants 8; so the numbers of such programs lie side by side, vertex by vertex, and of vertices that come
// to nothing none is read. Neighbouring threads are of different programs.
//
// A batch may be edited first, where shares are those of the graph before it: the head of an inserted edge receives the share
// of its tail, that of a deleted one gives it back. So passes begin with sums that are nearer to the new ones. Where a tail
// had few edges and gets many, that would give its value away many times: sums might add up to more than 64 bits hold.
#pragma once

#include "ppr.cuh"
#include "rows.cuh"

// Of residuals that are likely to be left after one pass more, in multiples of what may be: up to so many that one is the last.
#ifndef LAST_AT
#define LAST_AT 1.0
#endif

// Blocks on a multiprocessor, which bounds the registers of a thread.
constexpr u32 PASS_BLOCKS = 2;

template <u32 PROGRAMS> struct PprPasses : Run<PprJob> {
    static_assert(32 % PROGRAMS == 0, "a warp has all programs, as often as each other");
    // Vertices that a warp has under way at a time, once for each program.
    static constexpr u32 TOGETHER = 32 / PROGRAMS;
    // Leaves that a warp adds up in one go, where there is one program.
    static constexpr u32 RANGE = 8;
    // Vertices that a thread has under way at a time, where there are several programs.
    static constexpr u32 AHEAD = 4;
    // What is listed of a vertex: above its number its out-degree, and these bits: any program restarts there, and it has
    // in-edges.
    static constexpr u64 RESTARTS_ANY = u64(1) << 63, RECEIVES = u64(1) << 62, NOT_LISTED = ~u64(0);
    static_assert(RANGE <= 32 && RANGE % LEAVES_TOGETHER == 0, "their counts are in one warp");

    const SideBySide side;  // of a single one its own columns
    const u32 program;      // of this thread
    const Place vertices;   // of this thread among those of its program
    bool goes_on;           // of this thread's program: passes

    // ``job``: of this thread's program, which may not be there.
    __device__ __forceinline__ PprPasses(const State& out, const State& in, const PprJob& job, const Place& place,
        const SideBySide& side, bool is_there)
        : Run(out, in, job, place), side(side), program(place.thread % PROGRAMS),
          vertices{place.thread / PROGRAMS, place.n_threads / PROGRAMS}, goes_on(is_there)
    {
    }

    __device__ __forceinline__ u64 at(u32 v) const { return PROGRAMS == 1 ? job.at(v) : u64(v) * PROGRAMS + program; }

    __device__ __forceinline__ u8* mark(u32 v) const { return job.is_source + (PROGRAMS == 1 ? job.at(v) : u64(v) * PROGRAMS); }

    struct Vertex {
        u32 v;
        u32 degree;
        i64 sum, value;
        i64 restart;
        bool receives;  // of several programs: whether sums are stored where rows are added up
    };

    __device__ __forceinline__ static u32 listed_degree(u64 entry) { return u32((entry & ~(RESTARTS_ANY | RECEIVES)) >> 32); }

    __device__ __forceinline__ Vertex load(u32 v, const i64* sums, const i64* value) const
    {
        return {v, load_row(out, v).degree, load_cached(sums), value ? load_cached(value) : 0,
            load_cached(mark(v)) ? job.restart : 0, false};
    }

    // Calls use(vertex) for those that may have anything; whole warps do not stay together.
    template <class Use> __device__ __forceinline__ void for_those(bool with_value, Use use)
    {
        const auto load_at = [&](u32 v) { return load(v, side.sums + at(v), with_value ? side.values + at(v) : nullptr); };
        const auto use_loaded = [&](u32, const Vertex& vertex) { use(vertex); };
        if constexpr (PROGRAMS == 1) return for_vertices<Vertex>(place, job.n_vertices, load_at, use_loaded);
        for_listed(with_value, use);
    }

    // The same of several programs, for those that a warp has listed. They are asked for one list entry after the other, and
    // what that says is where all else is: so several are under way at a time.
    template <class Use> __device__ __forceinline__ void for_listed(bool with_value, Use use)
    {
        const u64* const own = own_list();
        const u32 n = goes_on ? load_cached(side.n_listed + place.warp) : 0;
        for (u32 first = place.lane / PROGRAMS; first < n; first += AHEAD * TOGETHER) {
            u64 entries[AHEAD];
            i64 sums[AHEAD], values[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u32 i = first + k * TOGETHER;
                entries[k] = i < n ? load_cached(own + i) : 0;
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                if (first + k * TOGETHER >= n) break;
                const u32 v = u32(entries[k]);
                sums[k] = load_cached(side.sums + at(v));
                values[k] = with_value ? load_cached(side.values + at(v)) : 0;
                if (entries[k] & RESTARTS_ANY && !load_cached(mark(v))) entries[k] &= ~RESTARTS_ANY;
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                if (first + k * TOGETHER >= n) break;
                const bool restarts = entries[k] & RESTARTS_ANY;
                use(Vertex{u32(entries[k]), listed_degree(entries[k]), sums[k], values[k], restarts ? job.restart : 0,
                    (entries[k] & RECEIVES) != 0});
            }
        }
    }

    // ``is_known``: see PprSweep. What is wanted of a program again once rows have been pulled is where it can be read then:
    // registers that are kept meanwhile are missed in the loop that all waits for.
    __device__ __forceinline__ void run(bool is_known)
    {
        const bool is_there = goes_on;
        bool resumes = job.part, leaves = false;
        u32 passes = 0, own_passes = 0;
        if (resumes) {
            own_passes = load_cached(&job.counters->n_passes);
            goes_on = is_there && load_cached(&job.counters->goes_on);
            passes = __reduce_max_sync(ALL_LANES, own_passes);
        } else {
            if (edit()) barrier();
            if (is_there) enter();
            barrier();
            if constexpr (PROGRAMS == 1) begin();
            else begin_side_by_side(is_known);
            barrier();
        }
        while (__any_sync(ALL_LANES, goes_on)) {
            if (!resumes) {
                const PprPass* const before = job.counters->passes + (passes & 1);
                passes++;
                if (goes_on && vertices.thread == 0) job.counters->passes[passes & 1] = PprPass();
                if (goes_on) advance(factor(before->balance, job.damping));
                barrier();
            }
            if (goes_on) own_passes = passes;
            if (leaves) break;
            resumes = false;
            pull();
            barrier();
            look(job.counters->passes + (passes & 1));
            const double size_before = residuals(passes - 1).size;  // as long as nobody begins the next pass
            barrier();
            goes_on = goes_on && passes < job.passes_max && !is_solved(passes);
            leaves = job.part == 0 && !__any_sync(ALL_LANES, goes_on && !is_nearly_solved(passes, size_before));
        }
        const bool is_made = !job.part || own_passes > load_cached(&job.counters->n_passes);
        if constexpr (PROGRAMS == 1) {
            if (is_made) account();
        } else if (is_there && is_made) {
            account_side_by_side();
        }
        if (job.part) barrier();  // all have read the counters
        if (vertices.thread || !is_there) return;
        if (!job.part) {
            job.counters->n_passes = own_passes;
            job.counters->goes_on = goes_on;
            return;
        }
        const PprSums& sums = job.counters->passes[own_passes & 1].sums;
        const u64 said[PPR_SAID] = {is_solved(own_passes), own_passes, 0, is_made, load_cached(&sums.norm),
            load_cached(&sums.size), load_cached(&sums.total)};
        job.counters->passes[0] = job.counters->passes[1] = PprPass();
        __threadfence_system();
        for (u32 k = 0; k < PPR_SAID; k++) tell(job, k, said[k]);
    }

    // What residuals may come to, after so many passes, and what they do.
    struct Residuals {
        double goal, size;
    };

    __device__ __forceinline__ Residuals residuals(u32 passes) const
    {
        const PprSums& sums = job.counters->passes[passes & 1].sums;
        return {job.goal * double(load_cached(&sums.norm)), double(load_cached(&sums.size))};
    }

    __device__ __forceinline__ bool is_solved(u32 passes) const
    {
        const Residuals now = residuals(passes);
        return now.size <= now.goal;
    }

    // Whether it is likely to be after one pass more, which shrinks residuals as the last one did. ``size_before``: of those
    // before that, 0 where there were none.
    __device__ __forceinline__ bool is_nearly_solved(u32 passes, double size_before) const
    {
        const Residuals now = residuals(passes);
        return size_before > 0.0 && now.size * (now.size / size_before) <= LAST_AT * now.goal;
    }

    // Whether there is anything to edit, which all threads agree about.
    __device__ __forceinline__ bool edit()
    {
        if constexpr (PROGRAMS > 1) return edit_side_by_side();
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
            const i64 share = is_change ? load_cached(side.shares + at(source(key))) : 0;
            if (share) add(side.sums + at(destination(key)), edited(share, source(key), outcome == INSERTED));
            __syncwarp();
        });
        return job.n_updates;
    }

    // What a head receives for an edge of this tail. All that is inserted hands on so little that it adds up to 2^60 at most, or
    // no more than its tail hands on from now on, which for all tails together is less than 2^60.
    __device__ __forceinline__ i64 edited(i64 share, u32 tail, bool is_inserted) const
    {
        if (!is_inserted) return -share;
        if (exact::multiply(double(share), double(job.n_updates)) <= double(1ull << 60)) return share;
        return min(share, share_of(load_cached(side.values + at(tail)), load_row(out, tail).degree, job.damping));
    }

    // The same of several programs, whose batch is the same one, by a lane for each program.
    __device__ __forceinline__ bool edit_side_by_side()
    {
        const bool edits = goes_on && job.n_updates;
        const u32 any = __ballot_sync(ALL_LANES, edits);
        if (!any) return false;
        const u32 first = __ffs(any) - 1;
        const u32 n = __shfl_sync(ALL_LANES, job.n_updates, first);
        const u64* const keys = reinterpret_cast<const u64*>(__shfl_sync(ALL_LANES, u64(job.keys), first));
        const u8* const outcomes = reinterpret_cast<const u8*>(__shfl_sync(ALL_LANES, u64(job.outcomes), first));
        for_changes(place, keys, outcomes, n, [&](bool is_change, u64 key, u8 outcome) {
            const u32 changed = __ballot_sync(ALL_LANES, is_change), inserted = __ballot_sync(ALL_LANES, outcome == INSERTED);
            i64 shares[PROGRAMS];
            u32 tails[PROGRAMS], heads[PROGRAMS];
#pragma unroll
            for (u32 k = 0; k < PROGRAMS; k++) {
                const u32 of = k * TOGETHER + place.lane / PROGRAMS;
                const u64 edge = __shfl_sync(ALL_LANES, key, of);
                tails[k] = source(edge);
                heads[k] = destination(edge);
                shares[k] = edits && changed >> of & 1 ? load_cached(side.shares + at(source(edge))) : 0;
            }
#pragma unroll
            for (u32 k = 0; k < PROGRAMS; k++) {
                const u32 of = k * TOGETHER + place.lane / PROGRAMS;
                if (shares[k]) add(side.sums + at(heads[k]), edited(shares[k], tails[k], inserted >> of & 1));
            }
            __syncwarp();
        });
        return true;
    }

    __device__ __forceinline__ void enter()
    {
        for (u32 k = vertices.thread; k < job.n_entries; k += vertices.n_threads) {
            const u64 entry = load_constant(job.entries + k);
            const u32 v = u32(entry), what = u32(entry >> 32);
            i64* const sum = side.sums + at(v);
            const bool was_source = load_cached(mark(v));
            store_cached(mark(v), u8(what == RESTARTS));
            if (what == GOES) store_cached(sum, i64(0));
            else if (what == RESTARTS) store_cached(sum, load_cached(sum) + job.restart);
            else if (was_source) store_cached(sum, load_cached(sum) - job.restart);
        }
    }

    __device__ __forceinline__ void begin()
    {
        u64 sums[BALANCE_SUMS] = {};
        for_those(false, [&](const Vertex& vertex) {
            const i64 sum = count_first(sums, vertex);
            if (sum != vertex.sum) store_cached(side.sums + at(vertex.v), sum);
        });
        add_by_block(sums, &job.counters->passes[0].balance.mass);
    }

    // Pushes that were given up, and sources that are none any more, may leave sums below 0.
    __device__ __forceinline__ i64 count_first(u64* sums, const Vertex& vertex) const
    {
        const i64 sum = max(vertex.sum, i64(0));
        count(sums, sum, vertex.restart, vertex.degree);
        return sum;
    }

    // The same of several programs. Each warp lists those of its vertices that come to anything, or came to something: who has
    // in-edges, restarts, or holds something. Lanes have a vertex each as they list them, and then a program each.
    __device__ __forceinline__ void begin_side_by_side(bool is_known)
    {
        if (!is_known) find_holders();
        const u32 there = __ballot_sync(ALL_LANES, goes_on) & tile_lanes<PROGRAMS>();
        const u8 own_bits = u8(there >> (place.lane & ~(PROGRAMS - 1)));
        const u32 n_listed = list_vertices(own_bits);
        if (place.lane == 0) store_cached(side.n_listed + place.warp, n_listed);
        __syncwarp();
        const u64* const own = own_list();
        u64 sums[BALANCE_SUMS] = {};
        for (u32 first = 0; first < n_listed; first += AHEAD * TOGETHER) {
            u64 entries[AHEAD];
            i64 found[AHEAD];
            bool restarts[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u32 i = first + k * TOGETHER + place.lane / PROGRAMS;
                entries[k] = i < n_listed ? load_cached(own + i) : NOT_LISTED;
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const bool is_wanted = goes_on && entries[k] != NOT_LISTED;
                found[k] = is_wanted ? load_cached(side.sums + at(u32(entries[k]))) : 0;
                restarts[k] = is_wanted && entries[k] & RESTARTS_ANY && load_cached(mark(u32(entries[k])));
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u32 v = u32(entries[k]);
                const i64 restart = restarts[k] ? job.restart : 0;
                const i64 sum = count_first(sums, {v, listed_degree(entries[k]), found[k], 0, restart, false});
                if (sum != found[k]) store_cached(side.sums + at(v), sum);
                const bool is_something = __ballot_sync(ALL_LANES, sum || restarts[k]) & tile_lanes<PROGRAMS>();
                // Nothing, and from now on: what it held goes with the first pass.
                if (program == 0 && !is_something && !(entries[k] & RECEIVES))
                    store_cached(side.holders + v, u8(load_cached(side.holders + v) & ~own_bits));
            }
        }
        add_by_block<PROGRAMS>(sums, &job.counters->passes[0].balance.mass);
    }

    // Lists this warp's vertices, which hold something of the programs in ``own_bits`` from now on; how many.
    __device__ __forceinline__ u32 list_vertices(u8 own_bits) const
    {
        u64* const own = own_list();
        u32 n_listed = 0;
        const u64 step = u64(place.n_warps) * 32;
        for (u64 first = u64(place.warp) * 32; first < job.n_vertices; first += AHEAD * step) {
            u32 degrees[AHEAD];
            u8 holders[AHEAD];
            bool restarts[AHEAD], has_edges[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u64 v = first + k * step + place.lane;
                const bool is_there = v < job.n_vertices;
                degrees[k] = is_there ? load_row(out, u32(v)).degree : 0;
                has_edges[k] = is_there && load_row(in, u32(v)).degree;
                holders[k] = is_there ? load_cached(side.holders + v) : u8(0);
                restarts[k] = is_there && load_cached(side.sources + v);
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                const u32 v = u32(first + k * step) + place.lane;
                const bool is_listed = has_edges[k] || restarts[k] || holders[k];
                const u32 chosen = __ballot_sync(ALL_LANES, is_listed);
                if (is_listed) {
                    store_cached(own + n_listed + __popc(chosen & lanes_before()),
                        u64(degrees[k]) << 32 | v | (restarts[k] ? RESTARTS_ANY : 0) | (has_edges[k] ? RECEIVES : 0));
                    if ((holders[k] | own_bits) != holders[k]) store_cached(side.holders + v, u8(holders[k] | own_bits));
                }
                n_listed += __popc(chosen);
            }
        }
        return n_listed;
    }

    // Finds out anew who holds what of this warp's vertices: of all programs of the group, whether they are there or not.
    __device__ __forceinline__ void find_holders() const
    {
        const u64 step = u64(place.n_warps) * 32;
        for (u64 first = u64(place.warp) * 32; first < job.n_vertices; first += step) {
            const u32 n = u32(min(u64(32), job.n_vertices - first));
            u32 holders = 0;  // of this lane's vertex
#pragma unroll 2
            for (u32 k = 0; k < 32; k += TOGETHER) {
                const u32 i = k + place.lane / PROGRAMS;
                const u64 of = (first + i) * PROGRAMS + program;
                const bool holds = i < n
                    && (load_cached(side.values + of) | load_cached(side.sums + of) | load_cached(side.shares + of));
                const u32 holding = __ballot_sync(ALL_LANES, holds);
                if (place.lane / TOGETHER == k / TOGETHER) holders = holding >> place.lane % TOGETHER * PROGRAMS & 0xff;
            }
            if (place.lane < n) store_cached(side.holders + first + place.lane, u8(holders));
        }
        __syncwarp();
    }

    // Of this warp.
    __device__ __forceinline__ u64* own_list() const
    {
        const u64 of_all = u64(place.n_warps) * 32;
        const u32 of_warp = u32((job.n_vertices + of_all - 1) / of_all) * 32;
        return side.listed + u64(place.warp) * of_warp;
    }

    __device__ __forceinline__ void advance(double factor)
    {
        for_those(false, [&](const Vertex& vertex) {
            const i64 restart = vertex.restart, sum = vertex.sum;
            const i64 value = sum == restart ? restart : nearest(exact::multiply(double(sum), factor));
            const u64 own = at(vertex.v);
            store_cached(side.values + own, value);
            // Of several programs right-hand sides are added as residuals are looked at.
            if (PROGRAMS == 1) store_cached(side.sums + own, restart);
            else if (!vertex.receives) store_cached(side.sums + own, i64(0));
            store_cached(side.shares + own, share_of(value, vertex.degree, job.damping));
        });
    }

    __device__ __forceinline__ void pull()
    {
        if constexpr (PROGRAMS > 1) return pull_side_by_side();
        SidesRead read;
        for_leaves<RANGE>(in, place, [&](u32 begin, u32 end) { pull_leaves(begin, end, read); });
        read.tell(in);
    }

    // As scan_leaves of rows.cuh, also of leaves that are remote.
    __device__ __forceinline__ void pull_leaves(u32 begin, u32 end, SidesRead& read)
    {
        const auto emit = [&](u32 row, i64 sum) {
            if (sum) add(side.sums + at(row), sum);
        };
        const u32 counts = begin + place.lane < end ? load_constant(count_of(in, begin + place.lane)) : 0;
        if (counts) read.add(in, begin + place.lane, counts, LINES_OF_LEAF);
        Carry<i64> carry = {NO_LEAF, 0};
        for (u32 leaf = begin; leaf < end; leaf += LEAVES_TOGETHER) {
            SlotPair pairs[LEAVES_TOGETHER];
            i64 values[LEAVES_TOGETHER][2];
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++)
                pairs[i] = load_pair(in, leaf + i, __shfl_sync(ALL_LANES, counts, (leaf + i - begin) & 31));
#pragma unroll
            for (u32 i = 0; i < LEAVES_TOGETHER; i++)
#pragma unroll
                for (u32 j = 0; j < 2; j++)
                    values[i][j] = pairs[i].keys[j] == EMPTY_KEY ? 0 : side.shares[at(destination(pairs[i].keys[j]))];
            for (u32 i = 0; i < LEAVES_TOGETHER && leaf + i < end; i++) sum_leaf(pairs[i], values[i], carry, emit);
        }
        if (place.lane == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
    }

    // The same by PROGRAMS lanes for a part of all leaves, which go along them together, each for its program: so they need not
    // add up what others have, and what they read of a neighbour lies together. As many leaves for each, to within one: rows
    // are cut in two between parts alone. The part that a row begins in stores what it adds up, whatever was there before; the
    // others add to that, once all have stored. Right-hand sides are left out. No leaf is remote here.
    __device__ __forceinline__ void pull_side_by_side()
    {
        constexpr u32 STEP = PROGRAMS;  // slots: one that each lane reads, for all to see
        const u32 part = vertices.thread, n_parts = gridDim.x * (blockDim.x / PROGRAMS);
        const u32 begin = u32(u64(in.n_leaves) * part / n_parts), end = u32(u64(in.n_leaves) * (part + 1) / n_parts);
        const auto load_count = [&](u32 leaf) { return leaf < end ? load_constant(count_of(in, leaf)) : 0; };
        // Counts of as many leaves, one a lane, and of those behind them.
        u32 counts = load_count(begin + program), counts_behind = load_count(begin + PROGRAMS + program);
        u32 leaf = begin, at = 0, count = __shfl_sync(ALL_LANES, counts, 0, PROGRAMS);
        const auto load = [&]() {
            return at + program < count ? load_once(keys_of(in, leaf) + at + program) : EMPTY_KEY;
        };
        const i64* const shares = held(side.shares + program);
        // Of the slots of a step, by all lanes.
        __shared__ u32 rows[BLOCK_THREADS];
        u32* const own_rows = rows + (threadIdx.x & ~(PROGRAMS - 1));
        // The row before the part, which may go on in it.
        u32 row = NO_LEAF;
        for (u32 before = begin; before-- && row == NO_LEAF;)
            if (const u32 n = load_constant(count_of(in, before))) row = source(load_constant(keys_of(in, before) + n - 1));
        const u32 cut = row;
        i64 sum = 0, of_cut = 0;
        const auto emit = [&](u32 of) {
            if (of == cut) of_cut = sum;
            else if (goes_on) store_cached(side.sums + u64(of) * PROGRAMS + program, sum);
        };
        u64 key = load();
        while (__any_sync(ALL_LANES, leaf < end)) {
            // Lanes behind the last slot are in its row still, and read of nobody.
            const u32 n = min(count - at, STEP);
            const u32 neighbour = key == EMPTY_KEY ? side.nobody : destination(key);
            const u32 last = __shfl_sync(ALL_LANES, source(key), max(n, 1u) - 1, PROGRAMS);
            const u32 own = program < n ? source(key) : n ? last : row;
            i64 values[STEP];
#pragma unroll
            for (u32 k = 0; k < STEP; k++)
                values[k] = shares[u64(__shfl_sync(ALL_LANES, neighbour, k, PROGRAMS)) * PROGRAMS];
            at += STEP;
            if (at >= count) {
                at = 0;
                leaf++;
                if ((leaf - begin) % PROGRAMS == 0) {
                    counts = counts_behind;
                    counts_behind = load_count(leaf + PROGRAMS + program);
                }
            }
            count = __shfl_sync(ALL_LANES, counts, (leaf - begin) % PROGRAMS, PROGRAMS);
            key = load();
            u32 before = __shfl_up_sync(ALL_LANES, own, 1, PROGRAMS);
            if (program == 0) before = row;
            rows[threadIdx.x] = before;
            // This is also where all have the rows of this step.
            const u32 begins = __ballot_sync(ALL_LANES, own != before) >> (place.lane & ~(PROGRAMS - 1));
            __syncwarp();
#pragma unroll
            for (u32 k = 0; k < STEP; k++) {
                if (begins >> k & 1) {
                    emit(own_rows[k]);
                    sum = 0;
                }
                sum += values[k];
            }
            row = __shfl_sync(ALL_LANES, own, STEP - 1, PROGRAMS);
            __syncwarp();  // all have read rows
        }
        emit(row);
        barrier();
        if (of_cut && goes_on) add(side.sums + u64(cut) * PROGRAMS + program, of_cut);
    }

    __device__ __forceinline__ void look(PprPass* to)
    {
        u64 sums[PPR_PASS_SUMS] = {};
        for_those(true, [&](const Vertex& vertex) {
            const i64 sum = PROGRAMS == 1 ? vertex.sum : vertex.sum + vertex.restart;
            if (sum != vertex.sum) store_cached(side.sums + at(vertex.v), sum);
            const i64 residual = sum - vertex.value;
            count(sums, sum, vertex.restart, vertex.degree);
            sums[BALANCE_SUMS] += u64(vertex.value);
            sums[BALANCE_SUMS + 1] += u64(size_of(residual));
            sums[BALANCE_SUMS + 2] += u64(residual);
        });
        add_by_block<PROGRAMS>(sums, &to->balance.mass);
    }

    __device__ __forceinline__ float* estimates() const { return reinterpret_cast<float*>(job.differences); }

    __device__ __forceinline__ void account()
    {
        const auto load_value = [&](u32 v) { return load_cached(side.values + at(v)); };
        const double per_unit = 1.0 / job.unit;  // exact
        for_vertices<i64>(place, job.n_vertices, load_value,
            [&](u32 v, i64 value) { estimates()[v] = published(value, per_unit); });
    }

    // The same of several programs, which have a column each for them: a lane has neighbouring vertices.
    __device__ __forceinline__ void account_side_by_side()
    {
        constexpr u32 RUN = 4;
        const double per_unit = 1.0 / job.unit;  // exact
        const u64 step = u64(place.n_threads / PROGRAMS) * RUN, begin = u64(vertices.thread) * RUN;
        const auto load_holders = [&](u64 first) {
            return first < job.n_vertices ? load_cached(reinterpret_cast<const u32*>(side.holders + first)) : 0;
        };
        u32 next = load_holders(begin);
        for (u64 first = begin; first < job.n_vertices; first += step) {
            const u32 holders = next >> program;
            next = load_holders(first + step);
            const u32 n = u32(min(u64(RUN), job.n_vertices - first));
            i64 values[RUN];
#pragma unroll
            for (u32 k = 0; k < RUN; k++)
                values[k] = k < n && holders >> 8 * k & 1 ? load_cached(side.values + at(u32(first) + k)) : 0;
            float made[RUN];
#pragma unroll
            for (u32 k = 0; k < RUN; k++) made[k] = published(values[k], per_unit);
            float* const to = estimates() + first;
            if (n == RUN) store_wide(reinterpret_cast<float4*>(to), make_float4(made[0], made[1], made[2], made[3]));
            else
                for (u32 k = 0; k < n; k++) to[k] = made[k];
        }
    }
};
