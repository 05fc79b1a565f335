"""Records whose keys name rows, one edge each: what a record says that its key stands for from now on.

An insert of an edge says that it is this edge; a delete, whatever edge it names, and a record without a value,
that it is none. So of what is to go nothing must be known but the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..records.encodings import OBJECTS, REGISTERED
from ..records.stream import RawRecord, UpdateBlock
from . import decode_columns as columns
from .decode_columns import Bad, Reason
from .decode_records import Edge

if TYPE_CHECKING:  # compiled, and few need it
    from .row_keys import KeyHash

_NO_KEY = "a record without a key, where keys stand for edges (source.keyed)"
_NO_OP = "op names a vertex; where keys stand for edges (source.keyed), it is insert or delete"
_MANY = "a list of edges, or columns of them, where a record's key stands for one edge (source.keyed)"


class Keyed:
    """What records come to for one graph."""

    def __init__(self, hashed: KeyHash, vertex_ids: Literal["int", "string"]) -> None:
        self._hashed = hashed
        self._nothing: Any = 0 if vertex_ids == "int" else ""

    def require_one_edge(self, encoding: str) -> None:
        """
        Raises:
            Bad: records of this encoding hold many edges.
        """
        if encoding not in OBJECTS | REGISTERED:
            what = f"a record of encoding {encoding[:80]!r}"
            raise Bad(Reason.NOT_ONE_EDGE, f"{what}, where a record's key stands for one edge (source.keyed)")

    def one(self, edge: Edge | None) -> list[Edge]:
        """The edge that a JSON object stands for.

        Raises:
            Bad: it holds many (None).
        """
        if edge is None:
            raise Bad(Reason.NOT_ONE_EDGE, _MANY)
        return [edge]

    def of(self, record: RawRecord, edges: list[Edge] | Bad) -> list[Edge] | Bad:
        """What a record stands for is what its key stands for; nothing of it is no edge."""
        if isinstance(edges, Bad):
            return edges
        if record.key is None:
            return Bad(Reason.NO_KEY, _NO_KEY)
        op = edges[0].get("op", "insert") if edges else "delete"
        if op == "delete":
            return [{"op": "delete", "src": self._nothing, "dst": self._nothing}]
        return Bad(Reason.BAD_OP, _NO_OP) if columns.on_a_vertex(op) else edges

    def named(self, block: UpdateBlock, records: Sequence[RawRecord]) -> UpdateBlock:
        """With the keys of these records of one topic, one for each update."""
        keys = [record.key or b"" for record in records]
        return replace(block, row_keys=self._hashed.of(records[0].partition.name, keys))
