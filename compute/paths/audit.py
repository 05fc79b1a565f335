"""The audit of path programs over a range of vertices: every rule that can be checked from one row of in-edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpma.edges import HALF, LOW
from ...gpma.rows import runs
from ...gpma.splice import spliced
from .mend import NOTHING, UNREACHED
from .templates import template

_UNIT = np.float32(1)

EVIDENCE = 5
"""How many vertices a violation names."""

RULES = (
    ("source", "a source without the source's value or with a parent"),
    ("half-reached", "no value, but a parent"),
    ("no-parent", "reached without a parent"),
    ("parent-edge", "the parent edge is not in the graph"),
    ("value", "not what the parent's edge offers"),
    ("improvable", "an edge offers something better"),
)
SOURCE, HALF_REACHED, NO_PARENT, PARENT_EDGE, VALUE, IMPROVABLE = range(len(RULES))

# What ``specialise`` puts in place.
WEIGHTED = False
offer: Any = None
improves: Any = None


@template
@spliced
def audit_range(word, in_, begin, end, n, is_source, source_word, broken, evidence):  # type: ignore[no-untyped-def]
    """Check the vertices begin .. end - 1 of n; returns the edges read.

    ``is_source``: bool[end - begin]. ``broken``: int64[rules], how many vertices break each rule; ``evidence``:
    uint32[rules, EVIDENCE], the first of them.
    """
    keys, weights = in_.keys, in_.weights
    edges = np.int64(0)
    for v in range(begin, end):
        own = word[v]
        parent = own & LOW
        supported = False
        offered = NOTHING
        improvable = False
        edges += np.int64(in_.degrees[v])
        for slot, stop in runs(in_, v):
            for i in range(slot, stop):
                u = keys[i] & LOW
                bits = NOTHING
                if word[u] != UNREACHED:
                    weight = weights[i] if WEIGHTED else _UNIT
                    bits = offer(word[u] >> HALF, weight)
                if u == parent:
                    supported = True
                    offered = bits
                if improves(bits, own):
                    improvable = True
        rule = -1
        if is_source[v - begin]:
            rule = SOURCE if own != source_word else -1
        elif own != UNREACHED:
            if own >> HALF == NOTHING:
                rule = HALF_REACHED
            elif parent >= np.uint64(n):
                rule = NO_PARENT
            elif not supported:
                rule = PARENT_EDGE
            elif offered != own >> HALF:
                rule = VALUE
        for found in (rule, IMPROVABLE if improvable else -1):
            if found >= 0:
                if broken[found] < EVIDENCE:
                    evidence[found, broken[found]] = v
                broken[found] += 1
    return edges
