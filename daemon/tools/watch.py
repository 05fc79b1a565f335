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
from ..client.blocking import Subscription
from ..errors import RequestError
from ..terminal import can_redraw, cell_text, count, output, shown_text, table
from .query import with_text_ids

ROWS = 20
"""So many vertices are shown where nobody says how many."""
REFRESH_PER_SECOND = 8


class Board:
    """What is shown of the changes so far: the vertices that changed last, or those of the best values."""

    def __init__(self, rows: int, order: str | None) -> None:
        """``order``: ``desc``, the largest values are the best; ``asc``, the smallest; None: who changed last."""
        self._rows = rows
        self._order = order
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
            for id in (self._best() if self._order else itertools.islice(reversed(self._epochs), self._rows))
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
        chosen = heapq.nsmallest if self._order == "asc" else heapq.nlargest
        return [id for _, id in chosen(self._rows, valued)]


def watch(
    address: str,
    program: str,
    vertices: Sequence[Any] | None = None,
    *,
    threshold: float | None = None,
    top: int | None = None,
    order: str = "desc",
    changes_max: int | None = None,
    as_json: bool = False,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Show changes until interrupted, or until there were ``changes_max``.

    ``top``: so many vertices of the largest values (``order="asc"``: the smallest), not those that changed last.

    Raises:
        GraphtideError: the server refuses, or cannot be reached; one that goes away later is waited for.
    """
    console = output()
    # Of chosen vertices, and of values that may be a little off, the best are found here.
    best: dict[str, Any] = {} if vertices is not None or threshold or not top else {"top": top, "order": order}
    with (
        Client(address, token=token, ssl_context=tls) as client,
        _subscribed(client, program, vertices, threshold=threshold, reconnect=True, **best) as subscription,
        contextlib.suppress(KeyboardInterrupt),
    ):
        changes = itertools.islice(subscription, changes_max)
        if as_json or not can_redraw(console):
            for number, change in enumerate(changes):
                sys.stdout.write(_as_json(change) if as_json else _as_lines(change, is_first=number == 0))
                sys.stdout.flush()
            return 0
        board = Board(top or ROWS, order if top else None)
        with Live(board.shown(), console=console, refresh_per_second=REFRESH_PER_SECOND) as live:
            for change in changes:
                board.take(change)
                live.update(board.shown())
    return 0


def _subscribed(client: Client, program: str, vertices: Sequence[Any] | None, **how: Any) -> Subscription:
    try:
        return client.subscribe(program, vertices, **how)
    except RequestError as error:
        if (texts := with_text_ids(client, error, {"vertices": vertices})) is None:
            raise
        return client.subscribe(program, texts["vertices"], **how)


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


def _as_lines(change: Change, *, is_first: bool) -> str:
    """A line for each vertex: epoch, vertex and value, with tabs between; ``>=`` stands before a lower bound.

    A later snapshot begins with a line that says so, since what was before it counts no more.
    """
    epoch = _dotted(change.epoch)
    begin = f"# {epoch} snapshot\n" if change.is_snapshot and not is_first else ""
    gone = "".join(f"{epoch}\t{_escaped(id)}\tremoved\n" for id in _listed(change.removed))
    n = len(change.ids)
    bounds = [False] * n if change.saturated is None else change.saturated.tolist()
    told = zip(_listed(change.ids), change.values.tolist(), bounds, strict=True)
    return (
        begin
        + gone
        + "".join(f"{epoch}\t{_escaped(id)}\t{'>=' * bound}{_value(value)}\n" for id, value, bound in told)
    )


def _escaped(text: Any) -> str:
    """Of one line, and of one column: ``\\t``, ``\\n``, ``\\x1b`` and so on, and two for a backslash."""
    return shown_text(str(text).replace("\\", "\\\\"))


def _value(value: Any) -> str:
    return _escaped(value) if isinstance(value, str) else cell_text(value)


def _dotted(epoch: tuple[int, int]) -> str:
    return f"{epoch[0]}.{epoch[1]}"


def _listed(ids: Any) -> list[Any]:
    listed: list[Any] = ids if isinstance(ids, list) else ids.tolist()
    return listed
