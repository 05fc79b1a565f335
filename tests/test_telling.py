"""What telling costs: what equal subscribers share is made once, and whoever is woken costs nobody else."""

from __future__ import annotations

import asyncio
import operator
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from waiting import PATIENCE_S

from graphtide.compute.registry import program_class
from graphtide.daemon.client.wire import (
    ClientCore,
    Entries,
    encode_entries,
    encode_stamp,
    encode_stamped_notification,
)
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve import telling
from graphtide.daemon.serve.asker import Asker, OpenConnection
from graphtide.daemon.serve.change_log import ChangeLog, ChangeLogWriter
from graphtide.daemon.serve.channel import LARGE_OUTPUT_BYTES
from graphtide.daemon.serve.largest import Largest
from graphtide.daemon.serve.pace import Pace
from graphtide.daemon.serve.publication import ProgramPublication, Publication
from graphtide.daemon.serve.results import ResultsReader, ResultsWriter, Snapshot
from graphtide.daemon.serve.scopes import PART_VERTICES, Chosen, Everyone, Look, News, Scope
from graphtide.daemon.serve.serving import UNREAD_AHEAD_BYTES, Serving
from graphtide.daemon.serve.shared_memory import SharedArray
from graphtide.daemon.serve.subscriptions import Subscription, Subscriptions
from graphtide.daemon.serve.turns import Turns
from graphtide.daemon.serve.values import Values
from graphtide.gpma.edges import NO_VERTEX

ID = 100
"""Vertex i is called ID + i."""


class Client:
    """A connection in this process; what it was told: values by id, and how often it heard of an epoch.

    ``encoded``: how often anything was encoded, by whatever number of clients shares it.
    """

    def __init__(self, encoded: Counter[str]) -> None:
        self.takes_more = True
        self.unread_bytes, self.ahead_bytes = 0, 0
        self.known: dict[int, float] = {}
        self.epochs: list[int] = []
        self.snapshots = 0
        self._encoded = encoded
        self._core = ClientCore()

    async def reads(self, patience_s: float) -> bool:
        return True

    def is_gone(self) -> bool:
        return False

    def entries(self, content: Mapping[str, Any]) -> Entries:
        self._encoded["entries"] += 1
        return encode_entries(content)

    def notification(
        self, method: str, content: Mapping[str, Any], stamp: bytes | None = None, shared: Entries | None = None
    ) -> bytes:
        assert stamp is not None, content
        return encode_stamped_notification(method, stamp, content, shared)

    def push(self, message: bytes) -> None:
        for notice in self._core.messages(message):
            content: Any = notice.content  # type: ignore[union-attr]
            if content["since"] is None:
                self.snapshots += 1
                self.known.clear()
            ids, values, gone = (
                np.frombuffer(content[name]["data"], np.int64) for name in ("ids", "values", "removed")
            )
            for id in gone.tolist():
                self.known.pop(id, None)
            self.known.update(zip(ids.tolist(), values.view(np.float64).tolist(), strict=True))
            if not content["more"]:
                self.epochs.append(content["epoch"][1])


class Served:
    """Published ranks, and the telling of them within this process; ``counts``: what was done how often."""

    def __init__(self, n: int, runner: asyncio.Runner) -> None:
        self.run = runner.run
        self.rank = np.arange(1.0, n + 1)
        self.number = 0
        self.counts: Counter[str] = Counter()
        log = ChangeLogWriter(1 << 22, lambda dense: dense.astype(np.int64) + ID)
        self.writer = ResultsWriter(log)
        self.publish()
        self.reader = ResultsReader.beside(self.writer)
        place = log.place
        self.log = ChangeLog(SharedArray(os.dup(place.fd), place.byte_offset, place.n_items, place.dtype))
        self.subscriptions = Subscriptions(LimitsConfig())
        self.subscriptions.take_log(self.log)
        self.telling = telling.Telling(cast(Serving, self._serving()))
        self._count(self.telling, "_advance", "_look", "_look_aside")
        self._count(self.log, "between")

    def _serving(self) -> Any:
        async def in_thread(asker: Any, work: Callable[..., Any], *arguments: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

        async def outlasting(work: Any) -> Any:
            return await work

        async def make_room(*_: Any) -> None:
            pass

        def lookup_in(snapshot: Snapshot, ids: Any) -> Any:
            self.counts["looked up"] += len(ids)
            known = (ids >= ID) & (ids < ID + snapshot.n_vertices)
            return snapshot.known(np.where(known, ids - ID, NO_VERTEX).astype(np.uint32))

        return SimpleNamespace(
            limits=LimitsConfig(),
            subscriptions=self.subscriptions,
            read=self.reader.read,
            snapshot=self.reader.snapshot,
            stamp=lambda snapshot: encode_stamp(snapshot.epoch, snapshot.offsets),
            external=lambda dense: dense.astype(np.int64) + ID,
            lookup_in=lookup_in,
            program_class=program_class,
            in_thread=in_thread,
            outlasting=outlasting,
            make_room=make_room,
            making=Turns(1),
        )

    def _count(self, whose: object, *names: str) -> None:
        for name in names:
            work = getattr(whose, name)

            def counted(*given: Any, name: str = name, work: Any = work, **named: Any) -> Any:
                self.counts[name] += 1
                return work(*given, **named)

            setattr(whose, name, counted)

    def publish(self, changed: Any = None) -> None:
        """An epoch, in which these values change."""
        self.number += 1
        if changed is not None:
            self.rank[changed] += 1
            changed = np.asarray(changed, np.uint32)
        rank = ProgramPublication(
            "pagerank", {"estimate": self.rank}, {"estimate": changed}, {"norm": 1.0}, {"state": "fresh"}
        )
        moved = np.empty(0, np.uint32)
        n = self.rank.size
        self.writer.publish(Publication((1, self.number), n, {}, {"rank": rank}, {}, np.ones(n, bool), moved))

    def subscribe(self, scopes: list[Scope], *, from_now: bool = False) -> list[Client]:
        clients = [Client(self.counts) for _ in scopes]
        for client, scope in zip(clients, scopes, strict=True):
            connection = cast(OpenConnection, client)
            self.subscriptions.add(
                connection, "rank", scope, self.reader.snapshot(), since=None, from_now=from_now
            )
        return clients

    def told(self, clients: list[Client]) -> None:
        """A round, until all of them have heard of the newest epoch."""

        async def run() -> None:
            task = asyncio.create_task(self.telling.run())
            async with asyncio.timeout(PATIENCE_S):
                while not all(client.epochs[-1:] == [self.number] for client in clients):
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)  # what is still woken finds nothing new
            task.cancel()

        self.subscriptions.published()
        self.run(run())

    def values(self, ids: Any) -> dict[int, float]:
        return {id: float(self.rank[id - ID]) for id in ids}


@pytest.fixture
def serve() -> Iterator[Callable[[int], Served]]:
    with asyncio.Runner() as runner:
        yield lambda n: Served(n, runner)


def ids_of(count: int) -> Any:
    return np.arange(0, 3 * count, 3) + ID


N = 3000
QUESTIONS: dict[str, Callable[[], Scope]] = {
    "everyone": lambda: Everyone(0.0),
    "chosen": lambda: Chosen(ids_of(50), 0.0),
    "chosen, by a threshold": lambda: Chosen(ids_of(50), 0.0001),
    "many chosen": lambda: Chosen(ids_of(N // 3), 0.0),
    "the largest": lambda: Largest(10),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_equal_subscribers_are_told_is_found_and_encoded_once(
    serve: Callable[[int], Served], question: str
) -> None:
    served = serve(N if "chosen" in question or "largest" in question else 2 * telling.INLINE_MAX)
    clients = served.subscribe([QUESTIONS[question]() for _ in range(40)])
    for step in range(5):
        served.counts.clear()
        for _ in range(step):
            served.publish(np.arange(0, served.rank.size, 2))
        served.publish(np.arange(served.rank.size - 10))
        served.told(clients)
        # Twice where the first of them looks at all in a thread, and the others need not.
        looks = served.counts["_look"]
        assert 1 <= looks <= (2 if question == "the largest" else 1)
        assert 1 <= served.counts["entries"] <= looks
        assert all(client.known == clients[0].known for client in clients)
    assert clients[0].snapshots == 1 and clients[0].epochs == clients[-1].epochs
    known = clients[0].known
    expected = served.values(known)
    assert known == expected and len(known) >= 10


def test_whoever_chose_vertices_is_told_without_a_look_at_what_each_epoch_changed(
    serve: Callable[[int], Served],
) -> None:
    """However many epochs there were meanwhile, and for however many subscribers at places of their own."""
    served = serve(N)
    clients = [
        *served.subscribe([Chosen(ids_of(50) + k, 0.0) for k in range(20)]),
        *served.subscribe([Chosen(ids_of(N // 3), 0.0)]),
    ]
    served.told(clients)
    served.counts.clear()
    for _ in range(30):
        served.publish(np.arange(0, N, 2))
    served.told(clients)
    assert served.counts["between"] == served.counts["looked up"] == 0
    for k, client in enumerate(clients[:20]):
        assert client.known == served.values((ids_of(50) + k).tolist())


def test_an_epoch_wakes_nobody_where_nobody_subscribes_and_whoever_does_lacks_nothing(
    serve: Callable[[int], Served],
) -> None:
    served = serve(N)
    for _ in range(5):
        served.publish([3])
        served.subscriptions.published()
    assert not served.subscriptions.news.is_set()
    clients = served.subscribe([Everyone(0.0)], from_now=True)
    served.publish([7])
    served.told(clients)
    assert clients[0].known == served.values([7 + ID])


def test_whoever_begins_without_a_snapshot_hears_only_of_what_changes_however_little_it_is(
    serve: Callable[[int], Served],
) -> None:
    served = serve(N)
    scopes = [Chosen(ids_of(50), threshold) for threshold in (0.0, 10.0)]
    snapshot = served.reader.snapshot()
    for scope in scopes:
        result = snapshot.programs["rank"]
        scope.know(Look(served.telling._serving, snapshot, result, None, None, N))
    clients = served.subscribe(cast(list[Scope], scopes), from_now=True)
    told = []
    for changed in ([3], [6], [3]):
        served.publish(changed)
        before = [len(client.epochs) for client in clients]
        served.told([clients[0]])
        told.append([len(client.epochs) - count for client, count in zip(clients, before, strict=True)])
    assert served.counts["between"] == 0 and not any(client.snapshots for client in clients)
    # The first change of each is told, as nobody knows what the client has; then the threshold decides.
    assert told == [[1, 1], [1, 1], [1, 0]]
    assert clients[0].known == served.values([103, 106]) and clients[1].known == {103: 5.0, 106: 8.0}


def test_whoever_has_been_told_what_takes_long_wakes_nobody_else(serve: Callable[[int], Served]) -> None:
    served = serve(2 * telling.INLINE_MAX)
    quiet = served.subscribe([Chosen(ids_of(5) + k, 0.0) for k in range(100)])
    served.told(quiet)
    served.counts.clear()
    long = served.subscribe([Everyone(0.0) for _ in range(10)])
    served.told(long)
    # All once, since somebody came, and once since there may be an epoch; those whose look took long once more.
    assert served.counts["_advance"] <= 2 * 110 + 10


def test_whoever_is_sent_much_hears_of_what_follows_together(
    serve: Callable[[int], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(Pace, "pause", lambda pace, who, much, now: sent.append(much) or 3600.0)
    served = serve(2 * telling.INLINE_MAX)
    (long,), quiet = served.subscribe([Everyone(0.0)]), served.subscribe([Chosen(ids_of(5), 0.0)])
    served.told([long, *quiet])
    for _ in range(3):
        served.publish(np.arange(served.rank.size))
        served.told(quiet)
    assert long.epochs == [1] and quiet[0].epochs == [1, 2, 3, 4]
    assert len(sent) == 1 and sent[0] > 16 * served.rank.size, "its ids and values"


def test_who_lacks_the_same_is_sent_the_very_same_bytes() -> None:
    size = 2 * PART_VERTICES + 1
    nobody = np.empty(0, np.int64)
    values = Values(np.arange(float(size)), np.zeros(size, bool))
    news = News(np.arange(size), values, nobody, lambda: None)
    found = telling._Found(cast(Snapshot, None), news, 1, {}, encode_stamp((1, 2), {}))

    def messages(number: int, since: tuple[int, int] = (1, 1)) -> Iterator[bytes]:
        who = SimpleNamespace(connection=Client(Counter()), number=number)
        return found.messages(cast(Subscription, who), since)

    first, slow = list(messages(0)), messages(0)
    assert len(first) == 3 and next(slow) is first[0]
    assert all(map(operator.is_, messages(0), first))
    for number, since in ((1, (1, 1)), (0, (1, 0))):
        others = messages(number, since)
        begun = [next(others)]
        assert list(messages(0)) == first, "others go on where they were"
        for message in begun + list(others):
            (notice,) = ClientCore().messages(message)
            assert (notice.content["subscription"], tuple(notice.content["since"])) == (number, since)  # type: ignore[union-attr]
    assert list(slow) == first[1:]


@pytest.mark.parametrize(
    ("ahead_bytes", "happened"),
    [
        (0, ["reads", "push"] * 5),
        (29, ["push", "push", "reads", "push", "push", "reads", "push"]),
        (30, ["push", "push", "push", "reads", "push", "push", "reads"]),
        (50, ["push", "push", "push", "push", "push", "reads"]),
    ],
)
def test_who_reads_is_sent_as_much_as_it_may_leave_unread_before_it_is_waited_for(
    serve: Callable[[int], Served], ahead_bytes: int, happened: list[str]
) -> None:
    """And in the end until it has read all but the last part, since the memory of those is still needed."""

    class Reading(Client):
        async def reads(self, patience_s: float) -> bool:
            seen.append("reads")
            self.unread_bytes = 0
            return True

        def push(self, message: bytes) -> None:
            seen.append("push")
            self.unread_bytes += len(message)

    seen, served, client = list[str](), serve(N), Reading(Counter())
    client.ahead_bytes = ahead_bytes
    sent = served.run(served.telling._send(cast(OpenConnection, client), iter([bytes(10)] * 5)))
    assert (sent, seen) == (50, happened)


@pytest.mark.parametrize(("parts", "happened"), [(1, ["push"]), (2, ["push", "push", "reads"])])
def test_what_http_puts_around_the_last_part_is_not_waited_for(
    serve: Callable[[int], Served], parts: int, happened: list[str]
) -> None:
    class Chunked(Client):
        async def reads(self, patience_s: float) -> bool:
            seen.append("reads")
            return True

        def push(self, message: bytes) -> None:
            seen.append("push")
            self.unread_bytes += len(b"%x\r\n%s\r\n" % (len(message), message))

    seen, served, client = list[str](), serve(N), Chunked(Counter())
    client.ahead_bytes = 1000
    sent = served.run(served.telling._send(cast(OpenConnection, client), iter([bytes(10)] * parts)))
    assert (sent, seen) == (10 * parts, happened)


@pytest.mark.parametrize(
    ("connections", "output_bytes_max", "ahead_bytes"),
    [
        (0, 32 << 20, UNREAD_AHEAD_BYTES),
        (10, 32 << 20, UNREAD_AHEAD_BYTES),
        (10, 1 << 16, 1 << 15),
        (1024, 32 << 20, 1 << 15),
    ],
)
def test_what_all_leave_unread_drops_nobody(connections: int, output_bytes_max: int, ahead_bytes: int) -> None:
    limits = LimitsConfig(output_bytes_max=output_bytes_max, memory_bytes_max=256 << 20)
    of = SimpleNamespace(limits=limits, connections=range(connections), _unread_bytes_max=128 << 20)
    assert cast(Any, Serving.ahead_bytes).fget(of) == ahead_bytes
    assert ahead_bytes < LARGE_OUTPUT_BYTES and ahead_bytes * connections < of._unread_bytes_max


def test_a_client_that_reads_again_wakes_nobody_else_and_is_told_all_at_once(
    serve: Callable[[int], Served],
) -> None:
    served = serve(N)
    clients = served.subscribe([Chosen(ids_of(5) + k, 0.0) for k in range(50)])
    served.told(clients)
    slow = clients[7]
    slow.takes_more = False
    for _ in range(3):
        served.publish(np.arange(N))
        served.told([client for client in clients if client is not slow])
    assert slow.epochs == [1]
    served.counts.clear()
    slow.takes_more = True

    async def run() -> None:
        served.subscriptions.wake_all(cast(OpenConnection, slow))
        task = asyncio.create_task(served.telling.run())
        while slow.epochs != [1, 4]:
            await asyncio.sleep(0)
        task.cancel()

    served.run(run())
    assert served.counts["_advance"] == 1 and slow.known == served.values((ids_of(5) + 7).tolist())


def test_whoever_waits_for_the_look_of_one_who_goes_is_told_all_the_same(serve: Callable[[int], Served]) -> None:
    served = serve(2 * telling.INLINE_MAX)
    began, go_on = threading.Event(), threading.Event()
    aside, looks = served.telling._look_aside, list[Subscription]()

    def slowly(subscription: Subscription, size: int) -> Any:
        looks.append(subscription)
        began.set()
        assert go_on.wait(PATIENCE_S)
        return aside(subscription, size)

    served.telling._look_aside = slowly  # type: ignore[method-assign]
    clients = served.subscribe([Everyone(0.0) for _ in range(3)])

    async def run() -> None:
        served.subscriptions.published()
        task = asyncio.create_task(served.telling.run())
        while not began.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone = looks[0]
        assert served.subscriptions.end(gone.connection, gone.number)
        go_on.set()
        left = [client for client in clients if client is not cast(Any, gone.connection)]
        async with asyncio.timeout(PATIENCE_S):
            while not all(client.epochs == [1] for client in left):
                await asyncio.sleep(0)
        task.cancel()

    served.run(run())
    assert len(looks) == 1 and sorted(len(client.epochs) for client in clients) == [0, 1, 1]


@pytest.mark.parametrize("when", ["while it is looked at", "while it is sent"])
def test_whoever_comes_later_is_not_sent_an_epoch_before_the_one_of_its_answer(
    serve: Callable[[int], Served], when: str
) -> None:
    """Its answer covers the offsets that it asked for, and so must all that it is told."""
    served = serve(2 * telling.INLINE_MAX)
    looked, go_on, read = threading.Event(), threading.Event(), asyncio.Event()
    aside = served.telling._look_aside

    def slowly(subscription: Subscription, size: int) -> Any:
        found = aside(subscription, size)
        looked.set()
        assert go_on.wait(PATIENCE_S)
        return found

    async def reads(patience_s: float) -> bool:
        await read.wait()
        return True

    served.telling._look_aside = slowly  # type: ignore[method-assign]
    slow = served.subscribe([Everyone(0.0), Everyone(0.0)])
    for client in slow:
        client.reads = reads  # type: ignore[method-assign]

    async def run() -> None:
        served.subscriptions.published()
        task = asyncio.create_task(served.telling.run())
        while not looked.is_set():
            await asyncio.sleep(0)
        if when == "while it is sent":
            go_on.set()
            while not len(served.telling._sending):
                await asyncio.sleep(0)
        served.publish(np.arange(5))
        late = served.subscribe([Everyone(0.0)])[0]
        await asyncio.sleep(0.05)
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            while not late.epochs:
                await asyncio.sleep(0)
        assert late.epochs[0] == 2 and late.known == served.values(late.known)
        read.set()
        async with asyncio.timeout(PATIENCE_S):
            while not all(client.epochs == [1, 2] for client in slow):
                served.subscriptions.published()
                await asyncio.sleep(0)
        task.cancel()

    served.run(run())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("goes", [False, True], ids=["too early", "given up"])
def test_whoever_comes_in_the_moment_in_which_a_look_ends_looks_by_itself(
    serve: Callable[[int], Served], goes: bool
) -> None:
    """That look is of no use to it, and not put away yet: to wait for it again and again lets nobody else run."""
    served = serve(2 * telling.INLINE_MAX)
    served.subscribe([Everyone(0.0), Everyone(0.0)])
    early = next(served.subscriptions.due()[1])
    looked_at = served.telling._looked_at

    def found(subscription: Subscription) -> Any:
        return asyncio.create_task(served.telling._found(subscription, Asker(subscription.connection), None))

    async def run() -> None:
        looked, go_on = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def slowly(*given: Any) -> Any:
            made = await looked_at(*given)
            if not looked.is_set():
                looked.set()
                await go_on
            return made

        served.telling._looked_at = slowly  # type: ignore[method-assign]
        first = found(early)
        await looked.wait()
        served.publish(np.arange(5))
        served.subscribe([Everyone(0.0)])
        late = list(served.subscriptions.due()[1])[-1]
        assert late.began == 2
        # The look ends in the next step of the loop, the late one comes in the one behind it.
        if goes:
            go_on.cancel()
        else:
            go_on.set_result(None)
        second = found(late)
        async with asyncio.timeout(PATIENCE_S):
            assert (await second).snapshot.sequence == 2
            assert (await first).snapshot.sequence == (2 if goes else 1)
        assert not served.telling._looking

    served.run(run())


def test_of_what_is_kept_for_others_there_is_a_bound(
    serve: Callable[[int], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "ALIKE_VERTICES_MAX", 60)
    served = serve(N)
    clients = served.subscribe([Chosen(ids_of(50) + k % 3, 0.0) for k in range(12)])
    served.told(clients)
    assert served.counts["_look"] == 1 + 4 + 4
    for k, client in enumerate(clients):
        assert client.known == served.values((ids_of(50) + k % 3).tolist())
