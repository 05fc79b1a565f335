"""The schemas of a registry that are kept, and the ids that it does not know.

Whoever may write records decides which ids are asked for. So an id that the registry does not know is remembered
for a while, and what may be spent on asking in vain is limited: where producers name more unknown ids than that,
their records are set aside without asking, and the stream goes on.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from .decode_columns import Bad, Reason
from .registry import NUMBER_MAX, Registry, RegistryAway, Schema

NEEDS_REGISTRY = "records of a schema registry need source.registry.url"

KEPT_BYTES_MAX = 64 << 20
"""Bytes of schemas that are kept, and of what is made of them, all in all and about."""
_LEAST_BYTES = 1 << 10
_BYTES_A_CHARACTER = 16  # of a text in which types are as short as can be

UNKNOWN_S = 10.0
"""An id that the registry did not know is asked for again after so long; it may have been about to hear of it."""
UNKNOWN_MAX = 1 << 10
"""So many of them are remembered; what may be spent allows for half as many in that time."""

IN_VAIN_SHARE = 0.1
"""The share of all time that may be spent on asking for ids that turn out to be unknown."""
IN_VAIN_S = 10.0
"""So many seconds of it can be saved up."""
IN_VAIN_LEAST_S = 0.02
"""What one of them costs at least, however fast the answer: the registry has others to serve."""

OUTCOMES = ("known", "unknown", "unusable", "away")

T = TypeVar("T")


class Unusable:
    """Why something cannot be used, once and for all. It is raised anew each time: an exception that is kept keeps
    all that was at hand wherever it was raised."""

    def __init__(self, bad: Bad) -> None:
        self.reason = bad.reason
        self.detail = bad.detail

    def bad(self) -> Bad:
        return Bad(self.reason, self.detail)


class KnownSchemas(Generic[T]):
    """What is made of each schema, by its id: of those that were used last. For one thread."""

    def __init__(
        self,
        registry: Registry | None,
        make: Callable[[Schema | Unusable], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make``: what is kept of a schema that the registry has."""
        self.lookups: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """How often the registry was asked for an id, by what came of it."""
        self._registry = registry
        self._make = make
        self._clock = clock
        self._kept: OrderedDict[int, tuple[T, int]] = OrderedDict()  # with their bytes
        self._kept_bytes = 0
        self._unknown: OrderedDict[int, tuple[float, Unusable]] = OrderedDict()  # until when, in order of that
        self._allowance = _Allowance(clock())

    def get(self, number: int) -> T:
        """What was made of the schema with this id.

        Raises:
            Bad: the registry knows no such schema, or was not asked.
            RegistryAway: it is not known whether there is one.
        """
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept[0]
        if self._registry is None:
            raise Bad(Reason.UNKNOWN_ENCODING, NEEDS_REGISTRY)
        if number > NUMBER_MAX:
            raise Bad(Reason.UNKNOWN_SCHEMA, f"no registry knows a schema {number}: ids end at {NUMBER_MAX}")
        now = self._clock()
        self._forget_unknown(now)
        if (unknown := self._unknown.get(number)) is not None:
            raise unknown[1].bad()
        if not self._allowance.is_left(now):
            what = f"schema {number} was not asked for: records name too many ids that the registry does not know"
            raise Bad(Reason.UNASKED_SCHEMA, what)
        return self._asked(self._registry, number, now)

    def _asked(self, registry: Registry, number: int, began: float) -> T:
        schema: Schema | Unusable
        try:
            schema = registry.schema(number)
        except RegistryAway:
            self.lookups["away"] += 1
            raise
        except Bad as bad:
            schema = Unusable(bad)
            if bad.reason is Reason.UNKNOWN_SCHEMA:
                now = self._clock()
                self.lookups["unknown"] += 1
                self._allowance.spend(max(now - began, IN_VAIN_LEAST_S))
                self._unknown[number] = (now + UNKNOWN_S, schema)
                raise
        self.lookups["unusable" if isinstance(schema, Unusable) else "known"] += 1
        made, size = self._make(schema), _bytes_of(schema)
        self._kept[number] = made, size
        self._kept_bytes += size
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        return made

    def _forget_unknown(self, now: float) -> None:
        """Those that may be asked for again, and the oldest where there are too many."""
        while self._unknown:
            until, _ = next(iter(self._unknown.values()))
            if now < until and len(self._unknown) < UNKNOWN_MAX:
                break
            self._unknown.popitem(last=False)


class _Allowance:
    """Seconds that may be spent: they come at a steady rate, and can be saved up to a limit."""

    def __init__(self, now: float) -> None:
        self._left_s = IN_VAIN_S
        self._at = now

    def is_left(self, now: float) -> bool:
        self._left_s = min(IN_VAIN_S, self._left_s + IN_VAIN_SHARE * max(now - self._at, 0.0))
        self._at = now
        return self._left_s > 0.0

    def spend(self, seconds: float) -> None:
        """Once, more may be spent than is left: how long it takes shows only then."""
        self._left_s -= seconds


def _bytes_of(schema: Schema | Unusable) -> int:
    texts = () if isinstance(schema, Unusable) else (schema.text, *schema.references.values())
    return _LEAST_BYTES + _BYTES_A_CHARACTER * sum(map(len, texts))
