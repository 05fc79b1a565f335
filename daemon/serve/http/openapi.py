"""The description of the HTTP door for programs, in OpenAPI 3.1, made of what the clients know of the requests.

``python -m graphtide.daemon.serve.http.openapi > docs/openapi.json`` writes the copy that is kept.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import orjson

from .... import __version__
from ...client import results
from ..methods import METHODS
from .described import Parameter, described
from .offered import NOT_HERE, READS

Schema = dict[str, Any]

ID: Schema = {"type": ["integer", "string"], "description": "A vertex; integers past 2^53 are strings of digits."}
EPOCH: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
NUMBER: Schema = {
    "type": ["number", "string", "null"],
    "description": "Whole numbers past 2^53 are strings of digits; NaN, Infinity and -Infinity are strings, too.",
}
OBJECT: Schema = {"type": "object"}

PARAMETERS: dict[str, Schema] = {
    "str": {"type": "string"},
    "str | list[str] | tuple[str, ...]": {"type": ["string", "array"], "items": {"type": "string"}},
    "int": {"type": "integer"},
    "float": {"type": "number", "minimum": 0},
    "bool": {"type": "boolean"},
    "int | str": {"$ref": "#/components/schemas/Id"},
    "VertexIds": {"type": "array", "items": {"$ref": "#/components/schemas/Id"}},
    "WireOffsets": {"$ref": "#/components/schemas/Offsets"},
    "tuple[int, int]": {"$ref": "#/components/schemas/Epoch"},
}
"""By the kind of a parameter."""
FIELDS: dict[str, Schema] = {
    "tuple[int, int]": {"$ref": "#/components/schemas/Epoch"},
    "WireOffsets": {"$ref": "#/components/schemas/Offsets"},
    "Ids": {"type": "array", "items": {"$ref": "#/components/schemas/Id"}},
    "VertexIds": {"type": "array", "items": {"$ref": "#/components/schemas/Id"}},
    "int": {"type": "integer"},
    "int | str": {"$ref": "#/components/schemas/Id"},
    "float": {"$ref": "#/components/schemas/Number"},
    "npt.NDArray[np.bool_]": {"type": "array", "items": {"type": "boolean"}},
    "Mapping[str, Any]": OBJECT,
    "Mapping[str, float]": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Number"}},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
}
"""By the type of an answer's field; other arrays are of numbers."""
CLIENTS_OWN: dict[str, frozenset[str]] = {
    "Values": frozenset({"program", "ids"}),
    "Top": frozenset({"program"}),
    "Change": frozenset({"program"}),
    "Computed": frozenset({"program"}),
    "Degree": frozenset({"ids"}),
    "EdgeFlags": frozenset({"src", "dst"}),
}
"""Fields of results that no answer has: clients note there what was asked for."""
ERRORS = {
    "400": "The request cannot be answered as it stands.",
    "401": "A token is asked for, and this is none that is right.",
    "403": "A page of another server asked.",
    "404": "There is no such method, program or vertex.",
    "405": "Not by this verb.",
    "408": "No request came in time.",
    "413": "More than a limit allows.",
    "415": "The body is no application/json.",
    "421": "The server is not called so.",
    "431": "The head is longer than 16 KiB.",
    "500": "The server failed; its log says why.",
    "503": "Busy, or starting: try again.",
    "504": "No epoch covered `min_offsets` in time.",
    "505": "Neither HTTP/1.1 nor HTTP/1.0.",
}


def document() -> dict[str, Any]:
    """The whole description."""
    paths = {f"/v1/{name}": _path(name) for name in sorted(METHODS.keys() - NOT_HERE)}
    kinds = [kind for kind in vars(results).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    answers = {kind.__name__: _answer(kind) for kind in kinds} | {"ValuesByProgram": _by_program()}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "graphtide",
            "version": __version__,
            "description": "Results of graph programs, kept exact while the graph changes. Every answer is of one "
            "epoch. docs/http.md has the rules, docs/protocol.md the methods.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "responses": {
                f"Error{status}": {"description": what, "content": error} for status, what in ERRORS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Id": ID,
                "Epoch": {**EPOCH, "description": "Incarnation and number."},
                "Number": NUMBER,
                "Offsets": {**OBJECT, "description": "Topic -> partition -> next offset, or file -> next byte."},
                "Error": {
                    "type": "object",
                    "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "detail": OBJECT},
                    "required": ["code", "message", "detail"],
                },
                **dict(sorted(answers.items())),
            },
        },
    }


def text() -> str:
    """As it stands in the file."""
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _path(name: str) -> dict[str, Any]:
    known = described(name)
    parameters = () if known is None else known.parameters
    summary = (inspect.getdoc(METHODS[name]) or "").partition("\n")[0]
    shared = {"summary": summary, "responses": _responses(name)}
    body: Schema = {"type": "object", "properties": {one.name: _parameter(one) for one in parameters}}
    if known is not None and known.takes_further:
        body["additionalProperties"] = {"description": "The program's own parameters."}
    if required := [one.name for one in parameters if one.is_required]:
        body["required"] = required
    content = {"application/json": {"schema": body}}
    post = {"operationId": name, **shared, "requestBody": {"required": bool(required), "content": content}}
    if name not in READS:
        return {"post": post}
    given = [_in_query(one) for one in parameters]
    return {"get": {"operationId": f"{name}_by_query", **shared, "parameters": given}, "post": post}


def _in_query(one: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": one.name, "in": "query", "required": one.is_required}
    if one.kind == "WireOffsets":
        return {**shown, "content": {"application/json": {"schema": _parameter(one)}}}
    if one.kind == "tuple[int, int]":
        return {**shown, "schema": {"type": "string", "description": "INCARNATION.NUMBER"}}
    several = {"style": "form", "explode": False} if one.kind == "VertexIds" else {}
    return {**shown, **several, "schema": _parameter(one)}


def _parameter(one: Parameter) -> Schema:
    schema = PARAMETERS.get(one.kind, {})
    return schema if one.default is None or "$ref" in schema else {**schema, "default": one.default}


def _responses(name: str) -> dict[str, Any]:
    known = described(name)
    if name == "subscribe":
        good: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
    else:
        kinds = [kind.__name__ for kind in ((known and known.answers) or (results.Info,))]
        if name == "get":
            kinds.append("ValuesByProgram")
        schemas = [{"$ref": f"#/components/schemas/{kind}"} for kind in dict.fromkeys(kinds)]
        good = {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    wrong = {status: {"$ref": f"#/components/responses/Error{status}"} for status in ERRORS}
    return {"200": {"description": "The answer, of one epoch.", "content": good}, **wrong}


def _answer(kind: type) -> Schema:
    without = CLIENTS_OWN.get(kind.__name__, frozenset()) | {"content"}
    fields = [field for field in dataclasses.fields(kind) if field.name not in without]
    schema: Schema = {
        "type": "object",
        "properties": {field.name.removesuffix("_"): _field(str(field.type)) for field in fields},
    }
    schema["required"] = ["epoch", "offsets"]
    return schema


def _by_program() -> Schema:
    """Of ``get`` for an array of programs."""
    values = _answer(results.Values)["properties"]
    shared = {name: values.pop(name) for name in ("epoch", "offsets", "unknown")}
    one = {"type": "object", "properties": values, "required": ["values"]}
    programs = {"type": "object", "additionalProperties": one}
    return {"type": "object", "properties": {**shared, "results": programs}, "required": [*shared, "results"]}


def _field(annotation: str) -> Schema:
    kind = annotation.removesuffix(" | None")
    numbers: Schema = {"type": "array", "items": {"$ref": "#/components/schemas/Number"}}
    schema = FIELDS.get(kind, numbers if "Array" in kind else {})
    return schema if kind == annotation else {"anyOf": [schema, {"type": "null"}]}


if __name__ == "__main__":
    print(text(), end="")
