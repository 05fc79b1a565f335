"""Loading: files become the first checkpoint, from which ``run`` goes on with the stream.

The graph is what it would be had the same updates been streamed in the order of the files, but nothing is computed
on the way: edges are numbered, put in order by all threads, and written. Memory is asked for before it is taken.
"""

from __future__ import annotations

import json as encoder
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...gpma.edges import EdgeBatch, EdgeList, Op, Weights, destinations, pack, sources, transpose
from ...gpma.index.vertex_index import VertexIndex
from ...gpma.kernel_cache import MISSING, listening
from ...gpma.memory import Memory, Trickle
from ...gpma.runtime import cache_directory
from ...partition.graph import Graph
from ..config.settings import Config
from ..errors import CheckpointError, ConfigError, NotWritten, SourceError, SourceUnavailable
from ..ingest.decode_columns import Reason, select
from ..ingest.dense import dense_batch
from ..ingest.named_columns import NamedColumns
from ..ingest.sources import make_source
from ..memory import WithinBudget
from ..os_errors import why
from ..records.event_time import NO_TIME, UNLIMITED
from ..records.stream import Offsets, Source, UpdateBlock, offsets_from_wire, offsets_to_wire
from ..serve.shared_memory import allocate_within
from ..state.checkpoint import Checkpoint, CheckpointStore
from ..terminal import errors, progress
from .files import STANDARD_INPUT, Accepts, BadInput, LeftOut, read_columns
from .loaded_times import LoadedTimes
from .produce import REFUSED, report_left_out

ANSWER_SECONDS = 30.0
"""So long a source that has answered may take to say whether offsets are there."""


def parse_offsets(text: str, config: Config) -> Offsets:
    """Where the stream goes on behind the files: as results name offsets, in JSON.

    Raises:
        ConfigError: they are not offsets of the configured source.
    """
    kafka = config.source.kind == "kafka"
    form = '{"topic": {"0": 17, ...}, ...}' if kafka else '{"file": 170, ...} (bytes)'
    try:
        wire = encoder.loads(text)
        offsets = offsets_from_wire(wire)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"--offsets {text!r}: must be {form}") from None
    if any((partition.number is not None) != kafka for partition in offsets):
        raise ConfigError(f"--offsets {text!r}: of a source of kind {config.source.kind!r} they are {form}")
    if kafka and {partition.name for partition in offsets} != set(config.source.topics):
        raise ConfigError(
            f"--offsets {text!r}: must name exactly the topics {', '.join(config.source.topics)}, a partition of "
            'each at least ({"0": 0}: from the beginning)'
        )
    return offsets


def load_files(
    config: Config,
    files: Sequence[Path],
    offsets: Offsets,
    *,
    columns: NamedColumns | None = None,
    json: bool = False,
) -> int:
    """``graphtide load``: write the first checkpoint and print what is in it. Returns the exit code.

    ``columns``: what the files call theirs; None: as we do.

    Raises:
        ConfigError: keys of records stand for edges, which files do not have; or the source cannot be read on from
            the offsets.
        SourceError: the source cannot be read at all.
        CheckpointError: there are checkpoints already.
        SourceUnavailable: the source, which the checkpoint must name, does not answer.
        BadInput: a file cannot be read, holds deletions of vertices, or they hold no updates.
        MemoryError: what the files hold does not fit into what is left of the machine, its control group or
            ``memory.budget``; there is no checkpoint then.
        NotWritten: the checkpoint could not be; there is none then.
    """
    if config.source.keyed:
        raise ConfigError("source.keyed: files cannot be loaded, since nobody knows the keys of their edges")
    left_out = LeftOut()
    graph = config.graph
    accepts = Accepts(graph.vertex_ids, graph.weights, graph.self_loops, graph.directed, columns)
    is_new = not config.checkpoint.path.exists()
    stored = CheckpointStore(config.checkpoint.path, keep=config.checkpoint.keep)
    with saying_what_is_compiled(), closing(stored) as store:
        try:
            checkpoint, n_edges = _loaded(store, config, files, accepts, offsets, left_out)
        except BaseException:
            if is_new:
                store.discard()
            raise
    _report(config, checkpoint, n_edges, left_out, as_json=json)
    return REFUSED if left_out.refused else 0


@contextmanager
def saying_what_is_compiled() -> Iterator[None]:
    """Says once on standard error that kernels are compiled, where they are: all stands still meanwhile."""
    is_said = False

    def say() -> None:
        nonlocal is_said
        if not is_said:
            is_said = True
            folder = cache_directory()
            errors().print(
                f"compiling kernels for this machine, once, into {folder}", markup=False, soft_wrap=True
            )

    with listening(MISSING, say):
        yield


def _loaded(
    store: CheckpointStore,
    config: Config,
    files: Sequence[Path],
    accepts: Accepts,
    offsets: Offsets,
    left_out: LeftOut,
) -> tuple[Checkpoint, int]:
    """The checkpoint that was written, and how many edges it holds. Raises: as ``load_files``."""
    if store.names():
        where = f"checkpoint.path = {str(store.path)!r}"
        raise CheckpointError(f"{where} holds checkpoints already: load writes the first, and replaces none")
    with closing(make_source(config)) as source:
        identity = {"graph": config.graph.identity(), "source": source.identity()}
        _require_offsets(source, offsets)
    try:
        checkpoint, edges = _built(
            config, files, accepts, left_out, (store.next_incarnation(), 1), offsets, identity
        )
    except MemoryError as error:
        raise MemoryError(f"the files cannot be loaded: {error}") from error
    columns = {"graph/keys": [edges.keys]}
    try:
        store.write(
            checkpoint, columns if edges.weights is None else {**columns, "graph/weights": [edges.weights]}
        )
    except OSError as error:
        raise NotWritten(f"checkpoint.path = {str(store.path)!r}: {why(error)}; nothing is loaded") from error
    return checkpoint, len(edges)


def _require_offsets(source: Source, offsets: Offsets) -> None:
    """Ask the source whether it can be read on from there, as the start will: that is too late once all is loaded.

    Raises:
        ConfigError: it cannot.
        SourceError: it cannot be read at all, which is not for these offsets.
        SourceUnavailable: it does not answer in time.
    """
    give_up_at = time.monotonic() + ANSWER_SECONDS
    try:
        source.open(offsets)
        while source.backlog() is None:
            if time.monotonic() > give_up_at:
                raise SourceUnavailable(source.away or "the source does not say where its log ends")
            source.poll(0, timeout_s=0.1)
    except SourceError as error:
        at = error.detail.get("topic", error.detail.get("file"))
        if at not in {partition.name for partition in offsets}:
            raise
        raise ConfigError(f"--offsets: {error.message}", error.detail) from error


def _built(
    config: Config,
    files: Sequence[Path],
    accepts: Accepts,
    left_out: LeftOut,
    epoch: tuple[int, int],
    offsets: Offsets,
    identity: Mapping[str, Any],
) -> tuple[Checkpoint, EdgeList]:
    """The checkpoint without its edges, and these."""
    memory = WithinBudget(config.memory.budget)
    graph = Graph(
        directed=config.graph.directed,
        weighted=config.graph.weights != "unweighted",
        in_edges=False,
        threads=config.compute.thread_count(),
        storage_threads=config.storage.thread_count(),
    )
    with closing(graph):
        index = VertexIndex.create(config.graph.vertex_ids, allocate_within(memory), config.graph.vertices_max)
        index.crew = graph.crew
        blocks = _blocks(files, accepts, left_out, _latest_ms(config))
        times = LoadedTimes(config.window, memory, directed=config.graph.directed) if config.window.is_on else None
        updates, edges = _edges(blocks, index, graph, times, memory)
        if not updates:
            raise BadInput(_why_none(left_out))
        arrays = {f"index/{name}": array for name, array in index.state(index.n_vertices).items()}
    arrays |= {"graph/dead": np.empty(0, np.uint32), "source/state": np.empty(0, np.uint8)}
    facts: dict[str, Any] = {"n_vertices": index.n_vertices, "updates": updates}
    if times is not None:
        kept = times.arrays()
        facts["window"] = times.facts(kept["keys"].size)
        arrays |= {f"window/{name}": array for name, array in kept.items()}
    return Checkpoint(epoch, offsets_to_wire(offsets), dict(identity), {}, facts, arrays), edges


def _why_none(left_out: LeftOut) -> str:
    """Nothing came of the files: the first update that was refused says why, if one was."""
    refused = left_out.refused.total()
    if not refused:
        return "the files hold no updates"
    first = next(iter(left_out.places.values()))[0]
    return f"the files hold no updates but refused ones: {refused}, of which the first is {first}"


def _latest_ms(config: Config) -> int:
    """The latest time that an update may have, as where the stream is read."""
    if config.window.length is None:
        return UNLIMITED
    return int(1000 * (time.time() + config.window.max_future_skew))


def _blocks(files: Sequence[Path], accepts: Accepts, left_out: LeftOut, latest_ms: int) -> Iterable[UpdateBlock]:
    with progress() as bar:
        total = sum(map(_size, files))
        task = bar.add_task("reading", total=total)
        done = 0
        for file in files:
            size = _size(file)

            def advance(share: float, size: int = size, done: int = done) -> None:
                bar.update(task, completed=done + round(share * size))

            for columns in read_columns(file, accepts, left_out, advance):
                if int(columns.ops.max(initial=0)) == Op.DELETE_VERTEX:
                    raise BadInput(f"{file} deletes vertices: load takes edges and new vertices; produce the rest")
                times = NO_TIME if columns.timestamps_ms is None else columns.timestamps_ms
                block = UpdateBlock(columns.src, columns.dst, columns.ops, columns.weights, times)
                yield _not_in_future(block, latest_ms, file, left_out)
            done += size


def _size(file: Path) -> int:
    return 0 if file == STANDARD_INPUT else file.stat().st_size


def _not_in_future(block: UpdateBlock, latest_ms: int, file: Path, left_out: LeftOut) -> UpdateBlock:
    """Without the updates whose times are too late ones."""
    times = block.timestamps_ms
    if isinstance(times, int) or not (late := times > latest_ms).any():
        return block
    for time_ms in times[late].tolist():
        detail = f"{file}: the time {time_ms} lies in the future; at most {latest_ms} is allowed"
        left_out.refuse(Reason.IN_FUTURE.value, partial(str, detail))
    return select(block, ~late)


def _edges(
    blocks: Iterable[UpdateBlock], index: VertexIndex, graph: Graph, times: LoadedTimes | None, memory: Memory
) -> tuple[int, EdgeList]:
    """How many updates there were, and the out-arcs that they leave, as ``Graph.load`` takes them. ``times`` notes
    when they came.

    A deletion has the weight NaN, which no edge has, until only the last update of each pair is left.
    """
    batches = list[EdgeBatch]()
    updates = 0
    kept = Trickle(memory)
    for block in blocks:
        updates += len(block)
        batch = dense_batch(block, index)
        batches.append(batch.edges)
        kept.take(batch.edges.keys.nbytes + batch.edges.ops.nbytes + 4 * graph.weighted * len(batch.edges))
        if times is not None:
            times.note(batch)
    deletes = any(bool(Op.DELETE.among(batch.ops).any()) for batch in batches)
    marked = graph.weighted or deletes
    n_edges = sum(map(len, batches))
    memory.require(n_edges * _bytes_to_order(marked=marked))
    keys = np.concatenate([np.empty(0, np.uint64), *(batch.keys for batch in batches)])
    weights = None
    if marked:
        weights = np.concatenate([np.empty(0, np.float32), *map(_marked, batches)])
    batches.clear()
    if not graph.directed:
        ends = sources(keys), destinations(keys)
        keys = pack(np.minimum(*ends), np.maximum(*ends))
    arcs = _last_of_each(EdgeList(keys, weights), graph)
    if not graph.weighted:
        arcs = EdgeList(arcs.keys)
    if graph.directed:
        return updates, arcs
    memory.require(2 * len(arcs) * _bytes_to_order(marked=graph.weighted))
    return updates, _both_ways(arcs, graph)


def _bytes_to_order(*, marked: bool) -> int:
    """Of each arc, by ``_ordered``: the arcs, those by heads, and what is written on the way to the last order;
    where they have weights, 4 bytes more each."""
    return 4 * (8 + 4 * marked)


def _marked(batch: EdgeBatch) -> Weights:
    """The weights of a batch, NaN where an edge is deleted."""
    weights = np.ones(len(batch), np.float32) if batch.weights is None else batch.weights
    return np.where(Op.DELETE.among(batch.ops), np.float32(np.nan), weights)


def _ordered(arcs: EdgeList, graph: Graph) -> EdgeList:
    """Arcs in ascending order, equal ones as they stood: put in order by their heads, and that by theirs."""
    return graph.by_heads(graph.by_heads(arcs))


def _last_of_each(arcs: EdgeList, graph: Graph) -> EdgeList:
    """In ascending order the last arc of each key, unless it is a deletion."""
    ordered = _ordered(arcs, graph)
    kept = np.append(ordered.keys[1:] != ordered.keys[:-1], True)[: len(ordered)]
    if ordered.weights is not None:
        kept &= ~np.isnan(ordered.weights)
    if kept.all():
        return ordered
    return EdgeList(ordered.keys[kept], None if ordered.weights is None else ordered.weights[kept])


def _both_ways(edges: EdgeList, graph: Graph) -> EdgeList:
    """Edges of an undirected graph as it keeps them: from either end, a self-loop once."""
    two = sources(edges.keys) != destinations(edges.keys)
    keys = np.concatenate([edges.keys, transpose(edges.keys[two])])
    weights = None if edges.weights is None else np.concatenate([edges.weights, edges.weights[two]])
    return _ordered(EdgeList(keys, weights), graph)


def _report(config: Config, checkpoint: Checkpoint, n_arcs: int, left_out: LeftOut, *, as_json: bool) -> None:
    """``n_arcs``: edges of a directed graph; of an undirected one each is two, but for self-loops."""
    updates, vertices = checkpoint.facts["updates"], checkpoint.facts["n_vertices"]
    expires_by_time = config.window.length is not None
    timed = checkpoint.arrays["window/keys"].size if expires_by_time else 0
    if as_json:
        answer = {"updates": updates, "vertices": vertices, "arcs": n_arcs, "offsets": checkpoint.offsets}
        if expires_by_time:
            answer["edges_with_times"] = timed
        print(encoder.dumps({**answer, **left_out.as_json()}))
        return
    print(f"{updates} updates loaded: {vertices} vertices, {n_arcs} arcs. `graphtide run` goes on from:")
    print(encoder.dumps(checkpoint.offsets))
    if expires_by_time:
        others = "; the others count as if they came when event time begins"
        print(f"{timed} edges have a time{others if checkpoint.facts['window']['adopts'] else ''}")
    report_left_out(left_out)
