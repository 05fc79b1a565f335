"""Programs: their refreshes and states, and the audit of what they publish."""

from __future__ import annotations

from ..numbers import Numbers
from .area import STAGE_SECONDS_BUCKETS, Area, forget

AD_HOC_OUTCOMES = ("answered", "failed", "no_memory", "given_up")
PROGRAM_STATES = ("fresh", "running", "stale", "quarantined", "computing", "waiting")


class ProgramMetrics(Area):
    """Programs, by their ids, and their audit."""

    def _program_metrics(self) -> None:
        self._runs = self._histogram(
            "program_duration_seconds", "Time of a program's refresh.", STAGE_SECONDS_BUCKETS, "program"
        )
        self._active = self._gauge("program_active_vertices", "Visits of vertices in the last refresh.", "program")
        self._edges_read = self._counter("program_edges_read", "Edges read by refreshes.", "program")
        self._remote_edges = self._counter(
            "program_remote_edges_read",
            "Edges of the host's rows that refreshes on the device read where they lie.",
            "program",
        )
        self._iterations = self._counter("program_iterations", "Iterations of refreshes.", "program")
        self._restarts = self._counter(
            "program_restarts", "Refreshes that started over because that was cheaper.", "program"
        )
        self._moves = self._counter(
            "program_moves",
            "Moves to the other processor, host or device, to see or because it is faster.",
            "program",
        )
        self._bound = self._gauge(
            "program_error_bound_ratio",
            "Certified relative error per vertex, for programs that approximate; 0 for exact ones.",
            "program",
        )
        self._states: dict[str, str] = {}
        self._state = self._gauge("program_state", "1 for the state that the program is in.", "program", "state")
        self._program_time = self._gauge(
            "program_applied_up_to_timestamp_seconds",
            "Time of the newest record that the program's published result covers.",
            "program",
        )
        self._kept = self._gauge("programs_kept", "Programs that were asked for at run time, and are kept.")
        self._caught_up = self._histogram(
            "program_joining_seconds",
            "Time for which updates waited while a program that was computed beside them joined.",
            STAGE_SECONDS_BUCKETS,
        )
        self._ad_hoc = self._counter(
            "ad_hoc_runs", "Programs that were run once for a request.", "outcome", AD_HOC_OUTCOMES
        )
        self._ad_hoc_time = self._histogram(
            "ad_hoc_duration_seconds", "Time of such a run, with the copy of the graph.", STAGE_SECONDS_BUCKETS
        )

    def _audit_metrics(self, storage_rules: tuple[str, ...]) -> None:
        self._audit_coverage = self._gauge(
            "audit_coverage_ratio", "Share of storage and programs that the current pass of the audit has checked."
        )
        self._audit_passes = self._counter("audit_passes", "Complete passes of the audit over everything.")
        self._audit_time = self._gauge(
            "audit_pass_timestamp_seconds", "When the last complete pass ended; 0: none yet."
        )
        self._audit_left_out = self._gauge(
            "audit_left_out_programs", "Programs that the last complete pass left out, being quarantined."
        )
        self._audit_seconds = self._counter("audit_seconds", "Time that the audit took of the engine thread.")
        self._audit_edges = self._counter("audit_edges_read", "Edges read by the audit.")
        help = "Findings that contradict the graph, by program (or storage) and rule: there should be none, ever."
        self._declare("graphtide_audit_violations_total", "counter", ("program", "rule"), help)
        self._audit_violations = Numbers(
            "counter", "graphtide_audit_violations", help, ("program", "rule"), registry=self.registry
        )
        for rule in storage_rules:
            self._audit_violations.labels("storage", rule)
        self._audit_repairs = self._counter(
            "audit_repairs", "Programs computed from scratch because the audit found them wrong.", "program"
        )

    def program_run(
        self,
        program: str,
        *,
        seconds: float,
        active: int,
        edges_read: int,
        iterations: int,
        started_over: bool,
        applied_up_to_seconds: float | None = None,
    ) -> None:
        """One refresh of a program (named by its id)."""
        self._runs.labels(program).observe(seconds)
        self._active.labels(program).set(active)
        self._edges_read.labels(program).inc(edges_read)
        self._iterations.labels(program).inc(iterations)
        self._restarts.labels(program).inc(int(started_over))
        if applied_up_to_seconds is not None:
            self._program_time.labels(program).set(applied_up_to_seconds)

    def remote_edges_read(self, program: str, edges: int) -> None:
        """A run on the device (of a program named by its id) read so many edges of the host's rows."""
        self._remote_edges.labels(program).inc(edges)

    def program_moved(self, program: str) -> None:
        """A program goes on at the other processor."""
        self._moves.labels(program).inc()

    def program_error_bound(self, program: str, bound: float) -> None:
        """The certified error of what is published of a program; 0: it is exact."""
        self._bound.labels(program).set(bound)

    def program_state(self, program: str, state: str) -> None:
        """The state of a program, one of ``PROGRAM_STATES``."""
        if state not in PROGRAM_STATES:
            raise ValueError(f"a program's state is one of {', '.join(PROGRAM_STATES)}, not {state!r}")
        with self._lock:
            if self._states.get(program) == state:
                return
            self._states[program] = state
        self._audit_repairs.labels(program)  # the zero before the first one
        self._moves.labels(program)
        self._remote_edges.labels(program)
        for name in PROGRAM_STATES:
            self._state.labels(program, name).set(int(name == state))

    def program_dropped(self, program: str) -> None:
        """A program is no more, and nothing is said of it."""
        with self._lock:
            self._states.pop(program, None)
        for metric in (
            *(self._runs, self._active, self._edges_read, self._remote_edges),
            *(self._iterations, self._restarts, self._bound),
            *(self._program_time, self._audit_repairs, self._moves),
        ):
            forget(metric, program)
        for name in PROGRAM_STATES:
            forget(self._state, program, name)

    def programs_kept(self, number: int) -> None:
        """How many programs are kept that were asked for at run time."""
        self._kept.set(number)

    def program_joined(self, seconds: float) -> None:
        """One of them joined, and updates waited so long for it."""
        self._caught_up.observe(seconds)

    def ad_hoc_run(self, outcome: str, seconds: float) -> None:
        """A program was run once: how that ended, one of ``AD_HOC_OUTCOMES``, and its time."""
        self._ad_hoc.labels(outcome).inc()
        self._ad_hoc_time.observe(seconds)

    def audit_step(self, *, seconds: float, edges_read: int, coverage: float) -> None:
        """A step of the background audit, and how much of its pass is done now."""
        self._audit_seconds.inc(seconds)
        self._audit_edges.inc(edges_read)
        self._audit_coverage.set(coverage)

    def audit_violation(self, program: str, rule: str) -> None:
        """A finding; ``program`` is an id, or ``"storage"``."""
        self._audit_violations.labels(program, rule).inc()

    def audit_pass(self, *, left_out: int) -> None:
        """A pass is complete."""
        self._audit_passes.inc()
        self._audit_time.set_to_current_time()
        self._audit_left_out.set(left_out)

    def audit_repair(self, program: str) -> None:
        """A program was computed from scratch for what the audit found."""
        self._audit_repairs.labels(program).inc()
