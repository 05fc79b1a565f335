"""Bad records shown, counted, and sent once more: from files and topics, to spools and topics."""

from __future__ import annotations

import errno
import json
import os
import socket
import uuid
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from brokers import client
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import GroupAuthorizationFailedError
from running import Daemon
from typer.testing import CliRunner
from waiting import until

from graphtide.daemon import cli, durable
from graphtide.daemon.errors import NotWritten, RequestError
from graphtide.daemon.ingest import kafka_client
from graphtide.daemon.ingest.dead_letters import FileDeadLetters
from graphtide.daemon.ingest.dead_letters_kafka import KafkaDeadLetters
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.records.encodings import HEADER_LINE, ROW
from graphtide.daemon.records.spool_format import SpoolWriter, read_frames
from graphtide.daemon.records.stream import BadRecord, Partition, RawRecord, Whole
from graphtide.daemon.tools import dead_letters
from graphtide.daemon.tools.dead_letters import Choice, replay_to_spool, replay_to_topic
from graphtide.daemon.tools.destinations import KafkaDestination
from graphtide.daemon.tools.replayed import MARK_BYTES, MARKS, FolderMarks, identity
from graphtide.ops.kafka import DevKafka


def run(*arguments: str | Path, code: int = 0) -> Any:
    """What a command prints as JSON."""
    done = CliRunner().invoke(cli.app, ["dead-letters", *map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def refused(*arguments: str | Path, code: int = 1) -> str:
    done = CliRunner().invoke(cli.app, ["dead-letters", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def letter(offset: int, value: bytes, **more: Any) -> BadRecord:
    return BadRecord(
        **{"partition": Partition("edges", 1), "reason": "malformed", "detail": "no", **more},
        offset=offset,
        value=value,
    )


@pytest.mark.sample(among="bad records")
def test_what_was_refused_is_applied_once_it_is_put_right(tmp_path: Path) -> None:
    """Records of the wrong encoding in a file of a real daemon's spool, and a line of CSV."""
    settings = {"program": [{"name": "bfs", "source": 1}], "graph": {"weights": "non-negative"}}
    with Daemon(tmp_path, settings) as daemon:
        with SpoolWriter(daemon.spool, name="a") as writer:
            for u in range(1, 5):
                writer.append(json.dumps({"src": u, "dst": u + 1, "weight": 1}).encode())
            end = writer.offset
        lines = "src,dst,weight\n5,6,1\n6,7,-2\n"
        (daemon.spool / "b.csv").write_text(lines)
        daemon.start(ready_s=600)
        with daemon.client() as asking:
            asking.wait({"a.msgpack": end, "b.csv": len(lines)}, timeout_ms=300_000)
            folder = tmp_path / "dead-letters"
            counted = run("count", folder)
            assert sorted((item["source"], item["letters"]) for item in counted) == [
                ("a.msgpack", 4),
                ("b.csv", 1),
            ]
            (reason,) = {item["reason"] for item in counted if item["source"] == "a.msgpack"}
            listed = CliRunner().invoke(cli.app, ["dead-letters", "list", str(folder), "--limit", "2"])
            assert "and 3 more" in listed.output and reason in listed.output
            shown = run("show", "b.csv/21", folder)
            assert shown["value"].strip() == "6,7,-2" and shown["source"] == "b.csv/21" and not shown["is_cut"]
            assert "there is no dead letter of 'c/1'" in refused("show", "c/1", folder)
            assert "give --csv-header" in refused(
                *("replay", folder, "--source", "a", "--encoding", "csv", "--spool", daemon.spool)
            )
            done = run("replay", folder, "--source", "b", "--spool", tmp_path / "lines")
            assert Path(*done["files"]).read_bytes() == b"src,dst,weight\n6,7,-2\n"
            done = run("replay", folder, "--reason", reason, "--encoding", "json", "--spool", daemon.spool)
            assert done["replayed"] == 4 and done["cut"] == 0
            (file,) = map(Path, done["files"])
            assert file.parent == daemon.spool and file.suffix == ".json"
            asking.wait({file.name: file.stat().st_size}, timeout_ms=300_000)
            assert asking.get("bfs", [1, 2, 3, 4, 5, 6]).values.tolist() == [0, 1, 2, 3, 4, 5]
        daemon.stop()


def test_letters_go_to_a_spool_as_what_they_were(tmp_path: Path) -> None:
    """By their content type, or the name of their file; each once, those that are cut not at all."""
    with FileDeadLetters(tmp_path / "dead") as files:
        binary = (("content-type", b"application/vnd.graphtide.edges+msgpack"),)
        csv = (("content-type", b"text/csv"), (HEADER_LINE, b"dst,src"))
        files.write(
            [
                letter(1, b"one", headers=binary),
                letter(1, b"row", headers=(*binary, (ROW, b"0"))),
                letter(1, b"one", headers=binary),
                letter(2, b"3,4\r\n", headers=csv),
                letter(3, b"5,6", headers=csv),
                letter(7, b"7 8\n", partition=Partition("x.el.gz"), reason="bad-id"),
                letter(9, b"beg", headers=binary, whole=Whole(10, 11)),
            ]
        )
    done = run("replay", tmp_path / "dead", "--spool", tmp_path / "spool", code=7)
    assert (done["replayed"], done["cut"]) == (5, 1)
    framed, table, listed = map(Path, done["files"])
    assert [item.payload for item in read_frames(framed)] == [b"one", b"row"]
    assert table.read_bytes() == b"dst,src\n3,4\n5,6\n" and table.suffix == ".csv"
    assert listed.read_bytes() == b"7 8\n" and listed.suffix == ".el"
    assert {*(tmp_path / "spool").iterdir()} == {framed, table, listed}
    done = run("replay", tmp_path / "dead", "--spool", tmp_path / "spool", code=7)
    assert (done["replayed"], done["before"], done["cut"], done["files"]) == (0, 5, 1, [])
    assert run("count", tmp_path / "dead", "--reason", "bad-id") == [
        {"reason": "bad-id", "source": "x.el.gz", "letters": 1, "bytes": 4}
    ]
    with pytest.raises(RequestError, match="edges/1/4: nothing says how its record is encoded"):
        replay_to_spool([letter(3, b"a", headers=csv), letter(4, b"?")], tmp_path / "none", None)
    assert not (tmp_path / "none").exists()
    assert "either DIR" in refused("count", code=2)
    for command in ("count", "list"):
        assert refused(command, tmp_path / "dead", "--reason", "bad-op", code=0) == dead_letters.NONE
    assert "either --spool" in refused("replay", tmp_path / "dead", code=2)


def test_letters_are_sent_once_unless_again_is_said(tmp_path: Path) -> None:
    """Whichever are chosen, in whatever pieces; a mark that was half written counts for nothing."""
    dead, spool = tmp_path / "dead", tmp_path / "spool"
    with FileDeadLetters(dead) as files:
        files.write([letter(k, b"%d" % k, reason="bad-id" if k % 2 else "bad-op") for k in range(6)])
    replay = ("replay", dead, "--spool", spool, "--encoding", "json")
    assert run(*replay, "--reason", "bad-id")["replayed"] == 3
    with FileDeadLetters(dead) as files:
        files.write([letter(1, b"1", reason="bad-id"), letter(7, b"7", reason="bad-id")])  # the first once more
    with open(dead / MARKS, "ab") as marks:
        marks.write(b"half")
    refused("replay", dead, "--spool", spool)  # nothing says what they are: none is sent, none marked
    done = run(*replay)
    assert (done["replayed"], done["before"]) == (4, 3)
    assert sorted(Path(done["files"][0]).read_bytes().split()) == [b"0", b"2", b"4", b"7"]
    assert run(*replay)["replayed"] == 0
    assert "7 were sent before, and are left out" in refused(*replay, code=0)
    again = run(*replay, "--again", "--reason", "bad-id")
    assert (again["replayed"], again["before"]) == (4, 0)
    assert (dead / MARKS).stat().st_size == 7 * 16


def test_nothing_is_sent_that_cannot_be_remembered(tmp_path: Path) -> None:
    with FileDeadLetters(tmp_path / "dead") as files:
        files.write([letter(1, b"1")])
    (tmp_path / "dead" / MARKS).mkdir()  # whoever runs tests as root may write everywhere else
    message = refused("replay", tmp_path / "dead", "--spool", tmp_path / "spool", "--encoding", "json")
    assert MARKS in message and not (tmp_path / "spool").exists()


def test_replays_that_go_on_at_once_keep_each_others_marks(tmp_path: Path) -> None:
    letters = [letter(k, b"%d" % k) for k in range(4)]
    first, second = FolderMarks(tmp_path), FolderMarks(tmp_path)
    for marks, its in ((first, letters[:3]), (second, letters[3:])):
        for one in its:
            marks.note(one)
        marks.save()
    known = FolderMarks(tmp_path)
    assert all(one in known for one in letters)


def test_bytes_that_are_no_text_are_shown_as_numbers(tmp_path: Path) -> None:
    with FileDeadLetters(tmp_path) as files:
        files.write([letter(1, b"\x93\x00"), letter(2, "ä\tb\n".encode()), letter(3, b"a\x00b")])
    assert [run("show", f"edges/1/{k}", tmp_path)["value"] for k in (1, 2, 3)] == ["0x9300", "ä\tb\n", "0x610062"]
    assert [
        found.offset for found in Choice(source="edg").of([letter(1, b""), letter(1, b""), letter(2, b"")])
    ] == [1, 2]


def test_bad_lines_of_one_record_are_letters_of_their_own(tmp_path: Path) -> None:
    """All have its offset; the last is delivered twice."""
    lines = b'{"src":1,"dst":2}\n{"src":1,"dst":"x"}\n{"src":3}\n'
    record = RawRecord(
        Partition("edges", 1), 4, 5, lines, "json", 0, b"", (("content-type", b"application/json"),)
    )
    bad = Decoder().decode(record).bad
    with FileDeadLetters(tmp_path / "dead") as files:
        files.write([*bad, bad[-1]])
    assert sum(item["letters"] for item in run("count", tmp_path / "dead")) == 2
    (file,) = run("replay", tmp_path / "dead", "--spool", tmp_path / "spool")["files"]
    assert Path(file).read_bytes() == b'{"src":1,"dst":"x"}\n{"src":3}\n'


def test_a_document_of_several_lines_is_one_in_a_file(tmp_path: Path) -> None:
    """Else a line within it might be taken for an update by itself."""
    document = b'{"v": 1, "edges": [\r\n{"src": 1, "dst": 2},\n{"src": 3, "dst": 4}\n]}'
    (lines,) = replay_to_spool([letter(1, document), letter(2, b"{\n")], tmp_path, "json")[1]
    first, *rest = lines.read_bytes().splitlines()
    assert json.loads(first) == json.loads(document) and rest == [b"{"]


def test_a_full_disk_and_records_without_content_leave_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    binary = {"headers": (("content-type", b"application/vnd.graphtide.edges+msgpack"),)}
    some = [letter(1, b"1 2", partition=Partition("x.el")), letter(2, b"", **binary), letter(3, b"a", **binary)]
    with monkeypatch.context() as patch:
        sync, calls = os.fsync, count()

        def full(handle: int) -> None:
            if next(calls):
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(handle)

        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            replay_to_spool(some, spool, None)
        assert not [*spool.iterdir()]
    with FileDeadLetters(tmp_path / "dead") as files:
        files.write(some)
    done = run("replay", tmp_path / "dead", "--spool", spool, code=7)
    assert (done["replayed"], done["cut"], done["empty"]) == (2, 0, 1)
    lines, framed = map(Path, done["files"])
    assert lines.read_bytes() == b"1 2\n" and [item.payload for item in read_frames(framed)] == [b"a"]


def test_files_that_stand_in_the_spool_are_named_where_that_is_not_sure_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "sync_folder", away)
    with pytest.raises(NotWritten, match=r"Input/output error\. 1 of 1 files are there \(replay-") as told:
        replay_to_spool([letter(1, b"1 2", partition=Partition("x.el"))], tmp_path / "spool", None)
    (file,) = (tmp_path / "spool").iterdir()
    assert file.name in told.value.message and file.read_bytes() == b"1 2\n"


class Topic:
    """What stands for a topic of so many partitions, and keeps what it is sent."""

    topic = "edges"

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.sent: list[tuple[int, bytes, dict[str, bytes]]] = []

    def send_record(
        self, partition: int, payload: bytes, headers: Sequence[tuple[str, bytes]], *, key: bytes | None
    ) -> None:
        self.sent.append((partition, payload, dict(headers)))

    def finish(self) -> None:
        pass


def test_letters_go_to_a_topic_in_the_form_that_it_takes() -> None:
    """Those of files say what they are, lines of CSV what their columns are; all are looked at before one goes."""

    def sent(*letters: BadRecord, partitions: int = 1, header: str | None = None) -> Any:
        topic = Topic(partitions)
        try:
            replay_to_topic(letters, cast(KafkaDestination, topic), None, header)
        except RequestError as error:
            assert not topic.sent
            return str(error)
        return topic.sent

    of_file = letter(9, b"1,2", partition=Partition("a.csv"), headers=((HEADER_LINE, b"src,dst"),))
    assert sent(of_file) == [(0, b"src,dst\n1,2", {"content-type": b"text/csv"})]
    line = letter(9, b"1,2", partition=Partition("edges", 0), headers=(("content-type", b"text/csv"),))
    assert sent(line, header="dst,src") == [(0, b"dst,src\n1,2", {"content-type": b"text/csv"})]
    assert sent(line)[0][1] == b"1,2"
    record = RawRecord(Partition("edges", 0), 40, 41, b"dst,src\n1,2\n3,x\n", "csv", 0)
    assert sent(*Decoder().decode(record).bad) == [(0, b"dst,src\n3,x", {})]
    assert "a.csv/9: a letter of a file belongs into no certain one" in sent(line, of_file, partitions=2)
    assert "edges/1/3: topic edges has 1 partitions" in sent(line, letter(3, b"?"))


def test_a_cluster_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "COMMAND_CONNECT_MS", 100)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert f"Kafka at {server}: " in refused("count", "--kafka", server, "--topic", "t", code=3)


def test_records_of_a_topic_that_the_daemon_did_not_write_are_shown_as_they_are() -> None:
    """Whoever may write to it may have said anything, or nothing."""

    def of(*headers: tuple[str, bytes | None], value: bytes | None = b"x") -> BadRecord:
        return dead_letters._of_topic(
            SimpleNamespace(topic="letters", partition=2, offset=7, key=None, value=value, headers=list(headers))
        )

    plain = of(value=None)
    assert (plain.partition, plain.offset, plain.reason) == (Partition("letters"), 7, "unknown")
    assert plain.value == b"" and plain.whole is None
    for headers in (
        [("graphtide-value-bytes", b"abc"), ("graphtide-value-crc32c", b"1")],
        [("graphtide-value-bytes", b"10")],
        [("graphtide-error", None), ("graphtide-row", None), ("other", None)],
        [("graphtide-source", b"t/-5/x"), ("graphtide-error", b"\xff")],
    ):
        letter = of(*headers)
        assert letter.whole is None and letter.offset == 7
        assert len(identity(letter)) == MARK_BYTES and dead_letters.list_some([letter], 1, as_json=True) == 0
    cut = of(("graphtide-value-bytes", b"10"), ("graphtide-value-crc32c", b"3"), ("graphtide-source", b"t/4/9"))
    assert (cut.partition, cut.offset, cut.whole) == (Partition("t", 4), 9, Whole(10, 3))


@pytest.mark.sample(among="bad records")
@pytest.mark.kafka
def test_letters_of_a_topic_go_to_the_partitions_that_they_came_from(
    kafka: DevKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, edges = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("dead", "edges"))
    kafka.create_topic(dead, 1)
    kafka.create_topic(edges, 2)
    given = [
        letter(
            k,
            b"v%d" % k,
            key=b"k%d" % k,
            headers=(("content-type", b"text/plain"), ("own", b"1")),
            partition=Partition(edges, k % 2),
        )
        for k in range(4)
    ]
    letters = KafkaDeadLetters(kafka.bootstrap, dead, tmp_path)
    letters.write([*given, letter(9, b"other", reason="bad-id")])
    until(lambda: letters.sent == 5)
    letters.close()
    there = ("--kafka", kafka.bootstrap, "--topic", dead)
    assert [(item["reason"], item["letters"]) for item in run("count", *there)] == [
        ("malformed", 4),
        ("bad-id", 1),
    ]
    assert run("show", f"{edges}/1/3", *there)["value"] == "v3"
    to = ("--to-kafka", kafka.bootstrap, "--to-topic", edges)
    replay = ("replay", *there, *to, "--encoding", "json")
    with monkeypatch.context() as patched:  # one who may read and write, but not mark
        refusal = {TopicPartition(dead, 0): GroupAuthorizationFailedError}
        patched.setattr(KafkaAdminClient, "alter_group_offsets", lambda *_: refusal)
        assert "GroupAuthorizationFailedError" in refused(*replay, code=3)
    assert run(*replay, "--source", edges, "--reason", "malformed")["replayed"] == 4
    with KafkaDeadLetters(kafka.bootstrap, dead, tmp_path / "more") as more:
        more.write([letter(10, b"later", partition=Partition(edges, 0))])
        until(lambda: more.sent == 1)
    for replayed, before in ((1, 4), (0, 5)):  # what came since, and nothing
        done = run(*replay, "--reason", "malformed")
        assert (done["replayed"], done["before"]) == (replayed, before)
    assert run(*replay, "--reason", "malformed", "--source", "ed", "--again")["replayed"] == 5
    with client(KafkaConsumer, kafka.bootstrap, enable_auto_commit=False) as consumer:
        parts = [TopicPartition(edges, number) for number in range(2)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        found: list[Any] = []
        while len(found) < 10:
            for records in consumer.poll(timeout_ms=500).values():
                found += records
    expected = [(k % 2, b"k%d" % k, b"v%d" % k) for k in range(4)]
    assert sorted((record.partition, record.key or b"", record.value) for record in found) == sorted(
        2 * [*expected, (0, b"", b"later")]
    )
    own = [dict(record.headers) for record in found if record.key]
    assert own == 8 * [{"own": b"1", "content-type": b"application/json"}]
    narrow = f"narrow-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(narrow, 1)
    message = refused("replay", *there, "--to-kafka", kafka.bootstrap, "--to-topic", narrow)
    assert "has 1 partitions" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--reason", "bad-wieght"], "did you mean bad-weight?"),
        (["--csv-header", ""], "must be names of columns, each once"),
        (["--csv-header", " , "], "must be names of columns, each once"),
        (["--csv-header", "src,src"], "must be names of columns, each once"),
        (["--spool", "letters/../letters"], "the folder of the letters is no spool"),
    ],
)
def test_what_would_send_nothing_or_nonsense_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with FileDeadLetters(tmp_path / "letters") as letters:
        letters.write([letter(7, b"x")])
    to = [] if "--spool" in options else ["--spool", "spool"]
    for letters_in in ("letters", *map(str, (tmp_path / "letters").iterdir())):
        said = refused("replay", letters_in, *to, *options, code=2).replace(" │ │ ", " ")
        assert words in said
    assert not list(tmp_path.rglob("replay*")) and run("count", "letters", "--reason", "some-other") == []


def test_columns_without_a_name_may_stand_between_others(tmp_path: Path) -> None:
    """As a daemon reads them: what writes tables often leads with a number of the row, and gives it no name."""
    with FileDeadLetters(tmp_path / "letters") as letters:
        letters.write([letter(7, b"0,1,2", partition=Partition("a.csv"))])
    done = run("replay", tmp_path / "letters", "--csv-header", ",src,dst", "--spool", tmp_path / "spool")
    assert Path(*done["files"]).read_bytes() == b",src,dst\n0,1,2\n"
