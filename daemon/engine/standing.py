"""How each program stands: fresh, or quarantined since an epoch, or still computed beside the stream; and what
that means for what it publishes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compute.engine import ProgramRun
from ...compute.program import Column, Program, require_publishable
from ...partition.existence import Flags
from ...partition.graph import Graph, GraphChange
from ..serve.publication import ProgramPublication
from ..state.kept import parameters_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProgramStatus:
    """What ``programs`` shows of one program: ``fresh``, or ``quarantined`` since an epoch and why.

    ``joined``: of one that came at run time, since which epoch it is published.
    """

    state: str = "fresh"
    stale_since: list[int] | None = None
    reason: str | None = None
    error_bound: float | None = None
    joined: list[int] | None = None


class Standing:
    """The status of every program, as their runs change it."""

    def __init__(
        self, programs: Sequence[Program], specs: dict[str, dict[str, Any]], kept: Collection[str] = ()
    ) -> None:
        """``specs``: by program id, what each was made from; those of programs that come
        and go at run time come and go, too. ``kept``: the ids of such programs that came before this start."""
        self._programs = list(programs)
        self._specs = specs
        self._kept = set(kept)
        self._status = {program.id: ProgramStatus() for program in programs}
        self._gone: dict[str, Flags] = {}
        self._coming: dict[str, dict[str, Any]] = {}

    def states(self) -> dict[str, str]:
        """The state of each program."""
        states = {id: status.state for id, status in self._status.items()}
        return states | {id: str(shown["state"]) for id, shown in self._coming.items()}

    def error_bounds(self) -> dict[str, float]:
        """The certified error of each program that is published, where there is one; 0 of exact ones."""
        known = {id: s for id, s in self._status.items() if s.state == "fresh" or s.error_bound is not None}
        return {id: status.error_bound or 0.0 for id, status in known.items()}

    @property
    def coming(self) -> Mapping[str, Mapping[str, Any]]:
        """What ``programs`` shows of those that are not published yet."""
        return dict(self._coming)

    def expect(self, id: str, kind: str, spec: Mapping[str, Any], state: str, reason: str | None) -> None:
        """A program is to come: how it stands, and why it does not go on."""
        self._coming[id] = {
            "kind": kind,
            "state": state,
            "stale_since": None,
            "reason": reason,
            "error_bound": None,
            "memory_bytes": 0,
            "parameters": parameters_of(spec),
            "kept": True,
        }

    def join(self, program: Program, spec: Mapping[str, Any], epoch: tuple[int, int]) -> None:
        """A program that was expected belongs to the epochs from this one on."""
        self._coming.pop(program.id, None)
        self._programs.append(program)
        self._specs[program.id] = dict(spec)
        self._kept.add(program.id)
        self._status[program.id] = ProgramStatus(joined=list(epoch))

    def remove(self, id: str) -> None:
        """A program is no more, or will not come."""
        self._programs = [program for program in self._programs if program.id != id]
        for named in (self._coming, self._status, self._specs, self._gone):
            named.pop(id, None)
        self._kept.discard(id)

    def fresh(self) -> list[Program]:
        """The programs whose state belongs to the present epoch."""
        return [program for program in self._programs if self._status[program.id].state == "fresh"]

    def note(self, run: ProgramRun, epoch: tuple[int, int]) -> None:
        """A program ran, or failed, for this epoch."""
        status = self._status[run.id]
        if run.error is not None:
            if status.state != "quarantined":
                log.error("program %s failed and is quarantined: %s", run.id, run.error)
                status.stale_since = list(epoch)
            status.state, status.reason = "quarantined", run.error

    def publication(
        self, program: Program, run: ProgramRun | None, graph: Graph, change: GraphChange | None, *, whole: bool
    ) -> ProgramPublication:
        """What is published of a program after a change. ``run``: its latest, None when it had none."""
        status = self._status[program.id]
        is_fresh = status.state == "fresh"
        columns = program.columns() if is_fresh else columns_of(program)
        scalars = program.scalars() if is_fresh else {}
        status.error_bound = scalars.get("error_bound", status.error_bound)
        if whole:
            changed = dict.fromkeys(columns)
        else:
            changed = dict(run.refresh.changed) if run is not None and run.refresh is not None else {}
        return ProgramPublication(
            kind=program.kind,
            columns=columns,
            changed=changed,
            scalars=scalars,
            state={
                "state": status.state,
                "stale_since": status.stale_since,
                "reason": status.reason,
                "error_bound": status.error_bound,
                "memory_bytes": bytes_of(program),
                "parameters": parameters_of(self._specs[program.id]),
                "kept": program.id in self._kept,
                "joined": status.joined,
            },
            gone=None if is_fresh else self._gone_since(program.id, graph, change),
            gone_changed=np.empty(0, np.uint32) if change is None else change.deleted_vertices,
        )

    def _gone_since(self, id: str, graph: Graph, change: GraphChange | None) -> Flags:
        """Of a program that stands still: the dense ids that are not, or no more, those of its vertices."""
        n = graph.n_vertices
        gone = self._gone.get(id)
        if gone is None:
            gone = ~graph.alive[:n]
            if change is not None:  # which it has not taken
                gone[change.revived_vertices] = True
        if gone.size < n:
            gone = np.concatenate([gone, np.zeros(n + n // 2 - gone.size, bool)])
        if change is not None:
            gone[change.deleted_vertices] = True
        self._gone[id] = gone
        return gone


def bytes_of(program: Program) -> int:
    """What a program holds, as far as it can say: one that failed may not have come so far."""
    try:
        return program.memory_bytes()
    except Exception:
        return 0


def columns_of(program: Program) -> Mapping[str, Column]:
    """Its columns, whatever they hold; none where they cannot be had of a program that failed or has not begun."""
    try:
        require_publishable(program, 0)
        return program.columns()
    except Exception:
        return {}
