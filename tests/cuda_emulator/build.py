"""From the CUDA source of a module to a shared library, and its kernels as Python functions."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = ["-Og", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-w"]
ERROR_BYTES = 4000
# Files of the product that a file of this folder stands in for.
TWINS = {"intrinsics.cuh", "ieee.cuh"}

_PART = re.compile(r'^(#line \d+ "([^"]+)"\n)', re.MULTILINE)
_KERNEL = re.compile(
    r'extern\s+"C"\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?__global__\s+'
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)
# What decides which kernels there are: their entries stand under the same conditions.
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else|endif)\b.*$", re.MULTILINE)
_TYPE = r"((?:(?:const|volatile|unsigned|struct)\s+)*[\w:]+(?:\s+(?:long|int|char))*)"
_DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?" + _TYPE + r"\s+(\w+)\s*\[\s*\]\s*;"
)
_SHARED = re.compile(
    r"(?<!extern )\b__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?" + _TYPE + r"\s+(\w+)\s*((?:\[[^\]]+\])*)\s*;"
)

# A constant whose value an option says: ``constexpr u32 LEAF_SLOTS = GPMA_LEAF_SLOTS;``
_OPTION_S_CONSTANT = re.compile(r"^constexpr \w+ (\w+) = (\w+);", re.MULTILINE)
_COMMENT_OR_DEFINED = re.compile(r"//.*|\bdefined\(\w+\)")


class EmulatorError(RuntimeError):
    """A kernel could not be compiled, or did something that a device would not forgive; the message says what."""


class Launch(ctypes.Structure):
    """``emulator::Launch``."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_bytes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("argument_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("n_arguments", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("step_aside_one_in", ctypes.c_uint32),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_uint64),
    ]


def compiler() -> str | None:
    """The path of g++; None where it is not installed."""
    return shutil.which("g++")


def translated(code: str) -> str:
    """CUDA C++ as C++ for ``emulator.h``: shared memory declared anew, an entry for each kernel."""
    code = with_twins(code)
    if re.search(r"^extern\s+__shared__", code, re.MULTILINE):
        raise EmulatorError("declare dynamic shared memory inside of the functions that use it")
    code = _DYNAMIC.sub(lambda m: f"EMULATED_DYNAMIC_SHARED({m[1]}, {m[2]});", code)
    code = _SHARED.sub(lambda m: f"EMULATED_SHARED({m[1]}, {m[2]}, {m[3]}, __COUNTER__);", code)
    if left := re.search(r"^(?!\s*//).*\b__shared__\b.*$", code, re.MULTILINE):
        raise EmulatorError(f"one variable in each declaration of shared memory, please: {left[0].strip()}")
    return f'#include "emulator.h"\nnamespace product {{\n{code}\n}}\n{_entries(code)}'


def _entries(code: str) -> str:
    """An entry for each kernel, under the conditions that stand around the kernel in ``code``."""
    found = [*_CONDITION.finditer(code), *_KERNEL.finditer(code)]
    return "".join(
        f'extern "C" EMULATED_ENTRY int emulated_{match[1]}(const emulator::Launch& launch) {{\n'
        f'    return emulator::launch_kernel(product::{match[1]}, "{match[1]}", launch);\n}}\n'
        if match.re is _KERNEL
        else f"{match[0]}\n"
        for match in sorted(found, key=re.Match.start)
    )


def with_twins(code: str) -> str:
    """``code`` with this folder's version of each file in TWINS in the place of its own.

    A file is in several parts when it includes others; the twin stands where the last one stood.
    """
    text, *parts = _PART.split(code)
    names = parts[1::3]
    last = {name: i for i, name in enumerate(names)}
    for i, (directive, name, part) in enumerate(zip(parts[::3], names, parts[2::3], strict=True)):
        if name not in TWINS:
            text += directive + part
        elif last[name] == i:
            text += f'#line 1 "emulated {name}"\n' + (FOLDER / name).read_text(encoding="utf-8")
    return text


def unread_alike(code: str, options: tuple[str, ...]) -> tuple[str, ...]:
    """The options, with 0 for each definition (``-DNAME=1``) whose value the module does not use.

    So modules that differ only in such values are one. Nor is a value used that only an unused constant has.
    """
    uses = Counter(re.findall(r"\w+", _COMMENT_OR_DEFINED.sub("", code)))
    for constant, option in _OPTION_S_CONSTANT.findall(code):
        uses[option] -= uses[constant] == 1
    names = [option.removeprefix("-D").partition("=")[0] for option in options]
    return tuple(
        f"-D{name}=0" if option.startswith("-D") and not uses[name] else option
        for name, option in zip(names, options, strict=True)
    )


@functools.cache
def build(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """The library of this module; compiled once for each text, kept in the folder for temporary files.

    Raises:
        EmulatorError: there is no g++, or it refuses the source.
    """
    gxx = compiler()
    if gxx is None:
        raise EmulatorError("g++ is not installed")
    text = translated(code)
    more = tuple(os.environ.get("CUDA_EMULATOR_FLAGS", "").split())
    flags = (*FLAGS, *unread_alike(text, options), *more)
    machine = _machine(gxx, more)
    header = (FOLDER / "emulator.h").read_text(encoding="utf-8")
    return _loaded(_made("module.so", gxx, flags, text, (header, machine.name), (str(machine),)))


@functools.cache
def _loaded(library: Path) -> ctypes.CDLL:
    """The library, once: what modules that are one keep, they keep once."""
    return ctypes.CDLL(str(library))


@functools.cache
def _machine(gxx: str, more: tuple[str, ...]) -> Path:
    """What runs kernels, as an object that every module is linked with."""
    text, header = ((FOLDER / name).read_text(encoding="utf-8") for name in ("emulator.cpp", "emulator.h"))
    return _made("machine.o", gxx, (*FLAGS, "-O2", *more, "-c"), text, (header,))


def _made(
    name: str, gxx: str, flags: tuple[str, ...], text: str, made_of: tuple[str, ...], objects: tuple[str, ...] = ()
) -> Path:
    """What g++ makes of a text, which is ``made_of`` these beside; kept in the folder for temporary files.

    Raises:
        EmulatorError: g++ refuses the text.
    """
    folder = Path(tempfile.gettempdir()) / f"graphtide-cuda-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"{_digest(text, *made_of, _version(gxx), *flags)}-{name}"
    if made.exists():
        return made
    with _turn(made), tempfile.TemporaryDirectory(dir=folder) as work:
        if not made.exists():  # nor has another process made it meanwhile
            (Path(work) / "text.cpp").write_text(text, encoding="utf-8")
            command = [gxx, *flags, f"-I{FOLDER}", "text.cpp", *objects, "-o", name]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode:
                raise EmulatorError(f"g++ refuses the source:\n{done.stderr[:6000]}")
            (Path(work) / name).rename(made)
    return made


@contextlib.contextmanager
def _turn(made: Path) -> Iterator[None]:
    """One process makes this at a time, and others wait; the system frees the turn of one that ends."""
    with open(made.with_suffix(".lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _version(gxx: str) -> str:
    return subprocess.run([gxx, "--version"], capture_output=True, text=True, check=True).stdout


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
