"""Commands in the documentation are run: the tutorial's here, others where the page says so, or says why not.

A shell block is run, or a comment stands before it: ``<!-- run by tests/FILE -->`` (by a ``documented.Shell``
there), ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import kafka
import msgpack
import numpy as np
import psutil
import pytest
from conftest import skip_or_fail
from documented import ROOT, Shell, blocks, replaced, with_commands
from test_dashboards import tool
from typer.main import get_command

from graphtide.daemon import cli
from graphtide.ops.kafka import held_port, missing_tools

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"

ALL = [block for page in PAGES for block in blocks(page)]


def pages_run_by(file: Path) -> set[str]:
    """Those whose lines tests of this file run: none of them passes that leaves one out."""
    tests = [
        item
        for item in ast.parse(file.read_text("utf-8")).body
        if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")
    ]
    return {
        page.value
        for test in tests
        for item in ast.walk(test)
        if isinstance(item, ast.With)
        for call in (each.context_expr for each in item.items)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Shell"
        for page, by in [call.args[:2]]
        if isinstance(page, ast.Constant) and isinstance(by, ast.Name) and by.id == "__file__"
    }


def test_a_page_whose_lines_are_not_all_run_is_found(tmp_path: Path) -> None:
    shell = Shell("docs/http.md", "tests/test_http.py", tmp_path)
    lines = list(shell.left)
    assert len(lines) > 3
    with pytest.raises(AssertionError, match=re.escape("not run: ")), shell:
        shell.left = lines[:1]
    with pytest.raises(AssertionError, match="nothing is run by"):
        Shell("docs/http.md", __file__, tmp_path)
    (tmp_path / "test_x.py").write_text("def helper():\n    with Shell('a.md', __file__):\n        pass\n")
    assert pages_run_by(tmp_path / "test_x.py") == set()


def test_every_shell_block_is_run_or_says_why_it_is_not() -> None:
    assert len(ALL) > 10
    for block in ALL:
        said = f"{block.page.name}: {block.text}"
        by, not_run = (
            re.fullmatch(form, block.remark) for form in (r"run by (tests/\w+\.py)", r"not run: (.{10,})")
        )
        assert by or not_run or (block.page == TUTORIAL and not block.remark), said
        if by:
            page = str(block.page.relative_to(ROOT))
            assert page in pages_run_by(ROOT / by[1]), f"{by[1]} has no test with Shell({page!r}, __file__, ...)"
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


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_page_and_a_heading_of_it() -> None:
    count = 0
    for page in PAGES:
        for path, anchor in re.findall(r"\]\(([^):#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
            to = (page.parent / path) if path else page
            assert to.exists(), f"{page.name}: {path}"
            assert not anchor or anchor in headings(to), f"{page.name}: {path}#{anchor}"
            count += 1
    assert count > 50


def test_pages_name_files_and_code_that_there_are() -> None:
    """Files on every page but the logs, whose old figures tell of old code; on those for developers all names."""
    rooms = ("benchmarks", "compute", "daemon", "gpma", "ops", "partition", "tests")
    code = [path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".cu", ".cuh")]
    texts = [path.read_text("utf-8") for path in (*code, ROOT / "Makefile", ROOT / "pyproject.toml")]
    words = set(re.findall(r"\w+", "\n".join(texts)))
    missing, count = [], 0
    for page in (ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for named in re.findall(r"`([^`]+)`", text):
            if re.fullmatch(r"[\w./*-]+\.(py|cu|cuh)", named):
                is_there = any(path.match(named) for path in code)
            elif page.parent == ROOT and re.fullmatch(r"@?[A-Za-z_][\w.]*", named):
                is_there = set(re.findall(r"\w+", named)) <= words
            else:
                continue
            count += 1
            missing += [] if is_there else [f"{page.name}: {named}"]
    assert missing == [] and count > 150


def test_the_page_of_benchmarks_leads_to_every_log() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    linked = set(re.findall(r"\]\((measurements/\w[\w-]*\.md)", page.read_text("utf-8")))
    logs = {f"measurements/{path.name}" for path in (ROOT / "docs" / "measurements").glob("*.md")}
    assert linked == logs and len(logs) > 8


# -- the tutorial -------------------------------------------------------------------------------------------


def running_in(folder: Path) -> list[psutil.Process]:
    """The processes whose working directory lies in this folder, also where it is gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def test_the_stream_of_the_tutorial_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may go on for days. All that it sends is true of what it remembers."""
    script = TUTORIAL.read_text("utf-8").split("cat > stream.py <<'EOF'\n")[1].split("EOF\n")[0]
    edges = {(0, 1), (1, 0)}
    sent = 0

    class Done(Exception):
        pass

    class Producer:
        def __init__(self, **_: object) -> None:
            pass

        def send(self, topic: str, value: bytes, key: bytes) -> None:
            nonlocal sent
            record = msgpack.unpackb(value)
            columns = (np.frombuffer(record[name], "<i8").tolist() for name in ("src", "dst"))
            for op, edge in zip(record["op"], zip(*columns, strict=True), strict=True):
                edges.add(edge) if op else edges.discard(edge)
            sent += 1
            if sent == 20_000:
                raise Done

    monkeypatch.setattr(kafka, "KafkaProducer", Producer)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    names: dict[str, Any] = {}
    with pytest.raises(Done):
        exec(script.replace("people = 10_000", "people = 100"), names)
    follows = names["follows"]
    assert len(follows) == 100
    assert max(map(len, follows.values())) < 150
    assert sorted((one, other) for one, others in follows.items() for other in others) == sorted(edges)


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
        commands = replaced(script, chosen).replace("sleep 1;", "sleep 0.2;")
        command = ["bash", "-euo", "pipefail", "-c", commands]
        log = tmp_path / "log"
        try:
            with log.open("w") as file:
                done = subprocess.run(
                    command, cwd=tmp_path, env=with_commands(), stdout=file, stderr=file, timeout=840
                )
        finally:
            left = running_in(tmp_path)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, 60)
    shown = log.read_text("utf-8")
    assert done.returncode == 0, shown
    followers = [int(number) for number in re.findall(r"and (\d+) followers", shown)]
    assert len(followers) == 6 and all(followers), shown  # the three best, asked twice
    assert '"value"' in shown
    assert not (tmp_path / "tide").exists() and not left
