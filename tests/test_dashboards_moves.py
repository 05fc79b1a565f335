"""A real Prometheus scrapes a real daemon whose rows move all the time, on an emulated device: every panel has
data, and those about placement and moves say that it happens."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from conftest import skip_or_fail
from running import Daemon
from test_dashboards import eventually, live, queries, tool, values
from test_dashboards import prometheus_url as prometheus_url
from test_owned_daemon import PLENTY, PROGRAM, squeeze, tell
from waiting import until

from graphtide.daemon.errors import GraphtideError

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {
    "checkpoint": {"interval": 1},
    "metrics": {"listen": "127.0.0.1:0"},
    "device": {"enabled": True, "memory": "1073741824"},
    "compute": {"place": "device"},
    "partition": {"host_rows": "owned"},
    "audit": {"full_every_epoch": False},
}
MOVED = (
    'sum(graphtide_placement_moved_vertices_total{to="host"})',
    'sum(graphtide_placement_moved_vertices_total{to="device"})',
    'sum(graphtide_placement_moved_edges_total{reason="headroom", to="host"})',
    'sum(graphtide_placement_moved_edges_total{reason="request", to="device"})',
    "sum(graphtide_placement_move_seconds_total)",
    'min(graphtide_side_edges{side=~"host|device"})',
    'min(graphtide_side_updates_total{side=~"host|device"})',
    'min(graphtide_side_apply_seconds_total{side=~"host|device"})',
    "sum(graphtide_bus_bytes_total)",
    "sum(graphtide_program_remote_edges_read_total)",
    "sum(graphtide_read_seconds_total)",
)
"""What is above 0 where rows lie on both sides, and move."""


def move(daemon: Daemon, stop: threading.Event) -> None:
    """Memory is short, or there is plenty, in turns."""
    rng = np.random.default_rng(1)
    while not stop.wait(1):
        try:
            with daemon.client() as asked:
                squeeze(daemon, asked, rng)
        except GraphtideError:
            if not stop.is_set():
                raise


@pytest.fixture(scope="module")
def metrics_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of the endpoint to scrape."""
    tool("prometheus")
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    stop = threading.Event()
    with Daemon(tmp_path_factory.mktemp("daemon"), SETTINGS, program=(PROGRAM,)) as daemon:
        tell(daemon, PLENTY)
        daemon.start()
        found = re.search(r"metrics at http://([\d.]+:\d+)/metrics", daemon.log.read_text("utf-8"))
        assert found, daemon.log_tail()
        drivers = [threading.Thread(target=work, args=(daemon, stop)) for work in (live, move)]
        for driver in drivers:
            driver.start()
        try:
            yield found[1]
        finally:
            stop.set()
            for driver in drivers:
                driver.join()
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="containers and dashboards")
def test_every_panel_has_data_while_rows_move(prometheus_url: str) -> None:
    silent = queries()

    def all_have_spoken() -> bool:
        silent[:] = [(title, asked) for title, asked in silent if not speaks(prometheus_url, asked)]
        return not silent

    with contextlib.suppress(AssertionError):
        until(all_have_spoken)
    assert not silent, "\n".join(f"{title}: {asked}" for title, asked in silent)
    still = [asked for asked in MOVED if not eventually(prometheus_url, f"{asked} > 0")]
    assert not still


def speaks(url: str, expression: str) -> bool:
    """Whether there are values; of requests that nobody makes just now there is no latency."""
    return not np.isnan(values(url, expression) or [np.nan]).all()
