"""What the query server asks the engine process: questions about edges, over a socket between the two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from ..client.wire import ClientCore, encode_stamp
from ..errors import TimedOut, Unavailable


class EngineCalls(asyncio.Protocol):
    """Questions to the engine process, pipelined; a bounded number may be open."""

    def __init__(self, open_max: int, catch_up: Callable[[int], None]) -> None:
        """``catch_up``: makes sure of this generation of the vertex index, before an answer names its vertices."""
        self._open_max = open_max
        self._catch_up = catch_up
        self._core = ClientCore()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        for response in self._core.feed(data):
            future = self._open.pop(response.msgid, None)
            if future is None or future.done():
                continue  # nobody waits for it any more
            if response.error is not None:
                future.set_exception(response.error)
            else:
                future.set_result(response.result)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._open.values():
            if not future.done():
                future.set_exception(Unavailable("the engine is gone"))
        self._open.clear()

    async def call(self, method: str, params: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """The engine's answer, with the ``stamp`` of the storage that it was read from.

        Raises:
            Unavailable: too many questions are open, or the engine is gone.
            TimedOut: no answer came until ``deadline``.
        """
        limit = self._open_max
        if self._transport is None or self._transport.is_closing() or len(self._open) >= limit:
            raise Unavailable("the engine is busy", {"engine_calls_max": limit})
        seconds = deadline - time.monotonic()
        msgid, message = self._core.request(method, {**params, "timeout_s": max(seconds, 0.0)})
        future = asyncio.get_running_loop().create_future()
        self._open[msgid] = future
        self._transport.write(message)
        try:
            async with asyncio.timeout(seconds):
                result: dict[str, Any] = await future
        except TimeoutError:
            raise TimedOut("the engine did not answer in time") from None
        finally:
            self._open.pop(msgid, None)
        self._catch_up(result["index_generation"])
        result["stamp"] = encode_stamp(result["epoch"], result["offsets"])
        return result
