"""The parameters of one request, each taken once and checked."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...gpma.index.ids import IdColumn, StringColumn
from ..errors import LimitExceeded, RequestError
from ..records.stream import Partition, offsets_from_wire
from ..records.topology import SearchDirection
from .asker import Asker
from .serving import VERTICES_INLINE_MAX, Reply, Serving, Soon

if TYPE_CHECKING:
    from ..config.sections.limits import LimitsConfig

PAGE_DEFAULT = 1000
PROGRAM_MISSING = "must be given: the id of a program, which the method programs lists"
PIECE_IDS = 1 << 13
UNKNOWN_NAMED_MAX = 16
"""So many parameters that there are not are named in an error."""
SOURCE_CHARACTERS_MAX = 1024
COLUMNS = (np.ndarray, StringColumn)
PARAMETERS_OF_ALL = ("min_offsets", "timeout_ms")
"""Of every method but ``hello``."""

Outcome = Reply | Soon | Coroutine[Any, Any, Reply]


def with_columns(params: Mapping[str, Any], serving: Serving) -> dict[str, Any]:
    """Parameters with their long arrays as columns of ids, as ``Params.vertices`` takes them, too.

    Raises:
        RequestError: they hold something else.
    """

    def column(name: str, value: Any) -> Any:
        is_long = isinstance(value, list) and VERTICES_INLINE_MAX < len(value) <= serving.limits.vertices_max
        return parse_ids(name, value, serving.id_kind) if is_long else value

    return {name: column(name, value) for name, value in params.items()}


class Params:
    """The parameters of one request. Each is taken once; what nobody took is refused. None is as good as absent.

    ``asker``: whose request it is; ``deadline``: the time (of ``time.monotonic``) until which it may wait;
    ``min_offsets``: what the epoch must cover that answers it.
    """

    def __init__(self, given: Mapping[str, Any], asker: Asker) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._known: list[str] = []
        self.asker = asker
        self.deadline = 0.0
        self.min_offsets: dict[Partition, int] = {}

    def take(self, name: str) -> Any:
        """The value as it came, or None."""
        self._known.append(name)
        return self._given.pop(name, None)

    def end(self) -> None:
        """No further parameter is known.

        Raises:
            RequestError: one was given.
        """
        if self._given:
            unknown = sorted(name[:64] for name in self._given)[:UNKNOWN_NAMED_MAX]
            known = sorted(self._known, key=lambda name: name in PARAMETERS_OF_ALL)  # these last
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise RequestError(
                f"unknown parameters: {', '.join(unknown)}; {there}", {"unknown": unknown, "known": known}
            )

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from low to high.

        Raises:
            RequestError: it is missing, or something else.
        """
        value = self.take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise wrong(name, f"must be a whole number from {low} to {high}")
        return value

    def limited(self, name: str, limits: LimitsConfig, setting: str, *, low: int = 1, default: int) -> int:
        """A whole number from low to what this setting of ``limits`` allows, which no default exceeds.

        Raises:
            LimitExceeded: it is larger; the detail names the setting.
            RequestError: it is smaller, or something else.
        """
        high: int = getattr(limits, setting)
        given = self._given.get(name)
        if isinstance(given, int) and given > high:
            detail = {setting: high, "parameter": name}
            raise LimitExceeded(f"{name} is {given}; at most {high} is allowed", detail)
        return self.whole(name, low, high, min(default, high))

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words; the first when none is given."""
        value = self.take(name)
        if value is None:
            return allowed[0]
        if not isinstance(value, str) or value not in allowed:
            raise wrong(name, f"must be one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong(name, "must be true or false")
        return value

    def direction(self) -> SearchDirection:
        """Along which edges to search."""
        value = self.choice("direction", ("out", "in", "both"))
        return "out" if value == "out" else "in" if value == "in" else "both"

    def number(self, name: str, default: float) -> float:
        """A finite number, 0 or more."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise wrong(name, "must be a number, 0 or more")
        return float(value)

    def epoch(self, name: str) -> tuple[int, int] | None:
        """An epoch as results show it, or None."""
        value = self.take(name)
        if value is None:
            return None
        whole = isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value)
        if not whole:
            raise wrong(name, "must be an epoch: [incarnation, number]")
        return value[0], value[1]

    def rest(self) -> dict[str, Any]:
        """All that nobody has taken, as it came: the parameters of a program."""
        rest, self._given = self._given, {}
        for name, value in rest.items():
            if isinstance(value, COLUMNS):  # ``with_columns``
                rest[name] = value.to_list() if isinstance(value, StringColumn) else value.tolist()
        return rest

    def program(self) -> str:
        """The id of a program."""
        value = self.take("program")
        if value is None:
            raise wrong("program", PROGRAM_MISSING)
        if not isinstance(value, str):
            raise wrong("program", "must be the id of one program, a string")
        return value

    def vertices(self, name: str, serving: Serving) -> IdColumn:
        """External ids: an array, or for integers the bytes of a little-endian int64 column."""
        value = self.take(name)
        if value is None:
            raise wrong(name, "must be given: ids of vertices")
        limit = serving.limits.vertices_max
        if isinstance(value, COLUMNS):  # ``with_columns``
            return value
        count = len(value) // 8 if isinstance(value, bytes) else len(value) if isinstance(value, list) else None
        if count is None:
            raise wrong(name, "must be an array of ids, or a binary column of int64")
        if count > limit:
            detail = {"vertices_max": limit, "parameter": name}
            raise LimitExceeded(f"{name} has {count} ids; at most {limit} are allowed", detail)
        return parse_ids(name, value, serving.id_kind)

    def vertices_or_all(self, name: str, serving: Serving) -> IdColumn | None:
        """As ``vertices``; None where none are given."""
        if self._given.get(name) is None:
            self.take(name)
            return None
        return self.vertices(name, serving)

    def vertex(self, name: str, serving: Serving) -> IdColumn:
        """One external id, as a column of one."""
        value = self.take(name)
        if value is None:
            raise wrong(name, "must be given: the id of a vertex")
        return parse_ids(name, [value], serving.id_kind)

    def offsets(self, name: str) -> dict[Partition, int]:
        """Offsets as results show them; empty when none are given."""
        value = self.take(name)
        try:
            offsets = {} if value is None else offsets_from_wire(value)
        except (ValueError, TypeError, AttributeError):
            raise wrong(name, "must map topic -> partition -> offset, or file -> byte") from None
        if any(len(partition.name) > SOURCE_CHARACTERS_MAX for partition in offsets):
            raise wrong(
                name, f"has a name of more than {SOURCE_CHARACTERS_MAX} characters, as no topic or file has"
            )
        return offsets

    async def covered(self, serving: Serving) -> None:
        """Wait for an epoch that covers the offsets that are asked for.

        Raises:
            TimedOut, Unavailable: as ``Waiting.covered``.
        """
        if self.min_offsets:
            await serving.waiting.covered(self.asker, self.min_offsets, self.deadline)

    def once_covered(self, serving: Serving, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of ``work``, which is done at once where there is nothing to wait for."""
        if not self.min_offsets or serving.waiting.covers(self.min_offsets):
            return work()

        async def later() -> Reply:
            await self.covered(serving)
            outcome = work()
            return outcome if isinstance(outcome, Reply) else await outcome

        return later()

    def timeout_ms(self, limits: LimitsConfig) -> int:
        """How long the request may wait."""
        return self.limited("timeout_ms", limits, "timeout_ms_max", low=0, default=limits.timeout_ms_default)


def wrong(name: str, what: str) -> RequestError:
    """The error about one parameter."""
    return RequestError(f"{name} {what}", {"parameter": name})


def parse_ids(name: str, value: Any, kind: Literal["int", "string"]) -> IdColumn:
    """External ids of the graph's kind.

    Raises:
        RequestError: these are none.
    """
    if value == b"":
        value = []  # a column of nothing is of either kind
    if isinstance(value, bytes):
        if kind == "string" or len(value) % 8:
            raise wrong(name, "is binary: that is a column of int64 ids, eight bytes each, of a graph of integers")
        return np.frombuffer(value, "<i8").astype(np.int64, copy=False)
    allowed, word = (str, "strings") if kind == "string" else (int, "integers")
    # In pieces, here and below: in between the interpreter can turn to other work.
    pieces = [value[start : start + PIECE_IDS] for start in range(0, len(value), PIECE_IDS)]
    if not all(set(map(type, piece)) == {allowed} for piece in pieces):
        other = next(item for item in value if type(item) is not allowed)
        raise wrong(name, f"has {reprlib.repr(other)}: the ids of this graph are {word}")
    if kind == "string":
        return StringColumn.of(value)
    try:
        return np.concatenate([np.empty(0, np.int64), *(np.array(piece, np.int64) for piece in pieces)])
    except OverflowError:
        raise wrong(name, "has an id that is not a 64-bit signed integer") from None
