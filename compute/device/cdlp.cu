// Communities by label propagation, all rounds after a batch or from scratch: one cooperative kernel. The algorithm is the
// host's (compute/rounds says why it is right), and so are labels and leads, to the last bit: what is heard is added up, and
// a vote is counted, in any order.
//
// A round is two phases. First the votes that began or ended, and who got another label in the round before, are heard of;
// or nothing, where everybody is to vote anew. Then those that heard of something see to their leads, and vote where that
// is needed: a warp counts the labels of a short row in shared memory. Rows that are too long for that are put aside, and
// counted by the whole grid in global memory, as many at a time as there is room for.
#include "id_order.cuh"
#include "links.cuh"

typedef unsigned short u16;

constexpr u32 NO_LABEL = 0xffffffffu;  // no vertex has this number
constexpr u32 LEAD_MAX = 0xffff;       // larger leads are kept as this one
constexpr u32 SHORT_SLOTS = 256;       // of a warp's table
constexpr u32 PIECE = 512;             // slots of tables in global memory that a warp goes through
constexpr u32 NOWHERE = 0xffffffffu;

// Of counted labels the one that most have, how many these are, and how many of any other there are at most.
struct __align__(16) Poll {
    u32 best, most, next, unused;
};
static_assert(sizeof(Poll) == 16 && __is_trivially_copyable(Poll), "copied as 16 bytes");

// Zero between runs, all but the barrier.
struct __align__(16) CdlpCounters {
    Counts out[2];     // rows of those with another label; by turns
    Counts in[2];
    Counts long_out;   // rows that are too long to be counted by a warp
    Counts long_in;
    u64 votes;         // that began or ended
    u64 read;          // entries
    u64 pool;          // slots of tables that are taken, or were asked for
    u32 asked[2];      // by turns
    u32 moved[2];
    u32 voters[3];     // that wait for a table, by waves
    u32 barrier;       // of the grid; never reset
    u64 unused;
};

// What the kernel works in, and one run; passed by value.
struct CdlpJob {
    u32* labels;        // [rounds * room] those of the first round, then those of the next
    u16* leads;         // [rounds * room]
    i64* heard;         // [room] by how much a lead changes << 32, and how often its vertex heard; zero between rounds
    u32* was[2];        // [room] the label of those that got another one, else NO_LABEL; by turns
    u32* asked;         // [room]
    u32* moved[2];      // [room] by turns
    u32* tables;        // [room] which piece the table of a voter begins with, or NOWHERE
    u32* voters[2];     // [voters_room] by waves
    Entry* short_rows;  // [2 * room]
    Entry* long_rows;   // [4 * long_room] of both pairs of frontiers
    Entry* voter_rows;  // [2 * voters_room]
    u32* pool_labels;   // [pool_room] tables, empty between rounds
    u32* pool_counts;
    u32* owners;        // [pool_room / PIECE] whose table a piece is
    Poll* polls;        // [pool_room / PIECE]
    CdlpCounters* counters;
    u64* status;        // in the host's pinned memory, each with the sequence in its upper half
    u64* changes;       // [changes_room] likewise: label << 32 | vertex, of those whose last label is another one
    u64 pool_room;
    u32 room;
    u32 long_room;
    u32 voters_room;
    u32 changes_room;
    u32 rounds;
    u32 short_max;      // entries of a row that a warp counts; at most SHORT_SLOTS / 2
    u32 is_directed;
    u32 unused;
    // The run. First the batch, and what became of its updates.
    const u64* keys;
    const u8* outcomes;
    IdOrder order;
    u64 tell_max;       // with more to tell of in a round everybody votes
    u32 n_updates;
    u32 n_vertices;
    u32 begins;         // 1: from scratch
    u32 sequence;
};
static_assert(__is_trivially_copyable(CdlpJob), "the host passes its bytes");

// What a run says; the host has it as a tuple, CdlpRun.
constexpr u32 CDLP_SAID = 4;

// Counts by label, by open addressing. Empty slots have NO_LABEL, and a count of 0.
struct Table {
    u32* labels;
    u32* counts;
    u32 mask;

    __device__ __forceinline__ void add(u32 label, u32 votes) const
    {
        const u32 scattered = label * 2654435769u;  // Knuth's multiplier
        u32 slot = (scattered ^ scattered >> 15) & mask;
        for (;; slot = (slot + 1) & mask) {
            const u32 seen = atomicCAS(labels + slot, NO_LABEL, label);
            if (seen == NO_LABEL || seen == label) break;
        }
        atomicAdd(counts + slot, votes);
    }
};

struct Propagating : Run<CdlpJob> {
    Table own;  // of this warp, empty between rows
    // What all threads agree about.
    u32 turn = 0, wave = 0, n_moved = 0, n_whole = 0;
    u64 n_asked = 0;
    const u32* before = nullptr;  // labels of the round before; null: everybody has its own
    u32* labels = nullptr;
    u16* leads = nullptr;
    // Of this thread.
    u64 read[1] = {};

    __device__ __forceinline__ Propagating(
        const State& out, const State& in, const CdlpJob& job, const Place& place, const Table& own)
        : Run(out, in, job, place), own(own)
    {
    }

    __device__ __forceinline__ void run()
    {
        for (u32 slot = place.lane; slot < SHORT_SLOTS; slot += 32) {
            own.labels[slot] = NO_LABEL;
            own.counts[slot] = 0;
        }
        __syncwarp();
        count_votes();
        barrier();
        const u64 n_votes = load_cached(&job.counters->votes);
        if (n_votes || job.begins)
            for (u32 round = 0; round < job.rounds; round++, turn++) take_round(round, n_votes);
        finish();
    }

    __device__ __forceinline__ u32 label_before(u32 v) const { return before ? load_cached(before + v) : v; }

    __device__ __forceinline__ Frontier frontier(u32 which, Counts* counts) const
    {
        return {job.short_rows + u64(which) * job.room, job.long_rows + u64(which) * job.long_room, counts, job.room};
    }

    __device__ __forceinline__ Frontier telling_out(u32 turn) const
    {
        return frontier(0, job.counters->out + (turn & 1));
    }

    __device__ __forceinline__ Frontier telling_in(u32 turn) const { return frontier(1, job.counters->in + (turn & 1)); }

    // -- a round ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void take_round(u32 round, u64 n_votes)
    {
        labels = job.labels + u64(round) * job.room;
        leads = job.leads + u64(round) * job.room;
        CdlpCounters* const counters = job.counters;
        const u32 now = turn & 1, next = now ^ 1;
        n_moved = load_cached(counters->moved + now);
        const Counts of_out = load_counts(counters->out + now), of_in = load_counts(counters->in + now);
        const u64 entries = of_out.edges + of_in.edges;
        const bool is_whole = job.begins || n_votes + entries > job.tell_max;
        if (place.thread == 0) {
            counters->moved[next] = 0;
            clear_counts(counters->out + next);
            clear_counts(counters->in + next);
        }
        if (!is_whole) {
            tell_votes();
            tell_moves(out, telling_out(turn), of_out);
            if (job.is_directed) tell_moves(in, telling_in(turn), of_in);
            if (place.thread == 0) read[0] += entries;
        }
        barrier();
        const u32 n = is_whole ? job.n_vertices : load_cached(counters->asked + now);
        n_asked += n;
        n_whole += is_whole;
        for (u32 k = place.thread; k < n_moved; k += place.n_threads)
            store_cached(job.was[now] + load_cached(job.moved[now] + k), NO_LABEL);
        if (place.thread == 0) counters->asked[next] = 0;
        settle(n, is_whole);
        barrier();
        while (const u32 n_voters = load_cached(counters->voters + wave % 3)) count_long_rows(n_voters);
        before = labels;
    }

    // -- hearing ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void count_votes()
    {
        u64 votes[1] = {};
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8) {
            votes[0] += is_change && source(key) != destination(key) ? 1 + job.is_directed : 0;
        });
        __syncwarp();
        add_by_block(votes, &job.counters->votes);
    }

    __device__ __forceinline__ void tell_votes()
    {
        for_changes(place, job.keys, job.outcomes, job.n_updates, [&](bool is_change, u64 key, u8 outcome) {
            const u32 ends[2] = {destination(key), source(key)};
            const bool is_vote = is_change && ends[0] != ends[1];
            bool is_new[2] = {false, false};
            if (is_vote) is_new[0] = hear_vote(ends[1], ends[0], outcome == INSERTED);
            if (is_vote && job.is_directed) is_new[1] = hear_vote(ends[0], ends[1], outcome == INSERTED);
            __syncwarp();
            list(job.asked, job.counters->asked + (turn & 1), is_new, ends);
        });
    }

    // Of a vote of u that began or ended, for the label that it had before the batch; whether v must be listed.
    __device__ __forceinline__ bool hear_vote(u32 u, u32 v, bool begins)
    {
        const u32 was = load_cached(job.was[turn & 1] + u), label = was != NO_LABEL ? was : label_before(u);
        if (label == load_cached(labels + v)) return hear(v, begins ? 1 : -1);
        return begins && hear(v, -1);
    }

    // These vertices' votes are for other labels than before.
    __device__ __forceinline__ void tell_moves(const State& rows, const Frontier& moved, const Counts& counts)
    {
        struct Move {
            u32 was, now;
        };
        if (is_empty(counts)) return;
        const auto load = [&](u32 u) { return Move{load_cached(job.was[turn & 1] + u), label_before(u)}; };
        walk_rows(rows, moved, counts, place, load, [&](const Move& move, u32 u, const Edges& row, bool) {
            bool is_new[2] = {false, false};
            for (u32 j = 0; j < 2; j++) {
                if (!row.live[j] || row.head[j] == u) continue;
                const u32 label = load_cached(labels + row.head[j]);
                is_new[j] = hear(row.head[j], (move.now == label ? 1 : -1) - (move.was == label ? 1 : 0));
            }
            __syncwarp();
            list(job.asked, job.counters->asked + (turn & 1), is_new, row.head);
            return false;
        });
    }

    // Whether the vertex hears of something for the first time in this round.
    __device__ __forceinline__ bool hear(u32 v, int change)
    {
        return atomicAdd(reinterpret_cast<u64*>(job.heard + v), (u64(i64(change)) << 32) + 1) == 0;
    }

    // -- voting ----------------------------------------------------------------------------------------------------

    // A lane's vertex, whose rows are to be read, and whether it gets another label.
    struct Voter {
        u32 vertex;
        Row out, in;
        bool moves;

        __device__ __forceinline__ u32 entries() const { return out.degree + in.degree; }
    };

    __device__ __forceinline__ Voter rows_of(u32 v) const
    {
        Voter of = {v, load_row(out, v), {0, 0}, false};
        if (job.is_directed) of.in = load_row(in, v);
        return of;
    }

    // Those who were asked, or all vertices. Of few a warp takes less than 32: their rows are counted one after the other.
    __device__ __forceinline__ void settle(u32 n, bool is_whole)
    {
        const u32 n_together = u32(min((u64(n) + place.n_warps - 1) / place.n_warps, u64(32)));
        for (u64 first = u64(place.warp) * n_together; first < n; first += u64(place.n_warps) * n_together) {
            const u64 k = first + place.lane;
            Voter mine = {0, {0, 0}, {0, 0}, false};
            bool votes = false;
            if (place.lane < n_together && k < n) {
                const u32 v = is_whole ? u32(k) : load_cached(job.asked + k);
                votes = is_whole || !keeps_lead(v);
                if (votes) mine = rows_of(v);
            }
            __syncwarp();
            const bool is_long = votes && mine.entries() > job.short_max;
            const bool waits[2] = {is_long, false};
            const u32 vertex[2] = {mine.vertex, 0};
            list(job.voters[wave & 1], job.counters->voters + wave % 3, waits, vertex);
            for (u32 left = __ballot_sync(ALL_LANES, votes && !is_long); left; left &= left - 1) {
                const u32 lane = __ffs(left) - 1, v = __shfl_sync(ALL_LANES, mine.vertex, lane);
                const Row of_out = {__shfl_sync(ALL_LANES, mine.out.leaf, lane), __shfl_sync(ALL_LANES, mine.out.degree, lane)};
                const Row of_in = {__shfl_sync(ALL_LANES, mine.in.leaf, lane), __shfl_sync(ALL_LANES, mine.in.degree, lane)};
                const Poll poll = counted(v, of_out, of_in);
                if (place.lane == lane) conclude(mine, poll);
                __syncwarp();
            }
            move(mine);
        }
    }

    // Whether a vertex keeps its label, by what it has heard alone.
    __device__ __forceinline__ bool keeps_lead(u32 v)
    {
        const i64 change = load_cached(job.heard + v) >> 32, lead = i64(load_cached(leads + v)) + change;
        store_cached(job.heard + v, i64(0));
        if (change < 0 && lead <= 0) return false;
        store_cached(leads + v, u16(min(lead, i64(LEAD_MAX))));
        return true;
    }

    // By one lane.
    __device__ __forceinline__ void conclude(Voter& of, const Poll& poll)
    {
        const u32 v = of.vertex, label = poll.most ? poll.best : v, old = load_cached(labels + v);
        store_cached(leads + v, u16(min(poll.most - poll.next, LEAD_MAX)));
        read[0] += of.entries();
        of.moves = label != old;
        if (!of.moves) return;
        store_cached(job.was[(turn & 1) ^ 1] + v, old);
        store_cached(labels + v, label);
    }

    // Has those of the lanes' vertices that got another label tell of it in the next round.
    __device__ __forceinline__ void move(const Voter& mine)
    {
        const bool moves[2] = {mine.moves, false};
        if (!__any_sync(ALL_LANES, mine.moves)) return;
        const u32 vertex[2] = {mine.vertex, 0};
        const Row of_out[2] = {mine.out, {0, 0}}, of_in[2] = {mine.in, {0, 0}};
        list(job.moved[(turn & 1) ^ 1], job.counters->moved + ((turn & 1) ^ 1), moves, vertex);
        put<false>(out, telling_out(turn + 1), moves, vertex, of_out);
        if (job.is_directed) put<false>(in, telling_in(turn + 1), moves, vertex, of_in);
    }

    // -- short rows ------------------------------------------------------------------------------------------------

    // The label that a slot's neighbour votes for; NO_LABEL: there is none.
    __device__ __forceinline__ u32 vote_of(const Edges& row, u32 j, u32 v) const
    {
        return row.live[j] && row.head[j] != v ? label_before(row.head[j]) : NO_LABEL;
    }

    // The vote of a short row, for all lanes.
    __device__ __forceinline__ Poll counted(u32 v, const Row& of_out, const Row& of_in)
    {
        u32 size = 64;
        while (size < 2 * (of_out.degree + of_in.degree)) size *= 2;
        const Table table = {own.labels, own.counts, size - 1};
        const auto count = [&](const Edges& row) {
            for (u32 j = 0; j < 2; j++)
                if (const u32 label = vote_of(row, j, v); label != NO_LABEL) table.add(label, 1);
            __syncwarp();
        };
        walk_row_by_warp(out, v, of_out, count);
        if (job.is_directed) walk_row_by_warp(in, v, of_in, count);
        __syncwarp();
        Poll poll = {NO_LABEL, 0, 0, 0};
        for (u32 slot = place.lane; slot < size; slot += 32) {
            poll = merged(poll, {table.labels[slot], table.counts[slot], 0, 0});
            table.labels[slot] = NO_LABEL;
            table.counts[slot] = 0;
        }
        __syncwarp();
        return over_lanes(poll);
    }

    // Of labels that are in one of two polls.
    __device__ __forceinline__ Poll merged(const Poll& one, const Poll& other) const
    {
        const bool is_one = one.most >= other.most;
        const Poll more = is_one ? one : other, less = is_one ? other : one;
        if (more.most == 0) return more;
        if (more.most > less.most) return {more.best, more.most, max(more.next, less.most), 0};
        return {comes_before(job.order, less.best, more.best) ? less.best : more.best, more.most, more.most, 0};
    }

    __device__ __forceinline__ Poll over_lanes(Poll poll) const
    {
        for (u32 offset = 16; offset; offset >>= 1) {
            const Poll other = {__shfl_xor_sync(ALL_LANES, poll.best, offset),
                __shfl_xor_sync(ALL_LANES, poll.most, offset), __shfl_xor_sync(ALL_LANES, poll.next, offset), 0};
            poll = merged(poll, other);
            __syncwarp();
        }
        return poll;
    }

    // -- long rows -------------------------------------------------------------------------------------------------

    __device__ __forceinline__ Frontier long_out() const
    {
        return {job.voter_rows, job.long_rows + 2 * u64(job.long_room), &job.counters->long_out, job.voters_room};
    }

    __device__ __forceinline__ Frontier long_in() const
    {
        Entry* const short_rows = job.voter_rows + job.voters_room;
        return {short_rows, job.long_rows + 3 * u64(job.long_room), &job.counters->long_in, job.voters_room};
    }

    // Slots for the labels of so many neighbours: whole pieces, a power of two.
    __device__ __forceinline__ u64 slots_for(u32 entries) const
    {
        u64 slots = PIECE;
        while (slots < 2 * u64(min(entries, job.n_vertices))) slots *= 2;
        return slots;
    }

    // The votes of as many of the voters that wait as there is room for, one at least; the others wait for the next wave.
    __device__ __forceinline__ void count_long_rows(u32 n_voters)
    {
        CdlpCounters* const counters = job.counters;
        take_tables(n_voters);
        barrier();
        const Counts of_out = load_counts(&counters->long_out), of_in = load_counts(&counters->long_in);
        const u64 n_pieces = min(load_cached(&counters->pool), job.pool_room) / PIECE;
        count_rows(out, long_out(), of_out);
        if (job.is_directed) count_rows(in, long_in(), of_in);
        barrier();
        for (u64 piece = place.warp; piece < n_pieces; piece += place.n_warps) count_piece(piece);
        if (place.thread == 0) {
            clear_counts(&counters->long_out);
            clear_counts(&counters->long_in);
            counters->voters[(wave + 2) % 3] = 0;
        }
        barrier();
        for (u32 k = place.warp; k < n_voters; k += place.n_warps) conclude_long(load_cached(job.voters[wave & 1] + k));
        if (place.thread == 0) counters->pool = 0;
        wave++;
        barrier();
    }

    __device__ __forceinline__ void take_tables(u32 n_voters)
    {
        for (u64 first = u64(place.warp) * 32; first < n_voters; first += place.n_threads) {
            const bool is_there = first + place.lane < n_voters;
            Voter mine = {0, {0, 0}, {0, 0}, false};
            u64 at = 0, slots = 0;
            if (is_there) {
                mine = rows_of(load_cached(job.voters[wave & 1] + first + place.lane));
                slots = slots_for(mine.entries());
                at = atomicAdd(&job.counters->pool, slots);
            }
            const bool fits = is_there && at + slots <= job.pool_room;
            if (is_there) store_cached(job.tables + mine.vertex, fits ? u32(at / PIECE) : NOWHERE);
            if (is_there && !fits)  // what is left of the room is nobody's
                for (u64 piece = at / PIECE; piece * PIECE < job.pool_room; piece++) store_cached(job.owners + piece, NO_LABEL);
            __syncwarp();
            const bool waits[2] = {is_there && !fits, false}, counts[2] = {fits, false};
            const u32 vertex[2] = {mine.vertex, 0};
            const Row of_out[2] = {mine.out, {0, 0}}, of_in[2] = {mine.in, {0, 0}};
            list(job.voters[(wave & 1) ^ 1], job.counters->voters + (wave + 1) % 3, waits, vertex);
            put<false>(out, long_out(), counts, vertex, of_out);
            if (job.is_directed) put<false>(in, long_in(), counts, vertex, of_in);
            for (u32 left = __ballot_sync(ALL_LANES, fits); left; left &= left - 1) {
                const u32 lane = __ffs(left) - 1, v = __shfl_sync(ALL_LANES, mine.vertex, lane);
                const u64 begin = __shfl_sync(ALL_LANES, at, lane) / PIECE;
                const u64 end = begin + __shfl_sync(ALL_LANES, slots, lane) / PIECE;
                for (u64 piece = begin + place.lane; piece < end; piece += 32) store_cached(job.owners + piece, v);
                __syncwarp();
            }
        }
    }

    __device__ __forceinline__ Table table_at(u64 piece, u64 slots) const
    {
        return {job.pool_labels + piece * PIECE, job.pool_counts + piece * PIECE, u32(slots - 1)};
    }

    __device__ __forceinline__ void count_rows(const State& rows, const Frontier& of, const Counts& counts)
    {
        if (is_empty(counts)) return;
        const auto load = [&](u32 v) {
            return table_at(load_cached(job.tables + v), slots_for(degree_of(out, in, job.is_directed, v)));
        };
        walk_rows(rows, of, counts, place, load, [&](const Table& table, u32 v, const Edges& row, bool) {
            for (u32 j = 0; j < 2; j++) {
                // Lanes with one label add to it together: many neighbours of a hub have the same.
                const u32 label = vote_of(row, j, v);
                __syncwarp();
                const u32 same = __match_any_sync(ALL_LANES, label);
                if (label != NO_LABEL && place.lane == u32(__ffs(same)) - 1) table.add(label, u32(__popc(same)));
            }
            __syncwarp();
            return false;
        });
    }

    __device__ __forceinline__ void count_piece(u64 piece)
    {
        Poll poll = {NO_LABEL, 0, 0, 0};
        if (load_cached(job.owners + piece) != NO_LABEL) {
            const Table table = table_at(piece, PIECE);
            for (u32 slot = place.lane; slot < PIECE; slot += 32) {
                poll = merged(poll, {load_cached(table.labels + slot), load_cached(table.counts + slot), 0, 0});
                store_cached(table.labels + slot, NO_LABEL);
                store_cached(table.counts + slot, 0u);
            }
        }
        __syncwarp();
        poll = over_lanes(poll);
        if (place.lane == 0) store_wide(job.polls + piece, poll);
        __syncwarp();
    }

    // By a warp: of a voter whose row was counted in this wave.
    __device__ __forceinline__ void conclude_long(u32 v)
    {
        const u32 begin = load_cached(job.tables + v);
        if (begin == NOWHERE) return;
        Voter of = rows_of(v);
        const u64 n_pieces = slots_for(of.entries()) / PIECE;
        Poll poll = {NO_LABEL, 0, 0, 0};
        for (u64 k = place.lane; k < n_pieces; k += 32) poll = merged(poll, load_wide(job.polls + begin + k));
        __syncwarp();
        poll = over_lanes(poll);
        if (place.lane == 0) conclude(of, poll);
        __syncwarp();
        move(of);
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void finish()
    {
        CdlpCounters* const counters = job.counters;
        n_moved = load_cached(counters->moved + (turn & 1));
        for (u32 k = place.thread; k < n_moved; k += place.n_threads) {
            const u32 v = load_cached(job.moved[turn & 1] + k);
            store_cached(job.was[turn & 1] + v, NO_LABEL);
            if (n_moved <= job.changes_room) job.changes[k] = u64(load_cached(before + v)) << 32 | v;
        }
        __syncwarp();
        add_by_block(read, &counters->read);
        barrier();
        if (place.thread) return;
        const u64 said[CDLP_SAID] = {n_moved, n_whole, load_cached(&counters->read), n_asked};
        for (u32 k = 0; k < 2; k++) {
            clear_counts(counters->out + k);
            clear_counts(counters->in + k);
            counters->asked[k] = counters->moved[k] = 0;
        }
        counters->votes = counters->read = 0;
        for (u32 k = 0; k < 3; k++) counters->voters[k] = 0;
        __threadfence_system();
        for (u32 k = 0; k < CDLP_SAID; k++) tell(job, k, said[k]);
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS) void cdlp(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ CdlpJob job)
{
    __shared__ u32 labels[BLOCK_THREADS / 32 * SHORT_SLOTS];
    __shared__ u32 counts[BLOCK_THREADS / 32 * SHORT_SLOTS];
    const u32 first = (threadIdx.x >> 5) * SHORT_SLOTS;
    Propagating(out, in, job, place_in_grid(), {labels + first, counts + first, SHORT_SLOTS - 1}).run();
}
