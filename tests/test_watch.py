"""``graphtide watch``: on a terminal a table of what changed, elsewhere a line for each change."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_subscribing import Results, results
from typer.testing import CliRunner
from waiting import PATIENCE_S

from graphtide.daemon import cli
from graphtide.daemon.client import Change
from graphtide.daemon.client.blocking import Subscription
from graphtide.daemon.tools import watch as watch_module
from graphtide.daemon.tools.watch import Board, watch


def change(number: int, values: dict[Any, Any], *, since: int | None = None, removed: Any = ()) -> Change:
    shown = np.ma.MaskedArray(
        [0 if value is None else value for value in values.values()],
        mask=[value is None for value in values.values()],
    )
    return Change(
        (1, number), {}, None if since is None else (1, since), np.array(list(values)), shown, np.array(removed)
    )


def rows(board: Board) -> list[list[str]]:
    """The table, its heading left out, and the line below it."""
    console = Console(file=io.StringIO(), width=100)
    console.print(board.shown())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.split() for line in text.splitlines()[1:]]


def test_the_board_shows_what_changed_last() -> None:
    board = Board(2, None)
    board.take(change(1, {5: 1.0, 6: 2.0, 7: None}))
    board.take(change(2, {5: 3.0, 7: 0.5}, since=1))
    assert rows(board)[:2] == [["7", "0.5", "-", "1.2"], ["5", "3", "1", "1.2"]]
    board.take(change(4, {6: 2.5}, since=2, removed=[7]))
    assert rows(board) == [
        ["6", "2.5", "2", "1.4"],
        ["5", "3", "1", "1.2"],
        ["epoch", "1.4,", "7", "changes,", "2", "vertices"],
    ]
    board.take(change(9, {8: 1.0}))  # a snapshot
    assert rows(board)[0] == ["8", "1", "-", "1.9"] and len(rows(board)) == 2


@pytest.mark.parametrize(("order", "best"), [("desc", ["8", "5"]), ("asc", ["6", "5"])])
def test_the_board_shows_the_best(order: str, best: list[str]) -> None:
    board = Board(2, order)
    board.take(change(1, {5: 1.0, 6: 2.0, 7: None, 8: 4.0}))
    board.take(change(2, {5: 3.0}, since=1))
    assert [row[0] for row in rows(board)[:2]] == best


def published_when_watched(made: Results, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """Another epoch once somebody has heard of the first: else one message could tell of both."""
    heard, hear = threading.Event(), Subscription.__next__

    def next_heard(subscription: Subscription) -> Change:
        change = hear(subscription)
        heard.set()
        return change

    monkeypatch.setattr(Subscription, "__next__", next_heard)

    def publish() -> None:
        assert heard.wait(PATIENCE_S)
        made.rank[1], made.alive[2] = 5, False
        made.publish(rank=[1], moved=[2])

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


def test_lines_say_what_is_a_bound_and_what_counts_no_more() -> None:
    first = change(1, {5: 2.0, 6: None}, removed=[])
    bounded = dataclasses.replace(first, saturated=np.array([True, False]))
    assert watch_module._as_lines(bounded, is_first=True) == "1.1\t5\t>=2\n1.1\t6\t-\n"
    assert watch_module._as_lines(first, is_first=False) == "# 1.1 snapshot\n1.1\t5\t2\n1.1\t6\t-\n"
    later = change(2, {5: 2.0}, since=1)
    assert watch_module._as_lines(later, is_first=False) == "1.2\t5\t2\n"


def test_every_id_is_one_field_of_one_line() -> None:
    ids = ["a\tb", "c\nd\r", "e\\t", "\x1b[2J", "zoë", "\u2028"]
    values = np.ma.MaskedArray(np.array(ids, object), mask=False)
    told = Change((1, 2), {}, (1, 1), ids, values, ["x\ty"])
    lines = watch_module._as_lines(told, is_first=False).split("\n")
    assert lines[0] == "1.2\tx\\ty\tremoved"
    expected = ["a\\tb", "c\\nd\\r", "e\\\\t", "\\x1b[2J", "zoë", "\\u2028"]
    assert lines[1:-1] == [f"1.2\t{id}\t{id}" for id in expected]
    assert "".join(lines).isprintable() is False and len("".join(lines).splitlines()) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_elsewhere_changes_are_lines(tmp_path: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with results(tmp_path, 4) as (made, address):
        publishing = published_when_watched(made, monkeypatch)
        arguments = ["watch", address, "rank", "--vertices", "101,102,9", "--changes", "2"]
        done = CliRunner().invoke(cli.app, [*arguments, *(["--json"] if as_json else [])])
        publishing.join()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    if not as_json:
        assert lines[:2] == ["1.1\t101\t1", "1.1\t102\t1"] and lines[2:] == ["1.2\t102\tremoved", "1.2\t101\t5"]
        return
    first, second = map(json.loads, lines)
    assert (first["epoch"], first["since"], first["ids"], first["values"]) == (
        [1, 1],
        None,
        [101, 102],
        [1.0, 1.0],
    )
    assert second == {
        "epoch": [1, 2],
        "offsets": {"t": {"0": 2}},
        "since": [1, 1],
        "ids": [101],
        "values": [5.0],
        "removed": [102],
    }


def test_on_a_terminal_there_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(watch_module, "output", lambda: Console(file=screen, width=80, force_terminal=True))
    with results(tmp_path, 4) as (made, address):
        publishing = published_when_watched(made, monkeypatch)
        assert watch(address, "rank", top=1, changes_max=2) == 0
        publishing.join()
    text = screen.getvalue()
    assert "vertex" in text and "101" in text and "epoch 1.2" in text


def test_a_dumb_terminal_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would see the table once it is over."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(watch_module, "output", lambda: Console(width=80, force_terminal=True))
    with results(tmp_path, 1) as (_, address):
        assert watch(address, "rank", changes_max=1) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("1.1\t100\t")


@pytest.mark.parametrize("order", [[], ["--order", "asc"]])
def test_the_server_finds_the_best(tmp_path: Path, order: list[str]) -> None:
    with results(tmp_path, 4) as (made, address):
        made.rank[:] = [4, 1, 3, 2]
        made.publish(rank=[0, 1, 2, 3])
        arguments = ["watch", address, "rank", "--top", "1", "--changes", "1", "--json"]
        done = CliRunner().invoke(cli.app, [*arguments, *order])
    assert done.exit_code == 0, done.output
    (told,) = map(json.loads, done.stdout.splitlines())
    assert (told["ids"], told["values"]) == (([101], [1.0]) if order else ([100], [4.0]))


def test_what_cannot_be_watched_is_a_message(tmp_path: Path) -> None:
    with results(tmp_path, 4) as (_, address):
        done = CliRunner().invoke(cli.app, ["watch", address, "none"])
    assert done.exit_code == 1 and "there is no program 'none'" in done.output
    assert CliRunner().invoke(cli.app, ["watch", "nowhere", "rank"]).exit_code == 2


def test_lines_of_json_say_what_is_a_lower_bound() -> None:
    plain = change(1, {5: 1.0, 6: 2.0})
    assert "saturated" not in json.loads(watch_module._as_json(plain))
    bounded = dataclasses.replace(plain, saturated=np.array([False, True]))
    assert json.loads(watch_module._as_json(bounded))["saturated"] == [False, True]
