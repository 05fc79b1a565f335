"""Edges that expire: whatever epochs a stream is cut into, and wherever it is ended and begun again, the graph is
the naive one, and what was answered once is answered again."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from windowed import History, Kept, Life, Row, Settings, Shown, event_state

from graphtide.daemon.records.stream import Partition
from graphtide.gpma.edges import Op


def random_rows(rng: np.random.Generator, now: int, n_vertices: int, number: int, n_partitions: int) -> list[Row]:
    """A record: updates of pairs that belong to this partition, most at about this time."""
    rows: list[Row] = []
    for _ in range(int(rng.integers(1, 6))):
        src = int(rng.integers(0, n_vertices // n_partitions)) * n_partitions + number
        dst = int(rng.integers(0, n_vertices))
        # Both ends of an undirected edge name one partition: only pairs of it are written.
        dst = dst - dst % n_partitions + number
        at = now - int(rng.integers(0, 8)) * int(rng.integers(0, 8)) * (rng.random() < 0.4)
        at += int(rng.integers(20, 400)) * (rng.random() < 0.02)
        kind = rng.choice([Op.INSERT, Op.DELETE, Op.INSERT_VERTEX, Op.DELETE_VERTEX], p=[0.75, 0.15, 0.05, 0.05])
        rows.append((int(kind), src, dst if kind <= Op.INSERT else 0, at))
    return rows


def settings_of(rng: np.random.Generator) -> Settings:
    window: dict[str, int] = {"length": int(rng.integers(1, 60))}
    if rng.random() < 0.35:
        window = {"count": int(rng.integers(1, 30))}
    return Settings(
        **window,
        lateness=int(rng.integers(0, 10)) * int(rng.random() < 0.5),
        idle=float(rng.choice([3, 8, 1e9])),
        ahead=int(rng.choice([10, 50, 10**9])),
        directed=bool(rng.random() < 0.6),
        isolated=bool(rng.random() < 0.4),
        encoding=str(rng.choice(["msgpack", "json"])),
        vertices_max=int(rng.choice([12, 1000])),
    )


def play(seed: int, folder: Path) -> None:
    """One stream, from its beginning to its end."""
    rng = np.random.default_rng(seed)
    settings, n_partitions = settings_of(rng), int(rng.integers(1, 4))
    history = History(n_partitions)
    seen: dict[tuple[tuple[str, int], ...], Shown] = {}
    kept: Kept | None = None
    life = Life(settings, history, rng, folder, None)
    wall, silent = 0, -1
    try:
        for turn in range(150):
            wall += int(rng.integers(0, 5)) + int(rng.integers(0, 60)) * (rng.random() < 0.03)
            if rng.random() < 0.1:
                silent = int(rng.integers(-n_partitions, n_partitions))
            for number in range(n_partitions):
                if number != silent and rng.random() < 0.5:
                    rows = random_rows(rng, wall, 12, number, n_partitions)
                    for some in [rows] if settings.encoding == "msgpack" else [[row] for row in rows]:
                        history.write(number, some)
            life.wall = wall
            for _ in range(int(rng.integers(0, 3))):
                life.read()
            for _ in range(int(rng.integers(0, 4))):
                life.epoch(int(rng.choice([1, 3, 1000])))
                if not life.window.is_due:
                    place = tuple(sorted((str(p), offset) for p, offset in life.shown.items()))
                    looks = life.looks()
                    assert looks == life.expected(), f"seed {seed}, turn {turn}, {settings}"
                    assert seen.setdefault(place, looks) == looks, f"seed {seed}, turn {turn}, {settings}: again"
            if rng.random() < 0.05:
                kept = life.keep()
            if rng.random() < 0.05:
                life.end()
                life = Life(settings, history, rng, folder, kept)
                life.wall = wall
        while life.left or life.queue._items or life.window.is_due:
            life.read()
            life.epoch(1000)
        assert life.looks() == life.expected(), f"seed {seed}, at the end, {settings}"
        late = sum(report.late for report in life.reports)
        assert late == life.naive.late - life.late_before, f"seed {seed}, {settings}: late upserts"
    finally:
        life.end()


@pytest.mark.timeout(3600)  # a thousand streams take ten minutes
def test_any_stream_gives_the_naive_graph(seed: int, run_long: bool, tmp_path: Path) -> None:
    for number in range(1000 if run_long else 6):
        folder = tmp_path / str(number)
        folder.mkdir()
        play(seed + number, folder)


def test_what_lay_too_far_ahead_once_does_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of when it was decoded, whatever that says when the step is taken."""
    looks = count(0, 20)
    monkeypatch.setattr(Life, "_wall_clock", lambda _: next(looks) / 1000)
    history = History(1)
    history.write(0, [(int(Op.INSERT), 2, 3, 25)])
    for _ in range(2):
        life = Life(Settings(length=100, ahead=10), history, np.random.default_rng(0), tmp_path, None)
        while life.left or life.queue._items:
            life.read()
            life.epoch(1000)
        refused = [letter.reason for report in life.reports for letter in report.bad]
        edges, _ = life.looks()
        life.end()
        assert (refused, edges) == (["in-future"], frozenset())


class Threes:
    """Says three whatever it is asked for."""

    def integers(self, low: int, high: int) -> int:
        return 3


def test_where_ids_run_out_within_a_step_a_replay_drops_nothing_else(tmp_path: Path) -> None:
    """What is behind event time, but not too late, is last in a step, and waits for ids of its first records."""
    settings = Settings(length=100, idle=3.0, vertices_max=4)
    insert, gone = int(Op.INSERT), int(Op.DELETE_VERTEX)
    history = History(2)

    def lived(*came: tuple[int, list[Row]], turns: int) -> None:
        for number, rows in came:
            history.write(number, rows)
        for _ in range(turns):
            life.read()
            while life.epoch(1000):
                pass

    life = Life(settings, history, Threes(), tmp_path, None)
    lived((0, [(insert, 0, 1, 0)]), (1, [(insert, 2, 3, 0)]), turns=6)
    lived((0, [(insert, 0, 1, 500)]), turns=1)
    assert event_state(life).idle == {Partition("t", 1)}
    lived(
        (0, [(insert, 0, 1, 900)]),
        (0, [(gone, 2, 0, 0)]),
        (0, [(gone, 3, 0, 0)]),
        (1, [(insert, 4, 5, 450)]),
        turns=1,
    )
    looks = life.looks()
    assert looks == life.expected() == ({(0, 1), (4, 5)}, {0, 1, 4, 5})
    life.end()
    life = Life(settings, history, Threes(), tmp_path, None)
    lived(turns=9)
    assert life.looks() == looks
    life.end()
