"""Path counts after a batch like the last one, in one compiled call: it fills its job in, launches, and waits.

As ``taking.py`` does for path programs; what the kernel lists the host takes over by itself. A kernel that leaves
levels to be counted anew is followed by the one for that, in any call: after a large batch that is launched behind
it at once, and ends where nothing is left.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...gpma.device.both import BATCH_IS_READY, BATCH_KEYS, BATCH_N, BATCH_OUTCOMES, BATCH_ROWS, BATCH_WORDS
from ...gpma.device.calling import (
    DONE,
    OTHERWISE,
    SAID,
    Then,
    begin,
    carry_out,
    parameter,
    wait_later,
    wait_now,
    waits,
)
from ...gpma.device.launching import BLOCKS, KERNEL
from ...gpma.device.structures import STATE
from ...gpma.edges import Int, Keys
from ...gpma.intrinsics import array_at, uncounted, uncounted_inner
from . import taking
from .taking import mend_again

N_TOLD: Final = 12
"""Words that a kernel tells: COUNT_SAID of ``counting.cuh``, in halves."""
# Among them, whether levels are left.
_LEFT: Final = 10
# Behind them: where the device's side says what the batch was; where the part of the job is that differs from
# run to run; the kernel for levels that are left, its blocks, and after how many updates it is launched at once;
# of a call like the last one how many edges it may read, and how many counts are at the limit.
_N_MORE: Final = 7
BATCH, RUN, REST_KERNEL, REST_BLOCKS, FOLLOWED_FROM, EDGES_MAX, SATURATED = range(N_TOLD, N_TOLD + _N_MORE)
NOT_COUNTED: Final = -3
"""How ``mend_and_count`` may end, beside the ways of a call."""
assert STATE.fields is not None
_N_VERTICES_AT: Final = STATE.fields["n_vertices"][1]
# The part of a job that differs: so many words of 64 bits, then such of 32, one of which is the call's number.
N_LONGS, N_WORDS = 6, 6
_SEQUENCE, _REST_FOLLOWS = 2, 4
_WORDS_FROM: Final = np.uint64(8 * N_LONGS)


@uncounted
def carry_on(record: Keys) -> Int:
    """As ``carry_out``; where levels are left, the kernel for these is called, too, and what it says is said."""
    status = carry_out(record)
    if status != DONE or not waits(record) or record[SAID + _LEFT] == 0:
        return np.int64(status)
    number = begin(record)
    words = array_at(record[SAID + RUN] + _WORDS_FROM, N_WORDS, np.uint32)
    words[_SEQUENCE], words[_REST_FOLLOWS] = number, 0
    return _carry_out_rest(record)


@uncounted_inner
def _carry_out_rest(record: Keys) -> Int:
    kernel, blocks = record[KERNEL], record[BLOCKS]
    record[KERNEL], record[BLOCKS] = record[SAID + REST_KERNEL], record[SAID + REST_BLOCKS]
    status = carry_out(record)
    record[KERNEL], record[BLOCKS] = kernel, blocks
    return np.int64(status)


THEN: Final = Then(carry_on, _N_MORE)


@uncounted
def count_again(record: Keys, waits_too: bool) -> Int:
    """Count as the last call of the record did, beside the same search, after the batch that the device had last,
    up to the limit that was said since.

    ``waits_too``: otherwise it is only launched. As ``carry_on``; OTHERWISE: rows are not read as they were then,
    and nothing was called.
    """
    batch = array_at(record[SAID + BATCH], BATCH_WORDS, np.uint64)
    if batch[BATCH_IS_READY] == 0 or batch[BATCH_ROWS] != parameter(record, 0):
        return np.int64(OTHERWISE)
    number, run = begin(record), record[SAID + RUN]
    follows = batch[BATCH_N] >= record[SAID + FOLLOWED_FROM]
    longs = array_at(run, N_LONGS, np.uint64)
    longs[0], longs[1], longs[5] = batch[BATCH_KEYS], batch[BATCH_OUTCOMES], record[SAID + EDGES_MAX]
    words = array_at(run + _WORDS_FROM, N_WORDS, np.uint32)
    words[0] = batch[BATCH_N]
    words[1] = array_at(parameter(record, 0) + np.uint64(_N_VERTICES_AT), 1, np.uint32)[0]
    words[_SEQUENCE], words[3], words[_REST_FOLLOWS] = number, record[SAID + SATURATED], follows
    if follows:
        wait_later(record)
        status = np.int64(carry_out(record))
        if status == DONE:
            status = _carry_out_rest(record)
        if status != DONE or not waits_too:
            return status
        wait_now(record)
    elif not waits_too:
        wait_later(record)
    return carry_on(record)


@uncounted
def mend_and_count(search: Keys, lost_max: Int, search_edges_max: Int, record: Keys) -> Int:
    """``mend_again`` of the search, and ``count_again`` behind it; waits for neither.

    As ``mend_again``; NOT_COUNTED: that is to be called anew.
    """
    status = mend_again(search, lost_max, search_edges_max, False)
    if status != DONE:
        return np.int64(status)
    status = count_again(record, False)
    return np.int64(NOT_COUNTED if status == OTHERWISE else status)


def warm_up() -> None:
    """Compile what calls do."""
    taking.warm_up()
    batch, record = np.zeros(BATCH_WORDS, np.uint64), np.zeros(SAID + N_TOLD + _N_MORE, np.uint64)
    record[SAID + BATCH] = batch.ctypes.data
    assert carry_on(record) == DONE and count_again(record, True) == OTHERWISE
    search = taking.unlike_any()
    assert mend_and_count(search, 0, 0, record) == OTHERWISE
