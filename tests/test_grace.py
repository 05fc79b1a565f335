"""Grace periods: the query server tells when requests have ended that may hold dense ids."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import Chain, raw, request, serving
from waiting import PATIENCE_S, until

from graphtide.daemon.client import Client
from graphtide.daemon.serve.supervisor import ServerLink


class SlowChain(Chain):
    """Its storage answers about neighbours when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_about = threading.Event()
        self.may_answer = threading.Event()

    def neighbors(self, *arguments: Any) -> Any:
        self.asked_about.set()
        assert self.may_answer.wait(PATIENCE_S)
        return super().neighbors(*arguments)


@pytest.fixture
def chain() -> SlowChain:
    chain = SlowChain()
    chain.grow(50)
    return chain


@pytest.fixture
def link(chain: SlowChain, tmp_path: Path) -> Iterator[ServerLink]:
    with serving(chain, tmp_path) as link:
        yield link
        chain.may_answer.set()


def becomes(is_over: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.002)
    return is_over()


def stays_open(is_over: Callable[[], bool]) -> bool:
    time.sleep(0.1)
    return not is_over()


def ask(link: ServerLink, method: str, **params: Any) -> threading.Thread:
    """A request on a connection of its own."""

    def run() -> None:
        with Client(link.addresses[0], timeout=PATIENCE_S) as client:
            client.call(method, params, timeout_ms=200_000)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.sample(among="a grace period")
def test_where_nobody_asks_it_is_over_at_once(link: ServerLink) -> None:
    assert becomes(link.begin_grace())
    assert all(becomes(is_over) for is_over in [link.begin_grace() for _ in range(100)])


@pytest.mark.sample(among="a grace period")
def test_one_follows_another(link: ServerLink) -> None:
    for _ in range(3):
        assert becomes(link.begin_grace())
    both = link.begin_grace(), link.begin_grace()
    assert becomes(both[0]) and becomes(both[1])


@pytest.mark.sample(among="a grace period")
def test_it_waits_for_requests_that_began_before(chain: SlowChain, link: ServerLink) -> None:
    thread = ask(link, "neighbors", vertex=103)
    assert chain.asked_about.wait(60)
    graces = [link.begin_grace(), link.begin_grace()]
    assert all(map(stays_open, graces))
    chain.may_answer.set()
    assert all(map(becomes, graces))
    thread.join()


@pytest.mark.sample(among="a grace period")
def test_it_does_not_wait_for_those_that_wait_for_an_epoch(chain: SlowChain, link: ServerLink) -> None:
    with Client(link.addresses[0]) as client:
        offsets = {"t": {0: 1000}}
        threads = [
            ask(link, "wait", min_offsets=offsets, timeout_ms=200_000),
            ask(link, "get", program="rank", vertices=[100], min_offsets=offsets, timeout_ms=200_000),
        ]
        until(lambda: client.stats()["server"]["connections"] == 3)
    assert becomes(link.begin_grace())
    assert all(thread.is_alive() for thread in threads)
    while any(thread.is_alive() for thread in threads):
        chain.number += 50
        link.publish(chain.publication())


@pytest.mark.sample(among="a grace period")
def test_a_client_that_goes_away_keeps_nothing(chain: SlowChain, link: ServerLink) -> None:
    with raw(link.addresses[0]) as connection:
        connection.send(request(1, "neighbors", {"vertex": 103}))
        assert chain.asked_about.wait(60)
        is_over = link.begin_grace()
    assert becomes(is_over)


@pytest.mark.sample(among="a grace period")
def test_the_requests_of_a_dead_server_have_ended(chain: SlowChain, link: ServerLink) -> None:
    with Client(link.addresses[0], timeout=PATIENCE_S):
        assert link.pid is not None
        os.kill(link.pid, signal.SIGSTOP)
        is_over = link.begin_grace()
        assert stays_open(is_over)
        os.kill(link.pid, signal.SIGKILL)
        assert becomes(is_over)
        assert becomes(lambda: link.is_ready)
        assert becomes(link.begin_grace())


@pytest.mark.sample(among="a grace period")
def test_requests_after_it_find_no_removed_id(chain: SlowChain, link: ServerLink) -> None:
    """Also where the arrays were renewed meanwhile, of which the server hears with epochs only."""
    generation = chain.index.generation
    chain.index.insert(np.arange(10_000, 14_000))
    assert chain.index.generation > generation
    chain.index.remove(np.array([7, 9], np.uint32))
    assert becomes(link.begin_grace())
    with Client(link.addresses[0]) as client:
        answer = client.get("rank", [106, 107, 108, 109])
        assert list(answer.unknown) == [107, 109]
