"""Records of results, and the places that they are written to: files, and a real topic."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest
from brokers import client
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import TopicPartition
from power_cuts import PowerCut, times
from results_readers import FilesReader, TopicReader, read_up_to
from typer.testing import CliRunner
from waiting import until

from graphtide.daemon import cli
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.errors import ConfigError, NotWritten
from graphtide.daemon.outgoing import kafka as outgoing_kafka
from graphtide.daemon.outgoing import spool
from graphtide.daemon.outgoing.batches import BATCH_BYTES, batches
from graphtide.daemon.outgoing.kafka import KafkaSink
from graphtide.daemon.outgoing.records import (
    Changed,
    Chunk,
    End,
    OutgoingEncoding,
    Packed,
    end_key,
    ids_by_program,
    read_key,
    read_value,
)
from graphtide.daemon.outgoing.sink import Fenced, PlaceLost, Sink
from graphtide.daemon.outgoing.spool import SpoolSink, files
from graphtide.daemon.records.placement import partition_of
from graphtide.daemon.records.spool_format import SpoolWriter, frame
from graphtide.daemon.serve.values import Values
from graphtide.daemon.tools import doctor
from graphtide.daemon.tools.results import show as show_results
from graphtide.gpma.index.ids import StringColumn

ENCODINGS: tuple[OutgoingEncoding, ...] = ("msgpack", "json")
EPOCH = (3, 2**40)


def end(sequence: int, run: str = "a", **changed: Any) -> End:
    since = (1, sequence - 1) if sequence > 1 else None
    given: dict[str, Any] = {
        "snapshot": False,
        "last_snapshot": 1,
        "programs": ("hops",),
        "offsets": {"edges": {0: 7, 1: 9}},
    }
    return End(sequence, run, (1, sequence), since=since, epochs=1, **{**given, **changed})


def hops(sequence: int, ids: Sequence[int], gone: Sequence[int] = ()) -> list[Chunk]:
    """Values that tell the transaction."""
    values = Values(np.full(len(ids), sequence), np.zeros(len(ids), bool))
    changed = Changed("hops", np.array(ids, np.int64), values, np.array(gone, np.int64))
    return list(changed.chunks((1, sequence), "msgpack"))


def known_hops(reader: FilesReader | TopicReader) -> dict[int, int]:
    return {vertex: content["value"] for (_, vertex), content in reader.read().known.items()}


# -- records ------------------------------------------------------------------------------------------------


def key_of(program: str, vertex: int | str, encoding: OutgoingEncoding) -> bytes:
    """The key of one vertex's records."""
    ids: Any = StringColumn.of([vertex]) if isinstance(vertex, str) else np.array([vertex], np.int64)
    values = Values(np.zeros(1), np.zeros(1, bool))
    (chunk,) = Changed(program, ids, values, ids[:0]).chunks((1, 1), encoding)
    (key,) = chunk.keys.to_list()
    return key


def test_keys_are_as_documented_since_compaction_goes_by_their_bytes() -> None:
    assert key_of("hops", 7, "msgpack").hex(" ") == "92 a4 68 6f 70 73 d3 00 00 00 00 00 00 00 07"
    assert key_of("hops", -1, "msgpack")[-9:] == b"\xd3" + b"\xff" * 8
    assert key_of("hops", "é", "msgpack") == msgpack.packb(["hops", "é"])
    assert key_of("hops", 7, "json") == b'["hops",7]'
    assert key_of('a"b', "é", "json") == '["a\\"b","é"]'.encode()
    assert (end_key("msgpack"), end_key("json")) == (b"\x91\xa3end", b'["end"]')


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("program", ["hops", "bfs(1)", "end", "ü" * 64])
@pytest.mark.parametrize("ids", [[0, -(2**63), 2**63 - 1, 300], ["", "a", "é", "x" * 256]])
def test_keys_are_read_back(encoding: OutgoingEncoding, program: str, ids: list[Any]) -> None:
    keys = [key_of(program, id, encoding) for id in ids]
    assert [read_key(key) for key in keys] == [(program, id) for id in ids]
    assert read_key(end_key(encoding)) is None
    (found,) = ids_by_program([*keys, end_key(encoding), *keys]).items()
    listed = found[1].to_list() if isinstance(found[1], StringColumn) else found[1].tolist()
    assert (found[0], sorted(listed)) == (program, sorted(ids))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 7, 2**32 - 1], np.uint32),
        np.array([0, -1, 2**62], np.int64),
        np.array([0.1, -np.inf, np.inf]),
        np.array([0.5, 1e-30, 3.0], np.float32),
        np.array(["a", "é", "x" * 256], object),
    ],
)
def test_values_are_read_back(encoding: OutgoingEncoding, values: np.ndarray[Any, Any]) -> None:
    null = np.array([False, True, False])
    saturated = None if values.dtype == object else np.array([False, True, True])
    (chunk,) = Changed("hops", np.arange(3), Values(values, null, saturated), np.arange(0)).chunks(EPOCH, encoding)
    read = [read_value(value) for _, value in chunk.records() if value is not None]
    assert all(tuple(content["epoch"]) == EPOCH for content in read)
    expected = [None if none else value for value, none in zip(values.tolist(), null, strict=True)]
    infinite = {np.inf: "Infinity", -np.inf: "-Infinity"} if encoding == "json" else {}
    assert [content["value"] for content in read] == [infinite.get(value, value) for value in expected]
    # Of a value that there is not there is no bound either.
    assert ["saturated" in content for content in read] == [False, False, saturated is not None]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_ends_are_read_back(encoding: OutgoingEncoding) -> None:
    given = end(4, stale={"hops": [1, 2]}, records=5, partitions=2, time_ms=1)
    read = End.unpack(given.pack(encoding))
    assert read.is_same(given) and not read.is_same(end(4, "b")) and not read.is_same(None)
    assert (read.epoch, read.since, read.programs, read.records) == ((1, 4), (1, 3), ("hops",), 5)


@pytest.mark.parametrize("packed", [b"", b"{", b"\xc1", b"\x80", b'{"v":2}', b"[]", msgpack.packb({"v": 1})])
def test_what_is_none_of_ours_is_told(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"neither|no end|another version|unexpected|EOF|end of"):
        End.unpack(packed)
    with pytest.raises(ValueError, match=r"neither|not a key|unexpected|EOF|end of"):
        read_key(packed)


def test_batches_hold_every_record_once_within_their_size() -> None:
    rng = np.random.default_rng(3)
    n = 5000
    keys = Packed.of([bytes([65 + i % 20]) * int(size) for i, size in enumerate(rng.integers(1, 300, n))])
    values = Packed.of([bytes([97 + i % 20]) * int(size) for i, size in enumerate(rng.integers(0, 300, n))])
    placed = rng.integers(0, 3, n).astype(np.int32)
    for given in (values, None):
        found = list(batches(Chunk(np.arange(n), keys, given), placed))
        assert len(found) > 3  # some partitions have several
        assert all(len(packed) <= BATCH_BYTES + 700 for _, _, packed in found)
        assert sum(number for _, number, _ in found) == n


# -- files --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def open_files(folder: Path) -> Iterator[Callable[..., SpoolSink]]:
    """Opens the folder; what is open ends with the test."""
    made: list[SpoolSink] = []

    def opened(file_bytes: int = 1 << 30) -> SpoolSink:
        made.append(SpoolSink(folder, "msgpack", file_bytes=file_bytes))
        made[-1].open(lambda last: True)
        return made[-1]

    yield opened
    for sink in made:
        sink.close()


def test_files_begin_anew_at_their_size_and_a_restart_goes_on(
    open_files: Callable[..., SpoolSink], folder: Path
) -> None:
    sink = open_files(400)
    for sequence in range(1, 8):
        if sequence == 5:
            sink.close()
            sink = open_files(400)
        sink.write(hops(sequence, [sequence, 100], [sequence - 2] if sequence > 2 else []), end(sequence))
    reader = FilesReader(folder)
    assert known_hops(reader) == {6: 6, 7: 7, 100: 7}
    assert len(files(folder)) > 2
    assert known_hops(reader) == {6: 6, 7: 7, 100: 7}


def refuses_and_begins_anew(sink: SpoolSink, folder: Path) -> None:
    """What it wrote is not there any more: it says so, and once it was opened again it begins with nothing."""
    with pytest.raises(FileNotFoundError, match="taken away"):
        sink.write(hops(2, [2]), end(2))
    sink.close()
    assert sink.open(lambda last: last is None) is None
    sink.write(hops(1, [1, 2]), end(1))
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 1}


@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_is_written_to_a_file_that_was_taken_away(
    open_files: Callable[..., SpoolSink], folder: Path, file_bytes: int, replaced: bool, reopened: bool
) -> None:
    sink = open_files(file_bytes)
    sink.write(hops(1, [1]), end(1))
    if reopened:  # it has written nothing yet
        sink.close()
        sink = open_files(file_bytes)
    (file,) = files(folder)
    file.unlink()
    if replaced:
        file.touch()
    refuses_and_begins_anew(sink, folder)


@pytest.mark.parametrize("left", [0, 10])
@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
def test_nothing_is_written_to_a_file_that_was_cut(
    open_files: Callable[..., SpoolSink], folder: Path, left: int, file_bytes: int
) -> None:
    sink = open_files(file_bytes)
    sink.write(hops(1, [1]), end(1))
    (file,) = files(folder)
    os.truncate(file, left)
    refuses_and_begins_anew(sink, folder)


class Late(spool.SpoolWriter):
    """Opens a file just when somebody has taken the newest one away."""

    def __init__(self, folder: Path, *, name: str) -> None:
        files(folder)[-1].unlink()
        super().__init__(folder, name=name)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_no_file_follows_one_that_is_taken_away_as_it_is_begun(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    sink = open_files(1)  # each has one transaction
    for sequence in range(1, before + 1):
        sink.write(hops(sequence, [sequence]), end(sequence))
    with monkeypatch.context() as patched:
        patched.setattr(spool, "SpoolWriter", Late)
        with pytest.raises(FileNotFoundError, match="taken away"):
            sink.write(hops(before + 1, [before + 1]), end(before + 1))
    sink.close()
    last = sink.open(lambda last: True)
    assert (0 if last is None else last.sequence) == before - 1
    sink.write(hops(before, [before]), end(before))
    assert known_hops(FilesReader(folder)) == {number: number for number in range(1, before + 1)}


def test_nothing_is_written_to_a_file_that_is_taken_away_as_it_is_opened(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_files()
    sink.write(hops(1, [1]), end(1))
    sink.close()
    assert sink.open(lambda last: True) is not None
    with monkeypatch.context() as patched:
        patched.setattr(spool, "SpoolWriter", Late)
        with pytest.raises(FileNotFoundError, match="taken away"):
            sink.write(hops(2, [2]), end(2))
    sink.close()
    assert sink.open(lambda last: last is None) is None


def test_a_file_that_took_the_place_of_ours_is_not_cut(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files()
    sink.write(hops(1, [1]), end(1))
    (file,) = files(folder)
    kept = file.read_bytes()
    sink.write(hops(2, [2]), end(2))
    whole = file.read_bytes()
    os.truncate(file, len(kept))
    sink.close()
    assert sink.open(lambda last: True) is not None

    def failing() -> Iterator[Chunk]:
        yield from hops(2, [1, 2])
        file.unlink()
        file.write_bytes(whole)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        sink.write(failing(), end(2))
    sink.close()
    assert file.read_bytes() == whole


@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
def test_what_cannot_be_cut_off_at_once_is_cut_off_later(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    """As where the file system became one that can only be read."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    def failing() -> Iterator[Chunk]:
        yield from hops(2, range(5000))
        raise OSError("no space")

    sink = open_files(file_bytes)
    sink.write(hops(1, [1]), end(1))
    with pytest.raises(OSError, match="no space"):
        sink.write(failing(), end(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "truncate", refused)
        patched.setattr(Path, "unlink", refused)
        sink.close()
    found = sink.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    sink.write(hops(2, [2]), end(2))
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 2}


@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
def test_a_transaction_whose_sync_failed_is_not_taken_for_written(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    """It stands there whole, and cannot be cut off: no later sync tells whether it is on disk."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EIO, "away")

    sink = open_files(file_bytes)
    sink.write(hops(1, [1]), end(1))
    sync, before = os.fdatasync, os.stat(files(folder)[0]).st_size

    def refused_what_is_new(handle: int) -> None:
        if os.fstat(handle).st_size > before or os.readlink(f"/proc/self/fd/{handle}") != str(files(folder)[0]):
            refused()
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refused_what_is_new)
        patched.setattr(os, "truncate", refused)
        patched.setattr(Path, "unlink", refused)
        with pytest.raises(OSError, match="away"):
            sink.write(hops(2, [2]), end(2))
        sink.close()
        with pytest.raises(OSError, match="away"):
            sink.open(lambda last: True)
        sink.close()
    found = sink.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    sink.write(hops(2, [3]), end(2))
    assert known_hops(FilesReader(folder)) == {1: 1, 3: 2}


@pytest.mark.parametrize("before", [0, 1])
def test_what_readers_saw_of_a_failed_sync_is_withdrawn_so_that_they_can_tell(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    sink = open_files()
    for sequence in range(1, before + 1):
        sink.write(hops(sequence, [sequence]), end(sequence))
    with monkeypatch.context() as patched:
        PowerCut(patched).fails = times(1)
        with pytest.raises(OSError, match="Input/output error"):
            sink.write(hops(before + 1, [7]), end(before + 1))
    (file,) = files(folder)
    seen = file.stat().st_size
    sink.close()
    sink.open(lambda last: True)
    sink.write(hops(before + 1, [8]), end(before + 1))
    sink.write(hops(before + 2, [9]), end(before + 2))
    assert not file.exists() or file.stat().st_size < seen, "or else a reader would read on in the midst of others"
    assert files(folder)[-1] != file
    known = known_hops(FilesReader(folder))
    assert known == {**dict.fromkeys(range(1, before + 1), 1), 8: before + 1, 9: before + 2}


def test_a_transaction_of_which_nobody_knows_whether_it_is_on_disk_is_there_before_others_follow(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync failed, and the process died before it could cut it off: readers may have it."""
    power = PowerCut(monkeypatch)
    sink = open_files()
    sink.write(hops(1, [1]), end(1))
    power.fails = times(1)
    with pytest.raises(OSError, match="Input/output error"):
        sink.write(hops(2, [2]), end(2))
    with monkeypatch.context() as killed:
        killed.setattr(SpoolWriter, "give_up", lambda writer, _: writer._file.close())
        sink.close()
    power.fails = times(1)
    sink = SpoolSink(folder, "msgpack", file_bytes=1 << 30)
    with pytest.raises(OSError, match="Input/output error"):
        sink.open(lambda last: True)
    sink.open(lambda last: True)
    sink.close()
    power.cut(folder)
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 2}
    assert sink.place["offset"] == files(folder)[0].stat().st_size


def test_a_disk_that_fails_is_let_go(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EIO, "away")

    sink = open_files()
    sink.write(hops(1, [1]), end(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="away"):
            sink.write(hops(2, [2]), end(2))
        sink.close()
        assert sink.open(lambda last: True) is not None
        with pytest.raises(OSError, match="away"):
            sink.write(hops(2, [2]), end(2))
        sink.close()
    found = sink.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    sink.write(hops(2, [2]), end(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refused)
        sink.close()
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 2}


def test_files_of_other_names_are_left_alone(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files()
    sink.write(hops(1, [1]), end(1))
    sink.close()
    (file,) = files(folder)
    file.rename(folder / "results-old.msgpack")
    assert sink.open(lambda last: last is None) is None
    sink.write(hops(1, [2]), end(1))
    assert known_hops(FilesReader(folder)) == {2: 1}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lines_of_json_tell_an_infinite_value_from_none(
    folder: Path, encoding: OutgoingEncoding, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    values = Values(np.array([np.inf, -np.inf, 0.0, 1.5]), np.array([False, False, True, False]))
    changed = Changed("width", np.arange(4), values, np.array([4]))
    sink = SpoolSink(folder, encoding, file_bytes=1 << 30)
    sink.open(lambda last: True)
    sink.write(list(changed.chunks((1, 1), encoding)), end(1))
    sink.close()
    show_results(folder, ends_only=False)
    lines = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line.get("value", "gone") for line in lines[:-1]] == ["gone", "Infinity", "-Infinity", None, 1.5]


def _torn(data: bytes) -> bytes:
    return data[:-3]


def _zeros(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def _whole(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize("left", [_torn, _zeros, _whole])
def test_what_was_half_written_is_cut_off(
    open_files: Callable[..., SpoolSink], folder: Path, left: Callable[[bytes], bytes]
) -> None:
    sink = open_files()
    sink.write(hops(1, [1, 2]), end(1))
    place = sink.place
    sink.write(hops(2, range(50)), end(2))
    sink.close()
    (file,) = files(folder)
    data = file.read_bytes()
    # The records of a transaction, and not its end.
    stop = int(place["offset"])
    last = len(data) - len(end_key("msgpack")) - len(end(2, records=50).pack("msgpack")) - 20
    file.write_bytes(data[:stop] + left(data[stop:last]))
    sink = SpoolSink(folder, "msgpack", file_bytes=1 << 30)
    try:
        found = sink.open(lambda last: True)
        assert found is not None and found.is_same(end(1))
        assert file.stat().st_size == stop
        sink.write(hops(2, [2, 3]), end(2, "b"))
    finally:
        sink.close()
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 2, 3: 2}


def test_a_transaction_that_fails_leaves_nothing(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files()
    sink.write(hops(1, [1]), end(1))

    def failing() -> Iterator[Chunk]:
        yield from hops(2, [1, 2])
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        sink.write(failing(), end(2))
    sink.close()
    found = sink.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    sink.write(hops(2, [2]), end(2))
    assert known_hops(FilesReader(folder)) == {1: 1, 2: 2}


def test_a_folder_has_one_writer(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files()
    with pytest.raises(NotWritten, match=f"results.path = '{folder}' is in use by another graphtide process"):
        open_files()
    sink.write(hops(1, [1]), end(1, "somebody"))
    sink.close()
    other = SpoolSink(folder, "msgpack", file_bytes=1)
    try:
        with pytest.raises(Fenced):
            other.open(lambda last: last is None or last.run == "me")
    finally:
        other.close()


def test_a_folder_that_is_taken_away_as_it_is_locked_has_one_writer(
    open_files: Callable[..., SpoolSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = fcntl.flock

    def taken_away_first(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", really)
        shutil.rmtree(folder)
        open_files()
        really(lock, how)

    monkeypatch.setattr(fcntl, "flock", taken_away_first)
    with pytest.raises(NotWritten, match="is in use by another graphtide process"):
        open_files()


def test_files_tell_who_was_written_since_a_place(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files(200)
    places = [sink.place]
    for sequence in range(1, 5):
        sink.write(hops(sequence, [sequence], [10 + sequence]), end(sequence))
        places.append(sink.place)
    check_ids_since(sink, places[1:])
    first, second, *_ = files(folder)
    assert places[1]["file"] == first.name
    first.rename(folder / "away")
    with pytest.raises(PlaceLost):
        sink.ids_since(places[1])
    (folder / "away").rename(first)
    second.unlink()
    with pytest.raises(PlaceLost):
        sink.ids_since(places[1])


def check_ids_since(sink: Sink, places: Sequence[Any]) -> None:
    """Behind the first of these places there are transactions 2, 3 and 4; everything there is are 1 to 4."""
    for first, place in enumerate(places, 2):
        found = sink.ids_since(place, 5 - first).get("hops", np.arange(0))
        later = range(first, 5)
        assert sorted(np.asarray(found).tolist()) == [*later, *(10 + sequence for sequence in later)]
    with pytest.raises(PlaceLost, match="transactions are not there"):
        sink.ids_since(places[0], 4)
    everything = np.asarray(sink.ids_since(None)["hops"]).tolist()
    assert sorted(everything) == [1, 2, 3, 4, 11, 12, 13, 14]


def test_the_command_prints_whole_epochs(open_files: Callable[..., SpoolSink], folder: Path) -> None:
    sink = open_files()
    sink.write(hops(1, [1], [2]), end(1))
    sink.close()
    with open(files(folder)[0], "ab") as file:
        file.write(b"\x01")  # of what is being written
    done = CliRunner().invoke(cli.app, ["results", str(folder)])
    lines = [orjson.loads(line) for line in done.output.splitlines()]
    assert lines[:2] == [
        {"program": "hops", "vertex": 2, "gone": True},
        {"program": "hops", "vertex": 1, "epoch": [1, 1], "value": 1},
    ]
    assert lines[2]["end"]["sequence"] == 1 and len(lines) == 3
    done = CliRunner().invoke(cli.app, ["results", str(folder), "--ends"])
    assert [list(orjson.loads(line)) for line in done.output.splitlines()] == [["end"]]
    assert CliRunner().invoke(cli.app, ["results", os.devnull + "/none"]).exit_code == 2


@pytest.mark.parametrize("payload", [b"\x05", b"\x93\x01\x02\x03", b"\xc1", b"\x92\xc4\x01x\xc0", b"text"])
def test_the_command_says_that_a_file_holds_something_else(folder: Path, payload: bytes) -> None:
    """Dead letters, say, or edges."""
    folder.mkdir(exist_ok=True)
    (folder / "other.msgpack").write_bytes(frame(payload))
    done = CliRunner().invoke(cli.app, ["results", str(folder / "other.msgpack")])
    assert done.exit_code == 4 and "the record at byte 0 is none of results" in " ".join(done.output.split())


# -- a topic ------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka: Any) -> str:
    name = f"results-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 2, {"cleanup.policy": "compact"})
    return name


@pytest.fixture
def open_topic(kafka: Any, topic: str) -> Iterator[Callable[..., KafkaSink]]:
    """Opens the topic; what is open ends with the test."""
    made: list[KafkaSink] = []

    def opened(*, encoding: OutgoingEncoding = "msgpack", transaction_timeout_s: float = 60) -> KafkaSink:
        limits = {"transaction_timeout_s": transaction_timeout_s}
        sink = KafkaSink([kafka.bootstrap], topic, topic, encoding, client={}, **limits)
        made.append(sink)
        return sink

    yield opened
    for sink in made:
        sink.break_off()
        sink.close()


@pytest.mark.kafka
def test_a_topic_is_taken_over_and_the_one_before_is_shut_out(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink]
) -> None:
    reader = TopicReader(kafka.bootstrap, topic, 2)
    first = open_topic()
    assert first.open(lambda last: True) is None
    first.write(hops(1, range(20)), end(1))
    second = open_topic()
    found = second.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    with pytest.raises(Fenced):
        first.write(hops(2, [1]), end(2))
    second.write(hops(2, [3], [4]), end(2, "b"))
    read_up_to(reader, (1, 2))  # what is committed is seen once each partition has been told
    assert known_hops(reader) == {vertex: 2 if vertex == 3 else 1 for vertex in range(20) if vertex != 4}
    first.close()
    with pytest.raises(Fenced):  # before it could shut out whoever is there now
        first.open(lambda last: last is not None and last.run == "a")
    second.write(hops(3, [5]), end(3, "b"))
    assert [found.sequence for found in read_up_to(reader, (1, 3)).ends] == [1, 2, 3]


@pytest.mark.kafka
def test_a_transaction_that_took_too_long_is_tried_again(
    kafka: Any, topic: str, open_topic: Callable[..., KafkaSink]
) -> None:
    first, second = open_topic(transaction_timeout_s=0.001), open_topic()

    def late() -> Iterator[Chunk]:
        second.open(lambda last: True)  # whoever it is that says that it is over
        yield from hops(1, [1])

    first.open(lambda last: True)
    with pytest.raises(KafkaTimeoutError, match="transaction_timeout"):
        first.write(late(), end(1))
    second.write(hops(1, [2]), end(1, "b"))
    first.close()
    with pytest.raises(Fenced):
        first.open(lambda last: last is None)
    assert known_hops(read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 1))) == {2: 1}


@pytest.mark.kafka
def test_a_topic_has_keys_of_one_encoding(open_topic: Callable[..., KafkaSink]) -> None:
    first = open_topic()
    first.open(lambda last: True)
    first.write(hops(1, [1]), end(1))
    with pytest.raises(KafkaError, match=r"results\.encoding"):
        open_topic(encoding="json").open(lambda last: True)
    first.write(hops(2, [1]), end(2))  # it is not shut out


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_named(kafka: Any) -> None:
    sink = KafkaSink([kafka.bootstrap], "nowhere", "x", "msgpack", client={}, transaction_timeout_s=60)
    with pytest.raises(KafkaError, match=r"topic nowhere \(results.topic\) is not there"):
        sink.open(lambda last: True)
    sink.close()


@pytest.mark.kafka
def test_a_topic_that_is_made_anew_is_not_gone_on_with(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink]
) -> None:
    """Readers of the new one would lack whoever does not change any more."""
    sink = open_topic()
    sink.open(lambda last: True)
    sink.write(hops(1, range(10)), end(1))
    with client(KafkaAdminClient, kafka.bootstrap) as admin:
        admin.delete_topics([topic])
        until(lambda: admin.describe_topics([topic])[0]["error_code"] != 0)
    kafka.create_topic(topic, 2, {"cleanup.policy": "compact"})
    with pytest.raises(KafkaError, match="was deleted and made again"):
        sink.write(hops(2, [3]), end(2))
    sink.close()
    assert sink.open(lambda last: True) is None
    sink.write(hops(1, range(20)), end(1, "b"))
    assert known_hops(read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 1))) == dict.fromkeys(range(20), 1)


@pytest.mark.kafka
def test_half_a_transaction_is_never_seen_in_a_topic(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink]
) -> None:
    sink = open_topic()
    sink.open(lambda last: True)
    sink.write(hops(1, range(10)), end(1))

    def failing() -> Iterator[Chunk]:
        yield from hops(2, range(20_000))
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        sink.write(failing(), end(2))
    sink.close()
    found = sink.open(lambda last: True)
    assert found is not None and found.is_same(end(1))
    reader = read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 1))
    assert known_hops(reader) == dict.fromkeys(range(10), 1)
    sink.write(hops(2, [3]), end(2))
    assert known_hops(read_up_to(reader, (1, 2)))[3] == 2


@pytest.mark.kafka
def test_a_topic_tells_who_was_written_since_a_place(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_topic()
    sink.open(lambda last: True)
    places = []
    for sequence in range(1, 5):
        sink.write(hops(sequence, [sequence], [10 + sequence]), end(sequence))
        places.append(sink.place)
    read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 4))
    check_ids_since(sink, places)
    with pytest.raises(PlaceLost):
        sink.ids_since({"0": 10**6, "1": 0})


@pytest.mark.kafka
@pytest.mark.parametrize("lost", ["a record", "a transaction"])
def test_who_was_written_since_a_place_is_known_where_compaction_left_tombstones(
    kafka: Any,
    topic: str,
    open_topic: Callable[[], KafkaSink],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    """What it took away has newer records then. Of tombstones it may have forgotten nothing is known."""
    sink = open_topic()
    sink.open(lambda last: True)
    opened, until_end = sink.place, sink._until
    for sequence in range(1, 4):
        sink.write(hops(sequence, [1, 1 + sequence], [10 + sequence]), end(sequence))
    read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 3))

    def compacted(*given: Any, **options: Any) -> Iterator[Any]:
        """Only the newest record of each key is left, or all but the oldest of vertex 1."""
        records = list(until_end(*given, **options))
        left = {(record.partition, record.key): record for record in records}
        oldest = next(record for record in records if read_key(record.key) == ("hops", 1))
        for record in records:
            if record is not oldest and (lost == "a record" or record in left.values()):
                yield record

    monkeypatch.setattr(sink, "_until", compacted)
    found = sink.ids_since(opened, 3)["hops"]
    assert sorted(np.asarray(found).tolist()) == [1, 2, 3, 4, 11, 12, 13]
    message = "still there|not there any more"
    day_ms = 86_400_000
    for time_ms in (opened["time_ms"] - day_ms // 2, opened["time_ms"] + day_ms):
        with pytest.raises(PlaceLost, match=message):
            sink.ids_since({**opened, "time_ms": time_ms}, 3)
    before = {**opened, "running_ms": opened["running_ms"] - day_ms // 2}  # and then the clock was stepped back
    with pytest.raises(PlaceLost, match=message):
        sink.ids_since(before, 3)
    sink.ids_since({**before, "boot": "another run of the machine"}, 3)
    monkeypatch.setattr(outgoing_kafka, "read_topic_settings", lambda admin, topics: {})  # it may not be looked at
    with pytest.raises(PlaceLost, match=message):
        sink.ids_since(opened, 3)


@pytest.mark.kafka
def test_a_clock_that_is_far_ahead_is_said_to_be_wrong_and_results_wait_for_it(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, real = open_topic(), time.time_ns
    sink.open(lambda last: True)
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: real() + 86_400 * 10**9)
        with pytest.raises(KafkaError, match=r"takes no records of this time .*: this machine's clock"):
            sink.write(hops(1, [1]), end(1))
    sink.close()
    sink.open(lambda last: True)
    sink.write(hops(1, [1]), end(1))
    assert known_hops(read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 1))) == {1: 1}


@pytest.mark.kafka
def test_records_of_a_topic_are_where_keys_of_edges_are_and_plain_for_any_client(
    kafka: Any, topic: str, open_topic: Callable[[], KafkaSink]
) -> None:
    sink = open_topic()
    sink.open(lambda last: True)
    ids = np.arange(50_000)
    sink.write(hops(1, ids.tolist(), [-1, -2]), end(1))
    read_up_to(TopicReader(kafka.bootstrap, topic, 2), (1, 1))
    parts = [TopicPartition(topic, number) for number in range(2)]
    seen: dict[int, int] = {}
    with client(KafkaConsumer, kafka.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(part) < ends[part] for part in parts):
            for part, records in consumer.poll(timeout_ms=200).items():
                for record in records:
                    if (named := read_key(record.key)) is not None:
                        assert named[1] not in seen and (record.value is None) == (int(named[1]) < 0)
                        seen[int(named[1])] = part.partition
    everyone = np.concatenate([ids, [-1, -2]])
    assert seen == dict(zip(everyone.tolist(), partition_of(everyone, 2).tolist(), strict=True))


# -- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"results": {"kind": "kafka"}}, "results.topic: must name the topic when kind is"),
        ({"results": {"topic": "out"}}, 'results.topic = "out": must be left out unless kind is "kafka"'),
        ({"results": {"kind": "topic"}}, "results.kind = \"topic\": must be 'off', 'kafka' or 'spool'"),
        (
            {"results": {"kind": "kafka", "topic": "out"}},
            'results.bootstrap_servers: must name at least one broker unless source.kind is "kafka"',
        ),
        (
            {"results": {"kind": "spool", "programs": ["hop"]}},
            'results.programs = ["hop"]: must be ids of programs (hop: there are components, pagerank)',
        ),
        ({"results": {"kind": "spool", "path": "./spool"}}, 'results.path = "./spool": must not be source.path'),
        (
            {
                "source": {"kind": "kafka", "bootstrap_servers": ["b:1"], "topics": ["edges"]},
                "results": {"kind": "kafka", "topic": "edges"},
            },
            'results.topic = "edges": must be a topic of its own',
        ),
        (
            {
                "source": {"kind": "kafka", "bootstrap_servers": ["b:1"], "topics": ["edges"]},
                "results": {"kind": "kafka", "topic": "out", "client": {"client_id": "x"}},
            },
            "results.client = a table: must be left out without results.bootstrap_servers",
        ),
        ({"results": {"kind": "spool", "threshold": -1}}, "results.threshold = -1: must be greater than or equal"),
        ({"results": {"folder": "x"}}, "results.folder"),
    ],
)
def test_mistakes_in_settings_are_told(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        from_tables(tables)
    assert message in told.value.message


@pytest.mark.kafka
def test_the_doctor_looks_at_the_topic_of_results(kafka: Any, topic: str) -> None:
    source = {"kind": "kafka", "bootstrap_servers": [kafka.bootstrap], "topics": ["edges"]}

    def found(name: str) -> list[tuple[str, str]]:
        config = from_tables({"source": source, "results": {"kind": "kafka", "topic": name}})
        return [(finding.status, finding.found) for finding in doctor._results(config)]

    kafka.create_topic(f"{topic}-kept", 1)
    assert found(topic) == [("ok", "2 partitions")]
    assert found("nowhere") == [("fail", "not there")]
    assert found(f"{topic}-kept")[1] == ("warn", "it is not compacted: it grows for ever, or loses values by age")


def test_nobody_writes_results_unless_asked() -> None:
    assert from_tables({}).results.kind == "off"
