"""A daemon under a real limit of memory, which the system enforces by ending processes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from memory_groups import MemoryGroup, memory_group
from running import Daemon
from waiting import PATIENCE_S, until

from graphtide.daemon.cli import NO_ROOM
from graphtide.daemon.errors import GraphtideError, TimedOut
from graphtide.daemon.memory import GROWTH
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.gpma.edges import Op

ENTERING = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "graphtide", *sys.argv[2:]])
"""
MIB = 1 << 20
AMPLE = 8 << 30


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as group:
        if isinstance(group, str):
            pytest.skip(group)
        yield group


class Limited:
    """A daemon in a group of its own, and the writer of its spool."""

    def __init__(self, daemon: Daemon, group: MemoryGroup, writer: SpoolWriter) -> None:
        assert daemon.process is not None
        self.daemon, self.group, self.writer = daemon, group, writer
        self.engine = psutil.Process(daemon.process.pid)

    def leave(self, n_bytes: int) -> None:
        """Let so much be used beside what is."""
        self.group.limit(self.group.used() + n_bytes)

    def require_alive(self) -> None:
        assert self.engine.is_running() and self.group.kills() == 0, self.daemon.log_tail()

    def waits_for(self) -> str | None:
        self.require_alive()
        with self.daemon.client() as client:
            found: str | None = client.stats()["memory"]["waits_for"]
        return found

    def keep_pace(self) -> None:
        """Wait until all that was written is there, or it waits for memory."""
        until(lambda: self._is_there() or self.waits_for())

    def _is_there(self) -> bool:
        with self.daemon.client() as client, contextlib.suppress(TimedOut):
            client.wait({"a.msgpack": self.writer.offset}, timeout_ms=1000)
            return True
        return False

    def require_recovered(self) -> None:
        """With memory at hand, all that was sent is there."""
        self.group.limit(AMPLE)
        with self.daemon.client() as client:
            client.wait({"a.msgpack": self.writer.offset}, timeout_ms=int(PATIENCE_S * 1000))
        until(lambda: self.waits_for() is None)
        assert self.daemon.stop() == 0, self.daemon.log_tail()
        assert self.group.kills() == 0


@pytest.fixture
def limited(tmp_path: Path, group: MemoryGroup) -> Iterator[Limited]:
    settings = {
        "memory": {"budget": "off"},  # else reading waits before
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.5},
        "program": [{"name": "components"}, {"name": "pagerank"}, {"name": "bfs", "source": 0}],
        "audit": {"share": 0, "full_every_epoch": False},  # which takes much at once
    }
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path, settings))
        writer = stack.enter_context(SpoolWriter(daemon.spool, name="a"))
        daemon.start()
        limited = Limited(daemon, group, writer)
        group.limit(AMPLE)
        group.take([limited.engine, *limited.engine.children(recursive=True)])
        yield limited


@pytest.mark.sample(among="memory is lacking")
def test_a_graph_that_grows_waits_and_is_not_killed(limited: Limited) -> None:
    limited.leave(150 * MIB)
    rng, n = np.random.default_rng(1), 0

    def is_full() -> bool:
        nonlocal n
        for _ in range(4):  # each of 20,000 vertices of its own, and edges to those before
            src = n + rng.integers(0, 20_000, 50_000)
            limited.writer.append(encode_msgpack(src, rng.integers(0, n + 20_000, src.size)))
            n += 20_000
        limited.writer.flush()
        assert n < 4_000_000
        limited.keep_pace()
        return limited.waits_for() == GROWTH

    until(is_full)
    lasts = time.monotonic() + 3
    while time.monotonic() < lasts:  # checkpoints are due meanwhile
        if limited.waits_for() != GROWTH:  # a checkpoint ended, and gave its memory back
            until(is_full)
        time.sleep(0.1)
    limited.require_recovered()


@pytest.mark.sample(among="memory is lacking")
def test_vertices_that_come_in_large_numbers_wait_and_nobody_is_killed(limited: Limited) -> None:
    """They have no edges: what grows are the index and columns."""
    limited.leave(120 * MIB)
    for first in range(0, 4_000_000, 100_000):
        ids = np.arange(first, first + 100_000)
        limited.writer.append(encode_msgpack(ids, None, Op.INSERT_VERTEX))
    limited.writer.flush()
    until(lambda: limited.waits_for() == GROWTH)
    limited.require_recovered()


@pytest.mark.sample(among="memory is lacking")
def test_a_checkpoint_that_has_no_room_is_put_off_and_nobody_is_killed(limited: Limited) -> None:
    vertices = np.arange(2000)
    for first in range(0, 2000, 20):
        src = np.repeat(vertices[first : first + 20], vertices.size)
        limited.writer.append(encode_msgpack(src, np.tile(vertices, 20)))
    limited.writer.flush()
    with limited.daemon.client() as client:
        client.wait({"a.msgpack": limited.writer.offset}, timeout_ms=int(PATIENCE_S * 1000))
        client.checkpoint()
        limited.leave(40 * MIB)  # of which 32 are to stay free; the edges alone take 46
        limited.writer.append(encode_msgpack(vertices, vertices))
        limited.writer.flush()
        client.wait({"a.msgpack": limited.writer.offset}, timeout_ms=int(PATIENCE_S * 1000))
        put_off = "is put off, and the one before it stays"
        until(lambda: limited.require_alive() or put_off in limited.daemon.log_tail(1000))
        with pytest.raises(GraphtideError, match="out of memory"):
            client.checkpoint()
        limited.require_alive()
        assert limited.daemon.log_tail(1000).count(put_off) == 1
        limited.group.limit(AMPLE)
        client.checkpoint()
    limited.require_recovered()


@pytest.mark.sample(among="memory is lacking")
def test_who_starts_or_loads_without_room_ends_in_one_sentence_and_is_not_killed(
    group: MemoryGroup, tmp_path: Path
) -> None:
    """From what holds the interpreter and little else up to what is enough; in the group from the beginning."""
    edges = tmp_path / "edges.el"
    src, dst = np.random.default_rng(1).integers(0, 400_000, (2, 2_000_000))
    edges.write_bytes(b"".join(b"%d %d\n" % pair for pair in zip(src.tolist(), dst.tolist(), strict=True)))
    settings = {
        "memory": {"budget": "off"},
        "program": [{"name": "components"}, {"name": "pagerank"}, {"name": "bfs", "source": 0}],
        "audit": {"share": 0, "full_every_epoch": False},
    }
    entering = ("-c", ENTERING, str(group.folder / "cgroup.procs"))
    refused = re.compile(
        r"^graphtide: out of memory: [^\n]+: \d+ bytes more are needed, and of [^\n]+ left\n\Z", re.M
    )
    with Daemon(tmp_path, settings, program=entering) as daemon:
        loading = [
            sys.executable,
            *entering,
            "load",
            "--config",
            str(daemon.config),
            "--offsets",
            "{}",
            str(edges),
        ]
        codes = []
        for limit in (180, 500):
            group.limit(limit * MIB)
            done = subprocess.run(loading, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert group.kills() == 0, limit
            assert done.returncode == 0 or refused.search(done.stderr), done.stderr
            codes.append(done.returncode)
        assert codes == [NO_ROOM, 0]
        codes = []
        for limit in (180, 300, 1000):
            group.limit(limit * MIB)
            daemon.log.write_bytes(b"")
            daemon.start(ready_s=None)
            assert daemon.process is not None
            until(lambda: daemon.process.poll() is not None or daemon.answers())
            code = daemon.stop()
            assert group.kills() == 0, limit
            said = daemon.log.read_text()
            assert "Traceback" not in said and (code == 0 or refused.search(said)), said
            codes.append(code)
        assert codes[:2] == [NO_ROOM, NO_ROOM] and codes[-1] == 0


@pytest.mark.sample(among="memory is lacking")
def test_a_daemon_that_has_hardly_any_memory_left_can_be_stopped(limited: Limited) -> None:
    """The query server shares most of its pages with the process that forked it, and must not write to all."""
    limited.leave(8 * MIB)
    assert limited.daemon.stop() == 0, limited.daemon.log_tail()
    assert limited.group.kills() == 0
