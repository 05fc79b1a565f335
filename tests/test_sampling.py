"""What runs of a test that is sampled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import ALIKE, favourites

TESTS = """
import pytest

@pytest.mark.sample(2)
@pytest.mark.parametrize("a", range(6))
def test_some(a): ...

@pytest.mark.sample(1, of="a")
@pytest.mark.parametrize("b", ["x", "y"])
@pytest.mark.parametrize("a", range(5))
def test_each(a, b): ...

@pytest.mark.sample(1)
@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.gpu)])
def test_device(a): ...

@pytest.mark.parametrize("a", range(3))
def test_whole(a): ...

@pytest.mark.sample(among="an idea")
def test_idea_here(): ...

@pytest.mark.sample(among="an idea")
@pytest.mark.parametrize("a", range(2))
def test_idea_there(a): ...

@pytest.mark.sample(1, of="b", alike="a")
@pytest.mark.parametrize("b", ["x", "y", "z"])
@pytest.mark.parametrize("a", ["low", "mild", "mean", "much", "most"])
def test_alike_here(a, b): ...

@pytest.mark.sample(among="another idea", alike="a")
@pytest.mark.parametrize("a", ["most", "much", "mean", "mild", "low"])
def test_alike_there(a): ...

def test_examples():
    import sampling
    print("examples:", sampling.examples(100))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(
        "import sampling\n"
        "sampling.POOLS |= {'an idea': 1, 'another idea': 9}\n"
        "from sampling import pytest_collection_modifyitems, pytest_configure_node, pytest_report_header\n"
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--run-long', action='store_true')\n"
        "    parser.addoption('--all-cases', action='store_true')\n"
        "    parser.addoption('--sample-seed', type=int)\n"
        "def pytest_configure(config):\n"
        "    sampling.settle(config)\n"
    )
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sample\n    gpu\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """The cases that ran, and all that was said."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {*re.findall(r"test_it\.py::(\S+)", done.stdout)}, done.stdout


def of(test: str, cases: set[str]) -> list[str]:
    return sorted(case for case in cases if case.startswith(f"{test}["))


def test_a_sample_is_drawn_from_its_seed(folder: Path) -> None:
    first, said = run(folder)
    assert len(of("test_some", first)) == 2
    assert [case[-2] for case in sorted(of("test_each", first), key=lambda case: case[-2])] == ["x", "y"]
    assert len(of("test_device", first)) == 2 and "test_device[2]" in first, "what needs a device is always there"
    assert len(of("test_whole", first)) == 3
    assert len([case for case in first if case.startswith("test_idea")]) == 1, "one of all that try it"
    (seed,) = re.findall(r"sampled tests: --sample-seed (\d+)", said)
    assert run(folder, "--sample-seed", seed)[0] == first
    others = (run(folder, "--collect-only", "-q", "--sample-seed", str(other))[0] for other in range(5))
    assert any(other != first for other in others)


def test_values_are_drawn_alike_by_all_tests_that_want_it(folder: Path) -> None:
    cases = run(folder, "-k", "alike")[0]
    there = {case[len("test_alike_there[") : -1] for case in of("test_alike_there", cases)}
    assert len(there) == ALIKE
    assert {case[len("test_alike_here[") : -len("-x]")] for case in of("test_alike_here", cases)} == there
    assert run(folder, "-k", "test_alike_there and mild")[0] == {"test_alike_there[mild]"}


def test_no_value_is_never_drawn() -> None:
    values = {"bfs", "sssp", "sswp", "within", "reached", "fading"}
    assert {value for seed in range(100) for value in favourites(values, seed)} == values
    fewer = values - {"bfs"}
    assert all(favourites(values, seed) - {"bfs"} <= favourites(fewer, seed) for seed in range(100))


def test_processes_side_by_side_draw_the_same(folder: Path) -> None:
    """Else pytest-xdist refuses to run."""
    assert run(folder, "--sample-seed", "7")[0] == run(folder, "-n", "2", "--sample-seed", "7")[0]
    assert len(of("test_some", run(folder, "-n", "2")[0])) == 2


def test_all_cases_run_when_they_are_asked_for(folder: Path) -> None:
    whole, said = run(folder, "--run-long", "-s")
    assert len(whole) == 6 + 10 + 3 + 3 + 3 + 15 + 5 + 1 and "examples: 100" in said
    short, said = run(folder, "--all-cases", "-s")
    assert short == whole and "examples: 10" in said
    assert run(folder, "-k", "test_some and 3")[0] == {"test_some[3]"}
