"""The command line. Commands load what they need when they run, so that --help and version answer at once."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from .dead_letter_commands import dead_letters_app
from .errors import (
    CheckpointError,
    ConfigError,
    DeadLettersError,
    GraphtideError,
    NotWritten,
    SourceError,
    Unauthorized,
)
from .flags import (
    CheckpointsFlag,
    ColumnFlags,
    ConfigFile,
    JsonFlag,
    KafkaFlag,
    ListenFlag,
    MetricsFlag,
    Misused,
    SetFlags,
    SpoolFlag,
    TlsCaFlag,
    TlsCertFlag,
    TlsFlag,
    TlsKeyFlag,
    TokenFileFlag,
    TokenFlag,
    TopicFlag,
    brokers,
    checked,
    client_of,
    examples,
    metrics_url,
    token_of,
    trust_of,
    with_homes,
)
from .os_errors import no_thread, require_address_space, require_compiler, require_descriptors, why
from .state_commands import EXPORT_EPILOG, checkpoint_app, export

if TYPE_CHECKING:
    from socket import socket

    from .config.load import Loaded
    from .ingest.named_columns import NamedColumns
    from .ingest.registry import Registry
    from .records.encodings import SchemaKind

FAILED, MISUSED, TRY_AGAIN, SOURCE, CHECKPOINT, NO_ROOM, DEAD_LETTERS, INTERRUPTED = 1, 2, 3, 4, 5, 6, 8, 130
"""``EXIT_CODES`` says what each means; the systemd unit names those after which a restart would not help."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 not reachable or out of time (trying again "
    "can help), 4 the source cannot go on without losing or repeating records, 5 no usable checkpoint, 6 out of "
    "memory or disk space, 7 some updates refused (the others are written), 8 bad records cannot be kept, 130 "
    "interrupted."
)

OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)

_CODES: dict[type[GraphtideError], int] = {
    ConfigError: MISUSED,
    SourceError: SOURCE,
    CheckpointError: CHECKPOINT,
    NotWritten: NO_ROOM,
    DeadLettersError: DEAD_LETTERS,
}


def exit_code(error: GraphtideError) -> int:
    """The code of its class; of the others, 3 where trying again can help, else 1."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return TRY_AGAIN if error.retriable else FAILED


class _Commands(TyperGroup):
    """Turns the errors that graphtide raises on purpose into one message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_homes(args, app))

    def invoke(self, ctx: Any) -> Any:
        try:
            with _interruptible():
                return super().invoke(ctx)
        except (GraphtideError, OSError, MemoryError, KeyboardInterrupt) as error:
            if ctx.params.get("debug"):
                raise
            raise typer.Exit(_explain(error)) from None
        except typer.BadParameter as error:
            from .config.load import plainly

            error.message = plainly(error.message)
            raise
        except RuntimeError as error:
            if ctx.params.get("debug") or no_thread(error) is None:
                raise
            raise typer.Exit(_explain(error)) from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt, but while a module is imported, where libraries lose it or make other
    errors of it: there it ends the process, as it did before any command ran."""
    before = signal.getsignal(signal.SIGINT)
    ours = before in (signal.SIG_DFL, signal.default_int_handler)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupted:
            signal.signal(signal.SIGINT, before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        at = at.f_back
    signal.default_int_handler(number, frame)


def _explain(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has enough; what is still buffered must not raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, GraphtideError):
        message = error.message
        if isinstance(error, Unauthorized):
            message += " (GRAPHTIDE_TOKEN, or --token-file)"
    elif isinstance(error, MemoryError):
        message = f"out of memory{f': {error}' if str(error) else ''}"
    elif isinstance(error, OSError):
        message = f"{error.filename}: {why(error)}" if error.filename and error.strerror else why(error)
    elif isinstance(error, RuntimeError):
        message = no_thread(error) or str(error)
    else:
        message = str(error)
    print(f"graphtide: {message}", file=sys.stderr)
    if isinstance(error, GraphtideError):
        return exit_code(error)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in OUT_OF_ROOM):
        return NO_ROOM
    return TRY_AGAIN if isinstance(error, (ConnectionError, TimeoutError)) else FAILED


ROOT_EPILOG = examples(
    "[cyan]graphtide demo[/cyan]  a real graph, streamed, queried and checked, in a minute",
    "[cyan]graphtide run[/cyan]  read ./spool, and keep components and PageRank up to date",
    "[cyan]graphtide produce --spool spool edges.csv[/cyan]  put updates there",
    "[cyan]graphtide query tcp://127.0.0.1:7420 top --program pagerank --k 10[/cyan]  ask",
    EXIT_CODES,
)

app = typer.Typer(
    name="graphtide",
    help="Keep graph analytics up to date while the graph changes.",
    epilog=ROOT_EPILOG,
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _flags(
    settings: list[str] | None,
    *,
    spool: str | None = None,
    kafka: str | None = None,
    topics: list[str] | None = None,
    listen: list[str] | None = None,
    metrics: str | None = None,
    checkpoints: str | None = None,
) -> list[tuple[str, str, str]]:
    """Flags as ``config.load.load`` takes them; --set comes last and wins."""
    flags = []
    if spool is not None:
        flags += [("--spool", "source.kind", "spool"), ("--spool", "source.path", spool)]
    if kafka is not None:
        flags += [("--kafka", "source.kind", "kafka"), ("--kafka", "source.bootstrap_servers", kafka)]
    if topics:
        flags.append(("--topic", "source.topics", ",".join(topics)))
    if listen:
        flags.append(("--listen", "server.listen", ",".join(listen)))
    if metrics is not None:
        flags.append(("--metrics", "metrics.listen", metrics))
    if checkpoints is not None:
        flags.append(("--checkpoints", "checkpoint.path", checkpoints))
    return flags + _assignments("--set", settings, "section.key=value")


def _assignments(flag: str, given: list[str] | None, form: str, prefix: str = "") -> list[tuple[str, str, str]]:
    flags = []
    for setting in given or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {setting!r}: must be {form}")
        flags.append((flag, prefix + key.strip(), value))
    return flags


@contextmanager
def _loading() -> Iterator[None]:
    """What loads stays: to look for garbage in it would take an eighth of the time, and once more as soon as it is
    looked for again (50 ms)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load(file: Path | None, flags: list[tuple[str, str, str]]) -> Loaded:
    from .config.load import load

    return load(file, flags=flags)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version_: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps graph analytics true while the graph changes."""


@app.command(
    epilog=examples(
        "[cyan]graphtide run[/cyan]",
        "[cyan]graphtide run --config /etc/graphtide/graphtide.toml[/cyan]",
        "[cyan]graphtide run --kafka broker1:9092 --topic edges --set graph.directed=false[/cyan]",
        "SIGTERM drains, writes a checkpoint and exits 0. The settings: graphtide config.",
    )
)
def run(
    config: ConfigFile = None,
    settings: SetFlags = None,
    spool: SpoolFlag = None,
    kafka: KafkaFlag = None,
    topic: TopicFlag = None,
    listen: ListenFlag = None,
    metrics: MetricsFlag = None,
    checkpoints: CheckpointsFlag = None,
    progress: Annotated[
        bool | None, typer.Option(help="Show how the start goes on. Default: on a terminal.", show_default=False)
    ] = None,
) -> None:
    """Run the daemon until it is stopped."""
    from .signals import stopped_while_it_loads

    with stopped_while_it_loads():
        _run(
            _flags(
                settings,
                spool=spool,
                kafka=kafka,
                topics=topic,
                listen=listen,
                metrics=metrics,
                checkpoints=checkpoints,
            ),
            config,
            progress,
        )


def _run(flags: list[tuple[str, str, str]], config: Path | None, progress: bool | None) -> NoReturn:
    # One thread for linear algebra, which is never done here: what has other threads could not be forked below.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    require_address_space(threads=1)
    require_descriptors()
    require_compiler()
    with _loading():
        loaded = _load(config, flags)
    require_address_space(loaded.config.compute.thread_count())
    # The graph is nobody else's: whatever the daemon makes, files and folders, is its user's alone.
    os.umask(0o077)
    from .again import StartAgain, replace_process
    from .logs import configure
    from .serve.template import Template

    configure(loaded.config.log.level, loaded.config.log.format)
    shown = sys.stderr.isatty() if progress is None else progress
    id_kind, python_modules = loaded.config.graph.vertex_ids, loaded.config.compute.python_modules

    def answer(door: socket) -> None:
        with _loading():
            from .serve.server import serve_door
        serve_door(door, id_kind, python_modules)

    gc.freeze()  # the template shares what is loaded by now, as long as nobody writes to it
    try:
        with closing(Template(id_kind, python_modules, answer)) as template:
            with _loading():
                from .service import serve  # while the template loads what it alone needs
            raise typer.Exit(serve(loaded.config, template, progress=shown))
    except StartAgain as again:
        replace_process(again.lost)


@app.command(
    epilog=examples(
        "[cyan]graphtide kernels --config /etc/graphtide/graphtide.toml[/cyan]  after an upgrade, then restart",
        "[cyan]graphtide kernels --portable[/cyan]  in the recipe of an image, as who may write the package",
        "Where kernels came compiled with graphtide and fit this machine, there is nothing to do.",
    )
)
def kernels(
    config: ConfigFile = None,
    settings: SetFlags = None,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable",
            help="Compile all kernels, for any settings and most machines of this kind, into the package itself.",
        ),
    ] = False,
) -> None:
    """Compile ahead what `run` would compile at its first start with these settings."""
    if portable:
        from .tools.portable import compile_portable

        forms, file = compile_portable()
        print(f"{forms} kernels in {file}")
        return
    loaded = _load(config, _flags(settings))
    import threading

    from .logs import configure
    from .warm_up import warm_up

    configure(loaded.config.log.level, loaded.config.log.format)
    warm_up(loaded.config, threading.Event(), lambda share: None, progress=sys.stderr.isatty())


@app.command(
    epilog=examples(
        "[cyan]graphtide demo[/cyan]",
        "[cyan]graphtide demo --data collegemsg.events.tsv.xz --window 86400 --keep ./demo[/cyan]",
    )
)
def demo(
    data: Annotated[
        Path | None, typer.Option(help="Stream this edge list instead of the default graph.", exists=True)
    ] = None,
    updates: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many updates.")] = None,
    window: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="How long an edge lives.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Work in this folder and keep it.")] = None,
) -> None:
    """Stream a graph through a real daemon, query it, and check every answer against a recomputation."""
    from .tools.demo import run_demo

    raise typer.Exit(run_demo(data=data, updates=updates, window=window, keep=keep))


_SCHEMA_KINDS: dict[str, SchemaKind] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}


def _schemas_of(url: str, config: Path | None) -> Registry:
    """The registry at this address, asked as the daemon asks it where that is the same one."""
    from .config.load import from_tables
    from .ingest.named_columns import named_columns
    from .ingest.sources import make_registry

    settings = None if config is None else _load(config, []).config
    if settings is not None and named_columns(settings.source.columns) is not None:
        raise Misused("--registry writes src, dst, op, weight and ts, and source.columns names others")
    own = None if settings is None else settings.source.registry.url
    if settings is None or own is None or own.rstrip("/") != url.rstrip("/"):  # its password is for it alone
        settings = from_tables({"source": {"registry": {"url": url}}})
    registry = make_registry(settings)
    assert registry is not None
    return registry


@app.command(
    epilog=examples(
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

    from .tools.files import Accepts
    from .tools.produce import produce_files

    accepts, options = Accepts(vertex_ids or "int"), dict[str, Any]()
    if config is not None or client:
        loaded = _load(config, _assignments("--client", client, "key=value", "source.client.")).config
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


def _columns_of(given: list[str] | None) -> NamedColumns | None:
    """What files call their columns, by ``--column``.

    Raises:
        ConfigError: that are no names of columns.
    """
    from .ingest.named_columns import named_columns

    if not given:
        return None
    assigned = _assignments("--column", given, "src=NAME, dst=NAME or another column", "source.columns.")
    return named_columns(_load(None, assigned).config.source.columns)


def _existing(files: list[Path]) -> list[Path]:
    """Files that are there, or the standard input, which ``exists`` of typer does not take for a path."""
    for file in files:
        if str(file) != "-" and not file.exists():
            raise typer.BadParameter(f"file {str(file)!r} does not exist.")
    return files


@app.command(
    epilog=examples(
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
    flags = _flags(settings, spool=spool, kafka=kafka, topics=topic, checkpoints=checkpoints)
    loaded = _load(config, flags).config
    os.umask(0o077)  # as for what the daemon makes
    from .tools.load import load_files, parse_offsets

    columns = _columns_of(column)
    raise typer.Exit(load_files(loaded, files, parse_offsets(offsets, loaded), columns=columns, json=json))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=examples(
        "[cyan]graphtide query unix:/run/graphtide.sock stats[/cyan]",
        "[cyan]graphtide query tcp://127.0.0.1:7420 get --program pagerank --vertices 1,2,3[/cyan]",
        "[cyan]graphtide query tcp://127.0.0.1:7420 neighbors --vertex 7 --direction out --limit 20 --json[/cyan]",
        "Parameters are those of the protocol, as --name value. Values are JSON where they parse as such, else "
        "text; commas make a list where the protocol takes one. Method `hello` shows what the daemon offers.",
    ),
)
def query(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="unix:PATH or tcp://HOST:PORT")],
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="get, top, khop, neighbors, stats, programs, wait, ...")
    ],
    json: JsonFlag = False,
    token: TokenFlag = None,
    token_file: TokenFileFlag = None,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
) -> None:
    """Ask a running daemon."""
    from .tools.query import parse_parameters, run_query

    address = checked(address)
    try:
        parameters = parse_parameters(context.args, method)
    except ValueError as error:
        raise Misused(str(error)) from None
    token = token_of(token, token_file)
    trust = trust_of(tls, tls_ca, tls_cert, tls_key)
    raise typer.Exit(run_query(address, method, parameters, token=token, tls=trust, as_json=json))


@app.command(
    epilog=examples(
        "[cyan]graphtide watch unix:/run/graphtide.sock pagerank --top 10 --threshold 0.01[/cyan]",
        "[cyan]graphtide watch tcp://127.0.0.1:7420 bfs --vertices 1,2,3[/cyan]",
        "[cyan]graphtide watch tcp://127.0.0.1:7420 sssp --top 10 --order asc[/cyan]  the nearest",
        "[cyan]graphtide watch tcp://127.0.0.1:7420 components --json > changes.jsonl[/cyan]",
        "A table on a terminal; elsewhere a line for each vertex (epoch, vertex, value), first for all there are. "
        "Ctrl-C ends it; a daemon that goes away is waited for.",
    ),
)
def watch(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="unix:PATH or tcp://HOST:PORT")],
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="The id of a program: pagerank, bfs, ...")],
    vertices: Annotated[
        str | None,
        typer.Option(
            metavar="IDS", help="Only these vertices (commas between). Default: all.", show_default=False
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show the N largest values instead of the last changes.")
    ] = None,
    order: Annotated[
        Literal["desc", "asc"], typer.Option(help="With --top: the largest values, or the smallest.")
    ] = "desc",
    threshold: Annotated[
        float | None,
        typer.Option(min=0, metavar="SHARE", help="Leave out changes of at most this share of the value."),
    ] = None,
    changes: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after this many messages.")] = None,
    json: JsonFlag = False,
    token: TokenFlag = None,
    token_file: TokenFileFlag = None,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
) -> None:
    """Show what each epoch changes, as it happens."""
    from .tools.query import parse_value
    from .tools.watch import watch as show

    status = show(
        checked(address),
        program,
        None if vertices is None else parse_value(vertices, listed=True, are_ids=True),
        threshold=threshold,
        top=top,
        order=order,
        changes_max=changes,
        as_json=json,
        token=token_of(token, token_file),
        tls=trust_of(tls, tls_ca, tls_cert, tls_key),
    )
    raise typer.Exit(status)


@app.command(
    epilog=examples(
        "[cyan]graphtide results ./results[/cyan]  every record, a line of JSON each",
        "[cyan]graphtide results ./results --ends[/cyan]  which epochs there are",
    )
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
    from .tools.results import show

    show(path, ends_only=ends)


@app.command(
    epilog=examples(
        "[cyan]graphtide top unix:/run/graphtide.sock[/cyan]",
        "[cyan]graphtide top tcp://127.0.0.1:7420 --json --samples 1[/cyan]  one line of JSON, over a second",
        "Times of stages, freshness and how busy programs are come with epochs; with --metrics (the daemon's "
        "metrics.listen) they are those of the moment, within a long epoch, too. Ctrl-C ends it.",
    ),
)
def top(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="unix:PATH or tcp://HOST:PORT")],
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the daemon serves metrics (or a whole URL).")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.05, max=86_400, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after this many answers.")] = None,
    json: JsonFlag = False,
    token: TokenFlag = None,
    token_file: TokenFileFlag = None,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
) -> None:
    """Show a running daemon live: rates, lag, freshness, stages, memory by side, programs."""
    from .tools import top as showing

    url = None if metrics is None else metrics_url(metrics)
    trust = trust_of(tls, tls_ca, tls_cert, tls_key)
    with client_of(address, token, token_file, tls, tls_ca, tls_cert, tls_key) as client:
        status = showing.top(client, url, interval_s=interval, most=samples, as_json=json, trust=trust)
    raise typer.Exit(status)


app.command(epilog=EXPORT_EPILOG)(export)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(dead_letters_app, name="dead-letters")


@app.command(
    epilog=examples(
        "[cyan]graphtide doctor[/cyan]",
        "[cyan]graphtide doctor --config /etc/graphtide/graphtide.toml --json[/cyan]",
    )
)
def doctor(config: ConfigFile = None, settings: SetFlags = None, json: JsonFlag = False) -> None:
    """Check this machine and the settings; exit 1 when the daemon could not run."""
    loaded = _load(config, _flags(settings))
    from .tools.doctor import report

    raise typer.Exit(report(loaded.config, as_json=json))


@app.command(
    "config",
    epilog=examples(
        "[cyan]graphtide config[/cyan]  all settings, commented",
        "[cyan]graphtide config --set epoch.updates_max=1000 > graphtide.toml[/cyan]  a file to begin with",
        "[cyan]graphtide config --schema[/cyan]  the JSON schema, for editors",
    ),
)
def show_config(
    config: ConfigFile = None,
    settings: SetFlags = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema instead.")] = False,
) -> None:
    """Print the effective settings as commented TOML, with where each came from, secrets masked."""
    if schema:
        import json

        from .config.settings import Config

        print(json.dumps(Config.model_json_schema(), indent=2))
        return
    loaded = _load(config, _flags(settings))
    from .config.show import effective_toml

    print(effective_toml(loaded), end="")


@app.command(epilog=examples("[cyan]graphtide version[/cyan]", "[cyan]graphtide version --json[/cyan]"))
def version(json: JsonFlag = False) -> None:
    """Print the version."""
    import platform

    from .. import __version__

    if json:
        import json as encoder

        print(encoder.dumps({"graphtide": __version__, "python": platform.python_version()}))
    else:
        print(f"graphtide {__version__}")


def main() -> None:
    """Run the command that the arguments name."""
    _ready_streams()
    app(prog_name="graphtide")


def _ready_streams() -> None:
    """Standard streams that were closed lead nowhere: no file or socket may take their numbers. Characters that a
    stream's encoding does not have are shown by their escapes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
