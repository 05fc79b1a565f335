"""A subscription without its sockets: what is asked for, and what the notifications mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import Unavailable
from .results import Change
from .wire import Notification, error_from_wire, ids_of, masked, unpack_bitmap

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
"""Between two tries to connect again."""
SILENCE_S_MAX = 30.0
"""The server says something every ten seconds; one that is silent for so long is gone."""


class Following:
    """One subscription, over any number of connections one after the other."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        """``params``: of the request ``subscribe``."""
        self._params = params
        self._number: int | None = None
        self._parts: list[Mapping[str, Any]] = []
        self.epoch: tuple[int, int] | None = None
        """Of the newest change that was taken whole; before the first one that from which on changes are told."""
        self.has_begun = False
        """A server has accepted it."""
        self._server: object = None
        self._offsets: Mapping[str, Any] | None = None

    def request(self, server: object = None) -> dict[str, Any]:
        """The parameters for the next connection, to this server: to go on where the last one ended."""
        self._number, self._parts = None, []
        moved, self._server = server != self._server, server
        if self.epoch is None:
            return dict(self._params)
        # Where it cannot go on, all must come anew, also for those who did not want it at first.
        anew = {**self._params, "since": None, "snapshot": None, "min_offsets": None}
        if moved:  # under the same epoch another server has another state
            return {**anew, "min_offsets": self._offsets}
        return {**anew, "since": list(self.epoch)}

    def begun(self, answer: Mapping[str, Any]) -> None:
        """The answer to the request."""
        self._number = answer["subscription"]
        self.has_begun = True
        if self.epoch is None and self._params.get("snapshot") is False and self._params.get("since") is None:
            self.epoch, self._offsets = (answer["epoch"][0], answer["epoch"][1]), answer["offsets"]

    def take(self, notice: Notification) -> Change | None:
        """What this notification completes.

        Raises:
            GraphtideError: the server ended the subscription.
        """
        content = notice.content
        if content.get("subscription") != self._number:
            return None
        if notice.method == "ended":
            raise error_from_wire(content.get("error"))
        if notice.method != "changed":
            return None
        self._parts.append(content)
        if content["more"]:
            return None
        parts, self._parts = self._parts, []
        change = _change(parts, self._params["program"])
        if change.since is not None and self.epoch not in (None, change.since):
            raise Unavailable(f"changes since {change.since} came after those up to {self.epoch}")
        is_news = change.epoch != self.epoch or len(change.ids) > 0 or len(change.removed) > 0
        self.epoch, self._offsets = change.epoch, change.offsets
        return change if is_news else None


def _change(parts: list[Mapping[str, Any]], program: str) -> Change:
    first = parts[0]
    since = first["since"]
    values = [masked(part["values"], part["null"]) for part in parts]
    saturated = None
    if any("saturated" in part for part in parts):
        flags = [unpack_bitmap(part.get("saturated"), len(own)) for part, own in zip(parts, values, strict=True)]
        saturated = np.concatenate(flags)
    return Change(
        (first["epoch"][0], first["epoch"][1]),
        first["offsets"],
        since=None if since is None else (since[0], since[1]),
        ids=_joined([part["ids"] for part in parts]),
        values=values[0] if len(values) == 1 else np.ma.concatenate(values),  # type: ignore[no-untyped-call]
        removed=_joined([part["removed"] for part in parts]),
        stale=first.get("stale"),
        saturated=saturated,
        program=program,
    )


def _joined(columns: list[Any]) -> Any:
    ids = [ids_of(column) for column in columns]
    if len(ids) == 1:
        return ids[0]
    return [id for some in ids for id in some] if isinstance(ids[0], list) else np.concatenate(ids)
