"""What the engine process keeps of a request that asks it several questions, so that it is sent there once.

The server adds to it (``Holding``) and names it in its questions; the engine process (``Held``) puts it into them.
It goes when the request ends, and with the server. How much there is at most follows from the memory that requests
are granted before they are answered (``serving.make_room``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ...gpma.edges import Vertices

HOLD, LET_GO = "hold", "let_go"
HELD = "held"
"""The parameter of a question that names what belongs to it."""


class Holding:
    """The server's end, for one request; let go at the end of the block."""

    def __init__(self, key: int, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
        """``tell``: sends the engine process a notification, before any later question."""
        self._key = key
        self._tell = tell
        self.named: Mapping[str, int] = {}
        """What questions have, so that the columns are added to them."""

    def add(self, **columns: Vertices) -> None:
        """Append to the columns of these names."""
        self.named = {HELD: self._key}
        self._tell(HOLD, {HELD: self._key, "columns": {name: part.tobytes() for name, part in columns.items()}})

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.named:
            self._tell(LET_GO, self.named)


class Held:
    """The engine's end, for one server."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[str, bytes]] = {}

    def note(self, what: str, content: Mapping[str, Any]) -> None:
        """A notification of a ``Holding``."""
        if what == LET_GO:
            self._columns.pop(content[HELD], None)
            return
        columns = self._columns.setdefault(content[HELD], {})
        for name, part in content["columns"].items():
            columns[name] = columns.get(name, b"") + part

    def whole(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """A question with what is held for it."""
        return {**self._columns[params[HELD]], **params} if HELD in params else params

    def __len__(self) -> int:
        return len(self._columns)
