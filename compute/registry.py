"""The kinds of programs, and how a configuration or a request makes one."""

from __future__ import annotations

import difflib
import importlib
import itertools
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from ..gpma.edges import EdgeBatch, EdgeList, Op, Vertices, pack
from ..gpma.index.id_order import IdOrder, order_of
from ..partition.graph import Graph, GraphChange
from .audit.storage import audit_leaves, leaf_after
from .cores.kcore import KCore
from .counts.sspaths import SSPaths
from .forest.components import Components
from .paths.bfs import BFS
from .paths.sssp import SSSP
from .paths.sswp import SSWP
from .program import ExternalOrder, Program, ProgramError, Published, require_publishable
from .rounds.cdlp import Cdlp
from .triangles.lcc import LocalClustering
from .triangles.triangles import Triangles
from .walks.pagerank import PageRank
from .walks.ppr import PersonalisedPageRank

KINDS: dict[str, type[Program]] = {
    kind.kind: kind
    for kind in (
        BFS,
        SSSP,
        SSWP,
        SSPaths,
        Components,
        PageRank,
        PersonalisedPageRank,
        Triangles,
        LocalClustering,
        KCore,
        Cdlp,
    )
}

NAME_SHOWN = 64
"""So much of a name is shown, and compared with those there are, that stands for nothing."""
_FAILS = "fails on a small graph"


def register(cls: type[Program]) -> type[Program]:
    """Make a kind of program known by its name, as a decorator of its class; see docs/programs.md.

    Raises:
        ProgramError: another class has that name.
    """
    known = KINDS.get(cls.kind)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ProgramError(f"there already is a program {cls.kind!r}: {known.__module__}.{known.__qualname__}")
    KINDS[cls.kind] = cls
    return cls


def load_modules(names: Iterable[str]) -> None:
    """Import modules that ``register`` programs of their own.

    Raises:
        ProgramError: one cannot be imported; the message names it and says why.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a user's module does wrong
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
                reason += "; install it, or have its folder in PYTHONPATH"
            raise ProgramError(f"the module {name!r} cannot be imported: {reason}") from error


def program_class(kind: str) -> type[Program]:
    """The class of a kind.

    Raises:
        ProgramError: there is no such kind; the message names those there are, and the nearest.
    """
    if kind in KINDS:
        return KINDS[kind]
    near = difflib.get_close_matches(str(kind)[:NAME_SHOWN], KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    shown = kind[:NAME_SHOWN] if isinstance(kind, str) else kind
    raise ProgramError(f"unknown program {shown!r}; there are {', '.join(sorted(KINDS))}{hint}", "program")


def make_program(
    kind: str, id: str | None, params: Mapping[str, Any], order: ExternalOrder | None = None
) -> Program:
    """A program of this kind, not started; without an ``id`` it gets ``default_id``.

    ``order`` compares vertices by external id (the vertex index), for kinds that need it.

    Raises:
        ProgramError: the kind or a parameter is unknown, missing or wrong, or the program's own class is; the
            message names the kind, and the parameter, its value and what is allowed.
    """
    cls = program_class(kind)
    arguments: dict[str, Any] = parse_parameters(kind, params)
    if cls.needs_order:
        if order is None:
            raise ProgramError(f"{kind} needs an order of vertices by external id")
        arguments["order"] = order
    with _named(kind, "cannot be made"):
        return cls(default_id(kind, params) if id is None else id, **arguments)


@contextmanager
def _named(kind: str, problem: str) -> Iterator[None]:
    """Whatever a program raises here becomes one error that names it: its functions may be a user's."""
    try:
        yield
    except ProgramError as error:
        # The same error: its class may be a user's, which is made in whatever way.
        error.args = (f"{kind}: {error}",)
        raise
    except Exception as error:
        raise ProgramError(f"{kind} {problem}: {type(error).__name__}: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """What an error says; of the compiler's, which tell all that led to them, only what is wrong and where."""
    if not isinstance(error, NumbaError | UnsupportedBytecodeError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith("Failed in ")]
    wrong = itertools.takewhile(lambda line: not line.startswith(("File ", "During: ")), filter(None, lines))
    where = next((line.removesuffix(":") for line in lines if line.startswith("File ")), "in one of its functions")
    shown = " ".join(itertools.islice(wrong, 2))
    return f"{shown} ({where}); functors must be plain arithmetic that Numba can compile"


def parse_parameters(kind: str, params: Mapping[str, Any], beside: Collection[str] = ()) -> dict[str, Any]:
    """The parameters of a kind as the program takes them, defaults filled in.

    ``beside``: what may stand beside them where they were given, and may have been meant by a name that is wrong.

    Raises:
        ProgramError: as ``make_program``.
    """
    known = {parameter.name: parameter for parameter in program_class(kind).parameters}
    for name in params:
        if name not in known:
            near = difflib.get_close_matches(str(name)[:NAME_SHOWN], [*known, *beside], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            allowed = ", ".join(known) or "none"
            shown = name[:NAME_SHOWN] if isinstance(name, str) else name
            raise ProgramError(f"{kind} has no parameter {shown!r}; it takes {allowed}{hint}", str(shown))
    parsed = {}
    for name, parameter in known.items():
        if name not in params:
            if parameter.required:
                raise ProgramError(f"{kind} needs the parameter {name!r}: {parameter.help}", name)
            parsed[name] = parameter.default
            continue
        try:
            parsed[name] = parameter.parse(params[name])
        except (ValueError, TypeError) as error:
            shown = reprlib.repr(params[name])
            raise ProgramError(f"{kind}: {name} = {shown} is not allowed; expected {error}", name) from error
    return parsed


def default_id(kind: str, params: Mapping[str, Any], *, ambiguous: bool = False) -> str:
    """What queries name a program that was given no id: its kind, or ``bfs(1)`` where that is ambiguous.

    In the brackets stand the values of the parameters as given; a list's are joined by ``+``.
    """
    if not ambiguous or not params:
        return kind
    values = (
        "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value) for value in params.values()
    )
    return f"{kind}({','.join(values)})"


def warm_up(
    *, directed: bool, weighted: bool, programs: Iterable[tuple[str, Mapping[str, Any]]] | None = None
) -> None:
    """Compile every kernel that these programs (name, parameters) use on such a graph, so that no epoch pays.

    Without ``programs`` every kind that this graph can have and that needs nothing but a source.

    Raises:
        ProgramError: one cannot be made, compiled or run; the message names it.
    """
    graph = Graph(directed=directed, weighted=weighted)
    if programs is None:
        programs = least_programs(weighted=weighted)
    made = [make_program(kind, None, given, _DenseOrder()) for kind, given in programs]
    try:
        # A square with a tail: every rule of every program has something to do when it loses edges, at last the
        # vertex that names the component. Loaded, so that where processes compile side by side the programs can
        # start while the kernels of batches are being compiled.
        edges = [(0, 1), (1, 2), (2, 3), (2, 4), (3, 0), (4, 5)]
        arcs = sorted(edges if directed else [*edges, *((dst, src) for src, dst in edges)])
        weights = np.ones(len(arcs), np.float32) if weighted else None
        graph.load(EdgeList(pack(*zip(*arcs, strict=True)), weights), 6)
        for program in made:
            with _named(program.kind, _FAILS):
                program.bind(np.zeros(len(program.sources), np.uint32))
                program.warm_up(graph)
                program.start(graph)
        steps = (
            ([(0, 1), (4, 5)], Op.DELETE),
            ([(0, 1), (4, 6)], Op.INSERT),
            ([(4, 6), (3, 0), (0, 1)], Op.DELETE),
        )
        for edges, op in steps:
            change = _apply(graph, edges, op)
            for program in made:
                with _named(program.kind, _FAILS):
                    program.refresh(graph, change)
        for program in made:
            with _named(program.kind, _FAILS):
                program.audit(graph)
                saved = {name: column.copy() for name, column in program.state().items()}
                program.restore(saved, graph)
                require_publishable(program, graph.n_vertices)
                _require_values(program, graph.n_vertices)
        for array in graph.host.arrays:
            audit_leaves(graph, array, None, 0, array.view().counts.size)
            leaf_after(array.view(), graph.n_vertices, np.uint64(0))
    finally:
        graph.close()


def _require_values(program: Program, n: int) -> None:
    """
    Raises:
        ValueError: it reads more or fewer values than it is asked for.
    """
    published = Published(program.columns(), program.scalars(), n)
    for asked in (n, 1):
        read = type(program).read(published, np.arange(asked, dtype=np.uint32))
        for name, found in (("values", read.values), ("null", read.null), ("saturated", read.saturated)):
            if found is not None and found.shape != (asked,):
                raise ValueError(f"read gives {found.shape} {name} for {asked} vertices")


def least_programs(*, weighted: bool) -> list[tuple[str, dict[str, Any]]]:
    """A program (name, parameters) of every kind that such a graph can have, and that needs but a source."""
    least = _least_parameters().items()
    return [(kind, given) for kind, given in least if weighted or not KINDS[kind].needs_weights]


def _least_parameters() -> dict[str, dict[str, Any]]:
    """The kinds that need nothing but a source, with the least parameters that make one of them."""
    needed = {kind: [item for item in cls.parameters if item.required] for kind, cls in KINDS.items()}
    return {
        kind: dict.fromkeys((item.name for item in items), 0)
        for kind, items in needed.items()
        if all(item.is_sources for item in items)
    }


def _apply(graph: Graph, edges: list[tuple[int, int]], op: Op) -> GraphChange:
    src, dst = zip(*edges, strict=True)
    n_vertices = max(graph.n_vertices, *src, max(dst) + 1)
    return graph.apply(EdgeBatch.of(src, dst, [op] * len(edges)), n_vertices)


class _DenseOrder:
    """An order for warming up: the external id is the dense one."""

    def smallest(self, dense: Vertices) -> int:
        return int(dense.min())

    def sort_by_external(self, dense: Vertices) -> Vertices:
        return np.sort(dense)

    def comparable(self, n_vertices: int) -> IdOrder:
        return order_of(np.arange(n_vertices))
