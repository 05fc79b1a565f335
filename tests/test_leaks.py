"""The watch over what tests leave behind: it names what stays, and nobody else."""

from __future__ import annotations

from pathlib import Path

import leaks
import pytest

pytest_plugins = ["pytester"]

GUILTY = """
import os, socket, subprocess, sys, threading, time
import pytest

kept = []

def test_thread():
    thread = threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True)
    thread.start()

def test_process():
    kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

def test_zombie():
    child = os.fork()
    if child == 0:
        os._exit(0)

def test_listening_socket():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_connected_socket():
    kept.extend(socket.socketpair())

@pytest.fixture
def one_of_the_tests_own():
    kept.append(socket.create_server(("127.0.0.1", 0)))

def test_fixture(one_of_the_tests_own):
    pass
"""

INNOCENT = """
import os, socket, subprocess, threading, time
import leaks
import pytest

@pytest.fixture(scope="module", autouse=True)
def patience():
    leaks.GRACE_S = 10

@pytest.fixture(scope="module")
def shared():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process, socket.create_server(("127.0.0.1", 0)):
        yield process

@pytest.fixture
def own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

def test_first(shared, own):
    assert own

def test_second(shared):
    assert shared

def test_what_is_just_ending():
    threading.Timer(0.1, int).start()

def test_closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    subprocess.run(["true"])
"""


def test_each_that_leaves_something_fails_with_its_name_and_the_others_do_not(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import leaks\nfrom leaks import nothing_is_left_behind\nleaks.GRACE_S = 0.5")
    pytester.makepyfile(test_guilty=GUILTY, test_innocent=INNOCENT)
    pytester.makeini(f"[pytest]\npythonpath = {Path(leaks.__file__).parent}\n")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=10, errors=6)
    done.stdout.fnmatch_lines_random(
        [
            "left behind: thread forgotten",
            "left behind: process * (cat)",
            "left behind: process * (ended, and nobody waited for it)",
            "left behind: socket AF_INET ('127.0.0.1', *) listening",
            "left behind: socket AF_UNIX * connected to *; socket AF_UNIX * connected to *",
            "ERROR test_guilty.py::test_fixture - *",
        ]
    )
    done.stdout.no_fnmatch_line("ERROR test_innocent.py*")
