"""docs/troubleshooting.md knows every code, reason and alert."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from graphtide.daemon import cli, errors
from graphtide.daemon.ingest.decode import REASONS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def rows(title: str) -> str:
    """The first cells of the table under a title."""
    section = PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    return "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))


def test_every_error_is_explained() -> None:
    """Wherever it is declared, also in modules that not every machine can import."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "daemon").rglob("*.py"))]
    codes = {code for text in texts for code in re.findall(r'^    code(?:: [^=]+)? = "([^"]+)"$', text, re.M)}
    assert {"internal", "registry-away", "dead-letters-full"} <= codes
    assert codes - set(re.findall(r"`([a-z-]+)`", PAGE)) == set()


def test_every_exit_code_is_explained() -> None:
    said = {int(code) for code in re.findall(r"(?:^|[ :])(\d+) (?=[a-z])", cli.EXIT_CODES)} - {0}
    assert said == {int(code) for code in re.findall(r"^ *(\d+) *$", rows("The daemon"), re.M)}


def test_every_code_of_the_protocol_is_explained() -> None:
    codes = {kind.code for _, kind in inspect.getmembers(errors, inspect.isclass) if _is_answered(kind)}
    assert codes | {"internal"} == set(re.findall(r"`([a-z-]+)`", rows("Questions")))


def _is_answered(kind: type) -> bool:
    return issubclass(kind, errors.RequestError)


def test_every_reason_of_dead_letters_is_explained() -> None:
    assert set(REASONS) == set(re.findall(r"`([a-z-]+)`", rows("Records")))


def test_every_alert_is_explained() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "ops" / "prometheus" / "alerts.yml").read_text()))
    assert alerts == set(re.findall(r"`(\w+)`", rows("Alerts")))
