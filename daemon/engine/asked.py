"""Requests about programs at run time, answered; the questions are in ``records.asked``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..records.topology import StorageState
from .ad_hoc import AdHoc
from .keeping import Keeping


class EngineAsked:
    """What ``records.asked.AskedPrograms`` asks."""

    def __init__(self, ad_hoc: AdHoc, keeping: Keeping) -> None:
        self._ad_hoc = ad_hoc
        self._keeping = keeping

    def compute(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        return self._ad_hoc.compute(params, given_up)

    def keep(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        return self._keeping.keep(params, given_up)

    def drop(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        return self._keeping.drop(params, given_up)
