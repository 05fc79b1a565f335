"""``graphtide dead-letters``: bad records listed, counted, shown, and sent once more."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ..durable import Replaced, put_all_in_place, write_synced
from ..errors import NotWritten, RequestError, SourceUnavailable
from ..ingest.dead_letters import read_dead_letters, source_of
from ..os_errors import why
from ..records.encodings import CONTENT_TYPES, FRAMED, HEADER_LINE, encoding_of
from ..records.spool_format import file_kind, frame, make_folder
from ..records.stream import BadRecord, Partition, Whole
from ..terminal import count, output, size, table
from .destinations import KafkaDestination
from .replayed import TopicLetter, identity

OWN_HEADERS = "graphtide-"
"""How the names of headers begin that a dead letter has and its record had not."""
_SHOWN_BYTES = 60
_SILENT_S = 60.0
_SPACES = str.maketrans("\n\r\t", "   ")
_ONE_LINE = bytes.maketrans(b"\n\r", b"  ")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters: of this reason, and of sources that begin so; None: of any."""

    reason: str | None = None
    source: str | None = None

    def of(self, letters: Iterable[BadRecord]) -> Iterator[BadRecord]:
        """Those, each once: letters are delivered at least once. Lines of one Kafka record have one place."""
        seen = set[bytes]()
        for letter in letters:
            if self.reason not in (None, letter.reason):
                continue
            if self.source is not None and not letter.partition.name.startswith(self.source):
                continue
            name = identity(letter)
            if name not in seen:
                seen.add(name)
                yield letter


def from_folder(path: Path) -> Iterator[BadRecord]:
    """The letters in ``dead_letters.path``, or in one file of it."""
    return read_dead_letters(path)


def from_topic(servers: str, topic: str, client: Mapping[str, Any]) -> Iterator[BadRecord]:
    """The letters that a topic holds now.

    Raises:
        RequestError: there is no such topic.
        SourceUnavailable: the cluster cannot be reached, or answers no more.
        ConfigError: it refuses the client, or the client its settings.
    """
    from kafka.errors import KafkaError

    from ..ingest.kafka_client import command_error

    try:
        yield from _in_topic(servers, topic, client)
    except KafkaError as error:
        raise command_error(servers, error, SourceUnavailable) from error


def _in_topic(servers: str, topic: str, client: Mapping[str, Any]) -> Iterator[BadRecord]:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaTimeoutError

    from ..ingest.kafka_client import command_options, connect, disconnect, records_until
    from ..ingest.topic_settings import meant

    consumer = connect(KafkaConsumer, client, **command_options(servers), enable_auto_commit=False)
    try:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise RequestError(f"Kafka at {servers} has no topic {topic}{meant([topic], consumer.topics())}")
        parts = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        try:
            for record in records_until(consumer, ends, silent_s=_SILENT_S):
                if record.offset < ends[TopicPartition(topic, record.partition)]:
                    yield _of_topic(record)
        except KafkaTimeoutError as error:
            why = f"Kafka at {servers} has given nothing of {topic} for {_SILENT_S:g} s"
            raise SourceUnavailable(why) from error
    finally:
        disconnect(consumer, timeout_s=5.0)


def _of_topic(record: Any) -> BadRecord:
    headers = tuple((name, value or b"") for name, value in record.headers)
    said = {name: value.decode(errors="replace") for name, value in headers if name.startswith(OWN_HEADERS)}
    name, _, offset = said.get("graphtide-source", f"{record.topic}/{record.offset}").rpartition("/")
    topic, slash, number = name.rpartition("/")
    is_numbered = slash and number.isdecimal()
    length, checksum = said.get("graphtide-value-bytes", ""), said.get("graphtide-value-crc32c", "")
    is_cut = length.isdecimal() and checksum.isdecimal()
    return TopicLetter(
        partition=Partition(topic, int(number)) if is_numbered else Partition(name),
        offset=int(offset) if offset.isdecimal() else record.offset,
        value=record.value or b"",
        reason=said.get("graphtide-error", "unknown"),
        detail=said.get("graphtide-error-detail", ""),
        key=record.key,
        headers=headers,
        whole=Whole(int(length), int(checksum)) if is_cut else None,
        at=(record.partition, record.offset),
    )


NONE = "there are no such dead letters"


# -- for people ---------------------------------------------------------------------------------------------------


def list_some(letters: Iterable[BadRecord], limit: int, *, as_json: bool) -> int:
    """The first so many, a line each."""
    some, more = list[BadRecord](), 0
    for letter in letters:
        if len(some) < limit:
            some.append(letter)
        else:
            more += 1
    if as_json:
        for letter in some:
            print(json.dumps(_about(letter), ensure_ascii=False))
        return 0
    rows = [
        (source_of(letter), letter.reason, letter.detail, _text(letter.value, _SHOWN_BYTES)) for letter in some
    ]
    console = output()
    console.print(table(("source", "reason", "detail", "value"), rows) if rows else NONE)
    if more:
        console.print(f"and {count(more)} more (--limit)", style="dim")
    return 0


def count_all(letters: Iterable[BadRecord], *, as_json: bool) -> int:
    """How many there are, by reason and by the topic or file that they came from."""
    found, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for letter in letters:
        found[letter.reason, letter.partition.name] += 1
        sizes[letter.reason, letter.partition.name] += len(letter.value)
    if as_json:
        print(
            json.dumps(
                [
                    {"reason": reason, "source": source, "letters": number, "bytes": sizes[reason, source]}
                    for (reason, source), number in found.most_common()
                ]
            )
        )
        return 0
    rows = [(*key, count(number), size(sizes[key])) for key, number in found.most_common()]
    output().print(table(("reason", "source", "letters", "size"), rows) if rows else NONE)
    return 0


def show_one(letters: Iterable[BadRecord], place: str, *, as_json: bool) -> int:
    """All of the letters of one place, as a list names it.

    Raises:
        RequestError: there is none.
    """
    found = [letter for letter in letters if source_of(letter) == place]
    if not found:
        raise RequestError(f"there is no dead letter of {place!r}; `list` names those that there are")
    for letter in found:
        about = _about(letter)
        if as_json:
            print(json.dumps(about, ensure_ascii=False))
        else:
            output().print(
                table(("", ""), [(name, value) for name, value in about.items() if value not in (None, {})])
            )
    return 0


def _about(letter: BadRecord) -> dict[str, Any]:
    return {
        "source": source_of(letter),
        "reason": letter.reason,
        "detail": letter.detail,
        "key": None if letter.key is None else _text(letter.key),
        "headers": {name: _text(value) for name, value in letter.headers},
        "bytes": len(letter.value) if letter.whole is None else letter.whole.bytes,
        "is_cut": letter.whole is not None,
        "value": _text(letter.value),
    }


def _text(value: bytes, most: int | None = None) -> str:
    """Bytes as text where they are text, else in hexadecimal; of so many at most."""
    shown = value if most is None else value[:most]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.translate(_SPACES).isprintable():
        text = f"0x{shown.hex()}"
    return f"{text}..." if len(shown) < len(value) else text


# -- once more ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Replayed:
    """How many letters were sent; how many were not: ``cut`` ones have the beginning of their record only, of
    ``empty`` ones a file can hold nothing, and others were sent ``before``.
    """

    sent: int = 0
    cut: int = 0
    empty: int = 0
    before: int = 0


def replay_to_spool(
    letters: Iterable[BadRecord], spool: Path, encoding: str | None, csv_header: str | None = None
) -> tuple[Replayed, list[Path]]:
    """Put letters into new files of a spool, one for each encoding and CSV header: how many, and which files.

    ``encoding``: what they are read as; None: as they were. ``csv_header``: the names of the columns, for lines of
    which the letter does not say. Nothing is written unless all is known; files appear once all are written.

    Raises:
        RequestError: of one it is not known what it was.
        OSError: there is no room for them; none is there then.
        NotWritten: some are there, and may be read, and others not, or a loss of power may take them away.
    """
    done, groups = Replayed(), dict[tuple[str, bytes], list[bytes]]()
    for letter in letters:
        if letter.whole is not None:
            done.cut += 1
            continue
        if not letter.value:
            done.empty += 1
            continue
        as_ = encoding or _encoding_of(letter)
        header = b""
        if as_ == "csv":
            header = _header_line(letter, csv_header)
            if not header:
                raise RequestError(f"{source_of(letter)}: nothing names the columns; give --csv-header")
        groups.setdefault((as_, header), []).append(letter.value)
        done.sent += 1
    make_folder(spool)
    stamp, drafts = f"replay-{time.time_ns():020}-{os.getpid()}", dict[Path, Path]()
    try:
        for number, ((as_, header), values) in enumerate(groups.items()):
            if as_ in FRAMED:
                content = b"".join(map(frame, values))
            else:
                texts = map(_on_one_line, values) if as_ in ("json", "debezium") else values
                lines = [*([header] if header else []), *(text.rstrip(b"\r\n") for text in texts)]
                content = b"".join(line + b"\n" for line in lines)
            name = f"{stamp}-{number}.{as_}"
            drafts[spool / name] = spool / f"{name}.tmp"
            write_synced(drafts[spool / name], content)
        put_all_in_place(drafts)
    except Replaced as error:
        names = ", ".join(path.name for path in error.there)
        raise NotWritten(
            f"{str(spool)!r} cannot be written: {why(error)}. {len(error.there)} of {len(drafts)} files are there "
            f"({names}) and may have been read, but are not sure to outlast a loss of power; their letters are "
            "not marked as sent"
        ) from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return done, [*drafts]


def _on_one_line(value: bytes) -> bytes:
    """A JSON document that has several lines as one: a file would take each for a document. Others as they are."""
    if b"\n" not in value:
        return value
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return value.translate(_ONE_LINE)  # none of these can stand within a string


def replay_to_topic(
    letters: Iterable[BadRecord], topic: KafkaDestination, encoding: str | None, csv_header: str | None = None
) -> Replayed:
    """Send letters to a topic: each to the partition of its number, with its key and the headers that it had.

    Those of files go to a topic of one partition, with the content type that their files' names say. Lines of CSV
    get their header line again, where it is known or given. Nothing is sent unless all have a place.

    Raises:
        RequestError: the topic has no partition of that number, or several where a letter has none; or of one it
            is not known what it was.
        ProduceFailed: a record was refused.
    """
    done, records = Replayed(), list[tuple[int, bytes, list[tuple[str, bytes]], bytes | None]]()
    for letter in letters:
        if letter.whole is not None:
            done.cut += 1
            continue
        number = letter.partition.number
        if number is None and topic.partitions > 1:
            raise RequestError(
                f"{source_of(letter)}: a letter of a file belongs into no certain one of the {topic.partitions} "
                f"partitions of topic {topic.topic}; replay it to a spool"
            )
        if number is not None and number >= topic.partitions:
            raise RequestError(
                f"{source_of(letter)}: topic {topic.topic} has {topic.partitions} partitions; updates of one edge "
                f"belong into one partition"
            )
        headers = [(name, value) for name, value in letter.headers if not name.startswith(OWN_HEADERS)]
        as_ = _encoding_of(letter) if encoding is None and number is None else encoding
        if as_ is not None:
            headers = [header for header in headers if header[0].lower() != "content-type"]
            (named, *_) = [name for name, its in CONTENT_TYPES.items() if its == as_]
            headers.append(("content-type", named.encode()))
        header = _header_line(letter, csv_header) if (as_ or _named_encoding(letter)) == "csv" else b""
        value = header + b"\n" + letter.value if header else letter.value
        records.append((number or 0, value, headers, letter.key))
    for partition, value, headers, key in records:
        topic.send_record(partition, value, headers, key=key)
        done.sent += 1
    topic.finish()
    return done


def _header_line(letter: BadRecord, given: str | None) -> bytes:
    """The header line of a letter of CSV: as given, or as it was; empty where it is not known."""
    return given.encode() if given else dict(letter.headers).get(HEADER_LINE, b"")


def _named_encoding(letter: BadRecord) -> str:
    """What its content type, the name of its file, or a header line of CSV says; empty: nothing."""
    kind = file_kind(letter.partition.name) if letter.partition.number is None else None
    otherwise = kind.encoding if kind is not None else "csv" if HEADER_LINE in dict(letter.headers) else ""
    return encoding_of(letter.headers, otherwise)


def _encoding_of(letter: BadRecord) -> str:
    """What a letter was read as.

    Raises:
        RequestError: nothing says so.
    """
    named = _named_encoding(letter)
    if named not in set(CONTENT_TYPES.values()):
        raise RequestError(
            f"{source_of(letter)}: nothing says how its record is encoded ({named or 'no content-type'}); "
            "give --encoding"
        )
    return named


def report(done: Replayed, where: str, files: Sequence[Path] = (), *, as_json: bool) -> int:
    """Say what was replayed; 7 if some cannot be."""
    if as_json:
        counts = {"replayed": done.sent, "before": done.before, "cut": done.cut, "empty": done.empty}
        print(json.dumps({**counts, "files": list(map(str, files))}))
    else:
        output().print(f"{count(done.sent)} letters went to {where}", markup=False, soft_wrap=True)
        if done.before:
            output().print(f"{count(done.before)} were sent before, and are left out (--again sends them, too)")
        if done.cut:
            output().print(f"{count(done.cut)} are left: the rest of their record is not kept", style="yellow")
        if done.empty:
            output().print(f"{count(done.empty)} are left: their record is empty", style="yellow")
    return 7 if done.cut or done.empty else 0
