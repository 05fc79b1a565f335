// What the kernels of components share: the forest, sets of vertices and of trees, and the job that the host fills in
// (forest_runs.py).
//
// Levels rise from every parent to its children, and that is the whole proof: who has a neighbour of a lower level in
// the same tree hangs on it, whatever the way from there to the root, and no circle can close. Edges count both ways:
// where the graph is directed, rows are read in pairs, the out-row and the in-row of each vertex.
#pragma once

#include "frontier.cuh"

constexpr u32 NOBODY = 0xffffffffu;  // the parent of a root; no vertex and no tree has this number
constexpr u32 ASKED = 0xfffffffeu;   // the parent, while a change is settled, of whoever must find another one
constexpr u32 LOST = 0xfffffffdu;    // and of whoever found none

struct __align__(16) Node {
    u32 parent;
    u32 level;
    u32 handle;  // the number of its tree
    u32 label;   // NOBODY between runs: a neighbour to hang on, or a vertex of the same piece (Sets)
};
static_assert(sizeof(Node) == 16 && __is_trivially_copyable(Node), "read in one access");

// By handle; there are as many as vertices.
struct __align__(8) Tree {
    u32 size;  // vertices; 0: the handle is free
    u32 boss;  // itself between runs: a tree of the same class (Sets), at last the one that all join
};
static_assert(sizeof(Tree) == 8 && __is_trivially_copyable(Tree), "written in one access");

// What the host keeps of a vertex and of the handle of the same number: members.cu.
struct __align__(16) Member {
    u32 next, prev;  // in a circle of those of the same tree
    u32 size;        // of the tree of this number
    u32 place;       // of this handle among those that are free; else NOBODY
};
static_assert(sizeof(Member) == 16 && __is_trivially_copyable(Member), "written in one access");

// Where members.cu writes: [vertices].
struct Members {
    Member* members;
};

// What is in a pair of frontiers: of out-rows and of in-rows. ``out.lost`` counts vertices, with rows or without;
// ``in.lost`` those of them that found a parent.
struct PairCounts {
    Counts out, in;
};

// What blocks that join a run must know: mend_forest.cu.
struct ForestHanded {
    u32 phase, asked_turn, turn, rounds, n_lost, unused;
    u64 edges, n_moved;
};

// Of a run; zero between runs, all but the handles, the barrier, and what was handed over.
struct __align__(16) ForestCounters {
    u64 logged;
    u64 joins, joined, seeds, moved;  // joining edges; trees of these; their ends that are hung; vertices renamed
    u64 hub;                          // while a forest is spanned: degree << 32 | vertex of the largest
    u64 found[3];                     // vertices that a pulled level reached, by level
    u64 unused;
    PairCounts asked[3];    // rows to look for another parent in; by turn
    PairCounts passing[3];  // rows of the lost, to ask their children; by turn
    PairCounts hanging[3];  // rows of who was hung, to hang others below; by turn
    PairCounts pulling;     // rows of all lost vertices
    PairCounts left;        // rows of those left over, which are pieces of their own
    u32 n_free;             // handles that are free; kept from run to run
    u32 barrier;            // of the grid; never reset
    ForestHanded handed;
};

// What kernels work in, and one run; passed to kernels by value.
struct ForestJob {
    Node* nodes;       // [vertices]
    Tree* trees;       // [vertices]
    u32* free;         // [vertices] the free handles
    u32* stamps;       // [vertices] the last run in which a vertex was written
    u32* tree_stamps;  // [vertices] the last run in which a tree was joined
    u32* log;          // [vertices] those that were written, each once
    u32* listed;       // [room] the asked; then the left over
    u32* lost;         // [room] the lost; then the ends that joins hang
    u64* joins;        // [room] inserted edges between trees
    u32* joined;       // [2 * room] trees that take part in joins
    u32* seen[2];      // bits by vertex: reached before and after a level
    Entry* short_rows;  // [QUEUES * room]
    Entry* long_rows;   // [QUEUES * long_room]
    ForestCounters* counters;
    u64* status;     // [FOREST_WORDS] in the host's pinned memory, each with the sequence in its upper half
    uint4* changes;  // [changes_room] likewise: vertices that were written, with parent, handle and level
    u32 room;  // 32 at least
    u32 long_room;
    u32 changes_room;
    u32 is_directed;
    // The run. First the batch, and what became of its updates (gpma/device/report.py).
    const u64* keys;
    const u8* outcomes;
    u64 edges_max;  // a run is given up when settling has come to more edges
    u64 n_edges;
    u32 lost_max;    // or to more lost vertices; at most ``room``
    u32 moved_max;   // or when more vertices join other trees; at most ``room``
    u32 rounds_max;  // or after more rounds
    u32 n_updates;
    u32 n_before;  // vertices of before the change
    u32 n_vertices;
    u32 stamp;  // no vertex has this one or a higher one
    u32 sequence;
};
static_assert(__is_trivially_copyable(ForestJob), "the host passes its bytes");

// The pairs of queues; rounds alternate between the first two.
constexpr u32 ASKING = 0, PASSING = 1, PULLING = 2, PAIRS = 3, QUEUES = 2 * PAIRS;

struct Pair {
    Frontier out, in;
};

__device__ __forceinline__ Pair pair_of(const ForestJob& job, u32 pair, PairCounts* counts)
{
    const u64 out = u64(2 * pair), in = out + 1;
    return {{job.short_rows + out * job.room, job.long_rows + out * job.long_room, &counts->out, job.room},
        {job.short_rows + in * job.room, job.long_rows + in * job.long_room, &counts->in, job.room}};
}

// As of a frontier's: by all threads of a block.
__device__ __forceinline__ PairCounts load_counts(const PairCounts* counts)
{
    static_assert(sizeof(PairCounts) == 64, "four accesses of 16 bytes");
    __shared__ PairCounts found;
    __syncthreads();  // all have what was asked for last
    if (threadIdx.x < 4)
        reinterpret_cast<ulonglong2*>(&found)[threadIdx.x]
            = load_wide(reinterpret_cast<const ulonglong2*>(counts) + threadIdx.x);
    __syncthreads();
    return found;
}

__device__ __forceinline__ void clear_counts(PairCounts* counts)
{
    clear_counts(&counts->out);
    clear_counts(&counts->in);
}

__device__ __forceinline__ bool is_empty(const PairCounts& counts)
{
    return is_empty(counts.out) && is_empty(counts.in);
}

__device__ __forceinline__ u32 n_vertices_of(const PairCounts& counts) { return u32(counts.out.lost); }

__device__ __forceinline__ u64 n_edges_of(const PairCounts& counts) { return counts.out.edges + counts.in.edges; }

__device__ __forceinline__ void clear_counters(ForestCounters* counters)
{
    counters->logged = counters->joins = counters->joined = counters->seeds = counters->moved = counters->hub = 0;
    for (u32 i = 0; i < 3; i++) {
        counters->found[i] = 0;
        clear_counts(counters->asked + i);
        clear_counts(counters->passing + i);
        clear_counts(counters->hanging + i);
    }
    clear_counts(&counters->pulling);
    clear_counts(&counters->left);
}

// Words of the status; the host has them as a tuple, ForestRun.
enum ForestWord : u32 { GAVE_UP, LOGGED, N_LOST, ROUNDS, EDGES_LOW, EDGES_HIGH, FOREST_WORDS };

// Disjoint sets of numbers below n: each has another one of its set, or itself, in a word of its own. Roots are hooked
// to those above them in a fixed order, and ways are halved as they are gone (Jaiganesh, Burtscher: A High-Performance
// Connected Components Implementation for GPUs, HPDC 2018).
template <u32 STRIDE> struct Sets {
    u32* words;

    __device__ __forceinline__ u32* at(u32 x) const { return words + STRIDE * u64(x); }

    __device__ __forceinline__ u32 find(u32 x) const
    {
        for (u32 above = load_cached(at(x)); above != x;) {
            const u32 next = load_cached(at(above));
            if (next != above) store_cached(at(x), next);
            x = above;
            above = next;
        }
        return x;
    }

    // The same, when nothing is united any more and others write roots: ways stay as they are.
    __device__ __forceinline__ u32 root(u32 x) const
    {
        for (u32 above = load_cached(at(x)); above != x; above = load_cached(at(x))) x = above;
        return x;
    }

    template <class Above> __device__ __forceinline__ void unite(u32 x, u32 y, Above is_above) const
    {
        for (;;) {
            x = find(x);
            y = find(y);
            if (x == y) return;
            const bool is_upper = is_above(x, y);
            const u32 upper = is_upper ? x : y, lower = is_upper ? y : x;
            if (atomicCAS(at(lower), lower, upper) == lower) return;
        }
    }
};

// The first of as many places behind each other in a list as lanes of the warp are chosen; by all lanes.
template <class Counter> __device__ __forceinline__ u32 claim_places(Counter* counter, bool is_chosen)
{
    const u32 chosen = __ballot_sync(ALL_LANES, is_chosen);
    if (!chosen) return 0;
    Counter base = 0;
    if (lane_number() == 0) base = atomicAdd(counter, Counter(__popc(chosen)));
    return u32(__shfl_sync(ALL_LANES, base, 0)) + __popc(chosen & lanes_before());
}

struct Foresting {
    const State& out;
    const State& in;
    const ForestJob& job;
    Place place;
    // What all threads of the grid agree about.
    u64 edges = 0;
    u32 rounds = 0;

    __device__ __forceinline__ Foresting(const State& out, const State& in, const ForestJob& job, const Place& place)
        : out(out), in(in), job(job), place(place)
    {
    }

    __device__ __forceinline__ void barrier() { barrier_at(place, &job.counters->barrier); }

    __device__ __forceinline__ Node load_node(u32 vertex) const { return load_wide(job.nodes + vertex); }

    __device__ __forceinline__ Sets<4> pieces() const { return {&job.nodes->label}; }

    __device__ __forceinline__ void hook(u32 vertex, u32 other) const
    {
        pieces().unite(vertex, other, [](u32 x, u32 y) { return x < y; });
    }

    __device__ __forceinline__ void set_tree(u32 handle, u32 size) const
    {
        store_cached(reinterpret_cast<u64*>(job.trees + handle), u64(handle) << 32 | size);
    }

    // The rows of a vertex, both ways.
    struct Rows {
        Row out, in;

        __device__ __forceinline__ u32 degree() const { return out.degree + in.degree; }
    };

    __device__ __forceinline__ Rows load_rows(u32 vertex) const
    {
        return {load_row(out, vertex), job.is_directed ? load_row(in, vertex) : Row{0, 0}};
    }

    // Those of who was hung: with one edge, that is the one it hangs by, and there is nobody beyond.
    __device__ __forceinline__ Rows load_rows_below(u32 vertex) const
    {
        const Rows rows = load_rows(vertex);
        return rows.degree() > 1 ? rows : Rows{{0, 0}, {0, 0}};
    }

    // Calls work(number, is_there) for the numbers below n, by whole warps.
    template <class Work> __device__ __forceinline__ void for_each(u32 n, Work work)
    {
        for (u64 first = u64(place.warp) * 32; first < n; first += place.n_threads)
            work(u32(first) + place.lane, first + place.lane < n);
    }

    // Walks the rows of a pair as ``walk_rows`` does. Few rows of both kinds go to different warps.
    template <class Begin, class Visit>
    __device__ __forceinline__ void walk_both(const Pair& pair, const PairCounts& counts, Begin begin, Visit visit)
    {
#pragma unroll 1
        for (u32 side = 0; side <= job.is_directed; side++) {
            // Copies, so that what is used of them is in registers.
            const State rows = side ? in : out;
            const Frontier queue = side ? pair.in : pair.out;
            const Counts there = side ? counts.in : counts.out;
            Place at = place;
            if (side) at.warp = place.n_warps - 1 - place.warp;
            walk_rows(rows, queue, there, at, begin, visit);
        }
    }

    // Adds the rows of the chosen vertices, two a lane, to a pair, and the vertices to its count; those that are the
    // ``first`` time written in this run go into the log. Returns the vertices' places in the count. All lanes take
    // part; the counters are added to by one instruction.
    struct Places {
        u32 at[2];
    };
    __device__ __forceinline__ Places queue(const Pair& to, const bool (&chosen)[2], const u32 (&vertex)[2],
        const Rows (&rows)[2], const bool (&is_first)[2])
    {
        const Votes all = vote(chosen[0], chosen[1]), firsts = vote(is_first[0], is_first[1]);
        const bool goes_out[2] = {chosen[0] && is_short(rows[0].out), chosen[1] && is_short(rows[1].out)};
        const bool goes_in[2] = {chosen[0] && is_short(rows[0].in), chosen[1] && is_short(rows[1].in)};
        const Votes outs = vote(goes_out[0], goes_out[1]), ins = vote(goes_in[0], goes_in[1]);
        const u32 edges_out = edges_of_rows(chosen[0] ? rows[0].out.degree : 0, chosen[1] ? rows[1].out.degree : 0);
        const u32 edges_in = edges_of_rows(chosen[0] ? rows[0].in.degree : 0, chosen[1] ? rows[1].in.degree : 0);
        u64* counter = &to.out.counts->lost;
        u32 amount = all.count();
        switch (place.lane) {
        case 1: counter = &job.counters->logged, amount = firsts.count(); break;
        case 2: counter = &to.out.counts->short_rows, amount = outs.count(); break;
        case 3: counter = &to.in.counts->short_rows, amount = ins.count(); break;
        case 4: counter = &to.out.counts->edges, amount = edges_out; break;
        case 5: counter = &to.in.counts->edges, amount = edges_in; break;
        }
        u64 base = 0;
        if (place.lane < 6) base = add_by_lane(counter, amount);
        const u32 at = u32(__shfl_sync(ALL_LANES, base, 0)), at_log = u32(__shfl_sync(ALL_LANES, base, 1));
        const u32 at_out = u32(__shfl_sync(ALL_LANES, base, 2)), at_in = u32(__shfl_sync(ALL_LANES, base, 3));
        for (u32 j = 0; j < 2; j++) {
            if (is_first[j]) job.log[at_log + firsts.before(j)] = vertex[j];
            if (!chosen[j]) continue;
            if (goes_out[j]) put_short(to.out, at_out + outs.before(j), vertex[j], rows[j].out);
            else if (rows[j].out.degree) put_long(out, to.out, vertex[j], rows[j].out);
            if (goes_in[j]) put_short(to.in, at_in + ins.before(j), vertex[j], rows[j].in);
            else if (rows[j].in.degree) put_long(in, to.in, vertex[j], rows[j].in);
        }
        __syncwarp();
        return {{at + all.before(0), at + all.before(1)}};
    }

    // The same of one vertex a lane, which is not logged.
    __device__ __forceinline__ u32 queue_one(const Pair& to, bool is_chosen, u32 vertex, const Rows& rows)
    {
        const bool chosen[2] = {is_chosen, false}, is_first[2] = {false, false};
        const u32 vertices[2] = {vertex, 0};
        const Rows both[2] = {rows, {{0, 0}, {0, 0}}};
        return queue(to, chosen, vertices, both, is_first).at[0];
    }

    // Adds to the sizes of the lanes' trees, where many may be the same; by all lanes.
    __device__ __forceinline__ void add_sizes(bool is_chosen, u32 handle, u32 amount)
    {
        for (u32 left = __ballot_sync(ALL_LANES, is_chosen); left;) {
            const u32 leader = __ffs(left) - 1, of_leader = __shfl_sync(ALL_LANES, handle, leader);
            const bool is_same = is_chosen && handle == of_leader;
            const u32 sum = __reduce_add_sync(ALL_LANES, is_same ? amount : 0);
            if (place.lane == leader) atomicAdd(&job.trees[handle].size, sum);
            left &= ~__ballot_sync(ALL_LANES, is_same);
        }
    }

    __device__ __forceinline__ void tell(u32 word, u32 value)
    {
        publish(job.status + word, u64(job.sequence) << 32 | value);
    }

    // The end, by one thread, when all others have read the counters.
    __device__ __forceinline__ void report(u32 gave_up, u32 n_logged, u32 n_lost)
    {
        if (place.thread) return;
        __threadfence_system();  // for what all have listed: it was before the barrier
        tell_all(gave_up, n_logged, n_lost);
        clear_counters(job.counters);  // the next kernel begins after this one's end
    }

    __device__ __forceinline__ void tell_all(u32 gave_up, u32 n_logged, u32 n_lost)
    {
        tell(GAVE_UP, gave_up);
        tell(LOGGED, n_logged);
        tell(N_LOST, n_lost);
        tell(ROUNDS, rounds);
        tell(EDGES_LOW, u32(edges));
        tell(EDGES_HIGH, u32(edges >> 32));
    }
};
