"""Kernels that are loaded without what only a compiler needs of them, and compilers that need it."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba as nb
import numpy as np
import pytest
from numba.core import caching, codegen, compiler, config
from numba.core.caching import Cache
from waiting import PATIENCE_S

from graphtide.daemon import kernels
from graphtide.daemon.kernels import Needs
from graphtide.gpma import kernel_cache, shipped
from graphtide.gpma.atomics import fetch_add
from graphtide.gpma.kernel_cache import only_from_cache
from graphtide.gpma.lazy_linking import Bitcode
from graphtide.gpma.relied_on import lacking
from graphtide.gpma.team import ALONE, Crew, share


def twice(value: float) -> float:
    return 2 * value


def kernel() -> Any:
    """The kernel, with nothing loaded."""
    return nb.njit(cache=True)(twice)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """The kernel, one of ours, is in the cache; what modules are read from now on."""
    monkeypatch.setattr(shipped, "PACKAGE", Path(__file__).parent)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert kernel()(1.5) == 3
    read: list[bytes] = []
    parse: Callable[..., Any] = llvm.parse_bitcode

    def noted(bitcode: bytes, *others: Any) -> Any:
        read.append(bitcode)
        return parse(bitcode, *others)

    monkeypatch.setattr(llvm, "parse_bitcode", noted)
    return read


def test_a_kernel_is_loaded_and_called_without_its_module(parsed: list[bytes]) -> None:
    loaded = kernel()
    with only_from_cache():
        assert loaded(2.5) == 5
    assert not parsed
    (form,) = loaded.overloads.values()
    assert form.target_context is loaded.targetctx, "nothing else stands in its place"


def test_a_kernel_that_calls_it_takes_its_module_in(parsed: list[bytes]) -> None:
    loaded = kernel()
    with only_from_cache():
        loaded(2.5)

    @nb.njit
    def total(values: Any) -> float:
        found = 0.0
        for value in values:
            found += loaded(value)
        return found

    assert total(np.arange(4.0)) == 12
    assert sum(isinstance(bitcode, Bitcode) for bitcode in parsed) == 1
    assert "twice" not in "".join(
        line for line in total.inspect_llvm(total.signatures[0]).splitlines() if " call " in line
    ), "it was not inlined"


def test_what_is_only_declared_is_not_optimised(parsed: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten functions in a module of Numba's are."""
    defined, declared, made = 0, 0, 0
    library_class: Any = codegen.JITCPUCodegen._library_class
    make: Any = codegen.CPUCodegen._function_pass_manager
    add: Any = library_class.add_llvm_module

    def added(library: Any, module: Any) -> None:
        nonlocal defined, declared
        for function in module.functions:
            declared += function.is_declaration
            defined += not function.is_declaration
        add(library, module)

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        return make(*given, **named)

    monkeypatch.setattr(library_class, "add_llvm_module", added)
    monkeypatch.setattr(codegen.CPUCodegen, "_function_pass_manager", counted)
    compiled: Any = nb.njit(nogil=True)(twice)
    assert compiled(2.5) == 5
    assert made == defined > 0
    assert declared > 0


def test_the_address_of_a_kernel_is_known_to_who_asks(parsed: list[bytes]) -> None:
    """By Numba's own means: as a value, where only its C entry is called."""
    signature = nb.float64(nb.float64)

    @nb.njit(nb.float64(nb.types.FunctionType(signature), nb.float64))
    def call(function: Any, value: float) -> float:
        return function(value)  # type: ignore[no-any-return]

    loaded = nb.njit(signature, cache=True)(twice)
    assert call(loaded, 4.0) == 8
    assert not any(isinstance(bitcode, Bitcode) for bitcode in parsed)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


def test_numba_reads_what_is_kept_and_what_numba_keeps_is_read(
    parsed: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its own folder: here one has what the other wrote."""
    (file,) = files(tmp_path)
    content = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(kernel_cache, "lacking", lambda: "all that is relied on")
        patch.setattr(codegen.JITCPUCodegen, "_library_class", codegen.JITCodeLibrary)
        assert kernel()(2.5) == 5
        (by_numba,) = {*files(tmp_path)} - {file}
        plain_content = by_numba.read_bytes()
        by_numba.write_bytes(content)
        parsed.clear()
        with only_from_cache():
            assert kernel()(2.5) == 5
        assert len(parsed) == 1
    kept, plain = pickle.loads(content), pickle.loads(plain_content)
    assert isinstance(kept[0][2][1], Bitcode) and not isinstance(plain[0][2][1], Bitcode)
    assert "twice" in plain[6] and not kept[6], "the listing of types, a third of what is kept"
    file.write_bytes(plain_content)
    parsed.clear()
    with only_from_cache():
        assert kernel()(2.5) == 5
    assert len(parsed) == 1


def test_kernels_of_other_packages_are_kept_as_numba_does_it(
    parsed: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has them in a cache of their own may read that where graphtide is not."""
    (file,) = files(tmp_path)
    assert b"graphtide" in file.read_bytes()
    file.unlink()
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path)
    assert kernel()(1.5) == 3
    (file,) = files(tmp_path)
    assert b"graphtide" not in file.read_bytes()


def test_what_cannot_be_read_is_compiled_anew(parsed: list[bytes], tmp_path: Path) -> None:
    """Such as what another user keeps for himself."""
    (index,) = tmp_path.rglob("*.nbi")
    index.unlink()
    index.mkdir()
    assert kernel()(2.5) == 5


SEARCH = """
import sys
from pathlib import Path
import numba as nb, numpy as np
from numba.core import config
from graphtide.gpma import shipped
from graphtide.gpma.kernel_cache import only_from_cache

shipped.PACKAGE = Path(sys.argv[1]).parent
config.CACHE_DIR = sys.argv[2]
sys.path.insert(0, sys.argv[1])
from searching import place

if sys.argv[3] == "load":
    with only_from_cache():
        assert place(np.arange(9.0), 4.0) == 4
    print(*(name for name in ("numba.np.arraymath", "numba.np.arrayobj", "scipy.linalg") if name in sys.modules))
else:
    assert place(np.arange(9.0), 4.0) == 4
"""


def test_what_a_kernel_calls_of_numbas_own_is_not_loaded_with_it(tmp_path: Path) -> None:
    """Their modules declare what a compiler needs, and look for SciPy."""
    package, kept = tmp_path / "package", tmp_path / "kept"
    package.mkdir()
    (package / "searching.py").write_text(
        "import numba as nb, numpy as np\n"
        "@nb.njit(cache=True)\n"
        "def place(values, value):\n"
        "    return np.searchsorted(values, value) + np.zeros(1, np.int64)[0]\n"
    )
    for what in ("compile", "load"):
        done = subprocess.run(
            [sys.executable, "-c", SEARCH, package, kept, what],
            capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# -- machine code that is called where it lies -----------------------------------------------------------------

SHARING = """
import numba as nb
import numpy as np

from graphtide.gpma.atomics import fetch_add
from graphtide.gpma.intrinsics import inner
from graphtide.gpma.team import share


@inner
def add_up(thread, values, cursor, out):
    while True:
        x = fetch_add(cursor, 0, np.int64(1))
        if x >= values.size:
            return
        if values[x] < 0:
            raise ValueError("below zero")
        fetch_add(out, 0, values[x])


@nb.njit(cache=True)
def total(values, crew):
    out = np.zeros(1, np.int64)
    share(crew, add_up, (values, np.zeros(1, np.int64), out))
    return out[0]


@nb.njit(cache=True)
def twice(values, crew):
    return 2 * total(values, crew)


@inner
def scaled(value):
    return 3 * value


@inner
def folded(values):
    found = 0
    LINES
    return found


@nb.njit(cache=True)
def plainly(values):
    return scaled(folded(values))
""".replace("LINES", "\n    ".join(f"found ^= (values[{x % 9}] + {x}) * (found | {x})" for x in range(150)))

CALL = """
import sys
from contextlib import nullcontext
from pathlib import Path

import numba as nb, numpy as np
from numba.core import config
from graphtide.gpma import shipped
from graphtide.gpma.kernel_cache import only_from_cache
from graphtide.gpma.team import Team

package, kept, names, where = sys.argv[1:]
shipped.PACKAGE = Path(package).parent
config.CACHE_DIR = kept
sys.path.insert(0, package)
import sharing

values = np.arange(9)
expected = 0
for x in range(150):
    expected ^= (values[x % 9] + x) * (expected | x)
team = Team(2)
with only_from_cache() if where == "loaded" else nullcontext():
    for name in names.split(","):
        if name == "plainly":
            assert sharing.plainly(values) == 3 * expected
            continue
        kernel = getattr(sharing, name)
        assert kernel(values, team.crew()) == {"total": 36, "twice": 72}[name]
        try:
            kernel(values - 1, team.crew())
        except ValueError as error:
            assert str(error) == "below zero"
        else:
            raise AssertionError("what the work raised was lost")
team.close()
if where == "compiled":
    for line in getattr(sharing, name).inspect_llvm(getattr(sharing, name).signatures[0]).splitlines():
        if line.startswith(("define ", "declare ")):
            print(line.split()[0], line.split("@")[1].split("(")[0])
"""


@pytest.fixture
def call(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """Has a process of its own call these kernels, ``compiled`` or ``loaded``; returns which functions the LLVM
    module of the last one defines and which it declares, where it was compiled."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "sharing.py").write_text(SHARING)

    def run(names: str, where: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", CALL, package, tmp_path / "kept", names, where],
            capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def of(kernel: str, lines: list[str]) -> list[str]:
    """How an LLVM module has it: ``define`` or ``declare``, once each."""
    return sorted({line.split()[0] for line in lines if kernel in line})


def test_what_threads_share_is_called_where_it_lies(call: Callable[[str, str], list[str]], tmp_path: Path) -> None:
    """Also by kernels that come from the cache, and needs nothing of its own there; what it raises arrives."""
    assert of("add_up", call("total", "compiled")) == ["declare"]
    for file in [*tmp_path.rglob("sharing.add_up*")]:
        file.unlink()
    call("total", "loaded")
    assert of("add_up", call("total,twice", "compiled")) == ["declare"]
    call("twice", "loaded")
    call("twice,total", "loaded")


def test_large_kernels_are_called_where_they_lie_and_small_ones_inlined(
    call: Callable[[str, str], list[str]], tmp_path: Path
) -> None:
    defined = call("plainly", "compiled")
    assert of("folded", defined) == ["declare"]
    assert not of("scaled", [line for line in defined if line.startswith("declare")])
    for file in [*tmp_path.rglob("sharing.folded*"), *tmp_path.rglob("sharing.scaled*")]:
        file.unlink()
    call("plainly", "loaded")


BEFORE = """
import numba as nb
import numpy as np

@nb.njit
def one(value):
    return value + 1

@nb.njit
def add_one(thread, out):
    out[thread] += 1

assert one(1) == 2
add_one(0, np.zeros(1, np.int64))
from graphtide.gpma.team import ALONE, share

@nb.njit
def total(crew):
    out = np.zeros(1, np.int64)
    share(crew, add_one, (out,))
    return one(out[0])

assert total(ALONE) == 2
"""


def test_what_was_compiled_before_graphtide_was_imported_is_taken_in(tmp_path: Path) -> None:
    """Numba's own runtime, which every kernel takes in, is among that."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


# -- another Numba --------------------------------------------------------------------------------------------


@pytest.fixture
def look_again() -> Iterator[Callable[[], str | None]]:
    """What Numba lacks now."""

    def look() -> str | None:
        lacking.cache_clear()
        return lacking()

    yield look
    lacking.cache_clear()


def test_this_numba_has_what_is_relied_on(look_again: Callable[[], str | None]) -> None:
    assert look_again() is None


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (caching, "CompileResultCacheImpl"),
        (compiler.CompileResult, "_rebuild"),
        (codegen.CPUCodeLibrary, "_get_module_for_linking"),
        (codegen.JitEngine, "is_symbol_defined"),
    ],
)
def test_what_is_gone_from_numba_is_missed(
    look_again: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    said = str(look_again())
    assert name in said and said.endswith("is not there")


def test_what_is_called_otherwise_or_keeps_its_things_elsewhere_is_missed(
    look_again: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def defined(self: Any, name: str) -> bool:
        return name in self._symbols  # type: ignore[no-any-return]

    def _defined(self: Any, name: str, library: Any) -> bool:
        return name in self._defined_symbols  # type: ignore[no-any-return]

    monkeypatch.setattr(codegen.JitEngine, "is_symbol_defined", defined)
    assert str(look_again()).endswith("JitEngine.is_symbol_defined does not use _defined_symbols")
    monkeypatch.setattr(codegen.JitEngine, "is_symbol_defined", _defined)
    assert str(look_again()).endswith("JitEngine.is_symbol_defined is called otherwise")


@pytest.fixture
def another_numba(look_again: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Numba that does the same, and has another name for a part of it."""

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        return self._load_form(sig, target_context)

    monkeypatch.setattr(Cache, "_load_form", Cache._load_overload, raising=False)
    monkeypatch.setattr(Cache, "load_overload", load_overload)
    monkeypatch.delattr(Cache, "_load_overload")
    assert look_again() == "numba.core.caching.Cache.load_overload does not use _load_overload"


def test_with_another_numba_kernels_are_kept_and_loaded_as_it_does_it(
    parsed: list[bytes], tmp_path: Path, another_numba: None
) -> None:
    (file,) = files(tmp_path)
    file.unlink()
    assert kernel()(2.5) == 5
    (file,) = files(tmp_path)
    assert b"graphtide" not in file.read_bytes()
    with only_from_cache():
        assert kernel()(2.5) == 5


def test_with_another_numba_what_threads_share_is_taken_in(another_numba: None) -> None:
    @nb.njit
    def add_one(thread: int, out: Any) -> None:
        fetch_add(out, 0, np.int64(1))

    def share_it(crew: Crew) -> Any:
        out = np.zeros(1, np.int64)
        share(crew, add_one, (out,))
        return out[0]

    count: Any = nb.njit(share_it)
    assert count(ALONE) == 1
    text = count.inspect_llvm(count.signatures[0])
    assert not [line for line in text.splitlines() if line.startswith("declare") and "add_one" in line]


def test_with_another_numba_kernels_that_came_compiled_are_not_used(
    another_numba: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FILE", tmp_path / "kernels.bin")
    made_for = dict.fromkeys(shipped.MadeFor.__dataclass_fields__, "")
    header = json.dumps({"made_for": made_for, "parts": {}}).encode() + b"\n"
    shipped.FILE.write_bytes(b"%b%b%d\n" % (shipped._FORMAT, header, zlib.crc32(header)))
    shipped.shipped.cache_clear()
    try:
        assert str(shipped.shipped()).endswith("load_overload does not use _load_overload")
    finally:
        shipped.shipped.cache_clear()


def test_a_start_says_once_that_numba_is_another(
    another_numba: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_load", lambda needs: None)
    caplog.set_level(logging.INFO)
    needs = Needs(directed=True, weighted=False, vertex_ids="int", programs=[], python_modules=[])
    kernels.prepare(needs, threading.Event(), lambda progress: None)
    assert [record.message for record in caplog.records if "as Numba does it by itself" in record.message] == [
        "kernels are kept and loaded as Numba does it by itself, which takes longer: "
        "numba.core.caching.Cache.load_overload does not use _load_overload"
    ]
