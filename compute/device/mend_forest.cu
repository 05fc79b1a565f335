// Mending the forest of components after a batch of updates: one cooperative kernel.
//
// 1. classify: children that lost the edge to their parent are asked; those without edges are trees of their own at
//    once. New edges between two trees are listed.
// 2. settle, in rounds: who is asked looks for a neighbour of its tree with a strictly lower level that is not lost.
//    Who finds none is lost, and its children are asked: also those that hung themselves on it in this very round. An
//    adopted parent has a lower level, so adoptions close no circle; and the lost only become more, so it ends.
// 3. hang again: lost vertices with a neighbour of their tree that is not lost hang one level below it, and so on
//    among the lost. Who is left over is cut off: pieces are found by hooking, and become trees of their own.
// 4. join: of the trees that new edges connect, the largest keeps its handle; all others of its class are hung below
//    it, from the ends of those edges on. Only rows of these smaller trees are read.
//
// After few updates the first block works for all (alone.cuh).
#include "alone.cuh"
#include "forest.cuh"

enum Phase : u32 { CLASSIFY, SETTLE, HANG, JOIN, HANG_JOINED };

struct Mending : Foresting {
    const Alone<ForestHanded> alone;
    u32 n_lost = 0, n_left = 0;
    u64 n_moved = 0;
    u32 asked_turn = 0, turn = 0;  // of who is asked, and of what is hung
    u32 phase = CLASSIFY;

    __device__ __forceinline__ Mending(const State& out, const State& in, const ForestJob& job, const Place& place)
        : Foresting(out, in, job, place), alone{place, &job.counters->handed, &job.counters->barrier}
    {
    }

    __device__ __forceinline__ void run()
    {
        const u32 n_new = job.n_vertices - job.n_before;
        if (place.n_blocks > 1 && job.n_updates <= ALONE_UPDATES && n_new <= ALONE_UPDATES)
            go_on(alone.begin(place, state(CLASSIFY)));
        if (phase == END) return;
        if (is_few() && !changes_anything()) report_nothing();
        else work();
        alone.let_go(place);
    }

    __device__ __forceinline__ void work()
    {
        if (phase == CLASSIFY) {
            if (job.n_before < job.n_vertices) {
                add_vertices();
                barrier();
            }
            classify();
            barrier();
        }
        const u32 n_joins = u32(load_cached(&job.counters->joins));
        if (phase <= SETTLE && (n_joins > job.room || !settle())) return give_up();
        if (phase <= HANG && n_lost) {
            const PairCounts pulls = load_counts(&job.counters->pulling);
            share(HANG, n_pieces(pulls.out) + n_pieces(pulls.in));
            n_left = n_lost - hang_again();
            if (n_left && is_worth_it()) split();
        }
        if (n_joins && is_worth_it()) join(n_joins);
        if (!is_worth_it()) return give_up();
        finish();
    }

    // -- one block for all ---------------------------------------------------------------------------------------

    __device__ __forceinline__ ForestHanded state(Phase now) const
    {
        return {now, asked_turn, turn, rounds, n_lost, 0, edges, n_moved};
    }

    __device__ __forceinline__ void go_on(const ForestHanded& from)
    {
        phase = from.phase;
        asked_turn = from.asked_turn;
        turn = from.turn;
        rounds = from.rounds;
        n_lost = from.n_lost;
        edges = from.edges;
        n_moved = from.n_moved;
    }

    // Where the first block is alone and so much is too much for it: all go on from here, in this phase.
    __device__ __forceinline__ void share(Phase now, u64 amount)
    {
        if (alone.is_alone(place) && amount > ALONE_ROWS) alone.call_others(place, state(now));
    }

    // -- nothing to do -------------------------------------------------------------------------------------------

    // Whether one block has the job, of a few updates and nothing else.
    __device__ __forceinline__ bool is_few() const
    {
        return place.n_blocks == 1 && phase == CLASSIFY && job.n_updates <= LOOK_UPDATES
            && job.n_before == job.n_vertices;
    }

    // Whether any update cuts a tree, or joins two. Most batches of few do not: then two accesses, one after the other,
    // are all that it takes, and nothing was counted or written.
    __device__ __forceinline__ bool changes_anything()
    {
        bool changes = false;
        if (place.thread < job.n_updates) {
            const u8 outcome = load_constant(job.outcomes + place.thread);
            const u64 key = load_constant(job.keys + place.thread);
            if (outcome == INSERTED || outcome == DELETED) {
                const Node from = load_node(source(key)), to = load_node(destination(key));
                changes = outcome == DELETED ? to.parent == source(key) || from.parent == destination(key)
                                             : from.handle != to.handle;
            }
        }
        return __syncthreads_or(changes);
    }

    __device__ __forceinline__ void report_nothing()
    {
        if (place.thread == 0) tell_all(0, 0, 0);
    }

    // -- sets of vertices ----------------------------------------------------------------------------------------

    __device__ __forceinline__ bool is_worth_it() const { return rounds <= job.rounds_max && n_moved <= job.moved_max; }

    // Each is a tree of its own, under its own number: no other tree was ever given that.
    __device__ __forceinline__ void add_vertices()
    {
        for (u32 v = job.n_before + place.thread; v < job.n_vertices; v += place.n_threads) {
            store_wide(job.nodes + v, Node{NOBODY, 0, v, NOBODY});
            set_tree(v, 1);
        }
    }

    __device__ __forceinline__ Pair asked(u32 turn) { return pair_of(job, ASKING, job.counters->asked + turn % 3); }

    __device__ __forceinline__ Pair passing(u32 turn) { return pair_of(job, PASSING, job.counters->passing + turn % 3); }

    // In the queues of settling, which is over by then, in turn.
    __device__ __forceinline__ Pair hanging(u32 turn) { return pair_of(job, turn & 1, job.counters->hanging + turn % 3); }

    __device__ __forceinline__ Pair pulling() { return pair_of(job, PULLING, &job.counters->pulling); }

    // Those that are left over, in the queues of who pulled.
    __device__ __forceinline__ Pair left() { return pair_of(job, PULLING, &job.counters->left); }

    // Whether this is the first time in this run that a vertex is written.
    __device__ __forceinline__ bool touch(u32 vertex) { return atomicExch(job.stamps + vertex, job.stamp) != job.stamp; }

    // -- 1. classify ---------------------------------------------------------------------------------------------

    __device__ __forceinline__ void classify()
    {
        for (u64 begin = u64(place.warp) * 64; begin < job.n_updates; begin += 2 * u64(place.n_threads)) {
            u8 outcome[2];
            u64 key[2];
            Node from[2], to[2];
            for (u32 j = 0; j < 2; j++) {
                const u64 i = begin + 32 * j + place.lane;
                outcome[j] = i < job.n_updates ? load_constant(job.outcomes + i) : u8(ABSENT);
                key[j] = i < job.n_updates ? load_constant(job.keys + i) : 0;
            }
            for (u32 j = 0; j < 2; j++) {
                from[j] = to[j] = {NOBODY, 0, 0, NOBODY};
                if (outcome[j] != INSERTED && outcome[j] != DELETED) continue;
                from[j] = load_node(source(key[j]));
                to[j] = load_node(destination(key[j]));
            }
            bool is_cut[2], joins[2];
            u32 child[2], parent[2];
            for (u32 j = 0; j < 2; j++) {
                const u32 u = source(key[j]), v = destination(key[j]);
                const bool is_below = to[j].parent == u;
                child[j] = is_below ? v : u;
                parent[j] = is_below ? u : v;
                is_cut[j] = outcome[j] == DELETED && (is_below || from[j].parent == v);
                joins[j] = outcome[j] == INSERTED && from[j].handle != to[j].handle;
            }
            if (__any_sync(ALL_LANES, is_cut[0] || is_cut[1])) ask(is_cut, child, parent, asked(0));
            for (u32 j = 0; j < 2; j++) {
                if (!__any_sync(ALL_LANES, joins[j])) continue;
                const u32 at = claim_places(&job.counters->joins, joins[j]);
                if (joins[j] && at < job.room) job.joins[at] = key[j];
            }
        }
    }

    // The chosen vertices, two a lane, lost their parents: they are asked next, each once.
    __device__ __forceinline__ void ask(
        const bool (&is_cut)[2], const u32 (&vertex)[2], const u32 (&parent)[2], const Pair& to)
    {
        bool chosen[2], is_first[2], is_alone[2];
        Rows rows[2] = {{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}};
        for (u32 j = 0; j < 2; j++) {
            chosen[j] = is_cut[j] && atomicCAS(&job.nodes[vertex[j]].parent, parent[j], ASKED) == parent[j];
            is_first[j] = chosen[j] && touch(vertex[j]);
            if (chosen[j]) rows[j] = load_rows(vertex[j]);
            is_alone[j] = chosen[j] && !rows[j].degree();
            chosen[j] = chosen[j] && !is_alone[j];
        }
        __syncwarp();
        const Places places = queue(to, chosen, vertex, rows, is_first);
        for (u32 j = 0; j < 2; j++) {
            if (chosen[j] && places.at[j] < job.room) job.listed[places.at[j]] = vertex[j];
            if (__any_sync(ALL_LANES, is_alone[j])) cut_off(is_alone[j], vertex[j]);
        }
    }

    // Vertices without edges, one a lane: trees of their own.
    __device__ __forceinline__ void cut_off(bool is_alone, u32 vertex)
    {
        add_sizes(is_alone, is_alone ? handle_of(vertex) : 0, ~0u);  // one less
        const u32 handle = take_handle(is_alone);
        if (is_alone) {
            store_wide(job.nodes + vertex, Node{NOBODY, 0, handle, NOBODY});
            set_tree(handle, 1);
        }
        __syncwarp();
    }

    // A free handle for each of the chosen lanes.
    __device__ __forceinline__ u32 take_handle(bool is_chosen)
    {
        const u32 chosen = __ballot_sync(ALL_LANES, is_chosen);
        u32 n_free = 0;
        if (place.lane == 0) n_free = atomicSub(&job.counters->n_free, u32(__popc(chosen)));
        n_free = __shfl_sync(ALL_LANES, n_free, 0);
        return is_chosen ? load_cached(job.free + n_free - 1 - __popc(chosen & lanes_before())) : NOBODY;
    }

    __device__ __forceinline__ u32 handle_of(u32 vertex) const { return load_cached(&job.nodes[vertex].handle); }

    // -- 2. settle -----------------------------------------------------------------------------------------------

    // Rounds until nobody is asked; whether it was worth it.
    __device__ __forceinline__ bool settle()
    {
        for (;; asked_turn++) {
            const u32 turn = asked_turn;
            const PairCounts counts = load_counts(job.counters->asked + turn % 3);
            const u32 n = n_vertices_of(counts);
            if (!n) return true;
            share(SETTLE, n_pieces(counts.out) + n_pieces(counts.in));
            edges += n_edges_of(counts);
            rounds++;
            if (n > job.room || edges > job.edges_max || !is_worth_it()) return false;
            if (place.thread == 0) {
                clear_counts(job.counters->asked + (turn + 2) % 3);
                clear_counts(job.counters->passing + (turn + 2) % 3);
            }
            answer(asked(turn), counts);
            barrier();
            if (load_cached(&job.counters->asked[turn % 3].in.lost) == n) return true;
            lose(n, passing(turn));
            barrier();
            const PairCounts passed = load_counts(job.counters->passing + turn % 3);
            n_lost += n_vertices_of(passed);
            edges += n_edges_of(passed);
            if (n_lost > job.lost_max || edges > job.edges_max) return false;
            if (!n_vertices_of(passed)) return true;
            pass_on(passing(turn), passed, asked(turn + 1));
            barrier();
        }
    }

    __device__ __forceinline__ void answer(const Pair& queue, const PairCounts& counts)
    {
        const auto begin = [&](u32 vertex) { return load_node(vertex); };
        walk_both(queue, counts, begin, [&](const Node& own, u32 vertex, const Edges& row, bool) {
            // Another part of its rows had the answer: lanes may have read it before and after that.
            if (__any_sync(ALL_LANES, own.parent != ASKED)) return true;
            const u32 found = neighbour(row, [&](const Node& other) {
                return other.handle == own.handle && other.level < own.level && other.parent != LOST;
            });
            if (found != NOBODY && place.lane == 0 && atomicCAS(&job.nodes[vertex].parent, ASKED, found) == ASKED)
                atomicAdd(&queue.in.counts->lost, 1ull);
            __syncwarp();
            return found != NOBODY;
        });
    }

    // The first of a leaf's neighbours that is as wanted; by all lanes.
    template <class Wanted> __device__ __forceinline__ u32 neighbour(const Edges& row, Wanted is_wanted)
    {
        Node other[2];
        for (u32 j = 0; j < 2; j++) other[j] = row.live[j] ? load_node(row.head[j]) : Node{LOST, 0, NOBODY, NOBODY};
        const bool first = row.live[0] && is_wanted(other[0]), second = row.live[1] && is_wanted(other[1]);
        const u32 found = __ballot_sync(ALL_LANES, first || second);
        if (!found) return NOBODY;
        return __shfl_sync(ALL_LANES, first ? row.head[0] : row.head[1], __ffs(found) - 1);
    }

    // Of the ``n`` that were asked, those that found nobody are lost.
    __device__ __forceinline__ void lose(u32 n, const Pair& passes)
    {
        for_each(n, [&](u32 x, bool is_there) {
            const u32 vertex = is_there ? load_cached(job.listed + x) : 0;
            const bool is_lost = is_there && load_cached(&job.nodes[vertex].parent) == ASKED;
            if (!__any_sync(ALL_LANES, is_lost)) return;
            Rows rows = {{0, 0}, {0, 0}};
            if (is_lost) {
                rows = load_rows(vertex);
                store_cached(&job.nodes[vertex].parent, LOST);
            }
            __syncwarp();
            queue_one(passes, is_lost, vertex, rows);
            const u32 at = queue_one(pulling(), is_lost, vertex, rows);
            if (is_lost && at < job.room) job.lost[at] = vertex;
        });
    }

    __device__ __forceinline__ void pass_on(const Pair& passes, const PairCounts& counts, const Pair& next)
    {
        const auto nothing = [](u32) { return 0; };
        walk_both(passes, counts, nothing, [&](int, u32 vertex, const Edges& row, bool) {
            bool is_child[2];
            for (u32 j = 0; j < 2; j++)
                is_child[j] = row.live[j] && load_cached(&job.nodes[row.head[j]].parent) == vertex;
            const u32 parent[2] = {vertex, vertex};
            if (__any_sync(ALL_LANES, is_child[0] || is_child[1])) ask(is_child, row.head, parent, next);
            return false;
        });
    }

    // -- 3. hang again -------------------------------------------------------------------------------------------

    // How many of the lost were hung.
    __device__ __forceinline__ u32 hang_again()
    {
        const PairCounts counts = load_counts(&job.counters->pulling);
        edges += n_edges_of(counts);
        rounds++;
        const auto begin = [&](u32 vertex) { return load_node(vertex); };
        walk_both(pulling(), counts, begin, [&](const Node& own, u32 vertex, const Edges& row, bool) {
            if (__any_sync(ALL_LANES, own.label != NOBODY)) return true;  // likewise
            const u32 found = neighbour(
                row, [&](const Node& other) { return other.handle == own.handle && other.parent != LOST; });
            if (found != NOBODY && place.lane == 0) store_cached(&job.nodes[vertex].label, found);
            return found != NOBODY;
        });
        barrier();
        hang_on_labels(n_lost);
        barrier();
        return hang_below();
    }

    // Of the first ``n`` in the list of the lost, those with a label hang on that, which is not in the list.
    __device__ __forceinline__ void hang_on_labels(u32 n)
    {
        const Pair to = hanging(turn);
        for_each(n, [&](u32 x, bool is_there) {
            const u32 vertex[2] = {is_there ? load_cached(job.lost + x) : 0, 0};
            Node node = {NOBODY, 0, 0, NOBODY};
            if (is_there) node = load_node(vertex[0]);
            const bool chosen[2] = {node.label != NOBODY, false};
            bool is_first[2] = {false, false};
            Rows rows[2] = {{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}};
            if (chosen[0]) {
                const Node above = load_node(node.label);
                rows[0] = load_rows_below(vertex[0]);
                store_wide(job.nodes + vertex[0], Node{node.label, above.level + 1, above.handle, NOBODY});
                is_first[0] = touch(vertex[0]);
            }
            __syncwarp();
            if (__any_sync(ALL_LANES, chosen[0])) queue(to, chosen, vertex, rows, is_first);
        });
    }

    // Rounds: below those that were hung last hang their neighbours that are lost, or of a tree that joins theirs; until
    // nobody is, or it is not worth it. How many were hung, with the first ones.
    __device__ __forceinline__ u32 hang_below()
    {
        u32 n_hung = 0;
        for (;;) {
            const PairCounts counts = load_counts(job.counters->hanging + turn % 3);
            const Pair now = hanging(turn), next = hanging(turn + 1);
            if (place.thread == 0) clear_counts(job.counters->hanging + (turn + 2) % 3);
            turn++;
            n_hung += n_vertices_of(counts);
            if (is_empty(counts) || !is_worth_it()) return n_hung;
            edges += n_edges_of(counts);
            rounds++;
            const auto begin = [&](u32 vertex) { return load_node(vertex); };
            walk_both(now, counts, begin, [&](const Node& own, u32 vertex, const Edges& row, bool) {
                hang(row, vertex, own, next);
                return false;
            });
            barrier();
        }
    }

    __device__ __forceinline__ void hang(const Edges& row, u32 above, const Node& own, const Pair& next)
    {
        Node node[2];
        bool chosen[2], is_first[2] = {false, false};
        Rows rows[2] = {{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}};
        for (u32 j = 0; j < 2; j++)
            node[j] = row.live[j] ? load_node(row.head[j]) : Node{NOBODY, 0, own.handle, NOBODY};
        for (u32 j = 0; j < 2; j++) {
            Node* const at = job.nodes + row.head[j];
            if (node[j].handle == own.handle)
                chosen[j] = node[j].parent == LOST && atomicCAS(&at->parent, LOST, above) == LOST;
            else
                chosen[j] = load_cached(&job.trees[node[j].handle].boss) == own.handle
                    && atomicCAS(&at->handle, node[j].handle, own.handle) == node[j].handle;
            if (!chosen[j]) continue;
            store_wide(at, Node{above, own.level + 1, own.handle, NOBODY});
            is_first[j] = touch(row.head[j]);
            rows[j] = load_rows_below(row.head[j]);
        }
        __syncwarp();
        if (__any_sync(ALL_LANES, chosen[0] || chosen[1])) queue(next, chosen, row.head, rows, is_first);
    }

    // -- 3. who is left over -------------------------------------------------------------------------------------

    // Lost vertices that found nobody: trees of their own, with a root and a handle each.
    __device__ __forceinline__ void split()
    {
        list_left();
        barrier();
        const PairCounts counts = load_counts(&job.counters->left);
        edges += n_edges_of(counts);
        const auto begin = [&](u32 vertex) { return load_cached(&job.nodes[vertex].handle); };
        // Every edge between them is in an out-row of one of them.
        walk_rows(out, left().out, counts.out, place, begin, [&](u32 handle, u32 vertex, const Edges& row, bool) {
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j]) continue;
                const Node other = load_node(row.head[j]);
                if (other.parent == LOST && other.handle == handle) hook(vertex, row.head[j]);
            }
            __syncwarp();
            return false;
        });
        barrier();
        name_roots();
        barrier();
        name_members();
        barrier();
        hang_below();
        // Nobody asks for their sets any more; and nobody reads labels before the next barrier.
        for_each(n_left, [&](u32 x, bool is_there) {
            if (is_there) store_cached(&job.nodes[load_cached(job.listed + x)].label, NOBODY);
        });
    }

    __device__ __forceinline__ void list_left()
    {
        const Pair to = left();
        for_each(n_lost, [&](u32 x, bool is_there) {
            const u32 vertex = is_there ? load_cached(job.lost + x) : 0;
            const bool is_left = is_there && load_cached(&job.nodes[vertex].parent) == LOST;
            if (!__any_sync(ALL_LANES, is_left)) return;
            Rows rows = {{0, 0}, {0, 0}};
            if (is_left) {
                rows = load_rows(vertex);
                store_cached(&job.nodes[vertex].label, vertex);
            }
            __syncwarp();
            const u32 at = queue_one(to, is_left, vertex, rows);
            if (is_left) job.listed[at] = vertex;
        });
    }

    __device__ __forceinline__ void name_roots()
    {
        const Pair to = hanging(turn);
        for_each(n_left, [&](u32 x, bool is_there) {
            const u32 vertex = is_there ? load_cached(job.listed + x) : 0;
            add_sizes(is_there, is_there ? handle_of(vertex) : 0, ~0u);  // one less
            const bool is_root = is_there && pieces().find(vertex) == vertex;
            __syncwarp();
            if (!__any_sync(ALL_LANES, is_root)) return;
            const u32 handle = take_handle(is_root);
            Rows rows = {{0, 0}, {0, 0}};
            if (is_root) {
                rows = load_rows(vertex);
                Node* const node = job.nodes + vertex;
                store_cached(&node->handle, handle);
                store_cached(&node->level, 0u);
                store_cached(&node->parent, NOBODY);
            }
            __syncwarp();
            queue_one(to, is_root, vertex, rows);
        });
    }

    __device__ __forceinline__ void name_members()
    {
        for_each(n_left, [&](u32 x, bool is_there) {
            u32 handle = 0;
            if (is_there) {
                const u32 vertex = load_cached(job.listed + x), root = pieces().find(vertex);
                handle = load_cached(&job.nodes[root].handle);
                if (vertex != root) store_cached(&job.nodes[vertex].handle, handle);
            }
            __syncwarp();
            add_sizes(is_there, handle, 1);
        });
    }

    // -- 4. join -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void join(u32 n)
    {
        if (phase < HANG_JOINED && !unite(n)) return;
        share(HANG_JOINED, n_moved);
        hang_on_labels(u32(load_cached(&job.counters->seeds)));
        barrier();
        hang_below();
        for_each(u32(load_cached(&job.counters->joined)), [&](u32 x, bool is_there) {
            if (!is_there) return;
            const u32 handle = load_cached(job.joined + x);
            store_cached(&job.trees[handle].boss, handle);
        });
    }

    // Trees that joining edges connect are of one class; whether it is worth it to have its trees join the largest.
    __device__ __forceinline__ bool unite(u32 n)
    {
        share(JOIN, n);
        const Sets<2> classes = {&job.trees->boss};
        rounds++;
        // The largest tree of a class is its root: sizes stay as they are meanwhile.
        const auto is_above = [&](u32 x, u32 y) {
            const u32 size_x = load_cached(&job.trees[x].size), size_y = load_cached(&job.trees[y].size);
            return size_x > size_y || (size_x == size_y && x > y);
        };
        for_each(n, [&](u32 x, bool is_there) {
            if (!is_there) return;
            const u64 key = load_cached(job.joins + x);
            classes.unite(handle_of(source(key)), handle_of(destination(key)), is_above);
        });
        barrier();
        for_each(n, [&](u32 x, bool is_there) { choose(classes, x, is_there); });
        barrier();
        n_moved = load_cached(&job.counters->moved);
        return is_worth_it();
    }

    // What becomes of the trees at both ends of a joining edge: one is the largest of their class, or they join that.
    // An end in another tree than the largest, which the edge hangs on that, gets it as its label.
    __device__ __forceinline__ void choose(const Sets<2>& classes, u32 x, bool is_there)
    {
        const u64 key = is_there ? load_cached(job.joins + x) : 0;
        const u32 end[2] = {source(key), destination(key)};
        u32 handle[2] = {0, 0}, kept = 0;
        bool is_first[2] = {false, false};
        if (is_there) {
            for (u32 j = 0; j < 2; j++) handle[j] = handle_of(end[j]);
            kept = classes.root(handle[0]);
            for (u32 j = 0; j < 2; j++) {
                store_cached(classes.at(handle[j]), kept);
                u32* const stamp = job.tree_stamps + handle[j];
                is_first[j] = load_cached(stamp) != job.stamp && atomicExch(stamp, job.stamp) != job.stamp;
            }
        }
        __syncwarp();
        for (u32 j = 0; j < 2; j++) {
            if (!__any_sync(ALL_LANES, is_first[j])) continue;
            const u32 at = claim_places(&job.counters->joined, is_first[j]);
            if (is_first[j]) job.joined[at] = handle[j];
            const bool moves = is_first[j] && handle[j] != kept;
            const u32 at_free = claim_places(&job.counters->n_free, moves);
            u32 size = 0;
            if (moves) {
                size = load_cached(&job.trees[handle[j]].size);
                store_cached(&job.trees[handle[j]].size, 0u);
                store_cached(job.free + at_free, handle[j]);
            }
            __syncwarp();
            add_sizes(moves, kept, size);
            const u32 moved = __reduce_add_sync(ALL_LANES, size);
            if (place.lane == 0 && moved) atomicAdd(&job.counters->moved, u64(moved));
        }
        const bool hangs = is_there && (handle[0] == kept) != (handle[1] == kept);
        const u32 below = handle[0] == kept ? end[1] : end[0], above = handle[0] == kept ? end[0] : end[1];
        const bool is_seed = hangs && atomicCAS(&job.nodes[below].label, NOBODY, above) == NOBODY;
        __syncwarp();
        const u32 at = claim_places(&job.counters->seeds, is_seed);
        if (is_seed) job.lost[at] = below;
    }

    // -- the end -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        const u32 n = u32(load_cached(&job.counters->logged));
        if (n && n <= job.changes_room) {
            for (u32 x = place.thread; x < n; x += place.n_threads) {
                const u32 vertex = load_cached(job.log + x);
                const Node node = load_node(vertex);
                job.changes[x] = make_uint4(vertex, node.parent, node.handle, node.level);
            }
        }
        if (n) barrier();  // without any, all counters are zero
        report(0, n, n_lost);
    }

    __device__ __forceinline__ void give_up()
    {
        barrier();  // all have read the counters
        report(1, 0, n_lost);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void mend_forest(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ ForestJob job)
{
    Mending{out, in, job, place_in_grid()}.run();
}
