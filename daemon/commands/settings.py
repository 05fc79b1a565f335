"""Settings of a command, of its options and its configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.load import Loaded


def flags_of(
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
    return flags + assignments("--set", settings, "section.key=value")


def assignments(flag: str, given: list[str] | None, form: str, prefix: str = "") -> list[tuple[str, str, str]]:
    """What an option that may be repeated assigns, as flags.

    Raises:
        ConfigError: one of them has no ``=``; ``form`` is what it must be.
    """
    flags = []
    for setting in given or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {setting!r}: must be {form}")
        flags.append((flag, prefix + key.strip(), value))
    return flags


def loaded_of(file: Path | None, flags: list[tuple[str, str, str]]) -> Loaded:
    """The settings of a file, of the environment and of flags.

    Raises:
        ConfigError: they are wrong.
    """
    from ..config.load import load

    return load(file, flags=flags)
