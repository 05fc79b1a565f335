"""What the clients answer with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .frames import frame, frame_of_entries

if TYPE_CHECKING:
    from pandas import DataFrame

Ids = npt.NDArray[np.int64] | list[str]
"""External ids: int64[n], or strings."""
VertexIds = Sequence[int] | Sequence[str] | npt.NDArray[Any]
WireOffsets = Mapping[str, Any]
"""Topic -> partition -> next offset; file -> next byte."""


@dataclass(frozen=True, slots=True)
class Result:
    """``epoch``: (incarnation, number); ``offsets``: the next offset of every source partition."""

    epoch: tuple[int, int]
    offsets: WireOffsets


@dataclass(frozen=True, slots=True)
class Values(Result):
    """``values``: a masked array in the order of the request, masked where a vertex has no value or is unknown.

    ``unknown``: ids that the epoch does not know. ``parents``: external ids, masked where there is none.
    ``stale``: why and since when the values are older than the epoch; None when they are not. ``saturated``:
    bool per vertex, True where the value is only a lower bound; None when all are exact. ``program`` and ``ids``
    are what was asked for.
    """

    values: np.ma.MaskedArray[Any, Any]
    unknown: Ids
    parents: np.ma.MaskedArray[Any, Any] | None = None
    stale: Mapping[str, Any] | None = None
    saturated: npt.NDArray[np.bool_] | None = None
    program: str = "values"
    ids: VertexIds = ()

    def to_frame(self) -> DataFrame:
        """By the ids that were asked for: the program's values, and its parents if they were asked for."""
        return frame(_columns(self.program, self), _index(self.ids))


class ValuesByProgram(dict[str, Values]):
    """The values of several programs in one epoch, by program."""

    def to_frame(self) -> DataFrame:
        """By the ids that were asked for, a column for each program, and its parents."""
        columns: dict[str, Any] = {}
        ids: VertexIds = ()
        for program, values in self.items():
            columns |= _columns(program, values)
            ids = values.ids
        return frame(columns, _index(ids))


@dataclass(frozen=True, slots=True)
class Checkpoint(Result):
    """``path``: the folder of a checkpoint, on the daemon's machine."""

    path: str


@dataclass(frozen=True, slots=True)
class Top(Result):
    """The best vertices and their values, best first. ``unknown``: chosen ids that the epoch does not know."""

    ids: Ids
    values: npt.NDArray[Any]
    stale: Mapping[str, Any] | None = None
    unknown: Ids = field(default_factory=list)
    program: str = "values"

    def to_frame(self) -> DataFrame:
        """By vertex, the best one first: the program's values."""
        return frame({self.program: self.values}, self.ids)


@dataclass(frozen=True, slots=True)
class Histogram(Result):
    """``counts[i]`` vertices have values from ``edges[i]`` on below ``edges[i + 1]``, or at the last edge.

    int64[n] and float64[n + 1]. ``outside``: vertices whose values are in no bin (infinite, or not above 0 on a
    logarithmic scale); ``without_value``: those that have none.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    outside: int
    without_value: int
    stale: Mapping[str, Any] | None = None

    def to_frame(self) -> DataFrame:
        """A row for each bin: ``left``, ``right`` and ``count``."""
        return frame({"left": self.edges[:-1], "right": self.edges[1:], "count": self.counts})


@dataclass(frozen=True, slots=True)
class Path(Result):
    """``vertices`` from the source to the target, none when there is no path; ``weights``: one per edge."""

    vertices: Ids
    value: float | None
    weights: npt.NDArray[np.float32] | None
    stale: Mapping[str, Any] | None = None

    def to_frame(self) -> DataFrame:
        """By vertex, from the source on: ``weight`` of the edge that leads to it, in weighted graphs."""
        if self.weights is None:
            return frame({}, self.vertices)
        n = len(self.vertices)
        weights = np.concatenate([np.zeros(min(n, 1), np.float32), self.weights])
        return frame({"weight": np.ma.MaskedArray(weights, mask=np.arange(n) == 0)}, self.vertices)


@dataclass(frozen=True, slots=True)
class Component(Result):
    """``label``: the smallest id in the component, what names the community, or the k of the core; ``members``: as
    many as were asked for.

    Where results are ``stale`` and the vertex that gave the label has been deleted since, it is None.
    """

    label: int | str | None
    size: int
    members: Ids
    stale: Mapping[str, Any] | None = None

    def to_frame(self) -> DataFrame:
        """The members, as an index without columns."""
        return frame({}, self.members)


@dataclass(frozen=True, slots=True)
class Neighbors(Result):
    """A page of neighbours; ``cursor`` asks for the next one, None when there is none."""

    ids: Ids
    weights: npt.NDArray[np.float32] | None
    cursor: int | None

    def to_frame(self) -> DataFrame:
        """By neighbour: ``weight`` of the edge, in weighted graphs."""
        return frame({} if self.weights is None else {"weight": self.weights}, self.ids)


@dataclass(frozen=True, slots=True)
class Reach(Result):
    """Vertices in the order in which a breadth-first search finds them, the one asked about first.

    ``distances``: uint32[n], in hops. ``truncated``: there are more, none of them nearer than the last one here.
    """

    ids: Ids
    distances: npt.NDArray[np.uint32]
    truncated: bool

    def to_frame(self) -> DataFrame:
        """By vertex: its ``distance``."""
        return frame({"distance": self.distances}, self.ids)


@dataclass(frozen=True, slots=True)
class Edges(Result):
    """Edges ``src[i] -> dst[i]``, those of undirected graphs once; ``weights``: None where the graph has none.

    ``size``: how many there are, also of those that are left out. ``unknown``: ids that are no vertices.
    """

    src: Ids
    dst: Ids
    weights: npt.NDArray[np.float32] | None
    size: int
    unknown: Ids

    @property
    def truncated(self) -> bool:
        """There are more edges."""
        return self.size > len(self.src)

    def to_frame(self) -> DataFrame:
        """A row for each edge: ``src``, ``dst`` and, in weighted graphs, ``weight``."""
        return _edges(self.src, self.dst, self.weights)


@dataclass(frozen=True, slots=True)
class Egonet(Result):
    """``ids``: a vertex and its neighbours; ``src``, ``dst``, ``weights`` and ``size``: the edges among them, as
    those of ``Edges``. ``truncated``: there are more neighbours."""

    ids: Ids
    truncated: bool
    src: Ids
    dst: Ids
    weights: npt.NDArray[np.float32] | None
    size: int

    def to_frame(self) -> DataFrame:
        """A row for each edge, as ``Edges.to_frame``."""
        return _edges(self.src, self.dst, self.weights)


@dataclass(frozen=True, slots=True)
class Degree(Result):
    """Degrees in the order of the request, masked where a vertex is unknown; ``in_`` None: not kept."""

    out: np.ma.MaskedArray[Any, Any]
    in_: np.ma.MaskedArray[Any, Any] | None
    unknown: Ids
    ids: VertexIds = ()

    def to_frame(self) -> DataFrame:
        """By the ids that were asked for: ``out``, and ``in`` where it is kept."""
        columns = {"out": self.out} if self.in_ is None else {"out": self.out, "in": self.in_}
        return frame(columns, _index(self.ids))


@dataclass(frozen=True, slots=True)
class DegreeDistribution(Result):
    """``counts[i]`` vertices have ``degrees[i]`` edges: int64[n] both, ``degrees`` in ascending order."""

    degrees: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def to_frame(self) -> DataFrame:
        """A row for each ``degree``: its ``count``."""
        return frame({"degree": self.degrees, "count": self.counts})


@dataclass(frozen=True, slots=True)
class EdgeFlags(Result):
    """``exists``: bool, one per edge that was asked about."""

    exists: npt.NDArray[np.bool_]
    src: VertexIds = ()
    dst: VertexIds = ()

    def to_frame(self) -> DataFrame:
        """A row for each edge that was asked about: ``src``, ``dst``, and whether it ``exists``."""
        return frame({"src": _index(self.src), "dst": _index(self.dst), "exists": self.exists})


@dataclass(frozen=True, slots=True)
class Change(Result):
    """What a subscriber did not know yet: ``ids`` with their ``values``, masked where one has no value.

    ``removed``: ids that are no vertices any more, to be taken away before the others are set. These are the
    changes of all epochs after ``since`` up to ``epoch``; where ``since`` is None they are all that there is, and
    what was known before counts no more. ``stale`` and ``saturated``: as those of ``Values``.
    """

    since: tuple[int, int] | None
    ids: Ids
    values: np.ma.MaskedArray[Any, Any]
    removed: Ids
    stale: Mapping[str, Any] | None = None
    saturated: npt.NDArray[np.bool_] | None = None
    program: str = "values"

    def to_frame(self) -> DataFrame:
        """By vertex: the program's values; those that are ``removed`` are not here."""
        return frame({self.program: self.values}, self.ids)

    @property
    def is_snapshot(self) -> bool:
        """It holds everything, and replaces what was known."""
        return self.since is None

    @property
    def merged(self) -> int:
        """Of how many epochs it holds the changes; 0: it is a snapshot."""
        return 0 if self.since is None else self.epoch[1] - self.since[1]


@dataclass(frozen=True, slots=True)
class Computed(Result):
    """What a program that was run once found: its ``scalars``, and ``values`` of vertices where any were wanted.

    ``values``: a masked array in the order of ``ids``, those of the vertices that were asked for (masked where one
    has no value or is ``unknown``) or of the best; None where none were wanted. ``error_bound``: the certified
    relative error per vertex, of programs that approximate. ``seconds``: how long it took, the copy of the graph
    included. ``saturated``: bool, values that are only lower bounds; None: none is.
    """

    ids: VertexIds | None
    values: np.ma.MaskedArray[Any, Any] | None
    unknown: Ids
    scalars: Mapping[str, float]
    error_bound: float | None
    seconds: float
    saturated: npt.NDArray[np.bool_] | None = None
    program: str = "values"

    def to_frame(self) -> DataFrame:
        """By vertex, in the order of what was asked for or the best one first: the program's values."""
        if self.values is None or self.ids is None:
            return frame({})
        return frame({self.program: self.values}, _index(self.ids))


@dataclass(frozen=True, slots=True)
class Kept(Result):
    """``id``: what requests call the program; ``state``: ``"computing"``, ``"fresh"`` ..., or ``"dropped"``."""

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Info(Result, Mapping[str, Any]):
    """The rest of an answer, as it came: a mapping."""

    content: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def to_frame(self) -> DataFrame:
        """A row for each ``entry``, its ``value`` as it came; names of entries inside others have dots."""
        return frame_of_entries(self.content)


def _columns(program: str, values: Values) -> dict[str, Any]:
    own = {program: values.values}
    return own if values.parents is None else {**own, f"{program} parent": values.parents}


def _edges(src: Ids, dst: Ids, weights: npt.NDArray[np.float32] | None) -> DataFrame:
    columns = {"src": src, "dst": dst}
    return frame(columns if weights is None else {**columns, "weight": weights})


def _index(ids: VertexIds) -> Ids:
    """As they were asked for: a column of integers, or a list of strings."""
    listed: list[Any] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return listed if listed and isinstance(listed[0], str) else np.array(listed, np.int64)
