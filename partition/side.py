"""What rows have in common on every processor: an array of out-rows, and one of in-rows where those are kept.

Where each row is on one side only, everything is asked of the sides, and told to them, by this interface; columns
are NumPy's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..gpma.edges import EdgeBatch, EdgeList, Keys, SubCSR, Vertices, Weights
from .changes import Report

Direction = Literal["out", "in"]


class Rows(Protocol):
    """A packed array, whichever processor has it."""

    @property
    def n_edges(self) -> int: ...
    @property
    def weighted(self) -> bool: ...
    def ensure_vertices(self, n_vertices: int) -> None: ...
    def withdraw_vertices(self, n_vertices: int) -> None: ...
    def memory_bytes(self) -> dict[str, int]: ...


Array = TypeVar("Array", bound=Rows)


class Reader(Protocol):
    """Single edges of rows, wherever these are."""

    @property
    def weighted(self) -> bool: ...
    def has_edge(self, keys: Keys) -> npt.NDArray[np.bool_]: ...
    def weights_of(self, keys: Keys) -> Weights: ...


class Side(Generic[Array]):
    """Two packed arrays, or one. A batch is on both or on neither: all that can fail is in ``prepare``."""

    name: str
    takes_edges = False
    """Whether ``prepare`` takes updates of edges, and turns them round by itself."""
    out: Array
    in_: Array | None

    @property
    def arrays(self) -> list[Array]:
        return [self.out] if self.in_ is None else [self.out, self.in_]

    def ensure_vertices(self, n_vertices: int) -> None:
        """Make room for rows 0 .. n_vertices - 1 in every array; ``withdraw_vertices`` takes that back.

        Raises:
            MemoryError: there is not enough.
        """
        for array in self.arrays:
            array.ensure_vertices(n_vertices)

    def withdraw_vertices(self, n_vertices: int) -> None:
        """There are only so many rows, of which the others were never written."""
        for array in self.arrays:
            array.withdraw_vertices(n_vertices)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by structure, orientations added up."""
        total: dict[str, int] = {}
        for array in self.arrays:
            for name, size in array.memory_bytes().items():
                total[name] = total.get(name, 0) + size
        return total

    def array(self, direction: Direction) -> Array:
        """The out-rows or the in-rows; where only one is kept, that."""
        return self.out if direction == "out" or self.in_ is None else self.in_

    # -- changes of rows that this side owns --------------------------------------------------------------------

    def expect(self, n_updates: int, n_others: int) -> None:
        """The next batch has so many updates of out-rows, so many of them elsewhere: this side may want to tell
        programs of all of them.

        Raises:
            MemoryError: there is not enough.
        """

    def prepare(self, batch: EdgeBatch) -> Any:
        """As ``prepare_rows``, for updates of edges, one direction each, all of whose rows are here.

        Raises:
            NotImplementedError: ``takes_edges`` is false.
        """
        raise NotImplementedError

    @property
    def picks(self) -> bool:
        """Whether it finds by itself the updates of its rows in a batch that others have a part in: ``bring``."""
        return False

    def bring(self, batch: EdgeBatch) -> Any:
        """Begin to bring a batch of updates of edges to where this side's rows are, for ``pick``. What is brought
        and not prepared is simply dropped.

        Raises:
            MemoryError: there is not enough.
            NotImplementedError: ``picks`` is false.
        """
        raise NotImplementedError

    def pick(self, brought: Any, n_out: int, n_in: int) -> tuple[Any, Any]:
        """What ``prepare_rows`` takes, of what was brought last: so many updates of out-rows and of in-rows that
        are here. Every end of an edge exists.

        Raises:
            MemoryError: there is not enough.
            NotImplementedError: ``picks`` is false.
        """
        raise NotImplementedError

    @abstractmethod
    def prepare_rows(self, out: EdgeBatch, in_: EdgeBatch | None) -> Any:
        """A plan for these updates of out-rows and of in-rows (None where none are kept): all that can fail.

        Raises:
            ValueError: a row does not exist.
            MemoryError: there is not enough.
        """

    def launch(self, plan: Any) -> None:
        """Begin to write what was planned, if another processor does it; ``finish`` comes next."""

    @abstractmethod
    def finish(self, plan: Any) -> None:
        """Everything that was planned is written."""

    @abstractmethod
    def rows_report(self) -> Report:
        """What the last plan did to the out-rows; to be read before the next."""

    @abstractmethod
    def load_rows(self, out: EdgeList, in_: EdgeList | None) -> None:
        """Replace everything by these edges: out-rows, and in-rows as those have them; ascending.

        Raises:
            ValueError: a row does not exist, or keys are out of order.
            MemoryError: there is not enough; nothing was changed, or the side is empty.
        """

    @abstractmethod
    def evacuate(self) -> tuple[EdgeList, EdgeList | None]:
        """All rows, copied without any memory of the side's own: those of ``load_rows``."""

    @abstractmethod
    def clear_rows(self) -> None:
        """Hold no edges any more; takes no memory that is not given back before."""

    # -- reads --------------------------------------------------------------------------------------------------

    @abstractmethod
    def has_edge(self, direction: Direction, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these keys an array holds."""

    @abstractmethod
    def weights_of(self, direction: Direction, keys: Keys) -> Weights:
        """float32[n]: their weights, NaN where there is none; the array must keep weights."""

    @abstractmethod
    def rows(self, direction: Direction, vertices: Vertices) -> SubCSR:
        """The rows of these vertices, copied."""

    @abstractmethod
    def degrees(self, direction: Direction, n_vertices: int) -> npt.NDArray[np.uint32]:
        """uint32[n_vertices]: the lengths of the rows that are here, 0 for all others."""

    @abstractmethod
    def export_rows(self, direction: Direction) -> EdgeList:
        """All keys of an array in ascending order, copied, and their weights where it keeps any."""

    @abstractmethod
    def export_from(self, first_key: int, keys: Keys, weights: Weights) -> int:
        """Copy out-arcs from this key on into the columns, until these are full; returns how many."""
