// Sums by row of a warp that goes through leaves in order.
#pragma once

#include "rows.cuh"

// Of integers: whatever the order in which they are added, sums are the same. Half of all leaves or more, where rows are as
// unequal as they mostly are, have edges of one row alone. Of these each lane keeps what its own slots come to, and lanes
// are added up when the row ends: a sum along the lanes costs five steps of shuffles, for which gathers of other leaves wait.
template <class Value> struct RowSums {
    Carry<Value> carry = {NO_LEAF, Value()};
    Value own = Value();    // of this lane, and of the carried row
    bool is_apart = false;  // all lanes agree: whether lanes may have something of their own

    // As sum_leaf of rows.cuh.
    template <class Emit>
    __device__ __forceinline__ void add(const SlotPair& pair, const Value (&values)[2], Emit emit)
    {
        const u32 row = __shfl_sync(ALL_LANES, source(pair.keys[0]), 0);  // NO_LEAF: the leaf is empty
        const auto is_of_row = [&](u64 key) { return key == EMPTY_KEY || source(key) == row; };
        const bool is_one = __all_sync(ALL_LANES, is_of_row(pair.keys[0]) && is_of_row(pair.keys[1]));
        if (!is_one || (row != carry.row && row != NO_LEAF)) {
            gather();
            if (!is_one) return sum_leaf(pair, values, carry, emit);
            if (lane_number() == 0 && carry.row != NO_LEAF) emit(carry.row, carry.sum);
            carry = {row, Value()};
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
        own = Value();
        is_apart = false;
    }
};
