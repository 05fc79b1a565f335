"""Programs that are run once, for a request: from scratch, on the graph of one epoch, beside the stream."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...compute import registry
from ...compute.engine import ProgramRun
from ...compute.program import ExternalId, Program, ProgramError, Published
from ...gpma.edges import NO_VERTEX, Vertices
from ...gpma.index.ids import IdColumn
from ...ops.metrics import AD_HOC_OUTCOMES, Metrics
from ...partition.existence import living
from ..client.wire import pack_column
from ..errors import RequestError, Unavailable
from ..records.asked import ids_of_server
from ..records.topology import StorageState
from ..serve.results import ProgramResults, Snapshot
from ..serve.values import no_order, top_k, values_of, wire_ids
from .beside import Beside, GivenUp, Taken, in_turn, still_wanted
from .follower import Since


class AdHoc:
    """``compute``, for any thread but the engine's."""

    def __init__(self, beside: Beside, metrics: Metrics, runs_max: int) -> None:
        """``runs_max``: how many go on at once; others wait."""
        self._beside = beside
        self._metrics = metrics
        self._turns = threading.Semaphore(runs_max)
        self._counting = threading.Lock()
        self._outcomes: Counter[str] = Counter(dict.fromkeys(AD_HOC_OUTCOMES, 0))
        self._running = 0

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        return {"running": self._running, "outcomes": dict(self._outcomes)}

    def compute(self, params: Mapping[str, Any], given_up: threading.Event) -> tuple[StorageState, dict[str, Any]]:
        """See ``AskedPrograms``.

        A run that nobody waits for any more ends before its next step: within the copy of the graph, before the
        program begins, and before values are read.

        Raises:
            RequestError: the program or a parameter is wrong, or the program failed.
            NotSupported: the best are asked for, and the values are vertices.
            Unavailable: there is not enough memory, nobody waits any more, or the daemon is stopping.
        """
        program = self._beside.made(str(params["program"]), None, params["parameters"])
        if params["top"] and program.value is ExternalId:
            raise no_order(program.kind)
        started, outcome = time.perf_counter(), "failed"
        try:
            with self._turn(given_up):
                answer = self._run(program, params, given_up, started)
            outcome = "answered"
            return answer
        except GivenUp:
            outcome = "given_up"
            raise
        except ProgramError as error:
            raise RequestError(str(error)) from error
        except MemoryError as error:
            outcome = "no_memory"
            raise Unavailable(f"there is not enough memory to run this beside the stream: {error}") from error
        finally:
            with self._counting:
                self._outcomes[outcome] += 1
            self._metrics.ad_hoc_run(outcome, time.perf_counter() - started)

    @contextmanager
    def _turn(self, given_up: threading.Event) -> Iterator[None]:
        with in_turn(self._turns, given_up):
            with self._counting:
                self._running += 1
            try:
                yield
            finally:
                with self._counting:
                    self._running -= 1

    def _run(
        self, program: Program, params: Mapping[str, Any], given_up: threading.Event, started: float
    ) -> tuple[StorageState, dict[str, Any]]:
        self._beside.ready(program.kind, params["parameters"], given_up)
        since = Since(follows=False)
        with self._beside.follower(program) as follower, self._beside.taken(since, given_up) as taken:
            still_wanted(given_up)
            since.check()
            run = follower.start(taken.graph)
            still_wanted(given_up)
            if run.error is not None:
                raise RequestError(f"{program.kind} failed: {run.error}")
            answer = self._answer(program, run, taken, params)
            answer["seconds"] = time.perf_counter() - started
            return taken.state, answer

    def _answer(
        self, program: Program, run: ProgramRun, taken: Taken, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Values as ``get`` and ``top`` show them, and the scalars."""
        n = taken.graph.n_vertices
        published = Published(program.columns(), program.scalars(), n)
        answer: dict[str, Any] = {
            "scalars": published.scalars,
            "error_bound": None if run.refresh is None else run.refresh.error_bound,
        }
        if params.get("vertices") is not None:
            ids = ids_of_server(params["vertices"])
            dense = living(self._beside.index.lookup(ids, n), taken.alive)
            result = ProgramResults(program.kind, published, {})
            values = values_of(_Names(self._beside), result, dense)
            answer |= {**values.to_wire(), "unknown": wire_ids(ids[dense == NO_VERTEX])}
        elif params["top"]:
            read = type(program).read(published, np.arange(n, dtype=np.uint32))
            read.null[~taken.alive] = True
            best = top_k(read, params["top"], descending=params["order"] == "desc")
            answer |= {
                "ids": wire_ids(self._beside.index.external(best)),
                "values": pack_column(read.values[best]),
            }
        return answer


class _Names:
    """The names of vertices, which keep them while the program is there (``Since``)."""

    def __init__(self, beside: Beside) -> None:
        self._index = beside.index

    def program_class(self, kind: str) -> type[Program]:
        return registry.program_class(kind)

    def external(self, dense: Vertices) -> IdColumn:
        return self._index.external(dense)

    def lookup_in(self, snapshot: Snapshot, ids: IdColumn) -> Vertices:
        return snapshot.known(self._index.lookup(ids, snapshot.n_vertices))
