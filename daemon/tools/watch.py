"""``graphtide watch``: what each epoch changes, live on a terminal, else a line for each change."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import ssl
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..client import Change, Client
from ..terminal import cell_text, count, output, table

ROWS = 20
"""So many vertices are shown where nobody says how many."""
REFRESH_PER_SECOND = 8


class Board:
    """What is shown of the changes so far: the vertices that changed last, or those of the largest values."""

    def __init__(self, rows: int, *, largest: bool) -> None:
        self._rows = rows
        self._largest = largest
        self._values: dict[Any, Any] = {}
        self._before: dict[Any, Any] = {}
        self._epochs: dict[Any, tuple[int, int]] = {}
        self._newest: Change | None = None
        self._told = 0

    def take(self, change: Change) -> None:
        """Changes are taken in order."""
        self._newest = change
        self._told += len(change.ids) + len(change.removed)
        if change.is_snapshot:
            self._values.clear()
            self._before.clear()
            self._epochs.clear()
        for id in _listed(change.removed):
            for known in (self._values, self._before, self._epochs):
                known.pop(id, None)
        for id, value in zip(_listed(change.ids), change.values.tolist(), strict=True):
            self._epochs.pop(id, None)  # to the end: it changed last
            self._before[id], self._values[id] = self._values.get(id), value
            self._epochs[id] = change.epoch

    def shown(self) -> Group:
        """The table, and a line about where it is."""
        rows = [
            (id, self._values[id], self._before[id], _dotted(self._epochs[id]))
            for id in (self._best() if self._largest else itertools.islice(reversed(self._epochs), self._rows))
        ]
        made: Table = table(("vertex", "value", "before", "epoch"), rows)
        if self._newest is None:
            return Group(made)
        told, known = count(self._told), count(len(self._values))
        line = f"epoch {_dotted(self._newest.epoch)}, {told} changes, {known} vertices"
        stale = self._newest.stale
        about = [] if stale is None else [Text(f"{stale['state']}: {stale['reason']}", style="yellow")]
        return Group(made, Text(line, style="dim"), *about)

    def _best(self) -> list[Any]:
        valued = ((value, id) for id, value in self._values.items() if value is not None)
        return [id for _, id in heapq.nlargest(self._rows, valued)]


def watch(
    address: str,
    program: str,
    vertices: Sequence[Any] | None = None,
    *,
    threshold: float | None = None,
    top: int | None = None,
    changes_max: int | None = None,
    as_json: bool = False,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Show changes until interrupted, or until there were ``changes_max``.

    Raises:
        GraphtideError: the server refuses, or cannot be reached; one that goes away later is waited for.
    """
    console = output()
    with (
        Client(address, token=token, ssl_context=tls) as client,
        client.subscribe(program, vertices, threshold=threshold, reconnect=True) as subscription,
        contextlib.suppress(KeyboardInterrupt),
    ):
        changes = itertools.islice(subscription, changes_max)
        if as_json or not console.is_terminal:
            for change in changes:
                sys.stdout.write(_as_json(change) if as_json else _as_lines(change))
                sys.stdout.flush()
            return 0
        board = Board(top or ROWS, largest=top is not None)
        with Live(board.shown(), console=console, refresh_per_second=REFRESH_PER_SECOND) as live:
            for change in changes:
                board.take(change)
                live.update(board.shown())
    return 0


def _as_json(change: Change) -> str:
    made = {
        "epoch": change.epoch,
        "offsets": change.offsets,
        "since": change.since,
        "ids": _listed(change.ids),
        "values": change.values.tolist(),
        "removed": _listed(change.removed),
    }
    if change.saturated is not None:
        made["saturated"] = change.saturated.tolist()
    stale = {} if change.stale is None else {"stale": change.stale}
    # An infinite value shows as Infinity, which most parsers read: null means something else.
    return json.dumps({**made, **stale}, ensure_ascii=False) + "\n"


def _as_lines(change: Change) -> str:
    """A line for each vertex: epoch, vertex and value, with tabs between."""
    epoch = _dotted(change.epoch)
    pairs = zip(_listed(change.ids), change.values.tolist(), strict=True)
    gone = "".join(f"{epoch}\t{id}\tremoved\n" for id in _listed(change.removed))
    return gone + "".join(f"{epoch}\t{id}\t{cell_text(value)}\n" for id, value in pairs)


def _dotted(epoch: tuple[int, int]) -> str:
    return f"{epoch[0]}.{epoch[1]}"


def _listed(ids: Any) -> list[Any]:
    listed: list[Any] = ids if isinstance(ids, list) else ids.tolist()
    return listed
