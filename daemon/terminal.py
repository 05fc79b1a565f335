"""What people see on a terminal: tables, numbers with units, progress. Plain text where there is none."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


def output() -> Console:
    """The console on standard output, for answers; lines are not cut when it is no terminal."""
    return _console(sys.stdout)


def errors() -> Console:
    """The console on standard error, for progress, hints and mistakes."""
    return _console(sys.stderr)


@lru_cache(maxsize=4)  # one console a stream, so that log lines and progress do not overwrite each other
def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 200)


def can_redraw(console: Console) -> bool:
    """Whether what was shown can be replaced there: on a terminal, but no dumb one."""
    return console.is_terminal and not console.is_dumb_terminal


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; numbers are right-aligned, None shows as a dash; no heading where all columns are nameless."""
    shown = [list(row) for row in rows]
    made = Table(header_style="bold", box=None, pad_edge=False, show_header=any(columns))
    for position, column in enumerate(columns):
        numeric = bool(shown) and all(_is_number(row[position]) for row in shown)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        made.add_row(*(cell_text(value) for value in row))
    return made


def cell_text(value: Any) -> str:
    """One value as a table shows it; markup in it stays text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return shown_text(value).replace("[", "\\[")


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def shown_text(value: Any) -> str:
    """A value in one line that no terminal takes for orders: ``\\n``, ``\\x1b`` and so on for others."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def count(number: float) -> str:
    """``1234567`` as ``1,234,567``."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes with a binary unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds with the unit that suits: ``3.2 ms``, ``12.5 s``, ``2 min 5 s``, ``3 h 20 min``, ``180 days``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.3g} days"


def progress(*, shown: bool = True) -> Progress:
    """A progress display on standard error, gone when finished; nothing at all when there is no terminal."""
    console = errors()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
