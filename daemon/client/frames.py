"""Answers as data frames of pandas, which is imported when the first one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
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
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        if error.name != "pandas":  # it is there, and lacks something itself
            raise
        message = "data frames need pandas, which is not installed here: pip install pandas"
        raise ModuleNotFoundError(message, name="pandas") from None

    index = None if ids is None else pd.Index(_array(ids), name="vertex")
    return pd.DataFrame({name: _array(column) for name, column in columns.items()}, index=index)


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
