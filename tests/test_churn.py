"""The daemon on a stream whose vertices come and go for ever: it needs no more ids than it has vertices, and
nobody is ever shown what belonged to another vertex."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Daemon
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.daemon.errors import UnknownVertex
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import IdColumn, StringColumn

RINGS, SIZE = 20, 50
"""A record makes so many rings of so many vertices, and takes away those of ``ALIVE`` records before."""
ALIVE = 3
PER_RECORD = RINGS * SIZE
RECORDS, MORE = 80, 40

pytestmark = pytest.mark.timeout(600)


def named(kind: str, numbers: np.ndarray) -> Any:
    """External ids; strings of many lengths."""
    return [f"{'long' * (n % 9)}/{n:08}" for n in numbers.tolist()] if kind == "string" else numbers


def column(kind: str, numbers: np.ndarray) -> IdColumn:
    return StringColumn.of(named(kind, numbers)) if kind == "string" else numbers


def record(kind: str, number: int) -> bytes:
    """Vertices of other records never meet: ring k of record r has the numbers from (r * RINGS + k) * SIZE on."""
    born = np.arange(number * PER_RECORD, (number + 1) * PER_RECORD)
    after = born // SIZE * SIZE + (born + 1) % SIZE
    gone = born - ALIVE * PER_RECORD
    gone = gone[gone >= 0]
    src = np.concatenate([born, gone])
    dst = np.concatenate([after, np.zeros(gone.size, np.int64)])
    ops = np.repeat(np.array([Op.INSERT, Op.DELETE_VERTEX], np.uint8), [born.size, gone.size])
    heads = column(kind, dst)
    if kind == "string":
        heads = StringColumn.of([*named(kind, after), *[""] * gone.size])
    return encode_msgpack(column(kind, src), heads, ops)


def label_of(kind: str, number: int) -> Any:
    """The smallest id of its ring; strings by their bytes."""
    return min(named(kind, np.arange(SIZE) + number // SIZE * SIZE))


class Reader(threading.Thread):
    """Asks for vertices of all records and holds every answer against what their rings say."""

    def __init__(self, daemon: Daemon, kind: str, upto: list[int]) -> None:
        super().__init__()
        self.daemon_process, self.kind, self.upto = daemon, kind, upto
        self.done = threading.Event()
        self.known = self.unknown = 0
        self.looks = 0
        self.wrong: list[Any] = []

    def run(self) -> None:
        rng = np.random.default_rng(3)
        try:
            with self.daemon_process.client() as client:
                while not self.done.is_set():
                    # Mostly those that are about to come, to go, or to have gone.
                    newest = self.upto[0]
                    numbers = rng.integers(max(newest - 8, 0) * PER_RECORD, (newest + 2) * PER_RECORD, 300)
                    self.look(client, np.unique(numbers))
                    self.looks += 1
        except Exception as error:
            self.wrong.append(error)

    def look(self, client: Client, numbers: np.ndarray) -> None:
        ids = named(self.kind, numbers)
        name = dict(zip(ids if self.kind == "string" else ids.tolist(), numbers.tolist(), strict=True))
        answer = client.get("components", ids)
        unknown = {name[id] for id in answer.unknown}
        self.unknown += len(unknown)
        for number, label in zip(numbers.tolist(), answer.values.tolist(), strict=True):
            if number not in unknown:
                self.known += 1
                if label != label_of(self.kind, number):
                    self.wrong.append((number, label))
        for number in numbers[:3].tolist():
            self.neighbors(client, number)
        best = client.top("pagerank", k=20)
        if not set(map(type, best.ids)) <= {str, int, np.int64}:
            self.wrong.append(best.ids)

    def neighbors(self, client: Client, number: int) -> None:
        ring = np.arange(SIZE) + number // SIZE * SIZE
        after = named(self.kind, ring[(number + 1) % SIZE : (number + 1) % SIZE + 1])[0]
        vertex = named(self.kind, np.array([number]))[0]
        try:
            found = list(client.neighbors(vertex, direction="out").ids)
            members = list(client.component(vertex, limit=SIZE).members)
        except UnknownVertex:
            return
        if found != [after]:
            self.wrong.append((vertex, found))
        if set(members) != set(named(self.kind, ring)):
            self.wrong.append((vertex, members))


def settle(client: Client, offsets: dict[str, int], alive: Sequence[int], kind: str) -> int:
    """All vertices and no others, every value right; how many dense ids there are."""
    client.wait(offsets)
    stats = client.stats()
    assert stats["vertices"] == stats["edges"] == len(alive) * PER_RECORD
    for number in alive:
        numbers = np.arange(number * PER_RECORD, (number + 1) * PER_RECORD)
        labels = client.get("components", named(kind, numbers)).values.tolist()
        assert labels == [label_of(kind, number) for number in numbers.tolist()]
    gone = np.arange((alive[0] - 1) * PER_RECORD, alive[0] * PER_RECORD)
    assert len(client.get("components", named(kind, gone)).unknown) == PER_RECORD
    return int(stats["vertices"]) + int(stats["dead_vertices"])


def checkpointed(folder: Path) -> tuple[int, ...]:
    """The epoch of the newest checkpoint in this folder."""
    found = (tuple(map(int, path.name.split("-")[1:])) for path in folder.glob("checkpoint-*"))
    return max(found, default=(0, 0))


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_daemon_whose_vertices_come_and_go(kind: str, tmp_path: Path, run_long: bool) -> None:
    records = RECORDS * (10 if run_long else 1)
    settings = {
        "graph": {"vertex_ids": kind, "weights": "unweighted"},
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.2},
        "program": [
            {"name": "components"},
            {"name": "pagerank"},
            {"name": "bfs", "source": "none" if kind == "string" else -1},
        ],
    }
    with Daemon(tmp_path, settings) as daemon, SpoolWriter(daemon.spool, name="a") as writer:
        daemon.start()
        upto = [0]
        reader = Reader(daemon, kind, upto)
        reader.start()
        most = begun = 0
        grown: list[int] = []
        for number in range(records):
            writer.append(record(kind, number))
            upto[0] = number
            if number % 2:  # so that there are epochs, and not one of everything
                with daemon.client() as client:
                    client.wait({"a.msgpack": writer.offset})
                    stats = client.stats()
                    most = max(most, stats["vertices"] + stats["dead_vertices"])
                    looks = reader.looks
                    until(lambda reader=reader, looks=looks: reader.looks > looks or reader.wrong)
                    if number % 10 == 9:  # no id goes to another while a checkpoint is written, however long
                        until(lambda epoch=stats.epoch: checkpointed(tmp_path / "checkpoints") >= epoch)
            if number == records // 2:
                reader.done.set()
                reader.join()
                assert not reader.wrong
                daemon.kill()
                daemon.start()
                # All records since the last checkpoint may come in one epoch, in which none has died yet.
                with daemon.client() as client:
                    client.wait({"a.msgpack": writer.offset})
                    stats = client.stats()
                grown.append(most)
                most = begun = stats["vertices"] + stats["dead_vertices"]
                reader = Reader(daemon, kind, upto)
                reader.start()
        reader.done.set()
        reader.join()
        alive = range(records - ALIVE, records)
        with daemon.client() as client:
            assert settle(client, {"a.msgpack": writer.offset}, alive, kind) <= most
        assert not reader.wrong
        assert reader.known > 100 and reader.unknown > 100
        grown.append(most - begun)
        assert max(grown) < 0.45 * records * PER_RECORD
        assert daemon.stop() == 0, daemon.log_tail()
        daemon.start()
        with daemon.client() as client:
            settle(client, {"a.msgpack": writer.offset}, alive, kind)
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.long
def test_a_daemon_that_dies_while_ids_change_hands(tmp_path: Path, seed: int, run_long: bool) -> None:
    """At seven points one after the other; a sample: at one of them."""
    settings = {
        "graph": {"weights": "unweighted"},
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.1},
        "program": [{"name": "components"}, {"name": "pagerank"}],
    }
    points = (
        "checkpoint.copied:2",
        "checkpoint.array_written:14",
        "epoch.published:12",
        "checkpoint.before_rename:2",
        "epoch.applied:9",
        "ingest.queued:15",
        "checkpoint.after_rename:2",
    )
    chosen = np.random.default_rng(seed).permutation(points)[: None if run_long else 1].tolist()
    number = 0
    with Daemon(tmp_path, settings) as daemon, SpoolWriter(daemon.spool, name="a") as writer:
        for point in chosen:
            daemon.start(kill_at=point, ready_s=None)
            assert daemon.process is not None
            gives_up = time.monotonic() + PATIENCE_S
            for turn in itertools.count():
                writer.append(record("int", number))
                number += 1
                # Whoever starts slowly still sees more epochs than one of everything.
                time.sleep(0.02 if turn < 400 else 0.5)
                if daemon.process.poll() is not None or time.monotonic() > gives_up:
                    break
            assert daemon.process.poll() == -signal.SIGKILL, daemon.log_tail()
        daemon.start()
        with daemon.client() as client:
            begun = settle(client, {"a.msgpack": writer.offset}, range(number - ALIVE, number), "int")
            # However much of it came in one epoch, in which none has died yet: from here on ids go round.
            for turn in range(MORE):
                writer.append(record("int", number))
                number += 1
                client.wait({"a.msgpack": writer.offset})
                if turn % 5 == 4:  # no id goes to another while a checkpoint is written, however long
                    epoch = client.stats().epoch
                    until(lambda epoch=epoch: checkpointed(tmp_path / "checkpoints") >= epoch)
            ids = settle(client, {"a.msgpack": writer.offset}, range(number - ALIVE, number), "int")
        assert ids - begun < 0.5 * MORE * PER_RECORD
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a stream through a daemon")
def test_a_full_id_space_waits_for_the_ids_of_deleted_vertices(tmp_path: Path) -> None:
    """All records are there at once: the first poll alone names more vertices than there may be."""
    settings = {
        "graph": {"weights": "unweighted", "vertices_max": 5 * PER_RECORD},
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.1},
        "program": [{"name": "components"}],
    }
    with Daemon(tmp_path, settings) as daemon, SpoolWriter(daemon.spool, name="a") as writer:
        for number in range(40):
            writer.append(record("int", number))
        daemon.start()
        with daemon.client() as client:
            ids = settle(client, {"a.msgpack": writer.offset}, range(40 - ALIVE, 40), "int")
        assert ids <= 5 * PER_RECORD
        assert "waiting for the ids of deleted vertices" in daemon.log_tail(1000)
        # And where none is deleted, it is a clear stop.
        born = np.arange(10**6, 10**6 + 2 * PER_RECORD)
        writer.append(encode_msgpack(born, born))
        writer.append(encode_msgpack(born + 10**6, born))
        writer.flush()
        assert daemon.process is not None
        assert daemon.process.wait(60) != 0
        assert "new vertices beside" in daemon.log_tail()


FRAIL = """
from graphtide.compute.forest.components import Components

whole = Components.refresh

def refresh(self, graph, change):
    if self.id == "frail" and change.deleted_vertices.size:
        raise RuntimeError("it broke")
    return whole(self, graph, change)

Components.refresh = refresh
"""


@pytest.mark.sample(among="a stream through a daemon")
def test_a_program_that_failed_holds_no_ids_and_says_nothing_of_others_vertices(tmp_path: Path) -> None:
    (tmp_path / "frail.py").write_text(FRAIL)
    settings = {
        "graph": {"weights": "unweighted"},
        "compute": {"python_modules": ["frail"]},
        "program": [{"name": "components"}, {"name": "components", "id": "frail"}],
    }
    lasting = -1 - np.arange(SIZE)
    with Daemon(tmp_path, settings) as daemon, SpoolWriter(daemon.spool, name="a") as writer:
        daemon.start()
        writer.append(encode_msgpack(lasting, np.roll(lasting, 1)))
        most = 0
        with daemon.client() as client:
            for number in range(30):
                writer.append(record("int", number))
                writer.flush()
                client.wait({"a.msgpack": writer.offset})
                stats = client.stats()
                most = max(most, stats["vertices"] + stats["dead_vertices"])
                of_old = client.get("frail", lasting)
                assert of_old.values.tolist() == [-SIZE] * SIZE
                newest = client.get("frail", np.arange(number * PER_RECORD, (number + 1) * PER_RECORD))
                assert newest.unknown.size == 0
                if number < ALIVE:
                    expected = [
                        label_of("int", vertex) for vertex in range(number * PER_RECORD, (number + 1) * PER_RECORD)
                    ]
                    assert newest.stale is None and newest.values.tolist() == expected
                else:
                    assert newest.stale["reason"] == "RuntimeError: it broke" and newest.values.mask.all()
        assert most < 20 * PER_RECORD
        assert daemon.stop() == 0, daemon.log_tail()
