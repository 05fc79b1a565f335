"""The thread that writes changed results, a transaction for each epoch, or for several where that takes longer.

It is a reader of the log of changes like any subscriber: what it has not written yet is a place in that log, and
what it writes are the values of the newest epoch. So nothing is queued while the sink is slow or away; what was
missed is merged, and where the log does not reach back so far, every vertex is written.

A transaction carries its own progress (``records.End``). What a start goes on from:

- Nothing is written before the replay is over: from then on the present covers everything that was ever written.
- The checkpoint says behind which transaction it was made (``Writer.fact``). What was written of a vertex behind
  that, or what the replay changed of it since the checkpoint, readers may know otherwise than it is now; of others
  they know the checkpoint's value, which is still theirs. So those of both kinds are written. (Those that the
  replay changed would not be enough: what changed before the crash, and back again in an epoch that is cut
  otherwise now, is not among them.)
- For that, whatever changed between that transaction and the checkpoint must have been written behind it. So it
  is where the newest end is not of an earlier epoch than the checkpoint; unless small changes were left out, or
  every vertex was written at once: one that came before the checkpoint and went after it is in no record then.
- What stands behind that transaction must still be whole: compaction forgets tombstones, and of a vertex that went
  before the crash and came back in the replay, as the checkpoint has it, nothing would tell that readers lack it.
- Where that is not to be had, every vertex is written, and a tombstone for every other that the sink has. So it is
  where somebody took away the newest of what was written, before a start or at any time. What is written then is
  of another series: numbers and places come again, and checkpoints from before do not mean these.

Programs come and go, with ``keep`` and ``drop`` and with the configuration. Of one that was not in the
transaction before, every vertex is written, as of one whose state does not come from the checkpoint. Of one that
is not there any more, every vertex is taken back: whoever lived then lives now, or has gone since, or is among
those that are written at a start. These tombstones are for vertices that came meanwhile, too, of which readers
know nothing: so whoever changed since a checkpoint is among what was written behind it, whether a program went and
came back or not.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...gpma.index.ids import IdColumn
from ..backoff import Backoff
from ..errors import GraphtideError, Unavailable
from ..os_errors import said, why
from ..serve.values import Values
from .records import Changed, Chunk, End, Epoch, OutgoingEncoding
from .sink import Fenced, Place, PlaceLost, Sink
from .view import Found, LogLost, View, Wanted

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""So often the thread looks whether there is anything to do, if nobody tells."""
DRAIN_SECONDS = 5.0
"""At the end it gets so long to write what is left."""
END_SECONDS = 45.0
"""And so long to end, once it is broken off: all that it may wait for fails by then."""
PAUSE_SECONDS = 0.01
FIRST_PUBLICATION = 1
"""Its number in the log of changes: it is that of the checkpoint."""

_NOTHING = Values(np.empty(0), np.empty(0, bool))


@dataclass(frozen=True, slots=True)
class Resume:
    """What a checkpoint says of what was written: its epoch, and behind which transaction and place of which sink
    that was. ``programs``: those whose states were taken over from it, and were written. ``threshold``: changes of
    values that were no larger a part of them were left out."""

    epoch: Epoch
    sink: str
    series: str
    sequence: int
    place: Place
    programs: tuple[str, ...]
    threshold: float


@dataclass(frozen=True, slots=True)
class Written:
    """So far, of this process: transactions, records, epochs that were merged with a later one, transactions with
    every vertex, and failures."""

    transactions: int = 0
    records: int = 0
    merged: int = 0
    snapshots: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class _Try:
    """A transaction that is being written; whether it was may not be known."""

    found: Found
    end: End
    records: int


class Writer:
    """Writes results; ``start`` when an epoch is published. Its thread alone uses the sink."""

    def __init__(
        self,
        sink: Sink,
        view: View,
        encoding: OutgoingEncoding,
        *,
        name: str,
        interval_s: float,
        threshold: float,
        resume: Resume | None,
    ) -> None:
        """
        Args:
            name: of the sink, for people, and to know it again.
            interval_s: between two transactions, at least.
            threshold: changes of values that are no larger a part of them are left out.
            resume: None where the first epoch is not that of a checkpoint.
        """
        self.name = name
        self._sink = sink
        self._view = view
        self._encoding: OutgoingEncoding = encoding
        self._interval_s = interval_s
        self._threshold = threshold
        self._resume = resume
        self._run = uuid.uuid4().hex
        self._news = threading.Event()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._work, name="results", daemon=True)
        self._opened = self._adopted = False
        self._last: End | None = None
        self._found: End | None = None  # the newest end when we began
        self._series = self._run
        self._try: _Try | None = None
        self._place: int | None = None
        self._extra: Mapping[str, IdColumn] = {}
        self._knows_extra = False
        # Of which programs readers know anything, and of which all of the publication at the place.
        self._told_of: frozenset[str] = frozenset()
        self._current: frozenset[str] = frozenset()
        self._next_at = 0.0
        self._written = Written()
        self._trouble: str | None = None
        # For those who ask how far behind we are.
        self._told: Epoch = (0, 0)
        self._behind_since: float | None = None
        self._first_number = 0
        # What was written last, and the place behind it: both at once, for the thread that makes a checkpoint.
        self._safe: tuple[End, Place] | None = None

    # -- for other threads --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def told(self, epoch: Epoch) -> None:
        """An epoch is published."""
        if epoch != self._told:
            if self._behind_since is None:
                self._behind_since = self._due_from()
            if self._told == (0, 0):
                self._first_number = epoch[1]
            self._told = epoch
        self._news.set()

    def fact(self) -> dict[str, Any] | None:
        """For a checkpoint of the epoch at hand, what a later start needs to know (``Resume``); None: nothing is
        written yet."""
        safe = self._safe
        if safe is None:
            return None
        last, place = safe
        if self._threshold and last.epoch != self._told:
            return None
        return {
            "sink": self.name,
            "series": last.series,
            "sequence": last.sequence,
            "place": place,
            "programs": list(last.programs),
            "threshold": self._threshold,
        }

    def stats(self) -> dict[str, Any]:
        """What ``stats`` shows."""
        last, written = self._last, self._written
        return {
            "to": self.name,
            "epoch": None if last is None else last.epoch,
            "sequence": None if last is None else last.sequence,
            "lag": {"epochs": self.lag_epochs, "seconds": self.lag_seconds},
            "written": {name: getattr(written, name) for name in Written.__slots__},
            "trouble": self._trouble,
        }

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written now, in words; None: it can."""
        return self._trouble

    @property
    def written(self) -> Written:
        return self._written

    @property
    def lag_epochs(self) -> int:
        """How many published epochs are not written yet."""
        last = self._last
        if last is None or last.run != self._run:
            return self._told[1] - self._first_number + 1 if self._told != (0, 0) else 0
        return max(self._told[1] - last.epoch[1], 0)

    @property
    def lag_seconds(self) -> float:
        """How long something has been due to be written."""
        since = self._behind_since
        return 0.0 if since is None else max(time.monotonic() - since, 0.0)

    def begin_grace(self) -> Callable[[], bool]:
        """See ``View.begin_grace``."""
        return self._view.begin_grace()

    def drain(self) -> None:
        """No epoch will follow: write what is left, if that goes soon. Then nothing more is written."""
        self._closing.set()
        self._news.set()
        drained = not self._thread.is_alive() or self._drained.wait(DRAIN_SECONDS)
        if not drained or self._trouble is not None:
            log.warning("results of the last epochs are not in %s yet; the next start writes them", self.name)
        self._abandoned.set()

    def close(self) -> None:
        """End."""
        self._closing.set()
        self._abandoned.set()
        self._news.set()
        self._sink.break_off()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        backoff = Backoff()
        while not self._abandoned.is_set():
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
            try:
                while not self._abandoned.is_set() and self.step():
                    backoff.reset()
                if self._closing.is_set():
                    break
            except Unavailable:
                self._abandoned.wait(PAUSE_SECONDS)
                self._news.set()
            except Fenced as error:
                self._fails(error)
                log.error("%s: this daemon writes no results any more, until it is started again", error.message)
                break
            except Exception as error:  # whatever it is, nothing is lost: it is asked about, and made up for
                self._fails(error)
                if self._closing.is_set():
                    break
                self._closing.wait(backoff.wait_s())
                self._news.set()
        self._drained.set()
        self._sink.close()

    def step(self) -> bool:
        """For the thread: write what there is to be written now; whether there was anything.

        Raises:
            Exception: the sink fails. It is open no more.
        """
        if not self._opened:
            self._open()
        snapshot = self._view.snapshot()
        programs = set(self._view.programs(snapshot))
        same = programs == self._told_of == self._current
        known = same and snapshot.sequence == self._place and not self._extra
        if known or snapshot.stats.get("stage") == "recovering":
            return False
        wait_s = self._next_at - time.monotonic()
        if wait_s > 0 and not self._closing.is_set():
            self._closing.wait(min(wait_s, LOOK_SECONDS))
            self._news.set()
            return False
        if self._place is None and not self._knows_extra:
            self._extra, self._knows_extra = self._sink.ids_since(None), True
        try:
            found = self._view.look(Wanted(self._place, self._extra, self._told_of, self._current))
        except LogLost:
            self._place, self._knows_extra = None, False
            return True
        due, self._next_at = self._next_at, time.monotonic() + self._interval_s
        try:
            return self._write(found)
        except Exception:
            self._next_at = due  # what failed is tried again soon
            raise

    def _write(self, found: Found) -> bool:
        changed = [
            Changed(id, news.ids, news.values, news.gone) for id, news in found.news.items() if len(news)
        ] + [Changed(id, ids[np.arange(0)], _NOTHING, ids) for id, ids in found.forgotten.items() if len(ids)]
        records, snapshot, last = sum(map(len, changed)), found.snapshot, self._last
        if not records and last is not None and last.run == self._run and last.epoch == snapshot.epoch:
            self._place = snapshot.sequence  # the same epoch, published again
            self._caught_up(snapshot.epoch)
            return False
        sequence = 1 if last is None else last.sequence + 1
        end = End(
            sequence=sequence,
            run=self._run,
            epoch=snapshot.epoch,
            offsets=snapshot.offsets,
            since=None if last is None else last.epoch,
            epochs=None if last is None or last.run != self._run else found.epochs,
            snapshot=self._place is None,
            last_snapshot=sequence if last is None or self._place is None else last.last_snapshot,
            programs=tuple(found.news),
            stale={
                id: snapshot.programs[id].state.get("stale_since")
                for id in found.news
                if snapshot.programs[id].state.get("state", "fresh") != "fresh"
            },
            time_ms=time.time_ns() // 10**6,
            series=self._series,
        )
        self._try = _Try(found, end, records)
        self._sink.write(self._chunks(changed, snapshot.epoch), end)
        self._done(self._try)
        return True

    def _chunks(self, changed: Sequence[Changed], epoch: Epoch) -> Iterator[Chunk]:
        for item in changed:
            for chunk in item.chunks(epoch, self._encoding):
                if self._abandoned.is_set():
                    raise Unavailable("the daemon ends")
                yield chunk

    def _done(self, done: _Try) -> None:
        """It is known to be written."""
        found, before = done.found, self._written
        for news in found.news.values():
            news.remember()
        self._last, self._try = done.end, None
        self._place, self._extra, self._knows_extra = found.snapshot.sequence, {}, False
        self._told_of = self._current = frozenset(done.end.programs)
        self._safe = done.end, self._sink.place
        self._written = replace(
            before,
            transactions=before.transactions + 1,
            records=before.records + done.records,
            merged=before.merged + max((found.epochs or 0) - 1, 0),
            snapshots=before.snapshots + int(done.end.snapshot),
        )
        self._caught_up(found.snapshot.epoch)
        if self._trouble is not None:
            self._trouble = None
            log.info("results are written to %s again", self.name)

    def _caught_up(self, epoch: Epoch) -> None:
        self._behind_since = None if epoch == self._told else self._due_from()

    def _due_from(self) -> float:
        """Since when what comes now will be due; nothing is before the interval is over."""
        return max(time.monotonic(), self._next_at)

    def _open(self) -> None:
        """Open the sink, the first time or again, and find out what it has."""
        tried = self._try

        def accepts(last: End | None) -> bool:
            return not self._adopted or last is None or self._is_ours(last)

        last = self._sink.open(accepts)
        self._opened = True
        if not self._adopted:
            self._last = self._found = last
            self._adopt(last)
            self._adopted = True
        elif tried is not None and tried.end.is_same(last):
            self._next_at = time.monotonic() + self._interval_s
            self._done(tried)
        elif (last or self._last) is None:
            pass  # nothing was ever written
        elif last is None or not last.is_same(self._last):  # it was emptied, or its end was taken away
            log.warning("what was written last is not in %s any more: every vertex is written anew", self.name)
            self._last, self._place, self._knows_extra = last, None, False
            self._safe = None
            self._series = uuid.uuid4().hex
        self._try = None

    def _is_ours(self, last: End) -> bool:
        """Nobody has taken over since: this process wrote it, or it is no newer than what was there before that,
        which is what is left where somebody took away what came after it."""
        found = self._found
        if last.run == self._run:
            return True
        return found is not None and last.sequence <= found.sequence and last.time_ms <= found.time_ms

    def _adopt(self, last: End | None) -> None:
        """What readers may know otherwise than it is."""
        resume = self._resume
        self._place, self._knows_extra = None, False
        if last is not None:
            self._series = last.series
        if last is None or resume is None or resume.sink != self.name:
            return
        if last.series != resume.series:  # places and numbers are of what is not there any more
            return
        if last.sequence < resume.sequence:  # nor will they be when as many are written again
            self._series = self._run
            return
        if last.epoch < resume.epoch:
            return
        if last.last_snapshot > resume.sequence:
            return
        if self._threshold < resume.threshold:  # some of what was left out is to be written
            return
        try:
            self._extra = self._sink.ids_since(resume.place, last.sequence - resume.sequence)
        except PlaceLost as error:
            log.info("every vertex is written to %s anew: %s", self.name, error)
        else:
            self._place, self._knows_extra = FIRST_PUBLICATION, True
            self._told_of = frozenset(last.programs)
            self._current = self._told_of & {*resume.programs}

    def _fails(self, error: Exception) -> None:
        self._opened = False
        self._sink.close()
        self._written = replace(self._written, errors=self._written.errors + 1)
        trouble = said(error)
        if isinstance(error, GraphtideError):
            trouble = error.message
        elif isinstance(error, OSError) and error.strerror:
            trouble = why(error)
        if self._trouble is None and not self._abandoned.is_set():
            log.error("results cannot be written to %s: %s", self.name, trouble)
        self._trouble = trouble
