"""Requests about the values of all vertices, or for the best of some."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....compute.program import Answer, Published
from ....gpma.edges import NO_VERTEX, Vertices, distinct
from ....gpma.index.ids import IdColumn
from ...client.wire import pack_column
from .. import histograms
from ..histograms import Scale
from ..params import Outcome, Params
from ..results import Pieces, ProgramResults, Snapshot
from ..serving import SCANNED_INLINE_MAX, VERTICES_INLINE_MAX, Reply, Serving
from ..values import best_of, no_order, staleness, top_k, wire_ids
from .named import copy_of, program_of
from .registry import method

K_DEFAULT, BINS_DEFAULT = 10, 20
BEST_FALL, BEST_FALL_MIN = 0.01, 1e-30
"""How much worse the last of the best may be in the next epoch, as it is guessed: a part of it, and this."""


@method("top")
def top(serving: Serving, params: Params) -> Outcome:
    """The k vertices of largest (or smallest) value; vertices without a value are left out."""
    id = params.program()
    k = params.limited("k", serving.limits, "top_k_max", default=K_DEFAULT)
    order = params.choice("order", ("desc", "asc"))
    among = params.vertices_or_all("vertices", serving)
    params.end()

    def work() -> Outcome:
        program_of(serving.snapshot(), id)
        if among is not None:
            return _top_among(serving, params, id, among, k, descending=order == "desc")
        key = "top", id, k, order
        return serving.answers.known(key) or _top_of_all(serving, params, key)

    return params.once_covered(serving, work)


async def _top_of_all(serving: Serving, params: Params, key: tuple[str, str, int, str]) -> Reply:
    """The best of all vertices, found once in each epoch. ``key``: names what is asked for."""
    _, id, k, order = key
    last: float | None = None

    def scan(snapshot: Snapshot) -> Pieces[tuple[Snapshot, Vertices, npt.NDArray[Any]]]:
        result, descending = program_of(snapshot, id), order == "desc"
        read, living = _run_of(serving, result), partial(_living, snapshot, result)
        kind, published = serving.program_class(result.kind), result.published
        fall = 0.0 if last is None else abs(last) * BEST_FALL + BEST_FALL_MIN
        beyond = None if last is None else last - fall if descending else last + fall
        n = published.n_vertices

        def sieve(part: slice, bound: float) -> tuple[Vertices, Answer] | None:
            places = kind.sieve(published, part, bound, descending=descending)
            if places is None:
                return None
            dense = (part.start + places).astype(np.uint32)
            return dense, kind.read(published, dense)

        best = yield from best_of(read, living, n, k, descending=descending, beyond=beyond, sieve=sieve)
        return snapshot, *best

    is_short = k <= VERTICES_INLINE_MAX and serving.snapshot().n_vertices <= SCANNED_INLINE_MAX

    async def compute() -> Reply:
        nonlocal last
        snapshot, dense, values = await serving.scanned(params.asker, scan, is_short=is_short)
        last = float(values[-1]) if dense.size == k and np.isfinite(values[-1]) else None
        ids = wire_ids(serving.external(dense))
        answer = {"ids": ids, "values": pack_column(values), **staleness(snapshot.programs[id])}
        return Reply(serving.stamp(snapshot), answer)

    return await serving.answers.answer(key, compute, ahead=is_short)


def _run_of(serving: Serving, result: ProgramResults) -> Callable[[slice], Answer]:
    """Reads values of a program, for ``best_of``.

    Raises:
        NotSupported: the values are vertices.
    """
    kind = serving.program_class(result.kind)

    def read(part: slice) -> Answer:
        answer = kind.read_run(result.published, part)
        if answer.vertex_valued:
            raise no_order(result.kind)
        return answer

    return read


def _living(snapshot: Snapshot, result: ProgramResults, dense: Vertices) -> npt.NDArray[np.bool_]:
    """Which of these dense ids are of a program's vertices still."""
    living = np.ones(dense.size, bool) if snapshot.alive is None else snapshot.alive[dense]
    if result.gone is not None:
        living &= ~result.gone[dense]
    return living


async def _top_among(
    serving: Serving, params: Params, id: str, among: IdColumn, k: int, *, descending: bool
) -> Reply:
    """The best of these vertices, each once."""

    def read(snapshot: Snapshot) -> Reply:
        result = program_of(snapshot, id)
        kind = serving.program_class(result.kind)
        dense = serving.lookup_in(snapshot, among)
        known = distinct(dense[dense != NO_VERTEX])
        known = known[result.knows(known)]
        values = kind.read(result.published, known)
        if values.vertex_valued:
            raise no_order(result.kind)
        chosen = top_k(values, k, descending=descending)
        answer = {
            "ids": wire_ids(serving.external(known[chosen])),
            "values": pack_column(values.values[chosen]),
            "unknown": wire_ids(among[dense == NO_VERTEX]),
            **staleness(result),
        }
        return Reply(serving.stamp(snapshot), answer)

    if len(among) <= VERTICES_INLINE_MAX:
        return serving.read(read)
    await serving.make_room(params.asker, len(among))
    return await serving.in_thread(params.asker, serving.read, read)


@method("histogram")
async def histogram(serving: Serving, params: Params) -> Reply:
    """How many vertices have values within each of some bins."""
    id = params.program()
    bins = params.limited("bins", serving.limits, "top_k_max", default=BINS_DEFAULT)
    scale: Scale = "log" if params.choice("scale", ("linear", "log")) == "log" else "linear"
    params.end()
    await params.covered(serving)
    program_of(serving.snapshot(), id)

    def compute() -> Reply:
        snapshot, read, alive = _all_values(serving, id)
        found = histograms.histogram(read.values[~read.null], bins, scale)
        answer = {
            "edges": pack_column(found.edges),
            "counts": pack_column(found.counts),
            "outside": found.outside,
            "without_value": alive - int(np.count_nonzero(~read.null)),
            **staleness(snapshot.programs[id]),
        }
        return Reply(serving.stamp(snapshot), answer)

    key = "histogram", id, bins, scale
    return await serving.answers.answer(key, lambda: serving.for_all(params.asker, compute))


def _all_values(serving: Serving, id: str) -> tuple[Snapshot, Answer, int]:
    """The values of all dense ids of one epoch, null where there is no vertex; and how many vertices there are.

    Raises:
        NotSupported: the values are vertices.
    """

    def copied(snapshot: Snapshot) -> tuple[Snapshot, Published, npt.NDArray[np.bool_], int]:
        result = program_of(snapshot, id)
        dead = _dead(snapshot, result, slice(0, result.published.n_vertices))
        return snapshot, copy_of(result), dead, snapshot.n_alive

    snapshot, published, dead, alive = serving.read(copied)
    result = snapshot.programs[id]
    read = serving.program_class(result.kind).read(published, np.arange(published.n_vertices, dtype=np.uint32))
    if read.vertex_valued:
        raise no_order(result.kind)
    read.null[dead] = True
    return snapshot, read, alive


def _dead(snapshot: Snapshot, result: ProgramResults, part: slice) -> npt.NDArray[np.bool_]:
    """Which dense ids, from one to another, are of a program's vertices that were deleted, others' by now perhaps;
    copied."""
    dead = np.zeros(part.stop - part.start, bool) if snapshot.alive is None else ~snapshot.alive[part]
    if result.gone is not None:
        dead |= result.gone[part]
    return dead
