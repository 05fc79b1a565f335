"""The page at the HTTP door of a real daemon, in a real Chromium."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from chromium import PROGRAM, Chromium
from conftest import skip_or_fail
from running import Daemon
from waiting import until

from graphtide.daemon.tools.top import STAGES

TOKEN = "sesame-open"


CHANGED_STATS = """
window.asTheyAre ??= window.fetch;
window.fetch = async (url, how) => {
  const answer = await window.asTheyAre(url, how);
  if (!url.endsWith("/stats")) return answer;
  const stats = await answer.json();
  stats.%s;
  return new Response(JSON.stringify(stats));
};
"""


def write(daemon: Daemon, name: str, edges: Iterable[tuple[int, int]]) -> None:
    part = daemon.spool / f"{name}.csv.part"
    part.write_text("op,src,dst\n" + "".join(f"insert,{src},{dst}\n" for src, dst in edges))
    part.rename(daemon.spool / f"{name}.csv")


def shown(browser: Chromium, selector: str) -> list[str]:
    """The texts of what this selects, where they can be seen."""
    expression = (
        "[...document.querySelectorAll(%r)].filter(one => one.checkVisibility()).map(one => one.innerText)"
    )
    found: list[str] = browser.evaluate(expression % selector)
    return found


@pytest.fixture(autouse=True)
def _needs_chromium() -> None:
    if PROGRAM is None:
        skip_or_fail("there is no Chromium (Debian: chromium)")


def test_the_page_shows_the_stream_and_follows_it(tmp_path: Path) -> None:
    programs = [{"name": "pagerank"}, {"name": "components"}, {"name": "sswp", "id": "wide", "source": 3}]
    settings: dict[str, Any] = {"audit": {"full_every_epoch": False}, "program": programs}
    with Daemon(tmp_path, settings) as daemon:
        daemon.listen("tcp://127.0.0.1:0", token=TOKEN)
        daemon.settings["server"]["http"] = ["http://127.0.0.1:0"]
        daemon.listen("tcp://127.0.0.1:0", token=TOKEN)
        write(daemon, "a", [(other, 1) for other in range(3, 30)])
        daemon.start()
        found = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", daemon.log_tail()))
        with Chromium() as browser:
            look(browser, daemon, found[0])


def asked(browser: Chromium, path: str) -> list[float]:
    """When the page asked for what it has by now, in milliseconds of its own clock."""
    expression = (
        "performance.getEntriesByType('resource').filter(one => one.name.endsWith(%r)).map(one => one.startTime)"
    )
    found: list[float] = browser.evaluate(expression % path)
    return found


def choose(browser: Chromium, id: str, value: str) -> None:
    expression = (
        "(one => { one.value = %r; one.dispatchEvent(new Event('change')); })(document.getElementById(%r))"
    )
    browser.evaluate(expression % (value, id))


def look(browser: Chromium, daemon: Daemon, url: str) -> None:
    browser.open(url)
    until(lambda: shown(browser, "#door label") == ["This server asks for a token"])
    assert shown(browser, "main") == []
    enter(browser, "a wrong token")
    until(lambda: shown(browser, "#state") == ["the token is wrong"])
    enter(browser, TOKEN, times=2)
    until(lambda: shown(browser, "#edges") == ["27"])
    assert shown(browser, "#state") == ["running"] and shown(browser, "#door") == []
    assert shown(browser, "#vertices") == ["28"]
    until(lambda: shown(browser, "#top tbody th")[:1] == ["1"])
    assert sorted(shown(browser, "#programs tbody th")) == ["components", "pagerank", "wide"]
    assert shown(browser, "#placement tbody th") == ["host"]
    until(lambda: shown(browser, "#updates-rate") == ["0"])

    write(daemon, "b", [(other, 2) for other in range(3, 100)])
    until(lambda: shown(browser, "#edges") == ["124"])
    until(lambda: shown(browser, "#top tbody th")[:1] == ["2"])
    assert len(shown(browser, "#top tbody th")) == 10

    # The first vertices of each epoch are told: nobody asks for them, and the first subscription goes on.
    write(daemon, "c", [(other, 555) for other in range(3, 400)])
    until(lambda: shown(browser, "#top tbody th")[:1] == ["555"])
    assert asked(browser, "/v1/top") == asked(browser, "/v1/subscribe") == []
    choose(browser, "order", "asc")
    until(lambda: shown(browser, "#top tbody th")[:1] not in ([], ["555"]))
    with daemon.client() as client:
        assert shown(browser, "#top tbody th") == list(map(str, client.top("pagerank", order="asc").ids))
    choose(browser, "program", "components")
    until(lambda: "have no order" in "".join(shown(browser, "#told")))
    # An infinite value (the source's own width) leaves the others their bars.
    choose(browser, "order", "desc")
    choose(browser, "program", "wide")
    bars = "[...document.querySelectorAll('#top progress')].map(one => one.getAttribute('value'))"
    until(lambda: shown(browser, "#top tbody th")[:1] == ["3"])
    assert shown(browser, "#top tbody td")[0] == "Infinity" and set(browser.evaluate(bars)) == {"1"}

    # What epochs took, and how fresh their updates were: of the last ten seconds.
    assert shown(browser, "#stages tbody th") == list(STAGES)
    write(daemon, "d", [(other, 7) for other in range(500, 600)])
    until(
        lambda: all(re.fullmatch(r"[\d.]+ (µs|ms|s)", one) for one in shown(browser, "#fresh-half, #fresh-most"))
    )
    until(
        lambda: all(re.match(r"\d", one) for one in shown(browser, "#stages tr:not(:last-child) td:nth-child(2)"))
    )

    # Whatever holds updates back is said.
    assert shown(browser, "#waiting") == []
    for change, said in (
        ("order.trouble = 'a full disk'", "Epochs wait: a full disk"),
        ("memory.waits_for = 'budget'", "Updates wait for memory (budget)"),
        ("waiting = 'away'", "Reading waits: away"),
    ):
        browser.evaluate(CHANGED_STATS % change)
        until(lambda said=said: shown(browser, "#waiting") == [said])  # type: ignore[misc]
    browser.evaluate("window.fetch = window.asTheyAre")

    # One loop asks, though the token was entered twice at once.
    started = browser.evaluate("performance.now()")
    until(lambda: len([at for at in asked(browser, "/v1/stats") if at > started]) >= 4)
    times = [at for at in asked(browser, "/v1/stats") if at > started]
    assert min(b - a for a, b in itertools.pairwise(times)) > 900

    # Nothing is wider than a phone, nor kept out by the rules of content; of tokens was complained, and of a
    # program without an order.
    browser.open(url, width=360, height=800, scheme="dark")
    until(lambda: shown(browser, "#edges") == ["621"])  # the token is remembered
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    complaints = [one.get("entry", one) for one in browser.said]
    assert {one.get("source") for one in complaints} <= {"network"}
    assert all("401" in one["text"] or "400" in one["text"] for one in complaints)
    daemon.kill()
    until(lambda: shown(browser, "#state") == ["no answer"])


def enter(browser: Chromium, token: str, times: int = 1) -> None:
    until(lambda: shown(browser, "#door label"))
    once = f"document.getElementById('token').value = {token!r}; document.querySelector('#door button').click();"
    browser.evaluate(once * times)
