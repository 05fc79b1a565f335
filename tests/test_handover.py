"""The interpreter is handed over sooner while questions come, and not for long after."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from graphtide.daemon.serve import handover
from graphtide.daemon.serve.handover import Handover

USUAL_S = 0.001


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


def in_a_second(here: Handover, questions: int) -> float:
    for _ in range(questions):
        here.asked()
    found = sys.getswitchinterval()
    here.look()
    return found


def test_the_interval_is_short_while_questions_come() -> None:
    here = Handover(USUAL_S)
    assert in_a_second(here, 0) == pytest.approx(USUAL_S)
    assert in_a_second(here, 1000) == pytest.approx(handover.ASKED_SECONDS)
    assert in_a_second(here, handover.FEW) == pytest.approx(handover.ASKED_SECONDS)
    assert in_a_second(here, handover.FEW - 1) == pytest.approx(handover.ASKED_SECONDS), "of the second before"
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_few_questions_change_nothing() -> None:
    here = Handover(USUAL_S)
    for _ in range(5):
        assert in_a_second(here, handover.FEW - 1) == pytest.approx(USUAL_S)


def test_an_interval_that_is_shorter_stays() -> None:
    sys.setswitchinterval(0.0001)
    here = Handover(0.0001)
    assert in_a_second(here, 100) == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)
