"""Every CUDA source compiles as CuPy would compile it, without a warning; no device is needed for that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import skip_or_fail

from graphtide.gpma.device import module

if TYPE_CHECKING:
    from graphtide.compute.device.kernels import Source

PROGRAMS = module.FOLDER.parents[1] / "compute" / "device"
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SOURCES = sorted([*module.FOLDER.glob("*.cu"), *BENCHMARKS.glob("*.cu")])
# From the oldest devices that the product names to Blackwell.
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
# What CuPy adds to the options of every module, last of all.
AS_CUPY = ["-ftz=true", "--device-c"]


@pytest.fixture(scope="module")
def nvrtc() -> object:
    """NVIDIA's runtime compiler from its wheel."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        skip_or_fail(f"no NVRTC here: {error}")
    return nvrtc


def compiled(nvrtc: object, code: str, name: str, options: list[str]) -> tuple[bool, str, bytes]:
    """(whether it compiles, the log, the PTX)."""

    def call(function: str, *arguments: object) -> object:
        status, *result = getattr(nvrtc, function)(*arguments)
        assert status == 0 or function == "nvrtcCompileProgram", (function, status)
        return result[0] if result else status

    program = call("nvrtcCreateProgram", code.encode(), name.encode(), 0, [], [])
    status = call("nvrtcCompileProgram", program, len(options), [option.encode() for option in options])
    log = bytearray(call("nvrtcGetProgramLogSize", program))  # type: ignore[call-overload]
    call("nvrtcGetProgramLog", program, log)
    ptx = bytearray(call("nvrtcGetPTXSize", program) if status == 0 else 0)  # type: ignore[call-overload]
    if status == 0:
        call("nvrtcGetPTX", program, ptx)
    call("nvrtcDestroyProgram", program)
    return status == 0, log.decode(errors="replace").strip("\0\n"), bytes(ptx)


def check_compiles(
    nvrtc: object,
    origin: Source,
    architecture: str,
    *,
    weighted: bool = False,
    head: str = "",
    more: Sequence[str] = (),
) -> None:
    """A kernel of a program compiles without warnings, behind a ``head`` and with ``more`` options."""
    options = [*module.options(weighted=weighted), *origin.macros, *more, *AS_CUPY, f"-arch={architecture}"]
    code = head + module.source(PROGRAMS / origin.file)
    done, log, _ = compiled(nvrtc, code, origin.file, options)
    assert done and not log, log


@pytest.mark.sample(1, of="weighted,architecture")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_compiles_without_warnings(nvrtc: object, path: Path, weighted: bool, architecture: str) -> None:
    options = [*module.options(weighted=weighted), *AS_CUPY, f"-arch={architecture}"]
    code = module.source(path)
    done, log, ptx = compiled(nvrtc, code, path.name, options)
    assert done and not log, log
    kernels = re.findall(r"__global__ void (\w+)\(", re.sub(r" __launch_bounds__\([^)]*\)", "", code))
    assert kernels
    for kernel in kernels:
        # By its own name, as the host asks for it.
        assert re.search(rf"\.entry {kernel}\b", ptx.decode(errors="replace")), kernel


def test_there_are_sources() -> None:
    assert SOURCES


def test_nothing_compiles_without_what_the_host_says(nvrtc: object) -> None:
    options = [*module.options(weighted=True), "-arch=sm_90"]
    code = module.source("update.cu")
    said = [option for option in options if option.startswith("-D")]
    assert len(said) > 30
    for option in said:
        name = option.removeprefix("-D").split("=")[0]
        assert name in code, f"no kernel asks for {name}"
        done, log, _ = compiled(nvrtc, code, "update.cu", [other for other in options if other != option])
        assert not done
        assert name in log or "kernels are compiled with the options of" in log


@pytest.mark.parametrize(
    ("values", "file", "reason"),
    [
        ({"LEAF_SHIFT": 5, "LEAF_SLOTS": 32}, "update.cu", "a lane takes care of four slots"),
        ({"LEAF_SHIFT": 5, "LEAF_SLOTS": 32}, "reads.cu", "a warp's pairs are a leaf"),
        ({"LEAF_SHIFT": 7, "LEAF_SLOTS": 128}, "reads.cu", "two rounds of probes see every slot"),
        ({"LEAF_SLOTS": 65}, "load_export.cu", "numbered by LEAF_SHIFT bits"),
        ({"BUCKET": 32}, "update.cu", "two tiles of 16 lanes"),
        ({"BLOCK_THREADS": 256}, "update.cu", "a block's warps share its stage"),
        ({"SHARED_BYTES": 1 << 16}, "update.cu", "as constants.py has it"),
        ({"READ_THREADS": 100}, "reads.cu", "blocks are whole warps"),
        ({"CHUNK_EDGES": 100}, "reads.cu", "a chunk begins with a word"),
        ({"ABSENT": 4}, "update.cu", "four are counted"),
        ({"SLOTS_MOVED": 4}, "update.cu", "four words to themselves"),
    ],
)
def test_kernels_refuse_what_they_are_not_made_for(
    nvrtc: object, values: dict[str, int], file: str, reason: str
) -> None:
    options = [*module.options(weighted=True), "-arch=sm_90"]
    for name, value in values.items():
        (said,) = [option for option in options if option.startswith(f"-DGPMA_{name}=")]
        options[options.index(said)] = f"-DGPMA_{name}={value}u"
    done, log, _ = compiled(nvrtc, module.source(file), file, options)
    assert not done
    assert reason in log


@pytest.mark.parametrize("body", ["int unused; x[0] = 1;", "x[0] = undefined;"])
def test_errors_and_warnings_are_seen(nvrtc: object, body: str) -> None:
    code = f'extern "C" __global__ void kernel(unsigned* x) {{ {body} }}'
    done, log, _ = compiled(nvrtc, code, "wrong.cu", ["-std=c++17", "-arch=sm_90"])
    assert not done or "warning" in log
    assert "wrong.cu(1)" in log
