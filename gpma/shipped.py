"""Kernels that came compiled with graphtide: one file in the installed package, which is only read.

It holds what Numba's cache would hold, for a processor whose features most machines have, and says what it
depends on: the text of graphtide's modules, the versions of Python, Numba and llvmlite, and those features. Where
any of it is otherwise here, the file is passed over, and kernels are compiled as they are without one. A checkout
has none.

A cache is code: this one is as trustworthy as the modules beside it, and nowhere else is one looked for.

The file is a line that names the format; one of JSON, with what it was ``made_for`` and where its ``parts`` lie
(offset behind the next line, length, CRC-32); one with the CRC-32 of that; and the parts. For each kernel one
lists its forms, and one a form is what Numba keeps of it, pickled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core import codegen, compiler, config
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from .relied_on import lacking

PACKAGE = Path(__file__).parents[1]
FILE = PACKAGE / "kernels.bin"

_FORMAT = b"graphtide kernels 1\n"
_NOTHING_CAPTURED = {hashlib.sha256(captured).hexdigest() for captured in (b"", dumps(()))}
"""How Numba says that a kernel captures nothing: what a closure captures is not compared, so it is not kept."""


@dataclass(frozen=True)
class MadeFor:
    """What compiled kernels depend on; ``features`` as LLVM lists them: ``+avx2,+bmi2,-sse4a``."""

    sources: str
    python: str
    numba: str
    llvmlite: str
    system: str
    features: str

    @classmethod
    def here(cls, features: str) -> MadeFor:
        """This graphtide, this process and this system, with these features."""
        return cls(
            sources=_sources(),
            python=str(sys.implementation.cache_tag),
            numba=numba.__version__,
            llvmlite=llvmlite.__version__,
            system=llvm.get_process_triple(),
            features=features,
        )

    def misfit(self) -> str | None:
        """Why kernels made for this cannot be used here; None when they can."""
        if vars(config)["CPU_NAME"] is not None or vars(config)["CPU_FEATURES"] is not None:
            return "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES asks for others"
        for fact, value in asdict(MadeFor.here(self.features)).items():
            if value != getattr(self, fact):
                return f"made for {fact} {getattr(self, fact)[:40]}, not {value[:40]}"
        needed = {feature[1:] for feature in self.features.split(",") if feature.startswith("+")}
        if lacking := sorted(needed - _features()):
            return f"this processor lacks {', '.join(lacking)}"
        return None


def _modules() -> Iterator[str]:
    """The paths of all modules of graphtide, in order."""
    for folder, folders, files in os.walk(PACKAGE):
        # No folder that is no package, such as a virtual environment within a checkout.
        folders[:] = sorted(name for name in folders if os.path.exists(os.path.join(folder, name, "__init__.py")))
        yield from (os.path.join(folder, name) for name in sorted(files) if name.endswith(".py"))


def _sources() -> str:
    """A digest of all modules: kernels are made of several, and of which ones nobody keeps."""
    made = hashlib.sha256()
    for path in _modules():
        with open(path, "rb") as file:
            text = file.read()
        made.update(f"{os.path.relpath(path, PACKAGE)} {len(text)}\n".encode())
        made.update(text)
    return made.hexdigest()


def _features() -> set[str]:
    """The processor's, less those that ``NUMBA_ENABLE_AVX`` denies; none where LLVM does not know it."""
    listed: str = codegen.get_host_cpu_features()  # type: ignore[no-untyped-call]
    return {feature[1:] for feature in listed.split(",") if feature.startswith("+")}


@dataclass(frozen=True)
class Shipped:
    """The kernels of one file."""

    path: Path
    made_for: MadeFor
    begin: int
    """Where the parts begin."""
    parts: Mapping[str, tuple[int, int, int]]

    @classmethod
    def read(cls, path: Path) -> Shipped:
        """What a file says of itself.

        Raises:
            ValueError: it is damaged, or of another format.
            OSError: it cannot be read.
        """
        with open(path, "rb") as file:
            if file.readline(len(_FORMAT)) != _FORMAT:
                raise ValueError("not in a format that this version knows")
            header, checksum = file.readline(), file.readline()
            if checksum.strip() != b"%d" % zlib.crc32(header):
                raise ValueError("damaged")
            said = json.loads(header)
            return cls(path, MadeFor(**said["made_for"]), file.tell(), said["parts"])

    def form(self, kernel: str, key: Any) -> Any:
        """What Numba keeps of one form of a kernel; None where it is not there, or damaged."""
        forms = self._part(kernel)
        if forms is None or (number := forms.get(key)) is None:
            return None
        return self._part(f"{kernel}.{number}")

    def _part(self, name: str) -> Any:
        if name not in self.parts:
            return None
        offset, length, checksum = self.parts[name]
        try:
            with open(self.path, "rb") as file:  # not kept open: processes that fork would share its position
                file.seek(self.begin + offset)
                content = file.read(length)
        except OSError:
            return None
        if zlib.crc32(content) != checksum:
            return None
        try:
            return pickle.loads(content)
        except (AttributeError, ImportError):  # of another NumPy, say
            return None


@functools.cache
def shipped() -> Shipped | str | None:
    """The kernels that came with this graphtide; why they cannot be used; or None where none did."""
    try:
        found = Shipped.read(FILE)
        misfit = lacking() or found.made_for.misfit()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        misfit = str(error)
    return found if misfit is None else f"{FILE}: {misfit}"


def is_ours(function: Any) -> bool:
    """Whether a function stands in one of graphtide's modules."""
    file: str = function.__code__.co_filename
    return file.startswith(f"{PACKAGE}{os.sep}")


def folder_of(module: str) -> str:
    """The folder in Numba's cache for the kernels of this file of graphtide: ``graphtide.gpma.host``, say."""
    parts = os.path.dirname(os.path.relpath(module, PACKAGE)).split(os.sep)
    return ".".join(["graphtide", *filter(None, parts)])


def load(function: Any, signature: Any, target_context: Any) -> Any:
    """A kernel's compiled form from the file; None where there is none."""
    kernels = shipped()
    if not isinstance(kernels, Shipped) or function.__closure__ or not is_ours(function):
        return None
    code = function.__code__
    module = os.path.relpath(code.co_filename, PACKAGE).removesuffix(".py")
    name = f"{module}.{function.__qualname__}-{code.co_firstlineno}"
    name = name.replace("<", "").replace(">", "")  # as Numba names files
    form = kernels.form(name, (signature, hashlib.sha256(code.co_code).hexdigest()))
    if form is None:
        return None
    rtsys.initialize(target_context)  # what compiled code calls; what the compiler needs beside it is not loaded
    return compiler.CompileResult._rebuild(target_context, *form)  # type: ignore[no-untyped-call]


# -- making the file ------------------------------------------------------------------------------------------


def write(cache: Path, path: Path) -> int:
    """Write what Numba's cache in this folder holds of graphtide's kernels; returns how many forms these are.

    Raises:
        ValueError: they are for several processors, or there are none.
        OSError: the file cannot be written; the one that was there is left as it was.
    """
    made: dict[str, bytes] = {}
    targets, n_forms = set(), 0
    for folder, module in {os.path.dirname(module): module for module in _modules()}.items():
        kept = cache / folder_of(module)
        for index in sorted(kept.glob("*.nbi")):
            with open(index, "rb") as file:
                pickle.load(file)  # Numba's version
                _, saved = pickle.load(file)
            name = os.path.relpath(os.path.join(folder, index.name.rpartition(".py")[0]), PACKAGE)
            forms = {}
            for number, ((signature, target, (code, captured), *_), data) in enumerate(saved.items()):
                if captured in _NOTHING_CAPTURED:
                    targets.add(target)
                    forms[signature, code] = number
                    made[f"{name}.{number}"] = (kept / data).read_bytes()
            n_forms += len(forms)
            made[name] = dumps(forms)  # type: ignore[no-untyped-call]
    if len(targets) != 1:
        raise ValueError(f"the kernels are for {len(targets)} processors: {targets}")
    ((_, _, features),) = targets
    parts, offset = {}, 0
    for name, part in made.items():
        parts[name] = offset, len(part), zlib.crc32(part)
        offset += len(part)
    header = json.dumps({"made_for": asdict(MadeFor.here(features)), "parts": parts}).encode() + b"\n"
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_bytes(b"".join([_FORMAT, header, b"%d\n" % zlib.crc32(header), *made.values()]))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return n_forms
