"""A whole daemon, and what feeds it, over TLS to a real broker, with the settings that docs/security.md gives."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brokers
import pytest
from certificates import Certificate, certificate, revocations
from conftest import skip_or_fail
from documented import ROOT
from kafka import KafkaProducer
from running import Daemon
from waiting import until

from graphtide.daemon.errors import ConfigError
from graphtide.daemon.ingest import kafka_client
from graphtide.daemon.tools.destinations import KafkaDestination, ProduceFailed
from graphtide.ops.kafka import DevKafka, KafkaUnavailable, missing_tools

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]  # a first start compiles kernels

SECTION = (ROOT / "docs/security.md").read_text("utf-8").split("## Kafka over TLS")[1].split("\n## ")[0]
WITH_CERTIFICATE, WITH_PASSWORD = (
    tomllib.loads(block)["source"]["client"] for block in re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """The broker's, which is the authority of clients, too, and theirs."""
    return certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), "stranger")


@pytest.fixture(scope="module")
def broker(own: Certificate) -> Iterator[DevKafka]:
    if reason := missing_tools():
        skip_or_fail(reason)
    broker = DevKafka(tls=(Path(own.certificate), Path(own.key)))
    try:
        broker.start()
        broker.create_topic("edges", 2)
        broker.create_topic("letters", 1)
        broker.create_topic("results", 1, {"cleanup.policy": "compact"})
    except KafkaUnavailable as error:
        broker.close()
        skip_or_fail(str(error))
    yield broker
    broker.close()


def settled(documented: dict[str, Any], own: Certificate, password: Path) -> dict[str, Any]:
    """The documented settings with files that there are, and the one mechanism that the broker has."""
    here = {
        "ssl_cafile": own.certificate,
        "ssl_certfile": own.certificate,
        "ssl_keyfile": own.key,
        "sasl_mechanism": "PLAIN",
        "sasl_plain_password_file": str(password),
    }
    return {key: here.get(key, value) for key, value in documented.items()}


@pytest.mark.parametrize("documented", [WITH_CERTIFICATE, WITH_PASSWORD], ids=["certificate", "password"])
def test_all_that_goes_to_and_from_brokers_goes_over_tls(
    broker: DevKafka, own: Certificate, tmp_path: Path, documented: dict[str, Any]
) -> None:
    servers = broker.bootstrap_tls if documented is WITH_CERTIFICATE else broker.bootstrap_sasl_tls
    (tmp_path / "password").write_text(broker.password)
    settings = {
        "source": {
            "kind": "kafka",
            "bootstrap_servers": [servers],
            "topics": ["edges"],
            "start": "latest",
            "client": settled(documented, own, tmp_path / "password"),
        },
        "dead_letters": {"topic": "letters", "path": tmp_path / "dead-letters"},
        "results": {"kind": "kafka", "topic": "results"},
        "program": [{"name": "bfs", "source": 1}],
    }
    (tmp_path / "a.el").write_text("1 2\n2 3\n")

    def graphtide(*words: str) -> str:
        command = [sys.executable, "-m", "graphtide", *words, "--config", str(daemon.config)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def letters() -> int:
        counted = json.loads(
            graphtide("dead-letters", "count", "--kafka", servers, "--topic", "letters", "--json")
        )
        return sum(count["letters"] for count in counted)

    with Daemon(tmp_path, settings) as daemon:
        daemon.start(ready_s=400)
        before = letters()
        assert re.search(rf"kafka +ok +{re.escape(servers)}", graphtide("doctor"))
        sent = json.loads(graphtide("produce", "--kafka", servers, "--topic", "edges", "--json", "a.el"))
        with brokers.client(KafkaProducer, broker.bootstrap) as producer:
            producer.send("edges", b"no record", partition=0).get(timeout=60)
        with daemon.client() as client:
            found = client.get("bfs", [1, 2, 3], min_offsets=sent["offsets"])
            assert found.values.tolist() == [0, 1, 2]
            until(lambda: client.stats()["dead_letters"] == {"malformed": 1})
            until(lambda: client.stats()["results"]["epoch"] is not None)
            assert client.stats()["results"]["trouble"] is None
        until(lambda: letters() == before + 1)
        assert daemon.stop() == 0, daemon.log_tail()


def test_a_broker_whose_certificate_was_revoked_is_not_taken(
    broker: DevKafka, own: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "COMMAND_CONNECT_MS", 3000)
    client = settled(WITH_CERTIFICATE, own, tmp_path)
    for name in ("none", "some"):
        (tmp_path / name).mkdir()
    client["ssl_crlfile"] = revocations(tmp_path / "none", own)
    with contextlib.closing(KafkaDestination(broker.bootstrap_tls, "edges", client=client)) as destination:
        assert destination.partitions == 2
    client["ssl_crlfile"] = revocations(tmp_path / "some", own, own)
    with pytest.raises(ConfigError, match="is not taken: certificate revoked"):
        KafkaDestination(broker.bootstrap_tls, "edges", client=client)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ssl_cafile": "another"}, r"certificate of .* is not taken: self-signed certificate \(see ssl_cafile\)"),
        ({"host": "localhost"}, r"certificate of localhost:\d+ is not taken: .*by a name in their certificates"),
        ({"ssl_certfile": None, "ssl_keyfile": None}, "takes no client without .*see ssl_certfile"),
        ({"ssl_certfile": "another", "ssl_keyfile": "another"}, "takes no client without .*see ssl_certfile"),
        ({"ssl_keyfile": "another"}, "key values mismatch .*see .*ssl_keyfile"),
        ({"ssl_cafile": "/none.pem"}, "ssl_cafile = '/none.pem': No such file"),
        ({"security_protocol": "PLAINTEXT"}, "perhaps it speaks TLS .*see security_protocol"),
        ({"port": "plain"}, "in the handshake of TLS .*speaks none there"),
    ],
)
def test_what_is_wrong_with_tls_is_said_with_where_to_look(
    broker: DevKafka,
    own: Certificate,
    another: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, str | None],
    words: str,
) -> None:
    monkeypatch.setattr(kafka_client, "COMMAND_CONNECT_MS", 3000)
    servers = broker.bootstrap if wrong.get("port") else broker.bootstrap_tls
    servers = servers.replace("127.0.0.1", wrong.get("host") or "127.0.0.1")
    theirs = {"ssl_cafile": another.certificate, "ssl_certfile": another.certificate, "ssl_keyfile": another.key}
    client = settled(WITH_CERTIFICATE, own, tmp_path)
    for option, value in wrong.items():
        if value is None:
            del client[option]
        elif option in client:
            client[option] = theirs[option] if value == "another" else value
    outage = "security_protocol" in wrong or "port" in wrong
    with pytest.raises(ProduceFailed if outage else ConfigError, match=words):
        KafkaDestination(servers, "edges", client=client)
