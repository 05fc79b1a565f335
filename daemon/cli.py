"""The command line: which commands there are, and what their errors say and exit with."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .commands import asking, dead_letters, files, running, state
from .commands.flags import examples, with_homes
from .errors import (
    CheckpointError,
    ConfigError,
    DeadLettersError,
    GraphtideError,
    NotWritten,
    SourceError,
    Unauthorized,
)
from .os_errors import no_thread, why

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


def _show_version(wanted: bool) -> None:
    if wanted:
        running.version()
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version_: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps graph analytics true while the graph changes."""


app.command(epilog=running.RUN_EPILOG)(running.run)
app.command(epilog=running.KERNELS_EPILOG)(running.kernels)
app.command(epilog=running.DEMO_EPILOG)(running.demo)
app.command(epilog=files.PRODUCE_EPILOG)(files.produce)
app.command(epilog=files.LOAD_EPILOG)(files.load)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, epilog=asking.QUERY_EPILOG
)(asking.query)
app.command(epilog=asking.WATCH_EPILOG)(asking.watch)
app.command(epilog=files.RESULTS_EPILOG)(files.results)
app.command(epilog=asking.TOP_EPILOG)(asking.top)
app.command(epilog=state.EXPORT_EPILOG)(state.export)
app.add_typer(state.checkpoint_app, name="checkpoint")
app.add_typer(dead_letters.dead_letters_app, name="dead-letters")
app.command(epilog=running.DOCTOR_EPILOG)(running.doctor)
app.command("config", epilog=running.CONFIG_EPILOG)(running.show_config)
app.command(epilog=running.VERSION_EPILOG)(running.version)


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
