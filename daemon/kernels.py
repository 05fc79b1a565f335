"""Kernels: all that a configuration uses are compiled before the first epoch, by processes side by side.

Where all are in the cache, they are loaded from it. Else ``python -m graphtide.daemon.kernels`` compiles them into
it, with a worker a core and one more (one may wait for a kernel that another compiles), and this process loads
them then: the compiler's memory goes with its processes, and a signal ends the start at once. Whatever a worker
could not do, for want of a writable cache or of memory, or because it was killed, this process compiles by itself.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numba as nb

from ..compute import registry
from ..compute.program import ProgramError
from ..gpma import copying, runtime, unused_kernels
from ..gpma.cores import usable_cores
from ..gpma.host import array as pma
from ..gpma.host import snapshot
from ..gpma.index import vertex_index
from ..gpma.kernel_cache import MISSING, Missing, listening, only_from_cache
from ..gpma.relied_on import lacking
from ..gpma.shipped import shipped
from ..partition import classes, exploring, graph, host_side, numbering
from .config.settings import Config
from .engine import edge_times, keyed, lane
from .errors import ConfigError
from .ingest import decode, reuse
from .outgoing import batches
from .records import placement

log = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""How often a log hears how compiling goes on."""
LEFT_MAX = 4
"""Parts that are left are named when they are no more: before, most of them wait for each other."""

KERNELS_BESIDE, KERNELS_A_PROGRAM = 400, 100
"""About how many are compiled into an empty cache: by all but the programs, and by each of these. How many there
will be is known only when all is compiled, and whole parts are ready late."""

ELSEWHERE = "elsewhere about 140 s of processor time, which all cores share"
"""How long it took somewhere, with BFS, components and PageRank: of the processor, since seconds on the clock say
more of what else was running."""

COMPILE = "numba:compile"
"""Numba's event that a kernel is about to be compiled."""

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Needs:
    """What decides which kernels are used."""

    directed: bool
    weighted: bool
    vertex_ids: Literal["int", "string"]
    programs: list[tuple[str, dict[str, Any]]]
    python_modules: list[str]
    results_topic: bool = False
    rows_move: bool = False
    registry: bool = False
    expires: bool = False
    keyed: bool = False

    @classmethod
    def of(cls, config: Config) -> Needs:
        """Those of a daemon with this configuration."""
        return cls(
            directed=config.graph.directed,
            weighted=config.graph.weights != "unweighted",
            vertex_ids=config.graph.vertex_ids,
            programs=[(program.name, program.parameters) for program in config.program],
            python_modules=list(config.compute.python_modules),
            results_topic=config.results.kind == "kafka",
            rows_move=config.partition.host_rows == "owned",
            registry=config.source.registry.url is not None,
            expires=config.window.is_on,
            keyed=config.source.keyed,
        )

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """What to call, by name, so that every kernel is compiled or loaded.

        What later steps build on comes first; beside it what builds on nothing.
        """
        return [
            ("packed arrays", pma.warm_up),
            ("both orientations", host_side.warm_up),
            ("vertex index", lambda: vertex_index.warm_up(self.vertex_ids)),
            ("decoders", lambda: decode.warm_up(self.vertex_ids, registry=self.registry, keyed=self.keyed)),
            *self._programs(),
            ("copies of edges", snapshot.warm_up),
            ("copies of columns", copying.warm_up),
            ("vertices", graph.warm_up),
            ("explorations", exploring.warm_up),
            ("questions about rows", lane.warm_up),
            ("numbering", numbering.warm_up),
            ("placement", lambda: placement.warm_up(self.vertex_ids)),
            ("reuse of ids", reuse.warm_up),
            *([("times of edges", edge_times.warm_up)] if self.expires else []),
            *([("rows by key", keyed.warm_up)] if self.keyed else []),
            *([("batches of results", batches.warm_up)] if self.results_topic else []),
            *([("classes of rows", classes.warm_up)] if self.rows_move else []),
        ]

    @property
    def n_kernels(self) -> int:
        """About how many there are."""
        return KERNELS_BESIDE + KERNELS_A_PROGRAM * len(self._programs())

    def load_programs(self) -> None:
        """Have the kernels of the programs alone."""
        for _, work in self._programs():
            work()

    def _programs(self) -> list[tuple[str, Callable[[], None]]]:
        """Each once, whatever ids it has."""
        different = {
            registry.default_id(name, given, ambiguous=True): (name, given) for name, given in self.programs
        }
        return [
            (
                f"program {id}",
                partial(registry.warm_up, directed=self.directed, weighted=self.weighted, programs=[program]),
            )
            for id, program in different.items()
        ]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far compiling is: parts done and in all, kernels begun and about how many there may be, the parts that
    are left, seconds so far."""

    done: int
    total: int
    kernels: int
    expected: int
    left: list[str]
    seconds: float

    @property
    def share(self) -> float:
        """From 0 to 1; by parts where kernels are found in the cache."""
        by_kernels = min(self.kernels / self.expected, 0.99) if self.left else 1.0
        return max(by_kernels, self.done / self.total if self.total else 0.0)

    def __str__(self) -> str:
        left = f"; left: {', '.join(self.left)}" if 0 < len(self.left) <= LEFT_MAX else ""
        kernels = f"{self.kernels} of up to {max(self.expected, self.kernels)} kernels"
        return f"{kernels}, {self.done} of {self.total} parts{left}"


class Stopped(BaseException):
    """What was begun is not wanted any more: a start, say, that ends before there is anything to shut down."""


def prepare(needs: Needs, stop: threading.Event, report: Callable[[Progress], None]) -> int | None:
    """Load every kernel, compiling first what is not in the cache. Returns how many were compiled; None: all were
    there.

    ``report`` is called when compiling begins, and several times a second while it goes on.

    Raises:
        ConfigError: a program cannot be made, compiled or run; the message names it.
        Stopped: ``stop`` was set; every process has ended.
    """
    if lacks := lacking():
        log.info("kernels are kept and loaded as Numba does it by itself, which takes longer: %s", lacks)
    try:
        with only_from_cache():
            _load(needs)
        return None
    except Missing:
        pass
    compiled = 0
    if isinstance(unusable := shipped(), str):
        log.info("the kernels that came with graphtide are not used: %s", unusable)
    folder = runtime.cache_directory()
    if runtime.is_writable(folder):
        log.info("compiling kernels for this machine, once (all of them: %s), into %s", ELSEWHERE, folder)
        compiled = _compile_aside(needs, stop, report)
    else:
        log.warning("kernels are compiled at every start: no folder for them can be written, as %s cannot", folder)

    def unless_stopped() -> None:
        if stop.is_set():
            raise Stopped

    def compiles() -> None:
        nonlocal compiled
        unless_stopped()
        compiled += 1

    with listening(MISSING, unless_stopped), listening(COMPILE, compiles):
        try:
            _load(needs)
        finally:
            unless_stopped()  # the compiler may have taken that for a mistake of a kernel
    return compiled


def prepare_program(needs: Needs, stop: threading.Event) -> None:
    """Load the kernels of the programs that are named, in a process that has all others; as ``prepare``, what is
    not in the cache is compiled by other processes before.

    Raises:
        ProgramError: one cannot be made, compiled or run; the message names it.
        Stopped: ``stop`` was set.
    """
    try:
        with only_from_cache():
            needs.load_programs()
        return
    except Missing:
        log.info("compiling kernels of %s", ", ".join(name for name, _ in needs.programs))
    if runtime.is_writable(runtime.cache_directory()):
        _compile_aside(needs, stop, lambda progress: None)
    needs.load_programs()


def forget_unused() -> None:
    """Remove from the cache what no start has used for long, in the background: the disk may be slow."""

    def forget() -> None:
        folder = runtime.cache_directory()
        removed = unused_kernels.forget_unused(folder)
        if removed:
            days = unused_kernels.KEPT_S / unused_kernels.DAY_S
            log.info(
                "%d files of kernels that nobody has used for %d days were removed from %s", removed, days, folder
            )

    with contextlib.suppress(RuntimeError):  # the system grants no thread: another time, then
        threading.Thread(target=forget, name="unused-kernels", daemon=True).start()


def _load(needs: Needs) -> None:
    try:
        for _, work in needs.steps():
            work()
    except ProgramError as error:
        raise ConfigError(f"program {error}") from error


# -- the side of the daemon -----------------------------------------------------------------------------------


def _compile_aside(needs: Needs, stop: threading.Event, report: Callable[[Progress], None]) -> int:
    """Have all compiled by another process and its workers; returns when they have ended, whatever came of it, how
    many kernels they began.

    Raises:
        Stopped: as ``prepare``.
    """
    started = time.monotonic()
    known = [path for path in sys.path if path and Path(path).exists()]
    compiler = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(known)},
        process_group=0,  # it and its workers end together, and a terminal's signals are ours to pass on
    )
    assert compiler.stdin is not None and compiler.stdout is not None
    names = [name for name, _ in needs.steps()]
    left, kernels = dict.fromkeys(names), 0
    with compiler.stdin, compiler.stdout:
        try:
            compiler.stdin.write(json.dumps(asdict(needs)).encode() + b"\n")
            compiler.stdin.flush()  # it stays open: that it ends tells the compiler that we are gone
            waiting = b""
            while True:
                if stop.is_set():
                    raise Stopped
                seconds = time.monotonic() - started
                done = len(names) - len(left)
                report(Progress(done, len(names), kernels, needs.n_kernels, list(left), seconds))
                if not select.select([compiler.stdout], [], [], _LOOK_SECONDS)[0]:
                    continue
                came = os.read(compiler.stdout.fileno(), 1 << 16)
                if not came:
                    break
                *lines, waiting = (waiting + came).split(b"\n")
                for line in lines:
                    if line:
                        left.pop(json.loads(line), None)
                    else:
                        kernels += 1
        except BrokenPipeError:
            pass  # it has ended already
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(compiler.pid, signal.SIGKILL)
            status = compiler.wait()
    if left:
        log.warning("compiling side by side ended early (status %d); this process goes on alone", status)
    return kernels


# -- the side of the compiler ---------------------------------------------------------------------------------


def main() -> None:
    """For a daemon: compile what standard input names, saying on standard output which steps are done, and a line
    a kernel. With ``--all``, for people: compile what there is, for any configuration, unless it is in the cache.
    """
    try:
        if sys.argv[1:] == ["--all"]:
            _compile_all()
        else:
            _compile_for_daemon()
    except BrokenProcessPool:
        sys.exit("graphtide: a process that compiled kernels was killed, perhaps for want of memory")


def _compile_for_daemon() -> None:
    needs = Needs(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    registry.load_modules(needs.python_modules)
    with _compiling([needs], tells=True) as steps:
        for done in steps:
            _say(json.dumps(done.result()))


def _compile_all() -> None:
    configurations = list(_all())
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as aside:  # workers begin without kernels
        if aside.submit(_are_there, configurations).result():
            return
    from .terminal import duration, progress

    print(f"compiling all kernels, once, into {runtime.cache_directory()}", file=sys.stderr)
    started = time.monotonic()
    with _compiling(configurations, tells=False) as steps, progress() as bar:
        n_steps = sum(len(needs.steps()) for needs in configurations)
        for done in bar.track(steps, n_steps, description="compiling kernels"):
            done.result()
    print(f"kernels are ready after {duration(time.monotonic() - started)}", file=sys.stderr)


@contextlib.contextmanager
def _compiling(configurations: list[Needs], *, tells: bool) -> Iterator[Iterator[Future[str]]]:
    """The steps of these configurations as they are done, each by its name; ``tells``: a line a kernel is said."""
    first: Any = nb.njit(lambda: None)
    first()  # Numba loads the rest of itself with the first kernel: here, and not in each worker
    # What a compiler makes lives as long as it does: looking for garbage is a seventh of its time.
    gc.freeze()
    gc.disable()
    steps = [(needs, step) for needs in configurations for step in range(len(needs.steps()))]
    workers = min(len(steps), usable_cores() + 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        yield as_completed([pool.submit(_compile, needs, step, tells) for needs, step in steps])


def _all() -> Iterator[Needs]:
    """Configurations that use every kernel between them."""
    for directed, weighted in itertools.product((True, False), repeat=2):
        programs = [(kind, dict(given)) for kind, given in registry.least_programs(weighted=weighted)]
        yield Needs(
            directed,
            weighted,
            "int" if directed else "string",
            programs,
            [],
            results_topic=directed,
            rows_move=directed,
            registry=directed,
            expires=directed,
            keyed=directed,
        )


def _are_there(configurations: list[Needs]) -> bool:
    """Whether all kernels of these are in the cache."""
    try:
        with only_from_cache():
            for needs in configurations:
                _load(needs)
    except Missing:
        return False
    return True


def _compile(needs: Needs, step: int, tells: bool) -> str:
    name, work = needs.steps()[step]
    # A program's mistake is found, and said, by the daemon.
    with listening(COMPILE, lambda: _say("") if tells else None), contextlib.suppress(ProgramError):
        work()
    return name


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _end_with_daemon() -> None:
    while os.read(0, 1):  # not ``sys.stdin``, whose lock a worker would inherit
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
