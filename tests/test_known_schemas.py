"""A schema registry under attack or bad luck: ids that it does not know, answers that take too long, an outage."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from schema_registry import SchemaRegistry, framed

from graphtide.daemon.ingest import known_schemas
from graphtide.daemon.ingest import registry as registry_module
from graphtide.daemon.ingest.decode import Decoder
from graphtide.daemon.ingest.decode_columns import Bad, Reason
from graphtide.daemon.ingest.known_schemas import IN_VAIN_LEAST_S, IN_VAIN_S, UNKNOWN_S, KnownSchemas
from graphtide.daemon.ingest.loop import Ingest
from graphtide.daemon.ingest.prepared import PreparedQueue
from graphtide.daemon.ingest.registry import NUMBER_MAX, Registry, RegistryAway, Schema
from graphtide.daemon.ingest.reuse import IdReuse
from graphtide.daemon.records.stream import Decoded, Lag, Partition, RawRecord
from graphtide.gpma.index.vertex_index import VertexIndex

P = Partition("edges", 0)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def raw(number: int, offset: int = 0, src: int = 1, dst: int = 2) -> RawRecord:
    body = json.dumps({"src": src, "dst": dst}).encode()
    return RawRecord(P, offset, offset + 1, framed(number, body), "registry", 0)


def reasons(decoded: Decoded) -> list[str]:
    return [bad.reason for bad in decoded.bad]


class Asked:
    """A registry that knows even ids only, and takes so long to say so."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now = 100.0
        self.seconds = seconds
        self.asked: list[int] = []

    def schema(self, number: int) -> Schema:
        self.asked.append(number)
        self.now += self.seconds
        if number % 2:
            raise Bad(Reason.UNKNOWN_SCHEMA, f"the registry knows no schema {number}")
        return Schema("JSON", "", {})

    def known(self) -> KnownSchemas[Any]:
        return KnownSchemas(self, lambda schema: schema, clock=lambda: self.now)  # type: ignore[arg-type]


def outcome(known: KnownSchemas[Any], number: int) -> str:
    try:
        known.get(number)
    except Bad as bad:
        return bad.reason.value
    return "known"


# -- ids that the registry does not know --------------------------------------------------------------------


def test_so_many_ids_are_asked_for_in_vain() -> None:
    asked = Asked()
    known = asked.known()
    at_once = round(IN_VAIN_S / IN_VAIN_LEAST_S)
    outcomes = [outcome(known, 2 * at + 1) for at in range(2 * at_once)]
    assert outcomes.count("unknown-schema") in (at_once, at_once + 1)
    assert set(outcomes[at_once + 1 :]) == {"unasked-schema"}
    assert len(asked.asked) == outcomes.count("unknown-schema") == known.lookups["unknown"]
    asked.now += 1.0
    later = [outcome(known, 10_001 + 2 * at) for at in range(50)]
    assert 4 <= later.count("unknown-schema") <= 6, "a tenth of the time since then"
    assert outcome(known, 1) == "unknown-schema", "remembered ones are not asked for"


def test_what_the_registry_knows_costs_nothing_of_it() -> None:
    asked = Asked(seconds=1.0)
    known = asked.known()
    assert {outcome(known, 2 * at) for at in range(200)} == {"known"}
    assert known.lookups == {"known": 200, "unknown": 0, "unusable": 0, "away": 0}


def test_slow_answers_cost_what_they_take() -> None:
    asked = Asked(seconds=4.0)
    known = asked.known()
    assert [outcome(known, at) for at in (1, 3, 5, 7, 9)] == ["unknown-schema"] * 3 + ["unasked-schema"] * 2


def test_a_schema_that_was_known_goes_on_through_an_attack() -> None:
    asked = Asked()
    known = asked.known()
    assert outcome(known, 2) == "known"
    for at in range(10_000):
        outcome(known, 2 * at + 1)
    assert outcome(known, 2) == "known"
    assert asked.asked.count(2) == 1, "unknown ids do not drive out schemas"
    assert outcome(known, 4) == "unasked-schema"
    asked.now += 10.0
    assert outcome(known, 4) == "known"


def test_unknown_ids_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schemas, "UNKNOWN_MAX", 8)
    asked = Asked()
    known = asked.known()
    for at in range(20):
        outcome(known, 2 * at + 1)
        assert len(known._unknown) <= 8
    assert outcome(known, 39) == "unknown-schema" and asked.asked.count(39) == 1
    asked.now += UNKNOWN_S
    assert outcome(known, 39) == "unknown-schema" and asked.asked.count(39) == 2
    assert len(known._unknown) == 1


def test_ids_that_no_registry_has_are_not_asked_for(registry: SchemaRegistry) -> None:
    """One asked for such an id has no page of that name, and says so as one that is no registry would."""
    decoder = Decoder(registry=Registry(registry.url))
    for number in (NUMBER_MAX + 1, (1 << 32) - 1):
        (bad,) = decoder.decode(raw(number)).bad
        assert (bad.reason, bad.detail) == (
            "unknown-schema",
            f"no registry knows a schema {number}: ids end at 2147483647",
        )
    assert not registry.asked
    assert reasons(decoder.decode(raw(NUMBER_MAX))) == ["unknown-schema"] and registry.asked


def test_the_ids_of_most_records_are_asked_for_first(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_schemas, "IN_VAIN_S", 3 * IN_VAIN_LEAST_S)
    monkeypatch.setattr(known_schemas, "IN_VAIN_SHARE", 0.0)
    number = registry.register("a", "{}", "JSON", number=5000)
    records = [raw(10_000 + at, at) for at in range(300)]
    records += [raw(number, 300 + at, src=at) for at in range(3)]
    (decoded,) = Decoder(registry=Registry(registry.url)).decode_all(records)
    assert decoded.block is not None and len(decoded.block) == 3
    said = reasons(decoded)
    assert len(said) == 300 and set(said) == {"unknown-schema", "unasked-schema"}
    assert said.count("unknown-schema") == len(registry.asked) - 1 <= 4


@pytest.mark.parametrize("schema", [None, "{"])
def test_records_without_a_schema_leave_nothing_behind(registry: SchemaRegistry, schema: str | None) -> None:
    """An exception that is kept, and raised again, would keep what was at hand each time."""
    if schema is not None:
        registry.register("a", schema, number=1)
    decoder = Decoder(registry=Registry(registry.url))
    decoder.decode(raw(1))
    value = framed(1, b"x" * 100)
    references = sys.getrefcount(value)
    decoded = [decoder.decode(RawRecord(P, 0, 1, value, "registry", 0)) for _ in range(3)]
    assert all(one.bad for one in decoded)
    del decoded
    gc.collect()
    assert sys.getrefcount(value) == references


# -- a registry that takes its time ---------------------------------------------------------------------------


def test_a_schema_and_what_it_refers_to_have_one_deadline(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And come together in the end, however slow each answer is."""
    now = 0.0
    monkeypatch.setattr("graphtide.daemon.ingest.registry.time.monotonic", lambda: now)
    exchange = Registry._exchange

    def slow(self: Registry, connected: Any, request: Any, posted: bytes, ends: float) -> tuple[int, bytes]:
        nonlocal now
        now += 1.0
        if now >= ends:
            raise TimeoutError("timed out")
        return exchange(self, connected, request, posted, ends)

    monkeypatch.setattr(Registry, "_exchange", slow)
    for at in range(20):
        registry.register(f"part{at}", {"type": "fixed", "name": f"F{at}", "size": 1})
    names = [(f"F{at}", f"part{at}", 1) for at in range(20)]
    whole = registry.register("whole", '"int"', references=names)
    client = Registry(registry.url, timeout_s=4.5)
    tries = 0
    while True:
        began = now
        try:
            found = client.schema(whole)
        except RegistryAway:
            assert now - began <= 5.0
            tries += 1
        else:
            break
    assert [*found.references] == [name for name, _, _ in names]
    assert tries == 5, "four answers each time"
    assert sorted(registry.asked) == sorted({*registry.asked}), "nothing is asked for twice that was answered"


def test_an_answer_without_a_schema_is_not_kept(registry: SchemaRegistry) -> None:
    number = registry.register("a", "{}", "JSON")
    client = Registry(registry.url)
    registry.answer = 200, b"{}"
    for _ in range(2):
        with pytest.raises(RegistryAway, match="without a schema"):
            client.schema(number)
    registry.answer = None
    assert client.schema(number).kind == "JSON"


# -- one that goes away while the stream flows ----------------------------------------------------------------


class Source:
    """Gives one poll after the other; then stops."""

    unit = "records"
    outages = 0
    away = None

    def __init__(self, polls: list[list[RawRecord]]) -> None:
        self.polls = polls
        self.at = 0
        self.stop: Callable[[], None] = lambda: None

    def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
        if not self.polls:
            self.stop()
            return []
        records = self.polls.pop(0)
        self.at = records[-1].next_offset
        return records

    def position(self) -> dict[Partition, int]:
        return {P: self.at}

    def backlog(self) -> int | None:
        return None

    def partition_count(self, name: str) -> int:
        return 1

    def refresh_lag(self) -> None: ...

    def lag(self) -> Lag:
        return Lag({P: 0}, 0.0)


class Waits(threading.Event):
    """Each wait for it is a moment in which something happens."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self.moment = moment

    def wait(self, timeout: float | None = None) -> bool:
        self.moment()
        return self.is_set()


def test_a_registry_that_goes_in_the_middle_holds_the_stream_and_loses_nothing(registry: SchemaRegistry) -> None:
    """What has a known schema goes on; what has not waits, with all that stands behind it; then all do."""
    first, second = (registry.register(name, "{}", "JSON") for name in ("a", "b"))

    class Leaves(Source):
        def poll(self, bytes_max: int, timeout_s: float) -> list[RawRecord]:
            if len(self.polls) == 3:
                registry.answer = 503, b"gone"
            return super().poll(bytes_max, timeout_s)

    source = Leaves(
        [
            [raw(first, 0, 1, 2)],
            [raw(first, 1, 2, 3)],
            [raw(first, 2, 3, 4), raw(second, 3, 4, 5), raw(first, 4, 5, 6), raw(7777, 5)],
            [raw(second, 6, 6, 7)],
        ]
    )
    seen: list[tuple[str | None, int]] = []

    def moment() -> None:
        seen.append((ingest.waiting, sum(ingest.lag().amount.values())))
        if len(seen) == 3:
            registry.answer = None

    queue, index, letters = PreparedQueue(1000), VertexIndex.create("int"), []
    ingest = Ingest(
        source=source,  # type: ignore[arg-type]
        decoder=Decoder(registry=Registry(registry.url)),
        index=index,
        reuse=IdReuse(index, lambda: lambda: True),
        dead_letters=type("Letters", (), {"write": letters.extend})(),
        queue=queue,
        report=lambda report: None,
        poll_bytes_max=1 << 20,
        stop=Waits(moment),
    )
    source.stop = ingest.stop.set
    ingest.run()
    said = f"the schema registry at {registry.url} answers 503 to /schemas/ids/{second}"
    assert seen == [(said, 4)] * 3, "the whole poll waits"
    assert ingest.waiting is None
    items = queue.take(10_000, 0)
    assert [(item.updates, item.offsets[P]) for item in items if item.updates] == [(1, 1), (1, 2), (3, 6), (1, 7)]
    ends = [index.external(np.arange(index.n_vertices, dtype=np.uint32)).tolist()]
    assert ends == [[1, 2, 3, 4, 5, 6, 7]]
    assert [(bad.offset, bad.reason) for bad in letters] == [(5, "unknown-schema")]


def test_what_connecting_takes_is_taken_from_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake has what is left, and not as much again."""
    now, given = [100.0], list[float | None]()

    class Context(ssl.SSLContext):
        def wrap_socket(self, sock: socket.socket, *_: Any, **__: Any) -> Any:
            given.append(sock.gettimeout())
            raise TimeoutError

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        now[0] += 4.0
        made = socket.socket()
        made.settimeout(timeout)
        return made

    monkeypatch.setattr(registry_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(registry_module.socket, "create_connection", connected)
    with pytest.raises(RegistryAway):
        Registry("https://127.0.0.1:1", context=Context(ssl.PROTOCOL_TLS_CLIENT), timeout_s=5.0).schema(1)
    assert given == [1.0]
