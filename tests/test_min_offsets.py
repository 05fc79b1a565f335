"""Every request can ask for an epoch that covers offsets, and topology says which one it was read from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_server import Chain, serving
from waiting import until

from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Client
from graphtide.daemon.records.stream import Partition
from graphtide.daemon.serve.methods import METHODS
from graphtide.daemon.serve.supervisor import ServerLink

REQUESTS: dict[str, dict[str, Any]] = {
    "get": {"program": "rank", "vertices": [100]},
    "top": {"program": "rank"},
    "histogram": {"program": "rank"},
    "path": {"program": "hops", "target": 102},
    "component": {"vertex": 100},
    "neighbors": {"vertex": 100},
    "degree": {"vertices": [100]},
    "degree_distribution": {},
    "has_edge": {"src": [100], "dst": [101]},
    "khop": {"vertex": 100},
    "egonet": {"vertex": 100},
    "subgraph": {"vertices": [100, 101]},
    "cross_edges": {"src": [100], "dst": [101]},
    "programs": {},
    "stats": {},
    "checkpoint": {},
    "wait": {},
    "subscribe": {"program": "rank"},
    "compute": {"program": "pagerank"},
    "keep": {"program": "pagerank"},
    "drop": {"program": "rank"},
    "placement": {"vertices": [100]},
    "admin.rebalance": {},
    "admin.freeze": {},
    "admin.device": {},
}
WITH_PARAMETERS = ("compute", "keep")
"""Whatever else they are given is a parameter of the program."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Chain, ServerLink]]:
    chain = Chain()
    chain.grow(50)
    with serving(chain, tmp_path_factory.mktemp("s")) as link:
        yield chain, link


def test_all_requests_are_here() -> None:
    # unsubscribe is about a connection's own subscription, and tested beside it
    assert set(REQUESTS) == set(METHODS) - {"hello", "unsubscribe"}


@pytest.mark.parametrize("method", REQUESTS)
def test_every_request_waits_for_the_epoch_that_it_asks_for(
    running: tuple[Chain, ServerLink], method: str
) -> None:
    chain, link = running
    next_epoch = chain.number + 1
    waiting = {"min_offsets": {"t": {0: next_epoch * 10}}, "timeout_ms": 60_000}
    with Client(link.addresses[0], timeout=60) as client, ThreadPoolExecutor(1) as pool:
        client.stats()
        answer = pool.submit(client.call, method, {**REQUESTS[method], **waiting}, timeout_ms=60_000)
        with Client(link.addresses[0], timeout=60) as other:
            until(lambda: other.stats()["server"]["connections"] >= 2)
            for _ in range(3):
                other.stats()
            assert not answer.done()
            link.publish(chain.publication())
            assert answer.result(60)["epoch"] == [1, next_epoch]
            assert answer.result()["offsets"] == {"t": {0: next_epoch * 10}}


@pytest.mark.parametrize("method", REQUESTS)
def test_every_request_says_when_no_such_epoch_came(running: tuple[Chain, ServerLink], method: str) -> None:
    waiting = {"min_offsets": {"t": {0: 10**9}}, "timeout_ms": 1}
    with Client(running[1].addresses[0], timeout=60) as client:
        with pytest.raises(errors.TimedOut, match="no epoch covered"):
            client.call(method, {**REQUESTS[method], **waiting})
        with pytest.raises(errors.RequestError, match="min_offsets must map"):
            client.call(method, {**REQUESTS[method], "min_offsets": 5})
        unknown = "no parameter 'extra'" if method in WITH_PARAMETERS else "unknown parameters: extra"
        with pytest.raises(errors.RequestError, match=unknown):  # before it waits
            client.call(method, {**REQUESTS[method], "extra": 1, "min_offsets": {"t": {0: 10**9}}})


def test_results_can_be_asked_for_that_are_not_older_than_an_answer_about_edges(tmp_path: Path) -> None:
    chain = Chain()
    chain.grow(50)
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        chain.storage_ahead = 1  # applied, and not computed yet
        degree = client.degree([100])
        assert degree.epoch == (1, 2) and degree.offsets == {"t": {0: 20}}
        assert client.get("rank", [100]).epoch == (1, 1)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.get, "rank", [100], min_offsets=degree.offsets, timeout_ms=60_000)
            chain.storage_ahead = 0
            link.publish(chain.publication())
            assert answer.result(60).epoch == (1, 2)


def test_partitions_as_others_name_them_are_refused_in_words(running: tuple[Chain, ServerLink]) -> None:
    _, link = running
    offsets: dict[Any, int] = {Partition("t", 0): 10}
    refused = r"min_offsets names a topic .*, not Partition\(name='t', number=0\)"
    with Client(link.addresses[0], timeout=60) as client:
        for ask in (client.wait, lambda wanted: client.subscribe("rank", min_offsets=wanted)):
            with pytest.raises(TypeError, match=refused):
                ask(offsets)
        assert client.wait({"t": {0: 10}}, timeout_ms=60_000).offsets


def test_the_clients_pass_it_with_every_request(running: tuple[Chain, ServerLink]) -> None:
    chain, link = running
    covered: dict[str, Any] = {"min_offsets": {"t": {0: 10}}, "timeout_ms": 60_000}

    async def ask() -> None:
        async with AsyncClient(link.addresses[0]) as client:
            for method, params in answered.items():
                assert (await getattr(client, method.replace(".", "_"))(**params, **covered)).epoch == (
                    1,
                    chain.number,
                )
            async with contextlib.aclosing(client.subscribe("rank", **covered)) as changes:
                assert (await anext(changes)).epoch == (1, chain.number)

    answered = {method: params for method, params in REQUESTS.items() if method != "subscribe"}
    with Client(link.addresses[0], timeout=60) as client:
        for method, params in answered.items():
            assert getattr(client, method.replace(".", "_"))(**params, **covered).epoch == (1, chain.number)
        with client.subscribe("rank", **covered) as changes:
            assert next(changes).epoch == (1, chain.number)
    asyncio.run(ask())
