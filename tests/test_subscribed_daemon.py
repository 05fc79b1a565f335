"""Subscriptions of a real daemon: while it reads, killed, restarted, and while its query server is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Daemon
from test_daemon import PROGRAMS, churn_records, write
from test_subscribe import Told, listed_ids
from waiting import until

from graphtide import Client
from graphtide.daemon.client import Change
from graphtide.daemon.tools.generate import Churn


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, {"program": PROGRAMS}) as running:
        yield running


class Watcher(threading.Thread):
    """Follows a program as long as it is told to, and keeps every change."""

    def __init__(self, client: Client, program: str, vertices: Any = None) -> None:
        super().__init__()
        self.program, self.vertices = program, vertices
        self.subscription = client.subscribe(program, vertices, reconnect=True)
        self.told = Told(program=program)
        self.changes: list[Change] = []
        self.start()

    def run(self) -> None:
        for change in self.subscription:
            self.told.apply(change)
            self.changes.append(change)

    def end(self) -> None:
        self.subscription.close()
        self.join()

    def check(self, client: Client, epoch: tuple[int, int], ids: Any) -> None:
        """It knows what ``get`` answers at this epoch, the last one; every change goes on from the one before."""
        until(lambda: self.changes and self.changes[-1].epoch == epoch)
        asked = ids if self.vertices is None else self.vertices
        got = client.get(self.program, asked)
        unknown = set(listed_ids(got.unknown))
        values = zip(asked, got.values.tolist(), strict=True)
        assert got.epoch == epoch and self.told.known == {id: value for id, value in values if id not in unknown}
        for before, after in zip(self.changes, self.changes[1:], strict=False):
            assert after.is_snapshot or after.since == before.epoch
            assert after.epoch > before.epoch


def test_subscribers_know_what_get_answers_whoever_is_killed(daemon: Daemon) -> None:
    parts, records = churn_records(Churn(scale=8, pool=1500, seed=7), 60, 100)
    ids = np.unique(np.concatenate([part.src for part in parts] + [part.dst for part in parts])).tolist()
    daemon.start()
    with daemon.client() as client:
        watchers = [Watcher(client, "hops"), Watcher(client, "components"), Watcher(client, "pagerank", ids[::7])]
        try:
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
                client.wait(offsets, timeout_ms=60_000)
                until(lambda: client.stats()["stage"] == "running")
                epoch = client.stats().epoch
                for watcher in watchers:
                    watcher.check(client, epoch, ids)
            for watcher in watchers:
                # Only another incarnation begins anew.
                begun = [change.epoch[0] for change in watcher.changes if change.is_snapshot]
                assert begun == [1, 2]
        finally:
            for watcher in watchers:
                watcher.end()
