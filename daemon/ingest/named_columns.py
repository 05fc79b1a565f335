"""What a producer's own objects and header lines call the columns of an update."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

from ..config.sections.columns import ColumnName, ColumnsConfig, path_of
from . import decode_columns as columns
from .decode_columns import Bad, Reason

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A finite number as CSV, and strings in JSON, write it."""

_MISSING = object()


@dataclass(frozen=True)
class NamedColumns:
    """Names of columns; in objects they are paths, whose parts are separated by dots, or stand in a tuple.

    ``op``, ``weight``, ``ts``: None where a producer has none. ``op_values``: what it writes for which operation;
    empty: the operations' own names. ``lenient``: a weight that is not there is 1.0. ``keyed``: of a deletion
    nothing else is read: the record's key says what goes.
    """

    src: ColumnName = "src"
    dst: ColumnName = "dst"
    op: ColumnName | None = None
    weight: ColumnName | None = None
    ts: ColumnName | None = None
    op_values: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False
    keyed: bool = False

    def edge(self, document: dict[str, Any]) -> dict[str, Any]:
        """An object as an edge object of our own names; its values are as they were, but for the operation.

        Raises:
            Bad: what is named is not there, or the operation is unknown.
        """
        column, read = "op", self._read
        try:
            op = "insert" if self.op is None else self._op(read["op"](document))
            if self.keyed and op == "delete":
                return {"op": op}
            column = "src"
            edge = {"op": op, "src": read["src"](document)}
            if op == "insert" or not columns.on_a_vertex(op):
                column = "dst"
                edge["dst"] = read["dst"](document)
            elif (dst := self._found(document, "dst")) is not _MISSING:
                edge["dst"] = dst
            if op == "insert" and self.weight is not None:
                column = "weight"
                weight = self._found(document, "weight") if self.lenient else read["weight"](document)
                if weight is not _MISSING:
                    edge["weight"] = _number(weight)
            if self.ts is not None:
                column = "ts"
                edge["ts"] = read["ts"](document)
        except (KeyError, TypeError):
            raise self._missing(document, column) from None
        return edge

    def ends(self, document: dict[str, Any]) -> dict[str, Any] | None:
        """The values of ``src`` and ``dst``; None where one is not there, or null."""
        ends = {column: self._found(document, column) for column in ("src", "dst")}
        return None if any(end is None or end is _MISSING for end in ends.values()) else ends

    def header_names(self) -> dict[str, str]:
        """Our name by the name in a header line, of all that are named."""
        return {".".join(path): column for column, path in self.paths.items()}

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """The names that lead to each column that is named, by our name for it."""
        given = {column: getattr(self, column) for column in columns.COLUMNS}
        return {column: path_of(name) for column, name in given.items() if name is not None}

    @cached_property
    def _read(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """What lies at each of ``paths``; KeyError or TypeError: nothing."""
        return {
            column: itemgetter(*path) if len(path) == 1 else partial(_at, path)
            for column, path in self.paths.items()
        }

    def _found(self, document: dict[str, Any], column: str) -> Any:
        try:
            return self._read[column](document)
        except (KeyError, TypeError):
            return _MISSING

    def _missing(self, document: dict[str, Any], column: str) -> Bad:
        value: Any = document
        path = self.paths[column]
        if len(path) > 1 and (name := ".".join(path)) in document:
            hint = f"its dots lead into objects, and here it is one name: source.columns.{column} = ['{name}']"
            return Bad(Reason.BAD_COLUMN, f"{column} ({name}) is missing: {hint}")
        for depth, part in enumerate(path):
            if type(value) is not dict:
                at, given = ".".join(path[:depth]), columns.shown(value)
                return Bad(
                    Reason.BAD_COLUMN, f"{column} ({'.'.join(path)}) is missing: {at} is {given}, no object"
                )
            value = value.get(part, _MISSING)
            if value is _MISSING:
                break
        at = "" if depth == len(path) - 1 else f": there is no {'.'.join(path[: depth + 1])}"
        return Bad(Reason.BAD_COLUMN, f"{column} ({'.'.join(path)}) is missing{at}")

    def _op(self, value: Any) -> str:
        if not self.op_values:
            if type(value) is str and value in columns.OPS_BY_NAME:
                return value
            raise Bad(Reason.BAD_OP, columns.why_no_op(value))
        text = _text(value)
        if text is None or text not in self.op_values:
            raise Bad(Reason.BAD_OP, why_no_value(value, self.op_values))
        return self.op_values[text]


def named_columns(config: ColumnsConfig) -> NamedColumns | None:
    """The names that settings give; None where they give none."""
    if config == ColumnsConfig():
        return None
    values = {text: op for op, texts in config.op_values.items() for text in texts}
    return NamedColumns(config.src, config.dst, config.op, config.weight, config.ts, values)


def why_no_value(value: Any, op_values: Mapping[str, str]) -> str:
    """Why this stands for no operation, in words."""
    return f"op is {columns.shown(value)}; source.columns.op_values has {columns.shown(sorted(op_values))}"


def _at(path: tuple[str, ...], document: Any) -> Any:
    """What lies there.

    Raises:
        KeyError, TypeError: nothing; there is no object, or it has no such entry.
    """
    for part in path:
        document = document[part]
    return document


def _text(value: Any) -> str | None:
    """A value as JSON writes it, without quotes; None for what no setting can name."""
    if type(value) is bool:
        return "true" if value else "false"
    return str(value) if type(value) in (str, int) else None


def _number(value: Any) -> Any:
    """A number, also of one in quotes, as producers write decimals; anything else as it is."""
    return float(value) if type(value) is str and NUMBER.fullmatch(value) else value
