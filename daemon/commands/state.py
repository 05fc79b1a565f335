"""The commands about checkpoints and what is exported of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .access import Access, let_in
from .flags import (
    AddressFlag,
    AtFlag,
    JsonFlag,
    Misused,
    WaitFlag,
    epoch_of,
    examples,
)

EXPORT_EPILOG = examples(
    "[cyan]graphtide export graph.parquet --address unix:/run/graphtide.sock[/cyan]  the graph as it is now",
    "[cyan]graphtide export graph.npz -a unix:/run/graphtide.sock --at 3.1200 --timeout 600[/cyan]  one to come",
    "[cyan]graphtide export edges.txt --checkpoint /var/lib/graphtide/checkpoints[/cyan]  without a daemon",
    "",
    "[bold]Formats[/bold], by the name: .arrow and .parquet (pip install 'graphtide\\[arrow]'), .npz, .csv, and "
    "edge lists (.txt, .el, .edges: src dst \\[weight]). Each but .csv says of which epoch and offsets it is.",
    "",
    "The daemon writes a checkpoint of that epoch, which is read here: on its machine, by a user who may read it.",
)


@let_in
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write the edges to.")],
    address: AddressFlag = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="A checkpoint, or a folder of them.", exists=True),
    ] = None,
    at: AtFlag = "latest",
    vertices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the ids of all vertices to this file, too.")
    ] = None,
    timeout: WaitFlag = 60.0,
    json: JsonFlag = False,
    *,
    access: Access,
) -> None:
    """Write the graph of one epoch to a file: precisely the graph that its published results belong to."""
    if (address is None) == (checkpoint is None):
        raise Misused("give either --address ADDRESS or --checkpoint DIR")
    if vertices is not None and vertices.resolve() == file.resolve():
        raise Misused("--vertices needs a file of its own")
    epoch = epoch_of(at)
    from ..tools import checkpoints
    from ..tools import export as exporting

    for path in (file, vertices):
        if path is not None:
            exporting.check_target(path)
    if address is not None:
        with access.client(address) as client:
            folder = checkpoints.made_by_daemon(client, epoch, timeout)
    else:
        assert checkpoint is not None
        folder = checkpoints.find(checkpoint, epoch)
    graph = exporting.exported(checkpoints.read(folder))
    exporting.export(graph, file, vertices)
    exporting.report(graph, file, as_json=json)


checkpoint_app = typer.Typer(
    help="Make checkpoints, list them, verify them, look into them, and copy them.",
    epilog=examples(
        "[cyan]graphtide checkpoint now unix:/run/graphtide.sock[/cyan]",
        "[cyan]graphtide checkpoint list /var/lib/graphtide/checkpoints[/cyan]",
        "[cyan]graphtide checkpoint copy /var/lib/graphtide/checkpoints ./from-here --at 3.1200[/cyan]  and start "
        "from it: graphtide run --checkpoints ./from-here",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
)
FolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The folder checkpoint.path, or one checkpoint in it.",
        exists=True,
        file_okay=False,
    ),
]


@checkpoint_app.command(
    epilog=examples("[cyan]graphtide checkpoint now unix:/run/graphtide.sock --json[/cyan]"),
)
@let_in
def now(
    place: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="unix:PATH or tcp://HOST:PORT", show_default=False)
    ] = None,
    address: AddressFlag = None,
    timeout: WaitFlag = 60.0,
    json: JsonFlag = False,
    *,
    access: Access,
) -> None:
    """Have a running daemon write a checkpoint of the present epoch or a later one, and wait for it."""
    if (place is None) == (address is None):
        raise typer.BadParameter("give one ADDRESS, unix:PATH or tcp://HOST:PORT")
    from ..tools.checkpoints import make_now

    with access.client(place or address or "") as client:
        raise typer.Exit(make_now(client, timeout, as_json=json))


@checkpoint_app.command(
    "list", epilog=examples("[cyan]graphtide checkpoint list /var/lib/graphtide/checkpoints --json[/cyan]")
)
def list_(folder: FolderArgument, json: JsonFlag = False) -> None:
    """List checkpoints, newest first, by what they say of themselves; their checksums are not compared."""
    from ..tools.checkpoints import list_all

    raise typer.Exit(list_all(folder, as_json=json))


@checkpoint_app.command(epilog=examples("[cyan]graphtide checkpoint verify /var/lib/graphtide/checkpoints[/cyan]"))
def verify(
    folder: FolderArgument,
    at: Annotated[
        str | None, typer.Option("--at", metavar="EPOCH", help="Only this one. Default: all.", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Read checkpoints and compare all checksums; exit code 5 if one does not hold."""
    from ..tools import checkpoints

    chosen = folder if at is None else checkpoints.find(folder, epoch_of(at))
    raise typer.Exit(checkpoints.verify(chosen, as_json=json))


@checkpoint_app.command(
    epilog=examples("[cyan]graphtide checkpoint inspect /var/lib/graphtide/checkpoints --at 3.1200[/cyan]")
)
def inspect(folder: FolderArgument, at: AtFlag = "latest", json: JsonFlag = False) -> None:
    """Show what a checkpoint holds: epoch, offsets, settings, programs, arrays."""
    from ..tools import checkpoints

    raise typer.Exit(checkpoints.inspect(folder, epoch_of(at), as_json=json))


@checkpoint_app.command(
    epilog=examples(
        "[cyan]graphtide checkpoint copy /var/lib/graphtide/checkpoints ./from-here --at 3.1200[/cyan]",
        "[cyan]graphtide run --checkpoints ./from-here[/cyan]  starts from it, and reads on from its offsets",
    ),
)
def copy(
    folder: FolderArgument,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The folder to copy to; made if missing.")],
    at: AtFlag = "latest",
    json: JsonFlag = False,
) -> None:
    """Copy a checkpoint into another folder, whole and compared: to keep it, or to start from it."""
    os.umask(0o077)  # as for what the daemon makes
    from ..tools import checkpoints

    raise typer.Exit(checkpoints.copy(folder, target, epoch_of(at), as_json=json))
