"""What the query server asks the engine process: questions about edges, over a socket between the two; short ones
about rows go through memory that both share first (``lane.py``).

Few are given to the engine at once; the others wait here, where they end with their clients. Connections take
turns. Questions about many vertices are cut into slices, so that those about few need not wait long; one that
cannot be, since epochs follow each other faster than slices, is answered beside others, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast

from ...gpma.edges import Vertices
from ..client.wire import ClientCore, Response, encode_notification, encode_stamp
from ..errors import TimedOut, Unavailable
from .asker import Asker
from .held import Holding
from .lane import Lane, Question
from .turns import Turns

log = logging.getLogger(__name__)

SLICE_VERTICES = 1 << 15
"""So many vertices are asked about at once: a few milliseconds of the engine's time."""
SLICES_OPEN = 2
"""One that is answered, and one that is on its way."""
SLICED_TRIES = 2
"""An answer of slices from several epochs is thrown away. After so many the whole is asked for, beside others."""
WHOLES_OPEN = 1
"""So many are answered beside the others at once."""
BESIDE = "beside"
"""The parameter of a question that nobody else is to wait for."""
COMPILING = "compiling"
"""What the engine tells of a question (``msgid``): whether it compiles kernels for it (``going_on``)."""


class EngineCalls(asyncio.Protocol):
    """Questions to the engine process, pipelined; a bounded number may be open."""

    def __init__(self, open_max: int, catch_up: Callable[[int], None]) -> None:
        """``catch_up``: makes sure of this generation of the vertex index, before an answer names its vertices."""
        room = SLICES_OPEN * SLICE_VERTICES
        self._turns = Turns(room)
        self._wholes = Turns(WHOLES_OPEN)
        self._weight_min = max(room // open_max, 1)
        self._catch_up = catch_up
        self._core = ClientCore()
        self._keys = itertools.count()
        # By msgid: who waits, and the room that it has until the engine is through with it, also if nobody waits.
        self._open: dict[int, tuple[asyncio.Future[Any], Turns, int]] = {}
        self._compiling: set[int] = set()  # of the msgids in _open
        self._transport: asyncio.Transport | None = None
        self.lane: Lane | None = None

    def take_lane(self, descriptors: Sequence[int]) -> None:
        """Short questions about rows go there first, from now on."""
        try:
            memory, questions, answers = descriptors
            self.lane = Lane(memory, questions, answers, asyncio.get_running_loop())
        except (OSError, ValueError) as error:
            log.warning("questions about rows take longer: %s", error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        for message in self._core.messages(data):
            if isinstance(message, Response):
                self._take(message)
            elif message.method == COMPILING:
                self._note_compiling(message.content["msgid"], message.content["going_on"])

    def _take(self, response: Response) -> None:
        future, turns, room = self._open.pop(response.msgid)
        self._compiling.discard(response.msgid)
        turns.give_back(room)
        if future.done():
            return  # nobody waits for it any more
        if response.error is not None:
            future.set_exception(response.error)
        else:
            future.set_result(response.result)

    def _note_compiling(self, msgid: int, going_on: bool) -> None:
        if going_on:
            self._compiling.add(msgid)
        else:
            self._compiling.discard(msgid)

    def connection_lost(self, exc: Exception | None) -> None:
        for future, _, _ in self._open.values():
            if not future.done():
                future.set_exception(Unavailable("the engine is gone"))
        self._open.clear()

    def neighbors(
        self,
        asker: Asker,
        *,
        vertex: int,
        direction: Literal["out", "in"],
        limit: int,
        cursor: int | None,
        deadline: float,
    ) -> tuple[Question | None, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]:
        """Ask for a page of neighbours, in the lane at once, where there is a place; and what waits for the
        answer, as of ``call``, of the lane or otherwise.

        Raises:
            Unavailable, TimedOut: as ``call``, once it is waited for.
        """
        lane = self.lane
        asked = None if lane is None else lane.neighbors(asker.connection, vertex, direction, limit, cursor)

        async def answered() -> dict[str, Any]:
            found = await self._soon(asked)
            if found is not None:
                return found
            question = {"vertex": vertex, "direction": direction, "limit": limit, "cursor": cursor}
            return await self.call(asker, "neighbors", question, limit, deadline)

        return asked, answered

    async def _soon(self, asked: Question | None) -> dict[str, Any] | None:
        """What the lane answers, if it has a place for what is asked; None: it is to be asked otherwise."""
        found = None if asked is None else await asked
        if found is not None:
            try:
                self._catch_up(found["index_generation"])
            except Unavailable:  # whoever answers otherwise sends it before
                return None
        return found

    async def call(
        self,
        asker: Asker,
        method: str,
        params: Mapping[str, Any],
        vertices: int,
        deadline: float,
        *,
        beside: bool = False,
    ) -> dict[str, Any]:
        """The engine's answer, with the ``stamp`` of the storage that it was read from.

        ``vertices``: how many the question or its answer names, at most. ``beside``: it takes long, however few
        these are, and keeps others waiting that ask the same way, but nobody else.

        Raises:
            Unavailable: the engine is gone.
            TimedOut: no answer came until ``deadline``.
        """
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if beside:
                    turns, amount, params = self._wholes, 1, {**params, BESIDE: True}
                else:
                    turns, amount = self._turns, max(vertices, self._weight_min)
                room = await turns.take(asker.connection, amount)
                timed = {**params, "timeout_s": deadline - time.monotonic()}
                _, future = self._ask(asker, method, timed, turns, room)
                result: dict[str, Any] = await future
        except TimeoutError:
            raise TimedOut("the engine did not answer in time") from None
        self._catch_up(result["index_generation"])
        result["stamp"] = encode_stamp(result["epoch"], result["offsets"])
        return result

    async def call_by_slices(
        self, asker: Asker, method: str, columns: Mapping[str, Vertices], deadline: float
    ) -> dict[str, Any]:
        """The answer about each entry of ``columns``, which have one length; all of it from one epoch. A few are
        asked about in the lane.

        What the engine answers as bytes is joined.

        Raises:
            Unavailable, TimedOut: as ``call``.
        """
        lane, given = self.lane, [*columns.values()]
        found = await self._soon(None if lane is None else lane.by_columns(asker.connection, method, given))
        if found is not None:
            return found
        n = next(iter(columns.values())).size
        parts: list[dict[str, Any]] = []
        for size in (*[SLICE_VERTICES] * SLICED_TRIES, max(n, 1)):
            parts = []
            for start in range(0, max(n, 1), size):
                asked = {name: column[start : start + size].tobytes() for name, column in columns.items()}
                beside = size > SLICE_VERTICES
                parts.append(await self.call(asker, method, asked, min(size, n), deadline, beside=beside))
                if parts[-1]["epoch"] != parts[0]["epoch"]:
                    break
            else:
                break
        whole = parts[0]
        for name in [name for name, part in whole.items() if isinstance(part, bytes) and name != "stamp"]:
            whole[name] = b"".join(part.pop(name) for part in parts)
        return whole

    async def call_aside(
        self, asker: Asker, method: str, params: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        """The engine's answer to a question that takes a while, for which it has a thread besides: it keeps nobody
        from asking about edges. Whoever calls sees to it that there are few.

        The engine is told when nobody waits any more.

        Raises:
            Unavailable, TimedOut: as ``call``.
        """
        msgid, future = self._ask(asker, method, params, self._turns, 0)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                result: dict[str, Any] = await future
        except (TimeoutError, asyncio.CancelledError) as reason:
            self._tell("given_up", {"msgid": msgid})
            if isinstance(reason, TimeoutError):
                raise TimedOut(f"this was not done in time{self._why_late(msgid)}") from None
            raise
        self._catch_up(result["index_generation"])
        result["stamp"] = encode_stamp(result["epoch"], result["offsets"])
        return result

    def _why_late(self, msgid: int) -> str:
        if msgid not in self._compiling:
            return ""
        return ": kernels of the program are still being compiled, once for all: ask again, what is done is kept"

    def holding(self) -> Holding:
        """For a request whose questions have much in common."""
        return Holding(next(self._keys), self._tell)

    def _tell(self, what: str, content: Mapping[str, Any]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_notification(what, content))

    def _ask(
        self, asker: Asker, method: str, params: Mapping[str, Any], turns: Turns, room: int
    ) -> tuple[int, asyncio.Future[Any]]:
        try:
            asker.stop_if_gone()
            if self._transport is None or self._transport.is_closing():
                raise Unavailable("the engine is gone")
            msgid, message = self._core.request(method, params)
        except BaseException:
            turns.give_back(room)
            raise
        future = asyncio.get_running_loop().create_future()
        self._open[msgid] = future, turns, room
        self._transport.write(message)
        return msgid, future
