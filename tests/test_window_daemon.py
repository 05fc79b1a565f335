"""A daemon whose edges expire: what goes, and that a restart goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from running import Daemon
from waiting import until

from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter

SECOND = 1000
NOW = 1_700_000_000 * SECOND


def daemon(folder: Path, window: dict[str, Any], **more: Any) -> Daemon:
    settings = {
        "window": window,
        "program": [{"name": "components"}],
        **more,
    }
    return Daemon(folder, settings)


class Spool:
    """One file, to which updates are added."""

    def __init__(self, daemon: Daemon, name: str = "a") -> None:
        self.folder = daemon.spool
        self.name = name

    def write(self, edges: list[tuple[int, int]], at: float, op: int = 1) -> dict[str, int]:
        """One record at a time in seconds; where the file ends."""
        src, dst = np.array(edges, np.int64).reshape(-1, 2).T
        ops = np.full(src.size, op, np.uint8)
        times = np.full(src.size, NOW + round(at * SECOND), np.int64)
        with SpoolWriter(self.folder, name=self.name) as writer:
            return {writer.name: writer.append(encode_msgpack(src, dst, ops, timestamps_ms=times))}


def edges(client: Any, offsets: dict[str, int], vertices: range) -> set[tuple[int, int]]:
    """The edges once these offsets are shown and nothing is due."""
    client.stats(min_offsets=offsets)
    until(lambda: not client.stats()["window"]["is_due"])
    found = set()
    for vertex in vertices:
        try:
            page = client.neighbors(vertex)
        except Exception as error:
            if "unknown" in str(error):
                continue
            raise
        found |= {(vertex, int(other)) for other in page.ids}
    return found


def test_edges_go_after_their_time_also_over_a_restart(tmp_path: Path) -> None:
    with daemon(tmp_path, {"length": 10.0}) as running:
        spool = Spool(running)
        running.start()
        with running.client() as client:
            assert edges(client, spool.write([(1, 2), (3, 4)], 0), range(9)) == {(1, 2), (3, 4)}
            assert edges(client, spool.write([(1, 2), (5, 6)], 6), range(9)) == {(1, 2), (3, 4), (5, 6)}
            assert edges(client, spool.write([(7, 8)], 10), range(9)) == {(1, 2), (5, 6), (7, 8)}
        running.stop()
        end = spool.write([(8, 7)], 16)
        running.start()
        with running.client() as client:
            assert edges(client, end, range(9)) == {(7, 8), (8, 7)}
            print(client.stats()["window"])
        running.kill()
        running.start()
        with running.client() as client:
            assert edges(client, end, range(9)) == {(7, 8), (8, 7)}
        assert running.stop() == 0
