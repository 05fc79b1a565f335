"""The dashboard of placement and rebalancing: who has which rows, what each side does, what moves, and why.

``ROWS`` says what is shown.
"""

from __future__ import annotations

from .panels import DEVICE_MEMORY, PanelSpec, Query, rate, rates, series, sums

HEADROOM = series("device_headroom_ratio")

PLACEMENT = (
    sums(
        "Vertices by side",
        "Vertices whose rows a side keeps. The sides add up to the graph where each row is on one side only "
        "(partition.host_rows); else each keeps all.",
        "short",
        "side_vertices",
        "side",
    ),
    sums(
        "Edges by side",
        "Out-edges of these rows, undirected ones in both directions.",
        "short",
        "side_edges",
        "side",
    ),
    sums(
        "Bytes by side",
        "Memory of the graph on each side.",
        "bytes",
        "side_bytes",
        "side",
    ),
    PanelSpec(
        "Headroom of the device",
        "Share of the device's memory that is left, the least of several: under 15% rows leave until 20% are, "
        "over 30% rows come until 25% are. 0 where there is none.",
        "percentunit",
        (
            Query(
                f"min({HEADROOM} and on (instance) {series('device_present')} == 1) or min({HEADROOM})", "headroom"
            ),
        ),
    ),
    DEVICE_MEMORY,
    PanelSpec(
        "Devices",
        "1 while a device keeps rows, how often one was given up (the log says why), and whether rows are frozen "
        "where they are.",
        "short",
        (
            Query(f"sum({series('device_present')})", "present"),
            Query(f"sum({series('device_lost_total')})", "lost"),
            Query(f"max({series('placement_frozen')})", "frozen"),
        ),
    ),
)

WORK = (
    rates(
        "Updates by side",
        "Updates of rows that each side was given to apply, per second; one of an edge is one of its out-row and "
        "one of its in-row.",
        "ops",
        "side_updates_total",
        "side",
    ),
    rates(
        "Busy with updates",
        "Seconds per second that each side applied updates; sides work at the same time.",
        "percentunit",
        "side_apply_seconds_total",
        "side",
    ),
    PanelSpec(
        "Host behind the device",
        "Updates that the device has and the host's rows have yet to take (partition.host_follows), and for how "
        "many seconds the first of them has waited; 0 where both take each batch at once.",
        "short",
        (
            Query(f"max({series('host_behind_updates')})", "updates"),
            Query(f"max({series('host_behind_seconds')})", "seconds"),
        ),
    ),
    PanelSpec(
        "Imbalance",
        "Share of the slower side's time to apply the last epoch in which all else was done: the other side, and "
        "programs. Over a sixth in the mean of 64 epochs, rows move. 0: one side has all rows.",
        "percentunit",
        (Query(f"max({series('placement_imbalance_ratio')})", "imbalance"),),
    ),
)

MOVES = (
    rates(
        "Rows moved",
        "Vertices whose rows moved, per second, by where to and why.",
        "ops",
        "placement_moved_vertices_total",
        "to, reason",
        "to the {{to}}: {{reason}}",
        stacked=True,
    ),
    rates(
        "Edges moved",
        "Edges of rows that moved, per second, by where to and why.",
        "ops",
        "placement_moved_edges_total",
        "to, reason",
        "to the {{to}}: {{reason}}",
        stacked=True,
    ),
    PanelSpec(
        "Cost of moves",
        "Seconds per second that moves took: a twentieth at most, unless the device had no memory for a batch; "
        "and moves per second that found no memory themselves.",
        "percentunit",
        (
            Query(rate("placement_move_seconds_total"), "seconds"),
            Query(rate("placement_move_failures_total"), "failures"),
        ),
    ),
)

BUS = (
    rates(
        "Bytes between host and device",
        "Bytes per second by way: zero_copy, lines of the host's rows that programs on the device read where they "
        "lie; upload, batches of updates and rows that move; download, results.",
        "Bps",
        "bus_bytes_total",
        "way",
        stacked=True,
    ),
    rates(
        "Edges read of the host's rows",
        "Edges per second that programs on the device read over the bus.",
        "ops",
        "program_remote_edges_read_total",
        "program",
    ),
    PanelSpec(
        "What reads take",
        "Seconds per second of programs on the device while some rows are the host's: for what they do there, and "
        "for reads over the bus (zero_copy); as it was, and as it had been predicted from runs before.",
        "percentunit",
        (
            Query(rate("read_seconds_total", "way"), "{{way}}"),
            Query(rate("read_predicted_seconds_total", "way"), "{{way}}, predicted"),
        ),
    ),
)

ROWS: dict[str, tuple[PanelSpec, ...]] = {"Placement": PLACEMENT, "Work": WORK, "Moves": MOVES, "Bus": BUS}
