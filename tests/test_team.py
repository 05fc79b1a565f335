"""The team of threads: every piece is done once, by whoever is free, and nobody is waited for before it begins."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numba as nb
import numpy as np
import pytest
from waiting import until

from graphtide.gpma.atomics import exchange, fetch_add, load
from graphtide.gpma.cores import usable_cores
from graphtide.gpma.team import _LOOKING, THREADS_MAX, Crew, Team, share

_jit = nb.njit(nogil=True, error_model="numpy")


@pytest.fixture(params=[1, 2, 5, 16])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    team = Team(request.param)
    yield team
    team.close()


@_jit
def _count_pieces(thread, cursor, done, by):  # type: ignore[no-untyped-def]
    while True:
        piece = fetch_add(cursor, 0, np.int64(1))
        if piece >= done.size:
            return
        done[piece] += 1
        by[piece] = thread


@_jit
def _rounds(crew, rounds, done, by):  # type: ignore[no-untyped-def]
    cursor = np.zeros(1, np.int64)
    for _ in range(rounds):
        cursor[0] = 0
        share(crew, _count_pieces, (cursor, done, by))


def test_every_piece_is_done_once_by_a_thread_of_the_crew(team: Team) -> None:
    done, by = np.zeros(100, np.int64), np.full(100, -1)
    _rounds(team.crew(), 500, done, by)
    assert (done == 500).all()
    assert by.min() >= 0 and by.max() < team.threads
    _rounds(team.crew(1), 1, done, by)
    assert (by == 0).all()


def test_several_callers_share_one_team(team: Team) -> None:
    """More callers than there are places for jobs: the others work alone."""
    done = np.zeros((40, 50), np.int64)
    callers = [
        threading.Thread(target=_rounds, args=(team.crew(), 300, row, np.zeros(50, np.int64))) for row in done
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (done == 300).all()


@_jit
def _inner(thread, cursor, total):  # type: ignore[no-untyped-def]
    while fetch_add(cursor, 0, np.int64(1)) < 20:
        fetch_add(total, 0, np.int64(1))


@_jit
def _outer(thread, crew, cursor, total):  # type: ignore[no-untyped-def]
    while fetch_add(cursor, 0, np.int64(1)) < 30:
        share(crew, _inner, (np.zeros(1, np.int64), total))


@_jit
def _nested(crew, total):  # type: ignore[no-untyped-def]
    share(crew, _outer, (crew, np.zeros(1, np.int64), total))


def test_shared_work_shares_work(team: Team) -> None:
    total = np.zeros(1, np.int64)
    for _ in range(20):
        _nested(team.crew(), total)
    assert total[0] == 20 * 30 * 20


@_jit
def _meet(thread, here, go):  # type: ignore[no-untyped-def]
    """Be seen, and stay until told to go."""
    fetch_add(here, 0, np.int64(1))
    while load(go, 0) == 0:
        pass


@_jit
def _hold(crew, here, go):  # type: ignore[no-untyped-def]
    share(crew, _meet, (here, go))


def test_helpers_that_are_busy_are_not_waited_for() -> None:
    team = Team(3)
    here, go = np.zeros(1, np.int64), np.zeros(1, np.int64)
    holding = threading.Thread(target=_hold, args=(team.crew(), here, go))
    holding.start()
    try:
        until(lambda: here[0] == 3)
        done, by = np.zeros(64, np.int64), np.full(64, -1)
        _rounds(team.crew(), 10, done, by)
        assert (done == 10).all()
        assert (by == 0).all()
    finally:
        go[0] = 1
        holding.join()
        team.close()


def slept(team: Team, seconds: float) -> bool:
    """Whether no helper of a team did anything for so long: neither worked, nor woke up to look for work."""

    def look() -> list[list[str]]:
        lines = [
            Path(f"/proc/self/task/{helper.native_id}/status").read_text().splitlines() for helper in team._helpers
        ]
        return [[line for line in of if line.startswith("State") or "ctxt_switches" in line] for of in lines]

    before = look()
    time.sleep(seconds)
    assert len(before) == team.threads - 1
    return look() == before and all("S (sleeping)" in states[0] for states in before)


def test_who_has_helped_soon_waits_without_looking() -> None:
    """A team that has nothing to do sleeps, and nobody is thought to look for work."""
    team = Team(4)
    done, by = np.zeros(64, np.int64), np.full(64, -1)
    try:
        _rounds(team.crew(), 2000, done, by)
        until(lambda: team._words[_LOOKING] == 0)
        until(lambda: slept(team, 0.1))
        _rounds(team.crew(), 10, done, by)
        assert (done == 2010).all()
    finally:
        team.close()


def test_helpers_help() -> None:
    """All threads must be inside at once for this to end."""
    team = Team(4)
    here, go = np.zeros(1, np.int64), np.zeros(1, np.int64)
    holding = threading.Thread(target=_hold, args=(team.crew(), here, go))
    holding.start()
    until(lambda: here[0] == 4)
    go[0] = 1
    holding.join()
    team.close()


@_jit
def _fail(thread, cursor, failing):  # type: ignore[no-untyped-def]
    while True:
        piece = fetch_add(cursor, 0, np.int64(1))
        if piece >= 50:
            return
        if piece == failing:
            raise ValueError("this piece")


@_jit
def _failing(crew, failing):  # type: ignore[no-untyped-def]
    share(crew, _fail, (np.zeros(1, np.int64), failing))


@_jit
def _take_too_much(thread, cursor, taken):  # type: ignore[no-untyped-def]
    while fetch_add(cursor, 0, np.int64(1)) < 50:
        taken[0] += np.empty(np.int64(1) << 60, np.uint8)[0]


@_jit
def _greedy(crew):  # type: ignore[no-untyped-def]
    share(crew, _take_too_much, (np.zeros(1, np.int64), np.zeros(1, np.int64)))


def test_work_that_raises_is_told(team: Team) -> None:
    with pytest.raises(ValueError, match="this piece"):
        _failing(team.crew(), 20)
    _failing(team.crew(), 50)
    with pytest.raises(MemoryError):
        _greedy(team.crew())


@_jit
def _from_temporaries(crew, n):  # type: ignore[no-untyped-def]
    """The arguments belong to nobody else: they must live until the work ends."""
    total = np.zeros(1, np.int64)
    for _ in range(n):
        share(crew, _inner, (np.zeros(1, np.int64), total))
        exchange(total, 0, total[0])
    return total[0]


def test_arguments_live_as_long_as_the_work(team: Team) -> None:
    assert _from_temporaries(team.crew(), 2000) == 40_000


def test_threads_end_with_the_team() -> None:
    others = set(threading.enumerate())

    def alive() -> list[str]:
        return sorted(thread.name for thread in set(threading.enumerate()) - others)

    team = Team(4)
    assert alive() == ["team-1", "team-2", "team-3"]
    team.close()
    assert alive() == []
    done = np.zeros(10, np.int64)
    _rounds(team.crew(), 3, done, np.zeros(10, np.int64))
    assert (done == 3).all()
    team.close()

    forgotten = Team(3)
    assert alive() == ["team-1", "team-2"]
    del forgotten
    gc.collect()
    until(lambda: alive() == [])


def test_without_threads_the_caller_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    team = Team(4)
    done = np.zeros(10, np.int64)
    _rounds(team.crew(), 3, done, np.zeros(10, np.int64))
    assert (done == 3).all()
    team.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_all_itself() -> None:
    team = Team(4)
    done = np.zeros(10, np.int64)
    _rounds(team.crew(), 1, done, np.zeros(10, np.int64))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _rounds(team.crew(), 100, done, np.zeros(10, np.int64))
            status = int(not (done == 101).all())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    team.close()


@pytest.mark.parametrize("threads", [0, -1, THREADS_MAX + 1])
def test_a_number_of_threads_that_makes_no_sense(threads: int) -> None:
    with pytest.raises(ValueError, match="a team has 1 to"):
        Team(threads)


def test_a_crew_has_no_more_threads_than_its_team() -> None:
    team = Team(2)
    assert [team.crew(n).threads for n in (None, 0, 1, 2, 9)] == [2, 1, 1, 2, 2]
    assert isinstance(team.crew(), Crew)
    team.close()


class TestCores:
    """What control groups grant."""

    @staticmethod
    def _write(root: Path, path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    @pytest.fixture(autouse=True)
    def _eight_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))

    def test_no_group(self, tmp_path: Path) -> None:
        assert usable_cores(tmp_path) == 8

    @pytest.mark.parametrize(
        ("text", "cores"),
        [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("3200000 100000", 8), ("nonsense", 8)],
    )
    def test_version_2(self, tmp_path: Path, text: str, cores: int) -> None:
        self._write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
        self._write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
        self._write(tmp_path, "sys/fs/cgroup/a/cpu.max", text + "\n")
        assert usable_cores(tmp_path) == cores

    @pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
    def test_version_1(self, tmp_path: Path, quota: str, cores: int) -> None:
        self._write(tmp_path, "proc/self/cgroup", "4:memory:/other\n3:cpu,cpuacct:/a\n")
        self._write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quota + "\n")
        self._write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
        assert usable_cores(tmp_path) == cores
