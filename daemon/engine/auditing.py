"""The background audit's budget, and what becomes of its findings: metrics, the log, a repair.

The engine thread calls ``run`` between epochs. The audit earns a share of the time that passes, and owes what it
spends: a step that takes long (following all parents to their roots) is paid for before the next one begins. An
epoch never waits for more than one slice of ``SLICE_S``, or for a step that was put off for ``PATIENCE_S``: one
that can only be run whole (the row of a hub is one) while updates kept coming, or any while the host's rows were
behind a device's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ...compute.audit.auditor import Auditor, Pass, Step
from ...compute.engine import STORAGE
from ...compute.program import ExternalId, Violation
from ...ops.metrics import Metrics
from ...partition.graph import NoMemory

log = logging.getLogger(__name__)

Epoch = tuple[int, int]

SLICE_S = 0.002
"""What a slice is cut to take."""
CREDIT_S_MAX = 0.02
"""Time not spent is not saved up beyond this, so that no burst delays an epoch."""
PATIENCE_S = 10.0
"""How long a step that can only be run whole is put off while updates wait, and any while the host is behind."""
PASS_S_MIN = 1.0
"""Passes over a small graph begin no more often."""
LOGGED_MAX = 20
"""Violations that are logged in one pass; the metric counts all."""


class BackgroundAudit:
    """Runs an ``Auditor`` within a budget."""

    def __init__(
        self,
        auditor: Auditor,
        metrics: Metrics,
        external: Callable[[Sequence[int]], list[ExternalId]],
        *,
        share: float,
        repair: Literal["off", "restart"],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``share``: of the time, 0 for never. ``external``: the ids of dense vertices; what is none has none."""
        self._auditor = auditor
        self._metrics = metrics
        self._external = external
        self._share = share
        self._repair = repair
        self._clock = clock
        self._earned_at = clock()
        self._credit = 0.0
        self._put_off_at: float | None = None
        self._pass_at = -PASS_S_MIN
        self._logged = 0
        self._repaired: set[str] = set()
        self._storage_is_wrong = False
        self._seconds = 0.0
        self._violations: Counter[tuple[str, str]] = Counter()
        self._repairs: Counter[str] = Counter()
        self._last: dict[str, Any] | None = None

    @property
    def passes(self) -> int:
        """Complete passes so far."""
        return self._auditor.passes

    def run(self, epoch: Epoch, waiting: Callable[[], bool]) -> list[str]:
        """Spend what has been earned, one step at least if it is due; stop when updates wait.

        Returns the programs that are to be computed from scratch, by the setting ``repair``.
        """
        now = self._clock()
        self._credit = min(self._credit + self._share * (now - self._earned_at), CREDIT_S_MAX)
        self._earned_at = now
        wrong: list[str] = []
        while self._credit > 0 and not wrong and self._may_step(now, waiting()):
            try:
                step = self._auditor.step(SLICE_S, epoch)
            except NoMemory:  # for the host's rows to catch up: the epochs wait for it, too
                break
            spent = self._clock() - now
            now += spent
            self._credit -= spent
            self._put_off_at = None
            wrong = self._take(step, epoch, spent)
            if waiting():
                break
        return wrong

    def repaired(self, programs: Sequence[str]) -> None:
        """These were computed from scratch."""
        for program in programs:
            self._repairs[program] += 1
            self._metrics.audit_repair(program)

    def dropped(self) -> None:
        """A program is no more: the pass that was to check it begins anew."""
        self._auditor.begin_anew()

    def stats(self) -> dict[str, Any]:
        """What the ``stats`` request shows."""
        violations: dict[str, dict[str, int]] = {}
        for (target, rule), number in self._violations.items():
            violations.setdefault(target, {})[rule] = number
        return {
            "share": self._share,
            "coverage": self._auditor.coverage,
            "passes": self.passes,
            "seconds": self._seconds,
            "violations": violations,
            "repairs": dict(self._repairs),
            "last_pass": self._last,
        }

    # -- inside -----------------------------------------------------------------------------------------

    def _may_step(self, now: float, waiting: bool) -> bool:
        if self._auditor.is_between_passes:
            if now - self._pass_at < PASS_S_MIN:
                return False
            self._pass_at = now
            self._logged = 0
            self._repaired.clear()
        if not (self._auditor.is_behind or (waiting and self._auditor.next_is_whole(SLICE_S))):
            return True
        if self._put_off_at is None:
            self._put_off_at = now
        return now - self._put_off_at >= PATIENCE_S

    def _take(self, step: Step, epoch: Epoch, seconds: float) -> list[str]:
        self._seconds += seconds
        coverage = 1.0 if step.ended is not None else self._auditor.coverage
        self._metrics.audit_step(seconds=seconds, edges_read=step.edges_read, coverage=coverage)
        for violation in step.violations:
            self._violations[step.target, violation.rule] += 1
            self._metrics.audit_violation(step.target, violation.rule)
            self._log(step.target, violation, epoch)
        if step.ended is not None:
            self._end_pass(step.ended)
        return self._to_repair(step)

    def _end_pass(self, ended: Pass) -> None:
        self._metrics.audit_pass(left_out=len(ended.left_out))
        if ended.left_out and (self._last is None or self._last["left_out"] != list(ended.left_out)):
            log.warning("audit: quarantined programs are left out: %s", ", ".join(ended.left_out))
        self._last = _shown(ended)
        log.log(
            logging.ERROR if ended.violations else logging.DEBUG,
            "audit: a pass from epoch %s to %s in %.3f s found %d violations",
            *(ended.first_epoch, ended.last_epoch, ended.seconds, ended.violations),
        )

    def _log(self, target: str, violation: Violation, epoch: Epoch) -> None:
        self._logged += 1
        if self._logged > LOGGED_MAX:
            return
        vertices = self._external(violation.vertices)
        where = f" (vertices {', '.join(map(repr, vertices))})" if vertices else ""
        subject = "the storage is" if target == STORAGE else f"program {target} is"
        log.error("audit: %s wrong at epoch %s: %s: %s%s", subject, epoch, violation.rule, violation.detail, where)

    def _to_repair(self, step: Step) -> list[str]:
        if not step.violations:
            return []
        if step.target == STORAGE:
            self._storage_is_wrong = True
            return []
        # A program computed anew from a storage that is wrong would hide the evidence, and be as wrong.
        if self._repair == "off" or self._storage_is_wrong or step.target in self._repaired:
            return []
        self._repaired.add(step.target)
        log.warning("audit: program %s is computed from scratch", step.target)
        return [step.target]


def _shown(ended: Pass) -> dict[str, Any]:
    return {
        "ended": time.time(),
        "first_epoch": list(ended.first_epoch),
        "last_epoch": list(ended.last_epoch),
        "seconds": ended.seconds,
        "violations": ended.violations,
        "left_out": list(ended.left_out),
    }
