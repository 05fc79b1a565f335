"""What every benchmark prints and saves: the machine, the parameters, the rows, the ratios."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LIBRARIES = ("graphtide", "numpy", "numba", "scipy", "kafka-python", "networkit", "igraph", "cupy-cuda13x")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and library versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: found for name in LIBRARIES if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # a GPU machine runs the checkout, with what it has
        return None


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of one shape as a table."""
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    # A file or a pipe has no width of its own; a table cut short there helps nobody.
    Console(width=None if os.isatty(1) else 200).print(table)


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write everything as JSON, when asked to."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1))
