"""Logging to standard error: for people on a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import time
from typing import Literal

import orjson

Format = Literal["auto", "human", "plain", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# The priorities of syslog, which journald reads from the start of a line.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class PlainFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO graphtide.daemon.service: message``; under systemd with the priority."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime
        self.journal = journal

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self.journal:
            return text
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in text.splitlines())


class JsonFormatter(PlainFormatter):
    """One JSON object a line: time, level, logger, thread, message, ``extra`` fields and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def handler(format: Format) -> logging.Handler:
    """A handler for standard error in this format."""
    if format == "auto":
        format = "human" if sys.stderr.isatty() else "plain"
    if format == "human":
        from rich.logging import RichHandler

        from .terminal import errors

        human = RichHandler(console=errors(), show_path=False, log_time_format="%H:%M:%S", rich_tracebacks=False)
        human.setFormatter(logging.Formatter("%(message)s"))  # it has a column for the level
        return human
    stream = logging.StreamHandler(sys.stderr)
    # systemd sets JOURNAL_STREAM to the device and inode of the stream that it reads.
    stat = os.fstat(2)
    journal = os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
    stream.setFormatter(JsonFormatter() if format == "json" else PlainFormatter(journal=journal))
    return stream


def say_at_once(message: str, name: str, level: int = logging.WARNING) -> None:
    """One line in the form of the others, for who is about to end the process and may wait for nothing: neither
    for a lock that the thread which it interrupts may hold, nor for whoever should read standard error."""
    record = logging.LogRecord(name, level, "", 0, message, (), None)
    formatters = [one.formatter for one in logging.getLogger().handlers if one.formatter is not None]
    line = f"{formatters[0].format(record) if formatters else f'graphtide: {message}'}\n".encode(
        errors="backslashreplace"
    )
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, line[: select.PIPE_BUF])


def configure(level: str, format: Format = "auto") -> None:
    """Send everything from this level on to standard error; replaces what was set up before."""
    logging.basicConfig(level=level.upper(), handlers=[handler(format)], force=True)
    logging.captureWarnings(True)
    # The client library reports each lost connection as an error; the source says what matters.
    if logging.getLogger().level > logging.DEBUG:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        logging.getLogger("numba").setLevel(logging.WARNING)
    else:
        logging.getLogger("kafka").setLevel(logging.NOTSET)
        logging.getLogger("numba").setLevel(logging.INFO)
