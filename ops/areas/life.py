"""The daemon's process: its stages, its heartbeat, what runs."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import partial

from ..process import Process
from .area import Area

STAGES_OF_LIFE = ("compiling", "waiting", "reading", "loading", "computing", "recovering", "running", "stopping")
"""Kernels are compiled; the source is waited for, as it decides about the checkpoint; the checkpoint is read, and
the graph made of it; programs are computed; what lay in the log is replayed; all is well; the end."""


class LifeMetrics(Area):
    """The process, from its start to its end."""

    def _process_metrics(self, version: str) -> None:
        Process(registry=self.registry)
        self._started = self._gauge("start_timestamp_seconds", "When this process began.")
        self._started.set_to_current_time()
        self._ready = self._gauge("ready", "1 when /ready says yes.")
        self._stage = self._gauge("stage", "1 for the stage that the daemon is in.", "stage")
        self._stage_progress = self._gauge(
            "stage_progress_ratio", "How much of its stage is done, while it is starting (NaN: not known)."
        )
        self._heartbeat = self._gauge(
            "engine_heartbeat_seconds", "Time since the engine's loop last went round (0: it does not run)."
        )
        info = self._gauge("build_info", "1; the labels say what runs.", "version", "python")
        info.labels(version, platform.python_version()).set(1)

    def watch_health(
        self,
        *,
        ready: Callable[[], bool],
        stage: Callable[[], str],
        progress: Callable[[], float | None],
        heartbeat_seconds: Callable[[], float],
    ) -> None:
        """Ask these whenever metrics are read. ``stage`` gives one of ``STAGES_OF_LIFE``."""

        def share() -> float:
            known = progress()
            return math.nan if known is None else known

        self._ready.set_function(ready)
        for name in STAGES_OF_LIFE:
            self._stage.labels(name).set_function(partial(_is, stage, name))
        self._stage_progress.set_function(share)
        self._heartbeat.set_function(heartbeat_seconds)


def _is(stage: Callable[[], str], name: str) -> bool:
    return stage() == name
