"""What ``graphtide query`` prints, whatever names users gave."""

from __future__ import annotations

import io
import json
from typing import Any

import msgpack
import numpy as np
import pytest
from rich.console import Console

from graphtide.daemon.client.wire import pack_column
from graphtide.daemon.serve.http.answers import encode_answer
from graphtide.daemon.tools.query import readable, show

NAMES = (
    ("dtype", "data"),
    ("null", "values"),
    ("values", "out", "in", "null", "saturated", "parents"),
    ("epoch", "offsets", "unknown", "results", "stale"),
    ("vertex", "vertices", "ids", "members", "src", "dst", "size"),
    ("x", "x parent"),
)
"""Ids of programs that the answer of one, or what is shown of it, uses for something else."""


def result(number: int) -> dict[str, Any]:
    values = {"values": pack_column(np.array([number, 7, 0], np.int64)), "null": b"\x04"}
    return {**values, "parents": {"values": pack_column(np.array([8, 9, 0], np.int64)), "null": b"\x05"}}


def stamped(offsets: Any, **answer: Any) -> tuple[bytes, dict[str, Any]]:
    """As HTTP has it, and as the socket."""
    stamp = {"epoch": [1, 2], "offsets": offsets}
    return b"".join(msgpack.packb(item) for pair in stamp.items() for item in pair), {**stamp, **answer}


@pytest.mark.parametrize("names", NAMES)
def test_programs_may_have_any_names(names: tuple[str, ...]) -> None:
    results = {name: result(number) for number, name in enumerate(names)}
    stamp, answer = stamped({"edges": {0: 5}}, results=results)
    expected = {
        name: {"values": [number, 7, None], "parents": {"values": [None, 9, None]}}
        for number, name in enumerate(names)
    }
    shown = readable(answer)
    assert {name: found["values"] for name, found in shown["results"].items()} == {
        name: [number, 7, None] for number, name in enumerate(names)
    }
    assert json.loads(encode_answer(stamp, {"results": results}))["results"] == {
        name: {"values": found["values"], "parents": found["parents"]["values"]}
        for name, found in expected.items()
    }
    written = io.StringIO()
    params = {"program": list(names), "vertices": [41, 42, 43]}
    show("get", params, shown, Console(file=written, width=400, color_system=None))
    heading, *rows, _ = written.getvalue().splitlines()
    assert heading.split() == " ".join(["vertex", *(f"{name} {name} parent" for name in names)]).split()
    cells = [
        str(number) if column == "value" else "-" for number, _ in enumerate(names) for column in ("value", "")
    ]
    assert rows[0].split() == ["41", *cells]
    assert [row.split()[0] for row in rows] == ["41", "42", "43"]


def test_topics_may_have_any_names() -> None:
    offsets = {"dtype": {"0": 5}, "data": {"0": 6}}
    stamp, answer = stamped(offsets, exists=pack_column(np.ones(1, bool)))
    assert readable(answer) == {"epoch": [1, 2], "offsets": offsets, "exists": [True]}
    assert json.loads(encode_answer(stamp, {"exists": answer["exists"]}))["offsets"] == offsets
