"""Metrics as text: the bytes that the library writes, with nothing made anew that stays as it was."""

from __future__ import annotations

import gzip
import os
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from sampling import examples

from graphtide.daemon.client.addresses import TcpAddress
from graphtide.daemon.client.wire import LATENCY_BUCKETS_SECONDS
from graphtide.daemon.health import Verdict
from graphtide.daemon.serve.endpoint import Exposition
from graphtide.ops import process, text_format
from graphtide.ops.histograms import Histogram
from graphtide.ops.metrics import Metrics
from graphtide.ops.numbers import Numbers
from graphtide.ops.process import Process
from graphtide.ops.text_format import TextFormat

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
YES = Verdict(True, {})


def strange() -> CollectorRegistry:
    """Of every type, with what must be escaped, and numbers of all kinds."""
    registry = CollectorRegistry()
    gauge = Gauge("g", 'a "gauge"\\ of\nall', ["b", "a"], registry=registry)
    for number, value in enumerate(
        (0, -0.0, -1.5, 1e5, 999999.5, 1e6, 1.5e7, 1e22, 1e-7, float("inf"), float("nan"))
    ):
        gauge.labels(f'q"\\\n{number}', "é").set(value)
    Numbers("counter", "c", "c", registry=registry).inc(12345678)
    Numbers("counter", "empty", "none yet", ["x"], registry=registry)
    ours = Numbers("gauge", "ours", 'a "gauge"\\ of\nours', ["b", "a"], registry=registry)
    ours.labels('q"\\\n', "é").set(-1.5)
    ours.labels("", "").set(float("nan"))
    for name, label in (("h", ""), ("labelled", "z")):
        histogram = Histogram(name, "h", (0.001, 2, 1e6, 3e6), label)
        registry.register(histogram)
        for value in (0.001, 0.0011, 2e6, 5e6):
            (histogram.labels("m") if label else histogram).observe(value)
    return registry


def whole() -> CollectorRegistry:
    metrics = Metrics(version="1", bad_record_reasons=["a"], storage_rules=["r"])
    counts = [1] * (len(LATENCY_BUCKETS_SECONDS) + 1)
    metrics.watch_queries(
        lambda: {"get": (counts, 1.5, {"timeout": 2}), "top": (counts, 2.5, {})}, LATENCY_BUCKETS_SECONDS
    )
    metrics.stage("poll", 0.2)
    return metrics.registry


def settled(text: bytes) -> list[bytes]:
    """Without what is another at every moment."""
    return [line for line in text.splitlines() if not line.startswith(b"process_")]


@pytest.mark.parametrize("made", [strange, whole])
def test_the_bytes_are_those_of_the_library(made: Callable[[], CollectorRegistry]) -> None:
    registry = made()
    texts = TextFormat(registry)
    for _ in range(2):  # the second time from what is kept
        assert settled(texts.text(open_metrics=False)) == settled(generate_latest(registry))
        opened: Any = generate_open_metrics(registry)  # type: ignore[no-untyped-call]
        assert settled(texts.text(open_metrics=True)) == settled(opened)


def test_labels_are_put_together_once_and_forgotten_with_their_series(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "g", ["x"], registry=registry)
    numbers = Numbers("gauge", "n", "n", ["x"], registry=registry)
    histogram = Histogram("h", "h", (1.0, 2.0), "x")
    registry.register(histogram)
    for name in ("one", "other"):
        gauge.labels(name).set(1)
        numbers.labels(name).set(1)
        histogram.labels(name).observe(1)
    texts, made, head = TextFormat(registry), list[str](), text_format._head
    monkeypatch.setattr(text_format, "_head", lambda name, labels: made.append(name) or head(name, labels))
    before = texts.text(open_metrics=False)
    assert len(made) == 2 * (1 + 1 + 5)
    made.clear()
    assert texts.text(open_metrics=False) == before and not made
    for metric in (gauge, numbers, histogram):
        metric.remove("one")
    text = texts.text(open_metrics=False)
    assert not made and b'x="one"' not in text
    assert [len(kept.heads) for kept in texts._kept.values()] == [1, 1, 1]
    registry.unregister(numbers)
    assert b"\nn{" in text and b"\nn{" not in texts.text(open_metrics=False) and len(texts._kept) == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["gauge", "counter", "histogram", "remove"]), st.sampled_from("abc"), st.floats(0, 9)
    ),
    max_size=8,
)


@given(st.lists(STEPS, max_size=4))
@settings(max_examples=examples(50))
def test_whatever_has_changed_is_written_anew(rounds: list[list[tuple[str, str, float]]]) -> None:
    registry = CollectorRegistry()
    gauge = Numbers("gauge", "g", "g", ["x"], registry=registry)
    counter = Numbers("counter", "c", "c", ["x"], registry=registry)
    histogram = Histogram("h", "h", (1.0, 2.0), "x")
    registry.register(histogram)
    texts = TextFormat(registry)
    for steps in rounds:
        for what, label, value in steps:
            if what == "gauge":
                gauge.labels(label).set(value)
            elif what == "counter":
                counter.labels(label).inc(value)
            elif what == "histogram":
                histogram.labels(label).observe(value)
            else:
                for metric in (gauge, counter, histogram):
                    with suppress(KeyError):
                        metric.remove(label)
        assert texts.text(open_metrics=False) == generate_latest(registry)


def test_a_process_is_shown_as_the_library_shows_it() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Process(os.getpid, prefix="x_", registry=ours)
    ProcessCollector(namespace="x", pid=os.getpid, registry=theirs)

    def shown(registry: CollectorRegistry) -> dict[str, tuple[str, str, float]]:
        return {each.name: (each.type, each.documentation, each.samples[0].value) for each in registry.collect()}

    first, model, last = shown(ours), shown(theirs), shown(ours)
    assert [*first] == [*model] and all(first[name][:2] == model[name][:2] for name in model)
    began, between, ended = (shown["x_process_cpu_seconds"][2] for shown in (first, model, last))
    assert began <= between + 1e-6 and between <= ended + 1e-6, "seconds that are added up in another order"
    assert first["x_process_max_fds"] == model["x_process_max_fds"]
    assert first["x_process_start_time_seconds"] == model["x_process_start_time_seconds"]
    assert first["x_process_resident_memory_bytes"][2] > 0


def test_descriptors_are_counted_where_the_folder_has_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sized = process._open_descriptors(os.getpid())
    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    assert process._open_descriptors(os.getpid()) - sized in (0, 1), "the folder's own may be among them"


def test_nothing_is_shown_of_a_process_that_is_not_there() -> None:
    registry = CollectorRegistry()
    pids = iter([0, 2**22 + 1])  # none, and more than there can be
    Process(lambda: next(pids), registry=registry)
    assert TextFormat(registry).text(open_metrics=False) == b"" == TextFormat(registry).text(open_metrics=False)


@pytest.fixture
def page() -> Iterator[Callable[..., Any]]:
    with Exposition(TcpAddress("127.0.0.1", 0), whole(), live=lambda: YES, ready=lambda: YES) as exposition:

        def ask(query: str = "", **headers: str) -> Any:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            with urllib.request.urlopen(urllib.request.Request(exposition.url + query, headers=given)) as answer:
                return answer.headers, answer.read()

        yield ask


def test_what_is_asked_for_comes_as_it_is_asked_for(page: Callable[..., Any]) -> None:
    headers, text = page()
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4") and b"graphtide_ready 0.0\n" in text
    headers, packed = page(Accept_Encoding="deflate, GZIP;q=0.5")
    assert headers["Content-Encoding"] == "gzip" and settled(gzip.decompress(packed)) == settled(text)
    headers, opened = page(Accept=OPEN_METRICS)
    assert headers["Content-Type"].startswith("application/openmetrics-text") and opened.endswith(b"\n# EOF\n")
    headers, some = page("?name[]=graphtide_ready")
    assert some.endswith(b"\ngraphtide_ready 0.0\n") and some.count(b"\n") == 3
    headers, values = page(Accept="application/openmetrics-text;version=1.0.0;escaping=values")
    assert "escaping=values" in headers["Content-Type"] and values.endswith(b"# EOF\n")


def test_whoever_accepts_what_is_no_version_gets_what_everybody_gets(
    page: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for query in ("", "?name[]=graphtide_ready"):
        headers, text = page(query, Accept="application/openmetrics-text;version=x")
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4") and b"graphtide_ready 0.0\n" in text
    assert not capfd.readouterr().err
