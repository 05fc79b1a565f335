"""docs/notebooks.md: its blocks are run in their order, as cells of one notebook."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from documented import ROOT, Shell
from running import Daemon

PAGE = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def test_the_cells_of_the_page_lead_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    settings = tomllib.loads(text)
    cells = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with Daemon(tmp_path, {section: settings[section] for section in ("graph", "program")}) as daemon:
        daemon.start()
        places = {"tcp://127.0.0.1:7420": daemon.address}
        with Shell("docs/notebooks.md", __file__, tmp_path, words=places) as shell:
            for language, cell in cells:
                if language == "sh":
                    shell.run(cell.strip())
                else:
                    exec(shell.replaced(cell), names)
        names["c"].close()
    assert names["top"].index[0] == 3 and list(names["both"].columns) == ["pagerank", "components"]
    assert set(names["both"]["components"]) == {1}
    assert names["stats"]["edges"] == len(names["graph"].edges) == 5
    assert sorted(names["ranks"].index) == [1, 2, 3, 4]
    assert "components" in capsys.readouterr().out
