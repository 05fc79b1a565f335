"""Producing: placement as Kafka does it, files of every form, windows, and both destinations."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import json
import lzma
import re
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2
from sampling import examples

from graphtide.daemon.errors import ConfigError, NotWritten
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.kafka import KafkaSource
from graphtide.daemon.ingest.named_columns import NamedColumns
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.columns import UpdateColumns, canonical
from graphtide.daemon.records.event_time import NO_TIME
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.spool_format import SpoolWriter, frame
from graphtide.daemon.records.stream import Partition, Source, UpdateBlock, offsets_from_wire
from graphtide.daemon.tools import advice, arrays, files
from graphtide.daemon.tools.destinations import KafkaDestination, ProduceFailed, SpoolDestination
from graphtide.daemon.tools.files import Accepts, BadInput, LeftOut, concatenated, read_columns, read_updates
from graphtide.daemon.tools.produce import REFUSED, Produced, produce, produce_files, read_files, report_left_out
from graphtide.daemon.tools.windows import window_events
from graphtide.gpma.edges import Op
from graphtide.gpma.index.ids import IdColumn, StringColumn
from graphtide.ops.kafka import DevKafka, held_port

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ANYTHING = Accepts()
INT64 = st.integers(-(2**63), 2**63 - 1)


def plain(ids: IdColumn) -> list[Any]:
    return ids.to_list() if isinstance(ids, StringColumn) else ids.tolist()


def rows(columns: UpdateColumns) -> list[tuple[object, ...]]:
    """Updates as tuples (op, src, dst, weight, ts), absent columns as None."""
    src, dst = (
        ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (columns.src, columns.dst)
    )
    nothing = [None] * len(columns)
    weights = nothing if columns.weights is None else columns.weights.tolist()
    times = nothing if columns.timestamps_ms is None else columns.timestamps_ms.tolist()
    return list(zip(columns.ops.tolist(), src, dst, weights, times, strict=True))


def file_rows(path: Path, accepts: Accepts = ANYTHING) -> list[tuple[object, ...]]:
    left_out = LeftOut()
    found = [row for columns in read_columns(path, accepts, left_out) for row in rows(columns)]
    assert left_out == LeftOut()
    return found


# -- placement ----------------------------------------------------------------------------------------------


@given(ids=st.lists(INT64, min_size=1, max_size=30), partitions=st.integers(1, 1000))
@settings(deadline=None, max_examples=examples(60))
def test_integers_are_placed_as_kafka_places_their_bytes(ids: list[int], partitions: int) -> None:
    expected = [(murmur2(i.to_bytes(8, "little", signed=True)) & 0x7FFFFFFF) % partitions for i in ids]
    assert partition_of(np.array(ids, np.int64), partitions).tolist() == expected


@given(ids=st.lists(st.text(max_size=12), min_size=1, max_size=20), partitions=st.integers(1, 1000))
@settings(deadline=None, max_examples=examples(60))
def test_strings_are_placed_as_kafka_places_their_utf8(ids: list[str], partitions: int) -> None:
    expected = [(murmur2(i.encode()) & 0x7FFFFFFF) % partitions for i in ids]
    assert partition_of(StringColumn.of(ids), partitions).tolist() == expected


def test_undirected_edges_have_one_order() -> None:
    ints = UpdateColumns(np.array([5, 1, -3]), np.array([2, 4, -3]), np.ones(3, np.uint8))
    assert [row[1:3] for row in rows(canonical(ints))] == [(2, 5), (1, 4), (-3, -3)]
    strings = UpdateColumns(StringColumn.of(["b", "é"]), StringColumn.of(["a", "z"]), np.ones(2, np.uint8))
    assert [row[1:3] for row in rows(canonical(strings))] == [("a", "b"), ("z", "é")]


def test_operations_on_vertices_go_where_their_vertex_belongs(tmp_path: Path) -> None:
    for ids, nothing in ((np.array([5, -3]), 0), (StringColumn.of(["b", "é"]), "")):
        columns = UpdateColumns.of_vertices(Op.DELETE_VERTEX, ids)
        expected = [(3, name, nothing, None, None) for name in plain(ids)]
        assert rows(columns) == rows(canonical(columns)) == expected
        with contextlib.closing(SpoolDestination(tmp_path, name="ops")) as spool:
            produced = produce([columns], spool, undirected=True)
        assert produced.updates == 2
        kind: Any = "string" if isinstance(ids, StringColumn) else "int"
        source = SpoolSource(tmp_path)
        source.open(None)
        (record,) = source.poll(1 << 20, 0)
        block = Decoder(vertex_ids=kind).decode(record).block
        source.close()
        assert block is not None
        assert rows(UpdateColumns(block.src, block.dst, block.ops)) == expected
        for file in tmp_path.iterdir():
            file.unlink()
    file = tmp_path / "mixed.csv"
    file.write_text("op,src,dst\ninsert,7,1\ndelete_vertex,7,\n")
    assert [row[:3] for row in rows(canonical(read_updates(file)))] == [(1, 1, 7), (3, 7, 0)]


# -- windows ------------------------------------------------------------------------------------------------


def naive_window(events: list[tuple[int, int, int]], window: int) -> list[tuple[int, int, int, int]]:
    """(op, src, dst, ts), one event at a time."""
    latest: dict[tuple[int, int], int] = {}
    queue: deque[tuple[int, tuple[int, int]]] = deque()
    out = []
    for src, dst, ts in events:
        while queue and queue[0][0] <= ts:
            due, edge = queue.popleft()
            if latest.get(edge) == due - window:
                del latest[edge]
                out.append((0, *edge, due))
        latest[src, dst] = ts
        queue.append((ts + window, (src, dst)))
        out.append((1, src, dst, ts))
    return out


@given(
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), max_size=40),
    window=st.integers(1, 12),
)
@settings(deadline=None, max_examples=examples(150))
def test_a_window_deletes_what_was_not_renewed(edges: list[tuple[int, int, int]], window: int) -> None:
    times = np.cumsum([gap for _, _, gap in edges], dtype=np.int64)
    src, dst = (np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))
    found_src, found_dst, ops, ts, causes = window_events(src, dst, times, window)
    found = list(zip(ops.tolist(), found_src.tolist(), found_dst.tolist(), ts.tolist(), strict=True))
    expected = naive_window(list(zip(src.tolist(), dst.tolist(), times.tolist(), strict=True)), window)
    # Deletes of one instant are of different edges: their order does not matter, everything else's does.
    assert sorted(found) == sorted(expected)
    assert [event[3] for event in found] == [event[3] for event in expected]
    assert [event for event in found if event[0] == 1] == [event for event in expected if event[0] == 1]
    live: set[tuple[int, int]] = set()
    for op, a, b, _ in found:
        assert op == 1 or (a, b) in live
        (live.add if op else live.discard)((a, b))
    assert (src[causes] == found_src).all() and (dst[causes] == found_dst).all()


def test_windows_refuse_what_has_no_time(tmp_path: Path) -> None:
    for name, text, why in (
        ("deletes.tsv", "I\t1\t2\t-\t1\nD\t1\t2\t-\t2\n", "inserts only"),
        ("timeless.el", "1 2\n", "inserts only, each with its time"),
        ("back.tsv", "I\t1\t2\t-\t5\nI\t1\t2\t-\t4\n", "in order"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(BadInput, match=why):
            list(read_files([path], ANYTHING, LeftOut(), window_seconds=10))


# -- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst", ".bz2"])
def test_events_of_a_stream(tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", 20)
    text = b"I\t1\t2\t-\t5\nI\t-7\t9223372036854775807\t2.5\t6\nD\t1\t2\t-\t7\nI\t3\t4\t-\t8"
    compress = {
        "": bytes,
        ".bz2": bz2.compress,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path = tmp_path / f"a.events.tsv{compression}"
    path.write_bytes(compress[compression](text))
    found = file_rows(path)
    assert [row[:3] for row in found] == [(1, 1, 2), (1, -7, 2**63 - 1), (0, 1, 2), (1, 3, 4)]
    assert [row[3] or 1.0 for row in found] == [1.0, 2.5, 1.0, 1.0]
    assert [row[4] for row in found] == [5000, 6000, 7000, 8000]
    assert len(read_updates(path)) == 4


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.el", "# c\n1 2\n3\t4\n", [(1, 1, 2), (1, 3, 4)]),
        ("a.txt", "1 2 0.5\n", [(1, 1, 2)]),
        ("a.csv", "dst,op,src\n1,delete,2\n3,insert,4\n", [(0, 2, 1), (1, 4, 3)]),
        ("a.jsonl", '{"src":1,"dst":2}\n{"op":"delete","src":1,"dst":2}\n', [(1, 1, 2), (0, 1, 2)]),
        (
            "a.mtx",
            "%%MatrixMarket matrix coordinate pattern general\n% x\n9 9 2\n1 2\n3 4\n",
            [(1, 1, 2), (1, 3, 4)],
        ),
    ],
)
def test_published_forms(tmp_path: Path, name: str, text: str, expected: list[tuple[int, int, int]]) -> None:
    (tmp_path / name).write_text(text)
    assert [row[:3] for row in file_rows(tmp_path / name)] == expected


def test_string_ids(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst\nann,bob\n")
    (tmp_path / "a.tsv").write_text("D\tann\tbob\t-\t-\n")
    (tmp_path / "dash.tsv").write_text("D\t-\t-\t-\t-\nI -b - - 5\n")
    names = [row[1:3] for row in file_rows(tmp_path / "dash.tsv", Accepts("string"))]
    assert names == [("-", "-"), ("-b", "-")]
    for end in ("\n", "\r\n", ""):
        (tmp_path / "timeless.tsv").write_bytes(f"I\t1\t2\t-\t-{end}".encode())
        assert file_rows(tmp_path / "timeless.tsv") == [(1, 1, 2, None, None)]
    for name, op in (("a.csv", 1), ("a.tsv", 0)):
        assert [row[:3] for row in file_rows(tmp_path / name, Accepts("string"))] == [(op, "ann", "bob")]


def test_rows_without_a_time_come_now_and_the_beginning_of_1970_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,ts\n1,2,0\n3,4,\n5,6,7\n")
    (tmp_path / "b.csv").write_text("src,dst,ts\n1,2,0\n3,4,0\n")
    began_ms = int(1000 * time.time())
    some, others = read_files([tmp_path / "a.csv", tmp_path / "b.csv"], ANYTHING, LeftOut())
    (first, now, last), zeros = (
        [] if part.timestamps_ms is None else part.timestamps_ms.tolist() for part in (some, others)
    )
    assert (first, last, zeros) == (0, 7, [0, 0]) and began_ms <= now <= 1000 * time.time()
    assert read_updates(tmp_path / "a.csv").timestamps_ms[1] >= began_ms  # type: ignore[index]


def test_tables_of_two_columns_are_edge_lists(tmp_path: Path) -> None:
    for mark in ("", "\ufeff"):
        (tmp_path / "a.tsv").write_text(f"{mark}# a graph of my own\n1\t2\n2\t3\n")
        assert [row[:3] for row in file_rows(tmp_path / "a.tsv")] == [(1, 1, 2), (1, 2, 3)]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("header", ["src\tdst\tweight\tts", "op\tsrc\tdst\tweight\tts"])
def test_tables_whose_first_line_names_columns_are_csv(tmp_path: Path, mark: str, header: str) -> None:
    op = "D\t" if header.startswith("op") else ""
    (tmp_path / "a.tsv").write_text(f"{mark}{header}\n{op}1\t2\t0.5\t7\n{op}2\t3\t\t\n")
    found = file_rows(tmp_path / "a.tsv")
    assert [row[:3] for row in found] == [(not op, 1, 2), (not op, 2, 3)]
    assert found[0][4] == 7, "in milliseconds, as of CSV"


@pytest.mark.parametrize("block_bytes", [60, 1 << 20])
def test_a_byte_order_mark_is_no_part_of_what_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", block_bytes)
    (tmp_path / "a.tsv").write_text("\ufeffD\t1\t2\t-\t-\nI 3 4 - -\n")
    assert [row[:3] for row in file_rows(tmp_path / "a.tsv")] == [(0, 1, 2), (1, 3, 4)]
    banner = "%%MatrixMarket matrix coordinate pattern general"
    (tmp_path / "a.mtx").write_text(f"\ufeff{banner}\n% of a longer comment than others are\n4 4 2\n1 2\n3 4\n")
    assert [row[:3] for row in file_rows(tmp_path / "a.mtx")] == [(1, 1, 2), (1, 3, 4)]


def test_a_few_updates_for_a_spool_need_no_compiler(tmp_path: Path) -> None:
    """Loading it takes much longer than reading them does."""
    (tmp_path / "a.csv").write_text("op,src,dst,weight\n,1,2,0.5\ndelete_vertex,1,,\n")
    (tmp_path / "a.tsv").write_text("I\t1\t2\t-\t1\n")
    script = "\n".join(
        [
            "import sys",
            "from graphtide.daemon.cli import app",
            "try: app(['produce', '--spool', 'spool', 'a.csv', 'a.tsv', '--undirected'])",
            "except SystemExit as end: print(end.code, sorted({'numba', 'scipy', 'kafka'} & set(sys.modules)))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "3 updates written" in done.stdout and done.stdout.endswith("0 []\n"), done.stdout


def test_a_failed_run_leaves_no_empty_spool_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        produce_files([tmp_path / "missing.csv"], spool=tmp_path / "spool")
    assert not (tmp_path / "spool").exists()
    (tmp_path / "damaged.el.gz").write_bytes(gzip.compress(b"x y\n" * 99)[:-9])
    with pytest.raises(BadInput, match="cannot be decompressed"):
        produce_files([tmp_path / "damaged.el.gz"], spool=tmp_path / "spool")
    assert not [*tmp_path.glob("spool/*")]


@pytest.mark.parametrize("n_before", [0, 2])
def test_a_spool_whose_disk_is_full_keeps_what_is_whole(
    tmp_path: Path, n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon may have read that, and would wait for the rest of what is not."""
    (tmp_path / "a.el").write_text("1 2\n2 3\n3 4\n")
    monkeypatch.setattr(files, "_BLOCK_BYTES", 4)
    flush, flushed = SpoolWriter.flush, []

    def full(self: SpoolWriter) -> None:
        flushed.append(self.offset)
        if len(flushed) <= n_before:
            flush(self)
            return
        with self.path.open("ab") as file:
            file.write(frame(b"what did not find room")[:12])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpoolWriter, "flush", full)
    with pytest.raises(NotWritten, match=r"spool file .*\.msgpack: No space left on device") as caught:
        produce_files([tmp_path / "a.el"], spool=tmp_path / "spool")
    left = [*(tmp_path / "spool").iterdir()]
    assert ("send all of it again" in caught.value.message) == (n_before > 0)
    assert [file.stat().st_size for file in left] == flushed[:n_before][-1:]


@pytest.mark.parametrize(
    ("name", "text", "good", "reason", "place"),
    [
        ("a.tsv", "I\t1\t2\t-\t1\nI\t1\t2\n", 1, "bad-column", ":2: a line of 3 fields"),
        ("a.tsv", "X\t1\t2\t-\t1\nD 1 2 - 1\n", 1, "bad-op", ":1: op is 'X'"),
        ("a.tsv", "I\tx\t2\t-\t1\n", 0, "bad-id", ":1: src holds 'x'"),
        ("a.tsv", "I\t-\t2\t-\t-\nI\t1\t2\t-5\t-3\n", 1, "bad-id", ":1: src holds ''"),
        ("a.tsv", "I\t1\t2\tx\t1\n", 0, "bad-weight", ":1: weight is 'x'"),
        (
            "a.tsv",
            "I\t1\t2\t-\t99999999999999999\nI\t1\t2\t-\t1\n",
            1,
            "bad-timestamp",
            ": ts is 99999999999999999",
        ),
        ("a.el", "1 2\n\n# c\n3 x\n", 1, "bad-id", ":4: dst holds 'x'"),
        (
            "a.tsv",
            "from\tto\n1\t2\n",
            1,
            "bad-id",
            f":1: src holds 'from'; ids are 64-bit integers{advice.TEXT_IDS}{advice._NO_HEADER}",
        ),
        ("a.el", "1 2 nan\n3 4 inf\n5 6 -1\n", 1, "bad-weight", ":1: weight is 'nan'"),
        (
            "a.csv",
            "src,dst,op\n1,2,I\n1,5,delete_vertex\n1,,delete_vertex\n",
            2,
            "bad-vertex-op",
            ":3: delete_vertex",
        ),
        ("a.csv", "src,dst\n1,9223372036854775808\n", 0, "bad-id", ":2: dst holds"),
        (
            "a.jsonl",
            '{"src":1,"dst":2}\n{"v":1,"src":[1,true],"dst":[2,3]}\n',
            2,
            "bad-id",
            ":2, row 1: src holds true",
        ),
    ],
)
@pytest.mark.parametrize("compiled_from", [0, 1 << 20])
def test_what_the_daemon_would_refuse_is_left_out_and_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str,
    good: int,
    reason: str,
    place: str,
    compiled_from: int,
) -> None:
    monkeypatch.setattr(files, "COMPILED_FROM", compiled_from)
    monkeypatch.setattr(files, "_BLOCK_BYTES", 12)
    (tmp_path / name).write_text(text)
    left_out = LeftOut()
    assert sum(map(len, read_columns(tmp_path / name, ANYTHING, left_out))) == good
    assert set(left_out.refused) == {reason}
    assert left_out.places[reason][0].startswith(f"{tmp_path / name}{place}")
    with pytest.raises(BadInput) as caught:
        read_updates(tmp_path / name)
    assert caught.value.message == left_out.places[reason][0] and caught.value.detail == {"reason": reason}


@pytest.mark.parametrize(
    ("accepts", "written", "refused", "self_loops"),
    [
        (Accepts(), 5, {"bad-id": 1}, 0),
        (Accepts(weights="non-negative"), 4, {"bad-id": 1, "bad-weight": 1}, 0),
        (Accepts(weights="unweighted", self_loops="drop"), 2, {"bad-id": 1, "bad-weight": 2}, 1),
        (Accepts("string"), 6, {}, 0),
    ],
)
def test_what_is_refused_depends_on_the_graph(
    tmp_path: Path, accepts: Accepts, written: int, refused: dict[str, int], self_loops: int
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("src,dst,weight\n1,2,1\n2,3,0.5\nx,3,1\n4,5,-2\n5,5,1\n6,7,1\n")
    left_out = LeftOut()
    assert sum(map(len, read_columns(file, accepts, left_out))) == written
    assert dict(left_out.refused) == refused and left_out.self_loops == self_loops


def test_few_places_are_kept_of_many(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_text("1 x\n" * 10_000)
    left_out = LeftOut()
    assert not list(read_columns(tmp_path / "a.el", ANYTHING, left_out))
    assert left_out.refused == {"bad-id": 10_000}
    places = [place.removeprefix(str(tmp_path)) for place in left_out.places["bad-id"]]
    said = [f"/a.el:{n}: dst holds 'x'; ids are 64-bit integers" for n in (1, 2, 3)]
    assert places == [said[0] + advice.TEXT_IDS, *said[1:]]


def test_every_bad_row_of_documents_counts(tmp_path: Path) -> None:
    """However many of them stand together in the end."""
    bad = '{"src":1,"dst":2,"weight":-1}'
    edges = f'{{"v":1,"edges":[{",".join([bad] * 10_000)},{{"src":1,"dst":2}}]}}\n'
    columns = '{"v":1,"src":[1,2,3],"dst":[1,2,3],"weight":[1,-1,-1]}\n'
    (tmp_path / "a.json").write_text(edges + 2_000 * columns)
    left_out = LeftOut()
    accepts = Accepts(weights="non-negative")
    assert sum(map(len, read_columns(tmp_path / "a.json", accepts, left_out))) == 2_001
    assert left_out.refused == {"bad-weight": 14_000}
    assert left_out.places["bad-weight"][0].startswith(f"{tmp_path}/a.json:1, row 0: weight is -1")


def test_a_file_that_names_no_columns_is_bad_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("from,to\n1,2\n")
    with pytest.raises(BadInput, match=r"a\.csv:1: the header line must name src and dst.*--column src=NAME"):
        file_rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("src,dst\n1,2\n", encoding="utf-16-le")
    with pytest.raises(BadInput, match=r"a\.csv:1: the header line .*It may be UTF-16: iconv"):
        file_rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(b"src,dst\r1,2\r")
    with pytest.raises(BadInput, match=r"a\.csv:1: the header line is not CSV: new-line character.*line feed: tr"):
        file_rows(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("1,2", r"'1,2'\. Put such a line before the first: \(echo src,dst; cat FILE\) \| graphtide"),
        ("Source;Target,Weight", r"Where they have other names, give these: --column src=NAME --column dst=NAME$"),
    ],
)
def test_a_header_line_that_is_none_is_said_with_what_helps(tmp_path: Path, header: str, advice: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(BadInput, match=advice):
        file_rows(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|", " "])
def test_a_header_line_makes_csv_of_a_file(tmp_path: Path, name: str, mark: str) -> None:
    """Whatever stands between the columns, and whatever the file is called."""
    (tmp_path / name).write_text("src,weight,dst,note\n1,0.5,2,\n3,1,4,x\n".replace(",", mark))
    assert [row[1:4] for row in file_rows(tmp_path / name)] == [(1, 2, 0.5), (3, 4, 1.0)]


@pytest.mark.parametrize("comment", ["# src dst", "#\tsrc\tdst", "% src dst"])
def test_a_comment_is_no_header_line(tmp_path: Path, comment: str) -> None:
    (tmp_path / "a.txt").write_text(f"{comment}\n1 2\n")
    assert [row[1:3] for row in file_rows(tmp_path / "a.txt")] == [(1, 2)]


def test_an_object_makes_json_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "edges").write_text('{"src": 1, "dst": 2}\n{"src": 3, "dst": 4, "op": "delete"}\n')
    assert [row[:3] for row in file_rows(tmp_path / "edges")] == [(1, 1, 2), (0, 3, 4)]


THEIR_NAMES = NamedColumns("payer", "payee", "kind", "amount", op_values={"new": "insert", "gone": "delete"})


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.json", "a.parquet", "a.arrow", "a.npz", "a.npy"])
def test_columns_with_names_of_their_own(tmp_path: Path, name: str) -> None:
    """``ts`` is called as we call it, and nobody said so."""
    columns = {
        "id": [1, 2, 3],
        "payer": [7, 8, 7],
        "payee": [8, 9, 8],
        "amount": [0.5, 2.0, 1.0],
        "kind": ["new", "new", "gone"],
        "ts": [5, 6, 7],
    }
    path, lines = tmp_path / name, [*zip(*columns.values(), strict=True)]
    if name in ("a.csv", "a.tsv.gz"):
        mark = "\t" if "tsv" in name else ","
        text = "".join(f"{mark.join(map(str, row))}\n" for row in [[*columns], *lines]).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    elif name == "a.json":
        path.write_text("".join(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in lines))
    elif name in ("a.parquet", "a.arrow"):
        import pyarrow as pa
        from pyarrow.feather import write_feather
        from pyarrow.parquet import write_table

        (write_table if name == "a.parquet" else write_feather)(pa.table(columns), path)
    elif name == "a.npz":
        np.savez(path, allow_pickle=False, **{key: np.array(column) for key, column in columns.items()})
    else:
        kinds = [(key, np.array(column).dtype) for key, column in columns.items()]
        np.save(path, np.array(lines, kinds))
    found = list(read_columns(path, Accepts(columns=THEIR_NAMES), LeftOut()))
    assert [row[:3] for part in found for row in rows(part)] == [(1, 7, 8), (1, 8, 9), (0, 7, 8)]
    assert [row[3] for part in found for row in rows(part)][:2] == [0.5, 2.0]
    assert concatenated(found).timestamps_ms.tolist() == [5, 6, 7]  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=r"--column src=NAME --column dst=NAME$"):
        read_updates(path)


def test_a_weight_that_nobody_named_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1, "b": 2, "weight": 3}\n{"a": 2, "b": 3}\n')
    found = file_rows(tmp_path / "a.json", Accepts(columns=NamedColumns("a", "b")))
    assert [row[1:4] for row in found] == [(1, 2, 3.0), (2, 3, 1.0)]


def test_names_that_are_not_there(tmp_path: Path) -> None:
    for name in ("a.csv", "a.el", "a.mtx"):
        (tmp_path / name).write_text("src,payee\n1,2\n")
        with pytest.raises(BadInput, match="must name payer, payee, kind and amount"):
            produce_files([tmp_path / name], spool=tmp_path / "spool", accepts=Accepts(columns=THEIR_NAMES))
    np.savez(tmp_path / "a.npz", payer=[1], payee=[2])
    with pytest.raises(BadInput, match=r"must be payer, payee, kind, amount; they are \['payer', 'payee'\]"):
        produce_files([tmp_path / "a.npz"], spool=tmp_path / "spool", accepts=Accepts(columns=THEIR_NAMES))
    assert not (tmp_path / "spool").exists()


def test_an_operation_that_is_not_named_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    table = pa.table({"payer": [1, 2], "payee": [2, 3], "kind": ["new", "delete"], "amount": [1, 1]})
    write_table(table, tmp_path / "a.parquet")
    left_out = LeftOut()
    assert sum(map(len, read_columns(tmp_path / "a.parquet", Accepts(columns=THEIR_NAMES), left_out))) == 1
    assert "row 1: op is 'delete (not in op_values)'" in left_out.places["bad-op"][0]
    np.savez(tmp_path / "a.npz", payer=[1, 2], payee=[2, 3], kind=["new", "delete"], amount=[1, 1])
    with pytest.raises(BadInput, match=r"op is 'delete'; .*op_values has"):
        list(read_columns(tmp_path / "a.npz", Accepts(columns=THEIR_NAMES), left_out))


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_the_only_row_may_be_bad(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of the last batch, when the others are written."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    for reader in ("tables", "arrays"):
        monkeypatch.setattr(f"graphtide.daemon.tools.{reader}.BATCH_ROWS", 2)
    columns = {"src": [1, 2, 3], "dst": [2, 3, 4], "weight": [1.0, 1.0, float("nan")]}
    if form == "parquet":
        write_table(pa.table(columns), tmp_path / "a.parquet")
    else:
        np.savez(tmp_path / "a.npz", allow_pickle=False, **{name: np.array(one) for name, one in columns.items()})
    left_out = LeftOut()
    assert sum(map(len, read_columns(tmp_path / f"a.{form}", Accepts(), left_out))) == 2
    assert left_out.places["bad-weight"][0].startswith(f"{tmp_path}/a.{form}: row 2: weight is nan")


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_a_sparse_matrix(tmp_path: Path, form: str) -> None:
    from scipy import sparse

    matrix = sparse.coo_array(([0.5, 2.0, 4.0], ([0, 3, 1], [2, 1, 1])), shape=(4, 5))
    sparse.save_npz(tmp_path / "a.npz", matrix.asformat(form))
    assert sorted(row[1:4] for row in file_rows(tmp_path / "a.npz")) == [(0, 2, 0.5), (1, 1, 4.0), (3, 1, 2.0)]
    sparse.save_npz(tmp_path / "a.npz", sparse.coo_matrix(matrix))
    assert len(file_rows(tmp_path / "a.npz")) == 3
    sparse.save_npz(tmp_path / "a.npz", sparse.dia_array(matrix))
    with pytest.raises(BadInput, match=r"a sparse matrix in the form 'dia'; .* \.tocoo\(\)"):
        file_rows(tmp_path / "a.npz")


def test_arrays_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([[1, 2], [3, 4], [5, 6]], np.uint32))
    assert [row[1:4] for row in file_rows(path)] == [(1, 2, None), (3, 4, None), (5, 6, None)]
    path = tmp_path / "a.npz"
    seconds = np.array(["2024-01-31T12:00:00", "NaT"], "M8[s]")
    np.savez(path, src=[1, 2], dst=np.int8([3, 4]), op=[True, False], weight=[7, 8], ts=seconds)
    (found,) = read_columns(path, Accepts(), LeftOut())
    assert [row[:3] for row in rows(found)] == [(1, 1, 3), (0, 2, 4)]
    assert found.timestamps_ms is not None and found.timestamps_ms.tolist() == [1_706_702_400_000, NO_TIME]
    np.savez(path, src=["ann", "bob"], dst=["bob", "cid"])
    assert [row[1:3] for row in file_rows(path, Accepts("string"))] == [("ann", "bob"), ("bob", "cid")]


FORMS_OF_NUMPY = ["arrays", "pairs", "fields", "coo", "coords", "csr", "csc"]


def saved_edges(folder: Path, form: str, src: Any, dst: Any) -> Path:
    from scipy import sparse

    n = int(max(src.max(), dst.max())) + 1
    matrix = sparse.coo_matrix((np.ones(src.size, np.float32), (src, dst)), shape=(n, n))
    if form == "arrays":
        np.savez_compressed(folder / "a.npz", src=src, dst=dst)
    elif form == "pairs":
        np.save(folder / "a.npy", np.stack([src, dst], axis=1))
    elif form == "fields":
        np.save(folder / "a.npy", np.rec.fromarrays([src, dst], names="src,dst"))
    else:
        sparse.save_npz(folder / "a.npz", sparse.coo_array(matrix) if form == "coords" else matrix.asformat(form))
    return next(folder.iterdir())


@pytest.mark.parametrize("form", FORMS_OF_NUMPY)
def test_arrays_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """With rows of a matrix that are empty, and others that go over several pieces."""
    edges = np.unique(np.random.default_rng(7).integers(0, [6, 40], (60, 2)) * [4, 1], axis=0)
    path = saved_edges(tmp_path, form, edges[:, 0], edges[:, 1])
    whole = [row[1:3] for row in file_rows(path)]
    assert sorted(whole) == [tuple(pair) for pair in edges.tolist()]
    for n in (1, 3, 7):
        monkeypatch.setattr(arrays, "BATCH_ROWS", n)
        assert [row[1:3] for row in file_rows(path)] == whole


@pytest.mark.parametrize("form", FORMS_OF_NUMPY)
def test_arrays_that_unpack_to_more_take_the_memory_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    n = 1 << 20
    path = saved_edges(tmp_path, form, np.arange(n), np.zeros(n, np.int64))
    monkeypatch.setattr(arrays, "BATCH_ROWS", 1 << 12)
    tracemalloc.start()
    try:
        assert sum(map(len, read_columns(path, ANYTHING, LeftOut()))) == n
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < n * 8  # of one column


def test_texts_that_are_wide_make_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BATCH_BYTES", 1000)
    np.savez(tmp_path / "a.npz", src=["x" * 100, "b", "c"], dst=["b", "c", "d"])
    assert [*map(len, read_columns(tmp_path / "a.npz", Accepts("string"), LeftOut()))] == [2, 1]


NO_EDGES_OF_NUMPY = {
    "texts": (
        {"src": ["a"], "dst": ["b"]},
        "src is a column of 'string'; it must be integers; texts are ids where",
    ),
    "gaps": ({"src": [1.0], "dst": [2]}, r"src is a column of 'float64'; .*\.astype\('int64'\) the columns$"),
    "objects": ({"src": np.array(["a", 1], object), "dst": [1, 2]}, r"is no file of NumPy .*\.astype\(str\)$"),
    "names": ({"row": [1], "col": [2]}, r"they are \['row', 'col'\]\. Where they have other names"),
    "no heads": ({"src": [1]}, "dst is missing"),
    "lengths": ({"src": [1, 2], "dst": [1]}, "dst has 1 entries and src has 2"),
    "pairs": ({"src": [[1, 2]], "dst": [1]}, r"src has the shape \(1, 2\); a column has one dimension"),
    "too large": ({"src": np.uint64([1 << 63]), "dst": [1]}, "src holds 9223372036854775808"),
    "too large, from another machine": (
        {"src": np.array([1 << 63], ">u8"), "dst": [1]},
        "src holds 9223372036854775808",
    ),
    "one number": ({"src": np.int64(1), "dst": np.int64(2)}, r"src has the shape \(\); a column has one"),
    "a matrix": ({"format": "csr", "shape": [2, 2], "indptr": 3, "indices": [1], "data": [1]}, "is no file of"),
    "an operation": ({"src": [1], "dst": [1], "op": ["new"]}, "op is 'new'; allowed are insert"),
    "a weight": ({"src": [1], "dst": [1], "weight": ["x"]}, "weight is a column of 'string'; it must be numbers"),
}


@pytest.mark.parametrize("name", NO_EDGES_OF_NUMPY)
def test_arrays_that_are_no_edges_are_told_with_what_helps(tmp_path: Path, name: str) -> None:
    arrays, what = NO_EDGES_OF_NUMPY[name]
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=what):
        file_rows(tmp_path / "a.npz")


def test_files_of_numpy_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 4)))
    with pytest.raises(BadInput, match=r"shape \(3, 4\); it must have the shape \(n, 2\), .* np\.savez\("):
        file_rows(path)
    for content in (b"", b"\x93NUMPY\x01\0", b"PK\x03\x04" + bytes(20), b"1 2\n"):
        for name in ("a.npy", "a.npz"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(BadInput, match="is no file of NumPy that can be read"):
                file_rows(tmp_path / name)


def test_files_of_numpy_that_are_damaged(tmp_path: Path) -> None:
    """Each byte once, and each end: NumPy, zipfile and zlib have their own words for it."""
    edges = np.arange(60).reshape(-1, 2)
    np.savez_compressed(tmp_path / "a.npz", src=edges[:, 0], dst=edges[:, 1])
    np.save(tmp_path / "a.npy", edges)
    for path in (tmp_path / "a.npz", tmp_path / "a.npy"):
        whole, refused = path.read_bytes(), 0
        turned = (whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(len(whole)))
        for content in (*turned, *(whole[:end] for end in range(len(whole)))):
            path.write_bytes(content)
            try:
                file_rows(path)
            except (BadInput, OSError):  # the last where a place in it is before its beginning
                refused += 1
        assert refused >= len(whole), path


def test_texts_of_numpy_that_are_no_unicode(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", src=["\ud800"], dst=["b"])
    with pytest.raises(BadInput, match="a text is not valid Unicode"):
        file_rows(tmp_path / "a.npz", Accepts("string"))


@pytest.mark.parametrize(
    ("times", "doubted"),
    [
        (["1700000000", "", "1700086400"], True),
        (["1700000000", "1700000000000", ""], False),
        (["5", "6", "7"], False),
        (["", "", ""], False),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_times_that_may_be_seconds_are_doubted(
    tmp_path: Path, times: list[str], doubted: bool, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be milliseconds of 1970, and a window a thousand times as long as it is meant."""
    if form == "csv":
        (tmp_path / "a.csv").write_text("src,dst,ts\n" + "".join(f"1,{n},{ts}\n" for n, ts in enumerate(times)))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        ts = pa.array([int(text) if text else None for text in times], pa.int64())
        parquet.write_table(pa.table({"src": [1, 1, 1], "dst": [0, 1, 2], "ts": ts}), tmp_path / "a.parquet")
    assert produce_files([tmp_path / f"a.{form}"], spool=tmp_path / "spool") == 0
    assert (f"a.{form}: its times (ts) are milliseconds of January" in capsys.readouterr().out) == doubted
    assert produce_files([tmp_path / f"a.{form}"], spool=tmp_path / "spool", json=True) == 0
    doubts = json.loads(capsys.readouterr().out)["doubts"]
    assert len(doubts) == doubted and all("multiply them by 1000" in doubt for doubt in doubts)


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        ("a.txt", "1,2\n", advice._COMMAS),
        ("a.txt", "from,to\n1,2\n", advice._NO_HEADER),
        ("a.tsv", "id\tfrom\tto\tat\tnote\tx\n1\t2\t3\t4\t5\t6\n", advice._NO_HEADER),
        ("a.tsv", "from\tto\n1\t2\n", advice._NO_HEADER),
        ("a.dot", "digraph { 1 -> 2; }\n", advice._BY_NAME),
        ("a.json", '[{"src": 1, "dst": 2}]\n', advice._DOCUMENTS),
        ("a.json", '{\n "src": 1, "dst": 2\n}\n', advice._DOCUMENTS),
        ("a.json", '{"from": 1, "to": 2}\n', advice.OTHER_NAMES),
        ("a.json", '{"src": "alice", "dst": "bob"}\n', advice.TEXT_IDS),
        ("a.csv", "src,dst\n1,bob\n", advice.TEXT_IDS),
        ("a.csv", "src,dst\n5b0e84-e29b,2\n", advice.TEXT_IDS),
        ("a.el", "1 2\n1 5b0e84\n", advice.TEXT_IDS),
        ("a.csv", "src,dst\n1e5,2\n", "ids are 64-bit integers"),
        ("a.csv", "src,dst,op\n1,2,add\n", advice._OTHER_OPS),
        ("a.csv", "src,dst\n1.0,2.0\n", advice._GAPS),
        ("a.json", '{"src": 1, "dst": -2.0}\n', advice._GAPS),
        ("a.csv", "src,dst,ts\n1,2,2024-01-31\n", advice._DATES),
        ("a.json", '{"src": 1, "dst": 2, "ts": "2024-01-31T12:00:00Z"}\n', advice._DATES),
        ("a.csv", "src,dst,ts\n1,2,1.5\n", "(milliseconds)"),
        ("a.csv", "src,dst\n1.5,2.0\n", "ids are 64-bit integers"),
        ("a.el", "1 2\n1 2 3 4 5\n", "src dst [weight [ts]] are allowed"),
    ],
)
def test_files_of_other_programs_are_told_what_helps(tmp_path: Path, name: str, text: str, end: str) -> None:
    (tmp_path / name).write_text(text)
    left_out = LeftOut()
    assert sum(map(len, read_columns(tmp_path / name, Accepts(), left_out))) <= 1
    assert next(iter(left_out.places.values()))[0].endswith(end)


def test_the_command_writes_the_good_and_names_the_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.csv"
    file.write_text("src,dst,weight\n" + "1,2,1\n" * 39_999 + "3,4,-1\n")
    accepts = Accepts(weights="non-negative")
    assert produce_files([file], spool=tmp_path / "spool", accepts=accepts) == REFUSED
    shown = capsys.readouterr().out
    assert shown.startswith("39999 updates written; to wait until answers show them: graphtide query ")
    assert "1 update refused" in shown and "bad-weight" in shown and "a.csv:40001: weight is -1.0" in shown
    assert produce_files([file], spool=tmp_path / "spool", accepts=accepts, json=True) == REFUSED
    answer = json.loads(capsys.readouterr().out)
    assert answer["updates"] == 39_999 and answer["refused"]["bad-weight"]["updates"] == 1
    assert sum(map(len, (block for block in of_spool(tmp_path / "spool")))) == 2 * 39_999


def of_spool(folder: Path) -> list[UpdateBlock]:
    """What the daemon makes of a spool, in which nothing is bad."""
    source, blocks = SpoolSource(folder), []
    source.open(None)
    with contextlib.closing(source):
        while records := source.poll(1 << 24, 0):
            for record in records:
                decoded = Decoder().decode(record)
                assert not decoded.bad and decoded.block is not None
                blocks.append(decoded.block)
    return blocks


@pytest.mark.skipif(not DATA.exists(), reason="the public data sets are not here")
@pytest.mark.parametrize(("name", "events", "deletes"), [("as733-21days", 9247, 1107), ("bitcoinotc", 35592, 0)])
def test_public_streams(name: str, events: int, deletes: int) -> None:
    columns = read_updates(DATA / f"{name}.events.tsv.xz")
    assert len(columns) == events and int((columns.ops == 0).sum()) == deletes
    assert columns.weights is not None and columns.timestamps_ms is not None
    assert (columns.weights.min() < 0) == (name == "bitcoinotc")


# -- destinations -------------------------------------------------------------------------------------------


def sent(source: Source, produced: Produced) -> dict[Partition, list[tuple[int, int, int]]]:
    """What the daemon would decode, per partition."""
    decoder = Decoder(weights="any")
    found: dict[Partition, list[tuple[int, int, int]]] = {}
    with contextlib.closing(source):
        source.open(None)
        while any(source.position().get(p, 0) < offset for p, offset in produced.offsets.items()):
            for record in source.poll(1 << 24, timeout_s=1):
                decoded = decoder.decode(record)
                assert not decoded.bad and decoded.block is not None
                block = decoded.block
                assert isinstance(block.src, np.ndarray) and isinstance(block.dst, np.ndarray)
                found.setdefault(record.partition, []).extend(
                    zip(block.ops.tolist(), block.src.tolist(), block.dst.tolist(), strict=True)
                )
    return found


def random_columns(count: int) -> UpdateColumns:
    rng = np.random.default_rng(7)
    src, dst = rng.integers(-1000, 1000, (2, count))
    return UpdateColumns(
        src, dst, rng.integers(0, 2, count).astype(np.uint8), rng.random(count).astype(np.float32)
    )


def test_a_spool_gets_everything_in_order(tmp_path: Path) -> None:
    columns = random_columns(1000)
    destination = SpoolDestination(tmp_path, name="edges")
    with contextlib.closing(destination):
        produced = produce([columns], destination, edges_per_record=64)
    assert produced.updates == 1000 and list(produced.offsets) == [Partition("edges.msgpack")]
    (found,) = sent(SpoolSource(tmp_path), produced).values()
    assert found == [row[:3] for row in rows(columns)]


def test_each_place_of_what_is_refused_stands_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("src,dst\n1,2,3\nx,2\n1\n1,2\n")
    left_out = LeftOut()
    list(read_columns(file, Accepts(), left_out))
    report_left_out(left_out)
    shown = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    assert "\\n" not in shown
    assert [
        sum(f"a.csv:{line}: " in text for line in (2, 3, 4)) for text in shown.splitlines() if "a.csv" in text
    ] == [1, 1, 1]


def test_a_window_over_times_in_disorder_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,ts\n1,2,10\n2,3,30\n3,4,20\n4,5,10\n")
    with pytest.raises(BadInput, match=r"one of 20 ms comes after one of 30 ms \(edge 3\); sort them by ts"):
        produce_files([tmp_path / "a.csv"], spool=tmp_path / "spool", window_seconds=10)


def test_the_command_prints_what_a_wait_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text("I\t1\t2\t-\t1\nI\t1\t2\t-\t100\n")
    status = produce_files([tmp_path / "a.tsv"], spool=tmp_path / "spool", json=True, window_seconds=10)
    answer = json.loads(capsys.readouterr().out)
    assert status == 0 and answer["updates"] == 3
    ((name, offset),) = answer["offsets"].items()
    assert (tmp_path / "spool" / name).stat().st_size == offset


@pytest.fixture
def topic(kafka: DevKafka) -> str:
    name = f"produced-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 4)
    return name


@pytest.mark.kafka
@pytest.mark.parametrize("undirected", [False, True])
def test_a_topic_gets_every_edge_in_its_partition(kafka: DevKafka, topic: str, undirected: bool) -> None:
    columns = random_columns(5000)
    destination = KafkaDestination(kafka.bootstrap, topic)
    with contextlib.closing(destination):
        produced = produce([columns], destination, edges_per_record=100, undirected=undirected)
    found = sent(KafkaSource(kafka.bootstrap, [topic]), produced)
    expected: dict[Partition, list[tuple[object, ...]]] = {}
    for row in rows(canonical(columns) if undirected else columns):
        key = int(str(row[1])).to_bytes(8, "little", signed=True)
        expected.setdefault(Partition(topic, (murmur2(key) & 0x7FFFFFFF) % 4), []).append(row[:3])
    assert found == expected
    assert set(produced.offsets) == set(found) and produced.updates == 5000


@pytest.mark.kafka
def test_a_missing_topic_is_an_error(kafka: DevKafka) -> None:
    with pytest.raises(ProduceFailed, match="nowhere: create it"):
        KafkaDestination(kafka.bootstrap, "nowhere")


def test_a_broker_that_is_not_there_is_told_with_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphtide.daemon.ingest.kafka_client.COMMAND_CONNECT_MS", 200)
    with held_port() as port, pytest.raises(ProduceFailed, match=r"^Kafka at .*; see whether a broker runs"):
        KafkaDestination(f"127.0.0.1:{port}", "edges")


@pytest.mark.kafka
def test_produce_logs_in_as_its_settings_say(kafka: DevKafka, topic: str, tmp_path: Path) -> None:
    """With the daemon's own file, its password in a file beside it."""
    (tmp_path / "password").write_text(f"{kafka.password}\n")
    (tmp_path / "g.toml").write_text(
        '[source.client]\nsecurity_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\n'
        'sasl_plain_username = "graphtide"\nsasl_plain_password_file = "password"\n'
    )
    (tmp_path / "a.el").write_text("1 2\n3 4\n")
    command = [
        "produce",
        "--kafka",
        kafka.bootstrap_sasl,
        "--topic",
        topic,
        "--config",
        "g.toml",
        "--json",
        "a.el",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "graphtide", *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    offsets = offsets_from_wire(answer["offsets"])
    found = sent(KafkaSource(kafka.bootstrap, [topic]), Produced(answer["updates"], offsets))
    assert sorted(row for part in found.values() for row in part) == [(1, 1, 2), (1, 3, 4)]


@pytest.mark.kafka
def test_a_login_that_is_refused_is_a_wrong_setting(
    kafka: DevKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphtide.daemon.ingest.kafka_client.COMMAND_CONNECT_MS", 3000)
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "graphtide"}
    with pytest.raises(ConfigError, match="Sasl"):  # this listener asks nobody to log in
        KafkaDestination(kafka.bootstrap, topic, client={**login, "sasl_plain_password": kafka.password})


@pytest.mark.parametrize("content", [bz2.compress(b"1 2\n")[:-3], b"garbage", b"BZh9" + bytes(40)])
def test_bzip2_that_is_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.el.bz2").write_bytes(content)
    with pytest.raises(BadInput, match="cannot be decompressed"):
        file_rows(tmp_path / "a.el.bz2")


def test_parquet_whose_ids_are_text_is_looked_at_as_it_is_read(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.table({"src": ["a", "b"], "dst": ["c", "a"]}), tmp_path / "a.parquet")
    assert produce_files([tmp_path / "a.parquet"], spool=tmp_path / "spool", accepts=Accepts("string")) == 0
    with pytest.raises(BadInput, match="must be integers"):
        produce_files([tmp_path / "a.parquet"], spool=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_parquet_of_a_database(tmp_path: Path) -> None:
    """Weights are often counts; and columns of other names are named."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    path = tmp_path / "a.parquet"
    write_table(pa.table({"src": [1, 2], "dst": [2, 3], "weight": pa.array([3, None], pa.int32())}), path)
    assert [row[1:4] for row in file_rows(path)] == [(1, 2, 3.0), (2, 3, 1.0)]
    write_table(pa.table({"Source": [1], "Target": [2]}), path)
    with pytest.raises(BadInput, match=r"the columns must be src and dst.* they are \['Source', 'Target'\]"):
        file_rows(path)


@pytest.mark.parametrize("form", ["file", "compressed", "stream"])
def test_arrow_of_every_form(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger batches than are read at once, beside a column that nobody asked for."""
    import pyarrow as pa

    monkeypatch.setattr("graphtide.daemon.tools.tables.BATCH_ROWS", 2)
    columns = {
        "label": ["x"] * 5,
        "dst": list(range(5)),
        "src": pa.array([9, 8, None, 6, 5]),
        "weight": [0.5, 1.0, 2.0, None, 4.0],
        "op": pa.array(["insert", None, "insert", "delete", "insert"]).dictionary_encode(),
    }
    table = pa.table(columns)
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
        opened = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
        with opened(file, table.schema, options=options) as writer:
            writer.write_table(table.slice(0, 4))
            writer.write_table(table.slice(4))
    left_out, shares = LeftOut(), list[float]()
    found = [row for part in read_columns(path, Accepts(), left_out, shares.append) for row in rows(part)]
    assert [row[:3] for row in found] == [(1, 9, 0), (1, 8, 1), (0, 6, 3), (1, 5, 4)]
    assert [row[3] for row in found if row[0] == 1] == [0.5, 1.0, 4.0]
    assert left_out.places == {"bad-id": [f"{path}: row 2: src is null"]}
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1, abs=0.2 if form == "stream" else 0)


def test_arrow_that_holds_no_edges_is_named(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "a.feather"
    path.write_bytes(b"ARROW1" + bytes(40))
    with pytest.raises(BadInput, match=r"a\.feather is no Arrow that can be read"):
        file_rows(path)
    empty = pa.table({"Source": pa.array([], pa.int64())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, empty.schema) as writer:
        writer.write_table(empty)
    with pytest.raises(BadInput, match=r"the columns must be src and dst.* they are \['Source'\]"):
        file_rows(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
def test_a_damaged_file_of_columns_is_named(tmp_path: Path, name: str) -> None:
    """PyArrow says of most damage what was read, and not where."""
    import pyarrow as pa
    from pyarrow.feather import write_feather
    from pyarrow.parquet import write_table

    table, path = pa.table({"src": list(range(1000)), "dst": list(range(1000))}), tmp_path / name
    if name == "a.arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        path.write_bytes(path.read_bytes()[:5000])
    else:
        (write_table if name == "a.parquet" else write_feather)(table, path)
        whole = bytearray(path.read_bytes())
        whole[8:600] = b"\xff" * 592
        path.write_bytes(whole)
    form = "Parquet" if name == "a.parquet" else "Arrow"
    with pytest.raises(BadInput, match=rf"{re.escape(str(path))} is no {form} that can be read"):
        file_rows(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file_rows(path)


def test_a_column_of_another_type_is_told_with_what_helps(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    path = tmp_path / "a.parquet"
    for src, helps in (
        (["a", "b"], "texts are ids where --vertex-ids, or graph.vertex_ids, is string"),
        ([1.0, None], r"leave those rows out, then \.astype\('int64'\) the columns"),
    ):
        write_table(pa.table({"src": src, "dst": [1, 2]}), path)
        with pytest.raises(BadInput, match=rf"src is a column of .* it must be integers; .*{helps}$"):
            file_rows(path)
    write_table(pa.table({"src": [1], "dst": [2], "ts": [0.5]}), path)
    with pytest.raises(BadInput, match=r"it must be int64 or timestamp$"):
        file_rows(path)


NO_TEXTS = {
    "gzip.csv": (gzip.compress(b"src,dst\n"), "compressed by gzip; .* ends in .gz"),
    "xz.tsv": (lzma.compress(b"1 2\n"), "compressed by xz; .* ends in .xz"),
    "zstd.json": (zstandard.compress(b"1 2\n"), "compressed by zstd; .* ends in .zst"),
    "bzip2": (bz2.compress(b"1 2\n"), "compressed by bzip2; .* ends in .bz2"),
    "twice.gz": (gzip.compress(gzip.compress(b"1 2\n")), "compressed by gzip"),
    "parquet.txt": (b"PAR1\x15\x04" + bytes(20), "Parquet; .* ends in .parquet"),
    "arrow.csv": (b"ARROW1\0\0" + bytes(20), "an Arrow file; .* ends in .arrow"),
    "a.xlsx": (b"PK\x03\x04" + bytes(20), "a zip archive"),
    "a.npy.txt": (b"\x93NUMPY\x01\0" + bytes(20), "an array of NumPy; .* ends in .npy"),
    "a.tar": (b"a.txt".ljust(257, b"\0") + b"ustar  \0", "a tar archive; unpack it"),
    "a.pkl": (b"\x80\x05\x95\n1 2\n", "a pickle of Python; save its edges"),
    "a.graphml": (b"<?xml version='1.0'?>\n<graphml/>\n", "XML"),
    "a.net": (b"*Vertices 3\n*Arcs\n1 2 1\n", "of Pajek"),
    "utf16.csv": ("src,dst\n".encode("utf-16"), "UTF-16: iconv"),
    "utf16.txt": ("1 2\n".encode("utf-16"), "UTF-16: iconv"),
}


@pytest.mark.parametrize("name", NO_TEXTS)
def test_what_is_no_text_is_told_by_its_beginning(tmp_path: Path, name: str) -> None:
    content, what = NO_TEXTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=rf"{name}: it is {what}"):
        produce_files([tmp_path / name], spool=tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("id", ["PAR1", "ARROW1", "PK", "BZh9"])
def test_an_id_as_another_form_begins_is_an_id(tmp_path: Path, id: str) -> None:
    """PAR1 is a receptor, of which there are graphs."""
    (tmp_path / "a.tsv").write_text(f"{id}\tF2R\n{id} x\n")
    assert [row[1] for row in file_rows(tmp_path / "a.tsv", Accepts("string"))] == [id, id]


def test_a_wrong_time_is_told_in_the_unit_of_its_file(tmp_path: Path) -> None:
    left_out = LeftOut()
    for name, line in (("a.tsv", "I\t1\t2\t-\t0.5\n"), ("a.csv", "src,dst,ts\n1,2,0.5\n")):
        (tmp_path / name).write_text(line)
        list(read_columns(tmp_path / name, Accepts(), left_out))
    seconds, milliseconds = left_out.places["bad-timestamp"]
    assert seconds.endswith("it must be an integer (seconds)")
    assert milliseconds.endswith("it must be an integer (milliseconds)")


@pytest.mark.parametrize("named", ["-", "/dev/stdin"])
@pytest.mark.parametrize("text", [b"# c\n1 2\n3 4 0.5\n", b"src,dst\n1,2\n3,4\n"])
def test_edges_from_a_pipe(tmp_path: Path, named: str, text: bytes) -> None:
    command = [sys.executable, "-m", "graphtide", "produce", "--spool", str(tmp_path), "--json", named]
    done = subprocess.run(command, input=text, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 2


def test_a_redirected_file_is_read_from_where_it_stands(tmp_path: Path) -> None:
    """As where a shell has read its first line already."""
    (tmp_path / "a").write_bytes(b"100 200\n1 2\n")
    command = [sys.executable, "-m", "graphtide", "produce", "--spool", str(tmp_path / "spool"), "--json", "-"]
    with open(tmp_path / "a", "rb", buffering=0) as file:
        file.seek(len(b"100 200\n"))
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 1
