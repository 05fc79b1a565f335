"""The clients: ``Client`` blocks, ``AsyncClient`` pipelines; both have one method per request.

    with Client("unix:/run/graphtide.sock") as c:
        c.get("pagerank", [1, 2]).values

Every result has the ``epoch`` and the ``offsets`` that it reflects. Errors of the server are raised as the
classes of ``errors``. A connection that broke is opened again by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import GraphtideError, RequestError, TimedOut, Unavailable
from .addresses import TcpAddress, UnixAddress, parse_address
from .wire import PROTOCOL_VERSIONS, ClientCore, Response, unpack_bitmap, unpack_column

T = TypeVar("T")
Ids = npt.NDArray[np.int64] | list[str]
"""External ids: int64[n], or strings."""
VertexIds = Sequence[int] | Sequence[str] | npt.NDArray[Any]
Offsets = Mapping[str, Any]
"""Topic -> partition -> next offset; file -> next byte."""

RECEIVE_BYTES = 1 << 18
WAIT_MARGIN_S = 5.0
"""How much longer than the server the client waits, so that the server's own timeout is the one that is seen."""


@dataclass(frozen=True, slots=True)
class Result:
    """``epoch``: (incarnation, number); ``offsets``: the next offset of every source partition."""

    epoch: tuple[int, int]
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Values(Result):
    """``values``: a masked array in the order of the request, masked where a vertex has no value or is unknown.

    ``unknown``: ids that the epoch does not know. ``parents``: external ids, masked where there is none.
    ``stale``: why and since when the values are older than the epoch; None when they are not. ``saturated``:
    bool per vertex, True where the value is only a lower bound; None when all are exact.
    """

    values: np.ma.MaskedArray[Any, Any]
    unknown: Ids
    parents: np.ma.MaskedArray[Any, Any] | None = None
    stale: Mapping[str, Any] | None = None
    saturated: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Top(Result):
    """The best vertices and their values, best first."""

    ids: Ids
    values: npt.NDArray[Any]
    stale: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Path(Result):
    """``vertices`` from the source to the target, none when there is no path; ``weights``: one per edge."""

    vertices: Ids
    value: float | None
    weights: npt.NDArray[np.float32] | None
    stale: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Component(Result):
    """``label``: the smallest id in the component; ``members``: as many as were asked for.

    Where results are ``stale`` and the vertex that gave the label has been deleted since, it is None.
    """

    label: int | str | None
    size: int
    members: Ids
    stale: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Neighbors(Result):
    """A page of neighbours; ``cursor`` asks for the next one, None when there is none."""

    ids: Ids
    weights: npt.NDArray[np.float32] | None
    cursor: int | None


@dataclass(frozen=True, slots=True)
class Degree(Result):
    """Degrees in the order of the request, masked where a vertex is unknown; ``in_`` None: not kept."""

    out: np.ma.MaskedArray[Any, Any]
    in_: np.ma.MaskedArray[Any, Any] | None
    unknown: Ids


@dataclass(frozen=True, slots=True)
class EdgeFlags(Result):
    """``exists``: bool, one per edge that was asked about."""

    exists: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Info(Result):
    """The rest of an answer, as it came."""

    content: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]


# -- requests and what their answers mean -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """A request, and how to read its result. ``wait_s``: how long the server may take on purpose."""

    method: str
    params: Mapping[str, Any]
    decode: Callable[[Mapping[str, Any]], T]
    wait_s: float = 0.0

    def timeout_s(self, usual_s: float) -> float:
        """How long the client waits for the answer."""
        return max(usual_s, self.wait_s + WAIT_MARGIN_S) if self.wait_s else usual_s


def _stamp(result: Mapping[str, Any]) -> tuple[tuple[int, int], Offsets]:
    return (result["epoch"][0], result["epoch"][1]), result["offsets"]


def _ids(wire: Any) -> Ids:
    return wire if isinstance(wire, list) else unpack_column(wire)


def _masked(wire: Any, null: bytes | None) -> np.ma.MaskedArray[Any, Any]:
    values = np.array(wire, object) if isinstance(wire, list) else unpack_column(wire).copy()
    return np.ma.MaskedArray(values, mask=unpack_bitmap(null, values.size))


def _wire_vertices(vertices: VertexIds) -> Any:
    """Ids for a request: integers as the bytes of a column, strings as an array."""
    if len(vertices) == 0:
        return b""
    if isinstance(vertices, np.ndarray) and vertices.dtype.kind in "iu":
        return vertices.astype("<i8").tobytes()
    items = vertices.tolist() if isinstance(vertices, np.ndarray) else list(vertices)
    if all(type(item) is int for item in items):
        try:
            return np.array(items, "<i8").tobytes()
        except OverflowError:
            raise RequestError("an id is not a 64-bit signed integer") from None
    return [item.item() if isinstance(item, np.integer) else item for item in items]


def _values(stamp: tuple[tuple[int, int], Offsets], answer: Mapping[str, Any], unknown: Ids) -> Values:
    parents, saturated = answer.get("parents"), answer.get("saturated")
    values = _masked(answer["values"], answer["null"])
    return Values(
        *stamp,
        values=values,
        unknown=unknown,
        parents=None if parents is None else _masked(parents["values"], parents["null"]),
        stale=answer.get("stale"),
        saturated=None if saturated is None else unpack_bitmap(saturated, values.size),
    )


def _decode_get(result: Mapping[str, Any]) -> Values:
    return _values(_stamp(result), result, _ids(result["unknown"]))


def _decode_get_several(result: Mapping[str, Any]) -> dict[str, Values]:
    stamp, unknown = _stamp(result), _ids(result["unknown"])
    return {id: _values(stamp, answer, unknown) for id, answer in result["results"].items()}


def _get(
    program: str | list[str] | tuple[str, ...],
    vertices: VertexIds,
    *,
    parents: bool,
    min_offsets: Offsets | None,
    timeout_ms: int | None,
) -> _Call[Values | dict[str, Values]]:
    params = {
        "program": program if isinstance(program, str) else list(program),
        "vertices": _wire_vertices(vertices),
        "parents": parents or None,
        "min_offsets": min_offsets,
        "timeout_ms": timeout_ms,
    }
    decode: Callable[[Mapping[str, Any]], Values | dict[str, Values]]
    decode = _decode_get if isinstance(program, str) else _decode_get_several
    return _Call("get", params, decode, (timeout_ms or 0) / 1000)


def _top(program: str, k: int, order: str) -> _Call[Top]:
    return _Call(
        "top",
        {"program": program, "k": k, "order": order},
        lambda r: Top(*_stamp(r), ids=_ids(r["ids"]), values=unpack_column(r["values"]), stale=r.get("stale")),
    )


def _path(program: str, target: int | str, timeout_ms: int | None) -> _Call[Path]:
    def decode(result: Mapping[str, Any]) -> Path:
        weights = result.get("weights")
        return Path(
            *_stamp(result),
            vertices=_ids(result["vertices"]),
            value=result["value"],
            weights=None if weights is None else unpack_column(weights),
            stale=result.get("stale"),
        )

    params = {"program": program, "target": target, "timeout_ms": timeout_ms}
    return _Call("path", params, decode, (timeout_ms or 0) / 1000)


def _component(vertex: int | str, limit: int | None, program: str | None) -> _Call[Component]:
    def decode(result: Mapping[str, Any]) -> Component:
        return Component(
            *_stamp(result),
            label=result["label"],
            size=result["size"],
            members=_ids(result["members"]),
            stale=result.get("stale"),
        )

    return _Call("component", {"vertex": vertex, "limit": limit, "program": program}, decode)


def _neighbors(
    vertex: int | str, direction: str, limit: int | None, cursor: int | None, timeout_ms: int | None
) -> _Call[Neighbors]:
    def decode(result: Mapping[str, Any]) -> Neighbors:
        weights = result.get("weights")
        return Neighbors(
            *_stamp(result),
            ids=_ids(result["ids"]),
            weights=None if weights is None else unpack_column(weights),
            cursor=result["cursor"],
        )

    params = {"vertex": vertex, "direction": direction, "limit": limit, "cursor": cursor, "timeout_ms": timeout_ms}
    return _Call("neighbors", params, decode, (timeout_ms or 0) / 1000)


def _degree(vertices: VertexIds) -> _Call[Degree]:
    def decode(result: Mapping[str, Any]) -> Degree:
        null, in_ = result["null"], result["in"]
        return Degree(
            *_stamp(result),
            out=_masked(result["out"], null),
            in_=None if in_ is None else _masked(in_, null),
            unknown=_ids(result["unknown"]),
        )

    return _Call("degree", {"vertices": _wire_vertices(vertices)}, decode)


def _has_edge(src: VertexIds, dst: VertexIds) -> _Call[EdgeFlags]:
    return _Call(
        "has_edge",
        {"src": _wire_vertices(src), "dst": _wire_vertices(dst)},
        lambda result: EdgeFlags(*_stamp(result), exists=unpack_column(result["exists"])),
    )


def _wait(min_offsets: Offsets, timeout_ms: int) -> _Call[Result]:
    params = {"min_offsets": min_offsets, "timeout_ms": timeout_ms}
    return _Call("wait", params, lambda result: Result(*_stamp(result)), timeout_ms / 1000)


def _info(method: str, params: Mapping[str, Any] | None = None) -> _Call[Info]:
    def decode(result: Mapping[str, Any]) -> Info:
        rest = {key: value for key, value in result.items() if key not in ("epoch", "offsets")}
        return Info(*_stamp(result), content=rest)

    return _Call(method, params or {}, decode)


def _raw(method: str, params: Mapping[str, Any], timeout_ms: int) -> _Call[dict[str, Any]]:
    return _Call(method, params, dict, timeout_ms / 1000)


def _hello(token: str | None) -> _Call[Info]:
    return _info("hello", {"versions": list(PROTOCOL_VERSIONS), "token": token})


# -- the blocking client ----------------------------------------------------------------------------------------


class Client:
    """One connection; calls block. Not for use by several threads at once."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """``timeout``: seconds to connect, and for each answer. ``ssl_context``: use TLS (TCP only).

        Nothing is sent before the first call.

        Raises:
            ValueError: the address is neither ``unix:PATH`` nor ``tcp://HOST:PORT``.
        """
        self._address = parse_address(address)
        self._token = token
        self._timeout = timeout
        self._ssl_context = ssl_context
        self._socket: socket.socket | None = None
        self._core = ClientCore()
        self.server: Info | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call would open one again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @overload
    def get(
        self,
        program: str,
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> Values: ...
    @overload
    def get(
        self,
        program: list[str] | tuple[str, ...],
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, Values]: ...
    def get(
        self,
        program: str | list[str] | tuple[str, ...],
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> Values | dict[str, Values]:
        """Values of vertices; of several programs (a list) as a dict, all of one epoch.

        ``min_offsets``: only from an epoch that covers these, for which it waits up to ``timeout_ms``.
        """
        return self._call(_get(program, vertices, parents=parents, min_offsets=min_offsets, timeout_ms=timeout_ms))

    def top(self, program: str, k: int = 10, *, order: str = "desc") -> Top:
        """The k vertices of largest (``order="asc"``: smallest) value."""
        return self._call(_top(program, k, order))

    def path(self, program: str, target: int | str, *, timeout_ms: int | None = None) -> Path:
        """The path from the program's source to the target."""
        return self._call(_path(program, target, timeout_ms))

    def component(self, vertex: int | str, *, limit: int | None = None, program: str | None = None) -> Component:
        """The component of a vertex, with up to ``limit`` members."""
        return self._call(_component(vertex, limit, program))

    def neighbors(
        self,
        vertex: int | str,
        *,
        direction: str = "out",
        limit: int | None = None,
        cursor: int | None = None,
        timeout_ms: int | None = None,
    ) -> Neighbors:
        """A page of a vertex's neighbours."""
        return self._call(_neighbors(vertex, direction, limit, cursor, timeout_ms))

    def degree(self, vertices: VertexIds) -> Degree:
        """Out- and in-degrees."""
        return self._call(_degree(vertices))

    def has_edge(self, src: VertexIds, dst: VertexIds) -> EdgeFlags:
        """Whether src[i] -> dst[i] exists, for each i."""
        return self._call(_has_edge(src, dst))

    def programs(self) -> Info:
        """``["programs"]``: each program's kind, parameters and state."""
        return self._call(_info("programs"))

    def stats(self) -> Info:
        """``["vertices"]``, ``["edges"]``, memory, lag, program states, and what the server holds."""
        return self._call(_info("stats"))

    def wait(self, min_offsets: Offsets, *, timeout_ms: int = 30_000) -> Result:
        """Return once an epoch covers these offsets.

        Raises:
            TimedOut: none did in time.
        """
        return self._call(_wait(min_offsets, timeout_ms))

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, timeout_ms: int = 0) -> dict[str, Any]:
        """Any request, its result as it came. ``timeout_ms``: how long the server may take on purpose."""
        return self._call(_raw(method, params or {}, timeout_ms))

    def _call(self, call: _Call[T]) -> T:
        reused = self._socket is not None
        if not reused:
            self._connect()
        try:
            return self._exchange(call)
        except Unavailable:
            # Every request only reads, so one that met a connection which had died while idle may be repeated.
            if not reused or self._socket is not None:
                raise
        self._connect()
        return self._exchange(call)

    def _connect(self) -> None:
        try:
            self._socket = self._open()
        except OSError as error:
            raise Unavailable(f"cannot connect to {self._address}: {error.strerror or error}") from error
        self._core = ClientCore()
        try:
            self.server = self._exchange(_hello(self._token))
        except GraphtideError:
            self.close()
            raise

    def _open(self) -> socket.socket:
        if isinstance(self._address, UnixAddress):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self._timeout)
                connection.connect(self._address.path)
            except OSError:
                connection.close()
                raise
            return connection
        connection = socket.create_connection(self._address, self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._ssl_context is None:
            return connection
        try:
            return self._ssl_context.wrap_socket(connection, server_hostname=self._address.host)
        except OSError:
            connection.close()
            raise

    def _exchange(self, call: _Call[T]) -> T:
        """Send and receive; the connection is closed when it can no longer be trusted."""
        assert self._socket is not None
        try:
            self._socket.settimeout(call.timeout_s(self._timeout))
            msgid, message = self._core.request(call.method, call.params)
            self._socket.sendall(message)
            response = self._receive(msgid)
        except TimeoutError:
            self.close()
            raise TimedOut(f"{self._address} did not answer in time") from None
        except OSError as error:
            self.close()
            raise Unavailable(f"the connection to {self._address} broke: {error}") from error
        except GraphtideError:
            self.close()  # an error of the connection: the server ends it
            raise
        if response.error is not None:
            raise response.error
        return call.decode(response.result)

    def _receive(self, msgid: int) -> Response:
        assert self._socket is not None
        while True:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the server closed it")
            for response in self._core.feed(data):
                if response.msgid == msgid:
                    return response


# -- the asynchronous client ------------------------------------------------------------------------------------


class AsyncClient:
    """One connection for any number of tasks: requests are pipelined, answers come as they are ready."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """As ``Client``."""
        self._address: TcpAddress | UnixAddress = parse_address(address)
        self._token = token
        self._timeout = timeout
        self._ssl_context = ssl_context
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None
        self.server: Info | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call would open one again."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    @overload
    async def get(
        self,
        program: str,
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> Values: ...
    @overload
    async def get(
        self,
        program: list[str] | tuple[str, ...],
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, Values]: ...
    async def get(
        self,
        program: str | list[str] | tuple[str, ...],
        vertices: VertexIds,
        *,
        parents: bool = False,
        min_offsets: Offsets | None = None,
        timeout_ms: int | None = None,
    ) -> Values | dict[str, Values]:
        """As ``Client.get``."""
        return await self._call(
            _get(program, vertices, parents=parents, min_offsets=min_offsets, timeout_ms=timeout_ms)
        )

    async def top(self, program: str, k: int = 10, *, order: str = "desc") -> Top:
        """As ``Client.top``."""
        return await self._call(_top(program, k, order))

    async def path(self, program: str, target: int | str, *, timeout_ms: int | None = None) -> Path:
        """As ``Client.path``."""
        return await self._call(_path(program, target, timeout_ms))

    async def component(
        self, vertex: int | str, *, limit: int | None = None, program: str | None = None
    ) -> Component:
        """As ``Client.component``."""
        return await self._call(_component(vertex, limit, program))

    async def neighbors(
        self,
        vertex: int | str,
        *,
        direction: str = "out",
        limit: int | None = None,
        cursor: int | None = None,
        timeout_ms: int | None = None,
    ) -> Neighbors:
        """As ``Client.neighbors``."""
        return await self._call(_neighbors(vertex, direction, limit, cursor, timeout_ms))

    async def degree(self, vertices: VertexIds) -> Degree:
        """As ``Client.degree``."""
        return await self._call(_degree(vertices))

    async def has_edge(self, src: VertexIds, dst: VertexIds) -> EdgeFlags:
        """As ``Client.has_edge``."""
        return await self._call(_has_edge(src, dst))

    async def programs(self) -> Info:
        """As ``Client.programs``."""
        return await self._call(_info("programs"))

    async def stats(self) -> Info:
        """As ``Client.stats``."""
        return await self._call(_info("stats"))

    async def wait(self, min_offsets: Offsets, *, timeout_ms: int = 30_000) -> Result:
        """As ``Client.wait``."""
        return await self._call(_wait(min_offsets, timeout_ms))

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout_ms: int = 0
    ) -> dict[str, Any]:
        """As ``Client.call``."""
        return await self._call(_raw(method, params or {}, timeout_ms))

    async def _call(self, call: _Call[T]) -> T:
        async with self._connecting:
            if self._link is None or self._link.broken:
                await self.close()
                self._link = await self._connect()
            link = self._link
        return await self._exchange(link, call)

    async def _connect(self) -> _Link:
        address = self._address
        try:
            async with asyncio.timeout(self._timeout):
                if isinstance(address, UnixAddress):
                    reader, writer = await asyncio.open_unix_connection(address.path)
                else:
                    reader, writer = await asyncio.open_connection(*address, ssl=self._ssl_context)
        except OSError as error:
            raise Unavailable(f"cannot connect to {address}: {error.strerror or error}") from error
        link = _Link(reader, writer)
        try:
            self.server = await self._exchange(link, _hello(self._token))
        except BaseException:
            await link.close()
            raise
        return link

    async def _exchange(self, link: _Link, call: _Call[T]) -> T:
        try:
            async with asyncio.timeout(call.timeout_s(self._timeout)):
                response = await link.exchange(call.method, call.params)
        except TimeoutError:
            raise TimedOut(f"{self._address} did not answer in time") from None
        except OSError as error:
            raise Unavailable(f"the connection to {self._address} broke: {error}") from error
        if response.error is not None:
            raise response.error
        return call.decode(response.result)


class _Link:
    """An open connection: a task reads, and gives each response to whoever waits for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._core = ClientCore()
        self._open: dict[int, asyncio.Future[Response]] = {}
        self._failure: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._read())

    @property
    def broken(self) -> bool:
        return self._failure is not None

    async def exchange(self, method: str, params: Mapping[str, Any]) -> Response:
        """Send a request and wait for its response."""
        if self._failure is not None:
            raise self._failure
        msgid, message = self._core.request(method, params)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._open[msgid] = future
        try:
            self._writer.write(message)
            await self._writer.drain()
            return await future
        finally:
            self._open.pop(msgid, None)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        failure: Exception = ConnectionError("the client was closed")
        try:
            while True:
                data = await self._reader.read(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed it")
                for response in self._core.feed(data):
                    future = self._open.get(response.msgid)
                    if future is not None and not future.done():
                        future.set_result(response)
        except (OSError, GraphtideError) as error:
            failure = error
        finally:
            self._failure = failure
            for future in self._open.values():
                if not future.done():
                    future.set_exception(failure)
