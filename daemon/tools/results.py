"""``graphtide results``: what was written of results to files, a line of JSON for each record."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from ..errors import SourceError
from ..outgoing.records import read_key, read_value
from ..outgoing.spool import files, transactions
from ..records.spool_format import FramingLost


def show(path: Path, *, ends_only: bool) -> None:
    """Print whole transactions: records as ``{"program", "vertex", "epoch", "value"}`` (of what is no vertex any
    more ``"gone": true``), then the end as ``{"end": ...}``. What is not whole yet is left out.

    Raises:
        SourceError: there are no files, or one is damaged, or holds something else.
    """
    found = files(path) if path.is_dir() else [path]
    if not found:
        raise SourceError(f"{str(path)!r} holds no results")
    for file in found:
        try:
            for line in _lines(file, ends_only=ends_only):
                sys.stdout.buffer.write(
                    orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
                )
        except FramingLost as error:
            raise SourceError(f"{str(file)!r} is damaged at byte {error.position}: {error.why}") from error
        except ValueError as error:
            raise SourceError(f"{str(file)!r}: {error}") from error
    sys.stdout.flush()


def _lines(file: Path, *, ends_only: bool) -> Iterator[dict[str, Any]]:
    for _, records, end in transactions(file):
        for key, value in () if ends_only else records:
            named = read_key(key)
            assert named is not None
            content = {"gone": True} if value is None else _in_json(read_value(value))
            yield {"program": named[0], "vertex": named[1], **content}
        yield {"end": asdict(end)}


def _in_json(content: dict[str, Any]) -> dict[str, Any]:
    """With an infinite value as a text, as it is in files of JSON: null is the value of whom no path leads to."""
    value = content["value"]
    if not isinstance(value, float) or not math.isinf(value):
        return content
    return {**content, "value": "Infinity" if value > 0 else "-Infinity"}
