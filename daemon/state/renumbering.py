"""A checkpoint whose vertices are numbered anew, as ``partition/numbering.py`` says; their ids stay what they are.

The numbering of a checkpoint is the order in which its index has the external ids. What refers to dense vertices
besides (``graph/...``) is rewritten, dead vertices are left out, and states of programs, which may name vertices
anywhere, are left out, too: programs are computed from scratch on the graph that comes of it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import EdgeList, Keys, Vertices, destinations, pack, sources
from ...gpma.index.vertex_index import state_of
from ...partition import numbering
from ...partition.graph import Graph
from .checkpoint import Checkpoint

log = logging.getLogger(__name__)


def well_numbered(checkpoint: Checkpoint, graph: Graph) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint, its vertices numbered anew if that pays, and what ``stats`` shows of that.

    ``renumbered``; ``scatter``, of the numbering that was saved, and ``scatter_breadth_first``, of the one it was
    compared with (None where it was good enough); see ``partition/numbering.py``. ``graph``: the one that will be
    loaded. Without memory for it the numbering stays. ``arcs``: how many there were when they were compared.
    Checkpoints keep all this under ``facts["numbering"]``; until arcs have doubled or halved, that is good enough.
    """
    started = time.perf_counter()
    edges, saved = _edges(checkpoint), checkpoint.facts.get("numbering") or {}
    known, arcs = saved.get("scatter_breadth_first"), saved.get("arcs", 0)
    if known is None or not len(edges) < 2 * arcs < 4 * len(edges):
        known, arcs = None, len(edges)
    dead = checkpoint.arrays["graph/dead"]
    try:
        found = numbering.appraise(
            *(edges, checkpoint.facts["n_vertices"], dead),
            directed=graph.directed,
            by_heads=graph.by_heads,
            known=known,
        )
        if found.order is not None:
            checkpoint = renumbered(checkpoint, found.order, graph)
    except MemoryError as error:
        log.warning("vertices are numbered as they were, there being no memory to compare: %s", error)
        return checkpoint, {"renumbered": False, "scatter": None, "scatter_breadth_first": known, "arcs": arcs}
    if found.order is not None:
        log.info(
            "numbered %d vertices anew, breadth first, in %.1f s: a small cache misses %.1f%% of the gathers of a "
            "pass, before %.1f%%; programs are computed from scratch",
            *(found.order.size, time.perf_counter() - started),
            *(100 * (found.scatter_then or 0.0), 100 * found.scatter),
        )
    return checkpoint, {
        "renumbered": found.order is not None,
        "scatter": found.scatter,
        "scatter_breadth_first": found.scatter_then,
        "arcs": arcs,
    }


def renumbered(checkpoint: Checkpoint, order: Vertices, graph: Graph) -> Checkpoint:
    """The checkpoint when its vertices stand in this order, which has each but the dead ones.

    Raises:
        MemoryError: there is not enough.
    """
    edges = numbering.renumbered(_edges(checkpoint), order, checkpoint.facts["n_vertices"], graph.by_heads)
    arrays = {name: array for name, array in checkpoint.arrays.items() if name.startswith("source/")}
    arrays |= {f"index/{name}": array for name, array in state_of(checkpoint.part("index"), order).items()}
    arrays |= {"graph/keys": edges.keys, "graph/dead": np.empty(0, np.uint32)}
    if edges.weights is not None:
        arrays["graph/weights"] = edges.weights
    arrays |= _window(checkpoint, order)
    arrays |= _keyed(checkpoint, order)
    facts = {**checkpoint.facts, "n_vertices": order.size}
    return replace(checkpoint, arrays=arrays, facts=facts, programs={})


def _window(checkpoint: Checkpoint, order: Vertices) -> dict[str, npt.NDArray[Any]]:
    """What is kept of when edges expire, which names no dead vertex. Undirected edges may have the larger end
    first."""
    arrays = {name: array for name, array in checkpoint.arrays.items() if name.startswith("window/")}
    if arrays:
        arrays["window/keys"] = _placed(arrays["window/keys"], checkpoint, order)
    return arrays


def _keyed(checkpoint: Checkpoint, order: Vertices) -> dict[str, npt.NDArray[Any]]:
    """What keys of records stand for, where these name rows."""
    arrays = {name: array for name, array in checkpoint.arrays.items() if name.startswith("keyed/")}
    if arrays:
        arrays["keyed/edges"] = _placed(arrays["keyed/edges"], checkpoint, order)
    return arrays


def _placed(keys: Keys, checkpoint: Checkpoint, order: Vertices) -> Keys:
    """Edges, none of a dead vertex, between the vertices in this order."""
    place = np.zeros(checkpoint.facts["n_vertices"], np.uint32)
    place[order] = np.arange(order.size, dtype=np.uint32)
    return pack(place[sources(keys)], place[destinations(keys)])


def _edges(checkpoint: Checkpoint) -> EdgeList:
    """All out-arcs, as ``Graph.load`` takes them."""
    return EdgeList(checkpoint.arrays["graph/keys"], checkpoint.arrays.get("graph/weights"))
