"""``graphtide query``: any method of the protocol, as tables for people or JSON for programs."""

from __future__ import annotations

import heapq
import json
import re
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from ..client import Client
from ..client.wire import is_column, unpack_bitmap, unpack_column
from ..errors import RequestError
from ..terminal import output, shown_text, table

LISTS = ("vertices", "src", "dst")
"""Parameters that the protocol takes as arrays: one value, or several with commas, may stand for them."""
SOURCES = ("source", "sources")
"""Parameters of programs: an id, or several with commas."""
IDS = (*LISTS, *SOURCES, "vertex", "target")
"""Parameters that are ids of vertices."""
NUMBERS = re.compile(r"-?[0-9]+(,-?[0-9]+)+")
"""What stands for several vertices where a program's own parameters are named, of which nothing is known here."""
NAMES = ("program", "id")
"""Parameters that are names of programs: texts, whatever they look like."""
SWITCHES = ("parents", "thaw", "retry")
"""Parameters that stand for true without a value."""
OUTER_COMMA = re.compile(r",(?![^(]*\))")
"""A comma between ids of programs, which may have some in brackets: ``bfs(1,2)``."""


def parse_parameters(arguments: Sequence[str], method: str = "") -> dict[str, Any]:
    """``--name value`` pairs as parameters of a method; a repeated name makes a list.

    Raises:
        ValueError: an argument is neither a name nor the value of one, or a name has no value; or the method is of
            no use to a connection that ends with its answer.
    """
    if method in ("subscribe", "unsubscribe"):
        raise ValueError("a subscription ends with its connection: graphtide watch ADDRESS PROGRAM shows changes")
    params: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        name, equals, text = waiting.pop(0).partition("=")
        if not name.startswith("--") or name == "--":
            raise ValueError(f"{name!r} stands alone; parameters are given as --name value")
        key = name.removeprefix("--").replace("-", "_")
        if equals or (waiting and not waiting[0].startswith("--")):
            text = text if equals else waiting.pop(0)
            programs = method == "get" and key == "program" and not text.startswith("[")
            several = programs and len(OUTER_COMMA.split(text)) > 1
            listed = key in LISTS or (key in SOURCES and "," in text and not text.startswith('"'))
            of_program = method in ("compute", "keep") and key not in NAMES
            listed |= of_program and NUMBERS.fullmatch(text) is not None
            value: Any
            if several:
                value = OUTER_COMMA.split(text)
            elif key in NAMES:
                value = parse_value(text)
                value = value if isinstance(value, str | list) else text
            else:
                value = parse_value(text, listed=listed, are_ids=key in IDS)
        elif key in SWITCHES:
            value = True
        else:
            raise ValueError(f"{name} needs a value")
        if key not in params:
            params[key] = value
        else:
            earlier = params[key] if isinstance(params[key], list) else [params[key]]
            params[key] = [*earlier, *(value if isinstance(value, list) else [value])]
    return params


def parse_value(text: str, *, listed: bool = False, are_ids: bool = False) -> Any:
    """JSON where the text is JSON, else the text itself; ``listed`` splits at commas and always makes a list.

    ``are_ids``: what is no integer as JSON writes it back (``1.0``, ``-0``, ``null``) is a text.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, brackets without end
        value = text
    if are_ids and not isinstance(value, str | list) and (type(value) is not int or str(value) != text.strip()):
        value = text
    if not listed or isinstance(value, list):
        return value
    parts = text.split(",") if isinstance(value, str) else [text]
    return [parse_value(part.strip(), are_ids=are_ids) for part in parts]


def run_query(
    address: str,
    method: str,
    params: Mapping[str, Any],
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    as_json: bool = False,
) -> int:
    """Ask, and print the answer.

    Raises:
        GraphtideError: the answer is an error, or there is none.
        ValueError: this is no address.
    """
    waits_ms = params.get("timeout_ms")
    timeout_ms = waits_ms if isinstance(waits_ms, int) else 0
    with Client(address, token=token, ssl_context=tls) as client:
        try:
            try:
                answer = client.call(method, params, timeout_ms=timeout_ms)
            except RequestError as error:
                if (texts := with_text_ids(client, error, params)) is None:
                    raise
                params = texts
                answer = client.call(method, params, timeout_ms=timeout_ms)
        except RequestError as error:
            raise type(error)(in_flags(error, method), error.detail) from None
    result = readable(answer)
    if as_json:
        # An infinite value shows as Infinity, which most parsers read: null means something else.
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    else:
        show(method, params, result, output())
    return 0


def with_text_ids(client: Client, error: RequestError, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """These parameters with ids as texts, where that is what was wrong with them: ``7`` is read as a number, in a
    graph whose ids are texts, too. Else None."""
    texts = {
        name: [_as_text(id) for id in value] if isinstance(value, list) else _as_text(value)
        for name, value in params.items()
        if name in IDS
    }
    changed = {**params, **texts}
    if error.detail.get("parameter") not in IDS or changed == params:
        return None
    if client.server is None:  # a subscription has a connection of its own
        client.call("programs", {})
    assert client.server is not None
    return changed if client.server["graph"]["vertex_ids"] == "string" else None


def _as_text(id: Any) -> Any:
    return str(id) if type(id) is int else id


def in_flags(error: RequestError, method: str) -> str:
    """The message of an error, its parameters named as on the command line."""
    unknown, names = error.detail.get("unknown"), error.detail.get("known")
    if unknown and names is not None:
        known = ", ".join(map(_flag, names)) or "no parameters"
        return f"unknown: {', '.join(map(_flag, unknown))}; {method} takes {known}"
    name = error.detail.get("parameter")
    if not isinstance(name, str):
        return error.message
    rest = error.message.removeprefix(f"{name} ")
    return f"{_flag(name)} {rest}" if rest != error.message else f"{_flag(name)}: {rest}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def readable(value: Any) -> Any:
    """An answer with its columns as lists, and None where their bitmap says so."""
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if is_column(value):
        return unpack_column(value).tolist()
    shown = {key: readable(item) for key, item in value.items()}
    # Where it is no bitmap (None: no flag is set), keys may be names that users gave, of topics or programs.
    if isinstance(shown.get("null", 0), bytes | None):
        bitmap = shown.pop("null")
        for key in NULLABLE & shown.keys():
            if shown[key] is not None:  # in-degrees, where in-edges are not kept
                shown[key] = _masked(shown[key], bitmap)
    return shown


NULLABLE = frozenset({"values", "out", "in"})
"""The columns of an answer that its null bitmap belongs to."""


def _masked(column: list[Any], bitmap: bytes | None) -> list[Any]:
    null = unpack_bitmap(bitmap, len(column))
    return [None if empty else item for item, empty in zip(column, null.tolist(), strict=True)]


# -- for people -------------------------------------------------------------------------------------------


def show(method: str, params: Mapping[str, Any], result: Mapping[str, Any], console: Console) -> None:
    """Print an answer: its columns as one table, the rest as names and values, and what it was read from."""
    answer = {key: value for key, value in result.items() if key not in ("epoch", "offsets", "unknown")}
    unknown = result.get("unknown") or []
    if method == "programs":
        columns, answer = _programs(answer["programs"], console), {}
    elif method == "get":
        columns, answer = _values(params, answer, set(unknown))
    elif method == "placement":
        columns, answer = _placement(params, answer, console)
    elif answer.keys() >= EDGE_COLUMNS:
        columns, answer = _edges(answer, console)
    else:
        columns, answer = _parallel(params, answer)
    if method == "path" and not any(column for _, column in columns):
        console.print(f"there is no path to {params.get('target')!r}", markup=False)
        columns, answer = [], {}
    if columns:
        console.print(_table(columns))
    if rows := list(_rows(answer)):
        console.print(table(("", ""), rows))
    if method == "compute" and not columns:
        console.print("no values were asked for: --top 10 or --vertices 1,2,3 shows some")
    if unknown:
        console.print(f"unknown: {', '.join(map(shown_text, unknown))}", style="yellow", markup=False)
    console.print(_stamp(result), style="dim", markup=False)


VERTEX = "vertex"
HEADINGS = {
    **dict.fromkeys(("vertices", "ids", "members"), VERTEX),
    "weights": "weight",
    "distances": "distance",
}
"""What columns of the protocol are called in tables, and in data frames; ``values`` by their program."""

Columns = list[tuple[str, list[Any]]]
"""With their headings, of which several may be equal: some are ids of programs."""

Split = tuple[Columns, dict[str, Any]]
"""The columns of an answer, and what else it says."""


def _table(columns: Columns) -> Table:
    return table([heading for heading, _ in columns], zip(*(column for _, column in columns), strict=True))


SHORTER = {"memory_bytes": "bytes", "error_bound": "error bound"}
"""Headings of the table of programs that are not as the protocol has them."""


def _programs(entries: Mapping[str, Mapping[str, Any]], console: Console) -> Columns:
    """A table of programs, and the columns of one of their scalars, which would not fit beside that on most
    terminals."""
    apart = ("scalars", "joined")
    shown: list[dict[str, Any]] = [
        {name: value for name, value in entry.items() if name not in apart} for entry in entries.values()
    ]
    for of_one, entry in zip(shown, entries.values(), strict=True):
        of_one["joined"] = None if entry.get("joined") is None else ".".join(map(str, entry["joined"]))
    columns = [(SHORTER.get(name, name), column) for name, column in _transposed(shown)]
    console.print(_table([("program", list(entries)), *columns]))
    told = {id: _short(entry.get("scalars") or {}) for id, entry in entries.items()}
    told = {id: scalars for id, scalars in told.items() if scalars is not None}
    return [("program", list(told)), ("scalars", list(told.values()))] if told else []


def _values(params: Mapping[str, Any], answer: Mapping[str, Any], unknown: set[Any]) -> Split:
    """``get``: the vertices that were asked for and are known, and each program's values."""
    asked = params["vertices"]
    results: Mapping[str, Any] = answer.get("results", {str(params["program"]): answer})
    columns: Columns = [(VERTEX, asked)]
    rest = {}
    for id, result in results.items():
        columns.append((id, result["values"]))
        if "parents" in result:
            columns.append((f"{id} parent", result["parents"]["values"]))
        if "stale" in result:
            rest[f"{id} is stale"] = result["stale"]
    known = [vertex not in unknown for vertex in asked]
    return [(heading, _kept(column, known)) for heading, column in columns], rest


EDGE_COLUMNS = frozenset({"src", "dst", "size"})


def _edges(answer: Mapping[str, Any], console: Console) -> Split:
    """A table of edges, before which comes one of the vertices, where these are said."""
    if "ids" in answer:
        console.print(table((VERTEX,), zip(answer["ids"], strict=True)))
    names = [name for name in ("src", "dst", "weights") if name in answer]
    rest = {key: value for key, value in answer.items() if key not in names and key != "ids"}
    return [(HEADINGS.get(name, name), answer[name]) for name in names], rest


DECISIONS = {
    "epochs_ago": "epochs ago",
    "reason": "reason",
    "to_host": "to host",
    "to_device": "to device",
    "moved_edges": "moved",
    "predicted_s": "predicted s",
    "moved_s": "took s",
    "state": "state",
    "why": "why",
}
"""What is shown of a decision about rows, and its heading; numbers without a unit are of edges."""


def _placement(params: Mapping[str, Any], answer: Mapping[str, Any], console: Console) -> Split:
    """Tables of sides, of the bus, of what was decided lately, and of the vertices that were asked for."""
    rest = dict(answer)
    sides = rest.pop("sides")
    applied = rest.pop("applied")
    columns = [("side", sides), *((name, rest.pop(name)) for name in ("vertices", "edges", "bytes"))]
    of_applied = ("updates", "seconds")
    columns += [(name, [applied.get(side, {}).get(name, 0) for side in sides]) for name in of_applied]
    console.print(_table(columns))
    _bus(rest.pop("bus"), console)
    rebalancing = dict(rest.pop("rebalancing") or {})
    if decisions := rebalancing.pop("decisions", []):
        rows = [[decision[name] for name in DECISIONS] for decision in decisions]
        console.print(table(tuple(DECISIONS.values()), rows))
    of_vertices: Columns = [(name, rest.pop(name)) for name in ("owner", "degree", "why") if name in rest]
    asked: Columns = [(VERTEX, params["vertices"])] if of_vertices else []
    return [*asked, *of_vertices], {**rest, **({"rebalancing": rebalancing} if rebalancing else {})}


def _bus(bus: Mapping[str, Any], console: Console) -> None:
    """What came over the bus by way, and what reads took; by program what was read. Nothing: nothing was."""
    moved, seconds, read = bus["bytes"], bus["seconds"], bus["edges_read"]
    if any(moved.values()):
        rows = [
            [way, moved.get(way), *(seconds.get(way, {}).get(name) for name in ("predicted", "measured"))]
            for way in dict.fromkeys([*seconds, *moved])
        ]
        console.print(table(("way", "bytes", "predicted s", "took s"), rows))
    if read:
        rows = [
            [program, *edges.values(), bus["gigabytes_per_second"].get(program)] for program, edges in read.items()
        ]
        ways = next(iter(read.values()))
        console.print(table(("program", *(f"edges read, {way}" for way in ways), "GB/s over the bus"), rows))


def _parallel(params: Mapping[str, Any], answer: Mapping[str, Any]) -> Split:
    """Any other answer: the lists that were asked with and those that came back, where they are as long."""
    came = {name: column for name, column in answer.items() if isinstance(column, list)}
    length = max(map(len, came.values()), default=0)
    chosen = {} if "ids" in came else params  # those that were chosen among are no column
    asked = {name: chosen[name] for name in LISTS if len(chosen.get(name, ())) == length > 0}
    # The weights of a path belong to its edges: its first vertex has none.
    came = {name: [None, *column] if len(column) == length - 1 else column for name, column in came.items()}
    columns = {**asked, **came} if all(len(column) == length for column in came.values()) else {}
    rest = {name: value for name, value in answer.items() if name not in columns}
    headings = {**HEADINGS, "values": str(params.get("program", "values"))}
    return [(headings.get(name, name), column) for name, column in columns.items()], rest


def _kept(column: Sequence[Any], keep: Sequence[bool]) -> list[Any]:
    return [item for item, wanted in zip(column, keep, strict=True) if wanted]


def _transposed(entries: Sequence[Mapping[str, Any]]) -> Columns:
    """Maps with similar keys as columns; keys that no map has a value for are left out."""
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    columns = {name: [_short(entry.get(name)) for entry in entries] for name in names}
    return [(name, column) for name, column in columns.items() if any(item is not None for item in column)]


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_digits(item)}" for key, item in value.items()) or None
    return value


def _digits(value: Any) -> Any:
    """Whole numbers without a point, others with few digits: scalars are floats, also where they count."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else f"{value:.6g}"


TIMES = {
    **dict.fromkeys(("ended", "since", "timestamp", "timestamp_seconds"), 1.0),
    **dict.fromkeys(("event_time_ms", "newest_ms"), 1e-3),
}
"""How the names of times end, which count since 1970, and how many seconds what they count takes."""


MANY = "lag.amount"
"""What ``stats`` says of every file, or partition."""


def _rows(answer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested maps as dotted names and values."""
    for key, value in answer.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name.startswith(MANY):
            foremost, more = _foremost(value)
            yield from _rows(foremost, f"{name}.")
            if more:
                yield f"{name}: others", f"{more}, none of them larger"
        elif isinstance(value, Mapping):
            yield from _rows(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from _rows(item, f"{name}[{number}].")
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value))
        else:
            yield name, _timed(name, value)


def _timed(name: str, value: Any) -> Any:
    """A time as one; anything else as it is, also a time that no calendar has."""
    unit = next((unit for end, unit in TIMES.items() if name.endswith(end)), None)
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(value * unit, UTC).isoformat(" ", "seconds")
    return value


PLACES_MAX = 10
"""Of more offsets than this, and of more amounts of one kind, a table shows so many: --json has all."""


def _stamp(result: Mapping[str, Any]) -> str:
    incarnation, number = result.get("epoch", ("?", "?"))
    offsets = result.get("offsets", {})
    newest = dict(list(offsets.items())[-PLACES_MAX:])
    more = f" and of {len(offsets) - len(newest)} more" if len(newest) < len(offsets) else ""
    return f"epoch {incarnation}.{number}, offsets {json.dumps(newest)}{more}"


def _foremost(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Of very many numbers the largest, and how many are left out."""
    if len(values) <= PLACES_MAX or not all(type(value) in (int, float) for value in values.values()):
        return values, 0
    names = heapq.nlargest(PLACES_MAX, values, key=lambda name: values[name])
    return {name: values[name] for name in names}, len(values) - PLACES_MAX
