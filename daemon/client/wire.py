"""The query protocol without its sockets: MessagePack-RPC frames, columns, errors, and their limits.

A request is ``[0, msgid, method, [params]]``, its response
``[1, msgid, error, result]``, a notification ``[2, method, [params]]``; they follow each other on a stream,
and answers may come in any order. A numeric **column** is a map ``{"dtype": "<f8", "data": bin}``; string ids
are arrays. The notification ``error`` carries an error that belongs to no request; the connection ends
after it. Clients import this module: it must stay free of Numba and of the server's parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import msgpack
import numpy as np
import numpy.typing as npt

from .. import errors
from ..errors import GraphtideError, LimitExceeded, RequestError

PROTOCOL_VERSIONS = (1,)
REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
RECEIVE_BYTES = 1 << 18
"""Taken from a socket at once, at most."""

MAP_ENTRIES_MAX = 4096
"""Entries of one map in a request: the partitions of one topic are the longest that is sensible."""
CONTAINERS_MAX = 512
"""Arrays and maps in one request: empty ones cost far more memory than their one byte on the wire."""
PIECE_BYTES = 1 << 16
"""Long frames are decoded in pieces, so that the interpreter can turn to other work in between."""
PIECE_ITEMS = 1 << 13
_MAP_HEAD_BYTES = 5
SCAN_BYTES = 1 << 12
"""Room that a reader of frames begins with; MessagePack's own default is a mebibyte."""

Frame = bytes | bytearray
_HOLDERS = (dict, list)

LATENCY_BUCKETS_SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
"""Upper bounds of the latency histogram's buckets; one more bucket takes the rest."""


class MethodLatency(NamedTuple):
    """Requests of one method: how many took how long, together and by error code.

    ``bucket_counts``: one per bound of ``LATENCY_BUCKETS_SECONDS`` (not cumulative), and one for the rest.
    """

    bucket_counts: tuple[int, ...]
    sum_seconds: float
    errors: dict[str, int]


# -- columns ----------------------------------------------------------------------------------------------


def pack_column(column: npt.NDArray[Any]) -> dict[str, Any]:
    """A numeric column as it travels, little-endian."""
    dtype = column.dtype.str
    if dtype.startswith(">"):
        column = column.astype(column.dtype.newbyteorder("<"))
        dtype = column.dtype.str
    return {"dtype": dtype, "data": column.tobytes()}


def is_column(value: Any) -> bool:
    """Whether this part of an answer is a numeric column. Other keys of these names are users': of programs, or of
    topics."""
    return (
        isinstance(value, Mapping)
        and value.keys() == {"dtype", "data"}
        and isinstance(value["dtype"], str)
        and isinstance(value["data"], bytes)
    )


def unpack_column(wire: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The inverse of ``pack_column``; the array is read-only."""
    return np.frombuffer(wire["data"], np.dtype(wire["dtype"]))


def pack_bitmap(flags: npt.NDArray[np.bool_]) -> bytes | None:
    """Flags as bits, the first one lowest; None when none is set."""
    return np.packbits(flags, bitorder="little").tobytes() if np.count_nonzero(flags) else None


def unpack_bitmap(wire: bytes | None, n: int) -> npt.NDArray[np.bool_]:
    """The inverse of ``pack_bitmap`` for n flags."""
    if wire is None:
        return np.zeros(n, np.bool_)
    return np.unpackbits(np.frombuffer(wire, np.uint8), count=n, bitorder="little").astype(np.bool_)


def ids_of(wire: Any) -> npt.NDArray[np.int64] | list[str]:
    """Ids as they travel: a column of integers, or an array of strings."""
    return wire if isinstance(wire, list) else unpack_column(wire)


def masked(wire: Any, null: bytes | None) -> np.ma.MaskedArray[Any, Any]:
    """Values with their bitmap of those that are none; strings become objects."""
    values = np.array(wire, object) if isinstance(wire, list) else unpack_column(wire).copy()
    return np.ma.MaskedArray(values, mask=unpack_bitmap(null, values.size))


def plain(value: object) -> object:
    """NumPy scalars as Python numbers, for MessagePack.

    Raises:
        OverflowError: an integer needs more than 64 bits.
        TypeError: there is no such thing in MessagePack.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int):
        raise OverflowError(f"{value} does not fit into 64 bits")
    raise TypeError(f"{type(value).__name__} cannot be sent")


# -- errors -----------------------------------------------------------------------------------------------


def _by_code() -> dict[str, type[GraphtideError]]:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    return {kind.code: kind for kind in found if issubclass(kind, GraphtideError)}


_ERRORS = _by_code()


def error_to_wire(error: GraphtideError) -> dict[str, Any]:
    """An error as it travels."""
    return {"code": error.code, "message": error.message, "detail": error.detail}


def error_from_wire(wire: Any) -> GraphtideError:
    """The exception that an error on the wire stands for; an unknown code gives the base class."""
    if not isinstance(wire, Mapping):
        return GraphtideError(f"the server answered with an error: {wire!r}")
    code, detail = wire.get("code"), wire.get("detail")
    kind = _ERRORS.get(code) if isinstance(code, str) else None
    message = str(wire.get("message", code))
    return (kind or GraphtideError)(message, dict(detail) if isinstance(detail, Mapping) else {})


# -- encoding ---------------------------------------------------------------------------------------------


def encode_request(msgid: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request.

    Raises:
        RequestError: a number or a text among its parameters cannot travel.
    """
    try:
        return _packed([REQUEST, msgid, method, [params]])
    except OverflowError as error:
        raise RequestError(str(error)) from None
    except UnicodeEncodeError as error:
        raise RequestError(f"{error.object!r} is no text in UTF-8") from None


def encode_error(msgid: int, error: GraphtideError) -> bytes:
    """The response that says what was wrong."""
    return _packed([RESPONSE, msgid, error_to_wire(error), None])


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    return _packed([NOTIFICATION, method, [params]])


class Entries(NamedTuple):
    """Entries of a map, as they travel: encoded once for all who are sent them."""

    size: int
    data: bytes


def encode_entries(content: Mapping[str, Any]) -> Entries:
    """The entries of ``content``, to be parts of other maps."""
    packer = msgpack.Packer(autoreset=False, default=plain)
    _pack_items(packer, content)
    return Entries(len(content), packer.bytes())


def entries_of(packed: bytes) -> Entries:
    """The entries of a map that is encoded already."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(packed[:_MAP_HEAD_BYTES])
    size = unpacker.read_map_header()
    return Entries(size, packed[unpacker.tell() :])


def encode_stamped_notification(
    method: str, stamp: bytes, content: Mapping[str, Any], shared: Entries | None = None
) -> bytes:
    """A notification whose one parameter is a map: the two stamped entries, those of ``content``, ``shared``."""
    own = encode_entries(content)
    rest = shared or Entries(0, b"")
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(3)
    packer.pack(NOTIFICATION)
    packer.pack(method)
    packer.pack_array_header(1)
    packer.pack_map_header(2 + own.size + rest.size)
    return b"".join((packer.bytes(), stamp, own.data, rest.data))


def encode_stamp(epoch: Sequence[int], offsets: Mapping[str, Any]) -> bytes:
    """The entries ``epoch`` and ``offsets`` of a result; worth keeping, since an epoch has many answers."""
    return b"".join(map(_packed, ("epoch", epoch, "offsets", offsets)))


def encode_result(msgid: int, stamp: bytes, answer: Mapping[str, Any], shared: Entries | None = None) -> bytes:
    """A response whose result is the two stamped entries, those of ``answer``, and ``shared`` ones."""
    rest = shared or Entries(0, b"")
    packer = msgpack.Packer(autoreset=False, default=plain)
    packer.pack_array_header(4)
    packer.pack(RESPONSE)
    packer.pack(msgid)
    packer.pack(None)
    packer.pack_map_header(2 + len(answer) + rest.size)
    head = packer.bytes()
    packer.reset()
    _pack_items(packer, answer)
    return b"".join((head, stamp, packer.bytes(), rest.data))


def _pack_items(packer: Any, entries: Mapping[str, Any]) -> None:
    """Entries of a map. Long arrays item by item, so that the interpreter can turn to other work in between."""
    for key, value in entries.items():
        packer.pack(key)
        if isinstance(value, dict) and not _is_flat(value):
            packer.pack_map_header(len(value))
            _pack_items(packer, value)
        elif isinstance(value, list) and len(value) > PIECE_ITEMS:
            packer.pack_array_header(len(value))
            for item in value:
                packer.pack(item)
        else:
            packer.pack(value)


def _is_flat(entries: Mapping[str, Any]) -> bool:
    """Nothing in there holds anything else, as in a column."""
    for value in entries.values():  # noqa: SIM110
        if isinstance(value, _HOLDERS):
            return False
    return True


def _packed(message: Any) -> bytes:
    packed: bytes = msgpack.packb(message, default=plain)
    return packed


# -- the server's side of decoding ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its parameters (a map with string keys)."""

    msgid: int
    method: str
    params: dict[str, Any]


class InvalidParams(RequestError):
    """The envelope of a request is right and names a ``msgid``, but method or parameters are not."""

    def __init__(self, msgid: int, message: str, detail: dict[str, Any] | None = None) -> None:
        super().__init__(message, detail)
        self.msgid = msgid


class FrameReader:
    """Cuts a stream into frames, without building a single object of what it reads.

    Lengths claimed by headers are never believed: a frame is decoded only once all of it is there, and
    memory grows only with bytes that came.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._scanner = _new_scanner(frame_bytes_max)
        self._scanned = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait: an unfinished frame, and frames that nobody took yet."""
        return len(self._buffer)

    def allow(self, frame_bytes_max: int) -> None:
        """Let frames be so long from now on."""
        if frame_bytes_max != self.frame_bytes_max:
            self.frame_bytes_max = frame_bytes_max
            self._scan_anew()

    def feed(self, data: bytes) -> None:
        """Take bytes from the stream.

        Raises:
            LimitExceeded: more waits than a frame may be long.
        """
        try:
            self._scanner.feed(data)
        except msgpack.BufferFull:
            raise self._too_long() from None
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes come. Nothing is kept of it.

        Raises:
            LimitExceeded: the frame is too long.
            RequestError: this is no MessagePack, or nested too deeply.
        """
        if not self._buffer:
            return None
        try:
            self._scanner.skip()
        except msgpack.OutOfData:
            if len(self._buffer) > self.frame_bytes_max:
                raise self._too_long() from None
            return None
        except (ValueError, msgpack.UnpackException):
            raise RequestError("the stream is no MessagePack") from None
        position = self._scanner.tell()
        length = position - self._scanned
        if length > self.frame_bytes_max:
            raise self._too_long()
        if length > PIECE_BYTES:
            frame = self._buffer
            self._buffer = frame[length:]
            del frame[length:]
            self._scan_anew()
            return frame
        with memoryview(self._buffer) as buffer:
            short = bytes(buffer[:length])
        del self._buffer[:length]
        self._scanned = position
        return short

    def _scan_anew(self) -> None:
        """Give the scanner's copy of all that it has read back to the system."""
        self._scanner = _new_scanner(self.frame_bytes_max)
        self._scanner.feed(self._buffer)
        self._scanned = 0

    def _too_long(self) -> LimitExceeded:
        return LimitExceeded(
            f"a request is longer than {self.frame_bytes_max} bytes", {"frame_bytes_max": self.frame_bytes_max}
        )


def _new_scanner(frame_bytes_max: int) -> Any:
    return msgpack.Unpacker(read_size=SCAN_BYTES, max_buffer_size=frame_bytes_max + (1 << 20))


def decode_request(frame: Frame, items_max: int) -> Request:
    """The request in a whole frame, with at most ``items_max`` array items and map entries together.

    Raises:
        InvalidParams: answerable: the envelope is right, what it holds is not.
        RequestError: not answerable: this is no request at all, or holds more than the limits allow.
    """
    message = _decode_bounded(frame, items_max)
    if not isinstance(message, list) or len(message) != 4 or message[0] != REQUEST:
        raise RequestError("expected a request: [0, msgid, method, [params]]")
    msgid, method, params = message[1:]
    if not _is_int(msgid) or not 0 <= msgid < 2**32:
        raise RequestError("a msgid must be a whole number below 2^32")
    if not isinstance(method, str):
        raise InvalidParams(msgid, "the method must be a string")
    if params is None or params == []:
        params = [{}]
    if not isinstance(params, list) or len(params) != 1 or not isinstance(params[0], dict):
        raise InvalidParams(msgid, "params must be an array that holds one map")
    for key in params[0]:
        if not isinstance(key, str):
            raise InvalidParams(msgid, "the names of parameters must be strings")
    return Request(msgid, method, params[0])


def _decode_bounded(frame: Frame, items_max: int) -> Any:
    try:
        if len(frame) <= min(CONTAINERS_MAX, items_max):  # a container and an item take a byte each, at least
            return msgpack.unpackb(frame, strict_map_key=False, max_ext_len=0)
        return _decode_counting(frame, items_max)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        what = "it holds an extension type" if "max_ext_len" in str(error) else error
        raise RequestError(f"a request cannot be decoded: {what}") from None


def _decode_counting(frame: Frame, items_max: int) -> Any:
    containers = items = 0

    def count(container: Any) -> Any:
        nonlocal containers, items
        containers += 1
        items += len(container)
        if containers > CONTAINERS_MAX or items > items_max + CONTAINERS_MAX:
            raise LimitExceeded("a request holds too many items", {"items_max": items_max})
        return container

    unpacker = msgpack.Unpacker(
        read_size=min(len(frame), PIECE_BYTES),
        strict_map_key=False,
        list_hook=count,
        object_hook=count,
        max_buffer_size=len(frame) + PIECE_BYTES,
        max_array_len=items_max,
        max_map_len=min(items_max, MAP_ENTRIES_MAX),
        max_ext_len=0,
    )
    for start in range(0, len(frame), PIECE_BYTES):
        unpacker.feed(frame[start : start + PIECE_BYTES])
        try:
            return unpacker.unpack()
        except msgpack.OutOfData:
            continue
    raise RequestError("a request is incomplete")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# -- the client's side ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """What came back for a request: a result, or the error that it raises."""

    msgid: int
    error: GraphtideError | None
    result: Any


@dataclass(frozen=True, slots=True)
class Notification:
    """What came without having been asked for just now: changes, for one who subscribed to them."""

    method: str
    content: Mapping[str, Any]


_HTTP = b"HTTP/"
_TLS_ALERT = b"\x15\x03"


class ClientCore:
    """One connection as the client sees it: numbers requests, and turns bytes into responses."""

    def __init__(self) -> None:
        self._last = -1
        self._began = b""  # the first bytes that came
        # The server is trusted with memory: its answers are as long as what was asked for.
        self._unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=2**31 - 1)

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """A new msgid, and the bytes to send; parameters that are None are left out."""
        self._last = (self._last + 1) % 2**32
        given = {key: value for key, value in params.items() if value is not None}
        return self._last, encode_request(self._last, method, given)

    def feed(self, data: bytes) -> list[Response]:
        """The responses that these bytes complete; for those who have subscribed to nothing.

        Raises:
            GraphtideError, ConnectionError: as ``messages``.
        """
        return [message for message in self.messages(data) if isinstance(message, Response)]

    def messages(self, data: bytes) -> list[Response | Notification]:
        """The responses and notifications that these bytes complete.

        Raises:
            GraphtideError: the server ends the connection, and says why.
            ConnectionError: these bytes follow no protocol.
        """
        found: list[Response | Notification] = []
        self._began += data[: len(_HTTP) - len(self._began)]
        if self._began and _HTTP.startswith(self._began):
            raise ConnectionError(
                "an HTTP server answers there; this client needs an address of server.listen (by default "
                "tcp://HOST:7420), not one of server.http or metrics.listen"
            )
        if self._began.startswith(_TLS_ALERT):
            raise ConnectionError("TLS is spoken there: this client needs an ssl_context")
        try:
            self._unpacker.feed(data)
            messages = list(self._unpacker)
        except (ValueError, msgpack.UnpackException) as error:
            raise ConnectionError(f"the server sent what is no MessagePack: {error}") from None
        for message in messages:
            match message:
                case [1, int(msgid), error, result]:
                    found.append(Response(msgid, None if error is None else error_from_wire(error), result))
                case [2, "error", [error]]:
                    raise error_from_wire(error)
                case [2, str(method), [dict(content)]]:
                    found.append(Notification(method, content))
                case [2, str(), list()]:
                    continue  # notifications of newer servers
                case _:
                    raise ConnectionError("the server sent what is no response")
        return found
