"""The real daemon as a child process, for tests and benchmarks' sake."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.daemon.errors import GraphtideError, Unavailable


def toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML: tables of scalars and arrays, and arrays of tables, which is all that configs use."""
    lines: list[str] = []
    for section, table in settings.items():
        if isinstance(table, list):
            for item in table:
                lines.append(f"[[{section}]]")
                lines += [f"{key} = {_value(value)}" for key, value in item.items()]
        else:
            lines.append(f"[{section}]")
            lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


class Daemon:
    """``graphtide run`` in a folder of its own: ``spool/``, ``checkpoints/``, ``dead-letters/``, ``log``.

    Start it as often as you like; the folder stays.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any] | None = None, program: Sequence[str] = ("-m", "graphtide")
    ) -> None:
        """``program``: what Python runs."""
        self.folder = folder
        self.program = program
        self.spool = folder / "spool"
        self.spool.mkdir(parents=True, exist_ok=True)
        # A Unix socket's path has room for about a hundred characters; test folders can be deeper.
        self._socket_folder = tempfile.TemporaryDirectory(prefix="gt-")
        self.address = f"unix:{self._socket_folder.name}/s"
        defaults: dict[str, Any] = {
            "source": {"kind": "spool", "path": self.spool},
            "dead_letters": {"path": folder / "dead-letters"},
            "checkpoint": {"path": folder / "checkpoints", "interval": 3600},
            "server": {"listen": [self.address], "limits": {"timeout_ms_default": int(PATIENCE_S * 1000)}},
            "metrics": {"listen": "off"},
            "audit": {"full_every_epoch": True},
            "log": {"format": "plain"},
        }
        for section, table in (settings or {}).items():
            defaults[section] = {**defaults.get(section, {}), **table} if isinstance(table, Mapping) else table
        self.settings = defaults
        self.config = folder / "graphtide.toml"
        self.config.write_text(toml(defaults))
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, kill_at: str | None = None, ready_s: float | None = PATIENCE_S) -> Daemon:
        """Start the process; wait until it answers unless ``ready_s`` is None."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("GRAPHTIDE_KILL_AT", None)
        if kill_at is not None:
            environment["GRAPHTIDE_KILL_AT"] = kill_at
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "run", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
            )
        if ready_s is not None:
            self.wait_ready(ready_s)
        return self

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until a client is answered."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"the daemon ended before it was ready:\n{self.log_tail()}")
            try:
                with self.client() as client:
                    client.stats()
                return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the daemon was not ready in time:\n{self.log_tail()}") from None
                time.sleep(0.05)

    def listen(self, address: str, *, token: str) -> None:
        """Listen at this address, too, from the next start on, and ask for a token."""
        self.settings["server"] = {**self.settings["server"], "listen": [self.address, address], "token": token}
        self.config.write_text(toml(self.settings))

    def client(self) -> Client:
        """A client of this daemon, with its token."""
        return Client(self.address, token=self.settings["server"].get("token"), timeout=360)

    def answers(self) -> bool:
        """Whether a client is answered."""
        try:
            with self.client() as client:
                client.stats()
        except GraphtideError:
            return False
        return True

    def query_server(self) -> psutil.Process:
        """The process that answers queries; the engine's child, the template, has forked it.

        Raises:
            psutil.NoSuchProcess: the daemon has ended.
        """
        assert self.process is not None
        engine = psutil.Process(self.process.pid)

        def forked() -> psutil.Process | None:
            if self.process is None or self.process.poll() is not None:
                raise psutil.NoSuchProcess(engine.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                for template in engine.children():
                    for server in template.children():
                        return server
            return None

        return until(forked)

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def killed_somewhere(self, place: str, write: Callable[[], None], within_s: float = 8.0) -> None:
        """Start it, and write until it has been killed at a failpoint (``name:count``), or by us after a while."""
        print(f"killed at {place}")
        self.start(kill_at=place, ready_s=None)
        assert self.process is not None
        deadline = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < deadline:
            write()
            time.sleep(0.05)
        self.kill()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the daemon wrote."""
        if not self.log.exists():
            return "(nothing was logged)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Make sure that nothing runs any more."""
        self.kill()
        self._socket_folder.cleanup()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
