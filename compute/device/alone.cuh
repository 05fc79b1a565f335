// One block for all. After few updates there is so little to do between two barriers of the grid that these are most of
// the time. Then the first block works for all, with barriers of its own, and the others wait: until it has come to the
// end, or calls them because there is more than suits one block. They go on from where it is.
#pragma once

#include "frontier.cuh"

// The first block begins alone with up to so many updates, one a thread, and goes on with up to so many rows, leaves of
// long ones, or vertices at a time: two a warp.
#ifndef ALONE_UPDATES
#define ALONE_UPDATES 512
#endif
#ifndef ALONE_ROWS
#define ALONE_ROWS 32
#endif

// Rows, and leaves of long ones.
__device__ __forceinline__ u32 n_pieces(const Counts& counts) { return n_short(counts) + u32(counts.long_rows); }
