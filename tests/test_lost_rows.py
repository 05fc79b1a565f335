"""Rows that are lost with their device: the process replaces itself, and goes on as if nothing had happened."""

from __future__ import annotations

import re
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import SOURCE, VERTICES_MAX, SpoolHistory
from running import Daemon
from systemd_socket import told_to_systemd
from test_kill import check_answers
from waiting import PATIENCE_S, until

from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.records.stream import offsets_to_wire

PROGRAM = str(Path(__file__).with_name("on_lossy_graph.py"))
PLACES = ("apply", "applied", "program")
SETTINGS: dict[str, Any] = {
    "graph": {"vertices_max": VERTICES_MAX},
    "epoch": {"updates_max": 400, "queue_updates_max": 800},
    "checkpoint": {"interval": 0.1},
    "metrics": {"listen": "127.0.0.1:0"},
    "program": [
        {"name": "bfs", "id": "hops", "source": SOURCE},
        {"name": "components"},
        {"name": "pagerank", "tolerance": 1e-3},
    ],
}


def devices_lost(daemon: Daemon) -> float:
    url = re.findall(r"metrics at (\S+)", daemon.log.read_text())[-1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        (value,) = re.findall(r"^graphtide_device_lost_total (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(value)


def replaced(daemon: Daemon, before: int) -> bool:
    """Whether the process has replaced itself once more than so often."""
    return daemon.log.read_text().count("the process replaces itself") > before


@pytest.mark.sample(among="a daemon dies")
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_doubled_with_rows_that_are_lost(
    tmp_path: Path, seed: int, run_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    losses = 60 if run_long else 1
    with (
        told_to_systemd(tmp_path, monkeypatch) as told,
        Daemon(tmp_path, SETTINGS, program=(PROGRAM,)) as daemon,
    ):
        history = SpoolHistory(daemon.spool, rng)
        for number in range(losses):
            (daemon.folder / "loses-rows").write_text(f"{rng.choice(PLACES)} {rng.integers(1, 12)}")
            daemon.start()
            assert daemon.process is not None
            while not replaced(daemon, number):
                history.produce(10)  # an epoch more: in the end there are so many that the loss comes
                with suppress(GraphtideError), daemon.client() as asking:
                    asking.wait(min_offsets=offsets_to_wire(history.next_offsets))
                until(lambda number=number: replaced(daemon, number) or daemon.answers())
                assert daemon.process.poll() is None, daemon.log_tail()
            daemon.wait_ready(PATIENCE_S)
            history.produce_source()
            with daemon.client() as asking:
                asking.wait(min_offsets=offsets_to_wire(history.next_offsets), timeout_ms=300_000)
                check_answers(asking, history.final())
                device = asking.stats()["placement"]["device"]
                assert device["lost"] == "the card fell out" and device["programs"] == []
                assert devices_lost(daemon) == 1
            assert daemon.stop() == 0, daemon.log_tail()
        assert told.count("STOPPING=1") == losses, "while it starts again it does not stop"
        assert told.count("READY=1") == 2 * losses
    log = daemon.log.read_text()
    assert log.count("the process replaces itself") == losses
    assert log.count("is not used any more, for it was lost: the card fell out") == losses
    assert "Traceback" not in log
