"""What producers call the columns of an update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from .section import Problem, Section, Words

OpName = Literal["insert", "delete", "insert_vertex", "delete_vertex"]


ColumnName = str | tuple[str, ...]
"""What leads to a column: names with dots between, or a list of names, in which dots mean nothing."""


def path_of(name: ColumnName) -> tuple[str, ...]:
    """The names one by one."""
    return tuple(name.split(".")) if isinstance(name, str) else name


class ColumnsConfig(Section):
    """What producers call the columns of an update, in JSON, in header lines of CSV and in captured tables."""

    src: ColumnName = Field(
        default="src",
        description="The edge's tail. In JSON the dots of a name lead into objects: `payload.after.a`. A list has "
        'the names one by one, so that they may have dots: `["payload", "after.a"]`. Where anything in this table '
        "is given, columns that it does not name are not read, and those that it names must be there (the weight: "
        "of an insert).",
        examples=["from_account"],
    )
    dst: ColumnName = Field(default="dst", description="The edge's head.", examples=["to_account"])
    op: ColumnName | None = Field(
        default=None,
        description="The operation; not given: all are inserts. Change events of Debezium have their own.",
        examples=["kind"],
    )
    weight: ColumnName | None = Field(
        default=None,
        description="The weight, in JSON a number or the text of one; not given: 1.0.",
        examples=["amount"],
    )
    ts: ColumnName | None = Field(
        default=None,
        description="The time, milliseconds since 1970; not given: the record's own.",
        examples=["at"],
    )
    op_values: dict[OpName, Words] = Field(
        default_factory=dict,
        description="What stands for `insert`, `delete`, `insert_vertex` and `delete_vertex`: a list of texts for "
        "each (`true` and `1` are also the JSON values). With any other value a record is bad. Not given: these "
        "names.",
    )

    def problems(self) -> Iterator[Problem]:
        names = {key: getattr(self, key) for key in ("src", "dst", "op", "weight", "ts")}
        given = {key: path_of(name) for key, name in names.items() if name is not None}
        for key, name in given.items():
            if not name or not all(name):
                yield key, "must be a name, or names with dots between them, or a list of names"
            # In a header line a name with dots is one name, however it is given.
            if same := [o for o, taken in given.items() if ".".join(taken) == ".".join(name) and o != key]:
                yield key, f"must differ from source.columns.{same[0]}"
        if self.op_values and self.op is None:
            yield "op_values", "must be left out without source.columns.op"
        texts = [text for values in self.op_values.values() for text in values]
        if repeated := {text for text in texts if texts.count(text) > 1}:
            yield "op_values", f"must name each value once ({', '.join(sorted(repeated))})"
