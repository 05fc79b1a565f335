"""What a test needs and is not there lets it skip on a machine of one's own, and fail in CI."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import needed, skip_or_fail

TESTS = Path(__file__).resolve().parent
PACKAGES = ("default-jre-headless", "maven", "prometheus", "g++", "nodejs", "chromium", "curl", "systemd")


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_what_is_missing_fails_in_ci_alone(ci: str, outcome: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no such tool"):
        skip_or_fail("no such tool")
    with pytest.raises(outcome, match="no such module"):
        needed("graphtide_is_not_this", "no such module")
    assert needed("re", "never") is re


def test_no_test_skips_by_itself_for_want_of_a_module_or_a_tool() -> None:
    by_itself = re.compile(r"importorskip\((?!\"cupy\")|skipif\([^)]*(is None|which\()")
    for file in TESTS.glob("*.py"):
        found = by_itself.findall(file.read_text("utf-8"))
        assert not found or file == Path(__file__), (file, found)


@pytest.mark.parametrize("user", ["root", "other"])
@pytest.mark.parametrize("ci", [False, True])
def test_debian_packages_that_cannot_be_had_are_named_and_fail_in_ci(user: str, ci: bool, tmp_path: Path) -> None:
    if user == "root" and os.geteuid() != 0:
        user = "other"
    for name, lines in {
        "id": f"echo {0 if user == 'root' else 1000}",
        "apt-get": "echo no network; exit 100",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("chmod", "mktemp", "rm", "tail"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    environment = {"PATH": str(tmp_path), **({"CI": "true"} if ci else {})}
    done = subprocess.run(
        ["/bin/sh", str(TESTS.parent / "ops" / "debian.sh")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == ci, done.stdout + done.stderr
    said = done.stderr if ci else done.stdout
    assert all(f" {package}" in said for package in PACKAGES)
    assert ("no network" in done.stdout) == (user == "root")
    assert ("will be skipped" in done.stdout) != ci


def test_nothing_is_installed_where_nothing_is_missing(tmp_path: Path) -> None:
    for name in ("java", "mvn", "prometheus", "promtool", "g++", "node", "chromium", "curl", "systemd-analyze"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(TESTS.parent / "ops" / "debian.sh")],
        env={"PATH": str(tmp_path), "CI": "true"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
