"""Metrics: what the daemon reports is what Prometheus reads, and the endpoint that serves it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from sampling import examples
from waiting import PATIENCE_S, until

from graphtide.daemon.client.addresses import TcpAddress
from graphtide.daemon.client.wire import LATENCY_BUCKETS_SECONDS
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.health import Verdict
from graphtide.daemon.serve.endpoint import CONNECTIONS_MAX, HASTE_SWITCH_SECONDS, Exposition
from graphtide.ops.areas.kept import PARTITIONS_SHOWN_MAX
from graphtide.ops.areas.stream import FRESHNESS_SECONDS_BUCKETS, STAGES
from graphtide.ops.histograms import Histogram
from graphtide.ops.metrics import Metrics, catalogue_markdown
from graphtide.ops.numbers import Number

YES = Verdict(True, {})
ROOT = Path(__file__).parent.parent


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Everything exposed: (name, label values in the order of label names) -> value, as Prometheus parses it."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- the catalogue ------------------------------------------------------------------------------------------


def test_everything_exposed_is_declared_and_starts_with_graphtide() -> None:
    metrics = Metrics(version="1")
    declared = {metric.name for metric in metrics.declared}
    assert len(declared) == len(metrics.declared)
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith("process_"):
            assert name.startswith("graphtide_") and name in declared
            assert family.documentation.endswith(".")


def test_names_end_in_their_unit() -> None:
    for metric in Metrics().declared:
        assert metric.name.islower()
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not metric.name.endswith(("_ms", "_percent", "_kib", "_minutes"))


def test_the_documentation_is_the_catalogue() -> None:
    page = ROOT / "docs" / "metrics.md"
    expected = catalogue_markdown()
    assert page.read_text("utf-8") == expected, "python -m graphtide.ops.metrics > docs/metrics.md"


def test_two_daemons_in_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.bad_records("crc")
    assert ("graphtide_bad_records_total", ("crc",)) in samples(one)
    assert ("graphtide_bad_records_total", ("crc",)) not in samples(other)


# -- what is reported is what is read -----------------------------------------------------------------------


def test_rates_start_from_zero_for_every_known_label() -> None:
    seen = samples(Metrics(bad_record_reasons=("crc", "version")))
    for name, label in (
        ("graphtide_updates_total", "insert"),
        ("graphtide_edge_changes_total", "absent"),
        ("graphtide_bad_records_total", "version"),
        ("graphtide_epoch_duration_seconds_count", "checkpoint"),
        ("graphtide_checkpoint_failures_total", "OSError"),
    ):
        assert seen[name, (label,)] == 0
    # Else an alert would not see the first one of a kind: nothing rises where there was nothing.
    for error in (OSError(28, ""), PermissionError(), FileNotFoundError(), FileExistsError(), MemoryError()):
        assert seen["graphtide_checkpoint_failures_total", (type(error).__name__,)] == 0


def test_ingest_and_epoch_reports() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.ingested(
            records=3,
            bytes=100,
            tombstones=1,
            inserts=7,
            deletes=2,
            self_loops_dropped=1,
            poll_seconds=0.5,
            decode_seconds=0.25,
            index_seconds=0.125,
        )
    metrics.epoch(updates=9, apply_seconds=1.0, compute_seconds=2.0, publish_seconds=0.5)
    metrics.changes(inserted=4, overwritten=3, deleted=1, absent=1, slots_moved=64)
    metrics.published(3, 17)
    metrics.source_lag(unit="bytes", amount=77, seconds=1.5)
    for total in (0, 1, 1, 3):
        metrics.source_outages(total)
    metrics.misrouted(5)
    seen = samples(metrics)
    assert seen["graphtide_records_total", ()] == 6
    assert seen["graphtide_record_bytes_total", ()] == 200
    assert seen["graphtide_updates_total", ("insert",)] == 14
    assert seen["graphtide_updates_total", ("delete",)] == 4
    assert seen["graphtide_epoch_duration_seconds_sum", ("decode",)] == 0.5
    assert seen["graphtide_epoch_duration_seconds_sum", ("compute",)] == 2.0
    assert seen["graphtide_epoch_updates_sum", ()] == 9
    assert seen["graphtide_edge_changes_total", ("overwritten",)] == 3
    assert seen["graphtide_rebalance_slots_moved_total", ()] == 64
    assert (seen["graphtide_epoch_incarnation", ()], seen["graphtide_epoch_number", ()]) == (3, 17)
    assert (seen["graphtide_source_lag_bytes", ()], seen["graphtide_source_lag_records", ()]) == (77, 0)
    assert seen["graphtide_source_outages_total", ()] == 3
    assert seen["graphtide_misrouted_edges_total", ()] == 5


def test_a_program_has_one_state_and_a_dropped_one_leaves_no_trace() -> None:
    metrics = Metrics()
    for program in ("hops", "ranks"):
        metrics.program_run(
            program,
            seconds=0.1,
            active=5,
            edges_read=50,
            iterations=2,
            started_over=True,
            applied_up_to_seconds=100.0,
        )
        metrics.program_error_bound(program, 1e-3)
        metrics.program_state(program, "fresh")
    metrics.program_state("hops", "quarantined")
    seen = samples(metrics)
    states = {labels: value for (name, labels), value in seen.items() if name == "graphtide_program_state"}
    assert states["hops", "quarantined"] == 1 and states["hops", "fresh"] == 0
    assert sum(value for labels, value in states.items() if labels[0] == "hops") == 1
    assert seen["graphtide_program_restarts_total", ("ranks",)] == 1
    assert samples(metrics)["graphtide_program_error_bound_ratio", ("ranks",)] == 1e-3
    with pytest.raises(ValueError, match="quarantined"):
        metrics.program_state("ranks", "broken")


def test_vertices_that_come_and_go_are_counted() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.vertex_changes(inserted=4, deleted=3, absent=1)
    metrics.graph(vertices=8, edges=2, density=0.5, memory_bytes={}, dead_vertices=6)
    seen = samples(metrics)
    changes = {
        labels[0]: value for (name, labels), value in seen.items() if name == "graphtide_vertex_changes_total"
    }
    assert changes == {"inserted": 8, "deleted": 6, "absent": 2}
    assert (seen["graphtide_vertices", ()], seen["graphtide_dead_vertices", ()]) == (8, 6)


def test_structures_that_are_gone_no_longer_show() -> None:
    metrics = Metrics()
    metrics.graph(vertices=1, edges=2, density=0.5, memory_bytes={"index": 10, "program_a": 20})
    metrics.graph(vertices=1, edges=2, density=0.5, memory_bytes={"index": 11})
    memory = {
        labels: value for (name, labels), value in samples(metrics).items() if name == "graphtide_memory_bytes"
    }
    assert memory == {("index",): 11}


@settings(deadline=None, max_examples=examples(60))
@given(
    hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(0, 100)),
    st.integers(0, 2**32),
)
def test_weighted_observations_equal_single_ones(values: Any, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 1000, values.size)
    histogram = Histogram("h", "h", FRESHNESS_SECONDS_BUCKETS)
    histogram.observe_many(values, counts)
    histogram.observe_many(values, counts)
    (family,) = histogram.collect()
    got = {sample.labels.get("le"): sample.value for sample in family.samples if sample.name == "h_bucket"}
    for bound in FRESHNESS_SECONDS_BUCKETS:
        assert got[repr(float(bound))] == 2 * int(counts[values <= bound].sum())
    assert got["+Inf"] == 2 * int(counts.sum())
    (total,) = [sample.value for sample in family.samples if sample.name == "h_sum"]
    assert total == pytest.approx(2 * float((values * counts).sum()))


def test_freshness_is_weighted_by_updates() -> None:
    metrics = Metrics()
    metrics.observe_freshness(np.array([0.004, 2.5]), np.array([10_000, 3]))
    seen = samples(metrics)
    assert seen["graphtide_freshness_seconds_count", ()] == 10_003
    assert seen["graphtide_freshness_seconds_bucket", ("0.005",)] == 10_000
    assert seen["graphtide_freshness_seconds_bucket", ("3.0",)] == 10_003


def test_what_was_measured_since_the_start_is_told() -> None:
    metrics = Metrics()
    metrics.observe_freshness(np.array([0.004, 2.5, 99.0]), np.array([10_000, 3, 2]))
    metrics.epoch(updates=5, apply_seconds=0.25, compute_seconds=1.0, publish_seconds=0.5)
    metrics.epoch(updates=5, apply_seconds=0.5, compute_seconds=1.0, publish_seconds=0.5)
    metrics.program_run("hops", seconds=0.75, active=1, edges_read=1, iterations=1, started_over=False)
    told = metrics.times()
    assert set(told["stages"]) == set(STAGES) and told["stages"]["poll"] == {"count": 0, "seconds": 0}
    assert told["stages"]["apply"] == {"count": 2, "seconds": 0.75}
    assert told["runs"] == {"hops": {"count": 1, "seconds": 0.75}}
    fresh = told["freshness"]
    by_bound = dict(zip([*fresh["bounds_seconds"], None], fresh["updates"], strict=True))
    assert {bound: n for bound, n in by_bound.items() if n} == {0.005: 10_000, 3.0: 3, None: 2}
    assert fresh["seconds"] == pytest.approx(40 + 7.5 + 198)


def test_query_counts_come_from_the_server_and_outlive_its_absence() -> None:
    metrics = Metrics()
    counts = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)
    counts[0], counts[3], counts[-1] = 2, 5, 1
    metrics.watch_queries(lambda: {"get": (counts, 1.5, {"unknown-program": 4})}, LATENCY_BUCKETS_SECONDS)
    first = samples(metrics)
    assert first["graphtide_query_duration_seconds_count", ("get",)] == 8
    assert first["graphtide_query_duration_seconds_bucket", ("0.001", "get")] == 7
    assert first["graphtide_query_duration_seconds_sum", ("get",)] == 1.5
    assert first["graphtide_query_errors_total", ("unknown-program", "get")] == 4

    def away() -> dict[str, Any]:
        raise ConnectionError("the server restarts")

    metrics.watch_queries(away, LATENCY_BUCKETS_SECONDS)
    assert samples(metrics)["graphtide_query_duration_seconds_count", ("get",)] == 8


def test_checkpoints_and_readiness() -> None:
    metrics = Metrics()
    assert samples(metrics)["graphtide_checkpoint_timestamp_seconds", ()] == 0
    metrics.checkpoint_copied(0.5)
    metrics.checkpoint(seconds=2.0, size_bytes=1000)
    metrics.checkpoint_failed("OSError")
    metrics.watch_health(
        ready=lambda: True, stage=lambda: "reading", progress=lambda: 0.25, heartbeat_seconds=lambda: 0.5
    )
    metrics.queue_depth(12)
    metrics.applied_up_to(123.5)
    seen = samples(metrics)
    assert seen["graphtide_checkpoint_timestamp_seconds", ()] > 1.6e9
    assert seen["graphtide_checkpoint_copy_seconds", ()] == 0.5
    assert seen["graphtide_checkpoint_size_bytes", ()] == 1000
    assert seen["graphtide_checkpoint_failures_total", ("OSError",)] == 1
    assert seen["graphtide_ready", ()] == 1
    assert seen["graphtide_stage", ("reading",)] == 1 and seen["graphtide_stage", ("running",)] == 0
    assert (seen["graphtide_stage_progress_ratio", ()], seen["graphtide_engine_heartbeat_seconds", ()]) == (
        0.25,
        0.5,
    )
    assert seen["graphtide_queue_updates", ()] == 12
    assert seen["graphtide_source_applied_up_to_timestamp_seconds", ()] == 123.5


def test_where_a_restart_goes_on_is_shown_of_so_many_partitions_at_most() -> None:
    metrics = Metrics()
    assert np.isnan(samples(metrics)["graphtide_checkpoint_log_margin_records", ()])
    metrics.checkpoint_covers({"edges/0": 7, "edges/1": 9}, 3)
    seen = samples(metrics)
    assert seen["graphtide_checkpoint_offset", ("edges/1",)] == 9
    assert seen["graphtide_checkpoint_log_margin_records", ()] == 3
    metrics.checkpoint_covers({f"{file:04}.el": file for file in range(1000)}, np.inf)
    shown = [labels for name, labels in samples(metrics) if name == "graphtide_checkpoint_offset"]
    assert len(shown) == PARTITIONS_SHOWN_MAX and ("edges/1",) not in shown


def test_what_the_query_server_reports_is_shown_and_its_restarts_add_up() -> None:
    metrics = Metrics()
    for restarts in (0, 1, 1, 2):
        metrics.server(restarts=restarts, connections=4, waiting=3)
    seen = samples(metrics)
    assert seen["graphtide_server_restarts_total", ()] == 2
    assert (seen["graphtide_server_connections", ()], seen["graphtide_server_waiting_requests", ()]) == (4, 3)


def test_what_subscribers_were_told_adds_up() -> None:
    metrics = Metrics()
    for sent in (0, 5, 5, 7):
        metrics.subscriptions(3, {"sent": sent, "snapshots": 1, "merged": sent // 5})
    seen = samples(metrics)
    assert seen["graphtide_server_subscriptions", ()] == 3
    assert seen["graphtide_subscription_messages_total", ("changes",)] == 7
    assert seen["graphtide_subscription_messages_total", ("snapshot",)] == 1
    assert seen["graphtide_subscription_merged_epochs_total", ()] == 1


def test_the_server_process_is_shown_beside_our_own() -> None:
    metrics = Metrics()
    metrics.watch_server_process(os.getpid)
    seen = samples(metrics)
    assert seen["graphtide_server_process_resident_memory_bytes", ()] > 0
    assert seen["process_resident_memory_bytes", ()] > 0


def test_a_count_that_others_keep_is_followed_where_it_begins_anew() -> None:
    number = Number()
    seen = []
    for total in (0, 2, 2, 5, 1, 4):
        number.count_up(total)
        seen.append(number.read())
    assert seen == [0, 2, 2, 5, 5, 8]


def test_what_a_number_is_set_to_is_not_lost_to_who_adds_just_then() -> None:
    number = Number()
    setting = threading.Thread(target=number.set, args=(5.0,))

    class More(float):
        """Is added while somebody else sets."""

        def __radd__(self, value: float) -> float:
            setting.start()
            setting.join(0.2)  # it waits until this is over
            return value + 1.0

    number.inc(More())
    setting.join(60)
    assert number.read() == 5.0


def test_reports_from_several_threads_add_up() -> None:
    metrics = Metrics()

    def feed() -> None:
        for _ in range(200):
            metrics.observe_freshness(np.array([0.1, 0.2]), np.array([1, 2]))
            metrics.bad_records("crc")

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = samples(metrics)
    assert seen["graphtide_freshness_seconds_count", ()] == 4 * 200 * 3
    assert seen["graphtide_bad_records_total", ("crc",)] == 800


# -- the endpoint -------------------------------------------------------------------------------------------


def fetch(address: TcpAddress, path: str) -> tuple[int, str]:
    host = f"[{address.host}]" if ":" in address.host else address.host
    try:
        with urllib.request.urlopen(f"http://{host}:{address.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_live_and_ready_are_served() -> None:
    state = {"live": YES, "ready": Verdict(False, {"ready": False, "stage": "reading", "progress": 0.5})}
    with Exposition(
        TcpAddress("127.0.0.1", 0), Metrics().registry, live=lambda: state["live"], ready=lambda: state["ready"]
    ) as served:
        assert served.address.port > 0
        assert fetch(served.address, "/live") == (200, "{}\n")
        status, text = fetch(served.address, "/ready")
        assert (status, json.loads(text)) == (503, {"ready": False, "stage": "reading", "progress": 0.5})
        state |= {"live": Verdict(False, {}), "ready": YES}
        assert fetch(served.address, "/live")[0] == 503
        assert fetch(served.address, "/ready")[0] == 200
        status, text = fetch(served.address, "/metrics")
        assert status == 200 and "graphtide_ready 0.0" in text
        assert fetch(served.address, "/else")[0] == 404


@pytest.mark.parametrize("sent", [b"\x94\x00\x00\xa5stats\x91\x80", b"\x16\x03\x01\x02\x00\x01"])
def test_who_speaks_no_http_hears_so_at_once(sent: bytes) -> None:
    """Neither a request to the query server nor the beginning of TLS has an end of a line to wait for."""
    with (
        Exposition(TcpAddress("127.0.0.1", 0), Metrics().registry, live=lambda: YES, ready=lambda: YES) as served,
        socket.create_connection(served.address, timeout=60) as connection,
    ):
        connection.sendall(sent)
        said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert said.startswith(b"HTTP/1.0 400 ") and b"the addresses of server.listen" in said


def test_who_scrapes_gets_the_interpreter_sooner_and_afterwards_all_is_as_before() -> None:
    usual, seen = sys.getswitchinterval(), list[float]()

    class Noting(Collector):
        def collect(self) -> Iterator[Metric]:
            seen.append(sys.getswitchinterval())
            return iter(())

    registry, fine = CollectorRegistry(), lambda: Verdict(True, {})
    registry.register(Noting())
    seen.clear()
    with Exposition(TcpAddress("127.0.0.1", 0), registry, live=fine, ready=fine) as endpoint:
        for _ in range(2):
            with urllib.request.urlopen(endpoint.url, timeout=PATIENCE_S) as answer:
                answer.read()
        until(lambda: sys.getswitchinterval() == usual)
        with urllib.request.urlopen(endpoint.url, timeout=PATIENCE_S) as answer:
            answer.read()
    assert sys.getswitchinterval() == usual, "also where the endpoint is closed soon after"
    assert seen == pytest.approx([HASTE_SWITCH_SECONDS] * 3)


def test_an_address_in_use_is_a_message() -> None:
    with (
        Exposition(TcpAddress("127.0.0.1", 0), Metrics().registry, live=lambda: YES, ready=lambda: YES) as served,
        pytest.raises(ConfigError, match=r"metrics\.listen = 127\.0\.0\.1:\d+: Address already in use, perhaps"),
    ):
        Exposition(served.address, Metrics().registry, live=lambda: YES, ready=lambda: YES)


def test_silent_clients_neither_grow_the_process_nor_keep_probes_from_their_answers() -> None:
    with Exposition(TcpAddress("127.0.0.1", 0), Metrics().registry, live=lambda: YES, ready=lambda: YES) as served:
        silent = [socket.create_connection(served.address, timeout=10) for _ in range(3 * CONNECTIONS_MAX)]
        try:
            for connection in silent[-CONNECTIONS_MAX // 2 :]:
                connection.sendall(b"GET /li")
            assert urllib.request.urlopen(f"http://127.0.0.1:{served.address.port}/live", timeout=60).status == 200
            assert silent[0].recv(100) == b"", "the oldest made room"
            until(lambda: sum("process_request" in one.name for one in threading.enumerate()) < CONNECTIONS_MAX)
            silent[-1].sendall(b"ve HTTP/1.0\r\n\r\n")
            assert b"200 OK" in silent[-1].recv(100), "and the newest did not"
        finally:
            for connection in silent:
                connection.close()
