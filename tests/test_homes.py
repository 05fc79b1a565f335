"""On which processor a program that runs on either has its home: measured times decide, and moves are rare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphtide.compute.homes import Homes

MOVE_S = 0.005


class Machine:
    """Two processors, and a program that is moved between them as ``Homes`` says."""

    def __init__(self, seconds: Callable[[bool, int], float], *, on_device: bool = True) -> None:
        """``seconds``: what an epoch of so many updates takes, on the device or not."""
        self.seconds = seconds
        self.homes = Homes()
        self.on_device = on_device
        self.moves = 0
        self.took = 0.0
        self.away = 0

    def epochs(self, n: int, updates: Callable[[int], int]) -> None:
        for k in range(n):
            size = updates(k)
            seconds = self.seconds(self.on_device, size)
            self.took += seconds
            self.away += not self.on_device
            if self.homes.leaves("ranks", size, seconds, on_device=self.on_device):
                self.on_device = not self.on_device
                self.homes.moved("ranks", MOVE_S)
                self.moves += 1
                self.took += MOVE_S


def test_a_program_ends_where_it_takes_less_time() -> None:
    for fast in (True, False):
        for begins in (True, False):
            machine = Machine(
                lambda on_device, _, fast=fast: 0.001 if on_device == fast else 0.004, on_device=begins
            )
            machine.epochs(2_000, lambda k: 100)
            assert machine.on_device == fast
            # One trial where it began in the right place, and seldom one more.
            assert machine.moves <= 1 + 2 * 3


def test_what_trials_and_moves_cost_is_little(seed: int) -> None:
    """A third slower there, with noise: never more than a tenth behind staying."""
    rng = np.random.default_rng(seed)
    machine = Machine(lambda on_device, _: (0.003 if on_device else 0.004) * rng.uniform(0.8, 1.2))
    machine.epochs(5_000, lambda k: 10_000)
    assert machine.on_device
    assert machine.took < 1.1 * 5_000 * 0.003


def test_trials_where_it_takes_many_times_as_long_cost_little_from_the_first() -> None:
    """Sixty times as long there: what a trial cost is a fiftieth of what the program takes until the next."""
    machine = Machine(lambda on_device, _: 0.00015 if on_device else 0.009)
    machine.epochs(20_000, lambda k: 100)
    assert machine.on_device and machine.moves >= 4
    assert machine.took < 1.04 * 20_000 * 0.00015


@pytest.mark.parametrize("begun", range(4))
def test_epochs_that_stall_send_nobody_away(begun: int) -> None:
    """One in fifty takes many times as long, on either processor."""
    rng = np.random.default_rng(begun)

    def seconds(on_device: bool, _: int) -> float:
        return (0.0004 if on_device else 0.0016) * rng.uniform(0.85, 1.3) + 0.006 * (rng.random() < 0.02)

    machine = Machine(seconds)
    machine.epochs(20_000, lambda k: 10_000)
    assert machine.on_device and machine.away < 150


def test_trials_that_fail_are_made_ever_later() -> None:
    machine = Machine(lambda on_device, _: 0.002 if on_device else 0.02)
    moves = []
    for _ in range(8):
        machine.epochs(2_000, lambda k: 1)
        moves.append(machine.moves)
    assert moves[0] >= 2
    assert moves[-1] - moves[-3] <= 2 < moves[-1] < 16


def test_a_trial_that_hurts_ends_at_once() -> None:
    """The first epoch after a move may be slow; one that is as slow as this says enough."""
    machine = Machine(lambda on_device, _: 0.004 if on_device else 0.1)
    machine.epochs(400, lambda k: 10_000)
    assert machine.on_device
    assert machine.moves == 2
    assert machine.took < 400 * 0.004 + 0.1 + 3 * MOVE_S
    # Also where it says nothing of batches of other sizes.
    machine = Machine(lambda on_device, size: 0.004 if on_device else 1e-6 * size)
    machine.epochs(60, lambda k: 1 if k % 8 else 1_000_000)
    assert machine.on_device and machine.moves == 2


def test_a_trial_that_is_lost_ends_soon() -> None:
    machine = Machine(lambda on_device, _: 0.001 if on_device else 0.006)
    machine.epochs(2_000, lambda k: 10_000)
    assert machine.on_device and machine.moves >= 4
    # Of each trial a cold epoch and two that count, but no more.
    assert machine.took <= 2_000 * 0.001 + machine.moves * MOVE_S + machine.moves / 2 * 3 * 0.005 + 1e-9


def test_small_batches_are_the_hosts_and_large_ones_the_devices() -> None:
    """And where they change by and by, it is known by then what each takes where."""

    def seconds(on_device: bool, updates: int) -> float:
        return 2e-4 + 1e-9 * updates if on_device else 3e-5 + 4e-8 * updates

    machine = Machine(seconds)
    for _ in range(3):
        machine.epochs(10_000, lambda k: 10)
        assert not machine.on_device
        machine.epochs(2_000, lambda k: 1_000_000)
        assert machine.on_device
    assert machine.moves < 40


def test_mixed_batches_are_weighed_together() -> None:
    """Nine small ones, and a large one that decides: the program does not go to and fro."""

    def seconds(on_device: bool, updates: int) -> float:
        return 2e-4 if on_device else 3e-5 + 4e-8 * updates

    machine = Machine(seconds, on_device=False)
    machine.epochs(20_000, lambda k: 1_000_000 if k % 10 == 0 else 1)
    assert machine.on_device
    assert machine.moves < 40


def test_programs_that_take_no_time_are_left_alone() -> None:
    machine = Machine(lambda on_device, _: 1e-6 if on_device else 1e-7)
    machine.epochs(10_000, lambda k: 1)
    assert machine.moves == 0


def test_what_is_forgotten_begins_anew() -> None:
    machine = Machine(lambda on_device, _: 0.02)
    machine.epochs(60, lambda k: 1)
    before = machine.moves
    machine.homes.forget("ranks")
    machine.homes.forget("nobody")
    machine.epochs(60, lambda k: 1)
    assert machine.moves >= before + 2
