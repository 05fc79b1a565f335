// Counts of shortest paths after a batch of updates (recount.cu, count_rest.cu), or from scratch (count_all.cu):
// cooperative kernels, after the one that mends the search (mend.cu, search.cu). The algorithm is the host's
// (compute/counts/sspaths.py says why it is right), and so are the counts, whatever the order of threads: below the limit
// they are whole numbers, added in int64 or exactly in double.
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
// Where that comes to too many edges, all vertices of the levels that are left are counted anew, and from scratch those of
// all levels: by kernels of two blocks a multiprocessor, since these passes over all wait for memory, and what goes by
// differences would lack registers. Between two levels paths are added along the out-rows of the upper one, or along the
// in-rows of the lower one: of whichever has fewer vertices. What they come to is written when all have been added up.
//
// Where the first level that is left is shorter than the one above, but long, as it most often is, one pass over all vertices
// lists it, and what is below it, which are few. Rows of the list are gone along by a thread each, and have their counts then.
// And a level that would tell of too many edges, if its vertices told of as many as the last time, is left to be counted in
// that pass.
//
// After many updates differences of a long level are not told on where what is below it are few vertices (``deep``): all of
// these are added up along their in-rows then, a level in one go. They are looked for while a level above is told on, as most
// warps wait then.
//
// MARKS: when each part ended is told behind the list of changes, whose last entries are free then
// (benchmarks/device_counts.py).
#pragma once

#include "alone.cuh"
#include "fixed.cuh"
#include "pull.cuh"
#include "together.cuh"

#ifndef MARKS
#define MARKS 0
#endif

constexpr u32 COUNT_BLOCKS = 2;  // on a multiprocessor, of passes over all: bounds a thread's registers
constexpr u32 NO_LEVEL = 0xffffffffu;
constexpr double LIMIT = 9007199254740992.0;  // 2^53: there counts stop
constexpr i64 WHOLE_LIMIT = 1ll << 53;
constexpr u32 FAR = 0xffffffffu;  // instead of a count in the list of changes, see CountJob

// Bits of a vertex's role; none between runs.
constexpr u32 QUEUED = 1;    // it is a seed or in the queue
constexpr u32 BY_ROW = 2;    // its in-edges must be summed: what it is to grow by is not known
constexpr u32 FARTHER = 4;   // it moves to a deeper level, or to none

// What blocks that join a run must know.
struct CountHanded {
    u32 phase, turn;
    u64 edges;
};

// How far a run came that leaves levels to count_rest.cu: all above ``from`` are counted.
struct CountLeft {
    u64 edges, counted;
    u32 rounds, from;
    u32 n_marks;
    u32 sequence;  // of the run that left this
    u32 is_half;   // whoever waits on the level above ``from`` is to be counted, and tells nobody
    u32 is_apart;  // see Counting::is_apart
    u64 unused;
};

// Deep levels: the last ones, fewer than so many, that have at most so small a share of all vertices. They are counted whole
// after so many updates.
constexpr u32 DEEP_LEVELS = 8;
#ifndef DEEP_SHARE
#define DEEP_SHARE 128
#endif
#ifndef DEEP_UPDATES
#define DEEP_UPDATES 4096
#endif
// To find those: four times so many vertices are looked at by a thread together, and these by a warp.
constexpr u32 LOOKED_TOGETHER = 8, LOOKED = 4 * 32 * LOOKED_TOGETHER;
static_assert(4 * LOOKED_TOGETHER <= 32, "a bit for each");

// Levels of which is known how many edges they told of the last time; others share their places.
constexpr u32 TOLD_LEVELS = 8;
// That share of them is forgotten each time that a level is left for them.
#ifndef AGES
#define AGES 16
#endif

// Zero between runs, all but the barrier, edges that levels told of, the deep ones, what was handed over and what was left.
struct __align__(16) CountCounters {
    Counts receiving[3];  // in-rows to add up; by turns
    Counts telling[3];    // out-rows whose heads learn of a difference; by turns
    u64 saturated;        // by how many more counts are at the limit
    u64 pulled;           // edges of rows that threads have gone along
    u32 looked, deepest;  // so many times LOOKED vertices are taken; the highest level found
    u32 seeds, changed;
    u32 queued[3];        // by turns
    u32 above, most;      // levels of seeds; ``above`` the bits of the least one, turned over
    u32 barrier;          // of the grid; never reset
    u32 late;             // a vertex that was queued must be counted by its in-edges, and was not known to
    u32 deeper, next;     // vertices that are listed, see see_left
    u32 deep;  // the first deep level; 0: none is
    u64 told[TOLD_LEVELS];  // see is_too_much; never reset
    u64 unused_word;
    CountHanded handed;
    CountLeft left;
};

// What the kernel works in, and one run; passed by value.
struct CountJob {
    u32* levels;       // [vertices, up to a multiple of 4] those on which the counts stand; of others NO_LEVEL
    double* paths;     // [vertices] the counts
    double* sums;      // [vertices] counts that are being added up
    i64* deltas;       // [vertices] what a count is to grow by; zero between runs
    i64* differences;  // [vertices] what successors are to grow by
    u32* roles;        // [vertices]
    u32* log;          // [vertices] those with another count
    u32* seeds;        // [vertices]
    u32* sorted;       // [vertices] seeds by level
    u32* ends;         // [vertices + 1] where those of a level end; zero between runs
    u32* queues[2];    // [vertices] by turns
    Entry* short_rows;    // [2 * room]
    Entry* long_rows;     // [2 * long_room]
    CountCounters* counters;
    u64* status;          // in the host's pinned memory, each with the sequence in its upper half
    u64* changed;         // [changes_room] likewise: count << 32 | vertex of those with another count; or FAR << 32, and
    double* far;          // [changes_room] the count here, where it is too large for 32 bits
    u32 room;             // as many as vertices
    u32 long_room;
    u32 changes_room;
    u32 unused;
    // The run. First the batch, and what became of its updates; the search's words, and the vertices that it wrote.
    const u64* keys;
    const u8* outcomes;
    const u64* words;
    const u32* touched;
    const u32* told;  // how many it wrote, or NOT_MENDED
    u64 edges_max;    // from so many on all that are left are counted anew
    u32 n_updates;
    u32 n_vertices;
    u32 sequence;
    u32 n_saturated;   // counts that are at the limit
    u32 rest_follows;  // count_rest.cu is launched already, with this very job: nothing is told of levels that are left
    u32 unused_word;
};
static_assert(__is_trivially_copyable(CountJob), "the host passes its bytes");

// What a run says; the host has it as a tuple, CountRun.
constexpr u32 COUNT_SAID = 6;

// Leaves of rows of which a warp tells at a time.
constexpr u32 TOLD_TOGETHER = 2;

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

// Successors that a warp has found and will let grow together: of a leaf's edges few lead to any, and to let one of them
// grow takes as long as 64.
struct Growing {
    static constexpr u32 ROOM = (2 * TOLD_TOGETHER + 2) * 32;
    i64 difference[ROOM];
    u32 vertex[ROOM];
};

// What a warp holds in shared memory, one after the other.
union CountHeld {
    u32 found[Found::ROOM];
    Growing growing;
};

enum CountPhase : u32 { MOVED, HEADS, ORDER, RECOUNT };

// What may be marked; the benchmark has the names.
enum CountMark : u32 { BEGUN, SEEDED, LEFT, ORDERED, ASKED_ROWS, RECEIVED, COUNTED, TOLD_ON, ADDED, WRITTEN, LISTED };

// Levels of which a block counts its vertices by itself, before it adds them to those of all.
constexpr u32 OWN_LEVELS = 64;
// Vertices that a thread has under way at a time in passes over all.
constexpr u32 LEVELS_AHEAD = 4;
// In-rows of a level are gone along by threads, 32 neighbouring vertices at a time, where at least one of so many vertices
// is on it, but for rows of more than so many edges.
#ifndef DENSE_LEVEL
#define DENSE_LEVEL 32
#endif
constexpr u32 OWN_EDGES = 32, EDGES_TOGETHER = 4;
// Whether a level tells of too many edges is foreseen if it has so many vertices to count.
#ifndef FORESEEN_FROM
#define FORESEEN_FROM 4096
#endif
// Updates of which a thread tells the heads at a time: an even number.
constexpr u32 SEEDED_TOGETHER = 2;

// Warps are dealt out to blocks: so that few vertices or rows are seen to by many multiprocessors. Threads, by number, are
// not.
__device__ __forceinline__ Place scattered(Place place)
{
    place.warp = dealt(place).warp;
    return place;
}

// Vertices that a thread has seen on the first levels, a byte for each, until they are added to those of its block. All lanes
// take part in everything.
struct LevelsSeen {
    static constexpr u32 LEVELS = 8;

    u32* const own;  // [LEVELS] in shared memory, of this block
    u64 bytes = 0;
    u32 n = 0;

    __device__ __forceinline__ void add(u32 level)
    {
        if (level < LEVELS) bytes += 1ull << (8 * level);
        if (++n == 255) add_up();
    }

    __device__ __forceinline__ void add_up()
    {
        for (u32 k = 0; k < LEVELS; k++) {
            const u32 sum = __reduce_add_sync(ALL_LANES, u32(bytes >> (8 * k)) & 255);
            if (lane_number() == 0 && sum) atomicAdd(own + k, sum);
        }
        bytes = 0;
        n = 0;
    }
};

struct Counting : Run<CountJob> {
    const Alone<CountHanded> alone;
    CountHeld* const held;  // of this warp; null where nothing is told
    // What all threads agree about.
    u64 edges = 0, counted = 0;
    u32 rounds = 0, turn = 0;
    u32 level = 0, n_touched = 0;
    u32 deep = NO_LEVEL;     // all vertices from this level on are added up along their in-rows, and not told
    bool has_looked = false;  // for these
    u32 ended_from = 0, ended = 0;  // so many levels have ends that must be cleared, when all have seen them
    bool is_half = false;           // see CountLeft
    // Of this thread.
    u64 sums[2] = {};  // see CountCounters: saturated, pulled
    u32 n_marks = 0;

    __device__ __forceinline__ Counting(
        const State& out, const State& in, const CountJob& job, const Place& place, CountHeld* held = nullptr)
        : Run(out, in, job, place), alone{place, &job.counters->handed, &job.counters->barrier}, held(held)
    {
    }

    // Says when, in nanoseconds, the first thread is here.
    __device__ __forceinline__ void mark_time(CountMark what)
    {
        if (!MARKS || place.thread || n_marks >= job.changes_room) return;
        const u32 at = job.changes_room - ++n_marks;
        job.changed[at] = what;
        reinterpret_cast<u64*>(job.far)[at] = nanoseconds();
    }

    __device__ __forceinline__ u32 level_now(u32 v) const { return u32(load_cached(job.words + v) >> 32); }

    // In a turn whose level it is, or the turn before.
    __device__ __forceinline__ Frontier receiving(u32 turn) const
    {
        return {job.short_rows, job.long_rows, job.counters->receiving + turn % 3, job.room};
    }

    __device__ __forceinline__ Frontier telling() const
    {
        return {job.short_rows + job.room, job.long_rows + job.long_room, job.counters->telling + turn % 3, job.room};
    }

    __device__ __forceinline__ u32* queue() const { return job.queues[turn & 1]; }

    __device__ __forceinline__ u32 n_queued() const { return load_cached(job.counters->queued + turn % 3); }

    // What the next turn counts begins at zero: it is the one before last that had these counters. Rows to be added up are
    // queued a turn ahead.
    __device__ __forceinline__ void clear_next()
    {
        if (place.thread) return;
        CountCounters* const counters = job.counters;
        const u32 next = (turn + 1) % 3;
        clear_counts(counters->receiving + (turn + 2) % 3);
        clear_counts(counters->telling + next);
        counters->queued[next] = 0;
    }

    __device__ __forceinline__ void run()
    {
        u32 phase = MOVED;
        mark_time(BEGUN);
        // The search's kernel was launched before this one, whose end the host need not have seen.
        n_touched = load_constant(job.told);
        if (n_touched == NOT_MENDED) {
            if (place.thread == 0) tell_all();
            return;
        }
        if (job.n_updates >= DEEP_UPDATES && !job.rest_follows) {
            const u32 known = load_cached(&job.counters->deep);
            if (known) deep = known;
        }
        const bool is_small = job.n_updates <= ALONE_UPDATES && n_touched <= ALONE_UPDATES && deep == NO_LEVEL;
        if (place.n_blocks > 1 && is_small) {
            const CountHanded from = alone.begin(place, {MOVED, 0, 0});
            phase = from.phase;
            turn = from.turn;
            edges = from.edges;
        }
        if (phase == END) return;
        u32 from = NO_LEVEL;
        if (!update(phase, from)) {
            if (place.thread == 0) tell_all();  // nothing was counted, and nothing is to be cleared
        } else if (from == NO_LEVEL) finish(true, true);
        else leave(from);
        alone.let_go(place);
    }

    __device__ __forceinline__ void go_on()
    {
        const CountLeft left = job.counters->left;
        if (job.rest_follows && left.sequence != job.sequence) return;
        edges = left.edges;
        counted = left.counted;
        rounds = left.rounds;
        n_marks = left.n_marks;
        is_half = left.is_half;
        count_from<false>(left.from);
        finish(true);
    }

    __device__ __forceinline__ void begin()
    {
        mark_time(BEGUN);
        count_from<true>(0);
        finish(false);
    }

    // All go on from here, in this phase, if they do not yet.
    __device__ __forceinline__ void share(CountPhase now)
    {
        if (alone.is_alone(place)) alone.call_others(place, {now, turn, edges});
    }

    // Calls work(k, is_there) for the numbers below n, by whole warps, the first ones by ``warp``.
    template <class Work> __device__ __forceinline__ void for_each(u32 n, Work work) { for_each(n, work, place.warp); }

    template <class Work> __device__ __forceinline__ void for_each(u32 n, Work work, u32 warp)
    {
        for (u64 first = u64(warp) * 32; first < n; first += place.n_threads)
            work(u32(first) + place.lane, first + place.lane < n);
    }

    // Vertices of two lists.
    struct Chosen {
        const u32* first;
        u32 n_first;
        const u32* second;
        u32 n_second;
    };

    // Calls work(is_there, vertex) for each, by whole warps, the first ones by ``warp``.
    template <class Work> __device__ __forceinline__ void for_chosen(const Chosen& chosen, Work work, u32 warp)
    {
        const auto load = [&](u32 k, bool is_there) {
            u32 v = 0;
            if (is_there) v = load_cached(k < chosen.n_first ? chosen.first + k : chosen.second + (k - chosen.n_first));
            work(is_there, v);
        };
        for_each(chosen.n_first + chosen.n_second, load, warp);
    }

    template <class Work> __device__ __forceinline__ void for_chosen(const Chosen& chosen, Work work)
    {
        for_chosen(chosen, work, place.warp);
    }

    // Calls work(are_there, vertices) likewise, for two vertices a lane.
    template <class Work> __device__ __forceinline__ void for_pairs(const Chosen& chosen, Work work)
    {
        const u32 n = chosen.n_first + chosen.n_second;
        for (u64 first = u64(place.warp) * 32; first < n; first += 2 * u64(place.n_threads)) {
            bool is_there[2];
            u32 v[2] = {0, 0};
            for (u32 j = 0; j < 2; j++) {
                const u64 k = first + u64(j) * place.n_threads + place.lane;
                is_there[j] = k < n;
                if (!is_there[j]) continue;
                v[j] = load_cached(k < chosen.n_first ? chosen.first + k : chosen.second + (k - chosen.n_first));
            }
            work(is_there, v);
        }
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

    // Whether there were seeds. ``from``: the level from which on all is to be counted anew, if any is.
    __device__ __forceinline__ bool update(u32 phase, u32& from)
    {
        if (phase == MOVED && n_touched) {
            seed_moved();
            barrier();
            mark_time(SEEDED);
            edges += load_counts(telling().counts).edges;
        }
        if (phase <= HEADS) {
            const Counts leaving = n_touched ? load_counts(telling().counts) : Counts{0, 0, 0, 0};
            if (n_pieces(leaving) > ALONE_ROWS) share(HEADS);
            if (leaving.edges > job.edges_max) {
                from = 0;
                return true;
            }
            seed_heads();
            if (!is_empty(leaving)) tell_successors(job.seeds, &job.counters->seeds, leaving);
            turn++;
            barrier();
            mark_time(LEFT);
        }
        if (phase <= ORDER) {
            const u32 n = load_cached(&job.counters->seeds);
            if (!n) return false;
            if (n > ALONE_UPDATES) share(ORDER);
            put_in_order(n);
            mark_time(ORDERED);
        }
        share(RECOUNT);
        from = recount();
        return true;
    }

    __device__ __forceinline__ void seed_moved()
    {
        for_each(n_touched, [&](u32 k, bool is_there) {
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
        constexpr u32 T = SEEDED_TOGETHER;
        Found found{held->found};
        for (u64 begin = u64(place.warp) * 32; begin < job.n_updates; begin += u64(T) * place.n_threads) {
            u8 outcome[T];
            u64 key[T];
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                const u64 i = begin + u64(k) * place.n_threads + place.lane;
                outcome[k] = i < job.n_updates ? load_constant(job.outcomes + i) : u8(ABSENT);
                key[k] = i < job.n_updates ? load_constant(job.keys + i) : 0;
            }
            // All loads of a kind are under way together, and then all additions.
            u32 above[T], below[T], role[T];
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                const bool is_change = outcome[k] == INSERTED || outcome[k] == DELETED;
                above[k] = is_change ? load_cached(job.levels + source(key[k])) : NO_LEVEL;
                below[k] = is_change ? load_cached(job.levels + destination(key[k])) : NO_LEVEL;
            }
            // Who moved farther leads to a head that has not moved only where that was two levels deeper at least.
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                const bool may_lead = outcome[k] == INSERTED && below[k] != NO_LEVEL && above[k] < below[k] - 1;
                role[k] = may_lead ? load_cached(job.roles + source(key[k])) : 0;
            }
            i64 difference[T];
            u32 gains[T];  // of the head's role; 0: nothing
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                const u32 u = source(key[k]);
                const bool leads = above[k] != NO_LEVEL && above[k] + 1 == below[k];
                const bool is_unknown = role[k] & FARTHER && level_now(u) != NO_LEVEL
                    && level_now(u) + 1 == level_now(destination(key[k]));
                difference[k] = leads && !is_unknown ? i64(load_cached(job.paths + u)) : 0;
                gains[k] = is_unknown ? QUEUED | BY_ROW : difference[k] ? QUEUED : 0;
            }
            u64 before[T];
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                if (outcome[k] == DELETED) difference[k] = -difference[k];
                if (difference[k]) before[k] = add_to(destination(key[k]), difference[k]);
                role[k] = gains[k] ? atomicOr(job.roles + destination(key[k]), gains[k]) : QUEUED;
            }
#pragma unroll
            for (u32 k = 0; k < T; k += 2) {
                bool is_new[2];
                u32 v[2];
                for (u32 j = 0; j < 2; j++) {
                    v[j] = destination(key[k + j]);
                    is_new[j] = !(role[k + j] & QUEUED);
                    if (difference[k + j]) heed_limit(v[j], before[k + j], difference[k + j]);
                }
                __syncwarp();
                found.add(job.seeds, &job.counters->seeds, is_new, v);
            }
        }
        found.list(job.seeds, &job.counters->seeds);
    }

    // Lets the count of a vertex grow; what it was to grow by before. Where differences add up to the limit in size it is
    // counted by its in-edges: more might not fit. What is added to a vertex that is counted so means nothing, and is
    // set to zero with the rest when its turn comes.
    __device__ __forceinline__ u64 add_to(u32 v, i64 difference)
    {
        return atomicAdd(reinterpret_cast<u64*>(job.deltas + v), u64(difference));
    }

    // Where a vertex was to grow by so much, and now does by the difference, too.
    __device__ __forceinline__ void heed_limit(u32 v, u64 before, i64 difference)
    {
        const i64 now = i64(before + u64(difference));
        if (now > -WHOLE_LIMIT && now < WHOLE_LIMIT) return;
        store_cached(&job.counters->late, 1u);
        atomicOr(job.roles + v, BY_ROW);
    }

    // The successors of these vertices grow by the difference of each, and are listed if they were not.
    __device__ __forceinline__ void tell_successors(u32* to, u32* counter, const Counts& counts)
    {
        struct Tail {
            i64 difference;
            u32 below;
        };
        const auto load = [&](bool is_there, u32 u) {
            if (!is_there) return Tail{0, NO_LEVEL};
            return Tail{load_cached(job.differences + u), load_cached(job.levels + u) + 1};
        };
        Growing& growing = held->growing;
        u32 n = 0;
        const auto visit = [&](const Tail& own, const u32 (&of)[TOLD_TOGETHER], const Edges (&row)[TOLD_TOGETHER]) {
            u32 level_of[TOLD_TOGETHER][2];
#pragma unroll
            for (u32 k = 0; k < TOLD_TOGETHER; k++)
                for (u32 j = 0; j < 2; j++)
                    level_of[k][j] = row[k].live[j] ? load_cached(job.levels + row[k].head[j]) : NO_LEVEL;
#pragma unroll
            for (u32 k = 0; k < TOLD_TOGETHER; k++) {
                const i64 difference = __shfl_sync(ALL_LANES, own.difference, of[k]);
                const u32 below = __shfl_sync(ALL_LANES, own.below, of[k]);
                bool grows[2];
                for (u32 j = 0; j < 2; j++) grows[j] = row[k].live[j] && difference && level_of[k][j] == below;
                const Votes votes = vote(grows[0], grows[1]);
                for (u32 j = 0; j < 2; j++) {
                    if (!grows[j]) continue;
                    growing.difference[n + votes.before(j)] = difference;
                    growing.vertex[n + votes.before(j)] = row[k].head[j];
                }
                n += votes.count();
            }
            __syncwarp();
        };
        const auto let_grow = [&](bool is_more) {
            if (n < (is_more ? 64 : 1)) return false;
            const u32 first = n - min(n, 64);
            bool is_new[2] = {false, false};
            u32 v[2] = {0, 0}, role[2];
            i64 difference[2];
            u64 before[2];
            for (u32 j = 0; j < 2; j++) {
                const u32 at = first + 32 * j + place.lane;
                if (at >= n) continue;
                v[j] = growing.vertex[at];
                difference[j] = growing.difference[at];
                before[j] = add_to(v[j], difference[j]);
                role[j] = atomicOr(job.roles + v[j], QUEUED);
            }
            for (u32 j = 0; j < 2; j++) {
                if (first + 32 * j + place.lane >= n) continue;
                is_new[j] = !(role[j] & QUEUED);
                heed_limit(v[j], before[j], difference[j]);
            }
            __syncwarp();
            n = first;
            if (__any_sync(ALL_LANES, is_new[0] || is_new[1])) list(to, counter, is_new, v);
            return true;
        };
        walk_rows_together<TOLD_TOGETHER>(out, telling(), counts, place, load, visit, let_grow);
    }

    // -- order -----------------------------------------------------------------------------------------------------

    // Puts seeds in order by level; those that are on none have no paths. Rows of the first level are queued.
    __device__ __forceinline__ void put_in_order(u32 n)
    {
        const Chosen seeds = {job.seeds, n, nullptr, 0};
        u32 least = NO_LEVEL, most = 0;
        for_chosen(seeds, [&](bool is_there, u32 v) {
            const u32 at = is_there ? level_now(v) : NO_LEVEL;
            const bool changes = is_there && at == NO_LEVEL && unreach(v);
            if (at != NO_LEVEL) {
                least = min(least, at);
                most = max(most, at);
            }
            advance_end(at);
            log_changed(changes, v);
        });
        tell_levels(least, most);
        add_up_ends();
        const u32 first = ~load_cached(&job.counters->above);
        const bool asks = is_known();
        for_chosen(seeds, [&](bool is_there, u32 v) {
            const u32 at = is_there ? level_now(v) : NO_LEVEL;
            const u32 to = advance_end(at);
            if (at != NO_LEVEL) store_cached(job.sorted + to, v);
            queue_row(asks && at == first && at != NO_LEVEL, v, turn);
        });
        barrier();
    }

    // The least and the highest level of the warp's seeds.
    __device__ __forceinline__ void tell_levels(u32 least, u32 most)
    {
        least = __reduce_min_sync(ALL_LANES, least);
        most = __reduce_max_sync(ALL_LANES, most);
        if (place.lane || least == NO_LEVEL) return;
        atomicMax(&job.counters->above, ~least);
        atomicMax(&job.counters->most, most);
    }

    // The same by all threads of a block, as one: where all warps of a grid tell, they wait for each other.
    __device__ __forceinline__ void tell_levels_of_block(u32 least, u32 most)
    {
        __shared__ u32 levels[2];  // as they are told
        if (threadIdx.x < 2) levels[threadIdx.x] = 0;
        __syncthreads();
        least = __reduce_min_sync(ALL_LANES, least);
        most = __reduce_max_sync(ALL_LANES, most);
        if (place.lane == 0 && least != NO_LEVEL) {
            atomicMax(levels, ~least);
            atomicMax(levels + 1, most);
        }
        __syncthreads();
        if (threadIdx.x || !levels[0]) return;
        atomicMax(&job.counters->above, levels[0]);
        atomicMax(&job.counters->most, levels[1]);
    }

    // Of the first OWN_LEVELS a block counts its vertices in shared memory, adds them to those of all, and claims places for
    // them on so many of these levels at once. By all of its threads.
    __device__ __forceinline__ static void clear_own(u32* own)
    {
        for (u32 k = threadIdx.x; k < OWN_LEVELS; k += blockDim.x) own[k] = 0;
        __syncthreads();
    }

    // When all have counted.
    __device__ __forceinline__ static void add_own(const u32* own, u32* ends)
    {
        for (u32 k = threadIdx.x; k < OWN_LEVELS; k += blockDim.x)
            if (own[k]) atomicAdd(ends + k, own[k]);
    }

    __device__ __forceinline__ static void claim_own(u32* own, u32* ends, u32 n_levels)
    {
        for (u32 k = threadIdx.x; k < n_levels; k += blockDim.x)
            if (own[k]) own[k] = atomicAdd(ends + k, own[k]);
        __syncthreads();
    }

    __device__ __forceinline__ u32 advance_end(u32 at) { return advance_end(at, nullptr, job.ends); }

    // Moves the end of a lane's level by one; where it was. Lanes of one level do it at once: levels are few. ``own``: the
    // ends of the first OWN_LEVELS, of this block.
    __device__ __forceinline__ static u32 advance_end(u32 at, u32* own, u32* ends)
    {
        const u32 peers = __match_any_sync(ALL_LANES, at), first = __ffs(peers) - 1;
        u32 before = 0;
        if (at != NO_LEVEL && lane_number() == first)
            before = atomicAdd(own && at < OWN_LEVELS ? own + at : ends + at, u32(__popc(peers)));
        return __shfl_sync(ALL_LANES, before, first) + __popc(peers & lanes_before());
    }

    // When all have counted.
    __device__ __forceinline__ void add_up_ends()
    {
        barrier();
        const u32 least = ~load_cached(&job.counters->above), most = load_cached(&job.counters->most);
        if (place.is_in_first_block() && least != NO_LEVEL) add_up_ends(least, most);
        barrier();
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

    __device__ __forceinline__ void wait_for_nothing(u32 v)
    {
        store_cached(job.deltas + v, i64(0));
        store_cached(job.roles + v, 0u);
    }

    // Sets the count of a vertex; whether it is another than ``before``.
    __device__ __forceinline__ bool set_count(u32 v, double count, double before)
    {
        if (count == before) return false;
        store_cached(job.paths + v, count);
        sums[0] += u64(i64(count >= LIMIT) - i64(before >= LIMIT));
        return true;
    }

    // Of a vertex that is on no level.
    __device__ __forceinline__ bool unreach(u32 v)
    {
        wait_for_nothing(v);
        store_cached(job.levels + v, NO_LEVEL);
        return set_count(v, 0.0, load_cached(job.paths + v));
    }

    __device__ __forceinline__ void log_changed(bool changes, u32 v)
    {
        const u32 chosen = __ballot_sync(ALL_LANES, changes);
        if (!chosen) return;
        u32 base = 0;
        if (place.lane == 0) base = atomicAdd(&job.counters->changed, u32(__popc(chosen)));
        base = __shfl_sync(ALL_LANES, base, 0) + __popc(chosen & lanes_before());
        if (changes) store_cached(job.log + base, v);
        __syncwarp();
    }

    // Who is to be added up is not known ahead where counts have stopped, or others do as they are told of more.
    __device__ __forceinline__ bool is_known() const
    {
        return !job.n_saturated && !load_cached(&job.counters->late);
    }

    // From seeds in order. The level from which on all is to be counted anew; NO_LEVEL: all are counted.
    __device__ __forceinline__ u32 recount()
    {
        const u32 least = ~load_cached(&job.counters->above), most = load_cached(&job.counters->most);
        const u32 n_sorted = least == NO_LEVEL ? 0 : load_cached(job.ends + most);
        const auto end_of = [&](u32 of) { return least <= of && of <= most ? load_cached(job.ends + of) : 0; };
        u32 seen = 0, from = NO_LEVEL;
        if (least >= deep) deep = NO_LEVEL;  // nobody above is a seed: what changes is told on
        u32 received = NO_LEVEL;  // the level whose rows are added up
        if (least != NO_LEVEL && is_known()) {
            if (receive(turn, least)) barrier();
            received = least;
            mark_time(RECEIVED);
        }
        for (;;) {
            const u32 n_here = n_queued();
            if (n_here) level++;
            else if (seen < n_sorted) level = level_now(load_cached(job.sorted + seen));
            else break;
            if (level >= deep) break;
            clear_next();
            const u32 end = max(seen, end_of(level)), further = max(end, end_of(level + 1));
            const u32 n_seeds = end - seen;
            counted += n_seeds + n_here;
            rounds++;
            const Chosen here = {job.sorted + seen, n_seeds, queue(), n_here};
            const bool is_known = this->is_known();
            if (received != level || !is_known) add_up(here, received == level);
            if (is_too_much(n_seeds + n_here)) {
                is_half = true;
                from = level + 1;
                break;
            }
            received = is_known ? level + 1 : NO_LEVEL;
            const bool looks_ahead = is_known && further > end && tells_on();
            if (looks_ahead) queue_rows({job.sorted + end, further - end, nullptr, 0}, turn + 1);
            count_level(here);
            seen = end;
            const Counts told = load_counts(telling().counts);
            if (tells_on()) note_told(n_seeds + n_here, told.edges);
            if (edges + told.edges > job.edges_max) {
                from = level + 1;
                break;
            }
            edges += told.edges;
            if (!is_empty(told))
                tell_successors(job.queues[(turn + 1) & 1], job.counters->queued + (turn + 1) % 3, told);
            // Those above the next level are final: what is below is told, and adds up, at once.
            const bool adds_up = looks_ahead && receive(turn + 1, level + 1);
            const bool looks = deep != NO_LEVEL && !has_looked;
            if (looks) look_for_deep();
            turn++;
            // Where there was nothing to do, there is nothing to wait for.
            if (!is_empty(told) || adds_up || looks) barrier();
            mark_time(TOLD_ON);
        }
        // Where none of the level above was counted, and no deep ones are seeds, these are what they were.
        if (from == NO_LEVEL && (level + 1 >= deep || seen < n_sorted)) count_deep(seen, most, end_of);
        ended = least == NO_LEVEL ? 0 : most - least + 1;
        ended_from = least;
        return from;
    }

    // Whether those of this level tell the next one: deep ones add all up by themselves.
    __device__ __forceinline__ bool tells_on() const { return level + 1 < deep; }

    // Lists those of the deep levels that have not moved, where seeds were before; by whoever has nothing else to do.
    __device__ __forceinline__ void look_for_deep()
    {
        constexpr u32 T = LOOKED_TOGETHER;
        CountCounters* const counters = job.counters;
        Found found{held->found};
        const u64 n = job.n_vertices;
        u32 deepest = 0;
        for (;;) {
            u32 taken = 0;
            if (place.lane == 0) taken = atomicAdd(&counters->looked, 1u);
            const u64 begin = u64(__shfl_sync(ALL_LANES, taken, 0)) * LOOKED;
            if (begin >= n) break;
            u32 deep_ones = 0;  // a bit for each of this lane's vertices, four behind each other at a time
#pragma unroll
            for (u32 k = 0; k < T; k++) {
                const u64 v = begin + 128 * k + 4 * place.lane;
                uint4 at = {NO_LEVEL, NO_LEVEL, NO_LEVEL, NO_LEVEL};
                if (v < n) at = load_wide(reinterpret_cast<const uint4*>(job.levels + v));
                const u32 four[4] = {at.x, at.y, at.z, at.w};
                for (u32 j = 0; j < 4; j++) {
                    const bool may_be = v + j < n && four[j] >= deep && four[j] != NO_LEVEL;
                    deep_ones |= u32(may_be) << (4 * k + j);
                }
            }
            const auto vertex_of = [&](u32 bit) { return u32(begin) + 128 * (bit / 4) + 4 * place.lane + bit % 4; };
            // All lanes look at the same time whether theirs have moved.
#pragma unroll 1
            for (u32 mine = deep_ones; mine; mine &= mine - 1) {
                const u32 bit = __ffs(mine) - 1, now = level_now(vertex_of(bit));
                if (load_cached(job.levels + vertex_of(bit)) == now) deepest = max(deepest, now);
                else deep_ones &= ~(1u << bit);
            }
            __syncwarp();
#pragma unroll 1
            for (u32 left = __reduce_or_sync(ALL_LANES, deep_ones); left; left &= left - 1) {
                const u32 bit = __ffs(left) - 1, v[2] = {vertex_of(bit), 0};
                const bool is_deep[2] = {bool(deep_ones >> bit & 1), false};
                found.add(job.seeds, &counters->deeper, is_deep, v);
            }
        }
        found.list(job.seeds, &counters->deeper);
        deepest = __reduce_max_sync(ALL_LANES, deepest);
        if (place.lane == 0 && deepest) atomicMax(&counters->deepest, deepest);
        has_looked = true;
    }

    // All deep levels: those that were looked for, and seeds from number ``seen`` on, up to a level.
    template <class EndOf> __device__ __forceinline__ void count_deep(u32 seen, u32 most, EndOf end_of)
    {
        CountCounters* const counters = job.counters;
        const u32 n = load_cached(&counters->deeper), last = max(most, load_cached(&counters->deepest));
        counted += n;
        for (level = deep; level <= last; level++) {
            const u32 end = max(seen, end_of(level));
            counted += end - seen;
            rounds++;
            count_by_rows({job.sorted + seen, end - seen, job.seeds, n});
            seen = end;
            barrier();
            mark_time(ADDED);
        }
        // What has become too much is so no more, until levels are counted anew.
        const bool is_much = n / 2 > job.n_vertices / DEEP_SHARE || last >= deep + 2 * DEEP_LEVELS;
        if (is_much && place.thread == 0) store_cached(&counters->deep, 0u);
    }

    // Counts vertices of this level along their in-rows: of the first ones those that have moved, of the others, which have
    // not, those that are on it.
    __device__ __forceinline__ void count_by_rows(const Chosen& chosen)
    {
        const RowsApart apart = {in};
        SidesRead read;
        for_each(chosen.n_first + chosen.n_second, [&](u32 k, bool is_there) {
            const bool is_first = k < chosen.n_first;
            u32 v = 0;
            if (is_there) v = load_cached(is_first ? chosen.first + k : chosen.second + (k - chosen.n_first));
            const u32 now = is_there ? level_now(v) : NO_LEVEL, before_now = is_there ? load_cached(job.levels + v) : NO_LEVEL;
            // Asked for together, as most are meant.
            Row row = is_there ? load_row(in, v) : Row{0, 0};
            const u32 role = is_there ? load_cached(job.roles + v) : 0;
            const double before = is_there ? load_cached(job.paths + v) : 0.0;
            const bool is_meant = now == level && is_first == (before_now != now);
            if (!__any_sync(ALL_LANES, is_meant)) return;
            if (!is_meant) row = {0, 0};
            Cursor cursor = {0, 0, 0, 0};
            if (row.degree) cursor = apart.first_edge(v, row.leaf, row.degree);
            __syncwarp();
            const double sum = sum_apart(apart, read, job.paths, v, row, cursor, is_meant);
            const bool changes = is_meant && write(v, level, role, min(sum, LIMIT), before);
            __syncwarp();
            log_changed(changes, v);
        });
        read.tell(in);
    }

    // Whether this level, with so many vertices to count, would tell of more edges than may be told of, if each told of as many
    // as the last time. To queue these rows, and then to leave the levels below, would be in vain.
    __device__ __forceinline__ bool is_too_much(u32 n) const
    {
        if (n < FORESEEN_FROM || !tells_on()) return false;
        const u64 told = load_cached(job.counters->told + level % TOLD_LEVELS);  // edges << 32 | vertices
        return n * (told >> 32) > job.edges_max * u32(told);
    }

    // By a thread, where so many edges were foreseen that nothing was told: that there are so many is less certain each time, so
    // that it is tried again some time.
    __device__ __forceinline__ void age_told(u32 level)
    {
        u64* const told = job.counters->told + level % TOLD_LEVELS;
        const u64 edges = load_cached(told) >> 32, n = u32(load_cached(told));
        store_cached(told, (edges - (edges + AGES - 1) / AGES) << 32 | n);
    }

    __device__ __forceinline__ void note_told(u32 n, u64 edges)
    {
        if (n < FORESEEN_FROM || place.thread) return;
        store_cached(job.counters->told + level % TOLD_LEVELS, min(edges, u64(NO_LEVEL)) << 32 | n);
    }

    // Queues the rows of vertices of one level that are added up.
    __device__ __forceinline__ void queue_rows(const Chosen& here, u32 turn)
    {
        // By warps that are not the first to have vertices to count meanwhile.
        const auto work = [&](bool is_there, u32 v) { queue_row(is_there, v, turn); };
        for_chosen(here, work, place.n_warps - 1 - place.warp);
    }

    // The same of one a lane.
    __device__ __forceinline__ void queue_row(bool is_there, u32 v, u32 turn)
    {
        const bool by_row = is_there && is_by_row(v), is_source = by_row && level_now(v) == 0;
        if (by_row) store_cached(job.sums + v, is_source ? 1.0 : 0.0);
        __syncwarp();
        put_one(in, receiving(turn), by_row && !is_source, v);
    }

    // Adds up the rows of those of this level that are, by themselves; ``again``: where some are queued already.
    __device__ __forceinline__ void add_up(const Chosen& here, bool again)
    {
        if (again) {
            if (place.thread == 0) clear_counts(receiving(turn).counts);
            barrier();
        }
        queue_rows(here, turn);
        barrier();
        mark_time(ASKED_ROWS);
        if (receive(turn, level)) barrier();
        mark_time(RECEIVED);
    }

    // Counts the vertices of a level, rows being added up; those with another count tell of it next.
    __device__ __forceinline__ void count_level(const Chosen& here)
    {
        for_pairs(here, [&](const bool (&is_there)[2], const u32 (&v)[2]) {
            double before[2];
            i64 delta[2];
            u32 role[2], at[2];
            Row row[2] = {{0, 0}, {0, 0}};
            for (u32 j = 0; j < 2; j++) {
                if (!is_there[j]) continue;
                before[j] = load_cached(job.paths + v[j]);
                delta[j] = load_cached(job.deltas + v[j]);
                role[j] = load_cached(job.roles + v[j]);
                at[j] = load_cached(job.levels + v[j]);
                row[j] = load_row(out, v[j]);
            }
            bool tells[2] = {false, false}, changes[2] = {false, false};
            for (u32 j = 0; j < 2; j++) {
                if (!is_there[j]) continue;
                const bool by_row = role[j] & BY_ROW || before[j] >= LIMIT, moves = at[j] != level;
                const double grown = before[j] + double(delta[j]);
                const double count = min(by_row ? load_cached(job.sums + v[j]) : grown, LIMIT);
                wait_for_nothing(v[j]);
                if (moves) store_cached(job.levels + v[j], level);
                changes[j] = set_count(v[j], count, before[j]);
                tells[j] = !(role[j] & FARTHER) && (moves || changes[j]) && row[j].degree && tells_on();
                if (tells[j]) store_cached(job.differences + v[j], i64(count) - (moves ? 0 : i64(before[j])));
            }
            __syncwarp();
            log_and_tell(changes, tells, v, row);
        });
        barrier();
        mark_time(COUNTED);
    }

    // Logs those of the warp's vertices, two a lane, whose counts are others, and queues the rows of those that tell;
    // places are claimed at once.
    __device__ __forceinline__ void log_and_tell(
        const bool (&changes)[2], const bool (&tells)[2], const u32 (&vertex)[2], const Row (&row)[2])
    {
        const Frontier to = telling();
        const Votes all = vote(changes[0], changes[1]);
        const Votes shorts = vote(tells[0] && is_short(row[0]), tells[1] && is_short(row[1]));
        const u32 told = edges_of_rows(tells[0] ? row[0].degree : 0, tells[1] ? row[1].degree : 0);
        u64 base = 0;
        if (place.lane < 2)
            base = add_by_lane(place.lane ? &to.counts->edges : &to.counts->short_rows, place.lane ? told : shorts.count());
        if (place.lane == 2 && all.count()) base = atomicAdd(&job.counters->changed, all.count());
        u32 leaves[2];
        for (u32 j = 0; j < 2; j++)
            leaves[j] = tells[j] && !is_short(row[j]) ? leaves_of_row(out, vertex[j], row[j]) : 0;
        // Of long rows, and of their leaves, in one word.
        u64 longs = 0, at_long = 0;
        if (__any_sync(ALL_LANES, leaves[0] || leaves[1])) {
            longs = u64((leaves[0] != 0) + (leaves[1] != 0)) << 32 | (leaves[0] + leaves[1]);
            at_long = warp_scan(longs);
            if (place.lane == 31) base = atomicAdd(&to.counts->long_rows, at_long);
            at_long += __shfl_sync(ALL_LANES, base, 31) - longs;
        }
        const u32 at = u32(__shfl_sync(ALL_LANES, base, 0)), at_log = u32(__shfl_sync(ALL_LANES, base, 2));
        for (u32 j = 0; j < 2; j++) {
            if (changes[j]) store_cached(job.log + at_log + all.before(j), vertex[j]);
            if (!tells[j]) continue;
            if (is_short(row[j])) put_short(to, at + shorts.before(j), vertex[j], row[j]);
            else {
                store_wide(to.long_rows + u32(at_long >> 32), Entry{vertex[j], row[j].leaf, leaves[j], u32(at_long)});
                at_long += 1ull << 32 | leaves[j];
            }
        }
        __syncwarp();
    }

    // Nothing is ever taken away from a count that has stopped.
    __device__ __forceinline__ bool is_by_row(u32 v) const
    {
        return load_cached(job.roles + v) & BY_ROW || load_cached(job.paths + v) >= LIMIT;
    }

    // Adds up the counts of predecessors of those of a level whose rows are queued for a turn; whether there are any. Sums of
    // whole numbers are exact up to the limit, and never fall below it again.
    __device__ __forceinline__ bool receive(u32 turn, u32 at)
    {
        const Counts counts = load_counts(receiving(turn).counts);
        if (is_empty(counts)) return false;
        edges += counts.edges;
        const auto load = [](u32) { return 0; };
        walk_rows(in, receiving(turn), counts, place, load, [&](int, u32 v, const Edges& row, bool) {
            double sum = 0.0;
            for (u32 j = 0; j < 2; j++)
                if (row.live[j] && level_now(row.head[j]) + 1 == at) sum += load_cached(job.paths + row.head[j]);
            sum = warp_sum(sum);
            if (place.lane == 0 && sum > 0.0) add_unseen(job.sums + v, sum);
            __syncwarp();
            return false;
        });
        return true;
    }

    __device__ __forceinline__ static void clear_work(CountCounters* counters)
    {
        for (u32 k = 0; k < 3; k++) {
            clear_counts(counters->receiving + k);
            clear_counts(counters->telling + k);
            counters->queued[k] = 0;
        }
    }

    // -- from scratch ----------------------------------------------------------------------------------------------

    // Counts all vertices from a level on; those above it are counted. ``sums`` has counts, but for the limit. BEGINS: from
    // scratch, whatever they were before; nothing else waits then, and whose counts are others need not be told.
    template <bool BEGINS> __device__ __forceinline__ void count_from(u32 from)
    {
        CountCounters* const counters = job.counters;
        const bool is_apart = put_all_in_order<BEGINS>(from);
        mark_time(ORDERED);
        const u32 least = ~load_cached(&counters->above), most = load_cached(&counters->most);
        if (least != NO_LEVEL) add_paths<BEGINS>(from, least, most, is_apart);
        if (BEGINS) write_all();
        else if (is_apart) write_deeper(from, most);
        else write_left(from);
        if (place.thread == place.n_threads - 1 && least != NO_LEVEL) note_deep(least, most);
        mark_time(WRITTEN);
    }

    // By a thread, where levels have their ends: which levels are deep.
    __device__ __forceinline__ void note_deep(u32 least, u32 most)
    {
        const u32 end = load_cached(job.ends + most), n_max = job.n_vertices / DEEP_SHARE;
        u32 first = 0;
        bool are_all = true;
#pragma unroll
        for (u32 k = 0; k < DEEP_LEVELS; k++) {
            const u32 at = most - k;
            const bool is_deep = at <= most && at > max(least, 1) && end - load_cached(job.ends + at - 1) <= n_max;
            if (is_deep) first = at;
            are_all &= is_deep;
        }
        store_cached(&job.counters->deep, are_all ? 0u : first);
    }

    // Levels and counts of all vertices, from scratch.
    __device__ __forceinline__ void write_all()
    {
        u32 n_changed = 0;
        const auto count_now = [&](u32 v, u32 at) { return at == NO_LEVEL ? 0.0 : count_of(v); };
        for_levels(count_now, [&](bool is_there, u32 v, u32 at, double count) {
            if (!is_there) return;
            store_cached(job.levels + v, at);
            store_cached(job.paths + v, count);
            n_changed += count > 0.0;
            sums[0] += count >= LIMIT;
        });
        n_changed = warp_sum(n_changed);
        if (place.lane == 0 && n_changed) atomicAdd(&job.counters->changed, n_changed);
    }

    // Where a warp lists what it has found; for three lists at a time.
    __device__ __forceinline__ static u32* found_room(u32 which)
    {
        __shared__ u32 room[3][BLOCK_THREADS / 32][Found::ROOM];
        return room[which][threadIdx.x >> 5];
    }

    // The same of those that were put in order below a level.
    __device__ __forceinline__ void write_deeper(u32 from, u32 most)
    {
        const u32 begin = load_cached(job.ends + from), end = load_cached(job.ends + most);
        for_each(end - begin, [&](u32 k, bool is_there) {
            const u32 v = is_there ? load_cached(job.sorted + begin + k) : 0;
            bool changes = false;
            if (is_there) changes = write(v, level_now(v), load_cached(job.roles + v), count_of(v), load_cached(job.paths + v));
            __syncwarp();
            log_changed(changes, v);
        });
    }

    // Of a vertex that is counted anew; whether its count is another. Who moved has a role.
    __device__ __forceinline__ bool write(u32 v, u32 at, u32 role, double count, double before)
    {
        if (role) {
            wait_for_nothing(v);
            store_cached(job.levels + v, at);
        }
        return set_count(v, count, before);
    }

    // The same of those on a level and below; whose counts are others are logged.
    __device__ __forceinline__ void write_left(u32 from)
    {
        Found found{found_room(0)};
        const u64 n = job.n_vertices;
        for (u64 begin = u64(place.warp) * 32; begin < n; begin += u64(LEVELS_AHEAD) * place.n_threads) {
            const auto vertex_of = [&](u32 k) { return begin + u64(k) * place.n_threads + place.lane; };
            u32 at[LEVELS_AHEAD], role[LEVELS_AHEAD];
            double count[LEVELS_AHEAD], before[LEVELS_AHEAD];
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) {
                const bool is_there = vertex_of(k) < n;
                const u32 v = is_there ? u32(vertex_of(k)) : 0;
                at[k] = level_now(v);
                role[k] = load_cached(job.roles + v);
                count[k] = count_of(v);
                before[k] = load_cached(job.paths + v);
            }
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) {
                const u32 v = u32(vertex_of(k));
                // Level by level, seeds on no level are counted already, and the others have been on none before.
                const bool is_left = vertex_of(k) < n && at[k] >= from && (at[k] != NO_LEVEL || from == 0);
                bool changes[2] = {false, false};
                if (is_left) changes[0] = write(v, at[k], role[k], at[k] == NO_LEVEL ? 0.0 : count[k], before[k]);
                __syncwarp();
                const u32 vertex[2] = {v, 0};
                found.add(job.log, &job.counters->changed, changes, vertex);
            }
        }
        found.list(job.log, &job.counters->changed);
    }

    __device__ __forceinline__ double count_of(u32 v) const { return min(load_cached(job.sums + v), LIMIT); }

    // Calls work(is_there, vertex, level, load(vertex, level)) for all vertices, by whole warps. What it loads is under way for
    // several vertices at once.
    template <class Load, class Work> __device__ __forceinline__ void for_levels(Load load, Work work)
    {
        const u64 n = job.n_vertices;
        for (u64 begin = u64(place.warp) * 32; begin < n; begin += u64(LEVELS_AHEAD) * place.n_threads) {
            const auto vertex_of = [&](u32 k) { return begin + u64(k) * place.n_threads + place.lane; };
            u32 at[LEVELS_AHEAD];
            decltype(load(0u, 0u)) loaded[LEVELS_AHEAD];
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) at[k] = vertex_of(k) < n ? level_now(u32(vertex_of(k))) : NO_LEVEL;
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) loaded[k] = load(u32(vertex_of(k)), at[k]);
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) work(vertex_of(k) < n, u32(vertex_of(k)), at[k], loaded[k]);
        }
    }

    // As put_in_order for all vertices on the level above ``from`` and below, where they have their first sums: counts of
    // that level, a path at sources. Most are on few levels, which each block claims places on at once. Whether ``from`` is
    // counted apart: then only those below it are put in order, and have sums.
    template <bool BEGINS> __device__ __forceinline__ bool put_all_in_order(u32 from)
    {
        __shared__ u32 own[OWN_LEVELS];
        CountCounters* const counters = job.counters;
        const u32 first = from ? from - 1 : 0;
        u32* const ends = job.ends + first;
        clear_own(own);
        u32 least = NO_LEVEL, most = 0;
        LevelsSeen seen{own};
        const auto see = [&](u32 at) {
            const bool is_meant = at != NO_LEVEL && at >= first;
            if (is_meant) {
                least = min(least, at);
                most = max(most, at);
            }
            const u32 level = is_meant ? at - first : NO_LEVEL;
            seen.add(level);
            const bool is_far = is_meant && level >= LevelsSeen::LEVELS;
            if (__any_sync(ALL_LANES, is_far)) advance_end(is_far ? level : NO_LEVEL, own, ends);
            return is_meant;
        };
        const auto nothing = [](u32, u32) { return 0; };
        if (BEGINS) {
            for_levels(nothing, [&](bool, u32 v, u32 at, int) {
                if (see(at)) store_cached(job.sums + v, at ? 0.0 : 1.0);
                __syncwarp();
            });
        } else see_left(from, see);
        seen.add_up();
        tell_levels_of_block(least, most);
        add_own(own, ends);
        barrier();
        least = ~load_cached(&counters->above), most = load_cached(&counters->most);
        if (place.is_in_first_block() && least != NO_LEVEL) {
            if (!BEGINS && threadIdx.x == 0) store_cached(&counters->left.is_apart, u32(is_apart(from)));
            add_up_ends(least, most);
        }
        barrier();
        const bool goes_apart = !BEGINS && load_cached(&counters->left.is_apart);
        claim_own(own, ends, goes_apart ? 2 : OWN_LEVELS);
        if (goes_apart) {
            for_each(load_cached(&counters->deeper), [&](u32 k, bool is_there) {
                const u32 v = is_there ? load_cached(job.seeds + k) : 0;
                const u32 at = is_there ? level_now(v) : NO_LEVEL;
                const u32 to = advance_end(at);
                if (is_there) {
                    store_cached(job.sorted + to, v);
                    store_cached(job.sums + v, 0.0);
                }
                __syncwarp();
            });
        } else {
            const auto first_sum = [&](u32 v, u32 at) {
                if (BEGINS) return 0.0;
                if (at >= first && at < from) return load_cached(job.paths + v);
                return at ? 0.0 : 1.0;
            };
            for_levels(first_sum, [&](bool, u32 v, u32 at, double sum) {
                const bool is_meant = at != NO_LEVEL && at >= first;
                const u32 to = advance_end(is_meant ? at - first : NO_LEVEL, own, ends);
                if (is_meant) store_cached(job.sorted + to, v);
                if (!BEGINS && is_meant) store_cached(job.sums + v, sum);
                __syncwarp();
            });
        }
        barrier();
        return goes_apart;
    }

    // By a thread, where levels have their numbers of vertices: whether the vertices on a level are gone along by threads, and
    // counted in one go. Nobody needs a list of them then, nor of those above.
    __device__ __forceinline__ bool is_apart(u32 from) const
    {
        if (!from) return false;
        const u32 n = load_cached(job.ends + from);
        return n < load_cached(job.ends + from - 1) && u64(n) * DENSE_LEVEL >= job.n_vertices;
    }

    // Calls see(level) for all vertices, and lists those on level ``from``, and those below. If the level above that is half
    // counted, whoever waits there is counted.
    template <class See> __device__ __forceinline__ void see_left(u32 from, See see)
    {
        CountCounters* const counters = job.counters;
        Found deeper{found_room(0)}, changed{found_room(1)}, next{found_room(2)};
        const u64 n = job.n_vertices;
        for (u64 begin = u64(place.warp) * 32; begin < n; begin += u64(LEVELS_AHEAD) * place.n_threads) {
            const auto vertex_of = [&](u32 k) { return begin + u64(k) * place.n_threads + place.lane; };
            u32 at[LEVELS_AHEAD], role[LEVELS_AHEAD];
            double before[LEVELS_AHEAD];
            i64 delta[LEVELS_AHEAD];
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) at[k] = vertex_of(k) < n ? level_now(u32(vertex_of(k))) : NO_LEVEL;
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++)
                role[k] = is_half && at[k] + 1 == from ? load_cached(job.roles + u32(vertex_of(k))) : 0;
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) {
                before[k] = role[k] ? load_cached(job.paths + u32(vertex_of(k))) : 0.0;
                delta[k] = role[k] ? load_cached(job.deltas + u32(vertex_of(k))) : 0;
            }
#pragma unroll
            for (u32 k = 0; k < LEVELS_AHEAD; k++) {
                const u32 v[2] = {u32(vertex_of(k)), 0};
                const bool is_left = see(at[k]);
                const bool is_deeper[2] = {is_left && at[k] > from, false}, is_next[2] = {is_left && at[k] == from, false};
                bool changes[2] = {false, false};
                if (role[k]) {
                    const bool by_row = role[k] & BY_ROW || before[k] >= LIMIT;
                    const double grown = before[k] + double(delta[k]);
                    changes[0] = write(v[0], at[k], role[k], by_row ? count_of(v[0]) : min(grown, LIMIT), before[k]);
                }
                __syncwarp();
                next.add(job.queues[0], &counters->next, is_next, v);
                deeper.add(job.seeds, &counters->deeper, is_deeper, v);
                if (is_half) changed.add(job.log, &counters->changed, changes, v);
            }
        }
        next.list(job.queues[0], &counters->next);
        deeper.list(job.seeds, &counters->deeper);
        changed.list(job.log, &counters->changed);
    }

    // Rows along which paths are added in a turn.
    __device__ __forceinline__ Frontier adding(u32 turn) const
    {
        const u64 half = turn & 1;
        return {job.short_rows + half * job.room, job.long_rows + half * job.long_room,
            job.counters->telling + turn % 3, job.room};
    }

    // From level to level. What is walked next is queued meanwhile: it does not depend on counts. ``is_apart``: see
    // put_all_in_order; counts of this level are those of ``paths`` at once.
    template <bool BEGINS> __device__ __forceinline__ void add_paths(u32 from, u32 least, u32 most, bool is_apart)
    {
        const auto end_of = [&](u32 at) { return at < least ? 0 : load_cached(job.ends + min(at, most)); };
        const auto is_pushed = [&](u32 above) {
            if (!BEGINS && is_apart && above == from) return false;
            const u32 begin = above ? end_of(above - 1) : 0, middle = end_of(above);
            return middle - begin <= end_of(above + 1) - middle;
        };
        const auto is_dense = [&](u32 at) { return u64(end_of(at) - end_of(at - 1)) * DENSE_LEVEL >= job.n_vertices; };
        const auto queue_step = [&](u32 above, u32 turn) {
            if (above >= most) return;
            const bool pushes = is_pushed(above);
            if (!pushes && is_dense(above + 1)) return;
            const u32 walked = pushes ? above : above + 1;
            const u32 begin = walked ? end_of(walked - 1) : 0;
            const State& rows = pushes ? out : in;
            for_each(end_of(walked) - begin, [&](u32 k, bool is_there) {
                put_one(rows, adding(turn), is_there, is_there ? load_cached(job.sorted + begin + k) : 0);
            });
        };
        const u32 n_counted = from > least ? end_of(least) : 0;
        counted += end_of(most) - n_counted;
        rounds += most - least + (n_counted ? 0 : 1);
        queue_step(least, turn);
        barrier();
        mark_time(ASKED_ROWS);
        for (level = least + 1; level <= most; level++, turn++) {
            const Counts counts = load_counts(adding(turn).counts);
            edges += counts.edges;
            if (place.thread == 0) clear_counts(adding(turn + 2).counts);
            const double* const above = !BEGINS && is_apart && level <= from + 1 ? job.paths : job.sums;
            if (is_pushed(level - 1)) push(counts);
            else if (!BEGINS && is_apart && level == from) pull_listed(above);
            else if (is_dense(level)) pull_apart(above);
            else pull(counts, above);
            queue_step(level, turn + 1);
            barrier();
            mark_time(ADDED);
        }
        ended = most - least + 1;
        ended_from = least;
    }

    // The paths of the level above, along their out-rows. Sums of whole numbers are exact up to the limit, and never fall
    // below it again.
    __device__ __forceinline__ void push(const Counts& counts)
    {
        const auto load = [&](u32 u) { return count_of(u); };
        walk_rows(out, adding(turn), counts, place, load, [&](double count, u32, const Edges& row, bool) {
            u32 at[2];
            for (u32 j = 0; j < 2; j++) at[j] = row.live[j] ? level_now(row.head[j]) : NO_LEVEL;
            for (u32 j = 0; j < 2; j++)
                if (at[j] == level) add_unseen(job.sums + row.head[j], count);
            __syncwarp();
            return false;
        });
    }

    // The same along the in-rows of this level. ``above``: the counts of the one above.
    __device__ __forceinline__ void pull(const Counts& counts, const double* above)
    {
        const auto load = [](u32) { return 0; };
        walk_rows(in, adding(turn), counts, place, load, [&](int, u32 v, const Edges& row, bool) {
            double sum = 0.0;
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                sum += brought_by(above, row.head[j]);
            }
            sum = warp_sum(sum);
            if (place.lane == 0 && sum > 0.0) add_unseen(job.sums + v, sum);
            __syncwarp();
            return false;
        });
    }

    // The same for a level with many vertices, most of which have few in-edges: a thread goes along each row.
    __device__ __forceinline__ void pull_apart(const double* above)
    {
        const RowsApart apart = {in};
        SidesRead read;
        const u64 n = job.n_vertices;
        const auto level_of = [&](u64 v) { return v < n ? level_now(u32(v)) : NO_LEVEL; };
        u64 begin = u64(place.warp) * 32;
        u32 at = level_of(begin + place.lane);
        for (; begin < n; begin += place.n_threads) {
            const u32 v = u32(begin) + place.lane;
            const bool is_wanted = at == level;
            at = level_of(begin + place.n_threads + place.lane);  // of the next one, meanwhile
            if (!__any_sync(ALL_LANES, is_wanted)) continue;
            const Row row = begin + place.lane < n ? load_row(in, v) : Row{0, 0};
            Cursor cursor = apart.first_edges(v, row, is_wanted);
            const double sum = sum_apart(apart, read, above, v, row, cursor, is_wanted);
            if (is_wanted && sum > 0.0) store_cached(job.sums + v, sum);
        }
        read.tell(in);
    }

    // The same for such a level whose vertices are listed; they have their counts then.
    __device__ __forceinline__ void pull_listed(const double* above)
    {
        const RowsApart apart = {in};
        SidesRead read;
        Found found{found_room(0)};
        const u32 n = load_cached(&job.counters->next);
        for_each(n, [&](u32 k, bool is_there) {
            const u32 v = is_there ? load_cached(job.queues[0] + k) : 0;
            const Row row = is_there ? load_row(in, v) : Row{0, 0};
            const u32 role = is_there ? load_cached(job.roles + v) : 0;
            const double before = is_there ? load_cached(job.paths + v) : 0.0;
            Cursor cursor = {0, 0, 0, 0};
            if (row.degree) cursor = apart.first_edge(v, row.leaf, row.degree);
            __syncwarp();
            const double sum = sum_apart(apart, read, above, v, row, cursor, is_there);
            const bool changes[2] = {is_there && write(v, level, role, min(sum, LIMIT), before), false};
            const u32 vertex[2] = {v, 0};
            __syncwarp();
            found.add(job.log, &job.counters->changed, changes, vertex);
        });
        found.list(job.log, &job.counters->changed);
        read.tell(in);
    }

    // What comes to vertices of this level, one a lane, whose rows begin where the cursors are.
    __device__ __forceinline__ double sum_apart(const RowsApart& apart, SidesRead& read, const double* above, u32 v,
        const Row& row, Cursor& cursor, bool is_wanted)
    {
        if (is_wanted) {
            sums[1] += row.degree;
            read.add(in, row.leaf, row.degree, LINES_OF_ROW + (row.degree + EDGES_TOGETHER - 1) / EDGES_TOGETHER);
        }
        double sum = cursor.left > OWN_EDGES ? 0.0 : sum_of(apart, above, cursor);
        __syncwarp();
        for (u32 left = __ballot_sync(ALL_LANES, cursor.left != 0); left; left &= left - 1) {
            const u32 lane = __ffs(left) - 1;
            const Cursor helped = {__shfl_sync(ALL_LANES, cursor.leaf, lane), __shfl_sync(ALL_LANES, cursor.at, lane), 0,
                __shfl_sync(ALL_LANES, cursor.left, lane)};
            const double found = sum_together(above, __shfl_sync(ALL_LANES, v, lane), helped);
            if (place.lane == lane) sum = found;
        }
        return sum;
    }

    // What comes along an edge to a vertex of this level; two loads that are under way together.
    __device__ __forceinline__ double brought_by(const double* above, u32 u) const
    {
        const u32 at = level_now(u);
        const double count = min(load_cached(above + u), LIMIT);
        return at + 1 == level ? count : 0.0;
    }

    // By a thread, to the end of a row.
    __device__ __forceinline__ double sum_of(const RowsApart& apart, const double* above, Cursor& cursor) const
    {
        double sum = 0.0;
        while (cursor.left) {
            const u32 n = min(min(cursor.count - cursor.at, cursor.left), EDGES_TOGETHER);
            const u64* const keys = keys_of(in, cursor.leaf) + cursor.at;
            u32 tail[EDGES_TOGETHER];
            double brought[EDGES_TOGETHER];
#pragma unroll
            for (u32 k = 0; k < EDGES_TOGETHER; k++) tail[k] = destination(load_constant(keys + min(k, n - 1)));
#pragma unroll
            for (u32 k = 0; k < EDGES_TOGETHER; k++) brought[k] = brought_by(above, tail[k]);
#pragma unroll
            for (u32 k = 0; k < EDGES_TOGETHER; k++) sum += k < n ? brought[k] : 0.0;
            cursor.at += n;
            cursor.left -= n;
            apart.step_over(cursor);
        }
        return sum;
    }

    // By a warp for one of its lanes.
    __device__ __forceinline__ double sum_together(const double* above, u32 v, Cursor cursor) const
    {
        double sum = 0.0;
        while (cursor.left) {
            const Edges row = edges_of(load_part(in, cursor.leaf), cursor.leaf, v);
            cursor.left -= vote(row.live[0], row.live[1]).count();
            cursor.leaf++;
            for (u32 j = 0; j < 2; j++)
                if (row.live[j]) sum += brought_by(above, row.head[j]);
        }
        return warp_sum(sum);
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void clear_ends()
    {
        for (u32 k = place.thread; k < ended; k += place.n_threads) store_cached(job.ends + ended_from + k, 0u);
    }

    // Leaves the levels from one on to the next kernel, for which the host is told to call if it has not.
    __device__ __forceinline__ void leave(u32 from)
    {
        CountCounters* const counters = job.counters;
        add_by_block(sums, &counters->saturated);
        barrier();  // all have seen what is cleared
        clear_ends();
        if (place.thread) return;
        clear_work(counters);
        counters->above = counters->most = 0;
        counters->deeper = counters->looked = counters->deepest = 0;
        if (is_half) age_told(from - 1);
        counters->left = {edges, counted, rounds, from, n_marks, job.sequence, is_half, 0, 0};
        if (!job.rest_follows) tell_all(from + 1);
    }

    // The list of changes is written at once: stores to the host's memory would keep each barrier waiting. ``is_logged``: there
    // was a barrier since the last of them.
    __device__ __forceinline__ void finish(bool lists, bool is_logged = false)
    {
        CountCounters* const counters = job.counters;
        add_by_block(sums, &counters->saturated);
        if (!is_logged) barrier();
        const u32 n = load_cached(&counters->changed);
        if (lists && n && n <= job.changes_room) {
            for (u32 x = place.thread; x < n; x += place.n_threads) {
                const u32 v = load_cached(job.log + x);
                const double count = load_cached(job.paths + v);
                const bool is_far = count >= double(FAR);
                job.changed[x] = u64(is_far ? FAR : u32(count)) << 32 | v;
                if (is_far) job.far[x] = count;
            }
            is_logged = true;
        }
        if (is_logged) barrier();  // all have listed, and have seen what is cleared
        mark_time(LISTED);
        clear_ends();
        if (place.thread) return;
        tell_all();
        // The next kernel begins after this one's end.
        clear_work(counters);
        counters->saturated = counters->pulled = 0;
        counters->seeds = counters->changed = counters->above = counters->most = 0;
        counters->late = counters->deeper = counters->next = counters->looked = counters->deepest = 0;
    }

    // ``left``: 0, or that all levels before this number are counted and the others are not.
    __device__ __forceinline__ void tell_all(u64 left = 0)
    {
        const CountCounters* const counters = job.counters;
        const u64 said[COUNT_SAID] = {
            load_cached(&counters->changed), load_cached(&counters->saturated), edges + load_cached(&counters->pulled),
            rounds, counted, left};
        __threadfence_system();  // for what all have listed: it was before the barrier
        for (u32 k = 0; k < COUNT_SAID; k++) tell(job, k, said[k]);
    }
};
