"""Requests about edges, which the engine answers from its rows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....gpma.edges import Vertices
from ....gpma.index.ids import IdColumn, concatenate_ids
from ....partition.exploring import EdgesFound
from ...client.wire import pack_bitmap, pack_column
from ...errors import LimitExceeded, RequestError
from ..asker import Asker
from ..degrees import ENTRIES_APART, count_degrees
from ..exploring import Explorer
from ..lane import Question
from ..params import PAGE_DEFAULT, Outcome, Params
from ..serving import ALL_VERTICES, VERTICES_INLINE_MAX, Reply, Serving, Soon
from ..values import wire_ids
from .named import unknown_vertex
from .registry import method


@method("neighbors")
def neighbors(serving: Serving, params: Params) -> Outcome:
    """The neighbours of a vertex, a page at a time."""
    vertex = params.vertex("vertex", serving)
    direction = params.choice("direction", ("out", "in"))
    limit = params.limited("limit", serving.limits, "vertices_max", default=PAGE_DEFAULT)
    cursor = params.whole("cursor", -1, ALL_VERTICES, -1)
    params.end()

    def ask() -> tuple[Question | None, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]:
        return serving.engine.neighbors(
            params.asker,
            vertex=int(serving.lookup_few(vertex)[0]),
            direction="in" if direction == "in" else "out",
            limit=limit,
            cursor=None if cursor < 0 else cursor,
            deadline=params.deadline,
        )

    def reply(result: Mapping[str, Any]) -> Reply:
        if not result["known"]:
            raise unknown_vertex(vertex)
        answer = {"ids": wire_ids(serving.external(_dense_of(result))), "cursor": result["cursor"]}
        if result["weights"] is not None:
            answer["weights"] = pack_column(np.frombuffer(result["weights"], np.float32))
        return Reply(result["stamp"], answer)

    def at_once(result: Mapping[str, Any]) -> Reply:
        serving.catch_up(result["index_generation"])
        return reply(result)

    async def later(answered: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> Reply:
        result = await answered()
        few = _dense_of(result).size <= VERTICES_INLINE_MAX
        return reply(result) if few else await serving.in_thread(params.asker, reply, result)

    async def long() -> Reply:
        await serving.make_room(params.asker, limit)
        return await later(ask()[1])

    def work() -> Outcome:
        if limit > VERTICES_INLINE_MAX:
            return long()
        # A short page is asked for now, so that the answer is on its way before others have their turns.
        question, answered = ask()
        return later(answered) if question is None else Soon(question, at_once, partial(later, answered))

    return params.once_covered(serving, work)


def _dense_of(result: Mapping[str, Any]) -> Vertices:
    return np.frombuffer(result["neighbors"], np.uint32)


@method("degree")
async def degree(serving: Serving, params: Params) -> Reply:
    """The out- and in-degrees of vertices, from the storage."""
    ids = params.vertices("vertices", serving)
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, len(ids))
    dense = await serving.lookup_anywhere(params.asker, ids)
    result = await serving.engine.call_by_slices(params.asker, "degree", {"vertices": dense}, params.deadline)

    def reply() -> Reply:
        unknown = ~np.frombuffer(result["known"], np.bool_)
        degrees = {
            name: None if result[name] is None else pack_column(np.frombuffer(result[name], np.int64))
            for name in ("out", "in")
        }
        return Reply(result["stamp"], {**degrees, "null": pack_bitmap(unknown), "unknown": wire_ids(ids[unknown])})

    return reply() if len(ids) <= VERTICES_INLINE_MAX else await serving.in_thread(params.asker, reply)


@method("degree_distribution")
async def degree_distribution(serving: Serving, params: Params) -> Reply:
    """How many vertices have each out- or in-degree, from the storage."""
    direction = params.choice("direction", ("out", "in"))
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, min(serving.snapshot().n_vertices, 2 * ENTRIES_APART))
    found = await count_degrees(serving, params.asker, direction, params.deadline)
    return Reply(found.stamp, {"degrees": pack_column(found.degrees), "counts": pack_column(found.counts)})


@method("has_edge")
async def has_edge(serving: Serving, params: Params) -> Reply:
    """Whether edges exist: src[i] -> dst[i] for each i."""
    src, dst = params.vertices("src", serving), params.vertices("dst", serving)
    params.end()
    if len(src) != len(dst):
        raise RequestError(f"src and dst must have one length, not {len(src)} and {len(dst)}")
    await params.covered(serving)
    await serving.make_room(params.asker, len(src))
    ends = {name: await serving.lookup_anywhere(params.asker, ids) for name, ids in (("src", src), ("dst", dst))}
    result = await serving.engine.call_by_slices(params.asker, "has_edge", ends, params.deadline)
    return Reply(result["stamp"], {"exists": {"dtype": "|b1", "data": result["exists"]}})


@method("khop")
async def khop(serving: Serving, params: Params) -> Reply:
    """What is at most k hops away from a vertex, and how far."""
    vertex = params.vertex("vertex", serving)
    k = params.whole("k", 0, ALL_VERTICES, 1)
    direction = params.direction()
    limit = params.limited("limit", serving.limits, "vertices_max", default=PAGE_DEFAULT)
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, limit)
    dense = int((await serving.lookup_anywhere(params.asker, vertex))[0])
    reached = await Explorer(serving, params.asker, params.deadline).reach(dense, direction, k, limit)
    found = reached.search
    if found is None:
        raise unknown_vertex(vertex)

    def reply() -> Reply:
        ids = wire_ids(serving.external(found.found))
        answer = {"ids": ids, "distances": pack_column(found.hops), "truncated": found.truncated}
        return Reply(reached.stamp, answer)

    return await _somewhere(serving, params.asker, found.found.size, reply)


@method("egonet")
async def egonet(serving: Serving, params: Params) -> Reply:
    """A vertex, its neighbours, and the edges among them."""
    vertex = params.vertex("vertex", serving)
    direction = params.direction()
    limit = params.limited("limit", serving.limits, "vertices_max", default=PAGE_DEFAULT)
    edge_limit = params.limited("edge_limit", serving.limits, "edges_max", default=PAGE_DEFAULT)
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, limit + 2 * edge_limit)
    dense = int((await serving.lookup_anywhere(params.asker, vertex))[0])
    ego = await Explorer(serving, params.asker, params.deadline).ego(dense, direction, limit, edge_limit)
    found, edges = ego.search, ego.edges
    if found is None or edges is None:
        raise unknown_vertex(vertex)

    def reply() -> Reply:
        ids = wire_ids(serving.external(found.found))
        answer = {"ids": ids, "truncated": found.truncated, **_edges_answer(serving, edges)}
        return Reply(ego.stamp, answer)

    return await _somewhere(serving, params.asker, found.found.size + edges.src.size, reply)


@method("subgraph")
async def subgraph(serving: Serving, params: Params) -> Reply:
    """The edges among these vertices, with their weights."""
    ids = params.vertices("vertices", serving)
    limit = params.limited("limit", serving.limits, "edges_max", default=PAGE_DEFAULT)
    params.end()
    return await _edges_between(serving, params, {"vertices": ids}, limit)


@method("cross_edges")
async def cross_edges(serving: Serving, params: Params) -> Reply:
    """The edges from any of some vertices to any of others, with their weights."""
    ends = {name: params.vertices(name, serving) for name in ("src", "dst")}
    limit = params.limited("limit", serving.limits, "edges_max", default=PAGE_DEFAULT)
    params.end()
    n = sum(map(len, ends.values()))
    if n > serving.limits.vertices_max:
        detail = {"vertices_max": serving.limits.vertices_max}
        raise LimitExceeded(f"src and dst have {n} ids; at most {serving.limits.vertices_max} are allowed", detail)
    return await _edges_between(serving, params, ends, limit)


async def _edges_between(serving: Serving, params: Params, ends: Mapping[str, IdColumn], limit: int) -> Reply:
    """The edges from the first of these columns to the last one."""
    n = sum(map(len, ends.values()))
    await params.covered(serving)
    await serving.make_room(params.asker, n + 2 * limit)
    dense = [await serving.lookup_anywhere(params.asker, ids) for ids in ends.values()]

    def sort() -> list[tuple[Vertices, npt.NDArray[np.intp]]]:
        return [np.unique(column, return_inverse=True) for column in dense]

    is_few = n <= VERTICES_INLINE_MAX
    distinct = sort() if is_few else await serving.in_thread(params.asker, sort)
    (src, _), (dst, _) = distinct[0], distinct[-1]
    between = await Explorer(serving, params.asker, params.deadline).edges(src, dst, limit)

    def reply() -> Reply:
        known = between.known_src, between.known_dst
        unknown = [ids[~of[place]] for ids, of, (_, place) in zip(ends.values(), known, distinct, strict=False)]
        answer = {**_edges_answer(serving, between.found), "unknown": wire_ids(concatenate_ids(unknown))}
        return Reply(between.stamp, answer)

    return await _somewhere(serving, params.asker, n + between.found.src.size, reply)


def _edges_answer(serving: Serving, edges: EdgesFound) -> dict[str, Any]:
    """Edges as answers show them."""
    answer = {"src": wire_ids(serving.external(edges.src)), "dst": wire_ids(serving.external(edges.dst))}
    if edges.weights is not None:
        answer["weights"] = pack_column(edges.weights)
    return {**answer, "size": edges.size}


async def _somewhere(serving: Serving, asker: Asker, vertices: int, reply: Callable[[], Reply]) -> Reply:
    """An answer about so many vertices: at once, or by a thread."""
    return reply() if vertices <= VERTICES_INLINE_MAX else await serving.in_thread(asker, reply)
