"""The command line with a graph that loses rows: ``python tests/on_lossy_graph.py run --config FILE``.

The file ``loses-rows`` in the present folder says when, "WHERE NUMBER": WHERE is ``apply`` (nothing was written),
``applied`` or ``program``, which for the NUMBER-th time in the epochs to come raises ``RowsLost``. A process that
was started again for that loses nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphtide.compute.paths.program import PathProgram
from graphtide.daemon.again import lost_before
from graphtide.daemon.cli import main
from graphtide.daemon.engine.pipeline import Pipeline
from graphtide.partition.graph import Graph, RowsLost


def lossy(work: Callable[..., Any], number: int, *, after: bool) -> Callable[..., Any]:
    """The work, which fails for the ``number``-th time, when it was done or before."""
    count = itertools.count(1)

    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        is_lost = next(count) == number
        if is_lost and not after:
            raise RowsLost("the card fell out")
        done = work(self, *args, **named)
        if is_lost:
            raise RowsLost("the card fell out")
        return done

    return wrapped


if __name__ == "__main__":
    when = Path("loses-rows")
    if when.exists() and lost_before() is None:
        where, number = when.read_text().split()
        owner: Any = PathProgram if where == "program" else Graph
        name = "refresh" if where == "program" else "apply"
        run = Pipeline.run

        def run_and_lose(pipeline: Pipeline) -> None:
            setattr(owner, name, lossy(getattr(owner, name), int(number), after=where == "applied"))
            run(pipeline)

        vars_of_class: Any = Pipeline
        vars_of_class.run = run_and_lose
    main()
