"""The storage, and who may touch it when.

The engine holds the gate while it writes a batch, not yet while it finds out where to; a reader holds it while it
reads. Readers that need no interpreter wait elsewhere (``shown.py``), for the same. A reader that needs results
and storage of one epoch (a path with its weights) asks for a *settled* reading: the engine lets those in after it
has published an epoch and before it writes the next batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...gpma.gate import NO_GATE, BeforeWriting, Gate
from ...partition.graph import Graph
from ..errors import Unavailable
from ..records.position import Position
from .shown import QUESTIONS, Shown

UNASKED_CHANGES = 64
"""After so many changes without a question about rows, no batch takes longer so that readers wait less."""


def _nothing() -> None:
    """There is nothing to show."""


class StorageGate:
    """Who may touch the storage: one writer, or readers; settled readers get a turn after each epoch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._applying = False
        self._settled = True
        self._waiting_for_settled = 0
        self._held_until = 0.0
        self._halted: str | None = None
        self._torn: str | None = None  # why a change was never finished: what there is belongs to no epoch
        self._questions = 0
        self._questions_before, self._unasked_changes = 0, UNASKED_CHANGES
        self.shown = Shown()
        self.show: Callable[[], None] = _nothing
        """Puts what there is after a change into ``shown``, before anybody reads it; may not fail."""

    @property
    def questions(self) -> int:
        """How many about rows came so far, of Python's threads and of others."""
        return self._questions + int(self.shown.words[QUESTIONS])

    @property
    def is_asked(self) -> bool:
        """Whether questions about rows came lately."""
        return self._unasked_changes < UNASKED_CHANGES

    def _count_unasked(self) -> None:
        """Another change begins."""
        before, self._questions_before = self._questions_before, self.questions
        self._unasked_changes = 0 if before != self._questions_before else self._unasked_changes + 1

    @contextmanager
    def change(self) -> Iterator[BeforeWriting]:
        """The engine changes the storage. Before it writes anything that a reader might see, it calls what it
        gets: from then on until ``settle`` storage is ahead of the results, and nobody reads before the block
        ends. Where that is not called, or memory was all that was lacking, nothing was changed; after any other
        error nobody reads any more."""
        self._count_unasked()
        try:
            yield _Shutting(self)
        except MemoryError:
            raise
        except BaseException as error:
            if self._applying:
                self._torn = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._end_writing()

    @contextmanager
    def apply(self) -> Iterator[None]:
        """A change all of which nobody may see."""
        with self.change() as begin_writing:
            begin_writing()
            yield

    def keep_out(self) -> None:
        """Let none of Python's threads read until the end of the change that has begun."""
        with self._changed:
            if self._applying:
                return
            # Those that wait for results and storage to agree go first; each reading is short and bounded.
            while self._readers or self._waiting_for_settled or (held := self._held_until - time.monotonic()) > 0:
                self._changed.wait(None if self._readers or self._waiting_for_settled else held)
            self._applying = True
            self._settled = False

    def _end_writing(self) -> None:
        """Let readers in again, if they were kept out."""
        try:
            if self._applying:
                self._open()
        finally:
            with self._changed:
                self._applying = False
                self._halted = self._torn
                self._changed.notify_all()

    def _open(self) -> None:
        self.shown.shut()  # unless a kernel has done so
        self.shown.end_beside()
        try:
            if self._torn is None:
                self.show()
            else:
                self.shown.hide()
        except BaseException:
            self.shown.hide()
            raise
        finally:
            self.shown.open()

    @contextmanager
    def within(self) -> Iterator[None]:
        """The engine changes how the storage lies in the midst of an epoch, and not what is in it: settled readers
        wait on where they do."""
        with self._changed:
            while self._readers:
                self._changed.wait()
            self._applying = True
        self.shown.shut()
        try:
            yield
        finally:
            self._end_writing()

    def show_again(self) -> None:
        """Between two changes: rows that were not there to be shown after the last one are there now."""
        with self.within():
            pass

    def halt(self, reason: str) -> None:
        """The change that is being applied cannot be finished for now: readers need not wait for its end."""
        with self._changed:
            self._halted = reason
            self._changed.notify_all()

    def settle(self) -> None:
        """The results of what was applied are published."""
        with self._changed:
            self._settled = True
            self._changed.notify_all()

    def hold(self, seconds: float) -> None:
        """Keep the next change away for so long, or until the next settled reading."""
        with self._changed:
            self._held_until = time.monotonic() + seconds

    @contextmanager
    def read(self, *, settled: bool, timeout_s: float, about_rows: bool = True) -> Iterator[None]:
        """Read the storage; ``settled``: only while published results belong to it. ``about_rows``: a question
        about them, and not who merely keeps the next change away.

        Raises:
            TimeoutError: the engine did not let go in time.
            Unavailable: nobody knows when it will.
        """
        with self._changed:
            self._questions += about_rows
            if settled:
                self._waiting_for_settled += 1
                self._held_until = 0.0
            try:
                free = self._changed.wait_for(
                    lambda: self._halted is not None or (not self._applying and (self._settled or not settled)),
                    timeout_s,
                )
            finally:
                if settled:
                    self._waiting_for_settled -= 1
            if not free:
                self._changed.notify_all()
                raise TimeoutError("the storage was busy for too long")
            if self._halted is not None:
                raise Unavailable(f"the storage is between two epochs: {self._halted}")
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


class _Shutting(BeforeWriting):
    """Shuts a gate, for a change; harmless to repeat within one."""

    def __init__(self, gate: StorageGate) -> None:
        self._gate = gate

    def __call__(self) -> None:
        self._gate.keep_out()
        self._gate.shown.shut()

    def but_for_gate(self) -> Gate:
        if not self._gate.is_asked:
            self()
            return NO_GATE
        self._gate.keep_out()
        return self._gate.shown.gate

    def end_beside(self) -> None:
        self._gate.shown.end_beside()


@dataclass(frozen=True, slots=True)
class Storage:
    """The graph, where it stands, and the gate before both."""

    graph: Graph
    position: Position
    gate: StorageGate = field(default_factory=StorageGate)
