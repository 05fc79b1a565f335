"""The parameters of a request over HTTP: a JSON object, or for what is simple the query of an address."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

import orjson

from ....compute import registry
from ....compute.program import ProgramError
from ...errors import NotSupported, RequestError
from ..params import wrong
from .described import Parameter, described

FIELDS_MAX = 1024
DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?", re.ASCII)
SEVERAL = ("str | list[str] | tuple[str, ...]", "VertexIds")
"""Kinds of parameters that may be given more than once."""
OF_VERTICES = ("VertexIds", "int | str")


def from_json(method: str, body: bytes, vertex_ids: str) -> dict[str, Any]:
    """The parameters in a request's body; none where it is empty. Ids past 2^53 may be strings of digits.

    Raises:
        RequestError: this is no JSON object.
    """
    if not body:
        return {}
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestError("the body must be a JSON object that holds the parameters")
    if vertex_ids == "int":
        for parameter in _known(method):
            if parameter.kind in OF_VERTICES and parameter.name in given:
                given[parameter.name] = _integers(given[parameter.name])
        if (known := described(method)) is not None and known.takes_further:
            nested = given.get("parameters")
            for name in _sources_of(given.get("program")):
                for one in (given, nested):
                    if isinstance(one, dict) and name in one:
                        one[name] = _integers(one[name])
    return given


def from_query(method: str, query: str, vertex_ids: str) -> dict[str, Any]:
    """The parameters in the query of an address, such as ``program=pagerank&vertices=1,2,3``.

    Raises:
        RequestError: one is not what it should be, or given twice.
        NotSupported: this method takes parameters that have no such form.
    """
    try:
        pairs = parse_qsl(query, True, True, "utf-8", "strict", FIELDS_MAX) if query else []
    except ValueError as error:
        raise RequestError(f"the query of the address: {error}") from None
    known = {parameter.name: parameter for parameter in _known(method)}
    given: dict[str, Any] = {}
    for name, text in pairs:
        if name not in known:
            given[name] = text  # to be refused by the one who knows them all
            continue
        kind = known[name].kind
        value = _parsed(name, kind, text, vertex_ids)
        if name not in given:
            given[name] = value
        elif kind in SEVERAL:
            before = given[name] if isinstance(given[name], list) else [given[name]]
            given[name] = [*before, *(value if isinstance(value, list) else [value])]
        else:
            raise wrong(name, "is given twice")
    return given


def _sources_of(kind: Any) -> list[str]:
    """The parameters of a program that are ids of vertices."""
    try:
        parameters = registry.program_class(kind).parameters
    except (ProgramError, TypeError):
        return []  # which its handler says
    return [parameter.name for parameter in parameters if parameter.is_sources]


def _known(method: str) -> tuple[Parameter, ...]:
    known = described(method)
    return () if known is None else known.parameters


def _parsed(name: str, kind: str, text: str, vertex_ids: str) -> Any:
    match kind:
        case "str" | "str | list[str] | tuple[str, ...]":
            return text
        case "VertexIds":
            items = text.split(",") if text else []
            return _integers(items) if vertex_ids == "int" else items
        case "int | str":
            return _integers(text) if vertex_ids == "int" else text
        case "int":
            if not DIGITS.fullmatch(text):
                raise wrong(name, "must be a whole number")
            return int(text)
        case "float":
            if not NUMBER.fullmatch(text):
                raise wrong(name, "must be a number, 0 or more")
            return float(text)
        case "bool":
            if text not in ("true", "false"):
                raise wrong(name, "must be true or false")
            return text == "true"
        case "tuple[int, int]":
            return epoch(name, text)
        case "WireOffsets":
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError:
                raise wrong(name, "must be JSON: topic -> partition -> offset, or file -> byte") from None
    raise NotSupported(f"{name} must come in the JSON body of a POST", {"parameter": name})


def epoch(name: str, text: str) -> list[int]:
    """An epoch as the ids of events and people write it: ``INCARNATION.NUMBER``.

    Raises:
        RequestError: this is none.
    """
    parts = text.split(".")
    if len(parts) != 2 or not all(part and DIGITS.fullmatch(part) for part in parts):
        raise wrong(name, "must be an epoch: INCARNATION.NUMBER")
    return [int(part) for part in parts]


def _integers(value: Any) -> Any:
    """Strings of digits as the integers they stand for, also those of a list; anything else as it is."""
    if isinstance(value, list):
        if not any(type(item) is str for item in value):
            return value
        return [_integer(item) for item in value]
    return _integer(value)


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) and DIGITS.fullmatch(value) else value
