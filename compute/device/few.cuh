// Mending after few updates: what mend.cu does, by one block, an update a thread, with all queues in its shared memory.
// Each round waits for memory two or three times, one access after the other, where queues and their counters in memory
// would double that; and most batches of few change nothing, which is seen after two.
//
// Words, stamps and the log are as mend.cu has them at any time. So whenever there is more to do than suits a block, its
// queues are put where that has them, which goes on from there.
#pragma once

#include "alone.cuh"
#include "mending.cuh"
#include "push.cuh"

static_assert(FEW <= BLOCK_THREADS, "an update a thread");

// A queue in shared memory: short rows, and long ones, whose leaves are numbered in any order of the rows. What it has no
// room for goes to the frontier at once, and is too much for one block.
struct Near {
    static constexpr u32 ROOM = 32;  // a lane each
    static_assert(ALONE_ROWS <= ROOM, "what suits one block has room");
    Entry short_rows[ROOM], long_rows[ROOM];
    u32 n_short, n_long, n_leaves, n_lost;
    u64 edges;

    __device__ __forceinline__ void clear()
    {
        n_short = n_long = n_leaves = n_lost = 0;
        edges = 0;
    }

    __device__ __forceinline__ bool is_empty() const { return !(n_short | n_long); }
    __device__ __forceinline__ bool is_many() const { return n_short + n_leaves > ALONE_ROWS; }
};

struct FewQueues {
    Near asked[3], outgoing[3], pulling;  // by turn, as those of PathCounters
    u32 n_logged;
};

struct Few {
    const State& out;
    const State& in;
    const PathJob& job;
    const Place place;  // of the block alone
    FewQueues& queues;
    // What all threads agree about.
    u64 edges = 0;
    u32 rounds = 0, turn = 0, n_lost = 0, stamp;
    // This thread's update.
    u64 key = 0;
    Offer own = no_offer();

    __device__ __forceinline__ Few(
        const State& out, const State& in, const PathJob& job, const Place& place, FewQueues& queues)
        : out(out), in(in), job(job), place(place), queues(queues), stamp(job.stamp + 1)
    {
    }

    // Mends, and tells; or hands over: the phase in which mend.cu goes on.
    __device__ __forceinline__ u32 run()
    {
        u32* const words = reinterpret_cast<u32*>(&queues);
        for (u32 i = threadIdx.x; i < sizeof(FewQueues) / 4; i += blockDim.x) words[i] = 0;
        if (!classify()) return END;
        u32 phase = settle();
        if (phase != TAKE) return hand_over(phase);
        set_mark(job, place, SETTLED);
        if (queues.pulling.is_many()) return hand_over(TAKE);
        take();
        set_mark(job, place, TAKEN);
        if (!push()) return hand_over(PUSH);
        set_mark(job, place, PUSHED);
        finish();
        return END;
    }

    // -- queues --------------------------------------------------------------------------------------------------

    // What ``turn`` will count begins at zero: it is the one before last that had these counters.
    __device__ __forceinline__ void clear(u32 turn)
    {
        if (threadIdx.x) return;
        queues.asked[turn % 3].clear();
        queues.outgoing[turn % 3].clear();
    }

    // By any thread. A row without edges is left out, or, ``with_empty``, queued as a short one.
    __device__ __forceinline__ void put_row(
        const State& state, Near& near, const Frontier& far, u32 vertex, const Row& row, bool with_empty)
    {
        if (!row.degree && !with_empty) return;
        if (row.degree) atomicAdd(&near.edges, u64(row.degree));
        if (row.degree < LONG_ROW) {
            const u32 at = atomicAdd(&near.n_short, 1u);
            if (at < Near::ROOM) near.short_rows[at] = {vertex, row.degree ? row.leaf : 0, row.degree, 0};
            else put_short(far, u32(atomicAdd(&far.counts->short_rows, 1ull)), vertex, row);
            return;
        }
        const u32 n_leaves = leaves_of(state, vertex, row);
        const Entry entry = {vertex, row.leaf, n_leaves, atomicAdd(&near.n_leaves, n_leaves)};
        const u32 at = atomicAdd(&near.n_long, 1u);
        if (at < Near::ROOM) near.long_rows[at] = entry;
        else put_leaves(far, entry);
    }

    // Code that is seldom needed stands once.
    __device__ __noinline__ static u32 leaves_of(const State& state, u32 vertex, Row row)
    {
        const bool is_remote = is_remote_leaf(state, row.leaf);
        const u32 last = is_remote ? last_leaf_of_remote_row(state, vertex, row) : last_leaf_of_row(state, vertex, row);
        return last - row.leaf + 1;
    }

    __device__ __noinline__ static void put_leaves(Frontier far, Entry entry)
    {
        const u64 base = atomicAdd(&far.counts->long_rows, 1ull << 32 | entry.size);
        entry.number = u32(base);
        store_wide(far.long_rows + u32(base >> 32), entry);
    }

    // Puts what is near where mend.cu looks for it; by all threads.
    __device__ __forceinline__ void send(const Near& near, const Frontier& far)
    {
        if (threadIdx.x < min(near.n_short, Near::ROOM)) {
            const u32 at = u32(atomicAdd(&far.counts->short_rows, 1ull));
            if (at < far.room) store_wide(far.short_rows + at, near.short_rows[threadIdx.x]);
        }
        if (threadIdx.x < min(near.n_long, Near::ROOM)) put_leaves(far, near.long_rows[threadIdx.x]);
        if (threadIdx.x) return;
        atomicAdd(&far.counts->edges, near.edges);
        atomicAdd(&far.counts->lost, u64(near.n_lost));
    }

    __device__ __forceinline__ Frontier far_asked() const
    {
        return frontier_of(job, QUEUE_ASKED + (turn & 1), job.counters->asked + turn % 3);
    }

    __device__ __forceinline__ Frontier far_pulling() const
    {
        return frontier_of(job, PULLING, &job.counters->pulling);
    }

    __device__ __forceinline__ u32 hand_over(u32 phase)
    {
        send(queues.asked[turn % 3], far_asked());
        send(queues.outgoing[turn % 3], outgoing(job, turn));
        send(queues.pulling, far_pulling());
        if (threadIdx.x == 0) job.counters->logged = queues.n_logged;
        __syncthreads();
        return phase;
    }

    // Calls visit(vertex, bits, edges, is_last) for each leaf of these rows, by whole warps: as walk_rows.
    template <class Visit>
    __device__ __forceinline__ void walk(const State& state, const Near& near, Visit visit)
    {
        const u32 n = near.n_short + near.n_leaves, n_warps = blockDim.x >> 5;
        RowsRead read;
#pragma unroll 1
        for (u32 x = threadIdx.x >> 5; x < n; x += n_warps) {
            const bool in_short = x < near.n_short;
            Entry row;
            if (in_short) row = near.short_rows[x];
            else {
                const u32 at = x - near.n_short;
                const bool is_there = place.lane < near.n_long;
                const Entry own = is_there ? near.long_rows[place.lane] : Entry{0, 0, 0, 0};
                const u32 which = __ffs(__ballot_sync(ALL_LANES, at - own.number < own.size)) - 1;
                row = near.long_rows[which];
                row.leaf += at - row.number;
            }
            u32 left = row.size;
            read.begin(state, row.vertex, row.leaf);
            const u32 bits = value_bits(load_word(job, row.vertex));
            for (u32 leaf = row.leaf;; leaf++) {
                Edges edges = {{0, 0}, {false, false}, leaf};
                if (left) edges = edges_of(load_part(state, leaf), leaf, row.vertex);
                const u32 n_edges = vote(edges.live[0], edges.live[1]).count();
                read.add(n_edges);
                left -= n_edges;
                const bool is_last = in_short && !left;
                if (visit(row.vertex, bits, edges, is_last) || is_last || !in_short) break;
            }
        }
        read.tell(state);
    }

    __device__ __forceinline__ void load_words(const Edges& edges, u64 (&words)[2]) const
    {
        for (u32 j = 0; j < 2; j++) words[j] = edges.live[j] ? load_word(job, edges.head[j]) : UNREACHED;
    }

    // -- vertices, by any thread ---------------------------------------------------------------------------------

    __device__ __forceinline__ void log_if_first(u32 vertex, u32 before)
    {
        if (before < job.stamp) job.log[atomicAdd(&queues.n_logged, 1u)] = vertex;
    }

    // Lost, or asked, in this turn or the next one.
    __device__ __forceinline__ void lose(u32 vertex, u32 turn)
    {
        const Row to = load_row(out, vertex), from = load_row(in, vertex);
        store_cached(job.words + vertex, UNREACHED);
        const u32 before = atomicExch(job.stamps + vertex, job.stamp);
        Near& passing = queues.outgoing[turn % 3];
        atomicAdd(&passing.n_lost, 1u);
        put_row(out, passing, outgoing(job, turn), vertex, to, false);
        put_row(in, queues.pulling, far_pulling(), vertex, from, false);
        log_if_first(vertex, before);
    }

    __device__ __forceinline__ void unsettle(u32 vertex, u32 bits, u32 turn)
    {
        if (!SETTLES) return lose(vertex, turn);
        store_cached(job.words + vertex, word_of(bits, ASKED));
        log_if_first(vertex, atomicExch(job.stamps + vertex, job.stamp));  // whatever becomes of it, its word changes
        const Frontier far = frontier_of(job, QUEUE_ASKED + (turn & 1), job.counters->asked + turn % 3);
        put_row(in, queues.asked[turn % 3], far, vertex, load_row(in, vertex), true);
    }

    // Makes an offer; who gains is queued for ``turn``, the round ``stamp``.
    __device__ __forceinline__ void improve(Offer offer, u32 turn, u32 stamp)
    {
        if (!offer.is_good) return;
        const Row row = load_row(out, offer.vertex);
        const u64 found = atomicCAS(job.words + offer.vertex, offer.seen, word_of(offer.bits, offer.from));
        const u32 before = atomicExch(job.stamps + offer.vertex, stamp);
        finish_offer(job, offer, found);
        if (before != stamp)
            put_row(out, queues.outgoing[turn % 3], outgoing(job, turn), offer.vertex, row, false);
        log_if_first(offer.vertex, before);
    }

    // -- 1. classify ---------------------------------------------------------------------------------------------

    // Whether any update takes support, or offers what is better; if not, that is told.
    __device__ __forceinline__ bool classify()
    {
        bool is_worse = false;
        u32 bits = NOTHING;
        if (threadIdx.x < job.n_updates) {
            const u8 outcome = load_constant(job.outcomes + threadIdx.x);
            key = load_constant(job.keys + threadIdx.x);
            const float weight = weight_of_update(job, threadIdx.x);
            if (may_worsen(outcome) || may_improve(outcome)) {
                const u64 from = load_word(job, source(key)), to = load_word(job, destination(key));
                const u32 now = offered(value_bits(from), weight);
                bits = value_bits(to);
                is_worse = may_worsen(outcome) && takes_support(outcome, key, to, now);
                if (may_improve(outcome)) own = offer_to(destination(key), to, now, source(key));
            }
        }
        const bool changes = __syncthreads_or(is_worse || own.is_good);
        set_mark(job, place, LOOKED);
        if (!changes) {
            if (threadIdx.x == 0) tell_all(job, 0, 0, 0, 0, stamp + 1, 0);
            set_mark(job, place, TOLD);
            return false;
        }
        if (is_worse) unsettle(destination(key), bits, 0);
        __syncthreads();
        set_mark(job, place, CLASSIFIED);
        return true;
    }

    // -- 2. settle -----------------------------------------------------------------------------------------------

    // Rounds until nobody is asked and nobody passes on: the phase that comes next.
    __device__ __forceinline__ u32 settle()
    {
        for (;; turn++) {
            const Near& ask = queues.asked[turn % 3];
            const bool asks = !ask.is_empty();
            if (asks) {
                if (ask.is_many() || edges + ask.edges > job.edges_max) return SETTLE;
                edges += ask.edges;
                answer(ask);
            }
            const Near& pass = queues.outgoing[turn % 3];
            if (pass.is_many() || n_lost + pass.n_lost > job.lost_max || edges + pass.edges > job.edges_max) {
                clear_asked(turn);
                return PASS_ON;
            }
            n_lost += pass.n_lost;
            edges += pass.edges;
            rounds += asks || !pass.is_empty();
            clear(turn + 2);
            if (pass.is_empty()) {
                turn++;
                return TAKE;
            }
            walk(out, pass, [&](u32 vertex, u32, const Edges& row, bool) {
                u64 word[2];
                load_words(row, word);
#pragma unroll 1
                for (u32 j = 0; j < 2; j++) {
                    const u64 its = j ? word[1] : word[0];
                    if (parent_of(its) == vertex && value_bits(its) != NOTHING)
                        unsettle(j ? row.head[1] : row.head[0], value_bits(its), turn + 1);
                }
                __syncwarp();
                return false;
            });
            __syncthreads();
        }
    }

    // These were answered: nobody is to answer again.
    __device__ __forceinline__ void clear_asked(u32 turn)
    {
        __syncthreads();
        if (threadIdx.x == 0) queues.asked[turn % 3].clear();
        __syncthreads();
    }

    // Of a long row, several warps look through parts: whether any of them found a parent shows when all have looked.
    __device__ __forceinline__ void answer(const Near& ask)
    {
        walk(in, ask, [&](u32 vertex, u32 bits, const Edges& row, bool is_last) {
            u64 word[2];
            load_words(row, word);
            const bool first = supports(in, row, 0, word[0], bits), second = supports(in, row, 1, word[1], bits);
            const u32 found = __ballot_sync(ALL_LANES, first || second);
            if (found && place.lane == __ffs(found) - 1)
                store_cached(job.words + vertex, word_of(bits, first ? row.head[0] : row.head[1]));
            else if (!found && is_last && place.lane == 0) lose(vertex, turn);
            __syncwarp();
            return found != 0;
        });
        __syncthreads();
        if (!ask.n_long) return;
        if (threadIdx.x < ask.n_long) {
            const u32 vertex = ask.long_rows[threadIdx.x].vertex;
            if (parent_of(load_word(job, vertex)) == ASKED) lose(vertex, turn);
        }
        __syncthreads();
    }

    // -- 3. what is left, and what is new ------------------------------------------------------------------------

    // Of new edges only those can be needed that offered what is better to begin with: who is lost takes the best of its
    // whole row, and who improves pushes along it.
    __device__ __forceinline__ void take()
    {
        edges += queues.pulling.edges;
        walk(in, queues.pulling, [&](u32 vertex, u32, const Edges& row, bool) {
            u64 word[2];
            load_words(row, word);
            u32 best = NOTHING, parent = NO_PARENT;
            for (u32 j = 0; j < 2; j++) {
                const u32 bits = row.live[j] ? offered(value_bits(word[j]), weight_of(in, row, j)) : NOTHING;
                if (!is_better(bits, best)) continue;
                best = bits;
                parent = row.head[j];
            }
            agree_on_best(best, parent);
            if (place.lane == 0) improve(offer_to(vertex, load_word(job, vertex), best, parent), turn, stamp);
            __syncwarp();
            return false;
        });
        if (own.is_good && n_lost) {
            const u64 from = load_word(job, source(key)), to = load_word(job, destination(key));
            own = offer_to(
                destination(key), to, offered(value_bits(from), weight_of_update(job, threadIdx.x)), source(key));
        }
        improve(own, turn, stamp);
        __syncthreads();
    }

    // -- 4. push -------------------------------------------------------------------------------------------------

    // Rounds until nobody has improved; false: there is too much of it.
    __device__ __forceinline__ bool push()
    {
        for (;; turn++) {
            const Near& now = queues.outgoing[turn % 3];
            if (now.is_empty()) return true;
            if (now.is_many()) return false;
            edges += now.edges;
            rounds++;
            clear(turn + 2);
            walk(out, now, [&](u32 vertex, u32 bits, const Edges& row, bool) {
                u64 word[2];
                load_words(row, word);
                Offer offers[2] = {no_offer(), no_offer()};
                for (u32 j = 0; j < 2; j++)
                    if (row.live[j])
                        offers[j] = offer_to(row.head[j], word[j], offered(bits, weight_of(out, row, j)), vertex);
#pragma unroll 1
                for (u32 j = 0; j < 2; j++) improve(j ? offers[1] : offers[0], turn + 1, stamp + 1);
                __syncwarp();
                return false;
            });
            stamp++;
            __syncthreads();
        }
    }

    // -- the end -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        const u32 n = queues.n_logged;
        if (n <= job.changes_room) {
            for (u32 x = threadIdx.x; x < n; x += blockDim.x) {
                const u32 vertex = load_cached(job.log + x);
                job.changes[x] = make_ulonglong2(vertex, load_word(job, vertex));
            }
        }
        __syncthreads();
        set_mark(job, place, LISTED);
        if (threadIdx.x) return;
        __threadfence_system();  // for what all have listed
        tell_all(job, 0, n, n_lost, rounds, stamp + 1, edges);
        set_mark(job, place, TOLD);
    }
};

// Mends, and tells: the END; or what mend.cu must know to go on.
__device__ __forceinline__ PathHanded mend_few(
    const State& out, const State& in, const PathJob& job, const Place& place, FewQueues& queues)
{
    Few few(out, in, job, place, queues);
    const u32 phase = few.run();
    return {phase, few.turn, few.rounds, few.n_lost, few.turn, few.stamp, few.edges};
}
