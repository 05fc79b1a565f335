"""Kernels that are loaded without what only a compiler needs of them, and compilers that need it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba as nb
import numpy as np
import pytest
from numba.core import config
from numba.core.caching import CompileResultCacheImpl

from graphtide.gpma import lazy_linking
from graphtide.gpma.kernel_cache import SharedCache, only_from_cache
from graphtide.gpma.lazy_linking import Bitcode


def twice(value: float) -> float:
    return 2 * value


def kernel() -> Any:
    """The kernel, with nothing loaded."""
    return nb.njit(cache=True)(twice)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """The kernel is in the cache; what modules are read from now on."""
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
    """As after an upgrade, or the way back, over one cache."""
    (file,) = files(tmp_path)
    kept = pickle.loads(file.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(SharedCache, "_impl_class", CompileResultCacheImpl)
        with only_from_cache():
            assert kernel()(2.5) == 5
        assert len(parsed) == 1
        file.unlink()
        assert kernel()(2.5) == 5
    plain = pickle.loads(file.read_bytes())
    assert isinstance(kept[0][2][1], Bitcode) and not isinstance(plain[0][2][1], Bitcode)
    parsed.clear()
    with only_from_cache():
        assert kernel()(2.5) == 5
    assert len(parsed) == 1


def test_a_numba_that_keeps_kernels_otherwise_is_left_to_its_ways(
    parsed: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def otherwise(compiled: object) -> None:
        raise ValueError("not enough values to unpack")

    for file in files(tmp_path):
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(lazy_linking, "reduce", otherwise)
        assert kernel()(2.5) == 5
    assert kernel()(2.5) == 5
    (file,) = files(tmp_path)
    assert not isinstance(pickle.loads(file.read_bytes())[0][2][1], Bitcode)
