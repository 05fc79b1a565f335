"""The two functions of a path program computed three ways, and functions drawn at random to try it on."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numba as nb
import numpy as np
from cuda_emulator.build import with_twins
from hypothesis import strategies as st

from graphtide.compute.device.functor import cuda_text
from graphtide.compute.paths import mend
from graphtide.compute.paths.form import Form, Functors

FUNCTIONS = '#line 1 "functions of a program"\n'

# What a C++ compiler needs to take the text: words of CUDA, and memcpy.
_PRELUDE = """#include <cstring>
#define __device__
#define __forceinline__ inline
typedef unsigned u32; typedef unsigned long long u64;
"""
_BODY = """raw[i] = gather(decode(bits[i]), weights[i]); offers[i] = encode(raw[i]);
        betters[i] = better(raw[i], decode(bits[i]));"""
_PARAMETERS = "const u32* bits, const float* weights, program_{k}::Value* raw, u32* offers, u8* betters, u32 n"
_LOOP = 'extern "C" void run_{k}({p})\n{{\n    using namespace program_{k};\n    for (u32 i = 0; i < n; ++i) {{\n'
_KERNEL = (
    'extern "C" __global__ void run_{k}({p})\n{{\n    using namespace program_{k};\n'
    "    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {{\n"
)


@dataclass(frozen=True)
class Results:
    """By pair of a value and a weight: the offer as gather returns it, its bits in a word, and if it is better."""

    raw: np.ndarray
    offers: np.ndarray
    betters: np.ndarray


def module_text(forms: Sequence[Form], *, kernels: bool) -> str:
    """The functions of several forms in one module, each with a loop or a kernel ``run_k`` that calls both."""
    parts: list[str] = []
    opening = _KERNEL if kernels else _LOOP
    for k, form in enumerate(forms):
        head, functions = cuda_text(form).split(FUNCTIONS)
        if not parts:
            parts.append(head)
        parts.append(f"{FUNCTIONS}namespace program_{k} {{\n{functions}}}\n")
        parts.append(f"{opening.format(k=k, p=_PARAMETERS.format(k=k))}        {_BODY}\n    }}\n}}\n")
    return "".join(parts)


def by_numba(form: Form, bits: np.ndarray, weights: np.ndarray) -> tuple[Results, np.ndarray]:
    """As compiled path kernels compute it; and where the result is defined at all.

    A float that values of uint32 do not hold has no defined cast.
    """
    single = form.value is np.float32
    gather = nb.njit(error_model="numpy")(form.functors.gather)
    better = nb.njit(error_model="numpy")(form.functors.better)
    encode = nb.njit(mend.encode_float if single else mend.encode_int)
    decode = nb.njit(mend.decode_float if single else mend.decode_int)
    value = form.value

    @nb.njit(error_model="numpy")
    def run(bits, weights, raw, offers, betters, defined):  # type: ignore[no-untyped-def]
        for i in range(bits.size):
            found = gather(decode(bits[i]), weights[i])
            defined[i] = single or 0 <= found < 2.0**32 or found != found
            raw[i] = value(found)
            offers[i] = encode(raw[i])
            betters[i] = better(raw[i], decode(bits[i]))

    empty = _empty(form, bits.size)
    defined = np.zeros(bits.size, bool)
    run(bits, weights, empty.raw, empty.offers, empty.betters, defined)
    return empty, defined


def by_cpp(forms: Sequence[Form], bits: np.ndarray, weights: np.ndarray, folder: Path) -> list[Results]:
    """As a C++ compiler has the text."""
    source = folder / "functors.cpp"
    source.write_text(_PRELUDE + with_twins(module_text(forms, kernels=False)))
    library = source.with_suffix(".so")
    command = ["g++", "-O2", "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC", "-w"]
    done = subprocess.run([*command, source, "-o", library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    found = []
    for k, form in enumerate(forms):
        results = _empty(form, bits.size)
        arrays = bits, weights, results.raw, results.offers, results.betters
        getattr(loaded, f"run_{k}")(*(ctypes.c_void_p(array.ctypes.data) for array in arrays), bits.size)
        found.append(results)
    return found


def by_device(cupy: ModuleType, forms: Sequence[Form], bits: np.ndarray, weights: np.ndarray) -> list[Results]:
    """As a CUDA device has it, emulated or real."""
    compiled = cupy.RawModule(code=module_text(forms, kernels=True), options=("-std=c++17",))
    found = []
    for k, form in enumerate(forms):
        results = _empty(form, bits.size)
        arrays = [cupy.asarray(array) for array in (results.raw, results.offers, results.betters)]
        given = cupy.asarray(bits), cupy.asarray(weights), *arrays, np.uint32(bits.size)
        compiled.get_function(f"run_{k}")((-(-bits.size // 256),), (256,), given)
        found.append(Results(*(array.get() for array in arrays)))
    return found


def assert_equal(found: Results, expected: Results, defined: np.ndarray, what: object) -> None:
    """Equal in every bit, but for what NaNs carry."""
    both_nan = (found.raw != found.raw) & (expected.raw != expected.raw)
    differs = found.raw.view(np.uint32) != expected.raw.view(np.uint32)
    differs = (
        (differs & ~both_nan) | (found.offers != expected.offers) | (found.betters != expected.betters)
    ) & defined
    where = np.flatnonzero(differs)[:5]
    assert not where.size, (what, where, found.raw[where], expected.raw[where])


def inputs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits of values and weights: every pair of those that are special, and others at random."""
    special = [
        0,
        1,
        2,
        7,
        0x007F_FFFF,
        0x0080_0000,
        0x3F80_0000,
        0x4040_0000,
        0x4CBE_BC20,
        0x7F7F_FFFF,
        0x7F80_0000,
    ]
    special += [0x7FC0_0000, 0x8000_0000, 0x8000_0001, 0xBF00_0000, 0xFF7F_FFFF, 0xFF80_0000, 0xFFFF_FFFE]
    pairs = np.array(np.meshgrid(special, special), np.uint32).reshape(2, -1)
    rng = np.random.default_rng(seed)
    some = rng.integers(0, 2**32, (2, 300), np.uint32)
    usual = (rng.random((2, 300), np.float32) * 100).view(np.uint32)
    small = rng.integers(0, 300, (2, 100), np.uint32)
    bits, weights = np.concatenate([pairs, some, usual, small], axis=1)
    return bits.copy(), weights.copy().view(np.float32)


def _empty(form: Form, n: int) -> Results:
    return Results(np.zeros(n, form.value), np.zeros(n, np.uint32), np.zeros(n, np.uint8))


# -- functions at random -----------------------------------------------------------------------------------------


@nb.njit(error_model="numpy")
def mean(a, b, share=0.25):  # type: ignore[no-untyped-def]
    return a * share + b * (1 - share)


@nb.njit
def larger_half(a, b):  # type: ignore[no-untyped-def]
    if a > b:
        return a * np.float32(0.5)
    return b * np.float32(0.5)


CAPTURED = {
    "nine_tenths": np.float32(0.9),
    "tiny": np.float32(1e-41),
    "third": 1 / 3,
    "minus": -7,
    "large": np.uint32(4_000_000_000),
    "pair": (2.5, 3),
    "np": np,
    "math": __import__("math"),
    "mean": mean,
    "larger_half": larger_half,
}


# What an expression may be made of: E an expression, C a condition, N a small number.
_REALS = [*(f"(E {sign} E)" for sign in ("+", "-", "*", "/", "//", "%"))]
_REALS += [f"{name}(E)" for name in ("abs", "np.sqrt", "math.fabs", "np.float32", "float", "-")]
_REALS += [f"{name}(E, E)" for name in ("min", "max", "mean", "larger_half")]
_REALS += ["(E) ** N", "min(E, E, E)", "mean(E, E, E)", "(E if C else E)", "(C * (E))"]
_REALS += ["larger_half(E, min(E, third))"]
_REAL_LEAVES = ["value", "weight", "value", "weight", "nine_tenths", "tiny", "third", "minus", "large", "pair[0]"]
_REAL_LEAVES += ["pair[1]", "0", "1", "0.5", "1e8", "math.pi", "np.inf"]
# Of values that are uint32: below 2^34 each, so that no sum passes 63 bits, where nothing is defined.
_WHOLES = [*(f"(E {sign} E)" for sign in ("+", "-", "//", "%", "&", "|", "^"))]
_WHOLES += ["((E) % 4093 * ((E) % 4093))", "abs(E)", "-(E)", "~(E)", "((E) >> N)", "((E) % 97 << N)"]
_WHOLES += ["min(E, E)", "max(E, E)", "(E if C else E)", "((E) % 50) ** N"]
_WHOLE_LEAVES = ["np.int64(value)", "np.int64(value * value) % 65521", "np.int64(value // 7)", "np.int64(~value)"]
_WHOLE_LEAVES += ["np.int64(-value)", "np.int64(value >> 3)", "np.int64(value & 255)", "np.int64(large)", "minus"]
_WHOLE_LEAVES += [
    "3",
    "0",
    "1",
    "1000",
    "np.int64(value == 5)",
    "int(weight if 0 <= weight < 99 else 4)",
    "pair[1]",
]
_CONDITIONS = [*(f"(E {sign} E)" for sign in ("<", "<=", ">", ">=", "==", "!="))]
_CONDITIONS += ["math.isnan(E)", "np.isinf(E)", "math.isfinite(E)", "bool(E)", "0 < E < 100"]
_CONDITIONS += ["(C and C)", "(C or C)", "(not C)"]
_COMPARED = ["new", "old", "abs(new)", "old * 2", "min(new, old)", "new - old"]
_BODIES = (
    "    return E\n",
    "    x = E\n    if C:\n        return E\n    return x\n",
    "    x = E\n    k = 0\n    while k < 3 and C:\n        x = x + E\n        k += 1\n    return x\n",
)


def _filled(draw: st.DrawFn, text: str, made_of: list[str], leaves: list[str], depth: int = 3) -> str:
    """The text with every letter in it replaced by what it stands for, drawn at random."""

    def one(letter: str) -> str:
        if letter == "N":
            return str(draw(st.integers(1, 3)))
        if letter == "E" and depth == 0:
            return draw(st.sampled_from(leaves))
        choices = _CONDITIONS[: None if depth else -3] if letter == "C" else made_of + leaves
        return _filled(draw, draw(st.sampled_from(choices)), made_of, leaves, max(depth - 1, 0))

    return re.sub(r"\b[ECN]\b", lambda match: one(match[0]), text)


def _functors(text: str) -> Functors:
    namespace = dict(CAPTURED)
    exec(compile(text, "<drawn>", "exec"), namespace)
    return Functors(namespace["gather"], namespace["better"])


@st.composite
def drawn(draw: st.DrawFn, value: type[np.uint32] | type[np.float32]) -> tuple[str, Form]:
    """Functors that keep no rules but those of types, with their text."""
    grammar = (_REALS, _REAL_LEAVES) if value is np.float32 else (_WHOLES, _WHOLE_LEAVES)
    gather = _filled(draw, draw(st.sampled_from(_BODIES)), *grammar)
    better = _filled(draw, "    return C\n", [], _COMPARED, 2)
    text = f"def gather(value, weight):\n{gather}def better(new, old):\n{better}"
    return text, Form.of(_functors(text), value, weighted=True)
