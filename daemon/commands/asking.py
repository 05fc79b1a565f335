"""The commands that ask a running daemon."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .access import Access, let_in
from .flags import JsonFlag, Misused, checked, examples, metrics_url

QUERY_EPILOG = examples(
    "[cyan]graphtide query unix:/run/graphtide.sock stats[/cyan]",
    "[cyan]graphtide query tcp://127.0.0.1:7420 get --program pagerank --vertices 1,2,3[/cyan]",
    "[cyan]graphtide query tcp://127.0.0.1:7420 neighbors --vertex 7 --direction out --limit 20 --json[/cyan]",
    "Parameters are those of the protocol, as --name value. Values are JSON where they parse as such, else "
    "text; commas make a list where the protocol takes one. Method `hello` shows what the daemon offers.",
)


@let_in
def query(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="unix:PATH or tcp://HOST:PORT")],
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="get, top, khop, neighbors, stats, programs, wait, ...")
    ],
    json: JsonFlag = False,
    *,
    access: Access,
) -> None:
    """Ask a running daemon."""
    from ..tools.query import parse_parameters, run_query

    address = checked(address)
    try:
        parameters = parse_parameters(context.args, method)
    except ValueError as error:
        raise Misused(str(error)) from None
    token, trust = access.read_token(), access.trust()
    raise typer.Exit(run_query(address, method, parameters, token=token, tls=trust, as_json=json))


WATCH_EPILOG = examples(
    "[cyan]graphtide watch unix:/run/graphtide.sock pagerank --top 10 --threshold 0.01[/cyan]",
    "[cyan]graphtide watch tcp://127.0.0.1:7420 bfs --vertices 1,2,3[/cyan]",
    "[cyan]graphtide watch tcp://127.0.0.1:7420 sssp --top 10 --order asc[/cyan]  the nearest",
    "[cyan]graphtide watch tcp://127.0.0.1:7420 components --json > changes.jsonl[/cyan]",
    "A table on a terminal; elsewhere a line for each vertex (epoch, vertex, value), first for all there are. "
    "Ctrl-C ends it; a daemon that goes away is waited for.",
)


@let_in
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
    *,
    access: Access,
) -> None:
    """Show what each epoch changes, as it happens."""
    from ..tools.query import parse_value
    from ..tools.watch import watch as show

    status = show(
        checked(address),
        program,
        None if vertices is None else parse_value(vertices, listed=True, are_ids=True),
        threshold=threshold,
        top=top,
        order=order,
        changes_max=changes,
        as_json=json,
        token=access.read_token(),
        tls=access.trust(),
    )
    raise typer.Exit(status)


TOP_EPILOG = examples(
    "[cyan]graphtide top unix:/run/graphtide.sock[/cyan]",
    "[cyan]graphtide top tcp://127.0.0.1:7420 --json --samples 1[/cyan]  one line of JSON, over a second",
    "Times of stages, freshness and how busy programs are come with epochs; with --metrics (the daemon's "
    "metrics.listen) they are those of the moment, within a long epoch, too. Ctrl-C ends it.",
)


@let_in
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
    *,
    access: Access,
) -> None:
    """Show a running daemon live: rates, lag, freshness, stages, memory by side, programs."""
    from ..tools import top as showing

    url = None if metrics is None else metrics_url(metrics)
    trust = access.trust()
    with access.client(address) as client:
        status = showing.top(client, url, interval_s=interval, most=samples, as_json=json, trust=trust)
    raise typer.Exit(status)
