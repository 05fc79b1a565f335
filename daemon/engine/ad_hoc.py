"""Programs that are run once, for a request: from scratch, on the graph of one epoch.

On the host that is beside the stream, on a copy of the graph. A device has the rows, and most programs' starts
take it milliseconds: there it is done on the rows as they are, between two epochs, where updates need not wait for
longer than ``PAUSE_S``. How long it takes is seen from run to run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ...compute import registry
from ...compute.engine import ProgramRun
from ...compute.paths.form import FormsAllowed, FormsSpent
from ...compute.program import ExternalId, Program, ProgramError, Published
from ...gpma.edges import NO_VERTEX, Vertices
from ...gpma.index.ids import IdColumn
from ...ops.areas.programs import AD_HOC_OUTCOMES
from ...ops.metrics import Metrics
from ...partition.existence import Flags, living
from ..client.wire import pack_column
from ..errors import LimitExceeded, RequestError, Unavailable
from ..records.asked import Answer, Unwanted, ids_of_server
from ..serve.results import ProgramResults, Snapshot
from ..serve.values import no_order, top_k, values_of, wire_ids
from .beside import Beside, GivenUp, RanThere, in_turn, still_wanted
from .follower import Since

log = logging.getLogger(__name__)

PAUSE_S = 0.1
"""So long may updates wait for a run on the device, unless ``compute.place`` says that it is to be there."""
FIRST_S_PER_ARC = 2e-9
"""What a run on the device is thought to take before one was seen."""
ARCS_MIN = 1 << 20
"""What a smaller graph takes does not depend on its size."""


class AdHoc:
    """``compute``, for any thread but the engine's."""

    def __init__(self, beside: Beside, metrics: Metrics, runs_max: int, compiled_max: int) -> None:
        """``runs_max``: how many go on at once; others wait. ``compiled_max``: so many programs with functions or
        parameters that none had before are made for those who are not trusted."""
        self._beside = beside
        self._metrics = metrics
        self._turns = threading.Semaphore(runs_max)
        self._compiled_max = compiled_max
        self._forms = FormsAllowed(compiled_max)
        self._counting = threading.Lock()
        self._outcomes: Counter[str] = Counter(dict.fromkeys(AD_HOC_OUTCOMES, 0))
        self._running = 0
        self._there = _There()

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        return {"running": self._running, "outcomes": dict(self._outcomes), "on_device": self._there.runs}

    def compute(self, params: Mapping[str, Any], given_up: Unwanted) -> Answer:
        """Run a program (``program``, ``parameters``) once; values for ``vertices``, or the ``top`` ones.

        A run that nobody waits for any more ends before its next step: within the copy of the graph, before the
        program begins, between its passes or rounds, and before values are read.

        Raises:
            RequestError: the program or a parameter is wrong, or the program failed.
            LimitExceeded: it would have to be compiled, and as many were as may be.
            NotSupported: the best are asked for, and the values are vertices.
            Unavailable: there is not enough memory, nobody waits any more, or the daemon is stopping.
        """
        program = self._made(params)
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

    def _made(self, params: Mapping[str, Any]) -> Program:
        """A program, not computed. If the process has to have another form for it, it gets it here."""
        try:
            with nullcontext() if params.get("by_admin") else self._forms.spending():
                return self._beside.made(str(params["program"]), None, params["parameters"])
        except RequestError as error:
            if not isinstance(error.__cause__, FormsSpent):
                raise
            raise LimitExceeded(
                f"{params['program']} has functions with parameters that no program had before, and "
                f"{self._compiled_max} such were compiled for compute since the start, as many as may be: ask "
                "with parameters of before, or with the admin token, have it kept, or restart",
                {"ad_hoc_compiled_max": self._compiled_max, "parameter": "parameters"},
            ) from error

    @contextmanager
    def _turn(self, given_up: Unwanted) -> Iterator[None]:
        with in_turn(self._turns, given_up):
            with self._counting:
                self._running += 1
            try:
                yield
            finally:
                with self._counting:
                    self._running -= 1

    def _run(self, program: Program, params: Mapping[str, Any], given_up: Unwanted, started: float) -> Answer:
        self._beside.ready(program.kind, params["parameters"], given_up)
        if self._there.pays(program.kind, self._beside):
            found = self._run_there(params, given_up, started)
            if found is not None:
                return found
        since = Since(follows=False)
        with self._beside.follower(program, given_up) as follower, self._beside.taken(since, given_up) as taken:
            still_wanted(given_up)
            since.check()
            run = follower.start(taken.graph)
            still_wanted(given_up)
            if run.error is not None:
                raise RequestError(f"{program.kind} failed: {run.error}")
            published = Published(program.columns(), program.scalars(), taken.graph.n_vertices)
            answer = self._answer(program, run, published, taken.alive, params)
            answer["seconds"] = time.perf_counter() - started
            return taken.state, answer

    def _run_there(self, params: Mapping[str, Any], given_up: Unwanted, started: float) -> Answer | None:
        """On the device; None: it cannot be done there, or not now."""
        program = self._beside.made(str(params["program"]), None, params["parameters"])
        with self._beside.run_there(program, given_up) as ran:
            if ran is None:
                return None
            self._there.note(program.kind, ran)
            answer = self._answer(program, ran.run, ran.published, ran.alive, params)
            answer["seconds"] = time.perf_counter() - started
            return ran.state, answer

    def _answer(
        self, program: Program, run: ProgramRun, published: Published, alive: Flags, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Values as ``get`` and ``top`` show them, and the scalars."""
        n = published.n_vertices
        answer: dict[str, Any] = {
            "scalars": published.scalars,
            "error_bound": None if run.refresh is None else run.refresh.error_bound,
        }
        if params.get("vertices") is not None:
            ids = ids_of_server(params["vertices"])
            dense = living(self._beside.index.lookup(ids, n), alive)
            result = ProgramResults(program.kind, published, {})
            values = values_of(_Names(self._beside), result, dense)
            answer |= {**values.to_wire(), "unknown": wire_ids(ids[dense == NO_VERTEX])}
        elif params["top"]:
            read = type(program).read(published, np.arange(n, dtype=np.uint32))
            read.null[~alive] = True
            best = top_k(read, params["top"], descending=params["order"] == "desc")
            answer |= {
                "ids": wire_ids(self._beside.index.external(best)),
                "values": pack_column(read.values[best]),
            }
        return answer


class _There:
    """Which kinds of programs are to run on the device, by what runs there took. Any thread may call it."""

    def __init__(self) -> None:
        self.runs = 0
        self._seconds_per_arc: dict[str, float] = {}

    def pays(self, kind: str, beside: Beside) -> bool:
        """Whether updates would wait for a run for a short while only."""
        graph = beside.pipeline.graph
        if graph.device is None or beside.place == "host":
            return False
        seconds = self._seconds_per_arc.get(kind, FIRST_S_PER_ARC) * graph.n_arcs
        return beside.place == "device" or seconds <= PAUSE_S

    def note(self, kind: str, ran: RanThere) -> None:
        log.info("%s was run once, on the device; updates waited %.3f s", kind, ran.run.seconds)
        self.runs += 1
        self._seconds_per_arc[kind] = ran.run.seconds / max(ran.n_arcs, ARCS_MIN)


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
