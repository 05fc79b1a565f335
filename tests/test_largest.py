"""Subscriptions to the vertices with the largest values: what ``top`` answers, at the cost of what changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_subscribing import Results, pairs, results

from graphtide.compute.program import Published
from graphtide.compute.registry import program_class
from graphtide.daemon.client import Change, Client
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve import telling
from graphtide.daemon.serve.largest import KEPT, Largest
from graphtide.daemon.serve.results import Packed, ProgramResults, Snapshot
from graphtide.daemon.serve.scopes import Look, NotAtOnce
from graphtide.daemon.serve.subscriptions import Subscription, Subscriptions
from graphtide.daemon.serve.values import Values
from graphtide.gpma.edges import NO_VERTEX


class World:
    """Values of vertices that come, go, and leave their dense ids to others; looked at as a subscription does."""

    def __init__(self, n: int, rng: np.random.Generator, *, descending: bool = True) -> None:
        self.rng = rng
        self.descending = descending
        self.ids = np.arange(n) + 1000
        self.alive = np.ones(n, bool)
        self.values = rng.integers(0, 40, n).astype(np.float64)
        self.null = rng.random(n) < 0.1
        self.looked_at = 0
        self.told: dict[int, float] = {}

    def known(self, dense: Any) -> Any:
        return np.where(self.alive[dense], dense, NO_VERTEX)

    def read(self, dense: Any) -> Values:
        assert self.alive[dense].all()
        self.looked_at += dense.size
        return Values(self.values[dense], self.null[dense].copy())

    def change(self, size: int) -> tuple[Any, Any]:
        """Some values, and who came or went: (the vertices touched, those moved)."""
        touched = self.rng.integers(0, self.ids.size, size)
        self.values[touched] = self.rng.integers(0, 40, size)
        self.null[touched] = self.rng.random(size) < 0.1
        moved = self.rng.integers(0, self.ids.size, size // 4)
        for v in moved:
            self.alive[v] = self.rng.random() < 0.6
            self.ids[v] = self.ids.max() + 1
        if self.rng.random() < 0.3:  # a new vertex
            self.ids = np.append(self.ids, self.ids.max() + 1)
            self.alive, self.null = np.append(self.alive, True), np.append(self.null, False)
            self.values = np.append(self.values, 39.0)
            moved = np.append(moved, self.ids.size - 1)
        return np.unique(touched).astype(np.uint32), np.unique(moved).astype(np.uint32)

    def look(
        self, scope: Largest, touched: Any, moved: Any, *, may_scan: bool, anew: bool = False, shared: Any = None
    ) -> None:
        snapshot = SimpleNamespace(known=self.known, n_vertices=self.ids.size)
        names = SimpleNamespace(external=lambda dense: self.ids[dense])
        changes = None if anew else object()
        look: Any = SimpleNamespace(
            snapshot=snapshot,
            names=names,
            values=self.read,
            changes=changes,
            touched=touched,
            moved=moved,
            may_scan=may_scan,
            shared={} if shared is None else shared,
        )
        news = scope.look(cast(Look, look))
        news.remember()
        if anew:
            self.told.clear()
        for id in np.asarray(news.gone).tolist():
            del self.told[id]
        self.told |= dict(zip(np.asarray(news.ids).tolist(), news.values.values.tolist(), strict=True))
        assert not news.values.null.any()

    def best(self, k: int) -> dict[int, float]:
        there = [v for v in range(self.ids.size) if self.alive[v] and not self.null[v]]
        sign = -1 if self.descending else 1
        there.sort(key=lambda v: (sign * self.values[v], v))
        return {int(self.ids[v]): float(self.values[v]) for v in there[:k]}


@pytest.mark.parametrize("k", [1, 5, 60, 1000])
@pytest.mark.parametrize("size", [1, 8, 200])
@pytest.mark.parametrize("descending", [True, False])
def test_what_is_told_are_the_best_at_each_epoch(k: int, size: int, descending: bool) -> None:
    world = World(300, np.random.default_rng([k, size]), descending=descending)
    scope = Largest(k, descending=descending)
    nothing = np.empty(0, np.uint32)
    world.look(scope, None, nothing, may_scan=True, anew=True)
    assert world.told == world.best(k)
    for step in range(60):
        touched, moved = world.change(size)
        if step % 20 == 7:
            touched = None
        world.look(scope, touched, moved, may_scan=True, anew=step % 20 == 13)
        assert world.told == world.best(k)


def test_an_epoch_costs_what_it_changed_until_too_many_have_fallen() -> None:
    world, scope = World(50_000, np.random.default_rng(1)), Largest(10)
    world.null[:] = False
    world.values[:] = np.arange(50_000)
    nothing = np.empty(0, np.uint32)
    with pytest.raises(NotAtOnce):
        world.look(scope, None, nothing, may_scan=False, anew=True)
    world.look(scope, None, nothing, may_scan=True, anew=True)
    falls = 0
    for _ in range(KEPT * 10):
        world.looked_at = 0
        world.values[max(range(50_000), key=world.values.__getitem__)] = -1.0
        touched = np.flatnonzero(world.values == -1).astype(np.uint32)
        try:
            world.look(scope, touched, nothing, may_scan=False)
        except NotAtOnce:
            falls += 1
            world.look(scope, touched, nothing, may_scan=True)
        else:
            assert world.looked_at <= 2 * (KEPT * 10 + touched.size)
        assert world.told == world.best(10)
    assert falls == 1


def test_who_wants_the_same_of_an_epoch_looks_once() -> None:
    world, nothing = World(1000, np.random.default_rng(2)), np.empty(0, np.uint32)
    shared: dict[Any, Any] = {}
    for k, again in ((10, False), (10, True), (11, False)):
        world.looked_at = 0
        world.look(Largest(k), None, nothing, may_scan=True, anew=True, shared=shared)
        assert world.told == world.best(k) and (world.looked_at < 100) == again


def test_who_comes_second_in_an_epoch_need_not_copy_it() -> None:
    """Where every value is another, as where a program's norm is."""
    n = telling.INLINE_MAX + 3000
    estimate = np.random.default_rng(3).permutation(n) + 1.0
    results = ProgramResults("pagerank", Published({"estimate": estimate}, {"norm": 1.0}, n), {})
    published = Snapshot((1, 1), n, {}, 0, 1, {"rank": results}, Packed(b"\x80"), {})
    serving: Any = SimpleNamespace(
        subscriptions=Subscriptions(LimitsConfig()),
        limits=LimitsConfig(),
        program_class=program_class,
        stamp=lambda _: b"",
        external=lambda dense: dense.astype(np.int64),
    )
    teller = telling.Telling(serving)
    first, second, other = (
        cast(Subscription, SimpleNamespace(program="rank", scope=Largest(k), place=None, joined=None))
        for k in (5, 5, 6)
    )
    assert teller._size(first, published) == teller._size(second, published) == n
    with pytest.raises(NotAtOnce):
        teller._look(first, published)
    told = teller._look(first, published, may_scan=True).news
    assert teller._size(second, published) <= 2 * KEPT * 5 < teller._size(other, published)
    assert np.asarray(teller._look(second, published).news.ids).tolist() == np.asarray(told.ids).tolist()
    assert {*np.asarray(told.ids).tolist()} == {*np.argsort(estimate)[-5:].tolist()}


def as_told(known: dict[int, Any], change: Change) -> dict[int, Any]:
    kept = {} if change.is_snapshot else {id: v for id, v in known.items() if id not in np.asarray(change.removed)}
    return kept | pairs(change)


@pytest.mark.sample(1)
@pytest.mark.parametrize("n", [20, telling.INLINE_MAX + 3000], ids=["few", "many"])
def test_subscribers_know_what_top_answers(tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(n)
    with (
        results(tmp_path, n) as (made, address),
        Client(address, timeout=60) as client,
        client.subscribe("hops", top=5) as hops,
        client.subscribe("rank", top=5) as rank,
        client.subscribe("rank", top=5, order="asc") as least,
    ):
        known: list[dict[int, Any]] = [{}, {}, {}]
        told = (("hops", "desc", hops), ("rank", "desc", rank), ("rank", "asc", least))

        def check() -> None:
            for place, (program, order, subscription) in enumerate(told):
                epoch = (1, made.number)
                while subscription.epoch != epoch:
                    known[place] = as_told(known[place], next(subscription))
                answer = client.top(program, 5, order=order)
                assert answer.epoch == epoch
                assert known[place] == dict(
                    zip(np.asarray(answer.ids).tolist(), answer.values.tolist(), strict=True)
                )

        check()
        for _ in range(8):
            _change(made, rng)
            check()


def _change(made: Results, rng: np.random.Generator) -> None:
    """Some ranks and hops change, and the farthest vertex is near; the one of the largest rank is deleted."""
    some = np.unique(rng.integers(0, made.n, 6))
    made.rank[some] = rng.integers(1, 9, some.size)
    farthest = int(np.argmax(np.where(made.alive, made.hops, 0)))
    far = np.unique(np.append(rng.integers(0, made.n // 2, 3), farthest))
    made.hops[far] = rng.integers(0, made.n // 2, far.size).astype(np.uint64) << np.uint64(32)
    best = int(np.argmax(np.where(made.alive, made.rank, 0)))
    made.alive[best] = False
    made.publish(rank=some, hops=far, moved=[best])
