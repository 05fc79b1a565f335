"""Kafka's clients leave nothing running, whatever their cluster does meanwhile."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Certificate, certificate
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError
from leaks import Held, leftovers
from waiting import until

from graphtide.daemon.config.secrets import FileSecret
from graphtide.daemon.errors import ConfigError, SourceUnavailable
from graphtide.daemon.ingest import dead_letters_kafka
from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.ingest.dead_letters_kafka import KafkaDeadLetters
from graphtide.daemon.ingest.kafka import KafkaSource
from graphtide.daemon.ingest.kafka_client import KafkaLink, TlsRefused, _Manager, _of_tls, connect, disconnect
from graphtide.daemon.os_errors import said
from graphtide.daemon.records.stream import BadRecord, Partition
from graphtide.daemon.tools.destinations import KafkaDestination, ProduceFailed
from graphtide.ops.kafka import DevKafka, held_port

KINDS = pytest.mark.parametrize("kind", [KafkaAdminClient, KafkaConsumer, KafkaProducer])


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of one who lets clients connect and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that nobody listens at."""
    with held_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"clients-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


@KINDS
def test_a_client_that_cannot_be_made_leaves_nothing(kind: Any, nobody: str) -> None:
    before = Held.now()
    for wrong in ({"bootstrap_timeout_ms": 100}, {"client_dns_lookup": "none"}):
        if wrong.keys() <= kind.DEFAULT_CONFIG.keys():
            with pytest.raises((KafkaError, ValueError)):
                connect(kind, {}, bootstrap_servers=[nobody], **wrong)
    assert not leftovers(before, grace_s=0)


def test_a_secret_that_cannot_be_read_is_told_once_whatever_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients look for connections several times a second."""
    config: dict[str, str] = {}
    for name in ("sasl_plain_password", "ssl_password"):
        (tmp_path / name).write_text("before")
        config[name] = FileSecret.read(name, tmp_path / name)
    (tmp_path / "sasl_plain_password").unlink()
    (tmp_path / "ssl_password").write_text("after")
    manager: Any = SimpleNamespace(config=config, _unread=_Manager._unread)
    for _ in range(3):
        _Manager._read_secrets_again(manager)
    assert config == {"sasl_plain_password": "before", "ssl_password": "after"}
    assert [record.getMessage().split(" = ")[0] for record in caplog.records] == ["sasl_plain_password"]


@contextlib.contextmanager
def listener(welcome: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of one who does this with each client, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, contextlib.suppress(OSError):
                        client.settimeout(30)
                        welcome(client)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), "broker")


def speaks_tls(own: Certificate, *, asks: bool = False) -> Callable[[socket.socket], object]:
    """``asks``: for a certificate of the client, which is to be signed by its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(own.certificate)

    def welcome(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as spoken:
            spoken.recv(1)

    return welcome


def speaks_plain(client: socket.socket) -> None:
    client.recv(1)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@KINDS
def test_tls_that_is_refused_is_said_so_and_leaves_nothing(kind: Any, own: Certificate, tmp_path: Path) -> None:
    before = Held.now()
    trusting = {"security_protocol": "SSL", "ssl_cafile": own.certificate}
    cases: list[tuple[Callable[[socket.socket], object], dict[str, Any], str]] = [
        (
            speaks_tls(own),
            {"security_protocol": "SSL"},
            "the certificate of 127.0.0.1:.* is not taken: self-signed",
        ),
        (speaks_plain, trusting, "no TLS with 127.0.0.1:.*(WRONG_VERSION|wrong version|record layer)"),
        (
            speaks_tls(own, asks=True),
            trusting,
            "no TLS with 127.0.0.1:.*(CERTIFICATE_REQUIRED|certificate required)",
        ),
        (speaks_tls(own), {**trusting, "ssl_cafile": str(tmp_path / "none.pem")}, "no TLS with .*No such file"),
    ]
    for welcome, client, words in cases:
        with listener(welcome) as address, pytest.raises(TlsRefused, match=words):
            connect(kind, client, bootstrap_servers=[address], bootstrap_timeout_ms=60_000)
    assert not leftovers(before, grace_s=30)


@pytest.mark.parametrize(
    ("code", "hint"), [(9, "a clock is wrong"), (10, "the broker needs another one"), (18, "see ssl_cafile")]
)
def test_why_a_certificate_is_not_taken_comes_with_where_to_look(code: int, hint: str) -> None:
    """With the numbers that OpenSSL gives: 9 is not yet valid, 10 has expired, 18 is self-signed."""
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "what OpenSSL says"
    assert re.search(
        rf"of broker1:9093 is not taken: what OpenSSL says \(.*{hint}", str(_of_tls(error, "broker1:9093"))
    )


def test_a_source_whose_tls_is_refused_at_first_has_a_wrong_configuration(own: Certificate) -> None:
    with listener(speaks_tls(own)) as address:
        source = KafkaSource([address], ["t"], client={"security_protocol": "SSL"}, connect_timeout_s=60)
        try:
            with pytest.raises(
                ConfigError, match=r"source\.client: Kafka at .* the certificate of .* is not taken"
            ):
                source.identity()
        finally:
            source.close()


def test_a_broker_that_hangs_up_in_the_handshake_is_an_outage(own: Certificate) -> None:
    with listener(lambda client: client.recv(1)) as address:
        trusting = {"security_protocol": "SSL", "ssl_cafile": own.certificate}
        source = KafkaSource([address], ["t"], client=trusting, connect_timeout_s=1.0)
        try:
            with pytest.raises(SourceUnavailable):
                source.identity()
        finally:
            source.close()


@KINDS
def test_a_cluster_that_is_not_reached_in_time_is_told_with_what_the_last_try_met(kind: Any, nobody: str) -> None:
    with pytest.raises(KafkaTimeoutError, match=r"Unable to bootstrap .*ECONNREFUSED"):
        connect(kind, {}, bootstrap_servers=[nobody], bootstrap_timeout_ms=1000)


def test_a_client_whose_network_failed_is_broken_off_all_the_same(nobody: str) -> None:
    """What its network failed with is raised anew to whoever wants something of it, and is any error."""
    link = KafkaLink(KafkaProducer, {}, bootstrap_servers=[nobody])
    asked = []

    def give_up() -> None:
        asked.append(True)
        raise KeyError("a broken network")

    link._holds(give_up)
    link.break_off()
    assert asked
    with pytest.raises(KafkaError, match="broken off"):
        link.client()


@KINDS
def test_connecting_can_be_broken_off(kind: Any, silent: str) -> None:
    link = KafkaLink(kind, {}, bootstrap_servers=[silent], bootstrap_timeout_ms=120_000)
    errors: list[BaseException] = []
    begun = threading.Event()

    def use() -> None:
        begun.set()
        try:
            link.client()
        except BaseException as error:
            errors.append(error)

    before = Held.now()
    user = threading.Thread(target=use)
    user.start()
    begun.wait()
    link.break_off()
    user.join(60)
    assert not user.is_alive() and isinstance(errors[0], KafkaError)
    assert not leftovers(before)
    with pytest.raises(KafkaError, match="broken off"):
        link.client()


def test_a_source_that_waits_for_its_cluster_can_be_closed(silent: str) -> None:
    before = Held.now()
    source = KafkaSource(silent, ["edges"])
    source.open(None)
    assert source.poll(100, timeout_s=0.2) == []
    source.close()
    assert not leftovers(before, grace_s=0)


@pytest.mark.kafka
def test_an_admin_client_is_broken_off_for_good(kafka: DevKafka, topic: str) -> None:
    before = Held.now()
    link = KafkaLink(KafkaAdminClient, {}, bootstrap_servers=[kafka.bootstrap])
    assert link.client().describe_topics([topic])[0]["name"] == topic
    link.break_off()
    with pytest.raises((KafkaError, RuntimeError)):
        link.client().describe_topics([topic])
    link.close()
    assert not leftovers(before)


@KINDS
@pytest.mark.kafka
def test_a_client_that_is_closed_while_it_sends_leaves_no_socket(
    kind: Any, kafka: DevKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Held.now()
    made = connect(kind, {}, bootstrap_servers=[kafka.bootstrap])
    network = (made._sender if kind is KafkaProducer else made)._client
    manager = network._manager
    network._net.call_soon_threadsafe(lambda: manager.get_connection(manager.least_loaded_node()))
    until(lambda: any(connection.connected for connection in manager._conns.values()))
    (transport,) = (connection.transport for connection in manager._conns.values() if connection.connected)
    monkeypatch.setattr(transport, "_sock_send", lambda: (0, None))  # the broker takes nothing more
    network._net.call_soon_threadsafe(lambda: transport.write(b"a request"))
    until(lambda: transport._writing)
    disconnect(made)
    assert not leftovers(before, grace_s=0)


@pytest.mark.kafka
def test_what_has_unsent_records_and_no_broker_any_more_ends_when_it_is_closed(
    kafka: DevKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_kafka, "CLOSE_SECONDS_MAX", 0.5)
    before = Held.now()
    first, second = (BadRecord(Partition("edges", 3), offset, b"x", "bad-message", "") for offset in (1, 2))
    producer = connect(KafkaProducer, {}, bootstrap_servers=[kafka.bootstrap])
    destination = KafkaDestination(kafka.bootstrap, topic)
    letters = KafkaDeadLetters(kafka.bootstrap, topic, tmp_path)
    producer.send(topic, b"x").get(30)
    destination.send(0, b"x")
    destination.finish()
    letters.write([first])
    until(lambda: letters.sent == 1)
    kafka.stop()
    try:
        letters.write([second])
        letters.close()
        waiting = producer.send(topic, b"y")
        disconnect(producer, timeout_s=0.1)
        assert waiting.failed()
        destination.send(0, b"y")
        destination.close()
        with pytest.raises(ProduceFailed):
            destination.finish()
        assert not leftovers(before).threads
    finally:
        kafka.start()
    assert [bad.offset for bad in read_dead_letters(tmp_path)][-1] == 2


def test_an_error_is_named_once() -> None:
    assert said(KafkaTimeoutError("no broker")) == "KafkaTimeoutError: no broker"
    assert said(KafkaTimeoutError()) == "KafkaTimeoutError"
    assert said(ValueError("no broker")) == "ValueError: no broker"
