"""Settings from a TOML file, the environment and flags, with every mistake reported at once.

Later layers win key by key: file, then ``GRAPHTIDE_SECTION__KEY`` variables, then flags. Lists (``[[program]]``
among them) are replaced whole. Each value remembers where it came from, for messages and ``graphtide config``.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import json
import os
import re
import reprlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ...gpma.index.ids import INTEGER, MAX_STRING_ID_BYTES
from ..client.addresses import UnknownHome, from_home
from ..errors import ConfigError
from ..os_errors import why
from .secrets import is_secret
from .sections.graph import GraphConfig
from .sections.programs import ProgramConfig
from .sections.section import Section
from .settings import Config

ENV_PREFIX = "GRAPHTIDE_"
MASK = "********"
_PLAINLY = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number, and not so large",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "path_type": "must be a path, as text",
}
"""What validators say at greater length."""

DEEPEST = 32
"""Tables and lists of settings stand in each other so deep at most; none needs four."""
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, and where each value that was given came from (dotted key -> origin)."""

    config: Config
    origins: Mapping[str, str]


@dataclass(slots=True)
class _Layers:
    """Tables merged so far, the origin of every value in them, and what was wrong on the way."""

    tables: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def merge(self, table: Mapping[str, Any], origin: str) -> None:
        for path, value in _leaves(table):
            self.put(path, value, origin)

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        if len(path) > DEEPEST:
            self.report(path[:2], MASK, f"must have no more than {DEEPEST} parts", origin)
            return
        *parents, last = path
        table = self.tables
        for depth, name in enumerate(parents):
            inner = table.setdefault(str(name), {})
            if not isinstance(inner, dict):
                self.report(path[: depth + 1], inner, "must be a table", self.origin(path[: depth + 1]))
                return
            table = inner
        table[str(last)] = value
        self.origins = {old: text for old, text in self.origins.items() if old[: len(path)] != path}
        self.origins[path] = origin

    def origin(self, path: KeyPath) -> str:
        """Where the value at, around or below this path came from."""
        for length in range(len(path), 0, -1):
            if found := self.origins.get(path[:length]):
                return found
        below = (text for given, text in self.origins.items() if given[: len(path)] == path)
        return next(below, "default")

    def report(self, path: KeyPath, value: Any, allowed: str, origin: str) -> None:
        self.problems.append({"key": dotted(path), "value": value, "allowed": allowed, "origin": origin})


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[tuple[str, str, str]] = (),
) -> Loaded:
    """Read and validate the settings.

    ``flags`` are (flag as typed, dotted key, text), for example ``("--set", "epoch.updates_max", "1000")``.

    Raises:
        ConfigError: listing every problem as key, value, what is allowed and where it came from.
    """
    layers = _Layers()
    if file is not None:
        try:
            file = Path(from_home(str(file)))
        except UnknownHome as error:
            raise ConfigError(f"the configuration file {file}: {error}") from error
        layers.merge(_read_toml(file), f"file {file}")
    for name, path, text in _from_environment(os.environ if environ is None else environ):
        layers.put(path, parse_text(text), f"environment {name}")
    for name, section, key in _misnamed(os.environ if environ is None else environ):
        meant = f"{ENV_PREFIX}{section}__{key}".upper()
        allowed = f"as a variable it is {meant}, with two underscores"
        layers.report((section, key), MASK, allowed, f"environment {name}")  # a table may hold passwords
    for flag, key, text in flags:
        if not key or not all(key.split(".")):
            layers.report((key,), text, "must be section.key=value", f"flag {flag}")
            continue
        layers.put(tuple(key.split(".")), parse_text(text), f"flag {flag}")
    return _validate(layers)


def from_tables(tables: Mapping[str, Any], origin: str = "tables") -> Config:
    """Validate settings given as nested tables, as a TOML file would hold them.

    Raises:
        ConfigError: as ``load`` does.
    """
    layers = _Layers()
    layers.merge(tables, origin)
    return _validate(layers).config


def _is_too_deep(value: object) -> bool:
    """Whether tables and lists stand in each other more than ``DEEPEST`` deep; dots in a key make tables, too."""
    left = [(value, 0)]
    while left:
        value, depth = left.pop()
        if depth > DEEPEST:
            return True
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        left += [(item, depth + 1) for item in inner]
    return False


def parse_text(text: str) -> Any:
    """A value from a flag or variable: JSON or TOML for lists and tables, else the text as it stands.

    Numbers and switches stay text here; their fields know how to read them.
    """
    if not text.startswith(("[", "{")):
        return text
    for read in (json.loads, lambda text: tomllib.loads(f"value = {text}")["value"]):
        with contextlib.suppress(json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError):
            value = read(text)
            return text if _is_too_deep(value) else value
    return text


def dotted(path: KeyPath) -> str:
    """``("program", 0, "source")`` as ``program[0].source``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _leaves(table: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes().removeprefix(codecs.BOM_UTF8)  # which some editors write
        tables = tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"the configuration file {file} cannot be read: {why(error)}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"the configuration file {file} is not UTF-8 (at line {line})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration file {file} is not TOML: {error}") from error
    if _is_too_deep(tables):
        raise ConfigError(f"the configuration file {file} nests tables or lists more than {DEEPEST} deep")
    return tables


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, KeyPath, str]]:
    """``GRAPHTIDE_SECTION__KEY`` and whole sections as ``GRAPHTIDE_SECTION``.

    Other names are let be: orchestrators put variables such as GRAPHTIDE_SERVICE_HOST beside a service.
    """
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            if (len(path) > 1 and all(path)) or path[0] in Config.model_fields:
                yield name, path, environ[name]


def _misnamed(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, section and key of variables that lack the second underscore: they would set nothing."""
    for section in Config.model_fields:
        model = _model_at((section,))
        for key in model.model_fields if model is not None else ():
            name = f"{ENV_PREFIX}{section}_{key}".upper()
            if name in environ:
                yield name, section, key


# -- validation -------------------------------------------------------------------------------------------


def _validate(layers: _Layers) -> Loaded:
    sections: dict[str, Any] = {}
    for name, value in layers.tables.items():
        known = Config.model_fields.get(name)
        if known is None:
            _unknown(layers, (name,), value, Config)
            continue
        try:
            section = TypeAdapter(known.rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                _translate(layers, name, details)
            continue
        sections[name] = section
        if isinstance(section, Section):
            for key, allowed in section.problems():
                path = (name, *key.split("."))
                layers.report(path, _value_at(layers.tables, path), allowed, layers.origin(path))
    config = Config.model_construct(**{**_defaults(), **sections})
    # What one section means for another is not asked of the defaults that stand for one with mistakes.
    wrong = layers.tables.keys() & Config.model_fields.keys() - sections.keys()
    if "program" in sections or config.compute.python_modules:
        programs = _checked_programs(layers, config, None if "graph" in wrong else config.graph)
        config = config.model_copy(update={"program": programs})
    for key, allowed in () if wrong else config.problems():
        path = tuple(key.split("."))
        layers.report(path, _value_at(layers.tables, path), allowed, layers.origin(path))
    if layers.problems:
        raise _error(layers.problems)
    return Loaded(config, {dotted(path): origin for path, origin in layers.origins.items()})


def _defaults() -> dict[str, Any]:
    return {name: known.get_default(call_default_factory=True) for name, known in Config.model_fields.items()}


def plainly(message: str) -> str:
    """What Pydantic says of a value, as a sentence about the option or key that it stands behind."""
    return re.sub(r"^(Value error, )|^\w+ should ", lambda found: "" if found[1] else "must ", message)


def _translate(layers: _Layers, section: str, details: ErrorDetails) -> None:
    path: KeyPath = (section, *details["loc"])
    if details["type"] == "extra_forbidden":
        _unknown(layers, path, details["input"], _model_at(path[:-1]))
        return
    if details["type"] == "missing":
        layers.report(path, None, "must be given", layers.origin(path[:-1]))
        return
    # The alternatives of a union show as parts of the location: they mean nothing to the reader.
    given = path
    while len(path) > 2 and _value_at(layers.tables, path) is None:
        path = path[:-1]
    message = _PLAINLY.get(details["type"]) or plainly(details["msg"])
    if details["type"] in ("too_short", "too_long"):
        of = "characters" if isinstance(details["input"], str) else "entries"
        message = re.sub("items? after validation", of, message)
    if details["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be a table"
    if details["type"] in ("tuple_type", "list_type"):
        message = "must be a list of tables: [[program]]" if path == ("program",) else "must be a list"
    before = layers.problems[-1] if layers.problems else {}
    if path != given and before.get("key") == dotted(path) and message.startswith("must be "):
        before["allowed"] += f" or {message.removeprefix('must be ')}"
        return
    layers.report(path, details["input"], message, layers.origin(path))


def _unknown(layers: _Layers, path: KeyPath, value: Any, model: type[BaseModel] | None) -> None:
    known = list(model.model_fields) if model is not None else []
    close = difflib.get_close_matches(str(path[-1]).lower(), known, n=1)
    hint = f"did you mean {dotted((*path[:-1], close[0]))}?" if close else f"known here: {', '.join(known)}"
    what = "key" if len(path) > 1 else "section"
    secret = bool(close) and is_secret(close[0])
    layers.report(path, MASK if secret else value, f"unknown {what}; {hint}", layers.origin(path))


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model of the table at this path; tables within lists have none."""
    model: type[BaseModel] = Config
    for part in path:
        known = model.model_fields.get(str(part))
        inner = known.annotation if known is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def _value_at(tables: Any, path: KeyPath) -> Any:
    value = tables
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _error(problems: Sequence[dict[str, Any]]) -> ConfigError:
    lines = []
    unique: dict[tuple[str, str], dict[str, Any]] = {}
    for problem in problems:
        shown = MASK if is_secret(problem["key"]) and problem["value"] is not None else problem["value"]
        unique.setdefault((problem["key"], problem["allowed"]), {**problem, "value": _printable(shown)})
    for problem in unique.values():
        value = "" if problem["value"] is None else f" = {problem['value']}"
        lines.append(f"{problem['key']}{value}: {problem['allowed']} ({problem['origin']})")
    if len(lines) == 1:
        return ConfigError(f"configuration: {lines[0]}", {"problems": list(unique.values())})
    text = "\n  ".join([f"configuration: {len(lines)} problems", *lines])
    return ConfigError(text, {"problems": list(unique.values())})


def _printable(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return "a table"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."


# -- programs ---------------------------------------------------------------------------------------------


def _checked_programs(layers: _Layers, config: Config, graph: GraphConfig | None) -> tuple[ProgramConfig, ...]:
    """The programs with their ids filled in; mistakes are reported to ``layers``.

    ``graph``: None where that section has mistakes itself.
    """
    # Loading every program loads Numba: only whoever names programs pays for it.
    from ...compute import registry
    from ...compute.program import ProgramError

    programs = config.program
    named: list[ProgramConfig] = []
    loaded = False
    try:
        registry.load_modules(config.compute.python_modules)
        loaded = True
    except ProgramError as error:
        key = ("compute", "python_modules")
        layers.report(key, list(config.compute.python_modules), str(error), layers.origin(key))
    for position, program in enumerate(programs):
        # A program that is not known may be one of a module that could not be imported.
        is_known = loaded or program.name in registry.KINDS
        try:
            if is_known:
                registry.parse_parameters(program.name, program.parameters, beside=ProgramConfig.OWN)
            if is_known and graph is not None:
                registry.program_class(program.name).require_weights(graph.weights)
                _require_ids(program, graph.vertex_ids)
        except ProgramError as error:
            path: KeyPath = ("program", position)
            layers.report(path, None, str(error), layers.origin(path))
        ambiguous = sum(other.name == program.name for other in programs) > 1
        default = registry.default_id(program.name, program.parameters, ambiguous=ambiguous)
        named.append(program.model_copy(update={"id": program.id or default}))
    taken: set[str] = set()
    for position, program in enumerate(named):
        if program.id in taken:
            path = ("program", position, "id")
            layers.report(path, program.id, "must differ from the other programs' ids", layers.origin(path))
        taken.add(program.id)
    return tuple(named)


def _require_ids(program: ProgramConfig, kind: Literal["int", "string"]) -> None:
    """Of a program that starts from vertices.

    Raises:
        ProgramError: what it starts from can be no ids of the graph.
    """
    from ...compute import registry
    from ...compute.program import ProgramError, parse_sources

    for parameter in registry.program_class(program.name).parameters:
        if not parameter.is_sources or parameter.name not in program.parameters:
            continue
        given = program.parameters[parameter.name]
        for id in parse_sources(given):
            if kind == "int" and isinstance(id, str) and not _is_int64(id):
                expected = "64-bit integers, as graph.vertex_ids is 'int'"
            elif len(str(id).encode()) > MAX_STRING_ID_BYTES:
                expected = f"texts of at most {MAX_STRING_ID_BYTES} bytes"
            else:
                continue
            shown = reprlib.repr(given)
            raise ProgramError(f"{program.name}: {parameter.name} = {shown} is not allowed; expected {expected}")


def _is_int64(text: str) -> bool:
    return INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63
