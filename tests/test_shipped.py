"""Kernels that came compiled: taken where they fit, passed over in silence where anything does not."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba.core import config
from running import Daemon, toml

from graphtide.compute import registry
from graphtide.daemon import kernels
from graphtide.daemon.errors import GraphtideError, NotWritten
from graphtide.daemon.kernels import COMPILE, Needs
from graphtide.daemon.tools import portable
from graphtide.gpma import kernel_cache, shipped
from graphtide.gpma.kernel_cache import Missing, listening, only_from_cache
from graphtide.gpma.shipped import Shipped

ROOT = Path(__file__).resolve().parents[1]

_KERNELS = """
import numba as nb

@nb.njit(cache=True)
def part(value):
    return 2 * value

def without_cells(function):
    # as kernels have whose walks were put in their place: a closure of nothing
    return type(function)(function.__code__, function.__globals__, function.__name__, None, ())

@nb.njit(cache=True)
@without_cells
def total(values):
    found = values[0]
    for value in values:
        found += part(value)
    return found
"""


def fresh(package: Path) -> Any:
    """The kernels of a package, with nothing loaded."""
    spec = importlib.util.spec_from_file_location("own.sums", package / "sums.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def count(work: Callable[[], object]) -> int:
    """How many kernels are compiled meanwhile."""
    begun: list[int] = []
    with listening(COMPILE, lambda: begun.append(1)):
        work()
    return len(begun)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of its own, with a file of its compiled kernels."""
    folder = tmp_path_factory.mktemp("made")
    package, cache = folder / "own", folder / "cache"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(_KERNELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "PACKAGE", package)
        patch.setattr(config, "CACHE_DIR", str(cache))
        module = fresh(package)
        assert count(lambda: module.total(np.arange(4.0))) == 2
        assert shipped.write(cache, package / "kernels.bin") == 2
    return package


@pytest.fixture
def package(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """It, as the one that is installed here, beside a cache that is empty."""
    folder = tmp_path / "own"
    shutil.copytree(made, folder)
    monkeypatch.setattr(shipped, "PACKAGE", folder)
    monkeypatch.setattr(shipped, "FILE", folder / "kernels.bin")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "empty"))
    shipped.shipped.cache_clear()
    yield folder
    shipped.shipped.cache_clear()


def test_kernels_that_came_compiled_are_loaded(package: Path) -> None:
    def work() -> None:
        with only_from_cache():
            assert fresh(package).total(np.arange(4.0)) == 12

    assert count(work) == 0
    assert not [*package.parent.rglob("*.nb[ci]")], "they need no second place"


def test_forms_that_did_not_come_are_compiled_on_those_that_did(package: Path) -> None:
    module = fresh(package)
    assert count(lambda: module.total(np.arange(4))) == 2
    assert module.total(np.arange(4)) == 12

    assert count(lambda: fresh(package).total(np.arange(4))) == 0, "the cache has them now"


def rewritten(file: Path, **facts: str) -> None:
    """The file says that it was made for something else."""
    form, header, _, parts = file.read_bytes().split(b"\n", 3)
    said = json.loads(header)
    said["made_for"].update(facts)
    header = json.dumps(said).encode() + b"\n"
    file.write_bytes(b"%b\n%b%d\n%b" % (form, header, zlib.crc32(header), parts))


@pytest.mark.parametrize("fact", ["sources", "python", "numba", "llvmlite", "system"])
def test_kernels_made_for_something_else_are_passed_over(package: Path, fact: str) -> None:
    rewritten(shipped.FILE, **{fact: "another"})
    assert f"made for {fact} another, not " in str(shipped.shipped())
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2


def test_kernels_for_another_processor_are_passed_over(package: Path) -> None:
    lacking = next(name for name, here in llvm.get_host_cpu_features().items() if not here)
    rewritten(shipped.FILE, features=f"+sse2,+{lacking},-avx")
    assert str(shipped.shipped()).endswith(f"this processor lacks {lacking}")
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2


def test_who_names_a_processor_gets_kernels_for_that(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CPU_NAME", "x86-64")
    assert "NUMBA_CPU_NAME" in str(shipped.shipped())


def test_who_denies_wide_registers_gets_kernels_without(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten(shipped.FILE, features="+avx")
    assert isinstance(shipped.shipped(), Shipped) == llvm.get_host_cpu_features().get("avx", False)
    shipped.shipped.cache_clear()
    monkeypatch.setattr(config, "ENABLE_AVX", 0)  # as NUMBA_ENABLE_AVX does
    assert str(shipped.shipped()).endswith("this processor lacks avx")


def test_kernels_that_name_what_is_not_here_are_passed_over(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a module of another NumPy."""
    whole = shipped.FILE.read_bytes()
    assert whole.count(b"numba") > 1
    begin = Shipped.read(shipped.FILE).begin
    parts = whole[begin:].replace(b"numba", b"amnub")
    said = json.loads(whole.split(b"\n", 2)[1])
    for name, (offset, length, _) in said["parts"].items():
        said["parts"][name] = offset, length, zlib.crc32(parts[offset : offset + length])
    header = json.dumps(said).encode() + b"\n"
    shipped.FILE.write_bytes(b"%b%b%d\n%b" % (shipped._FORMAT, header, zlib.crc32(header), parts))
    assert isinstance(shipped.shipped(), Shipped)
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2


def test_kernels_of_modules_that_have_changed_are_passed_over(package: Path) -> None:
    with open(package / "sums.py", "a") as module:
        module.write("\n# another line, which moves nothing\n")
    assert "made for sources " in str(shipped.shipped())
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2


def test_modules_count_wherever_they_stand_and_by_their_names(package: Path) -> None:
    """Also those in packages below; what is no module of a package does not."""
    seen = [shipped._sources()]

    def changes() -> bool:
        seen.append(shipped._sources())
        return seen[-1] not in seen[:-1]

    (package / "data").mkdir()
    (package / "data" / "notes.py").write_text("1")
    assert not changes(), "a folder that is no package"
    (package / "data" / "__init__.py").touch()
    assert changes()
    (package / "data" / "notes.py").rename(package / "data" / "renamed.py")
    assert changes()
    (package / "data" / "renamed.py").write_text("2")
    assert changes()


@pytest.mark.parametrize("damage", ["format", "header", "cut in the header", "parts", "cut in the parts", "empty"])
def test_a_damaged_file_is_passed_over(package: Path, damage: str) -> None:
    whole = shipped.FILE.read_bytes()
    begin = Shipped.read(shipped.FILE).begin

    def flipped(place: int) -> bytes:
        return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]

    shipped.FILE.write_bytes(
        {
            "format": flipped(3),
            "header": flipped(begin // 2),
            "cut in the header": whole[: begin // 2],
            "parts": whole[:begin] + bytes(byte ^ 1 for byte in whole[begin:]),
            "cut in the parts": whole[: begin + 1],
            "empty": b"",
        }[damage]
    )
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2
    assert isinstance(shipped.shipped(), str) == ("parts" not in damage)


def test_a_checkout_has_none_and_nothing_is_said(package: Path) -> None:
    shipped.FILE.unlink()
    assert shipped.shipped() is None
    assert count(lambda: fresh(package).total(np.arange(4.0))) == 2


def test_kernels_of_other_packages_are_not_looked_for(package: Path) -> None:
    other = package.parent / "other"
    shutil.copytree(package, other)
    assert count(lambda: fresh(other).total(np.arange(4.0))) == 2


def test_where_no_folder_can_be_written_they_are_loaded_all_the_same(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "SharedCache", nowhere)
    with only_from_cache():
        assert fresh(package).total(np.arange(4.0)) == 12
    with pytest.raises(Missing), only_from_cache():
        fresh(package).total(np.arange(4))
    assert fresh(package).total(np.arange(4)) == 12


def nowhere(function: object) -> None:
    raise RuntimeError("as Numba says where no folder will do")


def test_what_was_compiled_for_two_processors_is_not_mixed(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 processors"):
        shipped.write(tmp_path, tmp_path / "kernels.bin")
    assert not (tmp_path / "kernels.bin").exists()


def test_the_portable_target_is_made_of_features_that_llvm_knows() -> None:
    known = llvm.get_host_cpu_features()
    for _, features in portable.TARGETS.values():
        names = features.split(",")
        assert names and all(name[0] == "+" and name[1:] in known for name in names)


def compiler(status: int, cache: Path) -> Callable[..., SimpleNamespace]:
    """Stands for the process that compiles everything: it leaves what is in this cache."""

    def run(command: Sequence[str], env: Mapping[str, str], **options: object) -> SimpleNamespace:
        assert command[-2:] == ["graphtide.daemon.kernels", "--all"]
        assert (env["NUMBA_CPU_NAME"], env["NUMBA_CPU_FEATURES"]) == portable.TARGETS["x86_64"]
        assert env["NUMBA_DISABLE_INTEL_SVML"] == "1"
        assert not {"NUMBA_BOUNDSCHECK", "NUMBA_CACHE_LOCATOR_CLASSES"} & env.keys()
        shutil.copytree(cache, env["NUMBA_CACHE_DIR"], dirs_exist_ok=True)
        return SimpleNamespace(returncode=status)

    return run


def test_portable_kernels_are_put_into_the_package(
    made: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(subprocess, "run", compiler(0, made.parent / "cache"))
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "InTreeCacheLocator")
    with monkeypatch.context() as patch:
        patch.setattr(shipped, "PACKAGE", made)  # Numba's cache goes by where the modules were
        shipped.FILE.unlink()
        assert portable.compile_portable() == (2, shipped.FILE)
    assert isinstance(shipped.shipped(), Shipped)
    assert [file.name for file in package.iterdir() if "kernels" in file.name] == ["kernels.bin"]
    monkeypatch.setattr(shipped, "PACKAGE", made)
    monkeypatch.setattr(shipped, "FILE", package / "no" / "kernels.bin")
    with pytest.raises(NotWritten, match=r"kernels\.bin"):
        portable.compile_portable()
    shipped.FILE.mkdir(parents=True)
    with pytest.raises(NotWritten, match=r"kernels\.bin"):
        portable.compile_portable()
    assert [file.name for file in shipped.FILE.parent.iterdir()] == ["kernels.bin"]


def test_portable_kernels_are_refused_where_they_cannot_be_made(
    made: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shipped.FILE.read_bytes()
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(GraphtideError, match="on x86_64, not on vax"):
        portable.compile_portable()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(subprocess, "run", compiler(1, made.parent / "cache"))
    with pytest.raises(GraphtideError, match="status 1"):
        portable.compile_portable()
    assert shipped.FILE.read_bytes() == whole


@pytest.mark.timeout(900)  # unless another test has, it compiles them, on a machine as busy as it may be
def test_kernels_are_compiled_ahead_for_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "graphtide.toml").write_text(toml({"graph": {"weights": "unweighted"}, "program": []}))
    done = subprocess.run(
        [sys.executable, "-m", "graphtide", "kernels", "--config", "graphtide.toml"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "kernels are ready after" in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["graphtide.toml"]


def test_a_start_says_why_it_compiles_though_kernels_came_along(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rewritten(shipped.FILE, numba="0.1")
    loads: list[Needs] = []

    def load(needs: Needs) -> None:
        loads.append(needs)
        if len(loads) == 1:
            raise Missing

    monkeypatch.setattr(kernels, "_load", load)
    monkeypatch.setattr(kernels, "_compile_aside", lambda *given: None)
    caplog.set_level(logging.INFO)
    needs = Needs(directed=True, weighted=False, vertex_ids="int", programs=[], python_modules=[])
    kernels.prepare(needs, threading.Event(), lambda progress: None)
    assert len(loads) == 2
    said = [record.message for record in caplog.records if "came with graphtide" in record.message]
    assert len(said) == 1 and "made for numba 0.1, not " in said[0]


# -- the wheel ------------------------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        arguments, cwd="/", env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)  # every kernel there is is compiled, on a machine as busy as it may be
def test_a_wheel_with_kernels_starts_and_compiles_nothing(
    run_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not run_long:
        pytest.skip("compiles every kernel there is: make test-long")
    if platform.machine() not in portable.TARGETS:
        pytest.skip(f"no portable kernels on {platform.machine()}")
    run("sh", str(ROOT / "ops" / "wheel.sh"), sys.executable, str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith(f"-cp{sys.version_info[0]}{sys.version_info[1]}-none-linux_x86_64.whl")
    prefix, cache = tmp_path / "prefix", tmp_path / "cache"
    how = ("--quiet", "--no-deps", "--no-index", "--target", str(prefix))
    run(sys.executable, "-m", "pip", "install", *how, str(wheel))
    monkeypatch.setenv("PYTHONPATH", str(prefix))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    programs = [{"name": name, **parameters} for name, parameters in registry.least_programs(weighted=True)]
    configurations: list[dict[str, Any]] = [
        {"graph": {"directed": directed, "weights": "non-negative", "vertex_ids": ids}, "program": programs}
        for directed, ids in itertools.product((True, False), ("int", "string"))
    ]
    for number, settings in enumerate(configurations):
        with Daemon(tmp_path / str(number), settings) as daemon:
            daemon.start()
            daemon.stop()
            log = daemon.log.read_text()
            assert "kernels are ready" in log and "compiling" not in log
    assert not [*cache.rglob("*.nb[ci]")]
