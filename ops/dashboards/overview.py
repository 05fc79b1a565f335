"""The dashboard that an operator opens first: is it fresh, is it behind, why, and does it answer?

``ROWS`` says what is shown.
"""

from __future__ import annotations

from .panels import DEVICE_MEMORY, PanelSpec, Query, age, percentiles, rate, rates, series

STREAM = (
    PanelSpec(
        "Freshness",
        "From a record's timestamp until answers show its updates. Silent when nothing completes: see the age.",
        "s",
        percentiles("freshness_seconds"),
        log=True,
    ),
    PanelSpec(
        "Age of the newest record in answers",
        "Grows while the stream is idle, and while the daemon is stuck: compare it with the lag.",
        "s",
        (
            Query(age("source_applied_up_to_timestamp_seconds"), "published epoch"),
            Query(age("program_applied_up_to_timestamp_seconds", "program"), "{{program}}"),
        ),
    ),
    rates("Updates", "Updates decoded from the source, by operation.", "ops", "updates_total", "op", stacked=True),
    PanelSpec(
        "Lag",
        "What is still to be read, in records for Kafka and in bytes for a spool; who waits at a barrier.",
        "short",
        (
            Query(f"sum({series('source_lag_records')})", "records"),
            Query(f"sum({series('source_lag_bytes')})", "bytes"),
            Query(f"sum({series('barrier_waiting_partitions')})", "partitions at a barrier"),
        ),
    ),
    PanelSpec(
        "Lag in seconds",
        "Age of the newest record read while there is more to read.",
        "s",
        (Query(f"max({series('source_lag_seconds')})", "lag"),),
    ),
    PanelSpec(
        "Bad records",
        "Records sent to the dead letters, by reason, and whether reading waits for room there (1); tombstones, "
        "outages, misrouted edges, barriers and questions to the schema registry beside them.",
        "ops",
        (
            Query(rate("bad_records_total", "reason"), "{{reason}}"),
            Query(f"max({series('ingest_waiting')})", "nothing is read"),
            Query(rate("tombstones_total"), "tombstones"),
            Query(rate("source_outages_total"), "outages"),
            Query(rate("misrouted_edges_total"), "misrouted edges"),
            Query(rate("barriers_total", "outcome"), "barriers {{outcome}}"),
            Query(rate("schema_lookups_total", "outcome"), "schemas {{outcome}}"),
        ),
    ),
)

EPOCHS = (
    PanelSpec(
        "Time per stage",
        "Seconds spent in each stage per second: what the time goes to.",
        "percentunit",
        (
            Query(rate("epoch_duration_seconds_sum", "stage"), "{{stage}}"),
            Query(rate("order_log_wait_seconds_total"), "wait for the order log"),
        ),
        stacked=True,
    ),
    PanelSpec(
        "Stage p99",
        "The slow ones of each stage.",
        "s",
        (percentiles("epoch_duration_seconds", "stage")[1],),
        log=True,
    ),
    PanelSpec(
        "Epochs",
        "Epochs per second, and the updates of each.",
        "short",
        (
            Query(rate("epochs_total"), "epochs/s"),
            Query(f"{rate('epoch_updates_sum')} / {rate('epoch_updates_count')}", "updates per epoch"),
            Query(f"sum({series('queue_updates')})", "updates waiting"),
        ),
        log=True,
    ),
    PanelSpec(
        "Checkpoints",
        "Age of the newest checkpoint, and the time that copying and writing it took beside the epochs.",
        "s",
        (
            Query(age("checkpoint_timestamp_seconds"), "age"),
            Query(f"max({series('checkpoint_copy_seconds')})", "copy"),
            Query(f"max({series('checkpoint_write_seconds')})", "write"),
        ),
    ),
    PanelSpec(
        "Checkpoint size",
        "Bytes of the newest checkpoint.",
        "bytes",
        (Query(f"max({series('checkpoint_size_bytes')})"),),
    ),
    PanelSpec(
        "Where a restart goes on",
        "Offsets of the newest checkpoint, and the records from the log's start to it where they are fewest.",
        "short",
        (
            Query(f"max by (partition) ({series('checkpoint_offset')})", "{{partition}}"),
            Query(f"min({series('checkpoint_log_margin_records')})", "least margin"),
        ),
        log=True,
    ),
    PanelSpec(
        "Checkpoint failures",
        "Checkpoints that could not be written, by the kind of error; the log says what a restart goes on from.",
        "short",
        (Query(f"sum by (reason) ({series('checkpoint_failures_total')})", "{{reason}}"),),
    ),
)

PROGRAMS = (
    PanelSpec(
        "Refresh time",
        "How long each program takes to follow an epoch.",
        "s",
        percentiles("program_duration_seconds", "program"),
        log=True,
    ),
    PanelSpec(
        "Active vertices",
        "Visits of vertices in the last refresh.",
        "short",
        (Query(f"max by (program) ({series('program_active_vertices')})", "{{program}}"),),
        log=True,
    ),
    rates("Edges read", "Edges read by refreshes, per second.", "ops", "program_edges_read_total", "program"),
    PanelSpec(
        "Iterations and fresh starts",
        "Iterations per second, and refreshes that started over.",
        "ops",
        (
            Query(rate("program_iterations_total", "program"), "{{program}}"),
            Query(rate("program_restarts_total", "program"), "{{program}} started over"),
        ),
    ),
    PanelSpec(
        "Error bound",
        "Certified relative error per vertex; 0 for exact programs.",
        "percentunit",
        (Query(f"max by (program) ({series('program_error_bound_ratio')})", "{{program}}"),),
    ),
    PanelSpec(
        "Programs that are not fresh",
        "1 where a program is stale or quarantined; `graphtide query ADDRESS programs` says why.",
        "short",
        (
            Query(
                "max by (program, state) (" + series("program_state", 'state=~"stale|quarantined"') + ")",
                "{{program}} {{state}}",
            ),
        ),
    ),
    PanelSpec(
        "Programs at run time",
        "Programs that are kept since a request, and runs for `compute` per second by outcome.",
        "short",
        (
            Query(f"sum({series('programs_kept')})", "kept"),
            Query(rate("ad_hoc_runs_total", "outcome"), "runs {{outcome}}"),
        ),
    ),
    PanelSpec(
        "Time of programs at run time",
        "Seconds per second of runs for `compute`, and of updates that wait while programs join.",
        "percentunit",
        (
            Query(rate("ad_hoc_duration_seconds_sum"), "runs"),
            Query(rate("program_joining_seconds_sum"), "joining"),
        ),
    ),
)

GRAPH = (
    PanelSpec(
        "Size",
        "Vertices and edges; dense ids of deleted vertices, which others get once they are a share of all; keys "
        "that stand for edges.",
        "short",
        (
            Query(f"sum({series('vertices')})", "vertices"),
            Query(f"sum({series('edges')})", "edges"),
            Query(f"sum({series('row_keys')})", "keys"),
            Query(f"sum({series('dead_vertices')})", "deleted vertices"),
        ),
    ),
    PanelSpec(
        "Changes",
        "What epochs changed, in edges and vertices per second.",
        "ops",
        (
            Query(rate("edge_changes_total", "kind"), "edges {{kind}}"),
            Query(rate("ids_reused_total"), "ids that went to another vertex"),
            Query(rate("vertex_changes_total", "kind"), "vertices {{kind}}"),
        ),
        stacked=True,
    ),
    PanelSpec(
        "Memory by structure",
        "Bytes of the arrays; the process has more.",
        "bytes",
        (Query(f"sum by (structure) ({series('memory_bytes')})", "{{structure}}"),),
        stacked=True,
    ),
    PanelSpec(
        "Process memory",
        "Resident memory of the engine process and of the query server, and what counts against the budget.",
        "bytes",
        (
            Query('sum(process_resident_memory_bytes{instance=~"$instance"})', "engine"),
            Query(f"sum({series('server_process_resident_memory_bytes')})", "query server"),
            Query(f"sum({series('memory_used_bytes')})", "counted"),
            Query(f"sum({series('memory_budget_bytes')})", "budget"),
        ),
    ),
    PanelSpec(
        "Waiting for memory",
        "1 while nothing more is read: the budget is used up, or an array finds no memory to grow; and while "
        "epochs wait, since the disk does not take the order log.",
        "short",
        (
            Query(f"max({series('waits_for_memory')})", "waits"),
            Query(f"max({series('waits_for_order_log')})", "waits for the order log"),
        ),
    ),
    PanelSpec(
        "Window",
        "Where edges expire: those whose times are kept, edges per second that went by themselves, upserts per "
        "second that came too late, and by how many seconds event time is behind the clock.",
        "short",
        (
            Query(f"sum({series('window_edges')})", "edges"),
            Query(rate("expired_edges_total"), "expired/s"),
            Query(rate("late_upserts_total"), "late/s"),
            Query(
                # Nothing where event time has not begun.
                f"(time() - max({series('event_time_timestamp_seconds')}))"
                f" * (max({series('event_time_timestamp_seconds')}) > bool 0)",
                "seconds behind",
            ),
        ),
        log=True,
    ),
    PanelSpec(
        "Device",
        "1 while a device keeps the graph beside the host, how many programs run there, how often one moved to "
        "the other processor, and how often a device was given up; the log says why.",
        "short",
        (
            Query(f"sum({series('device_present')})", "present"),
            Query(f"sum({series('device_programs')})", "programs"),
            Query(f"sum({series('program_moves_total')})", "moves"),
            Query(f"sum({series('device_lost_total')})", "lost"),
        ),
    ),
    DEVICE_MEMORY,
    PanelSpec(
        "Density",
        "Share of the packed memory array's slots that is used.",
        "percentunit",
        (Query(f"avg({series('density_ratio')})", "density"),),
    ),
    PanelSpec(
        "Rebalancing",
        "Slots moved per edge changed: the price of staying sorted.",
        "short",
        (Query(f"{rate('rebalance_slots_moved_total')} / {rate('edge_changes_total')}", "slots per change"),),
    ),
)

AUDIT = (
    PanelSpec(
        "Violations",
        "What the audit found to contradict the graph, by program and rule; the log has the evidence. Nothing is "
        "found of programs that its last pass left out, being quarantined.",
        "short",
        (
            Query(
                f"sum by (program, rule) ({series('audit_violations_total')})",
                "{{program}} {{rule}}",
            ),
            Query(f"max({series('audit_left_out_programs')})", "programs left out"),
        ),
    ),
    PanelSpec(
        "Coverage",
        "Share of storage and programs that the current pass has checked; complete passes per second.",
        "percentunit",
        (
            Query(f"min({series('audit_coverage_ratio')})", "coverage"),
            Query(rate("audit_passes_total"), "passes/s"),
        ),
    ),
    PanelSpec(
        "Age of the last complete pass",
        "What was wrong before it began, and still is, has been found.",
        "s",
        (Query(f"time() - min({series('audit_pass_timestamp_seconds')} > 0)", "age"),),
    ),
    PanelSpec(
        "Price and repairs",
        "The share of the engine thread's time that the audit takes, the edges that it reads for it, and programs "
        "that were computed from scratch for what it found.",
        "short",
        (
            Query(rate("audit_seconds_total"), "share of time"),
            Query(rate("audit_edges_read_total"), "edges/s"),
            Query(f"sum by (program) ({series('audit_repairs_total')})", "{{program}} repaired"),
        ),
        log=True,
    ),
)

QUERIES = (
    rates(
        "Requests",
        "Requests answered per second, by method.",
        "reqps",
        "query_duration_seconds_count",
        "method",
        stacked=True,
    ),
    rates(
        "Requests by door",
        "Requests answered per second, over the socket and over HTTP.",
        "reqps",
        "server_requests_total",
        "door",
        stacked=True,
    ),
    PanelSpec(
        "Latency p50", "The usual request.", "s", (percentiles("query_duration_seconds", "method")[0],), log=True
    ),
    PanelSpec(
        "Latency p99", "The slow ones.", "s", (percentiles("query_duration_seconds", "method")[1],), log=True
    ),
    rates("Errors", "Requests answered with an error per second, by code.", "reqps", "query_errors_total", "code"),
    PanelSpec(
        "Query server",
        "Open connections, requests that wait for an epoch, and how often the process was replaced.",
        "short",
        (
            Query(f"sum({series('server_connections')})", "connections"),
            Query(f"sum({series('server_waiting_requests')})", "waiting"),
            Query(f"sum({series('server_restarts_total')})", "restarts"),
        ),
    ),
    PanelSpec(
        "Subscriptions",
        "How many there are, messages to them per second by kind, and epochs per second merged for slow readers.",
        "short",
        (
            Query(f"sum({series('server_subscriptions')})", "subscriptions"),
            Query(rate("subscription_messages_total", "kind"), "{{kind}}"),
            Query(rate("subscription_merged_epochs_total"), "merged epochs"),
        ),
    ),
    PanelSpec(
        "Stages and heartbeat",
        "The stage that the daemon is in, how much of it is done, and the time since the engine last went round.",
        "short",
        (
            Query(f"max by (stage) ({series('stage')})", "{{stage}}"),
            Query(f"min({series('stage_progress_ratio')})", "progress"),
            Query(f"max({series('engine_heartbeat_seconds')})", "heartbeat"),
        ),
    ),
    rates(
        "Refused connections",
        "Connections refused per second, by reason: guessed tokens, silence, crowds.",
        "cps",
        "connections_refused_total",
        "reason",
    ),
)

RESULTS = (
    PanelSpec(
        "Results written",
        "Changed vertices written to the results' topic or files, per second, and epochs per second.",
        "ops",
        (
            Query(rate("results_records_total"), "vertices"),
            Query(rate("results_epochs_total"), "epochs"),
            Query(rate("results_merged_epochs_total"), "merged epochs"),
        ),
    ),
    PanelSpec(
        "Results behind",
        "How long there has been something to write, and how many epochs are not written yet.",
        "short",
        (
            Query(f"max({series('results_lag_seconds')})", "seconds"),
            Query(f"max({series('results_lag_epochs')})", "epochs"),
        ),
    ),
    PanelSpec(
        "Results in trouble",
        "Times per second that results could not be written, and epochs of which every vertex was.",
        "ops",
        (
            Query(rate("results_errors_total"), "errors"),
            Query(rate("results_snapshots_total"), "snapshots"),
        ),
    ),
)

ROWS: dict[str, tuple[PanelSpec, ...]] = {
    "Stream": STREAM,
    "Epochs": EPOCHS,
    "Programs": PROGRAMS,
    "Graph": GRAPH,
    "Audit": AUDIT,
    "Queries": QUERIES,
    "Results": RESULTS,
}
