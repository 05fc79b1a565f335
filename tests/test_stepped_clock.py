"""Daemons whose clock on the wall is stepped by hours and days, forth and back, while they run."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Daemon
from stepped_clock import STEPPED, step
from waiting import until

from graphtide import Client
from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter

HOUR, DAY = 3600.0, 86_400.0
STEPS = (HOUR, -HOUR, 3 * DAY, -3 * DAY, 400 * DAY, 0.0)
LENGTH = 1000.0
PER_STEP = 20


def samples(url: str, name: str) -> list[float]:
    """The values of a metric, one for each set of labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line)]


class Stepped:
    """A daemon with a window and checkpoints, and one file that it reads."""

    def __init__(self, folder: Path, **settings: dict[str, Any]) -> None:
        self.daemon = Daemon(
            folder,
            {
                "window": {"length": LENGTH, "allowed_lateness": 100.0, "max_future_skew": 500 * DAY},
                "checkpoint": {"path": folder / "checkpoints", "interval": 0.2},
                "metrics": {"listen": "127.0.0.1:0"},
                "program": [{"name": "components"}],
                **settings,
            },
            program=STEPPED,
        )
        self.began = time.time()
        self.writer = SpoolWriter(self.daemon.spool, name="a")
        self.bad = 0

    def __enter__(self) -> Stepped:
        self.daemon.__enter__()
        self.writer.__enter__()
        self.daemon.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.writer.__exit__(*error)
        self.daemon.__exit__(*error)

    @property
    def metrics(self) -> str:
        return re.findall(r"metrics at (\S+)", self.daemon.log.read_text())[-1]

    def write(self, vertices: range, at: float) -> dict[str, Any]:
        """A chain of edges, ``at`` seconds after the beginning, and a record that is bad; where the file ends."""
        src = np.array(vertices[:-1])
        times = np.full(src.size, round((self.began + at) * 1000))
        self.writer.append(encode_msgpack(src, src + 1, timestamps_ms=times))
        self.writer.append(b"\xc1")
        self.bad += 1
        self.writer.flush()
        return {self.writer.name: self.writer.offset}


def checkpoints(client: Client) -> list[int]:
    return list(client.stats()["checkpoint"]["epoch"])


@pytest.mark.sample(among="a daemon dies")
def test_a_clock_that_is_stepped_loses_nothing_and_ends_no_edge(tmp_path: Path) -> None:
    """Edges expire by the times of updates, intervals go by the monotonic clock, and no age is negative."""
    n = 0
    with Stepped(tmp_path) as stepped, stepped.daemon.client() as client:
        for number, seconds in enumerate([*STEPS, None]):
            if seconds is None:  # a restart under another clock than the one before
                stepped.daemon.kill()
                until(lambda: not stepped.daemon.answers())
                step(tmp_path, -2 * DAY)
                stepped.daemon.start()
            else:
                step(tmp_path, seconds)
            client.wait(stepped.write(range(n, n + PER_STEP), at=number), timeout_ms=200_000)
            n += PER_STEP
            # Nothing of a step makes an edge go, and all of them are there.
            vertices = np.arange(n)
            labels = client.get("components", vertices).values
            assert labels.tolist() == (vertices // PER_STEP * PER_STEP).tolist()
            # Checkpoints go on being made, and none too often.
            before = checkpoints(client)
            client.wait(stepped.write(range(n, n + PER_STEP), at=number), timeout_ms=200_000)
            n += PER_STEP
            until(lambda before=before: checkpoints(client) > before)
            for name in ("freshness_seconds_sum", "source_lag_seconds", "epoch_duration_seconds_sum"):
                found = samples(stepped.metrics, f"graphtide_{name}")
                assert found and min(found) >= 0, name
            stats = client.stats()
            assert stats["lag"]["seconds"] >= 0 and stats["waiting"] is None
            assert stats["window"]["expired"] == 0
        # What goes, goes by the times of updates.
        client.wait(stepped.write(range(n, n + PER_STEP), at=LENGTH + 200), timeout_ms=200_000)
        until(lambda: client.stats()["window"]["expired"] == n - n // PER_STEP)
        assert client.stats()["edges"] == PER_STEP - 1
        assert stepped.daemon.stop() == 0, stepped.daemon.log_tail()
        assert len([*read_dead_letters(tmp_path / "dead-letters")]) == stepped.bad


@pytest.mark.sample(among="a stream through a daemon")
def test_a_clock_stepped_back_sets_aside_what_it_takes_to_be_of_the_future(tmp_path: Path) -> None:
    """Past ``max_future_skew``. What there is stays, and what was decided once comes again under a right clock."""
    window = {"length": LENGTH, "allowed_lateness": 100.0, "max_future_skew": HOUR}
    checkpoint = {"path": tmp_path / "checkpoints", "interval": 3600.0}
    n = PER_STEP
    with Stepped(tmp_path, window=window, checkpoint=checkpoint) as stepped, stepped.daemon.client() as client:

        def known() -> list[bool]:
            """Of the vertices of each step whether they are there."""
            missing = {*client.get("components", np.arange(3 * n)).unknown}
            return [missing.isdisjoint(range(begin, begin + n)) for begin in range(0, 3 * n, n)]

        client.wait(stepped.write(range(n), at=0), timeout_ms=200_000)
        step(tmp_path, -2 * HOUR)
        client.wait(offsets := stepped.write(range(n, 2 * n), at=1), timeout_ms=200_000)
        assert known() == [True, False, False]
        for seconds in (-2 * HOUR, 0.0):  # restarts under the wrong clock, and under the right one
            stepped.daemon.kill()
            until(lambda: not stepped.daemon.answers())
            step(tmp_path, seconds)
            stepped.daemon.start()
            client.wait(offsets, timeout_ms=200_000)
            assert known() == [True, False, False]
        client.wait(stepped.write(range(2 * n, 3 * n), at=2), timeout_ms=200_000)
        assert known() == [True, False, True]
        stats = client.stats()
        assert stats["edges"] == 2 * (n - 1) and stats["window"]["expired"] == 0
        assert stepped.daemon.stop() == 0, stepped.daemon.log_tail()
    aside = {(bad.offset, bad.headers, bad.reason) for bad in read_dead_letters(tmp_path / "dead-letters")}
    reasons = [reason for _, _, reason in aside]
    assert {reason: reasons.count(reason) for reason in reasons} == {"malformed": 3, "in-future": n - 1}
