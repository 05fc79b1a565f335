"""The audit in the daemon: its budget, what becomes of its findings, and a running service broken on purpose."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE_S

from graphtide import Client
from graphtide.compute.audit.auditor import Pass, Step
from graphtide.compute.engine import STORAGE
from graphtide.compute.program import Violation
from graphtide.daemon.config.settings import Config
from graphtide.daemon.engine import auditing, pipeline
from graphtide.daemon.engine.auditing import BackgroundAudit
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.service import Service
from graphtide.ops.metrics import Metrics

EPOCH = (3, 7)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Everything of the audit that is exposed: (name, label values by label name) -> value."""
    text = generate_latest(metrics.registry).decode()
    return {
        (
            sample.name.removeprefix("graphtide_audit_"),
            tuple(value for _, value in sorted(sample.labels.items())),
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("graphtide_audit_")
    }


class Script:
    """Stands in for the auditor: steps that take so many seconds, on a clock that they move."""

    def __init__(self, *steps: tuple[float, str, tuple[Violation, ...]], whole: Sequence[int] = ()) -> None:
        self.steps = steps
        self.whole = whole
        self.now = 100.0
        self.at = 0
        self.passes = 0
        self.left_out: tuple[str, ...] = ()
        self.is_behind = False

    @property
    def coverage(self) -> float:
        return self.at / len(self.steps)

    @property
    def is_between_passes(self) -> bool:
        return self.at == 0

    def next_is_whole(self, seconds: float) -> bool:
        assert seconds == auditing.SLICE_S
        return self.at in self.whole

    def step(self, seconds: float, epoch: tuple[int, int]) -> Step:
        assert seconds == auditing.SLICE_S
        took, target, violations = self.steps[self.at]
        self.now += took
        self.at = (self.at + 1) % len(self.steps)
        self.passes += self.at == 0
        ended = Pass(epoch, epoch, 1.0, len(violations), self.left_out) if self.at == 0 else None
        return Step(target, violations, 10, took, ended)


def budgeted(script: Script, metrics: Metrics | None = None, **options: Any) -> BackgroundAudit:
    settings = {"share": 0.1, "repair": "off", **options}
    return BackgroundAudit(
        script,  # type: ignore[arg-type]
        metrics or Metrics(),
        lambda vertices: [1000 + vertex for vertex in vertices],
        clock=lambda: script.now,
        **settings,
    )


def quiet(seconds: float = 0.001) -> tuple[float, str, tuple[Violation, ...]]:
    return (seconds, "hops", ())


def idle() -> bool:
    return False


def busy() -> bool:
    return True


# -- the budget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_it_takes_its_share_of_the_time_and_no_more(share: float) -> None:
    script = Script(*[quiet(0.003)] * 1_000_000)
    audit = budgeted(script, share=share)
    begun, turns = script.now, 0
    while script.now < begun + 100:
        script.now += 0.01
        audit.run(EPOCH, idle)
        turns += 1
    assert audit.stats()["seconds"] / (script.now - begun) == pytest.approx(share, rel=0.02)


def test_none_is_none() -> None:
    script = Script(quiet())
    audit = budgeted(script, share=0.0)
    for _ in range(100):
        script.now += 10
        assert audit.run(EPOCH, idle) == []
    assert script.passes == 0


def test_a_long_step_is_paid_for_before_the_next() -> None:
    script = Script(quiet(1.0), *[quiet()] * 10_000)
    audit = budgeted(script)
    script.now += 5
    audit.run(EPOCH, idle)
    assert script.at == 1
    for _ in range(8):  # what it took is time that earned, too
        script.now += 1
        audit.run(EPOCH, idle)
        assert script.at == 1
    script.now += 1
    audit.run(EPOCH, idle)
    assert script.at > 1


def test_time_that_was_not_used_makes_no_burst() -> None:
    script = Script(*[quiet(0.002)] * 10_000)
    audit = budgeted(script)
    script.now += 3600
    audit.run(EPOCH, idle)
    assert script.at == pytest.approx(auditing.CREDIT_S_MAX / 0.002, abs=2)


def test_updates_that_wait_get_their_turn_after_one_slice() -> None:
    script = Script(*[quiet()] * 10_000)
    audit = budgeted(script)
    for turn in range(1, 20):
        script.now += 1
        audit.run(EPOCH, busy)
        assert script.at == turn


@pytest.mark.parametrize("quiet_moment", [True, False])
def test_a_step_that_must_be_run_whole_waits_for_a_quiet_moment_but_not_for_ever(quiet_moment: bool) -> None:
    script = Script(quiet(), quiet(), quiet(), whole=(1,))
    audit = budgeted(script)
    script.now += 1
    audit.run(EPOCH, busy)
    for _ in range(9):
        script.now += 1
        audit.run(EPOCH, busy)
        assert script.at == 1
    if quiet_moment:
        audit.run(EPOCH, idle)
        assert script.passes >= 1
    else:
        script.now += auditing.PATIENCE_S
        audit.run(EPOCH, busy)
        assert script.at == 2


@pytest.mark.parametrize("caught_up", [True, False])
def test_while_the_host_is_behind_every_step_is_put_off_but_not_for_ever(caught_up: bool) -> None:
    script = Script(quiet(), quiet(), quiet())
    audit = budgeted(script)
    script.now += 1
    script.is_behind = True
    for _ in range(9):
        script.now += 1
        audit.run(EPOCH, idle)
        assert script.at == script.passes == 0
    if caught_up:
        script.is_behind = False
    script.now += 1 if caught_up else auditing.PATIENCE_S
    audit.run(EPOCH, busy)
    assert script.at == 1


def test_small_graphs_are_not_audited_all_the_time() -> None:
    script = Script(quiet(1e-6))
    audit = budgeted(script)
    for _ in range(1000):
        script.now += 0.01
        audit.run(EPOCH, idle)
    assert 8 <= script.passes <= 11


# -- findings -------------------------------------------------------------------------------------------------

COUNT = Violation("count", "1 vertices: the count is not the sum", (5, 6))


def test_findings_are_counted_and_logged_with_external_ids(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(storage_rules=("mirror",))
    script = Script((0.001, "paths", (COUNT, COUNT)), (0.002, STORAGE, (Violation("mirror", "2 arcs"),)))
    audit = budgeted(script, metrics)
    assert samples(metrics)["violations_total", ("storage", "mirror")] == 0
    script.now += 10
    with caplog.at_level(logging.ERROR):
        assert audit.run(EPOCH, idle) == []
    assert (
        "program paths is wrong at epoch (3, 7): count: 1 vertices: the count is not the sum (vertices 1005, 1006)"
        in (caplog.text)
    )
    assert "the storage is wrong at epoch (3, 7): mirror: 2 arcs" in caplog.text
    seen = samples(metrics)
    assert (
        seen["violations_total", ("paths", "count")] == 2 and seen["violations_total", ("storage", "mirror")] == 1
    )
    assert seen["passes_total", ()] == 1 and seen["coverage_ratio", ()] == 1
    assert seen["seconds_total", ()] == pytest.approx(0.003) and seen["edges_read_total", ()] == 20
    assert seen["pass_timestamp_seconds", ()] == pytest.approx(time.time(), abs=60)
    stats = audit.stats()
    assert stats["violations"] == {"paths": {"count": 2}, "storage": {"mirror": 1}}
    assert stats["passes"] == 1 and stats["last_pass"]["first_epoch"] == [3, 7] == stats["last_pass"]["last_epoch"]


def test_a_pass_says_which_programs_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    metrics, script = Metrics(), Script(quiet())
    script.left_out = ("paths", "ranks")
    audit = budgeted(script, metrics)
    for _ in range(3):
        script.now += 10
        audit.run(EPOCH, idle)
    assert audit.stats()["last_pass"]["left_out"] == ["paths", "ranks"]
    assert caplog.text.count("audit: quarantined programs are left out: paths, ranks") == 1
    assert samples(metrics)["left_out_programs", ()] == 2
    script.left_out = ()
    script.now += 10
    audit.run(EPOCH, idle)
    assert audit.stats()["last_pass"]["left_out"] == [] and samples(metrics)["left_out_programs", ()] == 0


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(*[(0.0001, "paths", (COUNT,))] * 100)
    audit = budgeted(script)
    script.now += 10
    audit.run(EPOCH, idle)
    assert script.passes == 1
    assert caplog.text.count("is wrong") == auditing.LOGGED_MAX
    script.now += 10
    audit.run(EPOCH, idle)
    assert caplog.text.count("is wrong") == 2 * auditing.LOGGED_MAX


def test_a_program_is_repaired_once_a_pass_and_only_when_asked_for() -> None:
    steps = [(0.001, "paths", (COUNT,)), (0.001, "paths", (COUNT,)), (0.001, "hops", (COUNT,)), quiet()]
    script = Script(*steps)
    audit = budgeted(script, repair="restart")
    for wrong in (["paths"], ["hops"], []):
        script.now += 0.1
        assert audit.run(EPOCH, idle) == wrong
        audit.repaired(wrong)
    assert script.passes == 1 and audit.stats()["repairs"] == {"paths": 1, "hops": 1}
    script.now += 10
    assert audit.run(EPOCH, idle) == ["paths"]


def test_nothing_is_repaired_once_the_storage_is_wrong() -> None:
    script = Script((0.001, STORAGE, (Violation("mirror", "2 arcs"),)), (0.001, "paths", (COUNT,)))
    audit = budgeted(script, repair="restart")
    for _ in range(5):
        script.now += 10
        assert audit.run(EPOCH, idle) == []
    assert audit.stats()["violations"]["paths"]["count"] == 5


# -- a service that runs --------------------------------------------------------------------------------------


class Running:
    """The whole daemon in this process, its arrays within reach."""

    def __init__(self, folder: Path, stack: ExitStack, repair: str) -> None:
        self.address = f"unix:{folder}/s"
        config = Config.model_validate(
            {
                "source": {"path": folder / "spool"},
                "dead_letters": {"path": folder / "dead-letters"},
                "checkpoint": {"path": folder / "checkpoints"},
                "server": {"listen": [self.address]},
                "metrics": {"listen": "off"},
                "audit": {"share": 0.5, "repair": repair},
                "program": [
                    {"name": "bfs", "id": "hops", "source": 0},
                    {"name": "sspaths", "id": "paths", "source": 0},
                    {"name": "components", "id": "parts"},
                    {"name": "pagerank", "id": "ranks"},
                ],
            }
        )
        (folder / "spool").mkdir()
        # Diamonds in a row: 2^k shortest paths to 3 k, more than can be told exactly at the end.
        src = np.array([*range(0, 180, 3), *range(0, 180, 3), *range(1, 180, 3), *range(2, 180, 3)])
        dst = np.array([*range(1, 180, 3), *range(2, 180, 3), *range(3, 181, 3), *range(3, 181, 3)])
        with SpoolWriter(folder / "spool") as spool:
            spool.append(encode_msgpack(src, dst))
        self.service = Service(config, stack)
        self.service.reserve()
        self.service.startup()
        stack.callback(self.service.shutdown)
        self.client = stack.enter_context(Client(self.address, timeout=30))
        self.until(lambda: self.client.stats()["edges"] == 240)

    def until(self, holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.client.stats().content
            time.sleep(0.02)

    def program(self, id: str) -> Any:
        return next(program for program in self.service.engine.programs if program.id == id)

    def seen(self, name: str, *labels: str) -> float:
        return samples(self.service.metrics).get((name, labels), 0.0)


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Running]:
    # A Unix socket's path has room for about a hundred characters.
    with ExitStack() as stack:
        yield Running(tmp_path_factory.mktemp("a"), stack, request.param)


def _break(running: Running) -> dict[str, set[str]]:
    """Damage every program where no update will come by; the rules of which one must be named: which one of them
    finds it depends on how far a pass has come."""
    columns = running.program("hops").columns()["word"]
    columns[3] += np.uint64(1 << 32)
    running.program("paths").columns()["count"][30] += 5
    forest = running.program("parts")._forest
    forest.size[forest.handle[0]] += 1
    running.program("ranks").columns()["estimate"][9] *= 2
    return {"hops": {"value", "levels"}, "paths": {"count"}, "parts": {"size"}, "ranks": {"pagerank-residual"}}


@pytest.mark.parametrize("running", ["restart"], indirect=True)
def test_a_running_daemon_finds_what_is_broken_and_puts_it_right(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "STATISTICS_INTERVAL_S", 0.1)
    before = running.client.get("paths", [30, 60]).values.tolist()
    assert before == [2.0**10, 2.0**20]
    many = running.client.get("paths", [60, 177, -1])
    assert many.values.tolist() == [2.0**20, 2.0**53, None]
    assert many.saturated is not None and many.saturated.tolist() == [False, True, False]
    running.until(lambda: running.seen("passes_total") >= 1)
    assert running.client.stats()["audit"]["violations"] == {}
    epoch = running.client.stats().epoch
    rules = _break(running)
    running.until(lambda: all(running.seen("repairs_total", id) for id in rules))
    passes = running.seen("passes_total")
    running.until(lambda: running.seen("passes_total") >= passes + 2)
    running.until(lambda: running.client.stats()["audit"]["passes"] >= passes + 2)
    stats = running.client.stats()
    shown = stats["audit"]
    assert all(rules[id] & set(shown["violations"][id]) for id in rules)
    assert set(shown["repairs"]) == set(rules)
    assert shown["last_pass"]["violations"] == 0
    assert shown["last_pass"]["first_epoch"] == shown["last_pass"]["last_epoch"] == list(stats.epoch)
    assert stats.epoch[1] >= epoch[1] + 4 - 1  # a repair is an epoch of its own, also of two programs at once
    result = running.client.get("paths", [30, 60])
    assert result.values.tolist() == before and result.saturated is None
    assert running.client.get("hops", [3]).values.tolist() == [2]
    assert not any(running.service.engine.audit().values())


@pytest.mark.parametrize("running", ["restart"], indirect=True)
def test_what_was_published_otherwise_is_published_anew(running: Running) -> None:
    ids = np.arange(181)
    right = running.client.get("hops", ids).values.tolist()
    assert None not in right
    vertex = int(running.service.index.lookup(np.array([60]))[0])
    running.service.link.published("hops").columns["word"][vertex] += np.uint64(7 << 32)
    running.until(lambda: running.seen("violations_total", "hops", "published") == 1)
    running.until(lambda: running.seen("repairs_total", "hops") == 1)
    assert running.client.get("hops", ids).values.tolist() == right


@pytest.mark.parametrize("running", ["off"], indirect=True)
def test_without_repair_it_is_shown_and_left(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    rules = _break(running)
    running.until(lambda: all(running.seen("violations_total", id, rule) for id in rules for rule in rules[id]))
    assert "program paths is wrong at epoch" in caplog.text
    assert not any(running.seen("repairs_total", id) for id in rules)
    assert running.service.engine.audit()["paths"]


@pytest.mark.parametrize("running", ["restart"], indirect=True)
def test_a_storage_that_contradicts_itself_is_never_repaired(running: Running) -> None:
    """Nor is any program from then on. One that was audited before the storage was may have been."""
    running.service.graph.in_rows().keys[0] ^= np.uint64(1)
    running.until(lambda: running.seen("violations_total", "storage", "mirror") > 0)
    ids = [program.id for program in running.service.engine.programs]
    repairs = [running.seen("repairs_total", id) for id in ids]
    passes = running.seen("passes_total")
    running.until(lambda: running.seen("passes_total") >= passes + 2)
    assert running.seen("violations_total", "hops", "parent-edge") > 0
    assert [running.seen("repairs_total", id) for id in ids] == repairs
