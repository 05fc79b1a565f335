"""What the system's errors say to an operator."""

from __future__ import annotations

import errno
import os
import resource


def why(error: OSError) -> str:
    """What the system says, and what it leaves out: which limit of this process was met, or what is in the way."""
    said = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        return f"{said}: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            return f"{said}: this process may write {limit} bytes to one (ulimit -f)"
    if isinstance(error, FileExistsError) and error.filename and not os.path.isdir(error.filename):
        if os.path.islink(error.filename) and not os.path.exists(error.filename):
            return f"it is a link to {os.readlink(error.filename)!r}, which is not there"
        return f"{said}, and is not a folder"
    return said
