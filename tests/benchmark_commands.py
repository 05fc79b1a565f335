"""Command lines as benchmarks read them themselves: ``benchmark_commands.py FOLDER``, which runs none of them.

In, a line each: [script, word, ...] as JSON. Out, a line each: null, or how the script refused it. Each one runs
as by itself, up to where its command line is read and its help is written; a CUDA device is emulated.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import cuda_emulator


class Read(BaseException):
    """A command line was read."""


def reading(parser: argparse.ArgumentParser, *arguments: Any) -> None:
    READ(parser, *arguments)
    parser.format_help()
    raise Read


READ = argparse.ArgumentParser.parse_args


def refused(script: Path, words: list[str]) -> str | None:
    """What a script says of these words; None where it takes them."""
    sys.argv = [str(script), *words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            runpy.run_path(str(script), run_name="__main__")
    except Read:
        return None
    except SystemExit:
        return said.getvalue()
    return "it reads no command line"


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(folder))
    argparse.ArgumentParser.parse_args = reading  # type: ignore[method-assign,assignment]
    with cuda_emulator.emulated():
        for line in sys.stdin:
            name, *words = json.loads(line)
            print(json.dumps(refused(folder / name, words)), flush=True)


if __name__ == "__main__":
    main()
