"""PyArrow is an extra, which need not be installed: whether it is."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS_PYARROW = "Arrow records need PyArrow: pip install 'graphtide[arrow]'"


def is_readable() -> bool:
    """Whether PyArrow is installed."""
    return find_spec("pyarrow") is not None
