"""What rows have in common on every processor: an array of out-rows, and one of in-rows where those are kept."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Rows(Protocol):
    """A packed array, whichever processor has it."""

    def ensure_vertices(self, n_vertices: int) -> None: ...
    def withdraw_vertices(self, n_vertices: int) -> None: ...
    def memory_bytes(self) -> dict[str, int]: ...


Array = TypeVar("Array", bound=Rows)


class Side(Generic[Array]):
    """Two packed arrays, or one. A batch is on both or on neither: all that can fail is in ``prepare``."""

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
