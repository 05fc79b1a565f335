"""Kernels are compiled anew whenever anything that they are made of is another, wherever it stands."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

from graphtide.gpma.kernel_cache import FORMS_MAX
from graphtide.gpma.made_of import Untold, facts

ROOT = Path(__file__).resolve().parents[1]

_PARTS = """
from typing import NamedTuple
import numba as nb
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic, overload, register_jitable
from graphtide.gpma.intrinsics import inner

FACTOR = 2.0
TABLE = np.array([2.0, 3.0])

class Pair(NamedTuple):
    first: float
    second: float

@nb.njit(cache=True, inline="always")
def inlined(value):
    return 2.0 * value

@inner
def deep(value):
    return 2.0 * value

@inner
def called(value):
    return deep(value)

@nb.njit(cache=True, error_model="numpy")
def by_zero(value):
    return value / 0.0

@register_jitable
def jitable(value):
    return 2.0 * value

def either(value):
    raise NotImplementedError

@overload(either)
def _either(value):
    return _scaled

def _scaled(value):
    return 2.0 * value

def _constant(builder, value):
    return builder.fmul(value, ir.DoubleType()(2.0))

@intrinsic
def machine(context, value):
    def generate(context, builder, signature, arguments):
        return _constant(builder, arguments[0])
    return value(value), generate

def walk(values, n):
    for i in range(n):
        yield i, 2.0 * values[i]
"""

_KERNELS = """
import numba as nb
import numpy as np
from graphtide.gpma.splice import spliced
from . import parts
from .parts import FACTOR, TABLE, Pair, called, either, inlined, by_zero, jitable, machine, walk

def alone(value):
    return 2.0 * value

def of_inlined(value):
    return inlined(value)

def of_called(value):
    return called(value)

def of_a_module(value):
    return parts.called(value)

def of_an_option(value):
    return 4.0 if by_zero(value) == np.inf else 0.0

def of_jitable(value):
    return jitable(value)

def of_an_overload(value):
    return either(value)

def of_an_intrinsic(value):
    return machine(value)

def of_a_constant(value):
    return FACTOR * value

def of_a_table(value):
    return TABLE[0] * value

def of_a_record(value):
    return Pair(2.0 * value, 3.0 * value).first

def of_fields(pair):
    return pair.first

@spliced
def of_a_walk(values):
    total = 0.0
    for i, value in walk(values, 1):
        total += value
    return total
"""

_RUN = """
import json, sys
from pathlib import Path
import graphtide.gpma
from numba.core import event
from graphtide.gpma import shipped
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "ours":
    shipped.PACKAGE = Path(sys.argv[1], "own")
import numba as nb
import numpy as np
from own import kernels, parts

class Count(event.Listener):
    n = 0
    def on_start(self, compiling):
        Count.n += 1
    def on_end(self, compiling): ...

event.register("numba:compile", Count())
found = {}
for name in sys.argv[3].split(","):
    Count.n = 0
    kernel = nb.njit(cache=True)(getattr(kernels, name))
    given = {"of_fields": parts.Pair(4.0, 6.0), "of_a_walk": np.full(1, 2.0)}.get(name, 2.0)
    try:
        found[name] = kernel(given), Count.n
    except ZeroDivisionError:
        found[name] = 6.0, Count.n
print(json.dumps(found))
"""

NAMES = sorted(line.split()[1].partition("(")[0] for line in _KERNELS.splitlines() if line.startswith("def "))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with kernels in one file, and what they are made of in another."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "parts.py").write_text(_PARTS)
    (tmp_path / "own" / "kernels.py").write_text(_KERNELS)
    return tmp_path


def run(folder: Path, whose: str, names: list[str]) -> dict[str, tuple[float, int]]:
    """What each kernel gives in a new process, and how many kernels are compiled for it."""
    known = [str(ROOT / ".links"), *sys.path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(known),
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",  # bytecode of before would be taken for the text's of the same second
    }
    command = [sys.executable, "-c", _RUN, str(folder), whose, ",".join(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: (value, n) for name, (value, n) in json.loads(done.stdout).items()}


def change(folder: Path, factor: int = 3) -> None:
    """Everything in the other file gives three times what it gets, no longer twice."""
    parts = folder / "own" / "parts.py"
    text = _PARTS.replace("2.0", f"{factor}.0").replace('error_model="numpy"', 'error_model="python"')
    parts.write_text(text.replace("first: float\n    second", "second: float\n    first"))


def kept(folder: Path) -> int:
    return len([*(folder / "cache").rglob("*.nbc")])


@pytest.mark.sample(among="kernels in the cache")
def test_a_change_in_another_module_is_seen(folder: Path) -> None:
    """In functions that are inlined or called, by others too, in what stands for them, and in constants."""
    first = run(folder, "ours", NAMES)
    assert {name: value for name, (value, _) in first.items()} == dict.fromkeys(NAMES, 4.0)
    assert all(n > 0 for _, n in first.values())
    assert run(folder, "ours", NAMES) == dict.fromkeys(NAMES, (4.0, 0)), "nothing is compiled again"
    change(folder)
    then = run(folder, "ours", NAMES)
    assert then.pop("alone") == (4.0, 0)
    assert {name: value for name, (value, _) in then.items()} == dict.fromkeys(then, 6.0)


@pytest.mark.sample(among="kernels in the cache")
def test_it_makes_no_difference_where_a_package_lies_and_what_stands_beside_a_kernel(folder: Path) -> None:
    """In another virtual environment, say, or after an upgrade."""
    elsewhere = folder / "elsewhere"
    assert run(folder, "ours", NAMES)["of_called"][1] > 0
    shutil.copytree(folder / "own", elsewhere / "own")
    (folder / "cache").rename(elsewhere / "cache")
    with open(elsewhere / "own" / "kernels.py", "a") as file:
        file.write("\nBESIDE = 7\n")
    assert run(elsewhere, "ours", NAMES) == dict.fromkeys(NAMES, (4.0, 0))


@pytest.mark.sample(among="all that the cache is for")
def test_of_each_form_a_few_versions_are_kept(folder: Path) -> None:
    """Two checkouts that are used in turns do not take each other's kernels away."""
    names, found = ["of_called"], []
    for factor in range(2, 8):
        change(folder, factor)
        assert run(folder, "ours", names)["of_called"] == (2.0 * factor, 3), "a kernel, and two that it calls"
        found.append(kept(folder))
    assert found == [min(3 * n, 3 * FORMS_MAX) for n in range(1, 7)]
    change(folder, 8 - FORMS_MAX)
    assert run(folder, "ours", names)["of_called"] == (2.0 * (8 - FORMS_MAX), 0), "the oldest that is kept"
    change(folder, 7 - FORMS_MAX)
    assert run(folder, "ours", names)["of_called"] == (2.0 * (7 - FORMS_MAX), 3)


@pytest.mark.sample(among="kernels in the cache")
def test_so_is_one_in_a_function_that_kernels_of_other_packages_use(folder: Path) -> None:
    names = ["alone", "of_called", "of_jitable"]
    assert all(value == 4 and n > 0 for value, n in run(folder, "theirs", names).values())
    change(folder)
    then = run(folder, "theirs", names)
    assert then.pop("alone") == (4.0, 0)
    assert all(value == 6 and n > 0 for value, n in then.values())


def kernels() -> Iterator[Any]:
    """Every kernel that a module of graphtide defines."""
    for room in ("compute", "daemon", "gpma", "partition"):
        for info in pkgutil.walk_packages([str(ROOT / room)], f"graphtide.{room}."):
            yield from vars(importlib.import_module(info.name)).values()


def test_of_all_that_our_kernels_use_it_is_known_what_it_does() -> None:
    ours = [kernel for kernel in kernels() if isinstance(kernel, Dispatcher)]
    assert len(ours) > 300
    untold = {
        (kernel.py_func.__qualname__, repr(fact.value))
        for kernel in ours
        for fact in facts(kernel.py_func)
        if isinstance(fact, Untold)
    }
    assert untold == set()
