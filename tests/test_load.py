"""``graphtide load``: a checkpoint from files is that of the same updates streamed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import brokers
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaProducer
from numba.core import event
from pyarrow import parquet
from running import Daemon
from sampling import examples
from test_arrow import batch, stream
from typer.testing import CliRunner

from graphtide.daemon.cli import CHECKPOINT, MISUSED, app
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import CheckpointError, ConfigError, NotWritten, SourceError
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.dense import dense_batch
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import frame
from graphtide.daemon.records.stream import Partition, RawRecord
from graphtide.daemon.state.checkpoint import Checkpoint, CheckpointStore
from graphtide.daemon.tools import load
from graphtide.daemon.tools.files import BadInput
from graphtide.gpma.edges import EdgeList, destinations, sources
from graphtide.gpma.index.ids import StringColumn
from graphtide.gpma.index.vertex_index import VertexIndex
from graphtide.gpma.kernel_cache import MISSING
from graphtide.ops.kafka import DevKafka
from graphtide.partition.graph import Graph

Edges = dict[tuple[Any, Any], float]


def settings_of(folder: Path, **graph: Any) -> Any:
    places = {"source": {"path": str(folder / "spool")}, "checkpoint": {"path": str(folder / "checkpoints")}}
    return from_tables({"graph": graph, "compute": {"threads": 2}, **places})


def named(graph: Graph, index: VertexIndex) -> tuple[set[Any], Edges]:
    """The vertices and the arcs of a graph, by external ids."""
    arcs = graph.export()
    everyone = index.external(np.flatnonzero(graph.alive).astype(np.uint32))
    ends = [index.external(some(arcs.keys)) for some in (sources, destinations)]
    vertices, src, dst = (
        ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (everyone, *ends)
    )
    weights = [1.0] * len(arcs) if arcs.weights is None else arcs.weights.tolist()
    return set(vertices), dict(zip(zip(src, dst, strict=True), weights, strict=True))


def restored(config: Any) -> tuple[Checkpoint, set[Any], Edges]:
    """What a start finds in the checkpoint."""
    store = CheckpointStore(config.checkpoint.path)
    checkpoint = store.newest_good()
    store.close()
    assert checkpoint is not None
    part = checkpoint.part("graph")
    index = VertexIndex.create(config.graph.vertex_ids)
    index.restore(checkpoint.part("index"), part["dead"])
    graph = empty(config)
    graph.load(EdgeList(part["keys"], part.get("weights")), checkpoint.facts["n_vertices"], part["dead"])
    found = named(graph, index)
    problems = graph.check()
    graph.close()
    assert not problems
    return checkpoint, *found


def empty(config: Any) -> Graph:
    weighted = config.graph.weights != "unweighted"
    return Graph(directed=config.graph.directed, weighted=weighted, in_edges=False, threads=1)


def streamed(config: Any, blocks: list[bytes]) -> tuple[set[Any], Edges]:
    """The same, after these blocks of CSV went the way of records."""
    index = VertexIndex.create(config.graph.vertex_ids)
    decoder = Decoder(config.graph.vertex_ids, config.graph.weights, config.graph.self_loops)
    graph = empty(config)
    for value in blocks:
        block = decoder.decode(RawRecord(Partition("t", 0), 0, 1, value, "csv", 0)).block
        if block is not None:
            batch = dense_batch(block, index)
            graph.apply(batch.edges, index.n_vertices, batch.vertices)
    found = named(graph, index)
    graph.close()
    return found


words = {"int": [0, 1, 2, -5, 2**62], "string": ["a", "b", "ö", "d", ""]}


def csv(rows: list[tuple[Any, ...]]) -> bytes:
    lines = ["src,dst,op,weight", *(",".join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_it_is_what_streaming_makes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random inserts and deletions over and over on a few edges, in several files of several forms."""
    folder = tmp_path_factory.mktemp("load")
    kind = data.draw(st.sampled_from(["int", "string"]))
    config = settings_of(
        folder,
        vertex_ids=kind,
        directed=data.draw(st.booleans()),
        weights=data.draw(st.sampled_from(["unweighted", "non-negative", "any"])),
        self_loops=data.draw(st.sampled_from(["keep", "drop"])),
    )
    end = st.sampled_from(words[kind][:4])
    edge = st.tuples(end, end, st.sampled_from(["insert", "insert", "delete"]), st.sampled_from([0.0, 0.5, 3.0]))
    vertex = st.tuples(end, st.just(0 if kind == "int" else ""), st.just("insert_vertex"), st.just(1.0))
    some = st.lists(st.one_of(edge, edge, edge, vertex), min_size=1, max_size=12)
    parts = data.draw(st.lists(some, min_size=1, max_size=3))
    parts[0].append((words[kind][0], words[kind][4], "insert", 1.0))
    if config.graph.weights == "unweighted":
        parts = [[(*row[:3], 1.0) for row in rows] for rows in parts]
    files = []
    for number, rows in enumerate(parts):
        if data.draw(st.booleans()):
            files.append(folder / f"{number}.parquet")
            columns = dict(zip(("src", "dst", "op", "weight"), zip(*rows, strict=True), strict=True))
            parquet.write_table(pa.table({name: list(column) for name, column in columns.items()}), files[-1])
        else:
            files.append(folder / f"{number}.csv")
            files[-1].write_bytes(csv(rows))
    (folder / "spool").mkdir()
    (folder / "spool" / "a.csv").write_bytes(b"src,dst\n5,6\n7,8\n")
    offsets = load.parse_offsets('{"a.csv": 12}', config)
    assert load.load_files(config, files, offsets, json=True) == 0
    checkpoint, vertices, edges = restored(config)
    assert (vertices, edges) == streamed(config, [csv(rows) for rows in parts])
    assert checkpoint.offsets == {"a.csv": 12} and checkpoint.epoch == (1, 1)
    assert checkpoint.facts["n_vertices"] == len(vertices) and checkpoint.facts["updates"] > 0


def test_large_files_are_ordered_by_several_threads(tmp_path: Path) -> None:
    """More edges than a share of the work holds, each several times: the last one counts."""
    rng = np.random.default_rng(3)
    config = settings_of(tmp_path)
    n = 300_000
    src, dst = rng.integers(0, 700, (2, n))
    weights = rng.random(n).astype(np.float32)
    parquet.write_table(pa.table({"src": src, "dst": dst, "weight": weights}), tmp_path / "edges.parquet")
    assert load.load_files(config, [tmp_path / "edges.parquet"], {}, json=True) == 0
    _, vertices, edges = restored(config)
    expected = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), weights.tolist(), strict=True))
    assert len(expected) < n and edges == expected and len(vertices) == 700


@pytest.mark.sample(among="a daemon starts otherwise")
def test_a_daemon_goes_on_from_there(tmp_path: Path) -> None:
    """The files hold what the stream held up to some byte; the daemon reads on behind it, and other files."""
    with Daemon(tmp_path, {"program": [{"name": "sssp", "source": 1}]}) as daemon:
        before = b"src,dst,op,weight\n1,2,,5\n2,3,,1\n3,4,,1\n8,9,,1\n8,9,delete,\n"
        (tmp_path / "dump.csv").write_bytes(before)
        (daemon.spool / "edges.csv").write_bytes(before + b"1,2,,0.5\n4,5,,1\n3,4,delete,\n")
        (daemon.spool / "later.arrow").write_bytes(frame(stream(batch(src=[3, 9], dst=[9, 4]))))
        offsets = json.dumps({"edges.csv": len(before)})
        command = ["load", "--config", str(daemon.config), "--offsets", offsets, str(tmp_path / "dump.csv")]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "5 updates loaded: 6 vertices, 3 arcs" in done.output
        with daemon.start().client() as ask:
            end = {file.name: file.stat().st_size for file in daemon.spool.iterdir()}
            hops = ask.get("sssp", [1, 2, 3, 4, 5, 8, 9, 7], min_offsets=end)
            assert hops.values.tolist() == [0.0, 0.5, 1.5, 3.5, 4.5, None, 2.5, None] and list(hops.unknown) == [7]
            stats = ask.stats()
            assert stats["edges"] == 5 and stats["dead_letters"] == {}
        daemon.stop()
        assert CliRunner().invoke(app, command).exit_code == CHECKPOINT


@pytest.mark.sample(among="a daemon starts otherwise")
@pytest.mark.kafka
@pytest.mark.timeout(600)  # where no kernels are cached, the first start compiles them
def test_a_daemon_goes_on_at_the_offsets_of_a_real_broker(kafka: DevKafka, tmp_path: Path) -> None:
    """No record before these is read, none behind them is left out, and an unnamed partition is read whole."""
    kafka.create_topic("loaded", 3)
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": ["loaded"], "start": "latest"}
    tables = {"source": source, "program": [{"name": "sssp", "source": 1}]}
    with Daemon(tmp_path, tables) as daemon, brokers.client(KafkaProducer, kafka.bootstrap) as producer:

        def write(partition: int, *edge: float) -> int:
            """The offset behind the record of an edge: src, dst, weight."""
            src, dst, weight = edge
            value = encode_msgpack([int(src)], [int(dst)], weights=[weight])
            return int(producer.send("loaded", value, partition=partition).get(timeout=60).offset) + 1

        write(0, 1, 2, 99)  # which the file has better, so that it shows who reads it again
        write(0, 90, 91, 1)
        offsets = {"0": write(0, 1, 2, 98), "1": write(1, 92, 93, 1)}
        write(0, 2, 4, 1)
        write(0, 4, 5, 1)
        write(1, 5, 6, 1)
        write(2, 6, 7, 1)
        (tmp_path / "dump.csv").write_text("src,dst,weight\n1,2,0.5\n2,3,1\n2,4,7\n")
        named = json.dumps({"loaded": offsets})
        command = ["load", "--config", str(daemon.config), "--offsets", named, str(tmp_path / "dump.csv")]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        end = {"loaded": {0: write(0, 7, 8, 1), 1: write(1, 3, 9, 1), 2: write(2, 9, 10, 1)}}
        daemon.start(ready_s=400)

        def ask(min_offsets: dict[str, dict[int, int]]) -> list[Any]:
            with daemon.client() as client:
                found = client.get("sssp", range(1, 11), min_offsets=min_offsets)
                gone = client.get("sssp", [90, 91, 92, 93])
                assert list(gone.unknown) == [90, 91, 92, 93], "they are before the offsets"
                assert client.stats()["edges"] == 9
                return list(found.values.tolist())

        expected = [0.0, 0.5, 1.5, 1.5, 2.5, 3.5, 4.5, 5.5, 2.5, 3.5]
        assert ask(end) == expected
        daemon.kill()
        daemon.start()
        assert ask(end) == expected, "what was answered is answered again, from the loaded checkpoint on"
        assert daemon.stop() == 0, daemon.log_tail()


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "must be"),
        ("1", "must be"),
        ("{", "must be"),
        ('{"a": -1}', "must be"),
        ('{"a": {"0": 1}}', "of a source of kind 'spool'"),
    ],
)
def test_offsets_must_be_of_the_source(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load.parse_offsets(text, settings_of(tmp_path))


def test_offsets_name_every_topic() -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": ["h:1"], "topics": ["a", "b"]}
    config = from_tables({"source": kafka})
    assert load.parse_offsets('{"a": {"0": 1}, "b": {"2": 7}}', config) == {
        Partition("a", 0): 1,
        Partition("b", 2): 7,
    }
    for text in ('{"a": {"0": 1}}', "{}", '{"a": {"0": 1}, "b": {"0": 1}, "c": {"0": 1}}'):
        with pytest.raises(ConfigError, match="exactly the topics a, b"):
            load.parse_offsets(text, config)
    with pytest.raises(ConfigError, match=r'a partition of each at least \(\{"0": 0\}: from the beginning\)'):
        load.parse_offsets('{"a": {"0": 1}, "b": {}}', config)
    with pytest.raises(ConfigError, match="of a source of kind 'kafka'"):
        load.parse_offsets('{"a": 1}', config)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({"b.csv": 1}, "b.csv' is gone"),
        ({"a.csv": 13}, "a.csv shrank to 12 bytes, but 13"),
        ({"a.txt": 1}, "not the name"),
    ],
    ids=["file", "byte", "name"],
)
def test_offsets_must_be_in_the_files(tmp_path: Path, offsets: dict[str, int], words: str) -> None:
    config = settings_of(tmp_path)
    config.source.path.mkdir()
    (config.source.path / "a.csv").write_bytes(b"src,dst\n1,2\n")
    (tmp_path / "edges.el").write_bytes(b"1 2\n")
    with pytest.raises(ConfigError, match=f"^--offsets: .*{words}"):
        load.load_files(config, [tmp_path / "edges.el"], load.parse_offsets(json.dumps(offsets), config))
    assert load.load_files(config, [tmp_path / "edges.el"], {Partition("a.csv"): 12}) == 0


def test_a_source_that_cannot_be_read_is_not_a_matter_of_offsets(tmp_path: Path) -> None:
    config = settings_of(tmp_path)
    config.source.path.write_bytes(b"no folder")
    (tmp_path / "edges.el").write_bytes(b"1 2\n")
    with pytest.raises(SourceError, match=r"^source\.path = "):
        load.load_files(config, [tmp_path / "edges.el"], {})


@pytest.mark.kafka
def test_offsets_must_be_in_the_topic(kafka: DevKafka, tmp_path: Path) -> None:
    """A start would find that out, hours of loading later."""
    kafka.create_topic("short", 2)
    with brokers.client(KafkaProducer, kafka.bootstrap) as producer:
        producer.send("short", encode_msgpack([1], [2]), partition=1).get(timeout=60)
    tables = {"source": {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": ["short"]}}
    config = from_tables({**tables, "checkpoint": {"path": str(tmp_path / "checkpoints")}})
    (tmp_path / "edges.el").write_bytes(b"1 2\n")
    cases = {
        '{"short": {"1": 2}}': "offset 2 of short/1 is not available: .*; available are 0 to 1",
        '{"short": {"2": 0}}': "the offsets to go on from name short/2, but the topic has only 2 partitions",
    }
    for text, words in cases.items():
        with pytest.raises(ConfigError, match=f"^--offsets: {words}"):
            load.load_files(config, [tmp_path / "edges.el"], load.parse_offsets(text, config))
    assert load.load_files(config, [tmp_path / "edges.el"], load.parse_offsets('{"short": {"1": 1}}', config)) == 0


def test_nothing_is_written_of_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    config = settings_of(tmp_path)
    cases = {
        "gone.csv": (b"src,dst,op\n1,2,\n1,,delete_vertex\n", "deletes vertices"),
        "nameless.csv": (b"a,b\n1,2\n", "must name src and dst"),
        "none.csv": (b"src,dst\n", "no updates$"),
        "commas.txt": (b"1,2\n3,4\n", r"but refused ones: 2, .*commas\.txt:1: a line of 1 fields; src dst "),
        "none.parquet": (b"PAR1", "no Parquet"),
    }
    for name, (content, words) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=words):
            load.load_files(config, [tmp_path / name], {})
    parquet.write_table(pa.table({"src": ["a"], "dst": ["b"]}), tmp_path / "texts.parquet")
    with pytest.raises(BadInput, match="src is a column of 'string'; it must be integers"):
        load.load_files(config, [tmp_path / "texts.parquet"], {})
    assert not config.checkpoint.path.exists(), "nor is an empty folder left"
    config.checkpoint.path.mkdir()
    with pytest.raises(BadInput):
        load.load_files(config, [tmp_path / "none.csv"], {})
    store = CheckpointStore(config.checkpoint.path)  # it was there before, and stays
    assert store.names() == []
    store.close()


def test_a_full_disk_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings_of(tmp_path)
    (tmp_path / "edges.el").write_bytes(b"1 2\n2 3\n")

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "_draft", full)
        said = f"checkpoint.path = '{config.checkpoint.path}': No space left on device; nothing is loaded"
        with pytest.raises(NotWritten, match=said):
            load.load_files(config, [tmp_path / "edges.el"], {})
    assert load.load_files(config, [tmp_path / "edges.el"], {}) == 0
    _, vertices, edges = restored(config)
    assert vertices == {1, 2, 3} and edges == {(1, 2): 1.0, (2, 3): 1.0}
    with pytest.raises(CheckpointError, match="replaces none"):
        load.load_files(config, [tmp_path / "edges.el"], {})


def test_what_the_daemon_would_refuse_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings_of(tmp_path, self_loops="drop")
    (tmp_path / "a.csv").write_bytes(b"src,dst,weight\n1,2,1\n2,2,1\n2,3,-1\nx,3,1\n")
    table = pa.table({"src": [5, None, 6], "dst": [6, 7, 6], "weight": [1.0, 1.0, 1.0]})
    parquet.write_table(table, tmp_path / "b.parquet")
    files = [tmp_path / "a.csv", tmp_path / "b.parquet"]
    assert load.load_files(config, files, {}, json=True) == 7
    answer = json.loads(capsys.readouterr().out)
    assert (answer["updates"], answer["vertices"], answer["arcs"], answer["self_loops_dropped"]) == (2, 4, 2, 2)
    assert {reason: one["updates"] for reason, one in answer["refused"].items()} == {"bad-weight": 1, "bad-id": 2}
    assert answer["refused"]["bad-id"]["first"][1] == f"{tmp_path / 'b.parquet'}: row 1: src is null"
    _, _, edges = restored(config)
    assert edges == {(1, 2): 1.0, (5, 6): 1.0}


def test_the_command_needs_offsets(tmp_path: Path) -> None:
    (tmp_path / "edges.el").write_bytes(b"1 2\n")
    done = CliRunner().invoke(app, ["load", str(tmp_path / "edges.el")])
    assert done.exit_code == MISUSED and "where the stream goes on behind the files" in done.stderr


def test_edges_from_a_pipe(tmp_path: Path) -> None:
    arguments = ["--spool", str(tmp_path / "spool"), "--checkpoints", str(tmp_path / "made"), "--offsets", "{}"]
    command = [sys.executable, "-m", "graphtide", "load", *arguments, "--json", "-"]
    done = subprocess.run(command, input=b"1 2\n3 4\n", capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arcs"] == 2


def test_a_file_that_is_not_there_is_a_wrong_argument(tmp_path: Path) -> None:
    arguments = ["--checkpoints", str(tmp_path / "made"), "--offsets", "{}", str(tmp_path / "none.el")]
    assert CliRunner().invoke(app, ["load", *arguments]).exit_code == MISUSED
    assert not (tmp_path / "made").exists()


def test_columns_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("payer;payee;amount\n1;2;0.5\n2;3;4\n")
    places = ["--spool", str(tmp_path / "spool"), "--checkpoints", str(tmp_path / "checkpoints")]
    names = ["--column", "src=payer", "--column", "dst=payee", "--column", "weight=amount"]
    command = ["load", *places, "--offsets", "{}", *names, "--json", str(tmp_path / "a.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["arcs"] == 2
    assert restored(settings_of(tmp_path))[2] == {(1, 2): 0.5, (2, 3): 4.0}
    for wrong, words in (("payer", "must be src=NAME"), ("source=a", "did you mean source.columns.src?")):
        done = CliRunner().invoke(app, ["load", *places, "--offsets", "{}", "--column", wrong, command[-1]])
        assert done.exit_code == MISUSED and words in done.stderr


def test_what_takes_long_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with load.saying_what_is_compiled():
        assert capsys.readouterr() == ("", "")
        for _ in range(2):
            event.start_event(MISSING)
    event.start_event(MISSING)
    said = capsys.readouterr().err
    assert said.startswith("compiling kernels for this machine, once, into ") and said.count("\n") == 1
