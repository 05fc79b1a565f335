"""Requests that take a while, answered; the questions are in ``records.asked``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from .ad_hoc import AdHoc
from .keeping import Keeping
from .steering import Answer, Steering


class EngineAsked:
    """What ``records.asked.Asked`` asks."""

    def __init__(self, ad_hoc: AdHoc, keeping: Keeping, steering: Steering) -> None:
        self._ad_hoc = ad_hoc
        self._keeping = keeping
        self._steering = steering

    def compute(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._ad_hoc.compute(params, given_up)

    def keep(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._keeping.keep(params, given_up)

    def drop(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._keeping.drop(params, given_up)

    def placement(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._steering.placement(params, given_up)

    def rebalance(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._steering.rebalance(params, given_up)

    def freeze(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._steering.freeze(params, given_up)

    def device(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        return self._steering.device(params, given_up)
