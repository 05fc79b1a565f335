"""The daemon is killed at seeded points, over and over, and loses nothing.

One history of updates is produced piece by piece, bad records among it (``killed.py``). Some of its vertices are
deleted, and new ones come for ever, so that their dense ids go from one to the other. Others have edges in all
partitions and are deleted between two barriers, over and over. For each piece the daemon is
started with orders to kill itself (SIGKILL) at a point drawn from a seed: in any stage, inside a
checkpoint's writing and renaming, inside a dead-letter write. Others are killed, or asked to stop, at a random
moment of their start. Now and then there is trouble besides: its disk is full, or its query server stands still or
is killed. In the end it runs undisturbed, and its graph and
answers must equal those of a computation that was never killed.

Three of four kills are of a daemon that reads a real broker, from ``latest`` on; the others read a spool of many
files, from which what is done with is deleted. ``--kills N`` sets how often; the seed of each kill is printed, and
``--seed S`` plays the same run again.
"""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from brokers import client
from disks import filled, small_disk
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from killed import PARTITIONS, SOURCE, VERTICES_MAX, History, KafkaHistory, SpoolHistory
from running import Daemon
from waiting import until

from graphtide import Client
from graphtide.daemon.cli import NO_ROOM
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.failpoints import ON_REQUEST, POINTS
from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.records.stream import offsets_to_wire
from graphtide.daemon.tools.verify import FinalGraph

pytestmark = [pytest.mark.kafka, pytest.mark.kill, pytest.mark.timeout(36_000)]

RECORDS_AT_ONCE = 120
PLACES = [point for point in POINTS if point not in ON_REQUEST and not point.startswith(("results.", "rows."))]
"""Nobody asks for programs here, or writes results (``test_results_daemon.py`` kills who does), and no rows move
(``test_owned_daemon.py``)."""
SETTINGS: dict[str, Any] = {
    "graph": {"vertices_max": VERTICES_MAX},
    "epoch": {"updates_max": 400, "queue_updates_max": 800},
    "program": [
        {"name": "bfs", "id": "hops", "source": SOURCE},
        {"name": "components"},
        {"name": "pagerank", "tolerance": 1e-3},
    ],
}


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    seed = request.config.getoption("--seed")
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"\nreplay this run with --seed {seed}")
    return np.random.default_rng(seed)


def dead_letter_sources(bootstrap: str, topic: str) -> list[str]:
    """The ``graphtide-source`` header of every dead letter."""
    with client(KafkaConsumer, bootstrap, enable_auto_commit=False) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found: list[str] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [dict(record.headers)["graphtide-source"].decode() for record in records]
        return found


# -- trouble besides ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _server_stands_still(daemon: Daemon, disk: Path) -> Iterator[None]:
    server = None
    with contextlib.suppress(psutil.NoSuchProcess):
        server = daemon.query_server()
        server.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            if server is not None:
                server.resume()


@contextlib.contextmanager
def _server_dies(daemon: Daemon, disk: Path) -> Iterator[None]:
    with contextlib.suppress(psutil.NoSuchProcess):
        daemon.query_server().kill()
    yield


@contextlib.contextmanager
def _disk_is_full(daemon: Daemon, disk: Path) -> Iterator[None]:
    with filled(disk):
        yield


TROUBLES: dict[str, Callable[[Daemon, Path], contextlib.AbstractContextManager[None]]] = {
    "server stands still": _server_stands_still,
    "server dies": _server_dies,
    "disk is full": _disk_is_full,
}
TROUBLES_PER_KILL = 0.3
STARTS_PER_KILL = 0.25
START_S = 6.0
"""A start takes about so long: importing, kernels, a checkpoint, programs, and what lies in the source."""


# -- kills --------------------------------------------------------------------------------------------------------


def kill(
    daemon: Daemon,
    history: History,
    rng: np.random.Generator,
    kills: int,
    disk: Path | None,
    cleaned: Counter[str],
    counts_max: int = 5,
) -> None:
    """So many times start the daemon, feed it until it kills itself, and note how that went.

    ``counts_max``: how often it passes the point at most before it does.
    """
    outcomes = Counter[str]()
    for number in range(1, kills + 1):
        if rng.random() < STARTS_PER_KILL:
            outcome = _end_while_it_starts(daemon, history, rng)
            outcomes[outcome] += 1
            print(f"kill {number}/{kills}: {outcome}", flush=True)
            continue
        name, count = PLACES[int(rng.integers(len(PLACES)))], int(rng.integers(1, counts_max + 1))
        troubles = [trouble for trouble in TROUBLES if disk is not None or trouble != "disk is full"]
        trouble = str(rng.choice(troubles)) if rng.random() < TROUBLES_PER_KILL else None
        patience_s = float(rng.uniform(5, 15))
        daemon.start(kill_at=f"{name}:{count}", ready_s=None)
        with contextlib.ExitStack() as stack:
            outcome = _produce_until_death(
                daemon, history, patience_s, trouble, disk or daemon.folder, stack, cleaned
            )
        beside = "" if trouble is None else f", beside: {trouble}"
        outcomes[f"{name}, {outcome}{beside}"] += 1
        print(f"kill {number}/{kills} at {name}:{count}: {outcome}{beside}", flush=True)
    print(dict(outcomes), dict(cleaned))


def _end_while_it_starts(daemon: Daemon, history: History, rng: np.random.Generator) -> str:
    """Start it on some records more, and end it at a moment that is drawn."""
    history.produce(int(rng.integers(RECORDS_AT_ONCE)))
    moment_s = float(rng.uniform(0, START_S))
    daemon.start(ready_s=None)
    time.sleep(moment_s)
    stage = "answers" if daemon.answers() else "no answers"
    if rng.random() < 0.5:
        daemon.kill()
        return f"killed while it started ({stage})"
    # Until its command is read, the system ends it.
    assert daemon.stop() in (0, -signal.SIGTERM), daemon.log_tail()
    return f"stopped while it started ({stage})"


def _produce_until_death(
    daemon: Daemon,
    history: History,
    patience_s: float,
    trouble: str | None,
    disk: Path,
    stack: contextlib.ExitStack,
    cleaned: Counter[str],
) -> str:
    """Send records by and by until the daemon kills itself; past the patience kill it from outside.

    The trouble, which begins when it answers, ends with the stack.
    """
    assert daemon.process is not None
    deadline = time.monotonic() + patience_s
    sent, answered = 0, False
    while daemon.process.poll() is None:
        if time.monotonic() > deadline:
            daemon.kill()
            return "killed from outside"
        history.produce(2)
        sent += 2
        cleans = isinstance(history, SpoolHistory)
        if (cleans or not answered) and (offsets := _answered_offsets(daemon)):
            if isinstance(history, SpoolHistory):
                cleaned["files deleted"] += history.clean(offsets)
            if not answered and trouble is not None:
                stack.enter_context(TROUBLES[trouble](daemon, disk))
            answered = True
        # A daemon that starts slowly finds many records in its first poll, and needs others for more epochs.
        time.sleep(0.05 if sent < RECORDS_AT_ONCE else 0.5)
    expected = {-9, NO_ROOM} if trouble == "disk is full" else {-9}
    assert daemon.process.returncode in expected, f"status {daemon.process.returncode}:\n{daemon.log_tail()}"
    return "killed itself" if daemon.process.returncode == -9 else "found no room"


def _answered_offsets(daemon: Daemon) -> dict[str, Any]:
    """The offsets of an answer; none while nobody answers."""
    try:
        with Client(daemon.address, timeout=1) as client:
            offsets: dict[str, Any] = client.programs().offsets
            return offsets
    except GraphtideError:
        return {}


def test_nothing_is_lost_or_doubled_whenever_the_daemon_dies(
    kafka: Any, rng: np.random.Generator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = f"kill-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}-dead", 1)
    kills = -(-request.config.getoption("--kills") * 3 // 4)
    with small_disk(tmp_path / "disk", megabytes=64) as disk, client(KafkaProducer, kafka.bootstrap) as producer:
        before = KafkaHistory(producer, topic, rng)
        before.produce(10)
        kept = disk or tmp_path
        settings = SETTINGS | {
            "source": {
                "kind": "kafka",
                "bootstrap_servers": [kafka.bootstrap],
                "topics": [topic],
                "start": "latest",
            },
            "dead_letters": {"topic": f"{topic}-dead", "path": kept / "dead-letters"},
            "checkpoint": {"path": kept / "checkpoints", "interval": 0.1},
        }
        with Daemon(tmp_path, settings) as daemon:
            # What was produced before is not read: the first checkpoint keeps where that ends.
            daemon.start()
            with daemon.client() as asking:
                asking.wait(min_offsets=offsets_to_wire(before.next_offsets), timeout_ms=300_000)
            daemon.kill()
            history = KafkaHistory(producer, topic, rng)
            history.barriers = before.barriers
            kill(daemon, history, rng, kills, disk, Counter())
            daemon.start()
            with daemon.client() as asking:
                asking.wait(min_offsets=offsets_to_wire(history.next_offsets), timeout_ms=300_000)
                check_answers(asking, history.final())
            assert daemon.stop() == 0, daemon.log_tail()
    assert set(dead_letter_sources(kafka.bootstrap, f"{topic}-dead")) == history.bad


@pytest.mark.sample(among="a daemon dies")
def test_nothing_of_a_spool_is_lost_or_doubled_while_files_go(
    rng: np.random.Generator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = -(-request.config.getoption("--kills") // 4)
    cleaned = Counter[str]()
    with small_disk(tmp_path / "disk", megabytes=64) as disk:
        kept = disk or tmp_path
        settings = SETTINGS | {
            "dead_letters": {"path": kept / "dead-letters"},
            "checkpoint": {"path": kept / "checkpoints", "interval": 0.1},
        }
        with Daemon(tmp_path, settings) as daemon:
            history = SpoolHistory(daemon.spool, rng)
            kill(daemon, history, rng, kills, disk, cleaned, counts_max=30)  # files take a while to be done with
            daemon.start()
            with daemon.client() as asking:
                cleaned["files deleted"] += until(lambda: files_that_went(history, asking))
                check_answers(asking, history.final())
            assert daemon.stop() == 0, daemon.log_tail()
        print(dict(cleaned))
        assert {letter.place for letter in read_dead_letters(kept / "dead-letters")} == history.bad


def files_that_went(history: SpoolHistory, asking: Client) -> int:
    """Wait for all that was produced, and a little more: how many files are done with by then."""
    history.produce(SpoolHistory.RECORDS_OF_A_FILE)
    asking.wait(min_offsets=offsets_to_wire(history.next_offsets), timeout_ms=300_000)
    return history.clean(asking.programs().offsets)


def check_answers(client: Any, final: FinalGraph) -> None:
    """Every vertex's edges and results against the reference."""
    stats = client.stats()
    assert (stats["vertices"], stats["edges"]) == (final.ids.size, final.src.size)
    expected: dict[int, list[int]] = {int(vertex): [] for vertex in final.ids}
    for src, dst in zip(final.ids[final.src].tolist(), final.ids[final.dst].tolist(), strict=True):
        expected[src].append(dst)
    for vertex, neighbors in expected.items():
        assert sorted(client.neighbors(vertex, direction="out", limit=VERTICES_MAX).ids.tolist()) == sorted(
            neighbors
        )
    ids = final.ids
    hops = client.get("hops", ids).values
    np.testing.assert_array_equal(hops.filled(2**32 - 1).astype(np.uint32), final.hops(SOURCE).astype(np.uint32))
    np.testing.assert_array_equal(client.get("components", ids).values, final.component_labels())
    np.testing.assert_allclose(client.get("pagerank", ids).values, final.pagerank(), rtol=1e-3)
