"""A daemon with rows on both sides, the device an emulated one: rows move all the time, and it is killed.

``rows-fit`` (``on_emulated_device.py``) says how many bytes rows could hold on the device. The daemon is told that
memory is short, and rows leave, or that there is plenty, and ``admin.rebalance`` has rows come. Whatever moves and
whenever the daemon dies: graph, results, and what is written of them must be those of the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from conftest import skip_or_fail
from killed import SOURCE, VERTICES, VERTICES_MAX, SpoolHistory
from results_readers import FilesReader, read_up_to, require_answers
from running import Daemon
from scipy.sparse import csgraph
from test_kill import check_answers
from test_results_daemon import settled
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.daemon.engine.vertex_memory import GRAPH_BYTES, PROGRAM_BYTES
from graphtide.daemon.errors import GraphtideError
from graphtide.daemon.records.stream import offsets_to_wire
from graphtide.daemon.tools.verify import FinalGraph

PROGRAM = str(Path(__file__).with_name("on_emulated_device.py"))
PLACES = ("rows.moved", "epoch.applied", "epoch.computed", "checkpoint.copied", "checkpoint.after_rename")
PLENTY = 1 << 30
BYTES_OF_HALF = 21
"""For each edge: so many let a start put about half of the rows on the device, beside what vertices take."""

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    settings: dict[str, Any] = {
        "graph": {"vertices_max": VERTICES_MAX},
        "device": {"enabled": True, "memory": "1073741824"},
        "compute": {"place": "device"},
        "partition": {"host_rows": "owned"},
        "epoch": {"updates_max": 400, "queue_updates_max": 800},
        "checkpoint": {"interval": 0.3},
        "audit": {"full_every_epoch": False},
        "results": {"kind": "spool", "path": tmp_path / "results", "programs": ["hops", "components"]},
        "program": [
            {"name": "bfs", "id": "hops", "source": SOURCE},
            {"name": "components"},
            {"name": "pagerank", "tolerance": 1e-3},
        ],
    }
    with Daemon(tmp_path, settings, program=(PROGRAM,)) as made:
        yield made


def tell(daemon: Daemon, n_bytes: int) -> None:
    """How many bytes rows could hold on the device."""
    told = daemon.folder / "rows-fit.new"
    told.write_text(str(n_bytes))
    told.rename(daemon.folder / "rows-fit")


def held(daemon: Daemon, asked: Client) -> int:
    """How many bytes rows hold there."""
    asked.placement()  # answers between two epochs: that before has told
    return int((daemon.folder / "rows-held").read_text())


def squeeze(daemon: Daemon, asked: Client, rng: np.random.Generator) -> None:
    """Memory is short by some of the rows on the device, or there is plenty, for which these are to come back."""
    if rng.random() < 0.6:
        tell(daemon, int(held(daemon, asked) / (1 - rng.uniform(0.1, 0.15))))
    else:
        tell(daemon, PLENTY)
        asked.admin_rebalance()


def publish(history: SpoolHistory, asked: Client, records: int = 2) -> None:
    history.produce(records)
    asked.wait(offsets_to_wire(history.next_offsets), timeout_ms=int(PATIENCE_S * 1000))


def until_moved(daemon: Daemon, history: SpoolHistory, asked: Client, done: Callable[[Any], bool]) -> Any:
    """The answer to ``placement`` that will do; epochs go on until then."""
    for _ in range(60):
        placement = asked.placement()
        if done(placement):
            return placement
        publish(history, asked)
    pytest.fail(f"{asked.placement()}\n{daemon.log_tail()}")


def reasons_of_moves(placement: Any) -> set[str]:
    """Of those decisions for which rows have moved."""
    return {one["reason"] for one in placement["rebalancing"]["decisions"] if one["moved_edges"]}


def is_split(placement: Any) -> bool:
    return min(placement["edges"]) > 0


def kill(daemon: Daemon, history: SpoolHistory, rng: np.random.Generator, place: str) -> None:
    """Let it kill itself while rows move; before the first move it has a checkpoint of many."""
    tell(daemon, PLENTY)
    daemon.start(kill_at=f"{place}:{1 if place == 'rows.moved' else rng.integers(1, 6)}", ready_s=None)
    assert daemon.process is not None
    if place == "rows.moved":
        daemon.wait_ready(PATIENCE_S)
        with daemon.client() as asked:
            history.produce_source()
            publish(history, asked, 30)
            asked.checkpoint()
            assert asked.placement()["edges"] == [0, asked.stats()["edges"]]
    for _ in range(100):
        history.produce(2)
        with suppress(GraphtideError), daemon.client() as asked:
            squeeze(daemon, asked, rng)
        until(lambda: settled(daemon))
        if daemon.process.poll() is not None:
            break
    assert daemon.process.poll() == -9, f"not killed at {place}:\n{daemon.log_tail()}"


def check_topology(asked: Client, final: FinalGraph) -> None:
    """What is read of rows, whoever has them; neighbours are checked elsewhere."""
    matrix = final.matrix()
    degree = asked.degree(final.ids)
    np.testing.assert_array_equal(degree.out, np.asarray(matrix.sum(axis=1)).ravel())
    np.testing.assert_array_equal(degree.in_, np.asarray(matrix.sum(axis=0)).ravel())
    assert asked.has_edge(final.ids[final.src], final.ids[final.dst]).exists.all()
    begin = int(np.searchsorted(final.ids, SOURCE))
    hops = csgraph.dijkstra(matrix, indices=begin, unweighted=True)
    reached = asked.khop(SOURCE, 2, limit=VERTICES_MAX)
    expected = dict(zip(final.ids[hops <= 2].tolist(), hops[hops <= 2].astype(int).tolist(), strict=True))
    assert dict(zip(reached.ids.tolist(), reached.distances.tolist(), strict=True)) == expected
    placement = asked.placement(final.ids)
    assert placement["degree"] == degree.out.tolist()
    by_owner = dict.fromkeys(placement["sides"], 0)
    for owner, out in zip(placement["owner"], placement["degree"], strict=True):
        by_owner[owner] += out
    assert list(by_owner.values()) == placement["edges"] == asked.stats()["placement"]["edges"]
    ranks = asked.get("pagerank", final.ids).values
    assert asked.top("pagerank", 5).values.tolist() == sorted(ranks.tolist())[:-6:-1]


@pytest.mark.sample(among="a daemon dies")
def test_rows_move_while_it_is_killed_and_nothing_is_lost_or_doubled(
    daemon: Daemon, seed: int, run_long: bool
) -> None:
    rng = np.random.default_rng(seed)
    history = SpoolHistory(daemon.spool, rng)
    for _ in range(49 if run_long else 0):
        kill(daemon, history, rng, str(rng.choice(PLACES)))
    kill(daemon, history, rng, "rows.moved")
    final = history.final()
    with_programs = GRAPH_BYTES + len(daemon.settings["program"]) * PROGRAM_BYTES
    tell(daemon, BYTES_OF_HALF * final.src.size + with_programs * final.ids.size)
    daemon.start()
    tell(daemon, PLENTY)
    with daemon.client() as asked:
        asked.wait(offsets_to_wire(history.next_offsets), timeout_ms=int(PATIENCE_S * 1000))
        assert is_split(asked.placement())
        check_answers(asked, history.final())
        check_topology(asked, history.final())
        if run_long:
            asked.admin_rebalance()
            until_moved(daemon, history, asked, lambda found: "request" in reasons_of_moves(found))
            tell(daemon, int(held(daemon, asked) / 0.86))
            until_moved(daemon, history, asked, lambda found: "headroom" in reasons_of_moves(found))
            assert {"headroom", "request"} & set(asked.placement(np.arange(VERTICES))["why"])
        publish(history, asked)
        check_answers(asked, history.final())
        reader = FilesReader(daemon.folder / "results")
        read_up_to(reader, asked.programs().epoch)
        require_answers(asked, reader.known, history.vertices, ("hops", "components"))
    assert daemon.stop() == 0, daemon.log_tail()
    assert "Traceback" not in daemon.log.read_text()
