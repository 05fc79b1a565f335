"""What the daemon says of itself: stages, the replay, the heartbeat, and systemd's watchdog."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from systemd_socket import told_to_systemd
from waiting import until

from graphtide.daemon import systemd
from graphtide.daemon.health import Health, Recovery, Stage
from graphtide.ops.areas.life import STAGES_OF_LIFE


def test_the_stages_are_those_of_the_metrics() -> None:
    assert get_args(Stage) == STAGES_OF_LIFE


def test_a_replay_is_over_when_an_epoch_holds_all_that_lay_there() -> None:
    recovery = Recovery()
    assert recovery.progress is None and not recovery.ends()
    recovery.read(None, 0)  # the source is away
    assert recovery.progress is None and recovery.stage == "recovering"
    recovery.read(200, 1)
    recovery.read(50, 2)
    assert recovery.progress == 0.75 and recovery.stats() == {"total": 200, "left": 50}
    recovery.published(2)
    assert not recovery.ends()
    recovery.read(0, 3)
    recovery.read(10, 4)  # what comes later is not of the replay
    assert not recovery.ends() and recovery.stage == "recovering"
    recovery.published(3)
    assert recovery.ends() and not recovery.ends(), "it ends once"
    assert recovery.stage == "running" and recovery.progress == 1


def test_where_nothing_lay_there_is_nothing_to_replay() -> None:
    recovery = Recovery()
    recovery.read(0, 0)
    assert recovery.progress == 1 and recovery.ends()


def test_ready_says_no_with_the_stage_until_the_replay_is_over_and_while_nobody_answers() -> None:
    health, answering = Health(10), False
    health.is_answering = lambda: answering
    health.enter("reading")
    health.advance(0.25)
    assert not health.ready().good
    facts = {"ready": False, "stage": "reading", "progress": 0.25, "answering": False}
    assert health.ready().facts == {**facts, "waiting": None}
    health.wait_for("the source")
    assert health.ready().facts == {**facts, "waiting": "the source"}
    health.enter("loading")
    assert health.progress is None
    health.enter("running")
    answering = True
    assert (health.ready().good, health.stage) == (False, "recovering")
    health.recovery.read(0, 0)
    health.recovery.ends()
    assert (health.ready().good, health.stage) == (True, "running")
    answering = False
    assert not health.ready().good and not health.ready().facts["answering"]
    answering = True
    health.enter("stopping")
    assert (health.ready().good, health.stage) == (False, "stopping")


def test_an_engine_that_does_not_go_round_is_stuck_but_only_while_it_should() -> None:
    now = 0.0
    health = Health(10, clock=lambda: now)
    now = 1000.0
    assert health.live().good, "a start takes as long as it takes"
    health.turn()
    now += 10
    assert health.live().good
    now += 1
    assert not health.live().good and health.live().facts["heartbeat_seconds"] == 11
    health.turn()
    assert health.live().good
    health.failed = True
    assert not health.live().good
    now += 100
    health.enter("stopping")
    assert health.live().good, "it ends by itself"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What systemd is told."""
    with told_to_systemd(tmp_path, monkeypatch) as messages:
        yield messages


def test_the_watchdog_hears_of_the_process_as_long_as_it_is_well(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True, True, False, True]
    given: list[bool] = []

    def alive() -> bool:
        given.append(answers[len(given)] if len(given) < len(answers) else False)
        return given[-1]

    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with systemd.watchdog(alive):
        until(lambda: len(given) > len(answers))
    systemd.notify("STATUS=over")
    until(lambda: "STATUS=over" in told)
    assert told.count("WATCHDOG=1") == 3 and set(given[4:]) == {False}


@pytest.mark.parametrize("allowed", [None, "0", "", "soon"])
def test_without_a_watchdog_nobody_is_told(
    told: list[str], monkeypatch: pytest.MonkeyPatch, allowed: str | None
) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    if allowed is not None:
        monkeypatch.setenv("WATCHDOG_USEC", allowed)
    with systemd.watchdog(lambda: True):
        assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", "1")  # it is another's
    assert systemd.watchdog_interval_s() is None
