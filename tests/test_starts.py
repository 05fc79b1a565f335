"""How a daemon starts, goes on and ends, as its supervisors see it: probes, systemd, exit codes, clients."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import numpy as np
import psutil
import pytest
from brokers import client
from disks import filled, small_disk
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from running import Daemon, toml
from systemd_socket import told_to_systemd
from waiting import until

from graphtide.daemon import cli
from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.records.barrier import HEADERS, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter, frame
from graphtide.daemon.state.order_log import VERSION
from graphtide.gpma.edges import Op
from graphtide.ops.kafka import DevKafka, held_port

HOPS = [{"name": "bfs", "id": "hops", "source": 1}]


@contextlib.contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Daemon]:
    with Daemon(folder, {"program": HOPS, **settings}) as daemon:
        yield daemon


def write(daemon: Daemon, name: str, *records: bytes) -> dict[str, int]:
    """Append records to a file of the spool; returns the offsets that cover them."""
    with SpoolWriter(daemon.spool, name=name) as writer:
        for record in records:
            writer.append(record)
        writer.flush()
        return {f"{name}.msgpack": writer.offset}


def edges(*pairs: tuple[int, int]) -> bytes:
    return encode_msgpack(*np.array(pairs, np.int64).T)


def fed(daemon: Daemon, name: str, *records: bytes) -> None:
    """Started, and everything that lies there and these records are in the answers."""
    daemon.start()
    running_now(daemon)
    with daemon.client() as asking:
        asking.wait(write(daemon, name, *records), timeout_ms=60_000)


def running_now(daemon: Daemon) -> None:
    with daemon.client() as asking:
        until(lambda: asking.stats()["stage"] == "running")


def ended(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.wait(60)


def hops(daemon: Daemon, *vertices: int) -> list[int | None]:
    with daemon.client() as asking:
        return list(asking.get("hops", list(vertices)).values.tolist())


def reconfigure(daemon: Daemon, old: str, new: str) -> None:
    text = daemon.config.read_text()
    assert old in text
    daemon.config.write_text(text.replace(old, new))


# -- where reading begins -------------------------------------------------------------------------------------


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.parametrize("there", [True, False], ids=["after-a-file", "in-an-empty-spool"])
def test_what_was_acknowledged_after_a_start_at_the_latest_survives_a_kill(tmp_path: Path, there: bool) -> None:
    with running(tmp_path, source={"start": "latest"}) as daemon:
        if there:
            write(daemon, "old", edges((1, 2)))
        fed(daemon, "new", edges((1, 5), (5, 6)))
        daemon.kill()
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 5, 6, 2) == [1, 2, None]
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
@pytest.mark.parametrize("start", ["a time", "a table"])
def test_after_a_start_at_a_time_it_survives_as_well(kafka: DevKafka, tmp_path: Path, start: str) -> None:
    """A time that has no records yet is the end of the topic, wherever that is then."""
    topic = f"latest-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    source["start"] = "2300-01-01T00:00:00Z" if start == "a time" else {topic: {0: 1}}
    with client(KafkaProducer, kafka.bootstrap) as producer, running(tmp_path, source=source) as daemon:
        producer.send(topic, edges((1, 2))).get(30)
        daemon.start()
        running_now(daemon)
        producer.send(topic, edges((1, 5), (5, 6))).get(30)
        with daemon.client() as asking:
            asking.wait({topic: {0: 2}}, timeout_ms=60_000)
        daemon.kill()
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 5, 6, 2) == [1, 2, None]
        with daemon.client() as asking:
            shown = asking.stats()["checkpoint"]
            assert (shown["epoch"], shown["offsets"], shown["log_margin_records"]) == ([1, 0], {topic: {0: 1}}, 1)
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
def test_a_checkpoint_before_anything_was_read_says_where_reading_began(kafka: DevKafka, tmp_path: Path) -> None:
    topic = f"latest-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic], "start": "latest"}
    with client(KafkaProducer, kafka.bootstrap) as producer, running(tmp_path, source=source) as daemon:
        for _ in range(2):
            daemon.start()
            running_now(daemon)
            with daemon.client() as asking:
                asking.checkpoint()
            daemon.kill()
        producer.send(topic, edges((1, 5))).get(30)
        daemon.start()
        with daemon.client() as asking:
            asking.wait({topic: {0: 1}}, timeout_ms=60_000)
        assert hops(daemon, 5) == [1]


@pytest.mark.sample(among="a daemon starts otherwise")
def test_settings_may_change_as_long_as_nothing_was_read(tmp_path: Path) -> None:
    with running(tmp_path, graph={"directed": True}) as daemon:
        daemon.start()
        running_now(daemon)
        assert daemon.stop() == 0
        reconfigure(daemon, "directed = true", 'directed = false\nvertex_ids = "string"')
        reconfigure(daemon, "source = 1", 'source = "1"')
        reconfigure(daemon, '/spool"', '/other-spool"')
        daemon.start()
        running_now(daemon)
        assert daemon.stop() == 0, daemon.log_tail()


# -- checkpoints that do not fit ------------------------------------------------------------------------------


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_checkpoint_of_another_source_is_refused_or_discarded(tmp_path: Path) -> None:
    with running(tmp_path, checkpoint={"path": tmp_path / "checkpoints", "on_mismatch": "refuse"}) as daemon:
        fed(daemon, "a", edges((1, 2)))
        assert daemon.stop() == 0
        daemon.spool = tmp_path / "another"
        daemon.spool.mkdir()
        reconfigure(daemon, '/spool"', '/another"')
        write(daemon, "b", edges((1, 7)))
        assert ended(daemon.start(ready_s=None)) == cli.CHECKPOINT
        assert "source.path was" in daemon.log_tail() and "Traceback" not in daemon.log_tail()
        reconfigure(daemon, '"refuse"', '"discard"')
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 7, 2) == [1, None]
        assert "is not used: " in daemon.log.read_text()
        daemon.kill()
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 7, 2) == [1, None], "not discarded again: it has one of its own now"


@pytest.mark.sample(among="a daemon starts otherwise")
def test_an_order_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fed(daemon, "a", edges((1, 2)))
        assert daemon.stop() == 0
        (written,) = (tmp_path / "checkpoints" / "order").glob("*.log")
        newer = {"v": VERSION + 1, "whatever": "comes"}
        written.write_bytes(frame(msgpack.packb(newer)))
        assert ended(daemon.start(ready_s=None)) == cli.CHECKPOINT
        assert f"{written}' was written by a newer version" in daemon.log_tail()
        assert "Traceback" not in daemon.log_tail() and written.exists()


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
def test_a_topic_made_anew_is_begun_anew_where_that_is_wanted(kafka: DevKafka, tmp_path: Path) -> None:
    topic = f"anew-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    settings: Mapping[str, Any] = {
        "source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]},
        "checkpoint": {"path": tmp_path / "checkpoints", "on_mismatch": "discard"},
    }
    with client(KafkaProducer, kafka.bootstrap) as producer, running(tmp_path, **settings) as daemon:
        producer.send(topic, edges((1, 2), (2, 3))).get(30)
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 2, 3) == [1, 2]
        with client(KafkaAdminClient, kafka.bootstrap) as admin:
            admin.delete_topics([topic])
            until(lambda: admin.describe_topics([topic])[0]["error_code"] != 0)
        kafka.create_topic(topic, 1)
        with client(KafkaProducer, kafka.bootstrap) as fresh:
            fresh.send(topic, edges((1, 9))).get(30)
        assert ended(daemon) == cli.TRY_AGAIN, daemon.log_tail()
        assert "was deleted and made again" in daemon.log_tail()
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 9, 2) == [1, None]
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
def test_partitions_that_are_added_behind_a_barrier_keep_the_order_of_a_pair(
    kafka: DevKafka, tmp_path: Path
) -> None:
    """Its updates come through another partition from then on, which is read first, and a restart does not look at
    barriers where the order log says how it went."""
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    with running(tmp_path, source=source) as daemon:
        with client(KafkaProducer, kafka.bootstrap) as producer:
            producer.send(topic, edges((1, 2)), partition=0).get(30)
            daemon.start()
            running_now(daemon)
            assert daemon.stop() == 0, daemon.log_tail()
            producer.send(topic, edges((1, 3)), partition=1).get(30)
        with client(KafkaAdminClient, kafka.bootstrap) as admin:
            admin.create_partitions({topic: NewPartitions(3)})
            until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3)
        with client(KafkaProducer, kafka.bootstrap) as producer:
            until(lambda: len(producer.partitions_for(topic)) == 3)
            for partition in range(3):
                producer.send(topic, barrier_value("grown"), partition=partition, headers=[*HEADERS]).get(30)
            producer.send(topic, encode_msgpack([1], [3], ops=Op.DELETE), partition=0).get(30)
            producer.send(topic, edges((1, 9)), partition=2).get(30)
        for _ in range(2):
            daemon.start()
            running_now(daemon)
            assert hops(daemon, 2, 3, 9) == [1, None, 1]
            daemon.kill()


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
def test_a_topic_that_is_gone_is_waited_for_and_records_that_are_end_it_with_what_to_do(
    kafka: DevKafka, port: int, tmp_path: Path
) -> None:
    topic = f"gone-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": [topic]}
    metrics = {"listen": f"127.0.0.1:{port}"}
    with running(tmp_path, source=source, metrics=metrics) as daemon, contextlib.ExitStack() as clients:
        producer = clients.enter_context(client(KafkaProducer, kafka.bootstrap))
        admin = clients.enter_context(client(KafkaAdminClient, kafka.bootstrap))
        producer.send(topic, edges((1, 2))).get(30)
        daemon.start()
        running_now(daemon)
        assert daemon.stop() == 0, daemon.log_tail()
        for vertex in range(3, 9):
            producer.send(topic, edges((1, vertex))).get(30)
        admin.delete_records({TopicPartition(topic, 0): 4})
        daemon.start(ready_s=None)
        assert ended(daemon) == 4
        said = daemon.log_tail().splitlines()[-1]
        assert "retention has passed it" in said and "checkpoint.path" in said
        shutil.rmtree(tmp_path / "checkpoints")  # as it says
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 2, 8) == [None, 1] and probe(port, "/ready")[1]["waiting"] is None
        admin.delete_topics([topic])
        until(lambda: f"has no topic {topic}" in str(probe(port, "/ready")[1]["waiting"]))
        until(lambda: "graphtide_ingest_waiting 1.0" in scraped(port))
        with daemon.client() as asking:
            until(lambda: f"has no topic {topic}" in str(asking.stats()["waiting"]))
        assert hops(daemon, 8) == [1]
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_checkpoint_that_names_no_source_is_refused_or_discarded_and_no_mystery(tmp_path: Path) -> None:
    with running(tmp_path, checkpoint={"path": tmp_path / "checkpoints", "on_mismatch": "refuse"}) as daemon:
        fed(daemon, "a", edges((1, 2)))
        assert daemon.stop() == 0
        manifest = max((tmp_path / "checkpoints").glob("checkpoint-*")) / "manifest.json"
        content = json.loads(manifest.read_bytes().partition(b"\n")[2])
        del content["identity"]["source"]
        body = json.dumps(content).encode()
        manifest.write_bytes(json.dumps({"crc32c": crc32c.crc32c(body)}).encode() + b"\n" + body)
        assert ended(daemon.start(ready_s=None)) == cli.CHECKPOINT
        assert "does not say of which source its offsets are" in daemon.log_tail()
        assert "Traceback" not in daemon.log_tail()
        reconfigure(daemon, '"refuse"', '"discard"')
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 2) == [1]


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_checkpoint_of_another_kind_of_source_is_refused_though_that_is_away(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fed(daemon, "a", edges((1, 2)))
        assert daemon.stop() == 0
        away = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:1"], "topics": ["t"]}
        daemon.settings["source"] = away
        daemon.config.write_text(toml(daemon.settings))
        assert ended(daemon.start(ready_s=None)) == cli.CHECKPOINT, daemon.log_tail()
        assert "source.kind was 'spool' and is now 'kafka'" in daemon.log_tail(1)
        daemon.settings |= {"source": {"path": daemon.spool}, "graph": {"directed": False}}
        daemon.config.write_text(toml(daemon.settings))
        assert ended(daemon.start(ready_s=None)) == cli.CHECKPOINT, daemon.log_tail()
        assert "graph.directed was True and is now False" in daemon.log_tail(1)
        assert daemon.log.read_text().count("kernels are ready") == 1, "of the first start alone"


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_program_of_other_parameters_and_a_new_one_start_over_with_a_line_each(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fed(daemon, "a", edges((1, 2), (2, 3)))
        assert daemon.stop() == 0
        reconfigure(daemon, "source = 1", "source = 2")
        with open(daemon.config, "a") as config:
            config.write(toml({"program": [{"name": "components"}]}))
        daemon.start()
        assert hops(daemon, 1, 3) == [None, 1]
        log = daemon.log.read_text()
        assert (
            "program hops was name = 'bfs', source = 1 and is now name = 'bfs', source = 2: it is computed" in log
        )
        assert "program components is new: it is computed from scratch" in log


NEVER_CLOSED = """
import sys, time
from graphtide.daemon.cli import main
from graphtide.daemon.ingest.spool import SpoolSource

def close(self):
    print("closing", file=sys.stderr, flush=True)
    time.sleep(3600)

SpoolSource.close = close
main()
"""


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_second_signal_is_heard_until_all_is_closed(tmp_path: Path) -> None:
    with Daemon(tmp_path, {"program": HOPS}, program=("-c", NEVER_CLOSED)) as daemon:
        fed(daemon, "a", edges((1, 2)))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: "closing" in daemon.log.read_text())
        daemon.process.send_signal(signal.SIGTERM)
        assert ended(daemon) == 128 + signal.SIGTERM, daemon.log_tail()
        assert "ended at once, by a second signal (SIGTERM)" in daemon.log_tail(1)


# -- no room --------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_stop_that_cannot_write_its_checkpoint_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """The limit stands for a full disk: writes fail, while a running graph needs no more."""
    src = np.arange(1, 40_001)
    with running(tmp_path) as daemon:
        fed(daemon, "path", encode_msgpack(src, src + 1))
        assert daemon.process is not None
        limit = 100_000
        assert daemon.log.stat().st_size < limit / 2
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        assert daemon.stop() == cli.NO_ROOM
        tail = daemon.log_tail().splitlines()
        assert (
            tail[-1].startswith("graphtide: the last checkpoint, of epoch (1, ") and "File too large" in tail[-1]
        )
        assert "Traceback" not in daemon.log.read_text()
        assert len([line for line in tail if "the one before it stays" in line]) == 1
        daemon.start()
        running_now(daemon)
        assert hops(daemon, 40_001) == [40_000]
        assert daemon.stop() == 0, daemon.log_tail()


HANGING = """
import time
from pathlib import Path
from graphtide.daemon.cli import main
from graphtide.daemon import long_waits
from graphtide.daemon.ingest.dead_letters import FileDeadLetters
from graphtide.daemon.state.order_log import OrderLog

def waiting_first(write):
    def write_at_last(*given):
        while Path("hangs").exists():
            time.sleep(0.01)
        return write(*given)
    return write_at_last

long_waits.LONG_S = 0.1
FileDeadLetters.write = waiting_first(FileDeadLetters.write)
OrderLog._write = waiting_first(OrderLog._write)
main()
"""


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_disk_that_does_not_answer_is_told_of_by_whoever_does_not_wait_for_it(port: int, tmp_path: Path) -> None:
    settings = {"program": HOPS, "metrics": {"listen": f"127.0.0.1:{port}"}}
    why = "writing dead letters takes longer than 0.1 s"
    with Daemon(tmp_path, settings, program=("-c", HANGING)) as daemon:
        fed(daemon, "a", edges((1, 2)))
        (tmp_path / "hangs").touch()
        write(daemon, "bad", b"\xc1")
        with daemon.client() as asking:
            until(lambda: why in str(asking.stats()["waiting"]))
        until(lambda: "graphtide_ingest_waiting 1.0" in scraped(port))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: "asked to stop" in daemon.log.read_text())
        (tmp_path / "hangs").unlink()
        assert ended(daemon) == 0, daemon.log_tail()
        log = daemon.log.read_text()
        assert log.count(why) == 1 and "writing dead letters is done after" in log
        assert [letter.reason for letter in read_dead_letters(tmp_path / "dead-letters")] == ["malformed"]


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_disk_that_does_not_take_the_order_log_is_told_of_and_waited_for(port: int, tmp_path: Path) -> None:
    """The engine's own thread waits in the write: nobody restarts the daemon for that."""
    metrics = {"listen": f"127.0.0.1:{port}", "stuck_after": 1.5}
    why = "takes longer than 0.1 s"
    with Daemon(tmp_path, {"program": HOPS, "metrics": metrics}, program=("-c", HANGING)) as daemon:
        fed(daemon, "a", edges((1, 2)))
        (tmp_path / "hangs").touch()
        write(daemon, "b", edges((2, 3)))
        until(lambda: "graphtide_waits_for_order_log 1.0" in scraped(port))
        assert "writing the order log" in probe(port, "/ready")[1]["waiting"]
        time.sleep(2)  # longer than an engine may take
        until(lambda: probe(port, "/live")[0] == 200)
        assert hops(daemon, 2) == [1] and "graphtide_waits_for_order_log 1.0" in scraped(port)
        (tmp_path / "hangs").unlink()
        until(lambda: "graphtide_waits_for_order_log 0.0" in scraped(port))
        until(lambda: hops(daemon, 3) == [2])
        until(lambda: probe(port, "/ready")[1]["waiting"] is None)
        log = daemon.log.read_text()
        assert log.count(why) == 1 and "writing the order log" in log and "is done after" in log


# -- probes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """Of a daemon's probes, over its restarts."""
    with held_port() as port:
        yield port


def probe(port: int, path: str) -> tuple[int, Any]:
    """Status and answer of a probe; 0 when nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, None


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.sample(among="a daemon starts otherwise")
def test_probes_are_answered_from_the_first_moment_of_a_long_restore(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe in the place of a manifest holds the restore for as long as we like."""
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with (
        told_to_systemd(tmp_path, monkeypatch) as told,
        running(tmp_path, metrics={"listen": f"127.0.0.1:{port}"}) as daemon,
    ):
        fed(daemon, "a", edges((1, 2)))
        until(lambda: probe(port, "/ready")[0] == 200)
        assert daemon.stop() == 0
        until(lambda: "STOPPING=1" in told)
        assert told.index("READY=1") < told.index("STOPPING=1")
        manifest = max((tmp_path / "checkpoints").glob("checkpoint-*")) / "manifest.json"
        content = manifest.read_bytes()
        manifest.unlink()
        os.mkfifo(manifest)
        told.clear()
        daemon.start(ready_s=None)
        until(lambda: probe(port, "/ready")[0] == 503)
        until(lambda: probe(port, "/ready")[1]["stage"] == "reading")
        assert probe(port, "/ready")[1]["ready"] is False
        assert probe(port, "/live")[0] == 200
        page = scraped(port)
        assert "graphtide_ready 0.0" in page and 'graphtide_stage{stage="reading"} 1.0' in page
        until(lambda: "WATCHDOG=1" in told)
        assert "READY=1" not in told
        manifest.write_bytes(content)
        until(lambda: probe(port, "/ready")[0] == 200)
        assert probe(port, "/ready")[1] == {
            **{"ready": True, "stage": "running", "progress": 1.0, "answering": True},
            "waiting": None,
        }
        until(lambda: "READY=1" in told)
        assert "graphtide_ready 1.0" in scraped(port)
        assert hops(daemon, 2) == [1]


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_replay_is_told_from_being_up_to_date_and_is_answered_from_all_the_same(
    port: int, tmp_path: Path
) -> None:
    """Ingest is held at the limit of the dead letters, in the middle of what lay there at the start."""
    src = np.arange(1, 70_001)
    settings: Mapping[str, Any] = {
        "source": {"fetch_bytes_max": 1 << 20},
        "dead_letters": {"spill_bytes_max": 1 << 20},
        "metrics": {"listen": f"127.0.0.1:{port}"},
    }
    with running(tmp_path, **settings) as daemon:
        first = write(daemon, "1-good", encode_msgpack(src, src + 1))
        write(daemon, "2-bad", *[b"\xc1" * 50_000] * 30)
        write(daemon, "3-good", edges((1, 100_000)))
        daemon.start()
        with daemon.client() as asking:
            asking.wait(first, timeout_ms=60_000)
            assert asking.get("hops", [70_001, 100_000]).values.tolist() == [70_000, None]
            assert asking.call("hello")["stage"] == asking.stats()["stage"] == "recovering"
            until(lambda: "the stream waits" in daemon.log.read_text())
            status, said = probe(port, "/ready")
            assert (status, said["stage"], said["answering"]) == (503, "recovering", True)
            assert 0.1 < said["progress"] < 1
            kept = list(read_dead_letters(tmp_path / "dead-letters"))
            assert 0 < len(kept) < 30
            for segment in (tmp_path / "dead-letters").iterdir():
                segment.unlink()
            until(lambda: asking.call("hello")["stage"] == asking.stats()["stage"] == "running")
            assert asking.get("hops", [100_000]).values.tolist() == [1]
            assert probe(port, "/ready")[0] == 200
            epoch = asking.stats().epoch
            assert f"epoch ({epoch[0]}, {epoch[1]}) holds all that lay in the source" in daemon.log.read_text()


IMPATIENT = """
from graphtide.daemon.cli import main
from graphtide.daemon.serve import supervisor

supervisor.SILENT_SECONDS_MAX = 3.0  # reports come every second
main()
"""


@pytest.mark.sample(among="a daemon starts otherwise")
def test_ready_says_no_while_the_query_server_does_not_answer(port: int, tmp_path: Path) -> None:
    settings = {"program": HOPS, "metrics": {"listen": f"127.0.0.1:{port}"}}
    with Daemon(tmp_path, settings, program=("-c", IMPATIENT)) as daemon:
        fed(daemon, "a", edges((1, 2)))
        until(lambda: probe(port, "/ready")[0] == 200)
        assert daemon.process is not None
        *_, server = psutil.Process(daemon.process.pid).children(recursive=True)  # the template's child, not it
        server.send_signal(signal.SIGSTOP)
        until(lambda: probe(port, "/ready")[0] == 503)
        assert probe(port, "/ready")[1] == {
            "ready": False,
            "stage": "running",
            "progress": 1.0,
            "answering": False,
            "waiting": None,
        }
        assert probe(port, "/live")[0] == 200
        server.kill()
        until(lambda: probe(port, "/ready")[0] == 200)
        with daemon.client() as asking:
            assert asking.stats()["server"]["restarts"] == 1
            until(lambda: "graphtide_server_restarts_total 1.0" in scraped(port))
            until(lambda: "graphtide_server_connections 1.0" in scraped(port))
        assert 'graphtide_checkpoint_offset{partition="a.msgpack"}' not in scraped(port), "nothing lay there"


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_checkpoint_of_more_vertices_than_are_allowed_is_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fed(daemon, "a", edges((1, 2), (2, 3)))
        assert daemon.stop() == 0
        daemon.settings["graph"] = {"vertices_max": 2}
        daemon.config.write_text(toml(daemon.settings))
        daemon.start(ready_s=None)
        assert daemon.process is not None and daemon.process.wait(60) == 2
        assert "graph.vertices_max is 2" in daemon.log_tail(1) and "Traceback" not in daemon.log_tail()


def test_an_address_in_use_is_said_before_kernels_are_compiled(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with running(tmp_path, server={"listen": [taken]}) as daemon:
            daemon.start(ready_s=None)
            assert ended(daemon) == 2
            assert f"cannot listen on {taken}" in daemon.log_tail(1)
            assert "kernels are ready" not in daemon.log.read_text()


def test_a_place_that_cannot_be_used_is_said_before_kernels_are_compiled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1 2\n")
    with running(tmp_path, source={"kind": "spool", "path": tmp_path / "file"}) as daemon:
        daemon.start(ready_s=None)
        assert ended(daemon) == 2
        assert "source.path = " in daemon.log_tail(1) and "must be a folder" in daemon.log_tail(1)
        assert "kernels are ready" not in daemon.log.read_text()


def test_a_disk_that_is_full_is_said_before_kernels_are_compiled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        if disk is None:
            return
        (disk / "checkpoints").mkdir()
        with filled(disk), running(tmp_path / "d", checkpoint={"path": disk / "checkpoints"}) as daemon:
            daemon.start(ready_s=None)
            assert ended(daemon) == cli.NO_ROOM
            assert "the number of this start cannot be written" in daemon.log_tail(1)
            assert "kernels are ready" not in daemon.log.read_text()


def test_a_token_file_that_cannot_be_used_is_said_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n")
    with running(tmp_path, server={"token_file": str(tmp_path / "token")}) as daemon:
        daemon.start(ready_s=None)
        assert ended(daemon) == 2
        assert "server.token_file" in daemon.log_tail(1) and "(line 1)" in daemon.log_tail(1)
        assert not (tmp_path / "checkpoints").exists()
