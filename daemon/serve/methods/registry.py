"""The requests that the query server answers, by name.

A handler takes the ``Serving`` and its ``Params`` and gives back a ``Reply``, or a coroutine of one where it
has to wait (``Soon``: for the lane). ``@method("name")`` registers it; the first line of its docstring is its
description. Short work is done on the event loop; whatever may take longer than about a millisecond goes through
``serving.in_thread``, after ``serving.make_room`` where the answer may be long. What is read of an epoch inside
``serving.read`` must be copied there. All requests but ``hello`` may come with ``min_offsets`` and ``timeout_ms``:
once all parameters are taken, the work begins after ``params.covered``, or within ``params.once_covered``.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import NotSupported
from ..asker import Asker
from ..params import Outcome, Params
from ..serving import Serving

Handler = Callable[[Serving, Params], Outcome]
METHODS: dict[str, Handler] = {}


def method(name: str) -> Callable[[Handler], Handler]:
    """Register a handler under the name that requests use."""

    def register(handler: Handler) -> Handler:
        METHODS[name] = handler
        return handler

    return register


def find(name: str) -> Handler:
    """The handler of a method.

    Raises:
        NotSupported: there is none.
    """
    handler = METHODS.get(name)
    if handler is None:
        known = name.startswith("admin.")
        what = "is not offered by this server" if known else "is no method of the protocol"
        near = difflib.get_close_matches(name[:64], METHODS, n=1)
        others = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(METHODS))}"
        hint = "" if known else f"; {others}"
        raise NotSupported(f"{name[:64]!r} {what}{hint}", {"methods": sorted(METHODS)})
    return handler


def answer(serving: Serving, asker: Asker, name: str, given: Mapping[str, Any]) -> Outcome:
    """What the handler of this name makes of a request.

    Raises:
        GraphtideError: there is no such handler, or it refuses.
    """
    handler, params = find(name), Params(given, asker)
    if name == "hello":
        return handler(serving, params)
    params.deadline = time.monotonic() + params.timeout_ms(serving.limits) / 1000
    params.min_offsets = params.offsets("min_offsets")
    return handler(serving, params)
