"""The demonstration: it passes on right answers, and fails on one wrong one."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphtide.daemon.errors import ConfigError, NotWritten
from graphtide.daemon.tools import demo, verify
from graphtide.daemon.tools.demo import DemoFailed, make_stream, run_demo
from graphtide.daemon.tools.files import BadInput
from graphtide.gpma.edges import Op


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MATHOVERFLOW", Path("/nowhere"))
    monkeypatch.setattr(demo, "STREAM_SECONDS", 1)


def test_the_generated_stream_has_skew_and_a_fifth_of_deletions() -> None:
    updates = make_stream(None, 100_000, None).updates
    assert len(updates) == 100_000
    assert 0.1 < (updates.ops == Op.DELETE).mean() < 0.21


def test_columns_of_other_names_are_refused_without_naming_an_option_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("from,to\n1,2\n")
    with pytest.raises(BadInput, match="The demo takes no other names") as caught:
        make_stream(tmp_path / "a.csv", None, None)
    assert "--column" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "content"), [("people.el", "1 2\nalice bob\n"), ("people.csv", "src,dst\nalice,bob\n")]
)
def test_ids_that_are_texts_are_refused_without_naming_an_option_of_others(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match="the demo takes ids that are integers") as caught:
        make_stream(tmp_path / name, None, None)
    assert "--vertex-ids" not in caught.value.message


def test_every_answer_is_checked_and_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'a "b" \\c é'
    of_another_daemon = tmp_path / "checkpoints of another daemon"
    monkeypatch.setenv("GRAPHTIDE_CHECKPOINT__PATH", str(of_another_daemon))
    monkeypatch.setenv("GRAPHTIDE_GRAPH__DIRECTED", "false")
    assert run_demo(data=None, updates=20_000, window=None, keep=folder) == 0
    shown = capsys.readouterr().out
    assert "every answer was right" in shown
    assert "Ranked highest" in shown
    assert (folder / "checkpoints").is_dir(), "the folder that was asked for stays"
    assert not of_another_daemon.exists(), "settings of the environment are another daemon's"


def test_one_wrong_answer_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = verify.FinalGraph.replay

    def without_one_edge(*columns: Any, **options: Any) -> verify.FinalGraph:
        final = replay(*columns, **options)
        return verify.FinalGraph(final.ids, final.src[1:], final.dst[1:])

    monkeypatch.setattr(verify.FinalGraph, "replay", without_one_edge)
    with pytest.raises(DemoFailed, match="edges: 1 of 1 differ"):
        run_demo(data=None, updates=20_000, window=None, keep=None)


def test_a_temporary_folder_may_have_a_name_too_long_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("x" * 60) / ("y" * 60)
    long.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert run_demo(data=None, updates=1_000, window=None, keep=None) == 0
    assert "every answer was right" in capsys.readouterr().out
    assert not list(long.iterdir()), "nothing is left there"


def test_where_no_folder_has_a_short_name_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 120)
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(ConfigError, match="name another one with TMPDIR"):
        run_demo(data=None, updates=1_000, window=None, keep=tmp_path)


def test_a_full_temporary_folder_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(demo, "_daemon", full)
    with pytest.raises(NotWritten, match=r"/graphtide-demo-.*: No space left on device: .* with TMPDIR or --keep"):
        run_demo(data=None, updates=100, window=None, keep=None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("leaves", [499, 4999])
def test_the_power_iteration_ends_where_rounding_would_go_on(leaves: int) -> None:
    """At the middle of a star the sum of all leaves' ranks never comes to rest."""
    n, middle = leaves + 1, leaves
    star = verify.FinalGraph(np.arange(n), np.arange(leaves), np.full(leaves, middle))
    of_leaf = 1 / (n + 0.85 * leaves)
    expected = np.full(n, of_leaf)
    expected[middle] += 0.85 * leaves * of_leaf
    np.testing.assert_allclose(star.pagerank(), expected, rtol=1e-10)


def test_a_windowed_file(tmp_path: Path) -> None:
    path = tmp_path / "events.tsv"
    path.write_text("I\t1\t2\t-\t100\nI\t2\t3\t-\t105\nI\t1\t2\t-\t200\n")
    stream = make_stream(path, None, window=20)
    assert stream.updates.ops.tolist() == [1, 1, 0, 0, 1]
    assert stream.root == 1
    # The daemon is told of the inserts, and finds out by itself what goes.
    assert stream.sent.src.tolist() == [1, 2, 1]
    assert stream.sent.timestamps_ms is not None
    assert stream.sent.timestamps_ms.tolist() == [100_000, 105_000, 200_000]
    assert len(make_stream(path, 4, window=20).updates) == 2, (
        "a delete at the end has no insert that it comes with"
    )
