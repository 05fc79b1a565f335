"""Metrics as text: the bytes that the library writes, with nothing made anew that stays as it was."""

from __future__ import annotations

import gzip
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from graphtide.daemon.client.addresses import TcpAddress
from graphtide.daemon.client.wire import LATENCY_BUCKETS_SECONDS
from graphtide.daemon.health import Verdict
from graphtide.daemon.serve.endpoint import Exposition
from graphtide.ops import text_format
from graphtide.ops.histograms import Histogram
from graphtide.ops.metrics import Metrics
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
    Counter("c", "c", registry=registry).inc(12345678)
    Counter("empty", "none yet", ["x"], registry=registry)
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
    histogram = Histogram("h", "h", (1.0, 2.0), "x")
    registry.register(histogram)
    for name in ("one", "other"):
        gauge.labels(name).set(1)
        histogram.labels(name).observe(1)
    texts, made, head = TextFormat(registry), list[str](), text_format._head
    monkeypatch.setattr(text_format, "_head", lambda name, labels: made.append(name) or head(name, labels))
    before = texts.text(open_metrics=False)
    assert len(made) == 2 * (1 + 5)
    made.clear()
    assert texts.text(open_metrics=False) == before and not made
    gauge.remove("one")
    histogram.remove("one")
    text = texts.text(open_metrics=False)
    assert not made and b'x="one"' not in text and len(texts._heads) == 2 + 2


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
