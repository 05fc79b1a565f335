// Counts of shortest paths after a batch of updates, or from scratch: one cooperative kernel, after the one that mends the
// search (mend.cu, search.cu). The algorithm is the host's (compute/counts/sspaths.py says why it is right), and so are the
// counts, whatever the order of threads: below the limit they are whole numbers, added in int64 or exactly in double.
//
// 1. moved: the vertices that the search wrote and that are on another level than before are seeds.
// 2. heads: those of changed edges gain and lose the counts of their tails. Who moves farther takes its count back from
//    its successors.
// 3. Seeds are put in order by level.
// 4. recount, level by level: the count of a seed is that of before and what it gained, or is added up along its in-row.
//    Where it is another, successors gain the difference, and have their turn on the next level.
//
// After few updates the first block does 1 to 3 for all (alone.cuh).
//
// Where that comes to too many edges, all vertices of the levels that are left are seeds instead, each is added up along
// its in-row, and nobody tells of a difference. From scratch that is so from the first level on.
#include "alone.cuh"
#include "fixed.cuh"

constexpr u32 NO_LEVEL = 0xffffffffu;
constexpr double LIMIT = 9007199254740992.0;  // 2^53: there counts stop
constexpr i64 WHOLE_LIMIT = 1ll << 53;

// Bits of a vertex's role; none between runs.
constexpr u32 QUEUED = 1;    // it is a seed or in the queue
constexpr u32 BY_ROW = 2;    // its in-edges must be summed: what it is to grow by is not known
constexpr u32 FARTHER = 4;   // it moves to a deeper level, or to none

// What blocks that join a run must know.
struct CountHanded {
    u32 phase, turn;
    u64 edges;
};

// Zero between runs, all but the barrier and what was handed over.
struct __align__(16) CountCounters {
    Counts receiving[3];  // in-rows to add up; by turns
    Counts telling[3];    // out-rows whose heads learn of a difference; by turns
    u64 saturated;        // by how many more counts are at the limit
    u32 seeds, changed;
    u32 queued[3];        // by turns
    u32 above, most;      // levels of seeds; ``above`` the bits of the least one, turned over
    u32 barrier;          // of the grid; never reset
    u32 late;             // a vertex that was queued must be counted by its in-edges, and was not known to
    u32 unused;
    CountHanded handed;
};

// What the kernel works in, and one run; passed by value.
struct CountJob {
    u32* levels;       // [vertices] those on which the counts stand
    double* paths;     // [vertices] the counts
    double* sums;      // [vertices] counts that are being added up
    i64* deltas;       // [vertices] what a count is to grow by; zero between runs
    i64* differences;  // [vertices] what successors are to grow by
    u32* roles;        // [vertices]
    u32* seeds;        // [vertices]
    u32* sorted;       // [vertices] seeds by level
    u32* ends;         // [vertices + 1] where those of a level end; zero between runs
    u32* queues[2];    // [vertices] by turns
    Entry* short_rows;    // [2 * room]
    Entry* long_rows;     // [2 * long_room]
    CountCounters* counters;
    u64* status;          // in the host's pinned memory, each with the sequence in its upper half
    u32* changed;         // [changes_room] likewise: vertices with another count
    double* changes;      // [changes_room] and that
    u32 room;             // as many as vertices
    u32 long_room;
    u32 changes_room;
    u32 unused;
    // The run. First the batch, and what became of its updates; the search's words, and the vertices that it wrote.
    const u64* keys;
    const u8* outcomes;
    const u64* words;
    const u32* touched;
    u64 edges_max;  // from so many on all that are left are counted anew
    u32 n_updates;
    u32 n_touched;
    u32 begins;     // 1: from scratch, the counts being zero
    u32 n_vertices;
    u32 sequence;
    u32 n_saturated;  // counts that are at the limit
};
static_assert(__is_trivially_copyable(CountJob), "the host passes its bytes");

// What a run says; the host has it as a tuple, CountRun.
constexpr u32 COUNT_SAID = 5;

// Vertices that a warp has found and will list together: to claim a place in a list of all for each leaf that it reads
// would keep it waiting, and all warps of a grid for one counter.
struct Found {
    static constexpr u32 ROOM = 128;  // as many as a leaf may bring more than are listed

    u32* const mine;  // [ROOM] in shared memory, of this warp
    u32 n = 0;

    __device__ __forceinline__ void add(u32* to, u32* counter, const bool (&chosen)[2], const u32 (&vertex)[2])
    {
        const Votes votes = vote(chosen[0], chosen[1]);
        if (!votes.count()) return;
        for (u32 j = 0; j < 2; j++)
            if (chosen[j]) mine[n + votes.before(j)] = vertex[j];
        __syncwarp();
        n += votes.count();
        if (n > ROOM - LEAF_SLOTS) list(to, counter);
    }

    __device__ __forceinline__ void list(u32* to, u32* counter)
    {
        if (!n) return;
        u32 base = 0;
        if (lane_number() == 0) base = atomicAdd(counter, n);
        base = __shfl_sync(ALL_LANES, base, 0);
        for (u32 i = lane_number(); i < n; i += 32) store_cached(to + base + i, mine[i]);
        __syncwarp();
        n = 0;
    }
};

enum CountPhase : u32 { MOVED, HEADS, ORDER, RECOUNT };

struct Counting : Run<CountJob> {
    const Alone<CountHanded> alone;
    // What all threads agree about.
    u64 edges = 0, counted = 0;
    u32 rounds = 0, turn = 0;
    u32 level = 0;
    bool is_anew = false;
    // Of this thread.
    u64 saturated[1] = {};

    __device__ __forceinline__ Counting(const State& out, const State& in, const CountJob& job, const Place& place)
        : Run(out, in, job, place), alone{place, &job.counters->handed, &job.counters->barrier}
    {
    }

    __device__ __forceinline__ u32 level_now(u32 v) const { return u32(load_cached(job.words + v) >> 32); }

    __device__ __forceinline__ Frontier receiving() const
    {
        return {job.short_rows, job.long_rows, job.counters->receiving + turn % 3, job.room};
    }

    __device__ __forceinline__ Frontier telling() const
    {
        return {job.short_rows + job.room, job.long_rows + job.long_room, job.counters->telling + turn % 3, job.room};
    }

    __device__ __forceinline__ u32* queue() const { return job.queues[turn & 1]; }

    __device__ __forceinline__ u32 n_queued() const { return load_cached(job.counters->queued + turn % 3); }

    // What the next turn counts begins at zero: it is the one before last that had these counters.
    __device__ __forceinline__ void clear_next()
    {
        if (place.thread) return;
        CountCounters* const counters = job.counters;
        const u32 next = (turn + 1) % 3;
        clear_counts(counters->receiving + next);
        clear_counts(counters->telling + next);
        counters->queued[next] = 0;
    }

    __device__ __forceinline__ void run()
    {
        u32 phase = MOVED;
        if (!job.begins && place.n_blocks > 1 && job.n_updates <= ALONE_UPDATES && job.n_touched <= ALONE_UPDATES) {
            const CountHanded from = alone.begin(place, {MOVED, 0, 0});
            phase = from.phase;
            turn = from.turn;
            edges = from.edges;
        }
        if (phase == END) return;
        if (job.begins) count_from(0);
        else update(phase);
        finish();
        alone.let_go(place);
    }

    // All go on from here, in this phase, if they do not yet.
    __device__ __forceinline__ void share(CountPhase now)
    {
        if (alone.is_alone(place)) alone.call_others(place, {now, turn, edges});
    }

    // Calls work(k, is_there) for the numbers below n, by whole warps.
    template <class Work> __device__ __forceinline__ void for_each(u32 n, Work work)
    {
        for (u64 first = u64(place.warp) * 32; first < n; first += place.n_threads)
            work(u32(first) + place.lane, first + place.lane < n);
    }

    // Vertices of two lists; without a first one all that are on the level ``from``, below it or on none.
    struct Chosen {
        const u32* first;
        u32 n_first;
        const u32* second;
        u32 n_second;
        u32 from;
    };

    // Calls work(is_there, vertex) for each, by whole warps.
    template <class Work> __device__ __forceinline__ void for_chosen(const Chosen& chosen, Work work)
    {
        for_each(chosen.n_first + chosen.n_second, [&](u32 k, bool is_there) {
            u32 v = k;
            if (!is_there) v = 0;
            else if (!chosen.first) is_there = level_now(v) >= chosen.from;
            else v = load_cached(k < chosen.n_first ? chosen.first + k : chosen.second + (k - chosen.n_first));
            work(is_there, v);
        });
    }

    // Lists the chosen vertices of the lanes.
    __device__ __forceinline__ static void list_one(u32* to, u32* counter, bool is_chosen, u32 v)
    {
        const bool chosen[2] = {is_chosen, false};
        const u32 vertex[2] = {v, 0};
        list(to, counter, chosen, vertex);
    }

    // Adds the rows of the chosen vertices of the lanes.
    __device__ __forceinline__ static void put_one(const State& rows, const Frontier& to, bool is_chosen, u32 v)
    {
        const bool chosen[2] = {is_chosen, false};
        const u32 vertex[2] = {v, 0};
        const Row row[2] = {is_chosen ? load_row(rows, v) : Row{0, 0}, {0, 0}};
        if (__any_sync(ALL_LANES, is_chosen)) put<false>(rows, to, chosen, vertex, row);
    }

    // -- seeds -----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void update(u32 phase)
    {
        if (phase == MOVED) {
            seed_moved();
            barrier();
            edges += load_counts(telling().counts).edges;
        }
        if (phase <= HEADS) {
            const Counts leaving = load_counts(telling().counts);
            if (n_pieces(leaving) > ALONE_ROWS) share(HEADS);
            if (leaving.edges > job.edges_max) return count_from(0);
            seed_heads();
            if (!is_empty(leaving)) tell_successors(job.seeds, &job.counters->seeds, leaving);
            turn++;
            barrier();
        }
        if (phase <= ORDER) {
            const u32 n = load_cached(&job.counters->seeds);
            if (!n) return;
            if (n > ALONE_UPDATES) share(ORDER);
            put_in_order({job.seeds, n, nullptr, 0, 0});
        }
        share(RECOUNT);
        const u32 from = recount();
        if (from != NO_LEVEL) count_from(from);
    }

    __device__ __forceinline__ void seed_moved()
    {
        for_each(job.n_touched, [&](u32 k, bool is_there) {
            const u32 v = is_there ? load_cached(job.touched + k) : 0;
            bool moves = false, leaves = false;
            if (is_there) {
                const u32 before = load_cached(job.levels + v), now = level_now(v);
                moves = now != before;
                leaves = moves && now > before;
                if (moves) store_cached(job.roles + v, QUEUED | BY_ROW | (leaves ? FARTHER : 0));
                if (leaves) store_cached(job.differences + v, -i64(load_cached(job.paths + v)));
            }
            __syncwarp();
            list_one(job.seeds, &job.counters->seeds, moves, v);
            put_one(out, telling(), leaves, v);
        });
    }

    __device__ __forceinline__ void seed_heads()
    {
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
            const u32 u = source(key), v = destination(key);
            bool is_new = false;
            if (is_change) {
                const u32 above = load_cached(job.levels + u);
                const bool leads = above != NO_LEVEL && above + 1 == load_cached(job.levels + v);
                const bool is_unknown = outcome == INSERTED && load_cached(job.roles + u) & FARTHER
                    && level_now(u) != NO_LEVEL && level_now(u) + 1 == level_now(v);
                if (is_unknown) is_new = mark(v, QUEUED | BY_ROW);
                else if (leads) {
                    const i64 count = i64(load_cached(job.paths + u));
                    is_new = grow(v, outcome == INSERTED ? count : -count);
                }
            }
            __syncwarp();
            list_one(job.seeds, &job.counters->seeds, is_new, v);
        });
    }

    // Whether the vertex must be queued.
    __device__ __forceinline__ bool mark(u32 v, u32 role) { return !(atomicOr(job.roles + v, role) & QUEUED); }

    // Lets the count of a vertex grow; what it was to grow by before. Where differences add up to the limit in size it is
    // counted by its in-edges: more might not fit. What is added to a vertex that is counted so means nothing, and is
    // set to zero with the rest when its turn comes.
    __device__ __forceinline__ u64 add_to(u32 v, i64 difference)
    {
        return atomicAdd(reinterpret_cast<u64*>(job.deltas + v), u64(difference));
    }

    // Whether a vertex that was to grow by so much, and now does by the difference, too, must be queued. Most find that
    // something was added before, and are done: who added that to nothing has queued it.
    __device__ __forceinline__ bool must_queue(u32 v, u64 before, i64 difference)
    {
        const i64 now = i64(before + u64(difference));
        const bool fits = now > -WHOLE_LIMIT && now < WHOLE_LIMIT;
        if (before && fits) return false;
        if (!fits) store_cached(&job.counters->late, 1u);
        return mark(v, fits ? QUEUED : QUEUED | BY_ROW);
    }

    __device__ __forceinline__ bool grow(u32 v, i64 difference)
    {
        return difference && must_queue(v, add_to(v, difference), difference);
    }

    // The successors of these vertices grow by the difference of each, and are listed if they were not.
    __device__ __forceinline__ void tell_successors(u32* to, u32* counter, const Counts& counts)
    {
        struct Tail {
            i64 difference;
            u32 below;
        };
        const auto load = [&](u32 u) {
            return Tail{load_cached(job.differences + u), load_cached(job.levels + u) + 1};
        };
        __shared__ u32 room[BLOCK_THREADS / 32][Found::ROOM];
        Found found{room[threadIdx.x >> 5]};
        walk_rows(out, telling(), counts, place, load, [&](const Tail& tail, u32, const Edges& row, bool) {
            bool grows[2], is_new[2] = {false, false};
            u64 before[2] = {0, 0};
            // Both loads are under way together, and both additions.
            u32 level_of[2];
            for (u32 j = 0; j < 2; j++) level_of[j] = row.live[j] ? load_cached(job.levels + row.head[j]) : NO_LEVEL;
            for (u32 j = 0; j < 2; j++) grows[j] = row.live[j] && tail.difference && level_of[j] == tail.below;
            for (u32 j = 0; j < 2; j++)
                if (grows[j]) before[j] = add_to(row.head[j], tail.difference);
            for (u32 j = 0; j < 2; j++)
                if (grows[j]) is_new[j] = must_queue(row.head[j], before[j], tail.difference);
            __syncwarp();
            found.add(to, counter, is_new, row.head);
            return false;
        });
        found.list(to, counter);
    }

    // -- order -----------------------------------------------------------------------------------------------------

    // Puts seeds in order by level; those that are on none have no paths.
    __device__ __forceinline__ void put_in_order(const Chosen& seeds)
    {
        CountCounters* const counters = job.counters;
        u32 least = NO_LEVEL, most = 0;
        for_chosen(seeds, [&](bool is_there, u32 v) {
            const u32 at = is_there ? level_now(v) : NO_LEVEL;
            const bool changes = is_there && at == NO_LEVEL && set_count(v, NO_LEVEL, 0.0);
            if (at != NO_LEVEL) {
                least = min(least, at);
                most = max(most, at);
            }
            advance_end(at);
            log_changed(changes, v);
        });
        least = __reduce_min_sync(ALL_LANES, least);
        most = __reduce_max_sync(ALL_LANES, most);
        if (place.lane == 0 && least != NO_LEVEL) {
            atomicMax(&counters->above, ~least);
            atomicMax(&counters->most, most);
        }
        barrier();
        least = ~load_cached(&counters->above);
        most = load_cached(&counters->most);
        if (place.is_in_first_block() && least != NO_LEVEL) add_up_ends(least, most);
        barrier();
        for_chosen(seeds, [&](bool is_there, u32 v) {
            const u32 at = is_there ? level_now(v) : NO_LEVEL;
            const u32 to = advance_end(at);
            if (at != NO_LEVEL) store_cached(job.sorted + to, v);
            __syncwarp();
        });
        barrier();
    }

    // Moves the end of a lane's level by one; where it was. Lanes of one level do it at once: levels are few.
    __device__ __forceinline__ u32 advance_end(u32 at)
    {
        const u32 peers = __match_any_sync(ALL_LANES, at), first = __ffs(peers) - 1;
        u32 before = 0;
        if (at != NO_LEVEL && place.lane == first) before = atomicAdd(job.ends + at, u32(__popc(peers)));
        return __shfl_sync(ALL_LANES, before, first) + __popc(peers & lanes_before());
    }

    // Makes numbers of vertices the places where those of a level begin; when they are put there, these become the ends.
    __device__ __forceinline__ void add_up_ends(u32 least, u32 most)
    {
        __shared__ u32 sums[33];
        u32 before = 0;
        for (u64 first = least; first <= most; first += blockDim.x) {
            const u64 at = first + threadIdx.x;
            const u32 n = at <= most ? load_cached(job.ends + at) : 0;
            u32 total;
            const u32 begin = before + block_scan(n, sums, total);
            if (at <= most) store_cached(job.ends + at, begin);
            before += total;
        }
    }

    // -- level by level --------------------------------------------------------------------------------------------

    // Sets level and count of a vertex, and that it waits for nothing; whether the count is another.
    __device__ __forceinline__ bool set_count(u32 v, u32 at, double count)
    {
        const double before = load_cached(job.paths + v);
        store_cached(job.levels + v, at);
        store_cached(job.deltas + v, i64(0));
        store_cached(job.roles + v, 0u);
        if (count == before) return false;
        store_cached(job.paths + v, count);
        saturated[0] += u64(i64(count >= LIMIT) - i64(before >= LIMIT));
        return true;
    }

    __device__ __forceinline__ void log_changed(bool changes, u32 v)
    {
        const u32 chosen = __ballot_sync(ALL_LANES, changes);
        if (!chosen) return;
        u32 base = 0;
        if (place.lane == 0) base = atomicAdd(&job.counters->changed, u32(__popc(chosen)));
        base = __shfl_sync(ALL_LANES, base, 0) + __popc(chosen & lanes_before());
        if (changes && base < job.changes_room) {
            job.changed[base] = v;
            job.changes[base] = load_cached(job.paths + v);
        }
        __syncwarp();
    }

    // From seeds in order. The level from which on all is to be counted anew; NO_LEVEL: all are counted.
    __device__ __forceinline__ u32 recount()
    {
        const u32 least = ~load_cached(&job.counters->above), most = load_cached(&job.counters->most);
        const u32 n_sorted = least == NO_LEVEL ? 0 : load_cached(job.ends + most);
        const auto end_of = [&](u32 of) { return least <= of && of <= most ? load_cached(job.ends + of) : 0; };
        u32 seen = 0, from = NO_LEVEL;
        u32 asked = NO_LEVEL;  // the level whose rows to be added up are queued
        for (;;) {
            const u32 n_here = n_queued();
            if (n_here) level++;
            else if (seen < n_sorted) level = level_now(load_cached(job.sorted + seen));
            else break;
            clear_next();
            const u32 end = max(seen, end_of(level)), further = max(end, end_of(level + 1));
            const u32 n_seeds = end - seen;
            counted += n_seeds + n_here;
            rounds++;
            const Chosen here = {job.sorted + seen, n_seeds, queue(), n_here, 0};
            // Who is to be added up is not known ahead where counts have stopped, or others do as they are told of more.
            const bool is_known = !is_anew && !job.n_saturated && !load_cached(&job.counters->late);
            if (asked != level || !is_known) ask_rows(here, asked == level);
            count_level(here);
            seen = end;
            const Counts counts = load_counts(telling().counts);
            edges += counts.edges;
            if (!is_anew && edges > job.edges_max) {
                from = level + 1;
                break;
            }
            if (!is_empty(counts))
                tell_successors(job.queues[(turn + 1) & 1], job.counters->queued + (turn + 1) % 3, counts);
            turn++;
            if (is_known) {
                asked = level + 1;
                queue_rows({job.sorted + end, further - end, nullptr, 0, 0});
            }
            // Where there was nothing to do, there is nothing to wait for.
            if (!is_empty(counts) || (is_known && further > end)) barrier();
        }
        barrier();  // all have seen where levels end
        for (u64 at = u64(least) + place.thread; least != NO_LEVEL && at <= most; at += place.n_threads)
            store_cached(job.ends + at, 0u);
        return from;
    }

    // Queues the rows of vertices of one level that are added up.
    __device__ __forceinline__ void queue_rows(const Chosen& here)
    {
        for_chosen(here, [&](bool is_there, u32 v) {
            const bool by_row = is_there && is_by_row(v), is_source = by_row && level_now(v) == 0;
            if (by_row) store_cached(job.sums + v, is_source ? 1.0 : 0.0);
            __syncwarp();
            put_one(in, receiving(), by_row && !is_source, v);
        });
    }

    // The same, and waits; ``again``: where some are queued already.
    __device__ __forceinline__ void ask_rows(const Chosen& here, bool again)
    {
        if (again) {
            if (place.thread == 0) clear_counts(receiving().counts);
            barrier();
        }
        queue_rows(here);
        barrier();
    }

    // Counts the vertices of a level, those above it being final and rows being queued; those with another count tell of
    // it next.
    __device__ __forceinline__ void count_level(const Chosen& here)
    {
        const Counts counts = load_counts(receiving().counts);
        edges += counts.edges;
        if (!is_empty(counts)) {
            receive(counts);
            barrier();
        }
        for_chosen(here, [&](bool is_there, u32 v) {
            bool tells = false, changes = false;
            if (is_there) {
                const double before = load_cached(job.paths + v);
                const bool by_row = is_by_row(v), moves = load_cached(job.levels + v) != level;
                const bool leaves = load_cached(job.roles + v) & FARTHER;
                const double grown = before + double(load_cached(job.deltas + v));
                const double count = min(by_row ? load_cached(job.sums + v) : grown, LIMIT);
                changes = set_count(v, level, count);
                tells = !is_anew && !leaves && (moves || changes);
                if (tells) store_cached(job.differences + v, i64(count) - (moves ? 0 : i64(before)));
            }
            __syncwarp();
            log_changed(changes, v);
            put_one(out, telling(), tells, v);
        });
        barrier();
    }

    // Nothing is ever taken away from a count that has stopped.
    __device__ __forceinline__ bool is_by_row(u32 v) const
    {
        return is_anew || load_cached(job.roles + v) & BY_ROW || load_cached(job.paths + v) >= LIMIT;
    }

    // Adds up the counts of predecessors. Sums of whole numbers are exact up to the limit, and never fall below it again.
    __device__ __forceinline__ void receive(const Counts& counts)
    {
        const auto load = [](u32) { return 0; };
        walk_rows(in, receiving(), counts, place, load, [&](int, u32 v, const Edges& row, bool) {
            double sum = 0.0;
            for (u32 j = 0; j < 2; j++)
                if (row.live[j] && level_now(row.head[j]) + 1 == level) sum += load_cached(job.paths + row.head[j]);
            sum = warp_sum(sum);
            if (place.lane == 0 && sum > 0.0) atomicAdd(job.sums + v, sum);
            __syncwarp();
            return false;
        });
    }

    // -- from scratch ----------------------------------------------------------------------------------------------

    // Counts all vertices from a level on; those above it are counted.
    __device__ __forceinline__ void count_from(u32 from)
    {
        is_anew = true;
        barrier();
        if (place.thread == 0) {
            CountCounters* const counters = job.counters;
            for (u32 k = 0; k < 3; k++) {
                clear_counts(counters->receiving + k);
                clear_counts(counters->telling + k);
                counters->queued[k] = 0;
            }
            counters->above = counters->most = 0;
        }
        barrier();
        turn = 0;
        put_in_order({nullptr, job.n_vertices, nullptr, 0, from});
        recount();
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        CountCounters* const counters = job.counters;
        add_by_block(saturated, &counters->saturated);
        barrier();
        if (place.thread) return;
        const u64 said[COUNT_SAID] = {
            load_cached(&counters->changed), load_cached(&counters->saturated), edges, rounds, counted};
        for (u32 k = 0; k < 3; k++) {
            clear_counts(counters->receiving + k);
            clear_counts(counters->telling + k);
            counters->queued[k] = 0;
        }
        counters->saturated = counters->seeds = counters->changed = counters->above = counters->most = 0;
        counters->late = 0;
        __threadfence_system();
        for (u32 k = 0; k < COUNT_SAID; k++) tell(job, k, said[k]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void recount(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ CountJob job)
{
    Counting(out, in, job, place_in_grid()).run();
}

#if !REMOTE
// Several jobs at once, each by a part of the grid.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void recount_several(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ Jobs<CountJob> jobs)
{
    __shared__ CountJob job;
    const Place place = jobs.take(job);
    Counting(out, in, job, place).run();
}
#endif
