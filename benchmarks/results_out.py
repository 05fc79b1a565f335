"""What it costs to write results: records a second, and processor time a record, by encoding and sink.

    python benchmarks/results_out.py [--records N] [--kafka] [--json FILE]

Each row is one transaction of hops (integers) of so many vertices. ``process``: of this process, with the client's
own thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphtide.daemon.outgoing import batches
from graphtide.daemon.outgoing.records import Changed, Chunk, End, OutgoingEncoding
from graphtide.daemon.outgoing.sink import Sink
from graphtide.daemon.outgoing.spool import SpoolSink
from graphtide.daemon.records import placement
from graphtide.daemon.serve.values import Values

EPOCH = (1, 1)
ENCODINGS: tuple[OutgoingEncoding, ...] = ("msgpack", "json")


def changed(records: int) -> Changed:
    rng = np.random.default_rng(1)
    ids = rng.permutation(records).astype(np.int64)
    values = Values(rng.integers(0, 20, records), rng.random(records) < 0.1)
    return Changed("hops", ids, values, ids[:0])


def end(records: int) -> End:
    return End(1, "benchmark", EPOCH, {}, None, None, True, 1, ("hops",), records=records)


@contextlib.contextmanager
def sinks(kafka: Any, folder: Path, encoding: OutgoingEncoding) -> Iterator[dict[str, Sink]]:
    made: dict[str, Sink] = {"files": SpoolSink(folder / encoding, encoding, file_bytes=1 << 30)}
    if kafka is not None:
        from graphtide.daemon.outgoing.kafka import KafkaSink

        topic = f"results-{encoding}"
        kafka.create_topic(topic, 4)
        made["topic"] = KafkaSink([kafka.bootstrap], topic, topic, encoding, client={}, transaction_timeout_s=300)
    try:
        yield made
    finally:
        for sink in made.values():
            sink.close()


def measured(name: str, encoding: str, records: int, work: Any) -> dict[str, Any]:
    wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    work()
    row = {
        "what": name,
        "encoding": encoding,
        "records": records,
        "records_per_s": round(records / (time.perf_counter() - wall)),
        "thread_us": round((time.thread_time() - thread) / records * 1e6, 2),
        "process_us": round((time.process_time() - process) / records * 1e6, 2),
    }
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def run(records: int, kafka: Any) -> list[dict[str, Any]]:
    batches.warm_up()
    placement.warm_up("int")
    rows = []
    given = changed(records)
    with tempfile.TemporaryDirectory() as folder:
        for encoding in ENCODINGS:
            chunks: list[Chunk] = []
            rows.append(measured("encode", encoding, records, partial(_encode, given, encoding, chunks)))
            with sinks(kafka, Path(folder), encoding) as made:
                for name, sink in made.items():
                    sink.open(lambda last: True)
                    rows.append(measured(name, encoding, records, partial(sink.write, chunks, end(records))))
    return rows


def _encode(given: Changed, encoding: OutgoingEncoding, chunks: list[Chunk]) -> None:
    chunks += given.chunks(EPOCH, encoding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--kafka", action="store_true", help="start a real broker, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        kafka = None
        if options.kafka:
            from graphtide.ops.kafka import DevKafka

            kafka = stack.enter_context(DevKafka())
        rows = run(options.records, kafka)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
