"""What is wrong with folders and files that settings name, as far as that shows before anything is compiled.

Nothing is made here. What may pass by itself, such as a disk that does not answer, is left to who needs the place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config.settings import Config
from .errors import ConfigError
from .ingest.sources import make_registry
from .os_errors import why

STAYS = (
    *(errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EEXIST, errno.ENOENT),
)
"""Why no folder of a name can be used until a person does something."""


def require_places(config: Config) -> None:
    """
    Raises:
        ConfigError: a folder cannot be used, or a file of certificates, keys or secrets.
    """
    source, results, letters = config.source, config.results, config.dead_letters
    if source.kind == "spool":
        advice = "; `graphtide produce --spool DIR FILE` puts files into one"
        require_folder("source.path", source.path, os.R_OK, advice=advice)
    require_folder("dead_letters.path", letters.path, os.W_OK)
    if results.kind == "spool":
        require_folder("results.path", results.path, os.W_OK)
    if source.kind == "kafka" or letters.topic is not None:
        _require_files("source.client", source.client_options())
    if results.kind == "kafka":
        whose = "results.client" if results.bootstrap_servers else "source.client"
        _require_files(whose, config.results_servers()[1])
    make_registry(config)


def _require_files(key: str, client: Mapping[str, Any]) -> None:
    from .ingest.kafka_client import require_files

    require_files(key, client)


def require_folder(key: str, path: Path, use: int, *, advice: str = "") -> None:
    """
    Args:
        use: what we do in a folder that is there: ``os.R_OK`` or ``os.W_OK``. One that is missing is made.
        advice: what helps who names a file.

    Raises:
        ConfigError: it is no folder, and none can be there, or we may not use it.
    """
    try:
        whole = there = path.absolute()
        while not there.exists():
            if there.is_symlink():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(there))
            there = there.parent
        if not there.is_dir():
            what = "it" if there == whole else repr(str(there))
            raise NotADirectoryError(errno.ENOTDIR, f"{what} is a file, and must be a folder{advice}")
        needed = use if there == whole else os.W_OK
        # A disk that turned read-only is no mistake of a setting: results wait for it, and so on.
        if not os.access(there, os.X_OK | needed) and not os.statvfs(there).f_flag & os.ST_RDONLY:
            verb = "read" if needed == os.R_OK else "write to"
            raise PermissionError(errno.EACCES, f"user {os.geteuid()} may not {verb} {str(there)!r}")
    except OSError as error:
        if error.errno in STAYS:
            raise ConfigError(f"{key} = {str(path)!r} cannot be used: {why(error)}") from error
