// Dense passes of personalised PageRank over all in-edges, as in passes.cu, until the sizes of residuals add up to so
// small a part of all values as the host asks for. Estimates are left on the device, where the host has them copied from:
// meanwhile the passes of another program go on.
#include "ppr.cuh"
#include "rows.cuh"

// Leaves that a warp adds up in one go.
constexpr u32 RANGE = 8;
static_assert(RANGE <= 32 && RANGE % LEAVES_TOGETHER == 0, "their counts are in one warp");
// Blocks on a multiprocessor, which bounds the registers of a thread.
constexpr u32 PASS_BLOCKS = 2;

struct PprPasses : Run<PprJob> {
    using Run::Run;

    struct Vertex {
        i64 sum, value;
        i64 restart;
        u32 degree;
    };

    __device__ __forceinline__ Vertex load(u32 v, bool with_value) const
    {
        return {load_cached(job.sums + v), with_value ? load_cached(job.values + v) : 0,
            load_cached(job.is_source + v) ? job.restart : 0, load_row(out, v).degree};
    }

    __device__ __forceinline__ void run()
    {
        PprCounters* const counters = job.counters;
        enter();
        barrier();
        begin();
        barrier();
        u32 passes = 0;
        bool is_solved;
        do {
            const PprPass* const before = counters->passes + (passes & 1);
            passes++;
            PprPass* const after = counters->passes + (passes & 1);
            if (place.thread == 0) *after = PprPass();
            advance(factor(before->balance, job.damping));
            barrier();
            pull();
            barrier();
            look(after);
            barrier();
            is_solved = double(load_cached(&after->sums.size)) <= job.goal * double(load_cached(&after->sums.norm));
        } while (!is_solved && passes < job.passes_max);
        account();
        barrier();
        if (place.thread) return;
        const PprSums& sums = counters->passes[passes & 1].sums;
        const u64 said[PPR_SAID] = {
            is_solved, passes, 0, 0, load_cached(&sums.norm), load_cached(&sums.size), load_cached(&sums.total)};
        counters->passes[0] = counters->passes[1] = PprPass();
        __threadfence_system();
        for (u32 k = 0; k < PPR_SAID; k++) tell(job, k, said[k]);
    }

    __device__ __forceinline__ void enter()
    {
        for (u32 k = place.thread; k < job.n_entries; k += place.n_threads) {
            const u64 entry = load_constant(job.entries + k);
            const u32 v = u32(entry), what = u32(entry >> 32);
            store_cached(job.is_source + v, u8(what == RESTARTS));
            if (what == RESTARTS) store_cached(job.sums + v, load_cached(job.sums + v) + job.restart);
            if (what == GOES) store_cached(job.sums + v, i64(0));
        }
    }

    __device__ __forceinline__ void begin()
    {
        u64 sums[BALANCE_SUMS] = {};
        const auto load_sum = [&](u32 v) { return load(v, false); };
        for_vertices<Vertex>(place, job.n_vertices, load_sum, [&](u32 v, const Vertex& vertex) {
            // Pushes that were given up, and sources that are none any more, may leave others.
            const i64 sum = max(vertex.sum, i64(0));
            if (sum != vertex.sum) store_cached(job.sums + v, sum);
            count(sums, sum, vertex.restart, vertex.degree);
        });
        add_by_block(sums, &job.counters->passes[0].balance.mass);
    }

    __device__ __forceinline__ void advance(double factor)
    {
        const auto load_sum = [&](u32 v) { return load(v, false); };
        for_vertices<Vertex>(place, job.n_vertices, load_sum, [&](u32 v, const Vertex& vertex) {
            const i64 restart = vertex.restart, sum = vertex.sum;
            const i64 value = sum == restart ? restart : nearest(exact::multiply(double(sum), factor));
            store_cached(job.values + v, value);
            store_cached(job.sums + v, restart);
            store_cached(job.shares + v, share_of(value, vertex.degree, job.damping));
        });
    }

    __device__ __forceinline__ void pull()
    {
        SidesRead read;
        for_leaves<RANGE>(in, place, [&](u32 begin, u32 end) { pull_leaves(begin, end, read); });
        read.tell(in);
    }

    // As scan_leaves of rows.cuh, also of leaves that are remote.
    __device__ __forceinline__ void pull_leaves(u32 begin, u32 end, SidesRead& read)
    {
        const i64* const shares = job.shares;
        const auto emit = [&](u32 row, i64 sum) {
            if (sum) add(job.sums + row, sum);
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
                    values[i][j] = pairs[i].keys[j] == EMPTY_KEY ? 0 : shares[destination(pairs[i].keys[j])];
            for (u32 i = 0; i < LEAVES_TOGETHER && leaf + i < end; i++) sum_leaf(pairs[i], values[i], carry, emit);
        }
        if (place.lane == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
    }

    __device__ __forceinline__ void look(PprPass* to)
    {
        u64 sums[PPR_PASS_SUMS] = {};
        const auto load_all = [&](u32 v) { return load(v, true); };
        for_vertices<Vertex>(place, job.n_vertices, load_all, [&](u32, const Vertex& vertex) {
            const i64 residual = vertex.sum - vertex.value;
            count(sums, vertex.sum, vertex.restart, vertex.degree);
            sums[BALANCE_SUMS] += u64(vertex.value);
            sums[BALANCE_SUMS + 1] += u64(size_of(residual));
            sums[BALANCE_SUMS + 2] += u64(residual);
        });
        add_by_block(sums, &to->balance.mass);
    }

    __device__ __forceinline__ void account()
    {
        double* const estimates = reinterpret_cast<double*>(job.differences);
        for_vertices<i64>(place, job.n_vertices, [&](u32 v) { return load_cached(job.values + v); },
            [&](u32 v, i64 value) { estimates[v] = double(value) / job.unit; });
    }
};

extern "C" __global__ __launch_bounds__(BLOCK_THREADS, PASS_BLOCKS) void ppr_passes(
    const __grid_constant__ State out, const __grid_constant__ State in, const __grid_constant__ PprJob job)
{
    PprPasses(out, in, job, place_in_grid()).run();
}
