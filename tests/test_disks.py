"""What cannot be tried on a machine is a failure in CI, and is never left out in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import test_permissions
import test_poison
from disks import small_disk


@pytest.fixture
def nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be mounted, and no tool is there."""
    failed = subprocess.CompletedProcess[bytes]([], 1, b"", b"not permitted")
    monkeypatch.setattr(os, "system", lambda command: 1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.mark.parametrize("in_ci", [True, False])
@pytest.mark.usefixtures("nothing_works")
def test_a_disk_that_cannot_be_mounted_is_a_failure_in_ci(
    in_ci: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true" if in_ci else "")
    if in_ci:
        with (
            pytest.raises(pytest.fail.Exception, match="no file system can be mounted"),
            small_disk(tmp_path / "d", 1),
        ):
            pass
    else:
        with small_disk(tmp_path / "d", 1) as disk:
            assert disk is None and "full disks are left out" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_works")
def test_what_is_skipped_elsewhere_is_a_failure_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, outcome in (("true", pytest.fail.Exception), ("", pytest.skip.Exception)):
        monkeypatch.setenv("CI", value)
        with pytest.raises(outcome, match="systemd-analyze"):
            test_permissions.test_the_unit_is_one(tmp_path)
        (tmp_path / value).mkdir(exist_ok=True)
        with pytest.raises(outcome, match="can be mounted"):
            next(test_poison.small_disk.__wrapped__(tmp_path / value))  # type: ignore[attr-defined]
