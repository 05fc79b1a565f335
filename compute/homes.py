"""Which processor is the home of a program that runs on either: the one where its epochs take less time.

That depends on the program, the graph and the size of the batches (a deep graph takes a device many rounds, a
small batch costs it more to begin than the host to do), and it changes: so it is measured. Times are kept by
processor and by the size of the batch, in powers of four; what the last epochs took here is compared with what
they would have taken there. What is not known there is tried. Moves are rare: they wait until the program has
taken many times as long as a move does, or the last trial did; and what did not pay is forgotten, and so tried
again, ever later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

# Epochs that are compared, and those of a trial.
_RECENT = 64
_TRIAL = 8
# A new time counts for so much of the mean, and as so many times the mean at most: one epoch in fifty takes ten
# times as long, for reasons that lie with neither processor.
_SHARE, _MOST = 0.25, 2.0
# Who moves must be this much faster there, by what was measured before, or in a trial.
_GAIN, _TRIAL_GAIN = 0.8, 0.9
# A trial ends at once with an epoch that takes so many times as long as there, and so many seconds more.
_HOPELESS, _HURTS_S = 4.0, 0.02
# And with its third epoch, of which the first is cold, where they take so many times as long as those there.
_LOST, _SEEN = 1.5, 2
# Before a move a program has taken so many times as long as moves do, the first being thought to take so long; and
# before a trial, so many times as long as the last one and its moves.
_PATIENCE, _MOVE_S = 20.0, 0.01
_TRIAL_PATIENCE = 50.0
# Epochs after which the times of the other processor are forgotten: at first, and at most.
_MEMORY, _MEMORY_MAX = 512, 1 << 16


@dataclass(slots=True)
class _Kept:
    """What is known of one program. ``times``: seconds by (whether on the device, size of the batch)."""

    times: dict[tuple[bool, int], float] = field(default_factory=dict)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    move_s: float = _MOVE_S
    spent_s: float = 0.0
    trial_s: float = 0.0  # the last one, with what moves have taken since it began
    is_cold: bool = False
    trial: int = 0
    age: int = 0
    memory: int = _MEMORY


class Homes:
    """The programs' times, and what follows from them."""

    def __init__(self, may_move: Callable[[str], bool] = lambda _: True) -> None:
        """``may_move``: whether a program of this id is to be moved at all."""
        self._may_move = may_move
        self._kept: dict[str, _Kept] = {}

    def leaves(self, id: str, updates: int, seconds: float, *, on_device: bool) -> bool:
        """Whether a program is to move to the other processor, after an epoch of so many updates, which took it
        so long on this one."""
        if not self._may_move(id):
            return False
        kept = self._kept.setdefault(id, _Kept())
        kept.spent_s += seconds
        kept.age += 1
        if kept.trial:
            kept.trial_s += seconds
        size = (updates.bit_length() + 1) // 2
        is_cold, kept.is_cold = kept.is_cold, False
        there = kept.times.get((not on_device, size), seconds)
        is_hopeless = kept.trial > 0 and seconds > max(_HOPELESS * there, there + _HURTS_S)
        if is_cold and not is_hopeless:  # the first epoch after a move
            return False
        before = kept.times.get((on_device, size), seconds)
        kept.times[on_device, size] = before + _SHARE * (min(seconds, _MOST * before) - before)
        kept.recent.append(size)
        if kept.trial:
            kept.trial -= 1
            is_hopeless = is_hopeless or _is_lost(kept, on_device)
            kept.trial = 0 if is_hopeless else kept.trial
            return kept.trial == 0 and _ends_trial(kept, on_device, is_hopeless=is_hopeless)
        if kept.spent_s < _PATIENCE * kept.move_s:
            return False
        elsewhere = _would_take(kept, not on_device)
        if elsewhere is None:
            if kept.spent_s < _TRIAL_PATIENCE * kept.trial_s:
                return False
            kept.trial, kept.trial_s = _TRIAL, 0.0
            return True
        if kept.age >= kept.memory:
            kept.times = {key: value for key, value in kept.times.items() if key[0] == on_device}
            kept.age = 0
        here = _would_take(kept, on_device)
        return here is not None and elsewhere < _GAIN * here

    def moved(self, id: str, seconds: float) -> None:
        """The program has moved, which took so long."""
        kept = self._kept[id]
        kept.move_s += _SHARE * (seconds - kept.move_s)
        kept.trial_s += seconds
        kept.spent_s = 0.0
        kept.is_cold = True

    def forget(self, id: str) -> None:
        """The program is no more."""
        self._kept.pop(id, None)


def _is_lost(kept: _Kept, on_device: bool) -> bool:
    """Whether a trial that goes on has shown enough."""
    if kept.trial > _TRIAL - _SEEN:
        return False
    here, there = _would_take(kept, on_device), _would_take(kept, not on_device)
    return here is not None and there is not None and here > _LOST * there


def _ends_trial(kept: _Kept, on_device: bool, *, is_hopeless: bool) -> bool:
    """Whether the program goes back where it came from."""
    here, there = _would_take(kept, on_device), _would_take(kept, not on_device)
    if not is_hopeless and (here is None or there is None or here < _TRIAL_GAIN * there):
        kept.memory = _MEMORY
        return False
    kept.memory = min(2 * kept.memory, _MEMORY_MAX)
    kept.age = 0
    return True


def _would_take(kept: _Kept, on_device: bool) -> float | None:
    """Seconds of the recent epochs on a processor; None: it has not been seen with batches of such sizes."""
    total = 0.0
    for size in kept.recent:
        found = [
            kept.times[on_device, near] for near in (size, size - 1, size + 1) if (on_device, near) in kept.times
        ]
        if not found:
            return None
        total += found[0]
    return total
