"""The engine process's end of the query server: start it, keep it alive, feed it, answer it.

The sockets that clients connect to are opened here and handed to the server process, so that a wrong
address is an error at start, and clients of a server that died wait in the backlog until the next one runs.
The server never makes the engine wait, and may pause: word of an epoch is left out while it has not read what it
was sent before, since it then looks for the newest; what else finds no room is sent when there is some. It is
replaced when it had no room for too long (``server_process``), or said nothing for ``HUNG_SECONDS_MAX``. Two
threads of its own are beside the engine's (``publish``): one watches the process, and one answers its questions
(``engine_answers``).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgpack
import numpy.typing as npt

from ... import __version__
from ...compute.program import Published
from ...gpma.edges import Vertices
from ...gpma.index.ids import IdColumn
from ...gpma.team import ALONE, Crew
from ...gpma.threads import start_thread
from ..client.wire import MethodLatency
from ..config.sections.limits import LimitsConfig
from ..errors import Unavailable
from ..os_errors import why
from ..records.asked import AnswerAside
from ..records.topology import Topology
from . import shared_memory
from .change_log import ChangeLog, ChangeLogWriter
from .engine_answers import EngineAnswers
from .listening import Doors
from .publication import Publication
from .results import ResultsReader, ResultsWriter
from .server_process import STOP_SECONDS_MAX, Lane, ServerProcess
from .shared_memory import CONTROL_BYTES_MAX, SharedArray
from .template import Template
from .totals import Totals

log = logging.getLogger(__name__)

START_SECONDS_MAX = 120.0
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.1, 5.0
READY_RESTART_SECONDS_MAX = 1.0
"""A server that was ready starts again after so long at most, however often it ended."""
HEALTHY_SECONDS = 30.0
"""A server that ran so long starts again without delay."""
SILENT_SECONDS_MAX = 10.0
"""A server reports every second; one that says nothing for so long does not answer."""
HUNG_SECONDS_MAX = 30.0
"""One that says nothing for so long hangs, and is replaced; a shorter pause costs its clients nothing but time."""
LISTEN_SECONDS = 1.0
"""So long a report is waited for at a time."""


class PublishedIndex(Protocol):
    """What is needed of ``gpma.vertex_index.VertexIndex``; its arrays come from ``shared_memory.allocate``."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]: ...

    @property
    def generation(self) -> int: ...

    def external(self, dense: Vertices) -> IdColumn: ...


# -- the process ----------------------------------------------------------------------------------------------


def _said(error: Exception) -> str:
    """What kept a server from being started."""
    return (why(error) if isinstance(error, OSError) else str(error)) or type(error).__name__


def _no_lane() -> None:
    """Nobody answers but the topology."""


@dataclass(slots=True)
class Silence:
    """How long nothing was heard while we listened: where we stood still ourselves, it may have spoken."""

    seconds: float = 0.0

    def goes_on(self, seconds: float) -> None:
        """Nothing came in this time, of which ``LISTEN_SECONDS`` were meant to be waited."""
        self.seconds += min(seconds, 2 * LISTEN_SECONDS)


class ServerLink:
    """Publishes epochs and keeps a query server running that answers from them."""

    def __init__(
        self,
        *,
        doors: Doors,
        http_hosts: Sequence[str] = (),
        graph: Mapping[str, Any],
        index: PublishedIndex,
        topology: Topology,
        limits: LimitsConfig | None = None,
        tokens: Sequence[str] = (),
        admin_tokens: Sequence[str] = (),
        python_modules: Sequence[str] = (),
        template: Template | None = None,
        crew: Crew = ALONE,
        open_lane: Callable[[], Lane | None] = _no_lane,
    ) -> None:
        """``doors``: where clients connect; they are ``stop``'s to close.

        ``http_hosts``: names by which the HTTP door may be called.

        ``graph``: ``directed``, ``weighted`` and ``vertex_ids`` (``"int"`` or ``"string"``).

        ``tokens``: what clients may present, any of them; none: no token is asked for. ``admin_tokens``: likewise,
        to change something.
        ``python_modules`` are imported by the server, for programs that they register.
        ``template``: one for such ids and modules that runs already; it is ``stop`` that ends it.
        ``crew``: who copies whole columns of results. ``open_lane``: makes a server's lane.
        """
        given = limits or LimitsConfig()
        self.doors = doors
        self._topology = topology
        self.asked: Mapping[str, AnswerAside] = {}
        """Who answers for programs at run time, if anyone; to be set before ``start``."""
        self.index = index
        self.restarts = 0
        self.connections = 0
        self.waiting = 0
        self.subscriptions = 0
        self._settings: dict[str, Any] = {
            "kind": "configure",
            "limits": given.model_dump(),
            "access": {
                "tokens": list(tokens),
                "admin_tokens": list(admin_tokens),
            },
            "doors": doors.kinds,
            "http_hosts": [name.lower() for name in http_hosts],
            "graph": dict(graph),
            "version": __version__,
        }
        self._access_generation = 0
        self._python_modules = list(python_modules)
        self._changes = ChangeLogWriter(given.changes_bytes, index.external)
        self._writer = ResultsWriter(self._changes, crew)
        self._template = template
        self._process: ServerProcess | None = None
        self._answering: list[threading.Thread] = []
        self._open_lane = open_lane
        self._lanes: list[Lane] = []
        # Guards which process is the present one, and what it was told of results and index.
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure: Exception | None = None  # of the last try to start a server
        self._totals = Totals()

    # -- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, and start the server; it accepts clients once an epoch is published.

        Raises:
            ConfigError: another process took an address meanwhile.
        """
        self.doors.listen()
        self._watcher = threading.Thread(target=self._watch, name="server-watch", daemon=True)
        self._watcher.start()

    @property
    def addresses(self) -> list[str]:
        """Where clients connect to the socket, with the ports that were given."""
        return self.doors.addresses

    @property
    def http_addresses(self) -> list[str]:
        """Where the HTTP door is, with the ports that were given."""
        return self.doors.http_addresses

    @property
    def is_ready(self) -> bool:
        """A server is running and accepts clients."""
        process = self._process
        return process is not None and process.ready.is_set() and not process.child.ended()

    @property
    def template_pid(self) -> int | None:
        """The process that server processes are forked from."""
        template = self._template
        return None if template is None else template.pid

    @property
    def is_answering(self) -> bool:
        """It is ready, and was heard of not long ago: a process that hangs is there, and answers nobody."""
        process = self._process
        return self.is_ready and process is not None and time.monotonic() - process.reported < SILENT_SECONDS_MAX

    @property
    def pid(self) -> int | None:
        """The server process."""
        process = self._process
        return None if process is None else process.child.pid

    def wait_ready(
        self, timeout_s: float = START_SECONDS_MAX, *, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Return once clients are accepted (an epoch must have been published), or nobody waits for it any more.

        Raises:
            Unavailable: the server did not come up in time.
            OSError: this process may have no more descriptors, and would find no more in the next try.
        """
        deadline = time.monotonic() + timeout_s
        while not (self.is_ready or given_up()):
            failure = self._failure
            if isinstance(failure, OSError) and failure.errno == errno.EMFILE:
                raise failure
            if time.monotonic() > deadline:
                last = "" if failure is None else f": {_said(failure)}"
                raise Unavailable(f"the query server was not ready after {timeout_s:g} s{last}")
            time.sleep(0.01)

    def renew_access(self, tokens: Sequence[str], admin_tokens: Sequence[str] = ()) -> None:
        """Take these tokens from now on, and the files for TLS as they are now; others are turned out.

        Raises:
            ConfigError: the files for TLS cannot be used; all stays as it was.
        """
        with self._lock:
            self.doors.renew_tls()
            self._settings["access"] = {"tokens": list(tokens), "admin_tokens": list(admin_tokens)}
            self._access_generation += 1
            self._send_owed()

    def stop(self) -> None:
        """End the server, close the sockets and remove their paths; harmless to repeat."""
        with self._lock:
            self._stopping.set()
            process, template = self._process, self._template
        if process is not None:
            process.close()
        if template is not None:
            template.close()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        for thread in self._answering:
            thread.join()
        for lane in self._lanes:
            lane.join(STOP_SECONDS_MAX)
        self.doors.close()

    # -- publishing -------------------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        """Publish an epoch and tell the server; never waits for it.

        Raises:
            MemoryError, OSError, ValueError: as ``ResultsWriter.publish``.
        """
        with self._lock:
            # The index first: whoever sees the epoch must be able to get at arrays that know its vertices.
            index_generation = self._send_index()
            self._writer.publish(publication, index_generation)
            self._send_owed()
            if self._process is not None and self._process.ready.is_set():
                self._process.notify()

    def begin_grace(self) -> Callable[[], bool]:
        """Ask the server to tell when every request has ended that began before it has the index as it is now.

        Returns whether it is so, or that server is gone, to be asked again and again; any thread may.
        """
        over = threading.Event()
        with self._lock:
            process = self._process
            if process is None or process.graces is None:
                over.set()
            else:
                # Above all that it was ever told: one that was is over, or its end is still to come.
                token = max(process.generations.get("grace", 0), *process.graces, 0) + 1
                process.graces[token] = over
                self._send_owed()
        return over.is_set

    def memory_bytes(self) -> int:
        """Bytes of the shared memory of results."""
        return self._writer.memory_bytes()

    def published(self, program: str) -> Published:
        """What readers see of a program now; for the thread that publishes, until it does so again."""
        return self._writer.published(program)

    @property
    def results_generation(self) -> int:
        """Rises when new memory takes over; readers of the one before must open the results again."""
        return self._writer.generation

    def open_results(self) -> ResultsReader:
        """The published epochs (there must be one), for a reader in this process. Any thread may ask."""
        with self._lock:
            return ResultsReader.beside(self._writer)

    def open_changes(self) -> ChangeLog:
        """What recent epochs changed, for a reader in this process. Any thread may ask."""
        place = self._changes.place
        return ChangeLog(replace(place, fd=os.dup(place.fd)))

    def latency_snapshot(self) -> dict[str, MethodLatency]:
        """Requests by method since ``start``, over all server processes; about a second old.

        It does not wait for an epoch that is being published.
        """
        return dict(self._totals.sum().latency)

    def refused(self) -> dict[str, int]:
        """Connections refused since ``start``, by reason (``admission.REASONS``); about a second old."""
        return dict(self._totals.sum().refused)

    def requests_by_door(self) -> dict[str, int]:
        """Requests since ``start``, by door (``socket``, ``http``); about a second old."""
        return self._totals.sum().by_door()

    def told(self) -> dict[str, int]:
        """What subscribers were told since ``start``, as ``Subscriptions.totals``; about a second old."""
        return dict(self._totals.sum().told)

    def _send_index(self) -> int:
        """Send the index's arrays if the server does not have them yet; their generation."""
        with self._lock:
            generation = self.index.generation
            process = self._process
            if process is None or process.was_told("index", generation):
                return generation
            # Taken once: the writer may replace them meanwhile, and the header belongs to the arrays.
            arrays = self.index.arrays()
            generation = int(arrays["header"][2])
            places = {name: SharedArray.of(array) for name, array in arrays.items()}
            described = [[name, place.byte_offset, place.n_items, place.dtype] for name, place in places.items()]
            process.tell("index", generation, {"arrays": described}, [place.fd for place in places.values()])
            return generation

    def _send_owed(self) -> None:
        """Tell the present server whatever it was not told yet, as far as there is room."""
        process = self._process
        if process is None:
            return
        self._send_index()
        if not process.was_told("access", self._access_generation):
            access = self._settings["access"]
            process.tell("access", self._access_generation, {"access": access}, self.doors.tls_fds)
        if process.lane is not None and not process.was_told("lane", 1):
            process.tell("lane", 1, {}, process.lane.descriptors)
        if not process.was_told("changes", 1):
            place = self._changes.place
            process.tell("changes", 1, {"bytes": place.n_items}, [place.fd])
        results = self._writer.generation
        if results and not process.was_told("results", results):
            process.tell("results", results, {"layout": self._writer.layout.to_wire()}, [self._writer.fd])
        # Of several grace periods the newest: its end is that of all before it. It is about the present index.
        newest = max(process.graces or {}, default=0)
        if newest > process.generations.get("grace", 0) and process.was_told("index", self.index.generation):
            process.tell("grace", newest, {"token": newest})

    # -- the server process -----------------------------------------------------------------------------------

    def _begin(self) -> ServerProcess | None:
        """Start a process and tell it everything; None when the link is being stopped.

        Raises:
            OSError, RuntimeError: it cannot be started.
        """
        with self._lock:
            if self._stopping.is_set():
                return None
            template = self._template
            if template is None:
                template = self._template = Template(self._settings["graph"]["vertex_ids"], self._python_modules)
        try:
            process = ServerProcess(template)
        except ConnectionError as error:
            how = template.end()
            self._template = None
            raise ConnectionError(how) from error
        try:
            process.lane = self._lane_of_its_own()
            self._introduce(process)
        except BaseException:
            with process.calls:  # which who answers would have closed
                self._end(process)
            raise
        if self._stopping.is_set():
            process.close()
        return process

    def _introduce(self, process: ServerProcess) -> None:
        """Tell a process everything, and let it ask."""
        with self._lock:
            self._process = process
            settings = {**self._settings, "restarts": self.restarts}
            process.send(settings, [*self.doors.filenos(), *self.doors.tls_fds])
            process.generations["access"] = self._access_generation
            self._send_owed()
        answers = EngineAnswers(process, self._topology, self.asked, self._send_index)
        answering = threading.Thread(target=answers.run, name="topology", daemon=True)
        self._answering = [thread for thread in self._answering if thread.is_alive()]
        start_thread(answering)
        self._answering.append(answering)

    def _lane_of_its_own(self) -> Lane | None:
        """For a process that begins; None: it asks over its socket alone."""
        try:
            lane = self._open_lane()
        except OSError as error:
            log.warning("questions about rows take longer now: %s", error)
            return None
        self._lanes = [one for one in self._lanes if not one.join(0)] + ([] if lane is None else [lane])
        return lane

    def _watch(self) -> None:
        """Keep a server running: take its reports, and start another when it ends, slower if they keep ending."""
        pause, delay = 0.0, RESTART_SECONDS_MIN
        while not self._stopping.wait(pause):
            try:
                process = self._begin()
            except Exception as error:  # whatever it is: without this thread there would never be another server
                if self._stopping.is_set():
                    return
                self._failure = error
                unforeseen = not isinstance(error, (OSError, ValueError, RuntimeError, MemoryError))
                log.error(
                    "the query server cannot be started (%s); the next try is in %.1f s",
                    _said(error),
                    delay,
                    exc_info=unforeseen,
                )
                pause, delay = delay, min(2 * delay, RESTART_SECONDS_MAX)
                continue
            if process is None:
                return
            self._failure = None
            try:
                self._take_reports(process)
            except Exception:  # as above
                log.exception("a report of the query server cannot be taken; it is replaced")
            status = None
            try:
                status = self._end(process)
            except Exception:  # likewise
                log.exception("how the query server ended is not known")
            if self._stopping.is_set():
                return
            if time.monotonic() - process.started > HEALTHY_SECONDS:
                delay = RESTART_SECONDS_MIN
            slowest = READY_RESTART_SECONDS_MAX if process.ready.is_set() else RESTART_SECONDS_MAX
            pause, delay = min(delay, slowest), min(2 * delay, RESTART_SECONDS_MAX)
            log.error("the query server ended (status %s); the next one starts in %.1f s", status, pause)
            self.restarts += 1

    def _end(self, process: ServerProcess) -> int | None:
        """Make sure that a process has ended, and its requests with it; its exit status.

        A question about edges that is being answered for it is not waited for.
        """
        try:
            process.close()
            if process.lane is not None:
                process.lane.close()
            return None if self._template is None else self._template.status(process.child)
        finally:
            with self._lock:
                self._process = None
                self._totals.end()
                self.connections = self.waiting = self.subscriptions = 0
                graces, process.graces = process.graces or {}, None
            for over in graces.values():
                over.set()
            process.control.close()
            process.child.close()

    def _take_reports(self, process: ServerProcess) -> None:
        """Until the server is gone, or hangs, and is killed for it."""
        poll = select.poll()
        poll.register(process.control, select.POLLIN)
        silence = Silence()
        while True:
            began = time.monotonic()
            if not poll.poll(LISTEN_SECONDS * 1000):
                silence.goes_on(time.monotonic() - began)
                if silence.seconds > HUNG_SECONDS_MAX:
                    log.error("the query server said nothing for %.0f s; it is replaced", silence.seconds)
                    process.child.kill()
                    return
                continue
            silence = Silence()
            try:
                message, _ = shared_memory.receive_with_fds(process.control, CONTROL_BYTES_MAX)
            except (OSError, ValueError):
                return
            if not message:
                return
            report = msgpack.unpackb(message)
            process.reported = time.monotonic()
            if report["kind"] == "ready":
                process.ready.set()
                process.notify()
            elif report["kind"] == "grace":
                with self._lock:
                    graces = process.graces or {}
                    over = [graces.pop(token) for token in list(graces) if token <= report["token"]]
                for one in over:
                    one.set()
            elif report["kind"] == "statistics":
                with self._lock:
                    self._totals.take(report)
                    self.connections, self.waiting = report["connections"], report["waiting"]
                    self.subscriptions = report["subscriptions"]
                    self._send_owed()  # it reads again, if it had paused
