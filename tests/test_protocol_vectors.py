"""``docs/protocol-vectors.json`` is what graphtide writes and reads, and can be read without graphtide."""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgpack
import protocol_vectors
import pytest

from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Client
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.records.spool_format import frames
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.serve.methods import METHODS

PAGE: dict[str, Any] = json.loads(protocol_vectors.PAGE.read_text("utf-8"))


def test_the_page_is_what_graphtide_writes() -> None:
    expected = protocol_vectors.render(protocol_vectors.vectors())
    assert protocol_vectors.PAGE.read_text("utf-8") == expected, "python tests/protocol_vectors.py --write"


def test_every_type_of_columns_has_an_example() -> None:
    text = (protocol_vectors.PAGE.parent / "protocol.md").read_text("utf-8")
    text = " ".join(text.split())
    listed = text.split("`dtype` is as NumPy writes", 1)[1].split("Which one it is", 1)[0]
    types = set(re.findall(r"`([<|][a-z]\d)`", listed))
    assert types == {name for name in CODES if name != "|u1"}
    assert types <= set(re.findall(r'"dtype": "([^"]+)"', protocol_vectors.PAGE.read_text("utf-8")))


def test_every_method_has_a_line_on_the_page_and_one_in_the_clients() -> None:
    text = (protocol_vectors.PAGE.parent / "protocol.md").read_text("utf-8")
    table = text.split("| method | params | result |", 1)[1].split("\n\n", 1)[0]
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)) == sorted(METHODS)
    by_themselves = {"hello", "unsubscribe"}  # as a connection begins, and as a subscription ends
    for name in METHODS.keys() - by_themselves:
        assert hasattr(Client, name.replace(".", "_")) and hasattr(AsyncClient, name.replace(".", "_")), name


def test_every_method_and_every_error_that_requests_meet_has_an_example() -> None:
    responses = [example["response"] for example in PAGE["queries"]]
    answered = {
        example["request"][2]
        for example, response in zip(PAGE["queries"], responses, strict=True)
        if response[0] == 1 and response[2] is None
    }
    assert answered == set(METHODS)
    codes = {response[2]["code"] for response in responses if response[0] == 1 and response[2] is not None}
    kinds = [errors.GraphtideError, errors.RequestError, *errors.RequestError.__subclasses__()]
    assert codes == {kind.code for kind in kinds}
    assert [response for response in responses if response[0] == 2]


# -- a decoder of its own: MessagePack, struct and plain arithmetic ------------------------------------------


def plain(value: Any) -> Any:
    """The inverse of how the page shows MessagePack."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"bin": str(digits), **rest} if not rest:
            return bytes.fromhex(digits)
        case {"int": str(digits), **rest} if not rest:
            return int(digits)
        case {"map": list(items), **rest} if not rest:
            return {plain(key): plain(item) for key, item in items}
    return {key: plain(item) for key, item in value.items()}


CODES = {"<i8": "q", "<u8": "Q", "<i4": "i", "<u4": "I", "<f8": "d", "<f4": "f", "|b1": "?", "|u1": "B"}


def column(wire: Mapping[str, Any]) -> list[Any]:
    code = CODES[wire["dtype"]]
    return list(struct.unpack(f"<{len(wire['data']) // struct.calcsize(code)}{code}", wire["data"]))


def bits(data: bytes, n: int) -> list[bool]:
    return [bool(data[i // 8] >> (i % 8) & 1) for i in range(n)]


def read(value: Any) -> Any:
    """A result as ``means`` shows it."""
    if isinstance(value, list):
        return [read(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "data"}:
        return column(value)
    answer = {key: read(item) for key, item in value.items()}
    null = answer.pop("null", None)
    for name in ("values", "out", "in"):
        if null is not None and isinstance(answer.get(name), list):
            gone = bits(null, len(answer[name]))
            answer[name] = [None if none else item for none, item in zip(gone, answer[name], strict=True)]
    if "saturated" in answer:
        answer["saturated"] = bits(answer["saturated"], len(answer["values"]))
    return answer


@pytest.mark.parametrize("example", PAGE["queries"], ids=lambda example: example["name"])
def test_an_example_of_a_request_says_what_its_bytes_say(example: dict[str, Any]) -> None:
    request, response = (
        msgpack.unpackb(bytes.fromhex(example[f"{side}_bytes"]), strict_map_key=False)
        for side in ("request", "response")
    )
    assert request == plain(example["request"]) and response == plain(example["response"])
    if response[0] == 2:
        assert response[1] == "error" and set(response[2][0]) == {"code", "message", "detail"}
        return
    assert response[:2] == [1, request[1]]
    if response[2] is not None:
        assert set(response[2]) == {"code", "message", "detail"} and response[3] is None
        assert "means" not in example
        return
    result = dict(response[3])
    incarnation, number = result.pop("epoch")
    assert incarnation > 0 and number > 0
    assert all(isinstance(offset, int | dict) for offset in result.pop("offsets").values())
    assert read(result) == plain(example["means"])


@pytest.mark.parametrize("example", PAGE["subscriptions"], ids=lambda example: example["name"])
def test_an_example_of_a_subscription_says_what_its_bytes_say(example: dict[str, Any]) -> None:
    packed = [bytes.fromhex(message) for message in example["messages_bytes"]]
    response, *notices = [msgpack.unpackb(message, strict_map_key=False) for message in packed]
    assert msgpack.unpackb(bytes.fromhex(example["request_bytes"])) == plain(example["request"])
    assert [response, *notices] == plain(example["messages"])
    assert response[:3] == [1, 0, None]
    subscribed, epoch = (
        response[3],
        None if example["request"][3][0].get("snapshot", True) else response[3]["epoch"],
    )
    assert len(notices) == len(example["means"]) > 0
    for notice, means in zip(notices, example["means"], strict=True):
        assert notice[:2] == [2, "changed"] and len(notice) == 3 and len(notice[2]) == 1
        content = dict(notice[2][0])
        assert content["subscription"] == subscribed["subscription"] and content["since"] == epoch
        epoch = content.pop("epoch")
        content.pop("offsets")
        found = read(content)
        assert len(found["ids"]) == len(found["values"]) and found == plain(means)


OPS = ("delete", "insert", "insert_vertex", "delete_vertex")


def updates_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The updates of a record."""
    value = bytes.fromhex(record["value"])
    match record["content_type"]:
        case "application/json":
            document = json.loads(value)
            rows = document.get("edges") or _rows(document, document["src"], document["dst"])
        case "text/csv":
            rows = list(csv.DictReader(value.decode().splitlines()))
        case _:
            document = msgpack.unpackb(value)
            assert document == plain(record["message"])
            src, dst = (
                _unpacked("q", ids) if isinstance(ids, bytes) else ids
                for ids in (document["src"], document.get("dst"))
            )
            rows = _rows(document, src, dst or [0] * len(src))
    return [_update(row, record["vertex_ids"]) for row in rows]


def _unpacked(code: str, data: bytes) -> list[Any]:
    return [item for (item,) in struct.iter_unpack(f"<{code}", data)]


def _rows(document: Mapping[str, Any], src: list[Any], dst: list[Any]) -> list[dict[str, Any]]:
    n = len(src)
    op = document.get("op", "insert")
    ops = [OPS[code] for code in op] if isinstance(op, bytes) else [op] * n
    weights = _unpacked("f", document["weight"]) if "weight" in document else [1.0] * n
    times = _unpacked("q", document["ts"]) if "ts" in document else [0] * n
    names = ("op", "src", "dst", "weight", "ts")
    return [dict(zip(names, row, strict=True)) for row in zip(ops, src, dst, weights, times, strict=True)]


def _update(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    id_of = int if kind == "int" else str
    return {
        "op": row.get("op", "insert"),
        "src": id_of(row["src"]),
        "dst": id_of(row.get("dst") or 0),
        "weight": float(row.get("weight") or 1),
        "ts": int(row.get("ts") or 0),
    }


@pytest.mark.parametrize("record", PAGE["records"], ids=lambda record: record["name"])
def test_an_example_of_a_record_says_what_its_bytes_say(record: dict[str, Any]) -> None:
    assert updates_of(record) == plain(record["updates"])


def murmur2(data: bytes) -> int:
    """MurmurHash2 as Kafka's Java client has it, without the sign bit."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_keys_lie_where_plain_arithmetic_puts_them() -> None:
    for example in PAGE["placement"]:
        src = plain(example["src"])
        key = src.encode() if isinstance(src, str) else struct.pack("<q", src)
        assert key.hex() == example["key"]
        assert murmur2(key) == example["hash"]
        assert example["partitions"] == {n: murmur2(key) % int(n) for n in example["partitions"]}


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def cut(stream: bytes) -> Iterator[bytes]:
    """The payloads of frames, one after the other."""
    while stream:
        length, checksum = struct.unpack_from("<II", stream)
        payload, stream = stream[8 : 8 + length], stream[8 + length :]
        assert len(payload) == length and crc32c(payload) == checksum
        yield payload


def test_frames_hold_their_payloads_and_checksums() -> None:
    payloads = [bytes.fromhex(example["payload"]) for example in PAGE["frames"]]
    stream = bytes.fromhex("".join(example["frame"] for example in PAGE["frames"]))
    assert list(cut(stream)) == payloads
    assert [found.payload for found in frames(stream)] == payloads
    starts = [found.start for found in frames(stream)]
    assert [later - earlier for earlier, later in pairwise(starts)] == [8 + len(item) for item in payloads[:-1]]


def test_barriers_are_an_id_under_a_header() -> None:
    for example in PAGE["barriers"]:
        assert example["headers"] == [["content-type", "application/vnd.graphtide.barrier"]]
        value = bytes.fromhex(example["value"])
        assert value.decode() == example["id"]
        headers = tuple((name, text.encode()) for name, text in example["headers"])
        record = RawRecord(Partition("edges", 0), 0, 1, value, headers[0][1].decode(), 0, headers=headers)
        decoded = Decoder().decode(record)
        assert decoded.block is None and not decoded.bad
