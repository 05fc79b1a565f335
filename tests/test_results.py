"""Publishing in shared memory: every epoch whole, whatever changed, grew, failed or was overtaken."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from histories import failing
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples
from waiting import PATIENCE_S

from graphtide.compute.program import Answer
from graphtide.daemon.errors import Unavailable
from graphtide.daemon.serve import results, shared_memory
from graphtide.daemon.serve.results import (
    ProgramPublication,
    Publication,
    ResultsReader,
    ResultsWriter,
    at_once,
)
from graphtide.daemon.serve.serving import Serving
from graphtide.daemon.serve.shared_memory import SharedArray
from graphtide.daemon.serve.turns import Turns
from graphtide.daemon.serve.values import PIECE_VERTICES, best_of, top_k
from graphtide.gpma.edges import NO_VERTEX


def attach(writer: ResultsWriter) -> ResultsReader:
    return ResultsReader(results.MemoryLayout.from_wire(writer.layout.to_wire()), os.dup(writer.fd))


def publication(number: int, n: int, columns: dict, changed: dict, **more) -> Publication:
    program = ProgramPublication("fake", columns, changed, **more)
    return Publication((1, number), n, {"file": number}, {"p": program}, {"edges": number})


def columns_of(reader: ResultsReader) -> dict[str, list]:
    def copy(snapshot):
        published = snapshot.programs["p"].published
        return {name: column[: published.n_vertices].tolist() for name, column in published.columns.items()}

    return reader.read(copy)


# -- shared memory ------------------------------------------------------------------------------------------


def test_an_allocated_array_is_zero_and_found_again():
    array = shared_memory.allocate("test", 1000, np.uint32)
    assert array.size == 1000 and not array.any() and array.flags.writeable
    place = SharedArray.of(array[10:20])
    assert (place.byte_offset, place.n_items, place.dtype) == (40, 10, "<u4")
    array[10] = 7
    seen = shared_memory.attach(SharedArray(os.dup(place.fd), 40, 10, "<u4"))
    assert seen[0] == 7 and not seen.flags.writeable


def test_an_empty_array_can_be_allocated():
    assert shared_memory.allocate("test", 0, np.float64).size == 0


def test_memory_lives_as_long_as_a_view_of_it():
    fd = SharedArray.of(view := shared_memory.allocate("test", 10, np.int64)[3:]).fd
    view[0] = 5
    os.fstat(fd)
    del view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("array", [np.zeros(4), shared_memory.allocate("test", 10, np.int64)[::2]])
def test_other_arrays_are_refused(array):
    with pytest.raises(ValueError, match="not a contiguous array in shared memory"):
        SharedArray.of(array)


def test_attaching_more_than_there_is_is_refused():
    place = SharedArray.of(shared_memory.allocate("test", 10, np.int64))
    fd = os.memfd_create("small")
    with pytest.raises(ValueError, match="do not fit"):
        shared_memory.attach(SharedArray(fd, 0, place.n_items, place.dtype))


def test_without_memfd_an_unlinked_file_serves(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    array = shared_memory.allocate("test", 100, np.int64)
    array[:] = np.arange(100)
    assert list(tmp_path.iterdir()) == []
    place = SharedArray.of(array)
    assert shared_memory.attach(SharedArray(os.dup(place.fd), 0, 100, "<i8")).sum() == 4950


def test_without_a_descriptor_that_is_what_is_said(monkeypatch):
    """A file instead would be looked for a folder in vain."""

    def out_of_descriptors(*args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", out_of_descriptors)
    with pytest.raises(OSError, match="Too many open files"):
        shared_memory.allocate("test", 100, np.int64)


def test_descriptors_travel_with_their_message():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        array = shared_memory.allocate("test", 4, np.int64)
        array[:] = 3
        socket.send_fds(left, [b"one"], [SharedArray.of(array).fd])
        left.send(b"two")
        message, (fd,) = shared_memory.receive_with_fds(right, 100)
        assert message == b"one"
        assert shared_memory.attach(SharedArray(fd, 0, 4, "<i8")).tolist() == [3, 3, 3, 3]
        assert shared_memory.receive_with_fds(right, 100) == (b"two", [])
        left.send(b"x" * 200)
        with pytest.raises(ValueError, match="longer than 100 bytes"):
            shared_memory.receive_with_fds(right, 100)
        left.close()
        assert shared_memory.receive_with_fds(right, 100) == (b"", [])


def test_descriptors_for_which_there_is_no_room_are_said_to_be_it():
    """The kernel cuts the message off, as it does one that is too long."""
    script = (
        "import os, resource, socket\n"
        "from graphtide.daemon.serve.shared_memory import receive_with_fds\n"
        "left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "socket.send_fds(left, [b'one'], [0, 1, 2])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (right.fileno() + 2,) * 2)\n"
        "try:\n"
        "    receive_with_fds(right, 100)\n"
        "except OSError as error:\n"
        "    print(error, os.dup(right.fileno()) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("[Errno 24] Too many open files True\n", ""), "none of them stays open"


# -- publishing ---------------------------------------------------------------------------------------------


@st.composite
def histories(draw):
    """Epochs as (new vertices, changed positions per column or None for all)."""
    change = st.one_of(st.none(), st.lists(st.integers(0, 10_000), max_size=20), st.just("missing"))
    return draw(st.lists(st.tuples(st.integers(0, 700), change, change), min_size=1, max_size=12))


@settings(deadline=None, max_examples=examples(60))
@given(histories(), st.integers(0, 2**32))
def test_readers_see_exactly_what_was_published(history, seed):
    random = np.random.default_rng(seed)
    writer = ResultsWriter()
    reader = None
    live = {"a": np.zeros(0, np.uint64), "b": np.zeros(0, np.float32)}
    n = 0
    for number, (more, *changes) in enumerate(history):
        n += more
        live = {name: np.concatenate([column, np.zeros(more, column.dtype)]) for name, column in live.items()}
        changed = {}
        for name, change in zip(live, changes, strict=True):
            column = live[name]
            column[n - more :] = random.integers(0, 1000, more)
            if change == "missing":
                continue
            where = np.arange(n) if change is None else np.unique(np.asarray(change, np.int64) % n if n else [])
            column[where.astype(np.intp)] = random.integers(0, 1000, where.size)
            changed[name] = None if change is None else where.astype(np.uint32)
        writer.publish(publication(number, n, live, changed, scalars={"norm": np.float64(number)}))
        if reader is None or reader.generation != writer.generation:
            reader = attach(writer)
        assert columns_of(reader) == {name: column.tolist() for name, column in live.items()}
        snapshot = reader.snapshot()
        assert (snapshot.epoch, snapshot.n_vertices) == ((1, number), n)
        assert (snapshot.offsets, snapshot.stats) == ({"file": number}, {"edges": number})
        assert snapshot.programs["p"].published.scalars == {"norm": number}


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, 700), st.lists(st.integers(0, 10_000), max_size=9)), min_size=1, max_size=10)
)
def test_every_epoch_has_its_own_vertices(history):
    """Each epoch some vertices are new, and some that are there change between dead and alive."""
    writer = ResultsWriter()
    alive = np.zeros(0, bool)
    for number, (more, flipped) in enumerate(history):
        alive = np.concatenate([alive, np.ones(more, bool)])
        n = alive.size
        changed = np.unique(np.array(flipped, np.int64) % n).astype(np.uint32) if n else np.empty(0, np.uint32)
        alive[changed] ^= True
        program = ProgramPublication("fake", {"a": np.zeros(n)}, {})
        writer.publish(Publication((1, number), n, {}, {"p": program}, {}, alive, changed))
        reader = attach(writer)
        asked = np.append(np.arange(n, dtype=np.uint32), NO_VERTEX)
        known = reader.read(lambda snapshot, asked=asked: snapshot.known(asked))
        assert known.tolist() == [v if alive[v] else NO_VERTEX for v in range(n)] + [NO_VERTEX]
        assert set(reader.snapshot().programs) == {"p"}
    writer.publish(publication(99, alive.size, {"a": np.zeros(alive.size)}, {}))
    snapshot = attach(writer).snapshot()
    assert snapshot.alive is None, "whoever publishes no flags has no dead vertices"
    assert snapshot.known(np.arange(3, dtype=np.uint32)).tolist() == [0, 1, 2]


def test_vertices_that_come_take_pages_and_no_other_memory():
    writer = ResultsWriter()
    writer.publish(publication(1, 3, {"a": np.arange(3)}, {"a": None}))
    reader, before = attach(writer), writer.memory_bytes()
    assert before < 1 << 20 < writer.layout.size_bytes

    def column(n: int) -> list[int]:
        return reader.read(lambda snapshot: snapshot.programs["p"].published.columns["a"][:n].tolist())

    for number, n in enumerate((5000, 1_000_000, 1_000_001), 2):
        writer.publish(publication(number, n, {"a": np.arange(n)}, {"a": np.empty(0, np.uint32)}))
        assert reader.snapshot().epoch == (1, number)
        assert column(n) == list(range(n))
    assert writer.generation == 1
    assert before + 2 * 8_000_000 < writer.memory_bytes() < before + 2 * 8_000_000 + (1 << 20)


def test_the_old_memory_keeps_its_epoch_when_new_memory_takes_over(monkeypatch):
    monkeypatch.setattr(shared_memory, "reservable_bytes", lambda: 0)  # as where address space is limited
    writer = ResultsWriter()
    writer.publish(publication(1, 3, {"a": np.arange(3)}, {"a": None}))
    old = attach(writer)
    writer.publish(publication(2, 5000, {"a": np.arange(5000)}, {"a": None}))
    assert writer.generation == 2 and writer.layout.capacity == 10_000
    assert old.snapshot().epoch == (1, 1) and columns_of(old) == {"a": [0, 1, 2]}
    assert attach(writer).snapshot().epoch == (1, 2)


def test_long_meta_data_gets_new_memory():
    writer = ResultsWriter()
    writer.publish(publication(1, 1, {}, {}))
    long = {"note": "x" * 200_000}
    writer.publish(publication(2, 1, {}, {}, state={"state": "fresh", **long}))
    assert writer.generation == 2
    assert attach(writer).snapshot().programs["p"].state["note"] == long["note"]


def test_other_columns_get_new_memory():
    writer = ResultsWriter()
    writer.publish(publication(1, 2, {"a": np.arange(2)}, {"a": None}))
    writer.publish(publication(2, 2, {"a": np.ones(2, np.float32)}, {}))
    assert columns_of(attach(writer)) == {"a": [1.0, 1.0]}


def test_of_a_quarantined_program_the_last_results_stay():
    writer = ResultsWriter()
    column = np.arange(10)
    for number in (1, 2):
        column[number] += 100
        touched = {"a": np.array([number], np.uint32)}
        writer.publish(publication(number, 10, {"a": column}, touched, scalars={"norm": number}))
    expected = column.tolist()
    column[:] = -1  # left behind by the run that failed
    for number in (3, 4, 5):
        failed = publication(number, 12 * number**3, {"a": column}, {}, state={"state": "quarantined"})
        writer.publish(failed)
        reader = attach(writer)
        assert columns_of(reader) == {"a": expected}
        assert reader.snapshot().programs["p"].published.scalars == {"norm": 2}
        assert reader.snapshot().epoch == (1, number)


@pytest.mark.parametrize("at", [0, 1])
def test_a_quarantined_program_keeps_its_results_where_new_memory_could_not_be_filled(monkeypatch, at):
    writer = ResultsWriter()
    column = np.arange(10)
    stands_still = ProgramPublication("fake", {"a": column}, {}, state={"state": "quarantined"})
    joins = ProgramPublication("fake", {"a": np.zeros(10)}, {"a": None})

    def publish(number, **programs):
        writer.publish(Publication((1, number), 10, {}, {"p": stands_still, **programs}))

    writer.publish(publication(1, 10, {"a": column}, {"a": None}))
    publish(2)
    for number in (3, 4):
        with monkeypatch.context() as patch:
            patch.setattr(results, "_update", failing(results._update, at))
            with pytest.raises(MemoryError):
                publish(number, other=joins)
        publish(number)
        assert columns_of(attach(writer)) == {"a": column.tolist()}
    publish(5, other=joins)
    assert columns_of(attach(writer)) == {"a": column.tolist()}


def test_what_a_quarantined_program_says_of_deleted_vertices_is_not_for_those_who_get_their_ids():
    writer = ResultsWriter()
    alive = np.ones(5000, bool)
    gone = np.zeros(5000, bool)

    def publish(number, n, *, died=(), state="quarantined"):
        died = np.array(died, np.uint32)
        gone[died] = True
        quarantined = {"gone": gone, "gone_changed": died} if state == "quarantined" else {}
        fields = {"changed": {"a": None}, "state": {"state": state}, **quarantined}
        program = ProgramPublication("fake", {"a": np.arange(n)}, **fields)
        writer.publish(Publication((1, number), n, {}, {"p": program}, {}, alive, died))
        asked = np.append(np.arange(n, dtype=np.uint32), NO_VERTEX)
        return attach(writer).read(lambda snapshot: snapshot.programs["p"].knows(asked)).nonzero()[0].tolist()

    assert publish(1, 4, state="fresh") == [0, 1, 2, 3]
    assert publish(2, 4, died=[1]) == [0, 2, 3]
    assert publish(3, 6) == [0, 2, 3], "nor for those that are newer"
    assert publish(4, 6, died=[3, 5]) == [0, 2]
    assert publish(5, 4000, died=[3]) == [0, 2]
    assert publish(6, 4000, died=[0]) == [2]
    assert publish(7, 4000) == [2]


def test_a_column_that_is_too_short_is_refused_and_nothing_is_lost():
    writer = ResultsWriter()
    column = np.arange(10)
    writer.publish(publication(1, 10, {"a": column}, {"a": None}))
    with pytest.raises(ValueError, match="column p/a: 10 entries for 11 vertices"):
        writer.publish(publication(2, 11, {"a": column}, {}))
    column[:] = 5
    with pytest.raises(IndexError):
        writer.publish(publication(2, 10, {"a": column}, {"a": np.array([10**6], np.uint32)}))
    reader = attach(writer)
    assert reader.snapshot().epoch == (1, 1) and columns_of(reader) == {"a": list(range(10))}
    writer.publish(publication(3, 10, {"a": column}, {}))
    assert columns_of(reader) == {"a": [5] * 10}


def test_what_use_raises_is_raised():
    writer = ResultsWriter()
    writer.publish(publication(1, 1, {}, {}))
    with pytest.raises(KeyError):
        attach(writer).read(lambda snapshot: snapshot.programs["absent"])


def test_a_reader_that_is_always_overtaken_gives_up():
    writer = ResultsWriter()
    column = np.zeros(1)
    numbers = iter(range(10_000))

    def overtaken(snapshot):
        for _ in range(2):
            writer.publish(publication(next(numbers), 1, {"a": column}, {}))

    overtaken(None)
    with pytest.raises(Unavailable):
        attach(writer).read(overtaken)


WRITE_AT_FULL_SPEED = """
import os, sys
import numpy as np
from graphtide.daemon.serve.results import ProgramPublication, Publication, ResultsWriter
import msgpack, socket

link = socket.socket(fileno=int(sys.argv[1]))
n, writer = 4000, ResultsWriter()
columns = {"a": np.zeros(n, np.uint64), "b": np.zeros(n, np.float64)}
some = np.arange(0, n, 16, dtype=np.uint32)
number = 0
link.setblocking(False)
while True:
    number += 1
    # Every third epoch changes all entries; the others change some, and the sums tell which epoch it is.
    touched = None if number % 3 == 0 else some
    for column in columns.values():
        column[slice(None) if touched is None else touched] = number
    program = ProgramPublication("fake", columns, {"a": touched, "b": touched}, {"number": number})
    writer.publish(Publication((1, number), n, {"f": number}, {"p": program}, {"number": number}))
    if number == 1:
        socket.send_fds(link, [msgpack.packb(writer.layout.to_wire())], [writer.fd])
    if number % 64 == 0:
        try:
            if not link.recv(1):
                break
        except BlockingIOError:
            pass
"""


def test_no_epoch_is_ever_torn_under_a_writer_process_at_full_speed():
    import msgpack

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", WRITE_AT_FULL_SPEED, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process, ours:
        theirs.close()
        ours.settimeout(60)
        message, (fd,) = shared_memory.receive_with_fds(ours, 1 << 16)
        reader = ResultsReader(results.MemoryLayout.from_wire(msgpack.unpackb(message)), fd)

        def observe(snapshot):
            published = snapshot.programs["p"].published
            rows = [column[: published.n_vertices].copy() for column in published.columns.values()]
            return snapshot, rows, published.scalars["number"]

        seen = set()
        tries = refused = 0
        begun = time.monotonic()
        while len(seen) < 200 and time.monotonic() - begun < PATIENCE_S:
            tries += 1
            try:
                snapshot, rows, scalar = reader.read(observe)
            except Unavailable:
                refused += 1
                continue
            number = snapshot.epoch[1]
            whole = number - number % 3
            for row in rows:
                assert (row[::16] == number).all()
                assert (np.delete(row, np.s_[::16]) == whole).all()
            assert scalar == snapshot.stats["number"] == snapshot.offsets["f"] == number
            seen.add(number)
        ours.close()
        assert process.wait(60) == 0
    assert len(seen) > 20, f"{tries} tries, {refused} refused"


def test_a_writer_thread_does_not_tear_epochs_either():
    writer = ResultsWriter()
    stop = threading.Event()
    columns = {"a": np.zeros(1000, np.int64)}
    alive = np.ones(1000, bool)
    flipped = np.arange(0, 1000, 20, dtype=np.uint32)  # dead in odd epochs

    def publish(number):
        columns["a"][:] = number
        alive[flipped] = number % 2 == 0
        program = ProgramPublication("fake", columns, {"a": None})
        writer.publish(Publication((1, number), 1000, {}, {"p": program}, {}, alive, flipped))

    publish(0)
    reader = attach(writer)

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            publish(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            try:
                number, row, known = reader.read(
                    lambda s: (s.epoch[1], s.programs["p"].published.columns["a"][:1000].copy(), s.known(flipped))
                )
            except Unavailable:
                continue
            assert (row == number).all()
            assert ((known == NO_VERTEX) == (number % 2 == 1)).all()
    finally:
        stop.set()
        thread.join()


# -- reading in pieces --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 3 * PIECE_VERTICES // 2),
    st.sampled_from([1, 2, 10, 100, 5000]),
    st.booleans(),
    st.sampled_from([np.float64, np.int64, np.uint32]),
    st.integers(2, 10_000),
    st.integers(0, 2**32),
)
def test_the_best_are_those_of_all_at_once(n, k, descending, dtype, distinct, seed):
    random = np.random.default_rng(seed)
    values, null = random.integers(0, distinct, n).astype(dtype), random.random(n) < random.random()
    gone = random.random(n) < random.random() / 2
    of = lambda part: Answer(values[part], null[part])  # noqa: E731
    dense, best = at_once(best_of(of, lambda dense: ~gone[dense], n, k, descending=descending))
    null |= gone
    there, sign = np.flatnonzero(~null).tolist(), -1 if descending else 1
    wanted = sorted(there, key=lambda at: (sign * values[at].item(), at))[:k]
    assert dense.dtype == np.uint32 and dense.tolist() == wanted
    assert best.tolist() == [values[at].item() for at in wanted]
    assert top_k(Answer(values, null), k, descending=descending).tolist() == wanted

    def sieve(part: slice, bound: float) -> tuple[np.ndarray, Answer] | None:
        if part.start == 0 and seed % 2:
            return None
        worse = bound - seed % 3 if descending else bound + seed % 3
        better = values[part].astype(float) >= worse if descending else values[part].astype(float) <= worse
        dense = (part.start + np.flatnonzero(better)).astype(np.uint32)
        return dense, Answer(values[dense], null[dense])

    for guess in (*best[-1:].tolist(), float(random.integers(-1, distinct + 1)), float("nan")):
        counted = partial(best_of, of, lambda dense: ~gone[dense], n, k, descending=descending, beyond=guess)
        for guessed in (at_once(counted()), at_once(counted(sieve=sieve))):
            assert guessed[0].tolist() == wanted and guessed[1].tolist() == best.tolist()


def test_nan_is_none_of_the_best():
    values = np.full(3 * PIECE_VERTICES, np.nan)
    values[[5, PIECE_VERTICES]] = 1.0, 2.0
    null = np.zeros(values.size, bool)
    of = lambda part: Answer(values[part], null[part])  # noqa: E731
    all_count = lambda dense: np.ones(dense.size, bool)  # noqa: E731
    for descending, wanted in ((True, [PIECE_VERTICES, 5]), (False, [5, PIECE_VERTICES])):
        for k in (2, 10):
            assert at_once(best_of(of, all_count, values.size, k, descending=descending))[0].tolist() == wanted
            assert top_k(Answer(values, null), k, descending=descending).tolist() == wanted


def numbered(writer: ResultsWriter, number: int) -> None:
    column = np.full(4, number, np.int64)
    writer.publish(publication(number, 4, {"a": column}, {"a": None}))


def test_others_have_their_turn_between_pieces(monkeypatch):
    monkeypatch.setattr(results, "PIECES_SECONDS", 0.0)
    writer = ResultsWriter()
    numbered(writer, 1)
    reader, seen = attach(writer), []

    def values(snapshot):
        for vertex in range(4):
            yield
            seen.append(int(snapshot.programs["p"].published.columns["a"][vertex]))
        return seen[-4:]

    async def read_while_others_work():
        reading = asyncio.create_task(reader.read_in_pieces(values))
        counted = 0
        while not reading.done():
            counted += 1
            await asyncio.sleep(0)
        return counted, await reading

    counted, found = asyncio.run(read_while_others_work())
    assert found == [1, 1, 1, 1] and counted >= 4


@pytest.mark.parametrize("overtaken", [1, results.PIECES_TRIES - 1, results.PIECES_TRIES])
def test_pieces_are_of_one_epoch_however_often_it_is_overwritten(monkeypatch, overtaken):
    monkeypatch.setattr(results, "PIECES_SECONDS", 0.0)
    writer = ResultsWriter()
    numbered(writer, 1)
    reader, epochs = attach(writer), itertools.count(2)
    tries = 0

    def values(snapshot):
        nonlocal tries
        tries += 1
        column = snapshot.programs["p"].published.columns["a"]
        found = [int(column[0])]
        yield
        yield
        return [*found, *column[1:].tolist()]

    async def read_while_epochs_come():
        reading = asyncio.create_task(reader.read_in_pieces(values))
        while not reading.done():
            if tries <= overtaken:
                for _ in range(2):  # the second overwrites what is read
                    numbered(writer, next(epochs))
            await asyncio.sleep(0)
        return await reading

    if overtaken == results.PIECES_TRIES:
        with pytest.raises(results.Overtaken):
            asyncio.run(read_while_epochs_come())
        assert tries == overtaken, "no more on the event loop"
        return
    found = asyncio.run(read_while_epochs_come())
    assert len(set(found)) == 1 and tries == 1 + overtaken


def test_who_is_overtaken_goes_on_in_a_thread_and_lends_the_turn(monkeypatch):
    monkeypatch.setattr(results, "PIECES_SECONDS", 0.0)
    writer = ResultsWriter()
    numbered(writer, 1)
    epochs, scans = itertools.count(2), Turns(1)

    def values(snapshot):
        if scans.used:
            for _ in range(2):
                numbered(writer, next(epochs))
        yield
        return snapshot.epoch

    async def for_all(asker, work):
        assert not scans.used
        return work()

    reader = attach(writer)
    server = SimpleNamespace(_results=lambda: reader, _with_index=lambda use: use, _scans=scans, for_all=for_all)
    scanned = Serving.scanned(server, SimpleNamespace(connection="c"), values, is_short=True)
    assert asyncio.run(scanned) == (1, 1 + 2 * results.PIECES_TRIES)


def test_what_fails_between_pieces_counts_if_the_epoch_was_whole(monkeypatch):
    monkeypatch.setattr(results, "PIECES_SECONDS", 0.0)
    writer = ResultsWriter()
    numbered(writer, 1)
    reader = attach(writer)

    def values(snapshot):
        yield
        raise Unavailable(f"not in {snapshot.epoch}")

    with pytest.raises(Unavailable, match=r"not in \(1, 1\)"):
        asyncio.run(reader.read_in_pieces(values))
