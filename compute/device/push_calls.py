"""A refresh of PageRank by pushes like the last one, in one compiled call: it fills its jobs in, launches, waits,
and takes what the kernel told into the certificate's numbers.

As ``forest_calls.py`` does for components: after other work, most of a small refresh was objects of Python that
were not in the processor's caches. Whatever is not quite ordinary is left to Python, which knows all cases.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from numba.extending import register_jitable

from ...gpma.device.both import BATCH_IS_READY, BATCH_KEYS, BATCH_N, BATCH_OUTCOMES, BATCH_ROWS, BATCH_WORDS
from ...gpma.device.calling import DONE, OTHERWISE, SAID, Then, begin, carry_out, parameter
from ...gpma.edges import HALF, Int, Keys
from ...gpma.intrinsics import array_at, uncounted, uncounted_inner
from ..walks.certificate import (
    HUB,
    SLACK_DRIFT,
    SUM_ALLOWANCE,
    SUM_SHARE_MIN,
    WEIGHT_HYSTERESIS,
    amplified,
    error_of,
    slipped_exact,
    sum_error,
    weights_max,
)
from ..walks.edits import ROUNDOFF

SHARE_ROUNDED, UNIT_ROUNDED = 2.0**-24 * (1 + 1e-3), 1 + 1e-3
"""By how much a rounded share may be off: of itself, and beyond that in units; see ``settle.cu``."""


@register_jitable
def rounded_by(received: float, degree: float, unit: float) -> float:
    """By how much rounded shares may put residuals off, in multiples of weights: of vertices that receive so much
    together, from so many in-neighbours, both by weight at most."""
    return SHARE_ROUNDED * received + UNIT_ROUNDED * degree / unit


class Account(NamedTuple):
    """What holds of the numbers on the device, and what they are held against.

    Whole numbers, in units of the ranks: ``norm``, ``size``, ``total``. ``rounded``, ``majorant_rounded``,
    ``ratio``: as in ``Solved``. ``above``, ``majorant_above``: the limits of residuals. ``unit``,
    ``majorant_unit``: what 1 is. ``n``: vertices. What follows is the certificate's.
    """

    norm: int
    size: int
    total: int
    rounded: float
    ratio: float
    majorant_rounded: float
    above: float
    majorant_above: float
    unit: float
    majorant_unit: float
    n: float
    damping: float
    tolerance: float
    bound: float
    ratio_allowed: float
    sum_allowed: float
    reserve: float
    slack: float


FORM: Final = struct.Struct("=3q15d")
_N_SUMS, _N_NUMBERS = 3, 15
_NORM, _SIZE, _TOTAL = range(_N_SUMS)
_ROUNDED, _RATIO, _MAJORANT_ROUNDED, _ABOVE, _MAJORANT_ABOVE, _UNIT, _MAJORANT_UNIT = range(7)
_N, _DAMPING, _TOLERANCE, _BOUND, _RATIO_ALLOWED, _SUM_ALLOWED, _RESERVE, _SLACK = range(7, _N_NUMBERS)

N_SAID: Final = 12
"""Words that a kernel tells (``WalkRun``), each in two halves."""
# Behind these: where the device's side says what the batch was; where the parts of both jobs are that differ from
# run to run; for how many arcs lists have room. Then what the kernel told, in whole words; whether that is
# ordinary, and the error bound then; and the account.
BATCH, WALK, PUSH, ARCS_MAX, TOLD = range(2 * N_SAID, 2 * N_SAID + 5)
IS_ORDINARY, ERROR_BOUND, ACCOUNT = TOLD + N_SAID, TOLD + N_SAID + 1, TOLD + N_SAID + 2
_END: Final = ACCOUNT + _N_SUMS + _N_NUMBERS
THEN: Final = Then(carry_out, _END - 2 * N_SAID)
# The words that a kernel tells, and among them:
_IS_SOLVED, _TOLD_NORM, _TOLD_DEGREE, _TOLD_RATIO = 0, 5, 10, 11
# The part of a walk's job that differs: so many words of 64 bits, then such of 32, of which one is the number of
# the call. And that of the pushes' job.
WALK_LONGS, NUMBER = 6, 6
PUSH_LONGS, PUSH_WORDS = 5, 6
_WORD = np.uint64(8)


@uncounted
def push_again(record: Keys, edges_first: Int, edges_max: Int, stamp: Int, n_updates_max: Int, arcs: Int) -> Int:
    """Push as the last call of the record did, after the batch that the device had last, if that is of so many
    updates at most; and follow the account, if that is ordinary.

    As ``carry_out``; OTHERWISE: it would be another call, and nothing was called.
    """
    batch = array_at(record[SAID + BATCH], BATCH_WORDS, np.uint64)
    if batch[BATCH_IS_READY] == 0 or batch[BATCH_ROWS] != parameter(record, 0):
        return np.int64(OTHERWISE)
    if np.int64(batch[BATCH_N]) > n_updates_max or arcs > np.int64(record[SAID + ARCS_MAX]):
        return np.int64(OTHERWISE)
    walk = array_at(record[SAID + WALK] + _WORD * np.uint64(WALK_LONGS), NUMBER + 1, np.uint32)
    push, kept = record[SAID + PUSH], record.ctypes.data + np.uint64(SAID + ACCOUNT) * _WORD
    longs = array_at(push, PUSH_LONGS, np.uint64)
    doubles = array_at(push, PUSH_LONGS, np.float64)
    words = array_at(push + _WORD * np.uint64(PUSH_LONGS), PUSH_WORDS, np.uint32)
    walk[NUMBER] = begin(record)
    longs[0], longs[1], longs[2], longs[3] = batch[BATCH_KEYS], batch[BATCH_OUTCOMES], edges_first, edges_max
    doubles[4] = np.float64(array_at(kept, _N_SUMS, np.int64)[_SIZE])
    words[2], words[3], words[4], words[5] = batch[BATCH_N], stamp, 0, 0
    status = carry_out(record)
    record[SAID + IS_ORDINARY] = 0
    if status != DONE:
        return status
    for k in range(N_SAID):
        record[SAID + TOLD + k] = record[SAID + 2 * k] | record[SAID + 2 * k + 1] << HALF
    if record[SAID + TOLD + _IS_SOLVED]:
        told = record.ctypes.data + np.uint64(SAID + TOLD) * _WORD
        bound = _follow(told, kept)
        if bound > 0.0:
            record[SAID + IS_ORDINARY] = 1
            array_at(told + _WORD * np.uint64(N_SAID + 1), 1, np.float64)[0] = bound
    return status


@uncounted_inner
def _follow(told: Int, account: Int) -> float:
    """Take what a kernel told into an account, of which all limits hold then; the error bound that follows.

    0: it is not ordinary, and nothing was taken: a limit is to be another, or the certificate does not hold. As
    ``PageRank.certify`` has it.
    """
    sums, numbers = (
        array_at(account, _N_SUMS, np.int64),
        array_at(account + _WORD * np.uint64(_N_SUMS), _N_NUMBERS, np.float64),
    )
    grown, doubles = array_at(told, N_SAID, np.int64), array_at(told, N_SAID, np.float64)
    all_sums = (
        sums[_NORM] + grown[_TOLD_NORM],
        sums[_SIZE] + grown[_TOLD_NORM + 1],
        sums[_TOTAL] + grown[_TOLD_NORM + 2],
    )
    degree, ratio, estimate = (
        doubles[_TOLD_DEGREE],
        max(numbers[_RATIO], doubles[_TOLD_RATIO]),
        HUB * WEIGHT_HYSTERESIS,
    )
    received, majorant_received = estimate + numbers[_ABOVE], ratio * estimate + numbers[_MAJORANT_ABOVE]
    rounded = max(numbers[_ROUNDED], rounded_by(received, degree, numbers[_UNIT]))
    majorant_rounded = max(
        numbers[_MAJORANT_ROUNDED], rounded_by(majorant_received, degree, numbers[_MAJORANT_UNIT])
    )
    unit, tolerance, sum_allowed = numbers[_UNIT], numbers[_TOLERANCE], numbers[_SUM_ALLOWED]
    norm, size, total = (
        np.float64(all_sums[0]) / unit,
        np.float64(all_sums[1]) / unit,
        np.float64(all_sums[2]) / unit,
    )
    off = ROUNDOFF * slipped_exact(norm, size) + rounded * weights_max(numbers[_N], norm)
    error = sum_error(norm, size, total, off, numbers[_DAMPING])
    if (
        rounded > numbers[_RESERVE] / 2
        or majorant_rounded > SLACK_DRIFT
        or not 0.0 < ratio <= numbers[_RATIO_ALLOWED]
    ):
        return 0.0
    if error > sum_allowed and sum_allowed != tolerance / 2:
        return 0.0
    if SUM_ALLOWANCE**3 * error <= sum_allowed and sum_allowed != SUM_SHARE_MIN * tolerance:
        return 0.0
    residual = numbers[_BOUND] + max(numbers[_RESERVE], rounded)
    bound = error_of(residual * amplified(ratio, numbers[_SLACK]), error)
    if not bound <= tolerance:
        return 0.0
    sums[_NORM], sums[_SIZE], sums[_TOTAL] = all_sums
    numbers[_RATIO], numbers[_ROUNDED], numbers[_MAJORANT_ROUNDED] = ratio, rounded, majorant_rounded
    return bound


def warm_up() -> None:
    """Compile what calls do."""
    batch, record = np.zeros(BATCH_WORDS, np.uint64), np.zeros(SAID + _END, np.uint64)
    record[SAID + BATCH] = batch.ctypes.data
    assert carry_out(record) == DONE and push_again(record, 0, 0, 0, 0, 0) == OTHERWISE
