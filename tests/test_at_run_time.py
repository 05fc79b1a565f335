"""Programs that are run once, kept and dropped by requests, in a real daemon whose stream goes on meanwhile.

Every answer is compared with the graph that the updates before its offsets leave, in plain Python (``NaiveGraph``)
and by libraries; the daemon audits all programs, those that joined among them, after every epoch.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import sampling
from documented import Shell
from histories import Epoch, epoch_of, random_history
from naive import NaiveGraph
from oracles import ORACLES, Snapshot, assert_right
from running import Daemon, toml
from test_server import raw
from waiting import PATIENCE_S, until

from graphtide import Client
from graphtide.compute.program import ExternalId
from graphtide.compute.registry import KINDS
from graphtide.daemon.contents import id_column
from graphtide.daemon.errors import (
    GraphtideError,
    LimitExceeded,
    RequestError,
    TimedOut,
    Unavailable,
    UnknownProgram,
)
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.state.kept import KeptPrograms, read_kept
from graphtide.gpma.edges import Op

FILE = "stream.msgpack"
SOURCE = 3
VERTICES = 60
LATE = 1000
"""A vertex that no update of the stream names, as no other from here on."""
IDS = np.concatenate([np.arange(VERTICES), np.arange(LATE, LATE + 4)])
KEPT_MAX = 3
# The kernels of a program that is not configured are compiled while its request waits.
LIMITS = {
    "kept_max": KEPT_MAX,
    "timeout_ms_default": int(PATIENCE_S * 1000),
    "ad_hoc_seconds_max": PATIENCE_S,
}
TOLERANCE = 1e-3

WAITS = """
import time
from pathlib import Path

from graphtide.compute.program import Parameter
from graphtide.compute.registry import register
from graphtide.compute.triangles.triangles import Triangles


@register
class Waits(Triangles):
    kind = "waits"
    parameters = (Parameter("gate", "a file to wait for", str),)

    def __init__(self, id, *, gate):
        super().__init__(id)
        self.gate = Path(gate)

    def start(self, graph):
        while graph.n_vertices > 20 and not self.gate.exists():
            self.gate.with_suffix(".begun").touch()
            time.sleep(0.005)
        return super().start(graph)


def look_at(gates):
    while len(gates) > 1024 and not Path(gates[0]).exists():
        Path(gates[0]).with_suffix(".begun").touch()
        time.sleep(0.005)
    return gates


@register
class Looks(Triangles):
    # One whose parameter takes long to look at where it is long.
    kind = "looks"
    parameters = (Parameter("gates", "files to wait for", look_at),)

    def __init__(self, id, *, gates):
        super().__init__(id)


@register
class Passes(Waits):
    # One that takes a pass after the other, until it is broken off.
    kind = "passes"

    def start(self, graph):
        while graph.n_vertices > 20 and not self.gate.exists():
            graph.team.require_wanted()
            self.gate.with_suffix(".begun").touch()
            time.sleep(0.005)
        return super().start(graph)


@register
class Cuts(Triangles):
    kind = "cuts"

    def columns(self):
        return {name: column[:20] for name, column in super().columns().items()}


@register
class Mute(Triangles):
    kind = "mute"

    def columns(self):
        if self._n > 20:
            raise RuntimeError("it has none")
        return super().columns()


@register
class Breaks(Triangles):
    kind = "breaks"

    def start(self, graph):
        if graph.n_vertices > 20:
            raise RuntimeError("it broke")
        return super().start(graph)
"""


class Life:
    """A daemon, and a thread that feeds it; ``records`` of the stream by the offset behind each."""

    def __init__(self, folder: Path) -> None:
        (folder / "waits.py").write_text(WAITS)
        self.folder = folder
        self.daemon = Daemon(
            folder,
            {
                "compute": {"python_modules": ["waits"]},
                "server": {"limits": LIMITS},
                "epoch": {"updates_max": 60},
                "program": [
                    {"name": "bfs", "id": "hops", "source": SOURCE},
                    {"name": "sspaths", "source": SOURCE},
                    {"name": "components"},
                    {"name": "pagerank", "tolerance": TOLERANCE},
                    {"name": "triangles"},
                ],
            },
        )
        self.daemon.settings["server"]["listen"] = [self.daemon.address]
        self.daemon.config.write_text(toml(self.daemon.settings))
        # Open all the time: a process that is being forked elsewhere has its lock for a moment.
        self.writer = SpoolWriter(self.daemon.spool, name="stream")
        self.records: list[Epoch] = []
        self.ends: list[int] = []
        self._seed = 0
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._feeder = ThreadPoolExecutor(1)
        self._ended: list[Future[None]] = []

    def send(self, record: Epoch) -> dict[str, int]:
        """One more record; what a ``wait`` for it needs."""
        with self._writing:
            self.writer.append(encode_msgpack(record.src.astype(np.int64), record.dst, record.ops, record.weights))
            self.writer.flush()
            self.records.append(record)
            self.ends.append(self.writer.offset)
            return {FILE: self.writer.offset}

    def history(self) -> Iterator[Epoch]:
        """Updates without end, deletions of vertices among them."""
        while True:
            self._seed += 1
            # Of one whole graph to the next: what the one before left is deleted, or stays.
            history = random_history(self._seed, directed=True, vertices=VERTICES, epochs=60, vertex_share=0.06)
            yield from (record for record in history.epochs if len(record))

    def feed(self) -> None:
        """Begin to send records, as fast as the daemon takes them, until ``rest``."""

        def work() -> None:
            with self.daemon.client() as client:
                for record in self.history():
                    offsets = self.send(record)
                    if self._stop.is_set():
                        return
                    if len(self.records) % 8 == 0:
                        client.wait(offsets, timeout_ms=300_000)

        self._feeder.submit(work).add_done_callback(self._ended.append)

    def rest(self) -> None:
        """Send no more."""
        self._stop.set()
        self._feeder.shutdown()
        for ended in self._ended:
            ended.result()

    def state(self, offsets: Any, source: int = SOURCE) -> Snapshot:
        """The graph that the records before these offsets leave."""
        with self._writing:  # the daemon may have read what is not noted yet
            written = list(zip(self.records, self.ends, strict=True))
        graph = NaiveGraph()
        for record, end in written:
            if end <= offsets[FILE]:
                graph.apply(record.src.tolist(), record.dst.tolist(), record.ops.tolist(), record.weights.tolist())
        ids = np.array(sorted(graph.alive), np.int64)
        arcs = graph.contents()
        src, dst = np.searchsorted(ids, np.array(list(arcs), np.int64).reshape(-1, 2)).T
        place = {int(id): i for i, id in enumerate(ids)}
        return Snapshot(ids, src, dst, np.array(list(arcs.values()), np.float32), place.get(source))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("at-run-time")


@pytest.fixture(scope="module")
def life(folder: Path) -> Iterator[Life]:
    found = Life(folder)
    with found.daemon, found.writer:
        found.daemon.start()
        found.feed()
        try:
            with found.daemon.client() as client:
                until(lambda: client.stats()["vertices"] > 40)
                yield found
        finally:
            found.rest()


@pytest.fixture
def client(life: Life) -> Iterator[Client]:
    """A client; what it kept is dropped behind it."""
    with life.daemon.client() as found:
        yield found
        for id, shown in found.programs()["programs"].items():
            if shown["kept"]:
                found.drop(id)


@pytest.fixture
def gate(folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file that programs wait for; it is there at the end."""
    found = folder / f"{request.node.name}.gate"
    yield found
    found.touch()


@pytest.fixture
def other(gate: Path) -> Iterator[Path]:
    """Another such file."""
    found = gate.with_name(f"other-{gate.name}")
    yield found
    found.touch()


def has_begun(gate: Path) -> bool:
    return gate.with_suffix(".begun").exists()


def fresh(client: Client, *ids: str) -> None:
    """Wait until these programs have joined."""

    def joined() -> bool:
        shown = client.programs()["programs"]
        assert all(shown[id]["state"] in ("computing", "fresh") for id in ids), shown
        return all(shown[id]["state"] == "fresh" for id in ids)

    until(joined)


def quarantined(client: Client, id: str) -> str:
    """Wait until this program is; why."""
    until(lambda: client.programs()["programs"][id]["state"] == "quarantined")
    return str(client.programs()["programs"][id]["reason"])


def as_floats(kind: str, values: Any, unknown: Any, state: Snapshot) -> np.ndarray[Any, Any]:
    """The values of the vertices that are there, as oracles give them."""
    known = np.isin(IDS, state.ids)
    np.testing.assert_array_equal(np.sort(unknown), IDS[~known])
    found = values[known]
    if KINDS[kind].value is ExternalId:
        return np.searchsorted(state.ids, found.filled(-1)).astype(np.float64)
    return np.ma.MaskedArray(found, dtype=np.float64).filled(-1.0)


# -- compute ------------------------------------------------------------------------------------------------------


KINDS_CHOSEN = 5


@pytest.fixture(scope="module")
def chosen_kinds(request: pytest.FixtureRequest) -> set[str]:
    """Some of all kinds, drawn, unless all cases are asked for: most of the time is their kernels'."""
    if sampling.all_cases(request.config):
        return set(ORACLES)
    given = request.config.getoption("--seed")
    drawn = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
    chosen = np.random.default_rng(drawn).permutation([*ORACLES])[:KINDS_CHOSEN].tolist()
    print(f"\nkinds {', '.join(chosen)}; to repeat: --seed {drawn}")
    return set(chosen)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", [*ORACLES])
def test_a_run_is_right_for_exactly_the_updates_before_its_offsets(
    life: Life, client: Client, kind: str, chosen_kinds: set[str]
) -> None:
    if kind not in chosen_kinds:
        pytest.skip("not among the kinds that were drawn; --all-cases takes all")
    given = {"source": SOURCE} if kind in ("bfs", "sssp", "sswp", "sspaths") else {}
    given |= {"sources": SOURCE} if kind == "ppr" else {}
    for _ in range(2):
        found = client.compute(kind, given, vertices=IDS)
        state = life.state(found.offsets)
        values = as_floats(kind, found.values, found.unknown, state)
        for oracle in ORACLES[kind]:
            if kind != "sswp" or state.source is not None:
                assert_right(kind, values, oracle, state, TOLERANCE)
        assert found.ids is IDS and found.seconds > 0


def test_the_commands_of_the_page_work(life: Life, client: Client, tmp_path: Path) -> None:
    """Those of programs.md, and what is kept by them is not there behind them."""
    with Shell("docs/programs.md", __file__, tmp_path, words={"ADDRESS": life.daemon.address}) as shell:
        for request in ("compute", "keep", "drop"):
            shell.run(f"graphtide query ADDRESS {request} ")
    assert "from7" not in client.programs()["programs"]


def test_the_best_of_a_run_and_its_scalars(life: Life, client: Client) -> None:
    found = client.compute("pagerank", {"tolerance": 1e-4}, top=5)
    state = life.state(found.offsets)
    assert found.ids is not None and found.values is not None and found.error_bound is not None
    assert 0 < found.error_bound <= 1e-4
    ranks = dict(zip(state.ids.tolist(), ORACLES["pagerank"][0](state), strict=True))
    best = sorted(ranks.values(), reverse=True)[:5]
    np.testing.assert_allclose(found.values, best, rtol=2e-4)
    np.testing.assert_allclose([ranks[int(id)] for id in found.ids], found.values, rtol=2e-4)
    last = client.compute("pagerank", top=1, order="asc")
    assert last.values is not None and last.values[0] <= found.values[-1]
    alone = client.compute("triangles")
    assert alone.values is None and alone.ids is None
    assert alone.scalars["triangles"] == ORACLES["triangles"][0](life.state(alone.offsets)).sum() / 3


def test_a_run_covers_the_offsets_that_are_asked_for(life: Life, client: Client) -> None:
    offsets = life.send(epoch_of([(Op.INSERT, LATE + 1, LATE + 2, 1.0)], 0))
    found = client.compute("bfs", {"source": LATE + 1}, vertices=[LATE + 2, LATE + 3], min_offsets=offsets)
    assert found.values is not None and found.values.tolist() == [1, None]
    assert list(found.unknown) == [LATE + 3]


@pytest.mark.parametrize(
    ("program", "given", "options", "error", "words"),
    [
        ("bfz", {"source": 1}, {}, RequestError, "did you mean 'bfs'"),
        ("bfs", {}, {}, RequestError, "needs the parameter 'source'"),
        ("bfs", {"source": 1.5}, {}, RequestError, "source = 1.5 is not allowed"),
        ("bfs", {"source": "alice"}, {}, RequestError, "'alice': no ids of this graph"),
        ("bfs", {"source": "1_000"}, {}, RequestError, "'1_000': no ids of this graph"),
        ("bfs", {"source": [1.5] * 1000}, {}, RequestError, r"source = \[1.5, 1.5, .*\.\.\.\] is not allowed"),
        ("pagerank", {"dumping": 1}, {}, RequestError, "did you mean 'damping'"),
        ("bfs", {"source": 1, "vertexes": [1]}, {}, RequestError, "did you mean 'vertices'"),
        ("bfs", {"source": 1}, {"top": 3, "vertices": [1]}, RequestError, "together"),
        ("components", {}, {"top": 3}, RequestError, "have no order"),
        ("pagerank", {}, {"top": 10**6}, LimitExceeded, "top is 1000000"),
        ("bfs", {"source": 1}, {"vertices": np.zeros(100_001, np.int64)}, LimitExceeded, "100001"),
        ("breaks", {}, {}, RequestError, "it broke"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    client: Client, program: str, given: Any, options: Any, error: type[GraphtideError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.compute(program, given, **options)


@pytest.mark.parametrize("method", ["compute", "keep"])
@pytest.mark.parametrize(
    ("program", "given", "parameter"),
    [
        ("bfs", {"source": "alice"}, "source"),  # of a graph whose ids are integers
        ("bfs", {"source": [1.5]}, "source"),
        ("breaks", {"pace": 1}, "pace"),
        ("bfz", {"source": 1}, "program"),
    ],
)
def test_what_is_wrong_with_a_program_names_its_parameter(
    client: Client, method: str, program: str, given: Any, parameter: str
) -> None:
    with pytest.raises(RequestError) as caught:
        client.call(method, {"program": program, "parameters": given}, timeout_ms=0)
    assert caught.value.detail["parameter"] == parameter


def test_runs_take_turns_and_end_with_their_client(life: Life, client: Client, gate: Path) -> None:
    # Statistics are those of an epoch: of one that comes after all runs before.
    client.wait(life.send(epoch_of([(Op.INSERT, 1, 2, 1.0)], 0)), timeout_ms=300_000)
    before = client.stats()["ad_hoc"]["outcomes"]
    with raw(life.daemon.address) as connection:
        connection.socket.sendall(msgpack.packb([0, 1, "compute", [{"program": "waits", "gate": str(gate)}]]))
        until(lambda: has_begun(gate))
        with pytest.raises(TimedOut, match="did not get its turn"):
            client.compute("bfs", {"source": SOURCE}, timeout_ms=100)
        # Meanwhile the stream and other requests go on.
        client.wait(life.send(epoch_of([(Op.INSERT, 1, 2, 1.0)], 0)), timeout_ms=300_000)
    # Its client is gone; a step that has begun goes on, and has the only place until it ends.
    until(lambda: _is_given_up(client))
    gate.touch()
    assert client.compute("triangles", timeout_ms=300_000).scalars["triangles"] >= 0
    until(lambda: client.stats()["ad_hoc"]["running"] == 0)
    until(lambda: client.stats()["ad_hoc"]["outcomes"]["given_up"] >= before["given_up"] + 2)
    until(lambda: client.stats()["ad_hoc"]["outcomes"]["answered"] > before["answered"])  # of a later epoch, maybe
    after = client.stats()["ad_hoc"]["outcomes"]
    assert after["failed"] == before["failed"]


def test_a_run_is_broken_off_between_two_passes_when_its_client_is_gone(
    life: Life, client: Client, gate: Path
) -> None:
    with raw(life.daemon.address) as connection:
        connection.socket.sendall(msgpack.packb([0, 1, "compute", [{"program": "passes", "gate": str(gate)}]]))
        until(lambda: has_begun(gate))
    assert client.compute("triangles", timeout_ms=300_000).scalars["triangles"] >= 0, "it had the only place"
    assert not gate.exists()


@pytest.mark.parametrize("method", ["compute", "keep"])
def test_others_are_answered_while_the_parameters_of_a_program_are_looked_at(
    life: Life, client: Client, gate: Path, method: str
) -> None:
    """A program may have a million sources, and the query server has one thread that answers. (A server that does
    not is replaced, and the client asks the next one.)"""
    restarts = client.stats()["server"]["restarts"]
    with raw(life.daemon.address) as connection:
        asked = {"program": "looks", "gates": [str(gate), *["and more"] * 2000]}
        connection.socket.sendall(msgpack.packb([0, 1, method, [asked]]))
        until(lambda: has_begun(gate))
        assert client.get("hops", [SOURCE]).values.size == 1
        assert client.stats()["server"]["restarts"] == restarts
    gate.touch()


def test_one_that_is_to_be_kept_is_broken_off_when_it_is_dropped(client: Client, gate: Path, other: Path) -> None:
    client.keep("passes", {"gate": str(gate)}, id="endless")
    until(lambda: has_begun(gate))
    client.drop("endless")
    client.keep("passes", {"gate": str(other)}, id="next")  # one is computed at a time
    until(lambda: has_begun(other))
    assert not gate.exists()


def _is_given_up(client: Client) -> bool:
    """Whether the server has let the next one go to the engine, where that waits."""
    with pytest.raises(TimedOut) as caught:
        client.compute("bfs", {"source": SOURCE}, timeout_ms=100)
    return "not done in time" in str(caught.value)


# -- keep ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "given", "like"),
    [
        ("bfs", {"source": SOURCE}, "hops"),
        ("sspaths", {"source": SOURCE}, "sspaths"),
        ("components", {}, "components"),
        ("pagerank", {"tolerance": TOLERANCE}, "pagerank"),
        ("triangles", {}, "triangles"),
    ],
)
def test_a_kept_program_is_what_a_configured_one_is_at_every_epoch(
    life: Life, client: Client, program: str, given: Any, like: str
) -> None:
    kept = client.keep(program, given, id="kept")
    assert kept.id == "kept" and kept.state in ("computing", "fresh")
    fresh(client, "kept")
    epochs = set()
    while len(epochs) < 20:
        both = client.get([like, "kept"], IDS)
        of_kept, of_configured = both["kept"].values, both[like].values
        assert of_kept.mask.tolist() == of_configured.mask.tolist()
        if program == "pagerank":
            np.testing.assert_allclose(of_kept.compressed(), of_configured.compressed(), rtol=2 * TOLERANCE)
        else:
            np.testing.assert_array_equal(of_kept.compressed(), of_configured.compressed())
        epochs.add(both["kept"].epoch)
    shown = client.programs()["programs"]["kept"]
    assert shown["kept"] and shown["parameters"] == given and shown["memory_bytes"] > 0


def test_several_join_while_the_stream_goes_on(life: Life, client: Client) -> None:
    ids = [client.keep("bfs", {"source": source}).id for source in (1, 2, SOURCE)]
    assert ids == ["bfs(1)", "bfs(2)", f"bfs({SOURCE})"]
    with pytest.raises(LimitExceeded, match="at most 3"):
        client.keep("bfs", {"source": 5})
    assert client.keep("bfs", {"source": 1}).id == "bfs(1)", "asking again changes nothing"
    fresh(client, *ids)
    assert {*ids} <= client.programs()["programs"].keys()
    with client.subscribe("bfs(2)") as subscription:
        first = next(subscription)
    state = life.state(first.offsets, source=2)
    told = dict(zip(first.ids.tolist(), first.values.astype(np.float64).filled(-1).tolist(), strict=True))
    assert told == dict(zip(state.ids.tolist(), ORACLES["bfs"][0](state).tolist(), strict=True))


def test_a_source_that_comes_later_is_found_when_it_does(life: Life, client: Client) -> None:
    client.keep("bfs", {"source": LATE}, id="late")
    fresh(client, "late")
    assert client.get("late", IDS).values.mask.all()
    offsets = life.send(epoch_of([(Op.INSERT, LATE, 7, 1.0)], 0))
    found = client.get("late", [LATE], min_offsets=offsets, timeout_ms=60_000)
    assert found.values.tolist() == [0]
    gone = life.send(epoch_of([(Op.DELETE_VERTEX, LATE, 0, 1.0)], 0))
    assert client.get("late", [LATE], min_offsets=gone, timeout_ms=60_000).unknown.tolist() == [LATE]


def test_one_that_takes_long_stops_nobody_and_joins_with_all_that_changed(
    life: Life, client: Client, gate: Path
) -> None:
    assert client.keep("waits", {"gate": str(gate)}, id="slow").state == "computing"
    until(lambda: has_begun(gate))
    shown = client.programs()
    assert shown["programs"]["slow"]["state"] == "computing" and shown["programs"]["slow"]["scalars"] == {}
    with pytest.raises(Unavailable, match="no results yet"):
        client.get("slow", IDS)
    assert "slow" not in client.call("hello")["programs"]
    until(lambda: client.stats().epoch[1] > shown.epoch[1] + 20)
    gate.touch()
    fresh(client, "slow")
    for _ in range(5):
        both = client.get(["slow", "triangles"], IDS)
        np.testing.assert_array_equal(both["slow"].values, both["triangles"].values)


def test_one_that_fails_is_quarantined_as_others_are(client: Client) -> None:
    client.keep("breaks")
    assert quarantined(client, "breaks") == "RuntimeError: it broke"


@pytest.mark.parametrize(("kind", "why"), [("cuts", "column cuts/"), ("mute", "it has none")])
def test_one_that_cannot_be_published_stops_nobody(life: Life, client: Client, kind: str, why: str) -> None:
    client.keep(kind)
    assert why in quarantined(client, kind)
    client.wait(life.send(epoch_of([(Op.INSERT, 1, 2, 1.0)], 0)), timeout_ms=300_000)


@pytest.mark.parametrize(
    ("program", "given", "id", "words"),
    [
        ("bfs", {"source": 1}, "hops", "configuration has a program 'hops'"),
        ("components", {}, None, "configuration has a program 'components'"),
        ("bfs", {"source": []}, "x", "is not allowed"),
        ("bfs", {"source": "alice"}, "x", "'alice': no ids of this graph"),
        ("bfs", {"source": 1}, "storage", "already is a program"),
        ("bfs", {"source": 1}, "x" * 129, "at most 128"),
        ("bfs", {"source": 1}, "a\nb", "all printable"),
        ("bfs", {"source": 1}, "", "must be a string"),
        ("sssp", {"source": 1}, "x", "in the configuration"),
    ],
)
def test_what_cannot_be_kept_is_refused(client: Client, program: str, given: Any, id: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        client.keep(program, given, id=id)
    assert not any(shown["kept"] for shown in client.programs()["programs"].values())


def test_an_id_is_not_taken_twice(client: Client) -> None:
    client.keep("bfs", {"source": 1}, id="mine")
    with pytest.raises(RequestError, match="drop it first"):
        client.keep("bfs", {"source": 2}, id="mine")


# -- drop ---------------------------------------------------------------------------------------------------------


def test_what_is_dropped_is_gone_and_its_subscribers_are_told(client: Client) -> None:
    client.keep("bfs", {"source": 1}, id="mine")
    fresh(client, "mine")
    subscription = client.subscribe("mine")
    next(subscription)
    dropped = client.drop("mine")
    assert (dropped.id, dropped.state) == ("mine", "dropped")
    with pytest.raises(UnknownProgram, match="no program 'mine'"):
        client.get("mine", IDS)
    assert "mine" not in client.programs()["programs"] and "program_mine" not in client.stats()["memory_bytes"]
    client.keep("triangles", id="mine")  # another one, of which they know nothing
    with pytest.raises(UnknownProgram, match="was dropped"):
        for _ in subscription:
            pass
    with pytest.raises(UnknownProgram):
        client.drop("yours")
    with pytest.raises(RequestError, match=r"take its \[\[program\]\] out"):
        client.drop("hops")


def test_one_that_is_dropped_while_it_is_computed_does_not_come(life: Life, client: Client, gate: Path) -> None:
    client.keep("waits", {"gate": str(gate)}, id="slow")
    until(lambda: has_begun(gate))
    client.drop("slow")
    with pytest.raises(UnknownProgram):
        client.get("slow", IDS)
    kept = client.keep("triangles", id="slow")
    assert kept.state == "computing"
    gate.touch()
    fresh(client, "slow")
    assert client.programs()["programs"]["slow"]["kind"] == "triangles"


# -- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(among="a daemon dies")
def test_what_was_answered_holds_after_a_kill(tmp_path: Path) -> None:
    """Wherever the list is when the process dies; of a graph whose vertices have names, by whose order some go."""
    (tmp_path / "waits.py").write_text(WAITS)
    programs = [{"name": "bfs", "id": "hops", "source": "bob"}]
    settings = {
        "compute": {"python_modules": ["waits"]},
        "graph": {"vertex_ids": "string"},
        "program": programs,
        "checkpoint": {"path": tmp_path / "checkpoints", "interval": 0.1},
    }
    names = ["dave", "carol", "bob", "alice"]
    with Daemon(tmp_path, settings) as daemon, SpoolWriter(daemon.spool, name="stream") as writer:
        writer.append(encode_msgpack(names[:-1], names[1:]))
        others = [f"v{number}" for number in range(20)]
        writer.append(encode_msgpack(others[:-1], others[1:]))
        writer.flush()
        daemon.start(kill_at="kept.replaced:7")
        with daemon.client() as client:
            client.wait({FILE: writer.offset}, timeout_ms=60_000)
            for id, source in (("stays", "dave"), ("goes", "bob"), ("named", "nobody")):
                client.keep("bfs", {"source": source}, id=id)
            fresh(client, "stays", "goes", "named")
            for kind in ("cuts", "mute"):  # neither can be published
                client.keep(kind)
                quarantined(client, kind)
            client.drop("goes")
            epoch = list(client.programs().epoch)
            until(lambda: client.call("stats")["checkpoint"]["epoch"] >= epoch or None)
            # What no checkpoint has is there, too.
            with pytest.raises(Unavailable):
                client.keep("cdlp", id="newest")
        assert daemon.process is not None and daemon.process.wait(60) == -signal.SIGKILL, daemon.log_tail()
        KeptPrograms(tmp_path / "checkpoints").add("old", {"name": "not-there-any-more"})
        daemon.log.unlink()
        programs.append({"name": "components", "id": "named"})
        daemon.config.write_text(toml({**daemon.settings, "program": programs}))
        daemon.start(kill_at="kept.before_replace:5")
        with daemon.client() as client:
            shown = client.programs()["programs"]
            assert {id: entry["kept"] for id, entry in shown.items()} == {
                **{"hops": False, "named": False},
                **{"stays": True, "newest": True, "cuts": True, "mute": True, "old": True},
            }
            wrong = {id: shown.pop(id)["reason"] for id in ("cuts", "mute", "old")}
            assert "20 entries for 24" in wrong["cuts"] and "it has none" in wrong["mute"]
            assert "unknown program 'not-there-any-more'" in wrong["old"]
            assert all(entry["state"] == "fresh" for entry in shown.values())
            for id in wrong:
                assert client.drop(id).state == "dropped"
            assert shown["named"]["kind"] == "components"
            log = daemon.log_tail(1000)
            assert "program named was kept at run time" in log and "restored epoch" in log
            assert "program stays" not in log, "its state came from the checkpoint"
            writer.append(encode_msgpack(["dave"], ["alice"]))
            writer.flush()
            client.wait({FILE: writer.offset}, timeout_ms=60_000)
            found = client.get(["stays", "newest", "hops"], names)
            assert found["stays"].values.tolist() == [0, 1, 2, 1]
            assert found["hops"].values.tolist() == [None, None, 0, 1]
            run = client.compute("cdlp", vertices=[*names, "nobody"])
            assert found["newest"].values.tolist() == ["bob", "alice", "bob", "alice"], "by names"
            assert run.values is not None and run.values.tolist() == ["bob", "alice", "bob", "alice", None]
            assert list(run.unknown) == ["nobody"]
            best = client.compute("bfs", {"source": "dave"}, top=2)
            assert best.ids is not None and best.ids[0] == "bob"
            with pytest.raises(RequestError, match="of the configuration"):
                client.drop("named")
            with pytest.raises(Unavailable):
                client.drop("newest")
        assert daemon.process is not None and daemon.process.wait(60) == -signal.SIGKILL, daemon.log_tail()
    assert list(read_kept(tmp_path / "checkpoints")) == ["stays", "newest"], "it was not answered"


@pytest.mark.parametrize("text", ["1_000", " 7", "7\n", "\u0667", "0x7", "", "1.0", "9" * 65])
def test_what_is_no_integer_as_it_is_written_is_no_id_of_a_graph_of_integers(text: str) -> None:
    with pytest.raises(ValueError, match="an id is an integer"):
        id_column([text], "int")


def test_ids_may_be_strings_of_digits() -> None:
    assert np.asarray(id_column(["-9223372036854775808", "+7", "007"], "int")).tolist() == [-(2**63), 7, 7]
    with pytest.raises(OverflowError):
        id_column(["9223372036854775808"], "int")


def test_no_vertex_of_texts_is_longer_than_an_id() -> None:
    assert id_column(["é" * 128, 7], "string").to_list() == ["é" * 128, "7"]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="at most 256 bytes"):
        id_column(["x", "é" * 129], "string")
