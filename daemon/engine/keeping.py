"""Programs that are kept up to date from some request on, and dropped by another.

A request is answered once its program stands in the file beside the checkpoints (``state/kept.py``); then the
program is computed beside the stream (``follower.py``), and joins between two epochs. It is one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...compute import registry
from ...compute.program import Program, ProgramError
from ...gpma.threads import start_thread
from ...ops.metrics import Metrics
from ..errors import GraphtideError, LimitExceeded, RequestError, Unavailable, UnknownProgram
from ..records.asked import Answer, Unwanted
from ..records.topology import StorageState
from ..state.kept import KeptPrograms, Spec, parameters_of
from .beside import Beside, GivenUp, in_turn, still_wanted
from .follower import Follower, Since

log = logging.getLogger(__name__)

JOIN_S = 0.02
"""A program joins when what is left to be taken will take about so long, for which updates wait."""
ROUNDS_MAX = 32
"""After so many rounds it joins anyhow."""
CHANGES_MIN, CHANGES_SHARE = 1 << 20, 0.25
"""A program that has more changes before it than this number, and than this share of all arcs, is computed within
one epoch: it would not catch up, and changes take memory."""
RETRY_S = 10.0
"""Until a program that found no memory is computed again."""
ID_LENGTH_MAX = 128
UNDER_WAY = ("computing", "waiting")
"""States of a program that somebody is to compute."""


@dataclass(frozen=True, slots=True)
class _Coming:
    """A program on its way; ``dropped``: it need not come any more."""

    id: str
    spec: Spec
    dropped: Unwanted = field(default_factory=Unwanted)

    @property
    def kind(self) -> str:
        return str(self.spec["name"])

    @property
    def given(self) -> dict[str, Any]:
        return parameters_of(self.spec)


class Keeping:
    """``keep`` and ``drop``, for any thread but the engine's."""

    def __init__(
        self,
        beside: Beside,
        store: KeptPrograms,
        configured: Collection[str],
        metrics: Metrics,
        programs_max: int,
    ) -> None:
        """``configured``: the ids of programs that are none of ours."""
        self._beside = beside
        self._pipeline = beside.pipeline
        self._store = store
        self._configured = frozenset(configured)
        self._metrics = metrics
        self._programs_max = programs_max
        self._changing = threading.Lock()
        self._computing = threading.Lock()
        self._coming: dict[str, _Coming] = {}
        metrics.programs_kept(len(store))

    def keep(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        """Keep a program (``program``, ``parameters``, ``id`` or None) up to date from now on; durable.

        One that is kept already, made from the same, is answered likewise.

        Raises:
            RequestError: the program, a parameter or the id is wrong, or the graph lacks what the program needs.
            LimitExceeded: there are as many as may be.
            NotWritten: the disk does not take it.
            Unavailable: the daemon is stopping, nobody waits any more, or the system grants no thread for it now.
        """
        kind, given = str(params["program"]), dict(params["parameters"])
        program = self._beside.made(
            kind, params.get("id") or registry.default_id(kind, given, ambiguous=True), given
        )
        id, spec = program.id, {"name": kind, **given}
        if len(id) > ID_LENGTH_MAX or not id.isprintable():  # it stands in lines of the log
            raise RequestError(
                f"id must have at most {ID_LENGTH_MAX} characters, all printable", {"parameter": "id"}
            )
        with in_turn(self._changing, given_up):
            if id in self._configured:
                raise RequestError(
                    f"the configuration has a program {id!r}; give this one another id", {"parameter": "id"}
                )
            known = self._store.get(id)
            if known is None:
                self._add(program, spec)
            elif known != spec:
                raise RequestError(
                    f"a program {id!r} is kept already, made from {known}; drop it first, or give another id",
                    {"parameter": "id"},
                )
            elif id not in self._coming and self._beside.between.do(lambda: self._stands(id)) in UNDER_WAY:
                self._begin(_Coming(id, spec))  # it could not be begun before
            return self._beside.between.do(lambda: self._answer(id))

    def drop(self, params: Mapping[str, Any], given_up: threading.Event) -> Answer:
        """Keep a program (``program``: its id) up to date no more; durable.

        Raises:
            UnknownProgram: none is kept under this id.
            RequestError: it is one of the configuration.
            NotWritten: the disk does not take it; the program stays.
            Unavailable: the daemon is stopping, or nobody waits any more.
        """
        id = str(params["program"])
        with in_turn(self._changing, given_up):
            if id in self._configured:
                raise RequestError(
                    f"{id!r} is a program of the configuration: take its [[program]] out of that, and restart",
                    {"parameter": "program"},
                )
            if id not in self._store:
                raise UnknownProgram(f"no program {id[:ID_LENGTH_MAX]!r} is kept", {"parameter": "program"})
            self._store.remove(id)
            self._metrics.programs_kept(len(self._store))
            coming = self._coming.pop(id, None)
            if coming is not None:
                coming.dropped.set()
            state = self._beside.between.do(lambda: self._drop(id))
        log.info("program %s was dropped", id)
        return state, {"id": id, "state": "dropped"}

    # -- by the engine's thread ---------------------------------------------------------------------------

    def _answer(self, id: str) -> Answer:
        return self._state(), {"id": id, "state": self._stands(id)}

    def _stands(self, id: str) -> str:
        return self._pipeline.standing.states().get(id, "computing")

    def _drop(self, id: str) -> StorageState:
        self._pipeline.drop(id)
        return self._state()

    def _state(self) -> StorageState:
        return StorageState.at(self._pipeline.position)

    # -- one that comes -----------------------------------------------------------------------------------

    def _add(self, program: Program, spec: Spec) -> None:
        """Write it down, and begin to compute it."""
        if len(self._store) >= self._programs_max:
            raise LimitExceeded(
                f"{len(self._store)} programs are kept; at most {self._programs_max} may be",
                {"kept_max": self._programs_max},
            )
        try:
            self._beside.between.do(lambda: self._pipeline.engine.require(program))
        except ProgramError as error:
            raise RequestError(
                f"{error}. Name such a program in the configuration, for the next start to keep what it needs"
            ) from error
        self._store.add(program.id, spec)
        self._metrics.programs_kept(len(self._store))
        log.info("program %s is kept, and computed beside the stream", program.id)
        self._begin(_Coming(program.id, spec))

    def _begin(self, coming: _Coming) -> None:
        """
        Raises:
            Unavailable: the daemon is stopping, or the system grants no thread now; ask again.
        """
        self._show(coming)
        self._coming[coming.id] = coming
        try:
            start_thread(threading.Thread(target=self._compute, args=(coming,), name="kept-program", daemon=True))
        except RuntimeError as error:
            del self._coming[coming.id]
            self._show(coming, "waiting", f"{error}: keep it once more, or restart")
            raise Unavailable(f"the engine is busy: {error}") from error

    def _show(self, coming: _Coming, state: str = "computing", reason: str | None = None) -> None:
        """How it stands, from the next publication on that can be made: that this one cannot keeps nobody from
        computing it.

        Raises:
            Unavailable: the daemon is stopping.
        """

        def show() -> None:
            if not coming.dropped.is_set():
                self._pipeline.expect(coming.id, coming.kind, coming.spec, state=state, reason=reason)

        try:
            self._beside.between.do(show)
        except Unavailable:
            raise
        except Exception as error:
            log.warning(
                "that program %s is %s cannot be shown now: %s: %s", coming.id, state, type(error).__name__, error
            )

    def _compute(self, coming: _Coming) -> None:
        """A thread of its own for it: have it join, however often that must be tried."""
        try:
            with in_turn(self._computing, coming.dropped):
                self._beside.ready(coming.kind, coming.given, coming.dropped)
                self._pipeline.engine.make_ready(self._made(coming))
                while not self._joined(coming):
                    coming.dropped.wait(RETRY_S)
        except (GivenUp, Unavailable):
            return  # it was dropped, or the daemon ends
        except Exception as error:
            if not isinstance(error, ProgramError | GraphtideError):
                log.exception("program %s cannot be computed", coming.id)
            log.error("program %s is kept, and cannot be computed: %s", coming.id, error)
            with suppress(Unavailable):
                self._show(coming, "quarantined", f"{type(error).__name__}: {error}")
        with self._changing:
            if self._coming.get(coming.id) is coming:
                del self._coming[coming.id]

    def _made(self, coming: _Coming) -> Program:
        """Anew, not computed."""
        return self._beside.made(coming.kind, coming.id, coming.given)

    def _joined(self, coming: _Coming) -> bool:
        """Whether it found the memory.

        Raises:
            GivenUp: it was dropped.
        """
        still_wanted(coming.dropped)
        try:
            self._follow(coming)
        except MemoryError as error:
            log.warning("program %s waits for memory: %s", coming.id, error)
            self._show(coming, "waiting", str(error) or "out of memory")
            return False
        return True

    def _follow(self, coming: _Coming) -> None:
        """Compute it beside the stream, catch up, and have it join."""
        program = self._made(coming)
        since = Since(follows=True)
        with (
            self._beside.follower(program, coming.dropped) as follower,
            self._beside.taken(since, coming.dropped) as taken,
        ):
            began = time.perf_counter()
            run = follower.start(taken.graph)
            del taken
            changes_max = max(CHANGES_MIN, CHANGES_SHARE * follower.graph.n_arcs)
            rounds = 0
            while run.error is None and since.updates <= changes_max and rounds < ROUNDS_MAX:
                still_wanted(coming.dropped)
                since.check()
                updates, started = since.updates, time.perf_counter()
                run = follower.follow(since.take()) or run
                rounds += 1
                if (time.perf_counter() - started) / max(updates, 1) * since.updates <= JOIN_S:
                    break
            seconds = time.perf_counter() - began
            caught_up = run.error is None and since.updates <= changes_max
            joining = self._beside.between.do(lambda: self._join(coming, follower if caught_up else None, since))
        log.info(
            "program %s joined after %.3f s and %d rounds beside the stream; updates waited %.3f s",
            *(coming.id, seconds, rounds, joining),
        )

    def _join(self, coming: _Coming, follower: Follower | None, since: Since) -> float:
        """By the engine's thread; how long that took. Without a ``follower`` it is computed anew, at once.

        Raises:
            GivenUp: it was dropped.
            Unavailable: it is to be computed anew, and the daemon stops, which need not wait for that: the next
                start does it.
        """
        still_wanted(coming.dropped)
        began = time.perf_counter()
        run = None if follower is None else follower.follow(since.take())
        if follower is None or (run is not None and run.error is not None):
            if self._pipeline.stop.is_set():
                raise Unavailable("the daemon is stopping")
            log.warning("program %s is computed within one epoch", coming.id)
            anew = self._made(coming)
            self._pipeline.join(anew, coming.spec, start=True)
        else:
            self._pipeline.join(follower.program, coming.spec, start=False)
        waited = time.perf_counter() - began
        self._metrics.program_joined(waited)
        return waited
