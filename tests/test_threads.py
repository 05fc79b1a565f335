"""Threads that are begun while there is no room, and two threads for one piece of work."""

from __future__ import annotations

import errno
import mmap
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from unittest import mock

import pytest

from graphtide.gpma.team import Team
from graphtide.gpma.threads import Pair, Workers

NO_ROOM = """
import resource, threading
from graphtide.gpma.threads import Pair, Workers, start_thread

def here():
    return threading.current_thread() is threading.main_thread()

done = threading.Event()
before = threading.Thread(target=done.wait)
start_thread(before)
done.set()
before.join()  # its stack is kept for the next
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
threading.Thread.start = None  # nobody gets so far
"""
TOLD = """
try:
    start_thread(threading.Thread(target=done.wait))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (TOLD, "can't start new thread\n"),
        ("print(Workers(2, 'test').submit(here).result())", "True\n"),
        ("print(Pair(2, 'test').run(here, here))", "(True, True)\n"),
    ],
    ids=("thread", "workers", "pair"),
)
def test_nobody_waits_for_a_thread_that_finds_no_address_space(what: str, shown: str) -> None:
    """Python itself would wait for ever for a thread that had none for its first frame."""
    command = [sys.executable, "-c", NO_ROOM + what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == shown


def test_a_team_begins_no_thread_without_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refused)
        team = Team(3)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("team-")] == []
    team.close()


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_workers_do_as_much_as_they_have_threads_for() -> None:
    """What was queued when a thread was refused is done once, by whoever comes first."""
    workers, go, by = Workers(3, "test"), threading.Event(), list[str]()

    def name() -> None:
        by.append(threading.current_thread().name)

    first = workers.submit(go.wait, 60)
    with mock.patch.object(threading.Thread, "start", no_thread):
        for _ in range(3):
            assert workers.submit(name).done()
    assert by == [threading.current_thread().name] * 3
    go.set()
    assert first.result(60)
    workers.submit(name).result(60)
    assert len(by) == 4 and by[3].startswith("test"), "they ask for threads again"
    workers.shutdown()
    assert workers.submit(name).done()
    assert len(by) == 5


def test_what_fails_in_the_callers_thread_is_told_as_from_another() -> None:
    workers = Workers(1, "test")
    with mock.patch.object(threading.Thread, "start", no_thread):
        failed = workers.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(0)
    workers.shutdown()


def test_who_is_interrupted_while_he_waits_goes_on_when_both_have_ended() -> None:
    """Else the other half would go on writing rows that its caller believes to be done with, or loads anew."""
    pair, begun, ended = Pair(2, "test"), threading.Event(), []

    def there() -> None:
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    with mock.patch.object(Future, "result", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        pair.run(begun.wait, there)
    assert ended == [True]
    pair.close()


def test_what_fails_of_both_is_told_when_both_have_ended() -> None:
    pair, begun, ended = Pair(2, "test"), threading.Event(), []

    def here() -> None:
        begun.wait()
        raise ValueError("here")

    def there() -> None:
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    with pytest.raises(ValueError, match="here"):
        pair.run(here, there)
    assert ended == [True]
    pair.close()
