"""What subscribers ask for and are refused; slow ones, those that come back, and servers that end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_server import Chain
from test_subscribe import Line, Told
from waiting import PATIENCE_S, until

from graphtide.compute.program import Published
from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Change, Client
from graphtide.daemon.client.changes import Following
from graphtide.daemon.client.wire import (
    ClientCore,
    Entries,
    Notification,
    encode_entries,
    encode_notification,
    encode_stamp,
    encode_stamped_notification,
)
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve import shared_memory, telling
from graphtide.daemon.serve.asker import OpenConnection
from graphtide.daemon.serve.listening import Doors
from graphtide.daemon.serve.publication import ProgramPublication, Publication
from graphtide.daemon.serve.results import Packed, ProgramResults, Snapshot
from graphtide.daemon.serve.scopes import Everyone, Look, _differ
from graphtide.daemon.serve.serving import Serving
from graphtide.daemon.serve.subscriptions import Subscription, Subscriptions
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.daemon.serve.turns import Turns
from graphtide.gpma.index.vertex_index import VertexIndex


class Results:
    """Published results that a test writes itself: hops of a ``bfs``, ranks, and ``components``.

    Vertex i is called 100 + i.
    """

    def __init__(self, n: int) -> None:
        self.index = VertexIndex.create("int", shared_memory.allocate)
        self.index.insert(np.arange(n) + 100)
        self.link: ServerLink | None = None
        self.n = n
        self.number = 0
        self.hops = np.arange(n, dtype=np.uint64) << np.uint64(32)
        self.rank = np.ones(n)
        self.handle = np.zeros(n, np.uint32)
        self.label = np.zeros(n, np.uint32)
        self.alive = np.ones(n, bool)
        self.gone = np.zeros(n, bool)
        self.state = "fresh"

    def publish(self, *, moved: Any = (), offsets: Any = None, **changed: Any) -> None:
        """An epoch: which entries of ``hops``, ``rank``, ``handle`` or ``label`` changed, and who came or went."""
        assert self.link is not None
        self.number += 1
        names = {"hops": "word", "rank": "estimate", "handle": "handle", "label": "representative"}
        indices = {
            names[key]: None if some is None else np.array(some, np.uint32) for key, some in changed.items()
        }
        size = np.ones(self.n, np.uint32)
        parts = {"handle": self.handle, "representative": self.label, "size": size}
        made = {
            "hops": ("bfs", {"word": self.hops}, {}),
            "rank": ("pagerank", {"estimate": self.rank}, {"norm": 1.0}),
            "parts": ("components", parts, {}),
        }
        programs = {
            id: ProgramPublication(
                kind,
                columns,
                {name: indices[name] for name in columns if name in indices},
                scalars,
                {"state": self.state, "stale_since": [1, 2], "reason": "it failed"},
                self.gone if self.state != "fresh" else None,
                np.array(moved, np.uint32),
            )
            for id, (kind, columns, scalars) in made.items()
        }
        first = self.number == 1
        self.link.publish(
            Publication(
                (1, self.number),
                self.n,
                {"t": {0: self.number}},
                programs,
                {},
                self.alive,
                None if first else np.array(moved, np.uint32),
            )
        )


@contextlib.contextmanager
def results(folder: Path, n: int = 10, **limits: Any) -> Iterator[tuple[Results, str]]:
    made = Results(n)
    made.link = ServerLink(
        doors=Doors(listen=[f"unix:{folder}/s"]),
        graph={"directed": True, "weighted": True, "vertex_ids": "int"},
        index=made.index,
        topology=Chain(),
        limits=LimitsConfig(**limits),
    )
    made.link.start()
    try:
        made.publish()
        made.link.wait_ready()
        yield made, made.link.addresses[0]
    finally:
        made.link.stop()


def pairs(change: Change) -> dict[int, Any]:
    assert not isinstance(change.ids, list)
    return dict(zip(change.ids.tolist(), change.values.tolist(), strict=True))


# -- what is told -------------------------------------------------------------------------------------------


def test_changes_come_as_they_are_published(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("rank", [109, 100, 5, 100]) as some,
        client.subscribe("rank") as everybody,
    ):
        first = next(some)
        assert first.is_snapshot and first.merged == 0 and pairs(first) == {100: 1, 109: 1}
        assert (first.epoch, first.offsets, first.stale) == ((1, 1), {"t": {0: 1}}, None)
        assert len(next(everybody).ids) == 10
        made.rank[[0, 3]] = 2, 3
        made.publish(rank=[0, 3])
        change = next(some)
        assert pairs(change) == {100: 2} and len(change.removed) == 0
        assert (change.since, change.epoch, change.merged) == ((1, 1), (1, 2), 1)
        assert pairs(next(everybody)) == {100: 2, 103: 3}
        made.alive[[0, 4]] = False
        made.publish(moved=[0, 4])
        assert [np.asarray(next(s).removed).tolist() for s in (some, everybody)] == [[100], [100, 104]]
        made.alive[0] = True
        made.rank[9] = 7
        made.publish(moved=[0], rank=[9])
        assert pairs(next(some)) == pairs(next(everybody)) == {100: 2, 109: 7}


def test_without_a_snapshot_only_what_changes_is_told(tmp_path: Path) -> None:
    with results(tmp_path) as (made, address), Client(address) as client:
        subscriptions = [client.subscribe("rank", ids, snapshot=False) for ids in (None, [103, 104, 105])]
        made.rank[[3, 8]] = 4
        made.alive[[4, 7]] = False
        made.publish(rank=[3, 8], moved=[4, 7])
        for subscription, expected, gone in zip(
            subscriptions, ({103: 4, 108: 4}, {103: 4}), ([104, 107], [104]), strict=True
        ):
            with subscription:
                change = next(subscription)
                assert change.since == (1, 1) and pairs(change) == expected
                assert np.asarray(change.removed).tolist() == gone


def test_small_changes_stay_below_the_threshold_until_they_add_up(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("rank", threshold=0.1) as some,
        client.subscribe("rank", [100], threshold=0.1) as one,
    ):
        assert len(next(some).ids) == 10 and pairs(next(one)) == {100: 1}
        for value in (1.04, 1.08, 1.12):
            made.rank[:2] = value
            made.rank[2] = 1 + value
            made.publish(rank=[0, 1, 2])
        # Merged or not, the first two told of vertex 2 alone, the third of the others.
        told: dict[int, Any] = {}
        while 100 not in told:
            told |= pairs(next(some))
        assert told == {100: 1.12, 101: 1.12, 102: told[102]} and abs(2.12 - told[102]) <= 0.1 * told[102]
        change = next(one)
        while not len(change.ids):
            change = next(one)
        assert change.epoch == (1, 4) and pairs(change) == {100: 1.12}


def test_an_infinite_value_that_becomes_finite_is_off_by_any_threshold() -> None:
    differ = _differ(np.array([1.0, np.inf, 5.0]), np.array([np.inf, np.inf, 5.1]), 0.1)
    assert differ.tolist() == [True, False, False]


def test_of_whom_nothing_changed_hears_of_new_epochs_all_the_same(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("rank", [100]) as subscription,
    ):
        next(subscription)
        for _ in range(3):
            made.publish(rank=[5])
        change = next(subscription)
        while change.epoch != (1, 4):
            assert len(change.ids) == 0 and change.since is not None
            change = next(subscription)


@pytest.mark.sample(among="subscriptions")
def test_of_results_that_stand_still_labels_fade_with_their_vertices(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("parts") as everybody,
        client.subscribe("parts", [107]) as one,
    ):
        assert set(pairs(next(everybody)).values()) == {100} and pairs(next(one)) == {107: 100}
        made.state = "quarantined"
        made.publish()
        stale = next(everybody).stale
        assert stale == {"state": "quarantined", "stale_since": [1, 2], "reason": "it failed"}
        made.alive[0], made.gone[0] = False, True
        made.publish(moved=[0])
        change = next(everybody)
        assert pairs(change) == dict.fromkeys(range(101, 110)) and np.asarray(change.removed).tolist() == [100]
        change = next(one)
        while not len(change.ids):
            change = next(one)
        assert (
            pairs(change)
            == {107: None}
            == dict(zip([107], client.get("parts", [107]).values.tolist(), strict=True))
        )


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that allows little."""
    with results(tmp_path_factory.mktemp("s"), 5, vertices_max=10, subscribed_vertices_max=6) as (_, address):
        yield address


@pytest.mark.parametrize(
    ("params", "kind", "said"),
    [
        ({}, errors.RequestError, "program must be given"),
        ({"program": "none"}, errors.UnknownProgram, "there is no program"),
        ({"program": "rank", "threshold": -1}, errors.RequestError, "threshold must be a number, 0 or more"),
        ({"program": "rank", "threshold": float("nan")}, errors.RequestError, "threshold must be a number"),
        ({"program": "parts", "threshold": 0.1}, errors.RequestError, "threshold is for numbers"),
        ({"program": "parts", "top": 2}, errors.NotSupported, "have no order"),
        ({"program": "rank", "top": 2, "vertices": [100]}, errors.RequestError, "top goes with no vertices"),
        ({"program": "rank", "top": 2, "threshold": 0.1}, errors.RequestError, "top goes with no vertices"),
        ({"program": "rank", "order": "asc"}, errors.RequestError, "order goes with top"),
        ({"program": "rank", "top": 2, "snapshot": False}, errors.RequestError, "begins with a snapshot"),
        ({"program": "rank", "top": 0}, errors.RequestError, "top must be a whole number from 1"),
        ({"program": "rank", "top": 10_001}, errors.LimitExceeded, "at most 10000"),
        ({"program": "rank", "top": 4}, errors.LimitExceeded, "keep track of as many"),
        ({"program": "rank", "since": [1]}, errors.RequestError, "since must be an epoch"),
        ({"program": "rank", "snapshot": 1}, errors.RequestError, "snapshot must be true or false"),
        ({"program": "rank", "vertices": ["a"]}, errors.RequestError, "ids of this graph are integers"),
        ({"program": "rank", "vertices": list(range(11))}, errors.LimitExceeded, "at most 10"),
        ({"program": "rank", "vertices": list(range(7))}, errors.LimitExceeded, "keep track of as many"),
    ],
)
def test_what_cannot_be_told_is_refused(strict: str, params: Any, kind: Any, said: str) -> None:
    with Client(strict) as client:
        with pytest.raises(kind, match=said):
            client.call("subscribe", params)
        assert client.stats()["server"]["subscriptions"] == 0


def test_places_are_divided_and_come_back(tmp_path: Path) -> None:
    with results(tmp_path, subscriptions_max=8, connections_max=2, vertices_max=20) as (_, address):
        one, other = Line(address), Line(address)
        told = [Told(program="rank", vertices=[100]) for _ in range(8)]
        for each in told[:6]:
            one.subscribe(each)
        with pytest.raises(errors.Unavailable, match="too many subscriptions, 2 or more of this connection"):
            one.subscribe(told[6])
        other.subscribe(told[6])
        other.subscribe(told[7])
        one.ask("unsubscribe", {"subscription": told[0].number})
        with pytest.raises(errors.RequestError, match="none of this connection's"):
            one.ask("unsubscribe", {"subscription": told[0].number})
        one.subscribe(Told(program="rank"))
        one.close()
        with pytest.raises(errors.LimitExceeded, match="of one connection"):
            other.subscribe(Told(program="rank", vertices=list(range(19))))
        until(lambda: other.ask("stats", {})["server"]["subscriptions"] == 2)
        for _ in range(4):
            other.subscribe(Told(program="rank"))
        other.close()


@pytest.mark.sample(among="subscriptions")
def test_a_snapshot_that_is_too_large_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with results(tmp_path, 10, vertices_max=5) as (made, address), Client(address) as client:
        with pytest.raises(errors.LimitExceeded, match="10 vertices exist; an answer names at most 5"):
            client.call("subscribe", {"program": "rank"})
        client.call("subscribe", {"program": "rank", "snapshot": False})
        made.alive[5:] = False
        made.publish(moved=[5, 6, 7, 8, 9])
        with client.subscribe("rank") as everybody:
            assert sorted(pairs(next(everybody))) == [100, 101, 102, 103, 104]
    snapshot = cast(Snapshot, SimpleNamespace(n_vertices=10, n_alive=6))  # of which nothing else can be read
    with pytest.raises(errors.LimitExceeded, match="6 vertices exist"):
        Everyone(0.0).look(Look(cast(Any, None), snapshot, cast(Any, None), None, None, 5))


@pytest.mark.sample(among="subscriptions")
def test_many_may_be_chosen_and_each_counts_once(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("rank", [*range(105, 5000), *range(103, 200)]) as subscription,
    ):
        assert pairs(next(subscription)) == dict.fromkeys(range(103, 110), 1)
        made.rank[[2, 3]] = 5
        made.publish(rank=[2, 3])
        assert pairs(next(subscription)) == {103: 5}


@pytest.mark.sample(among="subscriptions")
def test_a_subscription_that_outgrows_the_limits_ends_and_says_why(tmp_path: Path) -> None:
    with results(tmp_path, 8, vertices_max=10) as (made, address), Client(address) as client:
        with client.subscribe("rank") as everybody:
            next(everybody)
            made.index.insert(np.arange(20) + 200)
            made.n = 28
            for name in ("hops", "rank", "handle", "label", "alive", "gone"):
                setattr(made, name, np.resize(getattr(made, name), 28))
            made.publish(rank=[])
            with pytest.raises(errors.LimitExceeded, match="20 vertices changed; an answer names at most 10"):
                next(everybody)
        until(lambda: client.stats()["server"]["subscriptions"] == 0)


# -- who comes back -----------------------------------------------------------------------------------------


@pytest.mark.sample(among="subscriptions")
def test_one_may_go_on_from_an_epoch_that_is_still_known(tmp_path: Path) -> None:
    with results(tmp_path, changes_bytes=1 << 16) as (made, address), Client(address) as client:
        for value in range(2, 6):
            made.rank[value] = value
            made.publish(rank=[value])
        with (
            client.subscribe("rank", since=(1, 2)) as later,
            client.subscribe("rank", range(103, 200), since=(1, 3)) as some,
        ):
            change = next(later)
            assert change.since == (1, 2) and pairs(change) == {103: 3, 104: 4, 105: 5}
            assert pairs(next(some)) == {104: 4, 105: 5}
        for since in ((1, 99), (2, 2), (0, 1)):
            with client.subscribe("rank", since=since) as anew:
                assert next(anew).is_snapshot
        for _ in range(2000):  # and on, until it is not known any more
            made.publish(rank=[1])
        with client.subscribe("rank", since=(1, 2)) as anew:
            assert next(anew).is_snapshot


@pytest.mark.sample(among="subscriptions")
def test_a_server_that_dies_costs_subscribers_nothing_but_time(tmp_path: Path) -> None:
    with results(tmp_path) as (made, address), Client(address) as client:
        assert made.link is not None
        with client.subscribe("rank", reconnect=True) as kept, client.subscribe("rank") as lost:
            known = pairs(next(kept))
            next(lost)
            for number in range(3):
                pid, before = made.link.pid, made.link.restarts
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                made.rank[number] = 10 + number
                made.publish(rank=[number])
                while made.link.restarts == before:
                    time.sleep(0.01)
                change = next(kept)
                while not len(change.ids):
                    change = next(kept)
                assert change.since is not None
                known |= pairs(change)
            assert known == {100: 10, 101: 11, 102: 12, **dict.fromkeys(range(103, 110), 1.0)}
            with pytest.raises(errors.Unavailable):
                next(lost)
            assert list(lost) == []


def server_dies(made: Results) -> None:
    """It is killed, and changes are published before another one is there."""
    assert made.link is not None and made.link.pid is not None
    os.kill(made.link.pid, signal.SIGKILL)
    made.rank[0] = 10
    made.publish(rank=[0])


@pytest.mark.sample(among="subscriptions")
def test_nothing_is_lost_where_the_server_dies_before_it_told_anything(tmp_path: Path) -> None:
    with (
        results(tmp_path) as (made, address),
        Client(address) as client,
        client.subscribe("rank", snapshot=False, reconnect=True) as subscription,
    ):
        assert subscription.epoch == (1, 1)
        server_dies(made)
        change = next(subscription)
        assert change.since == (1, 1) and pairs(change) == {100: 10}


@pytest.mark.sample(among="subscriptions")
def test_the_asynchronous_client_goes_on_where_nothing_was_told_yet(tmp_path: Path) -> None:
    async def first(address: str, made: Results) -> Change:
        async with AsyncClient(address) as client:
            changes = client.subscribe("rank", snapshot=False, reconnect=True)
            async with contextlib.aclosing(changes):
                waiting = asyncio.ensure_future(anext(changes))
                while not (await client.stats())["server"]["subscriptions"]:
                    await asyncio.sleep(0.01)
                server_dies(made)
                return await waiting

    with results(tmp_path) as (made, address):
        change = asyncio.run(first(address, made))
    assert change.since == (1, 1) and pairs(change) == {100: 10}


@pytest.mark.sample(among="subscriptions")
def test_the_asynchronous_client_asks_again_where_the_snapshot_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, broken = Following.take, [errors.Unavailable("it broke")]

    def taken(self: Following, notice: Notification) -> Change | None:
        if broken:
            raise broken.pop()
        return take(self, notice)

    async def first(address: str) -> Change:
        async with (
            AsyncClient(address) as client,
            contextlib.aclosing(client.subscribe("rank", reconnect=True)) as changes,
        ):
            return await anext(changes)

    monkeypatch.setattr(Following, "take", taken)
    with results(tmp_path) as (_, address):
        assert asyncio.run(first(address)).is_snapshot


@pytest.mark.sample(among="subscriptions")
def test_the_asynchronous_client_subscribes_too(tmp_path: Path) -> None:
    with results(tmp_path) as (made, address):
        assert made.link is not None
        link = made.link

        async def follow() -> None:
            async with AsyncClient(address) as client:
                seen: dict[int, Any] = {}
                async with contextlib.aclosing(client.subscribe("rank", [101, 102], reconnect=True)) as changes:
                    async for change in changes:
                        seen |= pairs(change)
                        if change.epoch == (1, 1):
                            made.rank[1] = 5
                            made.publish(rank=[1])
                        elif change.epoch == (1, 2):
                            pid = link.pid
                            assert pid is not None
                            os.kill(pid, signal.SIGKILL)
                            made.rank[2] = 6
                            made.publish(rank=[2])
                            while link.pid == pid:
                                await asyncio.sleep(0.01)
                        elif 102 in pairs(change):
                            assert change.since == (1, 2)
                            break
                assert seen == {101: 5, 102: 6}
                with pytest.raises(errors.UnknownProgram):
                    async for _ in client.subscribe("none"):
                        pass

        asyncio.run(follow())


# -- who reads slowly, or not at all ------------------------------------------------------------------------

N = 100_000


@pytest.mark.sample(among="subscriptions")
def test_a_client_that_does_not_read_costs_nothing_and_gets_all_at_once(tmp_path: Path) -> None:
    with results(tmp_path, N) as (made, address), contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(address, timeout=60))
        told = Told(program="rank")
        slow = stack.enter_context(contextlib.closing(Line(address)))
        slow.subscribe(told)
        held = []
        for number in range(100):
            some = np.arange(number, N, 90)
            made.rank[some] += 1
            made.publish(rank=some)
            held.append(client.stats()["server"]["held_bytes"])
            assert client.get("rank", [100]).epoch == (1, made.number)
        assert max(held) <= LimitsConfig().memory_bytes_max // 4
        while told.following.epoch != (1, made.number):
            slow.hear()
            slow.tell()
        assert any(change.merged > 1 for change in told.changes)
        assert told.known == dict(zip(range(100, 100 + N), made.rank.tolist(), strict=True))


@pytest.mark.sample(among="subscriptions")
def test_whoever_falls_behind_the_log_gets_a_snapshot(tmp_path: Path) -> None:
    with results(tmp_path, N, changes_bytes=1 << 16) as (made, address), contextlib.ExitStack() as stack:
        told = Told(program="rank")
        slow = stack.enter_context(contextlib.closing(Line(address)))
        slow.subscribe(told)
        slow.hear()  # the beginning of all that there is
        for _ in range(60):
            made.rank[:1000] += 1
            made.publish(rank=np.arange(1000))
        while told.following.epoch != (1, made.number):
            slow.hear()
            slow.tell()
        assert len([change for change in told.changes if change.is_snapshot]) == 2
        assert told.known == dict(zip(range(100, 100 + N), made.rank.tolist(), strict=True))


@pytest.mark.sample(among="subscriptions")
def test_whoever_does_not_read_gives_way_where_others_need_the_memory(tmp_path: Path) -> None:
    short = {"memory_bytes_max": 1 << 20, "frame_bytes_max": 1 << 18, "output_bytes_max": 1 << 20}
    with results(tmp_path, N, stall_seconds_max=0.2, **short) as (_, address), contextlib.ExitStack() as stack:
        slow = stack.enter_context(contextlib.closing(Line(address)))
        slow.subscribe(Told(program="rank"))
        client = stack.enter_context(Client(address, timeout=60))
        until(lambda: client.stats()["server"]["held_bytes"] > 0)
        assert client.get("rank", np.arange(100, 10_100)).values.tolist() == [1.0] * 10_000
        until(lambda: client.stats()["server"]["subscriptions"] == 0)
        assert client.stats()["server"]["held_bytes"] == 0


@pytest.mark.sample(among="subscriptions")
def test_whoever_reads_slowly_gives_way_where_others_need_the_memory(tmp_path: Path) -> None:
    short = {"memory_bytes_max": 1 << 20, "frame_bytes_max": 1 << 18, "output_bytes_max": 1 << 20}
    with results(tmp_path, N, stall_seconds_max=0.5, **short) as (_, address), contextlib.ExitStack() as stack:
        slow = stack.enter_context(contextlib.closing(Line(address)))
        slow.subscribe(Told(program="rank"))
        client = stack.enter_context(Client(address, timeout=60))
        until(lambda: client.stats()["server"]["held_bytes"] > 0)
        wants = threading.Thread(target=client.get, args=("rank", np.arange(100, 10_100)))
        wants.start()
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := slow.socket.recv(1 << 14):
                received += len(data)
                assert received < 16 * N, "that is all of it"
                time.sleep(0.05)
        wants.join()
        assert client.stats()["server"]["held_bytes"] == 0


class Deaf:
    """A connection that reads nothing."""

    takes_more = False


class Hearing:
    """A connection that takes all that it is told."""

    takes_more = True
    unread_bytes = ahead_bytes = 0

    def __init__(self, heard: list[bytes]) -> None:
        self.push = heard.append

    def entries(self, content: Mapping[str, Any]) -> Entries:
        return encode_entries(content)

    def notification(
        self,
        method: str,
        content: Mapping[str, Any],
        stamp: bytes | None = None,
        shared: Entries | None = None,
    ) -> bytes:
        if stamp is None:
            return encode_notification(method, content)
        return encode_stamped_notification(method, stamp, content, shared)


def one_epoch() -> Snapshot:
    """Of ten vertices; nothing else of it can be read."""
    programs = dict.fromkeys(("rank", "one", "other"), SimpleNamespace(state={"state": "fresh"}))
    return cast(Snapshot, SimpleNamespace(n_vertices=10, sequence=1, epoch=(1, 1), programs=programs))


def test_what_fails_ends_a_subscription_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[bytes] = []
    snapshot = one_epoch()

    def fail(use: Any) -> None:
        raise ValueError("a mistake")

    async def run() -> int:
        subscriptions, connection = Subscriptions(LimitsConfig()), cast(OpenConnection, Hearing(heard))
        for program in ("one", "other"):
            subscriptions.add(connection, program, Everyone(0.0), snapshot, since=None, from_now=True)
        serving = cast(Serving, SimpleNamespace(subscriptions=subscriptions, read=fail))
        task = asyncio.create_task(telling.Telling(serving).run())
        while len(heard) < 2:
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        return subscriptions.count

    assert asyncio.run(run()) == 0
    contents = [ClientCore().messages(message)[0].content for message in heard]  # type: ignore[union-attr]
    assert [content["subscription"] for content in contents] == [0, 1]
    assert {content["error"]["code"] for content in contents} == {"internal"}
    assert "telling of one failed" in caplog.text and "a mistake" in caplog.text


@pytest.mark.parametrize("size", [1, telling.INLINE_MAX + 1])
def test_news_of_epochs_come_also_where_each_look_finds_another_one(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "NEWS_SECONDS", 0.0)
    monkeypatch.setattr(telling.Telling, "_size", lambda *_: size)
    monkeypatch.setattr(telling, "copied", lambda snapshot, id: snapshot)
    heard: list[bytes] = []
    numbers = itertools.count(2)
    program = SimpleNamespace(state={"state": "fresh"})

    def snapshot() -> Any:
        number = next(numbers)
        return SimpleNamespace(n_vertices=10, sequence=number, epoch=(1, number), programs={"rank": program})

    class Quiet(telling.Telling):
        def _look(self, subscription: Subscription, snapshot: Snapshot, *, may_scan: bool = False) -> Any:
            return telling._Found(
                snapshot, telling.nothing(self._serving), 1, {}, encode_stamp(snapshot.epoch, {})
            )

    async def at_once(*work: Any) -> Any:
        return work[1](*work[2:])

    async def outlasting(work: Any) -> Any:
        return await work

    async def make_room(*_: Any) -> None:
        pass

    async def run() -> None:
        subscriptions = Subscriptions(LimitsConfig())
        connection = cast(OpenConnection, Hearing(heard))
        subscriptions.add(connection, "rank", Everyone(0.0), snapshot(), since=None, from_now=True)
        serving = SimpleNamespace(
            limits=LimitsConfig(),
            subscriptions=subscriptions,
            snapshot=snapshot,
            read=lambda use: use(snapshot()),
            stamp=lambda snapshot: encode_stamp(snapshot.epoch, {}),
            external=lambda dense: dense.astype(np.int64),
            in_thread=at_once,
            outlasting=outlasting,
            make_room=make_room,
            making=Turns(1),
        )
        task = asyncio.create_task(Quiet(cast(Serving, serving)).run())
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 3:
                subscriptions.published()
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    contents = [ClientCore().messages(message)[0].content for message in heard]  # type: ignore[union-attr]
    epochs = [content["epoch"] for content in contents]
    assert [content["since"] for content in contents] == [[1, 2], *epochs[:-1]] and epochs == sorted(epochs)


def test_requests_get_their_turn_between_subscribers_and_connections_between_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "TURN_SECONDS", 0.0)
    one, other = cast(OpenConnection, Deaf()), cast(OpenConnection, Deaf())
    snapshot = one_epoch()
    visits: list[tuple[OpenConnection, int]] = []
    turns = 0

    class Noting(telling.Telling):
        def _advance(self, subscription: Subscription) -> None:
            visits.append((subscription.connection, turns))

    async def run() -> None:
        nonlocal turns
        subscriptions = Subscriptions(LimitsConfig())
        for connection in (one,) * 30 + (other,) * 2:
            subscriptions.add(connection, "rank", Everyone(0.0), snapshot, since=None, from_now=True)
        task = asyncio.create_task(Noting(cast(Serving, SimpleNamespace(subscriptions=subscriptions))).run())
        while len(visits) < 32:
            turns += 1
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    assert [connection for connection, _ in visits[:5]] == [one, other, one, other, one]
    assert [turn for _, turn in visits] == list(range(visits[0][1], visits[0][1] + 32))


@pytest.mark.sample(among="subscriptions")
def test_a_subscriber_is_not_idle(tmp_path: Path) -> None:
    with results(tmp_path, idle_seconds_max=1.0) as (made, address), Client(address) as client:
        client.stats()
        with client.subscribe("rank") as subscription:
            next(subscription)
            with Client(address) as other:  # those who came after it have gone
                until(lambda: other.stats()["server"]["connections"] == 2)
            made.publish(rank=[1])
            assert pairs(next(subscription)) == {101: 1}


def test_whoever_would_remember_too_much_is_told_before_anything_is_looked_at() -> None:
    heard: list[bytes] = []
    program = SimpleNamespace(state={"state": "fresh"})

    def snapshot(n: int) -> Any:
        return SimpleNamespace(n_vertices=n, sequence=n, epoch=(1, n), programs={"rank": program})

    async def run() -> None:
        subscriptions = Subscriptions(LimitsConfig(vertices_max=20))
        subscriptions.add(
            cast(OpenConnection, Hearing(heard)), "rank", Everyone(0.5), snapshot(10), since=None, from_now=True
        )
        # Of a serving that can read nothing but which epoch there is.
        serving: Any = SimpleNamespace(subscriptions=subscriptions, read=lambda use: use(snapshot(30)))
        _, due = subscriptions.due()
        telling.Telling(serving)._advance(next(due))

    asyncio.run(run())
    (ended,) = ClientCore().messages(heard[0])
    assert isinstance(ended, Notification) and ended.content["error"]["code"] == "limit-exceeded"


@pytest.mark.sample(among="subscriptions")
def test_where_much_is_looked_at_the_next_epoch_need_not_wait_for_it() -> None:
    reading: list[bool] = []
    looked: list[tuple[bool, Any]] = []
    column = np.arange(10.0)
    results = ProgramResults("pagerank", Published({"estimate": column}, {}, 10), {}, np.zeros(10, bool))
    published = Snapshot((1, 1), 10, {}, 0, 1, {"rank": results}, Packed(b"\x80"), {}, np.ones(10, bool))

    def read(use: Any) -> Any:
        reading.append(True)
        try:
            return use(published)
        finally:
            reading.pop()

    class Looking(telling.Telling):
        def _look(self, subscription: Subscription, snapshot: Snapshot, *, may_scan: bool = False) -> Any:
            looked.append((bool(reading), snapshot))

    serving: Any = SimpleNamespace(
        subscriptions=Subscriptions(LimitsConfig()), read=read, snapshot=lambda: published
    )
    for size in (1, 10):
        Looking(serving)._look_aside(cast(Subscription, SimpleNamespace(program="rank")), size)
    assert [inside for inside, _ in looked] == [True, False]
    copy = looked[1][1]
    assert copy.epoch == (1, 1) and copy.alive is not published.alive and copy.alive.all()
    copied = copy.programs["rank"].published.columns["estimate"]
    assert copied is not column and copied.tolist() == column.tolist()
