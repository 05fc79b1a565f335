"""Loading: files become the first checkpoint, from which ``run`` goes on with the stream.

The graph is what it would be had the same updates been streamed in the order of the files, but nothing is computed
on the way: edges are numbered, put in order by all threads, and written.
"""

from __future__ import annotations

import json as encoder
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ...gpma.edges import EdgeBatch, EdgeList, Op, Weights, destinations, pack, sources, transpose
from ...gpma.index.vertex_index import VertexIndex
from ...partition.graph import Graph
from ..config.settings import Config
from ..errors import CheckpointError, ConfigError
from ..ingest.dense import dense_batch
from ..ingest.sources import make_source
from ..records.stream import Offsets, UpdateBlock, offsets_from_wire, offsets_to_wire
from ..state.checkpoint import Checkpoint, CheckpointStore
from ..terminal import progress
from .files import Accepts, BadInput, LeftOut, read_columns
from .produce import REFUSED, report_left_out


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
        raise ConfigError(f"--offsets {text!r}: must name exactly the topics {', '.join(config.source.topics)}")
    return offsets


def load_files(config: Config, files: Sequence[Path], offsets: Offsets, *, json: bool = False) -> int:
    """``graphtide load``: write the first checkpoint and print what is in it. Returns the exit code.

    Raises:
        CheckpointError: there are checkpoints already.
        SourceUnavailable: the source, which the checkpoint must name, does not answer.
        BadInput: a file cannot be read, holds deletions of vertices, or they hold no updates.
        OSError: the checkpoint could not be written; there is none then.
    """
    with closing(CheckpointStore(config.checkpoint.path, keep=config.checkpoint.keep)) as store:
        if store.names():
            where = f"checkpoint.path = {str(store.path)!r}"
            raise CheckpointError(f"{where} holds checkpoints already: load writes the first, and replaces none")
        with closing(make_source(config)) as source:
            identity = {"graph": config.graph.identity(), "source": source.identity()}
        left_out = LeftOut()
        checkpoint, edges = _built(config, files, left_out, (store.next_incarnation(), 1), offsets, identity)
        columns = {"graph/keys": [edges.keys]}
        store.write(
            checkpoint, columns if edges.weights is None else {**columns, "graph/weights": [edges.weights]}
        )
    _report(checkpoint, len(edges), left_out, as_json=json)
    return REFUSED if left_out.refused else 0


def _built(
    config: Config,
    files: Sequence[Path],
    left_out: LeftOut,
    epoch: tuple[int, int],
    offsets: Offsets,
    identity: Mapping[str, Any],
) -> tuple[Checkpoint, EdgeList]:
    """The checkpoint without its edges, and these."""
    graph = Graph(
        directed=config.graph.directed,
        weighted=config.graph.weights != "unweighted",
        in_edges=False,
        threads=config.compute.thread_count(),
        storage_threads=config.storage.thread_count(),
    )
    with closing(graph):
        index = VertexIndex.create(config.graph.vertex_ids, vertices_max=config.graph.vertices_max)
        index.crew = graph.crew
        blocks = _blocks(
            files, Accepts(config.graph.vertex_ids, config.graph.weights, config.graph.self_loops), left_out
        )
        updates, edges = _edges(blocks, index, graph)
        if not updates:
            raise BadInput("the files hold no updates")
        arrays = {f"index/{name}": array for name, array in index.state(index.n_vertices).items()}
    arrays |= {"graph/dead": np.empty(0, np.uint32), "source/state": np.empty(0, np.uint8)}
    facts = {"n_vertices": index.n_vertices, "updates": updates}
    return Checkpoint(epoch, offsets_to_wire(offsets), dict(identity), {}, facts, arrays), edges


def _blocks(files: Sequence[Path], accepts: Accepts, left_out: LeftOut) -> Iterable[UpdateBlock]:
    with progress() as bar:
        total = sum(file.stat().st_size for file in files)
        task = bar.add_task("reading", total=total)
        done = 0
        for file in files:
            size = file.stat().st_size

            def advance(share: float, size: int = size, done: int = done) -> None:
                bar.update(task, completed=done + round(share * size))

            for columns in read_columns(file, accepts, left_out, advance):
                if int(columns.ops.max(initial=0)) == Op.DELETE_VERTEX:
                    raise BadInput(f"{file} deletes vertices: load takes edges and new vertices; produce the rest")
                yield UpdateBlock(columns.src, columns.dst, columns.ops, columns.weights, 0)
            done += size


def _edges(blocks: Iterable[UpdateBlock], index: VertexIndex, graph: Graph) -> tuple[int, EdgeList]:
    """How many updates there were, and the out-arcs that they leave, as ``Graph.load`` takes them.

    A deletion has the weight NaN, which no edge has, until only the last update of each pair is left.
    """
    batches = list[EdgeBatch]()
    updates = 0
    for block in blocks:
        updates += len(block)
        edges = dense_batch(block, index).edges
        batches.append(edges)
    deletes = any(bool((batch.ops == Op.DELETE).any()) for batch in batches)
    keys = np.concatenate([np.empty(0, np.uint64), *(batch.keys for batch in batches)])
    weights = None
    if graph.weighted or deletes:
        weights = np.concatenate([np.empty(0, np.float32), *map(_marked, batches)])
    batches.clear()
    if not graph.directed:
        ends = sources(keys), destinations(keys)
        keys = pack(np.minimum(*ends), np.maximum(*ends))
    arcs = _last_of_each(EdgeList(keys, weights), graph)
    if not graph.weighted:
        arcs = EdgeList(arcs.keys)
    return updates, arcs if graph.directed else _both_ways(arcs, graph)


def _marked(batch: EdgeBatch) -> Weights:
    """The weights of a batch, NaN where an edge is deleted."""
    weights = np.ones(len(batch), np.float32) if batch.weights is None else batch.weights
    return np.where(batch.ops == Op.DELETE, np.float32(np.nan), weights)


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


def _report(checkpoint: Checkpoint, n_arcs: int, left_out: LeftOut, *, as_json: bool) -> None:
    """``n_arcs``: edges of a directed graph; of an undirected one each is two, but for self-loops."""
    updates, vertices = checkpoint.facts["updates"], checkpoint.facts["n_vertices"]
    if as_json:
        answer = {"updates": updates, "vertices": vertices, "arcs": n_arcs, "offsets": checkpoint.offsets}
        print(encoder.dumps({**answer, **left_out.as_json()}))
        return
    print(f"{updates} updates loaded: {vertices} vertices, {n_arcs} arcs. `graphtide run` goes on from:")
    print(encoder.dumps(checkpoint.offsets))
    report_left_out(left_out)
