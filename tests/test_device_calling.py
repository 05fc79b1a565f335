"""Calls that end on the host: what a kernel lists is taken over when its words are there, and not otherwise."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

N_VERTICES, ROOM = 40, 12
UNREACHED = np.uint64(2**64 - 1)


class TakingCall:
    """A caller that takes, and what would be its kernel: words that a test writes."""

    def __init__(self, cupy: ModuleType) -> None:
        from graphtide.compute.device.taking import N_SAID, N_TOLD, Taking
        from graphtide.gpma.device.calling import Caller

        self.taking = Taking()
        self.caller = Caller(N_TOLD, cupy.cuda.Stream(), self.taking.then)
        self.taking.bind(self.caller.said, np.zeros(5, np.uint64), 0)
        self.list = np.zeros((ROOM, 2), np.uint64)
        self.taking.read_from(self.list, ROOM)
        self.n_said = N_SAID
        self.kept = np.full(N_VERTICES, UNREACHED)

    def ends(self, vertices: np.ndarray, words: np.ndarray, *, gave_up: int = 0) -> tuple[int, int, int]:
        """Have a call end that wrote these; what is said of what was taken."""
        number = self.caller.next_number()
        n_listed = min(vertices.size, ROOM)
        self.list[:n_listed, 0], self.list[:n_listed, 1] = vertices[:n_listed], words[:n_listed]
        self.caller.expect()
        told: Any = self.caller._told.words
        told[:] = number << 32
        told[0], told[1] = number << 32 | gave_up, number << 32 | vertices.size
        self.caller.wait()
        n_taken, were, are = self.caller.said[self.n_said - 3 : self.n_said].tolist()
        return n_taken, were, are


@pytest.fixture
def call(emulated_cupy: ModuleType) -> TakingCall:
    return TakingCall(emulated_cupy)


def test_what_is_listed_is_taken_over(call: TakingCall, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        if rng.random() < 0.2:  # a copy that has grown is another one
            call.kept = np.concatenate([call.kept, np.full(3, UNREACHED)])
        n = int(rng.integers(0, ROOM + 1))
        vertices = rng.permutation(call.kept.size)[:n]
        words = rng.choice(np.array([1, 2, UNREACHED], np.uint64), n)
        before = call.kept.copy()
        call.taking.expect(call.kept)
        n_taken, were, are = call.ends(vertices, words)
        wanted = before.copy()
        wanted[vertices] = words
        assert np.array_equal(call.kept, wanted)
        taken, old = call.taking.taken(n_taken), call.taking.were(n_taken)
        assert taken.tolist() == [v for v in vertices.tolist() if wanted[v] != before[v]]
        assert np.array_equal(old, before[taken])
        assert (were, are) == (int((old == UNREACHED).sum()), int((wanted[taken] == UNREACHED).sum()))


def test_what_is_void_or_not_all_in_the_list_is_left_alone(call: TakingCall) -> None:
    call.taking.expect(call.kept)
    some, words = np.arange(3), np.arange(3, dtype=np.uint64)
    assert call.ends(some, words, gave_up=1) == (0, 0, 0)
    assert call.ends(np.arange(ROOM + 1), np.arange(ROOM + 1, dtype=np.uint64)) == (0, 0, 0)
    assert (call.kept == UNREACHED).all()
    call.taking.expect(None)
    call.ends(some, words)
    assert (call.kept == UNREACHED).all()


def test_each_thread_uses_the_device_once(emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphtide.gpma.device import module

    used: list[str] = []
    device = emulated_cupy.cuda.Device
    monkeypatch.setattr(device, "use", lambda _: used.append(threading.current_thread().name))
    monkeypatch.setattr(module, "_thread", threading.local())
    for name in ("one", "other"):
        thread = threading.Thread(target=lambda: [module.use_device() for _ in range(3)], name=name)
        thread.start()
        thread.join()
    assert used == ["one", "other"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("owned", [False, True])
def test_a_call_like_the_last_one_is_right_after_any_batch(
    emulated_cupy: ModuleType, owned: bool, seed: int
) -> None:
    """Vertices come, with which the host's copy is another one; rows leave, and return."""
    from graphtide.compute.device import twin
    from graphtide.compute.paths.bfs import BFS
    from graphtide.gpma.edges import EdgeBatch
    from graphtide.partition.classes import DEVICE
    from graphtide.partition.graph import Graph
    from graphtide.partition.placement import HOST

    rng = np.random.default_rng(seed)
    graph = Graph(device=True, threads=1, host_rows="owned" if owned else "all")
    n = 20
    program, fresh = twin(BFS("kept", (0,)), graph), BFS("fresh", (0,))
    for each in (program, fresh):
        each.bind(np.zeros(1, np.uint32))
    graph.apply(EdgeBatch.of(np.zeros(9), np.arange(9), np.ones(9)), n)
    program.start(graph)
    likes = 0
    for step in range(40):
        n += int(rng.random() < 0.2) * 30
        k = int(rng.integers(0, 4))
        batch = EdgeBatch.of(rng.integers(0, n, k), rng.integers(0, n, k), rng.integers(0, 2, k).astype(np.uint8))
        change = graph.apply(batch, n)
        likes += program.runs._again is not None and bool(graph.device.batch[0])  # type: ignore[union-attr]
        program.refresh(graph, change)
        fresh.start(graph)
        assert np.array_equal(program.state()["word"] >> np.uint64(32), fresh.state()["word"] >> np.uint64(32))
        assert program.scalars() == fresh.scalars() and program.audit(graph) == []
        if owned and step % 10 in (4, 7):
            graph.migrate(np.arange(0, n, 2, dtype=np.uint32), HOST if step % 10 == 4 else DEVICE)
    assert likes >= 10
    graph.close()


def test_long_lists_are_taken_over_by_all_threads(emulated_cupy: ModuleType, seed: int) -> None:
    from graphtide.compute.device.taking import take_listed
    from graphtide.gpma.team import Team

    rng = np.random.default_rng(seed)
    team = Team(3)
    try:
        for n in (0, 1, 4096, 4097, 30_000):
            words = np.array([1, 2, UNREACHED], np.uint64)
            kept = rng.choice(words, 40_000)
            listed = np.stack([rng.permutation(kept.size)[:n].astype(np.uint64), rng.choice(words, n)], axis=1)
            before, wanted = kept.copy(), kept.copy()
            wanted[listed[:, 0]] = listed[:, 1]
            vertices, old, gained = take_listed(kept, listed, team.crew())
            assert np.array_equal(kept, wanted) and np.array_equal(old, before[vertices])
            assert gained == int((before == UNREACHED).sum()) - int((wanted == UNREACHED).sum())
            differs = before[listed[:, 0]] != listed[:, 1]
            assert np.array_equal(vertices, listed[differs, 0])
    finally:
        team.close()
