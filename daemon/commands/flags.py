"""What several commands have in common: their options, and examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ..client.addresses import UnknownHome, from_home


class Misused(typer.BadParameter):
    """Arguments that do not go together, or none of which alone is wrong: said without "Invalid value"."""

    def format_message(self) -> str:
        return self.message


def examples(*lines: str) -> str:
    """Examples for the end of a help page, one a line; what one is for is a comment of the shell behind it."""
    commented = (
        line.replace("[/cyan]  ", "[/cyan]  # ") if line.startswith("[cyan]graphtide ") else line for line in lines
    )
    return "\n".join(["[bold]Examples[/bold]", *commented])


def brokers(value: str | None) -> str | None:
    """Checks an option that names brokers, with commas between: as those of the configuration are.

    Raises:
        BadParameter: it names none, or something else.
    """
    from ..config.addresses import parse_tcp

    for server in [] if value is None else value.split(","):
        try:
            parse_tcp(server)
        except ValueError as error:
            raise typer.BadParameter(f"each broker {error} ({server!r} is not)") from None
    return value


def with_homes(args: list[str], app: typer.Typer) -> list[str]:
    """Arguments of a command; of its options, those that are paths may begin with ``~``. (A shell reads that, but
    not behind ``=``, and a service has none.) What has no known home stays as it is."""
    if not any(arg.startswith("~") or "=~" in arg for arg in args):
        return args
    command = _command_of(args, app)
    names = set() if command is None else set(_path_options(command))
    homes, before = [], ""
    for arg in args:
        name, equals, path = arg.partition("=") if before not in names else ("", "", arg)
        is_path = name in names or before in names
        homes.append(f"{name}{equals}{_from_home(path)}" if is_path else arg)
        before = arg
    return homes


def _command_of(args: list[str], app: typer.Typer) -> Callable[..., Any] | None:
    """The function of the command that is asked for."""
    for word in (arg for arg in args if not arg.startswith("-")):
        groups = [group.typer_instance for group in app.registered_groups if group.name == word]
        if groups and groups[0] is not None:
            app = groups[0]
            continue
        called = ((known.name, known.callback) for known in app.registered_commands)
        return next((call for name, call in called if call and (name or call.__name__) == word), None)
    return None


def _path_options(command: Callable[..., Any]) -> Iterator[str]:
    """The names of the options of a command that take a path."""
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters:
        annotated = getattr(hints.get(parameter), "__metadata__", ())
        info = next((item for item in annotated if isinstance(item, typer.models.OptionInfo)), None)
        if info is not None and Path in (given := get_args(hints[parameter])[0], *get_args(given)):
            # Typer takes the first name for the default until it makes the command.
            names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
            yield from names or (f"--{parameter.replace('_', '-')}",)


def _from_home(path: str) -> str:
    try:
        return from_home(path)
    except UnknownHome:
        return path


ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="GRAPHTIDE_CONFIG", help="A TOML file with settings.")
]
SetFlags = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one setting: section.key=value. May be repeated."),
]
SpoolFlag = Annotated[str | None, typer.Option("--spool", metavar="DIR", help="Read this spool directory.")]
KafkaFlag = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Read from these brokers.")]
TopicFlag = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Read this topic. May be repeated.")
]
ListenFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--listen", metavar="ADDRESS", help="Answer queries at unix:PATH or tcp://HOST:PORT. Repeatable."
    ),
]
MetricsFlag = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics there, or `off`.")
]
CheckpointsFlag = Annotated[
    str | None, typer.Option("--checkpoints", metavar="DIR", help="Keep checkpoints there.")
]
ColumnFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="COLUMN=NAME",
        help="What the files call src, dst, op, weight or ts: src=payer. May be repeated.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
AddressFlag = Annotated[
    str | None, typer.Option("--address", "-a", help="A running daemon: unix:PATH or tcp://HOST:PORT.")
]
AtFlag = Annotated[
    str, typer.Option("--at", metavar="EPOCH", help="An epoch as answers show it (1.42), or latest.")
]
WaitFlag = Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait at most this long.")]


def metrics_url(text: str) -> str:
    """``--metrics``: HOST:PORT, or a whole URL.

    Raises:
        BadParameter: it is neither.
    """
    from urllib.parse import urlsplit

    from ..config.addresses import parse_tcp

    try:
        if "://" not in text:
            parse_tcp(text)
            return f"http://{text}/metrics"
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    except ValueError:
        pass
    allowed = f"{text!r} is neither HOST:PORT nor an address that begins with http:// or https://"
    raise typer.BadParameter(allowed, param_hint="--metrics")


def checked(address: str) -> str:
    """An address as clients take it.

    Raises:
        Misused: it is none.
    """
    from ..client.addresses import parse_address

    try:
        parse_address(address)
    except ValueError as error:
        raise Misused(str(error)) from None
    return address


def epoch_of(text: str) -> tuple[int, int] | None:
    """``--at``: an epoch, None for the latest.

    Raises:
        BadParameter: it is neither.
    """
    from ..tools.checkpoints import parse_epoch

    try:
        return parse_epoch(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from None
