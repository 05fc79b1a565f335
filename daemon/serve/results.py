"""Published results in shared memory: two copies of every program's columns, under a sequence lock.

The writer always writes the copy that readers do not use, then makes it the active one, so a reader has a
whole epoch's time to finish. What it writes are the entries that changed in the last two epochs (that
copy missed one), so publishing costs what changed. Each copy has a sequence number, odd while it is written: a
reader that finds it changed afterwards throws away what it read and tries again (the seqlock of Linux,
with two copies so that readers hardly ever meet the writer).

Layout of the memory: eight int64 words (``_MAGIC`` .. ``_META_BYTES``), then per copy the meta data
(MessagePack: epoch, offsets, scalars, states, stats) and the columns, each from a 64-byte boundary. When the
programs change, new memory of a new **generation** takes over. Columns have address space for all the vertices
that the machine's memory could hold, of which pages are taken as they are written, so that vertices never outgrow
them; where address space is not free, they have room for twice as many as there are, and grow as a new generation.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgpack
import numpy as np
import numpy.typing as npt

from ...compute.program import Column, Published
from ...gpma.copying import copy_column, copy_entries
from ...gpma.edges import MAX_VERTICES, Vertices
from ...gpma.team import ALONE, Crew
from ...partition.existence import living
from ..client.wire import Entries, entries_of, plain
from ..errors import Unavailable
from . import shared_memory
from .change_log import ChangeLogWriter
from .publication import ProgramPublication as ProgramPublication
from .publication import Publication as Publication
from .shared_memory import SharedArray, fence

T = TypeVar("T")

Pieces = Generator[None, None, T]
"""Work that others may interrupt wherever it yields; what it returns is its outcome."""

ALIGNMENT_BYTES = 64
CAPACITY_MIN = 1024
META_BYTES_MIN = 1 << 16
SCATTER_SHARE_MAX = 1 / 8
"""Past this share of changed entries one straight copy of the column is cheaper than scattered writes."""

READ_TRIES = 50
READ_PAUSE_S = 0.0002
PIECES_TRIES = 4
PIECES_SECONDS = 0.0001
"""So long does who reads in pieces keep others from the event loop."""

_MAGIC, _ACTIVE, _SEQUENCE, _META_LENGTH, _META_BYTES, _WORDS = 0, 1, 2, 4, 6, 8
_MAGIC_VALUE = 0x67745F726573_01

_GRAPH = ""
"""Under this name, which no program can have, the flags of vertices lie among the programs' columns: ``_ALIVE``,
and ``_GONE`` with the id of each program that stands still."""
_ALIVE, _GONE = "alive", "gone/"


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """A column in the memory: its program, name and dtype, and the byte offset of either copy."""

    program: str
    column: str
    dtype: str
    byte_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Where everything lies in one generation of the memory."""

    generation: int
    capacity: int
    meta_bytes: int
    meta_offsets: tuple[int, int]
    columns: tuple[ColumnPlace, ...]
    size_bytes: int

    def to_wire(self) -> dict[str, Any]:
        """As a MessagePack-able map."""
        return {
            "generation": self.generation,
            "capacity": self.capacity,
            "meta_bytes": self.meta_bytes,
            "meta_offsets": list(self.meta_offsets),
            "columns": [[c.program, c.column, c.dtype, list(c.byte_offsets)] for c in self.columns],
            "size_bytes": self.size_bytes,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> MemoryLayout:
        """The inverse of ``to_wire``."""
        return cls(
            generation=wire["generation"],
            capacity=wire["capacity"],
            meta_bytes=wire["meta_bytes"],
            meta_offsets=(wire["meta_offsets"][0], wire["meta_offsets"][1]),
            columns=tuple(
                ColumnPlace(program, column, dtype, (places[0], places[1]))
                for program, column, dtype, places in wire["columns"]
            ),
            size_bytes=wire["size_bytes"],
        )


def _plan(generation: int, capacity: int, meta_bytes: int, dtypes: Mapping[tuple[str, str], str]) -> MemoryLayout:
    """Lay out two copies of the columns of these dtypes for ``capacity`` vertices."""
    end = _WORDS * 8

    def take(size: int) -> int:
        nonlocal end
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = start + size
        return start

    meta_offsets = (take(meta_bytes), take(meta_bytes))
    columns = []
    for (program, column), dtype in dtypes.items():
        size = capacity * np.dtype(dtype).itemsize
        columns.append(ColumnPlace(program, column, dtype, (take(size), take(size))))
    return MemoryLayout(generation, capacity, meta_bytes, meta_offsets, tuple(columns), end)


class _Memory:
    """One generation of the memory, seen from either side."""

    def __init__(self, layout: MemoryLayout, data: npt.NDArray[np.uint8]) -> None:
        self.layout = layout
        self.data = data
        self.words = data[: _WORDS * 8].view(np.int64)
        self.meta = [data[start : start + layout.meta_bytes] for start in layout.meta_offsets]
        self.columns: list[dict[str, dict[str, Column]]] = [{}, {}]
        for place in layout.columns:
            dtype = np.dtype(place.dtype)
            for copy, start in enumerate(place.byte_offsets):
                column = data[start : start + layout.capacity * dtype.itemsize].view(dtype)
                self.columns[copy].setdefault(place.program, {})[place.column] = column


_ColumnKey = tuple[str, str]
_NOTHING: Vertices = np.empty(0, np.uint32)


class ResultsWriter:
    """Publishes epochs; one thread calls it."""

    def __init__(self, changes: ChangeLogWriter | None = None, crew: Crew = ALONE) -> None:
        """``changes``: where to write down what each publication changed. ``crew``: who copies whole columns."""
        self._changes = changes
        self._crew = crew
        self._memory: _Memory | None = None
        # What the epoch that is active now changed, and the inactive copy therefore misses (None: all of it).
        self._previous: dict[_ColumnKey, Vertices | None] = {}
        # Per copy: how many vertices each program had; None: the copy was never written, or only in part.
        self._n_vertices: list[dict[str, int] | None] = [None, None]
        self._scalars: dict[str, Mapping[str, float]] = {}
        # A publication that failed half-way told what changed, and nobody remembers: take everything anew.
        self._take_all = False

    @property
    def generation(self) -> int:
        """Rises when new memory takes over; 0 before the first publication."""
        return 0 if self._memory is None else self._memory.layout.generation

    @property
    def layout(self) -> MemoryLayout:
        """Where everything lies in the present memory; ``publish`` comes first."""
        assert self._memory is not None, "nothing was published yet"
        return self._memory.layout

    @property
    def fd(self) -> int:
        """The descriptor of the present memory; it stays open as long as the memory is in use."""
        assert self._memory is not None, "nothing was published yet"
        return SharedArray.of(self._memory.data).fd

    def memory_bytes(self) -> int:
        """Bytes of the present memory that were ever written."""
        return 0 if self._memory is None else os.fstat(self.fd).st_blocks * 512

    def published(self, program: str) -> Published:
        """A program's results as readers find them now: columns in place, good until the next ``publish``."""
        if self._memory is None:
            return Published({}, {}, 0)
        copy = int(self._memory.words[_ACTIVE])
        length = int(self._memory.words[_META_LENGTH + copy])
        meta = msgpack.unpackb(self._memory.meta[copy][:length].tobytes(), strict_map_key=False)
        found = meta["programs"].get(program, {"scalars": {}, "n_vertices": 0})
        return _published(self._memory.columns[copy].get(program, {}), found)

    def publish(self, publication: Publication, index_generation: int = 0) -> None:
        """Write one epoch and make it the active one.

        1. take new memory when this epoch does not fit; 2. mark the inactive copy odd; 3. bring its columns
        up to date: what the epoch before changed comes from the active copy, what this one changed from the
        program; 4. write its meta data; 5. mark it even; 6. write down what changed; 7. make it active. A failure
        leaves the epoch before published. ``index_generation``: readers need at least this generation of the
        vertex index.

        Raises:
            MemoryError, OSError: no memory to grow.
            ValueError: a column is shorter than ``n_vertices``.
            IndexError: a program says that it changed a vertex that does not exist.
        """
        given, publication = publication, _with_vertices(publication)
        _check(publication)
        n_active = self._active_counts()
        counts = {
            id: publication.n_vertices if program.is_fresh else n_active.get(id, 0)
            for id, program in publication.programs.items()
        }
        scalars = {
            id: program.scalars if program.is_fresh else self._scalars.get(id, {})
            for id, program in publication.programs.items()
        }
        log, take_all = self._changes, self._take_all
        sequence = 0 if log is None else log.sequence + 1
        meta = _pack_meta(publication, index_generation, sequence, counts, scalars)
        changed = _changed(publication, take_all=take_all)
        self._take_all = True
        before, memory = self._memory, self._fitting_memory(publication, len(meta))
        active = {} if before is None else before.columns[int(before.words[_ACTIVE])]
        words, copy = memory.words, 1 - int(memory.words[_ACTIVE])
        n_vertices = self._n_vertices
        if memory is not before:  # what is known of that one is of use until this one holds a whole epoch
            n_vertices = [None, None]
        words[_SEQUENCE + copy] |= 1
        fence()
        n_copy, n_vertices[copy] = n_vertices[copy], None
        for id, program in publication.programs.items():
            spans = _Spans(None if n_copy is None else n_copy.get(id, 0), n_active.get(id, 0), counts[id])
            for name, target in memory.columns[copy].get(id, {}).items():
                base = active.get(id, {}).get(name)
                if base is not None and base.dtype != target.dtype:
                    base = None
                source = program.columns[name] if program.is_fresh else None
                key = (id, name)
                missed, own = self._previous.get(key, _NOTHING), changed.get(key, _NOTHING)
                _update(target, base, source, spans, missed, own, self._crew)
        memory.meta[copy][: len(meta)] = np.frombuffer(meta, np.uint8)
        words[_META_LENGTH + copy] = len(meta)
        fence()
        words[_SEQUENCE + copy] += 1
        if log is not None:
            log.record(given, whole=take_all)
            fence()  # whoever sees the epoch sees its record, too
        words[_ACTIVE] = copy
        n_vertices[copy] = counts
        self._memory, self._previous, self._n_vertices = memory, changed, n_vertices
        self._scalars, self._take_all = scalars, False

    def _active_counts(self) -> dict[str, int]:
        if self._memory is None:
            return {}
        return self._n_vertices[int(self._memory.words[_ACTIVE])] or {}

    def _fitting_memory(self, publication: Publication, meta_length: int) -> _Memory:
        """The present memory, or new memory when columns, vertices or meta data do not fit into it."""
        dtypes = {
            (program_id, name): column.dtype.str
            for program_id, program in publication.programs.items()
            for name, column in program.columns.items()
        }
        capacity, meta_bytes = CAPACITY_MIN, META_BYTES_MIN
        if self._memory is not None:
            layout = self._memory.layout
            capacity, meta_bytes = layout.capacity, layout.meta_bytes
            present = {(place.program, place.column): place.dtype for place in layout.columns}
            fits = publication.n_vertices <= capacity and meta_length <= meta_bytes
            if fits and present == dtypes:
                return self._memory
        if meta_length > meta_bytes:
            meta_bytes = 2 * meta_length
        vertex_bytes = 2 * sum(np.dtype(dtype).itemsize for dtype in dtypes.values())
        reserved = min(MAX_VERTICES, shared_memory.reservable_bytes() // max(1, vertex_bytes))
        if publication.n_vertices <= reserved:
            capacity = reserved
        elif publication.n_vertices > capacity:
            capacity = 2 * publication.n_vertices
        layout = _plan(self.generation + 1, capacity, meta_bytes, dtypes)
        memory = _Memory(layout, shared_memory.allocate("results", layout.size_bytes, np.uint8))
        memory.words[_MAGIC] = _MAGIC_VALUE
        return memory


@dataclass(frozen=True, slots=True)
class _Spans:
    """Vertices of a program: in the copy to be written (None: nothing there counts), active, and now."""

    n_copy: int | None
    n_active: int
    n: int


def _update(
    target: Column,
    active: Column | None,
    source: Column | None,
    spans: _Spans,
    missed: Vertices | None,
    changed: Vertices | None,
    crew: Crew,
) -> None:
    """Bring one column of the inactive copy up to date.

    ``active``: the column as published (None: it is new); ``source``: the program's own (None: it failed,
    and nothing of it counts). New vertices are always copied, whether the program lists them or not.
    """
    n_active, n = spans.n_active, spans.n
    if source is not None and (active is None or changed is None):
        copy_column(target[:n], source[:n], crew)
        return
    if active is None:
        return
    if missed is None or spans.n_copy is None:
        copy_column(target[:n_active], active[:n_active], crew)
    else:
        target[spans.n_copy : n_active] = active[spans.n_copy : n_active]
        copy_entries(target, active, missed, crew)
    if source is not None:
        target[n_active:n] = source[n_active:n]
        if changed is not None:
            copy_entries(target, source, changed, crew)


def _published(columns: Mapping[str, Column], meta: Mapping[str, Any]) -> Published:
    """A program's columns as far as its meta data say: what is behind are pages that were never written."""
    n = meta["n_vertices"]
    return Published({name: column[:n] for name, column in columns.items()}, meta["scalars"], n)


def _with_vertices(publication: Publication) -> Publication:
    """The flags of vertices as one more program: they are kept up to date in the same way."""
    columns: dict[str, Column] = {}
    changed: dict[str, Vertices | None] = {}
    if publication.alive is not None:
        columns[_ALIVE], changed[_ALIVE] = publication.alive, publication.alive_changed
    for id, program in publication.programs.items():
        if program.gone is not None:
            columns[_GONE + id], changed[_GONE + id] = program.gone, program.gone_changed
    if not columns:
        return publication
    flags = ProgramPublication(_GRAPH, columns, changed)
    return replace(publication, programs={**publication.programs, _GRAPH: flags})


def _check(publication: Publication) -> None:
    for id, program in publication.programs.items():
        for name, column in program.columns.items():
            if program.is_fresh and column.size < publication.n_vertices:
                raise ValueError(
                    f"column {id}/{name}: {column.size} entries for {publication.n_vertices} vertices"
                )


def _changed(publication: Publication, *, take_all: bool) -> dict[_ColumnKey, Vertices | None]:
    """What this epoch changed; a copy, since a program may reuse its arrays in the next epoch."""
    limit = int(publication.n_vertices * SCATTER_SHARE_MAX)
    changed: dict[_ColumnKey, Vertices | None] = {}
    for id, program in publication.programs.items():
        if not program.is_fresh:
            continue
        if take_all:
            changed.update(dict.fromkeys((id, name) for name in program.columns))
            continue
        for name, indices in program.changed.items():
            if indices is None or indices.size > limit:
                changed[id, name] = None
            else:
                changed[id, name] = indices.astype(np.uint32)
    return changed


def _pack_meta(
    publication: Publication,
    index_generation: int,
    sequence: int,
    counts: Mapping[str, int],
    scalars: Mapping[str, Mapping[str, float]],
) -> bytes:
    packed: bytes = msgpack.packb(
        {
            "epoch": publication.epoch,
            "n_vertices": publication.n_vertices,
            "index_generation": index_generation,
            "sequence": sequence,
            "offsets": publication.offsets,
            "stats": msgpack.packb(publication.stats, default=plain),
            "coming": publication.coming,
            "programs": {
                id: {
                    "kind": program.kind,
                    "n_vertices": counts[id],
                    "scalars": scalars[id],
                    "state": program.state,
                }
                for id, program in publication.programs.items()
            },
        },
        default=plain,
    )
    return packed


@dataclass(frozen=True, slots=True)
class ProgramResults:
    """One program's results in a snapshot. ``gone``: as ``ProgramPublication`` has it."""

    kind: str
    published: Published
    state: Mapping[str, Any]
    gone: Column | None = None

    def knows(self, dense: Vertices) -> npt.NDArray[np.bool_]:
        """Which of these dense ids belong to the vertices that the results are about; ``NO_VERTEX`` does not."""
        known: npt.NDArray[np.bool_] = dense < self.published.n_vertices
        if self.gone is not None:
            known[known] = ~self.gone[dense[known]]
        return known


class Packed:
    """A map that few ask for, taken out of its bytes when the first one does."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._whole: Mapping[str, Any] | None = None

    def whole(self) -> Mapping[str, Any]:
        if self._whole is None:
            self._whole = msgpack.unpackb(self._packed, strict_map_key=False)
        return self._whole

    def entries(self) -> Entries:
        """What it holds, as it travels."""
        return entries_of(self._packed)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One published epoch. Its columns lie in shared memory and are good only within ``ResultsReader.read``.

    ``alive``: which dense ids below ``n_vertices`` are vertices (bool); None: all. ``sequence``: the number of its
    record in the log of changes (``change_log``). ``coming``: as ``Publication`` has it.
    """

    epoch: tuple[int, int]
    n_vertices: int
    offsets: Mapping[str, Any]
    index_generation: int
    sequence: int
    programs: Mapping[str, ProgramResults]
    statistics: Packed
    coming: Mapping[str, Mapping[str, Any]]
    alive: Column | None = None

    @property
    def stats(self) -> Mapping[str, Any]:
        """What the engine tells of itself."""
        return self.statistics.whole()

    @property
    def n_alive(self) -> int:
        """How many vertices there are; only within ``read``."""
        return self.n_vertices if self.alive is None else int(np.count_nonzero(self.alive))

    def known(self, dense: Vertices) -> Vertices:
        """These dense ids (below ``n_vertices``, or ``NO_VERTEX``), with ``NO_VERTEX`` for deleted vertices."""
        return dense if self.alive is None else living(dense, self.alive)


def copied(snapshot: Snapshot, id: str) -> Snapshot:
    """With copies of what it says of vertices and of one program, to be worked on at leisure."""
    programs = dict(snapshot.programs)
    result = programs.get(id)
    if result is not None:
        published = result.published
        n = published.n_vertices
        columns = {name: column[:n].copy() for name, column in published.columns.items()}
        gone = None if result.gone is None else result.gone.copy()
        programs[id] = replace(result, published=Published(columns, published.scalars, n), gone=gone)
    alive = None if snapshot.alive is None else snapshot.alive.copy()
    return replace(snapshot, programs=programs, alive=alive)


def at_once(pieces: Pieces[T]) -> T:
    """The outcome of work that nobody interrupts."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            outcome: T = end.value
            return outcome


class Overtaken(Unavailable):
    """Epochs follow each other faster than one is read."""


def _too_fast() -> Overtaken:
    return Overtaken("epochs follow each other too fast for this request; try again, or ask for less")


class ResultsReader:
    """Reads published epochs, in any process that was sent the memory. Threads may share it."""

    def __init__(self, layout: MemoryLayout, fd: int) -> None:
        """Take over ``fd``, the descriptor of the memory that ``layout`` describes.

        Raises:
            ValueError: the memory is not what the layout says.
        """
        data = shared_memory.attach(SharedArray(fd, 0, layout.size_bytes, "|u1"))
        self._memory = _Memory(layout, data)
        if self._memory.words[_MAGIC] != _MAGIC_VALUE:
            raise ValueError("this memory holds no results")
        self._words = self._memory.words.data  # of which a word is read in a third of the time
        self._known: tuple[int, int, Snapshot] | None = None

    @classmethod
    def beside(cls, writer: ResultsWriter) -> ResultsReader:
        """A reader in the writer's process, which maps nothing; ``publish`` comes first."""
        assert writer._memory is not None, "nothing was published yet"
        reader = cls.__new__(cls)
        reader._memory, reader._words, reader._known = writer._memory, writer._memory.words.data, None
        return reader

    @property
    def generation(self) -> int:
        return self._memory.layout.generation

    def read(self, use: Callable[[Snapshot], T], tries: int = READ_TRIES) -> T:
        """What ``use`` makes of one whole epoch; it may be called again when the epoch was overwritten.

        ``use`` must return copies: views of the columns change under the caller's hands. What it raises
        counts only if the epoch was whole.

        Raises:
            Overtaken: epochs follow each other faster than ``use`` reads them.
        """
        for attempt in range(tries):
            if attempt > READ_TRIES // 2:
                time.sleep(READ_PAUSE_S)
            begun = self._begun()
            if begun is None:
                continue
            failure: Exception | None = None
            try:
                snapshot = self._snapshot(*begun)
                outcome = use(snapshot)
            except Exception as error:
                failure = error
            if not self._is_whole(*begun):
                continue
            if failure is not None:
                raise failure
            self._known = (*begun, snapshot)
            return outcome
        raise _too_fast()

    async def read_in_pieces(self, use: Callable[[Snapshot], Pieces[T]]) -> T:
        """As ``read``, on the event loop: where ``use`` yields, others may have their turn.

        Raises:
            Overtaken: the epoch is overwritten meanwhile, again and again; a thread reads faster.
        """
        for _ in range(PIECES_TRIES):
            begun = self._begun()
            if begun is None:
                continue
            failure: Exception | None = None
            try:
                outcome = await self._in_turns(begun, use(self._snapshot(*begun)))
            except Exception as error:
                failure = error
            if not self._is_whole(*begun):
                continue
            if failure is not None:
                raise failure
            return outcome
        raise _too_fast()

    async def _in_turns(self, begun: tuple[int, int], pieces: Pieces[T]) -> T:
        turn_ends = time.perf_counter() + PIECES_SECONDS
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            if time.perf_counter() > turn_ends:
                await asyncio.sleep(0)
                if not self._is_whole(*begun):
                    raise _too_fast()
                turn_ends = time.perf_counter() + PIECES_SECONDS

    def _begun(self) -> tuple[int, int] | None:
        """The copy to be read now, and its number; None: it is being written."""
        copy = self._words[_ACTIVE]
        sequence = self._words[_SEQUENCE + copy]
        fence()
        return None if sequence & 1 else (copy, sequence)

    def _is_whole(self, copy: int, sequence: int) -> bool:
        """Nothing was written there since it had this number."""
        fence()
        return self._words[_SEQUENCE + copy] == sequence

    def snapshot(self) -> Snapshot:
        """The meta data of the newest epoch; of its columns nothing may be read."""
        return self.read(lambda snapshot: snapshot)

    def _snapshot(self, copy: int, sequence: int) -> Snapshot:
        known = self._known
        if known is not None and known[:2] == (copy, sequence):
            return known[2]
        length = int(self._memory.words[_META_LENGTH + copy])
        meta = msgpack.unpackb(self._memory.meta[copy][:length].tobytes(), strict_map_key=False)
        n_vertices = meta["n_vertices"]
        columns = self._memory.columns[copy]
        flags = columns.get(_GRAPH, {}) if _GRAPH in meta["programs"] else {}
        return Snapshot(
            epoch=(meta["epoch"][0], meta["epoch"][1]),
            n_vertices=n_vertices,
            offsets=meta["offsets"],
            index_generation=meta["index_generation"],
            sequence=meta["sequence"],
            statistics=Packed(meta["stats"]),
            coming=meta["coming"],
            alive=flags[_ALIVE][:n_vertices] if _ALIVE in flags else None,
            programs={
                id: ProgramResults(
                    program["kind"],
                    _published(columns.get(id, {}), program),
                    program["state"],
                    flags[_GONE + id][:n_vertices] if _GONE + id in flags else None,
                )
                for id, program in meta["programs"].items()
                if id != _GRAPH
            },
        )
