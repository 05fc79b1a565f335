"""Who is let in by the query server, and what strangers cost: tokens, TLS, places, time and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from certificates import certificate
from running import Daemon
from test_server import Chain, raw, request, serving
from waiting import until

from graphtide.daemon import errors
from graphtide.daemon.client import Client
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.serve.admission import Admission, Guest, origin_of
from graphtide.daemon.serve.listening import TlsFiles, checked_tls

TOKEN = "sesame-open"
FEW = LimitsConfig(connections_max=4, strangers_max=8, hello_seconds_max=60)


@pytest.fixture
def chain() -> Chain:
    chain = Chain()
    chain.grow(10)
    return chain


def hello(token: str, msgid: int = 1) -> bytes:
    return request(msgid, "hello", {"token": token})


# -- places -----------------------------------------------------------------------------------------------


@pytest.mark.sample(among="who may come in")
def test_silent_strangers_keep_nobody_out_who_has_a_token(chain, tmp_path):
    with serving(chain, tmp_path, FEW, tokens=[TOKEN]) as link, contextlib.ExitStack() as stack:
        address = link.addresses[0]
        for _ in range(50):
            stack.enter_context(raw(address))
        for _ in range(FEW.connections_max):
            client = stack.enter_context(Client(address, token=TOKEN, timeout=60))
            assert client.get("rank", [100]).values.tolist() == [1]
        with pytest.raises(errors.LimitExceeded, match="more than 4 connections"):
            stack.enter_context(Client(address, token=TOKEN, timeout=60)).stats()
        for _ in range(50):
            stack.enter_context(raw(address))
        assert client.get("rank", [100]).values.tolist() == [1]
        until(lambda: link.refused()["crowded"] >= 42)
        until(lambda: link.refused()["full"] >= 1)


@pytest.mark.sample(among="who may come in")
def test_silent_clients_keep_nobody_out_where_no_token_is_asked_for_either(chain, tmp_path):
    with serving(chain, tmp_path, FEW) as link, contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(raw(link.addresses[0]))
        with Client(link.addresses[0], timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]


@pytest.mark.sample(among="who may come in")
def test_handshakes_that_never_end_keep_nobody_out(chain, tmp_path):
    own = certificate(tmp_path, "server")
    trust = ssl.create_default_context(cafile=own.certificate)
    listen = ["tcp://127.0.0.1:0"]
    with (
        serving(chain, tmp_path, FEW, listen=listen, tls=TlsFiles(*own), tokens=[TOKEN]) as link,
        contextlib.ExitStack() as stack,
    ):
        port = int(link.addresses[0].rpartition(":")[2])
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with Client(link.addresses[0], token=TOKEN, ssl_context=trust, timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]


class Turned:
    """Guests that remember who was turned out."""

    def __init__(self) -> None:
        self.out: list[str] = []

    def guest(self, name: str, origin: str) -> Guest:
        return Guest(origin, lambda _: self.out.append(name))


def test_room_is_made_by_the_oldest_of_the_largest_crowd():
    async def scenario() -> list[str]:
        limits = LimitsConfig(strangers_max=4)
        door = Admission({"tokens": [TOKEN], "tls": []}, limits, asyncio.get_running_loop())
        turned = Turned()
        first = turned.guest("b1", "b")
        for guest in (first, turned.guest("a1", "a"), turned.guest("a2", "a"), turned.guest("a3", "a")):
            door.enter(guest)
        door.enter(turned.guest("c1", "c"))
        door.enter(turned.guest("a4", "a"))
        door.let_in(first)  # which leaves a place free
        door.enter(turned.guest("a5", "a"))
        door.enter(turned.guest("d1", "d"))
        door.close()
        return turned.out

    assert asyncio.run(scenario()) == ["a1", "a2", "a3"]


def test_where_a_connection_comes_from():
    left, right = socket.socketpair()
    with left, right:
        assert re.fullmatch(r"uid \d+", origin_of(left, ""))
    with socket.socket(socket.AF_INET) as four, socket.socket(socket.AF_INET6) as six:
        assert origin_of(four, ("192.0.2.7", 5)) == "192.0.2.7"
        assert origin_of(six, ("2001:db8:1:2:3:4:5:6", 5, 0, 0)) == "2001:db8:1:2::/64"
        assert origin_of(six, ("::ffff:192.0.2.7", 5, 0, 0)) == "192.0.2.7"


# -- bytes and time ---------------------------------------------------------------------------------------


@pytest.mark.sample(among="who may come in")
def test_before_hello_a_request_has_four_kibibytes(chain, tmp_path):
    long = request(2, "get", {"program": "rank", "vertices": [100] * 50_000})
    with serving(chain, tmp_path, tokens=[TOKEN]) as link:
        address = link.addresses[0]
        for data in (long, long[:5000], hello(TOKEN + "!" * 5000)):
            with raw(address) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(data)
                assert connection.error() == "limit-exceeded"
        with raw(address) as connection:  # in one piece: what follows hello may be long
            short = request(3, "get", {"program": "rank", "vertices": [100] * 9000})
            connection.send(hello(TOKEN) + short)
            answers = {answer[1]: answer for answer in (connection.answer(), connection.answer())}
            assert answers[1][2] is None and answers[3][2] is None
        until(lambda: link.refused()["request"] == 3)


@pytest.mark.sample(among="who may come in")
def test_who_says_nothing_is_told_so_and_those_inside_may_be_silent(chain, tmp_path):
    limits = LimitsConfig(hello_seconds_max=0.5)
    with serving(chain, tmp_path, limits, tokens=[TOKEN]) as link:
        with raw(link.addresses[0]) as inside, raw(link.addresses[0]) as silent, raw(link.addresses[0]) as half:
            inside.send(hello(TOKEN))
            assert inside.answer()[2] is None
            half.send(hello(TOKEN)[:-1])
            assert silent.error() == "timeout" and half.error() == "timeout"
            inside.send(request(2, "stats"))
            assert inside.answer()[:3] == [1, 2, None]
        until(lambda: link.refused()["silent"] == 2)


# -- tokens -----------------------------------------------------------------------------------------------


@pytest.mark.sample(among="who may come in")
def test_wrong_tokens_end_the_connection_are_counted_and_do_not_fill_the_log(chain, tmp_path, capfd):
    with serving(chain, tmp_path, tokens=[TOKEN]) as link:
        for _ in range(300):
            with raw(link.addresses[0]) as connection:
                connection.send(hello("sesame-opem") + hello(TOKEN, 2))
                assert connection.answer()[2]["code"] == "unauthorized"
                assert connection.answer() is None
        until(lambda: link.refused()["token"] == 300)
    lines = [line for line in capfd.readouterr().err.splitlines() if "refused" in line]
    counted = [re.search(r"refused (\d+) connections?: .*from uid \d+ \(a wrong token", line) for line in lines]
    assert sum(int(found[1]) for found in counted if found) == 300
    assert len(lines) <= 5  # the first one, one a minute, and one at the end


@pytest.mark.sample(among="who may come in")
def test_counts_of_refusals_outlive_the_server(chain, tmp_path):
    with serving(chain, tmp_path, tokens=[TOKEN]) as link:
        for round in (1, 2):
            with raw(link.addresses[0]) as connection:
                connection.send(request(1, "stats"))
                assert connection.answer()[2]["code"] == "unauthorized"
            until(lambda round=round: link.refused()["token"] == round)
            os.kill(link.pid, signal.SIGKILL)
            until(lambda round=round: link.restarts == round)


def test_two_tokens_are_right_while_clients_change_over(chain, tmp_path):
    with serving(chain, tmp_path, tokens=["old-token", "new-token"]) as link:
        address = link.addresses[0]
        with raw(address) as old, raw(address) as new:
            old.send(hello("old-token"))
            new.send(hello("new-token"))
            assert old.answer()[2] is None and new.answer()[2] is None
            link.renew_access(["new-token"])
            assert old.error() == "unauthorized"
            new.send(request(2, "stats"))
            assert new.answer()[:3] == [1, 2, None]
        with pytest.raises(errors.Unauthorized), Client(address, token="old-token", timeout=60) as client:
            client.stats()
        os.kill(link.pid, signal.SIGKILL)  # the next server knows them, too
        with Client(address, token="new-token", timeout=60) as client:
            client.stats()
        with pytest.raises(errors.Unauthorized), Client(address, token="old-token", timeout=60) as client:
            client.stats()


def test_with_a_token_that_goes_all_end_that_came_with_it_and_nobody_else(chain, tmp_path):
    """Requests that wait, those that are answered aside, and subscriptions."""
    with (
        serving(chain, tmp_path, tokens=["old-token", "new-token"]) as link,
        contextlib.ExitStack() as stack,
    ):
        address = link.addresses[0]
        later = {"min_offsets": {"t": {0: (chain.number + 1) * 10}}, "timeout_ms": 60_000}
        waiting = {token: stack.enter_context(raw(address)) for token in ("old-token", "new-token")}
        for token, connection in waiting.items():
            connection.send(hello(token) + request(2, "wait", later))
            assert connection.answer()[2] is None
        computing = stack.enter_context(raw(address))
        computing.send(hello("old-token") + request(2, "compute", {"program": "triangles"}))
        assert computing.answer()[2] is None and chain.begun.wait(60)
        clients = [stack.enter_context(Client(address, token=token, timeout=60)) for token in waiting]
        old, new = (client.subscribe("rank") for client in clients)
        stack.callback(old.close)
        stack.callback(new.close)
        next(old), next(new)
        link.renew_access(["new-token"])
        assert waiting["old-token"].error() == computing.error() == "unauthorized"
        assert chain.given_up.wait(60)
        with pytest.raises(errors.Unauthorized, match="no longer valid"):
            next(old)
        link.publish(chain.publication())
        assert next(new).epoch == (1, chain.number)
        assert waiting["new-token"].answer()[:3] == [1, 2, None]


# -- TLS --------------------------------------------------------------------------------------------------


def test_no_client_may_ask_for_another_handshake(chain, tmp_path):
    own = certificate(tmp_path, "server")
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"], tls=TlsFiles(*own)) as link:
        asked = ["openssl", "s_client", "-tls1_2", "-connect", link.addresses[0].removeprefix("tcp://")]
        with subprocess.Popen(
            asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as client:
            assert client.stdin is not None and client.stdout is not None
            until(lambda: "Verify return code" in client.stdout.readline())
            client.stdin.write("R\n")
            client.stdin.flush()
            said = client.stdout.read()
        assert "RENEGOTIATING" in said and "no renegotiation" in said


def test_certificates_that_change_leave_open_connections_and_meet_new_ones(chain, tmp_path):
    """Of the server, and the authority of clients; a server process that begins later has them, too."""
    before, after, client_ca = (certificate(tmp_path, name) for name in ("before", "after", "client"))
    used = TlsFiles(f"{tmp_path}/used.pem", f"{tmp_path}/used.key", client_ca=f"{tmp_path}/used-ca.pem")

    def install(own, ca):
        for source, target in zip(
            (*own, ca.certificate), (used.certificate, used.key, used.client_ca), strict=True
        ):
            shutil.copy(source, target)

    def trusting(server, own):
        context = ssl.create_default_context(cafile=server.certificate)
        context.load_cert_chain(*own)
        return context

    def answers(server, own):
        try:
            with Client(address, ssl_context=trusting(server, own), timeout=60) as client:
                client.stats()
        except errors.Unavailable:
            return False
        return True

    install(before, client_ca)
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"], tls=used) as link, contextlib.ExitStack() as stack:
        address = link.addresses[0]
        open_before = stack.enter_context(Client(address, ssl_context=trusting(before, client_ca), timeout=60))
        told = stack.enter_context(open_before.subscribe("rank"))
        open_before.stats(), next(told)
        install(after, after)  # on disk alone: nobody has said so yet
        assert answers(before, client_ca) and not answers(after, after)
        link.renew_access([])
        until(lambda: answers(after, after))
        assert not answers(before, client_ca) and not answers(after, client_ca)
        link.publish(chain.publication())
        assert next(told).epoch == open_before.stats().epoch == (1, chain.number)
        told.close()
        Path(used.key).write_text("no key")
        with pytest.raises(errors.ConfigError, match="TLS with"):
            link.renew_access([])
        assert answers(after, after)
        os.kill(link.pid, signal.SIGKILL)  # the next server would find files that it could not use
        until(lambda: link.restarts == 1 and link.is_ready)
        assert answers(after, after)
        install(before, client_ca)
        link.renew_access([])
        until(lambda: answers(before, client_ca))


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path):
    """And nobody asks for a password at a terminal."""
    own = certificate(tmp_path, "own")
    locked = f"{tmp_path}/locked.key"
    encrypt = ["openssl", "rsa", "-in", own.key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(encrypt, capture_output=True, check=True)
    with pytest.raises(errors.ConfigError, match=r"locked\.key: .*the key is encrypted"):
        checked_tls(TlsFiles(own.certificate, locked))
    with pytest.raises(errors.ConfigError, match=r"TLS with /none\.pem: No such file"):
        checked_tls(TlsFiles(own.certificate, own.key, client_ca="/none.pem"))


@pytest.mark.sample(among="who may come in")
def test_clients_must_show_a_certificate_where_an_authority_is_named(chain, tmp_path):
    own, theirs, strange = (certificate(tmp_path, name) for name in ("server", "client", "strange"))
    files = TlsFiles(*own, client_ca=theirs.certificate)
    with serving(chain, tmp_path, listen=["tcp://127.0.0.1:0"], tls=files) as link:

        def trusting() -> ssl.SSLContext:
            return ssl.create_default_context(cafile=own.certificate)

        known, unknown, without = trusting(), trusting(), trusting()
        known.load_cert_chain(*theirs)
        unknown.load_cert_chain(*strange)
        with Client(link.addresses[0], ssl_context=known, timeout=60) as client:
            assert client.get("rank", [100]).values.tolist() == [1]
        for context in (unknown, without):
            with (
                pytest.raises(errors.Unavailable),
                Client(link.addresses[0], ssl_context=context, timeout=60) as client,
            ):
                client.stats()
        until(lambda: link.refused()["tls"] == 2)


@pytest.mark.sample(among="who may come in")
def test_sighup_reads_tokens_and_certificates_again(tmp_path):
    """In a real daemon; what cannot be used leaves all as it was."""
    before, after = certificate(tmp_path, "before"), certificate(tmp_path, "after")
    used = tmp_path / "used.pem", tmp_path / "used.key"
    tokens = tmp_path / "tokens"

    def install(files: tuple[str, str]) -> None:
        for source, target in zip(files, used, strict=True):
            shutil.copy(source, target)

    install(before)
    tokens.write_text("old-token\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    tcp = f"tcp://127.0.0.1:{port}"
    tls = {"certificate": used[0], "key": used[1]}
    server = {"listen": [tcp], "token_file": tokens, "tls": tls}
    metrics = {"listen": "127.0.0.1:0", "tls": tls}
    with Daemon(tmp_path / "daemon", {"server": server, "metrics": metrics, "program": []}) as daemon:
        daemon.start(ready_s=None)

        def answers(token: str, trusted: str) -> bool:
            context = ssl.create_default_context(cafile=trusted)
            try:
                with Client(tcp, token=token, ssl_context=context, timeout=60) as client:
                    return client.stats()["vertices"] == 0
            except (errors.Unavailable, errors.Unauthorized):
                return False

        def served() -> str:
            (found,) = re.findall(r"metrics at https://127.0.0.1:(\d+)/metrics", daemon.log.read_text())
            return ssl.get_server_certificate(("127.0.0.1", int(found)))

        def wait_until_logged(text: str, times: int) -> None:
            deadline = time.monotonic() + 120
            while daemon.log.read_text().count(text) < times:
                assert daemon.process is not None and daemon.process.poll() is None, daemon.log_tail()
                assert time.monotonic() < deadline, daemon.log_tail()
                time.sleep(0.05)

        wait_until_logged("is published", 1)
        assert daemon.process is not None
        assert answers("old-token", before.certificate)
        assert served() == Path(before.certificate).read_text()
        install(after)
        tokens.write_text("new-token\nother-token\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until_logged("were read again", 1)
        until(lambda: answers("new-token", after.certificate))
        assert answers("other-token", after.certificate)
        assert not answers("old-token", after.certificate) and not answers("new-token", before.certificate)
        assert served() == Path(after.certificate).read_text()
        used[0].write_text("no certificate")
        tokens.write_text("short\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until_logged("not reloaded", 2)
        assert "(line 1)" in daemon.log.read_text()
        assert answers("new-token", after.certificate)
        assert daemon.stop() == 0


WAITING = """
import sys, threading
from graphtide.daemon.signals import handled_signals

done = threading.Event()

def say(word):
    print(word, file=open(sys.argv[1], "a"), flush=True)

with handled_signals(lambda: (say("stop"), done.set()), lambda: say("reload")):
    say("ready")
    done.wait()
"""


@pytest.mark.sample(among="who may come in")
def test_sighup_means_a_stop_only_where_the_terminal_is_gone(tmp_path):
    said = tmp_path / "said"
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(said)], stdin=theirs, start_new_session=True, preexec_fn=take_terminal
    )
    try:
        os.close(theirs)
        until(lambda: said.exists() and said.read_text() == "ready\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: said.read_text() == "ready\nreload\n")
        os.close(ours)
        assert process.wait(60) == 0
        assert said.read_text() == "ready\nreload\nstop\n"
    finally:
        process.kill()
        process.wait()


AGAIN = """
import os, signal
from graphtide.daemon.again import LostDevice, StartAgain, lost_before, replace_process

def reload():
    os.kill(os.getpid(), signal.SIGHUP)

if (lost := lost_before()) is not None:
    reload()  # nobody listens for it yet
    print(lost.name, lost.reason[:9])
else:
    from graphtide.daemon.signals import handled_signals

    try:
        with handled_signals(lambda: None, lambda: None):
            raise StartAgain(LostDevice("card", "it failed" * 100_000))
    except StartAgain as again:
        reload()  # nobody listens for it any more
        replace_process(again.lost)
"""


@pytest.mark.sample(among="who may come in")
def test_neither_sighup_nor_a_long_reason_ends_a_process_that_replaces_itself():
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "card it failed\n"), done.stderr
