// Rows of single vertices, on whichever side they are: walked by a warp, and looked into by threads. The undirected
// simple view of a graph is read by these (compute/links.py says what a link is, and its arcs).
#pragma once

#include "fixed.cuh"

// Where the row of a vertex lies: from its first leaf to the last that may hold a key of it.
struct Span {
    u32 vertex, first, last, degree;

    __device__ __forceinline__ Row row() const { return {first, degree}; }

    __device__ __forceinline__ u32 leaves() const { return degree ? last - first + 1 : 0; }

    // From a later leaf on; the degree is as many edges as may be left.
    __device__ __forceinline__ Row row_from(u32 leaf) const { return {first + leaf, leaf < leaves() ? degree : 0}; }
};

__device__ __forceinline__ Span span_of(const State& rows, u32 vertex)
{
    const Row row = load_row(rows, vertex);
    if (!row.degree) return {vertex, 0, 0, 0};
    const bool is_remote = is_remote_leaf(rows, row.leaf);
    const u32 last = is_remote ? last_leaf_of_remote_row(rows, vertex, row) : last_leaf_of_row(rows, vertex, row);
    return {vertex, row.leaf, last, row.degree};
}

// In a leaf: its count, and one of its two lines of keys, if not both.
constexpr u32 LINES_OF_LOOKUP = 2;

// The leaf of a remote row in which a key of it belongs. Of several leaves there none is empty.
__device__ __forceinline__ u32 last_remote_leaf(const State& rows, const Span& row, u64 key)
{
    u32 low = row.first, high = row.last, lines = LINES_OF_LOOKUP;
    for (; low < high; lines++) {
        const u32 middle = low + (high - low + 1) / 2;
        if (load_constant(keys_of(rows, middle)) <= key) low = middle;
        else high = middle - 1;
    }
    tell_lookup(rows, lines);
    return low;
}

// Whether a row has an edge to this vertex.
__device__ __forceinline__ bool leads_to(const State& rows, const Span& row, u32 head)
{
    if (!row.degree) return false;
    const u64 key = u64(row.vertex) << 32 | head;
    const bool is_remote = is_remote_leaf(rows, row.first);
    const u32 leaf = is_remote ? last_remote_leaf(rows, row, key) : last_leaf<1>(rows, key, row.first, row.last);
    const u64* const keys = keys_of(rows, leaf);
    const u32 count = load_constant(count_of(rows, leaf));
    u32 at = 0;
    for (u32 end = count; at < end;) {
        const u32 middle = (at + end) / 2;
        if (load_constant(keys + middle) < key) at = middle + 1;
        else end = middle;
    }
    return at < count && load_constant(keys + at) == key;
}

// Calls visit(edges) for the row of a vertex, leaf by leaf in order, or for ``n_leaves`` of them; all lanes of a warp are in
// a call.
template <class Visit> __device__ __forceinline__ void walk_row_by_warp(
    const State& rows, u32 vertex, const Row& row, Visit visit, u32 n_leaves = NO_LEAF)
{
    u32 leaf = row.leaf, left = row.degree;
    for (; left && n_leaves; leaf++, n_leaves--) {
        const Edges edges = edges_of(load_part(rows, leaf), leaf, vertex);
        left -= vote(edges.live[0], edges.live[1]).count();
        visit(edges);
    }
    tell_row(rows, vertex, row.leaf, row.degree - left, leaf - row.leaf);
}

// Both rows of a vertex. In an undirected graph the second one is empty: all that there is is in the first.
struct Spans {
    Span out, in;

    __device__ __forceinline__ u32 degree() const { return out.degree + in.degree; }
};

__device__ __forceinline__ Spans spans_of(const State& out, const State& in, bool is_directed, u32 vertex)
{
    Spans rows = {span_of(out, vertex), {vertex, 0, 0, 0}};
    if (is_directed) rows.in = span_of(in, vertex);
    return rows;
}

// As many entries as the rows of a vertex have.
__device__ __forceinline__ u32 degree_of(const State& out, const State& in, bool is_directed, u32 vertex)
{
    return load_row(out, vertex).degree + (is_directed ? load_row(in, vertex).degree : 0);
}
