"""A refresh of components like the last one, in one compiled call: it fills its job in, launches, and waits.

As ``taking.py`` does for path programs; what the kernel lists the host takes over by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...gpma.device.both import BATCH_IS_READY, BATCH_KEYS, BATCH_N, BATCH_OUTCOMES, BATCH_ROWS, BATCH_WORDS
from ...gpma.device.calling import DONE, OTHERWISE, SAID, Then, begin, carry_out, parameter
from ...gpma.device.structures import STATE
from ...gpma.edges import Int, Keys
from ...gpma.intrinsics import array_at, uncounted

N_TOLD: Final = 6
"""Words that a kernel tells (``ForestWord`` of ``forest.cuh``)."""
# Behind them: how many vertices the forest has; where the device's side says what the batch was, where the part of
# the job is that differs from run to run, and how many vertices queues have room for.
N, BATCH, RUN, ROOM = range(N_TOLD, N_TOLD + 4)
THEN: Final = Then(carry_out, 4)
assert STATE.fields is not None
_N_VERTICES_AT: Final = STATE.fields["n_vertices"][1]
# The part of a job that differs: so many words of 64 bits, then such of 32.
N_LONGS, N_WORDS = 4, 8


@uncounted
def mend_again(record: Keys, lost_max: Int, moved_max: Int, edges_max: Int, rounds_max: Int, stamp: Int) -> Int:
    """Mend as the last call of the record did, after the batch that the device had last.

    As ``carry_out``; OTHERWISE: rows are not read as they were then, and nothing was called.
    """
    batch = array_at(record[SAID + BATCH], BATCH_WORDS, np.uint64)
    if batch[BATCH_IS_READY] == 0 or batch[BATCH_ROWS] != parameter(record, 0):
        return np.int64(OTHERWISE)
    number, run, room = begin(record), record[SAID + RUN], np.int64(record[SAID + ROOM])
    n = array_at(parameter(record, 0) + np.uint64(_N_VERTICES_AT), 1, np.uint32)[0]
    longs = array_at(run, N_LONGS, np.uint64)
    longs[0], longs[1], longs[2], longs[3] = batch[BATCH_KEYS], batch[BATCH_OUTCOMES], edges_max, 0
    words = array_at(run + np.uint64(8 * N_LONGS), N_WORDS, np.uint32)
    words[0], words[1], words[2] = min(lost_max, room), min(moved_max, room), rounds_max
    words[3], words[4], words[5] = batch[BATCH_N], record[SAID + N], n
    words[6], words[7] = stamp, number
    record[SAID + N] = n
    return carry_out(record)


def warm_up() -> None:
    """Compile what calls do."""
    batch, record = np.zeros(BATCH_WORDS, np.uint64), np.zeros(SAID + N_TOLD + 4, np.uint64)
    record[SAID + BATCH] = batch.ctypes.data
    assert carry_out(record) == DONE and mend_again(record, 0, 0, 0, 0, 0) == OTHERWISE
