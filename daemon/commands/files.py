"""The commands on updates and results in files and topics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import ConfigError
from .flags import (
    CheckpointsFlag,
    ColumnFlags,
    ConfigFile,
    JsonFlag,
    KafkaFlag,
    Misused,
    SetFlags,
    SpoolFlag,
    TopicFlag,
    brokers,
    examples,
)
from .settings import assignments, flags_of, loaded_of

if TYPE_CHECKING:
    from ..ingest.named_columns import NamedColumns
    from ..ingest.registry import Registry
    from ..records.encodings import SchemaKind


PRODUCE_EPILOG = examples(
    "[cyan]graphtide produce --spool spool edges.csv[/cyan]",
    "[cyan]graphtide produce --kafka broker1:9092 --topic edges --json part-*.csv.xz[/cyan]",
    "[cyan]graphtide produce --config graphtide.toml --kafka broker1:9092 --topic edges edges.csv[/cyan]  "
    "check weights and ids as that daemon will, and log in to Kafka as it does",
    "",
    "[bold]Files[/bold], by name; of text .gz, .xz, .zst and .bz2 as well; - is the standard input",
    "[cyan].csv[/cyan]  a header line names the columns: src,dst and any of op,weight,ts (milliseconds)",
    "[cyan].json .jsonl .ndjson[/cyan]  JSON lines with the same names as keys",
    "[cyan].tsv[/cyan]  events: op src dst weight ts (seconds), with - for no weight or ts",
    "[cyan].parquet .arrow .feather[/cyan]  columns as of CSV; need graphtide\\[arrow]",
    "[cyan].npz .npy[/cyan]  arrays src and dst, perhaps op, weight, ts; pairs; SciPy's sparse matrices",
    "others  CSV with a header line, JSON lines; else edge lists: src dst \\[weight \\[ts (milliseconds)]], "
    "comments after # or %, MatrixMarket",
    "",
    "[bold]Other names[/bold] of columns: --column src=payer --column dst=payee --column op=kind --column "
    '\'op_values={insert=\\["c"], delete=\\["d"]}\'',
    "",
    "[bold]op[/bold] is insert (or I, +, 1, nothing), delete (D, -, 0), insert_vertex or delete_vertex. The "
    "last two name their vertex in src and leave dst empty: delete_vertex,7,",
    "",
    "What the daemon would refuse is left out, counted by reason and shown with its first places; the exit "
    "code is then 7. --json prints the offsets that the query method `wait` needs to read these updates.",
)


def produce(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="CSV, edge lists, JSON lines, Parquet, Arrow, NumPy, MatrixMarket: see below."
        ),
    ],
    spool: Annotated[Path | None, typer.Option("--spool", metavar="DIR", help="Write to this spool.")] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", metavar="HOST:PORT", help="Send to these brokers (commas between).", callback=brokers
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic to send to.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            envvar="GRAPHTIDE_CONFIG",
            help="The daemon's TOML file: what \\[graph] takes, and \\[source.client] for Kafka.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Set one of source.client: security_protocol, sasl_*, ssl_* ..."),
    ] = None,
    vertex_ids: Annotated[
        Literal["int", "string"] | None,
        typer.Option(
            help="The kind of vertex ids. Default: as in graph.vertex_ids, else int.", show_default=False
        ),
    ] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="The graph is undirected: put the smaller id first.")
    ] = False,
    window: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Delete every edge this long after its insert.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Write a record an update, of a schema that this registry gets (as TOPIC-value); with the user "
            "and certificates of \\[source.registry] where that names it.",
        ),
    ] = None,
    schema: Annotated[
        Literal["avro", "protobuf", "json"] | None,
        typer.Option(help="What records of --registry are. Default: avro.", show_default=False),
    ] = None,
    column: ColumnFlags = None,
    json: JsonFlag = False,
) -> None:
    """Put updates from files into a spool or a topic, each edge into the partition that it belongs to."""
    if (spool is None) == (kafka is None):
        raise Misused("give either --spool DIR or --kafka HOST:PORT")
    if (kafka is None) != (topic is None):
        raise Misused("--kafka and --topic belong together")
    if schema is not None and registry is None:
        raise Misused("--schema needs --registry URL")
    from dataclasses import replace

    from ..tools.files import Accepts
    from ..tools.produce import produce_files

    accepts, options = Accepts(vertex_ids or "int"), dict[str, Any]()
    if config is not None or client:
        loaded = loaded_of(config, assignments("--client", client, "key=value", "source.client.")).config
        options = loaded.source.client_options()
        if loaded.source.keyed and topic in loaded.source.topics:
            raise ConfigError(f"source.keyed: keys of topic {topic} stand for edges, and produce knows none")
        if config is not None:
            graph = loaded.graph
            accepts = Accepts(vertex_ids or graph.vertex_ids, graph.weights, graph.self_loops)
            undirected = undirected or not graph.directed
    asked = None if registry is None else _schemas_of(registry, config)
    status = produce_files(
        files,
        spool=spool,
        kafka=kafka,
        topic=topic,
        client=options,
        json=json,
        accepts=replace(accepts, columns=_columns_of(column)),
        undirected=undirected,
        window_seconds=window,
        registry=asked,
        schema=_SCHEMA_KINDS[schema or "avro"],
    )
    raise typer.Exit(status)


_SCHEMA_KINDS: dict[str, SchemaKind] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}


def _schemas_of(url: str, config: Path | None) -> Registry:
    """The registry at this address, asked as the daemon asks it where that is the same one."""
    from ..config.load import from_tables
    from ..ingest.named_columns import named_columns
    from ..ingest.sources import make_registry

    settings = None if config is None else loaded_of(config, []).config
    if settings is not None and named_columns(settings.source.columns) is not None:
        raise Misused("--registry writes src, dst, op, weight and ts, and source.columns names others")
    own = None if settings is None else settings.source.registry.url
    if settings is None or own is None or own.rstrip("/") != url.rstrip("/"):  # its password is for it alone
        settings = from_tables({"source": {"registry": {"url": url}}})
    registry = make_registry(settings)
    assert registry is not None
    return registry


def _columns_of(given: list[str] | None) -> NamedColumns | None:
    """What files call their columns, by ``--column``.

    Raises:
        ConfigError: that are no names of columns.
    """
    from ..ingest.named_columns import named_columns

    if not given:
        return None
    assigned = assignments("--column", given, "src=NAME, dst=NAME or another column", "source.columns.")
    return named_columns(loaded_of(None, assigned).config.source.columns)


LOAD_EPILOG = examples(
    '[cyan]graphtide load --config graphtide.toml --offsets \'{"edges": {"0": 90210, "1": 88}}\' '
    "edges.parquet[/cyan]",
    "[cyan]graphtide load --spool spool --offsets '{}' follows.csv.zst likes.csv.zst[/cyan]",
    "",
    "Files are those of `graphtide produce`, with insertions, deletions of edges and insert_vertex, in order; "
    "the graph is what it would be had they been streamed. The offsets are where the stream goes on behind "
    "them: a partition that is not named is read from its beginning. `graphtide run` with the same settings "
    "starts from there, and computes its programs then.",
    "",
    "It writes the first checkpoint whole or not at all, and none where there is one.",
)


def load(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="The same files as for produce.", dir_okay=False, callback=_existing),
    ],
    offsets: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Where the stream goes on behind the files. Must be given.", show_default=False
        ),
    ] = None,
    config: ConfigFile = None,
    settings: SetFlags = None,
    spool: SpoolFlag = None,
    kafka: KafkaFlag = None,
    topic: TopicFlag = None,
    checkpoints: CheckpointsFlag = None,
    column: ColumnFlags = None,
    json: JsonFlag = False,
) -> None:
    """Make the first checkpoint from files, from which `run` goes on with the stream."""
    if offsets is None:
        raise Misused(
            '--offsets must say where the stream goes on behind the files: \'{"topic": {"0": 17}}\'; of a spool '
            "'{\"file\": 170}' (bytes), or '{}' to read all that lies there"
        )
    flags = flags_of(settings, spool=spool, kafka=kafka, topics=topic, checkpoints=checkpoints)
    loaded = loaded_of(config, flags).config
    os.umask(0o077)  # as for what the daemon makes
    from ..tools.load import load_files, parse_offsets

    columns = _columns_of(column)
    raise typer.Exit(load_files(loaded, files, parse_offsets(offsets, loaded), columns=columns, json=json))


def _existing(files: list[Path]) -> list[Path]:
    """Files that are there, or the standard input, which ``exists`` of typer does not take for a path."""
    for file in files:
        if str(file) != "-" and not file.exists():
            raise typer.BadParameter(f"file {str(file)!r} does not exist.")
    return files


RESULTS_EPILOG = examples(
    "[cyan]graphtide results ./results[/cyan]  every record, a line of JSON each",
    "[cyan]graphtide results ./results --ends[/cyan]  which epochs there are",
)


def results(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of results (results.path), or one of its files.", exists=True
        ),
    ],
    ends: Annotated[bool, typer.Option("--ends", help="Only the record that ends each transaction.")] = False,
) -> None:
    """Print the results that a daemon has written to files, whole epochs only."""
    from ..tools.results import show

    show(path, ends_only=ends)
