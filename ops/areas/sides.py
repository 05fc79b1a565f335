"""Host and device: which rows each has, what moves between them, and what that costs."""

from __future__ import annotations

from ..numbers import Numbers
from .area import Area

SIDES = ("host", "device")
BUS_WAYS = ("zero_copy", "upload", "download")
READ_WAYS = ("device", "zero_copy")
"""How programs on a device read rows: those that it has, and those of the host, where they lie."""
MOVE_REASONS = ("headroom", "room", "balance", "gain", "request", "evict")


class SidesMetrics(Area):
    """Sides of the graph."""

    def _device_metrics(self) -> None:
        self._device_present = self._gauge("device_present", "1 while a device keeps the graph beside the host.")
        self._device_programs = self._gauge("device_programs", "Programs that run on the device.")
        self._device_lost = self._counter(
            "device_lost", "Devices given up because they failed or had no memory; the host goes on alone."
        )
        self._host_behind_updates = self._gauge(
            "host_behind_updates",
            "Updates of edges that a device has and the host's rows have yet to take; no program reads them.",
        )
        self._host_behind_seconds = self._gauge(
            "host_behind_seconds",
            "How long the first of these has waited; whoever needs the host's rows waits for it.",
        )
        self._device_held = self._gauge(
            "device_memory_held_bytes", "Memory that the daemon has taken on the device, free blocks included."
        )
        self._device_limit = self._gauge(
            "device_memory_limit_bytes", "The setting device.memory; 0: no limit, or no device."
        )

    def _placement_metrics(self) -> None:
        self._side_vertices = self._gauge(
            "side_vertices",
            "Vertices whose rows a side keeps; where each row is on one side only, deleted ones until others get "
            "their ids.",
            "side",
        )
        self._side_edges = self._gauge(
            "side_edges", "Out-edges that a side keeps; undirected ones in both directions.", "side"
        )
        self._side_bytes = self._gauge("side_bytes", "Memory of the graph on a side.", "side")
        self._side_updates = self._counter(
            "side_updates", "Updates of rows that a side was given to apply.", "side", SIDES
        )
        self._side_apply_seconds = self._counter(
            "side_apply_seconds",
            "Time that a side took to apply updates; sides work at the same time.",
            "side",
            SIDES,
        )
        self._headroom = self._gauge(
            "device_headroom_ratio",
            "Share of the device's memory (device.memory) that is left; 0: no device or no limit.",
        )
        self._imbalance = self._gauge(
            "placement_imbalance_ratio",
            "Share of the slower side's time to apply the last epoch in which the other side and programs were "
            "done already; 0: one side has all rows.",
        )
        self._frozen = self._gauge("placement_frozen", "1 while rows stay where they are (admin.freeze).")
        help = "Vertices whose rows moved to another side, by the move's reason and where to."
        self._moved_vertices = self._moved("placement_moved_vertices", help)
        help = "Edges of rows that moved to another side, of all arrays, by the move's reason and where to."
        self._moved_edges = self._moved("placement_moved_edges", help)
        self._move_seconds = self._counter("placement_move_seconds", "Time that moves of rows took.")
        self._move_failures = self._counter(
            "placement_move_failures", "Moves that found no memory; rows stayed where they were."
        )

        self._bus_bytes = self._counter(
            "bus_bytes",
            "Bytes between host and device: zero_copy, lines of 128 bytes of the host's rows that programs read "
            "where they lie, as they ask for them; upload, batches of updates and rows that move; download, "
            "results, by what runs say has changed.",
            "way",
            BUS_WAYS,
        )
        self._way_predicted = self._counter(
            "read_predicted_seconds",
            "Time that runs on the device were thought to take, where some rows are the host's: device, to begin "
            "and to read rows there; zero_copy, for those of the host.",
            "way",
            READ_WAYS,
        )
        self._way_measured = self._counter(
            "read_seconds",
            "Time that these runs took, divided by what reads of either kind have cost in many of them.",
            "way",
            READ_WAYS,
        )

    def _moved(self, name: str, help: str) -> Numbers:
        labels = ("reason", "to")
        self._declare(f"graphtide_{name}_total", "counter", labels, help)
        counter = Numbers("counter", f"graphtide_{name}", help, labels, registry=self.registry)
        for reason in MOVE_REASONS:
            for side in SIDES:
                counter.labels(reason, side)
        return counter

    def device(self, *, present: bool, programs: int, held_bytes: int, limit_bytes: int) -> None:
        """Whether a device keeps the graph beside the host, how many programs run there, and its memory; limit 0:
        there is none."""
        self._device_present.set(int(present))
        self._device_programs.set(programs)
        self._device_held.set(held_bytes)
        self._device_limit.set(limit_bytes)

    def host_behind(self, *, updates: int, seconds: float) -> None:
        """How far the host's rows are behind a device's."""
        self._host_behind_updates.set(updates)
        self._host_behind_seconds.set(seconds)

    def device_lost(self) -> None:
        """A device was given up."""
        self._device_lost.inc()

    def side(self, name: str, *, vertices: int, edges: int, stored_bytes: int) -> None:
        """What a side keeps: vertices whose rows are there, their out-edges, and bytes."""
        self._side_vertices.labels(name).set(vertices)
        self._side_edges.labels(name).set(edges)
        self._side_bytes.labels(name).set(stored_bytes)

    def applied(self, side: str, *, updates: int, seconds: float) -> None:
        """A side applied its part of a batch."""
        self._side_updates.labels(side).inc(updates)
        self._side_apply_seconds.labels(side).inc(seconds)

    def headroom(self, share: float) -> None:
        """The share of the device's memory that is left."""
        self._headroom.set(share)

    def imbalance(self, share: float) -> None:
        """The share of the slower side's time for the last epoch in which all else was done."""
        self._imbalance.set(share)

    def frozen(self, frozen: bool) -> None:
        """Whether rows stay where they are."""
        self._frozen.set(int(frozen))

    def moved(self, reason: str, to: str, *, vertices: int, edges: int, seconds: float) -> None:
        """Rows moved to a side, for one of ``MOVE_REASONS``."""
        self._moved_vertices.labels(reason, to).inc(vertices)
        self._moved_edges.labels(reason, to).inc(edges)
        self._move_seconds.inc(seconds)

    def bus(self, way: str, n_bytes: int) -> None:
        """Bytes went one of ``BUS_WAYS``."""
        self._bus_bytes.labels(way).inc(n_bytes)

    def rows_read(self, way: str, *, predicted_s: float, measured_s: float) -> None:
        """Of a run on the device, some rows being the host's: what one of ``READ_WAYS`` was to take, and took."""
        self._way_predicted.labels(way).inc(predicted_s)
        self._way_measured.labels(way).inc(measured_s)

    def move_failed(self) -> None:
        """A move found no memory."""
        self._move_failures.inc()
