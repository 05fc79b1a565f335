"""The first start: kernels are compiled side by side into one cache, which the next start finds whole."""

from __future__ import annotations

import ast
import contextlib
import glob
import importlib
import inspect
import io
import json
import logging
import os
import pickle
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgpack
import numba as nb
import numpy as np
import psutil
import pytest
from numba.core.dispatcher import Dispatcher
from running import Daemon
from waiting import until

from graphtide.daemon import kernels
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.kernels import Needs
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.serve.template import NAME
from graphtide.daemon.warm_up import warm_up
from graphtide.gpma import runtime
from graphtide.gpma.intrinsics import inner, uncounted_inner
from graphtide.gpma.kernel_cache import MISSING, Missing, SharedCache, listening, only_from_cache
from graphtide.partition import host_side

ROOT = Path(__file__).resolve().parents[1]
COLD_S = 800.0
LEAST: dict[str, Any] = {"graph": {"weights": "unweighted"}, "program": [{"name": "bfs", "source": 1}]}

USUAL: list[dict[str, Any]] = [*LEAST["program"], {"name": "components"}, {"name": "pagerank"}]
"""The programs that most graphs have."""


@pytest.fixture
def known() -> Path:
    """The cache of the tests."""
    return runtime.cache_directory()


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for the processes that the test starts."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    return folder


def compiled(cache: Path) -> dict[str, int]:
    """Every file of a compiled kernel, and when it was written."""
    return {str(file.relative_to(cache)): file.stat().st_mtime_ns for file in cache.rglob("*.nbc")}


def most_of(known: Path, to: Path, seed: int) -> None:
    """Copy what this cache has of our kernels, but a sixth of them."""
    rng = np.random.default_rng(seed)
    for index in sorted(known.glob("*/*.nbi")):
        if rng.random() < 5 / 6:
            (to / index.parent.name).mkdir(parents=True, exist_ok=True)
            kernel = index.name.removesuffix(".nbi")
            for file in (index, *index.parent.glob(f"{glob.escape(kernel)}.*.nbc")):
                shutil.copy2(file, to / index.parent.name)


def use(daemon: Daemon, program: str) -> None:
    """A stream with deletions, of edges and of vertices, and every question; then a checkpoint."""
    stream: list[tuple[str, dict[str, list[int]]]] = [
        ("insert", {"src": [1, 2, 3, 1], "dst": [2, 3, 1, 4]}),
        ("delete", {"src": [3], "dst": [1]}),
        ("delete_vertex", {"src": [4]}),
    ]
    with SpoolWriter(daemon.spool) as writer:
        for op, ends in stream:
            columns = {name: np.array(ids, "<i8").tobytes() for name, ids in ends.items()}
            writer.append(msgpack.packb({"v": 1, "op": op, **columns}))
    with daemon.client() as client:
        client.wait({writer.name: writer.offset})
        client.get(program, [1, 2, 9])
        if program != "components":  # vertices have no order
            for chosen in (None, [1, 2]):
                client.top(program, k=2, vertices=chosen)
            client.histogram(program)
        if program == "bfs":
            client.path(program, 3)
        if program == "components":
            client.component(1)
        client.degree([1, 9])
        client.degree_distribution()
        client.has_edge([1, 2], [2, 9])
        client.cross_edges([1], [2])
        client.subgraph([1, 2, 3])
        for direction in ("out", "in", "both"):
            client.khop(1, k=2, direction=direction)
            client.egonet(1, direction=direction)
        for one_way in ("out", "in"):
            client.neighbors(1, direction=one_way)
        with client.subscribe(program, [1]) as told:
            next(iter(told))
        client.checkpoint()


def test_the_log_tells_how_long_compiling_took_as_it_was_measured_last() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md").read_text("utf-8")
    measured = re.findall(r"first start took \*\*([\d.]+) processor seconds", page)
    said = re.search(r"(\d+) s of processor time", kernels.ELSEWHERE)
    assert said is not None and float(said[1]) == pytest.approx(float(measured[0]), rel=0.2)


class Terminal(io.StringIO):
    """A standard error that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("on_terminal", [True, False], ids=["on-a-terminal", "in-a-log"])
def test_how_compiling_goes_on_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, on_terminal: bool
) -> None:
    """And to probes, as a share."""

    def prepare(needs: Needs, stop: threading.Event, report: Callable[[kernels.Progress], None]) -> None:
        for done in (0, 3):
            report(kernels.Progress(done, 12, 40 * done, 400, ["packed arrays"], 1.0))
            drawn = f"compiling kernels (once; {done} of 12 parts)"
            until(lambda drawn=drawn: not on_terminal or drawn in screen.getvalue())

    screen, shares = Terminal(), list[float]()
    monkeypatch.setattr(kernels, "prepare", prepare)
    monkeypatch.setattr(kernels, "REPORT_SECONDS", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with caplog.at_level(logging.INFO):
        warm_up(from_tables({}), threading.Event(), shares.append, progress=on_terminal)
    assert shares == [0.0, 0.3]
    lines = [line for line in caplog.messages if line.startswith("compiling kernels: ")]
    assert lines == (
        []
        if on_terminal
        else [
            f"compiling kernels: {40 * done} of up to 400 kernels, {done} of 12 parts; left: packed arrays"
            for done in (0, 3)
        ]
    )
    assert ("120/400" in screen.getvalue()) == on_terminal


def test_progress_names_what_is_left_while_something_is() -> None:
    now = kernels.Progress(1, 2, 40, 60, ["vertices"], 1.0)
    assert str(now) == "40 of up to 60 kernels, 1 of 2 parts; left: vertices"
    assert str(kernels.Progress(2, 2, 71, 60, [], 1.0)) == "71 of up to 71 kernels, 2 of 2 parts"
    first = kernels.Progress(0, 9, 5, 60, [*"abcdefghi"], 1.0)
    assert str(first) == "5 of up to 60 kernels, 0 of 9 parts", "they are listed when they are few"


def test_the_share_that_is_compiled_grows_by_kernels_and_by_parts_that_were_there() -> None:
    def share(done: int, kernels_begun: int) -> float:
        left = ["left"] * (4 - done)
        return kernels.Progress(done, 4, kernels_begun, 200, left, 1.0).share

    assert [share(0, 0), share(0, 50), share(2, 60), share(3, 300), share(4, 150)] == [0.0, 0.25, 0.5, 0.99, 1.0]


@pytest.mark.sample(among="all that the cache is for")
@pytest.mark.long
@pytest.mark.timeout(900)  # all kernels are compiled, on a machine as busy as it may be
def test_what_the_first_start_compiles_the_second_one_finds(
    tmp_path: Path, known: Path, cold: Path, seed: int, run_long: bool
) -> None:
    """By all processes of it: the query server looks ids up with a kernel, too.

    A sample: one of the usual programs, and a sixth of the kernels, where the others are in the cache of these
    tests already.
    """
    programs = USUAL
    if not run_long:
        most_of(known, cold, seed)
        programs = [USUAL[seed % len(USUAL)]]
    found = {*cold.rglob("*.nbi")}
    with Daemon(tmp_path, {**LEAST, "program": programs}) as daemon:
        daemon.start(ready_s=COLD_S)
        daemon.stop()
        first = daemon.log.read_text()
        assert f"compiling kernels for this machine, once (all of them: {kernels.ELSEWHERE})" in first
        compiled_now = re.search(r"kernels are ready after [\d.]+ s \((\d+) compiled; ", first)
        assert compiled_now is not None
        if run_long:
            expected = kernels.KERNELS_BESIDE + kernels.KERNELS_A_PROGRAM * len(programs)
            assert int(compiled_now[1]) == pytest.approx(expected, rel=0.4)
        took = re.search(r"kernels are ready after ([\d.]+) s", first)
        assert took is not None
        if float(took[1]) > 2 * kernels.REPORT_SECONDS:  # fewer kernels may be ready before the first word of it
            assert " of up to " in first, "no progress was logged"
        after_first = compiled(cold)
        assert len(after_first) > 80
        daemon.start()
        use(daemon, programs[seed % len(programs)]["name"])
        daemon.stop()
        daemon.start()  # from the checkpoint
        daemon.stop()
        later = daemon.log.read_text().removeprefix(first)
        assert "compiling kernels" not in later and later.count("none had to be compiled") == 2
    assert compiled(cold) == after_first
    for index in {*cold.rglob("*.nbi")} - found:
        with open(index, "rb") as file:
            pickle.load(file)  # the compiler's version
            _, forms = pickle.load(file)
        plain = [tuple(map(nb.types.unliteral, form[0])) for form in forms]
        assert len({*plain}) == len(plain), f"a literal made a form of its own: {index.name} {plain}"


TOLD = """
import os
import graphtide.gpma
import numba
from graphtide.gpma.kernel_cache import SharedCache

load = SharedCache.load_overload

def told(cache, form, context):
    file = os.open("kernels", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{cache._py_func.__module__}.{cache._py_func.__qualname__}{form}\\n".encode())
    os.close(file)
    return load(cache, form, context)

SharedCache.load_overload = told
from graphtide.daemon.cli import main
main()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("program", [each["name"] for each in USUAL])
@pytest.mark.parametrize("weights", ["unweighted", "non-negative"])
@pytest.mark.parametrize("directed", [True, False])
def test_a_daemon_that_is_ready_has_its_kernels(
    tmp_path: Path, program: str, weights: str, directed: bool
) -> None:
    """None is compiled, or looked for in the cache, for the first question of a kind: all others would wait."""
    chosen = [each for each in USUAL if each["name"] == program]
    graph = {"weights": weights, "directed": directed}
    with Daemon(tmp_path, {"graph": graph, "program": chosen}, program=("-c", TOLD)) as daemon:
        told = tmp_path / "kernels"
        for _ in range(2):  # the second time there is a checkpoint
            told.unlink(missing_ok=True)
            daemon.start()
            n_before = len(told.read_text().splitlines())
            use(daemon, program)
            daemon.stop()
            assert n_before > 50
            assert told.read_text().splitlines()[n_before:] == []


PATIENT = """
from graphtide.daemon.cli import main
from graphtide.daemon.serve import template

template.STOP_SECONDS_MAX = 3600.0
main()
"""


@pytest.mark.sample(among="kernels in the cache")
@pytest.mark.timeout(900)
def test_a_signal_while_kernels_compile_ends_all_processes(tmp_path: Path, cold: Path) -> None:
    """None of them is asked to end, and waited for, not even the template: it is stopped here, and would not."""
    with Daemon(tmp_path, LEAST, program=("-c", PATIENT)) as daemon:
        process = daemon.start(ready_s=None).process
        assert process is not None
        until(lambda: compiled(cold), timeout_s=COLD_S)
        compilers = psutil.Process(process.pid).children(recursive=True)
        assert compilers
        template = [child for child in compilers if child.name() == NAME]
        assert len(template) == 1, "the query server's template does not load while kernels are compiled"
        template[0].suspend()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        _, alive = psutil.wait_procs(compilers, 60)
        assert not alive
        assert "kernels are ready" not in daemon.log.read_text()


@pytest.mark.timeout(900)
def test_compilers_end_with_a_daemon_that_is_killed(tmp_path: Path, cold: Path) -> None:
    with Daemon(tmp_path, LEAST) as daemon:
        process = daemon.start(ready_s=None).process
        assert process is not None
        until(lambda: compiled(cold), timeout_s=COLD_S)
        compilers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(compilers, 60)
        assert not alive


def needs(**changed: Any) -> Needs:
    given = {"directed": True, "weighted": False, "vertex_ids": "int", "programs": [], "python_modules": []}
    return Needs(**{**given, **changed})


def test_a_compiler_that_fails_is_told_and_leaves_the_work_to_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    seen: list[kernels.Progress] = []
    kernels._compile_aside(needs(python_modules=["no_such_module"]), threading.Event(), seen.append)
    assert "ended early (status 1); this process goes on alone" in caplog.text
    assert seen[0].done == 0 and seen[0].total == len(seen[0].left) == len(needs().steps())


ALL = """
import sys
from graphtide.daemon import kernels

def none_are_there(configurations):
    return False

kernels._are_there = none_are_there
kernels._all = lambda: [kernels.Needs(True, False, "int", [], [])]
sys.argv[1:] = ["--all"]
kernels.main()
"""


def test_whoever_compiles_all_kernels_by_hand_reads_no_protocol() -> None:
    done = subprocess.run([sys.executable, "-c", ALL], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    begun, ended = done.stderr.splitlines()
    assert begun == f"compiling all kernels, once, into {runtime.cache_directory()}"
    assert ended.startswith("kernels are ready after ")


KILLED = """
import os, signal, sys
from graphtide.daemon import kernels

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def none_are_there(configurations):
    return False

kernels._are_there = none_are_there
kernels._all = lambda: [kernels.Needs(True, False, "int", [], [])]
kernels.Needs.steps = lambda needs: [("killed", die)]
kernels.main()
"""


@pytest.mark.parametrize("whom", ["people", "a daemon"])
def test_who_compiles_says_in_a_line_that_a_worker_was_killed(whom: str) -> None:
    by_hand = ["--all"] if whom == "people" else []
    command = [sys.executable, "-c", KILLED, *by_hand]
    # As a daemon starts it: when standard input ends, all of its group do.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, text=True
    ) as compiler:
        assert compiler.stdin is not None and compiler.stderr is not None
        print(json.dumps(asdict(needs())), file=compiler.stdin, flush=True)
        lines = compiler.stderr.read().splitlines()
        assert compiler.wait() == 1
    said = "graphtide: a process that compiled kernels was killed, perhaps for want of memory"
    assert lines[len(by_hand) :] == [said]


def test_a_daemon_loads_the_client_of_kafka_only_for_kafka_and_rich_only_for_a_terminal() -> None:
    script = "import sys, graphtide.daemon.service; print('kafka' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_only_what_is_configured_is_compiled() -> None:
    names = [name for name, _ in needs(programs=[("bfs", {"source": 1}), ("bfs", {"source": 1})]).steps()]
    assert [name for name in names if name.startswith("program")] == ["program bfs(1)"]
    assert "classes of rows" not in names
    owned = Needs.of(from_tables({"partition": {"host_rows": "owned"}}))
    assert "classes of rows" in [name for name, _ in owned.steps()]


@pytest.mark.sample(among="kernels in the cache")
@pytest.mark.parametrize("first", ["numba", "graphtide.daemon.service", "graphtide.compute.registry"])
def test_kernels_are_kept_in_one_folder_whoever_imports_numba_first(tmp_path: Path, first: str) -> None:
    code = f"import {first}; from graphtide.gpma.host import sorting; print(sorting.survey._cache.cache_path)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path / "graphtide" / "numba")


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert runtime.cache_directory() == tmp_path / "graphtide" / "numba"


# -- turns ------------------------------------------------------------------------------------------------------

_OWN = """
import os, sys, time
from pathlib import Path
import graphtide.gpma
import numba as nb
import numpy as np
from numba.core import event

class Count(event.Listener):
    n = 0
    def on_start(self, compiling):
        Count.n += compiling.data["dispatcher"] is own
    def on_end(self, compiling): ...

event.register("numba:compile", Count())

@nb.njit(cache=True)
def own(values):
    total = values[0]
    for value in values:
        total += value
    return total

if __name__ == "__main__":
    Path(sys.argv[1]).touch()
    while not Path(sys.argv[2]).exists():
        time.sleep(0.001)
    for dtype in sys.argv[3].split(","):
        own(np.ones(3, dtype))
    print(Count.n)
"""


def count_compilations(folder: Path, *dtypes: str) -> list[int]:
    """How often each of several processes compiles ``own``, all beginning at one moment, for these arrays."""
    module, go = folder / "own_kernel.py", folder / "go"
    module.write_text(_OWN)
    go.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(folder / "cache")}
    ready = [folder / f"ready-{i}" for i in range(len(dtypes))]
    processes = [
        subprocess.Popen([sys.executable, module, file, go, dtype], env=environment, stdout=subprocess.PIPE)
        for file, dtype in zip(ready, dtypes, strict=True)
    ]
    until(lambda: all(file.exists() for file in ready), timeout_s=COLD_S)
    go.touch()
    return [int(process.communicate()[0]) for process in processes]


def test_large_batches_of_both_orientations_find_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that make an array larger at once go another way than the many that find room in it."""
    called: list[str] = []
    for name in ("look_up_both", "commit_both"):
        kernel = getattr(host_side, name)
        monkeypatch.setattr(
            host_side, name, lambda *given, of=name, kernel=kernel: (called.append(of), kernel(*given))[1]
        )
    host_side.warm_up()
    assert set(called) == {"look_up_both", "commit_both"}


@pytest.mark.sample(among="kernels in the cache")
def test_two_processes_that_need_a_kernel_compile_it_once(tmp_path: Path) -> None:
    assert sum(count_compilations(tmp_path, "int64", "int64")) == 1


@pytest.mark.sample(among="kernels in the cache")
def test_forms_of_a_kernel_that_are_saved_at_once_are_all_kept(tmp_path: Path) -> None:
    dtypes = ["int64", "float64", "uint8"]
    assert count_compilations(tmp_path, *dtypes) == [1, 1, 1]
    assert count_compilations(tmp_path, ",".join(dtypes)) == [0]


@pytest.mark.sample(among="all that the cache is for")
def test_what_another_version_left_in_the_cache_is_compiled_anew(tmp_path: Path) -> None:
    """Its index names types that are no longer there, or is cut."""
    assert count_compilations(tmp_path, "int64") == [1]
    (index,) = (tmp_path / "cache").rglob("own_kernel.own*.nbi")
    gone = pickle.dumps(nb.__version__) + b"cgraphtide.gpma.edges\nNoSuchType\n."
    for damaged in (gone, b"", index.read_bytes()[:-10]):
        index.write_bytes(damaged)
        assert count_compilations(tmp_path, "int64") == [1], damaged
        assert count_compilations(tmp_path, "int64") == [0]


def fails(value):  # type: ignore[no-untyped-def]
    return value.no_such_attribute


def test_a_kernel_that_cannot_be_compiled_gives_its_turn_away() -> None:
    kernel = nb.njit(cache=True)(fails)
    assert isinstance(kernel._cache, SharedCache)
    with pytest.raises(nb.TypingError):
        kernel(1)
    assert not kernel._cache.holds_turn


def test_kernels_that_are_never_kept_do_not_make_a_start_a_first_one() -> None:
    """Those of a user's program, say."""
    with only_from_cache():
        assert nb.njit(lambda value: value + 1)(1) == 2
    kept = nb.njit(cache=True)(fails)
    with pytest.raises(Missing), only_from_cache():
        kept(1)
    assert not kept._cache.holds_turn


_HOLDER = """
import sys, time
import graphtide.gpma
import numba as nb
sys.path.insert(0, sys.argv[1])
from test_kernels import fails
nb.njit(cache=True)(fails)._cache._take_turn()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.mark.sample(among="kernels in the cache")
def test_waiting_for_another_process_can_be_stopped() -> None:
    """And ends by itself when that process does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _HOLDER, str(Path(__file__).parent)]
    asked = []

    def stop_at_the_third() -> None:
        asked.append(None)
        if len(asked) == 3:
            raise kernels.Stopped

    kernel = nb.njit(cache=True)(fails)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"taken\n"
        with pytest.raises(kernels.Stopped), listening(MISSING, stop_at_the_third):
            kernel(1)
        assert not kernel._cache.holds_turn
    with pytest.raises(nb.TypingError):
        kernel(1)


def test_a_stop_while_this_process_compiles_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where no folder for kernels can be written, and they did not come compiled."""

    def nothing() -> None:
        raise Missing

    monkeypatch.setattr(kernels, "only_from_cache", nothing)
    monkeypatch.setattr(runtime, "is_writable", lambda folder: False)
    stop = threading.Event()
    stop.set()
    with pytest.raises(kernels.Stopped):
        kernels.prepare(needs(), stop, lambda progress: None)


@pytest.mark.sample(among="kernels in the cache")
@pytest.mark.parametrize(
    "before",
    [
        "import graphtide.gpma",
        "import numba, graphtide.gpma",
        "import graphtide.gpma, importlib.util; importlib.util.find_spec('numba'); import numba",
    ],
)
def test_kernels_share_their_cache_whenever_numba_is_loaded(before: str) -> None:
    script = f"import sys; {before}; from graphtide.daemon.records import placement as module; "
    script += "print(type(module._place_integers._cache).__name__, *map(type, sys.meta_path))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SharedCache ") and "_AfterNumba" not in done.stdout


WITH_NUMBA = [
    f"graphtide.gpma.{name}"
    for name in ("kernel_cache", "lazy_linking", "made_of", "relied_on", "runtime", "shipped")
]
"""Modules that are loaded when Numba is, whoever imports it first: one of them, say."""


def modules() -> list[str]:
    """All of the package that need nothing but what it requires."""
    files = [file for room in ("compute", "daemon", "gpma", "partition") for file in (ROOT / room).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in sorted(files)]
    return [f"graphtide.{name}".removesuffix(".__init__") for name in names]


@pytest.mark.sample(among="kernels in the cache")
@pytest.mark.parametrize("module", WITH_NUMBA)
def test_whatever_is_imported_first_kernels_share_their_cache(module: str) -> None:
    script = f"import {module}; from graphtide.daemon.records import placement; "
    script += "from numba.core.codegen import JITCPUCodegen as code; "
    script += "print(type(placement._place_integers._cache).__name__, code._library_class.__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "SharedCache graphtide.gpma.lazy_linking\n", done.stderr


@pytest.mark.timeout(1800)  # hundreds of interpreters, where all run
def test_any_module_can_be_the_first_that_is_imported(seed: int, run_long: bool) -> None:
    """A sample, each in an interpreter of its own."""
    names = modules()
    assert len(names) > 300
    rng = np.random.default_rng(seed)
    for name in names if run_long else rng.choice(names, 5, replace=False):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"import {name}: {done.stderr}"


# -- kernels that only kernels call ------------------------------------------------------------------------------


def functions_of(namespace: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """Every function that a module defines, those of its classes included, but no kernel and no template."""
    for value in namespace.values():
        if isinstance(value, property):
            yield from functions_of({"get": value.fget, "set": value.fset}, module)
        elif isinstance(value, staticmethod | classmethod):
            yield from functions_of({"function": value.__func__}, module)
        elif getattr(value, "__module__", None) != module or isinstance(value, Dispatcher):
            continue
        elif isinstance(value, type):
            yield from functions_of(vars(value), module)
        elif isinstance(function := inspect.unwrap(value), FunctionType) and not hasattr(function, "is_template"):
            yield function


def names_in(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def named_in_vain(names: set[str], known: Mapping[str, Any]) -> set[str]:
    """Of these names those of kernels that Python cannot call, known here or in a module that is."""
    modules = [known[name] for name in names if isinstance(known.get(name), ModuleType)]
    spaces = [known, *(vars(module) for module in modules if module.__name__.startswith("graphtide."))]
    kernels = [
        (name, space[name]) for space in spaces for name in names if isinstance(space.get(name), Dispatcher)
    ]
    return {name for name, kernel in kernels if kernel.targetoptions.get("no_cpython_wrapper")}


@pytest.mark.parametrize("room", ["compute", "daemon", "gpma", "partition"])
def test_python_calls_no_kernel_that_only_kernels_may_call(room: str) -> None:
    """An early warning, of calls by a module's own names; whatever it misses gets a TypeError when it runs."""
    found = set()
    for info in pkgutil.walk_packages([str(ROOT / room)], f"graphtide.{room}."):
        known = vars(importlib.import_module(info.name))
        for function in functions_of(known, info.name):
            found |= {(function.__qualname__, name) for name in named_in_vain(names_in(function.__code__), known)}
    assert found == set()


@pytest.mark.sample(among="all that the cache is for")
@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_nor_do_tests_and_benchmarks(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        tree = ast.parse(file.read_text())
        known = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("graphtide.")
                and file != Path(__file__)
            ):
                with contextlib.suppress(ImportError):  # of what needs a device
                    module = importlib.import_module(node.module or "")
                    known |= {item.asname or item.name: vars(module).get(item.name) for item in node.names}
        outside = list(but_for_kernels(tree))
        found = named_in_vain({node.id for node in outside if isinstance(node, ast.Name)}, values_of(known))
        for node in outside:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = known.get(node.value.id)
                found |= named_in_vain({node.attr}, vars(module) if isinstance(module, ModuleType) else {})
        assert found == set(), file


def values_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """What is no module: an object's attribute may well be called as a kernel of one is."""
    return {name: value for name, value in known.items() if not isinstance(value, ModuleType)}


def but_for_kernels(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without those of functions that it compiles itself."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if not any("njit" in ast.unparse(decorator) for decorator in decorators):
            yield from but_for_kernels(node)


@inner
def only_for_kernels(value):  # type: ignore[no-untyped-def]
    return value + 1


@uncounted_inner
def only_for_uncounted_kernels(value):  # type: ignore[no-untyped-def]
    return value + 2


@nb.njit(nogil=True)
def calls_both(value):  # type: ignore[no-untyped-def]
    return only_for_kernels(value) + only_for_uncounted_kernels(value)


def test_python_gets_an_error_where_only_kernels_may_call() -> None:
    """Before and after it was compiled for a kernel."""
    for _ in range(2):
        for kernel in (only_for_kernels, only_for_uncounted_kernels):
            with pytest.raises(TypeError, match=f"{kernel.__name__} can be called by kernels alone"):
                kernel(1)
        assert calls_both(1) == 5


def calls_it() -> None:
    only_for_kernels(1)


def test_a_function_that_calls_such_a_kernel_is_found() -> None:
    (function,) = functions_of({"calls_it": calls_it}, __name__)
    assert named_in_vain(names_in(function.__code__), globals()) == {"only_for_kernels"}
