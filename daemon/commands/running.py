"""The commands about the daemon itself, and about its settings and its machine."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..os_errors import require_address_space, require_compiler, require_descriptors
from .flags import (
    CheckpointsFlag,
    ConfigFile,
    JsonFlag,
    KafkaFlag,
    ListenFlag,
    MetricsFlag,
    SetFlags,
    SpoolFlag,
    TopicFlag,
    examples,
)
from .settings import flags_of, loaded_of

if TYPE_CHECKING:
    from socket import socket


RUN_EPILOG = examples(
    "[cyan]graphtide run[/cyan]",
    "[cyan]graphtide run --config /etc/graphtide/graphtide.toml[/cyan]",
    "[cyan]graphtide run --kafka broker1:9092 --topic edges --set graph.directed=false[/cyan]",
    "SIGTERM drains, writes a checkpoint and exits 0. The settings: graphtide config.",
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
    from ..signals import stopped_while_it_loads

    with stopped_while_it_loads():
        _run(
            flags_of(
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
        loaded = loaded_of(config, flags)
    require_address_space(loaded.config.compute.thread_count())
    # The graph is nobody else's: whatever the daemon makes, files and folders, is its user's alone.
    os.umask(0o077)
    from ..again import StartAgain, replace_process
    from ..logs import configure
    from ..serve.template import Template

    configure(loaded.config.log.level, loaded.config.log.format)
    shown = sys.stderr.isatty() if progress is None else progress
    id_kind, python_modules = loaded.config.graph.vertex_ids, loaded.config.compute.python_modules

    def answer(door: socket) -> None:
        with _loading():
            from ..serve.server import serve_door
        serve_door(door, id_kind, python_modules)

    gc.freeze()  # the template shares what is loaded by now, as long as nobody writes to it
    try:
        with closing(Template(id_kind, python_modules, answer)) as template:
            with _loading():
                from ..service import serve  # while the template loads what it alone needs
            raise typer.Exit(serve(loaded.config, template, progress=shown))
    except StartAgain as again:
        replace_process(again.lost)


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


KERNELS_EPILOG = examples(
    "[cyan]graphtide kernels --config /etc/graphtide/graphtide.toml[/cyan]  after an upgrade, then restart",
    "[cyan]graphtide kernels --portable[/cyan]  in the recipe of an image, as who may write the package",
    "Where kernels came compiled with graphtide and fit this machine, there is nothing to do.",
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
        from ..tools.portable import compile_portable

        forms, file = compile_portable()
        print(f"{forms} kernels in {file}")
        return
    loaded = loaded_of(config, flags_of(settings))
    import threading

    from ..logs import configure
    from ..warm_up import warm_up

    configure(loaded.config.log.level, loaded.config.log.format)
    warm_up(loaded.config, threading.Event(), lambda share: None, progress=sys.stderr.isatty())


DEMO_EPILOG = examples(
    "[cyan]graphtide demo[/cyan]",
    "[cyan]graphtide demo --data collegemsg.events.tsv.xz --window 86400 --keep ./demo[/cyan]",
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
    from ..tools.demo import run_demo

    raise typer.Exit(run_demo(data=data, updates=updates, window=window, keep=keep))


DOCTOR_EPILOG = examples(
    "[cyan]graphtide doctor[/cyan]",
    "[cyan]graphtide doctor --config /etc/graphtide/graphtide.toml --json[/cyan]",
)


def doctor(config: ConfigFile = None, settings: SetFlags = None, json: JsonFlag = False) -> None:
    """Check this machine and the settings; exit 1 when the daemon could not run."""
    loaded = loaded_of(config, flags_of(settings))
    from ..tools.doctor import report

    raise typer.Exit(report(loaded.config, as_json=json))


CONFIG_EPILOG = examples(
    "[cyan]graphtide config[/cyan]  all settings, commented",
    "[cyan]graphtide config --set epoch.updates_max=1000 > graphtide.toml[/cyan]  a file to begin with",
    "[cyan]graphtide config --schema[/cyan]  the JSON schema, for editors",
)


def show_config(
    config: ConfigFile = None,
    settings: SetFlags = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema instead.")] = False,
) -> None:
    """Print the effective settings as commented TOML, with where each came from, secrets masked."""
    if schema:
        import json

        from ..config.settings import Config

        print(json.dumps(Config.model_json_schema(), indent=2))
        return
    loaded = loaded_of(config, flags_of(settings))
    from ..config.show import effective_toml

    print(effective_toml(loaded), end="")


VERSION_EPILOG = examples("[cyan]graphtide version[/cyan]", "[cyan]graphtide version --json[/cyan]")


def version(json: JsonFlag = False) -> None:
    """Print the version."""
    import platform

    from ... import __version__

    if json:
        import json as encoder

        print(encoder.dumps({"graphtide": __version__, "python": platform.python_version()}))
    else:
        print(f"graphtide {__version__}")
