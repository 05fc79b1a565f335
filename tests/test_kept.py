"""The list of programs that were kept at run time: whole after any crash, and as it was answered."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from graphtide.daemon.errors import CheckpointError, NotWritten
from graphtide.daemon.state.kept import FILE, KeptPrograms, parameters_of, read_kept

HOPS = {"name": "bfs", "source": [1, 2]}
RANKS = {"name": "pagerank", "tolerance": 0.01}


def test_what_was_kept_is_there_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    kept = KeptPrograms(tmp_path)
    assert len(kept) == 0 and "hops" not in kept and read_kept(tmp_path) == {}
    kept.add("hops", HOPS)
    kept.add("ranks", RANKS)
    kept.remove("nothing")
    assert read_kept(tmp_path) == KeptPrograms(tmp_path).programs == {"hops": HOPS, "ranks": RANKS}
    kept.remove("hops")
    assert read_kept(tmp_path) == {"ranks": RANKS}
    assert kept.get("hops") is None and parameters_of(RANKS) == {"tolerance": 0.01}


def test_a_disk_that_takes_nothing_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPrograms(tmp_path)
    kept.add("hops", HOPS)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for change in (lambda: kept.add("ranks", RANKS), lambda: kept.remove("hops")):
        with pytest.raises(NotWritten, match="No space left"):
            change()
        assert kept.programs == read_kept(tmp_path) == {"hops": HOPS}


@pytest.mark.parametrize("failures", [1, 2])
def test_a_folder_that_cannot_be_synced_is_answered_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The new list stands there by then, and would be found by any start."""
    kept = KeptPrograms(tmp_path)
    kept.add("hops", HOPS)
    sync, left = os.fsync, 0

    def fails(handle: int) -> None:
        nonlocal left
        if left and stat.S_ISDIR(os.fstat(handle).st_mode):
            left -= 1
            raise OSError(5, "Input/output error")
        sync(handle)

    for change in (lambda: kept.add("ranks", RANKS), lambda: kept.remove("hops")):
        left = failures
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(NotWritten, match="Input/output error") as told:
                change()
        assert kept.programs == read_kept(tmp_path) == {"hops": HOPS}
        assert ("the next start may find it as it was asked" in told.value.message) == (failures == 2)
    kept.remove("hops")
    assert read_kept(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"format": 1, "programs": null}',
        '{"format": 2, "programs": {}}',
        '{"format": 1, "programs": [1]}',
        '{"format": 1, "programs": {"hops": {}}}',
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*move it away"):
        KeptPrograms(tmp_path)


def test_a_list_that_may_not_be_read_now_is_not_to_be_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does so loses programs that are as good as ever."""
    KeptPrograms(tmp_path).add("hops", HOPS)

    def refuse(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(CheckpointError, match=r"kept\.json', cannot be read: Permission denied\. It may") as told:
        KeptPrograms(tmp_path)
    assert f"user {os.geteuid()}" in told.value.message and "away" not in told.value.message


@pytest.mark.parametrize(("point", "there"), [("kept.before_replace", []), ("kept.replaced", ["hops"])])
def test_it_is_whole_wherever_the_process_dies(tmp_path: Path, point: str, there: list[str]) -> None:
    program = f"""
from pathlib import Path
from graphtide.daemon.state.kept import KeptPrograms
KeptPrograms(Path({str(tmp_path)!r})).add("hops", {HOPS!r})
"""
    environment = {**os.environ, "GRAPHTIDE_KILL_AT": f"{point}:1"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(read_kept(tmp_path)) == there
    KeptPrograms(tmp_path).add("ranks", RANKS)
    assert list(read_kept(tmp_path)) == [*there, "ranks"]
