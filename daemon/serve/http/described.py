"""What each request takes and answers with, as the clients describe it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...client import results
from ...client.blocking import Client

FURTHER = "Mapping[str, Any]"
"""The kind of a client's parameter that holds further ones, of a program: they stand beside the request's own."""
OF_CLIENTS = frozenset({"self", "reconnect"})
"""Parameters that are none of the request's."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of a request. ``kind``: its type as the client writes it, without None."""

    name: str
    kind: str
    is_required: bool
    default: Any = None


@dataclass(frozen=True, slots=True)
class Described:
    """A request: a sentence about it, its parameters, and the classes of its results.

    ``takes_further``: a program's own parameters may stand beside these.
    """

    summary: str
    parameters: tuple[Parameter, ...]
    answers: tuple[type[results.Result], ...]
    takes_further: bool = False


@cache
def described(method: str) -> Described | None:
    """What the client says of a method; None where it has none of this name."""
    name = method.replace(".", "_")
    function = inspect.getattr_static(Client, name, None)
    if function is None or name.startswith("_") or name == "call":
        return None
    function = getattr(Client, name)
    signature = inspect.signature(function)
    given = [_parameter(one) for one in signature.parameters.values() if _is_of_request(one)]
    parameters = tuple(one for one in given if one.kind != FURTHER)
    named = [vars(results).get(name.strip()) for name in _names(str(signature.return_annotation))]
    answers = tuple(kind for kind in named if isinstance(kind, type) and issubclass(kind, results.Result))
    summary = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    return Described(summary, parameters, answers, len(parameters) < len(given))


def _is_of_request(one: inspect.Parameter) -> bool:
    return one.name not in OF_CLIENTS and one.kind is not one.VAR_KEYWORD  # those of a program, by name


def _parameter(given: inspect.Parameter) -> Parameter:
    kind = str(given.annotation).removesuffix(" | None")
    is_required = given.default is inspect.Parameter.empty
    return Parameter(given.name, kind, is_required, None if is_required else given.default)


def _names(annotation: str) -> list[str]:
    for bracket in "[],|":
        annotation = annotation.replace(bracket, " ")
    return annotation.split()
