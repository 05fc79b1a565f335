"""Kernels before anything else: from the cache, or compiled, with its progress shown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..gpma import runtime
from . import kernels
from .config.settings import Config

log = logging.getLogger(__name__)


def warm_up(config: Config, stop: threading.Event, advance: Callable[[float], None], *, progress: bool) -> None:
    """Have every kernel that this configuration uses, from the cache or compiled, before anybody waits.

    ``advance`` gets the share that is done.

    Raises:
        ConfigError: a program cannot be compiled.
        kernels.Stopped: ``stop`` was set.
    """
    started = time.monotonic()
    with _shown_progress() if progress else _logged_progress() as show:

        def report(now: kernels.Progress) -> None:
            advance(now.share)
            show(now)

        compiled = kernels.prepare(kernels.Needs.of(config), stop, report)
    # Whether this start compiled any is what an operator asks of one that took long.
    how = {None: "none had to be compiled", 0: "another process compiled what was missing"}
    log.info(
        "kernels are ready after %.1f s (%s; cache %s)",
        time.monotonic() - started,
        how.get(compiled, f"{compiled} compiled"),
        runtime.cache_directory(),
    )


@contextmanager
def _shown_progress() -> Iterator[Callable[[kernels.Progress], None]]:
    """Shows on a terminal how compiling goes on."""
    from .terminal import progress  # loads Rich, which a daemon that nobody looks at does without

    with progress() as bar:
        task = bar.add_task("compiling kernels", total=None)

        def show(now: kernels.Progress) -> None:
            parts = f"compiling kernels (once; {now.done} of {now.total} parts)"
            bar.update(task, total=now.expected, completed=round(now.share * now.expected), description=parts)

        yield show


@contextmanager
def _logged_progress() -> Iterator[Callable[[kernels.Progress], None]]:
    """Logs now and then how compiling goes on."""
    reported = time.monotonic()

    def show(now: kernels.Progress) -> None:
        nonlocal reported
        if time.monotonic() > reported + kernels.REPORT_SECONDS:
            reported = time.monotonic()
            log.info("compiling kernels: %s", now)

    yield show
