"""Answers as data frames of pandas, which is imported when the first one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(columns: Mapping[str, Any], ids: Any = None) -> DataFrame:
    """Columns of one length, with the index ``vertex`` of these ids, if any are given.

    Numbers keep their width, as pandas' nullable types; what is masked is ``pandas.NA``. Strings are ``string``.

    Raises:
        ModuleNotFoundError: pandas is not installed; the message says how to.
    """
    pd = _pandas()
    index = None if ids is None else pd.Index(_array(ids), name="vertex")
    return pd.DataFrame({name: _array(column) for name, column in columns.items()}, index=index)


def frame_of_entries(content: Mapping[str, Any]) -> DataFrame:
    """The entries of nested maps, a row each: the index ``entry`` names it, with dots where it is inside another;
    ``value`` is as it came.

    Raises:
        ModuleNotFoundError: as ``frame``.
    """
    pd = _pandas()
    entries = dict(_entries("", content))
    return pd.Series(entries, pd.Index(list(entries), name="entry"), object).to_frame("value")


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":  # it is there, and lacks something itself
            raise
        message = "data frames need pandas, which is not installed here: pip install pandas"
        raise ModuleNotFoundError(message, name="pandas") from None
    return pandas


def _entries(prefix: str, content: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _entries(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _array(column: Any) -> Any:
    import pandas as pd

    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    values = np.asarray(column.data if isinstance(column, np.ma.MaskedArray) else column)
    if isinstance(column, list) or values.dtype.kind in "OU":
        listed = values.tolist()
        masked = [False] * len(listed) if mask is None else mask.tolist()
        return pd.array([None if gone else item for item, gone in zip(listed, masked, strict=True)], "string")
    made = pd.array(values, dtype=_NULLABLE[values.dtype.name])
    if mask is not None:
        made[mask] = pd.NA
    return made


_NULLABLE = {
    "bool": "boolean",
    "float32": "Float32",
    "float64": "Float64",
    **{f"{kind.lower()}{bits}": f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)},
}
