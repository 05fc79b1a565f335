"""Fingerprints of spool files between restarts: kept in a small file beside the checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..durable import replace_file
from ..errors import SourceError
from ..os_errors import why
from ..records.stream import Offsets
from .spool_file import SpoolFile

log = logging.getLogger(__name__)

_KINDS = {"bytes": int, "crc32c": int, "offset": int, "whole": bool}


class Fingerprints:
    """``known``: of each file, by name, the length (``bytes``) and the checksum (``crc32c``) of its beginning, how
    much of it was read (``offset``), and whether that was all (``whole``)."""

    def __init__(self, path: Path | None) -> None:
        """``path``: of the file; None: nothing is kept."""
        self.known: dict[str, dict[str, Any]] = {}
        self._path = path

    def load(self) -> None:
        """Have what was kept before.

        Raises:
            SourceError: it cannot be read.
        """
        path = self._path
        if path is None or not path.exists():
            return
        try:
            self.known = {
                name: {key: kind(entry[key]) for key, kind in _KINDS.items()}
                for name, entry in json.loads(path.read_text()).items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{str(path)!r} cannot be read: {error}. Delete it to go on") from error

    def keep(self, files: Mapping[str, SpoolFile], checkpoints: Iterable[Offsets], newest: Offsets) -> None:
        """Keep those of the files that checkpoints name, also of those that were deleted since.

        ``newest``: the last of the checkpoints.
        """
        if self._path is None:
            return
        entries = {}
        for partition in {partition for offsets in checkpoints for partition in offsets}:
            file, offset = files.get(partition.name), newest.get(partition)
            if file is not None and offset is not None:
                length, checksum = file.fingerprint
                whole = file.unread == 0 and file.offset == offset
                entries[file.name] = {"bytes": length, "crc32c": checksum, "offset": offset, "whole": whole}
            elif partition.name in self.known:
                entries[partition.name] = self.known[partition.name]
        self.known = entries
        try:
            replace_file(self._path, json.dumps(entries).encode())
        except OSError as error:  # the fingerprints of before still hold for what they cover
            log.error("fingerprints of the spool cannot be kept in %s: %s", self._path, why(error))
