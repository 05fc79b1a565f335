"""Kernels compiled for most machines, kept in the package itself: for a wheel, or for an image."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from ...gpma import shipped
from ..errors import GraphtideError, NotWritten
from ..os_errors import why

_INSTRUCTIONS = (
    "64bit cmov crc32 cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 "  # x86-64-v2
    "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave "  # x86-64-v3: Haswell of 2013, Zen of 2017
    "prfchw"  # Broadwell of 2014, Zen: kernels ask for lines that they are about to write
)

TARGETS = {"x86_64": ("x86-64-v3", ",".join(f"+{name}" for name in _INSTRUCTIONS.split()))}
"""By the machine's kind: a processor whose features nearly all in use have, and these, as LLVM names them."""


def compile_portable() -> tuple[int, Path]:
    """Compile every kernel for any configuration into the package; returns how many forms, and the file.

    Raises:
        GraphtideError: no portable target is known for this machine, or the compiler failed, as it has said.
        NotWritten: the file cannot be written.
    """
    kind = platform.machine()
    if kind not in TARGETS:
        raise GraphtideError(f"portable kernels can be compiled on {', '.join(TARGETS)}, not on {kind}")
    name, features = TARGETS[kind]
    with tempfile.TemporaryDirectory(prefix="graphtide-kernels-") as folder:
        known = [entry for entry in sys.path if entry and Path(entry).exists()]
        environment = {
            # What whoever builds has set for Numba, such as checks of bounds, is not for everybody.
            **{name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")},
            "PYTHONPATH": os.pathsep.join(known),
            "NUMBA_CACHE_DIR": folder,
            "NUMBA_CPU_NAME": name,  # so that kernels which came compiled are not taken
            "NUMBA_CPU_FEATURES": features,
            "NUMBA_DISABLE_INTEL_SVML": "1",  # a library that other machines need not have
        }
        command = [sys.executable, "-P", "-m", "graphtide.daemon.kernels", "--all"]
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode:
            raise GraphtideError(f"compiling ended with status {done.returncode}")
        try:
            return shipped.write(Path(folder), shipped.FILE), shipped.FILE
        except OSError as error:
            raise NotWritten(f"{error.filename}: {why(error)}") from error
