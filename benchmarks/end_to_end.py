"""Load the whole daemon: sustained updates per second and freshness together, queries beside it.

    python benchmarks/end_to_end.py [--scale 20] [--rates 500000,10000] [--sources spool,kafka] [--seconds 300]
                                    [--generators 1]

A pool of distinct RMAT pairs is three quarters loaded; then 80% upserts of pool pairs and 20% deletions of
present edges arrive at a fixed rate, whether the daemon keeps up or not (open loop). Queries arrive at a fixed
rate too, and each answer names the offsets it reflects: a record's freshness is the time from when it was due
until the first answer that covers it. BFS, components and PageRank are kept. Beside it, in the same run, a
SciPy script recomputes PageRank and components under the same rates.

``--generators``: so many processes send the updates, each those of its own vertices (as producers place edges) to
its own partition or file, in turns; together they send at the rate. Processor time is that of all. Records are
made before a rate begins, as many as a quarter of the free memory holds (*made ahead*: what share), so that
sending takes little of the cores that the daemon has, too; the others are made when they are due.

A second table says, for each partition or file, how late records were *written* behind when they were due (those
for Kafka: given to its client), and how long after it they were seen: so whose lateness it is.

A third table says where the daemon's time went: milliseconds of an epoch by stage and program (programs of one
epoch run side by side), and how much of a core its busiest thread used.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from baseline import ScipyRecompute
from report import machine, save, show
from rich.progress import Progress
from stages import between, free_port, standing

from graphtide import AsyncClient, Client
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn, Updates

fork = multiprocessing.get_context("fork")
TOPIC = "edges"


# -- where the load goes ---------------------------------------------------------------------------------


class SpoolTarget:
    """Appends a generator's records to one spool file, a new one for each stage: the old can be deleted."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.stage = ""

    def open(self) -> None:
        self.writer = SpoolWriter(self.folder, name=self.file.removesuffix(".msgpack"))

    @property
    def file(self) -> str:
        return f"{self.stage}-{self.number:02}.msgpack"

    def send(self, value: bytes) -> int:
        """Send one record; the offset after it."""
        offset = self.writer.append(value)
        self.writer.flush()
        return offset

    @property
    def name(self) -> str:
        return self.file

    def visible(self, offsets: dict[str, Any]) -> int:
        return int(offsets.get(self.file, 0))

    def wanted(self, offset: int) -> dict[str, Any]:
        return {self.file: offset}

    def close(self) -> None:
        self.writer.close()


class KafkaTarget:
    """Sends a generator's records to its partition with lz4; offsets follow from counting."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.bootstrap = bootstrap
        self.number = number
        self.stage = ""

    def open(self) -> None:
        from kafka import KafkaConsumer, KafkaProducer
        from kafka.structs import TopicPartition

        partition = TopicPartition(TOPIC, self.number)
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        self.next = consumer.end_offsets([partition])[partition]
        consumer.close()
        self.producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, compression_type="lz4", linger_ms=1, batch_size=1 << 18
        )

    def send(self, value: bytes) -> int:
        self.producer.send(TOPIC, value, partition=self.number)
        self.next += 1
        return self.next

    @property
    def name(self) -> str:
        return f"{self.stage}, {TOPIC}/{self.number}"

    def visible(self, offsets: dict[str, Any]) -> int:
        return int(offsets.get(TOPIC, {}).get(self.number, 0))

    def wanted(self, offset: int) -> dict[str, Any]:
        return {TOPIC: {self.number: offset}}

    def close(self) -> None:
        self.producer.flush()
        self.producer.close()


Target = SpoolTarget | KafkaTarget


class Generator(NamedTuple):
    """A part of the stream, and where it goes."""

    target: Target
    churn: Churn


def wanted(generators: Sequence[Generator], offsets: Sequence[int]) -> dict[str, Any]:
    """The offsets of all of them, as clients say them."""
    named: dict[str, Any] = {}
    for generator, offset in zip(generators, offsets, strict=True):
        for name, value in generator.target.wanted(offset).items():
            named[name] = named[name] | value if isinstance(value, dict) and name in named else value
    return named


def encode(updates: Updates) -> bytes:
    return encode_msgpack(updates.src, updates.dst, updates.ops, updates.weights)


class Schedule(NamedTuple):
    """When a generator's records are due: the first so many seconds after the start, then one ``every`` so many;
    ``records`` of ``updates`` each."""

    first: float
    every: float
    records: int
    updates: int


class Sent(NamedTuple):
    """What a generator sent: of each record when it was due and when it was written (monotonic seconds) and the
    offset after it; the processor seconds that took, how many records were made before, and which pairs are
    present after it."""

    due: np.ndarray
    written: np.ndarray
    offsets: np.ndarray
    cpu_seconds: float
    made_ahead: int
    present: np.ndarray


# -- the load, each part in a process of its own ------------------------------------------------------------


def in_background(work: Callable[..., None], *arguments: Any) -> Any:
    """Run work(*arguments, connection) in a forked process; our end of the connection.

    Receiving raises EOFError when the process ends without sending.
    """
    ours, theirs = fork.Pipe()
    process = fork.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return ours


def load_edges(generator: Generator, record_edges: int, sent: Any) -> None:
    """Send the first edges as fast as the source takes them."""
    target, churn = generator
    target.open()
    offset = 0
    for updates in churn.load(churn.settles_at, record_edges):
        offset = target.send(encode(updates))
    target.close()
    sent.send(offset)


def generate(generator: Generator, schedule: Schedule, ahead_bytes: int, connection: Any) -> None:
    """Make records, as many as so many bytes hold; say that; once the start is said, send them and all others when
    they are due. Send what was ``Sent``, and None when all of it is where it shall stay.
    """
    target, churn = generator
    target.open()
    ahead: deque[bytes] = deque()
    while len(ahead) < schedule.records and (not ahead or len(ahead[0]) * (len(ahead) + 1) <= ahead_bytes):
        ahead.append(encode(churn.next(schedule.updates)))
    made_ahead = len(ahead)
    connection.send(made_ahead)
    start = connection.recv()
    cpu_before = time.process_time()
    due = start + schedule.first + np.arange(schedule.records) * schedule.every
    written, offsets = np.empty(schedule.records), np.empty(schedule.records, np.int64)
    for i, moment in enumerate(due):
        value = ahead.popleft() if ahead else encode(churn.next(schedule.updates))
        if (pause := moment - time.monotonic()) > 0:
            time.sleep(pause)
        offsets[i] = target.send(value)
        written[i] = time.monotonic()
    # Before the file is on the disk: freshness does not wait for that.
    connection.send(Sent(due, written, offsets, time.process_time() - cpu_before, made_ahead, churn.present))
    target.close()
    connection.send(None)


def query(
    address: str, targets: list[Target], programs: list[str], ids: np.ndarray, rate: float, stop: Any, out: Any
) -> None:
    """Ask at a fixed rate; report (answered at, latency, visible offset of each target) of each request."""

    async def main() -> list[list[float]]:
        answers: list[list[float]] = []
        rng = np.random.default_rng(1)
        async with AsyncClient(address) as client:

            async def ask(program: str, vertices: np.ndarray) -> None:
                # From the moment of sending: no request waits for an answer, so nothing is left out by that,
                # and how late a Python timer fires says nothing about the server.
                sent = time.monotonic()
                answer = await client.get(program, vertices)
                now = time.monotonic()
                answers.append([now, now - sent, *(target.visible(answer.offsets) for target in targets)])

            start, i, open_requests = time.monotonic(), 0, set()
            while not stop.is_set():
                due = start + i / rate
                if (pause := due - time.monotonic()) > 0:
                    await asyncio.sleep(pause)
                task = asyncio.create_task(ask(programs[i % len(programs)], rng.choice(ids, 16)))
                open_requests.add(task)
                task.add_done_callback(open_requests.discard)
                i += 1
            await asyncio.gather(*open_requests)
        return answers

    out.send(np.array(asyncio.run(main())))


# -- one measured stage -------------------------------------------------------------------------------------


@dataclass
class Cpu:
    """Processor seconds of a process and its children."""

    pid: int

    def seconds(self) -> float:
        total = 0.0
        process = psutil.Process(self.pid)
        for each in [process, *process.children(recursive=True)]:
            times = each.cpu_times()
            total += times.user + times.system
        return total


def measure(
    address: str,
    daemon_pid: int,
    metrics_port: int,
    broker_pid: int | None,
    generators: list[Generator],
    *,
    stage: str,
    rate: float,
    record: int,
    seconds: float,
    query_rate: float,
    drain_s: float,
) -> dict[str, Any]:
    """Run one rate for a while; what was sustained, how fresh, how fast the answers, at whose expense."""
    for generator in generators:
        generator.target.stage = stage
    stop = fork.Event()
    programs = ["pagerank", "components", "hops"]
    ids = np.unique(np.concatenate([one.churn.src[: 100_000 // len(generators)] for one in generators]))
    cpu = {"daemon": Cpu(daemon_pid)} | ({"broker": Cpu(broker_pid)} if broker_pid else {})
    targets = [generator.target for generator in generators]
    every = record * len(generators) / rate
    ahead_bytes = psutil.virtual_memory().available // 4 // len(generators)
    sending = [
        in_background(
            generate, one, Schedule(number * record / rate, every, int(seconds / every) or 1, record), ahead_bytes
        )
        for number, one in enumerate(generators)
    ]
    for one in sending:
        one.recv()
    queries_out = in_background(query, address, targets, programs, ids, query_rate, stop)
    time.sleep(1.0)
    before = {name: part.seconds() for name, part in cpu.items()}
    stood = standing(metrics_port, daemon_pid)
    started = time.monotonic() + 0.2
    for one in sending:
        one.send(started)
    sent: list[Sent] = [one.recv() for one in sending]
    for generator, its in zip(generators, sent, strict=True):
        generator.churn.present[:] = its.present
    due = np.concatenate([its.due for its in sent])
    with Client(address, timeout=drain_s + 10) as client:
        reached = wanted(generators, [int(its.offsets[-1]) for its in sent])
        client.wait(min_offsets=reached, timeout_ms=int(drain_s * 1000))
        elapsed = time.monotonic() - started
        used = {name: part.seconds() - before[name] for name, part in cpu.items()}
        times = between(stood, standing(metrics_port, daemon_pid), elapsed)
        time.sleep(0.1)
        stop.set()
        answers = queries_out.recv()
        edges = client.stats()["edges"]
    for one in sending:
        one.recv()  # else the next stage has the disk's work, too
    seen = [seen_at(its.offsets, answers[:, [0, 2 + number]]) for number, its in enumerate(sent)]
    # The first second is warming up: the first epochs after a pause are not what a stream sees.
    since = due.min() + min(1.0, seconds / 2)
    warm = due > since
    files = [by_file(target.name, *each, since) for target, *each in zip(targets, sent, seen, strict=True)]
    settled = 1e3 * (np.concatenate(seen) - due)[warm]
    late = 1e3 * (np.concatenate([its.written for its in sent]) - due)[warm]
    latency = answers[(answers[:, 0] > due.min()) & (answers[:, 0] < due.max()), 1] * 1000
    memory = sum(p.memory_info().rss for p in [psutil.Process(daemon_pid), *psutil.Process(daemon_pid).children()])
    updates = due.size * record
    return {
        "stage": stage,
        "record": record,
        "generators": len(generators),
        "rate asked": int(rate),
        "updates/s": int(updates / max(elapsed, due.max() - due.min() + record / rate)),
        "fresh p50 ms": float(np.percentile(settled, 50)),
        "fresh p99 ms": float(np.percentile(settled, 99)),
        "written late p99 ms": float(np.percentile(late, 99)),
        "made ahead": sum(its.made_ahead for its in sent) / due.size,
        "query p50 ms": float(np.percentile(latency, 50)),
        "query p99 ms": float(np.percentile(latency, 99)),
        "query p99.9 ms": float(np.percentile(latency, 99.9)),
        "daemon cores": used["daemon"] / elapsed,
        "broker cores": used.get("broker", 0.0) / elapsed,
        "generator cores": sum(its.cpu_seconds for its in sent) / elapsed,
        "edges": int(edges),
        "bytes/edge": memory / edges,
        "times": times,
        "files": files,
    }


def by_file(name: str, sent: Sent, seen: np.ndarray, since: float) -> dict[str, Any]:
    """Of a partition's or file's records due since then: milliseconds from when they were due until they were
    written, until they were seen, and from the one to the other."""
    spans = {
        "written late": sent.written - sent.due,
        "fresh": seen - sent.due,
        "seen after it": seen - sent.written,
    }
    return {"file": name} | {
        f"{what} p{percentile} ms": 1e3 * float(np.percentile(span[sent.due > since], percentile))
        for what, span in spans.items()
        for percentile in (50, 99)
    }


def seen_at(offsets: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """When the first answer came, of (answered at, visible offset), that covers the record before each offset."""
    order = np.argsort(answers[:, 0])
    answered, visible = answers[order, 0], np.maximum.accumulate(answers[order, 1])
    first = np.searchsorted(visible, offsets)
    assert first.max() < visible.size, "an answer must cover every record by now"
    return answered[first]


# -- the daemon under load ----------------------------------------------------------------------------------

CONFIG = """
[source]
{source}
[dead_letters]
path = "{folder}/dead"
[[program]]
name = "bfs"
id = "hops"
source = {root}
[[program]]
name = "components"
[[program]]
name = "pagerank"
tolerance = 1e-3
[server]
listen = ["unix:{folder}/s"]
[metrics]
listen = "127.0.0.1:{metrics_port}"
[checkpoint]
path = "{folder}/checkpoints"
interval = {checkpoint_s}
[log]
format = "plain"
"""


def run_source(kind: str, churn: Churn, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a daemon on one kind of source, load it, and measure every rate."""
    folder = Path(tempfile.mkdtemp(prefix="graphtide-bench-", dir=arguments.folder))
    churn.present[:] = False
    n = arguments.generators
    # Each has the edges that producers place in its partition.
    parts = [churn] if n == 1 else churn.divided(partition_of(churn.src, n), n)
    broker = None
    targets: list[Target]
    try:
        if kind == "kafka":
            from graphtide.ops.kafka import DevKafka

            broker = DevKafka()
            broker.start()
            retention = {"retention.bytes": str(1 << 30), "segment.bytes": str(1 << 27)}
            broker.create_topic(TOPIC, n, retention)
            targets = [KafkaTarget(broker.bootstrap, number) for number in range(n)]
            source = f'kind = "kafka"\nbootstrap_servers = ["{broker.bootstrap}"]\ntopics = ["{TOPIC}"]'
        else:
            (folder / "spool").mkdir()
            targets = [SpoolTarget(folder / "spool", number) for number in range(n)]
            source = f'kind = "spool"\npath = "{folder}/spool"'
        root = int(np.bincount(churn.src).argmax())
        metrics_port = free_port()
        text = CONFIG.format(
            source=source,
            folder=folder,
            root=root,
            metrics_port=metrics_port,
            checkpoint_s=arguments.checkpoint_seconds,
        )
        (folder / "config.toml").write_text(text)
        with open(folder / "log", "wb") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "graphtide", "run", "--config", str(folder / "config.toml")],
                stdout=log,
                stderr=log,
            )
        try:
            broker_pid = None if broker is None else broker.pid
            generators = [*map(Generator, targets, parts)]
            return _drive(f"unix:{folder}/s", daemon.pid, metrics_port, broker_pid, generators, kind, arguments)
        finally:
            daemon.terminate()
            if daemon.wait(120) != 0:
                print((folder / "log").read_text()[-3000:])
    finally:
        if broker is not None:
            broker.close()
        shutil.rmtree(folder, ignore_errors=True)


def _drive(
    address: str,
    daemon_pid: int,
    metrics_port: int,
    broker_pid: int | None,
    generators: list[Generator],
    kind: str,
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    client = _connect(address)
    started = time.monotonic()
    loading = []
    for generator in generators:
        generator.target.stage = "00-load"
        loading.append(in_background(load_edges, generator, 10_000))
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{kind}: loading", total=sum(one.churn.settles_at for one in generators))
        loaded_to = _watched(
            lambda: [one.recv() for one in loading], lambda: bar.update(task, completed=client.stats()["edges"])
        )
        _watched(
            lambda: client_wait(address, wanted(generators, loaded_to)),
            lambda: bar.update(task, completed=client.stats()["edges"]),
        )
    seconds = time.monotonic() - started
    print(f"{kind}: loaded {client.stats()['edges']:,} edges in {seconds:.1f} s", flush=True)
    client.close()
    for one in generators:
        one.churn.present[: one.churn.settles_at] = True
    rows = []
    for number, (rate, record, seconds) in enumerate(arguments.rates, 1):
        row = measure(
            address,
            daemon_pid,
            metrics_port,
            broker_pid,
            generators,
            stage=f"{number:02}-{kind}",
            rate=rate,
            record=record,
            seconds=seconds,
            query_rate=arguments.query_rate,
            drain_s=120,
        )
        rows.append(row)
        show_rows("so far", rows)
    return rows


def show_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """What was measured, by file, and where the daemon's time went."""
    show(title, [{name: value for name, value in row.items() if name not in ("times", "files")} for row in rows])
    show("by partition or file", [file for row in rows for file in row["files"]])
    names = dict.fromkeys(name for row in rows for name in row["times"])
    times = [{"stage": row["stage"]} | {name: row["times"].get(name, 0.0) for name in names} for row in rows]
    show("an epoch of the daemon", times)


def client_wait(address: str, offsets: dict[str, Any]) -> None:
    with Client(address, timeout=600) as client:
        client.wait(min_offsets=offsets, timeout_ms=590_000)


def _watched(work: Callable[[], Any], tick: Callable[[], None]) -> Any:
    """The result of ``work``, run on a thread while ``tick`` is called now and then."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        while not wait([running], timeout=0.5).done:
            tick()
        return running.result()


def _connect(address: str) -> Client:
    deadline = time.monotonic() + 180
    while True:
        try:
            client = Client(address, timeout=60)
            client.stats()
            return client
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def run_baseline(churn: Churn, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The SciPy script under the same load: at each rate it takes whatever is due, recomputes, and goes on."""
    churn.present[:] = False
    for _ in churn.load(arguments.edges):
        pass
    loaded = churn.present
    script = ScipyRecompute(2**arguments.scale, churn.src[loaded], churn.dst[loaded], 1e-3)
    first = churn.next(10_000)
    script.step(first.src, first.dst, first.ops)
    rows = []
    for rate, record, _ in arguments.rates:
        # Made ahead, as those for the daemon are.
        ahead = [churn.next(record) for _ in range(int(arguments.baseline_seconds * rate / record) + 1)]
        fresh: list[np.ndarray] = []
        steps, done, start = [], 0, time.monotonic()
        while (now := time.monotonic()) < start + arguments.baseline_seconds or not steps:
            due = int((now - start) * rate / record) * record
            if due == done:
                time.sleep(record / rate)
                continue
            part = ahead[done // record : due // record]
            columns = (np.concatenate([getattr(one, name) for one in part]) for name in ("src", "dst", "ops"))
            steps.append(script.step(*columns))
            fresh.append(time.monotonic() - (start + np.arange(done, due, record) / rate))
            done = due
        # The script starts with nothing waiting; what comes after its first step is what a stream sees.
        settled = np.concatenate(fresh[1:] or fresh) * 1000
        rows.append(
            {
                "rate asked": int(rate),
                "updates/s": int(done / (time.monotonic() - start)),
                "step median ms": float(np.median(steps)) * 1000,
                "fresh p50 ms": float(np.percentile(settled, 50)),
                "fresh p99 ms": float(np.percentile(settled, 99)),
            }
        )
    return rows


def parse_rate(text: str, seconds: float) -> tuple[float, int, float]:
    """(updates per second, edges per record, seconds) of ``RATE[xRECORD[xSECONDS]]``."""
    rate, record, own_seconds = (*text.split("x"), "", "")[:3]
    return float(rate), int(record or 10_000), float(own_seconds or seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument(
        "--pool", type=int, help="distinct pairs (default: 20 per vertex, less where that is dense)"
    )
    parser.add_argument("--sources", default="spool,kafka")
    parser.add_argument("--rates", default="500000x10000,10000x100", help="RATE[xEDGES_PER_RECORD[xSECONDS]],...")
    parser.add_argument("--baseline-seconds", type=float, default=20, help="SciPy at each rate; 0: leave it out")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--generators", type=int, default=1, help="processes that send, each to its own partition")
    parser.add_argument("--query-rate", type=float, default=500)
    parser.add_argument("--checkpoint-seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="where the spool and the checkpoints go")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.rates = [parse_rate(text, arguments.seconds) for text in arguments.rates.split(",")]
    pool = arguments.pool or min(20_000_000 * 2**arguments.scale // 2**20, 4**arguments.scale // 8)
    print(
        f"making {pool:,} distinct RMAT pairs over 2**{arguments.scale} vertices, seed {arguments.seed}",
        flush=True,
    )
    churn = Churn(scale=arguments.scale, pool=pool, seed=arguments.seed)
    arguments.edges = churn.settles_at
    result: dict[str, Any] = {"machine": machine(), "parameters": {k: str(v) for k, v in vars(arguments).items()}}
    result["baseline"] = run_baseline(churn, arguments) if arguments.baseline_seconds else []
    show("SciPy: PageRank and components recomputed from the ranks before, again and again", result["baseline"])
    result["rows"] = []
    for kind in arguments.sources.split(","):
        result["rows"] += run_source(kind, churn, arguments)
    show_rows(
        f"graphtide: BFS, components and PageRank kept, queries at {arguments.query_rate:g}/s", result["rows"]
    )
    slow = {row["rate asked"]: row["fresh p99 ms"] for row in result["baseline"]}
    result["ratios"] = {}
    for row in result["rows"] if slow else ():
        ratio = slow[row["rate asked"]] / row["fresh p99 ms"]
        result["ratios"][row["stage"]] = ratio
        print(f"{row['stage']}: SciPy's freshness p99 at {row['rate asked']:,}/s is {ratio:.1f} times ours")
    save(arguments.json, result)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
