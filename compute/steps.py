"""Runs by steps: what a run has a device do, it asks for, and goes on when that was begun.

So runs of several programs go on side by side, in one thread: what they ask for at the same time is begun in one
go, and each waits for its own when it has its turn again.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

T = TypeVar("T")


class Crowd(NamedTuple):
    """Calls of one kind, so many, that begin in one go."""

    of: Hashable
    n: int


class Call(Protocol):
    """What a run has a device do, and waits for by itself when it goes on."""

    @property
    def kind(self) -> Hashable:
        """Calls of one kind may begin in one go."""
        ...

    @property
    def crowd(self) -> Crowd | None:
        """With whom it begins as soon as all of them are asked for; None: with all calls of its kind, once every
        run has gone on."""
        ...

    def begin(self, others: Sequence[Self]) -> None:
        """Begin this call and others of its kind; waits for none of them.

        Raises:
            Exception: none of them counts as begun.
        """
        ...

    def carry_out(self) -> None:
        """Begin this call by itself, and wait for it: when the run goes on it need not.

        Raises:
            Exception: it has not begun, or it failed.
        """
        ...


Steps = Generator[Call, None, T]
"""A run: it yields its calls, each of which has been begun when it goes on, and returns what it comes to."""


def alone(steps: Steps[T]) -> T:
    """What a run comes to, each of its calls carried out by itself.

    Raises:
        Exception: what the run raises; it hears of a call that could not be begun, or failed, and may have an
            answer.
    """
    try:
        call = next(steps)
        while True:
            try:
                call.carry_out()
            except Exception as error:
                call = steps.throw(error)
            else:
                call = next(steps)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


def together(runs: Sequence[Steps[T]]) -> list[T | Exception]:
    """What runs come to that go on side by side: of each what it returned, or what it raised.

    A round begins what all of them ask for, calls of one kind in one go, and then each goes on to its next call or
    to its end, in their order. A crowd begins when its last call is asked for: a device has work then while other
    runs get there.
    """
    outcomes: dict[int, T | Exception] = {}
    asked: dict[int, Call] = {}
    crowds: dict[Hashable, list[int]] = {}
    early: dict[int, Exception | None] = {}

    def go_on(place: int, error: Exception | None) -> None:
        run = runs[place]
        try:
            asked[place] = next(run) if error is None else run.throw(error)
        except StopIteration as end:
            outcomes[place] = end.value
        except Exception as raised:
            outcomes[place] = raised
        else:
            come(place, asked[place])

    def come(place: int, call: Call) -> None:
        crowd = call.crowd
        if crowd is None:
            return
        there = crowds.setdefault((call.kind, crowd), [])
        there.append(place)
        if len(there) == crowd.n:
            early.update(_begun({of_crowd: asked[of_crowd] for of_crowd in there}))

    for place in range(len(runs)):
        go_on(place, None)
    while asked:
        late = {place: call for place, call in asked.items() if place not in early}
        begun = _begun(late) | early
        begun = {place: begun[place] for place in asked}
        for of_round in (asked, crowds, early):
            of_round.clear()
        for place, error in begun.items():
            go_on(place, error)
    return [outcomes[place] for place in range(len(runs))]


def _begun(asked: dict[int, Call]) -> dict[int, Exception | None]:
    """Begin these calls; why one could not be, by its place, in the order of places."""
    kinds: dict[Hashable, list[int]] = {}
    for place, call in asked.items():
        kinds.setdefault(call.kind, []).append(place)
    errors: dict[int, Exception | None] = dict.fromkeys(asked)
    for first, *others in kinds.values():
        try:
            asked[first].begin([asked[place] for place in others])
        except Exception as error:
            errors.update(dict.fromkeys((first, *others), error))
    return errors
