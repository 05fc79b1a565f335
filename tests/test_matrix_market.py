"""MatrixMarket files in a spool: what stands before their edges is none, wherever reading begins again."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from typing import Any

import pytest

from graphtide.daemon.ingest import spool, spool_records
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.records.encodings import IN_PREAMBLE
from graphtide.daemon.records.stream import Decoded, Partition, RawRecord
from graphtide.daemon.tools import files
from graphtide.daemon.tools.files import Accepts, BadInput, LeftOut
from graphtide.gpma.index.ids import StringColumn

FILE = Partition("a.el")
LINES = [
    b"%%MatrixMarket matrix coordinate real general\n",
    b"% comment\n",
    b"\n",
    b"%\r\n",
    b"  \t\n",
    b"% another comment that is longer than the others are\n",
    b"4 4 2\n",
    b"% among the edges\n",
    b"1 2 0.5\n",
    b"3 4 1\n",
]
TEXT = b"".join(LINES)
EDGES = [(1, 2, 0.5), (3, 4, 1.0)]


def edges(decoded: Decoded) -> list[tuple[int, int, float]]:
    assert not decoded.bad
    if decoded.block is None:
        return []
    block = decoded.block
    ends = [ids.to_list() if isinstance(ids, StringColumn) else ids.tolist() for ids in (block.src, block.dst)]
    assert block.weights is not None
    return [(int(src), int(dst), weight) for src, dst, weight in zip(*ends, block.weights.tolist(), strict=True)]


def opened(path: Path, offset: int = 0, partition: Partition = FILE, **options: Any) -> SpoolSource:
    source = SpoolSource(path, **options)
    source.open({partition: offset} if offset else None)
    return source


def drain(source: SpoolSource) -> list[RawRecord]:
    records: list[RawRecord] = []
    while fresh := source.poll(1 << 20, timeout_s=0):
        records += fresh
    source.close()
    return records


@pytest.mark.parametrize("kind", ["int", "string"])
def test_cut_into_any_blocks_they_load_as_they_are(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "a.el").write_bytes(TEXT)
    for block_bytes in (1, 12, 40, 60, 90, 1000):
        decoder = Decoder(vertex_ids=kind)
        records = drain(opened(tmp_path, block_bytes=block_bytes))
        assert [edge for record in records for edge in edges(decoder.decode(record))] == EDGES


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "mark"])
@pytest.mark.parametrize("name", ["a.el", "a.el.gz"])
def test_a_restart_knows_where_it_stands(tmp_path: Path, name: str, mark: bytes) -> None:
    """Within the comments, at the line of sizes, behind it: it is another process, which saw nothing before."""
    text = mark + TEXT
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    offset = 0
    for at, line in enumerate(LINES):
        for block_bytes in (1, 1000):
            records = drain(opened(tmp_path, offset, Partition(name), block_bytes=block_bytes))
            found = [edge for record in records for edge in edges(Decoder().decode(record))]
            assert found == EDGES[max(at - 8, 0) :], (at, block_bytes)
        offset += len(line) + (len(mark) if at == 0 else 0)


def test_a_block_that_is_decoded_again_means_the_same(tmp_path: Path) -> None:
    """As while a registry is waited for, which one of them needs, or ids run out."""
    (tmp_path / "a.el").write_bytes(TEXT)
    records = drain(opened(tmp_path, block_bytes=60))
    assert len(records) > 2
    decoder = Decoder()
    assert [edge for one in decoder.decode_all(records) for edge in edges(one)] == EDGES
    assert [edge for one in decoder.decode_all(records) for edge in edges(one)] == EDGES


def test_only_blocks_within_the_preamble_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(TEXT)
    (tmp_path / "b.el").write_bytes(b"1 2\n% x\n3 4\n")
    for offset in (0, 4):
        partitions = {Partition("a.el"): 0, Partition("b.el"): offset}
        source = SpoolSource(tmp_path, block_bytes=1)
        source.open(partitions)
        records = drain(source)
        inside = [record.offset for record in records if (IN_PREAMBLE, b"") in record.headers]
        begins = [record.offset for record in records if record.partition == FILE and record.offset]
        assert inside == [at for at in begins if at <= TEXT.index(b"4 4 2")] and len(begins) > len(inside) > 0


def test_a_preamble_longer_than_is_looked_at_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a comment that is too long to be a record of its own."""
    monkeypatch.setattr("graphtide.daemon.ingest.matrix_market._PIECE_BYTES", 7)
    monkeypatch.setattr(spool_records, "READ_BYTES", 16)
    text = LINES[0] + b"%" + b"x" * 500 + b"\n% y\n4 4 2\n1 2\n"
    (tmp_path / "a.el").write_bytes(text)
    for offset in (0, len(LINES[0]), len(LINES[0]) + 502):
        records = drain(opened(tmp_path, offset, block_bytes=1, record_bytes_max=100))
        decoded = [Decoder().decode(record) for record in records]
        assert sum(len(one.block) for one in decoded if one.block is not None) == 1
        assert [bad.reason for one in decoded for bad in one.bad] == ["too-large"] * (offset <= len(LINES[0]))


def test_files_that_are_sent_are_read_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mtx").write_bytes(TEXT)
    for block_bytes in (8, 50, 1 << 20):
        monkeypatch.setattr(files, "_BLOCK_BYTES", block_bytes)
        updates = files.read_updates(tmp_path / "a.mtx")
        assert [*zip(updates.src, updates.dst, strict=True)] == [(1, 2), (3, 4)]


def test_what_was_read_is_not_lost_when_the_beginning_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position has moved on by then."""
    (tmp_path / "a.el").write_bytes(b"1 2 1\n3 4 1\n")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    source = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(spool, "take_fingerprint", fail)
        records = source.poll(1 << 20, timeout_s=0)
    records += drain(source)
    assert b"".join(record.value or b"" for record in records) == b"1 2 1\n3 4 1\n"


# -- what the banner says -----------------------------------------------------------------------------------------

REFUSED = [
    "matrix coordinate complex general",
    "matrix coordinate real skew-symmetric",
    "matrix coordinate complex hermitian",
    "matrix array real general",
    "vector coordinate real general",
    "matrix coordinate real",
    "",
]
READ = [
    "matrix coordinate pattern general",
    "MATRIX Coordinate Real GENERAL\r",
    "matrix coordinate integer general",
]


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "mark"])
@pytest.mark.parametrize("banner", REFUSED)
def test_what_is_no_graph_is_refused(tmp_path: Path, banner: str, mark: bytes) -> None:
    text = mark + f"%%MatrixMarket {banner}\n%\n3 3 2\n1 2 3 4\n2 3 4 5\n".encode()
    (tmp_path / "a.el").write_bytes(text)
    (tmp_path / "b.el").write_bytes(b"7 8\n")
    with pytest.raises(BadInput, match=r"a\.el:1: of MatrixMarket 'matrix coordinate' is read, of real"):
        files.read_updates(tmp_path / "a.el")
    with pytest.raises(BadInput, match=r"a\.el:1: of MatrixMarket"):
        files.require_readable(tmp_path / "a.el", Accepts())
    for block_bytes in (1, 1000):
        decoded = [Decoder().decode(record) for record in drain(opened(tmp_path, block_bytes=block_bytes))]
        (bad,) = [bad for one in decoded for bad in one.bad]
        assert bad.reason == "malformed" and "matrix coordinate" in bad.detail and bad.partition == FILE
        assert "put them into a new file" in bad.detail and "another name" not in bad.detail, "it would do no good"
        assert [(int(one.block.src[0]), len(one.block)) for one in decoded if one.block is not None] == [(7, 1)]
    topic = RawRecord(Partition("t", 0), 5, 6, text, "el", 0)
    (bad,) = Decoder().decode(topic).bad
    assert bad.reason == "malformed" and Decoder().decode(topic).block is None


@pytest.mark.parametrize("banner", READ)
def test_every_other_graph_is_read(tmp_path: Path, banner: str) -> None:
    (tmp_path / "a.el").write_bytes(f"%%MatrixMarket {banner}\n3 3 2\n1 2 3\n2 3 4\n".encode())
    records = drain(opened(tmp_path))
    assert [edge for record in records for edge in edges(Decoder().decode(record))] == [(1, 2, 3.0), (2, 3, 4.0)]
    assert len(files.read_updates(tmp_path / "a.el")) == 2


@pytest.mark.parametrize("kind", ["int", "string"])
@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_symmetric_is_both_halves(
    tmp_path: Path, kind: Any, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n1 2 5\n3 3 7\n3 1 9\n")
    half = [("1", "2", 5.0), ("3", "3", 7.0), ("3", "1", 9.0)]
    both = [*half, ("2", "1", 5.0), ("1", "3", 9.0)]
    for directed, expected in ((True, both), (False, half)):
        left_out = LeftOut()
        updates = list(files.read_columns(path, Accepts(kind, directed=directed), left_out))
        found = []
        for part in updates:
            ends = [
                ids.to_list() if isinstance(ids, StringColumn) else map(str, ids.tolist())
                for ids in (part.src, part.dst)
            ]
            assert part.weights is not None
            found += zip(*ends, part.weights.tolist(), strict=True)
        assert sorted(found) == sorted(expected) and not left_out.refused


def test_half_of_a_directed_graph_is_not_taken_for_it(tmp_path: Path) -> None:
    """As a file of a spool, and as a record: nobody adds the other half there."""
    text = b"%%MatrixMarket matrix coordinate pattern symmetric\n3 3 1\n1 2\n"
    (tmp_path / "a.el").write_bytes(text)
    record = RawRecord(Partition("t", 0), 5, 6, text, "el", 0)
    for directed in (True, False):
        decoder = Decoder(directed=directed)
        for one in (record, *drain(opened(tmp_path, directed=directed))):
            decoded = decoder.decode(one)
            if directed:
                (bad,) = decoded.bad
                assert bad.reason == "malformed" and "half of the edges of a directed graph" in bad.detail
            else:
                assert decoded.block is not None and not decoded.bad
                assert (int(decoded.block.src[0]), int(decoded.block.dst[0])) == (1, 2)


@pytest.mark.parametrize(
    ("sizes", "lines", "reason", "missing", "words"),
    [
        ("4 4 3\n", "1 2\n3 4\n", "damaged", 1, "promises 3 edges, and there are 2"),
        ("4 4 9\n", "1 2\n3 3\n% 5\n\n1 x\n", "damaged", 6, "promises 9 edges, and there are 3"),
        ("", "", "malformed", 1, "a line of rows, columns and edges; there is none"),
        ("", "1 2\n3 4\n", "malformed", 1, "a line of rows, columns and edges; there is none"),
    ],
)
@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
def test_a_file_that_is_shorter_than_it_says_is_not_whole(
    tmp_path: Path,
    sizes: str,
    lines: str,
    reason: str,
    missing: int,
    words: str,
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate pattern general\n% x\n{sizes}{lines}")
    left_out = LeftOut()
    list(files.read_columns(path, Accepts(self_loops="drop"), left_out))
    assert left_out.refused[reason] == missing
    assert left_out.places[reason][-1].startswith(f"{path}: ") and words in left_out.places[reason][-1]
