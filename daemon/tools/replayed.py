"""Which dead letters were sent once more before: so that a replay that is run twice sends none twice.

Of letters in files a file beside them has a mark for each. Those of a topic are marked by committed offsets: of a
group for each choice of letters, whose name says which it was.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from ..errors import SourceUnavailable
from ..ingest.dead_letters import source_of
from ..records.encodings import ROW
from ..records.stream import BadRecord

MARKS = "replayed.marks"
MARK_BYTES = 16
COORDINATOR_S, COORDINATOR_PAUSE_S = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class TopicLetter(BadRecord):
    """A letter out of a topic of letters; ``at``: its partition and offset there."""

    at: tuple[int, int] = (0, 0)


def identity(letter: BadRecord) -> bytes:
    """What tells it from others, and is the same wherever it is delivered again."""
    row = dict(letter.headers).get(ROW, b"")
    content = blake2b(letter.value, digest_size=MARK_BYTES).digest()
    return blake2b(b"\0".join((source_of(letter).encode(), row, content)), digest_size=MARK_BYTES).digest()


class Marks(Protocol):
    """What is remembered."""

    def __contains__(self, letter: BadRecord) -> bool:
        """It was sent before."""
        ...

    def note(self, letter: BadRecord) -> None:
        """It will have been sent when these are saved."""
        ...

    def save(self) -> None:
        """Durable when this returns.

        Raises:
            OSError, SourceUnavailable, ConfigError: it is not.
        """
        ...


class Unsent:
    """Letters to be sent, without those that were; ``before``: how many those are, once all were iterated over.

    Letters that are cut, or empty, are never marked: whoever sends says what becomes of them.
    """

    def __init__(self, letters: Iterable[BadRecord], marks: Marks, *, again: bool) -> None:
        """``again``: those that were sent, too."""
        self._letters = letters
        self._marks = marks
        self._again = again
        self.before = 0

    def __iter__(self) -> Iterator[BadRecord]:
        for letter in self._letters:
            if letter.whole is None and letter.value:
                was_sent = letter in self._marks
                self._marks.note(letter)
                if was_sent and not self._again:
                    self.before += 1
                    continue
            yield letter

    def sent(self) -> None:
        """All were."""
        self._marks.save()


class FolderMarks:
    """Of letters in a folder, or in a file of one."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the marks cannot be read, or not be written when something was sent.
        """
        self._path = (path if path.is_dir() else path.parent) / MARKS
        with open(self._path, "ab"):
            pass  # what cannot be remembered had better not be sent
        marks = self._path.read_bytes()
        starts = range(0, len(marks) - MARK_BYTES + 1, MARK_BYTES)
        self._sent = {marks[start : start + MARK_BYTES] for start in starts}
        self._new: dict[bytes, None] = {}

    def __contains__(self, letter: BadRecord) -> bool:
        return identity(letter) in self._sent

    def note(self, letter: BadRecord) -> None:
        mark = identity(letter)
        if mark not in self._sent:
            self._new[mark] = None

    def save(self) -> None:
        with open(self._path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another replay may have added some since, and may be about to
            size = os.fstat(file.fileno()).st_size
            file.truncate(size - size % MARK_BYTES)  # what a crash may have left of a mark
            file.write(b"".join(self._new))
            file.flush()
            os.fsync(file.fileno())


class TopicMarks:
    """Of letters in a topic. Kafka forgets committed offsets of groups that nobody reads with
    (``offsets.retention.minutes``, a week unless changed), as it does letters."""

    def __init__(
        self, servers: str, topic: str, client: Mapping[str, Any], reason: str | None, source: str | None
    ) -> None:
        """``reason``, ``source``: which letters are to be sent.

        Raises:
            SourceUnavailable: the cluster cannot be reached, or does not take the marks.
            ConfigError: it refuses the client, or the client its settings.
        """
        self._servers = servers
        self._topic = topic
        self._client = client
        self._begin = f"graphtide-replayed/{quote(topic, safe='')}/"
        self._choice = reason or "", source or ""
        self._group = self._begin + "/".join(quote(part, safe="") for part in self._choice)
        self._new: dict[int, int] = {}
        self._ends = self._ask(self._opened)

    def __contains__(self, letter: BadRecord) -> bool:
        if not isinstance(letter, TopicLetter):
            return False
        partition, offset = letter.at
        return any(
            reason in ("", letter.reason)
            and letter.partition.name.startswith(source)
            and offset < ends.get(partition, 0)
            for (reason, source), ends in self._ends.items()
        )

    def note(self, letter: BadRecord) -> None:
        if isinstance(letter, TopicLetter):
            partition, offset = letter.at
            self._new[partition] = max(self._new.get(partition, 0), offset + 1)

    def save(self) -> None:
        self._ask(self._commit)

    def _opened(self, admin: Any) -> dict[tuple[str, str], dict[int, int]]:
        ends = self._committed(admin)
        self._new = dict(ends.get(self._choice, {0: 0}))
        self._commit(admin)  # what cannot be remembered had better not be sent
        return ends

    def _committed(self, admin: Any) -> dict[tuple[str, str], dict[int, int]]:
        """Up to where letters were sent, by reason and source."""
        names = [group["group_id"] for group in admin.list_groups()]
        ours = [name for name in names if name.startswith(self._begin)]
        ends: dict[tuple[str, str], dict[int, int]] = {}
        for name in ours:
            reason, source = map(unquote, name.removeprefix(self._begin).split("/"))
            found = admin.list_group_offsets({name: None})[name]
            ends[reason, source] = {part.partition: at.offset for part, at in found.items()}
        return ends

    def _commit(self, admin: Any) -> None:
        from kafka import OffsetAndMetadata, TopicPartition
        from kafka.errors import NoError

        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(end, "", -1)
            for partition, end in self._new.items()
        }
        for error in admin.alter_group_offsets(self._group, offsets).values():
            if error is not NoError:
                raise error(f"group {self._group}")

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from contextlib import closing

        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        from ..ingest.kafka_client import command_error, command_options, connect

        try:
            with closing(connect(KafkaAdminClient, self._client, **command_options(self._servers))) as admin:
                return _in_time(lambda: question(admin))
        except KafkaError as error:
            raise command_error(self._servers, error, SourceUnavailable) from error


def _in_time(work: Callable[[], Any]) -> Any:
    """What it returns; a cluster that never had a group takes a while to make room for the first."""
    from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return work()
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            if time.monotonic() > deadline:
                raise
        time.sleep(COORDINATOR_PAUSE_S)
