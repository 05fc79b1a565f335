"""Subscriptions: changes, applied one after the other, give at each epoch what ``get`` answers then."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_reuse import World, listed, named
from test_server import Chain

from graphtide.compute.program import ExternalId
from graphtide.compute.registry import KINDS
from graphtide.daemon.client import Change, Client
from graphtide.daemon.client.changes import Following
from graphtide.daemon.client.wire import ClientCore, Notification, Response
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.engine.standing import Standing
from graphtide.daemon.errors import RequestError
from graphtide.daemon.serve import shared_memory
from graphtide.daemon.serve.listening import Doors
from graphtide.daemon.serve.publication import Publication
from graphtide.daemon.serve.supervisor import ServerLink
from graphtide.gpma.index.vertex_index import Kind, VertexIndex
from graphtide.partition.graph import GraphChange


class Told:
    """What a subscriber knows: values by id, None where a vertex has none."""

    def __init__(self, **params: Any) -> None:
        self.params = params
        self.following = Following(params)
        self.number = -1
        self.known: dict[Any, Any] = {}
        self.changes: list[Change] = []

    def take(self, notice: Notification) -> None:
        change = self.following.take(notice)
        if change is not None:
            self.changes.append(change)
            self.apply(change)

    def apply(self, change: Change) -> None:
        if change.is_snapshot:
            self.known.clear()
        for id in listed_ids(change.removed):
            self.known.pop(id, None)
        self.known.update(zip(listed_ids(change.ids), change.values.tolist(), strict=True))


def listed_ids(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else ids.tolist()


class Line:
    """One connection with any number of subscriptions."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(address.removeprefix("unix:"))
        self.core = ClientCore()
        self.told: list[Told] = []
        self.notices: list[Notification] = []

    def close(self) -> None:
        self.socket.close()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        msgid, message = self.core.request(method, params)
        self.socket.sendall(message)
        while True:
            for response in self.hear():
                assert response.msgid == msgid
                if response.error is not None:
                    raise response.error
                return response.result

    def subscribe(self, told: Told) -> bool:
        """Subscribe, or go on with it; whether it goes on from where it was."""
        answer = self.ask("subscribe", told.following.request())
        told.following.begun(answer)
        told.number = answer["subscription"]
        self.told.append(told)
        self.tell()
        return bool(answer["resumed"])

    def hear(self) -> list[Response]:
        """Responses; notifications wait to be told."""
        messages = self.core.messages(self.socket.recv(1 << 16))
        self.notices += [message for message in messages if isinstance(message, Notification)]
        return [message for message in messages if isinstance(message, Response)]

    def tell(self) -> None:
        """Notifications find those whom they are for; what came with the answer to a request waited for it."""
        notices, self.notices = self.notices, []
        for notice in notices:
            for told in self.told:
                told.take(notice)

    def reach(self, epoch: tuple[int, int]) -> None:
        """Hear all that there is up to this epoch, at which no other follows."""
        probe = Told(program="bfs", vertices=[])  # its snapshot comes after what is due to those before it
        self.subscribe(probe)
        while probe.following.epoch is None:
            self.hear()
            self.tell()
        assert probe.following.epoch == epoch
        self.told.remove(probe)
        self.ask("unsubscribe", {"subscription": probe.number})


class Published(World):
    """A world whose epochs are published by a real query server, dense ids that change hands and all."""

    def __init__(self, seed: int, folder: Path, kind: Kind, limits: LimitsConfig) -> None:
        self.link: ServerLink | None = None
        self.number = 0
        self.failing: set[str] = set()
        super().__init__(seed, kind=kind)
        self.close()
        self.index = VertexIndex.create(kind, shared_memory.allocate)
        self.link = ServerLink(
            doors=Doors(listen=[f"unix:{folder}/s"]),
            graph={"directed": True, "weighted": True, "vertex_ids": kind},
            index=self.index,
            topology=Chain(),
            limits=limits,
        )
        self.begin(programs=True)
        self.standing = Standing(self.engine.programs, {program.id: {} for program in self.engine.programs})
        self.link.start()
        self.publish([], None, whole=True)
        self.link.wait_ready()

    def begin_grace(self) -> Any:
        return super().begin_grace() if self.link is None else self.link.begin_grace()

    @property
    def at(self) -> tuple[int, int]:
        return 1, self.number

    def publish(self, runs: Any, change: GraphChange | None, *, whole: bool = False) -> None:
        assert self.link is not None
        self.number += 1
        for run in runs:
            self.standing.note(run, self.at)
        latest = {run.id: run for run in runs}
        programs = {
            program.id: self.standing.publication(program, latest.get(program.id), self.graph, change, whole=whole)
            for program in self.engine.programs
        }
        moved = np.empty(0, np.uint32)
        if change is not None:
            moved = np.concatenate([change.deleted_vertices, change.revived_vertices])
        n, alive = self.graph.n_vertices, self.graph.alive
        publication = Publication(
            self.at, n, {"t": {0: self.number}}, programs, {}, alive, None if whole else moved
        )
        self.link.publish(publication)

    def published(self, change: GraphChange, runs: Any) -> None:
        """Now and then a program tells nothing of what it changed, as one that started over."""
        made = []
        for run in runs:
            if run.id in self.failing:
                made.append(run._replace(refresh=None, error="it failed"))
            elif self.rng.random() < 0.1:
                anew = dataclasses.replace(run.refresh, changed=dict.fromkeys(run.refresh.changed))
                made.append(run._replace(refresh=anew))
            else:
                made.append(run)
        self.publish(made, change)


@contextmanager
def published(
    seed: int, folder: Path, kind: Kind = "int", **limits: Any
) -> Iterator[tuple[Published, str, Client]]:
    world = Published(seed, folder, kind, LimitsConfig(**limits))
    assert world.link is not None
    try:
        address = world.link.addresses[0]
        with Client(address, timeout=60) as client:
            yield world, address, client
    finally:
        world.link.stop()
        world.close()


def answers(world: Published, client: Client, program: str, ids: list[Any]) -> dict[Any, Any]:
    """What ``get`` says of the vertices that exist."""
    got = client.get(program, ids)
    assert got.epoch == world.at
    unknown = set(listed_ids(got.unknown))
    values = zip(ids, got.values.tolist(), strict=True)
    return {id: value for id, value in values if id not in unknown}


def everybody(world: Published) -> list[Any]:
    return listed(named(world.kind, range(world.fresh)))


def check(world: Published, client: Client, told: Told) -> None:
    chosen = told.params.get("vertices")
    ids = everybody(world) if chosen is None else chosen
    expected = answers(world, client, told.params["program"], ids)
    threshold = told.params.get("threshold")
    if not threshold:
        assert told.known == expected
        return
    assert told.known.keys() == expected.keys()
    for id, value in expected.items():
        sent = told.known[id]
        assert (sent is None) == (value is None)
        assert sent is None or value == sent or abs(value - sent) <= threshold * abs(sent)


def test_ids_that_no_vertex_can_have_are_not_kept(tmp_path: Path) -> None:
    with published(0, tmp_path, "string") as (_, _, client):
        with pytest.raises(RequestError, match="an id of more than 256 bytes"):
            client.call("subscribe", {"program": "bfs", "vertices": ["a", "é" * 129]})
        assert client.call("subscribe", {"program": "bfs", "vertices": ["a", "é" * 128]})["subscription"] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["int", "string"])
@pytest.mark.parametrize("seed", range(2))
def test_changes_give_what_get_answers_at_each_epoch(tmp_path: Path, seed: int, kind: Kind) -> None:
    with published(seed, tmp_path, kind) as (world, address, client):
        rng = np.random.default_rng(seed)
        lines = [Line(address) for _ in range(2)]
        try:
            some = listed(named(kind, [*range(12), *range(100, 400, 3)]))
            for program in KINDS:
                lines[0].subscribe(Told(program=program))
                lines[1].subscribe(Told(program=program, vertices=some))
                if KINDS[program].value is not ExternalId:
                    lines[1].subscribe(Told(program=program, threshold=0.05))
                    lines[0].subscribe(Told(program=program, vertices=some, threshold=0.05))
            for step in range(40):
                if step == 25:
                    world.failing = {"components", "bfs"}
                for _ in range(int(rng.integers(1, 4))):
                    for _ in range(int(rng.integers(1, 4))):
                        world.ingest(world.updates())
                    world.epoch()
                    world.reuse.step(eager=True)
                for line in lines:
                    if rng.random() < 0.2:  # it goes away, and comes back
                        told, line.told = line.told, []
                        line.close()
                        line.__init__(address)  # type: ignore[misc]
                        for one in told:
                            began = one.following.epoch is not None
                            assert line.subscribe(one) == began
                    line.reach(world.at)
                    for one in line.told:
                        check(world, client, one)
            assert world.index.n_vertices < world.fresh - 100, "dense ids have changed hands"
            for one in lines[0].told + lines[1].told:
                failed = one.params["program"] in world.failing
                assert (one.changes[-1].stale is not None) == failed
                assert [change.is_snapshot for change in one.changes] == [True] + [False] * (len(one.changes) - 1)
        finally:
            for line in lines:
                line.close()
