"""What answers cost a daemon that is being fed, and what feeding costs those who ask.

    python3 benchmarks/serve.py [--seconds 60] [--cores 2] [--scale 17] [--json FILE]

A daemon (BFS, components, PageRank; a spool) has ``--cores`` cores, those who feed and ask it the others of this
machine, if there are any. It holds three quarters of a pool of RMAT edges, and is fed upserts and deletions (a
fifth), a thousand a record. Its peak is what it takes when there is always more, before and after the requests.
Then, each for so many seconds:

- 2,000 requests a second (ten values, a page of neighbours, the best ten, statistics) over the socket, and as many
  over HTTP, at rest, at half and at full peak (``asking.py``: open loop, from the moment each was to be sent).
  ``echo``: as many to a server on the daemon's cores that does nothing for them: the least that an answer can take
  there; ``spins``: to one that is at work for each of them as long as the query server is. With ``--at-once``
  those who ask never wait for a core themselves;
- 1,000 subscribers to a hundred vertices each, at a fixed rate of updates: from the publication of an epoch to
  each who hears of it, and what the daemon spends with and without them;
- a scrape of the metrics, idle and at full peak;
- the peak with changed results written to files (with ``--kafka`` to a topic, too) and without, in turns;
- the peak with subscribers who read all that there is, who never read, and who come and go without end
  (``hostile.py``), each in turns with none: updates a second, and what the engine's process takes of the processor
  for a million of them, which says what they cost it where they have no share of its cores. ``fixed ms``: what
  work that is always the same took meanwhile; ``engine by fixed``: the engine's time in units of that, since a
  core of a virtual machine is not always as fast.

``--only requests,subscribers,scrape,results,hostile`` leaves out the others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import psutil
from asking import (
    CHOSEN,
    KINDS,
    PERCENTILES,
    Load,
    asked,
    can_ask_at_once,
    echo,
    fork,
    percentile_of,
    published,
    told,
)
from beside import encoded, running
from connections import cpu_seconds
from end_to_end import Cpu
from report import machine, save, show

from graphtide import Client
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn

RECORD = 1000
RECORDS = 1000
"""So many are made, and sent over and over."""
AHEAD = 50
"""So many records lie in the spool beyond what is answered for, when there is always more."""
FAR_AHEAD = 1000
"""And so many where answers may be late: the stream must not wait for them."""
ALIKE_EPOCHS = "[epoch]\nupdates_max = 100000\nqueue_updates_max = 400000\n"
"""Where processor times are compared: a larger epoch costs less for each of its updates."""
LOAD = "a-load"
PARTS = ("requests", "subscribers", "scrape", "results", "hostile")
SPIN_S = 0.00018
"""About what an answer of the query server takes of a processor."""
SETTLE_S_MAX = 1.0
"""The first epochs after a pause are not what a stream sees."""
_NOTHING = {"written": {"transactions": 0, "records": 0}, "lag": {"seconds": 0.0}}
CONFIG = """
source = {{ kind = "spool", path = "{folder}/spool" }}
dead_letters = {{ path = "{folder}/dead-letters" }}
checkpoint = {{ path = "{folder}/checkpoints", interval = 3600 }}
metrics = {{ listen = "127.0.0.1:0" }}
program = [{{ name = "bfs", source = 1 }}, {{ name = "components" }}, {{ name = "pagerank" }}]
[server]
listen = ["unix:{folder}/s"]
http = ["unix:{folder}/http"]
limits = {{ connections_max = 8192, subscriptions_max = 16384 }}
"""


# -- cores ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_cores(chosen: set[int]) -> Iterator[None]:
    """What is started within the block runs on these cores; nothing changes where there are none."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def dealt(cores: int) -> tuple[set[int], set[int]]:
    """Those of the daemon, and those of everybody else: the same, where there are no others."""
    there = sorted(os.sched_getaffinity(0))
    daemon = set(there[:cores])
    return daemon, set(there[cores:]) or daemon


# -- a daemon, and what it is fed -----------------------------------------------------------------------------


class Fed:
    """A loaded daemon, and records for it."""

    def __init__(
        self, folder: Path, client: Client, process: psutil.Process, records: list[bytes], settle_s: float
    ) -> None:
        """``records``: of ``RECORD`` updates each, sent over and over; ``settle_s``: how long before it counts."""
        self.folder = folder
        self.client = client
        self.pid = process.pid
        self.address = f"unix:{folder}/s"
        self._records = records
        self._settle_s = settle_s
        self._stages = 0

    def updates(self) -> int:
        return int(self.client.call("stats")["updates_applied"])

    def server_seconds(self) -> float:
        """Processor time of the query server so far: of the daemon's children."""
        return sum(cpu_seconds(child.pid) for child in psutil.Process(self.pid).children(recursive=True))

    def paced(self, seconds: float) -> Callable[[], None]:
        """Something to do for so long, and until some updates were taken."""

        def wait() -> None:
            before = self.updates()
            time.sleep(seconds)
            while self.updates() == before:
                time.sleep(0.01)

        return wait

    def during(
        self, rate: float | None, work: Callable[[], Any], ahead: int = AHEAD
    ) -> tuple[Any, dict[str, float]]:
        """What ``work`` returns, and what was taken meanwhile: fed at a rate, or (None) as fast as it is taken.

        ``ahead``: so many records lie in the spool then beyond what is answered for.
        """
        self._stages += 1
        over = fork.Event()
        pipe, its = fork.Pipe(duplex=False)
        name = f"b-{self._stages:04}"
        feeding = fork.Process(
            target=_feed, args=(self.address, self.folder / "spool", name, self._records, rate, ahead, over, its)
        )
        feeding.start()
        its.close()
        time.sleep(self._settle_s)
        cpu, begun, before = Cpu(self.pid), time.monotonic(), self.client.stats()
        spent = cpu.seconds()
        try:
            result = work()
            seconds, after = time.monotonic() - begun, self.client.stats()
            taken = after["updates_applied"] - before["updates_applied"]
            spent = cpu.seconds() - spent
        finally:
            over.set()
        offset = pipe.recv()
        feeding.join()
        self.client.wait({f"{name}.msgpack": offset}, timeout_ms=600_000)
        epochs = max(after.epoch[1] - before.epoch[1], 1)
        return result, {"updates/s": taken / seconds, "an epoch": taken / epochs, "daemon cores": spent / seconds}


def _feed(
    address: str, spool: Path, name: str, records: list[bytes], rate: float | None, ahead: int, over: Any, out: Any
) -> None:
    offsets: list[int] = []
    start = time.monotonic()
    with SpoolWriter(spool, name=name) as writer, Client(address, timeout=600) as client:
        while not over.is_set():
            writer.append(records[len(offsets) % len(records)])
            writer.flush()
            offsets.append(writer.offset)
            if rate is not None:
                time.sleep(max(start + len(offsets) * RECORD / rate - time.monotonic(), 0))
            elif len(offsets) > ahead and len(offsets) % (ahead // 5) == 0:
                client.wait({f"{name}.msgpack": offsets[-ahead]}, timeout_ms=600_000)
        out.send(writer.offset)


@contextlib.contextmanager
def fed(churn: Churn, records: list[bytes], arguments: argparse.Namespace, more: str = "") -> Iterator[Fed]:
    """A daemon that holds three quarters of the pool; ``more``: settings."""
    its, others = dealt(arguments.cores)
    with tempfile.TemporaryDirectory() as name, on_cores(others):
        folder = Path(name)
        more += f"[compute]\nnice = {arguments.nice}\n"
        (folder / "spool").mkdir()
        with contextlib.ExitStack() as stack:
            with on_cores(its):
                client, process = stack.enter_context(running(folder, CONFIG + more))
            with SpoolWriter(folder / "spool", name=LOAD) as writer:
                for part in churn.load(churn.src.size * 3 // 4, batch=100_000):
                    writer.append(encoded(part))
                offset = writer.offset
            client.wait({f"{LOAD}.msgpack": offset}, timeout_ms=600_000)
            yield Fed(folder, client, process, records, min(SETTLE_S_MAX, arguments.seconds))


@contextlib.contextmanager
def echoing(folder: Path, cores: int, name: str = "echo", spin_s: float = 0.0) -> Iterator[None]:
    """A server that does nothing for a request, or is at work for so long, on the daemon's cores."""
    ready, its = fork.Pipe(duplex=False)
    with on_cores(dealt(cores)[0]):
        process = fork.Process(target=echo, args=(str(folder / name), its, spin_s), daemon=True)
        process.start()
    its.close()
    ready.recv()
    try:
        yield
    finally:
        process.terminate()
        process.join()


# -- what is measured -----------------------------------------------------------------------------------------


def requests(daemon: Fed, peak: float, ids: np.ndarray, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    addresses = {
        "socket": daemon.address,
        "http": f"unix:{daemon.folder}/http",
        "echo": f"unix:{daemon.folder}/echo",
        "spins": f"unix:{daemon.folder}/spins",
    }
    for share in (0.0, 0.5, 1.0):
        for door in arguments.doors.split(","):
            how = arguments.rate, arguments.seconds, arguments.shares, ids, arguments.askers, arguments.at_once
            load = Load(door, addresses[door], *how)
            name = {0.0: "none", 0.5: "half", 1.0: "full"}[share]
            before = daemon.server_seconds()
            if share:
                rate = None if share == 1 else share * peak
                found, taken = daemon.during(rate, lambda: asked(load), arguments.ahead)  # noqa: B023
            else:
                nothing = dict.fromkeys(("an epoch", "daemon cores"), float("nan"))
                found, taken = asked(load), {"updates/s": 0.0, **nothing}
            spent_us = (daemon.server_seconds() - before) / found.kinds.size * 1e6
            about = {"ingest": name, "door": door, **taken, "of peak": 0.0}
            driver = {
                "server us/request": spent_us,
                "sent late p99 ms": found.late_ms,
                "failed": found.failed,
                "unanswered": found.unanswered,
            }
            rows.append({**about, "request": "all", **found.percentiles(), **driver})
            rows += [
                {**about, "request": kind, **found.percentiles(kind), **dict.fromkeys(driver, "")}
                for kind, its in zip(KINDS, arguments.shares, strict=True)
                if its
            ]
    return rows


def subscribers(daemon: Fed, ids: np.ndarray, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for count in (0, arguments.subscribers):
        pipes = told(daemon.address, count, ids, arguments.chosen, arguments.askers) if count else []
        until, (receive, send) = fork.Event(), fork.Pipe(duplex=False)
        watching = fork.Process(target=published, args=(daemon.pid, until, send), daemon=True)
        watching.start()
        send.close()
        receive.recv()
        _, taken = daemon.during(arguments.subscriber_rate, daemon.paced(arguments.seconds))
        until.set()
        moments: dict[int, float] = receive.recv()
        watching.join()
        heard = [_heard(pipe) for pipe in pipes]
        delays = delays_of(moments, np.concatenate(heard)) if heard else np.empty(0)
        rows.append(
            {
                "subscribers": count,
                "rate asked": arguments.subscriber_rate,
                **taken,
                "epochs": len(moments),
                "heard": delays.size,
                **{f"delay p{each:g} ms": percentile_of(delays * 1e3, each) for each in PERCENTILES},
            }
        )
    return rows


def _heard(pipe: Any) -> np.ndarray:
    pipe.send("enough")
    found: np.ndarray = pipe.recv()
    return found


def delays_of(moments: dict[int, float], heard: np.ndarray) -> np.ndarray:
    """Seconds from publication to whoever heard of an epoch, of those whose publication was seen."""
    if not moments:
        return np.empty(0)
    numbers = np.array(sorted(moments), float)
    when = np.array([moments[int(number)] for number in numbers])
    at = np.searchsorted(numbers, heard[:, 0])
    known = (at < numbers.size) & (numbers[np.minimum(at, numbers.size - 1)] == heard[:, 0])
    return np.maximum(heard[known, 1] - when[at[known]], 0.0)


def scrapes(daemon: Fed, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    log = (daemon.folder / "log").read_text()
    found = re.search(r"metrics at (http://\S+)", log)
    assert found is not None, log

    def scraped() -> tuple[list[float], int]:
        taken, size, ends = [], 0, time.monotonic() + arguments.seconds
        while time.monotonic() < ends:
            begun = time.perf_counter()
            with urllib.request.urlopen(found[1], timeout=60) as answer:
                size = len(answer.read())
            taken.append(time.perf_counter() - begun)
            time.sleep(arguments.scrape_pause)
        return taken, size

    engine = psutil.Process(daemon.pid)
    idle = hostile.own_seconds(engine)
    time.sleep(arguments.seconds)
    idle = hostile.own_seconds(engine) - idle
    rows = []
    for name in ("none", "full"):
        before, fed_with, spent = hostile.own_seconds(engine), {"updates/s": 0.0}, float("nan")
        if name == "none":
            taken, size = scraped()
            spent = hostile.own_seconds(engine) - before - idle
        else:
            (taken, size), fed_with = daemon.during(None, scraped)
        ms = np.array(taken) * 1e3
        rows.append(
            {
                "ingest": name,
                "updates/s": fed_with["updates/s"],
                "scrapes": ms.size,
                **{f"p{each:g} ms": percentile_of(ms, each) for each in (50, 99)},
                "processor ms": spent / ms.size * 1e3,
                "kilobytes": size / 1e3,
            }
        )
    return rows


def hostiles(daemon: Fed, ids: np.ndarray, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    doors = hostile.Doors(daemon.address, f"unix:{daemon.folder}/http")
    engine, seconds = psutil.Process(daemon.pid), arguments.seconds / arguments.turns
    rows = []
    for kind in arguments.kinds.split(","):
        turns: dict[str, list[dict[str, float]]] = {"none": [], kind: []}
        for turn in range(arguments.turns):
            for name in (list(turns), [*reversed(turns)])[turn % 2]:
                turns[name].append(_beside(daemon, engine, name, doors, ids, seconds, arguments))
        without, beside = turns["none"], turns[kind]
        rows += [_row(f"none, in turns with {kind}", without, without), _row(kind, beside, without)]
    return rows


def _beside(
    daemon: Fed,
    engine: psutil.Process,
    kind: str,
    doors: hostile.Doors,
    ids: np.ndarray,
    seconds: float,
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """One turn, with so many of a kind or with none."""

    def measured() -> dict[str, float]:
        cost, begun, before = hostile.Cost(engine), time.monotonic(), daemon.client.stats()
        daemon.paced(seconds)()
        after, lasted = daemon.client.stats(), time.monotonic() - begun
        spent = cost.ended()
        taken = after["updates_applied"] - before["updates_applied"]
        millions = taken / 1e6
        return {
            "updates/s": taken / lasted,
            "an epoch": taken / max(after.epoch[1] - before.epoch[1], 1),
            "engine s/M": spent["engine"] / millions,
            "waited s/M": spent["waited"] / millions,
            "server cores": spent["server"] / lasted,
            "own MiB": spent["own_bytes"] / 2**20,
            "fixed ms": spent["fixed"] * 1e3,
            "engine by fixed": spent["engine"] / millions / spent["fixed"],
        }

    count = arguments.hostile
    pipes = [] if kind == "none" else hostile.begun(kind, doors, count, ids, arguments.askers)
    try:
        found: dict[str, float] = daemon.during(None, measured, FAR_AHEAD)[0]
    finally:
        theirs = hostile.ended(pipes)
    return found | theirs


def _row(name: str, found: list[dict[str, float]], without: list[dict[str, float]]) -> dict[str, Any]:
    """Medians over turns; parts of what it was without, turn by turn."""

    def median(of: str) -> float:
        return float(np.median([each[of] for each in found]))

    def part(of: str) -> float:
        return float(np.median([each[of] / other[of] for each, other in zip(found, without, strict=True)]))

    rates = [each["updates/s"] for each in found]
    return {
        "subscribers": name,
        "updates/s": median("updates/s"),
        "of without": part("updates/s"),
        "spread": max(rates) / min(rates),
        "an epoch": median("an epoch"),
        "engine s/M": median("engine s/M"),
        "its of without": part("engine s/M"),
        "fixed ms": median("fixed ms"),
        "engine by fixed of without": part("engine by fixed"),
        "waited s/M": median("waited s/M"),
        "server cores": median("server cores"),
        "server MiB": max(each["own MiB"] for each in found),
        "subscribed": sum(each["subscribed"] for each in found),
        "read MB": sum(each["bytes"] for each in found) / 1e6,
    }


def results(churn: Churn, records: list[bytes], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    sinks = {"none": "", "files": '[results]\nkind = "spool"\npath = "{folder}/results"\n'}
    with contextlib.ExitStack() as stack:
        broker = None
        if arguments.kafka:
            from graphtide.ops.kafka import DevKafka

            broker = stack.enter_context(DevKafka())
            sinks["topic"] = f'[results]\nkind = "kafka"\nbootstrap_servers = ["{broker.bootstrap}"]\n'
        rates: dict[str, list[float]] = {name: [] for name in sinks}
        last: dict[str, dict[str, Any]] = {}
        for turn in range(arguments.turns):
            for name in (list(sinks), [*reversed(sinks)])[turn % 2]:
                more = sinks[name]
                if name == "topic" and broker is not None:
                    broker.create_topic(f"results-{turn}", 1)
                    more += f'topic = "results-{turn}"\n'
                with fed(churn, records, arguments, more) as daemon:
                    taken = daemon.during(None, daemon.paced(arguments.seconds / arguments.turns))[1]
                    last[name] = daemon.client.call("stats").get("results") or _NOTHING
                rates[name].append(taken["updates/s"])
    without = float(np.median(rates["none"]))
    return [
        {
            "results to": name,
            "updates/s": float(np.median(found)),
            "of without": float(np.median(found)) / without,
            "spread": max(found) / min(found),
            "transactions": last[name]["written"]["transactions"],
            "records": last[name]["written"]["records"],
            "lag s": float(last[name]["lag"]["seconds"]),
        }
        for name, found in rates.items()
    ]


# -- all of it ------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    churn = Churn(scale=arguments.scale, pool=arguments.edges, seed=3)
    ids = np.unique(churn.src[: churn.src.size // 2])
    for _ in churn.load(churn.src.size * 3 // 4):
        pass  # what deletions are chosen from
    records = [encoded(churn.next(RECORD)) for _ in range(RECORDS)]
    result: dict[str, Any] = {}

    def add(name: str, title: str, rows: list[dict[str, Any]]) -> None:
        result[name] = [{key: "-" if value != value else value for key, value in row.items()} for row in rows]
        show(title, result[name])

    if {*PARTS[:3]} & {*arguments.only}:
        with fed(churn, records, arguments) as daemon:
            about = daemon.client.stats()
            result["vertices"], result["edges"] = about["vertices"], about["edges"]

            def fed_without_end() -> dict[str, float]:
                return daemon.during(None, daemon.paced(arguments.seconds), arguments.ahead)[1]

            fed_without_end()  # the first seconds of a daemon are not what a stream sees
            peaks = [{"when": "before", **fed_without_end()}]
            rows = []
            if "requests" in arguments.only:
                spins = echoing(daemon.folder, arguments.cores, "spins", SPIN_S)
                with echoing(daemon.folder, arguments.cores), spins:
                    rows = requests(daemon, float(peaks[0]["updates/s"]), ids, arguments)
                peaks.append({"when": "after", **fed_without_end()})
            add("peak", f"{about['vertices']:,} vertices, {about['edges']:,} edges; fed without end", peaks)
            if rows:
                peak = float(np.mean([each["updates/s"] for each in peaks]))
                rows = [{**row, "of peak": row["updates/s"] / peak} for row in rows]
                title = f"{arguments.rate:g} requests a second (get: {CHOSEN} vertices)"
                add("requests", title, rows)
            if "subscribers" in arguments.only:
                title = f"subscribers to {arguments.chosen} vertices each"
                add("subscribers", title, subscribers(daemon, ids, arguments))
            if "scrape" in arguments.only:
                add("scrape", "a scrape of the metrics", scrapes(daemon, arguments))
    if "hostile" in arguments.only:
        with fed(churn, records, arguments, ALIKE_EPOCHS) as daemon:
            title = f"at full peak beside subscribers, {arguments.turns} turns of each with none"
            add("hostile", title, hostiles(daemon, ids, arguments))
    if "results" in arguments.only:
        add("results", f"changed results written, {arguments.turns} turns", results(churn, records, arguments))
    return result


def parsed_shares(text: str) -> list[float]:
    """The shares of ``KINDS`` in ``get=70,neighbors=20,...``; of those not named none."""
    given = dict(item.split("=") for item in text.split(","))
    if unknown := {*given} - {*KINDS}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    return [float(given.get(kind, 0)) for kind in KINDS]


def parsed_parts(text: str) -> list[str]:
    if unknown := {*text.split(",")} - {*PARTS}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--cores", type=int, default=2, help="of the daemon")
    parser.add_argument("--nice", type=int, default=5, help="how far ingest and the engine give way to answers")
    parser.add_argument("--scale", type=int, default=17)
    parser.add_argument("--edges", type=int, default=1_500_000, help="of the pool")
    parser.add_argument("--rate", type=float, default=2000.0, help="requests a second")
    parser.add_argument("--shares", type=parsed_shares, default="get=70,neighbors=20,top=5,stats=5")
    parser.add_argument("--doors", default="socket,http,echo", help="where they are asked")
    parser.add_argument("--ahead", type=int, default=AHEAD, help="records in the spool at full peak")
    parser.add_argument(
        "--at-once", action="store_true", help="those who ask never wait for a core (where that is permitted)"
    )
    parser.add_argument("--askers", type=int, default=2, help="processes that ask, or listen")
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--chosen", type=int, default=100, help="vertices of each subscriber")
    parser.add_argument("--subscriber-rate", type=float, default=100_000.0, help="updates a second meanwhile")
    parser.add_argument("--scrape-pause", type=float, default=0.05, help="seconds between two")
    parser.add_argument("--hostile", type=int, default=100, help="subscribers who read all, or never")
    parser.add_argument("--kinds", default=",".join(hostile.KINDS), help="of subscribers, for hostile")
    parser.add_argument(
        "--turns", type=int, default=3, help="of results out (each with a daemon of its own) and of hostile"
    )
    parser.add_argument("--kafka", action="store_true", help="write results to a real broker, too")
    parser.add_argument("--only", type=parsed_parts, default=",".join(PARTS), help="what to measure")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.at_once and not can_ask_at_once():
        print("--at-once is not permitted here: those who ask wait for a core as all others do", flush=True)
        arguments.at_once = False
    load = [round(each, 2) for each in os.getloadavg()]
    result = run(arguments)
    parameters = vars(arguments) | {"json": None}
    save(arguments.json, {"machine": machine(), "load before": load, "parameters": parameters, **result})


if __name__ == "__main__":
    main()
