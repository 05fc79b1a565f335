"""What may be asked about programs at run time, as it travels between the query server and the engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from .topology import StorageState


class AskedPrograms(Protocol):
    """Requests that take a while: each on a thread of its own, which may be told that nobody waits any more.

    ``params`` (what is None is left out) and answers as MessagePack has them. All raise ``GraphtideError``; where
    the program or a parameter is wrong, with the message of the registry.
    """

    def compute(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        """Run a program (``program``, ``parameters``) once; values for ``vertices``, or the ``top`` ones."""
        ...

    def keep(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        """Keep a program (``program``, ``parameters``, ``id`` or None) up to date from now on; durable."""
        ...

    def drop(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        """Keep it up to date no more (``program``: its id); durable."""
        ...
