"""README.md keeps its word: its links lead somewhere, and its settings, snippets and commands are run."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Daemon

from graphtide.daemon import cli
from graphtide.daemon.config.load import from_tables, load
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.ops.kafka import DevKafka

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
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


def command(*first: str) -> list[str]:
    """The one command of README that begins with these words after ``graphtide``, without ``graphtide``."""
    (found,) = [words[1:] for words in commands("graphtide") if words[1 : 1 + len(first)] == list(first)]
    return found


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


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "graphtide", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    assert command("run") == ["run", "--config", "graphtide.toml"]
    assert command("doctor") == ["doctor", "--config", "graphtide.toml"]


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


def test_the_commands_for_a_spool_work(daemon: Daemon) -> None:
    producing = command("produce", "--spool")
    with gzip.open(daemon.folder / producing[-1], "wt") as file:
        file.write("src,dst,weight\n1,2,0.5\n2,3,1\n")
    run(daemon.folder, *producing)
    (spooled,) = daemon.spool.glob("*.msgpack")
    with daemon.client() as client:
        client.wait({spooled.name: spooled.stat().st_size}, timeout_ms=60_000)
    query, address, *rest = command("query")
    assert [address] == tcp_addresses()
    shown = run(daemon.folder, query, daemon.address, *rest)
    assert {line.split()[0] for line in shown.splitlines()[1:4]} == {"1", "2", "3"}


@pytest.mark.kafka
def test_the_command_for_kafka_works(kafka: DevKafka, tmp_path: Path) -> None:
    words = command("produce", "--kafka")
    source = settings()["source"]
    assert [words[2]] == source["bootstrap_servers"] and [words[4]] == source["topics"]
    kafka.create_topic("readme", 2)
    (tmp_path / words[-1]).write_text("1\t2\n2\t3\n")
    run(
        tmp_path,
        *(word.replace(words[2], kafka.bootstrap).replace("edges", "readme") for word in words[:-1]),
        words[-1],
    )


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
