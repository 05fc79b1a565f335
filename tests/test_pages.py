"""What the pages for operators say of settings, metrics, stages, codes and attacks is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import ATTACKS
from pydantic import BaseModel

from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.config.settings import Config
from graphtide.ops.areas.life import STAGES_OF_LIFE
from graphtide.ops.metrics import catalogue_markdown

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("operations.md", "reliability.md", "security.md", "troubleshooting.md", "protocol.md", "http.md")
TITLES = {
    "operations.md": (
        "Starting", "Stopping, and what a crash costs", "Probes", "Upgrade", "Disk", "Retention of the topic",
        "Cleaning the spool", "Two replicas", "Memory",
    ),
    "security.md": ("Doors", "What is protected", "What is not", "Before `hello`, and after"),
    "reliability.md": ("What is promised", "How it is tested", "What was seen", "What is not promised"),
}  # fmt: skip


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def cells(page: str, title: str) -> list[list[str]]:
    """The rows of the first table under a title, without its head."""
    section = text_of(page).split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def settings_in(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key by its full name, tables included."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from settings_in(kind, f"{prefix}{name}.")


KNOWN = {*settings_in(Config)}
IN_ANSWERS = {"memory.waits_for", "window.is_due", "source.ts_ms"}
"""Named likewise: parts of what is answered, and of a captured change."""


@pytest.mark.parametrize("page", TITLES)
def test_a_page_has_what_it_is_there_for(page: str) -> None:
    titles = re.findall(r"^## (.+)$", text_of(page), re.MULTILINE)
    assert [title for title in TITLES[page] if title not in titles] == []


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?: = [^`]*)?`", text_of(page))
    sections = {name for name in KNOWN if "." not in name}
    meant = [name for name in named if name.partition(".")[0] in sections and name not in IN_ANSWERS]
    assert [name for name in meant if name not in KNOWN] == []


@pytest.mark.parametrize("page", PAGES)
def test_metrics_that_a_page_names_exist(page: str) -> None:
    known = set(re.findall(r"`(graphtide_\w+)`", catalogue_markdown()))
    named = set(re.findall(r"`(graphtide_[a-z_]+\*?)(?:\{[^`]*\})?`", text_of(page)))
    assert {
        name for name in named if not any(one == name or one.startswith(name[:-1]) for one in known)
    } == set(), "named, and not there"


def test_the_stages_of_a_start_are_told_in_their_order() -> None:
    assert [row[0].strip("`") for row in cells("operations.md", "Starting")] == list(STAGES_OF_LIFE)


def test_the_codes_after_which_the_unit_does_not_restart_are_told() -> None:
    unit = (ROOT / "ops" / "systemd" / "graphtide.service").read_text("utf-8")
    codes = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    told = re.search(r"starts the daemon again\s+except\s+after ([\d, ]+) and (\d+):", text_of("operations.md"))
    assert codes is not None and told is not None
    assert codes[1].split() == [*told[1].split(", "), told[2]]


def test_limits_that_the_page_on_security_gives_are_those_of_the_settings() -> None:
    """As ``name`` (value unit)."""
    units = {"": 1, " s": 1, " KiB": 1 << 10, " MiB": 1 << 20}
    found = re.findall(r"`(\w+)` \((\d+)( s| KiB| MiB|)\)", text_of("security.md"))
    assert len(found) >= 4
    limits = LimitsConfig()
    for name, value, unit in found:
        assert getattr(limits, name) == int(value) * units[unit], name


def test_every_attack_is_told() -> None:
    told = [name for row in cells("reliability.md", "How it is tested") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(attack.__name__ for attack in ATTACKS)
