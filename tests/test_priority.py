"""Niceness of threads: those that ingest and compute give way to those that answer."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from running import Daemon
from waiting import until

from graphtide.daemon.priority import NICEST, SLICE_NS, give_way, in_short_slices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux")


def niceness(pid: int) -> dict[int, int]:
    """Of each thread of a process, above that of this one."""
    base = os.getpriority(os.PRIO_PROCESS, os.getpid())
    found = {}
    for task in [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            found[task] = os.getpriority(os.PRIO_PROCESS, task) - base
    return found


def test_a_thread_gives_way_and_so_do_those_that_it_begins() -> None:
    seen: list[int | None] = []

    def work() -> None:
        give_way(3)
        child = threading.Thread(target=lambda: seen.append(niceness(os.getpid())[threading.get_native_id()]))
        child.start()
        child.join()
        give_way(100)
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == NICEST
        seen.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [3, None]
    assert niceness(os.getpid())[threading.get_native_id()] == 0


def test_others_are_made_to_give_way_also_if_they_have_ended() -> None:
    over = threading.Event()
    waiting, ended = threading.Thread(target=over.wait), threading.Thread(target=int)
    waiting.start()
    ended.start()
    ended.join()
    give_way(2, [ended, waiting, threading.Thread()])
    assert waiting.native_id is not None and niceness(os.getpid())[waiting.native_id] == 2
    over.set()
    waiting.join()


def slice_of(pid: int, thread: int) -> int | None:
    """How long a thread runs at a time, in nanoseconds; None: the system does not say."""
    try:
        text = Path(f"/proc/{pid}/task/{thread}/sched").read_text()
    except OSError:
        return None
    found = re.search(r"se\.slice\s*:\s*(\d+)", text)
    return None if found is None else int(found[1])


def test_short_slices_are_the_caller_s_thread_s_own() -> None:
    mine, seen = slice_of(os.getpid(), threading.get_native_id()), list[tuple[int | None, int]]()

    def work() -> None:
        give_way(3)
        in_short_slices()
        me = threading.get_native_id()
        seen.append((slice_of(os.getpid(), me), niceness(os.getpid())[me]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if mine is None:
        pytest.skip("the system does not say how long its slices are")
    assert seen == [(SLICE_NS, 3)] and slice_of(os.getpid(), threading.get_native_id()) == mine != SLICE_NS


@pytest.mark.parametrize(
    ("policy", "priority", "has_slices"),
    [("SCHED_BATCH", 0, True), ("SCHED_IDLE", 0, False), ("SCHED_FIFO", 1, False)],
)
def test_short_slices_leave_the_policy_that_was_chosen(policy: str, priority: int, has_slices: bool) -> None:
    chosen, seen = getattr(os, policy), list[Any]()

    def work() -> None:
        try:
            os.sched_setscheduler(0, chosen, os.sched_param(priority))
        except OSError as error:  # not everybody may, and not every C library can
            seen.append(error)
            return
        in_short_slices()
        seen.append((os.sched_getscheduler(0), slice_of(os.getpid(), threading.get_native_id())))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(seen[0], OSError):
        pytest.skip(str(seen[0]))
    kept, slice_ns = seen[0]
    assert kept == chosen
    assert slice_ns is None or (slice_ns == SLICE_NS) == has_slices


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.parametrize("nice", [5, 0])
def test_a_daemon_s_threads_that_ingest_and_compute_give_way_to_answers(tmp_path: Path, nice: int) -> None:
    results = {"kind": "spool", "path": tmp_path / "results"}
    with Daemon(tmp_path, {"compute": {"threads": 3, "nice": nice}, "results": results}) as daemon:
        daemon.start()
        assert daemon.process is not None
        pid = daemon.process.pid
        # Ingest, the engine, who writes results, and the two that help with kernels.
        giving = until(lambda: found if (found := Counter(niceness(pid).values()))[nice] >= 5 else None)
        assert {*giving} == {0, nice} and niceness(pid)[pid] == 0
        server = daemon.query_server().pid
        assert {*niceness(server).values()} == {0}
        assert slice_of(server, server) in (SLICE_NS, None)
        with daemon.client() as client:
            client.compute("components", vertices=[1])  # by a thread of its own, and what that begins
            if nice:
                until(lambda: Counter(niceness(pid).values())[nice] <= giving[nice])
