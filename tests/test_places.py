"""Folders and files that settings name: what is wrong with them shows before anything is compiled."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphtide.daemon import places
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError

KAFKA = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:1"], "topics": ["edges"]}
TLS = {"security_protocol": "SSL"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a file": (
        {"source": {"path": "file"}},
        r"^source.path = 'file' cannot be used: it is a file, and must be a folder; .*produce --spool DIR",
    ),
    "below a file": (
        {"dead_letters": {"path": "file/below/it"}},
        "^dead_letters.path = 'file/below/it' cannot be used: '/.*/file' is a file",
    ),
    "a link to nowhere": (
        {"results": {"kind": "spool", "path": "link"}},
        "^results.path = 'link' cannot be used: it is a link to 'nowhere', which is not there",
    ),
    "a long name": ({"source": {"path": 300 * "x"}}, "^source.path = 'xxx.*' cannot be used: File name too long"),
    "an authority": (
        {"source": {**KAFKA, "client": {**TLS, "ssl_cafile": "none.pem"}}},
        "^source.client: ssl_cafile = 'none.pem': No such file",
    ),
    "no certificate": (
        {"source": {**KAFKA, "client": {**TLS, "ssl_certfile": "file"}}},
        r"^source.client: .*\(see ssl_certfile\)",
    ),
    "of results": (
        {
            "results": {
                **{"kind": "kafka", "topic": "r", "bootstrap_servers": ["127.0.0.1:1"]},
                "client": {**TLS, "ssl_cafile": "none.pem"},
            }
        },
        "^results.client: ssl_cafile = 'none.pem': No such file",
    ),
    "of the registry": (
        {"source": {"registry": {"url": "https://127.0.0.1:1", "ca_file": "none.pem"}}},
        r"^source.registry: certificates cannot be used \(none.pem\)",
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("1 2\n")
    (tmp_path / "link").symlink_to("nowhere")
    return tmp_path


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_place_is_said_with_its_key(here: Path, name: str) -> None:
    tables, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        places.require_places(from_tables(tables))


def test_what_is_missing_will_be_made_and_nothing_is_made_before(here: Path) -> None:
    before = sorted(here.iterdir())
    tables = {"source": {"path": "a/b"}, "dead_letters": {"path": "c"}, "results": {"kind": "spool", "path": "d"}}
    places.require_places(from_tables(tables))
    assert sorted(here.iterdir()) == before


def test_who_may_not_use_a_folder_is_told_which_and_who(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied: dict[str, int] = {}
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & denied.get(Path(path).name, 0))
    (here / "made").mkdir()
    denied["made"] = os.R_OK
    places.require_folder("results.path", Path("made"), os.W_OK)
    with pytest.raises(ConfigError, match=rf"'made' .*: user {os.geteuid()} may not read '/.*/made'"):
        places.require_folder("source.path", Path("made"), os.R_OK)
    denied[here.name] = os.W_OK
    with pytest.raises(ConfigError, match=rf"'new/one' .* may not write to '{here}'"):
        places.require_folder("source.path", Path("new/one"), os.R_OK)


def test_a_disk_that_is_read_only_just_now_is_no_mistake(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    places.require_folder("results.path", Path("new"), os.W_OK)


def test_a_disk_that_fails_just_now_is_no_mistake(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "exists", fails)
    places.require_folder("source.path", Path("new"), os.R_OK)
