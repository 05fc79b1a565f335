"""Honest subscribers of a running daemon: they keep what they are told, and find what was missed or told twice."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from test_subscribe import Told, listed_ids
from waiting import until

from graphtide import Client
from graphtide.daemon.client import Change

Epoch = tuple[int, int]


class Watcher(threading.Thread):
    """Follows a program, over any number of connections, as long as it is told to.

    ``snapshots``: the epochs at which it began anew. ``epoch``, ``offsets``: of the last change.
    """

    def __init__(
        self, client: Client, program: str, *, vertices: Collection[int] | None = None, top: int | None = None
    ) -> None:
        super().__init__()
        self.program, self.vertices, self.top = program, vertices, top
        self.subscription = client.subscribe(program, vertices, top=top, reconnect=True)
        self.told = Told(program=program)
        self.changes = 0
        self.snapshots: list[Epoch] = []
        self.epoch: Epoch | None = None
        self.offsets: dict[tuple[str, ...], int] = {}
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for change in self.subscription:
                self._follow(change)
        except BaseException as error:  # for whoever waits for more
            self._failure = error

    def _follow(self, change: Change) -> None:
        """It goes on from the one before, and leads on; within a life of the daemon no offset goes back."""
        offsets = dict(_flat(change.offsets))
        if self.epoch is not None:
            # Where what changed since is not known any more, as in a new server, all of an epoch may come again.
            is_later = change.epoch > self.epoch or (change.is_snapshot and change.epoch == self.epoch)
            assert is_later, f"{change.epoch} was told after {self.epoch}"
            assert change.is_snapshot or change.since == self.epoch, f"{change.since} is not {self.epoch}"
            if change.epoch[0] == self.epoch[0]:
                for place in offsets.keys() & self.offsets.keys():
                    assert offsets[place] >= self.offsets[place], f"{place} went back at {change.epoch}"
        if change.is_snapshot:
            self.snapshots.append(change.epoch)
        self.told.apply(change)
        self.changes += 1
        self.offsets, self.epoch = offsets, change.epoch

    def end(self) -> None:
        self.subscription.close()
        self.join()

    def covers(self, offsets: Mapping[str, Any]) -> bool:
        """It was told of an epoch that has them all.

        Raises:
            BaseException: what it was told last is wrong, or it was sent away.
        """
        if self._failure is not None:
            raise self._failure
        return all(self.offsets.get(place, 0) >= offset for place, offset in _flat(offsets))

    def knows(self, client: Client, ids: Any) -> bool:
        """Whether it has come to the newest epoch; then it knows what is answered there, of these ids (all that
        there ever were) or of those that it chose."""
        epoch = client.stats().epoch
        if self._failure is not None:
            raise self._failure
        if self.epoch != epoch:
            return False
        expected = self._answered(client, ids, epoch)
        if expected is None:  # another epoch came meanwhile
            return False
        assert self.told.known == expected, f"{self.program} at {epoch}"
        return True

    def check(self, client: Client, ids: Any) -> None:
        """Wait until it knows what is answered, at an epoch that no other follows."""
        until(lambda: self.knows(client, ids))

    def _answered(self, client: Client, ids: Any, epoch: Epoch) -> dict[Any, Any] | None:
        if self.top is not None:
            best = client.top(self.program, self.top)
            known = dict(zip(listed_ids(best.ids), best.values.tolist(), strict=True))
            return known if best.epoch == epoch == self.epoch else None
        asked = ids if self.vertices is None else self.vertices
        got = client.get(self.program, asked)
        unknown = set(listed_ids(got.unknown))
        values = zip(listed_ids(asked), got.values.tolist(), strict=True)
        known = {id: value for id, value in values if id not in unknown}
        return known if got.epoch == epoch == self.epoch else None


def _flat(offsets: Mapping[Any, Any], *path: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each partition, or file, and its offset."""
    for name, found in offsets.items():
        if isinstance(found, Mapping):
            yield from _flat(found, *path, str(name))
        else:
            yield (*path, str(name)), int(found)
