"""Which of the socket's methods the HTTP door offers, and how."""

from __future__ import annotations

READS = frozenset(
    {
        *("hello", "get", "top", "histogram", "path", "component", "neighbors", "degree", "degree_distribution"),
        *("has_edge", "khop", "egonet", "subgraph", "cross_edges", "programs", "stats", "placement", "wait"),
        "subscribe",
    }
)
"""Methods that change nothing, and may so be asked by GET; every other one needs POST."""
NOT_HERE = frozenset({"unsubscribe"})
"""Methods that mean nothing here: a subscription ends with its connection."""
