// Mending the words of a path program after a batch of updates: one cooperative kernel. The rules are the host's
// (compute/paths/program.py), and so are the values, bit for bit; of several parents with the same offer any may be
// kept.
//
// 1. classify: heads that lost the edge to their parent, or to which it now offers less.
// 2. settle, in rounds: they are asked for another in-neighbour that offers exactly their value, is itself strictly
//    better, and not lost. Who finds none is lost, and the children of the lost are asked: also those that became their
//    children in this very round. An adopted parent is strictly better, so adoptions close no circle; and the lost only
//    become more, so it ends (in the manner of Ramalingam and Reps, 1996). Or trim: all children of the lost are lost.
//    That takes fewer rounds and barriers, and loses more vertices where offers tie. So whoever has few out-edges is
//    trimmed where there is little to do.
// 3. The lost, who are unreached by now, take the best that their in-neighbours offer. New edges are relaxed.
// 4. push, in rounds: who improved offers along its row.
//
// After few updates the first block works for all (alone.cuh), with queues of its own (few.cuh): in a kernel that is FEW,
// since all others are slower where that stands beside them.
//
// For many updates there are two kernels, SETTLES=1 to settle and SETTLES=0 to trim: to decide it at run time makes them
// slower. The one for few decides at run time, which costs nothing there (SETTLES in mending.cuh).
#ifndef FEW
#error "FEW says for how many updates at most it is the kernel for few; 0: it is not"
#endif

enum Phase : unsigned { CLASSIFY, SETTLE, PASS_ON, TAKE, PUSH };

#include "few.cuh"

// While settling, whoever lost its support is lost at once, as when trimming, unless it has many out-edges: where there is
// little to do, most of the time goes to rounds and their barriers. That is up to so many updates; among children of the
// lost, up to so many out-edges of these; and with fewer than so many out-edges of its own.
constexpr u32 AT_ONCE_UPDATES = 1u << 17;
constexpr u32 AT_ONCE_EDGES = 1u << 17;
#ifndef ASKED_FROM
#define ASKED_FROM 2048
#endif

// Updates that a thread has under way at a time. Of more there is more code, which batches of any size pay for.
constexpr u32 TOGETHER = 2;

using Held = HeldBy<false>;

// A block has its own queues first, if at all, and then what its warps hold.
union Shared {
    FewQueues few;
    Held held[BLOCK_THREADS / 32];
};

struct Mending : Pushing<false> {
    const State& in;
    const Alone<PathHanded> alone;
    u32 n_lost = 0;
    u32 phase = CLASSIFY, stamp;
    FewQueues& queues;

    __device__ __forceinline__ Mending(
        const State& out, const State& in, const PathJob& job, const Place& place, Shared& shared)
        : Pushing(out, job, place, shared.held), in(in),
          alone{place, &job.counters->handed, &job.counters->barrier}, stamp(job.stamp + 1), queues(shared.few)
    {
    }

    __device__ __forceinline__ void mark(Mark what) { set_mark(job, place, what); }

    __device__ __forceinline__ void run()
    {
        mark(BEGUN);
        // A block may have fewer threads than it was compiled for.
        if (FEW && job.n_updates <= min(u32(FEW), blockDim.x) && !job.n_sources) mend_alone();
        if (phase != END) work();
    }

    // By the first block, an update a thread, up to the end or until there is more to do than suits it.
    __device__ __forceinline__ void mend_alone()
    {
        go_on(alone.begin(place, state(CLASSIFY)));
        if (place.n_blocks > 1) return;
        go_on(mend_few(out, in, job, place, queues));
        if (phase == END) alone.let_go(place);
        else if (alone.is_alone(place)) alone.call_others(place, state(phase));
    }

    __device__ __forceinline__ void work()
    {
        if (phase == CLASSIFY) {
            classify();
            barrier();
            mark(CLASSIFIED);
        }
        if (phase <= PASS_ON && !settle()) return give_up();
        mark(SETTLED);
        if (phase <= TAKE) take();
        mark(TAKEN);
        stamp = push(stamp);
        mark(PUSHED);
        finish();
    }

    // What is left, what is new.
    __device__ __forceinline__ void take()
    {
        if (job.n_sources) {
            reach_sources();
            let_go(outgoing(job, turn));
            barrier();
        }
        pull_and_relax();
        let_go(outgoing(job, turn));
        barrier();
        slice = turn;  // nobody was asked in this turn: its counters are zero
    }

    // -- one block for all ---------------------------------------------------------------------------------------

    __device__ __forceinline__ PathHanded state(u32 now) const
    {
        return {now, turn, rounds, n_lost, slice, stamp, edges};
    }

    __device__ __forceinline__ void go_on(const PathHanded& from)
    {
        phase = from.phase;
        turn = from.turn;
        rounds = from.rounds;
        n_lost = from.n_lost;
        slice = from.slice;
        stamp = from.stamp;
        edges = from.edges;
    }

    // -- queues --------------------------------------------------------------------------------------------------

    __device__ __forceinline__ Frontier pulling() { return frontier_of(job, PULLING, &job.counters->pulling); }

    // What ``turn`` will count begins at zero: it is the one before last that had these counters.
    __device__ __forceinline__ void clear(u32 turn)
    {
        if (place.thread) return;
        clear_counts(job.counters->outgoing + turn % 3);
        clear_counts(job.counters->asked + turn % 3);
    }

    // Whether this is the first time in this run that the word of a vertex is written.
    __device__ __forceinline__ bool touch(u32 vertex)
    {
        return atomicExch(job.stamps + vertex, job.stamp) < job.stamp;
    }

    // The chosen vertices, two a lane, are lost, which have been logged: queued for their children to hear of it and for
    // taking the best that is left. All lanes take part; the counters are added to by one instruction.
    __device__ __forceinline__ void lose(
        const bool (&chosen)[2], const u32 (&vertex)[2], const Frontier& passing)
    {
        Row to[2] = {{0, 0}, {0, 0}}, from[2] = {{0, 0}, {0, 0}};
        for (u32 j = 0; j < 2; j++) {
            if (!chosen[j]) continue;
            to[j] = load_row(out, vertex[j]);
            from[j] = load_row(in, vertex[j]);
        }
        const bool none[2] = {false, false};
        lose(chosen, vertex, to, from, none, passing);
    }

    // The same, by their rows, those of others being empty; who is lost for the first time in this run is logged.
    __device__ __forceinline__ void lose(const bool (&chosen)[2], const u32 (&vertex)[2], const Row (&to)[2],
        const Row (&from)[2], const bool (&is_first)[2], const Frontier& passing)
    {
        const Frontier pulls = pulling();
        for (u32 j = 0; j < 2; j++)
            if (chosen[j]) store_cached(job.words + vertex[j], UNREACHED);
        __syncwarp();
        const Votes firsts = vote(is_first[0], is_first[1]), all = vote(chosen[0], chosen[1]);
        const Votes passes = vote(is_short(to[0]), is_short(to[1])), takes = vote(is_short(from[0]), is_short(from[1]));
        const u32 edges_to = edges_of_rows(to[0].degree, to[1].degree);
        const u32 edges_from = edges_of_rows(from[0].degree, from[1].degree);
        PathCounters* const counters = job.counters;
        u64* counter = &counters->logged;
        u32 amount = firsts.count();
        switch (place.lane) {
        case 1: counter = &passing.counts->short_rows, amount = passes.count(); break;
        case 2: counter = &pulls.counts->short_rows, amount = takes.count(); break;
        case 3: counter = &passing.counts->edges, amount = edges_to; break;
        case 4: counter = &pulls.counts->edges, amount = edges_from; break;
        case 5: counter = &passing.counts->lost, amount = all.count(); break;
        }
        u64 base = 0;
        if (place.lane < 6) base = add_by_lane(counter, amount);
        const u32 at_log = u32(__shfl_sync(ALL_LANES, base, 0));
        const u32 at_passing = u32(__shfl_sync(ALL_LANES, base, 1)), at_pulling = u32(__shfl_sync(ALL_LANES, base, 2));
        for (u32 j = 0; j < 2; j++) {
            if (!chosen[j]) continue;
            if (is_first[j]) job.log[at_log + firsts.before(j)] = vertex[j];
            if (is_short(to[j])) put_short(passing, at_passing + passes.before(j), vertex[j], to[j]);
            else if (to[j].degree) put_long(out, passing, vertex[j], to[j]);
            if (is_short(from[j])) put_short(pulls, at_pulling + takes.before(j), vertex[j], from[j]);
            else if (from[j].degree) put_long(in, pulls, vertex[j], from[j]);
        }
        __syncwarp();
    }

    // The chosen vertices, two a lane, are asked in the next round. They are logged now: whether they find another parent
    // or are lost, their words change.
    __device__ __forceinline__ void ask(const bool (&chosen)[2], const u32 (&vertex)[2], const u32 (&bits)[2],
        const Row (&row)[2], const bool (&is_first)[2], const Frontier& queue)
    {
        const Votes firsts = vote(is_first[0], is_first[1]);
        u64 base = 0;
        if (place.lane == 0) base = add_by_lane(&job.counters->logged, firsts.count());
        const u32 at = u32(__shfl_sync(ALL_LANES, base, 0));
        for (u32 j = 0; j < 2; j++)
            if (is_first[j]) job.log[at + firsts.before(j)] = vertex[j];
        for (u32 j = 0; j < 2; j++)
            if (chosen[j]) store_cached(job.words + vertex[j], word_of(bits[j], ASKED));
        put<true>(in, queue, chosen, vertex, row);
    }

    // -- 1. classify ---------------------------------------------------------------------------------------------

    // What an edge of the batch offers.
    __device__ __forceinline__ u32 offered_by(u32 update, u64 key)
    {
        return offered(value_bits(load_word(job, source(key))), weight_of_update(job, update));
    }

    // TOGETHER updates of the batch, as far as there are so many: neighbouring lanes have neighbouring ones.
    struct Updates {
        u8 outcome[TOGETHER];
        u64 key[TOGETHER];
    };

    __device__ __forceinline__ u32 update_of(u32 first, u32 k) const { return first + k * place.n_threads; }

    __device__ __forceinline__ Updates load_updates(u32 first) const
    {
        Updates updates;
        for (u32 k = 0; k < TOGETHER; k++) {
            const u32 i = update_of(first, k);
            updates.outcome[k] = i < job.n_updates ? load_constant(job.outcomes + i) : u8(ABSENT);
            updates.key[k] = i < job.n_updates ? load_constant(job.keys + i) : 0;
        }
        return updates;
    }

    // How far apart the updates are that a warp has under way, one group after the other.
    __device__ __forceinline__ u64 step_of_updates() const { return u64(place.n_threads) * TOGETHER; }

    __device__ __forceinline__ void classify()
    {
        for (u64 begin = u64(place.warp) * 32; begin < job.n_updates; begin += step_of_updates()) {
            const bool is_more = begin + step_of_updates() < job.n_updates;
            const u32 first = u32(begin) + place.lane;
            const Updates updates = load_updates(first);
            u64 word[TOGETHER];
            u32 head[TOGETHER];
            bool chosen[TOGETHER];
            for (u32 k = 0; k < TOGETHER; k++) {
                head[k] = destination(updates.key[k]);
                word[k] = may_worsen(updates.outcome[k]) ? load_word(job, head[k]) : UNREACHED;
            }
            for (u32 k = 0; k < TOGETHER; k++) {
                const u64 key = updates.key[k];
                chosen[k] = may_worsen(updates.outcome[k]) && is_child(key, word[k]);
                if (!chosen[k] || updates.outcome[k] == DELETED) continue;
                chosen[k] = takes_support(updates.outcome[k], key, word[k], offered_by(update_of(first, k), key));
            }
            unsettle(chosen, head, word);
#pragma unroll 1
            while (see_to_unsettled(is_more, job.n_updates <= AT_ONCE_UPDATES, 0)) {}
        }
    }

    // The chosen vertices, two a lane, lost their support, which is put off.
    __device__ __forceinline__ void unsettle(const bool (&chosen)[2], const u32 (&vertex)[2], const u64 (&word)[2])
    {
        for (u32 j = 0; !REMOTE && j < 2; j++)
            if (chosen[j]) prefetch(in.rows + vertex[j]);
        put_off({{chosen[0], vertex[0], 0, value_bits(word[0]), NO_PARENT},
            {chosen[1], vertex[1], 0, value_bits(word[1]), NO_PARENT}});
    }

    // Those that were put off, if it is time, are lost at once, and their rows queued for turn ``next``; or, where that is
    // not for all of them or they have many out-edges, asked then.
    __device__ __forceinline__ bool see_to_unsettled(bool may_wait, bool at_once, u32 next)
    {
        Offer offers[2];
        if (!take_found(may_wait, offers)) return false;
        const bool chosen[2] = {offers[0].is_good, offers[1].is_good};
        const u32 vertex[2] = {offers[0].vertex, offers[1].vertex}, bits[2] = {offers[0].bits, offers[1].bits};
        const bool may_lose = !SETTLES || at_once;
        Row to[2] = {{0, 0}, {0, 0}}, from[2] = {{0, 0}, {0, 0}};
        u32 before[2] = {job.stamp, job.stamp};
        for (u32 j = 0; j < 2; j++) {
            if (chosen[j] && may_lose) to[j] = load_row(out, vertex[j]);
            if (chosen[j]) from[j] = load_row(in, vertex[j]);
            if (chosen[j]) before[j] = atomicExch(job.stamps + vertex[j], job.stamp);
        }
        bool is_lost[2], is_asked[2], lost_first[2], asked_first[2];
        for (u32 j = 0; j < 2; j++) {
            is_lost[j] = chosen[j] && may_lose && (!SETTLES || to[j].degree < ASKED_FROM);
            is_asked[j] = chosen[j] && !is_lost[j];
            lost_first[j] = is_lost[j] && before[j] < job.stamp;
            asked_first[j] = is_asked[j] && before[j] < job.stamp;
        }
        __syncwarp();
        if (SETTLES && __any_sync(ALL_LANES, is_asked[0] || is_asked[1]))
            ask(is_asked, vertex, bits, from, asked_first, asked(next));
        for (u32 j = 0; j < 2; j++)
            if (!is_lost[j]) to[j] = from[j] = {0, 0};
        if (__any_sync(ALL_LANES, is_lost[0] || is_lost[1]))
            lose(is_lost, vertex, to, from, lost_first, outgoing(job, next));
        return true;
    }

    // -- 2. settle -----------------------------------------------------------------------------------------------

    // Rounds until nobody is asked and nobody passes on; whether it was worth it.
    __device__ __forceinline__ bool settle()
    {
        for (;; turn++) {
            const Frontier passing = outgoing(job, turn);
            Counts counts[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
            if (SETTLES) load_counts(job.counters->asked + turn % 3, passing.counts, counts);
            else counts[1] = load_counts(passing.counts);
            const Counts ask = counts[0];
            if (phase != PASS_ON) {
                edges += ask.edges;
                if (SETTLES && !is_empty(ask)) {
                    if (n_short(ask) > job.room || edges > job.edges_max) break;
                    answer(asked(turn), ask, passing);
                    counts[1] = load_counts(passing.counts);
                }
            }
            phase = SETTLE;
            const Counts pass = counts[1];
            edges += pass.edges;
            n_lost += u32(pass.lost);
            if (n_lost > job.lost_max || edges > job.edges_max) break;
            rounds += !is_empty(ask) || !is_empty(pass);
            clear(turn + 2);
            if (is_empty(pass)) {  // and so is what is asked next
                // Others may not have read these counts yet: what follows counts in those of the next turn.
                turn++;
                return true;
            }
            pass_on(passing, pass);
            barrier();
        }
        return false;
    }

    // Of a long row, several warps look through parts: whether any of them found a parent shows when all have looked.
    __device__ __forceinline__ void answer(const Frontier& queue, const Counts& counts, const Frontier& passing)
    {
        const auto bits_if_asked = [&](u32 vertex) {
            const u64 word = load_word(job, vertex);
            return parent_of(word) == ASKED ? value_bits(word) : NOTHING;
        };
        walk_rows(in, queue, counts, place, bits_if_asked,
            [&](u32 bits, u32 vertex, const Edges& row, bool is_last) {
                u64 word[2] = {UNREACHED, UNREACHED};
                for (u32 j = 0; j < 2; j++)
                    if (row.live[j]) word[j] = load_word(job, row.head[j]);
                const bool first = supports(in, row, 0, word[0], bits), second = supports(in, row, 1, word[1], bits);
                const u32 found = __ballot_sync(ALL_LANES, first || second);
                const u32 parent = first ? row.head[0] : second ? row.head[1] : NO_PARENT;
                const bool is_told = place.lane == (found ? __ffs(found) - 1 : 0);
                if (found || is_last) put_off({{is_told, vertex, 0, bits, parent}, no_offer()});
                return found != 0;
            },
            [&](bool is_more) { return see_to_answered(is_more, passing); });
        barrier();
        const u32 n = n_long(counts);
        if (!n) return;
        for (u32 first = place.warp * 32; first < n; first += place.n_threads) {
            u32 vertex = 0;
            u64 word = UNREACHED;
            const bool is_there = first + place.lane < n;
            if (is_there) {
                vertex = load_wide(queue.long_rows + first + place.lane).vertex;
                word = load_word(job, vertex);
            }
            const bool is_lost = is_there && parent_of(word) == ASKED;
            const bool those[2] = {is_lost, false};
            const u32 vertices[2] = {vertex, 0};
            if (__any_sync(ALL_LANES, is_lost)) lose(those, vertices, passing);
        }
        barrier();
    }

    // Those that were put off, if it is time, have another parent, or are lost.
    __device__ __forceinline__ bool see_to_answered(bool may_wait, const Frontier& passing)
    {
        Offer found[2];
        if (!take_found(may_wait, found)) return false;
        bool is_lost[2];
        for (u32 j = 0; j < 2; j++) {
            is_lost[j] = found[j].is_good && found[j].from == NO_PARENT;
            if (found[j].is_good && !is_lost[j])
                store_cached(job.words + found[j].vertex, word_of(found[j].bits, found[j].from));
        }
        __syncwarp();
        const u32 vertices[2] = {found[0].vertex, found[1].vertex};
        if (__any_sync(ALL_LANES, is_lost[0] || is_lost[1])) lose(is_lost, vertices, passing);
        return true;
    }

    // The children of the lost are asked, or lost in their turn.
    __device__ __forceinline__ void pass_on(const Frontier& passing, const Counts& counts)
    {
        const bool at_once = job.n_updates <= AT_ONCE_UPDATES && counts.edges <= AT_ONCE_EDGES;
        struct Loaded {
            u64 word[2];
        };
        const auto load = [&](u32, const Edges& row) {
            Loaded loaded = {{UNREACHED, UNREACHED}};
            for (u32 j = 0; j < 2; j++)
                if (row.live[j]) loaded.word[j] = load_word(job, row.head[j]);
            return loaded;
        };
        walk_rows_ahead(out, passing, counts, place, load, [&](const Loaded& loaded, u32 vertex, const Edges& row) {
            bool is_child[2];
            for (u32 j = 0; j < 2; j++)
                is_child[j] = parent_of(loaded.word[j]) == vertex && value_bits(loaded.word[j]) != NOTHING;
            unsettle(is_child, row.head, loaded.word);
        }, [&](bool is_more) { return see_to_unsettled(is_more, at_once, turn + 1); });
    }

    // -- 3. what is left, and what is new ------------------------------------------------------------------------

    // Lost vertices take the best offer of their rows, or of each warp's part of a long one. And the edges are relaxed that
    // the batch inserted, or to which it gave another weight: before that, so that a warp makes its offers of both kinds
    // together. Where there are few, other warps have new edges than those that pull.
    __device__ __forceinline__ void pull_and_relax()
    {
        const u32 at = place.warp + place.n_warps / 2;
        u64 first = u64(at < place.n_warps ? at : at - place.n_warps) * 32;
        Updates updates;
        if (first < job.n_updates) updates = load_updates(u32(first) + place.lane);
        const auto is_new_edge = [&] { return first < job.n_updates; };
        const auto relax = [&] {
            const Updates now = updates;
            const u32 own = u32(first) + place.lane;
            first += step_of_updates();
            u64 from[TOGETHER], seen[TOGETHER];
            for (u32 k = 0; k < TOGETHER; k++) {
                const bool is_new = may_improve(now.outcome[k]);
                from[k] = is_new ? load_word(job, source(now.key[k])) : UNREACHED;
                seen[k] = is_new ? load_word(job, destination(now.key[k])) : UNREACHED;
            }
            if (first < job.n_updates) updates = load_updates(u32(first) + place.lane);
            Offer offers[TOGETHER];
            for (u32 k = 0; k < TOGETHER; k++) {
                const u64 key = now.key[k];
                u32 bits = NOTHING;
                if (value_bits(from[k]) != NOTHING)
                    bits = offered(value_bits(from[k]), weight_of_update(job, update_of(own, k)));
                offers[k] = offer_to(destination(key), seen[k], bits, source(key));
            }
            put_off(offers);
        };
        const Frontier queue = pulling();
        const Counts counts = load_counts(queue.counts);
        edges += counts.edges;
        struct Loaded {
            u64 seen, word[2];
            float weight[2];
        };
        const auto load = [&](u32 vertex, const Edges& row) {
            Loaded loaded = {load_word(job, vertex), {UNREACHED, UNREACHED}, {1.0f, 1.0f}};
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                loaded.word[j] = load_word(job, row.head[j]);
                loaded.weight[j] = weight_of(in, row, j);
            }
            return loaded;
        };
        u32 best = NOTHING, parent = NO_PARENT;  // of this lane's heads so far
        const auto use = [&](const Loaded& loaded, u32 vertex, const Edges& row, bool is_last) {
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                const u32 bits = offered(value_bits(loaded.word[j]), loaded.weight[j]);
                if (!is_better(bits, best)) continue;
                best = bits;
                parent = row.head[j];
            }
            if (!is_last) return;
            agree_on_best(best, parent);
            put_off({place.lane == 0 ? offer_to(vertex, loaded.seen, best, parent) : no_offer(), no_offer()});
            best = NOTHING;
            parent = NO_PARENT;
        };
        walk_rows_behind(in, queue, counts, place, is_new_edge, relax, load, use,
            [&](bool is_more) { return make_offers(is_more, outgoing(job, turn), job.stamp + 1); });
    }

    // Sources have the source's word, whatever reached them before. Nothing else is written meanwhile.
    __device__ __forceinline__ void reach_sources()
    {
        const u32 bits = value_bits(job.source_word);
        for (u32 first = place.warp * 32; first < job.n_sources; first += place.n_threads) {
            Offer offers[2] = {no_offer(), no_offer()};
            if (first + place.lane < job.n_sources) {
                const u32 vertex = load_constant(job.sources + first + place.lane);
                const u64 seen = load_word(job, vertex);
                offers[0] = offer_to(vertex, seen, bits, NO_PARENT);
                if (seen != job.source_word && !offers[0].is_good) {  // reached with the same value: nothing to push
                    store_cached(job.words + vertex, job.source_word);
                    if (touch(vertex)) job.log[u32(atomicAdd(&job.counters->logged, 1ull))] = vertex;
                }
            }
            __syncwarp();
            improve(outgoing(job, turn), offers, job.stamp + 1);
        }
    }

    // -- the end -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        const u32 n = u32(load_for_block(&job.counters->logged));
        if (n && n <= job.changes_room) {
            for (u32 x = place.thread; x < n; x += place.n_threads) {
                const u32 vertex = load_cached(job.log + x);
                job.changes[x] = make_ulonglong2(vertex, load_word(job, vertex));
            }
        }
        if (n) barrier();
        mark(LISTED);
        report(0, n, stamp + 1);
    }

    __device__ __forceinline__ void give_up()
    {
        barrier();  // all have read the counters
        report(1, u32(load_cached(&job.counters->logged)), job.stamp + 1);
    }

    __device__ __forceinline__ void report(u32 gave_up, u32 n_logged, u32 next_stamp)
    {
        if (place.thread) return;
        __threadfence_system();  // for what all have listed: it was before the barrier
        tell_all(job, gave_up, n_logged, n_lost, rounds, next_stamp, edges);
        mark(TOLD);
        clear_counters(job.counters);  // the next kernel begins after this one's end
        mark(CLEARED);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void mend(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PathJob job)
{
    __shared__ Shared shared;
    Mending{out, in, job, dealt(place_in_grid()), shared}.run();
}

#if !REMOTE
// Several jobs at once, each by a part of the grid.
extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void mend_several(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ Jobs<PathJob> jobs)
{
    __shared__ PathJob job;
    __shared__ Shared shared;
    const Place place = dealt(jobs.take(job));
    Mending{out, in, job, place, shared}.run();
}
#endif
