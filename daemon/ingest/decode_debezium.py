"""Change events of Debezium: rows of a table of edges that came, changed or went.

An event is ``{"op", "before", "after", "source", ...}``; in JSON alone, or the ``payload`` beside its ``schema``.
What each field holds: https://debezium.io/documentation/reference/stable/connectors/postgresql.html, "Data change
events"; the other connectors of relational databases share the form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from . import decode_columns as columns
from .decode_columns import Bad, Reason
from .named_columns import NamedColumns

CAPTURED = NamedColumns(weight="weight", lenient=True)
"""The columns of a captured table where nothing else is said: src, dst, and weight if there is one."""

_WHOLE_ROWS = "the table must log whole rows (REPLICA IDENTITY FULL), or src and dst must be its key"


class Changes:
    """What the changes of a table do to the graph whose edges are its rows."""

    def __init__(self, names: NamedColumns, *, compacted: bool = False, keyed: bool = False) -> None:
        """``names``: of the columns, or of paths in them; the operation is the event's own. ``compacted``: a
        tombstone may be all that is left of a key: it deletes the edge. ``keyed``: what went is known by the key
        of the record, so no row before is looked at."""
        self.compacted = compacted and not keyed
        self._keyed = keyed
        self._rows = NamedColumns(names.src, names.dst, None, names.weight, names.ts, lenient=names.lenient)

    @property
    def paths(self) -> list[tuple[str, ...]]:
        """All that is read of an event, without ``payload``: the names that lead there."""
        rows = [(name, *path) for name in ("before", "after") for path in self._rows.paths.values()]
        return [("op",), ("ts_ms",), ("source", "ts_ms"), *rows]

    @property
    def time(self) -> tuple[str, ...] | None:
        """The one of these that is a column of times."""
        path = self._rows.paths.get("ts")
        return None if path is None else ("after", *path)

    @property
    def ends(self) -> list[tuple[str, ...]]:
        """What is read of a record's key."""
        return [self._rows.paths["src"], self._rows.paths["dst"]]

    def edges(self, document: dict[str, Any] | None, key: Callable[[], Any]) -> list[dict[str, Any]]:
        """Edge objects in order, as ``decode_records.decode_rows`` takes them: for a row whose ends changed, the
        old edge deleted and the new one inserted; for a tombstone (None) none, or the one that its key names,
        where topics are compacted. ``key``: gives the record's key, decoded.

        Raises:
            Bad: it is no change of a row, or which edge it is about cannot be told.
        """
        event: Any = document
        if document is not None and "payload" in document and "op" not in document:
            event = document["payload"]
        if event is None:
            return [self._gone(key)] if self.compacted else []
        if not isinstance(event, dict):
            raise Bad(Reason.MALFORMED, f"payload must be an object, not {columns.shown(event)}")
        if "op" not in event:
            raise Bad(Reason.BAD_COLUMN, "op is missing: this is no change event")
        op = event["op"]
        if op in ("c", "r"):
            edges = [self._inserted(event)]
        elif op == "u":
            edges = self._updated(event, key)
        elif op == "d":
            edges = [self._deleted(event, key)]
        elif op == "t":
            raise Bad(Reason.BAD_CHANGE, "a truncate does not say which edges go: delete the rows instead")
        else:
            raise Bad(Reason.BAD_OP, f"op is {columns.shown(op)}; allowed are c, r, u and d")
        if (changed_ms := _changed_ms(event)) is not None:
            for edge in edges:
                edge.setdefault("ts", changed_ms)
        return edges

    def _inserted(self, event: dict[str, Any]) -> dict[str, Any]:
        row = event.get("after")
        if not isinstance(row, dict):
            raise Bad(Reason.BAD_COLUMN, f"after must be an object, and is {columns.shown(row)}")
        return _within("after", self._rows, row)

    def _updated(self, event: dict[str, Any], key: Callable[[], Any]) -> list[dict[str, Any]]:
        new = self._inserted(event)
        if self._keyed:
            return [new]
        old = self._old_ends(event)
        if old is None:
            # Without the old row the ends are the same if they are the key: a row of another key is
            # reported as deleted, and the new one as created.
            ends = self._ends_of_key(key)
            if ends is None:
                raise Bad(Reason.BAD_CHANGE, f"an update without the ends that the edge had before: {_WHOLE_ROWS}")
            if any(str(ends[end]) != str(new[end]) for end in ("src", "dst")):
                raise Bad(Reason.BAD_CHANGE, "an update without the row before it, whose key names another edge")
            return [new]
        if all(old[end] == new[end] for end in ("src", "dst")):
            return [new]
        return [{"op": "delete", **old}, new]

    def _deleted(self, event: dict[str, Any], key: Callable[[], Any]) -> dict[str, Any]:
        if self._keyed:
            return {"op": "delete"}
        ends = self._old_ends(event) or self._ends_of_key(key)
        if ends is None:
            raise Bad(Reason.BAD_CHANGE, f"a delete without the ends of the edge: {_WHOLE_ROWS}")
        return {"op": "delete", **ends}

    def _gone(self, key: Callable[[], Any]) -> dict[str, Any]:
        ends = self._ends_of_key(key)
        if ends is None:
            raise Bad(Reason.BAD_CHANGE, "a tombstone of a compacted topic, whose key names no edge")
        return {"op": "delete", **ends}

    def _old_ends(self, event: dict[str, Any]) -> dict[str, Any] | None:
        return self._ends_in(event.get("before"))

    def _ends_of_key(self, key: Callable[[], Any]) -> dict[str, Any] | None:
        """The ends of the edge, where they are the key of the table."""
        document = key()
        wrapped = isinstance(document, dict) and "payload" in document
        return self._ends_in(document["payload"] if wrapped else document)

    def _ends_in(self, row: Any) -> dict[str, Any] | None:
        return self._rows.ends(row) if isinstance(row, dict) else None


def json_key(key: bytes | None) -> Any:
    """A record's key as JSON; None where it is none."""
    try:
        return orjson.loads(key or b"null")
    except orjson.JSONDecodeError:
        return None


def _within(name: str, names: NamedColumns, row: dict[str, Any]) -> dict[str, Any]:
    try:
        return names.edge(row)
    except Bad as bad:
        raise Bad(bad.reason, f"in {name}: {bad.detail}") from None


def _changed_ms(event: dict[str, Any]) -> int | None:
    """When the database changed the row, else when that was captured."""
    source = event.get("source")
    for given in (source.get("ts_ms") if isinstance(source, dict) else None, event.get("ts_ms")):
        if type(given) is int:
            return given
    return None
