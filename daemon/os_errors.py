"""What the system's errors say to an operator."""

from __future__ import annotations

import errno
import os
import resource

ADDRESS_SPACE_MIN = 1 << 30
"""With less a daemon may not come up: libraries that get none fail in many ways, or wait for it for ever."""


def require_address_space() -> None:
    """For who is about to load what computes.

    Raises:
        MemoryError: a limit of this process leaves too little for that.
    """
    limit = _limit(resource.RLIMIT_AS)
    if limit is not None and limit < ADDRESS_SPACE_MIN:
        raise MemoryError(
            f"this process may have {limit} bytes of address space (ulimit -v), and a start takes "
            f"{ADDRESS_SPACE_MIN} without a graph: let it be unlimited, and limit memory by a control group"
        )


def no_thread(error: RuntimeError) -> str | None:
    """What to look at where no thread could be started; None: the error is another one."""
    if str(error) != "can't start new thread":
        return None
    return f"{error}: look at ulimit -u, ulimit -v, and pids.max of the control group"


def why(error: OSError) -> str:
    """What the system says, and what it leaves out: which limit of this process was met, or what is in the way."""
    said = error.strerror or str(error)
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
        return f"{said}, and is not a folder"
    return said


def _limit(kind: int) -> int | None:
    """Of this process; None: there is none."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit
