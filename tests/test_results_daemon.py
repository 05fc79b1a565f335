"""Results that a real daemon writes, to a real topic and to files: readers know what it answers, whoever dies."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import client
from kafka import KafkaProducer
from killed import PARTITIONS, SOURCE, VERTICES_MAX, History, KafkaHistory, SpoolHistory
from results_readers import FilesReader, Reader, TopicReader, read_up_to, require_answers
from running import Daemon
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.outgoing.spool import files
from graphtide.daemon.records.stream import offsets_to_wire

SETTINGS: dict[str, Any] = {
    "graph": {"vertices_max": VERTICES_MAX},
    "epoch": {"updates_max": 400, "queue_updates_max": 800},
    "program": [
        {"name": "bfs", "id": "hops", "source": SOURCE},
        {"name": "components"},
        {"name": "pagerank", "tolerance": 1e-3},
    ],
    "checkpoint": {"interval": 0.3},
    "audit": {"full_every_epoch": False},
}
POINTS = ("results.sent", "results.committed", "epoch.published", "checkpoint.after_rename", "epoch.applied")


@pytest.fixture
def producer(kafka: Any) -> Iterator[KafkaProducer]:
    with client(KafkaProducer, kafka.bootstrap) as made:
        yield made


@pytest.fixture
def topics(kafka: Any) -> tuple[str, str]:
    """A topic of updates, and one for results."""
    name = f"out-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS)
    kafka.create_topic(f"{name}-results", 3, {"cleanup.policy": "compact"})
    return name, f"{name}-results"


def kill_and_go_on(daemon: Daemon, history: History, reader: Reader, rng: np.random.Generator, kills: int) -> None:
    """Kill the daemon while it writes, over and over, and let it go on: readers know what it answers."""
    kill_while_it_writes(daemon, history, reader, rng, kills)
    daemon.start()
    history.produce(5)
    with daemon.client() as asked:
        asked.keep("bfs", {"source": SOURCE}, id="last")
        until(lambda: all(shown["state"] == "fresh" for shown in asked.programs()["programs"].values()))
        asked.wait(offsets_to_wire(history.next_offsets))
        read_up_to(reader, asked.programs().epoch)
        require_answers(asked, reader.known, history.vertices)


def kill_while_it_writes(
    daemon: Daemon, history: History, reader: Reader, rng: np.random.Generator, kills: int
) -> None:
    """It dies at a point that is drawn, each time; every time what is there is whole."""
    for _ in range(kills):
        point = f"{rng.choice(POINTS)}:{rng.integers(1, 6)}"
        daemon.start(kill_at=point, ready_s=None)
        assert daemon.process is not None
        deadline, sent = time.monotonic() + PATIENCE_S, 0
        while daemon.process.poll() is None and time.monotonic() < deadline:
            history.produce(2)
            sent += 2
            keep_or_drop(daemon, rng)
            if sent > 20:
                until(lambda: settled(daemon))
        # Nothing else kills it: it came to the point.
        assert daemon.process.poll() == -signal.SIGKILL, f"not killed at {point}:\n{daemon.log_tail()}"
        reader.read()
        snapshots = sum(end.snapshot for end in reader.ends)
        print(f"killed at {point}: {len(reader.ends)} transactions, {snapshots} of every vertex", flush=True)


def keep_or_drop(daemon: Daemon, rng: np.random.Generator) -> None:
    """A program comes or goes, if the daemon lives to see it; one or another under the same id."""
    with suppress(GraphtideError), Client(daemon.address, timeout=5) as asked:
        if rng.random() < 0.4:
            asked.drop("passing")
        elif rng.random() < 0.5:
            asked.keep("bfs", {"source": int(rng.integers(SOURCE, SOURCE + 2))}, id="passing")
        else:
            asked.keep("components", {}, id="passing")


def settled(daemon: Daemon) -> bool:
    """It has published all that there is to read, or is dead: whatever comes now is another epoch."""
    if daemon.process is None or daemon.process.poll() is not None:
        return True
    try:
        with daemon.client() as asked:
            return not any(counts(asked.stats()["lag"]["amount"]))
    except GraphtideError:
        return False


def counts(amount: Any) -> Iterator[int]:
    for value in amount.values():
        yield from counts(value) if isinstance(value, dict) else (value,)


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_a_topic_is_whole_and_right_whenever_the_daemon_dies_or_the_broker_is_away(
    kafka: Any, topics: tuple[str, str], tmp_path: Path, seed: int, run_long: bool
) -> None:
    rng = np.random.default_rng(seed)
    results = {"kind": "kafka", "topic": topics[1], "bootstrap_servers": [kafka.bootstrap], "encoding": "json"}
    reader = TopicReader(kafka.bootstrap, topics[1], 3)
    with Daemon(tmp_path, {**SETTINGS, "results": results}) as daemon:
        history = SpoolHistory(daemon.spool, rng)
        kill_and_go_on(daemon, history, reader, rng, 15 if run_long else 1)
        with daemon.client() as asked:

            def publish(records: int) -> tuple[int, int]:
                history.produce(records)
                asked.wait(offsets_to_wire(history.next_offsets))
                epoch: tuple[int, int] = asked.stats().epoch
                return epoch

            before = len(reader.ends)
            kafka.stop()
            try:
                first = publish(3)
                until(lambda: asked.stats()["results"]["lag"]["seconds"] > 0)
                for _ in range(5):
                    last = publish(3)
            finally:
                kafka.start()
            read_up_to(reader, last)
            require_answers(asked, reader.known, history.vertices)
            assert len(reader.ends) - before < last[1] - first[1]  # most were merged
            until(lambda: asked.stats()["results"]["trouble"] is None)
        assert daemon.stop() == 0


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_a_topic_of_the_source_s_brokers_is_whole_and_right(
    kafka: Any, topics: tuple[str, str], producer: KafkaProducer, tmp_path: Path, seed: int, run_long: bool
) -> None:
    updates, results = topics
    rng = np.random.default_rng(seed)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [updates]}
    settings = {**SETTINGS, "source": source, "results": {"kind": "kafka", "topic": results}}
    with Daemon(tmp_path, settings) as daemon:
        history = KafkaHistory(producer, updates, rng)
        kill_and_go_on(daemon, history, TopicReader(kafka.bootstrap, results, 3), rng, 30 if run_long else 1)
        assert daemon.stop() == 0


@pytest.mark.sample(among="a stream through a daemon")
def test_a_kept_program_is_written_from_the_epoch_at_which_it_joins(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "results"
    settings = {**SETTINGS, "results": {"kind": "spool", "path": folder}, "checkpoint": {"interval": 3600}}
    with Daemon(tmp_path, settings) as daemon:
        history = SpoolHistory(daemon.spool, np.random.default_rng(seed))
        history.produce(10)
        daemon.start()
        with daemon.client() as asked:
            asked.wait(offsets_to_wire(history.next_offsets))
            asked.keep("bfs", {"source": SOURCE}, id="kept")
            until(lambda: asked.programs()["programs"]["kept"]["state"] == "fresh")
            joined = asked.programs()["programs"]["kept"]["joined"]
            reader = read_up_to(FilesReader(folder), tuple(joined))
            assert all(("kept" in end.programs) == (list(end.epoch) >= joined) for end in reader.ends)
            require_answers(asked, reader.known, history.vertices)
            asked.checkpoint()
        daemon.kill()
        daemon.start()
        history.produce(3)
        with daemon.client() as asked:
            asked.wait(offsets_to_wire(history.next_offsets))
            read_up_to(reader, asked.programs().epoch)
            require_answers(asked, reader.known, history.vertices)
            # It was in the checkpoint: what is written behind that is what changed.
            assert not any(end.snapshot for end in reader.ends[1:])
            asked.drop("kept")
            read_up_to(reader, asked.programs().epoch)
            assert not any(program == "kept" for program, _ in reader.known)
        assert daemon.stop() == 0


@pytest.mark.sample(among="a daemon dies")
def test_files_go_on_where_somebody_took_the_newest_away(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "results"
    settings = {**SETTINGS, "results": {"kind": "spool", "path": folder, "file_bytes": 1 << 16}}
    with Daemon(tmp_path, settings) as daemon:
        history = SpoolHistory(daemon.spool, np.random.default_rng(seed))
        daemon.start()
        with daemon.client() as asked:

            def written() -> FilesReader:
                history.produce(5)
                asked.wait(offsets_to_wire(history.next_offsets), timeout_ms=60_000)
                reader = read_up_to(FilesReader(folder), asked.programs().epoch)
                require_answers(asked, reader.known, history.vertices)
                return reader

            series = written().ends[-1].series
            while len(files(folder)) < 2:
                written()
            files(folder)[-1].unlink()
            reader = written()
            assert any(end.snapshot and end.series != series for end in reader.ends)
            until(lambda: asked.stats()["results"]["trouble"] is None)
        assert daemon.stop() == 0


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_files_are_whole_and_right_whenever_the_daemon_dies(tmp_path: Path, seed: int, run_long: bool) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path / "results"
    settings = {**SETTINGS, "results": {"kind": "spool", "path": folder, "file_bytes": 1 << 16}}
    with Daemon(tmp_path, settings) as daemon:
        history = SpoolHistory(daemon.spool, rng)
        kill_and_go_on(daemon, history, FilesReader(folder), rng, 30 if run_long else 1)
        assert daemon.stop() == 0
