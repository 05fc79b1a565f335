"""Every request of the clients, written once: its parameters, and how its answer is read."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..errors import RequestError, TimedOut, Unavailable
from .addresses import TcpAddress, UnixAddress
from .calls import Call, ClientMethod, ClientMethodOfTwoForms
from .changes import Following
from .replicas import Replicas
from .results import (
    Checkpoint,
    Component,
    Computed,
    Degree,
    DegreeDistribution,
    EdgeFlags,
    Edges,
    Egonet,
    Histogram,
    Info,
    Kept,
    Neighbors,
    Path,
    Reach,
    Result,
    Top,
    Values,
    ValuesByProgram,
    VertexIds,
    WireOffsets,
)
from .wire import PROTOCOL_VERSIONS, ids_of, masked, unpack_bitmap, unpack_column

T = TypeVar("T")


class Requests:
    """What both clients are: the address of a server, or of several replicas, and a method for each request.

    ``min_offsets``, of every request: to be answered from an epoch that covers these offsets, for which the server
    waits up to ``timeout_ms``. They are those of an earlier answer, or what ``graphtide produce`` prints.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """``timeout``: seconds to connect, and for each answer. ``ssl_context``: use TLS (TCP only).

        Of several addresses (replicas that read the same topic) the first is used until it cannot be reached,
        then the next, and from the last the first. No answer is then older than one before it: a new connection
        first waits until its server has caught up. To be reached, and to catch up, each has its share of
        ``timeout``. Nothing is sent before the first call.

        Raises:
            ValueError: an address is neither ``unix:PATH`` nor ``tcp://HOST:PORT``, or there is none; or the
                timeout is no time.
        """
        if not 0 < timeout <= TIMEOUT_S_MAX:
            raise ValueError(
                f"timeout is {timeout!r}; it must be a number of seconds above 0, at most {TIMEOUT_S_MAX}"
            )
        self._replicas = Replicas(address)
        self._token = token
        self._timeout = timeout
        self._ssl_context = ssl_context
        self.server: Info | None = None
        self._given = (address, token, timeout, ssl_context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._given[0]!r})"

    @property
    def _address(self) -> TcpAddress | UnixAddress:
        return self._replicas.address

    @property
    def _share_s(self) -> float:
        """How long one of the servers may take to be reached."""
        return self._timeout / len(self._replicas)

    def _get_one(
        self,
        program: str,
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Values]:
        """Values of vertices; of several programs (a list) as a dict, all of one epoch."""

        def decode(result: Mapping[str, Any]) -> Values:
            return _values(result, result, program, vertices)

        params = _get_params(program, vertices, parents)
        return _call("get", params, decode, min_offsets, timeout_ms)

    def _get_several(
        self,
        program: list[str] | tuple[str, ...],
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[ValuesByProgram]:
        def decode(result: Mapping[str, Any]) -> ValuesByProgram:
            answers = result["results"].items()
            return ValuesByProgram({id: _values(result, answer, id, vertices) for id, answer in answers})

        params = _get_params(list(program), vertices, parents)
        return _call("get", params, decode, min_offsets, timeout_ms)

    get = ClientMethodOfTwoForms(_get_one, _get_several)

    @ClientMethod
    def top(
        self,
        program: str,
        k: int = 10,
        *,
        order: str = "desc",
        vertices: VertexIds | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Top]:
        """The k vertices of largest (``order="asc"``: smallest) value, of all or among some."""

        def decode(result: Mapping[str, Any]) -> Top:
            return Top(
                *_stamp(result),
                ids=ids_of(result["ids"]),
                values=unpack_column(result["values"]),
                stale=result.get("stale"),
                unknown=ids_of(result.get("unknown", [])),
                program=program,
            )

        params = {"program": program, "k": k, "order": order, "vertices": _wire_vertices_or_all(vertices)}
        return _call("top", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def histogram(
        self,
        program: str,
        bins: int | None = None,
        *,
        scale: str = "linear",
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Histogram]:
        """How many vertices have values within each of some bins (20), of equal width by value or by ``"log"``."""

        def decode(result: Mapping[str, Any]) -> Histogram:
            return Histogram(
                *_stamp(result),
                edges=unpack_column(result["edges"]),
                counts=unpack_column(result["counts"]),
                outside=result["outside"],
                without_value=result["without_value"],
                stale=result.get("stale"),
            )

        params = {"program": program, "bins": bins, "scale": scale}
        return _call("histogram", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def path(
        self,
        program: str,
        target: int | str,
        *,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Path]:
        """The path from the program's source to the target."""

        def decode(result: Mapping[str, Any]) -> Path:
            weights = result.get("weights")
            return Path(
                *_stamp(result),
                vertices=ids_of(result["vertices"]),
                value=result["value"],
                weights=None if weights is None else unpack_column(weights),
                stale=result.get("stale"),
            )

        return _call("path", {"program": program, "target": target}, decode, min_offsets, timeout_ms)

    @ClientMethod
    def component(
        self,
        vertex: int | str,
        *,
        limit: int | None = None,
        program: str | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Component]:
        """The component of a vertex, with up to ``limit`` members; of a ``program`` of kind cdlp its community, of
        kind kcore the k-core for the largest k that it is in."""

        def decode(result: Mapping[str, Any]) -> Component:
            return Component(
                *_stamp(result),
                label=result["label"],
                size=result["size"],
                members=ids_of(result["members"]),
                stale=result.get("stale"),
            )

        params = {"vertex": vertex, "limit": limit, "program": program}
        return _call("component", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def neighbors(
        self,
        vertex: int | str,
        *,
        direction: str = "out",
        limit: int | None = None,
        cursor: int | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Neighbors]:
        """A page of a vertex's neighbours."""

        def decode(result: Mapping[str, Any]) -> Neighbors:
            weights = result.get("weights")
            return Neighbors(
                *_stamp(result),
                ids=ids_of(result["ids"]),
                weights=None if weights is None else unpack_column(weights),
                cursor=result["cursor"],
            )

        params = {"vertex": vertex, "direction": direction, "limit": limit, "cursor": cursor}
        return _call("neighbors", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def khop(
        self,
        vertex: int | str,
        k: int = 1,
        *,
        direction: str = "out",
        limit: int | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Reach]:
        """What is at most ``k`` hops away from a vertex along (``"in"``: against; ``"both"``: whatever way) edges.

        Up to ``limit`` vertices (1000), the nearest ones.
        """

        def decode(result: Mapping[str, Any]) -> Reach:
            return Reach(
                *_stamp(result),
                ids=ids_of(result["ids"]),
                distances=unpack_column(result["distances"]),
                truncated=result["truncated"],
            )

        params = {"vertex": vertex, "k": k, "direction": direction, "limit": limit}
        return _call("khop", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def egonet(
        self,
        vertex: int | str,
        *,
        direction: str = "out",
        limit: int | None = None,
        edge_limit: int | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Egonet]:
        """A vertex, its neighbours (as those of ``khop``), and the edges among them.

        Up to ``limit`` vertices (1000), and ``edge_limit`` (1000) of the edges among these.
        """

        def decode(result: Mapping[str, Any]) -> Egonet:
            return Egonet(
                *_stamp(result),
                ids=ids_of(result["ids"]),
                truncated=result["truncated"],
                **_edge_columns(result),
            )

        params = {"vertex": vertex, "direction": direction, "limit": limit, "edge_limit": edge_limit}
        return _call("egonet", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def subgraph(
        self,
        vertices: VertexIds,
        *,
        limit: int | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Edges]:
        """The edges among these vertices, up to ``limit`` (1000)."""
        params = {"vertices": _wire_vertices(vertices), "limit": limit}
        return _call("subgraph", params, _decode_edges, min_offsets, timeout_ms)

    @ClientMethod
    def cross_edges(
        self,
        src: VertexIds,
        dst: VertexIds,
        *,
        limit: int | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Edges]:
        """The edges from any of ``src`` to any of ``dst``, up to ``limit`` (1000)."""
        params = {"src": _wire_vertices(src, "src"), "dst": _wire_vertices(dst, "dst"), "limit": limit}
        return _call("cross_edges", params, _decode_edges, min_offsets, timeout_ms)

    @ClientMethod
    def degree(
        self, vertices: VertexIds, *, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None
    ) -> Call[Degree]:
        """Out- and in-degrees."""

        def decode(result: Mapping[str, Any]) -> Degree:
            null, in_ = result["null"], result["in"]
            return Degree(
                *_stamp(result),
                out=masked(result["out"], null),
                in_=None if in_ is None else masked(in_, null),
                unknown=ids_of(result["unknown"]),
                ids=vertices,
            )

        return _call("degree", {"vertices": _wire_vertices(vertices)}, decode, min_offsets, timeout_ms)

    @ClientMethod
    def degree_distribution(
        self,
        direction: str = "out",
        *,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[DegreeDistribution]:
        """How many vertices have each out- (or ``"in"``-) degree."""

        def decode(result: Mapping[str, Any]) -> DegreeDistribution:
            degrees, counts = unpack_column(result["degrees"]), unpack_column(result["counts"])
            return DegreeDistribution(*_stamp(result), degrees=degrees, counts=counts)

        return _call("degree_distribution", {"direction": direction}, decode, min_offsets, timeout_ms)

    @ClientMethod
    def has_edge(
        self,
        src: VertexIds,
        dst: VertexIds,
        *,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[EdgeFlags]:
        """Whether src[i] -> dst[i] exists, for each i."""

        def decode(result: Mapping[str, Any]) -> EdgeFlags:
            return EdgeFlags(*_stamp(result), exists=unpack_column(result["exists"]), src=src, dst=dst)

        params = {"src": _wire_vertices(src, "src"), "dst": _wire_vertices(dst, "dst")}
        return _call("has_edge", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def compute(
        self,
        /,
        program: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        vertices: VertexIds | None = None,
        top: int | None = None,
        order: str = "desc",
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
        **named: Any,
    ) -> Call[Computed]:
        """Run a program (its name, such as ``"bfs"``) once, from scratch, on one epoch, beside the stream.

        ``parameters``: the program's own, which may be given by name, too (``source=7``). Values are given for
        ``vertices``, or for the ``top`` ones by ``order`` (``"asc"``: smallest first), or for none, and then there
        are its scalars.

        Raises:
            RequestError: the program or a parameter is wrong.
            TimedOut: it was not done in time; it is given up.
            Unavailable: there is not enough memory for it now.
        """
        asked = {
            "vertices": None if vertices is None else _wire_vertices(vertices),
            "top": top,
            "order": None if top is None else order,
        }
        params = {"program": program, "parameters": _of_program(parameters, named), **asked}
        return _call("compute", params, partial(_decode_computed, program, vertices), min_offsets, timeout_ms)

    @ClientMethod
    def keep(
        self,
        /,
        program: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
        **named: Any,
    ) -> Call[Kept]:
        """Keep a program (its name) up to date from now on, also after restarts, until ``drop``.

        ``parameters``: as those of ``compute``. ``id``: what other requests call it; by default the name with the
        parameters, ``"bfs(1)"``. It is computed beside the stream: ``programs`` shows when it is ``"fresh"``.

        Raises:
            RequestError: the program, a parameter or the id is wrong, or the id is another's.
            LimitExceeded: there are as many as may be.
            Unauthorized: a token is asked for from those who want to change something.
        """
        params = {"program": program, "parameters": _of_program(parameters, named), "id": id}
        return _once(_call("keep", params, _decode_kept, min_offsets, timeout_ms))

    @ClientMethod
    def drop(
        self, program: str, *, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None
    ) -> Call[Kept]:
        """Keep a program (its id) up to date no more that was asked for by ``keep``.

        Raises:
            UnknownProgram: there is none.
            RequestError: it is one of the configuration.
            Unauthorized: as ``keep``.
        """
        return _once(_call("drop", {"program": program}, _decode_kept, min_offsets, timeout_ms))

    @ClientMethod
    def programs(self, *, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None) -> Call[Info]:
        """``["programs"]``: each program's kind, parameters, state and ``scalars`` (as of ``compute``)."""
        return _call("programs", {}, _decode_info, min_offsets, timeout_ms)

    @ClientMethod
    def stats(self, *, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None) -> Call[Info]:
        """``["vertices"]``, ``["edges"]``, memory, lag, program states, and what the server holds."""
        return _call("stats", {}, _decode_info, min_offsets, timeout_ms)

    @ClientMethod
    def wait(self, min_offsets: WireOffsets, *, timeout_ms: int = 30_000) -> Call[Result]:
        """Return once an epoch covers these offsets.

        Raises:
            TimedOut: none did in time.
        """
        return _call("wait", {}, _decode_reached, min_offsets, timeout_ms)

    @ClientMethod
    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout_ms: int = 0
    ) -> Call[dict[str, Any]]:
        """Any request, its result as it came. ``timeout_ms``: how long the server may take on purpose."""
        return Call(method, params or {}, dict, timeout_ms / 1000)

    def _subscription(
        self,
        program: str,
        vertices: VertexIds | None,
        top: int | None,
        order: str | None,
        threshold: float | None,
        snapshot: bool,
        since: tuple[int, int] | None,
        min_offsets: WireOffsets | None,
        timeout_ms: int | None,
    ) -> Following:
        return Following(
            {
                "program": program,
                "vertices": _wire_vertices_or_all(vertices),
                "top": top,
                "order": order,
                "threshold": threshold,
                "snapshot": None if snapshot else False,
                "since": None if since is None else list(since),
                "min_offsets": _wire_offsets(min_offsets),
                "timeout_ms": timeout_ms,
            }
        )

    @ClientMethod
    def checkpoint(
        self,
        *,
        at: tuple[int, int] | None = None,
        since: tuple[int, int] | None = None,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Checkpoint]:
        """Have a checkpoint made, and return once it is: of exactly the epoch ``at``, which may be one to come, or
        of ``since`` (default: the present one) or a later one."""

        def decode(result: Mapping[str, Any]) -> Checkpoint:
            return Checkpoint(*_stamp(result), path=result["path"])

        return _once(_call("checkpoint", {"at": at, "since": since}, decode, min_offsets, timeout_ms))

    @ClientMethod
    def placement(
        self,
        vertices: VertexIds | None = None,
        *,
        min_offsets: WireOffsets | None = None,
        timeout_ms: int | None = None,
    ) -> Call[Info]:
        """Which side, host or device, has which rows; what moved lately, and why. Of ``vertices``: the ``owner``
        of their rows, the ``degree`` (out), and ``why`` they are there; None where one is ``unknown``."""

        def decode(result: Mapping[str, Any]) -> Info:
            return _decode_info({**result, "unknown": ids_of(result.get("unknown", []))})

        params = {"vertices": _wire_vertices_or_all(vertices)}
        return _call("placement", params, decode, min_offsets, timeout_ms)

    @ClientMethod
    def admin_rebalance(
        self, *, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None
    ) -> Call[Info]:
        """Have rows move where they had better be, after the next epoch, whether there is a reason to or not."""
        return _once(_call("admin.rebalance", {}, _decode_info, min_offsets, timeout_ms))

    @ClientMethod
    def admin_freeze(
        self, *, thaw: bool = False, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None
    ) -> Call[Info]:
        """Let rows stay where they are; ``thaw``: let them move again."""
        return _once(_call("admin.freeze", {"thaw": thaw or None}, _decode_info, min_offsets, timeout_ms))

    @ClientMethod
    def admin_device(
        self, *, retry: bool = False, min_offsets: WireOffsets | None = None, timeout_ms: int | None = None
    ) -> Call[Info]:
        """Whether there is a device, and why it was lost; ``retry``: try it again, for which the daemon writes a
        checkpoint and starts again."""
        return _once(_call("admin.device", {"retry": retry or None}, _decode_info, min_offsets, timeout_ms))

    def _subscribe(self, following: Following) -> Call[None]:
        """Begin, or go on with, a subscription on a connection of its own."""
        params = following.request(self._address)
        return Call("subscribe", params, following.begun, (params["timeout_ms"] or 0) / 1000)

    def _goes_on(self, reconnect: bool | None) -> bool:
        """Whether a subscription outlives its connection: who names several servers wants one of them."""
        return len(self._replicas) > 1 if reconnect is None else reconnect

    def _hello(self) -> Call[Info]:
        """What every connection begins with."""
        return Call("hello", {"versions": list(PROTOCOL_VERSIONS), "token": self._token}, _decode_info)

    def _caught_up(self) -> Call[Result] | None:
        """What a connection goes on with, so that no answer is older than one before it."""
        offsets = self._replicas.begin()
        if offsets is None:
            return None
        return _call("wait", {}, _decode_reached, offsets, max(int(self._share_s * 1000), 1))

    # -- what goes wrong on the way ---------------------------------------------------------------------------

    def _no_connection(self, error: OSError) -> Unavailable:
        what = error.strerror or str(error) or "timed out"
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            what += "; no daemon listens there"
        elif isinstance(error, ssl.SSLError) and error.reason in _PLAIN_TEXT:
            what = "no TLS is spoken there: leave ssl_context out, or name the address that speaks it"
        elif error.errno is None and "AF_UNIX" in what:  # Python's own
            n = len(os.fsencode(str(self._address).removeprefix("unix:")))
            what = f"its path has {n} bytes, and that of a Unix socket about a hundred at most: name a shorter one"
        return Unavailable(f"cannot connect to {self._address}: {what}")

    def _no_answer(self) -> TimedOut:
        return TimedOut(f"{self._address} did not answer in time")

    def _broken(self, error: OSError) -> Unavailable:
        return Unavailable(f"the connection to {self._address} broke: {error}")


# -- parameters and answers ---------------------------------------------------------------------------------


def _call(
    method: str,
    params: Mapping[str, Any],
    decode: Callable[[Mapping[str, Any]], T],
    min_offsets: WireOffsets | None,
    timeout_ms: int | None,
) -> Call[T]:
    waiting = {"min_offsets": _wire_offsets(min_offsets), "timeout_ms": timeout_ms}
    return Call(method, {**params, **waiting}, decode, (timeout_ms or 0) / 1000)


def _wire_offsets(min_offsets: WireOffsets | None) -> WireOffsets | None:
    """As they are; a client of Kafka has its own names of partitions, which do not travel."""
    for name in min_offsets if isinstance(min_offsets, Mapping) else ():
        if not isinstance(name, str):
            raise TypeError(
                f"min_offsets names a topic ({{'t': {{0: 5}}}}) or a file ({{'a.csv': 5}}), not {name!r}"
            )
    return min_offsets


def _once(call: Call[T]) -> Call[T]:
    """A request that changes something."""
    return replace(call, reads=False)


def _get_params(program: str | list[str], vertices: VertexIds, parents: bool) -> dict[str, Any]:
    return {"program": program, "vertices": _wire_vertices(vertices), "parents": parents or None}


def _of_program(parameters: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters of a program, as a map, by name, or both."""
    if not isinstance(parameters, Mapping | None):
        raise TypeError(f"parameters must be a map, such as {{'source': 7}}, not {parameters!r}")
    if twice := sorted((parameters or {}).keys() & named.keys()):
        raise TypeError(f"{', '.join(twice)} given twice: in parameters, and by name")
    return {**(parameters or {}), **named} or None


def _stamp(result: Mapping[str, Any]) -> tuple[tuple[int, int], WireOffsets]:
    return (result["epoch"][0], result["epoch"][1]), result["offsets"]


_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL calls an answer that is no TLS, by its version and by what the answer begins with."""
NO_INT64 = "an id is not a 64-bit signed integer"
TIMEOUT_S_MAX = 2_000_000
"""Three weeks: to a socket it is a 32-bit number of milliseconds, which would begin anew."""


def _wire_vertices(vertices: VertexIds, name: str = "vertices") -> Any:
    """Ids for a request: integers as the bytes of a column, strings as an array. ``name``: of the parameter."""
    if isinstance(vertices, str | bytes):  # whose letters would be taken for ids
        raise TypeError(f"{name} must be a list of ids, not the text {vertices!r}")
    if not hasattr(vertices, "__len__") or getattr(vertices, "ndim", 1) != 1:
        raise TypeError(f"{name} must be a list of ids, not {vertices!r}")
    if len(vertices) == 0:
        return b""
    if isinstance(vertices, np.ndarray) and vertices.dtype.kind in "iu":
        if vertices.dtype.kind == "u" and vertices.dtype.itemsize == 8 and vertices.max() > np.iinfo(np.int64).max:
            raise RequestError(NO_INT64)
        return vertices.astype("<i8").tobytes()
    items = vertices.tolist() if isinstance(vertices, np.ndarray) else list(vertices)
    if all(type(item) is int for item in items):
        try:
            return np.array(items, "<i8").tobytes()
        except OverflowError:
            raise RequestError(NO_INT64) from None
    return [item.item() if isinstance(item, np.integer) else item for item in items]


def _wire_vertices_or_all(vertices: VertexIds | None) -> Any:
    return None if vertices is None else _wire_vertices(vertices)


def _edge_columns(result: Mapping[str, Any]) -> dict[str, Any]:
    weights = result.get("weights")
    return {
        "src": ids_of(result["src"]),
        "dst": ids_of(result["dst"]),
        "weights": None if weights is None else unpack_column(weights),
        "size": result["size"],
    }


def _decode_edges(result: Mapping[str, Any]) -> Edges:
    return Edges(*_stamp(result), **_edge_columns(result), unknown=ids_of(result["unknown"]))


def _values(result: Mapping[str, Any], answer: Mapping[str, Any], program: str, vertices: VertexIds) -> Values:
    """What a result says of one program."""
    parents, saturated = answer.get("parents"), answer.get("saturated")
    values = masked(answer["values"], answer["null"])
    return Values(
        *_stamp(result),
        values=values,
        unknown=ids_of(result["unknown"]),
        parents=None if parents is None else masked(parents["values"], parents["null"]),
        stale=answer.get("stale"),
        saturated=None if saturated is None else unpack_bitmap(saturated, values.size),
        program=program,
        ids=vertices,
    )


def _decode_computed(program: str, vertices: VertexIds | None, result: Mapping[str, Any]) -> Computed:
    ids, values, saturated = result.get("ids"), result.get("values"), result.get("saturated")
    found = None if values is None else masked(values, result.get("null"))
    return Computed(
        *_stamp(result),
        ids=vertices if ids is None else ids_of(ids),
        values=found,
        unknown=ids_of(result["unknown"]) if "unknown" in result else [],
        scalars=result["scalars"],
        error_bound=result["error_bound"],
        seconds=result["seconds"],
        saturated=None if saturated is None or found is None else unpack_bitmap(saturated, found.size),
        program=program,
    )


def _decode_kept(result: Mapping[str, Any]) -> Kept:
    return Kept(*_stamp(result), id=result["id"], state=result["state"])


def _decode_reached(result: Mapping[str, Any]) -> Result:
    return Result(*_stamp(result))


def _decode_info(result: Mapping[str, Any]) -> Info:
    rest = {key: value for key, value in result.items() if key not in ("epoch", "offsets")}
    return Info(*_stamp(result), content=rest)
