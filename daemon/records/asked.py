"""What takes the engine a while to answer, about programs at run time and the placement of rows, as it travels
between the query server and the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...gpma.index.ids import IdColumn, StringColumn
from .topology import StorageState


class Unwanted(threading.Event):
    """Set once nobody waits for an answer any more; and how whoever works at it tells what holds it up."""

    def __init__(self, compiles: Callable[[bool], None] = lambda _: None) -> None:
        """``compiles``: told when kernels begin to be compiled for it, or loaded, and when they are there."""
        super().__init__()
        self.compiles = compiles
        self._noting = threading.Lock()
        self._stops: list[Callable[[], None]] = []

    def set(self) -> None:
        with self._noting:
            super().set()
            for stop in self._stops:
                stop()

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """In the block, ``stop`` is called once nobody waits any more: by whoever finds that out, for whoever
        works at it has no time to look. Only a moment may it take."""
        with self._noting:
            self._stops.append(stop)
            if self.is_set():
                stop()
        try:
            yield
        finally:
            with self._noting:
                self._stops.remove(stop)


@contextmanager
def compiling(given_up: Unwanted) -> Iterator[None]:
    """In the block kernels are compiled for what is asked for, which is told where anybody wants to know."""
    given_up.compiles(True)
    try:
        yield
    finally:
        given_up.compiles(False)


Answer = tuple[StorageState, dict[str, Any]]

AnswerAside = Callable[[Mapping[str, Any], Unwanted], Answer]
"""Answers a request that takes a while, on a thread of its own.

It gets the parameters (what is None is left out), and what is set once nobody waits any more. Parameters and
answers are as MessagePack has them. It raises ``GraphtideError``; where the program or a parameter is wrong, with
the message of the registry.
"""


def ids_to_engine(ids: IdColumn | None) -> Any:
    """External ids as a question carries them: the bytes of integers, or an array of strings."""
    if ids is None:
        return None
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tobytes()


def ids_of_server(wire: Any) -> IdColumn:
    """The inverse of ``ids_to_engine``."""
    return StringColumn.of(wire) if isinstance(wire, list) else np.frombuffer(wire, np.int64)
