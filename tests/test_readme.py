"""README.md keeps its word: its links lead somewhere, and its settings, snippets and commands are run."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documented import Shell, replaced
from running import Daemon
from waiting import until

from graphtide import Client
from graphtide.daemon import cli
from graphtide.daemon.config.load import from_tables, load
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.ops.kafka import DevKafka, held_port

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/benchmarks.md",
    "docs/http.md",
    "docs/programs.md",
    "docs/protocol.md",
    "docs/security.md",
    "docs/operations.md",
    "docs/tutorial.md",
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The command lines of one program in README's shell blocks, as words."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    parts = [part for line in lines for part in line.split("&&")]
    return [words for words in (shlex.split(part, comments=True) for part in parts) if words[:1] == [program]]


def snippet(holds: str) -> str:
    (found,) = [block for block in blocks("python") if holds in block]
    return found


def settings() -> dict[str, Any]:
    (text,) = blocks("toml")
    return tomllib.loads(text)


def tcp_addresses() -> list[str]:
    """Where a daemon with README's settings listens for everybody on the machine."""
    listen = from_tables(settings()).server.listen
    return [address for address in listen if address.startswith("tcp:")]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with README's graph and programs, on a spool."""
    chosen = {section: settings()[section] for section in ("graph", "program")}
    with Daemon(tmp_path, chosen) as running:
        yield running.start()


def test_the_settings_load_and_nothing_else_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("toml")
    Path("graphtide.toml").write_text(text, "utf-8")
    config = load(Path("graphtide.toml")).config
    assert config.source.topics == ("edges",)
    assert [program.id for program in config.program] == ["pagerank", "components", "hops"]


def test_what_the_producer_snippet_writes_is_what_the_client_snippet_reads(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(snippet("packb"), names)
    with SpoolWriter(daemon.spool, name="snippet") as writer:
        writer.append(names["value"])
        offsets = {writer.path.name: writer.offset}
    with daemon.client() as client:
        client.wait(offsets, timeout_ms=60_000)
        assert client.stats()["edges"] == 3
    (listed,) = tcp_addresses()
    asking = snippet("from graphtide import Client")
    assert f'Client("{listed}")' in asking
    exec(asking.replace(listed, daemon.address), names)
    assert not names["ranks"].values.mask.any()
    assert names["ranks"].offsets == offsets
    with daemon.client() as client:
        assert client.path("hops", target=3).vertices.tolist() == [1, 3]
    shown = capsys.readouterr().out
    assert "Top(" in shown and "Path(" in shown


@pytest.mark.kafka
@pytest.mark.timeout(600)  # where no kernels are cached, the first start compiles them
def test_every_command_works_with_the_settings_beside_it(kafka: DevKafka, tmp_path: Path) -> None:
    """What producers send through Kafka is what a query and the HTTP door tell."""
    kafka.create_topic(*settings()["source"]["topics"], 2)
    (door,) = re.findall(r"`\[server\] http = (\[.*?\])`", README)
    with contextlib.ExitStack() as held:
        ports = {port: held.enter_context(held_port()) for port in (7420, 7421, 9420)}
        ports[9092] = int(kafka.bootstrap.rpartition(":")[2])
        listen = f"tcp://127.0.0.1:{ports[7420]}"
        environ = {"GRAPHTIDE_SERVER__LISTEN": listen, "GRAPHTIDE_SERVER__HTTP": replaced(door, ports)}
        places = {"broker1": "127.0.0.1"}
        with Shell("README.md", __file__, tmp_path, ports=ports, words=places, environ=environ) as shell:
            assert tcp_addresses() == ["tcp://127.0.0.1:7420"], "which stands for the default"
            (text,) = blocks("toml")
            (tmp_path / "graphtide.toml").write_text(shell.replaced(text), "utf-8")
            shell.run("graphtide doctor --config ")
            daemon = shell.start("graphtide run --config ", "daemon")
            (tmp_path / "edges.tsv").write_text("1\t2\n2\t3\n")
            (tmp_path / "edges.csv").write_text("src,dst,weight\n3,4,0.5\n2,3,1\n")
            with gzip.open(tmp_path / "edges.csv.gz", "wt") as file:
                file.write("src,dst,weight\n1,2,0.5\n2,3,1\n")
            shell.run("graphtide produce --kafka ")
            shell.run("graphtide produce --config ")
            shell.run("graphtide produce --spool ./spool edges")
            (tmp_path / "payments.csv").write_text("id,payer,payee,amount\n7,3,4,2.5\n")
            shell.run("graphtide produce --spool ./spool --column")

            def has_read() -> bool:
                assert daemon.poll() is None, (tmp_path / "daemon.err").read_text()
                try:
                    with Client(listen, timeout=60) as client:
                        return bool(client.stats()["edges"] == 3)
                except Unavailable:
                    return False

            assert until(has_read, 400), (tmp_path / "daemon.err").read_text()
            shown = shell.run("graphtide query ")
            assert {line.split()[0] for line in shown.splitlines()[1:5]} == {"1", "2", "3", "4"}
            answer = json.loads(shell.run("curl "))
            assert {*answer["ids"]} == {1, 2, 3, 4} and len(answer["values"]) == 4
            daemon.terminate()
            assert daemon.wait(120) == 0, (tmp_path / "daemon.err").read_text()
    second = {
        **{section: settings()[section] for section in ("graph", "program")},
        "source": {"path": tmp_path / "spool"},
    }
    with Daemon(tmp_path / "second", second) as reader:
        spooled = {file.name: file.stat().st_size for file in (tmp_path / "spool").glob("*.msgpack")}
        with reader.start().client() as client:
            client.wait(spooled, timeout_ms=60_000)
            assert client.path("hops", target=4).vertices.tolist() == [1, 2, 3, 4]
            assert client.neighbors(3).weights.tolist() == [2.5]


def test_every_command_and_target_exists() -> None:
    known = {
        command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback
    }
    assert {words[1] for words in commands("graphtide")} <= known
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = re.findall(r"\]\(([^):#]+)\)", text)
    paths = re.findall(r"`((?:daemon|compute|partition|gpma|ops|tests|docs|benchmarks)/[\w./-]*)`", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing
