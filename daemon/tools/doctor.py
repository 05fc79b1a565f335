"""``graphtide doctor``: can the daemon run here, and will it run well? Every finding comes with a hint.

A check is a function from the configuration to findings. A check that itself fails is a finding, not a crash.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import importlib
import json
import os
import platform
import resource
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from ...gpma.cores import usable_cores
from ..client.addresses import SOCKET_HERE, UnixAddress, from_home, parse_address, parse_http_address
from ..config.secrets import read_secret
from ..config.settings import Config
from ..errors import ConfigError, GraphtideError
from ..os_errors import require_address_space, require_compiler, require_descriptors, why
from ..serve.listening import TlsFiles, checked_tls, group_id_of, is_stale, others_may_write

if TYPE_CHECKING:
    from ..ingest.topic_settings import TopicSettings

Status = Literal["ok", "warn", "fail"]

MEMORY_WARN_BYTES = 2 << 30
DESCRIPTORS_WARN = 256
"""So many beside connections are plenty."""
WRITTEN_BYTES = 1 << 16
"""So much is written to see whether there is any room at all."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
KAFKA_TIMEOUT_MS = 5_000
PACKAGE = f"{__name__.partition('.daemon.')[0]}."
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    status: Status
    found: str
    hint: str = ""


Check = Callable[[Config], Iterator[Finding]]


def examine(config: Config) -> list[Finding]:
    """Run every check."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(config)
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(Finding(name, "fail", f"{type(error).__name__}: {error}", "the check itself failed"))
    return findings


def report(config: Config, *, as_json: bool = False) -> int:
    """Print the findings; 1 when one of them stops the daemon, else 0."""
    findings = examine(config)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from rich.text import Text

        from ..terminal import output, table

        shown = table(("check", "", "found", "hint"), [])
        for finding in findings:
            status = Text(finding.status, style=STYLES[finding.status])
            shown.add_row(finding.check, status, Text(finding.found), Text(finding.hint))
        output().print(shown)
    return int(any(finding.status == "fail" for finding in findings))


# -- the machine ------------------------------------------------------------------------------------------


def _python(config: Config) -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    hint = "" if good else "graphtide needs Python 3.11 or newer"
    found = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("python", "ok" if good else "fail", found, hint)
    linux = sys.platform == "linux"
    hint = "" if linux else "results are shared through memfd, which only Linux has"
    yield Finding("system", "ok" if linux else "fail", platform.platform(), hint)


def _cores(config: Config) -> Iterator[Finding]:
    cores = usable_cores()
    found = f"{cores} of {os.cpu_count()} may be used, {config.compute.thread_count()} threads configured"
    if config.compute.thread_count() > cores:
        yield Finding("cores", "warn", found, f"compute.threads above {cores} makes threads wait for each other")
    elif cores < 2:
        yield Finding("cores", "warn", found, "with one core reading and computing take turns")
    else:
        yield Finding("cores", "ok", found)


def _memory(config: Config) -> Iterator[Finding]:
    from ..terminal import size

    memory = psutil.virtual_memory()
    enough = memory.available >= MEMORY_WARN_BYTES
    hint = "" if enough else "an edge takes some tens of bytes; free memory or keep the graph small"
    found = f"{size(memory.available)} of {size(memory.total)} free"
    yield Finding("memory", "ok" if enough else "warn", found, hint)


def _shared_memory(config: Config) -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("graphtide-doctor"))
    except (AttributeError, OSError) as error:
        yield Finding("memfd", "fail", str(error), "results are shared through memfd: needs Linux 3.17 or newer")
    else:
        yield Finding("memfd", "ok", "anonymous shared memory works")


def _limits(config: Config) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = config.server.limits
    needed = limits.connections_max + limits.strangers_max + DESCRIPTORS_WARN
    found = f"soft {_limit(soft)}, hard {_limit(hard)}"
    try:
        require_descriptors()
    except ConfigError as error:
        yield Finding("open files", "fail", error.message)
    else:
        enough = soft == resource.RLIM_INFINITY or soft >= needed
        hint = "" if enough else f"server.limits.connections_max asks for about {needed}: raise it with ulimit -n"
        yield Finding("open files", "ok" if enough else "warn", found, hint)
    try:
        require_address_space(config.compute.thread_count())
    except ConfigError as error:
        yield Finding("address space", "fail", error.message)
    # Only copies to a GPU are locked, so that no value of this limit is too low for the host.
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield Finding("locked memory", "ok", f"soft {_limit(soft)}, hard {_limit(hard)} bytes")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


# -- what is installed ------------------------------------------------------------------------------------


def _packages(config: Config) -> Iterator[Finding]:
    for name, module, hint in (
        ("numba", "numba", "pip install numba"),
        ("crc32c", "crc32c", "pip install crc32c: without it records are read 500 times slower"),
        ("lz4", "lz4.frame", "pip install lz4: compressed topics cannot be read"),
        ("zstandard", "zstandard", "pip install zstandard: compressed topics and .zst files cannot be read"),
        ("kafka-python", "kafka", "pip install 'kafka-python>=3.0.12'"),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            yield Finding(name, "fail", str(error), hint)
        else:
            yield Finding(name, "ok", _version(name))
    if find_spec("uvloop") is None:
        yield Finding("uvloop", "warn", "missing", "pip install uvloop: half the tail latency of queries")
    else:
        yield Finding("uvloop", "ok", _version("uvloop"))
    if find_spec("pyarrow") is not None:
        yield Finding("pyarrow", "ok", _version("pyarrow"))
    elif config.source.kind == "kafka" and config.source.encoding == "arrow":
        yield Finding(
            "pyarrow", "fail", 'missing, and source.encoding is "arrow"', "pip install 'graphtide[arrow]'"
        )
    else:
        yield Finding("pyarrow", "ok", "missing; only Arrow and Parquet need it")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "present"


def _numba(config: Config) -> Iterator[Finding]:
    from ...gpma import runtime

    try:
        require_compiler()
    except ConfigError as error:
        yield Finding("numba", "fail", error.message)
    folder = runtime.cache_directory()
    if _may_write(folder):
        yield Finding("kernel cache", "ok", str(folder))
    else:
        hint = "set NUMBA_CACHE_DIR to a writable folder, else every start compiles for a minute"
        yield Finding("kernel cache", "warn", f"{folder} cannot be written", hint)


def _gpu(config: Config) -> Iterator[Finding]:
    from ...gpma.device import card
    from ..memory import budget_bytes
    from ..terminal import size

    if config.device.enabled == "off":
        yield Finding("gpu", "ok", "device.enabled is off; the host computes")
        return
    try:
        found = card.find_card()
    except card.NoDevice as error:
        if config.device.enabled == "on":
            hint = "device.enabled is on, so that the daemon refuses to start without a device"
            yield Finding("gpu", "fail", str(error), hint)
        elif ctypes.util.find_library("cuda") is None:
            yield Finding("gpu", "ok", "no CUDA driver; the host computes")
        else:
            yield Finding("gpu", "ok", f"{error}; the host computes")
    else:
        limit = budget_bytes(config.device.memory, found.memory_bytes)
        allowed = "" if limit is None else f", of which {size(limit)} may be taken"
        yield Finding("gpu", "ok", f"{found}{allowed}{_rows(config)}")


def _rows(config: Config) -> str:
    """Which rows a device would have, where that is not all of them."""
    if config.partition.host_rows != "owned":
        return ""
    return f"; each row is on one side, by the policy {config.partition.policy}"


# -- what the configuration names --------------------------------------------------------------------------


def _working_directory(_: Config) -> Iterator[Finding]:
    try:
        os.getcwd()
    except OSError as error:
        yield Finding("working directory", "fail", f"it cannot be used: {why(error)}", "start from another one")


def _directories(config: Config) -> Iterator[Finding]:
    folders = {"checkpoint.path": config.checkpoint.path, "dead_letters.path": config.dead_letters.path}
    if config.source.kind == "spool":
        folders["source.path"] = config.source.path
        if (unheeded := config.source.unheeded_encoding()) is not None:
            yield Finding("source.encoding", "warn", unheeded, "name files so, and leave the setting out")
    if config.results.kind == "spool":
        folders["results.path"] = config.results.path
    for key, folder in folders.items():
        try:
            _write_there(folder)
        except OSError as error:
            who = f"user {os.geteuid()}"
            room = "make room" if error.errno in NO_ROOM else f"give {who} a folder that it may write"
            yield Finding(key, "fail", f"{folder} cannot be written: {why(error)}", room)
        else:
            there = "" if folder.is_dir() else " (will be made)"
            if _may_all_write(folder):
                hint = f"who may write it may change the graph: chmod o-w {folder}"
                yield Finding(key, "warn", f"every user may write {folder}", hint)
            else:
                yield Finding(key, "ok", f"{folder}{there}")


def _may_write(folder: Path) -> bool:
    try:
        _write_there(folder)
    except OSError:
        return False
    return True


def _write_there(folder: Path) -> None:
    """Write a file that goes at once, in the folder, or in the nearest one that exists.

    Raises:
        OSError: it cannot be.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(WRITTEN_BYTES))


def _may_all_write(folder: Path) -> bool:
    return folder.is_dir() and bool(folder.stat().st_mode & stat.S_IWOTH)


def _secrets(config: Config) -> Iterator[Finding]:
    if config.server.token_file is not None:
        yield _secret_file("server.token_file", config.server.token_file, config.server.read_tokens)
    if config.server.admin_token_file is not None:
        file = config.server.admin_token_file
        yield _secret_file("server.admin_token_file", file, config.server.read_admin_tokens)
    if (password := config.source.registry.password_file) is not None:
        yield _secret_file("source.registry.password_file", password, config.source.registry.read_password)
    for section, client in (("source", config.source.client), ("results", config.results.client)):
        for option, value in client.items():
            if option.endswith("_file"):
                key, path = f"{section}.client.{option}", Path(from_home(str(value)))
                yield _secret_file(key, path, partial(read_secret, key, path))


def _secret_file(key: str, path: Path, read: Callable[[], object]) -> Finding:
    try:
        read()
    except GraphtideError as error:
        return Finding(key, "fail", error.message, "make the file, readable by the daemon's user only")
    if path.stat().st_mode & 0o077:
        return Finding(key, "warn", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding(key, "ok", str(path))


def _addresses(config: Config) -> Iterator[Finding]:
    doors = [("listen", text, parse_address(text)) for text in config.server.listen]
    doors += [("http", text, parse_http_address(text).place) for text in config.server.http]
    for check, text, address in doors:
        if isinstance(address, UnixAddress):
            folder = Path(address.path).parent
            if not _may_write(folder):
                yield Finding(check, "fail", text, "the folder of the socket must be writable")
            elif others_may_write(folder):
                hint = (
                    "others can take the name first, and PrivateTmp= of a unit hides /tmp: use a folder of its own"
                )
                refused = address.path == SOCKET_HERE
                yield Finding(
                    check, "fail" if refused else "warn", f"{text}: others may write {folder.absolute()}", hint
                )
            else:
                yield _unix(check, text, address.path)
        else:
            yield _tcp(check, text, address.host, address.port)
    if (metrics := config.metrics.address()) is not None:
        yield _tcp("metrics.listen", config.metrics.listen, metrics.host, metrics.port)


def _unix(check: str, text: str, path: str) -> Finding:
    try:
        is_stale(path)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Finding(check, "warn", f"{text}: somebody listens there", "is a daemon running already?")
        return Finding(check, "fail", f"{text}: {why(error)}", "name another path")
    return Finding(check, "ok", text)


def _socket_group(config: Config) -> Iterator[Finding]:
    if (name := config.server.socket_group) is None:
        return
    try:
        number = group_id_of(name)
    except ConfigError as error:
        yield Finding("server.socket_group", "fail", error.message, "make it (ops/systemd has a sysusers file)")
        return
    if os.geteuid() == 0 or number in (os.getegid(), *os.getgroups()):
        yield Finding("server.socket_group", "ok", name)
    else:
        hint = f"usermod -aG {name} USER, or SupplementaryGroups={name} in the unit"
        yield Finding("server.socket_group", "fail", f"user {os.geteuid()} is not in {name}", hint)


def _tls(config: Config) -> Iterator[Finding]:
    for key, tls in (("server.tls", config.server.tls), ("metrics.tls", config.metrics.tls)):
        files = TlsFiles.of(tls)
        if files is None:
            continue
        try:
            checked_tls(files)
        except ConfigError as error:
            yield Finding(key, "fail", error.message, "PEM files that the daemon's user may read")
        else:
            yield Finding(key, "ok", files.certificate)


def _tcp(check: str, text: str, host: str, port: int) -> Finding:
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Finding(check, "warn", f"{text}: {error.strerror}", "is a daemon running already?")
        low = isinstance(error, PermissionError)
        hint = (
            "name a port from 1024 on, or grant CAP_NET_BIND_SERVICE" if low else "name an address of this machine"
        )
        return Finding(check, "fail", f"{text}: {error.strerror}", hint)
    return Finding(check, "ok", text)


def _kafka(config: Config) -> Iterator[Finding]:
    if config.source.kind != "kafka":
        return
    from kafka import KafkaConsumer

    from ..ingest.kafka_client import disconnect
    from ..ingest.topic_settings import meant

    servers = ", ".join(config.source.bootstrap_servers)
    try:
        client = config.source.client_options()
        consumer = _connected(KafkaConsumer, config.source.bootstrap_servers, client)
    except Exception as error:  # the client's options can fail in as many ways as there are options
        hint = "check source.bootstrap_servers, source.client and the network"
        yield Finding("kafka", "fail", f"{servers}: {error}", hint)
        return
    try:
        yield Finding("kafka", "ok", servers)
        known = consumer.topics()
        for topic in config.source.topics:
            if topic in known:
                yield from _topic(config, consumer, topic, client)
            else:
                hint = f"create it, or let this user describe it{meant([topic], known)}"
                yield Finding(f"topic {topic}", "fail", "not there", hint)
    finally:
        disconnect(consumer)


def _connected(kind: Callable[..., Any], servers: Sequence[str], client: Mapping[str, Any]) -> Any:
    """A client of kafka-python with these options: one that does not look long for its cluster."""
    from ..ingest.kafka_client import connect

    return connect(
        kind,
        client,
        bootstrap_servers=list(servers),
        bootstrap_timeout_ms=KAFKA_TIMEOUT_MS,
        request_timeout_ms=KAFKA_TIMEOUT_MS,
    )


def _settings_of(topic: str, servers: Sequence[str], client: Mapping[str, Any]) -> TopicSettings | None:
    """Those of a topic; None: this user may not see them."""
    from kafka import KafkaAdminClient

    from ..ingest.topic_settings import read_topic_settings

    with contextlib.closing(_connected(KafkaAdminClient, servers, client)) as admin:
        return read_topic_settings(admin, [topic]).get(topic)


def _unseen(check: str) -> Finding:
    found = "its settings cannot be seen, so whether it is compacted is not known"
    return Finding(check, "warn", found, "let this user describe its configs")


def _topic(config: Config, consumer: Any, topic: str, client: Mapping[str, Any]) -> Iterator[Finding]:
    from kafka import TopicPartition

    from ..ingest.topic_settings import (
        beginning_problem,
        compaction_problem,
        retention_problem,
        tombstone_problem,
    )

    name = f"topic {topic}"
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    yield Finding(name, "ok", f"{len(partitions)} partitions")
    settings = _settings_of(topic, config.source.bootstrap_servers, client)
    if settings is None:
        yield _unseen(name)
    else:
        problem = compaction_problem(topic, settings)
        if problem and config.source.keyed:
            yield Finding(name, "ok", "it is compacted, and keys stand for edges (source.keyed)")
            if lost := tombstone_problem(topic, settings, config.checkpoint.reach()):
                yield Finding(name, "warn", lost, "raise delete.retention.ms of the topic")
        elif problem:
            accepted = config.source.compacted == "accept"
            hint = 'set cleanup.policy=delete; only where keys are edges source.compacted = "accept"'
            yield Finding(name, "warn" if accepted else "fail", problem, "" if accepted else hint)
        if problem := retention_problem(topic, settings, config.checkpoint.reach()):
            yield Finding(name, "warn", problem, "raise that of the topic, or lower checkpoint.interval")
    if config.source.start == "earliest":
        begins = consumer.beginning_offsets(partitions)
        cut = [tp for tp in partitions if begins[tp]]
        if cut and (problem := beginning_problem(f"{topic}/{cut[0].partition}", begins[cut[0]])):
            others = f" (and so do {len(cut) - 1} others)" if len(cut) > 1 else ""
            hint = "only a checkpoint holds it; without one write the graph to the topic again"
            yield Finding(name, "warn", f"{problem}{others}", hint)


def _registry(config: Config) -> Iterator[Finding]:
    from ..ingest.sources import make_registry

    if config.source.registry.url is None:
        return
    try:
        registry = make_registry(config)
        assert registry is not None
        found = registry.check()
    except GraphtideError as error:
        hint = "check source.registry and the network; records wait for their schemas meanwhile"
        yield Finding("registry", "fail", error.message, hint)
    else:
        yield Finding("registry", "ok", found)


def _window(config: Config) -> Iterator[Finding]:
    window, source = config.window, config.source
    if window.count is not None:
        yield Finding("window", "ok", f"the newest {window.count:,} edges last")
    if window.length is None:
        return
    from ..terminal import duration

    found = f"edges last {duration(window.length)}"
    own_columns = source.columns.model_fields_set and source.columns.ts is None
    if source.kind == "spool" and (own_columns or (source.csv_columns and "ts" not in source.csv_columns)):
        hint = "name the column of times (ts): inserts without one are refused, and a spool has no other times"
        yield Finding("window", "warn", f"{found}, and updates have no time", hint)
    elif window.idle_timeout > window.length:
        hint = "event time waits longer for a silent partition than edges last: lower window.idle_timeout"
        yield Finding("window", "warn", f"{found}, and a silent partition is waited for longer", hint)
    else:
        yield Finding("window", "ok", found)


def _results(config: Config) -> Iterator[Finding]:
    if config.results.kind != "kafka":
        return
    from kafka import KafkaConsumer

    from ..ingest.kafka_client import disconnect

    topic = config.results.topic
    name = f"results {topic}"
    servers, client = config.results_servers()
    try:
        consumer = _connected(KafkaConsumer, servers, client)
    except Exception as error:  # as in ``_kafka``
        hint = "check results.bootstrap_servers, results.client (or the source's) and the network"
        yield Finding(name, "fail", f"{', '.join(servers)}: {error}", hint)
        return
    try:
        if topic not in consumer.topics():
            hint = "create it with cleanup.policy=compact, or let this user describe it"
            yield Finding(name, "fail", "not there", hint)
            return
        yield Finding(name, "ok", f"{len(consumer.partitions_for_topic(topic) or ())} partitions")
    finally:
        disconnect(consumer)
    settings = _settings_of(topic, servers, client)
    if settings is None:
        yield _unseen(name)
    elif not settings.compacted:
        hint = "set cleanup.policy=compact, so that the newest value of each vertex stays"
        yield Finding(name, "warn", "it is not compacted: it grows for ever, or loses values by age", hint)
    elif settings.retention_s is not None:
        hint = "set cleanup.policy=compact alone"
        found = f"it loses values that are older than {settings.retention_s:g} s (retention.ms)"
        yield Finding(name, "warn", found, hint)


def _programs(config: Config) -> Iterator[Finding]:
    """Those of modules of one's own: whether they can be made. What only compiling them tells, a start does."""
    if not config.compute.python_modules:
        return
    from ...compute import registry
    from ...compute.program import ProgramError
    from ...gpma.index.vertex_index import VertexIndex

    order = VertexIndex.create(config.graph.vertex_ids)
    for program in config.program:
        module = registry.program_class(program.name).__module__
        if module.startswith(PACKAGE):
            continue
        name = f"program {program.id or program.name}"
        try:
            registry.make_program(program.name, program.id, program.parameters, order)
        except ProgramError as error:
            yield Finding(name, "fail", str(error), f"mend it in {module} (docs/programs.md)")
        else:
            yield Finding(name, "ok", f"can be made, from {module}")


CHECKS: tuple[Check, ...] = (
    *(_python, _cores, _memory, _shared_memory, _limits),
    *(_packages, _numba, _gpu, _programs),
    *(
        _working_directory,
        _directories,
        _secrets,
        _tls,
        _socket_group,
        _addresses,
        _kafka,
        _registry,
        _window,
        _results,
    ),
)
