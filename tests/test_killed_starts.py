"""Starts, and stops, that die (SIGKILL) before or behind a named call: the next start ends in the same state.

Failpoints are passed by what runs; these places are on the way there and back: while a checkpoint is read, in the
midst of a replay, before and behind the first checkpoint, between the last publication and the last checkpoint,
while who writes results finds out where he was.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import SOURCE, VERTICES_MAX, SpoolHistory
from results_readers import FilesReader, read_up_to, require_answers
from running import Daemon
from waiting import PATIENCE_S

from graphtide.daemon.records.stream import offsets_to_wire

SETTINGS: dict[str, Any] = {
    "graph": {"vertices_max": VERTICES_MAX},
    "epoch": {"updates_max": 400, "queue_updates_max": 800},
    "program": [{"name": "bfs", "id": "hops", "source": SOURCE}, {"name": "components"}],
    "audit": {"full_every_epoch": False},
}
RECORDS = 15

KILLED = """
import importlib, itertools, os, signal
from graphtide.daemon.cli import main

module, name, number, when = {place!r}
owner = importlib.import_module(f"graphtide.daemon.{{module}}")
*classes, name = name.split(".")
for one in classes:
    owner = getattr(owner, one)
real, calls = getattr(owner, name), itertools.count(1)

def killed(*given, **named):
    is_it = next(calls) == number
    found = None if is_it and when == "before" else real(*given, **named)
    if is_it:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

setattr(owner, name, killed)
main()
"""

Place = tuple[str, str, int, str]

STARTS: list[Place] = [
    ("state.checkpoint", "_checksum", 3, "before"),
    ("state.checkpoint", "CheckpointStore.next_incarnation", 1, "before"),
    ("state.checkpoint", "CheckpointStore.next_incarnation", 1, "behind"),
    ("contents", "Contents._load", 1, "behind"),
    ("state.order_log", "OrderLog.open", 1, "behind"),
    ("ingest.ordered", "OrderedReader._next_target", 4, "before"),
    ("engine.pipeline", "Pipeline.start", 1, "behind"),
    ("outgoing.writer", "Writer._adopt", 1, "before"),
    ("outgoing.spool", "SpoolSink._next_writer", 1, "behind"),
    ("outgoing.writer", "Writer._done", 1, "before"),
]
FIRST_STARTS: list[Place] = [
    ("state.checkpointer", "Checkpointer.write_beginning", 1, "before"),
    ("state.checkpoint", "put_in_place", 1, "before"),
    ("state.checkpointer", "Checkpointer.write_beginning", 1, "behind"),
]
STOPS: list[Place] = [
    ("state.checkpointer", "Checkpointer.close", 1, "before"),
    ("state.checkpoint", "put_in_place", 1, "before"),
    ("state.checkpoint", "CheckpointStore._prune", 1, "before"),
    ("service", "Service.shutdown", 1, "behind"),
]


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("place", "when"),
    [(place, "a start") for place in STARTS]
    + [(place, "the first start") for place in FIRST_STARTS]
    + [(place, "a stop") for place in STOPS],
)
def test_a_start_after_one_that_was_killed_ends_in_the_same_state(
    tmp_path: Path, place: Place, when: str, seed: int
) -> None:
    folder = tmp_path / "results"
    settings = {**SETTINGS, "results": {"kind": "spool", "path": folder, "file_bytes": 1 << 16}}
    with Daemon(tmp_path, settings) as daemon:
        history = SpoolHistory(daemon.spool, np.random.default_rng(seed))
        reader = FilesReader(folder)
        history.produce_source()

        def right() -> None:
            """What it answers, and readers of results know, is what was produced."""
            final = history.final()
            with daemon.client() as asking:
                asking.wait(offsets_to_wire(history.next_offsets), timeout_ms=300_000)
                stats = asking.stats()
                assert (stats["vertices"], stats["edges"]) == (final.ids.size, final.src.size)
                hops = asking.get("hops", final.ids).values.filled(2**32 - 1)
                np.testing.assert_array_equal(hops.astype(np.uint32), final.hops(SOURCE).astype(np.uint32))
                components = asking.get("components", final.ids).values
                np.testing.assert_array_equal(components, final.component_labels())
                read_up_to(reader, asking.programs().epoch)
                require_answers(asking, reader.known, history.vertices)

        if when != "the first start":
            history.produce(RECORDS)
            daemon.start()
            right()
            with daemon.client() as asking:
                asking.checkpoint()
            for _ in range(3):  # to be replayed
                history.produce(RECORDS)
                right()
            daemon.kill()
        history.produce(RECORDS)
        usual, daemon.program = daemon.program, ("-c", KILLED.format(place=place))
        process = daemon.start(ready_s=None).process
        assert process is not None
        if when == "a stop":
            daemon.wait_ready(PATIENCE_S)
            right()
            process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL, daemon.log_tail()
        daemon.program = usual
        history.produce(RECORDS)
        daemon.start()
        right()
        assert daemon.stop() == 0, daemon.log_tail()
