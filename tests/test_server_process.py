"""The life of the query server's process: pauses, kills, and what its successor is made from."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgpack
import psutil
import pytest
from running import Daemon
from test_grace import SlowChain
from test_grace import chain as chain
from test_grace import link as link
from test_server import Chain, raw, request, serving
from waiting import PATIENCE_S, until

from graphtide.daemon.client import Client
from graphtide.daemon.errors import Unauthorized
from graphtide.daemon.serve import engine_answers, server_process, supervisor, template
from graphtide.daemon.serve.supervisor import ServerLink


def kill(link: ServerLink) -> int:
    """Kill the server; its process id once there is another."""
    pid = link.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: link.is_ready and link.pid != pid)
    return pid


def parent(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.sample(among="a server process and its template")
def test_a_server_that_pauses_is_kept_and_answers_from_the_newest_epoch(chain: Chain, link: ServerLink) -> None:
    pid = link.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for _ in range(3000):  # several times what its socket has room for
        link.publish(chain.publication())
    chain.grow(20_000)  # the index and the results move to other memory, which it has not seen yet
    for _ in range(100):
        link.publish(chain.publication())
    is_over = link.begin_grace()
    assert not is_over()
    os.kill(pid, signal.SIGCONT)
    with Client(link.addresses[0], timeout=60) as client:
        answer = client.get("rank", [100, 20_099])
        assert answer.epoch == (1, chain.number)
        assert answer.values.tolist() == [1 / chain.number, 20_000 / chain.number]
        until(is_over)
        link.publish(chain.publication())
        assert client.wait({"t": {0: chain.number * 10}}).epoch == (1, chain.number)
    assert (link.pid, link.restarts) == (pid, 0)


def fill(link: ServerLink, chain: Chain) -> None:
    """Leave no room in the socket to the server, which is stopped; then let the results move to other memory."""
    process = link._process
    assert process is not None
    process.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    while process.generations.get("grace", 0) == max(process.graces or {}, default=0):
        link.begin_grace()
    publication = chain.publication()
    link.publish(replace(publication, stats={**publication.stats, "filler": bytes(1 << 20)}))
    assert process.generations["results"] != link._writer.generation


@pytest.mark.sample(among="a server process and its template")
def test_what_finds_no_room_is_sent_when_there_is_some(chain: Chain, link: ServerLink) -> None:
    pid = link.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    fill(link, chain)
    is_over = link.begin_grace()
    os.kill(pid, signal.SIGCONT)
    until(is_over)
    with Client(link.addresses[0], timeout=60) as client:
        newest = client.wait({"t": {0: chain.number * 10}})
        assert newest.epoch == (1, chain.number)
        until(lambda: client.stats()["vertices"] == chain.n)
        assert client.get("rank", [99 + chain.n]).values.tolist() == [chain.n / chain.number]
    assert (link.pid, link.restarts) == (pid, 0)


@pytest.mark.sample(among="a server process and its template")
def test_other_tokens_that_find_no_room_are_sent_when_there_is_some(chain: Chain, tmp_path: Path) -> None:
    with serving(chain, tmp_path, tokens=["old-token"]) as link:
        address, pid = link.addresses[0], link.pid
        assert pid is not None
        with Client(address, token="old-token", timeout=60) as client:
            client.stats()
            os.kill(pid, signal.SIGSTOP)
            fill(link, chain)
            link.renew_access(["new-token"])
            os.kill(pid, signal.SIGCONT)
            with pytest.raises(Unauthorized):
                until(lambda: client.stats() is None)
        with Client(address, token="new-token", timeout=60) as client:
            client.stats()
        assert (link.pid, link.restarts) == (pid, 0)


@pytest.mark.sample(among="a server process and its template")
def test_one_that_has_no_room_for_too_long_is_replaced(
    chain: Chain, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "UNSENT_SECONDS_MAX", 0.2)
    stopped = link.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    fill(link, chain)

    def publish() -> bool:
        link.publish(chain.publication())
        return link.is_ready and link.pid != stopped

    until(publish)
    assert link.restarts == 1
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [99 + chain.n]).values.tolist() == [chain.n / chain.number]


@pytest.mark.sample(among="a server process and its template")
def test_one_that_hangs_is_replaced_though_there_is_nothing_to_tell_it(
    chain: Chain, link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hung = link.pid
    assert hung is not None
    monkeypatch.setattr(supervisor, "HUNG_SECONDS_MAX", 3.0)
    os.kill(hung, signal.SIGSTOP)
    until(lambda: link.is_answering and link.pid != hung)
    assert "the query server said nothing for" in caplog.text and link.restarts
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [103]).epoch == (1, chain.number)


def test_a_pause_of_the_daemon_itself_is_no_silence_of_the_server() -> None:
    silence = supervisor.Silence()
    silence.goes_on(3600)
    assert silence.seconds <= 2 * supervisor.LISTEN_SECONDS
    for _ in range(int(supervisor.HUNG_SECONDS_MAX)):
        silence.goes_on(1.0)
    assert silence.seconds > supervisor.HUNG_SECONDS_MAX
    assert supervisor.HUNG_SECONDS_MAX > supervisor.SILENT_SECONDS_MAX


@pytest.mark.sample(among="a server process and its template")
def test_a_killed_server_is_followed_by_one_that_has_nothing_to_load(link: ServerLink) -> None:
    template = link.template_pid
    assert parent(link.pid) == template
    for _ in range(3):
        kill(link)
        assert (parent(link.pid), link.template_pid) == (template, template)
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [103]).values.tolist() == [4]


TEMPLATE = """
import os, sys, threading
from graphtide.daemon.serve.template import Template

def say(what):
    os.write(1, f"{what}\\n".encode())

os.environ["GRAPHTIDE_TEST"] = "loaded"
wait = threading.Event()
if sys.argv[1] == "threads":
    threading.Thread(target=wait.wait, daemon=True).start()

def serve_door(door):
    say("forked " + os.environ["GRAPHTIDE_TEST"])
    while door.recv(64):
        pass
    say("seen the end")

template = Template("int", [], serve_door)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
template._was_asked = True  # for it to end by itself
template.close()
say("closed")
"""


def template_of(daemon: str) -> list[str]:
    """What such a daemon and its template say."""
    done = subprocess.run(
        [sys.executable, "-c", TEMPLATE, daemon],
        capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_a_template_is_a_fork_that_has_what_the_daemon_has_loaded() -> None:
    said = ["closed", "forked loaded", "seen the end"]
    assert template_of("alone") == said
    assert template_of("killed") == said[1:]


@pytest.mark.sample(among="a server process and its template")
def test_a_process_with_other_threads_is_not_forked() -> None:
    """One of them might hold what the fork would wait for."""
    assert template_of("threads") == ["closed"]


@pytest.mark.sample(among="a server process and its template")
def test_a_daemon_forks_its_template(tmp_path: Path) -> None:
    with Daemon(tmp_path, {"program": [{"name": "bfs", "source": 0}]}) as daemon:
        process = daemon.start().process
        assert process is not None
        server = daemon.query_server()
        template_process = server.parent()
        assert template_process is not None and template_process.ppid() == process.pid
        engine = psutil.Process(process.pid)
        assert (template_process.cmdline(), server.cmdline()) == (engine.cmdline(), engine.cmdline())
        assert template_process.name() == server.name() == template.NAME
        assert daemon.stop() == 0


def test_a_template_that_forked_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "template_command", lambda *_: [sys.executable, "-c", "input()"])
    killed, waited = list[int](), list[int]()  # process ids
    kill, wait = subprocess.Popen.kill, subprocess.Popen.wait

    def noted_kill(process: subprocess.Popen[bytes]) -> None:
        killed.append(process.pid)
        kill(process)

    def noted_wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if process.pid not in killed:
            waited.append(process.pid)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "kill", noted_kill)
    monkeypatch.setattr(subprocess.Popen, "wait", noted_wait)
    loading = template.Template("int", [])
    loading.close()
    assert not waited and loading._process.returncode == -signal.SIGKILL
    loading.close()


@pytest.mark.sample(among="a server process and its template")
def test_a_server_that_stands_still_does_not_outlive_its_daemon() -> None:
    """Who is killed closes its sockets, and no more; the next daemon could not listen where the server does."""
    daemon = template.Template("int", [])
    (control, its_control), (calls, its_calls) = (
        socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
        socket.socketpair(),
    )
    with control, its_control, calls, its_calls:
        server = daemon.fork(its_control.fileno(), its_calls.fileno())
        os.kill(server.pid, signal.SIGSTOP)
    try:
        daemon._socket.close()
        assert server.ended(60)
    finally:
        server.kill()
        daemon.close()
        server.close()


@pytest.mark.sample(among="a server process and its template")
def test_a_template_whose_daemon_ends_before_it_has_forked_says_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loading, aloud = tmp_path / "loading", tmp_path / "aloud"
    with theirs, loading.open("w+b") as first, aloud.open("wb") as then:
        process = subprocess.Popen(
            template.template_command(theirs.fileno(), then.fileno(), "int", []),
            pass_fds=[theirs.fileno(), then.fileno()], env=template._environment(), stderr=first,
        )  # fmt: skip
    control, calls = socket.socketpair(), socket.socketpair()
    with process, ours, control[0], control[1], calls[0], calls[1]:
        socket.send_fds(ours, [b"fork"], [control[1].fileno(), calls[1].fileno()])
        ours.close()
        for given in (*control, *calls):
            given.close()
        assert process.wait(PATIENCE_S) == 0
    assert (loading.read_bytes(), aloud.read_bytes()) == (b"", b"")


@pytest.mark.sample(among="a server process and its template")
def test_a_server_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    """Though its interpreter is not taken down."""
    daemon = template.Template("int", [])
    (control, its_control), (calls, its_calls) = socket.socketpair(), socket.socketpair()
    try:
        with control, its_control, calls, its_calls:
            server = daemon.fork(its_control.fileno(), its_calls.fileno())
            control.sendall(b"no settings")
            assert server.ended(PATIENCE_S) and daemon.status(server) == 1
        server.close()
    finally:
        daemon.close()
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.sample(among="a server process and its template")
def test_a_template_that_cannot_load_says_why_in_the_daemons_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program's module is changed while the daemon runs, say; once it can be loaded, so can the server."""
    module = tmp_path / "changed_meanwhile.py"
    module.write_text("raise ValueError('not so')")
    chain = Chain()
    chain.grow(10)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.ExitStack() as stack:

        def mend() -> None:
            until(lambda: "cannot be started" in caplog.text)
            module.write_text("import sys; sys.stderr.write('loaded\\n')")

        mending = threading.Thread(target=mend)
        mending.start()
        stack.callback(mending.join)
        stack.enter_context(serving(chain, tmp_path, python_modules=["changed_meanwhile"]))
    said = next(one.getMessage() for one in caplog.records if "cannot be started" in one.getMessage())
    assert "its template ended with status 1: Traceback" not in said  # its last lines alone
    assert "its template ended with status 1: " in said and "ValueError: not so); the next try" in said


@pytest.mark.sample(among="a server process and its template")
@pytest.mark.parametrize("daemon", ["forks", "starts"])
def test_a_template_that_is_killed_is_told_of_by_its_signal(daemon: str) -> None:
    script = (
        "import os, sys, time; from graphtide.daemon.serve import template\n"
        "template.template_command = lambda *_: [sys.executable, '-c', 'import time; time.sleep(3600)']\n"
        "serve_door = (lambda door: time.sleep(3600)) if sys.argv[1] == 'forks' else None\n"
        "made = template.Template('int', [], serve_door)\n"
        "os.kill(made.pid, 9); print(made.end())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, daemon], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("its template was ended by signal 9 (Killed)\n", "")


@pytest.mark.sample(among="a server process and its template")
def test_what_a_template_says_while_it_loads_and_is_no_last_word_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "that_speaks.py").write_text("import sys; sys.stderr.write('loaded\\n')")
    monkeypatch.syspath_prepend(tmp_path)
    chain = Chain()
    chain.grow(10)
    with serving(chain, tmp_path, python_modules=["that_speaks"]):
        pass
    assert capfd.readouterr().err.splitlines().count("loaded") == 1


def test_what_a_template_said_while_it_loaded_is_not_why_it_ended_later() -> None:
    speaks = (
        "import os, sys; from graphtide.daemon.serve.template import speak_aloud; "
        "sys.stderr.write('loaded'); sys.stderr.flush(); speak_aloud(int(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    script = (
        "import sys; from graphtide.daemon.serve import template\n"
        "template.template_command = lambda door, stderr, *_: [sys.executable, '-c', sys.argv[1], str(stderr)]\n"
        "made = template.Template('int', [])\n"
        "made._was_asked = True\n"  # so that it is not killed before it has spoken
        "print(made.end())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, speaks], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("its template was ended by signal 9 (Killed)\n", "loaded")


@pytest.mark.sample(among="a server process and its template")
def test_a_server_is_started_again_where_threads_were_short(
    link: ServerLink, chain: Chain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin, failures = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == "topology" and len(failures) < 2:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    killed = kill(link)
    until(lambda: link.is_ready and link.pid != killed)
    assert len(failures) == 2
    assert caplog.text.count("cannot be started (can't start new thread)") == 2
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [103]).epoch == (1, chain.number)


@pytest.mark.sample(among="a server process and its template")
@pytest.mark.parametrize("error", [MemoryError(), OverflowError("too long")], ids=["memory", "unforeseen"])
def test_whatever_fails_as_a_server_is_started_the_next_one_comes(
    link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    introduce, failures = ServerLink._introduce, []

    def fails_once(self: ServerLink, process: Any) -> None:
        if not failures:
            failures.append(process)
            raise error
        introduce(self, process)

    monkeypatch.setattr(ServerLink, "_introduce", fails_once)
    kill(link)
    assert len(failures) == 1
    assert f"cannot be started ({str(error) or 'MemoryError'})" in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(error, OverflowError)


@pytest.mark.sample(among="a server process and its template")
def test_nothing_stays_open_of_a_server_that_failed_to_start_and_to_end(
    link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    introduce, status, failures = ServerLink._introduce, template.Template.status, list[Any]()

    def not_introduced(self: ServerLink, process: Any) -> None:
        if not failures:
            failures.append(process)
            raise MemoryError
        introduce(self, process)

    def not_known(self: template.Template, child: Any) -> Any:
        if len(failures) == 1:
            failures.append(child)
            raise OSError("how it ended is not known")
        return status(self, child)

    monkeypatch.setattr(ServerLink, "_introduce", not_introduced)
    monkeypatch.setattr(template.Template, "status", not_known)
    kill(link)
    assert "cannot be started (how it ended is not known)" in caplog.text
    assert (failures[0].control.fileno(), failures[0].calls.fileno()) == (-1, -1)


def test_nothing_stays_open_where_there_are_too_few_descriptors_for_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, opened = socket.socketpair, list[socket.socket]()

    def one_pair(*how: Any) -> tuple[socket.socket, socket.socket]:
        if opened:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.extend(pair(*how))
        return opened[0], opened[1]

    monkeypatch.setattr(socket, "socketpair", one_pair)
    with pytest.raises(OSError, match="Too many open files"):
        server_process.ServerProcess(cast(template.Template, None))
    assert [one.fileno() for one in opened] == [-1, -1]


@pytest.mark.sample(among="a server process and its template")
def test_a_server_whose_report_cannot_be_taken_is_replaced(
    link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unpack, failures, pid = msgpack.unpackb, [], link.pid

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name == "server-watch" and not failures:
            failures.append(args)
            raise MemoryError
        return unpack(*args, **kwargs)

    monkeypatch.setattr(msgpack, "unpackb", fails_once)
    until(lambda: link.is_ready and link.pid != pid)
    assert "a report of the query server cannot be taken" in caplog.text


@pytest.mark.sample(among="a server process and its template")
@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "none left")], ids=["memory", "files"])
def test_whatever_fails_as_a_server_ends_the_next_one_comes(
    link: ServerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Of descriptors it needs none."""
    failures: list[Any] = []

    def fails_once(call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any) -> Any:
            if threading.current_thread().name == "server-watch" and not failures:
                failures.append(args)
                raise error
            return call(*args)

        return fail

    if isinstance(error, OSError):
        monkeypatch.setattr(os, "dup", fails_once(os.dup))
    else:
        monkeypatch.setattr(template.Template, "status", fails_once(template.Template.status))
    kill(link)
    assert len(failures) == 1
    assert ("is not known" in caplog.text) == isinstance(error, MemoryError)
    kill(link)


@pytest.mark.sample(among="a server process and its template")
def test_a_start_for_which_there_are_no_descriptors_ends(
    link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: ServerLink) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(ServerLink, "_begin", none_left)
        patched.setattr(ServerLink, "is_ready", False)
        pid = link.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match="Too many open files"):
            link.wait_ready(PATIENCE_S)
    until(lambda: link.is_ready)
    link.wait_ready(PATIENCE_S)  # what failed before is over


def test_who_gives_up_waits_for_no_server(link: ServerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerLink, "is_ready", False)
    link.wait_ready(PATIENCE_S, given_up=lambda: True)


@pytest.mark.sample(among="a server process and its template")
def test_a_server_that_is_told_to_end_leaves_nothing_open(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though nobody has hung up who asks it for answers, or whom it asks."""
    monkeypatch.setenv("PYTHONWARNINGS", "always::ResourceWarning")
    with serving(chain, tmp_path) as link, Client(link.addresses[0], timeout=60) as client:
        client.degree([100])
        process = link._process
        assert process is not None
        process.control.shutdown(socket.SHUT_RDWR)
        until(lambda: link.restarts == 1 and link.is_ready)
    assert "ResourceWarning" not in capfd.readouterr().err


def test_a_lost_template_costs_a_start_and_nothing_else(link: ServerLink) -> None:
    template = link.template_pid
    assert template is not None
    os.kill(template, signal.SIGKILL)
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [103]).values.tolist() == [4]  # the server that runs goes on
        kill(link)
        assert client.get("rank", [103]).values.tolist() == [4]
    assert link.template_pid != template and parent(link.pid) == link.template_pid


@pytest.mark.sample(among="a server process and its template")
def test_the_next_server_does_not_wait_for_an_answer_to_the_one_before(
    chain: SlowChain, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain.may_answer, "wait", lambda timeout_s: threading.Event.wait(chain.may_answer))
    with raw(link.addresses[0]) as connection:
        connection.send(request(1, "neighbors", {"vertex": 103}))
        assert chain.asked_about.wait(60)
        kill(link)
        assert not chain.may_answer.is_set()
    with Client(link.addresses[0], timeout=60) as client:
        assert client.get("rank", [103]).values.tolist() == [4]
        assert client.degree([100]).out.tolist() == [1]


class Calls:
    """The engine's end of the socket over which it is asked; each answer that is written, as it was written."""

    def __init__(self) -> None:
        self.calls, self.asking = socket.socketpair()
        self.written: list[list[int]] = []

    def answer(self, response: bytes) -> None:
        unpacker = msgpack.Unpacker()
        unpacker.feed(response)
        self.written.append([msgid for _, msgid, _, _ in unpacker])


@pytest.mark.parametrize(("seconds", "writes"), [(3600.0, [[1, 2, 3]]), (0.0, [[1], [2], [3]])])
def test_answers_to_what_came_together_go_together_unless_they_take_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, writes: list[list[int]]
) -> None:
    monkeypatch.setattr(engine_answers, "TOGETHER_SECONDS_MAX", seconds)
    process: Any = Calls()
    no_topology: Any = None
    answers: Any = engine_answers.EngineAnswers(process, no_topology, {}, lambda: 0)
    answers._response = lambda msgid, method, params: msgpack.packb([1, msgid, None, params])
    with process.asking:
        process.asking.sendall(b"".join(msgpack.packb([0, msgid, "degree", [{}]]) for msgid in (1, 2, 3)))
    answers.run()
    assert process.written == writes


def test_no_answer_that_is_there_waits_with_a_question_for_a_settled_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_answers, "TOGETHER_SECONDS_MAX", 3600.0)
    process: Any = Calls()
    no_topology: Any = None
    answers: Any = engine_answers.EngineAnswers(process, no_topology, {}, lambda: 0)

    def response(msgid: int, method: str, params: Any) -> bytes:
        if method == "edge_weights":
            assert process.written == [[1, 2]]
        return msgpack.packb([1, msgid, None, params])

    answers._response = response
    questions = enumerate(("degree", "neighbors", "edge_weights", "degree"), 1)
    with process.asking:
        process.asking.sendall(b"".join(msgpack.packb([0, msgid, method, [{}]]) for msgid, method in questions))
    answers.run()
    assert process.written == [[1, 2], [3, 4]]


def test_a_template_that_was_killed_is_not_waited_for_though_a_server_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it forked holds the other end of whatever it had open."""
    script = (
        "import os, time; from graphtide.daemon.serve import template\n"
        "def serve_door(door):\n"
        "    if os.fork() == 0: time.sleep(3600)\n"
        "    os.write(1, b'forked'); time.sleep(3600)\n"
        "made = template.Template('int', [], serve_door)\n"
        "made._was_asked = True; assert type(made._process).__name__ == '_Fork'\n"
        "template.STOP_SECONDS_MAX = 3600.0\n"
        "input(); made._process.kill(); made.close(); os.killpg(0, 9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, process_group=0,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.read(6) == b"forked"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGKILL
