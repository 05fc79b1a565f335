"""Dashboards and alert rules: the committed JSON is what the source writes, and a real Prometheus answers it.

The last tests let Debian's ``prometheus`` scrape a real daemon and ask it every query of every panel.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import needed, skip_or_fail
from running import Daemon

from graphtide.daemon.errors import UnknownProgram
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.tools.generate import Churn
from graphtide.ops import dashboards
from graphtide.ops.metrics import Metrics

ROOT = Path(__file__).parent.parent
RULES = ROOT / "ops" / "prometheus" / "alerts.yml"
SCRAPE = ROOT / "ops" / "prometheus" / "scrape.yml"

needed("grafana_foundation_sdk", "the dashboards' source needs grafana-foundation-sdk")


def committed() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(dashboards.FOLDER.glob("*.json"))}


def panels() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}: {panel['title']}", panel)
        for name, dashboard in committed().items()
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    ]


def queries() -> list[tuple[str, str]]:
    return [(title, target["expr"]) for title, panel in panels() for target in panel["targets"]]


# -- what is committed --------------------------------------------------------------------------------------


def test_the_committed_dashboards_are_what_their_source_writes() -> None:
    written = dashboards.render()
    assert sorted(written) == sorted(committed())
    for name, text in written.items():
        assert (dashboards.FOLDER / name).read_text("utf-8") == text, "make dashboards"


def test_panels_have_ids_and_places_of_their_own() -> None:
    for dashboard in committed().values():
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids) and min(ids) > 0
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells


def test_every_panel_says_what_it_shows_and_asks_the_chosen_source_and_instance() -> None:
    for title, panel in panels():
        assert panel["description"].endswith("."), title
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"], title
        for target in panel["targets"]:
            selectors = re.findall(r"(?:graphtide|process)_\w+(\{[^}]*\})?", target["expr"])
            assert selectors and all('instance=~"$instance"' in selector for selector in selectors), title


def test_what_is_shown_has_the_unit_of_its_metric() -> None:
    """On an axis of its own where others of the panel have another: seconds are no line beside millions."""
    rates = {"ops", "reqps", "cps"}
    for title, panel in panels():
        own = panel["fieldConfig"]["defaults"]["unit"]
        overrides = {each["matcher"]["options"]: each["properties"] for each in panel["fieldConfig"]["overrides"]}
        assert len(overrides) < len(panel["targets"]), f"{title}: nothing has its unit"
        for target in panel["targets"]:
            properties = {item["id"]: item["value"] for item in overrides.get(target["refId"], [])}
            assert not properties or properties["custom.axisPlacement"] == "right", title
            expression, unit = target["expr"], properties.get("unit", own)
            (name, *_) = re.findall(r"\b(?:graphtide|process)_\w+", expression)
            if " / " in expression:
                allowed = {"short"}
            elif "rate(" in expression and "histogram_quantile" not in expression:
                of_time_or_size = () if name.endswith("_count") else ("_seconds", "_bytes")
                kind = next((kind for kind in of_time_or_size if kind in name), "")
                allowed = {"_seconds": {"percentunit"}, "_bytes": {"Bps"}}.get(kind, rates)
            else:
                kinds = {"_seconds": {"s"}, "_bytes": {"bytes"}, "_ratio": {"percentunit"}}
                allowed = next((units for kind, units in kinds.items() if kind in name), {"short"})
            assert unit in allowed, f"{title}: {expression} is shown in {unit!r}"


def test_every_metric_of_the_dashboards_and_rules_is_declared() -> None:
    declared = {metric.name for metric in Metrics().declared}
    text = RULES.read_text("utf-8") + " ".join(expression for _, expression in queries())
    for name in set(re.findall(r"\bgraphtide_\w+", text)):
        if name.startswith("graphtide_server_process_"):
            continue  # the client library's own, of the query server's process
        plain = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in declared or plain in declared, name


def test_every_metric_that_operators_need_is_on_a_dashboard() -> None:
    shown = " ".join(expression for _, expression in queries())
    for metric in Metrics().declared:
        # Identity, readiness and volume are for alerts and ad hoc questions.
        if metric.name.removeprefix("graphtide_") not in {
            *("epoch_incarnation", "epoch_number", "start_timestamp_seconds", "ready", "build_info"),
            *("records_total", "record_bytes_total", "self_loops_dropped_total", "checkpoints_total"),
        }:
            assert metric.name in shown, metric.name


# -- a real Prometheus --------------------------------------------------------------------------------------


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        skip_or_fail(f"{name} is missing: apt-get install --no-install-recommends prometheus")
    return path


def live(daemon: Daemon, stop: threading.Event) -> None:
    """A steady small life: inserts and deletes, a bad record, queries, and one that is refused."""
    churn = Churn(scale=8, pool=2000, delete_share=0.3, seed=1)
    with SpoolWriter(daemon.spool, name="live") as writer:
        while not stop.wait(0.05):
            part = churn.next(50)
            writer.append(encode_msgpack(part.src, part.dst, part.ops, part.weights))
            writer.append(b"\xc1 no record")
            writer.flush()
            with daemon.client() as client:
                client.wait({"live.msgpack": writer.offset})
                client.get("components", part.src)
                client.top("pagerank", k=3)
                client.stats()
                with pytest.raises(UnknownProgram):
                    client.get("no-such-program", part.src)


@pytest.fixture(scope="module")
def metrics_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of the endpoint to scrape: that of a real daemon which is fed and asked all the time."""
    settings = {"checkpoint": {"interval": 1}, "metrics": {"listen": "127.0.0.1:0"}}
    stop = threading.Event()
    with Daemon(tmp_path_factory.mktemp("daemon"), settings) as daemon:
        daemon.start()
        found = re.search(r"metrics at http://([\d.]+:\d+)/metrics", daemon.log.read_text("utf-8"))
        assert found, daemon.log_tail()
        driver = threading.Thread(target=live, args=(daemon, stop))
        driver.start()
        try:
            yield found[1]
        finally:
            stop.set()
            driver.join()
        assert daemon.stop() == 0, daemon.log_tail()


@pytest.fixture(scope="module")
def prometheus_url(metrics_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Prometheus that scrapes the endpoint every 200 ms and has loaded our rules."""
    binary = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(RULES, folder / "alerts.yml")
    example = SCRAPE.read_text("utf-8")
    assert "127.0.0.1:9420" in example and "15s" in example
    text = example.replace("127.0.0.1:9420", metrics_address).replace("15s", "200ms")
    (folder / "prometheus.yml").write_text(text, "utf-8")
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield _wait_until_ready(process, folder / "log")
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r'"Listening on" address=(127\.0\.0\.1:\d+)', log.read_text("utf-8"))
        if found:
            url = f"http://{found[1]}"
            try:
                with urllib.request.urlopen(f"{url}/-/ready", timeout=30):
                    return url
            except OSError:
                pass
        time.sleep(0.1)
    pytest.fail(f"Prometheus did not start:\n{log.read_text('utf-8')[-3000:]}")


def api(url: str, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=60) as answer:
        body = json.load(answer)
    assert body["status"] == "success", body
    return body["data"]


def substituted(expression: str) -> str:
    """The query as Grafana sends it with every instance chosen."""
    text = expression.replace("$instance", ".*").replace("$__rate_interval", "5s")
    assert "$" not in text, text
    return text


def values(url: str, expression: str) -> list[float]:
    result = api(url, "query", query=substituted(expression))["result"]
    return [float(series["value"][1]) for series in result]


def eventually(url: str, expression: str, seconds: float = 90) -> list[float]:
    """The values of the query as soon as there are some and none is NaN; else the last ones seen."""
    deadline = time.monotonic() + seconds
    while True:
        found = values(url, expression)
        if (found and not any(np.isnan(found))) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.mark.prometheus
def test_every_query_of_every_panel_returns_data(prometheus_url: str) -> None:
    deadline = time.monotonic() + 180  # of all of them: what is silent is named before the test's own time is over
    silent = queries()
    while silent and time.monotonic() < deadline:
        silent = [(title, expression) for title, expression in silent if not speaks(prometheus_url, expression)]
        time.sleep(0.2)
    assert not silent, "\n".join(f"{title}: {substituted(expression)}" for title, expression in silent)


def speaks(url: str, expression: str) -> bool:
    """The query has values now, and none is NaN."""
    found = values(url, expression)
    return bool(found) and not any(np.isnan(found))


@pytest.mark.prometheus
def test_the_instances_to_choose_from_are_those_scraped(prometheus_url: str, metrics_address: str) -> None:
    assert eventually(prometheus_url, "graphtide_build_info") == [1.0]
    found = api(prometheus_url, "label/instance/values", **{"match[]": "graphtide_build_info"})
    assert found == [metrics_address]


@pytest.mark.prometheus
def test_the_alert_rules_are_loaded_and_can_be_evaluated(prometheus_url: str) -> None:
    (group,) = api(prometheus_url, "rules")["groups"]
    deadline = time.monotonic() + 90
    while any(rule["health"] == "unknown" for rule in group["rules"]) and time.monotonic() < deadline:
        time.sleep(0.5)
        (group,) = api(prometheus_url, "rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {
        rule["name"]: "ok" for rule in group["rules"]
    }
    assert len(group["rules"]) >= 10


@pytest.mark.prometheus
def test_promtool_accepts_rules_configuration_and_our_metrics(metrics_address: str) -> None:
    promtool = tool("promtool")
    for arguments in (["check", "rules", str(RULES)], ["check", "config", str(SCRAPE)]):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=60) as answer:
        exposed = answer.read()
    done = subprocess.run([promtool, "check", "metrics"], input=exposed, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_package_needs_no_sdk_to_be_imported() -> None:
    code = "import sys; sys.modules['grafana_foundation_sdk'] = None; import graphtide.ops.dashboards"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
