"""The rows that the host keeps: out-rows, and in-rows where programs pull, changed side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..gpma.changed import CHANGED_WORDS
from ..gpma.edges import ChangeReport, EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights
from ..gpma.gate import NO_GATE, BeforeWriting, Gate, end_beside
from ..gpma.host import PackedMemoryArray
from ..gpma.host.array import LoadPlan
from ..gpma.host.committing import commit, commit_both
from ..gpma.host.divided import apply_divided
from ..gpma.host.preparing import look_up_both, pieces_of
from ..gpma.host.shared import apply_shared
from ..gpma.host.small import DID, MOVED, WRITING, Did, apply_small
from ..gpma.host.snapshot import Turnstile, export_from
from ..gpma.host.work import Plan, arrivals_of
from ..gpma.memory import Memory
from ..gpma.team import ALONE, Crew
from ..gpma.threads import Pair, in_turn
from ..gpma.written import Words, Written
from .changes import Report, no_change, no_edges
from .side import Direction, Side

SMALL_UPDATES_MAX = 1024
"""Up to so many updates of rows go by one call that writes what it has just looked up, if it can, while nobody
reads. The caller's thread applies both orientations: handing one over takes longer than doing it, and half as much
again of the processor."""

ONE_CALL_UPDATES_MAX = 1 << 15
"""More go by one call as well, which threads share, up to so many: then the way through the interpreter is little
beside them, and they are looked up while others still read what there was before."""

DIVIDED_UPDATES_MIN, DIVIDED_PIECE, DIVIDED_THREADS_MIN = 800, 128, 4
"""Of these, so many threads and more share so many, counted in both orientations, in pieces of about so many. Two
threads would take a fifth more of the processor, and gain only where nobody else wants it."""

PIECE_UPDATES_MIN, PIECES_MAX = 256, 16
"""Of these an orientation has two pieces for each thread, of at least so many updates, and at most so many pieces.
Shorter ones cost more than they share."""


UNFINISHED = (
    "a change failed in its middle, and nobody knows what this graph holds: "
    "load it anew, or start again, from the newest checkpoint"
)


class HostPlan(NamedTuple):
    """What ``HostSide.prepare_rows`` planned for its arrays, of so many updates each at most."""

    out: Plan
    in_: Plan | None
    n_updates: int


class _NothingWritten(MemoryError):
    """There was not enough, before the first write."""


class Middle:
    """Where a change writes; it remembers whether one failed there. While one goes on nothing has failed: who
    gives a device its batches looks meanwhile, and does not wait."""

    def __init__(self) -> None:
        self.failed = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and kind is not _NothingWritten:
            self.failed = True


class HostSide(Side[PackedMemoryArray]):
    """Both orientations by threads side by side, and small batches by one compiled call."""

    name = "host"

    def __init__(self, *, weighted: bool, in_edges: bool, in_weights: bool, crew: Crew) -> None:
        """``in_edges``: whether in-rows are kept, and ``in_weights``: with weights, where there are any.
        ``crew``: the threads of both orientations, which are applied side by side, or of a lone array."""
        self._pair = Pair(min(2 if in_edges else 1, crew.threads), "in-rows")
        self._crew = crew
        self._crew_each = Crew(max(1, crew.threads // 2), crew.words) if in_edges else crew
        crew = self._crew_each
        self.out = PackedMemoryArray(weighted=weighted, crew=crew)
        self.in_ = PackedMemoryArray(weighted=weighted and in_weights, crew=crew) if in_edges else None
        self.memory = Memory()
        self._turnstile = Turnstile()
        self.middle = Middle()
        self._change = no_change(weighted)
        self._did = Did.empty()
        self._did_written = Written(DID)
        self._did_written.write(self._did)
        self._both = int(in_edges)

    @property
    def unfinished(self) -> bool:
        """Whether a change failed after it had begun to write, which is a mistake: nobody knows what the rows
        hold. A load makes them whole again."""
        return self.middle.failed

    def prepare_rows(self, out: EdgeBatch, in_: EdgeBatch | None) -> HostPlan:
        """Everything of a batch that can fail; the rows are only read. ``in_``: None where no in-rows are kept.

        Raises:
            ValueError: a row does not exist.
            MemoryError: there is not enough.
        """
        if in_ is None or self.in_ is None:
            plan = HostPlan(self.out.prepare(out), None, len(out))
            self.memory.require(self.out.more_bytes(plan.out))
            return plan
        out_rows, in_rows = self.out, self.in_
        n_updates = max(len(out), len(in_))  # where others own rows, too, one may be long and the other short
        if n_updates <= SMALL_UPDATES_MAX or not (len(out) and len(in_)):
            out_plan, in_plan = out_rows.prepare(out), in_rows.prepare(in_)
        else:
            out_asked, in_asked = out_rows.question(out), in_rows.question(in_)
            assert out_asked is not None and in_asked is not None
            out_parts, out_found, in_parts, in_found = look_up_both(
                out_asked, in_asked, self._crew, self._crew_each
            )
            out_plan = out_rows.plan((out_parts, out_found))
            in_plan = in_rows.plan((in_parts, in_found), told=False)
        self.memory.require(out_rows.more_bytes(out_plan) + in_rows.more_bytes(in_plan))
        return HostPlan(out_plan, in_plan, n_updates)

    def keep_out(self, plan: HostPlan, before_writing: BeforeWriting) -> Gate:
        """Call what must be called before ``commit``, of a plan that has updates. Returns the gate, for that, of
        those who may read beside it: none where the batch is small, or edges go into other leaves."""
        stays = plan.n_updates > SMALL_UPDATES_MAX and self.out.leaves_stay(plan.out)
        if stays and (self.in_ is None or (plan.in_ is not None and self.in_.leaves_stay(plan.in_))):
            return before_writing.but_for_gate()
        before_writing()
        return NO_GATE

    def commit(self, plan: HostPlan, gate: Gate = NO_GATE) -> ChangeReport:
        """Write what ``prepare_rows`` planned; cannot fail. Returns the report of the out-rows.

        ``gate``: what ``keep_out`` gave; it is shut once this writes, and others read beside it until
        ``end_beside``.

        Raises:
            RuntimeError: a change before failed in its middle; nothing was written.
        """
        with self._turnstile.writing():
            self._require_whole()
            with self.middle:
                return self._commit(plan, gate)

    def _require_whole(self) -> None:
        if self.unfinished:
            raise RuntimeError(UNFINISHED)

    def _commit(self, plan: HostPlan, gate: Gate) -> ChangeReport:
        in_rows, in_plan = self.in_, plan.in_
        if in_rows is None or in_plan is None:
            task = self.out.task(plan.out, gate)
            written = None if task is None else commit(task, self._crew_each)
            self._end_beside(plan, gate)
            return self.out.committed(plan.out, written)
        if plan.n_updates <= SMALL_UPDATES_MAX or plan.out.parts is None or in_plan.parts is None:
            in_rows.commit(in_plan)
            return self.out.commit(plan.out)
        if plan.out.at_once or in_plan.at_once:  # all edges move: one thread's work for each array
            return self._pair.run(lambda: self.out.commit(plan.out), lambda: in_rows.commit(in_plan))[0]
        out_task, in_task = self.out.task(plan.out, gate), in_rows.task(in_plan, gate, 1)
        assert out_task is not None and in_task is not None
        out_written, in_written = commit_both(out_task, in_task, self._crew, self._crew_each)
        self._end_beside(plan, gate)
        # What migrates waits for memory, with many threads as with one: side by side that is waited for once.
        # What grows may move all of its edges at once: one after the other, as each takes room meanwhile.
        run = self._pair.run if self.out.migrating or in_rows.migrating else in_turn
        report, _ = run(
            lambda: self.out.committed(plan.out, out_written), lambda: in_rows.committed(in_plan, in_written)
        )
        return report

    def _end_beside(self, plan: HostPlan, gate: Gate) -> None:
        """Nobody reads beside a batch any more if what follows its kernel would pull rows from under him."""
        moves = self.out.moves_when_committed(plan.out)
        if self.in_ is not None and plan.in_ is not None:
            moves = moves or self.in_.moves_when_committed(plan.in_)
        if gate.size and moves:
            end_beside(gate)

    def apply_small(
        self,
        batch: EdgeBatch,
        n_updates: int,
        n_vertices: int,
        mirrored: int,
        negative: int,
        before_writing: BeforeWriting,
    ) -> tuple[Report, tuple[int, ...]] | None:
        """A few updates by one compiled call; None: nothing was written, and they go by ``prepare_rows``.

        ``n_updates``: of rows, if ``mirrored`` two for each; ``negative``: whether weights may be (both 1 or 0);
        ``before_writing``: called once it is known that no array needs another layout. Where they are many, those
        who read through its gate may do so until they are looked up. Returns the report of the out-rows, and
        ``Totals``.
        """
        out, in_ = self.out, self.in_
        out_rows = out.for_small(n_updates)
        in_rows = out_rows if in_ is None else in_.for_small(n_updates)
        if out_rows is None or in_rows is None:
            return None
        how = self._both, mirrored, negative, n_vertices
        if n_updates > SMALL_UPDATES_MAX:
            gate = before_writing.but_for_gate()
            return self._apply_shared(out_rows, in_rows, how, n_updates, batch, gate)
        before_writing()
        arrived = arrivals_of(batch, weighted=out.weighted)
        changed = np.empty(CHANGED_WORDS + (n_updates << out.weighted), np.int64)
        turnstile = self._turnstile
        begun = False
        with turnstile.entrance, turnstile.inside:  # as ``writing``, without a call
            try:
                did = self._did_written.words
                if n_updates << self._both < DIVIDED_UPDATES_MIN or self._crew.threads < DIVIDED_THREADS_MIN:
                    told = apply_small(out_rows, in_rows, did, *how, *arrived, changed)
                else:
                    n_pieces = max(1, n_updates // DIVIDED_PIECE)
                    told = apply_divided(out_rows, in_rows, did, *how, arrived, changed, n_pieces, self._crew)
                if not told[0]:
                    return None
                begun = True
                _, is_calm, moved, inserted, overwritten, deleted, absent, *_ = told
                n_more = inserted - deleted
                if is_calm:
                    distinct = inserted + overwritten + deleted + absent
                    moved += out.after_small(distinct, n_more, None)
                    if in_ is not None:
                        in_.after_small(distinct, n_more, None)
                else:
                    moved += self._gone_on(n_more, in_turn)
            except BaseException as error:  # as ``middle``, without its calls
                self.middle.failed |= begun or not isinstance(error, MemoryError)
                raise
        totals = told[3:]
        return Report.of_small(totals, changed, out.weighted, moved), totals

    def _apply_shared(
        self,
        out_rows: Words,
        in_rows: Words,
        how: tuple[int, int, int, int],
        n_updates: int,
        batch: EdgeBatch,
        gate: Gate,
    ) -> tuple[Report, tuple[int, ...]] | None:
        """``apply_small`` with the help of other threads."""
        out, in_, each = self.out, self.in_, self._crew_each
        out_work = out.reserve(n_updates)
        in_work = out_work if in_ is None else in_.reserve(n_updates)
        n_pieces = 1
        if each.threads > 1:
            share = n_updates // min(2 * each.threads, PIECES_MAX)
            n_pieces = pieces_of(n_updates, max(PIECE_UPDATES_MIN, share))
        rows = out_rows, out_work, in_rows, in_work
        arrived = arrivals_of(batch, weighted=out.weighted)
        changed = np.empty(CHANGED_WORDS + (n_updates << out.weighted), np.int64)
        with self._turnstile.writing(), self.middle:
            did = self._did
            did.counts[0, MOVED] = 0
            try:
                told = apply_shared(*rows, *how, n_pieces, arrived, changed, did, self._crew, each, gate)
            except MemoryError as error:
                if did.counts[0, MOVED] == WRITING:
                    raise
                raise _NothingWritten(*error.args) from error
            if not told[0]:
                return None
            totals = told[3:]
            n_more = totals[0] - totals[2]
            if gate.size and any(array.moves_after(n_more) for array in self.arrays):
                end_beside(gate)
            # What migrates waits for memory, with many threads as with one.
            migrating = out.migrating or (in_ is not None and in_.migrating)
            run = self._pair.run if migrating else in_turn
            moved = told[2] + self._gone_on(n_more, run)
        return Report.of_small(totals, changed, out.weighted, moved), totals

    def _gone_on(self, n_more: int, run: Any) -> int:
        """Have the arrays go on from what was written, which brought so many more edges; how many slots more
        of the out-rows have moved."""
        out, in_ = self.out, self.in_
        did = self._did.outcome(0)
        if in_ is None:
            return out.after_small(did.n_updates, n_more, did)
        in_did = self._did.outcome(1)
        moved: int
        moved, _ = run(
            lambda: out.after_small(did.n_updates, n_more, did),
            lambda: in_.after_small(in_did.n_updates, n_more, in_did),
        )
        return moved

    def commit_load(self, out: LoadPlan, in_: LoadPlan | None) -> None:
        """Write what the arrays' ``prepare_load`` planned; cannot fail."""
        out_rows, in_rows = self.out, self.in_
        with self.middle:
            if in_rows is None or in_ is None:
                out_rows.commit_load(out)
            else:
                self._pair.run(lambda: out_rows.commit_load(out), lambda: in_rows.commit_load(in_))
        self.middle.failed = False

    def load(self, out: EdgeList, in_: EdgeList | None) -> None:
        """``load_rows``, both orientations prepared before either is written."""
        out_plan = self.out.prepare_load(out, self._crew)
        in_plan = None if self.in_ is None or in_ is None else self.in_.prepare_load(in_, self._crew)
        self.commit_load(out_plan, in_plan)

    # -- rows that the host owns --------------------------------------------------------------------------------

    def finish(self, plan: HostPlan) -> None:
        self._change = self.commit(plan)

    def rows_report(self) -> Report:
        return Report.of(self._change)

    def load_rows(self, out: EdgeList, in_: EdgeList | None) -> None:
        self.load(out, in_)
        self._change = no_change(self.out.weighted)

    def evacuate(self) -> tuple[EdgeList, EdgeList | None]:
        return self.out.export(), None if self.in_ is None else self.in_.export()

    def clear_rows(self) -> None:
        nothing = [None if array is None else no_edges(array.weighted) for array in (self.out, self.in_)]
        assert nothing[0] is not None
        self.load_rows(nothing[0], nothing[1])

    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        return self.array(direction).has_edge(keys)

    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        return self.array(direction).weights_of(keys)

    def rows(self, direction: Direction, vertices: Vertices) -> SubCSR:
        return self.array(direction).rows(vertices)

    def degrees(self, direction: Direction, n_vertices: int) -> npt.NDArray[np.uint32]:
        return self.array(direction).view().degrees[:n_vertices]

    def export_rows(self, direction: Direction) -> EdgeList:
        return self.array(direction).export()

    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        """Copy out-arcs from this key on into the columns, between two commits; returns how many.

        Raises:
            RuntimeError: one of them failed in its middle.
        """
        with self._turnstile.reading():
            self._require_whole()
            copied: int = export_from(self.out.view(), np.uint64(first_key), keys, weights)
        return copied

    def check(self) -> list[str]:
        """Violated invariants of the arrays, in words."""
        return [problem for array in self.arrays for problem in array.check()]

    def close(self) -> None:
        """End the second thread, and what goes on in the background; what comes later is done by the caller's."""
        self._pair.close()
        for array in self.arrays:
            array.close()


def warm_up() -> None:
    """Compile (or load from the cache) what applies a batch to both orientations at once; where there are no
    weights they are columns of no length, so that all arrays share it."""
    host = HostSide(weighted=False, in_edges=True, in_weights=False, crew=ALONE)
    vertices = np.arange(SMALL_UPDATES_MAX + 1, dtype=np.uint32)
    for array in host.arrays:
        array.ensure_vertices(vertices.size)
    ones = np.ones(vertices.size, np.uint8)
    for ops in (ones, ones, np.zeros_like(ones)):  # the second batch finds room where it is, as most do
        host.commit(
            host.prepare_rows(EdgeBatch.of(vertices, vertices, ops), EdgeBatch.of(vertices, vertices, ops))
        )
    host.close()
