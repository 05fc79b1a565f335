"""Subscriptions of a real daemon: while it reads, killed, restarted, and while its query server is killed."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client as broker_client
from kafka import KafkaProducer
from killed import PARTITIONS, SOURCE, VERTICES, VERTICES_MAX, KafkaHistory
from running import Daemon
from test_daemon import PROGRAMS, churn_records, write
from waiting import until
from watching import Watcher

from graphtide import Client
from graphtide.daemon.records.stream import offsets_to_wire
from graphtide.daemon.tools.generate import Churn


@contextlib.contextmanager
def watching(client: Client, chosen: Any) -> Iterator[list[Watcher]]:
    """Subscribers to all vertices, to chosen ones, and to the best."""
    watchers: list[Watcher] = []
    try:
        for program, about in (
            ("hops", {}),
            ("components", {}),
            ("pagerank", {"vertices": chosen}),
            ("pagerank", {"top": 20}),
        ):
            watchers.append(Watcher(client, program, **about))
        yield watchers
    finally:
        for watcher in watchers:
            watcher.end()


@pytest.mark.sample(among="a daemon dies")
def test_subscribers_know_what_get_answers_whoever_is_killed(tmp_path: Path) -> None:
    parts, records = churn_records(Churn(scale=8, pool=1500, seed=7), 60, 100)
    ids = np.unique(np.concatenate([part.src for part in parts] + [part.dst for part in parts])).tolist()
    with Daemon(tmp_path, {"program": PROGRAMS}) as daemon:
        daemon.start()
        with daemon.client() as client, watching(client, ids[::7]) as watchers:
            for number, step in enumerate((20, 40, 60)):
                offsets: Any = {}
                for record in range(step - 20, step):
                    offsets = write(daemon, f"part{record}", records[record])
                    if record == step - 10 and number == 0:
                        daemon.query_server().kill()
                    elif record == step - 10 and number == 1:
                        daemon.kill()
                        daemon.start()
                until(daemon.answers)
                client.wait(offsets)
                until(lambda: client.stats()["stage"] == "running")
                for watcher in watchers:
                    watcher.check(client, ids)
            for watcher in watchers:
                if watcher.top is None:  # whoever asks for the best begins anew on each connection
                    # Only another incarnation begins anew.
                    assert [epoch[0] for epoch in watcher.snapshots] == [1, 2]


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_of_a_topic_no_epoch_is_missed_or_told_twice_whoever_is_killed(
    kafka: Any, tmp_path: Path, seed: int, run_long: bool
) -> None:
    """Vertices come and go, their dense ids change hands, and at random moments of the stream the query server and
    the daemon, which goes on from its checkpoints, are killed in turns."""
    rng = np.random.default_rng(seed)
    topic = f"told-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    settings = {
        "source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]},
        "graph": {"vertices_max": VERTICES_MAX},
        "epoch": {"updates_max": 400, "queue_updates_max": 800},
        "program": [{**program, **({"source": SOURCE} if "source" in program else {})} for program in PROGRAMS],
        "checkpoint": {"interval": 0.3},
        "audit": {"full_every_epoch": False},
    }
    with (
        Daemon(tmp_path, settings) as daemon,
        broker_client(KafkaProducer, kafka.bootstrap) as producer,
    ):
        history = KafkaHistory(producer, topic, rng)
        history.produce_source()
        daemon.start()
        with daemon.client() as client:
            client.wait(offsets_to_wire(history.next_offsets))
            with watching(client, np.arange(0, VERTICES, 3).tolist()) as watchers:
                _kill_while_they_are_told(daemon, client, history, watchers, rng, 15 if run_long else 2)
        assert daemon.stop() == 0


def _kill_while_they_are_told(
    daemon: Daemon,
    client: Client,
    history: KafkaHistory,
    watchers: list[Watcher],
    rng: np.random.Generator,
    rounds: int,
) -> None:
    for number in range(1, rounds + 1):
        for victim in rng.permutation(["query server", "daemon"]).tolist():
            before, moment = [watcher.changes for watcher in watchers], int(rng.integers(5, 25))
            for record in range(30):
                history.produce(1)
                if record == moment and victim == "query server":
                    dead = daemon.query_server()
                    dead.kill()
                    until(lambda: daemon.query_server().pid != dead.pid)  # noqa: B023
                elif record == moment:
                    daemon.kill()
                    daemon.start(ready_s=None)
            until(daemon.answers)
            client.wait(offsets_to_wire(history.next_offsets))
            until(lambda: client.stats()["stage"] == "running")
            ids = history.vertices.tolist()
            for watcher, changes in zip(watchers, before, strict=True):
                watcher.check(client, ids)
                assert watcher.covers(offsets_to_wire(history.next_offsets)) and watcher.changes > changes
                if watcher.top is None:  # the log of changes outlives a query server, and no daemon
                    assert [epoch[0] for epoch in watcher.snapshots] == list(range(1, client.stats().epoch[0] + 1))
            told = ", ".join(str(watcher.changes) for watcher in watchers)
            print(f"round {number}, the {victim} was killed: {told} changes", flush=True)
