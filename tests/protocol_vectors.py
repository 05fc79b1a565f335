"""The protocol byte by byte: ``docs/protocol-vectors.json``, from which clients in other languages can be written.

    python tests/protocol_vectors.py --write

writes it anew. Whatever is in it was encoded and decoded by graphtide itself: a real query server answers a real
client in front of a scripted engine, and both ends are listened to; records, frames and places of keys come from
the functions that producers use. ``test_protocol_vectors.py`` keeps the page true, and decodes it a second time
with MessagePack, ``struct`` and plain arithmetic alone.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from test_server import Chain, raw, serving

from graphtide.daemon.client import Client
from graphtide.daemon.client.wire import unpack_bitmap
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.records.barrier import HEADERS, barrier_id, barrier_value
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.encodings import CONTENT_TYPE, encoding_of
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.spool_format import frame, frames
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.records.topology import StorageState
from graphtide.daemon.serve.results import ProgramPublication, Publication
from graphtide.daemon.tools.query import readable
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import IdColumn, StringColumn

PAGE = Path(__file__).resolve().parents[1] / "docs" / "protocol-vectors.json"
TOKEN = "sesame-open"
EXACT = 2**53
"""Integers beyond it are texts in JSON: not every reader keeps all of their digits."""

ABOUT = [
    "Examples of every format of docs/protocol.md, byte by byte. Written by `python tests/protocol_vectors.py "
    "--write`; a test keeps them true, and decodes them a second time by MessagePack and plain arithmetic alone.",
    'Bytes are hexadecimal. MessagePack is shown as JSON: {"bin": HEX} is binary, {"map": [[key, value], ...]} a '
    'map whose keys are not all texts, {"int": TEXT} an integer beyond 2^53; the rest is what it looks like.',
    "queries, of a server over the chain 100 -> 101 -> ... -> 118, and 119 alone (or v0 to v19): what a client "
    "sends (request) and gets (response); `means` is the result without epoch and offsets, its columns as lists, "
    "null where their bitmap says so.",
    "subscriptions, of the same server: all that it sends after a request to subscribe. Where a snapshot is not "
    "all, an epoch is published in which vertex 101 is nearer, 100 and 102 have other ranks, and 119 is deleted.",
    "An encoder may choose longer forms of integers and lengths, and another order of keys: a decoder must take "
    "them all. Of an error the code is a promise; message and detail are for people.",
]


def shown(value: Any) -> Any:
    """A MessagePack value as JSON."""
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: shown(item) for key, item in value.items()}
        return {"map": [[shown(key), shown(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        return {"int": str(value)}
    return value


# -- records ------------------------------------------------------------------------------------------------


def records() -> list[dict[str, Any]]:
    """Kafka values, and records of spool files, with the updates that graphtide reads from them."""
    far = [-(2**63), 2**63 - 1]
    columnar: dict[str, tuple[str, bytes]] = {
        "inserts": ("int", encode_msgpack([1, 1, 2], [2, 3, 3])),
        "inserts with weights and times": (
            "int",
            encode_msgpack([1, 2], [2, 3], weights=[0.5, 2.0], timestamps_ms=[1_700_000_000_000, 0]),
        ),
        "deletions": ("int", encode_msgpack([1], [2], Op.DELETE)),
        "operations one by one": ("int", encode_msgpack([1, 1, 7, 8], [2, 3, 0, 0], [1, 0, 2, 3])),
        "deletions of vertices, without dst": ("int", encode_msgpack([7, 8], None, Op.DELETE_VERTEX)),
        "the least and the largest id": ("int", encode_msgpack(far, far[::-1])),
        "string ids": ("string", encode_msgpack(["ada", "zoë"], ["zoë", "a b"], weights=[1.0, 0.25])),
    }
    made = [_record(name, kind, CONTENT_TYPE, value) for name, (kind, value) in columnar.items()]
    edges = {"v": 1, "edges": [{"src": 1, "dst": 2, "weight": 0.5}, {"op": "delete_vertex", "src": "9"}]}
    lists = {"v": 1, "op": "delete", "src": [1, 2], "dst": [2, 3]}
    text = [("application/json", json.dumps(document).encode()) for document in (edges, lists)]
    text.append(("text/csv", b"op,src,dst,weight\ninsert,1,2,0.5\ndelete_vertex,9,,\n"))
    return made + [_record(f"{kind}, {n}", "int", kind, value) for n, (kind, value) in enumerate(text)]


def _record(name: str, kind: Any, content_type: str, value: bytes) -> dict[str, Any]:
    headers = (("content-type", content_type.encode()),)
    encoding = encoding_of(headers, "el")
    record = RawRecord(Partition("edges", 0), 0, 1, value, encoding, 0, headers=headers)
    decoded = Decoder(vertex_ids=kind).decode(record)
    block = decoded.block
    assert block is not None and not decoded.bad, decoded.bad
    ids = [ends.to_list() if isinstance(ends, StringColumn) else ends.tolist() for ends in (block.src, block.dst)]
    weights = [1.0] * len(block) if block.weights is None else block.weights.tolist()
    times = np.broadcast_to(block.timestamps_ms, len(block)).tolist()
    rows = zip([Op(op).name.lower() for op in block.ops.tolist()], *ids, weights, times, strict=True)
    return {
        "name": name,
        "vertex_ids": kind,
        "content_type": content_type,
        "value": value.hex(),
        **(
            {"message": shown(msgpack.unpackb(value))}
            if content_type == CONTENT_TYPE
            else {"text": value.decode()}
        ),
        "updates": [shown(dict(zip(("op", "src", "dst", "weight", "ts"), row, strict=True))) for row in rows],
    }


def barriers() -> list[dict[str, Any]]:
    """Records that order across partitions: the same one goes into each."""
    return [
        {
            "headers": [[name, value.decode()] for name, value in HEADERS],
            "value": barrier_value(id).hex(),
            "id": barrier_id(barrier_value(id)),
        }
        for id in ("load-7", "6fb7a3d2-0c55-4a6e-9c3a-2f6f0f1d9a10", "zoë")
    ]


def spool_frames() -> list[dict[str, Any]]:
    """Frames of ``.msgpack`` files of a spool."""
    payloads = [b"123456789", encode_msgpack([1], [2]), bytes(32)]
    made = [frame(payload) for payload in payloads]
    read = list(frames(b"".join(made)))
    assert [found.payload for found in read] == payloads and all(found.good for found in read)
    return [
        {"payload": payload.hex(), "frame": framed.hex()} for payload, framed in zip(payloads, made, strict=True)
    ]


PARTITION_COUNTS = (1, 3, 6, 12, 1000)
WHOLE_HASH = 2**31
"""With so many partitions, the place of a key is its hash."""


def placement() -> list[dict[str, Any]]:
    """The partition of each src: Kafka's default partitioner over its bytes."""
    integers = [0, 1, 2, 42, -1, 2**32, 2**63 - 1, -(2**63), 1234567890123456789]
    strings = ["", "a", "ab", "abc", "abcd", "abcde", "zoë", "https://example.org/a"]
    columns: tuple[tuple[list[Any], IdColumn, Callable[[Any], bytes]], ...] = (
        (integers, np.array(integers, np.int64), lambda id: id.to_bytes(8, "little", signed=True)),
        (strings, StringColumn.of(strings), str.encode),
    )
    found = []
    for ids, column, key in columns:
        hashes = partition_of(column, WHOLE_HASH).tolist()
        places = {str(n): partition_of(column, n).tolist() for n in PARTITION_COUNTS}
        for i, id in enumerate(ids):
            partitions = {n: column[i] for n, column in places.items()}
            found.append({"src": shown(id), "key": key(id).hex(), "hash": hashes[i], "partitions": partitions})
    return found


# -- queries ------------------------------------------------------------------------------------------------


class Engine(Chain):
    """The chain of ``test_server`` with more programs, whose values have other types; strings come from a spool.

    What these say is not true of a chain. (Integers of 4 bytes with a sign only programs of users have.)
    """

    def publication(self) -> Publication:
        made = super().publication()
        count = np.full(self.n, 1, np.float64)
        count[1], count[-1] = EXACT, 0
        paths = ProgramPublication("sspaths", {"count": count}, {"count": None}, {}, {"state": self.state})
        core, triangles = np.arange(self.n, dtype=np.int32), np.arange(self.n, dtype=np.uint64) << np.uint64(32)
        of_cores = ProgramPublication("kcore", {"core": core}, {"core": None}, {}, {"state": self.state})
        corners = ProgramPublication(
            "triangles", {"triangles": triangles}, {"triangles": None}, {}, {"state": self.state}
        )
        programs = {**made.programs, "paths": paths, "cores": of_cores, "corners": corners}
        if self.state != "fresh":
            state = {"state": self.state, "stale_since": [1, 2], "reason": "it broke"}
            programs = {id: dataclasses.replace(program, state=state) for id, program in programs.items()}
        return dataclasses.replace(made, programs=programs, offsets=self.current_epoch().offsets)

    def change(self) -> Publication:
        """The next epoch: vertex 1 is nearer, vertices 0 and 2 have other ranks, the last vertex is gone."""
        self.dead = [self.n - 1]
        made = self.publication()
        programs = dict(made.programs)
        word, estimate = made.programs["hops"].columns["word"].copy(), np.arange(1, self.n + 1, dtype=np.float64)
        word[1], estimate[0], estimate[2] = 0, 0.5, 1.5
        for id, name, column, changed in (("hops", "word", word, [1]), ("rank", "estimate", estimate, [0, 2])):
            indices = {name: np.array(changed, np.uint32)}
            before = programs[id]
            programs[id] = dataclasses.replace(
                before, columns={name: column}, changed=indices, scalars={"norm": 1.0}
            )
        return dataclasses.replace(made, programs=programs, alive_changed=np.array(self.dead, np.uint32))

    def current_epoch(self) -> StorageState:
        state = super().current_epoch()
        spool = {"edges.csv": self.number * 10}
        return dataclasses.replace(state, offsets=spool) if self.kind == "string" else state


class Tap:
    """A socket that remembers what went through it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.sent, self.received = b"", b""

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self._connection.sendall(data)

    def recv(self, size: int) -> bytes:
        data = self._connection.recv(size)
        self.received += data
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Conversation(Client):
    """A client whose every request becomes an example, with what came back."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, timeout=60, **options)
        self.examples: list[dict[str, Any]] = []

    def _open(self) -> socket.socket:
        tapped: Any = Tap(super()._open())
        self._tap: Tap = tapped
        return tapped

    def ask(self, name: str, request: Callable[[], object]) -> None:
        """Make an example; an error of the server is one, too."""
        with suppress(GraphtideError):
            request()
        requests, responses = (list(_messages(data)) for data in (self._tap.sent, self._tap.received))
        if len(requests) > 1:  # hello went before it
            self._add("hello", *requests[0], *responses[0])
        self._add(name, *requests[-1], *responses[-1])
        self._tap.sent = self._tap.received = b""

    def _add(self, name: str, request: bytes, sent: Any, response: bytes, received: Any) -> None:
        made = {"name": name, "request_bytes": request.hex(), "request": shown(sent)}
        made |= {"response_bytes": response.hex(), "response": shown(received)}
        if received[2] is None:
            made["means"] = meaning(received[3])
        self.examples.append(made)


def _messages(stream: bytes) -> Iterator[tuple[bytes, Any]]:
    """The messages of a stream, each as bytes and as what they say."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(stream)
    start = 0
    for message in unpacker:
        yield stream[start : unpacker.tell()], message
        start = unpacker.tell()


def meaning(result: Mapping[str, Any]) -> Any:
    """A result as graphtide's own client reads it, for people."""
    answer = {key: item for key, item in result.items() if key not in ("epoch", "offsets")}
    if "saturated" in answer:
        n = len(readable(answer)["values"])
        answer["saturated"] = unpack_bitmap(answer["saturated"], n).tolist()
    return shown(readable(answer))


@contextmanager
def conversation(kind: str, **options: Any) -> Iterator[tuple[Engine, Any, Conversation]]:
    """A server over a chain of 20 vertices (100 to 119, or v0 to v19; no path leads to the last), and a client."""
    engine = Engine(kind)
    engine.grow(20)
    with (
        tempfile.TemporaryDirectory(prefix="gt-") as folder,
        serving(engine, folder, tokens=[TOKEN], **options) as link,
        Conversation(link.addresses[0], token=TOKEN) as client,
    ):
        yield engine, link, client


def queries() -> list[dict[str, Any]]:
    """Every method, every error, and the notification that ends a connection."""
    with conversation("int") as (_, link, client):
        _ask_about_integers(client)
        _ask_what_is_wrong(client)
        examples = [*client.examples, *_endings(link.addresses[0])]
    with conversation("string") as (engine, link, client):
        _ask_about_strings(client)
        engine.state = "quarantined"
        link.publish(engine.publication())
        client.ask("get, of results that are older than the epoch", lambda: client.get("rank", ["v0"]))
        return examples + client.examples


def subscriptions() -> list[dict[str, Any]]:
    """What follows a request to subscribe."""
    some = {"program": "hops", "vertices": [100, 101, 119, 5]}
    strings = {"program": "rank", "vertices": ["v0", "v1", "v19"]}
    largest = {"program": "rank", "top": 2}
    smallest = {**largest, "order": "asc"}
    return [
        _subscription("some vertices: a snapshot, then what an epoch changed", "int", some, 3),
        _subscription("all vertices, without a snapshot", "int", {"program": "rank", "snapshot": False}, 2),
        _subscription("from an epoch that is not known any more: a snapshot", "int", {**some, "since": [1, 0]}, 2),
        _subscription("string ids", "string", strings, 3),
        _subscription("the largest: one comes in the place of one that is deleted", "int", largest, 3),
        _subscription("the smallest", "int", smallest, 3),
    ]


def _subscription(name: str, kind: str, params: Mapping[str, Any], messages: int) -> dict[str, Any]:
    """The server's messages after one request: before the last one, another epoch is published."""
    engine = Engine(kind)
    engine.grow(20)
    request = [0, 0, "subscribe", [params]]
    with (
        tempfile.TemporaryDirectory(prefix="gt-") as folder,
        serving(engine, folder) as link,
        raw(link.addresses[0]) as connection,
    ):
        tap = Tap(connection.socket)
        tap.sendall(msgpack.packb(request))
        while len(heard := list(_messages(tap.received))) < messages:
            if len(heard) == messages - 1 and engine.number == 1 and "since" not in params:
                link.publish(engine.change())
            tap.recv(1 << 16)
    packed, received = zip(*heard, strict=True)
    return {
        "name": name,
        "request_bytes": tap.sent.hex(),
        "request": shown(request),
        "messages_bytes": [message.hex() for message in packed],
        "messages": [shown(message) for message in received],
        "means": [meaning(message[2][0]) for message in received[1:]],
    }


def _ask_about_integers(c: Conversation) -> None:
    c.ask("stats", c.stats)
    c.ask("programs", c.programs)
    c.ask("get", lambda: c.get("hops", [100, 101, 119, 5]))
    c.ask("get, vertices as an array", lambda: c.call("get", {"program": "rank", "vertices": [101, 100]}))
    c.ask("get, with parents", lambda: c.get("hops", [100, 103, 119], parents=True))
    c.ask("get, values that are vertices", lambda: c.get("parts", [103, 119]))
    c.ask("get, several programs in one epoch", lambda: c.get(["rank", "parts"], [100, 5]))
    c.ask("get, lower bounds", lambda: c.get("paths", [100, 101, 119]))
    c.ask("get, signed integers of 4 bytes", lambda: c.get("cores", [101, 5, 119]))
    c.ask("get, unsigned integers of 8 bytes", lambda: c.get("corners", [101, 5, 119]))
    c.ask("get, of no vertices", lambda: c.get("rank", []))
    ten = [*range(111, 120), 9]
    c.ask("get, a bitmap of more than a byte", lambda: c.get("hops", ten))
    c.ask("get, not older than offsets", lambda: c.get("rank", [100], min_offsets={"t": {0: 10}}, timeout_ms=5))
    c.ask("top", lambda: c.top("rank", 3))
    c.ask("top, the smallest", lambda: c.top("rank", 2, order="asc"))
    c.ask("top, of chosen vertices", lambda: c.top("rank", 2, vertices=[103, 101, 102, 5]))
    c.ask("histogram", lambda: c.histogram("rank", 4))
    c.ask("path", lambda: c.path("hops", 103))
    c.ask("path, where there is none", lambda: c.path("hops", 119))
    c.ask("component", lambda: c.component(103, limit=3))
    c.ask("neighbors", lambda: c.neighbors(102))
    c.ask("neighbors, the first page", lambda: c.neighbors(105, limit=3))
    c.ask("neighbors, the next page", lambda: c.neighbors(105, limit=3, cursor=2))
    c.ask("neighbors, backwards", lambda: c.neighbors(102, direction="in"))
    c.ask("degree", lambda: c.degree([100, 5, 118]))
    c.ask("degree_distribution", lambda: c.degree_distribution())
    c.ask("has_edge", lambda: c.has_edge([100, 100], [101, 102]))
    c.ask("khop", lambda: c.khop(102, 3))
    c.ask("khop, with more than is wanted", lambda: c.khop(102, 3, limit=2))
    c.ask("egonet", lambda: c.egonet(102))
    c.ask("subgraph", lambda: c.subgraph([104, 102, 103, 5]))
    c.ask("subgraph, with more than is wanted", lambda: c.subgraph([104, 102, 103], limit=1))
    c.ask("cross_edges", lambda: c.cross_edges([102, 103], [100, 103]))
    c.ask("wait", lambda: c.wait({"t": {0: 10}}, timeout_ms=5))
    c.ask("checkpoint", lambda: c.checkpoint())
    c.ask("compute", lambda: c.compute("ppr", {"sources": [100]}, vertices=[100, 119, 101]))
    c.ask("compute, the best", lambda: c.compute("pagerank", {"tolerance": 0.01}, top=2))
    c.ask("compute, scalars alone", lambda: c.compute("pagerank"))
    c.ask("keep", lambda: c.keep("bfs", {"source": 105}))
    c.ask("keep, under an id", lambda: c.keep("bfs", {"source": 105}, id="from105"))
    c.ask("drop", lambda: c.drop("from105"))
    c.ask("placement", lambda: c.placement())
    c.ask("placement, of vertices, too", lambda: c.placement([100, 119, 5]))
    c.ask("admin.rebalance", lambda: c.admin_rebalance())
    c.ask("admin.freeze", lambda: c.admin_freeze())
    c.ask("admin.freeze, no longer", lambda: c.admin_freeze(thaw=True))
    c.ask("admin.device", lambda: c.admin_device())
    c.ask("subscribe", lambda: c.call("subscribe", {"program": "rank", "snapshot": False}))
    c.ask("unsubscribe", lambda: c.call("unsubscribe", {"subscription": 0}))


def _ask_what_is_wrong(c: Conversation) -> None:
    c.ask("error: bad-request", lambda: c.call("get", {"program": "rank", "vertices": ["a"]}))
    c.ask("error: not-supported", lambda: c.call("admin.pause", {}))
    c.ask("error: unknown-program", lambda: c.get("none", [100]))
    c.ask("error: unknown-vertex", lambda: c.neighbors(5))
    c.ask("error: limit-exceeded", lambda: c.top("rank", 101))
    c.ask("error: timeout", lambda: c.wait({"t": {0: 11}}, timeout_ms=1))
    c.ask("error: unavailable", lambda: c.neighbors(113))  # the scripted engine is busy with it
    c.ask("error: internal", lambda: c.neighbors(115))  # and fails on this one


def _ask_about_strings(c: Conversation) -> None:
    c.ask("get, string ids", lambda: c.get("hops", ["v0", "v3", "no"], parents=True))
    c.ask("get, values that are strings", lambda: c.get("parts", ["v3", "no"]))
    c.ask("top, string ids", lambda: c.top("rank", 2))
    c.ask("path, string ids", lambda: c.path("hops", "v2"))
    c.ask("component, string ids", lambda: c.component("v3", limit=2))
    c.ask("egonet, string ids", lambda: c.egonet("v3"))
    c.ask("subgraph, string ids", lambda: c.subgraph(["v3", "v2", "no"]))
    c.ask("degree, string ids", lambda: c.degree(["v0", "no"]))
    c.ask("wait, offsets of a spool", lambda: c.wait({"edges.csv": 10}, timeout_ms=5))


def _endings(address: str) -> list[dict[str, Any]]:
    """What ends a connection: no token, a wrong one, and bytes that are no request."""
    made = []
    for name, sent in (
        ("error: unauthorized, a wrong token", [0, 0, "hello", [{"versions": [1], "token": "sesame-opem"}]]),
        ("error: unauthorized, no hello before", [0, 0, "stats", [{}]]),
        ("notification: why the server ends the connection", [2, "stats", [{}]]),
    ):
        packed = msgpack.packb(sent)
        with raw(address) as connection:
            tap = Tap(connection.socket)
            tap.sendall(packed)
            while tap.recv(1 << 16):
                pass
            ((response, received),) = _messages(tap.received)
        made.append(
            {
                "name": name,
                "request_bytes": packed.hex(),
                "request": shown(sent),
                "response_bytes": response.hex(),
                "response": shown(received),
                "then": "the server closes the connection",
            }
        )
    return made


# -- the page -----------------------------------------------------------------------------------------------


def vectors() -> dict[str, Any]:
    """The whole page."""
    return {
        "about": ABOUT,
        "records": records(),
        "barriers": barriers(),
        "frames": spool_frames(),
        "placement": placement(),
        "queries": queries(),
        "subscriptions": subscriptions(),
    }


def render(page: Mapping[str, Any]) -> str:
    """As it stands in the file: an example a paragraph, an entry of it a line."""
    lines = ["{"]
    for section, items in page.items():
        lines.append(f' "{section}": [')
        for item in items:
            lines += _paragraph(item)
        lines[-1] = lines[-1].removesuffix(",")
        lines.append(" ],")
    lines[-1] = " ]"
    return "\n".join([*lines, "}"]) + "\n"


def _paragraph(item: Any) -> Sequence[str]:
    if not isinstance(item, Mapping):
        return [f"  {_json(item)},"]
    entries = [f"   {_json(key)}: {_json(value)}" for key, value in item.items()]
    return ["  {", *(f"{entry}," for entry in entries[:-1]), entries[-1], "  },"]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    logging.disable()  # what is refused and what fails was asked for
    text = render(vectors())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
        print(PAGE)
    else:
        print(text, end="")
