"""What a process takes: memory, processor time, open descriptors, under the library's names.

The library's collector opens two files of ``/proc`` and lists one of its folders, for each process anew. For each
of these calls, and for each descriptor that it lists, it lets the interpreter go, which beside ingest is another
thread's for up to a millisecond then. Here that is four times.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .numbers import NumberFamily, Reading

STAT_BYTES_MAX = 4096


class Process(Collector):
    """A process that may come and go; nothing is shown where there is none, or no ``/proc``."""

    def __init__(
        self, pid: Callable[[], int] = os.getpid, *, prefix: str = "", registry: CollectorRegistry
    ) -> None:
        """``prefix``: before names. ``pid``: asked whenever metrics are read; 0: there is none."""
        self._pid = pid
        self._prefix = f"{prefix}process_"
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page_bytes = resource.getpagesize()
        self._booted = _booted_seconds()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        pid = self._pid()
        try:
            if pid:
                yield from self._of(pid)
        except OSError:  # it has ended
            return

    def _of(self, pid: int) -> Iterator[Metric]:
        # proc_pid_stat(5), from its third field on: the name before it may hold anything.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        user, system, started, virtual, resident = (float(fields[place]) for place in (11, 12, 19, 20, 21))
        yield self._family("gauge", "virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
        help = "Resident memory size in bytes."
        yield self._family("gauge", "resident_memory_bytes", help, resident * self._page_bytes)
        help = "Start time of the process since unix epoch in seconds."
        yield self._family("gauge", "start_time_seconds", help, started / self._ticks + self._booted)
        help = "Total user and system CPU time spent in seconds."
        yield self._family("counter", "cpu_seconds", help, (user + system) / self._ticks)
        yield self._family("gauge", "open_fds", "Number of open file descriptors.", _open_descriptors(pid))
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        help = "Maximum number of open file descriptors."
        yield self._family("gauge", "max_fds", help, float("inf") if most == resource.RLIM_INFINITY else most)

    def _family(self, kind: str, name: str, help: str, value: float) -> NumberFamily:
        return NumberFamily(kind, self._prefix + name, help, lambda: [Reading((), value)])


def _open_descriptors(pid: int) -> int:
    """The folder's size is their number since Linux 6.2; 0 before."""
    folder = f"/proc/{pid}/fd"
    return os.stat(folder).st_size or len(os.listdir(folder))


def _booted_seconds() -> float:
    """When the machine was started, in seconds since 1970; 0 where there is no ``/proc``."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _read(path: str) -> bytes:
    """A file of one piece, by three system calls."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, STAT_BYTES_MAX)
    finally:
        os.close(fd)
