"""The benchmarks take every command line that documents show, as they read them themselves."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
Asked = Callable[[list[list[str]]], dict[str, str]]
"""What is wrong with command lines, by the command line."""
START = r"(?:python3? )?(?:benchmarks/)?\w+\.py"


def meant(word: str) -> str:
    """A word of a command line as somebody might give it: a number for N, a file for FILE..., a for a|b."""
    return "1" if re.fullmatch(r"[A-Z]+(?:\.\.\.)?", word) else word.partition("|")[0]


def shown(text: str) -> list[list[str]]:
    """The words of all command lines of benchmarks in a page, from the script's name on."""
    text = re.sub(r"\\\n", " ", text)
    blocks = re.findall(rf"^ {{4}}({START}(?: .*)?)$", text, re.MULTILINE)
    inline = [" ".join(line.split()) for line in re.findall(rf"`({START}(?:\s[^`]*)?)`", text)]
    commands = []
    for line in (*blocks, *inline):
        words = shlex.split(line, comments=True)
        is_run = words[0] in ("python", "python3")
        script, *rest = words[is_run:]
        if is_run or (rest and (BENCHMARKS / Path(script).name).is_file()):
            commands.append([Path(script).name, *map(meant, rest)])
    return commands


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    """Asks one process, which loads what benchmarks load once."""
    command = [sys.executable, Path(__file__).with_name("benchmark_commands.py"), BENCHMARKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(commands: list[list[str]]) -> dict[str, str]:
            assert process.stdin is not None and process.stdout is not None
            found = {}
            for words in commands:
                process.stdin.write(json.dumps(words) + "\n")
                process.stdin.flush()
                wrong = json.loads(process.stdout.readline())
                if wrong is not None:
                    found[shlex.join(words)] = wrong
            return found

        yield ask
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_every_command_line_that_documents_show_is_taken(asked: Asked) -> None:
    commands = [words for page in PAGES for words in shown(page.read_text("utf-8"))]
    for name, *words in list(commands):
        if name == "in_turns.py":  # what it hands on to another
            (at,) = [place for place, word in enumerate(words) if word.endswith(".py")]
            commands.append(words[at:])
    scripts = {words[0] for words in commands}
    assert len(commands) > 50 and len(scripts) > 25, "found in documents"
    assert asked(commands) == {}


def test_every_benchmark_writes_its_help(asked: Asked) -> None:
    """Those that are named nowhere, too."""
    takes = [path.name for path in BENCHMARKS.glob("*.py") if "parse_args(" in path.read_text("utf-8")]
    needs = {"in_turns.py": ["../before", "engine.py", "--scale", "9"], "pictures.py": ["FILE"]}
    assert len(takes) > 30
    assert asked([[name, *needs.get(name, [])] for name in takes]) == {}


def test_what_a_benchmark_does_not_take_is_found(asked: Asked) -> None:
    wrong = asked([["window.py", "--edgs", "5"], ["engine.py", "--scale", "x"], ["report.py"], ["window.py"]])
    assert [*wrong] == ["window.py --edgs 5", "engine.py --scale x", "report.py"]
    assert "--edgs" in wrong["window.py --edgs 5"] and "invalid" in wrong["engine.py --scale x"]


SMALL = [
    "checkpoint.py --scale 8 --batch 10 --rounds 1",
    "connections.py --connections 3 --rounds 1",
    "keyed.py --keys 2000 --batch 200",
    "loads.py --edges 2000 --vertices 100",
    "new_vertices.py --begin 100 --end 2000 --batch 50",
    "numbering.py --streams '' --scales 8 --rounds 1",
    "order_log.py --epochs 3",
    "paths.py --scale 8 --batch 10 --epochs 1",
    "results_out.py --records 1000",
    "subscribers.py --subscribers 0,3 --chosen 5 --vertices 1000 --changed 10 --epochs 2",
    "switching.py --scale 8 --batch 10 --rows 5 --turns 1 --seconds 0.02",
    "window.py --edges 2000 --batch 200 --grown 5000",
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("line", SMALL, ids=lambda line: str(line.partition(".")[0]))
def test_a_benchmark_runs_and_saves_what_it_found(line: str, tmp_path: Path) -> None:
    """On so little that its figures mean nothing."""
    name, *words = shlex.split(line)
    saved = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *words, "--json", saved],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(saved.read_text("utf-8"))
    rows = found if isinstance(found, list) else next(value for value in found.values() if isinstance(value, list))
    assert rows and all(rows), "a row for each thing that was measured"
    assert done.stdout.count("\n") >= len(rows), "shown, too"
