"""From the bytes of records to checked columns of updates; whatever cannot be decoded is set aside, never raised.

A MessagePack record or a JSON document of the wrong form is bad as a whole. Where its form is right, every row is
good or bad by itself: a bad one becomes a ``BadRecord`` that holds a record of this row in the same encoding, and
its number in the header ``ROW``. In line formats (CSV, edge lists, JSON lines) so is every line: a bad one
becomes a ``BadRecord`` at its own byte offset in a spool file, at the offset of the record that held it in Kafka.
Of CSV with a header line it has that line as the header ``HEADER_LINE``: without it nobody could tell its columns.

The header of a CSV file is its first line, and the decoder keeps it while it reads on. For a restart in the middle
of a file the spool source gives that line along with every later block, as the record header ``HEADER_LINE``. It
says with ``IN_PREAMBLE`` which blocks of a MatrixMarket file begin before its edges do, so that what a block means
depends on nothing that was read before.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from ...gpma.memory import Memory, Trickle
from ...partition.weights import WeightDomain
from ..records.barrier import barrier_id
from ..records.encodings import (
    BARRIER,
    ENCODINGS,
    HEADER_LINE,
    IN_PREAMBLE,
    LINES,
    OBJECTS,
    PLACED_BY_KEY,
    REGISTERED,
    Encoding,
)
from ..records.event_time import NO_TIME
from ..records.stream import BadRecord, Decoded, Partition, RawRecord, UpdateBlock
from . import decode_text, matrix_market
from .arrow_extra import NEEDS_PYARROW, is_readable
from .decode_columns import Bad, Reason, Rules, concatenate, finish
from .decode_debezium import CAPTURED, Changes, json_key
from .decode_json_lines import is_json_lines, json_lines
from .decode_keyed import Keyed
from .decode_records import (
    Edge,
    JsonForm,
    decode_document,
    decode_json,
    decode_msgpack,
    load_json,
    one_each,
    plain_edge,
)
from .decode_registry import Registered
from .decode_runs import JoinedLines, one_block, pieces
from .decode_text import (
    EDGE_LIST,
    LineLayout,
    Lines,
    csv_layout,
    numbered_lines,
)
from .letters import bad_lines, bad_row, bad_value, room_of, with_header_line
from .named_columns import NamedColumns
from .registry import Registry, RegistryAway
from .sift import Sifted, bad_parts

if TYPE_CHECKING:  # compiled, and few need it
    from .row_keys import KeyHash

REASONS = tuple(reason.value for reason in Reason)
"""Every reason code that a ``BadRecord`` may carry."""

_DELIMITERS = ",;|\t"
"""Those that files are known to have; a header line that names columns with another one is told of it."""

_ALIKE = attrgetter("partition", "encoding", "refused")
"""What records have in common that may be read together."""


class Decoder:
    """Decodes for one graph. Keeps what the beginning of each spool file said, until ``forget``."""

    def __init__(
        self,
        vertex_ids: Literal["int", "string"] = "int",
        weights: WeightDomain = "non-negative",
        self_loops: Literal["keep", "drop"] = "keep",
        default_encoding: Encoding = "msgpack",
        csv_columns: Sequence[str] | None = None,
        csv_delimiter: str = ",",
        updates_max: int = 1 << 24,
        line_bytes_max: int = 1 << 20,
        compiled_from: int = 0,
        columns: NamedColumns | None = None,
        registry: Registry | None = None,
        compacted: bool = False,
        keyed: KeyHash | None = None,
        memory: Memory | None = None,
        directed: bool = True,
    ) -> None:
        """``csv_columns``: the columns of CSV that has no header lines, by our names; ``default_encoding``: of
        records that name none; ``columns``: what producers call them in JSON, header lines and captured tables;
        ``updates_max``: updates in one record; ``line_bytes_max``: bytes in one line;
        ``compiled_from``: from so many bytes of lines on it pays to load the compiled parser; ``registry``: has
        the schemas of records that name theirs; ``compacted``: topics are, so that of changes of tables a
        tombstone may be all that is left. ``keyed``: the key of a record stands for its edge, and is hashed so.
        ``memory``: who is asked for that of bad rows; None: the system's. ``directed``: the graph is, of which a
        symmetric matrix would hold one half.

        Raises:
            ValueError: an encoding, a column or the delimiter is none.
        """
        if default_encoding not in ENCODINGS:
            raise ValueError(f"encoding must be one of {', '.join(ENCODINGS)}, not {default_encoding!r}")
        decode_text.check_delimiter(csv_delimiter)
        self._rules = Rules(vertex_ids, weights, self_loops == "drop", updates_max, line_bytes_max)
        self._default_encoding = default_encoding
        self._directed = directed
        self._compiled_from = compiled_from
        self._delimiter = csv_delimiter
        self._keyed = None if keyed is None else Keyed(keyed, vertex_ids)
        if columns is not None:
            columns = replace(columns, keyed=keyed is not None)
        self._columns = columns
        self._json = JsonForm(plain_edge if columns is None else columns.edge, one_each)
        names = CAPTURED if columns is None else columns
        self._changes = Changes(names, compacted=compacted, keyed=keyed is not None)
        self._registered = Registered(registry, columns, self._changes)
        self._fixed_layout: LineLayout | None = None
        if csv_columns:
            try:
                layout = csv_layout(csv_delimiter.join(csv_columns).encode(), csv_delimiter)
            except Bad as bad:
                raise ValueError(f"csv_columns: {bad.detail}") from None
            self._fixed_layout = layout if columns is None else replace(layout, op_values=columns.op_values)
        self._layouts: dict[Partition, LineLayout | Bad] = {}
        self._letters = Trickle(memory or Memory())

    @property
    def lookups(self) -> Mapping[str, int]:
        """How often the registry was asked for an id, by what came of it. Any thread may ask."""
        return self._registered.lookups

    def forget(self, partition: Partition) -> None:
        """Drop what is known of a spool file that is gone."""
        self._layouts.pop(partition, None)

    def decode_all(self, records: Sequence[RawRecord]) -> list[Decoded]:
        """All in order: each by itself, but those of few edges each (JSON, records of a registry, lines) that
        follow each other in one partition of a topic as one, which begins where the first does and ends with the
        last, and has the time of the first.

        Raises:
            MemoryError: as ``decode``.
            RegistryAway: a schema that is needed cannot be had now; nothing is done yet.
        """
        decoded: list[Decoded] = []
        for (partition, given, refused), group in groupby(records, _ALIKE):
            some = [*group]
            encoding = given or self._default_encoding
            of_few = encoding in REGISTERED or (encoding in OBJECTS | LINES and partition.number is not None)
            if self._keyed is not None:
                of_few = encoding in OBJECTS | REGISTERED
            if of_few and refused is None:
                for piece in pieces(some):
                    decoded += self._run(piece, encoding) if len(piece) > 1 else [self.decode(piece[0])]
            else:
                decoded += map(self.decode, some)
        return decoded

    def each_alone(self, decoded: Sequence[Decoded], records: Sequence[RawRecord]) -> list[Decoded]:
        """``decode_all`` of these records gave this: each of them by itself.

        Raises:
            MemoryError, RegistryAway: as ``decode_all``.
        """
        apart, left = list[Decoded](), iter(records)
        for item in decoded:
            some = [next(left)]
            while some[-1].next_offset < item.record.next_offset:
                some.append(next(left))
            apart += map(self.decode, some) if len(some) > 1 else [item]
        return apart

    def accept_until(self, latest_ms: int) -> None:
        """From now on inserts must have a time, and nothing may have a later one (milliseconds since 1970)."""
        self._rules = replace(self._rules, latest_ms=latest_ms)

    def _time_of(self, record: RawRecord) -> int:
        """What updates have as their time that give none."""
        return record.timestamp_ms if record.timed or self._rules.latest_ms is None else NO_TIME

    def decode(self, record: RawRecord) -> Decoded:
        """The good updates and the bad rest.

        Raises:
            MemoryError: nothing can be said about the record; whatever else is wrong makes it a bad one.
            RegistryAway: its schema cannot be had now.
        """
        value = record.value
        if record.refused is not None:
            return Decoded(record, None, (record.refused,))
        try:
            encoding = record.encoding or self._default_encoding
            if self._keyed is not None and encoding != BARRIER:
                return self._by_key(self._keyed, [record], encoding)
            return self._tombstone(record) if value is None else self._decode(record, value)
        except Bad as bad:
            return Decoded(record, None, (bad_value(record, bad),))
        except (MemoryError, RegistryAway):  # says nothing about the record
            raise
        except Exception as error:  # whatever it is, one record must not stop the stream
            return Decoded(record, None, (bad_value(record, _internal(error)),))

    def _run(self, records: Sequence[RawRecord], encoding: str) -> list[Decoded]:
        """Records of one partition and encoding, together where they can be."""
        read = self._lines_together if encoding in LINES else self._objects_together
        try:
            return [*read(records, encoding)]
        except (MemoryError, RegistryAway):
            raise
        except Exception:  # whose fault it is shows when each is read by itself
            return [*map(self.decode, records)]

    def _objects_together(self, records: Sequence[RawRecord], encoding: str) -> Iterator[Decoded]:
        """Records of a registry; of JSON all but those of several lines, or many updates."""
        if self._keyed is not None:
            yield self._by_key(self._keyed, records, encoding)
            return
        events = encoding in PLACED_BY_KEY
        made: list[list[Edge] | Bad] = []
        alone: dict[int, Decoded] = {}
        if encoding in REGISTERED:
            made = self._registered.edges(records, events=events)
        else:
            for row, record in enumerate(records):
                outcome = self._object(record, events=events)
                if isinstance(outcome, Decoded):
                    alone[row], outcome = outcome, []
                made.append(outcome)
        begin = 0
        for row in (*alone, len(records)):
            if begin < row:
                yield self._together(records[begin:row], made[begin:row])
            if row in alone:
                yield alone[row]
            begin = row + 1

    def _by_key(self, keyed: Keyed, records: Sequence[RawRecord], encoding: str) -> Decoded:
        """Records of one partition whose keys stand for edges.

        Raises:
            Bad: none of this encoding can be used.
        """
        keyed.require_one_edge(encoding)
        events = encoding in PLACED_BY_KEY
        if encoding in REGISTERED:
            made = self._registered.edges(records, events=events)
        else:
            made = [self._one_edge(keyed, record, events=events) for record in records]
        return self._together(records, [*map(keyed.of, records, made)])

    def _one_edge(self, keyed: Keyed, record: RawRecord, *, events: bool) -> list[Edge] | Bad:
        """The edge that a record of JSON stands for, none where it has no value, or why it is bad."""
        if record.value is None:
            return []
        try:
            document = load_json(record.value)
            if events:
                return self._changes.edges(document, partial(json_key, record.key))
            return keyed.one(self._json.read(document))
        except Bad as bad:
            return bad

    def _object(self, record: RawRecord, *, events: bool) -> list[Edge] | Bad | Decoded:
        """The edge objects that a record of JSON stands for, or why it is bad; of one of several lines, or many
        updates, what it comes to."""
        value = record.value
        if value is None:
            return self._gone(record) if events else []
        if b"\n" in value and b"\n" in value.strip(b" \t\n"):  # of several lines
            return self.decode(record)
        try:
            document = load_json(value)
            if events:
                edges = self._changes.edges(document, partial(json_key, record.key))
            elif (edge := self._json.read(document)) is not None:
                edges = [edge]
            else:
                return self._whole(record, decode_document(document, self._rules, self._time_of(record)))
        except Bad as bad:
            return bad
        return edges

    def _together(self, records: Sequence[RawRecord], made: Sequence[list[Edge] | Bad]) -> Decoded:
        for record, edges in zip(records, made, strict=True):
            for edge in () if isinstance(edges, Bad) else edges:
                edge.setdefault("ts", self._time_of(record))
        block, bad = one_block(made, self._rules)
        if block is not None and self._keyed is not None:
            refused = {row for row, _ in bad}
            block = self._keyed.named(block, [one for row, one in enumerate(records) if row not in refused])
        letters = [bad_value(records[row], why) for row, why in bad]
        return self._finished(records, [] if block is None else [block], letters)

    def _lines_together(self, records: Sequence[RawRecord], encoding: str) -> Iterator[Decoded]:
        """Those of one header line and time."""
        for (header, timestamp_ms), group in groupby(records, partial(self._header, encoding)):
            some = [*group]
            layout: LineLayout | Bad | None = None
            if header is not None and len(some) > 1:
                layout = EDGE_LIST if encoding == "el" else self._fixed_layout or self._layout(header)
            if header is None or layout is None or isinstance(layout, Bad):
                yield from map(self.decode, some)
                continue
            joined = JoinedLines([(record.value or b"")[len(header) :] for record in some])
            lines = self._parse(joined.text, 0, layout, timestamp_ms)
            letters: list[BadRecord] = []
            for row, bad in joined.bad_by_record(lines).items():
                text = (some[row].value or b"")[len(header) :]
                named = with_header_line(some[row], header)
                letters += bad_lines(named, text, bad, room_of(named, self._letters))
            yield self._finished(some, lines.blocks, letters)

    def _header(self, encoding: str, record: RawRecord) -> tuple[bytes | None, int]:
        """A record's header line (empty: it needs none), and its time. None: it is read by itself."""
        value, header = record.value, b""
        if value is None or (encoding == "el" and matrix_market.begins(value)):
            return None, self._time_of(record)
        if encoding == "csv" and self._fixed_layout is None:
            header = value[: value.find(b"\n") + 1 or len(value)]
        return header, self._time_of(record)

    def _finished(
        self, records: Sequence[RawRecord], blocks: Sequence[UpdateBlock], letters: Sequence[BadRecord]
    ) -> Decoded:
        """What records came to that were read together."""
        whole = replace(records[0], next_offset=records[-1].next_offset)
        if not blocks:
            return Decoded(whole, None, letters)
        block, dropped = finish(concatenate(blocks), self._rules)
        return Decoded(whole, block, letters, dropped)

    def _decode(self, record: RawRecord, value: bytes) -> Decoded:
        encoding = record.encoding or self._default_encoding
        if encoding == BARRIER:
            return self._barrier(record, value)
        if encoding == "msgpack":
            return self._whole(record, decode_msgpack(value, self._rules, self._time_of(record)))
        if encoding == "arrow":
            if not is_readable():
                raise Bad(Reason.UNKNOWN_ENCODING, NEEDS_PYARROW)
            from .decode_arrow import decode_arrow

            return self._whole(record, decode_arrow(value, self._rules, self._time_of(record)))
        if encoding in REGISTERED:
            events = encoding in PLACED_BY_KEY
            return self._together([record], self._registered.edges([record], events=events))
        if encoding != "csv" and record.offset == 0 and record.partition.number is None:
            value = _without_mark(value)
        if encoding in OBJECTS:
            form = self._json if encoding == "json" else self._changes_in(record)
            if record.partition.number is not None and not is_json_lines(value):
                return self._whole(record, decode_json(value, form, self._rules, self._time_of(record)))
            return self._lines(record, value, json_lines(value, form, self._rules, self._time_of(record)))
        if encoding == "csv":
            return self._lines(record, value, *self._csv(record, value))
        if encoding == "el":
            begin = self._edge_list_begin(record, value)
            return self._lines(record, value, self._parse(value, begin, EDGE_LIST, self._time_of(record)))
        raise Bad(Reason.UNKNOWN_ENCODING, f"encoding {encoding[:80]!r}; known are {', '.join(ENCODINGS)}")

    def _tombstone(self, record: RawRecord) -> Decoded:
        """Nothing, but of a table's changes in a compacted topic the deletion of what its key names."""
        encoding = record.encoding or self._default_encoding
        if not (encoding in PLACED_BY_KEY and self._changes.compacted):
            return Decoded(record, None)
        registered = encoding in REGISTERED
        made = self._registered.edges([record], events=True) if registered else [self._gone(record)]
        return self._together([record], made)

    def _gone(self, record: RawRecord) -> list[Edge] | Bad:
        try:
            return self._changes.edges(None, partial(json_key, record.key))
        except Bad as bad:
            return bad

    def _changes_in(self, record: RawRecord) -> JsonForm:
        """A change may be of two edges."""
        return JsonForm(
            lambda document: self._changes.edges(document, lambda: json_key(record.key)),
            lambda changes: [*chain.from_iterable(changes)],
        )

    def _barrier(self, record: RawRecord, value: bytes) -> Decoded:
        """No updates: what a barrier orders is for whoever reads the partitions."""
        try:
            barrier_id(value)
        except ValueError as error:
            raise Bad(Reason.BAD_BARRIER, str(error)) from None
        return Decoded(record, None)

    def _whole(self, record: RawRecord, sifted: Sifted) -> Decoded:
        bad: list[BadRecord] = []
        if sifted.refused:
            bad = [bad_row(record, 0, part) for part in bad_parts(sifted.refused, room_of(record, self._letters))]
        if sifted.block is None:
            return Decoded(record, None, bad)
        block, dropped = finish(sifted.block, self._rules)
        return Decoded(record, block, bad, dropped)

    def _lines(self, record: RawRecord, value: bytes, lines: Lines, header: bytes = b"") -> Decoded:
        bad: list[BadRecord] = []
        if lines.bad or lines.parts:
            named = with_header_line(record, header)
            bad = bad_lines(named, value, lines, room_of(named, self._letters))
        if not lines.blocks:
            return Decoded(record, None, bad)
        block, dropped = finish(concatenate(lines.blocks), self._rules)
        return Decoded(record, block, bad, dropped)

    def _csv(self, record: RawRecord, value: bytes) -> tuple[Lines, bytes]:
        """What its lines come to, and the header line that its value begins with, if it does."""
        layout: LineLayout | Bad | None = self._fixed_layout
        header = b""
        of_file = record.partition.number is None
        marked = of_file and record.offset == 0 and value.startswith(codecs.BOM_UTF8)
        begin = len(codecs.BOM_UTF8) if marked else 0
        if layout is None and (not of_file or record.offset == 0):
            begin = value.find(b"\n") + 1 or len(value)
            header = value[:begin]
            layout = self._layout(header)
            if of_file:
                self._layouts[record.partition] = layout
            elif isinstance(layout, Bad):
                raise layout
        if layout is None:
            layout = self._layout_of_file(record)
        if isinstance(layout, Bad):
            # Without a header no line means anything: the header line is bad, and so is every other.
            return Lines(bad=[(start, end, layout) for start, end in numbered_lines(value)]), b""
        return self._parse(value, begin, layout, self._time_of(record)), header

    def _layout(self, header: bytes) -> LineLayout | Bad:
        try:
            return csv_layout(header, self._delimiter, self._columns)
        except Bad as bad:
            for other in _DELIMITERS:
                with suppress(Bad):
                    csv_layout(header, other, self._columns)
                    setting = f"source.csv_delimiter = {json.dumps(other)}"
                    return Bad(bad.reason, f"{bad.detail}. With {setting} it does")
            return bad

    def _parse(self, value: bytes, begin: int, layout: LineLayout, timestamp_ms: int) -> Lines:
        plain = self._rules.vertex_ids == "int" and not layout.op_values
        if plain and len(value) - begin >= self._compiled_from:
            from . import decode_compiled

            return decode_compiled.parse_lines(value, begin, layout, self._rules, timestamp_ms)
        return decode_text.parse_lines(value, begin, layout, self._rules, timestamp_ms)

    def _layout_of_file(self, record: RawRecord) -> LineLayout | Bad:
        """The layout of the file in whose middle this block stands."""
        known = self._layouts.get(record.partition)
        if known is None:
            header = dict(record.headers).get(HEADER_LINE)
            if header is None:
                return Bad(Reason.BAD_COLUMN, "the file's header line is not known")
            known = self._layouts[record.partition] = self._layout(header)
        return known

    def _edge_list_begin(self, record: RawRecord, value: bytes) -> int:
        """Where the edges begin: MatrixMarket files have a line of sizes after their comments.

        Raises:
            Bad: it is a matrix that is no graph.
        """
        first = record.partition.number is not None or record.offset == 0
        if not (matrix_market.begins(value) if first else IN_PREAMBLE in dict(record.headers)):
            return 0
        if first and (why := matrix_market.refusal(value, directed=self._directed)) is not None:
            raise Bad(Reason.MALFORMED, why)
        begin = matrix_market.edges_begin(value)
        return len(value) if begin is None else begin


def _without_mark(value: bytes) -> bytes:
    """The beginning of a file with blanks for the byte-order mark that some programs put there."""
    return b"   " + value[3:] if value.startswith(codecs.BOM_UTF8) else value


def _internal(error: Exception) -> Bad:
    return Bad(Reason.INTERNAL, f"{type(error).__name__}: {error}"[:500])


def warm_up(vertex_ids: Literal["int", "string"] = "int", *, registry: bool = False, keyed: bool = False) -> None:
    """Compile what decoding needs, or load it from the cache. ``registry``: also records of a registry; ``keyed``:
    and keys."""
    if keyed:
        from . import row_keys

        row_keys.warm_up()
    if vertex_ids == "int":
        from . import decode_compiled

        decode_compiled.warm_up()
    if registry:
        from . import avro, protobuf

        avro.warm_up()
        protobuf.warm_up()
