"""One topic of a real broker whose records are of several encodings, as their ``content-type`` headers say."""

from __future__ import annotations

import json
from pathlib import Path

import brokers
import pytest
from kafka import KafkaProducer
from running import Daemon
from test_arrow import batch, stream

from graphtide.daemon.ingest.dead_letters import read_dead_letters
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.encodings import CONTENT_TYPE
from graphtide.ops.kafka import DevKafka

ARROW, JSON, CSV = "application/vnd.apache.arrow.stream", "application/json", "text/csv; charset=utf-8"
COLUMNS = {
    "src": "from_account",
    "dst": "payload.after.to",
    "op": "kind",
    "weight": "payload.after.amount",
    "op_values": {"insert": ["c"], "delete": ["d"]},
}


def transfer(src: int, kind: str, **after: object) -> bytes:
    """A producer's own document."""
    return json.dumps({"from_account": src, "kind": kind, "payload": {"after": after}}).encode()


@pytest.mark.sample(among="a stream through a daemon")
@pytest.mark.kafka
@pytest.mark.timeout(600)  # where no kernels are cached, the first start compiles them
def test_records_are_read_as_their_headers_say(kafka: DevKafka, tmp_path: Path) -> None:
    """Arrow, JSON and CSV by a producer's names, and MessagePack, which a record without a header is, in order."""
    kafka.create_topic("encodings", 1)
    lost = transfer(1, "c", amount=1)
    records: list[tuple[str | None, bytes]] = [
        (
            ARROW,
            stream(
                batch(src=[1, 2, 3], dst=[2, 3, 4], weight=[1.0, 1.0, 7.0]), batch(src=[5], dst=[6], weight=[2.0])
            ),
        ),
        (JSON, transfer(3, "c", to=4, amount="0.5")),
        (JSON, lost),
        (JSON, transfer(5, "d", to=6)),
        (CONTENT_TYPE, encode_msgpack([4], [5], weights=[0.25])),
        (None, encode_msgpack([5], [6], weights=[4.0])),
        (CSV, b"from_account,payload.after.to,kind,payload.after.amount\n6,7,c,8\n5,6,d,\n"),
        (ARROW, stream(batch(src=[5], dst=[6], weight=[0.125]))),
        ("application/yaml", b"src: 1"),
    ]
    settings = {
        "graph": {"weights": "non-negative"},
        "source": {
            "kind": "kafka",
            "bootstrap_servers": [kafka.bootstrap],
            "topics": ["encodings"],
            "start": "earliest",
            "columns": COLUMNS,
        },
        "program": [{"name": "sssp", "source": 1}],
    }
    with Daemon(tmp_path, settings) as daemon, brokers.client(KafkaProducer, kafka.bootstrap) as producer:
        daemon.start(ready_s=400)
        for kind, value in records:
            headers = [] if kind is None else [("content-type", kind.encode())]
            end = producer.send("encodings", value, headers=headers).get(timeout=60).offset + 1
        with daemon.client() as client:
            found = client.get("sssp", range(1, 8), min_offsets={"encodings": {0: end}})
            assert found.values.tolist() == [0.0, 1.0, 2.0, 2.5, 2.75, 2.875, 10.875]
            stats = client.stats()
            assert stats["edges"] == 6
            assert stats["dead_letters"] == {"bad-column": 1, "unknown-encoding": 1}
        assert daemon.stop() == 0, daemon.log_tail()
    letters = {letter.reason: letter for letter in read_dead_letters(tmp_path / "dead-letters")}
    assert letters["bad-column"].value == lost and "payload.after.to" in letters["bad-column"].detail
    assert ("content-type", JSON.encode()) in letters["bad-column"].headers
