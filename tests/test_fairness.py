"""What one client may not take from the others: the engine, places to wait, memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_server import Chain, Raw, raw, request, serving
from waiting import PATIENCE_S, until

from graphtide.daemon import errors
from graphtide.daemon.client import Client
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.records.topology import DEGREES_AT_ONCE, DegreeCounts, Reached
from graphtide.daemon.serve.asker import Asker
from graphtide.daemon.serve.engine_calls import SLICE_VERTICES, SLICED_TRIES, SLICES_OPEN
from graphtide.daemon.serve.methods import topology
from graphtide.daemon.serve.params import Params
from graphtide.daemon.serve.serving import VERTICES_INLINE_MAX, Reply
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.daemon.serve.values import wire_ids
from graphtide.gpma.edges import NO_VERTEX
from graphtide.gpma.index.ids import IdColumn
from graphtide.partition.exploring import Search, SearchPlace

N = 200_000
HOUR_MS = 600_000


class Counting(Chain):
    """Counts the vertices that it is asked about.

    Where it is ``paced``, it goes on with what is about many only while a question about two vertices waits for
    its answer (``waits_for``), and a little behind that.
    """

    def __init__(self, *, paced: bool = False) -> None:
        super().__init__()
        self.asked_vertices = self.asked_before = 0
        self.moves = 0
        self.paced = paced
        self.holds, self.goes_on = threading.Event(), threading.Semaphore(0)
        self.grow(1000)

    def count(self, n: int) -> None:
        if n == 2:
            self.asked_before = self.asked_vertices
        elif self.paced and self.asked_vertices > N and not self.goes_on.acquire(blocking=False):
            self.holds.set()
            assert self.goes_on.acquire(timeout=PATIENCE_S)
            self.holds.clear()
        self.asked_vertices += n

    def waits_for(self, asker: Raw) -> int:
        """About how many vertices of others it answers between this one's question and the answer."""
        until(self.holds.is_set)
        before = self.asked_vertices
        asker.send(request(1, "degree", {"vertices": [100, 101]}) + request(2, "stats"))
        assert asker.answer()[1] == 2, "the question has come"
        self.goes_on.release(9)  # so many slices; an answer may go together with the next ones
        assert asker.answer()[:3] == [1, 1, None]
        return self.asked_before - before

    def release(self) -> None:
        """Go on as fast as may be from now on."""
        self.paced = False
        self.goes_on.release()

    def degree(self, vertices: Any, timeout_s: float) -> Any:
        self.count(vertices.size)
        time.sleep(vertices.size * 1e-7)  # as an engine that has other things to do
        if self.moves:
            self.moves -= 1
            self.storage_ahead += 1
        return super().degree(vertices, timeout_s)


@contextlib.contextmanager
def counting(folder: Path, *, paced: bool = False, **limits: Any) -> Iterator[tuple[Counting, ServerLink, Client]]:
    chain = Counting(paced=paced)
    with serving(chain, folder, LimitsConfig(**limits)) as link, Client(link.addresses[0], timeout=120) as client:
        client.stats()
        yield chain, link, client


def ids(n: int) -> bytes:
    return np.resize(np.arange(100, 1100, dtype="<i8"), n).tobytes()


def flood(connection: Raw, method: str, n: int, times: int, **params: Any) -> threading.Thread:
    """Send so many requests about n vertices, and read nothing."""
    message = b"".join(request(i, method, {"vertices": ids(n), **params}) for i in range(times))

    def send() -> None:
        with contextlib.suppress(OSError):
            connection.send(message)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


# -- the engine ---------------------------------------------------------------------------------------------


def test_the_engine_works_on_little_for_clients_that_have_hung_up(tmp_path: Path) -> None:
    with counting(tmp_path) as (chain, link, client):
        with contextlib.ExitStack() as stack:
            hogs = [stack.enter_context(raw(link.addresses[0])) for _ in range(4)]
            senders = [flood(hog, "degree", N, 6) for hog in hogs]
            until(lambda: chain.asked_vertices > N)
            for hog in hogs:
                hog.socket.shutdown(2)
        before = chain.asked_vertices
        for sender in senders:
            sender.join()
        for _ in range(3):  # what the engine was given before is answered before
            assert client.degree([100, 101]).out.tolist() == [1, 1]
        assert chain.asked_vertices - before <= (SLICES_OPEN + 2) * SLICE_VERTICES
        until(lambda: client.stats()["server"]["connections"] == 1)
        assert client.stats()["server"]["held_bytes"] == 0


def test_a_question_about_two_vertices_waits_for_few_slices_of_others(tmp_path: Path) -> None:
    with counting(tmp_path, paced=True) as (chain, link, _), contextlib.ExitStack() as stack:
        asker = stack.enter_context(raw(link.addresses[0]))
        hogs = [stack.enter_context(raw(link.addresses[0])) for _ in range(4)]
        senders = [flood(hog, "degree", N, 6) for hog in hogs]
        waited = [chain.waits_for(asker) for _ in range(3)]
        assert 0 < max(waited) <= (SLICES_OPEN + len(hogs) + 1) * SLICE_VERTICES
        chain.release()
        for hog in hogs:
            hog.socket.shutdown(2)
        for sender in senders:
            sender.join()


class Endless(Counting):
    """Its searches never come to an end, a slice at a time."""

    searched = 0

    def reach(self, begun: Search, direction: Any, **limits: Any) -> Reached:
        self.searched += 1
        return Reached(self.current_epoch(), True, dataclasses.replace(begun, place=SearchPlace(), reads=1))


def test_a_search_lets_others_ask_between_its_slices_and_ends_with_its_client(tmp_path: Path) -> None:
    chain = Endless()
    with serving(chain, tmp_path, LimitsConfig()) as link, Client(link.addresses[0], timeout=120) as client:
        client.stats()
        with raw(link.addresses[0]) as hog:
            hog.send(request(0, "khop", {"vertex": 100, "k": 9}))
            until(lambda: chain.searched > 10)
            before = chain.searched
            assert client.degree([100, 101]).out.tolist() == [1, 1]
            until(lambda: chain.searched > before + 10)
        until(lambda: client.stats()["server"]["connections"] == 1)
        client.degree([100, 101])  # what the engine was given before is answered before
        ended = chain.searched
        for _ in range(5):
            client.degree([100, 101])
        assert chain.searched == ended and client.stats()["server"]["held_bytes"] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("moves", [0, 1, SLICED_TRIES, 1000])
def test_an_answer_in_slices_is_of_one_epoch(tmp_path: Path, moves: int) -> None:
    with counting(tmp_path) as (chain, _, client):
        chain.moves = moves
        n = 3 * SLICE_VERTICES + 5
        degree = client.degree(np.frombuffer(ids(n), "<i8"))
        assert (degree.out == np.resize([1] * 998 + [0, 0], n)).all() and degree.unknown.size == 0
        assert degree.epoch == (1, 1 + min(moves, 2 * SLICED_TRIES + 1))
        assert client.has_edge([100] * n, [101] * n).exists.all()


class Large(Counting):
    """Its graph has more vertices than a request may name, and more than are counted at once."""

    n_large = 3 * DEGREES_AT_ONCE + 5

    def degree_counts(self, direction: Any, first: int, limit: int, timeout_s: float) -> DegreeCounts:
        if self.moves:
            self.moves -= 1
            self.storage_ahead += 1
        here = min(self.n_large - first, limit)
        self.count(here)
        time.sleep(here * 1e-8)
        degrees, counts = np.unique(self.degree_of(np.arange(first, first + here)), return_counts=True)
        return DegreeCounts(self.current_epoch(), self.n_large, degrees, counts)

    def degree_of(self, vertices: Any) -> Any:
        """Of each slice many degrees, some of them of others, too."""
        return vertices % 20_000 + vertices // DEGREES_AT_ONCE * 10_000


@pytest.mark.sample(1)
@pytest.mark.parametrize("moves", [0, 1, 2 * SLICED_TRIES, 1000])
def test_degrees_of_a_graph_of_any_size_are_counted_in_slices_of_one_epoch(tmp_path: Path, moves: int) -> None:
    chain = Large()
    chain.moves = moves
    limits = LimitsConfig(vertices_max=1000)
    with serving(chain, tmp_path, limits) as link, Client(link.addresses[0], timeout=120) as client:
        found = client.degree_distribution()
        degrees, counts = np.unique(chain.degree_of(np.arange(chain.n_large)), return_counts=True)
        assert (found.degrees.tolist(), found.counts.tolist()) == (degrees.tolist(), counts.tolist())
        assert found.epoch == (1, 1 + min(moves, 2 * SLICED_TRIES + 1))
        assert chain.asked_vertices >= chain.n_large


def test_others_ask_while_degrees_are_counted_which_ends_with_its_client(tmp_path: Path) -> None:
    chain = Large(paced=True)
    chain.n_large = 1 << 31
    chain.degree_of = lambda vertices: vertices[:1] % 3  # type: ignore[method-assign]
    with serving(chain, tmp_path, LimitsConfig()) as link, Client(link.addresses[0], timeout=120) as client:
        with raw(link.addresses[0]) as hog, raw(link.addresses[0]) as asker:
            hog.send(request(0, "degree_distribution", {}))
            assert 0 < chain.waits_for(asker) <= 4 * DEGREES_AT_ONCE
            chain.release()
        until(lambda: client.stats()["server"]["connections"] == 1)
        client.degree([100, 101])  # what the engine was given before is answered before
        ended = chain.asked_vertices
        for _ in range(5):
            client.has_edge([100], [101])
        assert chain.asked_vertices == ended < chain.n_large and client.stats()["server"]["held_bytes"] == 0


class Whole(Counting):
    """Its epochs follow too fast for slices, and it does not answer about more until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 1 << 30
        self.wholes = self.wholes_max = 0
        self.begun, self.may_answer = threading.Semaphore(0), threading.Event()

    def degree(self, vertices: Any, timeout_s: float) -> Any:
        if vertices.size > SLICE_VERTICES:
            self.wholes += 1
            self.wholes_max = max(self.wholes_max, self.wholes)
            self.begun.release()
            assert self.may_answer.wait(PATIENCE_S)
            self.wholes -= 1
        return super().degree(vertices, timeout_s)


def test_what_cannot_be_sliced_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    chain, n = Whole(), 3 * SLICE_VERTICES
    with serving(chain, tmp_path, LimitsConfig()) as link, Client(link.addresses[0], timeout=PATIENCE_S) as client:
        client.stats()

        def ask() -> Any:
            with Client(link.addresses[0], timeout=PATIENCE_S) as hog:
                return hog.degree(np.frombuffer(ids(n), "<i8"), timeout_ms=int(PATIENCE_S * 1000))

        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(ask) for _ in range(3)]
            assert chain.begun.acquire(timeout=PATIENCE_S)
            for _ in range(5):
                assert client.degree([100, 101]).out.tolist() == [1, 1]
            chain.may_answer.set()
            for answer in asked:
                assert (answer.result().out == np.resize([1] * 998 + [0, 0], n)).all()
    assert chain.wholes_max == 1, "however many ask"


def test_one_that_is_answered_beside_ends_before_the_storage_goes(tmp_path: Path) -> None:
    chain = Whole()
    with serving(chain, tmp_path, LimitsConfig()) as link:
        with raw(link.addresses[0]) as hog:
            hog.send(request(1, "degree", {"vertices": ids(3 * SLICE_VERTICES)}))
            assert chain.begun.acquire(timeout=PATIENCE_S)
        stops = threading.Thread(target=link.stop)
        stops.start()
        until(lambda: link.pid is None)
        assert chain.wholes == 1 and stops.is_alive()
        chain.may_answer.set()
        stops.join(PATIENCE_S)
        assert chain.wholes == 0


@pytest.mark.parametrize(("n", "beside"), [(VERTICES_INLINE_MAX, False), (VERTICES_INLINE_MAX + 1, True)])
def test_a_long_answer_is_made_beside_the_event_loop(
    n: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[threading.Thread] = []

    def noted(ids: IdColumn) -> Any:
        made_in.append(threading.current_thread())
        return wire_ids(ids)

    async def nothing(*_: Any) -> None: ...

    async def lookup_anywhere(asker: Asker, ids: IdColumn) -> Any:
        return np.full(len(ids), NO_VERTEX)

    async def call_by_slices(*_: Any) -> dict[str, Any]:
        return {"known": bytes(n), "out": bytes(8 * n), "in": None, "stamp": b""}

    async def in_thread(asker: Asker, work: Any) -> Any:
        return await asyncio.to_thread(work)

    serving: Any = SimpleNamespace(
        id_kind="string",
        limits=SimpleNamespace(vertices_max=n),
        make_room=nothing,
        lookup_anywhere=lookup_anywhere,
        in_thread=in_thread,
        engine=SimpleNamespace(call_by_slices=call_by_slices),
    )
    monkeypatch.setattr(topology, "wire_ids", noted)
    names = [f"v{i}" for i in range(n)]

    async def ask() -> Reply:
        return await topology.degree(serving, Params({"vertices": names}, Asker(Any)))  # type: ignore[misc]

    reply = asyncio.run(ask())
    assert reply.answer["unknown"] == names
    assert [thread is not threading.main_thread() for thread in made_in] == [beside]


# -- places to wait -----------------------------------------------------------------------------------------


def waits(connection: Raw, times: int) -> None:
    never = {"min_offsets": {"t": {0: 10**9}}, "timeout_ms": HOUR_MS}
    connection.send(b"".join(request(i, "wait", never) for i in range(times)))


def test_those_who_wait_leave_the_others_their_places(tmp_path: Path) -> None:
    limits = {"waiting_max": 40, "connections_max": 10, "requests_in_flight_max": 64}
    with counting(tmp_path, **limits) as (chain, link, client):
        with contextlib.ExitStack() as stack:
            hogs = [stack.enter_context(raw(link.addresses[0])) for _ in range(3)]
            for hog in hogs:
                waits(hog, 60)
            refused = [[hog.answer()[2]["code"] for _ in range(60 - own)] for hog, own in ((hogs[0], 22),)]
            assert set(refused[0]) == {"unavailable"}
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.wait, {"t": {0: 20}})
                until(lambda: link.connections == 4)
                assert not waiting.done()
                link.publish(chain.publication())
                assert waiting.result(60).epoch == (1, 2)
        until(lambda: client.stats()["server"]["connections"] == 1)
        with raw(link.addresses[0]) as another:
            waits(another, 23)
            assert another.answer()[2]["code"] == "unavailable"  # one too many: all other places are free again


def test_who_hangs_up_while_nothing_is_read_from_it_is_gone(tmp_path: Path) -> None:
    with counting(tmp_path, requests_in_flight_max=8) as (_, link, client):
        with raw(link.addresses[0]) as connection:
            waits(connection, 8)
            until(lambda: client.stats()["server"]["connections"] == 2)
            client.stats()
        until(lambda: client.stats()["server"]["connections"] == 1)


# -- memory -------------------------------------------------------------------------------------------------


def anonymous_bytes(link: ServerLink) -> int:
    lines = Path(f"/proc/{link.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["degree", "get"])
def test_clients_that_do_not_read_cost_no_more_than_the_limit(tmp_path: Path, method: str) -> None:
    limit = 32 << 20
    params = {"program": "rank"} if method == "get" else {}
    with (
        counting(tmp_path, memory_bytes_max=limit, output_bytes_max=limit) as (_, link, client),
        contextlib.ExitStack() as stack,
    ):
        before, most = anonymous_bytes(link), 0
        hogs = [stack.enter_context(raw(link.addresses[0])) for _ in range(8)]
        senders = [flood(hog, method, N, 20, **params) for hog in hogs]
        for _ in range(200):
            assert client.degree([100, 101]).out.tolist() == [1, 1]
            assert client.stats()["server"]["held_bytes"] <= limit // 2
            most = max(most, anonymous_bytes(link) - before)
            time.sleep(0.005)
        assert most <= limit  # the allocator's own share included
        for hog in hogs:
            with contextlib.suppress(OSError):
                hog.socket.shutdown(2)
        for sender in senders:
            sender.join()
        until(lambda: client.stats()["server"]["held_bytes"] == 0)


@pytest.mark.sample(among="much is asked for")
@pytest.mark.parametrize("stall", ["sends", "reads", "waits"])
def test_memory_is_taken_from_who_stalls_while_others_wait(tmp_path: Path, stall: str) -> None:
    limits = {"memory_bytes_max": 4 << 20, "frame_bytes_max": 2 << 20, "output_bytes_max": 4 << 20}
    large = np.frombuffer(ids(100_000), "<i8")
    with (
        counting(tmp_path, stall_seconds_max=0.5, **limits) as (_, link, client),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            stalled = stack.enter_context(raw(link.addresses[0]))
            wanted = {"t": {0: 10**9 if stall == "waits" else 0}}
            message = request(1, "get", {"program": "rank", "vertices": large.tobytes(), "min_offsets": wanted})
            stalled.send(message[: len(message) // 2] if stall == "sends" else message)
        until(lambda: client.stats()["server"]["held_bytes"] > 0)
        for _ in range(3):
            assert (client.get("rank", large).values == np.resize(np.arange(1, 1001), 100_000)).all()
        assert link.restarts == 0


# -- many clients that mean well ----------------------------------------------------------------------------


@pytest.mark.sample(among="much is asked for")
def test_many_large_requests_beside_many_epochs_are_answered_whole(tmp_path: Path) -> None:
    with counting(tmp_path) as (chain, link, client):
        pid, stop = link.pid, threading.Event()

        def publish() -> None:
            while not stop.wait(0.0002):
                link.publish(chain.publication())

        def ask(_: int) -> None:
            with Client(link.addresses[0], timeout=120) as own:
                for _ in range(2):
                    with contextlib.suppress(errors.Unavailable):  # epochs may be too fast for it
                        result = own.get("rank", np.frombuffer(ids(N), "<i8"))
                        number = result.epoch[1]
                        assert (result.values == np.resize(np.arange(1, 1001) / number, N)).all()

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            with ThreadPoolExecutor(24) as pool:
                list(pool.map(ask, range(24)))
        finally:
            stop.set()
            publisher.join()
        assert (link.pid, link.restarts) == (pid, 0)
        assert client.wait({"t": {0: chain.number * 10}}).epoch == (1, chain.number)


@pytest.mark.sample(among="much is asked for")
@pytest.mark.parametrize("kind", ["int", "string"])
def test_long_requests_are_worked_on_beside_the_event_loop(tmp_path: Path, kind: str) -> None:
    chain = Chain(kind)
    chain.grow(1000)
    ids = chain.ids(range(1000)) * (N // 1000)
    with serving(chain, tmp_path, LimitsConfig()) as link, Client(link.addresses[0], timeout=120) as client:

        def cpu_ns() -> tuple[int, int]:
            """Of the event loop, which runs in the first thread, and of all threads."""
            spent = {
                task.name: int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{link.pid}/task").iterdir()
            }
            return spent[str(link.pid)], sum(spent.values())

        client.call("get", {"program": "parts", "vertices": ids})  # the threads are there from now on
        loop, together = cpu_ns()
        for _ in range(4):
            answer = client.call("get", {"program": "parts", "vertices": ids})
            assert len(answer["values"]) == N if kind == "string" else len(answer["values"]["data"]) == 8 * N
        after_loop, after_together = cpu_ns()
    assert after_loop - loop < 0.25 * (after_together - together)
