"""The rules that tools can check: style, types, and imports that run one way."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("compute", "daemon", "gpma", "ops", "partition")
KERNELS = {"nb.njit", "_jit", "_inner", "inner", "uncounted", "uncounted_inner"}
"""What decorates a kernel."""
ONE_WAY = "the way of a record, then of an answer"


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_style() -> None:
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")


def test_types() -> None:
    link = ROOT / ".links" / "graphtide"
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to("..")
    run("mypy")


def test_the_clients_methods_have_types(tmp_path: Path) -> None:
    """They are made of descriptions; a user's type checker must see what they take and return all the same."""
    snippet = """
from typing import assert_type
from graphtide import AsyncClient, Client
from graphtide.daemon.client import Top, Values, ValuesByProgram

async def ask(client: Client, late: AsyncClient) -> None:
    assert_type(client.top("pagerank", 3, order="asc"), Top)
    assert_type(client.get("pagerank", [1], parents=True), Values)
    assert_type(client.get(["pagerank"], [1]), ValuesByProgram)
    assert_type(await late.top("pagerank", k=3), Top)
    assert_type(await late.get("pagerank", vertices=[1]), Values)
    assert_type(await late.get(("pagerank",), [1]), ValuesByProgram)
    late.stats()  # type: ignore[unused-coroutine]
    client.top(3)  # type: ignore[arg-type]
    client.top("pagerank", odrer="asc")  # type: ignore[call-arg]
    client.get(3, [1])  # type: ignore[call-overload]
"""
    file = tmp_path / "asking.py"
    file.write_text(snippet)
    run("mypy", "--warn-unused-ignores", str(file))


def test_imports_run_one_way() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_let_go_of_the_interpreter() -> None:
    """Whoever ingests, computes or answers would wait for the end of one that does not."""
    keeps = []
    for module in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for function in ast.walk(ast.parse(module.read_text())):
            for made in getattr(function, "decorator_list", ()):
                if isinstance(made, ast.Call) and ast.unparse(made.func) in ("nb.njit", "njit", "numba.njit"):
                    given = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
                    if given.get("nogil") != "True":
                        keeps.append((str(module.relative_to(ROOT)), function.name))
    shorter_than_a_handover = [("gpma/rows.py", "copy_short_row")]
    assert sorted(keeps) == sorted(shorter_than_a_handover)


def test_kernels_look_for_keys_by_means_of_our_own() -> None:
    """``np.searchsorted`` has four functions of Numba's compiled, or more, for each kind of key."""
    by_numba = []
    for module in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for function in ast.walk(ast.parse(module.read_text())):
            made = " ".join(map(ast.unparse, getattr(function, "decorator_list", ())))
            if {*made.replace("(", " ").split()} & KERNELS and "np.searchsorted" in ast.unparse(function):
                by_numba.append((str(module.relative_to(ROOT)), function.name))
    assert not by_numba


def plant(folder: Path, file: str, line: str) -> subprocess.CompletedProcess[str]:
    """What the contracts say of a copy of the package, with one more line at the end of a file."""
    for module in [*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]:
        copy = folder / "graphtide" / module.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(module.read_bytes())
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with open(folder / "graphtide" / file, "a") as changed:
        changed.write(f"\n{line}\n")
    script = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [script, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_columns_of_operations_are_compared_quickly() -> None:
    """With ``Op.among``, or a ``np.uint8``: with a member itself NumPy takes ten times as long."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and _is_member(node) and _is_column(node.left)
    ]
    assert found == []


def _is_member(compared: ast.Compare) -> bool:
    """Something is compared with ``Op.INSERT`` or the like."""
    text = ast.unparse(compared.comparators[0])
    return len(compared.comparators) == 1 and text.startswith("Op.")


def _is_column(compared: ast.expr) -> bool:
    """It is called operations, and is not made one number."""
    return "ops" in ast.unparse(compared) and not isinstance(compared, ast.Call)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("compute/engine.py", "from ..daemon import errors", "imports flow one way"),
        ("gpma/host/search.py", "from ..index import ids", "host, device and index"),
        ("gpma/rows.py", "from .host import arrays", "host, device and index"),
        ("gpma/device/report.py", "from ..host import arrays", "host, device and index"),
        ("gpma/another.py", "", "host, device and index"),
        ("partition/weights.py", "from . import graph", "a graph stands on its parts"),
        ("compute/program.py", "from .paths import bfs", "families stand side by side"),
        ("compute/walks/ppr.py", "from ..paths import program", "families stand side by side"),
        ("compute/forest/cut.py", "from .. import engine", "families stand side by side"),
        ("compute/walks/passes.py", "from . import pagerank", "no circle"),
        ("daemon/ingest/loop.py", "from ..engine import pipeline", ONE_WAY),
        ("daemon/ingest/reuse.py", "if TYPE_CHECKING: from ..engine import pipeline", ONE_WAY),
        ("daemon/ingest/sources.py", "from ..serve import results", ONE_WAY),
        ("daemon/serve/results.py", "from ..state import checkpoint", ONE_WAY),
        ("daemon/state/checkpoint.py", "def late():\n    from ..ingest import dense", ONE_WAY),
        ("daemon/records/stream.py", "from ..config import settings", ONE_WAY),
        ("daemon/tools/produce.py", "from .. import service", ONE_WAY),
        ("daemon/service.py", "from .tools import produce", ONE_WAY),
        ("daemon/a_new_module.py", "", ONE_WAY),
        ("daemon/client/wire.py", "from ...gpma import edges", "the client needs errors"),
        ("daemon/client/wire.py", "from .. import terminal", "the client needs errors"),
        ("daemon/serve/methods/reading.py", "from ...client import results", "only tools use the clients"),
        ("daemon/serve/serving.py", "from . import methods", "no circle"),
        ("daemon/ingest/dense.py", "from . import prepared", "no circle"),
    ],
)
def test_a_wrong_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    done = plant(tmp_path, file, line)
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in broken if contract in name], broken


def test_nothing_else_breaks_a_contract(tmp_path: Path) -> None:
    """What the test above plants is what it finds: a comment is no import."""
    done = plant(tmp_path, "daemon/ingest/loop.py", "# from ..engine import pipeline")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers and those inside of functions count."""
    graph = grimp.build_graph("graphtide", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1][::-1]))


@pytest.mark.parametrize(
    ("use", "heavy"),
    [
        ("import graphtide; graphtide.Client", {"numba", "kafka", "pydantic", "scipy", "asyncio"}),
        ("import graphtide; graphtide.AsyncClient", {"numba", "kafka", "pydantic", "scipy"}),
        ("import graphtide.daemon.client", {"numpy", "msgpack"}),
        ("import graphtide.daemon.serve.server", {"kafka", "pydantic", "prometheus_client"}),
    ],
)
def test_what_must_start_quickly_loads_nothing_heavy(use: str, heavy: set[str]) -> None:
    """A query client: no compiler, no broker client. The query server: nothing that only the daemon needs."""
    code = f"import sys; {use}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & heavy


def test_every_package_is_named_for_the_wheel() -> None:
    """One that is not is missing where graphtide is installed, and nowhere else."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    ours = {folder for folder in folders if folder.parts[:2] != ("ops", "client")}  # a wheel of its own
    assert {"graphtide", *(".".join(("graphtide", *folder.parts)) for folder in ours)} == set(named)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), ".")
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_holds_everything_under_one_name(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"graphtide"}
    for needed in (
        "py.typed",
        "ops/dashboards/overview.json",
        "ops/kafka/pom.xml",
        "daemon/serve/server.py",
        "gpma/device/rows.cuh",
        "compute/device/functor.cuh",
    ):
        assert f"graphtide/{needed}" in names
    assert not [name for name in names if "/tests/" in name or "/benchmarks/" in name]
