"""Walks of rows: every live slot, no empty leaves where an array grows or shrinks, and their text in kernels."""

from __future__ import annotations

import linecache
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numba as nb
import numpy as np
import pytest

from graphtide.gpma.edges import LOW, NO_VERTEX, EdgeBatch, EdgeList, Keys, pack
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.rows import (
    RowView,
    copy_row,
    count_edges,
    find_on,
    first_held,
    first_held_of_all,
    leaves_of,
    live_runs,
    live_runs_before,
    open_rows,
    runs,
    runs_in_order,
    runs_of,
    runs_on,
)
from graphtide.gpma.splice import spliced

ROOT = Path(__file__).resolve().parents[1]
VERTICES = 40


def random_keys(n: int, rng: np.random.Generator) -> Keys:
    """Rows of many leaves each, and some without edges."""
    return pack(rng.integers(0, VERTICES, n) // 3 * 3, rng.integers(0, 1 << 20, n))


def changing(rng: np.random.Generator, *, grow: bool) -> Iterator[PackedMemoryArray]:
    """An array of which the edges migrate, as they begin to, on their way, and after."""
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(VERTICES)
    array.load(EdgeList(np.unique(random_keys(80_000, rng))))
    gone = rng.permutation(array.export().keys)
    n_states = 0
    while array.migrating or n_states == 0:
        n = (100 if grow else 10) if array.migrating else 1_000
        keys, gone = (random_keys(n, rng), gone) if grow else (gone[:n], gone[n:])
        array.apply(EdgeBatch(keys, np.full(n, grow, np.uint8)))
        if array.migrating:
            n_states += 1
            if n_states % 4 == 1:
                yield array
    assert n_states > 6
    yield array


class Counted(np.ndarray):
    """An array that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: object) -> object:
        Counted.reads += 1
        return super().__getitem__(index)


def reads_of(walk: Callable[[RowView], object], rows: RowView) -> int:
    """How many leaves a walk asks for their count."""
    Counted.reads = 0
    walk(rows._replace(counts=rows.counts.view(Counted)))
    return Counted.reads


def keys_of(rows: RowView, found: Iterator[tuple[int, int]]) -> list[int]:
    return [int(key) for slot, stop in found for key in rows.keys[slot:stop]]


@pytest.mark.parametrize("grow", [True, False])
def test_walks_find_every_live_slot_in_order(grow: bool) -> None:
    rng = np.random.default_rng(1)
    for array in changing(rng, grow=grow):
        rows, keys = array.view(), array.export().keys
        row = {u: keys[keys >> np.uint64(32) == u].tolist() for u in range(VERTICES)}
        for u in range(VERTICES):
            assert keys_of(rows, runs(rows, u)) == row[u]
        assert keys_of(rows, live_runs(rows, 0)) == keys.tolist()
        backwards = list(live_runs_before(rows, rows.counts.size))[::-1]
        assert keys_of(rows, iter(backwards)) == keys.tolist()
        found: dict[int, list[int]] = {}
        ends = []
        for v, slot, stop, is_last in runs_in_order(rows, 1, VERTICES):
            found.setdefault(v, []).extend(rows.keys[slot:stop].tolist())
            ends += [v] if is_last else []
        assert found == {u: row[u] for u in range(1, VERTICES)} and ends == list(range(1, VERTICES))
        vertices = rng.integers(0, VERTICES, 30).astype(np.uint32)
        vertices[10:20] = np.arange(20, 30)
        found = {}
        for x, slot, stop, _ in runs_of(rows, vertices, 2, 30):
            found.setdefault(x, []).extend(rows.keys[slot:stop].tolist())
        assert found == {x: row[vertices[x]] for x in range(2, 30)}


@pytest.mark.parametrize("grow", [True, False])
def test_rows_that_lie_near_and_far_are_opened(grow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    for array in changing(rng, grow=grow):
        rows = array.view()
        slots = np.full(VERTICES + rows.counts.size, -1)
        chosen = np.sort(rng.permutation(VERTICES)[: rng.integers(1, VERTICES)]).astype(np.uint32)
        begin = int(rng.integers(0, chosen.size))
        for near in (0, 100, 1 << 20):  # a search for each, some of either, all together
            monkeypatch.setitem(open_rows.py_func.__globals__, "NEAR", near)
            open_rows.py_func(rows, chosen, begin, chosen.size, slots)
            for k, v in enumerate(chosen[begin:].tolist()):
                keys = keys_of(rows, runs_on(rows, slots[k], int(rows.degrees[v])))
                assert keys == keys_of(rows, runs(rows, v))


def test_hubs_between_rows_are_not_gone_past() -> None:
    """Small rows with a hub between every two of them are looked for, one by one."""
    n, hub_degree = 40, 4000
    vertex, head = np.divmod(np.arange(n * hub_degree), hub_degree)
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(n)
    array.load(EdgeList(pack(vertex, head)[(vertex % 2 == 1) | (head < 2)]))
    small, slots = np.arange(0, n, 2, dtype=np.uint32), np.empty(n, np.int64)
    rows = array.view()
    assert reads_of(lambda rows: open_rows.py_func(rows, small, 0, small.size, slots), rows) <= 4 * small.size
    for k, u in enumerate(small.tolist()):
        assert keys_of(rows, runs_on(rows, slots[k], int(rows.degrees[u]))) == keys_of(rows, runs(rows, u))


def test_the_first_neighbor_that_a_bitmap_holds() -> None:
    keys = pack(np.full(5, 3), np.array([2, 64, 70, 130, 131]))
    held = np.zeros(3, np.uint64)
    assert first_held.py_func(keys, 0, 5, held) == (-1, 5)
    for u in (131, 64):
        held[u >> 6] |= np.uint64(1) << np.uint64(u & 63)
        at = keys.tolist().index(3 << 32 | u)
        assert first_held.py_func(keys, 1, 5, held) == (u, at + 1)
    assert first_held.py_func(keys, 2, 4, held) == (-1, 4)


@nb.njit
def look_in_order(rows, begin, end, held, near):  # type: ignore[no-untyped-def]
    first_held_of_all(rows, begin, end, count_edges(rows, begin, end), held, near)


@pytest.mark.parametrize("grow", [True, False])
def test_the_first_neighbor_of_many_rows_that_a_bitmap_holds(grow: bool) -> None:
    rng = np.random.default_rng(3)
    for array in changing(rng, grow=grow):
        rows, held = array.view(), np.zeros(1 << 14, np.uint64)
        chosen = rng.random(1 << 20) < rng.choice([0.0, 1e-3, 0.5])
        held |= np.packbits(chosen, bitorder="little").view(np.uint64)
        begin, end = sorted(rng.integers(0, VERTICES + 1, 2).tolist())
        near = np.full(end - begin, NO_VERTEX)
        near[: near.size // 2] = 7  # what was found before stays
        wanted = near.copy()
        for v in range(begin, end):
            row = np.array(keys_of(rows, runs(rows, v)), np.uint64) & LOW
            found = row[chosen[row.astype(np.int64)]]
            if wanted[v - begin] == NO_VERTEX and found.size:
                wanted[v - begin] = found[0]
        look_in_order(rows, begin, end, held, near)
        np.testing.assert_array_equal(near, wanted)


@pytest.mark.sample(1)
@pytest.mark.parametrize("grow", [True, False])
def test_a_walk_goes_on_where_it_stopped(grow: bool) -> None:
    """At every slot of rows that lie across the stretch, and behind the last one of a leaf, too."""
    for array in changing(np.random.default_rng(2), grow=grow):
        rows = array.view()
        for u in range(0, VERTICES, 3):
            keys = keys_of(rows, runs(rows, u))
            read = 0
            for slot, stop in runs(rows, u):
                for k in {slot, (slot + stop) // 2, stop}:
                    left = len(keys) - read - (k - slot)
                    assert keys_of(rows, runs_on(rows, k, min(left, 40))) == keys[len(keys) - left :][:40]
                read += stop - slot


@pytest.mark.parametrize("grow", [True, False])
def test_no_walk_reads_the_stretch(grow: bool) -> None:
    """A row that lies across a stretch of empty leaves costs its own leaves."""
    across = 0
    for array in changing(np.random.default_rng(3), grow=grow):
        rows = array.view()
        stretch = rows.stretch_end - rows.stretch_begin
        total = int(np.count_nonzero(rows.counts))
        row, leaf = array.export().keys >> np.uint64(32), np.repeat(np.arange(rows.counts.size), rows.counts)
        for u in range(0, VERTICES, 3):
            leaves = np.unique(leaf[row == u])
            across += bool(stretch > 50 and leaves[0] < rows.stretch_begin < leaves[-1])
            assert reads_of(lambda rows, u=u: list(runs(rows, u)), rows) <= leaves.size + 2
            first, left = next(runs(rows, u))[0], int(rows.degrees[u])
            assert reads_of(lambda rows, at=first, left=left: list(runs_on(rows, at, left)), rows) <= leaves.size
        slack = 2 * VERTICES
        assert reads_of(lambda rows: list(live_runs(rows, 0)), rows) <= total + 1
        assert reads_of(lambda rows: list(live_runs(rows, rows.stretch_begin + 1)), rows) <= total + 1
        assert reads_of(lambda rows: list(live_runs_before(rows, rows.counts.size)), rows) <= total + 1
        assert reads_of(lambda rows: list(live_runs_before(rows, rows.stretch_end - 1)), rows) <= total + 1
        assert reads_of(lambda rows: list(runs_in_order(rows, 0, VERTICES)), rows) <= total + slack
        every = np.arange(VERTICES, dtype=np.uint32)
        assert reads_of(lambda rows, all=every: list(runs_of(rows, all, 0, VERTICES)), rows) <= total + slack
    assert across > 3


def test_a_row_is_copied_from_any_vertex_on() -> None:
    rng = np.random.default_rng(4)
    for array in changing(rng, grow=True):
        rows, no_weights = array.view(), np.empty(0, np.float32)
        for u in range(VERTICES):
            heads = np.array(keys_of(rows, runs(rows, u)), np.uint64).astype(np.uint32)
            for first in (0, int(rng.integers(0, 1 << 20))):
                out = np.empty(int(rng.integers(0, heads.size + 2)), np.uint32)
                copied = copy_row(rows, u, first, out, no_weights)
                assert out[:copied].tolist() == heads[heads >= first][: out.size].tolist()


@pytest.mark.parametrize("grow", [True, False])
def test_leaves_are_told_of_a_row_as_far_as_it_is_wanted(grow: bool) -> None:
    rng = np.random.default_rng(6)
    for array in changing(rng, grow=grow):
        rows = array.view()
        row, leaf = array.export().keys >> np.uint64(32), np.repeat(np.arange(rows.counts.size), rows.counts)
        for u in range(0, VERTICES, 3):
            lies = leaf[row == u]
            for wanted in (0, 1, int(rng.integers(1, lies.size + 1)), lies.size):
                told = list(leaves_of(rows, u, wanted))
                assert [at for at, _ in told if at >= lies[0]] == sorted(set(lies[:wanted].tolist()))
                assert len([at for at, _ in told if at < lies[0]]) <= 1, "the one that the index of rows names"
                assert all(left == wanted - np.count_nonzero(lies < at) for at, left in told)


@pytest.mark.parametrize("grow", [True, False])
def test_keys_of_a_row_are_found_from_any_smaller_one_on(grow: bool) -> None:
    """Those that are there, and those beside them that are not, by steps of any size over leaves and stretch."""
    rng = np.random.default_rng(5)
    for array in changing(rng, grow=grow):
        rows, keys = array.view(), array.export().keys
        present = set(keys.tolist())
        for u in range(0, VERTICES, 3):
            row = keys[keys >> np.uint64(32) == u]
            for count in (3, 30, 300):
                chosen = rng.choice(row, count)
                wanted = np.unique(np.concatenate([chosen - 1, chosen, chosen + 1, row[:1], row[-1:]]))
                wanted = wanted[wanted >> np.uint64(32) == u]
                leaf = int(rows.row_leaf[u])
                for key in wanted:
                    leaf, slot = find_on(rows, leaf, key)
                    assert (slot >= 0) == (int(key) in present)
                    assert slot < 0 or rows.keys[slot] == key


def test_nothing_is_found_in_an_array_without_keys() -> None:
    array = PackedMemoryArray(weighted=False)
    array.ensure_vertices(2)
    assert find_on(array.view(), 0, np.uint64(1 << 32))[1] == -1
    array.load(EdgeList(pack(np.zeros(5_000, np.uint32), np.arange(5_000))))
    array.apply(EdgeBatch(array.export().keys, np.zeros(5_000, np.uint8)))
    assert find_on(array.view(), 0, np.uint64(7))[1] == -1


# What a kernel makes of a walk.


def steps(numbers, size):  # type: ignore[no-untyped-def]
    """The numbers of a record below its limit, and their places."""
    place = 0
    while place < size:
        at = place
        place += 1
        yield at, numbers.value[at]


def squares(numbers, size):  # type: ignore[no-untyped-def]
    for a in range(size):
        for b in range(size):
            product = numbers.value[a] * numbers.value[b]
            yield a, product


class Numbers:
    """A record for plain Python."""

    def __init__(self, *value: int) -> None:
        self.value = np.array(value, np.int64)


FACTOR = 3


def sum_until(numbers, size, last):  # type: ignore[no-untyped-def]
    """Leaves out odd places, stops at a number, and has locals of the walk's names."""
    place, at = 100, 1000
    total = 0
    for x, number in steps(numbers, size):
        if x % 2:
            continue
        if number == last:
            break
        total += FACTOR * number
    return total, place, at


def pairs(numbers, others, size):  # type: ignore[no-untyped-def]
    total = 0
    for _, one in steps(numbers, size):
        for x, other in steps(others, size):
            if other > one:
                break
            total += one * other + x
    for _, one in steps(numbers, size - 1):
        total -= one
    return total


def first_over(numbers, size, limit):  # type: ignore[no-untyped-def]
    for a, product in squares(numbers, size):
        if product > limit:
            return a
    return -1


def with_own_record(numbers, size):  # type: ignore[no-untyped-def]
    """The record is none of its parameters."""
    total = 0
    for _ in range(2):
        own = numbers
        for x, number in steps(own, size):
            total += x * number
    return total


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (sum_until, (5, 4)),
        (sum_until, (6, -1)),
        (sum_until, (0, -1)),
        (first_over, (6, 10)),
        (first_over, (6, 1000)),
        (with_own_record, (6,)),
    ],
)
def test_a_kernel_does_what_plain_python_does(function: Callable[..., object], arguments: tuple[int, ...]) -> None:
    numbers = Numbers(3, 1, 4, 1, 5, 9)
    made = spliced(function)
    assert made(numbers, *arguments) == function(numbers, *arguments)
    assert "steps" not in made.__code__.co_names and "squares" not in made.__code__.co_names
    assert (made.__module__, made.__qualname__, made.__doc__) == (
        function.__module__,
        function.__qualname__,
        function.__doc__,
    )


def test_a_walk_may_stand_within_a_walk() -> None:
    one, other = Numbers(3, 1, 4, 1, 5, 9), Numbers(1, 2, 3, 4, 5, 6)
    assert spliced(pairs)(one, other, 6) == pairs(one, other, 6)


def test_a_function_in_a_function_keeps_what_it_captures() -> None:
    factor = 7

    def scaled(numbers, size):  # type: ignore[no-untyped-def]
        total = 0
        for _, number in steps(numbers, size):
            total += factor * number
        return total

    assert spliced(scaled)(Numbers(1, 2), 2) == 21


@nb.njit(cache=False)
@spliced
def heads_in_kernel(rows: RowView, u: int, heads: np.ndarray) -> int:
    n = 0
    for slot, stop in runs(rows, u):
        for i in range(slot, stop):
            heads[n] = rows.keys[i] & LOW
            n += 1
    return n


@nb.njit(cache=False)
@spliced
def heads_of_all(rows: RowView, end: int, heads: np.ndarray) -> int:
    n = 0
    for _v, slot, stop, _is_last in runs_in_order(rows, 0, end):
        for i in range(slot, stop):
            heads[n] = rows.keys[i] & LOW
            n += 1
    return n


@pytest.mark.parametrize("grow", [True, False])
def test_compiled_walks_agree_with_plain_ones(grow: bool) -> None:
    heads = np.empty(200_000, np.uint32)
    for array in changing(np.random.default_rng(5), grow=grow):
        rows = array.view()
        for u in range(VERTICES):
            plain = [key & 0xFFFF_FFFF for key in keys_of(rows, runs(rows, u))]
            assert heads[: heads_in_kernel(rows, u, heads)].tolist() == plain
        every = array.export().keys.astype(np.uint32)
        assert np.array_equal(heads[: heads_of_all(rows, VERTICES, heads)], every)


# What is refused, and how mistakes show.


def yields_twice(rows):  # type: ignore[no-untyped-def]
    while True:
        yield (rows.value,)
        yield (rows.value,)


def goes_on(rows):  # type: ignore[no-untyped-def]
    while True:
        yield (rows.value,)
        rows.value += 1


def has_else(numbers):  # type: ignore[no-untyped-def]
    for _x, _number in steps(numbers, 3):
        pass
    else:
        return 1


def leaves_a_part(numbers):  # type: ignore[no-untyped-def]
    for _a, product in squares(numbers, 3):
        if product:
            break


def takes_one(numbers):  # type: ignore[no-untyped-def]
    for pair in steps(numbers, 3):
        print(pair)


def gives_no_name(numbers):  # type: ignore[no-untyped-def]
    for _x, _number in steps(numbers[0], 3):
        pass


def gives_too_few(numbers):  # type: ignore[no-untyped-def]
    for _x, _number in steps(numbers):
        pass


def goes_along_twice(rows):  # type: ignore[no-untyped-def]
    for (_value,) in yields_twice(rows):
        pass


def goes_along_more(rows):  # type: ignore[no-untyped-def]
    for (_value,) in goes_on(rows):
        pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (has_else, "no else"),
        (leaves_a_part, "break would only end a part of squares"),
        (takes_one, "steps yields 2 values"),
        (gives_no_name, "numbers of steps is given by a name"),
        (gives_too_few, "steps takes numbers, size"),
        (goes_along_twice, "yields_twice is no walk"),
        (goes_along_more, "goes_on is no walk"),
    ],
)
def test_what_a_kernel_cannot_have_is_an_error_that_says_so(function: Callable[..., object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        spliced(function)


def test_errors_name_the_file_and_the_line() -> None:
    with pytest.raises(TypeError, match=rf"test_rows\.py, line {has_else.__code__.co_firstlineno + 1}, has_else"):
        spliced(has_else)

    def fails(numbers):  # type: ignore[no-untyped-def]
        for _x, number in steps(numbers, 2):
            if number == 2:
                raise ValueError(number)

    with pytest.raises(ValueError, match="2") as caught:
        spliced(fails)(Numbers(1, 2))
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.name) == (__file__, "fails")
    assert frame.line == "raise ValueError(number)"
    with pytest.raises(IndexError) as outside:
        spliced(fails)(Numbers(1))
    assert "in steps(numbers, 2):" in str(traceback.extract_tb(outside.value.__traceback__)[-1].line)


def test_two_walks_of_one_name_do_not_take_each_others_values() -> None:
    text = """
LIMIT = {}

def counting(numbers):
    for x in range(LIMIT):
        yield (numbers.list[x],)
"""
    namespaces: list[dict[str, object]] = []
    for limit in (2, 3):
        file = f"<a walk to {limit}>"
        source = text.format(limit)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        namespaces.append({"__name__": f"to_{limit}"})
        exec(compile(source, file, "exec"), namespaces[-1])

    def one(numbers):  # type: ignore[no-untyped-def]
        for (_number,) in counting(numbers):  # noqa: F821 - it is put there below
            pass

    def made(limit: int) -> Callable[..., object]:
        one.__globals__["counting"] = namespaces[limit - 2]["counting"]
        return spliced(one)

    try:
        made(2)
        with pytest.raises(TypeError, match="two walks are called counting, with two LIMIT"):
            made(3)
    finally:
        for name in ("counting", "__counting_LIMIT", "__counting_range"):
            one.__globals__.pop(name, None)


CACHED = """
import sys
import numba as nb
import numpy as np
from graphtide.gpma.host.array import PackedMemoryArray
from graphtide.gpma.rows import runs
from graphtide.gpma.splice import spliced

{walk}

@nb.njit(cache=True)
@spliced
def size(rows, u):
    n = 0
    for slot, stop in {name}(rows, u):
        n += stop - slot
    return n

array = PackedMemoryArray(weighted=False)
array.ensure_vertices(1)
print(size(array.view(), 0), sum(size.stats.cache_hits.values()))
"""
OTHER_WALK = """
def other(rows, u):
    left = 3
    while left > 0:
        left -= 1
        yield 0, rows.leaf_shift + u
"""


@pytest.mark.sample(among="kernels in the cache")
def test_other_processes_find_compiled_kernels_and_not_those_of_another_walk(tmp_path: Path) -> None:
    """The file of the kernel keeps its age and size, as if only the walk's had changed."""
    walks, script = tmp_path / "walks.py", tmp_path / "script.py"
    script.write_text(CACHED.format(walk="from walks import other", name="other"))

    def printed() -> str:
        done = subprocess.run(
            [sys.executable, script],
            env={"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": ":".join(sys.path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    walks.write_text(OTHER_WALK)
    assert printed() == "15 0"
    assert printed() == "15 1"
    walks.write_text(OTHER_WALK.replace("left > 0", "left > 0 and rows.leaf_shift > 5"))
    assert printed() == "0 0"
    assert printed() == "0 1"


# It stands once.

WALK = re.compile(r"while remaining|<< [\w.]*shift\) \+ .*counts\[|leaf (\+= |= leaf \+ )")


def test_nobody_else_goes_from_leaf_to_leaf() -> None:
    """The array itself does (``gpma/host``, ``gpma/device``), and ``gpma/rows.py`` for all others."""
    folders = ("compute", "partition", "daemon", "ops", "benchmarks")
    files = [*(ROOT / "gpma").glob("*.py"), *(file for name in folders for file in (ROOT / name).rglob("*.py"))]
    walking = {file.relative_to(ROOT).as_posix() for file in files if WALK.search(file.read_text())}
    assert walking == {"gpma/rows.py"}
    readers = ("gather.py", "snapshot.py")
    assert not [name for name in readers if WALK.search((ROOT / "gpma/host" / name).read_text())]
