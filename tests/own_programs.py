"""Programs as a user writes them: those of docs/programs.md, and another.

Their functions are the page's: what a test of the page has compiled is there for these, and the other way round.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from graphtide.compute import registry
from graphtide.compute.paths.form import Functors
from graphtide.compute.paths.program import PathProgram
from graphtide.compute.program import Program

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "programs.md"


def _of_the_page(holds: str, name: str) -> Any:
    """The page's programs in a module of the name that others give it, and not registered."""
    blocks = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (text,) = [block for block in blocks if holds in block]
    module, before = ModuleType(name), dict(registry.KINDS)
    exec(compile(text, str(_PAGE), "exec"), vars(module))
    registry.KINDS.clear()
    registry.KINDS.update(before)
    return module


_page = _of_the_page("class Within", "my_programs")
Mutual: type[Program] = _of_the_page("class Mutual", "my_other_programs").Mutual


class Within(_page.Within):  # type: ignore[misc]
    """Hops, but at most so many of them."""

    kind: ClassVar[str] = "test-within"


class Fading(_page.Fading):  # type: ignore[misc]
    """Widest path on which every edge passes on nine tenths."""

    kind: ClassVar[str] = "test-fading"
    at_source = 1000.0

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        of_the_page: Functors = super().functors(keeps=0.9)
        return of_the_page


class Reached(PathProgram):
    """Whether there is a path at all: the same value for all."""

    kind: ClassVar[str] = "test-reached"
    value = np.uint32
    at_source = 7

    @classmethod
    def functors(cls, **parameters: Any) -> Functors:
        def gather(value, weight):  # type: ignore[no-untyped-def]
            return value

        def better(new, old):  # type: ignore[no-untyped-def]
            return new < old

        return Functors(gather, better)
