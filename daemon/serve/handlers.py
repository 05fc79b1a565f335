"""The requests that the query server answers, one function each.

A handler takes the ``Serving`` and its ``Params`` and gives back a ``Reply``, or a coroutine of one where it
has to wait. ``@method("name")`` registers it; the first line of its docstring is its description. Short work
is done on the event loop; whatever may take longer than about a millisecond goes through
``serving.in_thread``, after ``serving.make_room`` where the answer may be long. What is read of an epoch inside
``serving.read`` must be copied there. All requests but ``hello`` may come with ``min_offsets`` and ``timeout_ms``:
once all parameters are taken, the work begins after ``params.covered``, or within ``params.once_covered``.
"""

from __future__ import annotations

import asyncio
import difflib
import reprlib
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...compute import registry
from ...compute.program import Answer, ExternalId, Program, ProgramError, Published
from ...gpma.edges import NO_VERTEX, Vertices, distinct
from ...gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, StringColumn, concatenate_ids
from ...partition.exploring import EdgesFound
from ..client.wire import PROTOCOL_VERSIONS, pack_bitmap, pack_column
from ..errors import (
    LimitExceeded,
    NotSupported,
    RequestError,
    TimedOut,
    Unavailable,
    UnknownProgram,
    UnknownVertex,
)
from ..records.asked import ids_to_engine
from ..records.stream import Partition, offsets_from_wire
from ..records.topology import SearchDirection
from . import histograms
from .asker import Asker
from .degrees import ENTRIES_APART, count_degrees
from .exploring import Explorer
from .histograms import Scale
from .largest import Largest
from .results import Pieces, ProgramResults, Snapshot
from .scopes import Chosen, Everyone, Look, Scope, check_told
from .serving import ALL_VERTICES, SCANNED_INLINE_MAX, VERTICES_INLINE_MAX, Reply, Serving
from .values import best_of, no_order, staleness, top_k, values_of, vertices_named, wire_ids

if TYPE_CHECKING:
    from ..config.settings import LimitsConfig

PATH_STEPS_INLINE = 64
"""Longer paths are followed on a copy of all parents."""
PAGE_DEFAULT = 1000
BINS_DEFAULT = 20
PROGRAMS_NAMED_MAX = 20
PROGRAM_MISSING = "must be given: the id of a program, which the method programs lists"
SCAN_CHUNK = 1 << 20
PIECE_IDS = 1 << 13
BEST_FALL, BEST_FALL_MIN = 0.01, 1e-30
"""How much worse the last of the best may be in the next epoch, as it is guessed: a part of it, and this."""
PARAMETERS_OF_ALL = ("min_offsets", "timeout_ms")
"""Of every method but ``hello``."""

Outcome = Reply | Coroutine[Any, Any, Reply]
Handler = Callable[[Serving, "Params"], Outcome]
METHODS: dict[str, Handler] = {}

CHECKPOINT_POLL_S = 0.05
"""The engine is asked so often whether a checkpoint that was asked for is made."""


def method(name: str) -> Callable[[Handler], Handler]:
    """Register a handler under the name that requests use."""

    def register(handler: Handler) -> Handler:
        METHODS[name] = handler
        return handler

    return register


def find(name: str) -> Handler:
    """The handler of a method.

    Raises:
        NotSupported: there is none.
    """
    handler = METHODS.get(name)
    if handler is None:
        known = name.startswith("admin.")
        what = "is not offered by this server" if known else "is no method of the protocol"
        near = [] if known else difflib.get_close_matches(name[:64], METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise NotSupported(f"{name[:64]!r} {what}{hint}", {"methods": sorted(METHODS)})
    return handler


def answer(serving: Serving, asker: Asker, name: str, given: Mapping[str, Any]) -> Outcome:
    """What the handler of this name makes of a request.

    Raises:
        GraphtideError: there is no such handler, or it refuses.
    """
    handler, params = find(name), Params(given, asker)
    if name == "hello":
        return handler(serving, params)
    params.deadline = time.monotonic() + params.timeout_ms(serving.limits) / 1000
    params.min_offsets = params.offsets("min_offsets")
    return handler(serving, params)


def with_columns(params: Mapping[str, Any], serving: Serving) -> dict[str, Any]:
    """Parameters with their long arrays as columns of ids, as ``Params.vertices`` takes them, too.

    Raises:
        RequestError: they hold something else.
    """

    def column(name: str, value: Any) -> Any:
        is_long = isinstance(value, list) and VERTICES_INLINE_MAX < len(value) <= serving.limits.vertices_max
        return parse_ids(name, value, serving.id_kind) if is_long else value

    return {name: column(name, value) for name, value in params.items()}


class Params:
    """The parameters of one request. Each is taken once; what nobody took is refused.

    ``asker``: whose request it is; ``deadline``: the time (of ``time.monotonic``) until which it may wait;
    ``min_offsets``: what the epoch must cover that answers it.
    """

    def __init__(self, given: Mapping[str, Any], asker: Asker) -> None:
        self._given = dict(given)
        self._known: list[str] = []
        self.asker = asker
        self.deadline = 0.0
        self.min_offsets: dict[Partition, int] = {}

    def take(self, name: str) -> Any:
        """The value as it came, or None."""
        self._known.append(name)
        return self._given.pop(name, None)

    def end(self) -> None:
        """No further parameter is known.

        Raises:
            RequestError: one was given.
        """
        if self._given:
            unknown = sorted(name[:64] for name in self._given)
            known = sorted(self._known, key=lambda name: name in PARAMETERS_OF_ALL)  # these last
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise RequestError(
                f"unknown parameters: {', '.join(unknown)}; {there}", {"unknown": unknown, "known": known}
            )

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from low to high.

        Raises:
            LimitExceeded: it is larger.
            RequestError: it is missing, smaller or something else.
        """
        value = self.take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise wrong(name, f"must be a whole number from {low} to {high}")
        if value > high:
            detail = {f"{name}_max": high, "parameter": name}
            raise LimitExceeded(f"{name} is {value}; at most {high} is allowed", detail)
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words; the first when none is given."""
        value = self.take(name)
        if value is None:
            return allowed[0]
        if value not in allowed:
            raise wrong(name, f"must be one of {', '.join(allowed)}")
        return str(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong(name, "must be true or false")
        return value

    def limit(self, name: str, high: int) -> int:
        """How much is wanted of an answer, at most so much."""
        return self.whole(name, 1, high, min(PAGE_DEFAULT, high))

    def direction(self) -> SearchDirection:
        """Along which edges to search."""
        value = self.choice("direction", ("out", "in", "both"))
        return "out" if value == "out" else "in" if value == "in" else "both"

    def number(self, name: str, default: float) -> float:
        """A finite number, 0 or more."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise wrong(name, "must be a number, 0 or more")
        return float(value)

    def epoch(self, name: str) -> tuple[int, int] | None:
        """An epoch as results show it, or None."""
        value = self.take(name)
        if value is None:
            return None
        whole = isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value)
        if not whole:
            raise wrong(name, "must be an epoch: [incarnation, number]")
        return value[0], value[1]

    def rest(self) -> dict[str, Any]:
        """All that nobody has taken, as it came: the parameters of a program."""
        rest, self._given = self._given, {}
        for name, value in rest.items():
            if isinstance(value, np.ndarray | StringColumn):  # ``with_columns``
                rest[name] = value.to_list() if isinstance(value, StringColumn) else value.tolist()
        return rest

    def program(self) -> str:
        """The id of a program."""
        value = self.take("program")
        if value is None:
            raise wrong("program", PROGRAM_MISSING)
        if not isinstance(value, str):
            raise wrong("program", "must be the id of one program, a string")
        return value

    def vertices(self, name: str, serving: Serving) -> IdColumn:
        """External ids: an array, or for integers the bytes of a little-endian int64 column."""
        value = self.take(name)
        if value is None:
            raise wrong(name, "must be given: ids of vertices")
        limit = serving.limits.vertices_max
        if isinstance(value, np.ndarray | StringColumn):  # ``with_columns``
            return value
        count = len(value) // 8 if isinstance(value, bytes) else len(value) if isinstance(value, list) else None
        if count is None:
            raise wrong(name, "must be an array of ids, or a binary column of int64")
        if count > limit:
            detail = {"vertices_max": limit, "parameter": name}
            raise LimitExceeded(f"{name} has {count} ids; at most {limit} are allowed", detail)
        return parse_ids(name, value, serving.id_kind)

    def vertices_or_all(self, name: str, serving: Serving) -> IdColumn | None:
        """As ``vertices``; None where none are given."""
        if self._given.get(name) is None:
            self.take(name)
            return None
        return self.vertices(name, serving)

    def vertex(self, name: str, serving: Serving) -> IdColumn:
        """One external id, as a column of one."""
        value = self.take(name)
        if value is None:
            raise wrong(name, "must be given: the id of a vertex")
        return parse_ids(name, [value], serving.id_kind)

    def offsets(self, name: str) -> dict[Partition, int]:
        """Offsets as results show them; empty when none are given."""
        value = self.take(name)
        try:
            return {} if value is None else offsets_from_wire(value)
        except (ValueError, TypeError, AttributeError):
            raise wrong(name, "must map topic -> partition -> offset, or file -> byte") from None

    async def covered(self, serving: Serving) -> None:
        """Wait for an epoch that covers the offsets that are asked for.

        Raises:
            TimedOut, Unavailable: as ``Serving.covered``.
        """
        if self.min_offsets:
            await serving.covered(self.asker, self.min_offsets, self.deadline)

    def once_covered(self, serving: Serving, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of ``work``, which is done at once where there is nothing to wait for."""
        if not self.min_offsets or serving.covers(self.min_offsets):
            return work()

        async def later() -> Reply:
            await self.covered(serving)
            outcome = work()
            return outcome if isinstance(outcome, Reply) else await outcome

        return later()

    def timeout_ms(self, limits: LimitsConfig) -> int:
        """How long the request may wait."""
        return self.whole("timeout_ms", 0, limits.timeout_ms_max, limits.timeout_ms_default)


def wrong(name: str, what: str) -> RequestError:
    """The error about one parameter."""
    return RequestError(f"{name} {what}", {"parameter": name})


def parse_ids(name: str, value: Any, kind: Literal["int", "string"]) -> IdColumn:
    """External ids of the graph's kind.

    Raises:
        RequestError: these are none.
    """
    if value == b"":
        value = []  # a column of nothing is of either kind
    if isinstance(value, bytes):
        if kind == "string" or len(value) % 8:
            raise wrong(name, "is binary: that is a column of int64 ids, eight bytes each, of a graph of integers")
        return np.frombuffer(value, "<i8").astype(np.int64, copy=False)
    allowed, word = (str, "strings") if kind == "string" else (int, "integers")
    # In pieces, here and below: in between the interpreter can turn to other work.
    pieces = [value[start : start + PIECE_IDS] for start in range(0, len(value), PIECE_IDS)]
    if not all(set(map(type, piece)) == {allowed} for piece in pieces):
        other = next(item for item in value if type(item) is not allowed)
        raise wrong(name, f"has {reprlib.repr(other)}: the ids of this graph are {word}")
    if kind == "string":
        return StringColumn.of(value)
    try:
        return np.concatenate([np.empty(0, np.int64), *(np.array(piece, np.int64) for piece in pieces)])
    except OverflowError:
        raise wrong(name, "has an id that is not a 64-bit signed integer") from None


def _one(ids: IdColumn) -> int | str:
    return ids.to_list()[0] if isinstance(ids, StringColumn) else int(ids[0])


def _program(snapshot: Snapshot, id: str) -> ProgramResults:
    found = snapshot.programs.get(id)
    if found is None and id in snapshot.coming:
        coming = snapshot.coming[id]
        why = f": {coming['reason']}" if coming["reason"] else ""
        detail = {"parameter": "program", "state": coming["state"]}
        raise Unavailable(f"program {id!r} has no results yet, it is {coming['state']}{why}", detail)
    if found is None:
        there = sorted(snapshot.programs)
        named = ", ".join([*there[:PROGRAMS_NAMED_MAX], *(["..."] if len(there) > PROGRAMS_NAMED_MAX else [])])
        detail = {"programs": there, "parameter": "program"}
        raise UnknownProgram(f"there is no program {id[:128]!r}; there are {named or 'none'}", detail)
    return found


def _known_vertex(serving: Serving, snapshot: Snapshot, ids: IdColumn) -> int:
    dense = int(serving.lookup_in(snapshot, ids)[0])
    if dense == NO_VERTEX:
        raise _unknown(ids)
    return dense


def _unknown(ids: IdColumn) -> UnknownVertex:
    return UnknownVertex(f"vertex {_one(ids)!r} is unknown", {"vertex": _one(ids)})


# -- the connection -----------------------------------------------------------------------------------------


@method("hello")
def hello(serving: Serving, params: Params) -> Reply:
    """Agree on a protocol version and present the token."""
    versions, token = params.take("versions"), params.take("token")
    params.end()
    if versions is not None and (
        not isinstance(versions, list) or not any(version in PROTOCOL_VERSIONS for version in versions)
    ):
        raise NotSupported("no common protocol version", {"versions": list(PROTOCOL_VERSIONS)})
    serving.admission.check(token)
    params.asker.connection.token = token
    snapshot = serving.snapshot()
    return Reply(
        serving.stamp(snapshot),
        {
            "server": f"graphtide/{serving.version}",
            "version": PROTOCOL_VERSIONS[-1],
            "capabilities": sorted(METHODS),
            "graph": dict(serving.graph),
            "programs": {id: result.kind for id, result in snapshot.programs.items()},
            "stage": snapshot.stats.get("stage"),
        },
    )


# -- results ------------------------------------------------------------------------------------------------


@method("get")
def get(serving: Serving, params: Params) -> Outcome:
    """Values of vertices, of one program or of several in one epoch."""
    named = params.take("program")
    ids = params.vertices("vertices", serving)
    with_parents = params.flag("parents")
    params.end()
    if isinstance(named, str):
        programs = [named]
    elif isinstance(named, list) and named and all(isinstance(id, str) for id in named):
        programs = list(dict.fromkeys(named))
    else:
        raise wrong(
            "program", PROGRAM_MISSING if named is None else "must be the id of a program, or an array of them"
        )
    if len(ids) * len(programs) > serving.limits.vertices_max:
        raise LimitExceeded(f"vertices times programs are more than {serving.limits.vertices_max}")

    def read(snapshot: Snapshot) -> Reply:
        dense = serving.lookup_in(snapshot, ids)
        unknown = dense == NO_VERTEX
        answers = {
            id: _values(serving, _program(snapshot, id), dense, unknown, with_parents=with_parents)
            for id in programs
        }
        answer = answers[named] if isinstance(named, str) else {"results": answers}
        answer["unknown"] = wire_ids(ids[unknown])
        return Reply(serving.stamp(snapshot), answer)

    async def in_thread() -> Reply:
        await serving.make_room(params.asker, len(ids) * len(programs))
        return await serving.in_thread(params.asker, serving.read, read)

    few = len(ids) <= VERTICES_INLINE_MAX
    return params.once_covered(serving, lambda: serving.read(read) if few else in_thread())


def _values(
    serving: Serving,
    result: ProgramResults,
    dense: Vertices,
    unknown: npt.NDArray[np.bool_],
    *,
    with_parents: bool,
) -> dict[str, Any]:
    """Values of one program, and parents."""
    answer = values_of(serving, result, dense).to_wire()
    if with_parents:
        kind = serving.program_class(result.kind)
        if not kind.has_parents:
            raise NotSupported(f"programs of kind {result.kind} keep no parents")
        seen = result.knows(dense)
        parents = np.full(dense.size, NO_VERTEX, np.uint32)
        parents[seen] = kind.parents(result.published, dense[seen])
        answer["parents"] = vertices_named(serving, result, parents, unknown | ~seen).to_wire()
    return {**answer, **staleness(result)}


@method("top")
async def top(serving: Serving, params: Params) -> Reply:
    """The k vertices of largest (or smallest) value; vertices without a value are left out."""
    id = params.program()
    k = params.whole("k", 1, serving.limits.top_k_max, 10)
    order = params.choice("order", ("desc", "asc"))
    among = params.vertices_or_all("vertices", serving)
    params.end()
    await params.covered(serving)
    _program(serving.snapshot(), id)
    if among is not None:
        return await _top_among(serving, params, id, among, k, descending=order == "desc")

    last: float | None = None

    def scan(snapshot: Snapshot) -> Pieces[tuple[Snapshot, Vertices, npt.NDArray[Any]]]:
        result, descending = _program(snapshot, id), order == "desc"
        read, living = _run_of(serving, result), partial(_living, snapshot, result)
        fall = 0.0 if last is None else abs(last) * BEST_FALL + BEST_FALL_MIN
        beyond = None if last is None else last - fall if descending else last + fall
        n = result.published.n_vertices
        best = yield from best_of(read, living, n, k, descending=descending, beyond=beyond)
        return snapshot, *best

    is_short = k <= VERTICES_INLINE_MAX and serving.snapshot().n_vertices <= SCANNED_INLINE_MAX

    async def compute() -> Reply:
        nonlocal last
        snapshot, dense, values = await serving.scanned(params.asker, scan, is_short=is_short)
        last = float(values[-1]) if dense.size == k and np.isfinite(values[-1]) else None
        ids = wire_ids(serving.external(dense))
        answer = {"ids": ids, "values": pack_column(values), **staleness(snapshot.programs[id])}
        return Reply(serving.stamp(snapshot), answer)

    return await serving.cached(("top", id, k, order), compute, ahead=is_short)


def _run_of(serving: Serving, result: ProgramResults) -> Callable[[slice], Answer]:
    """Reads values of a program, for ``best_of``.

    Raises:
        NotSupported: the values are vertices.
    """
    kind = serving.program_class(result.kind)

    def read(part: slice) -> Answer:
        answer = kind.read_run(result.published, part)
        if answer.vertex_valued:
            raise no_order(result.kind)
        return answer

    return read


def _living(snapshot: Snapshot, result: ProgramResults, dense: Vertices) -> npt.NDArray[np.bool_]:
    """Which of these dense ids are of a program's vertices still."""
    living = np.ones(dense.size, bool) if snapshot.alive is None else snapshot.alive[dense]
    if result.gone is not None:
        living &= ~result.gone[dense]
    return living


async def _top_among(
    serving: Serving, params: Params, id: str, among: IdColumn, k: int, *, descending: bool
) -> Reply:
    """The best of these vertices, each once."""

    def read(snapshot: Snapshot) -> Reply:
        result = _program(snapshot, id)
        kind = serving.program_class(result.kind)
        dense = serving.lookup_in(snapshot, among)
        known = distinct(dense[dense != NO_VERTEX])
        known = known[result.knows(known)]
        values = kind.read(result.published, known)
        if values.vertex_valued:
            raise no_order(result.kind)
        chosen = top_k(values, k, descending=descending)
        answer = {
            "ids": wire_ids(serving.external(known[chosen])),
            "values": pack_column(values.values[chosen]),
            "unknown": wire_ids(among[dense == NO_VERTEX]),
            **staleness(result),
        }
        return Reply(serving.stamp(snapshot), answer)

    if len(among) <= VERTICES_INLINE_MAX:
        return serving.read(read)
    await serving.make_room(params.asker, len(among))
    return await serving.in_thread(params.asker, serving.read, read)


@method("histogram")
async def histogram(serving: Serving, params: Params) -> Reply:
    """How many vertices have values within each of some bins."""
    id = params.program()
    bins = params.whole("bins", 1, serving.limits.top_k_max, min(BINS_DEFAULT, serving.limits.top_k_max))
    scale: Scale = "log" if params.choice("scale", ("linear", "log")) == "log" else "linear"
    params.end()
    await params.covered(serving)
    _program(serving.snapshot(), id)

    def compute() -> Reply:
        snapshot, read, alive = _all_values(serving, id)
        found = histograms.histogram(read.values[~read.null], bins, scale)
        answer = {
            "edges": pack_column(found.edges),
            "counts": pack_column(found.counts),
            "outside": found.outside,
            "without_value": alive - int(np.count_nonzero(~read.null)),
            **staleness(snapshot.programs[id]),
        }
        return Reply(serving.stamp(snapshot), answer)

    key = "histogram", id, bins, scale
    return await serving.cached(key, lambda: serving.for_all(params.asker, compute))


def _all_values(serving: Serving, id: str) -> tuple[Snapshot, Answer, int]:
    """The values of all dense ids of one epoch, null where there is no vertex; and how many vertices there are.

    Raises:
        NotSupported: the values are vertices.
    """

    def copied(snapshot: Snapshot) -> tuple[Snapshot, Published, npt.NDArray[np.bool_], int]:
        result = _program(snapshot, id)
        dead = _dead(snapshot, result, slice(0, result.published.n_vertices))
        return snapshot, _copied(result), dead, snapshot.n_alive

    snapshot, published, dead, alive = serving.read(copied)
    result = snapshot.programs[id]
    read = serving.program_class(result.kind).read(published, np.arange(published.n_vertices, dtype=np.uint32))
    if read.vertex_valued:
        raise no_order(result.kind)
    read.null[dead] = True
    return snapshot, read, alive


def _copied(result: ProgramResults) -> Published:
    """A program's results, to be worked on at leisure."""
    published = result.published
    n = published.n_vertices
    columns = {name: column[:n].copy() for name, column in published.columns.items()}
    return Published(columns, published.scalars, n)


def _dead(snapshot: Snapshot, result: ProgramResults, part: slice) -> npt.NDArray[np.bool_]:
    """Which dense ids, from one to another, are of a program's vertices that were deleted, others' by now perhaps;
    copied."""
    dead = np.zeros(part.stop - part.start, bool) if snapshot.alive is None else ~snapshot.alive[part]
    if result.gone is not None:
        dead |= result.gone[part]
    return dead


@method("path")
async def path(serving: Serving, params: Params) -> Reply:
    """The path from the program's source to the target along the parents of one epoch."""
    id = params.program()
    target = params.vertex("target", serving)
    params.end()
    await params.covered(serving)
    while True:
        snapshot, vertices, value = await serving.in_thread(params.asker, _follow, serving, id, target)
        answer: dict[str, Any] = {"vertices": wire_ids(serving.external(vertices)), "value": value}
        answer |= staleness(snapshot.programs[id])
        if serving.graph["weighted"] and "stale" not in answer:
            weights = await _weights(serving, params, snapshot, vertices)
            if weights is None:
                if time.monotonic() > params.deadline:
                    raise TimedOut("the graph changed faster than the path's weights could be read")
                continue  # the storage has moved on: so did the results, or will in a moment
            answer["weights"] = pack_column(weights)
        return Reply(serving.stamp(snapshot), answer)


async def _weights(
    serving: Serving, params: Params, snapshot: Snapshot, vertices: Vertices
) -> npt.NDArray[np.float32] | None:
    """Weights of a path's edges; None when the storage is no longer at the snapshot's epoch."""
    if vertices.size < 2:
        return np.zeros(0, np.float32)
    ends = {"epoch": snapshot.epoch, "src": vertices[:-1].tobytes(), "dst": vertices[1:].tobytes()}
    result = await serving.engine.call(params.asker, "edge_weights", ends, vertices.size, params.deadline)
    return None if result["weights"] is None else np.frombuffer(result["weights"], np.float32)


def _follow(serving: Serving, id: str, target: IdColumn) -> tuple[Snapshot, Vertices, Any]:
    """(epoch, the vertices from source to target, the target's value); no vertices where there is no path."""
    limit = serving.limits.vertices_max

    def start(snapshot: Snapshot) -> tuple[Snapshot, list[int], bool, Any, ProgramResults]:
        result = _program(snapshot, id)
        kind = serving.program_class(result.kind)
        if not kind.has_parents:
            raise NotSupported(f"programs of kind {result.kind} keep no parents")
        dense = _known_vertex(serving, snapshot, target)
        if not result.knows(np.array([dense], np.uint32))[0]:
            return snapshot, [], True, None, result
        answer = kind.read(result.published, np.array([dense], np.uint32))
        if answer.null[0]:
            return snapshot, [], True, None, result
        steps, ended = _climb(kind, result.published, dense)
        gone = None if result.gone is None else result.gone.copy()
        copy = result.published if ended else _copied(result)
        return snapshot, steps, ended, answer.values[0].item(), replace(result, published=copy, gone=gone)

    snapshot, steps, ended, value, result = serving.read(start)
    if not ended:
        kind = serving.program_class(result.kind)
        parents = kind.parents(result.published, np.arange(result.published.n_vertices, dtype=np.uint32))
        while (parent := int(parents[steps[-1]])) != NO_VERTEX:
            steps.append(parent)
            if len(steps) > limit:
                raise LimitExceeded(f"the path has more than {limit} vertices", {"vertices_max": limit})
    vertices = np.array(steps[::-1], np.uint32)
    if not result.knows(vertices).all():
        raise UnknownVertex("this path led through a vertex that was deleted since", staleness(result))
    return snapshot, vertices, value


def _climb(kind: type[Program], published: Published, vertex: int) -> tuple[list[int], bool]:
    """The first ancestors of a vertex, itself included, and whether the last one is a root."""
    steps = [vertex]
    for _ in range(PATH_STEPS_INLINE):
        parent = int(kind.parents(published, np.array(steps[-1:], np.uint32))[0])
        if parent == NO_VERTEX:
            return steps, True
        steps.append(parent)
    return steps, False


@method("component")
async def component(serving: Serving, params: Params) -> Reply:
    """The component, community or core of a vertex: its label, its size, and its members up to a limit."""
    given = params.take("program")
    vertex = params.vertex("vertex", serving)
    limit = params.whole("limit", 0, serving.limits.vertices_max, min(PAGE_DEFAULT, serving.limits.vertices_max))
    params.end()
    if given is not None and not isinstance(given, str):
        raise wrong("program", "must be the id of one program, a string")

    def read(snapshot: Snapshot) -> Reply:
        result = _grouping(serving, snapshot, given)
        dense = _known_vertex(serving, snapshot, vertex)
        n = result.published.n_vertices
        if not result.knows(np.array([dense], np.uint32))[0]:
            raise UnknownVertex(f"vertex {_one(vertex)!r} is newer than these results", staleness(result))
        columns = result.published.columns
        if result.kind == "components":
            handle = columns["handle"][dense]
            label = columns["representative"][handle : int(handle) + 1].astype(np.uint32)
            size = int(columns["size"][handle])
            members = _members(columns["handle"][:n], int(handle), min(limit, size))
        else:
            label, size, members = _alike(serving.program_class(result.kind), snapshot, result, dense, limit)
        members = members[result.knows(members)]
        answer = {
            "label": _label(serving, result, label),
            "size": size,
            "members": wire_ids(serving.external(members)),
            **staleness(result),
        }
        return Reply(serving.stamp(snapshot), answer)

    await params.covered(serving)
    await serving.make_room(params.asker, limit)
    return await serving.in_thread(params.asker, serving.read, read)


def _grouping(serving: Serving, snapshot: Snapshot, given: str | None) -> ProgramResults:
    """The results whose values tell groups: those that are named, else of components."""
    if given is not None:
        result = _program(snapshot, given)
        kind = serving.program_class(result.kind)
        if kind.value is not ExternalId and not kind.nested:
            raise NotSupported(f"{given!r} is of kind {result.kind}, whose values do not tell groups")
        return result
    for result in snapshot.programs.values():
        if result.kind == "components":
            return result
    raise UnknownProgram("no program of kind components runs here", {"programs": sorted(snapshot.programs)})


def _members(handles: npt.NDArray[Any], handle: int, limit: int) -> Vertices:
    """The first ``limit`` vertices with this handle, in dense order."""
    found = np.empty(0, np.int64)
    for start in range(0, handles.size, SCAN_CHUNK):
        if found.size >= limit:
            break
        here = np.flatnonzero(handles[start : start + SCAN_CHUNK] == handle) + start
        found = np.concatenate([found, here])
    return found[:limit].astype(np.uint32)


def _alike(
    kind: type[Program], snapshot: Snapshot, result: ProgramResults, vertex: int, limit: int
) -> tuple[npt.NDArray[Any], int, Vertices]:
    """The vertices whose value is that of this one, or, where groups are nested, not less.

    Returns the value, how many they are, and the first ``limit`` of them.
    """
    published = result.published
    label = kind.read(published, np.array([vertex], np.uint32)).values
    size, found = 0, [np.empty(0, np.uint32)]
    for start in range(0, published.n_vertices, SCAN_CHUNK):
        chunk = np.arange(start, min(start + SCAN_CHUNK, published.n_vertices), dtype=np.uint32)
        values = kind.read(published, chunk).values
        here = chunk[values >= label if kind.nested else values == label]
        here = here[result.knows(here)]
        if kind.nested:  # deleted vertices have a value too
            here = here[snapshot.known(here) != NO_VERTEX]
        found.append(here[: max(limit - size, 0)])
        size += here.size
    return label, size, np.concatenate(found)


def _label(serving: Serving, result: ProgramResults, label: npt.NDArray[Any]) -> Any:
    """What one group is called: a number where groups are nested, else an id, or None if that is gone."""
    if serving.program_class(result.kind).nested:
        return label[0].item()
    return _one(serving.external(label)) if result.knows(label)[0] else None


# -- changes ------------------------------------------------------------------------------------------------


@method("subscribe")
def subscribe(serving: Serving, params: Params) -> Outcome:
    """Hear of what each epoch changes, of all vertices or of some, in notifications after the answer."""
    id = params.program()
    ids = params.vertices_or_all("vertices", serving)
    threshold = params.number("threshold", 0.0)
    whole = params.flag("snapshot", default=True)
    since = params.epoch("since")
    top = params.whole("top", 1, serving.limits.top_k_max, 0)
    order = params.choice("order", ("desc", "asc"))
    params.end()
    if order == "asc" and not top:
        raise wrong("order", "goes with top")
    if top and (ids is not None or threshold or not whole):
        raise wrong("top", "goes with no vertices and no threshold, and begins with a snapshot")

    def make_scope() -> Scope:
        if top:
            return Largest(top, descending=order == "desc")
        if ids is not None:
            return Chosen(_distinct(ids), threshold)
        if whole and since is None:
            serving.read(check_all)
        return Everyone(threshold)

    def check_all(snapshot: Snapshot) -> None:
        limit = serving.limits.vertices_max
        if snapshot.n_vertices > limit:
            check_told(snapshot.n_alive, limit, "exist")

    def beginning(scope: Scope) -> Snapshot:
        """The epoch to begin at. Whoever chose vertices knows it, and needs none of what it changed later."""
        if whole or since is not None or not isinstance(scope, Chosen):
            return serving.snapshot()
        limit = serving.limits.vertices_max

        def know(snapshot: Snapshot) -> Snapshot:
            scope.know(Look(serving, snapshot, _program(snapshot, id), None, None, limit))
            return snapshot

        return serving.read(know)

    def begin(scope: Scope, snapshot: Snapshot) -> Reply:
        kind = serving.program_class(_program(snapshot, id).kind)
        if threshold and kind.value is ExternalId:
            raise wrong("threshold", f"is for numbers: the values of {kind.kind} are vertices")
        if top and kind.value is ExternalId:
            raise no_order(kind.kind)
        number, resumed = serving.subscriptions.add(
            params.asker.connection, id, scope, snapshot, since=since, from_now=not whole
        )
        return Reply(serving.stamp(snapshot), {"subscription": number, "resumed": resumed})

    def prepared() -> tuple[Scope, Snapshot]:
        scope = make_scope()
        return scope, beginning(scope)

    async def begin_long() -> Reply:
        return begin(*await serving.in_thread(params.asker, prepared))

    def begin_somehow() -> Outcome:
        is_long = not top and serving.snapshot().n_vertices > SCAN_CHUNK
        if ids is not None:
            is_long = len(ids) > VERTICES_INLINE_MAX
        return begin_long() if is_long else begin(*prepared())

    return params.once_covered(serving, begin_somehow)


def _distinct(ids: IdColumn) -> IdColumn:
    if isinstance(ids, StringColumn) and ids.lengths.max(initial=0) > MAX_STRING_ID_BYTES:
        raise wrong("vertices", f"holds an id of more than {MAX_STRING_ID_BYTES} bytes: no vertex has one")
    return StringColumn.of(dict.fromkeys(ids.to_list())) if isinstance(ids, StringColumn) else distinct(ids)


@method("unsubscribe")
def unsubscribe(serving: Serving, params: Params) -> Outcome:
    """Hear no more."""
    number = params.whole("subscription", 0, 2**63 - 1)
    params.end()

    def end() -> Reply:
        if not serving.subscriptions.end(params.asker.connection, number):
            raise wrong("subscription", f"{number} is none of this connection's")
        return Reply(serving.stamp(serving.snapshot()), {})

    return params.once_covered(serving, end)


# -- topology -----------------------------------------------------------------------------------------------


@method("neighbors")
def neighbors(serving: Serving, params: Params) -> Outcome:
    """The neighbours of a vertex, a page at a time."""
    vertex = params.vertex("vertex", serving)
    direction = params.choice("direction", ("out", "in"))
    limit = params.whole("limit", 1, serving.limits.vertices_max, min(PAGE_DEFAULT, serving.limits.vertices_max))
    cursor = params.whole("cursor", -1, ALL_VERTICES, -1)
    params.end()

    def ask() -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
        return serving.engine.neighbors(
            params.asker,
            vertex=int(serving.lookup_few(vertex)[0]),
            direction="in" if direction == "in" else "out",
            limit=limit,
            cursor=None if cursor < 0 else cursor,
            deadline=params.deadline,
        )

    async def answered(asked: Callable[[], Coroutine[Any, Any, dict[str, Any]]] | None) -> Reply:
        if asked is None:
            await serving.make_room(params.asker, limit)
            asked = ask()
        result = await asked()
        if not result["known"]:
            raise _unknown(vertex)
        dense = np.frombuffer(result["neighbors"], np.uint32)

        def reply() -> Reply:
            answer = {"ids": wire_ids(serving.external(dense)), "cursor": result["cursor"]}
            if result["weights"] is not None:
                answer["weights"] = pack_column(np.frombuffer(result["weights"], np.float32))
            return Reply(result["stamp"], answer)

        return reply() if dense.size <= VERTICES_INLINE_MAX else await serving.in_thread(params.asker, reply)

    # A short page is asked for now, so that the answer is on its way before others have their turns.
    return params.once_covered(serving, lambda: answered(ask() if limit <= VERTICES_INLINE_MAX else None))


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
    limit = params.limit("limit", serving.limits.vertices_max)
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, limit)
    dense = int((await serving.lookup_anywhere(params.asker, vertex))[0])
    reached = await Explorer(serving, params.asker, params.deadline).reach(dense, direction, k, limit)
    found = reached.search
    if found is None:
        raise _unknown(vertex)

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
    limit = params.limit("limit", serving.limits.vertices_max)
    edge_limit = params.limit("edge_limit", serving.limits.edges_max)
    params.end()
    await params.covered(serving)
    await serving.make_room(params.asker, limit + 2 * edge_limit)
    dense = int((await serving.lookup_anywhere(params.asker, vertex))[0])
    ego = await Explorer(serving, params.asker, params.deadline).ego(dense, direction, limit, edge_limit)
    found, edges = ego.search, ego.edges
    if found is None or edges is None:
        raise _unknown(vertex)

    def reply() -> Reply:
        ids = wire_ids(serving.external(found.found))
        answer = {"ids": ids, "truncated": found.truncated, **_edges_answer(serving, edges)}
        return Reply(ego.stamp, answer)

    return await _somewhere(serving, params.asker, found.found.size + edges.src.size, reply)


@method("subgraph")
async def subgraph(serving: Serving, params: Params) -> Reply:
    """The edges among these vertices, with their weights."""
    ids = params.vertices("vertices", serving)
    limit = params.limit("limit", serving.limits.edges_max)
    params.end()
    return await _edges_between(serving, params, {"vertices": ids}, limit)


@method("cross_edges")
async def cross_edges(serving: Serving, params: Params) -> Reply:
    """The edges from any of some vertices to any of others, with their weights."""
    ends = {name: params.vertices(name, serving) for name in ("src", "dst")}
    limit = params.limit("limit", serving.limits.edges_max)
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


# -- programs at run time -----------------------------------------------------------------------------------


@method("compute")
async def compute(serving: Serving, params: Params) -> Reply:
    """Run a program once, from scratch, on one epoch, beside the stream."""
    kind = _kind(params)
    ids = params.vertices_or_all("vertices", serving)
    k = params.whole("top", 0, serving.limits.top_k_max, 0)
    order = params.choice("order", ("desc", "asc"))
    given = _given(kind, params)
    if ids is not None and k:
        raise wrong("top", "must not be given together with vertices")
    if ids is not None and len(ids) > serving.limits.ad_hoc_vertices_max:
        limit = serving.limits.ad_hoc_vertices_max
        detail = {"ad_hoc_vertices_max": limit, "parameter": "vertices"}
        raise LimitExceeded(f"vertices has {len(ids)} ids; a run answers for {limit} at most", detail)
    await params.covered(serving)
    await serving.make_room(params.asker, k if ids is None else len(ids))
    asked = {
        "program": kind,
        "parameters": given,
        "vertices": ids_to_engine(ids),
        "top": k,
        "order": order,
    }
    deadline = min(params.deadline, time.monotonic() + serving.limits.ad_hoc_seconds_max)
    return _reply(await serving.ask_aside(params.asker, "compute", asked, deadline))


@method("keep")
async def keep(serving: Serving, params: Params) -> Reply:
    """Keep a program up to date from now on; it is computed beside the stream, and joins when it has caught up."""
    serving.admission.check_admin(params.asker.connection.token)
    kind, id = _kind(params), params.take("id")
    given = _given(kind, params)
    if id is not None and not (isinstance(id, str) and id):
        raise wrong("id", "must be a string, what requests are to call the program")
    await params.covered(serving)
    asked = {"program": kind, "id": id, "parameters": given}
    return _reply(await serving.ask_aside(params.asker, "keep", asked, params.deadline))


@method("drop")
async def drop(serving: Serving, params: Params) -> Reply:
    """Keep a program up to date no more that was asked for by ``keep``."""
    serving.admission.check_admin(params.asker.connection.token)
    id = params.program()
    params.end()
    await params.covered(serving)
    return _reply(await serving.ask_aside(params.asker, "drop", {"program": id}, params.deadline))


def _kind(params: Params) -> str:
    kind = params.take("program")
    if not isinstance(kind, str):
        raise wrong("program", "must be given: the name of a program, such as bfs")
    return kind


def _given(kind: str, params: Params) -> dict[str, Any]:
    """The parameters of a program of this kind: those in a map of that name, and all that is left.

    Raises:
        RequestError: there is no such program, or a parameter is unknown, missing or wrong.
    """
    nested = params.take("parameters")
    if nested is not None and not isinstance(nested, Mapping):
        raise wrong("parameters", "must be a map of the program's parameters")
    given = {**(nested or {}), **params.rest()}
    try:
        registry.parse_parameters(kind, given)
    except ProgramError as error:
        raise RequestError(str(error)) from error
    return given


def _reply(result: dict[str, Any]) -> Reply:
    """What the engine answered, and of what epoch."""
    about = ("stamp", "epoch", "offsets", "index_generation")
    return Reply(result["stamp"], {name: value for name, value in result.items() if name not in about})


# -- the daemon ---------------------------------------------------------------------------------------------


@method("programs")
def programs(serving: Serving, params: Params) -> Outcome:
    """Each program's kind, parameters and state."""
    params.end()

    def reply() -> Reply:
        snapshot = serving.snapshot()
        shown = {id: {"kind": result.kind, **result.state} for id, result in snapshot.programs.items()}
        shown |= {id: dict(coming) for id, coming in snapshot.coming.items()}
        return Reply(serving.stamp(snapshot), {"programs": shown})

    return params.once_covered(serving, reply)


@method("stats")
def stats(serving: Serving, params: Params) -> Outcome:
    """Vertices, edges, memory, lag and program states."""
    params.end()

    def reply() -> Reply:
        snapshot = serving.snapshot()
        return Reply(serving.stamp(snapshot), {"server": serving.statistics()}, snapshot.statistics)

    return params.once_covered(serving, reply)


@method("checkpoint")
async def checkpoint(serving: Serving, params: Params) -> Reply:
    """Have a checkpoint made: of one epoch exactly, or of the present one or a later one; return once it is."""
    serving.admission.check_admin(params.asker.connection.token)
    at, since = params.epoch("at"), params.epoch("since")
    params.end()
    if at is not None and since is not None:
        raise RequestError("at and since exclude each other", {"parameter": "since"})
    await params.covered(serving)
    with serving.exactly(at):
        return await _made(serving, params, at, since)


async def _made(
    serving: Serving, params: Params, at: tuple[int, int] | None, since: tuple[int, int] | None
) -> Reply:
    asked: dict[str, Any] = {"at": at, "since": since, "failures": None}
    while True:
        result = await serving.engine.call(params.asker, "checkpoint", asked, 1, params.deadline)
        match result["status"]:
            case "made":
                return Reply(result["stamp"], {"path": result["path"]})
            case "failed":
                raise Unavailable(f"the checkpoint failed: {result['reason']}")
            case "gone":
                kept = ", ".join(".".join(map(str, epoch)) for epoch in result["kept"]) or "none"
                now = ".".join(map(str, result["epoch"]))
                raise RequestError(
                    f"no checkpoint of that epoch can be made any more: the present one is {now}. "
                    f"There are checkpoints of: {kept}",
                    {"parameter": "at", "kept": result["kept"]},
                )
        asked |= {"failures": result["failures"]} | ({} if at else {"since": result["since"]})
        if time.monotonic() + CHECKPOINT_POLL_S >= params.deadline:
            raise TimedOut("the checkpoint was not made in time", {"since": result["since"]})
        await asyncio.sleep(CHECKPOINT_POLL_S)


@method("placement")
async def placement(serving: Serving, params: Params) -> Reply:
    """Which side has which rows, what moved and why; of chosen vertices, too."""
    ids = params.vertices_or_all("vertices", serving)
    params.end()
    if ids is not None and len(ids) > serving.limits.ad_hoc_vertices_max:
        limit = serving.limits.ad_hoc_vertices_max
        detail = {"ad_hoc_vertices_max": limit, "parameter": "vertices"}
        raise LimitExceeded(f"vertices has {len(ids)} ids; the engine answers for {limit} at most", detail)
    await params.covered(serving)
    await serving.make_room(params.asker, 0 if ids is None else len(ids))
    asked = {"vertices": ids_to_engine(ids)}
    return _reply(await serving.ask_aside(params.asker, "placement", asked, params.deadline))


@method("admin.rebalance")
async def rebalance(serving: Serving, params: Params) -> Reply:
    """Have rows move where they had better be, after the next epoch, whether there is a reason to or not."""
    return await _steer(serving, params, "rebalance", {})


@method("admin.freeze")
async def freeze(serving: Serving, params: Params) -> Reply:
    """Let rows stay where they are, or move again."""
    return await _steer(serving, params, "freeze", {"thaw": params.flag("thaw")})


@method("admin.device")
async def device(serving: Serving, params: Params) -> Reply:
    """Whether there is a device, and why it was lost; or try it again, for which the daemon starts again."""
    return await _steer(serving, params, "device", {"retry": params.flag("retry")})


async def _steer(serving: Serving, params: Params, question: str, asked: Mapping[str, Any]) -> Reply:
    serving.admission.check_admin(params.asker.connection.token)
    params.end()
    await params.covered(serving)
    return _reply(await serving.ask_aside(params.asker, question, asked, params.deadline))


@method("wait")
async def wait(serving: Serving, params: Params) -> Reply:
    """Return once an epoch covers these offsets."""
    params.end()
    await params.covered(serving)
    return Reply(serving.stamp(serving.snapshot()), {})
