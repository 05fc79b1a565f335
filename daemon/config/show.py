"""The settings as text: commented TOML for ``graphtide config``, Markdown for ``docs/configuration.md``.

Run as a module it prints the latter.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from .load import MASK, Loaded
from .secrets import is_secret
from .sections.programs import ProgramConfig
from .sections.section import Words
from .sections.source import Start
from .settings import Config

WIDTH = 100


def effective_toml(loaded: Loaded) -> str:
    """The effective settings as TOML that ``load`` reads again, each with its meaning and origin.

    Secrets are masked and commented out.
    """
    lines: list[str] = []
    for name, section in loaded.config:
        if name == "program":
            for position, program in enumerate(section):
                lines += ["", *_program(program, loaded.origins, position)]
        else:
            lines += ["", *_table(section, name, loaded.origins)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(section: BaseModel, path: str, origins: Mapping[str, str]) -> Iterator[str]:
    yield from _comment((type(section).__doc__ or "").strip())
    yield f"[{path}]"
    inner: list[tuple[str, BaseModel | Mapping[str, Any], str]] = []
    for name, known in type(section).model_fields.items():
        value = getattr(section, name)
        key = f"{path}.{name}"
        if isinstance(value, (BaseModel, Mapping)):
            inner.append((key, value, known.description or ""))
            continue
        yield from _comment(known.description or "")
        yield _assignment(name, value, _origin(key, origins))
    for key, value, description in inner:
        yield ""
        if isinstance(value, BaseModel):
            yield from _table(value, key, origins)
        else:
            yield from _comment(description)
            yield f"[{key}]"
            yield from (_assignment(name, item, _origin(f"{key}.{name}", origins)) for name, item in value.items())


def _program(program: ProgramConfig, origins: Mapping[str, str], position: int) -> Iterator[str]:
    origin = _origin("program", origins)
    if position == 0:
        yield from _comment("The vertex programs to keep up to date.")
    yield "[[program]]"
    for name, value in {"name": program.name, "id": program.id, "place": program.place}.items():
        yield _assignment(name, value, origin)
    for name, value in program.parameters.items():
        yield _assignment(name, value, origin)


def _assignment(name: str, value: Any, origin: str) -> str:
    if isinstance(value, SecretStr) or (is_secret(name) and value is not None):
        return f'# {name} = "{MASK}"  # {origin}'
    if value is None:
        return f"# {name} =  # not set"
    return f"{_key(name)} = {_toml(value)}  # {origin}"


def _origin(key: str, origins: Mapping[str, str]) -> str:
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "default"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH)]


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(name))} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (int, float)):
        return repr(value)
    # A JSON string is a TOML basic string, but for the one control character that JSON lets stand.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


# -- docs/configuration.md --------------------------------------------------------------------------------


def configuration_markdown() -> str:
    """``docs/configuration.md``: every key with its values, default and meaning."""
    lines = [INTRODUCTION]
    for name, known in Config.model_fields.items():
        if name == "program":
            lines += [*_section_markdown(ProgramConfig, "[[program]]"), "", *_programs_markdown()]
        elif isinstance(known.annotation, type):
            lines += _section_markdown(known.annotation, f"[{name}]")
    return "\n".join(lines).rstrip() + "\n"


def _section_markdown(model: type[BaseModel], title: str) -> list[str]:
    path = title.strip("[]")
    inner: list[str] = []
    lines = ["", f"## `{title}`", "", (model.__doc__ or "").strip(), ""]
    lines += ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, known in model.model_fields.items():
        if isinstance(known.annotation, type) and issubclass(known.annotation, BaseModel):
            inner += _section_markdown(known.annotation, f"[{path}.{name}]")
            continue
        if title == "[[program]]" and name == "parameters":
            name = "..."
        cells = (f"`{name}`", _values(known), _default(name, known), known.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines + inner


def _programs_markdown() -> Iterator[str]:
    """What there is for ``name``, and the parameters of each."""
    from ...compute.registry import KINDS

    yield from ("| program | keeps | parameters |", "|---|---|---|")
    for kind, program in KINDS.items():
        parameters = [
            f"`{item.name}`: {item.help} ({'must be given' if item.required else f'default {item.default}'})"
            for item in program.parameters
        ]
        yield f"| `{kind}` | {program.summary} | {'; '.join(parameters)} |"
    yield from ("", PROGRAMS)


def _values(known: FieldInfo) -> str:
    text = _type_words(known.annotation)
    limits = []
    for item in known.metadata:
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("min_length", "length from")):
            if (bound := getattr(item, name, None)) is not None:
                limits.append(f"{words} {bound:,}")
    return ", ".join([text, *limits])


def _type_words(annotation: Any) -> str:
    simple = {
        bool: "`true`, `false`",
        int: "whole number",
        float: "number",
        str: "text",
        Path: "path",
        SecretStr: "text",
        datetime: "date and time",
        Words: "list of texts",
        Start: "`earliest`, `latest`, date and time, table",
    }
    if annotation in simple:
        return simple[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is Annotated:
        return _type_words(arguments[0])
    if origin in (Union, UnionType):
        return ", ".join(_type_words(part) for part in arguments if part is not NoneType)
    return "table" if origin is dict else "list of texts"


def _default(name: str, known: FieldInfo) -> str:
    if known.is_required():
        return "must be given"
    if name == "listen" and known.default_factory is not None:
        return 'a Unix socket, `"tcp://127.0.0.1:7420"`'
    value = known.get_default(call_default_factory=True)
    if isinstance(value, Path):
        return f"`./{value}`"
    return "" if value in (None, "", (), {}) else f"`{_toml(value)}`"


INTRODUCTION = """\
# Configuration

<!-- Written by `python -m graphtide.daemon.config.show > docs/configuration.md`; a test keeps the two equal. -->

`graphtide run` needs no configuration. To change something, write a TOML file and name it with `--config` (or in
`GRAPHTIDE_CONFIG`):

```toml
[source]
kind = "kafka"
bootstrap_servers = ["broker1:9092"]
topics = ["edges"]

[source.client]
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_plain_username = "graphtide"
sasl_plain_password_file = "/etc/graphtide/kafka-password"

[[program]]
name = "bfs"
source = 1
id = "hops"

[[program]]
name = "pagerank"
```

The environment overrides the file, key by key: `GRAPHTIDE_EPOCH__UPDATES_MAX=100000` sets `epoch.updates_max`;
lists and tables are written as JSON or TOML (`GRAPHTIDE_PROGRAM='[{"name": "bfs", "source": 1}]'`), lists of plain
words also with commas. Flags override both: `graphtide run --set epoch.updates_max=100000`.

Unknown keys are refused. All mistakes are reported at once, each with the key, its value, what is allowed and
where it came from. `graphtide config` prints the effective settings with their origins, secrets masked. Relative
paths start at the working directory, and `~` at the beginning of one is the home of the daemon's user. Units stand
last in names."""

PROGRAMS = """\
Without any `[[program]]` table, `components` and `pagerank` are kept. Parameters that a program does not know are
refused; `graphtide query ADDRESS programs` shows those that a running daemon was given."""


if __name__ == "__main__":
    print(configuration_markdown(), end="")
