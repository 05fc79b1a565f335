"""The demonstration: the real daemon, a real stream, real queries, every answer checked.

It starts ``graphtide run`` as a child process on a spool, streams updates into it, asks as any client would,
recomputes everything from scratch with SciPy, and compares vertex by vertex.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ...gpma.edges import Op
from ...gpma.index.ids import IntColumn
from .. import terminal
from ..client import Client
from ..config.load import ENV_PREFIX
from ..errors import ConfigError, GraphtideError, NotWritten, Unavailable
from ..os_errors import SOCKET_PATH_BYTES, why
from ..records.columns import UpdateColumns
from ..records.spool_format import SpoolWriter
from .advice import OTHER_NAMES, TEXT_IDS
from .files import BadInput, read_updates
from .generate import Churn, Updates
from .windows import windowed

MATHOVERFLOW = Path(__file__).resolve().parents[3] / "shared" / "data" / "mathoverflow.events.tsv.xz"
WINDOW_SECONDS = 180 * 86_400
RECORD_UPDATES = 500
STREAM_SECONDS = 15
SCALE, POOL, GENERATED = 14, 120_000, 300_000
ASK_AT_ONCE = 10_000
TOLERANCE = 1e-3
INTEGERS_ONLY = "; the demo takes ids that are integers (a daemon takes texts where graph.vertex_ids is string)"
OUR_NAMES = "The demo takes no other names (graphtide produce does)"

# What the daemon's log says while it has no kernels: that it begins, and how far it is.
_COMPILES = re.compile("compiling kernels for .*")
_COMPILED = re.compile("compiling kernels: (.* kernels)")


class DemoFailed(GraphtideError):
    """An answer was wrong, or the daemon did not behave."""

    code = "demo"


@dataclass(frozen=True, slots=True)
class Stream:
    """All updates of the demonstration, in order, and what to call them.

    ``updates``: what they come to; ``times_ms``: int64 of them, where edges expire: then the daemon is sent the
    inserts alone, and deletes by itself what was not inserted again for ``window`` seconds.
    """

    name: str
    updates: Updates
    window: float | None = None
    times_ms: npt.NDArray[np.int64] | None = None

    @property
    def root(self) -> int:
        """The vertex that most inserts leave from: a source from which much can be reached."""
        ids, times = np.unique(self.updates.src[Op.INSERT.among(self.updates.ops)], return_counts=True)
        return int(ids[times.argmax()])

    @property
    def sent(self) -> UpdateColumns:
        """What is sent to the daemon."""
        of = self.updates
        whole = UpdateColumns(of.src, of.dst, of.ops, of.weights, self.times_ms)
        return whole if self.times_ms is None else whole.take(np.flatnonzero(Op.INSERT.among(of.ops)))


def run_demo(*, data: Path | None, updates: int | None, window: float | None, keep: Path | None) -> int:
    """Run it all; returns 0 when every answer was right.

    ``data``: an edge list or event file instead of the default (mathoverflow where the checkout's neighbour has
    it, else a generated graph); ``updates``: stop after so many; ``window``: seconds that an edge lives after
    its latest insert; ``keep``: a folder to work in and to leave as it is.

    Raises:
        DemoFailed: an answer was wrong.
        NotWritten: the temporary folder has no room.
    """
    try:
        from .verify import FinalGraph
    except ImportError as error:
        raise ConfigError(
            "the demonstration checks its answers with SciPy: pip install 'graphtide[demo]'"
        ) from error
    console = terminal.output()
    stream = make_stream(data, updates, window)
    inserts = int(np.count_nonzero(stream.updates.ops))
    console.print(
        f"[bold]{stream.name}[/bold]: {len(stream.updates):,} updates, {inserts:,} inserts and "
        f"{len(stream.updates) - inserts:,} deletions"
        + ("" if stream.window is None else ", which are the daemon's own")
    )
    folder = keep if keep is not None else Path(tempfile.mkdtemp(prefix="graphtide-demo-"))
    try:
        with _daemon(folder, stream, console) as address, Client(address, timeout=60) as client:
            _stream(client, folder / "spool", stream, console)
            final = FinalGraph.replay(stream.updates.src, stream.updates.dst, stream.updates.ops)
            _show_answers(client, final.ids, stream.root, console)
            _check(client, final, stream.root, console)
        console.print("\n[green]every answer was right, and the daemon stopped cleanly[/green]")
    except OSError as error:
        if error.errno != errno.ENOSPC or keep is not None:
            raise
        raise NotWritten(f"{folder}: {why(error)}: name a folder that has some with TMPDIR or --keep") from error
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def make_stream(data: Path | None, updates: int | None, window: float | None) -> Stream:
    """The stream that these options ask for."""
    if data is None and MATHOVERFLOW.exists():
        data, window = MATHOVERFLOW, WINDOW_SECONDS if window is None else window
    if data is None:
        churn = Churn(scale=SCALE, pool=POOL, seed=1)
        return Stream("a generated graph with skewed degrees", churn.stream(updates or GENERATED))
    try:
        columns = read_updates(data)
    except BadInput as bad:
        message = bad.message.replace(TEXT_IDS, INTEGERS_ONLY).replace(OTHER_NAMES, OUR_NAMES)
        raise BadInput(message, bad.detail) from None
    if window:
        columns = windowed(columns, window)
        name = f"{data.name}, an edge living {terminal.duration(window)}"
    else:
        name = data.name
    stop = updates or len(columns)
    assert isinstance(columns.src, np.ndarray) and isinstance(columns.dst, np.ndarray)
    assert columns.weights is not None
    if window:  # what expires goes when an insert comes
        stop = int(np.flatnonzero(Op.INSERT.among(columns.ops[:stop]))[-1]) + 1
    part = Updates(columns.src[:stop], columns.dst[:stop], columns.ops[:stop], columns.weights[:stop])
    if not window:
        return Stream(name, part)
    assert columns.timestamps_ms is not None
    return Stream(name, part, window, columns.timestamps_ms[:stop])


@contextlib.contextmanager
def _daemon(folder: Path, stream: Stream, console: Console) -> Iterator[str]:
    """A daemon in this folder; yields its address, and sees to a clean end.

    Raises:
        DemoFailed: it did not start, or did not stop with status 0.
    """
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    sockets = _folder_of_socket()
    address = f"unix:{sockets}/s"
    config = folder / "graphtide.toml"
    config.write_text(
        f'[source]\nkind = "spool"\npath = {_quoted(folder / "spool")}\n'
        f"[dead_letters]\npath = {_quoted(folder / 'dead-letters')}\n"
        f"[checkpoint]\npath = {_quoted(folder / 'checkpoints')}\n"
        f'[server]\nlisten = [{_quoted(address)}]\n[metrics]\nlisten = "off"\n'
        + (f"[window]\nlength = {stream.window}\n" if stream.window else "")
        + f'[[program]]\nname = "bfs"\nid = "hops"\nsource = {stream.root}\n'
        f'[[program]]\nname = "components"\n[[program]]\nname = "pagerank"\ntolerance = {TOLERANCE}\n'
    )
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "graphtide", "run", "--config", str(config), "--no-progress"],
            stdout=log,
            stderr=log,
            env=_environment(),
        )
    try:
        _await_answer(address, process, folder / "log", console)
        yield address
        process.send_signal(signal.SIGTERM)
        if (status := process.wait(60)) != 0:
            raise DemoFailed(f"the daemon ended with status {status}:\n{_tail(folder / 'log')}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(sockets, ignore_errors=True)


def _folder_of_socket() -> str:
    """A new folder whose name is short enough for a socket in it; that of temporary files may have a long one.

    Raises:
        ConfigError: wherever temporary files may be, its name would be too long.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(os.fsencode(parent)) + len("/gt-12345678/s") <= SOCKET_PATH_BYTES:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix="gt-", dir=parent)
    raise ConfigError(
        f"no folder of temporary files has a name short enough for a Unix socket ({SOCKET_PATH_BYTES} bytes with "
        "its own): name another one with TMPDIR"
    )


def _environment() -> dict[str, str]:
    """Ours without settings: those of another daemon, in a container's or a service's environment, would override
    the file, and its checkpoints, topics and dead letters are not to be touched.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    return ours | {"PYTHONUNBUFFERED": "1"}


def _quoted(text: object) -> str:
    """As a string of TOML."""
    return json.dumps(str(text), ensure_ascii=False)


def _await_answer(address: str, process: subprocess.Popen[bytes], log: Path, console: Console) -> None:
    started, announced = time.monotonic(), False
    with console.status("starting the daemon") as status:
        while True:
            said = log.read_text(errors="replace")
            if process.poll() is not None:
                raise DemoFailed(f"the daemon ended with status {process.returncode}:\n{_tail(log)}")
            if not announced and (begun := _COMPILES.search(said)):
                announced = True
                console.print(f"{begun[0]}; later starts find them there", soft_wrap=True, markup=False)
            if announced:
                seconds, done = time.monotonic() - started, _COMPILED.findall(said)
                status.update(f"compiling kernels, {seconds:.0f} s so far: {done[-1] if done else 'begun'}")
            try:
                with Client(address, timeout=10) as client:
                    client.stats()
                return
            except Unavailable:
                time.sleep(0.1)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


# -- streaming ------------------------------------------------------------------------------------------


def _stream(client: Client, spool: Path, stream: Stream, console: Console) -> None:
    """Append the updates to the spool at a steady pace, show live figures, wait until the last is visible."""
    updates = stream.sent
    started = time.perf_counter()
    written: deque[tuple[int, float]] = deque()
    with SpoolWriter(spool, name="demo") as writer, Live(console=console, refresh_per_second=8) as live:
        shown = started
        for start in range(0, len(updates), RECORD_UPDATES):
            part = updates.take(np.arange(start, min(start + RECORD_UPDATES, len(updates))))
            written.append((writer.append(part.encode()), time.perf_counter()))
            writer.flush()
            sent = min(start + RECORD_UPDATES, len(updates))
            if (ahead := started + STREAM_SECONDS * sent / len(updates) - time.perf_counter()) > 0:
                time.sleep(ahead)
            if time.perf_counter() - shown > 0.1:
                shown = time.perf_counter()
                live.update(_figures(client, sent, len(updates), started, written))
        asked = time.perf_counter()
        client.wait(min_offsets={writer.name: writer.offset}, timeout_ms=60_000)
        behind = time.perf_counter() - asked
        while stream.window and client.stats()["window"]["is_due"]:
            time.sleep(0.01)
        live.update(_figures(client, len(updates), len(updates), started, written))
    console.print(f"\nthe last update was visible in answers {behind * 1000:.0f} ms after it was written")


def _figures(client: Client, sent: int, total: int, started: float, written: deque[tuple[int, float]]) -> Table:
    """Live figures; ``written``: (offset, time) of the records that were not visible when we last looked."""
    stats = client.stats()
    visible, now, age = int(next(iter(stats.offsets.values()), 0)), time.perf_counter(), None
    while written and written[0][0] <= visible:
        age = now - written.popleft()[1]
    table = Table.grid(padding=(0, 3))
    table.add_row("updates sent", f"{sent:,} of {total:,}", "applied", f"{stats['updates_applied']:,}")
    table.add_row("vertices", f"{stats['vertices']:,}", "edges", f"{stats['edges']:,}")
    table.add_row(
        "epochs", f"{stats.epoch[1]:,}", "updates/s", f"{stats['updates_applied'] / (now - started):,.0f}"
    )
    table.add_row("newest visible update is", "-" if age is None else f"{age * 1000:.0f} ms old")
    return table


# -- answers --------------------------------------------------------------------------------------------


def _print_table(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table under its title; a table's own title would be folded to the table's width."""
    console.print(f"\n[bold]{title}[/bold]")
    console.print(terminal.table(columns, rows))


def _show_answers(client: Client, ids: IntColumn, root: int, console: Console) -> None:
    top = client.top("pagerank", k=10)
    ranked = [[str(vertex), f"{rank:.6f}"] for vertex, rank in zip(top.ids, top.values, strict=True)]
    _print_table(console, "Ranked highest", ["vertex", "PageRank"], ranked)
    hops, reached = _ask(client, "hops", ids)
    distances, counts = np.unique(hops[reached], return_counts=True)
    by_distance = [[str(hop), f"{count:,}"] for hop, count in zip(distances, counts, strict=True)]
    _print_table(console, f"Hops from {root}", ["hops", "vertices"], by_distance)
    farthest = int(ids[reached][hops[reached].argmax()])
    path = client.path("hops", target=farthest)
    console.print(f"the way to {farthest}: {' → '.join(map(str, path.vertices))}")
    labels, _ = _ask(client, "components", ids)
    names, sizes = np.unique(labels, return_counts=True)
    largest = names[np.argsort(-sizes, kind="stable")[:5]]
    by_size = [[str(name), f"{client.component(int(name), limit=0).size:,}"] for name in largest]
    _print_table(console, f"Largest of {names.size:,} components", ["component", "vertices"], by_size)


def _ask(client: Client, program: str, ids: IntColumn) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Values of all these vertices, and which of them have one."""
    values, has = [], []
    for start in range(0, ids.size, ASK_AT_ONCE):
        answer = client.get(program, ids[start : start + ASK_AT_ONCE])
        if len(answer.unknown):
            raise DemoFailed(f"{program}: {len(answer.unknown)} vertices are unknown that should exist")
        values.append(np.ma.getdata(answer.values))
        has.append(~np.ma.getmaskarray(answer.values))
    return np.concatenate(values), np.concatenate(has)


def _check(client: Client, final: Any, root: int, console: Console) -> None:
    """Compare every vertex with a recomputation by SciPy.

    Raises:
        DemoFailed: some vertex differs; the message says which check, how many, and one of them.
    """
    stats = client.stats()
    hops, reached = _ask(client, "hops", final.ids)
    labels, _ = _ask(client, "components", final.ids)
    ranks, _ = _ask(client, "pagerank", final.ids)
    expected_ranks = final.pagerank()
    error = np.abs(ranks - expected_ranks) / expected_ranks
    checks = [
        ("vertices", np.array([stats["vertices"] != final.ids.size]), ""),
        ("edges", np.array([stats["edges"] != final.src.size]), ""),
        ("hops", np.where(reached, hops.astype(np.int64), -1) != final.hops(root), ""),
        ("components", labels != final.component_labels(), ""),
        ("PageRank", ~(error <= TOLERANCE), f"largest relative error {error.max():.1e}, promised {TOLERANCE:.0e}"),
    ]
    rows = [[name, f"{wrong.size:,}", f"{np.count_nonzero(wrong):,}", note] for name, wrong, note in checks]
    _print_table(console, "Checked against SciPy", ["results", "compared", "wrong", ""], rows)
    for name, wrong, _ in checks:
        if wrong.any():
            raise DemoFailed(f"{name}: {np.count_nonzero(wrong)} of {wrong.size} differ from the recomputation")
