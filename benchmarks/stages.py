"""Where a daemon's time goes while others load it: stages of epochs, programs, and its busiest thread."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

# Histograms of seconds, and the label that tells their parts.
HISTOGRAMS = {"graphtide_epoch_duration_seconds": "stage", "graphtide_program_duration_seconds": "program"}

# Of each part: seconds so far, and how often.
Sums = Mapping[str, tuple[float, float]]


class Standing(NamedTuple):
    """How far a daemon has come. ``threads``: processor seconds of each, by its number."""

    sums: Sums
    threads: Mapping[int, float]


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def standing(port: int, pid: int) -> Standing:
    """Of the daemon whose metrics are at this port of loopback.

    Raises:
        OSError: nobody answers there.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    sums: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        label = HISTOGRAMS.get(family.name)
        for sample in family.samples if label is not None else ():
            for place, end in enumerate(("_sum", "_count")):
                if label is not None and sample.name == family.name + end:
                    sums.setdefault(sample.labels[label], [0.0, 0.0])[place] += sample.value
    threads = {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(pid).threads()}
    return Standing({name: (seconds, n) for name, (seconds, n) in sums.items()}, threads)


def between(before: Standing, after: Standing, seconds: float) -> dict[str, float]:
    """Of so long a time: how much of a core the daemon's busiest thread used, epochs a second, and milliseconds of
    an epoch by stage and program."""
    busy = [used - before.threads.get(thread, 0.0) for thread, used in after.threads.items()]
    row = {"busiest thread": max(busy) / seconds, "epochs/s": 0.0}
    for name, (until, n) in after.sums.items():
        since, n_before = before.sums.get(name, (0.0, 0.0))
        if n > n_before:
            row[f"{name} ms"] = 1e3 * (until - since) / (n - n_before)
            if name == "publish":
                row["epochs/s"] = (n - n_before) / seconds
    return row
