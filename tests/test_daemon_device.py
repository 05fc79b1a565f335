"""The daemon with a device: it is found or refused at the start, shown, and given up where it fails."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cuda_emulator
import msgpack
import numpy as np
import pytest
from conftest import needs_device, skip_or_fail
from histories import mixed_sizes, rmat_history
from naive import NaiveGraph
from oracles import ORACLES, Snapshot, assert_right
from running import Daemon, toml
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.compute import registry
from graphtide.compute.device import NoTwin
from graphtide.compute.program import Program
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.config.sections.storage import DeviceConfig
from graphtide.daemon.contents import Contents
from graphtide.daemon.engine.asking import ASKED_S, UNASKED_EPOCHS
from graphtide.daemon.engine.sides import Sides, card_of, refused
from graphtide.daemon.errors import ConfigError, NotSupported, RequestError
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools import doctor
from graphtide.gpma.device import card
from graphtide.gpma.edges import EdgeBatch
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.runtime import cache_directory
from graphtide.ops.metrics import Metrics
from graphtide.partition.graph import Graph

WITHOUT_CUPY = "import sys; sys.modules['cupy'] = None; from graphtide.daemon.cli import main; main()"
PROGRAM = str(Path(__file__).with_name("on_emulated_device.py"))


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"graphtide_device_{name}")


def gpu(**settings: Any) -> doctor.Finding:
    (finding,) = doctor._gpu(from_tables({"device": settings}))
    return finding


# Is there one?


@pytest.mark.parametrize("enabled", ["off", False])
def test_a_device_that_is_off_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, enabled: Any) -> None:
    monkeypatch.setattr(card, "is_installed", lambda: pytest.fail("looked for"))
    monkeypatch.setattr(card, "find_card", lambda: pytest.fail("looked for"))
    assert card_of(DeviceConfig(enabled=enabled)) is None
    assert gpu(enabled=enabled).found == "device.enabled is off; the host computes"


def test_without_cupy_auto_does_not_try_to_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with monkeypatch.context() as patched:
        patched.setattr(card, "find_card", lambda: pytest.fail("imported"))
        assert card_of(DeviceConfig(enabled="auto")) is None
    assert gpu(enabled="auto").status == "ok"


@pytest.mark.parametrize("enabled", ["on", True])
def test_a_device_that_must_be_there_and_is_not_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, enabled: Any
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=r"device.enabled is on.*install graphtide\[cuda13\]"):
        card_of(DeviceConfig(enabled=enabled))
    finding = gpu(enabled=enabled)
    assert finding.status == "fail" and "install graphtide[cuda13]" in finding.found and "refuses" in finding.hint


def test_a_device_that_is_there_is_used_within_its_memory(emulated_cupy: ModuleType) -> None:
    found = card_of(DeviceConfig(enabled="auto", memory="25%"))
    assert found is not None
    assert (found.name, found.capability, found.memory_bytes) == ("emulated", 90, 8 << 30)
    assert found.limit_bytes == 2 << 30
    assert str(found) == "emulated (compute capability 9.0, 8 GiB)"
    finding = gpu(enabled="auto", memory="1073741824")
    assert finding.found == "emulated (compute capability 9.0, 8 GiB), of which 1.0 GiB may be taken"
    (finding,) = doctor._gpu(from_tables({"partition": {"host_rows": "owned", "policy": "recent"}}))
    assert finding.found.endswith("may be taken; each row is on one side, by the policy recent")
    off = card_of(DeviceConfig(enabled="auto", memory="off"))
    assert off is not None and off.limit_bytes is None


@pytest.mark.parametrize("chosen", ["", "/somewhere/else"])
def test_kernels_of_the_device_are_kept_where_those_of_the_host_are(
    emulated_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", chosen)
    if not chosen:
        monkeypatch.delenv("CUPY_CACHE_DIR")
    card_of(DeviceConfig(enabled="auto"))
    assert os.environ["CUPY_CACHE_DIR"] == (chosen or str(cache_directory() / "cupy"))


@pytest.mark.parametrize(
    ("runtime", "device", "reason"),
    [
        ({"getDeviceCount": lambda: 0}, {}, "CuPy finds no CUDA device"),
        ({"getDeviceCount": lambda: 1 // 0}, {}, "CuPy finds no CUDA device: integer division"),
        ({}, {"compute_capability": "75"}, "emulated has compute capability 7.5, and 8.0 is the least"),
    ],
)
def test_a_device_that_cannot_be_used_is_an_error_only_where_it_must_be_there(
    emulated_cupy: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    runtime: dict[str, Any],
    device: dict[str, Any],
    reason: str,
) -> None:
    for owner, changes in ((emulated_cupy.cuda.runtime, runtime), (emulated_cupy.cuda.Device, device)):
        for name, changed in changes.items():
            monkeypatch.setattr(owner, name, changed)
    caplog.set_level(logging.INFO)
    assert card_of(DeviceConfig(enabled="auto")) is None
    assert caplog.messages[0].startswith(f"no device is used: {reason}")
    with pytest.raises(ConfigError, match=re.escape(reason)):
        card_of(DeviceConfig(enabled="on"))
    with pytest.raises(ConfigError, match="it fell out"):
        refused(DeviceConfig(enabled="on"), "it fell out")


def test_a_device_that_does_not_work_is_an_error_only_where_it_must_be_there(
    emulated_cupy: ModuleType, graphs: list[Graph], caplog: pytest.LogCaptureFixture
) -> None:
    def made(enabled: str) -> tuple[Graph, Any]:
        config = from_tables({"device": {"enabled": enabled}})
        there = card_of(config.device)
        itself: Any = SimpleNamespace(_config=config, _weighted=True, card=there, _watches_in_edges=False)
        with cuda_emulator.failing_card(20, quiet=True):
            graph = Contents._empty_graph(itself, [], None)
        return graph, itself.card

    caplog.set_level(logging.INFO)
    graph, found = made("auto")
    graphs.append(graph)
    assert (graph.device, graph.device_lost, found) == (None, None, None)
    (told,) = caplog.messages
    assert told.startswith("no device is used: CUDARuntimeError: cudaErrorIllegalAddress")
    with pytest.raises(ConfigError, match=r"device\.enabled is on.*cudaErrorIllegalAddress"):
        made("on")


@pytest.mark.parametrize("setting", ["0%", "101%", "-5", "much", True])
def test_memory_is_a_share_or_bytes(setting: Any) -> None:
    with pytest.raises(ConfigError, match=r"device\.memory"):
        from_tables({"device": {"memory": setting}})


# What is told of it.


def test_sides_and_their_memory_are_shown(emulated_cupy: ModuleType, graphs: list[Graph]) -> None:
    metrics = Metrics()
    graphs.append(alone := Graph())
    sides = Sides(alone, metrics)
    sides.look()
    alone.apply(EdgeBatch.of([0], [1]), 2)
    assert sides.stats() == {
        "sides": ["host"],
        "host_rows": "all",
        "vertices": [2],
        "edges": [1],
        "bytes": [sum(alone.memory_bytes().values())],
        "behind": {"updates": 0, "seconds": 0.0},
        "device": None,
    }
    assert sides.headroom is None
    assert (value(metrics, "present"), value(metrics, "lost_total")) == (0, 0)

    found = card_of(DeviceConfig(enabled="auto", memory="1073741824"))
    graphs.append(graph := Graph(device=True))
    sides = Sides(graph, metrics, found)
    graph.apply(EdgeBatch.of([0], [1]), 2)
    sides.look()
    stats = sides.stats()
    assert (stats["sides"], stats["vertices"], stats["edges"]) == (["host", "device"], [2, 2], [1, 1])
    assert stats["bytes"][1] == sum(graph.device.memory_bytes().values()) > 0
    held = stats["device"]["memory"]["held"]
    memory = {"limit": 1 << 30, "held": held}
    assert stats["device"] == {"name": "emulated", "programs": [], "lost": None, "memory": memory}
    assert held >= stats["bytes"][1]
    assert sides.headroom == value(metrics, "headroom_ratio") == 1 - held / (1 << 30)
    assert metrics.registry.get_sample_value("graphtide_side_edges", {"side": "device"}) == 1
    assert (value(metrics, "present"), value(metrics, "memory_limit_bytes")) == (1, 1 << 30)
    assert value(metrics, "memory_held_bytes") == held


def test_a_lost_device_is_told_once(
    emulated_cupy: ModuleType, graphs: list[Graph], caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    found = card_of(DeviceConfig(enabled="auto"))
    graphs.append(graph := Graph(device=True))
    sides = Sides(graph, metrics, found)
    with cuda_emulator.failing_card(0, quiet=False):
        for _ in range(3):
            graph.apply(EdgeBatch.of([0], [1]), 2)
            sides.look()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().split(":")[0] for record in told] == [
        "the device is lost, and the host goes on alone"
    ]
    assert "cudaErrorIllegalAddress" in told[0].getMessage()
    assert (value(metrics, "present"), value(metrics, "lost_total")) == (0, 1)
    stats = sides.stats()
    assert stats["sides"] == ["host"]
    assert metrics.registry.get_sample_value("graphtide_side_vertices", {"side": "device"}) == 0
    assert "cudaErrorIllegalAddress" in stats["device"]["lost"]


# The whole daemon, with everything checked after each epoch, that both sides hold the same among it.


def edges(number: int) -> bytes:
    rng = np.random.default_rng(number)
    n = (5, 300, 4000)[number % 3]
    return encode_msgpack(rng.integers(0, 200, n), rng.integers(0, 200, n), ops=rng.integers(0, 4, n) > 0)


def page_of(daemon: Daemon) -> dict[str, float]:
    """The device's metrics."""
    url = re.findall(r"metrics at (\S+)", daemon.log.read_text())[-1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        page = answer.read().decode()
    found = re.findall(r"^graphtide_device_(\w+) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.fixture
def emulated_daemon(tmp_path: Path) -> Iterator[Daemon]:
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    settings = {
        "device": {"enabled": True, "memory": "1073741824"},
        "compute": {"place": "device"},
        "metrics": {"listen": "127.0.0.1:0"},
        "program": [
            {"name": "bfs", "source": 1},
            {"name": "components"},
            {"name": "pagerank", "place": "host"},
        ],
    }
    with Daemon(tmp_path, settings, program=(PROGRAM,)) as daemon:
        yield daemon


def write_and_wait(daemon: Daemon, client: Client, numbers: range) -> None:
    for number in numbers:
        with SpoolWriter(daemon.spool, name=f"{number:03}") as writer:
            writer.append(edges(number))
            offsets = {f"{number:03}.msgpack": writer.offset}
        client.wait(offsets, timeout_ms=120_000)


@pytest.mark.sample(among="a daemon has a device")
def test_a_daemon_keeps_the_graph_on_the_device_through_restarts(emulated_daemon: Daemon) -> None:
    daemon = emulated_daemon.start()
    for numbers in (range(6), range(6, 9)):
        with daemon.client() as client:
            write_and_wait(daemon, client, numbers)
            placement = client.stats()["placement"]
        assert placement["sides"] == ["host", "device"]
        assert placement["vertices"] == [200, 200] and min(placement["bytes"]) > 0
        assert placement["device"]["name"] == "emulated" and placement["device"]["lost"] is None
        assert placement["device"]["programs"] == ["bfs", "components"]
        with daemon.client() as client:
            told = client.placement()
        assert "partition.host_rows is auto" in told["host_rows_reason"]
        page = page_of(daemon)
        assert (page["present"], page["lost_total"], page["memory_limit_bytes"]) == (1, 0, 1 << 30)
        assert page["programs"] == 2
        assert page["memory_held_bytes"] >= placement["bytes"][1] > 0
        assert daemon.stop() == 0
        daemon.start()
    log = daemon.log.read_text()
    assert log.count("a device keeps the graph beside the host: emulated") == 3
    assert "program pagerank stays on the host: its place is the host, by the configuration" in log
    assert "restored epoch" in log and "lost" not in log


def run_there(daemon: Daemon) -> int:
    """How often a program was run on the device for a request."""
    return daemon.log.read_text().count("was run once, on the device")


def graph_of(numbers: range) -> Snapshot:
    """What the updates of these files leave."""
    graph = NaiveGraph()
    for number in numbers:
        block = msgpack.unpackb(edges(number))
        src, dst = (np.frombuffer(block[name], "<i8") for name in ("src", "dst"))
        ops = np.frombuffer(block["op"], np.uint8)
        graph.apply(src.tolist(), dst.tolist(), ops.tolist(), [1.0] * src.size)
    ids = np.array(sorted(graph.alive), np.int64)
    arcs = np.array([*graph.contents()], np.int64).reshape(-1, 2)
    place = {int(id): at for at, id in enumerate(ids)}
    src, dst = np.searchsorted(ids, arcs).T
    return Snapshot(ids, src, dst, np.ones(src.size, np.float32), place.get(7))


@pytest.mark.sample(among="a daemon has a device")
def test_a_device_that_fails_while_a_program_is_run_once_is_lost_and_the_host_runs_it(
    emulated_daemon: Daemon,
) -> None:
    daemon = emulated_daemon.start()
    with daemon.client() as client:
        write_and_wait(daemon, client, range(3))
        (daemon.folder / "run-fails").touch()
        found = client.compute("bfs", {"source": 7}, vertices=np.arange(200))
        assert found.values is not None
        hops = np.ma.MaskedArray(found.values, dtype=np.float64).filled(-1.0)
        assert_right("bfs", hops, ORACLES["bfs"][0], graph_of(range(3)), 0)
        assert run_there(daemon) == 0
        write_and_wait(daemon, client, range(3, 5))
        assert "cudaErrorIllegalAddress" in client.stats()["placement"]["device"]["lost"]
    assert daemon.stop() == 0


@pytest.mark.sample(among="a daemon has a device")
def test_a_daemon_whose_device_fails_goes_on_within_the_same_epoch(emulated_daemon: Daemon) -> None:
    daemon = emulated_daemon.start()
    with daemon.client() as client:
        write_and_wait(daemon, client, range(3))
        epoch = client.stats().epoch
        (daemon.folder / "card-fails").touch()
        write_and_wait(daemon, client, range(3, 4))
        until(lambda: page_of(daemon)["lost_total"] == 1)
        stats = client.stats()
        assert stats.epoch == (epoch[0], epoch[1] + 1)
        assert stats["placement"]["sides"] == ["host"]
        assert stats["placement"]["device"]["programs"] == []
        assert "cudaErrorIllegalAddress" in stats["placement"]["device"]["lost"]
        assert set(stats["programs"].values()) == {"fresh"}
        write_and_wait(daemon, client, range(4, 7))
    page = page_of(daemon)
    assert (page["present"], page["programs"]) == (0, 0)
    assert daemon.stop() == 0
    assert daemon.log.read_text().count("the device is lost, and the host goes on alone") == 1


@pytest.mark.sample(among="a daemon has a device")
@pytest.mark.parametrize("ends", ["killed", "stopped", "card lost"])
def test_nothing_is_lost_while_the_host_is_behind(tmp_path: Path, ends: str) -> None:
    """Answers are those of the device; who asks for rows waits for the host; the end comes when it is behind."""
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    programs = [{"name": "bfs", "source": 1}, {"name": "components"}]
    settings = {"program": programs, "audit": {"full_every_epoch": False, "share": 0.0}}
    on = {"device": {"enabled": True}, "compute": {"place": "device"}}
    with (
        Daemon(tmp_path / "with", {**settings, **on}, program=(PROGRAM,)) as one,
        Daemon(tmp_path / "without", {**settings, "device": {"enabled": False}}) as other,
    ):
        one.folder.mkdir(exist_ok=True)
        (one.folder / "host-waits").touch()
        for daemon in (one, other):
            daemon.start()

        def agree() -> None:
            with one.client() as here, other.client() as there:
                for program in ("bfs", "components"):
                    found, wanted = (client.get(program, np.arange(200)).values for client in (here, there))
                    assert found.tolist() == wanted.tolist(), program
                assert here.stats()["edges"] == there.stats()["edges"]

        for number in range(6):
            for daemon in (one, other):
                with daemon.client() as client:
                    write_and_wait(daemon, client, range(number, number + 1))
            agree()
        with one.client() as here, other.client() as there:
            # All batches, whatever their sizes.
            assert here.stats()["placement"]["behind"]["updates"] == 8594
            if ends == "stopped":
                assert list(here.neighbors(3).ids) == list(there.neighbors(3).ids)
                # While rows are asked for, and for some epochs after, the host takes each batch at once.
                for number, behind in [*((6 + at, 0) for at in range(UNASKED_EPOCHS)), (11, 4000)]:
                    if behind:
                        time.sleep(ASKED_S)
                    write_and_wait(one, here, range(number, number + 1))
                    write_and_wait(other, there, range(number, number + 1))
                    assert here.stats()["placement"]["behind"]["updates"] == behind
            elif ends == "card lost":
                (one.folder / "card-fails").touch()
                write_and_wait(one, here, range(8, 9))
                write_and_wait(other, there, range(8, 9))
                assert "cudaErrorIllegalAddress" in here.stats()["placement"]["device"]["lost"]
                assert here.stats()["placement"]["behind"]["updates"] == 0
                (one.folder / "card-fails").unlink()
        agree()
        if ends == "killed":
            one.kill()
        else:
            assert one.stop() == 0
        one.start()
        for daemon in (one, other):
            with daemon.client() as client:
                write_and_wait(daemon, client, range(14, 15))
        agree()
        with one.client() as here, other.client() as there:
            degrees = [client.degree(np.arange(200)) for client in (here, there)]
            assert degrees[0].out.tolist() == degrees[1].out.tolist()


@pytest.mark.sample(among="a daemon has a device")
def test_a_daemon_whose_device_alone_has_the_rows_goes_on_without_it_in_the_same_process(
    emulated_daemon: Daemon, run_long: bool
) -> None:
    daemon = emulated_daemon
    daemon.settings["partition"] = {"host_rows": "owned"}
    daemon.settings["program"] = daemon.settings["program"][:2]
    daemon.config.write_text(toml(daemon.settings))
    daemon.start()
    with daemon.client() as client:
        write_and_wait(daemon, client, range(3))
        placement = client.placement([1, 5, 10**6])
        assert (placement["sides"], placement["host_rows"]) == (["host", "device"], "owned")
        assert placement["vertices"] == [0, client.stats()["vertices"] + client.stats()["dead_vertices"]]
        assert placement["edges"] == [0, client.stats()["edges"]]
        assert placement["owner"] == ["device", "device", None] and placement["why"] == ["placed", "placed", None]
        assert placement["degree"][:2] == client.degree([1, 5]).out.tolist()
        assert placement["unknown"].tolist() == [10**6]
        assert 0 < placement["headroom"] < 1 and placement["applied"]["device"]["updates"] > 0
        assert placement["rebalancing"]["newcomers"] == "device" and not placement["rebalancing"]["frozen"]
        assert client.admin_freeze()["frozen"]
        with pytest.raises(RequestError, match="rows are frozen"):
            client.admin_rebalance()
        assert client.placement()["rebalancing"]["frozen"]
        assert not client.admin_freeze(thaw=True)["frozen"]
        assert client.admin_rebalance()["requested"]
        assert client.admin_device()["present"]
        with pytest.raises(RequestError, match="is there, and in use"):
            client.admin_device(retry=True)
        answers = {id: client.get(id, np.arange(200)).values for id in ("bfs", "components")}
        epoch = client.stats().epoch
    assert daemon.process is not None
    (daemon.folder / "card-fails").touch()
    with SpoolWriter(daemon.spool, name="999") as writer:
        writer.append(encode_msgpack(np.array([1]), np.array([1])))
        offsets = {"999.msgpack": writer.offset}
    until(lambda: "the process replaces itself" in daemon.log.read_text())
    daemon.wait_ready(PATIENCE_S)
    with daemon.client() as client:
        client.wait(offsets, timeout_ms=120_000)
        stats = client.stats()
        assert stats.epoch[0] > epoch[0] and stats["placement"]["sides"] == ["host"]
        device = client.admin_device()
        assert not device["present"] and "cudaErrorIllegalAddress" in device["device"]["lost"]
        assert device["device"]["name"] == "emulated"
        with pytest.raises(NotSupported, match="there is no device"):
            client.admin_rebalance()
        for id, values in answers.items():
            assert client.get(id, np.arange(200)).values.tolist() == values.tolist()
        assert page_of(daemon)["lost_total"] == 1
        if not run_long:
            return
        (daemon.folder / "card-fails").unlink()
        assert client.admin_device(retry=True)["retried"]
    until(lambda: daemon.log.read_text().count("each row is on one side") == 2)
    daemon.wait_ready(PATIENCE_S)
    with daemon.client() as client:
        placement = client.placement()
        assert placement["edges"] == [0, stats["edges"]] and placement["device"]["lost"] is None
        for id, values in answers.items():
            assert client.get(id, np.arange(200)).values.tolist() == values.tolist()
    assert daemon.stop() == 0


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
def on_device(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What Python runs, so that the daemon has a device, emulated or real."""
    if request.param == "device":
        needs_device()
        return ("-m", "graphtide")
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    return (PROGRAM,)


@pytest.mark.sample(among="a daemon has a device")
@pytest.mark.parametrize("host_rows", ["all", "owned"])
def test_a_program_is_run_once_on_the_device_and_leaves_it(
    on_device: tuple[str, ...], tmp_path: Path, host_rows: str
) -> None:
    settings = {
        "device": {"enabled": True, "memory": "1073741824"},
        "compute": {"place": "device"},
        "partition": {"host_rows": host_rows},
        "program": [{"name": "bfs", "source": 1}, {"name": "components"}],
    }
    with Daemon(tmp_path, settings, program=on_device) as daemon, daemon.start().client() as client:
        write_and_wait(daemon, client, range(6))
        graph, ids = graph_of(range(6)), np.arange(220)
        asked = {"bfs": {"source": 7}, "components": {}, "pagerank": {"tolerance": 1e-3}, "sspaths": {"source": 7}}
        held = client.stats()["placement"]["device"]["memory"]["held"]
        for number, (kind, given) in enumerate(asked.items(), 1):
            found = client.compute(kind, given, vertices=ids)
            assert run_there(daemon) == number, daemon.log_tail()
            known = np.isin(ids, graph.ids)
            assert found.values is not None and found.unknown.tolist() == ids[~known].tolist()
            values = found.values[known]
            if kind == "components":
                values = np.searchsorted(graph.ids, values)
            values = np.ma.MaskedArray(values, dtype=np.float64).filled(-1.0)
            for oracle in ORACLES[kind]:
                assert_right(kind, values, oracle, graph, 1e-3)
        best = client.compute("pagerank", {"tolerance": 1e-3}, top=3)
        assert best.ids is not None and best.ids.size == 3
        # None of it is left there, and what is kept goes on.
        write_and_wait(daemon, client, range(6, 7))
        stats = client.stats()
        assert stats["ad_hoc"]["on_device"] == len(asked) + 1
        assert stats["placement"]["device"]["memory"]["held"] <= 1.1 * held
        assert stats["placement"]["device"]["programs"] == ["bfs", "components"]
        if host_rows == "all":  # one without a twin
            assert client.compute("kcore", vertices=ids).values is not None
            assert run_there(daemon) == len(asked) + 1
        write_and_wait(daemon, client, range(7, 8))
        graph = graph_of(range(8))
        labels = np.searchsorted(graph.ids, client.get("components", graph.ids).values).astype(float)
        assert_right("components", labels, ORACLES["components"][0], graph, 0)
        assert daemon.stop() == 0


@pytest.mark.sample(among="a daemon has a device")
@pytest.mark.parametrize("directed", [True, False])
def test_answers_are_those_of_a_daemon_without_a_device(
    on_device: tuple[str, ...], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, directed: bool
) -> None:
    """Bit for bit, after every epoch; in one of them the programs of docs/programs.md, too."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "programs.md").read_text("utf-8")
    (text,) = re.findall(r"^```python\n([^`]*?class Within.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_programs.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    kinds: dict[str, dict[str, Any]] = {"bfs": {}, "sssp": {}, "sswp": {}}
    if directed:  # they are compiled anew each time
        kinds |= {"within": {"hops": 3}, "fading": {}}
    settings: dict[str, Any] = {
        "graph": {"directed": directed},
        "compute": {"python_modules": ["my_programs"] if directed else [], "place": "device"},
        "program": [{"name": kind, "source": 1, **given} for kind, given in kinds.items()],
    }
    sizes = mixed_sizes(seed, 12, 3000)
    history = rmat_history(seed, directed=directed, scale=7, updates=sizes, vertex_share=0.01, source=1)
    with (
        Daemon(tmp_path / "with", {**settings, "device": {"enabled": True}}, program=on_device) as one,
        Daemon(tmp_path / "without", {**settings, "device": {"enabled": False}}) as other,
    ):
        for daemon in (one, other):
            daemon.start()
        with one.client() as here, other.client() as there:
            for number, epoch in enumerate(history.epochs):
                for daemon, client in ((one, here), (other, there)):
                    with SpoolWriter(daemon.spool, name=f"{number:03}") as writer:
                        writer.append(encode_msgpack(epoch.src, epoch.dst, epoch.ops, epoch.weights))
                        offsets = {f"{number:03}.msgpack": writer.offset}
                    client.wait(offsets, timeout_ms=120_000)
                vertices = np.arange(epoch.n_vertices)
                found, wanted = (client.get(list(kinds), vertices) for client in (here, there))
                for kind in kinds:
                    value, expected = found[kind].values, wanted[kind].values
                    assert np.array_equal(value.mask, expected.mask), kind
                    assert value.compressed().tobytes() == expected.compressed().tobytes(), kind
                    assert np.array_equal(found[kind].unknown, wanted[kind].unknown)
            placement = here.stats()["placement"]
            assert placement["device"]["programs"] == list(kinds) and placement["device"]["lost"] is None
            assert there.stats()["placement"]["sides"] == ["host"]
        assert one.stop() == other.stop() == 0


@pytest.mark.sample(among="a daemon has a device")
def test_a_daemon_that_must_have_a_device_refuses_to_start_without_one(tmp_path: Path) -> None:
    with Daemon(tmp_path, {"device": {"enabled": True}}, program=("-c", WITHOUT_CUPY)) as daemon:
        daemon.start(ready_s=None)
        assert daemon.process is not None
        assert daemon.process.wait(120) == 2
        assert "device.enabled is on" in daemon.log.read_text()
        assert "install graphtide[cuda13]" in daemon.log.read_text()


def test_a_daemon_does_not_start_again_for_a_device_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Daemon(tmp_path, {"program": []}) as daemon, daemon.start().client() as client:
        incarnation = client.stats().epoch[0]
        with pytest.raises(NotSupported, match=r"there is no device to be tried: .*(CuPy|cupy)"):
            client.admin_device(retry=True)
        assert client.stats().epoch[0] == incarnation and not client.admin_device()["present"]
        assert daemon.stop() == 0
        assert "replaces itself" not in daemon.log.read_text()


def test_a_program_stays_on_the_host_where_that_is_its_place(emulated_cupy: ModuleType) -> None:
    graph = Graph(device=True)
    try:
        given = {"ppr": {"sources": 0}, "sspaths": {"source": 0}}
        for kind in ("cdlp", "lcc", "ppr", "sspaths", "triangles"):
            program = registry.make_program(kind, kind, given.get(kind, {}), order=VertexIndex.create("int"))
            for place in ("auto", "device", "host"):
                placed = placed_by(place, program, graph)
                assert (placed is not None) == (place != "host")
                assert placed is None or placed.on_device
    finally:
        graph.close()


def placed_by(place: str, program: Program, graph: Graph) -> Program | None:
    """What stands for a program by such a setting; None: it stays on the host."""
    itself: Any = SimpleNamespace(_config=SimpleNamespace(place_of=lambda id: place))
    try:
        return Contents._placed(itself, program, graph)
    except NoTwin:
        return None
