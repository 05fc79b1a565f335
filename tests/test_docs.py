"""Commands in the documentation are run: the tutorial's here, others where the page says so, or says why not.

A shell block is run, or a comment stands before it: ``<!-- run by tests/FILE -->``, ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from conftest import skip_or_fail
from test_dashboards import tool
from typer.main import get_command

from graphtide.daemon import cli
from graphtide.ops.kafka import held_port, missing_tools

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"
SHELLS = ("sh", "bash", "console", "shell")


class Block(NamedTuple):
    """A shell block: its text, and what the comment before it says ("" where there is none)."""

    page: Path
    text: str
    remark: str


def blocks(page: Path) -> list[Block]:
    languages = "|".join(SHELLS)
    found = re.findall(
        rf"^(?:<!-- ([^\n]*?) -->\n)?```(?:{languages})\n(.*?)^```",
        page.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [Block(page, text, remark) for remark, text in found]


ALL = [block for page in PAGES for block in blocks(page)]


def test_every_shell_block_is_run_or_says_why_it_is_not() -> None:
    assert len(ALL) > 10
    for block in ALL:
        said = f"{block.page.name}: {block.text}"
        by, not_run = (
            re.fullmatch(form, block.remark) for form in (r"run by (tests/\w+\.py)", r"not run: (.{10,})")
        )
        assert by or not_run or (block.page == TUTORIAL and not block.remark), said
        if by:
            assert block.page.name in (ROOT / by[1]).read_text("utf-8"), (
                f"{by[1]} does not read the page of {said}"
            )
        for path in re.findall(r"\btests/\w+\.py", block.remark):
            assert (ROOT / path).is_file(), said


def test_every_command_line_is_one_that_graphtide_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all shell blocks, and in the text where a whole command line is shown."""
    monkeypatch.chdir(tmp_path)
    command = get_command(cli.app)
    lines = [line for block in ALL for line in re.sub(r"\\\n", " ", block.text).splitlines()]
    shown = [re.findall(r"`(graphtide [^`\n]+)`", page.read_text("utf-8")) for page in PAGES]
    count = 0
    for line in [*lines, *(text for texts in shown for text in texts)]:
        for part in re.findall(
            r"(?:^|&& |until |exec graphtide )(graphtide [a-z]+.*?)(?=$| &&|;| >| \||\s#)", line
        ):
            one, words = command, shlex.split(part)[1:]
            while words and words[0] in getattr(one, "commands", {}):
                one = one.commands[words.pop(0)]  # type: ignore[attr-defined]
            assert one is not command, line
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            known = {option for parameter in one.params for option in (*parameter.opts, *parameter.secondary_opts)}
            if one.name != "query":  # whose options are the parameters of the request
                assert options <= known | {"--help"}, line
            count += 1
    assert count > 15


# -- the tutorial -------------------------------------------------------------------------------------------


def replaced(text: str, ports: dict[int, int]) -> str:
    return re.sub(r"\b(" + "|".join(map(str, ports)) + r")\b", lambda found: str(ports[int(found[0])]), text)


def running_in(folder: Path) -> list[psutil.Process]:
    """The processes whose working directory lies in this folder, also where it is gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


@pytest.mark.kafka
@pytest.mark.prometheus
@pytest.mark.timeout(900)  # where no kernels are cached, the first start compiles them
def test_the_tutorial_leads_to_a_dashboard_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """All commands in one shell, in a folder like the checkout; ports and paces differ."""
    if reason := missing_tools():
        skip_or_fail(reason)
    tool("prometheus")
    script = "\n".join(block.text for block in blocks(TUTORIAL) if not block.remark)
    with contextlib.ExitStack() as held:
        chosen = {port: held.enter_context(held_port()) for port in (9092, 7420, 9420, 9090)}
        assert all(str(port) in script for port in chosen)
        folder = tmp_path / "ops" / "prometheus"
        shutil.copytree(ROOT / "ops" / "prometheus", folder)
        scrape = (folder / "scrape.yml").read_text("utf-8")
        (folder / "scrape.yml").write_text(replaced(scrape, chosen).replace("15s", "200ms"), "utf-8")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        commands = replaced(script, chosen).replace("sleep 1;", "sleep 0.2;")
        command = ["bash", "-euo", "pipefail", "-c", commands]
        log = tmp_path / "log"
        try:
            with log.open("w") as file:
                done = subprocess.run(
                    command, cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=file, stderr=file, timeout=840
                )
        finally:
            left = running_in(tmp_path)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, 60)
    shown = log.read_text("utf-8")
    assert done.returncode == 0, shown
    assert "followers" in shown and '"value"' in shown
    assert not (tmp_path / "tide").exists() and not left
