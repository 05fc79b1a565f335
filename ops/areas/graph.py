"""The graph: its edges and vertices, its memory, its window."""

from __future__ import annotations

from collections.abc import Mapping

from .area import Area, forget

CHANGES = ("inserted", "overwritten", "deleted", "absent")
VERTEX_CHANGES = ("inserted", "deleted", "absent")


class GraphMetrics(Area):
    """What the graph has, and what epochs change of it."""

    def _graph_metrics(self) -> None:
        self._changes = self._counter(
            "edge_changes",
            "Distinct edges that epochs changed; absent: deletes of edges that were not there.",
            "kind",
            CHANGES,
        )
        self._vertex_changes = self._counter(
            "vertex_changes",
            "Distinct vertices that epochs changed; absent: deletions of vertices that did not exist.",
            "kind",
            VERTEX_CHANGES,
        )
        self._vertices = self._gauge("vertices", "Vertices of the graph.")
        self._dead_vertices = self._gauge(
            "dead_vertices",
            "Dense ids of deleted vertices, kept in case they come back, or free for others.",
        )
        self._edges = self._gauge("edges", "Edges of the graph; an undirected edge counts once.")
        self._density = self._gauge("density_ratio", "Share of the slots of the packed memory array that is used.")
        self._slots_moved = self._counter("rebalance_slots_moved", "Slots rewritten by merges and rebalancing.")
        self._memory = self._gauge("memory_bytes", "Memory by structure.", "structure")
        self._structures: set[str] = set()
        self._memory_budget = self._gauge("memory_budget_bytes", "The setting memory.budget; 0: there is none.")
        self._memory_used = self._gauge(
            "memory_used_bytes",
            "What counts against it: of a limited control group everything in it, else what is resident.",
        )
        self._memory_waits = self._gauge("waits_for_memory", "1 while updates wait until memory comes free.")
        self._expired = self._counter("expired_edges", "Edges that went by themselves, as the window has it.")
        self._window_edges = self._gauge("window_edges", "Edges whose times are kept, for them to expire.")
        self._row_keys = self._gauge("row_keys", "Keys of records that stand for an edge (source.keyed).")
        self._event_time = self._gauge(
            "event_time_timestamp_seconds",
            "How far event time has come; 0: edges do not expire by it, or not yet.",
        )

    def changes(self, *, inserted: int, overwritten: int, deleted: int, absent: int, slots_moved: int) -> None:
        """What an epoch changed."""
        counted = {"inserted": inserted, "overwritten": overwritten, "deleted": deleted, "absent": absent}
        for kind, number in counted.items():
            self._changes.labels(kind).inc(number)
        self._slots_moved.inc(slots_moved)

    def vertex_changes(self, *, inserted: int, deleted: int, absent: int) -> None:
        """What an epoch did to vertices."""
        for kind, number in {"inserted": inserted, "deleted": deleted, "absent": absent}.items():
            self._vertex_changes.labels(kind).inc(number)

    def graph(
        self, *, vertices: int, edges: int, density: float, memory_bytes: Mapping[str, int], dead_vertices: int = 0
    ) -> None:
        """The graph as it is, and the memory of every structure; structures not named are gone."""
        self._vertices.set(vertices)
        self._dead_vertices.set(dead_vertices)
        self._edges.set(edges)
        self._density.set(density)
        with self._lock:
            for gone in self._structures - memory_bytes.keys():
                forget(self._memory, gone)
            self._structures = set(memory_bytes)
        for name, size in memory_bytes.items():
            self._memory.labels(name).set(size)

    def memory_budget(self, *, budget: int, used: int) -> None:
        """The budget of memory (0: none) and what counts against it, in bytes."""
        self._memory_budget.set(budget)
        self._memory_used.set(used)

    def waits_for_memory(self, waits: bool) -> None:
        """Whether updates wait until memory comes free."""
        self._memory_waits.set(int(waits))

    def expired(self, edges: int) -> None:
        """So many more edges went by themselves."""
        self._expired.inc(edges)

    def window(self, *, edges: int, event_time_seconds: float = 0.0) -> None:
        """Edges whose times are kept, and how far event time has come."""
        self._window_edges.set(edges)
        self._event_time.set(event_time_seconds)

    def row_keys(self, keys: int) -> None:
        """So many keys of records stand for an edge."""
        self._row_keys.set(keys)
