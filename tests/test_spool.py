"""The spool: its frames, its writer, and the source that follows it."""

from __future__ import annotations

import errno
import fcntl
import gzip
import itertools
import lzma
import os
import random
import shutil
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import crc32c
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.errors import ConfigError, SourceError
from graphtide.daemon.ingest.spool import SpoolSource
from graphtide.daemon.ingest.spool_records import CORRUPT, LARGE_BYTES
from graphtide.daemon.records.encodings import HEADER_LINE
from graphtide.daemon.records.spool_format import (
    Frame,
    FramingLost,
    SpoolWriter,
    file_kind,
    frame,
    frames,
    large_frames,
    read_frames,
)
from graphtide.daemon.records.stream import Partition, RawRecord, Whole

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def opened(
    path: Path, offsets: dict[Partition, int] | None = None, state: bytes = b"", **options: Any
) -> SpoolSource:
    source = SpoolSource(path, **options)
    source.open(offsets, state)
    return source


def drain(source: SpoolSource, bytes_max: int = 1 << 20) -> list[RawRecord]:
    records: list[RawRecord] = []
    while fresh := source.poll(bytes_max, timeout_s=0):
        records += fresh
    return records


def values(records: list[RawRecord]) -> list[bytes]:
    return [record.value or b"" for record in records]


# -- names and frames ---------------------------------------------------------------------------------------


def test_a_name_tells_encoding_and_compression() -> None:
    assert file_kind("a.msgpack") == ("msgpack", None)
    assert file_kind("a.b.csv.gz") == ("csv", "gz")
    assert file_kind("edges.el.zst") == ("el", "zst")
    for name in ("a.txt", "csv", ".csv", "csv.gz", ".hidden.csv", "a.csv.tmp", "a.msgpack.part", "a.csv.bz2"):
        assert file_kind(name) is None, name


@given(payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8), cut=st.integers(0, 400))
@settings(deadline=None, max_examples=examples(60))
def test_whole_frames_come_back_and_an_incomplete_one_waits(payloads: list[bytes], cut: int) -> None:
    data = b"".join(map(frame, payloads))
    found = list(frames(data[:cut]))
    ends = [sum(len(p) + 8 for p in payloads[: i + 1]) for i in range(len(payloads))]
    assert [item.payload for item in found] == [p for p, end in zip(payloads, ends, strict=True) if end <= cut]
    assert all(item.good for item in found)
    assert [item.stop for item in found] == ends[: len(found)]


def outcome(found: Iterator[Frame]) -> tuple[list[Frame], tuple[int, str] | None]:
    """All frames, and where and why framing is lost after them."""
    listed: list[Frame] = []
    try:
        listed.extend(found)
    except FramingLost as lost:
        return listed, (lost.position, lost.why)
    return listed, None


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    cut=st.integers(0, 400),
    broken=st.none() | st.tuples(st.integers(0, 400), st.integers(1, 255)),
    least=st.integers(1, 12),
    room=st.integers(1, 200),
)
@settings(deadline=None, max_examples=examples(200))
def test_frames_read_one_by_one_are_those_of_a_buffer(
    payloads: list[bytes], cut: int, broken: tuple[int, int] | None, least: int, room: int
) -> None:
    data = bytearray(b"".join(map(frame, payloads))[:cut])
    if broken is not None and broken[0] < len(data):
        data[broken[0]] ^= broken[1]
    whole, lost = outcome(frames(bytes(data), bytes_max=1000))
    found, lost_there = outcome(
        large_frames(lambda start, count: bytes(data[start : start + count]), least, room, bytes_max=1000)
    )
    large = list(itertools.takewhile(lambda item: len(item.payload) >= least and item.start < room, whole))
    assert found == large
    if lost_there is not None:
        assert lost_there == lost
    elif lost is not None and len(found) == len(whole):
        assert lost[0] >= room or least > 1


@pytest.mark.parametrize("by", [-9, -8, -1, 0, 1])
def test_records_about_as_large_as_are_read_one_by_one(tmp_path: Path, by: int) -> None:
    """Beside small ones, incomplete at first, and one whose checksum does not hold."""
    payloads = [b"a" * (LARGE_BYTES + by), b"b" * 10, b"c" * (LARGE_BYTES + by), b"d" * (2 * LARGE_BYTES), b"e"]
    data = bytearray(b"".join(map(frame, payloads)))
    data[len(payloads[0]) + 8 + 18 + 8 + 5] ^= 1  # of the third
    path, source = tmp_path / "a.msgpack", opened(tmp_path)
    records: list[RawRecord] = []
    for end in (5, 1000, len(payloads[0]) + 8, len(payloads[0]) + 30, len(data) - 1, len(data)):
        path.write_bytes(data[:end])
        records += drain(source)
    assert [record.encoding for record in records] == ["msgpack", "msgpack", CORRUPT, "msgpack", "msgpack"]
    assert [record.value for record in records if record.encoding != CORRUPT] == payloads[:2] + payloads[3:]
    assert [record.next_offset for record in records] == list(
        itertools.accumulate(len(payload) + 8 for payload in payloads)
    )


def test_a_broken_checksum_spares_its_neighbours() -> None:
    data = bytearray(frame(b"one") + frame(b"two") + frame(b"three"))
    data[len(frame(b"one")) + 9] ^= 1
    assert [(item.payload, item.good) for item in frames(bytes(data))] == [
        (b"one", True),
        (b"two"[:1] + bytes([b"two"[1] ^ 1]) + b"two"[2:], False),
        (b"three", True),
    ]


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\xff" * 8])
def test_a_senseless_length_loses_the_framing(tail: bytes) -> None:
    with pytest.raises(FramingLost) as caught:
        list(frames(frame(b"one") + tail))
    assert caught.value.position == len(frame(b"one"))


def test_a_length_that_points_into_nowhere_loses_the_framing() -> None:
    first = bytearray(frame(b"x" * 100))
    first[0] = 50  # the length is wrong but possible: the checksum fails, and what follows is no header
    with pytest.raises(FramingLost):
        list(frames(bytes(first) + frame(b"two"), bytes_max=1000))


@pytest.mark.parametrize("size", [0, (64 << 20) + 1])
def test_records_have_a_size(size: int) -> None:
    with pytest.raises(ValueError, match="a record must have"):
        frame(bytes(size))


# -- the writer ---------------------------------------------------------------------------------------------


def test_writer_and_source_agree_on_offsets(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path) as writer:
        ends = [writer.append(payload) for payload in (b"a", b"bb", b"ccc")]
    records = drain(opened(tmp_path))
    assert values(records) == [b"a", b"bb", b"ccc"]
    assert [record.next_offset for record in records] == ends
    assert {record.encoding for record in records} == {"msgpack"}


def test_a_writer_goes_on_after_a_torn_record(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, name="a.msgpack") as writer:
        writer.append(b"whole")
    with open(tmp_path / "a.msgpack", "ab") as file:
        file.write(frame(b"torn")[:-1])
    source = opened(tmp_path)
    assert values(drain(source)) == [b"whole"]
    with SpoolWriter(tmp_path, name="a.msgpack") as writer:
        writer.append(b"next")
    assert values(drain(source)) == [b"next"]


def test_files_of_writers_are_read_as_they_were_made_though_the_clock_is_stepped_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000_999_999_999
    (tmp_path / "notes-of-2099.csv").touch()
    for number, step in enumerate((0, -3600 * 10**9, -3600 * 10**9, 1)):
        monkeypatch.setattr("time.time_ns", lambda step=step: now + step)
        with SpoolWriter(tmp_path) as writer:
            writer.append(b"%d" % number)
    assert values(drain(opened(tmp_path))) == [b"0", b"1", b"2", b"3"]
    assert writer.name.startswith("20231114T221321.00000000"), "no later than it must be"
    (tmp_path / "99999999T999999.999999999-1.msgpack").touch()
    with SpoolWriter(tmp_path) as writer:
        assert writer.name.startswith("20231114T2213"), "that is no time"


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path, name="a.msgpack"), pytest.raises(BlockingIOError):
        SpoolWriter(tmp_path, name="a.msgpack")


@pytest.mark.parametrize("behind", [0, 9])
def test_whoever_gives_up_a_file_has_it_until_it_is_as_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """What another writer appended meanwhile would go with what is cut off."""
    writer = SpoolWriter(tmp_path, name="a.msgpack")
    writer.append(b"1")
    writer.append(b"2")
    tried = list[str]()

    def while_another_tries(*given: Any) -> None:
        with pytest.raises(BlockingIOError):
            SpoolWriter(tmp_path, name="a.msgpack")
        tried.append("a.msgpack")
        cut(*given)

    where = (os, "truncate") if behind else (Path, "unlink")
    cut = getattr(*where)
    monkeypatch.setattr(*where, while_another_tries)
    assert writer.give_up(behind) and tried
    assert [path.stat().st_size for path in tmp_path.iterdir()] == ([behind] if behind else [])
    SpoolWriter(tmp_path, name="a.msgpack").close()


def test_a_file_that_goes_just_as_it_is_opened_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.msgpack").write_bytes(frame(b"old"))
    really = fcntl.flock

    def gone(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", really)
        (tmp_path / "a.msgpack").unlink()
        really(file, how)

    monkeypatch.setattr(fcntl, "flock", gone)
    with SpoolWriter(tmp_path, name="a.msgpack") as writer:
        writer.append(b"new")
    assert (tmp_path / "a.msgpack").read_bytes() == frame(b"new")


def test_new_files_sort_by_time(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with SpoolWriter(tmp_path) as writer:
            names.append(writer.name)
    assert names == sorted(names) and len(set(names)) == 3


def test_reading_frames_larger_than_a_read(tmp_path: Path) -> None:
    payloads = [b"s", b"l" * (3 << 20), b"t"]
    with SpoolWriter(tmp_path, name="a.msgpack") as writer:
        for payload in payloads:
            writer.append(payload)
    assert [item.payload for item in read_frames(tmp_path / "a.msgpack")] == payloads
    assert values(drain(opened(tmp_path))) == payloads


# -- following files ----------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, bytes]], list[int]]:
    """Pieces appended to files in turn (cut anywhere), and after which of them the reader restarts."""
    contents = {
        "b.el": b"".join(draw(st.lists(st.binary(max_size=12).map(_line), max_size=8))),
        "a.msgpack": b"".join(map(frame, draw(st.lists(st.binary(min_size=1, max_size=30), max_size=6)))),
        "c.json": b"".join(draw(st.lists(st.binary(max_size=90).map(_line), max_size=4))),
    }
    left = dict(contents)
    pieces = []
    while any(left.values()):
        name = draw(st.sampled_from([name for name, rest in left.items() if rest]))
        count = draw(st.integers(1, 60))
        pieces.append((name, left[name][:count]))
        left[name] = left[name][count:]
    return pieces, draw(st.lists(st.integers(0, max(len(pieces) - 1, 0)), max_size=4))


def _line(body: bytes) -> bytes:
    return body.replace(b"\n", b" ") + b"\n"


@given(history=histories(), block=st.integers(1, 64), bytes_max=st.integers(1, 200))
@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_growth_and_any_restart_reads_every_byte_once(
    tmp_path: Path, history: tuple[list[tuple[str, bytes]], list[int]], block: int, bytes_max: int
) -> None:
    pieces, restarts = history
    spool = tmp_path / "spool"
    shutil.rmtree(spool, ignore_errors=True)
    options: dict[str, Any] = {"block_bytes": block, "fingerprints": tmp_path / "fingerprints"}
    source = opened(spool, **options)
    read: dict[str, list[RawRecord]] = defaultdict(list)
    written: dict[str, bytes] = defaultdict(bytes)
    for step, (name, piece) in enumerate(pieces):
        with open(spool / name, "ab") as file:
            file.write(piece)
        written[name] += piece
        for record in source.poll(bytes_max, timeout_s=0):
            read[record.partition.name].append(record)
        if step in restarts:
            position = source.position()
            source.checkpointed(position)
            source.close()
            source = opened(spool, position, **options)
    for record in drain(source, bytes_max):
        read[record.partition.name].append(record)
    for name, content in written.items():
        spans = [(record.offset, record.next_offset) for record in read[name]]
        assert [a for a, _ in spans] == [0, *[b for _, b in spans]][: len(spans)]
        taken = values(read[name])
        if name.endswith(".msgpack"):
            taken = list(map(frame, taken))
        assert b"".join(taken) == content
        assert source.position()[Partition(name)] == len(content)
    assert source.lag().amount == {Partition(name): 0 for name in written}


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_compressed_files_have_offsets_of_their_content(tmp_path: Path, compression: str) -> None:
    lines = [b"%d %d\n" % (i, i * i) for i in range(5000)]
    compress = COMPRESSORS[compression]
    # Two members one after the other, as `cat a.gz b.gz` makes them; the last line has no end.
    content = b"".join(lines).rstrip(b"\n")
    half = len(content) // 2
    (tmp_path / f"a.el.{compression}").write_bytes(compress(content[:half]) + compress(content[half:]))
    source = opened(tmp_path, block_bytes=1000)
    first = source.poll(10_000, timeout_s=0)
    position = source.position()
    source.close()
    second = drain(opened(tmp_path, position, block_bytes=1000))
    assert b"".join(values(first + second)) == content
    assert second[-1].next_offset == len(content)


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("fails_at", [1, 3])
def test_a_compressed_file_that_cannot_be_read_on_the_way_is_gone_on_with_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, fails_at: int
) -> None:
    """On the way to where reading had stopped before a restart."""
    rng = random.Random(5)
    lines = [b"%d %d\n" % (rng.getrandbits(60), rng.getrandbits(60)) for _ in range(9000)]
    name = f"a.el.{compression}"
    (tmp_path / name).write_bytes(COMPRESSORS[compression](b"".join(lines)))
    done = len(b"".join(lines[:8000]))
    pread, reads = os.pread, 0

    def fails(handle: int, count: int, offset: int) -> bytes:
        nonlocal reads
        reads += count > 0
        if count and reads == fails_at:
            raise OSError(errno.EIO, "Input/output error")
        return pread(handle, count, offset)

    source = opened(tmp_path, {Partition(name): done})
    monkeypatch.setattr(os, "pread", fails)
    assert drain(source) == [] and source.outages == 1
    records = drain(source)
    assert b"".join(values(records)) == b"".join(lines[8000:]) and records[0].offset == done
    source.close()


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_compressed_file_that_is_still_copied_in_waits(tmp_path: Path, compression: str) -> None:
    content = os.urandom(40_000).hex().encode() + b"\nlast"
    data = COMPRESSORS[compression](content)
    source = opened(tmp_path)
    read = []
    for start in range(0, len(data), 7000):
        with open(tmp_path / f"a.el.{compression}", "ab") as file:
            file.write(data[start : start + 7000])
        read += drain(source)
    assert b"".join(values(read)) == content
    assert not any(source.lag().amount.values())


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_the_damaged_rest_of_a_compressed_file_is_set_aside(tmp_path: Path, compression: str) -> None:
    lines = b"".join(b"%d %d\n" % (i, i * i) for i in range(100_000))
    whole = COMPRESSORS[compression](lines[: len(lines) // 2])
    second = bytearray(COMPRESSORS[compression](lines[len(lines) // 2 :]))
    second[len(second) // 2 : len(second) // 2 + 40] = b"\xff" * 40
    (tmp_path / f"a.el.{compression}").write_bytes(whole + second)
    (tmp_path / f"b.el.{compression}").write_bytes(b"this is no compressed file, by any means")
    (tmp_path / "c.el").write_bytes(b"1 2\n")
    (tmp_path / f"d.el.{compression}").write_bytes(COMPRESSORS[compression](b"3 4\n") + b"something else now")
    source = opened(tmp_path)
    records = drain(source)
    *records, last, last_bad = records
    assert last.value == b"3 4\n"
    assert last_bad.refused is not None and last_bad.refused.place == f"d.el.{compression}:4"
    good = [record for record in records if record.refused is None]
    first, second_bad = [record.refused for record in records if record.refused is not None]
    assert first is not None and second_bad is not None
    read = b"".join(values(good[:-1]))
    assert read.startswith(lines[: len(lines) // 2 - 20]), "all whole lines before it"
    assert values(good[-1:]) == [b"1 2\n"], "and other files"
    assert (first.place, first.reason) == (f"a.el.{compression}:{len(read)}", "damaged")
    assert "the compressed data is damaged near byte" in first.detail
    assert (second_bad.place, second_bad.reason) == (f"b.el.{compression}:0", "damaged")
    assert drain(source) == [] and sum(source.lag().amount.values()) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_file_that_inflates_without_end_takes_bounded_memory(tmp_path: Path, compression: str) -> None:
    """The memory that decompression and skipping take is counted, not the process's."""
    compress, length = COMPRESSORS[compression], 160 << 20
    (tmp_path / f"a.el.{compression}").write_bytes(compress(bytes(length)) + compress(b"1 2\n"))
    source = opened(tmp_path, record_bytes_max=1 << 20)
    tracemalloc.start()
    try:
        while not (records := source.poll(1 << 20, timeout_s=0)) and source.lag().amount:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (bad,) = [record.refused for record in records]
    assert bad is not None and bad.whole is not None and bad.whole.bytes == length + 3
    assert peak < 80 << 20


def test_earlier_names_come_first_and_growth_anywhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    source = opened(tmp_path)
    assert values(drain(source)) == [b"1 2\n", b"3 4\n"]
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"5 6\n7")
    (tmp_path / "0.el").write_bytes(b"9 9\n")
    assert values(drain(source)) == [b"9 9\n", b"5 6\n"]
    assert source.lag().amount[Partition("a.el")] == 1


def grow(folder: Path, name: str, numbers: range) -> list[bytes]:
    """Records of 4,000 bytes at the end of a file; their values."""
    written = [b"%s %06d " % (name.encode(), number) * (4_000 // (len(name) + 8)) for number in numbers]
    with SpoolWriter(folder, name=name) as writer:
        for value in written:
            writer.append(value)
    return written


def test_files_that_grow_side_by_side_are_read_in_turns(tmp_path: Path) -> None:
    """However much comes to the others, each is read from in so many polls as there are files."""
    names = ["a", "b", "c"]
    for name in names:
        grow(tmp_path, name, range(1))
    source = opened(tmp_path)
    drain(source)
    waiting = {name: grow(tmp_path, name, range(1, 400)) for name in names}
    read: dict[str, list[bytes]] = {name: [] for name in names}
    while any(len(read[name]) < len(waiting[name]) for name in names):
        before = {name: len(some) for name, some in read.items()}
        for _ in names:
            for record in source.poll(1 << 17, timeout_s=0):
                read[record.partition.name.removesuffix(".msgpack")].append(record.value or b"")
        for name in names:
            assert len(read[name]) > before[name] or len(read[name]) == len(waiting[name])
    assert read == waiting


@pytest.mark.parametrize("files", [2, 3, 6, 8])
@pytest.mark.parametrize("record_bytes", [3_000, 17_000, 18_500, 70_000])
def test_files_that_cannot_all_be_read_are_behind_alike(tmp_path: Path, files: int, record_bytes: int) -> None:
    """Also where the end of each poll would come within the turns of the same files."""
    turn = 1 << 16
    names = [f"{number}.msgpack" for number in range(files)]
    for name in names:
        (tmp_path / name).touch()
    source = opened(tmp_path)
    drain(source)
    for name in names:
        (tmp_path / name).write_bytes(frame(bytes(record_bytes)) * (30 * turn // record_bytes))
    read = dict.fromkeys(names, 0)
    for _ in range(6 * files):
        for record in source.poll(4 * turn, timeout_s=0):
            read[record.partition.name] += 1
        assert max(read.values()) - min(read.values()) <= max(turn // record_bytes, 1)
    assert min(read.values()) > 0


@st.composite
def uneven_growth(draw: st.DrawFn) -> tuple[list[str], list[list[int]]]:
    """Files by name, and how many records of 4,000 bytes come to each before each poll: from some more than a poll
    takes, from some little or nothing."""
    kinds = draw(st.lists(st.sampled_from(["msgpack", "el"]), min_size=2, max_size=7))
    counts = st.sampled_from([0, 0, 1, 3, 20, 60])
    rounds = draw(st.lists(st.tuples(*[counts] * len(kinds)), min_size=1, max_size=20))
    return [f"{number}.{kind}" for number, kind in enumerate(kinds)], [list(some) for some in rounds]


@given(growth=uneven_growth(), bytes_max=st.sampled_from([1 << 12, 1 << 16, 1 << 18]))
@settings(deadline=None, max_examples=examples(60))
def test_no_file_waits_for_longer_than_it_takes_to_read_from_each_once(
    tmp_path_factory: pytest.TempPathFactory, growth: tuple[list[str], list[list[int]]], bytes_max: int
) -> None:
    """However unevenly they grow, and however much faster than they are read."""
    folder, (names, rounds) = tmp_path_factory.mktemp("spool"), growth
    for name in names:
        (folder / name).touch()
    source = opened(folder, block_bytes=1 << 13)
    drain(source)
    offered = dict.fromkeys(names, b"")
    taken = dict.fromkeys(names, b"")
    waits = dict.fromkeys(names, 0)
    for number, counts in enumerate([*rounds, *[[0] * len(names)] * 3 * len(names)]):
        for name, count in zip(names, counts, strict=True):
            values = [b"%06d%06d%s\n" % (number, i, b"#" * 3_987) for i in range(count)]
            with open(folder / name, "ab") as file:
                file.write(b"".join(map(frame, values) if name.endswith("msgpack") else values))
            offered[name] += b"".join(values)
        waiting = [name for name in names if len(taken[name]) < len(offered[name])]
        came = set[str]()
        for record in source.poll(bytes_max, timeout_s=0):
            taken[record.partition.name] += record.value or b""
            came.add(record.partition.name)
        for name in names:
            waits[name] = waits[name] + 1 if name in waiting and name not in came else 0
            assert waits[name] < len(names), f"{name} was passed over {waits[name]} times"
    for record in drain(source):
        taken[record.partition.name] += record.value or b""
    assert taken == offered


@given(
    written=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.integers(0, 3)), max_size=12),
    bytes_max=st.sampled_from([1 << 12, 1 << 16, 1 << 18]),
)
@settings(deadline=None, max_examples=examples(60))
def test_what_is_there_of_earlier_names_when_a_file_comes_is_read_before_it(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, int, int]], bytes_max: int
) -> None:
    """Also where others grow meanwhile: a writer may go on in another file. ``written``: to which file how many
    records go, and how many polls follow."""
    folder = tmp_path_factory.mktemp("spool")
    source = opened(folder)
    wrote: dict[str, list[bytes]] = defaultdict(list)
    read: list[tuple[str, bytes]] = []
    owed: dict[str, dict[str, int]] = {}

    def polled() -> int:
        records = source.poll(bytes_max, timeout_s=0)
        for record in records:
            name = record.partition.name[0]
            for earlier, n in owed[name].items():
                assert sum(one == earlier for one, _ in read) >= n, f"{name} before {n} records of {earlier}"
            read.append((name, record.value or b""))
        return len(records)

    for name, n, polls in written:
        if name not in wrote:
            owed[name] = {earlier: len(values) for earlier, values in wrote.items() if earlier < name}
        wrote[name] += grow(folder, name, range(len(wrote[name]), len(wrote[name]) + n))
        for _ in range(polls):
            polled()
    while polled():
        pass
    for name, expected in wrote.items():
        assert [value for one, value in read if one == name] == expected


@pytest.mark.parametrize("name", "abcdef")
def test_a_writer_goes_on_in_another_file_however_many_there_are(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphtide.daemon.ingest.spool.LOOKED_AT", 1)
    for one in "abcdef":
        (tmp_path / f"{one}.el").write_bytes(b"1 2\n")
    source = opened(tmp_path)
    drain(source)
    with open(tmp_path / f"{name}.el", "ab") as file:
        file.write(b"3 4\n")
    (tmp_path / "z.el").write_bytes(b"5 6\n")
    assert values(drain(source)) == [b"3 4\n", b"5 6\n"]


def test_files_that_come_beside_one_that_outruns_us_are_read(tmp_path: Path) -> None:
    """Each comes while what there was when one before it came is not read yet."""
    grow(tmp_path, "a", range(1))
    source = opened(tmp_path)
    drain(source)
    read, size = set[str](), 1
    for number in range(12):
        size += len(grow(tmp_path, "a", range(size, size + 20)))
        grow(tmp_path, f"b{number:02}", range(1))
        read |= {record.partition.name for record in source.poll(40_000, timeout_s=0)}
    assert "b00.msgpack" in read


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_what_was_decompressed_when_a_file_came_is_read_before_it(tmp_path: Path, compression: str) -> None:
    """Also what waits here already, where the earlier file grows on meanwhile."""
    compress, there = COMPRESSORS[compression], [b"%06d 1\n" % i for i in range(20_000)]
    earlier = tmp_path / f"a.el.{compression}"
    earlier.write_bytes(compress(b"".join(there)))
    source = opened(tmp_path, block_bytes=1 << 12)
    read = values(source.poll(1 << 12, timeout_s=0))
    (tmp_path / "b.el").write_bytes(b"7 7\n")
    with open(earlier, "ab") as file:
        file.write(compress(b"8 8\n"))
    read += values(source.poll(1 << 12, timeout_s=0))
    with open(earlier, "ab") as file:
        file.write(compress(b"9 9\n"))
    read += values(drain(source))
    assert sum(map(len, read[: read.index(b"7 7\n")])) >= sum(map(len, there))
    assert b"".join(block for block in read if block != b"7 7\n") == b"".join([*there, b"8 8\n9 9\n"])


def test_what_is_met_while_a_file_is_held_waits_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path)
    source.hold([Partition("b.el")])
    (tmp_path / "c.el").write_bytes(b"5 6\n")
    assert values(drain(source)) == [b"1 2\n"]
    assert Partition("c.el") in source.position()
    source.hold([])
    assert values(drain(source)) == [b"3 4\n", b"5 6\n"]


def test_csv_blocks_carry_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"src,dst\r\n" + b"1,2\n" * 10)
    records = drain(opened(tmp_path, block_bytes=16))
    assert records[0].headers == () and (records[0].value or b"").startswith(b"src,dst")
    assert len(records) > 2
    assert all(record.headers == ((HEADER_LINE, b"src,dst"),) for record in records[1:])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"dst,src\n" + b"1,2\n" * 10))
    restarted = opened(tmp_path, {Partition("a.csv"): 49, Partition("b.csv.gz"): 8})
    assert [record.headers for record in drain(restarted)] == [((HEADER_LINE, b"dst,src"),)]


def test_a_corrupt_record_is_passed_on_as_such(tmp_path: Path) -> None:
    data = bytearray(frame(b"one") + frame(b"two") + frame(b"three"))
    data[-len(frame(b"three")) - 1] ^= 1
    (tmp_path / "a.msgpack").write_bytes(data)
    records = drain(opened(tmp_path))
    assert [record.encoding for record in records] == ["msgpack", CORRUPT, "msgpack"]


def test_after_lost_framing_the_rest_of_the_file_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.msgpack").write_bytes(frame(b"one") + b"\0" * 16)
    (tmp_path / "b.msgpack").write_bytes(frame(b"two"))
    source = opened(tmp_path)
    one, bad, two = drain(source)
    assert values([one, two]) == [b"one", b"two"]
    assert bad.refused is not None and (bad.refused.place, bad.refused.reason) == ("a.msgpack:11", "damaged")
    assert bad.refused.value == b"\0" * 16 and "length reads 0" in bad.refused.detail
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "spool file a.msgpack: a record's length reads 0; 1 to 67108864 is possible; what follows byte 11 of its "
        "content is not read, and stays where it is"
    ]
    with open(tmp_path / "a.msgpack", "ab") as file:
        file.write(frame(b"three"))
    assert drain(source) == []
    assert "a.msgpack changed after it was set aside" in caplog.text


@pytest.mark.parametrize("compression", ["", *COMPRESSORS])
def test_a_line_that_is_too_long_is_set_aside_alone(tmp_path: Path, compression: str) -> None:
    long = bytes(range(32, 127)) * 100
    content = b"1 2\n" + long + b"\n3 4\n" + long
    name = f"a.el.{compression}" if compression else "a.el"
    (tmp_path / name).write_bytes(COMPRESSORS[compression](content) if compression else content)
    (tmp_path / "b.el").write_bytes(b"5 6\n")
    source = opened(tmp_path, block_bytes=1024, record_bytes_max=4096)
    records = drain(source)
    if not compression:  # it may still grow
        assert source.position()[Partition("a.el")] == content.rindex(b"\n") + 1
        with open(tmp_path / "a.el", "ab") as file:
            file.write(b" and an end\n7 8\n")
        records += drain(source)
    good = [record for record in records if record.refused is None]
    rest = [] if compression else [b"7 8\n"]
    assert values(good) == [b"1 2\n", b"3 4\n", b"5 6\n", *rest]
    first, last = [record.refused for record in records if record.refused is not None]
    assert first is not None and first.whole == Whole(len(long), crc32c.crc32c(long))
    assert (first.place, first.reason) == (f"{name}:4", "too-large") and first.value == long
    assert last is not None and last.whole is not None
    assert last.whole.bytes == len(long) + (0 if compression else len(b" and an end"))
    assert "at most 4096 are read" in last.detail
    assert sum(source.lag().amount.values()) == 0


def test_what_is_read_of_a_long_line_does_not_count_before_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n" + b"x" * 10_000)
    source = opened(tmp_path, block_bytes=1024, record_bytes_max=4096)
    drain(source)
    assert source.position() == {Partition("a.el"): 4} and source.lag().amount == {Partition("a.el"): 0}
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"x\n3 4\n")
    for reader in (source, opened(tmp_path, source.position(), block_bytes=1024, record_bytes_max=4096)):
        bad, good = drain(reader)
        assert bad.refused is not None and bad.refused.whole == Whole(10_001, crc32c.crc32c(b"x" * 10_001))
        assert good.value == b"3 4\n"


def test_a_csv_file_whose_header_is_endless_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x" * 10_000 + b"\n1,2\n")
    bad, lines = drain(opened(tmp_path, block_bytes=1024, record_bytes_max=4096))
    assert bad.refused is not None and lines.headers == ((HEADER_LINE, b""),)


def test_a_file_whose_name_is_not_utf8_is_set_aside_once(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff.el")
    (tmp_path / name).write_bytes(b"1 2\n")
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path)
    bad, good = drain(source)
    assert bad.refused is not None and bad.refused.place == "a\\xff.el:0" and bad.refused.reason == "bad-name"
    assert good.value == b"3 4\n"
    assert source.position() == {Partition("a\\xff.el"): 4, Partition("b.el"): 4}
    again = opened(tmp_path, source.position())
    assert drain(again) == []
    for _ in range(2):
        again.checkpointed(again.position())
    assert again.position() == {Partition("b.el"): 4}
    assert drain(opened(tmp_path, again.position(), state=again.state())) == []


def test_links_that_lead_nowhere_and_closed_files_stop_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.el").symlink_to(tmp_path / "a.el")
    (tmp_path / "b.el").symlink_to(tmp_path / "gone.el")
    (tmp_path / "c.el").write_bytes(b"1 2\n")
    (tmp_path / "d.el").write_bytes(b"3 4\n")
    real = os.open

    def refusing(path: Any, *rest: Any, **options: Any) -> int:
        if os.fspath(path).endswith("c.el"):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **options)

    now = 1000.0
    source = opened(tmp_path, clock=lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        assert values(drain(source)) == [b"3 4\n"]
        assert drain(source) == []
    assert source.outages == 1, "of one file"
    now = 1005.0
    assert source.lag().amount[Partition("c.el")] == 4 and source.lag().seconds == 5.0
    assert sorted(record.getMessage() for record in caplog.records) == [
        "a.el in the spool cannot be read and is left out: Too many levels of symbolic links",
        "b.el in the spool is no file, or a link that leads to none, and is left out",
        "spool file c.el cannot be read: Permission denied; the others go on meanwhile",
    ]
    assert values(drain(source)) == [b"1 2\n"], "as soon as it may"
    (tmp_path / "a.el").unlink()
    (tmp_path / "a.el").write_bytes(b"5 6\n")
    assert values(source.poll(1 << 20, timeout_s=10)) == [b"5 6\n"]


# -- what may not happen to a spool -------------------------------------------------------------------------


def read_one(tmp_path: Path) -> SpoolSource:
    (tmp_path / "a.el").write_bytes(b"1 2\n3 4\n")
    source = opened(tmp_path)
    drain(source)
    return source


def test_truncation_is_an_error(tmp_path: Path) -> None:
    source = read_one(tmp_path)
    os.truncate(tmp_path / "a.el", 4)
    with pytest.raises(SourceError, match="shrank to 4 bytes, but 8 were read"):
        source.poll(100, timeout_s=0)
    with pytest.raises(SourceError, match="shrank"):
        opened(tmp_path, {Partition("a.el"): 8})


def test_replacement_is_an_error(tmp_path: Path) -> None:
    source = read_one(tmp_path)
    (tmp_path / "new").write_bytes(b"1 2\n3 4\n5 6\n")
    os.replace(tmp_path / "new", tmp_path / "a.el")
    with pytest.raises(SourceError, match="was replaced"):
        source.poll(100, timeout_s=0)


def test_a_file_may_be_replaced_before_anything_of_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"")
    source = opened(tmp_path)
    assert drain(source) == []
    (tmp_path / "new").write_bytes(b"1 2\n")
    os.replace(tmp_path / "new", tmp_path / "a.el")
    assert values(drain(source)) == [b"1 2\n"]


def test_changed_first_bytes_are_an_error(tmp_path: Path) -> None:
    source = read_one(tmp_path)
    with open(tmp_path / "a.el", "r+b") as file:
        file.write(b"9 2\n3 4\n5 6\n")
    with pytest.raises(SourceError, match="first 8 bytes changed"):
        source.poll(100, timeout_s=0)


def test_changed_first_bytes_are_an_error_however_much_comes_to_others(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n")
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path)
    drain(source)
    with open(tmp_path / "b.el", "r+b") as file:
        file.write(b"9 4\n5 6\n")
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"1 2\n")
    assert values(source.poll(100, timeout_s=0)) == [b"1 2\n"]
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"1 2\n")
    with pytest.raises(SourceError, match="first 4 bytes changed"):
        source.poll(100, timeout_s=0)


def test_replacement_between_two_runs_is_an_error(tmp_path: Path) -> None:
    spool, fingerprints = tmp_path / "spool", tmp_path / "fingerprints"
    spool.mkdir()
    (spool / "a.el").write_bytes(b"1 2\n3 4\n")
    source = opened(spool, fingerprints=fingerprints)
    drain(source)
    source.checkpointed(source.position())
    (spool / "a.el").write_bytes(b"7 8\n3 4\n")
    with pytest.raises(SourceError, match="first 8 bytes changed"):
        opened(spool, source.position(), fingerprints=fingerprints)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nul", "null", "[1]", '{"a.el": 7}', '{"a.el": {"bytes": 8, "crc32c": 1}}'),
        '{"a.el": {"bytes": "eight", "crc32c": 1, "offset": 8, "whole": true}}',
    ],
)
def test_fingerprints_that_cannot_be_read_are_named(text: str, tmp_path: Path) -> None:
    spool, fingerprints = tmp_path / "spool", tmp_path / "fingerprints"
    spool.mkdir()
    (spool / "a.el").write_bytes(b"1 2\n3 4\n")
    fingerprints.write_text(text)
    with pytest.raises(SourceError, match=r"fingerprints' cannot be read: .*Delete it to go on"):
        opened(spool, {Partition("a.el"): 8}, fingerprints=fingerprints)
    fingerprints.unlink()
    fingerprints.mkdir()
    with pytest.raises(SourceError, match=r"fingerprints' cannot be read: .*Is a directory"):
        opened(spool, {Partition("a.el"): 8}, fingerprints=fingerprints)


def test_a_file_read_whole_may_be_deleted_and_others_not(tmp_path: Path) -> None:
    spool, fingerprints = tmp_path / "spool", tmp_path / "fingerprints"
    spool.mkdir()
    (spool / "a.el").write_bytes(b"1 2\n")
    (spool / "b.el").write_bytes(b"1 2\n")
    source = opened(spool, fingerprints=fingerprints)
    drain(source)
    source.checkpointed(source.position())
    position = source.position()
    (spool / "a.el").unlink()
    assert source.poll(100, timeout_s=0) == [] and list(source.position()) == [Partition("b.el")]
    assert list(opened(spool, position, fingerprints=fingerprints).position()) == [Partition("b.el")]
    with pytest.raises(SourceError, match="is gone"):
        opened(spool, position)
    with open(spool / "b.el", "ab") as file:
        file.write(b"unfinished")
    assert source.poll(100, timeout_s=0) == []
    (spool / "b.el").unlink()
    with pytest.raises(SourceError, match="deleted with 10 bytes unread"):
        source.poll(100, timeout_s=0)


def test_what_is_called_as_a_file_and_is_none_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "a.el")
    (tmp_path / "b.csv").symlink_to("nowhere")
    (tmp_path / "folder.el").mkdir()
    os.mkfifo(tmp_path / ".c.el.tmp")
    source = opened(tmp_path)
    for name in ("d.el", "e.el"):
        (tmp_path / name).write_bytes(b"1 2\n")
        assert values(drain(source)) == [b"1 2\n"]
    assert sorted(record.getMessage().partition(" ")[0] for record in caplog.records) == ["a.el", "b.csv"]
    assert "a.el in the spool is no file, or a link that leads to none, and is left out" in caplog.text


def test_a_file_that_goes_while_the_directory_is_listed_is_no_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was renamed away or deleted just after its name was found."""
    source = opened(tmp_path)
    stopping = threading.Event()

    def come_and_go() -> None:
        for number in itertools.count():
            path = tmp_path / f"{number}.el"
            path.write_bytes(b"")
            path.unlink()
            if stopping.is_set():
                return

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(3000):
            source.poll(100, timeout_s=0)
    finally:
        stopping.set()
        thread.join()
    assert source.outages == 0


def test_a_directory_that_is_away_is_an_outage(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    source = read_one(spool)
    os.rename(spool, tmp_path / "elsewhere")
    spool.mkdir()  # as an unmounted volume leaves an empty directory
    assert source.poll(100, timeout_s=0.01) == []
    assert source.outages == 1 and source.position() == {Partition("a.el"): 8}
    spool.rmdir()
    assert source.poll(100, timeout_s=0.01) == []
    assert source.outages == 1 and source.away == f"the spool {spool} cannot be read: No such file or directory"
    os.rename(tmp_path / "elsewhere", spool)
    with open(spool / "a.el", "ab") as file:
        file.write(b"5 6\n")
    assert values(drain(source)) == [b"5 6\n"]
    assert source.away is None


# -- start, lag ---------------------------------------------------------------------------------------------


def test_where_reading_starts(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n3 4\n5")
    assert values(drain(opened(tmp_path, start={"a.el": 4}))) == [b"3 4\n"]
    source = opened(tmp_path, start="latest")
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b" 6\n")
    assert values(drain(source)) == [b"5 6\n"]
    assert values(drain(opened(tmp_path, {Partition("a.el"): 8}, start="latest"))) == [b"5 6\n"]
    with pytest.raises(ConfigError, match=r"source\.start"):
        SpoolSource(tmp_path, start=1_700_000_000_000)  # type: ignore[arg-type]


def test_a_file_that_is_to_be_read_from_a_byte_on_may_come_after_a_restart(tmp_path: Path) -> None:
    """Else it would be read from its beginning then, and otherwise than without the restart."""
    for offsets in (None, {}, {Partition("a.el"): 4}):
        (tmp_path / "a.el").write_bytes(b"1 2\n")
        source = opened(tmp_path, offsets, start={"b.el": 4})
        drain(source)
        (tmp_path / "b.el").write_bytes(b"3 4\n5 6\n")
        assert values(drain(source)) == [b"5 6\n"]
        (tmp_path / "b.el").unlink()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_takes_the_name_of_a_file_that_is_gone_is_read_from_its_beginning(
    tmp_path: Path, restarts: bool
) -> None:
    (tmp_path / "a.el").write_bytes(b"1 2\n3 4\n")
    source = opened(tmp_path, start={"a.el": 4})
    assert values(drain(source)) == [b"3 4\n"]
    source.checkpointed(source.position())
    (tmp_path / "a.el").unlink()
    assert values(drain(source)) == []
    if restarts:
        source = opened(tmp_path, {}, source.state(), start={"a.el": 4})
    (tmp_path / "a.el").write_bytes(b"5 6\n7 8\n")
    assert values(drain(source)) == [b"5 6\n7 8\n"]


def test_a_line_that_takes_several_looks_is_skipped_by_a_start_at_the_latest(tmp_path: Path) -> None:
    with open(tmp_path / "a.el", "wb") as file:
        file.seek(200 << 20)  # zeros, which take no room on the disk
        file.write(b"\n1 2\n")
    (tmp_path / "b.el").write_bytes(b"3 4\n")
    source = opened(tmp_path, start="latest", record_bytes_max=1 << 20)
    assert source.position() == {Partition("a.el"): (200 << 20) + 5, Partition("b.el"): 4}


def test_lag_counts_bytes_and_seconds(tmp_path: Path) -> None:
    now, wall = 7.0, 1000.0
    source = opened(tmp_path, block_bytes=4, clock=lambda: now, wall_clock=lambda: wall)
    (tmp_path / "a.el").write_bytes(b"1 2\n3 4\n5 6\n")
    records = source.poll(4, timeout_s=0)
    assert [record.timestamp_ms for record in records] == [1_000_000]
    now, wall = 10.0, 90_000.0  # the clock on the wall was put forward
    assert source.lag().amount == {Partition("a.el"): 8} and source.lag().seconds == 3.0
    drain(source)
    assert source.lag().amount == {Partition("a.el"): 0} and source.lag().seconds == 0.0


def test_a_file_that_ends_within_a_record_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies there is lag of which no epoch will come, for ever where a writer died or forgot a line end."""
    now = 0.0
    source = opened(tmp_path, clock=lambda: now)
    (tmp_path / "a.el").write_bytes(b"1 2\n3 4")
    assert values(drain(source)) == [b"1 2\n"]
    for later in (59.0, 61.0, 200.0):
        now = later
        assert drain(source) == []
        assert source.lag().amount == {Partition("a.el"): 3} and source.lag().seconds == 0.0
    said = (
        "spool file a.el ends within a record or line: its last 3 bytes wait for what is missing, be it a line end"
    )
    assert caplog.messages == [said]
    with open(tmp_path / "a.el", "ab") as file:
        file.write(b"4\n5 6\n7")
    assert values(drain(source)) == [b"3 44\n5 6\n"]
    now = 230.0
    assert drain(source) == [] and len(caplog.messages) == 1, "it has not lasted yet"
    now = 270.0
    assert drain(source) == [] and "its last 1 bytes" in caplog.messages[1]
    (tmp_path / "a.el").write_bytes(b"1 2\n3 44\n5 6\n7 8\n")
    assert values(drain(source)) == [b"7 8\n"]
    now = 400.0
    assert drain(source) == [] and len(caplog.messages) == 2


def test_many_files_that_end_within_a_record_are_told_of_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    source = opened(tmp_path, clock=lambda: now)
    for number in range(100):
        now = number / 100  # each is read at another time
        (tmp_path / f"{number:02}.el").write_bytes(b"1 2")
        assert drain(source) == []
    for tenths in range(600, 1400):
        now = tenths / 10
        assert drain(source) == []
    named = [f"{number:02}.el" for number in range(6)]
    assert [message.split()[2] for message in caplog.messages if message.startswith("spool file")] == named
    assert caplog.messages[-1] == "and so do 94 other files of the spool"


def test_an_arrow_file_where_frames_must_stand_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"ARROW1\0\0" + bytes(40))
    (bad,) = drain(opened(tmp_path))
    assert bad.refused is not None and bad.refused.reason == "damaged"
    assert "an Arrow file stands where frames must; `graphtide produce`" in bad.refused.detail


def test_other_files_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("notes.txt", ".hidden.el", "half.el.tmp"):
        (tmp_path / name).write_bytes(b"1 2\n")
    source = opened(tmp_path)
    assert drain(source) == [] and source.position() == {}
    assert [record.message for record in caplog.records if "ignored" in record.message] == [
        "notes.txt in the spool is ignored: its name does not end in an encoding (.msgpack, .json, .csv, .el, "
        ".debezium, .arrow, .registry, .debezium-registry); `graphtide produce` sends files of more forms"
    ]


# -- what lay there at the start ------------------------------------------------------------------------------


def test_the_backlog_is_what_lay_there_and_not_what_came_later(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_text("1 2\n" * 100)
    packed = lzma.compress(b"3 4\n" * 100)
    (tmp_path / "b.el.xz").write_bytes(packed)
    source = SpoolSource(tmp_path, block_bytes=100)
    assert source.backlog() is None
    source.open(None)
    assert source.backlog() == 400 + len(packed)
    assert source.poll(0, timeout_s=0) == [] and source.backlog() == 400 + len(packed)
    source.poll(100, timeout_s=0)
    assert source.backlog() == 300 + len(packed)
    with open(tmp_path / "a.el", "a") as file:
        file.write("5 6\n" * 1000)
    (tmp_path / "c.el").write_text("1 2\n")
    source.poll(100, timeout_s=0)
    assert source.backlog() == 200 + len(packed)
    drain(source)
    assert source.backlog() == 0
    source.close()


@pytest.mark.parametrize("name", ["a.el", "a.msgpack"])
def test_what_takes_the_place_of_half_a_record_is_read_although_the_file_is_no_longer(
    tmp_path: Path, name: str
) -> None:
    """A writer died within its record, and the next one wrote another that ends where that was cut off."""
    first, second, half = b"1 2\n", b"3 4\n", b"5 6 "
    if name == "a.msgpack":
        first, second, half = frame(b"first"), frame(b"second"), frame(b"a longer one")[: len(frame(b"second"))]
    path = tmp_path / name
    path.write_bytes(first + half)
    os.utime(path, ns=(0, 0))
    source = opened(tmp_path)
    assert [record.next_offset for record in drain(source)] == [len(first)]
    path.write_bytes(first + second)
    assert [record.next_offset for record in drain(source)] == [len(first + second)]
    assert not any(source.lag().amount.values())


def test_an_incomplete_record_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.el").write_text("1 2\n3")
    (tmp_path / "b.msgpack").write_bytes(frame(b"x" * 50)[:20])
    source = opened(tmp_path)
    drain(source)
    assert source.backlog() == 0
    source.close()


def test_a_start_at_the_latest_that_found_nothing_is_not_begun_anew(tmp_path: Path) -> None:
    source = opened(tmp_path, start="latest")
    assert source.position() == {} and source.backlog() == 0
    source.close()
    (tmp_path / "a.el").write_text("1 2\n")
    again = opened(tmp_path, {}, start="latest")
    assert values(drain(again)) == [b"1 2\n"]
    again.close()


def test_a_spool_loses_nothing_by_itself(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert source.log_margin({Partition("a.el"): 7}) == float("inf")
    source.close()


def test_a_record_waits_for_a_small_share_of_the_time_between_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Time:
        """A clock that goes on where somebody waits; records are written as it passes their times."""

        now = 0.0
        due: ClassVar[list[float]] = [0.010, 0.020, 0.030, 0.230, 0.240, 1.240, 9.240]
        written = sleeps = 0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            self.sleeps += 1
            while self.written < len(self.due) and self.due[self.written] <= self.now:
                writer.append(b"x")
                writer.flush()
                self.written += 1

    clock = Time()
    with SpoolWriter(tmp_path, name="a.msgpack") as writer:
        source = opened(tmp_path, clock=clock.monotonic)
        monkeypatch.setattr("graphtide.daemon.ingest.spool.time", clock)
        source._came_at = clock.now
        late = []
        for due in clock.due:
            assert values(source.poll(1 << 20, timeout_s=10.0)) == [b"x"]
            late.append(clock.now - due)
    assert max(late[i] for i in (0, 1, 2, 4)) <= 0.0016, late
    assert max(late) <= 0.0101 and clock.sleeps < 1100, (late, clock.sleeps)


def test_a_spool_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "spool", tmp_path / ("x" * 300), Path("/proc/spool")):
        with pytest.raises(SourceError, match=f"source.path = {str(path)!r} cannot be used: "):
            SpoolSource(path).open(None, b"")
    with pytest.raises(
        SourceError, match="it is a file, and must be a folder; graphtide produce puts files into one"
    ):
        SpoolSource(tmp_path / "file").open(None, b"")


@pytest.mark.parametrize(("number", "is_named"), [(errno.EROFS, True), (errno.ENOSPC, False)])
def test_a_spool_that_cannot_be_made_is_named_unless_it_may_be_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_named: bool
) -> None:
    def mkdir(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(SourceError if is_named else OSError, match=os.strerror(number)):
        SpoolSource(tmp_path / "spool").open(None, b"")
