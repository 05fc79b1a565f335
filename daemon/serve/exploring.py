"""Looking around in the graph for clients: questions to the engine in slices of so much reading, from one epoch.

Between two slices the engine keeps the vertices that the next ones are about (``held``), and nothing else: each
question says where to go on. So others have their turns in between, and what belongs to a client that has gone is
not asked any more. Where epochs follow each other faster than slices, the whole is asked for in the end, beside
others' questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...gpma.edges import Vertices, Weights
from ...partition.exploring import EdgesFound, EdgesPlace, Search, SearchPlace
from ..errors import LimitExceeded
from ..records.topology import SearchDirection, StorageState, Topology
from .asker import Asker
from .engine_calls import SLICE_VERTICES, SLICED_TRIES
from .serving import Serving

SLICE_READS = 1 << 17
"""So many entries of rows are read for one question: about a millisecond of the engine's time."""

Flags = npt.NDArray[np.bool_]
T = TypeVar("T")


# -- the engine's end -----------------------------------------------------------------------------------------


def exploration_answer(
    topology: Topology, method: str, params: Mapping[str, Any]
) -> tuple[StorageState, dict[str, Any]]:
    """The answer to a question that ``Explorer`` asks."""
    reads_max, timeout_s = params["reads_max"], params["timeout_s"]

    def column(name: str) -> Vertices:
        return np.frombuffer(params[name], np.uint32)

    if method == "reach":
        begun = Search(column("found"), column("hops"), SearchPlace(*params["place"]))
        reached = topology.reach(
            begun,
            params["direction"],
            hops_max=params["hops_max"],
            limit=params["limit"],
            reads_max=reads_max,
            timeout_s=timeout_s,
        )
        return reached.state, {"known": reached.known, **_search_to_wire(reached.search, begun.found.size)}
    if method == "edges_between":
        edges = topology.edges_between(
            column("src"),
            column("dst"),
            column("common"),
            place=EdgesPlace(0, params["first"]),
            limit=params["limit"],
            reads_max=reads_max,
            timeout_s=timeout_s,
        )
        known = {"known_src": edges.known_src.tobytes()}
        if params["tell_dst"]:
            known["known_dst"] = edges.known_dst.tobytes()
        return edges.state, {**known, **_edges_to_wire(edges.found)}
    ego = topology.ego(
        params["vertex"],
        params["direction"],
        limit=params["limit"],
        edge_limit=params["edge_limit"],
        reads_max=reads_max,
        timeout_s=timeout_s,
    )
    found = _search_to_wire(ego.search, 0)
    edges_found = None if ego.edges is None else _edges_to_wire(ego.edges)
    return ego.state, {"known": ego.known, "search": found, "edges": edges_found}


def _search_to_wire(search: Search, n_known: int) -> dict[str, Any]:
    place = search.place
    return {
        "found": search.found[n_known:].tobytes(),
        "hops": search.hops[n_known:].tobytes(),
        "place": None if place is None else [place.index, place.side, place.first],
        "truncated": search.truncated,
        "reads": search.reads,
    }


def _edges_to_wire(edges: EdgesFound) -> dict[str, Any]:
    place = edges.place
    return {
        "edges_src": edges.src.tobytes(),
        "edges_dst": edges.dst.tobytes(),
        "weights": None if edges.weights is None else edges.weights.tobytes(),
        "size": edges.size,
        "place": None if place is None else [place.index, place.first],
        "reads": edges.reads,
    }


# -- the server's end -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reached:
    """What a search from a vertex found; None: it is no vertex. ``stamp``: of the epoch."""

    stamp: bytes
    search: Search | None


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges between two sets of which ``known_src`` and ``known_dst`` are vertices."""

    stamp: bytes
    known_src: Flags
    known_dst: Flags
    found: EdgesFound


@dataclass(frozen=True, slots=True)
class Ego:
    """A vertex, its neighbours and the edges among them; None: it is no vertex."""

    stamp: bytes
    search: Search | None
    edges: EdgesFound | None


@dataclass(frozen=True, slots=True)
class _Piece:
    """How much of a question is asked at once: entries to be read, vertices to be named."""

    reads: int
    vertices: int


class Explorer:
    """Asks for one request.

    All methods raise ``LimitExceeded`` where more would have to be read than ``edges_visited_max``, and what
    ``EngineCalls.call`` does.
    """

    def __init__(self, serving: Serving, asker: Asker, deadline: float) -> None:
        self._engine = serving.engine
        self._asker = asker
        self._deadline = deadline
        self._reads_max = serving.limits.edges_visited_max
        sliced = _Piece(min(SLICE_READS, self._reads_max), SLICE_VERTICES)
        self._sliced = [sliced] * SLICED_TRIES
        self._whole = _Piece(self._reads_max, 2**32)

    async def reach(self, vertex: int, direction: SearchDirection, hops_max: int, limit: int) -> Reached:
        """What is at most so many hops away, ``limit`` of it."""
        return await self._of_one_epoch(lambda piece: self._reach(piece, vertex, direction, hops_max, limit))

    async def edges(self, src: Vertices, dst: Vertices, limit: int) -> Edges:
        """The edges from any of ``src`` to any of ``dst``, which ascend; those of undirected graphs once."""
        return await self._of_one_epoch(lambda piece: self._edges(piece, src, dst, limit))

    async def ego(self, vertex: int, direction: SearchDirection, limit: int, edge_limit: int) -> Ego:
        """A vertex and its neighbours, ``limit`` together, and the edges among them, ``edge_limit`` of them."""
        asked = {"vertex": vertex, "direction": direction, "limit": limit, "edge_limit": edge_limit}
        ego = await self._ego(self._sliced[0], asked)
        for piece in self._sliced if ego is None else ():
            reached = await self._reach(piece, vertex, direction, 1, limit)
            if reached is None:
                continue
            about, epoch = reached
            if about.search is None:
                return Ego(about.stamp, None, None)
            chosen = np.sort(about.search.found)
            between = await self._edges(piece, chosen, chosen, edge_limit, epoch, about.search.reads)
            if between is not None:
                return Ego(about.stamp, about.search, between[0].found)
        ego = ego or await self._ego(self._whole, asked)
        if ego is None:
            self._check_reads(self._reads_max)
        assert ego is not None
        return ego

    async def _of_one_epoch(self, ask: Callable[[_Piece], Awaitable[tuple[T, Any] | None]]) -> T:
        """What is found in slices, else, where epochs follow each other too fast for these, as a whole."""
        for piece in (*self._sliced, self._whole):
            found = await ask(piece)
            if found is not None:
                break
        assert found is not None, "one answer is of one epoch"
        return found[0]

    async def _ask(self, method: str, asked: Mapping[str, Any], piece: _Piece) -> dict[str, Any]:
        question = {**asked, "reads_max": piece.reads}
        beside = piece is self._whole
        return await self._engine.call(
            self._asker, method, question, SLICE_VERTICES, self._deadline, beside=beside
        )

    async def _ego(self, piece: _Piece, asked: Mapping[str, Any]) -> Ego | None:
        answer = await self._ask("ego", asked, piece)
        if not answer["known"]:
            return Ego(answer["stamp"], None, None)
        if answer["edges"] is None:
            return None
        return Ego(answer["stamp"], _search_of(answer["search"]), _edges_of([answer["edges"]]))

    async def _reach(
        self, piece: _Piece, vertex: int, direction: SearchDirection, hops_max: int, limit: int
    ) -> tuple[Reached, Any] | None:
        """What is reached, and the epoch; None: there were several."""
        state, epoch = Search.begin(vertex), None
        asked = {"direction": direction, "hops_max": hops_max, "limit": limit}
        found: dict[str, Any] = {"found": state.found.tobytes(), "hops": state.hops.tobytes()}
        with self._engine.holding() as held:
            n_held = 0
            while state.place is not None:
                place = [state.place.index, state.place.side, state.place.first]
                answer = await self._ask("reach", {**asked, **found, "place": place}, piece)
                if answer["epoch"] != (epoch or answer["epoch"]):
                    return None
                epoch = answer["epoch"]
                if not answer["known"]:
                    return Reached(answer["stamp"], None), epoch
                state = _search_of(answer, state)
                if state.place is not None:
                    self._check_reads(state.reads)
                    held.add(found=state.found[n_held:], hops=state.hops[n_held:])
                    n_held, found = state.found.size, {**held.named}
        return Reached(answer["stamp"], state), epoch

    async def _edges(
        self, piece: _Piece, src: Vertices, dst: Vertices, limit: int, epoch: Any = None, reads: int = 0
    ) -> tuple[Edges, Any] | None:
        """The edges, and the epoch; None: there were several. ``reads``: of ``edges_visited_max``, done before."""
        common = np.intersect1d(src, dst, assume_unique=True)
        ends: dict[str, Any] = {"dst": dst.tobytes(), "common": common.tobytes()}
        parts: list[dict[str, Any]] = []
        known, n_found = np.zeros(src.size, bool), 0
        at, first, going = 0, 0, True
        with self._engine.holding() as held:
            while going:
                here = src[at : at + piece.vertices]
                asked = {**ends, "src": here.tobytes(), "first": first, "limit": limit - n_found}
                answer = await self._ask("edges_between", {**asked, "tell_dst": not parts}, piece)
                if answer["epoch"] != (epoch or answer["epoch"]):
                    return None
                epoch = answer["epoch"]
                parts.append(answer)
                known[at : at + here.size] = np.frombuffer(answer["known_src"], np.bool_)
                n_found += len(answer["edges_src"]) // 4
                reads += answer["reads"]
                done, first = answer["place"] or (here.size, 0)
                at += done
                going = at < src.size
                if going:
                    self._check_reads(reads)
                    if not held.named:
                        held.add(dst=dst, common=common)
                        ends = {**held.named}
        known_dst = np.frombuffer(parts[0]["known_dst"], np.bool_)
        return Edges(parts[0]["stamp"], known, known_dst, _edges_of(parts)), epoch

    def _check_reads(self, reads: int) -> None:
        if reads >= self._reads_max:
            raise LimitExceeded(
                f"this would take reading more than {self._reads_max} entries of rows",
                {"edges_visited_max": self._reads_max},
            )


def _search_of(answer: Mapping[str, Any], before: Search | None = None) -> Search:
    found, hops = (np.frombuffer(answer[name], np.uint32) for name in ("found", "hops"))
    place = None if answer["place"] is None else SearchPlace(*answer["place"])
    if before is None:
        return Search(found, hops, place, answer["truncated"], answer["reads"])
    found, hops = np.concatenate([before.found, found]), np.concatenate([before.hops, hops])
    return Search(found, hops, place, answer["truncated"], before.reads + answer["reads"])


def _edges_of(parts: list[dict[str, Any]]) -> EdgesFound:
    src, dst = (
        np.frombuffer(b"".join(part[name] for part in parts), np.uint32) for name in ("edges_src", "edges_dst")
    )
    weights: Weights | None = None
    if parts[0]["weights"] is not None:
        weights = np.frombuffer(b"".join(part["weights"] for part in parts), np.float32)
    size, reads = (sum(part[name] for part in parts) for name in ("size", "reads"))
    return EdgesFound(src, dst, weights, size, None, reads)
