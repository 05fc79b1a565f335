"""From settings to who writes results."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from ...compute.registry import KINDS
from ...gpma.index.vertex_index import VertexIndex
from ..config.settings import Config
from ..state.checkpoint import Checkpoint
from .sink import Sink
from .spool import SpoolSink
from .view import Published, View
from .writer import Resume, Writer


def make_writer(
    config: Config,
    published: Published,
    index: VertexIndex,
    hold: Callable[[], AbstractContextManager[None]],
    resume: Resume | None,
) -> Writer | None:
    """Who writes results as configured; None: nobody. ``resume``: of the checkpoint that the first epoch is of.

    ``hold``: see ``View``.

    Raises:
        ConfigError: a file of a secret cannot be read.
    """
    results = config.results
    if results.kind == "off":
        return None
    sink, name = _make_sink(config)
    view = View(published, index, config.graph.vertex_ids, KINDS, results.programs, results.threshold, hold)
    return Writer(
        sink,
        view,
        results.encoding,
        name=name,
        interval_s=results.interval,
        threshold=results.threshold,
        resume=resume,
    )


def resume_of(checkpoint: Checkpoint, restored: Collection[str]) -> Resume | None:
    """What a checkpoint says of the results that were written by then; None: nothing that can be gone on from.

    ``restored``: the programs whose states were taken over from it.
    """
    fact = checkpoint.facts.get("results")
    if fact is None:
        return None
    return Resume(
        checkpoint.epoch,
        fact["sink"],
        fact.get("series", ""),
        fact["sequence"],
        fact["place"],
        tuple(id for id in fact["programs"] if id in restored),
        fact.get("threshold", 0.0),
    )


def _make_sink(config: Config) -> tuple[Sink, str]:
    """The sink, and its name."""
    results = config.results
    if results.kind == "spool":
        folder = results.path.absolute()
        return SpoolSink(folder, results.encoding, file_bytes=results.file_bytes), str(folder)
    from .kafka import KafkaSink

    servers, client = config.results_servers()
    sink = KafkaSink(
        servers,
        results.topic,
        results.transactional_id or f"graphtide-{config.source.name}-{results.topic}",
        results.encoding,
        client=client,
        transaction_timeout_s=results.transaction_timeout,
    )
    return sink, f"topic {results.topic}"
