"""The daemon under attack: whatever is done to it, its answers stay those of the graph.

One daemon reads a real broker while updates keep coming, and one attack after the other is tried on it
(``attacks.py``). After each the daemon must catch up with everything that was produced, and every vertex's
hops, component and rank must equal what SciPy computes from the same updates; at the end, after one more kill,
too. Honest subscribers, who stay all the time, must know by then what is answered, with no gap and nothing
twice. The order is drawn from a seed, which is printed; ``--seed S`` plays it again. ``--attacks N`` says how
many are tried (six, if not), ``--attacks noise,disk_full`` which.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacks import ATTACKS, LIMITS, ON_SUBSCRIPTIONS, TOKEN, VERTICES, Attack, Stream, Target
from brokers import client
from disks import small_disk
from kafka import KafkaProducer
from running import Daemon
from stepped_clock import STEPPED
from waiting import PATIENCE_S, until
from watching import Watcher

from graphtide.daemon.tools.verify import FinalGraph
from graphtide.ops.kafka import DevKafka, held_port

pytestmark = [pytest.mark.kafka, pytest.mark.attack, pytest.mark.timeout(36_000)]

PARTITIONS = 3
# Of those there are, where none are asked for.
ATTACKS_DRAWN = 6


def check(target: Target) -> None:
    """Wait for all that was produced, and compare every vertex with SciPy, and with what subscribers were told."""
    stream = target.stream
    stream.send_good()
    offsets = stream.offsets()

    def covered() -> bool:
        assert target.lives(), f"the daemon ended:\n{target.daemon.log_tail()}"
        return target.covers(offsets)

    until(covered)
    updates = stream.updates()
    final = FinalGraph.replay(updates.src, updates.dst, updates.ops)
    with target.daemon.client() as client:
        stats = client.stats()
        assert (stats["vertices"], stats["edges"]) == (final.ids.size, final.src.size)
        hops = client.get("hops", final.ids).values.filled(2**32 - 1).astype(np.uint32)
        np.testing.assert_array_equal(hops, final.hops(0).astype(np.uint32))
        np.testing.assert_array_equal(client.get("components", final.ids).values, final.component_labels())
        np.testing.assert_allclose(client.get("pagerank", final.ids).values, final.pagerank(), rtol=1e-3)
        for watcher in target.watchers:
            watcher.check(client, final.ids)


def test_answers_stay_right_under_attack(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(seed)
    attacks = _drawn(request.config.getoption("--attacks"), rng)
    with (
        DevKafka() as broker,
        held_port() as port,
        held_port() as http_port,
        small_disk(tmp_path / "disk", megabytes=64) as disk,
    ):
        topic = f"attacked-{uuid.uuid4().hex[:8]}"
        # Records of any date are taken, and stay.
        broker.create_topic(
            topic, PARTITIONS, {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
        )
        tcp, http = ("127.0.0.1", port), ("127.0.0.1", http_port)
        kept = disk or tmp_path
        settings: dict[str, Any] = {
            "source": {"kind": "kafka", "bootstrap_servers": [broker.bootstrap], "topics": [topic]},
            "dead_letters": {"path": kept / "dead-letters"},
            "checkpoint": {"path": kept / "checkpoints", "interval": 1.0},
            "server": {
                "http": [f"http://{http[0]}:{http[1]}"],
                "limits": {**LIMITS, "timeout_ms_default": int(PATIENCE_S * 1000)},
            },
            "program": [
                {"name": "bfs", "id": "hops", "source": 0},
                {"name": "components"},
                {"name": "pagerank", "tolerance": 1e-3},
            ],
        }
        with Daemon(tmp_path, settings, STEPPED) as daemon, client(KafkaProducer, broker.bootstrap) as producer:
            daemon.listen(f"tcp://{tcp[0]}:{tcp[1]}", token=TOKEN)
            target = Target(daemon, Stream(producer, topic, PARTITIONS, rng), broker, tcp, http, disk)
            # Vertex 0 must be there before anybody asks for it.
            target.stream.send_edge(0, 1)
            target.stream.send_good(VERTICES // 10)
            daemon.start(ready_s=None)
            check(target)
            with watching(target):
                for number, attack in enumerate(attacks, 1):
                    began = time.monotonic()
                    target.stream.send_good(5)
                    said = attack(target, rng)
                    check(target)
                    took = time.monotonic() - began
                    print(
                        f"{number}/{len(attacks)} {attack.__name__}: {said}; right after {took:.1f} s", flush=True
                    )
                daemon.kill()
                daemon.start(ready_s=None)
                check(target)
            assert daemon.stop() == 0, daemon.log_tail()


@contextlib.contextmanager
def watching(target: Target) -> Iterator[None]:
    """Honest subscribers, to all vertices, to some, and to the best, until the end of the block."""
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("hops", {}),
        ("components", {}),
        ("pagerank", {"vertices": list(range(0, VERTICES, 3))}),
        ("pagerank", {"top": 20}),
    )
    try:
        with target.daemon.client() as client:
            for program, chosen in asked:
                target.watchers.append(Watcher(client, program, **chosen))
        yield
    finally:
        for watcher in target.watchers:
            watcher.end()


def _drawn(wanted: str | None, rng: np.random.Generator) -> list[Attack]:
    """Those that are named; else drawn ones, each once before one comes a second time, one on subscriptions among
    them."""
    by_name = {attack.__name__: attack for attack in ATTACKS}
    if wanted is not None and not wanted.isdigit():
        return [by_name[name] for name in wanted.split(",")]
    count = ATTACKS_DRAWN if wanted is None else int(wanted)
    rounds = -(-count // len(ATTACKS))
    order = np.concatenate([rng.permutation(len(ATTACKS)) for _ in range(rounds)])[:count]
    drawn = [ATTACKS[which] for which in order]
    if not any(attack in ON_SUBSCRIPTIONS for attack in drawn):
        drawn[-1] = ON_SUBSCRIPTIONS[int(rng.integers(len(ON_SUBSCRIPTIONS)))]
    return drawn
