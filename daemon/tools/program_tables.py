"""The tables of docs/programs.md, made of what the programs declare.

    python -m graphtide.daemon.tools.program_tables docs/programs.md

writes them anew, between the marks that stand in the page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...compute.paths import PathProgram
from ...compute.program import ExternalId, Parameter, Program
from ...compute.registry import KINDS

PACKAGE = Program.__module__.split(".")[0]


def written_anew(page: str) -> str:
    """The page with its tables as the programs are now."""
    for name, table in (("programs", _programs()), ("path programs", _path_programs())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        rows = "".join(f"| {' | '.join(cells)} |\n" for cells in table)
        before, _, rest = page.partition(begin)
        _, mark, after = rest.partition(end)
        assert mark, f"{name}: the page has no place for this table"
        page = f"{before}{begin}{rows}{end}{after}"
    return page


def _programs() -> Iterator[tuple[str, ...]]:
    """All programs of the package."""
    columns = ("program", "what", "value", "starts from", "parameters", "weights", "in-edges", "family")
    yield from (columns, ("---",) * len(columns))
    for program in KINDS.values():
        if not _is_own(program):
            continue
        given = [parameter for parameter in program.parameters if not parameter.is_sources]
        yield (
            f"`{program.kind}`",
            program.summary,
            "a vertex's id" if program.value is ExternalId else program.value.__name__,
            ", ".join(f"`{item.name}`: a vertex or several" for item in program.parameters if item.is_sources),
            ", ".join(f"`{item.name}` = {_shown(item)}" for item in given),
            _weights(program),
            "read" if program.needs_in_edges else "not read",
            program.family,
        )


def _path_programs() -> Iterator[tuple[str, ...]]:
    """What each path program computes; those of the package need no parameters of their own."""
    columns = ("program", "value", "at the source", "an edge offers", "is better", "weights")
    yield from (columns, ("---",) * len(columns))
    for program in KINDS.values():
        if issubclass(program, PathProgram) and _is_own(program):
            functors = program.functors()
            yield (
                f"`{program.kind}`",
                f"{program.value.__name__}, {program.summary}",
                f"`{program.value(program.at_source)}`",
                f"`{_returned(functors.gather)}`",
                f"`{_returned(functors.better)}`",
                _weights(program),
            )


def _is_own(program: type[Program]) -> bool:
    return program.__module__.startswith(f"{PACKAGE}.")


def _shown(parameter: Parameter) -> str:
    return "(must be given)" if parameter.required else f"`{parameter.default}`"


def _weights(program: type[Program]) -> str:
    return ", ".join(program.weight_domains) if program.needs_weights else "not read"


def _returned(function: Callable[..., Any]) -> str:
    """The expression that a function of one line returns."""
    return inspect.getsource(function).split("return ")[-1].strip()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(written_anew(path.read_text("utf-8")), "utf-8")
