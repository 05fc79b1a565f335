"""Graphs in files: precisely those that published results belong to; and checkpoints made, shown and copied."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as arrow
import pytest
from disks import filled, small_disk
from pyarrow import parquet
from running import Daemon
from typer.testing import CliRunner
from waiting import until

from graphtide import Client
from graphtide.daemon import cli, durable
from graphtide.daemon.errors import NotWritten, RequestError, TimedOut
from graphtide.daemon.state import checkpoint
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore, folder_of
from graphtide.daemon.tools import checkpoints
from graphtide.daemon.tools.export import exported, write
from graphtide.daemon.tools.files import Accepts, read_updates
from graphtide.daemon.tools.top import summary, take
from graphtide.gpma.edges import EdgeBatch
from graphtide.gpma.index.ids import StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.partition.graph import Graph

PROGRAMS: list[dict[str, Any]] = [
    {"name": "sssp", "id": "far", "source": 1_000},
    {"name": "kcore"},
    {"name": "triangles"},
]
N = 60


class Fed:
    """A daemon, and a client of it, with a stream that is read to its end."""

    def __init__(self, daemon: Daemon, client: Client) -> None:
        self.daemon, self.client = daemon, client
        self.rng = np.random.default_rng(3)
        self.files = 0

    def feed(self, updates: int = 200) -> tuple[int, int]:
        """Some more updates, in a file of their own: the epoch that has them."""
        src, dst = self.rng.integers(1_000, 1_000 + N, (2, updates)).tolist()
        weights = self.rng.integers(1, 9, updates).tolist()
        ops = self.rng.choice(["insert", "delete"], updates, p=[0.8, 0.2]).tolist()
        lines = [f"{op},{u},{v},{w}" for op, u, v, w in zip(ops, src, dst, weights, strict=True)]
        lines += ["delete_vertex,1007,,", "insert_vertex,5,,"]
        self.files += 1
        file = self.daemon.spool / f"{self.files:03}.csv"
        file.write_text("\n".join(["op,src,dst,weight", *lines]) + "\n")
        self.client.wait({file.name: file.stat().st_size}, timeout_ms=300_000)
        return self.client.stats().epoch


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    settings = {"program": PROGRAMS, "graph": {"weights": "non-negative"}, "metrics": {"listen": "127.0.0.1:0"}}
    with Daemon(tmp_path_factory.mktemp("daemon"), settings) as daemon:
        daemon.start()
        with daemon.client() as client:
            made = Fed(daemon, client)
            made.feed()
            yield made


def run(*arguments: str | Path) -> Any:
    """What a command prints as JSON."""
    done = CliRunner().invoke(cli.app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(code: int, *arguments: str | Path) -> str:
    done = CliRunner().invoke(cli.app, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


NAMES = ("g.npz", "g.txt", "g.csv", "g.parquet", "g.arrow")


def read(file: Path) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """The rows of a file, and what it says of itself; by code that shares none with the tool."""
    match file.suffix:
        case ".npz":
            with np.load(file) as content:
                columns = [content[name].tolist() for name in ("src", "dst", "weight")]
                return list(zip(*columns, strict=True)), json.loads(str(content["graphtide"]))
        case ".txt":
            first, second, *lines = file.read_text().splitlines()
            assert second == "# src dst weight"
            rows = [(int(u), int(v), float(w)) for u, v, w in map(str.split, lines)]
            return rows, json.loads(first.removeprefix("# graphtide "))
        case ".csv":  # which does not say of which epoch it is
            with file.open(newline="") as text:
                lines = csv.DictReader(text)
                return [(int(line["src"]), int(line["dst"]), float(line["weight"])) for line in lines], {}
        case ".parquet":
            table = parquet.read_table(file)
        case _:
            with arrow.ipc.open_file(file) as opened:
                table = opened.read_all()
    return [tuple(row.values()) for row in table.to_pylist()], json.loads(table.schema.metadata[b"graphtide"])


def test_a_file_is_the_graph_of_the_results(fed: Fed, tmp_path: Path) -> None:
    """Each format; the values of its epoch are those that NetworkX finds on it."""
    fed.feed()
    ids = [5, *range(1_000, 1_000 + N)]
    results = fed.client.get(["far", "kcore", "triangles"], ids)
    seen = []
    for name in NAMES:
        vertices = tmp_path / f"vertices-{name}"
        said = run(
            "export", tmp_path / name, "--address", fed.daemon.address, "--vertices", vertices, "--timeout", "300"
        )
        rows, about = read(tmp_path / name)
        about = about or {key: value for key, value in said.items() if key != "path"}
        assert said == {**about, "path": str(tmp_path / name)}
        assert tuple(about["epoch"]) == results["far"].epoch and about["offsets"] == results["far"].offsets
        assert about["edges"] == len(rows) == len({row[:2] for row in rows})
        seen.append(sorted(rows))
    assert seen == [seen[0]] * len(NAMES)
    with np.load(tmp_path / "vertices-g.npz") as content:
        known = content["id"].tolist()
    assert 5 in known and len(known) == fed.client.stats().content["vertices"]
    made = nx.DiGraph()
    made.add_nodes_from(known)
    made.add_weighted_edges_from(seen[0])
    distance = nx.single_source_dijkstra_path_length(made, 1_000)
    simple = made.to_undirected()
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    expected = {"far": distance, "kcore": nx.core_number(simple), "triangles": nx.triangles(simple)}
    for id, values in expected.items():
        found = {v: x for v, x in zip(ids, results[id].values.tolist(), strict=True) if x is not None}
        assert found == values
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        prefix + name for name in NAMES for prefix in ("", "vertices-")
    )


def test_an_epoch_to_come_is_waited_for_and_one_that_is_gone_is_not(fed: Fed, tmp_path: Path) -> None:
    incarnation, number = fed.feed()
    wanted = (incarnation, number + 1)

    def is_wished() -> bool:
        """The engine knows: it answered before the time was over."""
        with pytest.raises(TimedOut) as waited:
            fed.client.checkpoint(at=wanted, timeout_ms=100)
        return "since" in waited.value.detail

    assert "was not reached within" in refused(
        3, "export", tmp_path / "g.npz", "-a", fed.daemon.address, "--at", f"{incarnation}.99999", "--timeout", "0"
    )
    with ThreadPoolExecutor(1) as pool, fed.daemon.client() as other:
        waiting = pool.submit(other.checkpoint, at=wanted, timeout_ms=300_000)
        until(is_wished)
        fed.feed()
        assert waiting.result().path.endswith(f"checkpoint-{incarnation}-{number + 1}")
    at = ".".join(map(str, wanted))
    about = run("export", tmp_path / "g.npz", "-a", fed.daemon.address, "--at", at, "--timeout", "300")
    assert tuple(about["epoch"]) == wanted and read(tmp_path / "g.npz")[1]["epoch"] == list(wanted)
    fed.feed()
    again = run("export", tmp_path / "h.npz", "-a", fed.daemon.address, "--at", at)  # which is there still
    assert again["epoch"] == about["epoch"]
    message = refused(1, "export", tmp_path / "i.npz", "-a", fed.daemon.address, "--at", "0.1")
    assert "can be made any more" in message and f"There are checkpoints of: {at}" in message
    assert not (tmp_path / "i.npz").exists()
    with pytest.raises(RequestError, match="exclude"):
        fed.client.checkpoint(at=wanted, since=wanted)


def test_checkpoints_are_made_listed_verified_and_copied_to_start_from(fed: Fed, tmp_path: Path) -> None:
    fed.feed()
    made = run("checkpoint", "now", fed.daemon.address, "--timeout", "300")
    assert made["epoch"] == list(fed.client.stats().epoch)
    read = set(fed.client.stats().offsets)
    again = run("checkpoint", "now", "--address", fed.daemon.address, "--timeout", "300")
    if again != made:  # nothing is new, but files that no checkpoint needs may go: an epoch without updates
        assert set(fed.client.stats().offsets) < read
        made = again
    folder = Path(made["path"]).parent
    newest, *_ = run("checkpoint", "list", folder)
    assert newest["epoch"] == made["epoch"] and newest["path"] == made["path"]
    assert newest["programs"] == ["far", "kcore", "triangles"]
    at = ".".join(map(str, made["epoch"]))
    assert at in CliRunner().invoke(cli.app, ["checkpoint", "list", str(folder)]).output
    shown = run("checkpoint", "inspect", folder, "--at", at)
    assert shown["arrays"]["graph/keys"]["shape"] == [fed.client.stats().content["edges"]]
    assert shown["identity"]["graph"]["weights"] == "non-negative"
    assert "there are: " in refused(5, "checkpoint", "inspect", folder, "--at", "0.1")
    assert refused(2, "checkpoint", "inspect", folder, "--at", "now").count("is no epoch") == 1
    copied = run("checkpoint", "copy", folder, tmp_path / "copy", "--at", at)
    assert copied == {"epoch": made["epoch"], "path": str(tmp_path / "copy" / Path(made["path"]).name)}
    others = [path for path in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")] if path.stat().st_mode & 0o077]
    assert not others, "it is the graph: nobody else may read it, whatever the umask"
    assert "copy to an empty folder" in refused(5, "checkpoint", "copy", folder, tmp_path / "copy")
    assert [item["good"] for item in run("checkpoint", "verify", tmp_path / "copy")] == [True]
    values = fed.client.get("far", list(range(1_000, 1_000 + N))).values.tolist()
    settings = {**fed.daemon.settings, "checkpoint": {"path": tmp_path / "copy", "interval": 3600}}
    del settings["server"]
    with Daemon(tmp_path / "other", settings) as other:
        other.start(ready_s=600)
        with other.client() as client:
            assert client.get("far", list(range(1_000, 1_000 + N))).values.tolist() == values
        assert f"restored epoch ({made['epoch'][0]}, {made['epoch'][1]})" in other.log.read_text()
        other.stop()


def test_a_damaged_checkpoint_is_told_from_a_good_one(fed: Fed, tmp_path: Path) -> None:
    path = run("checkpoint", "now", "--address", fed.daemon.address, "--timeout", "300")["path"]
    copied = Path(run("checkpoint", "copy", path, tmp_path / "copy")["path"])
    (listed,) = run("checkpoint", "list", tmp_path / "copy")
    assert listed["vertices"] == fed.client.stats().content["vertices"], "deleted ones do not count"
    file = copied / "0000.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "damaged: the checksum of 0000.npy" in refused(5, "checkpoint", "verify", tmp_path / "copy")
    for arguments in (["inspect", copied], ["copy", copied, tmp_path / "more"]):
        assert "is damaged: the checksum of 0000.npy" in refused(5, "checkpoint", *arguments)
    assert "is damaged" in refused(5, "export", tmp_path / "g.npz", "--checkpoint", copied)
    (copied / "manifest.json").write_text("{}\n{}")
    (listed,) = run("checkpoint", "list", tmp_path / "copy")
    assert "damaged" in listed and "vertices" not in listed
    for content in ("{}", "null", "[]", "5", "", '{"crc32c": 1}\n{}'):
        (copied / "manifest.json").write_text(content)
        assert "damaged" in refused(5, "checkpoint", "verify", tmp_path / "copy"), content
        (listed,) = run("checkpoint", "list", tmp_path / "copy")
        assert "checksum" in listed["damaged"], content
    (copied / "manifest.json").unlink()
    gone = "manifest.json: No such file or directory"
    assert f"damaged: {gone}" in refused(5, "checkpoint", "verify", tmp_path / "copy")
    (listed,) = run("checkpoint", "list", tmp_path / "copy")
    assert listed["damaged"] == gone
    assert "holds no checkpoints" in refused(5, "export", tmp_path / "g.npz", "--checkpoint", tmp_path)


def test_a_list_says_when_a_checkpoint_was_written_and_not_when_it_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = of([("a", "b")], [], directed=True)
    with closing(CheckpointStore(tmp_path / "there")) as store, monkeypatch.context() as patch:
        patch.setattr(checkpoint.time, "time", lambda: 1_700_000_000.9)
        store.write(made)
    run("checkpoint", "copy", tmp_path / "there", tmp_path / "copy")
    (copied,) = run("checkpoint", "list", tmp_path / "copy")
    assert copied["written"] == "2023-11-14T22:13:20+00:00"


def test_a_list_says_which_checkpoint_is_damaged_wherever_that_is(tmp_path: Path) -> None:
    """A list compares no checksums: what it reads of arrays may be anything."""
    with closing(CheckpointStore(tmp_path)) as store:
        store.write(of([("a", "b")], ["b"], directed=True))
        store.write(replace(of([("a", "b")], ["b"], directed=True), epoch=(2, 8)))
    newest = folder_of(tmp_path, (2, 8))
    name = json.loads((newest / "manifest.json").read_bytes().partition(b"\n")[2])["files"]["graph/dead"]["file"]
    whole = (newest / name).read_bytes()
    header = whole.index(b"}") + 1
    for place in range(header):
        for bit in range(8):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            (newest / name).write_bytes(content)
            listed = checkpoints._listed(newest)
            assert "damaged" in listed or listed["vertices"] >= 0
    (newest / name).write_bytes(whole.replace(b"{", b";", 1))
    (damaged, good) = run("checkpoint", "list", tmp_path)
    assert "damaged" in damaged and good["vertices"] == 1


def of(edges: list[tuple[str, str]], dead: list[str], *, directed: bool) -> Checkpoint:
    """A checkpoint of a graph with these string ids."""
    index, graph = VertexIndex.create("string"), Graph(directed=directed, weighted=False)
    src, dst = index.insert_edges(*(StringColumn.of(ends) for ends in zip(*edges, strict=True)))
    graph.apply(EdgeBatch.of(src, dst, np.ones(src.size, np.uint8)), index.n_vertices)
    arrays = {f"index/{name}": array for name, array in index.state().items()}
    arrays |= {"graph/keys": graph.export().keys, "graph/dead": index.lookup(StringColumn.of(dead))}
    graph.close()
    return Checkpoint(
        epoch=(2, 7),
        offsets={"t": {"0": 3}},
        identity={"graph": {"directed": directed, "vertex_ids": "string", "weights": "unweighted"}},
        programs={},
        facts={"n_vertices": index.n_vertices, "updates": src.size},
        arrays=arrays,
    )


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_strings_and_what_is_gone(directed: bool, tmp_path: Path) -> None:
    """Each edge once; a deleted vertex is not exported, though its place is kept."""
    graph = exported(of([("a", "b"), ("b", "ä ö"), ("x", "x"), ("b", "a")], [], directed=directed))
    write(tmp_path / "g.npz", graph.edges, graph.about)
    with np.load(tmp_path / "g.npz") as content:
        pairs = list(zip(content["src"].tolist(), content["dst"].tolist(), strict=True))
    expected = [("a", "b"), ("b", "a"), ("b", "ä ö"), ("x", "x")]
    if not directed:
        assert len(pairs) == 3
        pairs, expected = [(min(pair), max(pair)) for pair in pairs], [expected[0], *expected[2:]]
    assert sorted(pairs) == expected
    with pytest.raises(RequestError, match="'ä ö' does not fit into an edge list"):
        write(tmp_path / "g.txt", graph.edges, graph.about)
    cut = exported(of([("a", "a\0")], [], directed=directed))
    with pytest.raises(RequestError, match="ends in a NUL"):
        write(tmp_path / "g.npz", cut.edges, cut.about)
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]
    without = exported(of([("a", "b"), ("c", "c")], [], directed=directed))
    assert without.vertices.to_list() == ["a", "b", "c"]  # type: ignore[union-attr]
    both = of([("a", "b"), ("b", "a")], [], directed=directed)
    gone = dict(both.arrays) | {"graph/keys": np.empty(0, np.uint64), "graph/dead": np.zeros(1, np.uint32)}
    left = exported(Checkpoint((2, 7), {}, both.identity, {}, both.facts, gone))
    assert left.vertices.to_list() == ["b"] and left.about["edges"] == 0  # type: ignore[union-attr]
    for name in ("left.parquet", "left.arrow"):
        write(tmp_path / name, left.edges, left.about)
    with arrow.ipc.open_file(tmp_path / "left.arrow") as opened:
        schemas = [opened.schema, parquet.read_schema(tmp_path / "left.parquet")]
    assert {schema.field(end).type for schema in schemas for end in ("src", "dst")} == {arrow.string()}


@pytest.mark.parametrize("name", ["g.csv", "g.arrow", "g.feather", "g.parquet", "g.npz"])
def test_what_is_exported_can_be_sent_again(name: str, tmp_path: Path) -> None:
    """Whatever the ids are: each is the same, with its spaces and quotes."""
    pairs = [('say "a"', "a,b"), (" b ", "#ä"), ("", "%"), ("1", "x\ty"), ("'", "\ufeff"), ("-", "\0")]
    if name == "g.npz":  # NumPy cuts the zero off
        del pairs[-1]
    graph = exported(of(pairs, [], directed=True))
    edges = {**graph.edges, "weight": np.arange(len(pairs), dtype=np.float32)}
    write(tmp_path / name, edges, graph.about)
    again = read_updates(tmp_path / name, Accepts("string"))
    assert isinstance(again.src, StringColumn) and isinstance(again.dst, StringColumn)
    assert sorted(zip(again.src.to_list(), again.dst.to_list(), strict=True)) == sorted(pairs)
    assert again.weights is not None and again.weights.tolist() == edges["weight"].tolist()


@pytest.mark.parametrize("id", ["two\nlines", "two\rlines"])
def test_an_id_of_two_lines_is_in_no_csv(id: str, tmp_path: Path) -> None:
    graph = exported(of([("a", id)], [], directed=True))
    with pytest.raises(RequestError, match="does not fit into a line of CSV"):
        write(tmp_path / "g.csv", graph.edges, graph.about)
    assert not list(tmp_path.iterdir())


def test_newer_checkpoints_are_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is deleted while another is verified is not missed."""
    made = of([("a", "b")], [], directed=True)
    with closing(CheckpointStore(tmp_path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
            store.write(made)
        newer = folder_of(tmp_path, made.epoch)
        message = refused(5, "checkpoint", "inspect", newer)
        assert "was written by a newer version of graphtide, or" in message and "damaged" not in message
        told = refused(5, "checkpoint", "verify", tmp_path)
        assert "newer version" in told and "damaged" not in told
        store.write(replace(made, epoch=(2, 8)))

    def read(folder: Path) -> Checkpoint:
        rmtree(newer, ignore_errors=True)
        return made_good(folder)

    made_good = checkpoints.read
    monkeypatch.setattr(checkpoints, "read", read)
    (found,) = run("checkpoint", "verify", tmp_path)
    assert found["good"] and found["path"].endswith("checkpoint-2-8")


def test_a_copy_goes_into_no_folder_that_is_in_use_and_one_that_was_cut_short_is_cleared_away(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with closing(CheckpointStore(source)) as store:
        store.write(of([("a", "b")], [], directed=True))
    with closing(CheckpointStore(target)):
        assert "is in use by another graphtide process" in refused(5, "checkpoint", "copy", source, target)
    (target / "writing-2-7" / "0000.npy").mkdir(parents=True)
    assert run("checkpoint", "copy", source, target)["epoch"] == [2, 7]
    assert sorted(path.name for path in target.iterdir()) == ["checkpoint-2-7", "lock"]


def test_a_file_whose_name_is_not_sure_to_last_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        assert folder == tmp_path
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable, "sync_folder", fails)
    with pytest.raises(NotWritten, match=r"g\.npz' is written, and not sure to outlast a loss of power"):
        write(tmp_path / "g.npz", {"id": np.arange(3)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_a_disk_that_is_full_is_said_with_the_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, filled(disk) if disk else nullcontext():
        for name in () if disk is None else ("g.npz", "g.csv", "g.txt", "g.arrow", "g.parquet"):
            with pytest.raises(OSError, match="No space left on device") as caught:
                write(disk / name, {"id": np.random.default_rng(1).integers(0, 1 << 62, 10_000)}, {})
            assert caught.value.filename == str(disk / name)
            assert [file.name for file in disk.iterdir()] == ["filler"]


def test_what_is_asked_wrongly_is_said_before_anything_is_done(tmp_path: Path) -> None:
    assert "must end in one of" in refused(2, "export", "g.gml", "--checkpoint", tmp_path)
    ids = ("--vertices", tmp_path / "ids.xls")
    assert "must end in one of" in refused(2, "export", tmp_path / "g.npz", *ids, "--address", "unix:/none")
    assert "there is no folder 'nowhere'" in refused(2, "export", "nowhere/g.npz", "--checkpoint", tmp_path)
    (tmp_path / "g.csv").mkdir()
    assert "is a folder" in refused(2, "export", tmp_path / "g.csv", "--checkpoint", tmp_path)
    assert "either --address" in refused(2, "export", "g.npz")
    same = ("--vertices", tmp_path / "g.npz")
    assert "a file of its own" in refused(2, "export", tmp_path / "g.npz", *same, "--checkpoint", tmp_path)
    with pytest.raises(ValueError, match="is no epoch"):
        checkpoints.parse_epoch("1.x")
    assert checkpoints.parse_epoch("latest") is None and checkpoints.parse_epoch("3.12") == (3, 12)


@pytest.mark.parametrize("with_metrics", [False, True])
def test_top_shows_what_a_daemon_does(fed: Fed, with_metrics: bool) -> None:
    (url,) = re.findall(r"metrics at (http\S+)", fed.daemon.log.read_text())
    asked = url if with_metrics else None
    # All epochs before are told of.
    until(lambda: take(fed.client, None).times.stages["publish"] == take(fed.client, url).times.stages["publish"])
    before = take(fed.client, asked)
    epoch = fed.feed()

    def counted() -> Any:
        """An epoch's times are known once it is published, and told with the next one, or a second later."""
        said = summary(before, take(fed.client, asked))
        return said if said["stages"].get("publish") else None

    said = until(counted)
    assert said["epoch"] == list(epoch) and said["stage"] == "running"
    assert round(said["updates_per_second"] * said["seconds"]) == 202
    assert said["epochs_per_second"] > 0 and said["freshness"]["p99"] >= said["freshness"]["p50"] > 0
    assert all(said["stages"][stage] > 0 for stage in ("queue", "apply", "compute", "publish"))
    assert {id: program["state"] for id, program in said["programs"].items()} == dict.fromkeys(
        ("far", "kcore", "triangles"), "fresh"
    )
    assert said["programs"]["far"]["busy"] > 0 and said["sides"]["host"] > 0 and said["device"] is None
    quiet = run("top", fed.daemon.address, "--samples", "1", "--interval", "0.05")
    assert quiet["updates_per_second"] == 0 and quiet["freshness"] == {"p50": None, "p99": None}
    address = url.removeprefix("http://").removesuffix("/metrics")
    screen = CliRunner().invoke(
        cli.app, ["top", fed.daemon.address, "--samples", "2", "--interval", "0.05", "--metrics", address]
    )
    assert screen.exit_code == 0, screen.output
    for shown in ("running, epoch", "0.0/s", "memory", "graph, host", "kcore", "fresh"):
        assert shown in screen.output
    assert "does not answer" in refused(3, "top", fed.daemon.address, "--metrics", "127.0.0.1:1")
