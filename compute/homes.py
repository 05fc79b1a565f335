"""Which processor is the home of each program that runs on either: where epochs as a whole take less time.

That depends on the program, the graph and the size of the batches (a deep graph takes a device many rounds, a
small batch costs it more to begin than the host to do), and it changes: so it is measured. A program's own time
does not say it: programs on different processors run side by side, and a single one on the host has the rows there
kept up to date in every epoch. So whole epochs are timed, by *division* (which programs are on the host) and by
the size of the batch, in powers of four; what the last ones took is compared with what they would have taken
otherwise.

Any move is a *trial*: after a few epochs that were not better it is taken back, and sooner where it has clearly
lost. Divisions that differ by one program are tried, and all programs on one side. A trial costs what its epochs
and moves took beyond what they would have taken at home. After it nothing is tried for many times as long, and the
same for longer still: twice as long with each time that it lost, and four times where it has lost clearly. Where
epochs take a fraction of what they did then, as after a graph was cleared, it is that fraction of all these times.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Division = frozenset[str]
"""The programs that are on the host."""

# Epochs that are compared, those of a trial that count, and after how many it is asked anew what to try; where one
# takes so many seconds, after fewer.
_RECENT = 64
_TRIAL = 8
_ASKED_EVERY = 32
_SLOW_S, _ASKED_EVERY_SLOW = 0.1, 4
# A new time counts for so much of the mean at least, and as so many times the mean at most: one epoch in fifty
# takes ten times as long, for reasons that lie with neither processor. Where so many in a row do, the graph has
# become another one, and the mean begins anew.
_SHARE, _MOST, _ANEW = 1 / 16, 2.0, 4
# What is tried since it was better when it was seen last must have been so much better; what stays after a trial,
# so much.
_GAIN, _TRIAL_GAIN = 0.8, 0.9
# A trial ends at once with an epoch that takes so many times as long as at home, and so many seconds more.
_HOPELESS, _HURTS_S, _COLD_HURTS_S = 4.0, 0.02, 0.05
# And with its third epoch, of which the first is cold, where they take so many times as long.
_LOST, _SEEN = 1.5, 2
# Who takes so many times as long has lost clearly: then it does so in any division.
_CLEARLY = 2.0
# Seconds of epochs before the first trial; and in multiples of what a trial has cost, before any other, and before
# the same.
_FIRST_S = 0.25
_REST, _WAIT = 50.0, 100.0
# Where it is known that epochs would take less, waiting comes to cost so many times the last trial first.
_REGRET = 5.0
# By how much longer it is waited each time that it lost, and lost clearly.
_LONGER, _LONGER_CLEARLY = 2.0, 4.0
# No longer than that, however often it has lost: the graph may have become another one.
_WAIT_MAX_S = 600.0


@dataclass(slots=True)
class _Mean:
    """Of seconds; ``n``: how many, as far as they count; ``n_high``: the last ones, which were too high."""

    seconds: float = 0.0
    n: int = 0
    n_high: int = 0

    def add(self, seconds: float) -> None:
        self.n_high = self.n_high + 1 if self.n and seconds > _MOST * self.seconds else 0
        if self.n_high == _ANEW:
            self.n = self.n_high = 0
        self.n += 1
        if self.n == 1:
            self.seconds = seconds
        else:
            self.seconds += max(_SHARE, 1 / self.n) * (min(seconds, _MOST * self.seconds) - self.seconds)


@dataclass(slots=True)
class _Tried:
    """Programs that were moved together for a trial, with batches of a size, when epochs took ``epoch_s`` at home:
    not again before ``rest_s`` have passed since it ended. ``wait_s``: how long that was to be at first."""

    ended_s: float = 0.0
    rest_s: float = 0.0
    wait_s: float = 0.0
    epoch_s: float = 0.0
    lost_clearly: bool = False


@dataclass(slots=True)
class _Trial:
    """Of a division instead of ``home``, at batches of a size; what it has cost so far."""

    home: Division
    there: Division
    size: int
    cost_s: float = 0.0
    counted: int = 0
    is_over: bool = False  # and lost: the programs are on their way back
    lost_clearly: bool = False


class Homes:
    """What epochs took, and what follows from it."""

    def __init__(self, may_move: Callable[[str], bool] = lambda _: True) -> None:
        """``may_move``: whether a program of this id is to be moved at all."""
        self._may_move = may_move
        self._programs: Division = frozenset()
        self._times: dict[tuple[Division, int], _Mean] = {}
        self._tried: dict[tuple[Division, int], _Tried] = {}  # by those that moved
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._trial: _Trial | None = None
        self._is_cold = False
        self._epochs = 0
        self._passed_s = 0.0  # of these
        # Of the last trial: when it ended, what it cost, and what epochs of its size took at home.
        self._rested_since_s = self._last_cost_s = self._last_epoch_s = 0.0
        self._last_size = 0

    def leaving(self, updates: int, seconds: float, on_device: Mapping[str, bool]) -> Division:
        """The programs that are to move to the other processor now, after an epoch of so many updates, which took
        so long as a whole.

        ``on_device``: by program that could move, whether it ran there.
        """
        programs = frozenset(id for id in on_device if self._may_move(id))
        here = frozenset(id for id in programs if not on_device[id])
        self._passed_s += seconds
        self._epochs += 1
        if programs != self._programs:
            self._begin(programs)
        if not programs:
            return frozenset()
        size = (updates.bit_length() + 1) // 2
        is_cold, self._is_cold = self._is_cold, False
        trial = self._trial
        if trial is not None and here != (trial.home if trial.is_over else trial.there):  # others moved them
            self._trial = trial = None
        if trial is not None and not trial.is_over:
            return self._goes_on(trial, size, seconds, is_cold=is_cold)
        if trial is not None:
            self._end(trial, size, seconds)
        if is_cold:
            return frozenset()
        self._note(here, size, seconds)
        asked_every = _ASKED_EVERY if seconds < _SLOW_S else _ASKED_EVERY_SLOW
        return frozenset() if self._epochs % asked_every else self._try(here)

    def moved(self, id: str, seconds: float) -> None:
        """The program has moved, which took so long."""
        self._is_cold = True
        if self._trial is not None:
            self._trial.cost_s += seconds

    def forget(self, id: str) -> None:
        """The program is no more."""
        self._tried = {key: tried for key, tried in self._tried.items() if id not in key[0]}
        if id in self._programs:
            self._begin(self._programs - {id})

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin(self, programs: Division) -> None:
        """With other programs than before, of whose epochs nothing is known."""
        self._programs = programs
        self._times.clear()
        self._recent.clear()
        self._trial, self._is_cold = None, True
        self._rested_since_s = self._passed_s
        self._last_cost_s = max(self._last_cost_s, _FIRST_S / _REST)

    def _note(self, here: Division, size: int, seconds: float) -> None:
        self._times.setdefault((here, size), _Mean()).add(seconds)
        self._recent.append(size)

    def _try(self, here: Division) -> Division:
        """What is to move for a trial now."""
        size = Counter(self._recent).most_common(1)[0][0]
        rested_s = self._passed_s - self._rested_since_s
        cost_s = self._last_cost_s * self._fraction(here, self._last_size, self._last_epoch_s)
        for there in self._others(here, size):
            tried, ratio = self._tried.get((there ^ here, size)), self._ratio(there, here)
            is_due = rested_s >= _REST * cost_s and (tried is None or self._is_due(tried, here, size))
            is_better = ratio is not None and ratio < _GAIN
            if is_due or (is_better and rested_s * (1 - ratio) >= _REGRET * cost_s):  # type: ignore[operator]
                for (division, _), mean in self._times.items():
                    if division == there:
                        mean.n = 0
                self._trial = _Trial(here, there, size)
                return there ^ here
        return frozenset()

    def _is_due(self, tried: _Tried, here: Division, size: int) -> bool:
        return self._passed_s - tried.ended_s >= tried.rest_s * self._fraction(here, size, tried.epoch_s)

    def _fraction(self, here: Division, size: int, then_s: float) -> float:
        """What epochs of a size take now of what they took when there was a trial; 1 at most, and where it is not
        known. So much of what that cost another one would."""
        now_s = self._mean_at(here, size)
        return 1.0 if now_s is None or now_s >= then_s else now_s / then_s

    def _others(self, here: Division, size: int) -> list[Division]:
        """Divisions that may be tried, in order: what is known to take least; single programs before all. All are
        not, where one of them has clearly lost by itself."""
        lost = {id for id in self._programs if self._has_clearly_lost(frozenset([id]), size)}
        moves = [frozenset([id]) for id in sorted(self._programs)]
        moves += [all for all in (here, self._programs - here) if len(all) > 1 and not lost & all]

        def expected(move: Division) -> float:
            ratio = self._ratio(here ^ move, here)
            return math.inf if ratio is None else ratio

        return [here ^ move for move in sorted(moves, key=expected)]

    def _has_clearly_lost(self, move: Division, size: int) -> bool:
        tried = self._tried.get((move, size))
        return tried is not None and tried.lost_clearly

    def _goes_on(self, trial: _Trial, size: int, seconds: float, *, is_cold: bool) -> Division:
        """What is to move after an epoch of a trial: nothing while it goes on, or where it has won."""
        at_home = self._mean_at(trial.home, size)
        expected = seconds if at_home is None else at_home
        trial.cost_s += seconds - expected
        hurts_s = _COLD_HURTS_S if is_cold else _HURTS_S  # the host may have had to catch up
        is_hopeless = seconds > max(_HOPELESS * expected, expected + hurts_s)
        if is_cold and not is_hopeless:
            return frozenset()
        self._note(trial.there, size, seconds)
        trial.counted += 1
        ratio = self._ratio(trial.there, trial.home)
        is_lost = ratio is not None and trial.counted >= _SEEN and ratio > _LOST
        if not (is_hopeless or is_lost or trial.counted >= _TRIAL):
            return frozenset()
        if is_hopeless or (ratio is not None and ratio > _TRIAL_GAIN):
            trial.is_over = True
            trial.lost_clearly = is_hopeless or (ratio is not None and ratio > _CLEARLY)
            return trial.there ^ trial.home
        self._trial = None
        for tried in self._tried.values():  # was held against another home
            tried.rest_s = tried.rest_s if tried.lost_clearly else 0.0
        self._put_off(trial)
        return frozenset()

    def _end(self, trial: _Trial, size: int, seconds: float) -> None:
        """After the first epoch at home again."""
        at_home = self._mean_at(trial.home, size)
        trial.cost_s += 0.0 if at_home is None else seconds - at_home
        self._trial = None
        self._put_off(trial)

    def _put_off(self, trial: _Trial) -> None:
        """Try nothing for a while, and the same for longer."""
        tried = self._tried.setdefault((trial.home ^ trial.there, trial.size), _Tried())
        longer = (_LONGER_CLEARLY if trial.lost_clearly else _LONGER) if trial.is_over else 0.0
        tried.wait_s = min(max(_WAIT * trial.cost_s, longer * tried.wait_s), _WAIT_MAX_S)
        tried.lost_clearly = trial.lost_clearly
        tried.ended_s, tried.rest_s = self._passed_s, tried.wait_s
        self._rested_since_s, self._last_cost_s = self._passed_s, max(0.0, trial.cost_s)
        at_home = self._mean_at(trial.home if trial.is_over else trial.there, trial.size)
        tried.epoch_s = self._last_epoch_s = at_home or 0.0
        self._last_size = trial.size

    def _ratio(self, one: Division, other: Division) -> float | None:
        """How many times as long as in ``other`` the recent epochs take in ``one``; None: those that take half of
        the time there, or more, are of sizes that have not been seen in both."""
        these = those = unseen = 0.0
        for size, n in Counter(self._recent).items():
            here, there = self._mean_at(one, size), self._mean_at(other, size)
            if here is not None and there is not None:
                these, those = these + n * here, those + n * there
            elif there is not None:
                unseen += n * there
        return these / those if those > unseen else None

    def _mean_at(self, division: Division, size: int) -> float | None:
        """Seconds of an epoch of a batch of about such a size; None: none was seen."""
        for near in (size, size - 1, size + 1):
            if (mean := self._times.get((division, near))) is not None:
                return mean.seconds
        return None
