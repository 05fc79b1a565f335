"""The programs that were asked for at run time (``keep``), in a small file beside the checkpoints.

It is replaced as a whole, and synced, before a request is answered: what was answered as kept is there after any
crash, and what was answered as dropped is not. That the states of these programs are in checkpoints is another
matter: one that is in none is computed at the start.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..durable import Replaced, replace_file
from ..errors import CheckpointError, NotWritten
from ..failpoints import point
from ..os_errors import why
from .checkpoint import is_out_of_reach

FORMAT = 1
FILE = "kept.json"

Spec = dict[str, Any]
"""What a program is made from: its ``name``, and its parameters by theirs."""


def parameters_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Without the name."""
    return {name: value for name, value in spec.items() if name != "name"}


class KeptPrograms:
    """By id, in the order in which they were kept. Any thread may call it."""

    def __init__(self, folder: Path, require: Callable[[], None] = lambda: None) -> None:
        """``require``: raises an OSError where the folder may be another process's by now (``CheckpointStore``).

        Raises:
            CheckpointError: the file is there, and cannot be read.
        """
        self._path = folder / FILE
        self._require = require
        self._changing = threading.Lock()
        self._programs = read_kept(folder)

    @property
    def programs(self) -> dict[str, Spec]:
        """All of them."""
        return dict(self._programs)

    def __contains__(self, id: str) -> bool:
        return id in self._programs

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, id: str) -> Spec | None:
        """What it is made from; None: it is not kept."""
        return self._programs.get(id)

    def add(self, id: str, spec: Mapping[str, Any]) -> None:
        """Durable when this returns.

        Raises:
            NotWritten: the disk does not take it; all is as before, unless the message says what a start may find.
        """
        self._require_folder()
        with self._changing:
            self._write({**self._programs, id: dict(spec)})

    def remove(self, id: str) -> None:
        """Durable when this returns; harmless to repeat.

        Raises:
            NotWritten: the disk does not take it; all is as before, unless the message says what a start may find.
        """
        self._require_folder()
        with self._changing:
            if id in self._programs:
                self._write({other: spec for other, spec in self._programs.items() if other != id})

    def write_again(self) -> None:
        """Where the folder was taken away and there is another one.

        Raises:
            NotWritten: the disk does not take it.
        """
        with self._changing:
            if self._programs:
                self._write(self._programs)

    def _require_folder(self) -> None:
        """Before it is changed: where the folder is made anew, what there is is written again.

        Raises:
            NotWritten: see ``add``.
        """
        try:
            self._require()
        except OSError as error:
            raise NotWritten(f"{str(self._path)!r} cannot be written: {why(error)}") from error

    def _write(self, programs: Mapping[str, Spec]) -> None:
        trouble = f"{str(self._path)!r} cannot be written"
        try:
            replace_file(self._path, _content(programs), written=lambda: point("kept.before_replace"))
            point("kept.replaced")
        except Replaced as error:
            try:
                replace_file(self._path, _content(self._programs))
            except OSError:
                raise NotWritten(
                    f"{trouble}: {why(error)}; nor is it certain that it can be taken back: the next start may "
                    "find it as it was asked for"
                ) from error
            raise NotWritten(f"{trouble}: {why(error)}") from error
        except OSError as error:
            raise NotWritten(f"{trouble}: {why(error)}") from error
        self._programs = dict(programs)


def _content(programs: Mapping[str, Spec]) -> bytes:
    return json.dumps({"format": FORMAT, "programs": programs}, indent=1).encode()


def read_kept(folder: Path) -> dict[str, Spec]:
    """What stands in the file of this folder; nothing where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not isinstance(found.get("programs"), dict):
            raise ValueError("it is no such list")
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, and this version reads {FORMAT}")
        return {str(id): {**spec, "name": str(spec["name"])} for id, spec in found["programs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = why(error) if isinstance(error, OSError) else str(error)
        advice = "To start without them, move it away"
        if is_out_of_reach(error):
            advice = f"It may be good: see what keeps this process (of user {os.geteuid()}) from reading it"
        raise CheckpointError(
            f"the list of programs that were kept at run time, {str(path)!r}, cannot be read: {said}. {advice}"
        ) from error
