"""Updates that a device picks of a batch by what it knows to be elsewhere, and its report of all of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest import mock

import cuda_emulator
import numpy as np
import numpy.typing as npt
import pytest

from graphtide.gpma.device import joining
from graphtide.gpma.device.joining import Joined
from graphtide.gpma.device.picking import Picking
from graphtide.gpma.device.report import DeviceReport
from graphtide.gpma.device.staging import DeviceBatch
from graphtide.gpma.edges import ChangeReport, EdgeBatch, EdgeList, destinations, pack, sources, transpose

VERTICES = 1000
SIZES = [1, 31, 32, 511, 512, 513, 3 * 512 + 5, 8 * 512]


def drawn(n: int, seed: int, *, weighted: bool) -> EdgeBatch:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, VERTICES, (2, n))
    dst = np.where(rng.random(n) < 0.1, src, dst)  # some loops
    return EdgeBatch.of(src, dst, rng.integers(0, 2, n), rng.random(n).astype(np.float32) if weighted else None)


def brought(cupy: ModuleType, batch: EdgeBatch) -> DeviceBatch:
    return DeviceBatch.of(
        *(None if c is None else cupy.asarray(c) for c in (batch.keys, batch.ops, batch.weights))
    )


def chosen(batch: EdgeBatch, keys: npt.NDArray[np.uint64], which: npt.NDArray[np.bool_]) -> EdgeBatch:
    return EdgeBatch(keys[which], batch.ops[which], None if batch.weights is None else batch.weights[which])


def assert_same(cupy: ModuleType, found: DeviceBatch, wanted: EdgeBatch, *, weighted: bool) -> None:
    assert np.array_equal(cupy.asnumpy(found.keys), wanted.keys)
    assert np.array_equal(cupy.asnumpy(found.ops), wanted.ops)
    assert (found.weights is not None) == weighted
    if weighted:
        assert np.array_equal(cupy.asnumpy(found.weights), wanted.weights)


class Case:
    """A batch, which of its vertices are elsewhere, and a stream."""

    def __init__(self, cupy: ModuleType, n: int, share: float, *, weighted: bool) -> None:
        rng = np.random.default_rng(n)
        remote = rng.random(-(-VERTICES // 32) * 32) < share
        self.bits = cupy.asarray(np.packbits(remote, bitorder="little").view(np.uint32))
        self.batch = drawn(n, n, weighted=weighted)
        self.tails, self.heads = (~remote[ends(self.batch.keys)] for ends in (sources, destinations))
        self.there = brought(cupy, self.batch)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("weighted", [True, False])
def test_updates_of_rows_that_are_here_keep_their_order(cupy: ModuleType, n: int, weighted: bool) -> None:
    cuda_emulator.seed(n)
    with (stream := cupy.cuda.Stream(non_blocking=True)):
        picking = Picking(stream)
        for share, in_weights in ((0.0, True), (0.3, False), (0.3, True), (0.99, True), (1.0, True)):
            case = Case(cupy, n, share, weighted=weighted)
            batch, tails, heads = case.batch, case.tails, case.heads
            wanted_out = chosen(batch, batch.keys, tails)
            wanted_in = chosen(batch, transpose(batch.keys), heads)
            counts = len(wanted_out), len(wanted_in)
            out, in_ = picking.of_both(case.there, case.bits, *counts, in_weights=in_weights)
            assert_same(cupy, out, wanted_out, weighted=weighted)
            assert_same(cupy, in_, wanted_in, weighted=weighted and in_weights)
            alone = picking.of_out(case.there, case.bits, counts[0], mirrored=False)
            assert_same(cupy, alone, wanted_out, weighted=weighted)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("weighted", [True, False])
def test_both_directions_of_an_edge_stand_side_by_side(cupy: ModuleType, n: int, weighted: bool) -> None:
    cuda_emulator.seed(n)
    with (stream := cupy.cuda.Stream(non_blocking=True)):
        picking = Picking(stream)
        for share in (0.0, 0.3, 1.0):
            case = Case(cupy, n, share, weighted=weighted)
            batch = case.batch
            keys = np.stack([batch.keys, transpose(batch.keys)], axis=1).ravel()
            here = np.stack([case.tails, case.heads], axis=1).ravel()
            weights = None if batch.weights is None else np.repeat(batch.weights, 2)
            twice = EdgeBatch(keys, np.repeat(batch.ops, 2), weights)
            wanted = chosen(twice, keys, here)
            found = picking.of_out(case.there, case.bits, len(wanted), mirrored=True)
            assert_same(cupy, found, wanted, weighted=weighted)


# Reports.


def change_of(rng: np.random.Generator, sizes: tuple[int, ...], *, weighted: bool) -> ChangeReport:
    def edges(n: int) -> EdgeList:
        keys = np.sort(pack(*rng.integers(0, VERTICES, (2, n))))
        return EdgeList(keys, rng.random(n).astype(np.float32) if weighted else None)

    parts = [edges(n) for n in sizes]
    return ChangeReport(parts[0], parts[1], edges(sizes[1]).weights, parts[2], parts[3].keys, slots_moved=3)


def as_rows(cupy: ModuleType, report: DeviceReport) -> list[tuple[Any, ...]]:
    columns = [report.keys, report.ops, report.outcome, report.weights, report.old_weights]
    return list(zip(*(cupy.asnumpy(c).tolist() for c in columns if c is not None), strict=True))


def rows_of(change: ChangeReport, *, weighted: bool) -> list[tuple[Any, ...]]:
    """Key, op, outcome, and the weight that it has and that it had."""
    rows: list[tuple[Any, ...]] = []
    for outcome, (keys, new, old) in enumerate(
        [
            (change.inserted.keys, change.inserted.weights, None),
            (change.overwritten.keys, change.overwritten.weights, change.overwritten_old),
            (change.deleted.keys, None, change.deleted.weights),
            (change.absent, None, None),
        ]
    ):
        for i, key in enumerate(keys.tolist()):
            row = key, int(outcome < 2), outcome
            weights = [0.0 if column is None else float(column[i]) for column in (new, old)]
            rows.append((*row, *weights) if weighted else row)
    return rows


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("n_own", [0, 1, 40])
def test_what_others_did_stands_behind_the_own_report(
    cupy: ModuleType, n_own: int, piece: int, weighted: bool
) -> None:
    rng = np.random.default_rng(n_own)
    with mock.patch.object(joining, "PIECE", piece), (stream := cupy.cuda.Stream(non_blocking=True)):
        joined = Joined(stream, weighted=weighted)
        for sizes in ([(5, 3, 2, 4)], [(0, 0, 0, 1), (20, 0, 30, 0)], [(0, 9, 0, 0)]):
            changes = [change_of(rng, size, weighted=weighted) for size in sizes]
            n_others = sum(map(sum, sizes))
            there = brought(cupy, drawn(n_own, 1, weighted=weighted))
            outcome = cupy.asarray(rng.integers(0, 5, n_own).astype(np.uint8))
            old = cupy.asarray(rng.random(n_own).astype(np.float32)) if weighted else None
            own = DeviceReport(there, (7, 5, 3, 1), 11, outcome, old)
            joined.reserve(n_own + n_others, n_others)
            found = joined.of(own, changes)
            others = [row for change in changes for row in rows_of(change, weighted=weighted)]
            assert as_rows(cupy, found) == as_rows(cupy, own) + others
            more = np.sum([change.totals for change in changes], axis=0)
            assert found.totals == tuple((np.array(own.totals) + more).tolist())
            assert found.slots_moved == 11 + 3 * len(changes)


def test_a_batch_without_weights_means_one(cupy: ModuleType) -> None:
    with (stream := cupy.cuda.Stream(non_blocking=True)):
        joined = Joined(stream, weighted=True)
        there = brought(cupy, drawn(5, 1, weighted=False))
        own = DeviceReport(
            there, (5, 0, 0, 0), 0, cupy.asarray(np.zeros(5, np.uint8)), cupy.asarray(np.zeros(5, np.float32))
        )
        joined.reserve(7, 2)
        found = joined.of(own, [change_of(np.random.default_rng(0), (1, 1, 0, 0), weighted=True)])
        assert cupy.asnumpy(found.weights)[:5].tolist() == [1.0] * 5
