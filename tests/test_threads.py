"""Threads that are begun while there is no room, and two threads for one piece of work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from unittest import mock

import pytest

from graphtide.gpma.threads import Pair

NO_ROOM = """
import resource, threading
from graphtide.gpma.threads import start_thread

done = threading.Event()
before = threading.Thread(target=done.wait)
start_thread(before)
done.set()
before.join()  # its stack is kept for the next
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
try:
    start_thread(threading.Thread(target=done.wait))
except RuntimeError as error:
    print(error)
"""


def test_who_begins_a_thread_that_finds_no_address_space_is_told() -> None:
    """Python itself would wait for ever for a thread that had none for its first frame."""
    done = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "can't start new thread\n"


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
