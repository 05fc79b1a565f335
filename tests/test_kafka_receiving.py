"""Receiving what brokers send: all of it, in order, however it comes in pieces, and why it ends."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import certificate
from kafka import codec
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslBytesRequest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from graphtide.daemon.ingest import kafka_receiving
from graphtide.daemon.ingest.kafka_receiving import Receiver


@contextlib.contextmanager
def ends(tls: Path | None) -> Iterator[tuple[Any, Any]]:
    """A broker's end of a connection, and a client's, which does not wait."""
    broker, client = socket.socketpair()
    if tls is not None:
        own = certificate(tls, "broker")
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(own.certificate, own.key)
        asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
        wrapped: list[Any] = []
        thread = threading.Thread(target=lambda: wrapped.append(serving.wrap_socket(broker, server_side=True)))
        thread.start()
        client = asking.wrap_socket(client)
        thread.join()
        broker = wrapped[0]
    client.setblocking(False)
    with broker, client:
        yield broker, client


def transport(client: Any, protocol: Any = None) -> Any:
    return SimpleNamespace(_sock=client, get_protocol=lambda: protocol)


@pytest.mark.parametrize("tls", [False, True])
def test_everything_comes_in_order_and_then_the_end(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_receiving, "ENOUGH_BYTES", 40_000)
    sent = random.Random(1).randbytes(3_000_000)
    got, most = bytearray(), 0
    with ends(tmp_path if tls else None) as (broker, client):
        receive = Receiver(transport(client))
        data, error = receive()
        assert not data and error is None, "nothing has come yet"

        def send() -> None:
            begin, random_ = 0, random.Random(2)
            while begin < len(sent):
                end = begin + random_.choice([1, 700, 16_384, 50_000, 300_000])
                broker.sendall(sent[begin:end])
                begin = end
            broker.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        while error is None:
            select.select([client], [], [], 30)
            data, error = receive()
            got += data
            most = max(most, len(data))
            if tls and data:
                assert not client.pending(), "no selector would tell of that"
        thread.join()
    assert bytes(got) == sent
    assert 16_384 < most <= 40_000 + 16_384
    assert "disconnected" in str(error)


def test_a_connection_that_breaks_is_an_error() -> None:
    with ends(None) as (_, client):
        receive = Receiver(transport(client))
        client.close()
        data, error = receive()
    assert not data
    assert "Bad file descriptor" in str(error)


def test_answers_are_read_as_kafka_python_reads_them_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    version = 11
    answer = FetchResponse(
        version=version,
        throttle_time_ms=7,
        error_code=0,
        session_id=0,
        responses=[
            FetchResponse.FetchableTopicResponse(
                version=version,
                topic="edges",
                partitions=[
                    FetchResponse.FetchableTopicResponse.PartitionData(
                        version=version,
                        partition_index=3,
                        error_code=0,
                        high_watermark=5,
                        last_stable_offset=5,
                        log_start_offset=0,
                        aborted_transactions=[],
                        preferred_read_replica=-1,
                        records=random.Random(3).randbytes(100_000),
                    )
                ],
            )
        ],
    )
    parsers = [KafkaProtocol(client_id="test") for _ in range(2)]
    for parser in parsers:
        request = FetchRequest(version=version, replica_id=-1, max_wait_ms=1, min_bytes=1, topics=[])
        parser.send_request(request)
        parser.send_bytes()
    answer.with_header(correlation_id=1)
    sent = bytes(answer.encode(header=True, framed=True))
    plain = parsers[0].receive_bytes(sent)
    copied: list[int] = []
    read = KafkaBytes.read

    def counted(frame: KafkaBytes, size: int | None = None) -> bytes:
        part: bytes = read(frame, size)
        copied.append(len(part))
        return part

    monkeypatch.setattr(KafkaBytes, "read", counted)
    with ends(None) as (broker, client):
        receive = Receiver(transport(client, SimpleNamespace(parser=parsers[1])))
        thread = threading.Thread(target=lambda: broker.sendall(sent))
        thread.start()
        spared: list[Any] = []
        while not spared:
            data, error = receive()
            assert error is None
            spared = parsers[1].receive_bytes(data)
        thread.join()
    assert [(number, response.to_dict()) for number, response in spared] == [
        (number, response.to_dict()) for number, response in plain
    ]
    assert spared[0][1].throttle_time_ms == 7
    assert max(copied) < 100


def test_what_keeps_the_bytes_that_it_reads_gets_bytes() -> None:
    """As a login by the first version of SASL does, whose answers are texts."""
    parser = KafkaProtocol(client_id="test")
    parser.send_request(SaslBytesRequest(b"n,,n=user,r=nonce"))
    parser.send_bytes()
    with ends(None) as (broker, client):
        receive = Receiver(transport(client, SimpleNamespace(parser=parser)))
        broker.sendall(b"\0\0\0\5r=abc")
        select.select([client], [], [], 30)
        data, _ = receive()
        ((_, answer),) = parser.receive_bytes(data)
    assert answer.auth_bytes.decode() == "r=abc"


class Odd(str):
    """A name that is written as it would be in Latin-1."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("latin-1")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch_is_read_as_kafka_python_reads_it(compression: str) -> None:
    """Whatever it is compressed by."""
    kind = getattr(DefaultRecordBatch, f"CODEC_{compression.upper()}")
    if not getattr(codec, f"has_{compression}", lambda: True)():
        pytest.skip(f"{compression} is not installed")
    random_ = random.Random(4)
    values = [None, b"", b"short", random_.randbytes(300_000), b"alike" * 50_000]
    batch = MemoryRecordsBuilder(magic=2, compression_type=kind, batch_size=1 << 20)
    for number, value in enumerate(values):
        batch.append(1_000 + number, b"key %d" % number, value, [("name", b"text")])
    batch.close()
    given = bytes(batch.buffer())
    read = list(MemoryRecords(given).next_batch())
    assert [(record.offset, record.timestamp, record.key, record.value) for record in read] == [
        (number, 1_000 + number, b"key %d" % number, value) for number, value in enumerate(values)
    ]
    assert {type(record.value) for record in read[1:]} == {bytes}
    assert [record.headers for record in read] == [[("name", b"text")]] * len(values)


@pytest.mark.parametrize("compression", [0, 1])
def test_a_header_of_any_name_stops_no_stream(compression: int) -> None:
    """Brokers take them, and other clients read them with U+FFFD for what is no UTF-8."""
    batch = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 16)
    for number, name in enumerate(["plain", Odd("caf\u00e9"), Odd("\u00e9t\u00e9"), "\u00e9t\u00e9"]):
        batch.append(None, b"key", b"value %d" % number, [(name, b"x"), ("other", None)])
    batch.append(None, None, None, [])
    batch.close()
    records = MemoryRecords(batch.buffer())
    read = list(records.next_batch())
    assert [record.headers[0][0] for record in read[:4]] == [
        "plain",
        "caf\ufffd",
        "\ufffdt\ufffd",
        "\u00e9t\u00e9",
    ]
    assert [record.value for record in read] == [*(b"value %d" % number for number in range(4)), None]
    assert [record.key for record in read] == [*[b"key"] * 4, None]
    assert {type(record.value) for record in read[:4]} == {bytes}
    assert read[3].headers[1] == ("other", None) and not read[4].headers
