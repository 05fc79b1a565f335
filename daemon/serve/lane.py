"""The query server's end of its lane: short questions about rows, answered in memory that it shares with the
engine's process (``records.lane``).

Whoever finds no place, or gets no answer soon, asks over the socket instead: so nobody waits here in a queue, and
nothing depends on it that somebody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...gpma.edges import Vertices
from ..records.lane import (
    ANSWER,
    ANSWERED,
    ASKED,
    COLUMNS,
    DEGREE,
    DONE,
    FOUND,
    FOUND_EXISTS,
    FOUND_IN,
    FOUND_KNOWN,
    FOUND_OUT,
    FOUND_WEIGHTS,
    FREE,
    GENERATION,
    HAS_EDGE,
    HAS_IN,
    HIDDEN,
    IN,
    KNOWN,
    METHOD,
    NEIGHBORS,
    OUT,
    PLACE_WORDS,
    PLACES,
    STAMP,
    VERTICES_MAX,
    WEIGHTED,
    WORDS,
)
from .shared_memory import fence

PLACES_EACH = 16
"""So many has one connection at once."""
PATIENCE_S = 0.02
"""Whoever has no answer after so long asks otherwise: the storage may be shut for long."""
HIDDEN_LEAST_S, HIDDEN_MOST_S = 0.001, 0.05
"""So long nobody asks here after there was no answer to anything: rows are behind a device, which is over once
somebody has asked, or on it, which is not. So it is twice as long each time until something is answered."""

_QUESTION, _DONE, _ANSWER = struct.Struct("<5q"), struct.Struct("<q"), struct.Struct("<5q")

Answer = dict[str, Any]
Read = Callable[[memoryview, int, int, int], Answer]
"""Makes an answer of a place's bytes, with the count, the cursor and the flags there."""


class Question(asyncio.Future[Answer | None]):
    """What is asked in the lane, until there is an answer; None: it must be asked otherwise.

    ``then``: is called with the answer as soon as that is seen, before those who await it have their turn.
    """

    then: Callable[[Answer | None], None] | None = None

    def tell(self, answer: Answer | None) -> None:
        """This is what came of it, unless nobody waits for it any more."""
        if self.done():
            return
        self.set_result(answer)
        if self.then is not None:
            then, self.then = self.then, None
            then(answer)


class Lane:
    """One server's; it ends with the process."""

    def __init__(self, memory: int, questions: int, answers: int, loop: asyncio.AbstractEventLoop) -> None:
        """Takes over the descriptors: of the memory, and of the eventfds that tell of questions and of answers.

        Raises:
            OSError, ValueError: these are none.
        """
        with contextlib.ExitStack() as stack:
            for descriptor in (memory, questions, answers):
                stack.callback(os.close, descriptor)
            self._bytes = memoryview(mmap.mmap(memory, 8 * WORDS))
            self._states = self._bytes[: 8 * PLACES].cast("q")
            begins = range(8 * PLACES, 8 * WORDS, 8 * PLACE_WORDS)
            self._places = [self._bytes[begin : begin + 8 * PLACE_WORDS] for begin in begins]
            stack.pop_all()
        os.close(memory)
        self._questions, self._answers, self._loop = questions, answers, loop
        self._free = deque(range(PLACES))
        # By place, in the order in which they were asked.
        self._open: dict[int, tuple[float, object, Read, Question]] = {}
        self._had: Counter[object] = Counter()
        self._looking: asyncio.TimerHandle | None = None
        self._hidden_s, self._hidden_until = HIDDEN_LEAST_S, 0.0
        loop.add_reader(answers, self._take)

    def neighbors(
        self, asker: object, vertex: int, direction: str, limit: int, cursor: int | None
    ) -> Question | None:
        """What ``EngineCalls.call`` gives for ``neighbors``; None where there is no place. ``asker``: whose place
        it is."""
        numbers = vertex, IN if direction == "in" else OUT, cursor or 0, min(limit, 1 << 32)
        return self._ask(asker, NEIGHBORS, numbers, (), _neighbors)

    def by_columns(self, asker: object, method: str, columns: Sequence[Vertices]) -> Question | None:
        """The same for ``degree`` (of one column) and ``has_edge`` (of two)."""
        n = columns[0].size
        if n > VERTICES_MAX:
            return None
        kind, read = {"degree": (DEGREE, _degrees), "has_edge": (HAS_EDGE, _exist)}[method]
        return self._ask(
            asker, kind, (n, 0, 0, 0), columns, lambda place, count, cursor, flags: read(place, flags, n)
        )

    @property
    def used(self) -> int:
        """How many places are taken."""
        return PLACES - len(self._free)

    def _ask(
        self, asker: object, method: int, numbers: tuple[int, ...], columns: Sequence[Vertices], read: Read
    ) -> Question | None:
        now = self._loop.time()
        if not self._free or self._had[asker] >= PLACES_EACH or now < self._hidden_until:
            return None
        place = self._free.popleft()
        self._had[asker] += 1
        bytes_ = self._places[place]
        _QUESTION.pack_into(bytes_, 8 * METHOD, method, *numbers)
        for number, column in enumerate(columns):
            begin = 8 * COLUMNS + 4 * VERTICES_MAX * number
            bytes_[begin : begin + 4 * column.size] = column.astype(np.uint32, copy=False).tobytes()
        fence()
        self._states[place] = ASKED
        os.eventfd_write(self._questions, 1)
        question = Question(loop=self._loop)
        self._open[place] = now, asker, read, question
        if self._looking is None:
            self._looking = self._loop.call_at(now + PATIENCE_S, self._look)
        return question

    def _take(self) -> None:
        """Some are answered."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._answers)
        states = self._states
        for place in [place for place in self._open if states[place] == ANSWERED]:
            _, asker, read, question = self._open.pop(place)
            fence()
            (done,) = _DONE.unpack_from(self._places[place], 8 * DONE)
            if done == HIDDEN:
                self._hide()
            elif done == ANSWER:  # what is to be asked otherwise says nothing of other rows
                self._hidden_s = HIDDEN_LEAST_S
            answer = _answer(self._places[place], read) if done == ANSWER and not question.done() else None
            states[place] = FREE
            self._free.append(place)
            self._had[asker] -= 1
            if not self._had[asker]:
                del self._had[asker]
            question.tell(answer)

    def _hide(self) -> None:
        """There is no answer to anything now."""
        now = self._loop.time()
        if now >= self._hidden_until:  # else it was asked before that was known
            self._hidden_until = now + self._hidden_s
            self._hidden_s = min(2 * self._hidden_s, HIDDEN_MOST_S)

    def _look(self) -> None:
        """Whoever has waited for too long may ask otherwise; its place is taken until it is answered."""
        self._looking = None
        now = self._loop.time()
        late = []
        for asked, _, _, question in self._open.values():
            if question.done():
                continue
            if asked + PATIENCE_S > now:
                self._looking = self._loop.call_at(asked + PATIENCE_S, self._look)
                break
            late.append(question)
        for question in late:  # which may ask anew
            question.tell(None)


def _answer(place: memoryview, read: Read) -> Answer:
    generation, stamp_size, count, cursor, flags = _ANSWER.unpack_from(place, 8 * GENERATION)
    stamp = bytes(place[8 * STAMP : 8 * STAMP + stamp_size])
    return {**read(place, count, cursor, flags), "stamp": stamp, "index_generation": generation}


def _neighbors(place: memoryview, count: int, cursor: int, flags: int) -> Answer:
    weights = bytes(place[8 * FOUND_WEIGHTS : 8 * FOUND_WEIGHTS + 4 * count]) if flags & WEIGHTED else None
    return {
        "known": bool(flags & KNOWN),
        "neighbors": bytes(place[8 * FOUND : 8 * FOUND + 4 * count]),
        "weights": weights,
        "cursor": None if cursor < 0 else cursor,
    }


def _degrees(place: memoryview, flags: int, n: int) -> Answer:
    in_ = bytes(place[8 * FOUND_IN : 8 * (FOUND_IN + n)]) if flags & HAS_IN else None
    known = bytes(place[8 * FOUND_KNOWN : 8 * FOUND_KNOWN + n])
    return {"known": known, "out": bytes(place[8 * FOUND_OUT : 8 * (FOUND_OUT + n)]), "in": in_}


def _exist(place: memoryview, flags: int, n: int) -> Answer:
    return {"exists": bytes(place[8 * FOUND_EXISTS : 8 * FOUND_EXISTS + n])}
