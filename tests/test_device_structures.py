"""Structures of the device array are the same to the host, which fills them, and to kernels."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from graphtide.gpma.device import structures
from graphtide.gpma.device.module import FOLDER

Dtypes = dict[str, np.dtype[np.void]]
# (offset, bytes) of each field by its name, and of the whole under the name "".
Places = dict[str, tuple[int, int]]

# Structures by the names that kernels have for them: each capital name of the module is one.
STRUCTURES = {name.title(): dtype for name, dtype in vars(structures).items() if isinstance(dtype, np.dtype)}


def file_of(name: str) -> str:
    """The file of the product that declares this structure."""
    declared = re.compile(rf"^struct (?:__align__\(\d+\) )?{name} \{{", re.MULTILINE)
    (path,) = [path for path in FOLDER.glob("*.cu*") if declared.search(path.read_text(encoding="utf-8"))]
    return path.name


FILES = sorted({file_of(name) for name in STRUCTURES})


def to_host(dtype: np.dtype[np.void]) -> Places:
    """Where the host finds the fields."""
    assert dtype.fields is not None
    return {"": (0, dtype.itemsize), **{name: (at[1], at[0].itemsize) for name, at in dtype.fields.items()}}


def to_kernels(cupy: ModuleType, folder: Path, dtypes: Dtypes, file: str, head: str = "") -> dict[str, Places]:
    """Where a kernel that includes this file, after a ``head``, finds the fields of each structure."""
    from graphtide.gpma.device import module

    asked = [(name, field) for name, dtype in dtypes.items() for field in to_host(dtype)]
    # The oldest compilers of kernels have no offsetof.
    answers = [
        f"{{u32((char*)&(({name}*)bytes)->{field} - bytes), sizeof({name}::{field})}}"
        if field
        else f"{{0, sizeof({name})}}"
        for name, field in asked
    ]
    (folder / "places.cu").write_text(
        f"""{head}
#include "{file}"

extern "C" __global__ void places(u32* to)
{{
    __align__(16) char bytes[{max(dtype.itemsize for dtype in dtypes.values()) + 16}];
    const u32 answers[][2] = {{{", ".join(answers)}}};
    for (u32 i = 0; i < {len(answers)}; i++) to[2 * i] = answers[i][0], to[2 * i + 1] = answers[i][1];
}}
"""
    )
    found = cupy.zeros((len(asked), 2), np.uint32)
    module.load(folder / "places.cu", weighted=True).get_function("places")((1,), (1,), (found,))
    places: dict[str, Places] = {name: {} for name in dtypes}
    for (name, field), (offset, n_bytes) in zip(asked, found.get().tolist(), strict=True):
        places[name][field] = (offset, n_bytes)
    return places


def differences(
    cupy: ModuleType, folder: Path, dtypes: Dtypes, file: str, head: str = ""
) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """(offset, bytes) to the host and to kernels of whatever differs, by its name, "Batch.n" say."""
    found = to_kernels(cupy, folder, dtypes, file, head)
    return {
        f"{name}.{field}": (here, found[name][field])
        for name, dtype in dtypes.items()
        for field, here in to_host(dtype).items()
        if here != found[name][field]
    }


def check_structures(cupy: ModuleType, folder: Path, dtypes: Dtypes, file: str, head: str = "") -> None:
    """The host fills all that kernels have, and these look for it there; see ``to_kernels``."""
    for name, dtype in dtypes.items():
        # With this, and nothing else in the same bytes, kernels have no field that the host does not know.
        assert sum(n_bytes for field, (_, n_bytes) in to_host(dtype).items() if field) == dtype.itemsize, name
    assert differences(cupy, folder, dtypes, file, head) == {}


@pytest.mark.sample(4)
@pytest.mark.parametrize("file", FILES)
def test_fields_are_where_kernels_look_for_them(cupy: ModuleType, tmp_path: Path, file: str) -> None:
    dtypes = {name: dtype for name, dtype in STRUCTURES.items() if file_of(name) == file}
    check_structures(cupy, tmp_path, dtypes, file)


def test_there_are_structures() -> None:
    assert {"State", "Batch", "Run", "Walk", "Target", "Row", "Record"} <= set(STRUCTURES)


def test_another_order_is_noticed(emulated_cupy: ModuleType, tmp_path: Path) -> None:
    fields = list(structures.BATCH.descr)
    fields[3], fields[4] = fields[4], fields[3]
    wrong = differences(emulated_cupy, tmp_path, {"Batch": np.dtype(fields)}, "array.cuh")
    assert wrong == {"Batch.n": ((28, 4), (24, 4)), "Batch.sequence": ((24, 4), (28, 4))}


def test_another_size_is_noticed(emulated_cupy: ModuleType, tmp_path: Path) -> None:
    wrong = differences(emulated_cupy, tmp_path, {"Batch": np.dtype(structures.BATCH.descr[:-1])}, "array.cuh")
    assert wrong == {"Batch.": ((0, 36), (0, 40))}
