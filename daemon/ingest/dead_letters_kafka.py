"""Dead letters to a Kafka topic, by way of files for when it is away.

Everything goes through the files of ``dead_letters``: first written there, then sent, and a segment is deleted
once all it holds is acknowledged. So an outage or a restart loses nothing, and ``flush`` only has to sync a file.
Letters that the topic refuses for their size, and what is no letter, stay in ``undeliverable-<number>.msgpack``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from ..backoff import Backoff
from ..os_errors import said
from ..records.spool_format import SpoolWriter
from ..records.stream import BadRecord
from .dead_letters import (
    SEGMENT,
    SEGMENT_BYTES,
    UNDELIVERABLE,
    FileDeadLetters,
    letters,
    new_segment,
    segments,
    source_of,
    unpack_letter,
)
from .kafka_client import KafkaLink

log = logging.getLogger(__name__)

CLOSE_SECONDS_MAX = 5.0
"""How long ``close`` waits for letters to be sent; what is under way is broken off then."""

_SEND_AT_ONCE = 100
_SEND_BYTES = 16 << 20
"""So many letters are in memory on their way, and so many bytes of them, or one that is larger."""
_ACKNOWLEDGE_S = 30.0
_BLOCK_S = 10.0
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class KafkaDeadLetters(FileDeadLetters):
    """Dead letters to a topic, by way of files. Any thread may call it."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str] | str,
        topic: str,
        spill_path: Path | str,
        *,
        client: Mapping[str, Any] | None = None,
        bytes_max: int = 1 << 30,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """See ``FileDeadLetters``; ``client`` is passed to kafka-python as it is. No broker is needed yet."""
        super().__init__(spill_path, bytes_max=bytes_max, segment_bytes=segment_bytes)
        self.servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self.topic = topic
        self.client = dict(client or {})
        self.sent = 0
        self.outages = 0
        self._away = False
        self._producer = KafkaLink(
            KafkaProducer,
            self.client,
            bootstrap_servers=list(self.servers),
            acks="all",
            # An idempotent producer gives up on all that is under way when one record is too large.
            enable_idempotence=False,
            max_request_size=128 << 20,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            max_block_ms=int(_BLOCK_S * 1000),
            delivery_timeout_ms=int(_ACKNOWLEDGE_S * 1000),
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=5000,
        )
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._work = threading.Event()
        self._work.set()
        self._read: dict[Path, int] = {}
        self._damaged: set[Path] = set()  # segments with letters that were left out
        self._sender = threading.Thread(target=self._run, name="dead-letters", daemon=True)
        self._sender.start()

    def write(self, bad: Sequence[BadRecord]) -> None:
        try:
            super().write(bad)
        finally:
            self._work.set()  # also where there was no room: what is in the files must be sent to make some

    def close(self) -> None:
        """Give what waits a moment to be sent; the rest is sent after the next start."""
        self._closing.set()
        self._work.set()
        self._sender.join(CLOSE_SECONDS_MAX)
        self._abandoned.set()
        self._producer.break_off()
        self._sender.join(_BLOCK_S)  # all that it may wait for ends now, or by then
        super().close()

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._work.wait()
            self._work.clear()
            closing = self._closing.is_set()
            if self._abandoned.is_set():  # the files may belong to somebody else by now
                break
            try:
                while self._send_some():
                    backoff.reset()
                self._answers()
            except Exception as error:  # whatever it is, the letters are safe in their files: try again
                self._fails(error)
                if not closing:
                    self._closing.wait(backoff.wait_s())
                    self._work.set()
            if closing:
                break
        self._producer.close()

    def _send_some(self) -> bool:
        """Send the oldest letters that wait, and return once they are acknowledged; False when none do.

        1. Read up to a hundred letters, and not many bytes, behind those that are done.
        2. Send them, and wait for every answer.
        3. Put what is refused for its size, or is no letter, aside, synced.
        4. Only now count them as done; a segment that is done is deleted, the one in use is closed first.

        Raises:
            KafkaError: one was not acknowledged. All of them are sent again.
        """
        for segment in segments(self.path, SEGMENT):
            with self._lock:  # asked before reading: only a segment that was closed by then was read to its end
                in_use = self._writer is not None and self._writer.path == segment
            batch, n_bytes = list[tuple[int, bytes]](), 0
            damaged = partial(self._damaged.add, segment)
            for stop, payload in letters(segment, self._read.get(segment, 0), damaged):
                batch.append((stop, payload))
                n_bytes += len(payload)
                if len(batch) == _SEND_AT_ONCE or n_bytes >= _SEND_BYTES:
                    break
            if batch:
                self._deliver([payload for _, payload in batch])
                self._read[segment] = batch[-1][0]
                return True
            self._drop(segment, in_use)
        return False

    def _drop(self, segment: Path, in_use: bool) -> None:
        """Delete a segment of which nothing is left to send, unless it was written to since we looked."""
        with self._lock:
            if in_use:
                writer = self._writer
                if writer is None or writer.path != segment or writer.offset > self._read.get(segment, 0):
                    self._work.set()
                    return
                writer.give_up(writer.offset)  # all of it was acknowledged: no disk needs to have it
                self._writer = None
                self._unsynced.clear()
            rest = segment.stat().st_size - self._read.pop(segment, 0)
            if rest > 0 or segment in self._damaged:
                # Damaged, or cut short when we died: whoever can read more of it shall have it.
                aside = segment.with_name(f"damaged-{segment.name}")
                what = f"the last {rest} bytes" if rest > 0 else "some bytes"
                log.error("%s of %s are no letters; it is now %s", what, segment, aside.name)
                segment.rename(aside)
                self._damaged.discard(segment)
            else:
                segment.unlink()

    def _deliver(self, payloads: Sequence[bytes]) -> None:
        producer = self._producer.client()
        refused, others = list[bytes](), list[bytes]()
        waiting = []
        for payload in payloads:
            try:
                letter = unpack_letter(payload)
            except ValueError:  # of another folder, say, or of a later version
                others.append(payload)
                continue
            try:
                waiting.append((payload, self._send(producer, letter)))
            except _TOO_LARGE:
                refused.append(payload)
        for payload, future in waiting:
            try:
                future.get(timeout=_ACKNOWLEDGE_S)
            except _TOO_LARGE:
                refused.append(payload)
        if refused:
            self._set_aside(refused, f"bad records are too large for topic {self.topic}")
        if others:
            self._set_aside(others, "records are no bad records that we can read")
        self.sent += len(payloads) - len(refused) - len(others)

    def _send(self, producer: KafkaProducer, bad: BadRecord) -> Any:
        headers = [
            *bad.headers,
            ("graphtide-error", bad.reason.encode()),
            ("graphtide-error-detail", bad.detail.encode()),
            ("graphtide-source", source_of(bad).encode()),
        ]
        if bad.whole is not None:
            headers += [
                ("graphtide-value-bytes", str(bad.whole.bytes).encode()),
                ("graphtide-value-crc32c", str(bad.whole.crc32c).encode()),
            ]
        return producer.send(self.topic, value=bad.value, key=bad.key, headers=headers)

    def _set_aside(self, payloads: Sequence[bytes], why: str) -> None:
        log.error("%d %s; kept in %s", len(payloads), why, self.path)
        writer = SpoolWriter(self.path, name=new_segment(self.path, UNDELIVERABLE))
        try:
            for payload in payloads:
                writer.append(payload)
            writer.close()
        except OSError:  # all of them come again
            writer.give_up(0)
            raise

    def _fails(self, error: BaseException) -> None:
        if not self._away:
            self._away = True
            self.outages += 1
            log.error(
                "bad records cannot be sent to topic %s (%s); they wait in %s",
                *(self.topic, said(error), self.path),
            )
        self._producer.close()

    def _answers(self) -> None:
        if self._away:
            self._away = False
            log.info("bad records can be sent to topic %s again", self.topic)
