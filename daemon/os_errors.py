"""What errors say to an operator, the system's above all."""

from __future__ import annotations

import errno
import os
import resource

from .errors import ConfigError

_NOT_COMPILED = "NUMBA_DISABLE_JIT"

SOCKET_PATH_BYTES = 107
"""The longest path that a Unix socket can have on Linux."""

ADDRESS_SPACE_MIN, BESIDE_THREADS = 640 << 20, 384 << 20
"""What loading takes, and what a start without a graph takes beside its team's threads, as measured with 1 to 64
of them. With less a daemon may not come up: libraries that get none fail in many ways, or wait for it for ever."""
DESCRIPTORS_MIN = 64
"""A daemon with one door and a spool served with 34 and did not with 30; clients, files and Kafka take more. Where
some are lacking, query servers may come and go for ever, none of which serves."""
_STACK_BYTES, _ARENA_BYTES, _ARENAS_PER_CORE = 8 << 20, 64 << 20, 8
"""Of a thread: its stack, unless ``ulimit -s`` says something else, and what the C library reserves for it to take
memory from, up to so many times a core."""


def require_address_space(threads: int) -> None:
    """For who is about to load what computes, with so many threads.

    Raises:
        ConfigError: a limit of this process leaves too little for that; another start would find no more.
    """
    limit = _limit(resource.RLIMIT_AS)
    if limit is None:
        return
    arenas = min(threads, _ARENAS_PER_CORE * (os.cpu_count() or 1))
    stacks = threads * (_limit(resource.RLIMIT_STACK) or _STACK_BYTES)
    needed = max(ADDRESS_SPACE_MIN, BESIDE_THREADS + stacks + arenas * _ARENA_BYTES)
    if limit < needed:
        raise ConfigError(
            f"this process may have {limit} bytes of address space (ulimit -v), and a start with "
            f"compute.threads = {threads} takes about {needed} without a graph: let it be unlimited, and limit "
            f"memory by a control group"
        )


def require_descriptors() -> None:
    """For who is about to start a daemon.

    Raises:
        ConfigError: a limit of this process leaves too few; another start would find no more.
    """
    limit = _limit(resource.RLIMIT_NOFILE)
    if limit is not None and limit < DESCRIPTORS_MIN:
        raise ConfigError(
            f"this process may have {limit} open files (ulimit -n), and a start takes at least {DESCRIPTORS_MIN}, "
            f"with a few for clients: let it be 1024 or more"
        )


def require_compiler() -> None:
    """For who is about to load what computes.

    Raises:
        ConfigError: kernels would not be compiled; as Python they do not work.
    """
    if os.environ.get(_NOT_COMPILED, "").strip() not in ("", "0"):
        raise ConfigError(f"{_NOT_COMPILED} is set in the environment, and kernels must be compiled: take it away")


def no_thread(error: RuntimeError) -> str | None:
    """What to look at where no thread could be started; None: the error is another one."""
    if str(error) != "can't start new thread":
        return None
    return f"{error}: look at ulimit -u, ulimit -v, and pids.max of the control group"


def said(error: BaseException) -> str:
    """An error with its name, which most of Kafka's say themselves."""
    name, text = type(error).__name__, str(error)
    return text if name in text else f"{name}: {text}"


def why(error: OSError) -> str:
    """What the system says, and what it leaves out: which limit of this process was met, or what is in the way."""
    said = error.strerror or str(error)
    if error.errno is None and "AF_UNIX" in said:  # Python's own
        return f"{said}: a Unix socket's has at most {SOCKET_PATH_BYTES} bytes; name a shorter one"
    if error.errno == errno.EADDRINUSE:
        return f"{os.strerror(error.errno)}, perhaps by another graphtide: end that, or name another address"
    if error.errno == errno.EMFILE:
        return f"{said}: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
    if error.errno == errno.EFBIG:
        limit = _limit(resource.RLIMIT_FSIZE)
        if limit is not None:
            return f"{said}: this process may write {limit} bytes to one (ulimit -f)"
    if error.errno == errno.ENOMEM:
        limit = _limit(resource.RLIMIT_AS)
        if limit is not None:
            return f"{said}: this process may have {limit} bytes of address space (ulimit -v)"
    if isinstance(error, FileExistsError) and error.filename and not os.path.isdir(error.filename):
        if os.path.islink(error.filename) and not os.path.exists(error.filename):
            return f"it is a link to {os.readlink(error.filename)!r}, which is not there"
        return "it is a file, and must be a folder"
    return said


def _limit(kind: int) -> int | None:
    """Of this process; None: there is none."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit
