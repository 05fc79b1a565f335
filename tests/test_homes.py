"""On which processor programs that run on either have their homes: whole epochs decide, and moves are rare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from graphtide.compute.homes import Homes

Seconds = Callable[[int], float]


@dataclass
class Costs:
    """What a program takes for so many updates."""

    host: Seconds
    device: Seconds


def fixed(host: float, device: float) -> Costs:
    return Costs(lambda _: host, lambda _: device)


@dataclass
class Machine:
    """Two processors that work at the same time, and programs that are moved between them as ``Homes`` says.

    ``apply_s``: what a batch takes while all programs are on the device, ``host_apply_s``: what it takes longer
    while one is not. ``move_s``: for a move. ``noise``: what an epoch is multiplied by, and what comes to it.
    """

    programs: Mapping[str, Costs]
    apply_s: float = 0.0
    host_apply_s: float = 0.0
    move_s: float = 0.005
    noise: Callable[[], tuple[float, float]] = lambda: (1.0, 0.0)
    homes: Homes = field(default_factory=Homes)
    on_host: set[str] = field(default_factory=set)
    took: float = 0.0
    moves: int = 0
    away: int = 0  # epochs with a program on the host

    def seconds(self, on_host: set[str], updates: int) -> float:
        """Of an epoch, without noise."""
        host = sum(self.programs[id].host(updates) for id in on_host)
        device = sum(each.device(updates) for id, each in self.programs.items() if id not in on_host)
        return self.apply_s + (self.host_apply_s if on_host else 0.0) + max(host, device)

    def epochs(self, n: int, updates: Callable[[int], int] = lambda _: 100) -> None:
        for k in range(n):
            by, more = self.noise()
            seconds = self.seconds(self.on_host, updates(k)) * by + more
            self.took += seconds
            self.away += bool(self.on_host)
            there = {id: id not in self.on_host for id in self.programs}
            for id in self.homes.leaving(updates(k), seconds, there):
                self.on_host ^= {id}
                self.homes.moved(id, self.move_s)
                self.took += self.move_s
                self.moves += 1


def alone(host: float, device: float, **others: object) -> Machine:
    return Machine({"ranks": fixed(host, device)}, **others)  # type: ignore[arg-type]


def restless(rng: np.random.Generator) -> Callable[[], tuple[float, float]]:
    """One epoch in fifty takes 6 ms longer."""
    return lambda: (rng.uniform(0.85, 1.25), 0.006 * (rng.random() < 0.02))


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", range(12))
def test_never_more_than_a_tenth_behind_the_better_processor(case: int, seed: int) -> None:
    """Whatever three programs, batches and moves take, once there was a minute of epochs, which stall at times. In
    that minute one case in a hundred is."""
    rng = np.random.default_rng((seed, case))
    device = np.exp(rng.uniform(np.log(1e-4), np.log(1e-2), 3))
    host = device * np.exp(rng.uniform(np.log(0.05), np.log(30.0), 3))
    machine = Machine(
        {f"p{k}": fixed(*costs) for k, costs in enumerate(zip(host.tolist(), device.tolist(), strict=True))},
        apply_s=float(rng.uniform(1e-4, 1e-3)),
        host_apply_s=float(rng.uniform(1e-4, 3e-3)),
        move_s=float(rng.uniform(1e-3, 0.03)),
        noise=restless(rng),
    )
    best = min(machine.seconds(there, 100) for there in (set(), {"p0", "p1", "p2"}))
    expected = best * 1.05 + 0.006 * 0.02  # what noise comes to on the mean
    n = int(60 / expected)
    machine.epochs(n)
    first = machine.took
    assert first < 1.5 * n * expected, (machine.on_host, machine.moves)
    machine.epochs(n)
    assert machine.took - first < 1.1 * n * expected, (machine.on_host, machine.moves)


@pytest.mark.parametrize("case", range(4))
def test_what_trials_cost_becomes_ever_less(case: int, seed: int) -> None:
    """Less than a hundredth of what is spent after a minute, wherever the host takes longer."""
    rng = np.random.default_rng((seed, case))
    device = np.exp(rng.uniform(np.log(3e-4), np.log(5e-3), 3))
    machine = Machine(
        {f"p{k}": fixed(t * rng.uniform(1.5, 40), t) for k, t in enumerate(device.tolist())},
        apply_s=2e-4,
        host_apply_s=float(rng.uniform(1e-4, 3e-3)),
        move_s=float(rng.uniform(1e-3, 0.03)),
    )
    home = machine.seconds(set(), 100)
    machine.epochs(int(60 / home))
    before, n = machine.took, int(60 / home)
    machine.epochs(n)
    assert machine.took - before < 1.01 * n * home


def test_a_program_ends_where_epochs_take_less_time() -> None:
    for host, device in ((0.001, 0.004), (0.004, 0.001)):
        for begins in (set(), {"ranks"}):
            machine = alone(host, device, on_host=set(begins))
            machine.epochs(4_000)
            assert bool(machine.on_host) == (host < device)
            assert machine.moves <= 1 + 2 * 4


def test_a_program_that_is_faster_alone_stays_where_the_whole_is_not() -> None:
    """A search takes the host half as long, but its rows must be kept up to date then, beside other programs."""
    machine = Machine({"bfs": fixed(5e-5, 1e-4), "ranks": fixed(4e-3, 5e-4)}, apply_s=2e-4, host_apply_s=2e-4)
    machine.epochs(20_000)
    assert not machine.on_host and machine.away < 400
    assert machine.took < 1.02 * 20_000 * machine.seconds(set(), 100)


def test_programs_go_together_where_none_pays_alone() -> None:
    """As long as one of them is on the host its rows are kept up to date for that alone."""
    machine = Machine({f"p{k}": fixed(1e-4, 5e-4) for k in range(3)}, host_apply_s=8e-4)
    assert machine.seconds({"p0"}, 100) > machine.seconds(set(), 100) > machine.seconds({"p0", "p1", "p2"}, 100)
    machine.epochs(20_000)
    assert machine.on_host == {"p0", "p1", "p2"}


def test_both_processors_share_programs_where_that_is_faster_than_either() -> None:
    """Components of a road network take a device many rounds, and ranks the host long."""
    machine = Machine({"components": fixed(2e-3, 2e-2), "ranks": fixed(3e-2, 3e-3)}, host_apply_s=1e-3)
    machine.epochs(4_000)
    assert machine.on_host == {"components"}
    assert machine.took < 1.15 * 4_000 * machine.seconds({"components"}, 100)


@pytest.mark.parametrize("begun", range(4))
def test_epochs_that_stall_send_nobody_away(begun: int) -> None:
    machine = alone(0.0016, 0.0004, noise=restless(np.random.default_rng(begun)))
    machine.epochs(20_000)
    assert not machine.on_host and machine.away < 150


def test_trials_that_fail_are_made_ever_later() -> None:
    machine = alone(0.02, 0.002)
    moves = []
    for _ in range(8):
        machine.epochs(4_000)
        moves.append(machine.moves)
    assert moves[0] >= 2
    assert moves[-1] - moves[-3] <= 2 < moves[-1] < 16


def test_a_trial_that_hurts_ends_at_once() -> None:
    """The first epoch after a move may be slow, as the host's rows may have to catch up; one that is as slow as
    this says enough."""
    machine = alone(0.1, 0.004)
    machine.epochs(400)
    assert not machine.on_host and machine.moves == 2
    assert machine.took < 400 * 0.004 + 0.1 + 3 * machine.move_s
    # Also where it says nothing of batches of other sizes.
    machine = Machine({"ranks": Costs(lambda size: 1e-6 * size, lambda _: 0.004)})
    machine.epochs(90, lambda k: 1 if k % 8 else 1_000_000)
    assert not machine.on_host and machine.moves == 2


def test_a_trial_that_is_lost_ends_soon() -> None:
    machine = alone(0.006, 0.001)
    machine.epochs(20_000)
    assert not machine.on_host and machine.moves >= 4
    # Of each trial a cold epoch and two that count, but no more.
    assert machine.away == machine.moves / 2 * 3


def test_small_batches_are_the_hosts_and_large_ones_the_devices() -> None:
    """And where they change by and by, it is known by then what each takes where."""
    machine = Machine({"ranks": Costs(lambda size: 3e-5 + 4e-8 * size, lambda size: 2e-4 + 1e-9 * size)})
    for _ in range(3):
        machine.epochs(10_000, lambda _: 10)
        assert machine.on_host
        machine.epochs(2_000, lambda _: 1_000_000)
        assert not machine.on_host
    assert machine.moves < 40


def test_mixed_batches_are_weighed_together() -> None:
    """Nine small ones, and a large one that decides: the program does not go to and fro."""
    machine = Machine({"ranks": Costs(lambda size: 3e-5 + 4e-8 * size, lambda _: 2e-4)}, on_host={"ranks"})
    machine.epochs(40_000, lambda k: 1_000_000 if k % 10 == 0 else 1)
    assert not machine.on_host
    assert machine.moves < 40


@pytest.mark.parametrize("is_on_host", [False, True])
def test_what_a_trial_cost_on_a_large_graph_counts_little_on_a_small_one(is_on_host: bool) -> None:
    """After it was cleared, say: else the worse processor would be kept for half a million epochs."""

    def costs(home: float, away: float) -> dict[str, Costs]:
        return {"ranks": fixed(home, away) if is_on_host else fixed(away, home)}

    machine = Machine(costs(0.1, 20.0), on_host={"ranks"} if is_on_host else set())
    machine.epochs(2_000)
    assert bool(machine.on_host) == is_on_host and machine.moves == 2
    machine.programs = costs(0.002, 0.0005)
    machine.epochs(30_000)
    assert bool(machine.on_host) != is_on_host
    # And where it is as large again, it is found out as soon.
    machine.programs = costs(0.1, 20.0)
    machine.epochs(200)
    assert bool(machine.on_host) == is_on_host


@pytest.mark.parametrize("is_on_host", [False, True])
@pytest.mark.parametrize(("home", "away"), [(0.05, 0.005), (1.0, 0.1), (10.0, 0.5)])
def test_a_graph_that_has_grown_is_soon_at_home_elsewhere(is_on_host: bool, home: float, away: float) -> None:
    """A thousand times, say: trials are not held against what epochs took before."""

    def costs(home: float, away: float) -> dict[str, Costs]:
        return {"ranks": fixed(home, away) if is_on_host else fixed(away, home)}

    machine = Machine(costs(0.0005, 0.001), on_host={"ranks"} if is_on_host else set())
    machine.epochs(20_000)
    assert bool(machine.on_host) == is_on_host
    took, moves = machine.took, machine.moves
    machine.programs = costs(home, away)
    machine.epochs(50)
    assert bool(machine.on_host) != is_on_host
    assert machine.moves <= moves + 3
    assert machine.took - took < (40 if home < 0.1 else 12) * home + 50 * away


def test_who_may_not_move_stays() -> None:
    machine = Machine(
        {"bfs": fixed(1e-4, 1e-3), "ranks": fixed(1e-4, 1e-3)}, homes=Homes(lambda id: id != "ranks")
    )
    machine.epochs(4_000)
    assert machine.on_host == {"bfs"}


def test_what_programs_come_and_go_begins_anew(seed: int) -> None:
    """Also amid a trial; and whoever is moved by others is not moved back."""
    rng = np.random.default_rng(seed)
    machine = alone(0.02, 0.02)
    machine.homes.forget("nobody")
    for _ in range(200):
        machine.epochs(int(rng.integers(1, 40)))
        if rng.random() < 0.3:
            machine.homes.forget("ranks")
        if rng.random() < 0.3:
            machine.on_host ^= {"ranks"}
        if rng.random() < 0.2:
            machine.programs = {"ranks": fixed(0.02, 0.02), f"p{rng.integers(9)}": fixed(0.01, 0.01)}
            machine.on_host &= set(machine.programs)
    machine.programs = {"ranks": fixed(0.001, 0.01)}
    machine.on_host &= {"ranks"}
    machine.epochs(20_000)
    assert machine.on_host
