"""Where modules lie that had other places before: users' programs may import them, and saved states name them.

Once, ``compute`` and ``gpma`` had no folders for families of programs, for the host and for the index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_COMPUTE = {
    "audit": "audit.auditor",
    "audit_storage": "audit.storage",
    "bfs": "paths.bfs",
    "components": "forest.components",
    "external_order": "forest.external_order",
    "forest": "forest.forest",
    "forest_audit": "parents",
    "forest_cut": "forest.cut",
    "forest_span": "forest.span",
    "pagerank": "walks.pagerank",
    "pagerank_kernels": "walks.sweeps",
    "path_audit": "paths.audit",
    "path_form": "paths.form",
    "path_kernels": "paths.mend",
    "path_loss": "paths.loss",
    "path_program": "paths.program",
    "path_search": "paths.search",
    "ppr": "walks.ppr",
    "ppr_kernels": "walks.ppr_pushes",
    "sspaths": "counts.sspaths",
    "sspaths_kernels": "counts.kernels",
    "sspaths_recount": "counts.recount",
    "sssp": "paths.sssp",
    "sswp": "paths.sswp",
    "vertex_program": "paths.templates",
    "walk": "walks.walk",
    "walk_kernels": "walks.edits",
    "walk_pulls": "walks.passes",
}
_GPMA = {
    "arrays": "host.arrays",
    "columns": "host.slot_memory",
    "gather": "host.gather",
    "hashing": "index.hashing",
    "hot_spot": "host.hot_spot",
    "id_kernels": "index.id_kernels",
    "id_table": "index.id_table",
    "ids": "index.ids",
    "invariants": "host.invariants",
    "merge": "host.merge",
    "migration": "host.migration",
    "pma": "host.array",
    "search": "host.search",
    "slots": "index.hash_table",
    "snapshot": "host.snapshot",
    "sorting": "host.sorting",
    "spread": "host.load_export",
    "vertex_index": "index.vertex_index",
    "windows": "host.windows",
    "work": "host.work",
}

MOVED: Mapping[str, str] = MappingProxyType(
    {
        f"graphtide.{package}.{old}": f"graphtide.{package}.{new}"
        for package, moves in (("compute", _COMPUTE), ("gpma", _GPMA))
        for old, new in moves.items()
    }
)
"""The full names of modules: the one of before, and the present one."""

_FAMILIES = ("paths", "counts", "forest", "walks")
_FORMER = {new: old for old, new in MOVED.items()}


def former(module: str) -> str:
    """What a module was called before it moved, if it did."""
    return _FORMER.get(module, module)


def new_place(error: Exception) -> str:
    """Where a module lies that an import did not find, as the end of a message; nothing if it did not move."""
    if not isinstance(error, ImportError):
        return ""
    # ``from graphtide.compute import path_form`` names the package, and the module in the text only.
    imported = re.match(r"cannot import name '(\w+)'", error.msg)
    wanted = [f"{error.name}.{imported[1]}"] if imported else []
    found = next((name for name in (*wanted, error.name) if name in MOVED), None)
    if found is None:
        return ""
    family = MOVED[found].rpartition(".")[0]
    is_family = family.rpartition(".")[2] in _FAMILIES
    hint = f" ({family} hands on what users need of it)" if is_family else ""
    return f"; {found} is {MOVED[found]} now{hint}"
