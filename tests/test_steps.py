"""Runs by steps: side by side in one thread, calls of one kind begun in one go, errors told to whom they hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from graphtide.compute.steps import Crowd, Steps, alone, together


class Asked:
    """A call that notes what was begun, as the names of those begun in one go; and may fail."""

    def __init__(
        self,
        name: str,
        kind: str,
        begun: list[list[str]],
        error: Exception | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.name, self.kind, self.begun, self.error, self.crowd = name, kind, begun, error, crowd

    def begin(self, others: Sequence[Asked]) -> None:
        self.begun.append([call.name for call in (self, *others)])
        for call in (self, *others):
            if call.error is not None:
                raise call.error

    def carry_out(self) -> None:
        self.begin(())


def asking(*calls: Asked) -> Steps[str]:
    """A run that asks for these calls, one after the other; what it comes to names them."""
    yield from calls
    return "+".join(call.name for call in calls)


@pytest.fixture
def begun() -> list[list[str]]:
    return []


def test_calls_of_one_kind_begin_in_one_go_round_by_round(begun: list[list[str]]) -> None:
    def call(name: str, kind: str) -> Asked:
        return Asked(name, kind, begun)

    runs = [
        asking(call("a1", "push"), call("a2", "pass")),
        asking(),
        asking(call("c1", "pass")),
        asking(call("d1", "push"), call("d2", "pass"), call("d3", "push")),
    ]
    assert together(runs) == ["a1+a2", "", "c1", "d1+d2+d3"]
    assert begun == [["a1", "d1"], ["c1"], ["a2", "d2"], ["d3"]]


def test_each_run_goes_on_when_all_calls_of_its_round_were_begun(begun: list[list[str]]) -> None:
    seen = []

    def looking(name: str) -> Steps[None]:
        yield Asked(name, name, begun)
        seen.append((name, len(begun)))

    together([looking(name) for name in "abc"])
    assert seen == [("a", 3), ("b", 3), ("c", 3)]


def test_a_crowd_begins_when_its_last_call_is_asked_for(begun: list[list[str]]) -> None:
    """And goes on with all others: a crowd that is not there as a whole begins as others of its kind do."""
    seen: list[Any] = []

    def coming(name: str, crowd: Crowd | None, then: Crowd | None = None) -> Steps[str]:
        seen.append([*begun])
        yield Asked(name, "pass", begun, crowd=crowd)
        yield Asked(f"{name}2", "pass", begun, crowd=then)
        return name

    two, three = Crowd("few", 2), Crowd("many", 3)
    runs = [
        coming("a", two),
        coming("b", three, two),
        coming("c", two, two),
        coming("d", None),
        coming("e", three),
    ]
    assert together(runs) == [*"abcde"]
    assert begun == [["a", "c"], ["b", "d", "e"], ["b2", "c2"], ["a2", "d2", "e2"]]
    assert seen == [[], [], [], [["a", "c"]], [["a", "c"]]]


def test_a_crowd_that_cannot_begin_hears_of_it_in_its_turn(begun: list[list[str]]) -> None:
    error = RuntimeError("does not begin")
    two = Crowd("few", 2)
    runs = [
        asking(Asked("a", "one", begun, crowd=two)),
        asking(Asked("b", "one", begun, error, two)),
        asking(Asked("c", "one", begun)),
    ]
    assert together(runs) == [error, error, "c"]
    assert begun == [["a", "b"], ["c"]]


def test_who_could_not_begin_hears_of_it_and_may_go_on(begun: list[list[str]]) -> None:
    error = RuntimeError("does not begin")

    def answering(call: Asked) -> Steps[str]:
        try:
            yield call
        except RuntimeError as heard:
            yield Asked("instead", "other", begun)
            return f"heard {heard}"
        return "began"

    runs = [
        answering(Asked("a", "one", begun)),
        asking(Asked("b", "one", begun, error)),
        answering(Asked("c", "two", begun)),
    ]
    assert together(runs) == ["heard does not begin", error, "began"]
    assert begun == [["a", "b"], ["c"], ["instead"]]


def test_a_run_that_fails_leaves_others_as_they_are(begun: list[list[str]]) -> None:
    error = ValueError("of one")

    def failing(at: int) -> Steps[str]:
        for step in range(at):
            yield Asked(f"f{step}", "one", begun)
        raise error

    for at in (0, 1):
        begun.clear()
        runs: list[Any] = [failing(at), asking(Asked("b0", "one", begun), Asked("b1", "one", begun))]
        assert together(runs) == [error, "b0+b1"]
        assert begun == [["f0", "b0"][1 - at :], ["b1"]]


def test_what_no_run_may_hold_back_ends_all(begun: list[list[str]]) -> None:
    def interrupted() -> Iterator[Any]:
        yield Asked("a", "one", begun)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together([interrupted()])  # type: ignore[list-item]


def test_a_run_alone(begun: list[list[str]]) -> None:
    assert alone(asking(Asked("a", "one", begun), Asked("b", "one", begun))) == "a+b"
    assert begun == [["a"], ["b"]]
    with pytest.raises(ValueError, match="does not begin"):
        alone(asking(Asked("c", "one", begun, ValueError("does not begin"))))
