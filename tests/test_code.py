"""The rules that tools can check: style, types, and imports that run one way."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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


def test_imports_run_one_way() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_does_not_load_the_engine() -> None:
    """A query client must start quickly: no compiler, no broker client."""
    code = "import sys, graphtide; graphtide.Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numba", "kafka", "pydantic", "scipy"}


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
    ):
        assert f"graphtide/{needed}" in names
    assert not [name for name in names if "/tests/" in name or "/benchmarks/" in name]
