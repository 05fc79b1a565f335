"""The form of a vertex program: what the engine calls, what the daemon publishes, what a query reads.

A program lives in one file. It keeps its state in columns (NumPy arrays indexed by dense vertex) and says
after each refresh which entries of which column changed, so that publishing costs what changed. Reading
results needs no program instance: ``read`` and ``parents`` work on published columns alone, in another
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..gpma.edges import Vertices
from ..gpma.index.id_order import IdOrder
from ..gpma.row_reads import RowReads
from ..gpma.vertex_columns import grown as grown  # for programs of users, too
from ..partition.graph import Graph, GraphChange
from .parents import vertices_without_root
from .steps import Steps

Column = npt.NDArray[Any]
ExternalId = int | str


class ExternalOrder(Protocol):
    """Compares dense vertices by external id: integers by value, strings by bytes. The vertex index is one."""

    def smallest(self, dense: Vertices) -> int:
        """The vertex with the smallest external id of these (uint32[k], k at least 1)."""
        ...

    def sort_by_external(self, dense: Vertices) -> Vertices:
        """The same vertices (uint32[k]) by ascending external id."""
        ...

    def comparable(self, n_vertices: int) -> IdOrder:
        """What kernels compare two of the first vertices by, for as long as none of these gets another id."""
        ...


class ProgramError(ValueError):
    """A program cannot be made from these parameters; the message names the parameter and what is allowed.

    ``parameter``: its name, where it is the error of one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class NoRoom(MemoryError):
    """A device has no memory for a program that waits for room there (``Program.waits_for_room``). It holds
    nothing of it, and only ``start`` is of use."""


EVIDENCE: Final = 5
"""How many vertices a violation names."""

NO_DEFAULT: Final = object()
"""The default of a parameter that must be given."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a program, as configuration and ``compute`` requests name it.

    ``parse`` turns the given value into the one that the program keeps, or raises ValueError saying what
    is allowed. A parameter without a ``default`` must be given; the default is the value kept, not parsed.
    """

    name: str
    help: str
    parse: Callable[[Any], Any]
    default: Any = NO_DEFAULT

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is NO_DEFAULT

    @property
    def is_sources(self) -> bool:
        """Whether it names vertices that the program starts from, under whatever name."""
        return self.parse is parse_sources


def parse_sources(value: Any) -> tuple[ExternalId, ...]:
    """One vertex id or a list of them, as a tuple without repetitions.

    Raises:
        ValueError: it is neither, is empty, or mixes integers and strings.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    wrong = [item for item in items if isinstance(item, bool) or not isinstance(item, int | str)]
    if wrong or not items:
        raise ValueError("a vertex id (an integer or a string), or a list of at least one")
    if len({type(item) for item in items}) > 1:
        raise ValueError("ids of one kind, all integers or all strings")
    if any(isinstance(item, int) and not -(2**63) <= item < 2**63 for item in items):
        raise ValueError("integers of 64 bits, from -2^63 to 2^63 - 1")
    return tuple(dict.fromkeys(items))


@dataclass(slots=True)  # not frozen, which would cost a small refresh a microsecond
class Refresh:
    """What one run of a program did.

    ``changed``: for each column with changes the dense indices (uint32, each once) whose entries differ from
    before the run, or None where the whole column must be taken as changed; new vertices need not be named.
    ``edges_read``: entries of rows that were looked at. ``active``: the other work, visits of vertices to update
    them, or on the way along parents; a program that lists what it updates counts each once. ``error_bound``: the
    certified relative error per vertex, for programs that approximate. ``counted``: what a device counted, where
    it read rows of the host, too.
    """

    changed: Mapping[str, Vertices | None]
    iterations: int = 0
    edges_read: int = 0
    active: int = 0
    started_over: bool = False
    error_bound: float | None = None
    counted: Callable[[], RowReads] | None = None

    @property
    def reads(self) -> RowReads | None:
        """What was read of rows; fetched from the device when it is first asked for."""
        return None if self.counted is None else self.counted()


@dataclass(frozen=True, slots=True)
class Published:
    """A program's columns and scalars as one epoch published them; entries past ``n_vertices`` mean nothing."""

    columns: Mapping[str, Column]
    scalars: Mapping[str, float]
    n_vertices: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Values for the vertices that were asked for.

    ``null``: bool of the same length, True where the vertex is known but has no value (no path).
    ``vertex_valued``: the values are dense vertices and must be shown as external ids. ``saturated``: bool of
    the same length, True where the value is only a lower bound, because it reached the largest that the program
    can tell exactly; None where that cannot happen.
    """

    values: Column
    null: npt.NDArray[np.bool_]
    vertex_valued: bool = False
    saturated: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """Evidence that a published result, or the storage, contradicts the graph."""

    rule: str
    detail: str
    vertices: tuple[int, ...] = field(default=())


class Program(ABC):
    """One analytic, kept true from epoch to epoch.

    Subclasses set the class attributes: ``value`` is the NumPy type of the values that ``read`` gives, or
    ``ExternalId`` where they are vertices; ``family`` says by which algorithm they are kept. Subclasses take
    their parsed parameters as keyword arguments after ``id``, and keep all state in instance arrays.
    ``weight_domains`` are the settings ``graph.weights`` with which the program is right. One that
    ``needs_order`` also takes ``order``, which compares vertices by external id (``ExternalOrder``).
    ``sources`` are the external ids that the program starts from; the engine calls ``bind`` with their dense
    ids (``NO_VERTEX`` while unknown) before the first ``start`` or ``refresh``, before each later one until
    all are known, and again when vertices were deleted.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[str] = "other"
    value: ClassVar[Any]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    needs_in_edges: ClassVar[bool] = False
    needs_weights: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False
    weight_domains: ClassVar[tuple[str, ...]] = ("unweighted", "non-negative", "any")
    has_parents: ClassVar[bool] = False
    value_scalars: ClassVar[tuple[str, ...] | None] = None
    """The published scalars that every value depends on (``read``); None: any of them."""
    nested: ClassVar[bool] = False
    """Whether vertices with at least some value are a group, such as a k-core."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.sources: tuple[ExternalId, ...] = ()

    @classmethod
    def require_weights(cls, domain: str) -> None:
        """Check that the program is right on a graph whose weights are of this domain.

        Raises:
            ProgramError: it is not.
        """
        allowed = [name for name in cls.weight_domains if name != "unweighted" or not cls.needs_weights]
        if domain not in allowed:
            words = " or ".join(map(repr, allowed))
            raise ProgramError(
                f"{cls.kind} needs a graph whose weights are {words}, and graph.weights is {domain!r}"
            )

    waits_for_room: bool = False
    """Whether to raise ``NoRoom`` where the graph's device has no memory for it, rather than go on at the host."""

    @property
    def on_device(self) -> bool:
        """Whether the graph's device runs it."""
        return False

    @property
    def reads_host(self) -> bool:
        """Whether refreshes read the rows of the host, or its report of a change."""
        return True

    @property
    def is_movable(self) -> bool:
        """Whether it may run on the host as well as on the graph's device (``move``)."""
        return False

    def move(self, graph: Graph) -> None:
        """Go on at the other processor; between two runs. What is in ``columns`` stays what it is."""
        raise NotImplementedError(f"programs of the kind {self.kind!r} run on the host only")

    def bind(self, sources: Vertices) -> None:  # noqa: B027 - programs without sources need none
        """Learn the dense ids of ``self.sources``; called again as they become known."""

    def warm_up(self, graph: Graph) -> None:  # noqa: B027 - most programs need none
        """Compile the kernels that only much work needs, on a little."""

    @abstractmethod
    def start(self, graph: Graph) -> Refresh:
        """Compute from scratch on the graph as it is."""

    @abstractmethod
    def refresh(self, graph: Graph, change: GraphChange) -> Refresh:
        """Bring the state from before ``change`` (already applied to ``graph``) up to date."""

    def joins(self, graph: Graph) -> Hashable | None:
        """What the program has in common with others whose refreshes may go on side by side with its own
        (``refreshing``); None: it runs by itself."""
        return None

    def refreshing(self, graph: Graph, change: GraphChange) -> Steps[Refresh]:
        """As ``refresh``, by steps; of programs that join others."""
        yield from ()
        return self.refresh(graph, change)

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The published columns: name -> array of at least ``graph.n_vertices`` entries (not copied)."""

    def scalars(self) -> dict[str, float]:
        """The published scalars."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Column]:
        """Every array that ``restore`` needs to go on from this epoch (not copied).

        Numbers go into one array, by name (``saved_scalars.py``).
        """

    def require_publishable(self, changed: Mapping[str, Vertices | None], n: int) -> None:
        """Check that what is published can be taken, of n vertices, after a run that ``changed`` these entries.

        Raises:
            ValueError: as ``require_publishable``, which this is where a program does not know better.
        """
        require_publishable(self, n, changed)

    def state_sizes(self) -> dict[str, int]:
        """The bytes of every array of ``state``, which may take long to gather."""
        return {name: column.nbytes for name, column in self.state().items()}

    @abstractmethod
    def restore(self, state: Mapping[str, Column], graph: Graph) -> None:
        """Take over a saved state that belongs to the graph as it is.

        The state itself tells which sources it has: audits, and a first change that deletes one, may come before
        or with the next ``bind``.

        Raises:
            KeyError, ValueError: it is no state of this program; ``start`` puts right what was taken over of it.
        """

    def audit(self, graph: Graph) -> list[Violation]:
        """Check the whole present state against the graph; empty when it is proven right."""
        found, _ = self.audit_slice(graph, 0, graph.n_vertices)
        return [*dict.fromkeys([*found, *self.audit_whole(graph)[0]])]

    def prepare_audit(self, graph: Graph) -> None:  # noqa: B027 - most have everything at hand
        """Have at hand what audits read, where that takes as long for a slice as for all; they do so, too."""

    @abstractmethod
    def audit_slice(self, graph: Graph, begin: int, end: int) -> tuple[list[Violation], int]:
        """Check what can be told of vertices ``begin`` to ``end`` - 1 by their own entries and edges.

        Returns the violations and the edges read, of which those of slices add up to those of all vertices. Slices
        over all vertices, and ``audit_whole``, together prove the state.
        """

    def audit_whole(self, graph: Graph) -> tuple[list[Violation], int]:
        """Check what slices cannot see, such as parents that lead to each other and to no root.

        Returns as ``audit_slice``. Parents, where the program keeps any, are followed to the end.
        """
        if not self.has_parents:
            return [], 0
        n = graph.n_vertices
        published = Published(self.columns(), self.scalars(), n)
        loose = vertices_without_root(type(self).parents(published, np.arange(n, dtype=np.uint32)))
        if not loose.size:
            return [], 0
        return [
            Violation("forest", f"{loose.size} vertices: parents lead to no root", tuple(loose[:5].tolist()))
        ], 0

    def memory_bytes(self) -> int:
        """Bytes of the arrays that the program holds, with the room in which columns grow."""
        held = self.state_sizes()
        for name, column in self.columns().items():
            held[name] = max(held.get(name, 0), column.nbytes)
        return sum(held.values())

    @staticmethod
    @abstractmethod
    def read(published: Published, vertices: Vertices) -> Answer:
        """Values of these dense vertices (all below ``published.n_vertices``)."""

    @classmethod
    def read_run(cls, published: Published, run: slice) -> Answer:
        """``read`` of the vertices from ``run.start`` to ``run.stop``; faster, perhaps. Nothing in place."""
        return cls.read(published, np.arange(run.start, run.stop, dtype=np.uint32))

    @classmethod
    def sieve(
        cls, published: Published, run: slice, bound: float, *, descending: bool
    ) -> npt.NDArray[np.intp] | None:
        """Places in a run of vertices (as of ``read_run``), ascending: of all whose values are larger than a bound
        (or smaller, where not ``descending``), and of some others perhaps. None: that takes no less than to read
        the whole run."""
        return None

    @staticmethod
    def touched(changed: Mapping[str, Vertices | None], published: Published) -> Vertices | None:
        """The vertices whose values (``read``) may be others since these entries of the columns changed.

        Each may come several times; None: any vertex may be one. ``published`` is as it is after the change, and
        values depend on scalars besides (``value_scalars``). Unless a program says otherwise, a value depends on
        the entries of its own vertex.
        """
        named = [indices for indices in changed.values() if indices is not None]
        if len(named) < len(changed):
            return None
        return np.concatenate([np.empty(0, np.uint32), *named])

    @staticmethod
    def parents(published: Published, vertices: Vertices) -> Vertices:
        """The parent of each vertex (dense), ``NO_VERTEX`` where it has none.

        Raises:
            LookupError: the program keeps no parents.
        """
        raise LookupError("this program keeps no parents")


def marked_violations(
    rules: Sequence[tuple[str, int, str]], marks: npt.NDArray[np.uint8], begin: int
) -> list[Violation]:
    """One violation for each rule that some vertices break. ``rules``: (name, bit, what is wrong).

    ``marks``: uint8, of each vertex from ``begin`` on the bits of the rules that it breaks.
    """
    found = []
    for rule, bit, detail in rules if marks.any() else ():
        vertices = np.flatnonzero(marks & bit) + begin
        if vertices.size:
            evidence = tuple(int(v) for v in vertices[:EVIDENCE])
            found.append(Violation(rule, f"{vertices.size} vertices: {detail}", evidence))
    return found


def require_saved(state: Mapping[str, Column], columns: Mapping[str, Column], n: int) -> None:
    """Check that a saved state has these columns, for n vertices each.

    Raises:
        KeyError: one is missing.
        ValueError: one is of another dtype or length; the message names it.
    """
    for name, column in columns.items():
        saved = state[name]
        if saved.dtype != column.dtype or saved.shape != (n,):
            raise ValueError(f"saved {name}: {saved.dtype}{saved.shape}, expected {column.dtype}({n},)")


def require_publishable(program: Program, n: int, changed: Mapping[str, Vertices | None] | None = None) -> None:
    """Check that what a program publishes can be taken, of n vertices, after a run that ``changed`` these entries.

    Raises:
        ValueError: a column is no array of numbers with an entry for each vertex, a scalar is no number, or a
            vertex was changed that there is not; the message names it.
    """
    for name, column in program.columns().items():
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
            raise ValueError(f"column {program.id}/{name} is no array of numbers in one dimension")
        if column.size < n:
            raise ValueError(f"column {program.id}/{name}: {column.size} entries for {n} vertices")
    for name, scalar in program.scalars().items():
        if not isinstance(scalar, int | float | np.number):
            raise ValueError(f"scalar {program.id}/{name} is no number")
    for name, vertices in (changed or {}).items():
        if vertices is not None and vertices.size and vertices.max() >= n:
            raise ValueError(f"column {program.id}/{name}: vertex {vertices.max()} of {n} is said to have changed")


def size_violations(n_kept: int, graph: Graph) -> list[Violation]:
    """What is wrong with a program that keeps entries of so many vertices: it must be those of the graph.

    To be asked before anything else of an audit: the rows of the graph name vertices that the program's columns
    do not have.
    """
    if n_kept == graph.n_vertices:
        return []
    return [Violation("size", f"entries of {n_kept} vertices, and the graph has {graph.n_vertices}")]
