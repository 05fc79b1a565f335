"""What becomes of programs that were kept where they cannot be computed, or shown, at once.

``test_at_run_time`` has all else, in a real daemon.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never
from unittest.mock import Mock

import pytest
from waiting import until

from graphtide.compute import registry
from graphtide.daemon.engine import beside
from graphtide.daemon.engine.beside import GivenUp, ReadyKernels
from graphtide.daemon.engine.follower import Since
from graphtide.daemon.engine.keeping import Keeping, _Coming
from graphtide.daemon.engine.pipeline import TIMES_INTERVAL_S, Pipeline
from graphtide.daemon.engine.standing import Standing
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.records.asked import Unwanted
from graphtide.daemon.records.position import Position
from graphtide.daemon.state.kept import KeptPrograms, read_kept
from graphtide.ops.metrics import Metrics

HOPS = {"program": "bfs", "parameters": {"source": 1}, "id": "hops"}
WANTED = Unwanted()


class Short:
    """What ``Beside`` and the engine's thread are to ``Keeping``, where there is no memory to compute anything."""

    def __init__(self) -> None:
        self.standing = Standing([], {})
        self.pipeline: Any = self
        self.engine = SimpleNamespace(require=lambda program: None, make_ready=self.make_ready)
        self.made_ready: list[tuple[str, str, int]] = []
        self.position = Position(1)
        self.between = SimpleNamespace(do=lambda work: work())
        self.tries = 0
        self.cannot_show = 0
        self.why: Exception = MemoryError("nothing can be published")

    def made(self, kind: str, id: str | None, given: Any) -> Any:
        return registry.make_program(kind, id, given)

    def ready(self, kind: str, given: Any, given_up: Unwanted) -> None:
        pass

    def make_ready(self, program: Any) -> None:
        self.made_ready.append((program.id, threading.current_thread().name, self.tries))

    def follower(self, program: Any, given_up: Any) -> Never:
        self.tries += 1
        raise MemoryError("there is none")

    def taken(self, since: Any, given_up: Unwanted) -> Never:
        raise AssertionError("there was no memory for this")

    def expect(self, id: str, kind: str, spec: Any, *, state: str, reason: str | None) -> None:
        if self.cannot_show:
            self.cannot_show -= 1
            raise self.why
        self.standing.expect(id, kind, spec, state, reason)

    def drop(self, id: str) -> None:
        self.standing.remove(id)


@pytest.fixture
def short() -> Short:
    return Short()


@pytest.fixture
def keeping(tmp_path: Path, short: Short) -> Keeping:
    return Keeping(short, KeptPrograms(tmp_path), ["configured"], Metrics(), 3)  # type: ignore[arg-type]


def test_one_that_waits_for_memory_is_tried_no_more_once_it_is_dropped(keeping: Keeping, short: Short) -> None:
    threads = {*threading.enumerate()}
    keeping.keep(HOPS, WANTED)
    until(lambda: short.standing.states() == {"hops": "waiting"})
    assert keeping.keep(HOPS, WANTED)[1]["state"] == "waiting" and short.tries == 1
    (waiting,) = {*threading.enumerate()} - threads
    keeping.drop({"program": "hops"}, WANTED)
    until(lambda: not waiting.is_alive())
    assert short.tries == 1 and short.standing.states() == {}


def test_what_a_device_needs_for_one_is_compiled_once_beside_the_stream(keeping: Keeping, short: Short) -> None:
    keeping.keep(HOPS, WANTED)
    until(lambda: short.standing.states() == {"hops": "waiting"})
    assert short.made_ready == [("hops", "kept-program", 0)], "before it is tried, and not by who asks"
    keeping.drop({"program": "hops"}, WANTED)
    until(lambda: not any(thread.name == "kept-program" for thread in threading.enumerate()))


def test_one_that_could_not_be_begun_is_when_it_is_asked_for_again(
    tmp_path: Path, keeping: Keeping, short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable, match="can't start new thread"):
            keeping.keep(HOPS, WANTED)
    assert list(read_kept(tmp_path)) == ["hops"] and short.tries == 0
    (shown,) = short.standing.coming.values()
    assert shown["state"] == "waiting" and "can't start new thread" in shown["reason"]
    assert keeping.keep(HOPS, WANTED)[1]["id"] == "hops"
    until(lambda: short.tries == 1)
    keeping.drop({"program": "hops"}, WANTED)
    until(lambda: not any(thread.name == "kept-program" for thread in threading.enumerate()))


@pytest.mark.parametrize("error", [MemoryError("nothing can be published"), ValueError("a mistake")])
def test_one_that_cannot_be_shown_is_computed_all_the_same(
    keeping: Keeping, short: Short, error: Exception
) -> None:
    short.cannot_show, short.why = 1, error
    with keeping._computing:  # so that it is not tried before that
        assert keeping.keep(HOPS, WANTED)[1]["state"] == "computing"
    until(lambda: short.tries == 1)
    keeping.drop({"program": "hops"}, WANTED)
    until(lambda: not any(thread.name == "kept-program" for thread in threading.enumerate()))


def test_that_nothing_can_be_shown_stops_no_attempt(
    keeping: Keeping, short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphtide.daemon.engine.keeping.RETRY_S", 0.001)
    with keeping._computing:  # so that it is not tried before that
        keeping.keep(HOPS, WANTED)
        (waiting,) = (thread for thread in threading.enumerate() if thread.name == "kept-program")
        short.cannot_show = 2
    until(lambda: short.tries > 2)
    keeping.drop({"program": "hops"}, WANTED)
    until(lambda: not waiting.is_alive())


def test_nobody_waits_for_a_turn_who_is_not_wanted(keeping: Keeping) -> None:
    gone = Unwanted()
    gone.set()
    with keeping._changing, pytest.raises(GivenUp):
        keeping.keep(HOPS, gone)
    with keeping._computing:
        keeping.keep(HOPS, WANTED)
        (waiting,) = (thread for thread in threading.enumerate() if thread.name == "kept-program")
        keeping.drop({"program": "hops"}, WANTED)
        until(lambda: not waiting.is_alive())


class Stuck:
    """What an engine's thread has, as far as a program that goes needs it; nothing can be published."""

    def __init__(self) -> None:
        self.pipeline = object.__new__(Pipeline)
        self.pipeline.position = Position(1)
        self.pipeline.gate = StorageGate()
        self.pipeline.checkpoints = self  # type: ignore[assignment]
        for name in ("engine", "standing", "background_audit", "metrics", "link"):
            setattr(self.pipeline, name, Mock())
        self.pipeline._publish = self.publish  # type: ignore[method-assign]
        self.passed: list[tuple[int, int]] = []

    def step(self) -> None:
        self.passed.append(self.pipeline.position.epoch)

    def publish(self, *args: object) -> Never:
        raise MemoryError("nothing can be published")


def test_no_epoch_of_programs_that_go_is_passed_over_or_leaves_readers_waiting() -> None:
    stuck = Stuck()
    for _ in range(2):
        with pytest.raises(MemoryError):
            stuck.pipeline.drop("hops")
        with stuck.pipeline.gate.read(settled=True, timeout_s=0):
            pass
    assert stuck.passed == [(1, 0), (1, 1)], "a checkpoint of each may be asked for"


@pytest.mark.parametrize("what", [("expect", "hops", "bfs", {"name": "bfs"}), ("drop", "hops")])
def test_what_could_not_be_published_is_news_that_is_told_soon(what: tuple[Any, ...]) -> None:
    """Where nothing comes there may be no other epoch to show how a program stands."""
    pipeline: Any = Stuck().pipeline
    del pipeline._publish
    for name in ("memory", "source", "graph"):
        setattr(pipeline, name, Mock())
    pipeline.engine.programs, pipeline.stats, pipeline._untold = [], dict, False
    pipeline.link.publish.side_effect = OSError("no room")
    with pytest.raises(OSError, match="no room"):
        getattr(pipeline, what[0])(*what[1:])
    assert pipeline._has_news(TIMES_INTERVAL_S)
    pipeline.link.publish.side_effect = None
    pipeline._publish([], None)
    assert not pipeline._untold


@pytest.mark.parametrize("error", [MemoryError("none"), OSError("no room")])
def test_that_news_cannot_be_published_ends_nothing(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """It is the engine's own thread that publishes them, and there is nothing in them that must be shown."""
    pipeline: Any = Stuck().pipeline
    del pipeline._publish
    for name in ("memory", "source", "graph", "queue"):
        setattr(pipeline, name, Mock())
    pipeline.results, pipeline.queue.updates, pipeline.background_audit.run.return_value = None, 0, []
    pipeline.background_audit.passes, pipeline._written_published = 0, 0
    pipeline.engine.programs, pipeline.stats, pipeline._passes_published = [], dict, 0
    pipeline._untold, pipeline._is_hidden, pipeline._published_at, pipeline._wait_published = True, False, 0.0, ()
    pipeline.link.publish.side_effect = error
    for tries in (1, 2):
        pipeline._published_at = 0.0
        pipeline._audit_in_background()
        assert pipeline._untold and pipeline.link.publish.call_count == tries and len(caplog.records) == 1
    pipeline._publish_wait()
    pipeline._audit_in_background()
    assert pipeline.link.publish.call_count == 2, "after a while"
    pipeline.link.publish.side_effect, pipeline._published_at = None, 0.0
    pipeline._audit_in_background()
    assert not (pipeline._untold or pipeline._is_hidden)


def test_whoever_waits_for_kernels_is_told_while_they_are_compiled() -> None:
    told: list[Any] = []
    ready = ReadyKernels(lambda kind, given, given_up: told.append(kind), [{"name": "components"}])
    for kind in ("components", "lcc", "lcc"):
        ready(kind, {}, Unwanted(told.append))
    assert told == [True, "lcc", False], "once, and not of what was there at the start"
    ready("kcore", {}, WANTED)  # where nobody is to be told
    assert told[3:] == ["kcore"]


def test_a_start_within_an_epoch_is_left_to_the_next_one_of_a_daemon_that_stops(
    keeping: Keeping, short: Short
) -> None:
    joined: list[tuple[str, bool]] = []
    short.join = lambda program, spec, *, start: joined.append((program.id, start))  # type: ignore[attr-defined]
    short.stop = stop = threading.Event()  # type: ignore[attr-defined]
    coming = _Coming("hops", {"name": "bfs", "source": 1})
    keeping._join(coming, None, Since(follows=True))
    assert joined == [("hops", True)]
    stop.set()
    with pytest.raises(Unavailable, match="is stopping"):
        keeping._join(coming, None, Since(follows=True))
    assert len(joined) == 1


def test_what_clients_had_compiled_is_not_kept_in_mind_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "READY_MAX", 3)
    asked: list[float] = []
    ready = ReadyKernels(lambda kind, given, given_up: asked.append(given["damping"]), [])
    for damping in (0.1, 0.2, 0.3, 0.3, 0.4, 0.4):
        ready("pagerank", {"damping": damping}, WANTED)
    assert asked == [0.1, 0.2, 0.3, 0.4] and len(ready._there) <= 3
