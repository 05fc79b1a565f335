"""What two looks at a daemon tell; the real one is looked at in test_export.py."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from graphtide.daemon.errors import RequestError, TimedOut, Unavailable
from graphtide.daemon.tools import top as top_module
from graphtide.daemon.tools.top import Sample, Times, scraped, shown, summary

STATS: dict[str, Any] = {
    "stage": "running",
    "vertices": 10,
    "edges": 20,
    "updates_applied": 1_000,
    "queue_updates": 3,
    "lag": {"unit": "records", "amount": {"t": {"0": 4, "1": 5}}, "seconds": 1.5},
    "waiting": None,
    "dead_letters": {"bad-id": 2, "bad-weight": 1},
    "memory": {"used": 1 << 20, "budget": 1 << 22, "waits_for": None},
    "order": {"trouble": None},
    "placement": {
        "sides": ["host", "device"],
        "vertices": [7, 3],
        "bytes": [500, 400],
        "device": {"name": "H", "programs": ["hops"]},
    },
}
PROGRAMS = {"hops": {"kind": "bfs", "state": "fresh", "memory_bytes": 80, "reason": None}}
ENDS = (0.1, 1.0, math.inf)
BEFORE = Sample(
    100.0,
    (2, 7),
    STATS,
    PROGRAMS,
    Times({"apply": (10, 1.0)}, {"hops": (10, 1.0)}, dict.fromkeys(ENDS, 50.0)),
)


def later(small: float = 0.0, large: float = 0.0, all_: float = 0.0) -> Sample:
    """Two seconds later, 500 updates and four epochs on; so many updates within the ends of freshness."""
    fresh = {end: 50 + more for end, more in zip(ENDS, (small, large, all_), strict=True)}
    times = Times({"apply": (14, 1.8)}, {"hops": (14, 1.5)}, fresh)
    return Sample(102.0, (2, 11), {**STATS, "updates_applied": 1_500}, PROGRAMS, times)


def test_rates_are_of_what_lies_between() -> None:
    said = summary(BEFORE, later(small=98, large=100, all_=100))
    assert (said["updates_per_second"], said["epochs_per_second"]) == (250, 2)
    assert said["lag"] == {"amount": 9, "unit": "records", "seconds": 1.5} and said["dead_letters"] == 3
    assert said["freshness"] == {"p50": 0.1, "p99": 1.0}
    assert said["stages"]["apply"] == pytest.approx(0.2) and said["stages"]["poll"] is None
    assert said["programs"]["hops"] == {"kind": "bfs", "state": "fresh", "memory_bytes": 80, "busy": 0.25}
    assert said["sides"] == {"host": 500, "device": 400} and said["on_device"] == ["hops"]
    assert said["side_vertices"] == {"host": 7, "device": 3}


def test_what_cannot_be_known_is_not_told() -> None:
    """Of another start, without updates, and past the last bucket."""
    for times in (1, 1_000):  # fewer than before, and more
        anew = Times({"apply": (times, 0.1)}, {"hops": (times, 0.1)}, dict.fromkeys(ENDS, 5.0 * times))
        restarted = summary(BEFORE, replace(later(), epoch=(3, 1), times=anew))
        assert restarted["updates_per_second"] is None and restarted["epochs_per_second"] is None
        assert restarted["freshness"] == {"p50": None, "p99": None}
        assert set(restarted["stages"].values()) == {None} and restarted["programs"]["hops"]["busy"] is None
    slow = summary(BEFORE, later(small=0, large=60, all_=100))
    assert slow["freshness"] == {"p50": 1.0, "p99": None}
    quiet = summary(BEFORE, replace(later(), times=BEFORE.times))
    assert set(quiet["stages"].values()) == {None} and quiet["programs"]["hops"]["busy"] == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_daemon_that_goes_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    looks: list[Sample | Exception] = [BEFORE, Unavailable("cannot connect"), TimedOut("too late"), later()]

    def look(*_: Any) -> Sample:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(top_module, "take", look)
    client: Any = None
    assert top_module.top(client, interval_s=0, most=1, as_json=as_json) == 0
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["updates_per_second"] == 250  # one line, of the look that was answered
    else:
        for part in ("cannot connect", "too late", "250.0/s"):
            assert part in printed
    looks[:] = [Unavailable("nobody is there")]
    with pytest.raises(Unavailable, match="nobody is there"):
        top_module.top(client, interval_s=0, most=1, as_json=as_json)


def test_whatever_keeps_updates_back_is_named() -> None:
    waits = {"waiting": "the source is away"}, {"memory": {**STATS["memory"], "waits_for": "budget"}}
    full = {"order": {"trouble": "no room for the order log"}}
    named = [summary(BEFORE, replace(BEFORE, stats={**STATS, **one}))["waiting"] for one in (*waits, full, {})]
    assert named == ["the source is away", "budget", "no room for the order log", None]


def test_a_usual_terminal_has_room_for_programs() -> None:
    programs = {f"program-{n}": {**PROGRAMS["hops"]} for n in range(3)}
    stages = dict.fromkeys(top_module.STAGES, (2, 0.0123))
    before = replace(
        BEFORE, programs=programs, times=replace(BEFORE.times, stages=dict.fromkeys(stages, (1, 0.0)))
    )
    now = replace(before, at=101.0, times=replace(later(small=9, all_=9).times, stages=stages))
    console = Console(width=80, height=24, record=True, force_terminal=False)
    console.print(shown(summary(before, now)))
    lines = console.export_text().splitlines()
    assert len(lines) <= 24 and any("checkpoint 12.3 ms" in line for line in lines)


SERVED = """# TYPE graphtide_freshness_seconds histogram
graphtide_freshness_seconds_bucket{le="0.1"} 4.0
graphtide_freshness_seconds_bucket{le="+Inf"} 5.0
"""


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (200, SERVED, None),
        (200, '{"ready":true,"stage":"running"}', RequestError),
        (200, "<!doctype html>", RequestError),
        (200, "", RequestError),
        (200, b"\xff\xfe", RequestError),
        (404, "", RequestError),
        (503, "", Unavailable),
    ],
)
def test_what_answers_for_metrics_and_is_none_is_named(
    status: int, content: str | bytes, error: type[Exception] | None
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            self.end_headers()
            self.wfile.write(content.encode() if isinstance(content, str) else content)

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        try:
            with contextlib.nullcontext() if error is None else pytest.raises(error, match=re.escape(url)):
                assert scraped(url).fresh == {0.1: 4, math.inf: 5}
        finally:
            answering.join()


def test_times_are_read_from_stats() -> None:
    stats = {
        "stages": {"apply": {"count": 3, "seconds": 1.5}},
        "runs": {"hops": {"count": 2, "seconds": 0.5}},
        "freshness": {"bounds_seconds": [0.1, 1.0], "updates": [4, 5, 6], "seconds": 9.0},
    }
    expected = Times({"apply": (3, 1.5)}, {"hops": (2, 0.5)}, {0.1: 4, 1.0: 9, math.inf: 15})
    assert Times.of_stats(stats) == expected


def test_a_screen_has_rates_bars_and_programs() -> None:
    console = Console(width=100, record=True, force_terminal=False)
    waiting = {**STATS, "waiting": "bad records find no room"}
    console.print(shown(summary(BEFORE, replace(later(small=1, large=1, all_=1), stats=waiting))))
    text = console.export_text()
    for part in ("running, epoch 2.11", "9 records, 1.5 s", "within 100.0 ms", "waits: bad records find no room"):
        assert part in text
    for part in (
        "1.0 MiB of 4.0 MiB",
        "graph, device",
        "rows of 3 vertices",
        "200.0 ms",
        "hops",
        "device",
        "25.0%",
    ):
        assert part in text
