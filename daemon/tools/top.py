"""``graphtide top``: a running daemon at a glance, live on a terminal: rates, lag, freshness, stages, programs."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException, responses
from typing import Any
from urllib.error import HTTPError

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..client import Client
from ..errors import RequestError, TimedOut, Unavailable
from ..terminal import can_redraw, count, duration, output, size, table

STAGES = ("poll", "decode", "index", "queue", "apply", "compute", "publish", "checkpoint")
QUANTILES = (0.5, 0.99)
_SCRAPE_S = 5.0
_BAR = 40


@dataclass(frozen=True, slots=True)
class Times:
    """What a daemon has measured since its start, all in all.

    ``stages``, ``runs``: by stage, and by program, (how often it ran, the seconds of all of these). ``fresh``: by
    the upper ends of buckets, which ascend to infinity, in seconds: how many updates were visible within so long.
    """

    stages: Mapping[str, tuple[float, float]]
    runs: Mapping[str, tuple[float, float]]
    fresh: Mapping[float, float]

    @classmethod
    def of_stats(cls, stats: Mapping[str, Any]) -> Times:
        """As they were when the newest epoch was published."""
        stages, runs = (
            {name: (one["count"], one["seconds"]) for name, one in stats[key].items()}
            for key in ("stages", "runs")
        )
        ends = [*stats["freshness"]["bounds_seconds"], math.inf]
        updates = itertools.accumulate(stats["freshness"]["updates"])
        return cls(stages, runs, dict(zip(ends, updates, strict=True)))


@dataclass(frozen=True, slots=True)
class Sample:
    """What a daemon says of itself at one time: ``at`` in seconds."""

    at: float
    epoch: tuple[int, int]
    stats: Mapping[str, Any]
    programs: Mapping[str, Mapping[str, Any]]
    times: Times


def take(client: Client, metrics_url: str | None, trust: ssl.SSLContext | None = None) -> Sample:
    """Ask now; times are those of the metrics, where there is a URL, which are newer than those of an epoch.

    ``trust``: whom to believe, where that URL begins with https.

    Raises:
        GraphtideError: the daemon does not answer, or its metrics cannot be read.
    """
    stats = client.stats()
    programs = client.programs().content["programs"]
    times = Times.of_stats(stats.content) if metrics_url is None else scraped(metrics_url, trust)
    return Sample(time.monotonic(), stats.epoch, stats.content, programs, times)


def scraped(url: str, trust: ssl.SSLContext | None = None) -> Times:
    """What a daemon's metrics endpoint says now.

    Raises:
        Unavailable: it does not answer.
        RequestError: what answers there are no metrics of a daemon.
    """
    try:
        with urllib.request.urlopen(url, timeout=_SCRAPE_S, context=trust) as response:
            content = response.read()
    except HTTPError as error:
        wrong = f"{url} answers {error.code} ({responses.get(error.code, 'unknown')})"
        raise (Unavailable if error.code >= 500 else RequestError)(wrong) from error
    except (OSError, HTTPException) as error:  # the latter where it ends in the middle of an answer
        raise Unavailable(f"{url} does not answer: {getattr(error, 'reason', error)}") from error
    try:
        return parsed(content.decode())
    except (ValueError, KeyError) as error:
        raise RequestError(f"what {url} answers are not the metrics of a daemon") from error


def parsed(text: str) -> Times:
    """Of metrics as they are served.

    Raises:
        ValueError, KeyError: it is something else.
    """
    from prometheus_client.parser import text_string_to_metric_families

    series = {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if len(sample.labels) < 2
    }

    def ran(name: str) -> dict[str, tuple[float, float]]:
        labels = [label for key, label in series if key == f"{name}_sum"]
        return {label: (series[f"{name}_count", label], series[f"{name}_sum", label]) for label in labels}

    fresh = {
        float(le): value for (key, le), value in series.items() if key == "graphtide_freshness_seconds_bucket"
    }
    fresh[math.inf]  # which every histogram has
    stages, runs = ran("graphtide_epoch_duration_seconds"), ran("graphtide_program_duration_seconds")
    return Times(stages, runs, dict(sorted(fresh.items())))


# -- what two samples tell ----------------------------------------------------------------------------------------


def summary(before: Sample, now: Sample) -> dict[str, Any]:
    """What happened between two samples, as JSON can say it; None where it is not known.

    Rates are by the second, times in seconds. ``freshness`` by quantile, of the updates in between; ``stages`` are
    the mean times of an epoch's.
    """
    stats, seconds = now.stats, max(now.at - before.at, 1e-9)
    same_start = now.epoch[0] == before.epoch[0]
    if not same_start:  # what was measured since cannot be told from what came before this look
        before = replace(before, times=now.times)
    lag = stats["lag"]
    device = stats["placement"]["device"]

    def rate(after: float, earlier: float) -> float | None:
        return (after - earlier) / seconds if same_start else None

    return {
        "epoch": list(now.epoch),
        "stage": stats["stage"],
        "seconds": seconds,
        "updates_per_second": rate(stats["updates_applied"], before.stats["updates_applied"]),
        "epochs_per_second": rate(now.epoch[1], before.epoch[1]),
        "vertices": stats["vertices"],
        "edges": stats["edges"],
        "queue_updates": stats["queue_updates"],
        "lag": {"amount": _sum(lag["amount"]), "unit": lag["unit"], "seconds": lag["seconds"]},
        "waiting": stats["waiting"] or stats["memory"]["waits_for"] or stats["order"]["trouble"],
        "dead_letters": sum(stats["dead_letters"].values()),
        "freshness": _freshness(before, now),
        "stages": _stages(before, now),
        "memory": {"used": stats["memory"]["used"], "budget": stats["memory"]["budget"]},
        "sides": dict(zip(stats["placement"]["sides"], stats["placement"]["bytes"], strict=True)),
        "side_vertices": dict(zip(stats["placement"]["sides"], stats["placement"]["vertices"], strict=True)),
        "device": None if device is None else device["name"],
        "on_device": [] if device is None else device["programs"] or [],
        "programs": {
            id: {
                "kind": said["kind"],
                "state": said["state"],
                "memory_bytes": said["memory_bytes"],
                "busy": _busy(before, now, id) if same_start else None,
            }
            for id, said in now.programs.items()
        },
    }


def _sum(amount: Any) -> float:
    """Of what is left by partition, or by file."""
    return float(sum(map(_sum, amount.values()))) if isinstance(amount, Mapping) else float(amount)


def _between(
    before: Mapping[str, tuple[float, float]], now: Mapping[str, tuple[float, float]], name: str
) -> tuple[float, float]:
    (times, seconds), (times_before, seconds_before) = now.get(name, (0, 0.0)), before.get(name, (0, 0.0))
    return times - times_before, seconds - seconds_before


def _stages(before: Sample, now: Sample) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for stage in STAGES:
        times, seconds = _between(before.times.stages, now.times.stages, stage)
        means[stage] = seconds / times if times > 0 else None
    return means


def _busy(before: Sample, now: Sample, program: str) -> float:
    """The share of the time in which a program ran; of one that came back under its name since, as far as that is
    known."""
    (_, seconds), (_, seconds_before) = (sample.times.runs.get(program, (0, 0.0)) for sample in (now, before))
    return (seconds - seconds_before if seconds >= seconds_before else seconds) / max(now.at - before.at, 1e-9)


def _freshness(before: Sample, now: Sample) -> dict[str, float | None]:
    """By quantile the upper end of its bucket: so much at most. None without updates, and past all ends."""
    counts = {end: value - before.times.fresh.get(end, 0.0) for end, value in now.times.fresh.items()}
    total = counts[math.inf]
    found: dict[str, float | None] = {}
    for quantile in QUANTILES:
        end = next((end for end, value in counts.items() if value >= quantile * total), math.inf)
        found[f"p{quantile * 100:g}"] = end if total > 0 and math.isfinite(end) else None
    return found


# -- for people ---------------------------------------------------------------------------------------------------


def shown(said: Mapping[str, Any]) -> Group:
    """A summary as a screen of a terminal."""
    lag = said["lag"]
    behind = f"{count(lag['amount'])} {lag['unit']}" + (
        "" if lag["seconds"] is None else f", {duration(lag['seconds'])}"
    )
    rates = [
        ("updates", _rate(said["updates_per_second"])),
        ("epochs", _rate(said["epochs_per_second"])),
        ("behind", behind),
        ("queue", count(said["queue_updates"])),
        *((f"fresh {name}", f"within {duration(value)}") for name, value in said["freshness"].items() if value),
        ("dead letters", count(said["dead_letters"])),
    ]
    head = Text(f"{said['stage']}, epoch {'.'.join(map(str, said['epoch']))}: ", style="bold")
    head.append(f"{count(said['vertices'])} vertices, {count(said['edges'])} edges")
    parts: list[RenderableType] = [head, table(("", ""), rows=rates)]
    if said["waiting"]:
        parts.append(Text(f"waits: {said['waiting']}", style="yellow"))
    parts += [Text(""), _bars(said), Text("")]
    stages = {name: value for name, value in said["stages"].items() if value is not None}
    if stages:  # in a line or two: with one for each a usual terminal has no room for programs
        means = ", ".join(f"{name} {duration(value)}" for name, value in stages.items())
        parts += [Text(f"an epoch's mean: {means}"), Text("")]
    programs = [
        (
            id,
            program["kind"],
            program["state"],
            "device" if id in said["on_device"] else "host",
            size(program["memory_bytes"]),
            None if program["busy"] is None else f"{100 * program['busy']:.1f}%",
        )
        for id, program in said["programs"].items()
    ]
    parts.append(table(("program", "kind", "state", "where", "memory", "busy"), programs))
    return Group(*parts)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}/s"


def _bars(said: Mapping[str, Any]) -> Table:
    """How much of the memory is used, and of that the graph on each side, and of how many vertices the rows."""
    memory = said["memory"]
    rows = [("memory", memory["used"], memory["budget"], None)]
    rows += [(f"graph, {side}", used, None, said["side_vertices"][side]) for side, used in said["sides"].items()]
    made = Table.grid(padding=(0, 1))
    for name, used, of, vertices in rows:
        total = of or max(memory["used"], used, 1)
        about = f"{size(used)} of {size(of)}" if of else size(used)
        about += "" if vertices is None else f", rows of {vertices:,} vertices"
        made.add_row(name, ProgressBar(total=total, completed=min(used, total), width=_BAR), about)
    return made


def summaries(
    client: Client,
    metrics_url: str | None,
    interval_s: float,
    most: int | None,
    trust: ssl.SSLContext | None = None,
) -> Iterator[dict[str, Any] | str]:
    """One after each interval, so many at most; a sentence for each look that a daemon does not answer any more.

    Raises:
        GraphtideError: as ``take``; but who goes away later is waited for.
    """
    before = take(client, metrics_url, trust)
    made = 0
    while most is None or made < most:
        time.sleep(interval_s)
        try:
            now = take(client, metrics_url, trust)
        except (Unavailable, TimedOut) as error:
            yield f"no answer for {duration(time.monotonic() - before.at)}: {error}"
            continue
        yield summary(before, now)
        before, made = now, made + 1


def top(
    client: Client,
    metrics_url: str | None = None,
    *,
    interval_s: float = 1.0,
    most: int | None = None,
    as_json: bool = False,
    trust: ssl.SSLContext | None = None,
) -> int:
    """Show a daemon until interrupted, or so often; a line of JSON each time where it is asked for.

    Raises:
        GraphtideError: as ``summaries``.
    """
    console = output()
    with contextlib.suppress(KeyboardInterrupt):
        found = summaries(client, metrics_url, interval_s, most, trust)
        if as_json:
            for said in found:
                if isinstance(said, str):
                    print(said, file=sys.stderr)
                    continue
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()
        elif not can_redraw(console):
            for said in found:
                console.print(_screen(said, None))
        else:
            last: dict[str, Any] | None = None
            with Live(Text("measuring ..."), console=console, screen=False, auto_refresh=False) as live:
                for said in found:
                    live.update(_screen(said, last), refresh=True)
                    last = last if isinstance(said, str) else said
    return 0


def _screen(said: dict[str, Any] | str, last: dict[str, Any] | None) -> Group:
    """Of a daemon that does not answer, what it said last and the sentence."""
    if not isinstance(said, str):
        return shown(said)
    return Group(*([] if last is None else [shown(last)]), Text(said, style="yellow"))
