"""What programs have written down for kernels, against what would be written down now."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphtide.gpma.written import write


def assert_written_records_hold(program: Any, graph: Any = None) -> None:
    """Whatever the next run of a program takes from words is what the program holds; and the threads are those of
    the graph, if one is given, whose change the program has just followed."""
    for each in (program, getattr(program, "host", None), getattr(program, "_hops", None)):
        if getattr(each, "_crew", None) is None:  # it will be written before it is taken
            continue
        words = np.zeros_like(each._held.words)
        write(words, each._record(each._crew if graph is None else graph.crew))
        np.testing.assert_array_equal(each._held.words, words)
