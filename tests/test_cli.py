"""The command line: help that teaches, exact messages, exit codes, a quick start, and the doctor."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brokers
import msgpack
import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from rich.console import Console
from typer.testing import CliRunner
from waiting import PATIENCE_S

from graphtide.compute import registry
from graphtide.daemon import cli, logs, os_errors, terminal
from graphtide.daemon.client.wire import pack_bitmap, pack_column
from graphtide.daemon.commands.flags import with_homes
from graphtide.daemon.commands.settings import flags_of, loaded_of
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.config.settings import Config
from graphtide.daemon.errors import (
    CheckpointError,
    ConfigError,
    DeadLettersError,
    IdSpaceFull,
    NotSupported,
    NotWritten,
    RequestError,
    SourceError,
    SourceReplaced,
    SourceUnavailable,
    Unauthorized,
    UnknownProgram,
)
from graphtide.daemon.ingest import kafka_client, sources
from graphtide.daemon.ingest.dead_letters import pack_letter
from graphtide.daemon.os_errors import SOCKET_PATH_BYTES, why
from graphtide.daemon.records.spool_format import frame, read_frames
from graphtide.daemon.records.stream import BadRecord, Partition
from graphtide.daemon.serve.listening import bind_socket
from graphtide.daemon.state.checkpoint import CheckpointStore
from graphtide.daemon.tools import doctor, query
from graphtide.ops.kafka import DevKafka

ROOT = Path(__file__).parent.parent

COMMANDS = (
    "run",
    "kernels",
    "demo",
    "produce",
    "load",
    "query",
    "watch",
    "results",
    "top",
    "export",
    "checkpoint",
    "dead-letters",
    "doctor",
    "config",
    "version",
)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    for name in [name for name in os.environ if name.startswith("GRAPHTIDE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def graphtide(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHTIDE_")}
    return subprocess.run(
        [sys.executable, "-m", "graphtide", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "NO_COLOR": "1"},
    )


# -- help and version ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_name_it(runner: CliRunner, command: str) -> None:
    done = runner.invoke(cli.app, [command, "--help"])
    assert done.exit_code == 0
    assert "Examples" in done.output and f"graphtide {command}" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("produce --spool a --schema x e.csv", "'--schema': 'x' is not one of 'avro', 'protobuf', 'json'"),
        ("dead-letters replay . --encoding x --spool a", "'--encoding': 'x' is not one of 'msgpack', "),
        ("top tcp://127.0.0.1:1 --interval x", "'--interval': must be a valid number"),
        ("top tcp://127.0.0.1:1 --interval 0", "'--interval': must be greater than or equal to 0.05"),
        ("query unix:/x get --tls-ca none.pem", "'--tls-ca': file 'none.pem' does not exist"),
    ],
)
def test_a_wrong_value_is_said_in_plain_words(runner: CliRunner, arguments: str, said: str) -> None:
    done = runner.invoke(cli.app, arguments.split(), terminal_width=200)
    assert done.exit_code == 2 and said in done.stderr, done.stderr


@pytest.mark.parametrize("command", ["run", "produce", "export", "watch", "dead-letters replay"])
def test_help_fits_into_80_columns(runner: CliRunner, command: str) -> None:
    """And no kind of value is so long that it goes on in the next line."""
    shown = runner.invoke(cli.app, [*command.split(), "--help"], terminal_width=80).stdout
    assert max(map(len, shown.splitlines())) <= 80
    kinds = [re.sub("[<>]=", "", line) for line in shown.splitlines() if line.startswith("│")]
    assert not [line for line in kinds if line.count("<") != line.count(">")]


def test_what_an_example_is_for_is_a_comment_of_the_shell(runner: CliRunner) -> None:
    shown = runner.invoke(cli.app, ["--help"], terminal_width=200).stdout
    assert "graphtide produce --spool spool edges.csv  # put updates there" in shown


def test_the_help_page_documents_the_exit_codes(runner: CliRunner) -> None:
    done = runner.invoke(cli.app, ["--help"])
    assert done.exit_code == 0
    assert all(command in done.output for command in COMMANDS)
    assert "Exit codes" in done.output


def test_version_loads_nothing_heavy() -> None:
    code = (
        "import sys; from graphtide.daemon.cli import app\n"
        "try: app(['version'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'numba', 'kafka', 'msgpack', 'graphtide.daemon.config.settings'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("graphtide ")


def test_a_daemon_looks_for_garbage_once_it_has_loaded_and_not_before() -> None:
    """And not in what was loaded, ever."""
    code = (
        "import gc, sys; from types import SimpleNamespace\n"
        "from graphtide.daemon import cli; from graphtide.daemon.serve import template\n"
        "template.Template = lambda *given: SimpleNamespace(close=lambda: None)\n"
        "class Service:\n"
        "    def __getattr__(self, name):\n"
        "        print('loading', gc.isenabled())\n"
        "        self.loaded = [[each] for each in range(10_000)]\n"
        "        gc.callbacks.append(lambda phase, about: print('looks at', len(gc.get_objects()) > 10_000))\n"
        "        return self.serve\n"
        "    def serve(self, *given, **more):\n"
        "        gc.collect(0)\n"
        "        print('serving', gc.isenabled())\n"
        "        return 0\n"
        "sys.modules['graphtide.daemon.service'] = Service()\n"
        "cli.app(['run'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert {*said[said.index("loading False") : said.index("serving True")]} == {"loading False", "looks at False"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tls-ca", "text.pem"], "--tls-ca: text.pem has no certificates"),
        (["--tls-cert", "text.pem"], "--tls-cert: text.pem, and in it, are no certificate"),
        (["--metrics", "off"], "--metrics: 'off' is neither HOST:PORT nor"),
        (["--metrics", "http://[::1"], "--metrics: 'http://[::1' is neither HOST:PORT nor"),
        (["--metrics", "file:///etc/passwd"], "--metrics: 'file:///etc/passwd' is neither HOST:PORT nor"),
        (["--interval", "inf"], "'--interval': "),
    ],
)
def test_what_an_option_cannot_take_is_said_with_its_name(
    runner: CliRunner, tmp_path: Path, options: list[str], words: str
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    done = runner.invoke(cli.app, ["top", "unix:/x", *options], env={"COLUMNS": "300"})
    assert done.exit_code == 2 and words in done.output, done.output


def test_the_version_is_where_others_have_it(runner: CliRunner) -> None:
    assert runner.invoke(cli.app, ["--version"]).output == runner.invoke(cli.app, ["version"]).output != ""


def test_version_as_json(runner: CliRunner) -> None:
    done = runner.invoke(cli.app, ["version", "--json"])
    assert set(json.loads(done.stdout)) == {"graphtide", "python"}


# -- configuration ------------------------------------------------------------------------------------------


def test_config_prints_toml_with_origins(runner: CliRunner) -> None:
    done = runner.invoke(cli.app, ["config", "--set", "epoch.linger_ms=3"], env={"GRAPHTIDE_LOG__LEVEL": "debug"})
    assert done.exit_code == 0
    tables = tomllib.loads(done.stdout)
    assert tables["epoch"]["linger_ms"] == 3.0 and tables["log"]["level"] == "debug"
    assert "linger_ms = 3.0  # flag --set" in done.stdout
    assert 'level = "debug"  # environment GRAPHTIDE_LOG__LEVEL' in done.stdout


def test_config_file_from_the_environment(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[epoch]\nlinger_ms = 9\n")
    done = runner.invoke(cli.app, ["config"], env={"GRAPHTIDE_CONFIG": str(tmp_path / "x.toml")})
    assert tomllib.loads(done.stdout)["epoch"]["linger_ms"] == 9.0


@pytest.mark.parametrize(
    "words", [["--config=~/my.toml"], ["--config", "~/my.toml"], ["-c", "~/my.toml"], []], ids=" ".join
)
def test_what_no_shell_has_read_may_begin_with_a_tilde(
    words: list[str], runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves it where it stands behind ``=`` or in a variable, and a service has no shell."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.toml").write_text("[epoch]\nlinger_ms = 5\n")
    shown = runner.invoke(cli.app, ["config", *words], env={} if words else {"GRAPHTIDE_CONFIG": "~/my.toml"})
    assert shown.exit_code == 0, shown.output
    assert f"linger_ms = 5.0  # file {tmp_path}/my.toml" in shown.output


def test_only_paths_are_read_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ca.pem").write_text("none")
    refused = runner.invoke(cli.app, ["query", "unix:~/s", "stats", "--tls-ca=~/ca.pem"], env={"COLUMNS": "1000"})
    assert f"{tmp_path}/ca.pem has no certificates" in refused.output
    args = ["query", "unix:/s", "get", "--vertices=~/a", "--program", "~/b", "--token-file=~no-such-user/t"]
    assert with_homes(args, cli.app) == args, "these vertices are ids, of which any text may be one"
    assert with_homes(["export", "--vertices=~/a"], cli.app) == ["export", f"--vertices={tmp_path}/a"]
    assert with_homes(["run", "--config=~/a", "-c", "~/a"], cli.app) == [
        "run",
        f"--config={tmp_path}/a",
        "-c",
        f"{tmp_path}/a",
    ]
    grouped = ["checkpoint", "now", "--tls-ca", "~/a"]
    assert with_homes(grouped, cli.app) == [*grouped[:-1], f"{tmp_path}/a"]


def test_the_schema_describes_every_section(runner: CliRunner) -> None:
    schema = json.loads(runner.invoke(cli.app, ["config", "--schema"]).stdout)
    assert set(schema["properties"]) == set(Config.model_fields)


def test_a_wrong_setting_is_one_message_and_exit_code_2() -> None:
    done = graphtide("config", "--set", "epoc.linger_ms=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "graphtide: configuration: epoc = a table: unknown section; did you mean epoch? (flag --set)\n"
    )


def test_debug_shows_the_traceback() -> None:
    done = graphtide("--debug", "config", "--set", "nonsense")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ConfigError" in done.stderr


def test_flags_become_settings_and_set_wins() -> None:
    flags = flags_of(
        ["source.path=/b", "server.insecure=true"],
        spool="/a",
        listen=["unix:/x", "tcp://127.0.0.1:1"],
        metrics="off",
        checkpoints="/c",
    )
    config = loaded_of(None, flags).config
    assert config.source.path == Path("/b") and config.server.insecure
    assert config.server.listen == ("unix:/x", "tcp://127.0.0.1:1")
    assert config.metrics.address() is None and config.checkpoint.path == Path("/c")
    config = loaded_of(None, flags_of(None, kafka="h:1,i:2", topics=["a", "b"])).config
    assert config.source.kind == "kafka"
    assert config.source.bootstrap_servers == ("h:1", "i:2") and config.source.topics == ("a", "b")


def test_exit_codes_say_whether_trying_again_can_help() -> None:
    assert cli.exit_code(ConfigError("x")) == 2
    assert cli.exit_code(SourceUnavailable("x")) == 3
    assert cli.exit_code(SourceError("x")) == cli.exit_code(SourceReplaced("x")) == 4
    assert cli.exit_code(CheckpointError("x")) == 5
    assert cli.exit_code(NotWritten("x")) == 6
    assert cli.exit_code(DeadLettersError("x")) == 8
    assert cli.exit_code(IdSpaceFull("x")) == 1


def test_after_what_a_restart_does_not_help_the_unit_does_not_restart() -> None:
    unit = (ROOT / "ops" / "systemd" / "graphtide.service").read_text("utf-8")
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    lasting = (ConfigError("x"), SourceError("x"), CheckpointError("x"), DeadLettersError("x"))
    assert {int(code) for code in codes.split()} == {cli.exit_code(error) for error in lasting}


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (MemoryError("Unable to allocate 3 GiB"), "graphtide: out of memory: Unable to allocate 3 GiB\n", 6),
        (MemoryError(), "graphtide: out of memory\n", 6),
        (OSError(28, "No space left on device", "/x/y"), "graphtide: /x/y: No space left on device\n", 6),
        (OSError(12, "Cannot allocate memory"), "graphtide: Cannot allocate memory\n", 6),
        (
            RuntimeError("can't start new thread"),
            "graphtide: can't start new thread: look at ulimit -u, ulimit -v, and pids.max of the control group\n",
            1,
        ),
        (OSError("told without a number"), "graphtide: told without a number\n", 1),
        (NotWritten("the last checkpoint is missing"), "graphtide: the last checkpoint is missing\n", 6),
    ],
)
def test_no_room_is_one_sentence_and_a_code_of_its_own(
    error: BaseException, message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._explain(error) == code
    assert capsys.readouterr().err == message


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("ulimit -n 16", r"^graphtide: this process may have 16 open files .ulimit -n., .* at least 64"),
        ("ulimit -n 63", r"^graphtide: this process may have 63 open files .ulimit -n., .* at least 64"),
        ("ulimit -f 1", r"^graphtide: .*File too large: this process may write 1024 bytes to one .ulimit -f.$"),
        ("ulimit -v 400000", r"^graphtide: this process may have 409600000 bytes of address space .*threads = 1"),
        (
            "ulimit -v 3000000; export GRAPHTIDE_COMPUTE__THREADS=400",
            r"^graphtide: .* compute.threads = 400 takes",
        ),
    ],
)
def test_a_limit_of_the_process_is_said(limit: str, message: str, tmp_path: Path) -> None:
    """In the shell that starts it, as an operator would meet with it."""
    (tmp_path / "graphtide.toml").write_text('[server]\nlisten = ["unix:s"]\n[metrics]\nlisten = "off"\n')
    command = f"{limit}; exec {shlex.quote(sys.executable)} -m graphtide run --config graphtide.toml"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode not in (0, -9), done.stderr
    told_before = "compute.threads" in done.stderr or "open files" in done.stderr
    assert told_before == (done.returncode == 2), "a restart would not help"
    assert re.search(message, done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr


def _require_limits() -> None:
    os_errors.require_descriptors()
    os_errors.require_address_space(1)


@pytest.mark.parametrize(
    ("limit", "check", "least"),
    [
        ("RLIMIT_NOFILE", "open files", os_errors.DESCRIPTORS_MIN),
        ("RLIMIT_AS", "address space", os_errors.ADDRESS_SPACE_MIN),
    ],
)
def test_the_doctor_fails_where_a_limit_keeps_a_daemon_from_starting(
    monkeypatch: pytest.MonkeyPatch, limit: str, check: str, least: int
) -> None:
    """With the sentence that a start ends with."""
    config = from_tables({"compute": {"threads": 1}})
    limits = {number: resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)}
    limits |= {resource.RLIMIT_STACK: (8 << 20, 8 << 20), resource.RLIMIT_MEMLOCK: (1, 1)}
    limits[getattr(resource, limit)] = least - 1, least - 1
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    with pytest.raises(ConfigError) as refused:
        _require_limits()
    assert doctor.Finding(check, "fail", refused.value.message) in list(doctor._limits(config))
    limits[getattr(resource, limit)] = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    assert all(one.status != "fail" for one in doctor._limits(config) if one.check == check)


def test_kernels_that_would_not_be_compiled_are_said(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``NUMBA_DISABLE_JIT`` is left over from debugging something else, say."""
    said = "NUMBA_DISABLE_JIT is set in the environment, and kernels must be compiled: take it away"
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    done = runner.invoke(cli.app, ["run", "--checkpoints", str(tmp_path / "ck")])
    assert (done.exit_code, done.stderr) == (2, f"graphtide: {said}\n")
    assert said in {finding.found for finding in doctor._numba(from_tables({}))}
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    assert {finding.status for finding in doctor._numba(from_tables({}))} == {"ok"}


def test_a_socket_whose_name_is_too_long_says_how_long_it_may_be(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * (SOCKET_PATH_BYTES - len(os.fsencode(tmp_path)) - 1))
    bound, _ = bind_socket(f"unix:{longest}", beyond_loopback=False)
    bound.close()
    with pytest.raises(ConfigError, match=f"too long: .* {SOCKET_PATH_BYTES} bytes; name a shorter one"):
        bind_socket(f"unix:{longest}x", beyond_loopback=False)


def test_a_link_to_nowhere_is_not_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError) as link:
        (tmp_path / "link").mkdir(exist_ok=True)
    assert why(link.value) == f"it is a link to {str(tmp_path / 'gone')!r}, which is not there"
    with pytest.raises(FileExistsError) as file:
        (tmp_path / "file").mkdir(exist_ok=True)
    assert why(file.value) == "it is a file, and must be a folder"
    with pytest.raises(FileExistsError) as folder:
        tmp_path.mkdir()
    assert why(folder.value) == "File exists"
    with pytest.raises(CheckpointError, match=r"checkpoint\.path = .*link' cannot be used: it is a link to"):
        CheckpointStore(tmp_path / "link")


def test_produce_needs_one_destination(runner: CliRunner) -> None:
    for arguments in (["x.csv"], ["--spool", "s", "--kafka", "h:1", "x.csv"], ["--kafka", "h:1", "x.csv"]):
        assert runner.invoke(cli.app, ["produce", *arguments]).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "a.el", "--topic", "t", "--kafka"),
        ("dead-letters", "list", "--topic", "t", "--kafka"),
        ("dead-letters", "count", "--topic", "t", "--kafka"),
        ("dead-letters", "replay", ".", "--to-topic", "t", "--to-kafka"),
    ],
    ids=["produce", "list", "count", "replay"],
)
@pytest.mark.parametrize("servers", ["", ",", "host", "a:1,", "a:1,b", "127.0.0.1:99999"])
def test_brokers_that_are_none_are_refused_before_any_is_looked_for(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], servers: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.el").write_text("1 2\n")
    monkeypatch.setattr(kafka_client, "connect", None)
    done = runner.invoke(cli.app, [*arguments, servers])
    assert done.exit_code == 2
    assert "must be HOST:PORT" in done.output and arguments[-1] in done.output


def test_produce_writes_a_spool_and_prints_what_a_wait_needs(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst\n1,2\n2,3\n")
    (tmp_path / "b.el").write_text("3 4\n")
    done = runner.invoke(cli.app, ["produce", "--spool", "spool", "--json", "--undirected", "a.csv", "b.el"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    (name,) = [path.name for path in (tmp_path / "spool").iterdir()]
    offsets = {name: (tmp_path / "spool" / name).stat().st_size}
    assert printed == {"updates": 3, "offsets": offsets, "refused": {}, "self_loops_dropped": 0, "doubts": []}
    (tmp_path / "bad.csv").write_text("src,dst\n1,x\n")
    done = runner.invoke(cli.app, ["produce", "--spool", "spool", "bad.csv"])
    assert done.exit_code == 7
    assert "0 updates written" in done.stdout and "bad.csv:2: dst holds 'x'" in done.stdout
    (tmp_path / "bad.csv").write_text("from,to\n1,2\n")
    done = runner.invoke(cli.app, ["produce", "--spool", "spool", "bad.csv"])
    assert done.exit_code == 1
    assert done.stderr.startswith("graphtide: bad.csv:1: the header") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("gone.csv", None, 1, "gone.csv: No such file or directory"),
        ("bad.csv", b"from,to\n1,2\n", 1, "bad.csv:1: the header line must name src and dst"),
        ("bad.csv.gz", b"src,dst\n1,2\n", 1, "bad.csv.gz cannot be decompressed"),
        ("bad.mtx", b"%%MatrixMarket matrix array real general\n1 1\n7\n", 1, "bad.mtx:1: of MatrixMarket"),
        ("bad.parquet", b"PAR1", 1, "bad.parquet is no Parquet"),
    ],
)
def test_nothing_is_written_where_a_file_cannot_be_read(
    runner: CliRunner, tmp_path: Path, name: str, content: bytes | None, code: int, said: str
) -> None:
    """Else part of what was asked for would be there, without offsets to wait for it."""
    (tmp_path / "a.csv").write_text("src,dst\n1,2\n")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = runner.invoke(cli.app, ["produce", "--spool", "spool", "a.csv", name])
    assert (done.exit_code, done.stdout) == (code, "") and done.stderr.startswith(f"graphtide: {said}")
    assert not (tmp_path / "spool").exists()


def test_what_can_be_read_once_only_is_not_looked_at_before(runner: CliRunner, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=(tmp_path / "pipe").write_text, args=("1 2\n2 3\n",))
    writing.start()
    done = runner.invoke(cli.app, ["produce", "--spool", "spool", "pipe"])
    writing.join()
    assert done.exit_code == 0 and done.stdout.startswith("2 updates written")


def test_the_help_of_produce_names_what_files_may_hold(runner: CliRunner) -> None:
    shown = " ".join(runner.invoke(cli.app, ["produce", "--help"], terminal_width=200).stdout.split())
    for words in (
        "a header line names the columns: src,dst and any of op,weight,ts",
        "events: op src dst weight ts (seconds), with - for no weight or ts",
        "edge lists: src dst [weight [ts (milliseconds)]]",
        ".parquet .arrow .feather columns as of CSV",
        "op is insert (or I, +, 1, nothing), delete (D, -, 0), insert_vertex or delete_vertex",
        "leave dst empty: delete_vertex,7,",
        "exit code is then 7",
    ):
        assert words in shown, words


def test_produce_knows_what_the_graph_takes(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,weight\n7,2,1\n2,3,0.5\nx,5,1\n4,4,1\n")
    (tmp_path / "g.toml").write_text(
        '[graph]\nweights = "unweighted"\nself_loops = "drop"\nvertex_ids = "string"\ndirected = false\n'
    )
    done = runner.invoke(cli.app, ["produce", "--config", "g.toml", "--spool", "spool", "--json", "a.csv"])
    assert done.exit_code == 7, done.output
    printed = json.loads(done.stdout)
    assert (printed["updates"], printed["self_loops_dropped"]) == (2, 1)
    assert printed["refused"] == {
        "bad-weight": {
            "updates": 1,
            "first": ["a.csv:3: weight is 0.5; the graph is unweighted, only 1 is allowed"],
        }
    }
    (frame,) = [item.payload for path in (tmp_path / "spool").iterdir() for item in read_frames(path)]
    assert msgpack.unpackb(frame) == {"v": 1, "src": ["2", "5"], "dst": ["7", "x"]}


def test_produce_talks_to_kafka_as_its_settings_say(runner: CliRunner, tmp_path: Path) -> None:
    """A listener sees a TLS handshake begin, or a plain request, whose first byte is that of its length."""
    (tmp_path / "a.el").write_text("1 2\n")
    (tmp_path / "g.toml").write_text('[source.client]\nsecurity_protocol = "SSL"\n')
    for options, first in (
        ([], b"\0"),
        (["--config", "g.toml"], b"\x16"),
        (["--client", "security_protocol=SSL", "--client", "ssl_check_hostname=false"], b"\x16"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            command = ["produce", "--kafka", address, "--topic", "t", *options, "a.el"]
            with subprocess.Popen([sys.executable, "-m", "graphtide", *command], cwd=tmp_path) as process:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(60)
                    assert connection.recv(1) == first
                process.kill()
    command = ["produce", "--kafka", "h:1", "--topic", "t", "--client", "securityprotocol=SSL", "a.el"]
    done = runner.invoke(cli.app, command)
    assert done.exit_code == 2 and "did you mean security_protocol?" in done.output


def test_settings_of_the_client_keep_their_types_from_flags() -> None:
    client = {"ssl_check_hostname": "false", "request_timeout_ms": "500", "sasl_plain_password": "123"}
    options = from_tables({"source": {"client": client}}).source.client_options()
    assert options == {"ssl_check_hostname": False, "request_timeout_ms": 500, "sasl_plain_password": "123"}


# -- the doctor ---------------------------------------------------------------------------------------------


def findings(config: Config) -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.examine(config)}


def test_the_doctor_finds_this_machine_fit(runner: CliRunner) -> None:
    done = runner.invoke(cli.app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    assert {"check", "status", "found", "hint"} == set(report[0])
    checks = {finding["check"]: finding["status"] for finding in report}
    for check in ("python", "memfd", "crc32c", "lz4", "zstandard", "kernel cache", "checkpoint.path"):
        assert checks[check] == "ok"
    assert done.exit_code == int("fail" in checks.values())
    table = runner.invoke(cli.app, ["doctor"])
    assert table.exit_code == done.exit_code and "kernel cache" in table.stdout


def test_the_doctor_fails_with_a_hint_where_the_daemon_could_not_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    empty = tmp_path / "token"
    empty.write_text("")
    config = from_tables(
        {
            "checkpoint": {"path": str(blocked / "checkpoints")},
            "server": {
                "listen": [f"unix:{tmp_path}/s"],
                "http": [f"unix:{blocked}/h"],
                "token_file": str(empty),
            },
            "device": {"enabled": "on"},
            "compute": {"threads": 4096},
            "metrics": {"listen": "off"},
        }
    )
    found = findings(config)
    assert found["checkpoint.path"].status == "fail" and found["checkpoint.path"].hint
    assert found["server.token_file"].status == "fail"
    assert found["listen"].status == "ok" and found["http"].status == "fail"
    assert found["cores"].status == "warn"
    assert found["gpu"].status == "fail"
    assert found["source.path"].status == "ok"
    assert "metrics.listen" not in found


def test_an_encoding_that_a_spool_does_not_go_by_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files end in .json, say, and are read as that, with a dead letter for each line."""
    given = {"kind": "spool", "path": str(tmp_path / "spool"), "encoding": "debezium"}
    kafka = {"kind": "kafka", "bootstrap_servers": ["a:1"], "topics": ["t"], "encoding": "debezium"}
    said = 'source.encoding = "debezium" is of no effect: files of a spool are read as what their names end in'
    with contextlib.closing(sources.make_source(from_tables({"source": given}))):
        assert said in caplog.text
    (finding,) = (one for one in doctor._directories(from_tables({"source": given})) if one.status == "warn")
    assert finding.check == "source.encoding" and finding.found.startswith(said)
    for other in (kafka, {key: value for key, value in given.items() if key != "encoding"}):
        assert from_tables({"source": other}).source.unheeded_encoding() is None


def test_the_doctor_sees_what_a_start_would_not_get_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pem").write_text("no certificate")
    tls = {"certificate": str(tmp_path / "pem"), "key": str(tmp_path / "pem")}
    config = from_tables(
        {
            "checkpoint": {"path": str(tmp_path / "checkpoints")},
            "server": {
                "listen": [f"unix:{tmp_path}/{'s' * 100}", f"unix:{tmp_path}/pem"],
                "http": ["http://203.0.113.7:7421"],
                "insecure": True,
                "socket_group": "no-such-group",
                "tls": tls,
            },
            "metrics": {"listen": "off", "tls": tls},
        }
    )

    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", lambda **_: Full())
    failed = {(one.check, one.found) for one in doctor.examine(config) if one.status == "fail"}
    said = "\n".join(f"{check}: {found}" for check, found in sorted(failed))
    assert f"checkpoint.path: {tmp_path / 'checkpoints'} cannot be written: No space left on device" in said
    for key in ("server.tls: TLS with", "metrics.tls: TLS with", "server.socket_group: ", "http: http://203.0"):
        assert key in said, said
    monkeypatch.undo()
    said = "\n".join(one.found for one in doctor._addresses(config) if one.status == "fail")
    assert "AF_UNIX path too long" in said and "is no socket" in said


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EACCES, "a port from 1024"), (errno.EADDRNOTAVAIL, "of this")]
)
def test_the_doctor_tells_what_helps_where_an_address_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    found = doctor._tcp("listen", "tcp://127.0.0.1:443", "127.0.0.1", 443)
    assert found.status == "fail" and hint in str(found.hint)


def test_the_doctor_sees_who_listens_on_a_unix_socket(tmp_path: Path) -> None:
    config = from_tables({"server": {"listen": [f"unix:{tmp_path}/s"]}, "metrics": {"listen": "off"}})
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"{tmp_path}/s")
        assert findings(config)["listen"].status == "ok"  # left over: a start takes its place
        taken.listen()
        assert findings(config)["listen"].status == "warn"


OWN_PROGRAM = """
import numpy as np
from graphtide.compute.paths import SOURCE, Functors, PathProgram
from graphtide.compute.registry import register

@register
class Own(PathProgram):
    kind = "{kind}"
    summary = "hops"
    value = np.uint32
    at_source = 0
    parameters = (SOURCE,)

    @classmethod
    def functors(cls):
        return Functors(lambda value, weight: value + {step}, lambda new, old: new < old)
"""


def test_the_doctor_makes_programs_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))
    for kind, step in (("own_good", "1"), ("own_bad", "step")):
        (tmp_path / f"{kind}.py").write_text(OWN_PROGRAM.format(kind=kind, step=step))
    programs = [{"name": name, "source": 1} for name in ("own_good", "own_bad", "bfs")]
    config = from_tables({"compute": {"python_modules": ["own_good", "own_bad"]}, "program": programs})
    found = {finding.check: finding for finding in doctor._programs(config)}
    assert found.keys() == {"program own_good", "program own_bad"}
    assert found["program own_good"].status == "ok"
    bad = found["program own_bad"]
    assert bad.status == "fail" and "name 'step' is not defined" in bad.found and "own_bad" in bad.hint


def test_the_doctor_says_when_secrets_can_be_read_by_others_and_ports_are_taken(tmp_path: Path) -> None:
    import socket

    secret = tmp_path / "token"
    secret.write_text("12345678")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = from_tables(
            {
                "server": {"listen": [f"unix:{tmp_path}/s"], "token_file": str(secret)},
                "metrics": {"listen": f"127.0.0.1:{taken.getsockname()[1]}"},
            }
        )
        found = findings(config)
    assert found["server.token_file"].status == "warn"
    assert found["metrics.listen"].status == "warn"
    secret.chmod(0o600)
    assert findings(config)["server.token_file"].status == "ok"


def test_the_doctor_looks_for_secrets_where_the_daemon_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "password").write_text("x")
    (tmp_path / "password").chmod(0o600)
    config = from_tables({"source": {"client": {"sasl_plain_password_file": "~/password"}}})
    (found,) = doctor._secrets(config)
    assert (found.status, found.found) == ("ok", f"{tmp_path}/password")


def test_the_doctor_reports_a_broker_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KAFKA_TIMEOUT_MS", 300)
    config = from_tables({"source": {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:1"], "topics": ["edges"]}})
    found = {finding.check: finding for finding in doctor._kafka(config)}
    assert found["kafka"].status == "fail" and "127.0.0.1:1" in found["kafka"].found
    assert "Unrecognized" not in found["kafka"].found


@pytest.mark.kafka
def test_the_doctor_looks_for_the_topics(kafka: DevKafka) -> None:
    kafka.create_topic("doctored", 3)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": ["doctored", "missing"]}
    found = {finding.check: finding for finding in doctor._kafka(from_tables({"source": source}))}
    assert [found[name].status for name in ("kafka", "topic doctored", "topic missing")] == ["ok", "ok", "fail"]
    assert found["topic doctored"].found == "3 partitions"


@pytest.mark.kafka
def test_the_doctor_knows_what_a_topics_settings_mean(kafka: DevKafka) -> None:
    kafka.create_topic("forgetful", 1, {"cleanup.policy": "compact,delete", "retention.ms": "60000"})
    with brokers.client(KafkaProducer, kafka.bootstrap) as producer:
        producer.send("forgetful", b"1", key=b"k").get(timeout=30)
    with brokers.client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_records({TopicPartition("forgetful", 0): 1})
    for compacted, status in (("refuse", "fail"), ("accept", "warn")):
        source = {
            "kind": "kafka",
            "bootstrap_servers": [kafka.bootstrap],
            "topics": ["forgetful"],
            "compacted": compacted,
        }
        found = [item for item in doctor._kafka(from_tables({"source": source})) if item.status != "ok"]
        assert [item.status for item in found] == [status, "warn", "warn"]
        for item, words in zip(
            found, ("is compacted", "keeps records for 60 s", "begins at offset 1"), strict=True
        ):
            assert words in item.found


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _memory_of_the_moon(config: Config) -> Iterator[doctor.Finding]:
        raise OSError("not there")

    monkeypatch.setattr(doctor, "CHECKS", (_memory_of_the_moon,))
    (finding,) = doctor.examine(Config())
    assert finding == doctor.Finding("memory of the moon", "fail", "OSError: not there", "the check itself failed")


# -- logging and the terminal -------------------------------------------------------------------------------


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "graphtide.x", "levelno": logging.WARNING, "levelname": "WARNING"})
    made.msg, made.args, made.created, made.msecs = "lost %d", (3,), 0.0, 5.0
    vars(made).update(extra)
    return made


def test_plain_lines_and_their_priority_under_systemd() -> None:
    assert logs.PlainFormatter().format(record()) == "1970-01-01T00:00:00.005Z WARNING graphtide.x: lost 3"
    assert logs.PlainFormatter(journal=True).format(record(msg="a\nb", args=())).splitlines() == [
        "<4>1970-01-01T00:00:00.005Z WARNING graphtide.x: a",
        "<4>b",
    ]


def test_json_lines_carry_extra_fields_and_the_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        text = logs.JsonFormatter().format(record(exc_info=sys.exc_info(), epoch=(1, 7), path=Path("/x")))
    assert "\n" not in text
    line = json.loads(text)
    assert line["level"] == "warning" and line["message"] == "lost 3" and line["time"].endswith("Z")
    assert line["epoch"] == [1, 7] and line["path"] == "/x"
    assert "ValueError: why" in line["error"]


def test_logging_goes_to_standard_error_in_the_chosen_format() -> None:
    code = (
        "import logging, sys; from graphtide.daemon.logs import configure\n"
        "configure('info', sys.argv[1])\n"
        "logging.getLogger('graphtide.x').info('hello %s', 'you'); logging.getLogger('graphtide.x').debug('no')"
    )
    for format in ("auto", "plain", "json", "human"):
        done = subprocess.run([sys.executable, "-c", code, format], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "" and done.stderr.count("\n") == 1
        assert "hello you" in done.stderr
        assert done.stderr.startswith("{") == (format == "json")
        assert (re.fullmatch(r"\d\d:\d\d:\d\d INFO +hello you\s*", done.stderr) is not None) == (format == "human")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (terminal.count(1234567), "1,234,567"),
        (terminal.size(0), "0 B"),
        (terminal.size(1536), "1.5 KiB"),
        (terminal.size(5 << 40), "5.0 TiB"),
        (terminal.duration(0.0000042), "4 µs"),
        (terminal.duration(0.0032), "3.2 ms"),
        (terminal.duration(12.5), "12.5 s"),
        (terminal.duration(125.4), "2 min 5 s"),
        (terminal.duration(12_000), "3 h 20 min"),
        (terminal.duration(180 * 86_400), "180 days"),
        (terminal.cell_text(None), "-"),
        (terminal.cell_text(True), "yes"),
        (terminal.cell_text(0.1 + 0.2), "0.3"),
    ],
)
def test_numbers_are_shown_with_their_units(made: str, text: str) -> None:
    assert made == text


def test_tables_show_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.output().print(terminal.table(("vertex", "value"), [("[red]a[/red]", 1.5), ("b", None)]))
    shown = capsys.readouterr().out
    assert "[red]a[/red]" in shown and "1.5" in shown and "-" in shown


def test_ids_give_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor break a table's lines: producers choose them."""
    ids = ["\x1b]0;title\x07", "two\nlines", "a\tb", "\x9b2J", "é\\n"]
    terminal.output().print(terminal.table(("vertex",), [(id,) for id in ids]))
    query.show("degree", {"vertices": []}, {"out": [], "in": [], "unknown": ids}, terminal.output())
    shown = capsys.readouterr().out
    assert [line.strip() for line in shown.splitlines()[1:6]] == [
        "\\x1b]0;title\\x07", "two\\nlines", "a\\tb", "\\x9b2J", "é\\n"
    ]  # fmt: skip
    assert "unknown: \\x1b]0;title\\x07, two\\nlines," in shown and not set(shown) & set("\x1b\x07\x9b\t")


def _output_of(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"exec {sys.executable} -m graphtide {command}",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_what_a_terminal_cannot_show_is_escaped(environment: dict[str, str], tmp_path: Path) -> None:
    bad = BadRecord(Partition("t", 0), 1, "é".encode(), "malformed", "it is no edge")
    (tmp_path / "dead-0.msgpack").write_bytes(frame(pack_letter(bad, 0)))
    done = _output_of(f"dead-letters list {tmp_path}", **environment)
    assert (done.returncode, done.stderr) == (0, "") and "\\xe9" in done.stdout


def test_commands_do_without_the_streams_that_are_closed(tmp_path: Path) -> None:
    """And open no file in their place, which what is printed would go to."""
    for closed in (">&-", "<&-", "<&- >&- 2>&-"):
        done = _output_of(f"checkpoint list {tmp_path} {closed}")
        assert (done.returncode, done.stderr) == (0, ""), closed
    taken = "import os; from graphtide.daemon import cli; cli._ready_streams(); print(os.open('/', os.O_RDONLY))"
    done = subprocess.run(
        ["sh", "-c", f'exec {sys.executable} -c "{taken}" <&- 2>&-'], capture_output=True, text=True
    )
    assert (done.returncode, int(done.stdout) > 2) == (0, True)


# -- queries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        ([], {}),
        (["--program", "hops", "--vertices", "1,2,-3"], {"program": "hops", "vertices": [1, 2, -3]}),
        (["--vertices", "7"], {"vertices": [7]}),
        (["--vertices", '["7", "a,b"]'], {"vertices": ["7", "a,b"]}),
        (["--vertices=a,b"], {"vertices": ["a", "b"]}),
        (["--vertices", "-0,1.0,1e5,null,NaN,007"], {"vertices": ["-0", "1.0", "1e5", "null", "NaN", "007"]}),
        (["--vertex", "true"], {"vertex": "true"}),
        (["--source", "-0"], {"source": "-0"}),
        (["--source", "7"], {"source": 7}),
        (["--sources", "5,b"], {"sources": [5, "b"]}),
        (["--sources", '"a,b"'], {"sources": "a,b"}),
        (["--vertices", "[1, -0]"], {"vertices": [1, 0]}),
        (["--program", "a", "--program", "b(1,2)"], {"program": ["a", "b(1,2)"]}),
        (["--vertices", "1", "--vertices", "2,3"], {"vertices": [1, 2, 3]}),
        (["--vertex", "-5", "--timeout-ms", "100"], {"vertex": -5, "timeout_ms": 100}),
        (["--program", "a", "--parents"], {"program": "a", "parents": True}),
        (["--parents", "--program", "x"], {"parents": True, "program": "x"}),
        (["--thaw"], {"thaw": True}),
        (["--retry"], {"retry": True}),
        (["--min-offsets", '{"t": {"0": 5}}'], {"min_offsets": {"t": {"0": 5}}}),
    ],
)
def test_query_parameters_are_json_where_they_can_be(arguments: list[str], params: dict[str, Any]) -> None:
    assert query.parse_parameters(arguments) == params


def test_numbers_with_commas_are_several_vertices_for_a_program_of_ones_own() -> None:
    """What its parameters are called nobody knows here."""
    for method, seeds in (("compute", [7, -8]), ("keep", [7, -8]), ("get", "7,-8")):
        assert query.parse_parameters(["--seeds", "7,-8"], method) == {"seeds": seeds}
    for text in ("7,b", "7,", "[7", "a b,c"):
        assert query.parse_parameters(["--seeds", text], "compute") == {"seeds": text}


@pytest.mark.parametrize("name", ["7", "1,2", "1.5", "true", "hops"])
def test_what_programs_are_called_is_text_whatever_it_looks_like(name: str) -> None:
    for method in ("keep", "compute", "drop", "top"):
        for key in ("id", "program"):
            assert query.parse_parameters([f"--{key}", name], method) == {key: name}


def test_a_stray_argument_of_a_query_is_refused() -> None:
    with pytest.raises(ValueError, match="'x' stands alone"):
        query.parse_parameters(["--program", "hops", "x"])
    for bare in (["--vertices"], ["--vertices", "--program", "a"]):
        with pytest.raises(ValueError, match="--vertices needs a value"):
            query.parse_parameters(bare)


def test_a_subscription_that_would_end_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="graphtide watch"):
        query.parse_parameters(["--program", "hops"], "subscribe")


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("hops", "hops"),
        ("a,b", ["a", "b"]),
        ('["a","b"]', ["a", "b"]),
        ("bfs(1,2)", "bfs(1,2)"),
        ("bfs(1,2),c,ppr(1+2,0.5)", ["bfs(1,2)", "c", "ppr(1+2,0.5)"]),
    ],
)
def test_commas_list_programs_where_get_takes_several(text: str, programs: str | list[str]) -> None:
    assert query.parse_parameters(["--program", text], "get") == {"program": programs}
    assert query.parse_parameters(["--program", "x", "--program", text], "get")["program"][1:] == (
        [programs] if isinstance(programs, str) else programs
    )
    expected = programs if text.startswith("[") else text
    assert query.parse_parameters(["--program", text], "top") == {"program": expected}


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RequestError("vertices must be given: ids", {"parameter": "vertices"}), "--vertices must be given: ids"),
        (
            RequestError("unknown parameters: a_b; ...", {"unknown": ["a_b"], "known": ["k", "timeout_ms"]}),
            "unknown: --a-b; top takes --k, --timeout-ms",
        ),
        (
            RequestError("unknown parameters: a; ...", {"unknown": ["a"], "known": []}),
            "unknown: --a; top takes no parameters",
        ),
        (
            UnknownProgram("there is no program 'x'", {"parameter": "program"}),
            "--program: there is no program 'x'",
        ),
        (RequestError("something else"), "something else"),
        (
            RequestError("min_offsets names what is not read: x", {"unknown": ["x"]}),
            "min_offsets names what is not read: x",
        ),
    ],
)
def test_errors_name_flags(
    error: RequestError, shown: str, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(query.Client, "call", refuse)
    with pytest.raises(type(error)) as caught:
        query.run_query("unix:/x", "top", {})
    assert caught.value.message == shown and caught.value.detail == error.detail


def test_a_path_that_is_none_is_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    params, answer, _ = ANSWERS["path"]
    none = {**answer, "vertices": column([], "<i8"), "value": None, "weights": column([], "<f4")}
    monkeypatch.setitem(ANSWERS, "path", (params, none, []))
    query.run_query("unix:/x", "path", params)
    assert capsys.readouterr().out.splitlines()[0] == "there is no path to 3"


STAMP: dict[str, Any] = {"epoch": [2, 17], "offsets": {"edges": {0: 5}}}


def column(values: list[Any], dtype: str) -> dict[str, Any]:
    return pack_column(np.array(values, dtype))


ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[list[str]]]] = {
    "get": (
        {"program": "hops", "vertices": [1, 2, 9], "parents": True},
        {
            "values": column([0, 3, 0], "<u4"),
            "null": pack_bitmap(np.array([False, True, True])),
            "parents": {"values": column([0, 1, 0], "<i8"), "null": pack_bitmap(np.array([True, False, True]))},
            "unknown": column([9], "<i8"),
            "stale": {"state": "quarantined", "stale_since": [2, 5], "reason": "it broke"},
        },
        [
            ["vertex", "hops", "hops", "parent"],
            ["1", "0", "-"],
            ["2", "-", "1"],
            ["hops", "is", "stale.reason", "it", "broke"],
            ["unknown:", "9"],
        ],
    ),
    "top": (
        {"program": "pagerank", "k": 2},
        {"ids": ["b", "a"], "values": column([0.5, 0.25], "<f8")},
        [["vertex", "pagerank"], ["b", "0.5"], ["a", "0.25"]],
    ),
    "path": (
        {"program": "hops", "target": 3},
        {"vertices": column([1, 2, 3], "<i8"), "value": 2, "weights": column([0.5, 4.0], "<f4")},
        [["vertex", "weight"], ["1", "-"], ["2", "0.5"], ["3", "4"], ["value", "2"]],
    ),
    "degree": (
        {"vertices": [1, 9]},
        {
            "out": column([3, 0], "<i8"),
            "in": column([1, 0], "<i8"),
            "null": pack_bitmap(np.array([False, True])),
            "unknown": column([9], "<i8"),
        },
        [["vertex", "out", "in"], ["1", "3", "1"], ["9", "-", "-"], ["unknown:", "9"]],
    ),
    "has_edge": (
        {"src": [1], "dst": [2]},
        {"exists": {"dtype": "|b1", "data": b"\x01"}},
        [["src", "dst", "exists"], ["1", "2", "yes"]],
    ),
    "khop": (
        {"vertex": 1, "k": 2},
        {"ids": column([1, 2], "<i8"), "distances": column([0, 1], "<u4"), "truncated": True},
        [["vertex", "distance"], ["1", "0"], ["2", "1"], ["truncated", "yes"]],
    ),
    "egonet": (
        {"vertex": 1},
        {
            "ids": column([1, 2], "<i8"),
            "truncated": False,
            "src": column([1, 2, 2], "<i8"),
            "dst": column([2, 1, 2], "<i8"),
            "weights": column([0.5, 1.0, 2.0], "<f4"),
            "size": 3,
        },
        [
            *(["vertex"], ["1"], ["2"]),
            *(["src", "dst", "weight"], ["1", "2", "0.5"], ["2", "1", "1"], ["2", "2", "2"]),
            *(["truncated", "no"], ["size", "3"]),
        ],
    ),
    "cross_edges": (
        {"src": [1], "dst": [7]},
        {"src": column([1], "<i8"), "dst": column([2], "<i8"), "size": 9, "unknown": column([7], "<i8")},
        [["src", "dst"], ["1", "2"], ["size", "9"], ["unknown:", "7"]],
    ),
    "component": (
        {"vertex": 1},
        {"label": 1, "size": 5, "members": column([1, 2], "<i8")},
        [["vertex"], ["1"], ["2"], ["label", "1"], ["size", "5"]],
    ),
    "neighbors": (
        {"vertex": 1},
        {"ids": column([], "<i8"), "cursor": None, "weights": column([], "<f4")},
        [["vertex", "weight"], ["cursor", "-"]],
    ),
    "programs": (
        {},
        {
            "programs": {
                "hops": {"kind": "bfs", "parameters": {"source": 1}, "scalars": {"reached": 12345678.0}},
                "lcc": {"kind": "lcc", "parameters": {}, "joined": [1, 20], "scalars": {"mean": 1 / 3}},
                "new": {"kind": "bfs", "parameters": {"source": 2}, "joined": None, "scalars": {}},
            }
        },
        [
            ["program", "kind", "parameters", "joined"],
            ["hops", "bfs", "source=1", "-"],
            ["lcc", "lcc", "-", "1.20"],
            ["new", "bfs", "source=2", "-"],
            ["program", "scalars"],
            ["hops", "reached=12345678"],
            ["lcc", "mean=0.333333"],
        ],
    ),
    "stats": (
        {},
        {
            "vertices": 3,
            "lag": {"unit": "bytes"},
            "audit": {"last_pass": {"ended": 1_700_000_000.5, "seconds": 2}},
            "checkpoint": {"offsets": {"edges": {0: 5}}},
            "order": {"barriers": [{"id": "a", "since": 1_700_000_000.5, "missing": [1, 2]}], "trouble": None},
            "window": {"event_time_ms": 1_700_000_000_500, "newest_ms": 2**62, "length_seconds": 60},
        },
        [
            ["vertices", "3"],
            ["lag.unit", "bytes"],
            ["audit.last_pass.ended", "2023-11-14", "22:13:20+00:00"],
            ["audit.last_pass.seconds", "2"],
            ["checkpoint.offsets.edges.0", "5"],
            ["order.barriers[0].id", "a"],
            ["order.barriers[0].since", "2023-11-14", "22:13:20+00:00"],
            ["order.barriers[0].missing", "1,", "2"],
            ["order.trouble", "-"],
            ["window.event_time_ms", "2023-11-14", "22:13:20+00:00"],
            ["window.newest_ms", str(2**62)],
            ["window.length_seconds", "60"],
        ],
    ),
    "wait": ({"min_offsets": {}, "timeout_ms": 70_000}, {}, []),
    "placement": (
        {"vertices": [1, 9]},
        {
            "sides": ["host", "device"],
            "host_rows": "owned",
            "vertices": [1, 4],
            "edges": [8, 6],
            "bytes": [100, 90],
            "device": {"name": "card", "lost": None},
            "headroom": 0.125,
            "applied": {"device": {"updates": 14, "seconds": 0.5}},
            "bus": {
                "bytes": {"zero_copy": 1280, "upload": 90, "download": 16},
                "edges_read": {"hops": {"device": 4, "zero_copy": 70}},
                "seconds": {
                    "device": {"predicted": 0.125, "measured": 0.25},
                    "zero_copy": {"predicted": 0.75, "measured": 1.5},
                },
                "gigabytes_per_second": {"hops": 22.5},
            },
            "policy": "cost",
            "rebalancing": {
                "frozen": False,
                "moved": {"vertices": 1, "last_failure": None},
                "decisions": [
                    {
                        **{"epochs_ago": 3, "reason": "headroom", "why": "short", "to_host": 8, "to_device": 0},
                        **{"predicted_s": 0.25, "gain_s": 0.0, "moved_edges": 8, "moved_s": 0.5, "state": "done"},
                    }
                ],
            },
            "owner": ["host", None],
            "degree": [8, None],
            "why": ["headroom", None],
            "unknown": column([9], "<i8"),
        },
        [
            ["side", "vertices", "edges", "bytes", "updates", "seconds"],
            ["host", "1", "8", "100", "0", "0"],
            ["device", "4", "6", "90", "14", "0.5"],
            ["way", "bytes", "predicted", "s", "took", "s"],
            ["device", "-", "0.125", "0.25"],
            ["zero_copy", "1280", "0.75", "1.5"],
            ["upload", "90", "-", "-"],
            ["download", "16", "-", "-"],
            ["program", "edges", "read,", "device", "edges", "read,", "zero_copy", "GB/s", "over", "the", "bus"],
            ["hops", "4", "70", "22.5"],
            [
                *("epochs", "ago", "reason", "to", "host", "to", "device"),
                *("moved", "predicted", "s", "took", "s"),
                "state",
                "why",
            ],
            ["3", "headroom", "8", "0", "8", "0.25", "0.5", "done", "short"],
            ["vertex", "owner", "degree", "why"],
            ["1", "host", "8", "headroom"],
            ["9", "-", "-", "-"],
            ["host_rows", "owned"],
            ["rebalancing.frozen", "no"],
            ["rebalancing.moved.last_failure", "-"],
            ["unknown:", "9"],
        ],
    ),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for a daemon: what was asked is listed, and ``ANSWERS`` are given."""
    seen: list[Any] = []

    class Answering:
        def __init__(self, address: str, *, token: str | None, ssl_context: object) -> None:
            seen.append((address, token))

        def __enter__(self) -> Answering:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append("closed")

        def call(self, method: str, params: dict[str, Any], *, timeout_ms: int) -> dict[str, Any]:
            seen.append((method, params))
            assert timeout_ms == params.get("timeout_ms", 0)
            if method not in ANSWERS:
                raise NotSupported(f"{method!r} is no method of the protocol")
            return {**STAMP, **ANSWERS[method][1]}

    monkeypatch.setattr(query, "Client", Answering)
    return seen


@pytest.mark.parametrize("method", ANSWERS)
def test_answers_are_tables_for_people(method: str, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    params, _, expected = ANSWERS[method]
    assert query.run_query("unix:/x", method, params, token="t", as_json=False) == 0
    assert asked == [("unix:/x", "t"), (method, params), "closed"]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in expected:
        assert line in lines
    assert lines[-1] == ["epoch", "2.17,", "offsets", '{"edges":', '{"0":', "5}}"]


def test_the_table_of_programs_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"state": "fresh", "error_bound": 0.000936629, "memory_bytes": 776708, "parameters": {}, "kept": False}
    scalars = {"norm": 5497.22, "error_bound": 0.000936629, "amplification": 1.21166}
    programs = {
        "pagerank": {"kind": "pagerank", **state, "joined": None, "scalars": scalars},
        "components": {"kind": "components", **state, "joined": None, "scalars": {"components": 1.0}},
        "bfs(4)": {"kind": "bfs", **state, "parameters": {"source": 4}, "joined": [1, 2], "scalars": {}},
    }
    shown = Console(file=io.StringIO(), width=80)
    query.show("programs", {}, {**STAMP, "programs": programs}, shown)
    assert isinstance(shown.file, io.StringIO)
    lines = shown.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:7]] == [
        "program", "pagerank", "components", "bfs(4)", "program", "pagerank", "components"
    ]  # fmt: skip


def test_degrees_are_shown_where_in_edges_are_not_kept(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"out": column([2, 0], "<i8"), "in": None, "null": b"\2", "unknown": column([9], "<i8")}
    monkeypatch.setitem(ANSWERS, "degree", ({}, found, []))
    assert query.run_query("unix:/x", "degree", {"vertices": [1, 9]}) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "2"] in lines and ["9", "-"] in lines and ["in", "-"] in lines


def test_names_that_users_gave_are_no_columns_of_an_answer() -> None:
    values = {"values": column([1], "<i8"), "null": None}
    named = {"results": {"null": values, "values": values}, "offsets": {"null": {0: 5}}}
    one = {"values": [1]}
    assert query.readable(named) == {"results": {"null": one, "values": one}, "offsets": {"null": {0: 5}}}


@pytest.mark.parametrize(
    "words",
    [
        "query unix:/x stats",
        "watch unix:/x pagerank",
        "top unix:/x",
        "export a.csv --address unix:/x",
        "checkpoint now unix:/x",
    ],
)
def test_every_command_that_asks_a_daemon_is_let_in_by_the_same_options(
    runner: CliRunner, tmp_path: Path, words: str
) -> None:
    (tmp_path / "key.pem").touch()
    done = runner.invoke(cli.app, [*words.split(), "--tls", "--tls-key", "key.pem"])
    assert done.exit_code == 2 and "--tls-key belongs to --tls-cert" in done.stderr, done.stderr
    done = runner.invoke(cli.app, [*words.split(), "--token-file", "none"])
    assert isinstance(done.exception, SystemExit) and "--token-file" in done.stderr, done.stderr


def test_answers_are_json_for_programs(runner: CliRunner, asked: list[Any]) -> None:
    arguments = ["query", "unix:/x", "get", "--program", "hops", "--vertices", "1,2,9", "--parents", "--json"]
    done = runner.invoke(cli.app, arguments)
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["values"] == [0, None, None] and answer["unknown"] == [9]
    assert answer["parents"]["values"] == [None, 1, None]
    assert (answer["epoch"], answer["offsets"]) == ([2, 17], {"edges": {"0": 5}})
    assert asked[1] == ("get", {"program": "hops", "vertices": [1, 2, 9], "parents": True})


def test_the_token_comes_from_the_environment_or_a_file(
    runner: CliRunner, asked: list[Any], tmp_path: Path
) -> None:
    assert runner.invoke(cli.app, ["query", "unix:/x", "wait"], env={"GRAPHTIDE_TOKEN": "one"}).exit_code == 0
    (tmp_path / "token").write_text("two\n")
    assert runner.invoke(cli.app, ["query", "unix:/x", "wait", "--token-file", "token"]).exit_code == 0
    assert [item[1] for item in asked if isinstance(item, tuple) and item[0] == "unix:/x"] == ["one", "two"]


def test_an_answer_without_values_says_how_to_have_some(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ANSWERS, "compute", ({}, {"error_bound": None, "seconds": 0.5}, []))
    assert query.run_query("unix:/x", "compute", {"program": "bfs", "source": 1}) == 0
    assert "--top 10 or --vertices 1,2,3" in capsys.readouterr().out
    found = {"ids": column([7], "<i8"), "values": column([1], "<i8"), "null": None, "seconds": 0.5}
    monkeypatch.setitem(ANSWERS, "compute", ({}, found, []))
    assert query.run_query("unix:/x", "compute", {"program": "bfs", "source": 1, "top": 1}) == 0
    assert "--top" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("produce edges.csv", "give either --spool DIR or --kafka HOST:PORT"),
        ("produce --kafka a:1 edges.csv", "--kafka and --topic belong together"),
        ("query 127.0.0.1:7420 stats", "'127.0.0.1:7420' is no address"),
        ("query unix:/x get program=bfs", "'program' stands alone"),
        ("export a.csv", "give either --address ADDRESS or --checkpoint DIR"),
        ("dead-letters list", "give either DIR, or --kafka and --topic"),
    ],
)
def test_what_is_wrong_with_no_argument_alone_is_no_invalid_value(
    runner: CliRunner, arguments: str, said: str
) -> None:
    done = runner.invoke(cli.app, arguments.split())
    assert done.exit_code == 2 and said in done.stderr and "Invalid value" not in done.stderr


def test_errors_of_queries_are_one_line_and_a_code(runner: CliRunner, asked: list[Any]) -> None:
    done = runner.invoke(cli.app, ["query", "unix:/x", "gte"])
    assert (done.exit_code, done.stderr) == (1, "graphtide: 'gte' is no method of the protocol\n")


def test_who_is_asked_for_a_token_is_told_how_to_give_one(
    runner: CliRunner, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Unauthorized("this server asks for a token")

    monkeypatch.setattr(query.Client, "call", refuse)
    done = runner.invoke(cli.app, ["query", "unix:/x", "stats"])
    assert done.stderr == "graphtide: this server asks for a token (GRAPHTIDE_TOKEN, or --token-file)\n"


def test_a_daemon_that_is_not_there_is_one_line_and_worth_trying_again(runner: CliRunner) -> None:
    done = runner.invoke(cli.app, ["query", "unix:./none", "stats"])
    assert done.exit_code == 3
    assert done.stderr.startswith("graphtide: cannot connect to unix:./none: ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("; no daemon listens there\n")


def test_wrong_usage_of_a_query_exits_with_2(runner: CliRunner) -> None:
    for arguments in (["http://x", "get"], ["unix:/x", "get", "--program", "a", "stray"]):
        assert runner.invoke(cli.app, ["query", *arguments]).exit_code == 2


@pytest.mark.parametrize(("kind", "sent"), [("string", ["7", "b", "-1"]), ("int", None)])
def test_numbers_are_texts_where_ids_are(
    kind: str, sent: list[str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked so only once it was refused."""
    asked: list[Any] = []
    _, answer, _ = ANSWERS["degree"]
    refused = RequestError("vertices has 7: the ids of this graph are ...", {"parameter": "vertices"})

    def call(_: Any, method: str, params: Any, **__: Any) -> dict[str, Any]:
        asked.append(params.get("vertices", method))
        if len(asked) == 1:
            raise refused
        return {**STAMP, **answer, "unknown": ["b"]}

    monkeypatch.setattr(query.Client, "call", call)

    def entered(client: Any) -> Any:
        client.server = {"graph": {"vertex_ids": kind}}
        return client

    monkeypatch.setattr(query.Client, "__enter__", entered)
    vertices = [7, "b", -1]
    if sent is None:
        with pytest.raises(RequestError, match="--vertices has 7"):
            query.run_query("unix:/x", "degree", {"vertices": vertices})
        assert asked == [vertices]
        return
    query.run_query("unix:/x", "degree", {"vertices": vertices}, as_json=True)
    assert asked == [vertices, sent]
    assert json.loads(capsys.readouterr().out)["unknown"] == ["b"]


INTERRUPTED_WHILE_IT_LOADS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background inherits that it is ignored
from graphtide.__main__ import main

class Interrupting:
    module = sys.argv.pop(1)

    def find_spec(self, name, *_):
        if name == self.module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
main()
"""


@pytest.mark.parametrize("module", ["typer", "pydantic", "graphtide.daemon.config.settings"])
def test_an_interrupt_while_it_loads_leaves_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_IT_LOADS, module, "config"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


STOPPED_WHILE_IT_LOADS = """
import os, signal, sys
from graphtide.__main__ import main

own, os.getpid = os.getpid(), lambda: 1

class Stopping:
    def find_spec(self, name, *_):
        if name == "graphtide.daemon.config.settings":
            os.kill(own, signal.SIGTERM)

sys.meta_path.insert(0, Stopping())
main()
"""


def test_the_first_process_of_a_container_ends_when_it_is_stopped_while_it_loads() -> None:
    """The system would pass over a signal that such a process does not listen for, and kill it much later."""
    command = [sys.executable, "-c", STOPPED_WHILE_IT_LOADS, "config"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, b"", b"")


STOPPED_AT_A_START = """
import os, signal, sys
from graphtide.__main__ import main

class Stopping:
    module = sys.argv.pop(1)

    def find_spec(self, name, *_):
        if name == self.module:
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stopping())
main()
"""


@pytest.mark.parametrize("module", ["graphtide.daemon.config.settings", "graphtide.daemon.service"])
def test_a_daemon_that_is_stopped_while_it_loads_ends_as_every_one_that_is_stopped(
    tmp_path: Path, module: str
) -> None:
    command = [sys.executable, "-c", STOPPED_AT_A_START, module, "run", "--set", "log.format=plain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 0 and line.endswith(": stopped before the first epoch, while libraries are loaded")
    assert not [*tmp_path.iterdir()]


def test_a_signal_when_all_is_closed_does_not_make_a_good_end_of_it(tmp_path: Path) -> None:
    script = """
import signal
from graphtide.daemon.signals import handled_signals, stopped_while_it_loads

with stopped_while_it_loads():
    with handled_signals(lambda: None, lambda: None):
        pass
    signal.raise_signal(signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")


def test_of_very_many_files_a_table_shows_the_foremost(capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"{number:04}.json": number for number in range(4000)}
    few = {"b.json": 3, "a.json": 0}
    result = {"epoch": [1, 2], "offsets": files, "lag": {"amount": {**files, "0007.json": 9999}, "unit": "bytes"}}
    query.show("stats", {}, result, query.output())
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 20
    assert shown.split()[:2] == ["lag.amount.0007.json", "9999"]
    assert "3990, none of them larger" in shown
    assert '"3999.json": 3999} and of 3990 more' in " ".join(shown.split())
    query.show("stats", {}, {**result, "offsets": few, "lag": {"amount": few}}, query.output())
    assert capsys.readouterr().out.split()[:4] == ["lag.amount.b.json", "3", "lag.amount.a.json", "0"]
