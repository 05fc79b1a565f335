"""The functions of path programs as CUDA text: bit for bit what Numba computes, or refused."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import functor_texts
import numba as nb
import numpy as np
import pytest
from functor_texts import FUNCTIONS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from own_programs import Fading, Reached, Within
from test_cuda_compiles import ARCHITECTURES, AS_CUPY, compiled
from test_cuda_compiles import nvrtc as nvrtc

from graphtide.compute.device.functor import Unprintable, cuda_text
from graphtide.compute.paths.bfs import BFS
from graphtide.compute.paths.form import Form, Functors
from graphtide.compute.paths.sssp import SSSP
from graphtide.compute.paths.sswp import SSWP

ROOT = Path(__file__).resolve().parents[1]
FORMS = {
    cls.__name__: Form.of(cls.functors(hops=3), cls.value, weighted=cls.needs_weights)
    for cls in (BFS, SSSP, SSWP, Within, Reached, Fading)
}


def smaller(new, old):  # type: ignore[no-untyped-def]
    return new < old


def form_of(gather: Callable[..., Any], value: type = np.float32, better: Callable[..., Any] = smaller) -> Form:
    return Form.of(Functors(gather, better), value, weighted=True)


def functions_of(form: Form) -> str:
    return cuda_text(form).split(FUNCTIONS)[1]


def check_three_ways(forms: dict[str, Form], cupy: ModuleType, folder: Path, seed: int = 1) -> None:
    bits, weights = functor_texts.inputs(seed)
    by_cpp = functor_texts.by_cpp(list(forms.values()), bits, weights, folder)
    by_device = functor_texts.by_device(cupy, list(forms.values()), bits, weights)
    for (name, form), cpp, device in zip(forms.items(), by_cpp, by_device, strict=True):
        expected, defined = functor_texts.by_numba(form, bits, weights)
        assert defined.sum() > 100 or form.value is np.uint32
        functor_texts.assert_equal(cpp, expected, defined, name)
        functor_texts.assert_equal(device, expected, defined, name)


@pytest.mark.sample(among="functions three ways")
def test_known_programs_compute_the_same_three_ways(cupy: ModuleType, tmp_path: Path) -> None:
    check_three_ways(FORMS, cupy, tmp_path)


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    st.lists(functor_texts.drawn(np.float32), min_size=3, max_size=3),
    st.lists(functor_texts.drawn(np.uint32), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_random_functions_compute_the_same_three_ways(
    cupy: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    floats: list[tuple[str, Form]],
    wholes: list[tuple[str, Form]],
    seed: int,
) -> None:
    check_three_ways(dict(floats + wholes), cupy, tmp_path_factory.mktemp("drawn"), seed)


@pytest.mark.sample(among="functions three ways")
def test_what_python_says_of_division_holds(cupy: ModuleType, tmp_path: Path) -> None:
    """Signs, infinities and zeros of // and %, of floats and whole numbers."""
    forms = {
        "//": form_of(lambda value, weight: value // weight),
        "%": form_of(lambda value, weight: value % weight),
        "// of double": form_of(lambda value, weight: np.float64(value) // (weight * 1.5)),
        "% of double": form_of(lambda value, weight: np.float64(value) % (weight * 1.5)),
        "// of int": form_of(lambda value, weight: np.int64(value) // -3 + 2**20, np.uint32),
        "% of int": form_of(lambda value, weight: (np.int64(value) - 2**31) % -1000 + 2**20, np.uint32),
        "by zero": form_of(lambda value, weight: value // (value - value) + value % 0, np.uint32),
    }
    check_three_ways(forms, cupy, tmp_path)


# -- what is refused ---------------------------------------------------------------------------------------------


@nb.njit
def raising_division(x):  # type: ignore[no-untyped-def]
    return 1 / x


@nb.njit(fastmath=True)
def fast(x):  # type: ignore[no-untyped-def]
    return x + 1


@nb.njit(error_model="numpy")
def recursive(x):  # type: ignore[no-untyped-def]
    return x if x < 1 else recursive(x / 2)


TABLE = np.arange(4.0)


def of_exp(value, weight):  # type: ignore[no-untyped-def]
    return value + math.exp(-weight)


def of_range(value, weight):  # type: ignore[no-untyped-def]
    for _ in range(3):
        value = value + weight
    return value


def of_table(value, weight):  # type: ignore[no-untyped-def]
    return value + TABLE[2]


def of_tuple(value, weight):  # type: ignore[no-untyped-def]
    both = (value, weight)
    return both[0]


def of_raising(value, weight):  # type: ignore[no-untyped-def]
    if weight < 0:
        raise ValueError("negative")
    return value


def of_raising_division(value, weight):  # type: ignore[no-untyped-def]
    return value + raising_division(weight)


def of_fast(value, weight):  # type: ignore[no-untyped-def]
    return fast(value)


def of_recursive(value, weight):  # type: ignore[no-untyped-def]
    return recursive(value)


def of_maybe(value, weight):  # type: ignore[no-untyped-def]
    return value if weight > 1 else None


def of_power(value, weight):  # type: ignore[no-untyped-def]
    return value**weight


def of_shift(value, weight):  # type: ignore[no-untyped-def]
    return value << np.uint32(weight)


def of_complex(value, weight):  # type: ignore[no-untyped-def]
    return abs(value + 1j)


def of_named(value, weight):  # type: ignore[no-untyped-def]
    return fast(x=value)


def of_nonsense(value, weight):  # type: ignore[no-untyped-def]
    return value + "a"


@pytest.mark.parametrize(
    ("gather", "value", "offset", "reason"),
    [
        (of_exp, np.float32, 1, "a call of math.exp"),
        (of_range, np.float32, 1, "a call of range"),
        (of_table, np.float32, 1, "an element of a collection"),
        (of_tuple, np.float32, 1, "a tuple"),
        (of_raising, np.float32, 2, "it may raise an error"),
        (
            raising_division.py_func,
            np.float32,
            None,
            "a division that raises an error where it divides by zero (error_model='python')",
        ),
        (of_fast, np.float32, None, "compiled with fastmath, which computes otherwise on every processor"),
        (of_recursive, np.float32, None, "recursive calls itself"),
        (of_maybe, np.float32, 1, "a value of the type OptionalType(float32)"),
        (of_power, np.float32, 1, "the operator pow of float32 and float32"),
        (of_shift, np.uint32, 1, "the operator lshift of uint32 and uint64"),
        (of_complex, np.float32, 1, "a value of the type complex128"),
        (of_named, np.float32, 1, "a call with named arguments or *arguments"),
        (
            of_nonsense,
            np.float32,
            1,
            "Numba cannot compile it: No implementation of function Function(<built-in function add>) found for "
            "signature:",
        ),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_is_not_plain_arithmetic_is_refused_with_its_place(
    gather: Callable[..., Any], value: type, offset: int | None, reason: str
) -> None:
    """``offset``: lines below the function's first; None: the place is in what it calls."""
    places = {
        raising_division.py_func: (of_raising_division, raising_division, 2),
        of_fast: (of_fast, fast, 0),
        of_recursive: (of_recursive, recursive, 2),
    }
    if offset is None:
        gather, blamed, below = places[gather]
        line = blamed.py_func.__code__.co_firstlineno + below
    else:
        line = gather.__code__.co_firstlineno + offset
    with pytest.raises(Unprintable) as error:
        cuda_text(form_of(gather, value))
    assert str(error.value) == f"{gather.__code__.co_filename}:{line}: {reason}"


def test_better_is_refused_likewise() -> None:
    with pytest.raises(Unprintable, match=r"test_functor.py:\d+: a call of math.cos$"):
        cuda_text(form_of(lambda value, weight: value, better=lambda new, old: math.cos(new) < old))


# -- the text ----------------------------------------------------------------------------------------------------


def test_the_text_is_the_same_in_every_process() -> None:
    """It names no place in memory, no count of what was compiled before, and no folder."""
    code = (
        "import sys; sys.path.insert(0, 'tests'); import functor_texts, numpy as np, own_programs;"
        "from test_functor import FORMS, cuda_text; print(*map(cuda_text, FORMS.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    text = "".join(done.stdout.split())
    assert text == "".join("".join(map(cuda_text, FORMS.values())).split())
    assert str(ROOT) not in text


def test_a_captured_number_is_printed_bit_by_bit_and_makes_another_text() -> None:
    def text(share: np.float32) -> str:
        return functions_of(form_of(lambda value, weight: value * share))

    texts = [text(np.float32(0.1)), text(np.float32(0.2))]
    assert "0x3dcccccd" in texts[0] and "0x3e4ccccd" in texts[1]
    assert texts[0].replace("0x3dcccccd", "0x3e4ccccd") == texts[1]


def test_what_nothing_depends_on_is_left_out() -> None:
    def gather(value, weight):  # type: ignore[no-untyped-def]
        unused = weight * 7
        unused += value
        return value

    assert "multiply" not in functions_of(form_of(gather))


@pytest.mark.sample(among="functions three ways")
def test_subnormal_values_are_values(cupy: ModuleType, tmp_path: Path) -> None:
    """Whatever CuPy thinks of them."""
    tiny = np.float32(1e-42)
    forms = {
        "+": form_of(lambda value, weight: value + tiny),
        "*": form_of(lambda value, weight: weight * tiny),
        "/": form_of(lambda value, weight: tiny / (abs(weight) + np.float32(1))),
        "-": form_of(lambda value, weight: -min(value, tiny) - max(weight, -tiny)),
        "casts": form_of(lambda value, weight: np.float32(np.float64(tiny) * weight) + np.sqrt(tiny)),
        "<": form_of(lambda value, weight: value, better=lambda new, old: new + tiny < old - tiny),
        "bool": form_of(lambda value, weight: value if value * tiny else weight),
    }
    check_three_ways(forms, cupy, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_compile_for_devices_and_round_nothing_together(nvrtc: object, architecture: str) -> None:
    """As CuPy has them compiled: not a subnormal taken for zero, no product fused with a sum, no warning."""

    def mixed(value, weight):  # type: ignore[no-untyped-def]
        total = 0.0
        while total < 5 and not math.isnan(weight):
            total = total + value * weight + np.sqrt(weight) / 3 + value // weight
        return -np.float32(total) * weight + min(value, weight) + (value < weight) * abs(value)

    forms = [*FORMS.values(), form_of(mixed), form_of(mixed, np.uint32)]
    code = functor_texts.module_text(forms, kernels=True)
    done, log, ptx = compiled(nvrtc, code, "functors.cu", ["-std=c++17", *AS_CUPY, f"-arch={architecture}"])
    assert done and not log, log
    text = ptx.decode(errors="replace")
    assert not re.findall(r".*(?:\.ftz|fma\.).*", text)
    assert "add.rn.f32" in text and "setp.lt.f32" in text
