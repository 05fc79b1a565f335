"""The engine process's end of the query server: start it, keep it alive, feed it, answer it.

The sockets that clients connect to are opened here and handed to the server process, so that a wrong
address is an error at start, and clients of a server that died wait in the backlog until the next one runs.
The server never makes the engine wait: what cannot be sent at once means that it is stuck, and it is
replaced. Three threads call this module: the engine's (``publish``), and two of its own, one that watches
the process and one that answers questions about edges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgpack
import numpy as np
import numpy.typing as npt

from ... import __version__
from ...compute.program import Published
from ...gpma.edges import Vertices
from ..client.addresses import UnixAddress, parse_address
from ..client.wire import LATENCY_BUCKETS_SECONDS, RECEIVE_BYTES, RESPONSE, MethodLatency, error_to_wire, plain
from ..config.settings import LimitsConfig
from ..errors import ConfigError, GraphtideError, NotSupported, RequestError, Unavailable
from ..records.stream import Partition
from ..records.topology import StorageState, Topology
from . import shared_memory
from .listening import TlsFiles, check_tls, open_listener
from .results import Publication, ResultsWriter
from .shared_memory import CONTROL_BYTES_MAX, SharedArray

log = logging.getLogger(__name__)

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 5.0
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.1, 5.0
HEALTHY_SECONDS = 30.0
"""A server that ran so long starts again without delay."""


class PublishedIndex(Protocol):
    """What is needed of ``gpma.vertex_index.VertexIndex``; its arrays come from ``shared_memory.allocate``."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]: ...

    @property
    def generation(self) -> int: ...


# -- the process ----------------------------------------------------------------------------------------------


def server_command(control: int, calls: int) -> list[str]:
    """How the server process is started."""
    module = "graphtide.daemon.serve.server"
    return [sys.executable, "-P", "-m", module, "--control", str(control), "--calls", str(calls)]


def _environment() -> dict[str, str]:
    """The child must find the very package that runs here, and nothing from the working directory."""
    known = [path for path in sys.path if path and Path(path).exists()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known)}


class _Process:
    """One running server process and our ends of its two sockets."""

    def __init__(self) -> None:
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.started = time.monotonic()
        self.ready = threading.Event()
        self.generations: dict[str, int] = {}
        self.graces: dict[int, threading.Event] | None = {}  # None: it is gone, and its requests with it
        self.answering: threading.Thread | None = None
        self._sending = threading.Lock()
        with control, calls:
            fds = [control.fileno(), calls.fileno()]
            self.popen = subprocess.Popen(server_command(*fds), pass_fds=fds, env=_environment())

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send without waiting; a server that does not take it is stuck, and killed for it."""
        try:
            with self._sending:
                self._send(msgpack.packb(message, default=plain), fds)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                log.error("the query server does not read its messages; it is replaced")
            self.popen.kill()

    def _send(self, packed: bytes, fds: Sequence[int]) -> None:
        # MSG_DONTWAIT only here: the watching thread receives on the same socket, and does wait.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, np.array(fds, np.int32).tobytes())] if fds else []
        self.control.sendmsg([packed], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """End the process: it goes when its control socket does; it is killed when it does not."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.calls.shutdown(socket.SHUT_RDWR)
        try:
            self.popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def release(self) -> None:
        """Close the sockets, once no thread uses them any more."""
        if self.answering is not None:
            self.answering.join()
        self.control.close()
        self.calls.close()


@dataclass(slots=True)
class _Totals:
    """Latencies over all server processes: those that ended, and the present one's last report."""

    ended: dict[str, MethodLatency] = field(default_factory=dict)
    present: dict[str, MethodLatency] = field(default_factory=dict)

    def take(self, wire: Mapping[str, Any]) -> None:
        self.present = {
            name: MethodLatency(tuple(counts), total, dict(errors))
            for name, (counts, total, errors) in wire.items()
        }

    def end(self) -> None:
        self.ended, self.present = self.sum(), {}

    def sum(self) -> dict[str, MethodLatency]:
        nothing = MethodLatency((0,) * (len(LATENCY_BUCKETS_SECONDS) + 1), 0.0, {})
        total = {}
        for name in {*self.ended, *self.present}:
            old, new = self.ended.get(name, nothing), self.present.get(name, nothing)
            codes = {*old.errors, *new.errors}
            total[name] = MethodLatency(
                tuple(a + b for a, b in zip(old.bucket_counts, new.bucket_counts, strict=True)),
                old.sum_seconds + new.sum_seconds,
                {code: old.errors.get(code, 0) + new.errors.get(code, 0) for code in codes},
            )
        return total


class ServerLink:
    """Publishes epochs and keeps a query server running that answers from them."""

    def __init__(
        self,
        *,
        listen: Sequence[str],
        graph: Mapping[str, Any],
        index: PublishedIndex,
        topology: Topology,
        limits: LimitsConfig | None = None,
        token: str | None = None,
        tls: TlsFiles | None = None,
        insecure: bool = False,
        python_modules: Sequence[str] = (),
    ) -> None:
        """``graph``: ``directed``, ``weighted`` and ``vertex_ids`` (``"int"`` or ``"string"``).

        ``python_modules`` are imported by the server, for programs that they register.
        """
        self.listen = list(listen)
        self.topology = topology
        self.index = index
        self.restarts = 0
        self.connections = 0
        self._settings: dict[str, Any] = {
            "kind": "configure",
            "limits": (limits or LimitsConfig()).model_dump(),
            "token": token,
            "graph": dict(graph),
            "tls": None if tls is None else dataclasses.asdict(tls),
            "version": __version__,
            "python_modules": list(python_modules),
        }
        self._beyond_loopback = insecure or tls is not None
        self._writer = ResultsWriter()
        self._listeners: list[tuple[socket.socket, str]] = []
        self._process: _Process | None = None
        # Guards which process is the present one, and what it was told of results and index.
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._totals = _Totals()

    # -- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, and start the server; it accepts clients once an epoch is published.

        Raises:
            ConfigError: an address, or the files for TLS, cannot be used.
        """
        try:
            check_tls(self._settings["tls"])
            for text in self.listen:
                self._listeners.append(open_listener(text, beyond_loopback=self._beyond_loopback))
        except ConfigError:
            self._close_listeners()
            raise
        self._begin()
        self._watcher = threading.Thread(target=self._watch, name="server-watch", daemon=True)
        self._watcher.start()

    @property
    def addresses(self) -> list[str]:
        """Where clients connect, with the ports that were given."""
        return [text for _, text in self._listeners]

    @property
    def is_ready(self) -> bool:
        """A server is running and accepts clients."""
        process = self._process
        return process is not None and process.ready.is_set() and process.popen.poll() is None

    @property
    def pid(self) -> int | None:
        """The server process."""
        process = self._process
        return None if process is None else process.popen.pid

    def wait_ready(self, timeout_s: float = START_SECONDS_MAX) -> None:
        """Return once clients are accepted (an epoch must have been published).

        Raises:
            Unavailable: the server did not come up in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready:
            process = self._process
            if time.monotonic() > deadline or process is None:
                raise Unavailable(f"the query server was not ready after {timeout_s:g} s")
            process.ready.wait(0.02)
            if not self.is_ready:
                time.sleep(0.01)

    def stop(self) -> None:
        """End the server, close the sockets and remove their paths; harmless to repeat."""
        with self._lock:
            self._stopping.set()
            process = self._process
        if process is not None:
            process.close()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener, text in self._listeners:
            listener.close()
            address = parse_address(text)
            if isinstance(address, UnixAddress):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address.path)
        self._listeners.clear()

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
            self._send_results()
            if self._process is not None and self._process.ready.is_set():
                self._process.send({"kind": "published"})

    def begin_grace(self) -> Callable[[], bool]:
        """Ask the server to tell when every request has ended that began before it has the index as it is now.

        Returns whether it is so, or that server is gone, to be asked again and again; any thread may.
        """
        over = threading.Event()
        with self._lock:
            self._send_index()
            process = self._process
            if process is None or process.graces is None:
                over.set()
            else:
                token = max(process.graces, default=0) + 1
                process.graces[token] = over
                process.send({"kind": "grace", "token": token})
        return over.is_set

    def memory_bytes(self) -> int:
        """Bytes of the shared memory of results."""
        return self._writer.memory_bytes()

    def published(self, program: str) -> Published:
        """What readers see of a program now; for the thread that publishes, until it does so again."""
        return self._writer.published(program)

    def latency_snapshot(self) -> dict[str, MethodLatency]:
        """Requests by method since ``start``, over all server processes; about a second old."""
        with self._lock:
            return self._totals.sum()

    def _send_index(self) -> int:
        """Send the index's arrays if the server does not have them yet; their generation."""
        with self._lock:
            generation = self.index.generation
            process = self._process
            if process is None or process.generations.get("index") == generation:
                return generation
            # Taken once: the writer may replace them meanwhile, and the header belongs to the arrays.
            arrays = self.index.arrays()
            generation = int(arrays["header"][2])
            places = {name: SharedArray.of(array) for name, array in arrays.items()}
            described = [[name, place.byte_offset, place.n_items, place.dtype] for name, place in places.items()]
            process.send({"kind": "index", "arrays": described}, [place.fd for place in places.values()])
            process.generations["index"] = generation
            return generation

    def _send_results(self) -> None:
        process, generation = self._process, self._writer.generation
        if process is None or generation == 0 or process.generations.get("results") == generation:
            return
        process.send({"kind": "results", "layout": self._writer.layout.to_wire()}, [self._writer.fd])
        process.generations["results"] = generation

    # -- the server process -----------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Start a process and tell it everything; False when the link is being stopped."""
        with self._lock:
            if self._stopping.is_set():
                return False
            process = self._process = _Process()
            process.send(self._settings, [listener.fileno() for listener, _ in self._listeners])
            self._send_index()
            self._send_results()
        process.answering = threading.Thread(target=self._answer, args=(process,), name="topology", daemon=True)
        process.answering.start()
        return True

    def _watch(self) -> None:
        """Take the server's reports; when it ends, start another, ever more slowly if it keeps ending."""
        delay = RESTART_SECONDS_MIN
        while True:
            process = self._process
            assert process is not None
            self._take_reports(process)
            process.close()
            process.release()
            with self._lock:
                self._totals.end()
                self.connections = 0
                graces, process.graces = process.graces or {}, None
            for over in graces.values():
                over.set()
            if self._stopping.is_set():
                return
            if time.monotonic() - process.started > HEALTHY_SECONDS:
                delay = RESTART_SECONDS_MIN
            status = process.popen.returncode
            log.error("the query server ended (status %s); the next one starts in %.1f s", status, delay)
            delay = self._restart(delay)

    def _restart(self, delay: float) -> float:
        """Start another process after ``delay``; the delay before the one after it. Returns when stopping, too."""
        while not self._stopping.wait(delay):
            delay = min(2 * delay, RESTART_SECONDS_MAX)
            try:
                self.restarts += self._begin()
            except OSError:
                log.exception("the query server cannot be started")
            else:
                break
        return delay

    def _take_reports(self, process: _Process) -> None:
        """Until the server is gone."""
        while True:
            try:
                message, _ = shared_memory.receive_with_fds(process.control, CONTROL_BYTES_MAX)
            except (OSError, ValueError):
                return
            if not message:
                return
            report = msgpack.unpackb(message)
            if report["kind"] == "ready":
                process.ready.set()
                process.send({"kind": "published"})
            elif report["kind"] == "grace":
                with self._lock:
                    over = (process.graces or {}).pop(report["token"], None)
                if over is not None:
                    over.set()
            elif report["kind"] == "statistics":
                with self._lock:
                    self._totals.take(report["latency"])
                    self.connections = report["connections"]

    # -- questions about edges --------------------------------------------------------------------------------

    def _answer(self, process: _Process) -> None:
        """Answer the server's questions one by one until it is gone; it bounds how many are open."""
        unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1)
        while True:
            try:
                data = process.calls.recv(RECEIVE_BYTES)
                if not data:
                    return
                unpacker.feed(data)
                for _, msgid, method, params in unpacker:
                    process.calls.sendall(self._response(msgid, method, params[0]))
            except OSError:
                return

    def _response(self, msgid: int, method: str, params: Mapping[str, Any]) -> bytes:
        error: GraphtideError
        try:
            state, answer = self._ask(method, params)
            # Sent before the answer, so that the server can name every vertex in it.
            answer |= {"epoch": state.epoch, "offsets": state.offsets}
            answer["index_generation"] = self._send_index()
        except GraphtideError as failure:
            error = failure
        except TimeoutError as failure:
            error = Unavailable(f"the storage is busy: {failure}")
        except Exception as failure:
            if type(failure) is LookupError:  # not its subclasses: those are mistakes, not answers
                error = NotSupported(str(failure))
            else:
                log.exception("answering %s failed", method)
                error = GraphtideError("the engine failed to answer; its log says why")
        else:
            packed: bytes = msgpack.packb([RESPONSE, msgid, None, answer], default=plain)
            return packed
        packed_error: bytes = msgpack.packb([RESPONSE, msgid, error_to_wire(error), None], default=plain)
        return packed_error

    def _ask(self, method: str, params: Mapping[str, Any]) -> tuple[StorageState, dict[str, Any]]:
        timeout_s = params["timeout_s"]

        def column(name: str) -> Vertices:
            return np.frombuffer(params[name], np.uint32)

        match method:
            case "standing":
                wanted = {Partition(name, number): offset for name, number, offset in params["wanted"]}
                standing = self.topology.standing(wanted)
                return self.topology.current_epoch(), {"standing": [standing[partition] for partition in wanted]}
            case "neighbors":
                page = self.topology.neighbors(
                    params["vertex"], params["direction"], params["limit"], params.get("cursor"), timeout_s
                )
                weights = None if page.weights is None else page.weights.astype(np.float32).tobytes()
                neighbors = page.neighbors.astype(np.uint32).tobytes()
                answer = {"known": page.known, "neighbors": neighbors, "weights": weights, "cursor": page.cursor}
                return page.state, answer
            case "degree":
                degrees = self.topology.degree(column("vertices"), timeout_s)
                in_ = None if degrees.in_ is None else degrees.in_.astype(np.int64).tobytes()
                out = degrees.out.astype(np.int64).tobytes()
                return degrees.state, {"known": degrees.known.tobytes(), "out": out, "in": in_}
            case "has_edge":
                found = self.topology.has_edge(column("src"), column("dst"), timeout_s)
                return found.state, {"exists": found.exists.astype(np.bool_).tobytes()}
            case "edge_weights":
                epoch = (params["epoch"][0], params["epoch"][1])
                path = self.topology.edge_weights(epoch, column("src"), column("dst"), timeout_s)
                packed = None if path is None else path.astype(np.float32).tobytes()
                return self.topology.current_epoch(), {"weights": packed}
        raise RequestError(f"unknown question {method!r}")
