"""Requests about where rows are, answered between two epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.device.card import NoDevice
from ...gpma.edges import NO_VERTEX, Vertices
from ...gpma.index.vertex_index import VertexIndex
from ...partition.existence import living
from .. import again
from ..config.sections.storage import PartitionConfig
from ..errors import NotSupported, RequestError
from ..records.asked import Answer, Unwanted, ids_of_server
from ..records.topology import StorageState
from ..serve.values import wire_ids
from .pipeline import Pipeline
from .rebalancing import Rebalancing


class Steering:
    """For any thread but the engine's."""

    def __init__(
        self,
        pipeline: Pipeline,
        index: VertexIndex,
        config: PartitionConfig,
        try_device: Callable[[], None] | None,
    ) -> None:
        """``try_device``: has the daemon start again, with its device; None: there is none to be tried."""
        self._pipeline = pipeline
        self._index = index
        self._config = config
        self._try_device = try_device

    def placement(self, params: Mapping[str, Any], given_up: Unwanted) -> Answer:
        """Which rows are where, and why; of ``vertices``, too, if there are any."""
        return self._between(lambda: self._placement(params.get("vertices")))

    def rebalance(self, params: Mapping[str, Any], given_up: Unwanted) -> Answer:
        """Have rows move where they had better be, without waiting for a reason."""

        def request() -> dict[str, Any]:
            rebalancing = self._rebalancing()
            if rebalancing.frozen:
                raise RequestError("rows are frozen where they are: admin.freeze with thaw lets them move again")
            rebalancing.request()
            return {"requested": True}

        return self._between(request)

    def freeze(self, params: Mapping[str, Any], given_up: Unwanted) -> Answer:
        """Let rows stay where they are; with ``thaw`` no longer."""

        def freeze() -> dict[str, Any]:
            rebalancing = self._rebalancing()
            rebalancing.freeze(thaw=bool(params.get("thaw")))
            return {"frozen": rebalancing.frozen}

        return self._between(freeze)

    def device(self, params: Mapping[str, Any], given_up: Unwanted) -> Answer:
        """Whether there is a device, or why not; with ``retry`` try it again."""
        retry = bool(params.get("retry"))

        def device() -> dict[str, Any]:
            shown = self._pipeline.sides.stats()["device"]
            return {"present": self._pipeline.graph.device is not None, "device": shown, "retried": retry}

        state, answer = self._between(device)
        if retry:
            if answer["present"]:
                raise RequestError("the device is there, and in use", {"parameter": "retry"})
            if self._try_device is None:
                raise NotSupported("the settings leave no device to be tried (device.enabled, compute.place)")
            try:
                again.require_device()
            except NoDevice as error:
                raise NotSupported(f"there is no device to be tried: {error}") from None
            self._try_device()
        return state, answer

    def _between(self, work: Callable[[], dict[str, Any]]) -> Answer:
        pipeline = self._pipeline
        return pipeline.between.do(lambda: (StorageState.at(pipeline.position), work()))

    # -- by the engine's thread -----------------------------------------------------------------------------------

    def _rebalancing(self) -> Rebalancing:
        """
        Raises:
            NotSupported: nothing moves.
        """
        rebalancing, alone = self._pipeline.rebalancing, self._pipeline.graph.device is None
        if rebalancing is None or alone:
            why = "there is no device" if alone else "the host keeps all of them, too"
            raise NotSupported(f"no rows can move: {why} (partition.host_rows)")
        return rebalancing

    def _placement(self, vertices: Any) -> dict[str, Any]:
        sides, rebalancing = self._pipeline.sides, self._pipeline.rebalancing
        answer = {
            **sides.placement(),
            "policy": self._config.policy,
            "rebalancing": None if rebalancing is None else rebalancing.stats(),
        }
        return answer if vertices is None else {**answer, **self._of(vertices)}

    def _of(self, vertices: Any) -> dict[str, Any]:
        """Of some vertices: the side that has their rows, how many edges go out, and why the rows are there."""
        graph, rebalancing = self._pipeline.graph, self._pipeline.rebalancing
        ids = ids_of_server(vertices)
        dense = living(self._index.lookup(ids, graph.n_vertices), graph.alive)
        unknown = dense == NO_VERTEX
        known: Vertices = dense[~unknown]
        names = [side.name for side in graph.sides]
        owners = [names[side] for side in graph.placement.owners(known).tolist()]
        why = ["placed"] * known.size if rebalancing is None else rebalancing.why(known)
        columns = {"owner": owners, "degree": graph.degrees("out")[known].tolist(), "why": why}
        return {name: _spread(column, unknown) for name, column in columns.items()} | {
            "unknown": wire_ids(ids[unknown])
        }


def _spread(known: Sequence[Any], unknown: npt.NDArray[np.bool_]) -> list[Any]:
    """What is said of those that are known, None of the others."""
    values = iter(known)
    return [None if missing else next(values) for missing in unknown.tolist()]
