"""Command lines that pages show, run as they stand but for where things are.

A shell block says in a comment before it who runs it: ``<!-- run by tests/FILE -->``. That file has a test with
``Shell(PAGE, __file__, ...)``, which runs the lines of all such blocks of the page, each in bash, and fails at its
end if one of them was left out. In the place of what a page names stands nothing else than

- for its ports, those that the test has (``ports``), in lines and in settings that a page gives alike;
- for a word that means a place of the reader's (``broker1``, ``ADDRESS``), that place (``words``).

Files have the names that the page gives them, in a folder of the test. What a page does not name (the default
addresses) is told by variables of the environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parents[1]
SHELLS = ("sh", "bash", "console", "shell")


class Block(NamedTuple):
    """A shell block: its text, and what the comment before it says ("" where there is none)."""

    page: Path
    text: str
    remark: str

    @property
    def lines(self) -> list[str]:
        """Its command lines; one that ends in a backslash goes on in the next."""
        return [line for line in re.sub(r"\\\n", " ", self.text).splitlines() if line.strip()]


def blocks(page: Path) -> list[Block]:
    languages = "|".join(SHELLS)
    found = re.findall(
        rf"^(?:<!-- ([^\n]*?) -->\n)?```(?:{languages})\n(.*?)^```",
        page.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [Block(page, text, remark) for remark, text in found]


def replaced(text: str, ports: Mapping[int, int]) -> str:
    """Other ports in the place of these."""
    return re.sub(r"\b(" + "|".join(map(str, ports)) + r")\b", lambda found: str(ports[int(found[0])]), text)


def with_commands() -> dict[str, str]:
    """An environment in which ``graphtide`` is the one that is tested."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


class Shell:
    """What a test runs of a page: every line that the page says it does."""

    def __init__(
        self,
        page: str,
        by: str,
        folder: Path,
        *,
        ports: Mapping[int, int] | None = None,
        words: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``page``: from the root on; ``by``: the test's file; ``folder``: where lines run and leave files."""
        says = f"run by tests/{Path(by).name}"
        self.left = [line for block in blocks(ROOT / page) if block.remark == says for line in block.lines]
        assert self.left, f"{page}: nothing is {says}"
        self.folder = folder
        self._ports, self._words = ports or {}, words or {}
        self._environ = {**with_commands(), **(environ or {})}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            with process:
                process.kill()
        assert error is not None or not self.left, f"not run: {self.left}"

    def replaced(self, text: str) -> str:
        """A line or settings of the page, with what the test has in the place of what the page names."""
        text = replaced(text, self._ports) if self._ports else text
        for word, place in self._words.items():
            text = re.sub(rf"\b{re.escape(word)}\b", place, text)
        return text

    def run(self, beginning: str) -> str:
        """Run the one line that begins so; what it wrote."""
        done = subprocess.run(
            self._command(beginning),
            cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{beginning}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, beginning: str, log: str) -> subprocess.Popen[str]:
        """Start the one line that begins so, until the end; what it writes goes to files of the folder.

        These are called ``log`` and, for what is no result, ``log.err``.
        """
        with (self.folder / log).open("w") as file, (self.folder / f"{log}.err").open("w") as errors:
            process = subprocess.Popen(
                self._command(beginning, goes_on=True),
                cwd=self.folder, env=self._environ, stdout=file, stderr=errors, text=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def _command(self, beginning: str, *, goes_on: bool = False) -> list[str]:
        (line,) = [line for line in self.left if line.startswith(beginning)]
        self.left.remove(line)
        return ["bash", "-euo", "pipefail", "-c", f"{'exec ' if goes_on else ''}{self.replaced(line)}"]
