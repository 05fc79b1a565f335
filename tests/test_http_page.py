"""The page at the HTTP door of a real daemon, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from chromium import PROGRAM, Chromium
from conftest import skip_or_fail
from running import Daemon
from waiting import until

TOKEN = "sesame-open"


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
    settings: dict[str, Any] = {"audit": {"full_every_epoch": False}}
    with Daemon(tmp_path, settings) as daemon:
        daemon.listen("tcp://127.0.0.1:0", token=TOKEN)
        daemon.settings["server"]["http"] = ["http://127.0.0.1:0"]
        daemon.listen("tcp://127.0.0.1:0", token=TOKEN)
        write(daemon, "a", [(other, 1) for other in range(3, 30)])
        daemon.start()
        found = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", daemon.log_tail()))
        with Chromium() as browser:
            look(browser, daemon, found[0])


def look(browser: Chromium, daemon: Daemon, url: str) -> None:
    browser.open(url)
    until(lambda: shown(browser, "#door label") == ["This server asks for a token"])
    assert shown(browser, "main") == []
    enter(browser, "a wrong token")
    until(lambda: shown(browser, "#state") == ["the token is wrong"])
    enter(browser, TOKEN)
    until(lambda: shown(browser, "#edges") == ["27"])
    assert shown(browser, "#state") == ["running"] and shown(browser, "#door") == []
    assert shown(browser, "#vertices") == ["28"]
    until(lambda: shown(browser, "#top tbody th")[:1] == ["1"])
    assert sorted(shown(browser, "#programs tbody th")) == ["components", "pagerank"]
    assert shown(browser, "#placement tbody th") == ["host"]
    until(lambda: shown(browser, "#updates-rate") == ["0"])

    write(daemon, "b", [(other, 2) for other in range(3, 100)])
    until(lambda: shown(browser, "#edges") == ["124"])
    until(lambda: shown(browser, "#top tbody th")[:1] == ["2"])
    assert len(shown(browser, "#top tbody th")) == 10

    # Nothing is wider than a phone, nor kept out by the rules of content; of tokens alone was complained.
    browser.open(url, width=360, height=800, scheme="dark")
    until(lambda: shown(browser, "#edges") == ["124"])  # the token is remembered
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    complaints = [one.get("entry", one) for one in browser.said]
    assert {one.get("source") for one in complaints} <= {"network"}
    assert all("401" in one["text"] for one in complaints)
    daemon.kill()
    until(lambda: shown(browser, "#state") == ["no answer"])


def enter(browser: Chromium, token: str) -> None:
    until(lambda: shown(browser, "#door label"))
    browser.evaluate(f"document.getElementById('token').value = {token!r}")
    browser.evaluate("document.querySelector('#door button').click()")
