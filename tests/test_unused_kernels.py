"""The cache of kernels loses what nobody uses, and nothing else."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_made_of import folder, run

from graphtide.daemon import kernels
from graphtide.gpma import runtime, unused_kernels
from graphtide.gpma.unused_kernels import DAY_S, KEPT_S, forget_unused

__all__ = ["folder"]  # a fixture


def age(path: Path, days: float, read: float | None = None) -> None:
    """As if it had been written, and read, so long ago."""
    now = time.time()
    os.utime(path, (now - (days if read is None else read) * DAY_S, now - days * DAY_S))


def test_kernels_that_no_start_has_used_are_removed_and_compiled_again_when_they_are_wanted(folder: Path) -> None:
    cache = folder / "cache"
    assert all(n > 0 for _, n in run(folder, "ours", ["alone", "of_called"]).values())
    others = cache / "somebody_0123"
    others.mkdir()
    (others / "theirs.f-1.py311.nbi").touch()
    for file in (path for path in cache.rglob("*") if path.is_file()):
        age(file, 31)
    assert run(folder, "ours", ["of_called"]) == {"of_called": (4.0, 0)}, "this start uses one"
    assert forget_unused(cache) > 0
    there = {path.name.split("-")[0] for path in cache.rglob("*.nb[ci]")}
    assert {"kernels.of_called", "theirs.f"} <= there and "kernels.alone" not in there
    assert len([*cache.rglob("turns.lock")]) > 0
    assert run(folder, "ours", ["of_called", "alone"]) == {"of_called": (4.0, 0), "alone": (4.0, 1)}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """One with an index of kernels, and what CuPy has."""
    for name in (
        "graphtide.gpma/a.f-1.py311.nbi",
        "graphtide.gpma/a.f-1.py311.0-1.nbc",
        "cupy/read.cubin",
        "cupy/not.cubin",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    age(tmp_path / "cupy" / "read.cubin", 50, read=29)
    age(tmp_path / "cupy" / "not.cubin", 50, read=31)
    return tmp_path


def left(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*.*") if path.suffix in (".nbi", ".nbc", ".cubin")}


def test_a_kernel_stays_as_long_as_its_index_is_used(cache: Path) -> None:
    age(cache / "graphtide.gpma" / "a.f-1.py311.0-1.nbc", 300)
    age(cache / "graphtide.gpma" / "a.f-1.py311.nbi", KEPT_S / DAY_S - 1)
    forget_unused(cache)
    assert {"a.f-1.py311.nbi", "a.f-1.py311.0-1.nbc"} <= left(cache)


def test_one_whose_index_is_gone_does_not(cache: Path) -> None:
    (cache / "graphtide.gpma" / "a.f-1.py311.nbi").unlink()
    age(cache / "graphtide.gpma" / "a.f-1.py311.0-1.nbc", 31)
    forget_unused(cache)
    assert "a.f-1.py311.0-1.nbc" not in left(cache)


def test_cupys_kernels_go_by_when_they_were_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOATIME))
        assert forget_unused(cache) == 0, "nobody knows when that was"
    (cache / unused_kernels._LOOKED).unlink()
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_RELATIME))
    assert forget_unused(cache) == 1
    assert "read.cubin" in left(cache) and "not.cubin" not in left(cache)


def test_it_is_looked_for_once_a_day(cache: Path) -> None:
    forget_unused(cache)
    for file in cache.rglob("*.*"):
        if file.is_file() and file.name != unused_kernels._LOOKED:
            age(file, 31)
    assert forget_unused(cache) == 0
    age(cache / unused_kernels._LOOKED, 1.1)
    assert forget_unused(cache) == 3 and left(cache) == set()


@pytest.mark.parametrize("what", ["a file that may not be removed", "no folder"])
def test_what_is_wrong_with_one_keeps_no_other_one_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for file in cache.rglob("*.*"):
        if file.is_file():
            age(file, 31)
    remove, refused = Path.unlink, list[str]()

    def remove_but_the_first(path: Path) -> None:
        if not refused:
            refused.append(path.name)
            raise PermissionError(path)
        remove(path)

    if what == "no folder":
        (cache / "graphtide.0").touch()
        folders = sorted(cache.iterdir(), key=lambda path: path.is_dir())
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(folders))
    else:
        monkeypatch.setattr(Path, "unlink", remove_but_the_first)
    assert forget_unused(cache) == 4 - len(refused) and left(cache) == set(refused)


def test_a_cache_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert forget_unused(tmp_path / "none") == 0


def test_what_is_no_kernel_is_left_alone_whatever_its_folder_is_called(cache: Path) -> None:
    """Who keeps the cache among checkouts, say."""
    others = [cache / name for name in ("graphtide/notes.txt", "graphtide.gpma/turns.lock", "cupy/setup.py")]
    half_written = cache / "graphtide.gpma" / "a.f-1.py311.nbi.tmp.0123456789abcdef"
    for file in (*others, half_written):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        age(file, 400)
    forget_unused(cache)
    assert all(file.exists() for file in others) and not half_written.exists()


def test_a_folder_that_cannot_be_looked_into_keeps_no_other_from_being_cleaned(cache: Path) -> None:
    for number in range(20):
        (cache / f"graphtide.{number}").touch()
    (cache / "graphtide.compute").mkdir()
    (cache / "graphtide.compute" / "b.f-1.py311.nbi").touch()  # before or behind them, in whatever order they come
    for file in cache.rglob("*.nb[ci]"):
        age(file, 31)
    forget_unused(cache)
    assert not [*cache.rglob("*.nb[ci]")]


def test_what_a_running_daemon_has_stays_for_its_next_start(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has loaded it long ago, and another daemon starts."""
    index = cache / "graphtide.gpma" / "a.f-1.py311.nbi"

    looked = threading.Event()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            """A month goes by, and then the daemon ends."""
            if self.is_set():
                looked.set()
                return True
            for file in (index, cache / unused_kernels._LOOKED):
                age(file, 31)
            self.set()
            return False

    monkeypatch.setattr(runtime, "cache_directory", lambda: cache)
    monkeypatch.setattr(unused_kernels, "_indices", set())
    unused_kernels.note_use(str(index))
    kernels.look_after_cache(Stop())
    assert looked.wait(60)
    forget_unused(cache)
    assert {index.name, "a.f-1.py311.0-1.nbc"} <= left(cache)


def test_where_the_system_grants_no_thread_a_daemon_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    stop = threading.Event()
    monkeypatch.setattr(runtime, "cache_directory", lambda: cache)
    monkeypatch.setattr(mmap, "mmap", refuse)
    kernels.look_after_cache(stop)
    begun = [thread for thread in threading.enumerate() if thread.name == "kernel-cache"]
    stop.set()
    assert not begun
